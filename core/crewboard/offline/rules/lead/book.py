"""What a lead knows of plans, out of its conversation: which wait for it, and what the operator said of them."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from crewboard.names import OPERATOR
from crewboard.offline.ask import Ask
from crewboard.offline.conversation import HIRE_PROMPT, Done, Entry, Mail
from crewboard.offline.rules.lead.orders import Errand, Hire, Review
from crewboard.offline.rules.lead.parse import parse

_WAITS = re.compile(r"^(\S+) waits for you: plan_approval (\S+?)\.(?:\s|$)")
_ASKS = re.compile(r"request_id: (\S+)\s*")
_DECIDED = re.compile(r"the plan of (\S+) is (\w+)")


def is_from_operator(mail: Mail) -> bool:
    """Whether the mail is an order: nobody else gives a lead any."""
    return mail.author == OPERATOR or mail.kind == HIRE_PROMPT


def request_in(text: str) -> tuple[str, str]:
    """The id of the request that a plan came with, and the plan."""
    found = _ASKS.match(text)
    return (found[1], text[found.end() :].strip()) if found else ("", text.strip())


@dataclass
class Book:
    """Plans and orders about them. An order is good for one plan."""

    waiting: dict[str, str] = field(default_factory=dict)
    """Request and author of each plan that waits, the oldest first."""
    decided: dict[str, str] = field(default_factory=dict)
    """How the newest plan of an agent was decided, until another is wanted of it."""
    closed: set[str] = field(default_factory=set)
    """Requests that were answered, or that an answer was tried for."""
    standing: list[Review] = field(default_factory=list)
    """Orders for plans that are still to come."""

    def order_for(self, author: str) -> Review | None:
        """What the operator said of the next plan of `author`."""
        return next((order for order in self.standing if order.name in ("", author)), None)

    def fitting(self, order: Review) -> list[str]:
        """The requests that an order is about."""
        if order.request_id:
            return [order.request_id]
        return [request for request, author in self.waiting.items() if order.name in ("", author)]

    def read(self, entry: Entry) -> None:
        """Take in what happened next."""
        match entry:
            case Mail(kind="plan_approval_request"):
                self._wait(request_in(entry.text)[0], entry.author)
            case Mail() if is_from_operator(entry):
                self._order(entry.text)
            case Done(tool="review_plan"):
                self._decide(entry)
            case Done(tool="spawn_agent", ok=True):
                if found := _WAITS.match(entry.text):
                    self._wait(found[2], found[1])
                elif entry.input.get("plan_required"):
                    self.decided.pop(str(entry.input.get("name")), None)
            case Done(tool="request_plan", ok=True):
                self.decided.pop(str(entry.input.get("teammate")), None)

    def _wait(self, request: str, author: str) -> None:
        """A plan waits, and none that its author handed in before."""
        if request in self.closed:
            return
        self.waiting = {other: by for other, by in self.waiting.items() if by != author}
        self.waiting[request] = author

    def _order(self, text: str) -> None:
        """The operator gives orders; what was said of the plan for earlier work is not good for new work."""
        wanted: set[str] = set()
        for order in parse(text):
            if isinstance(order, Hire | Errand) and order.plan:
                wanted.add(order.name)
                self.standing = [old for old in self.standing if old.name != order.name]
            elif isinstance(order, Review) and order.decision is not None and not order.request_id:
                has_plan = order.name in self.waiting.values()
                if order.name not in self.decided or order.name in wanted or has_plan:
                    self.standing.append(order)

    def _decide(self, done: Done) -> None:
        request = str(done.input.get("request_id"))
        found = _DECIDED.search(done.text)
        author = self.waiting.pop(request, found[1] if found else "")
        self.closed.add(request)
        if done.ok and found:
            self.decided[author] = found[2]
        order = self.order_for(author)
        if order is not None:
            self.standing.remove(order)


def book_of(entries: Iterable[Entry]) -> Book:
    """What `entries` say."""
    book = Book()
    for entry in entries:
        book.read(entry)
    return book


def known_to(ask: Ask) -> Book:
    """What was known when a step was taken, the same each time that it is walked again."""
    seen = {id(entry) for entry in ask.before}
    return book_of([*ask.before, *(done for done in ask.walk.made if id(done) not in seen)])
