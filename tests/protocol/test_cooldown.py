"""The cooldown lasts as long as the API asked for, whatever the clock of the day says."""

import time

import pytest

from crewboard.protocol import cooldown
from crewboard.records import Cooldown
from crewboard.store import json_records
from crewboard.store.layout import TeamDirectory


@pytest.mark.parametrize("jump", [-86_400, 86_400])
def test_a_clock_that_jumps_changes_no_cooldown(
    directory: TeamDirectory, monkeypatch: pytest.MonkeyPatch, jump: int
) -> None:
    agent = directory.agent("waiter")
    cooldown.extend(agent, 20, "overloaded")
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + jump)
    pause = cooldown.current(agent)
    assert pause is not None
    assert 15 < cooldown.left(pause, time.time()) <= 20
    cooldown.extend(agent, 10, "overloaded again")
    assert cooldown.current(agent) == pause


def test_a_cooldown_of_another_boot_lasts_a_minute_at_most(directory: TeamDirectory) -> None:
    json_records.save(directory.cooldown, Cooldown(until=time.time() + 86_400, until_monotonic=1e9, boot_id="before"))
    pause = cooldown.current(directory.agent("waiter"))
    assert pause is not None
    assert cooldown.left(pause, time.time()) == cooldown.MAX_COOLDOWN
