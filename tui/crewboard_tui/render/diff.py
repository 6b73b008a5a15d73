"""Unified diffs: files, hunks and lines as data, the words that changed within a line, and how they are painted."""

import difflib
import re
from collections.abc import Iterable, Iterator
from itertools import groupby, pairwise
from typing import NamedTuple

from msgspec import Struct, field
from rich.cells import chop_cells

from crewboard.executed_files import is_prose
from crewboard.untrusted import as_run
from crewboard_tui.render import syntax
from crewboard_tui.render.lines import Line, Span, coloured, exact_lines, sign_tone, tinted_lines, tone_of
from crewboard_tui.render.sanitize import safe_hunk, safe_lines

MOST_LINES = 40_000
"""Lines of a whole diff that are kept; the rest is only counted."""

MOST_OF_FILE = 3000
"""Lines of one file's diff that are kept."""

_MOST_PAIRS = 2000
"""Pairs of lines of a whole diff in which the changed words are marked."""

_LONGEST_MARKED = 400
"""Characters of a line above which its words are not compared."""

_LIKE = 0.4
"""The least share of characters in common for two lines to count as versions of one another."""

_HEAD = 2
"""The number of lines at the start of a short diff that name the compared texts."""

_TOKEN = re.compile(r"\w+|\s+|.")
_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")

Mark = tuple[int, int]
"""The offsets in a line's text at which a range of changed words begins and ends."""


class DiffLine(NamedTuple):
    """One line: `kind` is `+`, `-`, a blank for a line that did not change, or a backslash for a remark of git.

    `old` and `new` are its numbers in the file before and after.
    """

    kind: str
    text: str
    old: int | None = None
    new: int | None = None
    marks: tuple[Mark, ...] = ()

    @property
    def number(self) -> int:
        """Return the line's number in the newest version that has it; 0 for a remark."""
        return self.new or self.old or 0


class Hunk(Struct, frozen=True):
    """Consecutive lines of a diff, and the `@@` line of git above them."""

    head: str
    lines: tuple[DiffLine, ...]
    path: str = ""
    """The name of the file, which decides the colours of its code; empty if the file is too long to be coloured."""


class FileDiff(Struct, frozen=True):
    """The changes of one file.

    `facts` are in words, such as a new mode. `left_out` is the number of lines that are not kept.
    """

    path: str
    facts: tuple[str, ...] = ()
    hunks: tuple[Hunk, ...] = ()
    left_out: int = 0

    @property
    def digits(self) -> int:
        """Return the number of digits of the highest line number."""
        return len(str(max((line.number for hunk in self.hunks for line in hunk.lines[-2:]), default=0)))


# ------------------------------------------------------------------------------------------------------- parsing


class _Draft(Struct):
    """A file whose diff is being read."""

    path: str = ""
    facts: list[str] = field(default_factory=list)
    hunks: list[Hunk] = field(default_factory=list)
    lines: int = 0
    left_out: int = 0
    mode: str = ""

    def done(self) -> FileDiff:
        return FileDiff(self.path, tuple(self.facts), tuple(self.hunks), self.left_out)


