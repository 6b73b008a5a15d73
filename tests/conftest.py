"""Fixtures that most tests share."""

import fcntl
import gc
import os
import signal
import socket
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from crewboard import endpoint, env
from crewboard.offline.reply import Reply
from crewboard.offline.service import Fault
from crewboard.protocol import supervisor_client
from crewboard.store import layout, roster
from crewboard.store.layout import TeamDirectory
from tests import openapi
from tests.crew import Crew
from tests.model import ModelServer
from tests.postgres import SharedServer, teams_in
from tests.postgres import require as require_postgres
from tests.preloaded import Preloaded, start_new_interpreters
from tests.system import LINUX_ALONE, MEMORY, has_room

# A shell ignores SIGINT for background jobs, and the commands under test would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# So does `nohup`.
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# No test depends on the speed of the machine, or on chance; `--hypothesis-profile default` tries others, and more.
settings.register_profile(
    "crewboard",
    max_examples=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=True,
    database=None,
)
settings.load_profile("crewboard")

# Until all tests are collected, next to nothing that is made is garbage.
gc.disable()

_MAKE = TeamDirectory.make
_API_HOST = endpoint.API_HOST

# What cannot be loaded elsewhere: watchdog's inotify.
collect_ignore = [] if sys.platform == "linux" else ["readmodel/test_file_events.py"]

_MUCH_GARBAGE = 30_000
"""Objects, of which a dashboard leaves some thousands."""

_ON_BOTH_STORES = {"cli", "crash", "store", "supervisor", "worker"}
"""Folders whose tests run on teams in files and in PostgreSQL."""

_IN_ONE_TEST: dict[str, set[str]] = {
    "cli": {
        "bad_input", "cli_hint", "commands", "completion", "config", "doctor", "endpoint", "lead", "live", "models",
        "output", "startup", "steering",
    },
    "supervisor": {"caps", "hook", "offline_model", "prefork"},
    "worker": {
        "approval_terms", "cache_misses", "checks", "collisions", "context_window", "engine", "explorers", "fallbacks",
        "faults", "instructions", "lead_offline", "limits", "media", "model_size", "odd_replies", "outage", "own_types",
        "parallel_tools", "prefix", "request_protocol", "reviews", "stops", "terms", "thinking", "web", "work",
    },
}  # fmt: skip
"""Folders where one case of a matrix runs in PostgreSQL: the values are no matter of the store, whose own tests, and
those of crashes, run in all cases. Of these modules there, one test does, and those marked `both_stores`: they are
about what a model is asked and answers, or an engine, about processes, about what an agent may do, or about words, and
what they keep goes the way of all records: by the verbs that tests/store tries on both stores."""

_OF_MODULES = {"shared_crew", "shared", "targets"}
"""Fixtures that a module has once, and that are slow to make."""


def pytest_configure(config: pytest.Config) -> None:
    """Keep the files of the default suite in memory: making and removing small files on a disk takes a tenth of it.

    Long tests make gigabytes, and benchmarks measure what users have. `.ci/run` also runs tests of files on a disk.
    """
    if "PYTEST_DEBUG_TEMPROOT" in os.environ or not config.option.markexpr.startswith("not long and"):
        return
    if has_room(MEMORY):
        os.environ["PYTEST_DEBUG_TEMPROOT"] = str(MEMORY)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Let each test of a team run on one in PostgreSQL, too, unless it is marked `files_only`.

    That half is `long`, so the default suite is spared the tests that it would leave out.
    """
    names = metafunc.fixturenames
    # A test that names a database puts its team there by itself.
    if metafunc.config.option.markexpr.startswith("not long and") or "kept_in" not in names or "database" in names:
        return
    folder = metafunc.definition.path.parent.name
    if folder in _ON_BOTH_STORES and metafunc.definition.get_closest_marker("files_only") is None:
        stores = [
            pytest.param("files", id=pytest.HIDDEN_PARAM),
            pytest.param("postgresql", marks=pytest.mark.long),
        ]
        metafunc.parametrize("kept_in", stores, indirect=True, scope="module")


# First, because pytest-xdist reads the groups in its own hook.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give tests that share a team, or targets, to one test process; otherwise each process would make its own.

    Those that may take long begin first, so that the other processes have something to do meanwhile. Of a matrix that
    is not about the store, one case stays in PostgreSQL.
    """
    repeated = list(_repeated(items))
    config.hook.pytest_deselected(items=repeated)
    items[:] = [item for item in items if item not in set(repeated)]
    for item in items:
        if isinstance(item, pytest.Function) and not _OF_MODULES.isdisjoint(item.fixturenames):
            item.add_marker(pytest.mark.xdist_group(item.module.__name__))
    items.sort(key=_own_timeout, reverse=True)


def _repeated(items: list[pytest.Item]) -> Iterator[pytest.Item]:
    """Return cases in PostgreSQL of which another one of the test or module stays: one that runs by default, if any."""
    cases = defaultdict[str, list[pytest.Function]](list)
    for item in items:
        if (
            # Of a fixture with a store of its own.
            isinstance(item, pytest.Function)
            and hasattr(item, "callspec")
            and "postgresql" in item.callspec.params.values()
            and item.get_closest_marker("files_only") is not None
        ):
            yield item
        elif (
            isinstance(item, pytest.Function)
            and item.path.parent.name in _IN_ONE_TEST
            and hasattr(item, "callspec")
            and item.callspec.params.get("kept_in") == "postgresql"
            and item.get_closest_marker("both_stores") is None
        ):
            name = item.path.stem.removeprefix("test_")
            is_one = name in _IN_ONE_TEST[item.path.parent.name]
            cases[name if is_one else item.nodeid.partition("[")[0]].append(item)
    for found in cases.values():
        found.sort(key=lambda item: sum(1 for _ in item.iter_markers("long")))
        yield from found[1:]


