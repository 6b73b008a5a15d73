"""Agents whose work an engine does: a fake one, as strict as the real ones, in the real sandbox."""

import contextlib
import dataclasses
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from crewboard import redaction, type_files
from crewboard.agent_types import AgentType
from crewboard.commands import answers, control, messages, stop
from crewboard.commands import hire as hiring
from crewboard.errors import ExitCode, NoSandboxError, UntrustedError, UsageError
from crewboard.linux import process
from crewboard.protocol import requests
from crewboard.readmodel import as_json
from crewboard.readmodel.activity import describe
from crewboard.records.agents import HireOptions, Terms, Tokens
from crewboard.records.events import Answer, EngineSession, Gate, Offered, Reply, Taken, ToolResult, ToolStart
from crewboard.records.requests import NewNote, notes_in
from crewboard.records.team import Config, Rule
from crewboard.sandbox import bubblewrap
from crewboard.sandbox.policy import Policy
from crewboard.store import agents, roster
from crewboard.worker.engine import _make_place
from tests import system
from tests.crew import Crew, eventually
from tests.preloaded import patched

FAKE = Path(__file__).with_name("fake_engine.py")
ON_PATH = Path(__file__).parents[1] / "data" / "engines"


@pytest.fixture(autouse=True)
def _boxed(tmp_path: Path) -> None:
    system.need("bubblewrap", bubblewrap.unavailable_reason(Policy(tmp_path, writes=False)))


def command(*options: str) -> str:
    return f"acp:{shlex.join([sys.executable, '-IS', str(FAKE), *options])}"


def spawn(
    crew: Crew, name: str, prompt: str, *options: str, kind: str = "code", engine: str = "", **flags: Any
) -> hiring.Assignment:
    engine = engine or command(*options)
    return hiring.spawn(crew.team, hiring.Hire(name, kind, prompt, flags=HireOptions(**flags), engine=engine))


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


@pytest.fixture
def loads() -> Iterator[None]:
    """Let other engines load their sessions, as those of the table do: the fake one keeps the same promise."""
    with patched(
        "import msgspec\nfrom crewboard import engines\n"
        "engines._ANY = msgspec.structs.replace(engines._ANY, loads=True)\n"
    ):
        yield


def test_an_engine_answers_without_a_key(crew: Crew) -> None:
    for variable in [name for name in crew.environment if redaction.is_secret(name)]:
        del crew.environment[variable]
    prompt = "hello [[think hm; say one; odd; steps; run echo hi; say the result]]"
    assignment = spawn(crew, "e", prompt)
    request = crew.pending("permission", "e")
    assert request.payload["tool"] == "bash"
    assert request.payload["input"] == {"command": "echo hi"}
    eventually(lambda: crew.see("e").waiting_for == request.id, "the status that it waits")
    answers.approve(crew.team, request.id)
    answer = crew.answer(assignment)
    assert (answer.text, answer.error, answer.code) == ("the result", None, 0)
    crew.wait_for_rest("e")
    (run,) = [each for each in of(crew, "e", ToolStart) if each.name == "bash"]
    (result,) = [each for each in of(crew, "e", ToolResult) if each.tool_use_id == run.tool_use_id]
    assert (result.content, result.is_error) == ("hi\n", False)
    seen = crew.see("e")
    assert (seen.state, seen.model) == ("idle", "acp")
    assert as_json.agent(seen, crew.directory)["engine"] == {"name": "acp", "version": "1.0"}
    assert seen.context.used == 120
    assert seen.context.limit == 1000
    assert seen.todo is not None
    assert (seen.todo.done, seen.todo.total, seen.todo.current) == (1, 2, "fix")
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


@pytest.mark.usefixtures("known")
def test_usage_is_counted_as_far_as_it_is_told(crew: Crew) -> None:
    told_all = spawn(crew, "claude1", "[[say hi]]", engine="claude", network=True)
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
    assert crew.see("claude1").tokens == per_turn + per_turn
    assert crew.see("claude1").cost_usd == 0.5
    assert (crew.see("other").tokens, crew.see("other").cost_usd) == (per_turn, None)
    assert (crew.see("silent").tokens, crew.see("silent").cost_usd) == (Tokens(untold=1), None)


