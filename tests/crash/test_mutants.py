"""Mutation tests of the data safety rules: each rule is removed in turn, and a check must fail.

A rule without such a check could be lost by the next change. The checks are those of the default tests, with as many
faults as these inject.
"""

import fcntl
import json
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from crewboard.errors import CrewboardError
from crewboard.protocol import requests
from crewboard.readmodel import reader
from crewboard.readmodel.reader import AgentReader
from crewboard.records.agents import Cursor, Spec
from crewboard.records.events import Answer, Event, Intake, RunStarted, ToolStart
from crewboard.records.processes import Exit
from crewboard.records.requests import Request
from crewboard.records.team import Task
from crewboard.store import agents, codec, file_store, files, journal, json_records, leases, mailbox, tasks
from crewboard.store.interface import Held, Key
from crewboard.store.json_records import RecordKey
from crewboard.store.layout import AgentDirectory, TeamDirectory, key_of, record_of
from crewboard.supervisor import finalizer
from crewboard.worker import conversation, inbox
from crewboard.worker.assignments import Results
from crewboard.worker.conversation import Conversation
from crewboard.worker.run_state import RunState
from tests.crash import interleavings, test_assignment
from tests.crash.assignment import ScriptedModel, check
from tests.crash.enumeration import enumerate_faults, new_team
from tests.crash.scenarios import SCENARIOS
from tests.store import test_agents, test_codec, test_documents, test_lease, test_mailbox, test_requests, test_tasks
from tests.store.test_machines import Board, Mailbox, Requests, bounded

Patch = Callable[[pytest.MonkeyPatch], None]
Check = Callable[[Path], None]


# ------------------------------------------------------------------------------------------------------- checks


def interleaving(run: Callable[[TeamDirectory], None]) -> Check:
    return lambda folder: run(new_team(folder / "root"))


def scenario(name: str) -> Check:
    def run(folder: Path) -> None:
        enumerate_faults(SCENARIOS[name], folder)

    return run


def unit(test: Callable[..., None], *arguments: object, agent: bool = False, patch: bool = False) -> Check:
    """Return a check from a unit test that takes a team, or an agent of it."""

    def run(folder: Path) -> None:
        team = new_team(folder / "root")
        given: Any = team
        if agent:
            agents.change_spec(team.agent("scout"), lambda _: test_agents.SPEC)
            given = team.agent("scout")
        with pytest.MonkeyPatch.context() as more:
            test(given, *arguments, *([more] if patch else []))

    return run


def on_a_path(test: Callable[..., None], *arguments: object) -> Check:
    return lambda folder: test(folder / "7.json", *arguments)


def plain(test: Callable[..., None], *arguments: object) -> Check:
    return lambda folder: test(*arguments)


def assignment(kind: Any) -> Check:  # noqa: ANN401  a kind of fault
    def run(folder: Path) -> None:
        test_assignment.at_each_operation(folder, kind, ScriptedModel, check, 2)

    return run


def machine(kind: type[RuleBasedStateMachine]) -> Check:
    return lambda folder: run_state_machine_as_test(kind, settings=bounded(100, shrink=False))


# ------------------------------------------------------------------------------------------------------ patches


def replaced(place: object, name: str, by: object) -> Patch:
    return lambda patch: patch.setattr(place, name, by)


WITHOUT_LOCKS = replaced(file_store.FileStore, "locked", lambda self, lock, work: work())


_APPEND_LINE = files.append_line


def send_unlocked(path: Path, lock: Path, line: bytes, *, at: int | None = None, durable: bool = False) -> int:
    return _APPEND_LINE(path, None, line, at=at, durable=durable)


def cut_off(path: Path, spans: list[tuple[int, int]]) -> None:
    """Withdraw a line by truncating the file, as if no other program wrote to it."""
    if spans:
        fd = os.open(path, os.O_WRONLY)
        os.ftruncate(fd, spans[0][0])
        os.close(fd)


