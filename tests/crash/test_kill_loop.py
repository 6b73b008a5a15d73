"""Real processes of every kind, killed at random instants: each message enters its reader's conversation once."""

from collections.abc import Callable

import pytest

from tests.crash.stress import Storm, Target
from tests.crew import Crew

ROUND: tuple[Target, ...] = ("sender", "worker", "supervisor", "worker", "reader", "sender", "worker")


def test_fifteen_kills(crew_on: Callable[..., Crew]) -> None:
    storm = Storm(crew_on(window=50_000_000), ("scout", "other"), seed=4)
    storm.begin()
    for number in range(15):
        storm.kill(ROUND[number % len(ROUND)])
    storm.calm()
    storm.check()
    assert storm.total == 15
    assert storm.killed["worker"] >= 5


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_four_hundred_kills(crew_on: Callable[..., Crew]) -> None:
    storm = Storm(crew_on(window=50_000_000), ("a", "b", "c"), seed=17, pause=0.25)
    storm.begin()
    for number in range(400):
        storm.kill(ROUND[number % len(ROUND)])
    storm.calm()
    storm.check()
    assert storm.total == 400
