"""Plans, permissions, questions, interrupts, pauses, shutdowns: what counts is the state in the file."""

import asyncio
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace as replace_tool
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from crewboard import operations
from crewboard.commands import answers, control, hire, hosts, messages, rules, settings, stop, tasks
from crewboard.commands.context import Team, wait_until
from crewboard.errors import BadDataError, TryLaterError, UsageError
from crewboard.offline.reply import Reply
from crewboard.protocol import requests, supervisor_client
from crewboard.readmodel.mail import MailReader, MessageView
from crewboard.records.events import Intake, ToolResult
from crewboard.records.messages import Message
from crewboard.records.requests import Request, notes_in, parse_note
from crewboard.store import agents, mailbox, roster
from crewboard.store.journal import RuleUsageReader
from crewboard.unix import process
from crewboard.worker.interrupts import Interrupted
from crewboard.worker.tools.base import Context, Outcome, Tool
from crewboard.worker.tools.executor import UNKNOWN_OUTCOME, ToolExecutor
from crewboard.worker.tools.files import write_file
from tests.crew import Crew, eventually
from tests.model import calls, says

Make = Callable[..., Crew]


def tool_results(crew: Crew, name: str) -> list[ToolResult]:
    return [event for event in crew.events(name) if isinstance(event, ToolResult)]


def write(path: str) -> Reply:
    return calls("write_file", path=path, content="hello")


def plan(path: str) -> Reply:
    return calls("submit_plan", plan=f"# Write {path}\n\n1. write it", files=[path])


def test_nothing_is_written_before_a_plan_is_approved(shared_crew: Crew) -> None:
    writes, plans = write("gated.txt"), plan("gated.txt")
    shared_crew.model.give("planner", writes, plans, plans, writes, says("done"), writes, says("second"))
    hired = shared_crew.hire("planner", "code", "write it", plan=True, unsafe_no_sandbox=True)
    first = shared_crew.pending("plan_approval", "planner")
    assert shared_crew.see("planner").shown == "ask"
    assert not (shared_crew.root / "gated.txt").exists()
    answers.reject(shared_crew.team, first.id, "say where it goes", sha256=first.sha256)

    def revised() -> Request | None:
        return next(
            (r for r in requests.pending(shared_crew.directory) if r.from_ == "planner" and r.id != first.id), None
        )

    second = eventually(revised, "the revision")
    assert second.supersedes == first.id
    assert "say where it goes" in str(shared_crew.model.asked_by("planner")[-1]["messages"][-1])
    with pytest.raises(BadDataError, match="another sha256"):
        answers.approve(shared_crew.team, second.id, sha256="0" * 64)
    with pytest.raises(BadDataError, match="already rejected"):
        answers.approve(shared_crew.team, first.id)
    assert not (shared_crew.root / "gated.txt").exists()
    answers.approve(shared_crew.team, second.id, sha256=second.sha256)
    assert shared_crew.answer(hired).text == "done"
    assert (shared_crew.root / "gated.txt").read_text() == "hello"
    told = [
        m for m in MailReader(shared_crew.directory, "planner").read() if m.message.type == "plan_approval_response"
    ]
    (no_picked, no_read), (_, yes_read) = [(letter.picked_up_at, letter.entered_turn_at) for letter in told]
    assert no_read is not None
    assert no_picked is not None
    assert yes_read is not None
    assert no_read <= no_picked < second.created_at, "what the revision took into account was read before it"

    (shared_crew.root / "gated.txt").unlink()
    sent = messages.send(shared_crew.team, "planner", "once more")
    shared_crew.answer_to("planner", sent.id)
    assert not (shared_crew.root / "gated.txt").exists(), "the gate is shut for the next assignment"


def test_a_later_plan_that_is_rejected_closes_the_gate(shared_crew: Crew) -> None:
    name, first = "changed", "changed.txt"
    shared_crew.model.give(name, plan(first), plan("b.txt"), write(first), says("done"))
    hired = shared_crew.hire(name, "code", "write it", plan=True, unsafe_no_sandbox=True)
    approved = shared_crew.pending("plan_approval", name)
    answers.approve(shared_crew.team, approved.id)

    def later() -> Request | None:
        own = (r for r in requests.pending(shared_crew.directory) if r.from_ == name)
        return next((r for r in own if r.id != approved.id), None)

    answers.reject(shared_crew.team, eventually(later, "the later plan").id, "no")
    shared_crew.answer(hired)
    assert not (shared_crew.root / first).exists()
    assert "write_file is not allowed" in tool_results(shared_crew, name)[-1].content


