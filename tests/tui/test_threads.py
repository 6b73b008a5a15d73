"""Threads in a mailbox: the messages of a request under one row with its state."""

import pytest

from crewboard.commands import answers
from crewboard.protocol import requests
from crewboard.readmodel.mail import MailReader, MessageView
from crewboard.records.base import convert
from crewboard.records.requests import NewNote, Request
from crewboard.store import mailbox
from crewboard_tui.render.lines import plain
from crewboard_tui.views.message_list import Entry, MailboxInfo, find_threads, message_line, standing, story_lines
from tests.frozen import NOW, PLAN, Frozen
from tests.tui.stage import Stage, opened


def _refuse_and_revise(frozen: Frozen) -> None:
    """Reject a plan, let it be revised, and approve it."""
    answers.reject(frozen.team, "req-004281", "keep the alias")
    frozen.asks("req-004300", "plan_approval", "auth-plan", 20, {"plan": PLAN + "keep it"}, supersedes="req-004281")
    answers.approve(frozen.team, "req-004300")


async def _open_mail(stage: Stage) -> None:
    await stage.press("2")
    await stage.sees("docs       ")
    await stage.settles()
    await stage.press("enter")
    await stage.until(lambda: getattr(stage.app.focused, "id", "") == "mail", "the mail")
    await stage.press("g")


def test_who_is_free_for_work_stands_back_in_a_mailbox() -> None:
    # Agents of Claude Code tell a result with it.
    letters = [("idle_notification", "free for work", "dim"), ("idle_notification", "All tests pass.", "")]
    for kind, text, tone in (*letters, ("result", "free for work", "")):
        message = mailbox.compose("ann", "lead", kind, text, ts=NOW)
        line = message_line(MessageView(message, NOW, NOW), MailboxInfo("lead"), 60)
        assert [span.tone for span in line if "ann" in span.text] == [tone]


async def test_a_thread_says_how_its_request_stands(frozen: Frozen) -> None:
    async with opened(frozen, 120, 36) as stage:
        await _open_mail(stage)
        await stage.sees("+ 2 plans, waits · Rotate the JWT signing keys")
        _refuse_and_revise(frozen)
        await stage.sees("2 plans, 1 refusal, plan, approved 15:04")


@pytest.mark.long
async def test_a_question_back_is_no_refusal(frozen: Frozen) -> None:
    answers.reject(frozen.team, "req-004281", "Question: why 0042?")
    frozen.asks("req-004300", "plan_approval", "auth-plan", 20, {"plan": PLAN + "keep it"}, supersedes="req-004281")
    async with opened(frozen, 120, 36) as stage:
        await _open_mail(stage)
        await stage.press("G")
        await stage.sees("2 plans, asked back, plan, waits", "you asked back: why 0042?")
        assert "refusal" not in stage.all
        assert "rejected" not in stage.all


@pytest.mark.long
async def test_enter_unfolds_a_thread_whose_history_is_shown_below(frozen: Frozen) -> None:
    _refuse_and_revise(frozen)
    async with opened(frozen, 120, 36) as stage:
        await _open_mail(stage)
        await stage.press("G")
        await stage.sees("Thread", "you rejected: keep the alias", "you approved")
        assert "auth-plan  plan: Rotate keys" not in stage.all
        await stage.press("enter")
        await stage.sees("auth-plan  plan: Rotate keys", "− 2 plans")
        await stage.press("enter")
        await stage.sees_not("auth-plan  plan: Rotate keys")


@pytest.mark.long
async def test_what_was_asked_once_and_waits_is_no_thread(frozen: Frozen) -> None:
    async with opened(frozen, 120, 36) as stage:
        await stage.press("2")
        await stage.sees("docs       asks: The 1.x API pages")


@pytest.mark.long
async def test_the_asker_sees_the_same_thread_and_answers_are_words(frozen: Frozen) -> None:
    answers.answer(frozen.team, "req-004290", "yes")
    answers.approve(frozen.team, "req-004281", feedback="mind the cache")
    async with opened(frozen, 120, 36) as stage:
        await stage.press("2")
        for _ in range(3):
            await stage.press("j")
        await stage.sees("auth-plan · 1 unread", "2 plans, approved 15:04")
        await stage.press("enter", "enter")
        await stage.sees("approves the plan: mind the cache")


def test_threads_stand_where_their_newest_message_is(frozen: Frozen) -> None:
    frozen.mail(80, "docs", "operator", "message", "between", 300)
    asked = [
        convert({"id": "req-004270", "type": "plan_approval", "from": "auth-plan", "to": "operator",
                                "status": "rejected", "decided_at": NOW, "created_at": NOW - 700}, Request),
        convert({"id": "req-004281", "type": "plan_approval", "from": "auth-plan", "to": "operator",
                                "supersedes": "req-004270", "created_at": NOW - 252}, Request),
    ]  # fmt: skip
    found = find_threads(MailReader(frozen.directory, "operator").read(), asked)
    thread = found[0]
    assert standing(thread) == "plan, 1 refusal, plan, waits"
    assert [letter.message.metadata["request_id"] for letter in thread.letters] == ["req-004270", "req-004281"]
    assert len(found) == 3


def test_a_plan_sent_back_with_notes_is_no_refusal(frozen: Frozen) -> None:
    answers.reject(frozen.team, "req-004281", "", notes=[NewNote(1, 1, "why?")])
    asked = {each.id: each for each in requests.load_all(frozen.directory)}
    thread = Entry((), (asked["req-004281"],))
    assert standing(thread) == "plan, sent back"
    assert plain(story_lines(thread, NOW, 80, frozen.team.operator)[-1]).endswith("you sent back")


def _forge(frozen: Frozen) -> None:
    """Let `ui` approve the plan of `auth-plan`, which waits for the operator."""
    frozen.mail(90, "ui", "auth-plan", "plan_approval_response", "approved", 5, request_id="req-004281", approve=True)


@pytest.mark.long
async def test_a_response_that_decides_nothing_says_so_in_the_inbox(frozen: Frozen) -> None:
    _forge(frozen)
    async with opened(frozen, 120, 36) as stage:
        await stage.press("2", "j", "j", "j")
        await stage.sees("changes nothing: approves the plan", "changes nothing: req-004281 still waits for its answer")


@pytest.mark.long
async def test_a_response_without_effect_says_so_on_the_agents_page(frozen: Frozen) -> None:
    _forge(frozen)
    async with opened(frozen, 100, 30) as stage:
        await stage.press("j", "enter", "]")
        await stage.turns_to("Mail")
        await stage.sees("changes nothing: approves the plan")
        await stage.press("enter")
        await stage.sees("changes nothing: req-004281 still waits for its answer")


@pytest.mark.long
async def test_a_response_that_decided_is_told_as_what_it_is(frozen: Frozen) -> None:
    answers.approve(frozen.team, "req-004281")
    async with opened(frozen, 120, 36) as stage:
        await stage.press("2", "j", "j", "j")
        await stage.settles()
        await stage.press("enter", "enter")
        await stage.sees("2 plans, approved", "approves the plan")
        assert "changes nothing" not in stage.all
