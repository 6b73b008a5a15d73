"""The limits of a worker: model calls of an assignment, and the budgets that its agent draws on."""

from collections.abc import Callable
from dataclasses import dataclass

from crewboard.records.base import counted
from crewboard.store import mailbox, roster
from crewboard.worker.conversation import Assignment
from crewboard.worker.run_state import RunState

WARN_AT = 0.8
"""Share of a budget at which the model and the agent that it reports to are warned."""


@dataclass(frozen=True)
class ReachedLimit:
    """A limit that forbids another model call: it is used up, or is a budget that cannot be counted.

    `text` says which, for people; `budget` is None for the limit on the number of model calls.
    """

    text: str
    budget: roster.BudgetShare | None = None


class Limits:
    """The limits of one agent and its team, compared with what they have used.

    `is_priced` is False if the price of the agent's model is unknown, so that no budget in money can be counted. `send`
    sends a warning to the agent that this one reports to, as `Results.send` does.
    """

    def __init__(self, run_state: RunState, send: Callable[..., None], *, is_priced: bool) -> None:
        self._run_state = run_state
        self._send = send
        self._is_priced = is_priced
        self._spec = run_state.agent.spec.watch()

    def check(self) -> ReachedLimit | None:
        """Return the limit that forbids another model call; None if there is none.

        If a budget is used up to `WARN_AT`, warn the model, and the agent that this one reports to, once per
        conversation.
        """
        run_state, shares = self._run_state, self._shares()
        reached = self.reached(run_state.conversation.assignment, shares)
        for each in shares if reached is None else ():
            # Once per conversation.
            if each.share >= WARN_AT and not run_state.conversation.warned:
                text = f"{each.whose} budget of {each.budget} is used up to {each.share:.0%}"
                told = f"{text}. Finish your work now, in a state from which others can continue."
                run_state.take_in(instructions=[told], warned=True)
                ident = mailbox.derived_id(run_state.name, "budget", run_state.spec.run, text)
                self._send("budget_warning", text, ident=ident)
        return reached

    def reached(
        self, assignment: Assignment | None = None, shares: list[roster.BudgetShare] | None = None
    ) -> ReachedLimit | None:
        """Return the limit that forbids another model call; None if there is none.

        The limit on calls counts only if an `assignment` is given. The budgets are those in `shares`; without these,
        all budgets that the agent draws on.
        """
        # Limits may be changed while the run lasts.
        most = (self._spec.get() or self._run_state.spec).flags.max_turns
        if assignment is not None and assignment.calls - assignment.granted >= most:
            return ReachedLimit(f"reached its limit of {counted(most, 'model call')} for one assignment")
        shares = self._shares() if shares is None else shares
        # The others end the run, in which a budget of the assignment has no meaning any more.
        for share in sorted(shares, key=lambda each: each.by_terms):
            if (text := roster.used_up([share])) is not None:
                return ReachedLimit(text, share)
        for share in shares:
            # A model without a price would never reach a budget in money.
            if share.budget.usd is not None and not self._is_priced:
                text = (
                    f"{share.whose} budget of {share.budget} cannot be counted: the price of "
                    f"{self._run_state.spec.model} is unknown; add it to .crewboard/models.toml, or give the budget in "
                    "tokens"
                )
                return ReachedLimit(text, share)
        return None

    def _shares(self) -> list[roster.BudgetShare]:
        """Return the budgets that this agent draws on, with the share of each that is used."""
        return roster.budgets(self._run_state.team, self._run_state.name, self._run_state.used())
