"""A command group that imports each command when it runs, so that `send` does not import everything."""

import difflib
import importlib
from collections.abc import Mapping
from typing import Any

import click

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
