"""The task board: why a task waits, and the keys to create, assign, block, cancel and reopen a task."""

import threading

import pytest

from crewboard.commands import tasks as board
from crewboard.commands.context import Team
from crewboard.errors import StorageError
from crewboard.readmodel.activity import ActivityReader, why_failed
from crewboard.readmodel.needs import format_minute
from crewboard.records.events import Answer
from crewboard.records.team import Checked, Reviewed, Task, TaskStatus
from crewboard.store import journal, mailbox, tasks
from crewboard_tui.views.rows import TaskTree
from crewboard_tui.views.tasks import TasksScreen
from crewboard_tui.widgets.line_list import LineList
from tests.cli.files import alive
from tests.frozen import NOW, Frozen
from tests.tui.stage import WAIT_TIMEOUT, Stage, opened
from tests.tui.test_agent_keys import Calls


def _task(frozen: Frozen, ident: int) -> Task:
    return tasks.load(frozen.directory, ident)


async def _on(stage: Stage, ident: int) -> None:
    """Go to the task view and put the cursor on a task."""
    await stage.press("3")
    await stage.sees("Tasks · ")
    screen = stage.app.screen
    assert isinstance(screen, TasksScreen)
    screen.go_to(str(ident))
    await stage.sees(f"─ #{ident} ─")


async def test_the_details_of_a_task_say_who_approved_it(frozen: Frozen) -> None:
    reviewed = Reviewed(of="api", by="qa", at=NOW - 60, since="a", tree="b")
    frozen.task(30, "pages", "completed", owner="api", review="qa", reviews=1, reviewed=reviewed)
    async with opened(frozen, 80, 36) as stage:
        await _on(stage, 30)
        await stage.sees(f"review     reviewed by qa {format_minute(NOW - 60)}")


@pytest.mark.long
async def test_a_task_says_in_row_and_details_why_it_waits(frozen: Frozen) -> None:
    frozen.task(30, "old survey", "cancelled")
    frozen.task(31, "tell the users", blocked_by=[30, 9])
    frozen.task(32, "thank the users")
    async with opened(frozen, 80, 36) as stage:
        await _on(stage, 14)
        await stage.sees("orphaned by parser, killed by SIGKILL", "unassigned; orphaned by parser, killed by SIGKILL")
        await stage.can("r", "resume")
        await _on(stage, 31)
        await stage.sees(
            "cannot start: #30 cancelled #9 ●", "#9 paginate /orders: in progress, api", "#30 old survey: cancelled"
        )
        await _on(stage, 32)
        await stage.sees("status     pending", "owner      unassigned")
        assert " unassigned" in next(line for line in stage.text if "#32  thank the users" in line)


