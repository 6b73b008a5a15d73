"""The tabs of an agent's page, and the data that each shows."""

from collections.abc import Callable, Container, Sequence
from functools import partial
from time import localtime

from msgspec import Struct
from msgspec.structs import replace

from crewboard import LEAD, OPERATOR, AgentView, HireOptions, Request, TeamView, agent_types, pricing
from crewboard.commands.context import CommandLine
from crewboard.protocol.addressing import operator_mailboxes
from crewboard.readmodel import mail
from crewboard.readmodel.crash_report import CrashReport
from crewboard.readmodel.file_activity import FileActivity
from crewboard.readmodel.mail import MessageView, describe_message, display_name, headline
from crewboard.readmodel.processes import ProcessNode
from crewboard.readmodel.usage import Bill, Call, bill_agent, hit_rate
from crewboard.records.agents import Tokens
from crewboard.records.base import counted
from crewboard.records.events import CacheMiss
from crewboard.records.processes import Exit
from crewboard.records.requests import steps_of
from crewboard_tui.queries import (
    HISTORY_KEPT,
    CallsOf,
    CrashOf,
    Mailbox,
    MailFrom,
    MailTo,
    ProcessHistory,
    ProcessOf,
    Query,
    Snapshot,
    TouchedFiles,
    Work,
    WorkOf,
)
from crewboard_tui.render.formats import (
    context_share,
    format_bill,
    format_clock,
    format_count,
    format_duration,
    format_money,
    format_percent,
    format_size,
    limit_tone,
    share_bar,
    sparkline,
    why_no_money,
)
from crewboard_tui.render.lines import Line, Span, crop, one_line, pad, pad_name, say, say_run, spread, wrap
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
from crewboard_tui.views.rows import WHAT_HELPS_LOST, crash_lines, fact_lines, host_facts, task_line
from crewboard_tui.widgets.collapsible_list import MARK, CollapsibleRow

_RECENT = 40
_LABEL = 11
_VALUE = 7
_A_CORE = 100.0
_TREE = (("PID", 8), ("CPU TIME", 10), ("RSS", 7))
_BAR = 20
_KINDS = (("input", "in"), ("output", "out"), ("cache_read", "from the cache"), ("cache_write", "into the cache"))
_CALL = (("TIME", 9), ("TOOK", 6), ("IN", 7), ("OUT", 7), ("CACHED", 7), ("WRITTEN", 8), ("HIT", 5), ("COST", 7))


class Page(Struct, frozen=True):
    """The input of a tab: the agent, its data, the time, the size, and whether to show a caret in growing text.

    `typed` returns commands as the user types them. `mail` makes the rows of the Mail tab.
    """

    agent: AgentView
    snapshot: Snapshot
    now: float
    width: int
    typed: CommandLine
    mail: "MailRows"
    caret: bool = True


class Tab(Struct, frozen=True):
    """One tab: lines in the pane `page` or `facts`, or foldable rows in the pane `folds`.

    `follows` means that the tab opens at its end; `nothing` is shown when it is empty, `below` at its lower edge.
    """

    name: str
    queries: Callable[[str], tuple[Query[object], ...]]
    lines: Callable[[Page], list[Line]] | None = None
    folds: Callable[[Page], Sequence[CollapsibleRow]] | None = None
    head: Callable[[int], Line] | None = None
    follows: bool = False
    nothing: str = ""
    below: str = ""

    @property
    def pane(self) -> str:
        """Return the id of the widget that shows the tab."""
        return "folds" if self.folds else "page" if self.follows else "facts"


def _now(page: Page) -> list[Line]:
    agent, snapshot = page.agent, page.snapshot
    report, work = snapshot.get(CrashOf(agent.name)), snapshot.get(WorkOf(agent.name)) or Work()
    if agent.shown == "dead" and report is not None:
        lost = [("host", agent.host), ("what helps", WHAT_HELPS_LOST)] if agent.ended_with_host else []
        return [*crash_lines(report, page.now, page.width), *fact_lines(lost, page.width)]
    recent = activity_lines(work, page.width, recent=_RECENT, caret=page.caret)
    recent += _queued_lines(page)
    return [*recent, (), *fact_lines(_facts(agent, page.snapshot.view), page.width)]


