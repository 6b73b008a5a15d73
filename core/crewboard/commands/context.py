"""The context of a command: the team, who gives it, its environment, and the command lines that hints show."""

import os
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import force_setattr

from crewboard import endpoint, env
from crewboard.errors import CredentialsError, CrewboardError, UsageError
from crewboard.names import OPERATOR, check_new_team, check_team
from crewboard.records.agents import Spec, Tokens
from crewboard.records.team import Act, Config, Member
from crewboard.store import hosts, operators, roster
from crewboard.store.layout import DEFAULT_TEAM, AgentDirectory, TeamDirectory, find_root, team_directories
from crewboard.store.roster import find_team

FINDS_MODELS = "; `crewboard doctor` finds models on this machine"
"""The end of the error text for a missing key."""

NONE = "none"
"""The value that removes a setting or a budget, and that hires without the engine of the team's settings."""

_OWN_MODEL = "it has a model of its own"
_OWN_QUESTIONS = "it asks for what it wants itself"
_STEPS_ALONE = "of terms it takes only steps to hold or to refuse, as an instruction"

LACKS: Mapping[str, tuple[str, str]] = {
    "--model": (_OWN_MODEL, ""),
    "--effort": (_OWN_MODEL, ""),
    "--thinking": (_OWN_MODEL, ""),
    "--web": ("an engine has the web only as a tool of its own", ""),
    "--window": (_OWN_MODEL, ""),
    "--max-reply": (_OWN_MODEL, ""),
    "--strict-plan": ("its own tools are not compared with its plan", ""),
    "--ask": (_OWN_QUESTIONS, ""),
    "attached files": (
        "its engine is sent text alone. Put the file below its folder, and name it in the message",
        "only agents of crewboard take files",
    ),
    "asking": (_OWN_QUESTIONS, _STEPS_ALONE),
    "tools": (_OWN_QUESTIONS, _STEPS_ALONE),
    "network": (_OWN_QUESTIONS, _STEPS_ALONE),
    "budget": ("", _STEPS_ALONE),
}  # fmt: skip
"""The options of a hire, attached files, and the terms of an approval, all of which crewboard's own workers take.

For each: the reason why an agent with an engine does not take it, and the reason why an agent of Claude Code does not;
an empty text if the agent takes it, or for an option of a hire, because agents of Claude Code are not hired here.
"""

_OF_OWN_TOOLS = frozenset({"--strict-plan", "--ask", "asking", "tools", "network"})
"""Options and terms that an engine does not take because it works with tools of its own."""

POLL_INTERVAL = 0.02
"""Seconds between two checks of a condition that a command waits for."""


