"""Money, shares and bars as they are shown everywhere: a price that is not known is a dash, never $0."""

from crewboard.readmodel.team import TeamView
from crewboard.readmodel.usage import WINDOW, Bill, bill_team
from crewboard.records import Context
from crewboard_tui.render import formats
from crewboard_tui.render.lines import Line, Span

NEARLY = 0.8
"""From this share on a limit is near."""


def money_of(bill: Bill) -> str:
    """Dollars; `+` where some of the tokens have no price, a dash where none of them has."""
    if bill.usd is None:
        return "—"
    return formats.money(bill.usd) + ("+" if bill.partial else "")


def why_no_money(view: TeamView) -> str:
    """Why nothing is said in dollars; the table of prices may well have a price that does not count here."""
    return (
        f"tokens only: {'the embedded model is' if view.model_backend == 'offline' else 'these models are'} not priced"
    )


def spent(view: TeamView, rate: float | None) -> str:
    """What the team has used, of how much, and how fast, in dollars an hour."""
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
    """A share in percent in at most five cells, rounded down so that 100% is all of it."""
    if share is None:
        return "—"
    whole = int(round(100 * share, 6))
    return f"{whole}%" if whole < 1000 else ">999%"  # noqa: PLR2004  how often over says nothing more


def near(share: float | None) -> str:
    """The tone of a share of something that ends."""
    if share is None:
        return "dim"
    return "error" if share >= 1 else "warning" if share >= NEARLY else ""


def bar(share: float | None, width: int) -> Line:
    """A share as a bar behind a blank; nothing where it is not known."""
    if share is None:
        return ()
    full = min(width, round(share * width))
    return (Span(" " + "▮" * full, near(share)), Span("▯" * (width - full), "dim"))


def context_share(context: Context) -> float | None:
    """How full the model's window is, 0 to 1."""
    return context.used / context.limit if context.limit else None
