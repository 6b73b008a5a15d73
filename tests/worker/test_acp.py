"""The client of the Agent Client Protocol: recorded sessions of real engines, and lines that none would send."""

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crewboard.records.agents import Tokens
from crewboard.records.base import check_depth
from crewboard.worker.acp import (
    LONGEST_LINE,
    Ask,
    Call,
    Ended,
    Engine,
    EngineError,
    EngineGoneError,
    Filled,
    Line,
    Said,
    Steps,
    Update,
    read_call,
    read_reset,
)
from tests.worker.replayed_engine import starts

RECORDINGS = Path(__file__).parents[1] / "data" / "acp"

CWD = Path("/workspace")


@dataclass
class Heard:
    """All that a client heard of an engine."""

    engine: Engine
    updates: list[Update] = field(default_factory=list)
    asks: list[Ask] = field(default_factory=list)
    ends: list[Ended] = field(default_factory=list)

    def take_news(self) -> None:
        while not self.engine.news.empty():
            found = self.engine.news.get_nowait()
            if isinstance(found, Ask):
                self.asks.append(found)
            else:
                self.updates.append(found)

    def said(self, kind: str = "text") -> list[str]:
        """Return the texts of one kind, the pieces of each joined."""
        texts: dict[str, str] = {}
        for at, each in enumerate(self.updates):
            if isinstance(each, Said) and each.kind == kind:
                key = each.message or str(at)
                texts[key] = texts.get(key, "") + each.text
        return list(texts.values())

    def calls(self) -> dict[str, Call]:
        found: dict[str, Call] = {}
        for each in self.updates:
            if isinstance(each, Call):
                found[each.id] = found[each.id].merged(each) if each.id in found else each
        return found


@asynccontextmanager
async def process(*arguments: str) -> AsyncIterator[tuple[Engine, asyncio.subprocess.Process]]:
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-IS", *arguments, stdin=-1, stdout=-1, stderr=-1, limit=LONGEST_LINE
    )
    assert child.stdin is not None
    assert child.stdout is not None
    engine = Engine(child.stdout, child.stdin)
    try:
        yield engine, child
    finally:
        await engine.close()
        await child.wait()


async def replay(recording: str, start: int = 0) -> Heard:
    """Do what the recorded client did, to a process that does what the recorded engine did. Return what was heard."""
    path = RECORDINGS / f"{recording}.jsonl"
    script = str(Path(__file__).with_name("replayed_engine.py"))
    async with process(script, str(path), str(start)) as (engine, child):
        heard = Heard(engine)
        prompts: list[asyncio.Future[Ended]] = []
        for each in starts(path)[start]:
            if each["dir"] == "outgoing":
                await repeat(each["msg"], heard, prompts)
        heard.ends += await asyncio.gather(*prompts)
        heard.take_news()
        assert child.stderr is not None
        await engine.close()
        assert (await child.stderr.read()).decode() == ""
        return heard


async def repeat(message: dict[str, Any], heard: Heard, prompts: "list[asyncio.Future[Ended]]") -> None:
    """Do what a recorded message of the client says."""
    engine, params = heard.engine, message.get("params", {})
    match message.get("method"):
        case "initialize":
            await engine.initialize()
        case "session/new":
            await engine.new(CWD, [])
        case "session/load":
            await engine.load(params["sessionId"], CWD, [])
        case "session/set_mode" | "session/set_config_option" as method:
            await engine.set(method, {key: value for key, value in params.items() if key != "sessionId"})
        case "session/prompt":
            await asyncio.gather(*prompts)
            prompts.append(asyncio.ensure_future(engine.prompt(params["prompt"][0]["text"])))
            # The request is sent when the task runs.
            await asyncio.sleep(0)
        case "session/cancel":
            engine.cancel()
        case None if "outcome" in message.get("result", {}):
            while not isinstance(found := await engine.news.get(), Ask):
                heard.updates.append(found)
            heard.asks.append(found)
            engine.answer(found, allow=message["result"]["outcome"]["optionId"] == found.options.get("allow_once"))


