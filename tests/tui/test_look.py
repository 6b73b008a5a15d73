"""The parts of pictures: few cells of frames, one cursor, few filled things and keys. Read from painted screens."""

import re
from itertools import groupby

import pytest
from rich.segment import Segment
from textual.color import Color
from textual.geometry import Size

from crewboard_tui.render.lines import Span, plain, rule_line
from crewboard_tui.settings import Settings
from crewboard_tui.views.roster import Roster
from crewboard_tui.widgets.bars import StaticLines
from crewboard_tui.widgets.line_list import LineList
from tests.frozen import Frozen
from tests.matrix import default
from tests.tui.stage import Stage, opened

RULES = frozenset("─━│┯╌")
PAGES = ("1", "2", "3", "4", "5", "6", "7", "8", "9", "H", "1 j j j j j enter", "1 !", "! !", "! ! !", "n")
"""The keys that lead to a view or a page, each from where the one before led to."""


def painted(stage: Stage) -> list[list[Segment]]:
    """Return the lines of the screen, cell by cell."""
    size = Size(*stage.app.size)
    lines = stage.app.screen._compositor.render_strips(size)
    return [[Segment(cell, each.style) for each in line for cell in each.text] for line in lines]


def ground(cell: Segment) -> str:
    """Return the colour behind a cell."""
    found = cell.style.bgcolor if cell.style is not None else None
    return "" if found is None or found.triplet is None else found.triplet.hex


def filled(stage: Stage) -> list[str]:
    """Return the texts that stand on a ground of their own: not the screen's, and not that of a bar or the cursor."""
    colours = stage.app.theme_variables
    plain = {Color.parse(colours[name]).hex.lower() for name in ("background", "panel", "surface", "cursor-row")}
    runs = (groupby(line, ground) for line in painted(stage))
    return ["".join(cell.text for cell in cells).strip() for line in runs for colour, cells in line
            if colour and colour not in plain]  # fmt: skip


def cursors(stage: Stage) -> list[str]:
    """Return the rows that begin with the sign of the cursor, on its ground."""
    tint = Color.parse(stage.app.theme_variables["cursor-row"]).hex.lower()
    return [
        "".join(cell.text for cell in line)
        for line in painted(stage)
        if any(cell.text == "▌" and ground(cell) == tint for cell in line)
    ]


def keys_in_footer(stage: Stage) -> set[str]:
    """Return the keys of the lowest line, each of which a click presses."""
    metas = (cell.style.meta for cell in painted(stage)[-1] if cell.style is not None)
    return {str(meta["key"]) for meta in metas if meta.get("key")}


_TROUBLE = re.compile(r"✖|▲|◆|↻|\bdied|\bdead|killed|orphaned|\bask|(?<!-)\bplan\b|stuck|no progress|loop|same outcome")
"""How places tell that an agent needs the user."""


def tellings(stage: Stage, agent: str) -> list[str]:
    """Return the texts of the places that name an agent and why it needs the user: rows of lists, and other panes.

    What the Board shows of the selected agent beside or below the roster is one place.
    """
    lines, places = stage.text, dict[str, str]()
    for widget in stage.app.screen.query("#heading, #alert, #agent-facts, .pane"):
        region = widget.region
        cut = [line[region.x : region.right] for line in lines[region.y : region.bottom]] if widget.display else []
        if isinstance(widget, LineList):
            places |= {f"{widget.id} {at}": line for at, line in enumerate(cut)}
        else:
            above = next((each.id for each in widget.ancestors if each.id == "detail"), widget.id)
            places[str(above)] = "\n".join([places.get(str(above), ""), *cut])
    return [text for text in places.values() if re.search(rf"\b{agent}\b", text) and _TROUBLE.search(text)]


def without_lanes(stage: Stage) -> list[str]:
    """Return the lines of the screen without the lanes of agents, in which `─` is no frame."""
    region, lines = stage.app.screen.query_one(Roster).region, list(stage.text)
    found = re.search(r"\b([468]) min\b", lines[region.y])
    assert found is not None, "the head of the lanes"
    lane = slice(found.start(), found.start() + 2 * int(found[1]))
    return [
        line[: lane.start] + line[lane.stop :] if region.y < at < region.bottom else line
        for at, line in enumerate(lines)
    ]


