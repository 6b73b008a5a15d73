"""Leases: held for life, released by any kind of death, and probed without being taken."""

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from crewboard.errors import StorageError
from crewboard.records.processes import Lease
from crewboard.store import leases
from crewboard.store.interface import Key
from crewboard.store.layout import key_of

HOLDER = """
import sys
from pathlib import Path
from crewboard.records.processes import Lease
from crewboard.store import leases
from crewboard.store.layout import key_of
held = leases.take(key_of(Path(sys.argv[1])))
if held is not None:
    leases.sign(held, Lease(pid=1, run=2))
print("held" if held is not None else "refused", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path: Path) -> Key:
    return key_of(tmp_path / "lease")


@pytest.fixture
def other(path: Key) -> Iterator[subprocess.Popen[str]]:
    """Start another process that holds the lease."""
    with subprocess.Popen(
        [sys.executable, "-I", "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_missing_lease_is_not_held(path: Key) -> None:
    assert not leases.is_held(path)
    assert leases.holder(path, Lease) is None
    assert not leases.is_held(key_of(path.on_disk / "below"))


def test_a_held_lease_cannot_be_taken(path: Key) -> None:
    held = leases.take(path)
    assert held is not None
    assert leases.is_held(path)
    assert leases.take(path) is None
    leases.release(held)
    assert not leases.is_held(path)


def test_a_lease_names_its_holder(path: Key) -> None:
    held = leases.take(path)
    assert held is not None
    assert leases.holder(path, Lease) is None, "not signed yet"
    leases.sign(held, Lease(pid=42, run=7))
    leases.sign(held, Lease(pid=4, run=8))
    assert leases.holder(path, Lease) == Lease(pid=4, run=8)
    leases.release(held)
    assert leases.holder(path, Lease) is None, "what a dead holder wrote does not count"


def test_who_holds_a_lease_is_known_at_each_moment(path: Key, monkeypatch: pytest.MonkeyPatch) -> None:
    held = leases.take(path)
    assert held is not None
    long, short = Lease(pid=42, run=7, boot_id="a" * 36, host="east"), Lease(pid=4, run=8)
    leases.sign(held, long)
    seen: list[Lease | None] = []
    truncate = os.ftruncate

    def watched(fd: int, length: int) -> None:
        seen.append(leases.holder(path, Lease))
        truncate(fd, length)
        seen.append(leases.holder(path, Lease))

    monkeypatch.setattr(os, "ftruncate", watched)
    leases.sign(held, short)
    assert seen == [short, short]
    leases.sign(held, long)
    assert seen == [short, short, long, long]
    leases.release(held)


def test_the_last_holder_is_not_taken_for_the_next_one(path: Key) -> None:
    path.on_disk.write_bytes(b'{"pid": 42, "run": 7}\n')
    held = leases.take(path)
    assert held is not None
    assert leases.holder(path, Lease) is None
    leases.release(held)


def test_closing_another_descriptor_keeps_the_lease(path: Key) -> None:
    held = leases.take(path)
    assert held is not None
    os.close(os.open(path.on_disk, os.O_RDWR))
    path.on_disk.read_bytes()
    assert leases.is_held(path)
    leases.release(held)


def test_a_started_program_does_not_inherit_the_lease(path: Key) -> None:
    held = leases.take(path)
    assert held is not None
    with subprocess.Popen(["sleep", "60"], close_fds=False) as child:
        leases.release(held)
        assert not leases.is_held(path)
        child.kill()


def test_death_releases_the_lease(path: Key, other: subprocess.Popen[str]) -> None:
    assert leases.is_held(path)
    assert leases.take(path) is None
    assert leases.holder(path, Lease) == Lease(pid=1, run=2)
    other.send_signal(signal.SIGKILL)
    other.wait()
    assert not leases.is_held(path)


def test_a_stopped_process_still_holds_its_lease(path: Key, other: subprocess.Popen[str]) -> None:
    other.send_signal(signal.SIGSTOP)
    assert leases.is_held(path)
    assert leases.take(path) is None


def test_an_unreadable_lease_is_an_error_not_a_death(path: Key, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        with pytest.raises(StorageError, match=r"cannot look at .*: Too many open files"):
            leases.is_held(path)
        with pytest.raises(StorageError, match="cannot open"):
            leases.take(path)


def test_a_holder_that_cannot_be_written_is_an_error(path: Key, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    held = leases.take(path)
    assert held is not None
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", refuse)
        with pytest.raises(StorageError, match="cannot write the holder of a lease: No space left"):
            leases.sign(held, Lease(pid=1))
    assert leases.is_held(path)
    leases.release(held)


def test_a_file_system_without_locks_is_an_error(path: Key, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> bytes:
        raise OSError(errno.ENOLCK, "No locks available")

    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    with monkeypatch.context() as patch:
        patch.setattr("fcntl.fcntl", refuse)
        patch.setattr("fcntl.flock", refuse)
        with pytest.raises(StorageError, match=r"cannot lock .*: No locks available"):
            leases.take(path)
    assert len(list(Path("/proc/self/fd").iterdir())) == descriptors
