"""Odd replies, stalled calls and failing storage stop no agent."""

import contextlib
import resource
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from crewboard import pricing
from crewboard.commands import hire, messages, settings
from crewboard.commands.context import CommandLine
from crewboard.errors import StorageError
from crewboard.offline.reply import Reply
from crewboard.offline.service import Fault
from crewboard.records.events import Opening, Retry, ToolResult
from crewboard.store import leases
from crewboard_tui.cli import answers as cli_answers
from crewboard_tui.queries import Snapshot
from crewboard_tui.widgets.bars import alert_line
from tests.cli.shell import Inside
from tests.crew import Crew, eventually
from tests.matrix import default
from tests.model import ModelServer, calls, says
from tests.raw import RawServer, as_json
from tests.system import need_program

Make = Callable[..., Crew]

ODD_CALLS = {
    # More than a reply of a model can hold.
    "huge": (calls("write_file", path="x", content="x" * (2 << 20)), "bytes"),
    "surrogate": (calls("write_file", path="x", content="half \ud83d a pair"), "surrogate"),
    "surrogate-key": (calls("write_file", **{"pa\udc80th": "x"}), "surrogate"),
}


@pytest.mark.long
@pytest.mark.parametrize("name", default(ODD_CALLS, "huge", "surrogate"))
def test_a_tool_call_with_an_odd_input_is_refused_and_the_run_goes_on(shared_crew: Crew, name: str) -> None:
    call, why = ODD_CALLS[name]
    shared_crew.model.give(name, call, says("went on"))
    answer = shared_crew.run(name, "code", "write it", unsafe_no_sandbox=True)
    assert answer.text == "went on"
    (result,) = [event for event in shared_crew.events(name) if isinstance(event, ToolResult)]
    assert result.is_error
    assert why in result.content
    assert not (shared_crew.root / "x").exists()


def test_a_text_with_half_a_surrogate_pair_is_an_answer(shared_crew: Crew) -> None:
    shared_crew.model.give("halved", Reply([{"type": "text", "text": "half \ud83d a pair"}]))
    assert shared_crew.run("halved", "explore", "say it").text == "half ? a pair"


@pytest.mark.long
def test_half_a_surrogate_pair_in_a_reply_is_not_sent_back(shared_crew: Crew) -> None:
    spoken = Reply([{"type": "text", "text": "half \ud83d"}, {"type": "tool_use", "name": "list_dir", "input": {}}])
    shared_crew.model.give("echoed", spoken, says("went on"))
    assert shared_crew.run("echoed", "explore", "list it").text == "went on"


STALLS = {
    "pings": (Fault(kind="ping", seconds=0.05), {"CREWBOARD_PROGRESS_TIMEOUT": "0.6"}, "no progress for 3 s"),
    "silence": (Fault(kind="hang"), {"CREWBOARD_PROGRESS_TIMEOUT": "1.5"}, "no progress for 1.5 s"),
    "drip": (Fault(kind="drip", seconds=0.8), {"CREWBOARD_CALL_TIMEOUT": "2"}, "took longer than 2 s"),
}


@pytest.mark.long
@pytest.mark.parametrize("name", default(STALLS, "drip", "silence"))
def test_a_call_that_makes_no_progress_is_cancelled_and_repeated(shared_crew_on: Make, name: str) -> None:
    fault, limits, why = STALLS[name]
    crew = shared_crew_on([says("here it is")], [fault], **limits)
    assert crew.run(f"stalled-{name}", "explore", "Tell me").text == "here it is"
    # On a busy machine the next call may take too long as well.
    first, *_ = [event for event in crew.events(f"stalled-{name}") if isinstance(event, Retry)]
    assert why in first.error


