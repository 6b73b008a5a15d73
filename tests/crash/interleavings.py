"""Interleavings: two operations at once, in exactly the order that matters. Each function runs one of them.

Random killing does not reach these moments: they are too short. Each function raises an AssertionError if a rule is
missing.
"""

import errno
import fcntl
import os
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from crewboard.errors import CrewboardError
from crewboard.protocol import requests
from crewboard.readmodel.processes import KernelProbe
from crewboard.readmodel.reader import TeamReader
from crewboard.records.agents import Spec, Status
from crewboard.records.messages import Message
from crewboard.records.processes import Exit, Lease
from crewboard.records.team import Member
from crewboard.store import agents, codec, leases, mailbox, roster, tasks
from crewboard.store.interface import Held, Key
from crewboard.store.layout import AgentDirectory, TeamDirectory
from crewboard.worker import __main__ as worker_main
from tests.crash.scenarios import at_work, message, received
from tests.store.raw_mail import append, line

WAIT_TIMEOUT = 20.0
NO_ROOM = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@dataclass
class Interleaving:
    """Two operations at once. The first pauses at its first call of `os.<pause>`; then the second begins.

    When the second ends or waits for a lock that the first holds, `meanwhile` is called; then the first continues.
    `first` and `second` are the results of the operations, or their errors.
    """

    pause: str
    short: int | None = None
    """For a `write`: how many bytes it takes before it pauses."""
    first: Any = None
    second: Any = None
    _held: threading.Event = field(default_factory=threading.Event)
    _go: threading.Event = field(default_factory=threading.Event)
    _second_waits: threading.Event = field(default_factory=threading.Event)

    def run(
        self, first: Callable[[], Any], second: Callable[[], Any], meanwhile: Callable[[], None] = lambda: None
    ) -> None:
        """Run both operations."""

        def act_first() -> None:
            self.first = _outcome(first)

        def act_second() -> None:
            self.second = _outcome(second)
            self._second_waits.set()

        one, two = threading.Thread(target=act_first), threading.Thread(target=act_second)
        with ExitStack() as patches:
            patches.enter_context(mock.patch.object(os, self.pause, self._pausing(one)))
            patches.enter_context(mock.patch.object(fcntl, "flock", self._noticing_waits(two)))
            one.start()
            assert self._held.wait(WAIT_TIMEOUT), "the first operation never paused"
            two.start()
            assert self._second_waits.wait(WAIT_TIMEOUT), "the second operation neither ended nor waits"
            try:
                meanwhile()
            finally:
                self._go.set()
                one.join()
                two.join()

    def _pausing(self, one: threading.Thread) -> Callable[..., Any]:
        real = getattr(os, self.pause)

        def call(*arguments: Any, **named: Any) -> Any:  # noqa: ANN401  what `os` takes and gives
            if threading.current_thread() is not one or self._held.is_set():
                return real(*arguments, **named)
            taken = real(arguments[0], arguments[1][: self.short]) if self.short is not None else None
            self._held.set()
            self._go.wait(WAIT_TIMEOUT)
            return taken if self.short is not None else real(*arguments, **named)

        return call

    def _noticing_waits(self, two: threading.Thread) -> Callable[[int, int], None]:
        real = fcntl.flock

        def call(fd: int, operation: int) -> None:
            if threading.current_thread() is two:
                try:
                    real(fd, operation | fcntl.LOCK_NB)
                except BlockingIOError:
                    self._second_waits.set()
                else:
                    return
            real(fd, operation)

        return call


def _outcome(act: Callable[[], Any]) -> Any:  # noqa: ANN401  whatever it gives
    try:
        return act()
    except CrewboardError as error:
        return error


# -------------------------------------------------------------------------------------------------------- mail


def two_senders(team: TeamDirectory) -> None:
    """One sender is in the middle of its line when another one comes: no reader sees half a line."""

    def meanwhile() -> None:
        seen = mailbox.read(team, "scout")
        assert (seen.messages, seen.damaged) == ([], 0)

    interleaving = Interleaving("write", short=20)
    interleaving.run(lambda: mailbox.send(team, message("m1")), lambda: mailbox.send(team, message("m2")), meanwhile)
    seen = mailbox.read(team, "scout")
    assert [m.id for m in seen.messages] == ["m1", "m2"]
    assert seen.damaged == 0


def unterminated_tail(team: TeamDirectory) -> None:
    """A line without its newline does not spoil the next one, and is whole once that is there."""
    append(team.inbox("scout").on_disk, line("open"))
    mailbox.send(team, message("next"))
    assert [m.id for m in mailbox.read(team, "scout").messages] == ["open", "next"]


