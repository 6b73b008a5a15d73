"""File events: each change is noticed, however folders come and go, and none of them at all is no error."""

import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from watchdog.observers.inotify_c import InotifyConstants, InotifyEvent, InotifyFD, Mask, WatchDescriptor

from crewboard import env
from crewboard.readmodel import watcher
from crewboard.readmodel.watcher import Watcher, _Change
from crewboard.store.file_events import FileEvents, ObservedFolder
from crewboard.store.layout import TeamDirectory
from crewboard_tui.cli import doctor
from tests.crew import WAIT_TIMEOUT, eventually

HOLD = """
import sys
from pathlib import Path
from crewboard.store import leases
from crewboard.store.layout import key_of
fd = leases.take(key_of(Path(sys.argv[1])))
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def no_instance(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user whose inotify instances are used up."""

    def refuse(_: object) -> int:
        raise OSError(24, "inotify instance limit reached")

    monkeypatch.setattr("watchdog.observers.inotify_c.InotifyFD._create_inotify_fd", refuse)


def wakes(wake: threading.Event, path: Path, seconds: float = WAIT_TIMEOUT) -> bool:
    """Return True if writing to `path` is noticed."""
    wake.clear()
    path.write_text("x")
    return wake.wait(seconds)


def wakes_soon(wake: threading.Event, path: Path) -> bool:
    """Return True if writing to `path` is noticed; False if it may not be watched yet."""
    return wakes(wake, path, 0.5)


def watch(directory: TeamDirectory, wake: threading.Event) -> FileEvents | ObservedFolder:
    events = directory.listen(lambda _: wake.set(), deep=True)
    assert isinstance(events, ObservedFolder if env.is_posix() else FileEvents)
    return events


@pytest.mark.long
@pytest.mark.linux("file events")
def test_folders_that_come_while_watching_begins(directory: TeamDirectory, stack: ExitStack) -> None:
    """A second watch of the same folder would be a warning, and so a failure, in watchdog's thread."""
    ended = threading.Event()

    def come_and_go() -> None:
        removed = directory.path / "removed"
        for number in range(100_000):
            if ended.is_set():
                return
            agent = directory.agents / f"agent{number % 7}"
            (agent / "folder").mkdir(parents=True, exist_ok=True)
            shutil.rmtree(removed, ignore_errors=True)
            (removed / "agent").mkdir(parents=True)
            agent.rename(removed / "agent" / "files")

    busy = threading.Thread(target=come_and_go)
    busy.start()
    wake = threading.Event()
    for _ in range(30):
        events = watch(directory, wake)
        stack.callback(events.stop)
        assert wakes(wake, directory.config.on_disk)
        assert events.is_alive()
    ended.set()
    busy.join()


def test_new_and_renamed_folders_are_watched(directory: TeamDirectory, stack: ExitStack) -> None:
    wake = threading.Event()
    stack.callback(watch(directory, wake).stop)
    agent = directory.agent("scout")
    agent.path.mkdir()
    eventually(lambda: wakes_soon(wake, agent.status.on_disk), "an event of a new agent")
    agent.path.rename(directory.agent("guide").path)
    assert wakes(wake, directory.agent("guide").status.on_disk)


def test_events_name_the_agents_whose_files_changed(directory: TeamDirectory, stack: ExitStack) -> None:
    wake = threading.Event()
    for name in ("scout", "guide", "rest.er"):
        directory.agent(name).path.mkdir()
    changed = _Change(wake)
    stack.callback(directory.listen(changed.note, deep=True).stop)

    def told(path: Path, *names: str) -> bool:
        """Return True if writing to `path` is told as a change of these agents; an earlier write may be told late."""
        return wakes_soon(wake, path) and changed.take() == frozenset(names)

    eventually(lambda: told(directory.agent("scout").status.on_disk, "scout"), "a change of an agent")
    eventually(lambda: told(directory.inbox("rest.er").on_disk, "rest.er"), "a change of a mailbox")
    eventually(lambda: told(directory.config.on_disk), "the files of the team are read in any case")
    directory.agent("scout").path.rename(directory.agent("seeker").path)
    eventually(lambda: changed.take() is None, "folders changed: all agents may have")
    eventually(lambda: told(directory.agent("seeker").status.on_disk, "seeker"), "a change of an agent with a new name")


