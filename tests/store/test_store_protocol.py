"""The promises of every store, whatever keeps the records: the same tests for each."""

import itertools
import json
import os
import queue
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from crewboard.errors import LostLeaseError, StorageError
from crewboard.store.file_store import FileStore
from crewboard.store.interface import Key, Store, Version
from tests.crew import WAIT_TIMEOUT, eventually
from tests.postgres import close_connections, end_leases

IN_ANOTHER_PROCESS = """
import sys
if sys.argv[1].startswith("/"):
    from crewboard.store.file_store import FileStore
    store = FileStore(sys.argv[1])
else:
    from crewboard.store.postgres_store import PostgresStore
    store = PostgresStore(*sys.argv[1].split())
{}
"""


def line(ident: str, text: str = "") -> bytes:
    return json.dumps({"id": ident, "text": text}).encode() + b"\n"


@pytest.fixture(params=["files", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the folder of a store, or its database and the name of its team."""
    if request.param == "files":
        return str(tmp_path / "team")
    return f"{request.getfixturevalue('shared_database')} {uuid.uuid4()}"


@pytest.fixture
def store(place: str) -> Iterator[Store]:
    made: Store
    if place.startswith("/"):
        made = FileStore(place)
    else:
        from crewboard.store.postgres_store import PostgresStore

        url, team = place.split()
        made = PostgresStore(url, team)
    for folder in ("", "inbox", "agents", "agents/scout", ".locks"):
        made.make_folder(folder)
    yield made
    if not place.startswith("/"):
        close_connections()


@pytest.fixture
def elsewhere(place: str) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """Return a function that runs code with the same `store` in another process, and waits until it prints a line."""
    started = []

    def run(code: str) -> subprocess.Popen[str]:
        program = IN_ANOTHER_PROCESS.format(code)
        process = subprocess.Popen(
            [sys.executable, "-I", "-c", program, place],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


def test_a_store_has_a_clock(store: Store) -> None:
    first = store.now()
    assert abs(time.time() - first) < 60
    assert store.now() >= first


INBOX, JOURNAL, LEASE = "inbox/scout.jsonl", "agents/scout/journal.jsonl", "agents/scout/lease"


def lines(store: Store, log: str) -> list[bytes | None]:
    return [each for each, _ in store.read(log)]


# ------------------------------------------------------------------------------------------------------------- logs


def test_an_appended_line_ends_where_the_next_one_begins(store: Store) -> None:
    first = store.append(INBOX, line("a"))
    second = store.append(INBOX, line("b"), durable=True)
    assert list(store.read(INBOX)) == [(line("a")[:-1], first), (line("b")[:-1], second)]
    assert list(store.read(INBOX, first)) == [(line("b")[:-1], second)]
    assert Key(store, INBOX).size() == second
    assert store.tail_offset(INBOX, 0) == second
    assert store.tail_offset(INBOX, len(line("b"))) == first


def test_a_log_that_is_not_there_is_empty(store: Store) -> None:
    assert lines(store, INBOX) == []
    assert Key(store, INBOX).size() == store.tail_offset(INBOX, 100) == 0


def test_a_line_is_added_where_its_writer_knows_the_end(store: Store) -> None:
    end = store.append(JOURNAL, line("a"), at=store.end(JOURNAL))
    assert store.append(JOURNAL, line("b"), at=end) == store.end(JOURNAL)
    assert lines(store, JOURNAL) == [line("a")[:-1], line("b")[:-1]]


def test_a_line_whose_answer_was_lost_is_added_once(store: Store) -> None:
    end = store.append(JOURNAL, line("a"), at=0)
    first = store.append(JOURNAL, line("b"), at=end)
    assert store.append(JOURNAL, line("b"), at=end) == first
    assert lines(store, JOURNAL) == [line("a")[:-1], line("b")[:-1]]


def test_a_line_behind_another_writer_is_refused(store: Store) -> None:
    end = store.append(JOURNAL, line("a"), at=0)
    store.append(JOURNAL, line("of another"), at=end)
    with pytest.raises(LostLeaseError):
        store.append(JOURNAL, line("b"), at=end)
    assert lines(store, JOURNAL) == [line("a")[:-1], line("of another")[:-1]]


def test_a_line_for_a_log_that_was_replaced_is_refused(store: Store) -> None:
    with pytest.raises(LostLeaseError):
        store.append(JOURNAL, line("b"), at=1000)
    assert lines(store, JOURNAL) == []


def test_no_reader_sees_half_a_line(store: Store) -> None:
    """Eight threads append lines of very different lengths while one reads."""
    seen: list[bytes | None] = []
    done = threading.Event()

    def write(writer: int) -> None:
        for number in range(20):
            store.append(INBOX, line(f"{writer}-{number}", "x" * (number % 4) * 20_000))

    def read() -> None:
        offset, last = 0, False
        while not last:
            last = done.is_set()
            for each, end in store.read(INBOX, offset):
                offset = end
                seen.append(each)

    reader = threading.Thread(target=read)
    reader.start()
    writers = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    done.set()
    reader.join()
    found = [json.loads(each or b"")["id"] for each in seen]
    assert sorted(found) == sorted(f"{writer}-{number}" for writer in range(8) for number in range(20))
    assert all([each for each in found if each.startswith(f"{writer}-")]
               == [f"{writer}-{number}" for number in range(20)] for writer in range(8))  # fmt: skip


# ---------------------------------------------------------------------------------------------------------- records


def test_a_record_is_replaced_whole(store: Store) -> None:
    assert store.get("config.json") is None
    store.put("config.json", b"{}")
    store.put("config.json", b"[1]", durable=True)
    assert store.get("config.json") == b"[1]"
    assert [name for name in store.names("") if name.endswith("json")] == ["config.json"]


def test_no_reader_sees_half_a_record(store: Store) -> None:
    bodies = [bytes([number]) * (100_000 * (number % 3) + 1) for number in range(1, 30)]
    done = threading.Event()
    torn = []

    def read() -> None:
        while not done.is_set():
            body = store.get("config.json")
            if body is not None and body not in bodies:
                torn.append(body)

    reader = threading.Thread(target=read)
    reader.start()
    for body in bodies:
        store.put("config.json", body)
    done.set()
    reader.join()
    assert torn == []


def test_a_folder_lists_what_is_in_it(store: Store) -> None:
    assert store.names("tasks") == []
    store.make_folder("tasks")
    store.make_folder("tasks")
    before = store.changed("tasks")
    assert before is not None
    store.put("tasks/1.json", b"{}")
    store.put("tasks/2.json", b"{}")
    assert sorted(store.names("tasks")) == ["1.json", "2.json"]
    assert store.changed("tasks") != before
    store.remove("tasks/1.json")
    store.remove("tasks/1.json")
    assert store.names("tasks") == ["2.json"]


def test_a_folder_moves_with_all_that_is_in_it(store: Store) -> None:
    store.append(JOURNAL, line("a"), at=0)
    store.put("agents/scout/spec.json", b"{}")
    with pytest.raises(StorageError):
        store.make_folder("removed/scout-1")
    store.make_folder("removed")
    store.make_folder("removed/scout-1")
    store.move("agents/scout", "removed/scout-1/agent")
    store.move("inbox/scout.jsonl", "removed/scout-1/inbox.jsonl")
    assert store.names("agents") == []
    assert lines(store, JOURNAL) == []
    assert lines(store, "removed/scout-1/agent/journal.jsonl") == [line("a")[:-1]]
    assert store.get("removed/scout-1/agent/spec.json") == b"{}"


IN_POSTGRESQL = pytest.mark.parametrize("place", ["postgresql"], indirect=True)
"""Runs are claimed by hosts, which only a team in PostgreSQL has."""


@pytest.fixture
def queue_of_runs(store: Store) -> Store:
    for folder in ("starts", "hosts", "hosts/one", "hosts/two"):
        store.make_folder(folder)
    return store


@IN_POSTGRESQL
def test_the_oldest_records_are_claimed_first(queue_of_runs: Store) -> None:
    times = [0.0]
    for name in ("starts/c.json", "starts/a.json", "starts/b.json"):
        at = 0.0
        while at <= times[-1]:
            # The clock of a file system is coarse.
            queue_of_runs.put(name, b"{}")
            found = queue_of_runs.changed(name)
            at = found.at if found is not None else 0.0
        times.append(at)
    assert sorted(queue_of_runs.claim("starts", "hosts/one", [], 2)) == ["a.json", "c.json"]
    assert queue_of_runs.names("starts") == ["b.json"]
    assert queue_of_runs.get("hosts/one/c.json") == b"{}"
    assert queue_of_runs.claim("starts", "hosts/two", [], 2) == ["b.json"]


@IN_POSTGRESQL
def test_only_records_whose_needs_are_met_are_claimed(queue_of_runs: Store) -> None:
    records = {"any": b"{}", "gpu": b'{"needs": ["gpu"]}', "both": b'{"needs": ["gpu", "big"]}', "damaged": b"\xff["}
    for name, record in records.items():
        queue_of_runs.put(f"starts/{name}", record)
    assert sorted(queue_of_runs.claim("starts", "hosts/one", ["gpu"], 9)) == ["any", "gpu"]
    assert sorted(queue_of_runs.claim("starts", "hosts/two", ["big", "gpu"], 9)) == ["both"]


@IN_POSTGRESQL
@pytest.mark.long
def test_each_record_is_claimed_once(queue_of_runs: Store, elsewhere: Callable[[str], subprocess.Popen[str]]) -> None:
    claim = """
import sys
print("ready", flush=True)
sys.stdin.readline()
while store.claim("starts", "hosts/{}", [], 3):
    pass
print("done", *store.names("hosts/{}"), flush=True)
"""
    claimers = [elsewhere(claim.replace("{}", name)) for name in ("one", "two")]
    for number in range(60):
        queue_of_runs.put(f"starts/{number}", b"{}")
    claimed: list[str] = []
    for each in claimers:
        assert each.stdin is not None
        each.stdin.write("\n")
        each.stdin.flush()
    for each in claimers:
        assert each.stdout is not None
        claimed += each.stdout.readline().split()[1:]
    assert sorted(claimed, key=int) == [str(number) for number in range(60)]


def test_a_purged_store_is_empty(store: Store) -> None:
    store.append(INBOX, line("a"))
    store.put("config.json", b"{}")
    store.purge()
    assert store.get("config.json") is None
    assert lines(store, INBOX) == []
    assert store.names("") == store.names("inbox") == []


# ------------------------------------------------------------------------------------------------ locks and changes


def test_work_under_a_lock_excludes_that_of_others(
    store: Store, elsewhere: Callable[[str], subprocess.Popen[str]]
) -> None:
    def count() -> None:
        store.append(INBOX, b"%d\n" % (len(lines(store, INBOX)) + 1), at=Key(store, INBOX).size())

    other = elsewhere("""
def count():
    found = sum(1 for _ in store.read("inbox/scout.jsonl"))
    store.append("inbox/scout.jsonl", b"%d\\n" % (found + 1), at=store.end("inbox/scout.jsonl"))
print("ready", flush=True)
for _ in range(100):
    store.locked(".locks/inbox", count)
""")
    for _ in range(100):
        store.locked(".locks/inbox", count)
    assert other.wait() == 0
    assert lines(store, INBOX) == [b"%d" % (number + 1) for number in range(200)]


def test_work_under_a_lock_returns_what_it_found_or_raises(store: Store) -> None:
    assert store.locked(".locks/x", lambda: 3) == 3
    with pytest.raises(ZeroDivisionError):
        store.locked(".locks/x", lambda: 1 / 0)
    assert store.locked(".locks/x", lambda: 4) == 4


def test_each_change_gives_another_version(store: Store) -> None:
    assert store.changed(INBOX) is None
    seen = []
    for number in range(200):
        store.append(INBOX, line(str(number)))
        seen.append(store.changed(INBOX))
    assert all(before != after for before, after in itertools.pairwise(seen))
    last = seen[-1]
    assert last is not None
    assert (last.size, last.origin) == (Key(store, INBOX).size(), seen[0].origin if seen[0] else None)


def test_no_change_is_missed_while_others_write(store: Store) -> None:
    """A reader that reads only what has another version has, in the end, what was written last."""
    store.make_folder("tasks")
    names = [f"tasks/{number}.json" for number in range(4)]
    done = threading.Event()

    def write(name: str) -> None:
        for number in range(50):
            store.put(name, b"%d" % number)

    seen: dict[str, bytes | None] = {}
    looked: dict[str, Version | None] = {}

    def read() -> None:
        last = False
        while not last:
            last = done.is_set()
            for name in names:
                version = store.changed(name)
                if version != looked.get(name):
                    looked[name], seen[name] = version, store.get(name)

    reader = threading.Thread(target=read)
    reader.start()
    writers = [threading.Thread(target=write, args=(name,)) for name in names]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    done.set()
    reader.join()
    assert seen == dict.fromkeys(names, b"49")


def test_what_is_made_again_has_another_origin(store: Store) -> None:
    store.append(INBOX, line("a"))
    before = store.changed(INBOX)
    # Keeps the number of the inode, which would be given to the next file.
    kept = os.open(FileStore.describe(store, INBOX), os.O_RDONLY) if isinstance(store, FileStore) else None
    store.remove(INBOX)
    assert store.changed(INBOX) is None
    store.append(INBOX, line("a"))
    after = store.changed(INBOX)
    assert before is not None
    assert after is not None
    assert before.origin != after.origin
    if kept is not None:
        os.close(kept)


# ---------------------------------------------------------------------------------------------------------- glances

NAMES = ["", "config.json", "inbox", INBOX, "agents", "agents/scout", "agents/scout/spec.json", JOURNAL, LEASE, "none"]


def readings(store: Store) -> list[object]:
    """Return what each verb says of each name that a block of `glance` answers."""
    versions = {name: store.changed(name) for name in NAMES}
    # The version of a file that was changed just now is never the same, nor that of a lease that is renewed.
    found = [
        each.origin if each is not None and (isinstance(store, FileStore) or name == LEASE) else each
        for name, each in versions.items()
    ]
    names = [sorted(store.names(name)) for name in ("", "inbox", "agents", "agents/scout", "none")]
    records = [store.get(name) for name in ("config.json", "agents/scout/spec.json", "none")]
    sizes = [Key(store, INBOX).size(), Key(store, JOURNAL).size(), Key(store, "none").size()]
    logs = [list(store.read(log, offset)) for log in (INBOX, "none") for offset in (0, Key(store, log).size())]
    return [found, names, records, sizes, logs, store.is_held(LEASE), store.get(LEASE)]


def make_some_of_each(store: Store) -> None:
    store.put("config.json", b"{}")
    store.put("agents/scout/spec.json", b"x" * 100_000)
    store.append(INBOX, line("a"))
    store.append(JOURNAL, line("a"), at=0)


def test_a_glance_says_what_the_store_says(store: Store) -> None:
    make_some_of_each(store)
    held = store.take(LEASE)
    assert held is not None
    store.say(held, b"me")
    outside = readings(store)
    for _ in range(2):
        with store.glance():
            assert readings(store) == outside
    store.release(held)
    with store.glance():
        assert not store.is_held(LEASE)
        assert store.get(LEASE) == b"me"


def test_a_glance_sees_what_its_process_writes(store: Store) -> None:
    def write_under_a_lock() -> None:
        store.put("config.json", (store.get("config.json") or b"") + b"4")

    make_some_of_each(store)
    with store.glance():
        assert store.get("config.json") == b"{}"
        thread = threading.Thread(target=lambda: store.put("config.json", b"2"))
        thread.start()
        thread.join()
        assert store.get("config.json") == b"2"
        end = store.append(INBOX, line("b"))
        assert (Key(store, INBOX).size(), lines(store, INBOX)[1:]) == (end, [line("b")[:-1]])
        store.locked(".locks/roster", write_under_a_lock)
        assert store.get("config.json") == b"24"
        held = store.take(LEASE)
        assert held is not None
        assert store.is_held(LEASE)
        store.say(held, b"me")
        assert store.get(LEASE) == b"me"
        store.free(LEASE, b"another")
        assert store.is_held(LEASE)
        store.release(held)
        assert not store.is_held(LEASE)
        store.make_folder("removed")
        store.move("agents/scout", "removed/scout")
        assert (store.names("agents"), store.changed(JOURNAL)) == ([], None)
        assert store.get("removed/scout/spec.json") == b"x" * 100_000
        store.remove("config.json")
        assert store.changed("config.json") is None
        assert "config.json" not in store.names("")


def test_a_glance_forgets_what_was_removed_and_made_again(store: Store) -> None:
    make_some_of_each(store)
    with store.glance():
        before = readings(store)
    store.remove("config.json")
    store.remove(INBOX)
    with store.glance():
        assert store.get("config.json") is None
        assert Key(store, INBOX).size() == 0
    store.purge()
    with store.glance():
        assert store.names("") == store.names("inbox") == []
        assert store.get("agents/scout/spec.json") is None
    for folder in ("", "inbox", "agents", "agents/scout", ".locks"):
        store.make_folder(folder)
    make_some_of_each(store)
    with store.glance():
        after = readings(store)
    assert after[1:] == before[1:]
    store.purge()
    store.make_folder("")
    with store.glance():
        assert store.get("config.json") is None
        assert store.names("agents/scout") == []


@pytest.mark.long
def test_glances_miss_nothing_that_others_write(
    store: Store, elsewhere: Callable[[str], subprocess.Popen[str]]
) -> None:
    """Another process writes with 16 threads. A reader of what changed has, in the end, what was written last."""
    store.make_folder("tasks")
    other = elsewhere("""
import threading
def write(number):
    for count in range(20):
        store.put(f"tasks/{number}.json", b"%d" % count)
        store.append("inbox/scout.jsonl", b"%d\\n" % count)
        store.put(f"tasks/{number}-{count}.json", b"{}")
        if count:
            store.remove(f"tasks/{number}-{count - 1}.json")
print("ready", flush=True)
threads = [threading.Thread(target=write, args=(number,)) for number in range(16)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
""")
    seen: dict[str, bytes | None] = {}
    looked: dict[str, Version | None] = {}
    names: list[str] = []
    size, last = 0, False
    while not last:
        last = other.poll() is not None
        with store.glance():
            size, names = Key(store, INBOX).size(), store.names("tasks")
            for name in set(names) | seen.keys():
                version = store.changed(f"tasks/{name}")
                if version is None or version != looked.get(name):
                    looked[name], seen[name] = version, store.get(f"tasks/{name}")
    assert other.returncode == 0
    assert {name: body for name, body in seen.items() if body is not None} == {
        **{f"{number}.json": b"19" for number in range(16)}, **{f"{number}-19.json": b"{}" for number in range(16)}
    }  # fmt: skip
    assert sorted(names) == sorted(store.names("tasks"))
    assert size == Key(store, INBOX).size()


def test_under_a_lock_a_glance_is_not_older_than_the_lock(
    store: Store, elsewhere: Callable[[str], subprocess.Popen[str]]
) -> None:
    store.put("config.json", b"1")
    with store.glance():
        assert store.get("config.json") == b"1"
        elsewhere("""
store.put("config.json", b"2")
print("ready", flush=True)
""")
        assert store.locked(".locks/roster", lambda: store.get("config.json")) == b"2"


@pytest.mark.long
def test_a_glance_in_another_looks_anew(store: Store, elsewhere: Callable[[str], subprocess.Popen[str]]) -> None:
    with store.glance():
        assert store.get("config.json") is None
        elsewhere("""
store.put("config.json", b"2")
print("ready", flush=True)
""")
        with store.glance():
            assert store.get("config.json") == b"2"


# ----------------------------------------------------------------------------------------------------------- leases


def test_a_lease_has_one_holder_and_a_growing_token(store: Store) -> None:
    tokens = []
    for number in range(5):
        held = store.take(LEASE)
        assert held is not None
        assert store.is_held(LEASE)
        assert store.take(LEASE) is None
        store.say(held, b"run %d" % number)
        tokens.append(held.token)
        store.release(held)
        assert not store.is_held(LEASE)
    assert tokens == sorted(set(tokens))


def test_all_see_what_the_holder_of_a_lease_says(store: Store) -> None:
    assert store.get(LEASE) is None
    held = store.take(LEASE)
    assert held is not None
    assert store.get(LEASE) == b""
    store.say(held, b"a long text about me")
    store.say(held, b"me")
    assert store.get(LEASE) == store.renew(held) == b"me"
    store.release(held)
    assert store.get(LEASE) == b"me"
    again = store.take(LEASE)
    assert again is not None
    assert store.renew(again) == b""
    store.release(again)


def test_a_removed_lease_is_lost_for_its_holder(store: Store) -> None:
    held = store.take(LEASE)
    assert held is not None
    store.remove(LEASE)
    store.remove(LEASE)
    assert store.renew(held) is None
    other = store.take(LEASE)
    assert other is not None
    assert other.token > held.token
    assert store.renew(held) is None
    store.release(held)
    assert store.is_held(LEASE)
    store.release(other)


def test_death_frees_a_lease(store: Store, place: str, elsewhere: Callable[[str], subprocess.Popen[str]]) -> None:
    holder = elsewhere("""
held = store.take("agents/scout/lease")
store.say(held, b"me")
print("ready", flush=True)
sys.stdin.read()
""")
    assert store.is_held(LEASE)
    assert store.take(LEASE) is None
    assert store.get(LEASE) == b"me"
    holder.kill()
    holder.wait()
    if not place.startswith("/"):
        # No one renews it any more.
        end_leases(place.split(maxsplit=1)[0])
    eventually(lambda: not store.is_held(LEASE), "the end of the lease")
    held = store.take(LEASE)
    assert held is not None
    store.release(held)


# ------------------------------------------------------------------------------------------------------------ hints


@pytest.mark.parametrize("deep", [False, True])
def test_listeners_hear_of_mail_requests_and_tasks(store: Store, deep: bool) -> None:
    for folder in ("requests", "tasks"):
        store.make_folder(folder)
    heard: queue.SimpleQueue[str] = queue.SimpleQueue()
    listener = store.listen(heard.put, deep=deep)
    assert listener.is_alive()

    def wait_for(name: str) -> None:
        while heard.get(timeout=WAIT_TIMEOUT) != name:
            pass

    store.append(INBOX, line("a"))
    wait_for(INBOX)
    store.put("tasks/1.json", b"{}")
    wait_for("tasks/1.json")
    store.put("requests/r1.json", b"{}")
    wait_for("requests/r1.json")
    store.locked(".locks/roster", lambda: store.put("config.json", b"{}"))
    wait_for("config.json")
    listener.stop()
    assert not listener.is_alive()
