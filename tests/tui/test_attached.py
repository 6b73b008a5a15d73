"""The dashboard of an attached team: plans of Claude Code's teammates are read and answered on it."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from crewboard.protocol import requests
from crewboard.store.layout import TeamDirectory
from tests.attach.replay import Replay, process
from tests.attach.session import RunningHook, plan_event, start_hook
from tests.frozen import Frozen
from tests.screenshots import make_attached
from tests.tui.stage import Stage, opened


@pytest.fixture
def team(tmp_path: Path) -> Iterator[TeamDirectory]:
    """Attach to the recorded team whose teammate `alpha` submits a plan."""
    with process() as lead:
        replay = Replay(tmp_path / "claude", lead.pid)
        for change in replay.play("plan"):
            if change.path.endswith("inboxes/team-lead.json"):
                break
        for path in replay.config.rglob("*.json"):
            path.write_text(path.read_text().replace("/home/u/project", str(tmp_path)))
        yield replay.attach(tmp_path)


def _submit(team: TeamDirectory, plan: str, call: str) -> RunningHook:
    (session,) = (tmp["sessionId"] for tmp in _sessions(team))
    return start_hook(team, plan_event(team.root, plan, call, session_id=session))


def _sessions(team: TeamDirectory) -> list[dict[str, str]]:
    return [json.loads(path.read_text()) for path in (team.root / "claude/sessions").glob("*.json")]


async def _open_plan(stage: Stage, title: str) -> None:
    await stage.sees("! open")
    await stage.press("!")
    await stage.sees(title)
    await stage.can("a", "approve")


async def test_a_plan_of_claude_code_is_denied_revised_and_approved(team: TeamDirectory) -> None:
    first = _submit(team, "# Plan\nwrite b.txt", "toolu_1")
    async with opened(Frozen(team), 80, 24) as stage:
        await stage.until(team.agent("alpha").spec.load, "the teammate")
        spec = team.agent("alpha").spec.load()
        assert spec is not None
        assert spec.type == "general-purpose", "a type that crewboard does not have"
        await _open_plan(stage, "PLAN v1")
        await stage.sees("write b.txt", "100% read")
        await stage.press("o")
        await stage.sees("Claude Code takes only steps to hold, and the plan has none")
        await stage.press("d")
        await stage.write("add tests")
        await stage.press("enter")
        await stage.sees("denied: alpha reads why")
        # Until the team is read again, the key would open the plan that was just denied.
        await stage.sees_not("! open")
        denied = first.answer()
        assert denied["permissionDecision"] == "deny"
        assert "add tests" in denied["permissionDecisionReason"]

        second = _submit(team, "# Plan\n1. write b.txt\n2. test it", "toolu_2")
        await _open_plan(stage, "PLAN v2")
        await stage.sees("2. test it", "100% read")
        await stage.press("=")
        await stage.sees("What changed", "+2. test it")
        await stage.press("=", "a")
        await stage.sees("approved: alpha continues")
        assert second.answer()["permissionDecision"] == "allow"
    decided = [(each.status, each.terms) for each in requests.load_all(team)]
    assert sorted(decided, key=str) == [("approved", None), ("rejected", None)]


@pytest.mark.long
async def test_notes_on_a_plan_of_claude_code_are_answered_in_its_text(team: TeamDirectory) -> None:
    first = _submit(team, "# Plan\n1. write b.txt\n2. publish it", "toolu_1")
    async with opened(Frozen(team), 80, 24) as stage:
        await stage.until(team.agent("alpha").spec.load, "the teammate")
        await _open_plan(stage, "PLAN v1")
        await stage.press("c")
        await stage.write("3:where to?")
        await stage.press("enter")
        await stage.can("^s", "send back")
        await stage.press("ctrl+s")
        await stage.sees("denied: alpha reads why")
        await stage.sees_not("! open")
        reason = first.answer()["permissionDecisionReason"]
        assert "  > 2. publish it\n  | where to?" in reason
        assert 'as in "n1: moved it up", say what you did about each note: n1.' in reason

        second = _submit(team, "# Plan\n1. write b.txt\n2. publish it on PyPI\n\nn1: on PyPI", "toolu_2")
        await _open_plan(stage, "PLAN v2")
        await stage.sees("where to?", "on PyPI", "answered")
        await stage.press("a")
        await stage.sees("approved: alpha continues")
        assert second.answer()["permissionDecision"] == "allow"


@pytest.mark.long
async def test_a_step_of_a_plan_of_claude_code_is_held_by_an_instruction(team: TeamDirectory) -> None:
    hook = _submit(team, "# Plan\n1. write `b.txt`\n2. run `git push`", "toolu_1")
    async with opened(Frozen(team), 80, 24) as stage:
        await stage.until(team.agent("alpha").spec.load, "the teammate")
        await _open_plan(stage, "PLAN v1")
        await stage.sees("2 steps: j to one, Space holds it")
        # Of the terms only steps are offered.
        await stage.press("o")
        await stage.sees("[x] step 1.", "[x] step 2.")
        assert "budget" not in stage.all
        await stage.press("o", *"jjj")
        await stage.can("Space", "hold")
        await stage.press("space")
        await stage.sees("held · an instruction only", "TERMS     holds 2")
        await stage.press("G")
        await stage.sees("100% read")
        await stage.press("a")
        await stage.sees("approved with terms: alpha continues")
        assert "Approved are all steps but 2." in hook.answer()["additionalContext"]
    (decided,) = requests.load_all(team)
    assert decided.terms is not None
    assert decided.terms.denied == []


async def test_an_attached_team_is_promised_no_end_of_a_shared_process(tmp_path: Path) -> None:
    async with opened(make_attached(tmp_path), 80, 24) as stage:
        await stage.sees("team-lead")
        await stage.press("X")
        await stage.sees("X again within 2 s ends", "if it has a process of its own")
