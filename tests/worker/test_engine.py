"""Agents whose work an engine does: a fake one, as strict as the real ones, in the real sandbox."""

import asyncio
import base64
import contextlib
import dataclasses
import gc
import http.server
import json
import os
import re
import shlex
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from crewboard import engines, env, operations, redaction, type_files
from crewboard.agent_types import AgentType
from crewboard.commands import answers, control, messages, settings, stop, tasks
from crewboard.commands import hire as hiring
from crewboard.errors import ExitCode, NoSandboxError, UntrustedError, UsageError
from crewboard.protocol import requests
from crewboard.readmodel import as_json
from crewboard.readmodel.activity import describe
from crewboard.readmodel.needs import format_minute
from crewboard.records.agents import HireOptions, Terms, Tokens
from crewboard.records.events import (
    Answer,
    BrokenReply,
    EngineSession,
    Gate,
    Offered,
    Reply,
    Retry,
    Taken,
    ToolResult,
    ToolStart,
)
from crewboard.records.requests import NewNote, notes_in
from crewboard.records.team import Config, Rule
from crewboard.sandbox import bubblewrap
from crewboard.sandbox.policy import Policy
from crewboard.store import mailbox, roster
from crewboard.unix import process
from crewboard.worker.api_relay import _MOST_CONNECTIONS, ApiRelay
from crewboard.worker.engine_process import _make_place
from crewboard.worker.engine_turn import LATER, UNKNOWN_OUTCOME
from crewboard.worker.team_tools import RELAY, TeamTools, find_declaration
from tests import system
from tests.crew import Crew, contents, eventually
from tests.matrix import default
from tests.model import calls, says
from tests.preloaded import patched
from tests.worktrees.home import make_repository

of_engines = pytest.mark.files_only("an engine does not know where the team is kept")

FAKE = Path(__file__).with_name("fake_engine.py")
ON_PATH = Path(__file__).parents[1] / "data" / "engines"


@pytest.fixture(autouse=True)
def _boxed(tmp_path: Path) -> None:
    if not env.is_posix():
        system.need("bubblewrap", bubblewrap.unavailable_reason(Policy(tmp_path, writes=False)))


def command(*options: str) -> str:
    return f"acp:{shlex.join([sys.executable, '-IS', str(FAKE), *options])}"


def spawn(
    crew: Crew,
    name: str,
    prompt: str,
    *options: str,
    kind: str = "code",
    engine: str = "",
    given: frozenset[str] | None = None,
    **flags: Any,
) -> hiring.Assignment:
    engine = engine or command(*options)
    if env.is_posix() and engine.startswith(engines.OTHER):
        # Without a sandbox an engine has the user's home; its own one is where the tests look.
        flags.setdefault("unsafe_no_sandbox", True)
        engine = f"{engines.OTHER}env {shlex.quote(f'HOME={home(crew, name)}')} {engine.removeprefix(engines.OTHER)}"
    hire = hiring.Hire(name, kind, prompt, flags=HireOptions(**flags), engine=engine, given=given)
    return hiring.spawn(crew.team, hire)


def home(crew: Crew, name: str) -> Path:
    return crew.agent(name).engine_home


def at(crew: Crew, name: str, point: str) -> None:
    """Wait until an engine is at a point where it waits."""
    eventually((home(crew, name) / f"at-{point}").exists, f"{name} at {point}")


def go(crew: Crew, name: str, point: str) -> None:
    (home(crew, name) / f"go-{point}").touch()


def told(crew: Crew, name: str) -> str:
    """Return all that the model of an engine was told, by its own account."""
    file = home(crew, name) / "model.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    return "\n".join(json.loads(line)["text"] for line in lines)


def of(crew: Crew, name: str, kind: type[Any]) -> list[Any]:
    return [each for each in crew.events(name) if isinstance(each, kind)]


def processes(crew: Crew, name: str) -> list[int]:
    """Return all processes of an engine: those that were given its home."""
    return [pid for pid in process.parents() if is_given(pid, str(home(crew, name)))]


def is_engine(pid: int) -> bool:
    """Return True for the process of an engine, and none around it or below it."""
    with contextlib.suppress(OSError):
        return any(part.endswith(FAKE.name) for part in process.arguments(pid)[:4])
    return False


def is_given(pid: int, text: str) -> bool:
    """Return True if a text stands in the environment of a process that has not ended."""
    with contextlib.suppress(OSError):
        return text.encode() in process.environment(pid)
    return False


LOADS = """
import msgspec
from crewboard import engines
engines._ANY = msgspec.structs.replace(engines._ANY, loads=True)
"""


@pytest.fixture
def loads() -> Iterator[None]:
    """Let other engines load their sessions, as those of the table do: the fake one keeps the same promise."""
    with patched(LOADS):
        yield


FOLDER = """
import msgspec
from crewboard import engines
engines._ANY = msgspec.structs.replace(
    engines._ANY, loads=True, folder=".acp", folder_variable="ACP_HOME", stored="sessions/{}.jsonl"
)
"""


STORED = """
import msgspec
from crewboard import engines
engines._ANY = msgspec.structs.replace(engines._ANY, loads=True, stored="sessions/{}.jsonl")
"""


OWN_WORDS = """
import msgspec
from crewboard import engines
codex = engines.KNOWN["codex"]
engines._ANY = msgspec.structs.replace(
    engines._ANY, loads=True, names_texts=True, remarks=codex.remarks, unavailable=codex.unavailable
)
"""


@pytest.fixture
def own_words() -> Iterator[None]:
    """Tell the own words of other engines from those of their models, as those of Codex are."""
    with patched(OWN_WORDS):
        yield


@of_engines
def test_an_engine_answers_without_a_key(crew: Crew) -> None:
    for variable in [name for name in crew.environment if redaction.is_secret(name)]:
        del crew.environment[variable]
    prompt = "hello [[think hm; say one; odd; steps; run echo hi; say the result]]"
    assignment = spawn(crew, "e", prompt)
    request = crew.pending("permission", "e")
    assert request.payload["tool"] == "bash"
    assert request.payload["input"] == {"command": "echo hi"}
    eventually(lambda: crew.see("e").status.waiting_for == request.id, "the status that it waits")
    answers.approve(crew.team, request.id)
    answer = crew.answer(assignment)
    assert (answer.text, answer.error, answer.code) == ("the result", None, 0)
    crew.wait_for_rest("e")
    (run,) = [each for each in of(crew, "e", ToolStart) if each.name == "bash"]
    (result,) = [each for each in of(crew, "e", ToolResult) if each.tool_use_id == run.tool_use_id]
    assert (result.content, result.is_error) == ("hi\n", False)
    seen = crew.see("e")
    assert (seen.state, seen.model) == ("idle", "acp")
    assert as_json.agent(seen, crew.directory)["engine"] == {
        "name": "acp", "version": "1.0", "model": "model-of-fake", "own_tools": True,
    }  # fmt: skip
    assert seen.described_model == "acp 1.0 · model-of-fake"
    assert seen.status.context.used == 120
    assert seen.status.context.limit == 1000
    assert seen.status.todo is not None
    assert (seen.status.todo.done, seen.status.todo.total, seen.status.todo.current) == (1, 2, "fix")
    lines = [(each.kind, each.text) for event in crew.events("e") for each in describe(event)]
    assert ("think", "hm") in lines
    assert ("say", "one") in lines
    assert ("start", "fake 1.0 begins a session") in lines
    assert "You are e, an agent of type code" in told(crew, "e")
    assert not (home(crew, "e") / "allowed-always").exists()


