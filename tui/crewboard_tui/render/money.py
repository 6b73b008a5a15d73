"""Costs, shares and bars. An unknown price is shown as a dash, never as $0."""

from crewboard.readmodel.team import TeamView
from crewboard.readmodel.usage import WINDOW, Bill, bill_team
from crewboard.records import Context
from crewboard_tui.render import formats
from crewboard_tui.render.lines import Line, Span

NEARLY = 0.8
"""A limit counts as near from this share on."""


def money_of(bill: Bill) -> str:
    """Format a cost; `+` means that some tokens have no price, a dash that none has."""
    if bill.usd is None:
        return "—"
    return formats.money(bill.usd) + ("+" if bill.partial else "")


def why_no_money(view: TeamView) -> str:
    """Explain why no cost is shown in dollars."""
    return (
        f"tokens only: {'the offline model is' if view.model_backend == 'offline' else 'these models are'} not priced"
    )


def spent(view: TeamView, rate: float | None) -> str:
    """Format what the team has used, its limit, and its rate in dollars per hour."""
    bill = bill_team(view)
    parts = ["Cost"]
    if bill.usd is not None:
        parts.append(money_of(bill))
    if bill.budget is not None:
        parts.append(f"{percent(bill.share)} of the team's {bill.budget}")
    if rate is not None:
        parts.append(f"{formats.money(rate)}/h over the last {WINDOW / 60:.0f} min")
    if bill.partial:
        parts.append(why_no_money(view) if bill.usd is None else "+ no price for some of the tokens")
    return " · ".join(parts)


def percent(share: float | None) -> str:
    """Format a share in at most five cells, rounded down so that 100% means all of it."""
    if share is None:
        return "—"
    whole = int(round(100 * share, 6))
    # Above 999% the exact share does not matter.
    return f"{whole}%" if whole < 1000 else ">999%"  # noqa: PLR2004


def near(share: float | None) -> str:
    """Return the tone for a share of a limit."""
    if share is None:
        return "dim"
    return "error" if share >= 1 else "warning" if share >= NEARLY else ""


def bar(share: float | None, width: int) -> Line:
    """Return a share as a bar after a blank; empty if unknown."""
    if share is None:
        return ()
    full = min(width, round(share * width))
    return (Span(" " + "▮" * full, near(share)), Span("▯" * (width - full), "dim"))


def context_share(context: Context) -> float | None:
    """Return the used share of the model's context window, 0 to 1."""
    return context.used / context.limit if context.limit else None
