"""A dashboard keeps and does no more after hours than at its start: counts and ratios, without a clock."""

import gc
import json
import sys
import time
import tracemalloc
from collections.abc import Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from textual.screen import Screen
from textual.widget import Widget

from crewboard import OPERATOR, TeamReader, TeamView
from crewboard.readmodel.activity import Activity
from crewboard.readmodel.mail import MessageView
from crewboard.readmodel.states import SeenHost
from crewboard.readmodel.team import HostView
from crewboard.records.events import ToolResult
from crewboard.records.processes import Host
from crewboard.records.team import Presence, Task
from crewboard.store import journal
from crewboard_tui import app
from crewboard_tui.background import TeamRead
from crewboard_tui.keys import RestingDriver
from crewboard_tui.poller import TeamPoller
from crewboard_tui.queries import UNUSED, Feed, MailFrom, Query, Readers, Snapshot, TouchedFiles, WorkOf
from crewboard_tui.render import lines
from crewboard_tui.render.formats import format_age, format_span
from crewboard_tui.render.lines import Line
from crewboard_tui.render.sanitize import safe_line
from crewboard_tui.views import activity, agent_tabs, base, message_list
from crewboard_tui.views.agent_tabs import MailRows
from crewboard_tui.views.message_list import MailboxInfo
from crewboard_tui.views.roster import Roster
from crewboard_tui.widgets import bars
from crewboard_tui.widgets.bars import Footer
from crewboard_tui.widgets.collapsible_list import CollapsibleRow
from crewboard_tui.widgets.painter import Painter, TouchedCompositor
from tests.frozen import NOW, Frozen, make_empty
from tests.tui.stage import Stage, opened
from tests.tui.test_feed import calls_of

SNAPSHOTS = 600

_SECONDS = count()


@pytest.fixture
def team(tmp_path: Path) -> Frozen:
    team = make_empty(tmp_path)
    for number in range(4):
        team.hire(f"a-{number}", "explore", "idle", "", ago=5, pid=7)
    return team


def view_of(team: Frozen) -> TeamView:
    return TeamReader(team.directory, clock=lambda: NOW, probe=team.probe).read()


def print_text(team: Frozen, agent: str, times: int) -> None:
    for number in range(times):
        text = f"{number} {8000 * 'x'}"
        event = ToolResult(ts=NOW + next(_SECONDS), run=1, tool_use_id=f"t{number}", name="bash", content=text)
        journal.append(team.directory.agent(agent).journal, event)


@pytest.mark.long
def test_what_no_view_asks_for_is_dropped_after_a_while(team: Frozen) -> None:
    for name in ("a-0", "a-1", "a-2", "a-3"):
        print_text(team, name, 30)
    for number in range(200):
        team.mail(number, "a-1", "a-2", "message", 1000 * "x", 9)
    view, readers = view_of(team), Readers(team.directory, team.probe)
    asked: list[Query[object]] = [Feed(400), MailFrom("a-1"), TouchedFiles(), WorkOf("a-3")]
    tracemalloc.start()
    try:
        readers.note(view)
        for query in asked:
            query.read(readers, view)
        kept = tracemalloc.get_traced_memory()[0]
        for later in (UNUSED - 1, UNUSED + 1):
            readers.note(replace(view, now=view.now + later))
            gc.collect()
            left = tracemalloc.get_traced_memory()[0]
            assert (left < kept / 10) == (later > UNUSED), f"{left} of {kept} bytes after {later} s"
    finally:
        tracemalloc.stop()


@pytest.mark.long
def test_lines_of_activity_are_kept_in_few_bytes() -> None:
    text = 6 * "the order list needs an opaque cursor "
    printed = 500 * "passed\n"
    for what, most in (("what a tool printed", 2), ("what was said", 3)):
        activity._kept_activity.cache_clear()
        lines._wrapped.cache_clear()
        tracemalloc.start()
        try:
            for number in range(2_200):
                if what == "what was said":
                    activity.shown(Activity(NOW, "say", f"{number} {text}"), None, 60, 3)
                else:
                    end = Activity(NOW, "done", f"bash {number} passed", 1.5, detail=f"{number} {printed}")
                    activity.shown(Activity(NOW, "tool", f"bash pytest -k case{number}"), end, 60, 3)
            assert tracemalloc.get_traced_memory()[0] < most * 1024 * 1024, what
        finally:
            tracemalloc.stop()