async def test_a_recorded_turn_of_claude_is_understood() -> None:
    heard = await replay("claude-p2")
    assert (heard.engine.name, heard.engine.version) == ("@agentclientprotocol/claude-agent-acp", "0.101.0")
    assert heard.engine.loads
    assert heard.engine.steers
    assert heard.said("thought") == ["let me look"]
    assert heard.ends[0] == Ended("end_turn", Tokens(input=86711, output=140))
    assert heard.ends[1].reason == "cancelled"
    assert next(each.cost_usd for each in heard.updates if isinstance(each, Filled) and each.cost_usd) == 0.3497553
    assert next(each for each in heard.updates if isinstance(each, Steps)).items == [
        {"text": "editing", "status": "in_progress"}, {"text": "run", "status": "pending"},
    ]  # fmt: skip
    edit = heard.calls()["toolu_0005_0"]
    assert (edit.name, edit.kind, edit.status) == ("Edit", "edit", "completed")
    assert edit.input["new_string"] == "BETA"
    assert edit.diff is not None
    assert edit.diff[1:] == ("alpha\nbeta", "alpha\nBETA")
    assert heard.asks[0].call.id == "toolu_0005_0"
    assert heard.asks[0].options["allow_once"] == "allow-once"
    assert not [each for each in heard.updates if isinstance(each, Line)]


async def test_a_recorded_turn_of_codex_is_understood() -> None:
    heard = await replay("codex-p2")
    assert heard.ends[0] == Ended("end_turn", Tokens(input=66557, output=120))
    assert heard.ends[1] == Ended("cancelled", None)
    run = heard.calls()["call_0004_0"]
    assert (run.kind, run.input["command"], run.status) == ("execute", "echo new > src/n.txt", "completed")
    assert not any(each.cost_usd for each in heard.updates if isinstance(each, Filled))
    ran = (await replay("codex-p5")).calls()["call_0001_0"]
    assert (ran.status, ran.printed) == ("failed", "/bin/bash: line 1: src/n.txt: Read-only file system\n")


@pytest.mark.parametrize("engine", ["claude", "codex"])
async def test_a_plan_comes_with_its_text(engine: str) -> None:
    heard = await replay(f"{engine}-p6")
    (asked,) = heard.asks
    assert asked.call.plan == "# Plan v1\n1. write n.txt\n"
    assert set(asked.options) >= {"allow_once", "reject_once"}


@pytest.mark.parametrize("engine", ["claude", "codex", "opencode"])
async def test_a_loaded_session_tells_the_letters_in_it(engine: str) -> None:
    recording = "opencode-p3" if engine == "opencode" else f"{engine}-p5"
    first = starts(RECORDINGS / f"{recording}.jsonl")[0]
    sent = [
        each["msg"]["params"]["prompt"][0]["text"] for each in first if each["msg"].get("method") == "session/prompt"
    ]
    heard = await replay(recording, 1)
    assert heard.said("user")[: len(sent)] == sent


async def test_an_extension_of_an_engine_is_refused_and_does_no_harm() -> None:
    heard = await replay("qwen-p6")
    assert heard.ends == [Ended("end_turn", None)]
    heard = await replay("gemini-p6")
    assert heard.ends == [Ended("end_turn", Tokens(input=74812, output=120))]
    assert heard.said()[-1] == "done"


# What a client hears in memory, without a process.


