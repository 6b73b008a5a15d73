"""Arguments and options that several commands take."""

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
    click.option("--plain", is_flag=True, help="No screen: print each need as a line, as it arises."),
    click.option("--read-only", is_flag=True, help="Look only: no key changes anything."),
)

_MOST_DIGITS = 10


def board(command: Callable[P, R]) -> Callable[P, R]:
    """The options of the dashboard, with which it also opens where no command is named."""
    for option in reversed(BOARD):
        command = option(command)
    return command


def text(value: str) -> str:
    """Text as it was typed; bytes that are no UTF-8 become question marks."""
    return value.encode("utf-8", "replace").decode()


def ids(value: str | list[int]) -> list[int]:
    """Ids of tasks, separated by commas."""
    if isinstance(value, list):
        return value
    parts = [part.strip() for part in value.split(",") if part.strip()]
    return [task_id(part) for part in parts]


def task_id(value: str | int) -> int:
    """The id of a task."""
    number = int(value) if str(value).isascii() and str(value).isdigit() and len(str(value)) < _MOST_DIGITS else 0
    if number < 1:
        raise click.BadParameter(f"{value!r} is no task id; `crewboard tasks` lists them")
    return number


def seconds(value: str) -> float:
    """A length of time, which may have no end."""
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not number >= 0:  # so NaN is refused too, which is less than nothing and more than nothing
        raise click.BadParameter(f"{value!r} is no number of seconds")
    return number


def read_text(path: str) -> str:
    """The text of a file, `-` for standard input.

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
        raise BadDataError(f"{path} is no UTF-8 text (byte {error.start})") from error
