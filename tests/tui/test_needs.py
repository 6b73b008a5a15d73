"""`4` Needs-you: the order, reason and age of each need, and what continues after an answer."""

import pytest
from msgspec.structs import replace

from crewboard.commands import control, messages, settings
from crewboard.commands.context import CommandLine
from crewboard.protocol import requests
from crewboard.readmodel.crash_report import examine
from crewboard.readmodel.reader import TeamReader, read_team
from crewboard.records.agents import Tokens, Work
from crewboard.records.messages import RETRY
from crewboard.records.processes import Exit
from crewboard.store import agents, mailbox, tasks
from crewboard_tui.cli.answers import answers as ways_to_answer
from crewboard_tui.queries import Snapshot
from crewboard_tui.render.formats import format_clock
from crewboard_tui.render.lines import plain
from crewboard_tui.views.hire import HireScreen
from crewboard_tui.views.rows import crash_lines
from crewboard_tui.widgets import line_list
from crewboard_tui.widgets.bars import alert_line
from crewboard_tui.widgets.line_list import LineList
from tests.cli.files import alive
from tests.frozen import NOW, Frozen
from tests.tui.stage import Stage, opened


def shown(stage: Stage, ident: str = "needs") -> list[str]:
    return [row.key for row in stage.app.screen.query_one(f"#{ident}", LineList).rows]


def die(frozen: Frozen, name: str) -> None:
    del frozen.probe.held[name]
    agents.write_exit(frozen.directory.agent(name), Exit(run=1, signal=11, reason="died", at=NOW - 5, buried=True))


