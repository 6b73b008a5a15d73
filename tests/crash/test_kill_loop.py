"""Stress tests: real processes are killed at random instants, and each message is shown to its agent exactly once."""

from collections.abc import Callable

import pytest

from tests.crash.stress import StressRun, Target
from tests.crew import Crew

ROUND: tuple[Target, ...] = ("sender", "worker", "supervisor", "worker", "reader", "sender", "worker")


def test_fifteen_kills(crew_on: Callable[..., Crew]) -> None:
    stress = StressRun(crew_on(window=50_000_000), ("scout", "other"), seed=4)
    stress.begin()
    for number in range(15):
        stress.kill(ROUND[number % len(ROUND)])
    stress.settle()
    stress.check()
    assert stress.total == 15
    assert stress.killed["worker"] >= 5


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_four_hundred_kills(crew_on: Callable[..., Crew]) -> None:
    stress = StressRun(crew_on(window=50_000_000), ("a", "b", "c"), seed=17, pause=0.25)
    stress.begin()
    for number in range(400):
        stress.kill(ROUND[number % len(ROUND)])
    stress.settle()
    stress.check()
    assert stress.total == 400
