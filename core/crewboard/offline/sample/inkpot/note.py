"""What a note is, and how it is read from a file and written to one."""

import re
from dataclasses import dataclass

_TAG = re.compile(r"(?<!\w)#(\w[\w-]*)")


@dataclass(frozen=True)
class Note:
    """One note. `number` is its name for life; `text` is markdown, its first line the title."""

    number: int
    text: str

    @property
    def title(self) -> str:
        """The first line, without the marks of a heading."""
        lines = self.text.strip().splitlines()
        return lines[0].lstrip("# ").strip() if lines else "(empty)"

    @property
    def tags(self) -> frozenset[str]:
        """Every `#word` of the text, in lower case."""
        return frozenset(tag.lower() for tag in _TAG.findall(self.text))


def parse(number: int, content: str) -> Note:
    """Make a note of what its file holds."""
    return Note(number, content.rstrip("\n"))


def dump(note: Note) -> str:
    """What the file of `note` holds: its text, ended by one newline."""
    return note.text + "\n"
