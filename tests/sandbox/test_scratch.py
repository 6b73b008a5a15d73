"""Removing the folders of ended runs, whatever their commands left there."""

import os
from pathlib import Path

import pytest

from crewboard.sandbox import scratch

DEEPER_THAN_A_PATH = 1_500
"""Folders of 8 letters: 13 KB of path, and more levels than Python's recursion limit."""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(scratch, "_place", lambda: tmp_path)
    return tmp_path


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


def test_a_tree_too_deep_to_recurse_into_is_removed(place: Path) -> None:
    nest(left_by_a_killed_worker(place), DEEPER_THAN_A_PATH)
    scratch.sweep()
    assert list(place.iterdir()) == []


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
