"""The store in PostgreSQL: what was replaced writes nothing, and what was interrupted is done exactly once."""

import json
import math
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from crewboard.commands.context import Team
from crewboard.errors import LostLeaseError, StorageError, UsageError
from crewboard.readmodel.reader import TeamReader
from crewboard.records.team import Task
from crewboard.store import roster, tasks
from crewboard.store.interface import Held
from crewboard.store.layout import TeamDirectory
from tests.cli.files import enlist_all, set_status
from tests.crew import WAIT_TIMEOUT, eventually
from tests.postgres import pooled, set_lease_ttl
from tests.system import need_program

# ruff: noqa: ANN401  it is imported only where it is installed
psycopg = pytest.importorskip("psycopg")
postgres_store = pytest.importorskip("crewboard.store.postgres_store")

TTL = 5.0
"""Seconds that leases last here: on a busy machine their holder may stand still for seconds."""
LEASE, JOURNAL, INBOX = "agents/scout/lease", "agents/scout/journal.jsonl", "inbox/scout.jsonl"


def line(ident: str) -> bytes:
    return json.dumps({"id": ident}).encode() + b"\n"


@pytest.fixture
def store(database: str) -> Iterator[Any]:
    made = postgres_store.PostgresStore(database, "api")
    for folder in ("", "inbox", "agents", "agents/scout", "tasks"):
        made.make_folder(folder)
    set_lease_ttl(database, TTL)
    # The next call reads how long leases last.
    postgres_store.close_all()
    yield made
    postgres_store.close_all()


def take(store: Any) -> Held:
    held = store.take(LEASE)
    assert held is not None
    assert isinstance(held, Held)
    return held


def run(database: str, query: str, *parameters: object) -> Any:
    with psycopg.connect(database, autocommit=True) as connection:
        return connection.execute(query, parameters).fetchone()


def replace_holder(store: Any) -> None:
    """Let another process take the lease, as if this one had stood still for too long."""
    run(store.url, "UPDATE crewboard.leases SET until = '-infinity' RETURNING 1")
    assert run(store.url, "SELECT crewboard.take('api', %s, gen_random_uuid(), 600)", LEASE)[0]


def begin_write(connection: Any) -> int:
    """Take a lease for a short time, and write with it in a transaction that goes on. Return its token."""
    seconds = 0.25
    while True:
        # On a busy machine, it may be over before the write.
        seconds *= 2
        query = "SELECT crewboard.take('api', %s, gen_random_uuid(), %s)"
        (token,) = connection.execute(query, (LEASE, seconds)).fetchone()
        connection.commit()
        put = connection.execute("SELECT crewboard.put('api', 'tasks/1.json', '{}', %s)", (token,))
        if put.fetchone() == (0,):
            return int(token)
        connection.rollback()


def blocks_another(url: str, connection: Any) -> bool:
    """Return True if another session waits for the transaction of a connection."""
    query = "SELECT count(*) > 0 FROM pg_stat_activity WHERE %s = ANY (pg_blocking_pids(pid))"
    return bool(run(url, query, connection.info.backend_pid)[0])


def test_another_program_adds_no_line_that_is_there(store: Any) -> None:
    end = store.append(INBOX, line("a"))
    again = "SELECT crewboard.append('api', %s, %s, new_ident => 'a', once => true)"
    assert run(store.url, again, INBOX, line("a")) == (end,)
    assert store.end(INBOX) == end


WRITES: dict[str, Callable[[Any], object]] = {
    "append": lambda store: store.append(INBOX, line("late")),
    "append at": lambda store: store.append(JOURNAL, line("late"), at=store.end(JOURNAL)),
    "put": lambda store: store.put("tasks/1.json", b"late"),
    "remove": lambda store: store.remove("tasks/1.json"),
    "move": lambda store: store.move("agents/scout", "agents/late"),
    "make folder": lambda store: store.make_folder("late"),
    "locked": lambda store: store.locked("x", lambda: store.put("tasks/1.json", b"late")),
    "take": lambda store: store.take("agents/scout/late"),
    "purge": lambda store: store.purge(),
}


