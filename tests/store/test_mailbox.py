"""Mailboxes: each whole line is delivered once and in order; damaged lines are counted and stop nothing."""

import json
import threading
from typing import Any

import pytest

from crewboard.errors import BadDataError, StorageError, UsageError
from crewboard.records.messages import Message
from crewboard.store import files, mailbox
from crewboard.store.layout import TeamDirectory
from tests.store.raw_mail import append, line


def send(team: TeamDirectory, content: str, ident: str | None = None, **metadata: Any) -> Message:
    return mailbox.send(team, mailbox.compose("ci", "scout", "message", content, ident=ident, metadata=metadata))


def contents(team: TeamDirectory, offset: int = 0, **how: Any) -> list[str]:
    return [message.content for message in mailbox.read(team, "scout", offset, **how).messages]


def damage(team: TeamDirectory) -> int:
    return mailbox.read(team, "scout").damaged


# ----------------------------------------------------------------------------------------------------- sending


def test_a_message_is_read_as_it_was_sent(directory: TeamDirectory) -> None:
    sent = [send(directory, f"text {n}\n\u2028🦊", task_id=n) for n in range(5)]
    assert mailbox.read(directory, "scout").messages == sent


def test_a_message_is_one_line_in_the_documented_form(directory: TeamDirectory) -> None:
    sent = mailbox.send(directory, mailbox.compose("ci", "scout", "message", "a\nb", ident="m", ts=2.5))
    ((raw, _),) = directory.inbox("scout").read()
    assert json.loads(raw or b"") == {
        "v": 1, "id": "m", "ts": 2.5, "from": "ci", "to": "scout", "type": "message", "content": "a\nb", "metadata": {},
    }  # fmt: skip
    assert sent.id == "m"


def test_each_message_has_an_id_of_its_own(directory: TeamDirectory) -> None:
    assert len({send(directory, "x").id for _ in range(200)}) == 200
    assert len(mailbox.new_id()) <= 64


def test_the_same_parts_derive_the_same_id() -> None:
    assert mailbox.derived_id("a", 1) == mailbox.derived_id("a", 1) != mailbox.derived_id("a", 2)
    assert mailbox.derived_id("ab", "c") != mailbox.derived_id("a", "bc")
    assert len(mailbox.derived_id("a")) <= 64


def test_metadata_that_is_none_is_left_out() -> None:
    message = mailbox.compose("ci", "scout", "message", "x", metadata={"task_id": None, "approve": False})
    assert message.metadata == {"approve": False}


def test_lone_surrogates_of_a_broken_argument_become_marks(directory: TeamDirectory) -> None:
    assert send(directory, "caf\udce9").content == "caf?"
    assert contents(directory) == ["caf?"]


@pytest.mark.parametrize(
    ("author", "to", "kind"), [("../x", "scout", "message"), ("ci", "a/b", "message"), ("ci", "scout", "")]
)
def test_a_name_that_breaks_the_rule_reaches_no_file(directory: TeamDirectory, author: str, to: str, kind: str) -> None:
    with pytest.raises(BadDataError):
        mailbox.send(directory, mailbox.compose(author, to, kind, "x"))
    assert not list(directory.inboxes.iterdir())


def test_a_body_over_the_limit_is_stored_apart_and_linked(directory: TeamDirectory) -> None:
    body = "é" * mailbox.MAX_MESSAGE
    sent = send(directory, body, task_id=4)
    (read,) = mailbox.read(directory, "scout").messages
    assert read == sent
    assert directory.inbox("scout").size() <= mailbox.MAX_MESSAGE
    assert read.metadata["task_id"] == 4
    assert (directory.path / str(read.metadata["body"])).read_text() == body
    assert f".crewboard/default/{read.metadata['body']}" in read.content


def test_sending_a_large_body_again_writes_no_second_file(directory: TeamDirectory) -> None:
    for _ in range(2):
        send(directory, "x" * mailbox.MAX_MESSAGE, ident="same")
    assert len(list(directory.results.iterdir())) == 1
    assert len(contents(directory)) == 1


def test_the_longest_message_that_fits_stays_in_the_mailbox(directory: TeamDirectory) -> None:
    room = mailbox.MAX_MESSAGE - len(directory.inbox("scout").name) - 200
    send(directory, "x" * room)
    assert contents(directory) == ["x" * room]
    assert not list(directory.results.iterdir())


