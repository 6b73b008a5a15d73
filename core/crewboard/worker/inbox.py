"""Reads mail: one journal entry picks it up, moves the cursor and lets it enter the conversation."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from crewboard.records import Intake, Message
from crewboard.store import mailbox
from crewboard.worker.conversation import Conversation
from crewboard.worker.run_state import RunState

MAIL_SHARE = 0.15
"""Share of the model's window that the mail of one turn may take: no mail is summarised before the model saw it."""

BYTES_PER_TOKEN = 3
MIN_WINDOW = 50_000
"""Tokens that every model's window holds, used while the real figure is unknown."""


@dataclass(frozen=True)
class PendingMail:
    """Mail that was read but not picked up. `first` is the message that starts an assignment, if there is one."""

    batch: mailbox.Batch
    candidates: list[Message]
    first: Message | None


def take_in(
    run_state: RunState,
    *,
    notices: Sequence[str] = (),
    shutdowns: Sequence[str] = (),
) -> int:
    """Let new mail enter the conversation during an assignment. Task assignments wait until it is done.

    Takes as much as one turn can hold. Returns how many messages entered.
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
    """Read as much mail as one turn can hold; the rest comes with the next turn."""
    conversation, agent = run_state.conversation, run_state.agent
    share = int((run_state.window or MIN_WINDOW) * MAIL_SHARE * BYTES_PER_TOKEN)
    return mailbox.read(
        agent.team, agent.name, conversation.cursor, known=conversation.known, limit=min(share, mailbox.MAX_BATCH)
    )


def look(run_state: RunState, is_put_off: Callable[[Message], bool]) -> PendingMail:
    """Read the mail of an idle agent up to the first message that starts work.

    Mail that starts no work, or `is_put_off`, is picked up if it fills a whole read.
    """
    while True:
        batch = _read(run_state)
        candidates = _candidates(run_state.conversation, batch)
        first = next((message for message in candidates if message.starts_work and not is_put_off(message)), None)
        arrived = PendingMail(batch, candidates, first)
        if first is not None or not batch.more:
            return arrived
        pick_up(run_state, arrived)


def pick_up(run_state: RunState, arrived: PendingMail) -> None:
    """Pick up mail that starts no work."""
    batch = arrived.batch
    if batch.offset != run_state.conversation.cursor:
        run_state.append(
            Intake(ts=run_state.now(), messages=batch.messages, cursor=batch.offset, damaged=batch.damaged)
        )


def start(run_state: RunState, arrived: PendingMail, notices: Sequence[str] = ()) -> None:
    """Begin the assignment that `arrived.first` starts. `notices` are texts of the system next to the mail."""
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
    """Return the mail that may enter: all but messages whose content a tool result already showed."""
    return [m for m in [*conversation.deferred, *batch.messages] if m.id not in conversation.consumed]


def _enter_with(first: Message, candidates: list[Message]) -> list[Message]:
    """Return the mail that enters with `first`. Other task assignments wait for an assignment of their own."""
    return [m for m in candidates if m.enters and (m.type != "task_assignment" or m is first)]
