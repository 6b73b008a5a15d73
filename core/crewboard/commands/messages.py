"""Send mail from the operator or the lead, and record what the operator has read or acknowledged."""

import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from crewboard import media
from crewboard.commands.context import CommandLine, Team, command_for
from crewboard.errors import BadDataError, CrewboardError, StorageError, TryLaterError, UsageError
from crewboard.names import LEAD, OPERATOR, is_operator_mailbox, require_recipient
from crewboard.records.base import JsonValue, counted
from crewboard.records.messages import Message
from crewboard.records.requests import bound_to
from crewboard.records.team import Config, OperatorState, result_mark, task_mark
from crewboard.store import agents, leases, mailbox, tasks
from crewboard.store import files as store_files


def send(team: Team, to: str, text: str, attach: Sequence[Path] = ()) -> Message:
    """Send text to an agent, the lead or the operator, to an agent also with images and documents; return the message.

    Raises:
        UsageError: There is no such recipient, there is neither text nor a file, or a file cannot be attached.
        StorageError: The message could not be stored.
    """
    if not text.strip() and attach:
        text = "See what is attached."
    if not text.strip():
        raise UsageError("there is nothing to send: the text is empty")
    config = team.config
    to = config.recipient(to)
    files = read_attachments(team, [to], attach)
    kept = [agents.keep_media(team.directory.agent(to), *each) for each in files]
    metadata: dict[str, JsonValue] = {"attachments": [each.as_dict() for each in kept]} if kept else {}
    named = "".join(f"\n[attached: {media.describe(each.name, each.type, each.bytes)}]" for each in kept)
    try:
        message = _deliver(team, config, to, "message", f"{text}\n{named}" if named else text, **metadata)
    except StorageError as error:
        raise StorageError(f"{_not_accepted(error, 1)}{error}", away=error.away) from error.__cause__
    team.note("message", to, message.id)
    return message


def read_attachments(team: Team, names: Sequence[str], attach: Sequence[Path]) -> list[tuple[str, str, bytes]]:
    """Return name, media type and content of the files `attach`, which must be fit for messages to all of `names`.

    Raises:
        UsageError: A file cannot be read, the API does not take it, or a recipient takes none.
    """
    if not attach:
        return []
    files = []
    for path in attach:
        try:
            with path.open("rb") as file:
                data = file.read(max(media.MAX_PDF, media.MAX_IMAGE) + 1)
        except (OSError, ValueError) as error:
            raise UsageError(f"{path} cannot be attached: {getattr(error, 'strerror', None) or error}") from error
        kind = media.type_of(data)
        if kind is None:
            raise UsageError(
                f"{path} cannot be attached: it is no PNG, JPEG, GIF, WebP or PDF; put text into the message"
            )
        if (why := media.refusal(kind, data)) is not None:
            raise UsageError(f"{path} cannot be attached: {why}")
        files.append(("".join(sign if sign.isprintable() else "?" for sign in path.name)[:200], kind, data))
    config = team.config
    for name in names:
        to = config.recipient(name)
        is_agent = config.member(to) is not None
        why = team.lacks(to).get("attached files") if is_agent else "only agents of crewboard take files"
        if why is not None:
            raise UsageError(f"nothing can be attached to a message for {to}: {why}")
    return files


def broadcast(team: Team, text: str, to: list[str] | None = None) -> list[Message]:
    """Send a copy of a text to each other agent, or to those in `to`; return the messages.

    Each name is removed from `to` once its copy is sent, so that a retry sends nothing twice.

    Raises:
        UsageError: The text is empty, there is no recipient, or `to` has a name that is not on the team.
        StorageError: Some copies could not be sent; the message says which were.
    """
    if not text.strip():
        raise UsageError("there is nothing to send: the text is empty")
    names = to if to is not None else [m.name for m in team.config.members if m.name != team.by]
    if not names:
        raise UsageError("the team has no agent to send it to yet")
    config = team.config
    for name in names:
        require_recipient(name, config.names)
    ident = mailbox.new_id()
    sent: list[Message] = []

    def send_one(name: str) -> None:
        sent.append(_deliver(team, config, name, "broadcast", text, broadcast_id=ident))

    try:
        send_to_each(names, send_one)
    finally:
        for message in sent:
            team.note("broadcast", message.to, message.id)
    return sent


