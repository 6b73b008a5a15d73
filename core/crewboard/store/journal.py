"""The journal: everything that happened to one agent, in order. Only the agent's worker writes it."""

from collections.abc import Iterator
from pathlib import Path

from crewboard.errors import BadDataError
from crewboard.records import Event
from crewboard.store import codec, files


def append(path: Path, event: Event) -> None:
    """Append one event. The worker is the only writer, so no lock is needed.

    Raises:
        StorageError: The write failed; nothing was added.
        BadDataError: The event cannot be encoded so that it can be read again; nothing was added.
    """
    files.append_unlocked(path, codec.encode(event))


def read(path: Path, offset: int = 0) -> Iterator[tuple[Event | None, int]]:
    """Yield each event from byte `offset` on, None for a damaged line, and the offset after it."""
    for line, end in files.read_lines(path, offset):
        if line is not None and not line.strip():
            continue
        try:
            yield (codec.decode_event(line) if line is not None else None), end
        except BadDataError:
            yield None, end


def history(path: Path) -> Iterator[Event | None]:
    """Return all events so far, for the worker that will append the next one.

    First terminate a half-written last line, so that it is either valid now or never. An iterator, so that a long
    journal is never in memory as a whole.

    Raises:
        StorageError: The journal cannot be read or written.
    """
    files.seal(path)
    return (event for event, _ in read(path))


def tail_offset(path: Path, tail: int) -> int:
    """Return the offset of the first line within the last `tail` bytes; with 0, where the next line will begin.

    Raises:
        StorageError: The file exists but cannot be read.
    """
    return files.tail_offset(path, tail)


def last_run(path: Path) -> int:
    """Return the highest run number in the journal, 0 if it has none."""
    return max((event.run for event, _ in read(path) if event is not None), default=0)
