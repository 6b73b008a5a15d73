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


def tail_offset(path: Path, size: int) -> int:
    """Where the last `size` bytes of whole lines begin."""
    try:
        with path.open("rb") as file:
            end = file.seek(0, 2)
            if end <= size:
                return 0
            start = file.seek(end - size)
            return start + len(file.readline())
    except FileNotFoundError:
        return 0
