"""How many requests the operator has answered, and how long they had waited."""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from crewboard.names import OPERATOR
from crewboard.records import Request


@dataclass(frozen=True)
class ResponseTimes:
    """Answers of one day; `median` is the wait in seconds that half of them were shorter than."""

    count: int
    median: float


def response_times_today(asked: Iterable[Request], now: float) -> ResponseTimes | None:
    """What the operator has answered since midnight, local time; None if nothing."""
    midnight = _midnight(now)
    waits = [
        request.decided_at - request.created_at
        for request in asked
        if request.decided_by == OPERATOR and request.decided_at is not None and midnight <= request.decided_at <= now
    ]
    return ResponseTimes(len(waits), median(waits)) if waits else None


def _midnight(now: float) -> float:
    today = time.localtime(now)
    return time.mktime((today.tm_year, today.tm_mon, today.tm_mday, 0, 0, 0, 0, 0, -1))
