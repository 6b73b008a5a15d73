"""The task board: why a task waits, and the keys that make, assign, block and cancel one."""

import pytest

from crewboard.errors import StorageError
from crewboard.records import Task
from crewboard.store import mailbox, tasks
from crewboard.team import board
from crewboard_tui.screens.tasks import TasksScreen
from tests.frozen import Frozen
from tests.tui.stage import Stage, opened
from tests.tui.test_agent_keys import Calls


def _task(frozen: Frozen, ident: int) -> Task:
    return tasks.load(frozen.directory, ident)


async def _on(stage: Stage, ident: int) -> None:
    """Go to the task view and put the cursor on a task."""
    await stage.press("3")
    await stage.sees("Tasks · ")
    screen = stage.app.screen
    assert isinstance(screen, TasksScreen)
    screen.select_task(ident)
    await stage.sees(f"┌─ #{ident} ─")


async def test_an_orphan_says_who_had_it_and_how_that_ended(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await _on(stage, 14)
        await stage.sees("orphaned by parser, killed by SIGKILL", "nobody; parser had it, killed by SIGKILL")
        await stage.can("r", "resume")


async def test_a_blocked_task_says_by_what_and_how_that_stands(frozen: Frozen) -> None:
    frozen.task(30, "old survey", "cancelled")
    frozen.task(31, "tell the users", blocked_by=[30, 9])
    async with opened(frozen, 80, 36) as stage:
        await _on(stage, 31)
        await stage.sees(
            "after #30 cancelled #9 ●", "#9 paginate /orders: in progress, api", "#30 old survey: cancelled"
        )


async def test_a_new_task_is_put_on_the_board_and_is_under_the_cursor(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.press("3", "+")
        await stage.sees("new task ›")
        await stage.write("tidy up")
        await stage.press("enter")
        await stage.sees("task 24 is on the board: a assigns it", "┌─ #24 ─")
    assert _task(frozen, 24).subject == "tidy up"


async def test_the_text_of_a_task_that_could_not_be_made_is_kept(
    frozen: Frozen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(board, "add_task", Calls(StorageError("the disk is full")))
    async with opened(frozen, 80, 24) as stage:
        await stage.press("3", "+")
        await stage.write("tidy up")
        await stage.press("enter")
        await stage.sees("the disk is full")
        await stage.press("+")
        await stage.sees("tidy up")


async def test_the_empty_board_says_which_key_makes_the_first(empty: Frozen) -> None:
    async with opened(empty, 80, 24) as stage:
        await stage.press("3")
        await stage.sees("no tasks yet; + puts the first one on the board")
        await stage.can("+", "new task")


async def test_a_task_is_given_to_an_agent_who_is_told(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await _on(stage, 23)
        await stage.press("a")
        await stage.sees("#23 to ›")
        await stage.write("rev")
        await stage.sees("reviewer · Tab completes")
        await stage.press("tab", "enter")
        await stage.sees("task 23 is reviewer's, who is told")
    assert _task(frozen, 23).owner == "reviewer"
    assert mailbox.read(frozen.directory, "reviewer").messages[-1].type == "task_assignment"


async def test_nobody_who_is_not_here_or_may_not_is_assigned(frozen: Frozen) -> None:
    frozen.task(30, "run the suite", required_type="test")
    async with opened(frozen, 80, 36) as stage:
        await _on(stage, 30)
        await stage.press("a")
        await stage.write("fixer")
        await stage.press("enter")
        await stage.sees("there is no agent 'fixer'; there are parser")
        await stage.press(*["backspace"] * 5)
        await stage.write("api")
        await stage.press("enter")
        await stage.sees("#30 is for an agent of type test; api is of type code")
        await stage.press("escape")
    assert _task(frozen, 30).owner is None


async def test_a_task_is_let_wait_for_others(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await _on(stage, 23)
        await stage.press("b")
        await stage.write("9 nine")
        await stage.press("enter")
        await stage.sees("give the numbers of tasks")
        await stage.press(*["backspace"] * 4)
        await stage.write("#10")
        await stage.press("enter")
        await stage.sees("task 23 waits for #9, #10", "after #9 ● #10 ●")
    assert _task(frozen, 23).blocked_by == [9, 10]


async def test_a_refusal_of_the_board_is_shown_in_words(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await _on(stage, 23)
        await stage.press("b")
        await stage.write("23")
        await stage.press("enter")
        await stage.sees("task 23 cannot wait for itself")


async def test_capital_c_cancels_and_says_that_the_owner_is_not_told(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await _on(stage, 9)
        await stage.press("C")
        await stage.sees("task 9 is cancelled; api is not told: m writes to it")
        await stage.until(lambda: "C cancel" not in stage.part("keys"), "the key gone from the footer")
    assert _task(frozen, 9).status == "cancelled"


async def test_what_is_closed_is_neither_assigned_nor_cancelled(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await _on(stage, 2)
        await stage.settles()
        for offered in ("a assign", "C cancel", "b wait for"):
            assert offered not in stage.part("keys")


async def test_keys_that_could_mean_the_task_do_not_reach_its_owner(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await _on(stage, 9)
        await stage.settles()
        for offered in ("x stop", "X end it", "p pause"):
            assert offered not in stage.part("keys")


async def test_read_only_changes_no_task(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24, read_only=True) as stage:
        await _on(stage, 9)
        await stage.press("C", "+")
        await stage.sees("Tasks · ")
        assert "new task" not in stage.all
    assert _task(frozen, 9).status == "in_progress"