@pytest.fixture
def user(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the home of the user, for teams that are made after it."""
    found = tmp_path_factory.mktemp("user")
    monkeypatch.setenv("HOME", str(found))
    return found


@pytest.fixture
def known(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put programs with the names of the known engines on PATH."""
    crew.environment["PATH"] = f"{ON_PATH}:{os.environ['PATH']}"
    monkeypatch.setenv("PATH", crew.environment["PATH"])


@pytest.mark.long
@pytest.mark.linux("sandbox")
@pytest.mark.usefixtures("known")
@of_engines
def test_usage_is_counted_as_far_as_it_is_told(crew: Crew) -> None:
    told_all = spawn(crew, "claude1", "[[say hi]]", engine="claude")
    # One that is not known tells no cost that can be trusted.
    told_tokens = spawn(crew, "other", "[[say hi]]")
    told_none = spawn(crew, "silent", "[[say hi]]", "--no-usage")
    for each in (told_all, told_tokens, told_none):
        crew.answer(each)
        crew.wait_for_rest(each.agent)
    more = hiring.spawn(crew.team, hiring.Hire("claude1", "code", "again", given=frozenset()))
    crew.answer(more)
    crew.wait_for_rest("claude1")
    per_turn = Tokens(input=100, output=20, cache_read=5, cache_write=3)
    assert crew.see("claude1").status.tokens == per_turn + per_turn
    assert crew.see("claude1").status.cost_usd == 0.5
    assert (crew.see("other").status.tokens, crew.see("other").status.cost_usd) == (per_turn, None)
    assert (crew.see("silent").status.tokens, crew.see("silent").status.cost_usd) == (Tokens(untold=1), None)


@of_engines
def test_a_refusal_is_told_to_the_engine_with_its_reason(crew: Crew) -> None:
    assignment = spawn(crew, "e", "[[write a.txt x; say after]]")
    request = crew.pending("permission")
    assert request.payload["tool"] == "write_file"
    assert request.payload["input"] == {"path": "a.txt", "content": "x"}
    answers.reject(crew.team, request.id, "use b.txt")
    assert crew.answer(assignment).text == "after"
    assert "was not permitted: rejected by operator: use b.txt" in told(crew, "e")
    assert not (crew.root / "a.txt").exists()


@pytest.mark.long
def test_a_yes_is_to_one_call_whatever_the_engine_calls_it(crew: Crew) -> None:
    assignment = spawn(crew, "e", "[[run echo harmless; run touch a.txt; say done]]", "--same-ids")
    first = crew.pending("permission")
    assert first.payload["input"] == {"command": "echo harmless"}
    answers.approve(crew.team, first.id)
    eventually(lambda: crew.see("e").status.waiting_for not in (None, first.id), "another request")
    second = crew.pending("permission")
    assert second.payload["input"] == {"command": "touch a.txt"}
    answers.reject(crew.team, second.id, "no")
    crew.answer(assignment)
    assert not (crew.root / "a.txt").exists()


@pytest.mark.long
@pytest.mark.linux("sandbox")
@pytest.mark.usefixtures("known")
@pytest.mark.parametrize("plan", [True, False])
def test_an_engine_starts_again_to_carry_out_the_plan_as_edited(crew: Crew, *, plan: bool) -> None:
    assignment = spawn(crew, "e", "[[plan First.; force a.txt x; say done]]", engine="claude", plan=plan)
    request = crew.pending("plan_approval")
    answers.approve(crew.team, request.id, edited="Second.")
    crew.answer(assignment)
    assert len(of(crew, "e", EngineSession)) == 2
    assert "Second." in told(crew, "e")


@pytest.mark.long
@pytest.mark.linux("sandbox")
@pytest.mark.usefixtures("known")
def test_a_later_plan_that_is_rejected_closes_the_project_again(crew: Crew) -> None:
    prompt = "[[plan First.; insist Second.; force a.txt late; say done]]"
    assignment = spawn(crew, "e", prompt, engine="claude", plan=True)
    answers.approve(crew.team, crew.pending("plan_approval").id)
    eventually(lambda: len(of(crew, "e", EngineSession)) == 2, "the start with the project open")
    second = crew.pending("plan_approval")
    assert second.payload["plan"] == "Second."
    answers.reject(crew.team, second.id, "no")
    crew.answer(assignment)
    assert not (crew.root / "a.txt").exists()


def test_no_link_in_an_engines_home_is_followed_to_lay_the_login(tmp_path: Path) -> None:
    outside, engine_home = tmp_path / "outside", tmp_path / "home"
    outside.mkdir()
    engine_home.mkdir()
    place = engine_home / ".claude" / ".credentials.json"
    (engine_home / ".claude").symlink_to(outside)
    assert _make_place(engine_home, ".claude/.credentials.json") == place
    place.unlink()
    place.symlink_to(outside / "made")
    _make_place(engine_home, ".claude/.credentials.json")
    assert place.is_file()
    assert not place.is_symlink()
    shutil.rmtree(engine_home / ".claude")
    (engine_home / ".claude").write_text("a file")
    _make_place(engine_home, ".claude/.credentials.json")
    place.unlink()
    place.mkdir()
    _make_place(engine_home, ".claude/.credentials.json")
    assert place.read_bytes() == b""
    assert list(outside.iterdir()) == []


@of_engines
def test_rules_decide_and_nothing_is_allowed_for_ever(crew: Crew) -> None:
    def edit(config: Config) -> None:
        config.rules = [
            Rule(id="r1", effect="allow", tool="bash", pattern="echo *"),
            Rule(id="r2", effect="deny", tool="bash", pattern="rm *"),
        ]

    roster.change(crew.directory, edit)
    assignment = spawn(crew, "e", "[[run echo hi; run rm -rf x; say done]]")
    assert crew.answer(assignment).text == "done"
    assert "the operator's rule r2 denies rm *" in told(crew, "e")
    # An engine that offers no answer for this one time gets a no.
    assignment = spawn(crew, "f", "[[run echo hi; say done]]", "--no-allow-once")
    assert crew.answer(assignment).text == "done"
    assert "offers no permission for this one time" in told(crew, "f")
    for name in ("e", "f"):
        assert not (home(crew, name) / "allowed-always").exists()


@pytest.mark.linux("sandbox")
@of_engines
def test_the_kernel_keeps_the_project_as_its_type_says(crew: Crew) -> None:
    (crew.root / "secret").write_text("x")
    reads = spawn(crew, "reader", "[[force a.txt x; say done]]", kind="explore")
    writes = spawn(crew, "writer", "[[force b.txt x; force .crewboard/c x; force /etc/d x; say done]]")
    assert crew.answer(reads).text == "done"
    assert crew.answer(writes).text == "done"
    assert (crew.root / "b.txt").read_text() == "x\n"
    # What a call does is journalled when all of it is told.
    assert of(crew, "writer", ToolStart)[0].input == {"path": "b.txt", "content": "x"}
    assert of(crew, "writer", ToolStart)[0].file == "b.txt"
    assert not (crew.root / "a.txt").exists()
    assert "Read-only file system" in of(crew, "reader", ToolResult)[0].content
    assert [each.is_error for each in of(crew, "writer", ToolResult)] == [False, True, True]
    assert crew.see("reader").status.sandbox == "bubblewrap"


@pytest.mark.long
@pytest.mark.linux("sandbox")
@of_engines
@pytest.mark.usefixtures("known")
def test_a_plan_opens_the_project_and_not_before(crew: Crew) -> None:
    prompt = "[[force a.txt early; plan First.; plan Second.; force a.txt late; say done]]"
    for name in ("claude", "codex"):
        assignment = spawn(crew, name, prompt, engine=name, plan=True)
        first = crew.pending("plan_approval", name)
        assert first.payload["plan"] == "First."
        answers.reject(crew.team, first.id, "more tests")
        second = crew.pending("plan_approval", name)
        assert (second.payload["plan"], second.payload["revision"]) == ("Second.", 2)
        assert "Feedback: more tests" in told(crew, name)
        assert not (crew.root / "a.txt").exists()
        with pytest.raises(UsageError, match="takes no terms about tools: it asks for what it wants itself; no"):
            answers.approve(crew.team, second.id, terms=Terms(tools=["read_file"]))
        answers.approve(crew.team, second.id)
        assert crew.answer(assignment).text == "done"
        assert (crew.root / "a.txt").read_text() == "late\n"
        assert [each.open for each in of(crew, name, Gate)] == [False, True]
        asked = [each.name for each in of(crew, name, ToolStart) if each.name != "write_file"]
        assert asked == ["submit_plan", "submit_plan"]
        assert told(crew, name).count("The plan is approved by operator") == 1
        # The turn that the approval ended is not counted as free.
        assert crew.see(name).status.tokens.untold == 1
        (crew.root / "a.txt").unlink()
        # The one that might not write has ended, although it does not by itself.
        assert len([pid for pid in processes(crew, name) if is_engine(pid)]) == 1
        # It was not let go first: it would have asked its model once more.
        assert not (home(crew, name) / "at-close").exists()
        # The next assignment needs a plan of its own.
        more = messages.send(crew.team, name, "[[force a.txt again; say closed]]")
        assert crew.answer_to(name, more.id).text == "closed"
        assert not (crew.root / "a.txt").exists()


@pytest.mark.long
@pytest.mark.linux("sandbox")
@of_engines
@pytest.mark.usefixtures("known")
def test_a_yes_before_the_plan_is_said_to_change_nothing(crew: Crew) -> None:
    prompt = "[[write a.txt early; plan First.; write a.txt late; say done]]"
    assignment = spawn(crew, "e", prompt, engine="claude", plan=True)
    early = crew.pending("permission")
    closed = "until its plan is approved it can change nothing, also with your yes"
    assert early.payload["why"] == f"Claude Code asks for it; {closed}"
    answers.approve(crew.team, early.id)
    plan = crew.pending("plan_approval")
    assert not (crew.root / "a.txt").exists()
    answers.approve(crew.team, plan.id)
    late = crew.pending("permission")
    assert late.payload["why"] == "Claude Code asks for it"
    answers.approve(crew.team, late.id)
    assert crew.answer(assignment).text == "done"
    assert (crew.root / "a.txt").read_text() == "late\n"


@pytest.mark.long
@pytest.mark.linux("sandbox")
@of_engines
@pytest.mark.usefixtures("known")
def test_no_plan_is_asked_about_before_its_text_is_there(crew: Crew) -> None:
    assignment = spawn(crew, "e", "[[plan; behind Late.; force a.txt x; say done]]", engine="claude", plan=True)
    request = crew.pending("plan_approval")
    assert request.payload["plan"] == "Late."
    # The first had no text, so there was no question.
    assert [each.type for each in requests.load_all(crew.directory)] == ["plan_approval"]
    assert told(crew, "e").count("without a text of it") == 1
    answers.approve(crew.team, request.id)
    assert crew.answer(assignment).text == "done"


@pytest.mark.linux("sandbox")
@pytest.mark.usefixtures("known")
@pytest.mark.parametrize("engine", ["", "codex"])
def test_a_plan_that_is_submitted_opens_the_same_gate(crew: Crew, engine: str) -> None:
    prompt = "[[force a.txt early; submit First.; force a.txt early; submit Second.; force a.txt late; say done]]"
    assignment = spawn(crew, "e", prompt, engine=engine, plan=True)
    first = crew.pending("plan_approval")
    assert first.payload["plan"] == "First."
    answers.reject(crew.team, first.id, "more tests")
    second = crew.pending("plan_approval")
    assert (second.payload["plan"], second.payload["revision"]) == ("Second.", 2)
    ((tool, said, is_error),) = results(crew, "e")
    assert (tool, "Feedback: more tests" in said, is_error) == ("submit_plan", True, True)
    assert not (crew.root / "a.txt").exists()
    answers.approve(crew.team, second.id)
    assert crew.answer(assignment).text == "done"
    assert (crew.root / "a.txt").read_text() == "late\n"
    assert [each.open for each in of(crew, "e", Gate)] == [False, True]
    assert told(crew, "e").count("The plan is approved by operator") == 1
    assert [each.loaded for each in of(crew, "e", EngineSession)] == [False, bool(engine)]
    # A session that is new at the approval is told which plan it was.
    assert ("The plan that you submitted:\nSecond." in told(crew, "e")) == (not engine)
    # One with a plan mode is told of the tool by its description alone.
    assert ("Submit it with the tool submit_plan" in told(crew, "e")) == (not engine)
    # The next assignment needs a plan of its own.
    more = messages.send(crew.team, "e", "[[force a.txt again; say closed]]")
    assert crew.answer_to("e", more.id).text == "closed"
    assert (crew.root / "a.txt").read_text() == "late\n"


NO_PATIENCE = """
from crewboard import engines
from crewboard.worker import engine_turn
engine_turn._PATIENCE_LEFT = engines._ANY.patience
"""
"""Code that lets an engine give up each call at once."""


@pytest.mark.long
@pytest.mark.linux("fork")
@pytest.mark.parametrize("is_killed", [False, True])
def test_a_plan_waits_longer_than_the_engine_does(crew: Crew, *, is_killed: bool) -> None:
    prompt = "[[submit First.; submit Second.; force a.txt x; say done]]"
    with patched(NO_PATIENCE):
        assignment = spawn(crew, "e", prompt, plan=True)
        first = crew.pending("plan_approval")
        # Meanwhile it takes no memory, and does nothing else.
        eventually(lambda: processes(crew, "e") == [], "the end of the engine")
        answers.reject(crew.team, first.id, "more tests")
        second = crew.pending("plan_approval")
        assert second.payload["plan"] == "Second."
        assert "Feedback: more tests" in told(crew, "e")
        eventually(lambda: processes(crew, "e") == [], "the end of the engine")
        if is_killed:
            crew.kill("e")
            crew.wait_for("e", "crashed")
            hiring.resume(crew.team, "e")
            eventually(lambda: crew.pending("plan_approval").id != second.id, "the plan is asked for again")
        answers.approve(crew.team, crew.pending("plan_approval").id)
        assert crew.answer_to("e", assignment.id).text == "done"
    assert (crew.root / "a.txt").read_text() == "x\n"
    asked = [each.status for each in sorted(requests.load_all(crew.directory), key=lambda each: each.created_at)]
    assert asked == ["rejected", *(["cancelled"] if is_killed else []), "approved"]


@pytest.mark.long
@pytest.mark.linux("sandbox")
@of_engines
@pytest.mark.usefixtures("known")
def test_the_project_is_closed_while_a_later_plan_waits(crew: Crew) -> None:
    prompt = "[[submit First.; submit Second.; force a.txt late; say done]]"
    assignment = spawn(crew, "e", prompt, engine="codex", plan=True)
    answers.approve(crew.team, crew.pending("plan_approval").id)
    eventually(lambda: len(of(crew, "e", EngineSession)) == 2, "the start with the project open")
    second = crew.pending("plan_approval")
    assert second.payload["plan"] == "Second."
    # At once, and not when it would give up the call.
    patience = engines.KNOWN["codex"].patience
    assert patience is not None
    eventually(lambda: processes(crew, "e") == [], "the end of the engine that may write", patience / 2)
    answers.reject(crew.team, second.id, "no")
    crew.answer(assignment)
    assert not (crew.root / "a.txt").exists()


@pytest.mark.long
@pytest.mark.linux("sandbox")
@of_engines
@pytest.mark.usefixtures("known")
def test_a_plan_that_is_submitted_again_is_asked_about_again(crew: Crew) -> None:
    prompt = "[[submit First.; submit Second.; submit First.; force a.txt late; say done]]"
    assignment = spawn(crew, "e", prompt, engine="codex", plan=True)
    first = crew.pending("plan_approval")
    answers.approve(crew.team, first.id)
    eventually(lambda: len(of(crew, "e", EngineSession)) == 2, "the start with the project open")
    answers.reject(crew.team, crew.pending("plan_approval").id, "no")
    again = crew.pending("plan_approval")
    assert (again.payload["plan"], again.payload["revision"]) == ("First.", 3)
    assert again.id != first.id
    answers.reject(crew.team, again.id, "not that either")
    crew.answer(assignment)
    assert [each.open for each in of(crew, "e", Gate)] == [True, False, False, False]
    assert not (crew.root / "a.txt").exists()


@pytest.mark.long
@pytest.mark.linux("sandbox")
@of_engines
def test_a_plan_that_cannot_be_submitted_is_refused(crew: Crew) -> None:
    prompt = (
        '[[team submit_plan {"plan": " "}; team submit_plan {"plan": "x", "files": ["../x"]}; submit Plan.; say done]]'
    )
    assignment = spawn(crew, "e", prompt, kind="explore")
    answers.approve(crew.team, crew.pending("plan_approval").id)
    assert crew.answer(assignment).text == "done"
    empty, outside, approved = [said for _, said, _ in results(crew, "e")]
    assert "the plan is empty" in empty
    assert "name paths below the workspace" in outside
    # Its rights stay the same, so it reads the decision where it asked.
    assert "The plan is approved by operator" in approved
    assert len(of(crew, "e", EngineSession)) == 1


@pytest.mark.long
@pytest.mark.linux("sandbox")
@pytest.mark.usefixtures("known")
@of_engines
def test_what_a_command_of_codex_prints_is_its_result(crew: Crew) -> None:
    crew.answer(spawn(crew, "e", "[[run echo hi; run echo no >&2; force a.txt x; say done]]", engine="codex"))
    assert [each.content for each in of(crew, "e", ToolResult)] == ["hi\n", "", "written"]
    assert [(each.name, each.file) for each in of(crew, "e", ToolStart)][-1] == ("write_file", "a.txt")


@pytest.mark.long
@pytest.mark.linux("sandbox")
@of_engines
@pytest.mark.usefixtures("known")
def test_an_engine_answers_notes_in_the_text_of_its_plan(crew: Crew) -> None:
    second = "1. write it\n\n**n1:** after the tests\n- n7: what?"
    spawn(crew, "e", f"[[plan 1. write it; plan {second}; say done]]", engine="claude", plan=True)
    first = crew.pending("plan_approval")
    notes = [NewNote(1, 1, "when?"), NewNote(1, 1, "where?")]
    answers.reject(crew.team, first.id, "", notes=notes)
    eventually(lambda: crew.see("e").status.waiting_for not in (None, first.id), "the next version")
    found = notes_in(crew.pending("plan_approval").payload)
    assert [(each.id, each.answer, each.state) for each in found] == [
        ("n1", "after the tests", "answered"), ("n2", "", "open"),
    ]  # fmt: skip
    assert 'begin with the id of a note, as in "n1: moved it up", say what you did about each note: n1, n2.' in told(
        crew, "e"
    )


@pytest.mark.long
@pytest.mark.linux("sandbox")
@of_engines
@pytest.mark.usefixtures("known")
def test_an_engine_is_refused_what_only_a_held_step_names(crew: Crew) -> None:
    steps = "1. Add a.txt\n2. Run `touch b.txt`, add c.md"
    prompt = f"[[plan {steps}; run touch b.txt; write c.md x; write a.txt x; say done]]"
    assignment = spawn(crew, "e", prompt, engine="claude", plan=True)
    answers.approve(crew.team, crew.pending("plan_approval").id, terms=Terms(hold=[2]))
    request = crew.pending("permission")
    assert request.payload["input"] == {"path": "a.txt", "content": "x"}, "nothing else is asked for"
    answers.approve(crew.team, request.id)
    crew.answer(assignment)
    assert [each.exists() for each in (crew.root / "a.txt", crew.root / "b.txt", crew.root / "c.md")] == [
        True, False, False,
    ]  # fmt: skip
    said = told(crew, "e")
    assert (
        "Refused to you, where your permission is asked for it, because only step 2 names it: c.md, touch b.txt."
        in said
    )
    assert "held step 2 of your plan is not approved, and only that step names touch b.txt" in said


@pytest.mark.long
@of_engines
def test_another_command_is_another_engine(crew: Crew) -> None:
    crew.answer(spawn(crew, "e", "[[say one]]", "--no-load"))
    crew.wait_for("e", "idle")
    with pytest.raises(UsageError, match=r"hired with other options \(engine\)"):
        again(crew, command())
    with pytest.raises(UsageError, match=r"hired with other options \(engine\)"):
        again(crew, "claude")
    crew.answer(again(crew, command("--no-load")))


def again(crew: Crew, engine: str) -> hiring.Assignment:
    return spawn(crew, "e", "[[say two]]", engine=engine, given=frozenset())


TRIES = """
from crewboard.worker import engine_turn
engine_turn._PLAN_FOLLOWS = 1.0
before = engine_turn.Turn._steer
def steer(self):
    (self._run_state.agent.engine_home / "at-try").touch()
    return before(self)
engine_turn.Turn._steer = steer
"""
"""Code that leaves a mark when a worker would send mail into a turn."""


@pytest.mark.long
@pytest.mark.linux("fork")
@pytest.mark.parametrize("how", ["", "--no-steering", "--declines"])
def test_mail_enters_a_turn_if_the_engine_takes_it(crew: Crew, how: str) -> None:
    with patched(TRIES):
        assignment = spawn(crew, "e", "[[say begin; wait here; say done]]", *([how] if how else []))
        at(crew, "e", "here")
        (home(crew, "e") / "at-try").unlink(missing_ok=True)
        letter = messages.send(crew.team, "e", "one more thing")
        at(crew, "e", "try")
        if how != "--no-steering":
            event = Offered if how else Taken
            eventually(lambda: any(letter.id in each.texts for each in of(crew, "e", event)), "the letter being sent")
        go(crew, "e", "here")
        first = crew.answer(assignment)
    # One that was declined is told in a turn of its own, before the answer.
    assert (letter.id in first.answers) is (how != "--no-steering")
    crew.answer_to("e", letter.id)
    crew.wait_for_rest("e")
    assert told(crew, "e").count(f'id="{letter.id}"') == 1
    assert not (home(crew, "e") / "at-unoffered").exists()


@pytest.mark.long
@of_engines
def test_an_engine_may_ask_before_it_takes_mail(crew: Crew) -> None:
    assignment = spawn(crew, "e", "[[say begin; wait here; say done]]", "--asks-first")
    at(crew, "e", "here")
    letter = messages.send(crew.team, "e", "one more thing")
    answers.approve(crew.team, crew.pending("permission").id)
    eventually(lambda: any(letter.id in each.texts for each in of(crew, "e", Taken)), "the letter being taken")
    go(crew, "e", "here")
    assert letter.id in crew.answer(assignment).answers


@pytest.mark.long
@pytest.mark.linux("fork")
@of_engines
@pytest.mark.usefixtures("loads")
def test_nothing_is_sent_into_a_turn_that_asks(crew: Crew) -> None:
    assignment = spawn(crew, "e", "[[say begin; ask Plan.; say done]]", "--withdraws", plan=True)
    at(crew, "e", "ask-0")
    letter = messages.send(crew.team, "e", "one more thing")
    request = crew.pending("plan_approval")
    answers.approve(crew.team, request.id)
    assert crew.answer(assignment).text
    crew.answer_to("e", letter.id)
    assert [each.status for each in requests.load_all(crew.directory)] == ["approved"]


@pytest.mark.long
@pytest.mark.linux("fork")
@of_engines
@pytest.mark.parametrize(
    ("step", "options", "point"),
    # A call that was told and not asked about; a question about a call that was not told, whose plan is awaited.
    [("run true", ["--hold", "asks"], "asks"), ("plan", ["--codex"], "ask-0")],
)
def test_mail_waits_for_what_an_engine_is_about_to_ask(crew: Crew, step: str, options: list[str], point: str) -> None:
    with patched(TRIES):
        prompt = f"[[say begin; {step}; wait here; say done]]"
        assignment = spawn(crew, "e", prompt, "--withdraws", *options, kind="explore")
        at(crew, "e", point)
        (home(crew, "e") / "at-try").unlink(missing_ok=True)
        letter = messages.send(crew.team, "e", "one more thing")
        at(crew, "e", "try")
        go(crew, "e", point)
        answers.approve(crew.team, crew.pending("permission").id)
        at(crew, "e", "here")
        eventually(lambda: any(letter.id in each.texts for each in of(crew, "e", Taken)), "the letter being taken")
        go(crew, "e", "here")
        assert letter.id in crew.answer(assignment).answers
    # It entered the turn as soon as nothing was asked.
    events = crew.events("e")
    (sent,) = [at for at, each in enumerate(events) if isinstance(each, Offered) and letter.id in each.texts]
    assert sent < next(at for at, each in enumerate(events) if isinstance(each, ToolResult))


@pytest.mark.long
@pytest.mark.linux("fork")
@of_engines
def test_mail_waits_until_an_engine_has_its_prompt(crew: Crew) -> None:
    with patched(TRIES):
        assignment = spawn(crew, "e", "[[wait here; say begin; wait there; say done]]")
        at(crew, "e", "here")
        (home(crew, "e") / "at-try").unlink(missing_ok=True)
        letter = messages.send(crew.team, "e", "one more thing")
        at(crew, "e", "try")
        go(crew, "e", "here")
        at(crew, "e", "there")
        eventually(lambda: any(letter.id in each.texts for each in of(crew, "e", Taken)), "the letter being taken")
        go(crew, "e", "there")
        assert letter.id in crew.answer(assignment).answers
    told = [(type(each), each.texts) for each in crew.events("e") if isinstance(each, Offered | Taken)]
    assert [kind for kind, _ in told] == [Offered, Taken, Offered, Taken]


SLOW_EAR = """
import asyncio
from crewboard.worker import engine_turn
before = engine_turn.Turn._hear
async def hear(self, heard):
    home = self._run_state.agent.engine_home
    (home / "at-ear").touch()
    while not (home / "go-ear").exists():
        await asyncio.sleep(0.01)
    await before(self, heard)
engine_turn.Turn._hear = hear
"""
"""Code that lets a worker hear what an engine tells when a test wants."""


@pytest.mark.long
@pytest.mark.linux("fork")
@of_engines
def test_mail_enters_no_turn_before_all_of_it_is_heard(crew: Crew) -> None:
    with patched(SLOW_EAR):
        assignment = spawn(crew, "e", "[[say begin; run true; say done]]", "--withdraws", "--hold", "asks")
        at(crew, "e", "ear")
        at(crew, "e", "asks")
        letter = messages.send(crew.team, "e", "one more thing")
        go(crew, "e", "ear")
        eventually(lambda: of(crew, "e", ToolStart), "the call being journalled")
        go(crew, "e", "asks")
        answers.approve(crew.team, crew.pending("permission").id)
        assert letter.id in crew.answer(assignment).answers


WOKEN_ONCE = """
import asyncio
from crewboard.store import mailbox
from crewboard.worker import interrupts
interrupts.SWEEP_INTERVAL = interrupts.CALM_SWEEP_INTERVAL = 600.0
search = interrupts.Interrupts.pending_interrupts
def look(self):
    home, run_state = self._run_state.agent.engine_home, self._run_state
    unread = mailbox.size(run_state.team, run_state.name) > run_state.conversation.cursor
    if unread and (home / "at-ear").exists() and not (home / "at-look").exists():
        self._wake = asyncio.Event()
        (home / "at-look").touch()
    return search(self)
interrupts.Interrupts.pending_interrupts = look
"""
"""Code that wakes a worker once for a letter, leaves a mark then, and lets it look at no other time."""


@pytest.mark.long
@pytest.mark.linux("fork")
@of_engines
def test_mail_enters_a_turn_although_more_is_told_meanwhile(crew: Crew) -> None:
    with patched(SLOW_EAR + WOKEN_ONCE):
        assignment = spawn(crew, "e", "[[say begin; say more; wait here; say done]]")
        at(crew, "e", "ear")
        at(crew, "e", "here")
        letter = messages.send(crew.team, "e", "one more thing")
        at(crew, "e", "look")
        go(crew, "e", "ear")
        eventually(lambda: any(letter.id in each.texts for each in of(crew, "e", Taken)), "the letter being taken")
        go(crew, "e", "here")
        assert letter.id in crew.answer(assignment).answers


def meanwhile(crew: Crew, step: str) -> None:
    """Let an engine take a step while its first question waits."""
    (home(crew, "e") / "call.new").write_text(step)
    (home(crew, "e") / "call.new").rename(home(crew, "e") / "call")


@pytest.mark.long
@of_engines
@pytest.mark.parametrize("how", ["--withdraws", "--withdraws-silently"])
@pytest.mark.parametrize("step", ["run true", "insist Plan.; wait here"])
def test_a_question_that_an_engine_withdraws_is_closed(crew: Crew, how: str, step: str) -> None:
    assignment = spawn(crew, "e", f"[[{step}; say done]]", how)
    request = crew.pending("permission" if step == "run true" else "plan_approval")
    meanwhile(crew, 'team send_message {"to": "operator", "content": "meanwhile"}')
    # A tool of the team answers meanwhile.
    eventually((home(crew, "e") / "results").exists, "the call of the team")
    eventually(lambda: crew.see("e").status.waiting_for == request.id, "the wait for the answer")
    (home(crew, "e") / "withdraw-0").touch()
    # The turn goes on behind a plan.
    eventually(lambda: [each.status for each in requests.load_all(crew.directory)] == ["cancelled"], "the withdrawal")
    if step != "run true":
        at(crew, "e", "here")
        eventually(lambda: crew.see("e").status.waiting_for is None, "the status that it works")
    go(crew, "e", "here")
    crew.answer(assignment)
    ended = {each.tool_use_id: each.is_error for each in of(crew, "e", ToolResult) if each.name != "send_message"}
    assert list(ended.values()) == [True], "the call ends once"
    assert len([each for each in of(crew, "e", ToolResult) if each.tool_use_id in ended]) == 1


@pytest.mark.long
@of_engines
@pytest.mark.parametrize("step", ["run true", "plan Plan."])
def test_a_question_that_outlasts_its_turn_is_closed(crew: Crew, step: str) -> None:
    assert crew.answer(spawn(crew, "e", f"[[say begin; leave {step}; say done]]")).text == "done"
    assert [each.status for each in requests.load_all(crew.directory)] == ["cancelled"]
    withdrawn = [each.is_error for each in of(crew, "e", ToolResult) if each.content.endswith("withdrew this plan")]
    assert withdrawn == ([True] if step == "plan Plan." else [])
    # It holds up no mail of later turns.
    second = messages.send(crew.team, "e", "[[say more; wait here; say two]]")
    at(crew, "e", "here")
    letter = messages.send(crew.team, "e", "one more thing")
    eventually(lambda: any(letter.id in each.texts for each in of(crew, "e", Taken)), "the letter being taken")
    go(crew, "e", "here")
    assert letter.id in crew.answer_to("e", second.id).answers


@pytest.mark.long
@pytest.mark.linux("sandbox")
@of_engines
@pytest.mark.usefixtures("known")
def test_a_plan_waits_on_when_its_engine_is_gone(crew: Crew) -> None:
    assignment = spawn(crew, "e", "[[plan First.; force a.txt x; say done]]", engine="claude", plan=True)
    request = crew.pending("plan_approval")
    for pid in filter(is_engine, processes(crew, "e")):
        process.send_signal(pid, signal.SIGKILL)
    eventually(lambda: processes(crew, "e") == [], "the end of the engine")
    answers.approve(crew.team, request.id)
    assert crew.answer(assignment).text == "done"
    assert [each.status for each in requests.load_all(crew.directory)] == ["approved"]


@pytest.mark.long
@of_engines
@pytest.mark.parametrize("is_withdrawn", [False, True])
def test_a_second_question_waits_for_the_answer_to_the_first(crew: Crew, *, is_withdrawn: bool) -> None:
    assignment = spawn(crew, "e", "[[run touch a.txt; wait here; say done]]", "--withdraws")
    first = crew.pending("permission")
    meanwhile(crew, "run touch b.txt")
    at(crew, "e", "ask-1")
    if is_withdrawn:
        (home(crew, "e") / "withdraw-1").touch()
        eventually(lambda: of(crew, "e", ToolResult), "the withdrawal")
    # What it tells behind its question was heard.
    meanwhile(crew, "force c.txt x")
    eventually(lambda: "write_file" in [each.name for each in of(crew, "e", ToolResult)], "the end of the call")
    answers.approve(crew.team, first.id)
    if not is_withdrawn:
        eventually(lambda: crew.see("e").status.waiting_for not in (None, first.id), "the second question")
        second = crew.pending("permission")
        assert second.payload["input"] == {"command": "touch b.txt"}
        answers.approve(crew.team, second.id)
        eventually((crew.root / "b.txt").exists, "the second call")
    go(crew, "e", "here")
    assert crew.answer(assignment).text == "done"
    asked = [each.payload["input"] for each in requests.load_all(crew.directory)]
    assert len(asked) == (1 if is_withdrawn else 2)
    assert (crew.root / "a.txt").exists()


@pytest.mark.long
@of_engines
def test_a_plan_told_behind_its_withdrawal_is_asked_about_no_more(crew: Crew) -> None:
    assignment = spawn(crew, "e", "[[ask Plan.; wait here; say done]]", "--withdraws", "--hold", "tell")
    at(crew, "e", "ask-0")
    (home(crew, "e") / "withdraw-0").touch()
    at(crew, "e", "here")
    go(crew, "e", "tell")
    at(crew, "e", "told")
    go(crew, "e", "here")
    assert crew.answer(assignment).text == "done"
    assert requests.load_all(crew.directory) == []


SLOW_TOOL = """
import asyncio
from crewboard.worker import engine, engine_turn, interrupts
before, wait = engine_turn.run_team_tool, interrupts.Interrupts.wait_for_decision
async def slow(context, *given):
    home = context.run_state.agent.engine_home
    (home / "at-tool").touch()
    while not (home / "go-tool").exists():
        await asyncio.sleep(0.01)
    return await before(context, *given)
async def wait_for_decision(self, *given):
    decided = await wait(self, *given)
    (self._run_state.agent.engine_home / "at-decision").touch()
    return decided
engine_turn.run_team_tool = slow
interrupts.Interrupts.wait_for_decision = wait_for_decision
engine.EngineLife._cancel.__defaults__ = (0.5,)
"""
"""Code that lets a tool of the team run for as long as a test wants."""

MESSAGE = 'team send_message {"to": "operator", "content": "meanwhile"}'


@pytest.mark.long
@pytest.mark.linux("fork")
@of_engines
def test_a_decision_cuts_off_no_call_of_the_team(crew: Crew) -> None:
    with patched(SLOW_TOOL):
        assignment = spawn(crew, "e", "[[run true; wait here; say done]]", "--withdraws")
        request = crew.pending("permission")
        meanwhile(crew, MESSAGE)
        at(crew, "e", "tool")
        answers.approve(crew.team, request.id)
        at(crew, "e", "decision")
        go(crew, "e", "tool")
        eventually((home(crew, "e") / "results").exists, "the result of the call")
        go(crew, "e", "here")
        assert crew.answer(assignment).text == "done"
    assert results(crew, "e") == [["send_message", "sent to operator", False]]


@pytest.mark.long
@pytest.mark.linux("fork")
@of_engines
def test_an_interrupt_closes_a_question_during_a_call_of_the_team(crew: Crew) -> None:
    with patched(LOADS + SLOW_TOOL):
        spawn(crew, "e", "[[run true; say done]]", "--withdraws")
        crew.pending("permission")
        meanwhile(crew, MESSAGE)
        at(crew, "e", "tool")
        control.interrupt(crew.team, "e", "stop that")
        eventually(lambda: requests.load_all(crew.directory)[0].status == "cancelled", "its end")


BROKEN_TOOL = """
from crewboard.errors import StorageError
from crewboard.worker import engine_turn
async def broken(*_):
    raise StorageError("the disk is full")
engine_turn.run_team_tool = broken
"""


@pytest.mark.long
@pytest.mark.linux("fork")
@of_engines
def test_a_tool_that_cannot_be_kept_ends_the_run_also_during_a_question(crew: Crew) -> None:
    with patched(BROKEN_TOOL):
        spawn(crew, "e", "[[run true; say done]]", "--withdraws")
        crew.pending("permission")
        meanwhile(crew, MESSAGE)
        eventually(lambda: "the disk is full" in crew.agent("e").log.read_text(), "the error")


@pytest.mark.long
def test_mail_on_its_way_into_a_turn_is_not_doubled(crew: Crew) -> None:
    spawn(crew, "e", "[[say begin; wait here; say done]]", "--hold", "steer")
    at(crew, "e", "here")
    letter = messages.send(crew.team, "e", "one more thing")
    at(crew, "e", "steer")
    control.interrupt(crew.team, "e", "stop that")
    # The turn ends before it is known that the engine has the letter.
    at(crew, "e", "cancel")
    go(crew, "e", "steer")
    go(crew, "e", "here")
    crew.answer_to("e", letter.id)
    crew.wait_for_rest("e")
    assert told(crew, "e").count(f'id="{letter.id}"') == 1
    assert len(of(crew, "e", EngineSession)) == 1


@pytest.mark.long
@pytest.mark.linux("fork")
@of_engines
@pytest.mark.parametrize("point", ["store", "model"])
@pytest.mark.usefixtures("loads")
def test_a_cancelled_prompt_without_an_answer_is_looked_up(crew: Crew, point: str) -> None:
    first = spawn(crew, "e", "[[say one]]", "--hold", point)
    at(crew, "e", point)
    go(crew, "e", point)
    crew.answer(first)
    crew.wait_for_rest("e")
    for mark in (f"go-{point}", f"at-{point}"):
        (home(crew, "e") / mark).unlink()
    letter = messages.send(crew.team, "e", "[[say two]]")
    at(crew, "e", point)
    control.interrupt(crew.team, "e", "stop that")
    at(crew, "e", "cancel")
    go(crew, "e", point)
    crew.answer_to("e", letter.id)
    crew.wait_for_rest("e")
    assert told(crew, "e").count(f'id="{letter.id}"') == 1
    # The session of the first turn is the one in which it is looked up.
    assert [each.loaded for each in of(crew, "e", EngineSession)] == [False, True]


@pytest.mark.long
@of_engines
def test_an_engine_that_falls_silent_is_stuck(crew_on: Callable[..., Crew]) -> None:
    crew = crew_on(CREWBOARD_PROGRESS_TIMEOUT="0.5")
    assignment = spawn(crew, "e", "[[say a; wait here; say b; run sleep 0.1; wait there; say done]]")
    at(crew, "e", "here")
    assert crew.wait_for("e", "stuck").reason == "no progress past its deadline: works"
    assert [need.agent for need in crew.view().needs if need.kind == "stuck"] == ["e"]
    go(crew, "e", "here")
    # One that waits for a person is not, nor is a command that takes longer.
    answers.approve(crew.team, crew.pending("permission").id)
    at(crew, "e", "there")
    crew.wait_for("e", "stuck")
    go(crew, "e", "there")
    assert crew.answer(assignment).text == "done"
    crew.wait_for("e", "idle")


@pytest.mark.long
@of_engines
def test_a_call_with_a_deep_input_does_not_end_the_worker(crew: Crew) -> None:
    assignment = spawn(crew, "e", "[[deep look; say done]]")
    request = crew.pending("permission")
    given = request.payload["input"]
    assert isinstance(given, dict)
    assert given["what"] == "look"
    assert "nested too deeply" in str(given["options"])
    answers.approve(crew.team, request.id)
    assert crew.answer(assignment).text == "done"
    assert crew.see("e").run == 1


def test_an_interrupt_cancels_the_turn_and_is_read(crew: Crew) -> None:
    assignment = spawn(crew, "e", "[[say before; wait here; say after]]")
    at(crew, "e", "here")
    control.interrupt(crew.team, "e", "stop that")
    eventually(lambda: "stop that" in told(crew, "e"), "the interrupt being read")
    go(crew, "e", "here")
    assert crew.answer(assignment).text == "after"
    assert "stop that" in told(crew, "e")
    assert [each.stop_reason for each in of(crew, "e", Reply)] == ["cancelled", "end_turn"]
    # The same process goes on.
    assert len(of(crew, "e", EngineSession)) == 1


DISK_FULL_ONCE = """
from crewboard.errors import StorageError
from crewboard.store import journal
append, failed = journal.append, []
def append_later(file, event, *rest):
    if getattr(event, "stop_reason", "") == "cancelled" and not failed:
        failed.append(event)
        raise StorageError("the disk is full")
    return append(file, event, *rest)
journal.append = append_later
"""
"""Code that lets a worker write the end of a turn that was cancelled only at its second try."""


@pytest.mark.long
@pytest.mark.linux("fork")
def test_a_turn_whose_end_is_written_late_is_counted_once(crew: Crew) -> None:
    with patched(DISK_FULL_ONCE):
        spawn(crew, "e", "[[say before; wait here; say after]]")
        at(crew, "e", "here")
        # So that no other turn follows.
        operations.pause(crew.team, "e")
        control.interrupt(crew.team, "e", "stop that")
        crew.wait_for("e", "paused")
    stop.stop_now(crew.team, "e")
    (reply,) = of(crew, "e", Reply)
    assert [block["text"] for block in reply.content] == ["before"]
    assert crew.see("e").status.tokens == reply.usage


INTERRUPTED_LATE = """
from crewboard.store import mailbox
from crewboard.worker import inbox
take_in, sent = inbox.take_in, []
def take_late(run_state, **options):
    if (run_state.agent.engine_home / "at-here").exists() and not sent:
        message = mailbox.compose("operator", run_state.name, "interrupt", "stop that", ts=run_state.now())
        sent.append(mailbox.send(run_state.team, message, durable=True))
    return take_in(run_state, **options)
inbox.take_in = take_late
"""
"""Code that sends an interrupt just when a worker has seen that there is none, and takes in other mail."""


@pytest.mark.long
@pytest.mark.linux("fork")
@of_engines
def test_an_interrupt_that_comes_behind_mail_cancels_the_turn(crew: Crew) -> None:
    with patched(INTERRUPTED_LATE):
        spawn(crew, "e", "[[say before; wait here; say after]]")
        at(crew, "e", "here")
        messages.send(crew.team, "e", "one more thing")
        eventually(lambda: of(crew, "e", Reply), "the end of the turn")
    assert of(crew, "e", Reply)[0].stop_reason == "cancelled"


def test_stop_ends_the_engine_with_all_that_it_started(crew: Crew) -> None:
    spawn(crew, "e", "[[spawn exec sleep 1000; wait here]]")
    at(crew, "e", "here")
    eventually(lambda: len(processes(crew, "e")) >= 3, "the engine's processes")
    stop.stop_now(crew.team, "e")
    crew.wait_for("e", "exited")
    eventually(lambda: processes(crew, "e") == [], "no process of the engine")


POINTS = ("new", "store", "model", "here", "load", "end")
"""The points at which an engine or its worker is killed: before the session is known, before the prompt is stored,
before the model answers, in a tool, while the session is loaded again, before the end of the turn is told."""


@pytest.mark.linux("fork")
@pytest.mark.usefixtures("loads")
@pytest.mark.parametrize("killed", ["worker", "engine"])
@pytest.mark.parametrize("point", default(POINTS, "model"))
def test_no_letter_is_lost_or_doubled_by_a_kill(crew: Crew, point: str, killed: str) -> None:
    assignment = spawn(crew, "e", "[[spawn exec sleep 1000; wait here; say done]]", "--hold", point)
    letters = [assignment.id]
    if point == "load":
        kill(crew, "engine", "here")
    elif point == "end":
        at(crew, "e", "here")
        go(crew, "e", "here")
    at(crew, "e", point)
    letters.append(messages.send(crew.team, "e", "and this").id)
    kill(crew, killed, point)
    go(crew, "e", point)
    at(crew, "e", "here")
    go(crew, "e", "here")
    crew.answer_to("e", letters[0])
    crew.answer_to("e", letters[1])
    crew.wait_for_rest("e")
    for letter in letters:
        assert told(crew, "e").count(f'id="{letter}"') == 1
    sent = of(crew, "e", Answer)
    assert not [each.error for each in sent if each.error]
    assert sorted(ident for each in sent for ident in each.answers) == sorted(letters)
    stop.stop_now(crew.team, "e")
    eventually(lambda: processes(crew, "e") == [], "no process of the engine")


@pytest.mark.long
@pytest.mark.linux("fork")
@pytest.mark.usefixtures("loads")
@pytest.mark.parametrize("killed", ["worker", "engine"])
def test_a_letter_that_the_session_lacks_is_sent_again(crew: Crew, killed: str) -> None:
    first = spawn(crew, "e", "[[say one]]", "--hold", "store")
    at(crew, "e", "store")
    go(crew, "e", "store")
    crew.answer(first)
    crew.wait_for_rest("e")
    for mark in ("go-store", "at-store"):
        (home(crew, "e") / mark).unlink()
    # It is received, and never stored; the session has the letter before it.
    second = messages.send(crew.team, "e", "[[say two]]")
    kill(crew, killed, "store")
    go(crew, "e", "store")
    assert crew.answer_to("e", second.id).text == "two"
    assert [told(crew, "e").count(f'id="{ident}"') for ident in (first.id, second.id)] == [1, 1]
    assert [each.loaded for each in of(crew, "e", EngineSession)] == [False, True]


def kill(crew: Crew, which: str, point: str) -> None:
    """Kill the engine, or its worker, at a point, and let it start again."""
    at(crew, "e", point)
    before = processes(crew, "e")
    engine = [pid for pid in before if is_engine(pid)]
    if which == "worker":
        crew.kill("e")
        crew.wait_for("e", "crashed")
    else:
        for pid in engine:
            process.send_signal(pid, signal.SIGKILL)
    eventually(lambda: not set(before) & set(processes(crew, "e")), "the end of the engine's processes")
    if which == "worker":
        hiring.resume(crew.team, "e")


@pytest.mark.long
@pytest.mark.linux("fork")
@pytest.mark.usefixtures("loads")
def test_what_an_engine_asked_before_it_was_killed_is_asked_no_more(crew: Crew) -> None:
    assignment = spawn(crew, "e", "[[say begin; run touch a.txt; say done]]")
    request = crew.pending("permission")
    for pid in filter(is_engine, processes(crew, "e")):
        process.send_signal(pid, signal.SIGKILL)
    eventually(lambda: crew.see("e").status.waiting_for not in (None, request.id), "another request")
    closed = requests.load(crew.directory, request.id)
    assert closed is not None
    assert closed.status == "cancelled"
    answers.approve(crew.team, crew.pending("permission").id)
    assert crew.answer(assignment).text == "done"
    assert "was not permitted" not in told(crew, "e")


@pytest.mark.long
@pytest.mark.linux("fork")
@pytest.mark.usefixtures("loads")
def test_an_engine_that_cannot_load_is_told_what_it_lost(crew: Crew) -> None:
    assignment = spawn(crew, "e", "[[wait here; say done]]", "--no-load")
    kill(crew, "engine", "here")
    go(crew, "e", "here")
    assert crew.answer(assignment).text == "done"
    assert [each.loaded for each in of(crew, "e", EngineSession)] == [False, False]
    assert "Your earlier session could not be loaded again" in told(crew, "e")


@pytest.mark.long
@pytest.mark.linux("sandbox")
@of_engines
def test_the_engine_of_a_type_runs_once_its_file_is_accepted(crew: Crew) -> None:
    folder = crew.root / ".crewboard" / "agents"
    folder.mkdir(parents=True, exist_ok=True)

    def bring(engine: str) -> AgentType:
        front = f"name: foreign\ndescription: works\n{f'engine: {json.dumps(engine)}' if engine else ''}"
        (folder / "foreign.md").write_text(f"---\n{front}\n---\nWork.\n")
        return type_files.find(crew.root, "foreign")

    def hire() -> hiring.Assignment:
        return hiring.spawn(crew.team, hiring.Hire("e", "foreign", "hello"))

    # A file that was accepted says no more than it did.
    type_files.accept(bring(""), crew.environment)
    kind = bring(command())
    with pytest.raises(UntrustedError, match=r"runs the engine `acp:.*fake_engine\.py` in place of a model"):
        hire()
    assert not home(crew, "e").exists()
    # An older version did not understand the field, so a yes to it is a yes to less.
    type_files.accept(dataclasses.replace(kind, engine=""), crew.environment)
    with pytest.raises(UntrustedError):
        hire()
    type_files.accept(kind, crew.environment)
    assert crew.answer(hire()).text == "ok"
    assert "hello" in told(crew, "e")
    (folder / "served.md").write_text("---\nname: served\ndescription: works\nmcp: time\n---\nWork.\n")
    type_files.accept(type_files.find(crew.root, "served"), crew.environment)
    with pytest.raises(UsageError, match="which gets no MCP servers of crewboard's"):
        hiring.spawn(crew.team, hiring.Hire("f", "served", "hello", engine=command()))
    type_files.accept(bring("gpt"), crew.environment)
    with pytest.raises(UsageError, match="there is no engine 'gpt'; the engines are claude, claude-gated, codex"):
        hiring.spawn(crew.team, hiring.Hire("f", "foreign", "hello"))


@of_engines
def test_a_file_for_an_engine_is_refused_and_never_dropped(crew: Crew, tmp_path: Path) -> None:
    picture = tmp_path / "a.pdf"
    picture.write_bytes(b"%PDF-1.4\n/Type /Page\n%%EOF")
    crew.answer(spawn(crew, "e", "hello"))
    with pytest.raises(UsageError, match="nothing can be attached to a message for e: its engine is sent text alone"):
        messages.send(crew.team, "e", "see this", [picture])
    crew.wait_for_rest("e")
    assert "see this" not in told(crew, "e")


@of_engines
def test_another_engine_is_not_trusted_to_load(crew: Crew) -> None:
    assignment = spawn(crew, "e", "[[wait here; say done]]")
    kill(crew, "engine", "here")
    go(crew, "e", "here")
    assert crew.answer(assignment).text == "done"
    crew.wait_for_rest("e")
    # Each session was told the letter once.
    first, second = of(crew, "e", EngineSession)
    assert (first.loaded, second.loaded) == (False, False)
    assert first.session != second.session
    assert told(crew, "e").count(f'id="{assignment.id}"') == 2
    assert "Your earlier session could not be loaded again" in told(crew, "e")
    assert not (home(crew, "e") / "loaded").exists()


@pytest.mark.long
@pytest.mark.linux("fork")
@pytest.mark.usefixtures("loads")
def test_an_engine_that_ends_again_and_again_fails_with_its_words(crew: Crew) -> None:
    answer = crew.answer(spawn(crew, "e", "hello", "--die-at-prompt"))
    assert answer.code == ExitCode.FAILED
    assert answer.error is not None
    assert "exit code 3" in answer.error
    once = crew.answer(spawn(crew, "f", "[[die; say still here]]"))
    assert once.text == "still here"


@pytest.mark.long
@pytest.mark.linux("fork")
@of_engines
@pytest.mark.usefixtures("loads")
@pytest.mark.parametrize("step", ["lose", "drop"])
def test_an_engine_that_lost_its_program_is_started_again(crew: Crew, step: str) -> None:
    assignment = spawn(crew, "e", f"[[{step}; say still here]]")
    assert crew.answer(assignment).text == "still here"
    assert [each.loaded for each in of(crew, "e", EngineSession)] == [False, True]
    assert told(crew, "e").count(f'id="{assignment.id}"') == 1


@pytest.mark.long
@pytest.mark.linux("fork")
@of_engines
@pytest.mark.usefixtures("loads")
@pytest.mark.parametrize("error", ["The Claude Agent process exited unexpectedly.", "Internal error"])
def test_a_session_that_does_not_load_at_once_is_kept(crew: Crew, error: str) -> None:
    first = crew.answer(spawn(crew, "e", "[[say one]]", "--load-error", error))
    assert first.text == "one"
    second = messages.send(crew.team, "e", "[[wait here; say two]]")
    kill(crew, "engine", "here")
    go(crew, "e", "here")
    assert crew.answer_to("e", second.id).text == "two"
    assert [each.loaded for each in of(crew, "e", EngineSession)] == [False, True]
    assert told(crew, "e").count(f'id="{second.id}"') == 1


@pytest.mark.long
@pytest.mark.linux("fork")
@pytest.mark.usefixtures("loads")
def test_a_session_that_ends_the_engine_at_each_load_is_given_up(crew: Crew) -> None:
    assert crew.answer(spawn(crew, "e", "[[say one]]", "--die-at-load")).text == "one"
    second = messages.send(crew.team, "e", "[[wait here; say two]]")
    kill(crew, "engine", "here")
    go(crew, "e", "here")
    eventually(lambda: crew.see("e").waits_for_api, "the wait for the engine")
    assert [each.loaded for each in of(crew, "e", EngineSession)] == [False]
    control.interrupt(crew.team, "e", "try it again")
    assert crew.answer_to("e", second.id).text == "two"
    assert [each.loaded for each in of(crew, "e", EngineSession)] == [False, False]
    assert "Your earlier session could not be loaded again" in told(crew, "e")


@pytest.mark.long
@pytest.mark.linux("fork")
@pytest.mark.usefixtures("loads")
def test_a_session_whose_loads_are_killed_is_kept(crew: Crew) -> None:
    assert crew.answer(spawn(crew, "e", "[[say one]]", "--killed-loads", "4")).text == "one"
    second = messages.send(crew.team, "e", "[[wait here; say two]]")
    kill(crew, "engine", "here")
    go(crew, "e", "here")
    eventually(lambda: crew.see("e").waits_for_api, "the wait for the engine")
    control.interrupt(crew.team, "e", "try it again")
    assert crew.answer_to("e", second.id).text == "two"
    assert [each.loaded for each in of(crew, "e", EngineSession)] == [False, True]


@pytest.mark.long
@pytest.mark.linux("fork")
def test_a_letter_that_is_stored_and_not_replayed_is_not_doubled(crew: Crew) -> None:
    with patched(STORED):
        assert crew.answer(spawn(crew, "e", "[[say one]]", "--forgets")).text == "one"
        second = messages.send(crew.team, "e", "[[wait here; say two]]")
        kill(crew, "worker", "here")
        go(crew, "e", "here")
        assert crew.answer_to("e", second.id).text == "two"
    assert [each.loaded for each in of(crew, "e", EngineSession)] == [False, True]
    assert told(crew, "e").count(f'id="{second.id}"') == 1


@pytest.mark.long
@pytest.mark.linux("fork")
@of_engines
@pytest.mark.usefixtures("loads")
def test_an_engine_that_worked_keeps_its_work_whatever_ends_it(crew: Crew) -> None:
    assert crew.answer(spawn(crew, "e", "[[say one]]")).text == "one"
    second = messages.send(crew.team, "e", "[[die; die; die; say still here]]")
    eventually(lambda: crew.see("e").waits_for_api, "the wait for the engine")
    (need,) = [each for each in crew.view().needs if each.kind == "outage"]
    assert need.summary.startswith("another engine ended: exit code 7; e waits until ")
    control.interrupt(crew.team, "e", "it is repaired")
    assert crew.answer_to("e", second.id).text == "still here"
    assert not [each.error for each in of(crew, "e", Answer) if each.error]


@pytest.mark.long
@pytest.mark.linux("fork")
@of_engines
@pytest.mark.usefixtures("own_words")
def test_a_turn_whose_stream_broke_is_taken_again(crew: Crew) -> None:
    broken = "stream disconnected before completion: stream closed before response.completed"
    assignment = spawn(crew, "e", f"[[break {broken}; say done]]")
    eventually(lambda: crew.see("e").waits_for_api, "the wait for the API")
    (retry,) = of(crew, "e", Retry)
    assert broken in retry.error
    letter = control.interrupt(crew.team, "e", "try it now")
    assert crew.answer(assignment).text == "done"
    assert [told(crew, "e").count(f'id="{each}"') for each in (assignment.id, letter.id)] == [1, 1]


@pytest.mark.long
@pytest.mark.linux("fork")
@of_engines
@pytest.mark.usefixtures("own_words")
def test_an_error_in_an_engines_own_words_is_no_result(crew: Crew) -> None:
    answer = crew.answer(spawn(crew, "e", "[[say begun; break the conversation is too long]]"))
    assert (answer.code, answer.text) == (ExitCode.FAILED, "")
    assert answer.error is not None
    assert answer.error.endswith("the conversation is too long")


@pytest.mark.long
@pytest.mark.linux("fork")
@of_engines
@pytest.mark.usefixtures("own_words")
def test_a_remark_of_an_engine_is_no_part_of_its_result(crew: Crew) -> None:
    answer = crew.answer(spawn(crew, "e", "[[own not so good; say done; own Warning: it is late]]"))
    assert (answer.error, answer.text) == (None, "done")
    # In the preview it would stand as if the agent said it.
    assert "Warning: it is late\n" in crew.agent("e").log.read_text()


@pytest.mark.long
@of_engines
def test_a_killed_relay_of_the_tools_is_no_error_of_the_worker(crew: Crew) -> None:
    assignment = spawn(crew, "e", "[[wait here; say done]]")
    at(crew, "e", "here")
    (relay,) = (pid for pid in processes(crew, "e") if RELAY in process.arguments(pid))
    process.send_signal(relay, signal.SIGKILL)
    eventually(lambda: not process.start_ticks(relay), "its end")
    go(crew, "e", "here")
    assert crew.answer(assignment).text == "done"
    stop.stop_now(crew.team, "e")
    assert "Traceback" not in crew.agent("e").log.read_text()


def results(crew: Crew, name: str) -> list[list[Any]]:
    """Return what the tools of the team gave an engine: name, text, and whether it was an error."""
    return [json.loads(line) for line in (home(crew, name) / "results").read_text().splitlines()]


def letters(crew: Crew, name: str, text: str) -> int:
    """Return how often an agent was sent a text."""
    return [each.content for each in mailbox.read(crew.directory, name).messages].count(text)


@pytest.mark.linux("sandbox")
def test_an_engine_uses_the_tools_of_the_team(crew: Crew) -> None:
    first = tasks.add_task(crew.team, "one")
    prompt = (
        'team send_message {"to": "operator", "content": "hello"}; team task_list; '
        f'team task_claim {{"task_id": {first.id}}}; '
        f'team task_update {{"task_id": {first.id}, "status": "completed"}}; '
        'team send_message {"to": "operator"}; team bash {"command": "touch x"}; '
        'team ask_operator {"question": "which?"}; say done'
    )
    assignment = spawn(crew, "e", f"[[{prompt}]]", kind="explore")
    # What is not offered is asked for as any other call, and there is no such tool.
    answers.approve(crew.team, crew.pending("permission", "e").id)
    question = crew.pending("question", "e")
    assert question.payload["question"] == "which?"
    relays = [pid for pid in processes(crew, "e") if RELAY in process.arguments(pid)]
    assert len(relays) == 1
    (used,) = re.findall(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{relays[0]}/status").read_text())
    assert int(used) < 15 << 10
    answers.answer(crew.team, question.id, "the first")
    assert crew.answer(assignment).text == "done"
    sent, listed, claimed, completed, wrong, missing, answered = results(crew, "e")
    assert sent == ["send_message", "sent to operator", False]
    assert "#1 one" in listed[1]
    assert "task 1 is yours" in claimed[1]
    assert completed[1] == "task 1 is completed"
    assert (wrong[2], "content" in wrong[1]) == (True, True)
    assert (missing[2], "the team's tools are send_message" in missing[1]) == (True, True)
    assert answered[1:] == ["the operator answers: the first", False]
    assert letters(crew, "operator", "hello") == 1
    # Each is in the journal once, and those that are offered needed no permission.
    named = [each.name for each in of(crew, "e", ToolStart)]
    first_ones = ["send_message", "task_list", "task_claim", "task_update", "send_message"]
    assert named == [*first_ones, "mcp__crewboard__bash", "ask_operator"]
    assert sorted(each.type for each in requests.load_all(crew.directory)) == ["permission", "question"]
    assert not (crew.root / "x").exists()
    assert "the answer will reach you" not in told(crew, "e")


@pytest.mark.long
@pytest.mark.parametrize(("step", "tool"), [("run touch a.txt", "bash"), ("write a.txt x", "write_file")])
@of_engines
def test_an_input_makes_no_call_one_of_the_team(crew: Crew, step: str, tool: str) -> None:
    assignment = spawn(crew, "e", f"[[{step}; say after]]", "--feigns")
    request = crew.pending("permission")
    assert request.payload["tool"] == tool
    answers.reject(crew.team, request.id, "no")
    assert crew.answer(assignment).text == "after"
    assert not (crew.root / "a.txt").exists()
    assert tool in [each.name for each in of(crew, "e", ToolStart)]


DECLARED = '{"mcpServers": {"crewboard": {"command": "true"}}}'


@pytest.mark.long
@pytest.mark.parametrize(
    ("tool", "file", "text"),
    [
        ("bash", "", ""),
        ("send_message", ".mcp.json", DECLARED),
        ("send_message", ".codex/config.toml", '[mcp_servers.crewboard]\ncommand = "true"\n'),
    ],
)
@of_engines
def test_a_server_of_our_name_is_not_trusted(crew: Crew, tool: str, file: str, text: str) -> None:
    if file:
        (crew.root / file).parent.mkdir(exist_ok=True)
        (crew.root / file).write_text(text)
    assignment = spawn(crew, "e", f'[[team {tool} {{"to": "operator", "content": "hello"}}; say done]]')
    request = crew.pending("permission")
    assert request.payload["tool"] == f"mcp__crewboard__{tool}"
    why = f": {os.path.realpath(crew.root / file)} declares a server named crewboard, or may" if file else ""
    assert request.payload["why"] == f"another engine asks for it{why}"
    answers.reject(crew.team, request.id, "no")
    crew.answer(assignment)
    assert letters(crew, "operator", "hello") == 0


def test_an_engine_cannot_declare_a_server_of_our_name(tmp_path: Path) -> None:
    workspace, home = tmp_path / "project", tmp_path / "home"
    for folder in (workspace, home / ".codex"):
        folder.mkdir(parents=True)
    other = DECLARED.replace("crewboard", "other")

    def declared(file: str, text: str) -> bool:
        (home / file).write_text(text)
        found = find_declaration(workspace, home)
        assert found in (None, home / file)
        # The same in the folder that a user chose for it, where it has no home of its own.
        assert find_declaration(workspace, tmp_path, (home / file).parent) == found
        (home / file).unlink()
        return found is not None

    assert find_declaration(workspace, home) is None
    assert not declared(".claude.json", other)
    assert not declared(".claude.json", json.dumps({"projects": {"/crewboard": json.loads(other)}}))
    assert not declared(".codex/config.toml", 'model = "crewboard"\n')
    assert declared(".claude.json", DECLARED)
    assert declared(".claude.json", json.dumps({"projects": {"/x": json.loads(DECLARED)}}))
    assert declared(".codex/config.toml", '[mcp_servers."crewboard"]\n')
    # What cannot be read may declare one.
    assert declared(".claude.json", "{")
    os.mkfifo(home / ".claude.json")
    assert find_declaration(workspace, home) == home / ".claude.json"
    (home / ".claude.json").unlink()
    (home / ".claude.json").symlink_to(tmp_path / "nothing")
    assert find_declaration(workspace, home) == home / ".claude.json"


def test_links_of_settings_are_followed_above_the_project(tmp_path: Path) -> None:
    workspace, home, dotfiles = tmp_path / "project", tmp_path / "home", tmp_path / "dotfiles"
    for folder in (workspace, home, dotfiles):
        folder.mkdir()
    (dotfiles / "config.toml").write_text('model = "other"\n')
    (dotfiles / "mcp.json").write_text(DECLARED.replace("crewboard", "other"))
    (tmp_path / ".codex").symlink_to(dotfiles)
    (tmp_path / ".mcp.json").symlink_to(dotfiles / "mcp.json")
    assert find_declaration(workspace, home) is None
    (dotfiles / "mcp.json").write_text(DECLARED)
    assert find_declaration(workspace, home) == tmp_path / ".mcp.json"
    (dotfiles / "mcp.json").unlink()
    assert find_declaration(workspace, home) is None
    (dotfiles / "config.toml").write_text("[mcp_servers.crewboard]\n")
    assert find_declaration(workspace, home) == tmp_path / ".codex" / "config.toml"
    # The engine could let them lead elsewhere.
    (dotfiles / "config.toml").write_text("")
    for folder in (workspace, home):
        (folder / ".codex").symlink_to(dotfiles)
        assert find_declaration(workspace, home) == folder / ".codex" / "config.toml"
        (folder / ".codex").unlink()


@pytest.mark.long
@of_engines
def test_codex_names_its_calls_of_the_team_in_its_own_way(crew: Crew) -> None:
    letter = 'team send_message {"to": "operator", "content": "hello"}'
    assert crew.answer(spawn(crew, "e", f"[[{letter}; say done]]", "--codex")).text == "done"
    assert letters(crew, "operator", "hello") == 1
    assert [each.name for each in of(crew, "e", ToolStart)] == ["send_message"]


IMPATIENT_ONCE = """
from crewboard import engines
from crewboard.worker import engine_turn
before = engine_turn.Turn._run_of_team
left = iter([engines._ANY.patience])
async def impatient(self, *given):
    engine_turn._PATIENCE_LEFT = next(left, 0.0) if self._run_state.spec.run == 1 else 0.0
    return await before(self, *given)
engine_turn.Turn._run_of_team = impatient
"""
"""Code that lets an engine give up the first call of its first run at once."""


@pytest.mark.long
@pytest.mark.linux("fork")
@of_engines
def test_an_engine_without_patience_asks_again_for_an_answer(crew: Crew) -> None:
    question = 'team ask_operator {"question": "which?"}'
    with patched(IMPATIENT_ONCE):
        assignment = spawn(crew, "e", f"[[{question}; wait here; {question}; say done]]", kind="explore")
        at(crew, "e", "here")
    (asked,) = requests.load_all(crew.directory)
    answers.answer(crew.team, asked.id, "the first")
    go(crew, "e", "here")
    assert crew.answer(assignment).text == "done"
    assert [said for _, said, _ in results(crew, "e")] == [LATER, "the operator answers: the first"]
    assert [each.id for each in requests.load_all(crew.directory)] == [asked.id]


@pytest.mark.long
@pytest.mark.linux("fork")
@of_engines
@pytest.mark.parametrize(
    ("killed", "wait"),
    [
        pytest.param("engine", "", id="engine while it waits"),
        pytest.param("worker", "wait here; ", id="worker before it asks again", marks=pytest.mark.long),
        pytest.param("worker", "", id="worker while it waits"),
    ],
)
def test_a_question_is_asked_once_whatever_is_killed(crew: Crew, killed: str, wait: str) -> None:
    question = 'team ask_operator {"question": "which?"}'
    with patched(IMPATIENT_ONCE + LOADS):
        assignment = spawn(crew, "e", f"[[{question}; {wait}{question}; say done]]", kind="explore")
        eventually(lambda: len(of(crew, "e", ToolStart)) == (1 if wait else 2), "its question")
        if wait:
            at(crew, "e", "here")
        (asked,) = requests.load_all(crew.directory)
        sessions = len(of(crew, "e", EngineSession))
        if killed == "worker":
            crew.kill("e")
            crew.wait_for("e", "crashed")
            hiring.resume(crew.team, "e")
        else:
            for pid in filter(is_engine, processes(crew, "e")):
                process.send_signal(pid, signal.SIGKILL)
        go(crew, "e", "here")
        eventually(lambda: len(of(crew, "e", EngineSession)) > sessions, "another start")
        eventually(lambda: crew.see("e").status.waiting_for == asked.id, "the same question")
        answers.answer(crew.team, asked.id, "the first")
        assert crew.answer_to("e", assignment.id).text == "done"
    assert results(crew, "e")[-1][1] == "the operator answers: the first"
    assert [each.id for each in requests.load_all(crew.directory)] == [asked.id]


@pytest.mark.long
@pytest.mark.linux("fork")
@of_engines
def test_a_call_that_takes_too_long_is_not_waited_for(crew: Crew) -> None:
    with patched(IMPATIENT_ONCE):
        assignment = spawn(crew, "e", "[[team list_changes; team list_changes; say done]]", kind="lead")
        assert crew.answer(assignment).text == "done"
    (_, first, is_error), (_, second, _) = results(crew, "e")
    assert ("its outcome is unknown" in first, is_error) == (True, True)
    assert "no agent has a checkout of its own" in second


@pytest.mark.long
@of_engines
def test_a_call_that_comes_twice_is_run_once(crew: Crew) -> None:
    prompt = '[[team send_message {"to": "operator", "content": "hello"}; say done]]'
    assert crew.answer(spawn(crew, "e", prompt, "--same-ids")).text == "done"
    assert letters(crew, "operator", "hello") == 1


@pytest.mark.long
@of_engines
def test_an_id_that_comes_again_is_no_sign_of_the_same_call(crew: Crew) -> None:
    first, second = (f'team send_message {{"to": "operator", "content": "{text}"}}' for text in ("one", "two"))
    assert crew.answer(spawn(crew, "e", f"[[{first}; {second}; say done]]", "--same-ids")).text == "done"
    assert [letters(crew, "operator", text) for text in ("one", "two")] == [1, 1]
    # In another turn not even the same words are.
    crew.answer_to("e", messages.send(crew.team, "e", f"[[{second}; say again]]").id)
    assert [letters(crew, "operator", text) for text in ("one", "two")] == [1, 2]


async def test_what_leads_out_of_an_engines_home_is_not_opened(tmp_path: Path) -> None:
    engine_home = tmp_path / "home"
    engine_home.mkdir()
    tools = TeamTools(engine_home, lambda _: None)
    pipes = {name: engine_home / name for name in ("team-1.down", "team-2.up", "team-2.down")}
    pipes["team-1.up"] = tmp_path / "outside"
    for path in pipes.values():
        os.mkfifo(path)
    (engine_home / "team-1.up").symlink_to(tmp_path / "outside")
    with contextlib.ExitStack() as stack:
        ends = {name: stack.enter_context(path.open("r+b", buffering=0)) for name, path in pipes.items()}
        ends["team-1.up"].write(b'{"jsonrpc": "2.0", "id": 1, "method": "tools/list"}\n')
        ends["team-2.up"].write(b'{"jsonrpc": "2.0", "id": 2, "method": "ping"}\n')
        (engine_home / "team").write_text("../outside\nteam-1\nteam-2\n")
        answer = await asyncio.to_thread(os.read, ends["team-2.down"].fileno(), 4096)
        await tools.close()
    assert json.loads(answer) == {"jsonrpc": "2.0", "id": 2, "result": {}}
    assert not tools.listed.is_set()


async def test_whatever_an_engine_left_in_place_of_the_pipe_is_removed(tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("kept")
    engine_home = tmp_path / "home"
    (engine_home / "team" / "deep").mkdir(parents=True)
    (engine_home / "team" / "link").symlink_to(tmp_path / "outside")
    (engine_home / "team" / "deep").chmod(0)
    await TeamTools(engine_home, lambda _: None).close()
    assert (engine_home / "team").is_fifo()
    assert (tmp_path / "outside").read_text() == "kept"


@pytest.mark.long
@of_engines
def test_a_home_that_cannot_be_used_fails_the_assignment(crew: Crew) -> None:
    home(crew, "e").parent.mkdir(parents=True)
    home(crew, "e").write_text("no folder")
    answer = crew.answer(spawn(crew, "e", "hello"))
    assert answer.code == ExitCode.FAILED
    assert answer.error is not None
    assert "it could not be started: [Errno 17]" in answer.error
    assert crew.see("e").run == 1


AT_THE_RESULT = """
import time
from crewboard.worker.engine_turn import CallLog
before = CallLog.end
def held(self, ident, *rest, **more):
    home = self._run_state.agent.engine_home
    start = self._run_state.conversation.started.get(ident)
    if start and start.name == "send_message" and not (home / "at-end").exists():
        (home / "at-end").touch()
        time.sleep(600)
    before(self, ident, *rest, **more)
CallLog.end = held
"""
"""Code that lets a worker hang between a letter and the record of the call that sent it."""


@pytest.mark.long
@pytest.mark.linux("fork")
@pytest.mark.parametrize(("victim", "point"), [("worker", "end"), ("worker", "result"), ("engine", "result")])
def test_a_letter_of_an_engine_is_sent_once_whatever_is_killed(crew: Crew, victim: str, point: str) -> None:
    letter = 'team send_message {"to": "operator", "content": "hello"}'
    prompt = f"[[{letter}; say between; {letter}; say done]]"
    with patched(LOADS + (AT_THE_RESULT if point == "end" else "")):
        assignment = spawn(crew, "e", prompt, *([] if point == "end" else ["--hold", point]), kind="explore")
        kill(crew, victim, point)
        go(crew, "e", point)
    assert crew.answer_to("e", assignment.id).text == "done"
    # The engine wrote it twice, and its model repeated the first one after the kill.
    assert letters(crew, "operator", "hello") == 2
    assert len(of(crew, "e", EngineSession)) == 2
    # What it reads is what the tool said.
    assert not any("<data" in said for _, said, _ in results(crew, "e"))


@pytest.mark.long
@pytest.mark.linux("fork")
@pytest.mark.usefixtures("loads")
def test_a_letter_of_a_later_turn_is_no_repeated_one(crew: Crew) -> None:
    given = 'send_message {"to": "operator", "content": "hello"}'
    assignment = spawn(crew, "e", f"[[once {given}; say done]]", "--hold", "result", kind="explore")
    kill(crew, "worker", "result")
    go(crew, "e", "result")
    assert crew.answer_to("e", assignment.id).text == "done"
    assert letters(crew, "operator", "hello") == 1
    assert crew.answer_to("e", messages.send(crew.team, "e", f"[[team {given}; say again]]").id).text == "again"
    assert letters(crew, "operator", "hello") == 2
    assert [each.loaded for each in of(crew, "e", EngineSession)] == [False, True]


@pytest.mark.long
@pytest.mark.linux("sandbox")
@of_engines
@pytest.mark.usefixtures("user", "known")
def test_a_hire_says_that_its_engine_has_no_login(crew: Crew) -> None:
    missing = "Claude Code has no login and no key: log in with `claude`, then /login, or set ANTHROPIC_API_KEY"
    assert spawn(crew, "e", "[[say hi]]", engine="claude", kind="explore").note == ""
    del crew.environment["ANTHROPIC_API_KEY"]
    assert spawn(crew, "e2", "[[say hi]]", engine="claude", kind="explore").note == missing


@pytest.mark.long
@of_engines
def test_a_login_that_is_missing_holds_the_work(crew: Crew) -> None:
    answer = crew.answer(spawn(crew, "e", "hello", "--logged-out"))
    assert (answer.code, answer.held) == (ExitCode.CREDENTIALS, True)
    assert answer.error is not None
    assert "Authentication required" in answer.error
    why = "its credentials or its server's address cannot be used: another engine failed: Authentication required"
    needs = [("e", f"died: exit 78: {why}")]
    eventually(lambda: [(need.agent, need.summary) for need in crew.view().needs] == needs, "the end of its run")
    (home(crew, "e") / "login").touch()
    hiring.resume(crew.team, "e")
    eventually(lambda: [each.text for each in of(crew, "e", Answer) if not each.error], "its work after the login")
    eventually(lambda: [each.kind for each in crew.view().needs] == ["result"], "its result as all that is left")


@pytest.mark.long
@pytest.mark.linux("fork")
@of_engines
@pytest.mark.usefixtures("loads")
def test_work_goes_on_when_a_usage_limit_is_over(crew: Crew) -> None:
    assignment = spawn(crew, "e", "[[limit 2; say done]]")
    assert crew.answer(assignment).text == "done"
    (retry,) = of(crew, "e", Retry)
    assert "You've hit your session limit" in retry.error
    before, after = of(crew, "e", EngineSession)
    assert before.ts + 2 <= retry.until <= after.ts
    assert told(crew, "e").count(f'id="{assignment.id}"') == 1
    assert (crew.see("e").status.retry_at, crew.see("e").status.outage_since) == (None, None)


@pytest.mark.linux("fork")
@pytest.mark.usefixtures("loads")
def test_a_usage_limit_is_a_need_with_its_end(crew: Crew) -> None:
    assignment = spawn(crew, "e", "[[limit 432000; say done]]")
    eventually(lambda: crew.see("e").waits_for_api, "the wait for the end of the limit")
    (need,) = crew.view().needs
    until = of(crew, "e", Retry)[0].until
    assert crew.see("e").status.retry_at == until
    assert need.kind == "outage"
    assert need.summary.startswith("another engine failed: You've hit your session limit")
    day = time.strftime("%b %-d", time.localtime(until))
    assert need.summary.endswith(f"e waits until {day} {format_minute(until)}")
    # Nothing of the engine takes memory meanwhile.
    assert processes(crew, "e") == []
    control.interrupt(crew.team, "e", "the limit is raised")
    assert crew.answer(assignment).text == "done"
    assert "the limit is raised" in told(crew, "e")
    assert "outage" not in [each.kind for each in crew.view().needs]


@pytest.mark.long
@pytest.mark.linux("fork")
@pytest.mark.usefixtures("loads")
def test_a_usage_limit_is_known_by_its_kind_whatever_it_says(crew: Crew) -> None:
    spawn(crew, "e", "[[limit 432000 Your session has ended: you've hit its limit; say done]]")
    eventually(lambda: crew.see("e").waits_for_api, "the wait for the end of the limit")
    assert [each.error for each in of(crew, "e", Answer)] == []


@pytest.mark.long
@of_engines
def test_a_usage_limit_fails_the_work_of_a_team_that_does_not_wait(crew: Crew) -> None:
    def edit(config: Config) -> None:
        config.on_outage = "fail"

    roster.change(crew.directory, edit)
    answer = crew.answer(spawn(crew, "e", "[[limit 3600]]"))
    assert (answer.code, answer.held) == (ExitCode.API_UNAVAILABLE, False)


@pytest.mark.long
@of_engines
def test_a_usage_limit_that_ends_in_years_is_an_outage(crew: Crew) -> None:
    """One in milliseconds looks like that; as a time it could not even be kept."""
    roster.change(crew.directory, lambda config: setattr(config, "outage_hours", 1e-7))
    assignment = spawn(crew, "e", "[[limit 1000000000000; limit 1000000000000; say done]]")
    eventually(lambda: crew.see("e").waits_for_api, "the wait for the API")
    (retry,) = of(crew, "e", Retry)
    assert retry.until - retry.ts < 3600
    control.interrupt(crew.team, "e", "try it")
    assert crew.answer(assignment).code == ExitCode.API_UNAVAILABLE


@pytest.mark.long
@pytest.mark.linux("sandbox")
@of_engines
def test_the_engine_of_another_program_gets_the_network_of_its_lead(crew: Crew) -> None:
    """An agent cannot ask for it, and it reaches its model no other way."""
    roster.change(crew.directory, lambda config: setattr(config, "engine", command()))
    hire = calls("spawn_agent", name="one", agent_type="explore", prompt="[[say found]]", engine=command())
    crew.model.give("lead", hire, says("done"))
    crew.run("lead", "lead", "have it looked at", network=True)
    spec = crew.agent("one").spec.load()
    assert spec is not None
    assert spec.engine is not None
    assert spec.flags.network


def allow_commands(crew: Crew) -> None:
    def edit(config: Config) -> None:
        config.rules = [Rule(id="r1", effect="allow", tool="bash", pattern="*")]

    roster.change(crew.directory, edit)


def outputs(crew: Crew, count: int) -> list[ToolResult]:
    """Return the results of that many commands of an engine, which are allowed."""

    def all_ran() -> list[ToolResult] | None:
        for request in requests.pending(crew.directory):
            answers.approve(crew.team, request.id)
        found = of(crew, "e", ToolResult)
        return found if len(found) == count else None

    return eventually(all_ran, f"{count} commands being run")


@pytest.mark.long
@pytest.mark.linux("sandbox")
@of_engines
@pytest.mark.usefixtures("user", "known")
def test_the_login_is_lent_and_the_home_is_its_own(user: Path, crew: Crew) -> None:
    (user / ".claude").mkdir(parents=True)
    (user / ".claude" / ".credentials.json").write_text("the login")
    (user / ".claude" / "other").write_text("private")
    del crew.environment["ANTHROPIC_API_KEY"]
    (crew.root / "ask.py").write_text(ASK_TUNNEL)
    allow_commands(crew)
    prompt = (
        "[[run cat .claude/.credentials.json ~/.claude/.credentials.json 2>/dev/null || true; "
        f"run echo x > ~/.claude/.credentials.json; run ls {user}/.claude/other; run python3 ask.py; say done]]"
    )
    assignment = spawn(crew, "e", prompt, engine="claude")
    read, written, other, asked = outputs(crew, 4)
    assert crew.answer(assignment).text == "done"
    assert read.content == "the login"
    assert written.is_error
    assert other.is_error
    # A tunnel leads to the API alone, and there is no other network.
    assert asked.content.splitlines() == ["HTTP/1.1 403 Forbidden"] * 2 + ["no network"]


ASK_TUNNEL = """
import os, socket, urllib.parse
url = urllib.parse.urlsplit(os.environ["HTTPS_PROXY"])
for target in ("example.com:443", "api.anthropic.com:22"):
    with socket.create_connection((url.hostname, url.port), timeout=60) as relay:
        relay.sendall(f"CONNECT {target} HTTP/1.1\\r\\n\\r\\n".encode())
        print(relay.makefile().readline().strip())
try:
    socket.create_connection(("192.0.2.1", 443), timeout=60)
except OSError:
    print("no network")
"""

ASK_GATEWAY = """
import http.client, os, socket, urllib.parse
url = urllib.parse.urlsplit(os.environ["ANTHROPIC_BASE_URL"])
def ask(path, method="POST"):
    api = http.client.HTTPConnection(url.hostname, url.port, timeout=60)
    api.request(method, path, b"", {"x-api-key": "of a login"})
    return api.getresponse().status
print(ask(url.path + "/v1/messages"), ask("/other"), ask("example.com:443", "CONNECT"))
try:
    socket.create_connection(("192.0.2.1", 443), timeout=60)
except OSError:
    print("no network")
"""


@pytest.mark.long
@pytest.mark.linux("sandbox")
@of_engines
@pytest.mark.usefixtures("user", "known")
def test_a_gateway_for_a_login_is_reached(user: Path, crew: Crew, api: http.server.ThreadingHTTPServer) -> None:
    (user / ".claude").mkdir(parents=True)
    (user / ".claude" / ".credentials.json").write_text("the login")
    for name in engines.KNOWN["claude"].keys:
        crew.environment.pop(name, None)
    crew.environment["ANTHROPIC_BASE_URL"] = f"http://127.0.0.1:{api.server_port}/below"
    (crew.root / "ask.py").write_text(ASK_GATEWAY)
    allow_commands(crew)
    assignment = spawn(crew, "e", "[[run python3 ask.py; say done]]", engine="claude")
    (asked,) = outputs(crew, 1)
    assert crew.answer(assignment).text == "done"
    assert asked.content.splitlines() == ["200 400 403", "no network"]
    assert Api.keys == ["of a login"]


ASK_API = """
import http.client, json, os, socket, sys, urllib.parse
url = urllib.parse.urlsplit(os.environ["ANTHROPIC_BASE_URL"])
def ask(key):
    api = http.client.HTTPConnection(url.hostname, url.port, timeout=60)
    api.request("POST", url.path + "/v1/messages", b"{}", {"x-api-key": key})
    answer = api.getresponse()
    return f"{answer.status} {answer.read().decode()}"
print(ask(os.environ["ANTHROPIC_API_KEY"]))
print(ask("guessed").partition(" ")[0])
def send(head):
    with socket.create_connection((url.hostname, url.port), timeout=60) as relay:
        relay.sendall(f"{head}\\r\\nx-api-key: {os.environ['ANTHROPIC_API_KEY']}\\r\\n\\r\\n".encode())
        return [*relay.makefile().readline().split(" "), ""][1]
print(send("GET /below/x?y=/../ HTTP/1.1\\r\\nx: y"))
print("passed on:", [head for head in json.load(open("heads.json")) if send(head) != "400"])
print(os.environ["NO_PROXY"], os.environ["no_proxy"])
proxy = urllib.parse.urlsplit(os.environ["HTTPS_PROXY"])
print("a name, at once:", proxy.netloc == url.netloc and send("CONNECT example.com:443 HTTP/1.1"))
try:
    socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=60)
except OSError:
    print("no network")
"""


HEADS = [
    *(
        f"{line} HTTP/1.1"
        for line in (
            "GET http://evil.example/below/x", "GET //evil.example/below/x", "GET evil.example/below/x", "GET *",
            "TRACE /below/x", "get /below/x", "GET /other", "GET /below", "GET /belows/x", "GET /below/../other",
            "GET /below/..", "GET /below/%2e%2E/other", "GET /below/.%252e/other", "GET /below/x/..%2f..%2fother",
            "GET /below/..;/other", "GET /below/..\\other", "GET /below/x%5c..", "GET /below/x#y", "GET /below/x\ty",
        )
    ),
    "GET /below/x HTTP/1.0", "GET /below/x", "GET /below/x HTTP/1.1 HTTP/1.1",
    *(
        f"GET /below/x HTTP/1.1{rest}"
        for rest in (
            "\nx: y", "\rx: y", "\r\nx: y\nz: z", "\r\nx: y\rz: z", "\r\nx: y\r\n z", "\r\nx: y\r\n\tz", "\r\nx : y",
            "\r\nx",
        )
    ),
]  # fmt: skip
"""The beginnings of requests that must not be passed on with a key."""


class Api(http.server.BaseHTTPRequestHandler):
    """An API that answers each request with its path, and keeps the keys that it was sent."""

    keys: ClassVar[list[str]] = []

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"] or 0))
        self.keys.append(self.headers["x-api-key"])
        said = self.path.encode()
        if self.headers["x-say"] == "on":
            told = {
                "type": "response.created",
                "response": {"model": "gpt-6.1-sol", "usage": {"input_tokens": 100_000}},
            }
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.end_headers()
            self.wfile.write(f"data: {json.dumps(told)}\n\n".encode())
            self.rfile.read(1)
            return
        if self.headers["x-say"] == "usage":
            usage = {"input_tokens": 100_000, "output_tokens": 10_000}
            said = json.dumps({"object": "response", "model": "gpt-6.1-sol", "usage": usage}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def do_GET(self) -> None:
        self.do_POST()

    def do_TRACE(self) -> None:
        self.do_POST()

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def api() -> Iterator[http.server.ThreadingHTTPServer]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Api) as server:
        Api.keys.clear()
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.linux("sandbox")
@of_engines
@pytest.mark.usefixtures("known")
def test_the_key_stays_outside_and_the_api_alone_is_reached(crew: Crew, api: http.server.ThreadingHTTPServer) -> None:
    key = "sk-ant-a-key-of-the-user"
    crew.environment["ANTHROPIC_API_KEY"] = key
    crew.environment["ANTHROPIC_BASE_URL"] = f"http://127.0.0.1:{api.server_port}/below"
    crew.environment["no_proxy"] = "b.example"
    (crew.root / "ask.py").write_text(ASK_API)
    (crew.root / "heads.json").write_text(json.dumps(HEADS))
    allow_commands(crew)
    assignment = spawn(crew, "e", f"[[run python3 ask.py {api.server_port}; say done; wait here]]", engine="claude")
    (asked,) = outputs(crew, 1)
    assert asked.content.splitlines() == [
        "200 /below/v1/messages", "401", "200", "passed on: []", "127.0.0.1,b.example 127.0.0.1,b.example",
        "a name, at once: 403", "no network",
    ]  # fmt: skip
    assert Api.keys == [key, key]
    running = processes(crew, "e")
    assert running
    assert not any(is_given(pid, key) for pid in running)
    go(crew, "e", "here")
    crew.answer(assignment)
    kept = contents(crew.agent("e").path)
    assert [path for path, text in kept.items() if key.encode() in text] == []


ASK_ONCE = """
import json, os, urllib.request
url = json.loads(os.environ["CODEX_CONFIG"])["openai_base_url"]
head = {"Authorization": "Bearer " + os.environ["CODEX_API_KEY"], "x-say": "usage"}
urllib.request.urlopen(urllib.request.Request(url + "/responses", b"{}", head), timeout=60).read()
"""

PRICES = '[["gpt-6.1-sol"]]\ninput = 1.0\noutput = 10.0\ncache_read = 0.1\ncache_write = 0.0\n'


@pytest.mark.long
@pytest.mark.linux("sandbox")
@of_engines
@pytest.mark.usefixtures("known")
def test_tokens_that_the_engine_does_not_tell_are_counted(crew: Crew, api: http.server.ThreadingHTTPServer) -> None:
    crew.environment["CODEX_API_KEY"] = "sk-a-key-of-the-user"
    crew.environment["OPENAI_BASE_URL"] = f"http://127.0.0.1:{api.server_port}/v1"
    (crew.root / "ask.py").write_text(ASK_ONCE)
    (crew.root / ".crewboard").mkdir(exist_ok=True)
    (crew.root / ".crewboard" / "prices.toml").write_text(PRICES)
    assignment = spawn(crew, "e", "[[run python3 ask.py; wait here; run python3 ask.py; say done]]", engine="codex")
    at(crew, "e", "here")
    # Of a turn that is cancelled it tells no usage.
    control.interrupt(crew.team, "e", "stop that")
    eventually(lambda: "stop that" in told(crew, "e"), "the interrupt being read")
    go(crew, "e", "here")
    assert crew.answer(assignment).text == "done"
    crew.wait_for_rest("e")
    cancelled, ended = [each for each in of(crew, "e", Reply) if each.stop_reason != "tool_use"]
    counted = Tokens(input=100_000, output=10_000)
    assert (cancelled.usage, cancelled.model) == (counted, "gpt-6.1-sol")
    # What it tells comes first, and only its price is counted.
    assert ended.usage == Tokens(input=100, output=20, cache_read=5, cache_write=3)
    assert (cancelled.cost_usd, ended.cost_usd) == (pytest.approx(0.2), pytest.approx(0.2))
    assert crew.see("e").status.tokens == counted + ended.usage


ASK_ON = """
import json, os, time, urllib.request
url = json.loads(os.environ["CODEX_CONFIG"])["openai_base_url"]
head = {"Authorization": "Bearer " + os.environ["CODEX_API_KEY"], "x-say": "on"}
reply = urllib.request.urlopen(urllib.request.Request(url + "/responses", b"{}", head), timeout=60)
reply.read(9)
open("asked", "w").close()
time.sleep(600)
"""
"""Code that leaves a request open."""

ASK_BEHIND = """
python3 ask.py > /dev/null 2>&1 &
until test -e asked
do sleep 0.05
done
"""


@pytest.mark.long
@pytest.mark.linux("sandbox")
@of_engines
@pytest.mark.usefixtures("known")
def test_a_reply_that_outlasts_its_turn_is_counted(crew: Crew, api: http.server.ThreadingHTTPServer) -> None:
    crew.environment["CODEX_API_KEY"] = "sk-a-key-of-the-user"
    crew.environment["OPENAI_BASE_URL"] = f"http://127.0.0.1:{api.server_port}/v1"
    (crew.root / "ask.py").write_text(ASK_ON)
    (crew.root / "ask.sh").write_text(ASK_BEHIND)
    crew.answer(spawn(crew, "e", "[[run sh ask.sh; say done]]", engine="codex"))
    stop.stop_now(crew.team, "e")
    crew.wait_for("e", "exited")
    (broken,) = of(crew, "e", BrokenReply)
    assert (broken.usage, broken.model) == (Tokens(input=100_000), "gpt-6.1-sol")
    assert [each.text for each in describe(broken)] == ["replies that ended after their turn: 100000 tokens"]


IMPATIENT = """
from crewboard.worker import engine
engine.EngineLife._cancel.__defaults__ = (0.5,)
engine._CLOSE_TIMEOUT = 0.1
"""
"""Code that lets a worker end an engine soon if it does not end its turn."""

WAIT = "import pathlib, time\npathlib.Path('begun').touch()\ntime.sleep(60)\n"
"""A command during which an engine does not end its turn."""


@pytest.mark.long
@pytest.mark.linux("fork")
@of_engines
@pytest.mark.usefixtures("known")
@pytest.mark.parametrize("is_stopped", [False, True])
def test_what_a_turn_used_is_counted_if_the_engine_does_not_end_it(
    crew: Crew, api: http.server.ThreadingHTTPServer, *, is_stopped: bool
) -> None:
    crew.environment["CODEX_API_KEY"] = "sk-a-key-of-the-user"
    crew.environment["OPENAI_BASE_URL"] = f"http://127.0.0.1:{api.server_port}/v1"
    (crew.root / "ask.py").write_text(ASK_ONCE)
    (crew.root / "wait.py").write_text(WAIT)
    with patched(IMPATIENT):
        spawn(crew, "e", "[[run python3 ask.py; run python3 wait.py; say done]]", engine="codex")
        eventually((crew.root / "begun").exists, "the second command")
        if is_stopped:
            stop.stop_now(crew.team, "e")
            crew.wait_for("e", "exited")
        else:
            control.interrupt(crew.team, "e", "stop that")
            eventually(lambda: "stop that" in told(crew, "e"), "the interrupt being read")
    (broken,) = of(crew, "e", BrokenReply)
    assert (broken.usage, broken.model) == (Tokens(input=100_000, output=10_000), "gpt-6.1-sol")
    assert [each.text for each in describe(broken)] == ["a turn ended early, after 110000 tokens"]


ASK_BY_LOGIN = """
import os, urllib.request
url = os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages"
urllib.request.urlopen(urllib.request.Request(url, b"{}", {"x-say": "usage"}), timeout=60).read()
"""


@pytest.mark.long
@pytest.mark.linux("fork")
@of_engines
@pytest.mark.usefixtures("user", "known")
def test_what_a_login_uses_has_no_price(user: Path, crew: Crew, api: http.server.ThreadingHTTPServer) -> None:
    (user / ".claude").mkdir(parents=True)
    (user / ".claude" / ".credentials.json").write_text("the login")
    for name in engines.KNOWN["claude"].keys:
        crew.environment.pop(name, None)
    crew.environment["ANTHROPIC_BASE_URL"] = f"http://127.0.0.1:{api.server_port}"
    (crew.root / "ask.py").write_text(ASK_BY_LOGIN)
    (crew.root / "wait.py").write_text(WAIT)
    (crew.root / ".crewboard").mkdir(exist_ok=True)
    (crew.root / ".crewboard" / "prices.toml").write_text(PRICES)
    allow_commands(crew)
    with patched(IMPATIENT):
        spawn(crew, "e", "[[run python3 ask.py; run python3 wait.py; say done]]", engine="claude")
        eventually((crew.root / "begun").exists, "the second command")
        control.interrupt(crew.team, "e", "stop that")
        eventually(lambda: "stop that" in told(crew, "e"), "the interrupt being read")
    (broken,) = of(crew, "e", BrokenReply)
    assert (broken.usage, broken.cost_usd) == (Tokens(input=100_000, output=10_000), None)


@pytest.mark.long
@pytest.mark.linux("sandbox")
@pytest.mark.usefixtures("known")
@of_engines
def test_an_address_that_is_none_fails_the_assignment(crew: Crew) -> None:
    crew.environment |= {"CODEX_API_KEY": "sk-a-key-of-the-user", "OPENAI_BASE_URL": "http://[::1"}
    answer = crew.answer(spawn(crew, "e", "hello", engine="codex"))
    assert answer.code == ExitCode.FAILED
    assert "Codex failed: OPENAI_BASE_URL is no address of a server" in (answer.error or "")


@contextlib.asynccontextmanager
async def listening(relay: ApiRelay) -> AsyncIterator[tuple[str, int]]:
    """Let a relay answer, and close it behind; give its address."""
    server = socket.create_server(("127.0.0.1", 0))
    where = server.getsockname()
    await relay.listen(server)
    try:
        yield where
    finally:
        await relay.close()


def make_certificate(certificate: Path, private: Path) -> None:
    made = f"req -x509 -newkey rsa:2048 -nodes -keyout {private} -out {certificate} -days 2 -subj /CN=localhost"
    command = ["openssl", *made.split(), "-addext", "subjectAltName=DNS:localhost"]
    subprocess.run(command, check=True, capture_output=True)


@pytest.mark.long
async def test_a_key_goes_to_a_server_that_proves_who_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate, private = tmp_path / "certificate.pem", tmp_path / "key.pem"
    system.need_program("openssl")
    make_certificate(certificate, private)
    heard: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\n\r\npong")
        writer.close()

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, private)
    server = await asyncio.start_server(serve, "localhost", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]

    async def ask() -> bytes:
        relay = ApiRelay(f"https://localhost:{port}/v1", {"stand-in": "the-key"}, (), {})
        async with listening(relay) as where:
            reader, writer = await asyncio.open_connection(*where)
            writer.write(
                b"GET /v1/x HTTP/1.1\r\nHost: here\r\nAuthorization: Bearer stand-in\r\nConnection: keep-alive\r\n\r\n"
            )
            answer = await reader.read()
            writer.close()
        return answer

    assert (await ask()).startswith(b"HTTP/1.1 502 ")
    assert heard == []
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    assert await ask() == b"HTTP/1.1 200 OK\r\n\r\npong"
    sent = f"GET /v1/x HTTP/1.1\r\nAuthorization: Bearer the-key\r\nHost: localhost:{port}\r\nConnection: close\r\n\r\n"
    assert heard == [sent.encode()]
    server.close()


async def test_a_tunnel_goes_through_the_users_proxy() -> None:
    heads: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(100):
                writer.write(data)
        writer.close()

    proxy = await asyncio.start_server(serve, "127.0.0.1", 0)
    address = f"http://a%40b:c%3Ad@127.0.0.1:{proxy.sockets[0].getsockname()[1]}"
    relay = ApiRelay("https://api.example", {}, ("api.example",), {"HTTPS_PROXY": address})
    async with asyncio.timeout(60), listening(relay) as where:
        reader, writer = await asyncio.open_connection(*where)
        writer.write(b"CONNECT api.example:443 HTTP/1.1\r\n\r\n")
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        writer.write(b"ping")
        assert await reader.readexactly(4) == b"ping"
        writer.close()
    proxy.close()
    login = f"Proxy-Authorization: Basic {base64.b64encode(b'a@b:c:d').decode()}"
    sent = f"CONNECT api.example:443 HTTP/1.1\r\nHost: api.example:443\r\n{login}\r\n\r\n"
    assert heads == [sent.encode()]


@pytest.mark.parametrize("said", [b"HTTP/1.1 407 No\r\n\r\n", b"x" * (1 << 17)], ids=["refuses", "says too much"])
async def test_a_proxy_that_opens_no_tunnel_is_left(said: bytes) -> None:
    left = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(said)
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.close()
        left.set()

    proxy = await asyncio.start_server(serve, "127.0.0.1", 0)
    address = f"127.0.0.1:{proxy.sockets[0].getsockname()[1]}"
    relay = ApiRelay("https://api.example", {}, ("api.example",), {"HTTPS_PROXY": address})
    async with asyncio.timeout(60), listening(relay) as where:
        reader, writer = await asyncio.open_connection(*where)
        writer.write(b"CONNECT api.example:443 HTTP/1.1\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 502 ")
        writer.close()
        await left.wait()
    proxy.close()


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.long
async def test_a_closed_relay_leaves_no_connection_open() -> None:
    failures: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    heads: asyncio.Queue[bytes] = asyncio.Queue()

    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.put_nowait(await reader.readuntil(b"\r\n\r\n"))
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.close()

    # What other tests left must not end in between.
    gc.collect()
    before = descriptors()
    server = await asyncio.start_server(hold, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    clients = []
    async with asyncio.timeout(60):
        async with listening(ApiRelay(url, {"stand-in": "the-key"}, (), {})) as where:
            for _ in range(_MOST_CONNECTIONS):
                reader, writer = await asyncio.open_connection(*where)
                clients.append((reader, writer))
                writer.write(b"GET / HTTP/1.1\r\nx-api-key: stand-in\r\n\r\n")
                await heads.get()
            reader, writer = await asyncio.open_connection(*where)
            assert await reader.read() == b""
            writer.close()
        for reader, writer in clients:
            assert await reader.read() == b""
            writer.close()
        server.close()
        await asyncio.to_thread(eventually, lambda: descriptors() <= before, "all connections closed")
    assert failures == []


@pytest.mark.linux("sandbox")
@pytest.mark.usefixtures("known")
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"effort": "high"}, "--effort"),
        ({"web": True}, "--web"),
        ({"window": 16000}, "--window"),
        ({"strict_plan": True}, "--strict-plan"),
        ({"ask": True}, "--ask"),
        (
            {"effort": "high", "ask": True},
            "--effort: it has a model of its own; --ask: it asks for what it wants itself",
        ),
        ({"budget": "$5"}, "does not tell what it costs"),
        ({"engine": "claude", "model": "opus"}, "--model"),
        ({"kind": "explore", "unsafe_no_sandbox": True}, "leave out --unsafe-no-sandbox"),
        ({"engine": "claude", "plan": True, "unsafe_no_sandbox": True}, "before its plan is approved"),
    ],
)
@of_engines
def test_what_an_engine_cannot_do_is_refused(crew: Crew, options: dict[str, Any], said: str) -> None:
    flags = {key: value for key, value in options.items() if key in HireOptions.__struct_fields__}
    name, kind = options.get("name", "e"), options.get("kind", "code")
    engine, model = options.get("engine", command()), options.get("model")
    hire = hiring.Hire(name, kind, "x", model=model, flags=HireOptions(**flags), engine=engine)
    with pytest.raises(UsageError, match=said):
        hiring.spawn(crew.team, hire)
    assert crew.agent(name).spec.load() is None