def foreign_behind_half_a_line(team: TeamDirectory) -> None:
    """A sender was killed in the middle of a line, and a program without our lock appends directly after it."""
    append(team.inbox("scout").on_disk, line("torn")[:60])
    append(team.inbox("scout").on_disk, line("foreign") + b"\n")
    assert [m.id for m in mailbox.read(team, "scout").messages] == ["foreign"]


def _write_by(script: list[int | OSError], between: Callable[[], None] = lambda: None) -> Callable[[int, bytes], int]:
    real = os.write

    def write(fd: int, data: bytes) -> int:
        answer = script.pop(0) if script else len(data)
        if isinstance(answer, OSError):
            raise answer
        count = real(fd, data[:answer])
        if script:
            between()
        return count

    return write


def _refused(team: TeamDirectory, sent: Message, taken: int, between: Callable[[], None] = lambda: None) -> None:
    """Send while the disk takes some bytes and then is full."""
    with mock.patch.object(os, "write", _write_by([taken, NO_ROOM], between)):
        error = _outcome(lambda: mailbox.send(team, sent))
    assert isinstance(error, CrewboardError)


def refused_line(team: TeamDirectory) -> None:
    """A partly written line never becomes a message, even if only its newline is missing."""
    size = len(codec.encode(message("refused")))
    for taken in range(1, size):
        _refused(team, message("refused"), taken)
        mailbox.send(team, message(f"next-{taken}"))
    assert [m.id for m in mailbox.read(team, "scout").messages] == [f"next-{taken}" for taken in range(1, size)]


def refused_line_with_another_behind_it(team: TeamDirectory) -> None:
    """A line that another program appended after a withdrawn line stays."""
    _refused(team, message("refused"), 30, lambda: append(team.inbox("scout").on_disk, line("foreign") + b"\n"))
    mailbox.send(team, message("next"))
    assert [m.id for m in mailbox.read(team, "scout").messages] == ["foreign", "next"]


def refused_while_another_appends(team: TeamDirectory) -> None:
    """A foreign line that is appended at the very moment of a withdrawal stays."""

    def foreign_first(name: str) -> Callable[..., Any]:
        real = getattr(os, name)

        def call(*arguments: Any) -> Any:  # noqa: ANN401  what `os` takes and gives
            append(team.inbox("scout").on_disk, line(f"foreign-{name}") + b"\n")
            return real(*arguments)

        return call

    with ExitStack() as patches:
        for name in ("pwrite", "ftruncate"):
            patches.enter_context(mock.patch.object(os, name, foreign_first(name)))
        _refused(team, message("refused"), 30)
    assert [m.id for m in mailbox.read(team, "scout").messages] == ["foreign-pwrite"]


def foreign_line_in_the_middle_of_ours(team: TeamDirectory) -> None:
    """A program that takes no lock writes after a short write: both lines arrive whole."""
    foreign = line("foreign") + b"\n"
    with mock.patch.object(os, "write", _write_by([30, 1000], lambda: append(team.inbox("scout").on_disk, foreign))):
        mailbox.send(team, message("ours"))
    assert {m.id for m in mailbox.read(team, "scout").messages} == {"foreign", "ours"}


def reader_between_line_and_sync(team: TeamDirectory) -> None:
    """A reader saw a line that could not be synced and was withdrawn: it sees the next line."""
    seen: list[mailbox.Batch] = []

    def sync(fd: int) -> None:
        seen.append(mailbox.read(team, "scout"))
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with mock.patch.object(os, "fsync", sync):
        assert isinstance(_outcome(lambda: mailbox.send(team, message("m1"), durable=True)), CrewboardError)
    mailbox.send(team, message("m2"))
    later = mailbox.read(team, "scout", seen[0].offset, known={"m1"})
    assert [m.id for m in later.messages] == ["m2"]


def reader_in_the_middle_of_a_line(team: TeamDirectory) -> None:
    """Half a line is not read; when it is whole, it is one message."""
    half = line("m1")
    append(team.inbox("scout").on_disk, half[:50])
    early = mailbox.read(team, "scout")
    append(team.inbox("scout").on_disk, half[50:] + b"\n")
    late = mailbox.read(team, "scout", early.offset)
    assert early.messages == []
    assert (early.damaged, late.damaged) == (0, 0)
    assert [m.id for m in late.messages] == ["m1"]