def lines_and_the_rest(read: Callable[[int], bytes], offset: int) -> Iterator[tuple[bytes, int]]:
    while chunk := read(1 << 20):
        for piece in chunk.splitlines(keepends=True):
            offset += len(piece)
            yield piece.rstrip(b"\n"), offset


def forgetful_read(team: TeamDirectory, name: str, offset: int = 0, **how: Any) -> mailbox.Batch:
    return _READ(team, name, offset, **{**how, "known": ()})


_READ, _APPEND, _INIT = mailbox.read, RunState.append, RunState.__init__


def mail_at_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(mailbox, "MAX_BATCH", 1 << 40)
    patch.setattr(inbox, "MAIL_SHARE", 1 << 20)


def cursor_first(patch: pytest.MonkeyPatch) -> None:
    def append(self: RunState, event: Event) -> None:
        if isinstance(event, Intake):
            self.agent.cursor.save(Cursor(offset=event.cursor))
        _APPEND(self, event)

    def init(self: RunState, agent: AgentDirectory, spec: Spec) -> None:
        _INIT(self, agent, spec)
        self.conversation.cursor = agents.cursor(agent).offset

    patch.setattr(RunState, "append", append)
    patch.setattr(RunState, "__init__", init)


def projections_left_as_they_are(self: RunState, event: Event) -> None:
    if isinstance(event, RunStarted):
        journal.append(self.agent.journal, event)
        self.conversation.apply(event)
    else:
        _APPEND(self, event)


def written_in_place(path: Path, data: bytes, *, durable: bool = False) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        while data:
            data = data[os.write(fd, data) :]
    finally:
        os.close(fd)


_CHECK = requests._check_answer


def sha_not_looked_at(request: Request, status: Any, by: str, sha256: str | None) -> None:  # noqa: ANN401
    _CHECK(request, status, by, None)


def anyone_may_answer(request: Request, status: Any, by: str, sha256: str | None) -> None:  # noqa: ANN401
    _CHECK(request, status, request.to, sha256)


def closed_is_open(request: Request, status: Any, by: str, sha256: str | None) -> None:  # noqa: ANN401
    _CHECK(request.replace(status="pending"), status, by, sha256)


_SAVE, _EDIT = RecordKey.overwrite, RecordKey.edit


def not_waiting_for_the_disk(key: RecordKey[Any], record: Any, *, durable: bool = False) -> None:  # noqa: ANN401
    _SAVE(key, record)


def damage_overwritten(key: RecordKey[Any], edit: Any, **how: Any) -> Any:  # noqa: ANN401
    try:
        return _EDIT(key, edit)
    except CrewboardError:
        record = edit(key.model(name="default"))
        _SAVE(key, record)
        return record


def good_state_dropped(self: json_records.CachedFile[Any]) -> Any:  # noqa: ANN401
    return self.key.load_or_none()


def highest_id_forgotten(patch: pytest.MonkeyPatch) -> None:
    somewhere = property(lambda team: team.key(f"tasks/.{mailbox.new_id()}"))
    # A place can be read of a team alone.
    patch.setattr(TeamDirectory, "last_task_id", somewhere, raising=False)


def claimed_unchecked(team: TeamDirectory, task_id: int, name: str, agent_type: str, now: float) -> Task:
    return tasks._save(team, tasks.load(team, task_id), now, status="in_progress", owner=name)


def _whole_file(kind: int) -> bytes:
    return struct.pack("hhqqi4x", kind, os.SEEK_SET, 0, 0, 0)


def probing_by_taking(lease: Key) -> bool:
    fd = os.open(lease.on_disk, os.O_RDONLY)
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _whole_file(fcntl.F_RDLCK))
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def taken_from_its_holder(lease: Key) -> Held:
    fd = os.open(lease.on_disk, os.O_RDWR | os.O_CREAT, 0o600)
    os.ftruncate(fd, 0)
    return Held(lease.store, lease.name, 1, fd)


def taken_with_its_old_signature(lease: Key) -> Held:
    fd = os.open(lease.on_disk, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _whole_file(fcntl.F_WRLCK))
    return Held(lease.store, lease.name, 1, fd)