@pytest.mark.long
@pytest.mark.linux("sandbox")
@of_engines
@pytest.mark.usefixtures("known")
def test_a_lead_hires_with_the_engine_of_the_team_and_no_other(crew: Crew) -> None:
    roster.change(crew.directory, lambda config: setattr(config, "engine", "claude"))
    hires = [calls("spawn_agent", name=name, agent_type="explore", prompt="[[say found]]", engine=engine)
             for name, engine in (("one", "claude"), ("two", "codex"), ("three", command()))]  # fmt: skip
    crew.model.give("lead", *hires, says("done"))
    crew.run("lead", "lead", "have it looked at", network=True)
    one, two, three = [each.content for each in of(crew, "lead", ToolResult)]
    assert one == "one: found"
    spec = crew.agent("one").spec.load()
    assert spec is not None
    assert spec.engine is not None
    # It reaches its API without the network, also where the lead has that.
    assert (spec.engine.name, spec.flags.network) == ("claude", False)
    for each in (two, three):
        assert "only the operator chooses the engine" in each
    assert crew.team.config.names == ["lead", "one"]


@pytest.mark.linux("sandbox")
def test_an_engine_that_may_write_works_in_a_worktree(crew: Crew) -> None:
    make_repository(crew.root)
    hire = hiring.Hire("e", "code", "[[force a.txt x; say done]]", engine=command(), given=frozenset())
    assignment = hiring.spawn(crew.team, hire)
    assert "e works on crew/e in " in assignment.note
    assert crew.answer(assignment).text == "done"
    assert not (crew.root / "a.txt").exists()
    assert (crew.directory.worktree("e") / "a.txt").read_text() == "x\n"
    seen = hiring.spawn(crew.team, dataclasses.replace(hire, name="reader", type="explore"))
    crew.answer(seen)
    spec = crew.agent("reader").spec.load()
    assert spec is not None
    assert spec.worktree is None


