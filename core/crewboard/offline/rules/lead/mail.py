"""Mail of the team to its lead: passed on to the operator, and never taken for an order."""

from crewboard.offline.ask import Ask, Steps
from crewboard.offline.rules.lead.plans import hear_plan

_SAYS = {"result": "reports", "error": "could not go on", "message": "writes", "broadcast": "tells everybody"}


def hear(ask: Ask) -> Steps | None:
    """What is done about mail that is not the operator's; None where nothing is."""
    if ask.kind == "plan_approval_request":
        return hear_plan(ask)
    return _pass_on(ask) if ask.kind in _SAYS else None


def _pass_on(ask: Ask) -> Steps:
    yield from ()
    text = ask.text.strip()
    return f"{ask.author} {_SAYS[ask.kind]}:" + (f"\n\n{text}" if "\n" in text else f" {text}")
