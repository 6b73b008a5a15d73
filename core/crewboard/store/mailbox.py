"""Mailboxes: append-only logs of messages. Reading moves a cursor that the reader keeps; no line is ever removed."""

import hashlib
import time
import uuid
from collections.abc import Container, Mapping
from dataclasses import dataclass, field

from pydantic import JsonValue

from crewboard.errors import BadDataError, UsageError
from crewboard.records import Message
from crewboard.store import codec, files
from crewboard.store.directory import TeamDirectory

MAX_MESSAGE = 256 * 1024
"""Longest message line in bytes (contract § 3)."""

_POINTER = "[The whole text, {size} bytes, is in {path}. It begins:]\n\n{head}"
_HEAD = 2000


@dataclass
class Batch:
    """What lay in a mailbox between two offsets.

    `letters` are the messages with the offset behind each; `damaged` counts lines that are no message.
    """

    offset: int
    letters: list[tuple[Message, int]] = field(default_factory=list)
    damaged: int = 0

    @property
    def messages(self) -> list[Message]:
        """The messages alone."""
        return [message for message, _ in self.letters]


def new_id() -> str:
    """A message id that nobody else has."""
    return uuid.uuid4().hex


def derived_id(*parts: object) -> str:
    """The same id for the same parts, so that what is sent again after a crash is delivered once."""
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:32]


def compose(
    author: str,
    to: str,
    kind: str,
    content: str,
    *,
    ident: str | None = None,
    ts: float | None = None,
    metadata: Mapping[str, JsonValue] | None = None,
) -> Message:
    """A message, not sent yet. Metadata that is None is left out."""
    return Message(
        id=ident or new_id(),
        ts=time.time() if ts is None else ts,
        from_=author,
        to=to,
        type=kind,
        content=content.encode("utf-8", "replace").decode(),
        metadata={key: value for key, value in (metadata or {}).items() if value is not None},
    )


def send(team: TeamDirectory, message: Message, *, durable: bool = False) -> Message:
    """Put `message` into its recipient's mailbox, and return it as it stands there.

    A body beyond 256 KiB goes to `results/` and the message points at it.

    Raises:
        StorageError: The disk refused; the message is not in the mailbox.
    """
    line = codec.encode(message)
    if len(line) > MAX_MESSAGE:
        message = _spill(team, message)
        line = codec.encode(message)
    if len(line) > MAX_MESSAGE:
        raise UsageError(f"the metadata of the message to {message.to} is larger than {MAX_MESSAGE} bytes")
    files.append_line(team.inbox(message.to), team.lock(f"inbox-{message.to}"), line, durable=durable)
    return message


def _spill(team: TeamDirectory, message: Message) -> Message:
    body = message.content.encode("utf-8", "replace")
    name = f"{message.from_}-mail-{derived_id(message.id)[:16]}.md"
    files.replace_file(team.results / name, body)
    path = f"results/{name}"
    readable = (team.results / name).relative_to(team.root)
    pointer = _POINTER.format(size=len(body), path=readable, head=message.content[:_HEAD])
    metadata: dict[str, JsonValue] = {"body": path, **message.metadata}
    return message.model_copy(update={"content": pointer, "metadata": metadata})


def read(team: TeamDirectory, name: str, offset: int = 0, *, known: Container[str] = ()) -> Batch:
    """Read the messages of `name` from `offset` on; those whose id is `known` or stood before are dropped."""
    seen: set[str] = set()
    batch = Batch(offset)
    for line, end in files.read_lines(team.inbox(name), offset):
        batch.offset = end
        try:
            message = _message(line)
        except BadDataError:
            batch.damaged += 1
            continue
        if message and message.id not in seen and message.id not in known:
            seen.add(message.id)
            batch.letters.append((message, end))
    return batch


def size(team: TeamDirectory, name: str) -> int:
    """Bytes that a mailbox holds."""
    try:
        return team.inbox(name).stat().st_size
    except FileNotFoundError:
        return 0


def _message(line: bytes | None) -> Message | None:
    """The message on a line, None for an empty one."""
    if line is None or len(line) > MAX_MESSAGE:
        raise BadDataError(f"a line longer than {MAX_MESSAGE} bytes")
    return codec.decode(line, Message) if line.strip() else None
