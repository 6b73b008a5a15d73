"""Reading and writing of files: an append is whole or absent, and readers see whole lines only."""

import errno
import fcntl
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from crewboard.errors import BadDataError, StorageError
from crewboard.store import files


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log.jsonl"


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    return tmp_path / "lock"


def lines(path: Path, offset: int = 0) -> list[bytes | None]:
    return [line for line, _ in files.read_lines(path, offset)]


class Disk:
    """Replaces `os.write` by a script of byte counts and errors, followed by real writes."""

    def __init__(
        self, patch: pytest.MonkeyPatch, *answers: int | OSError, between: Callable[[], None] | None = None
    ) -> None:
        self._answers = list(answers)
        self._write = os.write
        self._between = between
        patch.setattr(os, "write", self)

    def __call__(self, fd: int, data: bytes) -> int:
        if not self._answers:
            return self._write(fd, data)
        answer = self._answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        count = self._write(fd, data[:answer])
        if self._between is not None:
            self._between()
        return count


FULL = OSError(errno.ENOSPC, "No space left on device")


# --------------------------------------------------------------------------------------------------- appending


def test_appended_lines_stand_in_order(log: Path, lock: Path) -> None:
    files.append_line(log, lock, b"one\n")
    files.append_line(log, lock, b"two\n", durable=True)
    assert log.read_bytes() == b"one\ntwo\n"


