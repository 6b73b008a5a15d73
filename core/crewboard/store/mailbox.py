"""Mailboxes: append-only logs of messages. Reading moves a cursor that the reader keeps; no line is ever removed.

Other programs append too, without our lock: whole lines, and perhaps behind half a line that a killed writer left.
"""

import hashlib
import time
import uuid
from collections.abc import Container, Mapping
from dataclasses import dataclass, field

from pydantic import JsonValue

from crewboard.errors import BadDataError, UsageError
from crewboard.records import Message
from crewboard.store import codec, files
from crewboard.store.layout import TeamDirectory

MAX_MESSAGE = 256 * 1024
"""Longest message line in bytes (docs/reference/messages.md#form)."""

MANY = 2 * 1024 * 1024
"""Bytes of mail that make one entry of a journal: far below the longest line, however its text is escaped there."""

_STARTS_TRIED = 8
"""How many places of a damaged line are tried as the beginning of a whole message."""

_POINTER = "[The whole text, {size} bytes, is in {path}. It begins:]\n\n{head}"
_HEAD = 2000


@dataclass
class Batch:
    """What lay in a mailbox between two offsets.

    `letters` are the messages with the offset behind each, `damage` the offsets behind lines that are no message, or
    of which only the end is one. `more` says that the mailbox goes on.
    """

    offset: int
    letters: list[tuple[Message, int]] = field(default_factory=list)
    damage: list[int] = field(default_factory=list)
    more: bool = False

    @property
    def messages(self) -> list[Message]:
        """The messages alone."""
        return [message for message, _ in self.letters]

    @property
    def damaged(self) -> int:
        """How many lines are no message."""
        return len(self.damage)


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
    message, line = _fit(team, message)
    files.append_line(team.inbox(message.to), team.lock(f"inbox-{message.to}"), line, durable=durable)
    return message


def fit(team: TeamDirectory, message: Message) -> Message:
    """`message` as it would stand in its mailbox.

    Raises:
        StorageError: Its body belongs into `results/`, and the disk refused.
    """
    return _fit(team, message)[0]


def _fit(team: TeamDirectory, message: Message) -> tuple[Message, bytes]:
    line = codec.encode(message)
    if len(line) > MAX_MESSAGE:
        message = _spill(team, message)
        line = codec.encode(message)
    if len(line) > MAX_MESSAGE:
        raise UsageError(f"the metadata of the message to {message.to} is larger than {MAX_MESSAGE} bytes")
    return message, line


def _spill(team: TeamDirectory, message: Message) -> Message:
    body = message.content.encode("utf-8", "replace")
    name = f"{message.from_}-mail-{derived_id(message.id)[:16]}.md"
    files.replace_file(team.results / name, body)
    path = f"results/{name}"
    readable = (team.results / name).relative_to(team.root)
    pointer = _POINTER.format(size=len(body), path=readable, head=message.content[:_HEAD])
    metadata: dict[str, JsonValue] = {"body": path, **message.metadata}
    return message.model_copy(update={"content": pointer, "metadata": metadata})


def read(
    team: TeamDirectory, name: str, offset: int = 0, *, known: Container[str] = (), limit: int | None = None
) -> Batch:
    """Read the messages of `name` from `offset` on; those whose id is `known` or stood before are dropped.

    With a `limit`, stops behind the line that reaches so many bytes. A mailbox that is shorter than `offset` was
    replaced by somebody, and is read from its beginning; `known` keeps what was read from being read twice.

    Raises:
        StorageError: The mailbox is there but cannot be read.
    """
    path = team.inbox(name)
    start = offset if offset <= size(team, name) else 0
    batch = Batch(start)
    seen: set[str] = set()
    for line, end in files.read_lines(path, start):
        if limit is not None and batch.offset - start >= limit:
            batch.more = True
            break
        batch.offset = end
        message = _take(line, end, batch)
        if message is not None and message.id not in known and message.id not in seen:
            seen.add(message.id)
            batch.letters.append((message, end))
    return batch


def size(team: TeamDirectory, name: str) -> int:
    """Bytes that a mailbox holds."""
    return files.size(team.inbox(name))


def _take(line: bytes | None, end: int, batch: Batch) -> Message | None:
    """The message on a line, None for an empty one; damage is noted."""
    if line is not None and not line.strip():
        return None
    try:
        return _message(line)
    except BadDataError:
        batch.damage.append(end)
        return _behind_damage(line)


def _message(line: bytes | None) -> Message:
    if line is None or len(line) > MAX_MESSAGE:
        raise BadDataError(f"a line longer than {MAX_MESSAGE} bytes")
    return codec.decode(line, Message)


def _behind_damage(line: bytes | None) -> Message | None:
    """The whole message that somebody appended to half a line, if there is one.

    A killed writer leaves a line without its end. We seal it; other programs append right behind it.
    """
    start = 0
    for _ in range(_STARTS_TRIED if line is not None else 0):
        start = line.find(b'{"', start + 1) if line is not None else -1
        if start < 0:
            return None
        try:
            return _message(line[start:] if line is not None else None)
        except BadDataError:
            continue
    return None
