"""The leases of this process in PostgreSQL: renewed in one thread, and watched in another one.

A lease has an end, by the server's clock. It is renewed every quarter of its time. Its holder counts on it for 0.7 of
the time since the beginning of the last renewal, by its own clock, and ends before another process may take it. It is
renewed only if the server has just answered, so that it ends in its time also if only answers are lost.
"""

import threading
import time
from collections.abc import Callable

import psycopg
from msgspec import Struct

from crewboard.errors import CrewboardError
from crewboard.store.interface import Held

RENEW_AFTER = 0.25
RETRY_FOR = 0.6
CERTAIN_FOR = 0.7
"""Parts of the time of a lease: until its renewal, how long a call is repeated, how long its holder counts on it."""

HOST_PART = 1 - RENEW_AFTER
"""Part of that time for which the lease of a host lasts. A run is lost once the leases of its worker and its host are
over, and the host may have renewed its own by `RENEW_AFTER` later: so it ends earlier by that."""

_RETRY_INTERVAL = 0.2
"""Seconds until a renewal that failed is tried again."""


class _Lease(Struct):
    """A lease that is renewed: since when it is certain, and what to call if it is not any more."""

    held: Held
    certain_since: float
    lost: Callable[[], None] | None = None


class LeaseKeeper:
    """Renews the leases of this process in one thread, and watches in another one that this succeeds.

    `renew` renews the leases of some tokens, and returns the tokens of those that this process has still. `ttl` returns
    how many seconds a lease lasts. Both threads end once `closed` is set.
    """

    def __init__(
        self, renew: Callable[[list[int]], set[int]], ttl: Callable[[], float], closed: threading.Event
    ) -> None:
        self._renew = renew
        self._ttl = ttl
        self._closed = closed
        self._lock = threading.Lock()
        self._leases: dict[int, _Lease] = {}
        self._begun = False
        self._watching = False

    def add(self, held: Held, begin: float) -> None:
        with self._lock:
            self._leases[held.token] = _Lease(held, begin)
            begun, self._begun = self._begun, True
        if not begun:
            threading.Thread(target=self._run, name="crewboard-leases", daemon=True).start()

    def drop(self, held: Held) -> None:
        with self._lock:
            self._leases.pop(held.token, None)

    def watch(self, held: Held, lost: Callable[[], None]) -> None:
        """Call `lost` as soon as a lease is lost, or is not certain any more: at once if it was lost before."""
        with self._lock:
            lease = self._leases.get(held.token)
            if lease is not None:
                lease.lost = lost
            watching, self._watching = self._watching, True
        if lease is None:
            lost()
        if not watching:
            threading.Thread(target=self._watch, name="crewboard-lease", daemon=True).start()

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
        lost = []
        with self._lock:
            for token in asked:
                lease = self._leases.get(token)
                if lease is None:
                    continue
                if token in renewed:
                    lease.certain_since = begin
                else:
                    lost.append(self._leases.pop(token))
        for lease in lost:
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
            for lease in over:
                if lease.lost is not None:
                    lease.lost()
            rest = max(0.01, min((lease.certain_since for lease in watched), default=now) + certain - now)
