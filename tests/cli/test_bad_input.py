"""User errors: one clear sentence, the right exit code, nothing changed, no traceback."""

import json

import pytest

from crewboard.commands import tasks as board
from crewboard.commands.context import Team
from crewboard.records.team import Config, Member
from crewboard.store import mailbox, roster, tasks
from crewboard.store.layout import TeamDirectory
from crewboard_tui.cli import program
from tests.cli.files import alive, ask, enlist
from tests.cli.shell import Cli
from tests.store.raw_mail import append

SPAWN = ("spawn", "scout", "--type", "explore", "--prompt", "look")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("nope",), 2, ("no such command: 'nope'",)),
        (("help", "nope"), 2, ("no such command: 'nope'",)),
        (("statu",), 2, ("did you mean 'status'",)),
        (("diff", "scout"), 2, ("no such command: 'diff'", "`crewboard changes NAME --diff` does that")),
        (("task", "done", "3"), 2, ("no such command: 'done'", "`crewboard task update ID --status completed` does")),
        (("hire", "scout"), 2, ("`crewboard spawn NAME` does that",)),
        (("ls",), 2, ("`crewboard status` does that",)),
        (("logs", "scout"), 2, ("`crewboard log NAME` does that",)),
        (("kill", "scout"), 2, ("`crewboard stop NAME --now` does that",)),
        (("task", "assign", "3"), 2, ("`crewboard task update ID --owner NAME` does that",)),
        (("task", "claim", "3"), 2, ("`crewboard task update ID --owner NAME` does that",)),
        (("status", "--wrong"), 2, ("--wrong",)),
        (("report",), 2, ("no such command: 'report'; `crewboard --help`",)),
        (("reject", "x", "--feedbak", "no"), 2, ("Did you mean '--feedback'? `crewboard reject --help`",)),
        (("task", "add", "--desc", "x"), 2, ("Did you mean '--description'?",)),
        (("task", "add", "--after", "3", "x"), 2, ("No such option '--after'; `crewboard task add --help`",)),
        (("send", "scout"), 2, ("Missing argument",)),
        (("--root", "/nowhere/at/all", "status"), 2, ("/nowhere/at/all is not a directory",)),
        (("--team", "ghosts", "status"), 2, ("there is no team 'ghosts'", "team create ghosts")),
        (("--team", "No Good", "status"), 2, ("cannot name a team",)),
        (("team", "create", "Bad"), 2, ("cannot name a team",)),
        (("team", "create", "agents"), 2, ("reserved",)),
        (("team", "delete", "ghosts"), 2, ("there is no team 'ghosts'", "(teams: ")),
        (("spawn", "scout", "--type", "wizard", "--prompt", "x"), 2, ("'wizard'", "explore, plan, code, test")),
        (("spawn", "Scout", "--type", "explore", "--prompt", "x"), 2, ("cannot name an agent",)),
        (("spawn", "a" * 33, "--type", "explore", "--prompt", "x"), 2, ("cannot name an agent",)),
        (("spawn", "../x", "--type", "explore", "--prompt", "x"), 2, ("cannot name an agent",)),
        (("spawn", "operator", "--type", "explore", "--prompt", "x"), 2, ("reserved",)),
        (("spawn", "lead", "--type", "explore", "--prompt", "x"), 2, ("reserved",)),
        (("spawn", "scout", "--type", "explore", "--prompt", "  "), 2, ("needs a prompt",)),
        (("spawn", "scout", "--type", "explore"), 2, ("--prompt", "--prompt-file")),
        ((*SPAWN, "--prompt-file", "-"), 2, ("--prompt", "--prompt-file")),
        (("spawn", "scout", "--type", "explore", "--prompt-file", "gone.md"), 2, ("there is no file gone.md",)),
        (("spawn", "scout", "--type", "explore", "--prompt-file", "."), 2, ("a directory",)),
        ((*SPAWN, "--max-turns", "0"), 2, ("--max-turns",)),
        ((*SPAWN, "--task", "7"), 2, ("there is no task 7",)),
        (SPAWN, 78, ("no API key", "ANTHROPIC_API_KEY", "--offline")),
        (("resume", "scout"), 2, ("there is no agent 'scout'",)),
        (("resume",), 2, ("--all",)),
        (("resume", "scout", "--all"), 2, ("--all, not both",)),
        (("mcp", "approve", "git", "--all"), 2, ("--all, not both",)),
        (("mcp", "--json", "approve", "git"), 2, ("--json before approve is for the list; approve takes none",)),
        (("mcp", "aprove", "git"), 2, ("no such command: 'aprove' (did you mean 'approve'?)",)),
        (("worktree", "--json", "prune"), 2, ("is for the list; write `crewboard worktree prune --json`",)),
        (("rules", "--json", "revoke", "x"), 2, ("--json before revoke is for the list; revoke takes none",)),
        (("rules", "add", "deny", "bash", "x", "--type"), 2, ("'--type' requires", "`crewboard rules add --help`")),
        (("rules", "revok", "x"), 2, ("no such command: 'revok' (did you mean 'revoke'?)",)),
        (("pause", "scout", "--all"), 2, ("--all, not both",)),
        (("stop", "scout", "--all"), 2, ("--all, not both",)),
        (("fetch", "scout", "--all"), 2, ("--all, not both",)),
        (("merge", "scout", "--squash", "--rebase"), 2, ("only one of --squash and --rebase",)),
        (("merge", "scout", "--squash", "--merge", "--rebase"), 2, ("only one of --squash, --merge and --rebase",)),
        (("attach", "--install", "--uninstall"), 2, ("only one of --install and --uninstall",)),
        (("send", "missing", "hi"), 2, ("no agent of this team is called 'missing'", "operator, lead")),
        (("send", "lead", " "), 2, ("empty",)),
        (("broadcast", "hi"), 2, ("no agent to send it to",)),
        (("inbox", "../../etc/passwd"), 2, ("no agent of this team",)),
        (("approve", "plan-1"), 65, ("there is no request plan-1",)),
        (("approve", ""), 2, ("the id of the request is empty",)),
        (("approve", "../config"), 65, ("there is no request ../config",)),
        (("approve", "x" * 300), 65, ("there is no request",)),
        (("reject", "plan-1", "--feedback", "no"), 65, ("there is no request",)),
        (("reject", "plan-1"), 2, ("--feedback",)),
        (("answer", "ask-1", ""), 2, ("empty",)),
        (("task", "add", " "), 2, ("needs a subject",)),
        (("task", "add", "x", "--blocked-by", "one"), 2, ("not a task id",)),
        (("task", "add", "x", "--blocked-by", "9"), 2, ("there is no task 9",)),
        (("task", "add", "x", "--owner", "ghost"), 2, ("there is no agent 'ghost'",)),
        (("task", "add", "x", "--type", "wizard"), 2, ("'wizard'",)),
        (("task", "update", "1"), 2, ("nothing to change",)),
        (("task", "update", "1", "--status", "done"), 2, ("--status",)),
        (("task", "update", "1", "--status", "failed"), 2, ("there is no task 1",)),
        (("task", "update", "9" * 400, "--status", "failed"), 2, ("not a task id",)),
        (("wait", "scout", "--until", "idle"), 2, ("there is no agent 'scout'",)),
        (("--read-only", "status"), 2, ("--read-only", "for the dashboard")),
        (("--read-only", "board"), 2, ("needs a terminal",)),
        (("--ascii",), 2, ("needs a terminal",)),
        (("status", "--plain"), 2, ("--plain", "are for the dashboard: `crewboard --plain`")),
        (("export", "copy"), 2, ("there is no team default in", "team create default` makes it")),
        ((*SPAWN, "--window", "100"), 2, ("a window of 100 tokens is too small", "4000 or more")),
        ((*SPAWN, "--max-memory", "1K"), 2, ("'1K' is too little memory", "64M or more")),
        (("resume", "scout", "--window", "3k"), 2, ("too small for an agent",)),
        (("limit", "scout", "--memory", "1M"), 2, ("64M or more",)),
        (("status", "--team", "x"), 2, ("--team stands before the command",)),
        (("wait", "--until", "idle"), 2, ("name an agent, or use --all or --any",)),
        (("wait", "--all", "--any", "--until", "idle"), 2, ("--all or --any, not both",)),
        (("wait", "--all", "--until", "idle"), 2, ("has no agents",)),
        (("wait", "scout", "--until", "asleep"), 2, ("unknown state: asleep", "idle")),
        (("wait", "scout", "--until", ","), 2, ("unknown state",)),
        (("wait", "scout", "--until", "idle", "--timeout", "-1"), 2, ("--timeout",)),
        (("wait", "scout", "--until", "idle", "--timeout", "nan"), 2, ("--timeout",)),
        (("wait", "scout", "--until", "idle", "--timeout", "soon"), 2, ("--timeout",)),
        (("stop", "scout"), 2, ("there is no agent 'scout'",)),
        (("ack", "scout"), 2, ("there is no agent 'scout'",)),
        (("remove", "scout"), 2, ("there is no agent 'scout'",)),
        (("log", "scout"), 2, ("there is no agent 'scout'",)),
        (("journal", "scout"), 2, ("there is no agent 'scout'",)),
        (("--root", "/proc", "team", "create", "crew"), 74, ("cannot create the team directory",)),
        (("--root", "/proc", "task", "add", "x"), 74, ("cannot create the team directory",)),
        ((), 2, ("needs a terminal",)),
        (("board",), 2, ("needs a terminal", "`crewboard board --plain`, `crewboard status`")),
        (("demo",), 2, ("needs a terminal", "`crewboard demo --headless` needs none")),
        (("demo", "--theme", "pink"), 2, ("pink is invalid; use one of dark, light",)),
        (("demo", "--headless", "--theme", "dark"), 2, ("--ascii and --theme are for the dashboard",)),
        (("--ascii", "demo", "--headless"), 2, ("--ascii and --theme are for the dashboard",)),
    ],
)
def test_a_mistake_gets_a_sentence(cli: Cli, arguments: tuple[str, ...], code: int, words: tuple[str, ...]) -> None:
    cli(*arguments).refused(code, *words)


