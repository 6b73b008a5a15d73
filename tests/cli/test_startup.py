"""The imports of a command: without the screen and the SDK, so that it starts quickly."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import click
import pytest

import crewboard as core
import crewboard_tui as tui
from crewboard.commands.context import Team
from crewboard.store import leases
from crewboard_tui.cli.common import LazyGroup
from crewboard_tui.cli.program import SECTIONS, crewboard
from tests.cli.shell import Cli, clean_environment
from tests.crew import Crew

SOURCES = [Path(package.__file__).parent.parent for package in (core, tui) if package.__file__]

COMMANDS = [name for section in SECTIONS.values() for name in section]

PROBE = """
import sys
from crewboard_tui.cli.program import run
for command in sys.argv[1:]:
    code = run(command.split())
    print(command, code, *sorted(set(sys.modules) & HEAVY), file=sys.stderr)
"""

HEAVY = {
    "anthropic", "asyncio", "ctypes", "logging", "psutil", "pydantic", "rich.console", "socket", "subprocess",
    "textual", "tomllib", "watchdog",
}  # fmt: skip
"""Modules that take long to load and that everyday commands do without."""

LIGHTEST = {*HEAVY, "json", "msgspec", "pathlib", "urllib.parse"}

STATUS = {
    "crewboard.agent_types", "crewboard.readmodel.activity", "crewboard.readmodel.changes",
    "crewboard.readmodel.file_activity", "crewboard.readmodel.watcher", "crewboard_tui.cli.mail",
    "crewboard_tui.cli.requests", "crewboard_tui.cli.tasks", "crewboard_tui.render.diff", "statistics",
}  # fmt: skip
"""Own and other modules that `status` does without while nothing needs the user."""

OWN = {
    "crewboard.env", "crewboard.errors", "crewboard.operations", "crewboard.redaction",
    "crewboard_tui.cli", "crewboard_tui.cli.common", "crewboard_tui.cli.program",
}  # fmt: skip
"""All own modules behind `--version` and `--help`."""

COSTLY = {"_field_defaults", "__dataclass_fields__"}
"""What only named tuples and dataclasses have."""

AS_TUPLES = {
    "crewboard.unix.process.Measurement", "crewboard.operations.Asks", "crewboard.operations.Done",
    "crewboard.operations.Operation", "crewboard_tui.drafts.LineNote",
}  # fmt: skip
"""Named tuples before the first picture: one is written as a list, the others load where msgspec does not."""

MOST_MODULES = 100
"""Own modules that are loaded before the first picture."""

PICTURE = """
import sys
import crewboard_tui.cli
from crewboard_tui import dashboard
from crewboard_tui.app import CrewboardApp
from crewboard_tui.views import registry
registry.load("board")
print(*sorted(set(sys.modules) & HEAVY))
"""

OPENED = """
import sys
from crewboard_tui import dashboard
dashboard.run_in_terminal = lambda *_, **how: print(how, *sorted(set(sys.modules) & HEAVY)) or 0
from crewboard_tui.cli import main
sys.argv[1:] = sys.argv[1].split()
main()
"""
"""Opens the dashboard, but for its screen."""

PATTERNS = """
import re, sys
compile, sizes = re._compiler.compile, []
def note(pattern, flags=0):
    caller = sys._getframe(1)
    while caller.f_globals["__name__"].partition(".")[0] in ("re", "functools"):
        caller = caller.f_back
    if caller.f_globals["__name__"].startswith("crewboard"):
        sizes.append(len(pattern))
    return compile(pattern, flags)
re._compiler.compile = note
"""
"""Makes `sizes`: the characters of each pattern that an own module compiles from now on."""

ALL = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
    print(name, *sorted(heavy for heavy in ("pydantic", "anthropic") if heavy in sys.modules))
"""


@pytest.mark.long
def test_only_workers_load_the_sdk_and_pydantic() -> None:
    paths = [path.relative_to(root) for root in SOURCES for path in root.rglob("*.py") if "sample" not in path.parts]
    names = [".".join(path.with_suffix("").parts).removesuffix(".__init__") for path in paths]
    others = ["crewboard.worker", "crewboard_tui.cli.__main__"]
    others += ["crewboard.store.postgres"] if find_spec("psycopg") is None else []
    modules = [name for name in names if not name.startswith(tuple(others))]
    modules.append("crewboard.worker.tools.file_server")
    done = subprocess.run([sys.executable, "-I", "-c", ALL, *modules], capture_output=True, text=True, check=True)
    assert [line for line in done.stdout.splitlines() if " " in line][:1] == []
    assert {"crewboard_tui.app", "crewboard.supervisor.__main__", "crewboard.attach.mirror"} <= set(modules)


