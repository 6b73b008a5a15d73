"""The notifier wakes workers when there is something to read; without file events the supervisor goes on."""

import asyncio
import errno

import pytest

from crewboard.store.layout import TeamDirectory
from crewboard.supervisor.notifier import ChangeNotifier


async def test_without_an_inotify_instance_it_starts_and_stops(
    directory: TeamDirectory, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_: object) -> int:
        raise OSError(errno.EMFILE, "inotify instance limit reached")

    monkeypatch.setattr("watchdog.observers.inotify_c.InotifyFD._create_inotify_fd", refuse)
    notifier = ChangeNotifier(directory)
    notifier.start(asyncio.get_running_loop())
    notifier.stop()
    assert "inotify instance limit reached" in caplog.text


async def test_without_a_watch_for_a_folder_it_starts_and_stops(
    directory: TeamDirectory, caplog: pytest.LogCaptureFixture
) -> None:
    directory.requests.rmdir()
    notifier = ChangeNotifier(directory)
    notifier.start(asyncio.get_running_loop())
    notifier.stop()
    assert "no file events" in caplog.text