async def test_a_new_task_is_put_on_the_board_and_is_under_the_cursor(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.press("3", "A")
        await stage.sees("new task ›")
        await stage.write("tidy up")
        assert stage.app.context.drafts == {"new task": "tidy up"}, "kept while it is written"
        await stage.press("enter")
        await stage.sees("task 24 is on the board: a assigns it", "─ #24 ─")
        await stage.press("A")
        await stage.write("clean up")
        await stage.press("ctrl+j")
        await stage.write("all rooms")
        await stage.press("enter")
        await stage.sees("─ #25 ─", "all rooms")
    assert (_task(frozen, 24).subject, _task(frozen, 24).description) == ("tidy up", "")
    assert (_task(frozen, 25).subject, _task(frozen, 25).description) == ("clean up", "all rooms")


@pytest.mark.long
async def test_the_text_of_a_task_that_could_not_be_made_is_kept(
    frozen: Frozen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(board, "add_task", Calls(StorageError("the disk is full")))
    async with opened(frozen, 80, 24) as stage:
        await stage.press("3", "A")
        await stage.write("tidy up")
        await stage.press("enter")
        await stage.sees("the disk is full")
        await stage.press("A")
        await stage.sees("tidy up")


def _held(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Let a task be made only once the event that is returned is set."""
    may_end, add = threading.Event(), board.add_task

    def slow(team: Team, subject: str, **how: str) -> Task:
        assert may_end.wait(WAIT_TIMEOUT)
        return add(team, subject, description=how["description"])

    monkeypatch.setattr(board, "add_task", slow)
    return may_end


@pytest.mark.long
async def test_a_task_that_is_being_made_takes_nothing_from_the_next(
    frozen: Frozen, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_end = _held(monkeypatch)
    async with opened(frozen, 80, 24) as stage:
        await stage.press("3", "A")
        await stage.write("tidy up")
        await stage.press("enter", "A")
        await stage.write("then rest")
        may_end.set()
        await stage.until(lambda: not stage.app.context.jobs.running(), "the task")
        await stage.sees("#24")
        assert stage.app.context.drafts == {"new task": "then rest"}
        await stage.sees("new task › then rest")


@pytest.mark.long
@pytest.mark.parametrize("way", ["key", "click"])
async def test_a_new_task_takes_no_cursor_that_has_moved_on(
    frozen: Frozen, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    may_end = _held(monkeypatch)
    async with opened(frozen, 80, 24) as stage:
        await stage.press("3", "A")
        await stage.write("tidy up")
        await stage.press("enter")
        if way == "key":
            await stage.press("g")
        else:
            await stage.pilot.click("#tasks", offset=(10, 3))
        screen = stage.app.screen
        assert isinstance(screen, TasksScreen)
        here = screen.selected
        may_end.set()
        await stage.sees("#24", "task 24 is on the board")
        await stage.settles()
        assert screen.selected == here


@pytest.mark.long
async def test_the_empty_board_says_which_key_makes_the_first(empty: Frozen) -> None:
    async with opened(empty, 80, 24) as stage:
        await stage.press("3")
        await stage.sees("no tasks yet", "A puts the first one on the board")
        await stage.can("A", "new task")


@pytest.mark.long
async def test_a_task_is_given_to_an_agent_who_is_told(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await _on(stage, 23)
        await stage.press("a")
        await stage.sees("#23 to ›")
        await stage.write("rev")
        await stage.sees("reviewer · Tab completes")
        with alive(frozen.team, "reviewer"):
            await stage.press("tab", "enter")
            await stage.sees("task 23 is reviewer's: it was told")
    assert _task(frozen, 23).owner == "reviewer"
    assert mailbox.read(frozen.directory, "reviewer").messages[-1].type == "task_assignment"


@pytest.mark.long
async def test_a_task_of_a_dead_agent_says_what_helps(frozen: Frozen) -> None:
    async with opened(frozen, 120, 24) as stage:
        await _on(stage, 23)
        await stage.press("a")
        await stage.write("parser")
        await stage.press("enter")
        await stage.sees("task 23 is parser's: parser is dead: `crewboard --offline resume parser`")
        await stage.sees("parser ✖ dead")


@pytest.mark.long
async def test_a_task_that_waits_for_what_never_comes_says_what_helps(frozen: Frozen) -> None:
    frozen.task(30, "old survey", "cancelled")
    async with opened(frozen, 120, 24) as stage:
        await _on(stage, 23)
        await stage.press("b")
        await stage.write("#30")
        await stage.press("enter")
        await stage.sees("#30 is cancelled, so it can never start: `crewboard task update 23 --blocked-by ''`")


@pytest.mark.long
async def test_the_beginning_of_a_name_will_do_where_it_is_one_agents(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await _on(stage, 23)
        await stage.press("a", "enter")
        await stage.sees("type a name; there are parser")
        await stage.press("p", "enter")
        await stage.sees("there is no agent 'p'; there are parser")
        await stage.press("backspace")
        await stage.write("rev")
        with alive(frozen.team, "reviewer"):
            await stage.press("enter")
            await stage.sees("task 23 is reviewer's: it was told")
    assert _task(frozen, 23).owner == "reviewer"


@pytest.mark.long
async def test_only_a_present_and_fitting_agent_can_be_assigned(frozen: Frozen) -> None:
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


@pytest.mark.long
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


@pytest.mark.long
async def test_a_refused_dependency_is_explained_and_the_prompt_stays(frozen: Frozen) -> None:
    frozen.task(22, "cut the release", "pending", blocked_by=[23])
    async with opened(frozen, 80, 24) as stage:
        await _on(stage, 23)
        await stage.press("b")
        await stage.write("23")
        await stage.press("enter")
        await stage.sees("task 23 cannot wait for itself")
        await stage.press("backspace", "2", "enter")
        await stage.sees("task 22 already waits for task 23; neither could ever start", "#23 waits for ›")
        await stage.press("escape")
        await stage.sees_not("waits for ›")
        await stage.sees("Tasks · ")
    assert _task(frozen, 23).blocked_by == []


@pytest.mark.long
async def test_the_mark_of_a_task_that_is_gone_goes_too(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await _on(stage, 23)
        await stage.press("space")
        await stage.sees("1 marked")
        frozen.directory.task(23).on_disk.unlink()
        await stage.sees_not(" marked")


@pytest.mark.long
async def test_capital_c_cancels_and_says_that_the_owner_is_not_told(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await _on(stage, 9)
        await stage.press("C")
        await stage.sees("task 9 is cancelled: o opens it again; api is not", "told: m writes to it")
        await stage.until(lambda: "C cancel" not in stage.offered, "the key gone from the footer")
    assert _task(frozen, 9).status == "cancelled"


@pytest.mark.long
async def test_a_task_offers_only_keys_that_fit_its_state_and_none_for_its_owner(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await _on(stage, 2)
        await stage.settles()
        for offered in ("a assign", "C cancel", "b wait for"):
            assert offered not in stage.offered
        await _on(stage, 9)
        await stage.settles()
        for offered in ("x stop", "X end it", "p pause"):
            assert offered not in stage.offered


async def test_read_only_changes_no_task(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24, read_only=True) as stage:
        await _on(stage, 9)
        await stage.press("C", "A")
        await stage.sees("Tasks · ")
        await stage.sees("new task: not while you only look (--read-only)")
    assert _task(frozen, 9).status == "in_progress"


def _failed(frozen: Frozen, ago: float = 60) -> None:
    """Let `api` report that task 9 failed."""
    frozen.task(9, "paginate /orders", "failed", owner="api", updated_at=NOW - ago)
    frozen.did("api", ago, "task_update", {"task_id": 9, "status": "failed"}, "task 9 is failed", 0)


def _ended(frozen: Frozen, ago: float, text: str = "", error: str | None = None) -> None:
    answer = Answer(ts=NOW - ago, run=1, assignment="p-api", answers=["p-api"], text=text, error=error)
    journal.append(frozen.directory.agent("api").journal, answer)


@pytest.mark.long
async def test_a_task_that_failed_says_why_in_its_owners_words(frozen: Frozen) -> None:
    _failed(frozen)
    _ended(frozen, 58, "There is no order by which to page: the table has no key.")
    async with opened(frozen, 80, 24) as stage:
        await _on(stage, 9)
        await stage.sees("why        There is no order by which to page: the table has no key.")


def _why(frozen: Frozen) -> str | None:
    return why_failed(_task(frozen, 9), ActivityReader(frozen.directory.agent("api")).read())


def test_what_was_said_before_other_calls_is_no_reason(frozen: Frozen) -> None:
    frozen.said("api", 70, "Taking task 9.")
    frozen.did("api", 69, "task_claim", {"task_id": 9}, "task 9 is yours", 0)
    frozen.did("api", 65, "bash", {"command": "pytest"}, "2 failed", 1)
    _failed(frozen)
    assert _why(frozen) is None


def test_what_was_said_together_with_the_failure_is_the_reason(frozen: Frozen) -> None:
    frozen.said("api", 61, "The table has no key.")
    _failed(frozen)
    assert _why(frozen) == "The table has no key."


def test_a_task_that_failed_with_its_assignment_shows_the_error(frozen: Frozen) -> None:
    frozen.task(9, "paginate /orders", "failed", owner="api", updated_at=NOW - 60)
    _ended(frozen, 61, error="100 model calls and no answer")
    assert _why(frozen) == "100 model calls and no answer"


@pytest.mark.long
async def test_what_an_agent_said_of_something_else_is_no_reason(frozen: Frozen) -> None:
    _ended(frozen, 300, "The cursor is written.")
    frozen.task(9, "paginate /orders", "failed", owner="api", updated_at=NOW - 60)
    assert _why(frozen) is None
    async with opened(frozen, 80, 24) as stage:
        await _on(stage, 9)
        await stage.sees("why        the journal of api does not say")


@pytest.mark.long
async def test_what_failed_is_counted_and_what_was_cancelled_is_not(frozen: Frozen) -> None:
    frozen.task(9, "paginate /orders", "failed", owner="api")
    frozen.task(23, "write the changelog", "cancelled")
    async with opened(frozen, 80, 24) as stage:
        await stage.until(lambda: "tasks 1/7 ✖1 " in stage.part("strip"), "the count")
        await stage.press("3")
        await stage.sees("━ Tasks · 1/7 completed ✖1 ━")


@pytest.mark.long
async def test_e_edits_subject_and_description(frozen: Frozen) -> None:
    frozen.task(30, "old", description="as before")
    async with opened(frozen, 80, 36) as stage:
        await _on(stage, 30)
        await stage.can("e", "edit")
        await stage.press("e")
        await stage.sees("#30 › old", "as before")
        await stage.press("up", "end", "ctrl+u")
        await stage.write("new")
        await stage.press("down", "end")
        await stage.write(", and more")
        await stage.press("enter")
        await stage.sees("task 30 is changed", "as before, and more")
    assert (_task(frozen, 30).subject, _task(frozen, 30).description) == ("new", "as before, and more")


@pytest.mark.long
async def test_a_reload_of_drafts_keeps_a_task_that_is_edited(frozen: Frozen) -> None:
    frozen.task(30, "old")
    async with opened(frozen, 80, 36) as stage:
        await _on(stage, 30)
        await stage.press("e")
        await stage.sees("#30 › old")
        await stage.press("backspace", "backspace", "backspace")
        stage.app._reload_drafts()
        await stage.write("new")
        await stage.press("enter")
        await stage.sees("task 30 is changed")
    assert _task(frozen, 30).subject == "new"


@pytest.mark.long
async def test_an_edit_keeps_what_was_changed_meanwhile(frozen: Frozen) -> None:
    frozen.task(30, "old", description="as before")
    async with opened(frozen, 80, 36) as stage:
        await _on(stage, 30)
        await stage.press("e")
        await stage.sees("#30 › old")
        tasks.update(frozen.directory, 30, "lead", NOW, subject="the lead's")
        await stage.write(" and more")
        await stage.press("enter")
        await stage.sees("task 30 is changed", "the lead's")
    assert (_task(frozen, 30).subject, _task(frozen, 30).description) == ("the lead's", "as before and more")


@pytest.mark.long
async def test_an_edit_of_the_description_leaves_an_odd_subject_alone(frozen: Frozen) -> None:
    odd = "two  spaces,\ttab\nand a line" + "x" * 9000
    frozen.task(30, odd, description="as before")
    async with opened(frozen, 80, 36) as stage:
        await _on(stage, 30)
        await stage.press("e")
        await stage.sees("as before")
        await stage.write("!")
        await stage.press("enter")
        await stage.sees("task 30 is changed")
    assert (_task(frozen, 30).subject, _task(frozen, 30).description) == (odd, "as before!")


@pytest.mark.long
async def test_an_edit_that_was_left_is_kept(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await _on(stage, 23)
        await stage.press("e")
        await stage.write(" x")
        await stage.press("escape")
        await stage.sees_not("keeps it")
        assert stage.app.context.drafts["#23"].endswith(" x")
        await stage.press("e")
        await stage.sees(" x", "#23 ›")
        await stage.press("backspace", "backspace", "escape")
        await stage.sees_not("keeps it")
        assert "#23" not in stage.app.context.drafts


@pytest.mark.long
async def test_a_task_cannot_lose_its_subject(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await _on(stage, 23)
        await stage.press("e", "ctrl+u", "enter")
        await stage.sees("the first line is the subject", "#23 ›")


@pytest.mark.long
async def test_an_edited_task_in_progress_says_that_its_owner_is_not_told(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await _on(stage, 9)
        await stage.press("e")
        await stage.write("!")
        await stage.press("enter")
        await stage.sees("task 9 is changed: api is not told, m writes to it")


@pytest.mark.long
async def test_plus_and_minus_change_the_priority(frozen: Frozen) -> None:
    frozen.task(30, "later")
    frozen.task(31, "sooner")
    async with opened(frozen, 80, 36) as stage:
        await _on(stage, 31)
        await stage.can("+", "raise")
        await stage.press("+")
        await stage.sees("task 31: priority +1", "#31  +1 sooner")
        await stage.until(lambda: stage.all.index("+1 sooner") < stage.all.index("later"), "it first")
        await stage.press("-")
        await stage.sees("task 31: normal priority")
        await stage.press("-")
        await stage.sees("task 31: priority -1", "#31  -1 sooner", "priority   -1")


@pytest.mark.long
async def test_the_priority_of_marked_tasks_may_be_raised_again(frozen: Frozen) -> None:
    frozen.task(30, "one")
    frozen.task(31, "two")
    async with opened(frozen, 80, 36) as stage:
        await _on(stage, 30)
        await stage.press("space", "space")
        await stage.can("+", "raise ✓2")
        await stage.press("+")
        await stage.sees("2 raised: ", "2 marked")
        await stage.press("+")
        await stage.sees("+2 one", "+2 two")


@pytest.mark.long
async def test_a_completed_task_has_no_priority_to_change(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await _on(stage, 2)
        await stage.settles()
        assert "+ raise" not in stage.offered


@pytest.mark.long
async def test_a_failed_task_is_reopened_from_its_need(frozen: Frozen) -> None:
    _failed(frozen)
    async with opened(frozen, 120, 40) as stage:
        await stage.app.open_view("needs", "task_failed:api:9")
        await stage.can("o", "reopen")
        await stage.press("o")
        await stage.sees("task 9 is open again, for any agent to take")
        await stage.sees_not("task #9 failed")
    assert (_task(frozen, 9).status, _task(frozen, 9).owner) == ("pending", None)


@pytest.mark.long
async def test_r_on_the_task_board_lets_the_owner_try_again(frozen: Frozen) -> None:
    _failed(frozen)
    async with opened(frozen, 120, 40) as stage:
        await _on(stage, 9)
        await stage.can("r", "retry")
        await stage.press(".")
        await stage.sees("r   retry")
        await stage.press("r")
        await stage.sees("task 9 is open again, api is told")
    assert (_task(frozen, 9).status, _task(frozen, 9).owner) == ("pending", "api")


@pytest.mark.long
@pytest.mark.parametrize(
    "status",
    ["failed", pytest.param("completed", marks=pytest.mark.long), pytest.param("cancelled", marks=pytest.mark.long)],
)
async def test_a_closed_task_is_reopened_without_an_owner(frozen: Frozen, status: TaskStatus) -> None:
    frozen.task(9, "paginate /orders", status, owner="api", updated_at=NOW - 60)
    async with opened(frozen, 80, 24) as stage:
        await _on(stage, 9)
        await stage.can("o", "reopen")
        await stage.press("o")
        await stage.sees("task 9 is open again, for any agent to take; a assigns it")
        await stage.until(lambda: "o reopen" not in stage.offered, "a task that is open")
    task = _task(frozen, 9)
    assert (task.status, task.owner, task.last_owner) == ("pending", None, None)


@pytest.mark.long
async def test_a_cancelled_task_says_whose_it_was_not_who_cancelled_it(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await _on(stage, 9)
        await stage.press("C")
        await stage.sees("cancelled, was api's")


@pytest.mark.long
@pytest.mark.parametrize(
    ("height", "zoom"),
    [(24, ""), pytest.param(24, "z", marks=pytest.mark.long), pytest.param(12, "", marks=pytest.mark.long)],
)
async def test_enter_gives_a_task_the_screen_and_esc_gives_it_back(frozen: Frozen, height: int, zoom: str) -> None:
    frozen.task(9, "paginate /orders", "in_progress", owner="api", description="\n".join(map(str, range(7))))
    async with opened(frozen, 80, height) as stage:
        await stage.press("3", "j", *zoom)
        await stage.sees("▌● #9")
        await stage.press("enter")
        await stage.sees_not("#14  parse")
        await stage.until(lambda: getattr(stage.app.focused, "id", "") == "task", "the text")
        await stage.sees("status     in progress")
        await stage.press("escape")
        await stage.sees("#14  parse")
        await stage.until(lambda: getattr(stage.app.focused, "id", "") == "tasks", "the list")
        await stage.press("j")
        await stage.sees("▌● #10")


@pytest.mark.long
@pytest.mark.parametrize(("width", "height"), [(80, 24), pytest.param(120, 40, marks=pytest.mark.long)])
async def test_a_task_shows_how_its_check_ended(frozen: Frozen, width: int, height: int) -> None:
    red = Checked(at=NOW - 60, command="make test", exit_code=2, result="results/api-check-x.txt")
    green = red.replace(exit_code=0)
    shown = format_minute(red.at)
    frozen.task(30, "parse it", "in_progress", owner="api", check="make test", checked=red, check_failures=2)
    frozen.task(31, "print it", "completed", owner="api", check="make test", checked=green)
    frozen.task(32, "tell the users", check="make all the manuals of the world")
    async with opened(frozen, width, height) as stage:
        await _on(stage, 30)
        await stage.sees(f"check      ✗ {shown} make test (2)")
        row = next(line for line in stage.text if "#30  parse it" in line)
        assert f"✗ {shown} make test (2) api" in row
        await _on(stage, 31)
        row = next(line for line in stage.text if "#31  print it" in line)
        assert f"✓ {shown} make test completed by api" in row
        await _on(stage, 32)
        await stage.sees("check      make all the manuals of the world")


@pytest.mark.long
async def test_a_check_that_fails_is_answered_from_needs(frozen: Frozen) -> None:
    red = Checked(at=NOW - 60, command="make test", exit_code=2, result="results/api-check-x.txt")
    frozen.task(30, "parse it", "in_progress", owner="api", check="make test", checked=red, check_failures=3)
    async with opened(frozen, 80, 40) as stage:
        await stage.app.open_view("needs", "check_failed:api:30")
        await stage.sees("check of #30 failed 3 times: make test", "results/api-check-x.txt")
        for key, label in (("m", "msg"), ("a", "assign"), ("D", "seen")):
            await stage.can(key, label)
        await stage.press("D")
        await stage.sees("acknowledged: #30")
        assert messages_seen(frozen)["check:30"] == red.at


def messages_seen(frozen: Frozen) -> dict[str, float]:
    """Return what the operator acknowledged, by mark."""
    state = frozen.directory.operator.load()
    return state.needs if state is not None else {}


@pytest.mark.long
async def test_an_owner_stands_near_its_task(frozen: Frozen) -> None:
    async with opened(frozen, 120, 40) as stage:
        await stage.press("3")
        await stage.sees("━ Tasks · 1/8 completed ━", "━ ▮▯▯▯▯▯▯▯▯▯ ━", " #10  order list with infinite scroll  ")
        starts = {line.index(words) for line in stage.text for words in ("ui 6m", "unassigned", "completed by scan")
                  if words in line and line.startswith((" ", "▌")) and "owner" not in line}  # fmt: skip
        assert len(starts) == 1
        assert max(starts) < 60


def test_a_task_stands_below_what_it_waits_for() -> None:
    board = [
        Task(id=1, subject="survey", status="in_progress"),
        Task(id=2, subject="design", status="in_progress"),
        Task(id=3, subject="build", blocked_by=[2]),
        Task(id=4, subject="release", blocked_by=[1, 3]),
        Task(id=5, subject="tidy up"),
        # Each waits for the other.
        Task(id=6, subject="hen", blocked_by=[7]),
        Task(id=7, subject="egg", blocked_by=[6]),
    ]
    tree = TaskTree()
    depths = tree.depths(board)
    assert [*depths.items()] == [(1, 0), (2, 0), (3, 1), (4, 2), (5, 0), (6, 0), (7, 1)]
    assert tree.depths(list(board)) is depths
    board[1] = Task(id=2, subject="design", status="completed")
    assert [*tree.depths(board).items()] == [(1, 0), (3, 0), (4, 1), (5, 0), (2, 0), (6, 0), (7, 1)]


@pytest.mark.long
async def test_completed_tasks_are_folded_to_one_row_until_enter(frozen: Frozen) -> None:
    for ident in range(40, 51):
        frozen.task(ident, f"step {ident}", "completed", owner="scan")
    async with opened(frozen, 120, 40) as stage:
        await stage.press("3")
        await stage.sees("✓ 12 done", "⏎ unfolds", "└ cut the release")
        assert "step 40" not in stage.all
        # All of them can be read without unfolding.
        await stage.press("G")
        await stage.sees("─ Done ─", "survey the repository", "step 48")
        rows = stage.app.screen.query_one("#tasks", LineList)
        count = len(rows.rows)
        await stage.press("enter")
        await stage.sees("⏎ folds")
        assert (len(rows.rows), rows.selected) == (count + 12, "done")
        await stage.press("enter")
        await stage.until(lambda: len(rows.rows) == count, "one row")
        # What is looked for is no longer folded, nor what another place leads to.
        await stage.press("/")
        await stage.write("step 44")
        await stage.press("enter")
        await stage.sees("#44  step 44")
        await stage.press("escape")
        await stage.sees("✓ 12 done")
        await _on(stage, 45)
        await stage.sees("⏎ folds")


@pytest.mark.long
async def test_the_board_folds_completed_tasks_too(frozen: Frozen) -> None:
    for ident in range(40, 44):
        frozen.task(ident, f"step {ident}", "completed", owner="scan")
    async with opened(frozen, 120, 40) as stage:
        await stage.sees("✓ 5 done")
        assert "step 40" not in stage.all
        rows = stage.app.screen.query_one("#board-tasks", LineList)
        rows.focus()
        await stage.press("G", "enter")
        await stage.sees("step 40", "⏎ folds")


@pytest.mark.long
async def test_a_task_that_completes_under_the_cursor_stays_there(frozen: Frozen) -> None:
    frozen.task(40, "step 40", "completed", owner="scan")
    async with opened(frozen, 80, 24) as stage:
        await _on(stage, 9)
        frozen.task(9, "paginate /orders", "completed", owner="api")
        stage.app.context.reading.poke()
        await stage.sees("✓ 3 done", "■ #9", "─ #9 ─")
        assert "step 40" not in stage.all
