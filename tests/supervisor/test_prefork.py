"""Workers forked by the prefork server start clean: no secrets, files, random state or signals of another process."""

import asyncio
import gc
import json
import os
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from unittest import mock

import psutil
import pytest
from msgspec.structs import replace

import crewboard
from crewboard import env
from crewboard.commands import hire as hiring
from crewboard.commands import stop
from crewboard.offline.http import Incoming
from crewboard.offline.service import Fault
from crewboard.protocol import supervisor_client
from crewboard.protocol.prefork import FORK, READY, SERVER_MODULE, SpawnRequest
from crewboard.readmodel import as_json
from crewboard.records.events import Retry
from crewboard.sandbox.host_paths import TOOL_VARIABLES
from crewboard.supervisor.launcher import can_prefork
from crewboard.unix import process
from crewboard.worker import prefork_server
from tests.crew import WAIT_TIMEOUT, Crew, eventually
from tests.model import ModelServer, says
from tests.preloaded import start_new_interpreters

pytestmark = [
    pytest.mark.linux("fork"),
    pytest.mark.xdist_group("warm"),  # one of them touches the code, which ends every warm parent on the machine
]

COLD = {"CREWBOARD_WARM": "0"}


@pytest.fixture
def warm(crew: Crew) -> Crew:
    """A crew whose warm parent is ready, started as users start it."""
    with start_new_interpreters():
        parent_of(crew)
    return crew


@pytest.fixture(scope="module")
def prefork_crew(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crew]:
    """The same for tests that hire under names of their own, and leave a parent that is ready."""
    with ModelServer() as model:
        crew = Crew(tmp_path_factory.mktemp("prefork"), model)
        with start_new_interpreters():
            parent_of(crew)
        yield crew
        crew.end()


def test_without_the_driver_of_postgresql_all_other_code_is_loaded() -> None:
    program = (
        "import sys; sys.modules['psycopg'] = None; from crewboard.worker import prefork_server; "
        "prefork_server._import_modules('crewboard.store'); print('crewboard.store.file_store' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (ran.stdout, ran.stderr) == ("True\n", "")


@pytest.mark.long
def test_a_prefork_server_loads_no_more_than_is_known() -> None:
    """Loading is most of a team's first start: a new SDK that loads more is noticed."""
    program = (
        "import json, sys; from crewboard.worker import prefork_server; before, opened = set(sys.modules), []; "
        "sys.addaudithook(lambda event, _: opened.append(event) if event == 'open' else None); "
        "prefork_server.preload(); print(json.dumps([sorted(set(sys.modules) - before), len(opened)]))"
    )
    ran = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True)
    modules, opened = json.loads(ran.stdout)
    packages = [name.partition(".")[0] for name in modules]
    loaded = Counter(name for name in packages if name not in sys.stdlib_module_names)
    assert loaded["anthropic"] > 1000, "it loads the SDK"
    # Of these, 3,154 are of anthropic 2.14.
    assert loaded.total() <= 3700, loaded.most_common(10)
    assert opened <= 4000


def parent_of(crew: Crew) -> int:
    """The pid of the warm parent, once it is ready."""
    supervisor_client.wake_supervisor(crew.directory)
    log = crew.directory.supervisor_log

    def look() -> int | None:
        for child in psutil.Process(crew.supervisor_pid()).children():
            with suppress(psutil.NoSuchProcess):  # one that ends, of the workers or an old parent
                if SERVER_MODULE in child.cmdline() and f"pid {child.pid}" in log.read_text():
                    return child.pid
        return None

    return eventually(look, "the warm parent")


def hire(crew: Crew, name: str, **environment: str) -> int:
    """Hire an agent with more in its environment, and wait for its answer; returns its worker's pid."""
    team = replace(crew.team, environment={**crew.environment, **environment})
    crew.answer(hiring.spawn(team, hiring.Hire(name, "explore", "List all Python files")))
    crew.wait_for(name, "idle")
    return crew.pid(name)


def is_forked(pid: int) -> bool:
    """Return True if a worker came of a warm parent: it took its agent's name, which a new interpreter does not."""
    return not Path(f"/proc/{pid}/comm").read_text().startswith("python")


@contextmanager
def insight() -> Iterator[None]:
    """Skip a test where only root may look into processes that keep their memory private."""
    try:
        yield
    except PermissionError:
        pytest.skip("only root may look into a worker")


