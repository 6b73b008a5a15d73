"""The lines about changes that several pages show: an agent's row, a file's row, and whether the work can be merged."""

from collections.abc import Container, Iterable, Sequence
from typing import TYPE_CHECKING

from crewboard.commands.changes import describe_review
from crewboard.records.base import counted
from crewboard.untrusted import as_run
from crewboard_tui.render.lines import (
    Line,
    Span,
    clip,
    clip_middle,
    hang,
    one_line,
    pad,
    say,
    say_run,
    spread,
    width_of,
)
from crewboard_tui.render.looks import check_tone, describe_check, look_of
from crewboard_tui.widgets.line_list import Row

if TYPE_CHECKING:
    from crewboard import AgentView
    from crewboard.records.team import Acceptance
    from crewboard.worktrees.changes import Changes, FileChange, LastCheck, LastReview


_NAME = 14
"""Cells for the name of an agent at most."""

_LONGEST_CHECK = 16
"""Cells for the command of a check in a row at most."""

ID_LENGTH = 8
"""Characters of the id of a commit that are shown."""

DOT = " · "
"""Between facts of a line."""

_SIGNS = {
    "added": ("A", "success"),
    "modified": ("M", "warning"),
    "deleted": ("D", "error"),
    "renamed": ("R", "info"),
    "type": ("T", "warning"),
}
"""The sign of each kind of change, and its tone."""


def fit_words(changes: "Changes", nothing: str = "nothing changed") -> Span:
    """Return whether an agent's work can be merged as it is; `nothing` is said if there is no work."""
    is_red = changes.check is not None and changes.check.state == "failed"
    red = "✗ " if is_red else ""
    if changes.conflicts:
        return Span(f"{red}⚠ conflicts: {one_line(as_run(', '.join(changes.conflicts)))}", "warning")
    if not changes.files or changes.is_merged:
        return Span("merged here" if changes.files else nothing, "dim")
    if changes.collides_with:
        return Span(f"{red}⚠ collides with {', '.join(changes.collides_with)}", "warning")
    if changes.check is not None and is_red:
        # It blocks a merge of work that would merge cleanly.
        return check_words(changes.check)
    if changes.missing:
        return Span(f"⚠ {counted(len(changes.missing), 'path')} not taken in", "warning")
    return Span("✓ merges cleanly", "success")


def check_words(check: "LastCheck", most: int = _LONGEST_CHECK) -> Span:
    """Return an agent's last check, with at most so many cells for its command."""
    command = clip(one_line(as_run(check.checked.command)), most) if check.checked is not None else ""
    return Span(describe_check(check, command), check_tone(check))


_REVIEWS = {"same": "reviewed", "part": "part reviewed", "old": "changed since review"}
"""The words for a review in a row, by its state."""


def review_words(review: "LastReview") -> Span:
    """Return who reviewed an agent's work, and whether it is still what the reviewer saw."""
    return Span(one_line(describe_review(review)), _review_tone(review))


def _review_tone(review: "LastReview") -> str:
    return "success" if review.state == "same" else "warning"


def behind_words(changes: "Changes") -> str:
    """Return how far the base is behind the branch that the work goes to; empty if it is not."""
    return f"base {changes.behind} behind" if changes.behind else ""


_LEAST_FIT = 20
"""Cells for the words that say whether the work can be merged; other columns are left out first."""


def nothing_words(name: str, merged: Container[str]) -> str:
    """Return what is said of an agent without work to merge; `merged` are the agents whose work was merged."""
    return "all merged" if name in merged else "nothing changed"


def change_rows(
    agents: Sequence[tuple["AgentView | None", "Changes"]], width: int, merged: Container[str] = frozenset()
) -> list[Row]:
    """Return a row for each agent: its state, lines, files, its base, and whether its work can be merged."""
    known = [each for _, each in agents]
    names = min(_NAME, max((len(each.agent) for each in known), default=0))
    added = max((len(str(each.added)) for each in known), default=0) + 1
    removed = max((len(str(each.removed)) for each in known), default=0) + 1
    files = _column(counted(len(each.files), "file") for each in known)
    bases = _column(map(behind_words, known))
    used = 2 + names + 2 + added + 1 + removed + len(DOT) + _LEAST_FIT
    room = width - used
    # What is said last matters most: whether the work can be merged.
    if room < _width(files) + _width(bases):
        bases = [""] * len(bases)
    if room < _width(files):
        files = [""] * len(files)
    rows = []
    for (agent, each), size, behind in zip(agents, files, bases, strict=True):
        look = look_of(agent) if agent is not None else None
        line: Line = (
            Span(f"{look.glyph} ", look.tone) if look is not None else Span("  "),
            Span(pad(clip_middle(each.agent, names), names) + "  ", "bold"),
            Span(pad(f"+{each.added}", added, "right") + " ", "success" if each.added else "dim"),
            Span(pad(f"−{each.removed}", removed, "right"), "error" if each.removed else "dim"),
            *_cell(size, ""),
            *_cell(behind, "warning"),
            Span(DOT, "dim"),
            fit_words(each, nothing_words(each.agent, merged)),
        )
        for cell in (_check_cell(each), _review_cell(each)):
            line = (*line, *cell) if width_of(line) + width_of(cell) <= width else line
        rows.append(Row(each.agent, line))
    return rows


