"""Reading mail: one append to the journal picks it up, moves the cursor and lets it enter the conversation."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from crewboard.records import Intake, Message
from crewboard.store import mailbox
from crewboard.worker.conversation import Conversation
from crewboard.worker.run_state import RunState

MAIL_SHARE = 0.15
"""Share of the model's window that the mail of one turn may take: all of it is shown before any is summarised."""

BYTES_A_TOKEN = 3
SMALL_WINDOW = 50_000
"""Tokens that every model's window holds, where it is not known yet."""


@dataclass(frozen=True)
class PendingMail:
    """What lies in the mailbox, not picked up yet. `first` starts an assignment, if anything does."""

    batch: mailbox.Batch
    candidates: list[Message]
    first: Message | None


def take_in(
    run_state: RunState,
    *,
    notices: Sequence[str] = (),
    shutdowns: Sequence[str] = (),
) -> int:
    """Take in what arrived while an assignment goes on, as much as one turn can hold; tasks wait for the next one.

    Returns how many messages entered.
    """
    conversation = run_state.conversation
    batch = _read(run_state)
    candidates = _candidates(conversation, batch)
    entering = [message.id for message in candidates if message.enters and message.type != "task_assignment"]
    if batch.offset == conversation.cursor and not entering and not notices:
        return 0
    run_state.append(
        Intake(
            ts=run_state.now(),
            messages=batch.messages,
            cursor=batch.offset,
            damaged=batch.damaged,
            entered=entering,
            notices=list(notices),
            shutdowns=list(shutdowns),
        )
    )
    return len(entering)


def _read(run_state: RunState) -> mailbox.Batch:
    """As much as one turn can hold; what lies behind it comes with the next."""
    conversation, agent = run_state.conversation, run_state.agent
    share = int((run_state.context_limit or SMALL_WINDOW) * MAIL_SHARE * BYTES_A_TOKEN)
    return mailbox.read(
        agent.team, agent.name, conversation.cursor, known=conversation.known, limit=min(share, mailbox.MAX_BATCH)
    )


def look(run_state: RunState, waits: Callable[[Message], bool]) -> PendingMail:
    """What arrived while the agent was free. Mail that starts nothing, or `waits`, is picked up on the way."""
    while True:
        batch = _read(run_state)
        candidates = _candidates(run_state.conversation, batch)
        first = next((message for message in candidates if message.starts_work and not waits(message)), None)
        arrived = PendingMail(batch, candidates, first)
        if first is not None or not batch.more:
            return arrived
        pick_up(run_state, arrived)


def pick_up(run_state: RunState, arrived: PendingMail) -> None:
    """Journal mail that starts no work."""
    batch = arrived.batch
    if batch.offset != run_state.conversation.cursor:
        run_state.append(
            Intake(ts=run_state.now(), messages=batch.messages, cursor=batch.offset, damaged=batch.damaged)
        )


def start(run_state: RunState, arrived: PendingMail, notices: Sequence[str] = ()) -> None:
    """Begin the assignment that `arrived.first` starts, with `notices` of ours beside the mail."""
    if arrived.first is None:
        return
    batch = arrived.batch
    run_state.append(
        Intake(
            ts=run_state.now(),
            messages=batch.messages,
            cursor=batch.offset,
            damaged=batch.damaged,
            entered=[message.id for message in _enter_with(arrived.first, arrived.candidates)],
            notices=list(notices),
            assignment=arrived.first.id,
        )
    )


def _candidates(conversation: Conversation, batch: mailbox.Batch) -> list[Message]:
    """What could enter: all but what a tool result already held."""
    return [m for m in [*conversation.deferred, *batch.messages] if m.id not in conversation.consumed]


def _enter_with(first: Message, candidates: list[Message]) -> list[Message]:
    """What enters with the message that starts the work: all but tasks that wait for an assignment of their own."""
    return [m for m in candidates if m.enters and (m.type != "task_assignment" or m is first)]
