"""Limits of an agent and of its team: model calls of an assignment, tokens or money."""

from dataclasses import dataclass

from crewboard.errors import BadDataError
from crewboard.pricing import Budget, stated_budget
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

    def __init__(self, recorder: RunState, answers: Results) -> None:
        self._recorder = recorder
        self._answers = answers

    def check(self) -> Reached | None:
        """What limit stands in the way of another model call; warns when a budget is nearly used up."""
        recorder = self._recorder
        assignment, flags = recorder.conversation.assignment, recorder.spec.flags
        if assignment is not None and assignment.calls >= flags.max_turns:
            return Reached(f"reached its limit of {flags.max_turns} model calls for one assignment", budget=False)
        for whose, budget, share in self._shares():
            if share >= 1:
                return Reached(f"{whose} budget of {budget} is used up", budget=True)
            if share >= WARN_AT:
                self._warn(f"{whose} budget of {budget} is used up to {share:.0%}")
        return None

    def _shares(self) -> list[tuple[str, Budget, float]]:
        recorder, conversation = self._recorder, self._recorder.conversation
        found = []
        if (own := stated_budget(recorder.spec.flags.budget)) is not None:
            found.append(("its", own, own.share(conversation.tokens, conversation.cost_usd)))
        if (team := stated_budget(roster.load(recorder.agent.team).budget)) is not None:
            tokens, cost = self._used_by_team()
            found.append(("the team's", team, team.share(tokens, cost)))
        return found

    def _used_by_team(self) -> tuple[Tokens, float]:
        """Everybody's use: of the others as their status says, of this agent as it knows itself."""
        recorder = self._recorder
        tokens, cost = recorder.conversation.tokens, recorder.conversation.cost_usd or 0.0
        for member in roster.load(recorder.agent.team).members:
            if member.name == recorder.agent.name:
                continue
            try:
                status = agents.status(recorder.agent.team.agent(member.name))
            except BadDataError:
                continue
            if status is not None:
                tokens, cost = tokens + status.tokens, cost + (status.cost_usd or 0.0)
        return tokens, cost

    def _warn(self, words: str) -> None:
        """Tell the model and whom it reports to, once in a conversation."""
        recorder = self._recorder
        if recorder.conversation.warned:
            return
        notice = f"{words}. Bring your work to an end that others can go on from."
        recorder.append(Intake(ts=recorder.now(), cursor=recorder.conversation.cursor, notices=[notice], warned=True))
        ident = mailbox.derived_id(recorder.agent.name, "budget", recorder.spec.run, words)
        self._answers.send("budget_warning", words, ident=ident)
