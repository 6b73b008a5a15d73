"""Killing and resuming: nothing is lost, duplicated or run twice, and no dead agent is shown as alive."""

import asyncio
import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote

import pytest

from crewboard import operations, redaction
from crewboard.commands import answers, control, messages, settings, stop
from crewboard.commands import hire as hiring
from crewboard.commands import tasks as board
from crewboard.commands.context import Team
from crewboard.offline.reply import Reply
from crewboard.offline.service import Fault
from crewboard.protocol import requests
from crewboard.readmodel.activity import ActivityReader
from crewboard.readmodel.mail import MailReader, MessageView
from crewboard.readmodel.team import AgentView
from crewboard.records.agents import Spec, Status
from crewboard.records.base import Record
from crewboard.records.events import Intake, Retry, ToolResult
from crewboard.records.processes import Lease
from crewboard.records.requests import Request
from crewboard.records.team import Member
from crewboard.store import agents, leases, mailbox, roster, tasks
from crewboard.store.json_records import RecordKey
from crewboard.store.layout import TeamDirectory
from crewboard.unix import process
from crewboard.worker import __main__ as worker_main
from crewboard.worker.interrupts import SWEEP_INTERVAL, Interrupts, WorkerExit
from crewboard.worker.run_state import RunState
from tests.crash.scenarios import hire, worker
from tests.crew import Crew, contents, eventually
from tests.model import calls, says
from tests.store.raw_mail import append, line

Make = Callable[..., Crew]

of_answers = pytest.mark.files_only("what an API answers, and what a worker does then, no store knows")


@pytest.mark.long
def test_a_terminated_worker_says_whether_it_was_at_work(shared_crew: Crew) -> None:
    shared_crew.run("rested", "explore", "say hello")
    with shared_crew.model.holding():
        shared_crew.hire("called", "explore", "say hello")
        eventually(lambda: shared_crew.model.asked_by("called"), "its first call")
        for name in ("rested", "called"):
            shared_crew.kill(name, signal.SIGTERM)
        ends = [
            eventually(lambda name=name: shared_crew.agent(name).exit.load(), "its end")  # type: ignore[misc]
            for name in ("rested", "called")
        ]
    assert [(end.reason, end.unfinished) for end in ends] == [("terminated", False), ("terminated", True)]


def test_a_killed_worker_shows_its_signal_and_releases_its_task(shared_crew: Crew) -> None:
    shared_crew.run("other", "explore", "say hello")
    task = board.add_task(shared_crew.team, "look at it")
    shared_crew.hire("fixer", "test", "run: sleep 300", task=task.id, unsafe_no_sandbox=True)
    eventually(lambda: "sleep 300" in shared_crew.see("fixer").doing, "the command")
    children = eventually(lambda: process.descendants(shared_crew.pid("fixer")), "its process")
    shared_crew.kill("fixer")
    seen = shared_crew.wait_for("fixer", "crashed")
    assert seen.exit is not None
    assert seen.exit.signal == signal.SIGKILL
    (need,) = [need for need in shared_crew.view().needs if need.agent == "fixer"]
    assert (need.kind, need.summary) == ("death", "died: killed by SIGKILL, last tool bash sleep 300")
    eventually(lambda: tasks.load(shared_crew.directory, task.id).status == "pending", "the task's return")
    assert tasks.load(shared_crew.directory, task.id).last_owner == "fixer"
    eventually(lambda: not any(process.start_ticks(pid) for pid in children), "the end of the command")

    def told(name: str) -> list[str]:
        letters = mailbox.read(shared_crew.directory, name).messages
        return [m.content for m in letters if m.type == "teammate_terminated" and m.content.startswith("fixer ")]

    eventually(lambda: told("other") and told("lead"), "the others being told")
    assert told("lead") == ["fixer ended: killed by SIGKILL"]


@pytest.mark.long
def test_of_a_deleted_team_only_results_stay_needs(crew: Crew) -> None:
    crew.run("scout", "explore", "say hello")
    crew.wait_for("scout", "idle")
    crew.kill("scout")
    crew.wait_for("scout", "crashed")
    agents.want(crew.agent("scout"), "running")
    agents.change_spec(crew.agent("late"), lambda _: Spec(prompt="x", prompt_id="x", type="explore", at=1))
    roster.put(crew.directory, Member(name="late", type="explore"))
    assert {need.kind for need in crew.view().needs} == {"death", "failed_start", "result"}
    stop.delete(crew.team, now=True)
    assert {need.kind for need in crew.view().needs} == {"result"}
    assert crew.see("late").state == "exited"


