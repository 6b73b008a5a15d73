"""Keys for agents: write, stop, end, resume, acknowledge."""

from typing import Any

import pytest

from crewboard.commands import hire
from crewboard.errors import CredentialsError, TryLaterError
from crewboard.operations import OPERATIONS, Done
from crewboard.records.agents import Engine
from crewboard.store import agents, mailbox
from crewboard_tui.actions import registry
from crewboard_tui.context import AGAIN_WITHIN
from tests.frozen import Frozen
from tests.tui.stage import opened

_API = ("j", "j", "j", "j", "j")


class Calls(list[tuple[Any, ...]]):
    """Replace a command and record its arguments."""

    def __init__(self, error: Exception | None = None, returns: object = None) -> None:
        super().__init__()
        self._error = error
        self._returns = returns

    def __call__(self, _team: object, *args: Any, **_more: Any) -> Any:  # noqa: ANN401  what the command returns
        self.append(args)
        if self._error is not None:
            raise self._error
        return self._returns


def replaced(
    monkeypatch: pytest.MonkeyPatch, ident: str, says: str = "", error: Exception | None = None, **more: bool
) -> Calls:
    """Replace what an operation does, and record for which agents it is done."""
    calls = Calls(error, Done(says, {}, **more))
    monkeypatch.setitem(OPERATIONS, ident, OPERATIONS[ident]._replace(run=calls))
    return calls


async def test_a_message_is_written_at_the_bottom_and_sent(frozen: Frozen) -> None:
    async with opened(frozen) as stage:
        await stage.press(*_API, "m")
        await stage.sees("to api ›")
        await stage.write("how far are you?")
        await stage.press("enter")
        await stage.sees("sent to api")
    sent = mailbox.read(frozen.directory, "api").messages[-1]
    assert (sent.from_, sent.type, sent.content) == ("operator", "message", "how far are you?")


@pytest.mark.long
async def test_a_message_to_an_agent_that_does_not_run_says_so(frozen: Frozen) -> None:
    async with opened(frozen) as stage:
        await stage.press("m")
        await stage.write("hello?")
        await stage.press("enter")
        await stage.sees("sent to parser; parser reads it when resumed")


