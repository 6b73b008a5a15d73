"""The same keys in the list of every view: marks, order, filter. A filter is in the title and ends with the view."""

import math

import pytest

from crewboard_tui.views import inbox
from crewboard_tui.widgets.line_list import LineList
from tests.frozen import Frozen
from tests.tui.stage import Stage, opened

LISTS = {
    "1": ("#roster", "name", "pars"),
    "2": ("#mail", "author", "plan"),
    "3": ("#tasks", "number", "the"),
    "4": ("#needs", "age", "parser"),
    "5": ("#processes", "name", "pars"),
    "7": ("#cost", "IN", "pars"),
}
"""The digit of each view with a list: the list, its second sort key, and a word that only some of its rows have."""


_VIEWS = pytest.mark.parametrize("digits", ["127", pytest.param("345", marks=pytest.mark.long)])


def shown(stage: Stage, selector: str) -> list[str]:
    return [row.key for row in stage.app.screen_stack[0].query_one(selector, LineList).rows if row.key]


async def turned_to(stage: Stage, digit: str) -> LineList:
    await stage.press(digit)
    selector = LISTS[digit][0]
    await stage.until(lambda: bool(stage.app.screen.query(selector)), "the view")
    rows = stage.app.screen.query_one(selector, LineList)
    rows.focus()
    await stage.until(lambda: rows.has_focus and any(row.key for row in rows.rows), "its rows")
    return rows


async def _mark_and_unmark(stage: Stage, digit: str) -> None:
    rows = await turned_to(stage, digit)
    rows.action_top()
    first = rows.selected
    await stage.press("space")
    await stage.sees("1 marked")
    assert rows.marked == {first}
    assert any("✓" in span.text for row in rows.rows if row.key == first for span in row.line)
    await stage.press("*")
    await stage.until(lambda: rows.marked == set(shown(stage, LISTS[digit][0])), "all marked")
    await stage.press("escape")
    await stage.sees_not(" marked")


@pytest.mark.long
@_VIEWS
async def test_space_and_star_mark_rows_and_esc_unmarks(frozen: Frozen, digits: str) -> None:
    async with opened(frozen, 120, 36) as stage:
        for digit in digits:
            await _mark_and_unmark(stage, digit)


async def _sort_and_reverse(stage: Stage, digit: str) -> None:
    selector, key, _ = LISTS[digit]
    rows = await turned_to(stage, digit)
    await stage.press("s")
    await stage.sees(f"sort:{key}")
    sorted_ = shown(stage, selector)
    await stage.press("S")
    await stage.sees(f"sort:{key} reversed")
    await stage.until(lambda: shown(stage, selector) == sorted_[::-1], "the other direction")
    assert rows.selected in sorted_


@pytest.mark.long
async def test_a_narrow_mailbox_tells_its_order(frozen: Frozen) -> None:
    """It is why mail stays new there."""
    async with opened(frozen, 80, 24) as stage:
        await stage.press("2", "tab", "s")
        await stage.sees("operator · your mail · 3 new · sort:author ━")


@pytest.mark.long
@_VIEWS
async def test_s_sorts_by_the_next_key_and_capital_s_reverses(frozen: Frozen, digits: str) -> None:
    async with opened(frozen, 120, 36) as stage:
        for digit in digits.replace("4", ""):
            await _sort_and_reverse(stage, digit)


async def _filter_and_leave(stage: Stage, digit: str) -> None:
    selector, _, word = LISTS[digit]
    await turned_to(stage, digit)
    before = shown(stage, selector)
    await stage.press("f")
    await stage.sees("Esc all")
    await stage.press("/")
    await stage.write(word)
    await stage.press("enter")
    await stage.until(lambda: len(stage.app.screen_stack) == 1, "the line gone")
    await stage.sees(f"filter {word}", "Esc all")
    assert set(shown(stage, selector)) < set(before)
    await stage.press("6")
    await turned_to(stage, digit)
    await stage.sees_not("Esc all")
    await stage.until(lambda: set(shown(stage, selector)) == set(before), "all rows")


@pytest.mark.long
@_VIEWS
async def test_filters_are_in_the_title_and_end_with_the_view(
    frozen: Frozen, digits: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a slow machine the mail would count as read meanwhile, and the Inbox open at another mailbox with new mail.
    monkeypatch.setattr(inbox, "LOOKED_AT", math.inf)
    async with opened(frozen, 120, 36) as stage:
        for digit in digits:
            await _filter_and_leave(stage, digit)


@pytest.mark.long
async def test_w_is_offered_only_where_there_are_more_columns(frozen: Frozen) -> None:
    async with opened(frozen, 120, 36) as stage:
        for digit in LISTS:
            rows = await turned_to(stage, digit)
            offered = any(active.binding.id == "agent.wide" for active in stage.app.screen.active_bindings.values())
            assert offered == (rows.id == "roster")


async def test_marked_tasks_are_cancelled_together(frozen: Frozen) -> None:
    async with opened(frozen, 120, 36) as stage:
        await turned_to(stage, "3")
        await stage.press("space", "space")
        await stage.can("C", "cancel ✓2")
        await stage.press("C")
        await stage.sees("2 cancelled: #")
        await stage.sees_not(" marked")


@pytest.mark.long
async def test_marked_messages_are_copied_together(frozen: Frozen) -> None:
    async with opened(frozen, 120, 36) as stage:
        rows = await turned_to(stage, "2")
        rows.action_top()
        await stage.press("space", "space", "y")
        await stage.sees("copied: ")
        assert rows.copied.count("\n\n") >= 1