@pytest.mark.parametrize("size", default([(80, 24), (120, 36), (120, 40), (170, 50), (200, 60)], (80, 24), (120, 36)))
async def test_a_twentieth_of_the_board_is_frames_at_most(frozen: Frozen, size: tuple[int, int]) -> None:
    width, height = size
    async with opened(frozen, width, height) as stage:
        await stage.settles()
        lines = sum(character in RULES for line in without_lanes(stage) for character in line)
        assert 0 < lines <= 0.05 * width * height


@pytest.mark.long
@pytest.mark.parametrize("width", default([60, 80, 120], 80))
async def test_the_tabs_mark_which_view_is_open(frozen: Frozen, width: int) -> None:
    names = ["Board", "Inbox", "Tasks", "Needs", "Procs", "Feed", "Cost", "Changes", "Rules", "Hosts"]
    async with opened(frozen, width, 24) as stage:
        for key, name in zip("123456789H", names, strict=True):
            await stage.press(key)
            await stage.until(lambda name=name: f" {name}" in stage.text[1], name)  # type: ignore[misc]
            spans = [span for line in stage.app.screen.query_one("#heading", StaticLines).lines for span in line]
            here = "".join(span.text for span in spans if span.tone == "tab")
            assert here.startswith(f"{key} {name}")
            assert len(stage.text[1]) <= width
            await stage.press(*(("escape",) if name in ("Rules", "Hosts") else ()))


_SIZES = [(80, 24), (120, 36), (170, 50), (40, 10), (60, 20), (100, 30), (120, 40), (200, 60)]


# What is written is the same in all themes, so one size shows it for the other two.
@pytest.mark.long
@pytest.mark.parametrize(
    ("size", "theme"),
    [
        *((size, "dark") for size in _SIZES[:3]),
        *(pytest.param(size, "dark", marks=pytest.mark.long) for size in _SIZES[3:]),
        *(pytest.param((120, 36), theme, marks=pytest.mark.long) for theme in ("light", "contrast")),
    ],
)
async def test_a_need_is_told_three_times_at_most(frozen: Frozen, size: tuple[int, int], theme: str) -> None:
    frozen.mail(90, "reviewer", "lead", "result", "Looks fine.", 20)
    async with opened(frozen, *size, settings=Settings(theme=theme)) as stage:
        for keys in ("1", "j", "1 tab tab tab", *PAGES):
            await stage.press(*keys.split())
            await stage.settles()
            for need in stage.app.context.snapshot.view.needs:
                assert len(tellings(stage, need.agent)) <= 3, (keys, need.agent, tellings(stage, need.agent))
            await stage.press(*(("escape",) if keys == "n" else ()))


@pytest.mark.long
@pytest.mark.parametrize(
    ("key", "title"), [("?", "Keys that work here"), ("t", "Teams · 1"), (".", "parser"), (":", "Go or do")]
)
async def test_a_dialog_is_titled_and_padded_and_veils_the_rest(frozen: Frozen, key: str, title: str) -> None:
    async with opened(frozen, 120, 36) as stage:
        await stage.settles()
        bright = painted(stage)[0][1].style
        await stage.press(key)
        await stage.until(lambda: re.search(rf" {title} ━+", stage.all), "the title in a rule")
        await stage.until(lambda: re.search(r"Esc (back|stay)$", stage.text[-1]), "its own keys in the footer")
        assert "find" not in stage.text[-1]
        cells = painted(stage)
        assert bright is not None
        assert cells[0][1].text == "d"
        assert cells[0][1].style is not None
        assert cells[0][1].style.color != bright.color
        for box in stage.app.screen.query(".dialog"):
            region, lines = box.region, stage.text
            inside = [f"{line:<120}"[region.x : region.right] for line in lines[region.y + 1 : region.bottom]]
            assert {line[0] + line[-1] for line in inside} == {"  "}
            assert not inside[-1].strip()
            assert key == "." or abs(region.x - (120 - region.right)) <= 1


async def test_eleven_agents_fit_on_a_small_terminal(frozen: Frozen) -> None:
    for number in range(19):
        frozen.hire(f"more-{number}", "explore", "working", "reads", ago=9, pid=5000 + number)
    async with opened(frozen, 80, 24) as stage:
        await stage.settles()
        names = stage.app.context.snapshot.view.names
        rows = {line.split()[1] for line in stage.text[3:] if len(line.split()) > 2}
        assert len(rows.intersection(names)) >= 11