@pytest.mark.parametrize("words", [(), ("spawn",), ("task", "add")])
def test_help_is_a_command_too(cli: Cli, words: tuple[str, ...]) -> None:
    shown = cli("help", *words)
    assert (shown.code, shown.out) == (0, cli(*words, "--help").out)


def test_help_is_shown_also_behind_a_group_s_json(cli: Cli) -> None:
    for arguments in (("rules", "--json", "add", "--help"), ("mcp", "--json", "approve", "git", "--help")):
        shown = cli(*arguments)
        assert shown.code == 0
        assert shown.out.startswith(f"Usage: crewboard {arguments[0]} {arguments[2]} ")


@pytest.mark.parametrize(
    ("name", "value", "least"),
    [
        *(("CREWBOARD_PROGRESS_TIMEOUT", value, "more than 0") for value in ("abc", "nan", "inf", "0", "-1")),
        ("CREWBOARD_CALL_TIMEOUT", "0", "more than 0"),
        ("CREWBOARD_RETRY_BUDGET", "-1", "0 or more"),
    ],
)
def test_seconds_that_no_worker_can_use_refuse_the_hire(cli: Cli, name: str, value: str, least: str) -> None:
    given = cli.with_environment(**{"CREWBOARD_OFFLINE": "1", name: value})
    says = f"{name} is {value!r}; it can be a number of seconds, {least}"
    given(*SPAWN).refused(2, says)
    assert list(cli.root.iterdir()) == [], "no team is made"
    wrong = next(check for check in given("doctor", "--json").json if check["name"] == "seconds")
    assert (wrong["mark"], wrong["detail"]) == ("bad", says)


