"""Nothing of a sandbox outlives the process that opened it, whenever that is killed."""

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from crewboard import env
from crewboard.sandbox import bubblewrap, scratch
from crewboard.sandbox.level import Level
from crewboard.sandbox.policy import Policy
from crewboard.sandbox.process import Child
from crewboard.unix import process
from tests.crew import eventually
from tests.sandbox.conftest import adopting_orphans, need
from tests.sandbox.test_shell import long_sleep

OPENER = """
import os, signal, subprocess, sys
from pathlib import Path
from crewboard.sandbox import bubblewrap
from crewboard.sandbox.policy import Policy
from crewboard.sandbox.process import Start
where, seconds, stop, unguarded = sys.argv[1:]
if unguarded:
    bubblewrap.UNLESS_LEFT = 'shift; exec "$@"'
nothing = subprocess.DEVNULL
start = Start(["/bin/sleep", seconds], Path(where), {"PATH": os.defpath}, 0o077, nothing, nothing, nothing)
child = bubblewrap.start(Policy(Path(where), writes=False), start)
if stop:
    os.kill(child.pid, signal.SIGSTOP)
print(child.pid, flush=True)
os.read(child._about, 4096)
child._popen.wait()
"""
"""A process that opens a sandbox, in which a program sleeps, and waits."""


FIRST = """
import os, subprocess, time
from crewboard.unix import syscalls
from crewboard.sandbox import bubblewrap, seccomp
life, held = os.pipe()
def add():
    syscalls.no_new_privileges()
    syscalls.filter_calls(seccomp.ALLOW_ALL)
add()
arguments = ["/bin/bash", "-c", bubblewrap.UNLESS_LEFT, str(life), str(life), "/bin/echo", "ran"]
shell = subprocess.Popen(arguments, stdout=subprocess.PIPE, pass_fds=[life], preexec_fn=add)
until = time.monotonic() + 0.2
while shell.poll() is None and time.monotonic() < until:
    pass
os.close(held)
add()
print(shell.communicate()[0].decode().strip() or "left", flush=True)
"""
"""The first process of a namespace, which as in a container has a filter from outside, and gets another one late."""


class Opener:
    """A process that opens a sandbox to be killed, alone, with nothing above it that ends what it leaves."""

    def __init__(self, where: Path, *, stop: bool = False, unguarded: bool = False) -> None:
        self.mark = long_sleep()
        arguments = [str(where), self.mark, "stop" * stop, "unguarded" * unguarded]
        self.popen = subprocess.Popen(
            [sys.executable, "-c", OPENER, *arguments], stdout=subprocess.PIPE, start_new_session=True
        )
        assert self.popen.stdout is not None
        self.bubblewrap = int(self.popen.stdout.readline())

    def kill(self) -> None:
        """Kill it, and nothing else."""
        self.popen.kill()
        self.popen.wait()

    def left(self) -> list[int]:
        """Return the living processes of its sandbox."""
        return [pid for pid in process.parents() if self.mark in process.arguments(pid) and process.start_ticks(pid)]

    def program(self) -> list[int]:
        """Return the living process of the program in it."""
        return [pid for pid in self.left() if process.arguments(pid)[0] == "/bin/sleep"]

    def end(self) -> None:
        """End all of it."""
        self.kill()
        assert self.popen.stdout is not None
        self.popen.stdout.close()
        for pid in self.left():
            process.send_signal(pid, signal.SIGKILL)


@pytest.fixture
def openers(works: dict[Level, str | None]) -> Iterator[list[Opener]]:
    need("bubblewrap", works)
    made: list[Opener] = []
    yield made
    for each in made:
        each.end()


def stopped_in_time(opener: Opener, *, inner: bool) -> int | None:
    """Stop bubblewrap, or what it starts, before that asked the kernel to end it; None if it was faster."""
    pid = opener.bubblewrap
    while inner and pid == opener.bubblewrap:
        pid = next(iter(process.descendants(pid)), pid)
    process.send_signal(pid, signal.SIGSTOP)
    eventually(lambda: process.is_stopped(pid), "the stop")
    return None if process.descendants(pid) else pid


