"""The usage of agents: tokens, dollars if prices are known, and the used share of a budget."""

import math
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import takewhile

from msgspec import Struct

from crewboard.pricing import Budget, budget_or_none
from crewboard.readmodel.team import AgentView, TeamView
from crewboard.records.agents import Tokens
from crewboard.records.events import BrokenReply, CacheMiss, Event, Reply, Summary
from crewboard.store.journal import JournalTail
from crewboard.store.layout import AgentDirectory

TAIL = 1024 * 1024
"""Bytes at the end of a journal in which model calls are looked for."""

WINDOW = 600.0
"""Seconds over which the rate of spending is measured."""

SHORTEST = 60.0
"""Seconds of activity below which a rate would be a guess."""

_MOST = 500

MINUTES = 1440
"""Most minutes with spending that are kept for an agent: a day of work without a pause."""


class Bill(Struct, frozen=True):
    """What an agent or a team has used, and its budget.

    `usd` is the cost in dollars, None if no price is known; `partial` says that `usd` leaves out tokens without a
    price.
    """

    tokens: Tokens
    usd: float | None
    partial: bool
    budget: Budget | None

    @property
    def share(self) -> float | None:
        """Return the used part of the budget, 1 is all; None if there is no budget, or the part is not known."""
        if self.budget is None or (self.budget.usd is not None and (self.usd is None or self.partial)):
            return None
        return self.budget.share(self.tokens, self.usd)


def bill_agent(agent: AgentView) -> Bill:
    """Return what one agent has used, over all of its runs."""
    unpriced = agent.status.cost_usd is None and agent.status.tokens != Tokens()
    budget = budget_or_none(agent.spec.flags.budget) if agent.spec else None
    return Bill(agent.status.tokens, agent.status.cost_usd, unpriced, budget)


def bill_team(view: TeamView) -> Bill:
    """Return what all agents of a team have used, including removed ones."""
    removed = view.removed
    unpriced = removed.cost_usd is None and removed.tokens != Tokens()
    bills = [*map(bill_agent, view.agents), Bill(removed.tokens, removed.cost_usd, unpriced, None)]
    known = [bill.usd for bill in bills if bill.usd is not None]
    return Bill(
        tokens=sum((bill.tokens for bill in bills), Tokens()),
        usd=sum(known) if known else None,
        partial=any(bill.partial for bill in bills),
        budget=budget_or_none(view.budget),
    )


def hit_rate(tokens: Tokens) -> float | None:
    """Return which part of the prompts came from the cache, from 0 to 1; None before the first prompt."""
    prompt = tokens.input + tokens.cache_read + tokens.cache_write
    return tokens.cache_read / prompt if prompt else None


class Call(Struct, frozen=True):
    """One call of the model: when it was answered, how many seconds that took if known, and what it used.

    `summary` says that the call only shortened the conversation. `miss` is why it read less from the prompt cache than
    it could have; None if the API did not say.
    """

    ts: float
    usage: Tokens
    usd: float | None
    seconds: float | None
    summary: bool = False
    miss: CacheMiss | None = None


def _calls(events: Iterable[Event]) -> Iterator[Call]:
    for event in events:
        if isinstance(event, Reply):
            yield Call(event.ts, event.usage, event.cost_usd, event.seconds, miss=event.cache_miss)
        elif isinstance(event, (Summary, BrokenReply)):
            yield Call(event.ts, event.usage, event.cost_usd, None, summary=isinstance(event, Summary))


