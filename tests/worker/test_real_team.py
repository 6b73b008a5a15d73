"""A team of the real Claude Code, the real Codex and an agent of our own on one repository: `make engines`."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from crewboard.commands import answers, changes
from crewboard.commands import hire as hiring
from crewboard.errors import BadDataError
from crewboard.protocol import requests
from crewboard.records.requests import Request
from crewboard.store import mailbox, roster
from crewboard.worker.team_tools import SERVER
from tests.crew import Crew, eventually
from tests.model import calls, says
from tests.worker import real_engines, test_real_codex, test_real_engine
from tests.worker.test_engine import spawn
from tests.worktrees.home import make_repository

TIMEOUT = 90.0
"""Seconds to wait for a step of an engine, on a busy machine: its start alone reads 400 MB."""

pytestmark = [
    pytest.mark.engines,
    pytest.mark.timeout(600),
    pytest.mark.files_only("an engine does not know where the team is kept"),
    pytest.mark.misfits("the engine sends fields that are newer than the description of the API"),
]


@pytest.fixture
def mixed(crew_on: Callable[..., Crew], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Crew]:
    """Make a team in a repository that finds both engines on PATH, and an API for each; no process of one is left."""
    responses = test_real_codex.Responses
    responses.asked.clear()
    with real_engines.crew_with_both(
        crew_on, tmp_path, monkeypatch, test_real_engine.Turns(), responses, ["claude", "codex"]
    ) as crew:
        make_repository(crew.root)
        yield crew


def asked(crew: Crew, name: str, kind: str) -> Request:
    """Wait for a request of an agent."""

    def look() -> Request | None:
        pending = requests.pending(crew.directory)
        return next((each for each in pending if (each.type, each.from_) == (kind, name)), None)

    return eventually(look, f"a {kind} request of {name}", TIMEOUT)


def line(number: int, text: str) -> str:
    """Return a command that replaces a line of api.py."""
    return f"sed -i '{number + 1}s/.*/{text}/' api.py"


def test_one_of_each_plan_ask_write_collide_and_are_merged_and_undone(mixed: Crew) -> None:
    crew, codex = mixed, test_real_codex
    # Claude Code plans, is told to go on, asks before its command, and writes to Codex.
    crew.model.give(
        "",
        calls("ExitPlanMode", plan="# Plan\n1. change line 3\n"),
        calls("Bash", command=line(3, "of claude"), description="change it"),
        calls(f"mcp__{SERVER}__send_message", to="codex", content="line 3 is mine"),
        says("claude is done"),
        says("claude has read it"),
    )
    codex.Responses.items[:] = [
        codex.calls("exec_command", cmd=line(15, "of codex")),
        codex.says("codex is done"),
        codex.says("codex has read it"),
    ]
    crew.model.give(
        "own",
        calls("read_file", path="api.py"),
        calls("edit_file", path="api.py", old_text="line 3\n", new_text="of own\n"),
        calls("send_message", to="claude", content="which line is yours?"),
        calls("ask_operator", question="shall I stop?"),
        says("own is done"),
    )
    by_codex = spawn(crew, "codex", "change line 15", engine="codex", worktree=True)
    assert crew.answer(by_codex, TIMEOUT).text == "codex is done"
    by_claude = spawn(crew, "claude", "change line 3", engine="claude", plan=True, worktree=True)
    plan = asked(crew, "claude", "plan_approval")
    assert plan.plan.startswith("# Plan")
    answers.approve(crew.team, plan.id)
    permission = asked(crew, "claude", "permission")
    assert permission.payload["input"] == {"command": line(3, "of claude")}
    answers.approve(crew.team, permission.id)
    assert crew.answer(by_claude, TIMEOUT).text == "claude is done"
    assert read_by(crew, "codex", "line 3 is mine") == "codex has read it"
    assert str(codex.Responses.asked[-1][1]["input"]).count("line 3 is mine") == 1

    by_own = crew.hire("own", "code", "change line 3", worktree=True)
    answers.answer(crew.team, asked(crew, "own", "question").id, "yes")
    assert crew.answer(by_own, TIMEOUT).text == "own is done"
    assert read_by(crew, "claude", "which line is yours?") == "claude has read it"

    # No one would see the prompt that Claude Code proposes behind a turn.
    assert not [each for each in crew.model.requests if "ONLY the suggestion" in str(each["messages"][-1])]
    for name in ("codex", "claude", "own"):
        crew.wait_for(name, "idle")
    for name in ("codex", "claude"):
        assert changes.merge(crew.team, name) is not None
    merged = (crew.root / "api.py").read_text().splitlines()
    assert (merged[3], merged[15]) == ("of claude", "of codex")
    with pytest.raises(BadDataError, match=r"api\.py"):
        changes.merge(crew.team, "own")
    changes.undo(crew.team, "claude")
    assert (crew.root / "api.py").read_text().splitlines()[3] == "line 3"
    assert changes.merge(crew.team, "own") is not None
    merged = (crew.root / "api.py").read_text().splitlines()
    assert (merged[3], merged[15]) == ("of own", "of codex")
    status = subprocess.run(["git", "status", "--porcelain"], cwd=crew.root, capture_output=True, text=True, check=True)
    assert [each for each in status.stdout.splitlines() if ".crewboard" not in each] == []


def read_by(crew: Crew, name: str, text: str) -> str:
    """Wait until an agent has worked on the one letter that says this, and return its answer."""
    (letter,) = [each for each in mailbox.read(crew.directory, name).messages if each.content == text]
    return crew.answer(hiring.Assignment(name, letter.id, 0, fresh=False), TIMEOUT).text


def test_claude_code_leads_an_agent_of_ours_and_codex(mixed: Crew) -> None:
    crew, codex = mixed, test_real_codex
    roster.change(crew.directory, lambda config: setattr(config, "engine", "codex"))
    hire = f"mcp__{SERVER}__spawn_agent"
    crew.model.give(
        "",
        # Codex first, which takes seconds to start: a result that comes while Claude Code asks for a call aborts that.
        calls(hire, name="codex", agent_type="explore", prompt="look", engine="codex"),
        calls(hire, name="own", agent_type="explore", prompt="look"),
        # Results reach it in this turn or in the next ones, each with another request.
        *[says("the team is done")] * 5,
    )
    crew.model.give("own", says("own has found it"))
    codex.Responses.items[:] = [codex.says("codex has found it")]
    assignment = spawn(crew, "claude", "have it looked at", engine="claude", kind="lead", worktree=True)
    assert crew.answer(assignment, 2 * TIMEOUT).text == "the team is done"

    results = ("own has found it", "codex has found it")

    def is_told() -> bool:
        # The last request may be for the title of the session.
        return any(all(text in str(each["messages"]) for text in results) for each in crew.model.requests)

    eventually(is_told, "results", TIMEOUT)
    assert not requests.pending(crew.directory)
