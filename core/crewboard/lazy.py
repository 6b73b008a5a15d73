"""Packages whose modules are loaded when they are first used: most processes need little of each package.

Such a package imports its public names for the type checker alone, and finds them at run time by a table:

    if TYPE_CHECKING:
        from crewboard.store import roster
        from crewboard.store.layout import HOME, TeamDirectory
    else:
        __getattr__ = lazy(__name__, {"layout": "HOME TeamDirectory"}, modules="roster")

A test checks that both say the same.
"""

import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any


def lazy(package: str, names: Mapping[str, str], *, modules: str = "") -> Callable[[str], Any]:
    """Return the function `__getattr__` of a package (PEP 562).

    `names` has what each module of the package defines for others, separated by spaces; `name=other` publishes the
    module's `other` as `name`. `modules` are published as they are.
    """
    places = {}
    for module, defined in names.items():
        for each in defined.split():
            name, _, other = each.partition("=")
            places[name] = module, other or name
    whole = frozenset(modules.split())

    # Any: whatever the package publishes.
    def load(name: str) -> Any:  # noqa: ANN401
        if name in places:
            module, own = places[name]
            value = getattr(_load(f"{package}.{module}"), own)
        elif name in whole:
            value = _load(f"{package}.{name}")
        else:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        # From now on Python finds it without this function.
        setattr(sys.modules[package], name, value)
        return value

    return load


def _load(module: str) -> ModuleType:
    # Unlike importlib.import_module, this is seen by `python -X importtime`.
    __import__(module)
    return sys.modules[module]
