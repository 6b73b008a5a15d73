"""The memory of the dashboard between two starts: when and how the user left a team."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from crewboard.records.messages import LastVisit
from crewboard.store import files
from crewboard.store.layout import record_of
from crewboard.store.operators import OpenDashboard, file_for
from crewboard_tui.settings import Settings
from tests.frozen import NOW, Frozen
from tests.tui.stage import opened

HOUR = 3600.0


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(visits=tmp_path / "visits")


def visit_file(settings: Settings, frozen: Frozen) -> Path:
    file = file_for(settings.visits, frozen.directory.path, frozen.team.operator)
    assert file is not None
    return file


def leave(settings: Settings, frozen: Frozen, **how: object) -> None:
    """Store that the user left the team an hour ago."""
    file = visit_file(settings, frozen)
    files.make_private_folders(file.parent)
    record_of(file, LastVisit).save(LastVisit(at=NOW - HOUR, cost_usd=1.0).replace(**how))


def left(settings: Settings, frozen: Frozen) -> LastVisit | None:
    return record_of(visit_file(settings, frozen), LastVisit).load()


@pytest.mark.parametrize("size", [(80, 24), pytest.param((120, 40), marks=pytest.mark.long)])
async def test_the_dashboard_tells_what_happened_meanwhile(
    frozen: Frozen, settings: Settings, size: tuple[int, int]
) -> None:
    leave(settings, frozen)
    async with opened(frozen, *size, settings=settings) as stage:
        await stage.until(lambda: "since 14:04: " in stage.part("keys"), "what happened")
        assert "1 death" in stage.part("keys")
        assert "0 lists it" in stage.part("keys")
        await stage.press("0")
        await stage.sees("0 While away", "Since 14:04: ")
        assert "killed by SIGKILL" in stage.all
        await stage.press("escape")
        await stage.settles()
        assert "since 14:04" not in stage.all
        await stage.press("0")
        await stage.sees("0 While away")


@pytest.mark.long
async def test_enter_opens_the_agent_that_something_happened_to(frozen: Frozen, settings: Settings) -> None:
    leave(settings, frozen)
    async with opened(frozen, 80, 24, settings=settings) as stage:
        await stage.until(lambda: "since 14:04: " in stage.part("keys"), "what happened")
        await stage.press("0")
        await stage.press("/")
        await stage.write("death")
        await stage.press("enter")
        await stage.sees("filter death")
        await stage.press("enter")
        await stage.turns_to("Now")
        await stage.sees("parser")


@pytest.mark.long
async def test_esc_on_the_board_ends_the_line(frozen: Frozen, settings: Settings) -> None:
    leave(settings, frozen)
    async with opened(frozen, 80, 24, settings=settings) as stage:
        await stage.until(lambda: "since 14:04: " in stage.part("keys"), "what happened")
        await stage.press("escape")
        await stage.until(lambda: "since 14:04" not in stage.part("keys"), "the line gone")


@pytest.mark.long
@pytest.mark.parametrize("ago", [0.0, HOUR])
async def test_the_line_is_left_out_if_nothing_is_new(frozen: Frozen, settings: Settings, ago: float) -> None:
    """Return True if nothing happened since, or the user sees the team in another dashboard."""
    leave(settings, frozen, at=NOW - HOUR if ago else NOW + 10 * 365 * 24 * HOUR, cost_usd=None)
    other = OpenDashboard(frozen.directory, frozen.team.operator, NOW)
    if ago:
        other.look_at(None)
    async with opened(frozen, 80, 24, settings=settings) as stage:
        await stage.settles()
        await stage.press("0")
        await stage.sees("while away: nothing happened")
    other.close()


@pytest.mark.long
async def test_order_view_and_zoom_come_back(frozen: Frozen, settings: Settings) -> None:
    async with opened(frozen, 120, 40, settings=settings) as stage:
        await stage.press("s", "S", "3", "s", "z")
        await stage.settles()
        await stage.press("q")
    kept = left(settings, frozen)
    assert kept is not None
    assert (kept.at, kept.view) == (NOW, "tasks")
    assert kept.orders == {"roster": "-name", "tasks": "number"}
    assert kept.zoomed == {"tasks": "tasks"}
    async with opened(frozen, 120, 40, settings=settings) as stage:
        await stage.sees("Tasks · ", "sort:number")
        await stage.until(lambda: not stage.app.screen.query_one("#task").display, "the list alone")
        assert stage.app.focused is not None
        assert stage.app.focused.id == "tasks"
        await stage.press("1")
        await stage.sees("sort:name reversed")


async def test_each_user_of_an_account_has_an_own_last_visit(
    frozen: Frozen, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave(settings, frozen)
    kim = replace(frozen.team, environment={**frozen.team.environment, "CREWBOARD_OPERATOR": "Kim"})
    monkeypatch.setattr(Frozen, "team", kim)
    assert left(settings, frozen) is None
    async with opened(frozen, 80, 24, settings=settings) as stage:
        await stage.settles()
        await stage.press("0")
        await stage.sees("while away: nothing happened")


@pytest.mark.long
async def test_a_filter_ends_with_the_dashboard(frozen: Frozen, settings: Settings) -> None:
    async with opened(frozen, 80, 24, settings=settings) as stage:
        await stage.press("f")
        await stage.sees("needs me")
        await stage.press("q")
    async with opened(frozen, 80, 24, settings=settings) as stage:
        await stage.settles()
        assert "shows all" not in stage.all


async def test_what_was_left_is_used_only_as_far_as_it_fits(frozen: Frozen, settings: Settings) -> None:
    leave(settings, frozen, view="gone", orders={"roster": "-gone"}, zoomed={"board": "board-cost"})
    async with opened(frozen, 80, 24, settings=settings) as stage:
        await stage.sees("━ Team 11 ━━ state⌄", "Peek")


async def test_a_dashboard_that_only_looks_remembers_nothing(frozen: Frozen, settings: Settings) -> None:
    async with opened(frozen, 80, 24, settings=settings, read_only=True) as stage:
        await stage.press("s", "q")
    assert left(settings, frozen) is None


async def test_a_damaged_file_of_the_last_visit_is_no_error(frozen: Frozen, settings: Settings) -> None:
    leave(settings, frozen)
    visit_file(settings, frozen).write_text("{")
    async with opened(frozen, 80, 24, settings=settings) as stage:
        await stage.press("q")
    kept = left(settings, frozen)
    assert kept is not None
    assert visit_file(settings, frozen).stat().st_mode & 0o077 == 0


async def test_a_killed_dashboard_has_kept_when_it_was_left(
    frozen: Frozen, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("crewboard_tui.app.VISIT_KEPT_EVERY", 0.0)
    async with opened(frozen, 80, 24, settings=settings) as stage:
        frozen.hire("newcomer", "code", "working", "reads", ago=1, pid=77)
        await stage.until(lambda: left(settings, frozen) is not None, "the visit on the disk")