@pytest.mark.parametrize(
    ("name", "value", "says", "check"),
    [
        ("CREWBOARD_OFFLINE_PACE", "abc", "it can be a number", "pace"),
        ("CREWBOARD_OFFLINE_PACE", "inf", "it can be a number", "pace"),
        ("CREWBOARD_SANDBOX", "bogus", "it can be auto or none", "sandbox"),
    ],
)
def test_a_value_that_no_worker_can_use_refuses_the_hire(
    cli: Cli, name: str, value: str, says: str, check: str
) -> None:
    given = cli.with_environment(**{"CREWBOARD_OFFLINE": "1", name: value})
    # An explorer runs no commands, and its worker reads the variable all the same.
    given("spawn", "ann", "--type", "explore", "--prompt", "look").refused(2, f"{name} is {value!r}; {says}")
    assert list(cli.root.iterdir()) == [], "no team is made"
    wrong = next(each for each in given("doctor", "--json").json if each["name"] == check)
    assert wrong["mark"] == "bad"
    assert name in wrong["detail"]


def test_a_wrong_pace_of_an_unused_model_refuses_no_hire(cli: Cli, team: Team) -> None:
    given = cli.with_environment(CREWBOARD_OFFLINE_PACE="abc")
    given(*SPAWN).refused(78, "no API key")
    assert "pace" not in [each["name"] for each in given("doctor", "--json").json]
    # What the team says counts, too, not the variable alone.
    team.directory.config.edit(lambda config: (config or Config(name="default")).replace(offline=True))
    given(*SPAWN).refused(2, "CREWBOARD_OFFLINE_PACE is 'abc'; it can be a number")


