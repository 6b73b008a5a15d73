"""Screenshots are the same in every run, so that a changed picture means a changed screen."""

from pathlib import Path

import pytest

from tests.screenshots import SHOTS, paint_all


@pytest.mark.long
def test_two_runs_paint_the_same_pictures(tmp_path: Path) -> None:
    shots = tuple(shot for shot in SHOTS if shot.name == "board-80x24")
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    for one, other in zip(paint_all(first, shots), paint_all(second, shots), strict=True):
        assert one.read_bytes() == other.read_bytes(), one.name
        assert "</svg>" in one.read_text()
        assert one.stat().st_size > 10_000
