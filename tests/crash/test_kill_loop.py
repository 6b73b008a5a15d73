"""Stress tests: real processes are killed at random instants, and each message is shown to its agent exactly once."""

from collections.abc import Callable

import pytest

from tests.crash.stress import StressRun, Target
from tests.crew import Crew, eventually

ROUND: tuple[Target, ...] = ("sender", "worker", "supervisor", "worker", "prefork", "reader", "sender", "worker")


@pytest.mark.files_only("test_outages.py does this in PostgreSQL")
def test_a_kill_of_each_process_and_a_move_lose_no_mail(crew_on: Callable[..., Crew]) -> None:
    stress = StressRun(crew_on(window=50_000_000), ("scout", "other"), seed=4)
    stress.begin()
    # A worker after the supervisor: its start makes the next supervisor start a prefork server.
    each: tuple[Target, ...] = ("sender", "supervisor", "worker", "prefork", "reader", "directory")
    for target in each:
        stress.kill(target)
    eventually(lambda: stress.acknowledged > 20, "enough mail")
    stress.settle()
    stress.check()
    assert stress.total == len(each)
    assert stress.killed["worker"] == 1


@pytest.mark.files_only("test_outages.py does this in PostgreSQL")
@pytest.mark.long
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("seed", range(7))
def test_a_thousand_kills_lose_and_repeat_no_message(crew_on: Callable[..., Crew], seed: int) -> None:
    """A seventh of them for each seed, so that a conversation stays short enough to be sent whole."""
    stress = StressRun(crew_on(window=50_000_000), ("a", "b", "c"), seed, pause=0.5)
    stress.begin()
    for number in range(150):
        stress.kill("directory" if number % 30 == 20 else ROUND[number % len(ROUND)])
    stress.settle()
    print(stress.summary())
    stress.check()
    assert stress.total == 150
