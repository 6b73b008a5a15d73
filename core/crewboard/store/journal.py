"""The journal: everything that happened to one agent, in order, written by its worker alone."""

from collections.abc import Iterator
from pathlib import Path

from crewboard.errors import BadDataError
from crewboard.records import Event
from crewboard.store import codec, files


def append(path: Path, event: Event) -> None:
    """Add one event. The journal has one writer, its worker, so that no lock is needed.

    Raises:
        StorageError: The disk refused; nothing was added.
        BadDataError: The event cannot be written so that it can be read again; nothing was added.
    """
    files.append_unlocked(path, codec.encode(event))


def read(path: Path, offset: int = 0) -> Iterator[tuple[Event | None, int]]:
    """Yield each event from byte `offset` on, None for a line that is damaged, and the offset behind it."""
    for line, end in files.read_lines(path, offset):
        if line is not None and not line.strip():
            continue
        try:
            yield (codec.decode_event(line) if line is not None else None), end
        except BadDataError:
            yield None, end


def history(path: Path) -> Iterator[Event | None]:
    """All events so far, for the worker that will append the next; an event that was half written counts or never will.

    One by one, so that a long journal is never in memory as a whole.

    Raises:
        StorageError: The disk refused.
    """
    files.seal(path)
    return (event for event, _ in read(path))


def tail_offset(path: Path, tail: int) -> int:
    """Where the whole lines begin that the last `tail` bytes hold; 0 bytes: where the next line will begin.

    Raises:
        StorageError: The file is there but cannot be read.
    """
    return files.tail_offset(path, tail)


def last_run(path: Path) -> int:
    """The number of the newest run that the journal tells of, 0 if none."""
    return max((event.run for event, _ in read(path) if event is not None), default=0)
