"""Steps about plans: review one, when the operator says so or when it comes."""

import re

from crewboard.offline.ask import Ask, Steps, refused
from crewboard.offline.conversation import Call, Done
from crewboard.offline.rules.lead.book import Book, book_of, known_to, request_in
from crewboard.offline.rules.lead.orders import Review
from crewboard.offline.rules.lead.words import sentence

_OPERATORS = re.compile(r"\bis for operator to answer\b")

_YOURS = "Where plans are yours to review, they wait among your own requests, and I cannot decide on them."


def review(order: Review, ask: Ask) -> Steps:
    """Decide on the plans that wait, or keep the order until there is one."""
    book = known_to(ask)
    requests = book.fitting(order)
    if order.decision is None:
        return _undecided(order, requests)
    if not requests:
        return _none_waits(order, book, ask)
    if len(requests) > 1 and not order.every:
        authors = ", ".join(book.waiting[request] for request in requests)
        return f"Several plans wait for me, of {authors}; tell me whose is meant."
    told = []
    for request in requests:
        said = yield from _decide(request, order)
        told.append(said)
    return "\n".join(told)


def _decide(request: str, order: Review) -> Steps:
    given: dict[str, object] = {"request_id": request, "approve": bool(order.decision)}
    given |= {"feedback": order.feedback} if order.feedback else {}
    done = yield Call("review_plan", given)
    return _decided(done)


def _decided(done: Done) -> str:
    if not done.ok:
        yours = " Plans are yours to review: approve or reject it yourself." if _OPERATORS.search(done.text) else ""
        return refused("review_plan", done).rstrip(".") + f".{yours}"
    feedback = done.input.get("feedback")
    return sentence(done.text) + (f" My feedback: {feedback}" if feedback else "")


def _undecided(order: Review, requests: list[str]) -> str:
    whose = f"of {order.name} " if order.name else ""
    if not requests:
        return f"No plan {whose}waits for me. {_YOURS}"
    return (
        f"A plan {whose}waits ({', '.join(requests)}). I am no language model and cannot judge it; tell me to approve "
        "or to reject it."
    )


def _none_waits(order: Review, book: Book, ask: Ask) -> str:
    """Why nothing is decided now. Where the plan came later on, what was said of it then is enough."""
    word = "approve" if order.decision else "reject"
    if order.name in book.decided and order not in book.standing:
        return f"No plan of {order.name} waits for me; the last one is {book.decided[order.name]} already."
    if _came_later(order, book, ask):
        return ""
    whose = f"of {order.name} " if order.name else ""
    return f"No plan {whose}waits for me yet; I will {word} the next one when it reaches me. {_YOURS}"


def _came_later(order: Review, book: Book, ask: Ask) -> bool:
    later = book_of(ask.talk.entries)
    return bool(later.closed - book.closed) and order not in later.standing


def hear_plan(ask: Ask) -> Steps:
    """A plan came: decide as the operator said, else pass it on."""
    request, plan = request_in(ask.text)
    book = known_to(ask)
    if request in book.closed:
        return ""
    order = book.order_for(ask.author)
    if order is not None:
        return (yield from _decide(request, order))
    if request in book_of(ask.talk.entries).closed:
        return ""
    return (
        f"{ask.author} hands in a plan ({request}):\n\n{plan}\n\n"
        f"Tell me to approve {ask.author}'s plan, or to reject it and why."
    )
