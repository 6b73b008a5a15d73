"""A command as one types it for a team in this shell: with the global options that it takes here, and no others."""

import shlex
from dataclasses import dataclass

from crewboard import env
from crewboard.commands.context import Team, choose_team, has_key, root_options
from crewboard.errors import CrewboardError
from crewboard.store.layout import TeamDirectory

_STARTS_WORKERS = frozenset({"", "board", "spawn", "resume", "lead"})
"""Commands that say on which model workers work; without any, the dashboard opens."""


@dataclass(frozen=True)
class CommandLine:
    """`crewboard` for one team: `options` name root and team, `offline` the embedded model, where one must."""

    options: tuple[str, ...] = ()
    offline: bool = False

    @classmethod
    def of(cls, team: Team) -> "CommandLine":
        """As it is called for `team` from where this process was started."""
        said = env.is_offline()
        return cls(_options(team.directory), offline=runs_offline(team) and not said)

    def words(self, *command: str) -> list[str]:
        """The words of a command such as `resume`, `w2`."""
        verb = command[0] if command else ""
        offline = ["--offline"] if self.offline and verb in _STARTS_WORKERS else []
        return ["crewboard", *self.options, *offline, *command]

    def __call__(self, command: str = "") -> str:
        """The line of a command such as `resume w2`, which stays as it is written: `TEXT` is to be replaced."""
        verb, _, rest = command.partition(" ")
        words = shlex.join(self.words(*([verb] if verb else [])))
        return f"{words} {rest}" if rest else words


def command_for(team: Team, command: str) -> str:
    """The whole line of one command for `team`."""
    return CommandLine.of(team)(command)


def runs_offline(team: Team) -> bool:
    """Whether who is started from here works on the embedded model.

    A team that has worked on it goes on with it where there is no key for another.
    """
    return team.offline or (not has_key(team.environment) and team.directory.model_lock.exists())


def _options(team: TeamDirectory) -> tuple[str, ...]:
    root = root_options(team.root)
    try:
        needless = not root and choose_team(team.root, None).path == team.path
    except CrewboardError:  # the team that the environment names is another one, and not there
        needless = False
    return () if needless else (*root, "--team", team.path.name)