def _check_cell(changes: "Changes") -> Line:
    """Return an agent's last check, unless the words say it that say whether its work can be merged."""
    if changes.check is None or (words := check_words(changes.check)) == fit_words(changes):
        return ()
    return _cell(words.text, words.tone)


def _review_cell(changes: "Changes") -> Line:
    """Return in short whether an agent's work is what was reviewed; nothing if it was not reviewed."""
    review = changes.review
    return _cell(_REVIEWS[review.state], _review_tone(review)) if review is not None else ()


def _cell(text: str, tone: str) -> Line:
    """Return a cell of a column with the dot before it; nothing if the column is left out."""
    return (Span(DOT if text.strip() else " " * len(DOT), "dim"), Span(text, tone)) if text else ()


def _width(column: Sequence[str]) -> int:
    """Return the cells of a column with the dot before it."""
    return len(column[0]) + len(DOT) if column and column[0] else 0


def _column(texts: Iterable[str]) -> list[str]:
    """Return texts that are filled to the same width."""
    found = list(texts)
    return [pad(text, max(map(len, found))) for text in found]


def size_words(change: "FileChange") -> tuple[Span, ...]:
    """Return how many lines of a file were added and removed."""
    if change.added is None or change.removed is None:
        return (Span("binary", "dim"),)
    added = (Span(f"+{change.added}", "success"),) if change.added else ()
    removed = (Span(f"−{change.removed}", "error"),) if change.removed else ()
    mode = (Span("+x" if change.new_mode == "100755" else "−x", "warning"),) if change.new_mode is not None else ()
    return (
        *mode,
        *((Span(" "),) if mode and (added or removed) else ()),
        *added,
        *((Span(" "),) if added and removed else ()),
        *removed,
    )


def file_line(change: "FileChange", width: int, *, is_marked: bool = False, notes: int = 0) -> Line:
    """Return the row of a changed file: what happened to it, a mark, its paths, the notes on it, and its size."""
    sign, tone = _SIGNS[change.status]
    right = (*note_count(notes), *size_words(change))
    mark = "⚠ " if is_marked else ""
    names = " → ".join(each for each in (change.old_path, change.path, change.target) if each is not None)
    path = clip_middle(one_line(as_run(names)), max(1, width - width_of(right) - len(mark) - 3))
    return spread((Span(f"{sign} ", tone), Span(mark, "warning"), Span(path)), right, width)


def note_count(notes: int) -> Line:
    """Return how many notes there are on a file; nothing if there are none."""
    return (Span(f"✎{notes} ", "warning"),) if notes else ()


def detail_lines(changes: "Changes", width: int, merged: "Acceptance | None" = None) -> list[Line]:
    """Return what is known of an agent's work: where it began, what it collides with, and its files.

    What was `merged` last is named by the commit that the user's branch got, which a merge names, too.
    """
    behind = f", {counted(changes.behind, 'commit')} behind" if changes.behind else ""
    begin = merged.result if merged is not None and merged.commit == changes.base else changes.base
    facts: list[Line] = [
        (
            Span("branch  ", "dim"),
            say_run(changes.branch),
            Span(f" from {begin[:ID_LENGTH]}{behind}", "dim"),
        ),
    ]
    if changes.conflicts:
        facts.append(
            (Span("⚠       ", "warning"), Span("conflicts in "), say_run(", ".join(changes.conflicts), "warning"))
        )
    if changes.collides_with:
        others = say(", ".join(changes.collides_with), "warning")
        facts.append((Span("⚠       ", "warning"), Span("does not merge with the work of "), others))
    if changes.check is not None:
        facts.append((Span("check   ", "dim"), check_words(changes.check, most=width)))
        if changes.check.state == "failed":
            facts.append((Span("        "), Span("blocks a merge until it passes", "error")))
        if changes.check.state == "old":
            facts.append((Span("        "), Span("the files changed since", "warning")))
    if changes.review is not None:
        words = review_words(changes.review)
        facts.append((Span("review  ", "dim"), Span(words.text.removeprefix("reviewed "), words.tone)))
    facts += [(Span("missing ", "warning"), say(each)) for each in changes.missing]
    lines = [part for fact in facts for part in hang(fact, width, len("branch  "), 3)]
    return [*lines, *(file_line(each, width, is_marked=each.path in changes.conflicts) for each in changes.files)]
