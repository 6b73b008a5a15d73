"""Files changed by others, processes that are not what they seem, and wrong clocks."""

import os
import time
from collections.abc import Callable
from unittest import mock

from crewboard.records.agents import Cursor, Spec, Status
from crewboard.records.base import convert
from crewboard.records.processes import Exit, Lease
from crewboard.store import agents, json_records, leases, tasks
from tests.bad_input.bench import Bench, Entry, kept
from tests.store.raw_mail import line


def _status_says(**fields: object) -> Callable[[Bench], None]:
    def arrange(bench: Bench) -> None:
        agent = bench.team.agent("scout")
        agent.exit.on_disk.unlink()
        status = convert({"run": 1, "pid": 1, "state": "working", "since": 1, "beat": 1, **fields}, Status)
        agent.status.save(status)

    return arrange


def _recycled_pid(bench: Bench) -> None:
    """The worker is gone, and another process has its pid now."""
    _status_says(pid=os.getpid())(bench)
    assert (bench.see().state, bench.see().alive) == ("vanished", False)
    assert [(need.kind, need.agent) for need in bench.view().needs] == [("death", "scout")]


def _other_boot(bench: Bench) -> None:
    _status_says(boot_id="another", start_ticks=5)(bench)
    assert bench.see().state == "exited"
    assert bench.view().needs == ()


def _held_lease(bench: Bench, content: bytes) -> None:
    held = leases.take(bench.team.agent("scout").lease)
    assert held is not None
    os.pwrite(held.descriptor, content, 0)
    _status_says(state="idle")(bench)
    assert leases.holder(bench.team.agent("scout").lease, Lease) is None
    assert bench.see().alive
    assert bench.see().state not in ("crashed", "vanished", "exited")
    bench.cli("remove", "scout").refused(75, "scout is alive")
    os.close(held.descriptor)


def _damaged_status(bench: Bench) -> None:
    bench.team.agent("scout").status.on_disk.write_bytes(b"\x00" * 100)
    seen = bench.see()
    assert (seen.damaged, seen.alive) == (1, False)
    assert seen.state == "exited", "the exit record still says how it ended"


def _damaged_end(bench: Bench) -> None:
    bench.team.agent("scout").exit.on_disk.write_bytes(b"{")
    assert bench.see().damaged == 1
    assert bench.see().state == "vanished", "never healthy, never done"
    agents.write_exit(bench.team.agent("scout"), Exit(run=1, signal=9, reason="died", at=3))
    assert bench.see().state == "crashed"
    assert len(list(bench.team.agent("scout").path.glob("exit.json.damaged-*"))) == 1


def _damaged_spec(bench: Bench) -> None:
    bench.team.agent("scout").spec.on_disk.write_bytes(b"[]")
    assert (bench.see().state, bench.see().damaged) == ("unknown", 1)
    bench.cli("resume", "scout", ANTHROPIC_API_KEY="x").refused(65, "spec.json is damaged")
    assert bench.team.agent("scout").spec.on_disk.read_bytes() == b"[]"


def _damaged_cursor(bench: Bench) -> None:
    bench.receive(line("a"), line("b"))
    bench.team.agent("scout").cursor.on_disk.write_bytes(b'{"offset": "far"}')
    assert (bench.see().unread, bench.see().damaged) == (2, 1)


def _damaged_task(bench: Bench) -> None:
    tasks.add(bench.team, "second", 1.0)
    bench.team.task(1).on_disk.write_bytes(b'{"id": 1}')
    assert [task["id"] for task in bench.cli("tasks", "--json").json] == [2]
    bench.cli("task", "update", "1", "--status", "failed").refused(65, "is damaged")
    assert bench.cli("task", "add", "third", "--json").json["id"] == 3


def _swapped_task(bench: Bench) -> None:
    tasks.add(bench.team, "second", 1.0)
    bench.team.task(2).on_disk.write_bytes(bench.team.task(1).on_disk.read_bytes())
    bench.cli("task", "update", "2", "--status", "failed").refused(65, "says that it is task 1")
    assert tasks.load(bench.team, 1).status == "pending"


def _roster_with_twins(bench: Bench) -> None:
    twins = bench.team.config.on_disk.read_bytes().replace(b'"fixer"', b'"scout"')
    bench.team.config.on_disk.write_bytes(twins)
    json_records.cached_file.cache_clear()
    assert [agent.name for agent in bench.view().agents] == ["scout"]
    assert bench.cli("status").code == 0


def _emptied_mailbox(bench: Bench) -> None:
    for number in range(9):
        bench.receive(line(f"m{number}"))
    bench.team.agent("scout").cursor.save(Cursor(offset=900))
    bench.team.inbox("scout").on_disk.write_bytes(b"")
    bench.receive(line("new", "new"))
    assert bench.inbox() == ["new"]
    assert bench.see().unread <= 1


