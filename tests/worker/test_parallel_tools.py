"""Calls of one reply that only read run at once; the others keep their place."""

import pytest

from crewboard.commands import control
from crewboard.offline.reply import Reply
from crewboard.records.events import ToolResult, ToolStart
from tests.crew import Crew, eventually
from tests.model import calls, says


def several(*replies: Reply) -> Reply:
    """Return one reply with the calls of several."""
    return Reply([block for reply in replies for block in reply.content])


def results(crew: Crew, name: str) -> list[ToolResult]:
    return [event for event in crew.events(name) if isinstance(event, ToolResult)]


@pytest.mark.long
def test_what_changes_a_file_stays_between_the_reads_around_it(shared_crew: Crew) -> None:
    (shared_crew.root / "a.txt").write_text("old\n")
    reads = calls("read_file", path="a.txt")
    work = several(
        reads, calls("glob", pattern="a.*"), calls("write_file", path="a.txt", content="new\n"), reads, reads
    )
    shared_crew.model.give("mixed", work, says("done"))
    assert shared_crew.run("mixed", "code", "go", unsafe_no_sandbox=True).text == "done"
    found = results(shared_crew, "mixed")
    assert [each.name for each in found] == ["read_file", "glob", "write_file", "read_file", "read_file"]
    assert ["old" in each.content for each in found] == [True, False, False, False, False]
    assert ["new" in each.content for each in found[3:]] == [True, True]
    sent = shared_crew.model.asked_by("mixed")[1]["messages"][-1]["content"]
    assert [block["tool_use_id"] for block in sent] == [each.tool_use_id for each in found]


def test_an_interrupt_ends_all_calls_that_run_at_once(shared_crew: Crew) -> None:
    (shared_crew.root / "slow.txt").write_text("a" * 40 + "!\n")
    slow = calls("grep", pattern="(a+)+$", path="slow.txt")
    shared_crew.model.give("stuck", several(slow, calls("list_dir"), slow), says("stopped"))
    hired = shared_crew.hire("stuck", "explore", "go")

    def begun() -> bool:
        return len([event for event in shared_crew.events("stuck") if isinstance(event, ToolStart)]) == 3

    eventually(begun, "the calls")
    control.interrupt(shared_crew.team, "stuck", "stop it")
    assert shared_crew.answer(hired).text == "stopped"
    found = results(shared_crew, "stuck")
    assert [each.name for each in found] == ["grep", "list_dir", "grep"]
    assert all("interrupted before it ended" in each.content for each in (found[0], found[2]))