_HELD = leases.is_held


def unknown_is_dead(path: Key) -> bool:
    try:
        return _HELD(path)
    except CrewboardError:
        return False


class ReadsTheEndFirst(AgentReader):
    """Reads the exit record of an agent before its lease."""

    def __init__(self, team: TeamDirectory, name: str) -> None:
        super().__init__(team, name)
        early = self.exit.get()
        self.exit.get = lambda: early  # type: ignore[method-assign]


_ANNOUNCE = finalizer.announce


def marked_before_it_is_told(ended: Sequence[tuple[AgentDirectory, Exit]], now: float) -> None:
    for agent, record in ended:
        agents.mark_finalized(agent, record)
    _ANNOUNCE(ended, now)


def last_report_wins(agent: AgentDirectory, record: Exit) -> Exit:
    agent.exit.save(record)
    return record


_TAKE_IN, _APPLY = Conversation._take_in, Conversation.apply


def cursor_never_goes_back(self: Conversation, event: Intake) -> None:
    before = self.cursor
    _TAKE_IN(self, event)
    self.cursor = max(before, self.cursor)


_CURSOR_NEVER_BACK: dict[type[Any], Any] = {**conversation._APPLY, Intake: cursor_never_goes_back}


def starts_forgotten(self: Conversation, event: Event) -> None:
    if not isinstance(event, ToolStart):
        _APPLY(self, event)


def random_answer_id(name: str, answer: Answer) -> str:
    return mailbox.new_id()


def random_id(*parts: object) -> str:
    return mailbox.new_id()


# -------------------------------------------------------------------------------------------------------- table


@dataclass(frozen=True)
class Mutant:
    """A rule, how to remove it, and the check that must fail then."""

    rule: str
    patch: Patch
    check: Check


