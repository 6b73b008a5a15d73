"""Needs and tasks as rows of a list, and the details of one: the same in every view."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Sequence
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING

from msgspec.structs import replace

from crewboard import AgentView, Need, NeedKind, Request, Task, TeamView
from crewboard.commands.context import CommandLine
from crewboard.executed_files import diff_as_run
from crewboard.readmodel.needs import format_minute, outage_end, tasks_blocked_by, waiting_behind, ways_to_begin
from crewboard.readmodel.reader import blocked
from crewboard.readmodel.states import why_no_host
from crewboard.readmodel.team import describe_hosts
from crewboard.records.processes import describe_exit
from crewboard.store import tasks as store_tasks
from crewboard.store.tasks import CLOSED, terminal_state
from crewboard.untrusted import as_run
from crewboard_tui.queries import CrashOf, MailTo, Snapshot, WorkOf
from crewboard_tui.render.formats import format_age, format_clock, format_long_age, format_size
from crewboard_tui.render.lines import (
    Line,
    Span,
    clip,
    crop,
    exact_lines,
    hang,
    markdown_lines,
    matches,
    one_line,
    pad,
    pad_name,
    say,
    spread,
    width_of,
    wrap,
)
from crewboard_tui.render.looks import NEED_LOOKS, TASK_LOOKS, Look, describe_checked, look_of, task_look
from crewboard_tui.render.table import mark_span
from crewboard_tui.views.base import WIDE
from crewboard_tui.widgets.bars import away_for
from crewboard_tui.widgets.line_list import LazyRows, Row

if TYPE_CHECKING:
    from crewboard.readmodel.crash_report import CrashReport

_LABEL = 11
_HOLDS_UP = "holds up"

_FREES_FROM = 50
"""Width below which a row does not say what the answer to a need unblocks."""

_WORD_FROM = 60
"""Width from which on a row says with the word `frees` what the answer to a need unblocks."""


def need_rows(
    view: TeamView, now: float, width: int, wanted: str = "", marked: Container[str] = frozenset()
) -> list[Row]:
    """Return a row for each need that matches the filter `wanted`; `marked` has the keys of marked needs."""
    shown = [need for need in view.needs if matches(f"{need.agent} {need.kind} {need.summary}", wanted)]
    # What an answer unblocks: `frees #14`, `frees 2 tasks, 1 agent`; without space for the word, only the tasks.
    word = "frees " if width >= _WORD_FROM else ""
    frees = dict.fromkeys((need.key for need in shown), "")
    for need in shown if width >= _FREES_FROM else ():
        waiting = waiting_behind(view, need)
        what = (waiting if word else replace(waiting, agents=())).describe()
        frees[need.key] = f"{word}{what}" if what else ""
    longest = max(map(len, frees.values()), default=0)
    rows = []
    for need in shown:
        what, age = pad(frees[need.key], longest), format_age(now - need.since)
        line = _need_line(need.kind, need.agent, need.summary, age, what, width, marked=need.key in marked)
        rows.append(Row(need.key, line))
    return rows


# With each reading of a team that works, most of them look as they did.
@lru_cache(maxsize=256)
def _need_line(kind: NeedKind, agent: str, summary: str, age: str, what: str, width: int, *, marked: bool) -> Line:
    look = NEED_LOOKS[kind]
    left = (
        Span(look.glyph, look.tone),
        mark_span(marked=marked),
        Span(pad_name(agent, 11 if width < WIDE else 20) + " ", "bold"),
        say(summary),
    )
    return spread(left, (Span(pad(age, 4, "right")), Span(f"  {what}" if what else "", "dim")), width)


def held_by(view: TeamView, need: Need) -> str:
    """Return the tasks that a need blocks, by number and subject; empty if there are none."""
    return ", ".join(f"#{task.id} {task.subject}" for task in tasks_blocked_by(view, need))


def explanation_lines(need: Need, snapshot: Snapshot, now: float, width: int, typed: CommandLine) -> list[Line]:
    """Return the explanation of one need: its evidence, what waits behind it, and what the agent does.

    `typed` formats a command as the user types it.
    """
    view, report = snapshot.view, snapshot.get(CrashOf(need.agent))
    agent = view.agent(need.agent)
    if need.kind == "death" and need.host is not None:
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
    if need.kind == "death" and report is not None and report.agent == need.agent:
        return crash_lines(report, now, width)
    request = view.request(need.request_id)
    if request is not None:
        payload = request.payload
        reasons = [(name, str(payload.get(name) or "")) for name in ("risk", "why")]
        lines = fact_lines([(_HOLDS_UP, held_by(view, need)), *reasons], width)
        if request.type == "task_review":
            return lines + review_text(request, width)
        if request.type == "permission":
            return lines + permission_text(request, width)
        body = request.plan or payload.get("question") or payload.get("summary") or ""
        lines += markdown_lines(str(body), width)
        options = payload.get("options")
        if isinstance(options, list):
            # No numbers: digits switch views and would not choose an option.
            lines += [(Span("  • ", "dim"), say(str(option))) for option in options]
        return lines
    behind = waiting_behind(view, need).agents
    task = view.task(need.task)
    until = outage_end(view.agents) if need.kind == "outage" else None
    facts = [
        ("what", need.summary),
        ("accept", f"crewboard mcp approve {need.server}" if need.is_new else ""),
        ("since", f"{format_clock(need.since)}, {format_age(now - need.since)} ago"),
        (_HOLDS_UP, held_by(view, need)),
        ("agents", ", ".join(behind if len(need.agents) <= 1 else need.agents)),
        *(host_facts(need, snapshot, typed) if need.kind == "no_host" else []),
        ("why", _why_failed(task, snapshot) if task is not None and need.kind == "task_failed" else ""),
        ("owner", need.agent if task is not None else ""),
        ("file", need.file or ""),
        ("files", ", ".join(need.files)),
        ("what helps", _COLLISION_HELP[need.in_worktrees] if need.kind == "collision" else ""),
        ("next try", f"{format_clock(until)}; nothing has to be done" if until else ""),
        ("what helps", "repair it by hand; nothing was overwritten" if need.kind == "damaged" else ""),
    ]
    if agent and need.kind not in ("result", "task_failed"):
        usage = f", {agent.usage.cpu_percent:.0f}% CPU, {format_size(agent.usage.memory)}" if agent.usage else ""
        facts += [
            ("doing", agent.doing),
            ("process", f"pid {agent.pid}, run {agent.run}{usage}" if agent.alive else "none"),
            ("last error", agent.status.last_error or ""),
            ("checkout", agent.status.setup_error or ""),
        ]
    lines = fact_lines(facts, width)
    mailbox = snapshot.get(MailTo(need.mailbox)) if need.mailbox else None
    letters = [each.message for each in mailbox.letters] if mailbox is not None else []
    results = [each.content for each in letters if each.type == "result" and each.from_ == need.agent]
    return [*lines, (), *markdown_lines(results[-1], width)] if results else lines


def would_wait(names: Sequence[str], view: TeamView) -> str:
    """Return which of these agents no host would take now, one line for each reason; empty if hosts take all."""
    hosts = {host.name: host.found for host in view.hosts}
    waiting: dict[str, list[str]] = {}
    for agent in filter(None, map(view.agent, names)):
        why = why_no_host(agent.spec.flags, hosts, agent.spec.engine_name) if agent.spec is not None else None
        if why is not None:
            waiting.setdefault(why, []).append(agent.name)
    return "\n".join(f"{', '.join(who)}: {why}" for why, who in waiting.items())


def host_facts(need: Need, snapshot: Snapshot, typed: CommandLine) -> list[tuple[str, str]]:
    """Return facts about a need for a host: the hosts there are, the labels that they lack, and what helps."""
    wanted = need.wanted
    if wanted is None:
        return []
    typed = replace(typed, offline_hosts=wanted.offline)
    ways = [f"{what}: {typed(command)}" for what, command in ways_to_begin(need)]
    # Each that takes no agents, with its state.
    having = {
        label: [
            host.name + ("" if host.state == "up" else f" ({host.state})")
            for host in snapshot.view.hosts
            if label in host.found.labels
        ]
        for label in wanted.needs
    }
    begins = "it begins by itself as soon as a host can take it"
    by_itself = "a host of this name takes its agents again" if need.host is not None else begins
    return [
        ("hosts", describe_hosts(snapshot.view.hosts, away_for(snapshot))),
        ("labels", "; ".join(f"{label}: {', '.join(having[label]) or 'no host'}" for label in having)),
        ("what helps", "\n".join([*ways, by_itself])),
    ]


WHAT_HELPS_LOST = "resume: it continues on a host with room, from what its conversation knows"
"""The advice for an agent that was lost with its host."""

_COLLISION_HELP = {
    True: "merge one of them, then let the other one resolve the conflicts",
    False: "pause one of them, and tell it what the other one does",
}
"""The advice for a collision, by whether both agents have worktrees."""


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
    steps = [
        clip(f"{format_clock(step.ts)} {step.kind:<5} {one_line(step.text)}", max(1, width - _LABEL))
        for step in report.last_activity
    ]
    lines: list[Line] = [(Span(piece, "error"),) for piece in wrap(head, width, "  ")]
    lines += fact_lines(
        [
            ("last error", report.last_error),
            ("state", report.rested.describe(report.at) if report.rested else ""),
            ("last tool", f"{tool.text}{outcome}" if tool else "none in this run"),
            (TASK_LOOKS["orphaned"].word, freed),
            ("mail", unread if report.unread else ""),
            ("last lines", "\n".join(report.log_lines)),
            # They show what it did if its log tells nothing.
            ("last steps", "" if report.log_lines else "\n".join(steps) or "nothing; worker.log is empty too"),
        ],
        width,
    )
    return lines


_CHANGE = frozenset({"old_text", "new_text", "replace_all", "edits", "diff", "content"})
"""Fields of a tool call that are left out if its diff is shown."""

_KNOWN = frozenset({"tool", "input", "summary", "diff", "scope", "collision", "why"})
"""Fields of a permission's payload that are not shown as further arguments. `why` is shown beside the text."""


