"""What only a lead does: hire, ask for plans and review them, find an owner for a task, pass on what its team writes.

A plan is reviewed when it arrives: the operator's orders are looked up in the conversation then. Whether plans are the
lead's to review shows in its tools.
"""

import re
from collections.abc import Generator, Iterable

from crewboard.names import OPERATOR
from crewboard.offline.conversation import HIRE_PROMPT, Call, Done, Entry, Mail
from crewboard.offline.phrasebook import Order, book, understand
from crewboard.offline.results import entries
from crewboard.offline.work import Steps, Work, inputs, refused

_REQUEST = re.compile(r"\bplan-\w+")
_MEMBER = re.compile(r"(\S+) \((\S+)\) (.*)")
_YOURS = "Plans are the operator's to review: approve or reject it yourself."
_SAYS = {"result": "reports", "error": "could not go on", "message": "writes", "broadcast": "sends to every agent"}


def is_from_operator(mail: Mail) -> bool:
    """Return True if the mail holds orders: a lead takes them from the operator only."""
    return mail.author == OPERATOR or mail.kind == HIRE_PROMPT


def hear(work: Work, mail: Mail) -> Steps:
    """Pass on mail of the team, and review the plans among it; never take it for an order."""
    if mail.kind == "plan_approval_request":
        return (yield from _hear_plan(work, mail))
    return f"{mail.author} {_SAYS[mail.kind]}: {mail.text.strip()}" if mail.kind in _SAYS else ""


# ------------------------------------------------------------------------------------------------------ hiring


def hire(work: Work, order: Order) -> Steps:
    """Hire an agent; one that waits for the operator to approve its plan works in the background."""
    reviews = "review_plan" in work.talk.tools
    done = yield from _spawn(order.having(background="yes") if "plan" in order.words and not reviews else order)
    if not done.ok:
        return refused(done)
    who = f"{order.name} ({order.words['type']})"
    if "plan" in order.words:
        waits = "" if reviews else f" Then its plan waits for the operator. {_YOURS}"
        return f"{who} is at work, and submits a plan before it writes or runs anything.{waits}"
    if done.input.get("background"):
        return f"{who} is at work in the background. I pass its result on when it comes."
    text = done.text.strip().removeprefix(f"{order.name}: ")
    return f"{who} answered:" + (f"\n\n{text}" if "\n" in text else f" {text}")


def _spawn(order: Order) -> Generator[Call, Done, Done]:
    errand = order.words.get("errand", "Wait for mail.")
    words = {**order.words, "errand": errand[:1].upper() + errand[1:]}
    return (yield Call("spawn_agent", inputs(order.phrase.steps[0].input, words), f"Hiring {order.name}."))


def _hiring(name: str, kind: str, **more: str) -> Order:
    phrase = next(phrase for phrase in book().lead.values() if phrase.kind == "spawn")
    return Order(phrase, {"name": name, "type": kind, "clause": "", **more})


def ask_for_plan(work: Work, order: Order) -> Steps:
    """Give an agent work that needs a plan; hire the agent if there is none of that name."""
    errand = order.words.get("errand", "your work")
    done = yield Call("request_plan", {"teammate": order.name, "task": f"Submit a plan first: {errand}"})
    if done.unavailable:
        return refused(done)
    if not done.ok:
        return (yield from hire(work, _hiring(order.name, "code", errand=errand, plan="yes")))
    waits = "" if "review_plan" in work.talk.tools else f" The plan then waits for the operator. {_YOURS}"
    return f"{order.name} submits a plan before it writes or runs anything.{waits}"


# ----------------------------------------------------------------------------------------------------- reviews


def review(work: Work, order: Order) -> Steps:
    """Decide on the plan that came before the order; else the order stands for the next one."""
    whose = f"{order.name}'s plan" if order.name else "the next plan"
    if "review_plan" not in work.talk.tools:
        return f"I cannot review: {whose} waits for the operator as soon as it is submitted. {_YOURS}"
    waiting = [order.words["request"]] if "request" in order.words else _waiting(work.talk.before, order.name)
    if len(waiting) > 1:
        return f"Several plans wait: {', '.join(waiting)}. Tell me which one."
    if waiting:
        return (yield from _decide(waiting[0], order))
    return f"I {order.words['decision'].lower()} {whose} when it arrives."


def _decide(request: str, order: Order) -> Steps:
    approve = order.words["decision"].lower() in {"approve", "accept"}
    feedback = {"feedback": order.words["feedback"]} if "feedback" in order.words else {}
    done = yield Call("review_plan", {"request_id": request, "approve": approve, **feedback})
    if not done.ok:
        return f"{refused(done)}. {_YOURS}"
    said = f" My feedback: {feedback['feedback']}" if feedback else ""
    return f"I {'approved' if approve else 'rejected'} {f'{order.name}’s' if order.name else 'the'} plan.{said}"


def _hear_plan(work: Work, mail: Mail) -> Steps:
    request = _request_of(mail)
    decided = {str(done.input.get("request_id")) for done in work.seen if done.tool == "review_plan"}
    if request in decided:
        return ""
    used = sum(_request_of(one) in decided for one in _plans(work.talk.entries) if one.author == mail.author)
    orders = [one for one in _reviews(work.talk.entries) if one.name in ("", mail.author)][used:]
    if "review_plan" in work.talk.tools and orders:
        return (yield from _decide(request, orders[0].having(name=mail.author)))
    ask = f"Tell me to approve {mail.author}'s plan, or to reject it and why."
    return f"{mail.author} submitted a plan.\n\n{mail.text.strip()}\n\n{ask}"


def _plans(known: Iterable[Entry]) -> list[Mail]:
    return [one for one in known if isinstance(one, Mail) and one.kind == "plan_approval_request"]


def _request_of(mail: Mail) -> str:
    # The worker puts the id of the request before the plan.
    found = _REQUEST.search(mail.text)
    return found[0] if found else ""


def _waiting(known: tuple[Entry, ...], author: str) -> list[str]:
    """Return the newest plan of each agent, or of `author`, that nothing was decided about."""
    decided = {done.input.get("request_id") for done in known if isinstance(done, Done) and done.tool == "review_plan"}
    newest = {mail.author: _request_of(mail) for mail in _plans(known) if author in ("", mail.author)}
    return [request for request in newest.values() if request not in decided]


def _reviews(known: Iterable[Entry]) -> list[Order]:
    """Return the operator's orders to decide on plans, each good for one plan."""
    mail = [one for one in known if isinstance(one, Mail) and is_from_operator(one)]
    orders = [order for one in mail for order in understand(one.text, lead=True) if isinstance(order, Order)]
    return [order for order in orders if order.phrase.kind == "review" and "request" not in order.words]


# ------------------------------------------------------------------------------------------------------- tasks


def create_task(work: Work, order: Order) -> Steps:
    """Put a task on the board; a task for a type goes to an agent of that type, hired if there is none."""
    kind = order.words.get("type", "")
    if not kind:
        return (yield from work.carry_out(order))
    listed = yield Call("list_team")
    members = [found for line in entries(listed) if (found := _MEMBER.match(line)) and found[2] == kind]
    running = sorted((one for one in members if "not running" not in one[3]), key=lambda one: "idle" not in one[3])
    told = ""
    if not running:
        told = yield from hire(work, _hiring(book().called(kind), kind))
    name = running[0][1] if running else book().called(kind)
    return f"{told}\n{(yield from work.carry_out(order.having(name=name)))}".strip()


KINDS = {"spawn": hire, "plan": ask_for_plan, "review": review, "task": create_task}
"""What is done about the kinds of orders that need more than their steps."""