@pytest.mark.long
@pytest.mark.linux("sandbox")
@of_engines
def test_an_engine_that_may_write_is_not_hired_where_no_worktree_can_be(crew: Crew) -> None:
    hire = hiring.Hire("e", "code", "[[force a.txt x; say done]]", engine=command(), given=frozenset())
    with pytest.raises(
        UsageError, match=r"e was not hired, as it cannot have a worktree: .* hire it with --no-worktree"
    ):
        hiring.spawn(crew.team, hire)
    assert crew.agent("e").spec.load() is None
    # The user's word is enough, and what writes nothing needs none.
    crew.answer(hiring.spawn(crew.team, dataclasses.replace(hire, given=frozenset({"worktree"}))))
    assert (crew.root / "a.txt").exists()
    crew.answer(hiring.spawn(crew.team, dataclasses.replace(hire, name="reader", type="explore")))


@pytest.mark.long
@pytest.mark.linux("sandbox")
@of_engines
def test_a_lead_with_an_engine_hires_and_decides_nothing(crew: Crew) -> None:
    settings.set_approver(crew.team, "lead")
    given = {"name": "one", "agent_type": "explore", "prompt": "look"}
    # Named as the operator did, not as it was found on PATH.
    own = f"{engines.OTHER}env {command().removeprefix(engines.OTHER)}"
    hires = [json.dumps({**given, "engine": each}) for each in ("codex", own)]
    steps = [f"team spawn_agent {each}" for each in hires]
    steps += ["team list_team", 'team review_plan {"request_id": "x", "approve": true}', "say done"]
    assignment = spawn(crew, "lead", f"[[{'; '.join(steps)}]]", engine=own, kind="lead")
    answers.approve(crew.team, crew.pending("permission", "lead").id)
    assert crew.answer(assignment).text == "done"
    assert "You cannot approve plans or merge changes: the operator alone does." in told(crew, "lead")
    refused, hired, listed, unknown = [said for _, said, _ in results(crew, "lead")]
    assert "only the operator chooses the engine codex; you have your own, acp:" in refused
    assert hired == "one is at work (run 1); its result will reach you as mail"
    assert "one (explore)" in listed
    assert "spawn_agent" in unknown
    assert "review_plan" not in unknown
    eventually(lambda: told(crew, "lead").count('type="result"'), "the result of one")
    crew.model.give("own", calls("submit_plan", plan="# Plan"), says("planned"))
    crew.hire("own", "code", "plan it", plan=True)
    assert crew.pending("plan_approval", "own").to == "operator"


