"""Mailboxes: append-only logs of messages. Each reader keeps a cursor; no line is ever removed.

Other programs append whole lines too, without taking the lock, and possibly directly after half a line that a killed
writer left.

Reading everything and then truncating lost 17 to 57 % of 8 × 2,000 concurrent messages; a cursor that is committed in
the reader's journal (`worker/inbox.py`) lost and doubled none in 1,850 random kills
(docs/decisions/0001-append-only-mailboxes.md).
"""

import contextlib
import hashlib
import os
import time
from collections.abc import Container, Mapping

from msgspec import Struct, field

from crewboard.errors import BadDataError, UsageError
from crewboard.records.base import JsonValue
from crewboard.records.messages import Message, ShortMessage
from crewboard.store import codec
from crewboard.store.layout import TeamDirectory

MAX_MESSAGE = 256 * 1024
"""Most bytes of a message's line (docs/reference/messages.md#form)."""

MAX_BATCH = 2 * 1024 * 1024
"""Most bytes of mail in one journal entry. Far below `files.MAX_LINE`, because escaping makes the text longer there."""

_NEAR = 64 * 1024
"""Bytes before an untimed message in which a line with a time is looked for first."""

_MAX_STARTS = 8
"""Most positions in a damaged line that are tried as the beginning of a whole message."""

_POINTER = "[The whole text, {size} bytes, is in {path}. It begins:]\n\n{head}"
_EXCERPT_LENGTH = 2000


class Batch(Struct):
    """The contents of a mailbox between the byte offsets `start` and `offset`.

    `entries` are the messages, each with the offset after its line. `damaged_ends` are the offsets after damaged lines,
    also of those whose last part is a message. `more` is True if the mailbox continues.
    """

    offset: int
    entries: list[tuple[Message, int]] = field(default_factory=list)
    damaged_ends: list[int] = field(default_factory=list)
    more: bool = False
    start: int = 0

    @property
    def messages(self) -> list[Message]:
        """Return the messages without their offsets."""
        return [message for message, _ in self.entries]

    @property
    def damaged(self) -> int:
        """Return the number of damaged lines."""
        return len(self.damaged_ends)


def new_id() -> str:
    """Return a new unique message id."""
    return os.urandom(16).hex()


def derived_id(*parts: object) -> str:
    """Return the same message id for the same parts, so that a message sent again after a crash counts once."""
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
    """Return a new message, which is not sent. Metadata whose value is None is left out.

    Without `ident` the message gets a new id, without `ts` the present time. A lone surrogate in `content` is replaced
    by `?`.
    """
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
    """Append `message` to its recipient's mailbox, and return it as it is stored.

    A message whose line would be longer than `MAX_MESSAGE` has its text in `results/`, and points to it.

    Raises:
        StorageError: The write failed; the message is not in the mailbox.
        UsageError: Its metadata is too large.
    """
    message, line = _fit(team, message)
    inbox = team.inbox(message.to)
    inbox.store.append(inbox.name, line, durable=durable)
    return message


def fit(team: TeamDirectory, message: Message) -> Message:
    """Return `message` as `send` would store it.

    Raises:
        StorageError: Its text had to be written to `results/`, and the write failed.
        UsageError: Its metadata is too large.
    """
    return _fit(team, message)[0]


def _fit(team: TeamDirectory, message: Message) -> tuple[Message, bytes]:
    line = codec.encode(message)
    if len(line) > MAX_MESSAGE:
        body = message.content.encode("utf-8", "replace")
        name = f"{message.from_}-mail-{derived_id(message.id)[:16]}.md"
        team.keep_result(name, body)
        readable = (team.results / name).relative_to(team.root)
        pointer = _POINTER.format(size=len(body), path=readable, head=message.content[:_EXCERPT_LENGTH])
        message = message.replace(content=pointer, metadata={"body": f"results/{name}", **message.metadata})
        line = codec.encode(message)
    if len(line) > MAX_MESSAGE:
        raise UsageError(f"the metadata of the message to {message.to} is larger than {MAX_MESSAGE} bytes")
    return message, line