def test_a_tool_that_was_running_is_never_run_again_by_itself(shared_crew: Crew) -> None:
    shared_crew.model.give("interrupted", calls("bash", command="echo ran >> log; sleep 300"), says("checked"))
    log = shared_crew.root / "log"
    # Landlock lets a command write to a file of the root, not make one.
    log.touch()
    hired = shared_crew.hire("interrupted", "code", "do it", unsafe_no_sandbox=True)
    eventually(log.read_text, "the command")
    shared_crew.kill("interrupted")
    shared_crew.wait_for("interrupted", "crashed")
    hiring.resume(shared_crew.team, "interrupted")
    assert shared_crew.answer(hired).text == "checked"
    (result,) = [event for event in shared_crew.events("interrupted") if isinstance(event, ToolResult)]
    assert "outcome unknown" in result.content
    assert result.seconds is None
    assert log.read_text() == "ran\n"


@pytest.mark.long
def test_a_journal_tells_of_the_death_of_the_run_before(shared_crew: Crew) -> None:
    shared_crew.run("mourned", "explore", "say hello")
    shared_crew.kill("mourned")
    shared_crew.wait_for("mourned", "crashed")
    work = ActivityReader(shared_crew.agent("mourned"))
    assert [(each.kind, each.text) for each in work.read()][-1] == ("died", "killed by SIGKILL, run 1")
    hiring.resume(shared_crew.team, "mourned")
    shared_crew.wait_for("mourned", "idle")
    stop.stop(shared_crew.team, "mourned")
    shared_crew.wait_for("mourned", "exited")
    ends = [(each.kind, each.text) for each in work.read() if each.kind in ("start", "died", "end")]
    assert [kind for kind, _ in ends] == ["start", "died", "start", "end"]
    assert ends[1] == ("died", "killed by SIGKILL, run 1")
    hiring.resume(shared_crew.team, "mourned")
    shared_crew.wait_for("mourned", "idle")
    again = [each.kind for each in work.read() if each.kind in ("start", "died", "end")]
    assert again == ["start", "died", "start", "end", "start"], "an orderly end is told once"


def test_a_worker_that_a_signal_stopped_is_stuck_even_if_idle(shared_crew: Crew) -> None:
    shared_crew.run("halted", "explore", "say hello")
    shared_crew.wait_for("halted", "idle")
    before = time.time()
    shared_crew.halt("halted")
    seen = shared_crew.wait_for("halted", "stuck")
    assert seen.reason == f"process {seen.pid} was stopped by a signal; `kill -CONT` continues it"
    assert seen.since >= before, "not since it became idle"
    assert "stuck" in [need.kind for need in shared_crew.view().needs if need.agent == "halted"]
    shared_crew.kill("halted", signal.SIGCONT)
    shared_crew.wait_for("halted", "idle")


def sleeps(pid: int) -> int:
    """Return how often the threads of a process went to sleep so far; they wake as often."""
    found = 0
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        with contextlib.suppress(OSError):
            lines = status.read_text().splitlines()
            found += sum(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))
    return found


@pytest.mark.linux("process ends")
def test_an_idle_worker_rarely_wakes(shared_crew: Crew) -> None:
    shared_crew.run("resting", "explore", "say hello")
    pid = shared_crew.wait_for("resting", "idle").pid or 0

    def slept() -> bool:
        """Return True if the worker slept for longer than between two looks of one that looks often."""
        before, end = sleeps(pid), time.monotonic() + SWEEP_INTERVAL + 0.3
        while sleeps(pid) == before:
            if time.monotonic() > end:
                return True
            time.sleep(0.05)
        return False

    eventually(slept, "a rest of the worker")


