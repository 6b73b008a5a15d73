"""What to reply to a request: the scenario of the agent that asks, else the rules for free prompts.

A worker whose window is filling asks for a summary in a request of its own, without tools.
"""

from collections.abc import Sequence

from crewboard.names import LEAD, OPERATOR
from crewboard.offline import policy
from crewboard.offline.conversation import HIRE_PROMPT, Call, Conversation, Mail, only_mail
from crewboard.offline.policy import Thought
from crewboard.offline.reply import Reply, Speed, of_thought
from crewboard.offline.scenario import Scenario, ScenarioAgent, Turn, fill, play
from crewboard.offline.wire import CountRequest

FREE_SPEED = Speed(delay=0.15, word=0.012)
"""How fast free prompts are answered: quick, and still seen to stream."""


_MOST_LINES = 60
_LONGEST_LINE = 200


def think(request: CountRequest, talk: Conversation, scenarios: Sequence[Scenario]) -> Reply:
    """The reply to a request, whose like always gets the same."""
    if not request.tools and "summarise" in talk.system.lower():
        return of_thought(Thought(summary(request.messages[-1].text)), FREE_SPEED)
    leaving = policy.asked_to_leave(talk)
    if leaving is not None:
        return of_thought(leaving, FREE_SPEED)
    agent = _scripted(talk, scenarios)
    reply = _play(talk, agent) if agent else None
    return reply or of_thought(policy.think(talk), FREE_SPEED)


def summary(transcript: str) -> str:
    """What an agent said and called, line by line, out of a transcript of its work."""
    lines = [line[:_LONGEST_LINE] for line in transcript.splitlines() if line.startswith("assistant")]
    told = "\n".join(lines[-_MOST_LINES:]) or "(nothing was said or called)"
    return f"An extract, as the embedded model is no language model and cannot summarise:\n\n{told}"


def _scripted(talk: Conversation, scenarios: Sequence[Scenario]) -> ScenarioAgent | None:
    # Who was interrupted listens, and does not go on with a script.
    if any(mail.kind == "interrupt" for mail in only_mail(talk.entries)):
        return None
    agents = (agent for scenario in scenarios for agent in scenario.agents)
    return next((one for one in agents if one.name == talk.name and one.prompt == talk.hire_prompt), None)


def _play(talk: Conversation, agent: ScenarioAgent) -> Reply | None:
    replies = [done for done in talk.replies if not _only_leaving(done)]
    turn, extra = play(agent.turns, replies)
    if turn is None:
        return None
    said = Thought(fill(turn.text, talk.done), tuple(_calls(turn, talk)))
    if not turn.calls and (mail := _waiting_mail(talk)):
        answer = policy.think_about(talk, mail, extra)
        said = answer if answer.calls else Thought(f"{said.text}\n\n{answer.text}")
    return of_thought(said, Speed(turn.delay, turn.word, turn.least))


def _only_leaving(done: Sequence[object]) -> bool:
    return bool(done) and all(getattr(call, "tool", "") == "shutdown_response" for call in done)


def _calls(turn: Turn, talk: Conversation) -> list[Call]:
    return [Call(call.tool, fill(call.input, talk.done)) for call in turn.calls]


def _waiting_mail(talk: Conversation) -> list[Mail]:
    """What was written while the script was running and calls for more than to be read."""
    return [
        mail
        for mail in only_mail(talk.span)
        if mail.kind not in {HIRE_PROMPT, *policy.SILENT}
        and (mail.author in {OPERATOR, LEAD} or policy.knows(talk, mail))
    ]
