"""The demo runs by itself and leaves nothing behind."""

import contextlib
import shutil
import signal
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path

import pexpect
import pyte
import pytest

from tests.cli.audited import Audited
from tests.cli.conftest import processes_of
from tests.cli.shell import COMMAND, Cli, finish
from tests.crew import eventually
from tests.planted import Planted

LIMIT = 90


@pytest.fixture
def scratch(shell: Cli) -> Path:
    """Return the folder where the demo makes its scratch directory."""
    folder = shell.root / "scratch"
    folder.mkdir()
    return folder


@pytest.fixture
def demo(shell: Cli, scratch: Path) -> Cli:
    return shell.with_environment(
        TMPDIR=str(scratch), ANTHROPIC_API_KEY="sk-never-used", CREWBOARD_ROOT="/nowhere", CREWBOARD_TEAM="ghosts"
    )


def is_clean(scratch: Path) -> bool:
    return not list(scratch.iterdir()) and not processes_of(scratch)


def test_the_headless_demo_exits_with_0_and_leaves_nothing(
    demo: Cli, scratch: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    assert tempfile.gettempdir() != str(scratch)
    audited = Audited(tmp_path_factory.mktemp("audited"))
    planted = Planted(tmp_path_factory.mktemp("planted"))
    demo = replace(demo.with_environment(PATH=planted.path), python=str(audited.python))
    ran = demo("demo", "--headless", seconds=LIMIT)
    assert ran.code == 0, ran.out + ran.err
    for scene in (
        "killed courier", "killed by SIGKILL", "resumes courier", "approves the plan (as you)",
        "answers the question", "asks reviewer for a summary", "the sample's tests pass", "finished as expected",
    ):  # fmt: skip
        assert scene in ran.out
    assert "no language model" in ran.out
    assert is_clean(scratch)
    assert planted.ran == []
    programs = {Path(each["program"]) for each in audited.started}
    assert audited.python in programs
    assert "git" in {program.name for program in programs} or not shutil.which("git"), "or this test sees nothing"
    for program in programs:
        assert program.is_absolute()
        assert not program.is_relative_to(planted.root)
        assert not program.is_relative_to(scratch)
    assert not [each for each in audited.started if "sk-never-used" in each["environment"].values()]


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.long)]
)
def test_a_demo_that_is_interrupted_ends_its_workers(demo: Cli, scratch: Path, number: int, code: int) -> None:
    playing = demo.start("demo", "--headless")
    eventually(lambda: any(scratch.glob("*/.crewboard/demo/agents/courier/lease")), "the courier's hiring")
    ran = finish(playing, number)
    assert ran.code == code
    assert "Traceback" not in ran.err
    eventually(lambda: is_clean(scratch), "nothing left")


def test_the_demo_fills_the_dashboard_and_ends_its_workers(demo: Cli, scratch: Path) -> None:
    child = pexpect.spawn(
        COMMAND[0], [*COMMAND[1:], "demo"], cwd=str(demo.root), env={**demo.environment, "TERM": "xterm-256color"},
        dimensions=(24, 80), timeout=30,
    )  # fmt: skip
    screen = pyte.Screen(80, 24)
    stream = pyte.ByteStream(screen)

    def shows(words: str) -> bool:
        with contextlib.suppress(pexpect.TIMEOUT):
            stream.feed(child.read_nonblocking(65_536, timeout=0.05))
        return words in "\n".join(screen.display)

    for words in ("scout", "courier", "killed by SIGKILL"):
        eventually(partial(shows, words), f"{words} on the board")
    child.send("q")
    child.expect("The demo is over")
    child.expect(pexpect.EOF, timeout=30)
    child.close()
    assert child.exitstatus == 0
    eventually(lambda: is_clean(scratch), "nothing left")
