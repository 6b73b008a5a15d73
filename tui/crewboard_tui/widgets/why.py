"""Why something needs the operator: the evidence, in the words of whoever must decide."""

from crewboard.records import Request
from crewboard.view.autopsy import Autopsy
from crewboard.view.fold import AgentView, Need, TeamView
from crewboard_tui import fmt
from crewboard_tui.lines import Line, Span, say, wrap
from crewboard_tui.widgets.need_rows import held_by
from crewboard_tui.widgets.plan_text import plan_lines

_LABEL = 11


def why_lines(need: Need, view: TeamView, autopsy: Autopsy | None, now: float, width: int) -> list[Line]:
    """The why-pane of one need."""
    agent = view.agent(need.agent)
    if need.kind == "death" and autopsy is not None and autopsy.agent == need.agent:
        return death_lines(autopsy, now, width)
    request = view.request(need.request_id) if need.request_id else None
    if request is not None:
        return _request_lines(request, view, need, width)
    facts = [
        ("what", need.summary),
        ("since", f"{fmt.clock(need.since)}, {fmt.long_age(now - need.since)} ago"),
        ("holds", held_by(view, need)),
        *(_agent_facts(agent) if agent else []),
    ]
    return fact_lines(facts, width)


def death_lines(autopsy: Autopsy, now: float, width: int) -> list[Line]:
    """How an agent died and what it left."""
    lived = f", {fmt.long_age(autopsy.at - autopsy.began)} old" if autopsy.began is not None else ""
    pid = f", pid {autopsy.pid}" if autopsy.pid else ""
    head = (
        f"{autopsy.how} at {fmt.clock(autopsy.at)}, {fmt.long_age(now - autopsy.at)} ago; run {autopsy.run}{lived}{pid}"
    )
    tool = autopsy.last_tool
    outcome = "" if tool is None or tool.finished else "   (outcome unknown)"
    freed = ", ".join(f"#{task.id} {task.subject}" for task in autopsy.freed)
    unread = f"{autopsy.unread} not read"
    unread += f" (from {', '.join(autopsy.unread_from)})" if autopsy.unread_from else ""
    lines: list[Line] = [(Span(piece, "error"),) for piece in wrap(head, width, "  ")]
    lines += fact_lines(
        [
            ("last tool", f"{tool.text}{outcome}" if tool else "none in this run"),
            ("task", f"{freed}: back on the board" if freed else ""),
            ("mail", unread if autopsy.unread else ""),
            ("last lines", "\n".join(autopsy.log_lines) or "worker.log is empty"),
        ],
        width,
    )
    return lines


def _request_lines(request: Request, view: TeamView, need: Need, width: int) -> list[Line]:
    payload = request.payload
    lines = fact_lines([("holds", held_by(view, need)), ("risk", str(payload.get("risk") or ""))], width)
    body = payload.get("plan") or payload.get("question") or payload.get("summary") or ""
    lines += plan_lines(str(body), width)
    options = payload.get("options")
    if isinstance(options, list):
        lines += [(Span(f"  {at}  ", "key"), say(str(option))) for at, option in enumerate(options, 1)]
    return lines


def _agent_facts(agent: AgentView) -> list[tuple[str, str]]:
    usage = f"{agent.usage.cpu_percent:.0f}% CPU, {fmt.size(agent.usage.rss_bytes)}" if agent.usage else ""
    return [
        ("doing", agent.doing),
        ("process", f"pid {agent.pid}, run {agent.run}{', ' + usage if usage else ''}" if agent.alive else "none"),
        ("last error", agent.last_error or ""),
    ]


def fact_lines(facts: list[tuple[str, str]], width: int) -> list[Line]:
    """Names and values, a value on as many lines as it needs; facts without a value are left out."""
    lines: list[Line] = []
    for name, value in facts:
        if not value:
            continue
        for at, piece in enumerate(wrap(value, max(1, width - _LABEL))):
            lines.append((Span(f"{'' if at else name:<{_LABEL}}", "dim"), Span(piece)))
    return lines