def _clock_went_back(bench: Bench) -> None:
    """Everything was written by a clock that was a day ahead."""
    ahead = time.time() + 86_400
    bench.receive(line("m", "from tomorrow", ts=ahead))
    held = leases.take(bench.team.agent("scout").lease)
    assert held is not None
    _status_says(since=ahead, beat=ahead, deadline=ahead)(bench)
    wanted = Spec(prompt="do it", prompt_id="p2", type="code", run=2, at=ahead)
    agents.change_spec(bench.team.agent("fixer"), lambda _: wanted)
    assert bench.see().state == "working"
    assert bench.see("fixer").state == "starting"
    ran = bench.cli("status")
    assert ran.code == 0
    assert "-" not in [word[0] for word in ran.out.split() if word[:-1].lstrip("-").isdigit()], "no negative age"
    os.close(held.descriptor)


def _replaced_within_a_tick(bench: Bench) -> None:
    """A reader notices a replacement with the same size and time."""
    path = bench.team.task(1)
    before = path.on_disk.stat()
    reader = path.watch()
    # The reader looks within the clock tick of the first replacement.
    with mock.patch.object(time, "time_ns", return_value=before.st_mtime_ns):
        reader.get()
    path.on_disk.write_bytes(path.on_disk.read_bytes().replace(b"first", b"other"))
    os.utime(path.on_disk, ns=(before.st_atime_ns, before.st_mtime_ns))
    seen = reader.get()
    assert seen is not None
    assert seen.subject == "other"


STATE = (
    Entry(
        "state and clock",
        "half a roster",
        "keeps it aside, says so (65), ends what it was asked for",
        kept("config.json", b'{"name": "default", "mem', "send", "scout", "x"),
    ),
    Entry(
        "state and clock",
        "an empty roster",
        "keeps it aside, says so (65)",
        kept("config.json", b"", "task", "add", "x", "--owner", "scout"),
    ),
    Entry(
        "state and clock",
        "a roster of zeros",
        "keeps it aside, says so (65)",
        kept("config.json", b"\0" * 4096, "broadcast", "x"),
    ),
    Entry(
        "state and clock",
        "a roster that names ../x",
        "keeps it aside, says so (65)",
        kept(
            "config.json", b'{"name": "default", "members": [{"name": "../x", "type": "code"}]}', "send", "scout", "x"
        ),
    ),
    Entry(
        "state and clock",
        "a roster of a version to come",
        "keeps it aside, says so (65)",
        kept("config.json", b'{"schema": 2, "name": "default"}', "send", "scout", "x"),
    ),
    Entry("state and clock", "a roster that names one agent twice", "shows it once", _roster_with_twins),
    Entry(
        "state and clock",
        "a damaged note of what the operator knows",
        "keeps it aside, says so (65)",
        kept("operator.json", b"[", "ack", "scout"),
    ),
    Entry("state and clock", "a damaged status", "goes by lease and exit record, counts it", _damaged_status),
    Entry(
        "state and clock",
        "a damaged exit record",
        "calls it vanished, never done; writes the next end beside it",
        _damaged_end,
    ),
    Entry("state and clock", "a damaged spec", "says unknown, starts nothing (65), leaves it as it is", _damaged_spec),
    Entry("state and clock", "a damaged cursor", "counts all mail as unread", _damaged_cursor),
    Entry(
        "state and clock", "a damaged task", "shows the others, reuses no id, refuses to change it (65)", _damaged_task
    ),
    Entry("state and clock", "a task in the file of another", "refuses to change it (65)", _swapped_task),
    Entry(
        "state and clock",
        "a damaged request",
        "leaves it as it is, says so (65)",
        kept("requests/plan-1.json", b'{"id": "plan-1"', "approve", "plan-1"),
    ),
    Entry("state and clock", "a pid that another process has now", "believes the lease: vanished", _recycled_pid),
    Entry("state and clock", "a status from before the machine was started", "says exited, not died", _other_boot),
    Entry(
        "state and clock",
        "a lease that is held and says nothing",
        "calls it alive, refuses to remove it (75)",
        lambda bench: _held_lease(bench, b""),
    ),
    Entry(
        "state and clock",
        "a lease that is held and says nonsense",
        "calls it alive, refuses to remove it (75)",
        lambda bench: _held_lease(bench, b"\xff\x00garbage"),
    ),
    Entry(
        "state and clock",
        "a mailbox that another program emptied",
        "delivers what comes from then on",
        _emptied_mailbox,
    ),
    Entry(
        "state and clock",
        "a clock that went back by a day",
        "loses nothing, calls no agent late, shows no negative age",
        _clock_went_back,
    ),
    Entry("state and clock", "a file replaced by one of the same size and time", "reads it", _replaced_within_a_tick),
)
