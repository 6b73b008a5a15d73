"""The settings of a team: list them, read their values, and change one, the team's budget or the approver of plans."""

import re
from collections.abc import Callable, Mapping

from crewboard import endpoint, engines, models, pricing
from crewboard.commands.context import NONE, Team, require_price
from crewboard.errors import UsageError
from crewboard.local_servers import LocalServer
from crewboard.pricing import parse_budget
from crewboard.protocol import supervisor_client
from crewboard.records.team import Config
from crewboard.store import hosts, leases, roster
from crewboard.store.layout import HOME

_MAX_COUNT = 10_000

_MODEL_WORD = re.compile(r"([^\s=]+=)?[^\s=]+")


def set_approver(team: Team, who: str) -> None:
    """Set who reviews plans from now on: `operator` or `lead`.

    Raises:
        UsageError: `who` is neither.
    """
    if who not in ("operator", "lead"):
        raise UsageError(f"{who!r} cannot review plans: choose operator or lead")

    def edit(config: Config) -> None:
        config.plan_approver = "lead" if who == "lead" else "operator"

    roster.change(team.directory, edit)
    team.note("approver", detail=who)


def set_budget(team: Team, amount: str | None) -> None:
    """Set the budget of the whole team, in a form that `parse_budget` reads, as `$5` or `200k`; None removes it.

    Raises:
        UsageError: `parse_budget` cannot read the amount; or it is the first budget in money, and a model of the team's
            setting or of a running agent has no price.
        BadDataError: The agents of the team belong to another program.
    """
    roster.require_own_agents(team.directory)
    if amount is not None:
        parse_budget(amount)
        config = team.config
        before = pricing.budget_or_none(config.budget)
        # A first one in money would not hold for a model without a price. One that there is can always be raised.
        if before is None or before.usd is None:
            running = [each.model for each in config.members if leases.is_held(team.directory.agent(each.name).lease)]
            for model in dict.fromkeys([*models.in_setting(config.model), *running]):
                if model:
                    require_price(team, amount, models.resolve(model, team.worker_environment))

    def edit(config: Config) -> None:
        config.budget = amount

    roster.change(team.directory, edit)
    team.note("budget", detail=amount or "none")


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text) < _MAX_COUNT):
        raise UsageError(f"{text!r} is not a number of agents: give 1 or more, or {NONE}")
    return int(text)


def _hours(text: str) -> float:
    try:
        hours = float(text)
    except ValueError:
        hours = 0.0
    if not 0 < hours < float("inf"):
        raise UsageError(f"{text!r} is not a number of hours: give more than 0, as 1.5")
    return hours


def _command(text: str) -> str:
    if not text.strip():
        raise UsageError("give a command, such as 'make test'")
    return text


def _paths(text: str) -> list[str]:
    paths = text.split()
    wrong = [path for path in paths if path.startswith("/") or not {"..", ".git", HOME}.isdisjoint(path.split("/"))]
    if wrong or not paths:
        raise UsageError(f"{' '.join(wrong) or repr(text)}: give paths in the root, apart from .git and {HOME}")
    return paths


def _models(text: str) -> str:
    types = [word.rpartition("=")[0] for word in text.split()]
    if not types or not all(map(_MODEL_WORD.fullmatch, text.split())) or len({*types}) < len(types):
        raise UsageError(f"{text!r}: give one model, and exceptions for types: 'qwen3-coder explore=qwen3:8b'")
    return " ".join(text.split())


def _server(text: str) -> str:
    url = text.strip().rstrip("/")
    if (problem := endpoint.address_problem({endpoint.BASE_URL: url})) is not None:
        raise UsageError(problem.replace(endpoint.BASE_URL, "the address"))
    if not endpoint.is_private(url):
        raise UsageError(
            f"{url} is not on this machine or its network: set {endpoint.BASE_URL} and a key in the shell instead"
        )
    return url


def _engine(text: str) -> str:
    if text not in engines.KNOWN and not text.removeprefix(engines.OTHER).strip():
        raise UsageError(f"{text!r} names no command: write {engines.OTHER}COMMAND")
    if text not in engines.KNOWN and not text.startswith(engines.OTHER):
        raise UsageError(
            f"there is no engine {text!r}: name one of {', '.join(engines.KNOWN)}, or {engines.OTHER}COMMAND"
        )
    return text


def use_server(team: Team, server: LocalServer) -> None:
    """Set the server and the model of a team for new agents: a server of this machine, and the best model on it.

    Raises:
        UsageError: The agents of the team run on hosts.
    """
    change_setting(team, "server", server.url)
    change_setting(team, "model", server.best)


def _one_of(values: Mapping[str, object]) -> Callable[[str], object]:
    def read(text: str) -> object:
        if text not in values:
            raise UsageError(f"{text!r} is not one of {', '.join(values)}")
        return values[text]

    return read


CAPS: dict[str, Callable[[str], object]] = {
    "max_agents": _count,
    "max_working": _count,
    "min_free_memory": roster.parse_size,
}

SETTINGS: dict[str, Callable[[str], object]] = {
    **CAPS,
    "on_outage": _one_of({"wait": "wait", "fail": "fail"}),
    "outage_hours": _hours,
    "result_needs": _one_of({"on": True, "off": False}),
    "approval_hours": _hours,
    "worktree": _one_of({"always": "always", "never": "never"}),
    "check": _command,
    "lead_merges": _one_of({"on": True, "off": False}),
    "collisions": _one_of({"warn": "warn", "hold": "hold", "claims": "claims"}),
    "worktree_copy": _paths,
    "worktree_setup": _command,
    "model": _models,
    "server": _server,
    "engine": _engine,
}
"""The settings of a team, by their field in `config.json`, each with the function that reads its value from text."""


def read_value(name: str, text: str) -> object:
    """Return the value of the setting `name` that a text means; for `NONE`, its default.

    Raises:
        UsageError: The text is no value of the setting.
    """
    return getattr(Config(name=name), name) if text == NONE else SETTINGS[name](text)


def change_setting(team: Team, name: str, value: str) -> None:
    """Set a setting of the team from a text, or remove it with `NONE`. Queued agents that may start now are started.

    Raises:
        UsageError: There is no such setting, the text is no value of it, or a server is set on a team with hosts.
        BadDataError: The agents of the team belong to another program.
    """
    roster.require_own_agents(team.directory)
    if name not in SETTINGS:
        raise UsageError(f"there is no setting {name!r}; settings: {', '.join(SETTINGS)}")
    if name == "server" and value != NONE and hosts.exist(team.directory):
        raise UsageError(f"agents of this team run on hosts: set {endpoint.BASE_URL} in the environment of each host")
    parsed = read_value(name, value)
    roster.change(team.directory, lambda config: setattr(config, name, parsed))
    team.note("setting", detail=f"{name} {value}")
    if supervisor_client.is_alive(team.directory):
        supervisor_client.wake_supervisor(team.directory)
