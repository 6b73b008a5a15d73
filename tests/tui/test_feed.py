"""The cost of the feed: memory by what it shows, and work by what is new."""

import gc
import sys
import time
import tracemalloc
from collections.abc import Callable
from itertools import count
from pathlib import Path
from types import FrameType

import pytest

from crewboard import TeamReader, TeamView
from crewboard.readmodel.activity import MOST_TEXT
from crewboard.readmodel.mail import TAIL
from crewboard.records.events import ToolResult, ToolStart
from crewboard.store import journal
from crewboard_tui.queries import Feed, FeedReader, OutsideMailReader, Readers
from crewboard_tui.render.lines import plain
from crewboard_tui.views.activity import FeedRows
from tests.frozen import NOW, Frozen, make_empty

AGENTS = 20

_SECONDS = count()


@pytest.fixture
def busy(tmp_path: Path) -> Frozen:
    team = make_empty(tmp_path)
    for number in range(AGENTS):
        team.hire(f"a-{number}", "explore", "idle", "", ago=5, pid=7)
    return team


def view_of(team: Frozen) -> TeamView:
    return TeamReader(team.directory, clock=lambda: NOW, probe=team.probe).read()


def print_text(team: Frozen, agent: str, times: int, characters: int) -> None:
    for number in range(times):
        text = f"{number} " + "\n".join(characters // 80 * ["x" * 79])
        event = ToolResult(ts=NOW + next(_SECONDS), run=1, tool_use_id=f"t{number}", name="bash", content=text)
        journal.append(team.directory.agent(agent).journal, event)


@pytest.mark.long
def test_the_feed_of_long_outputs_takes_few_megabytes(busy: Frozen) -> None:
    view, readers, rows = view_of(busy), Readers(busy.directory, busy.probe), FeedRows()
    Feed(400).read(readers, view)
    tracemalloc.start()
    try:
        for _ in range(8):
            for name in view.names:
                print_text(busy, name, 20, 8000)
            lines, _ = Feed(400).read(readers, view)
            rows.read(lines, NOW, 170)
        used = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert used <= 20 * 1024 * 1024
    kept = readers.activity("a-0").read()
    assert sum(each.characters for each in kept) <= MOST_TEXT
    assert kept[-1].detail.startswith("19 ")


def test_a_call_has_one_row_and_what_is_the_same_is_left_out(busy: Frozen) -> None:
    begin = NOW - NOW % 60
    log = busy.directory.agent("a-0").journal
    for number, seconds in enumerate((1, 62)):
        call = f"t{number}"
        journal.append(
            log, ToolStart(ts=begin + seconds, run=1, tool_use_id=call, name="bash", input={"command": "ls"})
        )
        if not number:
            journal.append(log, ToolResult(ts=begin + 2, run=1, tool_use_id=call, name="bash", content="made\n"))
    rows = FeedRows().read(Feed(400).read(Readers(busy.directory, busy.probe), view_of(busy))[0], NOW, 80)
    one, two = [text.rstrip() for row in rows if " bash ls" in (text := plain(row.line))]
    assert one.split()[1:] == ["a-0", "tool", "bash", "ls", "→", "made", "0.0s"], "with the outcome"
    assert two.split()[1:] == ["tool", "bash", "ls"], "the name is that of the row before"
    assert two.split()[0] == time.strftime("%H:%M:02", time.localtime(begin + 60)), "another minute"


def calls_of(work: Callable[[], object]) -> int:
    """Return how many functions are called, and resumed: a measure of work without a clock."""
    calls = 0

    def note(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    # A collection would also call what the dashboards of other tests left to be called.
    gc.disable()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
        gc.enable()
    return calls


@pytest.mark.long
def test_a_new_line_costs_little_more_in_a_feed_of_ten_thousand(busy: Frozen) -> None:
    view, costs = view_of(busy), list[int]()
    readers = Readers(busy.directory, busy.probe)
    for more in (20, 480):
        for name in view.names:
            print_text(busy, name, more, 10)
        readers = Readers(busy.directory, busy.probe)
        before, _ = Feed(400).read(readers, view)
        print_text(busy, "a-7", 1, 80)
        costs.append(calls_of(lambda readers=readers: Feed(400).read(readers, view)))  # type: ignore[misc]
        lines, _ = Feed(400).read(readers, view)
        assert lines != before
        assert [each.what.ts for each in lines] == sorted(each.what.ts for each in lines)
    lines, older = Feed(400).read(readers, view)
    assert (len(lines), older) == (400, AGENTS * 500 - 400)
    assert costs[1] <= 3 * costs[0]


@pytest.mark.long
def test_the_feed_keeps_the_lines_that_it_loads_and_no_others(busy: Frozen) -> None:
    view, readers = view_of(busy), Readers(busy.directory, busy.probe)
    for name in view.names:
        print_text(busy, name, 480, 1000)
        for number in range(100):
            busy.mail(number, "operator", name, "message", 1000 * "x", 9)
    # What is loaded and cached once for all teams does not count.
    Feed(400).read(Readers(busy.directory, busy.probe), view)
    tracemalloc.start()
    try:
        lines, older = Feed(400).read(readers, view)
        most = tracemalloc.get_traced_memory()[1]
        for _ in range(3):
            for name in view.names:
                print_text(busy, name, 20, 1000)
            lines, older = Feed(400).read(readers, view)
        gc.collect()
        used = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    texts = sum(each.what.characters for each in lines)
    assert used <= 2 * texts, f"{used} bytes for {texts} characters"
    assert most <= 10 * texts, f"nor before it knows which those are: {most}"
    more, left = Feed(800).read(readers, view)
    assert (len(more), more[400:]) == (800, lines)
    assert 0 < left <= older - 400, "a reading that begins finds fewer lines than were read one by one"


def test_mail_of_an_agent_that_was_removed_comes_to_the_feed(busy: Frozen) -> None:
    reader = OutsideMailReader(busy.directory, "a-1")
    busy.mail(1, "a-2", "a-1", "message", "from an agent", 9)
    busy.mail(2, "ci", "a-1", "message", "from elsewhere", 9)
    assert [line.agent for line in reader.read(["a-1", "a-2"])] == ["ci"]
    assert [line.agent for line in reader.read(["a-1"])] == ["a-2", "ci"]
    assert [line.agent for line in reader.read(["a-1", "ci"])] == ["a-2"]


def test_an_unchanged_feed_is_the_same_answer(busy: Frozen) -> None:
    view, readers = view_of(busy), Readers(busy.directory, busy.probe)
    print_text(busy, "a-1", 3, 10)
    busy.mail(1, "ci", "a-2", "message", "the build is red", 9)
    found = Feed(400).read(readers, view)
    assert Feed(400).read(readers, view) is found
    assert len(found[0]) == AGENTS + 4
    print_text(busy, "a-1", 1, 10)
    after = Feed(400).read(readers, view)
    assert {id(line) for line in found[0]} < {id(line) for line in after[0]}


def test_long_mail_from_outside_is_kept_by_its_characters(busy: Frozen) -> None:
    reader = OutsideMailReader(busy.directory, "a-1")
    for number in range(20):
        busy.mail(number, "ci", "a-1", "message", f"{number} " + 100_000 * "x", 9)
        assert sum(len(line.what.text) for line in reader.read(["a-1"])) <= TAIL + 1000
    assert "19 xxx" in reader.read(["a-1"])[-1].what.text
    busy.hire("ci", "explore", "idle", "", ago=5, pid=7)
    assert reader.read(["a-1", "ci"]) == ()


def test_who_joins_a_busy_team_drives_no_lines_out_of_the_feed(busy: Frozen) -> None:
    reader = FeedReader(busy.directory, 400)
    reader.read(["a-1", "a-2"])
    busy.directory.agent("late").path.mkdir()
    for name in ("a-1", "a-2", "late"):
        print_text(busy, name, 5 if name == "late" else 450, 10)
    lines, older = reader.read(["a-1", "a-2", "late"])
    assert (len(lines), lines, older) == (400, *FeedReader(busy.directory, 400).read(["a-1", "a-2", "late"]))


def test_lines_that_were_dropped_come_back_when_an_agent_leaves(busy: Frozen) -> None:
    reader = FeedReader(busy.directory, 400)
    for name in ("a-1", "a-2"):
        print_text(busy, name, 350, 10)
        reader.read(["a-1", "a-2"])
    assert reader.read(["a-1"]) == FeedReader(busy.directory, 400).read(["a-1"])
