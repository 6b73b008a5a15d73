"""Agents, needs and tasks as rows of a list, and the details of one: the same in every view."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from crewboard import AgentView, Need, Request, Task, TeamView
from crewboard.commands.context import CommandLine
from crewboard.executed_files import diff_as_run
from crewboard.readmodel.needs import (
    format_minute,
    outage_end,
    summarise,
    tasks_blocked_by,
    waiting_behind,
    ways_to_begin,
)
from crewboard.readmodel.reader import blocked
from crewboard.readmodel.states import why_no_host
from crewboard.readmodel.team import describe_hosts
from crewboard.records.base import counted
from crewboard.records.processes import describe_exit
from crewboard.store import tasks as store_tasks
from crewboard.store.tasks import CLOSED, terminal_state
from crewboard.untrusted import as_run
from crewboard_tui.queries import CrashOf, MailTo, Snapshot, WorkOf
from crewboard_tui.render.diff import diff_lines
from crewboard_tui.render.formats import (
    BARS,
    bar,
    format_age,
    format_clock,
    format_count,
    format_long_age,
    format_money,
    format_size,
    format_span,
)
from crewboard_tui.render.lines import (
    Align,
    Line,
    Span,
    clip,
    exact_lines,
    hang,
    markdown_lines,
    matches,
    one_line,
    pad,
    pad_name,
    say,
    spread,
    wrap,
)
from crewboard_tui.render.looks import NEED_LOOKS, TASK_LOOKS, URGENT, Look, describe_checked, look_of, task_look
from crewboard_tui.widgets.bars import away_for
from crewboard_tui.widgets.line_list import LazyRows, Row

if TYPE_CHECKING:
    from crewboard.readmodel.activity import Cell, CellKind
    from crewboard.readmodel.crash_report import CrashReport

NARROW, MEDIUM, WIDE, HUGE = 0, 60, 100, 160
"""Terminal widths at which size classes begin (docs/reference/dashboard.md#sizes)."""

SHORT, TALL, HIGH = 14, 22, 50
"""Terminal heights: titles from SHORT on, two footer lines from TALL on, the team's cost from HIGH on."""

_LONGEST_NAME = 14


_LONGEST_HOST = 12
_SHORT_HOST = 8
"""Cells for the name of a host, and those on a terminal below the class WIDE."""

LANE = "LANE"
"""The column of the lanes. Its head says how many minutes they show."""

_LANE_CELLS = {NARROW: 8, 110: 12, HUGE: 16}
"""Cells of a lane from a terminal width on: 4, 6 or 8 minutes."""

_LANE_LOOKS: dict[CellKind, tuple[str, str, str]] = {
    "works": ("▁", "_", "trace"),
    "asks": ("─", "?", "warning"),
    "waits": ("┄", "~", "info"),
    "rests": ("·", " ", "trace"),
    "died": ("✖", "X", "error"),
    "none": (" ", " ", ""),
}
"""Glyph, ASCII glyph and tone of each cell of a lane that is no bar. In ASCII a lane has more to tell than a rule."""

_ASCII_BARS = "_.-:=+*#"

_SOME_ROOM = 16
_ROOM_OF_DOING = 26
"""Cells for what an agent does, before longer names get the rest."""
_SPARE = ("TYPE", LANE, "CHANGES", "STATE", "COST", "CTX", "AGE", "MODEL", "MEM", "HOST")
"""Columns that are omitted when space is short, the first one first; peek and page show them too."""
_SPARE_BUT_STATE = tuple(title for title in _SPARE if title != "STATE")
"""The same without STATE, for layouts that were not widened by the user."""


def mark_span(*, marked: bool) -> Span:
    """Return the cell that shows whether a row is marked."""
    return Span("✓" if marked else " ", "marked")


class Column(Struct, frozen=True):
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
        return one_line(f"again in {format_span(agent.retry_at - now)}{error}")
    if agent.shown == "idle":
        # The STATE column already says that it is idle.
        return one_line(agent.last_error or agent.setup_error or _unread_words(agent))
    if agent.shown in ("stuck", "loop", "start", "unknown"):
        return one_line(agent.reason)
    if agent.state == "waiting" and agent.waiting_for:
        return one_line(f"waits for {agent.doing or agent.waiting_for}")
    not_set_up = "checkout not set up · " if agent.alive and agent.setup_error else ""
    return one_line(not_set_up + (agent.doing or agent.reason or agent.state))


def _unread_words(agent: AgentView) -> str:
    """Return the number of messages unread by the agent, and of its results unread by the user, in words."""
    count = agent.unread_results
    results = f"{counted(count, 'result')} to read" if count else ""
    return " · ".join(part for part in (f"{agent.unread} unread" if agent.unread else "", results) if part)


def _glyph(agent: AgentView, now: float) -> Span:  # noqa: ARG001
    look = look_of(agent)
    return Span(look.glyph, look.tone)


def _word(agent: AgentView, now: float) -> Span:  # noqa: ARG001
    look = look_of(agent)
    return Span(look.word, look.tone)


def _collides(agent: AgentView, now: float) -> Span:  # noqa: ARG001
    look = NEED_LOOKS["collision"]
    return Span(look.glyph if agent.collides_with else "", look.tone)


def _changes(agent: AgentView, now: float) -> Span:  # noqa: ARG001
    if agent.unmerged is None:
        return Span("")
    return Span(f"+{format_count(agent.unmerged.added)} −{format_count(agent.unmerged.removed)}", "info")


def _name(agent: AgentView, now: float) -> Span:  # noqa: ARG001
    shown = one_line(f"{agent.name} {agent.title}".rstrip())
    return Span(shown, "bold" if agent.unread_results or agent.shown in URGENT else "")


def _why(agent: AgentView, now: float) -> Span:
    reason = one_line(agent.reason)
    return Span("" if agent.shown == "idle" or reason == doing(agent, now) else reason, "dim")


def _host(agent: AgentView, now: float) -> Span:  # noqa: ARG001
    return Span(agent.host, "error" if agent.ended_with_host and not agent.acknowledged else "dim")


def _pid(agent: AgentView, now: float) -> Span:  # noqa: ARG001
    if agent.alive and agent.pid:
        return Span(str(agent.pid))
    if agent.exit and agent.exit.signal and agent.pid:
        return Span(f"{agent.pid}†{agent.exit.signal}", "error")
    return Span("")


def _doing(agent: AgentView, now: float) -> Span:
    return Span(doing(agent, now), {"dead": "error", "unknown": "italic"}.get(agent.shown, _calm(agent)))


def _doing_with_word(agent: AgentView, now: float) -> Span:
    text, word = doing(agent, now), look_of(agent).word
    words = text if text.startswith(word) else f"{word}: {text}" if text else word
    return Span(words, _doing(agent, now).tone)


def _calm(agent: AgentView) -> str:
    return "dim" if agent.shown in ("idle", "done", "pause") else ""


def _cpu(agent: AgentView, now: float) -> Span:  # noqa: ARG001
    return Span(f"{agent.usage.cpu_percent:.0f}%") if agent.usage else Span("")


def _memory(agent: AgentView, now: float) -> Span:  # noqa: ARG001
    return Span(format_size(agent.usage.memory)) if agent.usage else Span("")


def _context(agent: AgentView, now: float) -> Span:  # noqa: ARG001
    if not agent.context.limit:
        return Span("")
    percent = 100 * agent.context.used // agent.context.limit
    return Span(f"{percent}%", "warning" if percent >= 80 else "")  # noqa: PLR2004  where summaries are near


def _cost(agent: AgentView, now: float) -> Span:  # noqa: ARG001
    return Span(format_money(agent.cost_usd)) if agent.cost_usd is not None else Span("")


def _mail(agent: AgentView, now: float) -> Span:  # noqa: ARG001
    return Span(str(agent.unread or ""), "" if agent.alive else "warning")


def _task(agent: AgentView, now: float) -> Span:  # noqa: ARG001
    return Span(f"#{agent.task}" if agent.task else "")


def _plan(agent: AgentView, now: float) -> Span:  # noqa: ARG001
    """Return how many calls go beyond the plan, else that terms of its approval hold."""
    if agent.deviations:
        return Span(f"+{agent.deviations.count}", "warning bold")
    return Span("terms") if agent.terms else Span("")


def has_steps(agent: AgentView) -> bool:
    """Return True if an agent listed steps of work that it has not ended."""
    return agent.todo is not None and agent.shown not in ("idle", "done")


def _steps(agent: AgentView, now: float) -> Span:  # noqa: ARG001
    if agent.todo is None or not has_steps(agent):
        return Span("")
    return Span(f"{agent.todo.done}/{agent.todo.total}", "dim" if agent.todo.done == agent.todo.total else "")


def lane_line(cells: Sequence[Cell], tone: str, *, ascii_only: bool = False) -> Line:
    """Return the last minutes of an agent, oldest first; the newest cell of work has the `tone` of its state."""
    spans: list[Span] = []
    for at, cell in enumerate(cells):
        if cell.kind == "work":
            glyph, look = bar(cell.level, _ASCII_BARS if ascii_only else BARS), "trace"
        else:
            shown, in_ascii, look = _LANE_LOOKS[cell.kind]
            glyph = in_ascii if ascii_only else shown
        if at == len(cells) - 1 and cell.kind in ("work", "works"):
            look = tone
        if spans and spans[-1].tone == look:
            glyph = spans.pop().text + glyph
        spans.append(Span(glyph, look))
    return tuple(spans)


def _web(agent: AgentView, now: float) -> Span:  # noqa: ARG001
    """Return how often an agent that may use the web did."""
    if agent.spec is None or not agent.spec.flags.web:
        return Span("")
    return Span(str(agent.tokens.web_uses or "on"))


COLUMNS: tuple[Column, ...] = (
    Column("", 1, _glyph, since=NARROW),
    Column("AGENT", _LONGEST_NAME, _name, since=NARROW),
    Column(NEED_LOOKS["collision"].glyph, 1, _collides, since=NARROW, has=lambda agent: bool(agent.collides_with)),
    Column("STATE", 7, _word),
    Column("TYPE", 8, lambda agent, _: Span(one_line(agent.type), "dim")),
    Column("HOST", _LONGEST_HOST, _host),
    Column("PID", 7, _pid, since=WIDE),
    Column("PLAN", 5, _plan, "right", has=lambda agent: agent.deviations is not None or agent.terms is not None),
    Column("TODO", 5, _steps, "right", has=has_steps),
    Column("WEB", 3, _web, "right", has=lambda agent: agent.spec is not None and agent.spec.flags.web),
    Column("DOING", 0, _doing),
    Column(LANE, _LANE_CELLS[NARROW], lambda *_: Span("")),
    Column("WHY", 26, _why, since=HUGE, has=lambda agent: bool(agent.reason) and agent.reason != agent.doing),
    Column("CHANGES", 11, _changes, "right", WIDE, lambda agent: agent.unmerged is not None),
    Column("MODEL", 11, lambda agent, _: Span(one_line(agent.model).removeprefix("claude-"), "dim"), since=HUGE),
    Column("AGE", 4, lambda agent, now: Span(format_age(now - agent.since) if agent.since else "", "dim"), "right"),
    Column("CPU", 4, _cpu, "right", WIDE, lambda agent: agent.usage is not None),
    Column("MEM", 5, _memory, "right", WIDE, lambda agent: agent.usage is not None),
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


class Layout(Struct, frozen=True):
    """Columns with their widths."""

    columns: tuple[tuple[Column, int], ...]

    def head(self, marker: str = "") -> Line:
        """Return the titles; `marker` follows the title of the sort column."""
        cells = [
            pad(_head(column, width) + ("⌄" if column.title == marker else ""), width, column.align)
            for column, width in self.columns
        ]
        return (Span(" ".join(cells), "dim"),)

    @property
    def lane_cells(self) -> int:
        """Return how many cells a lane has; 0 if none is shown."""
        return next((width for column, width in self.columns if column.title == LANE), 0)

    def row(self, agent: AgentView, now: float, *, marked: bool, lane: Line = ()) -> Line:
        """Return the row of one agent, with its last minutes as `lane`."""
        (glyph, _), *rest = self.columns
        spans: list[Span] = [glyph.cell(agent, now), mark_span(marked=marked)]
        for column, width in rest:
            if column.title == LANE and lane:
                spans += [*lane, Span(" ")]
                continue
            text, tone, _ = column.cell(agent, now)
            cell = pad_name(text, width) if column.title in ("AGENT", "HOST") else pad(text, width, column.align)
            spans.append(Span(cell + " ", tone))
        return tuple(spans)


def _head(column: Column, width: int) -> str:
    return f"{width // 2} min" if column.title == LANE else column.title


def lay_out(
    agents: list[AgentView], terminal: int, width: int, *, wide: bool = False, hosts: Sequence[str] = ()
) -> Layout:
    """Return the columns for a terminal of `terminal` columns and a list of `width` cells.

    `wide` adds the columns of the next size class and omits others for them. With `hosts`, the host of each agent
    is shown.
    """
    kind = size_class(terminal)
    shown = _next_class(kind) if wide else kind
    lane = _LANE_CELLS[max(start for start in _LANE_CELLS if terminal >= start)]
    chosen = [
        replace(column, width=lane) if column.title == LANE else column
        for column in COLUMNS
        if column.since <= shown and any(map(column.has, agents))
    ]
    chosen = _with_host_column(chosen, hosts, _SHORT_HOST if kind < WIDE else _LONGEST_HOST)
    if shown == NARROW:
        chosen.append(_DOING_WITH_WORD)
    longest = max((len(agent.name) for agent in agents), default=0)
    names = max(8, min(longest, _LONGEST_NAME if kind < HUGE else 2 * _LONGEST_NAME))
    if shown != NARROW:
        chosen = _make_room(chosen, width - names, _SPARE if wide else _SPARE_BUT_STATE)
    fixed = {column.title: names if column.title == "AGENT" else column.width for column in chosen}
    open_columns = [column for column in chosen if column.width == 0]
    left = max(0, width - sum(fixed.values()) - len(chosen))
    spare = left - _ROOM_OF_DOING * len(open_columns)
    if 0 < longest - names > spare and LANE in fixed:
        # A name tells agents apart, and comes before older minutes.
        narrower = fixed[LANE] - _LANE_CELLS[NARROW]
        fixed[LANE], left, spare = _LANE_CELLS[NARROW], left + narrower, spare + narrower
    more = min(longest - names, spare)
    if more > 0:
        fixed["AGENT"] += more
        left -= more
    shares = _shares(left, len(open_columns))
    return Layout(tuple((column, fixed[column.title] or shares.pop(0)) for column in chosen))


def _with_host_column(columns: list[Column], hosts: Sequence[str], most: int) -> list[Column]:
    """Return the columns with that of the hosts as wide as their names, or without it if there are none."""
    if not hosts:
        return [column for column in columns if column.title != "HOST"]
    width = max(4, min(most, max(map(len, hosts))))
    return [replace(column, width=width) if column.title == "HOST" else column for column in columns]


def _next_class(kind: int) -> int:
    return min((start for start in (MEDIUM, WIDE, HUGE) if start > kind), default=HUGE)


def _make_room(columns: list[Column], width: int, spare: tuple[str, ...]) -> list[Column]:
    """Omit spare columns until there is space to show what an agent does; `width` excludes that column."""
    for title in spare:
        taken = sum(column.width + 1 for column in columns if column.title != "AGENT") + 1
        # What an agent does says more than its type.
        if width - taken >= (_ROOM_OF_DOING if title == "TYPE" else _SOME_ROOM):
            break
        columns = [column for column in columns if column.title != title]
    return columns


def _shares(left: int, parts: int) -> list[int]:
    return [left - left // parts * (parts - 1), *[left // parts] * (parts - 1)] if parts else []


_LABEL = 11
_HOLDS_UP = "holds up"

_FREES_FROM = 50
"""Below this width the summary takes the whole line."""

_WORD_FROM = 60
"""From this width the word is shown before the number."""


def need_rows(
    view: TeamView, now: float, width: int, wanted: str = "", marked: Container[str] = frozenset()
) -> list[Row]:
    """Return a row for every need that matches the filter."""
    shown = [need for need in view.needs if matches(f"{need.agent} {need.kind} {need.summary}", wanted)]
    word = "frees " if width >= _WORD_FROM else ""
    frees = [_frees(view, need, word) if width >= _FREES_FROM else "" for need in shown]
    longest = max(map(len, frees), default=0)
    return [
        Row(need.key, _need_line(need, pad(what, longest), now, width, marked=need.key in marked))
        for need, what in zip(shown, frees, strict=True)
    ]


def _need_line(need: Need, frees: str, now: float, width: int, *, marked: bool) -> Line:
    look = NEED_LOOKS[need.kind]
    right = (
        Span(pad(format_age(now - need.since), 4, "right")),
        Span(f"  {frees}" if frees else "", "dim"),
    )
    left = (
        Span(look.glyph, look.tone),
        mark_span(marked=marked),
        Span(pad_name(need.agent, 11 if width < WIDE else 20) + " ", "bold"),
        say(need.summary),
    )
    return spread(left, right, width)


def _frees(view: TeamView, need: Need, word: str) -> str:
    """Return what an answer unblocks, after `word`: `frees #14`, `frees 2 tasks, 1 agent`."""
    waiting = waiting_behind(view, need)
    # If there is no space for the word, show only the tasks.
    what = (waiting if word else replace(waiting, agents=())).describe()
    return f"{word}{what}" if what else ""


def held_by(view: TeamView, need: Need) -> str:
    """Return the tasks that a need blocks, by number and subject."""
    return ", ".join(f"#{task.id} {task.subject}" for task in tasks_blocked_by(view, need))


def explanation_lines(need: Need, snapshot: Snapshot, now: float, width: int, typed: CommandLine) -> list[Line]:
    """Return the explanation of one need: its evidence, what waits behind it, and what the agent does.

    `typed` returns a command as it is to be typed.
    """
    view, report = snapshot.view, snapshot.get(CrashOf(need.agent))
    agent = view.agent(need.agent)
    if need.kind == "death" and need.host is not None:
        return _lost_host_lines(need, snapshot, now, width)
    if need.kind == "death" and report is not None and report.agent == need.agent:
        return crash_lines(report, now, width)
    request = view.request(need.request_id) if need.request_id else None
    if request is not None:
        return _request_lines(request, view, need, width)
    behind = waiting_behind(view, need).agents
    facts = [
        ("what", need.summary),
        ("accept", f"crewboard mcp approve {need.server}" if need.is_new else ""),
        ("since", f"{format_clock(need.since)}, {format_age(now - need.since)} ago"),
        (_HOLDS_UP, held_by(view, need)),
        ("agents", ", ".join(behind if len(need.agents) <= 1 else need.agents)),
        *(host_facts(need, snapshot, typed) if need.kind == "no_host" else []),
        *_evidence(need, snapshot),
        *(_agent_facts(agent) if agent and need.kind not in ("result", "task_failed") else []),
    ]
    return fact_lines(facts, width) + _result_lines(need, snapshot, width)


def _lost_host_lines(need: Need, snapshot: Snapshot, now: float, width: int) -> list[Line]:
    """Return what is known of a host that was lost, and of the agents that were lost with it."""
    view = snapshot.view
    host = view.host(need.host)
    lines: list[Line] = [(Span(piece, "error"),) for piece in wrap(need.summary, width, "  ")]
    facts = [
        ("agents", ", ".join(need.agents)),
        ("what helps", WHAT_HELPS_LOST),
        ("would wait", would_wait(need.agents, view)),
        ("since", f"{format_clock(need.since)}, {format_age(now - need.since)} ago"),
        ("last seen", format_clock(host.seen) if host is not None and not host.is_up else ""),
        (_HOLDS_UP, held_by(view, need)),
        ("now", describe_hosts(view.hosts, away_for(snapshot))),
    ]
    return [*lines, *fact_lines(facts, width)]


def would_wait(names: Sequence[str], view: TeamView) -> str:
    """Return which of these agents no host would begin now, and why."""
    hosts = {host.name: host.found for host in view.hosts}
    waiting: dict[str, list[str]] = {}
    for agent in filter(None, map(view.agent, names)):
        why = why_no_host(agent.spec.flags, hosts) if agent.spec is not None else None
        if why is not None:
            waiting.setdefault(why, []).append(agent.name)
    return "\n".join(f"{', '.join(who)}: {why}" for why, who in waiting.items())


def host_facts(need: Need, snapshot: Snapshot, typed: CommandLine) -> list[tuple[str, str]]:
    """Return which hosts there are for the agents of a need, which labels they lack, and what helps."""
    wanted = need.wanted
    if wanted is None:
        return []
    typed = replace(typed, offline_hosts=wanted.offline)
    ways = [f"{what}: {typed(command)}" for what, command in ways_to_begin(need)]
    begins = "it begins by itself as soon as a host can take it"
    by_itself = "a host of this name takes its agents again" if need.host is not None else begins
    return [
        ("hosts", describe_hosts(snapshot.view.hosts, away_for(snapshot))),
        ("labels", "; ".join(f"{label}: {_hosts_with(label, snapshot.view)}" for label in wanted.labels)),
        ("what helps", "\n".join([*ways, by_itself])),
    ]


def _hosts_with(label: str, view: TeamView) -> str:
    """Return the hosts that have a label, each that takes no agents with its state."""
    having = [host for host in view.hosts if label in host.record.labels]
    found = [host.name + ("" if host.state == "up" else f" ({host.state})") for host in having]
    return ", ".join(found) or "no host"


def _evidence(need: Need, snapshot: Snapshot) -> list[tuple[str, str]]:
    """Return the evidence that only some kinds of need have."""
    task = snapshot.view.task(need.task)
    until = outage_end(snapshot.view.agents) if need.kind == "outage" else None
    return [
        ("why", _why_failed(task, snapshot) if task is not None and need.kind == "task_failed" else ""),
        ("owner", need.agent if task is not None else ""),
        ("file", need.file or ""),
        ("files", ", ".join(need.files)),
        ("what helps", _COLLISION_HELP[need.in_worktrees] if need.kind == "collision" else ""),
        ("next try", f"{format_clock(until)}; nothing has to be done" if until else ""),
        ("what helps", "repair it by hand; nothing was overwritten" if need.kind == "damaged" else ""),
    ]


WHAT_HELPS_LOST = "resume: it continues on a host with room, from what its conversation knows"
"""The advice for an agent that was lost with its host."""

_COLLISION_HELP = {
    True: "merge one of them, then let the other one resolve the conflicts",
    False: "pause one of them, and tell it what the other one does",
}
"""By whether both agents have worktrees."""


def _result_lines(need: Need, snapshot: Snapshot, width: int) -> list[Line]:
    """Return the text of the newest result that a need is about."""
    mailbox = snapshot.get(MailTo(need.mailbox)) if need.mailbox else None
    letters = mailbox.letters if mailbox is not None else ()
    mine = [each.message for each in letters if each.message.type == "result" and each.message.from_ == need.agent]
    return [(), *markdown_lines(mine[-1].content, width)] if mine else []


def crash_lines(report: CrashReport, now: float, width: int) -> list[Line]:
    """Return how an agent died and what it left."""
    lived = f", {format_long_age(report.at - report.began)} old" if report.began is not None else ""
    pid = f", pid {report.pid}" if report.pid else ""
    ago = format_age(now - report.at)
    head = f"{report.how} at {format_clock(report.at)}, {ago} ago; run {report.run}{lived}{pid}"
    tool = report.last_tool
    outcome = "" if tool is None or tool.finished else "   (outcome unknown)"
    freed = ", ".join(f"#{task.id} {task.subject}" for task in report.freed)
    unread = f"{report.unread} unread"
    unread += f" (from {', '.join(report.unread_from)})" if report.unread_from else ""
    lines: list[Line] = [(Span(piece, "error"),) for piece in wrap(head, width, "  ")]
    lines += fact_lines(
        [
            ("state", report.rested.describe(report.at) if report.rested else ""),
            ("last tool", f"{tool.text}{outcome}" if tool else "none in this run"),
            (TASK_LOOKS["orphaned"].word, freed),
            ("mail", unread if report.unread else ""),
            ("last lines", "\n".join(report.log_lines)),
            ("last steps", "" if report.log_lines else _last_steps(report, width)),
        ],
        width,
    )
    return lines


def _last_steps(report: CrashReport, width: int) -> str:
    """Return its last actions, one per line: the only evidence if its log is empty."""
    lines = (f"{format_clock(step.ts)} {step.kind:<5} {one_line(step.text)}" for step in report.last_activity)
    return "\n".join(clip(line, max(1, width - _LABEL)) for line in lines) or "nothing; worker.log is empty too"


def _request_lines(request: Request, view: TeamView, need: Need, width: int) -> list[Line]:
    payload = request.payload
    lines = fact_lines([(_HOLDS_UP, held_by(view, need)), ("risk", str(payload.get("risk") or ""))], width)
    if request.type == "task_review":
        return lines + review_text(request, width)
    if request.type == "permission":
        return lines + permission_text(request, width)
    body = payload.get("plan") or payload.get("question") or payload.get("summary") or ""
    lines += markdown_lines(str(body), width)
    options = payload.get("options")
    if isinstance(options, list):
        # No numbers: digits switch views and would not choose an option.
        lines += [(Span("  • ", "dim"), say(str(option))) for option in options]
    return lines


_CHANGE = frozenset({"old_text", "new_text", "replace_all", "edits", "diff", "content"})
"""Fields of a call that its diff shows."""

_KNOWN = frozenset({"tool", "input", "summary", "diff", "scope", "collision"})


def review_text(request: Request, width: int) -> list[Line]:
    """Return what is to be reviewed: what its owner says, the diff, and where the whole diff is."""
    payload = request.payload
    lines = [*exact_lines(str(payload.get("summary", "")), width, "bold"), ()]
    lines += diff_lines(diff_as_run(str(payload.get("diff", ""))), width)
    return [*lines, (), *exact_lines(str(payload.get("file", "")), width, "dim")]


def permission_text(request: Request, width: int) -> list[Line]:
    """Return the exact command or change, then the other arguments of the call."""
    payload = request.payload
    given = payload.get("input")
    call = dict(given) if isinstance(given, dict) else {}
    lines = hang((Span("tool ", "dim"), say(str(payload.get("tool", "")), "bold")), width, 5, 9)
    if collision := payload.get("collision"):
        pieces = wrap(f"{NEED_LOOKS['collision'].glyph} {collision}", width, "  ")
        lines += [(Span(piece, "warning"),) for piece in pieces]
    command, diff = call.pop("command", None), payload.get("diff")
    if isinstance(command, str):
        lines += [(), *exact_lines(as_run(command), width, "bold")]
    if isinstance(diff, str) and diff:
        lines += [(), *diff_lines(diff_as_run(diff), width)]
        call = {name: value for name, value in call.items() if name not in _CHANGE}
    elif not isinstance(command, str) and payload.get("summary"):
        lines += [(), *exact_lines(as_run(str(payload["summary"])), width, "bold")]
    for name, value in [*call.items(), *((name, payload[name]) for name in payload if name not in _KNOWN)]:
        lines += [
            (),
            *exact_lines(as_run(name), width, "dim"),
            *exact_lines(as_run(value if isinstance(value, str) else str(value)), width),
        ]
    return lines


def _agent_facts(agent: AgentView) -> list[tuple[str, str]]:
    usage = f"{agent.usage.cpu_percent:.0f}% CPU, {format_size(agent.usage.memory)}" if agent.usage else ""
    return [
        ("doing", agent.doing),
        ("process", f"pid {agent.pid}, run {agent.run}{', ' + usage if usage else ''}" if agent.alive else "none"),
        ("last error", agent.last_error or ""),
        ("checkout", agent.setup_error or ""),
    ]


def fact_lines(facts: list[tuple[str, str]], width: int) -> list[Line]:
    """Return names and values, values wrapped; omit empty ones."""
    lines: list[Line] = []
    for name, value in facts:
        if not value:
            continue
        for at, piece in enumerate(wrap(value, max(1, width - _LABEL))):
            lines.append((Span(f"{'' if at else name:<{_LABEL}}", "dim"), Span(piece)))
    return lines


_ORDER = {"in_progress": 0, "pending": 1, "failed": 2, "completed": 3, "cancelled": 4}

_UNOWNED = "unassigned"

_MOST_OF_WHY = 400
"""Characters of a failure reason that are shown; the owner's Transcript has the full text."""

_LONGEST_CHECK = 16
"""Cells of a check's command in a row."""

_WHY_FROM = 60
"""From this width a row also shows how the last owner ended and the state of blockers."""


def task_rank(task: Task) -> tuple[float, ...]:
    """Return the place of a task on the board: in progress first, closed last; open ones by priority."""
    closed = task.status in CLOSED
    return _ORDER[task.status], *((-task.updated_at,) if closed else store_tasks.order_of_work(task))


def task_rows(view: TeamView, now: float, width: int) -> Sequence[Row]:
    """Return every task."""
    tasks = sorted(view.tasks, key=task_rank)
    return LazyRows([str(task.id) for task in tasks], lambda at: task_line(tasks[at], view, now, width))


def task_line(task: Task, view: TeamView, now: float, width: int, *, marked: bool = False) -> Line:
    """Return one task: state, number, subject, owner or blockers, and the reason if there is space."""
    waiting = blocked(task, view.tasks) if task.status == "pending" else []
    look = task_look(task, waiting)
    closed = task.status in CLOSED
    left = (
        Span(look.glyph, look.tone),
        mark_span(marked=marked),
        Span(pad(f"#{task.id}", 4) + " ", "dim"),
        Span(f"{task.priority:+d} " if task.priority else "", "dim" if closed or task.priority < 0 else "warning"),
        say(task.subject, "dim" if closed else ""),
    )
    whose = _whose(task, view, waiting, now, why=width >= _WHY_FROM)
    shown = (Span("  "), *_checked(task, wide=width >= _WHY_FROM), *_in_review(task, wide=width >= _WHY_FROM))
    return spread(left, (*shown, *whose), width)


def _in_review(task: Task, *, wide: bool) -> Line:
    """Return who reviews the work on a task at the moment."""
    if task.in_review is None:
        return ()
    return (Span(f"in review by {task.review} " if wide else "review ", "info"),)


def _checked(task: Task, *, wide: bool) -> Line:
    """Return how the check of a task ended last; if there is little space, only its glyph."""
    if task.checked is None:
        return ()
    words = describe_checked(task, clip(one_line(as_run(task.checked.command)), _LONGEST_CHECK))
    return (Span(f"{words if wide else words[0]} ", "success" if task.checked.passed else "warning"),)


def is_orphan(task: Task) -> bool:
    """Return True if the task went back to the board because its owner ended."""
    return task.status == "pending" and bool(task.last_owner) and not task.owner


def _whose(task: Task, view: TeamView, waiting: Sequence[int], now: float, *, why: bool) -> Line:
    if task.status in CLOSED:
        by = task.owner or task.last_owner
        # The record does not say whether the operator or the lead cancelled it.
        words = "" if by is None else f", was {by}'s" if task.status == "cancelled" else f" by {by}"
        return (Span(f"{task.status}{words}", "error" if task.status == "failed" else "dim"),)
    if is_orphan(task):
        return (say(_orphaned(task, view) if why else _orphaned(task), "error"),)
    parts = _blockers(view, waiting) if why else [Span(f"#{other} ", "dim") for other in waiting]
    if waiting:
        hopeless = why and _is_hopeless(view, waiting)
        parts.insert(0, Span("cannot start: ", "error") if hopeless else Span("after ", "dim"))
    if task.required_type:
        parts.append(Span(f"for {task.required_type} ", "dim"))
    if task.owner is None:
        return (*parts, Span(_UNOWNED, "dim"))
    owner = view.agent(task.owner)
    age = f" {format_age(now - task.updated_at)}" if task.status == "in_progress" else ""
    return (*parts, Span(task.owner), *_owner_state(owner), Span(age, "dim"))


def _orphaned(task: Task, view: TeamView | None = None) -> str:
    """Return the last owner of an orphaned task and, given `view`, how it ended."""
    words = f"{TASK_LOOKS['orphaned'].word} by {task.last_owner}"
    return words if view is None else f"{words}, {_end_of(task, view)}"


def _end_of(task: Task, view: TeamView) -> str:
    """Return how the last owner of an orphaned task ended."""
    agent = view.agent(task.last_owner) if task.last_owner else None
    if agent is None:
        return "who is gone"
    if agent.alive:
        return "who lives again"
    return describe_exit(agent.exit) if agent.exit is not None else agent.reason


def _blockers(view: TeamView, waiting: Sequence[int]) -> list[Span]:
    """Return each blocker with the glyph of its state, and a word if it cannot complete without help."""
    spans: list[Span] = []
    for other in waiting:
        task = _find(view, other)
        spans.append(Span(f"#{other} ", "dim"))
        if task is None:
            spans.append(Span("gone ", "error"))
            continue
        look = _look(task, view)
        spans.append(Span(f"{look.word if task.status in CLOSED else look.glyph} ", look.tone))
    return spans


def _is_hopeless(view: TeamView, waiting: Sequence[int]) -> bool:
    """Return True if a blocker cannot complete without help."""
    board = {task.id: task for task in view.tasks}
    return any(terminal_state(other, board) for other in waiting)


def _find(view: TeamView, ident: int) -> Task | None:
    return next((task for task in view.tasks if task.id == ident), None)


def _look(task: Task, view: TeamView) -> Look:
    return task_look(task, blocked(task, view.tasks) if task.status == "pending" else [])


def _owner_state(owner: AgentView | None) -> Line:
    """Return what the owner's state means for the task, unless it is working."""
    if owner is None:
        return (Span(" (gone)", "error"),)
    look = look_of(owner)
    return (Span(f" {look.glyph} {look.word}", look.tone),) if owner.shown not in ("run", "idle") else ()


def task_detail(task: Task, snapshot: Snapshot, now: float) -> list[tuple[str, str]]:
    """Return all fields of a task as names and values."""
    view = snapshot.view
    waiting = blocked(task, view.tasks)
    unowned = f"{_UNOWNED}; {_orphaned(task, view)}" if is_orphan(task) else _UNOWNED
    facts = [
        ("task", f"#{task.id} {task.subject}"),
        ("status", _look(task, view).word),
        ("why", _why_failed(task, snapshot) if task.status == "failed" else ""),
        ("owner", task.owner or unowned),
        ("blocked by", "\n".join(_how_it_stands(view, other) for other in waiting)),
        ("only for", task.required_type or ""),
        ("priority", f"{task.priority:+d}" if task.priority else ""),
        ("details", task.description),
        ("check", _check_fact(task)),
        ("review", _review_fact(task)),
        ("created", f"{format_clock(task.created_at)}, {format_age(now - task.created_at)} ago"),
        ("changed", f"{format_clock(task.updated_at)}, {format_age(now - task.updated_at)} ago"),
        ("edited", f"{format_clock(task.edited_at)}, {format_age(now - task.edited_at)} ago" if task.edited_at else ""),
    ]
    return [(name, value) for name, value in facts if value]


def _check_fact(task: Task) -> str:
    """Return the check of a task, how it ended last, and where its output is."""
    if task.checked is None:
        return "none" if task.check == "" else one_line(as_run(task.check or ""))
    own = "" if task.check in (None, task.checked.command) else f"{one_line(as_run(task.check or 'none'))}; before: "
    return f"{own}{one_line(describe_checked(task))}, {task.checked.result}"


def _review_fact(task: Task) -> str:
    """Return who approved the work on a task, else who must, and whether it is asked now."""
    last = task.reviewed
    done = f"reviewed by {last.by} {format_minute(last.at)}" if last is not None else ""
    if task.in_review is not None:
        return f"by {task.review}, which is asked now ({task.in_review})" + (f"; before: {done}" if done else "")
    if done or task.review is None:
        return done
    return f"by {task.review}" + ("" if task.reviews else ", not asked yet")


def _why_failed(task: Task, snapshot: Snapshot) -> str:
    """Return why a task failed, in its owner's words."""
    from crewboard.readmodel.activity import why_failed

    if task.owner is None or snapshot.view.agent(task.owner) is None:
        return "nothing here says why"
    work = snapshot.get(WorkOf(task.owner))
    if work is None:
        return ""  # not read yet
    said = why_failed(task, work.activity)
    return clip(one_line(said), _MOST_OF_WHY) if said else f"the journal of {task.owner} does not say"


def _how_it_stands(view: TeamView, ident: int) -> str:
    """Describe a blocker: task, state, owner."""
    task = _find(view, ident)
    if task is None:
        return f"#{ident}, which is not on the board"
    plight = "".join(span.text for span in _owner_state(view.agent(task.owner))) if task.owner else ""
    owner = f", {task.owner}{plight}" if task.owner else ""
    return f"#{ident} {task.subject}: {_look(task, view).word}{owner}"
