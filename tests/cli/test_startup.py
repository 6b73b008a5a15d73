"""The imports of a command: without the screen and the SDK, so that it starts quickly."""

import subprocess
import sys

from crewboard.commands.context import Team
from tests.cli.shell import Cli, clean_environment

PROBE = """
import sys
from crewboard_tui.cli.program import run
for command in sys.argv[1:]:
    code = run(command.split())
    heavy = [name for name in ("textual", "rich.console", "anthropic", "asyncio", "watchdog") if name in sys.modules]
    print(command, code, *heavy, file=sys.stderr)
"""


def test_everyday_commands_load_no_screen_and_no_sdk(shell: Cli, team: Team) -> None:
    commands = ("send operator hi", "status", "inbox operator", "tasks", "requests")
    done = subprocess.run(
        [sys.executable, "-I", "-c", PROBE, *commands],
        cwd=shell.root, env=clean_environment(), capture_output=True, text=True, check=True,
    )  # fmt: skip
    said = done.stderr.splitlines()
    assert [line for line in said if line.startswith(commands)] == [f"{command} 0" for command in commands]


def test_nothing_of_the_users_directory_is_imported(shell: Cli) -> None:
    for name in ("json.py", "click.py", "crewboard.py"):
        (shell.root / name).write_text("raise SystemExit(99)")
    assert shell("types").code == 0


def test_version(shell: Cli) -> None:
    assert shell("--version").out.startswith("crewboard 0.")


def test_help_names_every_command_and_works_for_each(cli: Cli) -> None:
    from crewboard_tui.cli.program import SECTIONS

    text = cli("--help").out
    for command in (name for section in SECTIONS.values() for name in section):
        assert f"  {command} " in text
        own = cli(command, "--help")
        assert own.code == 0
        assert own.out.startswith(f"Usage: crewboard {command}")
