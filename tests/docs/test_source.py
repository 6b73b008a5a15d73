"""The shape of the source: how many modules, which module imports which, how deep classes are stacked."""

import ast
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

# One test process reads all modules, not each.
pytestmark = pytest.mark.xdist_group(__name__)

MAX_MODULES = 289
MAX_IMPORTS = 8.67
"""Own modules that a module uses, on average."""

MAX_USED_ONCE = 0.111
"""The share of functions that are private and used once in their module. Such a function has to name an idea."""

MAX_CLASS_DEPTH = 2
"""Own classes stacked upon a class of a library."""

DATA_MODELS = ("crewboard.records.events.", "crewboard.offline.scenario.")
"""Modules of fields without behaviour. Three levels share fields: every record, every event, one kind of event."""


@cache
def modules() -> dict[str, ast.Module]:
    """Return every module of the product by its dotted name."""
    found = {}
    for source in (ROOT / "core", ROOT / "tui"):
        for path in sorted(source.rglob("*.py")):
            if "sample" not in path.parts:
                found[dotted(path.relative_to(source))] = ast.parse(path.read_text(encoding="utf-8"))
    return found


@pytest.fixture(scope="module", autouse=True)
def _forgotten() -> Iterator[None]:
    """Free a million nodes, through which each later collection of garbage would go."""
    yield
    modules.cache_clear()
    nodes.cache_clear()


def dotted(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


@cache
def nodes(name: str) -> tuple[ast.AST, ...]:
    """Return all nodes of a module, in the order of `ast.walk`, which takes as long as parsing."""
    return tuple(ast.walk(modules()[name]))


def imported(within: Iterable[ast.AST]) -> Iterator[str]:
    """Yield the own modules that are imported, also those imported inside of functions."""
    for node in within:
        if isinstance(node, ast.ImportFrom) and node.module in modules():
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield name if name in modules() else node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules())


def test_there_are_few_modules() -> None:
    assert len(modules()) <= MAX_MODULES


def test_a_module_uses_few_others() -> None:
    count = sum(len(set(imported(nodes(name))) - {name}) for name in modules())
    assert count / len(modules()) <= MAX_IMPORTS


def test_few_functions_are_used_once() -> None:
    """What Textual and pydantic find by its name is used more often than it is named."""
    once = total = 0
    for name in modules():
        defined = [node.name for node in nodes(name) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        used = Counter(node.id for node in nodes(name) if isinstance(node, ast.Name))
        used.update(node.attr for node in nodes(name) if isinstance(node, ast.Attribute))
        private = [each for each in defined if each.startswith("_") and not each.startswith(("__", "_on_", "_watch_"))]
        once += sum(used[each] == 1 and defined.count(each) == 1 for each in private)
        total += len(defined)
    assert once / total <= MAX_USED_ONCE


def test_packages_pass_no_names_on() -> None:
    """So that an import names the module to look into, and counts as what it is."""
    packages = {name.rpartition(".")[0] for name in modules()} - {"", "crewboard"}
    assert [name for name in sorted(packages) if set(imported(modules()[name].body))] == []


READ_THE_CLOCK = frozenset({
    # The store's clock is made from it, and the files of this machine have its times.
    "crewboard.store.file_store", "crewboard.store.hosts", "crewboard.store.files", "crewboard.unix.process",
    "crewboard.readmodel.processes", "crewboard.worker.tools.workspace",
    # Where the caller names no other, and where no time of another machine is compared.
    "crewboard.store.mailbox", "crewboard.commands.context", "crewboard.supervisor.reconciler",
    "crewboard.worker.llm.refusals",
    # A host tells its own time, with how far it is off.
    "crewboard.supervisor.host",
})  # fmt: skip
"""Modules of the core that may read the clock of this machine. Others read `store.hosts.now`, or are given a time."""


def test_times_that_machines_compare_are_of_one_clock() -> None:
    found = {
        name
        for name in modules()
        if name.startswith("crewboard.") and not name.startswith(("crewboard.attach.", "crewboard.offline."))
        if any(isinstance(node, ast.Attribute) and is_time(node) for node in nodes(name))
    }
    assert found == READ_THE_CLOCK


def is_time(node: ast.Attribute) -> bool:
    return node.attr == "time" and isinstance(node.value, ast.Name) and node.value.id == "time"


def test_only_the_store_asks_for_the_file_of_a_record() -> None:
    """A type checker refuses to open a `Key`. Only this attribute turns it into a path."""
    users = {
        name
        for name in modules()
        for node in nodes(name)
        if isinstance(node, ast.Attribute) and node.attr == "on_disk" and not name.startswith("crewboard.store.")
    }
    assert users == set()


def test_no_import_cycle_even_with_lazy_imports() -> None:
    graph = {name: set(imported(nodes(name))) - {name} for name in modules()}
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the cycle


def base_classes() -> dict[str, list[str]]:
    """Return the own bases of every own class, both as MODULE.CLASS."""
    found: dict[str, list[str]] = {}
    for module in modules():
        classes = [node for node in nodes(module) if isinstance(node, ast.ClassDef)]
        known = {node.name: f"{module}.{node.name}" for node in classes}
        for node in nodes(module):
            if isinstance(node, ast.ImportFrom) and node.module:
                known |= {alias.asname or alias.name: defining(node.module, alias.name) for alias in node.names}
        for each in classes:
            names = [ast.unparse(base).partition("[")[0] for base in each.bases]
            found[f"{module}.{each.name}"] = [known[name] for name in names if name in known and name != each.name]
    return found


def defining(module: str, name: str) -> str:
    """Return MODULE.NAME where it is defined, if the own package `module` passes it on."""
    tree = modules().get(module)
    typed = [node.body for node in tree.body if isinstance(node, ast.If)] if tree else []
    for node in itertools.chain(tree.body if tree else (), *typed):
        names = {alias.name for alias in node.names} if isinstance(node, ast.ImportFrom) else set()
        if isinstance(node, ast.ImportFrom) and node.module and node.module != module and name in names:
            return defining(node.module, name)
    return f"{module}.{name}"


def test_own_classes_are_at_most_two_deep() -> None:
    bases = base_classes()

    def depth(name: str) -> int:
        return 1 + max(map(depth, bases[name]), default=0) if name in bases else 0

    deep = {name: depth(name) for name in bases if depth(name) > MAX_CLASS_DEPTH}
    assert {name for name in deep if not name.startswith(DATA_MODELS)} == set()
    assert max(deep.values()) == MAX_CLASS_DEPTH + 1
