"""The tabs of an agent's page, with the queries and the lines of each."""

from collections.abc import Callable, Container, Sequence
from functools import partial
from time import localtime

from msgspec import Struct
from msgspec.structs import replace

from crewboard import LEAD, OPERATOR, AgentView, HireOptions, TeamView, agent_types, pricing
from crewboard.commands.context import CommandLine
from crewboard.names import operator_mailboxes
from crewboard.readmodel import mail
from crewboard.readmodel.activity import SLOT
from crewboard.readmodel.file_activity import FileActivity
from crewboard.readmodel.mail import MessageView, describe_message, display_name, headline
from crewboard.readmodel.processes import Usage
from crewboard.readmodel.usage import WINDOW, Call, Spending, Spent, bill_agent, hit_rate
from crewboard.records.agents import VERDICTS
from crewboard.records.base import counted
from crewboard.records.requests import steps_of
from crewboard_tui.queries import (
    HISTORY_KEPT,
    CallsOf,
    CrashOf,
    Lanes,
    Mailbox,
    MailFrom,
    MailTo,
    ProcessHistory,
    ProcessOf,
    Query,
    Snapshot,
    SpendingOf,
    TouchedFiles,
    Usages,
    Work,
    WorkOf,
)
from crewboard_tui.render.formats import (
    TOKEN_KINDS,
    bar_rows,
    context_share,
    describe_tokens,
    format_age,
    format_bill,
    format_clock,
    format_count,
    format_duration,
    format_limit,
    format_lines,
    format_money,
    format_percent,
    format_size,
    format_tokens,
    format_used,
    limit_tone,
    peaks,
    share_bar,
    sparkline,
    why_no_money,
)
from crewboard_tui.render.lines import (
    Line,
    Span,
    clip,
    crop,
    one_line,
    pad,
    pad_name,
    say,
    say_run,
    side_by_side,
    spread,
    width_of,
    wrap,
)
from crewboard_tui.render.looks import look_of
from crewboard_tui.views.activity import activity_lines, file_head, file_rows, transcript_rows
from crewboard_tui.views.message_list import (
    AUTHOR,
    MailboxInfo,
    clock_width,
    format_sent,
    message_body,
    times_line,
    unread_of,
    void_mark,
    void_of,
)
from crewboard_tui.views.roster import lane_line
from crewboard_tui.views.rows import WHAT_HELPS_LOST, crash_lines, fact_lines, host_facts, task_line
from crewboard_tui.widgets.collapsible_list import MARK, CollapsibleRow

_RECENT = 40
_LABEL = 11
_VALUE = 7
A_CORE = 100.0
"""The percentage of processor time that is one full core."""

_TREE = (("PID", 8), ("CPU TIME", 10), ("RSS", 7))
_BAR = 20
_GAP = 2
"""Cells between two columns."""

_HIGHEST, _HIGHEST_CHART, _AROUND_CHART = 6, 20, 3
"""The most rows of a graph, the most rows of the chart of the cost, and the lines around that chart's bars."""

_TOLD = ("process", "state", "why", "sandbox")
"""The facts about a process that the heading of the page and the rule of the tab already show."""

_CALL = (("TIME", 9), ("TOOK", 6), ("IN", 7), ("OUT", 7), ("CACHED", 7), ("WRITTEN", 8), ("HIT", 5), ("COST", 7))


class Page(Struct, frozen=True):
    """The input of a tab: the agent, its data, the time, the size, and whether to show a caret in growing text.

    `typed` formats commands as the user types them. `mail` makes the rows of the Mail tab.
    """

    agent: AgentView
    snapshot: Snapshot
    now: float
    width: int
    typed: CommandLine
    mail: "MailRows"
    caret: bool = True
    ascii_only: bool = False
    height: int = 0
    """The number of lines of the pane."""
    is_told: bool = False
    """True if the lines above the tab show all vitals: task, context, processor time and memory."""


