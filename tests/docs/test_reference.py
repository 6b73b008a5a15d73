"""The reference is complete: each table names exactly what the code has."""

import importlib
import inspect
import pkgutil
import re
import subprocess
from collections.abc import Iterator
from typing import get_args

import click
import pytest
from msgspec import Struct

from crewboard import records
from crewboard.errors import ExitCode
from crewboard.models import ProjectModel
from crewboard.operations import OPERATIONS
from crewboard.pricing import Band
from crewboard.readmodel import as_json
from crewboard.readmodel.changes import Kind
from crewboard.readmodel.team import NeedKind
from crewboard.records.agents import State
from crewboard.records.base import Record
from crewboard.records.messages import STARTS_WORK
from crewboard.records.processes import EXIT_REASONS
from crewboard.worker.tools.registry import TOOLS
from crewboard_tui.cli.program import crewboard
from crewboard_tui.render.looks import LOOKS, TASK_LOOKS
from crewboard_tui.settings import SETTINGS
from tests.cli.shell import clean_environment
from tests.docs.pages import REFERENCE, ROOT, generated, marked_names, marks
from tests.docs.reference import MAN, PARTS, man
from tests.system import need_program

_WITH_RECORDS = ("files", "messages", "dashboard")
"""Pages with a table for each record."""

_VARIABLE = re.compile(r"(?<![A-Z_])_?CREWBOARD_[A-Z]+(?:_[A-Z]+)*(?![A-Z_])")


@pytest.mark.parametrize("name", PARTS)
def test_a_generated_page_is_up_to_date(name: str) -> None:
    shown = generated(REFERENCE / f"{name}.md")
    assert shown == {name: PARTS[name]()}, f"docs/reference/{name}.md is out of date: run `make docs`"


