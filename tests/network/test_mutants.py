"""Each rule that keeps a replaced worker from doing harm is removed in turn, and a check must fail."""

import contextlib
import threading
from collections.abc import Callable
from importlib import resources
from types import SimpleNamespace
from typing import Any

import pytest

from crewboard.store.interface import Store
from tests.crew import eventually
from tests.network.cluster import Cluster
from tests.network.test_faults import TOOL, ClusterMaker, are_free, busy, go_on
from tests.postgres import close_connections, set_lease_ttl
from tests.store import test_postgres_store as postgres_tests
from tests.store import test_store_protocol as protocol_tests

pytest.importorskip("psycopg")

# ruff: noqa: ANN401  the store in PostgreSQL is imported only where it is installed
pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]

_MAY_WRITE = """
  PERFORM 1 FROM crewboard.leases
    WHERE token = by_token AND team = of_team AND until > clock_timestamp() FOR SHARE;
  RETURN FOUND;"""

Check = Callable[[Any, pytest.MonkeyPatch], None]


def a_replaced_worker_writes_nothing(store: Any, _: pytest.MonkeyPatch) -> None:
    postgres_tests.test_a_replaced_worker_writes_nothing(store, "put")


_TAKE = f"SELECT crewboard.take('api', '{postgres_tests.LEASE}', gen_random_uuid(), 0.3)"


def a_taker_waits_for_a_write(store: Any, _: pytest.MonkeyPatch) -> None:
    """The lease of a worker ends while it writes: another one takes it only after that."""
    taken = threading.Event()

    def take() -> None:
        eventually(lambda: postgres_tests.run(store.url, _TAKE)[0], "the end of the lease")
        taken.set()

    thread = threading.Thread(target=take)
    with postgres_tests.psycopg.connect(store.url) as connection:
        postgres_tests.begin_write(connection)
        thread.start()
        eventually(lambda: taken.is_set() or postgres_tests.blocks_another(store.url, connection), "the taker to wait")
        was_taken = taken.is_set()
    thread.join()
    assert not was_taken
    assert taken.is_set()


_APPEND_ONCE = r"SELECT crewboard.append('api', 'inbox/scout.jsonl', '{}\012', new_ident => 'a', once => true)"


def the_same_ident_is_added_once(store: Any, _: pytest.MonkeyPatch) -> None:
    """Other programs may ask for that; a store never does."""
    first = postgres_tests.run(store.url, _APPEND_ONCE)
    assert postgres_tests.run(store.url, _APPEND_ONCE) == first
    assert len([*store.read("inbox/scout.jsonl")]) == 1


def a_line_is_added_only_at_the_end(store: Any, _: pytest.MonkeyPatch) -> None:
    protocol_tests.test_a_line_whose_answer_was_lost_is_added_once(store)


def a_lost_connection_doubles_nothing(store: Any, patch: pytest.MonkeyPatch) -> None:
    postgres_tests.test_a_lost_connection_loses_and_doubles_nothing(store.url, patch, after=True)


def a_holder_that_cannot_renew_is_told(store: Any, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(postgres_tests, "WAIT_TIMEOUT", 3.0)
    postgres_tests.test_a_holder_that_cannot_renew_is_told(store, patch)


RULES: dict[str, tuple[Check, str, str]] = {
    "fence": (a_replaced_worker_writes_nothing, _MAY_WRITE, "RETURN true;"),
    "share": (a_taker_waits_for_a_write, "FOR SHARE;", ";"),
    "ident": (the_same_ident_is_added_once, "IF once THEN", "IF false THEN"),
    "at": (a_line_is_added_only_at_the_end, "IF place <> log_size THEN", "IF false THEN"),
    "again": (a_lost_connection_doubles_nothing, "IF again THEN", "IF false THEN"),
}
"""Rules in the functions of the database: a check, the text that keeps the rule, and what stands there without it."""


@contextlib.contextmanager
def without(patch: pytest.MonkeyPatch, *removed: str) -> Any:
    """Make the tables of new databases without some rules."""
    from crewboard.store import postgres_server

    text = resources.files("crewboard.store").joinpath("schema.sql").read_text()
    for rule in removed:
        _, old, new = RULES[rule]
        assert old in text
        text = text.replace(old, new)
    file = SimpleNamespace(read_bytes=text.encode)
    folder = SimpleNamespace(joinpath=lambda _: file)
    with patch.context() as patched:
        patched.setattr(postgres_server, "resources", SimpleNamespace(files=lambda _: folder))
        yield


def make(url: str) -> Store:
    store: Store = postgres_tests.postgres_store.PostgresStore(url, "api")
    for folder in ("", "inbox", "agents", "agents/scout", "tasks"):
        store.make_folder(folder)
    set_lease_ttl(url, 60.0)
    close_connections()
    return store


@pytest.mark.parametrize("is_kept", [True, False], ids=["kept", "removed"])
@pytest.mark.parametrize("rule", RULES)
def test_a_rule_of_the_database(database: str, monkeypatch: pytest.MonkeyPatch, rule: str, is_kept: bool) -> None:
    check, _, _ = RULES[rule]
    with without(monkeypatch, *([] if is_kept else [rule])):
        store = make(database)
        with contextlib.nullcontext() if is_kept else pytest.raises((AssertionError, pytest.fail.Exception)):
            check(store, monkeypatch)
    close_connections()


def test_without_self_ending_a_holder_is_not_told(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from crewboard.store.postgres_server import LeaseKeeper

    monkeypatch.setattr(LeaseKeeper, "watch", lambda *_: None)
    with pytest.raises(AssertionError):
        a_holder_that_cannot_renew_is_told(make(database), monkeypatch)
    close_connections()


# Neither the worker nor its host ends what lost its lease.
_WITHOUT_ENDING = """
from crewboard.store.postgres_server import LeaseKeeper
from crewboard.supervisor.host import LocalHost
LeaseKeeper.watch = lambda *_: None
LocalHost.has_lost_lease = lambda *_: False
"""


def has_late_line(cluster: Cluster) -> bool:
    """Return True if a line in reader's journal is of an earlier run than the line before it."""
    runs = [write.fields["run"] for write in cluster.writes() if write.path == "agents/reader/journal.jsonl"]
    return runs != sorted(runs)


@pytest.mark.parametrize("is_fenced", [True, False], ids=["fence", "no fence"])
def test_the_fence_holds_workers_that_do_not_end(
    cluster_of: ClusterMaker, monkeypatch: pytest.MonkeyPatch, is_fenced: bool
) -> None:
    """A machine that is cut off goes on working, and comes back after its agents run elsewhere.

    Without `at`, only the fence refuses what its workers write.
    """
    with without(monkeypatch, "at", *([] if is_fenced else ["fence"])):
        cluster = cluster_of("a", "b", a=_WITHOUT_ENDING)
    busy(cluster, "a", "b")
    with cluster.mail("reader"):
        cluster.wait_for_mail("reader")
        cluster["a"].cut()
        eventually(lambda: are_free(cluster), "free leases")
        assert cluster["a"].has(*TOOL), "nothing ended it"
        go_on(cluster, "b")
        cluster["a"].heal()
        if is_fenced:
            eventually(lambda: not cluster["a"].works_for("reader"), "the end of the worker that was replaced")
        else:
            eventually(lambda: has_late_line(cluster), "a line of the worker that was replaced")
        cluster.wait_for_mail("reader", 20)
    with contextlib.nullcontext() if is_fenced else pytest.raises(AssertionError):
        cluster.check()