def parse_diff(text: str) -> list[FileDiff]:
    """Return the files of a unified diff of git, made safe. Of a huge one, only the first part is kept.

    It takes up to a second for a huge diff, so it must not run in the thread that paints.
    """
    found: list[_Draft] = []
    lines = iter(text.split("\n"))
    kept = 0
    pairs = _MOST_PAIRS
    for raw in lines:
        if raw.startswith("diff --git "):
            # Imported here, and below, because it loads sandbox and git, for which the first picture need not wait.
            from crewboard.worktrees.changes import unquoted

            names = raw.removeprefix("diff --git ")
            found.append(_Draft(unquoted(names[: len(names) // 2])[2:]))
        elif found and (head := _HUNK.match(raw)):
            draft = found[-1]
            room = max(0, min(MOST_OF_FILE - draft.lines, MOST_LINES - kept))
            read, left_out = _read_hunk(lines, head, room, is_run=not is_prose(draft.path))
            draft.left_out += left_out
            if read:
                hunk, compared = _mark_words(read, pairs)
                pairs -= compared
                draft.lines += len(hunk)
                path = draft.path if draft.lines <= syntax.MOST_LINES else ""
                draft.hunks.append(Hunk(_safe(raw), hunk, path))
                kept += len(hunk)
        elif found and raw.startswith("\\") and found[-1].hunks:
            last = found[-1].hunks.pop()
            found[-1].hunks.append(Hunk(last.head, (*last.lines, DiffLine("\\", _safe(raw[1:]))), last.path))
        elif found:
            _read_fact(found[-1], raw)
    return [draft.done() for draft in found]


def _read_hunk(lines: Iterator[str], head: re.Match[str], room: int, *, is_run: bool) -> tuple[list[DiffLine], int]:
    """Read the lines of a hunk, of which at most `room` are kept; return them, and the number of the others.

    `is_run` is True unless the file is prose.
    """
    old, new = int(head[1]), int(head[3])
    old_end, new_end = (int(at) + int(count or 1) for at, count in ((head[1], head[2]), (head[3], head[4])))
    kinds: list[str] = []
    texts: list[str] = []
    left_out = 0
    while old < old_end or new < new_end:
        raw = next(lines, None)
        if raw is None:
            break
        kind = raw[:1] or " "
        old += kind in " -"
        new += kind in " +"
        if len(texts) < room:
            kinds.append(kind)
            texts.append(as_run(raw[1:]) if is_run else raw[1:])
        else:
            left_out += kind != "\\"
    old, new = int(head[1]), int(head[3])
    found: list[DiffLine] = []
    for kind, text in zip(kinds, safe_hunk(kinds, texts), strict=True):
        before, after = kind in " -", kind in " +"
        found.append(DiffLine(kind, text, old if before else None, new if after else None))
        old += before
        new += after
    return found, left_out


def _safe(text: str) -> str:
    return " ".join(safe_lines(text))


def _read_fact(draft: _Draft, raw: str) -> None:
    """Read a line between the name of a file and its first hunk."""
    from crewboard.worktrees.changes import unquoted

    word, _, rest = raw.partition(" to ") if raw.startswith(("rename to ", "copy to ")) else (raw, "", "")
    if rest:
        draft.path = unquoted(rest)
        draft.facts.append(f"{'renamed' if word == 'rename' else 'copied'} from {draft.mode}")
    elif raw.startswith(("rename from ", "copy from ")):
        draft.mode = _safe(unquoted(raw.partition(" from ")[2]))
    elif raw.startswith("old mode "):
        draft.mode = raw.removeprefix("old mode ")
    elif raw.startswith("new mode "):
        draft.facts.append(f"mode {draft.mode} → {raw.removeprefix('new mode ')}")
    elif raw.startswith(("new file mode ", "deleted file mode ")):
        draft.facts.append(raw.replace(" mode ", ", mode "))
    elif raw.startswith(("Binary files ", "GIT binary patch")):
        draft.facts.append("binary: no lines to show")


# ---------------------------------------------------------------------------------------------- words that changed


def _mark_words(lines: list[DiffLine], most: int) -> tuple[tuple[DiffLine, ...], int]:
    """Mark what changed within removed lines and the added lines that follow them, in at most `most` pairs.

    Return the lines, and the number of compared pairs.
    """
    runs = [(kind, [at for at, _ in run]) for kind, run in groupby(enumerate(lines), key=lambda pair: pair[1].kind)]
    pairs = [
        pair
        for (before, removed), (after, added) in pairwise(runs)
        if (before, after) == ("-", "+")
        for pair in zip(removed, added, strict=False)
    ][:most]
    marked = list(lines)
    for at, to in pairs:
        before, after = changed_words(lines[at].text, lines[to].text)
        marked[at], marked[to] = lines[at]._replace(marks=before), lines[to]._replace(marks=after)
    return tuple(marked), len(pairs)


def changed_words(old: str, new: str) -> tuple[tuple[Mark, ...], tuple[Mark, ...]]:
    """Return the marks of the words that differ, for both lines; none if the lines have little in common."""
    if max(len(old), len(new)) > _LONGEST_MARKED:
        return (), ()
    before, after = _TOKEN.findall(old), _TOKEN.findall(new)
    blocks = difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    same = sum(len("".join(before[a:b]).strip()) for what, a, b, _, _ in blocks if what == "equal")
    if 2 * same < _LIKE * (len(old.strip()) + len(new.strip())):
        return (), ()
    differ = [block for block in blocks if block[0] != "equal"]
    return _places(before, [each[1:3] for each in differ]), _places(after, [each[3:5] for each in differ])


def _places(tokens: list[str], blocks: Iterable[tuple[int, int]]) -> tuple[Mark, ...]:
    """Return the marks of blocks of tokens; blocks with only blanks between them become one."""
    ends = [0]
    for token in tokens:
        ends.append(ends[-1] + len(token))
    marks: list[Mark] = []
    last = 0
    for begin, end in blocks:
        if begin == end:
            continue
        if marks and "".join(tokens[last:begin]).isspace():
            marks[-1] = (marks[-1][0], ends[end])
        else:
            marks.append((ends[begin], ends[end]))
        last = end
    return tuple(marks)


# ------------------------------------------------------------------------------------------------------- painting


def hunk_lines(hunk: Hunk, width: int, digits: int) -> list[tuple[int, Line]]:
    """Return the painted lines of a hunk, broken at `width`, each with the index of its line in `hunk.lines`.

    `digits` is the width of the line numbers.
    """
    code = syntax.of_hunk(hunk.path, [each.kind for each in hunk.lines], [each.text for each in hunk.lines])
    return [
        (at, painted)
        for at, (each, pieces) in enumerate(zip(hunk.lines, code, strict=True))
        for painted in _diff_line(each, pieces, max(1, width - digits - 1), digits)
    ]


def _diff_line(each: DiffLine, pieces: syntax.Pieces, width: int, digits: int) -> list[Line]:
    tone, room = tone_of(each.kind), max(1, width - 1)
    fits = len(each.text) <= room and each.text.isascii()
    rows: list[Line] = []
    at = 0
    for text in ([] if fits else chop_cells(each.text, room)) or [each.text]:
        # Rows below the first begin with a blank for the sign.
        head = (Span(f"{each.number or '':>{digits}} ", "dim"), Span(each.kind, sign_tone(each.kind)))
        spans = [Span(" " * (digits + 1)), Span(" ", tone)] if rows else [*head]
        last = 0
        for mark in each.marks:
            begin, end = max(mark[0] - at, last), min(mark[1] - at, len(text))
            if begin < end:
                spans += coloured(text[last:begin], tone, pieces, at + last)
                spans += coloured(text[begin:end], f"{tone} bold", pieces, at + begin)
                last = end
        rows.append((*spans, *coloured(text[last:], tone, pieces, at + last)))
        at += len(text)
    return rows


def diff_lines(diff: str, width: int, path: str = "") -> list[Line]:
    """Return a short unified diff in colour, in lines of at most `width` cells.

    A diff without a head is of the file `path`.
    """
    found: list[Line] = []
    lines = safe_lines(diff)
    for at, (raw, pieces) in enumerate(zip(lines, syntax.of_diff(lines, path), strict=True)):
        # Below the head, `---` and `+++` are content, for example a removed SQL comment.
        is_head = at < _HEAD and raw.startswith(("+++ ", "--- "))
        found += exact_lines(raw, width, "bold") if is_head else tinted_lines(raw, width, pieces)
    return found


def changed(before: str, after: str, names: tuple[str, str]) -> str:
    """Return a unified diff of two texts with these names; empty if they are the same."""
    return "\n".join(difflib.unified_diff(before.split("\n"), after.split("\n"), *names, lineterm=""))