def _own_timeout(item: pytest.Item) -> float:
    mark = item.get_closest_marker("timeout")
    return 0 if mark is None else float(mark.args[0])


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests marked `linux` where what only Linux has is not used, and nowhere else."""
    for mark in item.iter_markers("linux"):
        without = LINUX_ALONE[mark.args[0]]
        if env.is_posix():
            pytest.skip(f"without Linux's {mark.args[0]}: {without}")


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Let one test runner compile a module; the others read the bytecode that it keeps, which takes a tenth."""
    if not isinstance(collector, pytest.Module):
        return (yield)
    with collector.path.open("rb") as module:
        fcntl.flock(module, fcntl.LOCK_EX)
        return (yield)


def pytest_collection_finish() -> None:
    """Exclude what lives as long as the run from garbage collection, which otherwise takes a tenth of the time."""
    gc.collect()
    gc.freeze()
    gc.enable()
    # Only what one test alone leaves.
    gc.set_threshold(200_000, 20, 20)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """Forget where teams are kept, because a folder may get the name of an earlier one, and collect garbage.

    Between tests nearly all that the last ones made is garbage, and little is looked at.
    """
    layout._opened.clear()
    if gc.get_count()[0] > _MUCH_GARBAGE:
        gc.collect(1)


@pytest.fixture(scope="session", autouse=True)
def preloaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Preloaded]:
    """Start the supervisors of teams by a fork, because the imports of a new interpreter take most of a test's time."""
    folder = tmp_path_factory.getbasetemp()
    # The runners of pytest-xdist have a folder each in the one of the whole run.
    shared = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
    with Preloaded(shared) as processes, pytest.MonkeyPatch.context() as patch:
        patch.setattr(supervisor_client, "_spawn", processes.spawn)
        yield processes


@pytest.fixture(autouse=True)
def judged(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that sends the offline model what the API refuses, or gets from it what the API does not send."""
    openapi.judges = request.node.get_closest_marker("bench") is None
    yield
    found, openapi.misfits[:] = [*openapi.misfits], []
    if request.node.get_closest_marker("misfits") is None:
        assert not found, "\n".join(["the API's own description refuses:", *found])
    else:
        assert found, "nothing of it is refused by the API's own description: remove the mark"


@pytest.fixture(autouse=True)
def no_real_api(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let the API have no address in this process: its answer, or the wait for it, is no matter of a test.

    It does not use the fixture `monkeypatch`, which would then outlive the other fixtures of each test.
    """
    look_up = socket.getaddrinfo

    def found(host: object, *others: object, **options: object) -> object:
        if host == _API_HOST:
            raise socket.gaierror(socket.EAI_NONAME, "no test asks the API itself")
        return look_up(host, *others, **options)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        if request.node.get_closest_marker("live") is None:
            patch.setattr(socket, "getaddrinfo", found)
        yield


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedServer]:
    """Return the PostgreSQL server of this run of the tests."""
    require_postgres()
    folder = tmp_path_factory.getbasetemp()
    server = SharedServer(folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder)
    yield server
    server.leave()


@pytest.fixture(scope="session")
def shared_database(postgres: SharedServer) -> str:
    """Return the address of a database for tests that have teams of their own names."""
    return postgres.new_database()


@pytest.fixture
def database(postgres: SharedServer) -> str:
    """Make an empty database, and return its address."""
    return postgres.new_database()


@pytest.fixture(scope="module")
def kept_in(request: pytest.FixtureRequest) -> Iterator[str]:
    """Keep the teams that this process makes in `files`, or in `postgresql`, each in a database of its own."""
    kept = getattr(request, "param", "files")
    with ExitStack() as stack:
        if kept == "postgresql":
            stack.enter_context(teams_in(request.getfixturevalue("postgres")))
        yield kept


@pytest.fixture(autouse=True)
def own_store(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let a test that does not ask where teams are kept make them in files, also between two that do."""
    if TeamDirectory.make is _MAKE or "kept_in" in request.fixturenames:
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TeamDirectory, "make", _MAKE)
        yield


@pytest.fixture
def new_interpreters() -> Iterator[None]:
    """Start supervisors, and what they start, as new interpreters, for a test of just that."""
    with start_new_interpreters():
        yield


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Path]:
    """Make a folder in memory, where there is one: small files are made and replaced there in half the time."""
    if not has_room(MEMORY):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="crewboard-", dir=MEMORY) as folder:
        yield Path(folder)


@pytest.fixture
def directory(kept_in: str, tmp_path: Path) -> TeamDirectory:
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
        allows_stale_thinking: bool = False,
        **environment: str,
    ) -> Crew:
        model = stack.enter_context(
            ModelServer(script=script, faults=faults, window=window, allows_stale_thinking=allows_stale_thinking)
        )
        crew = Crew(root, model, **environment)
        made(crew)
        return crew

    return make


@pytest.fixture
def crew_on(kept_in: str, tmp_path: Path) -> Iterator[Callable[..., Crew]]:
    """Return a function that makes a team of real workers, given `script`, `faults`, `window` and variables."""
    with ExitStack() as stack:
        yield _maker(stack, tmp_path, lambda crew: stack.callback(crew.end))


@pytest.fixture(scope="module")
def shared_crew(kept_in: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crew]:
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
