"""An agent from its hire to its answer: what the model sees, what the files say."""

from collections.abc import Callable

import pytest

from crewboard.agent_types import TYPES
from crewboard.errors import UsageError
from crewboard.fence import unfence
from crewboard.offline.script import calls, says
from crewboard.records import ToolResult
from crewboard.store import mailbox
from crewboard.team import mail
from tests.crew import Crew, eventually

Make = Callable[..., Crew]


def results_of(crew: Crew, name: str) -> list[ToolResult]:
    return [event for event in crew.events(name) if isinstance(event, ToolResult)]


def test_an_answer_is_a_file_a_mail_and_a_fact_of_the_journal(crew: Crew) -> None:
    (crew.root / "a.py").write_text("x = 1\n")
    answer = crew.run("scout", "explore", "List all Python files")
    assert answer.result == "results/scout-1-1.md"
    assert (crew.directory.path / answer.result).read_text() == answer.text
    (letter,) = [m for m in mailbox.read(crew.directory, "lead").messages if m.type == "result"]
    assert letter.content == answer.text
    assert letter.metadata["result"] == answer.result
    assert letter.metadata["answers"] == answer.answers
    crew.wait_for("scout", "idle")

    def kinds() -> list[str]:
        return [m.type for m in mailbox.read(crew.directory, "lead").messages]

    eventually(lambda: kinds() == ["result", "idle_notification"], "the two messages")


def test_mail_wakes_an_idle_agent_and_is_answered(crew: Crew) -> None:
    crew.run("scout", "explore", "List all Python files")
    sent = mail.send(crew.team, "scout", "Give me a summary")
    answer = crew.answer_to("scout", sent.id)
    assert answer.answers == [sent.id]
    texts = [block["text"] for block in crew.model.requests[-1]["messages"][-1]["content"] if block["type"] == "text"]
    (letter,) = unfence(texts[-1])
    assert (letter.author, letter.kind, letter.text) == ("operator", "message", "Give me a summary")


def test_a_type_is_offered_exactly_its_tools(crew: Crew) -> None:
    common = {"send_message", "read_inbox", "task_list", "task_claim", "task_update", "ask_operator"}
    offered: dict[str, set[str]] = {}
    for kind in sorted(TYPES):
        crew.run(kind, kind, "hello", once=True)
        request = crew.model.requests[-1]
        offered[kind] = {tool["name"] for tool in request["tools"]}
        assert f"You are {kind}, {'an' if kind == 'explore' else 'a'} {kind} agent" in request["system"]
    assert offered == {kind: common | set(TYPES[kind].tools) for kind in TYPES}


def test_a_call_outside_the_type_is_refused_and_nothing_happens(crew_on: Make) -> None:
    crew = crew_on([calls("write_file", path="x", content="y"), says("done")])
    crew.run("scout", "explore", "write x")
    (result,) = results_of(crew, "scout")
    assert result.is_error
    assert "no tool" in result.content
    assert not (crew.root / "x").exists()


def test_once_ends_the_worker_after_its_answer(crew: Crew) -> None:
    crew.run("scout", "explore", "List all Python files", once=True)
    seen = crew.wait_for("scout", "exited")
    assert seen.exit is not None
    assert (seen.exit.code, seen.exit.reason) == (0, "finished")


def test_a_second_start_of_a_name_at_work_is_refused(crew: Crew) -> None:
    crew.hire("scout", "explore", "List all Python files")
    crew.wait_for("scout", "idle")
    with pytest.raises(UsageError, match="type explore"):
        crew.hire("scout", "code", "again")
    with pytest.raises(UsageError, match="other terms"):
        crew.hire("scout", "explore", "again", plan=True)
    more = crew.hire("scout", "explore", "List all Python files again")
    assert not more.fresh
    crew.answer(more)


def test_work_on_files_and_commands_is_real(crew_on: Make) -> None:
    crew = crew_on(
        [
            calls("write_file", path="pkg/a.py", content="one = 1\n"),
            calls("edit_file", path="pkg/a.py", old_text="one = 1", new_text="two = 2"),
            calls("bash", command="cat pkg/a.py; echo $ANTHROPIC_API_KEY; exit 3"),
            calls("read_file", path="../secret"),
            says("done"),
        ]
    )
    crew.run("fixer", "code", "do it", unsafe_no_sandbox=True)
    wrote, edited, ran, refused = results_of(crew, "fixer")
    assert (crew.root / "pkg/a.py").read_text() == "two = 2\n"
    assert not wrote.is_error
    assert not edited.is_error
    assert ran.content.split() == ["two", "=", "2", "[exit", "code", "3]"]
    assert refused.is_error


def test_a_task_given_with_the_hire_is_in_progress_and_its_owner_is_reminded_once(crew_on: Make) -> None:
    from crewboard.store import tasks
    from crewboard.team import board

    crew = crew_on([says("done"), says("still done"), says("idle")])
    task = board.add_task(crew.team, "look at it")
    crew.run("scout", "explore", "do it", task=task.id)
    crew.wait_for("scout", "idle")
    eventually(lambda: len(crew.model.requests) == 2, "the reminder")
    crew.wait_for("scout", "idle")
    assert tasks.load(crew.directory, task.id).status == "in_progress"
    assert "still in progress" in str(crew.model.requests[1]["messages"][-1])
    assert len(crew.model.requests) == 2
