"""Themes and motion: contrast, the remembered theme, and reduced motion."""

import re
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from rich.color import Color as SentColor
from rich.color import ColorSystem
from rich.terminal_theme import DEFAULT_TERMINAL_THEME
from textual.color import Color
from textual.theme import Theme
from textual.widgets import Input

from crewboard_tui import app as dashboard
from crewboard_tui.queries import Work, WorkOf
from crewboard_tui.render.themes import CONTRAST, DARK, LIGHT, THEMES, code_colour, for_terminal, read_theme
from crewboard_tui.settings import Settings
from crewboard_tui.widgets.painter import CODE
from tests.frozen import Frozen
from tests.tui.stage import opened
from tests.tui.test_look import ground, painted

COLOURS_OF_A_THEME = (
    "primary", "accent", "warning", "error", "success", "foreground", "background", "surface", "panel",
)  # fmt: skip


def luminance(colour: Color) -> float:
    """Return the relative luminance as WCAG 2.2 defines it."""
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in colour.normalized
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def ratio(one: str | None, other: str | None) -> float:
    dark, light = sorted(luminance(Color.parse(colour or "")) for colour in (one, other))
    return (light + 0.05) / (dark + 0.05)


def sent(colour: str | None, colours: str) -> str:
    """Return the colour that a terminal with fewer colours shows in the place of one."""
    kinds = {"256": ColorSystem.EIGHT_BIT, "standard": ColorSystem.STANDARD}
    return SentColor.parse((colour or "").lower()).downgrade(kinds[colours]).get_truecolor(DEFAULT_TERMINAL_THEME).hex


OF_CONTRAST = read_theme("of-contrast", {"base": "contrast", "dim": "#cfd8e6", "key": "#9fe0c0"})[0]
assert OF_CONTRAST is not None


@pytest.mark.parametrize("colours", ["256", "standard"])
@pytest.mark.parametrize(
    ("theme", "least"),
    [*((each, 7.0 if each is CONTRAST else 4.5) for each in THEMES.values()), (OF_CONTRAST, 7.0)],
)
def test_text_can_be_read_in_fewer_colours(theme: Theme, least: float, colours: str) -> None:
    theme = for_terminal(theme, colours)
    fields = {each: sent(getattr(theme, each), colours) for each in COLOURS_OF_A_THEME}
    variables = {each: sent(colour, colours) for each, colour in theme.variables.items() if colour[0] == "#"}
    shown = replace(theme, **fields, variables=variables)  # type: ignore[arg-type]
    test_text_can_be_read_on_whatever_it_stands(shown, least)
    test_what_is_drawn_can_be_seen(shown)


@pytest.mark.parametrize("theme", THEMES.values())
def test_grounds_can_be_told_apart_in_256_colours(theme: Theme) -> None:
    theme = for_terminal(theme, "256")
    row, added, deleted = (sent(theme.variables[each], "256") for each in ("cursor-row", "add", "del"))
    assert row != sent(theme.background, "256")
    assert len({sent(theme.background, "256"), added, deleted}) == 3


def test_all_colours_are_sent_as_they_are() -> None:
    assert all(for_terminal(theme, "truecolor") is theme for theme in THEMES.values())