def test_a_refusal_is_told_to_the_engine_with_its_reason(crew: Crew) -> None:
    assignment = spawn(crew, "e", "[[write a.txt x; say after]]")
    request = crew.pending("permission")
    assert request.payload["tool"] == "write_file"
    assert request.payload["input"] == {"path": "a.txt", "content": "x"}
    answers.reject(crew.team, request.id, "use b.txt")
    assert crew.answer(assignment).text == "after"
    assert "was not permitted: rejected by operator: use b.txt" in told(crew, "e")
    assert not (crew.root / "a.txt").exists()


def test_a_yes_is_to_one_call_whatever_the_engine_calls_it(crew: Crew) -> None:
    assignment = spawn(crew, "e", "[[run echo harmless; run touch a.txt; say done]]", "--same-ids")
    first = crew.pending("permission")
    assert first.payload["input"] == {"command": "echo harmless"}
    answers.approve(crew.team, first.id)
    eventually(lambda: crew.see("e").waiting_for not in (None, first.id), "another request")
    second = crew.pending("permission")
    assert second.payload["input"] == {"command": "touch a.txt"}
    answers.reject(crew.team, second.id, "no")
    crew.answer(assignment)
    assert not (crew.root / "a.txt").exists()


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize("plan", [True, False])
def test_an_engine_starts_again_to_carry_out_the_plan_as_edited(crew: Crew, *, plan: bool) -> None:
    assignment = spawn(crew, "e", "[[plan First.; force a.txt x; say done]]", engine="claude", network=True, plan=plan)
    request = crew.pending("plan_approval")
    answers.approve(crew.team, request.id, edited="Second.")
    crew.answer(assignment)
    assert len(of(crew, "e", EngineSession)) == 2
    assert "Second." in told(crew, "e")


@pytest.mark.usefixtures("known")
def test_a_later_plan_that_is_rejected_closes_the_project_again(crew: Crew) -> None:
    prompt = "[[plan First.; insist Second.; force a.txt late; say done]]"
    assignment = spawn(crew, "e", prompt, engine="claude", network=True, plan=True)
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


def test_rules_decide_and_nothing_is_allowed_for_ever(crew: Crew) -> None:
    def edit(config: Config) -> None:
        config.rules = [
            Rule(id="r1", effect="allow", tool="bash", pattern="echo *"),
            Rule(id="r2", effect="deny", tool="bash", pattern="rm *"),
        ]

    roster.change(crew.directory, edit)
    assignment = spawn(crew, "e", "[[run echo hi; run rm -rf x; say done]]")
    assert crew.answer(assignment).text == "done"
    assert "the operator's rule r2 denies it" in told(crew, "e")
    # An engine that offers no answer for this one time gets a no.
    assignment = spawn(crew, "f", "[[run echo hi; say done]]", "--no-allow-once")
    assert crew.answer(assignment).text == "done"
    assert "offers no permission for this one time" in told(crew, "f")
    for name in ("e", "f"):
        assert not (home(crew, name) / "allowed-always").exists()


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
    assert crew.see("reader").sandbox == "bubblewrap"