def test_metadata_over_the_limit_is_refused(directory: TeamDirectory) -> None:
    with pytest.raises(UsageError, match="metadata of the message to scout is larger"):
        send(directory, "x", note="y" * mailbox.MAX_MESSAGE)
    assert contents(directory) == []


def test_sending_to_a_team_that_is_gone_is_an_error(directory: TeamDirectory) -> None:
    directory.store.move("inbox", "elsewhere")
    with pytest.raises(StorageError, match="cannot write"):
        send(directory, "x")


# ----------------------------------------------------------------------------------------------------- reading


def test_an_empty_or_missing_mailbox_is_empty(directory: TeamDirectory) -> None:
    assert mailbox.read(directory, "scout") == mailbox.Batch(0)
    assert mailbox.size(directory, "scout") == 0


def test_reading_continues_at_the_offset(directory: TeamDirectory) -> None:
    send(directory, "one")
    first = mailbox.read(directory, "scout")
    send(directory, "two")
    assert first.offset == first.entries[-1][1]
    assert contents(directory, first.offset) == ["two"]
    assert mailbox.read(directory, "scout", mailbox.size(directory, "scout")).entries == []


def test_reading_removes_nothing(directory: TeamDirectory) -> None:
    send(directory, "one")
    before = list(directory.inbox("scout").read())
    contents(directory)
    assert list(directory.inbox("scout").read()) == before


def test_a_line_whose_id_was_delivered_is_dropped(directory: TeamDirectory) -> None:
    send(directory, "one", ident="m1")
    send(directory, "again", ident="m1")
    send(directory, "two", ident="m2")
    assert contents(directory) == ["one", "two"]
    assert contents(directory, known={"m1"}) == ["two"]


def test_lines_of_other_programs_are_messages(directory: TeamDirectory) -> None:
    append(directory.inbox("scout"), line("a", "plain") + b"\n" + line("b", "tabs\t", colour="red") + b"\n")
    send(directory, "ours")
    append(directory.inbox("scout"), line("c", "last") + b"\n")
    assert contents(directory) == ["plain", "tabs\t", "ours", "last"]


SHORT: dict[str, tuple[dict[str, Any], float]] = {
    "epoch seconds": ({"timestamp": 1764225000.5}, 1764225000.5),
    "ts and empty metadata": ({"ts": 1764225001, "metadata": {}}, 1764225001),
    "ISO 8601, and a recipient": ({"timestamp": "2026-11-27T06:00:00Z", "to": "somewhere"}, 1795759200),
    "ISO 8601 in the far future": ({"ts": "9999-12-30T06:00:00Z"}, 253402149600),
    "milliseconds, and unknown fields": ({"timestamp": 1764225001123, "summary": "what it says"}, 1764225001.123),
    "a number as text, and an empty time": ({"ts": None, "timestamp": "1764225001.25"}, 1764225001.25),
}


@pytest.mark.parametrize("form", SHORT)
def test_short_forms_of_other_programs_are_delivered_once(directory: TeamDirectory, form: str) -> None:
    fields, ts = SHORT[form]
    said = json.dumps({"type": "message", "from": "alice", "content": "hello", **fields}).encode() + b"\n"
    append(directory.inbox("scout"), said + said)
    one, two = mailbox.read(directory, "scout").messages
    assert (one.from_, one.to, one.type, one.content, one.ts) == ("alice", "scout", "message", "hello", ts)
    assert one.metadata == {"other_program": True}
    assert (one.id, two.id) == tuple(message.id for message in mailbox.read(directory, "scout").messages)
    assert one.id != two.id
    assert damage(directory) == 0


@pytest.mark.parametrize("time", [None, "yesterday", -5, 1e300, "nan", "inf", "-1"])
def test_a_short_form_without_a_time_has_the_time_of_intake(directory: TeamDirectory, time: float | str | None) -> None:
    said = {"type": "message", "from": "a", "content": "x", "timestamp": time}
    append(directory.inbox("scout"), json.dumps(said).encode() + b"\n")
    (message,) = mailbox.read(directory, "scout", now=7.0).messages
    assert message.ts == 7.0


UNTIMED = b'{"type": "message", "from": "a", "content": "x"}\n'


