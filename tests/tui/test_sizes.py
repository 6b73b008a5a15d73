"""All kinds of terminals: tiny, narrow, resized often, without colour, ASCII only."""

import ast
from pathlib import Path

import pytest
from rich.cells import cell_len
from textual.geometry import Size

import crewboard
import crewboard_tui
from crewboard.records.processes import Exit
from crewboard.store import agents
from crewboard_tui.render.looks import GLYPHS
from crewboard_tui.render.sanitize import safe_line
from crewboard_tui.widgets.bars import StaticLines
from tests.frozen import NOW, Frozen
from tests.tui.stage import Stage, opened


@pytest.mark.parametrize(
    ("width", "height"),
    [(1, 1), *(pytest.param(*size, marks=pytest.mark.long) for size in ((3, 50), (20, 6), (60, 15), (240, 70)))],
)
async def test_no_size_breaks_any_screen(frozen: Frozen, width: int, height: int) -> None:
    async with opened(frozen, width, height) as stage:
        for keys in (
            "j",
            "2",
            "3",
            "4",
            "5",
            "6",
            "7",
            "8",
            "1 w f f",
            "escape t",
            "escape n",
            "escape ?",
            "escape !",
            "!",
            "!",
        ):
            await stage.press(*keys.split())
            assert all(len(line) <= width for line in stage.text)


async def test_forty_by_ten_shows_strip_list_alert_and_keys(frozen: Frozen) -> None:
    async with opened(frozen, 40, 10) as stage:
        await stage.settles()
        assert "✖ 1 dead  ▲ 2 ask  ◆1 ↻1" in stage.text[0]
        assert "✖ parser" in stage.text[1]
        assert "dead: killed by SIGKILL" in stage.text[1]
        assert "parser died" in stage.text[8]
        assert "? help" in stage.text[9]


@pytest.mark.long
@pytest.mark.parametrize(("width", "told"), [(20, " demo  ✖1 ▲2 ◆1 ↻1"), (12, " ✖1 ▲2 ◆1 …")])
async def test_a_narrow_status_bar_keeps_what_is_urgent(frozen: Frozen, width: int, told: str) -> None:
    async with opened(frozen, width, 5) as stage:
        await stage.until(lambda: stage.text[0] == told, "the needs in the status bar")


async def test_approve_never_shows_without_reject_at_any_width(frozen: Frozen) -> None:
    async with opened(frozen, 40, 10) as stage:
        await stage.app.open_need("plan:auth-plan:req-004281")
        await stage.sees(" a approve  d deny ", " ? help  Esc back")


@pytest.mark.long
@pytest.mark.parametrize(
    ("width", "height"),
    [(40, 10), pytest.param(60, 20, marks=pytest.mark.long), pytest.param(80, 24, marks=pytest.mark.long)],
)
async def test_the_ways_to_help_and_out_stand_in_every_key_line(frozen: Frozen, width: int, height: int) -> None:
    async with opened(frozen, width, height) as stage:
        await stage.sees("? help", "q leave")
        for keys in ("3", "1 j enter", "escape !", "!", "!"):
            await stage.press(*keys.split())
            await stage.sees("Esc back", "? help")


