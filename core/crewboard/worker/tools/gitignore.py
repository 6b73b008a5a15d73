"""The rules of `.gitignore` files: which files a search leaves out. Imports only the standard library."""

import fnmatch
from typing import NamedTuple

NAME = ".gitignore"

MAX_SIZE = 256 * 1024
"""Bytes of such a file that are read."""

MAX_RULES = 1000
"""Lines of such a file that count."""

MAX_ANY_FOLDERS = 3
"""Number of `**` that a rule may have. More would take long to compare with each path."""


class _Rule(NamedTuple):
    """A line of a `.gitignore` file in the folder with these `steps` from the root."""

    steps: tuple[str, ...]
    pattern: tuple[str, ...]
    negated: bool
    folders_only: bool


class IgnoreRules(NamedTuple):
    """The rules of `.gitignore` files for paths below the folder `top`, a path from the root. The last rule counts."""

    top: str
    rules: tuple[_Rule, ...] = ()

    def with_text(self, text: str, steps: tuple[str, ...]) -> "IgnoreRules":
        """Return the rules with those of the file with this text, in the folder that `steps` lead to."""
        found = (_read_rule(line, steps) for line in text.splitlines()[:MAX_RULES])
        return self._replace(rules=(*self.rules, *(rule for rule in found if rule is not None)))

    def match(self, path: str, *, is_folder: bool) -> bool:
        """Return True if a path below `top` is ignored."""
        steps = tuple(f"{self.top}{path}".split("/"))
        for rule in reversed(self.rules):
            if (is_folder or not rule.folders_only) and _match_steps(rule.pattern, steps[len(rule.steps) :]):
                return not rule.negated
        return False


def _read_rule(line: str, steps: tuple[str, ...]) -> _Rule | None:
    line = line.rstrip(" ") if not line.rstrip(" ").endswith("\\") else line
    negated, pattern = line.startswith("!"), line.removeprefix("!")
    if not pattern.strip("/") or line.startswith("#"):
        return None
    parts = tuple(pattern.removeprefix("\\").strip("/").split("/"))
    is_anchored = "/" in pattern.rstrip("/")
    if parts.count("**") > MAX_ANY_FOLDERS:
        return None
    return _Rule(steps, parts if is_anchored else ("**", *parts), negated, pattern.endswith("/"))


def _match_steps(pattern: tuple[str, ...], steps: tuple[str, ...]) -> bool:
    """Return True if the steps of a path match those of a pattern, where `**` stands for any folders."""
    if not pattern or not steps:
        return not pattern and not steps
    if pattern[0] == "**":
        if len(pattern) == 1:
            return True
        return any(_match_steps(pattern[1:], steps[start:]) for start in range(len(steps)))
    return fnmatch.fnmatchcase(steps[0], pattern[0]) and _match_steps(pattern[1:], steps[1:])
