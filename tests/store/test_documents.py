"""Record files: replaced as a whole, changed by one process at a time, never overwritten when damaged."""

import errno
import os
import time
from pathlib import Path
from unittest import mock

import pytest
from msgspec.structs import replace

from crewboard.errors import BadDataError, StorageError, UsageError
from crewboard.records.team import Task
from crewboard.store.interface import Key
from crewboard.store.json_records import RecordKey
from crewboard.store.layout import record_of


@pytest.fixture
def path(tmp_path: Path) -> RecordKey[Task]:
    return record_of(tmp_path / "7.json", Task)


DAMAGE = [b"", b"{", b"null", b"[]", b'{"id": "x"}', b"\x00" * 40, b'{"id": NaN, "subject": "x"}', b"{" * 5000]


def renamed(task: Task | None) -> Task:
    assert task is not None
    return task.replace(subject="new")


def test_a_record_is_saved_and_loaded(path: RecordKey[Task]) -> None:
    assert path.load() is None
    path.save(Task(id=7, subject="old"))
    assert path.load() == Task(id=7, subject="old")


def test_a_change_gets_the_present_record(path: RecordKey[Task]) -> None:
    path.save(Task(id=7, subject="old"))
    changed = path.edit(renamed)
    assert path.load() == changed == Task(id=7, subject="new")


def test_a_change_may_create_the_file(path: RecordKey[Task]) -> None:
    def create(old: Task | None) -> Task:
        assert old is None
        return Task(id=7, subject="first")

    path.edit(create)
    assert path.load() == Task(id=7, subject="first")


@pytest.mark.parametrize("error", [UsageError("no"), BadDataError("no"), ZeroDivisionError()])
def test_a_change_that_raises_leaves_everything_as_it_is(path: RecordKey[Task], error: Exception) -> None:
    path.save(Task(id=7, subject="old"))

    def refuse(old: Task | None) -> Task:
        raise error

    with pytest.raises(type(error)):
        path.edit(refuse)
    assert path.load() == Task(id=7, subject="old")
    assert {left.name for left in path.on_disk.parent.iterdir()} == {"7.json", "lock"}


def test_an_unreadable_change_never_replaces_a_record(path: RecordKey[Task]) -> None:
    path.save(Task(id=7, subject="old"))

    def misname(old: Task | None) -> Task:
        assert old is not None
        old.owner = "No Good"
        return old

    with pytest.raises(BadDataError, match="owner: Value error, a name starts with a-z"):
        path.edit(misname)
    assert path.load() == Task(id=7, subject="old")


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda data: repr(data[:12]))
def test_a_damaged_file_is_copied_and_never_overwritten(path: RecordKey[Task], damage: bytes) -> None:
    path.on_disk.write_bytes(damage)
    for _ in range(2):
        with pytest.raises(BadDataError, match=r"7\.json is damaged: .*; a copy is kept as 7\.json\.damaged-"):
            path.edit(renamed)
    assert path.on_disk.read_bytes() == damage
    assert [aside.read_bytes() for aside in path.on_disk.parent.glob("7.json.damaged-*")] == [damage]
    assert len(list(path.on_disk.parent.iterdir())) == 3, "one copy, however often a change is tried"


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda data: repr(data[:12]))
def test_a_damaged_file_is_copied_before_it_is_replaced(path: RecordKey[Task], damage: bytes) -> None:
    path.on_disk.write_bytes(damage)
    path.save(Task(id=7, subject="new"))
    assert [aside.read_bytes() for aside in path.on_disk.parent.glob("7.json.damaged-*")] == [damage]
    assert path.load() == Task(id=7, subject="new")


def test_loading_a_damaged_file_says_which_and_why(path: RecordKey[Task]) -> None:
    path.on_disk.write_bytes(b'{"id": 0, "subject": "x"}')
    with pytest.raises(BadDataError, match=r"/7\.json is damaged: id: Input should be .* 1; repair it by hand$"):
        path.load()


def test_load_or_none_returns_none_for_a_damaged_file(path: RecordKey[Task]) -> None:
    assert path.load_or_none() is None
    path.on_disk.write_bytes(b"{")
    assert path.load_or_none() is None
    path.save(Task(id=7, subject="x"))
    assert path.load_or_none() == Task(id=7, subject="x")


def test_a_rebuilt_record_replaces_a_damaged_one_after_a_copy(path: RecordKey[Task]) -> None:
    path.on_disk.write_bytes(b"{")
    path.edit(lambda old: old or Task(id=7, subject="known"), replace_damaged=True)
    assert path.load() == Task(id=7, subject="known")
    (aside,) = path.on_disk.parent.glob("*.damaged-*")
    assert aside.read_bytes() == b"{"


