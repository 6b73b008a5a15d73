"""The command line with real workers on the offline model: the first steps of a user."""

import json
import os
import select
import signal
import subprocess
import threading
from typing import Any

import pytest
from msgspec import to_builtins

from crewboard.protocol import supervisor_client
from crewboard.readmodel.reader import read_team
from crewboard.records.base import convert
from crewboard.records.events import Answer, Event, Reply, Sent
from crewboard.records.messages import Message
from crewboard.records.processes import Lease, Supervisor
from crewboard.records.requests import Request
from crewboard.store import agents, journal, leases, mailbox
from crewboard.store.layout import TeamDirectory
from crewboard.unix import process
from tests.cli.shell import Cli, finish
from tests.crew import contents, eventually


@pytest.fixture
def directory_of(offline: Cli) -> TeamDirectory:
    """Return the team directory, which only the commands create."""
    return TeamDirectory(offline.root / ".crewboard" / "default")


@pytest.fixture
def shared_directory(shared: Cli) -> TeamDirectory:
    """Return the directory of the team that the tests share."""
    return TeamDirectory(shared.root / ".crewboard" / "default")


def spawn(name: str, kind: str, prompt: str, *more: str) -> tuple[str, ...]:
    return ("spawn", name, "--type", kind, "--prompt", prompt, *more)


def read_up_to(running: subprocess.Popen[bytes], words: str) -> None:
    """Read stderr up to the line with these words; end the command if the line does not come."""
    assert running.stderr is not None
    patience = threading.Timer(20, running.kill)
    patience.start()
    found = any(words in line.decode() for line in running.stderr)
    patience.cancel()
    assert found


def asked_by(team: TeamDirectory, name: str) -> Request:
    """Wait for a request of an agent, and return it."""
    return eventually(lambda: next((r for r in read_team(team).requests if r.from_ == name), None), f"{name}'s request")


