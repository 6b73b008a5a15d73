"""Commands on a team in a database that is far away: each query costs a round trip, so a large team takes no more."""

from pathlib import Path
from uuid import uuid4

import pytest

from crewboard.commands import hosts
from crewboard.commands.context import Team
from crewboard.store import mailbox, roster, tasks
from crewboard.store.layout import TeamDirectory
from crewboard_tui.cli.program import crewboard
from tests.cli.files import enlist_all
from tests.hosts import up
from tests.postgres import close_connections

psycopg = pytest.importorskip("psycopg")


def make_team(root: Path, name: str, url: str, count: int) -> Team:
    """Make a team of agents that ended without a trace, each with a task and an unread message."""
    root.mkdir()
    team = Team(TeamDirectory(root / ".crewboard" / name), environment={})
    team.directory.make(url)
    roster.create(team.directory, "", 1.0)
    names = [f"agent{number}" for number in range(count)]
    enlist_all(team, names, "explore")
    for each in names:
        tasks.add(team.directory, f"work of {each}", 1.0)
        mailbox.send(team.directory, mailbox.compose("operator", each, "message", "hello"))
        mailbox.send(team.directory, mailbox.compose(each, "operator", "message", "hello"))
    with up(team.directory, "one"):
        pass
    return team


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Return a list to which each query of this process is added. A start in the queue is not waited for."""
    monkeypatch.setattr(hosts, "QUEUE_TIMEOUT", 0.0)
    found: list[object] = []
    execute = psycopg.Connection.execute

    def count(connection: object, query: object, *arguments: object, **options: object) -> object:
        found.append(query)
        return execute(connection, query, *arguments, **options)

    monkeypatch.setattr(psycopg.Connection, "execute", count)
    return found


@pytest.fixture
def teams(database: str, tmp_path: Path) -> list[Team]:
    """Make a small and a larger team, in folders that this process has not known before."""
    return [
        make_team(tmp_path / f"{name}-{uuid4().hex}", name, database, count)
        for name, count in (("small", 2), ("large", 12))
    ]


def queries(team: Team, asked: list[object], command: str) -> int:
    """Return how often a command asks the database."""
    close_connections()
    asked.clear()
    options = ["--root", str(team.directory.root), "--team", team.directory.path.name]
    crewboard.main([*options, *command.split()], standalone_mode=False)
    return len(asked)


@pytest.mark.long
@pytest.mark.parametrize(
    "command",
    [
        "status",
        "status --json",
        "tasks",
        "hosts",
        "changes",
        "send agent0 hello",
        "task add more",
        "stop agent0",
        "spawn new --type explore --prompt look --background",
    ],
)
def test_a_large_team_takes_no_more_queries(teams: list[Team], asked: list[object], command: str) -> None:
    small, large = (queries(team, asked, command) for team in teams)
    assert small == large
    close_connections()


@pytest.mark.long
def test_a_broadcast_asks_for_no_more_than_it_writes(teams: list[Team], asked: list[object]) -> None:
    small, large = (queries(team, asked, "broadcast hello") for team in teams)
    # A message and a line of the audit log for each.
    assert large - small == 2 * 10
    close_connections()
