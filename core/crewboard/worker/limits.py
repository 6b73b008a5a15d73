"""Limits of an agent, of the agents that hired it, and of its team: model calls per assignment, tokens, money."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from crewboard import store
from crewboard.pricing import Budget, budget_or_none
from crewboard.records import HireOptions, Intake, Spec, Status, Tokens
from crewboard.store import CachedFile, TeamDirectory
from crewboard.worker.conversation import Assignment
from crewboard.worker.results import Results
from crewboard.worker.run_state import RunState

WARN_AT = 0.8


@dataclass(frozen=True)
class ReachedLimit:
    """A limit that is used up. `is_budget` is False for the number of model calls."""

    text: str
    is_budget: bool


def used_up_budget(team: TeamDirectory, name: str) -> str | None:
    """Return which budget that the agent `name` draws on is used up, in words; None if none is."""
    reached = _used_up(_budgets_of(team, name))
    return reached.text if reached is not None else None


def _budgets_of(
    team: TeamDirectory, name: str, own: tuple[Tokens, float] | None = None
) -> list[tuple[str, Budget, float]]:
    """Return the budget of an agent and those of the agents that it was hired by: whose it is, which share is used.

    An agent draws on the budget of its hirer, which otherwise could hire more agents than it may pay for. `own` are the
    agent's own figures if they are newer than its status.
    """
    specs = {each: store.json_files.load_or_none(team.agent(each).spec, Spec) for each in store.roster.load(team).names}
    found = []
    for payer in _hirers(name, specs):
        spec = specs.get(payer)
        budget = budget_or_none(spec.flags.budget) if spec is not None else None
        if budget is None:
            continue
        payees = [each for each in specs if payer in _hirers(each, specs)]
        tokens, cost = _used_by(team, [each for each in payees if own is None or each != name])
        if own is not None:
            tokens, cost = tokens + own[0], cost + own[1]
        found.append(("its" if payer == name else f"{payer}'s", budget, budget.share(tokens, cost)))
    return found


def _hirers(name: str, specs: Mapping[str, Spec | None]) -> list[str]:
    """Return `name`, its hirer, the hirer of that, and so on."""
    chain: list[str] = []
    while name not in chain:
        chain.append(name)
        spec = specs.get(name)
        if spec is None:
            break
        name = spec.by
    return chain


def _used_by(team: TeamDirectory, names: Iterable[str]) -> tuple[Tokens, float]:
    """Return the tokens and the money in the status of these agents."""
    tokens, cost = Tokens(), 0.0
    for name in names:
        status = store.json_files.load_or_none(team.agent(name).status, Status)
        if status is not None:
            tokens, cost = tokens + status.tokens, cost + (status.cost_usd or 0.0)
    return tokens, cost


def _used_up(shares: Iterable[tuple[str, Budget, float]]) -> ReachedLimit | None:
    texts = (f"{whose} budget of {budget} is used up" for whose, budget, share in shares if share >= 1)
    return next((ReachedLimit(text, is_budget=True) for text in texts), None)


class Limits:
    """The limits of one worker and its team, compared with what they used."""

    def __init__(self, run_state: RunState, results: Results) -> None:
        self._run_state = run_state
        self._results = results
        self._spec = CachedFile(run_state.agent.spec, Spec)

    def check(self) -> ReachedLimit | None:
        """Return the limit that forbids another model call. Warn once if a budget is nearly used up."""
        shares = self._shares()
        reached = self._reached_turns(self._run_state.conversation.assignment) or _used_up(shares)
        if reached is not None:
            return reached
        for whose, budget, share in shares:
            if share >= WARN_AT:
                self._warn(f"{whose} budget of {budget} is used up to {share:.0%}")
        return None

    def may_continue(self) -> bool:
        """Return True if a limit stopped the assignment and was raised since."""
        held = self._run_state.conversation.held
        return held is not None and self._reached_turns(held) is None and self.reached_budget() is None

    def reached_budget(self) -> ReachedLimit | None:
        """Return the budget that is used up."""
        return _used_up(self._shares())

    def _reached_turns(self, assignment: Assignment | None) -> ReachedLimit | None:
        most = self._flags.max_turns
        if assignment is None or assignment.calls - assignment.granted < most:
            return None
        return ReachedLimit(f"reached its limit of {most} model calls for one assignment", is_budget=False)

    @property
    def _flags(self) -> HireOptions:
        """Return the options of this run; limits may be changed while it lasts."""
        spec = self._spec.get()
        return spec.flags if spec is not None else self._run_state.spec.flags

    def _shares(self) -> list[tuple[str, Budget, float]]:
        """Return each budget: whose it is, and which share of it is used."""
        run_state, conversation = self._run_state, self._run_state.conversation
        own = conversation.tokens, conversation.cost_usd or 0.0
        found = _budgets_of(run_state.team, run_state.name, own)
        if (team := budget_or_none(store.roster.load(run_state.team).budget)) is not None:
            tokens, cost = self._used_by_team()
            found.append(("the team's", team, team.share(tokens, cost)))
        return found

    def _used_by_team(self) -> tuple[Tokens, float]:
        """Return what the whole team used: this agent, the others by their status, and those that were removed."""
        run_state = self._run_state
        config = store.roster.load(run_state.team)
        conversation, removed = run_state.conversation, config.removed_total
        tokens, cost = _used_by(run_state.team, [name for name in config.names if name != run_state.name])
        own_cost = (conversation.cost_usd or 0.0) + (removed.cost_usd or 0.0)
        return conversation.tokens + removed.tokens + tokens, own_cost + cost

    def _warn(self, text: str) -> None:
        """Tell the model and the agent that it reports to, once per conversation."""
        run_state = self._run_state
        if run_state.conversation.warned:
            return
        notice = f"{text}. Finish your work now, in a state from which others can continue."
        run_state.append(
            Intake(ts=run_state.now(), cursor=run_state.conversation.cursor, notices=[notice], warned=True)
        )
        ident = store.mailbox.derived_id(run_state.name, "budget", run_state.spec.run, text)
        self._results.send("budget_warning", text, ident=ident)