class Wire:
    """A writer that keeps what is sent."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []

    def write(self, data: bytes) -> None:
        self.sent.append(json.loads(data))

    def close(self) -> None: ...

    async def wait_closed(self) -> None: ...


def connected() -> tuple[Engine, asyncio.StreamReader, Wire]:
    reader, wire = asyncio.StreamReader(limit=1 << 20), Wire()
    return Engine(reader, cast("asyncio.StreamWriter", wire)), reader, wire


def line(**message: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n"


def update(**fields: Any) -> bytes:
    return line(method="session/update", params={"sessionId": "s", "update": fields})


async def hear(*lines: bytes) -> list[Update | Ask]:
    engine, reader, _ = connected()
    # No recorded line answers this prompt.
    engine.session, engine._last_id = "s", 1 << 60
    for each in lines:
        reader.feed_data(each)
    reader.feed_eof()
    with pytest.raises(EngineGoneError):
        await engine.prompt("x")
    heard = []
    while not engine.news.empty():
        heard.append(engine.news.get_nowait())
    await engine.close()
    return heard


async def test_what_is_unknown_becomes_a_plain_line() -> None:
    heard = await hear(b"npm warn deprecated\n", update(sessionUpdate="dance"), update(), b"[1]\n", b"\n")
    assert heard == [Line("npm warn deprecated"), Line("dance"), Line("an update without a kind"), Line("[1]")]


async def test_the_words_of_an_adapter_are_not_those_of_its_model() -> None:
    told: dict[str, Any] = {
        "sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "**Warning:** it is late"},
    }  # fmt: skip
    kinds = [{"kind": "informational"}, {"kind": "mcpServerStatus"}, {}]
    heard = await hear(*(update(**told, _meta={"claudeCode": each}) for each in kinds))
    assert [each.kind for each in heard if isinstance(each, Said)] == ["note", "note", "text"]


async def test_updates_of_another_session_are_left_out() -> None:
    other = line(method="session/update", params={"sessionId": "t", "update": {"sessionUpdate": "dance"}})
    assert await hear(other) == []


async def test_a_request_ends_when_the_engine_does() -> None:
    engine, reader, _ = connected()
    waiting = asyncio.ensure_future(engine.prompt("x"))
    await asyncio.sleep(0)
    reader.feed_eof()
    with pytest.raises(EngineGoneError, match="ended"):
        await waiting
    with pytest.raises(EngineGoneError, match="ended"):
        await engine.prompt("again")
    await engine.close()


async def test_a_line_that_is_too_long_ends_the_connection() -> None:
    engine, reader, _ = connected()
    waiting = asyncio.ensure_future(engine.prompt("x"))
    await asyncio.sleep(0)
    reader.feed_data(b"x" * (3 << 20))
    with pytest.raises(EngineGoneError, match="a line of more than"):
        await waiting
    await engine.close()


async def test_an_error_says_what_the_engine_said() -> None:
    engine, reader, _ = connected()
    waiting = asyncio.ensure_future(engine.new(CWD, []))
    await asyncio.sleep(0)
    reader.feed_data(
        line(id=1, error={"code": -32000, "message": "Authentication required", "data": {"details": "log in"}})
    )
    with pytest.raises(EngineError, match="Authentication required: log in"):
        await waiting
    await engine.close()


async def test_each_request_gets_its_own_answer() -> None:
    engine, reader, _ = connected()
    prompt = asyncio.ensure_future(engine.prompt("x"))
    await asyncio.sleep(0)
    steering = asyncio.ensure_future(engine.steer("y"))
    await asyncio.sleep(0)
    reader.feed_data(line(id=1, result={"stopReason": "end_turn"}))
    assert (await prompt).reason == "end_turn"
    reader.feed_data(line(id=2, result={"outcome": "injected"}))
    assert await steering
    await engine.close()


async def test_another_version_of_the_protocol_is_refused() -> None:
    engine, reader, _ = connected()
    waiting = asyncio.ensure_future(engine.initialize())
    await asyncio.sleep(0)
    reader.feed_data(line(id=1, result={"protocolVersion": 2}))
    with pytest.raises(EngineError, match="version 2"):
        await waiting
    await engine.close()


@pytest.mark.parametrize(
    ("kinds", "allow", "outcome", "is_as_wanted"),
    [
        (["allow_always", "allow_once", "reject_once"], True, "allow_once", True),
        (["allow_always", "allow_once", "reject_once"], False, "reject_once", True),
        # What would allow all later calls, too, is never chosen.
        (["allow_always", "reject_once"], True, None, False),
        (["allow_once", "reject_always"], False, None, True),
    ],
)
async def test_only_this_one_call_is_allowed(
    kinds: list[str], allow: bool, outcome: str | None, is_as_wanted: bool
) -> None:
    engine, reader, wire = connected()
    engine.session = "s"
    options = [{"optionId": f"the {kind}", "kind": kind, "name": kind} for kind in kinds]
    reader.feed_data(
        line(
            id="q",
            method="session/request_permission",
            params={"sessionId": "s", "toolCall": {"toolCallId": "c"}, "options": options},
        )
    )
    asked = await engine.news.get()
    assert isinstance(asked, Ask)
    assert engine.answer(asked, allow=allow) is is_as_wanted
    expected = {"outcome": "cancelled"} if outcome is None else {"outcome": "selected", "optionId": f"the {outcome}"}
    assert wire.sent == [{"jsonrpc": "2.0", "id": "q", "result": {"outcome": expected}}]
    await engine.close()


RECORDED = [
    each["msg"]
    for path in sorted(RECORDINGS.glob("*.jsonl"))
    for each in map(json.loads, path.read_text().splitlines())
    if each["dir"] == "incoming"
]

ODD: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda children: st.lists(children, max_size=2) | st.dictionaries(st.text(max_size=5), children, max_size=2),
    max_leaves=3,
)


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A recorded line of an engine in which something was replaced, removed, or cut."""
    whole = json.loads(json.dumps(draw(st.sampled_from(RECORDED))))
    here = whole
    while True:
        key = draw(st.sampled_from(sorted(here) if isinstance(here, dict) else range(len(here))))
        below = here[key]
        if not isinstance(below, dict | list) or not below or draw(st.booleans()):
            break
        here = below
    if draw(st.booleans()):
        del here[key]
    else:
        here[key] = draw(ODD)
    data = json.dumps(whole).encode()
    return data[: draw(st.integers(0, len(data)))] if draw(st.integers(0, 4)) == 0 else data