def _queued_lines(page: Page) -> list[Line]:
    """Return why an agent that is queued has not begun, what helps, and what it is to do; nothing of another agent."""
    agent, view = page.agent, page.snapshot.view
    if agent.state != "queued" or agent.spec is None:
        return []
    flags = agent.spec.flags
    need = next((need for need in view.needs if need.kind == "no_host" and agent.name in need.agents), None)
    facts = [
        ("queued", agent.reason),
        ("since", f"{format_clock(agent.since)}, {format_duration(page.now - agent.since)} ago" if agent.since else ""),
        ("only on", flags.host or ""),
        ("needs", ", ".join(flags.needs)),
        *(host_facts(need, page.snapshot, page.typed) if need is not None else []),
        ("prompt", agent.spec.prompt),
    ]
    return fact_lines(facts, page.width)


def _mail(page: Page) -> Sequence[CollapsibleRow]:
    agent, snapshot = page.agent, page.snapshot
    box = MailboxInfo(agent.name, unread=agent.unread, now=page.now)
    mailbox, sent = snapshot.get(MailTo(agent.name)) or Mailbox(), snapshot.get(MailFrom(agent.name)) or ()
    received = [*mailbox.prompts, *mailbox.letters]
    yours, lead = operator_mailboxes(snapshot.view.names), snapshot.view.lead
    return page.mail.read(received, sent, box, yours, page.width, snapshot.view.asked, lead=lead)


def lead_mail(snapshot: Snapshot, width: int, mail: "MailRows") -> Sequence[CollapsibleRow]:
    """Return the mail for the lead while there is no lead."""
    view = snapshot.view
    box = MailboxInfo(LEAD, operators=True, unread=view.unread.get(LEAD, 0), now=view.now, answered=view.answered)
    mailbox, sent = snapshot.get(MailTo(LEAD)) or Mailbox(), snapshot.get(MailFrom(LEAD)) or ()
    yours = operator_mailboxes(snapshot.view.names)
    return mail.read(mailbox.letters, sent, box, yours, width, snapshot.view.asked)


def _transcript(page: Page) -> list[CollapsibleRow]:
    alive = page.agent.alive
    work = page.snapshot.get(WorkOf(page.agent.name)) or Work()
    return transcript_rows(work, page.now, page.width, alive=alive, caret=page.caret)


def _tasks(page: Page) -> list[Line]:
    view, name = page.snapshot.view, page.agent.name
    mine = [task for task in view.tasks if name in (task.owner, task.last_owner)]
    return [task_line(task, view, page.now, page.width) for task in mine]


def _process(page: Page) -> list[Line]:
    return process_lines(page.agent, page.snapshot, page.now, page.width)


def _files(page: Page) -> list[CollapsibleRow]:
    return file_rows(page.snapshot.get(TouchedFiles()) or FileActivity(), page.agent.name, page.now, page.width)


def _cost(page: Page) -> list[Line]:
    return cost_lines(page.agent, page.snapshot.view, page.snapshot.get(CallsOf(page.agent.name)) or (), page.width)


def _facts(agent: AgentView, view: TeamView) -> list[tuple[str, str]]:
    count, tokens = format_count, agent.tokens
    used = f"in {count(tokens.input)}, out {count(tokens.output)}, cache {count(tokens.cache_read)}"
    context = ""
    if agent.context.limit:
        context = f"{100 * agent.context.used // agent.context.limit}% of {format_count(agent.context.limit)}"
        context += " (assumed; say it with resume --window)" if agent.context.assumed else ""
    return [
        ("role", agent.role),
        ("host", agent.host),
        ("task", f"#{agent.task}" if agent.task else ""),
        ("steps", _steps(agent)),
        ("beyond plan", _beyond_plan(agent)),
        ("terms", _terms(agent, view)),
        ("model", _model(agent)),
        ("tokens", used if tokens.input or tokens.output else "not told by its engine" if tokens.untold else ""),
        ("web", _web(agent)),
        ("servers", mcp_servers_of(agent)),
        ("context", context),
        ("last error", agent.last_error or ""),
        ("checkout", agent.setup_error or ""),
    ]


