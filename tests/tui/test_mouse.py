"""The mouse: a click acts on what is under the pointer, and on nothing else."""

import pytest
from textual.color import Color
from textual.geometry import Region

from crewboard.protocol.requests import load
from crewboard_tui.app import CrewboardApp
from crewboard_tui.views import inbox as screen
from crewboard_tui.widgets.line_list import LineList
from tests.frozen import Frozen
from tests.tui.stage import Stage, opened
from tests.tui.test_look import ground, painted


def list_of(stage: Stage) -> tuple[LineList, Region]:
    """Return the focused list and the region of its rows."""
    rows = stage.app.focused
    assert isinstance(rows, LineList)
    place = rows.content_region
    return rows, Region(place.x, place.y, place.width, min(place.height, len(rows.rows)))


async def click(stage: Stage, x: int, y: int, *, times: int = 1) -> None:
    await stage.pilot.click(offset=(x, y), times=times)
    await stage.settles()


@pytest.mark.long
@pytest.mark.parametrize(
    ("width", "height", "views"),
    [
        (80, 24, "12"),
        pytest.param(80, 24, "345", marks=pytest.mark.long),
        pytest.param(120, 36, "12345", marks=pytest.mark.long),
    ],
)
async def test_a_click_selects_the_row_under_the_pointer(
    frozen: Frozen, monkeypatch: pytest.MonkeyPatch, width: int, height: int, views: str
) -> None:
    # Mail that becomes read would change its row.
    monkeypatch.setattr(screen, "LOOKED_AT", 3600)
    async with opened(frozen, width, height) as stage:
        for view in views:
            await stage.press(view)
            await stage.until(lambda: isinstance(stage.app.focused, LineList), "the focus on its list")
            await stage.settles()
            _, place = list_of(stage)
            for y in (place.bottom - 1, place.y, place.y + 1):
                shown = stage.text[y][place.x + 1 : place.right].rstrip()
                await click(stage, place.x + 3, y)
                assert stage.text[y][place.x] == "▌"
                assert stage.text[y][place.x + 1 : place.right].rstrip() == shown, (
                    "the row that was clicked, where it was"
                )


async def test_a_click_in_a_scrolled_list_selects_the_row_under_it(frozen: Frozen) -> None:
    async with opened(frozen, 60, 16) as stage:
        await stage.press("G")
        await stage.settles()
        rows, place = list_of(stage)
        assert rows.scroll_offset.y > 0
        await click(stage, place.x + 3, place.y)
        assert stage.text[place.y][place.x] == "▌"


@pytest.mark.long
async def test_a_click_on_a_column_head_or_border_selects_nothing(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.press("j", "j")
        await stage.settles()
        rows, place = list_of(stage)
        selected = rows.selected
        for y in (place.y - 2, place.y - 1, place.bottom):
            await click(stage, place.x + 3, y)
            assert rows.selected == selected


async def test_a_double_click_on_a_choice_answers_with_that_choice(
    frozen: Frozen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CrewboardApp, "CLICK_CHAIN_TIME_THRESHOLD", 3600)
    frozen.asks("q-1", "question", "api", 10, {"question": "Which?", "options": ["keep", "trash", "drop"]})
    async with opened(frozen, 80, 24) as stage:
        await stage.app.open_need("question:api:q-1")
        await stage.settles()
        y = next(y for y, line in enumerate(stage.text) if "trash" in line)
        await click(stage, 6, y, times=2)
        await stage.sees("answered: api continues")
    answered = load(frozen.directory, "q-1")
    assert answered is not None
    assert answered.feedback == "trash"


@pytest.mark.long
@pytest.mark.parametrize("width", [40, *(pytest.param(width, marks=pytest.mark.long) for width in (80, 120))])
async def test_a_click_on_a_tab_opens_it(frozen: Frozen, width: int) -> None:
    async with opened(frozen, width, 24) as stage:
        stage.app.open_agent("api")
        await stage.turns_to("Now")
        await stage.settles()
        await click(stage, stage.text[2].index("Mail") + 1, 2)
        await stage.turns_to("Mail")
        way = "›" if width == 40 else "Transcript"
        await click(stage, stage.text[2].index(way), 2)
        await stage.turns_to("Transcript")


async def test_a_click_on_a_column_head_sorts_and_again_reverses(frozen: Frozen) -> None:
    async with opened(frozen, 120, 36) as stage:
        await stage.press("w")
        await stage.settles()
        rows, place = list_of(stage)
        for word, orders in (("cpu", ("cpu", "-cpu", "cpu")), ("age", ("age",)), ("doing", ("age",))):
            for order in orders:
                await click(stage, stage.text[place.y - 1].rindex(word) + 1, place.y - 1)
                assert rows.chosen_order == order, word


async def test_the_row_below_the_pointer_is_tinted(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.settles()
        rows, place = list_of(stage)
        panel = Color.parse(stage.app.theme_variables["panel"]).hex.lower()

        def tinted() -> list[int]:
            lines = painted(stage)[place.y : place.bottom]
            return [at for at, line in enumerate(lines) if ground(line[10]) == panel]

        assert tinted() == []
        await stage.pilot.hover(offset=(place.x + 9, place.y + 3))
        await stage.until(lambda: tinted() == [3], "the tint of the row")
        assert rows.selected == "parser", "the pointer selects nothing"
        await stage.pilot.hover(offset=(place.x + 9, 0))
        await stage.until(lambda: tinted() == [], "no tint")
