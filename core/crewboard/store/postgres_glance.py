"""A copy of the entries and leases of a team in PostgreSQL, which one query brings up to date.

It is for passes over all agents. Each row has the id of the transaction that wrote it last. A look asks for the rows of
every transaction that had not ended at the last look (`pg_snapshot_xmin`). So it does not miss a transaction that began
before that look and ended after it, as it would with a growing number. Some rows come twice, which changes nothing.

The copy has bodies only of records that were asked for and of similar ones: of `spec.json` of each agent once that of
one agent was asked for, of all records of the folder `tasks` once one of them was asked for.
"""

import functools
import math
import operator
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import takewhile
from typing import Any

from msgspec import Struct

from crewboard.store.interface import Version

_MAX_BODY = 64 * 1024
"""Most bytes of a record's body that the copy keeps; a larger body is read each time that it is asked for."""

_LIKE_ASKED = "kind = 'record' AND size <= %s AND (folder = ANY(%s) OR (strpos(folder, '/') > 0 AND name = ANY(%s)))"

_LOOK = f"""
SELECT 'look', CASE WHEN trimmed >= %s::xid8 THEN 'late' ELSE '' END,
  pg_snapshot_xmin(pg_current_snapshot())::text, id, 0::bigint, extract(epoch FROM clock_timestamp())::float8,
  0::bigint, NULL::bytea
  FROM crewboard.teams WHERE name = %s
UNION ALL SELECT 'gone', '', '', id, 0, 0, 0, NULL FROM crewboard.gone WHERE team = %s AND xid >= %s::xid8
UNION ALL SELECT kind, folder, name, id, version, extract(epoch FROM changed)::float8, size,
  CASE WHEN {_LIKE_ASKED} THEN body END
  FROM crewboard.entries WHERE team = %s AND xid >= %s::xid8 {{inside}}
UNION ALL SELECT 'lease', folder, name, token, token, extract(epoch FROM until)::float8, length(said), said
  FROM crewboard.leases WHERE team = %s AND xid >= %s::xid8 {{inside}}
"""  # noqa: S608  no value is in it

_LOOK_AT_ALL = _LOOK.format(inside="")
_LOOK_INSIDE = _LOOK.format(inside="AND (folder = %s OR (folder = %s AND name = %s))")

_BEFORE_ALL, _AFTER_ALL = "0", str(2**64 - 1)
"""Numbers below and above those of all transactions."""

_MAX_NEWS = 50_000
"""Most changes that are kept for readers that look rarely."""

Query = Callable[[str, Sequence[object]], list[tuple[Any, ...]]]
"""A function that runs a query with parameters, and returns its rows."""


class Row(Struct):
    """An entry or a lease. `version.at` is when an entry changed, or when a lease ends.

    `body` is the contents of a record, if they are kept, or the text in a lease. `number` changes with each write.
    """

    kind: str
    place: str
    id: int
    number: int
    version: Version
    body: bytes | None
    is_held: bool = False


