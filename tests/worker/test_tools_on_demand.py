"""Many tools of MCP servers: the model is shown those that it looked for, and requests begin as they did before."""

import itertools
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from crewboard import mcp_servers, models
from crewboard.commands import accept, answers, hire
from crewboard.records.agents import Tokens
from crewboard.records.events import Event, Intake, Opening, Reply, ToolResult
from crewboard.worker.conversation import replay
from crewboard.worker.llm.blocks import with_breakpoints
from crewboard.worker.loop import Loop
from crewboard.worker.tools.base import Outcome, Tool
from crewboard.worker.tools.mcp import input_of, search
from crewboard.worker.tools.registry import with_added
from tests.crew import Crew
from tests.model import calls, says
from tests.preloaded import TAKEN_FOR_THE_API, patched
from tests.worker.test_prefix import openings, resume_after_kill, thoughts_in, unmarked

of_answers = pytest.mark.files_only("what is asked of a model, and what its answer means, no store knows")

Make = Callable[..., Crew]

OWN = Path(__file__).with_name("mcp_server.py")
MANY = [f"tool_{number}" for number in range(40)]


@pytest.fixture(autouse=True)
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let workers take the tests' server for the API, and keep what these tests accept out of the user's state."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with patched(TAKEN_FOR_THE_API):
        yield


def with_server(crew: Crew, names: list[str]) -> Path:
    """Give the project a server with these tools, and return the file that names them."""
    copy, more = crew.root / "server.py", crew.root / "more.txt"
    copy.write_text(OWN.read_text())
    more.write_text(" ".join(names))
    entry = {"command": sys.executable, "args": [str(copy), str(more)]}
    (crew.root / ".mcp.json").write_text(json.dumps({"mcpServers": {"own": entry}}))
    accept.accept(crew.team, mcp_servers.find(crew.root, "own"))
    return more


def deferred(body: dict[str, Any]) -> list[str]:
    return [tool["name"] for tool in body["tools"] if tool.get("defer_loading")]


def references(body: dict[str, Any]) -> list[str]:
    results = [block for message in body["messages"] for block in message["content"] if block["type"] == "tool_result"]
    parts = [part for result in results if isinstance(result["content"], list) for part in result["content"]]
    return [part["tool_name"] for part in parts if part["type"] == "tool_reference"]


@pytest.mark.linux("fork")
@of_answers
def test_many_tools_are_loaded_on_demand_without_a_change_before(crew_on: Make) -> None:
    crew = crew_on()
    more = with_server(crew, MANY)
    crew.model.give(
        "finder",
        calls("find_tools", query="tool 7", limit=2),
        calls("mcp__own__tool_7"),
        calls("ask_operator", question="Go on?"),
        calls("find_tools", query="mcp__own__late"),
        calls("mcp__own__late"),
        says("done"),
    )
    hired = crew.hire("finder", "code", "look", unsafe_no_sandbox=True)
    crew.pending("question")
    # The server has one tool more than before when the agent goes on.
    more.write_text(" ".join([*MANY, "late"]))
    resume_after_kill(crew, "finder")
    answers.answer(crew.team, crew.pending("question").id, "yes")
    assert crew.answer(hired).text == "done"

    bodies = [unmarked(body) for body in crew.model.asked_by("finder")]
    assert len(deferred(bodies[0])) == len(MANY) + 4
    assert "tool_39" in str(bodies[0]["messages"][0]), "their names are told"
    assert references(bodies[1]) == ["mcp__own__tool_7", "mcp__own__tool_17"]
    assert references(bodies[-1]) == ["mcp__own__tool_7", "mcp__own__tool_17", "mcp__own__late"]
    assert "mcp__own__late" not in deferred(bodies[2])
    assert deferred(bodies[-1])[-1] == "mcp__own__late"
    for before, after in itertools.pairwise(bodies):
        assert after["tools"][: len(before["tools"])] == before["tools"]
        assert after["messages"][: len(before["messages"])] == before["messages"]
    assert [thoughts_in(body) for body in bodies] == [0, 1, 2, 3, 4, 5]
    found = [event for event in crew.events("finder") if isinstance(event, Opening)]
    assert [event.adds for event in found] == [False, True]
    ran = [event for event in crew.events("finder") if isinstance(event, ToolResult) and "mcp__" in event.name]
    assert not any(event.is_error for event in ran)


