"""The Board: who needs me, who does what, and which keys work."""

from pathlib import Path

import pytest

from crewboard.errors import UsageError
from crewboard.records import Exit
from crewboard.store import agents, tasks
from crewboard.team.context import Team, choose_team
from crewboard.view.reader import TeamReader
from crewboard_tui import dashboard
from tests.frozen import NOW, Frozen
from tests.tui.stage import opened


async def test_it_shows_everybody_with_state_pid_cpu_memory_mail_and_task(frozen: Frozen) -> None:
    async with opened(frozen) as stage:
        await stage.sees("flaky-hunt")
        (api,) = (line for line in stage.text if " api " in line and "edit_file" in line)
        for fact in ("● api", "run", "code", "4395", "edit_file src/api/routes.py", "12s", "11%", "140M", "#9"):
            assert fact in api


async def test_the_most_urgent_stand_first(frozen: Frozen) -> None:
    async with opened(frozen) as stage:
        await stage.sees("scan")
        glyphs = [line[4] for line in stage.text[4:15]]
        assert "".join(glyphs) == "✖▲▲◆↻●●●◐○■"


async def test_the_strip_counts_states_and_says_what_is_dangerous(frozen: Frozen) -> None:
    frozen.hire("risky", "code", "working", "bash make", ago=1, pid=4444, sandbox="none (unsafe)")
    async with opened(frozen) as stage:
        strip = stage.part("strip")
        for part in ("demo", "▲2 ask", "✖1 dead", "◆1 stuck", "↻1 loop", "●4", "tasks 1/8", "sandbox none", "OFFLINE"):
            assert part in strip


async def test_the_alert_names_the_worst_and_its_key(frozen: Frozen) -> None:
    async with opened(frozen) as stage:
        alert = stage.part("alert")
        assert "parser died: killed by SIGKILL" in alert
        assert "#14 unowned" in alert
        assert "3 not read" in alert
        assert "! opens it" in alert


async def test_moving_shows_the_other_agents_work_mail_and_live_reply(frozen: Frozen) -> None:
    async with opened(frozen) as stage:
        await stage.sees("Peek · parser", "pytest -x tests/parser")
        await stage.press("j", "j", "j", "j", "j")
        await stage.sees("Peek · api", "grep src/ def list_orders", "and▌")
        await stage.sees("Inbox · api", "what is the cursor", "PICKED   TURN")


async def test_a_live_reply_grows_as_it_is_streamed(frozen: Frozen) -> None:
    async with opened(frozen) as stage:
        await stage.press("j", "j", "j", "j", "j")
        await stage.sees("and▌")
        with frozen.directory.agent("api").live.open("a") as live:
            live.write("say so in the docs.")
        await stage.sees("docs.▌")


async def test_an_agents_end_is_seen_with_its_signal(frozen: Frozen) -> None:
    async with opened(frozen) as stage:
        await stage.sees("4395")
        del frozen.probe.held["api"]
        agents.write_exit(frozen.directory.agent("api"), Exit(run=1, signal=11, reason="died", at=NOW, buried=True))
        await stage.sees("4395†11", "killed by SIGSEGV")
        assert "✖2 dead" in stage.part("strip")


async def test_facts_that_disagree_are_shown_as_a_conflict(frozen: Frozen) -> None:
    frozen.probe.gone = frozenset({4395})
    async with opened(frozen, width=180) as stage:
        await stage.sees("says working · pid 4395 gone · lease still held")


async def test_the_footer_offers_what_fits_the_selected_agent(frozen: Frozen) -> None:
    async with opened(frozen) as stage:
        await stage.can("r", "resume")
        assert "x stop" not in stage.part("keys")
        assert "a answer" not in stage.part("keys")
        await stage.press("j")
        await stage.can("a", "answer")
        assert "r resume" not in stage.part("keys")
        assert "x stop" in stage.part("keys")


async def test_read_only_offers_nothing_that_changes_the_team(frozen: Frozen) -> None:
    async with opened(frozen, read_only=True) as stage:
        assert "READ-ONLY" in stage.part("strip")
        for word in ("new", "msg", "stop", "resume", "seen", "answer"):
            assert f" {word}" not in stage.part("keys")
        await stage.press("n", "D")
        assert "Hire" not in stage.all
        assert frozen.directory.operator.exists() is False


