"""Hosts of a team as they say themselves what they are, for tests that need no supervisor."""

from typing import Any

from crewboard.records.agents import Spec
from crewboard.records.processes import Host
from crewboard.records.team import Member
from crewboard.store import agents, hosts, roster
from crewboard.store.layout import TeamDirectory
from tests.frozen import NOW, Frozen


def add_host(team: TeamDirectory, name: str, slots: int = 8, **more: Any) -> Host:
    """Make a host of a team, or let it say something new. By default it is on another machine."""
    hosts.make(team, name)
    machine = {"boot_id": "elsewhere", "cores": 4, "load": 2.0, "memory": 8 << 30}
    host = Host(name=name, slots=slots, since=NOW - 600, at=NOW - 1).replace(**{**machine, **more})
    hosts.save(team, host)
    return host


def place(frozen: Frozen, name: str, host: str, boot_id: str = "elsewhere") -> None:
    """Let an agent run on a host."""
    path = frozen.directory.agent(name).status
    status = path.load()
    assert status is not None
    path.save(status.replace(host=host, boot_id=boot_id))


def want(team: TeamDirectory, name: str, ago: float, now: float = NOW, prompt: str = "p", **flags: Any) -> None:
    """Hire an agent that no host has begun."""
    wanted = Spec(prompt=prompt, prompt_id="p1", type="code", at=now - ago)
    agents.change_spec(team.agent(name), lambda _: wanted.replace(flags=wanted.flags.replace(**flags)))
    roster.put(team, Member(name=name, type="code", model="m"))
