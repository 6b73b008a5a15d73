"""The store in PostgreSQL: names are rows (schema.sql), and a worker's writes are fenced by the token of its lease.

- Each write is one call of a function, and so one transaction. The row of a log is its lock: offsets have no gaps, and
  no line appears before an earlier one.
- A lease has an end, by the server's clock. A thread renews what this process holds every quarter of the time. A worker
  that was replaced, or that could not renew for 0.7 of the time, is told so (`fence`), and ends before another one may
  begin. What it might still write is refused in the same transaction that would write it.
- After a lost connection a call is made again, for 0.6 of the time of a lease: the same line is added once, and a
  transaction whose end is unknown is asked for (`pg_xact_status`) before its work is done again.

This is the only module that imports psycopg, and it is imported for teams in PostgreSQL only.
"""

import atexit
import contextlib
import os
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from importlib import resources
from typing import Any, Generic, cast

import msgspec
import psycopg
from msgspec import Struct
from psycopg import conninfo, errors
from psycopg.pq import TransactionStatus

from crewboard.errors import BadDataError, CrewboardError, LostLeaseError, StorageError, UsageError
from crewboard.store import files
from crewboard.store.interface import SCHEMA_VERSION, Held, Listener, T, Version

_DEFAULT_TTL = 15.0
"""Seconds that a lease lasts unless it is renewed, if the team does not say (`crewboard.teams`)."""

_RENEW = 0.25
_RETRY = 0.6
_SURE = 0.7
"""Parts of the time of a lease: its renewal, how long a call is repeated, how long its holder is sure of it."""

_CONNECT_TIMEOUT = 5
_IDLE_CONNECTIONS = 2
_PAGE = 256
"""Lines that are read at once."""

_LOST, _NOT_AT_END, _NO_FOLDER = -1, -2, -3
"""Results of functions of the schema that changed nothing."""

_RERUN = (errors.SerializationFailure, errors.DeadlockDetected)
_NO_TABLES = (errors.UndefinedTable, errors.UndefinedFunction, errors.InvalidSchemaName)
_DISCONNECTED = (psycopg.OperationalError, psycopg.InterfaceError)

Parameters = Sequence[object]


class _Identified(Struct):
    id: object = None


class _Transaction(threading.local):
    """The transaction that this thread is in, if it is in one."""

    connection: "psycopg.Connection[Any] | None" = None
    failed: psycopg.Error | None = None

    def begin(self, connection: "psycopg.Connection[Any]") -> None:
        self.connection, self.failed = connection, None

    def end(self) -> psycopg.Error | None:
        """Return why the transaction failed, None if it did not."""
        failed, self.connection, self.failed = self.failed, None, None
        return failed


def require_url(url: str) -> None:
    """Refuse an address that is not one, or that contains a password.

    Raises:
        UsageError: It is no address of PostgreSQL, or has a password, which would be kept in a file.
    """
    try:
        parts = conninfo.conninfo_to_dict(url)
    except psycopg.Error as error:
        raise UsageError(f"the store's address cannot be read: {_words(error)}") from error
    if not url.startswith(("postgresql://", "postgres://")):
        raise UsageError("the store's address must begin with postgresql://")
    if parts.get("password") is not None:
        raise UsageError(
            "the store's address contains a password, which would be kept in a file: leave it out, and name a file "
            "of passwords in PGPASSFILE, or a service in PGSERVICE"
        )


