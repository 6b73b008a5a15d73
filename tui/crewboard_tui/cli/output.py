"""Printing for commands: data on stdout, as text or JSON; progress on stderr."""

import json
import shutil
import time
from collections.abc import Iterable, Sequence
from typing import Any

import click
from rich.cells import cell_len

from crewboard_tui.render.lines import clip, pad
from crewboard_tui.render.sanitize import safe_line, safe_text

NARROWEST = 40
"""Terminal width below which lines are no longer cut."""

_DAY = 24 * 60 * 60


# click decorates any kind of callable.
def as_json(command: Any) -> Any:  # noqa: ANN401
    """Add the option `--json` to a command."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)


def say(text: str) -> None:
    """Print text on stdout, made safe for a terminal."""
    click.echo(safe_text(text))


def note(text: str) -> None:
    """Print progress on stderr."""
    click.echo(safe_text(text), err=True)


def note_damage(count: int, where: str) -> None:
    """Report on stderr how many lines of a file could not be read, if any."""
    if count:
        note(f"{count} damaged line{'' if count == 1 else 's'} of the {where} skipped")


def say_json(value: object) -> None:
    """Print a value as indented ASCII JSON."""
    click.echo(_dump(value, indent=2))


def say_json_line(value: object) -> None:
    """Print a value as JSON on one line."""
    click.echo(_dump(value))


def _dump(value: object, indent: int | None = None) -> str:
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, indent=indent)
    return text.replace("\x7f", "\\u007f")


def columns() -> int:
    """Return the width of the terminal; 80 if there is none."""
    return max(NARROWEST, shutil.get_terminal_size((80, 24)).columns)


def clock(ts: float | None, now: float | None = None) -> str:
    """Return the time of day, with the date unless it is today; a dash for None."""
    if ts is None:
        return "–"
    moment = time.localtime(ts)
    today = time.localtime(time.time() if now is None else now)
    same_day = (moment.tm_year, moment.tm_yday) == (today.tm_year, today.tm_yday)
    return time.strftime("%H:%M:%S" if same_day else "%Y-%m-%d %H:%M", moment)


def age(seconds: float) -> str:
    """Return a duration in its largest unit: 12s, 4m, 3h, 2d."""
    for size, unit in ((_DAY, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds / size:.0f}{unit}"
    return f"{max(0, seconds):.0f}s"


def cut(text: str, room: int) -> str:
    """Return `text` made safe, on one line of at most `room` columns."""
    return clip(safe_line(text), room)


def table(header: Sequence[str], rows: Iterable[Sequence[str]], *, indent: str = "") -> list[str]:
    """Lay out rows under a header in columns; the last column takes the remaining width."""
    cells = [list(header), *([safe_line(cell) for cell in row] for row in rows)]
    widths = [max(cell_len(row[place]) for row in cells) for place in range(len(header) - 1)]
    return [indent + clip(_row(row, widths), columns() - len(indent)) for row in cells]


def _row(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = [pad(cell, size) for cell, size in zip(row, widths, strict=False)]
    return "  ".join([*cells, row[-1]]).rstrip()


def indented(text: str, by: str = "    ") -> str:
    """Indent a block of text under a line."""
    return "\n".join(by + line if line else "" for line in safe_text(text).splitlines())
