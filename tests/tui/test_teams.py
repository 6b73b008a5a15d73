"""`t` switches between the teams of the root."""

import os
import threading
from pathlib import Path

import pytest
from msgspec.structs import replace
from textual.screen import ModalScreen

from crewboard.store import leases
from crewboard_tui.background import TeamRead
from crewboard_tui.notifications import BELL
from crewboard_tui.settings import Settings
from tests.attach.replay import Replay, process
from tests.frozen import Frozen, make_empty
from tests.screenshots import make_attached
from tests.tui.stage import WAIT_TIMEOUT, opened


def second(frozen: Frozen) -> Frozen:
    """Make another team in the same root, with one agent that asks a question."""
    other = make_empty(frozen.directory.root, "webshop")
    other.probe = frozen.probe
    other.hire("cashier", "code", "waiting", "waits for an answer", ago=64, pid=5001, waiting_for="q-1")
    other.asks("q-1", "question", "cashier", 64, {"question": "Round up?"})
    return other


@pytest.mark.long
async def test_the_footer_follows_the_dialog_and_then_the_page_again(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.can("n", "new")
        await stage.press("t")
        await stage.sees("━ Teams · 1 ━", " ⏎ open  + new team  Del delete ", " Esc stay")
        await stage.sees_not("n new")
        await stage.press("escape")
        await stage.can("n", "new")


@pytest.mark.long
async def test_the_list_says_what_waits_on_each_team(frozen: Frozen) -> None:
    second(frozen)
    async with opened(frozen, 80, 24) as stage:
        await stage.press("t")
        await stage.sees("Teams · 2", "✖1 ▲2 ◆1 ↻1", "here", "webshop  ▲1  1 of 1 alive")
        await stage.press("escape")
        await stage.sees("flaky-hunt")
        assert not isinstance(stage.app.screen, ModalScreen)


def _readings() -> int:
    return sum(each.name == "crewboard-watch" for each in threading.enumerate())


@pytest.mark.long
async def test_enter_turns_to_the_other_team_and_ends_the_old_reading(frozen: Frozen) -> None:
    other = second(frozen)
    async with opened(frozen, 80, 24, settings=Settings(notify="bell")) as stage:
        written: list[str] = []
        stage.app.outside._write = written.append
        old = stage.app.context
        await stage.press("3", "t", "j", "enter")
        await stage.sees("webshop", "cashier", "Round up?")
        assert "demo" not in stage.part("strip")
        assert "1 Board" in stage.part("heading")
        await stage.until(lambda: not old.reading._watcher._thread.is_alive(), "the end of the old reading")
        await stage.until(lambda: _readings() == 1, "the reading of this team alone")
        await stage.until(lambda: any("webshop" in each for each in written), "the title of the window")
        assert BELL not in written, "what waits there already is no news"
        other.hire("packer", "code", "idle", "", ago=5, pid=5002)
        await stage.sees("packer")
        await stage.press("!")
        await stage.sees("Round up?", "cashier ›")
        await stage.press("escape", "t", "k", "enter")
        await stage.sees("flaky-hunt")


@pytest.mark.long
async def test_a_reading_from_before_a_team_switch_is_ignored(frozen: Frozen) -> None:
    second(frozen)
    async with opened(frozen, 80, 24) as stage:
        left = stage.app.context
        await stage.press("t", "j", "enter")
        await stage.sees("webshop", "cashier")
        await stage.press("t", "k", "enter")
        await stage.sees("flaky-hunt")
        now, late = stage.app.context, replace(left.snapshot, problem="read long ago")
        before = now.snapshot
        stage.app.on_team_read(TeamRead(left.reading, late))
        assert now.snapshot is before
        stage.app.on_team_read(TeamRead(now.reading, late))
        assert now.snapshot is late
        # The reading that was stopped may end after the new one has begun.
        stage.app._publish(now.reading, before)
        stage.app._publish(left.reading, late)
        await stage.until(lambda: now.snapshot is before, "the reading of the team that is shown")


@pytest.mark.long
async def test_an_errand_of_the_old_team_is_finished_there(frozen: Frozen) -> None:
    second(frozen)
    async with opened(frozen, 80, 24) as stage:
        may_end, ended = threading.Event(), []

        def slow() -> str:
            may_end.wait(WAIT_TIMEOUT)
            return "it is done"

        stage.app.context.do("something slow", slow, lambda worked, _: ended.append(worked))
        await stage.press("t", "j", "enter")
        await stage.sees("cashier")
        may_end.set()
        await stage.sees("it is done")
        assert ended == [], "the screen that waited for it is gone"


@pytest.mark.long
async def test_the_only_team_offers_to_make_another(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.press("t")
        await stage.sees("+ new team")
        await stage.press("t")
        await stage.sees_not("Teams · 1")


@pytest.mark.long
async def test_what_was_begun_on_a_team_is_there_when_one_comes_back(frozen: Frozen) -> None:
    second(frozen)
    async with opened(frozen, 80, 24) as stage:
        await stage.press("m")
        await stage.sees("to parser")
        await stage.write("half a thought")
        await stage.press("escape", "t", "j", "enter")
        await stage.sees("cashier")
        await stage.press("m")
        await stage.sees("to cashier")
        assert "half a thought" not in stage.all
        await stage.press("escape", "t", "k", "enter")
        await stage.sees("flaky-hunt")
        await stage.press("m")
        await stage.sees("half a thought")


@pytest.mark.long
async def test_a_form_is_not_left_for_another_team(frozen: Frozen) -> None:
    second(frozen)
    async with opened(frozen, 80, 24) as stage:
        await stage.press("n", "tab", "t")
        await stage.sees("Hire an agent")
        assert not isinstance(stage.app.screen, ModalScreen)


# -------------------------------------------------------------------------------------------- created and deleted


async def test_a_team_is_created_and_shown(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.press("t", "+")
        await stage.sees("new team ›")
        await stage.write("demo")
        await stage.press("enter")
        await stage.sees("the team demo exists")
        await stage.write("-two")
        await stage.press("enter")
        await stage.sees("No agents hired yet")
        assert "demo-two" in stage.part("strip")
    assert (frozen.directory.root / ".crewboard" / "demo-two" / "config.json").exists()


@pytest.mark.long
async def test_deleting_a_team_says_what_is_lost_and_asks_for_its_name(frozen: Frozen) -> None:
    other = second(frozen)
    async with opened(frozen, 80, 24) as stage:
        await stage.press("t", "j", "delete")
        await stage.sees("delete webshop ›", "Ends 1 running agent · Type its name: the files stay")
        await stage.sees("deleted: 1 agent, 0 tasks, all mail and results")
        await stage.press("y", "enter")
        await stage.sees("type webshop, or webshop --purge")
        await stage.press("escape")
    assert other.directory.exists()


@pytest.mark.long
async def test_a_deleted_team_without_its_files_is_no_longer_shown(frozen: Frozen) -> None:
    empty = make_empty(frozen.directory.root, "webshop")
    async with opened(empty, 80, 24) as stage:
        await stage.sees("No agents hired yet")
        await stage.press("colon")
        await stage.write("delete team")
        await stage.sees("end this team's agents; asks for its name")
        await stage.until(lambda: all(each.is_finished for each in stage.app.workers), "the end of the search")
        await stage.press("enter")
        await stage.sees("delete webshop ›")
        await stage.write("webshop --purge")
        await stage.press("enter")
        await stage.sees("the team webshop and its files are gone", "parser")
    assert not empty.directory.path.exists()


async def test_who_only_looks_creates_and_deletes_no_team(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24, read_only=True) as stage:
        await stage.press("t")
        await stage.sees("Teams · 1")
        await stage.press("delete", "+")
        await stage.settles()
        assert "Teams · 1" in stage.all


async def test_who_approves_the_plans_of_an_attached_team_is_not_cut(tmp_path: Path) -> None:
    attached = make_attached(tmp_path)
    mirrors = leases.take(attached.directory.mirror_lock)
    assert mirrors is not None
    async with opened(attached, 80, 24) as stage:
        await stage.sees("Claude Code 2.1.330 · plans: you approve")
    os.close(mirrors.descriptor)


@pytest.mark.long
async def test_an_empty_board_names_a_team_of_claude_code_that_works_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = make_empty(tmp_path / "project")
    with process() as lead:
        replay = Replay(tmp_path / "claude", lead.pid)
        replay.copy("in_process")
        (roster,) = replay.config.glob("teams/*/config.json")
        roster.write_text(roster.read_text().replace("/home/u/project", str(empty.directory.root)))
        monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(replay.config))
        async with opened(empty, 100, 24) as stage:
            await stage.sees("t  shows Claude Code's team session-390111e4")
            await stage.press("t")
            await stage.sees("Teams · 2", "claude code  not attached  session-390111e4")
            await stage.press("enter")
            await stage.sees("team-lead", "alpha", "attached to session-390111e4 of Claude Code")
        lead.kill()


@pytest.mark.long
async def test_the_list_offers_and_attaches_a_team_of_claude_code(
    frozen: Frozen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with process() as lead:
        replay = Replay(tmp_path / "claude", lead.pid)
        replay.copy("in_process")
        (roster,) = replay.config.glob("teams/*/config.json")
        roster.write_text(roster.read_text().replace("/home/u/project", str(frozen.directory.root)))
        monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(replay.config))
        async with opened(frozen, 80, 24) as stage:
            await stage.press("t")
            await stage.sees("Teams · 2", "claude code  not attached  session-390111e4")
            await stage.press("j", "enter")
            await stage.sees("team-lead", "alpha", "attached to session-390111e4 of Claude Code")
            await stage.press("n")
            await stage.sees("Claude Code steers these agents")
        lead.kill()
