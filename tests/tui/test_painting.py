"""Painting to the terminal: each change once, and nothing that looks the same."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import Any

import pyte
import pytest
from rich.console import Console, RenderableType
from rich.segment import Segment
from textual._compositor import ChopsUpdate, Compositor, LayoutUpdate
from textual._context import visible_screen_stack
from textual.app import App
from textual.css.stylesheet import Stylesheet
from textual.dom import DOMNode
from textual.screen import Screen
from textual.strip import Strip
from textual.timer import Timer

import crewboard_tui
from crewboard_tui.poller import KeysFirst
from crewboard_tui.render.lines import Span
from crewboard_tui.views.roster import Roster
from crewboard_tui.widgets.line_list import changed_cells
from crewboard_tui.widgets.painter import TouchedCompositor, _parts_seen, _without_cells_before
from tests.frozen import NOW, Frozen
from tests.tui.stage import Stage, opened

SIZE = (120, 36)


class Terminal:
    """A terminal that shows what a dashboard paints, and keeps what it showed after each paint."""

    def __init__(self) -> None:
        self.screen = pyte.Screen(*SIZE)
        self.shown: list[list[str]] = []
        self.unseen = 0
        """The number of pictures that were made and not shown."""
        self._stream = pyte.Stream(self.screen)

    def paint(self, update: RenderableType | None, stage: Stage) -> None:
        if isinstance(update, ChopsUpdate | LayoutUpdate):
            # In a terminal, the driver's line feed also returns to the first column.
            self._stream.feed(update.render_segments(stage.app.console).replace("\n", "\r\n"))
            self.shown.append(self.lines)

    def shows(self, words: str) -> bool:
        return any(words in line for line in self.lines)

    @property
    def lines(self) -> list[str]:
        return [line.rstrip() for line in self.screen.display]


@contextmanager
def painted(stage: Stage, patch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    """Paint the dashboard into a terminal, which tests otherwise leave out."""
    terminal = Terminal()

    def update(
        compositor: TouchedCompositor,
        full: bool = False,
        screen_stack: list[Screen[Any]] | None = None,
        simplify: bool = False,
    ) -> RenderableType | None:
        visible_screen_stack.set(screen_stack or [])
        whole = full or compositor.size.region in compositor._dirty_regions
        found = compositor.render_full_update(simplify=simplify) if whole else compositor.render_partial_update()
        if stage.app._batch_count:
            terminal.unseen += 1
        elif not full:
            terminal.paint(found, stage)
        return found

    patch.setattr(TouchedCompositor, "render_update", update)
    stage.app.screen.refresh()
    yield terminal


@pytest.mark.long
async def test_what_was_painted_in_parts_is_the_whole_screen(frozen: Frozen, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(frozen, *SIZE) as stage:
        with painted(stage, monkeypatch) as terminal:
            for key in ("j", "G", "tab", "z", "z", "3", "j", "1"):
                await stage.press(key)
                await stage.until(lambda: terminal.lines == stage.text, "the whole screen in the terminal")


@pytest.mark.long
async def test_no_paint_shows_the_work_of_another_agent(frozen: Frozen, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(frozen, *SIZE) as stage:
        with painted(stage, monkeypatch) as terminal:
            await stage.until(lambda: terminal.lines == stage.text, "the whole screen in the terminal")
            terminal.shown.clear()
            names = stage.app.screen.query_one(Roster).keys[1:]
            for name in names:
                stage._send("j")
                # Not with `press`: it paints at moments of its own.
                await stage.until(lambda name=name: terminal.shows(f"Peek · {name}"), "the peek")  # type: ignore[misc]
            for lines in terminal.shown:
                cursor = next(line for line in lines if line.startswith("▌"))
                assert any(f"Peek · {cursor.split()[1]}" in line for line in lines)


async def test_a_key_is_answered_before_the_team_is_read(frozen: Frozen, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []

    class Keys(KeysFirst):
        def note_key(self) -> None:
            told.append("key")

        def note_paint(self) -> None:
            told.append("paint")

        def note_outcome(self) -> None:
            told.append("outcome")

    monkeypatch.setattr("crewboard_tui.poller.KeysFirst", Keys)
    async with opened(frozen, *SIZE) as stage:
        await stage.press("j")
        await stage.until(lambda: "key" in told and told[-1] == "paint", "a key, and a paint after it")
        stage.app.context.do("trying", lambda: "tried")
        await stage.sees("tried")
        await stage.until(lambda: "paint" in told[told.index("outcome") :], "the outcome, and a paint after it")


@pytest.mark.long
@pytest.mark.parametrize("key", ["3", "6"])
async def test_a_view_is_painted_once_it_is_complete(frozen: Frozen, monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    set_timer = App.set_timer

    def without_delays(app: App[None], delay: float, *given: Any, **more: Any) -> Timer | None:
        return None if more.get("name") in ("switched", "delay_update") else set_timer(app, delay, *given, **more)

    monkeypatch.setattr(App, "set_timer", without_delays)
    async with opened(frozen, *SIZE) as stage:
        with painted(stage, monkeypatch) as terminal:
            # What a view has not read yet it cannot show: each was there before.
            await stage.press(key)
            await stage.settles()
            await stage.press("1")
            await stage.settles()
            await stage.until(lambda: terminal.lines == stage.text, "the Board in the terminal")
            terminal.unseen = 0
            for pressed in (key, "1", key, "1"):
                before = terminal.lines
                terminal.shown.clear()
                await stage.press(pressed)
                await stage.until(lambda: terminal.lines == stage.text, "the view in the terminal")
                for shown in terminal.shown:
                    assert _panes(shown) in (_panes(before), _panes(terminal.lines)), "a part of a view"
                    assert all(shown[-2:]), "a view without its keys"
            assert not terminal.unseen


def _panes(lines: list[str]) -> list[str]:
    """Return the first words of the titles of the panes."""
    return re.findall(r"[─━] (\S+)", "\n".join(lines))


async def test_the_first_picture_needs_the_styles_of_its_screen_alone(
    frozen: Frozen, monkeypatch: pytest.MonkeyPatch
) -> None:
    had: list[set[str]] = []
    read_all = Stylesheet.read_all

    def note(sheet: Stylesheet, paths: Sequence[PurePath]) -> None:
        had.append(_style_files(sheet))
        read_all(sheet, paths)

    monkeypatch.setattr(Stylesheet, "read_all", note)
    async with opened(frozen, *SIZE) as stage:
        await stage.until(lambda: len(had) > 1, "the styles of the other screens")
        at_start, at_first_picture = had
        assert not at_start
        assert at_first_picture == {"app.tcss", "board.tcss"}
        every = {path.name for path in Path(crewboard_tui.__path__[0]).rglob("*.tcss")}
        assert _style_files(stage.app.stylesheet) == every
        assert not stage.app.stylesheet._require_parse


async def test_the_first_picture_takes_one_layout(frozen: Frozen, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    for kind, name in (
        (Screen, "_refresh_layout"),
        (App, "get_css_variables"),
        (Stylesheet, "apply"),
        (App, "_display"),
    ):
        own = getattr(kind, name)

        def note(*args: Any, own: Callable[..., Any] = own, name: str = name, **kwargs: Any) -> object:
            done.append(name)
            return own(*args, **kwargs)

        monkeypatch.setattr(kind, name, note)
    async with opened(frozen, *SIZE, read_only=True):
        before = done[: done.index("_display")]
    assert before.count("_refresh_layout") == 1
    assert before.count("get_css_variables") == 1
    assert before.count("apply") <= 26


@pytest.mark.long
async def test_panes_that_show_nothing_are_made_when_first_shown(empty: Frozen) -> None:
    late = "#agent-facts, #board-needs, #board-pulse"
    empty.hire("ann", "code", "working", "thinking", ago=9, pid=4500)
    empty.said("ann", 5, "thought")
    async with opened(empty, 80, 24) as stage:
        await stage.sees("Peek · ann")
        await stage.settles()
        assert not stage.app.screen.query(late)
        await stage.pilot.resize_terminal(120, 40)
        await stage.until(lambda: stage.app.screen.size.height == 40, "the size")
        empty.task(30, "measure", "failed", owner="ann", updated_at=NOW - 5)
        await stage.sees("─ Also needs you · 1", "─ Pulse")
        await stage.settles()
        shown = stage.text
        made = [widget.id for widget in stage.app.screen.query(late)]
    async with opened(empty, 120, 40) as stage:
        await stage.sees("─ Also needs you · 1", "─ Pulse")
        await stage.settles()
        assert stage.text == shown
        assert [widget.id for widget in stage.app.screen.query(late)] == made
    assert sorted(map(str, made)) == ["agent-facts", "board-needs", "board-pulse"]


async def test_what_others_cover_is_not_painted(frozen: Frozen, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(frozen, *SIZE) as stage:
        for keys in ((), ("ctrl+p",)):
            await stage.press(*keys)
            await stage.settles()
            compositor = stage.app.screen._compositor
            own = [list(strip) for strip in compositor.render_strips()]
            with monkeypatch.context() as patch:
                patch.setattr(TouchedCompositor, "_get_renders", Compositor._get_renders)
                assert [list(strip) for strip in compositor.render_strips()] == own
        board = stage.app.screen_stack[0]._compositor
        seen = {widget.id for widget in _parts_seen([board.size.region], board.visible_widgets)}
        assert {"strip", "roster", "peek"} <= seen
        assert seen.isdisjoint({"body", "panes"})


def _style_files(sheet: Stylesheet) -> set[str]:
    return {name for path, _ in sheet.source if (name := Path(path).name).endswith(".tcss")}


@pytest.mark.long
async def test_an_answer_key_computes_few_styles(frozen: Frozen, monkeypatch: pytest.MonkeyPatch) -> None:
    computed, apply = list[object](), Stylesheet.apply

    def note(sheet: Stylesheet, node: DOMNode, **more: Any) -> None:
        computed.append(node)
        apply(sheet, node, **more)

    async with opened(frozen, *SIZE) as stage:
        await stage.press("exclamation_mark", "exclamation_mark")
        await stage.sees("PLAN v2")
        monkeypatch.setattr(Stylesheet, "apply", note)
        for key, words, most in (("d", "Why not?", 20), ("B", "Your question", 20), ("c", "LINE:TEXT", 38)):
            await stage.settles()
            computed.clear()
            await stage.press(key)
            await stage.sees(words)
            assert len(computed) <= most, key
            await stage.press("escape")


async def test_a_widget_keeps_the_painted_lines_of_three_screens(frozen: Frozen) -> None:
    async with opened(frozen, *SIZE) as stage:
        roster = stage.app.screen.query_one(Roster)
        painter, height = roster._painter, roster.size.height
        lines = [(Span(f"line {number}"),) for number in range(100 * height)]
        strips = [painter.strip(line, 80) for line in lines]
        assert len(painter._known) == 3 * height
        assert all(
            painter.strip(line, 80) is strip for line, strip in zip(lines[-height:], strips[-height:], strict=True)
        )


@pytest.mark.parametrize(
    ("before", "now", "cells"),
    [
        ("● api | 12s|  0%", "● api | 13s|  0%", (7, 11)),
        ("● api | 12s|  0%", "● api | 13s|  1%", (7, 15)),
        ("● 🔥 | 12s|", "● 🔥 | 13s|", None),
        ("● api | 12s|", "● api | 13s|more", None),
    ],
)
def test_only_the_cells_that_look_different_are_painted(before: str, now: str, cells: tuple[int, int] | None) -> None:
    lines = [tuple(Span(part) for part in text.split("|")) for text in (before, now)]
    found = changed_cells(*lines)
    assert found == (None if cells is None else (cells[0] - 1, cells[1] - 1))


def test_cells_before_the_touched_ones_are_not_sent() -> None:
    update = ChopsUpdate([{0: Strip([Segment("0123456789")])}], [(0, 4, 6)], [[10]])
    sent = _without_cells_before(update).render_segments(Console(color_system=None))
    assert sent.endswith("45")
    assert "3" not in sent.removeprefix("\x1b[1;5H")
