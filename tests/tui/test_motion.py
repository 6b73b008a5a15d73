"""Motion: what changed is reversed for a moment, and nothing moves by itself."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace
from textual.message_pump import MessagePump
from textual.timer import Timer

from crewboard_tui.settings import Settings
from crewboard_tui.views.base import BaseScreen
from tests.frozen import NOW, Frozen
from tests.tui.stage import Stage, opened
from tests.tui.test_look import painted

Moments = list[tuple[float, Callable[[], None]]]


@pytest.fixture
def moments(monkeypatch: pytest.MonkeyPatch) -> Moments:
    """Hold the timers of motion, and return their seconds and what they do: the test says when time passes."""
    found: Moments = []
    ordinary = MessagePump.set_timer

    def set_timer(
        pump: MessagePump, delay: float, callback: Callable[[], None], *, name: str | None = None, pause: bool = False
    ) -> Timer:
        if name == "motion":
            found.append((delay, callback))
        return ordinary(pump, delay, callback, name=name, pause=pause or name == "motion")

    monkeypatch.setattr(MessagePump, "set_timer", set_timer)
    return found


def reversed_texts(stage: Stage) -> list[str]:
    """Return what is painted reversed, by line, with the name in the row of a list."""
    found = []
    for line in painted(stage):
        cells = "".join(cell.text for cell in line if cell.style is not None and cell.style.reverse)
        if cells:
            found.append(f"{cells.strip()} {''.join(cell.text for cell in line[3:12]).split()[0]}")
    return found


async def test_a_glyph_that_changed_is_reversed_for_a_moment(frozen: Frozen, moments: Moments) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.settles()
        assert (reversed_texts(stage), moments) == ([], [])
        frozen.hire("perf", "explore", "idle", "", ago=1, pid=4405)
        stage.app.context.reading.poke()
        await stage.until(lambda: reversed_texts(stage) == ["○ perf"], "the new glyph, reversed")
        [(seconds, end)] = moments
        assert seconds == 0.6
        end()
        await stage.until(lambda: not reversed_texts(stage), "the glyph as it is")
        assert len(moments) == 1


async def test_the_glyph_of_a_task_that_changed_is_reversed(frozen: Frozen, moments: Moments) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.press("3")
        await stage.settles()
        frozen.task(9, "paginate /orders", "failed", owner="api")
        stage.app.context.reading.poke()
        await stage.until(lambda: reversed_texts(stage) == ["✖ #9"], "the new glyph, reversed")
        assert 0.6 in [seconds for seconds, _ in moments]


async def test_a_new_need_reverses_its_count_twice(frozen: Frozen, moments: Moments) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.settles()
        frozen.asks("question-9", "question", "release", 1, {"question": "Which tag?"})
        stage.app.context.reading.poke()
        await stage.sees("▲ 3 ask")
        for number, shown in enumerate(["▲ 3 ask", "", "▲ 3 ask", ""]):
            steps = [each for each in moments if each[0] == 0.3]
            assert " ".join(reversed_texts(stage)[:1]).startswith(shown)
            assert len([each for each in reversed_texts(stage) if " ask" in each]) == bool(shown)
            assert len(steps) == min(number + 1, 3)
            if number < 3:
                steps[-1][1]()
                await stage.settles()


async def test_nothing_is_reversed_where_motion_is_reduced(frozen: Frozen, moments: Moments) -> None:
    async with opened(frozen, 80, 24, settings=Settings.read({"TEXTUAL_ANIMATIONS": "none"})) as stage:
        await stage.settles()
        frozen.hire("perf", "explore", "idle", "", ago=1, pid=4405)
        frozen.asks("question-9", "question", "release", 1, {"question": "Which tag?"})
        stage.app.context.reading.poke()
        await stage.sees("▲ 3 ask")
        await stage.until(lambda: "○ perf" in stage.all, "the new state")
        assert (reversed_texts(stage), moments) == ([], [])


async def test_a_lane_moves_when_half_a_minute_has_passed(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.settles()
        context = stage.app.context
        row = next(line for line in stage.text if "release" in line)
        for ago, moved in ((1, False), (31, True)):
            context.team = replace(context.team, now=lambda ago=ago: NOW + ago)
            assert isinstance(stage.app.screen, BaseScreen)
            stage.app.screen.tick()
            await stage.settles()
            now = next(line for line in stage.text if "release" in line)
            assert (now[53:61] != row[53:61]) == moved, now


def test_own_variable_goes_before_that_of_textual() -> None:
    assert not Settings.read({"TEXTUAL_ANIMATIONS": "none", "CREWBOARD_REDUCED_MOTION": "0"}).reduced_motion
    assert not Settings.read({"TEXTUAL_ANIMATIONS": "full"}).reduced_motion
