"""Marked agents: the screen shows which agents a key acts on, and the action removes the marks."""

import pytest

from crewboard.commands import answers, stop
from crewboard_tui.views.roster import Roster
from tests.frozen import Frozen
from tests.tui.stage import Stage, opened

_TO_API = ("j", "j", "j", "j", "j")


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the agents that were asked to shut down."""
    names: list[str] = []
    monkeypatch.setattr(stop, "stop", lambda _team, name: names.append(name))
    return names


def _marked(stage: Stage) -> set[str]:
    return stage.app.screen_stack[0].query_one(Roster).marked


async def test_a_broadcast_to_the_marked_is_not_called_one_to_all(frozen: Frozen) -> None:
    async with opened(frozen, 160, 40) as stage:
        await stage.can("b", "all")
        await stage.press("space")
        await stage.can("b", "write ✓parser")


@pytest.mark.long
async def test_the_footer_names_the_marked_agents_of_a_key(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.press("space", *_TO_API, "space")
        await stage.can("x", "stop ✓perf")
        await stage.can("r", "resume ✓parser")
        await stage.can("m", "msg ✓2")
        await stage.press("space")
        await stage.can("x", "stop ✓2")
        assert "? help" in stage.offered
        assert "Esc unmark" in stage.offered


@pytest.mark.long
async def test_marks_end_with_what_was_done_to_them(frozen: Frozen, stopped: list[str]) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.press(*_TO_API, "space")
        await stage.sees("1 marked")
        await stage.press("x")
        await stage.sees_not("1 marked")
        await stage.until(lambda: "✓" not in stage.offered, "no marks in the footer")
        await stage.until(lambda: stopped, "the one who was marked stopped")
    assert stopped == ["api"]


async def test_the_mark_of_an_agent_that_is_removed_goes_too(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.sees("Peek · parser")
        await stage.press("space")
        assert _marked(stage) == {"parser"}
        stop.remove(frozen.team, "parser")
        await stage.until(lambda: not _marked(stage), "no mark")


@pytest.mark.long
async def test_marks_end_with_a_message_to_them(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.press(*_TO_API, "space", "m")
        await stage.write("hello")
        assert _marked(stage) == {"api"}, "until it is sent"
        await stage.press("enter")
        await stage.sees("sent to api")
        assert _marked(stage) == set()


async def test_esc_takes_the_marks_away_before_anything_else(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.press("f", "space", "escape")
        await stage.sees_not("marked")
        await stage.sees("needs me · Esc shows all")
        await stage.press("escape")
        await stage.sees_not("needs me · Esc shows all")


@pytest.mark.long
async def test_the_number_of_marks_is_whole_beside_the_median(frozen: Frozen) -> None:
    answers.approve(frozen.team, "req-004281")
    async with opened(frozen, 80, 24) as stage:
        await stage.press("4", "*")
        await stage.sees("Needs you · 4 · 4 marked", "answered today 1")
        await stage.press("s", "slash")
        await stage.write("a")
        await stage.press("enter")
        await stage.sees("4 marked", "filter a")


@pytest.mark.long
async def test_a_marked_agent_that_the_filter_hides_is_left_alone(frozen: Frozen, stopped: list[str]) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.press(*_TO_API, "space", "/")
        await stage.write("perf")
        await stage.press("enter")
        await stage.sees("Team 1 of 11 · 1 marked (1 not shown)")
        await stage.sees_not("find ›")
        await stage.until(lambda: "✓" not in stage.offered, "no marks in the footer")
        await stage.press("x")
        await stage.until(lambda: stopped == ["perf"], "the one under the cursor stopped")
        await stage.press("escape")
        await stage.sees("Team 11 · 1 marked")
        await stage.can("x", "stop ✓api")


@pytest.mark.long
@pytest.mark.parametrize("view", ["5", pytest.param("7", marks=pytest.mark.long)])
async def test_agents_are_marked_in_every_list_of_agents(frozen: Frozen, stopped: list[str], view: str) -> None:
    async with opened(frozen, 120, 36) as stage:
        await stage.press(view, "*")
        await stage.can("m", "msg ✓11")
        await stage.can("Esc", "unmark")
        await stage.press("escape")
        await stage.until(lambda: "✓" not in stage.offered, "no marks in the footer")
        await stage.press("/")
        await stage.write("a:api")
        await stage.press("enter", "home", "space")
        await stage.can("x", "stop ✓api")
        await stage.press("x")
        await stage.until(lambda: stopped, "the marked agent stopped")
        await stage.until(lambda: "✓" not in stage.offered, "no marks in the footer")
    assert stopped == ["api"]