def test_a_file_tool_server_runs_from_the_first_call_to_the_end_of_the_work(shared_crew: Crew) -> None:
    ask = calls("ask_operator", question="May I?")
    shared_crew.model.give("served", ask, calls("list_dir"), ask, says("done"))
    hired = shared_crew.hire("served", "explore", "look around")

    def children() -> list[int]:
        """Wait for the question, answer it, and return the worker's processes of that moment."""
        question = shared_crew.pending("question", "served")
        found = process.descendants(shared_crew.pid("served"))
        answers.answer(shared_crew.team, question.id, "yes")
        return found

    assert children() == []
    assert children()
    assert shared_crew.answer(hired).text == "done"
    shared_crew.wait_for("served", "idle")
    eventually(lambda: not process.descendants(shared_crew.pid("served")), "the end of the server")


@pytest.mark.long
def test_workers_go_on_without_their_supervisor(shared_crew: Crew) -> None:
    shared_crew.run("followed", "explore", "say hello")
    process.send_signal(shared_crew.supervisor_pid(), signal.SIGKILL)
    eventually(lambda: not shared_crew.view().supervisor.alive, "the end of the supervisor")
    sent = messages.send(shared_crew.team, "followed", "Give me a summary")
    shared_crew.answer_to("followed", sent.id)
    shared_crew.hire("newcomer", "explore", "say hello")
    eventually(lambda: shared_crew.view().supervisor.alive, "a new supervisor")
    shared_crew.kill("followed")
    seen = shared_crew.wait_for("followed", "crashed", "vanished")
    assert seen.exit is None or seen.exit.signal in (signal.SIGKILL, None)


@pytest.mark.long
def test_a_fresh_hire_keeps_the_mail_but_not_the_conversation(shared_crew: Crew) -> None:
    shared_crew.run("renewed", "explore", "List all Python files", once=True)
    shared_crew.wait_for("renewed", "exited")
    messages.send(shared_crew.team, "renewed", "while you were away")
    again = shared_crew.hire("renewed", "explore", "List all Markdown files", once=True)
    assert again.fresh
    assert again.run == 2
    shared_crew.answer(again)
    conversation = str(shared_crew.model.asked_by("renewed")[-1]["messages"])
    assert "while you were away" in conversation
    assert "Python files" not in conversation


def test_stop_asks_an_idle_agent_and_it_leaves(shared_crew: Crew) -> None:
    shared_crew.run("willing", "explore", "say hello")
    shared_crew.wait_for("willing", "idle")
    stop.stop(shared_crew.team, "willing")
    seen = shared_crew.wait_for("willing", "exited")
    assert seen.exit is not None
    assert (seen.exit.code, seen.exit.reason) == (0, "shutdown")


