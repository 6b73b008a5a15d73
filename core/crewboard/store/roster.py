"""The roster and settings of a team (`config.json`), its caps, and how much of its budgets is used."""

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from crewboard.errors import BadDataError, CrewboardError, UsageError
from crewboard.pricing import Budget, budget_or_none
from crewboard.records.agents import Spec, State, TermsInForce, Tokens
from crewboard.records.team import Config, Member, Removed
from crewboard.store.json_records import cached_file
from crewboard.store.layout import TeamDirectory, team_directories
from crewboard.unix import process


def load(team: TeamDirectory) -> Config:
    """Return the team's roster and settings; while the file is damaged, as this process read them last.

    The returned record is shared: do not change it.

    Raises:
        UsageError: There is no such team.
        BadDataError: The file is damaged, and this process has not read it before; or it is gone, and the team has
            agents.
        StorageError: It cannot be read.
    """
    config = cached_file(team.config).get() or team.config.load()
    if config is None:
        raise _is_missing(team)
    return config


def _is_missing(team: TeamDirectory) -> CrewboardError:
    if team.exists():
        return BadDataError(
            f"{team.config} is gone, and the team has agents; put it back, or delete the team with --purge"
        )
    return UsageError(f"there is no team in {team.path}")


def create(team: TeamDirectory, description: str, now: float, settings: Mapping[str, Any] | None = None) -> Config:
    """Write the roster of a new team with these settings, and return it.

    Raises:
        UsageError: The team exists.
    """

    def fresh(old: Config | None) -> Config:
        if old is not None or team.exists():
            raise UsageError(f"the team {team.path.name} exists")
        return Config(name=team.path.name, description=description, created_at=now, **(settings or {}))

    return team.config.edit(fresh, durable=True)


def ensure(team: TeamDirectory, now: float, settings: Mapping[str, Any] | None = None) -> Config:
    """Return the roster of a team; if there is none, write one with these settings."""
    if not team.exists():
        team.config.edit(
            lambda old: old or Config(name=team.path.name, created_at=now, **(settings or {})), durable=True
        )
    return load(team)


def change(team: TeamDirectory, edit: Callable[[Config], None]) -> Config:
    """Change the roster with `edit`, which changes the record in place, while holding the lock; return the new roster.

    Raises:
        UsageError: There is no such team.
    """

    def apply(config: Config | None) -> Config:
        if config is None:
            raise _is_missing(team)
        edit(config)
        config.rev += 1
        return config

    return team.config.edit(apply, durable=True)


def put(team: TeamDirectory, member: Member, below: str | None = None) -> Config:
    """Add `member` to the roster, or replace the member of that name; return the new roster.

    A new member stands behind the agent `below` and those that report to it, or last if that is None or unknown.

    Raises:
        UsageError: There is no such team.
    """

    def edit(config: Config) -> None:
        names = [old.name for old in config.members]
        if member.name in names:
            config.members[names.index(member.name)] = member
        else:
            above = [at for at, old in enumerate(config.members) if below in (old.name, old.report_to)]
            config.members.insert(above[-1] + 1 if above else len(names), member)

    return change(team, edit)


def drop(team: TeamDirectory, name: str, left: Removed | None = None) -> Config:
    """Remove `name` from the roster, and return the new roster.

    Rules that allow this agent something are removed, because another agent may get the name; rules that deny or ask
    stay. `left` is what remains of the agent; it is added to what remains of earlier agents of the name.
    """

    def edit(config: Config) -> None:
        if left is not None and config.member(name) is not None:
            config.removed = {**config.removed, name: config.removed.get(name, Removed()) + left}
        config.members = [member for member in config.members if member.name != name]
        config.rules = [rule for rule in config.rules if rule.agent != name or rule.effect != "allow"]

    return change(team, edit)


def load_or_none(team: TeamDirectory) -> Config | None:
    """Return the team's roster and settings as `load` does; None if there are none, or they cannot be read."""
    try:
        return load(team)
    except CrewboardError:
        return None


def is_attached(team: TeamDirectory) -> bool:
    """Return True if the team mirrors a team of another program, which starts and ends its agents itself."""
    config = load_or_none(team)
    return config is not None and config.attached is not None


def uses_offline_model(team: TeamDirectory) -> bool:
    """Return True if agents have used the offline model, here or before an import, so that the team keeps using it.

    False if it is not known.
    """
    return team.has_model_mark() or ((config := load_or_none(team)) is not None and config.offline)


def require_own_agents(team: TeamDirectory) -> None:
    """Refuse a team that mirrors one of another program. Functions that start, steer or end agents call this first.

    Raises:
        BadDataError: The team mirrors one of Claude Code.
    """
    if is_attached(team):
        raise BadDataError(
            f"{team.path.name} mirrors a team of Claude Code, which starts, steers and ends its agents itself; "
            "nothing was changed"
        )


