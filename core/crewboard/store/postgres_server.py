"""The connections of this process to the database of a team: repeated calls, transactions, leases and hints.

After a lost connection a call is made again, for 0.6 of the time of a lease. If it is not known whether a transaction
was committed, the server is asked (`pg_xact_status`) before its work is done again.

A lease has an end, by the server's clock. It is renewed every quarter of its time. Its holder relies on it for 0.7 of
the time since the beginning of the last renewal, by its own clock, and ends before another process may take it. It is
renewed only if the server has just answered, so that it also ends in time if only answers are lost.
"""

import atexit
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from importlib import resources
from typing import Any, Generic, cast

import psycopg
from msgspec import Struct
from psycopg import conninfo, errors
from psycopg.pq import TransactionStatus

from crewboard.errors import CrewboardError, LostLeaseError, StorageError
from crewboard.store import files
from crewboard.store.interface import SCHEMA_VERSION, Held, T
from crewboard.store.postgres_glance import Copy, glance_at, note_write, without_glance

_DEFAULT_TTL = 15.0
"""Seconds that a lease lasts unless it is renewed, if the table of teams has no other number (`crewboard.teams`)."""

RENEW_AFTER = 0.25
RETRY_FOR = 0.6
CERTAIN_FOR = 0.7
"""Parts of the time of a lease: until it is renewed, for how long a call is repeated, and for how long its
holder relies on it.
"""

HOST_PART = 1 - RENEW_AFTER
"""The part of that time for which the lease of a host lasts. A run is lost once the leases of its worker and of its
host are over. The host may have renewed its lease later, by up to `RENEW_AFTER`, so its lease is shorter by this.
"""

_RETRY_INTERVAL = 0.2
"""Seconds until a failed renewal is tried again."""

_CONNECT_TIMEOUT = 5
_KEEPALIVES = {"idle": 3, "interval": 2, "count": 2}

_WORK_FOR = 0.5
"""The part of the time of a lease for which a transaction may wait for its process. A process that stands still, or is
cut off, must not keep locks for longer.
"""

_IDLE_CONNECTIONS = 2

_HOSTS = "hosts/"
"""The beginning of the names of the leases of hosts."""

# One query, because each command waits for it.
_FIRST_QUERY = """
SELECT number, lease_ttl,
  set_config('idle_in_transaction_session_timeout', (coalesce(lease_ttl, %s) * %s)::int::text, false)
  FROM crewboard.version LEFT JOIN crewboard.teams ON name = %s
"""

_RERUN = (
    errors.SerializationFailure, errors.DeadlockDetected, errors.IdleInTransactionSessionTimeout,
    # An administrator may set `lock_timeout`.
    errors.LockNotAvailable,
    # During a failover, the address may lead to a server that is no primary yet, or no more.
    errors.ReadOnlySqlTransaction,
)  # fmt: skip
_NO_TABLES = (errors.UndefinedTable, errors.UndefinedFunction, errors.InvalidSchemaName)
_DISCONNECTED = (psycopg.OperationalError, psycopg.InterfaceError)


class _Transaction(threading.local):
    """The transaction that the present thread is in, if any, and the error by which it failed."""

    connection: "psycopg.Connection[Any] | None" = None
    failed: psycopg.Error | None = None

    def begin(self, connection: "psycopg.Connection[Any]") -> None:
        self.connection, self.failed = connection, None

    def end(self) -> psycopg.Error | None:
        """Leave the transaction, and return the error by which it failed; None if it did not."""
        failed, self.connection, self.failed = self.failed, None, None
        return failed


def describe_error(error: BaseException) -> str:
    """Return on one line what went wrong, by an error of PostgreSQL or libpq."""
    if isinstance(error, _NO_TABLES):
        return "the database has no tables of crewboard: it is another one, or they were dropped"
    if isinstance(error, errors.ReadOnlySqlTransaction):
        return "the database takes no writes: it is a standby, or default_transaction_read_only is set"
    if isinstance(error, errors.InsufficientPrivilege):
        needed = "the role needs CREATE on the database to make the tables, and the rights of who made them to use them"
        return f"{_first_line(error)}; {needed}"
    return _first_line(error)


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__


class _Lease(Struct):
    """A lease that is renewed: since when it is certain, and what to call if it is no longer."""

    held: Held
    certain_since: float
    lost: Callable[[], None] | None = None