class Tab(Struct, frozen=True):
    """One tab: `lines` for the pane `page` or `facts`, or `folds`, the foldable rows of the pane `folds`.

    `queries` takes the name of the agent, `head` the width. With `follows`, the tab opens at its end; `nothing` is
    shown when it is empty, `below` at the end of its rule.
    """

    name: str
    queries: Callable[[str], tuple[Query[object], ...]]
    lines: Callable[[Page], list[Line]] | None = None
    folds: Callable[[Page], Sequence[CollapsibleRow]] | None = None
    head: Callable[[int], Line] | None = None
    follows: bool = False
    nothing: str = ""
    below: str = ""


def _now(page: Page) -> list[Line]:
    agent, snapshot = page.agent, page.snapshot
    report, work = snapshot.get(CrashOf(agent.name)), snapshot.get(WorkOf(agent.name)) or Work()
    if agent.shown == "dead" and report is not None:
        lost = [("host", agent.status.host), ("what helps", WHAT_HELPS_LOST)] if agent.ended_with_host else []
        return [*crash_lines(report, page.now, page.width), *fact_lines(lost, page.width)]
    lines = activity_lines(work, page.width, recent=_RECENT, caret=page.caret)
    if agent.state == "queued" and agent.spec is not None:
        # Why it has not begun, what helps, and what it is to do.
        needs = snapshot.view.needs
        need = next((need for need in needs if need.kind == "no_host" and agent.name in need.agents), None)
        ago = format_duration(page.now - agent.since)
        queued = [
            ("queued", agent.reason),
            ("since", f"{format_clock(agent.since)}, {ago} ago" if agent.since else ""),
            ("only on", agent.spec.flags.host or ""),
            ("needs", ", ".join(agent.spec.flags.needs)),
            *(host_facts(need, snapshot, page.typed) if need is not None else []),
            ("prompt", agent.spec.prompt),
        ]
        lines += fact_lines(queued, page.width)
    view = snapshot.view
    told = agent.task if page.is_told else None
    owned = [task for task in view.tasks if agent.name in (task.owner, task.last_owner) and task.id != told]
    tasks = [
        (_label("" if at else "tasks"), *task_line(task, view, page.now, page.width - _LABEL))
        for at, task in enumerate(owned)
    ]
    said, flags = agent.status, agent.spec.flags if agent.spec is not None else HireOptions()
    tokens, todo, beyond = said.tokens, said.todo, said.deviations
    # How full it is, the vitals show.
    assumed = f"{format_count(said.context.limit)} assumed; say it with resume --window" if said.context.assumed else ""
    # What the model or engine is asked for beside its version.
    model = (
        agent.described_model,
        f"effort {said.effort}" if said.effort else "",
        f"thinking {said.thinking}" if said.thinking else "",
    )
    engine, works_with = agent.spec.engine if agent.spec is not None else None, ""
    if engine is not None:
        works_with = "its engine's own, in the sandbox" if engine.own_tools else "crewboard's, decided call by call"
    # Where it may use the web, and what it did there.
    may = f"only {', '.join(flags.allowed_domains)}" if flags.allowed_domains else "any domain"
    searches = f"{tokens.web_searches} {'search' if tokens.web_searches == 1 else 'searches'}"
    pages = counted(tokens.web_fetches, "page")
    did = [*([searches] if tokens.web_searches else []), *([pages] if tokens.web_fetches else [])]
    web = [*([may] if flags.web else []), *([" and ".join(did)] if tokens.web_uses else [])]
    facts = [
        ("role", agent.role),
        ("host", said.host),
        ("steps", f"{todo.done}/{todo.total} {todo.current}".rstrip() if todo is not None else ""),
        ("beyond plan", f"{beyond.count}, newest last: {' · '.join(beyond.calls)}" if beyond is not None else ""),
        ("terms", _terms(agent, view)),
        ("model", ", ".join(filter(None, model))),
        ("tools", works_with),
        ("tokens", describe_tokens(tokens) if tokens.total else "not told by its engine" if tokens.untold else ""),
        ("web", " · ".join(web)),
        ("servers", mcp_servers_of(agent)),
        ("context", assumed),
        ("last error", said.last_error or ""),
        ("checkout", said.setup_error or ""),
    ]
    return [*lines, (), *fact_lines(facts, page.width), *tasks]