def read(
    team: TeamDirectory,
    name: str,
    offset: int = 0,
    *,
    known: Container[str] = (),
    limit: int | None = None,
    kind: str | None = None,
    now: float | None = None,
) -> Batch:
    """Read the mailbox of `name` from `offset` on, without messages whose id is in `known` or was read before.

    - An untimed message gets the time `now`. Without that, it gets a time that is the same for each reader: that of the
      last line before it with a time, else of the first such line behind it, else of the last change of the mailbox.
    - With a `limit`, stop after the line that reaches that many bytes.
    - A mailbox that is shorter than `offset` was replaced by another program, and is read from its beginning.
    - With a `kind`, return only messages of that type; most other lines are not parsed.

    Raises:
        StorageError: The mailbox exists but cannot be read.
    """
    inbox = team.inbox(name)
    start = offset if offset <= inbox.size() else 0
    batch = Batch(start, start=start)
    seen: set[str] = set()
    quoted = b"" if kind is None else f'"{kind}"'.encode()
    before: float | None = None
    for line, end in inbox.read(start):
        if limit is not None and batch.offset - start >= limit:
            batch.more = True
            break
        batch.offset = end
        if line is not None and not line.strip():
            continue
        if quoted and (line is None or quoted not in line):
            before = None
            continue
        message, is_damaged = _find_message(name, line, end)
        if is_damaged:
            batch.damaged_ends.append(end)
        if message is None:
            continue
        if message.is_untimed:
            at = now if now is not None else before if before is not None else _time_around(team, name, end)
            message = message.replace(ts=at)
        before = message.ts
        if kind in (None, message.type) and message.id not in known and message.id not in seen:
            seen.add(message.id)
            batch.entries.append((message, end))
    return batch


def size(team: TeamDirectory, name: str) -> int:
    """Return the size of a mailbox in bytes."""
    return team.inbox(name).size()


def _time_around(team: TeamDirectory, name: str, place: int) -> float:
    """Return the time of an untimed line that ends at the offset `place`, as `read` describes it."""
    inbox = team.inbox(name)
    # The line before it mostly has one.
    for start in (inbox.tail_offset(inbox.size() - place + _NEAR), 0):
        found: float | None = None
        for line, end in inbox.read(start):
            if end >= place and (start > 0 or found is not None):
                break
            message, _ = _find_message(name, line, end)
            if message is not None and not message.is_untimed:
                found = message.ts
        if found is not None:
            return found
    return inbox.changed_at()


def _find_message(name: str, line: bytes | None, end: int) -> tuple[Message | None, bool]:
    """Return the message in a line or in its last part, None if there is none, and True if the line is damaged."""
    try:
        return _parse_message(name, line, end), False
    except BadDataError:
        return _recover_message(name, line, end), True


def _parse_message(name: str, line: bytes | None, end: int) -> Message:
    if line is None or len(line) > MAX_MESSAGE:
        raise BadDataError(f"a line longer than {MAX_MESSAGE} bytes")
    try:
        return codec.decode(line, Message)
    except BadDataError as error:
        try:
            short = codec.decode(line, ShortMessage)
            # At the same place with the same text it is the same message, however often it is read.
            whole = short.complete(derived_id(name, end, short.content), name)
            return codec.decode(codec.encode(whole), Message)
        except BadDataError:
            raise error from None


def _recover_message(name: str, line: bytes | None, end: int) -> Message | None:
    """Return the whole message that another program appended to half a line; None if there is none.

    `send` ends a line that a killed writer left unfinished; other programs append directly after it.
    """
    start = 0
    for _ in range(_MAX_STARTS):
        start = line.find(b'{"', start + 1) if line is not None else -1
        if line is None or start < 0:
            return None
        with contextlib.suppress(BadDataError):
            return _parse_message(name, line[start:], end)
    return None
