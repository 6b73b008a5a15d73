"""The cost of everyday commands, next to a Python that loads the same libraries and does nothing."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from crewboard.commands import messages
from crewboard.commands.context import Team
from crewboard.store.layout import TeamDirectory
from tests.attach.session import plan_event
from tests.bench.baselines import python_ms
from tests.bench.figures import Figures, cpu_ms, median_ms, python
from tests.cli.files import enlist
from tests.cli.shell import COMMAND, clean_environment

pytestmark = [pytest.mark.bench, pytest.mark.long, pytest.mark.xdist_group("bench")]

TOLERANCE = 1.3

LIST = """
import sys
from crewboard_tui.cli.program import run
run(sys.argv[1:])
names = [name for name, module in sys.modules.items() if getattr(module, "__spec__", None)]
print(*(name for name in names if not name.startswith(("crewboard", "_crewboard", "__"))), file=sys.stderr)
"""


@pytest.fixture
def team(tmp_path: Path) -> Team:
    """Make a team with some mail."""
    team = Team(TeamDirectory(tmp_path / ".crewboard" / "default")).ensure()
    for number in range(20):
        messages.send(team, "operator", f"message {number}")
    return team


def libraries(arguments: list[str], folder: Path) -> str:
    """Return code that imports what the command ends up with, except crewboard's own modules."""
    code = [sys.executable, "-I", "-c", LIST, *arguments]
    done = subprocess.run(code, cwd=folder, env=clean_environment(), capture_output=True, text=True, check=True)
    names = done.stderr.splitlines()[-1].split()
    return f"from importlib import import_module\nfor name in {names!r}: import_module(name)"


@pytest.mark.parametrize("arguments", [["send", "operator", "hi"], ["status"], ["inbox", "operator"]])
def test_everyday_commands(figures: Figures, team: Team, arguments: list[str]) -> None:
    root = team.directory.root

    def command() -> None:
        subprocess.run([*COMMAND, *arguments], cwd=root, env=clean_environment(), stdout=subprocess.DEVNULL, check=True)

    command()
    bare = python_ms(libraries(arguments, root))
    figure = figures.add(
        f"crewboard {arguments[0]}", median_ms(command, 15), "ms", ("python -c, same libraries", bare), target=2.5
    )
    assert figure.within(TOLERANCE)


def test_ratios_to_click(figures: Figures, team: Team) -> None:
    for number in range(30):
        enlist(team, f"agent{number}", "explore")
    calls = {"--version": 1.5, "--help": 1.5, "status": 2.5}
    commands = [python("import click"), *([*COMMAND, call] for call in calls)]
    # The first turn writes bytecode.
    cpu_ms(commands, 1, cwd=team.directory.root, env=clean_environment())
    bare, *ours = cpu_ms(commands, 15, cwd=team.directory.root, env=clean_environment())
    for (call, target), value in zip(calls.items(), ours, strict=True):
        name = f"crewboard {call}" + (" of 30 agents" if call == "status" else "") + ", processor time"
        figure = figures.add(name, value, "ms", ('python -c "import click"', bare), target=target)
        assert figure.within(TOLERANCE)


def test_the_hook_of_a_session_that_no_team_wants(figures: Figures, tmp_path: Path) -> None:
    event = json.dumps(plan_event(tmp_path)).encode()

    def hook() -> None:
        subprocess.run([sys.executable, "-m", "crewboard_tui.cli", "hook"], input=event, check=True)

    # Claude Code waits for it: 60 ms at most, where Python alone takes 15.
    figure = figures.add("crewboard hook", median_ms(hook, 15), "ms", ("python -c pass", python_ms("pass")), target=4)
    assert figure.within(TOLERANCE)
