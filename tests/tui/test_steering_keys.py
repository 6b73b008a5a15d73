"""Keys that pause and interrupt agents, talk with the lead, and end all agents."""

import threading
import time

import pytest

from crewboard.commands import control, hire, stop
from crewboard.errors import CredentialsError
from crewboard.protocol import supervisor_client
from crewboard.readmodel.reader import read_team
from crewboard.records.processes import HeldStart, HeldStarts
from crewboard.store import agents, mailbox
from crewboard_tui import app as dashboard
from crewboard_tui.context import AGAIN_WITHIN
from tests.frozen import Frozen
from tests.tui.stage import opened
from tests.tui.test_agent_keys import Calls, replaced

_API = ("j", "j", "j", "j", "j")


def _hold(frozen: Frozen, name: str) -> None:
    agents.want(frozen.directory.agent(name), "paused", run=1)


async def test_an_answer_to_a_paused_agent_says_that_it_waits(frozen: Frozen) -> None:
    _hold(frozen, "api")
    frozen.asks("q-1", "question", "api", 10, {"question": "Which?", "options": ["keep", "trash"]})
    async with opened(frozen) as stage:
        await stage.app.open_need("question:api:q-1")
        await stage.settles()
        await stage.press("enter")
        await stage.sees("answered: api is paused, and goes on with it once it continues")


async def test_p_pauses_and_goes_on(frozen: Frozen, monkeypatch: pytest.MonkeyPatch) -> None:
    pause = replaced(monkeypatch, "agent.pause", "api pauses at its next safe point")
    unpause = replaced(monkeypatch, "agent.unpause", "api continues")
    async with opened(frozen) as stage:
        await stage.settles()
        assert "p pause" not in stage.offered
        await stage.press(*_API)
        await stage.can("p", "pause")
        await stage.press("p")
        await stage.sees("api pauses at its next safe point; p again takes that back")
        _hold(frozen, "api")
        await stage.until(lambda: _is_held(stage.app, "api"), "the hold to be read")
        await stage.can("p", "continue")
        await stage.sees("pausing · ")
        await stage.press("p")
        await stage.sees("api continues")
    assert (pause, unpause) == ([("api",)], [("api",)])


@pytest.mark.long
async def test_capital_p_pauses_all_agents_and_then_resumes_them(
    frozen: Frozen, monkeypatch: pytest.MonkeyPatch
) -> None:
    pause = replaced(monkeypatch, "agent.pause", "")
    unpause = replaced(monkeypatch, "agent.unpause", "")
    async with opened(frozen) as stage:
        await stage.press("P")
        await stage.sees("9 pause at their next safe point; P again takes that back: ")
        for name in frozen.probe.held:
            _hold(frozen, name)
        await stage.until(lambda: all(_is_held(stage.app, name) for name in frozen.probe.held), "all to be held")
        await stage.press("P")
        await stage.sees("9 continue: ")
    assert sorted(pause) == sorted(unpause) == sorted((name,) for name in frozen.probe.held)


