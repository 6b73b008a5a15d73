"""Plans and questions: shown in full, answered once, and only as they were shown."""

import math
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from crewboard import TeamView
from crewboard.commands import answers as decisions
from crewboard.commands import settings
from crewboard.commands.context import Team
from crewboard.errors import StorageError
from crewboard.protocol import requests
from crewboard.readmodel.file_activity import FileAccess, FileActivity
from crewboard.readmodel.reader import TeamReader
from crewboard.records.agents import Deviations, Engine, Terms, TermsInForce
from crewboard.records.base import JsonValue
from crewboard.records.requests import Request, RequestType, notes_in, parse_note, versions_after, versions_before
from crewboard.store import agents, mailbox, roster, tasks
from crewboard.worktrees import changes as worktree_changes
from crewboard_tui import app as dashboard
from crewboard_tui.actions.requests import RequestActions, outcome_of
from crewboard_tui.dashboard import unsent
from crewboard_tui.queries import Readers, TouchedFiles
from crewboard_tui.render.lines import plain, width_of
from crewboard_tui.settings import Settings
from crewboard_tui.views.base import BaseScreen
from crewboard_tui.views.message_list import Entry, story_lines
from crewboard_tui.views.requests import base as request_page
from crewboard_tui.views.requests import plan_screen
from crewboard_tui.views.requests.base import plan_alone, plan_impact_lines, plan_text
from crewboard_tui.views.roster import Roster
from crewboard_tui.views.rows import permission_text, review_text
from crewboard_tui.widgets import reading
from crewboard_tui.widgets.line_view import LineView
from crewboard_tui.widgets.reading import Passage
from tests.frozen import NOW, PLAN, Frozen
from tests.matrix import default
from tests.tui.stage import WAIT_TIMEOUT, Stage, opened

pytestmark = pytest.mark.usefixtures("in_time")


def _request(frozen: Frozen, ident: str) -> Request:
    request = requests.load(frozen.directory, ident)
    assert request is not None
    return request


def _is(frozen: Frozen, ident: str, status: str) -> Callable[[], bool]:
    return lambda: _request(frozen, ident).status == status


async def _open_plan(stage: Stage) -> None:
    await stage.press("j", "a")
    await stage.sees("PLAN v2")
    await stage.can("a", "approve")


async def _painted(stage: Stage) -> None:
    """Wait until what a key has changed is painted, as a person does: what a page scrolls past unseen is not read."""
    await stage.until(lambda: not stage.app.screen._dirty_widgets, "a paint")


async def _read_to_the_end(stage: Stage) -> None:
    await stage.press("g")
    for _ in range(len(stage.app.screen.query_one("#plan", LineView).lines)):
        await _painted(stage)
        if "100% read" in stage.all:
            break
        await stage.press("pagedown")
    await stage.sees("100% read")
    await _painted(stage)
    await stage.press("g")


_LONG_PLAN = "\n".join(f"{number}. change file {number}.py" for number in range(1, 61))


async def _press_until(stage: Stage, key: str, condition: Callable[[], bool]) -> int:
    """Press a key until a condition holds that only the last press makes true; return how often it was pressed."""
    for number in range(1, 30):
        await stage.press(key)
        await _painted(stage)
        if "once all was shown" not in stage.all:
            await stage.until(condition, "what the last press does")
            return number
    raise AssertionError(f"{key} was pressed thirty times")


_MARKED, _BLANK = "<U+00A0>", "\N{NO-BREAK SPACE}"


def test_a_blank_that_is_none_for_a_shell_is_marked_in_what_runs() -> None:
    odd = f"rm{_BLANK}x"
    call: JsonValue = {"tool": "bash", "input": {"command": odd, "env": odd, odd: "y"}, "summary": odd, "scope": odd}
    edit: JsonValue = {
        "tool": "write_file",
        "input": {"path": odd},
        "diff": f"--- a/{odd}\n+++ b/{odd}\n@@ -0,0 +1 @@\n+{odd}",
    }
    tool: JsonValue = {"tool": "mcp__own__do", "input": {"a": odd}, "summary": odd}
    review: JsonValue = {"summary": "done", "diff": f"diff --git a/x.py b/x.py\n@@ -0,0 +1 @@\n+{odd}"}
    plan: JsonValue = {"plan": "Bientôt", "files": [odd], "commands": [odd, f"{_BLANK}ls"], "risk": "peu"}
    shown = {
        name: "\n".join(plain(line) for line in lines)
        for name, lines in {
            "command": permission_text(_asked("permission", call), 200),
            "write": permission_text(_asked("permission", edit), 200),
            "tool": permission_text(_asked("permission", tool), 200),
            "review": review_text(_asked("task_review", review), 200),
            "plan": [x for each in plan_text(_asked("plan_approval", plan), None, NOW, 200) for x in each.lines],
            "facts": plan_impact_lines(_asked("plan_approval", plan), None, NOW),
        }.items()
    }
    assert {name: text.count(_MARKED) for name, text in shown.items()} == {
        "command": 3, "write": 4, "tool": 2, "review": 1, "plan": 3, "facts": 3,
    }  # fmt: skip
    assert not [name for name, text in shown.items() if _BLANK in text or "rm x" in text]


def test_a_blank_in_prose_stays_as_it_is() -> None:
    odd = f"bientôt{_BLANK}! 東\N{IDEOGRAPHIC SPACE}京"
    plan: JsonValue = {"plan": odd, "risk": odd}
    edit: JsonValue = {
        "tool": "write_file",
        "input": {"path": "LISEZ.md"},
        "diff": f"--- a/LISEZ.md\n+++ b/LISEZ.md\n+{odd}",
    }
    lines = [*permission_text(_asked("permission", edit), 200)]
    lines += [x for each in plan_text(_asked("plan_approval", plan), None, NOW, 200) for x in each.lines]
    text = "\n".join(plain(line) for line in lines)
    assert "<U+" not in text
    assert text.count("京") == 3


def _asked(kind: RequestType, payload: JsonValue) -> Request:
    assert isinstance(payload, dict)
    return Request(id="r", type=kind, from_="api", to="operator", payload=payload)


@pytest.mark.long
async def test_lines_that_a_jump_passed_are_shown_before_a_yes(frozen: Frozen) -> None:
    frozen.asks("req-1", "plan_approval", "api", 10, {"plan": _LONG_PLAN})
    async with opened(frozen, 80, 24) as stage:
        await stage.app.open_need("plan:api:req-1")
        await stage.can("a", "approve")
        await _painted(stage)
        await stage.press("G")
        await stage.sees("60. change file 60.py", "% read")
        await _painted(stage)
        await stage.sees_not("100% read")
        await stage.press("a")
        await stage.sees("not shown before: lines 16–42 of the plan; a approves once all was shown")
        # The first lines that were skipped follow those of the first screen.
        await stage.sees("16. change file 16.py")
        await stage.sees_not("60. change")
        await _painted(stage)
        assert _request(frozen, "req-1").status == "pending"
        # The rest takes one screen, and then comes the press that approves.
        assert await _press_until(stage, "a", _is(frozen, "req-1", "approved")) == 2


@pytest.mark.parametrize("moment", [60.0, 0.0])
async def test_what_a_key_has_shown_stays_for_a_moment(
    frozen: Frozen, monkeypatch: pytest.MonkeyPatch, moment: float
) -> None:
    monkeypatch.setattr(reading, "TO_LOOK", moment)
    frozen.asks("req-1", "plan_approval", "api", 10, {"plan": "\n".join(_LONG_PLAN.split("\n")[:24])})
    async with opened(frozen, 80, 24) as stage:
        await stage.app.open_need("plan:api:req-1")
        await stage.can("a", "approve")
        await stage.press("a")
        await stage.sees("100% read")
        await _painted(stage)
        await stage.press("a")
        if moment:
            await stage.sees("not taken: these lines had only just appeared")
            assert _request(frozen, "req-1").status == "pending"
        else:
            await stage.until(_is(frozen, "req-1", "approved"), "the approval")


@pytest.mark.long
async def test_a_line_that_no_scrolling_shows_needs_a_second_press(
    frozen: Frozen, monkeypatch: pytest.MonkeyPatch
) -> None:
    frozen.asks("req-1", "plan_approval", "api", 10, {"plan": _LONG_PLAN})
    # As of a pane whose last lines are below the edge of the screen.
    in_sight = vars(LineView)["in_sight"].fget
    cut = property(lambda view: range(in_sight(view).start, min(in_sight(view).stop, 20)))
    async with opened(frozen, 80, 24) as stage:
        await stage.app.open_need("plan:api:req-1")
        await stage.can("a", "approve")
        monkeypatch.setattr(LineView, "in_sight", cut)
        presses = 0
        while "a again within" not in stage.all:
            await stage.press("a")
            await _painted(stage)
            presses += 1
            assert presses < 10
        await stage.press("a")
        await stage.until(_is(frozen, "req-1", "approved"), "the approval")


@pytest.mark.long
async def test_a_line_that_is_unread_again_each_time_needs_a_second_press(
    frozen: Frozen, monkeypatch: pytest.MonkeyPatch
) -> None:
    frozen.asks("req-1", "plan_approval", "api", 10, {"plan": _LONG_PLAN})
    async with opened(frozen, 80, 24) as stage:
        await stage.app.open_need("plan:api:req-1")
        await stage.can("a", "approve")
        # As of a line with an age that ticks.
        monkeypatch.setattr(reading.ReadText, "unread", property(lambda _: [30]))
        for _ in range(3):
            await stage.press("a")
            await stage.sees("not shown before: line 28 of the plan; a approves once all was shown")
        await stage.press("a")
        await stage.sees("not shown before: line 28 of the plan; a again within")
        await stage.press("a")
        await stage.until(_is(frozen, "req-1", "approved"), "the approval")


@pytest.mark.long
async def test_each_press_shows_lines_that_were_not_shown(frozen: Frozen) -> None:
    frozen.asks("req-1", "plan_approval", "api", 10, {"plan": _LONG_PLAN * 3})
    async with opened(frozen, 80, 24) as stage:
        await stage.app.open_need("plan:api:req-1")
        await stage.can("a", "approve")
        tops = []
        for _ in range(3):
            await stage.press("a")
            await _painted(stage)
            tops.append(stage.app.screen.query_one("#plan", LineView).scroll_offset.y)
        assert 0 < tops[0] < tops[1] < tops[2], "each press shows lines that were not shown"
        assert _request(frozen, "req-1").status == "pending"


@pytest.mark.long
async def test_what_was_read_stays_read_at_another_width(frozen: Frozen) -> None:
    words = " ".join(f"word{number}" for number in range(400))
    frozen.asks("req-1", "plan_approval", "api", 10, {"plan": words})
    async with opened(frozen, 80, 24) as stage:
        await stage.app.open_need("plan:api:req-1")
        await stage.can("a", "approve")
        await _painted(stage)
        await stage.press("pagedown")
        await _painted(stage)
        shown = _percent_read(stage)
        assert 20 < shown < 80
        # Back to the top, so that no other lines come into sight.
        await stage.press("g")
        await stage.pilot.resize_terminal(60, 24)
        await stage.settles()
        # Of a line that is broken at another place, a part may be unread.
        assert shown - 3 <= _percent_read(stage) <= shown
        await stage.pilot.resize_terminal(80, 24)
        await _read_to_the_end(stage)
        await stage.pilot.resize_terminal(50, 20)
        await stage.settles()
        await stage.sees("100% read")
        # The page of the same request shows it as read again; that of its revision does not.
        await stage.press("escape")
        await stage.app.open_need("plan:api:req-1")
        await stage.sees("100% read")
        frozen.asks("req-2", "plan_approval", "api", 5, {"plan": f"{words} more"}, supersedes="req-1")
        await stage.sees("replaced by")
        await stage.press("]")
        await stage.sees("PLAN v2", "% read")
        await stage.sees_not("100% read")


async def test_what_stood_there_before_all_was_known_is_unread(frozen: Frozen, monkeypatch: pytest.MonkeyPatch) -> None:
    read, is_known = TouchedFiles.read, threading.Event()

    def wait(query: TouchedFiles, readers: Readers, view: TeamView) -> FileActivity:
        assert is_known.wait(WAIT_TIMEOUT)
        return read(query, readers, view)

    monkeypatch.setattr(TouchedFiles, "read", wait)
    files: list[JsonValue] = ["src/a-long-name/x_one.py", "src/a-long-name/x_two.py"]
    frozen.asks("req-1", "plan_approval", "api", 10, {"plan": _LONG_PLAN, "files": files})
    try:
        async with opened(frozen, 80, 24) as stage:
            await stage.app.open_need("plan:api:req-1")
            # Who else has its files open is not known yet, so the fact has a line less, and one more is below it.
            await stage.sees("14. change file", "reading …")
            assert "not open elsewhere" not in stage.all
            is_known.set()
            await stage.sees("not open elsewhere")
            await stage.settles()
            assert "14. change file" not in stage.all
            screen = stage.app.screen
            assert isinstance(screen, BaseScreen)
            pane = screen.query_one("#plan", LineView)
            assert [at for at in screen.texts[0].unread if plain(pane.lines[at]).strip()] == [
                at for at in range(pane.in_sight.stop, len(pane.lines)) if plain(pane.lines[at]).strip()
            ]
    finally:
        is_known.set()


def _impact(count: int) -> dict[str, JsonValue]:
    return {"plan": _LONG_PLAN, "files": [f"src/part-{number}.py" for number in range(count)], "risk": "it may fail"}


@pytest.mark.long
async def test_the_facts_of_a_plan_stand_beside_it(frozen: Frozen) -> None:
    frozen.asks("req-1", "plan_approval", "api", 10, _impact(9))
    async with opened(frozen, 110, 36) as stage:
        await stage.app.open_need("plan:api:req-1")
        await stage.sees(
            "── Facts ──", "│ WAITING   10s", "src/part-8.py", "it may fail", "REQ req-1", "34 lines below"
        )
        await stage.sees("SO FAR    14 model calls · context 44%", "A YES     it may write and run")
        # It says what the chosen terms leave: no bash, then each write with a yes.
        await stage.can("o", "terms")
        await stage.press("o")
        await stage.can("Space", "yes/no")
        await stage.press("j", "j", "j", "space", "o")
        await stage.sees("TERMS     no bash", "A YES     it may write until its result")
        await stage.sees_not("each time")
        await stage.press("o")
        await stage.can("Space", "yes/no")
        await stage.press("g", "space", "o")
        await stage.sees("TERMS     ask · no bash", "result, each time")
        await stage.press("o")
        await stage.can("Space", "yes/no")
        await stage.press("g", "space", "j", "j", "j", "space", "o")
        await stage.sees("A YES     it may write and run")
        await stage.sees_not("TERMS")
        assert any("1. change file 1.py" in line and "FROM      api" in line for line in stage.text)
        await stage.press("G")
        await stage.sees("end of the plan", "FROM      api")
        # With fewer columns, and alone on the screen, the text begins with them.
        for make_one_column in (stage.pilot.resize_terminal(109, 36), stage.press("z")):
            await make_one_column
            await stage.press("g")
            await stage.sees("1. change file 1.py", "FILES     9")
            assert not any("change file" in line and "FROM api" in line for line in stage.text)
            await stage.pilot.resize_terminal(110, 36)


