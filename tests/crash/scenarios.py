"""Scenarios for fault injection: each arranges a team, acts while the disk fails, and lets a fresh process finish.

`settle` gets the outcome of the act and asserts what must hold: nothing that was acknowledged is lost, nothing is there
twice, and the next process can finish the work.
"""

import os
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal
from unittest import mock

from crewboard.commands import answers, messages
from crewboard.commands.context import Team
from crewboard.errors import BadDataError, UsageError
from crewboard.names import LEAD
from crewboard.protocol import requests
from crewboard.records.agents import HireOptions, Spec, Status, Terms
from crewboard.records.events import Intake, RunStarted
from crewboard.records.messages import Message
from crewboard.records.processes import Exit, Lease, describe_exit
from crewboard.records.requests import NewNote
from crewboard.records.team import Member
from crewboard.sandbox import scratch
from crewboard.store import agents, journal, leases, mailbox, roster, tasks
from crewboard.store.layout import AgentDirectory, TeamDirectory, key_of
from crewboard.supervisor import finalizer
from crewboard.supervisor.launcher import Ended
from crewboard.untrusted import undelimit
from crewboard.worker import inbox
from crewboard.worker.assignments import Results
from crewboard.worker.run_state import RunState
from tests.store.raw_mail import append, line

Outcome = Literal["done", "refused", "killed"]


class Scenario(ABC):
    """One operation on a team."""

    @abstractmethod
    def arrange(self, team: TeamDirectory) -> None:
        """Prepare the team."""

    @abstractmethod
    def act(self, team: TeamDirectory) -> None:
        """Do the operation, while the disk fails or the process dies."""

    @abstractmethod
    def settle(self, team: TeamDirectory, outcome: Outcome) -> None:
        """Finish the work as a fresh process, and assert what must hold."""


def hire(team: TeamDirectory, name: str, run: int = 1, kind: str = "code") -> Spec:
    spec = Spec(prompt="do it", prompt_id=f"prompt-{name}", type=kind, run=run, flags=HireOptions())
    roster.put(team, Member(name=name, type=kind))
    return agents.change_spec(team.agent(name), lambda _: spec)


def at_work(team: TeamDirectory, name: str) -> None:
    """Put an agent in the middle of its first assignment."""
    hire(team, name)
    run_state = resume(team, name)
    run_state.append(Intake(ts=1, prompt="do it", assignment=f"prompt-{name}"))
    run_state.show("working", "bash make")


def resume(team: TeamDirectory, name: str) -> RunState:
    """Return a worker that has begun its next run."""
    run_state = worker(team, name)
    run_state.append(
        RunStarted(ts=1, pid=1, type="code", model="m", fresh=run_state.fresh, prompt_id=f"prompt-{name}")
    )  # fmt: skip
    return run_state


def worker(team: TeamDirectory, name: str) -> RunState:
    """Return a worker as it is at its start: all it knows is in its journal."""
    spec = team.agent(name).spec.load()
    assert spec is not None
    return RunState(team.agent(name), spec)


def conversation(run_state: RunState) -> list[str]:
    """Return the ids of all mail that the model is shown, in order."""
    texts = [
        block["text"] for turn in run_state.conversation.messages() for block in turn["content"] if "text" in block
    ]
    return [piece.id for text in texts for piece in undelimit(text) if piece.kind not in ("prompt", "notice")]


def take_in_all(run_state: RunState) -> None:
    """Take in mail, turn by turn, until none is left."""
    while run_state.conversation.cursor != mailbox.size(run_state.agent.team, run_state.agent.name):
        before = run_state.conversation.cursor
        inbox.take_in(run_state)
        assert run_state.conversation.cursor != before, "a turn took nothing in although there is mail"


def received(team: TeamDirectory, name: str) -> list[str]:
    """Take in all mail, resume once more, and return the ids of the mail in the conversation."""
    run_state = resume(team, name)
    take_in_all(run_state)
    seen = conversation(run_state)
    again = resume(team, name)
    take_in_all(again)
    assert conversation(again) == seen, "a resumed worker knows the same conversation"
    assert agents.cursor(team.agent(name)).offset == again.conversation.cursor == mailbox.size(team, name)
    return seen


def message(ident: str, to: str = "scout", content: str = "hello", kind: str = "message") -> Message:
    return mailbox.compose("ci", to, kind, content, ident=ident, ts=1.0)


# ------------------------------------------------------------------------------------------------------- mail