@pytest.mark.long
async def test_each_says_since_when_and_what_it_holds_up(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.press("4")
        await stage.sees("Needs you · 5 · most urgent first")
        await stage.settles()
        lines = {line.replace("▌", " ").split()[1]: line for line in stage.text[3:8]}
        assert "2m  frees #14" in lines["parser"].replace("▌", "")
        assert "4m  frees #7" in lines["auth-plan"]
        assert " 1m" in lines["docs"]
        assert "frees" not in lines["docs"]
        assert "9m  frees 2 tasks" in lines["migrate"]
        await stage.press("j", "j", "j")
        await stage.sees("holds up   #11 database migration 0041, #22 cut the release")


async def test_each_row_shows_what_it_blocks_at_sixty_columns_too(frozen: Frozen) -> None:
    async with opened(frozen, 60, 24) as stage:
        await stage.press("4")
        await stage.sees("2m  #14", "4m  #7", "9m  2 tasks")


async def test_a_permission_is_explained_by_its_call(frozen: Frozen) -> None:
    change = {"path": "s.md", "old_text": "one", "new_text": "two"}
    payload = {"tool": "edit_file", "input": change, "summary": "s.md", "diff": "@@ -1 +1 @@\n-one\n+two\n"}
    frozen.asks("perm-1", "permission", "release", 22, payload)  # type: ignore[arg-type]
    async with opened(frozen, 80, 24) as stage:
        await stage.press("4")
        await stage.sees("s.md")
        stage.app.screen.query_one("#needs", LineList).select("permission:release:perm-1")
        await stage.sees("release · why", "tool edit_file", "-one", "+two")


@pytest.mark.long
async def test_what_comes_while_one_looks_is_added_at_the_end(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.press("4")
        await stage.sees("Needs you · 5")
        before = shown(stage)
        die(frozen, "api")
        await stage.sees("Needs you · 6")
        assert shown(stage) == [*before, "death:api:"]
        await stage.sees("Needs you · 6 · new ones last")
        await stage.press("1", "4")
        await stage.until(lambda: shown(stage)[:2] == ["death:parser:", "death:api:"], "the order of urgency")
        await stage.sees("Needs you · 6 · most urgent first")


@pytest.mark.long
async def test_an_order_that_a_key_holds_is_not_by_urgency(frozen: Frozen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_list, "SETTLE", 3600)
    async with opened(frozen, 80, 24) as stage:
        await stage.press("4")
        await stage.sees("Needs you · 5 · most urgent first")
        before = shown(stage)
        await stage.press("j")
        die(frozen, "api")
        await stage.sees("Needs you · 6 · new ones last")
        assert shown(stage) == [*before, "death:api:"]


def result(frozen: Frozen, number: int, name: str, ago: float) -> None:
    frozen.mail(number, name, "lead", "result", f"Result of {name}.", ago)


@pytest.mark.long
async def test_the_board_does_not_sort_its_list_under_the_cursor(frozen: Frozen) -> None:
    settings.change_setting(frozen.team, "result_needs", "on")
    result(frozen, 90, "reviewer", 20)
    async with opened(frozen, 180, 50) as stage:
        await stage.sees("Results to read · 2")
        stage.app.screen.query_one("#board-needs").focus()
        await stage.until(lambda: getattr(stage.app.focused, "id", "") == "board-needs", "the list")
        await stage.until(lambda: stage.app.screen.query_one("#board-needs").has_focus, "the list to know it")
        before = shown(stage, "board-needs")
        # Older, so that it would come first.
        result(frozen, 91, "perf", 900)
        await stage.sees("Results to read · 3")
        assert shown(stage, "board-needs")[:2] == before
        frozen.task(30, "measure", "failed", owner="api", updated_at=NOW - 5)
        await stage.sees("Also needs you · 4")
        assert shown(stage, "board-needs")[:2] == before


@pytest.mark.long
async def test_the_answers_of_today_are_counted_with_their_median(frozen: Frozen) -> None:
    for wait, ago in ((10, 60), (50, 90), (86_400, 86_400)):
        frozen.asks(f"q-{ago}", "question", "api", ago + wait, {"question": "?"})
        requests.decide(frozen.directory, f"q-{ago}", "answered", "operator", NOW - ago, feedback="yes")
    frozen.asks("q-1", "question", "api", 900, {"question": "?"})
    requests.close(frozen.directory, "q-1", "expired", "system", NOW - 30)
    async with opened(frozen, 80, 24) as stage:
        await stage.press("4")
        await stage.sees("answered today 2 · median 30s")


async def test_choices_have_no_numbers_because_digits_open_views(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.press("4", "j", "j")
        await stage.sees("docs · why", "• yes, with a banner", "• no, redirect them")


async def test_an_acknowledged_death_is_gone(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.press("4")
        await stage.sees("Needs you · 5")
        await stage.can("D", "seen")
        await stage.press("D")
        await stage.sees("Needs you · 4")
        await stage.sees_not("▲ parser")


@pytest.mark.long
async def test_next_keeps_the_place_where_one_was(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.press("5", "j", "enter")
        await stage.turns_to("Now")
        await stage.press("!")
        await stage.sees("parser · why")
        await stage.press("5")
        await stage.turns_to("Now")
        await stage.sees("demo › auth-plan ")


@pytest.mark.long
async def test_next_throws_no_form_away(frozen: Frozen) -> None:
    messages.acknowledge(frozen.team, "parser")
    for ident in ("req-004281", "req-004290"):
        requests.close(frozen.directory, ident, "cancelled", "system", NOW)
    async with opened(frozen, 80, 24) as stage:
        await stage.press("4", "n")
        await stage.write("fixer")
        await stage.press("tab", "!")
        await stage.settles()
        assert isinstance(stage.app.screen, HireScreen)


@pytest.mark.long
async def test_an_acknowledged_death_is_still_no_orderly_end(frozen: Frozen) -> None:
    messages.acknowledge(frozen.team, "parser")
    async with opened(frozen, 120, 36) as stage:
        await stage.settles()
        (row,) = [line for line in stage.text if " parser " in line and "killed by SIGKILL" in line]
        assert "✖ parser" in row
        assert "died" in row
        assert stage.all.index(" idle ") < stage.all.index(" parser "), "it sorts with what has ended"
        assert "✖1 died" in stage.part("strip")
        assert "1 dead" not in stage.part("strip")
        assert "■1 " in stage.part("strip"), "and is not counted as an orderly end"
        await stage.press("?", "G")
        await stage.sees("✖ died        killed or crashed, and acknowledged by")


@pytest.mark.long
async def test_the_help_says_what_next_does_with_a_death(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.press("?")
        await stage.press("G", *["ctrl+u"] * 3)
        await stage.sees("!             open the next request or need")
        await stage.press("escape", "!")
        await stage.sees("─ parser · why ─", "killed by SIGKILL at 15:02:10")


def test_an_end_shows_its_error_above_the_lines_of_its_log(frozen: Frozen) -> None:
    refused = Exit(run=1, code=78, reason="credentials", at=NOW - 60, buried=True)
    agent = frozen.gone("ann", "code", refused, 77, last_error="403: Your key may not use this model")
    agent.log.write_text("--window is larger than the model's\n")
    view = TeamReader(frozen.directory, clock=frozen.team.now, probe=frozen.probe).read()
    ann = view.agent("ann")
    assert ann is not None
    found = [plain(line) for line in crash_lines(examine(frozen.directory, view, ann), NOW, 160)]
    assert found[1] == "last error 403: Your key may not use this model"
    assert "last lines --window is larger than the model's" in found


@pytest.mark.long
async def test_a_death_without_a_log_shows_the_last_work_and_idleness(frozen: Frozen) -> None:
    frozen.hire("idler", "code", "idle", "", ago=300, pid=77)
    frozen.began("idler", 300, "read_file", {"path": "README.md"})
    die(frozen, "idler")
    since = format_clock(NOW - 300)
    async with opened(frozen, 120, 36) as stage:
        await stage.press("4")
        await stage.sees(f"died: killed by SIGSEGV, was idle since {since[:5]}")
        await stage.press("j")
        await stage.sees(f"state      was idle since {since[:5]}", f"last steps {format_clock(NOW - 900)} start")
        await stage.sees(f"{since} tool  read_file README.md")


@pytest.mark.long
async def test_esc_leads_back_to_what_the_next_key_opened(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.press("4")
        await stage.sees("▌✖ parser")
        for _ in stage.app.context.snapshot.view.needs:
            await stage.press("!")
            await stage.settles()
            if "auth-plan › PLAN" in stage.all:
                break
        await stage.press("escape")
        await stage.sees("▌▲ auth-plan")


@pytest.mark.long
async def test_the_alert_says_open_or_next_as_its_key_will_do(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.until(lambda: "! open" in stage.part("alert"), "what the key does")
        await stage.press("!")
        await stage.sees("Needs you · 5", "▌✖ parser")
        await stage.press("!")
        await stage.sees("auth-plan › PLAN")
        await stage.press("escape", "1", "1")
        await stage.until(lambda: "! open" in stage.part("alert"), "what the key does")
        await stage.press("!")
        await stage.sees("Needs you · 5", "▌✖ parser")


@pytest.mark.long
async def test_one_key_raises_the_limit_that_stopped_an_agent(frozen: Frozen) -> None:
    why = "reached its limit of 30 model calls"
    agent = frozen.hire("turner", "code", "idle", "", ago=20, pid=77, failed=79, failed_at=NOW - 20, last_error=why)
    control.change_limits(frozen.team, "turner", max_turns=30)
    async with opened(frozen, 100, 30) as stage:
        await stage.press("4")
        await stage.sees("turner", "stopped: reached its limit of 30 model calls")
        await stage.press("G", "L")
        await stage.sees("turner: model calls", "60")
        await stage.press("enter")
        await stage.until(lambda: agent.spec.load().flags.max_turns == 60, "the limit")  # type: ignore[union-attr]
        await stage.press("D")
        await stage.sees("acknowledged: turner stopped: reached its limit")
        await stage.until(lambda: not [key for key in shown(stage) if "turner" in key], "the end of the need")


@pytest.mark.long
async def test_the_suggested_budget_is_more_than_what_is_used(frozen: Frozen) -> None:
    used = Tokens(input=9000, output=300, cache_read=100)
    record = Exit(run=1, code=79, reason="budget", at=NOW - 30, buried=True)
    frozen.gone("spender", "code", record, 77, tokens=used, cost_usd=3.25)
    control.change_limits(frozen.team, "spender", budget="$1")
    async with opened(frozen, 100, 30) as stage:
        await stage.press("4")
        await stage.sees("spender")
        await stage.press("G", "L")
        await stage.sees("spender: budget › $6.5")


def failed_task(frozen: Frozen) -> None:
    frozen.task(30, "port the parser", "failed", owner="api", updated_at=NOW - 30)


@pytest.mark.long
async def test_a_failed_task_is_tried_again_with_one_key(frozen: Frozen) -> None:
    failed_task(frozen)
    async with opened(frozen, 100, 30) as stage:
        await stage.press("4", "G")
        await stage.sees("#30 · why", "task #30 failed: port the parser")
        await stage.can("r", "retry")
        await stage.press("r")
        await stage.sees("task 30 is open again, api is told")
        assert tasks.load(frozen.directory, 30).status == "pending"


@pytest.mark.long
async def test_a_failed_task_can_be_given_to_another_agent(frozen: Frozen) -> None:
    failed_task(frozen)
    async with opened(frozen, 100, 30) as stage:
        await stage.press("4", "G")
        await stage.can("a", "assign")
        await stage.press("a")
        await stage.write("ui")
        await stage.press("enter")
        await stage.until(lambda: tasks.load(frozen.directory, 30).owner == "ui", "the new owner")
        assert tasks.load(frozen.directory, 30).status == "pending"


@pytest.mark.long
async def test_a_failed_task_can_be_acknowledged_and_opened(frozen: Frozen) -> None:
    failed_task(frozen)
    async with opened(frozen, 100, 30) as stage:
        await stage.press("4", "G", "enter")
        await stage.sees(" #30 ")
        await stage.press("4", "D")
        await stage.sees("acknowledged: #30")
        await stage.sees_not("task #30 failed")


async def test_a_result_is_read_in_place_and_settled_by_opening_it(frozen: Frozen) -> None:
    settings.change_setting(frozen.team, "result_needs", "on")
    frozen.mail(90, "api", "lead", "result", "Pagination works.\n\nThree files changed.", 20)
    async with opened(frozen, 100, 30) as stage:
        await stage.press("4", "G")
        await stage.sees("api · why", "result: Pagination works.", "Three files changed.")
        # Newer mail does not take its place.
        frozen.mail(91, "operator", "api", "message", "and the docs?", 1)
        await stage.press("enter")
        await stage.turns_to("Mail")
        await stage.until(lambda: any("▌− " in line and "result: Pagination" in line for line in stage.text), "the row")
        await stage.sees("Three files changed.", "and the docs?")
        await stage.press("4", "4")
        await stage.sees_not("result: Pagination works.")


@pytest.mark.long
async def test_opening_one_of_several_results_leaves_the_others(frozen: Frozen) -> None:
    settings.change_setting(frozen.team, "result_needs", "on")
    for number in range(3):
        frozen.mail(90 + number, "api", "lead", "result", f"Part {number} works.\n\nAnd its tests.", 20 - number)
    async with opened(frozen, 100, 30) as stage:
        await stage.press("4", "G")
        await stage.sees("result (+2 more): Part 2 works.")
        await stage.press("enter")
        await stage.turns_to("Mail")
        await stage.sees("▌− ", "And its tests.", "3 results wait · D acknowledges all of them")
        await stage.press("4", "4")
        await stage.sees("result (+2 more): Part 2 works.")
        await stage.press("G", "D")
        await stage.sees("acknowledged: api", "Needs you · 6 ")


@pytest.mark.long
async def test_read_only_names_no_key_that_acknowledges_results(frozen: Frozen) -> None:
    settings.change_setting(frozen.team, "result_needs", "on")
    for number in range(2):
        frozen.mail(90 + number, "api", "lead", "result", f"Part {number} works.", 20 - number)
    async with opened(frozen, 100, 30, read_only=True) as stage:
        await stage.press("4", "G")
        await stage.sees("result (+1 more): Part 1 works.")
        await stage.press("enter")
        await stage.sees("2 results wait")
        assert "acknowledges" not in stage.all


@pytest.mark.long
async def test_an_agent_whose_assignment_failed_tries_again_with_one_key(frozen: Frozen) -> None:
    frozen.hire("refused", "code", "idle", "", ago=20, pid=77, failed=1, failed_at=NOW - 20, last_error="refusal")
    with alive(frozen.team, "refused"):
        async with opened(frozen, 100, 30) as stage:
            await stage.press("4", "G")
            await stage.can("r", "retry")
            await stage.press("r")
            await stage.sees("refused tries again")
        assert mailbox.read(frozen.directory, "refused").messages[-1].content == RETRY


@pytest.mark.long
async def test_an_agent_whose_model_refused_tries_again_with_another(
    frozen: Frozen, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str]] = []
    monkeypatch.setattr(control, "retry_with", lambda team, name, *, model: asked.append((name, model)))
    frozen.hire(
        "unwilling", "code", "idle", "", ago=20, pid=77, failed=1, failed_at=NOW - 20, refused_by="claude-sonnet-5-5",
        last_error="claude-sonnet-5-5 refused (cyber)",
    )  # fmt: skip
    with alive(frozen.team, "unwilling"):
        async with opened(frozen, 100, 30) as stage:
            await stage.press("4", "G")
            await stage.sees("stopped: claude-sonnet-5-5 refused (cyber)")
            await stage.can("r", "other model")
            await stage.press("r")
            await stage.sees("unwilling: model", "claude-opus-4-8")
            await stage.press("enter")
            await stage.sees("unwilling tries again with claude-opus-4-8")
        assert asked == [("unwilling", "claude-opus-4-8")]
        (need,) = [each for each in read_team(frozen.directory).needs if each.agent == "unwilling"]
        ways = dict(ways_to_answer(need, CommandLine()))
        assert ways["try another model"] == "crewboard resume unwilling --model claude-opus-4-8"
        monkeypatch.setenv("ANTHROPIC_BASE_URL", "http://127.0.0.1:11434")
        ways = dict(ways_to_answer(need, CommandLine()))
        assert ways["try another model"] == "crewboard resume unwilling --model M", "another server may not have it"
        messages.acknowledge(frozen.team, "unwilling")
        assert read_team(frozen.directory).agent("unwilling").status.refused_by is None  # type: ignore[union-attr]


@pytest.mark.long
async def test_needs_can_be_sorted_by_what_they_unblock(frozen: Frozen) -> None:
    async with opened(frozen, 100, 30) as stage:
        await stage.press("4")
        await stage.sees("9m  frees 2 tasks, 1 agent")
        await stage.press("S")
        await stage.sees("sort:unblocks")
        await stage.until(lambda: shown(stage)[0] == "stuck:migrate:", "what frees most")
        await stage.press("S")
        await stage.until(lambda: shown(stage)[0] == "death:parser:", "the order of urgency")


@pytest.mark.long
async def test_the_alert_line_shows_the_keys_of_the_need(frozen: Frozen) -> None:
    async with opened(frozen, 120, 36) as stage:
        await stage.until(lambda: "! open  r resume  D seen" in stage.part("alert"), "keys that work at once")
        await stage.press("j")
        await stage.until(lambda: "! open › r resume  D seen" in stage.part("alert"), "keys for when it is open")


async def test_the_footer_begins_with_the_keys_of_the_need(empty: Frozen) -> None:
    empty.hire("perm1", "code", "working", "bash ls", ago=700, pid=4500, deadline=NOW - 9)
    async with opened(empty, 80, 24) as stage:
        await stage.press("4")
        await stage.until(lambda: "i interrupt  x stop" in stage.part("keys"), "the keys that answer")
        assert stage.part("keys").split()[0] == "i"


@pytest.mark.parametrize(("is_told", "more"), [(False, "+4 more"), (True, "+3 more")])
def test_the_alert_line_counts_the_needs_it_does_not_name(frozen: Frozen, *, is_told: bool, more: str) -> None:
    view = TeamReader(frozen.directory, clock=lambda: NOW, probe=frozen.probe).read()
    assert len(view.needs) == 5
    assert more in plain(alert_line(Snapshot(view), NOW, 120, is_told=is_told))
    alone = replace(view, needs=view.needs[:2] if is_told else view.needs[:1])
    assert "more" not in plain(alert_line(Snapshot(alone), NOW, 120, is_told=is_told))


async def test_below_the_list_of_needs_no_line_repeats_the_first(
    frozen: Frozen, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.press("4")
        await stage.sees("parser · why")
        await stage.until(lambda: stage.part("alert") == "", "no alert")
        monkeypatch.setattr("crewboard.store.files.disk_state", lambda _: "disk full")
        stage.app.context.reading.poke()
        await stage.until(lambda: "disk full" in stage.part("alert"), "what is wrong with the disk")


@pytest.mark.long
@pytest.mark.parametrize("size", [(80, 24), pytest.param((120, 40), marks=pytest.mark.long)])
async def test_the_worst_need_is_told_where_the_list_does_not(frozen: Frozen, size: tuple[int, int]) -> None:
    async with opened(frozen, *size) as stage:
        await stage.press("4")
        await stage.sees("parser · why")
        await stage.until(lambda: stage.part("alert") == "", "no alert")
        await stage.press("slash", *"zzzz", "enter")
        await stage.sees("no match")
        await stage.until(lambda: "parser died: killed by SIGKILL" in stage.part("alert"), "the worst need")
        await stage.press("escape")
        await stage.until(lambda: stage.part("alert") == "", "no alert")


@pytest.mark.long
async def test_the_worst_need_out_of_sight_is_told_below_the_list(frozen: Frozen) -> None:
    for number in range(30):
        frozen.asks(f"q-{number}", "question", "api", 20, {"question": f"{number}?"})
    async with opened(frozen, 80, 24) as stage:
        await stage.press("4")
        await stage.sees("parser · why")
        await stage.until(lambda: stage.part("alert") == "", "no alert")
        await stage.press("G")
        await stage.until(lambda: "parser died: killed by SIGKILL" in stage.part("alert"), "the worst need")
        await stage.press("g")
        await stage.until(lambda: stage.part("alert") == "", "no alert")
        await stage.press("tab", "z")
        await stage.until(lambda: "parser died: killed" in stage.part("alert"), "the worst need")


async def test_a_narrow_alert_has_no_letter_without_its_word(frozen: Frozen) -> None:
    """Finding A17: `! open › r a o D` said nothing."""
    async with opened(frozen, 80, 24) as stage:
        await stage.until(lambda: "unread ! open  r resume  then" in stage.part("alert"), "a key that works at once")
        await stage.press("j")
        await stage.until(lambda: stage.part("alert").rstrip().endswith("unread  ! open"), "the key for the need")


@pytest.mark.long
async def test_the_alert_line_offers_to_read_a_result_once_it_is_open(empty: Frozen) -> None:
    empty.hire("writer", "code", "idle", "", ago=5, pid=4500)
    empty.mail(1, "writer", "lead", "result", "Done.", 5)
    async with opened(empty, 120, 24) as stage:
        await stage.sees("› ⏎ read")
        await stage.pilot.resize_terminal(80, 24)
        await stage.sees_not("⏎ read")
        assert "! open" in stage.part("alert")


async def test_an_agent_with_an_unread_result_is_bold(frozen: Frozen) -> None:
    frozen.mail(90, "reviewer", "lead", "result", "Looks fine.", 20)
    async with opened(frozen, 109, 36) as stage:
        await stage.sees("2 unread · 1 result to read")
        roster = stage.app.screen.query_one("#roster", LineList)
        tones = {row.key: next(span.tone for span in row.line if row.key in span.text) for row in roster.rows}
        assert tones["reviewer"] == "bold"
        assert tones["perf"] == ""


async def test_a_run_that_its_budget_ended_is_not_shown_as_done(frozen: Frozen) -> None:
    frozen.gone("dear", "code", Exit(run=1, code=79, reason="budget", at=NOW - 30, buried=True), 4399)
    async with opened(frozen, 120, 36) as stage:
        await stage.sees("⊘ dear")
        assert "⊘1 limit" in stage.part("strip")
        messages.acknowledge(frozen.team, "dear")
        await stage.sees("■ dear")


@pytest.mark.long
async def test_the_status_bar_says_how_many_wait_for_the_api(frozen: Frozen) -> None:
    for name, pid in (("one", 81), ("two", 82)):
        frozen.hire(
            name, "code", "retrying", "", ago=20, pid=pid, outage_since=NOW - 20, retry_at=NOW + 600, last_error="529"
        )
    async with opened(frozen, 100, 30) as stage:
        await stage.until(lambda: "⏳2 until 15:14" in stage.part("strip"), "the outage")
        await stage.press("4", "G")
        await stage.sees("the API is unavailable: 529; 2 agents wait until 15:14", "nothing has to be done")
    async with opened(frozen, 80, 24, ascii_only=True) as stage:
        await stage.until(lambda: "2 until 15:14" in stage.part("strip"), "the outage")


def marked(stage: Stage) -> dict[str, bool]:
    """Return the agents of the roster, each with whether its row has the mark of a collision."""
    rows = stage.app.screen.query_one("#roster", LineList).rows
    return {row.key: "⚠" in "".join(span.text for span in row.line) for row in rows}


@pytest.mark.long
@pytest.mark.parametrize("size", [(80, 24), pytest.param((109, 40), marks=pytest.mark.long)])
async def test_a_collision_marks_both_rows_and_is_answered(empty: Frozen, size: tuple[int, int]) -> None:
    for name, at in (("ann", NOW - 20), ("ben", NOW - 9), ("cat", NOW - 9)):
        agent = empty.hire(name, "code", "working", "edits", ago=30, pid=71)
        path = "other.py" if name == "cat" else "api.py"
        status = agent.status.load()
        assert status is not None
        work = Work(files={path: at})
        agent.status.save(status.replace(work=work))
    async with opened(empty, *size) as stage:
        await stage.sees("collides with ben in api.py")
        assert marked(stage) == {"ann": True, "ben": True, "cat": False}
        ages = [line for line in stage.text if "30s" in line and "code" in line]
        assert len(ages) == 3, "no cell is cut"
        await stage.app.open_view("needs", "collision:ann:ben")
        await stage.sees("what helps", "pause one of them")
        for key, label in (("m", "msg"), ("p", "pause"), ("D", "seen")):
            await stage.can(key, label)
        await stage.press("enter")
        await stage.sees("changes made by shell commands are not tracked here")
        await stage.press("escape", "D")
        await stage.sees("acknowledged: ann collides with ben in api.py")
        await stage.press("1")
        await stage.sees("doing")
        assert marked(stage) == {"ann": True, "ben": True, "cat": False}, "they still collide"


@pytest.mark.long
async def test_the_key_for_the_next_need_says_that_it_begins_again(frozen: Frozen) -> None:
    async with opened(frozen, 120, 40) as stage:
        await stage.settles()
        count = len(stage.app.context.snapshot.view.needs)
        await stage.press("!")
        for _ in range(count - 1):
            await stage.settles()
            assert "the last need" not in stage.all
            await stage.press("!")
        await stage.settles()
        await stage.press("!")
        await stage.sees("that was the last need: this is the first again")