def review_text(request: Request, width: int) -> list[Line]:
    """Return the work to review: what its owner says, the diff, and the file with the whole diff."""
    # Imported here because the first picture shows no diff.
    from crewboard_tui.render.diff import diff_lines

    payload = request.payload
    lines = [*exact_lines(str(payload.get("summary", "")), width, "bold"), ()]
    lines += diff_lines(diff_as_run(str(payload.get("diff", ""))), width)
    return [*lines, (), *exact_lines(str(payload.get("file", "")), width, "dim")]


def permission_text(request: Request, width: int) -> list[Line]:
    """Return the text of a permission: its tool, the exact command or change, then the other arguments of the call."""
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
        from crewboard_tui.render.diff import diff_lines

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


def fact_lines(facts: list[tuple[str, str]], width: int) -> list[Line]:
    """Return a line or more for each pair of a name and a value; pairs without a value are left out."""
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
"""The most characters of a failure reason that are shown; the owner's Transcript has the full text."""

_LONGEST_CHECK = 16
"""The most cells of a check's command in a row."""

INDENT = 2
"""Cells by which a task is indented below the task that it waits for."""

_DEEPEST = 4
"""The deepest level that is indented."""

_WHY_FROM = 60
"""Width from which on a row also shows how the last owner ended, and the state of blockers."""


