"""The journal: one writer, and damaged lines do not stop a reader."""

from pathlib import Path

import pytest

from crewboard.errors import BadDataError
from crewboard.records.agents import Tokens
from crewboard.records.events import Event, Intake, Reply, Retry, RunStarted
from crewboard.store import files, journal
from crewboard.store.interface import Key
from crewboard.store.layout import key_of


@pytest.fixture
def path(tmp_path: Path) -> Key:
    return key_of(tmp_path / "journal.jsonl")


def started(run: int) -> RunStarted:
    return RunStarted(ts=1, run=run, pid=1, type="code", model="m", fresh=True, prompt_id="p")


def test_events_come_back_in_order_with_where_each_ends(path: Key) -> None:
    events: list[Event] = [started(1), Intake(ts=2, cursor=3), Retry(ts=4, error="busy", attempt=1, until=5)]
    for event in events:
        journal.append(path, event)
    read = list(journal.read(path))
    assert [event for event, _ in read] == events
    assert [event for event, _ in journal.read(path, read[0][1])] == events[1:]
    assert read[-1][1] == path.on_disk.stat().st_size


def test_a_damaged_line_is_none_and_reading_continues(path: Key) -> None:
    journal.append(path, started(1))
    with path.on_disk.open("ab") as file:
        file.write(b'{"kind": "unheard of"}\n\x00\xff\n\n   \n{"kind": "reply"}\n{"kind": "int')
    journal.append(path, started(2))
    kinds = [event.run if event else None for event, _ in journal.read(path)]
    assert kinds == [1, None, None, None, None, 2]


DAMAGE = (
    b"",
    b"   \r",
    b"\x00\xff",
    b'{"kind": "unheard of", "ts": 1}',
    b'{"kind": "reply"}',
    b'{"kind": "gate", "ts": 1, "open": true} {"kind": "gate", "ts": 1, "open": true}',
    b'{"kind": "gate", "ts": 1,',
    b'"open": true}',
    b'\xef\xbb\xbf{"kind": "gate", "ts": 1, "open": true}',
    b'{"kind": "tool_result", "ts": 1, "tool_use_id": "t", "name": "n", "content": "half \\ud800"}',
    b'{"kind": "tool_result", "ts": "1", "tool_use_id": "t", "name": "n", "content": "c", "later": {"a": 1}}',
    b'{"kind": "tool_result", "ts": 1, "tool_use_id": "t", "name": "n", "content": "\xff"}',
    b'{"kind": "tool_result", "ts": 1, "tool_use_id": "t", "name": "n", "content": "[[[[' + b"{" * 100 + b'"}',
    b'{"kind": "tool_start", "ts": 1, "tool_use_id": "t", "name": "n", "input": {"a": ' + b"[" * 63 + b"]" * 63 + b"}}",
    b'{"kind": "tool_start", "ts": 1, "tool_use_id": "t", "name": "n", "input": {"a": ' + b"[" * 62 + b"]" * 62 + b"}}",
)


def test_each_damaged_line_is_told_from_a_readable_one(path: Key) -> None:
    for number, damage in enumerate(DAMAGE):
        journal.append(path, started(number))
        with path.on_disk.open("ab") as file:
            file.write(damage + b"\n")
    with path.on_disk.open("ab") as file:
        file.write(b'{"kind": "gate", "ts": 1, "open": tr')
    events = list(journal.history(path))
    assert events == [event for event, _ in journal.read(path)]
    assert events.count(None) == 9


def test_an_event_that_cannot_be_read_again_is_refused(path: Key, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_LINE", 1000)
    with pytest.raises(BadDataError, match="longer than the limit"):
        journal.append(path, Retry(ts=1, error="x" * 1000, attempt=1, until=2))
    with pytest.raises(BadDataError, match="cannot be written"):
        journal.append(
            path,
            Reply(ts=1, content=[{"type": "text", "text": float("inf")}], stop_reason="end_turn", usage=Tokens()),
        )
    assert list(journal.read(path)) == []


def test_the_newest_run_is_known(path: Key) -> None:
    assert journal.last_run(path) == 0
    journal.append(path, started(1))
    journal.append(path, started(3))
    assert journal.last_run(path) == 3


def test_the_tail_begins_with_a_whole_event(path: Key) -> None:
    for run in range(1, 100):
        journal.append(path, started(run))
    offset = path.tail_offset(1000)
    runs = [event.run if event else None for event, _ in journal.read(path, offset)]
    assert runs == list(range(runs[0] or 0, 100))
    assert 1 < len(runs) < 20
    assert list(journal.read(path, path.tail_offset(0))) == []