@dataclass
class Send(Scenario):
    """Send a message; then another sender sends, after the first one repeated its message if `again` is set."""

    content: str = "hello"
    tail: bytes = b""
    opened: tuple[str, ...] = ()
    """Messages that the tail becomes when it is sealed; then no foreign program writes after it."""
    again: bool = False

    def arrange(self, team: TeamDirectory) -> None:
        at_work(team, "scout")
        mailbox.send(team, message("old"))
        append(team.inbox("scout").on_disk, self.tail)

    def act(self, team: TeamDirectory) -> None:
        mailbox.send(team, message("new", content=self.content), durable=True)

    def settle(self, team: TeamDirectory, outcome: Outcome) -> None:
        if self.again and outcome != "done":
            mailbox.send(team, message("new", content=self.content), durable=True)
        foreign = [] if self.opened else ["foreign"]
        for ident in foreign:
            append(team.inbox("scout").on_disk, line(ident) + b"\n")
        mailbox.send(team, message("next"))
        seen = received(team, "scout")
        new = ["new"] if outcome == "done" or self.again else []
        if outcome == "killed" and not self.again:
            # No sender knows whether the message was sent.
            seen = [ident for ident in seen if ident != "new"]
        assert seen == ["old", *self.opened, *new, *foreign, "next"]


class Receive(Scenario):
    """Take in mail in the middle of an assignment."""

    def arrange(self, team: TeamDirectory) -> None:
        at_work(team, "scout")
        for number in range(2):
            mailbox.send(team, message(f"m{number}"))
        append(team.inbox("scout").on_disk, b"no message\n" + line("foreign") + b"\n")
        mailbox.send(team, message("task", kind="task_assignment"))
        mailbox.send(team, message("aside", kind="shutdown_response"))
        mailbox.send(team, message("m2", kind="idle_notification"))

    def act(self, team: TeamDirectory) -> None:
        run_state = worker(team, "scout")
        inbox.take_in(run_state, notices=["you are asked to leave"], shutdowns=["s1"])
        run_state.show("working", "thinking")

    def settle(self, team: TeamDirectory, outcome: Outcome) -> None:
        mailbox.send(team, message("m3"))
        assert received(team, "scout") == ["m0", "m1", "foreign", "m2", "m3"]
        run_state = worker(team, "scout")
        assert list(run_state.conversation.deferred) == ["task"]
        assert agents.cursor(team.agent("scout")).damaged in (1, run_state.conversation.damaged)


class Begin(Scenario):
    """Begin an assignment from the mail of an idle worker."""

    def arrange(self, team: TeamDirectory) -> None:
        at_work(team, "scout")
        Results(worker(team, "scout")).answer("done")
        mailbox.send(team, message("note", kind="idle_notification"))
        mailbox.send(team, message("work"))

    def act(self, team: TeamDirectory) -> None:
        run_state = worker(team, "scout")
        inbox.pick_up(run_state, inbox.look(run_state))

    def settle(self, team: TeamDirectory, outcome: Outcome) -> None:
        run_state = worker(team, "scout")
        if run_state.conversation.assignment is None:
            assert outcome != "done"
            inbox.pick_up(run_state, inbox.look(run_state))
        assignment = run_state.conversation.assignment
        assert assignment is not None
        assert assignment.id == "work"
        assert received(team, "scout") == ["note", "work"]


class Answer(Scenario):
    """Answer an assignment: result file, journal, mail."""

    def arrange(self, team: TeamDirectory) -> None:
        at_work(team, "scout")

    def act(self, team: TeamDirectory) -> None:
        Results(worker(team, "scout")).answer("it is done")

    def settle(self, team: TeamDirectory, outcome: Outcome) -> None:
        run_state = worker(team, "scout")
        if run_state.conversation.assignment is not None:
            assert outcome != "done"
            Results(run_state).answer("it is done")
        else:
            Results(run_state).send_unsent()
        results = [mail for mail in mailbox.read(team, LEAD).messages if mail.type == "result"]
        assert [(mail.content, mail.metadata["answers"]) for mail in results] == [("it is done", ["prompt-scout"])]
        assert (team.path / str(results[0].metadata["result"])).read_text() == "it is done"
        assert worker(team, "scout").conversation.unsent is None


# --------------------------------------------------------------------------------------------------- documents


class Enlist(Scenario):
    """Add a member to the roster."""

    def arrange(self, team: TeamDirectory) -> None:
        roster.put(team, Member(name="a", type="code"))

    def act(self, team: TeamDirectory) -> None:
        roster.put(team, Member(name="b", type="code"))

    def settle(self, team: TeamDirectory, outcome: Outcome) -> None:
        config = roster.load(team)
        names = [member.name for member in config.members]
        assert names in ([["a", "b"]] if outcome == "done" else [["a"], ["a", "b"]])
        assert config.rev == len(names)
        assert [m.name for m in roster.put(team, Member(name="c", type="code")).members] == [*names, "c"]


