"""The files of an agent: spec, status and exit, and what is known when one of them is damaged."""

import pytest

from crewboard.errors import BadDataError, StorageError, UsageError
from crewboard.records.agents import Cursor, HireOptions, Spec, Status
from crewboard.records.events import Intake, RunStarted
from crewboard.records.processes import Exit
from crewboard.store import agents, journal
from crewboard.store.layout import AgentDirectory, TeamDirectory

SPEC = Spec(prompt="do it", prompt_id="p1", type="code", run=3)


@pytest.fixture
def agent(directory: TeamDirectory) -> AgentDirectory:
    agents.change_spec(directory.agent("scout"), lambda _: SPEC)
    return directory.agent("scout")


def begin(agent: AgentDirectory, run: int) -> None:
    journal.append(
        agent.journal, RunStarted(ts=1, run=run, pid=1, type="code", model="m", fresh=True, prompt_id="p1")
    )  # fmt: skip
    agent.status.save(Status(run=run, pid=1, state="working", since=1))


def test_an_unknown_agent_has_no_records(directory: TeamDirectory) -> None:
    unknown = directory.agent("unknown")
    assert (unknown.spec.load(), unknown.status.load(), unknown.exit.load()) == (None, None, None)
    assert agents.cursor(unknown) == Cursor()
    assert agents.last_run(unknown) == 0
    with pytest.raises(UsageError, match="there is no agent unknown"):
        agents.want(unknown, "paused")
    directory.agents.rmdir()
    with pytest.raises(StorageError, match="cannot create"):
        agents.change_spec(unknown, lambda _: SPEC)


def test_the_desired_state_is_written(agent: AgentDirectory) -> None:
    assert agents.want(agent, "paused").want == "paused"
    assert agent.spec.load() == SPEC.replace(want="paused")


def test_a_desired_state_for_one_run_ignores_the_next(agent: AgentDirectory) -> None:
    assert agents.want(agent, "killed", run=2).want == "running"
    assert agents.want(agent, "killed", run=3).want == "killed"


def test_the_first_exit_record_of_a_run_is_kept(agent: AgentDirectory) -> None:
    first = agents.write_exit(agent, Exit(run=3, code=0, reason="finished", at=1))
    assert agents.write_exit(agent, Exit(run=3, signal=9, reason="died", at=2)) == first
    assert agents.write_exit(agent, Exit(run=2, signal=9, reason="died", at=2)) == first
    assert agents.write_exit(agent, Exit(run=4, signal=9, reason="died", at=2)).run == 4


def test_finalizing_marks_the_run_that_was_finalized(agent: AgentDirectory) -> None:
    third = agents.write_exit(agent, Exit(run=3, code=0, reason="finished"))
    assert agents.mark_finalized(agent, third).buried
    fourth = agents.write_exit(agent, Exit(run=4, code=0, reason="finished"))
    assert not agents.mark_finalized(agent, third).buried, "run 4 ended meanwhile and is not finalized"
    assert agent.exit.load() == fourth


def test_a_damaged_exit_record_is_set_aside_and_written_again(agent: AgentDirectory) -> None:
    agent.exit.put(b"{")
    record = agents.write_exit(agent, Exit(run=3, signal=9, reason="died"))
    assert agent.exit.load() == record
    agent.exit.put(b"damaged again")
    assert agents.mark_finalized(agent, record) == record.replace(buried=True)
    aside = [agent.key(name).get() or b"" for name in agent.folder.names() if name.startswith("exit.json.damaged-")]
    assert sorted(aside) == [b"damaged again", b"{"]


def test_a_damaged_spec_is_never_overwritten(agent: AgentDirectory) -> None:
    agent.spec.put(b"{")
    with pytest.raises(BadDataError, match=r"spec\.json is damaged: .*; a copy is kept as"):
        agents.want(agent, "killed")
    assert agent.spec.get() == b"{"


def test_a_spec_of_which_the_journal_has_only_the_flags_is_incomplete(agent: AgentDirectory) -> None:
    """Earlier versions wrote no more."""
    begin(agent, 3)
    flags = HireOptions(budget="90k")
    start = RunStarted(ts=1, run=4, pid=1, type="code", model="m", fresh=False, prompt_id="p1", flags=flags)
    journal.append(agent.journal, start)
    found = agents.recover_spec(agent)
    assert (found.type, found.model, found.prompt_id, found.flags) == ("code", "m", "p1", flags)
    assert found.incomplete
    journal.append(agent.journal, start.replace(spec=SPEC))
    assert agents.recover_spec(agent) == SPEC.replace(prompt="")


def test_a_spec_whose_prompt_the_journal_lacks_is_incomplete(agent: AgentDirectory) -> None:
    """The worker was killed before it took in the prompt of a new hire."""
    hired = SPEC.replace(prompt_id="p2", prompt="the new work")
    journal.append(agent.journal, Intake(ts=1, run=1, cursor=0, assignment="p1", prompt="the old work"))
    start = RunStarted(
        ts=2, run=2, pid=1, type="", model="m", fresh=True, prompt_id="p2", spec=hired.replace(prompt="")
    )
    journal.append(agent.journal, start)
    assert agents.recover_spec(agent) == hired.replace(prompt="", incomplete=True)
    journal.append(agent.journal, Intake(ts=3, run=2, cursor=0, assignment="p2", prompt="the new work"))
    assert agents.recover_spec(agent) == hired


@pytest.mark.parametrize("damaged", ["status", "exit"])
def test_the_newest_run_is_known_whichever_file_is_damaged(agent: AgentDirectory, damaged: str) -> None:
    """No run number may be used twice."""
    begin(agent, 3)
    agents.write_exit(agent, Exit(run=3, code=0))
    getattr(agent, damaged).put(b"\x00")
    assert agents.last_run(agent) == 3


def test_a_run_that_ended_before_it_began_counts_as_the_last_run(agent: AgentDirectory) -> None:
    begin(agent, 3)
    agents.write_exit(agent, Exit(run=4, signal=9, reason="died"))
    assert agents.last_run(agent) == 4
