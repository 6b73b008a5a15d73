"""The files of one agent: desired state (spec), observed state (status, cursor), end of the last run (exit).

A desired run that has not begun counts as under way for `START_TIMEOUT`, and as late after `LATE_AFTER`.
"""

import os
import re
from collections.abc import Callable

from crewboard.records import (
    BadDataError,
    Cursor,
    Exit,
    HeldStarts,
    Removed,
    Reply,
    Spec,
    Status,
    StorageError,
    Summary,
    UsageError,
)
from crewboard.store import files, journal, json_files
from crewboard.store.layout import AgentDirectory, TeamDirectory

LATE_AFTER = 30.0
"""Seconds after which readers report a start as failed."""

START_TIMEOUT = 60.0
"""Seconds for which a start counts as under way. Importing the SDK takes one, on a busy machine many."""


def spec(agent: AgentDirectory) -> Spec | None:
    """Return what the agent was hired for, or None if there is no such file."""
    return json_files.load(agent.spec, Spec)


def status(agent: AgentDirectory) -> Status | None:
    """Return the agent's present state as its worker wrote it, or None."""
    return json_files.load(agent.status, Status)


def exit_record(agent: AgentDirectory) -> Exit | None:
    """Return how the agent's last finished run ended, or None."""
    return json_files.load(agent.exit, Exit)


def cursor(agent: AgentDirectory) -> Cursor:
    """Return how far the agent has read its mailbox."""
    return json_files.load(agent.cursor, Cursor) or Cursor()


def change_spec(agent: AgentDirectory, edit: Callable[[Spec | None], Spec]) -> Spec:
    """Replace the spec by what `edit` returns for it, while holding the lock.

    Raises:
        BadDataError: The spec is damaged; it was copied aside.
        StorageError: The write failed, or the team is gone.
    """
    try:
        files.make_folder(agent.path)
    except OSError as error:
        raise StorageError(f"cannot create {agent.path}: {error.strerror}") from error
    return json_files.change(agent.spec, agent.team.lock(f"spec-{agent.name}"), Spec, edit, durable=True)


def want(agent: AgentDirectory, wanted: str, run: int | None = None) -> Spec:
    """Set the agent's desired state: `running`, `paused`, `stopped` or `killed`.

    With `run`, change nothing unless that run is still the desired one.

    Raises:
        UsageError: There is no such agent.
    """

    def edit(old: Spec | None) -> Spec:
        if old is None:
            raise UsageError(f"there is no agent {agent.name}")
        if run is not None and old.run != run:
            return old
        return old.model_copy(update={"want": wanted})

    if not agent.path.exists():
        raise UsageError(f"there is no agent {agent.name}")
    return change_spec(agent, edit)


def write_exit(agent: AgentDirectory, record: Exit) -> Exit:
    """Record how a run ended unless that is recorded already, and return the stored record.

    A damaged record of an earlier end is copied aside.
    """

    def edit(old: Exit | None) -> Exit:
        return old if old is not None and old.run >= record.run else record

    return json_files.change(agent.exit, agent.team.lock(f"exit-{agent.name}"), Exit, edit, replace_damaged=True)


def mark_finalized(agent: AgentDirectory, record: Exit) -> Exit:
    """Record that the end of `record.run` was finalized, and why it ended.

    Return the stored record, which may be of a later run.
    """

    def edit(old: Exit | None) -> Exit:
        known = old if old is not None and old.run >= record.run else record
        return known.model_copy(update={"reason": record.reason, "buried": True}) if known.run == record.run else known

    return json_files.change(agent.exit, agent.team.lock(f"exit-{agent.name}"), Exit, edit, replace_damaged=True)


def sum_up(agent: AgentDirectory) -> Removed:
    """Return what stays known of an agent that is removed. From its journal: the status may lack the last call."""
    found = Removed(run=_wanted_run(agent))
    for event, _ in journal.read(agent.journal):
        if event is not None:
            found.run = max(found.run, event.run)
        if isinstance(event, (Reply, Summary)):
            found += Removed(tokens=event.usage, cost_usd=event.cost_usd)
    return found


def _wanted_run(agent: AgentDirectory) -> int:
    found = json_files.load_or_none(agent.spec, Spec)
    return found.run if found is not None else 0


def newest_result(team: TeamDirectory, name: str) -> int:
    """Return the newest run of any agent called `name` that left a result, also one that was removed long ago."""
    try:
        names = os.listdir(team.results)
    except OSError:
        return 0
    matches = (re.fullmatch(rf"{name}-(\d+)-\d+\.md", each) for each in names)
    return max((int(match[1]) for match in matches if match), default=0)


def last_run(agent: AgentDirectory) -> int:
    """Return the number of the newest run that began, 0 if none did. Read the journal if a file is damaged."""
    return max(_run_of(agent, status), _run_of(agent, exit_record))


def _run_of(agent: AgentDirectory, read: Callable[[AgentDirectory], Status | Exit | None]) -> int:
    try:
        record = read(agent)
    except BadDataError:
        return journal.last_run(agent.journal)
    return record.run if record is not None else 0


def is_starting(spec: Spec, last_run: int, now: float) -> bool:
    """Return True if the desired run has not begun but still may. `last_run` is the newest run that began."""
    return spec.want == "running" and spec.run > last_run and now - spec.at < START_TIMEOUT


def held_starts(team: TeamDirectory) -> HeldStarts:
    """Return the runs that wait until a cap of the team lets them begin; none if the file is damaged."""
    return json_files.load_or_none(team.starts, HeldStarts) or HeldStarts()


def is_late(spec: Spec, now: float) -> bool:
    """Return True if a run that has not begun should have by now."""
    return now - spec.at > LATE_AFTER
