"""The glyph, word and tone of each state of agent, need and task (docs/reference/dashboard.md#states); ASCII glyphs."""

import re
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from msgspec import Struct
from rich.cells import cell_len

from crewboard import AgentView, Task
from crewboard.readmodel.needs import format_minute
from crewboard.readmodel.states import Shown
from crewboard.untrusted import as_run

if TYPE_CHECKING:
    from crewboard.worktrees.changes import LastCheck


class Look(Struct, frozen=True):
    """The look of a state: its glyph, the `ascii` character in place of it, its tone and its word.

    `tone` has names of styles, separated by blanks.
    """

    glyph: str
    ascii: str
    tone: str
    word: str


LOOKS: dict[Shown, Look] = {
    "dead": Look("✖", "X", "error bold", "dead"),
    "ask": Look("▲", "A", "warning bold", "ask"),
    "stuck": Look("◆", "!", "warning", "stuck"),
    "loop": Look("↻", "L", "warning", "loop"),
    "limit": Look("⊘", "%", "warning", "limit"),
    "run": Look("●", ">", "success", "run"),
    "wait": Look("◐", "w", "info", "wait"),
    "pause": Look("‖", "P", "info dim", "pause"),
    "idle": Look("○", ".", "dim", "idle"),
    "done": Look("■", "=", "dim", "done"),
    "start": Look("◔", "~", "info", "start"),
    "unknown": Look("?", "?", "dim italic", "unknown"),
}

SEEN_DEATH = Look("✖", "X", "dim", "died")
"""A crash that was acknowledged: it needs no action, but was not an orderly exit."""

URGENT: tuple[Shown, ...] = ("dead", "ask", "stuck", "loop", "limit")
"""States that need the user, in the order of the status bar."""

TASK_LOOKS: dict[str, Look] = {
    "in_progress": Look("●", ">", "success", "in progress"),
    "pending": Look("○", ".", "", "pending"),
    "blocked": Look("◌", "b", "dim", "blocked"),
    "orphaned": Look("✖", "X", "error", "orphaned"),
    "completed": Look("■", "=", "dim", "completed"),
    "failed": Look("✖", "X", "error", "failed"),
    "cancelled": Look("–", "-", "dim", "cancelled"),
}


NEED_LOOKS: dict[str, Look] = {
    "death": LOOKS["dead"],
    "plan": LOOKS["ask"],
    "permission": LOOKS["ask"],
    "question": LOOKS["ask"],
    "review": LOOKS["ask"],
    "stuck": LOOKS["stuck"],
    "looping": LOOKS["loop"],
    "failed_start": LOOKS["start"],
    "no_host": LOOKS["start"],
    "failed": LOOKS["dead"],
    "collision": Look("⚠", "!", "warning", "collides"),
    "outage": LOOKS["wait"],
    "damaged": Look("✖", "X", "error", "damaged"),
    "task_failed": TASK_LOOKS["failed"],
    "check_failed": Look("✗", "x", "warning", "check fails"),
    "mcp": Look("⚠", "!", "warning", "no server"),
    "result": Look("✉", "@", "success", "result"),
}


def look_of(agent: AgentView) -> Look:
    """Return the look of an agent in its present state."""
    if agent.failed_start:
        return LOOKS["dead"]
    died = agent.shown == "done" and agent.is_dead
    return SEEN_DEATH if died else LOOKS[agent.shown]


def task_look(task: Task, blocked_by: list[int]) -> Look:
    """Return the look of a task; `blocked_by` are the ids of the open tasks that block it."""
    if task.status != "pending":
        return TASK_LOOKS[task.status]
    if task.last_owner and not task.owner:
        return TASK_LOOKS["orphaned"]
    return TASK_LOOKS["blocked" if blocked_by else "pending"]


