"""What commands share: the global options, arguments, and the group that imports a command when it runs."""

import difflib
import importlib
import math
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import click

from crewboard import env
from crewboard.commands.context import Team, choose_team
from crewboard.errors import BadDataError, UntrustedError, UsageError
from crewboard.protocol import supervisor_client
from crewboard.store.layout import TeamDirectory, find_root
from crewboard_tui.cli.output import note

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


PACKAGE = "crewboard_tui.cli"


class LazyGroup(click.Group):
    """A group whose commands are given by `sections`: heading → command → `module:name`."""

    def __init__(self, *args: Any, sections: Mapping[str, Mapping[str, str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._sections = sections
        self._places = {name: place for section in sections.values() for name, place in section.items()}

    # click defines this signature.
    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(self._places)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in self._places:
            return None
        module, _, attribute = self._places[cmd_name].partition(":")
        command = getattr(importlib.import_module(f"{PACKAGE}.{module}"), attribute)
        return command if isinstance(command, click.Command) else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in self._places and not args[0].startswith("-"):
            near = difflib.get_close_matches(args[0], self._places, n=1)
            hint = f", did you mean {near[0]!r}?" if near else ""
            raise click.UsageError(f"no such command: {args[0]!r}{hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for heading, names in self._sections.items():
            commands = [(name, self.get_command(ctx, name)) for name in names]
            with formatter.section(heading):
                formatter.write_dl([(name, found.get_short_help_str(80)) for name, found in commands if found])


@dataclass(frozen=True)
class Session:
    """The global options of one call."""

    root_option: str | None = None
    team_option: str | None = None
    offline: bool = False

    @property
    def root(self) -> Path:
        """Return the workspace.

        Raises:
            UsageError: The named one is not a directory.
        """
        return find_root(self.root_option)

    @property
    def team(self) -> Team:
        """Return the team. The default team need not exist yet.

        Raises:
            UsageError: The named one does not exist.
        """
        environment = dict(os.environ)
        if self.offline:
            environment[env.OFFLINE] = "1"
        return Team(choose_team(self.root, self.team_option), environment=environment)


def revive(team: TeamDirectory) -> None:
    """Start a supervisor if none is running. If that fails, report it and continue."""
    try:
        supervisor_client.ensure_running(team)
    except (UntrustedError, OSError) as error:
        note(f"no supervisor can be started: {error}")
