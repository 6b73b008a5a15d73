"""Agents whose work the real Claude Code does, on the offline model over loopback: `make engines` installs it."""

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from crewboard import engines
from crewboard.commands import answers, messages, put_back
from crewboard.commands import hire as hiring
from crewboard.offline import service
from crewboard.offline.reply import Reply
from crewboard.protocol import requests
from crewboard.records.events import EngineSession, Gate, ToolResult
from crewboard.records.requests import Request
from crewboard.sandbox import bubblewrap
from crewboard.sandbox.policy import Policy
from crewboard.unix import process
from crewboard.worker.team_tools import SERVER, offered_to
from tests import system
from tests.api.wire import MessagesRequest
from tests.crew import Crew, eventually
from tests.model import Script, calls, says
from tests.worker.test_engine import letters, of, processes, spawn

CLAUDE = engines.KNOWN["claude"]
INSTALLED = Path(__file__).parents[2] / f".cache/claude-agent-acp-{CLAUDE.tested[-1]}/bin"

TIMEOUT = 90.0
"""Seconds to wait for a step of the engine, on a busy machine: its start alone reads 400 MB."""

pytestmark = [
    pytest.mark.engines,
    pytest.mark.timeout(400),
    pytest.mark.files_only("an engine does not know where the team is kept"),
    pytest.mark.misfits("the engine sends fields that are newer than the description of the API"),
]


class Turns(Script):
    """Replies for the turns of an engine, which also asks for a title of each session."""

    def reply(self, agent: str, request: MessagesRequest) -> Reply | None:
        return super().reply(agent, request) if request.tools else says("a title")


@pytest.fixture
def real(crew_on: Callable[..., Crew], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Crew]:
    """Make a team that finds the real engine on PATH; at the end, no process of an engine is left."""
    system.need("bubblewrap", bubblewrap.unavailable_reason(Policy(tmp_path, writes=False)))
    system.need(CLAUDE.title, None if (INSTALLED / CLAUDE.program).exists() else f"{INSTALLED} is not there")
    # Whether it sends back its thinking as it was is its own matter.
    crew = crew_on(allows_stale_thinking=True)
    monkeypatch.setenv("PATH", f"{INSTALLED}:{os.environ['PATH']}")
    crew.environment["PATH"] = os.environ["PATH"]
    monkeypatch.setattr(crew.model, "_script", Turns())
    # Its models write more than those that crewboard asks.
    monkeypatch.setattr(service, "MOST_OUTPUT", 128_000)
    yield crew
    crew.end()
    eventually(lambda: processes(crew, "e") == [], "no process of the engine")


def work(crew: Crew, *replies: Reply, plan: bool = False) -> hiring.Assignment:
    crew.model.give("", *replies)
    return spawn(crew, "e", "write it", engine="claude", plan=plan)


def asked(crew: Crew, kind: str, before: Request | None = None) -> Request:
    """Wait for a request of the agent, another one than `before`."""

    def look() -> Request | None:
        return next((each for each in requests.pending(crew.directory) if each.type == kind and each != before), None)

    try:
        return eventually(look, f"a {kind} request", TIMEOUT)
    except AssertionError as error:
        error.add_note(story(crew))
        raise


def story(crew: Crew) -> str:
    """Return what happened so far: by the agent's journal, and by what the model was asked."""
    events = [f"{type(each).__name__}: {str(each)[:300]}" for each in crew.events("e")[-12:]]
    turns = [
        f"{len(each.get('tools') or ())} tools, {len(each['messages'])} messages: …{str(each['messages'])[-300:]}"
        for each in crew.model.requests[-6:]
    ]
    return "\n".join([f"state: {crew.see('e').state}", *events, "asked of the model:", *turns])


def test_claude_code_asks_before_it_writes_and_runs(real: Crew) -> None:
    write = calls("Write", file_path=str(real.root / "a.txt"), content="x")
    assignment = work(real, write, calls("Bash", command="echo hi > b.txt", description="run"), says("done"))
    first = asked(real, "permission")
    assert (first.payload["tool"], first.payload["input"]) == ("write_file", {"path": "a.txt", "content": "x"})
    assert not (real.root / "a.txt").exists()
    answers.approve(real.team, first.id)
    second = asked(real, "permission", first)
    assert (second.payload["tool"], second.payload["input"]) == ("bash", {"command": "echo hi > b.txt"})
    answers.approve(real.team, second.id)
    assert real.answer(assignment, TIMEOUT).text == "done"
    assert [(real.root / name).read_text() for name in ("a.txt", "b.txt")] == ["x", "hi\n"]
    letter = messages.send(real.team, "e", "is it done?")
    assert real.answer(hiring.Assignment("e", letter.id, 0, fresh=False), TIMEOUT).error is None
    seen = real.see("e")
    assert seen.status.tokens.total > 0
    assert seen.status.cost_usd
    assert of(real, "e", EngineSession)[0].version == CLAUDE.tested[-1]


