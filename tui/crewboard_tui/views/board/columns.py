"""The columns of the roster by terminal width, and the content of their cells. Empty columns are omitted."""

from collections.abc import Callable
from dataclasses import dataclass

from crewboard.readmodel.needs import summarise
from crewboard.readmodel.team import AgentView
from crewboard_tui.render import formats
from crewboard_tui.render.lines import Align, Line, Span, one_line, pad
from crewboard_tui.render.looks import look_of

NARROW, MEDIUM, WIDE, HUGE = 0, 60, 100, 160
"""Terminal widths at which size classes begin (docs/reference/dashboard.md#sizes)."""

SHORT, TALL, HIGH = 14, 22, 50
"""Terminal heights: titles from SHORT on, two footer lines from TALL on, the team's cost from HIGH on."""

_LONGEST_NAME = 14


_SOME_ROOM = 16
_SPARE = ("TYPE", "STATE", "COST", "CTX", "AGE", "MODEL", "RSS")
"""Columns that are omitted when space is short, the first one first; peek and page show them too."""
_SPARE_BUT_STATE = tuple(title for title in _SPARE if title != "STATE")
"""The same without STATE, for layouts that were not widened by the user."""


@dataclass(frozen=True)
class Column:
    """One column. `width` 0 takes the remaining space; `since` is the first size class that shows it."""

    title: str
    width: int
    cell: Callable[[AgentView, float], Span]
    align: Align = "left"
    since: int = MEDIUM
    has: Callable[[AgentView], bool] = lambda _: True


def doing(agent: AgentView, now: float) -> str:
    """Return what an agent does, or why it does nothing, on one line."""
    if agent.shown == "ask":
        return one_line(summarise(agent.asks[0]))
    if agent.state == "retrying" and agent.retry_at is not None:
        error = f": {agent.last_error}" if agent.last_error else ""
        return one_line(f"again in {formats.age(agent.retry_at - now)}{error}")
    if agent.shown == "idle":
        # The STATE column already says that it is idle.
        return one_line(agent.last_error or (f"{agent.unread} unread" if agent.unread else ""))
    if agent.shown in ("stuck", "loop", "start", "unknown"):
        return one_line(agent.reason)
    if agent.state == "waiting" and agent.waiting_for:
        return one_line(f"waits for {agent.doing or agent.waiting_for}")
    return one_line(agent.doing or agent.reason or agent.state)


def _glyph(agent: AgentView, now: float) -> Span:  # noqa: ARG001
    look = look_of(agent)
    return Span(look.glyph, look.tone)


def _word(agent: AgentView, now: float) -> Span:  # noqa: ARG001
    look = look_of(agent)
    return Span(look.word, look.tone)


def _name(agent: AgentView, now: float) -> Span:  # noqa: ARG001
    return Span(agent.name, "bold" if agent.shown in ("dead", "ask", "stuck", "loop") else "")


def _why(agent: AgentView, now: float) -> Span:
    reason = one_line(agent.reason)
    return Span("" if agent.shown == "idle" or reason == doing(agent, now) else reason, "dim")


def _pid(agent: AgentView, now: float) -> Span:  # noqa: ARG001
    if agent.alive and agent.pid:
        return Span(str(agent.pid))
    if agent.exit and agent.exit.signal and agent.pid:
        return Span(f"{agent.pid}†{agent.exit.signal}", "error")
    return Span("—", "dim")


def _doing(agent: AgentView, now: float) -> Span:
    return Span(doing(agent, now), {"dead": "error", "unknown": "italic"}.get(agent.shown, _calm(agent)))


def _doing_with_word(agent: AgentView, now: float) -> Span:
    text, word = doing(agent, now), look_of(agent).word
    words = text if text.startswith(word) else f"{word}: {text}" if text else word
    return Span(words, _doing(agent, now).tone)


def _calm(agent: AgentView) -> str:
    return "dim" if agent.shown in ("idle", "done", "pause") else ""


def _cpu(agent: AgentView, now: float) -> Span:  # noqa: ARG001
    return Span(f"{agent.usage.cpu_percent:.0f}%") if agent.usage else Span("—", "dim")


def _memory(agent: AgentView, now: float) -> Span:  # noqa: ARG001
    return Span(formats.size(agent.usage.rss_bytes)) if agent.usage else Span("—", "dim")


def _context(agent: AgentView, now: float) -> Span:  # noqa: ARG001
    if not agent.context.limit:
        return Span("—", "dim")
    percent = 100 * agent.context.used // agent.context.limit
    return Span(f"{percent}%", "warning" if percent >= 80 else "")  # noqa: PLR2004  where summaries are near


def _cost(agent: AgentView, now: float) -> Span:  # noqa: ARG001
    return Span(formats.money(agent.cost_usd)) if agent.cost_usd is not None else Span("—", "dim")


