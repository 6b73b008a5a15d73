"""The journal: one writer, and damaged lines do not stop a reader."""

from pathlib import Path

import pytest

from crewboard.errors import BadDataError
from crewboard.records import Event, Intake, Reply, Retry, RunStarted, Tokens
from crewboard.store import files, journal


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.jsonl"


def started(run: int) -> RunStarted:
    return RunStarted(ts=1, run=run, pid=1, type="code", model="m", fresh=True, prompt_id="p")


def test_events_come_back_in_order_with_where_each_ends(path: Path) -> None:
    events: list[Event] = [started(1), Intake(ts=2, cursor=3), Retry(ts=4, error="busy", attempt=1, until=5)]
    for event in events:
        journal.append(path, event)
    read = list(journal.read(path))
    assert [event for event, _ in read] == events
    assert [event for event, _ in journal.read(path, read[0][1])] == events[1:]
    assert read[-1][1] == path.stat().st_size


def test_a_damaged_line_is_none_and_reading_continues(path: Path) -> None:
    journal.append(path, started(1))
    with path.open("ab") as file:
        file.write(b'{"kind": "unheard of"}\n\x00\xff\n\n   \n{"kind": "reply"}\n{"kind": "int')
    journal.append(path, started(2))
    kinds = [event.run if event else None for event, _ in journal.read(path)]
    assert kinds == [1, None, None, None, None, 2]


def test_an_event_that_cannot_be_read_again_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_LINE", 1000)
    with pytest.raises(BadDataError, match="longer than the limit"):
        journal.append(path, Retry(ts=1, error="x" * 1000, attempt=1, until=2))
    with pytest.raises(BadDataError, match="cannot be written"):
        journal.append(
            path,
            Reply(ts=1, content=[{"type": "text", "text": float("inf")}], stop_reason="end_turn", usage=Tokens()),
        )
    assert list(journal.read(path)) == []


def test_the_newest_run_is_known(path: Path) -> None:
    assert journal.last_run(path) == 0
    journal.append(path, started(1))
    journal.append(path, started(3))
    assert journal.last_run(path) == 3


def test_the_tail_begins_with_a_whole_event(path: Path) -> None:
    for run in range(1, 100):
        journal.append(path, started(run))
    offset = journal.tail_offset(path, 1000)
    runs = [event.run if event else None for event, _ in journal.read(path, offset)]
    assert runs == list(range(runs[0] or 0, 100))
    assert 1 < len(runs) < 20
    assert list(journal.read(path, journal.tail_offset(path, 0))) == []
