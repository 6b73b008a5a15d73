"""Notes as lines for the terminal."""

from collections.abc import Iterable

from inkpot.note import Note


def line(note: Note, width: int = 72) -> str:
    """Return a note as one line: number, title and tags, cut to `width` characters."""
    tags = " ".join(f"#{tag}" for tag in sorted(note.tags) if f"#{tag}" not in note.title.lower())
    text = f"{note.number:>4}  {note.title}  {tags}".rstrip()
    return text if len(text) <= width else text[: width - 1] + "…"


def listing(notes: Iterable[Note]) -> str:
    """Return notes as text, one on each line, or `no notes`."""
    return "\n".join(line(note) for note in notes) or "no notes"
