"""Record the demo in a real terminal: `screenshots/demo.svg`, a picture that moves, and its cast.

Agents, processes and files are those of the demo, so each run differs a little. The cast has the format of asciinema,
version 2 (https://docs.asciinema.org/manual/asciicast/v2/).
"""

import html
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from pathlib import Path

import pexpect
from pyte import ByteStream
from pyte.screens import Char

from tests.terminal.screen import Screen

HERE = Path(__file__).parent.parent / "screenshots"
COLUMNS, LINES = 100, 28

_LONGEST_REST = 1.6
"""Seconds for which a screen stands still in the recording, however long it did."""

_LAST = 4.0
"""Seconds for which the last screen stands."""

_QUIET = 0.08
"""Seconds without output after which a screen is whole."""

_TIMEOUT = 120.0

_LAPSE, _LAPSE_STEP = 10, 0.4
"""How much faster work is shown that needs no key, and from screen to screen of it the seconds in the recording."""

_DEMO = """\
from unittest import mock
from crewboard_tui.cli import main

with mock.patch("crewboard.unix.process.runs_as_root", return_value=False):
    main()
"""
"""The demo of an ordinary user, also if root records it."""

_CELL, _ROW, _MARGIN = 8.4, 19, 14
_FONT = "ui-monospace, 'Cascadia Mono', 'DejaVu Sans Mono', Menlo, Consolas, monospace"
_GROUND, _TEXT = "#16181d", "#d3d7de"


@dataclass
class Recording:
    """The output of a terminal, and its whole screens, each with its time in seconds since the start."""

    printed: list[tuple[float, str]] = field(default_factory=list)
    screens: list[tuple[float, tuple[str, ...]]] = field(default_factory=list)
    """A screen is a line of SVG for each row."""


