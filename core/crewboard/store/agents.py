"""The files of one agent: what it should be (spec), what it is (status, cursor), how it ended (exit)."""

from collections.abc import Callable

from crewboard.errors import UsageError
from crewboard.records import Cursor, Exit, Spec, Status
from crewboard.store import documents
from crewboard.store.directory import AgentDirectory


def spec(agent: AgentDirectory) -> Spec | None:
    """What the agent was hired for, or None if nobody hired it."""
    return documents.load(agent.spec, Spec)


def status(agent: AgentDirectory) -> Status | None:
    """Its present state as its worker wrote it."""
    return documents.load(agent.status, Status)


def exit_record(agent: AgentDirectory) -> Exit | None:
    """How its last finished run ended."""
    return documents.load(agent.exit, Exit)


def cursor(agent: AgentDirectory) -> Cursor:
    """How far it has read its mailbox."""
    return documents.load(agent.cursor, Cursor) or Cursor()


def change_spec(agent: AgentDirectory, edit: Callable[[Spec | None], Spec]) -> Spec:
    """Replace the spec by what `edit` makes of it, with nobody else in between."""
    agent.path.mkdir(mode=0o700, exist_ok=True)
    return documents.change(agent.spec, agent.team.lock(f"spec-{agent.name}"), Spec, edit)


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

    return change_spec(agent, edit)


def write_exit(agent: AgentDirectory, record: Exit) -> Exit:
    """Record how a run ended, unless that is known already; returns what stands there."""

    def edit(old: Exit | None) -> Exit:
        return old if old is not None and old.run >= record.run else record

    return documents.change(agent.exit, agent.team.lock(f"exit-{agent.name}"), Exit, edit)


def mark_buried(agent: AgentDirectory, run: int) -> None:
    """Note that the team was told how `run` ended."""

    def edit(old: Exit | None) -> Exit:
        if old is None or old.run != run:
            return old or Exit(run=run, buried=True)
        return old.model_copy(update={"buried": True})

    documents.change(agent.exit, agent.team.lock(f"exit-{agent.name}"), Exit, edit)


def last_run(agent: AgentDirectory) -> int:
    """The number of the newest run that began, 0 if none did."""
    begun, ended = status(agent), exit_record(agent)
    return max(begun.run if begun else 0, ended.run if ended else 0)
