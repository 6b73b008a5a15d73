"""Steering from the command line: lead, interrupt, pause, approver, budget, rules."""

import contextlib
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

from crewboard.commands import control, hire, profiles, settings, stop
from crewboard.commands.context import Team
from crewboard.commands.hire import Assignment
from crewboard.errors import UsageError
from crewboard.offline.reply import Reply
from crewboard.protocol import supervisor_client
from crewboard.records.agents import Engine, HireOptions, McpState, Profile, Spec
from crewboard.records.events import Answer, Sent, ToolResult, ToolStart
from crewboard.records.messages import RETRY, Message
from crewboard.records.processes import Exit, HeldStart, HeldStarts
from crewboard.records.team import Rule
from crewboard.store import agents, journal, mailbox, roster, tasks
from crewboard.store.layout import TeamDirectory
from crewboard_tui.cli import hiring
from tests import model
from tests.cli.files import alive, enlist
from tests.cli.shell import Cli
from tests.crew import Crew, eventually


def test_the_lead_is_hired_by_speaking_to_it_and_answers_again(offline: Cli) -> None:
    first = offline("lead", "hello", "--unsafe-no-sandbox")
    assert first.code == 0
    assert "lead" in first.out
    again = offline("lead", "list the files")
    assert again.code == 0
    (seen,) = offline("status", "--json").json["agents"]
    assert (seen["name"], seen["type"], seen["run"]) == ("lead", "lead", 1)


NOT_YET = "scout was hired, but has not started yet; if it does not start by itself, `crewboard resume scout` starts it"
"""The supervisor that was asked may start it all the same."""


@pytest.mark.parametrize(
    ("before", "reached", "said"),
    [
        (None, None, "scout was not hired"),
        (None, "queued", "detached: scout stays queued; `crewboard journal scout --follow`"),
        (None, "hired", NOT_YET),
        (None, "running", "detached: scout keeps working; `crewboard journal scout --follow`"),
        ("exited", None, "scout was not given this work"),
        ("exited", "hired", NOT_YET),
        ("idle", None, "scout was not given this work"),
    ],
)
def test_ctrl_c_during_a_start_says_what_became_of_it(
    cli: Cli, team: Team, monkeypatch: pytest.MonkeyPatch, before: str | None, reached: str | None, said: str
) -> None:
    with contextlib.ExitStack() as lives:
        if before is not None:
            enlist(team, "scout", "explore", state=before)
        if before == "idle":
            lives.enter_context(alive(team, "scout"))

        def spawn(*_: object) -> NoReturn:
            if reached is not None:
                spec = Spec(prompt="hello", prompt_id="p", type="explore", model="m", flags=HireOptions(), at=1, run=3)
                agents.change_spec(team.directory.agent("scout"), lambda _: spec)
            if reached == "queued":
                waits = HeldStart(name="scout", run=3, since=1, reason="max_agents 1")
                team.directory.starts.save(HeldStarts(held=[waits]))
            if reached == "running":
                lives.enter_context(alive(team, "scout"))
            raise KeyboardInterrupt

        monkeypatch.setattr(hire, "spawn", spawn)
        ran = cli("spawn", "scout", "--type", "explore", "--prompt", "hello")
    assert (ran.code, ran.err.splitlines()[-1].startswith(said)) == (130, True)


