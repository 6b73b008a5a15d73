"""The store in PostgreSQL: names are rows (schema.sql), and a worker's writes carry the token of its lease.

Each write is one call of a function, and so one transaction. The row of a log is its lock: offsets have no gaps, and no
line appears before an earlier one. A write of a worker that was replaced is refused in the same transaction that would
make it (`may_write` in schema.sql).

Only this module and those beside it (`postgres_server`) import psycopg, and only for teams in PostgreSQL.
"""

import contextlib
import re
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import msgspec
import psycopg
from msgspec import Struct
from psycopg import conninfo

from crewboard.errors import BadDataError, LostLeaseError, StorageError, UsageError
from crewboard.records.base import decoder
from crewboard.store import files
from crewboard.store.interface import Held, Listener, T, Version
from crewboard.store.postgres_glance import Copy, Row, copy_of
from crewboard.store.postgres_server import (
    PostgresListener,
    Server,
    close_all,
    describe_error,
    server_of,
    value_of,
)

__all__ = ["PostgresStore", "close_all", "require_url"]

_PAGE = 256
"""Lines that are read with one query."""

_LOST, _NOT_AT_END, _NO_FOLDER = -1, -2, -3
"""Results of functions of the schema that changed nothing: lost lease, log that ends elsewhere, missing folder."""

_AGAIN = object()
"""Stands for an argument that is True if the call is made again after a lost connection."""

_FIND = """
SELECT kind, id, version, extract(epoch FROM changed)::float8, size, CASE WHEN %s THEN body END, false
  FROM crewboard.entries WHERE team = %s AND folder = %s AND name = %s
UNION ALL
SELECT 'lease', token, token, extract(epoch FROM until)::float8, length(said), said, until > clock_timestamp()
  FROM crewboard.leases WHERE team = %s AND folder = %s AND name = %s
"""

_OF_LOG = "log = (SELECT id FROM crewboard.entries WHERE team = %s AND folder = %s AND name = %s AND kind = 'log')"

Parameters = Sequence[object]


def require_url(url: str) -> None:
    """Refuse a text that is not an address of PostgreSQL, or an address that contains a password.

    Messages do not quote what may be a password.

    Raises:
        UsageError: It is no such address, or it contains a password, which would be kept in a file.
    """
    if not url.startswith(("postgresql://", "postgres://")):
        raise UsageError("the store's address must begin with postgresql://")
    try:
        parts = conninfo.conninfo_to_dict(url)
    except psycopg.Error as error:
        why = re.sub(':? ?"[^"]*"', "", describe_error(error))
        raise UsageError(f"the store's address cannot be read: {why}") from None
    # A password with a slash ends the part that has passwords.
    if not all(each.isdigit() for each in str(parts.get("port") or "0").split(",") if each):
        raise UsageError("the store's address cannot be read: its port is no number")
    if any(parts.get(name) is not None for name in ("password", "sslpassword")):
        raise UsageError(
            "the store's address contains a password, which would be kept in a file: leave it out, and name a file "
            "of passwords in PGPASSFILE, or a service in PGSERVICE"
        )


class _Identified(Struct):
    id: object = None