class Team(Struct, frozen=True):
    """A team, who gives a command to it (`by`: the operator or an agent), and the environment of the command."""

    directory: TeamDirectory
    by: str = OPERATOR
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    now: Callable[[], float] = time.time
    """Returns the time in epoch seconds; by default, that of the team's store, which all its machines share."""
    tell: Callable[[str], object] = lambda _: None
    """Called with a text about what a command is going to wait for."""
    new_settings: Callable[[], Mapping[str, object]] = dict
    """Returns the settings of a new team, if a command creates the team."""

    def __post_init__(self) -> None:
        """Take the clock of the team's store if none is given."""
        if self.now is time.time:
            force_setattr(self, "now", partial(hosts.now, self.directory))

    def lacks(self, name: str) -> dict[str, str]:
        """Return the keys of `LACKS` that an agent does not take, each with the reason."""
        spec = self.directory.agent(name).spec.load()
        if roster.is_attached(self.directory):
            return {what: why for what, (_, why) in LACKS.items() if why}
        return lacks_with_engine(own_tools=spec.has_own_tools) if spec is not None and spec.engine is not None else {}

    @property
    def offline(self) -> bool:
        """Return True if agents that are started now use the offline model, here or on the team's hosts."""
        return self.offline_here or hosts.are_offline(self.directory)

    @property
    def offline_here(self) -> bool:
        """Return True if agents that are started on this machine use the offline model.

        The environment says so, or the team does: one that has used it stays on it, whether or not there is an API key,
        so that nothing becomes paid work unasked.
        """
        return env.is_offline(self.environment) or roster.uses_offline_model(self.directory)

    @property
    def worker_environment(self) -> Mapping[str, str]:
        """Return the environment of workers that are started now.

        It selects the offline model if the team uses that, else the server of the team's settings, if there is one.
        """
        if self.offline:
            return {**self.environment, env.OFFLINE: "1"}
        config = roster.load_or_none(self.directory)
        return endpoint.at_server(self.environment, config.server if config is not None else None)

    @property
    def operator(self) -> str:
        """Return the name of the user who gives commands in this environment."""
        return env.operator(self.environment)

    def note(self, act: str, target: str = "", detail: str = "") -> None:
        """Record in the audit log that the operator did `act` to `target`, or to the team if `target` is empty.

        Do nothing if an agent gives the command: its acts are in its journal. An error is only logged.
        """
        if self.by != OPERATOR:
            return
        entry = Act(ts=self.now(), who=self.operator, act=act, target=target, detail=detail)
        # A full disk must not prevent the operator from stopping an agent.
        try:
            operators.note_act(self.directory, entry)
        except CrewboardError as error:
            # Imported here: every command loads this module.
            import logging

            logging.getLogger(__name__).warning("not recorded in %s: %s", self.directory.audit, error)

    @property
    def config(self) -> Config:
        """Return the roster and settings; an empty roster if the team does not exist yet."""
        try:
            return roster.load(self.directory)
        except UsageError:
            if self.directory.exists():
                raise
            return Config(name=self.directory.path.name)

    def member(self, name: str) -> Member:
        """Return the roster entry of the agent called `name`.

        Raises:
            UsageError: There is no such agent; the message lists the names.
        """
        config = self.config
        member = config.member(name)
        if member is None:
            known = ", ".join(m.name for m in config.members)
            hired = f"its agents are {known}" if known else "it has no agents yet"
            raise UsageError(f"there is no agent {name!r} on this team; {hired}")
        return member

    def agent(self, name: str) -> AgentDirectory:
        """Return the files of the agent called `name`.

        Raises:
            UsageError: There is no such agent.
        """
        return self.directory.agent(self.member(name).name)

    def own_agent(self, name: str) -> AgentDirectory:
        """Return the files of the agent called `name`, on a team whose agents are crewboard's own.

        Raises:
            UsageError: There is no such agent.
            BadDataError: The agents of the team belong to another program.
        """
        roster.require_own_agents(self.directory)
        return self.agent(name)

    def ensure(self) -> "Team":
        """Create the team if it does not exist yet, and return this object."""
        if not self.directory.exists():
            # First, because it refuses a wrong setting.
            settings = self.new_settings()
            self.directory.make()
            roster.ensure(self.directory, self.now(), settings)
        return self


def join_reasons(wrong: Sequence[str], lacks: Mapping[str, str]) -> str:
    """Return the reasons in `lacks` for the keys `wrong`, each once; if there are several, with the keys of each."""
    reasons: dict[str, list[str]] = {}
    for what in wrong:
        reasons.setdefault(lacks[what], []).append(what)
    if len(reasons) == 1:
        return lacks[wrong[0]]
    return "; ".join(f"{', '.join(given)}: {why}" for why, given in reasons.items())


def lacks_with_engine(*, own_tools: bool = True) -> dict[str, str]:
    """Return the keys of `LACKS` that an agent with an engine does not take, each with the reason.

    `own_tools` says that the engine works with tools of its own.
    """
    return {what: why for what, (why, _) in LACKS.items() if why and (own_tools or what not in _OF_OWN_TOOLS)}


def create(
    root: Path,
    name: str,
    description: str = "",
    url: str | None = None,
    new_settings: Callable[[], Mapping[str, object]] = dict,
) -> Team:
    """Create a team and return it. With `url`, the team's records are kept in that PostgreSQL database.

    `new_settings` returns the settings that the team begins with.

    Raises:
        UsageError: The name is invalid or taken, or the address cannot be used.
        StorageError: The root cannot be written to, or the database is out of reach.
    """
    directory = TeamDirectory(root / ".crewboard" / check_new_team(name))
    if find_team(root, name) is not None:
        raise UsageError(f"the team {name} exists in {root}")
    settings = new_settings()
    directory.make(url)
    roster.create(directory, description, time.time(), settings)
    team = Team(directory)
    team.note("create")
    return team


def adopt(team: Team) -> bool:
    """Mark a foreign team as this user's own; return False if it was the user's own already.

    Raises:
        StorageError: The mark cannot be written.
        UntrustedError: Another user controls the team.
    """
    if not team.directory.is_foreign():
        return False
    team.directory.adopt()
    team.note("adopt")
    return True


