"""Arguments and options shared by several commands."""

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

import click

from crewboard.errors import BadDataError, UsageError

P = ParamSpec("P")
R = TypeVar("R")

BOARD = (
    click.option("--ascii", "plain_glyphs", is_flag=True, help="Draw with ASCII characters only."),
    click.option("--plain", is_flag=True, help="No screen: print each need as one line."),
    click.option("--read-only", is_flag=True, help="Read-only: no key changes anything."),
)

_MOST_DIGITS = 10


def board(command: Callable[P, R]) -> Callable[P, R]:
    """Add the dashboard's options, which also apply when no command is named."""
    for option in reversed(BOARD):
        command = option(command)
    return command


def text(value: str) -> str:
    """Return the text as typed; bytes that are not UTF-8 become question marks."""
    return value.encode("utf-8", "replace").decode()


def ids(value: str | list[int]) -> list[int]:
    """Parse task ids separated by commas."""
    if isinstance(value, list):
        return value
    parts = [part.strip() for part in value.split(",") if part.strip()]
    return [task_id(part) for part in parts]


def task_id(value: str | int) -> int:
    """Parse the id of a task."""
    number = int(value) if str(value).isascii() and str(value).isdigit() and len(str(value)) < _MOST_DIGITS else 0
    if number < 1:
        raise click.BadParameter(f"{value!r} is not a task id; `crewboard tasks` lists them")
    return number


def seconds(value: str) -> float:
    """Parse a number of seconds; infinity is allowed."""
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    # Negated so that NaN, which fails every comparison, is refused as well.
    if not number >= 0:
        raise click.BadParameter(f"{value!r} is not a number of seconds")
    return number


def read_text(path: str) -> str:
    """Return the text of a file; `-` is standard input.

    Raises:
        UsageError: There is no such file.
        BadDataError: It is not UTF-8.
    """
    try:
        data = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except FileNotFoundError as error:
        raise UsageError(f"there is no file {path}") from error
    except IsADirectoryError as error:
        raise UsageError(f"{path} is a directory, not a file") from error
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadDataError(f"{path} is not UTF-8 text (byte {error.start})") from error
