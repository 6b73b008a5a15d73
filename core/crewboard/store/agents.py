"""The records of one agent: desired state (spec), observed state (status, cursor), and the end of the last run (exit).

The module also keeps contents of files: those that the agent's file tools changed, and its images and documents, each
once under its SHA-256.
"""

import contextlib
import hashlib
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from crewboard import media
from crewboard.errors import BadDataError, StorageError, UsageError
from crewboard.records.agents import Cursor, HireOptions, Spec, Status
from crewboard.records.events import BrokenReply, Intake, Reply, RunStarted, Summary
from crewboard.records.messages import Media
from crewboard.records.processes import Exit, HeldStarts
from crewboard.records.team import Checked, Removed
from crewboard.store import files, hosts, journal, leases
from crewboard.store.json_records import RecordKey
from crewboard.store.layout import AgentDirectory, TeamDirectory
from crewboard.unix import process

LATE_AFTER = 30.0
"""Seconds after which readers report a desired run that has not begun as failed to start."""

START_TIMEOUT = 60.0
"""Seconds for which a desired run that has not begun counts as starting. Importing the SDK takes one second, on a busy
machine many.
"""

MAX_KEPT = 256 << 20
"""Most bytes of contents that are kept for one agent; beyond it the oldest are removed."""


def runs_elsewhere(worker: Status | None, ended: Exit | None, boot: str, lives: Callable[[Status], bool]) -> bool:
    """Return True if an agent of another program runs: its process is alive, and its run has not ended.

    `boot` is the id of the present boot. `lives` returns True if the process in a status of this boot is alive.
    """
    if worker is None or (ended is not None and ended.run >= worker.run):
        return False
    # Without a pid, the program is about to start the process, or it was not found yet.
    return not worker.pid or (worker.boot_id == boot and lives(worker))


def is_running(agent: AgentDirectory, *, attached: bool) -> bool:
    """Return True if an agent runs.

    With `attached` the agent belongs to another program and holds no lease, so its process and exit record are
    examined.
    """
    if not attached:
        return leases.is_held(agent.lease)
    worker, ended = agent.status.load_or_none(), agent.exit.load_or_none()
    return runs_elsewhere(
        worker,
        ended,
        process.boot_id(),
        lambda status: not status.start_ticks or process.start_ticks(status.pid) == status.start_ticks,
    )


def cursor(agent: AgentDirectory) -> Cursor:
    """Return how far the agent has read its mailbox; a new cursor if it has none."""
    return agent.cursor.load() or Cursor()


def save_checked(agent: AgentDirectory, run: Checked, team_check: str | None) -> None:
    """Record `run`, the last run of a check of the agent's work; `team_check` is the command of the team's check.

    A failure of the team's check stays recorded until that check passes: success of another check does not replace it.
    """
    before = agent.checked.load_or_none()
    if before is not None and not before.passed and before.command == team_check != run.command and run.passed:
        return
    agent.checked.save(run, durable=True)


@contextmanager
def checking(agent: AgentDirectory) -> Iterator[None]:
    """Show readers that a check of the agent's work is running, for the time of the context."""
    lease = leases.take(agent.checking)
    try:
        yield
    finally:
        # None if another check of the same agent runs at the same time.
        if lease is not None:
            leases.release(lease)


def change_spec(agent: AgentDirectory, edit: Callable[[Spec | None], Spec]) -> Spec:
    """Replace the spec by the one that `edit` returns for it, while holding the lock; return the new spec.

    Raises:
        BadDataError: The spec is damaged; it was copied aside.
        StorageError: The write failed, or the team is gone.
    """
    agent.team.make_folder(agent.folder.name)
    return agent.spec.edit(edit, durable=True)


def want(agent: AgentDirectory, wanted: str, run: int | None = None) -> Spec:
    """Set the agent's desired state (`running`, `paused`, `stopped` or `killed`), and return the spec.

    With `run`, change nothing unless that run is still the desired one.

    Raises:
        UsageError: There is no such agent.
        BadDataError: The spec is damaged; it was copied aside.
    """

    def edit(old: Spec | None) -> Spec:
        if old is None:
            raise UsageError(f"there is no agent {agent.name}")
        if run is not None and old.run != run:
            return old
        return old.replace(want=wanted)

    if not agent.folder.exists():
        raise UsageError(f"there is no agent {agent.name}")
    return change_spec(agent, edit)


