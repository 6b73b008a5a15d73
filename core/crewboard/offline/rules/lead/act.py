"""What a lead does about each order, and what it says then: nothing that a tool did not say."""

from collections.abc import Callable
from typing import Any

from crewboard.offline.ask import Ask, Steps, bullets, refused
from crewboard.offline.conversation import Call, only_mail
from crewboard.offline.rules.lead import board, people, plans
from crewboard.offline.rules.lead.book import is_from_operator
from crewboard.offline.rules.lead.orders import (
    Assign,
    Broadcast,
    CreateTeam,
    DeleteTeam,
    Errand,
    Hire,
    Left,
    ListTeam,
    NewTask,
    Order,
    Other,
    ReadInbox,
    Review,
    Shutdown,
)  # fmt: skip
from crewboard.offline.rules.lead.parse import parse
from crewboard.offline.rules.lead.words import sentence
from crewboard.offline.rules.talk import first_line

General = Callable[[Ask], Steps | None]
"""What an agent of any type would do."""

_MOST_MAIL = 12
"""Messages that are named when the inbox is asked for."""


def dispatch(ask: Ask, general: General) -> Steps | None:
    """The steps for all that the operator wants, order by order; None if nothing of it is known."""
    orders = parse(ask.text)
    if all(isinstance(order, Other) for order in orders):
        return general(ask)
    return _one_after_the_other(orders, ask, general)


def _one_after_the_other(orders: list[Order], ask: Ask, general: General) -> Steps:
    told: list[str] = []
    for order in orders:
        steps = _other(order, ask, general) if isinstance(order, Other) else _DOES[type(order)](order, ask)
        text = yield from steps
        told.append(text)
    return "\n\n".join(dict.fromkeys(text for text in told if text))


def _other(order: Other, ask: Ask, general: General) -> Steps:
    steps = general(ask.about(order.text))
    return (yield from steps) if steps else f"I do not know how to do this: “{first_line(order.text)}”"


def _create_team(order: CreateTeam, _ask: Ask) -> Steps:
    if not order.name:
        return "A team needs a name; tell me to create a team called NAME."
    about = {"description": order.description} if order.description else {}
    done = yield Call("create_team", {"name": order.name, **about}, say=f"Naming the team {order.name}.")
    if not done.ok:
        return refused("create_team", done)
    described = f" Its description: {order.description}." if order.description else ""
    return f"{sentence(done.text)}{described}"


def _broadcast(order: Broadcast, _ask: Ask) -> Steps:
    done = yield Call("broadcast", {"content": order.content})
    if not done.ok:
        return refused("broadcast", done)
    return f"I told everybody: “{order.content}” {sentence(done.text)}"


def _read_inbox(_order: ReadInbox, ask: Ask) -> Steps:
    done = yield Call("read_inbox")
    if not done.ok:
        return refused("read_inbox", done)
    mail = [one for one in only_mail(ask.before) if not is_from_operator(one) and one.kind != "idle_notification"]
    told = f"My inbox: {done.text.strip() or 'nothing new'}."
    lines = [f"{one.kind} from {one.author}: {first_line(one.text)}" for one in mail[-_MOST_MAIL:]]
    return f"{told} What my team wrote before, the newest last:\n{bullets(lines)}" if lines else told


def _delete_team(_order: DeleteTeam, _ask: Ask) -> Steps:
    done = yield Call("delete_team")
    if not done.ok:
        return refused("delete_team", done)
    return f"I deleted the team. {sentence(done.text)}"


def _leave(order: Left, _ask: Ask) -> Steps:
    yield from ()
    return f"I leave that: “{first_line(order.text)}”"


_DOES: dict[type[Any], Callable[[Any, Ask], Steps]] = {
    CreateTeam: _create_team,
    Hire: people.hire,
    Errand: people.give,
    ListTeam: people.list_team,
    Shutdown: people.shut_down,
    NewTask: board.new_task,
    Assign: board.assign,
    Review: plans.review,
    Broadcast: _broadcast,
    ReadInbox: _read_inbox,
    DeleteTeam: _delete_team,
    Left: _leave,
}
"""What is done about each kind of order."""
