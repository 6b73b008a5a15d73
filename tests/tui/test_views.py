"""The other views and pages: inbox, tasks, processes, feed, agent page, help, palette."""

import re
import threading

import pytest

from crewboard.commands import answers, messages
from crewboard.protocol import requests
from crewboard.readmodel.processes import Usage
from crewboard.store import mailbox
from crewboard_tui.keymap.bindings import BY_ID, GROUPS, KEYS
from crewboard_tui.queries import Usages
from crewboard_tui.views import inbox as screen
from crewboard_tui.views.processes import COLUMNS
from crewboard_tui.widgets.bars import working_keys
from crewboard_tui.widgets.line_list import LineList
from tests.frozen import NOW, Frozen
from tests.tui.stage import Stage, opened


@pytest.mark.long
async def test_a_digit_returns_to_the_last_page_then_to_the_view(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.press("5", "j", "enter")
        await stage.sees("demo › auth-plan", "5 Procs")
        await stage.press("3")
        await stage.sees("Tasks · ")
        await stage.press("5")
        await stage.sees("demo › auth-plan")
        await stage.press("5")
        await stage.sees("━ Processes")


@pytest.mark.parametrize(("key", "sign"), [("9", "Permission rules"), ("H", "no hosts")])
async def test_a_view_does_not_keep_what_has_a_tab_of_its_own(frozen: Frozen, key: str, sign: str) -> None:
    async with opened(frozen, 120, 36) as stage:
        await stage.press("4", key)
        await stage.sees(sign)
        await stage.press("1", "4")
        await stage.sees("Needs you · ")
        assert sign not in stage.all


async def test_the_inbox_shows_every_mailbox_and_what_lies_in_it(frozen: Frozen) -> None:
    async with opened(frozen, 120, 36) as stage:
        await stage.press("2")
        await stage.sees("operator", "3 new", "lead", "✖ parser", "3 unread")
        await stage.press("j")
        await stage.sees("The repository has 41 modules", "parser ended: signal 9")


async def test_the_inbox_says_which_line_cannot_be_read(frozen: Frozen) -> None:
    inbox = frozen.directory.inbox("operator")
    inbox.store.append(inbox.name, b'{"v": 1, "id": \n')
    broken = inbox.on_disk.stat().st_size
    frozen.mail(9000, "docs", "operator", "message", "this one is whole", 1)
    async with opened(frozen, 120, 36) as stage:
        await stage.press("2")
        await stage.sees(
            "this one is whole", f"a line cannot be read; it ends at byte {broken} of inbox/operator.jsonl"
        )
        shown = stage.all
        assert shown.index("a line cannot be read") < shown.index("this one is whole"), "it stands at its place"
        await stage.press("tab", "g", "j", "j")
        await stage.sees("system → you")


@pytest.mark.long
async def test_the_inbox_opens_the_mailbox_that_has_something_new(frozen: Frozen) -> None:
    for name in ("operator", "lead"):
        messages.mark_read(frozen.team, name, mailbox.read(frozen.directory, name).offset)
    async with opened(frozen, 109, 36) as stage:
        await stage.press("2")
        await stage.sees("operator · your mail")
        await stage.press("1")
        frozen.mail(90, "reviewer", "lead", "result", "Looks fine.", 20)
        await stage.sees("1 result to read")
        await stage.press("2")
        await stage.sees("you read it · 1 new", "Looks fine.")
        await stage.press("j")
        await stage.sees_not("you read it · 1 new")
        await stage.settles()
        boxes = stage.app.screen.query_one("#boxes", LineList)
        other = boxes.selected
        await stage.press("1", "2")
        await stage.settles()
        assert boxes.selected == other, "the mailbox of an agent stays"


@pytest.mark.long
async def test_a_workers_mail_carries_three_times(frozen: Frozen) -> None:
    async with opened(frozen, 120, 36) as stage:
        await stage.press("2", "/")
        await stage.press("escape")
        for _ in range(7):
            await stage.press("j")
        await stage.sees("api · 1 unread · seen as its worker sees it")
        await stage.sees("picked", "turn", "15:04:07", "15:04:08")


@pytest.mark.long
async def test_looking_never_moves_a_workers_cursor(frozen: Frozen) -> None:
    before = frozen.directory.agent("api").cursor.on_disk.read_bytes()
    async with opened(frozen, 80, 24) as stage:
        await stage.press("2")
        for _ in range(10):
            await stage.press("j")
        await stage.press("1")
        await stage.sees("Peek")
    assert frozen.directory.agent("api").cursor.on_disk.read_bytes() == before
    assert len(mailbox.read(frozen.directory, "parser").messages) == 3


@pytest.mark.long
async def test_the_operators_mail_counts_as_read_once_seen_and_left(
    frozen: Frozen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(screen, "LOOKED_AT", 0)
    async with opened(frozen, 80, 24) as stage:
        await stage.press("2")
        await stage.sees("operator · your mail · 3 new", "15:00:10")
        await stage.press("j")
        await stage.sees("lead · no lead hired yet: you read it · 2 new")
        await stage.sees_not("3 new")
    state = frozen.directory.operator.load()
    assert state is not None
    assert state.read["operator"] > 0


@pytest.mark.long
@pytest.mark.parametrize(
    "width", [pytest.param(40, marks=pytest.mark.long), 60, 80, pytest.param(120, marks=pytest.mark.long)]
)
async def test_the_absent_leads_mailbox_says_who_reads_it_at_any_width(frozen: Frozen, width: int) -> None:
    async with opened(frozen, width, 24) as stage:
        await stage.press("2", "j")
        await stage.sees("lead", "no lead hired yet: you read it" if width > 60 else "lead · you read it")


@pytest.mark.long
async def test_who_is_free_for_work_is_no_new_mail(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.sees("2 Inbox·5 ")
        frozen.mail(98, "scan", "lead", "idle_notification", "free for work", 0)
        frozen.mail(99, "scan", "lead", "message", "a letter", 0)
        await stage.sees("2 Inbox·6 ")
        await stage.press("2", "j")
        await stage.sees("lead · no lead hired yet: you read it · 3 new", "a letter")
        assert "is free for work" not in stage.all


@pytest.mark.long
async def test_a_request_that_you_answered_is_no_new_mail(frozen: Frozen) -> None:
    for ident in ("req-1", "req-2"):
        frozen.asks(ident, "question", "api", 10, {"question": f"which of {ident}?"})
    async with opened(frozen, 80, 24) as stage:
        await stage.sees("2 Inbox·7 ")
        answers.answer(frozen.team, "req-1", "this one")
        await stage.sees("2 Inbox·6 ")
        await stage.press("2")
        await stage.sees("operator · your mail · 4 new")
        await stage.press("u")
        await stage.sees("which of req-2?")
        await stage.sees_not("which of req-1?")


async def test_what_was_never_on_the_screen_is_not_read(frozen: Frozen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screen, "LOOKED_AT", 0)
    for number in range(60):
        frozen.mail(1000 + number, "scan", "operator", "message", f"letter {number}", 0)
    async with opened(frozen, 80, 24) as stage:
        await stage.press("2")
        await stage.sees("operator · your mail · 63 new", "letter 4 ")
        assert "letter 20" not in stage.all
        await stage.press("1")
        await stage.sees("Peek", "2 Inbox·")
        await stage.sees_not("2 Inbox·65 ")
        await stage.press("2")
        await stage.sees("letter 9 ")
        # Where it scrolls to.
        await stage.settles()
        # Behind what was read nothing stands; behind the others stands that they are new.
        read = next(at for at in range(60) if f"letter {at} " in stage.all)
        await stage.sees(f"operator · your mail · {60 - read} new")


@pytest.mark.long
async def test_new_mail_is_shown_from_its_first_message_at_any_length(frozen: Frozen) -> None:
    for number in range(3):
        frozen.mail(1000 + number, "scan", "operator", "message", f"letter {number} " + 200_000 * "x", 0)
    async with opened(frozen, 80, 24) as stage:
        await stage.press("2")
        await stage.sees("operator · your mail · 6 new", "docs       asks", "letter 0 ")


@pytest.mark.long
async def test_a_message_that_is_read_in_full_stays_while_others_come(frozen: Frozen) -> None:
    frozen.mail(1000, "scan", "operator", "message", "what I read", 0)
    async with opened(frozen, 80, 24) as stage:
        await stage.press("2")
        await stage.sees("what I read")
        await stage.press("enter", "G", "enter")
        await stage.sees_not("Mailboxes")
        await stage.sees("what I read")
        before = stage.text[1]
        frozen.mail(1001, "api", "operator", "message", "what came meanwhile", 0)
        await stage.until(lambda: stage.text[1] != before, "one more unread in the heading")
        await stage.press("escape")
        await stage.sees("Mailboxes", "what came meanwhile")
        await stage.until(lambda: "what I read" in _under_the_cursor(stage), "the cursor where it was")
        await stage.press("G")
        frozen.mail(1002, "api", "operator", "message", "what came last", 0)
        await stage.until(lambda: "what came last" in _under_the_cursor(stage), "the last")


def _under_the_cursor(stage: Stage) -> str:
    return next((line for line in stage.text if "│▌" in line), "")


@pytest.mark.long
async def test_a_leap_to_the_end_reads_nothing_of_what_it_passes(
    frozen: Frozen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(screen, "LOOKED_AT", 0)
    for number in range(60):
        frozen.mail(1000 + number, "scan", "operator", "message", f"letter {number}", 0)
    async with opened(frozen, 80, 24) as stage:
        await stage.press("2")
        await stage.sees("letter 4 ")
        await stage.press("enter", "G")
        await stage.sees("letter 59 ")
        await stage.press("1")
        await stage.sees("Peek", "2 Inbox·")
        await stage.sees_not("2 Inbox·65 ")
        await stage.press("2")
        await stage.sees("letter 9 ")
        assert "letter 59 " not in stage.all


@pytest.mark.long
async def test_what_comes_while_one_message_has_the_screen_is_not_read(
    frozen: Frozen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(screen, "LOOKED_AT", 0)
    async with opened(frozen, 80, 24) as stage:
        await stage.press("2")
        await stage.sees("operator · your mail · 3 new", "15:00:10")
        await stage.press("enter", "G", "enter")
        await stage.sees_not("Mailboxes")
        frozen.mail(1000, "scan", "operator", "message", "a late letter", 0)
        await stage.sees("2 Inbox·6 ")
        await stage.press("1")
        await stage.sees("Peek", "2 Inbox·3 ")


@pytest.mark.long
async def test_going_down_line_by_line_reads_all(frozen: Frozen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screen, "LOOKED_AT", 0)
    for number in range(30):
        frozen.mail(1000 + number, "scan", "operator", "message", f"letter {number}", 0)
    async with opened(frozen, 80, 24) as stage:
        await stage.press("2")
        await stage.sees("letter 4 ")
        await stage.press("enter", *["ctrl+d"] * 12)
        await stage.sees("letter 29 ")
        await stage.press("1")
        await stage.sees("2 Inbox·2 ")


@pytest.mark.long
async def test_noting_what_was_read_never_holds_up_the_screen(frozen: Frozen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screen, "LOOKED_AT", 0)
    noted: list[threading.Thread] = []
    monkeypatch.setattr(messages, "mark_read", lambda *_: noted.append(threading.current_thread()))
    async with opened(frozen, 80, 24) as stage:
        await stage.press("2")
        await stage.sees("operator · your mail · 3 new", "15:00:10")
        await stage.press("j")
        await stage.until(lambda: noted, "the note")
    assert threading.main_thread() not in noted


@pytest.mark.long
async def test_passing_by_is_no_reading(frozen: Frozen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screen, "LOOKED_AT", 3600)
    async with opened(frozen, 80, 24) as stage:
        await stage.press("2", "j", "j", "k", "k", "1")
        await stage.sees("Peek")
    assert not frozen.directory.operator.exists()


@pytest.mark.long
async def test_read_only_marks_nothing_as_read(frozen: Frozen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screen, "LOOKED_AT", 0)
    async with opened(frozen, 80, 24, read_only=True) as stage:
        await stage.press("2", "j", "j", "1")
        await stage.sees("Peek")
    assert not frozen.directory.operator.exists()


@pytest.mark.long
async def test_a_reply_goes_to_whom_wrote(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.press("2", "j")
        await stage.sees("lead · no lead hired yet: you read it")
        await stage.settles()
        await stage.press("enter", "k", "m")
        await stage.sees("to scan ›")


@pytest.mark.long
async def test_enter_opens_a_message_and_esc_goes_back_step_by_step(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.press("2")
        await stage.settles()
        await stage.press("enter", "G")
        await stage.sees("docs → you · asks")
        await stage.press("enter")
        await stage.sees_not("Mailboxes")
        await stage.sees("Keep them?")
        for focused in ("letter", "mail", "boxes"):
            await stage.until(lambda name=focused: getattr(stage.app.focused, "id", "") == name, focused)  # type: ignore[misc]
            assert ("Mailboxes" in stage.all) is (focused != "letter")
            await stage.press("escape")
            await stage.settles()
        await stage.sees("Peek")
        await stage.press("2", "enter", "tab")
        for focused in ("letter", "mail"):
            await stage.until(lambda name=focused: getattr(stage.app.focused, "id", "") == name, focused)  # type: ignore[misc]
            await stage.press("escape")


@pytest.mark.long
async def test_tasks_say_why_they_wait(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.press("3")
        await stage.sees("Tasks · 1/8 completed", "orphaned by parser", "after #9 ● #11 ●", "unassigned")
        await stage.press("j", "j", "j", "j", "j")
        await stage.sees("unassigned; orphaned by parser")


@pytest.mark.long
async def test_a_process_row_shows_its_last_two_minutes(frozen: Frozen) -> None:
    frozen.probe.held["perf"] = Usage(50, 155 * 1024 * 1024, 0)
    async with opened(frozen, 100, 30) as stage:
        await stage.press("5")
        await stage.sees(" mem mem 2min child sandbox", "98%        █")
        row = next(line for line in stage.text if "flaky-hunt" in line)
        assert re.search(r" 98% +█  310M +█ ", row), "nearly a core, and the largest of the team"
        assert not re.search("[▁-█]", next(line for line in stage.text if "parser" in line)), "it has no process"
        assert re.search(r" 50% +▅  155M +▅ ", next(line for line in stage.text if "perf" in line)), "half of both"
        reading = stage.app.context.reading
        assert any(isinstance(query, Usages) for query in reading._queries)
        await stage.press("6")
        await stage.until(lambda: not any(isinstance(query, Usages) for query in reading._queries), "no such reading")


@pytest.mark.long
async def test_a_narrow_process_row_keeps_room_for_how_it_is(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.press("5")
        await stage.sees("killed by SIGKI", "98%        █  310M     1 bubblewrap bash pytest")
        # Its glyph says that it works.
        assert next(line for line in stage.text if " api " in line).rstrip().endswith("bubblewrap")


async def test_agents_in_one_process_are_told_as_that(frozen: Frozen) -> None:
    """So that its memory is not added up, as of teammates of Claude Code."""
    frozen.hire("twin", "code", "idle", "", ago=1, pid=4402)
    async with opened(frozen, 80, 24) as stage:
        await stage.press("5")
        await stage.press("/")
        await stage.write("twin")
        await stage.press("enter")
        await stage.sees("pid 4402, run 1, with ", " in one process")


@pytest.mark.long
async def test_each_column_of_processes_has_a_title_of_its_own(frozen: Frozen) -> None:
    async with opened(frozen, 120, 36) as stage:
        await stage.press("5")
        await stage.sees(" mem mem 2min child ")
    titles = [column.title for column in COLUMNS]
    assert len(set(titles)) == len(titles)


@pytest.mark.long
async def test_processes_show_pid_usage_sandbox_and_how_it_ended(frozen: Frozen) -> None:
    async with opened(frozen, 120, 36) as stage:
        await stage.press("5")
        await stage.sees("Processes 9", "supervisor 4380", "4402", "98%", "310M", "killed by SIGKILL")


@pytest.mark.long
async def test_the_feed_shows_all_agents_newest_last(frozen: Frozen) -> None:
    async with opened(frozen, 120, 36) as stage:
        await stage.press("6")
        await stage.sees("parser", "pytest -x tests/parser", "edit_file src/api/routes.py")


@pytest.mark.long
async def test_a_line_of_the_feed_unfolds_to_all_of_it(frozen: Frozen) -> None:
    frozen.said("ui", 1, "the list scrolls without an end now, " * 3 + "and keeps its place\nwhen one comes back")
    async with opened(frozen, 80, 24) as stage:
        await stage.press("6")
        await stage.sees("f follow:on", "the list scrolls")
        assert "comes back" not in stage.all
        await stage.can("⏎", "unfold")
        await stage.press("enter")
        await stage.sees("and keeps its place", "when one comes back", "f follow:off")
        await stage.can("⏎", "fold")
        await stage.press("k", "enter")
        await stage.sees("f follow:off", "replaced 1 occurrence")
        await stage.press("enter", "G")
        await stage.sees("f follow:on")
        frozen.said("ui", 0, "the newest")
        await stage.sees("the newest")


@pytest.mark.long
async def test_an_agents_page_turns_its_tabs(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.press("j", "j", "j", "j", "j", "enter")
        await stage.turns_to("Now")
        await stage.sees("code · run 1 · pid 4395", "need a cursor, not an offset", "task     #9 paginate /orders")
        await stage.press("]")
        await stage.turns_to("Mail")
        await stage.sees("Mail 1", "what is the cursor", "not read yet")
        await stage.press("]", "]")
        await stage.turns_to("Files")
        await stage.sees("src/api/routes.py")
        await stage.press("]")
        await stage.turns_to("Vitals")
        await stage.sees("140M")
        await stage.press("escape")
        await stage.sees("Peek · api")


async def test_a_dead_agents_page_says_why(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.press("enter")
        await stage.sees("killed by SIGKILL at 15:02:10", "collected 214 items")
        await stage.can("r", "resume")


async def test_help_lists_the_keys_that_work_and_the_states(frozen: Frozen) -> None:
    async with opened(frozen, 80, 60) as stage:
        await stage.press("?")
        await stage.sees("Keys that work here", "resume it with its memory", "j ↓")
        await stage.press("G")
        await stage.sees("● run")
        await stage.press("escape")
        await stage.sees("Peek")


@pytest.mark.long
async def test_the_palette_offers_what_works_here_and_does_it(frozen: Frozen) -> None:
    async with opened(frozen, 100, 30) as stage:
        await stage.press(":")
        await stage.write("hire")
        await stage.sees("hire an agent")
        await stage.until(lambda: all(each.is_finished for each in stage.app.workers), "the end of the search")
        await stage.press("enter")
        await stage.sees("Hire an agent")


@pytest.mark.long
async def test_everything_a_key_does_is_in_the_palette(frozen: Frozen) -> None:
    async with opened(frozen, 100, 30) as stage:
        await stage.can("r", "resume")
        working = {key.id for key, _ in working_keys(stage.app.screen)}
        assert {"agent.resume", "agent.hire", "app.inbox", "app.theme", "app.leave"} <= working
        assert "agent.stop" not in working, "a dead agent cannot be asked to leave"


@pytest.mark.long
async def test_each_view_keeps_its_place(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.press("j", "j", "j", "3", "j", "1")
        await stage.sees("Peek · migrate")
        await stage.press("3")
        await stage.until(lambda: any(line.startswith("▌● #9") for line in stage.text), "the cursor where it was")


def test_every_key_has_an_id_of_its_own_and_says_what_it_does() -> None:
    assert len(BY_ID) == len(KEYS)
    for key in KEYS:
        assert key.says, key.id
        assert "." in key.id
        assert key.label or key.footer is None, f"the footer would show {key.id} without a label"


def test_every_key_stands_in_the_help() -> None:
    grouped = {scope for scopes in GROUPS.values() for scope in scopes}
    assert {key.scope for key in KEYS} == grouped


def test_no_plain_letter_destroys() -> None:
    for key in KEYS:
        if key.id in ("agent.end", "agent.fresh", "agent.acknowledge"):
            assert key.keys.isupper(), key.id


@pytest.mark.long
@pytest.mark.parametrize(
    "key",
    [
        "n",
        pytest.param("m", marks=pytest.mark.long),
        pytest.param("l", marks=pytest.mark.long),
        pytest.param("2", marks=pytest.mark.long),
        pytest.param("enter", marks=pytest.mark.long),
        pytest.param(":", marks=pytest.mark.long),
    ],
)
async def test_leaving_while_a_page_opens_does_no_harm(frozen: Frozen, key: str) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.press(key)
    assert not stage.app.return_code


@pytest.mark.long
async def test_a_views_number_pressed_again_leads_to_the_view_itself(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.press("j", "enter")
        await stage.turns_to("Now")
        await stage.press("1")
        await stage.sees("━ Team")


@pytest.mark.long
async def test_a_settled_request_is_not_what_a_view_comes_back_to(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.press("!", "!")
        await stage.sees("PLAN v2")
        await stage.press("3")
        await stage.sees("━ Tasks")
        requests.close(frozen.directory, "req-004281", "cancelled", "system", NOW)
        await stage.until(lambda: not stage.app.context.snapshot.view.request("req-004281"), "its end")
        await stage.press("4")
        await stage.sees("━ Needs you")
        assert "PLAN v2" not in stage.all


@pytest.mark.long
async def test_the_feed_says_what_it_cut_and_loads_older_lines(empty: Frozen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("crewboard_tui.views.feed.PAGE", 20)
    empty.hire("api", "code", "working", "thinking", ago=1, pid=4395)
    for number in range(50):
        empty.said("api", 100 - number, f"thought number {number}")
    async with opened(empty, 80, 24) as stage:
        await stage.press("6")
        await stage.sees("Feed · newest 20 of 51", "thought number 49")
        await stage.press("g")
        await stage.sees("Feed · newest 40 of 51", "thought number 30")
        await stage.press("g")
        await stage.sees("━ Feed ━", "thought number 10")
        await stage.press("g")
        await stage.sees("thought number 0")


DAY = 86_400.0


@pytest.mark.long
@pytest.mark.parametrize(("width", "moment"), [(80, "11-19"), pytest.param(120, "11-19 15:04", marks=pytest.mark.long)])
async def test_older_mail_shows_its_date_in_the_inbox(frozen: Frozen, width: int, moment: str) -> None:
    frozen.mail(900, "ui", "operator", "message", "from yesterday", DAY)
    frozen.mail(901, "ui", "operator", "message", "from last year", 400 * DAY)
    async with opened(frozen, width, 36) as stage:
        await stage.press("2")
        await stage.sees("from yesterday", "from last year")
        (line,) = [line for line in stage.text if "from yesterday" in line and "ui" in line]
        assert moment in line
        (older,) = [line for line in stage.text if "from last year" in line and "ui" in line]
        assert "2025" in older
        await stage.press("enter", "g", "G", "enter")
        await stage.sees("sent 2025-10-16")


@pytest.mark.long
async def test_the_feed_dates_older_lines_and_shows_mail_of_other_programs(frozen: Frozen) -> None:
    frozen.mail(900, "ci", "api", "message", "build 17 is red", 2)
    frozen.mail(901, "ci", "operator", "message", "build 16 was red", DAY)
    frozen.mail(902, "operator", "api", "message", "what I wrote myself", 1)
    async with opened(frozen, 120, 36) as stage:
        await stage.press("6")
        await stage.sees("→ api: build 17 is red")
        (line,) = [line for line in stage.text if "build 17" in line]
        assert ":20 ci " in line
        await stage.press("g")
        await stage.sees("→ you: build 16 was red")
        (line,) = [line for line in stage.text if "build 16" in line]
        assert "11-19 15:04 ci " in line
        assert "what I wrote myself" not in stage.all
        frozen.mail(903, "ci", "ui", "message", "build 18 is green", 0)
        await stage.press("G")
        await stage.sees("→ ui: build 18 is green")