class Acknowledge(Scenario):
    """Acknowledge a death for the first time."""

    def arrange(self, team: TeamDirectory) -> None:
        at_work(team, "scout")

    def act(self, team: TeamDirectory) -> None:
        messages.acknowledge(Team(team), "scout")

    def settle(self, team: TeamDirectory, outcome: Outcome) -> None:
        messages.mark_read(Team(team), "operator", 10)
        messages.acknowledge(Team(team), "scout")
        assert team.operator.on_disk.read_bytes().count(b'"scout": 1') == 1


class Want(Scenario):
    """Ask for an agent to be killed."""

    def arrange(self, team: TeamDirectory) -> None:
        hire(team, "scout")

    def act(self, team: TeamDirectory) -> None:
        agents.want(team.agent("scout"), "killed")

    def settle(self, team: TeamDirectory, outcome: Outcome) -> None:
        spec = team.agent("scout").spec.load()
        assert spec is not None
        assert spec.want in (["killed"] if outcome == "done" else ["killed", "running"])
        assert agents.want(team.agent("scout"), "paused").want == "paused"


class CreateTeam(Scenario):
    """Create a team."""

    def arrange(self, team: TeamDirectory) -> None:
        pass

    def act(self, team: TeamDirectory) -> None:
        Team(self._other(team)).ensure()

    @staticmethod
    def _other(team: TeamDirectory) -> TeamDirectory:
        return TeamDirectory(team.path.parent / "other")

    def settle(self, team: TeamDirectory, outcome: Outcome) -> None:
        other = Team(self._other(team)).ensure().directory
        assert roster.load(other).name == "other"
        assert tasks.add(other, "x", 1.0).id == 1
        mailbox.send(other, message("m"))
        assert (team.path.parent / ".gitignore").read_text() == "*\n"


class TakeLease(Scenario):
    """Take a lease and sign it."""

    def arrange(self, team: TeamDirectory) -> None:
        hire(team, "scout")
        fd = leases.take(team.agent("scout").lease)
        assert fd is not None
        leases.sign(fd, Lease(pid=4711, run=1))
        os.close(fd.descriptor)

    def act(self, team: TeamDirectory) -> None:
        fd = leases.take(team.agent("scout").lease)
        assert fd is not None
        # The descriptor stays open: it is closed at the end of the process.
        leases.sign(fd, Lease(pid=4712, run=2))

    def settle(self, team: TeamDirectory, outcome: Outcome) -> None:
        path = team.agent("scout").lease
        assert not leases.is_held(path)
        fd = leases.take(path)
        assert fd is not None
        assert leases.holder(path, Lease) is None, "a dead holder is still shown"
        leases.sign(fd, Lease(pid=4713, run=3))
        assert leases.holder(path, Lease) == Lease(pid=4713, run=3)
        os.close(fd.descriptor)


# ------------------------------------------------------------------------------------------------------- board


class Claim(Scenario):
    """Claim a task; then claim it again, and let another agent try."""

    def arrange(self, team: TeamDirectory) -> None:
        for subject in ("x", "y"):
            tasks.add(team, subject, 1.0)

    def act(self, team: TeamDirectory) -> None:
        tasks.claim(team, 1, "a", "code", 2.0)

    def settle(self, team: TeamDirectory, outcome: Outcome) -> None:
        current = tasks.load(team, 1)
        assert current.owner in (["a"] if outcome == "done" else ["a", None])
        assert current.rev in ([1] if outcome == "done" else [0, 1])
        assert tasks.claim(team, 1, "a", "code", 3.0).rev == 1
        try:
            tasks.claim(team, 1, "b", "code", 3.0)
        except UsageError:
            assert tasks.claim(team, 2, "b", "code", 3.0).owner == "b"
        else:
            raise AssertionError("two agents got the same task")


class AddTask(Scenario):
    """Add a task, and another one after it."""

    def arrange(self, team: TeamDirectory) -> None:
        tasks.add(team, "first", 1.0)

    def act(self, team: TeamDirectory) -> None:
        tasks.add(team, "second", 1.0)

    def settle(self, team: TeamDirectory, outcome: Outcome) -> None:
        subjects = {task.id: task.subject for task in tasks.load_all(team)}
        assert subjects in ([{1: "first", 2: "second"}] if outcome == "done" else [{1: "first"}, subjects])
        third = tasks.add(team, "third", 2.0)
        assert third.id not in subjects
        assert third.id <= 3
        assert list(subjects.values()).count("second") <= 1