def memory_holds(pid: int, needle: bytes) -> bool:
    """Return True if `needle` stands anywhere in the memory that a process may write to."""
    with Path(f"/proc/{pid}/maps").open() as maps, Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        for line in maps:
            span, rights, *_ = line.split()
            if not rights.startswith("rw"):
                continue
            start, end = (int(edge, 16) for edge in span.split("-"))
            memory.seek(start)
            # An idle process may give memory back after it was listed.
            with suppress(OSError):
                if needle in memory.read(end - start):
                    return True
    return False


def traits(pid: int) -> dict[str, str]:
    """Return what the kernel holds about a process that must not depend on how it was started."""
    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    kept = ("Umask", "Uid", "Gid", "Groups", "SigBlk", "SigIgn", "SigCgt", "CapEff", "NoNewPrivs", "Seccomp")
    limits = Path(f"/proc/{pid}/limits").read_text()
    return {**{key: status[key] for key in kept}, "limits": limits}


def opened(crew: Crew, name: str) -> list[str]:
    """Return what a worker has open, and where it stands, without the numbers that the kernel gave."""
    folder = Path(f"/proc/{crew.pid(name)}")
    found = []
    for link in (folder / "cwd", *(folder / "fd").iterdir()):
        # A file can be closed after it was listed.
        with suppress(FileNotFoundError):
            found.append(str(link.readlink()).partition(":[")[0].replace(name, "NAME"))
    return sorted(found)


# ---------------------------------------------------------------------------------------------------- as good as new


@pytest.mark.long
def test_a_forked_worker_is_a_full_process_of_its_own(prefork_crew: Crew) -> None:
    pid = hire(prefork_crew, "scout")
    assert is_forked(pid)
    assert os.getsid(pid) == os.getpgid(pid) == pid
    worker = psutil.Process(pid)
    assert worker.ppid() == prefork_crew.supervisor_pid()
    assert str(prefork_crew.agent("scout").path) in worker.cmdline()
    assert "crewboard.worker" in worker.cmdline()


@pytest.mark.long
def test_a_forked_worker_and_a_new_one_are_alike_to_the_kernel(prefork_crew: Crew) -> None:
    forked, new = hire(prefork_crew, "forked"), hire(prefork_crew, "new", **COLD)
    assert is_forked(forked)
    assert not is_forked(new)
    assert os.getsid(new) == new
    with insight():  # a worker that has just become idle may still begin or end a thread, and have its mail open
        eventually(lambda: traits(forked) == traits(new), "the same traits")
        eventually(lambda: opened(prefork_crew, "forked") == opened(prefork_crew, "new"), "the same open files")
        assert "/" in opened(prefork_crew, "forked")
    prefork_crew.kill("new")
    seen = prefork_crew.wait_for("new", "crashed")
    assert seen.exit is not None
    assert seen.exit.signal == signal.SIGKILL


def test_the_end_of_a_forked_worker_has_its_code_or_signal(prefork_crew: Crew) -> None:
    hire(prefork_crew, "ended")
    prefork_crew.kill("ended", signal.SIGABRT)
    seen = prefork_crew.wait_for("ended", "crashed")
    assert seen.exit is not None
    assert seen.exit.signal == signal.SIGABRT
    broken = prefork_crew.agent("broken")
    broken.journal.on_disk.mkdir(parents=True)  # so that the worker cannot begin, nor write down how it ended
    prefork_crew.hire("broken", "explore", "List all Python files")
    seen = prefork_crew.wait_for("broken", "crashed")
    assert seen.exit is not None
    assert seen.exit.code == 74
    assert "journal" in broken.log.read_text()


def classes_below(base: type) -> set[type]:
    """Return all classes that are derived from `base`."""
    found: set[type] = set(base.__subclasses__())
    return found.union(*map(classes_below, found))


@pytest.mark.long
def test_a_call_of_the_model_builds_no_class_again() -> None:
    from pydantic import BaseModel

    asyncio.run(prefork_server._make_requests())
    gc.collect()
    before = classes_below(BaseModel)
    asyncio.run(prefork_server._make_requests())
    assert classes_below(BaseModel) == before


