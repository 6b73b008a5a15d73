"""`posix` keeps the contract of `process`: the same signatures, and the same answers about real processes."""

import inspect
import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import get_type_hints

import psutil
import pytest

from crewboard import env
from crewboard.store.file_events import ObservedFolder
from crewboard.unix import locks, posix, process
from tests.crew import eventually


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"], env={**os.environ, "MARK": "here"}) as child:
        yield child
        child.kill()


@pytest.mark.parametrize("name", posix.REPLACES)
def test_each_function_has_the_signature_of_the_one_that_it_replaces(name: str) -> None:
    there, here = getattr(process, name), getattr(posix, name)
    assert list(inspect.signature(there).parameters.values()) == list(inspect.signature(here).parameters.values())
    assert get_type_hints(there) == get_type_hints(here)


def test_a_process_is_known_by_the_same_numbers(sleeper: subprocess.Popen[bytes]) -> None:
    pid = sleeper.pid
    assert posix.boot_id() == process.boot_id()
    assert posix.start_ticks(pid) == process.start_ticks(pid) > 0
    assert posix.start_ticks(2**22 + 1) == posix.start_ticks(-1) == 0
    assert abs(posix.started_at(posix.start_ticks(pid)) - process.started_at(process.start_ticks(pid))) < 2
    assert posix.arguments(pid) == ["sleep", "600"]
    assert b"MARK=here" in posix.environment(pid).split(b"\0")
    found = posix.usage(pid)
    assert found is not None
    assert found[0] == process.start_ticks(pid)
    assert found[2] > 0
    assert posix.parents()[pid] == os.getpid()
    assert posix.private_bytes() > 1 << 20
    assert posix.count_threads() == process.count_threads()


def test_a_process_that_ended_is_gone_also_while_nobody_reaped_it() -> None:
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert posix.start_ticks(child.pid) == 0
    assert posix.usage(child.pid) is None
    child.wait()
    assert posix.arguments(child.pid) == []
    with pytest.raises(OSError, match="cannot be read"):
        posix.environment(child.pid)
    with pytest.raises(OSError, match="no process"):
        posix.watch_end(child.pid)


def test_a_signal_reaches_only_the_process_that_is_meant(sleeper: subprocess.Popen[bytes]) -> None:
    ticks = process.start_ticks(sleeper.pid)
    assert not posix.send_signal(sleeper.pid, signal.SIGKILL, ticks + 1)
    assert sleeper.poll() is None
    assert posix.send_signal(sleeper.pid, signal.SIGSTOP, ticks)
    eventually(lambda: posix.is_stopped(sleeper.pid))
    assert posix.send_signal(sleeper.pid, signal.SIGKILL, ticks)
    assert sleeper.wait() == -signal.SIGKILL
    assert not posix.send_signal(sleeper.pid, signal.SIGKILL, ticks)
    assert not posix.send_signal(0, signal.SIGKILL)


def test_the_end_of_a_process_makes_a_descriptor_readable(sleeper: subprocess.Popen[bytes]) -> None:
    ended = posix.watch_end(sleeper.pid)
    assert not select.select([ended], [], [], 0)[0]
    sleeper.kill()
    assert select.select([ended], [], [], 30)[0]
    assert os.read(ended, 1) == b""
    os.close(ended)


def test_an_orphan_belongs_to_the_worker_that_marked_it() -> None:
    me = os.getpid()
    marked = {**os.environ, env.WORKER: process.mark(me, process.start_ticks(me))}
    # The shell ends at once, and its child gets the first process, or a subreaper, as its parent.
    text = subprocess.run(
        ["sh", "-c", "sleep 600 >/dev/null 2>&1 & echo $!"], env=marked, capture_output=True, text=True, check=True
    ).stdout
    orphan = int(text)
    try:
        eventually(lambda: psutil.Process(orphan).ppid() != me)
        assert posix.parents()[orphan] == me
    finally:
        process.send_signal(orphan, signal.SIGKILL)


