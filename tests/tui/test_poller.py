"""The team poller: one message for each batch of changes, none without changes, and no file read without need."""

import os
import queue
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from crewboard.errors import StorageError
from crewboard.protocol import supervisor_client
from crewboard.readmodel.activity import ActivityReader
from crewboard.readmodel.reader import TeamReader
from crewboard.readmodel.team import SupervisorView, TeamView, describe_storage
from crewboard.records.agents import State
from crewboard.records.processes import Exit
from crewboard.store import agents
from crewboard.store.file_store import FileStore
from crewboard.store.interface import Key
from crewboard.store.layout import AgentDirectory, TeamDirectory
from crewboard_tui import poller
from crewboard_tui.poller import BURST, BURST_AT_KEYS, SWEPT, KeysFirst, Pace, TeamPoller, is_at_rest
from crewboard_tui.queries import Feed, MailTo, Readers, Snapshot, WorkOf
from crewboard_tui.widgets.bars import Badges, alert_line, strip_line
from tests.crew import eventually
from tests.frozen import NOW, Frozen, make_empty, make_team

WAIT_TIMEOUT = 20.0


class Listener:
    """A poller with a queue of its snapshots."""

    def __init__(self, frozen: Frozen, *, may_wake: bool = False) -> None:
        self.heard: queue.Queue[Snapshot] = queue.Queue()
        self.reading = TeamPoller(
            frozen.directory, self.heard.put, clock=lambda: NOW, probe=frozen.probe, may_ring=may_wake
        )

    def next(self) -> Snapshot:
        """Return the next snapshot."""
        return self.heard.get(timeout=WAIT_TIMEOUT)

    def silent(self, seconds: float) -> bool:
        """Return True if no snapshot is published for so long."""
        try:
            self.heard.get(timeout=seconds)
        except queue.Empty:
            return True
        return False


@pytest.fixture
def listener(frozen: Frozen) -> Iterator[Listener]:
    """Return a started poller of the frozen team."""
    listener = Listener(frozen)
    listener.reading.start()
    yield listener
    listener.reading.stop()