@pytest.mark.long
def test_forked_workers_throw_dice_of_their_own(tmp_path: Path) -> None:
    refused = Fault(kind="status", status=500)
    with ModelServer(faults=[refused, None, refused, None], script=[says("one"), says("two")]) as model:
        crew = Crew(tmp_path, model)
        parent_of(crew)
        waits = []
        for name in ("scout", "second"):
            assert is_forked(hire(crew, name))
            waits += [event.until - event.ts for event in crew.events(name) if isinstance(event, Retry)]
        crew.end()
    assert len(waits) == 2
    assert abs(waits[0] - waits[1]) > 1e-6


# ------------------------------------------------------------------------------------------------------ secrets apart


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The keys with which the model was called."""
    seen: list[str] = []
    from crewboard.offline import service

    check = service._check_headers

    def note(incoming: Incoming) -> None:
        seen.append(incoming.headers["authorization"].removeprefix("Bearer "))
        check(incoming)

    monkeypatch.setattr(service, "_check_headers", note)
    return seen


@pytest.mark.long
def test_each_worker_calls_with_its_own_key_and_holds_no_other(keys: list[str], prefork_crew: Crew) -> None:
    scout = hire(prefork_crew, "first", ANTHROPIC_API_KEY="key-of-the-first")
    assert set(keys) == {"key-of-the-first"}
    keys.clear()
    second = hire(prefork_crew, "other", ANTHROPIC_API_KEY="key-of-the-other")
    assert set(keys) == {"key-of-the-other"}
    assert is_forked(scout)
    assert is_forked(second)
    parent = parent_of(prefork_crew)
    with insight():
        assert memory_holds(second, b"key-of-the-other")  # so that not finding it elsewhere says something
        assert not memory_holds(second, b"key-of-the-first")
        assert not memory_holds(scout, b"key-of-the-other")
        assert not memory_holds(parent, b"key-of-the-first")
        assert not memory_holds(parent, b"key-of-the-other")


def test_the_prefork_server_has_one_thread_and_no_secrets(prefork_crew: Crew) -> None:
    parent = parent_of(prefork_crew)
    assert psutil.Process(parent).num_threads() == 1
    with insight():
        names = {entry.partition(b"=")[0].decode() for entry in process.environment(parent).split(b"\0") if entry}
    language = {"LANG", "LC_ALL", "LC_CTYPE", "TZ"}
    folders = {"PATH", "HOME", "TMPDIR", "XDG_RUNTIME_DIR", "SSL_CERT_FILE", "SSL_CERT_DIR", *TOOL_VARIABLES}
    assert names <= language | folders


def test_import_time_settings_need_a_new_interpreter() -> None:
    assert can_prefork({"PATH": "/bin", "ANTHROPIC_API_KEY": "key"})
    assert not can_prefork({"ANTHROPIC_LOG": "debug"})
    assert not can_prefork({env.PLATFORM: "posix"})
    assert not can_prefork({"OTEL_PYTHON_TRACER_PROVIDER": "mine"})
    assert not can_prefork(COLD)


# -------------------------------------------------------------------------------------------- where there is no warmth


@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may weigh workers, which keep their memory private")
def test_the_shown_memory_of_workers_is_what_they_cost(prefork_crew: Crew) -> None:
    names = [f"weighed{number}" for number in range(8)]
    workers = [psutil.Process(hire(prefork_crew, name)) for name in names]
    eventually(lambda: not any(worker.children() for worker in workers), "the end of the file-tool servers")
    view = prefork_crew.view()
    usages = [agent.usage for name in names if (agent := view.agent(name)) is not None and agent.usage is not None]
    assert len(usages) == len(workers)
    cost = sum(worker.memory_full_info().pss for worker in workers)
    assert 0 < sum(usage.memory for usage in usages) <= 1.2 * cost
    assert sum(usage.rss_bytes for usage in usages) > 1.5 * cost, "each counts what they share"
    assert (view.supervisor.shared_bytes or 0) > 50 << 20, "which is shown once"
    status = as_json.status(view)
    shown = {agent["name"]: agent["private_bytes"] for agent in status["agents"]}
    assert [shown[name] for name in names] == [usage.private_bytes for usage in usages]


@pytest.mark.long
def test_a_killed_prefork_server_is_replaced(prefork_crew: Crew) -> None:
    killed = parent_of(prefork_crew)
    process.send_signal(killed, signal.SIGKILL)
    eventually(lambda: not process.start_ticks(killed), "its end")
    hire(prefork_crew, "orphan")
    assert parent_of(prefork_crew) != killed


@pytest.mark.long
def test_a_hanging_prefork_server_delays_but_fails_no_start(prefork_crew: Crew) -> None:
    hung = parent_of(prefork_crew)
    process.send_signal(hung, signal.SIGSTOP)
    hire(prefork_crew, "delayed")
    assert prefork_crew.see("delayed").run == 1
    eventually(lambda: not process.start_ticks(hung), "its end")


@pytest.mark.long
@pytest.mark.usefixtures("new_interpreters")
def test_a_prefork_server_that_hangs_at_start_is_not_waited_for(crew: Crew) -> None:
    supervisor_client.wake_supervisor(crew.directory)
    supervisor = psutil.Process(crew.supervisor_pid())
    begun = eventually(
        lambda: [child for child in supervisor.children() if SERVER_MODULE in child.cmdline()], "the parent"
    )
    process.send_signal(begun[0].pid, signal.SIGSTOP)
    hire(crew, "scout")
    assert crew.see("scout").run == 1


@pytest.mark.long
def test_code_that_changed_is_never_run_by_an_old_parent(crew: Crew) -> None:
    old = parent_of(crew)
    scout = hire(crew, "older")
    os.utime(Path(crewboard.__file__).with_name("py.typed"))
    hire(crew, "younger")
    eventually(lambda: not process.start_ticks(old), "its end")
    assert process.start_ticks(scout)
    assert parent_of(crew) != old


# --------------------------------------------------------------------------------------------------------- the ends


@pytest.mark.long
def test_the_prefork_server_ends_with_its_supervisor(warm: Crew) -> None:
    pid, parent, supervisor = hire(warm, "scout"), parent_of(warm), warm.supervisor_pid()
    process.send_signal(supervisor, signal.SIGKILL)
    eventually(lambda: not process.start_ticks(parent), "the end of the parent")
    assert process.start_ticks(pid)
    assert parent_of(warm) != parent
    assert is_forked(hire(warm, "second"))
    stop.stop_now(warm.team, "scout")
    # A worker that ends frees its lease first.
    eventually(lambda: not process.start_ticks(pid), "the end of the worker")


@pytest.fixture
def parent(tmp_path: Path) -> Iterator[socket.socket]:
    """A warm parent of the test itself, ready; it is spoken to as a supervisor does."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with (
        ours,
        theirs,
        subprocess.Popen([sys.executable, "-I", "-m", SERVER_MODULE, str(tmp_path)], stdin=theirs.fileno()) as child,
    ):
        # Loading the code takes a busy machine long.
        ours.settimeout(100)
        try:
            assert ours.recv(16) == READY
            yield ours
            ours.shutdown(socket.SHUT_RDWR)
            assert child.wait(WAIT_TIMEOUT) == 0
        finally:
            child.kill()


