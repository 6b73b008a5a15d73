"""Acceptances of texts in a workspace by their content: of types, skills, imported files and MCP servers.

Agents can write these, and they can come with a cloned repository. For each name in a workspace one text is accepted,
until it changes. The records are the user's own, in a folder that agents do not see.
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
    """The record of a text of the workspace `root` that the user accepted; without a `sha256` none is.

    So what was accepted before it is not accepted any more. `powers` are those of a type, and `parts` has digests of
    the parts of a server, which tell later what changed.
    """

    name: str
    root: str
    sha256: str
    powers: str = ""
    parts: dict[str, str] = {}


def folder(what: str, environment: Mapping[str, str]) -> Path:
    """Return the folder with the records of `types`, `skills` or `mcp`."""
    return env.state_home(environment) / f"accepted-{what}"


def _key(root: str, name: str) -> str:
    return f"{hashlib.sha256(json.dumps([root, name]).encode()).hexdigest()}.json"


def accept(what: str, record: Acceptance, environment: Mapping[str, str]) -> None:
    """Record that the user accepted something, in place of what was accepted before under its name.

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
    """Yield what the user accepted in a workspace; what cannot be read is not accepted."""
    place = os.path.realpath(root)
    with contextlib.suppress(OSError):
        for path in folder(what, environment).glob("*.json"):
            with contextlib.suppress(OSError, DecodeError):
                record = decode(path.read_bytes(), type=Acceptance)
                if record.root == place and path.name == _key(place, record.name):
                    yield record


def find(what: str, name: str, root: Path, environment: Mapping[str, str]) -> Acceptance | None:
    """Return what the user accepted under a name in a workspace."""
    return next((record for record in find_all(what, root, environment) if record.name == name), None)
