"""Find notes by words and tags."""

from collections.abc import Iterable

from inkpot.note import Note


def score(note: Note, words: list[str]) -> int:
    """Return the sum over all words: 3 if it is in the title, 2 if a tag, 1 if in the text; 0 if any is missing."""
    total = 0
    for word in words:
        points = _points(note, word.lower())
        if points == 0:
            return 0
        total += points
    return total


def _points(note: Note, word: str) -> int:
    if word.startswith("#"):
        return 2 if word[1:] in note.tags else 0
    if word in note.title.lower():
        return 3
    return 1 if word in note.text.lower() else 0


def find(notes: Iterable[Note], query: str) -> list[Note]:
    """Return the notes that have every word of `query`: the best score first, then the highest number."""
    words = query.split()
    scored = [(score(note, words), note.number, note) for note in notes]
    return [note for points, _, note in sorted(scored, key=lambda entry: entry[:2], reverse=True) if points]