class PostgresStore(Struct, frozen=True):
    """The store of one team in the database at `url`."""

    url: str
    team: str

    def describe(self, name: str) -> str:
        return f"{self.url.partition('?')[0]}/{self.team}/{name}"

    @property
    def _server(self) -> "_Server":
        return _server(self.url, self.team)

    def reach(self) -> None:
        self._rows("SELECT 1", ())

    def now(self) -> float:
        return float(self._rows("SELECT extract(epoch FROM clock_timestamp())::float8", ())[0][0])

    # Logs.

    def append(
        self, log: str, line: bytes, *, ident: str | None = None, at: int | None = None, durable: bool = False
    ) -> int:
        if len(line) > files.MAX_LINE:
            raise BadDataError(
                f"a line of {len(line)} bytes for {self.describe(log)} is longer than the limit of "
                f"{files.MAX_LINE} bytes"
            )
        # Every commit waits for the disk, so `durable` adds nothing.
        known = ident if ident is not None else _ident(line)
        end: int = self._write(
            log, "append(%s, %s, %s, %s, %s, %s, %s, %s)",
            lambda again: (log, line, known, ident is not None, at, again and at is None),
        )  # fmt: skip
        return end

    def end(self, log: str) -> int:
        # Lines are whole: there is none to terminate.
        return self.size(log)

    def read(self, log: str, offset: int = 0) -> Iterator[tuple[bytes | None, int]]:
        while True:
            rows = self._rows(
                "SELECT upto, line FROM crewboard.lines WHERE log = (SELECT id FROM crewboard.entries WHERE team = %s "
                "AND folder = %s AND name = %s AND kind = 'log') AND upto > %s ORDER BY upto LIMIT %s",
                (self.team, *_split(log), offset, _PAGE),
            )
            for upto, line in rows:
                # The offset may be within a line, as in a file.
                yield None if len(line) > files.MAX_LINE else line[max(0, offset - upto + len(line)) : -1], upto
                offset = upto
            if len(rows) < _PAGE:
                return

    def size(self, log: str) -> int:
        rows = self._rows(
            "SELECT size FROM crewboard.entries WHERE team = %s AND folder = %s AND name = %s",
            (self.team, *_split(log)),
        )
        return int(rows[0][0]) if rows else 0

    def tail_offset(self, log: str, length: int) -> int:
        end = self.size(log)
        if end - length <= 0:
            return 0
        rows = self._rows(
            "SELECT min(upto) FROM crewboard.lines WHERE log = (SELECT id FROM crewboard.entries WHERE team = %s "
            "AND folder = %s AND name = %s) AND upto >= %s",
            (self.team, *_split(log), end - length),
        )
        return int(rows[0][0] or end)

    # Records.

    def get(self, record: str) -> bytes | None:
        rows = self._rows(
            "SELECT body FROM crewboard.entries WHERE team = %s AND folder = %s AND name = %s AND kind = 'record'",
            (self.team, *_split(record)),
        )
        return rows[0][0] if rows else None

    def put(self, record: str, data: bytes, *, durable: bool = False) -> None:
        self._write(record, "put(%s, %s, %s, %s)", lambda _: (record, data))

    def remove(self, name: str) -> None:
        self._write(name, "remove(%s, %s, %s)", lambda _: (name,))

    def names(self, folder: str) -> list[str]:
        rows = self._rows(
            "SELECT name FROM crewboard.entries WHERE team = %s AND folder = %s "
            "UNION SELECT name FROM crewboard.leases WHERE team = %s AND folder = %s",
            (self.team, folder, self.team, folder),
        )
        return [name for (name,) in rows]

    def make_folder(self, folder: str) -> None:
        if not folder:
            self._server.make_tables()
        self._write(folder, "make_folder(%s, %s, %s)", lambda _: (folder,))

    def move(self, name: str, to: str) -> None:
        self._write(to, "move(%s, %s, %s, %s)", lambda _: (name, to))

    def claim(self, queue: str, to: str, labels: Collection[str], most: int) -> list[str]:
        names: list[str] | None = self._write(
            to, "claim(%s, %s, %s, %s, %s, %s)", lambda _: (queue, to, list(labels), most)
        )  # fmt: skip
        if names is None:
            raise LostLeaseError(f"the lease of this process in team {self.team} was lost, so it claimed nothing")
        return names

    def purge(self) -> None:
        self._write("", "purge(%s, %s)", lambda _: ())

    # Changes.

    def changed(self, name: str) -> Version | None:
        place = (self.team, *_split(name))
        rows = self._rows(
            "SELECT kind, extract(epoch FROM changed)::float8, size, id, version FROM crewboard.entries "
            "WHERE team = %s AND folder = %s AND name = %s UNION ALL "
            "SELECT 'lease', extract(epoch FROM until)::float8, length(said), token, token FROM crewboard.leases "
            "WHERE team = %s AND folder = %s AND name = %s UNION ALL "
            "SELECT 'folder', 0, 0, 0, 0 FROM crewboard.teams WHERE name = %s AND %s = ''",
            (*place, *place, self.team, name),
        )
        if not rows:
            return None
        kind, at, size, origin, version = rows[0]
        if kind != "folder":
            return Version(at, size, origin, version)
        # Numbers may be committed in another order than they are given, so the highest one does not tell all changes.
        count, latest, mark = self._rows(
            "SELECT count(*), coalesce(max(extract(epoch FROM changed)), 0)::float8, "
            "coalesce(sum(hashint8extended(version, 0)), 0)::text FROM ("
            "SELECT version, changed FROM crewboard.entries WHERE team = %s AND folder = %s UNION ALL "
            "SELECT token, NULL FROM crewboard.leases WHERE team = %s AND folder = %s) AS inside",
            (self.team, name, self.team, name),
        )[0]
        return Version(max(at, latest), count, origin, mark)

    def locked(self, lock: str, work: Callable[[], T]) -> T:
        return self._server.locked(f"{self.team}/{lock}", work)

    def listen(self, heard: Callable[[str], None], *, deep: bool = False, leases: Collection[str] = ()) -> Listener:
        return _Listening(self.url, self.team, heard)

    # Leases.

    def take(self, lease: str) -> Held | None:
        holder = uuid.uuid4()
        server = self._server
        server.connect_once()
        begin = time.monotonic()
        token = self._write(lease, "take(%s, %s, %s, %s, %s)", lambda _: (lease, holder, server.ttl))
        if token is None:
            return None
        held = Held(self, lease, token, -1)
        server.keep(held, begin)
        return held

    def say(self, held: Held, about: bytes) -> None:
        rows = self._rows(
            "UPDATE crewboard.leases SET said = %s WHERE token = %s AND until > clock_timestamp() RETURNING 1",
            (about, held.token),
        )
        if not rows:
            raise StorageError(f"cannot write the holder of {self.describe(held.name)}: the lease was lost")

    def renew(self, held: Held) -> bytes | None:
        try:
            rows = self._rows(
                "SELECT said FROM crewboard.leases WHERE token = %s AND until > clock_timestamp()", (held.token,)
            )
        except StorageError:
            # A lease is lost only if that is certain.
            return b""
        return rows[0][0] if rows else None

    def fence(self, held: Held, check: Callable[[], None], lost: Callable[[], None]) -> None:
        self._server.fence(held, lost)

    def is_held(self, lease: str) -> bool:
        rows = self._rows(
            "SELECT 1 FROM crewboard.leases WHERE team = %s AND folder = %s AND name = %s "
            "AND until > clock_timestamp()",
            (self.team, *_split(lease)),
        )
        return bool(rows)

    def last_said(self, lease: str) -> bytes | None:
        rows = self._rows(
            "SELECT said FROM crewboard.leases WHERE team = %s AND folder = %s AND name = %s",
            (self.team, *_split(lease)),
        )
        return rows[0][0] if rows else None

    def release(self, held: Held) -> None:
        self._server.forget(held)
        # It ends by itself if this fails.
        with contextlib.suppress(StorageError):
            self._rows("UPDATE crewboard.leases SET until = '-infinity' WHERE token = %s RETURNING 1", (held.token,))

    def free(self, lease: str, said: bytes) -> None:
        self._rows(
            "UPDATE crewboard.leases SET until = '-infinity' WHERE team = %s AND folder = %s AND name = %s "
            "AND said = %s RETURNING 1",
            (self.team, *_split(lease), said),
        )

    def _rows(self, query: str, parameters: Parameters) -> list[tuple[Any, ...]]:
        return self._server.call(lambda connection, _: connection.execute(query, parameters, binary=True).fetchall())

    def _write(self, name: str, function: str, arguments: Callable[[bool], Parameters]) -> Any:
        """Call a function that writes, and return what it returned; `arguments` are told of another attempt."""
        files.require_ownership()
        server = self._server

        def write(connection: "psycopg.Connection[Any]", again: bool) -> Any:
            given = (self.team, *arguments(again), server.token)
            row = connection.execute(f"SELECT crewboard.{function}".encode(), given, binary=True).fetchone()
            return None if row is None else row[0]

        answer = server.call(write)
        if answer == _LOST:
            raise LostLeaseError(
                f"the lease of this process in team {self.team} was lost, so {self.describe(name)} is unchanged"
            )
        if answer == _NOT_AT_END:
            raise LostLeaseError(f"another process wrote into {self.describe(name)}; this run ends")
        if answer == _NO_FOLDER:
            raise StorageError(f"cannot write {self.describe(name)}: its folder does not exist")
        return answer