def test_what_a_view_asks_for_is_kept_however_long_it_rests(team: Frozen) -> None:
    print_text(team, "a-0", 3)
    view, readers = view_of(team), Readers(team.directory, team.probe)
    readers.note(view)
    found = Feed(400).read(readers, view)
    readers.note(replace(view, now=view.now + 3600))
    assert Feed(400).read(readers, view) is found
    readers.note(replace(view, now=view.now - 3600))
    assert Feed(400).read(readers, view) is found


@pytest.mark.long
async def test_a_view_that_was_left_keeps_no_painted_lines(frozen: Frozen, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(frozen, 120, 36) as stage:
        await stage.settles()
        board, before = stage.app.screen, stage.text
        assert _painted(board) > stage.app.size.height
        await stage.press("ctrl+p")
        assert stage.app.screen is not board
        assert _painted(board) > stage.app.size.height, "it is seen behind the palette"
        await stage.press("escape", "3", "1")
        assert _painted(board) > stage.app.size.height, "it was left for a moment"
        monkeypatch.setattr(base, "UNUSED", 0.01)
        await stage.press("3")
        await stage.until(lambda: not _painted(board), "no line of the Board is kept")
        await stage.press("1")
        await stage.until(lambda: stage.text == before, "the Board as it was")


def _painted(screen: Widget) -> int:
    """Return how many painted lines the parts of a screen keep."""
    parts = list(screen.walk_children(Widget))
    painters = [each for part in parts if isinstance(each := getattr(part, "_painter", None), Painter)]
    return sum(len(part._styles_cache._cache) for part in parts) + sum(len(each._known) for each in painters)


def test_below_a_minute_an_age_changes_sixteen_times() -> None:
    ages = [format_age(second) for second in range(61)]
    assert ages[:11] == ["0s", "1s", "2s", "3s", "4s", *5 * ["5s"], "10s"]
    assert ages[-2:] == ["55s", "1m"]
    assert len(set(ages[:60])) == 16
    assert (format_age(3599.9), format_age(-1), format_span(59)) == ("59m", "0s", "59s")


async def test_the_dashboard_waits_for_keys_without_waking_up(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        assert stage.app.driver_class is RestingDriver


def test_the_rows_of_an_agents_mail_are_made_once(team: Frozen) -> None:
    for number in range(500):
        team.mail(number, "a-1", "a-2", "message", f"message {number}", 900 - number)
    view, readers, rows = view_of(team), Readers(team.directory, team.probe), MailRows()

    def read() -> Sequence[CollapsibleRow]:
        readers.note(view)
        sent = MailFrom("a-1").read(readers, view)
        return rows.read(MailboxInfo("a-1", now=view.now), Snapshot(view, {MailFrom("a-1"): sent}), 100)

    found = read()
    team.mail(500, "a-3", "a-2", "message", "from another", 9)
    assert read() is found, "none of it is new"
    team.mail(501, "a-1", "a-2", "message", "one more", 9)
    view = view_of(team)
    more = read()
    assert (len(found), len(more)) == (500, 501)
    assert all(new is old for new, old in zip(more, found, strict=False))
    assert len(readers.mail_from("a-3", "a-2").read()) == 1, "of the mail of others, nothing is kept"


@pytest.mark.long
async def test_lines_are_made_of_the_mail_that_is_seen(team: Frozen, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(500):
        team.mail(number, "a-1", "a-0", "message", f"message {number} ", 900 - number)
    made, mail_line = list[object](), agent_tabs._mail_line

    def note_line(*args: Any, **more: Any) -> Line:
        made.append(args)
        return mail_line(*args, **more)

    monkeypatch.setattr(agent_tabs, "_mail_line", note_line)
    async with opened(team, 100, 30) as stage:
        stage.app.open_agent("a-0", "Mail")
        await stage.sees("message 499 ")
        await stage.settles()
        assert len(made) <= 3 * stage.app.size.height
        await stage.press("g")
        await stage.sees("message 0 ")


@pytest.mark.long
async def test_the_inbox_goes_through_its_mail_once(team: Frozen, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(500):
        team.mail(number, "a-1", OPERATOR, "message", f"message {number} ", 900 - number)
    gone_through, find_threads = list[int](), message_list.find_threads

    def note(letters: Sequence[MessageView], *more: Any) -> list[message_list.Entry]:
        gone_through.append(len(letters))
        return find_threads(letters, *more)

    async with opened(team, 100, 30, read_only=True) as stage:
        await stage.press("2")
        await stage.sees("message 0 ")
        await stage.settles()
        monkeypatch.setattr(message_list, "find_threads", note)
        for _ in range(3):
            await stage.press("1", "2")
            await stage.sees("message 0 ")
            await stage.settles()
        assert not any(gone_through), "none of it is new"
        monkeypatch.setattr(base, "UNUSED", 0.01)
        mail = stage.app.screen.query_one("#mail", message_list.MessageList)
        await stage.press("1")
        await stage.until(lambda: not mail._entries, "no message is kept")
        await stage.press("2")
        await stage.sees("message 0 ")


@pytest.mark.long
async def test_a_view_that_is_shown_again_keeps_what_it_shows(team: Frozen) -> None:
    team.mail(0, "a-1", OPERATOR, "message", "the only message", 9)
    async with opened(team, 100, 30, read_only=True) as stage:
        await stage.press("2")
        await stage.sees("the only message")
        screen = stage.app.screen
        assert isinstance(screen, base.BaseScreen)
        # Its time ended just as it was shown.
        screen._forget_unless_shown()
        mail = screen.query_one("#mail", message_list.MessageList)
        assert mail._entries
        # Hidden, it forgets also if what was read last still has its mail.
        read = stage.app.context.snapshot
        await stage.press("1")
        stage.app.context.snapshot = read
        screen.forget()
        await stage.pilot.pause()
        assert not mail._entries


async def test_a_second_that_follows_a_reading_paints_no_ages(frozen: Frozen, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(frozen, 120, 36) as stage:
        await stage.settles()
        ticks = list[float]()
        monkeypatch.setattr(type(stage.app.screen), "tick", lambda screen: ticks.append(stage.app._shown_at))
        monkeypatch.setattr(app, "TICK", 7200.0)
        _publish(stage, 0)
        stage.app._tick()
        assert not ticks
        stage.app._shown_at -= 3600.0
        stage.app._tick()
        assert len(ticks) == 1


async def test_ages_of_minutes_are_looked_at_each_five_seconds(team: Frozen, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = list[float]()

    def tick_after(stage: Stage, seconds: float) -> int:
        stage.app._shown_at = time.monotonic() - seconds
        stage.app._tick()
        return len(ticks)

    async with opened(team, 100, 30) as stage:
        await stage.settles()
        stage.app.context.reading.stop()
        monkeypatch.setattr(app, "TICK", 3600.0)
        monkeypatch.setattr(type(stage.app.screen), "tick", lambda _: ticks.append(0))
        monkeypatch.setattr(app, "STILL_TICK", 5 * 3600.0)
        assert tick_after(stage, 3600) == 1, "an age of seconds"
        agents = tuple(replace(each, since=NOW - 60) for each in stage.app.context.snapshot.view.agents)
        _publish(stage, 0, view=replace(stage.app.context.snapshot.view, agents=agents))
        assert tick_after(stage, 3600) == 1
        assert tick_after(stage, 4 * 3600) == 1
        assert tick_after(stage, 5 * 3600) == 2
        await stage.press("k")
        stage.app._tick()
        assert len(ticks) == 3, "what a key brings into sight is looked at"
        at_rest = stage.app.context.snapshot.view
        ended = HostView(Host(name="h", slots=1, at=NOW - 1), SeenHost("h", "ended"))
        newer: dict[str, Any]
        for newer in ({"tasks": (Task(id=1, subject="new", updated_at=NOW),)}, {"hosts": (ended,)}):
            _publish(stage, 0, view=replace(at_rest, **newer))
            before = len(ticks)
            assert tick_after(stage, 3600) == before + 1, f"an age of seconds: {newer}"


async def test_at_rest_it_ticks_each_five_seconds(team: Frozen, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until a key, a reading or a message makes it look within a second: what is typed is kept, and a message goes."""
    async with opened(team, 100, 30) as stage:
        await stage.settles()
        stage.app.context.reading.stop()
        view = stage.app.context.snapshot.view
        agents = tuple(replace(each, since=NOW - 60) for each in view.agents)

        def ticks_in() -> float:
            return stage.app._ticks_at - time.monotonic()

        def rest() -> None:
            _publish(stage, 0, view=replace(view, agents=agents))
            stage.app.context.said = None
            stage.app._tick()
            assert ticks_in() > app.TICK

        rest()
        await stage.press("k")
        assert ticks_in() <= app.TICK
        rest()
        _publish(stage, 0, view=view)
        assert ticks_in() <= app.TICK
        stage.app._tick()
        assert ticks_in() <= app.TICK, "an age of seconds"
        rest()
        stage.app.context.say("done")
        assert ticks_in() <= app.TICK
        stage.app._tick()
        assert ticks_in() <= app.TICK, "a message is shown"
        rest()
        monkeypatch.setattr(TeamPoller, "is_remote", True)
        stage.app._tick()
        assert ticks_in() <= app.TICK, "a database may stop answering"


async def test_readings_that_wait_are_shown_once(frozen: Frozen, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(frozen, 120, 36) as stage:
        await stage.settles()
        shown, show = list[float](), type(stage.app)._show

        def note_show(dashboard: app.CrewboardApp) -> None:
            shown.append(dashboard.context.snapshot.view.now)
            show(dashboard)

        monkeypatch.setattr(type(stage.app), "_show", note_show)
        reading, snapshot = stage.app.context.reading, stage.app.context.snapshot
        for number in range(20):
            stage.app._publish(reading, replace(snapshot, view=replace(snapshot.view, now=NOW + number)))
        await stage.until(lambda: NOW + 19 in shown, "the newest")
        assert shown == [NOW + 19]


@pytest.mark.long
async def test_the_footer_is_made_anew_when_a_key_may_work(frozen: Frozen, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(frozen, 120, 36) as stage:
        await stage.settles()
        made, footer_of = list[object](), bars.footer_of

        def note(screen: Screen[Any], *keys: Any) -> Footer:
            made.append(screen)
            return footer_of(screen, *keys)

        monkeypatch.setattr(base, "footer_of", note)
        selected = stage.app.screen.query_one(Roster).targets[0]
        for number in range(20):
            _publish(stage, number)
            await stage.sees(f"step {number} ")
        assert not made, "another agent than the selected one does something else"
        context, view = stage.app.context, stage.app.context.snapshot.view
        others = (Presence("p-2", "Kim", looking_at="req-004281"),)
        supervisor = replace(view.supervisor, shared_bytes=1)
        for number, shown in enumerate((replace(view, present=others), replace(view, supervisor=supervisor)), 20):
            _publish(stage, number, view=shown)
            await stage.sees(f"step {number} ")
        assert not made, "another dashboard is open, and memory was measured"
        _publish(stage, 22, selected)
        await stage.until(lambda: len(made) == 1, "a footer for what the selected agent does")
        view = stage.app.context.snapshot.view
        hangs = replace(view, supervisor=replace(view.supervisor, silent_since=NOW))
        readings = hangs, replace(view, needs=()), replace(view, needs=(), agents=view.agents[:-1])
        for count, shown in enumerate(readings, 2):
            stage.app.on_team_read(TeamRead(context.reading, replace(context.snapshot, view=shown)))
            await stage.until(lambda count=count: len(made) >= count, "a footer for another team")  # type: ignore[misc]


async def test_the_tabs_that_fit_are_laid_out_once(frozen: Frozen, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(frozen, 120, 36) as stage:
        await stage.settles()
        laid_out, tabs = list[object](), bars._tabs

        def note(*args: Any) -> Line:
            laid_out.append(args)
            return tabs(*args)

        monkeypatch.setattr(bars, "_tabs", note)
        _publish(stage, 0)
        await stage.sees("step 0 ")
        assert len(laid_out) == 1


async def test_a_reading_is_painted_once(frozen: Frozen, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(frozen, 120, 36) as stage:
        await stage.settles()
        painted = _count_paints(monkeypatch)
        for number in range(20):
            _publish(stage, number)
            await stage.sees(f"step {number} ")
        assert len(painted) <= 20


@pytest.mark.long
async def test_hundreds_of_snapshots_leave_nothing_behind(frozen: Frozen) -> None:
    async with opened(frozen, 120, 36) as stage:
        await stage.settles()
        blocks = list[int]()
        for number in range(SNAPSHOTS):
            _publish(stage, number)
            await stage.app.screen._invoke_and_clear_callbacks()
            assert f"step {number} " in stage.all
            if number in (SNAPSHOTS // 3, SNAPSHOTS - 1):
                gc.collect()
                blocks.append(sys.getallocatedblocks())
        # Six of them stay of each snapshot that is shown, as measured; one that keeps a screen would keep thousands.
        assert (blocks[1] - blocks[0]) / (SNAPSHOTS * 2 / 3) <= 12


@pytest.mark.long
async def test_a_publication_costs_what_changed_and_not_the_agents(tmp_path: Path) -> None:
    costs = list[tuple[int, int]]()
    for agents in (5, 20):
        team = make_empty(tmp_path / str(agents))
        for number in range(agents):
            team.hire(f"a-{number}", "explore", "working", "thinking", ago=90, pid=7)
        reader = TeamReader(team.directory, clock=lambda: NOW, probe=team.probe)
        reader.read()
        async with opened(team, 120, 36) as stage:
            await stage.settles()
            _publish(stage, 0, "a-1")
            await stage.sees("step 0 ")
            showing = calls_of(partial(_publish, stage, 1, "a-1")) + calls_of(stage._render)
            assert "step 1 " in stage.all
        costs.append((calls_of(partial(reader.read, {"a-1"}, measured=0)), showing))
    (reading, showing), (reading_more, showing_more) = costs
    assert reading_more <= 1.5 * reading
    assert showing_more <= 1.2 * showing


async def test_needs_and_agents_that_stay_the_same_are_not_laid_out_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    team = make_empty(tmp_path)
    for number in range(20):
        team.hire(f"a-{number}", "explore", "working", "thinking", ago=90, pid=7)
    letters = [
        {"v": 1, "id": f"r{number}", "ts": NOW, "from": f"a-{number}", "to": OPERATOR, "type": "result",
         "content": f"result {number}", "metadata": {}}
        for number in range(20)
    ]  # fmt: skip
    team.directory.inbox(OPERATOR).on_disk.write_text("".join(json.dumps(letter) + "\n" for letter in letters))
    async with opened(team, 120, 50) as stage:
        await stage.sees("Results to read · 20")
        _publish(stage, 0, "a-1")
        await stage.sees("step 0 ")
        made = list[str]()

        def note(text: str) -> str:
            made.append(text)
            return safe_line(text)

        monkeypatch.setattr("crewboard_tui.render.lines.safe_line", note)
        _publish(stage, 1, "a-1")
        await stage.sees("step 1 ")
        # Beside the roster stands what the selected one does, and in the alert line the first result.
        assert made.count("thinking") <= 5
        assert sum(text.startswith("result: ") for text in made) <= 2
        assert not any(text.startswith(("Team ", "Peek", "Tasks", "Results", "Inbox")) for text in made), "a title"


def test_a_reading_costs_the_same_with_20000_unread_results(team: Frozen) -> None:
    reader = TeamReader(team.directory, clock=lambda: NOW, probe=team.probe)
    reader.read()
    before = calls_of(reader.read)
    letters = [
        {"v": 1, "id": f"r{number}", "ts": NOW, "from": f"a-{number % 4}", "to": OPERATOR, "type": "result",
         "content": f"result {number}", "metadata": {}}
        for number in range(20_000)
    ]  # fmt: skip
    team.directory.inbox(OPERATOR).on_disk.write_text("".join(json.dumps(letter) + "\n" for letter in letters))
    assert [need.kind for need in reader.read().needs] == 4 * ["result"]
    assert calls_of(reader.read) <= 1.5 * before


def _publish(stage: Stage, number: int, name: str = "ui", view: TeamView | None = None) -> None:
    """Show a reading of the team in which one agent does something else."""
    context, view = stage.app.context, view or stage.app.context.snapshot.view
    agents = tuple(replace(each, doing=f"step {number} ") if each.name == name else each for each in view.agents)
    stage.app.on_team_read(TeamRead(context.reading, replace(context.snapshot, view=replace(view, agents=agents))))


def _count_paints(patch: pytest.MonkeyPatch) -> list[Any]:
    """Note each time that the screen is rendered for the terminal."""
    painted, render = list[Any](), TouchedCompositor.render_update

    def count_render(compositor: TouchedCompositor, full: bool = False, **more: Any) -> object:
        if not full:
            painted.append(compositor)
        return render(compositor, full, **more)

    patch.setattr(TouchedCompositor, "render_update", count_render)
    return painted
