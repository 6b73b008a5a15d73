"""Plans and permissions of Claude Code's teammates wait for the user, through the hook that Claude Code runs."""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from crewboard.attach import gate
from crewboard.attach.hooks import name_of_teammate
from crewboard.commands import answers, settings
from crewboard.commands.context import Team
from crewboard.protocol import requests
from crewboard.records.agents import Terms
from crewboard.store import mailbox, roster
from crewboard.store.layout import TeamDirectory
from tests.attach.session import ALPHA, PYTHON, SESSION, permission_event, plan_event, run_hook, start_hook
from tests.cli.shell import COMMAND, clean_environment
from tests.crew import eventually

PROBE = """
import sys
sys.argv = ["crewboard", "hook"]
from crewboard_tui.cli import main
try:
    main()
finally:
    heavy = ("pydantic", "click", "textual", "anthropic", "asyncio", "dataclasses", "pathlib", "typing")
    print(*[name for name in heavy if name in sys.modules], file=sys.stderr)
"""


@pytest.fixture
def quiet_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the signal handlers of the test process."""
    monkeypatch.setattr(signal, "signal", lambda *_: None)


def test_a_session_that_no_team_wants_notices_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [PYTHON, "-I", "-S", "-c", f"import sys; sys.path[:0] = {source_roots()!r}\n{PROBE}"],
        input=json.dumps(plan_event(tmp_path)).encode(), env=clean_environment(), capture_output=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr.decode().split()) == (0, b"", ["typing"])


def source_roots() -> list[str]:
    root = Path(__file__).parents[2]
    return [str(root / "core"), str(root / "tui")]


@pytest.mark.parametrize(
    "stdin", ["", "{", "[]", "null", "7", '{"session_id": 1}', '{"hook_event_name": "Stop", "session_id": "x"}', "\0"]
)
def test_other_input_is_ignored(mirrored: TeamDirectory, stdin: str) -> None:
    assert run_hook(stdin, CLAUDE_PROJECT_DIR=str(mirrored.root)) == ""


def test_what_the_lead_itself_asks_stays_with_its_user(mirrored: TeamDirectory) -> None:
    event = plan_event(mirrored.root)
    del event["agent_id"], event["agent_type"]
    assert run_hook(event) == ""
    assert requests.load_all(mirrored) == []


def test_the_name_of_a_teammate_is_found_in_all_versions() -> None:
    assert name_of_teammate({"agent_id": ALPHA}) == "alpha"
    assert name_of_teammate({"agent_id": "atest-writer-f7fc72d4b439c4c0", "agent_type": "x"}) == "test-writer"
    assert name_of_teammate({"agent_id": "a2469d0ef594a344d", "agent_type": "alpha"}) == "alpha"
    assert name_of_teammate({"agent_id": "a2469d0ef594a344d"}) == ""
    assert name_of_teammate({}) == ""


def test_permissions_of_a_subagent_stay_with_claude_code(mirrored: TeamDirectory) -> None:
    event = permission_event(mirrored.root, agent_id="a2469d0ef594a344d", agent_type="Explore")
    assert run_hook(event) == ""
    assert requests.load_all(mirrored) == []


def test_an_approved_plan_is_allowed(mirrored: TeamDirectory) -> None:
    (mirrored.root / "b.txt").write_text("")
    hook = start_hook(mirrored, plan_event(mirrored.root))
    assert (hook.request.type, hook.request.from_, hook.request.to) == ("plan_approval", "alpha", "operator")
    assert hook.request.payload["plan"] == "# Plan\n1. write b.txt\n"
    assert hook.request.payload["files"] == ["b.txt"]
    answers.approve(Team(mirrored), hook.request.id, feedback="go")
    assert hook.answer() == {
        "hookEventName": "PreToolUse",
        "permissionDecision": "allow",
        "permissionDecisionReason": "The plan is approved by operator.\nFeedback: go",
        "additionalContext": "The plan is approved by operator.\nFeedback: go",
    }


@pytest.mark.long
def test_a_teammate_reads_which_steps_are_not_approved(mirrored: TeamDirectory) -> None:
    plan = "# Plan\n1. write b.txt\n2. run it\n3. publish it"
    hook = start_hook(mirrored, plan_event(mirrored.root, plan))
    answers.approve(Team(mirrored), hook.request.id, terms=Terms(hold=[2], refused=[3]))
    answer = hook.answer()
    assert answer["permissionDecision"] == "allow"
    told = "Approved are all steps but 2, 3. Do not begin 2, 3, nor anything that is only for it. Held for now: 2."
    assert told in answer["additionalContext"]
    assert "Not to be done at all: 3." in answer["additionalContext"]

    edited = start_hook(mirrored, plan_event(mirrored.root, "# Plan\n1. delete it\n2. push", "toolu_2"))
    answers.approve(Team(mirrored), edited.request.id, edited="# Plan\n1. keep it\n2. push", terms=Terms(hold=[2]))
    assert edited.answer()["permissionDecision"] == "deny"
    allowed = json.loads(run_hook(plan_event(mirrored.root, "# Plan\n1. keep it\n2. push", "toolu_3")))
    assert "Approved are all steps but 2." in allowed["hookSpecificOutput"]["additionalContext"]


def test_a_rejected_plan_returns_as_a_revision(mirrored: TeamDirectory) -> None:
    first = start_hook(mirrored, plan_event(mirrored.root))
    answers.reject(Team(mirrored), first.request.id, "add tests")
    denied = first.answer()
    assert denied["permissionDecision"] == "deny"
    assert "add tests" in denied["permissionDecisionReason"]

    second = start_hook(mirrored, plan_event(mirrored.root, "# Plan\n1. tests", "toolu_2"))
    assert (second.request.supersedes, second.request.payload["revision"]) == (first.request.id, 2)
    answers.approve(Team(mirrored), second.request.id)
    assert second.answer()["permissionDecision"] == "allow"

    third = start_hook(mirrored, plan_event(mirrored.root, "# Another", "toolu_3"))
    assert (third.request.supersedes, third.request.payload["revision"]) == (None, 1)
    answers.approve(Team(mirrored), third.request.id)
    third.answer()


@pytest.mark.long
def test_an_edited_plan_is_approved_when_it_is_submitted_as_edited(mirrored: TeamDirectory) -> None:
    hook = start_hook(mirrored, plan_event(mirrored.root))
    answers.approve(Team(mirrored), hook.request.id, edited="# Plan\n1. write c.txt")
    denied = hook.answer()
    assert denied["permissionDecision"] == "deny"
    assert "# Plan\n1. write c.txt" in denied["permissionDecisionReason"]

    allowed = json.loads(run_hook(plan_event(mirrored.root, "# Plan\n\n1. write c.txt\n", "toolu_2")))
    assert allowed["hookSpecificOutput"]["permissionDecision"] == "allow"
    again = start_hook(mirrored, plan_event(mirrored.root, "# Plan\n1. write d.txt", "toolu_3"))
    assert again.request.supersedes == hook.request.id
    answers.approve(Team(mirrored), again.request.id)
    again.answer()


def test_a_plan_that_is_not_answered_in_time_is_denied(mirrored: TeamDirectory, quiet_signals: None) -> None:
    verdict = gate.review_plan(mirrored.path, "alpha", plan_event(mirrored.root), limit=0)
    assert verdict is not None
    assert not verdict.allowed
    assert "not reviewed in time" in verdict.reason
    assert [each.status for each in requests.load_all(mirrored)] == ["expired"]


def test_a_permission_that_is_not_answered_in_time_is_asked_by_claude_code(
    mirrored: TeamDirectory, quiet_signals: None
) -> None:
    assert gate.ask_permission(mirrored.path, "alpha", permission_event(mirrored.root), limit=0) is None
    assert [each.status for each in requests.load_all(mirrored)] == ["expired"]


def test_a_permission_is_allowed_or_refused(mirrored: TeamDirectory) -> None:
    hook = start_hook(mirrored, permission_event(mirrored.root))
    assert (hook.request.type, hook.request.payload["tool"]) == ("permission", "Write")
    assert "+made by alpha" in str(hook.request.payload["diff"])
    answers.approve(Team(mirrored), hook.request.id)
    assert hook.answer()["decision"] == {"behavior": "allow"}

    hook = start_hook(mirrored, permission_event(mirrored.root))
    answers.reject(Team(mirrored), hook.request.id, "not there")
    assert hook.answer()["decision"] == {"behavior": "deny", "message": "Not allowed by operator: not there"}


def test_the_line_about_a_call_of_a_server_shows_its_arguments(mirrored: TeamDirectory, quiet_signals: None) -> None:
    event = permission_event(mirrored.root, tool_name="mcp__db__run", tool_input={"q": "drop\nx", "description": "ok"})
    assert gate.ask_permission(mirrored.path, "alpha", event, limit=0) is None
    assert requests.load_all(mirrored)[0].payload["summary"] == '{"q": "drop\\nx", "description": "ok"}'


@pytest.mark.parametrize("made", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_only_a_regular_file_is_read_for_a_diff(tmp_path: Path, made: Callable[[Path], None]) -> None:
    made(path := tmp_path / "file")
    diff = gate._diff("Write", {"path": str(path), "content": "new\n"})
    assert diff is not None
    assert diff.splitlines()[-1] == "+new"
    assert "is not shown" in diff


def test_a_request_is_cancelled_when_claude_code_ends_its_hook(mirrored: TeamDirectory) -> None:
    hook = start_hook(mirrored, plan_event(mirrored.root))
    hook.end(signal.SIGTERM)
    closed = requests.load(mirrored, hook.request.id)
    assert closed is not None
    assert closed.status == "cancelled"


def test_a_request_is_cancelled_when_claude_code_is_gone(mirrored: TeamDirectory) -> None:
    hook = start_hook(mirrored, plan_event(mirrored.root))
    assert hook.process.stdout is not None
    hook.process.stdout.close()
    hook.process.stdout = None
    eventually(lambda: requests.pending(mirrored) == [], "the end of the request")
    hook.process.communicate(timeout=30)


def test_the_request_of_a_killed_hook_is_cancelled_later(mirrored: TeamDirectory) -> None:
    hook = start_hook(mirrored, plan_event(mirrored.root))
    gate.cancel_abandoned(mirrored, 1.0)
    assert len(requests.pending(mirrored)) == 1
    hook.end(signal.SIGKILL)
    gate.cancel_abandoned(mirrored, 1.0)
    assert requests.pending(mirrored) == []


def test_a_plan_is_denied_when_its_request_cannot_be_filed(mirrored: TeamDirectory) -> None:
    shutil.rmtree(mirrored.requests.on_disk)
    mirrored.requests.on_disk.write_text("")
    answer = json.loads(run_hook(plan_event(mirrored.root)))["hookSpecificOutput"]
    assert answer["permissionDecision"] == "deny"
    assert "could not ask the user" in answer["permissionDecisionReason"]
    assert run_hook(permission_event(mirrored.root)) == ""


def damage(config: Path, how: str) -> None:
    if how == "torn":
        config.write_bytes(config.read_bytes()[:60])
    elif how == "not an object":
        config.write_text("[]")
    elif how == "no list of sessions":
        config.write_text(config.read_text().replace('"session_ids": [', '"session_ids": 7, "x": ['))
    else:
        # For root, too, it cannot be read.
        config.unlink()
        config.mkdir()


@pytest.mark.parametrize("how", ["torn", "not an object", "no list of sessions", "unreadable"])
def test_a_plan_is_denied_when_the_attached_team_is_damaged(mirrored: TeamDirectory, how: str) -> None:
    damage(mirrored.config.on_disk, how)
    answer = json.loads(run_hook(plan_event(mirrored.root)))["hookSpecificOutput"]
    assert answer["permissionDecision"] == "deny"
    assert str(mirrored.config) in answer["permissionDecisionReason"]
    assert "crewboard attach" in answer["permissionDecisionReason"]
    assert run_hook(permission_event(mirrored.root)) == ""


def test_a_damaged_team_does_not_hold_the_plans_of_another(mirrored: TeamDirectory) -> None:
    other = TeamDirectory(mirrored.path.with_name("claude-ffffffff"))
    other.make()
    other.config.on_disk.write_text("{")
    hook = start_hook(mirrored, plan_event(mirrored.root))
    answers.approve(Team(mirrored), hook.request.id)
    assert hook.answer()["permissionDecision"] == "allow"


def test_a_damaged_team_that_came_with_the_repository_denies_nothing(mirrored: TeamDirectory) -> None:
    mirrored.owners.unlink()
    mirrored.config.on_disk.write_text("{")
    assert run_hook(plan_event(mirrored.root)) == ""


def test_a_team_that_came_with_the_repository_asks_nothing(mirrored: TeamDirectory) -> None:
    mirrored.owners.unlink()
    assert run_hook(plan_event(mirrored.root)) == ""
    assert requests.load_all(mirrored) == []


def test_a_foreign_team_of_the_same_session_shadows_none(mirrored: TeamDirectory) -> None:
    other = TeamDirectory(mirrored.path.with_name("claude-ffffffff"))
    shutil.copytree(mirrored.path, other.path, ignore=shutil.ignore_patterns("owners"))
    changed = mirrored.config.on_disk.stat().st_mtime + 10
    os.utime(other.config.on_disk, (changed, changed))
    hook = start_hook(mirrored, plan_event(mirrored.root))
    answers.approve(Team(mirrored), hook.request.id)
    assert hook.answer()["permissionDecision"] == "allow"


def test_a_plan_is_denied_when_others_may_control_the_team(mirrored: TeamDirectory) -> None:
    mirrored.path.chmod(0o777)
    assert json.loads(run_hook(plan_event(mirrored.root)))["hookSpecificOutput"]["permissionDecision"] == "deny"


@pytest.mark.parametrize("given", ["[" * 3000 + "]" * 3000, "9" * 5000], ids=["deep", "long"])
def test_a_plan_that_cannot_be_read_is_denied(mirrored: TeamDirectory, given: str) -> None:
    event = json.dumps(plan_event(mirrored.root)).replace('"tool_input": {', f'"tool_input": {{"x": {given}, ')
    answer = json.loads(run_hook(event, CLAUDE_PROJECT_DIR=str(mirrored.root)))["hookSpecificOutput"]
    assert answer["permissionDecision"] == "deny"
    assert "cannot read" in answer["permissionDecisionReason"]
    other = event.replace(SESSION, "another-session")
    assert run_hook(other, CLAUDE_PROJECT_DIR=str(mirrored.root)) == ""


def test_a_folder_that_cannot_be_one_is_passed_over(mirrored: TeamDirectory) -> None:
    shutil.rmtree(mirrored.requests.on_disk)
    mirrored.requests.on_disk.write_text("")
    event = {**plan_event(mirrored.root), "cwd": "a\0b"}
    answer = json.loads(run_hook(event, CLAUDE_PROJECT_DIR=str(mirrored.root)))["hookSpecificOutput"]
    assert answer["permissionDecision"] == "deny"


def test_claude_code_approves_plans_again_if_the_lead_is_the_approver(mirrored: TeamDirectory) -> None:
    settings.set_approver(Team(mirrored), "lead")
    assert run_hook(plan_event(mirrored.root)) == ""


def test_a_teammate_with_a_terminal_of_its_own_is_known_by_its_arguments(mirrored: TeamDirectory) -> None:
    event = plan_event(mirrored.root, session_id="54bbdc4f-be0d-4f12-acb0-bda18d0c7a9a")
    del event["agent_id"]
    hook = [*COMMAND, "hook"]
    session = [
        PYTHON, "-c", f"import subprocess; raise SystemExit(subprocess.run({hook!r}).returncode)",
        "--agent-id", "beta@T", "--agent-name", "beta", "--team-name", "T", "--parent-session-id", SESSION,
    ]  # fmt: skip
    started = start_hook(mirrored, event, session)
    assert started.request.from_ == "beta"
    answers.approve(Team(mirrored), started.request.id)
    assert started.answer()["permissionDecision"] == "allow"


def test_the_plan_is_announced_as_mail_to_the_operator(mirrored: TeamDirectory, quiet_signals: None) -> None:
    gate.review_plan(mirrored.path, "Test Writer", plan_event(mirrored.root), limit=0)
    (letter,) = mailbox.read(mirrored, "operator", 0).messages
    assert (letter.type, letter.from_) == ("plan_approval_request", "test-writer")
    assert roster.load(mirrored).attached is not None
