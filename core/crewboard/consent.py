"""Records of the texts of a workspace that the user accepted, each bound to the content of its text.

The texts are agent types, skills, imported files, commands, entries of MCP servers and settings. Agents can write them,
and a cloned repository can bring them. `Acceptance.holds_for` compares a record with a text as it is now; what belongs
to a text is decided in `type_files.py`, `skill_files.py`, `mcp_servers.py` and the dashboard's `settings.py`. The
records are in the user's own folder of saved state, which agents do not see. A workspace has at most one record for
each kind and name.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec import DecodeError, Struct
from msgspec.json import decode, encode

from crewboard import env
from crewboard.errors import StorageError


class Acceptance(Struct, frozen=True):
    """The record that the user accepted the text called `name` in the workspace `root`.

    `sha256` is the digest of the text that was accepted; an empty one revokes the acceptance. `powers` describes what
    an accepted agent type may do. `parts` has a digest of each part of an accepted MCP server, which tells later which
    part changed.
    """

    name: str
    root: str
    sha256: str
    powers: str = ""
    parts: dict[str, str] = {}

    def holds_for(self, sha256: str, powers: str = "") -> bool:
        """Return True if the user accepted the text with this digest, for an agent type also with these powers."""
        return (self.sha256, self.powers) == (sha256, powers)


def folder(what: str, environment: Mapping[str, str]) -> Path:
    """Return the folder with the records of one kind: `types`, `skills`, `mcp` or `settings`."""
    return env.state_home(environment) / f"accepted-{what}"


def _key(root: str, name: str) -> str:
    return f"{hashlib.sha256(json.dumps([root, name]).encode()).hexdigest()}.json"


def accept(what: str, record: Acceptance, environment: Mapping[str, str]) -> None:
    """Write a record of the kind `what`, in place of the one with the same name in the same workspace.

    Raises:
        StorageError: It could not be recorded.
    """
    place = folder(what, environment)
    path = place / _key(record.root, record.name)
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        written = path.with_suffix(f".{os.getpid()}")
        written.touch(0o600)
        written.write_bytes(encode(record))
        written.replace(path)
    except OSError as error:
        raise StorageError(f"cannot record in {place} what is accepted of {record.name}: {error.strerror}") from error


def find_all(what: str, root: Path, environment: Mapping[str, str]) -> Iterator[Acceptance]:
    """Yield the records of the kind `what` for a workspace; records that cannot be read are passed over."""
    place = os.path.realpath(root)
    with contextlib.suppress(OSError):
        for path in folder(what, environment).glob("*.json"):
            with contextlib.suppress(OSError, DecodeError):
                record = decode(path.read_bytes(), type=Acceptance)
                if record.root == place and path.name == _key(place, record.name):
                    yield record


def find(what: str, name: str, root: Path, environment: Mapping[str, str]) -> Acceptance | None:
    """Return the record of the kind `what` with a name in a workspace; None if there is none."""
    return next((record for record in find_all(what, root, environment) if record.name == name), None)