def test_files_are_private_to_the_owner(log: Path, lock: Path, tmp_path: Path) -> None:
    files.append_line(log, lock, b"one\n")
    files.replace_file(tmp_path / "record", b"{}")
    for path in (log, lock, tmp_path / "record"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_half_a_line_of_a_killed_writer_is_sealed(log: Path, lock: Path) -> None:
    log.write_bytes(b'whole\n{"half')
    files.append_line(log, lock, b"next\n")
    assert lines(log) == [b"whole", b'{"half', b"next"]


def test_a_short_write_is_completed(log: Path, lock: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Disk(monkeypatch, 1, 2)
    files.append_line(log, lock, b"0123456789\n")
    assert lines(log) == [b"0123456789"]


@pytest.mark.parametrize("taken", [0, 1, 5, 10])
def test_a_line_that_fails_half_way_leaves_nothing(
    log: Path, lock: Path, monkeypatch: pytest.MonkeyPatch, taken: int
) -> None:
    files.append_line(log, lock, b"before\n")
    Disk(monkeypatch, *([taken] if taken else []), FULL)
    with pytest.raises(StorageError, match=r"cannot write .*log\.jsonl: No space left on device; nothing was added"):
        files.append_line(log, lock, b"0123456789\n")
    files.append_line(log, lock, b"after\n")
    assert [line for line in lines(log) if line] == [b"before", b"after"]


def test_a_failed_append_keeps_what_others_appended_after_it(
    log: Path, lock: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def foreign() -> None:
        with log.open("ab") as file:
            file.write(b"foreign\n")

    Disk(monkeypatch, 4, FULL, between=foreign)
    with pytest.raises(StorageError):
        files.append_line(log, lock, b"0123456789\n")
    assert [line for line in lines(log) if line] == [b"foreign"]


def test_a_line_interrupted_by_another_is_written_again(log: Path, lock: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def foreign() -> None:
        with log.open("ab") as file:
            file.write(b"foreign\n")

    Disk(monkeypatch, 4, between=foreign)
    files.append_line(log, lock, b"0123456789\n")
    assert [line for line in lines(log) if line] == [b"foreign", b"0123456789"]


def test_a_line_that_is_always_interrupted_leaves_nothing(
    log: Path, lock: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def foreign() -> None:
        with log.open("ab") as file:
            file.write(b"f\n")

    class Crowded(Disk):
        def __call__(self, fd: int, data: bytes) -> int:
            self._answers = [1] if len(data) == 11 else []
            return super().__call__(fd, data)

    Crowded(monkeypatch, between=foreign)
    with pytest.raises(StorageError, match="other programs keep writing"):
        files.append_line(log, lock, b"0123456789\n")
    assert {line for line in lines(log) if line} == {b"f"}


def test_a_failed_sync_withdraws_the_line_and_keeps_all_offsets(
    log: Path, lock: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.append_line(log, lock, b"before\n")

    def refuse(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", refuse)
        with pytest.raises(StorageError, match="Input/output error"):
            files.append_line(log, lock, b"refused\n", durable=True)
    # The cursor of a reader that read in between.
    cursor = log.stat().st_size
    files.append_line(log, lock, b"after\n")
    assert lines(log, cursor) == [b"after"]
    assert [line for line in lines(log) if line] == [b"before", b"after"]


def test_half_a_line_remains_if_blanking_fails_too(log: Path, lock: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", lambda *_: (_ for _ in ()).throw(OSError(errno.EIO, "Input/output error")))
        Disk(patch, 4, FULL)
        with pytest.raises(StorageError):
            files.append_line(log, lock, b"0123456789\n")
    files.append_line(log, lock, b"after\n")
    assert lines(log) == [b"0123", b"after"]


def test_a_line_over_the_limit_is_refused(log: Path, lock: Path) -> None:
    with pytest.raises(BadDataError, match="longer than the limit"):
        files.append_line(log, lock, b"x" * files.MAX_LINE + b"\n")
    assert not log.exists()


def test_appending_to_a_missing_team_is_an_error(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    with pytest.raises(StorageError, match="cannot lock"):
        files.append_line(gone / "log", gone / "lock", b"x\n")
    with pytest.raises(StorageError, match="cannot write"):
        files.append_line(gone / "log", tmp_path / "lock", b"x\n")


def test_a_file_system_without_flock_is_an_error(log: Path, lock: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(fd: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    with pytest.raises(StorageError, match=r"cannot lock .*: No locks available"):
        files.append_line(log, lock, b"x\n")


def test_a_lock_is_exclusive(lock: Path) -> None:
    with files.locked(lock), lock.open() as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with lock.open() as other:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_lock_file_is_never_renamed_or_removed(log: Path, lock: Path) -> None:
    files.append_line(log, lock, b"x\n")
    inode = lock.stat().st_ino
    files.append_line(log, lock, b"y\n")
    assert lock.stat().st_ino == inode


def test_a_lock_is_released_by_an_error(lock: Path) -> None:
    with pytest.raises(ZeroDivisionError), files.locked(lock):
        raise ZeroDivisionError
    with files.locked(lock):
        pass


# --------------------------------------------------------------------------------------------------- replacing


def test_a_replacement_leaves_no_other_file(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    files.replace_file(path, b"old")
    files.replace_file(path, b"new", durable=True)
    assert path.read_bytes() == b"new"
    assert [left.name for left in tmp_path.iterdir()] == ["record.json"]


@pytest.mark.parametrize("operation", ["open", "write", "fsync", "close", "replace"])
def test_a_failed_replacement_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    path = tmp_path / "record.json"
    files.replace_file(path, b"old")
    real: Callable[..., object] = getattr(os, operation)

    def refuse(*arguments: object, **named: object) -> None:
        if operation == "close":
            real(*arguments, **named)
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, operation, refuse)
        with pytest.raises(StorageError, match="No space left on device; the old file is unchanged"):
            files.replace_file(path, b"new", durable=True)
    assert path.read_bytes() == b"old"
    assert [left.name for left in tmp_path.iterdir()] == ["record.json"]


def test_a_short_write_of_a_replacement_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Disk(monkeypatch, 1, 2)
    files.replace_file(tmp_path / "record", b"0123456789")
    assert (tmp_path / "record").read_bytes() == b"0123456789"


def test_a_write_of_zero_bytes_counts_as_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Disk(monkeypatch, 0)
    with pytest.raises(StorageError, match="No space left"):
        files.replace_file(tmp_path / "record", b"0123456789")


def test_a_durable_file_is_synced_together_with_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def note(fd: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{fd}").readlink()))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", note)
    files.replace_file(tmp_path / "record", b"x", durable=True)
    assert [Path(path).name.startswith(".record.") for path in synced] == [True, False]
    assert synced[1] == str(tmp_path)
    files.replace_file(tmp_path / "record", b"x")
    assert len(synced) == 2


def test_old_temporary_files_are_removed(tmp_path: Path) -> None:
    below = tmp_path / "agents" / "a"
    below.mkdir(parents=True)
    old, fresh, record = below / ".spec.json.17.tmp", below / ".spec.json.18.tmp", below / "spec.json"
    for path in (old, fresh, record):
        path.write_bytes(b"{")
    long_ago = time.time() - 3600
    os.utime(old, (long_ago, long_ago))
    os.utime(record, (long_ago, long_ago))
    files.remove_stale_files(tmp_path)
    assert sorted(path.name for path in below.iterdir()) == [".spec.json.18.tmp", "spec.json"]


# ----------------------------------------------------------------------------------------------------- reading


def test_a_missing_file_reads_as_none(tmp_path: Path) -> None:
    assert files.read_file(tmp_path / "nothing") is None
    assert files.size(tmp_path / "nothing") == 0
    assert lines(tmp_path / "nothing") == []
    assert files.tail_offset(tmp_path / "nothing", 100) == 0


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot read"):
        files.read_file(tmp_path)
    with pytest.raises(StorageError, match="cannot read"):
        list(files.read_lines(tmp_path))
    with pytest.raises(StorageError, match="cannot read"):
        files.size(tmp_path / ("x" * 300))
    with pytest.raises(StorageError, match="cannot read"):
        files.tail_offset(tmp_path, 1)


def test_a_line_without_newline_is_left_for_later(log: Path) -> None:
    log.write_bytes(b"one\ntw")
    assert list(files.read_lines(log)) == [(b"one", 4)]
    with log.open("ab") as file:
        file.write(b"o\n")
    assert list(files.read_lines(log, 4)) == [(b"two", 8)]


def test_each_offset_leads_to_the_next_line(log: Path) -> None:
    log.write_bytes(b"one\n\nthree\n")
    assert list(files.read_lines(log)) == [(b"one", 4), (b"", 5), (b"three", 11)]
    assert list(files.read_lines(log, 5)) == [(b"three", 11)]


def test_lines_longer_than_a_block_are_read_whole(log: Path) -> None:
    long = b"x" * (files._CHUNK * 2 + 17)
    log.write_bytes(b"a\n" + long + b"\nb\n")
    assert lines(log) == [b"a", long, b"b"]


def test_a_huge_line_is_skipped_and_not_kept_in_memory(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_LINE", 1000)
    monkeypatch.setattr(files, "_CHUNK", 64)
    log.write_bytes(b"a\n" + b"x" * 1001 + b"\n" + b"y" * 1000 + b"\nb\n")
    assert list(files.read_lines(log)) == [(b"a", 2), (None, 1004), (b"y" * 1000, 2005), (b"b", 2007)]


@pytest.mark.parametrize(
    ("content", "tail", "offset"),
    [
        (b"", 10, 0),
        (b"no newline yet", 10, 0),
        (b"one\ntwo\nthree\n", 100, 0),
        (b"one\ntwo\nthree\n", 6, 8),  # exactly the last line
        (b"one\ntwo\nthree\n", 7, 8),
        (b"one\ntwo\nthree\n", 10, 4),
        (b"one\ntwo\nthree\n", 5, 14),  # the last line does not fit
        (b"one\ntwo\nthree\n", 0, 14),
        (b"one\ntwo\nthr", 0, 8),  # a line that is being written begins at 8
        (b"one\ntwo\nthr", 4, 4),
    ],
)
def test_the_tail_begins_with_a_whole_line(log: Path, content: bytes, tail: int, offset: int) -> None:
    log.write_bytes(content)
    assert files.tail_offset(log, tail) == offset


def test_the_tail_is_found_across_blocks(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_CHUNK", 4)
    log.write_bytes(b"one\n" + b"x" * 30 + b"\n" + b"y" * 30)
    assert files.tail_offset(log, 0) == 35
    assert files.tail_offset(log, 31) == 4
    assert files.tail_offset(log, 30) == 35


def test_a_disk_that_the_kernel_made_read_only_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = tmp_path.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    mounts = tmp_path / "mountinfo"
    monkeypatch.setattr(files, "_MOUNTS", mounts)
    found = []
    for line in (
        f"44 27 {number} / /disk rw,relatime - ext4 /dev/loop0 rw,emergency_ro",
        f"44 27 {number} / /disk rw,relatime - ext4 /dev/loop0 rw",
        f"44 27 99{number} / /{number} rw,relatime - ext4 /dev/emergency_ro rw,emergency_ro",
    ):
        mounts.write_text(f"22 27 0:21 / /proc rw - proc proc rw\n{line}\n")
        files._takes_no_writes.cache_clear()
        found.append(files.disk_state(tmp_path))
    files._takes_no_writes.cache_clear()
    assert found == ["disk is read-only", None, None]
