"""Notes, and their form in a file."""

import re
from dataclasses import dataclass

_TAG = re.compile(r"(?<!\w)#(\w[\w-]*)")


@dataclass(frozen=True)
class Note:
    """One note. `number` never changes; `text` is markdown, and its first line is the title."""

    number: int
    text: str

    @property
    def title(self) -> str:
        """Return the first line without `#` of a heading, or `(empty)` if there is no text."""
        lines = self.text.strip().splitlines()
        return lines[0].lstrip("# ").strip() if lines else "(empty)"

    @property
    def tags(self) -> frozenset[str]:
        """Return each `#word` of the text, without the `#` and in lower case."""
        return frozenset(tag.lower() for tag in _TAG.findall(self.text))


def parse(number: int, content: str) -> Note:
    """Return the note with the content of its file as its text."""
    return Note(number, content.rstrip("\n"))


def dump(note: Note) -> str:
    """Return the content of a note's file: its text and a newline."""
    return note.text + "\n"
