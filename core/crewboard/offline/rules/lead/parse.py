"""What the operator says to a lead, as orders: each is read by itself first, and joined with its neighbours then."""

import re
from collections.abc import Callable
from dataclasses import replace

from crewboard.offline.ask import paths
from crewboard.offline.rules.lead.cut import DEEDS, FILLER, MODAL, cut
from crewboard.offline.rules.lead.errand_words import parse_errand
from crewboard.offline.rules.lead.hire_words import parse_hires
from crewboard.offline.rules.lead.orders import (
    Assign,
    Errand,
    Hire,
    Left,
    NewTask,
    Order,
    Other,
    Review,
    Shutdown,
)  # fmt: skip
from crewboard.offline.rules.lead.review_words import parse_review
from crewboard.offline.rules.lead.task_words import parse_task
from crewboard.offline.rules.lead.team_words import parse_broadcast, parse_create_team, parse_shutdown, parse_whole
from crewboard.offline.rules.lead.words import NAME

_I = re.IGNORECASE | re.DOTALL

_LEAVE = re.compile(FILLER + r"(?:do not|don['’]?t|never|no need to)\b.*", _I)
_COURTESY = re.compile(
    FILLER + r"(?:thanks?(?: you)?|please|ok(?:ay)?|good|great|go ahead|do (?:it|this|that)"
    r"|(?:report|let me know|keep me (?:posted|informed))\b.{0,80}"
    r"|wait\s+(?:for|until|till)\b.{0,80}"
    r"|(?:when|once|as soon as)\b.{0,60}\b(?:arrives?|comes?|submits?\b.{0,30}|(?:is|was|are|has|have)\b.{0,30}))\W*",
    _I,
)
_TELL_ME = re.compile(FILLER + r"(?:tell|inform|notify|give|show|send)\s+(?:me|us)\b", _I)
"""What a lead does anyway with what those say whom it hired."""

_LAST = re.compile(
    FILLER + r"(?:tell|ask|have|let|get|send|message|notify|inform|shut\s+down|stop|dismiss|terminate|request|give|to)"
    r"\s+(him|her|them|it)\b"
    rf"|{FILLER}(he|she|it|they)\s+(?:{MODAL}|{DEEDS})\s|{FILLER}shut\s+(him|her|them|it)\s+down\b",
    re.IGNORECASE,
)
_WANTS_PLAN = re.compile(
    FILLER + r"(?:require|demand|request|ask for)\s+a\s+plan(?:\s+(?:first|from (?:him|her|it|them)))*\W*",
    re.IGNORECASE,
)
_TOGETHER = re.compile(
    rf"(?P<verb>{FILLER}(?:have|let|get|ask|tell|message)\s+)(?P<names>{NAME}(?:\s+and\s+{NAME})+)(?P<rest>\s.*)", _I
)
_LASTS = re.compile(r"\b(his|her|its|their)(?=\s+(?:\w+\s+)?(?:plan|shut ?down)\b)", re.IGNORECASE)


def parse(text: str) -> list[Order]:
    """All orders in a text, in the order in which they are to be done."""
    orders: list[Order] = []
    last = ""
    for clause in cut(text):
        for order in _read(_with_name(clause, last)):
            if last and isinstance(order, Other) and _is_told_anyway(order):
                continue
            _join(orders, order, last)
            last = _named_in(order) or last
    return _in_order(orders)


def _is_told_anyway(order: Other) -> bool:
    return _TELL_ME.match(order.text) is not None and not paths(order.text)


def _named_in(order: Order) -> str:
    """Who is meant by "him" and "it" behind an order."""
    if isinstance(order, Hire | Errand | Review):
        return order.name
    return order.names[-1] if isinstance(order, Shutdown) and order.names else ""


def _read(clause: str) -> list[Order]:
    """What one clause orders."""
    if _COURTESY.fullmatch(clause):
        return []
    if _LEAVE.fullmatch(clause):
        return [Left(clause)]
    if together := _TOGETHER.fullmatch(clause):
        names = re.findall(NAME, together["names"], re.IGNORECASE)
        return [order for name in names for order in _read(f"{together['verb']}{name}{together['rest']}")]
    if hires := parse_hires(clause):
        return list(hires)
    return [next((order for reader in _READERS if (order := reader(clause)) is not None), Other(clause))]


_READERS: tuple[Callable[[str], Order | None], ...] = (
    parse_whole,
    parse_create_team,
    parse_shutdown,
    parse_review,
    parse_task,
    parse_broadcast,
    parse_errand,
)


def _with_name(clause: str, last: str) -> str:
    """Who was named last in the place of "him", "she" and "its"."""
    if not last:
        return clause
    if _WANTS_PLAN.fullmatch(clause):
        return f"request a plan from {last}"
    clause = _LASTS.sub(f"{last}'s", clause, count=1)
    if found := _LAST.match(clause):
        start, end = next(found.span(group) for group in range(1, 4) if found[group])
        clause = clause[:start] + last + clause[end:]
    return clause


def _join(orders: list[Order], order: Order, last: str) -> None:
    """Put an order behind the others, or into the one that it says more of."""
    match order:
        case Errand():
            _join_errand(orders, order)
        case Assign():
            place = _place(orders, lambda task: isinstance(task, NewTask) and not task.owner and not task.kind)
            if place is None:
                orders.append(order)
            elif isinstance(task := orders[place], NewTask):
                orders[place] = replace(task, owner=order.owner, kind=order.kind)
        case Review():
            before = orders[-1] if orders else None
            name = order.name or last
            if isinstance(before, Review) and before.decision is None and before.name in ("", name):
                orders.pop()
            orders.append(order if order.request_id or order.every else replace(order, name=name))
        case _:
            orders.append(order)


def _join_errand(orders: list[Order], errand: Errand) -> None:
    """Who is hired here is hired for its errand, and one that needs a plan is told so from its start."""
    place = _place(orders, lambda order: isinstance(order, Hire | Errand) and order.name == errand.name)
    known = orders[place] if place is not None else None
    if place is not None and isinstance(known, Hire | Errand) and errand.plan and not errand.text:
        orders[place] = replace(known, plan=True)
    elif place is not None and isinstance(known, Hire) and not known.errand:
        orders[place] = replace(known, errand=errand.text, plan=known.plan or errand.plan)
    elif place is not None and isinstance(known, Errand) and known.plan and not known.text and not errand.plan:
        orders[place] = replace(known, text=errand.text)
    else:
        orders.append(errand)


def _place(orders: list[Order], fits: Callable[[Order], bool]) -> int | None:
    return next((place for place in reversed(range(len(orders))) if fits(orders[place])), None)


def _in_order(orders: list[Order]) -> list[Order]:
    """Who is spoken of in somebody's errand is hired first: mail finds only who is there."""
    hires = {order.name: place for place, order in enumerate(orders) if isinstance(order, Hire)}
    placed: dict[int, Order] = {}
    for place in range(len(orders)):
        waiting = [place]
        while waiting:
            first = _needed_first(orders[waiting[-1]], hires, {*placed, *waiting})
            if first is None:
                placed.setdefault(waiting[-1], orders[waiting.pop()])
            else:
                waiting.append(first)
    return list(placed.values())


def _needed_first(order: Order, hires: dict[str, int], settled: set[int]) -> int | None:
    words = re.findall(r"[a-z][\w-]*", order.errand.lower()) if isinstance(order, Hire) else []
    return next((hires[word] for word in words if word in hires and hires[word] not in settled), None)