def test_a_worker_that_is_ended_at_its_start_has_signed_its_lease(
    directory: TeamDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only then can the supervisor free it at once, wherever the team is kept."""
    hire(directory, "brief")
    agent, load = directory.agent("brief"), RecordKey.load
    signed: list[int] = []

    def note(*_: object) -> None:
        holder = leases.holder(agent.lease, Lease)
        signed.append(holder.pid if holder is not None else 0)

    def end_meanwhile(key: RecordKey[Record]) -> Record | None:
        if key == agent.spec:
            # A worker has no other thread that could take it.
            signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
        return load(key)

    monkeypatch.setattr(RecordKey, "load", end_meanwhile)
    before = signal.signal(signal.SIGTERM, note)
    try:
        begun = worker_main._begin(agent)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert signed == [os.getpid()]
    assert begun is not None
    leases.release(begun[1])


def test_a_worker_whose_run_has_ended_gives_its_lease_back(directory: TeamDirectory) -> None:
    hire(directory, "late")
    directory.agent("late").status.save(Status(run=1, pid=1, state="idle", since=0))
    assert worker_main._begin(directory.agent("late")) is None
    assert not leases.is_held(directory.agent("late").lease)


@pytest.fixture
def idler(directory: TeamDirectory) -> RunState:
    """An idle agent in the test's own process, so that the test says what happens while it waits."""
    hire(directory, "idler")
    run_state = worker(directory, "idler")
    run_state.show("idle")
    return run_state


def shutdown_request(idler: RunState) -> Request:
    """A shutdown request whose file is written, and whose mail is not."""
    return requests.ask(idler.team, "shutdown-1", "shutdown", "operator", "idler", {}, time.time(), by_mail=False)


async def test_an_idle_agent_decides_before_the_mail_arrives(idler: RunState) -> None:
    team, asked = idler.team, shutdown_request(idler)

    async def send_mail_once_decided() -> None:
        while asked in requests.pending(team):  # noqa: ASYNC110  the condition is a file
            await asyncio.sleep(0.01)
        mailbox.send(team, requests.mail_of(asked, time.time()))

    mail = asyncio.create_task(send_mail_once_decided())
    with pytest.raises(WorkerExit, match="shutdown"):
        await Interrupts(idler).accept_shutdown()
    await mail
    decided = requests.load(team, asked.id)
    assert decided is not None
    assert (decided.status, decided.decided_by) == ("approved", "idler")
    (letter,) = MailReader(team, "idler").read()
    assert letter.message.type == "shutdown_request"
    assert letter.picked_up_at is not None


def test_mail_without_a_time_keeps_that_of_its_intake(shared_crew: Crew) -> None:
    shared_crew.run("taker", "explore", "say hello")
    shared_crew.wait_for("taker", "idle")
    no_time = b'{"type": "message", "from": "alice", "content": "no time"}\n'
    append(shared_crew.directory.inbox("taker"), line("old", to="taker") + b"\n" + no_time)

    def taken() -> MessageView | None:
        # It is also told that agents of other tests ended.
        read = MailReader(shared_crew.directory, "taker").read()
        (letter,) = [each for each in read if each.message.from_ == "alice"]
        return letter if letter.entered_turn_at is not None else None

    letter = eventually(taken, "the mail in a turn")
    assert letter.message.is_foreign
    assert letter.message.ts == letter.picked_up_at
    taken_in = [event for event in shared_crew.events("taker") if isinstance(event, Intake)]
    (ts,) = [each.ts for event in taken_in for each in event.messages if each.from_ == "alice"]
    assert 0 <= letter.picked_up_at - ts < 5, "and not that of the line before it"


def test_work_left_undone_at_a_stop_stays_unread(shared_crew: Crew) -> None:
    shared_crew.run("leaver", "explore", "say hello")
    shared_crew.wait_for("leaver", "idle")
    operations.pause(shared_crew.team, "leaver")
    shared_crew.wait_for("leaver", "paused")
    sent = messages.send(shared_crew.team, "leaver", "more work")
    stop.stop(shared_crew.team, "leaver")
    shared_crew.wait_for("leaver", "exited")
    (work,) = [each for each in MailReader(shared_crew.directory, "leaver").read() if each.message.id == sent.id]
    assert work.picked_up_at is None
    assert shared_crew.see("leaver").unread > 0


async def test_a_cancelled_shutdown_request_ends_no_agent(idler: RunState, monkeypatch: pytest.MonkeyPatch) -> None:
    team, asked = idler.team, shutdown_request(idler)
    requests.close(team, asked.id, "cancelled", "operator", time.time())
    # The agent saw it while it was pending.
    monkeypatch.setattr(requests, "pending_shutdown", lambda *_: asked)
    await Interrupts(idler).accept_shutdown()
    decided = requests.load(team, asked.id)
    assert decided is not None
    assert (decided.status, decided.decided_by) == ("cancelled", "operator")


def test_stop_now_ends_a_busy_agent_with_all_that_it_started(shared_crew: Crew) -> None:
    shared_crew.hire("busy", "test", "run: (setsid sleep 300 &) ; sleep 300", unsafe_no_sandbox=True)
    eventually(lambda: "sleep" in shared_crew.see("busy").doing, "the command")

    eventually(lambda: shared_crew.commands("busy").count(["sleep", "300"]) == 2, "both commands")
    started = process.descendants(shared_crew.pid("busy"))
    stop.stop_now(shared_crew.team, "busy")
    assert shared_crew.see("busy").state == "exited"
    eventually(lambda: not any(process.start_ticks(pid) for pid in started), "the end of its children")


class _Echo(BaseHTTPRequestHandler):
    """A gateway that repeats the credential in its error."""

    def do_POST(self) -> None:
        sent = self.headers.get("authorization", "")
        said = {
            "type": "error",
            "error": {"type": "authentication_error", "message": f"no such {sent!r}: {quote(sent)}"},
        }
        body = json.dumps(said).encode()
        self.send_response(401)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the name of the base class
        pass


@pytest.mark.files_only("searches the files of the team")
def test_a_credential_that_an_error_repeats_is_in_no_file(shared_crew: Crew) -> None:
    token = "an/odd+token-of-the=tests"
    with ThreadingHTTPServer(("127.0.0.1", 0), _Echo) as gateway:
        threading.Thread(target=gateway.serve_forever, daemon=True).start()
        environment = {
            **shared_crew.environment,
            "ANTHROPIC_BASE_URL": f"http://127.0.0.1:{gateway.server_port}",
            "ANTHROPIC_API_KEY": token,
        }
        team = Team(shared_crew.directory, environment=environment)
        hired = hiring.spawn(team, hiring.Hire("echoed", "explore", "hello"))
        assert shared_crew.answer(hired).code == 78
        gateway.shutdown()
    files = contents(shared_crew.directory.path)
    assert any(redaction.MARK.encode() in data for data in files.values())
    for form in (token, quote(token)):
        assert not [path for path, data in files.items() if form.encode() in data]


@pytest.mark.long
@of_answers
def test_refused_credentials_end_the_worker_with_78(shared_crew_on: Make) -> None:
    refusals = {
        "ann": (Fault(kind="status", agent="ann", status=401), "401"),
        "ben": (Fault(kind="status", agent="ben", status=403), "403"),
        "cyn": (Fault(kind="error_event", agent="cyn", status=401), "authentication_error"),
    }
    crew = shared_crew_on(faults=[fault for fault, _ in refusals.values()])
    for name, (_, words) in refusals.items():
        assert crew.run(name, "explore", "say hello").code == 78, name
        seen = crew.wait_for(name, "crashed")
        (need,) = [need for need in crew.view().needs if need.agent == name]
        assert words in need.summary
        assert seen.exit is not None
        assert seen.exit.code == 78


BAD_MOMENTS = (
    Fault(kind="status", status=529),
    Fault(kind="status", status=500),
    Fault(kind="cut", after=1),
    Fault(kind="clean_cut", after=1),
    Fault(kind="error_event", after=1),
)


@pytest.mark.long
@of_answers
def test_a_bad_moment_of_the_api_costs_nothing_but_time(shared_crew_on: Make) -> None:
    crew = shared_crew_on(faults=[each for fault in BAD_MOMENTS for each in (fault, None)], script=[says("yes")] * 5)
    for at, fault in enumerate(BAD_MOMENTS):
        hired = crew.hire(f"lucky{at}", "explore", "go")
        assert crew.answer(hired).text == "yes", fault
        (retry,) = [event for event in crew.events(hired.agent) if isinstance(event, Retry)]
        assert retry.until > retry.ts
        assert "200" not in retry.error
        assert len(crew.model.requests) == 2 * (at + 1)


@pytest.mark.long
def test_a_wait_for_the_api_is_seen(crew_on: Make) -> None:
    # The wait is the whole team's, and longer than any machine needs to look.
    crew = crew_on(faults=[Fault(kind="status", status=429, retry_after=100)])
    crew.hire("waiter", "explore", "go")

    def waits() -> AgentView | None:
        seen = crew.see("waiter")
        return seen if seen.state == "retrying" and "429" in str(seen.status.last_error) else None

    assert eventually(waits, "its own wait").status.retry_at is not None


@pytest.mark.parametrize(("name", "value"), [("KEY", "secret\nof-mine"), ("BASE_URL", "nowhere")])
@of_answers
def test_an_invalid_key_or_address_is_not_retried_and_not_shown(
    shared_crew_on: Make, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setattr(hiring, "check_credentials", lambda _: None)
    agent = f"mute-{name.lower()}"
    variable = f"ANTHROPIC_{'API_' if name == 'KEY' else ''}{name}"
    crew = shared_crew_on(**{variable: value})
    answer = crew.run(agent, "explore", "go")
    assert answer.code == 78
    assert not [event for event in crew.events(agent) if isinstance(event, Retry)]
    assert not [path for path, data in contents(crew.agent(agent).path).items() if b"of-mine" in data]


@pytest.mark.long
@of_answers
def test_where_outages_fail_the_work_ends_with_69_not_the_agent(crew_on: Make) -> None:
    # The API is available again when the agent is asked again: a second failure would be a need again.
    crew = crew_on(faults=[Fault(kind="status", status=529)] * 2, CREWBOARD_RETRY_BUDGET="1")
    settings.change_setting(crew.team, "on_outage", "fail")
    answer = crew.run("forsaken", "explore", "go")
    assert answer.code == 69
    seen = crew.wait_for("forsaken", "idle")
    assert seen.status.last_error is not None
    assert "529" in seen.status.last_error
    (need,) = [each for each in crew.view().needs if each.agent == "forsaken"]
    assert (need.kind, need.code) == ("failed", 69)
    assert need.summary.startswith("stopped: ")
    messages.send(crew.team, "forsaken", "try again")
    eventually(
        lambda: ("forsaken", "failed") not in {(each.agent, each.kind) for each in crew.view().needs},
        "the end of the need with other work",
    )
    assert [m.type for m in mailbox.read(crew.directory, "lead").messages if m.from_ == "forsaken"][:1] == ["error"]


def test_a_refusal_of_the_model_needs_you_until_acknowledged(shared_crew: Crew) -> None:
    shared_crew.model.give("prim", Reply([{"type": "text", "text": "no"}], stop_reason="refusal"))
    assert shared_crew.run("prim", "explore", "go").code == 1
    shared_crew.wait_for("prim", "idle")
    (need,) = [each for each in shared_crew.view().needs if each.agent == "prim"]
    assert (need.kind, need.code, need.summary) == ("failed", 1, "stopped: claude-haiku-5-5 refused. no")
    assert need.refused_by == "claude-haiku-5-5"
    assert shared_crew.see("prim").status.tokens.output > 0, "what was written before the refusal is billed"
    messages.acknowledge(shared_crew.team, "prim")
    assert "prim" not in {each.agent for each in shared_crew.view().needs}


@pytest.mark.long
@pytest.mark.parametrize("once", [pytest.param(False, id="idle"), pytest.param(True, id="ended")])
def test_another_model_goes_on_after_a_refusal(shared_crew: Crew, *, once: bool) -> None:
    name = "ended-prim" if once else "idle-prim"
    thought = {"type": "thinking", "thinking": "No.", "signature": "s"}
    why = {"type": "refusal", "category": "cyber", "explanation": None}
    shared_crew.model.give(name, Reply([thought], "refusal", why), says("done"))
    shared_crew.run(name, "explore", "look at the firewall", once=once)
    shared_crew.wait_for(name, "exited", "crashed") if once else shared_crew.wait_for(name, "idle")
    (need,) = [each for each in shared_crew.view().needs if each.agent == name]
    assert (need.kind, need.refused_by) == ("death" if once else "failed", "claude-haiku-5-5")
    control.retry_with(shared_crew.team, name, model="claude-opus-4-8")
    eventually(lambda: len(shared_crew.model.asked_by(name)) == 2, "the next try")
    first, second = shared_crew.model.asked_by(name)
    assert (first["model"], second["model"]) == ("claude-haiku-5-5", "claude-opus-4-8")
    assert "look at the firewall" in str(second["messages"])
    assert "thinking" not in {block["type"] for each in second["messages"] for block in each["content"]}
    eventually(lambda: need.key not in {each.key for each in shared_crew.view().needs}, "the end of the need")


@pytest.mark.long
def test_the_turn_limit_ends_the_work_with_79(shared_crew: Crew) -> None:
    shared_crew.model.give("turning", *[calls("list_dir")] * 9)
    answer = shared_crew.run("turning", "explore", "go", max_turns=3)
    assert answer.code == 79
    assert len(shared_crew.model.asked_by("turning")) == 3


@pytest.mark.long
def test_an_exit_record_says_which_run_it_is(shared_crew: Crew) -> None:
    shared_crew.run("recorded", "explore", "say hello", once=True)
    shared_crew.wait_for("recorded", "exited")
    record = shared_crew.agent("recorded").exit.load()
    assert record is not None
    assert record.run == 1