def contents(store: Any) -> list[Any]:
    logs = [[each for each, _ in store.read(log)] for log in (INBOX, JOURNAL)]
    return [
        *logs,
        store.get("tasks/1.json"),
        *(sorted(store.names(folder)) for folder in ("", "agents", "agents/scout")),
    ]


@pytest.mark.parametrize("write", WRITES)
def test_a_replaced_worker_writes_nothing(store: Any, write: str) -> None:
    store.append(JOURNAL, line("a"), at=0)
    store.put("tasks/1.json", b"{}")
    store.fence(take(store), lambda: None, lambda: None)
    replace_holder(store)
    before = contents(store)
    with pytest.raises(LostLeaseError):
        WRITES[write](store)
    assert contents(store) == before


def test_a_lease_is_not_taken_while_its_holder_still_writes(store: Any) -> None:
    """The holder writes in a transaction that outlasts its lease. Another process that takes it waits for the end."""
    take_lease = "SELECT crewboard.take('api', %s, gen_random_uuid(), %s)"
    with psycopg.connect(store.url) as writer, psycopg.connect(store.url) as taker:
        token = begin_write(writer)
        eventually(lambda: not store.is_held(LEASE), "the end of the lease's time")
        taken: list[int] = []
        thread = threading.Thread(target=lambda: taken.append(taker.execute(take_lease, (LEASE, 600)).fetchone()[0]))
        thread.start()
        eventually(lambda: taken or blocks_another(store.url, writer), "the taker to wait")
        assert taken == []
        writer.commit()
        thread.join()
        assert taken[0] > token
        taker.commit()
    assert store.get("tasks/1.json") == b"{}"


def test_a_worker_whose_time_is_up_writes_nothing(store: Any) -> None:
    store.fence(take(store), lambda: None, lambda: None)
    run(store.url, "UPDATE crewboard.leases SET until = '-infinity' RETURNING 1")
    with pytest.raises(LostLeaseError):
        store.append(INBOX, line("late"))


def test_a_lease_is_renewed_while_its_holder_lives(store: Any) -> None:
    held = take(store)
    first = run(store.url, "SELECT until FROM crewboard.leases")[0]
    eventually(lambda: run(store.url, "SELECT until FROM crewboard.leases")[0] > first, "a renewal")
    assert store.is_held(LEASE)
    store.release(held)


def test_the_lease_of_a_host_is_over_when_those_of_its_workers_are(store: Any) -> None:
    """Else a run is known to be lost only later: the host may have renewed its lease just before it was cut off."""
    # Long, so that no machine is too busy to take the second one in a part of that time.
    ttl = 60.0
    set_lease_ttl(store.url, ttl)
    postgres_store.close_all()
    store.make_folder("hosts")
    store.make_folder("hosts/build1")
    worker = take(store)
    # No thread renews them meanwhile.
    store._server.keeper.drop(worker)
    host = store.take("hosts/build1/lease")
    store._server.keeper.drop(host)

    def ends() -> float:
        with psycopg.connect(store.url) as connection:
            rows = connection.execute("SELECT extract(epoch FROM until)::float8 FROM crewboard.leases ORDER BY token")
            of_worker, of_host = (end for (end,) in rows.fetchall())
        return float(of_worker - of_host)

    # It was taken later, and ends earlier nevertheless.
    assert 0 < ends() < ttl / 4
    assert store._server._renew([worker.token, host.token]) == {worker.token, host.token}
    assert ends() == pytest.approx(ttl / 4, abs=ttl / 20)


def test_a_replaced_holder_is_told(store: Any) -> None:
    lost = threading.Event()
    store.fence(take(store), lambda: None, lost.set)
    assert not lost.is_set()
    replace_holder(store)
    assert lost.wait(WAIT_TIMEOUT)


def test_a_holder_that_was_replaced_before_it_asks_is_told(store: Any) -> None:
    lost, held = threading.Event(), take(store)
    replace_holder(store)
    # The thread that renews leases has noticed it.
    eventually(lambda: held.token not in store._server.keeper._leases, "the loss of the lease")
    store.fence(held, lambda: None, lost.set)
    assert lost.is_set()


