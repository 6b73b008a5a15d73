"""The sandbox in which an agent's file tools and commands run.

Each module is loaded when it is first used: the supervisor sweeps `scratch` folders and needs nothing else.
"""

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from crewboard.sandbox import git, level, policy, shell

__all__ = ["git", "level", "policy", "shell"]


def __getattr__(name: str) -> ModuleType:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module(f"{__name__}.{name}")