@pytest.mark.long
async def test_a_terminal_with_256_colours_gets_its_own_grounds(
    frozen: Frozen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLORTERM")
    monkeypatch.setenv("TERM", "xterm-256color")
    async with opened(frozen, 120, 36) as stage:
        await stage.settles()
        assert stage.app.theme_variables["cursor-row"] == for_terminal(DARK, "256").variables["cursor-row"]
        least = dict[str, float]()
        for cell in (cell for line in painted(stage) for cell in line if cell.text.isalnum()):
            colour = cell.style.color if cell.style is not None else None
            if colour is not None and colour.triplet is not None:
                contrast = ratio(sent(colour.triplet.hex, "256"), sent(ground(cell), "256"))
                least[cell.text] = min(contrast, least.get(cell.text, contrast))
        assert {text: figure for text, figure in least.items() if figure < 4.5} == {}
        # Another theme is fitted when it is chosen.
        assert stage.app.available_themes[LIGHT.name] is LIGHT
        await stage.press("T")
        await stage.until(lambda: stage.app.theme_variables["add"] == for_terminal(LIGHT, "256").variables["add"])


@pytest.mark.parametrize(("theme", "least"), [(each, 7.0 if each is CONTRAST else 4.5) for each in THEMES.values()])
def test_text_can_be_read_on_whatever_it_stands(theme: Theme, least: float) -> None:
    more = theme.variables
    texts = [theme.foreground, theme.primary, theme.accent, theme.warning, theme.error, theme.success]
    grounds = [theme.background, theme.surface, theme.panel, more["cursor-row"]]
    pairs = [
        *product([*texts, more["info"], more["muted"]], grounds),
        (more["on-need"], more["need"]),
        (more["on-bad"], more["bad"]),
        (more["on-good"], more["good"]),
        # Lines of a diff: the text, its signs, and the marks of Markdown's code.
        *product([theme.foreground, theme.success, more["info"]], [more["add"]]),
        *product([theme.foreground, theme.error, more["info"]], [more["del"]]),
    ]
    assert {pair: ratio(*pair) for pair in pairs if ratio(*pair) < least} == {}


@pytest.mark.parametrize("colours", ["truecolor", "256", "standard"])
@pytest.mark.parametrize(("theme", "least"), [(each, 7.0 if each is CONTRAST else 4.5) for each in THEMES.values()])
def test_code_can_be_read_on_each_ground_of_a_diff(theme: Theme, least: float, colours: str) -> None:
    theme = for_terminal(theme, colours)
    values = {each: str(getattr(theme, each)) for each in COLOURS_OF_A_THEME} | theme.variables
    shown = {each: sent(colour, colours) if colours != "truecolor" else colour
             for each, colour in values.items() if colour[0] == "#"}  # fmt: skip
    code = {role: code_colour(role, values, colours) for role in CODE.values()}
    pairs = product(code.values(), [shown[each] for each in ("background", "cursor-row", "add", "del")])
    found = [(sent(colour, colours) if colours != "truecolor" else colour, ground) for colour, ground in pairs]
    assert {pair: ratio(*pair) for pair in found if ratio(*pair) < least} == {}
    if colours == "truecolor":
        # What cannot be read is in the colour of text.
        plain = {role for role, colour in code.items() if colour == theme.foreground}
        assert plain == {"crewboard-catppuccin-frappe": {"muted"}, "crewboard-tokyo-night": {"muted"}}.get(
            theme.name, set()
        )


SOLAR = {
    "base": "dark", "ground": "#002b36", "text": "#fdf6e3", "dim": "#a9b7b7", "trace": "#6f8b93", "key": "#6cb8ef",
    "need": "#d9b13c", "bad": "#ff8f8a", "good": "#86f58e", "info": "#4fc4ba",
}  # fmt: skip


@pytest.mark.parametrize(
    ("table", "least"),
    [(SOLAR, 4.5), ({"base": "light", "key": "#7a1fa2"}, 4.5), ({"base": "contrast", "good": "#c0ffc0"}, 7.0)],
)
def test_a_theme_of_the_user_is_judged_as_ours(table: dict[str, str], least: float) -> None:
    theme, wrong = read_theme("mine", table)
    assert wrong == []
    assert theme is not None
    test_text_can_be_read_on_whatever_it_stands(theme, least)
    test_what_is_drawn_can_be_seen(theme)


@pytest.mark.parametrize(("base", "colour", "least"), [("dark", "#3b2227", 4.5), ("light", "#ffe08a", 4.5),
                                                       ("contrast", "#402a00", 7.0)])  # fmt: skip
@pytest.mark.parametrize("role", ["text", "dim", "trace", "key", "need", "bad", "good", "info"])
def test_a_colour_that_cannot_be_read_is_refused(base: str, colour: str, least: float, role: str) -> None:
    """It is named with its contrast, and with one that would do: that is taken."""
    theme, ((where, said),) = read_theme("mine", {"base": base, role: colour})
    assert (theme, where) == (None, role)
    begins, figures = f"{role} {colour} has a contrast of ", r"([\d.]+) : 1 on [a-z ]+, (#\w+), and needs ([\d.]+) : 1"
    found = re.fullmatch(rf"{begins}{figures}: use (#\w+) or a \w+ one", said)
    assert found is not None, said
    contrast, ground_there, needed, better = found.groups()
    assert float(contrast) <= ratio(colour, ground_there) < float(contrast) + 0.01 < float(needed)
    assert float(needed) == (3 if role == "trace" else least)
    assert read_theme("mine", {"base": base, role: better})[1] == []


def test_a_ground_that_nothing_can_be_read_on_is_refused() -> None:
    # The colours of the base stand on it.
    wrong = read_theme("mine", {"base": "dark", "ground": "#808080"})[1]
    assert {where for where, _ in wrong} == {"ground"}
    said = {why.partition(" ")[0]: why for _, why in wrong}
    assert {"text", "dim", "key", "need", "bad", "good", "info"} <= said.keys()
    assert "text #d3d7de has a contrast of 2.51 : 1 on added lines, #818881" in said["text"]
    assert said["text"].endswith("; the ground #808080 causes it, text is of dark")


@pytest.mark.parametrize("theme", THEMES.values())
def test_what_is_drawn_can_be_seen(theme: Theme) -> None:
    assert ratio(theme.variables["trace"], theme.background) >= 3


@pytest.mark.long
@pytest.mark.parametrize(("theme", "least"), [(DARK, 4.5), (LIGHT, 4.5), (CONTRAST, 7.0)])
async def test_a_placeholder_can_be_read(frozen: Frozen, theme: Theme, least: float) -> None:
    async with opened(frozen, 120, 36) as stage:
        stage.app.theme = theme.name
        for keys, words in (("! !", "Feedback · Tab"), ("escape n", "offline model")):
            await stage.press(*keys.split())
            await stage.sees(words)
            await stage.settles()
            for cells in painted(stage):
                at = "".join(cell.text for cell in cells).find(words)
                style = cells[at].style
                if at >= 0 and style is not None and style.color is not None:
                    assert not style.dim
                    colour = style.color.get_truecolor().hex
                    assert ratio(colour, ground(cells[at])) >= least, words
                    break
            else:
                raise AssertionError(f"{words} has no colour")


def test_the_frame_of_high_contrast_can_be_seen() -> None:
    assert ratio(CONTRAST.variables["frame"], CONTRAST.background) >= 7


@pytest.mark.long
async def test_a_theme_of_the_user_is_painted_and_offered(
    frozen: Frozen, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    file = tmp_path / "crewboard" / "crewboard.toml"
    file.parent.mkdir()
    lines = "".join(f'{role} = "{colour}"\n' for role, colour in SOLAR.items())
    file.write_text(f'theme = "solar"\n[themes.solar]\n{lines}[themes.faint]\nbase = "dark"\nkey = "#16181d"')
    settings = Settings.read(dict.fromkeys(("XDG_CONFIG_HOME", "XDG_STATE_HOME"), str(tmp_path)))
    assert [each.partition(" has")[0] for each in settings.problems] == [f"{file}:15: themes.faint: key #16181d"]
    async with opened(frozen, 120, 36, settings=settings) as stage:
        cells = [cell for line in painted(stage) for cell in line]
        assert {SOLAR["ground"], SOLAR["need"], SOLAR["bad"]} <= {ground(cell) for cell in cells}
        texts = {cell.style.color.triplet.hex for cell in cells if cell.style and cell.style.color and cell.text.strip()
                 if cell.style.color.triplet}  # fmt: skip
        assert texts >= {SOLAR[role] for role in ("text", "dim", "trace", "key", "good", "info")}
        assert not texts & {each for each in (DARK.foreground, DARK.primary, DARK.success, DARK.warning) if each}
        await stage.press(":")
        await stage.write("theme")
        await stage.sees("theme catppuccin-macchiato")
        await stage.sees("theme solar")
        assert "theme faint" not in stage.all
        await stage.press("escape")
        await stage.press("T")
        assert stage.app.theme == "crewboard-dark"
        await stage.press(":")
        await stage.write("solar")
        await stage.sees("theme solar")
        await stage.until(lambda: all(each.is_finished for each in stage.app.workers), "the end of the search")
        await stage.press("enter")
        await stage.sees("solar colours")
        assert stage.app.theme == "crewboard-solar"
    assert (tmp_path / "crewboard" / "theme").read_text() == "solar\n"


async def test_the_themes_turn_and_the_last_is_remembered(
    frozen: Frozen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    async with opened(frozen, settings=Settings.read({})) as stage:
        shown = [stage.app.theme]
        for _ in THEMES:
            await stage.press("T")
            shown.append(stage.app.theme)
        assert shown == [*(each.name for each in THEMES.values()), "crewboard-dark"]
        await stage.press("T", "T")
    assert Settings.read({}).theme == "contrast"
    assert Settings.read({"CREWBOARD_THEME": "light"}).theme == "light"


@pytest.mark.long
async def test_the_key_says_which_colours_these_are(frozen: Frozen) -> None:
    async with opened(frozen) as stage:
        await stage.press("T")
        await stage.sees("light colours")
        await stage.press("T")
        await stage.sees(" contrast colours")


@pytest.mark.long
async def test_without_colours_the_key_says_so_and_the_theme_is_kept(
    frozen: Frozen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    Settings.read({}).remember("light")
    monkeypatch.setenv("NO_COLOR", "1")
    async with opened(frozen, settings=Settings.read({})) as stage:
        await stage.press("T")
        await stage.sees("no colours here: NO_COLOR is set")
        assert stage.app.theme == "crewboard-light"
    assert Settings.read({}).theme == "light"


@pytest.mark.long
async def test_a_theme_that_cannot_be_remembered_is_shown_all_the_same(frozen: Frozen, tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file where a folder should be")
    async with opened(frozen, settings=Settings(remembers=tmp_path / "state" / "crewboard" / "theme")) as stage:
        await stage.press("T")
        await stage.sees("light colours, but only for now")
        assert stage.app.theme == "crewboard-light"


def test_a_theme_that_is_none_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    found = Settings.read({"CREWBOARD_THEME": "pink"})
    assert found.problems == (f"CREWBOARD_THEME=pink is invalid; use one of {', '.join(THEMES)}",)
    (tmp_path / "crewboard").mkdir()
    (tmp_path / "crewboard" / "theme").write_bytes(b"\xff\xfe")
    assert Settings.read({}).theme == "dark"


async def test_reduced_motion_has_no_caret_and_waits_for_the_tick(
    frozen: Frozen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dashboard, "TICK", 3600.0)
    calm = Settings.read({"CREWBOARD_REDUCED_MOTION": "1"})
    async with opened(frozen, 80, 24, settings=calm) as stage:
        await stage.press("j", "j", "j", "j", "j")
        await stage.sees("alias for one release")
        assert "and▌" not in stage.all
        with frozen.directory.agent("api").live.open("a") as live:
            live.write("say so in the docs.")

        def reply() -> str:
            return (stage.app.context.snapshot.get(WorkOf("api")) or Work()).live

        await stage.until(lambda: "docs." in reply(), "the reading")
        assert "docs." not in stage.all
        stage.app._tick()
        await stage.sees("docs.")


@pytest.mark.long
async def test_nothing_blinks_in_the_palette_either(frozen: Frozen) -> None:
    async with opened(frozen) as stage:
        await stage.press(":")
        await stage.until(lambda: isinstance(stage.app.focused, Input), "the palette's line")
        line = stage.app.focused
        assert isinstance(line, Input)
        await stage.until(lambda: line.cursor_blink is False, "a cursor that stands")


@pytest.mark.long
async def test_no_color_means_none(frozen: Frozen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    patch = "--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-if 'old': 1\n+if 'new': 2"
    frozen.asks("perm-1", "permission", "release", 22, {"tool": "edit_file", "diff": patch})
    async with opened(frozen) as stage:
        await stage.sees("flaky-hunt")
        await stage.app.open_need("permission:release:perm-1")
        await stage.sees("+if 'new': 2")
        colours = {
            (segment.style.color, segment.style.bgcolor)
            for line in stage.app.screen._compositor.render_strips(stage.app.size)
            for segment in line
            if segment.style
        }
        assert {str(colour and colour.name) for pair in colours for colour in pair} == {"default"}