@pytest.mark.long
@of_engines
def test_a_plan_sent_to_a_lead_comes_to_the_operator_with_its_engine(crew: Crew) -> None:
    settings.set_approver(crew.team, "lead")
    crew.model.give("own", calls("submit_plan", plan="# Plan"), says("planned"))
    crew.model.give("lead", says("led"), says("read"))
    crew.run("lead", "lead", "lead", unsafe_no_sandbox=env.is_posix())
    crew.hire("own", "code", "plan it", plan=True, unsafe_no_sandbox=env.is_posix())
    assert crew.pending("plan_approval", "own").to == "lead"
    stop.stop_now(crew.team, "lead")
    crew.answer(spawn(crew, "lead", "hello", kind="lead"))
    assert [each.kind for each in crew.view().needs if each.agent == "own"] == ["plan"]


PATIENT = """
import msgspec
from crewboard import engines
engines._ANY = msgspec.structs.replace(engines._ANY, patience=None)
"""
"""Code that lets an engine wait for as long as a call takes, as Claude Code does."""


@pytest.mark.long
@of_engines
def test_an_engine_that_waits_gets_results_as_mail_too(crew: Crew) -> None:
    crew.model.give("one", calls("ask_operator", question="how?"), says("found it"))
    given = json.dumps({"name": "one", "agent_type": "explore", "prompt": "look"})
    with patched(PATIENT):
        assignment = spawn(crew, "lead", f"[[team spawn_agent {given}; say done]]", kind="lead")
        asked = crew.pending("question", "one")
        # While the other works: it is not waited for, and so nothing is lost if the turn ends.
        assert crew.answer(assignment).text == "done"
    assert [said for _, said, _ in results(crew, "lead")] == [
        "one is at work (run 1); its result will reach you as mail"
    ]
    answers.answer(crew.team, asked.id, "well")
    eventually(lambda: "found it" in told(crew, "lead"), "the result of one")