def test_that_no_file_events_arrive_is_said_once_it_is_known(frozen: Frozen, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(24, "inotify instance limit reached")

    monkeypatch.setattr("watchdog.observers.inotify_c.InotifyFD._create_inotify_fd", refuse)
    listener = Listener(frozen)
    assert listener.reading.first().hinted, "nothing was tried yet"
    listener.reading.start()
    assert not listener.next().hinted
    listener.reading.stop()


def test_where_there_is_no_team_yet_no_file_events_are_missing(tmp_path: Path) -> None:
    published: list[Snapshot] = []
    reading = TeamPoller(TeamDirectory(tmp_path / ".crewboard" / "default"), published.append, clock=time.time)
    reading.start()
    eventually(lambda: published, "the first reading")
    assert published[0].hinted
    reading.stop()


def test_a_database_that_does_not_answer_is_shown(listener: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    listener.next()
    hangs, fails = threading.Event(), threading.Event()

    def look(*_: object) -> None:
        hangs.set()
        fails.wait(WAIT_TIMEOUT)
        raise StorageError("the store postgresql://crew@db.example.org/crewboard failed: no connection", away=True)

    with monkeypatch.context() as patched:
        patched.setattr(poller, "LATE", 0.0)
        patched.setattr(TeamPoller, "is_remote", True)
        patched.setattr(FileStore, "glance", look)
        listener.reading.poke()
        assert hangs.wait(WAIT_TIMEOUT)
        listener.reading.note_late()
        for reason in ("no answer yet", "the store postgresql://"):
            shown = listener.next()
            line = "".join(span.text for span in alert_line(shown, NOW, 80))
            assert line.startswith(" database away ")
            assert reason in line
            assert len(line) <= 80
            strip = "".join(span.text for span in strip_line(shown, Badges(), 80))
            assert "live" not in strip
            assert "away" in strip
            fails.set()
    back = listener.next()
    assert (back.away_since, back.problem) == (None, None)


def test_only_a_database_that_does_not_answer_is_away(listener: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    listener.next()

    def refuse(*_: object) -> None:
        raise StorageError("the tables in postgresql://db have version 2, and this crewboard needs 1")

    monkeypatch.setattr(TeamPoller, "is_remote", True)
    monkeypatch.setattr(FileStore, "glance", refuse)
    listener.reading.poke()
    shown = listener.next()
    line = "".join(span.text for span in alert_line(shown, NOW, 120))
    assert line.strip() == "the tables in postgresql://db have version 2, and this crewboard needs 1"


def test_a_team_that_was_deleted_is_said_to_be(frozen: Frozen) -> None:
    reader = TeamReader(frozen.directory, clock=lambda: NOW, probe=frozen.probe)
    assert reader.read().problem is None
    frozen.directory.purge()
    line = "".join(span.text for span in alert_line(Snapshot(reader.read()), NOW, 80))
    assert line.strip() == "the team demo was deleted   t opens another one"


def test_only_what_is_looked_at_is_read(listener: Listener) -> None:
    snapshot = listener.next()
    assert not snapshot.answers
    assert snapshot.get(WorkOf("api")) is None


def test_looking_at_an_agent_reads_its_work_mail_and_live_reply(listener: Listener) -> None:
    listener.next()
    listener.reading.look_at([WorkOf("api"), MailTo("api")])
    snapshot = listener.next()
    work, mailbox = snapshot.get(WorkOf("api")), snapshot.get(MailTo("api"))
    assert work is not None
    assert mailbox is not None
    assert [each.kind for each in work.activity][:2] == ["start", "mail"]
    assert len(mailbox.letters) == 4
    assert work.live.startswith("Adding cursor")


def test_while_nothing_changes_nothing_is_said(listener: Listener) -> None:
    listener.next()
    assert listener.silent(2.5), "two sweeps and more"


def test_only_a_team_at_rest_is_calm(tmp_path: Path, frozen: Frozen) -> None:
    team = make_empty(tmp_path / "idle")
    team.hire("scout", "explore", "idle", "", ago=1, pid=7)
    team.hire("guide", "explore", "paused", "", ago=1, pid=8)
    at_rest = TeamReader(team.directory, clock=lambda: NOW, probe=team.probe).read()
    assert is_at_rest(at_rest)
    assert not is_at_rest(TeamReader(frozen.directory, clock=lambda: NOW, probe=frozen.probe).read()), "agents work"
    gone = SupervisorView(None, alive=False)
    assert not is_at_rest(replace(at_rest, supervisor=gone)), "an agent without a supervisor"
    changes: list[dict[str, Any]] = [
        {"is_open": True},
        {"state": "retrying"},
        {"state": "starting"},
        {"state": "stuck"},
    ]
    for change in changes:
        agents_now = (replace(at_rest.agents[0], **change), at_rest.agents[1])
        assert not is_at_rest(replace(at_rest, agents=agents_now)), change


def test_a_burst_costs_a_few_messages(listener: Listener, frozen: Frozen) -> None:
    listener.next()
    began = time.monotonic()
    for number in range(2000):
        frozen.mail(100 + number, "ui", "api", "message", f"number {number}", 1)
    spent = time.monotonic() - began
    heard = 0
    unread = 0
    while unread < 2001:
        snapshot = listener.next()
        heard += 1
        unread = _unread(snapshot.view)
    assert heard <= 4 + spent / BURST + 4


def test_a_sweep_adds_no_message_to_those_of_a_burst(frozen: Frozen, monkeypatch: pytest.MonkeyPatch) -> None:
    # Each reading is a sweep, too.
    monkeypatch.setattr("crewboard.readmodel.watcher.SWEEP", 0.1)
    heard: list[float] = []

    def change_again(_: Snapshot) -> None:
        heard.append(time.monotonic())
        frozen.mail(100 + len(heard), "ui", "api", "message", "and so on", 1)

    reading = TeamPoller(frozen.directory, change_again, clock=lambda: NOW, probe=frozen.probe, may_ring=False)
    reading.start()
    eventually(lambda: len(heard) >= 12, "a dozen messages")
    reading.stop()
    # Eight come after a pause; one or two fewer where the machine itself made one.
    assert heard[11] - heard[0] >= 6 * BURST


def _unread(view: TeamView) -> int:
    agent = view.agent("api")
    return agent.unread if agent else 0


def test_a_damaged_roster_is_said_and_reading_goes_on(listener: Listener, frozen: Frozen) -> None:
    good = frozen.directory.config.on_disk.read_text()
    listener.next()
    frozen.directory.config.on_disk.write_text("{")
    assert "damaged" in (listener.next().view.problem or "")
    frozen.directory.config.on_disk.write_text(good)
    while listener.next().view.problem:
        pass


def test_a_team_that_is_not_there_is_empty_until_it_comes(tmp_path: Path, frozen: Frozen) -> None:
    later = Frozen(TeamDirectory(tmp_path / "later" / ".crewboard" / "demo"), frozen.probe)
    listener = Listener(later)
    assert listener.reading.first().view.agents == ()
    listener.reading.start()
    (tmp_path / "later").mkdir()
    later.team.ensure()
    later.hire("scout", "explore", "idle", "", ago=1, pid=7)
    while not listener.next().view.agents:
        pass
    listener.reading.stop()


def test_the_pace_slows_down_in_a_burst_and_not_before() -> None:
    pace, long_ago = Pace(), -60.0
    assert pace.delay(0.0, long_ago) < BURST_AT_KEYS
    for number in range(3):
        pace.note(0.05 * number)
    assert pace.delay(0.15, long_ago) < BURST_AT_KEYS
    pace.note(0.15)
    assert pace.delay(0.2, long_ago) == BURST
    assert pace.delay(0.2, 0.1) == BURST_AT_KEYS
    assert pace.delay(1.0, long_ago) < BURST_AT_KEYS


def test_what_changed_in_a_burst_is_shown_at_once_after_a_key(
    listener: Listener, frozen: Frozen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("crewboard_tui.poller.BURST", 600.0)
    monkeypatch.setattr("crewboard_tui.poller.BURST_AT_KEYS", 0.0)
    delay, delays, sent = Pace.delay, list[float](), count(1)

    def note_delay(pace: Pace, now: float, key_at: float) -> float:
        delays.append(delay(pace, now, key_at))
        return delays[-1]

    def send() -> int:
        number = next(sent)
        frozen.mail(100 + number, "ui", "api", "message", f"number {number}", 1)
        return number

    monkeypatch.setattr(Pace, "delay", note_delay)
    while 600.0 not in delays:
        send()
    # Nothing is read for ten minutes now.
    number = send()
    listener.reading.note_key()
    while _unread(listener.next().view) < 1 + number:
        pass


def test_what_no_one_sees_is_read_four_times_a_second(frozen: Frozen) -> None:
    read_at, shown = list[float](), list[Snapshot]()

    def read_time() -> float:
        read_at.append(time.monotonic())
        # No view shows it.
        frozen.directory.agent("api").live.write_text(f"word {len(read_at)}")
        return NOW

    reading = TeamPoller(frozen.directory, shown.append, clock=read_time, probe=frozen.probe, may_ring=False)
    reading.start()
    eventually(lambda: len(read_at) >= 12, "a dozen readings")
    reading.stop()
    # Eight come after a pause; one or two fewer where the machine itself made one.
    assert read_at[11] - read_at[0] >= 6 * BURST
    assert len(shown) <= 2


def test_a_team_that_goes_on_changing_is_shown_four_times_a_second() -> None:
    pace, now, shown = Pace(), 0.0, 0
    while now < 60.0:
        pace.note(now)
        shown += 1
        # The next change comes at once.
        now += pace.delay(now, -60.0)
    assert shown <= 60 / BURST + 4


@pytest.mark.parametrize("note", [KeysFirst.note_key, KeysFirst.note_outcome])
def test_reading_waits_while_a_key_is_answered(
    monkeypatch: pytest.MonkeyPatch, note: Callable[[KeysFirst], None]
) -> None:
    monkeypatch.setattr("crewboard_tui.poller.KEY_FIRST", 600.0)
    monkeypatch.setattr("crewboard_tui.poller.KEYS_FIRST", 600.0)
    keys = KeysFirst()
    keys.begin()
    keys.wait()
    note(keys)
    reading = threading.Thread(target=keys.wait, daemon=True)
    reading.start()
    reading.join(0.05)
    assert reading.is_alive()
    keys.note_paint()
    reading.join(WAIT_TIMEOUT)
    assert not reading.is_alive()


def test_held_keys_do_not_stop_the_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("crewboard_tui.poller.KEY_FIRST", 600.0)
    monkeypatch.setattr("crewboard_tui.poller.KEYS_FIRST", 0.01)
    keys = KeysFirst()
    keys.begin()
    keys.note_key()
    for _ in range(1000):
        keys.wait()


def test_an_event_reads_the_files_of_its_agent_alone(frozen: Frozen, monkeypatch: pytest.MonkeyPatch) -> None:
    # Before it starts: a sweep may have begun.
    monkeypatch.setattr("crewboard.readmodel.watcher.SWEEP", 3600.0)
    listener = Listener(frozen)
    listener.reading.start()
    listener.next()
    looked = []
    is_held = frozen.probe.is_held

    def noted(lease: Key) -> bool:
        if lease.name.startswith("agents/"):
            looked.append(lease.name.split("/")[1])
        return is_held(lease)

    monkeypatch.setattr(frozen.probe, "is_held", noted)
    frozen.mail(99, "ui", "api", "message", "hello", 1)
    listener.next()
    listener.reading.stop()
    assert set(looked) <= {"api", "lead"}, "of the lead only whether it runs, for it may answer requests"
    assert "api" in looked


def test_a_lost_event_is_repaired_by_the_sweep(
    listener: Listener, frozen: Frozen, monkeypatch: pytest.MonkeyPatch
) -> None:
    listener.next()
    monkeypatch.setattr("crewboard.store.file_events.FileEvents.on_event", lambda *_: None)
    frozen.mail(99, "ui", "api", "message", "hello", 1)
    while _unread(listener.next().view) != 2:
        pass


@pytest.mark.long
def test_a_large_team_is_swept_in_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("crewboard.readmodel.watcher.SWEEP", 0.02)
    monkeypatch.setattr("crewboard_tui.poller.SWEPT", 2)
    monkeypatch.setattr("crewboard.store.file_events.FileEvents.on_event", lambda *_: None)
    frozen = make_empty(tmp_path)
    names = [f"agent{number}" for number in range(5)]
    for name in names:
        frozen.hire(name, "explore", "idle", "", ago=1, pid=7)
    listener = Listener(frozen)
    listener.reading.start()
    listener.next()
    for number, name in enumerate(names):
        frozen.mail(number, "ui", name, "message", "hello", 1)
    while any(agent.unread != 1 for agent in listener.next().view.agents):
        pass
    listener.reading.stop()


def test_a_sweep_of_a_large_team_reads_the_shown_agents_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("crewboard_tui.poller.SWEPT", 4)
    frozen = make_empty(tmp_path)
    names = [f"agent{number}" for number in range(9)]
    for name in names:
        frozen.hire(name, "explore", "idle", "", ago=1, pid=7)
    reading = Listener(frozen).reading
    reading.first()
    reading.shown = ["agent7", "agent8"]
    swept = [reading._to_sweep() for _ in range(5)]
    assert all({"agent7", "agent8"} <= set(each or ()) for each in swept)
    assert set().union(*(each or () for each in swept)) == set(names), "and all others in turn"


def test_a_supervisor_that_is_gone_is_woken_at_intervals(frozen: Frozen, monkeypatch: pytest.MonkeyPatch) -> None:
    woken: queue.Queue[TeamDirectory] = queue.Queue()
    monkeypatch.setattr(supervisor_client, "wake_supervisor", woken.put)
    monkeypatch.setattr("crewboard_tui.poller.RING_EVERY", 3600.0)
    frozen.probe.supervisor_pid = None
    listener = Listener(frozen, may_wake=True)
    listener.reading.start()
    assert woken.get(timeout=WAIT_TIMEOUT) == frozen.directory
    frozen.mail(99, "ui", "api", "message", "hello", 1)
    listener.next()
    listener.next()
    assert woken.empty()
    listener.reading.stop()


@pytest.mark.parametrize("gone", [True, False])
def test_no_wake_request_without_agents_or_permission(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gone: bool
) -> None:
    woken: queue.Queue[TeamDirectory] = queue.Queue()
    monkeypatch.setattr(supervisor_client, "wake_supervisor", woken.put)
    team = make_empty(tmp_path / "w") if gone else make_team(tmp_path / "w")
    team.probe.supervisor_pid = None
    listener = Listener(team, may_wake=gone)
    listener.reading.start()
    listener.next()
    listener.reading.poke()
    assert listener.silent(0.5)
    assert woken.empty()
    listener.reading.stop()


@pytest.mark.parametrize("began", [True, False])
def test_only_an_end_not_yet_finalized_wakes_the_supervisor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, began: bool
) -> None:
    woken: queue.Queue[TeamDirectory] = queue.Queue()
    monkeypatch.setattr(supervisor_client, "wake_supervisor", woken.put)
    team = make_empty(tmp_path)
    team.probe.supervisor_pid = None
    agent = team.hire("scout", "explore", "working", "", ago=5, pid=7)
    del team.probe.held["scout"]
    agents.want(agent, "killed", 1)
    if not began:
        agent.status.on_disk.unlink()
    listener = Listener(team, may_wake=True)
    listener.reading.start()
    assert [each.state for each in listener.next().view.agents] == ["exited"]
    if began:
        assert woken.get(timeout=WAIT_TIMEOUT) == team.directory
    else:
        listener.reading.poke()
        assert listener.silent(0.5)
        assert woken.empty()
    listener.reading.stop()


@pytest.mark.long
def test_of_a_large_team_each_journal_is_opened_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    team = make_empty(tmp_path)
    for number in range(70):
        team.hire(f"a-{number}", "explore", "idle", "", ago=5, pid=7)
    made: list[AgentDirectory] = []

    def make(agent: AgentDirectory) -> ActivityReader:
        made.append(agent)
        return ActivityReader(agent)

    monkeypatch.setattr("crewboard.readmodel.activity.ActivityReader", make)
    view = TeamReader(team.directory, clock=lambda: NOW, probe=team.probe).read()
    readers = Readers(team.directory, team.probe)
    readers.note(view)
    for _ in range(2):
        Feed(400).read(readers, view)
    assert len(made) == 70


@pytest.mark.long
def test_the_first_screen_of_a_large_team_measures_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    team = make_empty(tmp_path / "large")
    for number in range(SWEPT + 6):
        team.hire(f"agent{number}", "explore", "idle", "", ago=1, pid=100 + number, cpu=1)
    monkeypatch.setattr("crewboard.readmodel.reader.MEASURE_EVERY", 0)
    published: queue.Queue[Snapshot] = queue.Queue()
    poller = TeamPoller(team.directory, published.put, clock=lambda: NOW, probe=team.probe)
    assert _measured(poller.first()) == SWEPT
    poller.start()
    try:
        eventually(lambda: _measured(published.get(timeout=WAIT_TIMEOUT)) == SWEPT + 6, "the usage of all, in turn")
    finally:
        poller.stop()


def _measured(snapshot: Snapshot) -> int:
    return sum(agent.usage is not None for agent in snapshot.view.agents)


@pytest.mark.parametrize("leads_to", ["nowhere", os.devnull])
def test_an_unreadable_mailbox_hides_neither_the_team_nor_other_answers(frozen: Frozen, leads_to: str) -> None:
    poller = TeamPoller(frozen.directory, lambda _: None, clock=lambda: NOW, probe=frozen.probe)
    poller.look_at([MailTo("docs"), WorkOf("docs")])
    before = poller.first()
    mailbox = frozen.directory.inbox("docs")
    mailbox.on_disk.unlink(missing_ok=True)
    mailbox.on_disk.symlink_to(leads_to)
    after = poller.first()
    assert after.view.names == before.view.names
    assert "mail or journal of docs" in after.view.damage
    assert after.get(WorkOf("docs")) == before.get(WorkOf("docs"))
    assert "docs.jsonl" in str(after.problem)


def test_a_full_disk_is_the_first_thing_said(frozen: Frozen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("crewboard.store.files.disk_state", lambda _: "disk full")
    poller = TeamPoller(frozen.directory, lambda _: None, clock=lambda: NOW, probe=frozen.probe)
    said = "".join(span.text for span in alert_line(poller.first(), NOW, 80))
    assert said.strip() == "disk full: nothing was lost; agents wait and continue by themselves"


@pytest.mark.parametrize(
    ("disk", "state", "reason", "says"),
    [
        ("disk full", "crashed", "storage", "1 agent ended; free space, then resume the agent"),
        ("disk is read-only", "vanished", "", "1 agent ended; make the disk writable, then resume the agent"),
        ("disk full", "crashed", "died", "nothing was lost"),
    ],
)
def test_agents_that_a_full_disk_ended_do_not_wait(
    frozen: Frozen, disk: str, state: State, reason: str, says: str
) -> None:
    view = TeamPoller(frozen.directory, lambda _: None, clock=lambda: NOW, probe=frozen.probe).first().view
    ended = Exit(run=1, code=74, reason=reason, at=NOW) if reason else None
    agent = replace(view.agents[0], state=state, alive=False, acknowledged=False, exit=ended)
    assert describe_storage(replace(view, storage=disk, agents=(agent,))) == f"{disk}: {says}"