def _web(agent: AgentView) -> str:
    """Return where the agent may use the web, and what it did there; an empty text if neither."""
    flags = agent.spec.flags if agent.spec is not None else HireOptions()
    may = f"only {', '.join(flags.allowed_domains)}" if flags.allowed_domains else "any domain"
    return " · ".join([*([may] if flags.web else []), *([_uses(agent.tokens)] if agent.tokens.web_uses else [])])


def mcp_servers_of(agent: AgentView) -> str:
    """Return the MCP servers of an agent, with the number of their tools, or why it has none."""
    tools = {each.name: counted(len(each.tools), "tool") for each in agent.mcp}
    return " · ".join(f"{each.name}: {each.problem or tools[each.name]}" for each in agent.mcp)


def _uses(used: Tokens) -> str:
    searches, pages = used.web_searches, used.web_fetches
    words = [f"{searches} {'search' if searches == 1 else 'searches'}"] if searches else []
    return " and ".join([*words, *([counted(pages, "page")] if pages else [])])


def _model(agent: AgentView) -> str:
    """Return the model or engine of an agent, with its version, or the effort and thinking that it asks for."""
    effort = f"effort {agent.effort}" if agent.effort else ""
    thinking = f"thinking {agent.thinking}" if agent.thinking else ""
    return ", ".join(filter(None, (f"{agent.model} {agent.engine_version}".strip(), effort, thinking)))


def _steps(agent: AgentView) -> str:
    found = agent.todo
    return f"{found.done}/{found.total} {found.current}".rstrip() if found is not None else ""


def _beyond_plan(agent: AgentView) -> str:
    found = agent.deviations
    return f"{found.count}, newest last: {' · '.join(found.calls)}" if found is not None else ""


def _terms(agent: AgentView, view: TeamView) -> str:
    """Return the terms of the plan that it carries out, and the steps that are held."""
    if agent.terms is None or agent.spec is None:
        return ""
    given = agent.terms.given
    words = agent_types.describe_terms(given, agent_types.known_type(agent.spec.type, agent.spec.definition))
    request = next((each for each in view.asked if each.id == agent.terms.request), None)
    plan = (request.edited or str(request.payload.get("plan", ""))) if request is not None else ""
    steps = steps_of(plan)
    held = "; ".join(f"{number}. {steps[number]}" for number in given.hold if number in steps)
    return f"{words} until its result{f'; held: {held}' if held else ''}"


def process_lines(agent: AgentView, snapshot: Snapshot, now: float, width: int) -> list[Line]:
    """Return the lines of the Process tab, for a running or an ended worker."""
    past = snapshot.get(ProcessOf(agent.name)) or ProcessHistory(agent.name)
    report = snapshot.get(CrashOf(agent.name))
    if not agent.alive and report is not None:
        return _ended(agent, report, now, width)
    lines = [*_history(past, width), *_process_facts(agent, width), *_tree(past.family, width)]
    return [*lines, *_log(past.log_lines, width)]


def _ended(agent: AgentView, report: CrashReport, now: float, width: int) -> list[Line]:
    lines = crash_lines(report, now, width)
    return [*lines, *fact_lines([("exit", _record(agent.exit))], width)]


def _record(record: Exit | None) -> str:
    """Return the content of `exit.json` in short form."""
    if record is None:
        return "none: no supervisor saw it end"
    code = f"code {record.code}" if record.code is not None else "no code"
    signal = f"signal {record.signal}" if record.signal is not None else "no signal"
    told = "the team is notified" if record.buried else "the team is not notified yet"
    return f"run {record.run}, {record.reason or 'no reason'}, {code}, {signal}; {told}"


def _process_facts(agent: AgentView, width: int) -> list[Line]:
    return fact_lines(
        [
            ("process", f"pid {agent.pid}, run {agent.run}" if agent.alive else "none"),
            ("host", agent.host if agent.is_here else f"{agent.host}, which measures CPU and memory there"),
            ("state", f"{agent.state} since {format_clock(agent.since)}" if agent.since else agent.state),
            ("why", agent.reason),
            ("sandbox", agent.sandbox),
            ("last error", agent.last_error or ""),
        ],
        width,
    )