@pytest.mark.long
@pytest.mark.linux("sandbox")
def test_a_lead_hires_once_whatever_is_killed(crew: Crew) -> None:
    own = command("--hold", "result")
    given = json.dumps({"name": "one", "agent_type": "explore", "prompt": "look", "engine": own})
    with patched(LOADS):
        assignment = spawn(crew, "e", f"[[team spawn_agent {given}; say done]]", "--hold", "result", kind="lead")
        kill(crew, "engine", "result")
        go(crew, "e", "result")
        # What the new agent answers may enter the same turn, on a slow machine.
        assert crew.answer_to("e", assignment.id).text in ("done", "ok")
    spec = crew.agent("one").spec.load()
    assert spec is not None
    assert spec.run == 1
    assert [said for _, said, _ in results(crew, "e")] == ["one is at work (run 1); its result will reach you as mail"]
    assert letters(crew, "one", "look") == 0


@pytest.mark.long
@pytest.mark.linux("fork")
def test_what_may_have_been_done_is_not_done_again(crew: Crew) -> None:
    crew.model.give("one", says("found"))
    with patched(LOADS + AT_THE_RESULT.replace("send_message", "broadcast")):
        crew.answer(crew.hire("one", "explore", "look"))
        crew.wait_for_rest("one")
        assignment = spawn(crew, "e", '[[team broadcast {"content": "hello"}; say done]]', kind="lead")
        kill(crew, "worker", "end")
    assert crew.answer_to("e", assignment.id).text == "done"
    assert letters(crew, "one", "hello") == 1
    ((_, said, is_error),) = results(crew, "e")
    assert (said, is_error) == (f"{UNKNOWN_OUTCOME}. Check before you call it again.", True)


