"""The times in which a start counts as under way, and as late."""

import pytest

from crewboard.records.agents import Spec, Want
from crewboard.store.agents import LATE_AFTER, START_TIMEOUT, is_late, is_starting


@pytest.mark.parametrize(
    ("want", "last_run", "now", "expected"),
    [
        ("running", 1, 10.0, True),
        ("running", 2, 10.0, False),
        ("killed", 1, 10.0, False),
        ("running", 1, START_TIMEOUT, False),
    ],
)
def test_a_start_is_under_way_until_it_begins(want: Want, last_run: int, now: float, expected: bool) -> None:
    spec = Spec(prompt="p", prompt_id="p1", type="code", run=2, want=want, at=0)
    assert is_starting(spec, last_run, now) == expected


def test_a_start_is_late_before_it_counts_as_failed() -> None:
    spec = Spec(prompt="p", prompt_id="p1", type="code", at=0)
    assert not is_late(spec, LATE_AFTER)
    assert is_late(spec, LATE_AFTER + 1)
