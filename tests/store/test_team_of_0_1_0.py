"""A team directory that version 0.1.0 wrote is opened, resumed and continued.

`tests/data/team-0.1.0` was stored in the moment of a crash: the supervisor and both workers were killed. The agent
`scout` is idle after two assignments and has one unread message behind a damaged line. The agent `fixer` waits for the
decision on its plan. `status.json` is what version 0.1.0 printed for it. Process ids and boot ids are replaced by ones
that no machine has, as after a reboot.
"""

import json
import re
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from crewboard.commands import answers, hire, stop
from crewboard.readmodel import as_json
from crewboard.records.events import Gate, Intake, RunStarted
from crewboard.store import agents, mailbox, roster, tasks
from crewboard.store.layout import TeamDirectory
from tests.crew import Crew, eventually

STORED = Path(__file__).parents[1] / "data/team-0.1.0"
PLAN = "plan-f2ffbdcfc77d"
UNREAD = "814020e055e24495af9e2d4cd52d2004"

pytestmark = pytest.mark.files_only("such a team is in files")


@pytest.fixture
def old_team(tmp_path: Path, crew_on: Callable[..., Crew]) -> Crew:
    """The stored team in a workspace, with no process."""
    team = tmp_path / ".crewboard/default"
    shutil.copytree(STORED / "team", team)
    # Its agents used the offline model, and would stay on it. Here a server with a script answers in its place.
    (team / "model.lock").unlink()
    # Lock files are empty, and so are not stored.
    (team / ".locks").mkdir()
    for folder in (team.parent, *(path for path in team.rglob("*") if path.is_dir()), team):
        folder.chmod(0o700)
    # As `crewboard team adopt` does: what that version wrote cannot be told from a team that a repository contained.
    TeamDirectory(team).adopt()
    (tmp_path / "calc.py").write_text("def add(a, b):\n    return a + b\n")
    return crew_on()


def test_status_says_what_it_said_before(old_team: Crew) -> None:
    expected = json.loads((STORED / "status.json").read_text(encoding="utf-8"))
    found = as_json.status(old_team.view())
    # Unread results and damaged files are needs since 0.2.0.
    found["needs_you"] = [need for need in found["needs_you"] if need["kind"] not in ("result", "damaged")]
    # And the summary of a plan names what stands below its heading `Plan`, and says how much follows.
    (plan,) = expected["needs_you"]
    assert plan["summary"] == "plan: Plan"
    plan["summary"] = "plan: The task, word for word:"
    for need in found["needs_you"]:
        need["summary"] = re.sub(r"( …)? \(\+\d+ lines?\).*$", "", need["summary"])
    assert _without_new_fields(found, expected) == expected


def _without_new_fields(found: object, expected: object) -> object:
    """Return `found` without the fields that `expected` does not have."""
    if isinstance(found, dict) and isinstance(expected, dict):
        return {key: _without_new_fields(value, expected[key]) for key, value in found.items() if key in expected}
    if isinstance(found, list) and isinstance(expected, list) and len(found) == len(expected):
        return [_without_new_fields(*pair) for pair in zip(found, expected, strict=True)]
    return found


def test_its_files_survive_being_written(old_team: Crew) -> None:
    before = [old_team.agent("fixer").spec.load(), tasks.load_all(old_team.directory)[1]]
    roster.change(old_team.directory, lambda config: None)
    tasks.update(old_team.directory, 2, "operator", 2e9, owner="scout")
    agents.want(old_team.agent("fixer"), "running")
    assert roster.load(old_team.directory).names == ["scout", "fixer"]
    assert old_team.agent("fixer").spec.load() == before[0]
    assert tasks.load(old_team.directory, 2).owner == "scout"


@pytest.mark.long
def test_its_mail_is_read_once_and_the_conversation_goes_on(old_team: Crew) -> None:
    assert hire.resume(old_team.team, "scout") == 2
    answer = old_team.answer_to("scout", UNREAD)
    assert (answer.answers, answer.result) == ([UNREAD], "results/scout-2-1.md")
    assert "calc.py has 2 lines" in answer.text
    picked_up = Counter(
        message.id for event in old_team.events("scout") if isinstance(event, Intake) for message in event.messages
    )
    assert picked_up == Counter(message.id for message in mailbox.read(old_team.directory, "scout").messages)
    assert [event.fresh for event in old_team.events("scout") if isinstance(event, RunStarted)] == [True, False]
    asked = str(old_team.model.asked_by("scout")[0]["messages"])
    assert asked.count("List all Python files") == 1
    assert asked.count("Read calc.py and summarize it") == 2


@pytest.mark.long
@pytest.mark.linux("sandbox")
def test_its_pending_plan_is_approved_and_carried_out(old_team: Crew) -> None:
    assert answers.approve(old_team.team, PLAN).status == "approved"
    assert hire.resume(old_team.team, "fixer") == 2
    notes = eventually(lambda: old_team.root.joinpath("notes.md").is_file(), "the file of the plan")
    assert notes
    assert [event.request_id for event in old_team.events("fixer") if isinstance(event, Gate)] == [PLAN]
    assert [request.id for request in old_team.view().requests] == []


def test_a_new_run_gets_the_next_number(old_team: Crew) -> None:
    again = hire.spawn(old_team.team, hire.Hire("scout", "explore", "Say hello"))
    assert again.run == 2
    assert old_team.answer(again).result == "results/scout-2-1.md"
    stop.stop(old_team.team, "scout")
    assert old_team.agent("scout").exit.load() is not None
