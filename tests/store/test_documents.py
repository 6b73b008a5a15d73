"""Record files: replaced as a whole, changed by one process at a time, never overwritten when damaged."""

import errno
import os
import time
from pathlib import Path
from unittest import mock

import pytest

from crewboard.errors import BadDataError, StorageError, UsageError
from crewboard.records.team import OperatorState, Task
from crewboard.store import json_records
from crewboard.store.interface import Key
from crewboard.store.json_records import CachedFile, RecordKey
from crewboard.store.layout import key_of


@pytest.fixture
def path(tmp_path: Path) -> Key:
    return key_of(tmp_path / "7.json")


@pytest.fixture
def lock(tmp_path: Path) -> Key:
    return key_of(tmp_path / "lock")


DAMAGE = [b"", b"{", b"null", b"[]", b'{"id": "x"}', b"\x00" * 40, b'{"id": NaN, "subject": "x"}', b"{" * 5000]


def renamed(task: Task | None) -> Task:
    assert task is not None
    return task.replace(subject="new")


def test_a_record_is_saved_and_loaded(path: Key) -> None:
    assert json_records.load(path, Task) is None
    json_records.save(path, Task(id=7, subject="old"))
    assert json_records.load(path, Task) == Task(id=7, subject="old")


def test_a_change_gets_the_present_record(path: Key, lock: Key) -> None:
    json_records.save(path, Task(id=7, subject="old"))
    changed = json_records.change(path, lock, Task, renamed)
    assert json_records.load(path, Task) == changed == Task(id=7, subject="new")


def test_a_change_may_create_the_file(path: Key, lock: Key) -> None:
    def create(old: Task | None) -> Task:
        assert old is None
        return Task(id=7, subject="first")

    json_records.change(path, lock, Task, create)
    assert json_records.load(path, Task) == Task(id=7, subject="first")


@pytest.mark.parametrize("error", [UsageError("no"), BadDataError("no"), ZeroDivisionError()])
def test_a_change_that_raises_leaves_everything_as_it_is(path: Key, lock: Key, error: Exception) -> None:
    json_records.save(path, Task(id=7, subject="old"))

    def refuse(old: Task | None) -> Task:
        raise error

    with pytest.raises(type(error)):
        json_records.change(path, lock, Task, refuse)
    assert json_records.load(path, Task) == Task(id=7, subject="old")
    assert {left.name for left in path.on_disk.parent.iterdir()} == {"7.json", "lock"}


def test_an_unreadable_change_never_replaces_a_record(path: Key, lock: Key) -> None:
    json_records.save(path, Task(id=7, subject="old"))

    def misname(old: Task | None) -> Task:
        assert old is not None
        old.owner = "No Good"
        return old

    with pytest.raises(BadDataError, match="owner: Value error, a name starts with a-z"):
        json_records.change(path, lock, Task, misname)
    assert json_records.load(path, Task) == Task(id=7, subject="old")


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda data: repr(data[:12]))
def test_a_damaged_file_is_copied_and_never_overwritten(path: Key, lock: Key, damage: bytes) -> None:
    path.on_disk.write_bytes(damage)
    for _ in range(2):
        with pytest.raises(BadDataError, match=r"7\.json is damaged: .*; a copy is kept as 7\.json\.damaged-"):
            json_records.change(path, lock, Task, renamed)
    assert path.on_disk.read_bytes() == damage
    assert [aside.read_bytes() for aside in path.on_disk.parent.glob("7.json.damaged-*")] == [damage]
    assert len(list(path.on_disk.parent.iterdir())) == 3, "one copy, however often a change is tried"


def test_loading_a_damaged_file_says_which_and_why(path: Key) -> None:
    path.on_disk.write_bytes(b'{"id": 0, "subject": "x"}')
    with pytest.raises(BadDataError, match=r"7\.json is damaged: id: Input should be greater than or equal to 1"):
        json_records.load(path, Task)


def test_load_or_none_returns_none_for_a_damaged_file(path: Key) -> None:
    assert json_records.load_or_none(path, Task) is None
    path.on_disk.write_bytes(b"{")
    assert json_records.load_or_none(path, Task) is None
    json_records.save(path, Task(id=7, subject="x"))
    assert json_records.load_or_none(path, Task) == Task(id=7, subject="x")


def test_a_rebuilt_record_replaces_a_damaged_one_after_a_copy(path: Key, lock: Key) -> None:
    path.on_disk.write_bytes(b"{")
    json_records.change(path, lock, Task, lambda old: old or Task(id=7, subject="known"), replace_damaged=True)
    assert json_records.load(path, Task) == Task(id=7, subject="known")
    (aside,) = path.on_disk.parent.glob("*.damaged-*")
    assert aside.read_bytes() == b"{"


