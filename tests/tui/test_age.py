"""A dashboard keeps and does no more after hours than at its start: counts and ratios, without a clock."""

import gc
import tracemalloc
from itertools import count
from pathlib import Path

import pytest
from msgspec.structs import replace
from textual.widget import Widget

from crewboard import TeamReader, TeamView
from crewboard.records.events import ToolResult
from crewboard.store import journal
from crewboard_tui.queries import UNUSED, Feed, MailFrom, Query, Readers, TouchedFiles, WorkOf
from crewboard_tui.render.formats import format_age, format_span
from crewboard_tui.terminal_input import RestingDriver
from crewboard_tui.widgets.painter import Painter
from tests.frozen import NOW, Frozen, make_empty
from tests.tui.stage import opened

_SECONDS = count()


@pytest.fixture
def team(tmp_path: Path) -> Frozen:
    team = make_empty(tmp_path)
    for number in range(4):
        team.hire(f"a-{number}", "explore", "idle", "", ago=5, pid=7)
    return team


def view_of(team: Frozen) -> TeamView:
    return TeamReader(team.directory, clock=lambda: NOW, probe=team.probe).read()


def print_text(team: Frozen, agent: str, times: int) -> None:
    for number in range(times):
        text = f"{number} {8000 * 'x'}"
        event = ToolResult(ts=NOW + next(_SECONDS), run=1, tool_use_id=f"t{number}", name="bash", content=text)
        journal.append(team.directory.agent(agent).journal, event)


def test_what_no_view_asks_for_is_dropped_after_a_while(team: Frozen) -> None:
    for name in ("a-0", "a-1", "a-2", "a-3"):
        print_text(team, name, 30)
    for number in range(200):
        team.mail(number, "a-1", "a-2", "message", 1000 * "x", 9)
    view, readers = view_of(team), Readers(team.directory, team.probe)
    asked: list[Query[object]] = [Feed(400), MailFrom("a-1"), TouchedFiles(), WorkOf("a-3")]
    tracemalloc.start()
    try:
        readers.note(view)
        for query in asked:
            query.read(readers, view)
        kept = tracemalloc.get_traced_memory()[0]
        for later in (UNUSED - 1, UNUSED + 1):
            readers.note(replace(view, now=view.now + later))
            gc.collect()
            left = tracemalloc.get_traced_memory()[0]
            assert (left < kept / 10) == (later > UNUSED), f"{left} of {kept} bytes after {later} s"
    finally:
        tracemalloc.stop()


def test_what_a_view_asks_for_is_kept_however_long_nothing_was_read(team: Frozen) -> None:
    print_text(team, "a-0", 3)
    view, readers = view_of(team), Readers(team.directory, team.probe)
    readers.note(view)
    found = Feed(400).read(readers, view)
    readers.note(replace(view, now=view.now + 3600))
    assert Feed(400).read(readers, view) is found
    readers.note(replace(view, now=view.now - 3600))
    assert Feed(400).read(readers, view) is found


async def test_a_view_that_is_left_keeps_no_painted_lines(frozen: Frozen) -> None:
    async with opened(frozen, 120, 36) as stage:
        board, before = stage.app.screen, stage.text
        assert _painted(board) > stage.app.size.height
        await stage.press("ctrl+p")
        assert stage.app.screen is not board
        assert _painted(board) > stage.app.size.height, "it is seen behind the palette"
        await stage.press("escape", "2")
        await stage.until(lambda: not _painted(board), "no line of the Board is kept")
        await stage.press("1")
        await stage.until(lambda: stage.text == before, "the Board as it was")


def _painted(screen: Widget) -> int:
    """Return how many painted lines the parts of a screen keep."""
    parts = list(screen.walk_children(Widget))
    painters = [each for part in parts if isinstance(each := getattr(part, "_painter", None), Painter)]
    return sum(len(part._styles_cache._cache) for part in parts) + sum(len(each._known) for each in painters)


def test_below_a_minute_an_age_changes_sixteen_times() -> None:
    ages = [format_age(second) for second in range(61)]
    assert ages[:11] == ["0s", "1s", "2s", "3s", "4s", *5 * ["5s"], "10s"]
    assert ages[-2:] == ["55s", "1m"]
    assert len(set(ages[:60])) == 16
    assert (format_age(3599.9), format_age(-1), format_span(59)) == ("59m", "0s", "59s")


async def test_the_dashboard_waits_for_keys_without_waking_up(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        assert stage.app.driver_class is RestingDriver
