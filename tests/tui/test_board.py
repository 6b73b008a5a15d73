"""The board: which agents need the user, what each agent does, and which keys work."""

from pathlib import Path

import pytest
from msgspec.structs import replace
from textual import events
from textual.geometry import Region
from textual.widget import Widget

from crewboard.commands import settings
from crewboard.commands.context import Team, choose_team
from crewboard.errors import UsageError
from crewboard.protocol import requests
from crewboard.readmodel.activity import SLOT, SLOTS, Lane, LaneReader
from crewboard.readmodel.processes import Usage
from crewboard.readmodel.reader import TeamReader
from crewboard.readmodel.team import AgentView
from crewboard.records.agents import HELD_REPEATS, Cursor, State, TodoList, Tokens
from crewboard.records.events import Event, Intake, Offered, Reply, RunStarted
from crewboard.records.processes import Exit
from crewboard.store import agents, journal, mailbox, tasks
from crewboard_tui import dashboard
from crewboard_tui.queries import Lanes, Snapshot, SpendingByMinute
from crewboard_tui.render import table
from crewboard_tui.render.lines import plain
from crewboard_tui.render.looks import look_of
from crewboard_tui.views.base import BaseScreen
from crewboard_tui.views.board import BoardScreen
from crewboard_tui.views.roster import AgentRow, lay_out
from crewboard_tui.widgets import line_list
from tests.frozen import NOW, Frozen
from tests.matrix import default
from tests.tui.stage import Stage, opened


def test_a_label_is_cut_at_its_end_and_no_name_for_it(frozen: Frozen) -> None:
    agent = TeamReader(frozen.directory, clock=lambda: NOW, probe=frozen.probe).read().agents[0]
    for name, title, shown in (
        ("tt", "lab_漢🙂", "tt lab_漢🙂"),
        ("scout", "the scout of db", "scout the sco…"),
        ("flaky-hunt", "the hunter", "flaky-hunt th…"),
        ("flaky-hunter", "the hunter", "flaky-hunter"),
        ("the-agent-of-tests", "first", "the-age…-tests"),
    ):
        named = replace(agent, name=name, title=title)
        columns = [column for column in lay_out([named], 67, 66, lane=120) if column.title == "AGENT"]
        assert plain(table.cells(columns, AgentRow(named))).strip() == shown


def test_a_row_has_the_word_of_its_state_and_no_empty_column(frozen: Frozen) -> None:
    team = TeamReader(frozen.directory, clock=lambda: NOW, probe=frozen.probe).read().agents
    for width in (50, 60, 80, 120, 200):
        columns = lay_out(list(team), width, width - 1, wide=True)
        for agent in team:
            row = plain(table.cells(columns, AgentRow(agent, NOW)))
            assert look_of(agent).word in row, (width, row)
    idle = [replace(each, unread=0, task=None) for each in team]
    titles = {column.title for column in lay_out(idle, 200, 199)}
    assert "PID" in titles
    assert titles.isdisjoint({"✉", "TASK"})


@pytest.mark.long
async def test_a_row_and_the_page_of_an_agent_show_its_steps(frozen: Frozen) -> None:
    agent = frozen.directory.agent("api")
    status = agent.status.load()
    assert status is not None
    steps = TodoList(done=3, total=7, current="write the tests")
    agent.status.save(status.replace(todo=steps, effort="high", thinking="adaptive"))
    async with opened(frozen, 80, 24) as stage:
        await stage.sees("todo", "3/7")
        stage.app.open_agent("api", "Now")
        await stage.sees("3/7 write the tests", "claude-sonnet-5-5, effort high, thinking adaptive")
        # What it did not do of its list means nothing when it is done.
        await stage.press("escape")
        agent.status.save(status.replace(todo=steps, state="idle"))
        await stage.sees_not("3/7")


async def test_an_agent_row_has_state_pid_cpu_memory_mail_and_task(frozen: Frozen) -> None:
    async with opened(frozen, 170) as stage:
        await stage.press("w")
        await stage.sees("Team 11 ━━ state⌄  type")
        (api,) = (line for line in stage.text if " api " in line and "edit_file" in line)
        for fact in ("● api", "run", "code", "4395", "edit_file src/api/routes.py", "10s", "11%", "140M", "#9"):
            assert fact in api


async def test_the_first_picture_mounts_only_what_it_may_show(frozen: Frozen) -> None:
    # The input and its hint follow, where one may write. Each widget takes a quarter of a percent of a start.
    async with opened(frozen, 100, 30, read_only=True) as stage:
        assert len(list(stage.app.screen.walk_children(Widget))) <= 18


async def test_a_move_of_the_cursor_does_not_paint_the_team(frozen: Frozen, monkeypatch: pytest.MonkeyPatch) -> None:
    painted, paint = list[Snapshot](), BoardScreen.paint

    def noted(board: BoardScreen, snapshot: Snapshot) -> None:
        painted.append(snapshot)
        paint(board, snapshot)

    async with opened(frozen, 120, 40) as stage:
        # That this dashboard is open is news of the team, which paints it.
        await stage.until(lambda: stage.app.context.snapshot.view.present, "this dashboard among those that are open")
        await stage.settles()
        monkeypatch.setattr(BoardScreen, "paint", noted)
        await stage.press("j")
        await stage.sees("Inbox · auth-plan", "no mail", "m writes some")
        assert not painted


