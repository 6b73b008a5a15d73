"""`?`: what the keys do that work on the screen behind, and what the glyphs of states mean."""

from collections.abc import Sequence
from itertools import accumulate, chain
from typing import Any

from textual.app import ComposeResult
from textual.screen import ModalScreen, Screen

from crewboard.readmodel.team import describe_runner
from crewboard_tui.keymap.bindings import GROUPS, Pressed, bindings_of, palette_commands
from crewboard_tui.render.formats import format_path, format_places
from crewboard_tui.render.lines import Line, Span, hang, say, side_by_side
from crewboard_tui.render.looks import LOOKS, SEEN_DEATH
from crewboard_tui.views.base import WIDE, BaseScreen
from crewboard_tui.widgets.bars import away_for, working_keys
from crewboard_tui.widgets.line_view import LineView

_WORDS = {
    "dead": "killed or crashed, until you acknowledge it",
    "ask": "waits for your answer",
    "stuck": "no progress past its deadline",
    "limit": "ended by its budget or turn limit, until you acknowledge it",
    "loop": "the same call with the same outcome, again and again",
    "run": "at work",
    "wait": "waits for something that is not you",
    "pause": "held by you",
    "idle": "no work",
    "done": "ended in order",
    "died": "killed or crashed, and acknowledged by you",
    "start": "coming up",
    "unknown": "no telemetry, or facts that disagree",
}


_INDENT = 16
"""Cells for the keys, before their help."""

_FRAME = 7
"""Cells of the screen that are not for lines: the margin of the dialog, its padding, the scrollbar."""

_MOST = 4
"""The most lines for one key."""

_GAP = 2
"""Cells between two columns."""


class HelpScreen(ModalScreen[None]):
    """The keys that work on the screen behind it, by scope."""

    CSS_PATH = "dialogs.tcss"
    BINDINGS = [*bindings_of("help")]

    def __init__(self, behind: Screen[Any], pressed: Pressed) -> None:
        super().__init__()
        self._behind = behind
        self._parts = help_parts(behind)
        self._log = LineView(id="help", classes="dialog", follows=False)
        self._foot = f"{pressed('log.down')} {pressed('log.up')} move · {pressed('help.leave')} back"

    def compose(self) -> ComposeResult:
        self._log.rule.entitle("Keys that work here", self._foot)
        yield self._log

    def on_mount(self) -> None:
        # How wide a line may be is known once it is laid out; a key that is pressed before that finds lines.
        self._paint(self.app.size.width - _FRAME)
        if isinstance(self._behind, BaseScreen):
            self._behind.paint_keys_of(self)

    def on_resize(self) -> None:
        self.call_after_refresh(lambda: self._paint(self._log.line_width))

    def _paint(self, width: int) -> None:
        self._log.show(lay_out(self._parts, width))


def lay_out(parts: Sequence[Sequence[Line]], width: int) -> list[Line]:
    """Return the parts below each other, and on a wide terminal in two columns of about the same height."""
    across = (width - _GAP) // 2 if width >= WIDE - _FRAME else width
    broken = [[row for line in part for row in hang(line, across, _INDENT, _MOST)] + [()] for part in parts]
    if across == width:
        return [row for part in broken for row in part][:-1]
    heights = list(accumulate(map(len, broken), initial=0))
    split = min(range(len(heights)), key=lambda at: max(heights[at], heights[-1] - heights[at]))
    left, right = (list(chain.from_iterable(each)) for each in (broken[:split], broken[split:]))
    return side_by_side(left, right, across + _GAP)


def help_parts(screen: Screen[Any]) -> list[list[Line]]:
    """Return, in parts: the help of the keys that work on `screen`, by scope, the states, and facts about the team."""
    working = working_keys(screen)
    working += [(key, f":{key.label}") for key in palette_commands() if screen.app.check_action(key.action, ())]
    parts: list[list[Line]] = []
    for heading, scopes in GROUPS.items():
        here = [(key, pressed) for key, pressed in working if key.scope in scopes]
        if here:
            keys = [(Span(f"  {pressed:<14}", "key"), Span(key.says)) for key, pressed in here]
            parts.append([(Span(heading, "bold"),), *keys])
    states = [
        (Span(f"  {look.glyph} {look.word:<12}", look.tone), Span(_WORDS[look.word]))
        for look in (*LOOKS.values(), SEEN_DEATH)
    ]
    parts.append([(Span("States", "bold"),), *states])
    if isinstance(screen, BaseScreen):
        snapshot, view = screen.context.snapshot, screen.context.view
        facts = (
            ("folder", format_path(view.root)),
            ("runs", describe_runner(view, away_for(snapshot))),
            ("damaged", format_places(view.damage) if view.damage else ""),
        )
        about = [(Span(f"  {name:<14}", "dim"), say(text)) for name, text in facts if text]
        parts.append([(Span("Team", "bold"),), *about])
    return parts