def send_to_each(left: list[str], send: Callable[[str], object]) -> None:
    """Call `send` for each name in `left`; remove the name after each call, so that a retry sends nothing twice.

    An error of the first call is raised as it is, unless a full disk, for example, would stop the other calls as well.

    Raises:
        StorageError: A call failed after others succeeded, and the message says which did; or nothing can be stored.
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
            away = isinstance(error, StorageError) and error.away
            raise StorageError(f"{state}{sent}{error}", away=away) from error.__cause__ or error
        left.remove(name)


def _not_accepted(error: Exception, count: int) -> str:
    """Return the beginning of an error text for messages that a full disk, for example, keeps from being stored.

    Return an empty text for an error of another kind. `count` is the number of messages.
    """
    trouble = store_files.trouble(error)
    messages = counted(count, "message")
    return f"{trouble}: nothing was lost, {messages} not accepted; " if trouble else ""


def is_listening(team: Team, name: str) -> bool:
    """Return True if mail to `name` is read now, by a running agent or by the operator."""
    config = team.config
    if is_operator_mailbox(name, config.names):
        return True
    return agents.is_running(team.directory.agent(name), attached=config.attached is not None)


def not_running(team: Team, sent: Iterable[Message]) -> list[str]:
    """Return a sentence for each recipient that is not running: why, and what happens to its message."""
    with team.directory.store.glance():
        asleep = [each.to for each in sent if not is_listening(team, each.to)]
        typed = CommandLine.of(team)
    if typed.attached:
        why = "the letter is in its inbox, and only Claude Code can start it again"
        return [f"{name} is not running: {why}" for name in asleep]
    if not asleep:
        return []
    starts = agents.held_starts(team.directory)
    waits = {each.name: starts.describe(each.name, each.run, team.now()) for each in starts.held}
    return [
        f"{name} is {waits[name]}; it reads the message when it starts"
        if name in waits
        else f"{name} is not running: the message is kept; `{typed(f'resume {name}')}` resumes it"
        for name in asleep
    ]


def mark_read(team: Team, name: str, offset: int) -> None:
    """Record that the operator has read the mailbox `name` up to the offset `offset`, in bytes; never move back."""
    _change_operator(team, lambda state: state.read.update({name: max(offset, state.read.get(name, 0))}))


def acknowledge(team: Team, name: str) -> None:
    """Record that the operator has seen the end of an agent's newest run, and that its last assignment failed.

    Of a running agent, only the failure is recorded.

    Raises:
        TryLaterError: The agent is running, and its last assignment did not fail.
        UsageError: There is no such agent, or it never ran.
    """
    agent = team.agent(name)
    run, status = _ended_run(team, name), agent.status.load_or_none()
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
    """Record that the operator has seen what `marks` name, as in `Need.marks`, each up to the given version.

    With `target`, an entry about it is added to the audit log.
    """
    if not marks:
        return
    _change_operator(team, lambda state: _mark_seen(state, marks))
    if target:
        team.note("acknowledge", target)


def acknowledge_results(team: Team, name: str) -> None:
    """Record that the operator has read all results of an agent so far."""
    acknowledge_marks(team, _result_marks(team, [name]))


def acknowledge_answers(team: Team, name: str, end: int) -> None:
    """Record that the operator has read an agent's results in the mailbox `operator` up to the offset `end`."""
    acknowledge_marks(team, {result_mark(OPERATOR, name): float(end)})


def acknowledge_all(team: Team, names: Iterable[str], *, only_ends: bool = False) -> None:
    """Record that the operator has seen how these agents ended, and unless `only_ends` their results and failed tasks.

    Agents that are running or never ran are left out.
    """
    runs = {name: _ended_run(team, name) for name in names}
    ended = {name: run for name, run in runs.items() if run}
    if not ended:
        return
    marks: dict[str, float] = {}
    if not only_ends:
        failed = [task for task in tasks.load_all(team.directory) if task.status == "failed"]
        of_ended = [task for task in failed if (task.owner or task.last_owner) in ended]
        marks = _result_marks(team, ended) | {task_mark(task.id): float(task.rev) for task in of_ended}

    def edit(state: OperatorState) -> None:
        state.acknowledged.update(ended)
        _mark_seen(state, marks)

    _change_operator(team, edit)


def _result_marks(team: Team, names: Iterable[str]) -> dict[str, float]:
    sizes = {box: mailbox.size(team.directory, box) for box in (OPERATOR, LEAD)}
    return {result_mark(box, name): float(size) for name in names for box, size in sizes.items() if size}


def is_refused(team: Team, name: str) -> bool:
    """Return True if an agent's model refused its last assignment, and the operator has not acknowledged that."""
    status = team.directory.agent(name).status.load_or_none()
    seen = team.directory.operator.load() or OperatorState()
    return status is not None and status.refused_by is not None and status.failed_at > seen.failures.get(name, 0)