def test_a_retry_budget_of_0_is_one(cli: Cli) -> None:
    cli.with_environment(CREWBOARD_RETRY_BUDGET="0")(*SPAWN).refused(78, "no API key")


def test_a_key_that_cannot_be_sent_is_named_and_not_shown(cli: Cli) -> None:
    ran = cli.with_environment(ANTHROPIC_API_KEY="secret\r\n")(*SPAWN)
    ran.refused(78, "ANTHROPIC_API_KEY", "line break")
    assert "secret" not in ran.err


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("models.toml", "garbage = [\n", ("models.toml cannot be used: ",)),
        ("models.toml", "[toy-1]\nwindows = 1\n", ("models.toml cannot be used: toy-1: ", "`windows`")),
        ("models.toml", "[toy-1]\nprice = {inputs = 1}\n", ("models.toml cannot be used: toy-1: ",)),
        ("prices.toml", "x = 1\n", ("prices.toml cannot be used: ",)),
        ("prices.toml", "[[toy-1]]\ninput = 1\n", ("prices.toml cannot be used: ", "`output`")),
    ],
)
def test_a_damaged_model_file_refuses_the_hire(cli: Cli, file: str, text: str, words: tuple[str, ...]) -> None:
    path = cli.root / ".crewboard" / file
    path.parent.mkdir(mode=0o700)
    path.write_text(text)
    keyed = cli.with_environment(ANTHROPIC_BASE_URL="http://127.0.0.1:9", ANTHROPIC_AUTH_TOKEN="local")
    keyed(*SPAWN, "--model", "toy-1").refused(65, str(path), *words, "; correct or remove the file")
    found = next(check for check in keyed("doctor", "--json").json if check["name"] == file)
    assert found["mark"] == "bad"
    assert str(path) in found["detail"]
    assert "correct or remove the file" in found["remedy"]


@pytest.mark.parametrize("arguments", [SPAWN, ("send", "missing", "hi"), ("task", "add", " "), ("resume", "x"), ()])
def test_a_mistake_leaves_no_team_behind(cli: Cli, arguments: tuple[str, ...]) -> None:
    assert cli(*arguments).code != 0
    assert list(cli.root.iterdir()) == []


@pytest.mark.parametrize("arguments", [("task",), ("team",)])
def test_a_group_alone_shows_its_help(cli: Cli, arguments: tuple[str, ...]) -> None:
    ran = cli(*arguments)
    assert (ran.code, ran.out) == (2, "")
    assert "Usage: crewboard" in ran.err