def lead_mail(snapshot: Snapshot, width: int, mail: "MailRows") -> Sequence[CollapsibleRow]:
    """Return the mail for the lead while there is no lead."""
    view = snapshot.view
    box = MailboxInfo(LEAD, operators=True, unread=view.unread.get(LEAD, 0), now=view.now, answered=view.answered)
    return mail.read(box, snapshot, width)


def mcp_servers_of(agent: AgentView) -> str:
    """Return the MCP servers of an agent in one line, each with the number of its tools, or with its problem."""
    tools = {each.name: counted(len(each.tools), "tool") for each in agent.status.mcp}
    return " · ".join(f"{each.name}: {each.problem or tools[each.name]}" for each in agent.status.mcp)


def _terms(agent: AgentView, view: TeamView) -> str:
    """Return the terms of the plan that the agent carries out, and the steps that are held; empty if there are none."""
    if agent.status.terms is None or agent.spec is None:
        return ""
    given = agent.status.terms.given
    words = agent_types.describe_terms(given, agent_types.known_type(agent.spec.type, agent.spec.definition))
    request = next((each for each in view.asked if each.id == agent.status.terms.request), None)
    plan = request.plan if request is not None else ""
    steps = steps_of(plan)
    words += " until its result"
    for verdict, numbers in given.left_out.items():
        named = "; ".join(f"{number}. {steps[number]}" for number in numbers if number in steps)
        words += f"; {VERDICTS[verdict].decided}: {named}" if named else ""
    return "; ".join([words, *agent_types.describe_steps(given)])


def process_lines(
    agent: AgentView, snapshot: Snapshot, now: float, width: int, *, rows: int = 1, is_told: bool = False
) -> list[Line]:
    """Return the facts about a running or an ended worker, with graphs that are `rows` lines high.

    If it `is_told`, facts are left out that the first lines of an agent's page show.
    """
    past = snapshot.get(ProcessOf(agent.name)) or ProcessHistory(agent.name)
    report = snapshot.get(CrashOf(agent.name))
    if not agent.alive and report is not None:
        record = agent.exit
        if record is None:
            ended = "none: no supervisor saw it end"
        else:
            code = f"code {record.code}" if record.code is not None else "no code"
            signal = f"signal {record.signal}" if record.signal is not None else "no signal"
            notified = "the team is notified" if record.buried else "the team is not notified yet"
            ended = f"run {record.run}, {record.reason or 'no reason'}, {code}, {signal}; {notified}"
        return [*crash_lines(report, now, width), *fact_lines([("exit", ended)], width)]
    # Agents of another program can share a process, whose CPU and memory stand in the row of each.
    here = (agent.pid, agent.status.host)
    within = [a.name for a in snapshot.view.agents if a.alive and a != agent and (a.pid, a.status.host) == here]
    shared = f", with {', '.join(within)} in one process" if within and agent.pid else ""
    facts = {
        "process": f"pid {agent.pid}, run {agent.run}{shared}" if agent.alive else "none",
        "host": agent.status.host if agent.is_here else f"{agent.status.host}, which measures CPU and memory there",
        "state": f"{agent.state} since {format_clock(agent.since)}" if agent.since else agent.state,
        "why": agent.reason,
        "sandbox": agent.status.sandbox,
        "last error": agent.status.last_error or "",
    }
    told = _TOLD if is_told and agent.alive else ()
    lines: list[Line] = []
    if past.history:
        # Current CPU and memory, their history in graphs of so many rows, and their peaks.
        cpu = [usage.cpu_percent for usage in past.history]
        memory = [float(usage.memory) for usage in past.history]
        most = format_size(int(max(memory)))
        lines += _course("CPU", f"{cpu[-1]:.0f}%", cpu, max(A_CORE, *cpu), f"peak {max(cpu):.0f}%", width, rows)
        lines += _course("memory", format_size(int(memory[-1])), memory, max(memory), f"peak {most}", width, rows)
    lines += fact_lines([each for each in facts.items() if each[0] not in told], width)
    if past.family:
        head = "".join(f"{name:<{size}}" for name, size in _TREE) + "COMMAND"
        lines += [(), (Span(head, "dim"),)]
        for each in past.family:
            numbers = (str(each.pid), f"{each.cpu_seconds:.1f}s", format_size(each.rss_bytes))
            text = "".join(f"{cell:<{size}}" for cell, (_, size) in zip(numbers, _TREE, strict=True))
            branch = "  " * (each.depth - 1) + "└ " if each.depth else ""
            command = say_run(each.command, "" if each.depth else "bold")
            lines.append(crop((Span(text), Span(branch, "dim"), command), width))
    if past.log_lines:
        log = (crop((say(line),), width) for line in past.log_lines)
        lines += [(), (Span("the end of its log", "dim"),), *log]
    return lines


