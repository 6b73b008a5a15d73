"""The notifier wakes workers when there is something to read; without file events the supervisor goes on."""

import asyncio
import errno
import shutil
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from crewboard.protocol import requests
from crewboard.records.team import Config, Member
from crewboard.store import leases, mailbox, roster, tasks
from crewboard.store.layout import TeamDirectory
from crewboard.supervisor import notifier as module
from crewboard.supervisor.notifier import ChangeNotifier
from tests.postgres import close_connections

WAIT = 30.0


class Listener:
    """A notifier on a team, and what it told: names of agents, `all`, `board`, `team`."""

    def __init__(self, directory: TeamDirectory, *claiming: str) -> None:
        self.directory = directory
        self.told: asyncio.Queue[str] = asyncio.Queue()
        self._claiming = claiming
        self._probes: list[str] = []
        self.notifier = ChangeNotifier(directory, self)
        self.notifier.start()

    def wake_all(self) -> None:
        self.told.put_nowait("all")

    def wake_one(self, name: str) -> None:
        self.told.put_nowait(name)

    def claims_tasks(self, name: str) -> bool:
        return name in self._claiming

    def on_board(self) -> None:
        self.told.put_nowait("board")

    def wake(self) -> None:
        self.told.put_nowait("team")

    def on_spec(self, name: str) -> None:
        pass

    def on_start(self) -> None:
        pass

    def loses_events(self) -> None:
        """Do what the thread of the hints does when it cannot say what has changed."""
        self.notifier._changed.put("")
        asyncio.get_running_loop().call_soon(self.notifier._tell)

    async def hears(self, *expected: str) -> set[str]:
        """Wait until all of `expected` were told; return all that was told."""
        heard: set[str] = set()
        async with asyncio.timeout(WAIT):
            while not heard.issuperset(expected):
                heard.add(await self.told.get())
        return heard

    async def hears_of_mail(self) -> set[str]:
        """Send mail; return what was told until its recipient was, which is left out.

        Each call has a recipient of its own: one mail can cause several events, and an agent is told of each.
        """
        probe = f"probe{len(self._probes)}"
        self._probes.append(probe)
        mailbox.send(self.directory, mailbox.compose("operator", probe, "message", "x"))
        return await self.hears(probe) - set(self._probes)

    @property
    def workers_rely_on_it(self) -> bool:
        return leases.is_held(self.directory.notifier_lock)


@pytest.fixture
async def listener(directory: TeamDirectory) -> AsyncIterator[Listener]:
    for name in ("ann", "ben", "cleo"):
        directory.make_folder(f"agents/{name}")
    listener = Listener(directory, "ben")
    assert listener.workers_rely_on_it
    yield listener
    listener.notifier.stop()
    assert not listener.workers_rely_on_it