def agent_of(offline: Cli, name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(a for a in offline("status", "--json").json["agents"] if a["name"] == name)
    return found


@pytest.mark.long
def test_a_spawn_that_understood_nothing_fails(shared: Cli) -> None:
    ran = shared(*spawn("baker", "explore", "Bake a cake"))
    assert (ran.code, "I do not know how to do this: “Bake a cake”" in ran.out) == (1, True)
    # It waits for other words.
    assert shared("wait", "baker", "--until", "idle", "--timeout", "30").code == 0
    assert shared(*spawn("lost", "explore", "Bake a cake", "--once")).code == 1
    assert shared(*spawn("half", "explore", "Bake a cake. Then list all Python files.")).code == 0


def test_a_foreground_spawn_prints_the_answer_and_stores_it(shared: Cli, shared_directory: TeamDirectory) -> None:
    (shared.root / "notes.md").write_text("hello\n")
    ran = shared(*spawn("lister", "explore", "list the files"))
    assert ran.code == 0
    assert "notes.md" in ran.out
    assert "glob" in ran.err
    assert not [line for line in ran.err.splitlines() if ran.out.splitlines()[0][:20] in line]

    def told() -> list[Message]:
        return [m for m in mailbox.read(shared_directory, "lead").messages if (m.from_, m.type) == ("lister", "result")]

    (letter,) = eventually(told, "the result's mail")
    assert (shared_directory.path / str(letter.metadata["result"])).read_text().strip() == ran.out.strip()
    assert agent_of(shared, "lister")["alive"] is True


@pytest.mark.files_only("a team in a database may get hosts")
def test_a_new_team_has_a_supervisor_before_the_first_hire(offline: Cli, directory_of: TeamDirectory) -> None:
    assert offline("status").code == 0
    assert not directory_of.exists()
    assert offline("task", "add", "parse").code == 0
    assert supervisor_client.is_alive(directory_of)
    ran = offline(*spawn("lister", "explore", "say hello"))
    assert "starting the supervisor" not in ran.err, "there was one"
    assert offline("team", "create", "crew").code == 0
    assert supervisor_client.is_alive(TeamDirectory(directory_of.path.with_name("crew")))


@pytest.mark.long
def test_a_first_hire_says_that_the_supervisor_is_started(offline: Cli) -> None:
    ran = offline(*spawn("lister", "explore", "say hello"))
    assert ran.err.splitlines()[0] == "starting the supervisor …"
    assert "starting the supervisor" not in offline(*spawn("lister", "explore", "say hello")).err


@pytest.mark.long
def test_a_resume_of_several_starts_one_supervisor_and_says_so_once(offline: Cli, directory_of: TeamDirectory) -> None:
    names = ("ann", "ben", "cat")
    for name in names:
        assert offline(*spawn(name, "explore", "say hello")).code == 0
    assert offline("stop", "--all").code == 0
    supervisor = leases.holder(directory_of.supervisor_lock, Supervisor)
    assert supervisor is not None
    os.kill(supervisor.pid, signal.SIGKILL)
    eventually(lambda: not supervisor_client.is_alive(directory_of), "the end of the supervisor")
    ran = offline("resume", "--all")
    assert (ran.code, ran.err.count("starting the supervisor")) == (0, 1)
    assert all(agent_of(offline, name)["alive"] for name in names)


@pytest.mark.files_only("a team in a database may get hosts")
def test_an_import_ends_the_supervisor_of_a_new_team(offline: Cli, directory_of: TeamDirectory) -> None:
    assert offline("team", "create", "crew").code == 0
    assert offline("export", str(offline.root / "out")).code == 0
    assert offline("team", "create", "copy").code == 0
    copy = TeamDirectory(directory_of.path.with_name("copy"))
    assert supervisor_client.is_alive(copy)
    assert offline("--team", "copy", "import", str(offline.root / "out")).code == 0
    assert not supervisor_client.is_alive(copy)


def test_a_hire_from_a_profile_has_its_options(shared: Cli, shared_directory: TeamDirectory) -> None:
    cli = shared.with_environment(XDG_CONFIG_HOME=str(shared.root / "config"))
    assert cli("profiles", "save", "quick", "--type", "explore", "--once", "--max-turns", "9", "--role", "r").code == 0
    ran = cli("spawn", "saved", "--profile", "quick", "--max-turns", "8", "--prompt", "list the files")
    assert (ran.code, "notes" in ran.out or "config" in ran.out) == (0, True), ran.err
    spec = shared_directory.agent("saved").spec.load()
    assert spec is not None
    assert (spec.type, spec.role, spec.flags.once, spec.flags.max_turns) == ("explore", "r", True, 8)


def test_an_idle_agent_is_given_more_work(shared: Cli) -> None:
    assert shared(*spawn("tireless", "explore", "list the files", "--background")).code == 0
    assert shared("wait", "tireless", "--until", "idle", "--timeout", "30").code == 0
    again = shared(*spawn("tireless", "explore", "list the files", "--json")).json
    assert (again["run"], again["code"], again["error"]) == (1, 0, None)
    assert [m["content"] for m in shared("inbox", "tireless", "--json").json] == ["list the files"]


@pytest.mark.both_stores("it reads the end of a log")
def test_more_work_for_an_agent_needs_no_type(shared: Cli) -> None:
    assert shared(*spawn("again", "explore", "list the files")).code == 0
    again = shared("spawn", "again", "--prompt", "list the files")
    assert again.code == 0
    assert "I found" in again.out
    shared("spawn", "unknown", "--prompt", "list the files").refused(2, "name the type with --type")


@pytest.mark.long
def test_once_ends_with_its_result(shared: Cli) -> None:
    assert shared(*spawn("onceler", "explore", "list the files", "--once")).code == 0
    assert shared("wait", "onceler", "--until", "exited", "--timeout", "30").code == 0
    scout = agent_of(shared, "onceler")
    assert (scout["state"], scout["alive"], scout["exit"]["code"], scout["exit"]["reason"]) == (
        "exited",
        False,
        0,
        "finished",
    )
    fresh = shared(*spawn("onceler", "explore", "list the files", "--once", "--json")).json
    assert fresh["run"] == 2


def test_background_returns_with_the_process(shared: Cli) -> None:
    hired = shared(*spawn("backer", "explore", "list the files", "--background", "--json")).json
    assert (hired["name"], hired["run"]) == ("backer", 1)
    assert agent_of(shared, "backer")["pid"] == hired["pid"]


@pytest.mark.long
def test_a_foreground_spawn_waits_no_longer_than_its_timeout(shared: Cli, shared_directory: TeamDirectory) -> None:
    late = shared(*spawn("slow", "explore", "ask the operator: tabs or spaces?"), "--timeout", "0.05")
    assert late.code == 75
    assert "slow has no result after 0.05 s and keeps working" in late.err
    assert "`crewboard wait slow --until idle,exited` waits on" in late.err
    assert shared("answer", asked_by(shared_directory, "slow").id, "spaces").code == 0
    assert shared("wait", "slow", "--until", "idle", "--timeout", "30").code == 0
    shared(*spawn("slow", "explore", "Hello", "--background"), "--timeout", "5").refused(2, "--background or --timeout")


def test_ctrl_c_detaches_and_the_agent_goes_on(shared: Cli, shared_directory: TeamDirectory) -> None:
    following = shared.start(*spawn("asker", "explore", "ask the operator: tabs or spaces?"))
    question = asked_by(shared_directory, "asker")
    read_up_to(following, f"crewboard answer {question.id} TEXT")
    ran = finish(following, signal.SIGINT)
    assert (ran.code, ran.out) == (130, "")
    assert "asker keeps working; `crewboard journal asker --follow`" in ran.err
    assert agent_of(shared, "asker")["alive"] is True
    assert shared("answer", question.id, "spaces").code == 0
    assert shared("wait", "asker", "--until", "idle", "--timeout", "30").code == 0


@pytest.mark.long
def test_nothing_is_written_before_the_plan_is_approved(shared: Cli, shared_directory: TeamDirectory) -> None:
    prompt = "write a file named note.md that says hello"
    hired = shared(*spawn("planner", "code", prompt, "--plan", "--background", "--unsafe-no-sandbox"))
    assert hired.code == 0, hired.err
    plan = asked_by(shared_directory, "planner")
    assert plan.type == "plan_approval"
    assert not (shared.root / "note.md").exists()
    assert shared("approve", plan.id, "--sha256", plan.sha256).code == 0
    assert shared("wait", "planner", "--until", "idle", "--timeout", "30").code == 0
    assert (shared.root / "note.md").read_text().strip() == "hello"


def test_a_message_reaches_a_running_agent(shared: Cli) -> None:
    assert shared(*spawn("reader", "explore", "list the files")).code == 0
    sent = shared("send", "reader", "where do you stand?", "--json").json
    assert shared("wait", "reader", "--until", "idle", "--timeout", "30").code == 0
    seen = next(m for m in shared("inbox", "reader", "--json").json if m["id"] == sent["id"])
    assert sent["ts"] <= seen["picked_up_at"] <= seen["entered_turn_at"]
    answers = [m for m in shared("inbox", "lead", "--json").json if sent["id"] in m["metadata"].get("answers", [])]
    assert [message["type"] for message in answers] == ["result"]


@pytest.mark.both_stores("a lease is freed by a kill")
def test_a_death_shows_its_signal_and_resume_restarts_the_agent(shared: Cli, shared_directory: TeamDirectory) -> None:
    assert shared(*spawn("mortal", "explore", "list the files")).code == 0
    watching = shared.start("watch", "--json")
    assert watching.stderr is not None
    watching.stderr.readline()
    holder = leases.holder(shared_directory.agent("mortal").lease, Lease)
    assert holder is not None
    process.send_signal(holder.pid, signal.SIGKILL, holder.start_ticks)
    assert shared("wait", "mortal", "--until", "crashed", "--timeout", "30").code == 0
    assert shared("wait", "mortal", "--until", "dead", "--timeout", "30").code == 0, "as the dashboard calls it"
    mortal = agent_of(shared, "mortal")
    assert (mortal["exit"]["signal"], mortal["alive"]) == (9, False)
    needs = shared("status", "--json").json["needs_you"]
    assert [need["kind"] for need in needs if need["agent"] == "mortal"] == ["death"]
    changes = _until_exit(watching, "mortal")
    assert changes[-1]["signal"] == 9
    assert shared("resume", "mortal", "--json").json["run"] == 2
    assert agent_of(shared, "mortal")["alive"] is True
    assert shared("resume", "mortal").out == "mortal is already running: run 2\n"


def _until_exit(watching: subprocess.Popen[bytes], name: str) -> list[dict[str, Any]]:
    """Return the changes up to the exit of an agent, and end the watch; other agents of the team may end as well."""
    seen: list[dict[str, Any]] = []
    patience = threading.Timer(20, watching.kill)
    patience.start()
    assert watching.stdout is not None
    for line in watching.stdout:
        seen.append(json.loads(line))
        if (seen[-1]["kind"], seen[-1]["agent"]) == ("exit", name):
            break
    patience.cancel()
    assert finish(watching, signal.SIGINT).code == 130
    return seen


@pytest.mark.long
def test_stop_is_agreed_and_resume_all_restarts_every_agent(offline: Cli) -> None:
    for name in ("one", "two"):
        assert offline(*spawn(name, "explore", "list the files", "--background")).code == 0
        assert offline("wait", name, "--until", "idle", "--timeout", "30").code == 0
    assert offline("stop", "one").out == "one has shut down\n"
    assert agent_of(offline, "one")["exit"]["reason"] == "shutdown"
    assert offline("stop", "two", "--now", "--json").json == {"name": "two", "was_alive": True, "alive": False}
    assert agent_of(offline, "two")["state"] == "exited"
    assert [each["name"] for each in offline("resume", "--all", "--json").json] == ["one", "two"]
    assert {agent["alive"] for agent in offline("status", "--json").json["agents"]} == {True}
    assert offline("resume", "--all").out == "nothing to resume: no agent that can be resumed is stopped\n"
    assert [each["alive"] for each in offline("stop", "--all", "--now", "--json").json] == [False, False]
    assert {agent["alive"] for agent in offline("status", "--json").json["agents"]} == {False}
    assert offline("team", "delete", "default").code == 0


def test_a_turn_limit_ends_the_work_with_79(shared: Cli) -> None:
    ran = shared(*spawn("limited", "explore", "list the files", "--max-turns", "1"))
    assert ran.code == 79, (ran.out, ran.err)
    assert "limited could not finish" in ran.err
    assert shared("wait", "limited", "--until", "idle", "--timeout", "30").code == 0
    scout = agent_of(shared, "limited")
    assert scout["state"] == "idle"
    assert scout["last_error"]


def test_a_prompt_from_standard_input_arrives_word_for_word(shared: Cli, shared_directory: TeamDirectory) -> None:
    prompt = "list the files\n# not a comment\n  \"quotes\" 'all' $HOME `x` \\ naïve 日本\n"
    hired = shared("spawn", "piped", "--type", "explore", "--prompt-file", "-", "--background", stdin=prompt.encode())
    assert hired.code == 0
    spec = shared_directory.agent("piped").spec.load()
    assert spec is not None
    assert spec.prompt == prompt
    shown = shared("wait", "piped", "--until", "idle", "--timeout", "30")
    assert shown.code == 0


def test_a_task_is_done_by_the_agent_that_is_hired_for_it(shared: Cli) -> None:
    assert shared("task", "add", "survey").code == 0
    assert shared(*spawn("tasked", "explore", "list the files", "--task", "1")).code == 0
    assert shared("tasks", "--json").json[0]["owner"] == "tasked"


def test_a_hire_for_a_task_needs_no_prompt(shared: Cli, shared_directory: TeamDirectory) -> None:
    assert shared("profiles", "save", "fixer", "--type", "explore").code == 0
    assert shared("task", "add", "list the files").code == 0
    task = str(shared("tasks", "--json").json[-1]["id"])
    assert shared("spawn", "fixer2", "--profile", "fixer", "--task", task).code == 0
    spec = shared_directory.agent("fixer2").spec.load()
    assert spec is not None
    assert spec.prompt == f"Work on task {task}."


@pytest.mark.long
def test_a_worker_that_is_killed_while_it_is_followed(shared: Cli, shared_directory: TeamDirectory) -> None:
    following = shared.start(*spawn("doomed", "explore", "ask the operator: tabs or spaces?"))
    asked_by(shared_directory, "doomed")
    holder = leases.holder(shared_directory.agent("doomed").lease, Lease)
    assert holder is not None
    process.send_signal(holder.pid, signal.SIGKILL, holder.start_ticks)
    ran = finish(following)
    assert (ran.code, ran.out) == (1, "")
    assert "doomed ended without an answer: killed by SIGKILL; `crewboard resume doomed`" in ran.err


def test_the_journal_tells_the_same_as_its_events(shared: Cli, shared_directory: TeamDirectory) -> None:
    ran = shared(*spawn("writer", "explore", "list the files"))

    def events() -> list[Event]:
        return [event for event, _ in journal.read(shared_directory.agent("writer").journal) if event is not None]

    def has_said_all() -> bool:
        return any(isinstance(event, Sent) and event.message.type == "idle_notification" for event in events())

    eventually(has_said_all, "its last words")
    known = len(events())
    lines = shared("journal", "writer", "--json").out.splitlines()
    # It may be told meanwhile of an agent that ended.
    assert known <= len(lines)
    assert [json.loads(line)["kind"] for line in lines] == [
        to_builtins(event)["kind"] for event in events()[: len(lines)]
    ]
    answer = next(json.loads(line) for line in lines if json.loads(line)["kind"] == "answer")
    assert convert(answer, Answer).text == ran.out.strip()
    assert "answer" in shared("journal", "writer").out
    assert agents.last_run(shared_directory.agent("writer")) == 1


def test_what_an_offline_agent_shows_names_no_other_model(shared: Cli, shared_directory: TeamDirectory) -> None:
    shared(*spawn("phrases", "explore", "list the files"))
    began = shared("journal", "phrases").out.splitlines()[0]
    assert "start   run 1, pid" in began
    assert began.endswith(", offline model")
    agent = read_team(shared_directory).agent("phrases")
    assert agent is not None
    assert (agent.shown_model, agent.model) == ("offline model", "claude-haiku-5-5")


def test_a_key_is_written_to_no_file(shared: Cli, shared_directory: TeamDirectory) -> None:
    secret = "sk-ant-of-this-test"
    keyed = shared.with_environment(ANTHROPIC_API_KEY=secret)
    assert keyed(*spawn("keyed", "explore", "list the files")).code == 0
    assert not [path for path, data in contents(shared_directory.path).items() if secret.encode() in data]


@pytest.mark.long
@pytest.mark.parametrize("damage", ["torn", pytest.param("gone", marks=pytest.mark.long)])
def test_a_damaged_spec_does_not_prevent_a_stop_and_is_repaired(
    shared: Cli, shared_directory: TeamDirectory, damage: str
) -> None:
    name = f"repaired-{damage}"
    first = shared(*spawn(name, "explore", "list the files"))
    spec = shared_directory.agent(name).spec
    before = spec.load()
    assert before is not None
    if damage == "torn":
        spec.put((spec.get() or b"")[:40])
    else:
        spec.remove()
    assert agent_of(shared, name)["state"] == "unknown"
    assert shared("stop", name, "--now").code == 0
    aside = [each for each in shared_directory.agent(name).folder.names() if each.startswith("spec.json.damaged-")]
    assert len(aside) == (damage == "torn")
    after = spec.load()
    assert after is not None
    assert (after.prompt, after.prompt_id, after.type) == (before.prompt, before.prompt_id, before.type)
    assert shared("resume", name, "--json").json["run"] == 2
    assert shared("wait", name, "--until", "idle", "--timeout", "30").code == 0
    letters = [m for m in shared("inbox", "lead", "--json").json if m["from"] == name]
    assert [m["content"] for m in letters if m["type"] == "result"] == [first.out.strip()]


@pytest.mark.long
@pytest.mark.parametrize("command", [("status",), pytest.param(("send", "scout", "and now?"), marks=pytest.mark.long)])
def test_a_dead_supervisor_is_replaced_by_who_looks_or_sends(
    offline: Cli, directory_of: TeamDirectory, command: tuple[str, ...]
) -> None:
    offline(*spawn("scout", "explore", "list the files"))
    old = read_team(directory_of).supervisor.pid
    assert old is not None
    process.send_signal(old, signal.SIGKILL)
    eventually(lambda: not supervisor_client.is_alive(directory_of), "its end")
    assert offline(*command).code == 0
    eventually(lambda: supervisor_client.is_alive(directory_of), "its successor")


@pytest.mark.long
def test_a_queued_foreground_spawn_tells_its_place_and_waits(offline: Cli) -> None:
    assert offline("spawn", "first", "--type", "explore", "--prompt", "hello").code == 0
    assert offline("settings", "max_agents", "1").code == 0
    refused = offline("spawn", "second", "--type", "explore", "--no-wait", "--prompt", "hello")
    refused.refused(75, "second was not started", "max_agents 1 reached")
    later = offline("spawn", "third", "--type", "explore", "--background", "--json", "--prompt", "hello").json
    assert (later["queued"], later["pid"]) == (1, None)
    late = offline("spawn", "fourth", "--type", "explore", "--prompt", "hello", "--timeout", "0.05")
    assert (late.code, "fourth has no result after 0.05 s and stays queued; " in late.err) == (75, True)
    assert offline("stop", "fourth").code == 0
    left = offline.start("spawn", "fifth", "--type", "explore", "--prompt", "hello")
    assert left.stderr is not None
    assert select.select([left.stderr], [], [], 30)[0]
    left.send_signal(signal.SIGINT)
    assert "detached: fifth stays queued; " in finish(left).err
    assert offline("stop", "fifth").code == 0
    waiting = offline.start("spawn", "second", "--type", "explore", "--prompt", "hello")
    eventually(lambda: len(offline("status", "--json").json["agents"]) == 5, "the last agent")
    eventually(lambda: "queued 2nd" in offline("status").out, "its place in the status")
    # The command looks by itself, and could look only after the others are gone.
    assert waiting.stderr is not None
    assert select.select([waiting.stderr], [], [], 30)[0]
    assert offline("stop", "third").code == 0
    assert offline("stop", "first", "--now").code == 0
    ran = finish(waiting)
    assert ran.code == 0, ran.err
    assert "second is queued 2nd: max_agents 1 reached" in ran.err


@pytest.mark.long
def test_a_foreground_spawn_tells_which_server_did_not_start(offline: Cli) -> None:
    (offline.root / ".mcp.json").write_text('{"mcpServers": {"gone": {"command": "false"}}}')
    assert offline.agree("mcp", "approve", "gone").code == 0
    ran = offline("spawn", "ann", "--type", "code", "--prompt", "Who are you?")
    assert ran.code == 0, ran.err
    assert "ann worked without the MCP server gone: " in ran.err


@pytest.mark.long
def test_agents_that_wait_keep_their_cache_for_an_hour(offline: Cli, directory_of: TeamDirectory) -> None:
    def for_an_hour(name: str) -> list[bool]:
        events = [event for event, _ in journal.read(directory_of.agent(name).journal)]
        return [event.usage.cache_write_1h > 0 for event in events if isinstance(event, Reply)]

    assert offline("lead", "hello", "--unsafe-no-sandbox").code == 0
    assert offline(*spawn("scout", "explore", "hello")).code == 0
    assert all(for_an_hour("lead"))
    assert not any(for_an_hour("scout"))
    assert offline("stop", "scout", "--now").code == 0
    scout = directory_of.agent("scout").journal
    events = [event for event, _ in journal.read(scout) if event is not None]
    scout.remove()
    for event in events:
        # As if it had waited for ten minutes.
        journal.append(scout, event.replace(ts=event.ts - 600))
    count = len(for_an_hour("scout"))
    assert offline("resume", "scout").code == 0
    assert offline("send", "scout", "hello again").code == 0
    assert eventually(lambda: for_an_hour("scout")[count:], "the next reply")[0]