@pytest.mark.usefixtures("known")
def test_a_plan_opens_the_project_and_not_before(crew: Crew) -> None:
    prompt = "[[force a.txt early; plan First.; plan Second.; force a.txt late; say done]]"
    for name in ("claude", "codex"):
        assignment = spawn(crew, name, prompt, engine=name, network=True, plan=True)
        first = crew.pending("plan_approval", name)
        assert first.payload["plan"] == "First."
        answers.reject(crew.team, first.id, "more tests")
        second = crew.pending("plan_approval", name)
        assert (second.payload["plan"], second.payload["revision"]) == ("Second.", 2)
        assert "Feedback: more tests" in told(crew, name)
        assert not (crew.root / "a.txt").exists()
        with pytest.raises(UsageError, match="only a budget and steps"):
            answers.approve(crew.team, second.id, terms=Terms(tools=["read_file"]))
        answers.approve(crew.team, second.id)
        assert crew.answer(assignment).text == "done"
        assert (crew.root / "a.txt").read_text() == "late\n"
        assert [each.open for each in of(crew, name, Gate)] == [False, True]
        asked = [each.name for each in of(crew, name, ToolStart) if each.name != "write_file"]
        assert asked == ["submit_plan", "submit_plan"]
        assert told(crew, name).count("The plan is approved by operator") == 1
        # The turn that the approval ended is not counted as free.
        assert crew.see(name).tokens.untold == 1
        (crew.root / "a.txt").unlink()
        # The one that might not write has ended, although it does not by itself.
        assert len([pid for pid in processes(crew, name) if is_engine(pid)]) == 1
        # The next assignment needs a plan of its own.
        more = messages.send(crew.team, name, "[[force a.txt again; say closed]]")
        assert crew.answer_to(name, more.id).text == "closed"
        assert not (crew.root / "a.txt").exists()


@pytest.mark.usefixtures("known")
def test_what_a_command_of_codex_prints_is_its_result(crew: Crew) -> None:
    crew.answer(
        spawn(crew, "e", "[[run echo hi; run echo no >&2; force a.txt x; say done]]", engine="codex", network=True)
    )
    assert [each.content for each in of(crew, "e", ToolResult)] == ["hi\n", "", "written"]
    assert [(each.name, each.file) for each in of(crew, "e", ToolStart)][-1] == ("write_file", "a.txt")


@pytest.mark.usefixtures("known")
def test_an_engine_answers_notes_in_the_text_of_its_plan(crew: Crew) -> None:
    second = "1. write it\n\n**n1:** after the tests\n- n7: what?"
    spawn(crew, "e", f"[[plan 1. write it; plan {second}; say done]]", engine="claude", network=True, plan=True)
    first = crew.pending("plan_approval")
    notes = [NewNote(1, 1, "when?"), NewNote(1, 1, "where?")]
    answers.reject(crew.team, first.id, "", notes=notes)
    eventually(lambda: crew.see("e").waiting_for not in (None, first.id), "the next version")
    found = notes_in(crew.pending("plan_approval").payload)
    assert [(each.id, each.answer, each.state) for each in found] == [
        ("n1", "after the tests", "answered"), ("n2", "", "open"),
    ]  # fmt: skip
    assert 'begin with the id of a note, as in "n1: moved it up", say what you did about each note: n1, n2.' in told(
        crew, "e"
    )


def test_another_command_is_another_engine(crew: Crew) -> None:
    crew.answer(spawn(crew, "e", "[[say one]]", "--no-load"))
    crew.wait_for("e", "idle")
    with pytest.raises(UsageError, match=r"hired with other options \(engine\)"):
        again(crew, command())
    with pytest.raises(UsageError, match=r"hired with other options \(engine\)"):
        again(crew, "claude")
    crew.answer(again(crew, command("--no-load")))


def again(crew: Crew, engine: str) -> hiring.Assignment:
    return hiring.spawn(crew.team, hiring.Hire("e", "code", "[[say two]]", engine=engine, given=frozenset()))


@pytest.mark.parametrize("how", ["", "--no-steering", "--declines"])
def test_mail_enters_a_turn_if_the_engine_takes_it(crew: Crew, how: str) -> None:
    assignment = spawn(crew, "e", "[[say begin; wait here; say done]]", *([how] if how else []))
    at(crew, "e", "here")
    letter = messages.send(crew.team, "e", "one more thing")
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


def test_an_engine_may_ask_before_it_takes_mail(crew: Crew) -> None:
    assignment = spawn(crew, "e", "[[say begin; wait here; say done]]", "--asks-first")
    at(crew, "e", "here")
    letter = messages.send(crew.team, "e", "one more thing")
    answers.approve(crew.team, crew.pending("permission").id)
    eventually(lambda: any(letter.id in each.texts for each in of(crew, "e", Taken)), "the letter being taken")
    go(crew, "e", "here")
    assert letter.id in crew.answer(assignment).answers


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


