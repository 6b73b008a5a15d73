"""The inbox of a worker: read mail, and by one event (`Intake`) pick it up, move the cursor and let it enter.

Mail that was picked up but does not enter the conversation at once is kept in `Conversation.deferred`.
"""

import gc
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from crewboard.errors import CrewboardError
from crewboard.records.messages import Message
from crewboard.store import mailbox, tasks
from crewboard.worker.run_state import RunState

MAIL_SHARE = 0.15
"""Share of the model's window that the mail of one turn may take, so that the model sees it before any summary."""

LOOK_SECONDS = 0.5
"""Seconds of the longest look at a mailbox, so that a worker with very much mail still reacts to a stop."""

DELIMITERS = 150
"""Characters of the marks around a message, as an estimate."""

BYTES_PER_TOKEN = 3
MIN_WINDOW = 50_000
"""The size of the window in tokens that is assumed for mail while it is unknown."""


@dataclass(frozen=True)
class PendingMail:
    """Mail that was read but not picked up. `first` is the message that starts an assignment; None without one."""

    batch: mailbox.Batch
    first: Message | None


def take_in(run_state: RunState, *, until: int | None = None, **told: Any) -> int:
    """Let new mail enter the conversation during an assignment, and return how many messages entered.

    Task assignments wait until the assignment is done. As much is read as one turn can hold, and with `until`, only
    mail before that offset of the mailbox. `told` are further fields of `Intake`, which enter in any case.
    """
    conversation = run_state.conversation
    limit = _share(run_state)
    batch = _read(run_state, limit if until is None else min(limit, until - conversation.cursor))
    entering = _entering(run_state, batch)
    if batch.offset != conversation.cursor or entering or any(told.values()):
        _take(run_state, batch, entered=entering, **told)
    return len(entering)


def _take(run_state: RunState, batch: mailbox.Batch, **more: Any) -> None:
    """Journal that mail was picked up; `more` are further fields of `Intake`."""
    run_state.take_in(messages=batch.messages, cursor=batch.offset, damaged=batch.damaged, **more)


def _read(run_state: RunState, limit: int) -> mailbox.Batch:
    """Read about `limit` bytes of mail from the cursor on."""
    conversation, agent = run_state.conversation, run_state.agent
    return mailbox.read(
        agent.team, agent.name, conversation.cursor, known=conversation.known, limit=limit, now=run_state.now()
    )


def _share(run_state: RunState) -> int:
    """Return how many bytes of mail one turn may take."""
    return min(int((run_state.window or MIN_WINDOW) * MAIL_SHARE * BYTES_PER_TOKEN), mailbox.MAX_BATCH)


def look(run_state: RunState, *, puts_off: bool = True) -> PendingMail:
    """Read the mail of an idle agent until a message starts work, or for about `LOOK_SECONDS`.

    Return what was read last, which is not picked up. What was read before it starts no work, and is picked up. If
    `puts_off`, the assignment of a task that other tasks block starts no work yet; it is looked at again each time.
    """
    end = time.monotonic() + LOOK_SECONDS
    conversation = run_state.conversation
    candidates = conversation.put_off
    limit = share = _share(run_state)
    most = mailbox.MAX_BATCH
    while True:
        batch = _read(run_state, limit)
        candidates += [m for m in batch.messages if m.starts_work and m.id not in conversation.consumed]
        candidates = [message for message in candidates if not _assigns_closed_task(run_state, message)]
        first = next((each for each in candidates if not (puts_off and _assigns_blocked_task(run_state, each))), None)
        if first is not None and limit > share:
            # What enters together must fit into one turn.
            limit, most, candidates = share, share, []
            continue
        arrived = PendingMail(batch, first)
        if first is not None or not batch.more or time.monotonic() > end:
            return arrived
        pick_up(run_state, arrived)
        # What was picked up stays for the run, so the collector need not look at it again.
        gc.freeze()
        candidates = []
        # Mail that starts no work enters later, and may be read in larger pieces.
        limit = min(2 * limit, most)


def pick_up(run_state: RunState, arrived: PendingMail, notices: Sequence[str] = ()) -> None:
    """Pick up mail, and begin an assignment if it has a message that starts one.

    `notices` are texts of the system that enter with that assignment.
    """
    batch, first = arrived.batch, arrived.first
    if first is not None:
        entered = _entering(run_state, batch, first)
        _take(run_state, batch, entered=entered, notices=list(notices), assignment=first.id)
    elif batch.offset != run_state.conversation.cursor:
        _take(run_state, batch)


def _entering(run_state: RunState, batch: mailbox.Batch, first: Message | None = None) -> list[str]:
    """Return the ids of the mail that enters now, in the order of the mailbox.

    Task assignments other than `first` wait for an assignment of their own, unless the task is closed by then. Notices
    that exceed the share of one turn wait for the next turn.
    """
    conversation = run_state.conversation
    room = _share(run_state)
    entering = []
    for message in [*conversation.deferred.values(), *batch.messages]:
        if not message.enters or message.id in conversation.consumed:
            continue
        if message.starts_work:
            waits = message.type == "task_assignment" and (first is None or message.id != first.id)
            if not waits or _assigns_closed_task(run_state, message):
                entering.append(message.id)
        elif room > 0:
            room -= len(message.content) + DELIMITERS
            entering.append(message.id)
    return entering


def _assigned(message: Message) -> int | None:
    """Return the id of the task that a message assigns; None if it assigns none."""
    task_id = message.metadata.get("task_id")
    return task_id if message.type == "task_assignment" and isinstance(task_id, int) else None


def _assigns_closed_task(run_state: RunState, message: Message) -> bool:
    """Return True if a message assigns a task that was completed, failed or given to another agent since."""
    if (task_id := _assigned(message)) is None:
        return False
    try:
        task = tasks.load(run_state.team, task_id)
    except CrewboardError:
        # The assignment starts and says what is wrong with the task.
        return False
    return task.status in tasks.CLOSED or task.owner not in (None, run_state.name)


def _assigns_blocked_task(run_state: RunState, message: Message) -> bool:
    """Return True if a message assigns a task that other tasks block."""
    if (task_id := _assigned(message)) is None:
        return False
    board = {task.id: task for task in tasks.load_all(run_state.team)}
    task = board.get(task_id)
    return (
        task is not None
        and task.status == "pending"
        and task.owner == run_state.name
        and bool(tasks.blockers(task, board))
    )