def test_a_database_that_is_away_for_six_seconds_ends_no_worker() -> None:
    """As docs/hosts.md says: also if a worker at rest was just about to renew its lease."""
    from crewboard.store import postgres_server

    ttl, renew_after = postgres_server._DEFAULT_TTL, postgres_server.RENEW_AFTER
    assert (postgres_server.CERTAIN_FOR - renew_after) * ttl - 2 * postgres_server._RETRY_INTERVAL > 6


def test_a_holder_that_cannot_renew_is_told(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    lost, told = threading.Event(), list[int]()

    def tell() -> None:
        told.append(1)
        lost.set()

    set_lease_ttl(store.url, 0.6)
    postgres_store.close_all()
    held = take(store)
    store.fence(held, lambda: None, tell)
    keeper = store._server.keeper
    monkeypatch.setattr(keeper, "_renew", _refuse)
    run(store.url, "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE pid <> pg_backend_pid() "
        "AND datname = current_database()")  # fmt: skip
    assert lost.wait(WAIT_TIMEOUT)
    # So that the thread ends quietly.
    monkeypatch.undo()
    # Also if it can be renewed again: the holder ends, and is told once.
    keeper._note([held.token], set(), time.monotonic())
    assert told == [1]


def test_a_holder_without_answers_keeps_no_other_from_its_lease(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its statements still arrive. It does not count on the lease for longer, so no other process waits for longer."""
    held = take(store)
    store._server.keeper.drop(held)
    until = run(store.url, "SELECT until FROM crewboard.leases")[0]
    execute = psycopg.Connection.execute

    def lose_answer(*arguments: Any, **options: Any) -> None:
        execute(*arguments, **options)
        raise psycopg.OperationalError("no answer")

    with monkeypatch.context() as patched:
        patched.setattr(psycopg.Connection, "execute", lose_answer)
        for _ in range(2):
            with pytest.raises(psycopg.OperationalError):
                store._server._renew([held.token])
    assert run(store.url, "SELECT until FROM crewboard.leases")[0] == until
    assert store._server._renew([held.token]) == {held.token}
    assert run(store.url, "SELECT until FROM crewboard.leases")[0] > until


def test_a_pass_knows_when_the_first_lease_ends(store: Any) -> None:
    def seconds() -> float:
        with store.glance() as glance:
            return float(glance.next_end())

    assert seconds() == math.inf
    first = take(store)
    second = store.take("agents/scout/other")
    store._server.keeper.drop(first)
    store._server.keeper.drop(second)
    run(store.url, "UPDATE crewboard.leases SET until = clock_timestamp() + '1 h' WHERE token = %s RETURNING 1",
        first.token)  # fmt: skip
    assert 0 < seconds() <= TTL
    store.release(second)
    assert 3000 < seconds() <= 3600
    store.release(first)
    assert seconds() == math.inf


def _refuse(_: object) -> None:
    raise psycopg.OperationalError("out of reach")


class Cut:
    """Cuts the connection at the statement number `at`, before it or after it was done."""

    def __init__(self, at: int, after: bool) -> None:
        self.left, self.after, self.was_cut = at, after, False
        self._execute = psycopg.Connection.execute

    def execute(self, connection: Any, *arguments: Any, **options: Any) -> Any:
        if threading.current_thread() is not threading.main_thread():
            return self._execute(connection, *arguments, **options)
        self.left -= 1
        if self.left != -1:
            return self._execute(connection, *arguments, **options)
        self.was_cut = True
        if self.after:
            self._execute(connection, *arguments, **options)
        connection.close()
        raise psycopg.OperationalError("the connection was cut")


def work(store: Any) -> None:
    """Use each verb that writes. What it leaves depends on whether something was done twice."""
    end = store.append(JOURNAL, line("a"), at=0)
    store.append(JOURNAL, line("b"), at=end)
    store.append(INBOX, line("mail"))

    def count() -> int:
        number = int(store.get("tasks/1.json") or b"0") + 1
        store.put("tasks/1.json", b"%d" % number)
        store.append(INBOX, line(f"task {number}"))
        return number

    assert store.locked("tasks", count) == 1
    assert store.locked("tasks", count) == 2
    held = take(store)
    store.say(held, b"me")
    assert store.renew(held) == b"me"
    store.release(held)
    assert not store.is_held(LEASE)


@pytest.mark.long
@pytest.mark.parametrize("after", [pytest.param(False, marks=pytest.mark.long), True], ids=["before", "after"])
def test_a_lost_connection_loses_and_doubles_nothing(
    database: str, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    """Each statement of the work in turn is cut off, before the server got it, or before its answer came."""
    expected = ["mail", "task 1", "task 2"]
    at = 0
    while True:
        store = postgres_store.PostgresStore(database, f"team{at}")
        for folder in ("", "inbox", "agents", "agents/scout", "tasks"):
            store.make_folder(folder)
        cut = Cut(at, after)
        with monkeypatch.context() as patch:
            patch.setattr(
                psycopg.Connection, "execute", lambda *args, cut=cut, **options: cut.execute(*args, **options)
            )
            work(store)
        assert [json.loads(each)["id"] for each, _ in store.read(INBOX)] == expected, f"cut at {at}"
        assert [json.loads(each)["id"] for each, _ in store.read(JOURNAL)] == ["a", "b"], f"cut at {at}"
        assert store.get("tasks/1.json") == b"2", f"cut at {at}"
        if not cut.was_cut:
            break
        at += 1
    assert at > 15, "each statement was cut"


def test_a_glance_sees_a_late_commit_of_an_earlier_transaction(store: Any) -> None:
    written, looked = threading.Event(), threading.Event()

    def change() -> None:
        store.put("tasks/early.json", b"{}")
        written.set()
        assert looked.wait(WAIT_TIMEOUT)

    writer = threading.Thread(target=lambda: store.locked("tasks", change))
    writer.start()
    assert written.wait(WAIT_TIMEOUT)
    store.put("tasks/later.json", b"{}")
    for _ in range(2):
        with store.glance():
            assert store.names("tasks") == ["later.json"]
    looked.set()
    writer.join()
    with store.glance():
        assert sorted(store.names("tasks")) == ["early.json", "later.json"]


def test_a_glance_keeps_nothing_that_was_undone(store: Any) -> None:
    def change() -> None:
        store.put("tasks/1.json", b"{}")
        with store.glance():
            assert store.names("tasks") == ["1.json"]
            store.put("tasks/2.json", b"{}")
            assert sorted(store.names("tasks")) == ["1.json", "2.json"]
        raise StorageError("undo it")

    with store.glance():
        with pytest.raises(StorageError):
            store.locked("tasks", change)
        assert store.names("tasks") == []


def test_a_glance_keeps_only_bodies_that_were_asked_for(store: Any) -> None:
    for name in ("scout", "fixer"):
        store.make_folder(f"agents/{name}")
        store.put(f"agents/{name}/spec.json", b"a spec")
        store.put(f"agents/{name}/status.json", b"a status")
    store.put("tasks/1.json", b"x" * 1_000_000)
    with store.glance():
        assert store.get("agents/scout/spec.json") == b"a spec"
        assert store.get("tasks/1.json") == b"x" * 1_000_000
    store.put("agents/fixer/spec.json", b"another spec")
    with store.glance():
        bodies = {row.place: row.body for row in store._server.copy._entries.values() if row.body is not None}
    assert bodies == {"agents/scout/spec.json": b"a spec", "agents/fixer/spec.json": b"another spec"}


def test_a_folder_is_read_with_one_query(database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    team = TeamDirectory(tmp_path / ".crewboard" / "api")
    team.make(database)
    for number in range(30):
        team.task(number + 1).save(Task(id=number + 1, subject="a task", created_at=1, updated_at=1))
    asked = count_queries(monkeypatch)
    assert len(tasks.load_all(team)) == 30
    assert len(asked) == 1
    team.task(7).save(Task(id=7, subject="another", created_at=1, updated_at=1))
    team.task(8).remove()
    asked.clear()
    assert [task.subject for task in tasks.load_all(team) if task.id in (7, 8)] == ["another"]
    assert len(asked) == 1
    assert not team.inbox("scout").exists()
    # In a transaction, only the lock, the folder, the task and the change are asked for, and the ends.
    asked.clear()
    tasks.claim(team, 9, "scout", "code", 1.0)
    assert len(asked) == 6
    postgres_store.close_all()


def count_queries(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Return a list to which each query of this thread is added from now on."""
    asked: list[object] = []
    execute = psycopg.Connection.execute

    def count(self: Any, query: Any, *args: Any, **kwargs: Any) -> Any:
        if threading.current_thread() is threading.main_thread():
            asked.append(query)
        return execute(self, query, *args, **kwargs)

    monkeypatch.setattr(psycopg.Connection, "execute", count)
    return asked


def test_a_glance_at_a_folder_tells_of_it_alone(store: Any) -> None:
    store.make_folder("agents/fixer")
    store.put("tasks/1.json", b"one")
    store.put("agents/fixer/spec.json", b"a spec")
    with store.glance("tasks"):
        assert (store.get("tasks/1.json"), store.get("agents/fixer/spec.json")) == (b"one", b"a spec")
        assert sorted(store.names("agents")) == ["fixer", "scout"]
        store.put("tasks/2.json", b"two")
        assert (store.get("tasks/2.json"), sorted(store.names("tasks"))) == (b"two", ["1.json", "2.json"])
    with store.glance("agents"), store.glance("agents/fixer"):
        assert store.names("agents/fixer") == ["spec.json"]
    store.move("tasks/1.json", "agents/1.json")
    with store.glance("tasks"):
        assert (store.get("tasks/1.json"), store.names("tasks")) == (None, ["2.json"])
    store.move("agents/1.json", "tasks/3.json")
    store.remove("tasks/2.json")
    with store.glance("tasks"):
        assert (store.get("tasks/3.json"), store.names("tasks")) == (b"one", ["3.json"])


def test_a_glance_finds_what_was_moved_in_any_order(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    store.put("tasks/1.json", b"one")
    with store.glance():
        assert store.get("tasks/1.json") == b"one"
    store.move("tasks/1.json", "agents/1.json")
    ask = store._server.copy._query
    # The server may answer the parts of a query in parallel.
    monkeypatch.setattr(store._server.copy, "_query", lambda *given: ask(*given)[::-1])
    with store.glance():
        assert (store.names("tasks"), store.get("agents/1.json")) == ([], b"one")


def test_what_is_read_ahead_is_what_a_read_gives(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    other = "inbox/fixer.jsonl"
    for number in range(3):
        store.append(INBOX, line(f"to scout {number}"))
        store.append(other, line(f"to fixer {number}"))
    # One begins within a line.
    offsets = {INBOX: 0, other: len(line("to fixer 0")) + 4}
    plain = {log: list(store.read(log, offset)) for log, offset in offsets.items()}
    asked = count_queries(monkeypatch)
    with store.glance() as glance:
        glance.read_ahead({**offsets, JOURNAL: 0})
        assert {log: list(store.read(log, offset)) for log, offset in offsets.items()} == plain
        assert len(asked) == 2
        glance.read_ahead(offsets)
        store.append(INBOX, line("to scout 3"))
        assert [found for found, _ in store.read(INBOX)][3:] == [line("to scout 3")[:-1]]


def remove_long_ago(store: Any) -> None:
    """Remove a record as if that was two hours ago."""
    store.put("tasks/old.json", b"{}")
    store.remove("tasks/old.json")
    run(store.url, "UPDATE crewboard.gone SET at = at - interval '2 hours' RETURNING 1")


def test_a_late_reader_does_not_miss_a_removal(store: Any) -> None:
    for name in ("1", "2"):
        store.put(f"tasks/{name}.json", name.encode())
    with store.glance() as glance:
        mark, _ = glance.news(None)
    with store.glance("tasks"):
        assert sorted(store.names("tasks")) == ["1.json", "2.json"]
    store.remove("tasks/1.json")
    remove_long_ago(store)
    assert not any(row[0] == "gone" for row in store._server.copy._rows_since("0"))
    run(store.url, "SELECT crewboard.trim('api')")
    assert run(store.url, "SELECT count(*) FROM crewboard.gone") == (0,)
    with store.glance() as glance:
        mark, news = glance.news(mark)
        assert news is None
        assert (store.names("tasks"), store.get("tasks/2.json")) == (["2.json"], b"2")
    with store.glance("tasks"):
        assert (store.names("tasks"), store.get("tasks/2.json")) == (["2.json"], b"2")

    def is_up_to_date() -> bool:
        nonlocal mark
        with store.glance() as glance:
            mark, news = glance.news(mark)
        return bool(news == set())

    # Once the transactions of other tests on this server have ended that began before the removal.
    eventually(is_up_to_date)


@pytest.mark.long
def test_old_removals_are_forgotten(store: Any) -> None:
    remove_long_ago(store)

    def is_forgotten() -> bool:
        # One of a hundred removals clears up.
        store.put("tasks/1.json", b"{}")
        store.remove("tasks/1.json")
        old = run(store.url, "SELECT count(*) FROM crewboard.gone WHERE at < now() - interval '1 hour'")[0]
        return int(old) == 0

    assert any(is_forgotten() for _ in range(2000))


def test_a_glance_names_what_changed(store: Any) -> None:
    mark = None

    def news() -> Any:
        nonlocal mark
        with store.glance() as glance:
            mark, found = glance.news(mark)
            return found

    assert news() is None
    assert news() == set()
    store.put("tasks/1.json", b"{}")
    store.append(INBOX, line("a"))
    held = take(store)
    assert news() == {"tasks/1.json", INBOX, LEASE}
    store.say(held, b"me")
    store.remove("tasks/1.json")
    store.move("inbox/scout.jsonl", "inbox/other.jsonl")
    assert news() == {LEASE, "tasks/1.json", INBOX, "inbox/other.jsonl"}
    first = run(store.url, "SELECT until FROM crewboard.leases")[0]
    eventually(lambda: run(store.url, "SELECT until FROM crewboard.leases")[0] > first, "a renewal")
    assert news() == set()
    store._server.keeper.drop(held)
    eventually(lambda: not store.is_held(LEASE), "the end of the lease's time")
    assert news() == {LEASE}
    early, mark = mark, None
    store.purge()
    store.make_folder("")
    with store.glance() as glance:
        assert glance.news(early)[1] is None


def test_a_reader_sees_changes_without_hints(database: str, tmp_path: Path) -> None:
    """The dashboard of a large team reads only agents that changed, and a status gives no hint."""
    team = Team(TeamDirectory(tmp_path / ".crewboard" / "api"))
    team.directory.make(database)
    roster.create(team.directory, "", 1.0)
    enlist_all(team, ["scout", "fixer"])
    reader = TeamReader(team.directory)
    reader.read()
    set_status(team, "fixer", state="working", model="another")
    assert [agent.model for agent in reader.read([]).agents] == ["m", "another"]
    postgres_store.close_all()


def test_a_pass_over_a_team_is_one_query(database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    team = Team(TeamDirectory(tmp_path / ".crewboard" / "api"))
    team.directory.make(database)
    roster.create(team.directory, "", 1.0)
    enlist_all(team, [f"agent{number}" for number in range(10)])
    reader = TeamReader(team.directory)
    assert len(reader.read().agents) == 10
    set_status(team, "agent3", state="working")
    asked = count_queries(monkeypatch)
    assert [agent.name for agent in reader.read().agents if agent.rested is None] == ["agent3"]
    assert len(asked) == 1
    postgres_store.close_all()


def test_work_that_deadlocks_is_done_again(store: Any) -> None:
    """Two transactions that write the same records in another order; one of them is run again from its start."""
    both = threading.Barrier(2, timeout=WAIT_TIMEOUT)
    runs: list[str] = []

    def swap(first: str, second: str) -> None:
        def change() -> None:
            runs.append(first)
            store.put(first, b"x")
            if len(runs) <= 2:
                both.wait()
            store.put(second, b"y")

        store.locked(first, change)

    threads = [threading.Thread(target=swap, args=names) for names in (("a", "b"), ("b", "a"))]
    for name in ("a", "b"):
        store.put(name, b"")
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(runs) == 3
    assert {store.get("a"), store.get("b")} == {b"x", b"y"}


def test_a_process_that_stands_still_keeps_no_lock(store: Any) -> None:
    """A process is stopped in the middle of a transaction. Others go on, and its work is done again later."""
    set_lease_ttl(store.url, 0.8)
    postgres_store.close_all()
    stopped, others_are_done = threading.Event(), threading.Event()

    def count() -> None:
        number = int(store.get("tasks/1.json") or b"0")
        stopped.set()
        others_are_done.wait(WAIT_TIMEOUT)
        store.put("tasks/1.json", b"%d" % (number + 1))

    thread = threading.Thread(target=store.locked, args=("tasks", count))
    thread.start()
    assert stopped.wait(WAIT_TIMEOUT)
    store.locked("tasks", lambda: store.put("tasks/1.json", b"10"))
    others_are_done.set()
    thread.join()
    assert store.get("tasks/1.json") == b"11"


def test_an_own_error_keeps_what_was_written_before_it(store: Any) -> None:
    """As in files: a damaged record was copied aside when the change of it fails."""

    def change() -> None:
        store.put("tasks/1.json.damaged", b"kept")
        raise UsageError("repair it")

    with pytest.raises(UsageError):
        store.locked("tasks", change)
    assert store.get("tasks/1.json.damaged") == b"kept"


@pytest.mark.long
def test_a_write_waits_until_the_server_takes_writes(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """During a failover it may reach a server that is no primary yet, and then has to connect again."""

    def set_read_only(value: str) -> None:
        with psycopg.connect(store.url, autocommit=True, options="-c default_transaction_read_only=off") as connection:
            connection.execute(f"ALTER DATABASE {connection.info.dbname} SET default_transaction_read_only = {value}")

    set_read_only("on")
    postgres_store.close_all()
    assert store.names("tasks") == []
    with monkeypatch.context() as patch:
        patch.setattr("crewboard.store.postgres_server.time.sleep", lambda _: set_read_only("off"))
        store.put("tasks/1.json", b"one")
    assert store.get("tasks/1.json") == b"one"
    set_read_only("on")
    postgres_store.close_all()
    with pytest.raises(StorageError, match="the database takes no writes: it is a standby"):
        store.put("tasks/2.json", b"two")


def test_a_limit_for_locks_ends_no_work(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with psycopg.connect(store.url, autocommit=True) as other:
        other.execute(f"ALTER DATABASE {other.info.dbname} SET lock_timeout = '50ms'")
        postgres_store.close_all()
        query = "SELECT pg_advisory_{}lock(hashtextextended('api/tasks', 0))"
        other.execute(query.format(""))
        with monkeypatch.context() as patch:
            patch.setattr("crewboard.store.postgres_server.time.sleep", lambda _: other.execute(query.format("un")))
            store.locked("tasks", lambda: store.put("tasks/1.json", b"one"))
    assert store.get("tasks/1.json") == b"one"


def test_a_role_without_rights_is_told_which_it_needs(store: Any) -> None:
    with psycopg.connect(store.url, autocommit=True) as connection:
        connection.execute("DO $$ BEGIN CREATE ROLE guest LOGIN; EXCEPTION WHEN duplicate_object THEN END $$")
    guest = postgres_store.PostgresStore(f"{store.url}{'&' if '?' in store.url else '?'}options=-crole%3Dguest", "api")
    with pytest.raises(StorageError, match="permission denied for schema crewboard; the role needs CREATE"):
        guest.names("tasks")


def test_a_database_without_an_encoding_is_read_as_text(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # The encoding that it has for its clients then.
    monkeypatch.setenv("PGCLIENTENCODING", "SQL_ASCII")
    postgres_store.close_all()
    store.put("tasks/1.json", b"one")
    assert store.names("tasks") == ["1.json"]


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://crew:secret@db/crew", "postgresql://db/crew?password=secret", "mysql://db", "host=db",
        "postgresql://crew@db/crew?sslpassword=secret", "postgresql://crew:a secret@db/crew",
        "postgresql://crew:secret%zz@db/crew", "postgresql://crew:secret/a@db/crew", "postgresql://crew:secret@[::1/crew",
    ],
)  # fmt: skip
def test_an_address_with_a_password_is_refused(url: str) -> None:
    with pytest.raises(UsageError) as refused:
        postgres_store.require_url(url)
    assert "secret" not in str(refused.value)


def test_an_address_without_a_password_is_taken() -> None:
    for url in (
        "postgresql://crew@db/crew?sslmode=verify-full",
        "postgresql://crew@a:5432,b:5433,c/crew",
        "postgres://",
    ):
        postgres_store.require_url(url)


@pytest.mark.parametrize("number", [1, 99])
def test_tables_of_another_version_are_refused(store: Any, number: int) -> None:
    # Those of version 1 lack columns.
    run(store.url, f"UPDATE crewboard.version SET number = {number} RETURNING 1")
    postgres_store.close_all()
    with pytest.raises(StorageError, match=f"have version {number}, and this crewboard needs") as found:
        store.get("config.json")
    assert not found.value.away


def test_a_server_out_of_reach_is_an_error_in_words() -> None:
    store = postgres_store.PostgresStore("postgresql://crew@/nothing?host=/nonexistent", "api")
    with pytest.raises(StorageError, match="postgresql://crew@/nothing failed") as found:
        store.get("config.json")
    assert found.value.away


def test_only_the_first_call_waits_for_a_server_that_is_away(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def refuse(url: str) -> None:
        tried.append(url)
        raise psycopg.OperationalError("out of reach")

    waits = [0.0]
    clock = SimpleNamespace(monotonic=lambda: sum(waits), sleep=waits.append)
    store.now()
    with monkeypatch.context() as patch:
        patch.setattr("crewboard.store.postgres_server.time", clock)
        patch.setattr("crewboard.store.postgres_server.connect", refuse)
        store._server._idle.pop().close()
        with pytest.raises(StorageError, match="out of reach"):
            store.now()
        assert len(tried) > 2
        tried.clear()
        with pytest.raises(StorageError, match="out of reach"):
            store.now()
        assert len(tried) == 1
    store.now()


def test_listeners_hear_at_once_that_the_connection_is_lost(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a dashboard reads, and shows that the database is away: it does not wait for the next sweep."""
    heard: queue.SimpleQueue[str] = queue.SimpleQueue()
    listener = store.listen(heard.put)
    monkeypatch.setattr("crewboard.store.postgres_server.connect", _refuse)
    run(store.url, "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE pid <> pg_backend_pid() "
        "AND datname = current_database()")  # fmt: skip
    assert heard.get(timeout=WAIT_TIMEOUT) == ""
    listener.stop()


@pytest.mark.long
def test_a_pooler_may_give_each_transaction_another_session(store: Any) -> None:
    """A prepared statement of one session is unknown in another one, or is another statement there."""
    need_program("pgbouncer")
    with pooled(store.url) as url:
        behind = postgres_store.PostgresStore(url, "api")

        def write(number: int) -> None:
            for each in range(20):
                behind.append(INBOX, line(f"{number}-{each}"))
                behind.put(f"tasks/{number}.json", b"{}")
                assert behind.get(f"tasks/{number}.json") == b"{}"
                behind.names("tasks")

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(write, range(4)))
        assert len(list(store.read(INBOX))) == 80
        with pytest.raises(StorageError, match=r"a pooler .* gives no hints"):
            behind.listen(lambda _: None)


@pytest.mark.long
def test_a_team_in_files_loads_no_psycopg() -> None:
    program = """
import sys
from pathlib import Path
import crewboard_tui.app
from crewboard.store.layout import TeamDirectory
from crewboard.supervisor import __main__
from crewboard.worker import prefork_server
TeamDirectory(Path(sys.argv[1])).exists()
print("psycopg" in sys.modules)
"""
    found = subprocess.run([sys.executable, "-c", program, "/nonexistent"], capture_output=True, text=True, check=True)
    assert found.stdout == "False\n"


def test_a_claim_takes_no_run_that_another_host_is_claiming(store: Any) -> None:
    """It does not wait for that one either: it claims the others."""
    for folder in ("starts", "hosts", "hosts/one", "hosts/two"):
        store.make_folder(folder)
    for name in ("a", "b", "c"):
        store.put(f"starts/{name}", b"{}")
    claim = "SELECT crewboard.claim('api', 'starts', %s, '{}', %s)"
    with psycopg.connect(store.url) as one, psycopg.connect(store.url) as two:
        assert one.execute(claim, ("hosts/one", 2)).fetchone() == (["a", "b"],)
        two.execute("SET lock_timeout = '5s'")
        assert two.execute(claim, ("hosts/two", 2)).fetchone() == (["c"],)
    assert sorted(store.names("hosts/one")) == ["a", "b"]
    assert store.names("hosts/two") == ["c"]
