"""Eight processes at once: no lost update, no torn read, no id used twice, and one winner where only one can win."""

import errno
import json
import os
from pathlib import Path
from unittest import mock

import pytest

from crewboard.errors import BadDataError, CrewboardError
from crewboard.protocol import requests
from crewboard.records.agents import Spec
from crewboard.records.requests import Request
from crewboard.records.team import Member
from crewboard.store import agents, files, mailbox, roster, tasks
from crewboard.store.layout import TeamDirectory
from tests.store.parallel import together, together_watched
from tests.store.raw_mail import append, line

EACH = 10
MEMBERS = 10
"""Fewer of them: each rewrites the whole roster, which grows with them."""

# One test runner loads what the processes need.
pytestmark = pytest.mark.xdist_group("together")


# --------------------------------------------------------------------------------------------------- documents


def _put_members(path: Path, number: int) -> int:
    for turn in range(MEMBERS):
        roster.put(TeamDirectory(path), Member(name=f"a{number}-{turn}", type="code"))
    return MEMBERS


def _read_roster(path: Path) -> str:
    try:
        config = json.loads(TeamDirectory(path).config.get() or b"")
    except ValueError as error:
        return f"torn: {error}"
    return "" if config["rev"] == len(config["members"]) else "a revision that is not its members"


@pytest.mark.long
def test_no_member_is_lost_and_no_reader_sees_half_a_roster(directory: TeamDirectory) -> None:
    given, looks, complaints = together_watched(_put_members, _read_roster, directory.path)
    assert given == [MEMBERS] * 8
    assert complaints == []
    assert looks > 20
    config = roster.load(directory)
    assert config.rev == 8 * MEMBERS
    assert {m.name for m in config.members} == {f"a{n}-{turn}" for n in range(8) for turn in range(MEMBERS)}


def _raise_run(path: Path, number: int) -> list[int]:
    def edit(old: Spec | None) -> Spec:
        return Spec(prompt="x", prompt_id="p", type="code", run=old.run + 1 if old else 1)

    agent = TeamDirectory(path).agent("scout")
    return [agents.change_spec(agent, edit).run for _ in range(EACH)]


@pytest.mark.long
def test_no_run_number_is_used_twice(directory: TeamDirectory) -> None:
    runs = [run for given in together(_raise_run, directory.path) for run in given]
    assert sorted(runs) == list(range(1, 8 * EACH + 1))


def _make_team(path: Path, number: int) -> str:
    team = TeamDirectory(path)
    team.make()
    return roster.ensure(team, float(number)).name


@pytest.mark.long
def test_concurrent_ensure_creates_one_team(tmp_path: Path) -> None:
    path = tmp_path / ".crewboard" / "default"
    assert together(_make_team, path) == ["default"] * 8
    assert roster.load(TeamDirectory(path)).rev == 0


def _create_team(path: Path, number: int) -> str:
    team = TeamDirectory(path)
    team.make()
    roster.create(team, f"by {number}", 1.0)
    return "created"


@pytest.mark.long
def test_only_one_process_creates_a_team(tmp_path: Path) -> None:
    given = together(_create_team, tmp_path / ".crewboard" / "billing")
    assert sorted(given) == ["UsageError: the team billing exists"] * 7 + ["created"]


# ------------------------------------------------------------------------------------------------------ tasks


def _add_tasks(path: Path, number: int) -> list[int]:
    return [tasks.add(TeamDirectory(path), f"{number}-{turn}", 1.0).id for turn in range(EACH)]


@pytest.mark.long
def test_no_task_id_is_used_twice(directory: TeamDirectory) -> None:
    given = together(_add_tasks, directory.path)
    assert sorted(ident for mine in given for ident in mine) == list(range(1, 8 * EACH + 1))
    for number, mine in enumerate(given):
        assert [tasks.load(directory, ident).subject for ident in mine] == [f"{number}-{t}" for t in range(EACH)]


def _claim_and_finish(path: Path, number: int) -> list[int]:
    """Claim and complete tasks until none is left."""
    team, name, done = TeamDirectory(path), f"a{number}", []
    while pending := [task.id for task in tasks.load_all(team) if task.status == "pending"]:
        for task_id in pending:
            try:
                tasks.claim(team, task_id, name, "code", 2.0)
            except CrewboardError:
                continue
            held = [task.id for task in tasks.load_all(team) if (task.owner, task.status) == (name, "in_progress")]
            assert held == [task_id]
            tasks.update(team, task_id, name, 3.0, status="completed")
            done.append(task_id)
    return done