class CallReader:
    """A reader of the model calls at the end of an agent's journal; with `span`, of its last `span` seconds alone."""

    def __init__(self, agent: AgentDirectory, span: float = math.inf) -> None:
        self._span = span
        self._is_cut = False
        self.calls: deque[Call] = deque(maxlen=_MOST)
        self._tail = JournalTail(agent.journal, TAIL)

    def read(self) -> deque[Call]:
        """Return the newest calls, the newest last."""
        if self._tail.restarted():
            self.calls.clear()
            self._is_cut = False
        for call in _calls(self._tail.read_new()):
            self.calls.append(call)
            while self.calls and self.calls[0].ts < self.calls[-1].ts - self._span:
                self.calls.popleft()
                self._is_cut = True
        return self.calls

    @property
    def known_since(self) -> float:
        """Return the time (epoch seconds) from which on every call is known; minus infinity if all calls are."""
        if self._is_cut and len(self.calls) < _MOST:
            return self.calls[-1].ts - self._span
        if self._tail.whole and len(self.calls) < _MOST:
            return float("-inf")
        return self.calls[0].ts if self.calls else float("inf")

    @property
    def first_at(self) -> float:
        """Return the time of the agent's first call; minus infinity if that is not kept, infinity if there is none."""
        return float("-inf") if self._is_cut else self.calls[0].ts if self.calls else float("inf")


class Spent(Struct, frozen=True):
    """What several model calls used: dollars, without calls that have no price, and tokens."""

    usd: float = 0
    tokens: int = 0

    def plus(self, usd: float, tokens: int) -> "Spent":
        """Return this spending with `usd` dollars and `tokens` tokens added."""
        return Spent(self.usd + usd, self.tokens + tokens)


class SpendingReader:
    """A reader of what an agent spent in each minute, from the end of its journal; it keeps at most `most` minutes."""

    def __init__(self, agent: AgentDirectory, most: int = MINUTES) -> None:
        self._most = most
        self.minutes: dict[int, Spent] = {}
        """What was spent in each minute, by the number of the minute since the epoch."""
        self.since = 0
        """The first minute that is known completely; 0 if the journal was read from its beginning."""
        self.count = 0
        """A number that changes with each call that is read and each journal that was replaced, and so when
        `minutes` do.
        """
        self._tail = JournalTail(agent.journal, TAIL)

    def read(self) -> None:
        """Read what was appended to the journal since the last call."""
        if self._tail.restarted():
            self.minutes.clear()
            self.since = 0
            self.count += 1
        for call in _calls(self._tail.read_new()):
            self.count += 1
            minute = int(call.ts // 60)
            if not (self.minutes or self._tail.whole):
                # The calls before it in this minute may have been left out.
                self.since = minute + 1
            self.minutes[minute] = self.minutes.get(minute, Spent()).plus(call.usd or 0, call.usage.total)
            while len(self.minutes) > self._most:
                # Not the first: a clock may be set back.
                oldest = min(self.minutes)
                del self.minutes[oldest]
                self.since = max(self.since, oldest + 1)


class Spending(Struct, frozen=True):
    """What a team spent in each minute, in their order. `since` is the first minute that is known; 0 if all are."""

    minutes: dict[int, Spent]
    since: int = 0


def spending(readers: Iterable[SpendingReader]) -> Spending:
    """Return what several agents spent together, in the minutes that are known of all of them."""
    known = list(readers)
    since = max((reader.since for reader in known), default=0)
    together: dict[int, Spent] = {}
    for reader in known:
        for minute, spent in reader.minutes.items():
            if minute >= since:
                together[minute] = together.get(minute, Spent()).plus(spent.usd, spent.tokens)
    return Spending(dict(sorted(together.items())), since)


def rate(readers: Iterable[CallReader], now: float) -> float | None:
    """Return dollars per hour over the last `WINDOW` seconds, or since the first call if that is later.

    None if that would be a guess: a call has no price, the time is too short, or calls were not read.
    """
    known = list(readers)
    calls = [reader.read() for reader in known]
    since = max(now - WINDOW, min((now, *(reader.first_at for reader in known))))
    # From the newest back: most of the calls that are kept are older.
    recent = [call for each in calls for call in takewhile(lambda call: call.ts >= since, reversed(each))]
    covered = all(reader.known_since <= since for reader in known)
    if not covered or now - since < SHORTEST or any(call.usd is None for call in recent):
        return None
    return round(sum(call.usd or 0 for call in recent) * 3600 / (now - since), 2)