def _mail(agent: AgentView, now: float) -> Span:  # noqa: ARG001
    return Span(str(agent.unread), "warning" if agent.unread and not agent.alive else "" if agent.unread else "dim")


def _task(agent: AgentView, now: float) -> Span:  # noqa: ARG001
    return Span(f"#{agent.task}") if agent.task else Span("—", "dim")


COLUMNS: tuple[Column, ...] = (
    Column("", 1, _glyph, since=NARROW),
    Column("AGENT", _LONGEST_NAME, _name, since=NARROW),
    Column("STATE", 7, _word),
    Column("TYPE", 8, lambda agent, _: Span(one_line(agent.type), "dim")),
    Column("PID", 7, _pid, since=WIDE),
    Column("DOING", 0, _doing),
    Column("WHY", 26, _why, since=HUGE, has=lambda agent: bool(agent.reason) and agent.reason != agent.doing),
    Column("MODEL", 11, lambda agent, _: Span(one_line(agent.model).removeprefix("claude-"), "dim"), since=HUGE),
    Column("AGE", 4, lambda agent, now: Span(formats.age(now - agent.since) if agent.since else "—", "dim"), "right"),
    Column("CPU", 4, _cpu, "right", WIDE, lambda agent: agent.usage is not None),
    Column("RSS", 5, _memory, "right", WIDE, lambda agent: agent.usage is not None),
    Column("CTX", 4, _context, "right", has=lambda agent: agent.context.limit > 0),
    Column("COST", 6, _cost, "right", has=lambda agent: agent.cost_usd is not None),
    Column("✉", 3, _mail, "right", WIDE),
    Column("TASK", 5, _task, "right", WIDE),
)
"""The roster's columns from left to right."""

_DOING_WITH_WORD = Column("DOING", 0, _doing_with_word, since=NARROW)


def size_class(width: int) -> int:
    """Return the size class of a terminal of `width` columns."""
    return max(start for start in (NARROW, MEDIUM, WIDE, HUGE) if width >= start)


@dataclass(frozen=True)
class Layout:
    """Columns with their widths."""

    columns: tuple[tuple[Column, int], ...]

    def head(self, marker: str = "") -> Line:
        """Return the titles; `marker` follows the title of the sort column."""
        cells = [
            pad(column.title + ("⌄" if column.title == marker else ""), width, column.align)
            for column, width in self.columns
        ]
        return (Span(" " + " ".join(cells), "dim"),)

    def row(self, agent: AgentView, now: float, *, marked: bool) -> Line:
        """Return the row of one agent."""
        spans: list[Span] = [Span("✓" if marked else " ", "marked")]
        for column, width in self.columns:
            text, tone, _ = column.cell(agent, now)
            spans.append(Span(pad(text, width, column.align) + " ", tone))
        return tuple(spans)


def lay_out(agents: list[AgentView], terminal: int, width: int, *, wide: bool = False) -> Layout:
    """Return the columns for a terminal of `terminal` columns and a list of `width` cells.

    `wide` adds the columns of the next size class and omits others for them.
    """
    kind = size_class(terminal)
    shown = _next_class(kind) if wide else kind
    chosen = [column for column in COLUMNS if column.since <= shown and any(map(column.has, agents))]
    if shown == NARROW:
        chosen.append(_DOING_WITH_WORD)
    longest = max((len(agent.name) for agent in agents), default=0)
    names = max(8, min(longest, _LONGEST_NAME if kind < HUGE else 2 * _LONGEST_NAME))
    if shown != NARROW:
        chosen = _make_room(chosen, width - names, _SPARE if wide else _SPARE_BUT_STATE)
    fixed = {column.title: names if column.title == "AGENT" else column.width for column in chosen}
    open_columns = [column for column in chosen if column.width == 0]
    left = max(0, width - sum(fixed.values()) - len(chosen) - 1)
    shares = _shares(left, len(open_columns))
    return Layout(tuple((column, fixed[column.title] or shares.pop(0)) for column in chosen))


def _next_class(kind: int) -> int:
    return min((start for start in (MEDIUM, WIDE, HUGE) if start > kind), default=HUGE)


def _make_room(columns: list[Column], width: int, spare: tuple[str, ...]) -> list[Column]:
    """Omit spare columns until there is space to show what an agent does; `width` excludes that column."""
    for title in spare:
        taken = sum(column.width + 1 for column in columns if column.title != "AGENT") + 2
        if width - taken >= _SOME_ROOM:
            break
        columns = [column for column in columns if column.title != title]
    return columns


def _shares(left: int, parts: int) -> list[int]:
    return [left - left // parts * (parts - 1), *[left // parts] * (parts - 1)] if parts else []
