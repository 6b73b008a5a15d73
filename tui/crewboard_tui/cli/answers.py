"""The commands that answer each kind of need."""

from collections.abc import Iterable, Iterator

from crewboard.commands.cli_hint import CommandLine
from crewboard.readmodel.team import NEED_OF_REQUEST, Need, NeedKind
from crewboard.records import Request

READ = "read it"

_ANSWERS: dict[NeedKind, tuple[tuple[str, str], ...]] = {
    "death": (("resume", "resume {agent}"), ("acknowledge", "ack {agent}")),
    "plan": ((READ, "requests"), ("approve", "approve {id}"), ("refuse", "reject {id} --feedback TEXT")),
    "permission": (("approve", "approve {id}"), ("refuse", "reject {id} --feedback TEXT")),
    "question": (("answer", "answer {id} TEXT"),),
    "stuck": (("see why", "journal {agent}"), ("stop it", "stop {agent} --now")),
    "looping": (("tell it", "send {agent} TEXT"), ("stop it", "stop {agent}")),
    "failed_start": (("start it", "resume {agent}"), ("take it off the roster", "remove {agent}")),
}


def answers(need: Need | Request, typed: CommandLine) -> Iterator[tuple[str, str]]:
    """Yield each possible answer to a need or request, with the command that gives it."""
    if isinstance(need, Need):
        kind, agent, ident = need.kind, need.agent, need.request_id
    elif need.type in NEED_OF_REQUEST:
        kind, agent, ident = NEED_OF_REQUEST[need.type], need.from_, need.id
    # A shutdown request is answered by the agent that it asks.
    else:
        return
    for what, how in _ANSWERS[kind]:
        yield what, typed(how.format(agent=agent, id=ident))


def in_a_row(commands: Iterable[str]) -> str:
    """Join alternative commands into one line."""
    return "   or   ".join(commands)
