"""Plans and questions: read in full, answered once, bound to what was on the screen."""

from collections.abc import Callable

import pytest
from pydantic import JsonValue

from crewboard.records import Request
from crewboard.store import mailbox, requests
from crewboard.team import decisions
from crewboard_tui.screens import request as request_page
from crewboard_tui.widgets.log import Log
from tests.frozen import NOW, PLAN, Frozen
from tests.tui.stage import Stage, opened


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


async def test_the_page_shows_who_asks_what_it_touches_and_the_plan(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await _open_plan(stage)
        await stage.sees("FROM auth-plan (plan, pid 4412)", "WAITING 4m12s", "REQ req-004281")
        await stage.sees("TASK #7 rotate JWT keys", "RISK      schema change", "alembic upgrade head · pytest")
        await stage.sees("# Rotate the JWT signing keys", "item 2 of 5")


async def test_the_whole_plan_can_be_scrolled_and_says_how_much_was_read(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await _open_plan(stage)
        assert "100% read" not in stage.all
        await stage.press("G")
        await stage.sees("100% read", "tests/test_keyring.py")


async def test_approving_answers_once_and_goes_back(frozen: Frozen) -> None:
    async with opened(frozen) as stage:
        await _open_plan(stage)
        await stage.press("a")
        await stage.until(_is(frozen, "req-004281", "approved"), "the approval")
        await stage.sees("approved: auth-plan goes on", "Peek · ")
    answers = [m for m in mailbox.read(frozen.directory, "auth-plan").messages if m.type == "plan_approval_response"]
    assert [answer.metadata["approve"] for answer in answers] == [True]


async def test_keys_are_dead_for_a_moment_after_the_page_opens(frozen: Frozen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_page, "BLIND_FOR", 3600)
    async with opened(frozen) as stage:
        await stage.press("j", "a")
        await stage.sees("PLAN v2")
        await stage.press("a", "a")
        assert "a approve" not in stage.part("keys")
        assert _request(frozen, "req-004281").status == "pending"
        stage.app.screen._settle()  # type: ignore[attr-defined]
        await stage.press("a")
        await stage.until(_is(frozen, "req-004281", "approved"), "the approval")


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


async def test_feedback_goes_along_with_a_yes(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await _open_plan(stage)
        await stage.press("tab")
        await stage.write("mind the cache")
        await stage.press("escape")
        await stage.can("a", "approve")
        await stage.press("a")
        await stage.until(_is(frozen, "req-004281", "approved"), "the approval")
        assert _request(frozen, "req-004281").feedback == "mind the cache"


async def test_an_edited_plan_is_approved_as_edited(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await _open_plan(stage)
        await stage.press("e")
        await stage.sees("^s approves what stands here")
        await stage.write("0. Ask first. ")
        await stage.press("ctrl+s")
        await stage.until(_is(frozen, "req-004281", "approved"), "the approval")
        assert _request(frozen, "req-004281").edited == "0. Ask first. " + PLAN


async def test_a_rewritten_plan_is_kept_for_later(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await _open_plan(stage)
        await stage.press("e")
        await stage.write("0. Ask first. ")
        await stage.press("escape", "escape")
        await stage.sees("Peek · auth-plan")
        assert stage.app.desk.drafts == {"req-004281 plan": "0. Ask first. " + PLAN}
        await stage.press("a")
        await stage.sees("PLAN v2")
        await stage.can("a", "approve")
        await stage.press("e")
        await stage.sees("0. Ask first. ")
        await stage.press("ctrl+s")
        await stage.until(_is(frozen, "req-004281", "approved"), "the approval")
        await stage.sees("Peek · auth-plan")
        assert stage.app.desk.drafts == {}


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
        assert stage.app.desk.drafts == {}


async def test_a_plan_that_was_decided_elsewhere_is_not_answered_again(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await _open_plan(stage)
        decisions.reject(frozen.team, "req-004281", "no")
        await stage.sees("rejected by you at 15:04:22")
        await stage.press("a")
        await stage.pilot.pause()
        assert _request(frozen, "req-004281").status == "rejected"
        assert "a approve" not in stage.part("keys")


async def test_a_plan_that_was_revised_is_not_answered(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await _open_plan(stage)
        frozen.asks("req-004300", "plan_approval", "auth-plan", 1, {"plan": "# v3"}, supersedes="req-004281")
        await stage.sees("replaced by a newer revision, req-004300")
        assert "a approve" not in stage.part("keys")


async def test_a_request_that_changed_under_the_page_is_refused_by_its_hash(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await _open_plan(stage)
        request = _request(frozen, "req-004281")
        stage.app.screen.seen = request.model_copy(update={"sha256": "0" * 64})  # type: ignore[attr-defined]
        await stage.pilot.pause()
        stage.app.screen.action_approve()  # type: ignore[attr-defined]
        await stage.sees("is not what you saw")
        assert _request(frozen, "req-004281").status == "pending"


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


async def test_a_question_is_answered_with_a_choice(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.press("j", "j", "a")
        await stage.sees("QUESTION", "linked from two blog posts", "2  no, redirect them")
        await stage.press("2")
        await stage.until(lambda: stage.app.screen.settled, "the keys to live")  # type: ignore[attr-defined]
        await stage.press("enter")
        await stage.until(_is(frozen, "req-004290", "answered"), "the answer")
        assert _request(frozen, "req-004290").feedback == "no, redirect them"


async def test_a_question_is_answered_in_words_of_ones_own(frozen: Frozen) -> None:
    frozen.asks("req-1", "question", "api", 10, {"question": "Which name?"})
    async with opened(frozen, 80, 24) as stage:
        await stage.press("4", "G")
        await stage.sees("Which name?")
        await stage.press("/")
        await stage.write("a:api which")
        await stage.press("escape")
        await stage.app.action_open_need("question:api:req-1")
        await stage.sees("In your own words")
        await stage.until(lambda: stage.app.screen.settled, "the keys to live")  # type: ignore[attr-defined]
        await stage.write("call it after")
        await stage.press("enter")
        await stage.until(_is(frozen, "req-1", "answered"), "the answer")


async def test_a_permission_shows_its_tool_and_takes_a_yes(frozen: Frozen) -> None:
    frozen.asks("perm-1", "permission", "release", 22, {"tool": "bash", "summary": "git push origin rel-2.0"})
    async with opened(frozen, 80, 24) as stage:
        await stage.app.action_open_need("permission:release:perm-1")
        await stage.sees("PERMISSION", "git push origin rel-2.0")
        await stage.can("a", "approve")
        assert "edit" not in stage.part("keys")
        await stage.press("a")
        await stage.until(_is(frozen, "perm-1", "approved"), "the approval")


_WRITE: dict[str, JsonValue] = {"path": "src/a.py", "content": "x = 2\n"}
_DIFF = "--- a/src/a.py\n+++ b/src/a.py\n@@ -1 +1 @@\n-x = 1\n+x = 2"


async def test_a_permission_shows_the_change_and_is_given_with_its_rule(frozen: Frozen) -> None:
    payload: dict[str, JsonValue] = {
        "tool": "write_file", "input": _WRITE, "summary": "src/a.py", "diff": _DIFF, "scope": "src",
    }  # fmt: skip
    frozen.asks("perm-1", "permission", "release", 22, payload)
    async with opened(frozen, 100, 30) as stage:
        await stage.app.action_open_need("permission:release:perm-1")
        await stage.sees("A says yes to every write_file of release directly in src/", "-x = 1", "+x = 2")
        tones = {span.text: span.tone for line in stage.app.screen.query_one("#plan", Log).lines for span in line}
        assert (tones["-x = 1"], tones["+x = 2"]) == ("error", "success")
        await stage.can("A", "approve+rule")
        await stage.press("A")
        await stage.until(_is(frozen, "perm-1", "approved"), "the approval")
        await stage.sees("from now on every write_file of release")
    assert [(rule.agent, rule.tool, rule.scope) for rule in frozen.team.config.rules] == [
        ("release", "write_file", "src")
    ]


async def test_a_permission_shows_the_exact_command_and_no_rule_where_none_is_offered(frozen: Frozen) -> None:
    command = "git  push origin  rel-2.0 && rm -rf build # " + "x" * 70
    payload: dict[str, JsonValue] = {"tool": "bash", "input": {"command": command}, "summary": "git", "scope": None}
    frozen.asks("perm-1", "permission", "release", 22, payload)
    async with opened(frozen, 80, 24) as stage:
        await stage.app.action_open_need("permission:release:perm-1")
        await stage.sees("git  push origin  rel-2.0 && rm -rf build # xx")
        shown = "".join(span.text for line in stage.app.screen.query_one("#plan", Log).lines for span in line)
        assert command in shown
        await stage.can("a", "approve")
        assert "A approve" not in stage.part("keys")
        await stage.press("A")
        assert _request(frozen, "perm-1").status == "pending"


async def test_a_plan_shows_what_changed_since_the_revision_before(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await _open_plan(stage)
        await stage.press("=")
        await stage.sees("What changed", "--- v1", "+++ v2", "-# Rotate keys", "+# Rotate the JWT signing keys")
        await stage.press("=")
        await stage.sees_not("What changed")
        assert _request(frozen, "req-004281").status == "pending"


async def test_asking_back_is_a_no_with_a_question(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await _open_plan(stage)
        await stage.press("c")
        await stage.sees("What do you ask?", "│ Question:")
        await stage.press("enter")
        await stage.sees("say why")
        await stage.press("escape")
        await stage.sees_not("Question:")
        await stage.press("c")
        await stage.write("why 0042?")
        await stage.press("enter")
        await stage.until(_is(frozen, "req-004281", "rejected"), "the question")
        await stage.sees("asked back: auth-plan reads it")
        assert _request(frozen, "req-004281").feedback == "Question: why 0042?"


async def test_of_what_is_asked_at_once_the_plan_comes_first(frozen: Frozen) -> None:
    frozen.asks("req-1", "question", "api", 3, {"question": "Which name?"})
    frozen.asks("req-2", "plan_approval", "ui", 1, {"plan": "# Scroll"})
    async with opened(frozen, 80, 24) as stage:
        needs = [need.agent for need in stage.app.desk.snapshot.view.needs]
    assert needs == ["parser", "auth-plan", "docs", "ui", "api", "migrate", "flaky-hunt"]


async def test_next_goes_through_everything_that_needs_me(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.press("!")
        await stage.sees("parser · why", "killed by SIGKILL at 15:02:10", "pytest -x tests/parser", "outcome unknown")
        await stage.sees("collected 214 items / 3 errors", "3 not read (from ui)", "#14 parse the 2.0 grammar")
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
        await stage.app.action_open_need("plan:auth-plan:req-004281")
        await stage.sees("PLAN v2")
        await stage.press("a", "d", "e")
        assert "approve" not in stage.part("keys")
        assert _request(frozen, "req-004281").status == "pending"