def test_a_damaged_projection_is_copied_before_it_is_rewritten(path: RecordKey[Task]) -> None:
    path.quarantine_if_damaged()
    path.save(Task(id=7, subject="x"))
    path.quarantine_if_damaged()
    assert [left.name for left in path.on_disk.parent.iterdir()] == ["7.json"]
    path.on_disk.write_bytes(b"damage")
    path.quarantine_if_damaged()
    (aside,) = path.on_disk.parent.glob("*.damaged-*")
    assert aside.read_bytes() == b"damage"


def test_fields_of_a_later_version_survive_a_change(path: RecordKey[Task]) -> None:
    path.on_disk.write_bytes(b'{"id": 7, "subject": "old", "colour": "red"}')
    path.edit(renamed)
    assert b'"colour": "red"' in path.on_disk.read_bytes()


# ------------------------------------------------------------------------------------------------------ cached


def settle(path: RecordKey[Task]) -> None:
    """Make a file look as if it was written a while ago."""
    long_ago = time.time() - 60
    os.utime(path.on_disk, (long_ago, long_ago))


def test_a_reader_sees_each_replacement(path: RecordKey[Task]) -> None:
    reader = path.watch()
    assert reader.get() is None
    for number in range(50):
        path.save(Task(id=7, subject=f"{number:02}"))
        seen = reader.get()
        assert seen is not None
        assert seen.subject == f"{number:02}"


def test_an_unchanged_file_is_read_once(path: RecordKey[Task], monkeypatch: pytest.MonkeyPatch) -> None:
    path.save(Task(id=7, subject="x"))
    settle(path)
    reader = path.watch()
    first = reader.get()
    monkeypatch.setattr(RecordKey, "load", lambda *_: pytest.fail("read again"))
    assert reader.get() is first


def test_a_replacement_within_one_clock_tick_is_not_missed(path: RecordKey[Task]) -> None:
    """Two replacements in a row can have the same time, size and inode."""
    path.on_disk.write_bytes(b'{"id": 7, "subject": "one"}')
    before = path.on_disk.stat()
    reader = path.watch()
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
def test_the_last_good_state_is_used_while_a_file_is_damaged(path: RecordKey[Task], damage: bytes) -> None:
    path.save(Task(id=7, subject="good"))
    reader = path.watch()
    good = reader.get()
    path.on_disk.write_bytes(damage)
    for _ in range(2):
        assert reader.get() == good
        assert reader.damaged
    path.save(Task(id=7, subject="fixed"))
    assert reader.get() == Task(id=7, subject="fixed")
    assert not reader.damaged


def test_a_file_damaged_from_the_start_is_none_and_damaged(path: RecordKey[Task]) -> None:
    path.on_disk.write_bytes(b"{")
    reader = path.watch()
    assert reader.get() is None
    assert reader.damaged


def test_a_file_that_cannot_be_read_counts_as_damaged_not_absent(
    path: RecordKey[Task], monkeypatch: pytest.MonkeyPatch
) -> None:
    path.save(Task(id=7, subject="good"))
    settle(path)
    reader = path.watch()
    good = reader.get()

    def refuse(_: object) -> os.stat_result:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "lstat", refuse)
        assert reader.get() == good
        assert reader.damaged
    assert reader.get() == good
    assert not reader.damaged


def test_a_change_whose_reading_failed_is_read_later(path: RecordKey[Task], monkeypatch: pytest.MonkeyPatch) -> None:
    """The version was known already when the database was lost."""
    path.save(Task(id=7, subject="good"))
    settle(path)
    reader = path.watch()

    def refuse(_: object) -> None:
        raise StorageError("the store failed: the connection is lost")

    with monkeypatch.context() as patch:
        patch.setattr(Key, "get", refuse)
        assert reader.get() is None
        assert reader.damaged
    assert reader.get() == Task(id=7, subject="good")
    assert not reader.damaged


def test_a_removed_file_is_none_and_not_damaged(path: RecordKey[Task]) -> None:
    path.save(Task(id=7, subject="x"))
    reader = path.watch()
    assert reader.get() is not None
    path.on_disk.unlink()
    assert reader.get() is None
    assert not reader.damaged


def test_a_failed_write_leaves_the_record_unchanged(path: RecordKey[Task], monkeypatch: pytest.MonkeyPatch) -> None:
    path.save(Task(id=7, subject="old"))

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", refuse)
        with pytest.raises(StorageError, match="the old file is unchanged"):
            path.edit(renamed)
    assert path.load() == Task(id=7, subject="old")


def test_a_record_without_a_lock_is_not_changed(tmp_path: Path) -> None:
    """Two processes that change it at once would lose the change of one."""
    bare = replace(record_of(tmp_path / "7.json", Task), lock="")
    bare.save(Task(id=7, subject="old"))
    with pytest.raises(ValueError, match="has no lock"):
        bare.edit(renamed)
    assert bare.load() == Task(id=7, subject="old")
