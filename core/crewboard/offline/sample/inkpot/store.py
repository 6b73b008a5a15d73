"""The folder of notes: one file for each note, named by its number."""

from pathlib import Path

from inkpot.note import Note, dump, parse


class NoSuchNote(KeyError):
    """The error that there is no note with this number."""


class Store:
    """A folder of notes. It is created when the first note is added."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add(self, text: str) -> Note:
        """Write a new note to a file and return it with its number."""
        self.folder.mkdir(parents=True, exist_ok=True)
        note = Note(self._last_number() + 1, text)
        self._path(note.number).write_text(dump(note), encoding="utf-8")
        (self.folder / ".last").write_text(str(note.number), encoding="utf-8")
        return note

    def get(self, number: int) -> Note:
        """Return the note with this number; raise NoSuchNote if there is none."""
        path = self._path(number)
        if not path.exists():
            raise NoSuchNote(number)
        return parse(number, path.read_text(encoding="utf-8"))

    def remove(self, number: int) -> None:
        """Delete the file of a note; raise NoSuchNote if there is none."""
        path = self._path(number)
        if not path.exists():
            raise NoSuchNote(number)
        path.unlink()

    def recent(self, limit: int = 10) -> list[Note]:
        """Return the newest notes, at most `limit`, the newest first."""
        files = sorted(self.folder.glob("*.md"), key=lambda path: path.stem, reverse=True)
        return [self.get(int(path.stem)) for path in files[:limit]]

    def _path(self, number: int) -> Path:
        return self.folder / f"{number}.md"

    def _last_number(self) -> int:
        """Return the highest number that was ever given to a note, 0 if none was."""
        last = self.folder / ".last"
        return int(last.read_text(encoding="utf-8")) if last.exists() else 0