@pytest.mark.long
async def test_facts_that_do_not_fit_beside_a_plan_stand_above_it(frozen: Frozen) -> None:
    frozen.asks("req-1", "plan_approval", "api", 10, _impact(40))
    async with opened(frozen, 120, 36) as stage:
        await stage.app.open_need("plan:api:req-1")
        await stage.sees("FILES     40", "1. change file 1.py")
        assert not any("change file" in line and "FROM api" in line for line in stage.text)
        await stage.pilot.resize_terminal(120, 70)
        await stage.sees("src/part-39.py", "REQ req-1")
        assert any("1. change file 1.py" in line and "FROM      api" in line for line in stage.text)


async def test_no_press_approves_while_the_facts_beside_a_plan_are_unread(
    frozen: Frozen, monkeypatch: pytest.MonkeyPatch
) -> None:
    frozen.asks("req-1", "plan_approval", "api", 10, {"plan": "Do it.", "risk": "it may fail"})
    in_sight = vars(LineView)["in_sight"].fget
    # As of a pane that something hides.
    hidden = property(lambda view: range(0) if view.id == "impact" else in_sight(view))
    monkeypatch.setattr(LineView, "in_sight", hidden)
    async with opened(frozen, 120, 36) as stage:
        await stage.app.open_need("plan:api:req-1")
        await stage.can("a", "approve")
        await stage.sees("Do it.")
        for _ in range(3):
            await stage.press("a")
            await stage.sees("not shown before")
            await _painted(stage)
        assert _request(frozen, "req-1").status == "pending"
        # Alone, the text has the facts.
        await stage.press("z")
        await stage.sees("RISK      it may fail", "100% read")
        await _painted(stage)
        await stage.press("a")
        await stage.until(_is(frozen, "req-1", "approved"), "the approval")


async def test_what_is_not_painted_yet_is_unread(frozen: Frozen) -> None:
    frozen.asks("req-1", "plan_approval", "api", 10, {"plan": _LONG_PLAN})
    async with opened(frozen, 80, 24) as stage:
        await stage.app.open_need("plan:api:req-1")
        await stage.can("a", "approve")
        screen = stage.app.screen
        assert isinstance(screen, BaseScreen)
        pane = screen.query_one("#plan", LineView)
        last = len(pane.lines) - 1
        with stage.app.batch_update():
            pane.scroll_to(y=last, animate=False, force=True)
            assert last in pane.in_sight
            screen._on_timer_update()
            assert last in screen.texts[0].unread
        await stage.settles()
        assert last not in screen.texts[0].unread


def _percent_read(stage: Stage) -> int:
    found = re.search(r"(\d+)% read", stage.all)
    assert found is not None
    return int(found[1])


@pytest.mark.parametrize("width", [20, 33, 76])
def test_no_line_of_a_request_is_cut_at_the_right_edge(width: int) -> None:
    long = "src/" + "a long name/" * 30 + "x.py"
    payload: dict[str, JsonValue] = {
        "tool": "mcp__server__" + "tool" * 30, "input": {"old_text": "a", "x" * 90: "y" * 90}, "collision": long,
        "diff": f"+{long}", "plan": f"# {long}\n\n- {long}\n\n```\n{long}\n```\n", "files": [long],
        "commands": [long], "risk": long, "summary": long, "file": long,
    }  # fmt: skip
    request = Request(id="r", type="permission", from_="a", to="operator", payload=payload, created_at=NOW, sha256="s")
    activity = FileActivity([FileAccess(NOW - 9, "b" * 30, long, "edit")])
    lines = [line for part in plan_text(request, activity, NOW, width) for line in part.lines]
    lines += [*permission_text(request, width), *review_text(request, width)]
    assert max(map(width_of, lines)) <= width


@pytest.mark.long
async def test_a_plan_in_sight_as_a_whole_stays_read_beside_feedback(frozen: Frozen) -> None:
    frozen.asks("req-1", "plan_approval", "api", 10, {"plan": "\n".join(f"- item {number}" for number in range(15))})
    async with opened(frozen, 80, 24) as stage:
        await stage.app.open_need("plan:api:req-1")
        await stage.sees("100% read")
        await stage.can("a", "approve")
        await stage.press("tab")
        await stage.write("go")
        await stage.press("escape")
        assert "item 14" not in stage.all
        await stage.press("a")
        await stage.until(_is(frozen, "req-1", "approved"), "the approval")