def loaded(code: str, heavy: set[str], shell: Cli, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run code that prints which of the modules `heavy` it loaded."""
    return subprocess.run(
        [sys.executable, "-I", "-c", f"HEAVY = {heavy!r}\n{code}", *arguments],
        cwd=shell.root, env=clean_environment(), capture_output=True, text=True, check=True,
    )  # fmt: skip


@pytest.mark.files_only("psycopg loads more")
def test_everyday_commands_load_no_screen_and_no_sdk(shell: Cli, team: Team) -> None:
    commands = ("status", "send operator hi", "inbox operator", "tasks", "requests")
    said = loaded(PROBE, {"anthropic", "asyncio", "pydantic", "rich.console", "textual", "watchdog"}, shell, *commands)
    lines = [line for line in said.stderr.splitlines() if line.startswith(commands)]
    assert lines == [f"{command} 0" for command in commands]


@pytest.mark.files_only("psycopg loads more")
def test_status_loads_only_what_it_prints(shell: Cli, team: Team) -> None:
    # Another process holds the supervisor's lock, so that none is started.
    lock = leases.take(team.directory.supervisor_lock)
    assert lock is not None
    try:
        said = loaded(PROBE, HEAVY | STATUS, shell, "status")
    finally:
        os.close(lock.descriptor)
    assert said.stderr.splitlines() == ["status 0"]


@pytest.mark.long
@pytest.mark.files_only("psycopg loads more")
def test_a_hire_loads_no_event_loop_and_no_merging(crew: Crew) -> None:
    late = {"anthropic", "asyncio", "pydantic", "textual", "watchdog"}
    late |= {f"crewboard.commands.{name}" for name in ("changes", "control", "workspace")}
    command = "spawn scout --type explore --prompt look --background"
    said = subprocess.run(
        [sys.executable, "-I", "-c", f"HEAVY = {late!r}\n{PROBE}", command],
        cwd=crew.root, env=crew.environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert said.stderr.splitlines()[-1] == f"{command} 0"


def test_version_and_help_load_no_records_and_no_command(shell: Cli) -> None:
    assert loaded(PROBE, LIGHTEST, shell, "--version", "--help").stderr.splitlines() == ["--version 0", "--help 0"]
    own = "\nprint(*sorted(name for name in sys.modules if name.startswith(('crewboard.', 'crewboard_tui.'))))"
    assert set(loaded(PROBE + own, set(), shell, "--help").stdout.splitlines()[-1].split()) == OWN


def test_the_first_picture_loads_no_more_than_it_shows(shell: Cli) -> None:
    late = {"anthropic", "psutil", "pydantic", "statistics", "tomllib", "watchdog"}
    late |= {
        f"crewboard_tui.views.{name}"
        for name in ("activity", "agent", "cost", "feed", "help", "hire", "inbox", "needs", "palette")
    }
    late |= {f"crewboard.readmodel.{name}" for name in ("activity", "changes", "crash_report", "file_activity")}
    late |= {f"crewboard.{name}" for name in ("agent_types", "engines", "mcp_servers", "models", "skill_files")}
    late |= {"click", "crewboard.type_files", "crewboard_tui.render.diff", "crewboard_tui.render.syntax", "pygments"}
    late |= {f"crewboard.commands.{name}" for name in ("answers", "changes", "control", "hire", "hosts", "stop")}
    late |= {
        "crewboard.attach.mirror",
        "crewboard.attach.teams",
        "crewboard.sandbox.sandbox",
        "crewboard.worktrees.merging",
    }
    late |= {"crewboard_tui.compose.draft_input", "textual.widgets._text_area"}
    own = "print(sum(name.startswith(('crewboard.', 'crewboard_tui.')) for name in sys.modules))"
    heavy, count = loaded(PICTURE + own, late, shell).stdout.splitlines()
    assert heavy == ""
    # Each takes a third of a millisecond. In the plain-POSIX variant `unix.posix` and `unix.programs` are among them.
    assert int(count) <= MOST_MODULES + 2 * core.env.is_posix()


@pytest.mark.long
@pytest.mark.files_only("psycopg loads more")
def test_the_dashboard_opens_without_the_command_tree(shell: Cli, team: Team) -> None:
    late = {"click", "crewboard_tui.cli.common", "crewboard_tui.cli.program", "logging", "textual"}
    said = {words: loaded(OPENED, late, shell, words).stdout.strip() for words in ("", "board", "--read-only")}
    assert said == {"": "{'read_only': False}", "board": "{'read_only': False}", "--read-only": "{'read_only': True}"}
    assert "click" in loaded(OPENED, late, shell, "--ascii").stdout


@pytest.mark.long
@pytest.mark.parametrize(
    "wrong", [{}, {"CREWBOARD_ROOT": "missing"}, {"CREWBOARD_TEAM": "missing"}, {"_CREWBOARD_COMPLETE": "bash_source"}]
)
def test_the_short_way_to_the_dashboard_fails_as_the_other(shell: Cli, wrong: dict[str, str]) -> None:
    shell = shell.with_environment(**wrong)
    failed = [shell(*words.split()) for words in ("", "board", "--read-only", "--read-only board")]
    tree = shell("--theme", "dark")
    assert failed == [tree] * 4
    assert bool(tree.code) != bool(tree.out)


@pytest.mark.long
def test_the_first_picture_compiles_few_patterns(shell: Cli) -> None:
    # Compiling takes 2 µs a character. Long patterns wait until a text needs them.
    sizes = loaded(f"{PATTERNS}{PICTURE}print(*sizes)", set(), shell).stdout.split()
    assert len(sizes) > 10
    assert sum(map(int, sizes)) < 700


@pytest.mark.long
def test_the_first_picture_makes_few_costly_classes(shell: Cli) -> None:
    # Such a class takes 0.75 M instructions to make, a struct of msgspec 0.14 M.
    own = (
        "print(*sorted(f'{name}.{kind.__name__}' for name, module in sys.modules.items()"
        " if name.startswith(('crewboard.', 'crewboard_tui.')) for kind in vars(module).values()"
        " if isinstance(kind, type) and kind.__module__ == name and vars(kind).keys() & COSTLY))"
    )
    said = loaded(f"COSTLY = {COSTLY}\n{PICTURE}{own}", set(), shell).stdout.splitlines()[-1]
    assert set(said.split()) == AS_TUPLES


@pytest.mark.long
def test_no_decoder_is_made_by_an_import(shell: Cli) -> None:
    # That of all events takes 3 M instructions.
    code = f"{PICTURE}from crewboard.records import base\nprint(*base._DECODERS)"
    assert loaded(code, set(), shell).stdout.splitlines()[1:] == [""]


def test_nothing_of_the_users_directory_is_imported(shell: Cli) -> None:
    for name in ("json.py", "click.py", "crewboard.py"):
        (shell.root / name).write_text("raise SystemExit(99)")
    assert shell("types").code == 0


def test_version(shell: Cli) -> None:
    assert shell("--version").out.startswith("crewboard 0.")


def test_help_names_every_command_and_works_for_each(cli: Cli) -> None:
    text = cli("--help").out
    for command in COMMANDS:
        assert f"  {command} " in text
        own = cli(command, "--help")
        assert own.code == 0
        assert own.out.startswith(f"Usage: crewboard {command}")


@pytest.mark.parametrize("path", [[], ["task"], ["team"], ["worktree"], ["workspace"]], ids=" ".join)
def test_the_help_has_the_first_sentence_of_each_command(path: list[str]) -> None:
    group: click.Command | None = crewboard
    for name in path:
        assert isinstance(group, click.Group)
        group = group.get_command(click.Context(group), name)
    assert isinstance(group, LazyGroup)
    context = click.Context(group)
    commands = {name: group.get_command(context, name) for name in group.list_commands(context)}
    sentences = {name: command.get_short_help_str(80) for name, command in commands.items() if command}
    assert group.summaries == sentences


def test_no_list_of_commands_cuts_a_sentence(cli: Cli) -> None:
    cli = cli.with_environment(COLUMNS="80")
    groups = [
        name for name in COMMANDS if isinstance(crewboard.get_command(click.Context(crewboard), name), click.Group)
    ]
    cut = {line for path in ([], *([name] for name in groups)) for line in cli(*path, "--help").out.splitlines()}
    assert len(groups) > 3
    assert not [line for line in cut if line.endswith("...") and not line.endswith("[ARGS]...")]


def test_an_option_without_its_value_points_to_its_command(cli: Cli) -> None:
    cli("spawn", "ann", "--budget").refused(2, "requires an argument; `crewboard spawn --help` shows the usage")
    cli("task", "add", "--check").refused(2, "requires an argument; `crewboard task add --help` shows the usage")


@pytest.mark.parametrize(
    ("command", "instead"),
    [
        ("approve", "`crewboard requests` lists what waits"),
        ("team delete", "`crewboard team list` lists the teams"),
        ("tasks add x", "it only shows: `crewboard task add` adds a task"),
        ("config theme dark", "it only shows: crewboard.toml holds what is set"),
    ],
)
def test_wrong_arguments_are_told_what_to_do_instead(cli: Cli, command: str, instead: str) -> None:
    cli(*command.split()).refused(2, f"; {instead}")
