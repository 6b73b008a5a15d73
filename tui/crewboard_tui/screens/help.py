"""`?`: what the keys of this pane do, and what the shapes mean."""

from typing import Any

from textual.app import ComposeResult
from textual.content import Content
from textual.screen import ModalScreen, Screen

from crewboard_tui import keys
from crewboard_tui.lines import Line, Span
from crewboard_tui.states import LOOKS
from crewboard_tui.widgets.key_line import working_keys
from crewboard_tui.widgets.log import Log

_WORDS = {
    "dead": "killed or crashed, until you acknowledge it",
    "ask": "waits for your answer",
    "stuck": "no progress past its deadline",
    "loop": "the same call with the same outcome, again and again",
    "run": "at work",
    "wait": "waits for something that is not you",
    "pause": "held by you",
    "idle": "no work",
    "done": "ended in order",
    "start": "coming up",
    "unknown": "no telemetry, or facts that disagree",
}


class HelpScreen(ModalScreen[None]):
    """The keys that work on the screen behind it, by scope."""

    BINDINGS = [*keys.bindings("help")]

    def __init__(self, behind: Screen[Any]) -> None:
        super().__init__()
        self._lines = help_lines(behind)

    def compose(self) -> ComposeResult:
        log = Log(id="help", classes="pane", follow=False, follows=False)
        log.border_title = Content("Keys that work here")
        log.border_subtitle = Content("j k move · Esc back")
        yield log

    def on_mount(self) -> None:
        self.query_one(Log).show(self._lines)


def help_lines(screen: Screen[Any]) -> list[Line]:
    """What the keys that work on `screen` do, and the legend of the states."""
    working = working_keys(screen)
    working += [(key, f":{key.label}") for key in keys.commands() if screen.app.check_action(key.action, ())]
    lines: list[Line] = []
    for title, scopes in keys.GROUPS.items():
        here = [(key, pressed) for key, pressed in working if key.scope in scopes]
        if here:
            lines += [(Span(title, "bold"),)]
            lines += [(Span(f"  {pressed:<14}", "key"), Span(key.says)) for key, pressed in here]
            lines.append(())
    lines.append((Span("States", "bold"),))
    for state, look in LOOKS.items():
        lines.append((Span(f"  {look.glyph} {look.word:<12}", look.tone), Span(_WORDS[state])))
    return lines
