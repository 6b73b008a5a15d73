"""Reading mail: one append to the journal picks it up, moves the cursor and lets it enter the conversation."""

from collections.abc import Sequence

from crewboard.records import Intake, Message
from crewboard.store import mailbox
from crewboard.worker.conversation import Conversation
from crewboard.worker.recorder import Recorder


def take_in(
    recorder: Recorder,
    *,
    notices: Sequence[str] = (),
    shutdowns: Sequence[str] = (),
) -> int:
    """Take in what arrived while an assignment goes on; a task assignment waits for the next one.

    Returns how many messages entered.
    """
    conversation = recorder.conversation
    batch = mailbox.read(recorder.agent.team, recorder.agent.name, conversation.cursor, known=conversation.known)
    candidates = _candidates(conversation, batch)
    entering = [message.id for message in candidates if message.enters and message.type != "task_assignment"]
    if batch.offset == conversation.cursor and not entering and not notices:
        return 0
    recorder.append(
        Intake(
            ts=recorder.now(),
            messages=batch.messages,
            cursor=batch.offset,
            damaged=batch.damaged,
            entered=entering,
            notices=list(notices),
            shutdowns=list(shutdowns),
        )
    )
    return len(entering)


def start_assignment(recorder: Recorder) -> Message | None:
    """Take in what arrived while the agent was free. Returns the message that starts an assignment, if one does."""
    conversation = recorder.conversation
    batch = mailbox.read(recorder.agent.team, recorder.agent.name, conversation.cursor, known=conversation.known)
    candidates = _candidates(conversation, batch)
    first = next((message for message in candidates if message.starts_work), None)
    if first is None:
        if batch.offset != conversation.cursor:
            recorder.append(
                Intake(ts=recorder.now(), messages=batch.messages, cursor=batch.offset, damaged=batch.damaged)
            )
        return None
    entering = _enter_with(first, candidates)
    recorder.append(
        Intake(
            ts=recorder.now(),
            messages=batch.messages,
            cursor=batch.offset,
            damaged=batch.damaged,
            entered=[message.id for message in entering],
            assignment=first.id,
        )
    )
    return next((message for message in entering if message.type == "task_assignment"), first)


def _candidates(conversation: Conversation, batch: mailbox.Batch) -> list[Message]:
    """What could enter: all but what a tool result already held."""
    return [m for m in [*conversation.deferred, *batch.messages] if m.id not in conversation.consumed]


def _enter_with(first: Message, candidates: list[Message]) -> list[Message]:
    """What enters with the message that starts the work: all that is not another task."""
    tasks = [message for message in candidates if message.type == "task_assignment"]
    taken = first if first.type == "task_assignment" else tasks[0] if tasks else None
    return [
        message for message in candidates if message.enters and (message.type != "task_assignment" or message is taken)
    ]
