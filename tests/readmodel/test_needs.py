"""The list of needs: what only the operator can answer."""

from pathlib import Path

import pytest

from crewboard.commands import answers, hire, messages
from crewboard.commands.context import Team
from crewboard.errors import TryLaterError
from crewboard.protocol import requests
from crewboard.readmodel.reader import read_team
from crewboard.records import Exit
from crewboard.store import agents
from crewboard.store.layout import TeamDirectory
from tests.cli.files import alive, enlist, set_status


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


def test_a_failed_assignment_needs_you_until_acknowledged(tmp_path: Path) -> None:
    team = Team(TeamDirectory(tmp_path / ".crewboard" / "default")).ensure()
    for name, code in (("turns", 79), ("outage", 69), ("refused", 1)):
        enlist(team, name, failed=code, failed_at=7.0, last_error="why")
    enlist(team, "fine")
    with alive(team, "turns"), alive(team, "outage"), alive(team, "refused"), alive(team, "fine"):
        found = {need.agent: need for need in read_team(team.directory).needs}
        assert {name: (need.kind, need.code, need.limit) for name, need in found.items()} == {
            "turns": ("failed", 79, "turns"),
            "outage": ("failed", 69, None),
            "refused": ("failed", 1, None),
        }
        assert (found["turns"].since, found["turns"].summary) == (7.0, "stopped: why")
        messages.acknowledge(team, "outage")
        set_status(team, "turns", state="working")
        assert [need.agent for need in read_team(team.directory).needs] == ["refused"]
        set_status(team, "outage", failed=69, failed_at=8.0)
        assert {need.agent for need in read_team(team.directory).needs} == {"refused", "outage"}
        with pytest.raises(TryLaterError):
            messages.acknowledge(team, "fine")


@pytest.mark.parametrize(
    ("budget", "reason", "limit"),
    [("30k", "budget", "budget"), (None, "budget", "team_budget"), (None, "turn_limit", "turns")],
)
def test_a_need_names_the_limit_that_stopped_the_agent(
    tmp_path: Path, budget: str | None, reason: str, limit: str
) -> None:
    team = Team(TeamDirectory(tmp_path / ".crewboard" / "default")).ensure()
    enlist(team, "dear")
    agent = team.directory.agent("dear")
    hire.change_limits(team, "dear", budget=budget)
    agents.write_exit(agent, Exit(run=1, code=79, reason=reason, at=5.0, buried=True))
    (need,) = read_team(team.directory).needs
    assert (need.kind, need.code, need.limit) == ("failed", 79, limit)