@pytest.mark.long
async def test_esc_keeps_a_message_for_later(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.press(*_API, "m")
        await stage.write("half a thou")
        await stage.press("escape")
        await stage.sees_not("half a thou")
        await stage.press("m")
        await stage.sees("half a thou")


@pytest.mark.long
async def test_a_broadcast_goes_to_all_agents(frozen: Frozen) -> None:
    async with opened(frozen) as stage:
        await stage.press("b")
        await stage.sees("to all agents (11)")
        await stage.write("freeze")
        await stage.press("enter")
        await stage.sees("sent to 11 agents")
    assert mailbox.read(frozen.directory, "scan").messages[-1].type == "broadcast"


@pytest.mark.long
async def test_b_sends_the_marked_a_message_that_is_not_to_all(frozen: Frozen) -> None:
    async with opened(frozen) as stage:
        await stage.press(*_API, "space", "j", "space", "b")
        await stage.sees("to api, ui ›")
        await stage.write("freeze")
        await stage.press("enter")
        await stage.sees("sent to api, ui")
        await stage.sees_not("marked")
    for name in ("api", "ui"):
        newest = mailbox.read(frozen.directory, name).messages[-1]
        assert (newest.type, newest.content) == ("message", "freeze")
    assert not mailbox.read(frozen.directory, "scan").messages


@pytest.mark.long
async def test_a_stop_names_the_way_back(frozen: Frozen, monkeypatch: pytest.MonkeyPatch) -> None:
    replaced(monkeypatch, "agent.stop", says="api has shut down", can_resume=True)
    async with opened(frozen, 80, 24) as stage:
        await stage.press(*_API, "x")
        await stage.sees("api has shut down; r resumes it with its memory")


@pytest.mark.long
async def test_a_stop_that_did_nothing_has_no_tick(frozen: Frozen) -> None:
    # Its worker has ended since the team was read: nothing holds its lease.
    async with opened(frozen, 80, 24) as stage:
        await stage.press(*_API, "x")
        await stage.sees("✗ api is not running")
        await stage.press("space", "space", "space", "x")
        await stage.sees("0 of 3 have shut down; not api: api is not running")


@pytest.mark.usefixtures("in_time")
@pytest.mark.long
async def test_text_for_marked_agents_is_no_draft_for_a_broadcast(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.press(*_API, "space", "b")
        await stage.write("only you")
        await stage.press("escape", "k", "space", "b")
        assert stage.app.context.drafts == {"api": "only you"}


async def test_x_asks_to_shut_down_and_shows_a_refusal(frozen: Frozen, monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = TryLaterError("api refuses to shut down: in the middle of a migration")
    stop = replaced(monkeypatch, "agent.stop", error=refusal)
    async with opened(frozen) as stage:
        await stage.press(*_API, "x")
        await stage.sees("refuses to shut down: in the middle of a migration")
    assert stop == [("api",)]


@pytest.mark.usefixtures("in_time")
async def test_ending_takes_two_presses(frozen: Frozen, monkeypatch: pytest.MonkeyPatch) -> None:
    end = replaced(monkeypatch, "agent.end", "api and everything it started is ended")
    async with opened(frozen) as stage:
        await stage.press(*_API, "X")
        await stage.sees("X again within 2 s ends api")
        assert end == []
        await stage.press("X")
        await stage.sees("api and everything it started is ended")
    assert end == [("api",)]


@pytest.mark.usefixtures("in_time")
async def test_a_second_press_on_another_agent_ends_no_agent(frozen: Frozen, monkeypatch: pytest.MonkeyPatch) -> None:
    end = replaced(monkeypatch, "agent.end", "api and everything it started is ended")
    async with opened(frozen) as stage:
        await stage.press(*_API, "X", "j", "X")
        await stage.sees("X again within 2 s ends perf")
        assert end == []


@pytest.mark.long
async def test_a_second_press_that_comes_late_counts_as_the_first(
    frozen: Frozen, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = replaced(monkeypatch, "agent.end", "api and everything it started is ended")
    now = [1000.0]
    monkeypatch.setattr(registry, "monotonic", lambda: now[0])
    async with opened(frozen) as stage:
        await stage.press(*_API, "X")
        await stage.sees("X again within 2 s ends api")
        now[0] += AGAIN_WITHIN + 0.1
        await stage.press("X")
        assert end == []
        now[0] += AGAIN_WITHIN
        await stage.press("X")
        await stage.sees("api and everything it started is ended")
    assert end == [("api",)]


@pytest.mark.usefixtures("in_time")
async def test_a_third_press_confirms_nothing(frozen: Frozen, monkeypatch: pytest.MonkeyPatch) -> None:
    end = replaced(monkeypatch, "agent.end", "api and everything it started is ended")
    async with opened(frozen) as stage:
        await stage.press(*_API, "X", "X")
        await stage.sees("api and everything it started is ended")
        await stage.press("X")
        await stage.sees("X again within 2 s ends api")
    assert end == [("api",)]


async def test_r_resumes_a_dead_agent(frozen: Frozen, monkeypatch: pytest.MonkeyPatch) -> None:
    resume = Calls(returns=2)
    monkeypatch.setattr(hire, "resume", resume)
    async with opened(frozen) as stage:
        await stage.press("r")
        await stage.sees("parser is up again: run 2, with its memory")
    assert resume == [("parser",)]


@pytest.mark.long
async def test_fresh_starts_again_from_the_prompt(frozen: Frozen, monkeypatch: pytest.MonkeyPatch) -> None:
    spawn = Calls(returns=hire.Assignment("parser", "p2", 2, fresh=True))
    monkeypatch.setattr(hire, "spawn", spawn)
    async with opened(frozen) as stage:
        await stage.press("R")
        await stage.sees("run 2, without memory")
    assert spawn[0][0].prompt == "Be parser"


async def test_fresh_keeps_the_engine(frozen: Frozen, monkeypatch: pytest.MonkeyPatch) -> None:
    spawn = Calls(returns=hire.Assignment("parser", "p2", 2, fresh=True))
    monkeypatch.setattr(hire, "spawn", spawn)
    engine = Engine(name="acp", command=["/opt/an engine", "acp"])
    agent = frozen.directory.agent("parser")
    spec = agent.spec.load()
    assert spec is not None
    agents.change_spec(agent, lambda _: spec.replace(engine=engine, model="acp"))
    async with opened(frozen) as stage:
        await stage.press("R")
        await stage.sees("run 2, without memory")
    assert (spawn[0][0].engine, spawn[0][0].model) == ("acp:'/opt/an engine' acp", None)


_MARKED = ("j", "j", "j", "j", "j", "space", "space", "space")
"""Marks api, perf and ui."""


@pytest.mark.long
async def test_x_asks_all_marked_and_says_it_in_one_sentence(frozen: Frozen, monkeypatch: pytest.MonkeyPatch) -> None:
    stop = replaced(monkeypatch, "agent.stop")
    async with opened(frozen) as stage:
        await stage.press(*_MARKED, "x")
        await stage.sees("3 have shut down: api, perf, ui")
    assert sorted(stop) == [("api",), ("perf",), ("ui",)]


@pytest.mark.long
async def test_who_of_the_marked_refused_is_in_the_same_sentence(
    frozen: Frozen, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(_team: object, name: str) -> Done:
        if name == "perf":
            raise TryLaterError("in the middle of a search")
        return Done("", {})

    monkeypatch.setitem(OPERATIONS, "agent.stop", OPERATIONS["agent.stop"]._replace(run=stop))
    async with opened(frozen) as stage:
        await stage.press(*_MARKED, "x")
        await stage.sees("2 of 3 have shut down: api, ui; not perf: in the middle of a search")


@pytest.mark.long
@pytest.mark.usefixtures("in_time")
async def test_ending_all_marked_takes_two_presses(frozen: Frozen, monkeypatch: pytest.MonkeyPatch) -> None:
    end = replaced(monkeypatch, "agent.end", "api and everything it started is ended")
    async with opened(frozen) as stage:
        await stage.press(*_MARKED, "X")
        await stage.sees("X again within 2 s ends api, perf, ui")
        assert end == []
        await stage.press("X")
        await stage.sees("3 and everything they started are ended: api, perf, ui")
    assert sorted(end) == [("api",), ("perf",), ("ui",)]


@pytest.mark.long
@pytest.mark.parametrize(
    ("key", "says"), [("r", "with their memory"), pytest.param("R", "without memory", marks=pytest.mark.long)]
)
async def test_all_marked_that_are_over_are_resumed(
    frozen: Frozen, monkeypatch: pytest.MonkeyPatch, key: str, says: str
) -> None:
    monkeypatch.setattr(hire, "resume", Calls(returns=2))
    monkeypatch.setattr(hire, "spawn", Calls(returns=hire.Assignment("x", "p2", 2, fresh=True)))
    async with opened(frozen) as stage:
        await stage.press("*", key)
        await stage.sees(f"2 are up again, {says}: parser, scan")


@pytest.mark.long
async def test_an_error_is_a_sentence_on_the_screen(frozen: Frozen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hire, "resume", Calls(CredentialsError("no API key: set ANTHROPIC_API_KEY")))
    async with opened(frozen) as stage:
        await stage.press("r")
        await stage.sees("no API key: set ANTHROPIC_API_KEY")
        assert "Traceback" not in stage.all


async def test_a_fault_of_ours_is_a_sentence_too(frozen: Frozen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hire, "resume", Calls(ZeroDivisionError("[/oops]")))
    async with opened(frozen) as stage:
        await stage.press("r")
        await stage.sees("an error in crewboard: ZeroDivisionError: [/oops]")


async def test_acknowledging_a_death_takes_it_off_the_list(frozen: Frozen) -> None:
    async with opened(frozen) as stage:
        await stage.press("D")
        await stage.sees("acknowledged: parser")
        await stage.until(lambda: "✖1 died" in stage.part("strip"), "a death that was seen in the strip")
    state = frozen.directory.operator.load()
    assert state is not None
    assert state.acknowledged == {"parser": 1}


@pytest.mark.long
async def test_an_ended_agent_is_removed_after_a_yes(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.press("delete")
        await stage.sees("remove parser? ›", "3 unread messages stay unread", "the files are kept")
        await stage.write("no")
        await stage.press("enter")
        await stage.sees("type yes, or leave")
        await stage.press("ctrl+u")
        await stage.write("yes")
        await stage.press("enter")
        await stage.sees("parser is removed; its files are in")
        await stage.sees("Team 10 ")
        assert "Type yes" not in stage.all
    assert "parser" not in frozen.team.config.names
    assert list((frozen.directory.path / "removed").glob("parser-*"))


async def test_a_running_agent_is_not_removed(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.press("j", "delete")
        await stage.sees("remove: auth-plan is running; x stops it first")


@pytest.mark.long
async def test_a_title_is_shown_beside_the_name(frozen: Frozen) -> None:
    async with opened(frozen) as stage:
        await stage.press(*_API, "I")
        await stage.sees("rename api ›", "shown beside the name; empty removes it")
        await stage.write("Orders")
        await stage.press("enter")
        await stage.sees("api is shown as api Orders", "● api Orders")