async def test_the_cursor_stays_on_its_agent_when_the_order_changes(frozen: Frozen) -> None:
    async with opened(frozen) as stage:
        await stage.press("j", "j", "j", "j", "j")
        await stage.sees("Peek · api")
        frozen.hire("api2", "code", "working", "bash ls", ago=1, pid=4499)
        agents.write_exit(frozen.directory.agent("migrate"), Exit(run=1, signal=9, reason="died", at=NOW, buried=True))
        del frozen.probe.held["migrate"]
        await stage.sees("api2", "4391†9")
        await stage.sees("Peek · api")
        order = [line[6:16].strip() for line in stage.text[4:16]]
        assert order.index("migrate") == 3, "it does not re-sort under the cursor"


async def test_eighty_columns_name_every_view_and_the_order(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        assert "5 Procs  6 Feed  7 Cost" in stage.part("heading")
        await stage.sees("Team · sort:urgency")


async def test_sorting_goes_through_the_columns_and_turns_round(frozen: Frozen) -> None:
    async with opened(frozen) as stage:
        await stage.press("s")
        await stage.sees("sort:name")
        assert stage.text[4][6:10] == "api "
        await stage.press("S")
        await stage.sees("sort:name reversed")
        assert stage.text[4][6:8] == "ui"


async def test_a_filter_narrows_the_list_and_esc_takes_it_away(frozen: Frozen) -> None:
    async with opened(frozen) as stage:
        await stage.press("/")
        await stage.write("s:ask")
        await stage.press("enter")
        await stage.sees_not("flaky-hunt")
        await stage.sees("auth-plan", "docs", "filter s:ask")
        await stage.press("escape")
        await stage.sees("flaky-hunt")


async def test_zoom_gives_a_pane_the_screen_and_esc_gives_it_back(frozen: Frozen) -> None:
    async with opened(frozen) as stage:
        await stage.press("z")
        await stage.sees_not("Peek · ")
        await stage.press("escape")
        await stage.sees("Peek · ")


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
        await stage.sees("Nobody is hired yet.", "n  hires an agent")
        assert "n hires the first agent" in stage.part("alert")
        assert "n new" in stage.part("keys")


async def test_a_team_that_is_not_there_yet_appears_when_it_is_made(empty: Frozen) -> None:
    later = Frozen(type(empty.directory)(empty.directory.path.with_name("later")), empty.probe)
    async with opened(later, 80, 24) as stage:
        await stage.sees("Nobody is hired yet.")
        later.team.ensure()
        later.hire("scout", "explore", "idle", "", ago=5, pid=77)
        await stage.sees("scout")


async def test_a_task_that_moves_moves_on_the_board(frozen: Frozen) -> None:
    async with opened(frozen, 120, 50) as stage:
        await stage.sees("orphaned by parser")
        tasks.claim(frozen.directory, 14, "reviewer", "explore", NOW)
        await stage.sees_not("orphaned by parser")


async def test_marks_widen_a_key_to_many(frozen: Frozen) -> None:
    async with opened(frozen) as stage:
        await stage.press("j", "j", "j", "j", "j", "space", "space")
        await stage.sees("2 marked")
        await stage.press("b")
        await stage.sees("to api, perf (2)")


def test_the_farewell_says_who_goes_on_and_how_to_come_back(frozen: Frozen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dashboard, "read_team", lambda _: TeamReader(frozen.directory, probe=frozen.probe).read())
    monkeypatch.chdir(frozen.directory.root)
    words = dashboard.farewell(frozen.team)
    assert "auth-plan, docs" in words
    assert "parser" not in words
    assert "`crewboard --team demo` comes back" in words
    monkeypatch.chdir("/")
    assert f"`crewboard --root {frozen.directory.root} --team demo`" in dashboard.farewell(frozen.team)
    frozen.probe.held.clear()
    assert dashboard.farewell(frozen.team).startswith("Nobody of demo is running.")


def test_the_farewell_names_no_team_where_none_was_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".crewboard").mkdir()
    monkeypatch.chdir(tmp_path)
    words = dashboard.farewell(Team(choose_team(tmp_path, None)))
    assert words == "Nobody of default is running. `crewboard` opens the board again."


def test_without_a_terminal_it_says_what_to_do_instead(frozen: Frozen) -> None:
    with pytest.raises(UsageError, match="needs a terminal"):
        dashboard.run(frozen.team)