class LeaseKeeper:
    """Renews the leases of this process in one thread, and checks in another one that this succeeds.

    `renew` renews the leases with these tokens, and returns the tokens of those that this process still has. `ttl`
    returns how many seconds a lease lasts. Both threads end once `closed` is set.
    """

    def __init__(
        self, renew: Callable[[list[int]], set[int]], ttl: Callable[[], float], closed: threading.Event
    ) -> None:
        self._renew = renew
        self._ttl = ttl
        self._closed = closed
        self._lock = threading.Lock()
        self._leases: dict[int, _Lease] = {}
        self._renewer = threading.Thread(target=self._run, name="crewboard-leases", daemon=True)
        self._watcher = threading.Thread(target=self._watch, name="crewboard-lease", daemon=True)

    def add(self, held: Held, begin: float) -> None:
        with self._lock:
            self._leases[held.token] = _Lease(held, begin)
            # Not started yet.
            if self._renewer.ident is None:
                self._renewer.start()

    def drop(self, held: Held) -> None:
        with self._lock:
            self._leases.pop(held.token, None)

    def watch(self, held: Held, lost: Callable[[], None]) -> None:
        """Call `lost` once a lease is lost, or no longer certain; at once if it was lost before."""
        with self._lock:
            lease = self._leases.get(held.token)
            if lease is not None:
                lease.lost = lost
            if self._watcher.ident is None:
                self._watcher.start()
        if lease is None:
            lost()

    def _run(self) -> None:
        soon = min(_RETRY_INTERVAL, RENEW_AFTER * self._ttl())
        rest = soon
        while not self._closed.wait(rest):
            with self._lock:
                tokens = list(self._leases)
            begin = time.monotonic()
            try:
                renewed = self._renew(tokens) if tokens else set()
            except (psycopg.Error, CrewboardError):
                rest = soon
                continue
            self._note(tokens, renewed, begin)
            rest = RENEW_AFTER * self._ttl()

    def _note(self, asked: list[int], renewed: set[int], begin: float) -> None:
        with self._lock:
            for token in renewed & self._leases.keys():
                self._leases[token].certain_since = begin
            over = [self._leases.pop(token) for token in asked if token not in renewed and token in self._leases]
        self._tell(over)

    def _tell(self, over: list[_Lease]) -> None:
        for lease in over:
            if lease.lost is not None:
                lease.lost()

    def _watch(self) -> None:
        rest = 0.0
        while not self._closed.wait(rest):
            certain, now = CERTAIN_FOR * self._ttl(), time.monotonic()
            with self._lock:
                watched = [lease for lease in self._leases.values() if lease.lost is not None]
                over = [lease for lease in watched if lease.certain_since + certain <= now]
                for lease in over:
                    # The other thread neither renews it any more nor calls it lost, too.
                    del self._leases[lease.held.token]
            self._tell(over)
            rest = max(0.01, min((lease.certain_since for lease in watched), default=now) + certain - now)


