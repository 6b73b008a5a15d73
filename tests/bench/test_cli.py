"""The cost of everyday commands, next to a Python that loads the same libraries and does nothing."""

import subprocess
import sys
from pathlib import Path

import pytest

from crewboard.commands import messages
from crewboard.commands.context import Team
from crewboard.store.layout import TeamDirectory
from tests.bench.baselines import python_ms
from tests.bench.figures import Figures, median_ms
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
