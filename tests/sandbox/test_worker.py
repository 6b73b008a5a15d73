"""Tests of sandboxed workers: what status shows, which hires are refused, and what a killed worker leaves."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from crewboard.commands import stop
from crewboard.errors import NoSandboxError
from crewboard.records.agents import SANDBOX_OFF
from crewboard.records.events import ToolResult
from crewboard.sandbox import level as ladder
from crewboard.sandbox import scratch
from crewboard.sandbox.level import Level
from crewboard.sandbox.scratch import Scratch
from crewboard.store import roster
from tests.cli.shell import Cli
from tests.crew import Crew, contents, eventually
from tests.model import calls, says
from tests.planted import NAMES, SHELLS, Planted
from tests.sandbox.test_level import with_bwrap
from tests.sandbox.test_shell import long_sleep, running
from tests.system import need_program

Make = Callable[..., Crew]

KEY = "a-key-of-the-tests"


def results_of(crew: Crew, name: str) -> list[str]:
    return [event.content for event in crew.events(name) if isinstance(event, ToolResult)]


def path_for(level: Level, folder: Path) -> str:
    """Return a PATH that leads to a level."""
    return os.environ["PATH"] if level == "bubblewrap" else with_bwrap(folder / "failing", "exit 1")


@pytest.mark.linux("sandbox")
def test_a_worker_runs_its_tools_in_the_sandbox(
    shared_crew_on: Make, level: Level, tmp_path_factory: pytest.TempPathFactory
) -> None:
    look = (
        "echo made > made; cat .crewboard/default/config.json; env; cat /proc/*/environ | tr '\\0' '\\n'; echo $TMPDIR"
    )
    name = f"maker-{level}"
    crew = shared_crew_on(
        [calls("bash", command=look), calls("write_file", path=f"written-{level}", content="x\n"), says("done")],
        PATH=path_for(level, tmp_path_factory.mktemp("bin")),
    )
    (crew.root / "made").write_text("")
    crew.run(name, "code", "work")
    assert crew.see(name).status.sandbox == level
    output, written = results_of(crew, name)
    assert (crew.root / "made").read_text() == "made\n"
    assert written == f"created written-{level} (1 line)"
    assert KEY not in output
    assert '"members"' not in output
    scratch = Path(output.splitlines()[-2])
    assert scratch.parent == Path(tempfile.gettempdir())
    assert scratch.is_dir()
    stop.stop_now(crew.team, name)
    eventually(lambda: not scratch.exists(), "the end of its scratch folder")
    assert not [path for path, data in contents(crew.directory.path).items() if KEY.encode() in data]


def test_a_type_that_executes_is_not_hired_without_a_sandbox(
    shared_crew_on: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    crew = shared_crew_on({"unsafe": [calls("bash", command="echo free"), says("done")]}, CREWBOARD_SANDBOX="none")
    with pytest.raises(NoSandboxError, match="unset CREWBOARD_SANDBOX"):
        crew.hire("maker", "code", "work")
    assert roster.load(crew.directory).member("maker") is None
    crew.run("scout", "explore", "List all Python files")
    assert crew.see("scout").status.sandbox == "none"
    crew.run("unsafe", "code", "work", unsafe_no_sandbox=True)
    assert crew.see("unsafe").status.sandbox == SANDBOX_OFF
    assert results_of(crew, "unsafe") == ["free\n[exit code 0]"]
    assert "--unsafe-no-sandbox" in crew.agent("unsafe").log.read_text()
    monkeypatch.setattr(ladder, "check", lambda *_, **__: None)
    crew.hire("maker", "code", "work")
    ended = crew.wait_for("maker", "crashed", "exited").exit
    assert ended is not None
    assert (ended.code, ended.reason) == (77, "no_sandbox")
    assert "unset CREWBOARD_SANDBOX" in crew.agent("maker").log.read_text()


@pytest.mark.linux("sandbox")
def test_nothing_outlives_a_worker_that_is_killed(
    shared_crew_on: Make, level: Level, tmp_path_factory: pytest.TempPathFactory
) -> None:
    mark = long_sleep()
    command = f"setsid nohup sleep {mark} & (setsid sleep {mark} &) ; sleep {mark}"
    crew = shared_crew_on([calls("bash", command=command)], PATH=path_for(level, tmp_path_factory.mktemp("bin")))
    crew.hire(f"killed-{level}", "test", "work")
    eventually(lambda: len(running(f"sleep\0{mark}")) == 3, "the command")
    crew.kill(f"killed-{level}")
    eventually(lambda: not running(mark), "its end")


def test_the_scratch_folders_of_the_killed_are_removed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    living, locked, killed = Scratch.make(), Scratch.make(), Scratch.make()
    (killed.path / "closed").mkdir(mode=0)
    (killed.path / "out").symlink_to("/etc")
    os.close(killed._lock)
    # As if another process, which is gone, had made them.
    for left in (locked, killed):
        left.path = left.path.rename(tmp_path / f"crewboard-run-1-1-{left.path.name[-4:]}")
    scratch.sweep()
    assert {path.name for path in tmp_path.iterdir()} == {living.path.name, locked.path.name}
    for left in (living, locked):
        left.remove()
    assert not list(tmp_path.iterdir())


@pytest.mark.long
def test_no_program_that_an_agent_planted_is_run(
    crew_on: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    need_program("git")
    planted = Planted(tmp_path, NAMES + SHELLS)
    crew = crew_on([calls("bash", command="echo said"), says("done")], PATH=planted.path)
    monkeypatch.setenv("PATH", planted.path)
    crew.run("tester", "test", "work", unsafe_no_sandbox=True)
    assert any("said" in result for result in results_of(crew, "tester"))
    shell = Cli(tmp_path, crew.environment)
    found = {check["name"]: check for check in shell("doctor", "--json").json}
    assert "is not in a git repository" in found["git"]["detail"], "or git was not looked for"
    assert planted.ran == []
