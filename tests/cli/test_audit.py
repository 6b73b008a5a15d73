"""The audit: every command of a user that changes a team leaves one record, with time, name and object."""

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import click
import pytest

from crewboard.commands import hosts, messages, settings
from crewboard.commands.context import Team
from crewboard.records.processes import Exit
from crewboard.records.team import Rule
from crewboard.store import agents, operators, roster, tasks
from crewboard.store.layout import TeamDirectory
from crewboard_tui.cli.program import READING, crewboard
from tests.cli.files import alive, ask, enlist
from tests.cli.shell import Cli
from tests.store.raw_mail import append

BY_WORKERS = {"spawn", "resume", "lead", "check"}
"""Commands that need a real worker; `test_a_hire_by_a_lead_is_no_act_of_the_user` has them. `check` needs a
process of its own: test_commands.py."""

BY_CLAUDE_CODE = {"hook"}
"""Commands that Claude Code runs, not the user."""

WITH_WORKTREES = {"merge", "undo", "discard", "worktree"}
"""Commands that need a repository; tests/worktrees has them."""

ON_HOSTS = {"host", "workspace", "fetch"}
"""Commands that need a database, or do not end. `fetch` changes the user's repository, and not the team."""

EXACT_COPIES = {"import"}
"""It replaces the audit log as well, by that of the team that was exported."""

COMMANDS = [
    (("send", "fixer", "secret words"), "message", "fixer"),
    (("broadcast", "secret words"), "broadcast", "fixer"),
    (("task", "add", "varnish"), "task add", "#3"),
    (
        ("task", "update", "1", "--description", "secret words", "--priority", "2", "--blocked-by", ""),
        "task update",
        "#1",
    ),
    (("task", "reopen", "2"), "task reopen", "#2"),
    (("pause", "fixer"), "pause", "fixer"),
    (("unpause", "fixer"), "unpause", "fixer"),
    (("interrupt", "fixer"), "interrupt", "fixer"),
    (("rename", "fixer", "of the parser"), "rename", "fixer"),
    (("approver", "lead"), "approver", ""),
    (("budget", "2m"), "budget", ""),
    (("budget", "fixer", "200k"), "budget", "fixer"),
    (("limit", "fixer", "--turns", "7"), "limit", "fixer"),
    (("limit", "fixer", "--memory", "2G"), "limit", "fixer"),
    (("settings", "max_agents", "4"), "setting", ""),
    (("task", "update", "1", "--check", "secret words"), "task update", "#1"),
    (("rules", "revoke", "rule-1"), "revoke", ""),
    (("rules", "add", "deny", "bash", "rm *", "--agent", "fixer"), "rule", "fixer"),
    (("approve", "plan-1"), "approve", "fixer"),
    (("reject", "plan-1", "--feedback", "no"), "reject", "fixer"),
    (("answer", "question-1", "secret words"), "answer", "fixer"),
    (("ack", "gone"), "acknowledge", "gone"),
    (("stop", "gone"), "acknowledge", "gone"),
    (("remove", "gone"), "remove", "gone"),
]


@pytest.fixture
def kim(cli: Cli, team: Team) -> Iterator[Cli]:
    """Return the command line of the user kim, with an agent at rest, one that is gone, and two open requests."""
    enlist(team, "fixer")
    enlist(team, "gone")
    team.directory.agent("gone").exit.save(Exit(run=1, code=1, reason="died", buried=True))
    rule = Rule(id="rule-1", agent="fixer", tool="bash", scope="ls")
    tasks.add(team.directory, "paint", 1.0)
    tasks.add(team.directory, "sand", 1.0, owner="fixer")
    tasks.update(team.directory, 2, "fixer", 2.0, status="failed")
    roster.change(team.directory, lambda config: config.rules.append(rule))
    ask(team, "plan-1", "plan_approval", {"plan": "x"})
    ask(team, "question-1", "question", {"question": "x?"})
    with alive(team, "fixer"):
        yield cli.with_environment(USER="root", CREWBOARD_OPERATOR="kim")


@pytest.mark.parametrize(("arguments", "act", "target"), COMMANDS, ids=lambda value: " ".join(value)[:24])
def test_a_command_is_recorded_once(
    kim: Cli, directory: TeamDirectory, arguments: tuple[str, ...], act: str, target: str
) -> None:
    if act == "unpause":
        agents.want(directory.agent("fixer"), "paused", run=1)
    assert kim(*arguments).code == 0
    found = [each for each in kim("audit", "--json").json if each["target"] != "gone" or target == "gone"]
    (seen,) = found
    assert (seen["who"], seen["act"], seen["target"]) == ("kim", act, target)
    assert seen["ts"] > 0
    assert not any(b"secret words" in (line or b"") for line, _ in directory.audit.read())


def test_the_audit_shows_a_message_by_its_words(kim: Cli, directory: TeamDirectory) -> None:
    line = f"paint the fence {'green ' * 50}twice"
    kim("send", "fixer", f"{line}\nin green")
    (act,) = kim("audit", "--json").json
    wide = kim.with_environment(COLUMNS="400")
    assert wide("audit").out.splitlines()[1].endswith(f"  kim  message  fixer  {line}")
    directory.inbox("fixer").remove()
    assert kim("audit").out.splitlines()[1].endswith(f"  kim  message  fixer  message {act['detail'][:8]}")


