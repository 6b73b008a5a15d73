"""State that readers act on is a field: what a text says changes nothing."""

from pathlib import Path

import pytest

from crewboard.readmodel.activity import ActivityReader, describe, why_failed
from crewboard.readmodel.file_activity import FileAccessReader
from crewboard.readmodel.reader import TeamReader
from crewboard.readmodel.states import Evidence, Finding, find_state
from crewboard.readmodel.team import TeamView
from crewboard.records.agents import SANDBOX_OFF, Spec
from crewboard.records.events import Answer, Event, Sent, ToolResult, ToolStart
from crewboard.records.team import Task
from crewboard.store import codec, journal, mailbox
from tests.frozen import NOW, Frozen, make_empty


def _view(frozen: Frozen) -> TeamView:
    return TeamReader(frozen.directory, clock=lambda: NOW, probe=frozen.probe).read()


def _start(at: float) -> Finding:
    spec = Spec(prompt="p", prompt_id="p1", type="code", at=at)
    return find_state(Evidence(held=False, spec=spec, status=None, exit=None, boot_id="b", now=NOW))


def test_a_late_start_has_failed() -> None:
    assert _start(NOW - 60).failed_start
    assert not _start(NOW - 1).failed_start


@pytest.mark.parametrize(
    ("sandbox", "unsafe"),
    [("bubblewrap", False), ("landlock", False), ("none", True), (SANDBOX_OFF, True), ("", False)],
)
def test_a_worker_without_a_sandbox_is_unsafe(tmp_path: Path, sandbox: str, unsafe: bool) -> None:
    frozen = make_empty(tmp_path / "w")
    frozen.hire("api", "code", "working", "bash ls", ago=5, pid=9, sandbox=sandbox)
    assert _view(frozen).agents[0].unsafe == unsafe
    frozen.probe.held.clear()
    assert not _view(frozen).agents[0].unsafe, "an ended worker runs nothing"


def _result(content: str, *, is_error: bool, exit_code: int | None = None) -> Event:
    return ToolResult(
        ts=1, run=1, tool_use_id="t1", name="bash", content=content, is_error=is_error, exit_code=exit_code
    )


def test_only_a_failed_call_is_shown_as_failed() -> None:
    (found,) = describe(_result("failed: 3 of 214 tests", is_error=False))
    (failed,) = describe(_result("there is no such file", is_error=True))
    assert (found.is_error, failed.is_error) == (False, True)


@pytest.mark.parametrize(("exit_code", "failed"), [(0, False), (2, True), (-9, True), (None, False)])
def test_a_command_that_failed_is_shown_as_failed(exit_code: int | None, failed: bool) -> None:
    (found,) = describe(_result("[exit code 2]", is_error=False, exit_code=exit_code))
    assert found.is_error == failed


@pytest.mark.parametrize("task_id", [4, "4"])
def test_the_reason_of_a_failed_task_is_found(tmp_path: Path, task_id: object) -> None:
    frozen = make_empty(tmp_path / "w")
    agent = frozen.hire("api", "code", "working", "", ago=60, pid=9)
    frozen.said("api", 31, "The schema is frozen until May.")
    frozen.did("api", 30, "task_update", {"task_id": task_id, "status": "failed"}, "task 4 is failed", 0)
    task = Task(id=4, subject="Migrate", status="failed", updated_at=NOW - 30)
    assert why_failed(task, ActivityReader(agent).read()) == "The schema is frozen until May."


def test_text_in_a_task_update_fails_no_task() -> None:
    arguments = {"task_id": 4, "status": "completed", "note": "status: failed"}
    (told,) = describe(ToolStart(ts=1, run=1, tool_use_id="t1", name="task_update", input=arguments))
    assert told.fails_task is None


def test_a_created_file_had_no_lines_before(tmp_path: Path) -> None:
    frozen = make_empty(tmp_path / "w")
    agent = frozen.hire("api", "code", "working", "", ago=60, pid=9)
    frozen.did("api", 30, "write_file", {"path": "a.py", "content": "1\n"}, "created a.py (1 line)", 0)
    frozen.did("api", 20, "write_file", {"path": "b.py", "content": "1\n"}, "replaced b.py (1 line)", 0)
    assert [(each.path, each.removed) for each in FileAccessReader(agent).read()] == [("a.py", 0), ("b.py", None)]


def test_a_journal_of_an_older_version_is_read() -> None:
    line = b'{"ts":1,"run":1,"kind":"tool_result","tool_use_id":"t1","name":"write_file","content":"created a.py"}'
    event = codec.decode_event(line)
    assert isinstance(event, ToolResult)
    assert not event.created


def test_an_answer_is_one_line(tmp_path: Path) -> None:
    frozen = make_empty(tmp_path / "w")
    agent = frozen.hire("api", "code", "idle", "", ago=60, pid=9)
    frozen.said("api", 31, "All done.")
    answer = Answer(ts=NOW - 30, assignment="p1", answers=["p1"], text="All done.", result="results/api-1-1.md")
    letters = [mailbox.compose("api", "lead", kind, "x", ts=NOW) for kind in ("result", "idle_notification", "message")]
    journal.append(agent.journal, answer)
    for letter in letters:
        journal.append(agent.journal, Sent(ts=NOW, message=letter))
    kinds = [line.kind for line in ActivityReader(agent).read()]
    assert kinds[-2:] == ["answer", "sent"]
    assert "say" not in kinds