@pytest.mark.long
@of_engines
def test_an_input_that_no_check_expects_ends_the_call_alone(crew: Crew) -> None:
    make_repository(crew.root)
    crew.model.give("one", says("found"))
    crew.answer(crew.hire("one", "code", "look", worktree=True, unsafe_no_sandbox=env.is_posix()))
    read = json.dumps({"teammate": "one", "path": "a\0b"})
    assert crew.answer(spawn(crew, "e", f"[[team read_diff {read}; say done]]", kind="lead")).text == "done"
    ((_, said, is_error),) = results(crew, "e")
    assert is_error
    assert said.startswith("read_diff failed on its input: ValueError")
    assert crew.see("e").run == 1


@pytest.mark.long
@of_engines
@pytest.mark.usefixtures("known")
def test_a_lead_is_told_who_can_hire_without_a_worktree(crew: Crew) -> None:
    roster.change(crew.directory, lambda config: setattr(config, "engine", "claude"))
    hire = calls("spawn_agent", name="e", agent_type="code", prompt="x", engine="claude")
    crew.model.give("lead", hire, says("done"))
    crew.run("lead", "lead", "have it done", network=True, unsafe_no_sandbox=env.is_posix())
    (refused,) = of(crew, "lead", ToolResult)
    assert "e was not hired, as it cannot have a worktree" in refused.content
    assert "; only the operator can hire it with --no-worktree, to let it work in your own files" in refused.content