def test_claude_code_uses_the_tools_of_the_team(real: Crew) -> None:
    letter = calls(f"mcp__{SERVER}__send_message", to="operator", content="hello")
    question = calls(f"mcp__{SERVER}__ask_operator", question="which?")
    assignment = work(real, letter, question, says("done"))
    answers.answer(real.team, asked(real, "question").id, "the first")
    assert real.answer(assignment, TIMEOUT).text == "done"
    assert letters(real, "operator", "hello") == 1
    told = [str(each["messages"]) for each in real.model.requests if each.get("tools")]
    assert "the operator answers: the first" in told[-1]
    # The tools of our own need no permission.
    assert [each.type for each in requests.load_all(real.directory)] == ["question"]


def test_claude_code_writes_nothing_before_its_plan_is_approved(real: Crew) -> None:
    plans = [calls("ExitPlanMode", plan=f"# Plan {number}\n1. write a.txt\n") for number in (1, 2)]
    write = calls("Write", file_path=str(real.root / "a.txt"), content="x")
    assignment = work(
        real,
        *plans,
        write,
        says("done"),
        plan=True,
    )
    first = asked(real, "plan_approval")
    assert first.plan.startswith("# Plan 1")
    answers.reject(real.team, first.id, "more tests")
    second = asked(real, "plan_approval", first)
    assert second.plan.startswith("# Plan 2")
    assert not (real.root / "a.txt").exists()
    answers.approve(real.team, second.id)
    answers.approve(real.team, asked(real, "permission").id)
    assert real.answer(assignment, TIMEOUT).text == "done"
    assert (real.root / "a.txt").read_text() == "x"
    assert [each.open for each in of(real, "e", Gate)] == [False, True]
    assert [each.loaded for each in of(real, "e", EngineSession)] == [False, True]


def test_claude_code_has_no_tools_but_ours_where_it_is_gated(real: Crew) -> None:
    (real.root / "a.txt").write_text("old")
    # It starts no server of the project, so none takes the place of ours.
    (real.root / ".mcp.json").write_text(json.dumps({"mcpServers": {SERVER: {"command": "true"}}}))
    edit = calls(f"mcp__{SERVER}__edit_file", path="a.txt", old_text="old", new_text="new")
    real.model.give(
        "",
        edit,
        calls("Write", file_path=str(real.root / "b.txt"), content="x"),
        calls(f"mcp__{SERVER}__submit_plan", plan="Edit it."),
        edit,
        says("done"),
    )
    assignment = spawn(real, "e", "edit it", engine="claude-gated", plan=True)
    answers.approve(real.team, asked(real, "plan_approval").id)
    assert real.answer(assignment, TIMEOUT).text == "done"
    listed = [each["name"] for asked in real.model.requests for each in asked.get("tools") or ()]
    spec = real.see("e").spec
    assert spec is not None
    ours = [f"mcp__{SERVER}__{name}" for name in offered_to(spec)]
    assert {*listed} == {*ours}
    assert f"mcp__{SERVER}__bash" in ours
    first, second = [each for each in of(real, "e", ToolResult) if each.name == "edit_file"]
    assert "before your plan is approved" in first.content
    assert not second.is_error
    assert (real.root / "a.txt").read_text() == "new"
    assert not (real.root / "b.txt").exists()
    assert [each.type for each in requests.load_all(real.directory)] == ["plan_approval"]
    real.wait_for("e", "idle")
    put_back.undo_file_tools(real.team, "e")
    assert (real.root / "a.txt").read_text() == "old"


@pytest.mark.parametrize("killed", ["worker", "engine"])
def test_claude_code_gets_each_letter_once_after_a_kill(real: Crew, killed: str) -> None:
    assignment = work(real, calls("Bash", command="touch a.txt", description="run"), says("done"))
    asked(real, "permission")
    before = processes(real, "e")
    if killed == "worker":
        real.kill("e")
        real.wait_for("e", "crashed")
    else:
        for pid in before:
            if any(part.endswith(CLAUDE.program) for part in process.arguments(pid)):
                process.send_signal(pid, signal.SIGKILL)
    eventually(lambda: not set(before) & set(processes(real, "e")), "the end of the engine's processes")
    if killed == "worker":
        hiring.resume(real.team, "e")
    assert real.answer(assignment, TIMEOUT).text == "done"
    told = [str(each["messages"]) for each in real.model.requests if each.get("tools")]
    assert told[-1].count(f'id="{assignment.id}"') == 1
    assert not (real.root / "a.txt").exists()