def recover_spec(agent: AgentDirectory) -> Spec:
    """Return the spec with which the newest run of an agent began, by its journal.

    It is incomplete if the journal is of an earlier version or damaged, too, or if that run did not get to its prompt.

    Raises:
        StorageError: The journal cannot be read.
    """
    prompt, taken_in, started = "", None, None
    for event, _ in journal.read(agent.journal, 0, b'"run_started"', b'"intake"'):
        if isinstance(event, RunStarted):
            started = event
        elif isinstance(event, Intake) and event.prompt is not None:
            prompt, taken_in = event.prompt, event.assignment
    if started is None:
        return Spec(prompt=prompt, prompt_id="", type="", flags=HireOptions(ask=True), incomplete=True)
    if started.spec is not None:
        # Else the agent would begin with no prompt, or once more with the one of an earlier hire.
        is_lost = started.fresh and taken_in != started.prompt_id
        return started.spec.replace(prompt="" if is_lost else prompt, incomplete=is_lost)
    return Spec(
        prompt=prompt, prompt_id=started.prompt_id, type=started.type, model=started.model,
        flags=started.flags or HireOptions(ask=True), incomplete=True,
    )  # fmt: skip


def write_exit(agent: AgentDirectory, record: Exit) -> Exit:
    """Record how a run ended unless its end is recorded already.

    Return the stored record, which may be of a later run. A damaged record of an earlier end is copied aside.
    """
    return _complete_exit(agent, record)


def share_notice(agent: AgentDirectory, record: Exit, notice: str) -> Exit:
    """Record the id of the notice that tells of the end of this run and of other runs.

    Return the stored record, which may be of a later run.
    """
    return _complete_exit(agent, record, durable=True, notice=notice)


def mark_finalized(agent: AgentDirectory, record: Exit) -> Exit:
    """Record that the end of `record.run` was finalized, why it ended, and whether it was at work.

    Return the stored record, which may be of a later run.
    """
    return _complete_exit(agent, record, reason=record.reason, unfinished=record.unfinished, buried=True)


def _complete_exit(agent: AgentDirectory, record: Exit, *, durable: bool = False, **found: object) -> Exit:
    """Record these fields of the end of `record.run`, and the end itself unless it is recorded already.

    Return the stored record, which may be of a later run.
    """

    def edit(old: Exit | None) -> Exit:
        known = old if old is not None and old.run >= record.run else record
        return known.replace(**found) if known.run == record.run else known

    return agent.exit.edit(edit, durable=durable, replace_damaged=True)


def sum_up(agent: AgentDirectory) -> Removed:
    """Return what the roster keeps of a removed agent: its newest run, and all tokens and money that it used.

    They are counted in the journal, because the status may lack the last call.
    """
    spec = agent.spec.load_or_none()
    found = Removed(run=spec.run if spec is not None else 0)
    for event, _ in journal.read(agent.journal):
        if event is not None:
            found.run = max(found.run, event.run)
        if isinstance(event, (Reply, BrokenReply, Summary, RunStarted)) and event.usage is not None:
            found += Removed(tokens=event.usage, cost_usd=event.cost_usd)
    return found


def newest_result(team: TeamDirectory, name: str) -> int:
    """Return the number of the newest run that left a result, of all agents called `name`, removed ones included.

    0 if there is none.
    """
    try:
        names = team.key("results").names()
    except StorageError:
        return 0
    matches = (re.fullmatch(rf"{name}-(\d+)-\d+\.md", each) for each in names)
    return max((int(match[1]) for match in matches if match), default=0)


def last_run(agent: AgentDirectory) -> int:
    """Return the number of the newest run that began; 0 if none did. The journal is read if a record is damaged."""
    return max(_run_of(agent, agent.status), _run_of(agent, agent.exit))


def _run_of(agent: AgentDirectory, place: RecordKey[Status] | RecordKey[Exit]) -> int:
    try:
        record = place.load()
    except BadDataError:
        return journal.last_run(agent.journal)
    return record.run if record is not None else 0