async def test_eighty_columns_show_the_peek_and_no_pid(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.sees("Peek · parser", "ctx")
        assert " pid " not in stage.text[2]


@pytest.mark.long
async def test_a_column_that_would_be_blank_is_left_out(frozen: Frozen) -> None:
    async with opened(frozen, 180, 50) as stage:
        await stage.press("w")
        await stage.sees("model")
        # Each row tells what there is to tell: a column of why would be blank.
        assert " why " not in stage.all
        agents.write_exit(frozen.directory.agent("perf"), Exit(run=1, code=0, at=NOW, reason="stopped"))
        stage.app.context.announce()
        await stage.sees(" why ")
        row = next(line for line in stage.text if " perf " in line)
        assert "grep lru_cache src/" in row
        assert " stopped " in row


@pytest.mark.long
async def test_many_resizes_leave_the_picture_whole(frozen: Frozen) -> None:
    async with opened(frozen, 120, 36) as stage:
        await stage.settles()
        before = stage.all
        for width, height in ((1, 1), (200, 60), (40, 10), (3, 50), (120, 2), (79, 24), (100, 22), (120, 36)):
            await stage.pilot.resize_terminal(width, height)
        await stage.until(lambda: stage.app.size == Size(120, 36), "the size")
        await stage.until(lambda: stage.all == before, "the same picture")


async def _resize_over_a_box(stage: Stage, key: str, way_out: str) -> None:
    keys = stage.app.screen.get_child_by_id("keys", StaticLines)
    await stage.press(key)
    await stage.until(lambda: way_out in _text_of(keys), f"the keys of {key}")
    for width in (100, 80):
        await stage.pilot.resize_terminal(width, 24)
        await stage.settles()
        assert keys.size.width == width
        assert way_out in _text_of(keys)
        assert "fresh" not in _text_of(keys)
    await stage.press("escape")
    await stage.until(lambda: "fresh" in _text_of(keys), "the keys of the Board")


async def test_a_resize_leaves_the_keys_of_a_box_in_the_footer(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        for key, way_out in ((".", "back"), ("t", "stay"), (":", "back")):
            await _resize_over_a_box(stage, key, way_out)


def _text_of(lines: StaticLines) -> str:
    return "\n".join("".join(span.text for span in line) for line in lines.lines)


def _written(source: str) -> set[str]:
    """Return the non-ASCII characters in the strings of a module, without docstrings."""
    nodes = [] if source.isascii() else list(ast.walk(ast.parse(source)))
    silent = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    texts = [node.value for node in nodes if isinstance(node, ast.Constant) and id(node) not in silent]
    return {character for text in texts if isinstance(text, str) for character in text if not character.isascii()}


@pytest.mark.long
def test_every_glyph_of_ours_has_one_in_ascii() -> None:
    folders = [*crewboard_tui.__path__, *crewboard.__path__]
    written = set().union(*(_written(file.read_text()) for folder in folders for file in Path(folder).rglob("*.py")))
    # Letters are words of others, such as those by which a server refuses a request.
    painted = {each for each in written if each in safe_line(each) and cell_len(each) and not each.isalpha()}
    assert {"▲", "…", "▌"} <= painted
    assert painted <= set(GLYPHS)


@pytest.mark.long
async def test_in_ascii_a_key_is_called_by_its_name(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24, ascii_only=True) as stage:
        await stage.can("Enter", "open")
        await stage.press("m")
        await stage.sees("Enter sends")
        await stage.press("escape", "n", "tab")
        await stage.sees("Tab next field")
        await stage.press("?")
        await stage.sees("l Right Space choose the next value")
        await stage.press("escape", "escape")
        await stage.sees("Peek - ")
        await stage.app.open_need("question:docs:req-004290")
        await stage.sees("Enter answers with the marked one")


@pytest.mark.long
async def test_ascii_paints_nothing_else(frozen: Frozen) -> None:
    async with opened(frozen, 120, 36, ascii_only=True) as stage:
        for keys in ("j", "2", "3", "4", "5", "6", "7", "8", "1 w f", "escape t", "escape n", "escape !", "!"):
            await stage.press(*keys.split())
            assert stage.all.isascii()
        await stage.press("1")
        await stage.sees("X parser")


async def test_without_colour_nothing_is_lost(frozen: Frozen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    async with opened(frozen, 80, 24) as stage:
        await stage.sees("✖ parser     dead", "▌✖ parser")
        colours = {
            segment.style.color.triplet
            for strip in stage.app.screen._compositor.render_strips(Size(80, 24))
            for segment in strip
            if segment.style and segment.style.color and segment.style.color.triplet
        }
        assert all(red == green == blue for red, green, blue in colours)
