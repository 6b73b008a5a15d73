"""Which needs have come and which are settled, from one reading of the team to the next."""

from collections.abc import Hashable
from dataclasses import dataclass

from crewboard.readmodel.team import Need, TeamView


@dataclass(frozen=True)
class News:
    """The needs that came and went since the last reading."""

    came: tuple[Need, ...]
    went: tuple[Need, ...]


class NeedsDiff:
    """Compares readings. A second death is another need; an agent that is stuck or loops on and on is one."""

    def __init__(self) -> None:
        self._known: dict[Hashable, Need] = {}

    def read(self, view: TeamView) -> News:
        """Return what came and what went since the last call; at the first call, everything came."""
        before, self._known = self._known, {identity(need): need for need in view.needs}
        return News(
            came=tuple(need for each, need in self._known.items() if each not in before),
            went=tuple(need for each, need in before.items() if each not in self._known),
        )


def identity(need: Need) -> Hashable:
    """Return what identifies a need while its words change."""
    return need.kind, need.agent, need.request_id, need.since if need.kind == "death" else None
