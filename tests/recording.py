"""Record the demo in a real terminal: `screenshots/demo.svg`, a picture that moves, and its cast.

Agents, processes and files are those of the demo, so each run differs a little. Both are made of its whole screens, so
that they are no longer if a busy machine paints these in parts, or waits. The cast has the format of asciinema, version
2 (https://docs.asciinema.org/manual/asciicast/v2/).
"""

import html
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import accumulate, groupby, pairwise
from pathlib import Path
from typing import NamedTuple

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


_RUNNING = re.compile(r" *\d[\d.,]* *")
"""A number, which counts seconds while nothing else happens, with the spaces that give way to another digit."""


class Run(NamedTuple):
    """Cells of a row that look alike."""

    style: Char
    text: str


class Frame(NamedTuple):
    """A whole screen, the key that was pressed last, and when it was painted, in seconds since the start."""

    at: float
    rows: tuple[tuple[Run, ...], ...]
    key: str

    @property
    def still(self) -> tuple[object, ...]:
        """Return what differs from screen to screen, but for numbers."""
        runs = ((run.style, _RUNNING.sub(" 0 ", run.text)) for row in self.rows for run in row)
        return self.key, *runs


class Recorder:
    """Runs the demo, presses keys, and notes each screen that it painted."""

    def __init__(self, scratch: str) -> None:
        self.frames: list[Frame] = []
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
        self._stream.feed(data)

    def _note_screen(self) -> None:
        if self._lapses and self.frames and self._now - self.frames[-1].at < _LAPSE_STEP:
            return
        rows = tuple(_runs([self._screen.buffer[y][x] for x in range(COLUMNS)]) for y in range(LINES))
        frame = Frame(self._now, rows, self._pressed)
        if self.frames[-1].still != frame.still if self.frames else any(map(str.strip, self._screen.display)):
            self.frames.append(frame)


def _runs(row: list[Char]) -> tuple[Run, ...]:
    # The second cell of a wide character is empty.
    alike = groupby(row, lambda cell: cell._replace(data=""))
    return tuple(Run(style, "".join(cell.data for cell in cells)) for style, cells in alike)


def _draw_row(row: tuple[Run, ...]) -> str:
    """Return a row as SVG, its upper left corner at the origin."""
    drawn, column = [], 0
    for style, text in row:
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


def _starts(frames: list[Frame]) -> list[float]:
    """Return when each frame begins in the recording, and last when it ends."""
    lasts = [min(after.at - frame.at, _LONGEST_REST) for frame, after in pairwise(frames)]
    return [*accumulate([*lasts, _LAST], initial=0.0)]


def animate(frames: list[Frame]) -> str:
    """Return frames as one SVG, which shows each for its time and then begins again. Equal rows are drawn once."""
    starts = _starts(frames)
    total, rows, shown = starts[-1], dict[str, int](), []
    for number, (frame, (start, end)) in enumerate(zip(frames, pairwise(starts), strict=True)):
        drawn = [*map(_draw_row, frame.rows), "", _draw_key(frame.key)]
        used = "".join(
            f'<use href="#r{rows.setdefault(row, len(rows))}" y="{y * _ROW}"/>' for y, row in enumerate(drawn) if row
        )
        shown.append((number, used, 100 * start / total, 100 * end / total))
    width, height = COLUMNS * _CELL + 2 * _MARGIN, (LINES + 2) * _ROW + 2 * _MARGIN
    return "\n".join(_write(rows, shown, total, width, height)) + "\n"


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


def cast(frames: list[Frame]) -> str:
    """Return frames as a cast of asciinema, which paints the rows that differ from the frame before."""
    header = {
        "version": 2, "width": COLUMNS, "height": LINES, "title": "crewboard demo", "env": {"TERM": "xterm-256color"},
    }  # fmt: skip
    *starts, end = _starts(frames)
    before: tuple[tuple[Run, ...], ...] = ((),) * LINES
    events = [(0.0, "\x1b[?1049h\x1b[?25l")]
    for start, frame in zip(starts, frames, strict=True):
        changed = (f"\x1b[{y}H{_print_row(row)}" for y, row in enumerate(frame.rows, 1) if row != before[y - 1])
        events.append((start, "".join(changed)))
        before = frame.rows
    events.append((end, "\x1b[m\x1b[?25h\x1b[?1049l"))
    lines = (json.dumps([round(at, 3), "o", text], ensure_ascii=False) for at, text in events)
    return "\n".join([json.dumps(header), *lines]) + "\n"


def _print_row(row: tuple[Run, ...]) -> str:
    """Return a row as a terminal takes it: colours are `38;2;RED;GREEN;BLUE`, those of the ground `48;2;…`."""
    printed = []
    for style, text in row:
        marks = ((1, style.bold), (3, style.italics), (4, style.underscore), (7, style.reverse))
        codes = [0, *(code for code, has in marks if has)]
        for code, colour in ((38, style.fg), (48, style.bg)):
            codes += [] if colour == "default" else [code, 2, *bytes.fromhex(colour)]
        printed.append(f"\x1b[{';'.join(map(str, codes))}m{text}")
    return "".join(printed)


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
    for name, text in (("demo.svg", animate(recorder.frames)), ("demo.cast", cast(recorder.frames))):
        path = HERE / name
        path.write_text(text)
        sys.stdout.write(f"{path}\n")


if __name__ == "__main__":
    main()