def find_team(root: Path, name: str) -> TeamDirectory | None:
    """Return the team in the directory `name`, else the team that its roster calls so; None if there is neither.

    Raises:
        UsageError: The rosters of several teams call them so, and no directory is called that.
        StorageError: The teams cannot be listed.
        UntrustedError: Another user controls the `.crewboard` of `root`.
    """
    teams = team_directories(root)
    # The directory first, because a copy has the name of what was copied.
    if (found := next((team for team in teams if team.path.name == name), None)) is not None:
        return found
    called = [team for team in teams if (config := load_or_none(team)) is not None and config.name == name]
    if len(called) > 1:
        raise UsageError(f"{len(called)} teams are called {name}; use {' or '.join(team.path.name for team in called)}")
    return called[0] if called else None


class Load(Struct, frozen=True):
    """What a team's caps limit: the numbers of running and of working agents, and the free memory in bytes."""

    agents: int
    working: int
    free_memory: int


_AT_WORK: frozenset[State] = frozenset({"starting", "working", "retrying", "stopping"})
"""States that count for `max_working`. An agent that waits for an answer does not count: a lead may wait for its
agents.
"""


MOST_EXPLORERS = 2
"""Most explorers of one agent at once. They ask the model at the same time, from its budget."""


def has_caps(config: Config) -> bool:
    """Return True if the team has a cap, which may keep an agent from starting."""
    return any(cap is not None for cap in (config.max_agents, config.max_working, config.min_free_memory))


def explorers_at_once(config: Config) -> int:
    """Return how many explorers that one reply asks for run at the same time.

    It is 1 if the team has caps: a second one might be refused that could start once the first has ended.
    """
    return 1 if has_caps(config) else MOST_EXPLORERS


def load_of(team: TeamDirectory, living: Iterable[str], starts: str = "") -> Load:
    """Return the load of the team.

    `living` are the agents that have a worker, `starts` is an agent that is about to get one, empty for none. Memory
    that engines of these agents will take counts as used, because engines start later than workers.
    """
    names = set(living)
    working = to_come = 0
    for name in {*names, starts} if starts else names:
        spec, status = team.agent(name).spec.load_or_none(), team.agent(name).status.load_or_none()
        # A worker that was just started has not written its status yet.
        begun = status if status is not None and (spec is None or status.run >= spec.run) else None
        if name in names:
            working += begun is None or begun.state in _AT_WORK
        if spec is not None and spec.engine is not None and (begun is None or not begun.engine_version):
            # Imported here because few agents have one, and every command loads this module.
            from crewboard import engines

            to_come += engines.known(spec.engine.name).memory
    return Load(len(names), working, max(0, process.available_memory() - to_come))


def cap_reached(config: Config, load: Load) -> str | None:
    """Return in words which cap of the team prevents another start; None if none does."""
    if config.max_agents is not None and load.agents >= config.max_agents:
        return f"max_agents {config.max_agents} reached"
    if config.max_working is not None and load.working >= config.max_working:
        return f"max_working {config.max_working} reached"
    if config.min_free_memory is not None and load.free_memory < config.min_free_memory:
        return f"less than min_free_memory {format_size(config.min_free_memory)} free"
    return None


def parse_size(text: str) -> int:
    """Parse a size such as `512M`, `2G` or `1.5g`, and return it in bytes.

    Raises:
        UsageError: The text has another form, or the size is zero or too large.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([KMGT]?)i?B?", text.strip(), re.IGNORECASE | re.ASCII)
    size = int(float(found[1]) * 1024 ** " KMGT".index(found[2].upper() or " ")) if found else 0
    if not 0 < size < _LARGEST_SIZE:
        raise UsageError(f"{text!r} is not a size in memory: give one such as 512M or 2G")
    return size


SMALLEST_LIMIT = 64 * 1024**2
"""Fewest bytes that a worker needs for itself: with less it is killed before its first call."""


def parse_memory_limit(text: str) -> int:
    """Parse the most memory that an agent may use, and return it in bytes.

    Raises:
        UsageError: The text is not a size, or no worker can run with so little.
    """
    size = parse_size(text)
    if size < SMALLEST_LIMIT:
        raise UsageError(f"{text!r} is too little memory for an agent: give {format_size(SMALLEST_LIMIT)} or more")
    return size


def format_size(size: int) -> str:
    """Return a size in bytes as a text that `parse_size` reads, such as `512M`."""
    power = next((power for power in (4, 3, 2, 1) if size >= 1024**power), 0)
    return f"{size / 1024**power:.3g}{' KMGT'[power]}".strip()


_LARGEST_SIZE = 2**60


class BudgetShare(Struct, frozen=True):
    """A budget, whose it is in words (`its`, `amy's`, `the team's`), and the used share of it; 1 is all of it."""

    whose: str
    budget: Budget
    share: float
    by_terms: bool = False
    """It is from the terms of the agent's own plan, so it ends with the assignment."""

    raised_with: str = ""
    """The command that raises the budget; empty for that of a plan, which cannot be raised."""


