"""The cooldown lasts as long as the API asked for, whatever the clock of the day says."""

import time

import pytest

from crewboard.protocol import cooldown
from crewboard.records.team import Cooldown
from crewboard.store.layout import TeamDirectory

SERVER = "api.anthropic.com:443"
OTHER = "127.0.0.1:11434"


@pytest.mark.parametrize("jump", [-86_400, 86_400])
def test_a_clock_that_jumps_changes_no_cooldown(
    directory: TeamDirectory, monkeypatch: pytest.MonkeyPatch, jump: int
) -> None:
    agent = directory.agent("waiter")
    cooldown.extend(agent, SERVER, 20, "overloaded")
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + jump)
    pause = cooldown.current(agent, SERVER)
    assert pause is not None
    assert 15 < cooldown.left(pause, time.time()) <= 20
    cooldown.extend(agent, SERVER, 10, "overloaded again")
    assert cooldown.current(agent, SERVER) == pause


def test_a_cooldown_of_another_boot_lasts_a_minute_at_most(directory: TeamDirectory) -> None:
    directory.cooldown.save(Cooldown(until=time.time() + 86_400, until_monotonic=1e9, boot_id="before"))
    pause = cooldown.current(directory.agent("waiter"), SERVER)
    assert pause is not None
    assert cooldown.left(pause, time.time()) == cooldown.MAX_COOLDOWN


def test_a_server_that_is_away_holds_up_no_other(directory: TeamDirectory) -> None:
    agent = directory.agent("waiter")
    cooldown.extend_outage(agent, OTHER, 0.0, "no connection", time.time())
    assert cooldown.current(agent, SERVER) is None
    cooldown.extend(agent, SERVER, 20, "429")
    first, second = (cooldown.current(agent, each) for each in (OTHER, SERVER))
    assert first is not None
    assert second is not None
    assert (first.error, second.error) == ("no connection", "429")
    cooldown.end_outage(agent, OTHER)
    assert (pause := cooldown.current(agent, OTHER)) is not None
    assert not pause.since
    kept = cooldown.current(agent, SERVER)
    assert kept is not None
    assert (kept.error, kept.until) == ("429", second.until)


def test_a_pause_of_an_older_version_is_for_all_servers(directory: TeamDirectory) -> None:
    agent = directory.agent("waiter")
    old = Cooldown(until=time.time() + 30, error="529", since=time.time())
    directory.cooldown.save(old)
    assert [cooldown.current(agent, each) for each in (SERVER, OTHER)] == [old, old]
    cooldown.end_outage(agent, SERVER)
    assert cooldown.current(agent, OTHER) is None
    assert (new := cooldown.current(agent, SERVER)) is not None
    assert not new.since


def test_one_agent_at_a_time_tries_in_an_outage(directory: TeamDirectory) -> None:
    agent = directory.agent("waiter")
    cooldown.extend_outage(agent, SERVER, 3000.0, "529", time.time())
    assert [cooldown.may_try(agent, SERVER) for _ in range(3)] == [True, False, False]
    pause = cooldown.current(agent, SERVER)
    assert pause is not None
    assert cooldown.left(pause, time.time()) > 2000
    directory.cooldown.save(pause.replace(tried=time.time() - cooldown.TRY_INTERVAL))
    assert cooldown.may_try(agent, SERVER)
