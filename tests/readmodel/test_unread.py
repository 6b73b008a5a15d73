"""The mail that readers keep: little of what is unread, with the counts of all of it, and the newest messages."""

import random
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from crewboard.commands.context import Team
from crewboard.readmodel import mail
from crewboard.readmodel.mail import MOST, MailReader, Unread, is_notice, request_announced
from crewboard.records.messages import Message
from crewboard.records.team import result_mark
from crewboard.store import mailbox
from crewboard.store.codec import encode
from crewboard.store.layout import TeamDirectory

BOX = "lead"

KINDS = ("message", "result", "result", "idle_notification", "plan_approval_request")


@pytest.fixture
def team(tmp_path: Path) -> TeamDirectory:
    return Team(TeamDirectory(tmp_path / ".crewboard" / "default")).ensure().directory


def send(team: TeamDirectory, kind: str, author: str, number: int) -> tuple[Message, int]:
    """Send a message; return it, and its end in the mailbox."""
    metadata = {"request_id": f"r-{number}"} if kind.endswith("_request") else {"result": f"results/{number}.md"}
    message = mailbox.compose(author, BOX, kind, f"text {number}", ts=float(number), metadata=metadata)
    mailbox.send(team, message)
    return message, mailbox.size(team, BOX)


@pytest.mark.long
def test_an_unread_result_takes_less_than_fifty_bytes(team: TeamDirectory) -> None:
    unread, sizes = Unread(team, BOX, 0), []
    tracemalloc.start()
    try:
        for number in range(6000):
            send(team, "result", f"agent-{number % 20}", number)
            if number % 1000 == 999:
                assert unread.count(0) == number + 1
                sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    # From the third thousand on, ids of earlier messages are no longer kept.
    assert (sizes[-1] - sizes[2]) / 3000 < 50
    found = list(unread.results({}))
    assert [each.count for each in found] == [300] * 20
    assert found[3].text == "text 5983"


@pytest.mark.parametrize("seed", range(20))
def test_counts_are_those_of_all_unread_mail(team: TeamDirectory, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr(mail, "IDS", 7)
    unread = Unread(team, BOX, 0)
    sent: list[tuple[Message, int]] = []
    read = 0
    answered = {f"r-{number}" for number in range(0, 200, 3)}
    seen: dict[str, float] = {}
    for number in range(200):
        sent.append(send(team, chance.choice(KINDS), chance.choice("abc"), number))
        if chance.random() < 0.1:
            read = max(read, chance.choice(sent[-20:])[1])
        if chance.random() < 0.1:
            author = chance.choice("abc")
            seen[result_mark(BOX, author)] = chance.choice(sent[-20:])[1]
        if chance.random() < 0.5:
            continue
        left = [(message, end) for message, end in sent if end > read]
        shown = [
            message for message, _ in left if not is_notice(message) and request_announced(message) not in answered
        ]
        assert unread.count(read) == len(left)
        assert unread.count_for_operator(read, answered) == len(shown)
        expected = dict[str, tuple[int, float, int, str]]()
        for message, end in left:
            author = message.from_
            if message.type == "result" and end > seen.get(result_mark(BOX, author), 0):
                count, *_ = expected.get(author, (0,))
                expected[author] = count + 1, message.ts, end, message.content
        found = {each.author: (each.count, each.newest, each.end, each.text) for each in unread.results(seen)}
        assert found == expected


def test_a_mailbox_that_shrinks_while_it_is_read_is_read_anew(
    team: TeamDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    unread, letters = Unread(team, BOX, 0), MailReader(team, BOX)
    for number in range(3):
        send(team, "message", "api", number)
    assert (unread.count(0), len(letters.read())) == (3, 3)
    send(team, "message", "api", 3)
    path, read = team.path / "inbox" / f"{BOX}.jsonl", mailbox.read

    def shrink_and_read(*args: Any, **kwargs: Any) -> mailbox.Batch:
        path.write_bytes(path.read_bytes().splitlines(keepends=True)[-1])
        return read(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(mailbox, "read", shrink_and_read)
        unread.count(0)
        letters.read()
    assert unread.count(0) == 1
    assert [each.message.content for each in letters.read()] == ["text 3"]


def fill(team: TeamDirectory, count: int) -> None:
    messages = (mailbox.compose("api", BOX, "message", f"text {number}", ts=1.0) for number in range(count))
    team.inbox(BOX).store.append(team.inbox(BOX).name, b"".join(map(encode, messages)))


def test_the_newest_messages_of_a_mailbox_are_kept(team: TeamDirectory) -> None:
    reader = MailReader(team, BOX)
    assert reader.read() == ()
    for _ in range(10):
        fill(team, 1000)
        assert len(reader.read()) <= MOST
    assert reader.has_older
    assert reader.read()[-1].message.content == "text 999"
    assert reader.read() is reader.read()
    first = reader.read()[-1]
    fill(team, 1)
    assert reader.read()[-2] is first


def test_unreadable_lines_go_with_the_messages_before_them(team: TeamDirectory) -> None:
    reader = MailReader(team, BOX)
    for number in (1, 2):
        team.inbox(BOX).store.append(team.inbox(BOX).name, b"{\n")
        fill(team, 1)
        assert len(reader.read()) == number
    assert len(reader.damaged_ends) == 2
    fill(team, MOST)
    team.inbox(BOX).store.append(team.inbox(BOX).name, b"{\n")
    assert len(reader.read()) < MOST
    assert reader.damaged_ends == [reader.offset]


@pytest.mark.long
def test_a_mailbox_of_30000_can_be_read_to_its_oldest(team: TeamDirectory) -> None:
    fill(team, 30_000)
    reader, most = MailReader(team, BOX), MOST
    found = [len(reader.read(most))]
    while reader.has_older:
        most *= 2
        found.append(len(reader.read(most)))
        assert found[-2] < found[-1] <= most
    assert len(found) <= 6
    assert [each.message.content for each in reader.read(most)] == [f"text {number}" for number in range(30_000)]
    assert len(reader.read()) <= MOST


def test_long_messages_are_kept_by_their_bytes(team: TeamDirectory) -> None:
    reader = MailReader(team, BOX)
    reader.read()
    for number in range(30):
        mailbox.send(team, mailbox.compose("api", BOX, "message", f"{number} " + 200_000 * "x"))
        assert sum(len(each.message.content) for each in reader.read()) <= MOST * 1024 + mailbox.MAX_MESSAGE
    assert reader.read()[-1].message.content.startswith("29 ")
    assert reader.has_older
