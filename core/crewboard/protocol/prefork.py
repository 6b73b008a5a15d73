"""What passes between a supervisor, the warm parent of its team's workers, and a worker that is being born.

The supervisor hands one end of a fresh pair of sockets to the warm parent, which forks and forgets it. The child says
its pid through it, and the supervisor, once it knows its new child, sends the order, which is the child's leave to
begin. So no byte of an order is ever in the memory of the parent, where the next child would inherit it, and a child
whose supervisor gave up or died begins nothing.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

PARENT = "crewboard.worker.prefork_server"
"""The module that is the warm parent: started with a socket as stdin, and the team's directory as its argument."""

READY = b"ready"
"""Said by the parent, once."""

FORK = b"fork"
"""Said to the parent, with the descriptor of the child's socket."""


@dataclass(frozen=True)
class SpawnRequest:
    """What a worker that is being born must know: whose it is, and all of its environment."""

    agent: Path
    environment: Mapping[str, str]

    def encode(self) -> bytes:
        """As one line."""
        return json.dumps({"agent": str(self.agent), "environment": dict(self.environment)}).encode() + b"\n"

    @classmethod
    def decode(cls, line: bytes) -> "SpawnRequest | None":
        """From what was received until the end; None if it was not all."""
        if not line.endswith(b"\n"):
            return None
        fields = json.loads(line)
        return cls(Path(fields["agent"]), fields["environment"])