@pytest.mark.files_only("a team in PostgreSQL has hosts")
def test_a_supervisor_that_does_not_start_is_waited_for_once(
    cli: Cli, team: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ann", "bob", "cat"):
        enlist(team, name, "explore", state="exited")
    monkeypatch.setattr(supervisor_client, "_start", lambda _: None)
    monkeypatch.setattr(supervisor_client, "START_TIMEOUT", 1.0)
    ran = cli.with_environment(CREWBOARD_OFFLINE="1")("resume", "--all")
    assert (ran.code, ran.err.count("starting the supervisor")) == (75, 1)
    assert "did not start in time" in ran.err


def test_a_queued_agent_has_no_pid_of_the_run_before(cli: Cli, team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    enlist(team, "bob", run=2, pid=22227, state="exited")
    team.directory.starts.save(HeldStarts(held=[HeldStart(name="bob", run=3, since=1, reason="max_agents 1")]))
    monkeypatch.setattr(hire, "spawn", lambda *_: Assignment("bob", "p", 3, fresh=True))
    monkeypatch.setattr(hire, "resume", lambda *_, **__: 3)
    where = {"name": "bob", "run": 3, "pid": None, "queued": 1}
    assert cli("resume", "bob", "--json").json == where
    hired = cli("spawn", "bob", "--type", "code", "--prompt", "hello", "--background", "--json")
    assert hired.json == {**where, "assignment": "p", "fresh": True}


@pytest.mark.parametrize("which", ["status", "exit"])
def test_a_damaged_status_or_exit_fails_no_hire(
    cli: Cli, team: Team, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    enlist(team, "ann", state="exited")
    agent = team.directory.agent("ann")
    agent.exit.save(Exit(run=2, code=1))
    (agent.status if which == "status" else agent.exit).put(b"{broken")
    sent = Sent(ts=1, run=2, message=Message(id="m", from_="ann", to="lead", type="result", content="done", ts=1))

    def spawn(*_: object) -> Assignment:
        for event in (Answer(ts=1, run=2, assignment="p", answers=["p"], text="done"), sent):
            journal.append(agent.journal, event)
        return Assignment("ann", "p", 2, fresh=True)

    monkeypatch.setattr(hire, "spawn", spawn)
    monkeypatch.setattr(hire, "resume", lambda *_, **__: 2)
    arguments = ("spawn", "ann", "--type", "code", "--prompt", "hello")
    # One that is told to have started ended at once, by the record that can be read.
    ended = 1 if which == "status" else 0
    assert cli("resume", "ann", "--json").code == 0
    assert cli(*arguments, "--background", "--json").code == ended
    assert cli(*arguments).out == "done\n"
    monkeypatch.setattr(hire, "spawn", lambda *_: Assignment("ann", "q", 3, fresh=True))
    with alive(team, "ann"):
        cli(*arguments, "--timeout", "0").refused(75, "ann has no result after 0 s and keeps working")


def test_each_line_of_a_pipe_prints_one_line_of_json(cli: Cli, team: Team) -> None:
    enlist(team, "ann")
    tasks.add(team.directory, "bake a cake", 1.0)
    ran = cli("lead", "--json", stdin=b"/team\n/tasks\n/inbox\n")
    shown, (task,), mail = map(json.loads, ran.out.splitlines())
    assert (shown["agents"][0]["name"], task["subject"], mail) == ("ann", "bake a cake", [])
    assert "\n  " in cli("tasks", "--json").out


@pytest.mark.long
def test_holding_and_letting_go(crew: Crew, live: Cli) -> None:
    crew.run("scout", "explore", "hello")
    crew.wait_for("scout", "idle")
    assert live("pause", "scout").code == 0
    crew.wait_for("scout", "paused")
    assert live("pause", "--all").out == "scout pauses at its next safe point\n"
    assert live("unpause", "--all").code == 0
    crew.wait_for("scout", "idle")
    assert "was idle" in live("interrupt", "scout", "where are you?").out
    eventually(lambda: "where are you?" in str(crew.model.requests[-1]["messages"]), "the interrupt")


@pytest.mark.long
def test_another_model_is_given_to_an_agent_that_is_idle(crew: Crew, live: Cli) -> None:
    crew.model.give("prim", Reply([{"type": "text", "text": "no"}], "refusal"), model.says("done"))
    crew.run("prim", "explore", "look", thinking="off")
    crew.wait_for("prim", "idle")
    again = live("resume", "prim")
    assert again.out == "prim is already running: run 1\n"
    assert "keeps the address, key and model that it started with" in again.err
    assert "stop prim`, then resume it" in again.err
    with pytest.raises(UsageError):
        control.retry_with(crew.team, "prim", model="opus")
    assert crew.see("prim").status.refused_by == "claude-haiku-5-5", (
        "a model that does not take its options ends nothing"
    )
    assert live("resume", "prim", "--model", "claude-opus-4-8").out == "prim is running: run 2\n"
    eventually(lambda: crew.model.asked_by("prim")[-1]["model"] == "claude-opus-4-8", "the next try")


def test_what_to_try_again_is_said_before_the_run_begins(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    enlist(team, "prim")

    def killed(*_: object, **__: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(hire, "resume", killed)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            control.retry_with(team, "prim", model="claude-opus-4-8")
    assert [each.content for each in mailbox.read(team.directory, "prim").messages] == [RETRY]


def test_who_is_not_there_cannot_be_steered(cli: Cli, directory: TeamDirectory) -> None:
    for command in ("pause", "unpause", "interrupt"):
        assert cli(command, "missing").code == 2
    assert cli("pause").code == 2
    assert cli("pause", "scout", "--all").code == 2
    assert cli("lead", " ").code == 2


def test_the_team_shows_what_it_used_of_its_budget(cli: Cli, team: Team) -> None:
    enlist(team, "fixer", tokens={"input": 1200, "output": 800}, cost_usd=0.05)
    assert " · $0.05 used" in cli("status").out
    # The offline model needs no price.
    cli.with_environment(CREWBOARD_OFFLINE="1")("budget", "$20")
    assert cli("budget").out == "the team may use $20.00; $0.05 of $20.00 used (0%)\n"
    assert cli("budget", "--json").json["used"] == {"tokens": 2000, "cost_usd": 0.05}
    costs = cli("cost").out.splitlines()
    assert costs[0].split() == ["AGENT", "COST", "TOKENS", "IN", "OUT", "CACHED", "WRITTEN", "HIT", "BUDGET"]
    assert costs[1].split() == ["fixer", "$0.05", "2.0k", "1.2k", "800", "0", "0", "0%", "—"]
    assert costs[2].split() == ["TEAM", "$0.05", "2.0k", "1.2k", "800", "0", "0", "0%", "0%", "of", "$20.00"]
    assert cli("budget", "-5").err.endswith("'-5' is not a budget: give money as $5 or tokens as 200k\n")
    assert cli("budget", "fixer", "-$5").err.endswith("'-$5' is not a budget: give money as $5 or tokens as 200k\n")
    for typo, says in (("--jsn", "Did you mean '--json'?"), ("--non", "'--none'"), ("--bogus", "'--bogus'; ")):
        cli("budget", typo, "5").refused(2, "No such option", says)
    shown = cli("cost", "--json").json
    assert [each.pop("name") for each in shown["agents"]] == ["fixer"]
    assert shown["agents"] == [{**shown["team"], "budget": None, "share": None}]
    assert shown["team"].pop("tokens")["input"] == 1200
    money = {"cost_usd": 0.05, "unpriced": False, "budget": "$20", "share": 0.0025}
    assert shown["team"] == {**money, "hit_rate": 0}
    cli("budget", "200k")
    assert cli("budget").out == "the team may use 200k tokens; 2.0k of 200k tokens used (1%)\n"


def test_a_long_name_leaves_room_for_what_the_agent_does(cli: Cli, team: Team) -> None:
    enlist(team, "payments-review-api-of-the-shop", state="working", doing="reads the tests of the shop")
    with alive(team, "payments-review-api-of-the-shop"):
        assert re.search(r"payments-r…-the-shop .* reads the tests", cli("status").out)


def test_approver_says_when_the_lead_has_an_engine(cli: Cli, team: Team) -> None:
    assert cli("approver", "lead").err == "there is no lead yet; until then plans come to you\n"
    enlist(team, "lead", "lead")
    assert cli("approver").err == ""
    spec = team.directory.agent("lead").spec.load()
    assert spec is not None
    team.directory.agent("lead").spec.save(spec.replace(engine=Engine(name="claude", command=["claude"])))
    said = cli("approver")
    assert (said.out, said.err) == (
        "you review plans\n",
        "lead is set to, but it has an engine, and those review none\n",
    )
    assert cli("approver", "--json").json == {"approver": "lead"}


def test_resume_of_a_running_agent_names_ignored_options(cli: Cli, team: Team) -> None:
    enlist(team, "ann")
    with alive(team, "ann"):
        done = cli("resume", "ann", "--web", "--model", "opus", "--network", "--json")
        plain = cli("resume", "ann", "--json")
        no_host = cli("resume", "ann", "--host", "h1")
    assert (done.code, done.json["name"]) == (0, "ann")
    assert "--model, --network, --web had no effect: it runs already" in done.err
    assert "had no effect" not in plain.err
    assert "it runs already" in plain.err
    no_host.refused(2, "host")


def test_resume_names_who_is_running_already(cli: Cli, team: Team) -> None:
    for name in ("ann", "bob", "dan"):
        enlist(team, name)
    with alive(team, "ann"), alive(team, "dan"):
        assert cli("resume", "ann", "dan").out == "ann, dan are running already\n"
        done = cli("resume", "ann", "dan", "ann", "--web", "--json")
        assert [each["name"] for each in done.json] == ["ann", "dan"]
        assert done.err == "ann, dan are running already\n--web had no effect on ann, dan\n"


def test_resume_says_one_thing_of_who_refused_to_end(cli: Cli, team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ann", "dan"):
        enlist(team, name)
    monkeypatch.setattr(hire, "resume", lambda *_, **__: 0)
    with alive(team, "ann"), alive(team, "dan"):
        stop.ask_to_stop(team, "ann")
        done = cli("resume", "ann", "dan")
    assert (done.out, done.err) == ("dan is running already\n", "ann did not end, and continues\n")


def test_settings_of_a_team(cli: Cli, directory: TeamDirectory) -> None:
    assert cli("approver", "lead").code == 0
    assert roster.load(directory).plan_approver == "lead"
    assert cli("approver", "missing").code == 2
    assert cli("approver").out == "the lead reviews plans; you still may\n"
    assert cli("approver", "--json").json == {"approver": "lead"}
    assert cli("approver", "operator").out == cli("approver").out == "you review plans\n"
    assert cli("resume", "--all").out == "nothing to resume: no agent that can be resumed is stopped\n"
    assert cli("settings", "max_agents", "-1").err.endswith("'-1' is not a number of agents: give 1 or more, or none\n")
    assert "gives one" in cli("worktree").err
    assert cli("worktree", "--json").json == cli("worktree", "list", "--json").json == []
    assert cli("budget", "$20").code == 0
    assert cli("budget").out == "the team may use $20.00; nothing used yet\n"
    used = {"tokens": 0, "cost_usd": None}
    assert json.loads(cli("budget", "--json").out) == {"budget": "$20", "used": used}
    cli("budget", "lots").refused(
        2, "'lots' is no agent of this team and no budget: give money as $5 or tokens as 200k"
    )
    small = cli("budget", "5")
    assert small.out == "the team may use 5 tokens\n"
    assert small.err == "a budget of 5 tokens is used up by the first call; quote money for the shell: '$25'\n"
    assert cli("budget", "absent", "$5").code == 2
    assert cli("budget", "fixer", "$5", "more").code == 2
    assert cli("budget", "--none").code == 0
    assert "no budget" in cli("budget").out


@pytest.mark.both_stores("two records are changed")
def test_limits_of_an_agent(cli: Cli, team: Team) -> None:
    enlist(team, "fixer", tokens={"input": 1200, "output": 800}, cost_usd=0.05)
    assert cli("budget", "fixer").out == "fixer has no budget of its own\n"
    assert cli("budget", "fixer", "200k").out == "fixer may use 200k tokens\n"
    used = {"tokens": 2000, "cost_usd": 0.05}
    assert cli("budget", "fixer", "--json").json == {"name": "fixer", "budget": "200k", "used": used, "run": None}
    assert cli("budget").out.startswith("the team has no budget")
    small = cli("budget", "fixer", "1k")
    assert small.out == "fixer may use 1k tokens\n"
    assert small.err == "fixer has used 200% of that already, and makes no model call until it is raised\n"
    assert cli("budget", "1k").err == small.err.replace("fixer", "the team")
    assert cli("budget", "--none").err == ""
    assert cli("budget", "fixer", "--none").code == 0
    assert "no budget" in cli("budget", "fixer").out
    assert cli("limit", "fixer", "--turns", "1").out == "fixer may call the model 1 time for one assignment\n"
    assert cli("limit", "fixer", "--turns", "7").out == "fixer may call the model 7 times for one assignment\n"
    assert cli("limit", "fixer", "--json").json == {"name": "fixer", "max_turns": 7, "max_memory": None, "run": None}


@pytest.mark.both_stores("two commands change one record")
def test_rules_are_listed_and_taken_back(cli: Cli, directory: TeamDirectory) -> None:
    rule = Rule(id="rule-1", agent="fixer", tool="bash", scope="pytest")
    roster.change(directory, lambda config: config.rules.append(rule))
    assert "pytest" in cli("rules").out
    assert cli("rules", "--json").json[0]["id"] == "rule-1"
    assert cli("rules", "revoke", "rule-1").code == 0
    assert cli("rules", "revoke", "rule-1").code == 2
    assert roster.load(directory).rules == []


def test_rules_are_added_and_listed_with_their_hits(cli: Cli, team: Team) -> None:
    enlist(team, "fixer")
    kim = cli.with_environment(CREWBOARD_OPERATOR="kim")
    first = kim("rules", "add", "deny", "bash", "git push*", "--all", "--json").json
    assert (first["effect"], first["agent"], first["agent_type"], first["by"]) == ("deny", None, None, "kim")
    assert (
        "fixer must ask before files for src/**"
        in kim("rules", "add", "ask", "files", "src/**", "--agent", "fixer").out
    )
    assert "all agents of type code may use" in kim("rules", "add", "allow", "bash", "ls", "--type", "code").out
    start = ToolStart(ts=7, tool_use_id="t", name="bash", input={}, rule=first["id"])
    refused = ToolResult(ts=9, tool_use_id="u", name="bash", content="no", rule=first["id"])
    for event in (start, refused):
        journal.append(team.directory.agent("fixer").journal, event)
    assert "· no agent may use bash for git push* · 2 hits, last " in cli("rules").out
    listed = cli("rules", "--json").json
    assert [(each["hits"], each["last_hit"]) for each in listed] == [(2, 9), (0, None), (0, None)]
    acts = [(each["who"], each["act"], each["target"], each["detail"]) for each in cli("audit", "--json").json]
    assert acts[0] == ("kim", "rule", "", f"{first['id']}: deny bash git push*, all agents")
    *_, revokes, removes = cli("rules", "--help").out.splitlines()
    assert (removes.split()[0], revokes.split()[0]) == ("remove", "revoke")
    assert removes.endswith("with this ID, as `revoke` does."), "one of two words for one thing says so"
    assert cli("rules", "remove", first["id"]).code == 0
    assert len(cli("rules", "--json").json) == 2
    added = cli("rules", "add", "deny", "bash", "su*", "--type", "code").out
    assert added.endswith(": no agent of type code may use bash for su*\n")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("deny", "bash", "rm *"), "say for which agents"),
        (("deny", "bash", "rm *", "--all", "--agent", "fixer"), "say for which agents"),
        (("deny", "bash", "rm *", "--agent", "gone"), "no agent"),
        (("deny", "bash", "rm *", "--type", "nothing"), "no agent type"),
        (("deny", "bash", "a && rm *", "--all"), "for one command, without &"),
        (("deny", "bash", "rm 'a", "--all"), "cannot be read"),
        (("deny", "bash", "rm \n", "--all"), "control characters"),
        (("deny", "bash", " ", "--all"), "1 to 500"),
        (("deny", "files", "/etc/**", "--all"), "no path from"),
        (("deny", "files", "../a", "--all"), "no path from"),
    ],
)
def test_a_rule_that_could_match_nothing_is_refused(
    cli: Cli, team: Team, arguments: tuple[str, ...], says: str
) -> None:
    enlist(team, "fixer")
    cli("rules", "add", *arguments).refused(2, says)
    assert team.config.rules == []


@pytest.mark.long
def test_a_skill_of_the_project_is_accepted_on_the_command_line(cli: Cli, tmp_path: Path) -> None:
    cli = cli.with_environment(XDG_STATE_HOME=str(tmp_path / "state"), CREWBOARD_OFFLINE="1")
    (folder := tmp_path / ".claude/skills/house").mkdir(parents=True)
    (folder / "SKILL.md").write_text("---\ndescription: how we work\n---\nShort.\n")
    spawned = cli("spawn", "ann", "--type", "explore", "--prompt", "look", "--background")
    assert "used only after you accept them: house;" in spawned.err
    assert "house" not in cli("spawn", "bob", "--type", "explore", "--prompt", "look", "--background").err, "once"
    assert "skills trust house" in cli("skills").out
    assert "house" in next(each["detail"] for each in cli("doctor", "--json").json if each["name"] == "skills")
    assert "accepted until" in cli.agree("skills", "trust", "house").out
    assert [(each["name"], each["state"]) for each in cli("skills", "--json").json] == [("house", "accepted")]
    assert all(each["name"] != "skills" for each in cli("doctor", "--json").json)
    (folder / "more.md").write_text("by an agent")
    assert "changed since you accepted it, by an agent or by you" in cli("skills").out
    (tmp_path / "CLAUDE.md").write_text("@notes/style.md @nobody @../x `@code.md`")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes/style.md").write_text("Tabs. @more.md")
    (tmp_path / "notes/more.md").write_text("More. @style.md")
    assert [each["name"] for each in cli("skills", "--json").json] == ["house", "@notes/style.md", "@notes/more.md"]
    assert cli.agree("skills", "trust", "@notes/style.md").code == 0
    assert [each["state"] for each in cli("skills", "--json").json] == ["changed", "accepted", "new"]
    (folder / "more.md").unlink()
    (folder / "link").symlink_to("/etc/hosts")
    cli("skills", "trust", "house").refused(2, "link is a link")
    cli("skills", "trust", "missing").refused(2, "there is no skill 'missing'")
    cli("stop", "ann", "--now")
    cli("stop", "bob", "--now")


def test_a_type_of_the_project_is_accepted_on_the_command_line(cli: Cli, tmp_path: Path) -> None:
    cli = cli.with_environment(XDG_STATE_HOME=str(tmp_path / "state"), CREWBOARD_OFFLINE="1")
    folder = tmp_path / ".claude" / "agents"
    folder.mkdir(parents=True)
    (folder / "auditor.md").write_text("---\nname: auditor\ndescription: looks\ntools: Read\n---\nLook.\n")
    cli("spawn", "ann", "--type", "auditor", "--prompt", "look", "--background").refused(77, "types trust auditor")
    assert "not accepted" in cli("types").out
    assert [each["name"] for each in cli("types", "--json").json if not each["trusted"]] == ["auditor"]
    assert "it may only read" in cli.agree("types", "trust", "auditor").out
    assert "not accepted" not in cli("types").out
    assert all(each["trusted"] for each in cli("types", "--json").json)
    cli("types", "trust", "code").refused(2, "built-in")
    cli("types", "trust", "missing").refused(2, "no agent type")


def test_own_types_are_listed_and_broken_files_named(cli: Cli, tmp_path: Path) -> None:
    folder = tmp_path / ".claude" / "agents"
    folder.mkdir(parents=True)
    (folder / "auditor.md").write_text(
        "---\nname: auditor\ndescription: looks around\ntools: Read, Task, Bash(git *)\nmaxTurns: 5\n"
        "permissionMode: bypassPermissions\n---\nLook.\n"
    )
    (folder / "broken.md").write_text("nothing")
    ran = cli("types")
    assert "auditor" in ran.out
    assert "left out: Task" in ran.out
    assert "not understood: permissionMode: bypassPermissions is never obeyed" in ran.out
    assert "limits: at most 5 model calls; only bash git *" in ran.out
    (own,) = [each for each in cli("types", "--json").json if each["file"]]
    assert (own["max_turns"], own["only"]) == (5, [{"tool": "bash", "pattern": "git *"}])
    assert "broken.md" in ran.err
    accepted = cli.with_environment(XDG_STATE_HOME=str(tmp_path / "state")).agree("types", "trust", "auditor")
    assert "its instructions (5 characters) become" in accepted.out
    assert accepted.err.startswith("not understood: permissionMode: bypassPermissions is never obeyed")


def test_a_type_is_begun_on_the_command_line(cli: Cli, tmp_path: Path) -> None:
    begun = cli("types", "new", "reviewer", "--from", "explore", "--description", "reviews a diff")
    assert begun.out == f"{tmp_path}/.crewboard/agents/reviewer.md\n"
    assert "types trust reviewer` accepts it" in begun.err
    assert "reviewer reviews a diff" in cli("types").out
    cli("types", "new", "reviewer").refused(2, "type reviewer already: edit .crewboard/agents/reviewer.md, or")
    cli("types", "new", "code").refused(2, "code is a built-in type; choose another name")
    cli("types", "new", "other", "--from", "missing").refused(2, "no agent type 'missing'")


def test_a_profile_is_saved_listed_and_removed(cli: Cli, team: Team, tmp_path: Path) -> None:
    cli = cli.with_environment(XDG_CONFIG_HOME=str(tmp_path / "config"))
    folder = tmp_path / "config" / "crewboard" / "profiles"
    assert "no profile is saved yet" in cli("profiles").err
    saved = cli("profiles", "save", "careful", "--type", "code", "--plan", "--budget", "$5", "--max-turns", "20")
    assert saved.err == "budget: $5.00\n"
    assert saved.out == f"saved careful (code, plan, budget $5, max-turns 20) in {folder / 'careful.json'}\n"
    twice = cli("profiles", "save", "careful", "--type", "code", "--plan", "--budget", "$5", "--max-turns", "20")
    assert twice.out == saved.out.replace("saved", "replaced", 1)
    enlist(team, "fixer", "test")
    assert cli("profiles", "save", "again", "--like", "fixer", "--network", "--prompt", "go").code == 0
    assert cli("profiles", "save", "other", "--type", "code", "--engine", "acp:my agent").code == 0
    assert "\nother: code, engine acp:my agent\n" in cli("profiles").out
    filled = profiles.fill(hire.Hire("x", "", "go"), profiles.find(folder, "other"))
    assert filled.engine == "acp:my agent"
    assert cli("profiles", "remove", "other").code == 0
    assert (
        cli("profiles").out == "again: test, model m, network\n    go\ncareful: code, plan, budget $5, max-turns 20\n"
    )
    again, careful = cli("profiles", "--json").json
    assert (again["name"], again["type"], again["prompt"], again["flags"]["network"]) == ("again", "test", "go", True)
    assert (careful["flags"]["plan"], careful["flags"]["max_turns"], careful["prompt"]) == (True, 20, "")
    for arguments, code, says in (
        (("profiles", "save", "Bad", "--type", "code"), 2, "profile names"),
        (("profiles", "save", "x", "--plan"), 2, "--type"),
        (("profiles", "save", "x", "--type", "code", "--budget", "abc"), 2, "'abc' is not a budget"),
        (("profiles", "save", "x", "--type", "code", "--model", "toy\n1"), 2, r"no model is called 'toy\n1'"),
        (("profiles", "save", "x", "--type", "missing"), 2, "no agent type"),
        (("profiles", "save", "x", "--type", "code", "--prompt", "sk-ant-api03-abcdefghijklmnop"), 2, "API key"),
        (("profiles", "remove", "missing"), 2, "the profiles are again, careful"),
        (("profiles", "remove", "../careful"), 2, "there is no profile"),
        (("spawn", "a", "--profile", "missing"), 2, "the profiles are again, careful"),
        (("spawn", "a", "--profile", "careful"), 2, "--prompt"),
        (("spawn", "a", "--prompt", "x"), 2, "--type"),
    ):
        cli(*arguments).refused(code, says)
    (folder / "again.json").write_text("{")
    assert "again.json: it cannot be read" in cli("profiles").err
    cli("spawn", "a", "--profile", "again").refused(65, "again.json cannot be read")
    for name in ("again", "careful"):
        assert cli("profiles", "remove", name).out == f"removed {folder / name}.json\n"
    assert list(folder.iterdir()) == []


def test_what_is_said_comes_before_the_profile() -> None:
    flags = HireOptions(plan=True, max_turns=20, worktree=True, task=3, unsafe_no_sandbox=True)
    saved = Profile(type="code", role="r", prompt="old", model="haiku", flags=flags)
    asked = hire.Hire("a", "", "", flags=HireOptions(max_turns=5, task=7), given=frozenset({"max_turns", "task"}))
    filled = profiles.fill(asked, saved)
    assert (filled.type, filled.role, filled.prompt, filled.model) == ("code", "r", "old", "haiku")
    assert filled.flags == HireOptions(plan=True, max_turns=5, worktree=True, task=7)
    assert filled.given == frozenset({"plan", "max_turns", "worktree"})
    other = profiles.fill(replace(asked, type="test", prompt="new", role="s", model="opus"), saved)
    assert (other.type, other.role, other.prompt, other.model) == ("test", "s", "new", "opus")
    without = replace(asked, flags=HireOptions(), given=frozenset({"worktree"}))
    assert not profiles.fill(without, saved).flags.worktree, "--no-worktree is said, too"


def test_the_caps_of_a_team(cli: Cli, directory: TeamDirectory) -> None:
    caps = "max_agents none\nmax_working none\nmin_free_memory none\n"
    assert (
        cli("settings").out
        == caps
        + "on_outage wait\noutage_hours 12\nresult_needs on\napproval_hours none\nworktree never\ncheck none\n"
        "lead_merges off\ncollisions warn\nworktree_copy none\nworktree_setup none\nmodel none\nserver none\n"
        "engine none\n"
    )
    assert cli("settings", "min_free_memory", "1.5G").out == "min_free_memory 1.5G\n"
    assert cli("settings", "max_agents", "8", "--json").json == {"max_agents": 8}
    assert cli("settings", "max_agents").out == "max_agents 8\n"
    whole = {"max_agents": 8, "max_working": None, "min_free_memory": 1536 * 1024**2}
    rest = {
        "on_outage": "wait",
        "outage_hours": 12,
        "result_needs": True,
        "approval_hours": None,
        "worktree": "never",
        "check": None,
        "lead_merges": False,
        "collisions": "warn",
        "worktree_copy": None,
        "worktree_setup": None,
        "model": None,
        "server": None,
        "engine": None,
    }
    assert cli("settings", "--json").json == {**whole, **rest}
    assert cli("settings", "max_agents", "none").code == 0
    assert roster.load(directory).max_agents is None
    for wrong in (("max_agents", "0"), ("max_agents", "many"), ("min_free_memory", "lots"), ("speed", "9"), ("speed",)):
        assert cli("settings", *wrong).code == 2


def test_the_settings_about_outages_and_results(cli: Cli, directory: TeamDirectory) -> None:
    assert cli("settings", "on_outage", "fail").out == "on_outage fail\n"
    assert cli("settings", "outage_hours", "1.5").out == "outage_hours 1.5\n"
    assert cli("settings", "result_needs", "off").out == "result_needs off\n"
    assert cli("settings", "approval_hours", "8").out == "approval_hours 8\n"
    assert cli("settings", "approval_hours", "none").out == "approval_hours none\n"
    config = roster.load(directory)
    assert config.approval_hours is None
    assert (config.on_outage, config.outage_hours, config.result_needs) == ("fail", 1.5, False)
    for wrong in (("on_outage", "maybe"), ("outage_hours", "0"), ("outage_hours", "nan")):
        assert cli("settings", *wrong).code == 2


def test_none_gives_each_setting_its_default(cli: Cli, directory: TeamDirectory) -> None:
    default = roster.load(directory)
    for name, value in (("on_outage", "fail"), ("outage_hours", "1.5"), ("collisions", "hold"), ("lead_merges", "on")):
        cli("settings", name, value)
    for name in settings.SETTINGS:
        assert cli("settings", name, "none").code == 0
        assert getattr(roster.load(directory), name) == getattr(default, name)


def test_ack_takes_tasks_and_what_concerns_no_agent(cli: Cli, team: Team) -> None:
    enlist(team, "fixer")
    task = tasks.add(team.directory, "fix it", 1.0, owner="fixer")
    assert cli("ack", str(task.id)).code == 75
    tasks.update(team.directory, task.id, "operator", 2.0, status="failed")
    team.directory.task(9).put(b"{")
    mailbox.send(team.directory, mailbox.compose("fixer", "lead", "result", "half of it"))
    with alive(team, "fixer"):
        assert [need["kind"] for need in cli("status", "--json").json["needs_you"]] == [
            "damaged",
            "task_failed",
            "result",
        ]
        assert "→ crewboard ack system" in cli("status").out
        assert cli("ack", str(task.id)).out == "acknowledged that task 1 failed\n"
        assert cli("ack", "system").code == 0
        assert cli("ack", "system").code == 75
        assert cli("ack", "fixer").out == "acknowledged the results of fixer\n"
        assert cli("status", "--json").json["needs_you"] == []
        assert cli("ack", "fixer").code == 75


def test_the_memory_limit_of_an_agent(cli: Cli, team: Team) -> None:
    enlist(team, "fixer")
    assert re.search(r"may use 2G of memory \((watched|cgroup)\)\n", cli("limit", "fixer", "--memory", "2G").out)
    assert cli("limit", "fixer", "--json").json["max_memory"] == 2 * 1024**3
    assert "memory" not in cli("limit", "fixer", "--memory", "none").out
    assert cli("limit", "fixer", "--memory", "lots").code == 2


def test_servers_of_the_project_are_accepted_on_the_command_line(cli: Cli, tmp_path: Path) -> None:
    cli = cli.with_environment(XDG_STATE_HOME=str(tmp_path / "state"))
    assert cli("mcp").err == "no MCP servers; name them in .mcp.json\n"
    servers = {
        "git": {"command": "serve", "env": {"KEY": "${GIT_KEY}", "LD_PRELOAD": "a\nb"}},
        "web": {"url": "https://a.example/mcp", "headers": {"X": "${Y:-z}"}},
        "x": {},
    }
    (tmp_path / ".mcp.json").write_text(json.dumps({"mcpServers": servers}))
    listed = {each["name"]: each for each in cli("mcp", "--json").json}
    assert [each["state"] for each in listed.values()] == ["new", "new", "invalid"]
    assert listed["git"]["variables"] == ["GIT_KEY"]
    assert listed["git"]["env"] == {"KEY": "${GIT_KEY}", "LD_PRELOAD": "a\nb"}
    said = cli("mcp").out
    assert "x            invalid" in said
    assert "\n             env LD_PRELOAD=a ␊ b\n" in said
    assert "\n             header X: ${Y:-z}\n" in said
    cli("spawn", "ann", "--type", "none", "--prompt", "look", "--background").refused(2, "no agent type 'none'")
    assert any(each["name"] == "mcp" and each["mark"] != "ok" for each in cli("doctor", "--json").json)
    accepted = cli.agree("mcp", "approve", "git")
    assert accepted.err == "git: serve is not found: install it where the agent's commands find it\n"
    approved = accepted.out
    assert "git is accepted until its entry changes: serve, with the values of GIT_KEY" in approved
    assert "\n  env LD_PRELOAD=a ␊ b\n" in approved
    assert [each["state"] for each in cli("mcp", "--json").json] == ["accepted", "new", "invalid"]
    assert cli.agree("mcp", "approve", "--all").code == 0
    assert cli("mcp", "revoke", "web").code == 0
    assert [each["state"] for each in cli("mcp", "--json").json] == ["accepted", "new", "invalid"]
    cli("mcp", "revoke", "web").refused(2, "no MCP server 'web' is accepted here; accepted: git")
    cli("mcp", "approve").refused(2, "name the servers")
    cli("mcp", "approve", "none").refused(2, "it names git, web")
    cli("mcp", "approve", "x").refused(65, "cannot be used: no command is given")
    (tmp_path / ".mcp.json").unlink()
    assert [(each["name"], each["state"]) for each in cli("mcp", "--json").json] == [("git", "gone")]
    assert "git          gone" in cli("mcp").out
    assert cli("mcp", "revoke", "git").out == "git is no longer accepted\n"
    acts = [(act["act"], act["target"]) for act in cli("audit", "--json").json]
    assert ("mcp accept", "git") in acts
    assert ("mcp revoke", "web") in acts


def test_a_hire_tells_of_the_servers_that_the_agent_lacks(team: Team, capsys: pytest.CaptureFixture[str]) -> None:
    (team.directory.root / ".mcp.json").write_text('{"mcpServers": {"git": {"command": "serve"}}}')
    ended = McpState("web", ".mcp.json", problem="it ended")
    enlist(team, "ann", mcp=[ended, McpState("git", ".mcp.json", problem="it is new", new=True)])
    enlist(team, "eve", "explore")
    hiring.tell_new_servers(team, "eve")
    assert capsys.readouterr().err == "", "an explorer gets none"
    hiring.tell_new_servers(team, "ann")
    said = capsys.readouterr().err
    assert said.startswith(".mcp.json names MCP servers that you have not accepted: git; `crewboard")
    hiring.tell_lacking_servers(team.directory.agent("ann"))
    assert capsys.readouterr().err == "ann worked without the MCP server web: it ended\n"


def test_types_show_which_tools_of_servers_they_have(cli: Cli) -> None:
    listed = {each["name"]: each["mcp"] for each in cli("types", "--json").json}
    assert (listed["code"], listed["explore"]) == (["mcp__*"], [])
    assert sum("mcp__*" in line for line in cli("types").out.splitlines()) == 3
