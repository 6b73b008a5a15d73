"""Large logs: opening and following them does not become slower as they grow."""

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import pytest

from crewboard.readmodel.activity import ActivityReader
from crewboard.readmodel.changes import ChangeReader
from crewboard.readmodel.mail import MailReader
from crewboard.readmodel.reader import TeamReader
from crewboard.records.agents import Spec
from crewboard.records.events import Retry
from crewboard.records.team import Member
from crewboard.store import agents, codec, files, journal, mailbox, roster
from crewboard.store.journal import Follower
from crewboard.store.json_records import RecordKey
from crewboard.store.layout import TeamDirectory
from tests.store.raw_mail import line

HUNDRED_MB = 100 * 1000 * 1000
BLOCK = 2000
"""Lines written at once. Their ids repeat from block to block, which a reader of the tail never notices."""


def fill(path: Path, one: Callable[[int], bytes], size: int) -> None:
    block = b"".join(one(number) + b"\n" for number in range(BLOCK))
    with path.open("wb") as file:
        for _ in range(size // len(block) + 1):
            file.write(block)


def mail(number: int) -> bytes:
    return line(f"m{number}", "x" * 400, to="operator")


def event(number: int) -> bytes:
    return codec.encode(Retry(ts=number, run=1, error="x" * 400, attempt=1, until=2)).rstrip()


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TeamDirectory]:
    """Make a team with 100 MB of unread mail and a journal of 100 MB."""
    root = tmp_path_factory.mktemp("large")
    team = TeamDirectory(root / ".crewboard" / "default")
    team.make()
    roster.create(team, "", 1.0)
    roster.put(team, Member(name="scout", type="code"))
    agents.change_spec(team.agent("scout"), lambda _: Spec(prompt="x", prompt_id="p", type="code"))
    fill(team.inbox("operator").on_disk, mail, HUNDRED_MB)
    fill(team.agent("scout").journal.on_disk, event, HUNDRED_MB)
    yield team
    shutil.rmtree(root)


OPENINGS: dict[str, Callable[[TeamDirectory], object]] = {
    "what an agent did": lambda team: ActivityReader(team.agent("scout")).read(),
    "a mailbox": lambda team: MailReader(team, "operator").read(),
    "the team": lambda team: TeamReader(team).read(),
    "changes": lambda team: ChangeReader(team).read(),
    "an answer to wait for": lambda team: Follower(team.agent("scout"), "x", 1).read(),
}


@pytest.mark.parametrize("what", OPENINGS)
def test_opening_reads_only_the_end_of_a_log(what: str, large: TeamDirectory) -> None:
    # Processor time of this process alone, so that other load on the machine does not count.
    began = time.process_time()
    with mock.patch.object(codec, "_decode_any", side_effect=codec._decode_any) as parsed:
        OPENINGS[what](large)
    assert parsed.call_count < 4000, "of 200,000 lines"
    assert time.process_time() - began < 3


@pytest.mark.long
def test_unread_mail_of_a_hundred_megabytes_is_counted(large: TeamDirectory) -> None:
    lines = large.inbox("operator").on_disk.read_bytes().count(b"\n")
    assert TeamReader(large).read().unread["operator"] == pytest.approx(lines, abs=2 * BLOCK)


def test_following_reads_only_new_lines(large: TeamDirectory) -> None:
    reader = MailReader(large, "operator")
    activity = ActivityReader(large.agent("scout"))
    team = TeamReader(large)
    for one in (reader, activity, team):
        one.read()
    mailbox.send(large, mailbox.compose("scout", "operator", "message", "news"))
    journal.append(large.agent("scout").journal, Retry(ts=1, error="news", attempt=1, until=2))
    with mock.patch.object(codec, "_decode_any", side_effect=codec._decode_any) as parsed:
        assert reader.read()[-1].message.content == "news"
        assert "news" in activity.read()[-1].text
        team.read()
    assert parsed.call_count < 12


def test_sending_to_a_large_mailbox_reads_nothing_of_it(large: TeamDirectory) -> None:
    with mock.patch.object(files, "read_lines") as read, mock.patch.object(RecordKey, "load") as load:
        mailbox.send(large, mailbox.compose("scout", "operator", "message", "news"))
    assert not read.called
    assert not load.called
