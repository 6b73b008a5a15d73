"""Tests of one command: bounded output, limited time and processes, and nothing left afterwards."""

import asyncio
import itertools
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from crewboard.records.team import Checked
from crewboard.sandbox import bubblewrap, shell
from crewboard.sandbox.level import Level
from crewboard.store.layout import TeamDirectory
from crewboard.unix import process
from tests.crew import WAIT_TIMEOUT, eventually
from tests.sandbox.conftest import need
from tests.sandbox.targets import Targets, run

if TYPE_CHECKING:
    from crewboard.sandbox.git import GitGuard
    from crewboard.sandbox.process import Child


def running(mark: str) -> list[int]:
    """Return the processes with `mark` in their arguments."""
    found = []
    for pid in process.parents():
        try:
            if mark.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
        except OSError:
            continue
    return found


def long_sleep() -> str:
    """Return a number of seconds that no other process sleeps for."""
    return str(10_000 + secrets.randbelow(10**6) / 1000)


LEFT_BEHIND = {
    "in the background": "sleep {mark} & echo started",
    "in a session of its own": "setsid sleep {mark} & echo started",
    "deaf to signals": "trap '' TERM HUP INT; nohup setsid sleep {mark} >/dev/null 2>&1 & echo started",
    "an orphan of an orphan": "(setsid bash -c 'sleep {mark} & sleep {mark} & exec sleep {mark}' &) ; echo started",
}


@pytest.mark.parametrize("command", LEFT_BEHIND.values(), ids=LEFT_BEHIND.keys())
def test_nothing_outlives_a_command(targets: Targets, level: Level, command: str) -> None:
    mark = long_sleep()
    outcome = run(targets.sandbox("test", level), command.format(mark=mark))
    assert outcome.content == "started\n[exit code 0]"
    assert not running(mark)


def test_nothing_writes_after_a_command(targets: Targets, level: Level) -> None:
    file = targets.scratch / "late"
    outcome = run(
        targets.sandbox("test", level),
        "setsid bash -c 'while :; do echo x >> $TMPDIR/late; done' & until [ -s $TMPDIR/late ]; do :; done",
    )
    assert not outcome.is_error
    size = file.stat().st_size
    run(targets.sandbox("test", level), "sleep 0.05")
    assert file.stat().st_size == size
    file.unlink()