@pytest.mark.long
async def test_one_cursor_two_fills_and_eleven_keys_in_any_view(frozen: Frozen) -> None:
    async with opened(frozen, 170, 50) as stage:
        for keys in PAGES:
            await stage.press(*keys.split())
            await stage.settles()
            assert len(cursors(stage)) <= 1, keys
            assert len(keys_in_footer(stage)) <= 11, keys
            # A form marks what is selected in a field.
            fills = filled(stage)[:2] if keys == "n" else filled(stage)
            assert [each for each in fills if each != "a approve"] == ["✖ 1 dead", "▲ 2 ask"], keys
            await stage.press(*(("escape",) if keys == "n" else ()))


@pytest.mark.long
@pytest.mark.parametrize("size", [(80, 24), (120, 36)])
async def test_approve_is_filled_once_all_was_on_the_screen(frozen: Frozen, size: tuple[int, int]) -> None:
    frozen.asks("req-1", "plan_approval", "api", 10, {"plan": "\n".join(f"{each}. step" for each in range(1, 41))})
    async with opened(frozen, *size) as stage:
        await stage.app.open_need("plan:api:req-1")
        await stage.can("a", "approve")
        await stage.settles()
        assert "a approve" not in filled(stage)
        await stage.press("pagedown", "pagedown", "pagedown", "pagedown")
        await stage.sees("100% read")
        await stage.settles()
        assert filled(stage).count("a approve") == 1


@pytest.mark.long
@pytest.mark.parametrize("width", default([80, 100, 120, 170], 80, 120))
async def test_each_column_of_processes_has_its_head(frozen: Frozen, width: int) -> None:
    async with opened(frozen, width, 36) as stage:
        await stage.press("5")
        await stage.sees("━ Processes 9 ━")
        await stage.settles()
        rule = stage.text[_line_of(stage, "━ Processes 9 ━")]
        heads = re.findall(r"(?<=[━ ])[a-z]+(?: 2min)?(?= )", rule.partition("supervisor")[0])
        assert heads[:4] == ["pid", "run", "cpu", "cpu 2min"]
        assert ("sandbox" in heads, heads[-2:]) == (True, ["sandbox", "how"]) if width > 80 else "mem" in heads
        row = stage.text[_line_of(stage, "flaky-hunt")]
        # Numbers end where their heads end.
        for head, number in (("pid", "4402"), ("cpu", "98%"), ("mem", "310M")):
            assert row.index(number) + len(number) == rule.index(f" {head} ") + len(head) + 1
        # A filter is told beside them; where there is little room, only the footer tells the key that ends it.
        await stage.press("/", *"hunt", "enter")
        await stage.sees("Processes 9 ━━━━━━ pid run  cpu cpu 2min ", "filter hunt ", "Esc")
        assert ("filter hunt · Esc shows all" in stage.all) == (width >= 120)
        await stage.sees("Esc all")


def test_a_head_stands_apart_from_the_title() -> None:
    head = (Span("  FROM       MESSAGE SENT"),)

    def ruled(title: str, right: str = "") -> str:
        return plain(rule_line(title, right, head, 1, 60, is_focused=False))

    assert ruled("Inbox").startswith("── Inbox ──── message sent ──")
    assert ruled("Inbox · api!!").startswith("── Inbox · api!! ──── sent ──")
    assert ruled("Inbox · of the operator").startswith("── Inbox ──── message sent ──")
    assert ruled("Inbox · of the operator", "3 below").endswith("─ of the operator · 3 below ─")
    assert ruled("An inbox").startswith("── An inbox ─ message sent ──")
    assert ruled("An inbox!").startswith("── An inbox! ──────── sent ──")


@pytest.mark.parametrize("theme", default(["dark", "light", "contrast"], "dark"))
async def test_no_bar_is_empty(frozen: Frozen, theme: str) -> None:
    """Where the list tells every need, the line of the worst one goes with its ground."""
    async with opened(frozen, 80, 24, settings=Settings(theme=theme)) as stage:
        panel = Color.parse(stage.app.theme_variables["panel"]).hex.lower()
        for keys in ("4", "1", "4", "n"):
            await stage.press(*keys)
            await stage.settles()
            bars = [line for line in painted(stage) if {ground(line[0]), ground(line[-1])} == {panel}]
            assert all("".join(cell.text for cell in line).strip() for line in bars), keys
            assert len(bars) == (1 if keys == "4" else 2), keys