def test_a_worker_with_half_a_request_exits() -> None:
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        ours.close()
        prefork_server._receive(theirs)
        os._exit(99)
    theirs.close()
    with ours:
        assert int(ours.recv(16)) == child
        ours.sendall(b'{"agent": "/nowhere", ')
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.long
def test_a_child_that_gets_no_order_begins_nothing(parent: socket.socket) -> None:
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            socket.send_fds(parent, [FORK], [theirs.fileno()])
        ours.settimeout(WAIT_TIMEOUT)
        pid = int(ours.recv(16))
        assert process.start_ticks(pid)
        ours.sendall(b'{"agent": "/nowhere", ')  # the supervisor is killed in the middle of it
    eventually(lambda: not process.start_ticks(pid), "its end")


def test_a_forked_worker_has_only_the_environment_that_it_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefork_server, "_redirect", lambda *_: None)
    monkeypatch.setattr(process, "rename", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["python"])
    monkeypatch.setattr("tempfile.tempdir", None)
    request = SpawnRequest(tmp_path / "scout", {"PATH": "/bin", "OF_THE_WORKER": "1"})
    with mock.patch.dict(os.environ, {"OF_THE_SERVER": "1"}):
        prefork_server._become_worker(request)
        assert dict(os.environ) == request.environment
    assert sys.argv == ["python", str(request.agent)]
