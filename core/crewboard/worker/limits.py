"""Limits of an agent and its team: model calls per assignment, tokens, money."""

from dataclasses import dataclass

from crewboard.errors import BadDataError
from crewboard.pricing import Budget, budget_or_none
from crewboard.records import Intake, Tokens
from crewboard.store import agents, mailbox, roster
from crewboard.worker.results import Results
from crewboard.worker.run_state import RunState

WARN_AT = 0.8


@dataclass(frozen=True)
class ReachedLimit:
    """A limit that is used up. `is_budget` is False for the number of model calls."""

    text: str
    is_budget: bool


class Limits:
    """Compares what one worker and its team used with their limits."""

    def __init__(self, run_state: RunState, results: Results) -> None:
        self._run_state = run_state
        self._results = results

    def check(self) -> ReachedLimit | None:
        """Return the limit that forbids another model call. Warn once if a budget is nearly used up."""
        run_state = self._run_state
        assignment, flags = run_state.conversation.assignment, run_state.spec.flags
        if assignment is not None and assignment.calls >= flags.max_turns:
            return ReachedLimit(
                f"reached its limit of {flags.max_turns} model calls for one assignment", is_budget=False
            )
        for whose, budget, share in self._shares():
            if share >= 1:
                return ReachedLimit(f"{whose} budget of {budget} is used up", is_budget=True)
            if share >= WARN_AT:
                self._warn(f"{whose} budget of {budget} is used up to {share:.0%}")
        return None

    def _shares(self) -> list[tuple[str, Budget, float]]:
        """Return each budget: whose it is, and which share of it is used."""
        run_state, conversation = self._run_state, self._run_state.conversation
        found = []
        if (own := budget_or_none(run_state.spec.flags.budget)) is not None:
            found.append(("its", own, own.share(conversation.tokens, conversation.cost_usd)))
        if (team := budget_or_none(roster.load(run_state.team).budget)) is not None:
            tokens, cost = self._used_by_team()
            found.append(("the team's", team, team.share(tokens, cost)))
        return found

    def _used_by_team(self) -> tuple[Tokens, float]:
        """Return what the whole team used: this agent, the others by their status, and those that were removed."""
        run_state = self._run_state
        config = roster.load(run_state.team)
        removed = config.removed_total
        tokens = run_state.conversation.tokens + removed.tokens
        cost = (run_state.conversation.cost_usd or 0.0) + (removed.cost_usd or 0.0)
        for member in config.members:
            if member.name == run_state.name:
                continue
            try:
                status = agents.status(run_state.team.agent(member.name))
            except BadDataError:
                continue
            if status is not None:
                tokens, cost = tokens + status.tokens, cost + (status.cost_usd or 0.0)
        return tokens, cost

    def _warn(self, text: str) -> None:
        """Tell the model and the agent that it reports to, once per conversation."""
        run_state = self._run_state
        if run_state.conversation.warned:
            return
        notice = f"{text}. Finish your work now, in a state from which others can continue."
        run_state.append(
            Intake(ts=run_state.now(), cursor=run_state.conversation.cursor, notices=[notice], warned=True)
        )
        ident = mailbox.derived_id(run_state.name, "budget", run_state.spec.run, text)
        self._results.send("budget_warning", text, ident=ident)
