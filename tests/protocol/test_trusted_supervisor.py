"""The environment with the API key is sent to this user's own supervisor and to no other process."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest

from crewboard.errors import TryLaterError, UntrustedError
from crewboard.protocol import supervisor_client
from crewboard.protocol.supervisor_client import Peer, request_exit, request_start, wake_supervisor
from crewboard.records.processes import Supervisor
from crewboard.store import leases
from crewboard.store.interface import Held
from crewboard.store.layout import TeamDirectory
from crewboard.unix import process
from tests.crew import eventually

KEY = "sk-ant-very-secret"

LISTENER = """
import os, socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
os.chmod(sys.argv[1], 0o777)
if len(sys.argv) > 2:
    os.setuid(int(sys.argv[2]))
listener.listen()
print("listening", flush=True)
taken, _ = listener.accept()
received = b""
while piece := taken.recv(65536):
    received += piece
    if piece.endswith(b"\\n"):
        taken.sendall(b"ok\\n")
        break
print(received.decode(), flush=True)
"""

only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")


@pytest.fixture
def short() -> Iterator[Path]:
    """Make a folder whose path is short enough for the address of a socket."""
    folder = Path(tempfile.mkdtemp(prefix="cb", dir="/tmp"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def runtime(short: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make this user's folder for sockets."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(short))
    return supervisor_client.make_socket_folder(os.environ)


@contextlib.contextmanager
def listening(address: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """Start another process that listens at `address` and prints what it receives."""
    with subprocess.Popen(
        [sys.executable, "-I", "-c", LISTENER, str(address), *options], stdout=subprocess.PIPE, text=True
    ) as listener:
        assert listener.stdout is not None
        assert listener.stdout.readline() == "listening\n"
        try:
            yield listener
        finally:
            listener.kill()


def plant(team: TeamDirectory, address: Path, pid: int) -> Held:
    """Hold the team's lock and name process `pid` at `address` as the supervisor."""
    lock = leases.take(team.supervisor_lock)
    assert lock is not None
    ticks = process.start_ticks(pid)
    leases.sign(lock, Supervisor(pid=pid, socket=str(address), boot_id=process.boot_id(), start_ticks=ticks))
    return lock


def refused(team: TeamDirectory, address: Path, listener: subprocess.Popen[str], words: str) -> None:
    """Check that a start is refused for the given reason and that the listener received nothing."""
    with pytest.raises(UntrustedError, match=words) as caught:
        request_start(team, "scout", 1, {"ANTHROPIC_API_KEY": KEY})
    assert caught.value.exit_code == 77
    assert KEY not in str(caught.value)
    assert listener.stdout is not None
    # The listener says what came by its first connection once that is closed. If there was none, this is the first.
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as last:
        last.connect(str(address))
    assert listener.stdout.read().strip() == ""


def test_a_socket_outside_the_runtime_directory_gets_no_key(
    directory: TeamDirectory, short: Path, runtime: Path
) -> None:
    address = short / "planted.sock"
    assert address.parent != runtime
    with listening(address) as listener:
        lock = plant(directory, address, listener.pid)
        refused(directory, address, listener, "in no folder of this user's own")
        leases.release(lock)


def test_a_socket_path_with_dots_gets_no_key(directory: TeamDirectory, short: Path, runtime: Path) -> None:
    address = runtime / ".." / "planted.sock"
    with listening(address) as listener:
        lock = plant(directory, address, listener.pid)
        refused(directory, address, listener, "in no folder of this user's own")
        leases.release(lock)


@pytest.mark.parametrize("state", ["open to others", "a link"])
def test_a_runtime_directory_that_is_not_private_is_not_used(
    directory: TeamDirectory, short: Path, runtime: Path, state: str
) -> None:
    address = runtime / "planted.sock"
    with listening(address) as listener:
        if state == "a link":
            runtime.rename(short / "elsewhere")
            runtime.symlink_to(short / "elsewhere")
        else:
            runtime.chmod(0o711)
        lock = plant(directory, address, listener.pid)
        refused(directory, address, listener, "in no folder of this user's own")
        leases.release(lock)