def is_unfinalized(status: Status | None, ended: Exit | None) -> bool:
    """Return True if a run began whose end is not finalized, by an agent's status and the record of its last end."""
    return status is not None and (ended is None or ended.run < status.run or not ended.buried)


def is_starting(spec: Spec, last_run: int, now: float) -> bool:
    """Return True if the desired run may still begin: it has not, and `START_TIMEOUT` is not over.

    `last_run` is the newest run that began.
    """
    return spec.want == "running" and spec.run > last_run and now - spec.at < START_TIMEOUT


def held_starts(team: TeamDirectory) -> HeldStarts:
    """Return the runs that wait for a cap of the team, for the time of their restart, or for a host.

    On a team with hosts, each host has a record of the runs that it holds back. Damaged records are passed over.
    """
    with team.store.glance():
        found = team.starts.load_or_none() or HeldStarts()
        for name in sorted(team.hosts.names()):
            there = team.host(name).held.load_or_none() or HeldStarts()
            held = [each for each in there.held if found.find(each.name, each.run) is None]
            found = found.replace(held=[*found.held, *held], restarts={**found.restarts, **there.restarts})
        wanted = [run for run in hosts.wanted(team) if found.find(run.agent, run.run) is None]
        waiting = hosts.waiting(team, wanted)
        return found.replace(held=[*found.held, *waiting]) if waiting else found


def is_late(spec: Spec, now: float) -> bool:
    """Return True if the desired run should have begun by now (`LATE_AFTER`)."""
    return now - spec.at > LATE_AFTER


def keep_content(agent: AgentDirectory, data: bytes) -> str:
    """Keep a content durably in the agent's folder, and return its name there: its SHA-256.

    Older contents are removed if they are too large together.

    Raises:
        StorageError: It cannot be written.
    """
    name = hashlib.sha256(data).hexdigest()
    with files.storage_errors(f"cannot keep old content in {agent.kept}"):
        files.make_folder(agent.kept)
        with contextlib.suppress(FileNotFoundError):
            # It is the newest again.
            os.utime(agent.kept / name)
            return name
        with os.scandir(agent.kept) as entries:
            known = sorted((each.stat().st_mtime, each.stat().st_size, each.path) for each in entries)
        total = sum(each[1] for each in known) + len(data)
        shared = set(_shared_media(agent)) if total > MAX_KEPT else set()
        for _, length, path in known:
            if total <= MAX_KEPT:
                break
            os.unlink(path)
            total -= length
            oldest = os.path.basename(path)
            if oldest in shared:
                agent.media.below(oldest).remove()
    files.replace_file(agent.kept / name, data, durable=True)
    return name


def _shared_media(agent: AgentDirectory) -> list[str]:
    """Return the names of the agent's images and documents that are in the store, for other machines."""
    return agent.media.names() if agent.team.store != agent.team.local else []


def remove_media(agent: AgentDirectory) -> None:
    """Remove the images and documents that the store has of an agent that is removed.

    Raises:
        StorageError: The store failed.
    """
    for name in _shared_media(agent):
        agent.media.below(name).remove()


def keep_media(agent: AgentDirectory, name: str, kind: str, data: bytes) -> Media:
    """Keep an image or a document for an agent's conversation, and return the record that describes it.

    `kind` is its media type.

    Raises:
        StorageError: It cannot be written.
    """
    agent.team.make_folder(agent.folder.name)
    sha256 = keep_content(agent, data)
    if agent.team.store != agent.team.local:
        # The agent may run on another machine, now or after a resume.
        agent.team.store.make_folder(agent.media.name)
        agent.media.below(sha256).put(data, durable=True)
    return Media(name=name, type=kind, sha256=sha256, bytes=len(data), tokens=media.tokens(kind, data))


def kept_content(agent: AgentDirectory, name: str) -> bytes | None:
    """Return the content that was kept under a name; None if it is gone, damaged, or on another machine.

    Images and documents are fetched from the store if another machine kept them.

    Raises:
        StorageError: It cannot be read.
    """
    data = files.read_file(agent.kept / name)
    if data is None and (data := agent.media.below(name).get()) is not None:
        keep_content(agent, data)
    return data if data is not None and hashlib.sha256(data).hexdigest() == name else None
