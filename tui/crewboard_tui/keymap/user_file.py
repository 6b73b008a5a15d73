"""The user's own keys: `keys.toml` in crewboard's configuration directory, lines of `id = "keys"`.

Invalid lines are reported and skipped; the others apply. No content of the file can keep the dashboard from opening.
"""

import difflib
import os
import re
import string
from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec import Struct
from textual.keys import _character_to_key

from crewboard import env
from crewboard_tui.keymap.bindings import BY_ID, KEYS, Key, show_key

NAME = "keys.toml"

_TOGETHER: tuple[frozenset[str], ...] = (
    frozenset({"app", "view", "copy", "back", "agents", "inbox", "list", "marks", "sort", "wide"}),
    frozenset({"app", "view", "copy", "back", "tasks", "list", "marks", "sort"}),
    frozenset({"app", "view", "copy", "back", "agents", "tabs", "log"}),
    frozenset({"app", "view", "copy", "back", "agents", "tabs", "list", "folds"}),
    frozenset({"app", "view", "copy", "back", "request", "reveal", "question", "choices", "list"}),
    frozenset({"app", "view", "copy", "back", "request", "reveal", "edit", "log"}),
    frozenset({"reveal", "accept"}),
    frozenset({"reveal", "changes"}),
    frozenset({"reveal", "diff"}),
    frozenset({"hire", "form", "choice"}),
    frozenset({"hire", "form", "tick"}),
    frozenset({"hire", "prompt"}),
)
"""Groups of scopes whose keys can be active at the same time."""

_NAMED = {f"f{number}" for number in range(1, 25)} | {
    "escape", "enter", "tab", "space", "backspace", "delete", "insert", "home", "end", "pageup", "pagedown",
    "left", "right", "up", "down",
}  # fmt: skip
_MARKS = {_character_to_key(mark) for mark in string.punctuation}
_MODIFIED = re.compile(r"(?:(?:ctrl|alt|shift)\+)*(?P<key>.+)")
_RESERVED = frozenset({"ctrl+c"})


class Keymap(Struct, frozen=True):
    """Keys that differ from the default, by id, and problems found in the file."""

    keys: Mapping[str, str]
    problems: tuple[str, ...] = ()


def keymap_path() -> Path:
    """Return the path of the file; it need not exist."""
    return env.config_home(os.environ) / NAME


def read_keymap(file: Path) -> Keymap:
    """Read the user's keys from a file; there are none if it does not exist."""
    if not file.exists():
        return Keymap({})
    import tomllib

    try:
        given = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        return Keymap({}, (f"{file} cannot be read: {error}",))
    return choose(dict(_flat(given)))


def _flat(table: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Flatten tables: to TOML `app.next = "n"` is a nested table."""
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def choose(given: Mapping[str, object]) -> Keymap:
    """Return the valid keys of `given`, and why the others are invalid."""
    usable: dict[str, str] = {}
    problems: list[str] = []
    for ident, value in given.items():
        problem = _problem(ident, value)
        if problem:
            problems.append(problem)
        else:
            usable[ident] = ",".join(_long(str(value)))
    while clash := next(_clashes(usable), None):
        ident, key, other = clash
        del usable[ident]
        problems.append(f"{ident}: {show_key(key)} is already used by {other}")
    return Keymap(usable, tuple(problems))


def _problem(ident: str, value: object) -> str | None:
    key = BY_ID.get(ident)
    if key is None:
        near = difflib.get_close_matches(ident, BY_ID, n=1)
        return f"there is no key {ident}" + (f", did you mean {near[0]}?" if near else "")
    if not key.keys:
        return f"{ident} is a command of the palette and takes no key"
    if not isinstance(value, str) or not value.strip():
        return f'{ident} takes keys in quotes, such as "{key.keys}"'
    for name in _long(value):
        found = _MODIFIED.fullmatch(name)
        base = found["key"] if found else ""
        is_sign = len(base) == 1 and base.isascii() and base.isalnum()
        if name in _RESERVED or not (is_sign or base in _NAMED or base in _MARKS):
            return f"{ident}: unknown key {name!r}"
    return None


def _long(value: str) -> list[str]:
    """Return the keys of a line by their Textual names."""
    names = [name.strip() for name in value.split(",")]
    return [_character_to_key(name) if len(name) == 1 else name for name in names]


def _clashes(mine: dict[str, str]) -> Iterator[tuple[str, str, str]]:
    """Yield each id whose key is already used by another id, with the key and that id; the last line first."""
    for ident in reversed(mine):
        for key in mine[ident].split(","):
            for other in KEYS:
                if other.id != ident and _meet(BY_ID[ident], other) and key in _long(mine.get(other.id, other.keys)):
                    yield ident, key, other.id


def _meet(one: Key, other: Key) -> bool:
    """Return True if two keys must differ: both can be active at once, and they run different actions.

    Keys of two scopes that share a default key need not differ.
    """
    # A file may have all keys of an action at the id that had them before it was split in two.
    if one.scope == other.scope and one.action and one.action == other.action:
        return False
    if one.scope != other.scope and set(one.keys.split(",")) & set(other.keys.split(",")):
        return False
    return one.scope == other.scope or any({one.scope, other.scope} <= scopes for scopes in _TOGETHER)


def keymap_template() -> str:
    """Return a file with every id and its keys, all commented out, for the user to edit."""
    lines = ['# The keys of crewboard: take the "#" from a line to change it. Put commas between several keys.']
    for key in KEYS:
        if key.keys:
            given = f'{key.id} = "{key.keys}"'
            lines.append(f"# {given:<32} # {key.says}")
    return "\n".join(lines)
