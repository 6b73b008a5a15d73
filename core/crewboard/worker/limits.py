"""Limits of an agent, of the agents that hired it, and of its team: model calls per assignment, tokens, money."""

from collections.abc import Iterable
from dataclasses import dataclass

from crewboard.records.agents import HireOptions, Spec
from crewboard.records.events import Intake
from crewboard.store import mailbox, roster
from crewboard.store.json_records import CachedFile
from crewboard.worker.conversation import Assignment
from crewboard.worker.results import Results
from crewboard.worker.run_state import RunState

WARN_AT = 0.8


@dataclass(frozen=True)
class ReachedLimit:
    """A limit that is used up.

    `is_budget` is False for the number of model calls, `by_terms` True for the budget of the assignment's own plan: its
    end ends the assignment, not the run.
    """

    text: str
    is_budget: bool
    by_terms: bool = False


def _used_up(shares: Iterable[roster.BudgetShare]) -> ReachedLimit | None:
    # The others end the run, in which this one has no meaning any more.
    for share in sorted(shares, key=lambda each: each.by_terms):
        if (text := roster.used_up([share])) is not None:
            return ReachedLimit(text, is_budget=not share.by_terms, by_terms=share.by_terms)
    return None


def _uncounted(shares: Iterable[roster.BudgetShare], model: str) -> ReachedLimit | None:
    """Return a budget in money, which a model without a price would never reach."""
    share = next((each for each in shares if each.budget.usd is not None), None)
    if share is None:
        return None
    text = (
        f"{share.whose} budget of {share.budget} cannot be counted: the price of {model} is unknown; add it to "
        ".crewboard/models.toml, or give the budget in tokens"
    )
    return ReachedLimit(text, is_budget=not share.by_terms, by_terms=share.by_terms)


class Limits:
    """The limits of one worker and its team, compared with what they used."""

    def __init__(self, run_state: RunState, results: Results, *, is_priced: bool) -> None:
        self._run_state = run_state
        self._results = results
        self._is_priced = is_priced
        self._spec = CachedFile(run_state.agent.spec, Spec)

    def check(self) -> ReachedLimit | None:
        """Return the limit that forbids another model call. Warn once if a budget is nearly used up."""
        shares = self._shares()
        reached = self._reached_turns(self._run_state.conversation.assignment) or self._reached(shares)
        if reached is not None:
            return reached
        for each in shares:
            if each.share >= WARN_AT:
                self._warn(f"{each.whose} budget of {each.budget} is used up to {each.share:.0%}")
        return None

    def may_continue(self) -> bool:
        """Return True if a limit stopped the assignment and was raised since."""
        held = self._run_state.conversation.held
        return held is not None and self._reached_turns(held) is None and self.reached_budget() is None

    def reached_budget(self) -> ReachedLimit | None:
        """Return the budget that is used up, or that cannot be counted."""
        return self._reached(self._shares())

    def _reached(self, shares: list[roster.BudgetShare]) -> ReachedLimit | None:
        return _used_up(shares) or (None if self._is_priced else _uncounted(shares, self._run_state.spec.model))

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

    def _shares(self) -> list[roster.BudgetShare]:
        """Return the budgets that this agent draws on."""
        return roster.budgets(self._run_state.team, self._run_state.name, self._run_state.used())

    def _warn(self, text: str) -> None:
        """Tell the model and the agent that it reports to, once per conversation."""
        run_state = self._run_state
        if run_state.conversation.warned:
            return
        told = f"{text}. Finish your work now, in a state from which others can continue."
        run_state.append(
            Intake(ts=run_state.now(), cursor=run_state.conversation.cursor, instructions=[told], warned=True)
        )
        ident = mailbox.derived_id(run_state.name, "budget", run_state.spec.run, text)
        self._results.send("budget_warning", text, ident=ident)