def sent_twice(team: TeamDirectory) -> None:
    """A sender repeats a message, before and after the agent has read it: the agent sees it once."""
    at_work(team, "scout")
    for _ in range(2):
        mailbox.send(team, message("m1"))
    assert received(team, "scout") == ["m1"]
    mailbox.send(team, message("m1"))
    assert received(team, "scout") == ["m1"]


def much_mail(team: TeamDirectory) -> None:
    """More mail than one entry of a journal can hold arrives completely and once, also after a death."""
    at_work(team, "scout")
    bodies = [line(f"m{number}", "x" * 250_000) for number in range(70)]
    append(team.inbox("scout").on_disk, b"\n".join(bodies) + b"\n")
    assert received(team, "scout") == [f"m{number}" for number in range(70)]


def mailbox_replaced(team: TeamDirectory) -> None:
    """A mailbox was emptied by hand: later messages arrive."""
    at_work(team, "scout")
    for number in range(5):
        mailbox.send(team, message(f"m{number}"))
    assert len(received(team, "scout")) == 5
    team.inbox("scout").on_disk.write_bytes(b"")
    mailbox.send(team, message("m5"))
    assert received(team, "scout")[5:] == ["m5"]
    mailbox.send(team, message("m6", content="x" * 2000))
    assert received(team, "scout")[5:] == ["m5", "m6"]


# ---------------------------------------------------------------------------------------------------- documents


def two_on_the_roster(team: TeamDirectory) -> None:
    interleaving = Interleaving("replace")
    interleaving.run(
        lambda: roster.put(team, Member(name="a", type="code")), lambda: roster.put(team, Member(name="b", type="code"))
    )
    assert sorted(member.name for member in roster.load(team).members) == ["a", "b"]


def two_spec_changes(team: TeamDirectory) -> None:
    agent = team.agent("scout")
    first = Spec(prompt="x", prompt_id="p", type="code")
    agents.change_spec(agent, lambda _: first)

    def next_run(old: Spec | None) -> Spec:
        assert old is not None
        return old.replace(run=old.run + 1)

    interleaving = Interleaving("replace")
    interleaving.run(lambda: agents.change_spec(agent, next_run).run, lambda: agents.change_spec(agent, next_run).run)
    assert {interleaving.first, interleaving.second} == {2, 3}, "no run is wanted twice"


def two_tasks(team: TeamDirectory) -> None:
    interleaving = Interleaving("replace")
    interleaving.run(lambda: tasks.add(team, "a", 1.0).id, lambda: tasks.add(team, "b", 1.0).id)
    assert sorted([interleaving.first, interleaving.second]) == [1, 2]
    assert {task.subject for task in tasks.load_all(team)} == {"a", "b"}


def two_claims(team: TeamDirectory) -> None:
    tasks.add(team, "x", 1.0)
    interleaving = Interleaving("replace")
    interleaving.run(lambda: tasks.claim(team, 1, "a", "code", 2.0), lambda: tasks.claim(team, 1, "b", "code", 2.0))
    assert isinstance(interleaving.second, CrewboardError)
    assert tasks.load(team, 1).owner == "a"


def one_claims_two(team: TeamDirectory) -> None:
    """Two runs of one agent claim two tasks: only one is in progress."""
    for _ in range(2):
        tasks.add(team, "x", 1.0)
    interleaving = Interleaving("replace")
    interleaving.run(lambda: tasks.claim(team, 1, "a", "code", 2.0), lambda: tasks.claim(team, 2, "a", "code", 2.0))
    assert [task.status for task in tasks.load_all(team)].count("in_progress") == 1


def two_answers(team: TeamDirectory) -> None:
    requests.ask(team, "q1", "permission", "a", "operator", {}, 1.0, by_mail=False)
    interleaving = Interleaving("replace")
    interleaving.run(
        lambda: requests.decide(team, "q1", "approved", "operator", 2.0),
        lambda: requests.decide(team, "q1", "rejected", "operator", 2.0, feedback="no"),
    )
    stands = requests.load(team, "q1")
    assert isinstance(interleaving.second, CrewboardError), "one of them is told that it changed nothing"
    assert stands is not None
    assert (stands.status, stands.feedback) == ("approved", None)