def test_a_lock_without_the_kernels_own_kind_is_held_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "_HAS_OWN", False)
    first, second = (os.open(tmp_path / "lease", os.O_RDWR | os.O_CREAT, 0o600) for _ in range(2))
    assert not locks.is_taken(second)
    locks.take(first)
    assert locks.is_taken(second)
    with pytest.raises(BlockingIOError):
        locks.take(second)
    os.close(first)
    locks.take(second)
    os.close(second)


def test_a_probe_keeps_nobody_from_a_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "_HAS_OWN", False)
    path = tmp_path / "lease"
    path.touch()
    over = threading.Event()

    def probe() -> None:
        fd = os.open(path, os.O_RDONLY)
        while not over.is_set():
            locks.is_taken(fd)
        os.close(fd)

    probing = threading.Thread(target=probe)
    probing.start()
    try:
        for _ in range(200):
            fd = os.open(path, os.O_RDWR)
            locks.take(fd)
            os.close(fd)
    finally:
        over.set()
        probing.join()


def test_changes_below_a_folder_are_heard_without_inotify_of_our_own(tmp_path: Path) -> None:
    (tmp_path / "inbox").mkdir()
    heard: list[str] = []
    watching = ObservedFolder(str(tmp_path), heard.append)
    try:
        (tmp_path / "inbox" / "a.jsonl").write_text("{}\n")
        eventually(lambda: "inbox/a.jsonl" in heard)
        (tmp_path / "inbox" / ".hidden").write_text("")
        (tmp_path / "inbox" / "b.jsonl").write_text("{}\n")
        eventually(lambda: "inbox/b.jsonl" in heard)
        assert "inbox/.hidden" not in heard
        assert "" not in heard, "only these files changed"
        # A removed agent's folder is moved like this, which is no reason to warn.
        (tmp_path / "removed").mkdir()
        (tmp_path / "inbox").rename(tmp_path / "removed" / "agent")
        eventually(lambda: "" in heard)
        (tmp_path / "removed" / "c.jsonl").write_text("{}\n")
        eventually(lambda: "removed/c.jsonl" in heard)
        assert watching.is_alive()
        tmp_path.rename(tmp_path.with_name("moved"))
        assert not watching.is_alive()
        tmp_path.with_name("moved").rename(tmp_path)
        assert watching.is_alive()
    finally:
        watching.stop()
    eventually(lambda: not watching.is_alive())


@pytest.mark.long
def test_a_team_works_without_what_linux_alone_has(tmp_path: Path) -> None:
    """Hire, kill, resume and end by the command line: every process of the team is on plain POSIX."""
    settings = {**os.environ, env.PLATFORM: "posix", env.OFFLINE: "1", env.OFFLINE_PACE: "0"}

    def run(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "crewboard_tui.cli", "--root", str(tmp_path), "--team", "plain", *words],
            env=settings, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    run("team", "create", "plain")
    (tmp_path / "notes.txt").touch()
    try:
        assert "notes.txt" in run("spawn", "scout", "--type", "explore", "--prompt", "List all files.")
        before = json.loads(run("status", "--json"))["agents"][0]
        process.send_signal(before["pid"], signal.SIGKILL)
        eventually(lambda: json.loads(run("status", "--json"))["agents"][0]["state"] == "crashed")
        run("resume", "scout")
        eventually(lambda: json.loads(run("status", "--json"))["agents"][0]["state"] == "idle")
    finally:
        run("team", "delete", "plain", "--now", "--purge", "--discard")
    assert not [pid for pid in process.parents() if str(tmp_path) in " ".join(process.arguments(pid))]


def test_processes_of_a_team_share_one_kind_of_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (os.open(tmp_path / "lease", os.O_RDWR | os.O_CREAT, 0o600) for _ in range(2))
    locks.take(first)
    monkeypatch.setenv(env.PLATFORM, "posix")
    assert locks.is_taken(second)
    with pytest.raises(BlockingIOError):
        locks.take(second)
    os.close(first)
    os.close(second)
