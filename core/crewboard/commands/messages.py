"""Mail from the operator or the lead, and what the operator has read."""

from collections.abc import Callable, Iterable

from pydantic import JsonValue

from crewboard.commands.context import Team
from crewboard.errors import CrewboardError, StorageError, TryLaterError, UsageError
from crewboard.protocol import addressing
from crewboard.records import Message, OperatorState
from crewboard.store import agents, json_files, leases, mailbox
from crewboard.store.layout import AgentDirectory


def send(team: Team, to: str, text: str) -> Message:
    """Send text to one of the team.

    Raises:
        UsageError: Nobody is called that, or there is nothing to say.
    """
    if not text.strip():
        raise UsageError("there is nothing to send: the text is empty")
    addressing.require_recipient(to, team.config.names)
    return post(team, to, "message", text)


def broadcast(team: Team, text: str, to: list[str] | None = None) -> list[Message]:
    """Send one copy to each other agent, or to those named in `to`, who leave it as each has its copy.

    Raises:
        UsageError: There is nothing to say, or nobody to say it to.
        StorageError: Some could not be reached; the error says who has it.
    """
    if not text.strip():
        raise UsageError("there is nothing to send: the text is empty")
    names = to if to is not None else [m.name for m in team.config.members if m.name != team.by]
    if not names:
        raise UsageError("there is nobody on the team yet")
    known = team.config.names
    for name in names:
        addressing.require_recipient(name, known)
    ident = mailbox.new_id()
    sent: list[Message] = []
    send_to_each(names, lambda name: sent.append(post(team, name, "broadcast", text, broadcast_id=ident)))
    return sent


def send_to_each(left: list[str], send: Callable[[str], object]) -> None:
    """Call `send` for each of `left`, who leave it one by one, so that trying again gives nobody the same twice.

    Raises:
        StorageError: It failed after some had it, and says who.
    """
    names = list(left)
    for at, name in enumerate(names):
        try:
            send(name)
        except (CrewboardError, OSError) as error:
            if not at:
                raise
            raise StorageError(f"sent to {', '.join(names[:at])}, but not to {', '.join(left)}: {error}") from error
        left.remove(name)


def is_listening(team: Team, name: str) -> bool:
    """Whether mail to `name` is read now: by a living worker, or by the operator."""
    if addressing.is_operator_mailbox(name, team.config.names):
        return True
    return leases.is_held(team.directory.agent(name).lease)


def mark_read(team: Team, name: str, offset: int) -> None:
    """Note how far the operator has read a mailbox of theirs."""
    _change_operator(team, lambda state: state.read.update({name: max(offset, state.read.get(name, 0))}))


def acknowledge(team: Team, name: str) -> None:
    """Note that the operator has seen how the newest run of an agent ended.

    Raises:
        TryLaterError: It lives, so that nothing has ended.
        UsageError: It never ran.
    """
    agent = team.agent(name)
    run = _ended_run(agent)
    if run is None:
        raise TryLaterError(f"{name} is alive: nothing to acknowledge before it has ended")
    if not run:
        raise UsageError(f"{name} has not run yet: nothing to acknowledge; resume it, or remove it")
    _change_operator(team, lambda state: state.acknowledged.update({name: run}))


def acknowledge_all(team: Team, names: Iterable[str]) -> None:
    """Note that the operator has seen how each of these ended who did, whether they are on the roster or not."""
    runs = {name: _ended_run(team.directory.agent(name)) for name in names}
    ended = {name: run for name, run in runs.items() if run}
    if ended:
        _change_operator(team, lambda state: state.acknowledged.update(ended))


def _ended_run(agent: AgentDirectory) -> int | None:
    """The newest run, 0 if there was none; None while it goes on."""
    run = agents.last_run(agent)  # before the lease: a run that begins meanwhile must not pass for one that ended
    return None if leases.is_held(agent.lease) else run


def forget_acknowledged(team: Team, name: str) -> None:
    """Note that no end of `name` was seen: who is hired by that name begins at run 1 again."""
    state = json_files.load(team.directory.operator, OperatorState)
    if state is not None and name in state.acknowledged:
        _change_operator(team, lambda state: state.acknowledged.pop(name, None))


def post(team: Team, to: str, kind: str, text: str, ident: str | None = None, **metadata: JsonValue) -> Message:
    """Put a message of any kind into the mailbox of `to`, who must be on the team, and return it."""
    message = mailbox.compose(team.by, to, kind, text, ident=ident, ts=team.now(), metadata=metadata)
    return mailbox.send(team.directory, message, durable=True)


def _change_operator(team: Team, edit: Callable[[OperatorState], object]) -> None:
    def apply(old: OperatorState | None) -> OperatorState:
        state = old or OperatorState()
        edit(state)
        state.rev += 1
        return state

    json_files.change(team.directory.operator, team.directory.lock("operator"), OperatorState, apply)
