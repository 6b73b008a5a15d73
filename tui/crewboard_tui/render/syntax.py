"""Syntax colours of code: which pieces of its lines are keywords, strings and so on, as Pygments finds them.

Only offsets are returned, so that the text is shown as it was made safe. Text that is no code, too long, or takes a
lexer too much time has no colours.
"""

import posixpath
import signal
import threading
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pygments.lexer import Lexer

MOST_LINES = 2000
"""The most lines of a block of code, or of a file's diff up to the end of a hunk, that are coloured."""

LONGEST_LINE = 400
"""The most characters of a line that is coloured."""

_MOST_TIME = 0.25
"""Seconds of processor time after which a lexer is stopped: agents write the texts, and patterns may take for ever."""

_MOST_KEPT = 10_000
"""The most lines whose pieces are kept, which takes some megabytes. A page has at most 4,000 lines."""

Piece = tuple[int, int, str]
"""The offsets at which a piece begins and ends in its line, and its tone."""

Pieces = tuple[Piece, ...]

_TONES = {
    ("Comment", "Preproc"): "keyword",
    ("Comment", "PreprocFile"): "string",
    ("Comment",): "comment",
    ("Keyword",): "keyword",
    ("Operator", "Word"): "keyword",
    ("Literal", "String"): "string",
    ("Literal", "Number"): "number",
    ("Name", "Function"): "definition",
    ("Name", "Class"): "definition",
    ("Name", "Tag"): "definition",
}
"""The tones of Pygments' token types, the more exact types first."""

_kept: dict[tuple[str, str, tuple[str, ...]], tuple[Pieces, ...]] = {}


def of_diff(lines: Sequence[str], path: str = "") -> list[Pieces]:
    """Return the pieces of each line of a unified diff, counted from behind its sign.

    A diff without a head is of the file `path`.
    """
    found: list[Pieces] = [()] * len(lines)
    hunk: list[int] = []
    is_in_hunk = bool(path)
    for at, raw in enumerate((*lines, "@")):
        if raw.startswith(("@", "diff --git ", "…")):
            kinds = [lines[place][:1] or " " for place in hunk]
            for place, pieces in zip(hunk, of_hunk(path, kinds, [lines[place][1:] for place in hunk]), strict=True):
                found[place] = pieces
            hunk, is_in_hunk = [], not raw.startswith("diff")
            path = path if is_in_hunk else raw
        elif is_in_hunk:
            hunk.append(at)
        elif raw.startswith(("--- ", "+++ ")) and not raw.endswith(" /dev/null"):
            path = raw
    return found


def of_hunk(path: str, kinds: Sequence[str], texts: Sequence[str]) -> list[Pieces]:
    """Return the pieces of each line of a hunk of the file `path`; `kinds` are the signs of the lines.

    The text before and the text after are read separately.
    """
    found: list[Pieces] = [()] * len(texts)
    # Lines that are in both are shown as they are now.
    for sign in "-+":
        places = [place for place, kind in enumerate(kinds) if kind in (" ", sign)]
        if path and (sign == "+" or "-" in kinds):
            for place, pieces in zip(places, of_code([texts[place] for place in places], file=path), strict=False):
                found[place] = pieces
    return found


def of_code(lines: Sequence[str], *, file: str = "", language: str = "") -> tuple[Pieces, ...]:
    """Return the pieces of each line of code. Its language is known by the name of a file, or by its name in Markdown.

    Nothing is returned for an unknown language, for too many lines, and outside the main thread.
    """
    file, language = posixpath.basename(file).rstrip(' "'), language.lower()
    # Elsewhere a lexer could not be stopped.
    if len(lines) > MOST_LINES or threading.current_thread() is not threading.main_thread():
        return ()
    lexer = _lexer(file, language)
    if lexer is None:
        return ()
    text = tuple(line if len(line) <= LONGEST_LINE else "" for line in lines)
    kept = _kept.get((file, language, text))
    if kept is not None:
        return kept
    if sum(len(each) for _, _, each in _kept) > _MOST_KEPT:
        _kept.clear()
    found: list[list[Piece]] = [[] for _ in text]
    at = begin = 0
    for offset, end, tone in _tokens(lexer, "\n".join(text)):
        while at < len(text) and begin + len(text[at]) <= offset:
            begin += len(text[at]) + 1
            at += 1
        # A string may go on for several lines.
        place, left = at, begin
        while place < len(text) and left < end:
            piece = max(0, offset - left), min(len(text[place]), end - left), tone
            if found[place] and found[place][-1][1:] == (piece[0], tone):
                found[place][-1] = found[place][-1][0], piece[1], tone
            elif piece[0] < piece[1]:
                found[place].append(piece)
            left += len(text[place]) + 1
            place += 1
    kept = _kept[file, language, text] = tuple(map(tuple, found))
    return kept


@lru_cache(maxsize=256)
def _lexer(file: str, language: str) -> "Lexer | None":
    # Imported here because most pages show no code. Pygments's own search loads the plugins of the environment first.
    from pygments.lexers import find_lexer_class, get_all_lexers

    parts = file.split(".")
    patterns = {file, *("*." + ".".join(parts[at:]) for at in range(1, len(parts)))}
    names = [
        name
        for name, aliases, globs, _ in get_all_lexers(plugins=False)
        if (language in aliases if language else not patterns.isdisjoint(globs))
    ]
    kinds: list[Any] = [kind for kind in map(find_lexer_class, names) if kind is not None]
    # Of several languages, as SQL and a dialect of it, the one with the shortest name.
    kind = min(kinds, key=lambda each: (-each.priority, len(each.name)), default=None)
    return kind() if kind is not None else None


def _tokens(lexer: "Lexer", text: str) -> list[tuple[int, int, str]]:
    """Return begin, end and tone of the tokens with a tone, in order; nothing if the lexer fails or is too slow."""

    def stop(*_: object) -> None:
        raise TimeoutError

    try:
        before = signal.signal(signal.SIGVTALRM, stop)
        signal.setitimer(signal.ITIMER_VIRTUAL, _MOST_TIME)
        try:
            tokens = lexer.get_tokens_unprocessed(text)
            return [(at, at + len(value), tone) for at, kind, value in tokens if (tone := _tone(kind))]
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            signal.signal(signal.SIGVTALRM, before)
    except Exception:  # noqa: BLE001  whatever is wrong with a lexer, the text is shown without colours
        return []


@lru_cache(maxsize=1024)
def _tone(kind: tuple[str, ...]) -> str:
    return next((tone for name, tone in _TONES.items() if kind[: len(name)] == name), "")