def _history(past: ProcessHistory, width: int) -> list[Line]:
    """Return current CPU and memory, their history, and their peaks."""
    if not past.history:
        return []
    cpu = [usage.cpu_percent for usage in past.history]
    memory = [float(usage.memory) for usage in past.history]
    return [
        _course("CPU", f"{cpu[-1]:.0f}%", cpu, max(_A_CORE, *cpu), f"peak {max(cpu):.0f}%", width),
        _course(
            "memory",
            format_size(int(memory[-1])),
            memory,
            max(memory),
            f"peak {format_size(int(max(memory)))}",
            width,
        ),
    ]


def _course(name: str, value: str, values: list[float], top: float, peak: str, width: int) -> Line:
    room = min(HISTORY_KEPT, width - _LABEL - _VALUE - len(peak) - 2)
    bars = sparkline(values, room, top)
    return (
        Span(f"{name:<{_LABEL}}", "dim"),
        Span(f"{value:<{_VALUE}}"),
        Span(bars, "info"),
        Span(f"  {peak}", "dim"),
    )


def _tree(relatives: tuple[ProcessNode, ...], width: int) -> list[Line]:
    if not relatives:
        return []
    head = "".join(f"{name:<{size}}" for name, size in _TREE) + "COMMAND"
    return [(), (Span(head, "dim"),), *(crop(_relative(each), width) for each in relatives)]


def _relative(each: ProcessNode) -> Line:
    numbers = (str(each.pid), f"{each.cpu_seconds:.1f}s", format_size(each.rss_bytes))
    text = "".join(f"{cell:<{size}}" for cell, (_, size) in zip(numbers, _TREE, strict=True))
    branch = "  " * (each.depth - 1) + "└ " if each.depth else ""
    return (Span(text), Span(branch, "dim"), say_run(each.command, "" if each.depth else "bold"))


def _log(lines: tuple[str, ...], width: int) -> list[Line]:
    if not lines:
        return []
    return [(), (Span("the end of its log", "dim"),), *(crop((say(line),), width) for line in lines)]


def cost_lines(agent: AgentView, view: TeamView, calls: Sequence[Call], width: int) -> list[Line]:
    """Return the lines of the Cost tab; calls newest first."""
    lines = [*_summary(agent, view), (), *_token_lines(bill_agent(agent))]
    if calls:
        head = "".join(pad(name, size, "right") for name, size in _CALL)
        lines += [(), (Span(head, "dim"),), *map(_call_line, reversed(calls))]
    return [crop(line, width) for line in lines]


def _summary(agent: AgentView, view: TeamView) -> list[Line]:
    bill = bill_agent(agent)
    filled = context_share(agent.context)
    window = f"{format_percent(filled)} of {format_count(agent.context.limit)}" if filled is not None else "—"
    return [
        (_label("model"), say(f"{agent.model} {agent.engine_version}".strip() or "—")),
        (_label("money"), *_money(bill, view)),
        (_label("budget"), *_budget(bill)),
        *_plan_budget(agent),
        (_label("context"), Span(window, limit_tone(filled)), *share_bar(filled, _BAR)),
    ]


def _money(bill: Bill, view: TeamView) -> Line:
    if bill.partial:
        return (Span(why_no_money(view), "dim"),)
    return (Span(format_bill(bill), "bold"),)


def _budget(bill: Bill) -> Line:
    if bill.budget is None:
        return (Span("none", "dim"),)
    if bill.share is None:
        return (Span(f"{bill.budget}; how much of it is used is not known", "warning"),)
    return (
        Span(f"{format_percent(bill.share)} of {bill.budget}", limit_tone(bill.share)),
        *share_bar(bill.share, _BAR),
    )


