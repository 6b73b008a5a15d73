"""Limits of an agent and of its team: model calls of an assignment, tokens or money."""

from dataclasses import dataclass

from crewboard.errors import BadDataError
from crewboard.pricing import Budget, budget_or_none
from crewboard.records import Intake, Tokens
from crewboard.store import agents, mailbox, roster
from crewboard.worker.results import Results
from crewboard.worker.run_state import RunState

WARN_AT = 0.8


@dataclass(frozen=True)
class Reached:
    """A limit that is used up, in words."""

    words: str
    budget: bool


class Limits:
    """Watches what one worker uses."""

    def __init__(self, run_state: RunState, results: Results) -> None:
        self._run_state = run_state
        self._results = results

    def check(self) -> Reached | None:
        """What limit stands in the way of another model call; warns when a budget is nearly used up."""
        run_state = self._run_state
        assignment, flags = run_state.conversation.assignment, run_state.spec.flags
        if assignment is not None and assignment.calls >= flags.max_turns:
            return Reached(f"reached its limit of {flags.max_turns} model calls for one assignment", budget=False)
        for whose, budget, share in self._shares():
            if share >= 1:
                return Reached(f"{whose} budget of {budget} is used up", budget=True)
            if share >= WARN_AT:
                self._warn(f"{whose} budget of {budget} is used up to {share:.0%}")
        return None

    def _shares(self) -> list[tuple[str, Budget, float]]:
        run_state, conversation = self._run_state, self._run_state.conversation
        found = []
        if (own := budget_or_none(run_state.spec.flags.budget)) is not None:
            found.append(("its", own, own.share(conversation.tokens, conversation.cost_usd)))
        if (team := budget_or_none(roster.load(run_state.agent.team).budget)) is not None:
            tokens, cost = self._used_by_team()
            found.append(("the team's", team, team.share(tokens, cost)))
        return found

    def _used_by_team(self) -> tuple[Tokens, float]:
        """Everybody's use: of the others as their status says, of this agent as it knows itself."""
        run_state = self._run_state
        tokens, cost = run_state.conversation.tokens, run_state.conversation.cost_usd or 0.0
        for member in roster.load(run_state.agent.team).members:
            if member.name == run_state.agent.name:
                continue
            try:
                status = agents.status(run_state.agent.team.agent(member.name))
            except BadDataError:
                continue
            if status is not None:
                tokens, cost = tokens + status.tokens, cost + (status.cost_usd or 0.0)
        return tokens, cost

    def _warn(self, words: str) -> None:
        """Tell the model and whom it reports to, once in a conversation."""
        run_state = self._run_state
        if run_state.conversation.warned:
            return
        notice = f"{words}. Bring your work to an end that others can go on from."
        run_state.append(
            Intake(ts=run_state.now(), cursor=run_state.conversation.cursor, notices=[notice], warned=True)
        )
        ident = mailbox.derived_id(run_state.agent.name, "budget", run_state.spec.run, words)
        self._results.send("budget_warning", words, ident=ident)
