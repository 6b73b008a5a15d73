"""Agents that are only files, for tests that need no worker."""

import subprocess
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from msgspec.structs import replace

from crewboard.commands.context import Team
from crewboard.protocol import requests
from crewboard.records.agents import HireOptions, Spec, Status
from crewboard.records.base import JsonValue, convert
from crewboard.records.requests import Request, RequestType
from crewboard.records.team import Config, Member
from crewboard.store import agents, leases, roster
from crewboard.unix import process


def enlist(team: Team, name: str, kind: str = "code", **status: object) -> None:
    """Put an agent that has run once on the roster."""
    enlist_all(team, [name], kind, **status)


def enlist_all(team: Team, names: Iterable[str], kind: str = "code", **status: object) -> None:
    """Put agents that have run once on the roster, which is written once for all of them."""
    new = {name: Member(name=name, type=kind, model="m") for name in names}

    def add(config: Config) -> None:
        config.members = [*(member for member in config.members if member.name not in new), *new.values()]

    roster.change(team.directory, add)
    for name in new:
        _write(team, name, kind, **status)


def _write(team: Team, name: str, kind: str, **status: object) -> None:
    """Write the files of an agent that has run once."""
    spec = Spec(prompt="work", prompt_id=f"p-{name}", type=kind, model="m", flags=HireOptions(), at=1)
    agents.change_spec(team.directory.agent(name), lambda _: spec)
    set_status(team, name, **status)


def set_status(team: Team, name: str, **status: object) -> None:
    """Write the status as a worker would."""
    whole = {"run": 1, "pid": 1, "state": "idle", "since": 1, **status}
    team.directory.agent(name).status.save(convert(whole, Status))


def set_doing(team: Team, name: str, doing: str, since: float) -> None:
    """Write that an agent works on something else now, in the same process."""
    status = team.directory.agent(name).status
    before = status.load()
    assert before is not None
    status.save(replace(before, state="working", doing=doing, since=since))


@contextmanager
def resting() -> Iterator[dict[str, object]]:
    """Start a process that does nothing; yield the fields by which agents name it as theirs in their status.

    Another one, as that of the tests, uses processor time, which is shown and so costs the dashboard time.
    """
    with subprocess.Popen(["sleep", "infinity"]) as child:
        try:
            ticks = process.start_ticks(child.pid)
            yield {"pid": child.pid, "start_ticks": ticks, "boot_id": process.boot_id()}
        finally:
            child.kill()


@contextmanager
def alive(team: Team, name: str) -> Iterator[None]:
    """Hold the lease of an agent as its worker would."""
    held = leases.take(team.directory.agent(name).lease)
    assert held is not None
    try:
        yield
    finally:
        leases.release(held)


def ask(team: Team, ident: str, kind: RequestType, payload: Mapping[str, JsonValue]) -> Request:
    """Open a request of `fixer` to the operator."""
    return requests.ask(team.directory, ident, kind, "fixer", "operator", dict(payload), 5.0, by_mail=False)