def _plan_budget(agent: AgentView) -> list[Line]:
    """Return the line about the budget of the plan that it carries out, if that has one."""
    amount = pricing.budget_or_none(agent.terms.given.budget) if agent.terms is not None else None
    return [(_label("plan"), Span(f"{amount} from its approval on"))] if amount is not None else []


def _token_lines(bill: Bill) -> list[Line]:
    lines: list[Line] = [
        (
            _label("tokens" if not at else ""),
            Span(f"{format_count(getattr(bill.tokens, kind)):>7}  "),
            Span(words, "dim"),
        )
        for at, (kind, words) in enumerate(_KINDS)
    ]
    hits = format_percent(hit_rate(bill.tokens))
    if bill.tokens.estimated:
        lines.append(
            (_label(""), Span(f"{'~' + format_count(bill.tokens.estimated):>7}  "), Span("of these estimated", "dim"))
        )
    lines.append((_label("cache hits"), Span(f"{hits:>7}  "), Span("of all prompts", "dim")))
    if bill.tokens.untold:
        told = (_label(""), Span(f"{bill.tokens.untold:>7}  "), Span("turns whose tokens were not told", "dim"))
        lines.append(told)
    if bill.tokens.web_uses:
        lines.append((_label("web"), Span(f"{bill.tokens.web_searches:>7}  "), Span("searches", "dim")))
        lines.append((_label(""), Span(f"{bill.tokens.web_fetches:>7}  "), Span("pages", "dim")))
    return lines


def _call_line(call: Call) -> Line:
    used = call.usage
    cells = (
        format_clock(call.ts), format_duration(call.seconds) or "—",
        *(format_count(getattr(used, kind)) for kind, _ in _KINDS),
        format_percent(hit_rate(used)), format_money(call.usd) if call.usd is not None else "—",
    )  # fmt: skip
    text = "".join(pad(cell, size, "right") for cell, (_, size) in zip(cells, _CALL, strict=True))
    note = "  summary" if call.summary else f"  web {used.web_uses}" if used.web_uses else ""
    return (Span(text), Span(note, "dim"), Span(_missed(call.miss), "warning"))


def _missed(miss: CacheMiss | None) -> str:
    """Return why a call did not find in the prompt cache what it could have; empty if nothing was missed."""
    return f"  {miss.reason.replace('_', ' ')}" if miss is not None and miss.tokens else ""


def _label(text: str) -> Span:
    return Span(f"{text:<{_LABEL}}", "dim")


_SENT = 8
_BEGIN = _SENT + 1 + AUTHOR + 1
_RULE = "unread"


class MailRows:
    """The rows of an agent's Mail tab. Those of messages that were shown before are kept while they look the same."""

    def __init__(self) -> None:
        self._shows: tuple[object, ...] = ()
        self._rows: Sequence[CollapsibleRow] = ()
        self._made: dict[str, tuple[tuple[object, ...], CollapsibleRow]] = {}

    def read(
        self,
        letters: Sequence[MessageView],
        sent: Sequence[MessageView],
        box: MailboxInfo,
        yours: Container[str],
        width: int,
        asked: Sequence[Request] = (),
        *,
        lead: str = LEAD,
    ) -> Sequence[CollapsibleRow]:
        """Return a row for each message, oldest first, with a rule before unread ones; the same if nothing changed.

        What the user and the `lead` say to each other is shown in full. `yours` are the mailboxes that the user reads,
        where no worker picks up mail. `asked` are the requests that messages may refer to.
        """
        looks = (localtime(box.now)[:3], width, yours, lead)
        shows = (letters, sent, replace(box, now=0), asked, looks)
        if shows != self._shows:
            self._shows = shows
            first_unread = next((each.message.id for each in unread_of(letters, box)), None)
            void = void_of([*letters, *sent], asked)
            known, self._made = self._made, {}
            rows: list[CollapsibleRow] = []
            for letter in sorted([*letters, *sent], key=lambda each: each.message.ts):
                ident = letter.message.id
                if ident == first_unread:
                    rows.append(CollapsibleRow(_RULE, (Span(" not read yet ".center(width - MARK, "─"), "dim"),)))
                follows_from = (letter, void.get(ident), looks)
                key = f"{letter.message.to} {ident}"
                made = known.get(key)
                if made is None or made[0] != follows_from:
                    made = (follows_from, _mail_row(letter, box, yours, width - MARK, void.get(ident), lead))
                self._made[key] = made
                rows.append(made[1])
            self._rows = rows
        return self._rows