def test_a_command_has_a_time_limit(targets: Targets, level: Level, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock starts at 0 and stands still until the command has begun, however busy the machine is."""
    mark, begun = long_sleep(), targets.scratch / "begun"
    looks = itertools.count()
    monkeypatch.setattr(shell, "time", SimpleNamespace(monotonic=lambda: float(next(looks) > 0 and begun.exists())))
    command = f"echo begun; setsid sleep {mark} & touch $TMPDIR/begun; sleep {mark}"
    outcome = run(targets.sandbox("test", level), command, seconds=0.3)
    begun.unlink()
    assert outcome.content == "begun\n[ended after 0.3 s: time limit]"
    assert outcome.is_error
    assert not running(mark)


@pytest.mark.long
def test_many_processes_are_ended(targets: Targets, level: Level, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shell, "MOST_PROCESSES", 60)
    mark = long_sleep()
    outcome = run(targets.sandbox("test", level), f"for i in $(seq 120); do setsid sleep {mark} & done; wait")
    assert "more than 60 processes" in outcome.content
    assert not running(mark)


def test_what_this_process_ran_before_is_left_alone(targets: Targets, level: Level) -> None:
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as other:
        asyncio.run(shell.run("true", targets.sandbox("test", level), 20, set()))
        assert other.poll() is None
        other.kill()


def test_endless_output_is_cut(targets: Targets, level: Level) -> None:
    outcome = run(targets.sandbox("test", level), "echo first; yes | head -c 20000000; echo last")
    assert outcome.content.startswith("first\ny\n")
    assert outcome.content.endswith("last\n[exit code 0]")
    assert "bytes left out" in outcome.content
    assert len(outcome.content) < shell.HEAD + shell.TAIL + 100


def test_output_is_passed_on_whole_and_in_lines() -> None:
    shown: list[str] = []
    output = shell.Output(shown.append)
    for piece in (b"one\ntw", b"o\x1b[3", b"1m\nthr\xc3", b"\xa9e"):
        output.add(piece)
    output.end()
    assert shown == ["one\n", "two\n", "thrée\n"]
    output.add(b"x" * (1 << 20))
    assert sum(map(len, shown)) > 1 << 20, "a line without end is not held back"


def check(targets: Targets, level: Level, command: str) -> tuple[Checked, str, str]:
    """Run a check of the agent `scout`; return how it ended, its last lines, and what was kept."""
    team = TeamDirectory(targets.base / ".crewboard" / "checked")
    team.make()
    keep = set(process.descendants(os.getpid()))
    sandbox = targets.sandbox("test", level)
    found = asyncio.run(shell.run_check(command, sandbox, keep, team, "scout", lambda: 5.0))
    return found.checked, found.tail, (team.path / found.checked.result).read_text()


def test_a_check_keeps_its_whole_output(targets: Targets, level: Level, monkeypatch: pytest.MonkeyPatch) -> None:
    checked, tail, kept = check(targets, level, "seq 20000; exit 4")
    assert (checked.exit_code, checked.passed) == (4, False)
    assert kept.splitlines() == ["$ seq 20000; exit 4", *map(str, range(1, 20001)), "[exit code 4]"]
    assert tail.splitlines() == [*map(str, range(19962, 20001)), "[exit code 4]"]
    monkeypatch.setattr(shell, "MOST_OF_CHECK", 1000)
    checked, tail, kept = check(targets, level, "seq 20000")
    assert checked.passed
    assert "some is left out" in kept
    assert kept.endswith("\n20000\n[exit code 0]\n")


def test_a_check_has_a_time_limit(targets: Targets, level: Level, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shell, "CHECK_SECONDS", 0.3)
    mark = long_sleep()
    checked, tail, _ = check(targets, level, f"sleep {mark}")
    assert (checked.exit_code, checked.passed) == (None, False)
    assert tail.endswith("[ended after 0.3 s: time limit]")
    assert not running(mark)


def test_a_key_in_the_output_of_a_check_is_redacted(targets: Targets, level: Level) -> None:
    key = "sk-ant-" + "api03-" + "A" * 40
    _, tail, kept = check(targets, level, f"echo {key}")
    assert key not in tail + kept


def test_output_is_shown_without_terminal_sequences(targets: Targets, level: Level) -> None:
    colours = r"printf '\033[31m\033[1mred\033[0m \033]0;title\007\033]8;;x\033\\link\033(B \033[2Kline'"
    assert run(targets.sandbox("test", level), colours).content.startswith("red link line\n")


def test_a_command_has_limits_of_the_kernel(targets: Targets, level: Level) -> None:
    outcome = run(targets.sandbox("test", level), "ulimit -c; ulimit -f; ulimit -u")
    core, file, processes = outcome.content.splitlines()[:3]
    assert core == "0"
    assert int(file) <= 8 << 20
    assert level != "bubblewrap" or int(processes) <= 4096


@pytest.mark.parametrize("command", ["x" * 200_000, "a\0b", "\ud800"], ids=["too long", "NUL", "half a pair"])
def test_what_cannot_be_started_is_an_error_of_the_tool(targets: Targets, level: Level, command: str) -> None:
    outcome = run(targets.sandbox("test", level), command)
    assert outcome.is_error
    assert "could not be started" in outcome.content


def test_a_syntax_error_is_the_commands_own(targets: Targets, level: Level) -> None:
    outcome = run(targets.sandbox("test", level), "echo one\necho )")
    assert "line 2" in outcome.content
    assert "[exit code 2]" in outcome.content
    assert outcome.exit_code == 2


def _dies_with_bubblewrap(targets: Targets, seconds: float) -> bool:
    """Return True if a command ends in time when bubblewrap, or the worker that bubblewrap watches, is killed."""
    # Without the rule it outlives a test that is killed, so it ends by itself soon after.
    mark = f"{seconds + 20 + secrets.randbelow(10**6) / 10**7:.7f}"

    async def story() -> bool:
        source, target = os.pipe()
        child = targets.sandbox("test", "bubblewrap").command(f"sleep {mark}", target)
        eventually(lambda: bool(running(f"sleep\0{mark}")), "the command")
        os.kill(child.pid, signal.SIGKILL)
        try:
            eventually(lambda: not running(f"sleep\0{mark}"), "its end", seconds)
        except AssertionError:
            return False
        finally:
            await child.end()
            os.close(source)
            os.close(target)
        return True

    return asyncio.run(story())


def test_a_command_ends_with_its_worker(
    targets: Targets, works: dict[Level, str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    need("bubblewrap", works)
    assert _dies_with_bubblewrap(targets, WAIT_TIMEOUT)
    real = bubblewrap.rules
    monkeypatch.setattr(bubblewrap, "rules", lambda policy: {k: v for k, v in real(policy).items() if k != "lifetime"})
    assert not _dies_with_bubblewrap(targets, 1)


CONNECT = """
import os, socket, time
while not os.path.exists("src/late"): time.sleep(0.01)
socket.socket(socket.AF_UNIX).connect(os.path.realpath("src/late"))
"""


@pytest.mark.parametrize("address", ["an absolute path", "a relative path"])
@pytest.mark.parametrize("kind", ["test", "code"])
def test_a_socket_that_the_host_opens_during_a_command_is_out_of_reach(
    targets: Targets, level: Level, kind: str, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = targets.root / "src/late"
    outcome: list[str] = []
    sandbox = targets.sandbox(kind, level)
    command = f"touch $TMPDIR/begun; {sys.executable} -I -S -c '{CONNECT}' && echo ESCAPED"
    running = threading.Thread(target=lambda: outcome.append(run(sandbox, command).content))
    running.start()
    with socket.socket(socket.AF_UNIX) as listener:
        eventually((targets.scratch / "begun").exists, "the command")
        monkeypatch.chdir(targets.root)
        listener.bind(str(path) if address == "an absolute path" else "src/late")
        listener.listen()
        running.join()
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            listener.accept()
    path.unlink()
    (targets.scratch / "begun").unlink()
    assert "ESCAPED" not in outcome[0]
    assert "Permission denied" in outcome[0]


def test_a_command_that_plants_what_git_runs_is_ended_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class Endless:
        pid = 1

        async def wait(self) -> None:
            await asyncio.Event().wait()

    found = iter([[], [Path("post-checkout")]])
    guard = SimpleNamespace(planted=lambda: next(found))
    monkeypatch.setattr(shell, "COUNT_INTERVAL", 0.001)
    monkeypatch.setattr(process, "descendants", lambda _: [])
    why = asyncio.run(shell._watch(cast("Child", Endless()), 30, None, cast("GitGuard", guard), {}))
    assert why == "because git outside the sandbox would run programs that post-checkout names"


def test_a_command_in_the_background_is_read_while_it_runs(targets: Targets, level: Level) -> None:
    mark, go = long_sleep(), targets.root / "go"

    async def follow() -> None:
        text = f"echo one; until [ -e {go} ]; do sleep 0.02; done; echo two; (setsid sleep {mark} &); sleep {mark}"
        command = shell.BackgroundCommand(text, targets.sandbox("test", level), 60, set())
        await command.wait(WAIT_TIMEOUT)
        assert (command.read(), command.result) == ("one\n", None)
        go.touch()
        await command.wait(WAIT_TIMEOUT)
        assert command.read() == "two\n"
        await command.end()
        assert command.result is not None
        assert command.result.ending == "[ended by bash_kill]"

    asyncio.run(follow())
    go.unlink()
    assert not running(mark)


def test_commands_at_the_same_time_spare_each_other(targets: Targets, level: Level) -> None:
    """Without processes of its own, the cleanup after one command must not end those of another."""
    mark, go = long_sleep(), targets.root / "go"
    sandbox = targets.sandbox("test", level)

    async def both() -> shell.CommandResult:
        command = shell.BackgroundCommand(f"echo up; sleep {mark}", sandbox, 60, set())
        await command.wait(WAIT_TIMEOUT)
        await shell.run("sleep 0; echo short", sandbox, 60, set())
        assert command.result is None
        assert running(mark)
        waiting = f"echo begun; until [ -e {go} ]; do sleep 0.02; done; echo ended"
        begun = asyncio.Event()
        other = asyncio.ensure_future(shell.run(waiting, sandbox, 60, set(), lambda _: begun.set()))
        await begun.wait()
        await command.end()
        assert not running(mark)
        go.touch()
        return await other

    result = asyncio.run(both())
    go.unlink()
    assert result.content == "begun\nended\n[exit code 0]"
