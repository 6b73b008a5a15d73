"""File events: each change is noticed, however folders come and go, and none of them at all is no error."""

import shutil
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from crewboard.readmodel import watcher
from crewboard.readmodel.watcher import FileEvents, Watcher
from crewboard.store.layout import TeamDirectory
from crewboard_tui.cli import doctor
from tests.crew import eventually


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


def wakes(wake: threading.Event, path: Path, text: str = "x") -> bool:
    """Return True if writing to `path` is noticed."""
    wake.clear()
    path.write_text(text)
    return wake.wait(10)


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
        events = FileEvents(directory, wake)
        stack.callback(events.stop)
        assert wakes(wake, directory.config)
        assert events.is_alive()
    ended.set()
    busy.join()


def test_new_and_renamed_folders_are_watched(directory: TeamDirectory, stack: ExitStack) -> None:
    wake = threading.Event()
    stack.callback(FileEvents(directory, wake).stop)
    agent = directory.agent("scout")
    agent.path.mkdir()
    eventually(lambda: wakes(wake, agent.status), "an event of a new agent")
    agent.path.rename(directory.agent("guide").path)
    assert wakes(wake, directory.agent("guide").status)


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
        eventually(lambda: wakes(wake, directory.config), "an event of the new team")


@pytest.mark.usefixtures("no_instance")
def test_without_inotify_a_reader_sweeps(
    directory: TeamDirectory, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watcher, "SWEEP", 0.05)
    looks = threading.Semaphore(0)
    watching = Watcher(directory.path, looks.release)
    stack.callback(watching.stop)
    watching.start()
    for _ in range(3):
        assert looks.acquire(timeout=10)
    assert not watching.hinted
    assert watching.refusal == "inotify instance limit reached"


@pytest.mark.usefixtures("no_instance")
def test_doctor_says_that_no_inotify_instance_is_left() -> None:
    found = doctor.watcher()
    assert found.mark == "note"
    assert "inotify instance limit reached" in found.detail
    assert "max_user_instances" in str(found.remedy)


def test_no_watch_left_for_a_new_folder_ends_the_events(
    directory: TeamDirectory, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = FileEvents(directory, threading.Event())
    stack.callback(events.stop)

    def refuse(*_: object) -> None:
        raise OSError(28, "inotify watch limit reached")

    monkeypatch.setattr("watchdog.observers.inotify_c.InotifyFD._get_or_create_watch", refuse)
    directory.agent("scout").path.mkdir()
    eventually(lambda: not events.is_alive(), "the end of the events")