def _mail_row(
    letter: MessageView, box: MailboxInfo, yours: Container[str], width: int, void: str | None, lead: str
) -> CollapsibleRow:
    if {letter.message.from_, letter.message.to} == {OPERATOR, lead}:
        return _spoken(letter, box, width)
    return _folded(letter, box, yours, width, void)


def mail_head(width: int) -> Line:
    """Return the column titles."""
    clock = clock_width(width - MARK)
    left = (Span(f"{'SENT':<{_SENT}} {'WHO':<{AUTHOR}} MESSAGE", "dim"),)
    return spread(left, (Span(f" {'PICKED':>{clock}} {'TURN':>{clock}}", "dim"),), width - MARK)


def _folded(
    letter: MessageView, box: MailboxInfo, yours: Container[str], width: int, void: str | None
) -> CollapsibleRow:
    message = letter.message
    head = partial(_mail_line, letter, box, yours, width, void)
    body = partial(message_body, letter, box.now, width, void)
    return CollapsibleRow(f"{message.to} {message.id}", head, body=body, texts=(message.content,))


def _mail_line(letter: MessageView, box: MailboxInfo, yours: Container[str], width: int, void: str | None) -> Line:
    message = letter.message
    left = (
        Span(format_sent(message.ts, box.now, _SENT) + " ", "dim"), _who(letter, box.name), *void_mark(void),
        Span(mail.verb(message), "dim"), say(headline(message)),
    )  # fmt: skip
    times = (Span(" " * (2 * clock_width(width) + 2)),) if message.to in yours else times_line(letter, width)
    return spread(left, times, width)


def _who(letter: MessageView, name: str) -> Span:
    """Return the author; for mail of `name`, an arrow and the recipient."""
    message = letter.message
    who = f"→ {display_name(message.to)}" if message.from_ == name else display_name(message.from_)
    return Span(pad_name(one_line(who), AUTHOR) + " ", "dim" if message.from_ == name else "")


def _spoken(letter: MessageView, box: MailboxInfo, width: int) -> CollapsibleRow:
    """Return a message of the talk with the lead, in full."""
    message = letter.message
    words = message.content if message.type == "result" else describe_message(message)
    times = times_line(letter, width) if message.to == box.name else ()
    room = width - _BEGIN - 2 * (clock_width(width) + 1) - 1
    first, *more = wrap(words.strip(), max(1, room)) or ("",)
    author = Span(pad_name(one_line(display_name(message.from_)), AUTHOR) + " ", "bold")
    sent = Span(format_sent(message.ts, box.now, _SENT) + " ", "dim")
    head = spread((sent, author, Span(first)), times, width)
    rest = tuple((Span(" " * _BEGIN + piece),) for piece in more)
    return CollapsibleRow(f"{message.to} {message.id}", head, rest, texts=(message.content,))


TABS: tuple[Tab, ...] = (
    Tab("Now", lambda name: (WorkOf(name), CrashOf(name)), _now, follows=True),
    Tab("Mail", lambda name: (MailTo(name), MailFrom(name)), folds=_mail, head=mail_head, follows=True,
        nothing="no mail yet"),
    Tab("Transcript", lambda name: (WorkOf(name),), folds=_transcript, follows=True,
        nothing="nothing in its journal yet"),
    Tab("Tasks", lambda _: (), _tasks, nothing="it owns no task"),
    Tab("Files", lambda _: (TouchedFiles(),), folds=_files, head=file_head,
        nothing="no file changed with file tools", below="changes made by shell commands are not tracked here"),
    Tab("Process", lambda name: (CrashOf(name), ProcessOf(name)), _process),
    Tab("Cost", lambda name: (CallsOf(name),), _cost),
)  # fmt: skip
"""The tabs from left to right."""

NAMES = tuple(tab.name for tab in TABS)
