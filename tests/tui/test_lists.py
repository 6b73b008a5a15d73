"""Lists: groups of states, and the columns of a wider terminal."""

from collections.abc import Sequence
from unittest.mock import Mock

import pytest

from crewboard.store import codec, mailbox
from crewboard_tui.render import table
from crewboard_tui.render.formats import format_size
from crewboard_tui.render.lines import Line
from crewboard_tui.render.table import Column
from crewboard_tui.views import inbox, message_list
from crewboard_tui.views.message_list import OLDER, MessageList
from crewboard_tui.views.roster import AgentRow, Roster
from crewboard_tui.widgets.line_list import LineList
from tests.frozen import NOW, Frozen
from tests.tui.stage import Stage, opened


def names(stage: Stage) -> list[str]:
    return [row.key for row in stage.app.screen.query_one(Roster).rows]


@pytest.mark.long
async def test_f_goes_through_the_groups_of_states(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.press("f")
        await stage.sees(" · needs me · Esc shows all ", "Team 5 of 11")
        assert names(stage) == ["parser", "auth-plan", "docs", "migrate", "flaky-hunt"]
        await stage.press("f")
        await stage.sees(" · running · Esc shows all ")
        assert names(stage) == ["api", "perf", "ui", "release"]
        await stage.press("f")
        await stage.sees(" · idle · Esc shows all ")
        assert names(stage) == ["reviewer"]
        await stage.press("f")
        await stage.sees(" · done · Esc shows all ")
        assert names(stage) == ["scan"]
        await stage.press("f")
        await stage.sees_not(" · done · Esc shows all ")
        assert len(names(stage)) == 11


@pytest.mark.long
async def test_esc_shows_all_again_and_an_empty_group_says_so(empty: Frozen) -> None:
    empty.hire("api", "code", "working", "thinking", ago=1, pid=4395)
    async with opened(empty, 80, 24) as stage:
        await stage.press("f")
        await stage.sees("No matches · Esc clears the filter")
        await stage.press("*", "x", "escape")
        await stage.sees_not(" · needs me · Esc shows all ")
        assert names(stage) == ["api"]


@pytest.mark.long
async def test_an_agent_with_an_unread_result_is_among_those_that_need_me(empty: Frozen) -> None:
    empty.hire("api", "code", "idle", "", ago=1, pid=4395)
    empty.hire("ui", "code", "idle", "", ago=1, pid=4396)
    empty.mail(1, "api", "lead", "result", "41 modules", 9, result="results/api-1-1.md")
    async with opened(empty, 80, 24) as stage:
        await stage.press("f")
        await stage.sees("Team 1 of 2")
        assert names(stage) == ["api"]


@pytest.mark.long
async def test_f_narrows_processes_and_tasks_too(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.press("5", "f")
        await stage.sees(" needs me")
        assert "reviewer" not in stage.all
        # The graphs of these rows are read.
        await stage.settles()
        await stage.press("3", "f")
        await stage.sees("completed · needs me", "parse the 2.0 grammar")
        assert "paginate" not in stage.all
        await stage.press("f", "f")
        await stage.sees("completed · waiting", "cut the release", "write the changelog")


@pytest.mark.long
async def test_a_border_names_a_key_only_where_it_works_now(frozen: Frozen) -> None:
    async with opened(frozen, 120, 36) as stage:
        await stage.sees(" follow:on")
        assert "f follow" not in stage.all, "in the list f narrows it"
        assert "⏎ open ─" not in stage.all
        await stage.press("tab")
        await stage.sees("f follow:on")
        await stage.press("tab", "tab")
        await stage.sees("⏎ open ━")
        assert "f follow" not in stage.all


async def test_f_in_a_log_still_follows(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.press("tab")
        await stage.until(lambda: getattr(stage.app.focused, "id", "") == "peek", "the peek")
        await stage.press("f")
        await stage.sees("f follow:off")
        assert " · needs me · Esc shows all " not in stage.all


@pytest.mark.parametrize(
    ("width", "more"),
    [(80, ("pid", "cpu", "mem", "task", "doing")), pytest.param(120, ("model", "state"), marks=pytest.mark.long)],
)
async def test_w_shows_the_columns_of_the_next_size_and_back(frozen: Frozen, width: int, more: tuple[str, ...]) -> None:
    async with opened(frozen, width, 30) as stage:
        await stage.settles()
        before = stage.text[3]
        await stage.press("w")
        await stage.sees(*more)
        assert all(len(line) <= width for line in stage.text)
        assert "edit_file s" in stage.all
        await stage.press("w")
        await stage.until(lambda: stage.text[3] == before, "the columns of before")


@pytest.mark.long
async def test_w_is_not_offered_where_everything_is_shown(frozen: Frozen) -> None:
    async with opened(frozen, 180, 50) as stage:
        await stage.press("?")
        await stage.sees("Keys that work here")
        assert "columns of a wider terminal" not in "\n".join(
            "".join(span.text for span in line)
            for line in stage.app.screen.query_one("#help").lines  # type: ignore[attr-defined]
        )


@pytest.mark.long
async def test_a_filtered_list_says_so_in_its_title_and_how_to_see_all(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        for key, title in (
            ("1", "Team 1 of 11"), ("3", "Tasks · 1/8 completed"),
            ("4", "Needs you · 1 of 5 · most urgent first"),
            ("5", "Processes 9"), ("6", "Feed"), ("7", "Cost"),
        ):  # fmt: skip
            await stage.press(key, "/")
            await stage.write("parser")
            await stage.press("enter")
            # Where that would hide the heads of columns, the footer alone tells the key.
            is_short = key in "57"
            words = ("filter parser", f" {title} ") if is_short else (f" {title} · filter parser · Esc shows all ",)
            await stage.sees(*words, "Esc all")
            await stage.press("escape")
            await stage.sees_not("filter parser")


@pytest.mark.long
async def test_a_narrowed_mailbox_says_by_what(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.press("2", "u")
        await stage.sees("operator ", "unread only · u shows the rest ")
        await stage.press("/")
        await stage.write("keys")
        await stage.press("enter")
        await stage.sees("operator ", "unread only · filter keys ")
        await stage.press("tab", "s")
        await stage.sees("operator · sort:author ━", " unread only · filter k… ━")
        await stage.press("u", "s", "s")
        await stage.sees(" filter keys · Esc shows all ")


@pytest.mark.long
async def test_a_lists_number_pressed_again_puts_the_focus_on_the_list(frozen: Frozen) -> None:
    async with opened(frozen, 120, 40) as stage:
        await stage.press("tab", "tab", "j")
        assert not isinstance(stage.app.focused, Roster)
        await stage.press("1")
        await stage.until(lambda: isinstance(stage.app.focused, Roster), "the focus on the team")
        await stage.press("j")
        assert stage.app.screen.query_one(Roster).selected == "auth-plan"


@pytest.mark.long
async def test_a_number_pressed_again_ends_the_zoom_of_another_pane(frozen: Frozen) -> None:
    async with opened(frozen, 120, 40) as stage:
        await stage.press("tab", "z")
        await stage.sees_not("━ Team")
        await stage.press("1")
        await stage.sees("━ Team")
        await stage.until(lambda: isinstance(stage.app.focused, Roster), "the focus on the team")


@pytest.mark.long
async def test_new_mail_never_moves_the_message_that_is_read(frozen: Frozen) -> None:
    for number in range(3):
        frozen.mail(1000 + number, "scan", "operator", "message", f"letter {number}", 0)
    async with opened(frozen, 80, 24) as stage:
        await stage.press("2", "tab")
        for _ in range(9):
            await stage.press("j")
        await stage.sees("follow:off", "letter 2")
        mail = stage.app.screen.query_one("#mail", LineList)
        assert mail.selected == mail.rows[-1].key == "m1002"
        frozen.mail(1003, "api", "operator", "message", "it came meanwhile", 0)
        await stage.sees("it came meanwhile")
        assert mail.selected == "m1002"


def fill(frozen: Frozen, box: str, count: int) -> None:
    inbox = frozen.directory.inbox(box)
    messages = [mailbox.compose("scan", box, "message", f"letter {number}.", ts=NOW) for number in range(count)]
    inbox.store.append(inbox.name, b"".join(map(codec.encode, messages)))


@pytest.mark.long
async def test_the_oldest_of_9000_messages_is_reached_from_the_end(frozen: Frozen) -> None:
    fill(frozen, "perf", 9000)
    async with opened(frozen, 80, 24) as stage:
        await stage.press("2")
        boxes, mail = stage.app.screen.query_one("#boxes", LineList), stage.app.screen.query_one("#mail", MessageList)
        boxes.select("perf")
        await stage.sees("letter 8999.")
        await stage.press("tab")
        assert len(mail.keys) <= 2001
        shown = list[int]()
        while not shown or shown[-1] < 9000:
            shown.append(len(mail.keys))
            # The cursor is on the first message that was loaded, so another key goes to those before.
            await stage.press("g")
            await stage.until(lambda: len(mail.keys) > shown[-1] or mail.keys[0] != OLDER, "older messages")
        assert len(shown) <= 6
        await stage.press("g")
        await stage.sees("letter 0.")
        await stage.press("G", "escape", "j")
        boxes.select("perf")
        await stage.until(lambda: 1000 < len(mail.keys) <= 2001, "the newest again")


async def test_new_mail_that_is_not_loaded_is_not_read(frozen: Frozen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox, "LOOKED_AT", 0)
    fill(frozen, "operator", 3000)
    async with opened(frozen, 80, 24) as stage:
        await stage.press("2")
        await stage.sees("your mail · 3003 new")
        mail = stage.app.screen.query_one("#mail", MessageList)
        await stage.until(lambda: mail.keys[:1] == [OLDER], "the newest of it")
        assert mail.shown_to(0) == 0
        await stage.press("tab", "g")
        await stage.until(lambda: mail.keys[0] != OLDER, "all of it")
        await stage.press("g")
        await stage.until(lambda: mail.shown_to(0) > 0, "the first of it read")


@pytest.mark.long
async def test_an_unchanged_mailbox_is_not_gone_through(frozen: Frozen, monkeypatch: pytest.MonkeyPatch) -> None:
    gone_through = Mock(wraps=message_list.find_threads)
    monkeypatch.setattr(message_list, "find_threads", gone_through)
    async with opened(frozen, 80, 24) as stage:
        await stage.press("2")
        await stage.sees("your mail · 3 new")
        mail = stage.app.screen.query_one("#mail", MessageList)
        screen = stage.app.screen
        assert isinstance(screen, inbox.InboxScreen)
        await stage.settles()
        before = gone_through.call_count
        for _ in range(10):
            screen.paint(screen.context.snapshot)
        assert gone_through.call_count == before > 0
        frozen.mail(1000, "scan", "operator", "message", "letter 0", 0)
        await stage.until(lambda: mail.keys[-1] == "m1000")
        assert gone_through.call_count > before


async def test_the_inbox_follows_new_mail_once_asked_to(frozen: Frozen) -> None:
    frozen.mail(1000, "scan", "operator", "message", "letter 0", 0)
    async with opened(frozen, 80, 24) as stage:
        await stage.press("2", "tab", "G")
        await stage.sees("follow:on")
        mail = stage.app.screen.query_one("#mail", LineList)
        frozen.mail(1001, "api", "operator", "message", "the newest", 0)
        await stage.until(lambda: mail.selected == "m1001")
        await stage.press("k", "j")
        await stage.sees("follow:off")


@pytest.mark.long
async def test_mail_that_comes_below_the_screen_is_counted(frozen: Frozen) -> None:
    fill(frozen, "operator", 30)
    async with opened(frozen, 80, 24) as stage:
        await stage.press("2", "tab", "g")
        mail = stage.app.screen.query_one("#mail", MessageList)
        await stage.until(lambda: mail.scroll_offset.y == 0 and bool(mail.below), "the first message")
        count = int(mail.below.split()[0])
        await stage.sees(f"{count} below · G follow:off")
        frozen.mail(1000, "api", "operator", "message", "the newest", 0)
        await stage.sees(f"{count + 1} below · G follow:off")
        await stage.press("G")
        await stage.sees("the newest", "G follow:on")
        await stage.sees_not(" below · G")


@pytest.mark.long
@pytest.mark.parametrize(
    ("keys", "moves"),
    [(("6",), ("k", "j")), pytest.param(("j", "tab"), ("k", "j"), marks=pytest.mark.long)],
    ids=["feed", "text"],
)
async def test_moving_to_the_end_does_not_follow(frozen: Frozen, keys: tuple[str, ...], moves: tuple[str, ...]) -> None:
    for number in range(30):
        frozen.said("docs", 1, f"thought number {number}")
    async with opened(frozen, 80, 24) as stage:
        await stage.press(*keys)
        await stage.sees("f follow:on")
        await stage.press(*moves)
        await stage.sees("f follow:off")
        await stage.press("G")
        await stage.sees("f follow:on")


@pytest.mark.long
async def test_a_message_that_becomes_a_thread_stays_selected(frozen: Frozen) -> None:
    frozen.asks("r1", "plan_approval", "api", 9, {"plan": "first"})
    frozen.mail(1000, "api", "operator", "plan_approval_request", "first", 9, request_id="r1")
    frozen.mail(1001, "scan", "operator", "message", "another", 8)
    async with opened(frozen, 80, 24) as stage:
        await stage.press("2", "tab", "G", "k")
        mail = stage.app.screen.query_one("#mail", MessageList)
        await stage.until(lambda: mail.selected == "m1000")
        frozen.asks("r2", "plan_approval", "api", 7, {"plan": "second"}, supersedes="r1")
        frozen.mail(1002, "api", "operator", "plan_approval_request", "second", 7, request_id="r2")
        await stage.until(lambda: mail.thread is not None and mail.thread.newest.message.id == "m1002")


_ALIKE = ("payments-review-service-api", "payments-review-service-web")


@pytest.mark.long
@pytest.mark.parametrize("width", [80, pytest.param(120, marks=pytest.mark.long)])
async def test_long_names_can_be_told_apart(empty: Frozen, width: int) -> None:
    for at, name in enumerate(_ALIKE):
        empty.hire(name, "code", "working", "reading the whole of the code", ago=1, pid=4395 + at)
        empty.task(at + 1, "read it", "in_progress", owner=name)
        empty.asks(f"r{at}", "question", name, 9, {"question": "Which?"})
    async with opened(empty, width, 30) as stage:
        for view in "123457":
            await stage.press(view)
            for name in _ALIKE:
                await stage.until(lambda name=name: any(  # type: ignore[misc]
                    line.count("payme") and f"{name[-4:]} " in line for line in stage.text[3:]))  # fmt: skip


async def test_a_name_gets_free_columns_of_the_board(empty: Frozen) -> None:
    for at, name in enumerate(_ALIKE):
        empty.hire(name, "code", "idle", "", ago=1, pid=4395 + at)
    async with opened(empty, 150, 30) as stage:
        await stage.press("w")
        await stage.sees(*_ALIKE)


@pytest.mark.long
async def test_the_key_of_the_board_leads_there_from_every_view(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.press("enter")
        await stage.sees("demo ›")
        await stage.press("5", "1")
        await stage.sees("Team 11 ")
        assert "demo ›" not in stage.all


@pytest.mark.long
async def test_a_filter_ends_when_a_page_is_opened_from_it(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.press("/")
        await stage.write("perf")
        await stage.press("enter")
        await stage.sees("filter perf", "Team 1 of 11")
        await stage.press("enter")
        await stage.sees("demo › perf")
        await stage.press("escape")
        await stage.sees("━ Team 11 ━")
        assert stage.app.screen.query_one(Roster).selected == "perf"


@pytest.mark.long
async def test_a_tick_draws_only_the_rows_that_can_be_seen(empty: Frozen, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(60):
        empty.hire(f"agent{number:02}", "explore", "idle", "", ago=1, pid=7)
    drawn: list[str] = []
    cells = table.cells

    def counted(columns: Sequence[Column[AgentRow]], row: AgentRow) -> Line:
        drawn.append(row.agent.name)
        return cells(columns, row)

    async with opened(empty, 80, 24) as stage:
        await stage.sees("agent00")
        roster = stage.app.screen.query_one(Roster)
        monkeypatch.setattr(table, "cells", counted)
        roster.tick(NOW + 3600)
        assert drawn[0] == "agent00"
        assert len(drawn) <= roster.size.height
        drawn.clear()
        await stage.press("G")
        await stage.sees("agent59")
        assert "agent59" in drawn
        assert "agent20" not in drawn


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (999, "999B"), (1_023, "1K"), (1_023_487, "999K"), (1_023_900, "1.0M"), (10_380_902, "9.9M"),
        (10_440_000, "10M"), (1_048_000_000, "999M"), (1_048_100_000, "1.0G"), (1_073_700_000_000, "1T"),
    ],
)  # fmt: skip
def test_a_size_takes_four_cells(count: int, shown: str) -> None:
    assert format_size(count) == shown