def task_rank(task: Task) -> tuple[float, ...]:
    """Return the sort key of a task on the board: in progress first, closed last; open ones by priority."""
    closed = task.status in CLOSED
    return _ORDER[task.status], *((-task.updated_at,) if closed else store_tasks.order_of_work(task))


class TaskTree:
    """The order of tasks in which each is below a task that it waits for.

    It is computed anew only when a task changed.
    """

    def __init__(self) -> None:
        self._tasks: tuple[Task, ...] = ()
        self._depths: dict[int, int] = {}
        self.glyphs: dict[str, str] = {}
        """The glyph of each task's status, by its number; another object once a task changed."""

    def depths(self, tasks: Iterable[Task]) -> dict[int, int]:
        """Return the depth of each of these tasks by its number, in the order of the tree.

        A task that waits for several is below the last of them on the board.
        """
        now = tuple(tasks)
        if now != self._tasks:
            ranked = sorted(now, key=task_rank)
            place = {task.id: at for at, task in enumerate(ranked)}
            shown = {task.id: task for task in ranked}
            first: list[Task] = []
            below = defaultdict[int, list[Task]](list)
            for task in ranked:
                waits = task.status == "pending" and [
                    each for each in store_tasks.blockers(task, shown) if each in shown
                ]
                (below[max(waits, key=place.__getitem__)] if waits else first).append(task)
            depths: dict[int, int] = {}
            # Tasks that wait for each other stand below none: the first of them on the board comes after all others.
            for root in chain(first, ranked):
                stack = [(root, 0)]
                while stack:
                    task, depth = stack.pop()
                    if task.id not in depths:
                        depths[task.id] = depth
                        stack += [(each, depth + 1) for each in reversed(below[task.id])]
            self._tasks, self._depths = now, depths
            self.glyphs = {str(task.id): TASK_LOOKS[task.status].glyph for task in now}
        return self._depths