def test_a_team_that_exists_is_not_made_again(cli: Cli) -> None:
    assert cli("team", "create", "crew").code == 0
    cli("team", "create", "crew").refused(2, "the team crew exists")


def test_a_name_that_is_taken_by_another_type(cli: Cli, team: Team) -> None:
    roster.put(team.directory, Member(name="scout", type="plan"))
    cli(*SPAWN).refused(2, "scout is of type plan")


def test_no_agent_is_hired_for_a_closed_task(cli: Cli, team: Team) -> None:
    board.add_task(team, "write it")
    board.update_task(team, 1, status="completed")
    cli(*SPAWN, "--task", "1").refused(2, "task 1 is completed", "crewboard task reopen 1")


def test_no_agent_gets_a_task_for_another_type(cli: Cli, team: Team) -> None:
    enlist(team, "scout", "explore")
    board.add_task(team, "write it", required_type="code")
    before = team.directory.task(1).get()
    why = "is for an agent of type code; scout is of type explore"
    cli(*SPAWN, "--task", "1").refused(2, f"task 1 {why}")
    cli("task", "update", "1", "--owner", "scout").refused(2, f"task 1 {why}")
    cli("task", "update", "1", "--owner", "scout", "--status", "in_progress").refused(2, f"task 1 {why}")
    cli("task", "add", "more", "--type", "code", "--owner", "scout").refused(2, f"the task {why}")
    assert team.directory.task(1).get() == before
    assert [task.id for task in tasks.load_all(team.directory)] == [1]


def test_no_agent_is_hired_for_a_task_that_cannot_begin(cli: Cli, team: Team) -> None:
    board.add_task(team, "first")
    board.add_task(team, "second", blocked_by=[1])
    cli(*SPAWN, "--task", "2").refused(75, "task 2 is blocked by 1", "task update 2 --owner scout")
    assert tasks.load(team.directory, 2).owner is None
    assert team.config.members == []


def test_an_unknown_recipient_is_told_who_there_is(cli: Cli, team: Team) -> None:
    roster.put(team.directory, Member(name="fixer", type="code"))
    cli("send", "fixxer", "hi").refused(2, "operator, lead, fixer")


def test_a_prompt_that_is_no_text(cli: Cli) -> None:
    (cli.root / "prompt").write_bytes(b"caf\xe9")
    cli("spawn", "scout", "--type", "explore", "--prompt-file", "prompt").refused(65, "not UTF-8 text")


def test_a_damaged_roster_is_named_and_kept(cli: Cli, damaged: TeamDirectory) -> None:
    torn = damaged.config.get()
    cli("task", "list").refused(2, "no such command")
    cli("send", "fixer", "hi").refused(65, f"{damaged.config} is damaged", "repair it by hand")
    ran = cli("status")
    assert ran.code == 65
    assert "config.json is damaged" in ran.err
    assert damaged.config.get() == torn


def test_a_damaged_roster_hides_no_agent(cli: Cli, team: Team) -> None:
    enlist(team, "fixer")
    team.directory.config.put(b"\xff{")
    for command in ("status", "cost"):
        ran = cli(command)
        assert ran.code == 65
        assert "fixer" in ran.out
        assert "no agents yet" not in ran.out
        assert "config.json is damaged" in ran.err


def test_a_removed_roster_is_not_made_anew(cli: Cli, team: Team) -> None:
    enlist(team, "fixer")
    team.directory.config.remove()
    for command in (("send", "fixer", "hi"), ("settings", "max_agents", "2"), SPAWN):
        cli(*command).refused(65, "config.json is gone")
    seen = cli("status")
    assert (seen.code, "fixer" in seen.out, "config.json is gone" in seen.err) == (65, True, True)
    told = json.loads(cli("status", "--json").out)
    assert (told["damaged"], [need["kind"] for need in told["needs_you"]].count("damaged")) == (1, 1)
    assert "config.json is gone" in cli("team", "list", "--json").out
    cli("team", "create", "default").refused(2, "the team default exists")
    cli("export", str(cli.root / "out")).refused(65, "config.json is gone")
    assert not team.directory.config.exists()


