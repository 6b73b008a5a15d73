"""Fixtures that most tests share."""

import gc
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from crewboard.offline.reply import Reply
from crewboard.offline.service import Fault
from crewboard.store import roster
from crewboard.store.layout import TeamDirectory
from tests.crew import Crew
from tests.model import ModelServer

# A shell ignores SIGINT for background jobs, and the commands under test would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_TEAMS_OF_MODULES = {"shared_crew", "shared"}


# First, because pytest-xdist reads the groups in its own hook.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give tests that share a team to one test process; otherwise each process would start that team."""
    for item in items:
        if isinstance(item, pytest.Function) and not _TEAMS_OF_MODULES.isdisjoint(item.fixturenames):
            item.add_marker(pytest.mark.xdist_group(item.module.__name__))


def pytest_collection_finish() -> None:
    """Exclude what lives as long as the run from garbage collection, which otherwise takes 10 % of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


@pytest.fixture
def directory(tmp_path: Path) -> TeamDirectory:
    """Make an empty team."""
    team = TeamDirectory(tmp_path / ".crewboard" / "default")
    team.make()
    roster.create(team, "", 1.0)
    return team


def _maker(stack: ExitStack, root: Path, made: Callable[[Crew], object] = lambda _: None) -> Callable[..., Crew]:
    """Return a function that makes teams below `root`, each on a model server of its own that ends with `stack`."""

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
    """Return a function that makes a team of real workers, given `script`, `faults`, `window` and variables."""
    with ExitStack() as stack:
        yield _maker(stack, tmp_path, lambda crew: stack.callback(crew.end))


@pytest.fixture(scope="module")
def shared_crew(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crew]:
    """Make one team for all tests of a module, because starting one takes seconds.

    Each test uses agent names and files of its own. It gives replies to its agents (`shared_crew.model.give`), or has
    a model server of its own (`shared_crew_on`). It may end its own agents and the supervisor, whose successor adopts
    the others.
    """
    with ModelServer() as model:
        crew = Crew(tmp_path_factory.mktemp("shared"), model)
        yield crew
        crew.end()


@pytest.fixture
def shared_crew_on(shared_crew: Crew) -> Iterator[Callable[..., Crew]]:
    """Return a function that makes views of the `shared_crew` with a model server of their own, like `crew_on`."""
    with ExitStack() as stack:
        yield _maker(stack, shared_crew.root)


@pytest.fixture
def crew(crew_on: Callable[..., Crew]) -> Crew:
    """Make a team of real workers on the offline model."""
    return crew_on()
