"""What a user has set for the dashboard, in the environment and in files; what cannot be used is named."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self, TypeVar

from crewboard_tui import keyfile
from crewboard_tui.outside import WAYS, Notify

T = TypeVar("T", bound=str)


@dataclass(frozen=True)
class Settings:
    """The dashboard as its user wants it.

    `keys` are those that differ from the table, by id; `problems` are sentences about what could not be used.
    """

    notify: Notify = "off"
    keys: Mapping[str, str] = field(default_factory=dict)
    problems: tuple[str, ...] = ()

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> Self:
        """The settings of this environment."""
        problems: list[str] = []
        notify = _one_of("CREWBOARD_NOTIFY", WAYS, environment, problems)
        keymap = keyfile.read(keyfile.path(environment))
        return cls(notify=notify or "off", keys=keymap.keys, problems=(*problems, *keymap.problems))


def _one_of(name: str, known: tuple[T, ...], environment: Mapping[str, str], problems: list[str]) -> T | None:
    given = environment.get(name, "").strip().lower()
    for value in known:
        if value == given:
            return value
    if given:
        problems.append(f"{name}={given} means nothing; it may be {', '.join(known)}")
    return None