def name_team(team: Team, name: str, description: str) -> None:
    """Give the default team a name of its own, and a description.

    Raises:
        UsageError: The name is not valid or is taken, or the team already has a name of its own.
    """
    directory = team.directory

    def edit(config: Config) -> None:
        config.name, config.description = name, description

    current = roster.load(directory).name
    if current != DEFAULT_TEAM:
        raise UsageError(f"this team already has a name: {current}")
    other = find_team(directory.root, check_new_team(name))
    if other is not None and other != directory:
        raise UsageError(f"another team is called {name}")
    roster.change(directory, edit)


def choose_team(root: Path, explicit: str | None) -> TeamDirectory:
    """Return the team called `explicit`, else `$CREWBOARD_TEAM`, else the only team of the root, else `default`.

    The default team is returned even if it does not exist yet, if the root has no other one.

    Raises:
        UsageError: The named team does not exist; or none is named, and there are several without a `default`.
        UntrustedError: Another user controls the team.
    """
    name = explicit or env.team() or ""
    team = find_team(root, check_team(name)) if name else only_or_default(root, team_directories(root))
    if team is None:
        left = TeamDirectory(root / ".crewboard" / name)
        left.require_own()
        if left.address is not None:
            raise UsageError(
                f"the team {name} was deleted from its database {left.address.partition('?')[0]}; remove "
                f"{left.path} to make another one of that name"
            )
        known = ", ".join(each.path.name for each in team_directories(root)) or "none yet"
        raise UsageError(f"there is no team {name!r} in {root} (teams: {known}); `{create_command(root, name)}`")
    team.require_own()
    return team


def only_or_default(root: Path, teams: list[TeamDirectory]) -> TeamDirectory:
    """Return the only one of `teams`, else the default team, which need not exist yet if there are none.

    Raises:
        UsageError: There are several, and none of them is the default team.
    """
    default = TeamDirectory(root / ".crewboard" / DEFAULT_TEAM)
    if len(teams) > 1 and default not in teams:
        names = ", ".join(team.path.name for team in teams)
        raise UsageError(f"there are {len(teams)} teams in {root}: {names}; name one with --team")
    return teams[0] if len(teams) == 1 else default


def root_options(root: Path) -> list[str]:
    """Return the option `--root` and its value for a command typed here; nothing if `root` is the default here."""
    try:
        found: Path | None = find_root()
    # The environment names a root that does not exist, or the current directory was removed.
    except (CrewboardError, OSError):
        found = None
    return [] if found == root.resolve() else ["--root", str(root.resolve())]


def create_command(root: Path, name: str = "NAME") -> str:
    """Return the command line that creates a team in `root`."""
    return shlex.join(["crewboard", *root_options(root), "team", "create", name])