@pytest.mark.linux("file events")
def test_a_file_that_is_not_renamed_yet_is_no_change(directory: TeamDirectory, stack: ExitStack) -> None:
    wake = threading.Event()
    events = watch(directory, wake)
    assert isinstance(events, FileEvents)
    stack.callback(events.stop)
    for name, is_change in ((b".status.json.1.tmp", False), (b"status.json", True)):
        events.on_event(InotifyEvent(WatchDescriptor(1), Mask(InotifyConstants.IN_MOVED_TO), 0, name))
        assert wake.is_set() == is_change


@pytest.mark.linux("file events")
def test_after_lost_events_all_agents_are_read(directory: TeamDirectory, stack: ExitStack) -> None:
    wake = threading.Event()
    directory.agent("scout").path.mkdir()
    changed = _Change(wake)
    events = directory.listen(changed.note, deep=True)
    assert isinstance(events, FileEvents)
    stack.callback(events.stop)
    overflow = InotifyEvent(WatchDescriptor(-1), Mask(InotifyConstants.IN_Q_OVERFLOW), 0, b"")
    events._inotify.handle_event(overflow)
    assert wake.is_set()
    assert changed.take() is None


def test_a_team_made_anew_is_watched(
    directory: TeamDirectory, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watcher, "SWEEP", 0.05)
    wake = threading.Event()
    watching = Watcher(directory.path, wake.set)
    stack.callback(watching.stop)
    watching.start()
    eventually(lambda: watching.hinted and wake.is_set(), "the first look")
    for _ in range(5):
        shutil.rmtree(directory.path)
        directory.make()
        eventually(lambda: watching.hinted, "file events of the new team")
        # The first may still belong to the directory that is gone.
        eventually(lambda: wakes_soon(wake, directory.config.on_disk), "an event of the new team")


def test_a_lease_that_the_kernel_frees_is_noticed(directory: TeamDirectory, stack: ExitStack) -> None:
    wake = threading.Event()
    agent = directory.agent("scout")
    agent.path.mkdir()
    for lease in (agent.lease, directory.supervisor_lock, directory.model_lock):
        command = [sys.executable, "-I", "-c", HOLD, str(lease)]
        holder = stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        assert holder.stdout is not None
        holder.stdout.readline()
        events = watch(directory, wake)
        stack.callback(events.stop)
        assert wakes(wake, agent.status.on_disk)
        wake.clear()
        holder.kill()
        assert wake.wait(WAIT_TIMEOUT)


def test_a_calm_team_is_rarely_read(
    directory: TeamDirectory, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watcher, "SWEEP", 0.02)
    monkeypatch.setattr(watcher, "CALM_SWEEP", 600.0)
    looks, calm = threading.Semaphore(0), threading.Event()
    calm.set()
    watching = Watcher(directory.path, looks.release, is_calm=calm.is_set)
    stack.callback(watching.stop)
    watching.start()
    assert looks.acquire(timeout=WAIT_TIMEOUT)
    assert not looks.acquire(timeout=0.5), "nothing changed"
    directory.config.on_disk.write_text("x")
    assert looks.acquire(timeout=WAIT_TIMEOUT), "a file event is still noticed at once"
    calm.clear()
    watching.poke()
    for _ in range(5):
        assert looks.acquire(timeout=WAIT_TIMEOUT), "a team at work is swept"


