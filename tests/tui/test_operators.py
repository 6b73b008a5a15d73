"""Several users of one team: who else has the dashboard open, who looks at the same request, and who did what."""

import shutil
import threading
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from crewboard.commands.context import Team
from crewboard.store import operators
from crewboard.store.layout import TeamDirectory
from crewboard.store.operators import OpenDashboard
from crewboard_tui.app import CrewboardApp
from tests.frozen import NOW, Frozen
from tests.tui.stage import opened

PLAN = "plan:auth-plan:req-004281"
"""The need of the frozen team's plan."""


@pytest.fixture
def kim(frozen: Frozen) -> Iterator[OpenDashboard]:
    """Return the dashboard that Kim has open."""
    dashboard = OpenDashboard(frozen.directory, "Kim", NOW)
    dashboard.look_at(None)
    yield dashboard
    dashboard.close()


def leases_in(frozen: Frozen) -> list[str]:
    return [each.who for each in operators.present(frozen.directory)]


@pytest.mark.long
@pytest.mark.parametrize("width", [80, pytest.param(120, marks=pytest.mark.long)])
async def test_the_status_bar_names_the_others(frozen: Frozen, kim: OpenDashboard, width: int) -> None:
    async with opened(frozen, width, 24) as stage:
        await stage.until(lambda: "with Kim" in stage.part("strip"), "Kim in the status bar")
        kim.close()
        await stage.until(lambda: "Kim" not in stage.part("strip"), "the status bar without Kim")


@pytest.mark.long
@pytest.mark.parametrize(("width", "words"), [(80, "Kim is here too"), (120, "Kim is looking at this plan")])
async def test_a_plan_says_who_else_looks_at_it(frozen: Frozen, kim: OpenDashboard, width: int, words: str) -> None:
    async with opened(frozen, width, 24) as stage:
        await stage.app.open_need(PLAN)
        await stage.sees("PLAN v2", "item")
        assert "Kim is" not in stage.part("heading")
        kim.look_at("req-004281")
        await stage.until(lambda: words in stage.part("heading"), "who looks at it")
        assert "item" in stage.part("heading")
        kim.look_at("plan-other")
        await stage.until(lambda: "Kim is" not in stage.part("heading"), "that Kim has left the plan")


async def test_others_see_this_dashboard_and_what_it_shows(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.until(lambda: operators.present(frozen.directory), "this dashboard among the open ones")
        (seen,) = operators.present(frozen.directory)
        assert (seen.who, seen.looking_at) == (frozen.team.operator, None)
        assert (frozen.directory.presence.on_disk / f"{seen.id}.lease").stat().st_mode & 0o077 == 0
        assert "with" not in stage.part("strip")
        await stage.app.open_need(PLAN)
        await stage.until(lambda: operators.present(frozen.directory)[0].looking_at, "the request that it shows")
    assert list(frozen.directory.presence.on_disk.iterdir()) == []


async def test_the_screen_waits_for_no_database(frozen: Frozen, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tick must not ask a database that may be away: that takes seconds."""
    callers = []

    def exists(_: TeamDirectory) -> bool:
        callers.append(threading.current_thread())
        return True

    monkeypatch.setattr(TeamDirectory, "exists", exists)
    async with opened(frozen, 80, 24) as stage:
        await stage.until(lambda: callers, "the presence of this dashboard")
        callers.clear()
        await stage.app.open_need(PLAN)
        await stage.until(lambda: callers, "the request that it shows")
        stage.app._keep_visit()
    assert threading.main_thread() not in callers


async def test_the_screen_of_a_deleted_team_waits_for_no_database(
    frozen: Frozen, monkeypatch: pytest.MonkeyPatch
) -> None:
    callers = []

    async with opened(frozen, 80, 24) as stage:
        await stage.until(lambda: leases_in(frozen), "the lease")
        monkeypatch.setattr(OpenDashboard, "forget", lambda _: callers.append(threading.current_thread()))
        frozen.directory.path.rename(frozen.directory.path.with_name("away"))
        await stage.until(lambda: callers, "the end of its presence")
    # The dashboard that is closed gives it up by itself, and last.
    assert threading.main_thread() not in callers[:1]


async def test_the_presence_in_a_deleted_team_is_given_up_once(frozen: Frozen, monkeypatch: pytest.MonkeyPatch) -> None:
    given_up, forget = list[OpenDashboard](), OpenDashboard.forget

    def note(dashboard: OpenDashboard) -> None:
        forget(dashboard)
        given_up.append(dashboard)

    monkeypatch.setattr(OpenDashboard, "forget", note)
    async with opened(frozen, 80, 24) as stage:
        await stage.until(lambda: leases_in(frozen), "the lease")
        frozen.directory.path.rename(frozen.directory.path.with_name("away"))
        await stage.until(lambda: given_up and not stage.app._presenting.is_alive(), "the end of its presence")
        stage.app._tick()
        stage.app._presenting.join()
        assert len(given_up) == 1


async def test_a_dashboard_that_only_looks_leaves_no_trace(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24, read_only=True) as stage:
        await stage.sees("READ-ONLY")
        assert not frozen.directory.presence.exists()


@pytest.mark.long
async def test_a_dashboard_is_present_in_a_team_made_in_the_place_of_its_own(frozen: Frozen) -> None:
    path = frozen.directory.path
    async with opened(frozen, 80, 24) as stage:
        await stage.until(lambda: leases_in(frozen), "the lease")
        path.rename(path.with_name("away"))
        await stage.sees("was deleted")
        shutil.copytree(path.with_name("away"), path, ignore=shutil.ignore_patterns("presence"))
        await stage.until(lambda: leases_in(frozen), "the lease in the new team")


def test_what_a_killed_dashboard_leaves_is_removed_by_the_next(frozen: Frozen, kim: OpenDashboard) -> None:
    left = frozen.directory.presence.on_disk / "0123.lease"
    left.write_bytes(b'{"id": "0123", "who": "Ann"}')
    assert leases_in(frozen) == ["Kim"]
    lee = OpenDashboard(frozen.directory, "Lee", NOW)
    lee.look_at(None)
    assert not left.exists()
    assert sorted(leases_in(frozen)) == ["Kim", "Lee"]
    lee.close()


def test_a_folder_that_cannot_be_written_to_is_no_error(frozen: Frozen) -> None:
    frozen.directory.presence.on_disk.write_bytes(b"")
    dashboard = OpenDashboard(frozen.directory, "Kim", NOW)
    dashboard.look_at(None)
    dashboard.close()
    assert leases_in(frozen) == []


async def test_an_act_in_the_dashboard_is_recorded(frozen: Frozen) -> None:
    team = Team(frozen.directory, environment={"CREWBOARD_OPERATOR": "Kim", "CREWBOARD_OFFLINE": "1"})
    app = CrewboardApp(replace(team, now=lambda: NOW), probe=frozen.probe)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        app.context.do("setting the budget", lambda: _raise(app.context.team))
        while not operators.acts(frozen.directory)[0]:
            await pilot.pause(0.01)
    (act,) = operators.acts(frozen.directory)[0]
    assert (act.who, act.act, act.detail) == ("Kim", "budget", "$20")


def _raise(team: Team) -> str:
    from crewboard.commands import settings

    settings.set_budget(team, "$20")
    return "raised"
