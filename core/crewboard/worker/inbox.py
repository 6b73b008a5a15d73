"""The inbox of a worker: one journal entry picks mail up, moves the cursor and lets it enter the conversation."""

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from crewboard.errors import CrewboardError
from crewboard.records.events import Intake
from crewboard.records.messages import Message
from crewboard.store import mailbox, tasks
from crewboard.worker.run_state import RunState

MAIL_SHARE = 0.15
"""Share of the model's window that the mail of one turn may take: no mail is summarised before the model saw it."""

LOOK_SECONDS = 0.5
"""Longest look at a mailbox, so that a worker with very much mail still reacts to a stop."""

DELIMITERS = 150
"""Characters that the delimiters of a message take."""

BYTES_PER_TOKEN = 3
MIN_WINDOW = 50_000
"""Tokens that every model's window holds, used while the real figure is unknown."""


@dataclass(frozen=True)
class PendingMail:
    """Mail that was read but not picked up. `first` is the message that starts an assignment, if there is one."""

    batch: mailbox.Batch
    first: Message | None


def take_in(
    run_state: RunState,
    *,
    notices: Sequence[str] = (),
    instructions: Sequence[str] = (),
    shutdowns: Sequence[str] = (),
    looping: bool = False,
    until: int | None = None,
) -> int:
    """Let new mail enter the conversation during an assignment. Task assignments wait until it is done.

    Takes as much as one turn can hold, and with `until` nothing from that offset of the mailbox on. Returns how many
    messages entered.
    """
    conversation = run_state.conversation
    limit = _share(run_state)
    batch = _read(run_state, limit if until is None else min(limit, until - conversation.cursor))
    entering = _entering(run_state, batch)
    if batch.offset == conversation.cursor and not (entering or notices or instructions):
        return 0
    told = {"notices": list(notices), "instructions": list(instructions), "shutdowns": list(shutdowns)}
    _append(run_state, batch, entered=entering, looping=looping, **told)
    return len(entering)


def _append(run_state: RunState, batch: mailbox.Batch, **fields: Any) -> None:
    """Record that mail was picked up; `fields` are further ones of `Intake`."""
    now = run_state.now()
    run_state.append(Intake(ts=now, messages=batch.messages, cursor=batch.offset, damaged=batch.damaged, **fields))


def _read(run_state: RunState, limit: int) -> mailbox.Batch:
    """Read about `limit` bytes of mail."""
    conversation, agent = run_state.conversation, run_state.agent
    return mailbox.read(
        agent.team, agent.name, conversation.cursor, known=conversation.known, limit=limit, now=run_state.now()
    )


def _share(run_state: RunState) -> int:
    """Return how many bytes of mail one turn may take."""
    return min(int((run_state.window or MIN_WINDOW) * MAIL_SHARE * BYTES_PER_TOKEN), mailbox.MAX_BATCH)


def look(run_state: RunState, is_put_off: Callable[[Message], bool]) -> PendingMail:
    """Read the mail of an idle agent up to the first message that starts work, for at most `LOOK_SECONDS`.

    Mail that starts no work, or `is_put_off`, is picked up if it fills a whole read.
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
        first = next((message for message in candidates if not is_put_off(message)), None)
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


def pick_up(run_state: RunState, arrived: PendingMail) -> None:
    """Pick up mail that starts no work."""
    batch = arrived.batch
    if batch.offset != run_state.conversation.cursor:
        _append(run_state, batch)


def start(run_state: RunState, arrived: PendingMail, notices: Sequence[str] = ()) -> None:
    """Begin the assignment that `arrived.first` starts. `notices` are texts of the system that join the mail."""
    if arrived.first is None:
        return
    batch = arrived.batch
    entered = _entering(run_state, batch, arrived.first)
    _append(run_state, batch, entered=entered, notices=list(notices), assignment=arrived.first.id)


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


def _assigns_closed_task(run_state: RunState, message: Message) -> bool:
    """Return True if a message assigns a task that was completed, failed or given to another agent since."""
    task_id = message.metadata.get("task_id")
    if message.type != "task_assignment" or not isinstance(task_id, int):
        return False
    try:
        task = tasks.load(run_state.team, task_id)
    except CrewboardError:
        # The assignment starts and says what is wrong with the task.
        return False
    return task.status in tasks.CLOSED or task.owner not in (None, run_state.name)
