"""Who needs the operator: whatever nobody else can answer."""

from pathlib import Path

from crewboard.store import requests
from crewboard.store.directory import TeamDirectory
from crewboard.team import decisions, rules
from crewboard.team.context import Team
from crewboard.view.reader import read_team
from tests.cli.files import alive, enlist


def needed(team: Team) -> list[str | None]:
    return [need.request_id for need in read_team(team.directory).needs]


def test_a_plan_for_a_lead_that_is_not_there_or_reviews_none_is_the_operators(tmp_path: Path) -> None:
    team = Team(TeamDirectory(tmp_path / ".crewboard" / "default")).ensure()
    rules.set_approver(team, "lead")
    enlist(team, "lead", "lead")
    enlist(team, "fixer")
    requests.open_request(team.directory, "p1", "plan_approval", "fixer", "lead", {"plan": "# Do it"}, 5.0)
    assert "p1" in needed(team)
    with alive(team, "lead"):
        assert "p1" not in needed(team)
        rules.set_approver(team, "operator")
        assert "p1" in needed(team)
        decisions.approve(team, "p1")
        assert "p1" not in needed(team)