def _course(name: str, value: str, values: list[float], top: float, peak: str, width: int, rows: int) -> list[Line]:
    if rows > 1:
        head = (_label(name), Span(f"{value:<{_VALUE}}"), Span(peak, "dim"))
        shown = peaks(values, min(HISTORY_KEPT, width), HISTORY_KEPT)
        return [head, *((Span(row, "trace"),) for row in bar_rows(shown, rows, top))]
    bars = sparkline(values, min(HISTORY_KEPT, width - _LABEL - _VALUE - len(peak) - 2), top)
    return [(_label(name), Span(f"{value:<{_VALUE}}"), Span(bars, "trace"), Span(f"  {peak}", "dim"))]


def cost_lines(
    agent: AgentView, view: TeamView, calls: Sequence[Call], width: int, *, is_told: bool = False
) -> list[Line]:
    """Return what an agent has used, and its calls, newest first.

    If it `is_told`, the fill of its context is left out.
    """
    bill, filled = bill_agent(agent), context_share(agent.status.context)
    money = Span(why_no_money(view), "dim") if bill.partial else Span(format_bill(bill), "bold")
    budget: Line = (Span("none", "dim"),)
    if bill.budget is not None and bill.share is None:
        budget = (Span(f"{bill.budget}; how much of it is used is not known", "warning"),)
    elif bill.budget is not None:
        used = Span(f"{format_percent(bill.share)} of {bill.budget}", limit_tone(bill.share))
        budget = (used, *share_bar(bill.share, _BAR))
    of_plan = pricing.budget_or_none(agent.status.terms.given.budget) if agent.status.terms is not None else None
    window = f"{format_percent(filled)} of {format_limit(agent.status.context.limit)}" if filled is not None else "—"

    def count(number: str, words: str, label: str = "") -> Line:
        return (_label(label), Span(f"{number:>7}  "), Span(words, "dim"))

    lines: list[Line] = [
        (_label("model"), say(agent.described_model or "—")),
        (_label("money"), money),
        (_label("budget"), *budget),
        *([(_label("plan"), Span(f"{of_plan} from its approval on"))] if of_plan is not None else []),
        *([] if is_told else [(_label("context"), Span(window, limit_tone(filled)), *share_bar(filled, _BAR))]),
        (),
        count(format_tokens(bill.tokens), "total", "tokens"),
        *(count(format_count(getattr(bill.tokens, kind)), f"of these {word}") for kind, word in TOKEN_KINDS),
    ]
    if bill.tokens.estimated:
        lines.append(count(f"~{format_count(bill.tokens.estimated)}", "of these estimated"))
    lines.append(count(format_percent(hit_rate(bill.tokens)), "of all prompts", "cache hits"))
    if bill.tokens.untold:
        lines.append(count(str(bill.tokens.untold), "turns whose tokens were not told"))
    if bill.tokens.web_uses:
        lines.append(count(str(bill.tokens.web_searches), "searches", "web"))
        lines.append(count(str(bill.tokens.web_fetches), "pages"))
    if calls:
        head = "".join(pad(name, size, "right") for name, size in _CALL)
        lines += [(), (Span(head, "dim"),), *map(_call_line, reversed(calls))]
    return [crop(line, width) for line in lines]


