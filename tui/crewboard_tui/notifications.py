"""Notify the user outside the screen: by the terminal's title, and by a bell or a notification for a new need."""

import os
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from time import monotonic
from typing import Literal

from msgspec import Struct

from crewboard import Need, TeamView
from crewboard_tui.render.lines import clip, one_line
from crewboard_tui.render.looks import NEED_LOOKS, to_ascii

Notify = Literal["off", "bell", "desktop"]

WAYS: tuple[Notify, ...] = ("off", "bell", "desktop")
"""The ways to report a new need, the quietest first."""

APART = 5.0
"""Seconds between two bells or notifications; needs that come in between are reported together."""

BELL = "\a"
_SAVE_TITLE, _RESTORE_TITLE = "\x1b[22;2t", "\x1b[23;2t"
_MOST = 120


def waiting(view: TeamView) -> str:
    """Return the number of needs by their glyphs: `✖1 ▲2`; empty if there are none."""
    counts = Counter(NEED_LOOKS[need.kind].glyph for need in view.needs)
    glyphs = dict.fromkeys(look.glyph for look in NEED_LOOKS.values())
    return " ".join(f"{glyph}{counts[glyph]}" for glyph in glyphs if counts[glyph])


def title_of(view: TeamView) -> str:
    """Return the window's title: `✖1 ▲2 · demo · crewboard`."""
    return one_line(" · ".join(part for part in (waiting(view), view.name, "crewboard") if part))


def set_title(title: str) -> str:
    """Return the sequence that names the window (OSC 2); `title` must be safe."""
    return f"\x1b]2;{title}\x1b\\"


def notification(text: str, environment: Mapping[str, str]) -> str:
    """Return the sequence by which the terminal notifies the desktop, also through ssh and tmux.

    It is OSC 777 in terminals based on VTE and in rxvt, OSC 9 in others. Terminals that know both would notify twice.
    """
    text = clip(one_line(text).replace(";", ","), _MOST)
    speaks_777 = "VTE_VERSION" in environment or environment.get("TERM", "").startswith("rxvt")
    sequence = f"\x1b]777;notify;crewboard;{text}\x1b\\" if speaks_777 else f"\x1b]9;{text}\x1b\\"
    return "\x1bPtmux;" + sequence.replace("\x1b", "\x1b\x1b") + "\x1b\\" if "TMUX" in environment else sequence


class TerminalNotifications:
    """Updates the terminal's title, and reports needs that appear after the start. `write` writes to the terminal."""

    def __init__(
        self,
        write: Callable[[str], None],
        *,
        notify: Notify = "off",
        ascii_only: bool = False,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.notify: Notify = notify
        self._write = write
        self._ascii = ascii_only
        self._clock = clock
        self._arrivals: NeedsDiff | None = None
        self._untold: list[Need] = []
        self._told_at = float("-inf")
        self._title = ""

    def read(self, view: TeamView) -> None:
        """Compare the needs with those of the last read, and report new ones."""
        title = self._spelled(title_of(view))
        if title != self._title:
            self._write(("" if self._title else _SAVE_TITLE) + set_title(title))
            self._title = title
        if self._arrivals is None:
            self._arrivals = NeedsDiff()
            self._arrivals.read(view)
        self._untold += self._arrivals.read(view).came
        waiting_now = {identity(need): need for need in view.needs}
        self._untold = [waiting_now[each] for need in self._untold if (each := identity(need)) in waiting_now]
        self.tick()

    def turn(self, view: TeamView) -> None:
        """Switch to another team; its present needs are not reported as new."""
        self._arrivals, self._untold = None, []
        self.read(view)

    def tick(self) -> None:
        """Report the new needs of the last `APART` seconds together, unless there was a report within them."""
        if not self._untold or self._clock() - self._told_at < APART:
            return
        first, *others = self._untold
        self._untold, self._told_at = [], self._clock()
        more = f" (+{len(others)} more)" if others else ""
        if self.notify == "bell":
            self._write(BELL)
        elif self.notify == "desktop":
            self._write(notification(self._spelled(f"{first.agent} {first.summary}{more}"), os.environ))

    def restore(self) -> None:
        """Restore the former title of the window; it is empty where the terminal has not stored it."""
        if self._title:
            self._write(set_title("") + _RESTORE_TITLE)
            self._title = ""

    def _spelled(self, text: str) -> str:
        return to_ascii(text) if self._ascii else text


class News(Struct, frozen=True):
    """The needs that appeared and those that disappeared since the last read."""

    came: tuple[Need, ...]
    went: tuple[Need, ...]


class NeedsDiff:
    """Compares successive readings. A second death is a new need; an agent that stays stuck or looping is one need."""

    def __init__(self) -> None:
        self._known: dict[Hashable, Need] = {}

    def read(self, view: TeamView) -> News:
        """Return the needs that appeared and disappeared since the last call; the first call returns all as new."""
        before, self._known = self._known, {identity(need): need for need in view.needs}
        return News(
            came=tuple(need for each, need in self._known.items() if each not in before),
            went=tuple(need for each, need in before.items() if each not in self._known),
        )


def identity(need: Need) -> Hashable:
    """Return a value that is the same for a need while its words change."""
    return need.key, need.since if need.kind == "death" else None