def test_mail_about_a_refusal_is_read_before_the_next_plan(shared_crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    name, send = "revises", mailbox.send

    def send_late(*message: Any, **options: Any) -> Message:
        # As on a slow disk: an agent knows the decision before.
        time.sleep(0.3)
        return send(*message, **options)

    shared_crew.model.give(name, plan("a.txt"), plan("b.txt"), says("done"))
    hired = shared_crew.hire(name, "code", "write it", plan=True, unsafe_no_sandbox=True)
    first = shared_crew.pending("plan_approval", name)
    with monkeypatch.context() as patch:
        patch.setattr(mailbox, "send", send_late)
        answers.reject(shared_crew.team, first.id, "another name")

    def revision() -> Request | None:
        own = (r for r in requests.pending(shared_crew.directory) if r.from_ == name)
        return next((r for r in own if r.id != first.id), None)

    second = eventually(revision, "the revision")
    assert shared_crew.see(name).unread == 0
    answers.approve(shared_crew.team, second.id)
    shared_crew.answer(hired)


def test_an_agent_answers_each_note_on_its_plan_by_id(shared_crew: Crew) -> None:
    name, text = "noted", "# Write noted.txt\n\n1. write it"
    unknown = calls("submit_plan", plan=text, answers={"n7": "?"})
    revised = calls("submit_plan", plan=f"{text} at the top", answers={"n1": "at the top"})
    shared_crew.model.give(name, calls("submit_plan", plan=text), unknown, revised, says("done"))
    hired = shared_crew.hire(name, "code", "write it", plan=True, unsafe_no_sandbox=True)
    first = shared_crew.pending("plan_approval", name)
    answers.reject(shared_crew.team, first.id, "", notes=[parse_note("3:where?"), parse_note("1-3:shorter")])

    def revision() -> Request | None:
        own = (r for r in requests.pending(shared_crew.directory) if r.from_ == name)
        return next((r for r in own if r.id != first.id), None)

    second = eventually(revision, "the revision")
    told, refused = (result.content for result in tool_results(shared_crew, name)[:2])
    assert "n1, lines 1-3:\n  > # Write noted.txt\n  > \n  > 1. write it\n  | shorter" in told
    assert "n2, line 3:\n  > 1. write it\n  | where?" in told
    assert told.endswith("In answers, say what you did about each note: n1, n2.")
    assert "there is no note n7; notes: n1, n2" in refused
    assert [(note.id, note.line, note.answer) for note in notes_in(second.payload)] == [
        ("n1", 1, "at the top"), ("n2", 3, ""),
    ]  # fmt: skip
    answers.approve(shared_crew.team, second.id, sha256=second.sha256, notes=[parse_note("3:good")])
    shared_crew.answer(hired)
    assert "n3, line 3:\n  > 1. write it at the top\n  | good" in tool_results(shared_crew, name)[2].content


def test_a_plan_with_a_wrong_answer_leaves_the_one_before_approved(shared_crew: Crew) -> None:
    wrong = calls("submit_plan", plan="another", answers={"n7": "?"})
    shared_crew.model.give("wrong", plan("wrong.txt"), wrong, write("wrong.txt"), says("done"))
    hired = shared_crew.hire("wrong", "code", "write it", plan=True, unsafe_no_sandbox=True)
    answers.approve(shared_crew.team, shared_crew.pending("plan_approval", "wrong").id)
    shared_crew.answer(hired)
    assert "there is no note n7; notes: none" in tool_results(shared_crew, "wrong")[1].content
    assert (shared_crew.root / "wrong.txt").exists()


def test_an_expired_approval_closes_the_gate(shared_crew: Crew) -> None:
    wait = calls("glob", pattern="*")
    shared_crew.model.give(
        "slow", plan("slow.txt"), wait, write("slow.txt"), plan("slow.txt"), write("slow.txt"), says("done")
    )
    hired = shared_crew.hire("slow", "code", "write it", plan=True, unsafe_no_sandbox=True)
    first = shared_crew.pending("plan_approval", "slow")
    roster.change(shared_crew.directory, lambda config: setattr(config, "approval_hours", 1e-9))
    answers.approve(shared_crew.team, first.id)

    def again() -> Request | None:
        own = (r for r in requests.pending(shared_crew.directory) if r.from_ == "slow")
        return next((r for r in own if r.id != first.id), None)

    second = eventually(again, "the plan submitted again")
    assert not (shared_crew.root / "slow.txt").exists()
    roster.change(shared_crew.directory, lambda config: setattr(config, "approval_hours", None))
    answers.approve(shared_crew.team, second.id)
    shared_crew.answer(hired)
    assert (shared_crew.root / "slow.txt").exists()
    assert any("Submit the plan again" in result.content for result in tool_results(shared_crew, "slow"))


def test_a_rejected_plan_closes_the_gate_of_an_agent_without_one(shared_crew: Crew) -> None:
    shared_crew.model.give("eager", plan("eager.txt"), write("eager.txt"), says("done"))
    hired = shared_crew.hire("eager", "code", "write it", unsafe_no_sandbox=True)
    answers.reject(shared_crew.team, shared_crew.pending("plan_approval", "eager").id, "no")
    shared_crew.answer(hired)
    assert not (shared_crew.root / "eager.txt").exists()


def test_a_plan_submitted_anew_closes_the_gate_until_it_is_approved(shared_crew: Crew) -> None:
    shared_crew.model.give("anew", plan("anew-a.txt"), plan("anew-b.txt"), write("anew.txt"), says("done"))
    hired = shared_crew.hire("anew", "code", "write it", plan=True, unsafe_no_sandbox=True)
    approved = shared_crew.pending("plan_approval", "anew")
    answers.approve(shared_crew.team, approved.id)
    eventually(lambda: len(shared_crew.model.asked_by("anew")) > 1 and shared_crew.see("anew").shown == "ask", "plan 2")
    control.interrupt(shared_crew.team, "anew", "go on without it")
    shared_crew.answer(hired)
    assert not (shared_crew.root / "anew.txt").exists()


def approve_next(crew: Crew, name: str, done: set[str]) -> Request:
    """Approve the next plan of `name` that is not in `done`, and add it."""

    def later() -> Request | None:
        return next((r for r in requests.pending(crew.directory) if r.from_ == name and r.id not in done), None)

    found = eventually(later, "a plan")
    done.add(found.id)
    answers.approve(crew.team, found.id)
    return found


@pytest.mark.long
def test_calls_that_the_approved_plan_does_not_name_are_counted(shared_crew: Crew) -> None:
    named = calls("submit_plan", plan="# Plan", files=["beyond"], commands=["echo one"])
    edit = calls("edit_file", path="absent.txt", old_text="a", new_text="b")
    shared_crew.model.give(
        "beyond", named, write("beyond/a.txt"), calls("bash", command="echo one two"), edit, write("b.txt"),
        calls("bash", command="echo two"), says("done"), says("second"),
    )  # fmt: skip
    hired = shared_crew.hire("beyond", "code", "write it", plan=True, unsafe_no_sandbox=True)
    approved = approve_next(shared_crew, "beyond", set())
    shared_crew.answer(hired)
    found = shared_crew.see("beyond").status.deviations
    assert found is not None
    assert (found.plan, found.count) == (approved.id, 2), "an edit that failed changed no file"
    assert found.calls == ["write_file b.txt", "bash echo two"]
    sent = messages.send(shared_crew.team, "beyond", "once more")
    shared_crew.answer_to("beyond", sent.id)
    assert shared_crew.see("beyond").status.deviations is None, "the next assignment has no plan yet"


def test_a_strict_plan_refuses_what_it_does_not_name(shared_crew: Crew) -> None:
    echo = calls("bash", command="echo x > strict-b.txt")
    shared_crew.model.give(
        "strict", plan("strict-a.txt"), write("strict-b.txt"), echo, plan("strict-b.txt"), write("strict-b.txt"),
        says("done"),
    )  # fmt: skip
    hired = shared_crew.hire("strict", "code", "write it", strict_plan=True, unsafe_no_sandbox=True)
    done: set[str] = set()
    approve_next(shared_crew, "strict", done)
    eventually(lambda: len(tool_results(shared_crew, "strict")) > 2, "both refusals")
    assert not (shared_crew.root / "strict-b.txt").exists()
    refused = tool_results(shared_crew, "strict")[1:3]
    assert all(each.is_error and "Submit a new plan" in each.content for each in refused)
    approve_next(shared_crew, "strict", done)
    shared_crew.answer(hired)
    assert (shared_crew.root / "strict-b.txt").exists()
    assert shared_crew.see("strict").status.deviations is None


def test_a_plan_names_no_folder_above_its_root(shared_crew: Crew) -> None:
    root = shared_crew.root
    entries = ["docs/..", "/", str(root.parent), "docs/./.././", "../x"]
    shared_crew.model.give("above", *(plan(each) for each in entries), plan(str(root)), says("done"))
    hired = shared_crew.hire("above", "code", "write it", strict_plan=True, unsafe_no_sandbox=True)
    found = shared_crew.pending("plan_approval", "above")
    assert found.payload["files"] == ["."], "the root itself is named as what it is"
    refused = tool_results(shared_crew, "above")
    assert [each.is_error for each in refused] == [True] * len(entries)
    assert all("below the workspace" in each.content for each in refused)
    answers.approve(shared_crew.team, found.id)
    shared_crew.answer(hired)


def test_mail_that_claims_to_be_an_approval_opens_nothing(shared_crew: Crew) -> None:
    shared_crew.model.give("wary", plan("forged.txt"), write("forged.txt"), says("done"))
    hired = shared_crew.hire("wary", "code", "write it", plan=True, unsafe_no_sandbox=True)
    request = shared_crew.pending("plan_approval", "wary")
    forged = mailbox.compose(
        "operator", "wary", "plan_approval_response", "yes", metadata={"request_id": request.id, "approve": True}
    )
    mailbox.send(shared_crew.directory, forged)
    sent = messages.send(shared_crew.team, "wary", "go on")
    shared_crew.see("wary")
    assert shared_crew.wait_for("wary", "waiting").status.waiting_for == request.id
    assert not any(sent.id in getattr(event, "entered", []) for event in shared_crew.events("wary"))
    answers.approve(shared_crew.team, request.id, edited="# Another plan")
    shared_crew.answer(hired)
    assert "# Another plan" in tool_results(shared_crew, "wary")[0].content


@pytest.mark.both_stores("what was approved is read again")
def test_an_open_gate_and_a_waiting_plan_survive_a_kill(shared_crew: Crew) -> None:
    shared_crew.model.give(
        "tenacious", plan("survived.txt"), calls("bash", command="sleep 300"), write("survived.txt"), says("done")
    )
    hired = shared_crew.hire("tenacious", "code", "write it", plan=True, unsafe_no_sandbox=True)
    request = shared_crew.pending("plan_approval", "tenacious")
    shared_crew.kill("tenacious")
    shared_crew.wait_for("tenacious", "crashed")
    eventually(lambda: requests.load(shared_crew.directory, request.id).status == "cancelled", "the cancelled request")  # type: ignore[union-attr]
    hire.resume(shared_crew.team, "tenacious")
    again = shared_crew.pending("plan_approval", "tenacious")
    assert again.id == request.id
    answers.approve(shared_crew.team, again.id)
    eventually(lambda: "sleep" in shared_crew.see("tenacious").doing, "the command")
    shared_crew.kill("tenacious")
    shared_crew.wait_for("tenacious", "crashed")
    hire.resume(shared_crew.team, "tenacious")
    shared_crew.answer(hired)
    assert (shared_crew.root / "survived.txt").exists()


def letters(shared_crew: Crew, name: str) -> list[MessageView]:
    return list(MailReader(shared_crew.directory, name).read())


@pytest.mark.both_stores("two processes write at once")
def test_an_approval_counts_as_read_while_its_tool_runs(shared_crew: Crew) -> None:
    shared_crew.model.give("allowed", calls("bash", command="sleep 300"), says("done"))
    shared_crew.hire("allowed", "test", "wait", ask=True, unsafe_no_sandbox=True)
    answers.approve(shared_crew.team, shared_crew.pending("permission", "allowed").id)
    eventually(lambda: "sleep" in shared_crew.see("allowed").doing, "the command")
    (yes,) = letters(shared_crew, "allowed")
    assert yes.picked_up_at is not None
    assert yes.picked_up_at == yes.entered_turn_at
    stop.stop_now(shared_crew.team, "allowed")


def test_a_permission_shows_an_edit_in_whole_lines_of_its_file(shared_crew: Crew) -> None:
    file = shared_crew.root / "login.py"
    file.write_text("# verify the user first\nverify(user)\n")
    hide = calls("edit_file", path="login.py", old_text=" the user first\n", new_text="\f")
    shared_crew.model.give("editor", hide, calls("bash", command="\nls\ntrue"), says("done"))
    hired = shared_crew.hire("editor", "code", "edit it", ask=True, unsafe_no_sandbox=True)
    asked = shared_crew.pending("permission", "editor")
    assert str(asked.payload["diff"]).split("\n")[3:] == [
        "-# verify the user first", "-verify(user)", "+# verify\fverify(user)",
    ]  # fmt: skip
    other = "# verify the user first\nlogin()\n"
    file.write_text(other)
    answers.approve(shared_crew.team, asked.id)
    command = shared_crew.pending("permission", "editor")
    assert command.payload["summary"] == "ls … (+1 line)"
    answers.reject(shared_crew.team, command.id, "no")
    shared_crew.answer(hired)
    assert "has changed since you read it" in tool_results(shared_crew, "editor")[0].content
    assert file.read_text() == other, "the diff that was approved is no longer the one that would be made"


def test_each_write_asks_permission_until_a_rule_covers_it(shared_crew: Crew) -> None:
    run = calls("bash", command="touch made")
    shared_crew.model.give("asker", run, write("refused.txt"), run, says("done"))
    hired = shared_crew.hire("asker", "code", "write it", ask=True, unsafe_no_sandbox=True)
    first = shared_crew.pending("permission", "asker")
    assert first.payload["summary"] == "touch made"
    assert not (shared_crew.root / "made").exists()
    _, rule = rules.approve_with_rule(shared_crew.team, first.id, sha256=first.sha256)
    assert (rule.agent, rule.tool, rule.scope) == ("asker", "bash", "touch")

    def second() -> Request | None:
        own = (r for r in requests.pending(shared_crew.directory) if r.from_ == "asker")
        return next((r for r in own if r.payload["tool"] == "write_file"), None)

    other = eventually(second, "the second question")
    assert "+hello" in str(other.payload["diff"])
    answers.reject(shared_crew.team, other.id, "not there")
    shared_crew.answer(hired)
    assert not (shared_crew.root / "refused.txt").exists()
    assert "not there" in tool_results(shared_crew, "asker")[1].content
    told = [letter for letter in letters(shared_crew, "asker") if letter.message.type == "permission_response"]
    assert len(told) == 2
    for letter in told:
        assert letter.picked_up_at is not None
        assert letter.entered_turn_at is not None
        assert letter.message.ts <= letter.picked_up_at <= letter.entered_turn_at
    rules.revoke(shared_crew.team, rule.id)
    assert shared_crew.team.config.rules == []


@pytest.fixture
def ruled(shared_crew: Crew) -> Iterator[Crew]:
    """Return the shared team, and remove its rules afterwards. Without bubblewrap commands make no file in the root."""
    (shared_crew.root / "inside").mkdir(exist_ok=True)
    yield shared_crew
    for rule in shared_crew.team.config.rules:
        rules.revoke(shared_crew.team, rule.id)


def test_a_rule_denies_calls_of_an_agent_that_need_not_ask(ruled: Crew) -> None:
    deny = rules.add_rule(ruled.team, "deny", "bash", "touch *", agent_type="code")
    closed = rules.add_rule(ruled.team, "deny", "files", "closed/**")
    run = calls("bash", command="true && touch inside/denied")
    ruled.model.give("runner", run, write("closed/a.txt"), write("open.txt"), says("done"))
    ruled.answer(ruled.hire("runner", "code", "go", unsafe_no_sandbox=True))
    assert not (ruled.root / "inside/denied").exists()
    assert not (ruled.root / "closed").exists()
    assert (ruled.root / "open.txt").exists()
    found = tool_results(ruled, "runner")
    assert [each.rule for each in found] == [deny.id, closed.id, None]
    assert f"rule {deny.id} denies touch *" in found[0].content
    used = RuleUsageReader(ruled.directory).read()
    assert (used[deny.id].hits, used[deny.id].last_hit) == (1, found[0].ts)


def test_a_rule_has_calls_asked_for_of_an_agent_that_need_not_ask(ruled: Crew) -> None:
    rule = rules.add_rule(ruled.team, "ask", "bash", "touch *")
    ruled.model.give("watched", calls("bash", command="touch inside/asked"), says("done"))
    hired = ruled.hire("watched", "code", "go", unsafe_no_sandbox=True)
    request = ruled.pending("permission", "watched")
    assert (request.payload["rule"], request.payload["scope"]) == (f"{rule.id} asks before touch *", None)
    with pytest.raises(UsageError, match=f"{rule.id} asks before touch . each time"):
        rules.approve_with_rule(ruled.team, request.id)
    answers.approve(ruled.team, request.id, sha256=request.sha256)
    ruled.answer(hired)
    assert (ruled.root / "inside/asked").exists()
    assert RuleUsageReader(ruled.directory).read()[rule.id].hits == 1


def test_a_rule_denies_a_call_that_waited_for_its_approval(ruled: Crew) -> None:
    ruled.model.give("waiter", calls("bash", command="touch late"), says("done"))
    hired = ruled.hire("waiter", "code", "go", ask=True, unsafe_no_sandbox=True)
    request = ruled.pending("permission", "waiter")
    rule = rules.add_rule(ruled.team, "deny", "bash", "touch *", agent="waiter")
    answers.approve(ruled.team, request.id, sha256=request.sha256)
    ruled.answer(hired)
    assert not (ruled.root / "late").exists()
    assert tool_results(ruled, "waiter")[0].rule == rule.id


@pytest.mark.long
def test_a_rule_for_all_agents_of_a_type_covers_another_agent(ruled: Crew) -> None:
    run = calls("bash", command="touch inside/made")
    ruled.model.give("first", run, says("done"))
    ruled.model.give("second", calls("bash", command="touch inside/more"), says("done"))
    hired = ruled.hire("first", "code", "go", ask=True, unsafe_no_sandbox=True)
    request = ruled.pending("permission", "first")
    _, rule = rules.approve_with_rule(ruled.team, request.id, rule_for="type")
    assert (rule.agent, rule.agent_type, rule.scope) == (None, "code", "touch")
    ruled.answer(hired)
    ruled.answer(ruled.hire("second", "code", "go", ask=True, unsafe_no_sandbox=True))
    assert (ruled.root / "inside/more").exists()
    assert RuleUsageReader(ruled.directory).read()[rule.id].hits == 1
    stop.stop(ruled.team, "second")
    stop.remove(ruled.team, "second")
    assert RuleUsageReader(ruled.directory).read()[rule.id].hits == 1


def test_an_agent_can_neither_add_nor_remove_a_rule(ruled: Crew) -> None:
    rule = rules.add_rule(ruled.team, "deny", "bash", "touch *")
    lead = replace(ruled.team, by="lead")
    for attempt in (
        partial(rules.add_rule, lead, "allow", "bash", "*"),
        partial(rules.revoke, lead, rule.id),
        partial(rules.approve_with_rule, lead, "permission-1"),
    ):
        with pytest.raises(UsageError, match="only the operator"):
            attempt()
    assert ruled.team.config.rules == [rule]


def test_bad_input_ends_one_call_and_not_the_worker(shared_crew: Crew) -> None:
    bad = [write(""), calls("bash", command=""), calls("bash", command="\n\x01"), calls("edit_file", path="\n")]
    shared_crew.model.give("clumsy", *bad, says("done"))
    hired = shared_crew.hire("clumsy", "code", "write it", ask=True, unsafe_no_sandbox=True)
    request = shared_crew.pending("permission", "clumsy")
    assert (request.payload["summary"], request.payload["scope"]) == ("\x01", None)
    answers.reject(shared_crew.team, request.id, "no")
    assert shared_crew.answer(hired).text == "done"
    assert all(result.is_error for result in tool_results(shared_crew, "clumsy"))


def test_an_input_that_no_check_expects_ends_one_call(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        raise IndexError("list index out of range")

    done: list[Outcome] = []
    block = {"type": "tool_use", "id": "a", "name": "write_file", "input": {"path": "a", "content": "b"}}
    conversation = SimpleNamespace(pending=[block], started={}, refused={})
    run_state = SimpleNamespace(conversation=conversation)
    registry = SimpleNamespace(find=lambda _: write_file, of_servers=dict, most_at_once=lambda _: 1)
    interrupts = SimpleNamespace(check_leave=lambda: None)
    executor = ToolExecutor(run_state, interrupts, registry, None, {}, None)  # type: ignore[arg-type]
    monkeypatch.setattr("crewboard.worker.tools.executor.seek_permit", fail)
    monkeypatch.setattr(executor, "result", lambda _, outcome, *__: done.append(outcome))
    asyncio.run(executor.run_pending(1000))
    assert done[0].is_error
    assert "IndexError" in capsys.readouterr().err


def test_a_call_beside_an_interrupted_one_may_still_let_go() -> None:
    """The interrupt reaches each of them by itself: one that is cancelled first would not say that it waits no more."""
    ended, let_go = asyncio.Event(), list[str]()

    async def run(context: Context, _: object) -> Outcome:
        if context.tool_use_id == "a":
            ended.set()
            raise Interrupted
        await ended.wait()
        # Later than what the end of the first one sets off.
        for _ in range(10):
            await asyncio.sleep(0)
        let_go.append(context.tool_use_id)
        raise Interrupted

    tool = replace_tool(write_file, run=run, waits=True)
    blocks: list[dict[str, Any]] = [
        {"type": "tool_use", "id": ident, "name": tool.name, "input": {}} for ident in ("a", "b")
    ]
    registry = SimpleNamespace(of_servers=dict)
    executor = ToolExecutor(None, None, registry, None, {}, None)  # type: ignore[arg-type]
    with pytest.raises(Interrupted):
        asyncio.run(executor._finish_in_order(blocks, [(tool, None), (tool, None)]))
    assert let_go == ["b"]


@pytest.mark.parametrize(("tool", "runs"), [(write_file, False), (replace_tool(write_file, repeatable=True), True)])
def test_a_call_that_an_earlier_run_began_runs_again_only_if_it_may(tool: Tool[Any], runs: bool) -> None:
    block = {"type": "tool_use", "id": "a", "name": "write_file", "input": {"path": "a", "content": "b"}}
    conversation = SimpleNamespace(pending=[block], started={"a": 1.0}, refused={})
    registry = SimpleNamespace(find=lambda _: tool, of_servers=dict, most_at_once=lambda _: 1)
    run_state = SimpleNamespace(conversation=conversation)
    executor = ToolExecutor(run_state, None, registry, None, {}, None)  # type: ignore[arg-type]
    outcome = getattr(asyncio.run(executor._prepare(block)), "outcome", None)
    assert (outcome is None) == runs
    assert outcome is None or outcome.content == UNKNOWN_OUTCOME


def test_a_question_waits_for_the_operator(shared_crew: Crew) -> None:
    shared_crew.model.give("curious", calls("ask_operator", question="which?", options=["a", "b"]), says("done"))
    hired = shared_crew.hire("curious", "explore", "ask")
    request = shared_crew.pending("question", "curious")
    needs = [(need.kind, need.request_id) for need in shared_crew.view().needs if need.agent == "curious"]
    assert needs == [("question", request.id)]
    with pytest.raises(BadDataError, match="cannot be approved"):
        answers.approve(shared_crew.team, request.id)
    answers.answer(shared_crew.team, request.id, "b")
    shared_crew.answer(hired)
    assert "b" in tool_results(shared_crew, "curious")[0].content


def test_an_interrupt_ends_a_command_at_once_and_is_read(shared_crew: Crew) -> None:
    shared_crew.model.give("patient", calls("bash", command="echo begun; sleep 300"), says("I stand here"))
    hired = shared_crew.hire("patient", "test", "wait", unsafe_no_sandbox=True)
    live = shared_crew.team.agent("patient").live
    eventually(lambda: live.exists() and b"begun" in live.read_bytes(), "what the command printed")
    began = time.monotonic()
    control.interrupt(shared_crew.team, "patient", "stop that")
    assert shared_crew.answer(hired).text == "I stand here"
    assert time.monotonic() - began < 60, "of 300 s that the command would have gone on"
    (command,) = tool_results(shared_crew, "patient")
    assert command.seconds is not None
    assert 0 < command.seconds < 30, "how long it ran before it was ended"
    assert "stop that" in str(shared_crew.model.asked_by("patient")[-1]["messages"][-1])


def test_an_interrupted_command_leaves_what_it_printed(shared_crew: Crew) -> None:
    shared_crew.model.give("talkative", calls("bash", command="seq 20000; sleep 300"), says("I stand here"))
    hired = shared_crew.hire("talkative", "code", "wait", unsafe_no_sandbox=True)
    live = shared_crew.team.agent("talkative").live
    eventually(lambda: live.exists() and b"\n20000\n" in live.read_bytes(), "the output")
    control.interrupt(shared_crew.team, "talkative", "stop that")
    shared_crew.answer(hired)
    (result,) = tool_results(shared_crew, "talkative")
    assert result.is_error
    assert result.content.startswith("1\n2\n3\n")
    assert "bytes left out" in result.content
    assert len(result.content) < 31_000
    assert result.content.endswith("\n20000\n[ended: interrupted before it ended; read your mail]")


def test_an_interrupt_of_a_teammate_is_mail_and_ends_nothing(shared_crew: Crew) -> None:
    wait = calls("bash", command="while ! test -e go-on; do sleep 0.05; done")
    shared_crew.model.give("steadfast", wait, says("as asked"))
    hired = shared_crew.hire("steadfast", "test", "wait", unsafe_no_sandbox=True)
    eventually(lambda: shared_crew.see("steadfast").doing.startswith("bash"), "the command")
    mailbox.send(shared_crew.directory, mailbox.compose("patient", "steadfast", "interrupt", "do mine"))
    shared_crew.kill("steadfast", signal.SIGURG)  # the bell: it looks at its mail now
    (shared_crew.root / "go-on").touch()
    assert shared_crew.answer(hired).text == "as asked"
    assert "do mine" in str(shared_crew.model.asked_by("steadfast")[-1]["messages"][-1])
    (command,) = tool_results(shared_crew, "steadfast")
    assert "interrupt" not in command.content


def test_a_paused_agent_calls_no_model_until_it_is_let_go(shared_crew: Crew) -> None:
    shared_crew.model.give("paused", says("first"), says("second"))
    shared_crew.run("paused", "explore", "go")
    shared_crew.wait_for("paused", "idle")
    operations.pause(shared_crew.team, "paused")
    shared_crew.wait_for("paused", "paused")
    sent = messages.send(shared_crew.team, "paused", "more")
    assert shared_crew.see("paused").state == "paused"
    assert len(shared_crew.model.asked_by("paused")) == 1
    operations.unpause(shared_crew.team, "paused")
    assert shared_crew.answer_to("paused", sent.id).text == "second"


def test_a_busy_agent_may_refuse_to_leave_and_goes_on(shared_crew: Crew) -> None:
    refuse = calls("shutdown_response", approve=False, reason="nearly done")
    shared_crew.model.give(
        "refuser", calls("bash", command="while ! test -e leave; do sleep 0.05; done"), refuse, says("done")
    )
    hired = shared_crew.hire("refuser", "test", "wait", unsafe_no_sandbox=True)
    eventually(lambda: shared_crew.see("refuser").doing.startswith("bash"), "the command")
    request = stop.ask_to_stop(shared_crew.team, "refuser")
    assert request is not None
    (shared_crew.root / "leave").touch()
    assert shared_crew.answer(hired).text == "done"
    decided = requests.load(shared_crew.directory, request.id)
    assert decided is not None
    assert (decided.status, decided.feedback, decided.decided_by) == ("rejected", "nearly done", "refuser")
    asked = next(
        body for body in shared_crew.model.asked_by("refuser") if "asks you to shut down" in str(body["messages"][-1])
    )
    assert asked["tools"] == shared_crew.model.asked_by("refuser")[0]["tools"], "a new tool would cost the cache"


@pytest.mark.long
@pytest.mark.both_stores("one command waits for what another process writes")
@pytest.mark.parametrize(("approve", "run"), [(True, 2), (False, 1)])
def test_resume_waits_for_what_becomes_of_a_stop(shared_crew: Crew, approve: bool, run: int) -> None:
    """So that it does not say "is running" of an agent that is gone a moment later."""
    name = f"asked{run}"
    answer = calls("shutdown_response", approve=approve, reason="nearly done")
    shared_crew.model.give(name, calls("bash", command=f"while ! test -e {name}; do sleep 0.05; done"), answer)
    shared_crew.model.give(name, *[says("done")] * 2)
    shared_crew.hire(name, "test", "wait", unsafe_no_sandbox=True)
    eventually(lambda: shared_crew.see(name).doing.startswith("bash"), "the command")
    assert stop.ask_to_stop(shared_crew.team, name) is not None
    later = replace(shared_crew.team, now=lambda: time.time() + requests.SHUTDOWN_TIMEOUT + 1)
    assert hire.resume(later, name) == 1, "what it did not answer in time is void"
    told: list[str] = []
    team = replace(shared_crew.team, tell=told.append)
    with ThreadPoolExecutor(1) as caller:
        resumed = caller.submit(hire.resume_all, team, [name])
        assert eventually(lambda: told, "that it waits") == [
            f"waiting until {name} has ended, as it was asked to. Then {name} starts again."
        ]
        assert not resumed.done()
        (shared_crew.root / name).touch()
        assert resumed.result() == (([name], []) if approve else ([], [name]))
    assert len(told) == 1
    assert shared_crew.wait_for(name, "idle").run == run


@pytest.mark.long
@pytest.mark.both_stores("another process ends it")
def test_resume_starts_a_supervisor_for_who_is_to_be_killed(shared_crew: Crew) -> None:
    shared_crew.run("left", "explore", "say hello")
    shared_crew.wait_for("left", "idle")
    process.send_signal(shared_crew.supervisor_pid(), signal.SIGKILL)
    eventually(lambda: not supervisor_client.is_alive(shared_crew.directory), "the end of the supervisor")
    agents.want(shared_crew.agent("left"), "killed")
    assert hire.resume(shared_crew.team, "left") == 2


@pytest.mark.long
@pytest.mark.both_stores("one command waits for what another process writes")
@pytest.mark.parametrize("is_seen", [True, False])
def test_a_stop_ends_that_sees_only_the_next_run(
    shared_crew: Crew, monkeypatch: pytest.MonkeyPatch, is_seen: bool
) -> None:
    """The agent ends and is resumed between two looks of the stop, or before the first one."""
    name, runs = f"quick{is_seen:d}", list[int]()
    shared_crew.run(name, "explore", "say hello")
    shared_crew.wait_for(name, "idle")

    def resume(_: object) -> None:
        if not runs:
            shared_crew.kill(name, signal.SIGCONT)
        runs.append(hire.resume(shared_crew.team, name))
        assert len(runs) < 5

    monkeypatch.setattr(stop, "time", SimpleNamespace(monotonic=time.monotonic, sleep=resume))
    # Else it may have ended before the stop looks, which then never waits.
    shared_crew.halt(name)
    team = shared_crew.team if is_seen else replace(shared_crew.team, tell=resume)
    assert stop.stop(team, name) == "ended"
    assert runs == [2]
    assert shared_crew.wait_for(name, "idle").run == 2


@pytest.mark.long
def test_who_is_not_running_cannot_be_interrupted(shared_crew: Crew) -> None:
    shared_crew.run("gone", "explore", "say hello", once=True)
    shared_crew.wait_for("gone", "exited")
    with pytest.raises(TryLaterError, match="not running"):
        control.interrupt(shared_crew.team, "gone")


def test_the_leads_foreground_hire_answers_as_a_tool_result_only(crew_on: Make) -> None:
    spawn = calls("spawn_agent", name="scanner", agent_type="explore", prompt="scan")
    crew = crew_on({"lead": [spawn, says("all scanned")], "scanner": [says("three files")]})
    answer = crew.run("lead", "lead", "scan it", unsafe_no_sandbox=True)
    assert answer.text == "all scanned"
    assert "three files" in tool_results(crew, "lead")[0].content
    assert [m.type for m in mailbox.read(crew.directory, "lead").messages if m.from_ == "scanner"] == []

    def heard() -> bool:
        return [m.content for m in mailbox.read(crew.directory, "operator").messages if m.type == "result"] == [
            "all scanned"
        ]

    eventually(heard, "the lead's result in the operator's mailbox")


@pytest.mark.long
def test_a_background_result_reaches_the_lead_as_mail(crew_on: Make) -> None:
    spawn = calls("spawn_agent", name="scanner", agent_type="explore", prompt="scan", background=True)
    crew = crew_on({"lead": [spawn, says("hired"), says("heard")], "scanner": [says("three files")]})
    crew.run("lead", "lead", "scan it", unsafe_no_sandbox=True)

    def heard() -> bool:
        asked = [body for body in crew.model.requests if "You are lead" in str(body["system"])]
        return any("three files" in str(body["messages"]) for body in asked)

    eventually(heard, "the result")


@pytest.mark.long
def test_a_lead_is_told_that_its_hire_is_queued(crew_on: Make) -> None:
    spawn = calls("spawn_agent", name="scanner", agent_type="explore", prompt="scan")
    crew = crew_on({"lead": [spawn, says("it is queued"), says("heard")], "scanner": [says("three files")]})
    settings.change_setting(crew.team, "max_working", "1")
    assert crew.run("lead", "lead", "scan it", unsafe_no_sandbox=True).text == "it is queued"
    told = tool_results(crew, "lead")[0]
    assert told.content.startswith("scanner is queued 1st: max_working 1 reached")
    assert not told.is_error

    def heard() -> bool:
        asked = [body for body in crew.model.requests if "You are lead" in str(body["system"])]
        return any("three files" in str(body["messages"]) for body in asked)

    eventually(heard, "the result, after the lead has become idle")


@pytest.mark.long
def test_who_is_queued_never_begins_after_delete_team(crew_on: Make) -> None:
    spawn = calls("spawn_agent", name="scanner", agent_type="explore", prompt="scan")
    crew = crew_on({"lead": [spawn, calls("delete_team"), says("done")], "scanner": [says("three files")]})
    settings.change_setting(crew.team, "max_working", "1")
    assert crew.run("lead", "lead", "scan it", unsafe_no_sandbox=True).text == "done"
    deleted = tool_results(crew, "lead")[1]
    assert deleted.content == "ended: no other agent was running; taken out of the queue: scanner; the files stay"
    spec = crew.directory.agent("scanner").spec.load()
    assert spec is not None
    assert spec.want == "killed"
    eventually(lambda: agents.held_starts(crew.directory).find("scanner", 1) is None, "an empty queue")
    assert not crew.model.asked_by("scanner")


@pytest.mark.long
def test_a_lead_that_waits_is_told_when_its_child_needs_it(crew_on: Make) -> None:
    spawn = calls("spawn_agent", name="bob", agent_type="code", prompt="write", plan_required=True)

    crew = crew_on({"lead": [spawn, says("I will look")], "bob": [plan("out.txt"), says("done")]})
    settings.set_approver(crew.team, "lead")
    crew.run("lead", "lead", "have it written", unsafe_no_sandbox=True)
    assert "plan_approval" in tool_results(crew, "lead")[0].content
    request = crew.pending("plan_approval")
    assert request.to == "lead"
    with pytest.raises(BadDataError, match="for lead"):
        answers.approve(crew.team.__class__(crew.directory, by="bob"), request.id)
    answers.approve(crew.team, request.id)


def test_a_lead_reviews_plans_of_others_and_never_its_own(crew_on: Make) -> None:
    review = calls("review_plan", request_id="plan-1", approve=True)
    crew = crew_on({"lead": [plan("out.txt"), review, says("as planned")]})
    settings.set_approver(crew.team, "lead")
    hired = crew.hire("lead", "lead", "plan it", plan=True, unsafe_no_sandbox=True)
    request = crew.pending("plan_approval")
    assert request.to == "operator"
    assert [need.request_id for need in crew.view().needs] == [request.id]
    settings.set_approver(crew.team, "operator")
    answers.approve(crew.team, request.id)
    assert crew.answer(hired).text == "as planned"
    first, *later = crew.model.asked_by("lead")
    assert "review_plan" in [tool["name"] for tool in first["tools"]]
    assert all(body["tools"] == first["tools"] for body in later)
    assert "has no tool 'review_plan'" in tool_results(crew, "lead")[-1].content


@pytest.mark.long
def test_a_lead_is_told_who_is_not_there_to_read_it(crew_on: Make) -> None:
    spawn = calls("spawn_agent", name="kid", agent_type="code", prompt="wait for it")
    orders = [
        spawn,
        calls("broadcast", content="all ready?"),
        calls("request_plan", teammate="kid", task="more"),
        calls("task_create", subject="later", assigned_to="kid"),
        calls("request_shutdown", teammate="lead"),
        calls("delete_team"),
        says("all said"),
    ]
    crew = crew_on({"lead": orders, "kid": [calls("bash", command="sleep 300")]})
    hired = crew.hire("lead", "lead", "have it done", unsafe_no_sandbox=True)
    eventually(lambda: "kid" in [member.name for member in crew.team.config.members], "the child")
    eventually(lambda: "sleep" in crew.see("kid").doing, "its command")
    crew.kill("kid")
    assert crew.answer(hired).text == "all said"
    died, *kept, oneself, deleted = tool_results(crew, "lead")
    assert died.is_error
    assert "kid ended without an answer" in died.content
    assert len(kept) == 3
    assert all("not running, and will read it when they run again: kid" in result.content for result in kept)
    assert oneself.is_error
    assert "your own name" in oneself.content
    assert deleted.content == "ended: no other agent was running; the files stay"


def test_a_plan_asked_for_in_the_middle_of_work_shuts_the_gate(shared_crew: Crew) -> None:
    wait = calls("bash", command="while ! test -e go; do sleep 0.05; done")
    shared_crew.model.give("midway", wait, write("midway.txt"), plan("midway.txt"), write("midway.txt"), says("done"))
    hired = shared_crew.hire("midway", "code", "write", unsafe_no_sandbox=True)
    eventually(lambda: shared_crew.see("midway").doing.startswith("bash"), "the command")
    asked = mailbox.compose("lead", "midway", "message", "plan first", metadata={"plan_required": True})
    mailbox.send(shared_crew.directory, asked)
    (shared_crew.root / "go").touch()
    request = shared_crew.pending("plan_approval", "midway")
    assert not (shared_crew.root / "midway.txt").exists()
    answers.approve(shared_crew.team, request.id)
    shared_crew.answer(hired)
    assert (shared_crew.root / "midway.txt").exists()


def test_a_write_in_the_same_reply_as_its_plan_waits_for_the_decision(shared_crew: Crew) -> None:
    both = Reply([*plan("same.txt").content, *write("same.txt").content])
    shared_crew.model.give("hasty", both, says("done"))
    hired = shared_crew.hire("hasty", "code", "write it", plan=True, unsafe_no_sandbox=True)
    answers.reject(shared_crew.team, shared_crew.pending("plan_approval", "hasty").id, "no")
    shared_crew.answer(hired)
    assert not (shared_crew.root / "same.txt").exists()


def test_a_raised_limit_does_not_open_the_gate(shared_crew: Crew) -> None:
    shared_crew.model.give("limited", plan("limited.txt"), write("limited.txt"), write("limited.txt"), says("done"))
    shared_crew.hire("limited", "code", "write it", max_turns=1, unsafe_no_sandbox=True)
    answers.reject(shared_crew.team, shared_crew.pending("plan_approval", "limited").id, "no")
    eventually(lambda: "reached its limit of 1 model call for" in str(shared_crew.events("limited")), "the limit")
    control.change_limits(shared_crew.team, "limited", max_turns=10)
    eventually(lambda: len(tool_results(shared_crew, "limited")) > 1, "the write")
    assert not (shared_crew.root / "limited.txt").exists()
    assert "write_file is not allowed" in tool_results(shared_crew, "limited")[-1].content


def test_a_reminder_of_a_task_does_not_open_the_gate(shared_crew: Crew) -> None:
    """An agent that ends its turn instead of submitting a plan is reminded of its task, and needs the plan still."""
    task = tasks.add_task(shared_crew.team, "write reminded.txt")
    shared_crew.model.give("reminded", plan("reminded.txt"), says("done"), write("reminded.txt"), says("done again"))
    hired = shared_crew.hire("reminded", "code", "write it", task=task.id, unsafe_no_sandbox=True)
    answers.reject(shared_crew.team, shared_crew.pending("plan_approval", "reminded").id, "no")
    shared_crew.answer(hired)
    eventually(lambda: len(tool_results(shared_crew, "reminded")) > 1, "the write")
    assert not (shared_crew.root / "reminded.txt").exists()
    assert "write_file is not allowed" in tool_results(shared_crew, "reminded")[-1].content


def test_a_rule_for_a_folder_covers_no_file_behind_a_link(shared_crew: Crew) -> None:
    root = shared_crew.root
    (root / "behind.py").write_text("old")
    (root / "linked-docs").mkdir()
    (root / "linked-docs/b.txt").symlink_to("../behind.py")
    shared_crew.model.give("linker", write("linked-docs/a.txt"), write("linked-docs/b.txt"), says("done"))
    hired = shared_crew.hire("linker", "code", "write it", ask=True, unsafe_no_sandbox=True)
    rules.approve_with_rule(shared_crew.team, shared_crew.pending("permission", "linker").id)
    shared_crew.answer(hired)
    assert (root / "linked-docs/a.txt").read_text() == "hello"
    assert (root / "behind.py").read_text() == "old"
    assert "its real path, behind.py" in tool_results(shared_crew, "linker")[-1].content


@pytest.mark.long
def test_a_rule_is_there_before_its_approval_and_goes_if_that_fails(
    ruled: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    ruled.model.give("early", calls("bash", command="touch inside/early"), says("done"))
    hired = ruled.hire("early", "code", "go", ask=True, unsafe_no_sandbox=True)
    request, before = ruled.pending("permission", "early"), ruled.team.config.rules
    with pytest.raises(BadDataError):
        rules.approve_with_rule(ruled.team, request.id, sha256="0" * 64)
    assert ruled.team.config.rules == before
    approve, seen = answers.approve, []

    def note_rules(team: Team, request_id: str, *, sha256: str | None = None) -> Request:
        seen.extend(team.config.rules)
        return approve(team, request_id, sha256=sha256)

    monkeypatch.setattr(answers, "approve", note_rules)
    _, rule = rules.approve_with_rule(ruled.team, request.id, sha256=request.sha256)
    assert seen == [*before, rule]
    ruled.answer(hired)


@pytest.mark.long
def test_a_lead_starts_at_the_end_of_its_mailbox(crew_on: Make) -> None:
    crew = crew_on({"lead": [says("hello")]})
    mailbox.send(crew.directory, mailbox.compose("scout", "lead", "result", "an old result"))
    hired = crew.hire("lead", "lead", "hello", unsafe_no_sandbox=True)
    assert hired.note.startswith("you have not read 1 result that came before it: ")
    crew.answer(hired)
    assert "an old result" not in str(crew.model.requests)
    taken = [event for event in crew.events("lead") if isinstance(event, Intake)]
    assert all(not event.messages for event in taken)


@pytest.mark.long
def test_a_new_lead_is_hired_with_a_count_of_older_results(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    def send(author: str) -> None:
        mailbox.send(crew.directory, mailbox.compose(author, "lead", "result", "a result"))

    # A result comes while the lead is hired, which no process starts here: the lead reads that.
    monkeypatch.setattr(hosts, "start", lambda *_: send("tester"))
    send("scout")
    messages.acknowledge_results(crew.team, "scout")
    send("tester")
    hired = crew.hire("lead", "lead", "hello", unsafe_no_sandbox=True)
    assert hired.note.startswith("you have not read 1 result that came before it: ")


@pytest.mark.long
def test_a_lead_that_is_hired_while_plans_wait_for_it_reads_them(crew_on: Make) -> None:
    crew = crew_on({"bob": [plan("bob.txt"), says("done")]})
    settings.set_approver(crew.team, "lead")
    bob = crew.hire("bob", "code", "write", plan=True, unsafe_no_sandbox=True)
    request = crew.pending("plan_approval", "bob")
    assert [need.request_id for need in crew.view().needs] == [request.id]
    crew.model.give("lead", calls("review_plan", request_id=request.id, approve=True), says("reviewed"))
    crew.run("lead", "lead", "hello", unsafe_no_sandbox=True)
    assert "# Write bob.txt" in str(crew.model.asked_by("lead")[0]["messages"])
    assert crew.answer(bob).text == "done"
    (letter,) = [each for each in letters(crew, "lead") if each.message.metadata.get("request_id") == request.id]
    assert letter.entered_turn_at is not None


@pytest.mark.long
def test_deleting_a_team_ends_all_agents_under_one_deadline(crew_on: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    waits, killed = list[float](), list[list[str]]()
    wait_for_kill = stop._wait_for_kill

    def watched(condition: Callable[[], bool], seconds: float) -> bool:
        waits.append(seconds)
        return wait_until(condition, seconds)

    def kill(team: Team, names: list[str]) -> bool:
        killed.append(sorted(names))
        return wait_for_kill(team, names)

    monkeypatch.setattr(stop, "DELETE_TIMEOUT", 2)
    monkeypatch.setattr(stop, "wait_until", watched)
    monkeypatch.setattr(stop, "_wait_for_kill", kill)
    stubborn = calls("bash", command="(setsid sleep 301 &) ; sleep 300")
    names = ["ann", "ben", "cid"]
    crew = crew_on({name: [stubborn] for name in names})
    for name in names:
        crew.hire(name, "test", "wait", unsafe_no_sandbox=True)
    eventually(lambda: all(crew.see(name).doing.startswith("bash") for name in names), "the commands")
    stop.delete(crew.team)
    assert (waits.count(2), killed) == (1, [names]), "all are asked together, and all are ended together"
    assert all(not agent.alive for agent in crew.view().agents)
