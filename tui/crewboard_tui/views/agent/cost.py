"""The Cost tab: an agent's money, context, tokens by kind, and latest model calls."""

from collections.abc import Sequence

from crewboard.readmodel.team import AgentView, TeamView
from crewboard.readmodel.usage import Bill, Call, bill_agent, hit_rate
from crewboard_tui.render import formats
from crewboard_tui.render.lines import Line, Span, crop, pad, say
from crewboard_tui.render.money import bar, context_share, money_of, near, percent, why_no_money

_LABEL = 11
_BAR = 20
_KINDS = (("input", "in"), ("output", "out"), ("cache_read", "from the cache"), ("cache_write", "into the cache"))
_CALL = (("TIME", 9), ("TOOK", 6), ("IN", 7), ("OUT", 7), ("CACHED", 7), ("WRITTEN", 8), ("HIT", 5), ("COST", 7))


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
    window = f"{percent(filled)} of {formats.count(agent.context.limit)}" if filled is not None else "—"
    return [
        (_label("model"), say(agent.model or "—")),
        (_label("money"), *_money(bill, view)),
        (_label("budget"), *_budget(bill)),
        (_label("context"), Span(window, near(filled)), *bar(filled, _BAR)),
    ]


def _money(bill: Bill, view: TeamView) -> Line:
    if bill.partial:
        return (Span(why_no_money(view), "dim"),)
    return (Span(money_of(bill), "bold"),)


def _budget(bill: Bill) -> Line:
    if bill.budget is None:
        return (Span("none", "dim"),)
    if bill.share is None:
        return (Span(f"{bill.budget}; how much of it is used is not known", "warning"),)
    return (Span(f"{percent(bill.share)} of {bill.budget}", near(bill.share)), *bar(bill.share, _BAR))


def _token_lines(bill: Bill) -> list[Line]:
    lines: list[Line] = [
        (
            _label("tokens" if not at else ""),
            Span(f"{formats.count(getattr(bill.tokens, kind)):>7}  "),
            Span(words, "dim"),
        )
        for at, (kind, words) in enumerate(_KINDS)
    ]
    hits = percent(hit_rate(bill.tokens))
    return [*lines, (_label("cache hits"), Span(f"{hits:>7}  "), Span("of all prompts", "dim"))]


def _call_line(call: Call) -> Line:
    used = call.usage
    cells = (
        formats.clock(call.ts), formats.took(call.seconds) or "—",
        *(formats.count(getattr(used, kind)) for kind, _ in _KINDS),
        percent(hit_rate(used)), formats.money(call.usd) if call.usd is not None else "—",
    )  # fmt: skip
    text = "".join(pad(cell, size, "right") for cell, (_, size) in zip(cells, _CALL, strict=True))
    return (Span(text), Span("  summary" if call.summary else "", "dim"))


def _label(text: str) -> Span:
    return Span(f"{text:<{_LABEL}}", "dim")