@pytest.mark.long
@given(lines=st.lists(mutated() | st.binary(max_size=20), max_size=5))
def test_no_line_keeps_a_later_one_from_being_read(lines: list[bytes]) -> None:
    async def check() -> None:
        last = update(sessionUpdate="agent_message_chunk", content={"type": "text", "text": "still here"})
        heard = await hear(*(each.replace(b"\n", b" ") + b"\n" for each in lines), last)
        assert heard[-1] == Said("text", "still here")

    asyncio.run(check())


async def test_a_call_with_a_deep_input_is_heard_without_its_depth() -> None:
    deep: Any = "x"
    # Half of what the parser takes.
    for _ in range(sys.getrecursionlimit() // 2):
        deep = {"in": deep}
    told = {"sessionUpdate": "tool_call_update", "toolCallId": "c", "status": "completed"}
    given = {"command": "ls", "options": deep}
    (call,) = await hear(update(**told, rawInput=given, rawOutput=deep))
    assert isinstance(call, Call)
    assert call.input["command"] == "ls"
    check_depth({"payload": call.input})
    assert "nested too deeply" in call.output


NOON = datetime(2026, 11, 27, 12, tzinfo=ZoneInfo("Europe/Paris"))


@pytest.mark.parametrize(
    ("text", "month", "day", "hour", "minute"),
    [
        ("You've hit your session limit · resets 10:10pm (Europe/Paris)", 11, 27, 22, 10),
        ("You've hit your session limit · resets 3am (Europe/Paris)", 11, 28, 3, 0),
        # It was over just now.
        ("You've hit your session limit · resets 11:30am (Europe/Paris)", 11, 27, 11, 30),
        ("You've hit your weekly limit · resets Dec 3, 9am (Europe/Paris)", 12, 3, 9, 0),
        ("You've hit your weekly limit · resets Dec 3 at 9am (Europe/Paris)", 12, 3, 9, 0),
        ("You've hit your limit · resets 12am (Asia/Tokyo)", 11, 27, 16, 0),
        ("Upgrade to Plus, or try again at Nov 30th, 2026 8:19 PM.", 11, 30, 20, 19),
        ("You've hit your usage limit. Try again at 8:19 PM.", 11, 27, 20, 19),
    ],
)
def test_the_end_of_a_usage_limit_is_read(
    monkeypatch: pytest.MonkeyPatch, text: str, month: int, day: int, hour: int, minute: int
) -> None:
    monkeypatch.setenv("TZ", "Europe/Paris")
    time.tzset()
    try:
        found = read_reset(text, NOON.timestamp())
    finally:
        monkeypatch.undo()
        time.tzset()
    assert found == NOON.replace(month=month, day=day, hour=hour, minute=minute).timestamp() + 60


@pytest.mark.parametrize("text", ["try again", "resets Feb 31, 9am", "resets 3am (Nowhere/Land)", "resets 99:99am"])
def test_an_end_of_a_limit_that_is_not_told_is_not_guessed(text: str) -> None:
    assert read_reset(text, NOON.timestamp()) is None


def test_a_limit_in_december_may_end_in_january() -> None:
    now = datetime(2026, 12, 30, 12, tzinfo=UTC)
    assert read_reset("resets Jan 2, 9am (UTC)", now.timestamp()) == datetime(2027, 1, 2, 9, 1, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("text", "output"),
    [
        ("```console\n0\nok\n```", "0\nok"),
        ("```\n<tool_use_error>no such tool</tool_use_error>\n```\n", "<tool_use_error>no such tool</tool_use_error>"),
        ("````\na\n```\nb\n```\n````", "a\n```\nb\n```"),
        ("```\na\n```\nand\n```\nb", "```\na\n```\nand\n```\nb"),
        ("plain", "plain"),
    ],
)
def test_what_a_call_gave_is_taken_out_of_its_block_of_code(text: str, output: str) -> None:
    told = {"toolCallId": "c", "content": [{"type": "content", "content": {"type": "text", "text": text}}]}
    call = read_call(told)
    assert call is not None
    assert call.output == output


def test_a_call_on_several_files_is_none_on_the_first_alone() -> None:
    files = [{"type": "diff", "path": path, "oldText": "", "newText": "x"} for path in ("/a", "/b")]
    call = read_call({"toolCallId": "c1", "kind": "edit", "content": files, "rawInput": {"file_path": "/a"}})
    assert call is not None
    assert (call.kind, call.diff, call.input) == ("edit_files", None, {"files": files})
