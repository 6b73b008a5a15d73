"""The rows of Needs-you, most urgent first, and the explanation of one need: the evidence for the decision."""

from crewboard.readmodel.crash_report import CrashReport
from crewboard.readmodel.needs import tasks_blocked_by
from crewboard.readmodel.team import AgentView, Need, TeamView
from crewboard.records import Request
from crewboard_tui.actions.filters import matches
from crewboard_tui.render import formats
from crewboard_tui.render.lines import Line, Span, clip, one_line, pad, say, spread, wrap
from crewboard_tui.render.looks import TASK_LOOKS
from crewboard_tui.render.markdown import markdown_lines
from crewboard_tui.widgets.alert_bar import NEED_LOOKS
from crewboard_tui.widgets.line_list import Row

_LABEL = 11
_HOLDS_UP = "holds up"

_FREES_FROM = 50
"""Below this width the summary takes the whole line."""

_WORD_FROM = 60
"""From this width the word is shown before the number."""


def need_key(need: Need) -> str:
    """Return the key of a need, the same in every reading."""
    return f"{need.kind}:{need.agent}:{need.request_id or ''}"


def find_need(view: TeamView, key: str | None) -> Need | None:
    """Return the need with this key, if it still exists."""
    return next((need for need in view.needs if need_key(need) == key), None)


def need_rows(view: TeamView, now: float, width: int, wanted: str = "") -> list[Row]:
    """Return a row for every need that matches the filter."""
    shown = [need for need in view.needs if matches(f"{need.agent} {need.kind} {need.summary}", wanted)]
    word = "frees " if width >= _WORD_FROM else ""
    frees = [_frees(view, need, word) if width >= _FREES_FROM else "" for need in shown]
    longest = max(map(len, frees), default=0)
    return [
        Row(need_key(need), _need_line(need, pad(what, longest), now, width))
        for need, what in zip(shown, frees, strict=True)
    ]


def _need_line(need: Need, frees: str, now: float, width: int) -> Line:
    look = NEED_LOOKS[need.kind]
    right = (
        Span(pad(formats.long_age(now - need.since), 7, "right")),
        Span(f"  {frees}" if frees else "", "dim"),
    )
    left = (Span(f"{look.glyph} ", look.tone), Span(pad(need.agent, 11) + " ", "bold"), say(need.summary))
    return spread(left, right, width)


def _frees(view: TeamView, need: Need, word: str) -> str:
    """Return the tasks that an answer unblocks, after `word`: `frees #14`, `frees 2 tasks`."""
    tasks = tasks_blocked_by(view, need)
    return f"{word}#{tasks[0].id}" if len(tasks) == 1 else f"{word}{len(tasks)} tasks" if tasks else ""


def held_by(view: TeamView, need: Need) -> str:
    """Return the tasks that a need blocks, by number and subject."""
    return ", ".join(f"#{task.id} {task.subject}" for task in tasks_blocked_by(view, need))


def explanation_lines(need: Need, view: TeamView, report: CrashReport | None, now: float, width: int) -> list[Line]:
    """Return the explanation of one need."""
    agent = view.agent(need.agent)
    if need.kind == "death" and report is not None and report.agent == need.agent:
        return crash_lines(report, now, width)
    request = view.request(need.request_id) if need.request_id else None
    if request is not None:
        return _request_lines(request, view, need, width)
    facts = [
        ("what", need.summary),
        ("since", f"{formats.clock(need.since)}, {formats.long_age(now - need.since)} ago"),
        (_HOLDS_UP, held_by(view, need)),
        *(_agent_facts(agent) if agent else []),
    ]
    return fact_lines(facts, width)


def crash_lines(report: CrashReport, now: float, width: int) -> list[Line]:
    """Return how an agent died and what it left."""
    lived = f", {formats.long_age(report.at - report.began)} old" if report.began is not None else ""
    pid = f", pid {report.pid}" if report.pid else ""
    ago = formats.long_age(now - report.at)
    head = f"{report.how} at {formats.clock(report.at)}, {ago} ago; run {report.run}{lived}{pid}"
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
    lines = (f"{formats.clock(step.ts)} {step.kind:<5} {one_line(step.text)}" for step in report.last_activity)
    return "\n".join(clip(line, max(1, width - _LABEL)) for line in lines) or "nothing; worker.log is empty too"


def _request_lines(request: Request, view: TeamView, need: Need, width: int) -> list[Line]:
    payload = request.payload
    lines = fact_lines([(_HOLDS_UP, held_by(view, need)), ("risk", str(payload.get("risk") or ""))], width)
    body = payload.get("plan") or payload.get("question") or payload.get("summary") or ""
    lines += markdown_lines(str(body), width)
    options = payload.get("options")
    if isinstance(options, list):
        # No numbers: digits switch views and would not choose an option.
        lines += [(Span("  • ", "dim"), say(str(option))) for option in options]
    return lines


def _agent_facts(agent: AgentView) -> list[tuple[str, str]]:
    usage = f"{agent.usage.cpu_percent:.0f}% CPU, {formats.size(agent.usage.rss_bytes)}" if agent.usage else ""
    return [
        ("doing", agent.doing),
        ("process", f"pid {agent.pid}, run {agent.run}{', ' + usage if usage else ''}" if agent.alive else "none"),
        ("last error", agent.last_error or ""),
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
