"""The files of one agent: what it should be (spec), what it is (status, cursor), how it ended (exit)."""

from collections.abc import Callable

from crewboard.errors import BadDataError, StorageError, UsageError
from crewboard.records import Cursor, Exit, Spec, Status
from crewboard.store import files, journal, json_files
from crewboard.store.layout import AgentDirectory


def spec(agent: AgentDirectory) -> Spec | None:
    """What the agent was hired for, or None if nobody hired it."""
    return json_files.load(agent.spec, Spec)


def status(agent: AgentDirectory) -> Status | None:
    """Its present state as its worker wrote it."""
    return json_files.load(agent.status, Status)


def exit_record(agent: AgentDirectory) -> Exit | None:
    """How its last finished run ended."""
    return json_files.load(agent.exit, Exit)


def cursor(agent: AgentDirectory) -> Cursor:
    """How far it has read its mailbox."""
    return json_files.load(agent.cursor, Cursor) or Cursor()


def change_spec(agent: AgentDirectory, edit: Callable[[Spec | None], Spec]) -> Spec:
    """Replace the spec by what `edit` makes of it, with nobody else in between.

    Raises:
        BadDataError: The spec is damaged; a copy was kept aside.
        StorageError: The disk refused, or the team is gone.
    """
    try:
        files.make_folder(agent.path)
    except OSError as error:
        raise StorageError(f"cannot make {agent.path}: {error.strerror}") from error
    return json_files.change(agent.spec, agent.team.lock(f"spec-{agent.name}"), Spec, edit)


def want(agent: AgentDirectory, wanted: str, run: int | None = None) -> Spec:
    """Say what the agent should do: `running`, `paused`, `stopped` or `killed`.

    With `run`, only if that run is still the wanted one.

    Raises:
        UsageError: Nobody hired such an agent.
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
    """Record how a run ended, unless that is known already; returns what stands there.

    A damaged record of an earlier end is kept aside.
    """

    def edit(old: Exit | None) -> Exit:
        return old if old is not None and old.run >= record.run else record

    return json_files.change(agent.exit, agent.team.lock(f"exit-{agent.name}"), Exit, edit, renew=True)


def mark_buried(agent: AgentDirectory, record: Exit) -> Exit:
    """Note that the team was told how `record.run` ended; returns what stands there, which may be of a later run."""

    def edit(old: Exit | None) -> Exit:
        known = old if old is not None and old.run >= record.run else record
        return known.model_copy(update={"buried": True}) if known.run == record.run else known

    return json_files.change(agent.exit, agent.team.lock(f"exit-{agent.name}"), Exit, edit, renew=True)


def last_run(agent: AgentDirectory) -> int:
    """The number of the newest run that began, 0 if none did. What a damaged file should say, the journal says."""
    return max(_run_of(agent, status), _run_of(agent, exit_record))


def _run_of(agent: AgentDirectory, read: Callable[[AgentDirectory], Status | Exit | None]) -> int:
    try:
        record = read(agent)
    except BadDataError:
        return journal.last_run(agent.journal)
    return record.run if record is not None else 0