class Complete(Scenario):
    """Complete a task, which unblocks another one."""

    def arrange(self, team: TeamDirectory) -> None:
        tasks.add(team, "x", 1.0)
        tasks.add(team, "y", 1.0, blocked_by=[1])
        tasks.claim(team, 1, "a", "code", 1.0)

    def act(self, team: TeamDirectory) -> None:
        tasks.update(team, 1, "a", 2.0, status="completed")

    def settle(self, team: TeamDirectory, outcome: Outcome) -> None:
        assert tasks.load(team, 1).status in (
            ["completed"] if outcome == "done" else ["completed", "in_progress"]
        )  # fmt: skip
        tasks.update(team, 1, "a", 2.0, status="completed")
        assert tasks.claim(team, 2, "a", "code", 3.0).owner == "a"


# ---------------------------------------------------------------------------------------------------- requests


class Ask(Scenario):
    """Submit a revised plan; then submit it again, as after a crash."""

    def arrange(self, team: TeamDirectory) -> None:
        requests.ask(team, "plan-1", "plan_approval", "a", "operator", {"plan": "one"}, 1.0)

    def act(self, team: TeamDirectory) -> None:
        requests.ask(
            team, "plan-2", "plan_approval", "a", "operator", {"plan": "two"}, 2.0, supersedes="plan-1"
        )  # fmt: skip

    def settle(self, team: TeamDirectory, outcome: Outcome) -> None:
        if outcome != "done":
            self.act(team)
        assert {request.id: request.status for request in requests.load_all(team)} == {
            "plan-1": "cancelled",
            "plan-2": "pending",
        }
        received_plans = [mail.content for mail in mailbox.read(team, "operator").messages]
        assert received_plans == ["one", "two"]


class Decide(Scenario):
    """Reject a plan with a note; then approve it: the first decision stands, with its notes."""

    def arrange(self, team: TeamDirectory) -> None:
        requests.ask(team, "plan-1", "plan_approval", "a", "operator", {"plan": "one"}, 1.0)

    def act(self, team: TeamDirectory) -> None:
        notes = [NewNote(1, 1, "why?")]
        requests.respond(team, "plan-1", "rejected", "operator", 2.0, feedback="no", notes=notes)

    def settle(self, team: TeamDirectory, outcome: Outcome) -> None:
        first = requests.load(team, "plan-1")
        assert first is not None
        assert first.status in (["rejected"] if outcome == "done" else ["rejected", "pending"])
        try:
            requests.respond(team, "plan-1", "approved", "operator", 3.0)
        except BadDataError:
            assert first.status == "rejected"
        else:
            assert first.status == "pending"
        decided = requests.load(team, "plan-1")
        assert decided is not None
        assert decided.rev == 2
        assert [note.text for note in decided.notes] == (["why?"] if decided.status == "rejected" else [])
        told = [mail.metadata["approve"] for mail in mailbox.read(team, "a").messages]
        assert told in ([[decided.status == "approved"], []] if outcome != "done" else [[False]])


class Release(Scenario):
    """Release a held step of a plan; then do it again, as one does who was not told that it worked."""

    def arrange(self, team: TeamDirectory) -> None:
        at_work(team, "scout")
        requests.ask(team, "plan-1", "plan_approval", "scout", "operator", {"plan": "1. a\n2. b"}, 1.0)
        requests.respond(team, "plan-1", "approved", "operator", 2.0, terms=Terms(hold=[2]))
        status = team.agent("scout").status.load()
        assert status is not None
        team.agent("scout").status.save(status.replace(waiting_for="plan-1"))

    def act(self, team: TeamDirectory) -> None:
        answers.release(Team(team, environment={}), "plan-1", [2])

    def settle(self, team: TeamDirectory, outcome: Outcome) -> None:
        if outcome != "done":
            self.act(team)
        released = requests.load(team, "plan-1")
        assert released is not None
        assert released.terms == Terms(released=[2])
        told = [mail.metadata["released"] for mail in mailbox.read(team, "scout").messages if mail.type == "message"]
        assert told == [[2]]


# ------------------------------------------------------------------------------------------------------- end


