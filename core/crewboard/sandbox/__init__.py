"""The sandbox in which an agent's file tools and commands run.

Each module is loaded when it is first used: the supervisor sweeps `scratch` folders and needs nothing else.
"""

from typing import TYPE_CHECKING

from crewboard.lazy import lazy

if TYPE_CHECKING:
    from crewboard.sandbox import git, level, policy, shell
else:
    __getattr__ = lazy(__name__, {}, modules="git level policy shell")

__all__ = ["git", "level", "policy", "shell"]