def test_a_sweep_gathers_no_further_changes(
    directory: TeamDirectory, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each would wake the thread twice, on a team at rest too."""
    monkeypatch.setattr(watcher, "SWEEP", 0.02)
    looks, gathered = threading.Semaphore(0), list[int]()

    def pace() -> float:
        gathered.append(1)
        return 0.0

    watching = Watcher(directory.path, looks.release, pace=pace)
    stack.callback(watching.stop)
    watching.start()
    for _ in range(5):
        assert looks.acquire(timeout=WAIT_TIMEOUT)
    assert gathered == [1], "after the first reading"
    directory.config.on_disk.write_text("x")
    eventually(lambda: len(gathered) > 1, "after a change")


@pytest.mark.parametrize("pace", [0.0, 600.0])
def test_a_question_is_answered_without_a_reading(
    directory: TeamDirectory, stack: ExitStack, monkeypatch: pytest.MonkeyPatch, pace: float
) -> None:
    monkeypatch.setattr(watcher, "SWEEP", 600.0)
    reads, answers = threading.Semaphore(0), threading.Semaphore(0)
    watching = Watcher(directory.path, reads.release, answer=answers.release, pace=lambda: pace)
    stack.callback(watching.stop)
    watching.start()
    assert reads.acquire(timeout=WAIT_TIMEOUT)
    for _ in range(2):
        watching.look()
        assert answers.acquire(timeout=WAIT_TIMEOUT)
    assert not reads.acquire(blocking=False)
    watching.poke()
    assert reads.acquire(timeout=WAIT_TIMEOUT), "what the user has just changed is read at once"


def test_changes_that_are_gathered_are_published_in_a_hurry(
    directory: TeamDirectory, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watcher, "SWEEP", 600.0)
    reads, pace = threading.Semaphore(0), [600.0]
    watching = Watcher(directory.path, reads.release, pace=lambda: pace[0])
    stack.callback(watching.stop)
    watching.start()
    assert reads.acquire(timeout=WAIT_TIMEOUT)
    directory.config.on_disk.write_text("x")
    watching.hurry()
    assert not reads.acquire(blocking=False), "the pace has not changed"
    pace[0] = 0.0
    watching.hurry()
    assert reads.acquire(timeout=WAIT_TIMEOUT)


@pytest.mark.linux("file events")
def test_hints_of_a_burst_are_heard_together(
    directory: TeamDirectory, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watcher, "SWEEP", 600.0)
    wakes, waits, pace, told = threading.Semaphore(0), threading.Semaphore(0), [600.0], set[str]()
    read_events = InotifyFD.read_events

    class Heard(threading.Event):
        """Tells of each hint that waits."""

        def wait(self, timeout: float | None = None) -> bool:
            if not self.is_set():
                waits.release()
            return super().wait(timeout)

    def note_wake(events: InotifyFD) -> list[InotifyEvent]:
        found = read_events(events)
        wakes.release()
        return found

    monkeypatch.setattr(InotifyFD, "read_events", note_wake)
    names = {f"agent{number}" for number in range(50)}
    for name in names:
        directory.agent(name).path.mkdir()
    watching = Watcher(directory.path, lambda: told.update(watching.take_changed() or ()), pace=lambda: pace[0])
    watching._changed._heard = heard = Heard()
    heard.set()
    stack.callback(watching.stop)
    watching.start()
    eventually(lambda: not heard.is_set(), "changes are gathered")
    directory.agent("agent0").status.on_disk.write_text("x")
    assert wakes.acquire(timeout=WAIT_TIMEOUT)
    assert waits.acquire(timeout=WAIT_TIMEOUT), "the thread that reads the hints waits with the first one"
    for name in names:
        directory.agent(name).status.on_disk.write_text("x")
    assert not wakes.acquire(blocking=False), "one hint waits, the others do in the system"
    pace[0] = 0.0
    watching.hurry()
    eventually(lambda: told == names, "all are heard")


def test_questions_that_keep_coming_put_off_no_sweep(
    directory: TeamDirectory, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watcher, "SWEEP", 0.05)
    reads = threading.Semaphore(0)
    watching = Watcher(directory.path, reads.release, answer=lambda: watching.look())  # noqa: PLW0108  it is not there yet
    stack.callback(watching.stop)
    watching.start()
    watching.look()
    for _ in range(5):
        assert reads.acquire(timeout=WAIT_TIMEOUT)


@pytest.mark.usefixtures("no_instance")
def test_without_inotify_a_reader_sweeps(
    directory: TeamDirectory, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watcher, "SWEEP", 0.05)
    looks = threading.Semaphore(0)
    watching = Watcher(directory.path, looks.release, is_calm=lambda: True)
    stack.callback(watching.stop)
    watching.start()
    for _ in range(3):
        assert looks.acquire(timeout=WAIT_TIMEOUT)
    assert not watching.hinted
    assert "inotify instance limit reached" in str(watching.refusal)


@pytest.mark.usefixtures("no_instance")
def test_doctor_says_that_no_inotify_instance_is_left() -> None:
    found = doctor.watcher()
    assert found.mark == "note"
    assert "inotify instance limit reached" in found.detail
    assert "max_user_instances" in str(found.remedy)


@pytest.mark.linux("file events")
def test_no_watch_left_for_a_new_folder_ends_the_events(
    directory: TeamDirectory, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = watch(directory, threading.Event())
    stack.callback(events.stop)

    def refuse(*_: object) -> None:
        raise OSError(28, "inotify watch limit reached")

    monkeypatch.setattr("watchdog.observers.inotify_c.InotifyFD._get_or_create_watch", refuse)
    directory.agent("scout").path.mkdir()
    eventually(lambda: not events.is_alive(), "the end of the events")
