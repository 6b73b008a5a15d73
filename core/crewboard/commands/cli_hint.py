"""Command lines for hints in messages: with the global options that a command for a team needs in this shell."""

import shlex
from dataclasses import dataclass

from crewboard import env
from crewboard.commands.context import Team, choose_team, has_key, root_options
from crewboard.errors import CrewboardError
from crewboard.store.layout import TeamDirectory

_STARTS_WORKERS = frozenset({"", "board", "spawn", "resume", "lead"})
"""Commands that start workers, and so need `--offline`. The empty one opens the dashboard."""


@dataclass(frozen=True)
class CommandLine:
    """The command `crewboard` for one team.

    `options` name root and team where they are needed; `offline` is True if `--offline` is needed.
    """

    options: tuple[str, ...] = ()
    offline: bool = False

    @classmethod
    def of(cls, team: Team) -> "CommandLine":
        """Return the command for `team`, as typed in the current directory with the current environment."""
        said = env.is_offline()
        return cls(_options(team.directory), offline=runs_offline(team) and not said)

    def words(self, *command: str) -> list[str]:
        """Return the words of a command such as `resume`, `w2`."""
        verb = command[0] if command else ""
        offline = ["--offline"] if self.offline and verb in _STARTS_WORKERS else []
        return ["crewboard", *self.options, *offline, *command]

    def __call__(self, command: str = "") -> str:
        """Return the line for a command such as `resume w2`. It is not quoted, so that it may contain `TEXT`."""
        verb, _, rest = command.partition(" ")
        words = shlex.join(self.words(*([verb] if verb else [])))
        return f"{words} {rest}" if rest else words


def command_for(team: Team, command: str) -> str:
    """Return the whole line of one command for `team`."""
    return CommandLine.of(team)(command)


def runs_offline(team: Team) -> bool:
    """Return True if agents started in this environment use the offline model.

    A team that has used it continues with it if there is no API key.
    """
    return team.offline or (not has_key(team.environment) and team.directory.model_lock.exists())


def _options(team: TeamDirectory) -> tuple[str, ...]:
    root = root_options(team.root)
    try:
        needless = not root and choose_team(team.root, None).path == team.path
    # The environment names another team, which does not exist.
    except CrewboardError:
        needless = False
    return () if needless else (*root, "--team", team.path.name)