def test_a_damaged_roster_does_not_keep_a_team_from_ending(cli: Cli, damaged: TeamDirectory) -> None:
    assert cli("team", "delete", "default", "--purge").code == 0
    assert not damaged.path.exists()


def test_a_damaged_spec_does_not_make_a_stop_fail(cli: Cli, team: Team) -> None:
    enlist(team, "fixer")
    team.directory.agent("fixer").spec.put(b"garbage")
    ran = cli("stop", "fixer")
    assert (ran.code, ran.out, ran.err) == (0, "fixer is not running\n", "")


def test_damaged_lines_are_set_aside_and_told(cli: Cli, team: Team) -> None:
    box = team.directory.inbox("operator")
    mailbox.send(team.directory, mailbox.compose("lead", "operator", "message", "first"))
    append(box, b'{"torn": \n\n[[[[\n')
    mailbox.send(team.directory, mailbox.compose("lead", "operator", "message", "second"))
    ran = cli("inbox", "operator", "--json")
    assert [message["content"] for message in ran.json] == ["first", "second"]
    assert "2 damaged lines of the mailbox" in ran.err


def test_a_damaged_record_does_not_hide_the_others(cli: Cli, team: Team) -> None:
    assert cli("task", "add", "first").code == 0
    assert cli("task", "add", "second").code == 0
    team.directory.task(1).put(b"{")
    listed = cli("tasks", "--json")
    assert [task["subject"] for task in listed.json] == ["second"]
    assert f"{team.directory.task(1)} is damaged, so it is not listed" in listed.err
    assert cli("status", "--json").json["damaged"] == 1
    assert "damaged: tasks/1.json" in cli("status").out
    cli("task", "update", "1", "--status", "failed").refused(65, "damaged")


def test_a_record_with_the_id_of_another_one_is_said_to_be_damaged(cli: Cli, team: Team) -> None:
    cli("task", "add", "first")
    team.directory.task(9).put(team.directory.task(1).get() or b"")
    assert f"{team.directory.task(9)} is damaged" in cli("tasks").err
    told = cli("status", "--json").json
    assert (told["damaged"], [task["id"] for task in told["tasks"]]) == (1, [1])
    cli("task", "update", "9", "--status", "failed").refused(
        65, "damaged: it says that it is task 1; repair it by hand"
    )


def test_a_list_without_its_only_record_is_not_called_empty(cli: Cli, team: Team) -> None:
    team.directory.task(1).put(b"{")
    team.directory.request("plan-1").put(b"{")
    for command in (("tasks",), ("requests",), ("requests", "--all")):
        ran = cli(*command)
        assert (ran.code, ran.out) == (0, "")
        assert ran.err.endswith(".json is damaged, so it is not listed; repair it by hand\n")
        assert ran.err.count("\n") == 1


def test_a_damaged_request_is_named_by_the_beginning_of_its_id(cli: Cli, team: Team) -> None:
    team.directory.request("plan-d297f0").put(b"{")
    for ident in ("plan-d297f0", "plan-d297"):
        cli("approve", ident).refused(65, "plan-d297f0.json is damaged", "repair it by hand")
    cli("approve", "plan-e").refused(65, "there is no request plan-e; pending: none")


def test_an_answer_that_changes_nothing(cli: Cli, team: Team) -> None:
    plan = ask(team, "plan-1", "plan_approval", {"plan": "write it"})
    cli("answer", "plan-1", "yes").refused(65, "cannot be answered, only approved or rejected")
    cli("approve", "plan-1", "--sha256", "0" * 64).refused(65, "has another sha256")
    assert cli("approve", "plan-1", "--sha256", plan.sha256).code == 0
    cli("reject", "plan-1", "--feedback", "too late").refused(65, "already approved by operator")


def test_an_edited_plan_must_be_there(cli: Cli, team: Team) -> None:
    ask(team, "plan-1", "plan_approval", {"plan": "write it"})
    cli("approve", "plan-1", "--edited-file", "gone.md").refused(2, "there is no file")
    (cli.root / "empty.md").write_text("\n")
    cli("approve", "plan-1", "--edited-file", "empty.md").refused(2, "empty")


