"""What a list shows: groups of states, and the columns of a wider terminal."""

import pytest

from crewboard_tui.widgets.roster import Roster
from tests.frozen import Frozen
from tests.tui.stage import Stage, opened


def names(stage: Stage) -> list[str]:
    return [row.key for row in stage.app.screen.query_one(Roster).rows]


async def test_f_goes_through_the_groups_of_states(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.press("f")
        await stage.sees(" · needs me ─", "5 of 11 agents")
        assert names(stage) == ["parser", "auth-plan", "docs", "migrate", "flaky-hunt"]
        await stage.press("f")
        await stage.sees(" · running ─")
        assert names(stage) == ["api", "perf", "ui", "release"]
        await stage.press("f")
        await stage.sees(" · idle ─")
        assert names(stage) == ["reviewer"]
        await stage.press("f")
        await stage.sees(" · done ─")
        assert names(stage) == ["scan"]
        await stage.press("f")
        await stage.sees_not(" · done ─")
        assert len(names(stage)) == 11


async def test_esc_shows_all_again_and_an_empty_group_says_so(empty: Frozen) -> None:
    empty.hire("api", "code", "working", "thinking", ago=1, pid=4395)
    async with opened(empty, 80, 24) as stage:
        await stage.press("f")
        await stage.sees("nobody here is like that; Esc shows everybody")
        await stage.press("*", "x", "escape")
        await stage.sees_not(" · needs me ─")
        assert names(stage) == ["api"]


async def test_f_narrows_processes_and_tasks_too(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.press("5", "f")
        await stage.sees("workers · needs me")
        assert "reviewer" not in stage.all
        await stage.press("3", "f")
        await stage.sees("completed · needs me", "parse the 2.0 grammar")
        assert "paginate" not in stage.all
        await stage.press("f", "f")
        await stage.sees("completed · waiting", "cut the release", "write the changelog")


async def test_f_in_a_log_still_follows(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.press("tab")
        await stage.until(lambda: getattr(stage.app.focused, "id", "") == "peek", "the peek")
        await stage.press("f")
        await stage.sees("f follow:off")
        assert " · needs me ─" not in stage.all


@pytest.mark.parametrize(("width", "more"), [(80, ("PID", "CPU", "RSS", "TASK", "DOING")), (120, ("MODEL", "WHY"))])
async def test_w_shows_the_columns_of_the_next_size_and_back(frozen: Frozen, width: int, more: tuple[str, ...]) -> None:
    async with opened(frozen, width, 30) as stage:
        before = stage.text[3]
        await stage.press("w")
        await stage.sees(*more)
        assert all(len(line) <= width for line in stage.text)
        assert "edit_file src" in stage.all
        await stage.press("w")
        await stage.until(lambda: stage.text[3] == before, "the columns of before")


async def test_w_is_not_offered_where_everything_is_shown(frozen: Frozen) -> None:
    async with opened(frozen, 180, 50) as stage:
        await stage.press("?")
        await stage.sees("Keys that work here")
        assert "columns of a wider terminal" not in "\n".join(
            "".join(span.text for span in line)
            for line in stage.app.screen.query_one("#help").lines  # type: ignore[attr-defined]
        )