@pytest.mark.long
def test_a_server_that_never_answers_is_a_need_in_bounded_time(crew_on: Make) -> None:
    limits = {"CREWBOARD_PROGRESS_TIMEOUT": "0.5", "CREWBOARD_RETRY_BUDGET": "1.8"}
    crew = crew_on([], [Fault(kind="hang")] * 9, **limits)
    hired = crew.hire("unanswered", "explore", "Tell me")
    eventually(lambda: [need.kind for need in crew.view().needs] == ["outage"], "the need of the outage")
    # Its agent waits no longer.
    settings.change_setting(crew.team, "on_outage", "fail")
    answer = crew.answer(hired)
    assert answer.code == 69
    assert str(answer.error).startswith("the API stayed unavailable: the reply made no progress for 0.5 s; CREWBOARD_")
    # The one that is retried, and the one that began the outage.
    assert len([event for event in crew.events("unanswered") if isinstance(event, Retry)]) == 2
    eventually(
        lambda: [need.code for need in crew.view().needs if need.agent == "unanswered"] == [69],
        "the need of its failure",
    )


LONG = "a long answer, " * 2000 + "and its end"
"""Larger than what is left in the last block of a journal."""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of a few megabytes."""
    need_program("mount")
    path = tmp_path / "disk"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(path)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("mount does not work here: tmpfs needs the rights of root")
    yield path
    subprocess.run(["umount", "-l", path], check=True)


def fill(disk: Path) -> Path:
    filler = disk / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass
    return filler


def test_a_full_disk_loses_nothing_and_the_work_continues_when_there_is_space(small_disk: Path) -> None:
    with ModelServer(script=[says("ready"), says(LONG), says("and the last")]) as model:
        crew = Crew(small_disk, model)
        try:
            crew.run("keeper", "explore", "go")
            pid = crew.pid("keeper")
            with model.holding():
                accepted = messages.send(crew.team, "keeper", "write a long answer")
                eventually(lambda: len(model.requests) == 2, "the second call")
                filler = fill(small_disk)
            assert crew.view().storage == "disk full"
            with pytest.raises(StorageError, match=r"^disk full: nothing was lost, 1 message not accepted; "):
                messages.send(crew.team, "keeper", "refused " * 1000)
            with pytest.raises(StorageError, match=r"^disk full: nothing was lost, 2 messages not accepted; "):
                messages.broadcast(crew.team, "refused " * 1000, ["keeper", "operator"])
            # What was written of a line that did not fit is blanked.
            eventually(lambda: crew.agent("keeper").journal.on_disk.read_bytes().endswith(b"\n\n"), "the failed append")
            filler.unlink()
            assert crew.answer_to("keeper", accepted.id).text == LONG
            assert crew.view().storage is None
            after = messages.send(crew.team, "keeper", "and again")
            assert crew.answer_to("keeper", after.id).text == "and the last"
            assert crew.pid("keeper") == pid
            assert len(model.requests) == 3, "a reply that could not be stored is not paid twice"
        finally:
            (small_disk / "filler").unlink(missing_ok=True)
            crew.end()


@pytest.mark.long
def test_on_a_full_disk_agents_can_be_ended_and_teams_purged(small_disk: Path) -> None:
    with ModelServer(script=[says("ready"), says("ready")]) as model:
        crew = Crew(small_disk, model)
        cli = Inside(small_disk)
        try:
            for name in ("one", "two"):
                crew.run(name, "explore", "go", restart=True)
            filler = fill(small_disk)
            cli("stop", "one").refused(74, "No space left on device")
            assert "one is ended without a record" in cli("stop", "one", "--now").err
            assert not leases.is_held(crew.agent("one").lease)
            filler.unlink()
            seen = crew.wait_for("one", "exited")
            assert seen.exit is not None
            assert (seen.exit.reason, seen.run) == ("killed", 1)
            fill(small_disk)
            assert "two is ended without a record" in cli("team", "delete", "default", "--purge", "--now").err
            assert not crew.directory.path.exists()
        finally:
            (small_disk / "filler").unlink(missing_ok=True)
            crew.end()


@contextlib.contextmanager
def read_only(path: Path) -> Iterator[None]:
    """Make everything below a folder read-only, also for processes that have files there open."""
    subprocess.run(["mount", "--bind", path, path], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", path], check=True)
        yield
    finally:
        subprocess.run(["umount", "-l", path], check=True)


@pytest.mark.long
def test_a_read_only_disk_loses_nothing_and_the_work_continues_when_it_is_writable(small_disk: Path) -> None:
    words = "disk is read-only: nothing was lost; agents wait and continue by themselves"
    with ModelServer(script=[says("ready"), says(LONG), says("and the last")]) as model:
        crew = Crew(small_disk, model)
        cli = Inside(small_disk)
        try:
            crew.run("keeper", "explore", "go")
            pid = crew.pid("keeper")
            with contextlib.ExitStack() as stack:
                with model.holding():
                    accepted = messages.send(crew.team, "keeper", "write a long answer")
                    eventually(lambda: len(model.requests) == 2, "the second call")
                    stack.enter_context(read_only(small_disk))
                eventually(lambda: "disk is read-only" in crew.agent("keeper").log.read_text(), "the wait")
                assert words in cli("status").out
                alert = alert_line(Snapshot(crew.view()), crew.team.now(), 100)
                assert words in "".join(span.text for span in alert)
                cli("send", "keeper", "refused").refused(
                    74, "disk is read-only: nothing was lost, 1 message not accepted"
                )
            assert crew.answer_to("keeper", accepted.id).text == LONG
            assert crew.view().storage is None
            assert crew.pid("keeper") == pid
            crew.wait_for("keeper", "idle")
            with read_only(small_disk):
                crew.kill("keeper")
                eventually(lambda: not leases.is_held(crew.agent("keeper").lease), "its end")
                with pytest.raises(StorageError):
                    hire.resume(crew.team, "keeper")
                assert crew.see("keeper").shown == "dead"
            assert hire.resume(crew.team, "keeper") == 2
            after = messages.send(crew.team, "keeper", "and again")
            assert crew.answer_to("keeper", after.id).text == "and the last"
            assert len(model.requests) == 3, "no reply is paid twice"
        finally:
            crew.end()


def limited(pid: int, limit: int, value: int) -> tuple[int, int]:
    """Set the soft limit of a process; return its limits before."""
    before = resource.prlimit(pid, limit)
    resource.prlimit(pid, limit, (value, before[1]))
    return before


LIMITS = {
    "files": (resource.RLIMIT_FSIZE, 4096, "limit of file sizes reached (ulimit -f)"),
    "descriptors": (resource.RLIMIT_NOFILE, 3, "limit of open files reached (ulimit -n)"),
}


@pytest.mark.parametrize("name", default(LIMITS, "files"))
def test_a_worker_at_a_limit_waits_and_continues_when_it_is_lifted(shared_crew_on: Make, name: str) -> None:
    limit, value, words = LIMITS[name]
    agent = f"limited-{name}"
    crew = shared_crew_on([says("ready"), says(LONG)])
    crew.run(agent, "explore", "go")
    pid = crew.pid(agent)
    with crew.model.holding():
        sent = messages.send(crew.team, agent, "write a long answer")
        eventually(lambda: len(crew.model.requests) == 2, "the second call")
        before = limited(pid, limit, value)
    # With too few descriptors the status cannot be written either.
    eventually(lambda: words in crew.agent(agent).log.read_text(), "the wait")
    resource.prlimit(pid, limit, before)
    assert crew.answer_to(agent, sent.id).text == LONG
    assert crew.pid(agent) == pid
    assert len(crew.model.requests) == 2


@pytest.mark.long
@pytest.mark.files_only("puts a link in the place of a file")
def test_a_mailbox_that_cannot_be_written_for_a_moment_ends_no_agent(shared_crew: Crew) -> None:
    shared_crew.model.give("patient", says("ready"), says("delivered late"))
    shared_crew.run("patient", "explore", "go")
    shared_crew.wait_for("patient", "idle")
    pid = shared_crew.pid("patient")
    mailbox = shared_crew.directory.inbox("lead")
    aside = mailbox.on_disk.rename(mailbox.on_disk.with_suffix(".aside"))
    mailbox.on_disk.symlink_to(mailbox.on_disk.name)
    try:
        messages.send(shared_crew.team, "patient", "tell me")
        seen = shared_crew.wait_for("patient", "retrying")
        assert "inbox/lead.jsonl" in str(seen.status.last_error)
    finally:
        mailbox.on_disk.unlink()
        aside.rename(mailbox.on_disk)
    eventually(lambda: b"delivered late" in mailbox.on_disk.read_bytes(), "the mail")
    assert mailbox.on_disk.read_bytes().count(b"delivered late") == 1
    assert shared_crew.wait_for("patient", "idle").status.last_error is None
    assert shared_crew.pid("patient") == pid


UNKNOWN = {
    "anthropic": ({"type": "error", "error": {"type": "not_found_error", "message": "model: nosuch"}}, 404),
    "ollama": ({"error": {"message": 'model "nosuch" not found, try pulling it first'}}, 404),
    "vllm": ({"object": "error", "message": "The model `nosuch` does not exist.", "code": 404}, 404),
    "litellm": ({"error": {"message": "/chat/completions: Invalid model name passed in model=nosuch"}}, 400),
}


@pytest.mark.long
@pytest.mark.parametrize("name", UNKNOWN)
def test_a_model_that_is_not_there_is_answered_with_another(shared_crew_on: Make, name: str) -> None:
    with RawServer(as_json(*UNKNOWN[name])) as server:
        crew = shared_crew_on(ANTHROPIC_BASE_URL=server.url)
        hired = hire.spawn(crew.team, hire.Hire(name, "explore", "go", model="nosuch"))
        assert "nosuch" in str(crew.answer(hired).error)
        crew.wait_for(name, "idle")
        (need,) = [need for need in crew.view().needs if need.agent == name]
    offered = [how for _, how in cli_answers.answers(need, CommandLine())]
    assert offered[0] == f"crewboard resume {name} --model M"


@pytest.mark.long
def test_a_death_names_the_file_that_broke_after_the_hire(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    file = crew.root / ".crewboard" / "models.toml"
    file.write_text("garbage = [\n")
    monkeypatch.setattr(pricing, "require_readable", lambda *_: None)
    crew.hire("early", "explore", "look")
    crew.wait_for("early", "crashed")
    (need,) = [need for need in crew.view().needs if need.agent == "early"]
    assert need.kind == "death"
    assert f"exit 65: ended with an error: {file} cannot be used" in need.summary


@pytest.mark.long
def test_a_worker_whose_storage_stays_broken_ends_with_74(shared_crew_on: Make) -> None:
    crew = shared_crew_on([says("ready"), says(LONG)], CREWBOARD_RETRY_BUDGET="1")
    crew.run("hopeless", "explore", "go")
    crew.wait_for("hopeless", "idle")
    limited(crew.pid("hopeless"), resource.RLIMIT_FSIZE, 0)
    messages.send(crew.team, "hopeless", "write a long answer")
    seen = crew.wait_for("hopeless", "crashed")
    assert seen.exit is not None
    assert seen.exit.code == 74


@pytest.mark.long
def test_pings_are_signs_of_life_for_five_times_as_long(shared_crew_on: Make) -> None:
    crew = shared_crew_on([says("here it is")], [Fault(kind="ping", seconds=0.05)], CREWBOARD_PROGRESS_TIMEOUT="0.3")
    assert crew.run("patient", "explore", "Tell me").text == "here it is"
    asked, failed = (
        next(event for event in crew.events("patient") if isinstance(event, kind)) for kind in (Opening, Retry)
    )
    assert failed.ts - asked.ts > 4 * 0.3
