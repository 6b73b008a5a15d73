"""The demo runs by itself and leaves nothing behind."""

import contextlib
import gc
import shutil
import signal
import tempfile
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path

import pexpect
import pyte
import pytest

from crewboard import Assignment, env
from crewboard.readmodel.reader import read_team
from crewboard.records.agents import Status
from crewboard.unix import process
from crewboard_tui import dashboard
from crewboard_tui.app import CrewboardApp
from crewboard_tui.demo import HEADLESS_PACE, Stage
from tests.cli.audited import Audited
from tests.cli.conftest import processes_of
from tests.cli.shell import COMMAND, Cli, finish
from tests.crew import eventually
from tests.planted import Planted

pytestmark = pytest.mark.files_only("a demo keeps its team in files")

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


@pytest.fixture
def _inside(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Prepare this process for a demo, and restore the signal handlers that it replaces."""
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


SCENES = (
    "no language model", "killed courier", "killed by SIGKILL", "resumes courier", "approves the plan (as you)",
    "answers the question", "asks reviewer for a summary", "the sample's tests pass", "finished as expected",
)  # fmt: skip


@pytest.mark.usefixtures("_inside")
def test_the_headless_demo_exits_with_0_and_leaves_nothing(
    cli: Cli, scratch: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    planted = Planted(tmp_path_factory.mktemp("planted"))
    hire_all = Stage.hire_all
    given: list[str] = []

    def hire(stage: Stage) -> list[Future[Assignment]]:
        given.extend(stage.team.environment.values())
        return hire_all(stage)

    monkeypatch.setattr(Stage, "hire_all", hire)
    variables = {"ANTHROPIC_API_KEY": "sk-never-used", "CREWBOARD_ROOT": "/nowhere", "CREWBOARD_TEAM": "ghosts"}
    ran = cli.with_environment(PATH=planted.path, **variables)("demo", "--headless")
    assert ran.code == 0, ran.out + ran.err
    assert [scene for scene in SCENES if scene not in ran.out] == []
    assert is_clean(scratch)
    assert planted.ran == []
    assert given
    assert not {*variables.values()} & {*given}


@pytest.mark.long
def test_a_demo_process_runs_no_program_of_a_workspace(
    demo: Cli, scratch: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    assert tempfile.gettempdir() != str(scratch)
    audited = Audited(tmp_path_factory.mktemp("audited"))
    planted = Planted(tmp_path_factory.mktemp("planted"))
    demo = replace(demo.with_environment(PATH=planted.path), python=str(audited.python))
    ran = demo("demo", "--headless", seconds=LIMIT)
    assert ran.code == 0, ran.out + ran.err
    assert [scene for scene in SCENES if scene not in ran.out] == []
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


@pytest.mark.long
@pytest.mark.usefixtures("_inside")
def test_a_demo_that_is_interrupted_ends_its_workers(
    cli: Cli, scratch: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    working = []

    def interrupt(stage: Stage, status: Status) -> None:
        working.append((status.pid, stage.root.parent))
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Stage, "kill_courier", interrupt)
    ran = cli("demo", "--headless")
    assert ran.code == 130, ran.err
    assert "Traceback" not in ran.err + capfd.readouterr().err
    ((pid, parent),) = working
    assert parent == scratch.resolve()
    assert not process.start_ticks(pid)
    assert is_clean(scratch)


@pytest.mark.long
@pytest.mark.usefixtures("_inside")
def test_the_demo_fills_the_dashboard_and_ends_its_workers(
    cli: Cli, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def show(app: CrewboardApp) -> None:
        assert (app.ascii_only, app.settings.theme) == (True, "contrast")

        def courier_died() -> bool:
            found = read_team(app.context.team.directory).agent("courier")
            return found is not None and found.exit is not None and found.exit.signal == signal.SIGKILL

        eventually(courier_died, "the death of the courier")
        assert len(read_team(app.context.team.directory).agents) == 5

    build = Stage.build
    monkeypatch.setattr(Stage, "build", lambda *, pace: build(pace=HEADLESS_PACE))
    monkeypatch.setattr(CrewboardApp, "run", show)
    # It needs no terminal there.
    monkeypatch.setattr(env, "is_in_browser", lambda: True)
    monkeypatch.setattr(dashboard, "_end_with_server", lambda: None)
    monkeypatch.setattr(gc, "disable", lambda: None)
    cli("--read-only", "demo").refused(2, "the demo takes --ascii and --theme")
    ran = cli("--ascii", "demo", "--theme", "contrast")
    assert ran.code == 0, ran.err
    assert "The demo is over" in ran.out
    eventually(lambda: is_clean(scratch), "nothing left")


# An interrupt is raised in a demo above.
@pytest.mark.long
def test_a_demo_process_that_is_terminated_ends_its_workers(demo: Cli, scratch: Path) -> None:
    playing = demo.start("demo", "--headless")
    eventually(lambda: any(scratch.glob("*/.crewboard/demo/agents/courier/lease")), "the courier's hiring")
    ran = finish(playing, signal.SIGTERM)
    assert ran.code == 143
    assert "Traceback" not in ran.err
    eventually(lambda: is_clean(scratch), "nothing left")


@pytest.mark.long
def test_the_demo_fills_the_dashboard_of_a_terminal_and_ends_its_workers(demo: Cli, scratch: Path) -> None:
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
