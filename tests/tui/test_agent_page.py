"""The page of one agent: its mail, its work and its process."""

import os
import re
import signal
import subprocess

import pytest
from msgspec.structs import replace

from crewboard import TeamView
from crewboard.readmodel.activity import Activity, ActivityReader, describe
from crewboard.readmodel.mail import MailReader
from crewboard.readmodel.processes import ProcessNode, Usage, process_tree
from crewboard.readmodel.reader import TeamReader
from crewboard.records.agents import Tokens
from crewboard.records.events import Intake, Reply, RunStarted, ToolResult
from crewboard.records.processes import Exit
from crewboard.records.team import Checked
from crewboard.store import journal
from crewboard_tui.queries import ProcessHistoryReader, SpendingOf, Usages
from crewboard_tui.render.formats import sparkline
from crewboard_tui.settings import Settings
from crewboard_tui.views.activity import paired
from crewboard_tui.views.base import BaseScreen
from tests.crew import eventually
from tests.frozen import NOW, Frozen
from tests.tui.stage import Stage, opened


async def _open(stage: Stage, name: str, tab: str) -> None:
    """Open a tab of an agent's page."""
    stage.app.open_agent(name, tab)
    await stage.turns_to(tab)
    await stage.settles()


async def test_mail_goes_both_ways_and_carries_three_times(frozen: Frozen) -> None:
    frozen.read("ui", 2, ago=3)
    async with opened(frozen, 100, 30) as stage:
        await _open(stage, "api", "Mail")
        await stage.sees("picked", "turn", "15:04:07 ui ", "15:04:13 → ui ", "→ reviewer")
        sent = next(line for line in stage.text if "→ ui" in line)
        assert sent.count("15:04:19") == 2, "ui picked it up 3 seconds ago, and it entered its turn"
        assert stage.all.index("what is the cursor") < stage.all.index("an opaque string")