def test_a_damaged_projection_is_copied_before_it_is_rewritten(path: Key) -> None:
    json_records.quarantine_if_damaged(path, Task)
    json_records.save(path, Task(id=7, subject="x"))
    json_records.quarantine_if_damaged(path, Task)
    assert [left.name for left in path.on_disk.parent.iterdir()] == ["7.json"]
    path.on_disk.write_bytes(b"damage")
    json_records.quarantine_if_damaged(path, Task)
    (aside,) = path.on_disk.parent.glob("*.damaged-*")
    assert aside.read_bytes() == b"damage"


def test_fields_of_a_later_version_survive_a_change(path: Key, lock: Key) -> None:
    path.on_disk.write_bytes(b'{"id": 7, "subject": "old", "colour": "red"}')
    json_records.change(path, lock, Task, renamed)
    assert b'"colour": "red"' in path.on_disk.read_bytes()


# ------------------------------------------------------------------------------------------------------ cached


def settle(path: Key) -> None:
    """Make a file look as if it was written a while ago."""
    long_ago = time.time() - 60
    os.utime(path.on_disk, (long_ago, long_ago))


def test_a_reader_sees_each_replacement(path: Key) -> None:
    reader = CachedFile(path, Task)
    assert reader.get() is None
    for number in range(50):
        json_records.save(path, Task(id=7, subject=f"{number:02}"))
        seen = reader.get()
        assert seen is not None
        assert seen.subject == f"{number:02}"


def test_an_unchanged_file_is_read_once(path: Key, monkeypatch: pytest.MonkeyPatch) -> None:
    json_records.save(path, Task(id=7, subject="x"))
    settle(path)
    reader = CachedFile(path, Task)
    first = reader.get()
    monkeypatch.setattr(RecordKey, "load", lambda *_: pytest.fail("read again"))
    assert reader.get() is first


def test_a_replacement_within_one_clock_tick_is_not_missed(path: Key) -> None:
    """Two replacements in a row can have the same time, size and inode."""
    path.on_disk.write_bytes(b'{"id": 7, "subject": "one"}')
    before = path.on_disk.stat()
    reader = CachedFile(path, Task)
    # The reader looks within the clock tick of the first replacement.
    with mock.patch.object(time, "time_ns", return_value=before.st_mtime_ns):
        reader.get()
    path.on_disk.write_bytes(b'{"id": 7, "subject": "two"}')
    os.utime(path.on_disk, ns=(before.st_atime_ns, before.st_mtime_ns))
    now = path.on_disk.stat()
    assert (now.st_mtime_ns, now.st_size, now.st_ino) == (before.st_mtime_ns, before.st_size, before.st_ino)
    seen = reader.get()
    assert seen is not None
    assert seen.subject == "two"


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda data: repr(data[:12]))
def test_the_last_good_state_is_used_while_a_file_is_damaged(path: Key, damage: bytes) -> None:
    json_records.save(path, Task(id=7, subject="good"))
    reader = CachedFile(path, Task)
    good = reader.get()
    path.on_disk.write_bytes(damage)
    for _ in range(2):
        assert reader.get() == good
        assert reader.damaged
    json_records.save(path, Task(id=7, subject="fixed"))
    assert reader.get() == Task(id=7, subject="fixed")
    assert not reader.damaged


def test_a_file_damaged_from_the_start_is_none_and_damaged(path: Key) -> None:
    path.on_disk.write_bytes(b"{")
    reader = CachedFile(path, Task)
    assert reader.get() is None
    assert reader.damaged


def test_a_file_that_cannot_be_read_counts_as_damaged_not_absent(path: Key, monkeypatch: pytest.MonkeyPatch) -> None:
    json_records.save(path, Task(id=7, subject="good"))
    settle(path)
    reader = CachedFile(path, Task)
    good = reader.get()

    def refuse(_: object) -> os.stat_result:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", refuse)
        assert reader.get() == good
        assert reader.damaged
    assert reader.get() == good
    assert not reader.damaged


def test_a_change_whose_reading_failed_is_read_later(path: Key, monkeypatch: pytest.MonkeyPatch) -> None:
    """The version was known already when the database was lost."""
    json_records.save(path, Task(id=7, subject="good"))
    settle(path)
    reader = CachedFile(path, Task)

    def refuse(_: object) -> None:
        raise StorageError("the store failed: the connection is lost")

    with monkeypatch.context() as patch:
        patch.setattr(Key, "get", refuse)
        assert reader.get() is None
        assert reader.damaged
    assert reader.get() == Task(id=7, subject="good")
    assert not reader.damaged


def test_a_removed_file_is_none_and_not_damaged(path: Key) -> None:
    json_records.save(path, OperatorState())
    reader = CachedFile(path, OperatorState)
    assert reader.get() is not None
    path.on_disk.unlink()
    assert reader.get() is None
    assert not reader.damaged


def test_a_failed_write_leaves_the_record_unchanged(path: Key, lock: Key, monkeypatch: pytest.MonkeyPatch) -> None:
    json_records.save(path, Task(id=7, subject="old"))

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", refuse)
        with pytest.raises(StorageError, match="the old file is unchanged"):
            json_records.change(path, lock, Task, renamed)
    assert json_records.load(path, Task) == Task(id=7, subject="old")
