"""Make `screenshots/` from the frozen team with `python -m tests.screenshots`; each run gives the same bytes."""

import asyncio
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from tests.frozen import Frozen, make_team
from tests.tui.stage import Stage, opened

HERE = Path(__file__).parent.parent / "screenshots"


@dataclass(frozen=True)
class Shot:
    """One picture: the keys to press, the text to type, and the words that must be on the screen."""

    name: str
    keys: str
    sees: str
    writes: tuple[str, ...] = ()
    width: int = 120
    height: int = 36


_TO_API = "j j j j j"

SHOTS = (
    Shot("board", _TO_API, "and▌"),
    Shot("board-80x24", _TO_API, "and▌", width=80, height=24),
    Shot("board-170x50", _TO_API, "TEAM", width=170, height=50),
    Shot("board-light", f"{_TO_API} T", "and▌"),
    Shot("board-contrast", f"{_TO_API} T T", "and▌"),
    Shot("needs", "!", "collected 214 items"),
    Shot("needs-80x24", "!", "collected 214 items", width=80, height=24),
    Shot("plan-review", "! !", "PLAN v2"),
    Shot("plan-review-80x24", "! !", "PLAN v2", width=80, height=24),
    Shot("question-80x24", "! ! !", "QUESTION", width=80, height=24),
    Shot("hire", "n", "Hire an agent", ("fixer2", "tab", "tab", "backend developer", "tab",
         "Make parse() accept the 2.0 grammar. Keep the 1.x tests green.", "tab", "tab", "space")),
    Shot("inbox", "2 j j j j j j j", "cursor parameter"),
    Shot("inbox-60x20", "2 j j", "ping", width=60, height=20),
    Shot("tasks", "3 j j j j", "orphaned by parser"),
    Shot("processes", "5 j j j j j", "SANDBOX"),
    Shot("feed", "6", "Feed"),
    Shot("cost", "7", "TEAM"),
    Shot("agent", f"{_TO_API} enter", "[Now]"),
    Shot("agent-mail", f"{_TO_API} enter ]", "[Mail]"),
    Shot("agent-transcript", f"{_TO_API} enter ] ] g j j j j j j j enter", "[Transcript]"),
    Shot("agent-files", f"{_TO_API} enter ] ] ] ] enter", "[Files]"),
    Shot("agent-cost", f"{_TO_API} enter [", "[Cost]"),
    Shot("help", "?", "Keys that work here"),
    Shot("teams", "t", "Teams"),
)  # fmt: skip


async def _write(stage: Stage, text: str) -> None:
    if text in ("tab", "space"):
        await stage.press(text)
    else:
        await stage.write(text)


async def paint(shot: Shot, home: Path) -> str:
    """Return the picture as SVG."""
    frozen = make_team(home / "inkpot")
    with contextlib.chdir(frozen.directory.root):
        return await _paint(shot, frozen)


async def _paint(shot: Shot, frozen: Frozen) -> str:
    async with opened(frozen, shot.width, shot.height) as stage:
        for key in shot.keys.split():
            await stage.press(key)
            await stage.settles()
        await stage.sees(shot.sees)
        for text in shot.writes:
            await _write(stage, text)
        await stage.settles()
        return stage.app.export_screenshot(title="crewboard")


@contextmanager
def same_everywhere(home: Path) -> Iterator[None]:
    """Set a fixed home, a fixed time zone, colours, and an ordinary user."""
    kept = dict(os.environ)
    os.environ.update(HOME=str(home), TZ="UTC", COLORTERM="truecolor", TERM="xterm-256color")
    for name in ("NO_COLOR", "CREWBOARD_MODEL", "ANTHROPIC_MODEL"):
        os.environ.pop(name, None)
    time.tzset()
    try:
        with mock.patch("crewboard.linux.process.runs_as_root", return_value=False):
            yield
    finally:
        os.environ.clear()
        os.environ.update(kept)
        time.tzset()


def paint_all(folder: Path, shots: tuple[Shot, ...] = SHOTS) -> list[Path]:
    """Write every picture into `folder`."""
    painted = []
    for shot in shots:
        with tempfile.TemporaryDirectory() as home, same_everywhere(Path(home)):
            path = folder / f"{shot.name}.svg"
            path.write_text(asyncio.run(paint(shot, Path(home))))
            painted.append(path)
    return painted


if __name__ == "__main__":
    for done in paint_all(HERE):
        sys.stdout.write(f"{done}\n")