def reader_during_a_replacement(team: TeamDirectory) -> None:
    """A reader sees the old file or the new one at any moment."""
    roster.put(team, Member(name="a", type="code"))
    seen: list[int] = []

    def look() -> None:
        config = team.config.load()
        assert config is not None
        seen.append(len(config.members))

    for operation in ("open", "write", "close", "replace"):
        seen.clear()
        interleaving = Interleaving(operation)
        interleaving.run(lambda: roster.drop(team, "b"), lambda: None, look)
        roster.put(team, Member(name="b", type="code"))
        assert seen in ([1], [2])


def damaged_roster(team: TeamDirectory) -> None:
    """A writer leaves a damaged file as it is, keeps a copy, and reports it."""
    team.config.on_disk.write_bytes(b'{"members": [')
    assert isinstance(_outcome(lambda: roster.put(team, Member(name="a", type="code"))), CrewboardError)
    assert team.config.on_disk.read_bytes() == b'{"members": ['
    assert [path.read_bytes() for path in team.path.glob("config.json.damaged-*")] == [b'{"members": [']


def damaged_while_in_use(team: TeamDirectory) -> None:
    """Readers keep using the last good state, and report the damage."""
    at_work(team, "scout")
    roster.change(team, lambda config: setattr(config, "budget", "5 USD"))
    reader = TeamReader(team)
    assert [agent.name for agent in reader.read().agents] == ["scout"]
    team.config.on_disk.write_bytes(b"{")
    view = reader.read()
    # The names alone could be had from the files of the agents.
    assert ([agent.name for agent in view.agents], view.budget) == (["scout"], "5 USD")
    assert view.damaged == 1
    assert view.problem is not None


# --------------------------------------------------------------------------------------------------------- lifetime


def taker_during_a_probe(team: TeamDirectory) -> None:
    """A worker that starts while its lease is probed gets the lease."""
    path = team.agent("scout").lease
    at_work(team, "scout")
    path.on_disk.touch()
    taken: list[Held | None] = []
    real = os.close

    def close(fd: int) -> None:
        if not taken:
            taken.append(None)
            taken[0] = leases.take(path)
        real(fd)

    with mock.patch.object(os, "close", close):
        leases.is_held(path)
    assert taken[0] is not None
    leases.release(taken[0])


class _Ending(KernelProbe):
    """A probe during which the worker ends."""

    def __init__(self, agent: AgentDirectory, held: int, record: Exit) -> None:
        super().__init__()
        self._agent = agent
        self._held: int | None = held
        self._record = record

    def is_held(self, lease: Key) -> bool:
        if self._held is not None and lease == self._agent.lease:
            agents.write_exit(self._agent, self._record)
            os.close(self._held)
            self._held = None
        return super().is_held(lease)


def reader_during_an_end(team: TeamDirectory) -> None:
    """A worker that ends in order during a reading is never shown as vanished."""
    at_work(team, "scout")
    scout = team.agent("scout")
    held = leases.take(scout.lease)
    assert held is not None
    ending = _Ending(scout, held.descriptor, Exit(run=1, code=0, reason="finished", at=1.0))
    view = TeamReader(team, probe=ending).read()
    (agent,) = view.agents
    assert agent.state in ("stopping", "exited"), agent.state
    assert view.needs == ()


def run_started_twice(team: TeamDirectory) -> None:
    """The same run is started twice, by two supervisors or an old request: it runs once."""
    at_work(team, "scout")
    agent = team.agent("scout")
    agents.change_spec(agent, lambda old: Spec(prompt="x", prompt_id="p", type="code", run=2))
    first = worker_main._begin(agent)
    assert first is not None
    assert worker_main._begin(agent) is None, "while it lives"
    holder = leases.holder(agent.lease, Lease)
    assert holder is not None
    assert (holder.pid, holder.run) == (os.getpid(), 2)
    agent.status.save(Status(run=2, pid=1, state="working", since=1))
    os.close(first[1].descriptor)
    assert worker_main._begin(agent) is None, "after it has ended"


INTERLEAVINGS: dict[str, Callable[[TeamDirectory], None]] = {
    interleaving.__name__: interleaving
    for interleaving in (
        two_senders, unterminated_tail, foreign_behind_half_a_line, refused_line, refused_line_with_another_behind_it,
        refused_while_another_appends, foreign_line_in_the_middle_of_ours, reader_between_line_and_sync,
        reader_in_the_middle_of_a_line, sent_twice, much_mail, mailbox_replaced, two_on_the_roster, two_spec_changes,
        two_tasks, two_claims, one_claims_two, two_answers, reader_during_a_replacement, damaged_roster,
        damaged_while_in_use, taker_during_a_probe, reader_during_an_end, run_started_twice,
    )
}  # fmt: skip