@pytest.mark.long
async def test_mail_that_waits_stands_below_a_rule(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await _open(stage, "api", "Mail")
        lines = stage.text
        rule = next(at for at, line in enumerate(lines) if "not read yet" in line)
        assert "deprecate" in lines[rule + 1]


@pytest.mark.long
async def test_read_mail_whose_times_are_not_loaded_has_no_dashes(frozen: Frozen) -> None:
    for number in range(1, 6):
        frozen.mail(70 + number, "ui", "perf", "message", f"word {number}.", 100 - number)
    frozen.read("perf", 4, ago=80)
    # The journal goes on for longer than the part of it that is read.
    for _ in range(30):
        frozen.said("perf", 60, "long " * 2000)
    async with opened(frozen, 100, 30) as stage:
        for name in ("perf", "ui"):
            await _open(stage, name, "Mail")
            for number in range(1, 6):
                (line,) = (line for line in stage.text if f"word {number}." in line)
                assert line.count("—") == (2 if number == 5 else 0), "only what waits has dashes"
            await stage.press("escape")


async def test_a_view_behind_a_page_asks_for_nothing(frozen: Frozen) -> None:
    async with opened(frozen, 120, 40) as stage:
        await _open(stage, "api", "Mail")
        page, behind = stage.app.screen, stage.app.screen_stack[-2]
        assert isinstance(page, BaseScreen)
        assert isinstance(behind, BaseScreen)
        # As if a layout of the view, or a message to it, was still on its way.
        behind.ask()
        behind.refresh_all()
        assert stage.app.context.queries == set(page.queries()) != set(behind.queries())
        await stage.sees("what is the cursor parameter")


@pytest.mark.long
async def test_a_message_unfolds_to_all_of_it(frozen: Frozen) -> None:
    frozen.mail(60, "api", "ui", "message", "first line\nand the very last line", 1)
    async with opened(frozen, 80, 24) as stage:
        await _open(stage, "api", "Mail")
        await stage.press("enter")
        await stage.sees("   api → ui\n", "and the very last line")


def _given(frozen: Frozen, name: str, prompt: str, ago: float) -> None:
    """Let the worker pick up its first assignment."""
    intake = Intake(ts=NOW - ago, run=1, prompt=prompt, assignment=f"p-{name}-{ago}")
    journal.append(frozen.directory.agent(name).journal, intake)


@pytest.mark.long
async def test_what_it_was_hired_for_is_the_first_entry_of_its_mail(frozen: Frozen) -> None:
    _given(frozen, "reviewer", "Review how notes are removed.\nBe brief.", 890)
    async with opened(frozen, 80, 24) as stage:
        await _open(stage, "reviewer", "Mail")
        begin = " + 14:49:32 you        prompt: Review how notes are"
        await stage.until(lambda: stage.text[8].startswith(begin), "the prompt")
        first = stage.text[8]
        assert first.count("14:49:32") == 3
        rule = next(at for at, line in enumerate(stage.text) if "not read yet" in line)
        assert "please look at routes.py" in stage.text[rule + 1], "a prompt counts for no unread message"
        await stage.press("g", "enter")
        await stage.sees("you → reviewer · prompt", "Be brief.")


def test_the_first_prompt_is_known_however_long_the_journal_is(frozen: Frozen) -> None:
    frozen.hire("lone", "code", "idle", "", ago=1, pid=4499)
    _given(frozen, "lone", "the first", 890)
    for _ in range(30):
        frozen.said("lone", 800, "long " * 2000)
    _given(frozen, "lone", "another hiring", 100)
    reader = MailReader(frozen.directory, "lone")
    reader.read()
    reader.read()
    assert [letter.message.content for letter in reader.prompts] == ["the first", "another hiring"]


@pytest.mark.long
async def test_the_page_of_an_absent_lead_shows_its_mail(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.press("l")
        await stage.sees("there is no lead", "scan", "result: The repository has 41", "parser ended")
        assert stage.all.index("not read yet") < stage.all.index("result: The repository")


@pytest.mark.long
async def test_an_empty_seat_without_mail_says_how_to_fill_it(empty: Frozen) -> None:
    async with opened(empty, 80, 24) as stage:
        await stage.press("l")
        await stage.sees("there is no lead: l writes to the lead, and hires one")


@pytest.mark.long
async def test_what_it_tells_you_has_no_times_of_a_worker(frozen: Frozen) -> None:
    frozen.mail(61, "api", "operator", "result", "pagination is done", 2)
    frozen.mail(62, "api", "lead", "idle_notification", "free for work", 1)
    async with opened(frozen, 80, 24) as stage:
        await _open(stage, "api", "Mail")
        line = next(line for line in stage.text if "→ you" in line)
        assert "result: pagination is done" in line
        assert "—" not in line
        to_the_empty_seat = next(line for line in stage.text if "→ lead" in line)
        assert "is free for work" in to_the_empty_seat
        assert "free for work free" not in to_the_empty_seat
        assert "—" not in to_the_empty_seat


@pytest.mark.long
async def test_the_talk_with_the_lead_says_free_for_work_once(frozen: Frozen) -> None:
    frozen.hire("lead", "code", "idle", "", ago=1, pid=4500)
    frozen.mail(63, "lead", "operator", "idle_notification", "free for work", 1)
    frozen.mail(64, "lead", "operator", "result", "all is done", 1)
    async with opened(frozen, 80, 24) as stage:
        await stage.press("l")
        await stage.press("escape")
        await stage.sees("lead       is free for work", "lead       all is done")
        assert "free for work free" not in stage.all


@pytest.mark.long
async def test_without_a_task_the_page_says_how_to_give_one(frozen: Frozen) -> None:
    mine = Settings(keys={"task.assign": "A"})
    async with opened(frozen, 80, 24, settings=mine) as stage:
        await _open(stage, "perf", "Now")
        await stage.sees("task     none · 3 A assigns one")
    async with opened(frozen, 80, 24, read_only=True) as stage:
        await _open(stage, "perf", "Now")
        await stage.until(lambda: "task     none    " in stage.all, "no task, and no key")


async def test_a_page_begins_with_the_state_and_the_vitals(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        for tab in ("Now", "Mail"):
            await _open(stage, "api", tab)
            assert " › api  ● run 10s  edit_file src/api/routes.py" in stage.text[1]
            minutes, process, task = stage.text[4:7]
            assert re.fullmatch(r" 15 min   [▁-█]{29}▅ +context  ▮{4}▯{7} 44% of 200k", minutes)
            assert re.fullmatch(r" cpu 11%  [▁-█]+  140M +cost     \$0\.93  [▁-█]+  \$3\.47/h", process)
            assert re.fullmatch(r" task     #9 paginate /orders · 12m +changed  none to merge", task)
            await stage.press("escape")


async def test_the_vitals_move_with_what_happens(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await _open(stage, "api", "Now")
        before = stage.text[4].split()[2]
        for number in range(9):
            frozen.did("api", 1, "grep", {"pattern": str(number)}, "found", 0.1)
        path = frozen.directory.agent("api").status
        status = path.load()
        assert status is not None
        path.save(status.replace(turn=9))
        await stage.until(lambda: stage.text[4].split()[2] != before, "a higher bar in its newest cell")
        assert stage.text[4].split()[2][:-1] == before[:-1], "and no other"


@pytest.mark.long
async def test_the_vitals_have_fewer_columns_where_it_is_narrow(frozen: Frozen) -> None:
    for width, height, there, gone in (
        (120, 40, ("memory   140M", "tokens   243.7k total", "mail     1 unread"), "▂  140M"),
        (60, 20, (" 11 min ", "context  ▮", "cost     $0.93"), "memory"),
        (40, 20, ("context  ▮▮▮▮▮", "cost     $0.93", "task     #9 paginate"), " min "),
        (80, 12, ("Now",), "context"),
    ):
        async with opened(frozen, width, height) as stage:
            await _open(stage, "api", "Files")
            await stage.sees(*there)
            assert gone not in stage.all


@pytest.mark.long
async def test_tokens_without_a_price_stand_once_in_the_vitals(empty: Frozen) -> None:
    empty.hire("fixer", "code", "working", "", ago=9, pid=77, tokens=Tokens(900, 100), offline=True)
    async with opened(empty, 120, 40) as stage:
        await _open(stage, "fixer", "Files")
        await stage.sees("tokens   1.0k ", "cache    0% hits")
        assert "1.0k tokens" not in stage.all
        assert "1.0k total" not in stage.all
        await _open(stage, "fixer", "Now")
        await stage.sees("model      offline model")
        record = empty.directory.agent("fixer").spec
        spec = record.load()
        assert spec is not None
        record.save(replace(spec, flags=replace(spec.flags, budget="$5")))
        await stage.sees("tokens   1.0k unpriced, $0 of $5.00")


@pytest.mark.long
async def test_what_it_needs_you_for_stands_above_its_work(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await _open(stage, "docs", "Now")
        need = next(at for at, line in enumerate(stage.text) if line.startswith("── ▲ asks: The 1.x API pages"))
        work = next(at for at, line in enumerate(stage.text) if line.startswith("━━ Now "))
        assert stage.text[need].endswith("1m · a answer ─")
        assert "ask marketing first" in "".join(stage.text[need:work])
        await stage.press("a")
        await stage.sees("QUESTION")
        await stage.press("escape", "]")
        await stage.turns_to("Mail")
        assert "ask marketing first" not in stage.all


@pytest.mark.long
@pytest.mark.parametrize(
    ("key", "says"),
    [("r", "task 9 is open again, api is told"), ("o", "task 9 is open again, for any agent to take"), ("a", "#9 to")],
)
async def test_the_keys_beside_a_failed_task_work_there(frozen: Frozen, key: str, says: str) -> None:
    frozen.task(9, "paginate /orders", "failed", owner="api", updated_at=NOW - 60)
    async with opened(frozen, 120, 40) as stage:
        await _open(stage, "api", "Now")
        await stage.sees("r retry  a assign  o reopen  D seen")
        # What is no key of the task still acts on the agent.
        await stage.can("m", "msg")
        await stage.press(key)
        await stage.sees(says)


@pytest.mark.long
async def test_a_task_whose_check_fails_is_assigned_there(frozen: Frozen) -> None:
    red = Checked(at=NOW - 60, command="make test", exit_code=2, result="results/api-check-x.txt")
    frozen.task(30, "parse it", "in_progress", owner="api", check="make test", checked=red, check_failures=3)
    async with opened(frozen, 120, 40) as stage:
        await _open(stage, "api", "Now")
        await stage.sees("m msg  a assign  D seen")
        await stage.press("a")
        await stage.sees("#30 to")


async def test_a_page_that_is_closed_asks_for_no_vitals(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await _open(stage, "api", "Now")
        reading = stage.app.context.reading
        assert {Usages(("api",)), SpendingOf("api")} <= reading._queries
        await stage.press("escape")
        await stage.until(lambda: not {Usages(("api",)), SpendingOf("api")} & reading._queries, "no such reading")


@pytest.mark.long
async def test_a_process_shows_its_history_its_tree_and_its_log_tail(frozen: Frozen) -> None:
    frozen.probe.families[4402] = (
        ProcessNode(4402, 0, "crewboard worker flaky-hunt", 12.5, 90 * 1024 * 1024),
        ProcessNode(5001, 1, "python -m pytest -k sync", 200.0, 220 * 1024 * 1024),
    )
    frozen.directory.agent("flaky-hunt").log.write_text("started\nwarning: slow disk\n")
    async with opened(frozen, 100, 30) as stage:
        await _open(stage, "flaky-hunt", "Vitals")
        await stage.sees("CPU        98%    █  peak 98%", "memory     310M", "pid 4402 · sandbox bubblewrap")
        await stage.sees("CPU TIME", "└ python -m pytest -k sync", "200.0s", "220M", "warning: slow disk")


@pytest.mark.long
async def test_an_ended_process_shows_its_exit_record(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await _open(stage, "parser", "Vitals")
        await stage.sees("exit       run 1, died, no code, signal 9; the team is notified", "Killed")


def test_a_course_keeps_its_newest_values() -> None:
    assert sparkline([0, 50, 100], 10, top=100) == "▁▅█"
    assert sparkline([100, 0, 0], 2, top=100) == "▁▁"
    assert sparkline([200], 5, top=100) == "█"
    assert sparkline([1, 2], 0, top=100) == ""
    assert sparkline([0, 0], 5, top=0) == "▁▁"


def test_the_course_is_kept_while_one_looks_elsewhere(frozen: Frozen) -> None:
    now = [NOW]
    team = TeamReader(frozen.directory, clock=lambda: now[0], probe=frozen.probe)
    vitals = ProcessHistoryReader(frozen.directory, frozen.probe)
    for cpu in (10, 20, 30):
        frozen.probe.held["api"] = Usage(cpu, 1024, 0)
        vitals.note(team.read())
        vitals.note(team.read())
        now[0] += 1
    assert [usage.cpu_percent for usage in vitals.read(team.read(), "api").history] == [10, 20, 30]


def test_the_course_of_a_run_that_ended_is_dropped(frozen: Frozen) -> None:
    now = [NOW]
    team = TeamReader(frozen.directory, clock=lambda: now[0], probe=frozen.probe)
    vitals = ProcessHistoryReader(frozen.directory, frozen.probe)

    def noted(view: TeamView) -> list[float]:
        vitals.note(view)
        now[0] += 1
        return [usage.cpu_percent for usage in vitals.history("api")]

    frozen.probe.held["api"] = Usage(90, 1024, 0)
    view = team.read()
    assert noted(view) == [90]
    agent = view.agent("api")
    assert agent is not None
    # Between two readings a run can end and the next one begin.
    next_run = replace(agent, run=agent.run + 1, usage=Usage(1, 1024, 0))
    assert noted(replace(view, agents=(next_run,), now=now[0])) == [1]
    assert noted(replace(view, agents=(replace(next_run, usage=None),), now=now[0])) == []
    assert noted(replace(view, agents=(next_run,), now=now[0])) == [1]
    # A measurement counts for the seconds since the one before, but not for those before the run.
    assert noted(replace(view, agents=(next_run, replace(next_run, name="new")), now=now[0] + 4)) == [1] * 6
    assert len(vitals.history("new")) == 1


def test_a_family_is_a_tree_of_what_a_process_started() -> None:
    child = subprocess.Popen(["/bin/sh", "-c", "sleep 600 & wait"])
    try:

        def child_sleeps() -> tuple[ProcessNode, ...] | None:
            # The child is a shell, too, until it runs its program.
            tree = process_tree(child.pid)
            return tree if len(tree) > 1 and tree[1].command.startswith("sleep 600") else None

        found = eventually(child_sleeps, "the child")
        assert [(each.pid == child.pid, each.depth) for each in found] == [(True, 0), (False, 1)]
    finally:
        for each in reversed(process_tree(child.pid)):
            os.kill(each.pid, signal.SIGKILL)
        child.wait()
    assert process_tree(child.pid) == ()


@pytest.mark.long
async def test_a_tool_call_is_one_line_that_unfolds_to_all_of_it(frozen: Frozen) -> None:
    output = "\n".join(f"test_{number} passed" for number in range(40)) + "\n1 failed: test_sync"
    frozen.did("api", 3, "bash", {"command": "pytest -q"}, output, 2.5)
    frozen.directory.agent("api").live.unlink()
    async with opened(frozen, 80, 24) as stage:
        await _open(stage, "api", "Transcript")
        await stage.sees("bash pytest -q → 1 failed: test_sync", "2.5s")
        assert "test_39 passed" not in stage.all
        await stage.press("enter")
        await stage.sees("command: pytest -q", "done", "test_0 passed")
        await stage.press("enter")
        await stage.sees_not("test_0 passed")
        await stage.press("o")
        await stage.can("f", "follow")
        await stage.press("G")
        await stage.sees("test_39 passed")


@pytest.mark.long
async def test_what_the_model_thought_is_one_line_that_unfolds(frozen: Frozen) -> None:
    thought = {"type": "thinking", "thinking": "First the parser.\n" * 5 + "Then the tests.", "signature": "s"}
    content = [thought, {"type": "redacted_thinking", "data": "x"}, {"type": "text", "text": "I begin."}]
    journal.append(
        frozen.directory.agent("api").journal,
        Reply(ts=NOW - 1, content=content, stop_reason="end_turn", usage=Tokens()),
    )
    frozen.directory.agent("api").live.unlink()
    async with opened(frozen, 80, 24) as stage:
        await _open(stage, "api", "Transcript")
        await stage.sees("think  First the parser.", "think  (encrypted by the API)", "say    I begin.")
        assert "Then the tests." not in stage.all
        await stage.press("k", "k", "enter")
        await stage.sees("Then the tests.")


@pytest.mark.long
async def test_following_lets_go_upwards_and_comes_back_at_the_end(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await _open(stage, "api", "Transcript")
        await stage.sees("f follow:on")
        await stage.press("k")
        await stage.sees("f follow:off")
        for number in range(30):
            frozen.said("api", 1, f"thought number {number}")
        await stage.press("g", "G")
        await stage.sees("f follow:on")
        frozen.said("api", 1, "the very newest")
        await stage.sees("the very newest")
        await stage.press("f")
        await stage.sees("f follow:off")


@pytest.mark.long
async def test_a_transcript_says_if_older_lines_are_not_loaded(frozen: Frozen) -> None:
    older = "older lines are not loaded · crewboard "
    async with opened(frozen, 100, 30) as stage:
        await _open(stage, "perf", "Transcript")
        await stage.sees("run 1, pid 4405")
        assert older not in stage.all
        for number in range(600):
            frozen.said("perf", 60, f"word {number}.")
        await stage.sees("word 599.")
        await stage.press("g")
        await stage.sees(older, "journal perf prints all", "word 100.")
        # Also where words are looked for, which may stand in them.
        await stage.press("/")
        await stage.write("word 9x")
        await stage.sees(older, "no match · Esc shows all")
        await stage.press("enter", "enter", "o", "escape")
        await stage.sees(older, "word 100.")


def test_an_activity_reader_says_if_a_long_journal_is_cut(frozen: Frozen) -> None:
    assert not ActivityReader(frozen.directory.agent("perf")).has_older
    for _ in range(30):
        frozen.said("perf", 60, "long " * 2000)
    reader = ActivityReader(frozen.directory.agent("perf"))
    assert 0 < len(reader.read()) < 30
    assert reader.has_older


@pytest.mark.long
async def test_a_call_without_an_outcome_runs_or_is_unknown(frozen: Frozen) -> None:
    frozen.began("api", 5, "bash", {"command": "make"})
    async with opened(frozen, 80, 24) as stage:
        await _open(stage, "api", "Transcript")
        assert "5.0s …" in next(line for line in stage.text if "bash make" in line)
        await stage.press("escape")
        await _open(stage, "parser", "Transcript")
        await stage.sees("outcome unknown")


@pytest.mark.long
async def test_a_death_stays_in_transcript_and_feed_after_a_resume(frozen: Frozen) -> None:
    died = "15:02:10 died   killed by SIGKILL, run 1"
    async with opened(frozen, 80, 24) as stage:
        await _open(stage, "parser", "Transcript")
        await stage.sees(died)
        record = Exit(run=1, signal=9, reason="died", at=NOW - 132, buried=True)
        journal.append(
            frozen.directory.agent("parser").journal,
            RunStarted(ts=NOW - 9, run=2, pid=5001, type="code", model="m", fresh=False, prompt_id="p", before=record),
        )
        await stage.sees("15:04:13 start  run 2, pid 5001, m")
        assert stage.all.index(died) < stage.all.index("run 2, pid 5001")
        assert stage.all.count(died) == 1
        await stage.press("6")
        await stage.sees(":10            died   killed by SIGKILL, run 1")


def test_calls_that_ran_at_once_find_their_own_outcomes() -> None:
    activity = [
        Activity(1, "tool", "bash a", call="1"),
        Activity(1, "tool", "bash b", call="2"),
        Activity(2, "done", "bash second", 1, "2"),
        Activity(3, "done", "bash first", 2, "1"),
    ]
    assert [(what.text, outcome and outcome.text) for what, outcome in paired(activity)] == [
        ("bash a", "bash first"),
        ("bash b", "bash second"),
    ]


def test_a_long_outcome_keeps_its_beginning_and_its_end() -> None:
    text = "begin " + "x" * 50_000 + " end"
    (done,) = describe(ToolResult(ts=1, tool_use_id="1", name="bash", content=text))
    assert done.detail.startswith("begin ")
    assert done.detail.endswith(" end")
    assert "characters left out" in done.detail
    assert len(done.detail) < 9000


@pytest.mark.long
async def test_a_page_says_which_digit_goes_to_the_view_below(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.press("enter")
        await stage.turns_to("Now")
        await stage.sees("· 1 Board", "] next tab")
        await stage.press("2")
        await stage.sees("Mailboxes")
        await stage.press("1")
        await stage.sees("Peek")
        assert "· 1 Board" not in stage.all


@pytest.mark.long
async def test_the_digit_on_a_page_is_the_users_own(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24, settings=Settings(keys={"app.board": "0"})) as stage:
        await stage.press("enter")
        await stage.sees("· 0 Board")


@pytest.mark.long
async def test_vitals_repeats_nothing_and_fills_a_large_screen(frozen: Frozen) -> None:
    async with opened(frozen, 170, 50) as stage:
        await _open(stage, "api", "Vitals")
        await stage.sees("peak 11%", "peak 140M", "Dollars per minute", "claude-sonnet-5-5", "TOOK")
        shown = stage.all
        for told in ("pid 4395", "44% of 200k", "bubblewrap", "edit_file src/api/routes.py", "#9 paginate"):
            assert shown.count(told) == 1, told
        calls, costs = (next(at for at, line in enumerate(stage.text) if word in line) for word in ("TOOK", "Dollars"))
        assert calls < costs, "beside the process and not below it"
        blank = [at for at, line in enumerate(stage.text) if not line.strip()]
        assert len(blank) <= 6, blank
