"""Commands that take long: their output is seen while they run, and those in the background end with the run."""

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from crewboard.commands import answers, control, messages, rules, stop
from crewboard.errors import LostLeaseError
from crewboard.offline.reply import Reply
from crewboard.readmodel.processes import process_tree
from crewboard.records.events import Intake, ToolResult
from crewboard.unix import process
from crewboard.worker.tools import files
from crewboard.worker.tools.base import Context
from tests.crew import Crew, eventually
from tests.model import calls, says
from tests.sandbox.test_shell import long_sleep

FIRST = "bash-1-1"

of_commands = pytest.mark.files_only("how a command runs and ends, no store knows")


def results_of(crew: Crew, name: str) -> list[ToolResult]:
    return [event for event in crew.events(name) if isinstance(event, ToolResult)]


def wait_for_file(path: Path) -> str:
    """Return a command that waits until a file exists."""
    return f"until [ -e {path} ]; do sleep 0.02; done"


def starts(command: str) -> Reply:
    return calls("bash", command=command, background=True)


def family(crew: Crew, name: str, mark: str) -> list[int]:
    """Return the descendants of an agent's worker that sleep for `mark` seconds."""
    pids = process.descendants(crew.pid(name))
    return [pid for pid in pids if (process.arguments(pid) or [])[-2:] == ["sleep", mark]]


@pytest.mark.long
@of_commands
def test_the_output_of_a_command_is_seen_while_it_runs(shared_crew: Crew) -> None:
    go = shared_crew.root / "go-live"
    shared_crew.model.give("teller", calls("bash", command=f"echo first; {wait_for_file(go)}; echo last"), says("done"))
    hired = shared_crew.hire("teller", "test", "tell", unsafe_no_sandbox=True)
    live = shared_crew.agent("teller").live
    eventually(lambda: live.exists() and live.read_text() == "first\n", "the first line")
    go.touch()
    shared_crew.answer(hired)
    assert results_of(shared_crew, "teller")[0].content == "first\nlast\n[exit code 0]"
    assert "first" not in live.read_text(), "the preview ends with the command"


@pytest.mark.long
@of_commands
def test_much_output_leaves_a_short_preview(shared_crew: Crew) -> None:
    go = shared_crew.root / "go-much"
    flood = f"yes line | head -c 5000000; echo end; {wait_for_file(go)}"
    shared_crew.model.give("flood", calls("bash", command=flood), says("done"))
    hired = shared_crew.hire("flood", "test", "flood", unsafe_no_sandbox=True)
    live = shared_crew.agent("flood").live
    eventually(lambda: live.exists() and live.read_text().endswith("\nend\n"), "the end")
    assert live.stat().st_size < 600_000
    go.touch()
    shared_crew.answer(hired)


@of_commands
def test_a_lost_lease_in_a_preview_is_left_to_the_next_call() -> None:
    def refuse() -> None:
        raise LostLeaseError("the lease of api is lost")

    live = files._Live(cast("Context", SimpleNamespace(run_state=SimpleNamespace(flush=refuse, clear_live=refuse))))
    live._flush()
    live.end()


@of_commands
def test_a_background_command_is_followed_and_ended(shared_crew: Crew) -> None:
    go, mark = shared_crew.root / "made/go", long_sleep()
    # With Landlock, a command makes files only in folders.
    go.parent.mkdir(exist_ok=True)
    shared_crew.model.give(
        "server",
        starts(f"{wait_for_file(go)}; echo served; sleep {mark}"),
        calls("bash", command=f"touch $TMPDIR/x; echo other; touch {go}"),
        calls("bash_output", handle=FIRST, wait=60),
        calls("bash_kill", handle=FIRST),
        calls("bash_output", handle=FIRST),
        calls("bash_output", handle="bash-9-9"),
        says("done"),
    )
    shared_crew.run("server", "code", "serve", unsafe_no_sandbox=True)
    begun, other, served, killed, after, unknown = (each.content for each in results_of(shared_crew, "server"))
    assert begun.startswith(f"{FIRST} runs in the background")
    assert other == "other\n[exit code 0]"
    assert re.fullmatch(rf"served\n\[{FIRST} runs for \d+ s\]", served)
    assert killed == f"[{FIRST} has ended] [ended by bash_kill]"
    assert after == f"[{FIRST} has ended] [ended by bash_kill]"
    assert "there is no command 'bash-9-9'; this run started bash-1-1" in unknown
    eventually(lambda: not family(shared_crew, "server", mark), "the end of the command")


def test_the_end_of_a_background_command_is_reported(shared_crew: Crew) -> None:
    shared_crew.model.give("hasty", starts("exit 3"), calls("bash_output", handle=FIRST, wait=60), says("done"))
    shared_crew.run("hasty", "test", "try", unsafe_no_sandbox=True)
    last = results_of(shared_crew, "hasty")[1]
    assert (last.content, last.exit_code) == (f"[{FIRST} has ended] [exit code 3]", 3)


