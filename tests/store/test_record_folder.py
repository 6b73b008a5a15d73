"""A folder of records: only files that changed are read again."""

import os
import time
from collections.abc import Iterator
from unittest import mock

import pytest

from crewboard.records.team import Task
from crewboard.store import codec, tasks
from crewboard.store.file_store import FileStore
from crewboard.store.json_records import CachedFolder, RecordKey
from crewboard.store.layout import TeamDirectory


@pytest.fixture
def reads() -> Iterator[mock.Mock]:
    """Count how often a record is read from its file."""
    with mock.patch.object(RecordKey, "load", autospec=True, side_effect=RecordKey.load) as load:
        yield load


@pytest.fixture
def board(directory: TeamDirectory) -> CachedFolder[Task]:
    """Make three old tasks that have been read."""
    for subject in ("one", "two", "three"):
        tasks.add(directory, subject, now=1.0)
    age(directory)
    folder = directory.tasks.watch()
    assert subjects(folder) == ["one", "two", "three"]
    return folder


def age(directory: TeamDirectory) -> None:
    """Make all changes of the board look a minute old."""
    past = time.time() - 60
    if isinstance(directory.store, FileStore):
        for path in (*directory.tasks.on_disk.iterdir(), directory.tasks.on_disk):
            os.utime(path, (past, past))


def subjects(folder: CachedFolder[Task]) -> list[str]:
    return [task.subject for task in folder.all()]


def test_an_unchanged_folder_is_not_read_again(board: CachedFolder[Task], reads: mock.Mock) -> None:
    assert subjects(board) == ["one", "two", "three"]
    assert reads.call_count == 0


def test_only_what_was_replaced_is_read_again(
    board: CachedFolder[Task], directory: TeamDirectory, reads: mock.Mock
) -> None:
    changed = tasks.load(directory, 2).replace(subject="two again")
    directory.task(2).save(changed)
    reads.reset_mock()
    assert subjects(board) == ["one", "two again", "three"]
    assert reads.call_count == 1


def test_changes_within_one_clock_tick_are_all_noticed(board: CachedFolder[Task], directory: TeamDirectory) -> None:
    task = tasks.load(directory, 2)
    for number in range(200):
        directory.task(2).save(task.replace(subject=f"two {number}"))
        assert subjects(board)[1] == f"two {number}"


def test_removed_files_and_folders_are_left_out(board: CachedFolder[Task], directory: TeamDirectory) -> None:
    directory.task(1).remove()
    assert subjects(board) == ["two", "three"]
    for name in directory.tasks.names():
        directory.tasks.below(name).remove()
    directory.store.move(directory.tasks.name, "elsewhere")
    assert board.all() == []
    assert board.intact() == {}


def test_a_damaged_file_shows_its_last_good_state(board: CachedFolder[Task], directory: TeamDirectory) -> None:
    directory.task(2).put(b"{")
    assert subjects(board) == ["one", "two", "three"]
    assert sorted(board.intact()) == ["1.json", "3.json"]
    assert len(board.damaged) == 1


@pytest.mark.files_only("edits a file in place")
def test_a_file_edited_in_place_is_noticed_at_the_recheck(
    board: CachedFolder[Task], directory: TeamDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    edited = tasks.load(directory, 3).replace(subject="3, by hand")
    directory.task(3).on_disk.write_bytes(codec.encode(edited))
    monkeypatch.setattr("crewboard.store.json_records._RECHECK_INTERVAL", 0.0)
    assert subjects(board)[2] == "3, by hand"