@pytest.mark.files_only("puts a link in the place of a file")
def test_a_disk_that_refuses_is_an_io_error(cli: Cli, team: Team) -> None:
    team.directory.inbox("operator").on_disk.symlink_to("/dev/full")
    cli("send", "operator", "hi").refused(74, "cannot write")


def test_a_terminal_that_cannot_paint(cli: Cli) -> None:
    cli.with_environment(TERM="dumb")("board").refused(2, "needs a terminal")


def test_an_error_of_our_own_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def explode(*_: object) -> None:
        raise RuntimeError("boom \x1b[31m")

    monkeypatch.setattr(program.crewboard, "make_context", explode)
    assert program.run([]) == 70
    said = capsys.readouterr().err
    assert "internal error: RuntimeError: boom" in said
    assert "\x1b" not in said


def test_an_import_needs_a_team(cli: Cli) -> None:
    exported = cli.root / "exported"
    exported.mkdir()
    (exported / "config.json").write_text('{"name": "default"}')
    cli("import", "exported").refused(2, "there is no team default in", "`crewboard team create default` makes it")
    assert not (cli.root / ".crewboard").exists()


def test_an_own_folder_that_others_can_write_to_is_kept(cli: Cli) -> None:
    assert cli("team", "create", "crew").code == 0
    folder = cli.root / ".crewboard"
    folder.chmod(0o720)
    ran = cli("status")
    assert ran.code == 77
    assert f"(mode 720); crewboard opens only a team directory that this user made: `chmod -R go-w {folder}`" in ran.err
    folder.chmod(0o700)
    assert cli("status").code == 0


def test_none_removes_the_budget_of_a_team(cli: Cli) -> None:
    assert cli("budget", "200k").code == 0
    assert "the team has no budget now" in cli("budget", "none").out
    assert cli("budget", "--json").json["budget"] is None


def test_tokens_without_a_price_are_no_part_of_a_budget_in_money(cli: Cli, team: Team) -> None:
    enlist(team, "scout", tokens={"input": 1500})
    assert cli("budget", "$3").code == 0
    assert "1.5k tokens unpriced, $0 of $3.00 used" in cli("budget").out
    (scout,) = [line.split() for line in cli("cost").out.splitlines() if "scout" in line]
    assert scout == ["scout", "—", "1.5k", "1.5k", "0", "0", "0", "0%", "—"], "one sign for nothing"


def test_what_no_model_is_called_is_refused(cli: Cli) -> None:
    keyed = cli.with_environment(ANTHROPIC_BASE_URL="http://127.0.0.1:9", ANTHROPIC_AUTH_TOKEN="local")
    for name in ("toy-1\n", " toy-1", "toy\x1b1"):
        keyed(*SPAWN, "--model", name).refused(2, f"no model is called {name!r}")


def test_a_budget_in_money_needs_the_prices_of_a_team(cli: Cli) -> None:
    keyed = cli.with_environment(ANTHROPIC_BASE_URL="http://127.0.0.1:9", ANTHROPIC_AUTH_TOKEN="local")
    assert keyed("budget", "$5").code == 0
    keyed(*SPAWN, "--model", "toy-1").refused(2, "the price of toy-1 is unknown", ".crewboard/models.toml")
    assert keyed("budget", "none").code == 0
    assert keyed("settings", "model", "opus explore=toy-1").code == 0
    keyed("budget", "$5").refused(2, "the price of toy-1 is unknown")
    assert keyed("settings", "model", "opus").code == 0
    team = Team(TeamDirectory(cli.root / ".crewboard" / "default"))
    enlist(team, "scout")
    with alive(team, "scout"):
        keyed("budget", "$5").refused(2, "the price of m is unknown")
    assert keyed("budget", "$5").code == 0, "an agent that has ended costs nothing more"
    with alive(team, "scout"):
        assert keyed("budget", "$9").code == 0, "a limit can be raised"
    assert keyed("budget", "200k").code == 0