def test_stop_ends_the_engine_with_all_that_it_started(crew: Crew) -> None:
    spawn(crew, "e", "[[spawn exec sleep 1000; wait here]]")
    at(crew, "e", "here")
    eventually(lambda: len(processes(crew, "e")) >= 3, "the engine's processes")
    stop.stop_now(crew.team, "e")
    crew.wait_for("e", "exited")
    eventually(lambda: processes(crew, "e") == [], "no process of the engine")


POINTS = ("new", "store", "model", "here", "load", "end")
"""Where an engine or its worker is killed: before the session is known, before the prompt is stored, before the model
answers, in a tool, while the session is loaded again, before the end of the turn is told."""


@pytest.mark.usefixtures("loads")
@pytest.mark.parametrize("killed", ["worker", "engine"])
@pytest.mark.parametrize("point", POINTS)
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


@pytest.mark.usefixtures("loads")
def test_what_an_engine_asked_before_it_was_killed_is_asked_no_more(crew: Crew) -> None:
    assignment = spawn(crew, "e", "[[say begin; run touch a.txt; say done]]")
    request = crew.pending("permission")
    for pid in filter(is_engine, processes(crew, "e")):
        process.send_signal(pid, signal.SIGKILL)
    eventually(lambda: crew.see("e").waiting_for not in (None, request.id), "another request")
    closed = requests.load(crew.directory, request.id)
    assert closed is not None
    assert closed.status == "cancelled"
    answers.approve(crew.team, crew.pending("permission").id)
    assert crew.answer(assignment).text == "done"
    assert "was not permitted" not in told(crew, "e")


@pytest.mark.usefixtures("loads")
def test_an_engine_that_cannot_load_is_told_what_it_lost(crew: Crew) -> None:
    assignment = spawn(crew, "e", "[[wait here; say done]]", "--no-load")
    kill(crew, "engine", "here")
    go(crew, "e", "here")
    assert crew.answer(assignment).text == "done"
    assert [each.loaded for each in of(crew, "e", EngineSession)] == [False, False]
    assert "Your earlier session could not be loaded again" in told(crew, "e")


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
    type_files.trust(bring(""), crew.environment)
    kind = bring(command())
    with pytest.raises(UntrustedError, match=r"runs the engine `acp:.*fake_engine\.py` in place of a model"):
        hire()
    assert not home(crew, "e").exists()
    # An older version did not understand the field, so a yes to it is a yes to less.
    type_files.trust(dataclasses.replace(kind, engine=""), crew.environment)
    with pytest.raises(UntrustedError):
        hire()
    type_files.trust(kind, crew.environment)
    assert crew.answer(hire()).text == "ok"
    assert "hello" in told(crew, "e")
    (folder / "served.md").write_text("---\nname: served\ndescription: works\nmcp: time\n---\nWork.\n")
    type_files.trust(type_files.find(crew.root, "served"), crew.environment)
    with pytest.raises(UsageError, match="which gets no MCP servers of crewboard's"):
        hiring.spawn(crew.team, hiring.Hire("f", "served", "hello", engine=command()))
    type_files.trust(bring("gpt"), crew.environment)
    with pytest.raises(UsageError, match="there is no engine 'gpt'; the engines are claude, codex"):
        hiring.spawn(crew.team, hiring.Hire("f", "foreign", "hello"))


def test_a_file_for_an_engine_is_refused_and_never_dropped(crew: Crew, tmp_path: Path) -> None:
    picture = tmp_path / "a.pdf"
    picture.write_bytes(b"%PDF-1.4\n/Type /Page\n%%EOF")
    crew.answer(spawn(crew, "e", "hello"))
    with pytest.raises(UsageError, match="nothing can be attached to a message for e: its engine is sent text alone"):
        messages.send(crew.team, "e", "see this", [picture])
    crew.wait_for_rest("e")
    assert "see this" not in told(crew, "e")


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