@pytest.mark.long
async def test_a_comparison_read_to_its_end_is_not_the_plan(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await _open_plan(stage)
        await stage.press("=")
        await stage.sees("What changed")
        for _ in range(9):
            await stage.press("pagedown")
            await _painted(stage)
        await stage.sees("plan ")
        assert _percent_read(stage) < 100
        await stage.press("a")
        await stage.sees("not shown before: lines", "a approves once all was shown", "## Not part of this")
        await stage.sees_not("What changed")


@pytest.mark.long
@pytest.mark.parametrize("key", ["a", pytest.param("A", marks=pytest.mark.long)])
async def test_a_command_read_in_part_is_shown_before_a_yes(frozen: Frozen, key: str) -> None:
    command = "\n".join(f"echo {number}" for number in range(60))
    payload: dict[str, JsonValue] = {"tool": "bash", "input": {"command": command}, "summary": "echo", "scope": "echo"}
    frozen.asks("perm-1", "permission", "release", 22, payload)
    async with opened(frozen, 80, 24) as stage:
        await stage.app.open_need("permission:release:perm-1")
        await stage.can("a", "approve")
        await stage.press(key)
        await stage.sees("not shown before: lines", f"{key} approves once all was shown")
        await _painted(stage)
        assert await _press_until(stage, key, _is(frozen, "perm-1", "approved")) > 1


@pytest.mark.long
async def test_the_page_shows_who_asks_what_it_touches_and_the_plan(frozen: Frozen) -> None:
    frozen.asks("question-0bda2e498e58", "question", "api", 10, {"question": "tabs?"})
    async with opened(frozen, 80, 24) as stage:
        await _open_plan(stage)
        await stage.sees("FROM auth-plan (plan, pid 4412)", "WAITING 4m", "REQ req-004281")
        await stage.sees("TASK #7 rotate JWT keys", "RISK      schema change", "alembic upgrade head · pytest")
        await stage.sees("# Rotate the JWT signing keys", "item 2 of 6")
        await stage.app.open_need("question:api:question-0bda2e498e58")
        await stage.sees("REQ question-0bda2e498e58")


@pytest.mark.long
async def test_the_page_names_the_engine_that_wrote_the_plan(frozen: Frozen) -> None:
    agent = frozen.directory.agent("auth-plan")
    spec = agent.spec.load()
    assert spec is not None
    engine = Engine(name="claude", command=["claude-agent-acp"])
    agents.change_spec(agent, lambda _: spec.replace(engine=engine))
    async with opened(frozen, 80, 24) as stage:
        await _open_plan(stage)
        await stage.sees("FROM auth-plan (plan, engine claude, pid 4412)")


@pytest.mark.long
@pytest.mark.parametrize("size", [(80, 24), pytest.param((120, 36), marks=pytest.mark.long)])
async def test_a_risk_longer_than_a_line_is_whole_above_the_plan(frozen: Frozen, size: tuple[int, int]) -> None:
    risk = "Low. A file such as `draft.md`, whose name is no number, fails loudly where it sorted to the end before."
    frozen.asks("req-1", "plan_approval", "api", 10, {"plan": "# Sort by number", "risk": risk})
    async with opened(frozen, *size) as stage:
        await stage.app.open_need("plan:api:req-1")
        await stage.sees("fails loudly", "to the end before.", "# Sort by number")


@pytest.mark.long
async def test_a_low_screen_cuts_the_risk_and_shows_it_below_the_plan(frozen: Frozen) -> None:
    risk = "Low. A file such as `draft.md`, whose name is no number, fails loudly where it sorted to the end before."
    frozen.asks("req-1", "plan_approval", "api", 10, {"plan": "# Sort by number", "risk": risk})
    async with opened(frozen, 60, 16) as stage:
        await stage.app.open_need("plan:api:req-1")
        await stage.sees("RISK      Low. A file", "…", "# Sort")
        await stage.press("G")
        await stage.sees("sorted to the end", "before.")


@pytest.mark.long
async def test_the_plan_scrolls_and_says_how_much_was_read(frozen: Frozen) -> None:
    async with opened(frozen, 80, 16) as stage:
        await _open_plan(stage)
        await stage.sees_not("100% read")
        await stage.press("G")
        await stage.sees("tests/test_keyring.py")
        await stage.sees_not("100% read")
        await _read_to_the_end(stage)


async def test_a_plan_read_to_its_end_is_answered_once_by_one_press(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await _open_plan(stage)
        await _read_to_the_end(stage)
        await stage.press("a")
        await stage.until(_is(frozen, "req-004281", "approved"), "the approval")
        await stage.sees("approved: auth-plan continues", "Peek · ")
    answers = [m for m in mailbox.read(frozen.directory, "auth-plan").messages if m.type == "plan_approval_response"]
    assert [answer.metadata["approve"] for answer in answers] == [True]


@pytest.mark.long
async def test_keys_are_dead_for_a_moment_after_the_page_opens(frozen: Frozen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_page, "BLIND_FOR", 3600)
    async with opened(frozen) as stage:
        await stage.press("j", "a")
        await stage.sees("PLAN v2")
        await stage.press("a", "a")
        assert "a approve" not in stage.offered
        assert _request(frozen, "req-004281").status == "pending"
        stage.app.screen.page.settle()  # type: ignore[attr-defined]
        await _read_to_the_end(stage)
        await stage.press("a")
        await stage.until(_is(frozen, "req-004281", "approved"), "the approval")


class _Clock:
    """Timers of a screen that fire when a test says how much time has passed."""

    def __init__(self) -> None:
        self._now = 0.0
        self._due: dict[_Clock.Started, tuple[float, Callable[[], None]]] = {}

    class Started:
        def __init__(self, clock: "_Clock") -> None:
            self._clock = clock

        def stop(self) -> None:
            self._clock._due.pop(self, None)

    def set_timer(self, seconds: float, callback: Callable[[], None]) -> Started:
        self._due[started := self.Started(self)] = (self._now + seconds, callback)
        return started

    def advance(self, seconds: float) -> None:
        self._now += seconds
        for started, (at, callback) in list(self._due.items()):
            if at <= self._now:
                del self._due[started]
                callback()


@pytest.mark.long
async def test_keys_are_dead_for_a_whole_moment_after_the_last_change(
    frozen: Frozen, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, part = _Clock(), 0.6 * request_page.BLIND_FOR
    async with opened(frozen) as stage:
        await _open_plan(stage)
        page = stage.app.screen.page  # type: ignore[attr-defined]
        monkeypatch.setattr(stage.app.screen, "set_timer", clock.set_timer)
        page.pause()
        clock.advance(part)
        page.pause()
        clock.advance(part)
        assert not page.settled, "the page changed less than a moment ago"
        clock.advance(part)
        assert page.settled


@pytest.mark.long
@pytest.mark.parametrize("key", [pytest.param("a", marks=pytest.mark.long), "f6"])
async def test_an_answer_that_comes_too_soon_says_so_whatever_its_key(
    frozen: Frozen, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setattr(request_page, "BLIND_FOR", 3600)
    async with opened(frozen, settings=Settings(keys={"request.approve": key} if key != "a" else {})) as stage:
        await stage.press("j", "a")
        await stage.sees("PLAN v2")
        await stage.press(key)
        await stage.sees("approve: not taken: the page had only just appeared")
        assert _request(frozen, "req-004281").status == "pending"
        stage.app.context.drafts["req-004281 lines 1-1"] = "why?"
        await stage.press("ctrl+s")
        await stage.sees("send back: not taken: the page had only just appeared")


@pytest.mark.long
async def test_denying_asks_why_and_sends_it(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await _open_plan(stage)
        await stage.press("d")
        await stage.sees("Why not?")
        await stage.press("enter")
        await stage.sees("say why")
        await stage.write("keep the alias")
        await stage.press("enter")
        await stage.until(_is(frozen, "req-004281", "rejected"), "the refusal")
        assert _request(frozen, "req-004281").feedback == "keep the alias"


@pytest.mark.long
async def test_feedback_goes_along_with_a_yes(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await _open_plan(stage)
        await _read_to_the_end(stage)
        await stage.press("tab")
        await stage.write("mind the cache")
        await stage.sees("⏎ when done, then a sends it with your approval")
        await stage.press("escape")
        await stage.can("a", "approve")
        await stage.press("a")
        await stage.until(_is(frozen, "req-004281", "approved"), "the approval")
        assert _request(frozen, "req-004281").feedback == "mind the cache"


@pytest.mark.long
async def test_feedback_is_ended_by_the_key_that_its_title_names(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24, settings=Settings(keys={"draft.send": "f5"})) as stage:
        await _open_plan(stage)
        await _read_to_the_end(stage)
        await stage.press("tab", "g", "o")
        await stage.sees("f5 when done, then a sends it with your approval")
        await stage.press("f5", "a")
        await stage.until(_is(frozen, "req-004281", "approved"), "the approval")
        assert _request(frozen, "req-004281").feedback == "go"


@pytest.mark.long
async def test_the_empty_feedback_field_takes_one_line_until_used(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await _open_plan(stage)
        await stage.settles()
        plan = stage.app.screen.query_one("#plan")
        high = plan.size.height
        await stage.sees(" Feedback · Tab comments on your approval")
        await stage.press("tab")
        await stage.until(lambda: plan.size.height < high, "room for the box")
        await stage.sees("━ Feedback")
        await stage.press("n", "escape")
        await stage.sees("─ Feedback · a sends it with your approval")
        await stage.press("tab", "backspace", "escape")
        await stage.until(lambda: plan.size.height == high, "the plan as high as before")


@pytest.mark.long
async def test_what_was_written_for_a_no_does_not_go_along_with_a_yes(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await _open_plan(stage)
        await stage.press("d")
        await stage.write("too risky")
        await stage.press("escape")
        await stage.sees("too risky", "Kept for a refusal · d continues · a omits it")
        await stage.press("escape")
        await stage.sees("Peek · auth-plan")
        await stage.press("a")
        await stage.sees("too risky", "Kept for a refusal")
        await stage.can("a", "approve")
        await _read_to_the_end(stage)
        await stage.press("a")
        await stage.sees("your words for a no were not sent")
        assert _request(frozen, "req-004281").feedback is None
        assert stage.app.context.drafts == {"req-004281 no": "too risky"}, "leaving says what was not sent"


@pytest.mark.long
async def test_an_approval_while_the_database_is_away_says_what_to_do(
    frozen: Frozen, monkeypatch: pytest.MonkeyPatch
) -> None:
    def approve(*_: object, **__: object) -> str:
        raise StorageError("the store postgresql://crew@db failed: connection is bad: connection refused", away=True)

    monkeypatch.setattr(decisions, "approve", approve)
    async with opened(frozen, 80, 24) as stage:
        await _open_plan(stage)
        await _read_to_the_end(stage)
        await stage.press("a")
        await stage.sees("not approved: the database is away; press a again when it is back")
        assert "postgresql" not in stage.all
        await stage.sees("PLAN v2")
        stage.app.context.do("pausing api", approve)
        await stage.sees("pausing api failed: the database is away; try again when it is back")


@pytest.mark.long
async def test_approval_feedback_and_rejection_reason_are_kept_apart(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await _open_plan(stage)
        await _read_to_the_end(stage)
        await stage.press("d")
        await stage.write("half a reason")
        await stage.press("escape", "tab")
        await stage.sees("Feedback · sent with your approval · Esc d shows the kept refusal")
        assert "half a reason" not in stage.all
        await stage.write("with love")
        await stage.press("escape", "d")
        await stage.sees("Why not?", "half a reason")
        assert "with love" not in stage.all
        await stage.press("escape")
        await stage.sees("with love", "a sends it with your approval · d shows the kept refusal")
        await stage.press("a")
        await stage.until(_is(frozen, "req-004281", "approved"), "the approval")
        await stage.sees("your words for a no were not sent")
        assert _request(frozen, "req-004281").feedback == "with love"
        assert stage.app.context.drafts == {"req-004281 no": "half a reason"}


@pytest.mark.long
@pytest.mark.parametrize(
    ("key", "says"),
    [("d", "denied: auth-plan reads why"), pytest.param("B", "asked back: auth-plan", marks=pytest.mark.long)],
)
async def test_a_rejection_keeps_the_approval_feedback_and_says_so(frozen: Frozen, key: str, says: str) -> None:
    async with opened(frozen, 120, 24) as stage:
        await _open_plan(stage)
        await stage.press("tab")
        await stage.write("with love")
        await stage.press("escape", key)
        await stage.write("why 0042?")
        await stage.press("enter")
        await stage.sees(says)
        assert "your words for a yes are kept for its next version" in stage.part("keys")
        await stage.sees("Peek · auth-plan")
        assert stage.app.context.drafts == {"req-004281": "with love"}


@pytest.mark.long
async def test_a_no_says_that_the_edit_was_not_sent(frozen: Frozen) -> None:
    async with opened(frozen, 120, 24) as stage:
        await _open_plan(stage)
        await stage.press("e", "X", "escape", "d")
        await stage.write("too risky")
        await stage.press("enter")
        await stage.sees("denied: auth-plan reads why; your edit was not sent")


@pytest.mark.long
async def test_an_empty_approval_feedback_shows_the_kept_reason_again(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await _open_plan(stage)
        await stage.press("d")
        await stage.write("too risky")
        await stage.press("escape", "tab", "escape")
        await stage.sees("too risky", "Kept for a refusal · d continues")
        await stage.press("d")
        await stage.write(" by far")
        await stage.press("enter")
        await stage.until(_is(frozen, "req-004281", "rejected"), "the refusal")
        assert _request(frozen, "req-004281").feedback == "too risky by far"


async def test_an_edited_plan_is_approved_as_edited(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await _open_plan(stage)
        await stage.press("e")
        await stage.sees("^s approves what stands here")
        assert stage.text[2].startswith("━"), "no line of a pane beside it"
        await stage.write("0. Ask first. ")
        await stage.press("ctrl+s")
        await stage.sees("not shown before: lines", "^s again within")
        assert _request(frozen, "req-004281").status == "pending"
        await stage.press("ctrl+s")
        await stage.until(_is(frozen, "req-004281", "approved"), "the approval")
        assert _request(frozen, "req-004281").edited == "0. Ask first. " + PLAN


@pytest.mark.long
async def test_a_plan_of_which_nothing_is_left_is_not_approved(frozen: Frozen) -> None:
    """The agent would read no other text, and carry out its own."""
    frozen.asks("req-1", "plan_approval", "api", 10, {"plan": "drop the table"})
    async with opened(frozen, 120, 40) as stage:
        stage.app.open_request(_request(frozen, "req-1"))
        await stage.sees("drop the table", "100% read")
        await stage.settles()
        await stage.press("e", "ctrl+k", "ctrl+s")
        await stage.sees("the edited plan is empty: deny the plan if nothing of it shall be done")
        assert _request(frozen, "req-1").status == "pending"


@pytest.mark.long
async def test_the_text_that_was_approved_is_what_is_shown_and_read(frozen: Frozen) -> None:
    """A reader of the plan as it came has not read what was made of it, and the Inbox tells of the latter."""
    frozen.asks("req-1", "plan_approval", "api", 10, {"plan": "# Way\n\n1. write\n2. drop the table"})
    edited = "# Way\n\n1. write\n2. keep the table\n" + "\n\nand wait" * 40
    async with opened(frozen, 120, 40) as stage:
        stage.app.open_request(_request(frozen, "req-1"))
        await stage.sees("2. drop the table", "100% read")
        decisions.approve(frozen.team, "req-1", edited=edited)
        await stage.sees("as it was edited and approved", "2. keep the table", "% read · ")
        assert "100% read" not in stage.all
        await stage.press("=")
        await stage.sees("-2. drop the table", "+2. keep the table", "v1 as approved")
        await stage.press("escape", "2")
        await stage.sees("approved", "docs       ")
        await stage.settles()
        await stage.press("enter", "G")
        await stage.sees("you approved, as edited")
        await stage.press("enter", "j")
        await stage.sees("as you edited and approved it", "2. keep the table")


@pytest.mark.long
async def test_a_rewritten_plan_is_kept_for_later(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await _open_plan(stage)
        await stage.press("e")
        await stage.write("0. Ask first. ")
        await stage.press("escape", "escape")
        await stage.sees("Peek · auth-plan")
        assert stage.app.context.drafts == {"req-004281 plan": "0. Ask first. " + PLAN}
        await stage.press("a")
        await stage.sees("PLAN v2")
        await stage.can("a", "approve")
        await stage.press("e")
        await stage.sees("0. Ask first. ")
        await stage.press("ctrl+s", "ctrl+s")
        await stage.until(_is(frozen, "req-004281", "approved"), "the approval")
        await stage.sees("Peek · auth-plan")
        assert stage.app.context.drafts == {}


@pytest.mark.long
@pytest.mark.parametrize("size", [(80, 24), pytest.param((40, 10), marks=pytest.mark.long)])
async def test_leaving_the_editor_says_that_the_edit_is_kept(frozen: Frozen, size: tuple[int, int]) -> None:
    async with opened(frozen, *size, settings=Settings(keys={"request.edit": "E"})) as stage:
        await stage.app.open_need("plan:auth-plan:req-004281")
        await stage.sees("PLAN v2" if size[1] > 10 else "FROM auth-plan")
        await stage.until(lambda: stage.app.screen.settled, "the keys to live")  # type: ignore[attr-defined]
        assert "your edit" not in stage.all
        await stage.press("E")
        await stage.write("0. Ask first. ")
        await stage.press("escape")
        assert stage.app.context.said is not None
        assert (
            stage.app.context.said.text == "your edit is kept, not sent: E continues with it, a approves what is shown"
        )
        stage.app.context.forget_hint(math.inf)
        await stage.sees("kept: E shows it")
        if size[0] > 40:
            await stage.can("E", "your edit")
        await _press_until(stage, "a", _is(frozen, "req-004281", "approved"))
        await stage.sees("approved: auth-plan continues; your")
        assert _request(frozen, "req-004281").edited is None
        assert stage.app.context.drafts == {"req-004281 plan": "0. Ask first. " + PLAN}, (
            "leaving says what was not sent"
        )


@pytest.mark.long
async def test_an_edit_of_a_plan_answered_elsewhere_is_not_sent(frozen: Frozen, tmp_path: Path) -> None:
    """The editor, and the page after it, say so; the text is printed when the dashboard is left."""
    settings = Settings(drafts=tmp_path / "drafts")
    async with opened(frozen, 100, 30, settings=settings) as stage:
        await _open_plan(stage)
        await stage.press("e")
        await stage.sees("Edit, then ^s approves what stands here")
        await stage.write("0. Ask first. ")
        decisions.reject(frozen.team, "req-004281", "no")
        await stage.sees("rejected by you at", "Not sent: this request was already answered", "0. Ask first.")
        await stage.sees_not("approves what stands here")
        await stage.press("escape")
        await stage.sees("not sent: this request was already answered; your edit is printed when you leave")
        await stage.sees("your edit of it was not sent")
        assert "e shows it" not in stage.all
        app = stage.app
    asked = TeamReader(frozen.directory, clock=frozen.team.now, probe=frozen.probe).read().asked
    (printed,) = unsent(app.context.drafts, asked)
    assert printed.startswith("Not sent (your edit of auth-plan's plan): 0. Ask first. # Rotate")


@pytest.mark.long
async def test_during_an_edit_the_field_names_only_keys_that_work(frozen: Frozen) -> None:
    async with opened(frozen, 100, 30) as stage:
        await _open_plan(stage)
        await stage.press("d")
        await stage.write("too big")
        await stage.press("escape")
        await stage.sees("Kept for a refusal · d continues · a omits it")
        await stage.press("e")
        await stage.sees("Kept for a refusal · Esc d continues · ^s omits it")
        await stage.press("escape")
        await stage.sees("Kept for a refusal · d continues")
        await stage.press("tab")
        await stage.sees("sent with your approval · Esc d shows the kept refusal")
        await stage.write("go")
        await stage.press("escape")
        await stage.sees("a sends it with your approval · d shows the kept refusal")


@pytest.mark.long
async def test_ctrl_c_while_a_plan_is_edited_only_says_how_to_leave(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await _open_plan(stage)
        await stage.press("e", "x", "ctrl+c")
        await stage.sees("Esc ends writing, then q leaves")
        assert stage.app.is_running
        assert getattr(stage.app.focused, "id", "") == "editor"


@pytest.mark.long
async def test_an_editor_that_was_left_as_it_was_says_nothing(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await _open_plan(stage)
        await stage.press("e", "escape")
        await stage.can("a", "approve")
        assert "your edit" not in stage.all


@pytest.mark.long
async def test_a_rewritten_plan_is_kept_when_a_view_opens_at_once(
    frozen: Frozen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dashboard, "TICK", 3600.0)
    async with opened(frozen, 80, 24) as stage:
        await _open_plan(stage)
        await stage.press("e")
        await stage.write("0. Ask first. ")
        await stage.press("escape", "1")
        await stage.sees("Peek · auth-plan")
        assert stage.app.context.drafts == {"req-004281 plan": "0. Ask first. " + PLAN}


@pytest.mark.long
async def test_feedback_that_was_emptied_is_forgotten(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await _open_plan(stage)
        await stage.press("tab", "n", "o", "escape", "escape")
        await stage.sees("Peek · auth-plan")
        await stage.press("a")
        await stage.sees("PLAN v2")
        await stage.can("a", "approve")
        await stage.press("tab", "backspace", "backspace", "escape", "escape")
        await stage.sees("Peek · auth-plan")
        assert stage.app.context.drafts == {}


@pytest.mark.long
async def test_a_plan_that_was_decided_elsewhere_is_not_answered_again(
    frozen: Frozen, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(frozen, 80, 24) as stage:
        await _open_plan(stage)
        monkeypatch.setattr(request_page, "BLIND_FOR", 3600)
        decisions.reject(frozen.team, "req-004281", "no")
        await stage.sees("rejected by you at 15:04:22")
        assert not stage.app.screen.page.settled, "keys are dead for a moment"  # type: ignore[attr-defined]
        await stage.press("a")
        await stage.pilot.pause()
        assert _request(frozen, "req-004281").status == "rejected"
        assert "a approve" not in stage.offered


@pytest.mark.long
async def test_a_plan_that_was_revised_is_not_answered(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await _open_plan(stage)
        frozen.asks("req-004300", "plan_approval", "auth-plan", 1, {"plan": "# v3"}, supersedes="req-004281")
        await stage.sees("replaced by revision req-004300")
        await stage.until(lambda: "a approve" not in stage.offered, "no approving any more")
        await stage.sees_not("WAITING")
        await stage.sees_not("Feedback")
        await stage.press("a")
        await stage.sees("approve: replaced by revision req-004300: = shows")
        await stage.press("=")
        await stage.sees("What changed", "--- v2", "+++ v3")
        await stage.press("]")
        await stage.sees("PLAN v3")


@pytest.mark.long
@pytest.mark.parametrize("to", [pytest.param("operator", marks=pytest.mark.long), "lead"])
async def test_a_replaced_plan_opens_the_new_one_with_its_key(empty: Frozen, to: str) -> None:
    empty.hire("api", "code", "waiting", "plan", ago=1, pid=4395)
    empty.hire("lead", "lead", "idle", "", ago=1, pid=4396)
    settings.set_approver(empty.team, "lead")
    empty.asks("req-1", "plan_approval", "api", 10, {"plan": "# one"})
    async with opened(empty, 80, 24) as stage:
        await stage.press("!")
        await stage.sees("PLAN v1", "item 1 of 1")
        assert "] newer" not in stage.all
        decisions.reject(empty.team, "req-1", "make it three")
        empty.asks("req-2", "plan_approval", "api", 1, {"plan": "# three"}, supersedes="req-1", to=to)
        await stage.sees("] opens it", "] newer")
        await stage.press("]")
        await stage.sees("PLAN v2", "# three")


@pytest.mark.long
async def test_a_reason_for_a_plan_decided_meanwhile_stays_in_sight(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await _open_plan(stage)
        await stage.press("d")
        await stage.write("too risky")
        decisions.reject(frozen.team, "req-004281", "no")
        await stage.sees("Not sent: this request was already answered", "too risky")
        await stage.until(lambda: "⏎ send" not in stage.offered, "no sending any more")
        await stage.press("enter")
        await stage.until(lambda: not stage.app.screen.feedback.has_cursor, "the plan")  # type: ignore[attr-defined]


@pytest.mark.long
async def test_notes_and_terms_for_a_plan_decided_elsewhere_are_not_sent(frozen: Frozen) -> None:
    frozen.asks("req-1", "plan_approval", "api", 10, {"plan": "1. write\n2. publish it"})
    async with opened(frozen, 100, 30) as stage:
        await stage.app.open_need("plan:api:req-1")
        await stage.until(lambda: stage.app.screen.settled, "the keys to live")  # type: ignore[attr-defined]
        await stage.press("c")
        await stage.write("1:why this?")
        await stage.press("enter")
        await stage.sees("✎ your note, line 1: why this?")
        await stage.press("down")
        await stage.can("Space", "hold")
        await stage.press("space")
        await stage.sees("TERMS     holds 1")
        decisions.approve(frozen.team, "req-1")
        await stage.sees(
            "approved by you at", "✎ your note, line 1, not sent: why this?", "TERMS     not sent: holds 1"
        )


@pytest.mark.long
async def test_a_request_that_changed_since_it_was_shown_is_refused(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await _open_plan(stage)
        await _read_to_the_end(stage)
        request = _request(frozen, "req-004281")
        stage.app.screen.page.commands.request = request.replace(sha256="0" * 64)  # type: ignore[attr-defined]
        # At once: a page that is painted again has found the change by itself.
        await stage.app.screen.action_perform("request.approve")  # type: ignore[attr-defined]
        await stage.sees("has another sha256")
        assert _request(frozen, "req-004281").status == "pending"


def test_a_page_knows_that_its_request_has_changed(frozen: Frozen) -> None:
    view = TeamReader(frozen.directory, clock=frozen.team.now, probe=frozen.probe).read()
    seen = _request(frozen, "req-004281")
    assert outcome_of(seen, view) is None
    changed = seen.replace(sha256="0" * 64)
    assert "it has changed since you opened it" in (outcome_of(changed, view) or "")


def test_a_page_says_what_became_of_the_version_after(frozen: Frozen) -> None:
    seen = _request(frozen, "req-004281")
    frozen.asks("req-9", "plan_approval", "auth-plan", 1, {"plan": "# v3"}, supersedes=seen.id)
    decisions.reject(frozen.team, "req-9", "Question: why?")
    view = TeamReader(frozen.directory, clock=frozen.team.now, probe=frozen.probe).read()
    assert outcome_of(seen, view) == " replaced by revision req-9 (asked back) "


def test_versions_in_a_circle_come_once_each() -> None:
    first, second, third = (
        Request(
            id=f"plan-000{number}", type="plan_approval", from_="api", to="operator", supersedes=f"plan-000{before}"
        )
        for number, before in ((1, 3), (2, 1), (3, 2))
    )
    known = [first, second, third]
    assert [*versions_before(third, known)] == [second, first]
    assert [*versions_after(first, known)] == [second, third]


def test_a_page_says_which_user_decided(frozen: Frozen) -> None:
    seen = _request(frozen, "req-004281")
    kim = Team(frozen.directory, environment={"CREWBOARD_OPERATOR": "Kim"}, now=lambda: NOW)
    decisions.approve(kim, "req-004281")
    view = TeamReader(frozen.directory, clock=frozen.team.now, probe=frozen.probe).read()
    assert outcome_of(seen, view, operator="Kim") == " approved by you at 15:04:22 "
    assert outcome_of(seen, view, operator="Lee") == " approved by Kim at 15:04:22 "
    decided = next(each for each in view.asked if each.id == seen.id)
    story = story_lines(Entry((), (decided,)), NOW, 80, "Lee")
    assert "Kim approved" in plain(story[-1])


@pytest.mark.long
async def test_esc_leaves_it_for_later_and_keeps_what_was_written(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await _open_plan(stage)
        await stage.press("tab")
        await stage.write("half a thought")
        await stage.press("escape", "escape")
        await stage.sees("Peek · auth-plan")
        assert _request(frozen, "req-004281").status == "pending"
        await stage.press("a")
        await stage.sees("half a thought")


async def _open_question(stage: Stage) -> None:
    await stage.press("j", "j", "a")
    await stage.sees("QUESTION", "linked from two blog posts", "▌ yes, with a banner")
    await stage.until(lambda: stage.app.screen.settled, "the keys to live")  # type: ignore[attr-defined]


async def test_a_question_is_answered_with_a_choice(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await _open_question(stage)
        await stage.sees("j k move, ⏎ answers with the marked one")
        await stage.press("j", "enter")
        await stage.until(_is(frozen, "req-004290", "answered"), "the answer")
        assert _request(frozen, "req-004290").feedback == "no, redirect them"


async def test_a_question_stands_in_one_column_with_its_last_steps(frozen: Frozen) -> None:
    for number in range(1, 7):
        frozen.did("docs", 90 - number, "read_file", {"path": f"src/old{number}.py"}, "(9 lines)", 0.1)
    frozen.did("docs", 30, "read_file", {"path": "src/later.py"}, "(9 lines)", 0.1)
    async with opened(frozen, 80, 24) as stage:
        await _open_question(stage)
        await stage.sees("src/old2.py", "src/old6.py")
        at = next(at for at, line in enumerate(stage.text) if "linked from two blog posts" in line)
        begins = ("━━ Choices", "▌ yes, with a banner", "  no, redirect them", "  ask marketing first",
                  "  … in my own words", "── Why it asks · its last steps")  # fmt: skip
        for line, begin in zip(stage.text[at + 1 :], begins, strict=False):
            assert line.startswith(begin)
        assert [f"old{number}.py" in stage.all for number in range(1, 7)] == [False, *[True] * 5]
        assert "later.py" not in stage.all


@pytest.mark.long
async def test_the_last_choice_becomes_the_line_for_own_words(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await _open_question(stage)
        await stage.press("G", "enter")
        await stage.sees("In your own words · c writes")
        await stage.sees_not("… in my own words")
        await stage.press("escape")
        await stage.sees("… in my own words")
        await stage.press("G", "enter")
        await stage.write("keep one")
        await stage.press("enter")
        await stage.until(_is(frozen, "req-004290", "answered"), "the answer")
        assert _request(frozen, "req-004290").feedback == "keep one"


@pytest.mark.long
async def test_a_choice_does_not_push_words_of_ones_own_aside(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await _open_question(stage)
        await stage.press("c")
        await stage.write("no, redirect them")
        await stage.press("escape")
        await stage.sees("In your own words · kept, not sent · c continues with them")
        await stage.press("enter")
        await stage.sees("not answered: you wrote words of your own")
        assert _request(frozen, "req-004290").status == "pending"
        await stage.press("enter")
        await stage.until(_is(frozen, "req-004290", "answered"), "the answer")
        assert _request(frozen, "req-004290").feedback == "yes, with a banner"


@pytest.mark.long
async def test_the_meter_counts_the_version_that_an_answer_is_about(frozen: Frozen) -> None:
    """A comparison that was read as a whole is not the plan, and numbers of lines are not part of its text."""
    long = "# Way\n\n" + "\n".join(f"{at}. do the part {at}" for at in range(1, 61))
    frozen.asks("req-1", "plan_approval", "api", 20, {"plan": long})
    frozen.asks("req-2", "plan_approval", "api", 10, {"plan": long + " well"}, supersedes="req-1")
    async with opened(frozen, 120, 40) as stage:
        stage.app.open_request(_request(frozen, "req-2"))
        await stage.sees("PLAN v2", "% read")
        await stage.settles()
        before = _percent_read(stage)
        assert 0 < before < 100
        await stage.press("c", "escape")
        await stage.sees("  1 # Way")
        await stage.settles()
        assert _percent_read(stage) == before
        await stage.press("=")
        await stage.sees("+60. do the part 60 well", f"plan {before}% read")
        await stage.press("=")
        await stage.settles()
        assert _percent_read(stage) == before


@pytest.mark.long
@pytest.mark.parametrize("back", ["=", "escape"])
async def test_comparing_revisions_keeps_the_place_in_the_plan(frozen: Frozen, back: str) -> None:
    async with opened(frozen, 80, 24) as stage:
        await _open_plan(stage)
        await stage.press("j", "j", "j")
        await stage.settles()
        before = stage.text
        await stage.press("=")
        await stage.sees("What changed", "--- v1")
        await stage.press(back)
        await stage.settles()
        assert stage.text[4:19] == before[4:19]


@pytest.mark.long
async def test_words_beside_an_edit_lead_back_to_the_edit(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await _open_plan(stage)
        await stage.press("e", "x", "tab")
        await stage.write("but log")
        await stage.press("enter")
        await stage.sees("^s sends it with your approval")
        await stage.until(lambda: getattr(stage.app.focused, "id", "") == "editor", "the edit")
        await stage.press("ctrl+s", "ctrl+s")
        await stage.until(_is(frozen, "req-004281", "approved"), "the approval")
        assert _request(frozen, "req-004281").feedback == "but log"


@pytest.mark.long
async def test_a_plan_is_never_wrapped_to_the_width_of_a_hidden_pane(
    frozen: Frozen, monkeypatch: pytest.MonkeyPatch
) -> None:
    widths: list[int] = []

    def noted(request: Request, touches: FileActivity | None, now: float, width: int, *known: Any) -> Iterator[Passage]:
        widths.append(width)
        return plan_text(request, touches, now, width, *known)

    monkeypatch.setattr(plan_screen, "plan_text", noted)
    async with opened(frozen, 80, 24) as stage:
        await _open_plan(stage)
        await stage.press("e", "x", "escape")
        await stage.sees("Plan, as it came", "Rotate the JWT signing keys")
        await stage.settles()
    assert min(widths) > 60


@pytest.mark.long
async def test_a_view_key_opens_the_view_and_not_an_earlier_request(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.press("3", "!")
        await stage.sees("─ parser · why ─")
        await stage.press("3")
        await stage.sees("Tasks · 1/8")
        for _ in stage.app.context.snapshot.view.needs:
            before = stage.all
            await stage.press("!")
            await stage.settles()
            if "REQ" in before and "REQ" not in stage.all:
                break
        await stage.press("3")
        await stage.sees("Tasks · 1/8")
        assert "REQ" not in stage.all


@pytest.mark.long
async def test_on_a_question_digits_open_views_and_no_letter_answers(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await _open_question(stage)
        await stage.press("3")
        await stage.sees("Tasks · 1/8")
        await stage.press("1", "a")
        await stage.sees("▌ yes, with a banner")
        await stage.press("A", "d", "e", "m", "y", "space")
        assert _request(frozen, "req-004290").status == "pending"
        await stage.press("d")
        await stage.sees("deny: a question waits for an answer, not for a yes")


async def test_the_key_that_opens_a_question_begins_its_answer(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await _open_question(stage)
        await stage.press("a")
        await stage.can("⏎", "send")
        await stage.write("keep 2 of them")
        assert _request(frozen, "req-004290").status == "pending"
        await stage.press("enter")
        await stage.until(_is(frozen, "req-004290", "answered"), "the answer")
        assert _request(frozen, "req-004290").feedback == "keep 2 of them"


async def test_a_key_moved_from_own_words_says_why_it_is_none(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24, settings=Settings(keys={"request.words": "w"})) as stage:
        await _open_question(stage)
        await stage.press("a")
        await stage.sees("approve: a question waits for an answer, not for a yes")
        await stage.press("w")
        await stage.can("⏎", "send")


@pytest.mark.long
async def test_a_question_with_choices_is_answered_in_words_too(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await _open_question(stage)
        await stage.can("c", "own words")
        await stage.press("c")
        await stage.can("⏎", "send")
        await stage.write("keep 2 of them")
        await stage.press("enter")
        await stage.until(_is(frozen, "req-004290", "answered"), "the answer")
        assert _request(frozen, "req-004290").feedback == "keep 2 of them"


@pytest.mark.long
async def test_an_answer_is_kept_on_leaving_and_forgotten_when_emptied(
    frozen: Frozen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dashboard, "TICK", 3600.0)
    async with opened(frozen, 80, 24) as stage:
        await _open_question(stage)
        await stage.press("c")
        await stage.write("no")
        await stage.press("escape", "escape")
        await stage.sees("Peek · docs")
        assert stage.app.context.drafts == {"req-004290": "no"}
        await stage.press("a")
        await stage.sees("QUESTION")
        await stage.press("c", "backspace", "backspace", "escape", "escape")
        await stage.sees("Peek · docs")
        assert stage.app.context.drafts == {}


@pytest.mark.parametrize(
    "height", [10, pytest.param(15, marks=pytest.mark.long), pytest.param(20, marks=pytest.mark.long)]
)
async def test_a_low_screen_shows_the_choices_and_the_answer_field(frozen: Frozen, height: int) -> None:
    async with opened(frozen, 80, height) as stage:
        await stage.app.open_need("question:docs:req-004290")
        await stage.sees(
            "linked from two blog posts", "yes, with a banner", "no, redirect", "… in my own words", "? help"
        )


@pytest.mark.long
async def test_a_question_read_in_part_is_shown_before_an_answer(frozen: Frozen) -> None:
    asks = {"question": _LONG_PLAN, "options": [f"option {number}" for number in range(30)]}
    frozen.asks("req-1", "question", "api", 10, asks)  # type: ignore[arg-type]
    async with opened(frozen, 80, 24) as stage:
        await stage.app.open_need("question:api:req-1")
        await stage.until(lambda: stage.app.screen.settled, "the keys to live")  # type: ignore[attr-defined]
        await stage.press("enter")
        await stage.sees("not shown before: lines", "⏎ answers once all was shown")
        await _painted(stage)
        assert await _press_until(stage, "enter", _is(frozen, "req-1", "answered")) > 1
        assert _request(frozen, "req-1").feedback == "option 0"


async def test_blanks_hide_no_end_of_a_choice(frozen: Frozen) -> None:
    asks: dict[str, JsonValue] = {"question": "Go on?", "options": ["no", f"yes{' ' * 3000}and overwrite it"]}
    frozen.asks("req-1", "question", "api", 10, asks)
    async with opened(frozen, 80, 24) as stage:
        await stage.app.open_need("question:api:req-1")
        await stage.sees("yes…", "The choices in full", "and overwrite it")


@pytest.mark.long
async def test_a_choice_too_long_for_its_row_can_be_read(frozen: Frozen) -> None:
    long = "keep them, " + "and say on each page that it is old, " * 5 + "then ask again in a year"
    frozen.asks("req-1", "question", "api", 10, {"question": "Keep them?", "options": ["no", long]})
    async with opened(frozen, 80, 24) as stage:
        await stage.app.open_need("question:api:req-1")
        await stage.sees("The choices in full", "then ask again in a year", "…")


async def test_where_one_may_only_look_a_question_offers_no_answer(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24, read_only=True) as stage:
        await stage.app.open_need("question:docs:req-004290")
        await stage.sees("yes, with a banner")
        await stage.settles()
        assert "answer" not in stage.offered
        assert "own words" not in stage.offered
        await stage.press("enter")
        await stage.sees("open: not while you only look (--read-only)")
        assert _request(frozen, "req-004290").status == "pending"


@pytest.mark.long
async def test_in_read_only_mode_the_answer_field_cannot_be_entered(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24, read_only=True) as stage:
        await stage.app.open_need("question:docs:req-004290")
        await stage.sees("yes, with a banner")
        assert "own words" not in stage.all
        for _ in range(3):
            await stage.press("tab", "z")
            assert not stage.app.screen.query_one("#answer").has_focus
            assert "⏎ send" not in stage.offered
        assert stage.app.context.drafts == {}


@pytest.mark.long
async def test_an_answer_to_a_closed_question_is_not_sent_but_kept(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await _open_question(stage)
        await stage.press("c")
        await stage.write("keep 2")
        decisions.answer(frozen.team, "req-004290", "yes")
        await stage.sees("answered by you at 15:04:22", "Not sent: this request was already answered")
        await stage.until(lambda: "⏎ send" not in stage.offered, "no sending any more")
        await stage.write(" of")
        await stage.press("enter")
        await stage.sees("keep 2 of", "open: answered by you at 15:04:22")
        assert _request(frozen, "req-004290").feedback == "yes"
        await stage.press("escape", "tab")
        assert not stage.app.screen.query_one("#answer").has_focus


@pytest.mark.long
async def test_a_question_is_answered_in_words_of_ones_own(frozen: Frozen) -> None:
    frozen.asks("req-1", "question", "api", 10, {"question": "Which name?"})
    async with opened(frozen, 80, 24) as stage:
        await stage.press("4", "G")
        await stage.sees("Which name?")
        await stage.press("/")
        await stage.write("a:api which")
        await stage.press("escape")
        await stage.app.open_need("question:api:req-1")
        await stage.sees("In your own words")
        await stage.until(lambda: stage.app.screen.settled, "the keys to live")  # type: ignore[attr-defined]
        await stage.sees("c writes, ⏎ sends")
        await stage.can("c", "answer")
        await stage.press("c")
        await stage.write("call it after")
        await stage.press("escape")
        await stage.sees("call it after", "c answer")
        await stage.press("tab", "enter")
        await stage.until(_is(frozen, "req-1", "answered"), "the answer")
        assert _request(frozen, "req-1").feedback == "call it after"


@pytest.mark.long
async def test_on_a_question_without_choices_the_keys_are_live(frozen: Frozen) -> None:
    for agent in ("api", "ui"):
        frozen.asks(f"req-{agent}", "question", agent, 10, {"question": f"Which name, {agent}?"})
    async with opened(frozen, 80, 24) as stage:
        await stage.press("!", "!", "!")
        await stage.sees("item 3 of 7")
        await stage.press("!")
        await stage.sees("Which name, ", "item 4 of 7")
        await stage.press("!")
        await stage.sees("Which name, ", "item 5 of 7")
        assert stage.app.context.drafts == {}


@pytest.mark.long
async def test_a_permission_shows_its_tool_and_takes_a_yes(frozen: Frozen) -> None:
    frozen.asks("perm-1", "permission", "release", 22, {"tool": "bash", "summary": "git push origin rel-2.0"})
    async with opened(frozen, 80, 24) as stage:
        await stage.app.open_need("permission:release:perm-1")
        await stage.sees("PERMISSION", "git push origin rel-2.0")
        await stage.can("a", "approve")
        assert "edit" not in stage.offered
        await stage.press("a")
        await stage.until(_is(frozen, "perm-1", "approved"), "the approval")


_WRITE: dict[str, JsonValue] = {"path": "src/a.py", "content": "x = 2\n"}
_DIFF = "--- a/src/a.py\n+++ b/src/a.py\n@@ -1 +1 @@\n-x = 1\n+x = 2"


@pytest.mark.long
async def test_a_permission_names_the_agent_that_it_collides_with(frozen: Frozen) -> None:
    payload: dict[str, JsonValue] = {"tool": "write_file", "input": _WRITE, "collision": "api changed it in work"}
    frozen.asks("perm-1", "permission", "release", 22, payload)
    async with opened(frozen, 80, 24) as stage:
        await stage.app.open_need("permission:release:perm-1")
        await stage.sees("tool write_file", "⚠ api changed it in work")


async def test_a_permission_shows_the_change_and_can_add_its_rule(frozen: Frozen) -> None:
    payload: dict[str, JsonValue] = {
        "tool": "write_file", "input": _WRITE, "summary": "src/a.py", "diff": _DIFF, "scope": "src",
        "why": "the terms ask",
    }  # fmt: skip
    frozen.asks("perm-1", "permission", "release", 22, payload)
    async with opened(frozen, 100, 30) as stage:
        await stage.app.open_need("permission:release:perm-1")
        await stage.sees("the terms ask")
        assert stage.all.count("the terms ask") == 1
        await stage.sees("A says yes to every write_file of release directly in src/", "-x = 1", "+x = 2")
        lines = stage.app.screen.query_one("#plan", LineView).lines
        tones = [
            [(span.text, span.tone) for span in line] for line in lines if plain(line).endswith(("x = 1", "x = 2"))
        ]
        assert tones == [
            [("-", "error del"), ("x = ", "del"), ("1", "del number")],
            [("+", "success add"), ("x = ", "add"), ("2", "add number")],
        ]
        await stage.can("A", "approve+rule")
        await stage.press("A")
        await stage.until(_is(frozen, "perm-1", "approved"), "the approval")
        await stage.sees("from now on every write_file of release")
    assert [(rule.agent, rule.tool, rule.scope) for rule in frozen.team.config.rules] == [
        ("release", "write_file", "src")
    ]


@pytest.mark.long
async def test_a_permission_shows_the_exact_command_and_no_absent_rule(frozen: Frozen) -> None:
    command = "git  push origin  rel-2.0 && rm -rf build # " + "x" * 70
    payload: dict[str, JsonValue] = {"tool": "bash", "input": {"command": command}, "summary": "git", "scope": None}
    frozen.asks("perm-1", "permission", "release", 22, payload)
    async with opened(frozen, 80, 24) as stage:
        await stage.app.open_need("permission:release:perm-1")
        await stage.sees("git  push origin  rel-2.0 && rm -rf build # xx")
        shown = "".join(span.text for line in stage.app.screen.query_one("#plan", LineView).lines for span in line)
        assert command in shown
        await stage.can("a", "approve")
        assert "A approve" not in stage.offered
        await stage.press("A")
        assert _request(frozen, "perm-1").status == "pending"


async def test_a_plan_marks_line_breaks_in_a_command_it_names(frozen: Frozen) -> None:
    frozen.asks("p", "plan_approval", "api", 10, {"plan": "go", "commands": ["make # all\ntouch more"]})
    async with opened(frozen, 100, 40) as stage:
        await stage.app.open_need("plan:api:p")
        await stage.sees("bash: make # all ␊ touch more", "  make # all ␊ touch more")


_KEY = "ghp_abcdefghijklmnopqrstuvwxyz0123456789"


@pytest.mark.long
async def test_a_hidden_key_is_unread_until_it_was_revealed(frozen: Frozen) -> None:
    frozen.asks("r", "permission", "release", 22, {"tool": "bash", "input": {"command": f"curl -u {_KEY}: host"}})
    async with opened(frozen, 100, 40) as stage:
        await stage.app.open_need("permission:release:r")
        await stage.sees("curl -u [key hidden: 40 characters]: host", "99% read")
        await stage.can("K", "show keys")
        await stage.settles()
        for _ in range(3):
            await stage.press("a")
            await stage.sees("a key is hidden: K shows it; a approves after that")
        await stage.settles()
        assert _request(frozen, "r").status == "pending"
        await stage.press("K")
        await stage.sees(f"curl -u {_KEY}: host", "100% read")
        await stage.can("K", "hide keys")
        await stage.press("K")
        await stage.sees("[key hidden: 40 characters]", "99% read")
        await stage.press("K")
        await stage.sees("100% read")
        await stage.press("a")
        await stage.until(_is(frozen, "r", "approved"), "the approval")


@pytest.mark.long
async def test_eighty_columns_offer_to_show_a_hidden_key(frozen: Frozen) -> None:
    command = f"curl -u {_KEY}: host"
    frozen.asks("p-1", "plan_approval", "api", 10, {"plan": "go"})
    frozen.asks("p-2", "plan_approval", "api", 9, {"plan": "go", "commands": [command]}, supersedes="p-1")
    frozen.asks("r", "permission", "release", 8, {"tool": "bash", "input": {"command": command}, "scope": "curl"})
    async with opened(frozen, 80, 24) as stage:
        for need, word in (("plan:api:p-2", "PLAN v2"), ("permission:release:r", "PERMISSION")):
            await stage.app.open_need(need)
            await stage.sees(word, "K show keys")


@pytest.mark.long
async def test_revealed_lines_below_the_fold_must_be_read(frozen: Frozen) -> None:
    frozen.asks("p", "plan_approval", "api", 10, {"plan": _LONG_PLAN, "commands": [f"curl -u {_KEY}: host"]})
    async with opened(frozen, 100, 30) as stage:
        await stage.app.open_need("plan:api:p")
        await stage.sees("PLAN v1")
        await stage.press("g")
        plan = stage.app.screen.query_one("#plan", LineView)
        while plan.scroll_offset.y < plan.max_scroll_y:
            await _painted(stage)
            await stage.press("pagedown")
        await _painted(stage)
        await stage.sees("[key hidden: 40 characters]", "99% read")
        await stage.press("g", "K")
        await stage.settles()
        await stage.press("a")
        await stage.sees("not shown before: lines")
        assert _request(frozen, "p").status == "pending"
        await _read_to_the_end(stage)
        await stage.press("G")
        await stage.sees(f"curl -u {_KEY}: host")
        await stage.press("a")
        await stage.until(_is(frozen, "p", "approved"), "the approval")


@pytest.mark.long
async def test_the_choices_of_a_question_can_be_revealed(frozen: Frozen) -> None:
    frozen.asks("q", "question", "release", 22, {"question": "which?", "options": [f"use {_KEY}", "none"]})
    async with opened(frozen, 100, 40) as stage:
        await stage.app.open_need("question:release:q")
        await stage.sees("use [key hidden: 40 characters]", "99% read")
        await stage.settles()
        await stage.press("enter")
        await stage.sees("a key is hidden: K shows it; ⏎ answers after that")
        await stage.press("K")
        await stage.sees(f"- use {_KEY}", "100% read")
        await stage.press("enter")
        await stage.until(_is(frozen, "q", "answered"), "the answer")


@pytest.mark.long
async def test_marked_permissions_can_be_revealed(frozen: Frozen) -> None:
    frozen.asks("r", "permission", "release", 22, {"tool": "bash", "input": {"command": f"curl -u {_KEY}: host"}})
    async with opened(frozen, 100, 40) as stage:
        await stage.press("4")
        await stage.sees("Needs you · ")
        await stage.press("*")
        await stage.sees("[key hidden: 40 characters]")
        await stage.press("K")
        await stage.sees(f"curl -u {_KEY}: host")


@pytest.mark.long
async def test_no_page_of_a_request_hides_what_looks_like_a_key(frozen: Frozen) -> None:
    run = "make # -----BEGIN PRIVATE KEY-----\ntouch one\n# -----END PRIVATE KEY-----\ncurl https://x:$(two)@h"
    frozen.asks("p", "plan_approval", "release", 22, {"plan": run, "commands": [run]})
    frozen.asks("r", "permission", "release", 22, {"tool": "bash", "input": {"command": run}})
    frozen.asks("w", "permission", "release", 22, {"tool": "write_file", "input": {"path": "a"}, "diff": f"+{run}"})
    frozen.asks("q", "question", "release", 22, {"question": run, "options": ["a"]})
    async with opened(frozen, 100, 40) as stage:
        for need in ("plan:release:p", "permission:release:r", "permission:release:w", "question:release:q"):
            await stage.app.open_need(need)
            await stage.sees("touch one", "curl https://x:$(two)@h")
            await stage.press("escape")


@pytest.mark.long
async def test_a_plan_shows_what_changed_since_the_revision_before(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await _open_plan(stage)
        await stage.press("=")
        await stage.sees("What changed", "--- v1", "+++ v2", "-# Rotate keys", "+# Rotate the JWT signing keys")
        await stage.press("=")
        await stage.sees_not("What changed")
        assert _request(frozen, "req-004281").status == "pending"


@pytest.mark.long
async def test_asking_back_is_a_no_with_a_question(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await _open_plan(stage)
        await stage.press("B")
        await stage.sees("Your question · ⏎ asks for a revision", " Question:")
        await stage.press("enter")
        await stage.sees("say why")
        await stage.press("escape")
        await stage.sees_not("Question:")
        await stage.press("B")
        await stage.write("why 0042?")
        await stage.press("enter")
        await stage.until(_is(frozen, "req-004281", "rejected"), "the question")
        await stage.sees("asked back: auth-plan reads it")
        assert _request(frozen, "req-004281").feedback == "Question: why 0042?"


@pytest.mark.long
@pytest.mark.parametrize("leave", ["escape", pytest.param("shift+tab", marks=pytest.mark.long)])
async def test_a_kept_no_is_no_question_once_asking_is_given_up(frozen: Frozen, leave: str) -> None:
    async with opened(frozen, 80, 24) as stage:
        await _open_plan(stage)
        await stage.press("d")
        await stage.write("too big")
        await stage.press("escape", "B")
        await stage.sees("Question: too big")
        await stage.press(leave, "d")
        await stage.sees("Why not?", " too big")
        await stage.press("enter")
        await stage.until(_is(frozen, "req-004281", "rejected"), "the refusal")
        assert _request(frozen, "req-004281").feedback == "too big"


@pytest.mark.long
async def test_a_question_that_was_begun_is_kept_as_one(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await _open_plan(stage)
        await stage.press("B")
        await stage.write("why 0042?")
        await stage.press("escape", "B", "escape")
        await stage.sees("Question: why 0042?", "Kept question · B continues")
        await stage.press("d")
        await stage.sees("Why not? ⏎ denies it", "why 0042?")
        await stage.sees_not("Question:")
        await stage.press("escape", "B")
        await stage.sees("Question: why 0042?", "Your question")


@pytest.mark.parametrize(
    ("feedback", "shown"),
    [
        ("Question: Does it also sort drafts?", "YOU ASKED Does it also sort drafts?"),
        pytest.param("keep it", "YOU SAID  keep it", marks=pytest.mark.long),
    ],
)
async def test_the_next_revision_shows_what_was_said_to_the_one_before(
    frozen: Frozen, feedback: str, shown: str
) -> None:
    decisions.reject(frozen.team, "req-004281", feedback)
    frozen.asks("req-004300", "plan_approval", "auth-plan", 1, {"plan": "# v3"}, supersedes="req-004281")
    async with opened(frozen, 80, 24) as stage:
        await stage.app.open_need("plan:auth-plan:req-004300")
        await stage.sees("PLAN v3", shown)


@pytest.mark.long
async def test_what_was_said_to_the_revision_before_is_wrapped(frozen: Frozen) -> None:
    decisions.reject(frozen.team, "req-004281", "Question: " + "word " * 30 + "end?")
    frozen.asks("req-004300", "plan_approval", "auth-plan", 1, {"plan": "# v3"}, supersedes="req-004281")
    async with opened(frozen, 80, 24) as stage:
        await stage.app.open_need("plan:auth-plan:req-004300")
        await stage.sees("YOU ASKED word word", " end?")


@pytest.mark.long
async def test_a_permission_request_offers_no_ask_back(frozen: Frozen) -> None:
    frozen.asks("perm-1", "permission", "release", 22, {"tool": "bash", "summary": "git push origin rel-2.0"})
    async with opened(frozen, 80, 24) as stage:
        await stage.app.open_need("permission:release:perm-1")
        await stage.sees("d deny")
        assert "B ask back" not in stage.offered
        await stage.press("B")
        await stage.sees("ask back: only about a plan")


async def test_of_what_is_asked_at_once_the_plan_comes_first(frozen: Frozen) -> None:
    frozen.asks("req-1", "question", "api", 3, {"question": "Which name?"})
    frozen.asks("req-2", "plan_approval", "ui", 1, {"plan": "# Scroll"})
    async with opened(frozen, 80, 24) as stage:
        view = stage.app.context.snapshot.view
        needs = [need.agent for need in view.needs]
        roster = stage.app.screen.query_one(Roster)
        await stage.until(lambda: roster.rows, "the team")
        board = [row.key for row in roster.rows]
    assert board[: len(needs)] == needs
    assert needs == ["parser", "auth-plan", "docs", "ui", "api", "migrate", "flaky-hunt"]


@pytest.mark.long
async def test_next_goes_through_everything_that_needs_me(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.press("!")
        await stage.sees("parser · why", "killed by SIGKILL at 15:02:10", "pytest -x tests/parser", "outcome unknown")
        await stage.sees("collected 214 items / 3 errors", "3 unread (from ui)", "orphaned   #14 parse the 2.0 grammar")
        await stage.press("!")
        await stage.sees("PLAN v2")
        await stage.press("!")
        await stage.sees("QUESTION")
        await stage.press("]")
        await stage.sees("migrate · why", "no progress past its deadline")
        await stage.press("!")
        await stage.sees("flaky-hunt · why")
        await stage.press("!")
        await stage.sees("parser · why")


async def test_a_new_request_shows_up_while_one_looks(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.press("4")
        await stage.sees("Needs you · 5")
        frozen.asks("req-9", "question", "api", NOW - NOW, {"question": "Now?"})
        await stage.sees("Needs you · 6", "asks: Now?")


async def test_read_only_shows_a_plan_and_answers_nothing(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24, read_only=True) as stage:
        await stage.app.open_need("plan:auth-plan:req-004281")
        await stage.sees("PLAN v2")
        await stage.press("a", "d", "e")
        assert "approve" not in stage.offered
        assert _request(frozen, "req-004281").status == "pending"


def _ask_with_many_options(frozen: Frozen) -> None:
    options: list[JsonValue] = [f"option {number} " + "long text " * 12 + f"end{number}" for number in range(12)]
    frozen.asks("req-1", "question", "api", 10, {"question": "Which one of these is it?", "options": options})


async def _open_many_options(stage: Stage) -> None:
    await stage.app.open_need("question:api:req-1")
    await stage.sees("option 0")


@pytest.mark.long
@pytest.mark.parametrize(("width", "height"), [(80, 24), pytest.param(60, 20, marks=pytest.mark.long)])
async def test_a_question_with_many_options_can_be_read(frozen: Frozen, width: int, height: int) -> None:
    _ask_with_many_options(frozen)
    async with opened(frozen, width, height) as stage:
        await _open_many_options(stage)
        await stage.sees("Which one of these is it?")
        await stage.press("shift+tab", "G")
        await stage.sees("end11")


@pytest.mark.long
async def test_the_question_can_have_the_screen_to_itself(frozen: Frozen) -> None:
    _ask_with_many_options(frozen)
    async with opened(frozen, 80, 24) as stage:
        await _open_many_options(stage)
        await stage.press("shift+tab", "z")
        await stage.sees("Which one of these is it?", "end5")
        assert "in my own words" not in stage.all
        await stage.press("escape")
        await stage.sees("QUESTION", "Choices")


@pytest.mark.long
async def test_a_plan_gets_most_of_a_small_screen(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await _open_plan(stage)
        await stage.settles()
        plan = stage.app.screen.query_one("#plan")
        assert plan.size.height >= 0.6 * 24
        await stage.press("z")
        await stage.until(lambda: plan.size.height >= 16)
        assert "comments on" not in stage.all
        await stage.press("d")
        await stage.sees("Why not?")
        await stage.press("escape", "e")
        await stage.sees("approves what stands here")


@pytest.mark.long
async def test_the_text_of_an_agent_can_have_the_screen_to_itself(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.press("enter", "z")
        await stage.sees_not("Transcript")
        await stage.press("escape")
        await stage.sees("Transcript")


@pytest.mark.long
@pytest.mark.parametrize("size", [(80, 24), pytest.param((120, 36), marks=pytest.mark.long)])
async def test_calls_beyond_the_plan_are_marked_on_roster_and_pages(frozen: Frozen, size: tuple[int, int]) -> None:
    calls = ["write_file src/new.py", "bash rm -rf build"]
    beyond = Deviations(plan="req-004270", count=2, calls=calls)
    agent = frozen.directory.agent("auth-plan")
    status = agent.status.load()
    assert status is not None
    agent.status.save(status.replace(deviations=beyond))
    async with opened(frozen, *size) as stage:
        await stage.sees(" plan ")
        # The alert line names the agent too, after the worst need.
        (row,) = (line for line in stage.text if line[1:].startswith("▲ auth-plan") and "plan:" in line)
        assert "+2" in row
        await stage.press("j", "enter")
        await stage.sees("beyond plan")
        await stage.press("escape", "a")
        await stage.sees("DEVIATED  2 calls that the plan before", "src/new.py")


@pytest.mark.long
@pytest.mark.parametrize("size", default([(80, 24), (120, 40)], (80, 24)))
async def test_a_plan_is_approved_with_the_terms_that_are_shown(frozen: Frozen, size: tuple[int, int]) -> None:
    steps = "# Serve\n\n1. write\n2. run pytest\n3. publish it"
    frozen.asks("req-1", "plan_approval", "api", 10, {"plan": steps, "commands": ["pytest"]})
    async with opened(frozen, *size) as stage:
        await stage.app.open_need("plan:api:req-1")
        await stage.can("a", "approve")
        await stage.sees_not("TERMS")
        await stage.press("o")
        await stage.can("Space", "yes/no")
        await stage.sees("[ ] ask me before each write", "[x] tool bash", "[x] step 3. publish it")
        await stage.press("space", "j", "j", "space")
        await stage.write("lots")
        await stage.press("enter")
        await stage.sees("'lots' is not a budget")
        await stage.press("ctrl+u")
        await stage.write("100k")
        await stage.press("enter")
        await stage.sees("[x] budget 100k", "TERMS     ask · 100k")
        await stage.press("j", "space", "G", "space")
        await stage.sees("TERMS     ask · no bash · 100k · holds 3", "[ ] held: step 3. publish it")
        await stage.sees("LACKS     the plan names commands, and the terms leave no bash")
        await stage.can("a", "approve+terms")
        await stage.press("k", "space", "space")
        await stage.sees("holds 3 · not 2", "[ ] not this one: step 2. run pytest")
        await stage.sees("STEPS     of step 2 refused: pytest", "step 3: an instruction only, nothing")
        await stage.press("space", "o")
        await stage.sees("TERMS     ask · no bash · 100k · holds 3", "# Serve")
        await stage.can("a", "approve+terms")
        await stage.press("a")
        await stage.until(_is(frozen, "req-1", "approved"), "the approval")
    terms = _request(frozen, "req-1").terms
    assert terms is not None
    assert (terms.ask, terms.network, terms.budget, terms.hold) == (True, False, "100k", [3])
    assert "bash" not in (terms.tools or ["bash"])


@pytest.mark.long
async def test_the_terms_in_force_are_on_the_board_and_the_agents_page(frozen: Frozen) -> None:
    frozen.asks("req-1", "plan_approval", "api", 10, {"plan": "1. write\n2. publish it"})
    record = frozen.directory.agent("api").status
    status = record.load()
    assert status is not None
    given = TermsInForce(given=Terms(ask=True, budget="$2", hold=[2]), request="req-1")
    record.save(status.replace(terms=given))
    async with opened(frozen, 80, 24) as stage:
        await stage.sees("terms")
        stage.app.open_agent("api")
        await stage.sees("ask · $2 · holds 2 until its result; held: 2. publish it")
        await stage.press("[")
        await stage.turns_to("Vitals")
        await stage.sees("$2.00 from its approval on")


@pytest.mark.long
@pytest.mark.parametrize("size", default([(80, 24), (120, 40)], (80, 24)))
async def test_a_held_step_is_released_at_the_cursor(frozen: Frozen, size: tuple[int, int]) -> None:
    plan = "1. write\n2. publish it\n3. tell us"
    frozen.asks("req-1", "plan_approval", "api", 10, {"plan": plan})
    terms = Terms(hold=[2, 3])
    decisions.approve(frozen.team, "req-1", terms=terms)
    record = frozen.directory.agent("api").status
    status = record.load()
    assert status is not None
    record.save(status.replace(terms=TermsInForce(given=terms, request="req-1")))
    async with opened(frozen, *size) as stage:
        stage.app.open_agent("api")
        await stage.sees("holds 2, 3")
        await stage.can("a", "held steps")
        await stage.press("a")
        await stage.sees("approved by you at", "TERMS     holds 2, 3")
        await _painted(stage)
        await stage.press("down")
        await stage.settles()
        assert "Space release" not in stage.offered, "the first step is not held"
        while "▌2. publish" not in stage.all:
            await stage.press("down")
            await stage.settles()
        await stage.can("Space", "release")
        await stage.press("space")
        await stage.sees("TERMS     holds 3 · released 2", "released: it was held at first")
        await stage.until(lambda: "Space release" not in stage.offered, "nothing to release at the cursor")
    decided = _request(frozen, "req-1")
    assert decided.terms is not None
    assert (decided.terms.hold, decided.terms.released) == ([3], [2])
    told = [m.metadata for m in mailbox.read(frozen.directory, "api").messages]
    assert [each["released"] for each in told if "released" in each] == [[2]]


@pytest.mark.long
async def test_the_terms_of_a_plan_outlive_its_page_and_the_dashboard(frozen: Frozen, tmp_path: Path) -> None:
    frozen.asks("req-1", "plan_approval", "api", 10, {"plan": "1. write\n2. publish it\n3. run `make it`"})
    settings = Settings(drafts=tmp_path)
    async with opened(frozen, 80, 24, settings=settings) as stage:
        stage.app.open_agent("api")
        await stage.can("a", "answer")
        await stage.press("a")
        await stage.sees("PLAN v1", "1. write")
        await _painted(stage)
        await stage.press("down")
        await stage.sees("▌1. write")
        await stage.can("Space", "hold")
        await stage.press("space")
        await stage.sees("TERMS     holds 1")
        await stage.press("escape")
        await stage.sees_not("PLAN v1")
        await stage.press("a")
        await stage.sees("PLAN v1", "TERMS     holds 1")
        await stage.can("a", "approve+terms")
        await stage.press("o")
        await stage.can("Space", "yes/no")
        await stage.press("space", "G", "space", "space", "o")
        await stage.sees("TERMS     ask · holds 1 · not 3", "refused: make it")
        # As kill -9 would find it.
        (kept,) = (file.read_text() for file in tmp_path.iterdir() if file.suffix == ".json")
        assert "step 1: hold" in kept
    async with opened(frozen, 80, 24, settings=settings) as stage:
        await stage.sees("not sent yet, from the last time: your terms for api's plan")
        await stage.app.open_need("plan:api:req-1")
        await stage.sees("PLAN v1", "TERMS     ask · holds 1 · not 3", "refused: make it")
        await stage.can("a", "approve+terms")
        await _painted(stage)
        await _press_until(stage, "a", _is(frozen, "req-1", "approved"))
        await stage.until(lambda: not stage.app.context.drafts, "no draft left")
    terms = _request(frozen, "req-1").terms
    assert terms is not None
    assert (terms.ask, terms.hold, terms.refused) == (True, [1], [3])
    assert [each.commands for each in terms.denied] == [["make it"]]


@pytest.mark.long
async def test_the_terms_of_a_plan_that_is_sent_back_go_to_its_next_version(frozen: Frozen, tmp_path: Path) -> None:
    frozen.asks("req-1", "plan_approval", "api", 10, {"plan": "1. write\n2. try it\n3. publish it\n4. tell us"})
    settings = Settings(drafts=tmp_path)
    async with opened(frozen, 80, 24, settings=settings) as stage:
        await stage.app.open_need("plan:api:req-1")
        await stage.can("o", "terms")
        await stage.press("o")
        await stage.can("Space", "yes/no")
        await stage.press("space", "G", "space", "space", "k", "space", "k", "space", "o")
        await stage.sees("TERMS     ask · holds 2, 3 · not 4")
        await stage.press("d")
        await stage.write("test it first")
        await stage.press("enter")
        await stage.sees("denied: api reads why; your terms are kept for its next version")
    assert unsent(stage.app.context.drafts, [_request(frozen, "req-1")])
    again = "1. test\n2. write\n3. tell us\n4. publish it"
    frozen.asks("req-2", "plan_approval", "api", 5, {"plan": again}, supersedes="req-1")
    async with opened(frozen, 80, 24, settings=settings) as stage:
        for _ in range(2):
            await stage.app.open_need("plan:api:req-2")
            await stage.sees("PLAN v2", "TERMS     ask · holds 4 · not 3")
            await stage.sees("GONE      held: try it: no step of this version")
            await stage.press("escape")
            await stage.sees_not("PLAN v2")
        await stage.app.open_need("plan:api:req-2")
        await stage.can("a", "approve+terms")
        await _painted(stage)
        await _press_until(stage, "a", _is(frozen, "req-2", "approved"))
        await stage.until(lambda: not stage.app.context.drafts, "no draft left")
    terms = _request(frozen, "req-2").terms
    assert terms is not None
    assert (terms.ask, terms.hold, terms.refused) == (True, [4], [3])


@pytest.mark.long
@pytest.mark.parametrize("size", default([(80, 24), (120, 40)], (80, 24)))
async def test_a_held_step_of_an_edited_plan_is_released(frozen: Frozen, size: tuple[int, int]) -> None:
    note: dict[str, JsonValue] = {"id": "n1", "line": 1, "end": 1, "quoted": ["1. write"], "text": "which file?"}
    frozen.asks("req-1", "plan_approval", "api", 10, {"plan": "1. write\n2. publish it", "notes": [note]})
    terms, edited = Terms(hold=[3]), "Be careful.\n\n1. write\n2. check it\n3. publish it"
    decisions.approve(frozen.team, "req-1", edited=edited, terms=terms)
    record = frozen.directory.agent("api").status
    status = record.load()
    assert status is not None
    record.save(status.replace(terms=TermsInForce(given=terms, request="req-1")))
    async with opened(frozen, *size) as stage:
        stage.app.open_agent("api")
        await stage.can("a", "held steps")
        await stage.press("a")
        await stage.sees(
            "as it was edited and approved", "Be careful.", "2. check it", "✎ n1, moved, open: which file?"
        )
        assert isinstance(stage.app.screen, BaseScreen)
        assert stage.app.screen.copied == edited
        await _painted(stage)
        while "▌   5 3. publish" not in stage.all:
            await stage.press("down")
            await stage.settles()
        await stage.can("Space", "release")
        await stage.press("space")
        await stage.sees("TERMS     released 3", "released: it was held at first")
    decided = _request(frozen, "req-1")
    assert decided.terms is not None
    assert (decided.terms.hold, decided.terms.released) == ([], [3])


def _permission(frozen: Frozen, ident: str, agent: str, command: str) -> None:
    payload: dict[str, JsonValue] = {
        "tool": "bash", "input": {"command": command}, "summary": command.splitlines()[0], "scope": "make",
    }  # fmt: skip
    frozen.asks(ident, "permission", agent, 30, payload)


async def _mark_all(stage: Stage) -> None:
    await stage.press("4")
    await stage.sees("Needs you · ")
    await stage.press("*")
    await stage.can("a", "approve ✓2")


async def test_marked_permissions_are_approved_together(frozen: Frozen) -> None:
    _permission(frozen, "perm-1", "release", "make one")
    _permission(frozen, "perm-2", "api", "make two")
    async with opened(frozen, 120, 40) as stage:
        await _mark_all(stage)
        await stage.sees("2 marked to approve or deny", "100% read", "make one", "make two")
        await _painted(stage)
        await stage.press("a")
        await stage.sees("2 approved: ")
        await stage.sees_not(" marked")
    assert [_request(frozen, ident).status for ident in ("perm-1", "perm-2")] == ["approved", "approved"]
    assert _request(frozen, "req-004281").status == "pending", "a plan is marked too, and is read on its own page"


@pytest.mark.long
async def test_marked_permissions_read_in_part_are_shown_before_a_yes(frozen: Frozen) -> None:
    _permission(frozen, "perm-1", "release", "\n".join(f"make {number}" for number in range(60)))
    _permission(frozen, "perm-2", "api", "make two")
    async with opened(frozen, 80, 24) as stage:
        await _mark_all(stage)
        await stage.press("a")
        await stage.sees("not shown before: lines", "a approves 2 once all was shown")
        await _painted(stage)
        assert await _press_until(stage, "a", _is(frozen, "perm-1", "approved")) > 1


@pytest.mark.long
@pytest.mark.parametrize(("key", "done", "status"), [("a", "approved", "approved"), ("d", "denied", "rejected")])
async def test_a_marked_permission_that_changed_is_refused_and_said_so(
    frozen: Frozen, key: str, done: str, status: str
) -> None:
    _permission(frozen, "perm-1", "release", "make one")
    _permission(frozen, "perm-2", "api", "make two")
    async with opened(frozen, 120, 40) as stage:
        await _mark_all(stage)
        await stage.sees("100% read")
        # As of a change that was not read yet when the key came.
        reading = stage.app.context.reading
        reading.stop()
        await stage.until(lambda: not reading._watcher._thread.is_alive(), "the end of the reading")
        request = _request(frozen, "perm-2")
        changed = request.replace(payload={**request.payload, "input": {"command": "make worse"}})
        frozen.directory.request("perm-2").save(changed)
        await stage.press(key)
        if key == "d":
            await stage.sees("Why deny these 2 permissions?")
            await stage.write("use ninja")
            await stage.press("enter")
        await stage.sees(f"1 of 2 {done}: perm-1", "perm-2 has another sha256")
    assert _request(frozen, "perm-1").status == status
    assert _request(frozen, "perm-2").status == "pending"


@pytest.mark.long
async def test_a_permission_is_bound_to_what_was_marked_not_to_what_came_later(frozen: Frozen) -> None:
    _permission(frozen, "perm-1", "release", "make one")
    _permission(frozen, "perm-2", "api", "make two")
    async with opened(frozen, 120, 40) as stage:
        await _mark_all(stage)
        request = _request(frozen, "perm-2")
        changed = request.replace(payload={**request.payload, "summary": "make worse"})
        frozen.directory.request("perm-2").save(changed)
        await stage.until(lambda: "make worse" in stage.all, "the new text")
        await stage.press("a")
        await stage.sees("perm-2 has another sha256")
    assert _request(frozen, "perm-2").status == "pending"


@pytest.mark.long
async def test_marked_permissions_are_denied_together_with_one_reason(frozen: Frozen) -> None:
    _permission(frozen, "perm-1", "release", "make one")
    _permission(frozen, "perm-2", "api", "make two")
    async with opened(frozen, 120, 40) as stage:
        await _mark_all(stage)
        await stage.press("d")
        await stage.sees("Why deny these 2 permissions?")
        await stage.press("enter")
        await stage.sees("say why")
        await stage.write("use ninja")
        await stage.press("enter")
        await stage.sees("2 denied: ")
    for ident in ("perm-1", "perm-2"):
        assert (_request(frozen, ident).status, _request(frozen, ident).feedback) == ("rejected", "use ninja")


@pytest.mark.long
async def test_a_without_marks_opens_the_request(frozen: Frozen) -> None:
    _permission(frozen, "perm-1", "release", "make one")
    async with opened(frozen, 120, 40) as stage:
        await stage.press("4")
        await stage.sees("Needs you · ")
        stage.app.screen.go_to("permission:release:perm-1")  # type: ignore[attr-defined]
        await stage.sees("release · why")
        await stage.press("d")
        await stage.sees("deny: mark permissions first")
        await stage.press("a")
        await stage.sees("PERMISSION")
        assert _request(frozen, "perm-1").status == "pending"


@pytest.mark.long
@pytest.mark.parametrize(
    ("presses", "agent", "agent_type", "covers"),
    [
        (0, "release", None, "any single command of release that starts make"),
        pytest.param(
            1, None, "code", "any single command of all agents of type code that starts make", marks=pytest.mark.long
        ),
        (2, None, None, "any single command of all agents that starts make"),
        pytest.param(3, "release", None, "any single command of release that starts make", marks=pytest.mark.long),
    ],
)
async def test_the_rule_of_an_approval_is_for_those_that_were_chosen(
    frozen: Frozen, presses: int, agent: str | None, agent_type: str | None, covers: str
) -> None:
    _permission(frozen, "perm-1", "release", "make one")
    async with opened(frozen, 120, 40) as stage:
        await stage.app.open_need("permission:release:perm-1")
        await stage.can("A", "approve+rule")
        for _ in range(presses):
            await stage.press("W")
        await stage.sees(f"A says yes to {covers}", "A also allows, from now on:")
        await stage.press("A")
        await stage.until(_is(frozen, "perm-1", "approved"), "the approval")
        await stage.sees("and from now on")
    (rule,) = roster.load(frozen.directory).rules
    assert (rule.agent, rule.agent_type, rule.scope) == (agent, agent_type, "make")


@pytest.mark.long
async def test_a_wider_rule_still_needs_the_text_read_to_its_end(frozen: Frozen) -> None:
    _permission(frozen, "perm-1", "release", "\n".join(f"make {number}" for number in range(60)))
    async with opened(frozen, 80, 24) as stage:
        await stage.app.open_need("permission:release:perm-1")
        await stage.can("A", "approve+rule")
        await stage.press("W", "W", "A")
        await stage.sees("not shown before: lines", "A approves once all was shown")
        assert _request(frozen, "perm-1").status == "pending"
        assert roster.load(frozen.directory).rules == []


def _review(team: Frozen) -> None:
    """Let an agent hand a task to the operator for review."""
    team.hire("ann", "code", "idle", "", ago=9, pid=71)
    team.task(4, "paginate", "in_progress", owner="ann", review="operator", in_review="review-1", reviews=1)
    diff = "--- a/api.py\n+++ b/api.py\n@@ -1 +1 @@\n-rows\n+rows[:20]\n"
    summary = "ann reports task 4 as completed: paginate. Its check `make test` passed."
    payload: dict[str, JsonValue] = {"task": 4, "summary": summary, "diff": diff, "file": "results/review-1.diff"}
    team.asks("review-1", "task_review", "ann", 9, payload)


@pytest.mark.long
@pytest.mark.parametrize("size", [(80, 24), pytest.param((120, 40), marks=pytest.mark.long)])
async def test_work_on_a_task_is_approved_like_a_plan(empty: Frozen, size: tuple[int, int]) -> None:
    _review(empty)
    async with opened(empty, *size) as stage:
        await stage.press("3")
        await stage.sees("paginate", "review")
        await stage.press("4", "a")
        await stage.sees("REVIEW", "paginate. Its check `make test` passed.", "rows[:20]", "results/review-1.diff")
        await stage.can("a", "approve")
        await stage.press("a")
        await stage.until(lambda: tasks.load(empty.directory, 4).status == "completed", "the approval")
        await stage.sees("approved: task #4 is completed")


@pytest.mark.long
async def test_an_approval_says_that_the_work_changed_meanwhile(empty: Frozen, monkeypatch: pytest.MonkeyPatch) -> None:
    _review(empty)
    record = empty.directory.request("review-1")
    request = record.load()
    assert request is not None
    record.save(request.replace(payload={**request.payload, "since": "a", "tree": "b"}))
    # The team is frozen: no agent has a checkout.
    monkeypatch.setattr(worktree_changes, "tree_of", lambda *_: "c")
    async with opened(empty, 100, 30) as stage:
        await stage.press("4", "a")
        await stage.can("a", "approve")
        await stage.press("a")
        await stage.sees("approved: task #4 is completed; ann changed files since this review")


@pytest.mark.long
async def test_work_on_a_task_is_sent_back_with_feedback(empty: Frozen) -> None:
    _review(empty)
    async with opened(empty, 80, 24) as stage:
        await stage.press("4", "a")
        await stage.can("a", "approve")
        await stage.press("d", *"more", "enter")
        await stage.until(lambda: tasks.load(empty.directory, 4).in_review is None, "the rejection")
        (feedback,) = [m for m in mailbox.read(empty.directory, "ann", 0).messages if m.type == "task_assignment"]
        assert feedback.content.endswith("asks for changes:\nmore")


@pytest.mark.long
async def test_notes_on_lines_of_a_plan_are_drafts_and_sent_as_one_round(frozen: Frozen, tmp_path: Path) -> None:
    """A note stands below its line, also when the dashboard is opened again, until an answer sends it."""
    settings = Settings(drafts=tmp_path / "drafts")
    async with opened(frozen, 80, 24, settings=settings) as stage:
        await _open_plan(stage)
        assert "send back" not in stage.offered, "there is no note to send"
        await stage.press("c")
        await stage.sees("+  1 # Rotate the JWT signing keys", "LINE:TEXT")
        await stage.write("99:beyond")
        await stage.press("enter")
        await stage.sees("the lines of the plan are 1 to")
        await stage.press(*["backspace"] * 9)
        await stage.write("1:say why")
        await stage.press("enter")
        await stage.sees("✎ your note, line 1: say why")
        await stage.until(
            lambda: "^s send back  a approve+notes  d deny  c note " in stage.part("keys"),
            "the next note in the footer",
        )
    async with opened(frozen, 80, 24, settings=settings) as stage:
        await _open_plan(stage)
        await stage.sees("✎ your note, line 1: say why")
        await stage.press("c")
        await stage.write("2-3:shorter")
        await stage.press("enter")
        await stage.sees("lines 2-3: shorter")
        await stage.can("c", "note")
        await stage.press("c")
        await stage.sees("LINE:TEXT")
        # The note that is there is written on.
        await stage.write("1:")
        await stage.sees("1:say why")
        await stage.write(" now:")
        await stage.press("enter")
        await stage.sees("line 1: say why now:")
        await stage.can("c", "note")
        await stage.press("c")
        await stage.sees("LINE:TEXT")
        await stage.write("2-3:")
        await stage.sees("2-3:shorter")
        await stage.press(*["backspace"] * len("shorter"), "enter")
        await stage.sees_not("shorter")
        await stage.can("a", "approve+notes")
        await stage.can("^s", "send back")
        await stage.press("ctrl+s")
        await stage.until(_is(frozen, "req-004281", "rejected"), "the answer")
        await stage.until(lambda: not stage.app.context.drafts, "no draft left")
    decided = _request(frozen, "req-004281")
    assert [(note.id, note.line, note.text) for note in decided.notes] == [("n1", 1, "say why now:")]
    assert decided.feedback is None


@pytest.mark.long
@pytest.mark.parametrize("size", default([(80, 24), (120, 40)], (80, 24)))
async def test_notes_and_verdicts_are_given_at_the_cursor(frozen: Frozen, size: tuple[int, int]) -> None:
    plan = "# Serve\n\nFirst\n\n1. Write `api.py`\n   with care\n2. Run `make release now`\n3. Tell us\n\nThe end"
    frozen.asks("req-1", "plan_approval", "api", 10, {"plan": plan, "files": ["api.py"]})
    async with opened(frozen, *size) as stage:
        await stage.app.open_need("plan:api:req-1")
        await stage.can("a", "approve")
        assert "▌" not in stage.all
        await stage.sees("━━ Plan · 3 steps: j to one, Space holds it ━")
        await _painted(stage)
        while "▌2. Run" not in stage.all:
            await stage.press("down")
            await stage.settles()
        assert stage.all.count("▌") == 1, "one cursor a screen"
        await stage.can("Space", "hold")
        await stage.press("space")
        await stage.sees("held · refused: make release now; the rest is an instruction", "TERMS     holds 2")
        await stage.can("Space", "not")
        await stage.press("space")
        await stage.sees("not this one · refused: make release now", "TERMS     not 2")
        await stage.press("down", "down", "space")
        await stage.sees("held · an instruction only", "holds 3 · not 2")
        # With the lines above it, to the end of the first step.
        await stage.press("shift+up", "shift+up", "shift+up", "c")
        await stage.sees("5-8:")
        await stage.write("in one go")
        await stage.press("enter")
        await stage.sees("✎ your note, lines 5-8: in one go", "   5 1. Write")
        await stage.can("a", "approve+terms")
        await stage.until(lambda: "a approve+terms" in stage.all, "the keys with the note")
        (keys,) = [line for line in stage.text if "a approve+terms" in line]
        assert "^s send back" in keys
        assert "…" not in keys, "a key stands there as a whole, or not at all"
        await stage.press("c")
        await stage.sees("5-8:in one go")
        await stage.press("escape", "end")
        await stage.sees("Files it names")
        await stage.can("a", "approve+terms")
        await _painted(stage)
        await stage.press("a")
        await stage.until(_is(frozen, "req-1", "approved"), "the approval")
    decided = _request(frozen, "req-1")
    assert decided.terms is not None
    assert (decided.terms.hold, decided.terms.refused) == ([3], [2])
    assert [each.commands for each in decided.terms.denied] == [["make release now"]]
    assert [(note.line, note.end, note.text) for note in decided.notes] == [(5, 8, "in one go")]


@pytest.mark.long
async def test_space_decides_the_same_about_all_steps_of_a_range(frozen: Frozen) -> None:
    plan = "# Serve\n\n1. Write it\n2. Run it\n3. Tell us\n4. Rest"
    frozen.asks("req-1", "plan_approval", "api", 10, {"plan": plan})
    async with opened(frozen, 80, 24) as stage:
        await stage.app.open_need("plan:api:req-1")
        await stage.can("a", "approve")
        await _press(stage, "c", "note")
        await stage.write("3:why?")
        await stage.press("enter", "G")
        await stage.can("^s", "send back")
        while "▌   5 3. Tell" not in stage.all:
            await stage.press("up")
            await stage.settles()
        await stage.press("space", "shift+up")
        # The keys of notes leave room for that of the steps.
        await stage.sees("holds 3", "^s send back", "a approve+terms", "Space hold")
        # All of them get what the first one gets next.
        for told, gives in (("holds 2, 3", "Space not"), ("not 2, 3", "Space do")):
            await stage.press("space")
            await stage.sees(told, gives)
        await stage.press("space")
        await stage.sees_not("TERMS")
        await stage.press("space")
        await stage.can("a", "approve+terms")
        await _painted(stage)
        await stage.press("a")
        await stage.until(_is(frozen, "req-1", "approved"), "the approval")
        terms = _request(frozen, "req-1").terms
        assert terms is not None
        assert terms.hold == [2, 3]


@pytest.mark.long
async def test_the_cursor_of_a_plan_stays_on_its_lines(frozen: Frozen) -> None:
    """Below the plan stands what it touches: that is scrolled to, and no note can be on it."""
    plan: dict[str, JsonValue] = {"plan": _LONG_PLAN, "files": [f"file{number}.py" for number in range(40)]}
    frozen.asks("req-1", "plan_approval", "api", 10, plan)
    async with opened(frozen, 80, 24) as stage:

        async def writes_on(lines: str) -> None:
            await _painted(stage)
            await _press(stage, "c", "note")
            await stage.sees(f"note › {lines}:", "LINE:TEXT")
            await stage.press("escape")
            await stage.sees_not("LINE:TEXT")

        await stage.app.open_need("plan:api:req-1")
        await stage.can("a", "approve")
        await stage.press("down", "end")
        await stage.sees("file39.py")
        await writes_on("60")
        # What is asked for a further line goes on through the text, and back.
        await stage.press("k")
        await writes_on("60")
        assert "60. change" not in stage.all
        while "60. change" not in stage.all:
            await stage.press("pageup")
            await _painted(stage)
        await stage.press("j", "j", "shift+down")
        assert "▌" in stage.all
        await stage.press("end", "home")
        await writes_on("1")
        for _ in range(30):
            await stage.press("pagedown")
        await writes_on("60")


async def test_the_page_of_the_only_need_names_no_key_that_opens_it(empty: Frozen) -> None:
    empty.hire("ann", "code", "waiting", "waits for a yes", ago=10, pid=4500)
    empty.asks("req-1", "plan_approval", "ann", 30, {"plan": _LONG_PLAN})
    async with opened(empty, 80, 24) as stage:
        await stage.until(lambda: "! open" in stage.part("alert"), "the key that opens it")
        await stage.press("!")
        await stage.until(lambda: stage.part("alert").strip() == "nothing else needs you", "the alert of its page")
        empty.hire("bob", "code", "waiting", "asks", ago=10, pid=4501)
        empty.asks("req-2", "question", "bob", 5, {"question": "which one?"})
        await stage.until(lambda: "! next" in stage.part("alert"), "the key of the next need")
        await stage.until(lambda: "bob asks: which one?" in stage.part("alert"), "the next need")


@pytest.mark.long
async def test_the_page_says_what_became_of_notes_and_goes_to_them(empty: Frozen) -> None:
    empty.hire("ann", "code", "waiting", "waits for a yes", ago=10, pid=4500)
    first = ["# Move the files", "", *(f"- move file{number}.py" for number in range(3, 60))]
    notes = [*map(parse_note, ("5:why?", "30-31:together", "50:where?", "59:and then?"))]
    empty.asks("req-1", "plan_approval", "ann", 30, {"plan": "\n".join(first)})
    decisions.reject(empty.team, "req-1", "", notes=notes)
    did = {"n1": "it is small", "n3": "left out"}
    second = "\n".join([*first[:49], *first[50:]])
    empty.asks("req-2", "plan_approval", "ann", 20, {"plan": second}, supersedes="req-1", answers=did)
    async with opened(empty, 80, 24) as stage:
        await stage.press("!")
        await stage.sees("NOTES     2 not answered: n2, n4 · 2 answered · 1 moved to the end")
        for line, note in ((5, "n1, line 5, answered"), (31, "n2, lines 30-31, open"), (58, "n4, line 58, open")):
            await stage.press("n")
            await stage.sees(f"▌  {line:>2} - move", note)
        await stage.press("n", "N")
        await stage.sees("▌  31 - move")
        await _press(stage, "c", "note")
        await stage.sees("31:", "LINE:TEXT")


def _shown_notes(stage: Stage) -> list[str]:
    """Return the heads of the notes on the plan that is shown, with the answers."""
    lines = (plain(line).strip() for line in stage.app.screen.query_one("#plan", LineView).lines)
    return [line for line in lines if line.startswith(("✎ n", "answer:"))]


async def _press(stage: Stage, key: str, label: str, *more: str) -> None:
    """Press a key once it works under its label, as a page takes none for a moment after it changed; then others."""
    await stage.can(key, label)
    await stage.press(key, *more)


async def _open_next(stage: Stage, request_id: str, title: str) -> None:
    """Open the only need from the Board, once that is shown again and knows of it."""
    await stage.until(lambda: [each.request_id for each in stage.app.context.snapshot.view.needs] == [request_id])
    await stage.sees("Peek · ann")
    await stage.press("!")
    await stage.sees(title)


async def _note(stage: Stage, note: str) -> None:
    await _press(stage, "c", "note")
    await stage.sees("LINE:TEXT")
    await stage.write(note)
    await stage.press("enter")
    await stage.sees_not("LINE:TEXT")


@pytest.mark.long
async def test_eight_notes_over_three_versions_by_keys_alone(empty: Frozen) -> None:
    """A plan of 120 lines: notes keep their place and id while it is revised, and all of it is read before the yes."""
    empty.hire("ann", "code", "waiting", "waits for a yes", ago=10, pid=4500)
    files = [f"- move file{number}.py to the store" for number in range(3, 121)]
    first = ["# Move the files", "", *files]
    # New lines at the top, four that are gone, one that is changed.
    second = ["# Move the files", "", "Why: they are lost.", "", *files[:38], *files[42:]]
    second[second.index(files[77])] = "- move file80.py to the new store"
    plans = ["\n".join(each) for each in (first, second, [*second, "- tell the team"])]
    empty.asks("req-1", "plan_approval", "ann", 30, {"plan": plans[0]})
    async with opened(empty, 80, 24) as stage:
        await stage.sees("1 ask")
        await stage.press("!")
        await stage.sees("PLAN v1")
        for note in ("120:is this all?", "3:why first?", "41-44:leave these", "80:which store?"):
            await _note(stage, note)
        # And one at the cursor.
        await stage.press("home", "down")
        await _press(stage, "c", "note")
        await stage.sees("1:", "LINE:TEXT")
        await stage.write("name the store")
        await stage.press("enter")
        await stage.sees_not("LINE:TEXT")
        await _press(stage, "d", "deny", "enter")
        await stage.until(_is(empty, "req-1", "rejected"), "the first round")
        did = {"n1": "named", "n2": "it is small", "n3": "left out", "n4": "the new one"}
        empty.asks("req-2", "plan_approval", "ann", 20, {"plan": plans[1]}, supersedes="req-1", answers=did)
        await _open_next(stage, "req-2", "PLAN v2")
        await stage.until(lambda: bool(_shown_notes(stage)), "the notes")
        await stage.sees("+  3 Why: they are lost.", "   5 - move file3.py")
        assert _shown_notes(stage) == [
            "✎ n1, line 1, answered: name the store",
            "answer: named",
            "✎ n2, line 5, answered: why first?",
            "answer: it is small",
            "✎ n4, line 78, answered: which store?",
            "answer: the new one",
            "✎ n5, line 118, open: is this all?",
            "✎ n3, moved, answered: leave these",
            "answer: left out",
        ]
        for note in ("3:lost how?", "60-61:together", "118:and then?"):
            await _note(stage, note)
        await _press(stage, "d", "deny", "enter")
        await stage.until(_is(empty, "req-2", "rejected"), "the second round")
        did = {f"n{number}": f"done {number}" for number in range(5, 9)}
        empty.asks("req-3", "plan_approval", "ann", 5, {"plan": plans[2]}, supersedes="req-2", answers=did)
        await _open_next(stage, "req-3", "PLAN v3")
        await _press(stage, "=", "changes")
        await stage.sees("tell the team")
        await stage.press("=")
        await stage.sees_not("What changed")
        assert "100% read" not in stage.all
        await _read_to_the_end(stage)
        await _press(stage, "a", "approve")
        await stage.until(_is(empty, "req-3", "approved"), "the approval")
    told = notes_in(_request(empty, "req-3").payload)
    assert [note.id for note in told] == [f"n{number}" for number in range(1, 9)]
    assert [note.state for note in told] == ["settled"] * 4 + ["answered"] * 4
    assert [note.line for note in told] == [1, 5, 0, 78, 118, 3, 60, 118]


async def test_notes_that_were_not_sent_go_to_the_next_version(empty: Frozen, tmp_path: Path) -> None:
    """The agent may hand it in before the answer. A note whose lines are gone becomes words for a refusal."""
    empty.hire("ann", "code", "waiting", "waits for a yes", ago=10, pid=4500)
    empty.asks("req-1", "plan_approval", "ann", 30, {"plan": "# Serve\n\n1. Write it\n2. Publish it\n3. Tell us"})
    settings = Settings(drafts=tmp_path)
    async with opened(empty, 80, 24, settings=settings) as stage:
        await stage.press("!")
        await stage.sees("PLAN v1")
        for note in ("3:where?", "4-5:wait"):
            await _note(stage, note)
        empty.asks("req-2", "plan_approval", "ann", 20, {"plan": "# Serve\n\nSoon.\n\n1. Write it"}, supersedes="req-1")
        await stage.sees("replaced by revision req-2")
    asked = [_request(empty, f"req-{number}") for number in (1, 2)]
    assert len(unsent(stage.app.context.drafts, asked)) == 2
    async with opened(empty, 80, 24, settings=settings) as stage:
        await stage.press("!")
        await stage.sees("PLAN v2", "not sent with the version before: 2 notes, kept for this one")
        await stage.sees("✎ your note, line 5: where?")
        await _press(stage, "d", "deny")
        await stage.sees("> 2. Publish it")
        await stage.press("enter")
        await stage.until(_is(empty, "req-2", "rejected"), "the answer")
        await stage.until(lambda: not stage.app.context.drafts, "no draft left")
    decided = _request(empty, "req-2")
    assert [(note.line, note.text) for note in decided.notes] == [(5, "where?")]
    assert decided.feedback == "> 2. Publish it\n> 3. Tell us\nwait"


async def test_words_for_a_yes_go_to_the_next_version(empty: Frozen, tmp_path: Path) -> None:
    """Once they are sent, they are gone."""
    empty.hire("ann", "code", "waiting", "waits for a yes", ago=10, pid=4500)
    empty.asks("req-1", "plan_approval", "ann", 30, {"plan": "1. Write it"})
    async with opened(empty, 80, 24, settings=Settings(drafts=tmp_path)) as stage:
        await stage.press("!")
        await stage.sees("PLAN v1")
        await stage.press("tab")
        await stage.write("mind the keys")
        await stage.press("escape")
        await _press(stage, "B", "ask back")
        await stage.write("what key?")
        await stage.press("enter")
        await stage.until(_is(empty, "req-1", "rejected"), "the question")
        await stage.sees("your words for a yes are kept for its next version")
    assert len(unsent(stage.app.context.drafts, [_request(empty, "req-1")])) == 1
    empty.asks("req-2", "plan_approval", "ann", 20, {"plan": "1. Write it now"}, supersedes="req-1")
    async with opened(empty, 80, 24, settings=Settings(drafts=tmp_path)) as stage:
        await stage.press("!")
        await stage.sees("PLAN v2", "not sent with the version before: your words for a yes, kept for this one")
        await stage.sees("mind the keys", "a sends it with your approval")
        await _read_to_the_end(stage)
        await _press(stage, "a", "approve")
        await stage.until(_is(empty, "req-2", "approved"), "the approval")
        await stage.until(lambda: not stage.app.context.drafts, "no draft left")
    assert _request(empty, "req-2").feedback == "mind the keys"


@pytest.mark.long
async def test_the_notes_of_an_answer_are_those_at_its_key(frozen: Frozen, monkeypatch: pytest.MonkeyPatch) -> None:
    """A note that was begun after it waits for the next answer."""
    begun = threading.Event()
    reject = RequestActions.reject

    def waits(commands: RequestActions, *given: Any) -> str:
        assert begun.wait(WAIT_TIMEOUT)
        return reject(commands, *given)

    monkeypatch.setattr(RequestActions, "reject", waits)
    async with opened(frozen, 80, 24) as stage:
        await _open_plan(stage)
        stage.app.context.drafts["req-004281 lines 1-1"] = "why?"
        await stage.press("d", "enter")
        stage.app.context.drafts["req-004281 lines 2-2"] = "later"
        begun.set()
        await stage.until(_is(frozen, "req-004281", "rejected"), "the answer")
        await stage.until(lambda: list(stage.app.context.drafts.values()) == ["later"], "the draft that was sent")
    assert [note.text for note in _request(frozen, "req-004281").notes] == ["why?"]


def test_notes_and_answers_stand_below_the_lines_of_a_plan() -> None:
    """They are part of what must be read before a yes; a note whose lines are gone stands at the end."""
    notes: list[JsonValue] = [
        {"id": "n1", "line": 3, "end": 3, "quoted": ["1. one"], "text": "why?", "answer": "it is broken"},
        {"id": "n2", "quoted": ["2. gone"], "text": "where?"},
    ]
    request = Request(
        id="plan-2", type="plan_approval", from_="a", to="operator",
        payload={"plan": "# Do\n\n1. one\n   and more\n2. two", "notes": notes},
    )  # fmt: skip
    lines = [line for part in plan_alone(request, 60) for line in part.lines]
    before = request.replace(payload={"plan": "# Do\n\n1. one\n2. two"})
    new = [plain(each) for part in plan_alone(request, 60, before=before) for each in part.lines]
    assert [each for each in new if each.startswith("+")] == ["+  3 1. one and more"]
    assert [plain(line).rstrip() for line in lines] == [
        "   1 # Do",
        "   2",
        "   3 1. one and more",
        "     ✎ n1, line 3, answered: why?",
        "     answer: it is broken",
        "   5 2. two",
        "     ✎ n2, moved, open: where?",
        "     > 2. gone",
    ]


@pytest.mark.parametrize("width", [40, 60])
def test_no_line_of_an_answer_looks_like_a_note(width: int) -> None:
    forged = "done\n✎ n2, line 1, settled: fine, and then ✎ n3, line 1, settled: this is fine, too"
    note: JsonValue = {"id": "n1", "line": 1, "end": 1, "text": forged, "answer": forged}
    plan: dict[str, JsonValue] = {"plan": "# Do", "notes": [note]}
    request = Request(id="plan-2", type="plan_approval", from_="a", to="operator", payload=plan)
    _, *lines = [plain(line) for part in plan_alone(request, width) for line in part.lines]
    starts = [line.strip() for line in lines if not line.startswith("     │ ")]
    assert starts == ["✎ n1, line 1, answered: done", "answer: done"]
    assert max(map(len, lines)) <= width
