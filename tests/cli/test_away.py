"""`crewboard away`: what happened since the user left the dashboard, as the dashboard lists it."""

from pathlib import Path

import pytest

from crewboard import env
from crewboard.commands.context import Team
from crewboard.records.messages import LastVisit
from crewboard.records.processes import Exit
from crewboard.records.team import Act
from crewboard.store import agents, files, operators
from crewboard.store.layout import record_of
from tests.cli.files import enlist
from tests.cli.shell import Cli

LEFT = 1_000_000_000.0


@pytest.fixture
def ann(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Return the command line of the user Ann, who also makes the team: the state home says whose it is."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return cli.with_environment(CREWBOARD_OPERATOR="Ann", XDG_STATE_HOME=str(tmp_path / "state"))


def leave(ann: Cli, team: Team, at: float) -> None:
    """Store that Ann left the dashboard."""
    her = Team(team.directory, environment=ann.environment)
    file = operators.file_for(env.visits_folder(ann.environment), her.directory.path, her.operator)
    assert file is not None
    files.make_private_folders(file.parent)
    record_of(file, LastVisit).save(LastVisit(at=at))


def test_away_lists_what_the_dashboard_lists(ann: Cli, team: Team) -> None:
    enlist(team, "fixer")
    leave(ann, team, LEFT)
    agents.write_exit(team.directory.agent("fixer"), Exit(run=1, signal=9, reason="died", at=LEFT + 60))
    for who, at in (("Kim", LEFT + 120), ("Ann", LEFT + 130), ("Kim", LEFT - 10)):
        operators.note_act(team.directory, Act(ts=at, who=who, act="stop", target="fixer"))
    told = ann("away", "--json").json
    assert (told["since"], told["cost_usd"]) == (LEFT, None)
    assert [(each["ts"], each["kind"], each["agent"]) for each in told["happenings"]] == [
        (LEFT + 60, "death", "fixer"), (LEFT + 120, "act", "fixer"),
    ]  # fmt: skip
    first, head, *lines = ann("away").out.splitlines()
    assert first.startswith("Since 2001-09-")
    assert first.endswith(": 1 death, 1 act by others")
    assert head.split() == ["TIME", "WHAT", "AGENT", "DETAIL"]
    assert "killed by SIGKILL" in lines[0]
    assert "Kim" in lines[1]


def test_away_says_when_nothing_happened(ann: Cli, team: Team) -> None:
    leave(ann, team, LEFT)
    quiet = ann("away")
    assert (quiet.code, quiet.out) == (0, "")
    assert "nothing happened since 2001-09-" in quiet.err
    assert ann("away", "--json").json == {"since": LEFT, "cost_usd": None, "happenings": []}


def test_away_without_a_last_visit_says_so(ann: Cli, team: Team) -> None:
    enlist(team, "fixer")
    assert ann("away", "--json").json == {"since": None, "cost_usd": None, "happenings": []}
    assert "you have not left the dashboard of this team yet" in ann("away").err
