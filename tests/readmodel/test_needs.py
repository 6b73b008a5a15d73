"""The list of needs: what only the operator can answer."""

from pathlib import Path

from crewboard.commands import answers
from crewboard.commands.context import Team
from crewboard.protocol import requests
from crewboard.readmodel.reader import read_team
from crewboard.store.layout import TeamDirectory
from tests.cli.files import alive, enlist


def needed(team: Team) -> list[str | None]:
    return [need.request_id for need in read_team(team.directory).needs]


def test_a_plan_goes_to_the_operator_if_no_lead_can_review_it(tmp_path: Path) -> None:
    team = Team(TeamDirectory(tmp_path / ".crewboard" / "default")).ensure()
    answers.set_approver(team, "lead")
    enlist(team, "lead", "lead")
    enlist(team, "fixer")
    requests.open_request(team.directory, "p1", "plan_approval", "fixer", "lead", {"plan": "# Do it"}, 5.0)
    assert "p1" in needed(team)
    with alive(team, "lead"):
        assert "p1" not in needed(team)
        answers.set_approver(team, "operator")
        assert "p1" in needed(team)
        answers.approve(team, "p1")
        assert "p1" not in needed(team)
