"""Very much mail: read in time that grows with it, and entered in parts that fit into a turn."""

import asyncio
import time
from pathlib import Path
from unittest import mock

import pytest

from crewboard.errors import StorageError
from crewboard.records.events import Intake
from crewboard.records.messages import Message
from crewboard.store import codec, journal, mailbox, roster
from crewboard.store.layout import TeamDirectory
from crewboard.worker import inbox
from crewboard.worker.interrupts import Interrupts
from crewboard.worker.run_state import RunState
from tests.crash.scenarios import conversation, hire, worker
from tests.store.raw_mail import append


def letters(count: int, kind: str, start: int = 0) -> list[Message]:
    return [mailbox.compose("bob", "scout", kind, "free for work", ident=f"m{start + at}", ts=1) for at in range(count)]


def agent_with(team: TeamDirectory, *mail: Message) -> RunState:
    hire(team, "scout")
    append(team.inbox("scout"), b"".join(map(codec.encode, mail)))
    return worker(team, "scout")


LAST = mailbox.compose("operator", "scout", "message", "the last one", ident="last", ts=2)


def catch_up(run_state: RunState) -> float:
    """Read mail until work starts; return the seconds of processor time that it took."""
    began = time.process_time()
    while (arrived := inbox.look(run_state)).first is None:
        inbox.pick_up(run_state, arrived)
    inbox.pick_up(run_state, arrived)
    return time.process_time() - began


@pytest.mark.long
def test_the_time_to_catch_up_grows_with_the_mailbox_alone(tmp_path: Path) -> None:
    seconds = []
    for count in (2000, 16_000):
        (tmp_path / str(count)).mkdir()
        team = TeamDirectory(tmp_path / str(count) / ".crewboard" / "default")
        team.make()
        roster.create(team, "", 1.0)
        run_state = agent_with(team, *letters(count, "idle_notification"), LAST)
        seconds.append(catch_up(run_state))
        assert "last" in conversation(run_state)
    assert seconds[1] < 24 * seconds[0], "eight times the mail"


def test_a_look_ends_in_time_and_says_that_more_is_left(directory: TeamDirectory) -> None:
    run_state = agent_with(directory, *letters(3000, "idle_notification"), LAST)
    with mock.patch.object(inbox, "LOOK_SECONDS", 0):
        arrived = inbox.look(run_state)
    assert arrived.first is None
    assert arrived.batch.more
    assert 0 < len(arrived.batch.entries) < 3000


def test_thousands_of_notices_enter_in_parts_once_and_in_order(directory: TeamDirectory) -> None:
    run_state = agent_with(directory, *letters(4000, "idle_notification"), LAST)
    catch_up(run_state)
    entered = conversation(run_state)
    assert "last" in entered
    text = "".join(block["text"] for turn in run_state.conversation.messages() for block in turn["content"])
    assert len(text) < 2 * inbox.MIN_WINDOW * inbox.MAIL_SHARE * inbox.BYTES_PER_TOKEN
    turns = 0
    while run_state.conversation.deferred:
        assert inbox.take_in(run_state) > 0
        turns += 1
    assert turns > 5
    notices = [ident for ident in conversation(run_state) if ident != "last"]
    assert notices == [f"m{at}" for at in range(4000)]
    assert conversation(worker(directory, "scout")) == conversation(run_state), "after a restart too"


def test_a_search_for_interrupts_parses_no_other_mail_and_nothing_twice(directory: TeamDirectory) -> None:
    run_state = agent_with(directory, *letters(500, "message"))
    interrupts = asyncio.run(_watch(run_state))
    assert interrupts.pending_interrupts() == []
    stop = mailbox.compose("operator", "scout", "interrupt", "stop", ident="stop")
    mailbox.send(directory, stop)
    mailbox.send(directory, mailbox.compose("bob", "scout", "interrupt", "no right to", ident="bob"))
    with mock.patch.object(codec, "decode", wraps=codec.decode) as decode:
        assert [message.id for message in interrupts.pending_interrupts()] == ["stop"]
        assert [message.id for message in interrupts.pending_interrupts()] == ["stop"]
    # Two messages, and the roster for who leads, because one is of a teammate.
    assert decode.call_count == 3
    inbox.pick_up(run_state, inbox.look(run_state))
    while run_state.conversation.cursor != mailbox.size(directory, "scout"):
        inbox.take_in(run_state)
    assert interrupts.pending_interrupts() == []


@pytest.mark.files_only("puts a link in the place of a file")
def test_a_mailbox_that_cannot_be_read_for_a_moment_cancels_no_reply(directory: TeamDirectory) -> None:
    run_state = agent_with(directory, LAST)
    mailbox_file = directory.inbox("scout")

    async def reply() -> str:
        await asyncio.sleep(0.05)
        return "paid"

    async def run() -> str:
        interrupts = await _watch(run_state)
        mailbox_file.on_disk.rename(mailbox_file.on_disk.with_suffix(".aside"))
        mailbox_file.on_disk.symlink_to(mailbox_file.name)
        with pytest.raises(StorageError):
            interrupts.pending_interrupts()
        return await interrupts.run_interruptibly(reply())

    assert asyncio.run(run()) == "paid"


async def _watch(run_state: RunState) -> Interrupts:
    return Interrupts(run_state)


def test_mail_that_a_tool_has_returned_does_not_enter_again(directory: TeamDirectory) -> None:
    read, new = letters(2, "message")
    run_state = agent_with(directory, read, new)
    run_state.conversation.consumed.add(read.id)
    assert inbox.take_in(run_state) == 1
    (taken,) = [event for event, _ in journal.read(directory.agent("scout").journal) if isinstance(event, Intake)]
    assert ([each.id for each in taken.messages], taken.entered) == ([read.id, new.id], [new.id])