@pytest.mark.usefixtures("loads")
def test_an_engine_that_ends_again_and_again_fails_with_its_words(crew: Crew) -> None:
    answer = crew.answer(spawn(crew, "e", "hello", "--die-at-prompt"))
    assert answer.code == ExitCode.FAILED
    assert answer.error is not None
    assert "exit code 3" in answer.error
    once = crew.answer(spawn(crew, "f", "[[die; say still here]]"))
    assert once.text == "still here"


def test_a_login_that_is_missing_holds_the_work(crew: Crew) -> None:
    answer = crew.answer(spawn(crew, "e", "hello", "--logged-out"))
    assert (answer.code, answer.held) == (ExitCode.CREDENTIALS, True)
    assert answer.error is not None
    assert "Authentication required" in answer.error


def test_the_login_is_lent_and_the_home_is_its_own(user: Path, crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{ON_PATH}:{os.environ['PATH']}")
    (user / ".claude").mkdir(parents=True)
    (user / ".claude" / ".credentials.json").write_text("the login")
    (user / ".claude" / "other").write_text("private")
    crew.environment["ANTHROPIC_API_KEY"] = "a-key-of-claude"
    crew.environment["PATH"] = f"{ON_PATH}:{os.environ['PATH']}"
    prompt = (
        f"[[run cat .claude/.credentials.json ~/.claude/.credentials.json 2>/dev/null || true; "
        f'run echo x > ~/.claude/.credentials.json; run ls {user}/.claude/other; run test -n "$ANTHROPIC_API_KEY"; '
        "say done]]"
    )

    def edit(config: Config) -> None:
        config.rules = [Rule(id="r1", effect="allow", tool="bash", pattern="*")]

    roster.change(crew.directory, edit)
    assignment = spawn(crew, "e", prompt, engine="claude", network=True)
    while len(of(crew, "e", ToolResult)) < 4:
        with contextlib.suppress(AssertionError):
            answers.approve(crew.team, crew.pending("permission").id)
    assert crew.answer(assignment).text == "done"
    read, written, other, has_key = of(crew, "e", ToolResult)
    assert read.content == "the login"
    assert written.is_error
    assert other.is_error
    assert not has_key.is_error
    assert "a-key-of-claude" not in repr(crew.events("e"))


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"effort": "high"}, "--effort"),
        ({"web": True}, "--web"),
        ({"window": 16000}, "--window"),
        ({"plan": True}, "--plan"),
        ({"strict_plan": True}, "--strict-plan"),
        ({"ask": True}, "--ask"),
        ({"budget": "$5"}, "does not tell what it costs"),
        ({"engine": "claude"}, "allow that with --network"),
        ({"engine": "claude", "network": True, "model": "opus"}, "--model"),
        ({"kind": "lead", "name": "lead"}, "cannot have an engine"),
        ({"kind": "explore", "unsafe_no_sandbox": True}, "leave out --unsafe-no-sandbox"),
        ({"engine": "claude", "network": True, "plan": True, "unsafe_no_sandbox": True}, "before its plan is approved"),
    ],
)
def test_what_an_engine_cannot_do_is_refused(crew: Crew, options: dict[str, Any], said: str) -> None:
    flags = {key: value for key, value in options.items() if key in HireOptions.__struct_fields__}
    name, kind = options.get("name", "e"), options.get("kind", "code")
    engine, model = options.get("engine", command()), options.get("model")
    hire = hiring.Hire(name, kind, "x", model=model, flags=HireOptions(**flags), engine=engine)
    with pytest.raises(UsageError, match=said):
        hiring.spawn(crew.team, hire)
    assert agents.spec(crew.agent(name)) is None


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


def test_the_worker_of_an_engine_loads_no_sdk() -> None:
    code = (
        "import sys; import crewboard.worker.__main__, crewboard.worker.engine; "
        "sys.exit('anthropic' in sys.modules or 'mcp' in sys.modules)"
    )
    subprocess.run([sys.executable, "-I", "-c", code], check=True)