def _call_line(call: Call) -> Line:
    used = call.usage
    cells = (
        format_clock(call.ts), format_duration(call.seconds) or "—",
        *(format_count(getattr(used, kind)) for kind, _ in TOKEN_KINDS),
        format_percent(hit_rate(used)), format_money(call.usd) if call.usd is not None else "—",
    )  # fmt: skip
    text = "".join(pad(cell, size, "right") for cell, (_, size) in zip(cells, _CALL, strict=True))
    note = "  summary" if call.summary else f"  web {used.web_uses}" if used.web_uses else ""
    # Why it did not find in the prompt cache what it could have.
    missed = f"  {call.miss.reason.replace('_', ' ')}" if call.miss is not None and call.miss.tokens else ""
    return (Span(text), Span(note, "dim"), Span(missed, "warning"))


def process_and_cost_lines(page: Page) -> list[Line]:
    """Return the process and the calls of an agent. On a wide screen they are side by side, with higher graphs."""
    calls = page.snapshot.get(CallsOf(page.agent.name)) or ()
    process = partial(
        process_lines, page.agent, page.snapshot, page.now, is_told=page.is_told and page.width >= _ONE_COLUMN
    )
    if page.width < _THREE_COLUMNS:
        cost = cost_lines(page.agent, page.snapshot.view, calls, page.width, is_told=page.is_told)
        return [*process(page.width), (), *cost]
    across = (page.width - _GAP) // 2
    right = cost_lines(page.agent, page.snapshot.view, calls, across, is_told=page.is_told)
    left = process(across)
    rows = min(_HIGHEST, (page.height - len(left) - 1) // 2)
    if rows > 1:
        left = process(across, rows=rows)
    spending, _ = page.snapshot.get(SpendingOf(page.agent.name)) or (Spending({}), None)
    # Imported here, because not each screen has room for it.
    from crewboard_tui.views.cost import chart

    if (room := min(_HIGHEST_CHART, page.height - len(left) - _AROUND_CHART)) > 1:
        left += [(), *chart(spending, "", across, room)]
    return side_by_side(left, right, across + _GAP)


def _label(text: str) -> Span:
    return Span(f"{text:<{_LABEL}}", "dim")


VITALS = 3
"""The number of lines of vitals, where there is room for all."""

_ONE_COLUMN, _THREE_COLUMNS = 60, 110
"""Cells of the screen below which vitals are in one column, and from which on in three columns."""

_FACT, _PICTURE, _WINDOW_BAR = 9, 30, 12
"""Cells for the name of a vital, and at most for its chart and for the bar of its context."""

_MINUTES = int(WINDOW // 60)


_Vital = Callable[[Page, int], tuple[str, Line]]


def vitals_of(name: str) -> tuple[Query[object], ...]:
    """Return the queries whose answers the vitals of an agent show."""
    return Lanes((name,)), Usages((name,)), SpendingOf(name)


def vital_lines(page: Page, rows: int, no_task: str) -> list[Line]:
    """Return the vitals of an agent in `rows` lines. `no_task` is shown if it has no task.

    These are its last minutes, its processor time, its task, the fill of its context, its cost and its changes; with
    three columns also memory, tokens and mail.
    """
    width = page.width
    columns: list[tuple[int, list[_Vital]]]
    if width < _ONE_COLUMN:
        columns = [(width, [_context, _cost, partial(_task, no_task=no_task)])]
    else:
        last = min(34, max(26, width * 17 // 40))
        columns = [
            (width - last, [_minutes, _cpu, partial(_task, no_task=no_task)]),
            (last, [_context, _cost, _changed]),
        ]
        if width >= _THREE_COLUMNS:
            columns = [(46, columns[0][1]), (38, columns[1][1]), (width - 84, [_memory, _tokens, _unread])]
    lines: list[Line] = []
    for at in range(min(rows, VITALS)):
        spans: list[Span] = []
        for across, makers in columns:
            name, value = makers[at](page, across - _FACT - 2)
            cell = crop((Span(f" {name:<{_FACT}}", "dim"), *value), across - 1)
            spans += [*cell, Span(" " * (across - width_of(cell)))]
        lines.append(crop(tuple(spans), width))
    return lines


def _minutes(page: Page, width: int) -> tuple[str, Line]:
    cells = min(_PICTURE, width)
    lane = (page.snapshot.get(Lanes((page.agent.name,))) or {}).get(page.agent.name)
    shown = lane.cells(page.agent, int(page.now // SLOT), cells) if lane is not None else ()
    return f"{cells // 2} min", lane_line(shown, look_of(page.agent).tone, ascii_only=page.ascii_only)


def _measured(page: Page) -> tuple[Usage, ...]:
    return (page.snapshot.get(Usages((page.agent.name,))) or {}).get(page.agent.name, ())


def _cpu(page: Page, width: int) -> tuple[str, Line]:
    measured = [usage.cpu_percent for usage in _measured(page)]
    if not page.agent.alive or not measured:
        return "cpu", (Span("not measured" if page.agent.alive else "no process", "dim"),)
    memory = f"  {format_size(page.agent.usage.memory)}" if page.agent.usage and page.width < _THREE_COLUMNS else ""
    cells = min(_PICTURE, width - len(memory))
    shown = peaks(measured, cells, HISTORY_KEPT)
    return f"cpu {measured[-1]:.0f}%", (Span(sparkline(shown, cells, max(A_CORE, *shown)), "trace"), Span(memory))


def _memory(page: Page, width: int) -> tuple[str, Line]:
    measured = [float(usage.memory) for usage in _measured(page)]
    if not page.agent.alive or not measured:
        return "memory", (Span("not measured" if page.agent.alive else "none", "dim"),)
    cells = max(0, min(_PICTURE // 2, width - 7))
    bars = sparkline(peaks(measured, cells, HISTORY_KEPT), cells, max(measured))
    return "memory", (Span(f"{format_size(int(measured[-1])):<{_VALUE - 1}}"), Span(bars, "trace"))


def _task(page: Page, width: int, *, no_task: str) -> tuple[str, Line]:
    view, todo = page.snapshot.view, page.agent.status.todo
    task = view.task(page.agent.task)
    if task is None:
        return "task", (Span(no_task, "dim"),)
    steps = f" · {todo.done}/{todo.total}" if todo is not None else ""
    end = f"{steps} · {format_age(page.now - task.updated_at)}"
    return "task", (say(clip(one_line(f"#{task.id} {task.subject}"), width - len(end))), Span(end, "dim"))


def _context(page: Page, width: int) -> tuple[str, Line]:
    share = context_share(page.agent.status.context)
    if share is None:
        return "context", (Span("not known", "dim"),)
    words = f" {format_percent(share)} of {format_limit(page.agent.status.context.limit)}"
    bar = share_bar(share, max(3, min(_WINDOW_BAR, width - len(words))))
    # Without the blank before it.
    return "context", (replace(bar[0], text=bar[0].text[1:]), *bar[1:], Span(words, limit_tone(share)))


def _cost(page: Page, width: int) -> tuple[str, Line]:
    bill = bill_agent(page.agent)
    spending, rate = page.snapshot.get(SpendingOf(page.agent.name)) or (Spending({}), None)
    priced = bill.usd is not None
    minutes = range(int(page.now // 60) - _MINUTES + 1, int(page.now // 60) + 1)
    spent = [spending.minutes.get(at, Spent()) for at in minutes]
    values = [each.usd if priced else float(each.tokens) for each in spent]
    # Without a price the label says the unit.
    words = format_used(bill) if priced else format_used(bill).replace(" tokens", "", 1)
    an_hour = f"  {format_money(rate)}/h" if rate else ""
    bars = sparkline(values, max(0, min(_MINUTES, width - len(words) - len(an_hour) - 2)), max(values))
    pictured = (Span(f"  {bars}", "trace"),) if any(values) else ()
    return "cost" if priced else "tokens", (
        Span(words, limit_tone(bill.share) if bill.budget is not None else ""),
        *pictured,
        Span(an_hour, "dim"),
    )


def _changed(page: Page, width: int) -> tuple[str, Line]:  # noqa: ARG001
    lines = page.agent.unmerged
    if lines is None:
        return "changed", (Span("none to merge", "dim"),)
    words = f" in {counted(len(lines.files), 'file')}, unmerged"
    added, removed = format_lines(lines).split()
    return "changed", (Span(added, "success"), Span(f" {removed}", "error"), Span(words))


def _tokens(page: Page, width: int) -> tuple[str, Line]:  # noqa: ARG001
    tokens, hits = page.agent.status.tokens, hit_rate(page.agent.status.tokens)
    if hits is None:
        return "cache", (Span("not used yet", "dim"),)
    if page.agent.status.cost_usd is None:
        return "cache", (Span(f"{format_percent(hits)} hits"),)
    return "tokens", (Span(f"{format_tokens(tokens)} total"), Span(f", {format_percent(hits)} hits", "dim"))


def _unread(page: Page, width: int) -> tuple[str, Line]:  # noqa: ARG001
    unread = page.agent.unread
    return "mail", (Span(f"{unread} unread", "warning") if unread else Span("all read", "dim"),)


_SENT = 8
_BEGIN = _SENT + 1 + AUTHOR + 1
_RULE = "unread"


class MailRows:
    """Makes the rows of an agent's Mail tab.

    Rows of messages that were shown before are kept while they look the same.
    """

    def __init__(self) -> None:
        self._shows: tuple[object, ...] = ()
        self._rows: Sequence[CollapsibleRow] = ()
        self._made: dict[str, tuple[tuple[object, ...], CollapsibleRow]] = {}

    def read(self, box: MailboxInfo, snapshot: Snapshot, width: int) -> Sequence[CollapsibleRow]:
        """Return a row for each message, oldest first; the same list if nothing changed.

        There is a rule before unread messages. Messages between the user and the lead are shown in full.
        """
        mailbox, sent = snapshot.get(MailTo(box.name)) or Mailbox(), snapshot.get(MailFrom(box.name)) or ()
        letters, asked, lead = [*mailbox.prompts, *mailbox.letters], snapshot.view.asked, snapshot.view.lead
        # The mailboxes that the user reads, where no worker picks up mail.
        yours = operator_mailboxes(snapshot.view.names)
        looks, unread = (localtime(box.now)[:3], width, yours, lead), snapshot.view.unread
        # Their numbers need not be the same: what is picked up changes `sent`.
        waits = {name for name, count in unread.items() if count}
        shows = (letters, sent, replace(box, now=0), asked, looks, waits)
        if shows != self._shows:
            self._shows = shows
            new = unread_of(letters, box)
            first_unread = new[0].message.id if new else None
            for to in {each.message.to for each in sent}:
                mine = [each for each in sent if each.message.to == to]
                new += unread_of(mine, MailboxInfo(to, unread=unread.get(to, 0)))
            new_keys = {mail_key(each) for each in new}
            void = void_of([*letters, *sent], asked)
            known, self._made = self._made, {}
            rows: list[CollapsibleRow] = []
            for letter in sorted(mail.as_approved([*letters, *sent], asked), key=lambda each: each.message.ts):
                ident = letter.message.id
                if ident == first_unread:
                    rows.append(CollapsibleRow(_RULE, (Span(" not read yet ".center(width - MARK, "─"), "dim"),)))
                key = mail_key(letter)
                fresh = key in new_keys
                follows_from = (letter, void.get(ident), looks, fresh)
                made = known.get(key)
                if made is None or made[0] != follows_from:
                    is_talk = {letter.message.from_, letter.message.to} == {OPERATOR, lead}
                    if is_talk:
                        row = _spoken(letter, box, width - MARK, fresh=fresh)
                    else:
                        head = partial(_mail_line, letter, box, yours, width - MARK, void.get(ident), fresh=fresh)
                        body = partial(message_body, letter, box.now, width - MARK, void.get(ident))
                        row = CollapsibleRow(key, head, body=body, texts=(letter.message.content,))
                    made = (follows_from, row)
                self._made[key] = made
                rows.append(made[1])
            self._rows = rows
        return self._rows


def mail_key(letter: MessageView) -> str:
    """Return the key of a message's row: the copies of a broadcast may have one id."""
    return f"{letter.message.to} {letter.message.id}"


def mail_head(width: int) -> Line:
    """Return the column titles of the Mail tab."""
    clock = clock_width(width - MARK)
    left = (Span(f"{'SENT':<{_SENT}} {'WHO':<{AUTHOR}} MESSAGE", "dim"),)
    return spread(left, (Span(f" {'PICKED':>{clock}} {'TURN':>{clock}}", "dim"),), width - MARK)


def _mail_line(
    letter: MessageView, box: MailboxInfo, yours: Container[str], width: int, void: str | None, *, fresh: bool
) -> Line:
    message = letter.message
    # Of its own mail, an arrow and the recipient.
    is_own = message.from_ == box.name
    who = f"→ {display_name(message.to)}" if is_own else display_name(message.from_)
    left = (
        Span(format_sent(message.ts, box.now, _SENT) + " ", "dim"),
        Span(pad_name(one_line(who), AUTHOR) + " ", "dim" if is_own else ""), *void_mark(void),
        Span(mail.verb(message), "dim"), say(headline(message)),
    )  # fmt: skip
    times = times_line(letter, width, fresh=fresh) if message.to not in yours else ()
    return spread(left, times or (Span(" " * (2 * clock_width(width) + 2)),), width)


def _spoken(letter: MessageView, box: MailboxInfo, width: int, *, fresh: bool) -> CollapsibleRow:
    """Return the row of a message between the user and the lead, in full."""
    message = letter.message
    words = message.content if message.type == "result" else describe_message(message)
    times = times_line(letter, width, fresh=fresh) if message.to == box.name else ()
    room = width - _BEGIN - 2 * (clock_width(width) + 1) - 1
    first, *more = wrap(words.strip(), max(1, room)) or ("",)
    author = Span(pad_name(one_line(display_name(message.from_)), AUTHOR) + " ", "bold")
    sent = Span(format_sent(message.ts, box.now, _SENT) + " ", "dim")
    head = spread((sent, author, Span(first)), times, width)
    rest = tuple((Span(" " * _BEGIN + piece),) for piece in more)
    return CollapsibleRow(mail_key(letter), head, rest, texts=(message.content,))


TABS: tuple[Tab, ...] = (
    Tab("Now", lambda name: (WorkOf(name), CrashOf(name)), _now, follows=True),
    Tab("Mail", lambda name: (MailTo(name), MailFrom(name)), head=mail_head, follows=True, nothing="no mail yet",
        folds=lambda page: page.mail.read(
            MailboxInfo(page.agent.name, unread=page.agent.unread, now=page.now), page.snapshot, page.width
        )),
    Tab("Transcript", lambda name: (WorkOf(name),), follows=True, nothing="nothing in its journal yet",
        folds=lambda page: transcript_rows(
            page.snapshot.get(WorkOf(page.agent.name)) or Work(), page.now, page.width,
            page.typed(f"journal {page.agent.name}"), alive=page.agent.alive, caret=page.caret,
        )),
    Tab("Files", lambda _: (TouchedFiles(),), head=file_head,
        nothing="no file changed with file tools", below="changes made by shell commands are not tracked here",
        folds=lambda page: file_rows(
            page.snapshot.get(TouchedFiles()) or FileActivity(), page.agent.name, page.now, page.width
        )),
    Tab("Vitals", lambda name: (CrashOf(name), ProcessOf(name), CallsOf(name)),
        process_and_cost_lines),
)  # fmt: skip
"""The tabs from left to right."""

NAMES = tuple(tab.name for tab in TABS)