DONE = "done"
"""The key of the row that stands for the completed tasks."""

_LEAST_FOLDED = 2
"""The least number of completed tasks that are folded: for fewer, a row of their own saves no lines."""


class DoneTasks:
    """Folds the completed tasks of a list to one row, until the user unfolds them."""

    def __init__(self) -> None:
        self.is_unfolded = False
        self._count = 0

    def fold(self, tasks: Sequence[Task], selected: str | None) -> list[Task | None]:
        """Return the tasks with a None for the row of the completed ones, where the first of them was.

        While folded, the completed ones are left out, except the `selected` one. Few of them are not folded.
        """
        is_done = [task.status == "completed" for task in tasks]
        self._count = sum(is_done)
        if self._count < _LEAST_FOLDED:
            return list(tasks)
        at = is_done.index(True)
        rest = (
            task for task in tasks[at:] if self.is_unfolded or task.status != "completed" or str(task.id) == selected
        )
        return [*tasks[:at], None, *rest]

    def line(self, width: int, opens: str) -> Line:
        """Return the row that stands for the completed tasks; the key `opens` unfolds or folds it."""
        does = Span(f" {'folds' if self.is_unfolded else 'unfolds'}", "dim")
        count = Span(f"{self._count} done   ", "dim")
        return crop((Span("✓", "success"), mark_span(marked=False), count, Span(opens, "key"), does), width)


def task_rows(
    view: TeamView, now: float, width: int, tree: TaskTree, done: DoneTasks, *, selected: str | None, opens: str
) -> Sequence[Row]:
    """Return a row for each task that is not folded, and one for those that are; the key `opens` unfolds it."""
    depths = tree.depths(view.tasks)
    tasks = {task.id: task for task in view.tasks}
    shown = done.fold([tasks[ident] for ident in depths], selected)

    def line_of(at: int) -> Line:
        task = shown[at]
        return done.line(width, opens) if task is None else task_line(task, view, now, width, depth=depths[task.id])

    return LazyRows([DONE if task is None else str(task.id) for task in shown], line_of)


def task_line(
    task: Task, view: TeamView, now: float, width: int, *, marked: bool = False, owner_at: int = 0, depth: int = 0
) -> Line:
    """Return the row of a task: state, number, subject, owner or blockers, and the reason if there is space.

    The owner begins `owner_at` cells from the left; with 0, it is at the right edge. `depth` is its depth in the tree.
    """
    waiting = blocked(task, view.tasks) if task.status == "pending" else []
    look = task_look(task, waiting)
    closed = task.status in CLOSED
    left = (
        Span(look.glyph, look.tone),
        mark_span(marked=marked),
        Span(pad(f"#{task.id}", 4) + " ", "dim"),
        Span(f"{task.priority:+d} " if task.priority else "", "dim" if closed or task.priority < 0 else "warning"),
        Span(f"{' ' * INDENT * (min(depth, _DEEPEST) - 1)}└ " if depth else "", "trace"),
        say(task.subject, "dim" if closed else ""),
    )
    whose = _whose(task, view, waiting, now, why=width >= _WHY_FROM)
    shown = [Span("  ")]
    if task.checked is not None:
        # How its check ended last; if there is little space, only the glyph.
        words = describe_checked(task, clip(one_line(as_run(task.checked.command)), _LONGEST_CHECK))
        words = words if width >= _WHY_FROM else words[0]
        shown.append(Span(f"{words} ", "success" if task.checked.passed else "warning"))
    if task.in_review is not None:
        shown.append(Span(f"in review by {task.review} " if width >= _WHY_FROM else "review ", "info"))
    if owner_at:
        about = crop(left, owner_at)
        return crop((*about, Span(" " * (owner_at - width_of(about))), *shown, *whose), width)
    return spread(left, (*shown, *whose), width)


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
    parts: list[Span] = []
    for other in waiting:
        parts.append(Span(f"#{other} ", "dim"))
        if not why:
            continue
        # The glyph of its state, and a word if it cannot complete without help.
        blocker = view.task(other)
        if blocker is None:
            parts.append(Span("gone ", "error"))
        else:
            look = _look(blocker, view)
            parts.append(Span(f"{look.word if blocker.status in CLOSED else look.glyph} ", look.tone))
    if waiting:
        board = {task.id: task for task in view.tasks}
        hopeless = why and any(terminal_state(other, board) for other in waiting)
        parts.insert(0, Span("cannot start: ", "error") if hopeless else Span("after ", "dim"))
    if task.required_type:
        parts.append(Span(f"for {task.required_type} ", "dim"))
    if task.owner is None:
        return (*parts, Span(_UNOWNED, "dim"))
    owner = view.agent(task.owner)
    age = f" {format_age(now - task.updated_at)}" if task.status == "in_progress" else ""
    return (*parts, Span(task.owner), *_owner_state(owner, task), Span(age, "dim"))