def runs_on(opener: Opener, stopped: int) -> bool:
    """Return True if its program starts after a kill of the opener at this moment, and runs on."""
    opener.kill()
    process.send_signal(stopped, signal.SIGCONT)
    # It is the process that is neither bubblewrap nor the shell before it.
    eventually(lambda: not opener.left() or opener.program(), "the program, or the end of all")
    with contextlib.suppress(AssertionError):
        eventually(lambda: not opener.left(), "the end of all", 1)
    return bool(opener.left())


@pytest.mark.linux("descent")
@pytest.mark.parametrize("inner", [False, True], ids=["bubblewrap starts", "its child mounts"])
@pytest.mark.parametrize("unguarded", [False, True], ids=["guarded", "unguarded"])
def test_no_program_runs_on_after_a_kill_at_its_start(
    openers: list[Opener], tmp_path: Path, *, inner: bool, unguarded: bool
) -> None:
    def runs_on_after_a_kill() -> bool:
        stopped = None
        while stopped is None:
            openers.append(Opener(tmp_path, stop=not inner, unguarded=unguarded))
            stopped = stopped_in_time(openers[-1], inner=inner)
        return runs_on(openers[-1], stopped)

    # Stopped too early, bubblewrap does not come so far.
    tries = 20 if unguarded else 1
    assert any(runs_on_after_a_kill() for _ in range(tries)) == unguarded


@pytest.mark.long
def test_no_program_runs_on_after_kills_at_random(openers: list[Opener], tmp_path: Path) -> None:
    chance = random.Random(7)
    for _ in range(25):
        openers.append(Opener(tmp_path))
        until = time.monotonic() + chance.uniform(0, 0.03)
        while time.monotonic() < until:
            pass
        openers[-1].kill()
    eventually(lambda: not any(each.program() for each in openers), "the end of all programs")


@pytest.mark.long
def test_a_filter_from_outside_starts_no_program_early(works: dict[Level, str | None]) -> None:
    need("bubblewrap", works)
    namespace = ["bwrap", "--unshare-user", "--unshare-pid", "--as-pid-1", "--ro-bind", "/", "/", "--proc", "/proc"]
    said = subprocess.run([*namespace, sys.executable, "-c", FIRST], capture_output=True, text=True, check=False)
    assert (said.stdout, said.stderr) == ("left\n", "")


def test_a_process_of_a_killed_one_is_ended_with_its_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    owner = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    ticks = process.start_ticks(owner.pid)
    (tmp_path / f"crewboard-run-{owner.pid}-{ticks}-x").mkdir()
    marks = [process.mark(owner.pid, ticks), process.mark(owner.pid, ticks * 10)]
    left, other = (subprocess.Popen(["sleep", "60"], env={**os.environ, env.WORKER: mark}) for mark in marks)
    try:
        scratch.sweep()
        assert (left.poll(), len(list(tmp_path.iterdir()))) == (None, 1), "its owner lives"
        owner.communicate()
        scratch.sweep()
        assert left.wait(5) == -signal.SIGKILL
        assert (other.poll(), list(tmp_path.iterdir())) == (None, [])
    finally:
        for each in (owner, left, other):
            each.kill()
            each.wait()


@pytest.mark.linux("orphans")
def test_what_bubblewrap_leaves_without_a_report_is_ended() -> None:
    about, told = os.pipe()
    with adopting_orphans():
        # As bubblewrap that another process kills while what it started waits for it.
        killed = subprocess.Popen(
            ["bash", "-c", "sleep 60 & echo $!; kill -9 $$"], stdout=subprocess.PIPE, process_group=0
        )
        os.close(told)
        assert killed.stdout is not None
        with killed.stdout:
            left = int(killed.stdout.readline())
        child = Child(killed, about)

        async def end() -> None:
            await child.wait()
            await child.end()

        asyncio.run(end())
        assert not process.start_ticks(left)


def test_a_probe_ends_by_itself(works: dict[Level, str | None]) -> None:
    need("bubblewrap", works)
    probe = bubblewrap._trial(Policy(Path("/tmp"), writes=False))
    assert "--die-with-parent" not in probe