def _split(name: str) -> tuple[str, str]:
    folder, _, last = name.rpartition("/")
    return folder, last


def _ident(line: bytes) -> str | None:
    """Return the `id` of the object on a line, None if it has none."""
    try:
        found = msgspec.json.decode(line, type=_Identified).id
    except (msgspec.DecodeError, RecursionError):
        return None
    return found if isinstance(found, str) else None


def _words(error: BaseException) -> str:
    """Return the first line of what PostgreSQL or libpq says."""
    if isinstance(error, _NO_TABLES):
        return "the database has no tables of crewboard: it is another one, or they were dropped"
    return str(error).strip().partition("\n")[0] or type(error).__name__


class _Server:
    """The connections of this process to the database of a team, and the leases that it holds there."""

    def __init__(self, url: str, team: str) -> None:
        self.url = url
        self.team = team
        self.ttl = _DEFAULT_TTL
        self.token: int | None = None
        """The token that every write of this process must have."""
        self._lock = threading.Lock()
        self._idle: list[psycopg.Connection[Any]] = []
        self._inside = _Transaction()
        self._was_connected = False
        self._keeper: _Keeper | None = None
        self.closed = threading.Event()

    # Connections.

    def close(self) -> None:
        """Close the connections, and renew no more leases."""
        self.closed.set()
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def connect_once(self) -> None:
        """Connect, to know how long leases of the team last."""
        if not self._was_connected:
            self.call(lambda connection, _: connection.execute("SELECT 1").fetchone())

    def connect(self) -> "psycopg.Connection[Any]":
        connection = connect(self.url)
        try:
            self._look(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _look(self, connection: "psycopg.Connection[Any]") -> None:
        """Check the version of the tables, and see how long leases of the team last."""
        row = connection.execute("SELECT to_regclass('crewboard.version') IS NOT NULL").fetchone()
        if row is None or not row[0]:
            return
        version = connection.execute("SELECT number FROM crewboard.version").fetchone()
        if version is None or version[0] != SCHEMA_VERSION:
            found = "none" if version is None else version[0]
            raise StorageError(
                f"the tables in {self.url.partition('?')[0]} have version {found}, and this crewboard needs "
                f"{SCHEMA_VERSION}; use the version of crewboard that made them"
            )
        ttl = connection.execute("SELECT lease_ttl FROM crewboard.teams WHERE name = %s", (self.team,)).fetchone()
        if ttl is not None:
            self.ttl = float(ttl[0])

    def make_tables(self) -> None:
        """Make the tables and functions unless they are there."""
        schema = resources.files("crewboard.store").joinpath("schema.sql").read_bytes()

        def make(connection: "psycopg.Connection[Any]", _: bool) -> None:
            with connection.transaction():
                connection.execute("SELECT pg_advisory_xact_lock(hashtextextended('crewboard', 0))")
                row = connection.execute("SELECT to_regclass('crewboard.version') IS NOT NULL").fetchone()
                if row is not None and not row[0]:
                    connection.execute(schema)

        self.call(make)

    @contextmanager
    def _borrowed(self) -> Iterator["psycopg.Connection[Any]"]:
        with self._lock:
            connection = self._idle.pop() if self._idle else None
        connection = connection or self.connect()
        self._was_connected = True
        try:
            yield connection
        except BaseException:
            # After an error of the server it is usable, after anything else that is unknown.
            if connection.info.transaction_status != TransactionStatus.IDLE:
                connection.close()
            raise
        finally:
            with self._lock:
                keep = not (connection.closed or self.closed.is_set()) and len(self._idle) < _IDLE_CONNECTIONS
                if keep:
                    self._idle.append(connection)
            if not keep:
                connection.close()

    def call(self, work: Callable[["psycopg.Connection[Any]", bool], T]) -> T:
        """Return what `work` returns for a connection. After a lost one it is called again, and told so."""
        inside = self._inside
        if inside.connection is not None:
            if inside.failed is not None:
                raise StorageError(f"the store failed: {_words(inside.failed)}") from inside.failed
            try:
                return work(inside.connection, False)  # noqa: FBT003
            except psycopg.Error as error:
                inside.failed = error
                raise StorageError(f"the store failed: {_words(error)}") from error

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
                    deadline = time.monotonic() + (_RETRY * self.ttl if self._was_connected else 0)
                if not _is_passing(error) or time.monotonic() + pause > deadline:
                    raise StorageError(f"the store {self.url.partition('?')[0]} failed: {_words(error)}") from error
            time.sleep(pause)
            pause = min(0.5, 2 * pause)

    def locked(self, lock: str, work: Callable[[], T]) -> T:
        """Return what `work` returns in one transaction, while no other one has this lock."""
        query = "SELECT pg_current_xact_id()::text FROM pg_advisory_xact_lock(hashtextextended(%s, 0))"
        files.require_ownership()
        if self._inside.connection is not None:
            self.call(lambda connection, _: connection.execute(query, (lock,)).fetchone())
            return work()
        ended = _Ended[T]()

        def attempt(_: bool) -> T:
            with self._borrowed() as connection:
                if ended.is_committed(connection):
                    return ended.result()
                ended.xid = None
                connection.execute("BEGIN")
                row = connection.execute(query, (lock,)).fetchone()
                ended.returned, ended.raised = self._work_in(connection, work)
                ended.xid = None if row is None else row[0]
                connection.execute("COMMIT")
                return ended.result()

        return self._repeated(attempt)

    def _work_in(
        self, connection: "psycopg.Connection[Any]", work: Callable[[], T]
    ) -> tuple[T | None, Exception | None]:
        """Return what `work` returns or raises. What it wrote before it raised an error of its own, stays.

        Raises:
            psycopg.Error: The transaction failed.
            CrewboardError: The store failed, or this process may not write; nothing is changed.
        """
        inside = self._inside
        inside.begin(connection)
        returned: T | None = None
        raised: Exception | None = None
        try:
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

    def keep(self, held: Held, begin: float) -> None:
        """Renew a lease until it is released."""
        with self._lock:
            if self._keeper is None:
                self._keeper = _Keeper(self)
            keeper = self._keeper
        keeper.add(held, begin)

    def forget(self, held: Held) -> None:
        if self._keeper is not None:
            self._keeper.drop(held)
        if self.token == held.token:
            self.token = None

    def fence(self, held: Held, lost: Callable[[], None]) -> None:
        self.token = held.token
        if self._keeper is not None:
            self._keeper.watch(held, lost)


class _Ended(Struct, Generic[T]):
    """The end of an attempt to work in a transaction, as far as it is known."""

    xid: str | None = None
    returned: T | None = None
    raised: Exception | None = None

    def is_committed(self, connection: "psycopg.Connection[Any]") -> bool:
        """Return True if the transaction whose commit was not answered was successful. Wait until it has ended."""
        while self.xid is not None:
            row = connection.execute("SELECT pg_xact_status(%s::xid8)", (self.xid,)).fetchone()
            if row is None or row[0] != "in progress":
                return row is not None and row[0] == "committed"
            time.sleep(0.01)
        return False

    def result(self) -> T:
        if self.raised is not None:
            raise self.raised
        return cast("T", self.returned)


def connect(url: str) -> "psycopg.Connection[Any]":
    """Connect to a database. A connection that is cut off is noticed by both sides within seconds."""
    given = conninfo.conninfo_to_dict(url)
    defaults: dict[str, Any] = {
        "application_name": "crewboard",
        "connect_timeout": _CONNECT_TIMEOUT,
        "keepalives_idle": 3,
        "keepalives_interval": 2,
        "keepalives_count": 2,
        "tcp_user_timeout": 1000 * _CONNECT_TIMEOUT,
    }
    return psycopg.connect(
        url, autocommit=True, **{name: value for name, value in defaults.items() if name not in given}
    )


def _is_passing(error: psycopg.Error) -> bool:
    """Return True if the same call may succeed soon: the connection was lost, or others were in the way."""
    if isinstance(error, _RERUN):
        return True
    if not isinstance(error, _DISCONNECTED):
        return False
    # An error that the server reports has a code; those of class 57 say that it stops or starts, of 53 that it is full.
    return error.sqlstate is None or error.sqlstate[:2] in {"08", "57", "53"}


class _Kept(Struct):
    """A lease that is renewed: since when it is certain, and what to call if it is not any more."""

    held: Held
    sure_since: float
    lost: Callable[[], None] | None = None


class _Keeper:
    """Renews the leases of this process in one thread, and watches in another one that this succeeds."""

    def __init__(self, server: _Server) -> None:
        self._server = server
        self._lock = threading.Lock()
        self._kept: dict[int, _Kept] = {}
        self._begun = False
        self._watching = False

    def add(self, held: Held, begin: float) -> None:
        with self._lock:
            self._kept[held.token] = _Kept(held, begin)
            begun, self._begun = self._begun, True
        if not begun:
            threading.Thread(target=self._renew, name="crewboard-leases", daemon=True).start()

    def drop(self, held: Held) -> None:
        with self._lock:
            self._kept.pop(held.token, None)

    def watch(self, held: Held, lost: Callable[[], None]) -> None:
        """Call `lost` as soon as a lease is lost, or is not certain any more: at once if it was lost before."""
        with self._lock:
            kept = self._kept.get(held.token)
            if kept is not None:
                kept.lost = lost
            watching, self._watching = self._watching, True
        if kept is None:
            lost()
        if not watching:
            threading.Thread(target=self._watch, name="crewboard-lease", daemon=True).start()

    def _renew(self) -> None:
        connection: psycopg.Connection[Any] | None = None
        closed, ttl = self._server.closed, self._server.ttl
        while not closed.wait(_RENEW * ttl if connection is not None else min(0.2, _RENEW * ttl)):
            with self._lock:
                tokens = list(self._kept)
            if not tokens:
                continue
            begin = time.monotonic()
            try:
                connection = connection or self._server.connect()
                rows = connection.execute(
                    "UPDATE crewboard.leases SET until = clock_timestamp() + make_interval(secs => %s) "
                    "WHERE token = ANY(%s) AND until > clock_timestamp() RETURNING token",
                    (self._server.ttl, tokens),
                ).fetchall()
            except (psycopg.Error, CrewboardError):
                if connection is not None:
                    connection.close()
                connection = None
                continue
            self._note(tokens, {token for (token,) in rows}, begin)
        if connection is not None:
            connection.close()

    def _note(self, asked: list[int], renewed: set[int], begin: float) -> None:
        lost = []
        with self._lock:
            for token in asked:
                kept = self._kept.get(token)
                if kept is None:
                    continue
                if token in renewed:
                    kept.sure_since = begin
                else:
                    lost.append(self._kept.pop(token))
        for kept in lost:
            if kept.lost is not None:
                kept.lost()

    def _watch(self) -> None:
        rest = 0.0
        while not self._server.closed.wait(rest):
            sure, now = _SURE * self._server.ttl, time.monotonic()
            with self._lock:
                watched = [kept for kept in self._kept.values() if kept.lost is not None]
            for kept in watched:
                if kept.lost is not None and kept.sure_since + sure <= now:
                    kept.lost()
            rest = max(0.01, min((kept.sure_since for kept in watched), default=now) + sure - now)


class _Listening:
    """Hints of PostgreSQL. After a lost connection it connects again, and says that anything may have changed."""

    def __init__(self, url: str, team: str, heard: Callable[[str], None]) -> None:
        self._url = url
        self._team = team
        self._heard = heard
        self._ended = threading.Event()
        self._connection = self._begin()
        threading.Thread(target=self._run, name="crewboard-listen", daemon=True).start()

    def is_alive(self) -> bool:
        """Return True if hints still arrive, or may soon again."""
        return not self._ended.is_set()

    def stop(self) -> None:
        """End the thread without waiting for it."""
        self._ended.set()

    def _begin(self) -> "psycopg.Connection[Any] | None":
        try:
            connection = connect(self._url)
            row = connection.execute("SELECT crewboard.channel(%s)", (self._team,)).fetchone()
            connection.execute(f"LISTEN {row[0] if row else ''}".encode())
        except psycopg.Error as error:
            raise StorageError(f"the store {self._url.partition('?')[0]} gives no hints: {_words(error)}") from error
        return connection

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                self._hear()
            except (psycopg.Error, StorageError):
                self._leave()
                self._ended.wait(0.5)
        self._leave()

    def _hear(self) -> None:
        if self._connection is None:
            self._connection = self._begin()
            self._heard("")
        else:
            for hint in self._connection.notifies(timeout=0.5):
                self._heard(hint.payload)

    def _leave(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


_servers: dict[tuple[str, str], _Server] = {}
_making = threading.Lock()
_of_the_parent: list[object] = []
"""Connections that a forked process inherited. Closing them would end them for its parent."""


def _server(url: str, team: str) -> _Server:
    with _making:
        known = _servers.get((url, team))
        if known is None:
            known = _servers[url, team] = _Server(url, team)
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
    _of_the_parent.extend(_servers.values())
    _servers.clear()
    _making = threading.Lock()


os.register_at_fork(after_in_child=_begin_anew)
atexit.register(close_all)