@pytest.mark.long
@pytest.mark.parametrize(
    ("error", "says"),
    [(None, "2 unread"), ("the API stayed unavailable", "the API stayed un")],
)
async def test_what_an_idle_agent_does_is_not_said_twice(frozen: Frozen, error: str | None, says: str) -> None:
    path = frozen.directory.agent("reviewer").status
    status = path.load()
    assert status is not None
    path.save(status.replace(doing="idle", last_error=error))
    async with opened(frozen, 170, 40) as stage:
        await stage.settles()
        (row,) = [line for line in stage.text if "○ reviewer" in line]
        assert row.count("idle") == 1
        assert says in row


@pytest.mark.long
@pytest.mark.parametrize("state", [pytest.param("idle", marks=pytest.mark.long), "working"])
async def test_a_row_says_that_a_checkout_was_not_set_up(frozen: Frozen, state: State) -> None:
    path = frozen.directory.agent("reviewer").status
    status = path.load()
    assert status is not None
    error = "worktree_setup `make` failed"
    path.save(status.replace(state=state, doing="reads", setup_error=error))
    async with opened(frozen, 170, 40) as stage:
        await stage.press("w")
        await stage.sees({"idle": error, "working": "checkout not set up · reads"}[state])


@pytest.mark.long
async def test_a_narrow_board_says_the_word_of_a_state_once(frozen: Frozen) -> None:
    async with opened(frozen, 40, 16) as stage:
        await stage.press("G")
        await stage.sees("○ reviewer")
        await stage.settles()
        (row,) = [line for line in stage.text if "○ reviewer" in line]
        assert "idle: 2 unread" in row


async def test_the_most_urgent_stand_first(frozen: Frozen) -> None:
    async with opened(frozen) as stage:
        await stage.sees("scan")
        glyphs = [line[1] for line in stage.text[3:14]]
        assert "".join(glyphs) == "✖▲▲◆↻●●●◐○■"


async def test_the_strip_counts_states_and_says_what_is_dangerous(frozen: Frozen) -> None:
    frozen.hire("risky", "code", "working", "bash make", ago=1, pid=4444, sandbox="none (unsafe)")
    async with opened(frozen) as stage:
        strip = stage.part("strip")
        for part in (
            "demo",
            "✖ 1 dead",
            "▲ 2 ask",
            "◆1 stuck",
            "↻1 loop",
            "●4",
            "tasks 1/8",
            "sandbox none",
            "OFFLINE",
        ):
            assert part in strip


@pytest.mark.long
async def test_a_worker_whose_sandbox_is_not_known_yet_is_no_danger(frozen: Frozen) -> None:
    frozen.directory.agent("api").status.on_disk.unlink()
    async with opened(frozen) as stage:
        await stage.sees("api ")
        assert "sandbox" not in stage.part("strip")


async def test_damaged_files_are_named_even_while_an_agent_needs_you(frozen: Frozen) -> None:
    frozen.directory.task(9).on_disk.write_text("{")
    with frozen.directory.inbox("api").on_disk.open("ab") as box:
        box.write(b"no message\nnor this\n")
    async with opened(frozen, 80, 24) as stage:
        assert " 3 damaged " in stage.part("strip")
        await stage.press("?", "G")
        await stage.sees("damaged       tasks/9.json, mail or journal of api ×2")


async def test_the_alert_names_the_worst_and_its_key(frozen: Frozen) -> None:
    async with opened(frozen) as stage:
        await stage.press("j")
        await stage.until(lambda: "parser died: killed by SIGKILL" in stage.part("alert"), "the worst need")
        alert = stage.part("alert")
        assert "#14 orphaned" in alert
        assert "3 unread" in alert
        assert "! open" in alert


async def test_with_the_worst_selected_the_alert_names_the_next(frozen: Frozen) -> None:
    async with opened(frozen, 120, 36) as stage:
        says = " ✖ #14 orphaned · 3 unread ! open  r resume  D seen  then ▲ auth-plan plan: Rotate the"
        await stage.until(lambda: stage.part("alert").startswith(says), "what follows, and the next need")
        await stage.press("!")
        await stage.sees("parser · why")