MUTANTS = (
    # mail
    Mutant(
        "senders wait for each other",
        replaced(files, "append_line", send_unlocked),
        interleaving(interleavings.two_senders),
    ),
    Mutant(
        "half a line is sealed",
        replaced(files, "_seal", lambda fd: None),
        interleaving(interleavings.unterminated_tail),
    ),
    Mutant("half a line is sealed (machine)", replaced(files, "_seal", lambda fd: None), machine(Mailbox)),
    Mutant(
        "a refused line is taken back",
        replaced(files, "_blank", lambda *_: None),
        interleaving(interleavings.refused_line),
    ),
    Mutant("a refused line is taken back (scenario)", replaced(files, "_blank", lambda *_: None), scenario("send")),
    Mutant(
        "taking back moves nothing of others",
        replaced(files, "_blank", cut_off),
        interleaving(interleavings.refused_line_with_another_behind_it),
    ),
    Mutant(
        "taking back cannot hit a line that comes just then",
        replaced(files, "_blank", cut_off),
        interleaving(interleavings.refused_while_another_appends),
    ),
    Mutant(
        "taking back strands no reader",
        replaced(files, "_blank", cut_off),
        interleaving(interleavings.reader_between_line_and_sync),
    ),
    Mutant(
        "a line stands in one piece",
        replaced(files, "itertools", SimpleNamespace(pairwise=lambda _: ())),
        interleaving(interleavings.foreign_line_in_the_middle_of_ours),
    ),
    Mutant(
        "a message behind half a line is found",
        replaced(mailbox, "_recover_message", lambda *_: None),
        interleaving(interleavings.foreign_behind_half_a_line),
    ),
    Mutant(
        "readers consume whole lines",
        replaced(files, "_lines", lines_and_the_rest),
        interleaving(interleavings.reader_in_the_middle_of_a_line),
    ),
    Mutant(
        "an id is delivered once", replaced(mailbox, "read", forgetful_read), interleaving(interleavings.sent_twice)
    ),
    Mutant("the journal is the commit, not the cursor", cursor_first, scenario("receive")),
    Mutant(
        "the cursor is written again after a death",
        replaced(RunState, "append", projections_left_as_they_are),
        scenario("begin with mail"),
    ),
    Mutant(
        "what was half written counts from the next start on, or never",
        replaced(file_store.FileStore, "end", lambda self, log: Key(self, log).size()),
        scenario("receive"),
    ),
    Mutant("an entry of a journal has an end", mail_at_once, interleaving(interleavings.much_mail)),
    Mutant(
        "a turn takes in what it can hold", mail_at_once, lambda folder: test_assignment.check_burst(folder / "root")
    ),
    Mutant(
        "what was not shown is not summarised",
        replaced(Conversation, "shown", property(lambda self: len(self.entries))),
        lambda folder: test_assignment.check_burst(folder / "root"),
    ),
    Mutant(
        "a cursor follows a mailbox that was replaced",
        replaced(conversation, "_APPLY", _CURSOR_NEVER_BACK),
        interleaving(interleavings.mailbox_replaced),
    ),
    Mutant(
        "no number is read that cannot be written",
        replaced(codec, "_DECODER", json.JSONDecoder(parse_constant=codec._reject_constant)),
        plain(test_codec.test_invalid_json_is_bad_data, test_codec.message()[:-1] + b', "x": 1e999}'),
    ),
    Mutant(
        "nothing is read that is too deep to be written",
        replaced(codec, "MAX_DEPTH", 10_000),
        plain(test_codec.test_a_message_nested_too_deeply_is_refused, 300),
    ),
    Mutant(
        "a large body goes to results",
        replaced(TeamDirectory, "keep_result", lambda team, name, _: (team.results / name).touch()),
        unit(test_mailbox.test_a_body_over_the_limit_is_stored_apart_and_linked),
    ),
    # documents
    Mutant(
        "a file is replaced, not rewritten",
        replaced(files, "replace_file", written_in_place),
        scenario("replace the roster"),
    ),
    Mutant(
        "a file is replaced, not rewritten (readers)",
        replaced(files, "replace_file", written_in_place),
        interleaving(interleavings.reader_during_a_replacement),
    ),
    Mutant("one changes the roster at a time", WITHOUT_LOCKS, interleaving(interleavings.two_on_the_roster)),
    Mutant("one changes a spec at a time", WITHOUT_LOCKS, interleaving(interleavings.two_spec_changes)),
    Mutant("one adds a task at a time", WITHOUT_LOCKS, interleaving(interleavings.two_tasks)),
    Mutant("one claims at a time", WITHOUT_LOCKS, interleaving(interleavings.two_claims)),
    Mutant("one task for each owner, also at once", WITHOUT_LOCKS, interleaving(interleavings.one_claims_two)),
    Mutant("one answers at a time", WITHOUT_LOCKS, interleaving(interleavings.two_answers)),
    Mutant(
        "damage is never overwritten",
        replaced(RecordKey, "edit", damage_overwritten),
        interleaving(interleavings.damaged_roster),
    ),
    Mutant(
        "the last good state stays in use",
        replaced(json_records.CachedFile, "get", good_state_dropped),
        interleaving(interleavings.damaged_while_in_use),
    ),
    Mutant(
        "a young file is read again",
        replaced(file_store, "_TIMESTAMP_RESOLUTION", -(10**19)),
        lambda folder: test_documents.test_a_replacement_within_one_clock_tick_is_not_missed(
            record_of(folder / "7.json", Task)
        ),
    ),
    # the board
    Mutant(
        "ids are never reused",
        highest_id_forgotten,
        unit(test_tasks.test_the_id_of_a_removed_task_is_not_reused),
    ),
    Mutant(
        "blocked tasks wait",
        replaced(tasks, "blockers", lambda *_: []),
        unit(test_tasks.test_refused_claims_say_why),
    ),
    Mutant(
        "one task in progress for each owner",
        replaced(tasks, "_check_no_other_in_progress", lambda *_: None),
        unit(test_tasks.test_an_owner_has_at_most_one_task_in_progress),
    ),
    Mutant("a claim is checked", replaced(tasks, "claim", claimed_unchecked), machine(Board)),
    # requests
    Mutant(
        "an answer is to what was seen",
        replaced(requests, "_check_answer", sha_not_looked_at),
        unit(test_requests.test_an_answer_to_a_changed_payload_is_refused),
    ),
    Mutant(
        "only the recipient answers",
        replaced(requests, "_check_answer", anyone_may_answer),
        unit(test_requests.test_only_the_recipient_and_the_operator_can_answer, "b"),
    ),
    Mutant(
        "each type has its answers",
        replaced(requests, "_ANSWERS", dict.fromkeys(("approved", "answered"), frozenset({"question"}))),
        unit(test_requests.test_each_type_accepts_only_its_own_answers, "question", "approved"),
    ),
    Mutant("the first answer wins", replaced(requests, "_check_answer", closed_is_open), scenario("decide")),
    Mutant("the first answer wins (machine)", replaced(requests, "_check_answer", closed_is_open), machine(Requests)),
    Mutant(
        "an answer is on the disk before it is announced",
        replaced(RecordKey, "overwrite", not_waiting_for_the_disk),
        unit(test_requests.test_questions_and_answers_are_synced_to_disk, patch=True),
    ),
    Mutant("asking twice sends one message", replaced(requests, "ask_id", random_id), scenario("ask")),
    # lifetime
    Mutant(
        "looking takes nothing",
        replaced(leases, "is_held", probing_by_taking),
        interleaving(interleavings.taker_during_a_probe),
    ),
    Mutant(
        "one process has a lease",
        replaced(leases, "take", taken_from_its_holder),
        interleaving(interleavings.run_started_twice),
    ),
    Mutant(
        "a lease names its current holder only",
        replaced(leases, "take", taken_with_its_old_signature),
        lambda folder: test_lease.test_the_last_holder_is_not_taken_for_the_next_one(key_of(folder / "lease")),
    ),
    Mutant(
        "what cannot be seen is not dead",
        replaced(leases, "is_held", unknown_is_dead),
        lambda folder: _with_patch(test_lease.test_an_unreadable_lease_is_an_error_not_a_death, folder / "lease"),
    ),
    Mutant(
        "the lease is read before the end",
        replaced(reader, "AgentReader", ReadsTheEndFirst),
        interleaving(interleavings.reader_during_an_end),
    ),
    Mutant(
        "a run is started once",
        replaced(agents, "last_run", lambda agent: 0),
        interleaving(interleavings.run_started_twice),
    ),
    Mutant(
        "the first report of an end stands",
        replaced(agents, "write_exit", last_report_wins),
        unit(test_agents.test_the_first_exit_record_of_a_run_is_kept, agent=True),
    ),
    Mutant(
        "the end is marked as finalized last",
        replaced(finalizer, "announce", marked_before_it_is_told),
        scenario("finalize"),
    ),
    Mutant("an end is announced by derived ids", replaced(mailbox, "derived_id", random_id), scenario("finalize")),
    # interrupted work
    Mutant("an answer is sent by a derived id", replaced(requests, "answer_id", random_answer_id), scenario("answer")),
    Mutant(
        "a committed answer is sent after a death",
        replaced(Results, "send_unsent", lambda self: None),
        scenario("answer"),
    ),
    Mutant(
        "a kept reply is not asked for again", replaced(Conversation, "unfinished", None), assignment("killed after")
    ),
    Mutant(
        "a tool call is not begun again", replaced(Conversation, "apply", starts_forgotten), assignment("killed after")
    ),
)


def _with_patch(test: Callable[[Key, pytest.MonkeyPatch], None], lease: Path) -> None:
    with pytest.MonkeyPatch.context() as more:
        test(key_of(lease), more)


@pytest.mark.long
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.rule)
def test_a_check_fails_without_its_rule(mutant: Mutant, memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        mutant.patch(patch)
        with pytest.raises((AssertionError, CrewboardError, pytest.fail.Exception)):
            mutant.check(memory)