class PostgresStore(Struct, frozen=True):
    """The store of one team in the database at `url`."""

    url: str
    team: str

    def describe(self, name: str) -> str:
        return f"{self.url.partition('?')[0]}/{self.team}/{name}"

    @property
    def _server(self) -> Server:
        return server_of(self.url, self.team)

    def glance(self, folder: str | None = None) -> AbstractContextManager[Copy]:
        if folder is not None and (copy := self._copy(folder)) is not None:
            return contextlib.nullcontext(copy)
        return self._server.glance(folder)

    def _copy(self, name: str) -> Copy | None:
        return copy_of(self.url, self.team, name)

    def now(self) -> float:
        return float(self._rows("SELECT extract(epoch FROM clock_timestamp())::float8", ())[0][0])

    # Logs.

    def append(self, log: str, line: bytes, *, at: int | None = None, durable: bool = False) -> int:
        if len(line) > files.MAX_LINE:
            raise BadDataError(
                f"a line of {len(line)} bytes for {self.describe(log)} is longer than the limit of "
                f"{files.MAX_LINE} bytes"
            )
        # A line is added only once, by the `id` of the JSON object on it, if there is one.
        try:
            ident = decoder(_Identified).decode(line).id
        except (msgspec.DecodeError, RecursionError):
            ident = None
        # Every commit waits for the disk, so `durable` adds nothing.
        again = _AGAIN if at is None else False
        by = ident if isinstance(ident, str) else None
        end: int = self._write(log, "append", log, line, by, False, at, again)  # noqa: FBT003  once
        return end

    def end(self, log: str) -> int:
        # Lines are whole: there is none to terminate.
        row = self._find(log)
        return row.version.size if row is not None else 0

    def read(self, log: str, offset: int = 0) -> Iterator[tuple[bytes | None, int]]:
        copy = self._copy(log)
        if copy is not None:
            if (row := copy.find(log, body=False)) is None or row.version.size <= offset:
                return
            if (ready := copy.lines_after(log, offset)) is not None:
                yield from ready
                return
        while True:
            rows = self._rows(
                f"SELECT upto, line FROM crewboard.lines WHERE {_OF_LOG} AND upto > %s ORDER BY upto LIMIT %s",  # noqa: S608
                (self.team, *_split(log), offset, _PAGE),
            )
            for upto, line in rows:
                # The offset may be within a line, as in a file.
                yield None if len(line) > files.MAX_LINE else line[max(0, offset - upto + len(line)) : -1], upto
                offset = upto
            if len(rows) < _PAGE:
                return

    def tail_offset(self, log: str, length: int) -> int:
        end = self.end(log)
        if end - length <= 0:
            return 0
        rows = self._rows(
            f"SELECT min(upto) FROM crewboard.lines WHERE {_OF_LOG} AND upto >= %s",  # noqa: S608
            (self.team, *_split(log), end - length),
        )
        return int(rows[0][0] or end)

    # Records.

    def get(self, record: str) -> bytes | None:
        row = self._find(record, body=True)
        return row.body if row is not None else None

    def put(self, record: str, data: bytes, *, durable: bool = False) -> None:
        self._write(record, "put", record, data)

    def remove(self, name: str) -> None:
        self._write(name, "remove", name)

    def names(self, folder: str) -> list[str]:
        if (copy := self._copy(folder)) is not None:
            return copy.names(folder)
        rows = self._rows(
            "SELECT name FROM crewboard.entries WHERE team = %s AND folder = %s "
            "UNION SELECT name FROM crewboard.leases WHERE team = %s AND folder = %s",
            (self.team, folder, self.team, folder),
        )
        return [name for (name,) in rows]

    def make_folder(self, folder: str) -> None:
        if not folder:
            self._server.make_tables()
        self._write(folder, "make_folder", folder)

    def move(self, name: str, to: str) -> None:
        self._write(to, "move", name, to)

    def claim(self, queue: str, to: str, labels: Collection[str], most: int) -> list[str]:
        names: list[str] | None = self._write(to, "claim", queue, to, list(labels), most)
        if names is None:
            raise LostLeaseError(f"the lease of this process in team {self.team} was lost, so it claimed nothing")
        return names

    def purge(self) -> None:
        self._write("", "purge")

    # Changes.

    def changed(self, name: str) -> Version | None:
        row = self._find(name)
        if row is None or row.kind != "folder":
            return row.version if row is not None else None
        with self.glance(name) as glance:
            return glance.folder_version(row)

    def locked(self, lock: str, work: Callable[[], T]) -> T:
        return self._server.locked(f"{self.team}/{lock}", work)

    def listen(self, heard: Callable[[str], None], *, deep: bool = False, leases: Collection[str] = ()) -> Listener:
        return PostgresListener(self.url, self.team, heard)

    # Leases.

    def take(self, lease: str) -> Held | None:
        holder = uuid.uuid4()
        server = self._server
        server.connect_once()
        begin = time.monotonic()
        token = self._write(lease, "take", lease, holder, server.lasts(lease))
        if token is None:
            return None
        held = Held(self, lease, token, -1)
        server.keeper.add(held, begin)
        return held

    def say(self, held: Held, about: bytes) -> None:
        rows = self._change(
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
        row = self._find(lease)
        return row is not None and row.is_held

    def release(self, held: Held) -> None:
        self._server.forget(held)
        # It ends by itself if this fails.
        with contextlib.suppress(StorageError):
            self._change("UPDATE crewboard.leases SET until = '-infinity' WHERE token = %s RETURNING 1", (held.token,))

    def free(self, lease: str, said: bytes) -> None:
        self._change(
            "UPDATE crewboard.leases SET until = '-infinity' WHERE team = %s AND folder = %s AND name = %s "
            "AND said = %s RETURNING 1",
            (self.team, *_split(lease), said),
        )

    def _rows(self, query: str, parameters: Parameters) -> list[tuple[Any, ...]]:
        return self._server.rows(query, parameters)

    def _find(self, name: str, *, body: bool = False) -> Row | None:
        """Return the entry or the lease with a name; None if there is none. With `body`, a record has its body."""
        if (copy := self._copy(name)) is not None:
            row = copy.find(name, body=body)
            if row is None or not body or row.kind != "record" or row.body is not None:
                return row
        place = (self.team, *_split(name))
        for kind, ident, number, at, size, content, is_held in self._rows(_FIND, (body, *place, *place)):
            return Row(kind, name, ident, number, Version(at, size, ident, number), content, is_held)
        return None

    def _change(self, query: str, parameters: Parameters) -> list[tuple[Any, ...]]:
        """Return the rows that a query which writes returns, and mark copies as outdated."""
        try:
            return self._server.rows(query, parameters)
        finally:
            self._server.note_write()

    def _write(self, name: str, function: str, *arguments: object) -> Any:
        """Call a function of the schema that writes under `name`, and return its result.

        Raises:
            LostLeaseError: This process lost its lease, or another process wrote into the log.
            StorageError: The folder does not exist, or the database failed.
        """
        files.check_before_writing()
        server = self._server

        def write(connection: "psycopg.Connection[Any]", again: bool) -> Any:
            given = [self.team, *(again if each is _AGAIN else each for each in arguments), server.token]
            return value_of(connection, f"SELECT crewboard.{function}({', '.join(['%s'] * len(given))})", given)

        try:
            answer = server.call(write)
        finally:
            server.note_write()
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