def _orphaned(task: Task, view: TeamView | None = None) -> str:
    """Return the last owner of an orphaned task and, given `view`, how it ended."""
    words = f"{TASK_LOOKS['orphaned'].word} by {task.last_owner}"
    if view is None:
        return words
    agent = view.agent(task.last_owner)
    if agent is None:
        return f"{words}, who is gone"
    if agent.alive:
        return f"{words}, who lives again"
    return f"{words}, {describe_exit(agent.exit) if agent.exit is not None else agent.reason}"


def _look(task: Task, view: TeamView) -> Look:
    return task_look(task, blocked(task, view.tasks) if task.status == "pending" else [])


def _owner_state(owner: AgentView | None, task: Task) -> Line:
    """Return the owner's state if it matters for the task; empty if the owner works or is idle."""
    if owner is None:
        return (Span(" (gone)", "error"),)
    if owner.status.unreported == task.id:
        return (Span(" rests", "warning"),)
    look = look_of(owner)
    return (Span(f" {look.glyph} {look.word}", look.tone),) if owner.shown not in ("run", "idle") else ()


def task_detail(task: Task, snapshot: Snapshot, now: float) -> list[tuple[str, str]]:
    """Return the fields of a task that have a value, as pairs of a name and a text."""
    view = snapshot.view
    waiting = blocked(task, view.tasks)
    is_left = any(agent.status.unreported == task.id for agent in view.agents)
    unowned = f"{_UNOWNED}; {_orphaned(task, view)}" if is_orphan(task) else _UNOWNED
    if task.checked is None:
        check = "none" if task.check == "" else one_line(as_run(task.check or ""))
    else:
        own = (
            "" if task.check in (None, task.checked.command) else f"{one_line(as_run(task.check or 'none'))}; before: "
        )
        check = f"{own}{one_line(describe_checked(task))}, {task.checked.result}"
    last = task.reviewed
    done = f"reviewed by {last.by} {format_minute(last.at)}" if last is not None else ""
    if task.in_review is not None:
        review = f"by {task.review}, which is asked now ({task.in_review})" + (f"; before: {done}" if done else "")
    elif done or task.review is None:
        review = done
    else:
        review = f"by {task.review}" + ("" if task.reviews else ", not asked yet")
    blockers = []
    for other in waiting:
        if (blocker := view.task(other)) is None:
            blockers.append(f"#{other}, which is not on the board")
            continue
        owner = ""
        if blocker.owner:
            plight = "".join(span.text for span in _owner_state(view.agent(blocker.owner), blocker))
            owner = f", {blocker.owner}{plight}"
        blockers.append(f"#{other} {blocker.subject}: {_look(blocker, view).word}{owner}")
    facts = [
        ("task", f"#{task.id} {task.subject}"),
        ("status", _look(task, view).word),
        ("why", _why_failed(task, snapshot) if task.status == "failed" else ""),
        ("owner", f"{task.owner}, who rests" if is_left else task.owner or unowned),
        ("blocked by", "\n".join(blockers)),
        ("only for", task.required_type or ""),
        ("priority", f"{task.priority:+d}" if task.priority else ""),
        ("details", task.description),
        ("check", check),
        ("review", review),
        ("created", f"{format_clock(task.created_at)}, {format_age(now - task.created_at)} ago"),
        ("changed", f"{format_clock(task.updated_at)}, {format_age(now - task.updated_at)} ago"),
        ("edited", f"{format_clock(task.edited_at)}, {format_age(now - task.edited_at)} ago" if task.edited_at else ""),
    ]
    return [(name, value) for name, value in facts if value]


def _why_failed(task: Task, snapshot: Snapshot) -> str:
    """Return why a task failed, in its owner's words, or that nothing says so; empty while it is not read."""
    from crewboard.readmodel.activity import why_failed

    if task.owner is None or snapshot.view.agent(task.owner) is None:
        return "nothing here says why"
    work = snapshot.get(WorkOf(task.owner))
    if work is None:
        return ""  # not read yet
    said = why_failed(task, work.activity)
    return clip(one_line(said), _MOST_OF_WHY) if said else f"the journal of {task.owner} does not say"