def test_the_manual_page_is_up_to_date_and_well_formed() -> None:
    assert MAN.read_text(encoding="utf-8") == man(), "docs/crewboard.1 is out of date: run `make docs`"
    need_program("man")
    printed = subprocess.run(
        ["man", "--warnings", "--local-file", MAN],
        env={**clean_environment(), "MANWIDTH": "400", "LC_ALL": "C.UTF-8"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert printed.stderr == ""
    assert "CREWBOARD SPAWN" in printed.stdout
    # A line that begins so is a request, and no text.
    requests = {line.split()[0] for line in man().splitlines() if line.startswith((".", "'"))}
    assert requests == {'.\\"', ".TH", ".SH", ".SS", ".PP", ".TP", ".nf", ".fi", ".RS", ".RE", ".nh", ".ad"}
    assert 'eval "$(crewboard completion bash)"' in printed.stdout


_OF_PROJECT: dict[str, type[Struct]] = {"Band": Band, "ProjectModel": ProjectModel}
"""The types, not records, that are read from files that the project writes."""


_MODULES = [
    importlib.import_module(f"crewboard.records.{each.name}") for each in pkgutil.iter_modules(records.__path__)
]
_RECORDS = {
    name: each
    for module in _MODULES
    for name, each in vars(module).items()
    if inspect.isclass(each) and issubclass(each, Record) and each is not Record and not name.startswith("_")
}


def _fields(name: str) -> list[str]:
    model: type[Struct] = _OF_PROJECT[name] if name in _OF_PROJECT else _RECORDS[name]
    tag = model.__struct_config__.tag_field
    return [*([tag] if tag else []), *(field for field in model.__struct_encode_fields__ if field != "source")]


@pytest.mark.parametrize(
    ("page", "name"),
    [(page, name) for page in _WITH_RECORDS for name in marks(REFERENCE / f"{page}.md", "record")],
)
def test_the_table_of_a_record_names_its_fields(page: str, name: str) -> None:
    assert marked_names(REFERENCE / f"{page}.md", "record", name) == _fields(name)


def test_every_record_has_a_table() -> None:
    told = {name for page in _WITH_RECORDS for name in marks(REFERENCE / f"{page}.md", "record")}
    assert told == set(_RECORDS) | set(_OF_PROJECT)


@pytest.mark.parametrize(
    ("page", "name", "known"),
    [
        ("exit-codes", "ExitCode", [str(int(code)) for code in ExitCode]),
        ("files", "EXIT_REASONS", list(EXIT_REASONS)),
        ("files", "State", list(get_args(State))),
        ("json", "NeedKind", list(get_args(NeedKind))),
        ("json", "ChangeKind", list(get_args(Kind))),
        ("configuration", "settings", list(SETTINGS)),
        ("tools", "tools", list(TOOLS)),
        ("dashboard", "looks", [look.word for look in LOOKS.values()]),
        ("dashboard", "task-looks", [look.word for look in TASK_LOOKS.values()]),
    ],
)
def test_a_table_names_exactly_what_there_is(page: str, name: str, known: list[str]) -> None:
    assert sorted(marked_names(REFERENCE / f"{page}.md", "words", name)) == sorted(known)


def test_the_dashboard_page_shows_the_glyphs_of_the_dashboard() -> None:
    text = (REFERENCE / "dashboard.md").read_text(encoding="utf-8")
    looks = [*LOOKS.values(), *TASK_LOOKS.values()]
    assert [look.word for look in looks if f"| {look.word} | {look.glyph} | {look.ascii} |" not in text] == []


def _with_json(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield the name of each command that takes --json, this one and those below it."""
    context = click.Context(command)
    if any("--json" in option.opts for option in command.params):
        yield " ".join(path)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from _with_json(below, (*path, name))


def test_every_command_that_prints_json_is_told() -> None:
    told = [name for part in ("commands", "operations") for name in marked_names(REFERENCE / "json.md", "words", part)]
    assert sorted(told) == sorted(_with_json(crewboard))
    assert [each.ident for each in OPERATIONS.values() if bool(each.section) != bool(each.prints)] == []


def test_exit_codes_have_their_names() -> None:
    text = (REFERENCE / "exit-codes.md").read_text(encoding="utf-8")
    assert [code.name for code in ExitCode if f"| {int(code)} | `{code.name}` |" not in text] == []


def test_the_variables_of_the_environment_are_those_of_the_code() -> None:
    code = [path for folder in ("core", "tui") for path in (ROOT / folder).rglob("*.py")]
    read = {name for path in code for name in _VARIABLE.findall(path.read_text(encoding="utf-8"))}
    assert set(marked_names(REFERENCE / "environment.md", "words", "environment")) == read


def test_types_that_start_work_are_marked_so() -> None:
    text = (REFERENCE / "messages.md").read_text(encoding="utf-8")
    rows = [row.split("|") for row in text.splitlines() if row.startswith("| `")]
    told = {row[1].strip(" `") for row in rows if len(row) > 5 and row[4].strip() == "yes"}
    assert told == STARTS_WORK


_NOT_IN_ALL_NEEDS = {
    "log",
    "code",
    "refused_by",
    "task",
    "file",
    "other",
    "files",
    "agents",
    "host",
    "server",
    "waiting",
}


@pytest.mark.parametrize(("name", "keys"), [("agent", as_json.AGENT), ("host", as_json.HOST)])
def test_keys_of_agents_and_hosts_are_told(name: str, keys: tuple[str, ...]) -> None:
    assert marked_names(REFERENCE / "json.md", "keys", name) == [*keys]


@pytest.mark.parametrize(("name", "function"), [("status", as_json.status), ("need", as_json.need)])
def test_keys_of_status_json_are_told(name: str, function: object) -> None:
    source = inspect.getsource(function)  # type: ignore[arg-type]  # each is a function
    keys = re.findall(r'^\s+"(\w+)": ', source, re.MULTILINE)
    shown = marked_names(REFERENCE / "json.md", "keys", name)
    not_in_all = _NOT_IN_ALL_NEEDS if name == "need" else set()
    assert [key for key in shown if key not in not_in_all] == keys