class Server:
    """The connections of this process to the database of a team, and the leases that it holds there."""

    def __init__(self, url: str, team: str) -> None:
        self.url = url
        self.team = team
        self.ttl = _DEFAULT_TTL
        self.token: int | None = None
        """The token that every write of this process carries; None if writes are not fenced."""
        self._lock = threading.Lock()
        self._idle: list[psycopg.Connection[Any]] = []
        self._inside = _Transaction()
        self._was_reached = False
        """True if the database was reached since a call last gave up: only then is it worth waiting for a new
        connection.
        """
        self.copy = Copy(url, team, self.rows)
        self._folders: dict[str, Copy] = {}
        """Copies of single folders, for a process such as a worker or a command, which does not read the whole team."""
        self.closed = threading.Event()
        self.keeper = LeaseKeeper(self._renew, lambda: self.ttl, self.closed)
        """Renews the leases of this process until they are released."""

    # Connections.

    def close(self) -> None:
        """Close the connections, and stop renewing leases, which end when their time is up."""
        self.closed.set()
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def connect_once(self) -> None:
        """Connect, unless this process did before, so that it is known how long leases of the team last."""
        if not self._was_reached:
            self.call(lambda connection, _: value_of(connection, "SELECT 1"))

    def connect(self) -> "psycopg.Connection[Any]":
        """Return a new connection. The version of the tables is checked, and read how long leases of the team last.

        Raises:
            StorageError: The tables have another version.
        """
        connection = connect(self.url)
        try:
            # Before the first team, there are no tables.
            with suppress(errors.UndefinedTable):
                row = connection.execute(_FIRST_QUERY, (self.ttl, 1000 * _WORK_FOR, self.team)).fetchone()
                number, ttl, _ = row or (None, None, None)
                if number != SCHEMA_VERSION:
                    found = "none" if number is None else number
                    raise StorageError(
                        f"the tables in {self.url.partition('?')[0]} have version {found}, and this crewboard needs "
                        f"{SCHEMA_VERSION}; use the version of crewboard that made them"
                    )
                if ttl is not None:
                    self.ttl = float(ttl)
        except BaseException:
            connection.close()
            raise
        return connection

    def make_tables(self) -> None:
        """Create the tables and functions unless they exist."""
        schema = resources.files("crewboard.store").joinpath("schema.sql").read_bytes()

        def make(connection: "psycopg.Connection[Any]", _: bool) -> None:
            with connection.transaction():
                connection.execute("SELECT pg_advisory_xact_lock(hashtextextended('crewboard', 0))")
                if not value_of(connection, "SELECT to_regclass('crewboard.version') IS NOT NULL"):
                    connection.execute(schema)

        self.call(make)

    @contextmanager
    def _borrowed(self) -> Iterator["psycopg.Connection[Any]"]:
        with self._lock:
            connection = self._idle.pop() if self._idle else None
        connection = connection or self.connect()
        self._was_reached = True
        try:
            yield connection
        except BaseException as error:
            # After an error of the server it is usable, after anything else that is unknown.
            is_usable = connection.info.transaction_status == TransactionStatus.IDLE
            if not is_usable or isinstance(error, errors.ReadOnlySqlTransaction):
                connection.close()
            raise
        finally:
            with self._lock:
                keep = not (connection.closed or self.closed.is_set()) and len(self._idle) < _IDLE_CONNECTIONS
                if keep:
                    self._idle.append(connection)
            if not keep:
                connection.close()

    def rows(self, query: str, parameters: Sequence[object]) -> list[tuple[Any, ...]]:
        """Return the rows that a query returns."""
        return self.call(lambda connection, _: connection.execute(query.encode(), parameters, binary=True).fetchall())

    def glance(self, folder: str | None = None) -> AbstractContextManager[Copy]:
        """Return a context in which reads are answered from a copy of the rows.

        In a transaction, whose writes may be undone, the context has a copy of its own.
        """
        copy = self.copy
        if folder is not None:
            copy = self._folders.get(folder) or self._folders.setdefault(
                folder, Copy(self.url, self.team, self.rows, folder)
            )
        return glance_at(copy if self._inside.connection is None else copy.clone())

    def note_write(self) -> None:
        """Mark copies as outdated, so that they are updated before the next read from them."""
        self.copy.outdated = True
        note_write()

    def call(self, work: Callable[["psycopg.Connection[Any]", bool], T]) -> T:
        """Call `work` with a connection, and return its result.

        The second argument of `work` is False; after a lost connection `work` is called again, with True.

        Raises:
            StorageError: The database failed, or is out of reach.
        """
        inside = self._inside
        if inside.connection is not None:
            if inside.failed is not None:
                raise StorageError(f"the store failed: {describe_error(inside.failed)}") from inside.failed
            try:
                return work(inside.connection, False)  # noqa: FBT003
            except psycopg.Error as error:
                inside.failed = error
                raise StorageError(f"the store failed: {describe_error(error)}") from error

        def attempt(again: bool) -> T:
            with self._borrowed() as connection:
                return work(connection, again)

        return self._repeated(attempt)

    def _repeated(self, attempt: Callable[[bool], T]) -> T:
        deadline: float | None = None
        pause = 0.02
        while True:
            try:
                return attempt(deadline is not None)
            except psycopg.Error as error:
                if deadline is None:
                    deadline = time.monotonic() + (RETRY_FOR * self.ttl if self._was_reached else 0)
                if not _may_pass(error) or time.monotonic() + pause > deadline:
                    # Of a thousand reads of a pass, only the first one waits.
                    self._was_reached = self._was_reached and not _may_pass(error)
                    raise StorageError(
                        f"the store {self.url.partition('?')[0]} failed: {describe_error(error)}",
                        away=isinstance(error, _DISCONNECTED),
                    ) from error
            time.sleep(pause)
            pause = min(0.5, 2 * pause)

    def locked(self, lock: str, work: Callable[[], T]) -> T:
        """Call `work` in a transaction that holds this lock, and return its result."""
        query = "SELECT pg_current_xact_id()::text FROM pg_advisory_xact_lock(hashtextextended(%s, 0))"
        files.check_before_writing()
        if self._inside.connection is not None:
            self.call(lambda connection, _: value_of(connection, query, (lock,)))
            return work()
        ended = _Ended[T]()

        def attempt(_: bool) -> T:
            with self._borrowed() as connection:
                if ended.is_committed(connection):
                    return ended.result()
                ended.xid = None
                connection.execute("BEGIN")
                xid = value_of(connection, query, (lock,))
                ended.returned, ended.raised = self._work_in(connection, work)
                ended.xid = xid
                connection.execute("COMMIT")
                return ended.result()

        try:
            return self._repeated(attempt)
        finally:
            self.note_write()

    def _work_in(
        self, connection: "psycopg.Connection[Any]", work: Callable[[], T]
    ) -> tuple[T | None, Exception | None]:
        """Return the result of `work` and the error that it raised; one of them is None.

        What `work` wrote before it raised an error of its own stays.

        Raises:
            psycopg.Error: The transaction failed.
            CrewboardError: The store failed, or this process may not write; nothing is changed.
        """
        inside = self._inside
        inside.begin(connection)
        returned: T | None = None
        raised: Exception | None = None
        try:
            with without_glance():
                returned = work()
        except Exception as error:  # noqa: BLE001  it is raised again, here or after the commit
            raised = error
        finally:
            failed = inside.end()
        why = failed if failed is not None else raised
        if isinstance(why, psycopg.Error | LostLeaseError | StorageError):
            if not connection.closed:
                connection.execute("ROLLBACK")
            raise why
        return returned, raised

    # Leases.

    def lasts(self, lease: str) -> float:
        """Return how many seconds a lease with this name lasts if it is not renewed."""
        return HOST_PART * self.ttl if lease.startswith(_HOSTS) else self.ttl

    def _renew(self, tokens: list[int]) -> set[int]:
        """Renew leases, and return the tokens of those that were not lost. It is not repeated: the keeper does that.

        It uses an idle connection, so that a worker needs one connection and not two. It writes only after an answer:
        otherwise a process that gets no answers would keep others from a lease on which it no longer relies.
        """
        with self._borrowed() as connection:
            connection.execute("SELECT 1")
            rows = connection.execute(
                "UPDATE crewboard.leases SET until = clock_timestamp() + make_interval(secs => "
                "CASE WHEN starts_with(folder, %s) THEN %s ELSE %s END) "
                "WHERE token = ANY(%s) AND until > clock_timestamp() RETURNING token",
                (_HOSTS, HOST_PART * self.ttl, self.ttl, tokens),
            ).fetchall()
        return {token for (token,) in rows}

    def forget(self, held: Held) -> None:
        self.keeper.drop(held)
        if self.token == held.token:
            self.token = None

    def fence(self, held: Held, lost: Callable[[], None]) -> None:
        self.token = held.token
        self.keeper.watch(held, lost)