def describe_checked(task: Task, command: str | None = None) -> str:
    """Return how the check of a task ended last: `✓ 15:02 make test`, `✗ 15:02 make test (2)`; empty if it never ran.

    `command` is shown in the place of the recorded command.
    """
    last = task.checked
    if last is None:
        return ""
    times = f" ({task.check_failures})" if task.check_failures > 1 else ""
    glyph = "✓" if last.passed else NEED_LOOKS["check_failed"].glyph
    return f"{glyph} {format_minute(last.at)} {as_run(last.command) if command is None else command}{times}"


_CHECK_LOOKS = {
    "passed": ("✓", "success"),
    "failed": (NEED_LOOKS["check_failed"].glyph, "error"),
    "old": ("✓", "warning"),
    "running": (LOOKS["start"].glyph, "info"),
}
"""The glyph and the tone of an agent's last check, by its state."""


def check_tone(last: "LastCheck") -> str:
    """Return the tone of an agent's last check."""
    return _CHECK_LOOKS[last.state][1]


def describe_check(last: "LastCheck", command: str | None = None) -> str:
    """Return an agent's last check: `✓ 15:02 make test`, `✗ 15:02 make test`, `✓ old, 15:02 make test`, `◔ check runs`.

    `command` is shown in the place of the recorded command.
    """
    glyph, checked = _CHECK_LOOKS[last.state][0], last.checked
    if last.state == "running" or checked is None:
        return f"{glyph} check runs"
    old = "old, " if last.state == "old" else ""
    return f"{glyph} {old}{format_minute(checked.at)} {as_run(checked.command) if command is None else command}"


def tally(tasks: Sequence[Task], word: str = "") -> str:
    """Return how many tasks are completed of those not cancelled, and how many failed: `5/7 ✖1`.

    `word` follows the numbers. The text is empty without tasks that are not cancelled.
    """
    count = Counter(task.status for task in tasks)
    if count.total() == count["cancelled"]:
        return ""
    done = f"{count['completed']}/{count.total() - count['cancelled']}{word}"
    failed = f" {TASK_LOOKS['failed'].glyph}{count['failed']}"
    return done + failed if count["failed"] else done


_CHROME = {
    "…": "~", "·": "-", "│": "|", "┃": "|", "─": "-", "━": "=", "┌": "+", "┐": "+", "└": "+", "┘": "+", "├": "+",
    "┤": "+", "╭": "+", "╮": "+", "╰": "+", "╯": "+", "▸": ">", "▶": ">", "›": ">", "‹": "<", "→": ">",
    "←": "<", "↑": "^", "↓": "v", "⏎": "E", "×": "x", "−": "-", "–": "-", "—": "-", "▌": ">", "▐": "|", "█": "#",
    "▎": "|", "▊": "|", "▔": "-", "▁": "_", "▮": "#", "▯": ".", "✓": "+", "☑": "x", "☐": " ", "✉": "@",
    "┼": "+", "╌": "-", "┄": "~", "◇": "!",
    "“": '"', "”": '"', "‘": "'", "’": "'", "¢": "c", "†": "/", "⚠": "!", "␛": "?", "•": "*", "⌄": "*",
    "⏳": "W:", "▂": ".", "▃": "-", "▄": "=", "▅": "+", "▆": "*", "▇": "%", "↵": "|", "⇥": ">", "␡": "?", "✎": "n",
    "▾": "v", "▹": ">", "␊": "|", "␉": ">", "┊": ":",
}  # fmt: skip
GLYPHS = _CHROME | {
    look.glyph: look.ascii for look in (*TASK_LOOKS.values(), *LOOKS.values(), NEED_LOOKS["check_failed"])
}
"""The ASCII replacement of each glyph that the dashboard uses."""


_COUNTS = re.compile(r"·(?=\d)")
"""The dot before a count, which becomes a colon in ASCII: `Inbox-5` would read as minus five."""


@lru_cache(maxsize=4096)
def to_ascii(text: str) -> str:
    """Replace each character that is not ASCII by a similar one, else by `?`; the width in cells stays the same."""
    if text.isascii():
        return text
    text = _COUNTS.sub(":", text)
    return "".join(
        character if character.isascii() else GLYPHS.get(character, "?" * cell_len(character)) for character in text
    )