@pytest.mark.linux("sandbox")
@of_engines
def test_without_bubblewrap_an_engine_needs_the_users_word(user: Path, crew: Crew) -> None:
    crew.environment["CREWBOARD_SANDBOX"] = "none"
    with pytest.raises(NoSandboxError, match="no engine is started"):
        spawn(crew, "e", "hello", kind="explore")
    assignment = spawn(crew, "f", "[[force a.txt x; spawn exec sleep 1000; say done]]", unsafe_no_sandbox=True)
    assert crew.answer(assignment).text == "done"
    assert crew.see("f").unsafe
    mark = process.mark(crew.pid("f"), process.start_ticks(crew.pid("f")))
    assert process.descendants(crew.pid("f"))
    crew.kill("f")
    crew.wait_for("f", "crashed")

    eventually(lambda: not any(is_given(pid, mark) for pid in process.parents()), "no process of the engine")


@pytest.mark.long
@pytest.mark.linux("fork")
def test_without_bubblewrap_an_engine_has_the_folder_that_its_user_chose(user: Path, crew: Crew) -> None:
    # Where the fake engine keeps its sessions is told by HOME, so that is the folder here.
    crew.environment.update(CREWBOARD_SANDBOX="none", ACP_HOME=str(user))
    with patched(FOLDER):
        ran = spawn(crew, "e", "[[spawn printenv ACP_HOME > ~/told; say one]]", "--forgets", unsafe_no_sandbox=True)
        assert crew.answer(ran).text == "one"
        assert eventually(lambda: (user / "told").exists() and (user / "told").read_text(), "it") == f"{user}\n"
        second = messages.send(crew.team, "e", "[[wait here; say two]]")
        eventually((user / "at-here").exists, "the step")
        crew.kill("e")
        crew.wait_for("e", "crashed")
        (user / "go-here").touch()
        hiring.resume(crew.team, "e")
        assert crew.answer_to("e", second.id).text == "two"
    assert (user / "model.jsonl").read_text().count(f'id=\\"{second.id}\\"') == 1


@pytest.mark.long
def test_the_worker_of_an_engine_loads_no_sdk() -> None:
    code = (
        "import sys; import crewboard.worker.__main__, crewboard.worker.engine; "
        "sys.exit('anthropic' in sys.modules or 'mcp' in sys.modules)"
    )
    subprocess.run([sys.executable, "-I", "-c", code], check=True)