def test_an_untimed_message_has_one_time_for_all_readers(directory: TeamDirectory) -> None:
    inbox = directory.inbox("scout")
    append(inbox, UNTIMED + line("one", ts=5.0) + b"\n" + UNTIMED * 2 + line("two", ts=9.0) + b"\n" + UNTIMED)
    entries = mailbox.read(directory, "scout").entries
    assert [message.ts for message, _ in entries] == [5, 5, 5, 5, 9, 9], "as before it, else as behind it"
    for place, (_, end) in enumerate(entries):
        assert mailbox.read(directory, "scout", end).entries == entries[place + 1 :]
    append(inbox, UNTIMED * (2 * mailbox._NEAR // len(UNTIMED)))
    assert {message.ts for message in mailbox.read(directory, "scout", inbox.size() - len(UNTIMED)).messages} == {9.0}


def test_an_untimed_message_alone_has_the_time_of_its_mailbox(directory: TeamDirectory) -> None:
    append(directory.inbox("scout"), UNTIMED * 2)
    changed = directory.inbox("scout").changed_at()
    assert [message.ts for message in mailbox.read(directory, "scout").messages] == [changed, changed]


@pytest.mark.files_only("half a line is only in a file")
def test_a_short_form_behind_half_a_line_is_delivered(directory: TeamDirectory) -> None:
    append(directory.inbox("scout"), line("torn")[:40] + b'{"type": "message", "from": "a", "content": "short"}\n')
    assert contents(directory) == ["short"]
    assert damage(directory) == 1


@pytest.mark.parametrize("blank", [b"", b" ", b"\t", b"\r"])
def test_empty_lines_are_ignored(directory: TeamDirectory, blank: bytes) -> None:
    append(directory.inbox("scout"), blank + b"\n" + line("a") + b"\r\n" + blank + b"\n")
    assert contents(directory) == ["hello"]
    assert damage(directory) == 0


DAMAGED = {
    "binary": bytes(range(256)).replace(b"\n", b""),
    "deep": b'{"a":' * 5000 + b"1" + b"}" * 5000,
    "deep list": line("d", metadata={"a": 1}).replace(b'{"a": 1}', b'{"a":' + b"[" * 300 + b"]" * 300 + b"}"),
    "huge": b'"' + b"x" * mailbox.MAX_MESSAGE + b'"',
    "torn": line("t")[:40],
    "not a number": line("n", metadata={"x": 1}).replace(b": 1}", b": NaN}"),
    "infinite": line("n", metadata={"x": 1}).replace(b": 1}", b": 1e999}"),
    "raw surrogate": line("s", "XX").replace(b"XX", b"\xed\xa0\x80"),
    "latin-1": line("s", "XX").replace(b"XX", b"caf\xe9"),
    "utf-16": line("s").decode().encode("utf-16-be"),
    "html": b"<html><body>502 Bad Gateway</body></html>",
    "a list": b"[1, 2]",
    "null": b"null",
    "no author": b'{"ts": 1, "to": "scout", "type": "message", "content": "x"}',
    "short, of another version": b'{"v": 2, "ts": 1, "from": "a", "type": "message", "content": "x"}',
    "other version": line("v", v=2),
    "wrong author": line("w", **{"from": "../../etc/passwd"}),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_a_damaged_line_is_set_aside_and_counted(directory: TeamDirectory, kind: str) -> None:
    send(directory, "before")
    append(directory.inbox("scout"), DAMAGED[kind] + b"\n")
    send(directory, "after")
    assert contents(directory) == ["before", "after"]
    assert damage(directory) == 1


def test_an_escaped_lone_surrogate_is_a_message_with_a_mark(directory: TeamDirectory) -> None:
    append(directory.inbox("scout"), line("s", "a\ud800b") + b"\n")
    assert contents(directory) == ["a?b"]


@pytest.mark.files_only("half a line is only in a file")
def test_a_line_without_newline_is_not_read_yet(directory: TeamDirectory) -> None:
    whole = line("a")
    append(directory.inbox("scout"), whole[:30])
    assert mailbox.read(directory, "scout") == mailbox.Batch(0)
    append(directory.inbox("scout"), whole[30:] + b"\n")
    assert contents(directory) == ["hello"]


@pytest.mark.files_only("half a line is only in a file")
def test_half_a_line_does_not_damage_the_next_message(directory: TeamDirectory) -> None:
    append(directory.inbox("scout"), line("t")[:40])
    send(directory, "ours")
    assert contents(directory) == ["ours"]
    assert damage(directory) == 1


@pytest.mark.files_only("half a line is only in a file")
def test_a_line_without_newline_is_a_message_once_followed(directory: TeamDirectory) -> None:
    append(directory.inbox("scout"), line("a", "no newline"))
    send(directory, "ours")
    assert contents(directory) == ["no newline", "ours"]
    assert damage(directory) == 0


@pytest.mark.files_only("half a line is only in a file")
@pytest.mark.parametrize("cut", [1, 20, 60, 100])
def test_a_foreign_line_behind_half_a_line_is_delivered(directory: TeamDirectory, cut: int) -> None:
    """A sender was killed in the middle of a line, and a program without locks appended directly after it."""
    append(directory.inbox("scout"), line("t", metadata={"a": {"b": 1}})[:cut])
    append(directory.inbox("scout"), line("f", "foreign", metadata={"x": {"y": {}}}) + b"\n")
    assert contents(directory) == ["foreign"]
    assert damage(directory) == 1


@pytest.mark.files_only("half a line is only in a file")
def test_a_foreign_line_behind_two_halves_is_delivered(directory: TeamDirectory) -> None:
    append(directory.inbox("scout"), line("t")[:50] + line("u")[:50] + line("f", "foreign") + b"\n")
    assert contents(directory) == ["foreign"]


def test_text_that_quotes_a_message_is_no_message(directory: TeamDirectory) -> None:
    quoting = line("q", content=line("inner").decode())
    append(directory.inbox("scout"), quoting[:-20] + b"\n")
    assert contents(directory) == []
    assert damage(directory) == 1


def test_a_mailbox_replaced_by_a_shorter_one_is_read_again(directory: TeamDirectory) -> None:
    for number in range(20):
        send(directory, f"old {number}", ident=f"m{number}")
    read = mailbox.read(directory, "scout")
    kept = [(each or b"") + b"\n" for each, _ in directory.inbox("scout").read()][-2:]
    directory.inbox("scout").remove()
    append(directory.inbox("scout"), b"".join(kept) + line("new", "new") + b"\n")
    after = mailbox.read(directory, "scout", read.offset, known={message.id for message in read.messages})
    assert [message.content for message in after.messages] == ["new"]
    assert after.offset == mailbox.size(directory, "scout")


def test_a_limit_ends_a_batch_after_a_line_and_reports_more(directory: TeamDirectory) -> None:
    for number in range(10):
        send(directory, f"{number}")
    half = mailbox.size(directory, "scout") // 2
    first = mailbox.read(directory, "scout", limit=half)
    assert first.more
    assert half <= first.offset < half + 200
    rest = mailbox.read(directory, "scout", first.offset, limit=10_000)
    assert not rest.more
    assert [m.content for m in first.messages + rest.messages] == [str(number) for number in range(10)]


def test_a_batch_fits_into_one_line_of_a_journal(directory: TeamDirectory) -> None:
    """However much escaping lengthens the text: an emoji of four bytes becomes twelve."""
    from crewboard.records.events import Intake
    from crewboard.store import codec

    body = "🦊" * 60_000
    raw = line("x", "BODY").replace(b"BODY", body.encode()) + b"\n"
    for number in range(20):
        append(directory.inbox("scout"), raw.replace(b'"x"', b'"x%d"' % number))
    batch = mailbox.read(directory, "scout", limit=mailbox.MAX_BATCH)
    assert batch.more
    entry = codec.encode(Intake(ts=1, messages=batch.messages, cursor=batch.offset))
    assert len(entry) < files.MAX_LINE


def test_readers_never_see_half_a_message(directory: TeamDirectory) -> None:
    done = threading.Event()

    def write() -> None:
        for number in range(300):
            send(directory, f"{number} " + "x" * (number * 97 % 5000))
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    seen: list[str] = []
    offset = damaged = 0
    while not (done.is_set() and offset == mailbox.size(directory, "scout")):
        batch = mailbox.read(directory, "scout", offset)
        offset, damaged = batch.offset, damaged + batch.damaged
        seen += [message.content.split()[0] for message in batch.messages]
    writer.join()
    assert seen == [str(number) for number in range(300)]
    assert damaged == 0