@pytest.mark.long
def test_each_task_is_done_by_one_and_one_at_a_time(directory: TeamDirectory) -> None:
    for number in range(24):
        tasks.add(directory, f"{number}", 1.0)
    given = together(_claim_and_finish, directory.path)
    assert sorted(task_id for mine in given for task_id in mine) == list(range(1, 25))
    assert {task.status for task in tasks.load_all(directory)} == {"completed"}
    assert all(tasks.load(directory, task_id).owner == f"a{n}" for n, mine in enumerate(given) for task_id in mine)


# --------------------------------------------------------------------------------------------------- requests


def _answer(path: Path, number: int) -> list[str]:
    team, won = TeamDirectory(path), []
    for turn in range(EACH):
        try:
            requests.respond(team, f"q{turn}", "rejected", "operator", 2.0, feedback=f"no {number}")
        except BadDataError:
            continue
        won.append(f"q{turn}")
    return won


@pytest.mark.long
def test_one_answer_wins_and_the_sender_gets_that_one(directory: TeamDirectory) -> None:
    for turn in range(EACH):
        requests.ask(directory, f"q{turn}", "permission", "scout", "operator", {"tool": "bash"}, 1.0)
    given = together(_answer, directory.path)
    assert sorted(ident for won in given for ident in won) == sorted(f"q{turn}" for turn in range(EACH))
    stands: dict[str, Request] = {request.id: request for request in requests.load_all(directory)}
    for number, won in enumerate(given):
        assert all(stands[ident].feedback == f"no {number}" for ident in won)
    told = {m.metadata["request_id"]: m.content for m in mailbox.read(directory, "scout").messages}
    assert told == {ident: request.feedback for ident, request in stands.items()}


# ---------------------------------------------------------------------------------------------------- mailboxes

MAIL = 100


def _send(path: Path, number: int) -> list[str]:
    """Send with the store in half of the processes, append plain lines in the others."""
    team = TeamDirectory(path)
    for turn in range(MAIL):
        text = f"{number}-{turn} " + "x" * (turn * 131 % 3000)
        if number % 2:
            append(team.inbox("scout"), line(f"{number}-{turn}", text) + b"\n")
        else:
            mailbox.send(team, mailbox.compose("ci", "scout", "message", text, ident=f"{number}-{turn}"))
    return [f"{number}-{turn}" for turn in range(MAIL)]


def test_each_message_arrives_once_and_in_the_senders_order(directory: TeamDirectory) -> None:
    given = together(_send, directory.path)
    batch = mailbox.read(directory, "scout")
    assert batch.damaged == 0
    arrived = [message.id for message in batch.messages]
    for number, sent in enumerate(given):
        assert [ident for ident in arrived if ident.startswith(f"{number}-")] == sent
    assert len(arrived) == 8 * MAIL


def _send_on_a_full_disk(path: Path, number: int) -> list[str]:
    """Send while every third write is short, and the retry after every other short write fails."""
    calls = 0
    full = False
    write = os.write

    def stingy(fd: int, data: bytes) -> int:
        nonlocal calls, full
        if full:
            full = False
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        calls += 1
        full = calls % 6 == 0
        return write(fd, data[: len(data) - 1 - calls % 40] if calls % 3 == 0 and len(data) > 40 else data)

    team = TeamDirectory(path)
    sent: list[str] = []
    for turn in range(MAIL // 2):
        ident = f"{number}-{turn}"
        if number % 2:
            append(team.inbox("scout"), line(ident, "x" * (turn % 500)) + b"\n")
        else:
            try:
                with mock.patch.object(os, "write", stingy):
                    mailbox.send(team, mailbox.compose("ci", "scout", "message", "y" * (turn % 500), ident=ident))
            except CrewboardError:
                continue
        sent.append(ident)
    return sent


@pytest.mark.long
@pytest.mark.files_only("the disk is full")
def test_a_full_disk_loses_no_message_that_was_acknowledged(
    directory: TeamDirectory,
) -> None:
    given = together(_send_on_a_full_disk, directory.path)
    arrived = [message.id for message in mailbox.read(directory, "scout").messages]
    acknowledged = [ident for sent in given for ident in sent]
    assert len(acknowledged) < 8 * (MAIL // 2), "some were refused"
    assert sorted(arrived) == sorted(acknowledged)


def _seal(path: Path, number: int) -> int:
    for turn in range(EACH):
        files.append_line(path / "log", path / "lock", f"{number}-{turn}\n".encode(), durable=turn % 5 == 0)
    return EACH


@pytest.mark.long
def test_lines_of_one_log_never_mix(tmp_path: Path) -> None:
    together(_seal, tmp_path)
    lines = (tmp_path / "log").read_text().splitlines()
    assert sorted(lines) == sorted(f"{number}-{turn}" for number in range(8) for turn in range(EACH))
