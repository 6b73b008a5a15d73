"""Send mail from the operator or the lead, and record what the operator has read or acknowledged."""

from collections.abc import Callable, Iterable, Mapping

from pydantic import JsonValue

from crewboard import protocol, store
from crewboard.commands.context import Team
from crewboard.records import (
    LEAD,
    OPERATOR,
    CrewboardError,
    Message,
    OperatorState,
    StorageError,
    TryLaterError,
    UsageError,
    result_mark,
    task_mark,
)
from crewboard.store import AgentDirectory


def send(team: Team, to: str, text: str) -> Message:
    """Send text to an agent, the lead or the operator.

    Raises:
        UsageError: There is no such recipient, or the text is empty.
        StorageError: It could not be stored.
    """
    if not text.strip():
        raise UsageError("there is nothing to send: the text is empty")
    to = protocol.addressing.recipient(to, team.config)
    try:
        message = post(team, to, "message", text)
    except StorageError as error:
        raise StorageError(f"{_not_accepted(error, 1)}{error}") from error.__cause__
    team.note("message", to, message.id)
    return message


def broadcast(team: Team, text: str, to: list[str] | None = None) -> list[Message]:
    """Send one copy to each other agent, or to those named in `to`. Remove each name from `to` once its copy is sent.

    Raises:
        UsageError: The text is empty, or there is no recipient.
        StorageError: Some copies could not be sent; the message says which were.
    """
    if not text.strip():
        raise UsageError("there is nothing to send: the text is empty")
    names = to if to is not None else [m.name for m in team.config.members if m.name != team.by]
    if not names:
        raise UsageError("the team has no agent to send it to yet")
    known = team.config.names
    for name in names:
        protocol.addressing.require_recipient(name, known)
    ident = store.mailbox.new_id()
    sent: list[Message] = []
    try:
        send_to_each(names, lambda name: sent.append(post(team, name, "broadcast", text, broadcast_id=ident)))
    finally:
        for message in sent:
            team.note("broadcast", message.to, message.id)
    return sent


def send_to_each(left: list[str], send: Callable[[str], object]) -> None:
    """Call `send` for each name in `left`, and remove the name after it, so that a retry sends nothing twice.

    Raises:
        StorageError: A call failed after others succeeded; the message says which did.
    """
    names = list(left)
    for at, name in enumerate(names):
        try:
            send(name)
        except (CrewboardError, OSError) as error:
            state = _not_accepted(error, len(left))
            if not at and (not state or len(left) == 1):
                raise
            sent = f"sent to {', '.join(names[:at])}, but not to {', '.join(left)}: " if at else ""
            raise StorageError(f"{state}{sent}{error}") from error.__cause__ or error
        left.remove(name)


def _not_accepted(error: Exception, count: int) -> str:
    """Return which state of the machine prevents that messages are stored; an empty text if it is none."""
    trouble = store.files.trouble(error)
    messages = f"{count} message{'' if count == 1 else 's'}"
    return f"{trouble}: nothing was lost, {messages} not accepted; " if trouble else ""


def is_listening(team: Team, name: str) -> bool:
    """Return True if mail to `name` is read now, by a running worker or by the operator."""
    if protocol.addressing.is_operator_mailbox(name, team.config.names):
        return True
    return store.leases.is_held(team.directory.agent(name).lease)


def mark_read(team: Team, name: str, offset: int) -> None:
    """Record how far the operator has read one of its mailboxes."""
    _change_operator(team, lambda state: state.read.update({name: max(offset, state.read.get(name, 0))}))


def acknowledge(team: Team, name: str) -> None:
    """Record that the operator has seen how the newest run, or the newest assignment, of an agent ended.

    Raises:
        TryLaterError: The agent is running, and its last assignment did not fail.
        UsageError: It never ran.
    """
    agent = team.agent(name)
    run, status = _ended_run(agent), store.agents.status(agent)
    failed_at = status.failed_at if status is not None and status.failed is not None else 0
    if run is None and not failed_at:
        raise TryLaterError(f"{name} is running: there is nothing to acknowledge before it has ended")
    if run == 0:
        raise UsageError(f"{name} has not run yet: there is nothing to acknowledge; resume it, or remove it")

    def edit(state: OperatorState) -> None:
        if run is not None:
            state.acknowledged[name] = run
        # The failure of an ended run too: after a resume it is still the last assignment.
        if failed_at:
            state.failures[name] = failed_at

    _change_operator(team, edit)
    team.note("acknowledge", name)


def acknowledge_marks(team: Team, marks: Mapping[str, float], target: str = "") -> None:
    """Record that the operator has seen the items of `Need.marks`, each up to its version. With `target`, audit it."""
    if not marks:
        return
    _change_operator(team, lambda state: _mark_seen(state, marks))
    if target:
        team.note("acknowledge", target)


def acknowledge_results(team: Team, name: str) -> None:
    """Record that the operator has read all results of an agent so far."""
    acknowledge_marks(team, _result_marks(team, [name]))


def acknowledge_all(team: Team, names: Iterable[str]) -> None:
    """Record that the operator has seen the ends, results and failed tasks of these agents, removed ones included.

    Ignore those that are running.
    """
    runs = {name: _ended_run(team.directory.agent(name)) for name in names}
    ended = {name: run for name, run in runs.items() if run}
    if not ended:
        return
    failed = [task for task in store.tasks.load_all(team.directory) if task.status == "failed"]
    marks = _result_marks(team, ended) | {task_mark(task.id): float(task.rev) for task in failed}

    def edit(state: OperatorState) -> None:
        state.acknowledged.update(ended)
        _mark_seen(state, marks)

    _change_operator(team, edit)


def _result_marks(team: Team, names: Iterable[str]) -> dict[str, float]:
    sizes = {box: store.mailbox.size(team.directory, box) for box in (OPERATOR, LEAD)}
    return {result_mark(box, name): float(size) for name in names for box, size in sizes.items() if size}


def _mark_seen(state: OperatorState, marks: Mapping[str, float]) -> None:
    for mark, version in marks.items():
        state.needs[mark] = max(version, state.needs.get(mark, version))


def _ended_run(agent: AgentDirectory) -> int | None:
    """Return the newest run, 0 if there was none; None if it is still running."""
    # Read before the lease is probed: a run that begins in between must not count as ended.
    run = store.agents.last_run(agent)
    return None if store.leases.is_held(agent.lease) else run


def forget_acknowledged(team: Team, name: str) -> None:
    """Remove the acknowledgement for `name`: the next agent of that name starts at run 1 again."""
    state = store.json_files.load(team.directory.operator, OperatorState)

    def forget(state: OperatorState) -> None:
        state.acknowledged.pop(name, None)
        state.failures.pop(name, None)

    # Keep the marks of its results: the mailboxes that contain them are kept.
    if state is not None and (name in state.acknowledged or name in state.failures):
        _change_operator(team, forget)


def post(team: Team, to: str, kind: str, text: str, ident: str | None = None, **metadata: JsonValue) -> Message:
    """Store a message of any type in the mailbox of `to`, which must be on the team, and return it."""
    message = store.mailbox.compose(team.by, to, kind, text, ident=ident, ts=team.now(), metadata=metadata)
    return store.mailbox.send(team.directory, message, durable=True)


def _change_operator(team: Team, edit: Callable[[OperatorState], object]) -> None:
    def apply(old: OperatorState | None) -> OperatorState:
        state = old or OperatorState()
        edit(state)
        state.rev += 1
        return state

    store.json_files.change(
        team.directory.operator, team.directory.lock("operator"), OperatorState, apply, durable=True
    )