@pytest.mark.long
@pytest.mark.linux("fork")
@of_answers
def test_no_thinking_is_sent_behind_a_found_tool_that_comes_back(crew_on: Make) -> None:
    crew = crew_on()
    tools = with_server(crew, MANY)
    crew.model.give(
        "finder",
        calls("find_tools", query="mcp__own__tool_7"),
        calls("ask_operator", question="Go on?"),
        calls("ask_operator", question="And now?"),
        says("done"),
    )
    hired = crew.hire("finder", "code", "look", unsafe_no_sandbox=True)
    crew.pending("question")
    tools.write_text(" ".join(set(MANY) - {"tool_7"}))
    # Requests of another model begin anew, without the tool that is gone.
    crew.kill("finder")
    crew.wait_for("finder", "crashed")
    hire.resume(crew.team, "finder", model="claude-opus-5-5")
    answers.answer(crew.team, crew.pending("question").id, "yes")
    crew.pending("question")
    tools.write_text(" ".join(MANY))
    resume_after_kill(crew, "finder")
    answers.answer(crew.team, crew.pending("question").id, "yes")
    assert crew.answer(hired).text == "done"
    bodies = crew.model.asked_by("finder")
    assert [references(body) for body in bodies] == [[], ["mcp__own__tool_7"], [], ["mcp__own__tool_7"]]
    assert [thoughts_in(body) for body in bodies] == [0, 1, 0, 0]


@pytest.mark.long
@pytest.mark.linux("fork")
@of_answers
def test_a_search_that_waits_runs_after_a_change_of_model(crew_on: Make) -> None:
    crew = crew_on()
    with_server(crew, MANY)
    both = calls("ask_operator", question="Go on?")
    both.content.extend(calls("find_tools", query="mcp__own__tool_7").content)
    crew.model.give("finder", both, says("done"))
    hired = crew.hire("finder", "code", "look", unsafe_no_sandbox=True)
    crew.pending("question")
    crew.kill("finder")
    crew.wait_for("finder", "crashed")
    hire.resume(crew.team, "finder", model="claude-opus-5-5")
    answers.answer(crew.team, crew.pending("question").id, "yes")
    assert crew.answer(hired).text == "done"
    assert references(crew.model.asked_by("finder")[-1]) == ["mcp__own__tool_7"]


@pytest.mark.long
@pytest.mark.linux("fork")
@of_answers
def test_a_server_that_loads_no_tools_is_sent_all(crew_on: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    # In this process, which has the offline model; the worker believes that it does.
    monkeypatch.setattr(models, "defers_tools", lambda _: False)
    crew = crew_on({"plain": [calls("mcp__own__tool_7"), calls("find_tools", query="tool 7"), says("done")]})
    with_server(crew, MANY)
    assert crew.run("plain", "code", "look", unsafe_no_sandbox=True).text == "done"
    refused, first, _, last = crew.model.asked_by("plain")
    assert "has no tool 'find_tools'" in json.dumps(last["messages"][-1])
    assert deferred(refused)
    assert not deferred(first)
    names = [tool["name"] for tool in first["tools"]]
    assert "mcp__own__tool_39" in names
    assert "find_tools" not in names
    assert openings(crew, "plain") == 2


@pytest.mark.long
@of_answers
def test_few_tools_are_shown_at_once(crew_on: Make) -> None:
    crew = crew_on({"few": [says("done")]})
    with_server(crew, MANY[:5])
    crew.run("few", "code", "look", unsafe_no_sandbox=True)
    (body,) = crew.model.asked_by("few")
    assert "mcp__own__tool_4" in [tool["name"] for tool in body["tools"]]
    assert not deferred(body)
    assert "find_tools" not in str(body["tools"])


async def nothing(*_: object) -> Outcome:
    return Outcome("")


def a_tool(name: str, description: str, **inputs: str) -> Tool[Any]:
    properties = {each: {"type": "string", "description": about} for each, about in inputs.items()}
    schema = {"type": "object", "properties": properties}
    return Tool(f"mcp__{name}", description, input_of(schema, schema), nothing, schema=schema)


TOOLS = {
    tool.name: tool
    for tool in (
        a_tool("hub__create_issue", "Open a new issue", title="its title"),
        a_tool("hub__list_issues", "List all of them"),
        a_tool("mail__send", "Send a letter", to="the address of who gets it"),
        a_tool("mail__read", "Read one"),
    )
}


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("create an issue", ["mcp__hub__create_issue", "mcp__hub__list_issues"]),
        ("ISSUE", ["mcp__hub__create_issue", "mcp__hub__list_issues"]),
        ("mail", ["mcp__mail__read", "mcp__mail__send"]),
        ("address", ["mcp__mail__send"]),
        ("mcp__mail__read, mcp__hub__list_issues", ["mcp__mail__read", "mcp__hub__list_issues"]),
        ("weather", []),
    ],
)
def test_a_query_finds_tools_by_all_that_is_said_of_them(query: str, found: list[str]) -> None:
    assert search(TOOLS, query) == found


