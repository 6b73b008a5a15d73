"""Removing the folders of ended runs, whatever their commands left there."""

import fcntl
import math
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from crewboard.sandbox import landlock, scratch
from crewboard.unix import process, syscalls

only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a folder of another user")

DEEPER_THAN_A_PATH = 1_500
"""Folders of 8 letters: 13 KB of path, and more levels than Python's recursion limit."""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(scratch, "_place", lambda: tmp_path)
    return tmp_path


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let removal take its time: on a busy disk, 1,500 folders take longer than a sweep may."""
    monkeypatch.setattr(scratch, "REMOVAL_TIMEOUT", math.inf)


def left_by_a_killed_worker(place: Path) -> Path:
    """Make the folder of a run whose process is gone: no process has these start ticks."""
    path = place / f"crewboard-run-{os.getpid()}-1-x"
    path.mkdir(mode=0o700)
    return path


def nest(path: Path, depth: int) -> None:
    here = os.open(path, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("nestedxx", dir_fd=here)
        below = os.open("nestedxx", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(os.open("file", os.O_WRONLY | os.O_CREAT, dir_fd=here))
    os.close(here)


def without_powers(work: Callable[[], None]) -> None:
    """Do `work` as any user would: root needs no permission of a folder."""

    def begin() -> None:
        syscalls.drop_capabilities()
        work()

    landlock._in_thread(begin)


@pytest.mark.usefixtures("unhurried")
def test_a_tree_too_deep_to_recurse_into_is_removed(place: Path) -> None:
    nest(left_by_a_killed_worker(place), DEEPER_THAN_A_PATH)
    scratch.sweep()
    assert list(place.iterdir()) == []


@pytest.mark.usefixtures("unhurried")
def test_the_own_folder_goes_however_deep_it_is(place: Path) -> None:
    made = scratch.Scratch.make()
    nest(made.path, DEEPER_THAN_A_PATH)
    made.remove()
    assert list(place.iterdir()) == []


def test_names_that_another_user_takes_stop_no_sweep(place: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """In a shared folder for temporary files others may take names of this form first."""
    outside = tmp_path_factory.mktemp("outside")
    (outside / "kept").write_text("kept")
    name = f"crewboard-run-{os.getpid()}-1-"
    (place / f"{name}link").symlink_to(outside)
    (place / f"{name}file").write_text("")
    os.mkfifo(place / f"{name}pipe")
    (place / "crewboard-run-9999999999999999999999-1-x").mkdir()
    left_by_a_killed_worker(place)
    scratch.sweep()
    assert not (place / f"{name}x").exists()
    assert (outside / "kept").exists()


@pytest.mark.parametrize(
    "kind", ["a socket", pytest.param("another user's folder", marks=only_root), "a closed folder"]
)
def test_no_name_that_is_taken_stops_a_run(place: Path, kind: str) -> None:
    """A process number is used again, so the name of a later run can be guessed up to its random part."""
    taken = place / f"crewboard-run-{os.getpid()}-1-a"
    if kind == "a socket":
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(str(taken))
    else:
        (taken / "inner").mkdir(parents=True)
        taken.chmod(0)
        if kind == "another user's folder":
            os.chown(taken, 65534, 65534)
    left = left_by_a_killed_worker(place)
    without_powers(lambda: scratch.Scratch.make().remove())
    assert not left.exists()
    assert taken.exists() == (kind != "a closed folder")


@pytest.mark.parametrize("moment", ["start_ticks", "flock"])
def test_a_folder_that_becomes_a_link_while_it_is_looked_at_is_not_followed(
    place: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """In a shared folder without the sticky bit, another user can exchange it."""
    outside = tmp_path_factory.mktemp("outside")
    (outside / "kept").write_text("kept")
    left = left_by_a_killed_worker(place)

    def swap(*_: object) -> int:
        left.rename(place / "aside")
        left.symlink_to(outside)
        return 0

    monkeypatch.setattr(process if moment == "start_ticks" else fcntl, moment, swap)
    scratch.sweep()
    assert left.is_symlink()
    assert (outside / "kept").read_text() == "kept"


def test_a_run_that_closed_its_own_folder_is_removed(place: Path) -> None:
    def live() -> None:
        made = scratch.Scratch.make()
        (made.path / "file").write_text("")
        made.path.chmod(0)
        made.remove()

    without_powers(live)
    assert list(place.iterdir()) == []


def test_links_are_removed_and_not_followed(place: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    outside = tmp_path_factory.mktemp("outside")
    (outside / "kept").write_text("kept")
    (left_by_a_killed_worker(place) / "link").symlink_to(outside)
    scratch.sweep()
    assert list(place.iterdir()) == []
    assert (outside / "kept").read_text() == "kept"


def test_folders_without_permissions_are_removed(place: Path) -> None:
    closed = left_by_a_killed_worker(place) / "closed"
    (closed / "inner").mkdir(parents=True)
    closed.chmod(0)
    scratch.sweep()
    assert list(place.iterdir()) == []


def test_names_that_removal_itself_uses_do_no_harm(place: Path) -> None:
    path = left_by_a_killed_worker(place)
    for name in ("crewboard-moved-0", "crewboard-moved-1"):
        (path / name / "crewboard-moved-0" / "below").mkdir(parents=True)
    scratch.sweep()
    assert list(place.iterdir()) == []


def test_a_sweep_stops_in_time_and_a_later_one_ends_it(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = left_by_a_killed_worker(place)
    nest(path, 10)
    with monkeypatch.context() as patched:
        patched.setattr(scratch, "REMOVAL_TIMEOUT", 0.0)
        scratch.sweep()
    assert path.exists()
    scratch.sweep()
    assert list(place.iterdir()) == []