def test_the_audit_says_what_was_changed_of_a_task(kim: Cli) -> None:
    kim("task", "update", "1", "--subject", "x", "--priority", "-1", "--owner", "fixer", "--blocked-by", "2")
    kim("task", "reopen", "2")
    edit, reopened = kim("audit", "--json").json
    assert edit["detail"] == "fixer, subject, priority -1, blocked by 2"
    assert reopened["detail"] == "was failed, fixer"


def test_every_command_that_changes_a_team_is_covered() -> None:
    context = click.Context(crewboard)
    changing = set(crewboard.list_commands(context)) - READING
    elsewhere = BY_WORKERS | BY_CLAUDE_CODE | WITH_WORKTREES | ON_HOSTS | EXACT_COPIES
    assert changing == {arguments[0] for arguments, _, _ in COMMANDS} | elsewhere


@pytest.mark.long
def test_the_audit_tells_which_hosts_began(database: str, tmp_path: Path) -> None:
    directory = TeamDirectory(tmp_path / uuid4().hex / ".crewboard" / "api")
    directory.root.mkdir()
    directory.make(database)
    roster.ensure(directory, 1.0)
    environment = {"ANTHROPIC_API_KEY": "secret", "CREWBOARD_OPERATOR": "kim"}
    hosts.command(Team(directory, environment=environment), "build1", 4, ["gpu"])
    (seen,), _ = operators.acts(directory)
    assert (seen.who, seen.act, seen.target, seen.detail) == ("kim", "host", "build1", "4 slots")


def test_a_refused_command_is_not_recorded(kim: Cli) -> None:
    assert kim("answer", "plan-1", "x").code == 65
    assert kim("budget", "lots").code == 2
    assert kim("audit").out == ""


def test_the_name_falls_back_to_the_account(kim: Cli) -> None:
    kim.with_environment(CREWBOARD_OPERATOR="")("approver", "lead")
    (seen,) = kim("audit", "--json").json
    assert seen["who"] == "root"


def test_a_name_cannot_forge_the_list(kim: Cli) -> None:
    kim.with_environment(CREWBOARD_OPERATOR="eve\n\x1b[2Jkim" + "x" * 99)("approver", "lead")
    (seen,) = kim("audit", "--json").json
    assert seen["who"] == ("eve[2Jkim" + "x" * 99)[:32]
    assert "\x1b" not in kim("audit").out


def test_what_a_lead_does_is_in_its_journal_and_not_here(team: Team) -> None:
    enlist(team, "fixer")
    enlist(team, "lead", "lead")
    messages.send(Team(team.directory, by="lead"), "fixer", "go on")
    assert operators.acts(team.directory) == ([], 0)


@pytest.mark.files_only("puts a folder in the place of a file")
def test_what_cannot_be_recorded_is_done_all_the_same(team: Team) -> None:
    team.directory.audit.on_disk.mkdir()
    settings.set_budget(team, "$20")
    assert roster.load(team.directory).budget == "$20"


def test_a_damaged_line_is_counted(cli: Cli, team: Team) -> None:
    team.note("pause", "fixer")
    append(team.directory.audit, b"{not json\n")
    seen = cli("audit")
    assert "pause" in seen.out
    assert "1 damaged line of the audit file" in seen.err


def test_team_commands_are_recorded(cli: Cli, directory: TeamDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cli("team", "create", "blue").code == 0
    assert cli("team", "delete", "default").code == 0
    assert [act.act for act in operators.acts(directory)[0]] == ["delete"]
    assert [act["act"] for act in cli("--team", "blue", "audit", "--json").json] == ["create"]
    directory.owners.unlink()
    assert cli.agree("--team", "default", "team", "adopt", "--yes").code == 0
    assert cli.agree("--team", "default", "team", "adopt", "--yes").code == 0
    assert [act.act for act in operators.acts(directory)[0]] == ["delete", "adopt"]


@pytest.mark.long
def test_a_hire_and_a_resume_are_recorded(offline: Cli) -> None:
    assert offline("spawn", "scout", "--type", "explore", "--prompt", "hello").code == 0
    assert offline("stop", "scout", "--now").code == 0
    assert offline("resume", "scout").code == 0
    assert offline("resume", "scout").code == 0
    seen = [(act["act"], act["target"], act["detail"]) for act in offline("audit", "--json").json]
    assert seen == [("hire", "scout", "explore, run 1"), ("stop", "scout", "now"), ("resume", "scout", "run 2")]


def test_an_accepted_type_is_recorded_also_before_there_is_a_team(cli: Cli, directory: TeamDirectory) -> None:
    folder = directory.root / ".claude" / "agents"
    folder.mkdir(parents=True)
    (folder / "auditor.md").write_text("---\nname: auditor\ndescription: reads\ntools: Read\n---\nRead.\n")
    assert cli.agree("types", "trust", "auditor").code == 0
    (act,) = cli("audit", "--json").json
    assert (act["act"], act["target"]) == ("trust", "auditor")
    assert act["detail"].startswith(".claude/agents/auditor.md, SHA-256 ")
