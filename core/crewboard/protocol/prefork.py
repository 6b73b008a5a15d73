"""Messages between a supervisor, the prefork server of its team, and a newly forked worker.

The supervisor passes one end of a new socket pair to the prefork server, which forks a worker and closes its copy. The
worker sends its pid through the socket. Then the supervisor, which now knows its new child, answers with a
`SpawnRequest`; the worker does nothing before that.

So the prefork server never holds a byte of a request that the next worker would inherit, and a worker whose supervisor
gave up or died never starts.
"""

import json
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

SERVER_MODULE = "crewboard.worker.prefork_server"
"""The prefork server's module. It is started with a socket as stdin and the team's directory as its argument."""

READY = b"ready"
"""The message that the server sends once it can fork."""

FORK = b"fork"
"""The message to the server that comes with the descriptor of the worker's socket."""


class SpawnRequest(Struct, frozen=True):
    """The directory of the agent that a forked worker runs, and the worker's whole environment."""

    agent: Path
    environment: Mapping[str, str]

    def encode(self) -> bytes:
        """Return the request as one line of JSON."""
        return json.dumps({"agent": str(self.agent), "environment": dict(self.environment)}).encode() + b"\n"

    @classmethod
    def decode(cls, line: bytes) -> "SpawnRequest | None":
        """Parse a request; return None if the line is incomplete, because its sender ended."""
        if not line.endswith(b"\n"):
            return None
        fields = json.loads(line)
        return cls(Path(fields["agent"]), fields["environment"])