def _finalize(agent: AgentDirectory, record: Exit, now: float) -> None:
    """Finalize a run that ended, step by step as the supervisor does."""
    # Scratch folders in /tmp are no part of the team.
    with mock.patch.object(scratch, "sweep"):
        [record] = finalizer.kill_leftovers([(agent, record)])
    finalizer.release(agent, now)
    finalizer.announce([(agent, record)], now)


class Finalize(Scenario):
    """Finalize a killed worker; then let the next supervisor finalize it again."""

    def arrange(self, team: TeamDirectory) -> None:
        for name in ("scout", "other"):
            at_work(team, name)
        # A process without a pid, so that its children are not searched.
        team.agent("scout").status.save(Status(run=1, pid=0, state="working", since=1))
        held = leases.take(team.agent("other").lease)
        assert held is not None
        self._held_lease = held
        tasks.add(team, "x", 1.0)
        tasks.claim(team, 1, "scout", "code", 1.0)
        requests.ask(team, "q1", "question", "scout", "operator", {"question": "why?"}, 1.0)
        requests.ask(team, "s1", "shutdown", "operator", "scout", {}, 1.0)
        requests.ask(team, "q2", "question", "other", "operator", {"question": "why?"}, 1.0)

    def act(self, team: TeamDirectory) -> None:
        agent = team.agent("scout")
        record = finalizer.record_exit(agent, 1, Ended(signal=9), 5.0)
        _finalize(agent, record, 5.0)

    def settle(self, team: TeamDirectory, outcome: Outcome) -> None:
        agent = team.agent("scout")
        known = agent.exit.load()
        assert known is None or (known.run, known.signal) == (1, 9)
        assert known is not None or outcome != "done"
        # The next supervisor cannot learn how the worker ended.
        record = known or finalizer.record_exit(agent, 1, Ended(), 6.0)
        if not record.buried:
            _finalize(agent, record, 6.0)
        finalized = agent.exit.load()
        assert finalized is not None
        assert finalized.buried
        released = tasks.load(team, 1)
        assert (released.status, released.owner, released.last_owner, released.rev) == ("pending", None, "scout", 2)
        assert {request.id: request.status for request in requests.load_all(team)} == {
            "q1": "cancelled", "q2": "pending", "s1": "cancelled",
        }  # fmt: skip
        os.close(self._held_lease.descriptor)
        assert len(received(team, "other")) == 1
        told = [mail for mail in mailbox.read(team, LEAD).messages if mail.type == "teammate_terminated"]
        assert [mail.content for mail in told] == [f"scout ended: {describe_exit(record)}"]


class WorkerEnds(Scenario):
    """End a worker in order; then let its supervisor record the end."""

    def arrange(self, team: TeamDirectory) -> None:
        at_work(team, "scout")

    def act(self, team: TeamDirectory) -> None:
        worker(team, "scout").finish(0, "finished")

    def settle(self, team: TeamDirectory, outcome: Outcome) -> None:
        agent = team.agent("scout")
        record = agents.write_exit(agent, Exit(run=1, signal=9, reason="died", at=9.0))
        assert record.reason in (["finished"] if outcome == "done" else ["finished", "died"])
        agents.mark_finalized(agent, record)
        finalized = agent.exit.load()
        assert finalized is not None
        assert (finalized.reason, finalized.buried) == (record.reason, True)
        assert agent.status.load() is not None
        assert worker(team, "scout").conversation.assignment is not None, "it can be resumed"


SCENARIOS: dict[str, Scenario] = {
    "send": Send(),
    "send, and send again": Send(again=True),
    "send behind half a line": Send(tail=line("torn")[:50]),
    "send behind a line that lacks its newline": Send(tail=line("open"), opened=("open",)),
    "send what does not fit into a mailbox": Send(content="x" * mailbox.MAX_MESSAGE),
    "send again what does not fit into a mailbox": Send(content="x" * mailbox.MAX_MESSAGE, again=True),
    "receive": Receive(),
    "begin with mail": Begin(),
    "answer": Answer(),
    "replace the roster": Enlist(),
    "replace what the operator knows": Acknowledge(),
    "replace a spec": Want(),
    "create a team": CreateTeam(),
    "take a lease": TakeLease(),
    "claim a task": Claim(),
    "add a task": AddTask(),
    "complete a task": Complete(),
    "ask": Ask(),
    "decide": Decide(),
    "release a step": Release(),
    "finalize": Finalize(),
    "end in order": WorkerEnds(),
}


def damaged_events(team: TeamDirectory) -> int:
    """Return the number of damaged lines in all journals."""
    return sum(event is None for path in team.agents.glob("*/journal.jsonl") for event, _ in journal.read(key_of(path)))
