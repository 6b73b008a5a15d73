"""The generated parts of the reference: `python -m tests.docs.reference` writes them, a test compares them."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import click
from pydantic.fields import FieldInfo

from crewboard.agent_types import TEAM_TOOLS, TYPES
from crewboard.operations import OPERATIONS
from crewboard.worker.tools.base import Tool
from crewboard.worker.tools.registry import TOOLS
from crewboard_tui.cli.program import crewboard
from crewboard_tui.keymap.bindings import GROUPS, KEYS
from tests.docs.pages import REFERENCE, ROOT, replace_generated


def cli() -> str:
    """Return every command with its usage, help and options."""
    return "\n\n".join(_command(crewboard, "crewboard"))


def _command(command: click.Command, path: str) -> Iterator[str]:
    context = click.Context(command, info_name=path)
    heading = "## Global options" if path == "crewboard" else f"## {path}"
    yield heading
    yield "```\n" + context.get_usage().removeprefix("Usage: ") + "\n```"
    yield from _help(command.help or "")
    if rows := list(_options(command, context)):
        yield "\n".join(["| option | does |", "|---|---|", *rows])
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from _command(below, f"{path} {name}")


def _help(text: str) -> Iterator[str]:
    for paragraph in text.split("\n\n"):
        line = " ".join(paragraph.split())
        if line.startswith("Example: "):
            yield f"```\n{line.removeprefix('Example: ')}\n```"
        else:
            yield _text(line)


def _options(command: click.Command, context: click.Context) -> Iterator[str]:
    for option in command.params:
        record = option.get_help_record(context) if isinstance(option, click.Option) else None
        if record is not None:
            names = record[0].replace("|", "\\|")
            yield f"| `{names}` | {_cell(record[1])} |"


def _text(text: str) -> str:
    return text.replace("<", "&lt;").replace(">", "&gt;").replace("*", "\\*")


def _cell(text: str) -> str:
    return _text(text.replace("|", "\\|"))


MAN = ROOT / "docs/crewboard.1"

_CODE = re.compile(r"`([^`]+)`")


def man() -> str:
    """Return the manual page, which has what the page of the command line has."""
    about = (crewboard.help or "").partition(".")[0]
    lines = [
        '.\\" Written by `make docs` from the program itself.',
        '.TH CREWBOARD 1 "" crewboard "User Commands"',
        # Commands are neither hyphenated nor spread.
        ".nh",
        ".ad l",
        ".SH NAME",
        f"crewboard \\- {_roff(about[0].lower() + about[1:])}",
        ".SH DESCRIPTION",
        *_man_command(crewboard, "crewboard"),
        ".SH FILES",
        _roff("Everything of the teams of a project is in `.crewboard/` below it."),
        ".SH SEE ALSO",
        _roff("The other pages of the documentation are in the folder docs/ of the sources."),
    ]
    return "\n".join(lines) + "\n"


def _man_command(command: click.Command, path: str) -> Iterator[str]:
    context = click.Context(command, info_name=path)
    if path != "crewboard":
        yield f".SH {_roff(path).upper()}" if path.count(" ") == 1 else f".SS {_roff(path)}"
    yield ".nf"
    yield f"\\fB{_roff(context.get_usage().removeprefix('Usage: '))}\\fR"
    yield ".fi"
    for paragraph in (command.help or "").split("\n\n"):
        line = " ".join(paragraph.split())
        example = line.removeprefix("Example: ")
        yield ".PP"
        yield from [_roff(line)] if example == line else [".nf", ".RS", _roff(example), ".RE", ".fi"]
    for option in command.params:
        if isinstance(option, click.Option) and (record := option.get_help_record(context)) is not None:
            yield from (".TP", f"\\fB{_roff(record[0])}\\fR", _roff(record[1]))
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from _man_command(below, f"{path} {name}")


def _roff(text: str) -> str:
    """Return text as roff prints it, code in bold."""
    return _CODE.sub(r"\\fB\1\\fR", text.replace("\\", "\\e").replace("-", "\\-"))


def keys() -> str:
    """Return the key table, by the headings of the help."""
    return "\n\n".join(_group(heading, scopes) for heading, scopes in GROUPS.items())


def _group(heading: str, scopes: tuple[str, ...]) -> str:
    rows = [
        f"| {_keys(key.keys)} | {_cell(key.says)} | `{key.id}` |"
        for scope in scopes
        for key in KEYS
        if key.scope == scope
    ]
    return "\n".join([f"## {heading.capitalize()}", "", "| key | does | id |", "|---|---|---|", *rows])


def _keys(names: str) -> str:
    return " ".join(f"`{name}`" for name in names.split(",")) if names else "in the palette"


def operations() -> str:
    """Return what the commands of operations print as JSON."""
    rows = [f"| `{each.command}` | {each.prints} |" for each in OPERATIONS.values() if each.section]
    return "\n".join(["| command | prints |", "|---|---|", *rows])


def tools() -> str:
    """Return each tool's words for the model and the form of its input."""
    return "\n\n".join(map(_tool, TOOLS.values()))


def _tool(tool: Tool[Any]) -> str:
    properties = tool.definition()["input_schema"]["properties"]
    rows = [
        f"| `{name}` | {_form(properties[name])} | {_default(field)} | {_cell(field.description or '')} |"
        for name, field in tool.input.model_fields.items()
    ]
    table = ["| input | type | default | |", "|---|---|---|---|", *rows] if rows else ["No input."]
    return "\n".join([f"### {tool.name}", "", _text(tool.description), "", *table])


def _form(schema: dict[str, Any]) -> str:
    if "enum" in schema:
        return " ".join(f"`{each}`" for each in schema["enum"])
    if schema["type"] == "array":
        return f"list of {_form(schema['items'])}s"
    return str(schema["type"])


def _default(field: FieldInfo) -> str:
    return "required" if field.is_required() else f"`{field.default}`"


def agent_types() -> str:
    """Return the built-in types."""
    rows = [
        f"| `{each.name}` | {' '.join(f'`{tool}`' for tool in each.tools)} "
        f"| {_yes(each.writes)} | {_yes(each.executes)} | `{each.model}` "
        f"| {each.effort or ''} | {each.thinking or ''} |"
        for each in TYPES.values()
    ]
    return "\n".join(
        [
            "| type | tools | writes | executes | default model | effort | thinking |",
            "|---|---|---|---|---|---|---|",
            *rows,
            "",
            f"Every type also has {' '.join(f'`{tool}`' for tool in TEAM_TOOLS)}.",
            "Those with `bash` also have `bash_output` and `bash_kill`. Type `code` also has `send_explorer`.",
        ]
    )


def _yes(value: bool) -> str:
    return "yes" if value else "no"


PARTS: dict[str, Callable[[], str]] = {
    "cli": cli,
    "keys": keys,
    "json": operations,
    "tools": tools,
    "agent-types": agent_types,
}
"""The generated part of each page, which has the page's name."""


def main() -> None:
    """Write all parts."""
    for name, render in PARTS.items():
        replace_generated(REFERENCE / f"{name}.md", name, render())
    MAN.write_text(man(), encoding="utf-8")


if __name__ == "__main__":
    main()
