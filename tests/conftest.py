"""Fixtures that most tests share."""

import signal
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from crewboard.offline.faults import Fault
from crewboard.offline.reply import Reply
from crewboard.offline.server import ModelServer
from crewboard.store import roster
from crewboard.store.directory import TeamDirectory
from tests.crew import Crew

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # so it is in a shell's background, and commands would inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def directory(tmp_path: Path) -> TeamDirectory:
    """An empty team."""
    team = TeamDirectory(tmp_path / ".crewboard" / "default")
    team.make()
    roster.create(team, "", 1.0)
    return team


@pytest.fixture
def crew_on(tmp_path: Path) -> Iterator[Callable[..., Crew]]:
    """Makes a team of real workers on a model that behaves as asked: `script`, `faults`, `window`, variables."""
    with ExitStack() as stack:

        def make(
            script: Iterable[Reply] | Mapping[str, Iterable[Reply]] = (),
            faults: Iterable[Fault] = (),
            window: int = 200_000,
            **environment: str,
        ) -> Crew:
            model = stack.enter_context(ModelServer(script=script, faults=faults, window=window))
            crew = Crew(tmp_path, model, **environment)
            stack.callback(crew.end)
            return crew

        yield make


@pytest.fixture(scope="module")
def guild(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crew]:
    """A team for the tests of a module together; the first of them waits for it to start.

    Each hires under names of its own, gives replies to those (`guild.model.give`), writes files of its own, and takes
    down nothing but its own agents.
    """
    with ModelServer() as model:
        crew = Crew(tmp_path_factory.mktemp("guild"), model)
        yield crew
        crew.end()


@pytest.fixture
def crew(crew_on: Callable[..., Crew]) -> Crew:
    """A team of real workers on the embedded model."""
    return crew_on()
