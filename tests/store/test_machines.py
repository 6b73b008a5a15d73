"""Random histories of a mailbox, the task board and requests, compared with simple models."""

import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from crewboard.errors import CrewboardError, StorageError
from crewboard.names import LEAD, OPERATOR, SYSTEM
from crewboard.protocol import requests
from crewboard.records.requests import RequestStatus, RequestType
from crewboard.records.team import TaskStatus
from crewboard.store import files, mailbox, roster, tasks
from crewboard.store.layout import TeamDirectory
from tests.crash.faults import Disk, Fault, Killed
from tests.store.raw_mail import append, line

_MEMORY = Path("/dev/shm")


def bounded(examples: int, *, shrink: bool = True) -> settings:
    return settings(
        max_examples=examples,
        stateful_step_count=25,
        phases=[Phase.generate, Phase.shrink] if shrink else [Phase.generate],
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


class OnDisk(RuleBasedStateMachine):
    """A state machine with a team of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(dir=_MEMORY if os.access(_MEMORY, os.W_OK) else None))
        self.team = TeamDirectory(self.folder / ".crewboard" / "default")
        self.team.make()
        roster.create(self.team, "", 1.0)

    def teardown(self) -> None:
        shutil.rmtree(self.folder)


# ------------------------------------------------------------------------------------------------------ mailbox

SIZES = st.sampled_from([0, 1, 40, 3000])


class Mailbox(OnDisk):
    """Senders that may be killed or meet a full disk at any operation, other programs that append, and one reader."""

    def __init__(self) -> None:
        super().__init__()
        self.number = 0
        self.expected: list[str] = []
        self.perhaps: set[str] = set()
        """Messages that a killed sender may or may not have sent."""
        self.halves = 0
        self.seen: list[str] = []
        self.offset = 0
        # Files that are there are opened with one operation each, so that the third is the write.
        files.append_line(self.team.inbox("scout").on_disk, self.team.lock("inbox-scout").on_disk, b"\n")

    def _next(self) -> str:
        self.number += 1
        return f"m{self.number}"

    def _send(self, ident: str, size: int) -> None:
        mailbox.send(self.team, mailbox.compose("ci", "scout", "message", "x" * size, ident=ident))

    @rule(size=SIZES)
    def ours(self, size: int) -> None:
        ident = self._next()
        self._send(ident, size)
        self.expected.append(ident)
        self.halves = 0

    @rule(size=SIZES)
    def theirs(self, size: int) -> None:
        ident = self._next()
        append(self.team.inbox("scout").on_disk, line(ident, "y" * size) + b"\n")
        self.expected.append(ident)
        self.halves = 0

    @rule(junk=st.sampled_from([b"\n", b"  \n", b"\x00\xff\n", b"[]\n", b"{}\n", b'{"id": 5}\n']))
    def junk(self, junk: bytes) -> None:
        append(self.team.inbox("scout").on_disk, junk)
        self.halves = 0

    @rule(size=SIZES, cut=st.floats(0, 1))
    def half_of_theirs(self, size: int, cut: float) -> None:
        if self.halves == 3:
            # With more in a row, nothing marks the beginning of the next line.
            return
        whole = line(self._next(), "z" * size)
        append(self.team.inbox("scout").on_disk, whole[: max(1, int(cut * (len(whole) - 1)))])
        self.halves += 1

    @rule(size=SIZES)
    def theirs_without_its_newline_and_ours(self, size: int) -> None:
        theirs, ours = self._next(), self._next()
        append(self.team.inbox("scout").on_disk, line(theirs, "y" * size))
        self._send(ours, size)
        self.expected += [theirs, ours]
        self.halves = 0

    @rule(ident=st.integers(1, 30), size=SIZES)
    def again(self, ident: int, size: int) -> None:
        if ident <= self.number and f"m{ident}" in self.expected:
            self._send(f"m{ident}", size)
            self.halves = 0

    @rule(size=SIZES, at=st.integers(1, 6), after=st.booleans())
    def ours_killed(self, size: int, at: int, after: bool) -> None:
        ident = self._next()
        fault = Fault(at, "killed after" if after else "killed before")
        try:
            with Disk(fault):
                self._send(ident, size)
        except Killed:
            self.perhaps.add(ident)
            return
        self.expected.append(ident)
        self.halves = 0

    @rule(size=SIZES, part=st.sampled_from(["a byte", "half", "all but a byte"]), killed=st.booleans())
    def ours_cut_off(self, size: int, part: str, killed: bool) -> None:
        """Cut off a write of the store: of the line itself, or of the newline that ends the line before it."""
        ident = self._next()
        fault = Fault(3, "short, killed" if killed else "short, full", part)  # type: ignore[arg-type]
        try:
            with Disk(fault):
                self._send(ident, size)
        except Killed:
            self.perhaps.add(ident)
        except StorageError:
            return
        else:
            self.expected.append(ident)
        self.halves = 0

    @rule(limit=st.one_of(st.none(), st.integers(1, 5000)))
    def read(self, limit: int | None) -> None:
        batch = mailbox.read(self.team, "scout", self.offset, known=set(self.seen), limit=limit)
        self.offset = batch.offset
        self.seen += [message.id for message in batch.messages]

    @invariant()
    def nothing_is_seen_twice_or_out_of_order(self) -> None:
        assert len(self.seen) == len(set(self.seen))
        certain = [ident for ident in self.seen if ident not in self.perhaps]
        assert certain == self.expected[: len(certain)]

    def teardown(self) -> None:
        self._send("last", 0)
        self.read(None)
        certain = [ident for ident in self.seen if ident not in self.perhaps]
        assert certain == [*self.expected, "last"]
        super().teardown()


# --------------------------------------------------------------------------------------------------------- board

NAMES = st.sampled_from(["a", "b", "c"])
WHO = st.sampled_from(["a", "b", OPERATOR, LEAD])
STATUSES: st.SearchStrategy[TaskStatus] = st.sampled_from(
    ["pending", "in_progress", "completed", "failed", "cancelled"]
)  # fmt: skip


@dataclass
class Entry:
    """A task in the model."""

    status: TaskStatus = "pending"
    owner: str | None = None
    blocked_by: list[int] = field(default_factory=list)
    kind: str | None = None


class Board(OnDisk):
    """Tasks that are added, claimed, changed, released and lost."""

    def __init__(self) -> None:
        super().__init__()
        self.model: dict[int, Entry] = {}
        self.highest = 0

    @rule(owner=st.one_of(st.none(), NAMES), kind=st.sampled_from([None, "code", "test"]), blocker=st.integers(0, 8))
    def add(self, owner: str | None, kind: str | None, blocker: int) -> None:
        blocked_by = [blocker] if blocker in self.model else []
        task = tasks.add(self.team, "x", 1.0, owner=owner, required_type=kind, blocked_by=blocked_by)
        assert task.id == self.highest + 1
        self.highest = task.id
        self.model[task.id] = Entry(owner=owner, kind=kind, blocked_by=blocked_by)

    def _busy(self, name: str | None, but: int = 0) -> bool:
        return any((e.owner, e.status) == (name, "in_progress") and t != but for t, e in self.model.items())

    @rule(number=st.integers(1, 6), name=NAMES, kind=st.sampled_from(["code", "test"]))
    def claim(self, number: int, name: str, kind: str) -> None:
        entry = self.model.get(number)
        held = entry is not None and (entry.owner, entry.status) == (name, "in_progress")
        free = (
            entry is not None
            and entry.status == "pending"
            and entry.owner in (None, name)
            and entry.kind in (None, kind)
            and all(other in self.model and self.model[other].status == "completed" for other in entry.blocked_by)
            and not self._busy(name)
        )
        self._expect(held or free, lambda: tasks.claim(self.team, number, name, kind, 2.0))
        if entry is not None and free:
            entry.status, entry.owner = "in_progress", name

    @rule(number=st.integers(1, 6), by=WHO, status=st.one_of(st.none(), STATUSES), owner=st.one_of(st.none(), NAMES))
    def update(self, number: int, by: str, status: TaskStatus | None, owner: str | None) -> None:
        entry = self.model.get(number)
        if entry is None:
            self._expect(False, lambda: tasks.update(self.team, number, by, 2.0, status=status, owner=owner))
            return
        new_owner, new_status = owner or entry.owner, status or entry.status
        if entry.status != "pending" and status == "pending" and owner is None:
            new_owner = None
        if entry.status == "in_progress" and status is None and owner not in (None, entry.owner):
            new_status = "pending"
        may = by in (OPERATOR, LEAD, entry.owner)
        can = new_status != "in_progress" or (new_owner is not None and not self._busy(new_owner, but=number))
        self._expect(may and can, lambda: tasks.update(self.team, number, by, 2.0, status=status, owner=owner))
        if may and can:
            entry.owner, entry.status = new_owner, new_status

    @rule(number=st.integers(1, 6), by=WHO)
    def reopen(self, number: int, by: str) -> None:
        entry = self.model.get(number)
        closed = entry is not None and entry.status in tasks.CLOSED and by in (OPERATOR, LEAD, entry.owner)
        self._expect(closed, lambda: tasks.reopen(self.team, number, by, 2.0))
        if entry is not None and closed:
            entry.status, entry.owner = "pending", None

    @rule(name=NAMES)
    def die(self, name: str) -> None:
        back = tasks.release(self.team, name, 3.0)
        for number, entry in self.model.items():
            if (entry.owner, entry.status) == (name, "in_progress"):
                assert [task.id for task in back] == [number]
                entry.owner, entry.status = None, "pending"

    @rule(number=st.integers(1, 6))
    def lose(self, number: int) -> None:
        if self.model.pop(number, None) is not None:
            self.team.task(number).on_disk.unlink()

    @staticmethod
    def _expect(possible: bool, act: Callable[[], object]) -> None:
        try:
            act()
        except CrewboardError:
            done = False
        else:
            done = True
        assert done == possible

    @invariant()
    def the_board_is_the_model(self) -> None:
        found = {task.id: (task.status, task.owner, task.blocked_by) for task in tasks.load_all(self.team)}
        assert found == {number: (e.status, e.owner, e.blocked_by) for number, e in self.model.items()}

    @invariant()
    def no_agent_has_two_tasks_in_progress(self) -> None:
        holders = [entry.owner for entry in self.model.values() if entry.status == "in_progress"]
        assert len(holders) == len(set(holders))


# ------------------------------------------------------------------------------------------------------ requests

KINDS: st.SearchStrategy[RequestType] = st.sampled_from(["plan_approval", "shutdown", "permission", "question"])
ANSWERS: st.SearchStrategy[RequestStatus] = st.sampled_from(["approved", "rejected", "answered", "expired"])
FIT: dict[RequestType, set[RequestStatus]] = {
    "plan_approval": {"approved", "rejected"}, "shutdown": {"approved", "rejected"},
    "permission": {"approved", "rejected"}, "question": {"answered"},
}  # fmt: skip


@dataclass
class Question:
    """A request in the model."""

    kind: RequestType
    author: str
    to: str
    sha256: str
    status: RequestStatus = "pending"
    by: str | None = None


class Requests(OnDisk):
    """Requests that are opened, superseded, answered by any agent, expired and cancelled."""

    def __init__(self) -> None:
        super().__init__()
        self.model: dict[str, Question] = {}

    @initialize()
    def no_sync(self) -> None:
        self.sync = mock.patch.object(os, "fsync")
        self.sync.start()

    @rule(number=st.integers(1, 6), kind=KINDS, author=NAMES, to=WHO, older=st.integers(0, 6))
    def ask(self, number: int, kind: RequestType, author: str, to: str, older: int) -> None:
        ident, supersedes = f"q{number}", f"q{older}" if older and older != number else None
        known = self.model.get(ident)
        payload = {"question": f"{kind} {author} {to}"}
        asked = requests.ask(self.team, ident, kind, author, to, payload, 1.0, supersedes=supersedes, by_mail=False)  # type: ignore[arg-type]
        if known is None:
            old = self.model.get(supersedes or "")
            if old is not None and old.status == "pending":
                old.status, old.by = "cancelled", author
            self.model[ident] = Question(kind, author, to, asked.sha256)
        elif (known.status, known.by) == ("cancelled", SYSTEM):
            known.status, known.by = "pending", None

    @rule(number=st.integers(1, 7), status=ANSWERS, by=WHO, seen=st.sampled_from(["right", "wrong", "none"]))
    def decide(self, number: int, status: RequestStatus, by: str, seen: str) -> None:
        known = self.model.get(f"q{number}")
        sha256 = {"right": known.sha256 if known else "", "wrong": "0" * 64, "none": None}[seen]
        valid = (
            known is not None
            and known.status == "pending"
            and by in (known.to, OPERATOR)
            and status in FIT[known.kind]
            and seen != "wrong"
        )
        self._decide(number, status, by, sha256, valid)

    @rule(number=st.integers(1, 6), last=st.booleans())
    def answer(self, number: int, last: bool) -> None:
        """Answer as the recipient would, with an answer that fits the type, possibly too late."""
        known = self.model.get(f"q{number}")
        if known is not None:
            status = sorted(FIT[known.kind])[-1 if last else 0]
            self._decide(number, status, OPERATOR, None, known.status == "pending")

    def _decide(self, number: int, status: RequestStatus, by: str, sha256: str | None, valid: bool) -> None:
        try:
            requests.decide(self.team, f"q{number}", status, by, 2.0, sha256=sha256)
        except CrewboardError:
            assert not valid
            return
        assert valid
        known = self.model[f"q{number}"]
        known.status, known.by = status, by

    @rule(number=st.integers(1, 7))
    def expire(self, number: int) -> None:
        known = self.model.get(f"q{number}")
        closed = requests.close(self.team, f"q{number}", "expired", SYSTEM, 3.0)
        assert (closed is not None) == (known is not None and known.status == "pending")
        if closed is not None and known is not None:
            known.status, known.by = "expired", SYSTEM

    @rule(name=NAMES)
    def die(self, name: str) -> None:
        cancelled = {request.id for request in requests.cancel_requests_of(self.team, name, 4.0)}
        for ident, known in self.model.items():
            ends = name == known.author or (name == known.to and known.kind == "shutdown")
            if known.status == "pending" and ends:
                assert ident in cancelled
                known.status, known.by = "cancelled", SYSTEM

    @invariant()
    def the_files_are_the_model(self) -> None:
        found = {r.id: (r.type, r.from_, r.to, r.status, r.decided_by) for r in requests.load_all(self.team)}
        assert found == {i: (q.kind, q.author, q.to, q.status, q.by) for i, q in self.model.items()}

    def teardown(self) -> None:
        self.sync.stop()
        super().teardown()


@pytest.mark.long
@pytest.mark.parametrize("machine", [Mailbox, Board, Requests])
def test_random_histories(machine: type[RuleBasedStateMachine]) -> None:
    run_state_machine_as_test(machine, settings=bounded(40))


@pytest.mark.long
@pytest.mark.parametrize("machine", [Mailbox, Board, Requests])
def test_many_random_histories(machine: type[RuleBasedStateMachine]) -> None:
    run_state_machine_as_test(machine, settings=bounded(1500))