@pytest.mark.long
async def test_i_interrupts_with_a_line_or_with_none(frozen: Frozen, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt = Calls(returns=mailbox.compose("operator", "api", "interrupt", ""))
    monkeypatch.setattr(control, "interrupt", interrupt)
    async with opened(frozen) as stage:
        await stage.press(*_API, "i")
        await stage.sees("interrupt api ›", "empty: where does it stand?")
        await stage.write("stop that")
        await stage.press("enter")
        await stage.sees("api is interrupted, and reads it now")
        await stage.press("i", "enter")
        await stage.until(lambda: len(interrupt) == 2, "the second")
        await stage.press("i", "escape")
    assert interrupt == [("api", "stop that"), ("api", "")]


@pytest.mark.long
async def test_an_interrupt_of_a_paused_agent_says_when_it_is_read(
    frozen: Frozen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "interrupt", Calls(returns=mailbox.compose("operator", "api", "interrupt", "")))
    status = frozen.directory.agent("api").status
    status.save(status.load().replace(state="paused"))  # type: ignore[union-attr]
    async with opened(frozen) as stage:
        await stage.sees("‖ api")
        await stage.press("G", *["k"] * 2, "i", "enter")
        await stage.sees("api is paused, and reads your message once it continues")


@pytest.mark.long
async def test_l_hires_a_lead_if_there_is_none(frozen: Frozen, monkeypatch: pytest.MonkeyPatch) -> None:
    tell = Calls(CredentialsError("no API key: set ANTHROPIC_API_KEY"))
    monkeypatch.setattr(hire, "tell_lead", tell)
    async with opened(frozen, 80, 24) as stage:
        await stage.press("l")
        await stage.sees("hire a lead: what should the team do?", "there is no lead")
        await stage.write("ship it")
        await stage.press("enter")
        await stage.sees("no API key: set ANTHROPIC_API_KEY")
    assert tell == [("ship it",)]


def results_to_read(frozen: Frozen) -> int:
    lead = read_team(frozen.directory).agent("lead")
    assert lead is not None
    return lead.unread_results


@pytest.mark.long
async def test_the_talk_with_the_lead_goes_back_and_forth(frozen: Frozen, monkeypatch: pytest.MonkeyPatch) -> None:
    frozen.hire("lead", "code", "idle", "", ago=5, pid=4500)
    monkeypatch.setattr(hire, "tell_lead", Calls(returns=hire.Assignment("lead", "m1", 1, fresh=False)))
    frozen.mail(70, "operator", "lead", "message", "How far are we?", 20)
    frozen.mail(71, "scan", "operator", "message", "Not for this page.", 15)
    async with opened(frozen, 80, 24) as stage:
        await stage.press("l")
        await stage.sees("to the lead ›", "━━ Mail ", "you        How far are we?")
        await stage.write("and?")
        await stage.press("enter")
        await stage.sees("sent to the lead")
        answer = "Two of three tasks are done, the third waits for the migration.\nI would wait."
        frozen.mail(72, "lead", "operator", "result", answer, 1)
        await stage.sees("lead       Two of three", "I would wait.")
        assert "Not for this page" not in stage.all
        # What was read here in full is no result to read any more; a longer one is.
        await stage.until(lambda: results_to_read(frozen) == 0, "the answer being read")
        frozen.mail(73, "lead", "operator", "result", "\n".join(f"line {at}" for at in range(30)), 1)
        await stage.sees("line 29", "1 result to read")
        await stage.settles()
        assert results_to_read(frozen) == 1
        await stage.press("l")
        await stage.sees("to the lead ›")
        await stage.press("escape", "escape")
        await stage.sees("Peek · ")


@pytest.mark.long
@pytest.mark.parametrize(
    ("text", "sees"),
    [
        ("/tasks", "Tasks · 1/8"),
        pytest.param("/inbox ui", "ui · 1 unread", marks=pytest.mark.long),
        pytest.param("@ui look", "sent to ui", marks=pytest.mark.long),
    ],
)
async def test_a_command_to_the_lead_hires_none(
    frozen: Frozen, monkeypatch: pytest.MonkeyPatch, text: str, sees: str
) -> None:
    tell = Calls(returns=hire.Assignment("lead", "m1", 1, fresh=True))
    monkeypatch.setattr(hire, "tell_lead", tell)
    async with opened(frozen, 80, 24) as stage:
        await stage.press("l")
        await stage.sees("hire a lead: what should the team do?")
        await stage.write(text)
        await stage.press("enter")
        await stage.sees(sees)
    assert tell == []


@pytest.mark.long
async def test_l_talks_to_a_lead_of_another_name(frozen: Frozen, monkeypatch: pytest.MonkeyPatch) -> None:
    frozen.hire("boss", "lead", "idle", "", ago=5, pid=4500)
    tell = Calls(returns=hire.Assignment("boss", "m1", 1, fresh=False))
    monkeypatch.setattr(hire, "tell_lead", tell)
    frozen.mail(70, "operator", "boss", "message", "How far are we?", 20)
    async with opened(frozen, 80, 24) as stage:
        await stage.press("l")
        await stage.sees("to boss, the lead ›", "━━ Mail ", "you        How far are we?")
        await stage.write("and?")
        await stage.press("enter")
        await stage.sees("sent to the lead")
        await stage.press("2")
        await stage.press("j")
        await stage.sees("boss is the lead: you read it")
    assert tell == [("and?",)]


@pytest.mark.long
async def test_halt_ends_all_agents_once_the_team_name_is_typed(
    frozen: Frozen, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[object] = []
    monkeypatch.setattr(stop, "delete", lambda _team, **how: ended.append(how))
    async with opened(frozen, 80, 24) as stage:
        for last, says in (("escape", "no agent was ended"), ("enter", "all agents are ended; the files stay")):
            await stage.press(":")
            await stage.write("halt")
            await stage.sees("stop all agents; asks for the team's name")
            await stage.until(lambda: all(each.is_finished for each in stage.app.workers), "the end of the search")
            await stage.press("enter")
            await stage.sees("the team's name ›", "Type demo")
            # The line stays with a wrong name: what is typed next must not reach the view, where letters are keys.
            await stage.write("dem")
            await stage.press("enter")
            await stage.sees("no agent was ended: Type demo", "the team's name › dem")
            await stage.write("o")
            await stage.press(last)
            await stage.sees(says)
    assert ended == [{"now": True}]


@pytest.mark.long
async def test_a_hung_supervisor_needs_you_and_is_replaced_from_the_palette(
    frozen: Frozen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor_client, "restart", lambda _: 4711)
    async with opened(frozen, 80, 24) as stage:
        await stage.sees("flaky-hunt")
        monkeypatch.setattr(supervisor_client, "silent_for", lambda _: 16.0)
        await stage.sees("! open", "supervisor hangs: `crewboard supervisor --restart`")
        await stage.press(":")
        await stage.write("restart supervisor")
        await stage.sees("restart supervisor  replace a supervisor that hangs; agents")
        await stage.until(lambda: all(each.is_finished for each in stage.app.workers), "the end of the search")
        await stage.press("enter")
        await stage.sees("supervisor 4711 works")


def _is_held(app: object, name: str) -> bool:
    agent = app.context.snapshot.view.agent(name)  # type: ignore[attr-defined]
    return bool(agent.spec.want == "paused")


@pytest.mark.long
async def test_a_running_job_is_shown_until_it_is_done(frozen: Frozen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("crewboard_tui.context.SAID_FOR", 0)
    go_on = threading.Event()

    def wordless() -> str:
        go_on.wait()
        return ""

    async with opened(frozen, 80, 24) as stage:
        desk = stage.app.context
        desk.do("asking api", wordless)
        assert not desk.hush()
        desk.say("copied: api")
        assert desk.hush()
        await stage.sees("asking api …")
        go_on.set()
        await stage.sees_not("asking api …")


@pytest.mark.long
async def test_the_offer_of_a_second_press_goes_when_it_is_void(
    frozen: Frozen, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A tick would remove the message before the test reads it.
    monkeypatch.setattr(dashboard, "TICK", 3600.0)
    async with opened(frozen, 80, 24) as stage:
        await stage.press("j", "X")
        await stage.sees("X again within 2 s ends auth-plan")
        said = stage.app.context.said
        assert said is not None
        assert said.until is not None
        assert said.until - time.monotonic() <= AGAIN_WITHIN


async def test_x_takes_a_queued_agent_out_of_the_queue(empty: Frozen, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped = Calls()
    monkeypatch.setattr(stop, "stop", stopped)
    empty.hire("later", "code", "idle", "", ago=60, pid=4711)
    agents.want(empty.directory.agent("later"), "running")
    agents.change_spec(empty.directory.agent("later"), lambda spec: spec.replace(run=2))  # type: ignore[union-attr]
    del empty.probe.held["later"]
    held = HeldStarts(held=[HeldStart(name="later", run=2, since=1, reason="max_agents 1 reached")])
    empty.directory.starts.save(held)
    async with opened(empty, 80, 24) as stage:
        await stage.sees("queued 1st: max_agents 1 reached")
        await stage.can("x", "stop")
        await stage.press("x")
        await stage.until(lambda: stopped, "the stop")
    assert stopped == [("later",)]