def test_a_process_that_does_not_hold_the_lock_gets_no_key(directory: TeamDirectory, runtime: Path) -> None:
    address = runtime / "planted.sock"
    with listening(address) as listener:
        lock = plant(directory, address, os.getpid())
        refused(directory, address, listener, f"answered by process {listener.pid} of uid {os.geteuid()}")
        leases.release(lock)


def test_a_process_that_took_the_pid_of_the_holder_gets_no_key(directory: TeamDirectory, runtime: Path) -> None:
    address = runtime / "planted.sock"
    with listening(address) as listener:
        lock = plant(directory, address, listener.pid)
        ticks = process.start_ticks(listener.pid) - 1
        before = Supervisor(pid=listener.pid, socket=str(address), boot_id=process.boot_id(), start_ticks=ticks)
        leases.sign(lock, before)
        refused(directory, address, listener, f"answered by process {listener.pid}")
        leases.release(lock)


@only_root
def test_a_process_of_another_user_gets_no_key(directory: TeamDirectory, runtime: Path) -> None:
    address = runtime / "planted.sock"
    with listening(address, "65534") as listener:
        lock = plant(directory, address, listener.pid)
        refused(directory, address, listener, "of uid 65534")
        leases.release(lock)


def test_this_users_supervisor_gets_the_environment(directory: TeamDirectory, runtime: Path) -> None:
    heard: list[bytes] = []
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(runtime / "own.sock"))
        listener.listen()

        def answer() -> None:
            taken, _ = listener.accept()
            with taken, taken.makefile("rb") as lines:
                heard.append(lines.readline())
                taken.sendall(b"ok\n")

        thread = threading.Thread(target=answer)
        thread.start()
        lock = plant(directory, runtime / "own.sock", os.getpid())
        request_start(directory, "scout", 1, {"ANTHROPIC_API_KEY": KEY})
        thread.join()
        leases.release(lock)
    assert json.loads(heard[0])["environment"] == {"ANTHROPIC_API_KEY": KEY}


# ---------------------------------------------------------------------------------------------- the folder itself