class _Ended(Struct, Generic[T]):
    """The end of an attempt to work in a transaction, as far as it is known.

    `xid` is the id of a transaction whose commit was not answered; None without one.
    """

    xid: str | None = None
    returned: T | None = None
    raised: Exception | None = None

    def is_committed(self, connection: "psycopg.Connection[Any]") -> bool:
        """Return True if the transaction whose commit was not answered was committed. Wait until it has ended."""
        while self.xid is not None:
            status = value_of(connection, "SELECT pg_xact_status(%s::xid8)", (self.xid,))
            if status != "in progress":
                return bool(status == "committed")
            time.sleep(0.01)
        return False

    def result(self) -> T:
        if self.raised is not None:
            raise self.raised
        return cast("T", self.returned)


def value_of(connection: "psycopg.Connection[Any]", query: str, parameters: Sequence[object] = ()) -> Any:
    """Return the first value of the first row that a query returns; None if it returns no row."""
    row = connection.execute(query.encode(), parameters, binary=True).fetchone()
    return None if row is None else row[0]


def connect(url: str) -> "psycopg.Connection[Any]":
    """Return a new connection to a database. Both sides notice within seconds if it is cut off."""
    given = conninfo.conninfo_to_dict(url)
    defaults: dict[str, Any] = {
        "application_name": "crewboard",
        "connect_timeout": _CONNECT_TIMEOUT,
        **{f"keepalives_{name}": value for name, value in _KEEPALIVES.items()},
        "tcp_user_timeout": 1000 * _CONNECT_TIMEOUT,
    }
    connection = psycopg.connect(
        url,
        autocommit=True,
        # Whatever the database or PGCLIENTENCODING says: text of one that has no encoding would be bytes.
        client_encoding="utf8",
        **{name: value for name, value in defaults.items() if name not in given},
    )
    # The server waits for hours otherwise.
    waits = {f"tcp_keepalives_{name}": value for name, value in _KEEPALIVES.items()}
    settings = {**waits, "tcp_user_timeout": 1000 * _CONNECT_TIMEOUT}
    calls = ", ".join("set_config(%s, %s, false)" for _ in settings)
    flat = [part for name, value in settings.items() for part in (name, str(value))]
    if value_of(connection, f"SELECT pg_backend_pid(), {calls}", flat) != connection.info.backend_pid:
        # A pooler gives each transaction another session, in which a prepared statement is unknown, or is another one.
        connection.prepare_threshold = None
    return connection