class Recorder:
    """Runs the demo, presses keys, and notes each screen that it painted."""

    def __init__(self, scratch: str) -> None:
        self.recording = Recording()
        self._pressed = ""
        self._screen = Screen(COLUMNS, LINES)
        self._stream = ByteStream(self._screen)
        self._now = 0.0
        """Seconds of the recording so far."""
        self._read_at = time.monotonic()
        self._lapses = False
        home = Path(scratch) / "home"
        home.mkdir()
        variables = {
            "HOME": str(home), "PATH": os.environ["PATH"], "TMPDIR": scratch, "TERM": "xterm-256color",
            "COLORTERM": "truecolor", "LANG": "C.UTF-8",
        }  # fmt: skip
        self._child = pexpect.spawn(
            sys.executable, ["-c", _DEMO, "demo"], env=variables, cwd=scratch,
            dimensions=(LINES, COLUMNS),
        )  # fmt: skip

    def sees(self, words: str) -> None:
        """Go on until `words` are on a whole screen."""
        end = time.monotonic() + _TIMEOUT
        while words not in "\n".join(self._screen.display):
            if time.monotonic() > end:
                raise AssertionError("\n".join(["not on the screen: " + words, *self._screen.display]))
            self._read()
        self.rests(_QUIET)

    def lapses(self, words: str) -> None:
        """Go on until `words` are on the screen, and show the time until then shortened."""
        self._lapses = True
        self.sees(words)
        self._lapses = False

    def rests(self, seconds: float) -> None:
        """Go on for so many seconds."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._read()

    def press(self, keys: str) -> None:
        """Press keys, and show them below the screen."""
        self._pressed = {"\r": "⏎"}.get(keys, keys)
        self._child.send(keys)

    def ends(self) -> None:
        """Leave the demo, and wait for its end."""
        self._child.send("q")
        self._child.expect(pexpect.EOF, timeout=_TIMEOUT)
        self._child.close()

    def _read(self) -> None:
        before, self._read_at = self._read_at, time.monotonic()
        self._now += (self._read_at - before) / (_LAPSE if self._lapses else 1)
        try:
            data = self._child.read_nonblocking(65_536, timeout=_QUIET)
        except pexpect.TIMEOUT:
            self._note_screen()
            return
        self.recording.printed.append((self._now, data.decode("utf-8", "replace")))
        self._stream.feed(data)

    def _note_screen(self) -> None:
        screens = self.recording.screens
        if self._lapses and screens and self._now - screens[-1][0] < _LAPSE_STEP:
            return
        rows = tuple(_draw_row([self._screen.buffer[y][x] for x in range(COLUMNS)]) for y in range(LINES))
        rows += ("", _draw_key(self._pressed))
        if not screens or screens[-1][1] != rows:
            screens.append((self._now, rows))


def _draw_row(row: list[Char]) -> str:
    """Return a row of cells as SVG, its upper left corner at the origin."""
    drawn, column = [], 0
    for style, cells in groupby(row, lambda cell: cell._replace(data="")):
        text = "".join(cell.data for cell in cells)
        # The second cell of a wide character is empty.
        x, width = column * _CELL, len(text) * _CELL
        column += len(text)
        fore, back = _colour(style.fg, _TEXT), _colour(style.bg, _GROUND)
        if style.reverse:
            fore, back = back, fore
        if back != _GROUND:
            drawn.append(f'<rect x="{x:.1f}" width="{width:.1f}" height="{_ROW}" fill="{back}"/>')
        if text.strip():
            faces = (("b", style.bold), ("i", style.italics), ("u", style.underscore))
            named = " ".join(name for name, has in faces if has)
            drawn.append(
                f'<text x="{x:.1f}" y="14" fill="{fore}" textLength="{width:.1f}"'
                f"{f' class={named!r}' if named else ''}>{html.escape(text)}</text>"
            )
    return "".join(drawn)


def _draw_key(keys: str) -> str:
    """Return pressed keys as the cap of a key."""
    if not keys:
        return ""
    cap = f'<rect width="34" height="{_ROW + 3}" rx="4" fill="#414752"/>'
    return f'{cap}<text class="b" x="13" y="16" fill="{_TEXT}">{keys}</text>'


def _colour(name: str, default: str) -> str:
    return default if name == "default" else f"#{name}" if len(name) == 6 else name


def animate(screens: list[tuple[float, tuple[str, ...]]]) -> str:
    """Return screens as one SVG, which shows each for its time and then begins again. Equal rows are drawn once."""
    lasts = [min(after - at, _LONGEST_REST) for (at, _), (after, _) in pairwise(screens)] + [_LAST]
    total, rows, frames, start = sum(lasts), dict[str, int](), [], 0.0
    for number, (last, (_, screen)) in enumerate(zip(lasts, screens, strict=True)):
        used = "".join(
            f'<use href="#r{rows.setdefault(row, len(rows))}" y="{y * _ROW}"/>' for y, row in enumerate(screen) if row
        )
        shown, gone = 100 * start / total, 100 * (start + last) / total
        frames.append((number, used, shown, gone))
        start += last
    width, height = COLUMNS * _CELL + 2 * _MARGIN, (LINES + 2) * _ROW + 2 * _MARGIN
    return "\n".join(_write(rows, frames, total, width, height)) + "\n"


def _write(
    rows: dict[str, int], frames: list[tuple[int, str, float, float]], total: float, width: float, height: float
) -> Iterator[str]:
    yield f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" width="{width:.0f}">'
    yield "<title>The demo of crewboard, recorded in a terminal</title>"
    yield f"<style>text{{font:14px {_FONT};white-space:pre}}.b{{font-weight:bold}}.i{{font-style:italic}}"
    yield ".u{text-decoration:underline}.f{visibility:hidden;animation-timing-function:step-end;"
    yield f"animation-duration:{total:.2f}s;animation-iteration-count:infinite}}"
    for number, _, shown, gone in frames:
        before = "" if number == 0 else "0%{visibility:hidden}"
        yield f"@keyframes k{number}{{{before}{shown:.3f}%{{visibility:visible}}{gone:.3f}%{{visibility:hidden}}}}"
    # Readers who want no motion see the last screen.
    yield "@media (prefers-reduced-motion){.f{animation:none!important}.f:last-child{visibility:visible}}</style>"
    yield f'<rect width="100%" height="100%" rx="8" fill="{_GROUND}"/><defs>'
    yield from (f'<g id="r{number}">{row}</g>' for row, number in rows.items() if row)
    yield f'</defs><g transform="translate({_MARGIN} {_MARGIN})">'
    yield from (f'<g class="f" style="animation-name:k{number}">{used}</g>' for number, used, _, _ in frames)
    yield "</g></svg>"


def cast(printed: list[tuple[float, str]]) -> str:
    """Return what was printed as a cast of asciinema, with rests of at most `_LONGEST_REST`."""
    header = {
        "version": 2, "width": COLUMNS, "height": LINES, "idle_time_limit": _LONGEST_REST,
        "title": "crewboard demo", "env": {"TERM": "xterm-256color"},
    }  # fmt: skip
    lines = (json.dumps([round(at, 3), "o", text], ensure_ascii=False) for at, text in printed)
    return "\n".join([json.dumps(header), *lines]) + "\n"


STEPS = (
    ("!", "courier · why"),
    ("r", "courier is up again"),
    ("!", "Needs-you › fixer › PLAN"),
    ("G", "Commands it names"),
    ("a", "approved: fixer continues"),
    ("!", "Needs-you › reviewer › QUESTION"),
    ("j", "⏎ answer"),
    ("\r", "answered: reviewer continues"),
    ("1", "Peek"),
)
"""The words of the README for the first minute: keys, and words that are on the screen behind them."""


def play(recorder: Recorder) -> None:
    """Do each step when the one before was read."""
    recorder.sees("killed by SIGKILL")
    recorder.rests(2 * _LONGEST_REST)
    for keys, words in STEPS:
        if keys == "!":
            # What the key opens has to be the first.
            recorder.sees("asks:" if "QUESTION" in words else "plan:" if "PLAN" in words else "killed by SIGKILL")
        recorder.press(keys)
        recorder.sees(words)
        recorder.rests(_LONGEST_REST)
    recorder.lapses("That is all")
    recorder.rests(2 * _LONGEST_REST)


def main() -> None:
    """Write both files."""
    with tempfile.TemporaryDirectory() as scratch:
        recorder = Recorder(scratch)
        try:
            play(recorder)
        finally:
            recorder.ends()
    for name, text in (
        ("demo.svg", animate(recorder.recording.screens)),
        ("demo.cast", cast(recorder.recording.printed)),
    ):
        path = HERE / name
        path.write_text(text)
        sys.stdout.write(f"{path}\n")


if __name__ == "__main__":
    main()
