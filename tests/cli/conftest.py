"""Fixtures of the command line tests."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from crewboard.commands import hire
from crewboard.commands.context import Team
from crewboard.protocol import supervisor_client
from crewboard.store import roster
from crewboard.store.layout import TeamDirectory, team_directories
from crewboard_tui.cli import common
from tests.cli.shell import Cli, Inside, clean_environment
from tests.crew import WAIT_TIMEOUT, Crew, eventually


@pytest.fixture(autouse=True)
def _no_wait_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no command say what it waits for, unless a test is about that: a busy machine makes any wait long."""
    monkeypatch.setattr(hire, "_TOLD_AFTER", WAIT_TIMEOUT)


@pytest.fixture
def cli(kept_in: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Return the command line in an empty directory, run in the process of the tests. New teams get no supervisor."""
    monkeypatch.setattr(common, "prepare", lambda _: None)
    return Inside(tmp_path)


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Cli]:
    """Return the command line in an empty directory; each command is a process of its own."""
    run = Cli(tmp_path)
    yield run
    run.end()
    revived = [found for found in team_directories(tmp_path) if supervisor_client.is_alive(found)]
    for found in revived:
        supervisor_client.request_exit(found)
    eventually(lambda: not any(map(supervisor_client.is_alive, revived)), "the end of every supervisor")


@pytest.fixture
def team(directory: TeamDirectory, monkeypatch: pytest.MonkeyPatch) -> Team:
    """Return the default team there, without workers; agents that are only files need no supervisor."""
    monkeypatch.setattr(supervisor_client, "ensure_running", lambda _: None)
    return Team(directory)


@pytest.fixture
def offline(kept_in: str, tmp_path: Path) -> Iterator[Cli]:
    """Return the command line on the offline model; end all that it starts, and check that nothing is left.

    Commands that go on are processes of their own, the others run in the tests' own.
    """
    with _offline(tmp_path) as run:
        yield run


@pytest.fixture(scope="module")
def shared(kept_in: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cli]:
    """Return one such command line for all tests of a module.

    Each hires under names of its own, and takes down nothing but its own agents.
    """
    with _offline(tmp_path_factory.mktemp("shared")) as run:
        yield run


@contextmanager
def _offline(root: Path) -> Iterator[Cli]:
    run = Inside(root, clean_environment(CREWBOARD_OFFLINE="1", CREWBOARD_OFFLINE_PACE="0"))
    yield run
    run.end()
    for found in run("team", "list", "--json").json:
        assert run("team", "delete", found["name"], "--now").code == 0
    try:
        eventually(lambda: not processes_of(root), "the end of every process of the team")
    except AssertionError as error:
        raise AssertionError(f"{error}: {[each.as_dict() for each in processes_of(root)]}") from None


@pytest.fixture
def live(crew: Crew) -> Cli:
    """Return the command line of a team of real workers."""
    return Inside(crew.root, crew.environment)


def processes_of(root: Path) -> list[psutil.Process]:
    """Return the processes with the root in their command line."""
    return [
        found
        for found in psutil.process_iter(["cmdline"])
        if any(str(root) in part for part in found.info["cmdline"] or [])
    ]


@pytest.fixture
def damaged(directory: TeamDirectory) -> TeamDirectory:
    """Return a team with a torn roster."""
    whole = directory.config.get() or b""
    directory.config.put(whole[: len(whole) // 2])
    with pytest.raises(Exception, match="damaged"):
        roster.load(directory)
    return directory