@pytest.mark.long
def test_a_background_command_that_ends_by_itself_is_told_once(shared_crew: Crew) -> None:
    # By a short name: long commands are cut in notices.
    command = f"{wait_for_file(Path('go-ended'))}; exit 3"
    shared_crew.model.give("told", starts(command), *[says("done")] * 500)
    shared_crew.run("told", "test", "begin", unsafe_no_sandbox=True)
    # Not the command, which can hold an address: this stands in the user's part of the request.
    told = f"{FIRST} has ended [exit code 3]. bash_output shows what it printed."

    def notices() -> list[str]:
        taken = [event for event in shared_crew.events("told") if isinstance(event, Intake)]
        return [notice for event in taken for notice in event.notices if "has ended" in notice]

    def notices_of_next_turn() -> list[str]:
        sent = messages.send(shared_crew.team, "told", "go on")
        shared_crew.answer_to("told", sent.id)
        return notices()

    assert notices_of_next_turn() == []
    (shared_crew.root / "go-ended").touch()
    # The worker learns of the end a moment after it.
    assert eventually(notices_of_next_turn, "the notice") == [told]
    assert notices_of_next_turn() == [told]


def begin(crew: Crew, name: str, *more: Reply) -> tuple[str, list[int]]:
    """Hire an agent with a command in the background; return how long that sleeps, and its processes."""
    mark = long_sleep()
    crew.model.give(name, starts(f"(setsid sleep {mark} &); sleep {mark}"), *more)
    crew.hire(name, "test", "begin", unsafe_no_sandbox=True)
    return mark, eventually(lambda: found if len(found := family(crew, name, mark)) == 2 else None, "both processes")


@of_commands
def test_a_background_command_is_known_by_its_handle(shared_crew: Crew) -> None:
    mark = long_sleep()
    # Bash is replaced by the last command of a line.
    shared_crew.model.give("named", starts(f"sleep {mark}; true"), says("done"))
    shared_crew.hire("named", "test", "begin", unsafe_no_sandbox=True)
    eventually(lambda: family(shared_crew, "named", mark), "the command")
    shown = [node.command for node in process_tree(shared_crew.pid("named"))]
    assert any(each.endswith(f"{FIRST}: sleep {mark}; true") for each in shown), shown
    assert not any("--ro-bind" in each or "ulimit" in each for each in shown), shown
    shared_crew.kill("named")


def ended(pids: list[int]) -> bool:
    return not any(process.start_ticks(pid) for pid in pids)


@pytest.mark.long
@of_commands
def test_a_background_command_ends_with_a_killed_worker(shared_crew: Crew) -> None:
    _, pids = begin(shared_crew, "killed", says("done"))
    shared_crew.wait_for("killed", "idle")
    assert not ended(pids), "it outlives the assignment"
    shared_crew.kill("killed")
    eventually(lambda: ended(pids), "the end of the command")


@of_commands
@pytest.mark.long
def test_a_background_command_ends_when_the_agent_is_stopped(shared_crew: Crew) -> None:
    _, pids = begin(shared_crew, "stopped", calls("bash_output", handle=FIRST, wait=600), says("done"))
    eventually(lambda: "bash_output" in shared_crew.see("stopped").doing, "the wait")
    stop.stop_now(shared_crew.team, "stopped")
    eventually(lambda: ended(pids), "the end of the command")
    assert shared_crew.agent("stopped").exit.load() is not None


@of_commands
@pytest.mark.long
def test_an_interrupt_does_not_end_a_background_command(shared_crew: Crew) -> None:
    wait = calls("bash_output", handle=FIRST, wait=600)
    _, pids = begin(shared_crew, "waiter", wait, calls("bash_output", handle=FIRST), says("done"))
    eventually(lambda: "bash_output" in shared_crew.see("waiter").doing, "the wait")
    control.interrupt(shared_crew.team, "waiter", "how far are you?")
    shared_crew.wait_for("waiter", "idle")
    _, first, second = results_of(shared_crew, "waiter")
    assert "interrupted" in first.content
    assert re.search(rf"\[{FIRST} runs for \d+ s\]$", second.content)
    assert not ended(pids)
    stop.stop_now(shared_crew.team, "waiter")
    eventually(lambda: ended(pids), "the end of the command")


@pytest.mark.long
@of_commands
def test_permissions_hold_for_background_commands(shared_crew: Crew) -> None:
    file = shared_crew.root / "made/asked.txt"
    file.parent.mkdir(exist_ok=True)
    shared_crew.model.give("asker", starts(f"touch {file}"), starts("git push origin"), says("done"))
    rules.add_rule(shared_crew.team, "deny", "bash", "git push*")
    hired = shared_crew.hire("asker", "code", "begin", ask=True, unsafe_no_sandbox=True)
    asked = shared_crew.pending("permission", "asker")
    given = asked.payload["input"]
    assert isinstance(given, dict)
    assert given["background"] is True
    assert not file.exists()
    answers.approve(shared_crew.team, asked.id, sha256=asked.sha256)
    shared_crew.answer(hired)
    eventually(file.exists, "the file")
    assert "denies git push*" in results_of(shared_crew, "asker")[1].content


@of_commands
@pytest.mark.long
def test_only_so_many_commands_run_in_the_background(crew_on: Callable[..., Crew]) -> None:
    crew = crew_on([*(starts(f"sleep {long_sleep()}") for _ in range(9)), says("done")])
    crew.run("many", "test", "begin", unsafe_no_sandbox=True)
    *begun, refused = results_of(crew, "many")
    assert not any(result.is_error for result in begun)
    assert refused.is_error
    assert "end one with bash_kill" in refused.content
