"""Fixtures that most tests share."""

import gc
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from crewboard.offline.faults import Fault
from crewboard.offline.reply import Reply
from crewboard.store import roster
from crewboard.store.layout import TeamDirectory
from tests.crew import Crew
from tests.model import ModelServer

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # so it is in a shell's background, and commands would inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)

_TEAMS_OF_MODULES = {"guild", "shared"}


@pytest.hookimpl(tryfirst=True)  # before the groups are read
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give the tests that share a team to one runner; each of several would start the team anew."""
    for item in items:
        if isinstance(item, pytest.Function) and not _TEAMS_OF_MODULES.isdisjoint(item.fixturenames):
            item.add_marker(pytest.mark.xdist_group(item.module.__name__))


def pytest_collection_finish() -> None:
    """Spare the collector what lives as long as the run: a tenth of the processor goes there otherwise."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


@pytest.fixture
def directory(tmp_path: Path) -> TeamDirectory:
    """An empty team."""
    team = TeamDirectory(tmp_path / ".crewboard" / "default")
    team.make()
    roster.create(team, "", 1.0)
    return team


def _maker(stack: ExitStack, root: Path, made: Callable[[Crew], object] = lambda _: None) -> Callable[..., Crew]:
    """Makes teams below `root`, each on a model server of its own that ends with `stack`."""

    def make(
        script: Iterable[Reply] | Mapping[str, Iterable[Reply]] = (),
        faults: Iterable[Fault] = (),
        window: int = 200_000,
        **environment: str,
    ) -> Crew:
        model = stack.enter_context(ModelServer(script=script, faults=faults, window=window))
        crew = Crew(root, model, **environment)
        made(crew)
        return crew

    return make


@pytest.fixture
def crew_on(tmp_path: Path) -> Iterator[Callable[..., Crew]]:
    """Makes a team of real workers on a model that behaves as asked: `script`, `faults`, `window`, variables."""
    with ExitStack() as stack:
        yield _maker(stack, tmp_path, lambda crew: stack.callback(crew.end))


@pytest.fixture(scope="module")
def guild(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crew]:
    """A team for the tests of a module together; the first of them waits for it to start.

    Each hires under names of its own, gives replies to those (`guild.model.give`), or has a model of its own for them
    (`guild_on`), writes files of its own, and takes down nothing but its own agents and the supervisor, whose successor
    adopts the others.
    """
    with ModelServer() as model:
        crew = Crew(tmp_path_factory.mktemp("guild"), model)
        yield crew
        crew.end()


@pytest.fixture
def guild_on(guild: Crew) -> Iterator[Callable[..., Crew]]:
    """The guild as those see it whom a test hires on a model of their own, made as `crew_on` makes it."""
    with ExitStack() as stack:
        yield _maker(stack, guild.root)


@pytest.fixture
def crew(crew_on: Callable[..., Crew]) -> Crew:
    """A team of real workers on the embedded model."""
    return crew_on()
