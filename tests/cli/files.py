"""Agents that are only files, for tests that need no worker."""

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager

from pydantic import JsonValue

from crewboard.commands.context import Team
from crewboard.protocol import requests
from crewboard.records import HireOptions, Member, Request, RequestType, Spec, Status
from crewboard.store import agents, json_files, leases, roster


def enlist(team: Team, name: str, kind: str = "code", **status: object) -> None:
    """Put an agent that has run once on the roster."""
    roster.put(team.directory, Member(name=name, type=kind, model="m"))
    spec = Spec(prompt="work", prompt_id=f"p-{name}", type=kind, model="m", flags=HireOptions(), at=1)
    agents.change_spec(team.directory.agent(name), lambda _: spec)
    set_status(team, name, **status)


def set_status(team: Team, name: str, **status: object) -> None:
    """Write the status as a worker would."""
    whole = {"run": 1, "pid": 1, "state": "idle", "since": 1, **status}
    json_files.save(team.directory.agent(name).status, Status.model_validate(whole))


@contextmanager
def alive(team: Team, name: str) -> Iterator[None]:
    """Hold the lease of an agent as its worker would."""
    fd = leases.take(team.directory.agent(name).lease)
    assert fd is not None
    with closing(open(fd, "rb")):  # noqa: PTH123  the descriptor is the lock
        yield


def ask(team: Team, ident: str, kind: RequestType, payload: Mapping[str, JsonValue]) -> Request:
    """Open a request of `fixer` to the operator."""
    return requests.open_request(team.directory, ident, kind, "fixer", "operator", dict(payload), 5.0)
