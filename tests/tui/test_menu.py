"""The menu of the selection: what each key does to it, or why it does nothing now."""

import pytest

from crewboard.protocol import requests
from crewboard.records.processes import Exit
from crewboard.store import agents
from crewboard_tui.settings import Settings
from crewboard_tui.views.palette import Menu
from crewboard_tui.widgets import line_list
from tests.frozen import NOW, Frozen
from tests.tui.stage import Stage, opened


async def open_menu(stage: Stage, *keys: str) -> dict[str, str]:
    """Open the menu after these keys; return its lines by their keys."""
    await stage.settles()
    await stage.press(*keys, ".")
    await stage.until(lambda: isinstance(stage.app.screen, Menu), "the menu")
    rows = stage.app.screen.query_one("#verbs", line_list.LineList).rows
    lines = ["".join(span.text for span in row.line) for row in rows]
    return {line.split()[0]: line for line in lines}


@pytest.mark.long
async def test_it_says_what_each_key_does_or_why_it_does_nothing(frozen: Frozen) -> None:
    async with opened(frozen, 120, 36) as stage:
        lines = await open_menu(stage, "j", "j", "j", "j", "j")
        await stage.sees("━━ api ━", "Esc back")
        assert "ends api and everything it started; x asks instead" in lines["X"]
        assert "– api is still running" in lines["r"]
        assert "– api is not waiting for your answer" in lines["a"]
        assert "– api is stopped by no limit" in lines["L"]
        # What works comes first.
        works = ["–" not in line for line in lines.values()]
        assert works == sorted(works, reverse=True)
        # It leaves the name of the selected agent, and the lines that are never hidden.
        assert [line for line in stage.text if line.startswith("▌● api")]
        assert stage.text[-2].startswith(" ✖ parser died")


@pytest.mark.long
@pytest.mark.parametrize(
    "way",
    ["letter", pytest.param("enter", marks=pytest.mark.long), pytest.param("click", marks=pytest.mark.long)],
)
async def test_a_letter_enter_or_a_click_does_it(frozen: Frozen, way: str) -> None:
    async with opened(frozen, 120, 36) as stage:
        lines = await open_menu(stage, "j", "j", "j", "j", "j")
        at = list(lines).index("N")
        if way == "letter":
            await stage.press("N")
        elif way == "enter":
            await stage.press(*["j"] * at, "enter")
        else:
            await stage.pilot.click("#verbs", offset=(4, at + 1))
        await stage.sees("Hire an agent", "api2")


async def test_what_does_not_work_says_why_when_it_is_chosen(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await open_menu(stage)
        await stage.press("x")
        await stage.sees("stop: parser is not running")


@pytest.mark.long
async def test_the_menu_and_its_letter_may_come_together(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.settles()
        await stage.send_bytes(".N")
        await stage.sees("Hire an agent")


@pytest.mark.parametrize("key", ["escape", "."])
async def test_it_closes_without_doing_anything(frozen: Frozen, key: str) -> None:
    async with opened(frozen, 80, 24) as stage:
        await open_menu(stage)
        await stage.press(key)
        await stage.until(lambda: not isinstance(stage.app.screen, Menu), "the Board")
        await stage.sees("⏎ open")


async def test_a_click_outside_closes_it(frozen: Frozen) -> None:
    async with opened(frozen, 120, 36) as stage:
        await open_menu(stage)
        await stage.pilot.click(offset=(1, 30))
        await stage.until(lambda: not isinstance(stage.app.screen, Menu), "the Board")


async def test_it_acts_on_nothing_that_came_under_the_cursor(frozen: Frozen, monkeypatch: pytest.MonkeyPatch) -> None:
    # However long ago it came there.
    monkeypatch.setattr(line_list, "BLIND_FOR", 0.001)
    async with opened(frozen, 80, 24) as stage:
        # The last row: its agent is removed, and the cursor comes to stand on another one.
        await open_menu(stage, "G")
        view = stage.app.context.snapshot.view
        last = stage.app.screen_stack[0].query_one("#roster", line_list.LineList).selected
        assert last is not None
        config = frozen.team.config
        config.members = [member for member in config.members if member.name != last]
        frozen.directory.config.save(config)
        stage.app.context.reading.poke()
        await stage.until(lambda: stage.app.context.snapshot.view is not view, "the removal is read")
        await stage.until(lambda: last not in stage.app.context.snapshot.view.names, "the agent is gone")
        await stage.press("I")
        await stage.sees("rename: not taken: what is under the cursor has only just come there")


@pytest.mark.long
async def test_what_ended_meanwhile_is_not_paused(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await open_menu(stage, "j", "j", "j", "j", "j")
        del frozen.probe.held["api"]
        agents.write_exit(frozen.directory.agent("api"), Exit(run=1, signal=11, reason="died", at=NOW, buried=True))
        stage.app.context.reading.poke()
        await stage.until(lambda: not stage.app.context.snapshot.view.agent("api").alive, "its end is read")  # type: ignore[union-attr]
        await stage.press("p")
        await stage.sees("pause: api is not running")


@pytest.mark.long
async def test_tasks_and_needs_have_a_menu_too(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        lines = await open_menu(stage, "3")
        await stage.sees("━━ #7 ━")
        assert "– not while it is in progress" in lines["o"]
        await stage.press("escape")
        lines = await open_menu(stage, "4")
        await stage.sees("━━ parser ━")
        assert "resume it with its memory" in lines["r"]
        assert "o" not in lines, "no task is selected"
        await stage.press("escape")


@pytest.mark.long
async def test_a_changed_key_is_the_letter_of_the_menu(frozen: Frozen) -> None:
    settings = Settings(keys={"agent.clone": "Y"})
    async with opened(frozen, 80, 24, settings=settings) as stage:
        lines = await open_menu(stage)
        assert "clone" in lines["Y"]
        await stage.press("Y")
        await stage.sees("Hire an agent")


async def test_the_right_button_opens_it_on_its_row(frozen: Frozen) -> None:
    async with opened(frozen, 120, 36) as stage:
        await stage.settles()
        await stage.pilot.click("#roster", offset=(4, 3), button=3)
        await stage.sees("━━ docs ━")


@pytest.mark.long
@pytest.mark.parametrize("letter", ["a", "enter"])
async def test_it_acts_on_no_other_need_of_the_same_agent(
    frozen: Frozen, monkeypatch: pytest.MonkeyPatch, letter: str
) -> None:
    monkeypatch.setattr(line_list, "BLIND_FOR", 0.001)
    for ident, ago in (("perm-1", 9), ("perm-2", 8)):
        frozen.asks(ident, "permission", "release", ago, {"tool": "bash", "input": {"command": f"echo {ident}"}})
    async with opened(frozen, 80, 24) as stage:
        await stage.press("4")
        needs = stage.app.screen.query_one("#needs", line_list.LineList)
        await stage.until(lambda: "permission:release:perm-1" in needs.keys, "the requests are listed")
        at = list(needs.keys).index("permission:release:perm-1")
        await open_menu(stage, *["j"] * at)
        assert needs.selected == "permission:release:perm-1"
        requests.close(frozen.directory, "perm-1", "cancelled", "system", NOW)
        stage.app.context.reading.poke()
        await stage.until(lambda: needs.selected == "permission:release:perm-2", "the other one is under the cursor")
        await stage.press(letter)
        await stage.sees("not taken: what is under the cursor has only just come there")
    left = requests.load(frozen.directory, "perm-2")
    assert left is not None
    assert left.status == "pending"
