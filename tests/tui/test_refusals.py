"""A key that does nothing says why, with the name from the palette."""

import pytest

from crewboard.commands import answers, stop
from crewboard_tui.widgets import line_list
from tests.frozen import Frozen
from tests.tui.stage import opened


async def test_read_only_says_so_at_every_key_that_changes_the_team(frozen: Frozen) -> None:
    named = {"x": "stop", "m": "msg", "n": "new", "r": "resume", "b": "all", "D": "seen"}
    async with opened(frozen, 80, 24, read_only=True) as stage:
        for key, name in named.items():
            await stage.press(key)
            await stage.sees(f" {name}: not while you only look (--read-only)")


@pytest.mark.long
async def test_with_nothing_waiting_the_key_for_the_next_need_says_so(empty: Frozen) -> None:
    empty.hire("api", "code", "working", "thinking", ago=1, pid=4395)
    async with opened(empty, 80, 24) as stage:
        await stage.press("!")
        await stage.sees(" next: nothing needs you")


@pytest.mark.long
async def test_a_key_that_does_nothing_here_says_why(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        for way, key, says in (
            ("1", "x", "stop: parser is not running"),
            ("1 j", "D", "seen: nothing there to acknowledge"),
            ("5", "C", "cancel: only on the task board"),
            ("7", "w", "wide: only in the list of the Board"),
            ("6", "space", "mark: only in the list of a view"),
            ("6", "s", "sort: only in the list of a view"),
            ("6", "x", "stop: select an agent first"),
            ("3", "x", "stop: not on the task board"),
            ("6", "z", "zoom: this pane is the only one"),
            ("1", "escape", "back: nothing is open on the Board"),
            ("3", "o", "reopen: not while it is in progress"),
            ("3", "b", "wait for: not while it is in progress"),
        ):
            await stage.press(*way.split())
            await stage.settles()
            await stage.press(key)
            await stage.sees(says)


async def test_an_answer_to_what_is_decided_says_what_was(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.press("!", "!")
        await stage.sees("PLAN v2")
        answers.reject(frozen.team, "req-004281", "no")
        await stage.sees("rejected by you at 15:04:22")
        await stage.settles()
        await stage.press("a")
        await stage.sees("approve: rejected by you at 15:04:22")


@pytest.mark.long
async def test_enter_on_a_plan_changes_nothing_and_says_open(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.press("!", "!")
        await stage.sees("PLAN v2")
        await stage.settles()
        await stage.press("enter")
        await stage.sees("open: only in a list")


@pytest.mark.long
async def test_answering_an_answered_question_says_so(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.app.open_need("question:docs:req-004290")
        await stage.sees("QUESTION")
        answers.answer(frozen.team, "req-004290", "yes")
        await stage.sees("answered by you at 15:04:22")
        await stage.sees_not("⏎ sends")
        await stage.press("c")
        await stage.sees("own words: answered by you at 15:04:22")
        await stage.press("enter")
        await stage.sees("open: answered by you at 15:04:22")


@pytest.mark.long
async def test_q_in_a_form_says_why_it_does_not_leave(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.press("n")
        await stage.sees("Hire an agent")
        await stage.press("tab", "q")
        await stage.sees("leave: not while this form is open", "Hire an agent")


async def test_ctrl_z_says_that_it_needs_a_terminal(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.press("ctrl+z")
        await stage.sees("suspend: only in a terminal")


@pytest.mark.long
async def test_ctrl_z_suspends_while_a_text_is_written(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.press("j", "m")
        await stage.write("half a thought")
        await stage.press("ctrl+z", "escape")
        await stage.sees("suspend: only in a terminal")
        assert stage.app.context.drafts == {"auth-plan": "half a thought"}
        await stage.press("n", "tab", "tab", "tab")
        await stage.write("fix it")
        await stage.press("ctrl+z")
        await stage.sees("suspend: only in a terminal", "fix it")


async def test_only_a_key_that_is_taken_there_is_to_be_pressed_again(
    frozen: Frozen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_list, "BLIND_FOR", 3600)
    async with opened(frozen, 80, 24) as stage:
        await stage.sees("Peek · parser")
        stop.remove(frozen.team, "parser")
        await stage.sees("Peek · auth-plan")
        await stage.press("C")
        await stage.sees("cancel: only on the task board")
        await stage.press("x")
        await stage.sees("stop: not taken: what is under the cursor")