def wait_until(condition: Callable[[], bool], seconds: float, interval: float = POLL_INTERVAL) -> bool:
    """Wait until `condition` is true, checked every `interval` seconds; return False if it is not within `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(interval)
    return True


def has_key(environment: Mapping[str, str]) -> bool:
    """Return True if the environment or a file gives the SDK a key for the Messages API, valid or not."""
    return endpoint.credential(environment) is not None


def check_variables(environment: Mapping[str, str]) -> None:
    """Check that a worker with this environment, and the offline model's server, could use the values of variables.

    Raises:
        UsageError: They could not; the message names the variable and its value.
    """
    for problem_with in (env.seconds_problem, env.pace_problem, env.sandbox_problem):
        if (problem := problem_with(environment)) is not None:
            raise UsageError(problem)


def check_credentials(environment: Mapping[str, str]) -> None:
    """Check that a worker with this environment has a key and an address that can be used; send no request.

    With the offline model, check nothing.

    Raises:
        CredentialsError: There is no key, or one that cannot be sent, or the address cannot be used; the message says
            what to do.
    """
    if env.is_offline(environment):
        return
    if (problem := endpoint.address_problem(environment)) is not None:
        raise CredentialsError(problem)
    if (problem := endpoint.platform_problem(environment)) is not None:
        raise CredentialsError(problem)
    if endpoint.credential(environment) is None:
        url = endpoint.base_url(environment)
        raise CredentialsError(
            "no API key: set ANTHROPIC_API_KEY (keys are made in the Anthropic Console), or "
            f"try the offline model with --offline{FINDS_MODELS}"
            if endpoint.is_anthropic(url)
            else f"no API key for {endpoint.host_and_port(url)}: set ANTHROPIC_AUTH_TOKEN to the key of that server; "
            f"any text will do if your server asks for none: {endpoint.ANY_TEXT}"
        )
    if (problem := endpoint.key_problem(environment)) is not None:
        raise CredentialsError(problem)


def how_to_follow(team: Team, found: endpoint.RedirectedError) -> str:
    """Return in words how to make agents of a team use the server `found`, to which their present server redirects."""
    environment = team.worker_environment
    variable = endpoint.url_variable(environment)
    if found.base is None:
        return f"the requests of agents may fail there: check {variable}"
    # The setting of a team takes no address of a public network.
    if endpoint.base_url(environment) != endpoint.base_url(team.environment) and endpoint.is_private(found.base):
        return f"`{command_for(team, f'settings server {found.base}')}` uses that one"
    return f"set {variable} to {found.base}"


_STARTS_WORKERS = frozenset({"", "board", "spawn", "resume", "lead", "host"})
"""Commands that start workers, and so need `--offline` for the offline model. The empty one opens the dashboard."""


class CommandLine(Struct, frozen=True):
    """The command line of `crewboard` for one team, to show in hints.

    `options` name root and team, if that is needed here; `offline` is True if `--offline` is needed. `attached` says
    that the agents belong to another program. The command of a host, for any machine, is made of `team`, the `address`
    of its store, and `--offline` if `offline_hosts`, that is, if the other hosts use the offline model.
    """

    options: tuple[str, ...] = ()
    offline: bool = False
    attached: bool = False
    team: str = ""
    address: str | None = None
    offline_hosts: bool = False

    @classmethod
    def of(cls, team: Team) -> "CommandLine":
        """Return the command for `team`, as typed in the current directory with the current environment."""
        attached, directory = roster.is_attached(team.directory), team.directory
        offline = team.offline_here and not env.is_offline()
        root = root_options(directory.root)
        try:
            is_default = not root and choose_team(directory.root, None).path == directory.path
        # The environment names another team, which does not exist.
        except CrewboardError:
            is_default = False
        options = () if is_default else (*root, "--team", directory.path.name)
        return cls(options, offline, attached, directory.path.name, directory.address)

    def words(self, *command: str) -> list[str]:
        """Return the words of the whole command line for a command given as words, such as `resume`, `w2`."""
        verb = command[0] if command else ""
        says_offline = self.offline or (self.offline_hosts and verb == "host")
        offline = ["--offline"] if says_offline and verb in _STARTS_WORKERS else []
        if verb == "host" and self.address is not None:
            return ["crewboard", "--team", self.team, *offline, verb, "--store", self.address, *command[1:]]
        return ["crewboard", *self.options, *offline, *command]

    def __call__(self, command: str = "") -> str:
        """Return the whole command line for a command such as `resume w2`. Its arguments are not quoted."""
        verb, _, rest = command.partition(" ")
        words = shlex.join(self.words(*([verb] if verb else [])))
        return f"{words} {rest}" if rest else words


def require_here(team: Team, name: str, instead: str) -> None:
    """Check that the files of an agent are not on a host of the team; `instead` says what to do if they are.

    Raises:
        UsageError: The agent's last run was on a host.
    """
    status = team.directory.agent(name).status.load_or_none()
    if status is not None and status.host:
        raise UsageError(f"the files of {name} are on the host {status.host}: {instead}")


def require_spec(name: str, spec: Spec | None) -> Spec:
    """Return `spec`, that of the agent `name`, if it is not None.

    Raises:
        UsageError: It is None.
    """
    if spec is None:
        raise UsageError(f"{name} has no spec file; spawn it again")
    return spec


def require_price(team: Team, budget: str | None, model: str) -> None:
    """Check that a budget can be parsed, and if it is in money, that the price of the model is known.

    Without a price, a budget in money would never be reached. With the offline model, no price is needed.

    Raises:
        UsageError: The budget has another form than `parse_budget` reads, or the price is unknown.
    """
    # Imported here because most commands need no prices.
    from crewboard import pricing

    if budget is None or pricing.parse_budget(budget).usd is None or team.offline:
        return
    if pricing.load(team.directory.root).cost(model, Tokens()) is None:
        raise UsageError(
            f"the price of {model} is unknown: give the budget in tokens, or add the price to .crewboard/models.toml"
        )


def command_for(team: Team, command: str) -> str:
    """Return the whole command line for a command such as `resume w2`, as typed here for `team`."""
    return CommandLine.of(team)(command)