@pytest.mark.long
async def test_a_click_beside_the_alerts_key_opens_it_too(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.sees("! open")
        (at,) = ((line.index(" open"), y) for y, line in enumerate(stage.text) if "! open" in line)
        await stage.pilot.click(offset=at)
        await stage.sees("parser · why")


async def test_moving_shows_the_other_agents_work_mail_and_live_reply(frozen: Frozen) -> None:
    async with opened(frozen) as stage:
        await stage.sees("Peek · parser", "pytest -x tests/parser")
        await stage.press("j", "j", "j", "j", "j")
        await stage.sees("Peek · api", "grep src/ def list_orders", "and▌")
        await stage.sees("Inbox · api", "what is the cursor", "picked", "turn")


@pytest.mark.long
async def test_the_output_of_a_command_is_shown_while_it_runs(frozen: Frozen) -> None:
    frozen.began("api", 3, "bash", {"command": "make"})
    frozen.directory.agent("api").live.write_text("compiled 3 of 40\n")
    async with opened(frozen, 80, 24) as stage:
        stage.app.open_agent("api", "Transcript")
        await stage.sees("compiled 3 of 40")
        (line,) = (line for line in stage.text if "compiled 3 of 40" in line)
        assert "out" in line
        assert "says" not in line


@pytest.mark.long
async def test_a_live_reply_grows_as_it_is_streamed(frozen: Frozen) -> None:
    async with opened(frozen) as stage:
        await stage.press("j", "j", "j", "j", "j")
        await stage.sees("and▌")
        with frozen.directory.agent("api").live.open("a") as live:
            live.write("say so in the docs.")
        await stage.sees("docs.▌")


async def test_an_agents_end_is_seen_with_its_signal(frozen: Frozen) -> None:
    async with opened(frozen, 100) as stage:
        await stage.sees("4395")
        del frozen.probe.held["api"]
        agents.write_exit(frozen.directory.agent("api"), Exit(run=1, signal=11, reason="died", at=NOW, buried=True))
        await stage.sees("4395†11", "killed by SIGSEGV")
        assert "✖ 2 dead" in stage.part("strip")


async def test_facts_that_disagree_are_shown_as_a_conflict(frozen: Frozen) -> None:
    frozen.probe.gone = frozenset({4395})
    async with opened(frozen, width=200) as stage:
        await stage.press("w")
        await stage.sees("says working · pid 4395 gone · lease still held")


async def test_the_footer_offers_what_fits_the_selected_agent(frozen: Frozen) -> None:
    async with opened(frozen) as stage:
        await stage.can("r", "resume")
        assert "x stop" not in stage.offered
        assert "a answer" not in stage.offered
        await stage.press("j")
        await stage.can("a", "answer")
        assert "r resume" not in stage.offered
        assert "x stop" in stage.offered


async def test_read_only_offers_nothing_that_changes_the_team(frozen: Frozen) -> None:
    async with opened(frozen, read_only=True) as stage:
        assert "READ-ONLY" in stage.part("strip")
        for word in ("new", "msg", "stop", "resume", "seen", "answer"):
            assert f" {word}" not in stage.offered
        await stage.press("n", "D")
        assert "Hire" not in stage.all
        assert frozen.directory.operator.exists() is False


@pytest.mark.long
async def test_the_cursor_stays_on_its_agent_when_the_order_changes(
    frozen: Frozen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_list, "SETTLE", 3600)
    async with opened(frozen, 100) as stage:
        await stage.press("j", "j", "j", "j", "j")
        await stage.sees("Peek · api")
        frozen.hire("api2", "code", "working", "bash ls", ago=1, pid=4499)
        agents.write_exit(frozen.directory.agent("migrate"), Exit(run=1, signal=9, reason="died", at=NOW, buried=True))
        del frozen.probe.held["migrate"]
        await stage.sees("api2", "4391†9")
        await stage.sees("Peek · api")
        order = [line[3:13].strip() for line in stage.text[3:15]]
        assert order.index("migrate") == 3, "it does not re-sort under the cursor"


@pytest.mark.long
async def test_eighty_columns_name_every_view_and_the_order(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        assert "5 Procs  6 Feed  7 Cost" in stage.part("heading")
        await stage.sees("━ Team 11 ━━ state⌄")


@pytest.mark.long
async def test_sorting_goes_through_the_columns_and_turns_round(frozen: Frozen) -> None:
    async with opened(frozen) as stage:
        await stage.press("s")
        await stage.sees("sort:name")
        assert stage.text[3][3:7] == "api "
        await stage.press("S")
        await stage.sees("sort:name reversed")
        assert stage.text[3][3:5] == "ui"


@pytest.mark.long
async def test_a_filter_narrows_the_list_and_esc_takes_it_away(frozen: Frozen) -> None:
    async with opened(frozen) as stage:
        await stage.press("/")
        await stage.write("s:ask")
        await stage.press("enter")
        await stage.sees_not("flaky-hunt")
        await stage.sees("auth-plan", "docs", "filter s:ask")
        await stage.press("escape")
        await stage.sees("flaky-hunt")


@pytest.mark.long
async def test_zoom_gives_a_pane_the_screen_and_esc_gives_it_back(frozen: Frozen) -> None:
    async with opened(frozen) as stage:
        await stage.press("z")
        await stage.sees_not("Peek · ")
        await stage.press("escape")
        await stage.sees("Peek · ")


@pytest.mark.long
@pytest.mark.parametrize(
    "view",
    [
        pytest.param("1", marks=pytest.mark.long),
        "2",
        pytest.param("3", marks=pytest.mark.long),
        pytest.param("4", marks=pytest.mark.long),
        pytest.param("5", marks=pytest.mark.long),
    ],
)
async def test_a_zoomed_pane_takes_all_the_room(frozen: Frozen, view: str) -> None:
    async with opened(frozen, 170, 50) as stage:
        await stage.press(view)
        screen = stage.app.screen
        assert isinstance(screen, BaseScreen)

        def panes() -> list[Widget]:
            return [pane for pane in screen.query("#body .pane") if pane.size.width]

        await stage.until(panes, "the panes")
        await stage.settles()
        room = screen.query_one("#body").size
        for pane in panes():
            pane.focus()
            await stage.until(lambda pane=pane: pane.has_focus, "the focus on the pane")  # type: ignore[misc]
            await stage.press("z")
            await stage.until(lambda pane=pane: pane.region.width == room.width, "all of the width")  # type: ignore[misc]
            await stage.settles()
            assert pane.region.height >= room.height - 1, "the composer keeps its line"
            await stage.press("z")
            await stage.until(lambda: not screen.query("#body .-alone"), "the other panes")
            await stage.settles()


@pytest.mark.long
async def test_esc_on_the_board_does_not_leave(frozen: Frozen) -> None:
    async with opened(frozen) as stage:
        await stage.press("escape", "escape")
        await stage.sees("flaky-hunt")
        assert stage.app.is_running


async def test_q_leaves(frozen: Frozen) -> None:
    async with opened(frozen) as stage:
        await stage.press("q")
        await stage.until(lambda: not stage.app.is_running or stage.app._exit, "leaving")


async def test_an_empty_team_says_what_to_press_first(empty: Frozen) -> None:
    async with opened(empty, 80, 24) as stage:
        await stage.sees("No agents hired yet.", "n  hires an agent")
        assert "n hires the first agent" in stage.part("alert")
        assert "n new" in stage.offered


@pytest.mark.long
async def test_a_team_that_is_not_there_yet_appears_when_it_is_made(empty: Frozen) -> None:
    later = Frozen(type(empty.directory)(empty.directory.path.with_name("later")), empty.probe)
    async with opened(later, 80, 24) as stage:
        await stage.sees("No agents hired yet.")
        later.team.ensure()
        later.hire("scout", "explore", "idle", "", ago=5, pid=77)
        await stage.sees("scout")


@pytest.mark.long
async def test_a_task_that_moves_moves_on_the_board(frozen: Frozen) -> None:
    async with opened(frozen, 120, 50) as stage:
        await stage.sees("orphaned by parser")
        tasks.claim(frozen.directory, 14, "reviewer", "explore", NOW)
        await stage.sees_not("orphaned by parser")


@pytest.mark.long
async def test_marks_widen_a_key_to_many(frozen: Frozen) -> None:
    async with opened(frozen) as stage:
        await stage.press("j", "j", "j", "j", "j", "space", "space")
        await stage.sees("2 marked")
        await stage.press("b")
        await stage.sees("to api, perf")


def test_the_farewell_says_who_goes_on_and_how_to_come_back(frozen: Frozen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("crewboard.read_team", lambda _: TeamReader(frozen.directory, probe=frozen.probe).read())
    monkeypatch.chdir(frozen.directory.root)
    words = dashboard.farewell(frozen.team)
    assert "auth-plan, docs" in words
    assert "parser" not in words
    assert "`crewboard --offline` opens the board again, `crewboard stop NAME` ends one" in words
    monkeypatch.chdir("/")
    assert f"`crewboard --root {frozen.directory.root} --team demo --offline`" in dashboard.farewell(frozen.team)
    frozen.probe.held.clear()
    assert dashboard.farewell(frozen.team).startswith("No agent of demo is running.")


def test_the_farewell_names_no_team_where_none_was_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".crewboard").mkdir()
    monkeypatch.chdir(tmp_path)
    words = dashboard.farewell(Team(choose_team(tmp_path, None)))
    assert words == "No agent of default is running. `crewboard` opens the board again."


@pytest.mark.parametrize("environment", [{}, {"ANTHROPIC_API_KEY": "x"}], ids=["keyless", "keyed"])
def test_a_team_keeps_its_offline_model(frozen: Frozen, environment: dict[str, str]) -> None:
    team = replace(frozen.team, environment=environment)
    assert team.worker_environment == environment
    frozen.directory.model_lock.on_disk.touch()
    assert team.worker_environment == {**environment, "CREWBOARD_OFFLINE": "1"}
    assert "--offline" in dashboard.farewell(team)


def test_without_a_terminal_it_says_what_to_do_instead(frozen: Frozen) -> None:
    with pytest.raises(UsageError, match="needs a terminal"):
        dashboard.run(frozen.team)


@pytest.mark.long
async def test_enter_in_a_pane_opens_what_is_selected_there(frozen: Frozen) -> None:
    async with opened(frozen, 120, 40) as stage:
        await stage.press("j", "j", "j", "j", "j", "tab", "tab", "tab", "j", "j", "enter")
        await stage.sees("━ Tasks · 1/8 completed", "─ #10 ─")
        await stage.press("1", "shift+tab", "enter")
        await stage.sees(" api · 1 unread · seen as its worker sees it")


@pytest.mark.long
async def test_on_a_task_of_the_board_no_key_is_for_an_agent(frozen: Frozen) -> None:
    async with opened(frozen, 170, 50) as stage:
        await stage.can("r", "resume")
        stage.app.screen.query_one("#board-tasks").focus()
        await stage.until(lambda: "r resume" not in stage.offered, "no key for an agent")
        await stage.press("r")
        await stage.sees("resume: select an agent first")


@pytest.mark.long
@pytest.mark.usefixtures("in_time")
@pytest.mark.parametrize(
    ("beside", "moves", "agent"),
    [("board-needs", "jj", "docs"), pytest.param("board-cost", "jjj", "api", marks=pytest.mark.long)],
)
async def test_beside_the_roster_keys_act_on_the_agent_of_the_row(
    frozen: Frozen, beside: str, moves: str, agent: str
) -> None:
    settings.change_setting(frozen.team, "result_needs", "on")
    for number, name in enumerate(("scan", "reviewer", "docs"), 90):
        frozen.mail(number, name, "lead", "result", "Looks fine.", 100 - number)
    async with opened(frozen, 170, 50) as stage:
        await stage.sees("─ Cost · $14.85/h ─", "Results to read · 3")
        stage.app.screen.query_one(f"#{beside}").focus()
        await stage.until(lambda: stage.app.screen.query_one(f"#{beside}").has_focus, "the focus")
        await stage.press(*moves)
        await stage.sees(f"to {agent} ›")
        assert "r resume" not in stage.offered, "parser is selected in the roster"
        await stage.press("X")
        await stage.sees(f"X again within 2 s ends {agent}")
        await stage.press("N")
        await stage.sees("Hire an agent", f"{agent}2")


@pytest.mark.long
async def test_a_large_board_shows_what_each_agent_costs(frozen: Frozen) -> None:
    async with opened(frozen, 160, 49) as stage:
        await stage.sees("tasks 1/8")
        assert "Cost · " not in stage.all
        await stage.pilot.resize_terminal(160, 50)
        await stage.sees("$14.85/h", "TEAM")
        stage.app.screen.query_one("#board-cost").focus()
        await stage.press("j", "enter")
        await stage.sees("› parser")
        await stage.turns_to("Vitals")
        await stage.press("escape")
        await stage.sees("$14.85/h", "TEAM")


@pytest.mark.long
async def test_costs_wait_until_no_pane_fills_the_screen(frozen: Frozen) -> None:
    async with opened(frozen, 160, 49) as stage:
        await stage.sees("─ Tasks · 1/8")
        stage.app.screen.query_one("#board-tasks").focus()
        await stage.press("z")
        await stage.sees_not("─ Team")
        await stage.pilot.resize_terminal(160, 50)
        await stage.until(lambda: stage.app.screen.size.height == 50, "the size")
        await stage.sees_not("Cost · ")
        await stage.press("z")
        await stage.sees("─ Cost · $14.85/h ─", "─ Team")


async def test_the_inbox_beside_the_board_shows_the_newest_mail(empty: Frozen) -> None:
    empty.hire("api", "code", "working", "", ago=30, pid=77)
    empty.mail(0, "operator", "api", "message", "letter 0.", 50)
    async with opened(empty, 120, 40) as stage:
        await stage.sees("letter 0.")
        for number in range(1, 40):
            empty.mail(number, "operator", "api", "message", f"letter {number}.", 50 - number)
        await stage.sees("letter 39.")
        # Who reads older mail is not moved.
        stage.app.screen.query_one("#board-inbox").focus()
        # When read mail was picked up may stand in a part of the journal that is not loaded: no dashes claim anything.
        (line,) = (line for line in stage.text if "letter 39." in line)
        assert line.count("—") == 2
        empty.directory.agent("api").cursor.save(Cursor(offset=mailbox.read(empty.directory, "api").entries[-1][1]))
        await stage.until(
            lambda: "—" not in next((line for line in stage.text if "letter 39." in line), "—"), "no times"
        )
        await stage.press("k")
        empty.mail(40, "operator", "api", "message", "letter 40.", 1)
        await stage.until(lambda: stage.app.context.snapshot.view.agents[0].unread == 1, "the mail")
        await stage.settles()
        assert "letter 40." not in stage.all


async def test_the_inbox_names_a_plan_as_it_was_approved(empty: Frozen) -> None:
    for name in ("lead", "api"):
        empty.hire(name, "lead" if name == "lead" else "code", "working", "", ago=30, pid=77)
    empty.asks("req-1", "plan_approval", "api", 20, {"plan": "drop the table"}, to="lead")
    async with opened(empty, 120, 36) as stage:
        await stage.app.open_view("board", "lead")
        await stage.sees("Inbox · lead", "drop the table")
        requests.decide(empty.directory, "req-1", "approved", "operator", NOW, edited="keep the table")
        await stage.sees("+ plan, approved")
        stage.app.screen.query_one("#board-inbox").focus()
        await stage.press("enter")
        await stage.sees("plan: keep the")
        assert "drop the" not in stage.all


@pytest.mark.long
@pytest.mark.parametrize("zooms", [False, True])
async def test_keys_go_to_the_roster_once_a_pane_has_no_room(frozen: Frozen, zooms: bool) -> None:
    async with opened(frozen, 160, 50) as stage:
        await stage.sees("─ Cost · ")
        stage.app.screen.query_one("#board-cost").focus()
        await stage.settles()
        await stage.press(*["z"] * zooms)
        await stage.pilot.resize_terminal(100, 30)
        await stage.until(lambda: stage.app.screen.size.height == 30, "the size")
        await stage.settles()
        await stage.press(*["escape"] * zooms)
        await stage.sees("━━ Team 11", "▌✖ parser")
        await stage.press("j")
        await stage.sees("▌▲ auth-plan")


async def test_a_terminal_in_the_background_keeps_its_pane(frozen: Frozen) -> None:
    async with opened(frozen, 120, 36) as stage:
        await stage.sees("─ Tasks · 1/8")
        stage.app.screen.query_one("#board-tasks").focus()
        await stage.settles()
        for event in (events.AppBlur(), events.AppFocus()):
            stage.app.post_message(event)
            await stage.settles()
        await stage.sees("━ Tasks · 1/8")


async def test_a_row_shows_the_last_minutes_of_its_agent(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.sees("4 min", "✖     ", "────────   4m", "───   1m", "┄┄┄┄┄   2m", "········   6m", "◇◇◇◇◇◇◇◇   9m")


async def test_a_lane_in_ascii_tells_waiting_from_work(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24, ascii_only=True) as stage:
        await stage.sees("????????   4m", "~~~~~   2m", "X       2m", "!!!!!!!!   9m")


def test_a_lane_moves_only_if_something_is_in_it(frozen: Frozen) -> None:
    view = TeamReader(frozen.directory, clock=lambda: NOW, probe=frozen.probe).read()
    now = int(NOW // SLOT)

    def cells(name: str, slot: int) -> list[str]:
        agent = view.agent(name)
        assert agent is not None
        lane = LaneReader(frozen.directory.agent(name)).read(agent, ())
        return [cell.kind for cell in lane.cells(agent, slot, 8)]

    assert cells("reviewer", now) == cells("reviewer", now + 1) == ["rests"] * 8
    assert cells("migrate", now) == cells("migrate", now + 1) == ["stuck"] * 8
    assert cells("parser", now)[-5:] == ["died", "none", "none", "none", "none"]
    assert cells("parser", now + 1)[-6:-4] == ["died", "none"]
    assert cells("release", now)[-5:] == ["waits"] * 5


def _lane_after(frozen: Frozen, name: str, ago: float, event: Event, **status: object) -> str:
    """Return the glyph of each of the last 12 cells of an agent's lane, after an event and a new status."""
    agent = frozen.directory.agent(name)
    journal.append(agent.journal, event)
    said = agent.status.load()
    assert said is not None
    agent.status.save(said.replace(since=NOW - ago, **status))
    return _lane_of(frozen, name)


def _lane_of(frozen: Frozen, name: str) -> str:
    view = TeamReader(frozen.directory, clock=lambda: NOW, probe=frozen.probe).read().agent(name)
    assert view is not None
    return _glyphs(LaneReader(frozen.directory.agent(name)).read(view, ()), view)


def _glyphs(lane: Lane, agent: AgentView) -> str:
    cells = lane.cells(agent, int(NOW // SLOT), 12)
    return "".join({"work": "█", "works": "▁", "rests": "·", "died": "✖", "none": " "}[cell.kind] for cell in cells)


def test_a_notice_to_an_idle_agent_is_no_work_in_its_lane(empty: Frozen) -> None:
    agent = empty.hire("a", "explore", "idle", "", ago=300, pid=7)
    notice = mailbox.compose("operator", "a", "notice", "victim ended", ident="m1", ts=NOW - 240)
    journal.append(agent.journal, Intake(ts=NOW - 240, run=1, messages=[notice], cursor=9))
    begins = Intake(ts=NOW - 60, run=1, cursor=9, entered=["m2"], assignment="m2")
    assert _lane_after(empty, "a", 60, begins, state="working") == "·········▁▁▁"


def test_a_text_that_is_sent_to_an_engine_is_work_in_a_lane(empty: Frozen) -> None:
    empty.hire("a", "explore", "idle", "", ago=240, pid=7)
    assert _lane_after(empty, "a", 0, Offered(ts=NOW - 60, run=1, texts=["p"]), state="working") == "·········▁▁▁"


def test_a_lane_shows_a_pause_that_is_over(empty: Frozen) -> None:
    empty.hire("a", "explore", "paused", "", ago=240, pid=7)
    empty.did("a", 300, "grep", {"pattern": "x"}, "found", 0.1)
    before = _lane_of(empty, "a")
    reply = Reply(ts=NOW - 30, run=1, content=[], stop_reason="end_turn", usage=Tokens(9, 8))
    after = _lane_after(empty, "a", 30, reply, state="working", paused_at=NOW - 240, unpaused_at=NOW - 60)
    assert (before, after) == ("·█▁·········", "·█▁······▁█▁")


def test_a_lane_keeps_several_pauses_that_it_saw(empty: Frozen) -> None:
    agent = empty.hire("a", "explore", "working", "", ago=30, pid=7)
    empty.did("a", 330, "grep", {"pattern": "x"}, "found", 0.1)
    view = TeamReader(empty.directory, clock=lambda: NOW, probe=empty.probe).read().agent("a")
    assert view is not None
    reader, lane = LaneReader(agent), Lane()
    for turn, pause in enumerate([(300, 210), (150, 60)]):
        status = view.status.replace(turn=turn, paused_at=NOW - pause[0], unpaused_at=NOW - pause[1])
        lane = reader.read(replace(view, status=status), ())
    assert _glyphs(lane, view) == "█···▁▁···▁▁▁"


def test_a_lane_shows_a_pause_in_which_the_agent_died(empty: Frozen) -> None:
    died = Exit(run=1, signal=9, reason="died", at=NOW - 120, buried=True)
    agent = empty.gone("a", "explore", died, 7)
    empty.did("a", 300, "grep", {"pattern": "x"}, "found", 0.1)
    said = agent.status.load()
    assert said is not None
    agent.status.save(said.replace(state="paused", since=NOW - 240))
    assert _lane_of(empty, "a") == "·█▁····✖    "


def test_a_lane_shows_a_death_after_the_next_start(empty: Frozen) -> None:
    died = Exit(run=1, signal=9, reason="died", at=NOW - 240, buried=True)
    agent = empty.gone("a", "explore", died, 7)
    empty.did("a", 300, "grep", {"pattern": "x"}, "found", 0.1)
    spec = agent.spec.load()
    assert spec is not None
    agents.change_spec(agent, lambda _: spec.replace(run=2, at=NOW - 90))
    queued = _lane_of(empty, "a")
    empty.probe.held["a"] = Usage(0, 0, 0)
    start = RunStarted(
        ts=NOW - 60, run=2, pid=8, type="explore", model="m", fresh=False, prompt_id="p-a", before=died,
    )  # fmt: skip
    started = _lane_after(empty, "a", 60, start, state="idle", run=2)
    assert (queued, started) == ("·█▁✖        ", "·█▁✖     ···")


def test_a_lane_says_that_a_loop_is_held(frozen: Frozen) -> None:
    path = frozen.directory.agent("flaky-hunt").status
    status = path.load()
    assert status is not None
    kinds = []
    for repeats in (HELD_REPEATS - 1, HELD_REPEATS):
        path.save(status.replace(repeats=repeats))
        agent = TeamReader(frozen.directory, clock=lambda: NOW, probe=frozen.probe).read().agent("flaky-hunt")
        assert agent is not None
        kinds.append([cell.kind for cell in Lane().cells(agent, int(NOW // SLOT), 4)])
    assert kinds == [["works"] * 4, ["stuck"] * 4]


def test_a_lane_keeps_a_bounded_number_of_slots(frozen: Frozen) -> None:
    agent = TeamReader(frozen.directory, clock=lambda: NOW, probe=frozen.probe).read().agent("api")
    assert agent is not None
    for number in range(100):
        frozen.did("api", -SLOT * number, "grep", {"pattern": str(number)}, "found", 0.1)
    lane = LaneReader(frozen.directory.agent("api")).read(agent, ())
    assert len(lane.slots) == SLOTS + 8
    assert [cell.kind for cell in lane.cells(agent, int(NOW // SLOT) + 99, SLOTS)] == ["work"] * SLOTS


def test_a_lane_reads_the_journal_only_after_a_new_status(frozen: Frozen) -> None:
    agent = TeamReader(frozen.directory, clock=lambda: NOW, probe=frozen.probe).read().agent("api")
    assert agent is not None
    reader = LaneReader(frozen.directory.agent("api"))
    lane = reader.read(agent, ())
    frozen.did("api", -SLOT, "grep", {"pattern": "x"}, "found", 0.1)
    # A worker writes its status after its journal, so that nothing is looked for until then.
    assert reader.read(agent, ()) is lane
    assert reader.read(replace(agent, status=agent.status.replace(turn=agent.status.turn + 1)), ()) != lane


async def test_other_views_read_no_lanes(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.until(lambda: _lanes(stage), "lanes are read")
        await stage.press("3")
        await stage.until(lambda: not _lanes(stage), "none is read")


def _lanes(stage: Stage) -> bool:
    return any(isinstance(query, Lanes) for query in stage.app.context.snapshot.answers)


@pytest.mark.long
async def test_from_110_columns_the_selected_agent_stands_beside_the_roster(frozen: Frozen) -> None:
    async with opened(frozen, 110, 30) as stage:
        await stage.press("j", "j", "j", "j", "j")
        await stage.sees("── api · code ──", "● run", "44% of 200k", "$0.93", "1 unread", "#9 paginate /orders")
        peek, roster = stage.app.screen.query_one("#peek"), stage.app.screen.query_one("#roster")
        assert roster.region.right < peek.region.x, "beside it"
        assert peek.region.y < roster.region.bottom, "not below it"
        await stage.press("w")
        await stage.until(lambda: peek.region.y >= roster.region.bottom, "the table in the full width")
        assert roster.region.width == 110
        await stage.sees("model")
        await stage.press("w")
        await stage.until(lambda: roster.region.width == 64, "the roster again")


@pytest.mark.long
async def test_thirty_four_agents_fit_on_a_large_terminal(frozen: Frozen) -> None:
    async with opened(frozen, 120, 40) as stage:
        await stage.sees("─ Tasks · 1/8")
        for number in range(23):
            frozen.hire(f"more-{number}", "explore", "working", "reads", ago=9, pid=5000 + number)
        await stage.sees("━ Team 34")
        await stage.sees_not("─ Tasks · 1/8")
        await stage.settles()
        rows = {line.split()[1] for line in stage.text[3:] if len(line.split()) > 2}
        assert len(rows.intersection(stage.app.context.snapshot.view.names)) == 34
        # A list without room is not gone to either.
        await stage.press("tab", "tab", "tab")
        assert stage.app.focused is not None
        assert stage.app.focused.size.height > 0


async def test_results_to_read_stand_below_the_tasks_if_there_are_any(frozen: Frozen) -> None:
    async with opened(frozen, 120, 40) as stage:
        await stage.sees("─ Tasks · 1/8")
        assert "Results" not in stage.all
        settings.change_setting(frozen.team, "result_needs", "on")
        frozen.mail(90, "ui", "lead", "result", "The list scrolls.", 20)
        await stage.sees("─ Results to read · ", "The list scrolls.")


@pytest.mark.long
@pytest.mark.parametrize("size", default([(120, 40), (170, 50)], (120, 40)))
async def test_the_pulse_of_the_team_stands_in_free_rows(frozen: Frozen, size: tuple[int, int]) -> None:
    async with opened(frozen, *size) as stage:
        await stage.sees("─ Pulse · tokens a minute", "peak 361.4k", "─ Tasks · 1/8", "#2 ")
        await stage.press("z")
        await stage.sees_not("─ Pulse")
        await stage.press("z")
        await stage.sees("─ Pulse")
        # Agents and tasks come first.
        for number in range(size[1] - 18):
            frozen.hire(f"more-{number}", "explore", "working", "reads", ago=9, pid=5000 + number)
        await stage.sees_not("─ Pulse")


async def test_without_room_for_the_pulse_no_calls_are_read_for_it(frozen: Frozen) -> None:
    async with opened(frozen, 120, 30) as stage:
        await stage.sees("─ Tasks · 1/8", "#2 ")
        await stage.settles()
        assert not any(isinstance(query, SpendingByMinute) for query in stage.app.context.snapshot.answers)


async def test_the_pulse_comes_as_soon_as_there_is_room(frozen: Frozen, monkeypatch: pytest.MonkeyPatch) -> None:
    # Else the screen of a team at rest says five seconds later what it asks.
    monkeypatch.setattr(BoardScreen, "tick", lambda _: None)
    async with opened(frozen, 120, 30) as stage:
        await stage.sees("─ Tasks · 1/8", "#2 ")
        await stage.settles()
        await stage.pilot.resize_terminal(120, 40)
        await stage.sees("─ Pulse")


async def test_the_tasks_are_painted_in_the_room_that_the_pulse_leaves(
    empty: Frozen, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A second later they would be painted in any case.
    monkeypatch.setattr(BoardScreen, "tick", lambda _: None)
    empty.hire("ann", "code", "working", "thinking", ago=9, pid=4500)
    empty.task(1, "write the changelog")
    async with opened(empty, 170, 50) as stage:
        await stage.sees("unassigned")
        await stage.settles()
        # Nothing else of the team changes.
        empty.said("ann", 5, "thought")
        await stage.sees("─ Pulse", "unassigned │")


@pytest.mark.parametrize("size", default([(120, 36), (80, 24), (170, 50)], (120, 36)))
async def test_a_second_in_which_nothing_changes_lays_nothing_out(
    size: tuple[int, int], frozen: Frozen, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(frozen, *size) as stage:
        await stage.settles()
        laid, refresh = list[str](), Widget.refresh

        def note(widget: Widget, *regions: Region, layout: bool = False, **more: bool) -> Widget:
            laid.extend([str(widget)] if layout else [])
            return refresh(widget, *regions, layout=layout, **more)

        monkeypatch.setattr(Widget, "refresh", note)
        assert isinstance(stage.app.screen, BoardScreen)
        stage.app.screen.tick()
        await stage.settles()
        assert laid == []


async def test_a_failed_call_has_a_sign_in_the_peek(frozen: Frozen) -> None:
    # Newer than the rest, and too long for its outcome to be seen.
    frozen.did("api", 3, "bash", {"command": "make " + 30 * "check "}, "Error: two tests failed", 0.0)
    async with opened(frozen, 80, 24) as stage:
        await stage.press("j", "j", "j", "j", "j")
        await stage.sees("tool   ✗ bash make check")
        await stage.sees("tool   edit_file src/api/routes.py")
