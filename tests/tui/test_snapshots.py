"""Whole screens as text, compared with reviewed snapshots.

`CREWBOARD_SNAPSHOTS=write` takes what is on the screen now; look at the difference before you keep it.
"""

import difflib
import os
from pathlib import Path

import pytest

from crewboard_tui.views import base
from crewboard_tui.views import inbox as screen
from crewboard_tui.widgets.bars import Badges
from tests.frozen import Frozen
from tests.tui.stage import opened
from tests.tui.test_changes import AFTER, Repository

KEPT = Path(__file__).parent / "snapshots"

API = "j j j j j enter"

SCREENS: dict[str, tuple[int, int, str, str]] = {
    "board-120x36": (120, 36, "j j j j j", "Inbox · api"),
    "board-80x24": (80, 24, "j j j j j", "Peek · api"),
    "board-40x10": (40, 10, "", "parser"),
    "board-170x50": (170, 50, "", "TEAM"),
    "inbox-80x24": (80, 24, "2", "Mailboxes"),
    "tasks-80x24": (80, 24, "3", "completed"),
    "needs-80x24": (80, 24, "!", "last lines"),
    "processes-100x30": (100, 30, "5", "sandbox"),
    "feed-100x30": (100, 30, "6", "Feed"),
    "review-80x24": (80, 24, "! !", "PLAN v2"),
    "question-80x24": (80, 24, "! ! !", "QUESTION"),
    "hire-80x24": (80, 24, "n", "Hire an agent"),
    "agent-80x24": (80, 24, "j j j j j enter", "need a cursor"),
    "help-80x24": (80, 24, "?", "Keys that work here"),
    "board-60x20": (60, 20, "", "parser"),
    "inbox-60x20": (60, 20, "2 j j", "ping"),
    "cost-80x24": (80, 24, "7", "TEAM"),
    "teams-80x24": (80, 24, "t", "9 of 11 alive"),
    "inbox-120x36": (120, 36, "2 j j j j j j j", "cursor parameter"),
    "review-120x36": (120, 36, "! !", "PLAN v2"),
    "agent-mail-80x24": (80, 24, f"{API} ]", "not read yet"),
    "agent-transcript-80x24": (80, 24, f"{API} ] ]", "edit_file"),
    "agent-files-80x24": (80, 24, f"{API} ] ] ]", "release"),
    "agent-vitals-80x24": (80, 24, f"{API} [", "peak 140M"),
    "agent-asks-80x24": (80, 24, "j j enter", "ask marketing"),
    "agent-120x40": (120, 40, "j enter", "schema change"),
}


@pytest.fixture(autouse=True)
def _on_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the word of the plain-POSIX variant out of the status bar, where it takes the place of the cost."""
    monkeypatch.setattr(base, "Badges", lambda **given: Badges(**(given | {"posix": False})))


def _compare(name: str, shown: str) -> None:
    path = KEPT / f"{name}.txt"
    if os.environ.get("CREWBOARD_SNAPSHOTS") == "write":
        path.write_text(shown + "\n")
    kept = path.read_text().removesuffix("\n") if path.exists() else ""
    difference = "\n".join(difflib.unified_diff(kept.splitlines(), shown.splitlines(), "kept", "shown", lineterm=""))
    assert shown == kept, f"{name} looks different; CREWBOARD_SNAPSHOTS=write keeps this:\n{difference}"


_OTHER_SIZES = {"board-40x10", "board-60x20", "board-170x50", "inbox-60x20", "inbox-120x36", "review-120x36"}
"""Views that another snapshot shows as well."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long if name in _OTHER_SIZES else ()) for name in SCREENS]
)
async def test_it_looks_as_it_did(frozen: Frozen, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    # Mail must stay unread, however long the test takes.
    monkeypatch.setattr(screen, "LOOKED_AT", 3600)
    width, height, keys, sign = SCREENS[name]
    async with opened(frozen, width, height) as stage:
        for key in keys.split():
            await stage.press(key)
        await stage.sees(sign)
        await stage.settles()
        _compare(name, stage.all)


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "width", "height"),
    [("changes-80x24", 80, 24), pytest.param("changes-120x36", 120, 36, marks=pytest.mark.long)],
)
async def test_changes_look_as_they_did(frozen: Frozen, name: str, width: int, height: int) -> None:
    repository = Repository(frozen)
    repository.snapshot("api", {"src/pages.py": AFTER, "src/cursor.py": "A = 1\n"})
    repository.snapshot("ui", {"README.md": "# Ink\n"})
    repository.write({"README.md": "# Inkpot 2\n"})
    repository.commit("meanwhile")
    async with opened(frozen, width, height) as stage:
        await stage.press("8")
        # The work below the list, and the list of files, are read by themselves.
        await stage.sees("⚠ conflicts", "reads again", "rows[: size + 1]")
        await stage.settles()
        _compare(name, stage.all)
        await stage.press("enter", "]")
        await stage.sees("⏎ diff", "rows[: size + 1]")
        await stage.settles()
        _compare(f"{name}-diff", stage.all)


async def test_ascii_looks_as_it_did(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24, ascii_only=True) as stage:
        await stage.settles()
        _compare("board-ascii-80x24", stage.all)


async def test_an_empty_team_looks_as_it_did(empty: Frozen) -> None:
    async with opened(empty, 80, 24) as stage:
        await stage.settles()
        _compare("empty-80x24", stage.all)