@pytest.mark.long
@pytest.mark.parametrize("width", [80, 120])
async def test_the_palette_shows_a_need_as_far_as_there_is_room(frozen: Frozen, width: int) -> None:
    async with opened(frozen, width, 24) as stage:
        await stage.press(":")
        await stage.sees(
            "parser died: killed by SIGKILL, last tool bash", "auth-plan plan: Rotate the JWT signing keys"
        )
        await stage.settles()
        rows = [line for line in stage.text if "needs you · " in line]
        assert len({line.index("needs you · ") for line in rows}) == 1
        assert "needs you · dead" in rows[0]


async def test_the_line_for_a_message_leaves_the_keys_to_the_footer(frozen: Frozen) -> None:
    async with opened(frozen, 120, 36) as stage:
        await stage.press("m")
        await stage.sees("^j new line", "to parser ›")
        await stage.settles()
        assert stage.all.count("^j new line") == 1


def _line_of(stage: Stage, words: str) -> int:
    return next(at for at, line in enumerate(stage.text) if words in line)


@pytest.mark.long
async def test_the_list_of_needs_is_as_high_as_its_rows(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.press("4")
        await stage.sees("parser · why")
        await stage.settles()
        assert _line_of(stage, "parser · why") == _line_of(stage, "flaky-hunt  bash") + 1
        # With many rows most of the screen is evidence all the same.
        for number in range(20):
            frozen.asks(f"req-{number}", "question", "api", 10, {"question": f"which {number}?"})
        await stage.sees("Needs you · 25")
        await stage.settles()
        assert _line_of(stage, "parser · why") <= 12
    async with opened(frozen, 160, 36) as stage:
        await stage.press("4")
        await stage.sees("parser · why")
        await stage.settles()
        assert _line_of(stage, "parser · why") == _line_of(stage, "Needs you · 25")


async def test_the_cursor_goes_with_the_focus(frozen: Frozen) -> None:
    async with opened(frozen, 120, 36) as stage:
        await stage.settles()
        assert ["parser" in row for row in cursors(stage)] == [True]
        await stage.press("tab", "tab", "tab")
        await stage.settles()
        assert ["#7 " in row for row in cursors(stage)] == [True]


async def test_an_empty_list_says_in_the_middle_which_key_helps(empty: Frozen) -> None:
    async with opened(empty, 80, 24) as stage:
        await stage.press("3")
        await stage.sees("as `fix the login`")
        await stage.settles()
        at = next(at for at, line in enumerate(stage.text) if "no tasks yet" in line)
        assert "A puts the first one on the board" in stage.text[at + 1]
        above = next(at for at, line in enumerate(stage.text) if "━ Tasks" in line)
        below = next(at for at, line in enumerate(stage.text) if "no agents yet" in line)
        assert abs((at - above) - (below - (at + 2))) <= 1
        for line in stage.text[at : at + 3]:
            left = len(line) - len(line.lstrip())
            assert abs(left - (79 - len(line.rstrip()))) <= 2


async def test_an_empty_list_has_no_cursor(empty: Frozen) -> None:
    async with opened(empty, 80, 24) as stage:
        await stage.press("3")
        await stage.sees("no tasks yet")
        assert cursors(stage) == []


@pytest.mark.parametrize("view", default(["3", "4", "5", "8", "9", "H"], "3"))
async def test_an_empty_list_has_no_empty_pane_below(empty: Frozen, view: str) -> None:
    async with opened(empty, 80, 24) as stage:
        await stage.press(view)
        await stage.until(lambda: "no agents" in stage.all and stage.text[2].startswith("━━"), "the view")
        await stage.settles()
        assert sum("──" in line or "━━" in line for line in stage.text) == 1
        # Its words stand in the middle of what is free.
        first = next(at for at, line in enumerate(stage.text[3:-2], 3) if line.strip())
        assert 8 <= first <= 13
        assert "0" not in stage.text[2]


@pytest.mark.long
async def test_costs_stand_below_the_tasks_at_once(frozen: Frozen) -> None:
    async with opened(frozen, 170, 50) as stage:
        await stage.sees("── Cost · $14.85/h", "tokens a minute")
        last = _line_of(stage, "#2   survey the repository")
        await stage.until(lambda: _line_of(stage, "── Cost · ") <= last + 3, "no lines free between them")
        await stage.press("tab", "tab", "z")
        await stage.sees_not("── Cost · ")


async def test_the_status_bar_says_that_only_plain_posix_is_used(
    frozen: Frozen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CREWBOARD_PLATFORM", "posix")
    async with opened(frozen, 80, 24) as stage:
        await stage.until(lambda: "POSIX" in stage.part("strip"), "the word in the status bar")