class Copy:
    """The rows of a team, or of one folder, as they were at the last look. Reading from it takes no lock."""

    def __init__(self, url: str, team: str, query: Query, folder: str | None = None) -> None:
        self.url = url
        self.team = team
        self.folder = folder
        self._query = query
        self._lock = threading.Lock()
        self._folders: set[str] = set() if folder is None else {folder}
        self._names: set[str] = set()
        """Folders (`_folders`), and last parts of names, of the records whose bodies are kept."""
        self._ahead: dict[tuple[str, int], list[tuple[bytes | None, int]]] = {}
        """Lines that were read ahead since the last look, by log and offset."""
        self.outdated = False
        """True after a write of this process that no look has seen yet."""
        self._looks = 0
        self._is_clone = False
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._news: deque[tuple[int, str]] = deque()
        """The names that changed, each with the number of the look that saw it."""
        self._news_after = self._looks + 1
        """The number of the look after which `_news` has all changes."""
        self._since, self._id, self._now = _BEFORE_ALL, 0, 0.0
        self._entries: dict[str, Row] = {}
        self._leases: dict[str, Row] = {}
        self._by_id: dict[int, Row] = {}
        self._inside: defaultdict[str, dict[int, str]] = defaultdict(dict)
        """The ids and names of the rows in each folder."""
        self._versions: dict[str, Version] = {}
        """The versions of folders that were asked for, until something in the folder changes."""

    def clone(self) -> "Copy":
        """Return a copy of this one for use in a transaction, whose writes may be undone."""
        other = Copy(self.url, self.team, self._query, self.folder)
        other._is_clone = True
        with self._lock:
            other._since, other._id, other._now = self._since, self._id, self._now
            other._folders, other._names = set(self._folders), set(self._names)
            other._entries, other._leases, other._by_id = dict(self._entries), dict(self._leases), dict(self._by_id)
            other._inside.update((folder, dict(inside)) for folder, inside in self._inside.items())
        return other

    def covers(self, name: str) -> bool:
        """Return True if this copy can answer for a name and, if it is a folder, for all that is in it."""
        if self.folder is None or self.folder == name:
            return True
        row = self._entries.get(name)
        return self.folder == name.rpartition("/")[0] and (row is None or row.kind != "folder")

    # Looking.

    def look(self) -> None:
        """Bring the copy up to date.

        Raises:
            StorageError: The store failed; the copy is unchanged, and stays outdated.
        """
        with self._lock:
            # A write from here on may be too late for this look.
            self.outdated = False
            self._ahead = {}
            try:
                rows = self._rows_since(self._since)
                is_late = any(row[:2] == ("look", "late") for row in rows)
                if is_late:
                    rows = self._rows_since(_BEFORE_ALL)
            except BaseException:
                self.outdated = True
                raise
            self._looks += 1
            looks = [row for row in rows if row[0] == "look"]
            if is_late or not looks or looks[0][3] != self._id:
                # What was removed since the last look is not known any more; or the team was removed, or another one
                # was created under its name.
                self._begin_anew()
                self._news_after = self._looks
            # First, whatever order the server chose: an entry that was moved is among both.
            for row in rows:
                if row[0] == "gone":
                    self._drop(row[3])
            for kind, folder, name, ident, number, at, size, body in rows:
                if kind == "look":
                    self._since, self._id, self._now = name, ident, at
                elif kind != "gone":
                    place = f"{folder}/{name}" if folder else name
                    self._keep(Row(kind, place, ident, number, Version(at, size, ident, number), body))
            # Time alone ends a lease, too.
            for lease in self._leases.values():
                if (lease.version.at > self._now) != lease.is_held:
                    lease.is_held = not lease.is_held
                    self._tell(lease.place)
            while len(self._news) > _MAX_NEWS:
                self._news_after = self._news.popleft()[0]

    def _rows_since(self, since: str) -> list[tuple[Any, ...]]:
        """Return the rows that changed since a look (`_since`), or all rows."""
        look, inside = _LOOK_AT_ALL, list[str]()
        if self.folder is not None:
            above, _, name = self.folder.rpartition("/")
            look, inside = _LOOK_INSIDE, [self.folder, above, name]
        gone_since = since if since != _BEFORE_ALL else _AFTER_ALL
        return self._query(look, (
            gone_since, self.team, self.team, gone_since, _MAX_BODY, list(self._folders), list(self._names),
            self.team, since, *inside, self.team, since, *inside,
        ))  # fmt: skip

    def _keep(self, row: Row) -> None:
        rows = self._leases if row.kind == "lease" else self._entries
        known, there = self._by_id.get(row.id), rows.get(row.place)
        if known is not None and known.place != row.place:
            self._leave(known)
        if there is not None and there.id != row.id:
            self._drop(there.id)
        # The end of a lease alone is no news: it is renewed all the time.
        is_other = known is None or (known.number, known.place) != (row.number, row.place)
        if known is None or is_other or (row.kind == "lease" and known.body != row.body):
            self._tell(row.place)
        row.is_held = known is not None and known.is_held
        rows[row.place] = self._by_id[row.id] = row
        folder, _, name = row.place.rpartition("/")
        self._inside[folder][row.id] = name
        self._versions.pop(folder, None)

    def _drop(self, ident: int) -> None:
        row = self._by_id.pop(ident, None)
        if row is not None:
            self._leave(row)

    def _leave(self, row: Row) -> None:
        """Remove a row from its place, unless another row is there."""
        self._tell(row.place)
        rows = self._leases if row.kind == "lease" else self._entries
        if rows.get(row.place) is row:
            del rows[row.place]
        folder = row.place.rpartition("/")[0]
        self._inside[folder].pop(row.id, None)
        self._versions.pop(folder, None)

    def _tell(self, name: str) -> None:
        # At the first look, all is new.
        if self._news_after < self._looks:
            self._news.append((self._looks, name))

    # Reading.

    def news(self, mark: int | None) -> tuple[int, set[str] | None]:
        """Return the number of the last look, and the names that changed after look `mark`; None if any may have."""
        if self._is_clone:
            # It does not know what changed before.
            return mark or 0, None
        if mark is None or mark < self._news_after:
            return self._looks, None
        return self._looks, {name for _, name in takewhile(lambda each: each[0] > mark, reversed(self._news))}

    def find(self, name: str, *, body: bool) -> Row | None:
        """Return the entry or the lease with a name; None if there is none.

        With `body`, a record of at most `_MAX_BODY` bytes has its contents.
        """
        row = self._entries.get(name) or self._leases.get(name)
        if body and row is not None and row.kind == "record" and row.body is None and row.version.size <= _MAX_BODY:
            self._read_bodies_like(name)
        return row

    def folder_version(self, folder: Row) -> Version:
        """Return the version of a folder, which differs after each change in it."""
        known = self._versions.get(folder.place)
        if known is None:
            inside = [self._by_id[ident] for ident in self._inside[folder.place]]
            latest = max((row.version.at for row in inside if row.kind != "lease"), default=0.0)
            # Numbers may be committed in another order than they are given: the highest one does not tell all changes.
            numbers = [row.number for row in inside]
            mark = f"{sum(numbers)}.{functools.reduce(operator.xor, numbers, 0)}"
            known = self._versions[folder.place] = Version(max(folder.version.at, latest), len(inside), folder.id, mark)
        return known

    def _read_bodies_like(self, record: str) -> None:
        """Read the bodies of all records that are similar to this one, unless that was done before."""
        folder, _, name = record.rpartition("/")
        folders, names = ([], [name]) if "/" in folder else ([folder], [])
        with self._lock:
            if self._folders.issuperset(folders) and self._names.issuperset(names):
                return
            rows = self._query(
                f"SELECT id, version, body FROM crewboard.entries WHERE team = %s AND {_LIKE_ASKED}",  # noqa: S608
                (self.team, _MAX_BODY, folders, names),
            )
            for ident, number, body in rows:
                row = self._by_id.get(ident)
                # One that was changed since comes with the next look.
                if row is not None and row.number == number:
                    row.body = body
            self._folders.update(folders)
            self._names.update(names)

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder, in no order."""
        return list(set(self._inside[folder].values()))

    def read_ahead(self, logs: Mapping[str, int]) -> None:
        """Read the lines of several logs after these offsets with one query; logs with much to read are left out."""
        starts: dict[int, tuple[str, int]] = {}
        for log, offset in logs.items():
            row = self._entries.get(log)
            if row is not None and 0 < row.version.size - offset <= _MAX_BODY:
                starts[row.id] = (log, offset)
        if len(starts) < 2:  # noqa: PLR2004  a single one is read when it is asked for
            return
        rows = self._query(
            "SELECT log, line, upto FROM unnest(%s::bigint[], %s::bigint[]) AS wanted(id, start) "
            "JOIN crewboard.lines ON log = wanted.id AND upto > start ORDER BY upto",
            (list(starts), [offset for _, offset in starts.values()]),
        )
        ahead: dict[tuple[str, int], list[tuple[bytes | None, int]]] = {start: [] for start in starts.values()}
        for ident, line, upto in rows:
            start = starts[ident]
            # The offset may be within a line, as in a file.
            ahead[start].append((line[max(0, start[1] - upto + len(line)) : -1], upto))
        self._ahead = ahead

    def lines_after(self, log: str, offset: int) -> list[tuple[bytes | None, int]] | None:
        """Return, once, the lines of a log that were read ahead from an offset on, with the offset after each.

        None if none were read ahead, or they were returned before.
        """
        return self._ahead.pop((log, offset), None)

    def next_end(self) -> float:
        """Return the seconds from the last look until the first lease ends; infinity if none is held."""
        return min((row.version.at for row in self._leases.values() if row.is_held), default=math.inf) - self._now


class _Glance:
    """A context in which reads are answered from a copy. For tasks that were begun in it, it ends as well."""

    def __init__(self, copy: Copy | None) -> None:
        self.copy = copy


_OUTSIDE = _Glance(None)
_current: ContextVar[_Glance] = ContextVar("glance", default=_OUTSIDE)


@contextmanager
def glance_at(copy: Copy) -> Iterator[Copy]:
    """Bring a copy up to date, and answer reads from it until the context ends.

    Raises:
        StorageError: The store failed.
    """
    copy.look()
    glance = _Glance(copy)
    token = _current.set(glance)
    try:
        yield copy
    finally:
        glance.copy = None
        _current.reset(token)


@contextmanager
def without_glance() -> Iterator[None]:
    """Answer no reads from a copy until the context ends."""
    token = _current.set(_OUTSIDE)
    try:
        yield
    finally:
        _current.reset(token)


def note_write() -> None:
    """Mark the copy that answers reads in this context, if any, as outdated, so that the next read updates it."""
    copy = _current.get().copy
    if copy is not None:
        copy.outdated = True


def copy_of(url: str, team: str, name: str) -> Copy | None:
    """Return the copy from which reads of a name of the team are answered in this context; None if there is none.

    Raises:
        StorageError: This process wrote since the last look, and the store failed at a new one.
    """
    copy = _current.get().copy
    if copy is None or copy.team != team or copy.url != url or not copy.covers(name):
        return None
    if copy.outdated:
        copy.look()
    return copy