def _may_pass(error: psycopg.Error) -> bool:
    """Return True if the same call may succeed soon: the connection was lost, or others were in the way."""
    if isinstance(error, _RERUN):
        return True
    if not isinstance(error, _DISCONNECTED):
        return False
    # An error that the server reports has a code; those of class 57 say that it stops or starts, of 53 that it is full.
    return error.sqlstate is None or error.sqlstate[:2] in {"08", "57", "53"}


class PostgresListener:
    """A subscription to PostgreSQL's hints of changes.

    After a lost connection it connects again, and reports that anything may have changed.
    """

    def __init__(self, url: str, team: str, heard: Callable[[str], None]) -> None:
        self._url = url
        self._team = team
        self._heard = heard
        self._ended = threading.Event()
        self._connection = self._begin()
        threading.Thread(target=self._run, name="crewboard-listen", daemon=True).start()

    def is_alive(self) -> bool:
        """Return True if hints still arrive, or will again after a lost connection."""
        return not self._ended.is_set()

    def stop(self) -> None:
        """End the thread without waiting for it."""
        self._ended.set()

    def _begin(self) -> "psycopg.Connection[Any] | None":
        try:
            connection = connect(self._url)
            if connection.prepare_threshold is None:
                connection.close()
                raise StorageError(f"a pooler before {self._url.partition('?')[0]} gives no hints")
            channel = value_of(connection, "SELECT crewboard.channel(%s)", (self._team,))
            connection.execute(f"LISTEN {channel}".encode())
        except psycopg.Error as error:
            raise StorageError(
                f"the store {self._url.partition('?')[0]} gives no hints: {describe_error(error)}"
            ) from error
        return connection

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                if self._connection is None:
                    self._connection = self._begin()
                    self._heard("")
                else:
                    for hint in self._connection.notifies(timeout=0.5):
                        self._heard(hint.payload)
            except (psycopg.Error, StorageError):
                was_connected = self._connection is not None
                self._leave()
                if was_connected:
                    # Who reads now learns at once whether the database is away.
                    self._heard("")
                self._ended.wait(0.5)
        self._leave()

    def _leave(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


_servers: dict[tuple[str, str], Server] = {}
_making = threading.Lock()
_inherited: list[object] = []
"""Connections that a forked process inherited. They are kept, because closing them would end them for the parent."""


def server_of(url: str, team: str) -> Server:
    """Return the `Server` of this process for a team in the database at `url`."""
    with _making:
        known = _servers.get((url, team))
        if known is None:
            known = _servers[url, team] = Server(url, team)
        return known


def close_all() -> None:
    """Close all connections of this process. Leases that it holds end when their time is up."""
    with _making:
        servers = list(_servers.values())
        _servers.clear()
    for server in servers:
        server.close()


def _begin_anew() -> None:
    global _making  # noqa: PLW0603
    _inherited.extend(_servers.values())
    _servers.clear()
    _making = threading.Lock()


os.register_at_fork(after_in_child=_begin_anew)
atexit.register(close_all)