def _mark_seen(state: OperatorState, marks: Mapping[str, float]) -> None:
    for mark, version in marks.items():
        state.needs[mark] = max(version, state.needs.get(mark, version))


def _ended_run(team: Team, name: str) -> int | None:
    """Return the number of an agent's newest run, 0 if it never ran; None if the agent is running."""
    # Read before the lease is probed: a run that begins in between must not count as ended.
    agent = team.directory.agent(name)
    run = agents.last_run(agent)
    return None if leases.is_held(agent.lease) else run


def forget_agent(team: Team, name: str) -> None:
    """Forget what the operator has acknowledged and read of an agent that is being removed.

    Else those records would count for the next agent of that name, whose mailbox begins at its first byte again.
    """

    def forget(state: OperatorState) -> None:
        state.acknowledged.pop(name, None)
        state.failures.pop(name, None)
        state.read.pop(name, None)
        # The marks of its results in other mailboxes stay, as those mailboxes do.
        in_its_mailbox = result_mark(name, "")
        state.needs = {mark: seen for mark, seen in state.needs.items() if not mark.startswith(in_its_mailbox)}

    if team.directory.operator.load() is not None:
        _change_operator(team, forget)


def _deliver(team: Team, config: Config, to: str, kind: str, text: str, **metadata: JsonValue) -> Message:
    """Store a message for an agent, or send it to an agent of Claude Code as a letter; return the message."""
    if config.attached is not None:
        from crewboard.attach import delivery

        return delivery.send(team.directory, config.attached, to, text, team.now())
    return post(team, to, kind, text, None, **metadata)


def post(team: Team, to: str, kind: str, text: str, ident: str | None = None, **metadata: JsonValue) -> Message:
    """Store a message of any type in the mailbox of `to`, which must be on the team, and return it.

    `ident` becomes its id, by which its reader takes it in only once; without it, the id is new.
    """
    message = mailbox.compose(team.by, to, kind, text, ident=ident, ts=team.now(), metadata=metadata)
    return mailbox.send(team.directory, message, durable=True)


def _change_operator(team: Team, edit: Callable[[OperatorState], object]) -> None:
    def apply(old: OperatorState | None) -> OperatorState:
        state = old or OperatorState()
        edit(state)
        state.rev += 1
        return state

    team.directory.operator.edit(apply, durable=True)


_MOST_WRITTEN = 20_000
"""Most characters of the text of a slash command, with its arguments filled in."""

_PLACE = re.compile(r"\$(ARGUMENTS|[1-9])")


def unknown_command(team: Team, text: str) -> str | None:
    """Return the name of the slash command that a text looks like, if the project has no such command; else None."""
    # Imported here, and below, because it loads all types of agents, which a message and the first picture do without.
    from crewboard import skill_files

    found = skill_files.SLASH.fullmatch(text.strip())
    return found[1] if found is not None and found[1] not in skill_files.command_names(team.directory.root) else None


def write_out(team: Team, text: str) -> str | None:
    """Return the text of the project's slash command that `text` calls, with its arguments; None if it calls none.

    Raises:
        UsageError: The file cannot be used, or the user has not accepted it as it is now; the message says why.
    """
    from crewboard import skill_files, type_files

    found, root = skill_files.SLASH.fullmatch(text.strip()), team.directory.root
    if found is None or found[1] not in skill_files.command_names(root):
        return None
    command = skill_files.find(root, f"/{found[1]}")
    if skill_files.accepted(root, team.environment).get(command.name) != command.sha256:
        accept = command_for(team, f"skills trust {command.name} {bound_to(command.sha256)}")
        where = skill_files.place(command.name)
        raise UsageError(f"you have not accepted {command.name} as it is now: read {where}, then `{accept}`")
    try:
        _, body = type_files.front_matter(command.text)
    except BadDataError as error:
        raise UsageError(f"/{found[1]} cannot be used: {error}") from error
    arguments = (found[2] or "").strip()
    text = body.strip()
    try:
        words = shlex.split(arguments)
    except ValueError:
        words = arguments.split()
    if not _PLACE.search(text):
        written = f"{text}\n\n{arguments}".strip()
    else:

        def fill(place: re.Match[str]) -> str:
            if place[1] == "ARGUMENTS":
                return arguments
            return words[int(place[1]) - 1] if int(place[1]) <= len(words) else ""

        written = _PLACE.sub(fill, text)
    if not written or len(written) > _MOST_WRITTEN:
        raise UsageError(f"/{found[1]} cannot be used: it is empty, or has more than {_MOST_WRITTEN} characters")
    # It must not address another agent than the one it is written to.
    return f"@{written}" if written.startswith("@") else written