@pytest.fixture
def no_instance(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the kernel refuse another inotify instance."""

    monkeypatch.setattr("watchdog.observers.inotify_c.InotifyFD._create_inotify_fd", _refuse)


def _refuse(_: object) -> int:
    raise OSError(errno.EMFILE, "inotify instance limit reached")


@pytest.mark.usefixtures("no_instance")
async def test_without_an_inotify_instance_it_starts_and_stops(
    directory: TeamDirectory, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    listener = Listener(directory)
    assert "inotify instance limit reached" in caplog.text
    assert not listener.notifier.is_working
    assert not listener.workers_rely_on_it
    listener.notifier.stop()


async def test_file_events_are_asked_for_again_after_a_refusal(
    directory: TeamDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as refusing:
        refusing.setattr("watchdog.observers.inotify_c.InotifyFD._create_inotify_fd", _refuse)
        listener = Listener(directory)
    listener.notifier.check()
    assert not listener.notifier.is_working, "not at once"
    monkeypatch.setattr(module, "RETRY_INTERVAL", 0)
    listener.notifier.check()
    assert listener.workers_rely_on_it
    await listener.hears_of_mail()
    listener.notifier.stop()


@pytest.mark.linux("file events")
@pytest.mark.files_only("removes a folder")
async def test_without_a_watch_for_a_folder_it_starts_and_stops(
    directory: TeamDirectory, caplog: pytest.LogCaptureFixture
) -> None:
    directory.requests.on_disk.rmdir()
    listener = Listener(directory)
    assert not listener.workers_rely_on_it
    listener.notifier.stop()
    assert "no file events" in caplog.text


async def test_when_file_events_end_all_workers_look_themselves(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener.notifier._listener, "is_alive", lambda: False)
    listener.notifier.check()
    assert not listener.workers_rely_on_it
    await listener.hears("all")


@pytest.mark.parametrize("because", ["events were lost", "none came for a while"])
async def test_all_look_once_it_listens_again(
    listener: Listener, monkeypatch: pytest.MonkeyPatch, because: str
) -> None:
    """What changes between a look and the first hint would be found only when a worker looks by itself, rarely."""
    notifier, listened = listener.notifier, list[bool]()
    monkeypatch.setattr(listener, "wake_all", lambda: listened.append(notifier.is_working))
    if because == "events were lost":
        listener.loses_events()
    else:
        monkeypatch.setattr(module, "RETRY_INTERVAL", 0)
        notifier.stop()
        notifier.check()
    await listener.hears("team")
    assert listened == [False, True]


async def test_no_one_is_woken_by_hints_that_are_refused_again(
    directory: TeamDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("watchdog.observers.inotify_c.InotifyFD._create_inotify_fd", _refuse)
    monkeypatch.setattr(module, "RETRY_INTERVAL", 0)
    listener = Listener(directory)
    listener.notifier.check()
    assert not listener.notifier.is_working
    assert "all" not in {listener.told.get_nowait() for _ in range(listener.told.qsize())}


async def test_lost_events_make_all_look(listener: Listener) -> None:
    listener.loses_events()
    await listener.hears("all", "team")
    assert listener.workers_rely_on_it
    await listener.hears_of_mail()


@pytest.mark.linux("file events")
async def test_a_folder_made_anew_is_watched(listener: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_INTERVAL", 0)
    shutil.rmtree(listener.directory.inboxes)
    await listener.hears("all", "team")
    listener.directory.inboxes.mkdir(exist_ok=True)
    listener.notifier.check()
    assert listener.workers_rely_on_it
    await listener.hears_of_mail()


@pytest.mark.linux("file events")
@pytest.mark.parametrize("moved", ["team", "teams", "root"])
async def test_a_moved_team_is_noticed(listener: Listener, moved: str) -> None:
    team = listener.directory
    folder: Path = {"team": team.path, "teams": team.path.parent, "root": team.root}[moved]
    folder.rename(folder.with_name("elsewhere"))
    await listener.hears("all", "team")
    folder.with_name("elsewhere").rename(folder)


async def test_settings_wake_all_and_a_hire_wakes_none(listener: Listener) -> None:
    roster.put(listener.directory, Member(name="dora", type="explore"))
    assert await listener.hears_of_mail() == set()

    def limit(config: Config) -> None:
        config.max_agents = 3

    roster.change(listener.directory, limit)
    await listener.hears("all", "team")


async def test_a_task_wakes_those_that_may_work_on_it(listener: Listener) -> None:
    team = listener.directory
    first = tasks.add(team, "first", now=1.0)
    assert await listener.hears_of_mail() == {"ben", "board"}, "only ben claims tasks"
    tasks.add(team, "second", now=1.0, owner="cleo", blocked_by=[first.id])
    assert await listener.hears_of_mail() == {"cleo", "board"}
    tasks.claim(team, first.id, "ann", "explore", 1.0)
    assert await listener.hears_of_mail() == {"ann", "board"}
    tasks.update(team, first.id, "ann", 1.0, status="completed")
    assert await listener.hears_of_mail() == {"ann", "cleo", "board"}, "the second task is free now"


async def test_the_task_of_a_dead_owner_wakes_others_too(listener: Listener) -> None:
    task = tasks.add(listener.directory, "first", now=1.0)
    tasks.claim(listener.directory, task.id, "ann", "explore", 1.0)
    await listener.hears_of_mail()
    tasks.release(listener.directory, "ann", 1.0)
    assert await listener.hears_of_mail() == {"ann", "ben", "board"}


async def test_a_request_wakes_both_its_parties(listener: Listener) -> None:
    requests.ask(listener.directory, "r1", "question", "ann", "cleo", {"question": "?"}, 1.0, by_mail=False)
    assert await listener.hears_of_mail() == {"ann", "cleo", "board"}


async def test_a_change_of_many_tasks_is_one_look(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A team in PostgreSQL: the notifier must not ask for each task when each task changes."""
    psycopg = pytest.importorskip("psycopg")
    directory = TeamDirectory(tmp_path / "root" / ".crewboard" / "default")
    (tmp_path / "root").mkdir()
    directory.make(database)
    roster.create(directory, "", 1.0)
    listener = Listener(directory)
    assert listener.notifier._listener is not None
    listener.notifier._listener.stop()
    for number in range(1, 21):
        tasks.add(directory, f"task {number}", 1.0)

    def complete_all(priority: int) -> None:
        for number in range(1, 21):
            done = tasks.load(directory, number).replace(status="completed", priority=priority)
            directory.task(number).save(done)
            listener.notifier._changed.put(f"tasks/{number}.json")

    # The first look also asks for the bodies of tasks.
    complete_all(1)
    listener.notifier._tell()
    complete_all(2)
    asked: list[object] = []
    execute = psycopg.Connection.execute

    def count(*given: Any, **how: Any) -> object:
        # Another thread renews the lease of the notifier.
        if threading.current_thread() is threading.main_thread():
            asked.append(given)
        return execute(*given, **how)

    monkeypatch.setattr(psycopg.Connection, "execute", count)
    listener.notifier._tell()
    assert len(asked) == 1
    close_connections()