LOADED: dict[str, Any] = {
    "name": "mcp__a__b",
    "description": "x",
    "input_schema": {"type": "object"},
    "defer_loading": True,
}
OURS: dict[str, Any] = {"name": "find_tools", "description": "x", "input_schema": {"type": "object"}}


def talk(tools: list[dict[str, Any]]) -> list[Event]:
    call = {"type": "tool_use", "id": "t", "name": "find_tools", "input": {"query": "b"}}
    return [
        Opening(ts=0, system="s", tools=[OURS, LOADED]),
        Intake(ts=1, cursor=0, prompt="go", assignment="a"),
        Reply(ts=2, content=[call], stop_reason="tool_use", usage=Tokens()),
        ToolResult(ts=3, tool_use_id="t", name="find_tools", content="loaded: mcp__a__b", tools=["mcp__a__b"]),
        Opening(ts=4, system="s", tools=tools),
    ]


def test_a_tool_that_is_gone_is_not_referred_to() -> None:
    (kept,), (gone,) = (
        replay(talk(tools)).messages()[-1]["content"] for tools in ([OURS, LOADED], [OURS, {**LOADED, "name": "c"}])
    )
    assert kept["content"] == [{"type": "tool_reference", "tool_name": "mcp__a__b"}]
    assert gone["content"] == "found: mcp__a__b"


def test_tools_that_were_found_stay_when_room_is_made() -> None:
    many = [f"mcp__a__{number}" for number in range(50)]
    events = talk([OURS])
    events[3] = ToolResult(ts=3, tool_use_id="t", name="find_tools", content="loaded", tools=many)
    assert not replay(events).clearable


def test_only_tools_that_are_shown_count_for_the_room() -> None:
    other = {**LOADED, "name": "mcp__a__c"}
    shown = [tool["name"] for tool in replay(talk([OURS, LOADED, other])).shown_tools]
    assert shown == ["find_tools", "mcp__a__b"]


def test_only_a_tool_that_is_not_shown_may_be_added() -> None:
    assert with_added([OURS], [OURS, LOADED]) == [OURS, LOADED]
    assert with_added([OURS, LOADED], [OURS]) == [OURS, LOADED], "a call of it is refused"
    assert with_added([OURS, LOADED], [OURS, {**LOADED, "description": "y"}]) is None, "it may have been referred to"
    assert with_added([LOADED], [OURS, LOADED]) is None


def test_no_breakpoint_is_at_a_tool_that_is_not_shown() -> None:
    hello = [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]
    tools = with_breakpoints("s", [OURS, LOADED], hello)["tools"]
    assert ["cache_control" in tool for tool in tools] == [True, False]


def test_an_opening_after_a_refusal_of_thinking_leaves_it_out_also_behind_an_added_tool() -> None:
    added = Opening(ts=1, system="s", tools=[], adds=True)
    written: list[Event] = []
    loop = SimpleNamespace(_run_state=SimpleNamespace(append=written.append, now=lambda: 2.0))
    Loop._begin_anew(cast("Loop", loop), added)
    said = Reply(ts=1.5, content=[{"type": "text", "text": "hi"}], stop_reason="end_turn", usage=Tokens())
    assert replay([added, said]).stale == 0
    assert replay([added, said, *written]).stale == 1