def test_a_supervisor_that_is_killed_while_it_is_asked_is_replaced(
    directory: TeamDirectory, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = runtime / "planted.sock"
    with listening(address) as listener:
        lock = plant(directory, address, listener.pid)
        peer_of = supervisor_client.peer_of

        def die_then_look(connection: socket.socket) -> Peer:
            if listener.poll() is None:
                listener.kill()
                listener.wait()
                leases.release(lock)
            return peer_of(connection)

        monkeypatch.setattr(supervisor_client, "peer_of", die_then_look)
        wake_supervisor(directory)
    assert supervisor_client.is_alive(directory)
    request_exit(directory)
    eventually(lambda: not supervisor_client.is_alive(directory), "its end")


def test_a_supervisor_that_ends_while_it_is_asked_to_is_not_replaced(
    directory: TeamDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, started = iter([True]), list[TeamDirectory]()
    monkeypatch.setattr(supervisor_client, "is_alive", lambda _: next(looks, False))
    monkeypatch.setattr(supervisor_client, "_start", started.append)
    request_exit(directory)
    assert started == []


def test_the_runtime_directory_is_private(short: Path) -> None:
    made = supervisor_client.make_socket_folder({"XDG_RUNTIME_DIR": str(short)})
    assert made == short / "crewboard"
    assert made.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("way", ["a link", "open to others", "a file", pytest.param("another's", marks=only_root)])
def test_a_runtime_directory_of_another_user_is_skipped(short: Path, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = short / "crewboard"
    if way == "a file":
        taken.write_text("")
    elif way == "a link":
        (short / "real").mkdir(mode=0o700)
        taken.symlink_to("real")
    else:
        taken.mkdir(mode=0o755 if way == "open to others" else 0o700)
    if way == "another's":
        os.chown(taken, 65534, 65534)
    state = short / "state" / "crewboard" / "run"
    monkeypatch.setattr(supervisor_client, "socket_folders", lambda _: [taken, state])
    assert supervisor_client.make_socket_folder({}) == state
    assert supervisor_client.is_private_folder(state)
    monkeypatch.setattr(supervisor_client, "socket_folders", lambda _: [taken])
    with pytest.raises(UntrustedError, match="set XDG_RUNTIME_DIR"):
        supervisor_client.make_socket_folder({})


@only_root
def test_another_users_folder_in_tmp_does_not_stop_a_start() -> None:
    victim = 60_000 + os.getpid() % 5_000
    squatted = Path(f"/tmp/crewboard-{victim}")
    squatted.mkdir()
    state = Path(tempfile.mkdtemp(prefix="cb", dir="/tmp"))
    os.chown(squatted, 65534, 65534)
    os.chown(state, victim, victim)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            os.setuid(victim)
            made = supervisor_client.make_socket_folder({"XDG_STATE_HOME": str(state)})
            os.write(writer, os.fsencode(made))
        os._exit(0)
    os.close(writer)
    try:
        assert os.read(reader, 4096) == os.fsencode(state / "crewboard/run")
    finally:
        os.close(reader)
        os.waitpid(child, 0)
        squatted.rmdir()
        shutil.rmtree(state)


def test_the_folders_are_derived_from_user_and_environment() -> None:
    uid = os.geteuid()
    assert supervisor_client.socket_folders({"XDG_RUNTIME_DIR": "/run/user/7", "XDG_STATE_HOME": "/s"}) == [
        Path("/run/user/7/crewboard"),
        Path(f"/tmp/crewboard-{uid}"),
        Path("/s/crewboard/run"),
    ]
    too_long = "/" + "x" * 100
    assert supervisor_client.socket_folders({"XDG_RUNTIME_DIR": too_long, "XDG_STATE_HOME": too_long}) == [
        Path(f"/tmp/crewboard-{uid}")
    ]
    assert Path("crewboard") not in supervisor_client.socket_folders({"XDG_RUNTIME_DIR": ""})


def test_a_supervisor_is_started_without_secrets(directory: TeamDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Mapping[str, str]] = []
    monkeypatch.setattr(supervisor_client, "_spawn", lambda _, environment, __: given.append(environment))
    for name in ("ANTHROPIC_API_KEY", "GITHUB_TOKEN", "A_PASSWORD"):
        monkeypatch.setenv(name, "secret")
    monkeypatch.setenv("PLAIN", "1")
    supervisor_client._start(directory)
    (environment,) = given
    assert environment["PLAIN"] == "1"
    assert "secret" not in environment.values()


def test_a_supervisor_that_starts_late_still_has_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine the process alone may take longer to start than a running supervisor may take to answer."""
    now, starts = [0.0], list[float]()

    def start(team: TeamDirectory) -> None:
        starts.append(now[0])
        now[0] += 60

    def holder(*_: object) -> Supervisor | None:
        return Supervisor(pid=1, socket="socket") if now[0] >= 65 else None

    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=lambda seconds: now.append(now.pop() + max(seconds, 0.5)))
    monkeypatch.setattr(supervisor_client, "time", clock)
    monkeypatch.setattr(supervisor_client, "_start", start)
    monkeypatch.setattr(supervisor_client, "_deliver", lambda *_: True)
    monkeypatch.setattr(supervisor_client, "silent_for", lambda _: None)
    monkeypatch.setattr(leases, "holder", holder)
    now[0] = 5.0
    supervisor_client._send(TeamDirectory(tmp_path / ".crewboard/default"), supervisor_client.ControlRequest())
    assert starts[0] == 5.0


def test_what_the_last_holder_wrote_is_doubted_for_a_moment(
    directory: TeamDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stays in the lock until the process that took it erases it."""
    before = iter([Supervisor(pid=999999999, socket="/nonexistent/s.sock", boot_id="", start_ticks=1)] * 3)
    holder = leases.holder
    monkeypatch.setattr(leases, "holder", lambda *asked: next(before, None) or holder(*asked))
    monkeypatch.setattr(supervisor_client, "is_alive", lambda _: True)
    monkeypatch.setattr(supervisor_client, "START_TIMEOUT", 0.2)
    with pytest.raises(TryLaterError, match="did not start in time"):
        wake_supervisor(directory)
    assert next(before, None) is None