class Used(Struct, frozen=True):
    """The tokens and dollars that an agent used, and the terms of its assignment."""

    tokens: Tokens = field(default_factory=Tokens)
    usd: float = 0.0
    terms: TermsInForce | None = None


def lead_reviews(config: Config, team: TeamDirectory) -> bool:
    """Return True if the lead reviews the plans of others: the team says so, and the lead has no engine.

    A lead with an engine lacks the tool for it, because any program in its sandbox could call the tool.
    """
    if config.plan_approver != "lead":
        return False
    lead = team.agent(config.lead).spec.load_or_none()
    return lead is None or lead.engine is None


def used_up(shares: Iterable[BudgetShare]) -> str | None:
    """Return in words which of these budgets is used up, the first one; None if none is."""
    found = (f"{each.whose} budget of {each.budget} is used up" for each in shares if each.share >= 1)
    return next(found, None)


def budgets(team: TeamDirectory, name: str, own: Used | None = None) -> list[BudgetShare]:
    """Return the budgets that apply to `name`: its own, those of the agents that hired it, and the team's.

    The budgets of the hirers count, so that hiring agents does not exceed them. An approved plan may have a budget,
    too. `own` is what the agent used, if that is newer than its status.

    Workers call this before each model call, so the use of other agents is read only if there is a budget.
    """
    config, accounts = load(team), _Accounts(team, name, own)
    found = []
    for payer in accounts.hirers(name):
        spec = accounts.spec_of(payer)
        budget = budget_or_none(spec.flags.budget) if spec is not None else None
        if budget is not None:
            share = _share(budget, accounts.spent(payer))
            whose = "its" if payer == name else f"{payer}'s"
            found.append(BudgetShare(whose, budget, share, raised_with=f"budget {payer} AMOUNT"))
        terms = accounts.used_by(payer).terms
        if terms is not None and (budget := budget_or_none(terms.given.budget)) is not None:
            whose = "its approved" if payer == name else f"{payer}'s approved"
            share = _share(budget, accounts.spent(payer), terms)
            found.append(BudgetShare(whose, budget, share, by_terms=payer == name))
    if (budget := budget_or_none(config.budget)) is not None:
        removed = config.removed_total
        everything = [accounts.used_by(each) for each in accounts.members]
        used = _total([*everything, Used(removed.tokens, removed.cost_usd or 0.0)])
        found.append(BudgetShare("the team's", budget, _share(budget, used), raised_with="budget AMOUNT"))
    return found


def spent(team: TeamDirectory, name: str, own: Used) -> Used:
    """Return what an agent and all agents below it in the chain of hirers used.

    `own` is what the agent itself used.
    """
    return _Accounts(team, name, own).spent(name)


def _share(budget: Budget, used: Used, since: TermsInForce | None = None) -> float:
    if since is None:
        return budget.share(used.tokens, used.usd)
    return budget.share(Tokens(input=used.tokens.total - since.used_tokens), used.usd - since.used_usd)


def _total(all_used: Iterable[Used]) -> Used:
    tokens, usd = Tokens(), 0.0
    for used in all_used:
        tokens, usd = tokens + used.tokens, usd + used.usd
    return Used(tokens, usd)


class _Accounts:
    """What the agents of a team used, and which agent hired which. Each file is read once."""

    def __init__(self, team: TeamDirectory, name: str, own: Used | None) -> None:
        self._team = team
        self._names = frozenset(load(team).names)
        self._specs: dict[str, Spec | None] = {}
        self._used = {name: own} if own is not None else {}
        self.members = self._names | self._used.keys()

    def spec_of(self, name: str) -> Spec | None:
        """Return the spec of an agent; None if it is not on the roster, or has no readable spec."""
        if name not in self._specs:
            known = name in self._names
            self._specs[name] = self._team.agent(name).spec.load_or_none() if known else None
        return self._specs[name]

    def used_by(self, name: str) -> Used:
        """Return what an agent used; nothing for one that is not on the roster."""
        if name not in self._used:
            known = name in self.members
            status = self._team.agent(name).status.load_or_none() if known else None
            self._used[name] = Used() if status is None else Used(status.tokens, status.cost_usd or 0.0, status.terms)
        return self._used[name]

    def spent(self, payer: str) -> Used:
        """Return what an agent and all agents below it in the chain of hirers used."""
        return _total(self.used_by(each) for each in self.members if payer in self.hirers(each))

    def hirers(self, name: str) -> list[str]:
        """Return `name`, its hirer, the hirer of its hirer, and so on."""
        chain: list[str] = []
        while name not in chain:
            chain.append(name)
            spec = self.spec_of(name)
            if spec is None:
                break
            name = spec.by
        return chain
