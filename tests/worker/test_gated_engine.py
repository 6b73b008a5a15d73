"""An engine that works with crewboard's tools: each call is decided, journalled and undone as one of our own model."""

import json
import os
import signal
from collections.abc import Callable, Iterator

import msgspec
import pytest

from crewboard import engines, env
from crewboard.commands import answers, control, put_back, rules
from crewboard.commands import hire as hiring
from crewboard.errors import UsageError
from crewboard.protocol import requests
from crewboard.readmodel import as_json
from crewboard.records.agents import HireOptions, Terms
from crewboard.records.events import FileKept, Gate, ToolResult, ToolStart
from crewboard.sandbox import bubblewrap
from crewboard.sandbox.policy import Policy
from crewboard.unix import process
from tests import system
from tests.crew import Crew, eventually
from tests.pictures import PDF, png
from tests.preloaded import patched
from tests.worker.test_engine import ON_PATH, at, go, home, is_engine, of, processes, results, spawn, told

pytestmark = [pytest.mark.linux("sandbox"), pytest.mark.files_only("an engine does not know where the team is kept")]

GATED = """
import msgspec
from crewboard import engines
engines._ANY = msgspec.structs.replace(engines._ANY, loads=True, patience=None, own_tools=False)
"""


@pytest.fixture(autouse=True)
def _gated(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let other engines work with crewboard's tools, as `claude-gated` of the table does."""
    if not env.is_posix():
        system.need("bubblewrap", bubblewrap.unavailable_reason(Policy(crew.root, writes=False)))
    monkeypatch.setattr(engines, "_ANY", msgspec.structs.replace(engines._ANY, own_tools=False))
    with patched(GATED):
        yield


def use(tool: str, **arguments: object) -> str:
    """Return the step of a script that calls a tool of crewboard's."""
    return f"team {tool} {json.dumps(arguments)}"


WRITE = use("write_file", path="a.txt", content="x")


def test_a_change_is_decided_journalled_and_undone(crew: Crew) -> None:
    (crew.root / "b.txt").write_text("old\n")
    (crew.root / "CLAUDE.md").write_text("Write no tabs.")
    edit = use("edit_file", path="b.txt", old_text="old", new_text="new")
    run = use("bash", command="echo hi && exit 3")
    steps = ["force c.txt x", WRITE, use("read_file", path="b.txt"), edit, run, "say done"]
    assignment = spawn(crew, "e", f"[[{'; '.join(steps)}]]")
    assert crew.answer(assignment).text == "done"
    crew.wait_for_rest("e")
    assert [(crew.root / name).read_text() for name in ("a.txt", "b.txt")] == ["x", "new\n"]
    assert [each[0] for each in results(crew, "e")] == ["write_file", "read_file", "edit_file", "bash"]
    assert [each.path for each in of(crew, "e", FileKept)] == ["a.txt", "b.txt"]
    assert [each.file for each in of(crew, "e", ToolStart)] == ["c.txt", "a.txt", None, "b.txt", None]
    assert [(each.is_error, each.exit_code) for each in of(crew, "e", ToolResult)][-1] == (False, 3)
    assert told(crew, "e").count("Write no tabs.") == 1
    # What it would do without us, the kernel stops, also where its type may write.
    assert not (crew.root / "c.txt").exists()
    # No one asked for anything: it is permitted where an agent of our own would be.
    assert requests.load_all(crew.directory) == []
    seen = as_json.agent(crew.see("e"), crew.directory)
    assert (seen["engine"]["own_tools"], seen["worktree"]) == (False, None)
    put_back.undo_file_tools(crew.team, "e")
    assert not (crew.root / "a.txt").exists()
    assert (crew.root / "b.txt").read_text() == "old\n"


def test_nothing_is_written_or_run_before_the_plan_is_approved(crew: Crew) -> None:
    run = use("bash", command="touch b.txt")
    steps = [WRITE, run, "force c.txt x", "submit Write a.txt.", WRITE, "force c.txt x", "say done"]
    assignment = spawn(crew, "e", f"[[{'; '.join(steps)}]]", plan=True)
    request = crew.pending("plan_approval")
    assert [each for each in ("a.txt", "b.txt", "c.txt") if (crew.root / each).exists()] == []
    refused = results(crew, "e")
    assert [(name, is_error) for name, _, is_error in refused] == [("write_file", True), ("bash", True)]
    assert all("before your plan is approved" in said for _, said, _ in refused)
    answers.approve(crew.team, request.id)
    assert crew.answer(assignment).text == "done"
    assert (crew.root / "a.txt").read_text() == "x"
    # What the engine does itself stays outside, and no start was needed.
    assert not (crew.root / "c.txt").exists()
    assert not (home(crew, "e") / "loaded").exists()


@pytest.mark.long
def test_terms_take_tools_and_rules_refuse_calls(crew: Crew) -> None:
    rules.add_rule(crew.team, "deny", "files", "secret/**")
    steps = [
        use("write_file", path="secret/a.txt", content="x"), "submit Write a.txt.", WRITE,
        use("bash", command="touch b.txt"), "say done",
    ]  # fmt: skip
    assignment = spawn(crew, "e", f"[[{'; '.join(steps[1:])}]]", plan=True)
    answers.approve(crew.team, crew.pending("plan_approval").id, terms=Terms(tools=["write_file"]))
    assert crew.answer(assignment).text == "done"
    assert "leave you only write_file" in results(crew, "e")[-1][1]
    assert sorted(each.name for each in crew.root.iterdir() if each.suffix == ".txt") == ["a.txt"]
    assert crew.answer(spawn(crew, "f", f"[[{steps[0]}; say done]]")).text == "done"
    ((_, said, is_error),) = results(crew, "f")
    assert is_error
    assert "denies secret/**" in said
    assert not (crew.root / "secret").exists()


@pytest.mark.long
def test_each_call_is_asked_for_where_the_hire_says_so(crew: Crew) -> None:
    other = use("write_file", path="b.txt", content="y")
    assignment = spawn(crew, "e", f"[[{WRITE}; {other}; say done]]", ask=True)
    first = crew.pending("permission", "e")
    assert (first.payload["tool"], first.payload["input"]) == ("write_file", {"path": "a.txt", "content": "x"})
    assert not (crew.root / "a.txt").exists()
    answers.reject(crew.team, first.id, "not this one")
    second = eventually(
        lambda: next((each for each in requests.pending(crew.directory) if each.id != first.id), None), "another"
    )
    answers.approve(crew.team, second.id)
    assert crew.answer(assignment).text == "done"
    assert "permission rejected by operator: not this one" in results(crew, "e")[0][1]
    assert not (crew.root / "a.txt").exists()
    assert (crew.root / "b.txt").read_text() == "y"


@pytest.mark.long
def test_the_same_call_is_run_once(crew: Crew) -> None:
    run = use("bash", command="echo x >> a.txt")
    assert crew.answer(spawn(crew, "e", f"[[{run}; say done]]", "--same-ids")).text == "done"
    assert (crew.root / "a.txt").read_text() == "x\n"


def kill_and_resume(crew: Crew, point: str) -> None:
    """Kill the worker, and its engine with it; let the engine go on at a point when it is started again."""
    crew.kill("e")
    crew.wait_for("e", "crashed")
    go(crew, "e", point)
    hiring.resume(crew.team, "e")


@pytest.mark.long
@pytest.mark.parametrize("point", ["call", "result", "permission"])
def test_a_call_is_run_once_whatever_is_killed(crew: Crew, point: str) -> None:
    run = use("bash", command="echo x >> a.txt")
    is_asked = point == "permission"
    assignment = spawn(crew, "e", f"[[{run}; say done]]", "--hold", point, ask=is_asked)
    if is_asked:
        crew.pending("permission", "e")
    else:
        at(crew, "e", point)
    kill_and_resume(crew, point)
    if is_asked:
        # The one from before was closed with its worker.
        answers.approve(crew.team, crew.pending("permission", "e").id)
    assert crew.answer(assignment).text == "done"
    assert (crew.root / "a.txt").read_text() == "x\n"
    assert all("outcome unknown" not in each.content for each in of(crew, "e", ToolResult))


@pytest.mark.long
def test_a_call_that_waited_is_asked_for_after_the_engine_ended(crew: Crew) -> None:
    assignment = spawn(crew, "e", f"[[{WRITE}; say done]]", ask=True)
    first = crew.pending("permission", "e")
    for pid in filter(is_engine, processes(crew, "e")):
        process.send_signal(pid, signal.SIGKILL)
    second = eventually(
        lambda: next((each for each in requests.pending(crew.directory) if each.id != first.id), None), "another"
    )
    answers.approve(crew.team, second.id)
    assert crew.answer(assignment).text == "done"
    assert (crew.root / "a.txt").read_text() == "x"
    assert [is_error for _, _, is_error in results(crew, "e")] == [False]


@pytest.mark.long
def test_a_refusal_ends_with_its_cause_also_after_a_kill(crew: Crew) -> None:
    assignment = spawn(crew, "e", f"[[{WRITE}; submit Do it.; wait here; {WRITE}; say done]]", plan=True)
    answers.approve(crew.team, crew.pending("plan_approval").id)
    at(crew, "e", "here")
    kill_and_resume(crew, "here")
    assert crew.answer(assignment).text == "done"
    assert (crew.root / "a.txt").read_text() == "x"


@pytest.mark.long
def test_a_failed_edit_is_tried_again_also_after_a_kill(crew: Crew) -> None:
    edit = use("edit_file", path="a.txt", old_text="old", new_text="new")
    assignment = spawn(crew, "e", f"[[{edit}; wait here; {edit}; say done]]")
    at(crew, "e", "here")
    (crew.root / "a.txt").write_text("old")
    kill_and_resume(crew, "here")
    assert crew.answer(assignment).text == "done"
    assert (crew.root / "a.txt").read_text() == "new"
    assert [is_error for _, _, is_error in results(crew, "e")] == [True, False]


@pytest.mark.long
@pytest.mark.parametrize("step", ["write a.txt x", "run touch a.txt", "plan Do it."])
def test_a_tool_of_its_own_is_refused(crew: Crew, step: str) -> None:
    assignment = spawn(crew, "e", f"[[{step}]] [[say done]]")
    assert crew.answer(assignment).error is None
    assert requests.load_all(crew.directory) == []
    assert not (crew.root / "a.txt").exists()
    assert "works with the tools of the MCP server crewboard alone" in told(crew, "e")


@pytest.mark.long
def test_a_type_that_only_reads_has_no_tool_to_write(crew: Crew) -> None:
    assignment = spawn(crew, "e", f"[[{WRITE}; {use('bash', command='touch b.txt')}; say done]]", kind="explore")
    assert crew.answer(assignment).text == "done"
    assert [is_error for _, _, is_error in results(crew, "e")] == [True, True]
    assert [each.name for each in crew.root.iterdir() if each.suffix == ".txt"] == []


@pytest.mark.long
def test_a_server_of_our_name_in_the_project_changes_nothing(crew: Crew) -> None:
    (crew.root / ".mcp.json").write_text(json.dumps({"mcpServers": {"crewboard": {"command": "true"}}}))
    assert crew.answer(spawn(crew, "e", f"[[{WRITE}; say done]]")).text == "done"
    assert (crew.root / "a.txt").read_text() == "x"


@pytest.mark.long
def test_a_pdf_is_an_error_and_an_image_is_shown(crew: Crew) -> None:
    (crew.root / "a.pdf").write_bytes(PDF)
    (crew.root / "a.png").write_bytes(png())
    steps = [use("read_file", path="a.pdf"), use("read_file", path="a.png"), "say done"]
    assert crew.answer(spawn(crew, "e", f"[[{'; '.join(steps)}]]")).text == "done"
    pdf, image = results(crew, "e")
    assert pdf == ["read_file", "read_file was not run: this engine takes no application/pdf", True]
    assert not image[2]


@pytest.mark.long
def test_an_interrupt_ends_a_command(crew: Crew) -> None:
    run = use("bash", command="echo begun && sleep 1000")
    spawn(crew, "e", f"[[{run}; say never]]")
    live = crew.agent("e").live
    eventually(lambda: live.exists() and b"begun" in live.read_bytes(), "the command")
    more = control.interrupt(crew.team, "e", "stop that [[say stopped]]")
    assert crew.answer_to("e", more.id).error is None
    (result,) = [each for each in of(crew, "e", ToolResult) if each.name == "bash"]
    assert result.is_error
    assert result.content == "begun\n[ended: interrupted before it ended; read your mail]"
    assert results(crew, "e") == [["bash", result.content, True]]


@pytest.mark.long
def test_an_interrupt_withdraws_what_waits_for_permission(crew: Crew) -> None:
    spawn(crew, "e", f"[[{WRITE}; say never]]", ask=True)
    request = crew.pending("permission", "e")
    more = control.interrupt(crew.team, "e", "stop that [[say stopped]]")
    assert crew.answer_to("e", more.id).error is None
    assert [(each.id, each.status) for each in requests.load_all(crew.directory)] == [(request.id, "cancelled")]
    assert results(crew, "e") == [["write_file", "not run: interrupted; read your mail", True]]
    assert not (crew.root / "a.txt").exists()


def interrupt_behind(crew: Crew, decide: Callable[[], object]) -> None:
    """Decide what the agent waits for, and interrupt it before it can see that; wait until it has read its mail."""
    crew.halt("e")
    try:
        decide()
        more = control.interrupt(crew.team, "e", "one more thing [[say read]]")
    finally:
        crew.kill("e", signal.SIGCONT)
    assert crew.answer_to("e", more.id).error is None


@pytest.mark.long
@pytest.mark.parametrize("options", [(), ("--aborts",)])
def test_an_approval_counts_if_an_interrupt_follows(crew: Crew, options: tuple[str, ...]) -> None:
    spawn(crew, "e", f"[[submit Do it.; {WRITE}]]", *options, plan=True)
    request = crew.pending("plan_approval")
    interrupt_behind(crew, lambda: answers.approve(crew.team, request.id))
    assert [each.open for each in of(crew, "e", Gate)] == [True]
    assert (crew.root / "a.txt").read_text() == "x"


@pytest.mark.long
def test_an_answer_reaches_one_that_aborts_its_question(crew: Crew) -> None:
    spawn(crew, "e", f"[[once ask_operator {json.dumps({'question': 'Which?'})}]]", "--aborts")
    request = crew.pending("question", "e")
    interrupt_behind(crew, lambda: answers.answer(crew.team, request.id, "blue"))
    assert "blue" in told(crew, "e")
    assert [each.id for each in requests.load_all(crew.directory)] == [request.id]


@pytest.mark.long
def test_an_answer_is_kept_if_an_interrupt_follows(crew: Crew) -> None:
    spawn(crew, "e", f"[[{use('ask_operator', question='Which?')}]]")
    request = crew.pending("question", "e")
    interrupt_behind(crew, lambda: answers.answer(crew.team, request.id, "blue"))
    # It asked once: when it called again, it got the answer to that.
    assert [each.id for each in requests.load_all(crew.directory)] == [request.id]
    ((_, said, is_error),) = results(crew, "e")
    assert ("blue" in said, is_error) == (True, False)


def test_only_an_engine_without_tools_takes_options_about_tools(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    flags = HireOptions(ask=True, strict_plan=True)
    monkeypatch.setenv("PATH", f"{ON_PATH}:{os.environ['PATH']}")
    with pytest.raises(UsageError, match="cannot have --strict-plan, --ask with the engine codex"):
        hiring.spawn(crew.team, hiring.Hire("e", "code", "x", flags=flags, engine="codex"))
    hiring.spawn(crew.team, hiring.Hire("e", "code", "x", flags=flags, engine="claude-gated"))
