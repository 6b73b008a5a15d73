"""The requests to the API: never anything that it would refuse."""

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from crewboard.agent_types import TYPES
from crewboard.commands import messages
from crewboard.offline import reply, service
from crewboard.offline.http import Client, Incoming
from crewboard.offline.reply import Reply
from crewboard.offline.service import Service
from crewboard.records.events import Retry
from tests.crew import Crew
from tests.model import calls, says

of_answers = pytest.mark.files_only("what is asked of a model, and what its answer means, no store knows")

Make = Callable[..., Crew]


ODD = {
    "nothing": Reply([], stop_reason="end_turn"),
    "blank": Reply([{"type": "text", "text": " \n"}], stop_reason="end_turn"),
    "no-call": Reply([{"type": "text", "text": "hm"}], stop_reason="tool_use"),
    "cut": Reply([{"type": "text", "text": "half"}], stop_reason="max_tokens"),
    "cut-call": Reply([*calls("bash", command="true").content], stop_reason="max_tokens"),
    "three-calls": Reply([*calls("list_dir").content, *calls("no_such_tool").content, *calls("glob").content]),
    "refusal": Reply([{"type": "text", "text": "no"}], stop_reason="refusal"),
}


@pytest.mark.long
@of_answers
def test_after_an_odd_reply_the_conversation_is_still_valid(shared_crew: Crew) -> None:
    for name, odd in ODD.items():
        shared_crew.model.give(name, odd, says("second"), says("third"), says("fourth"))
        shared_crew.run(name, "explore", "go")
        sent = messages.send(shared_crew.team, name, "and now?")
        assert shared_crew.answer_to(name, sent.id).error is None, name


@pytest.mark.parametrize(("name", "stop"), [("long", "max_tokens"), ("slow", "pause_turn")])
@of_answers
def test_an_answer_that_came_in_parts_is_handed_over_whole(shared_crew: Crew, name: str, stop: str) -> None:
    first, second = (Reply([{"type": "text", "text": text}], stop_reason=stop) for text in ("one ", "two "))
    looks = Reply([{"type": "text", "text": "I look. "}, *calls("list_dir").content])
    shared_crew.model.give(name, looks, first, second, says("three"), says("four"))
    assert shared_crew.run(name, "explore", "go").text == "one two three"
    assert shared_crew.answer_to(name, messages.send(shared_crew.team, name, "more").id).text == "four"


@of_answers
def test_an_empty_answer_says_that_it_is_empty(shared_crew: Crew) -> None:
    silence = Reply([], stop_reason="end_turn")
    shared_crew.model.give("silent", silence, silence)
    assert "without text" in shared_crew.run("silent", "explore", "go").text


@of_answers
def test_max_tokens_never_exceed_the_limit_of_the_model(shared_crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "MOST_OUTPUT", 4000)
    shared_crew.model.give("modest", says("done"))
    shared_crew.run("modest", "explore", "go")
    assert shared_crew.model.asked_by("modest")[0]["max_tokens"] == 4000


@of_answers
@pytest.mark.linux("sandbox")
def test_a_truncated_tool_call_does_nothing_and_is_retried(
    shared_crew_on: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = shared_crew_on().root / "whole.txt"
    seen: list[bool] = []

    def events(whole: dict[str, Any], speed: reply.Speed) -> Iterator[reply.Event]:
        seen.append(path.exists())
        for event in reply.events(whole, speed):
            said = str(event.data.get("delta", {}).get("partial_json", ""))
            if not (len(seen) == 1 and said.endswith("}")):
                yield event

    monkeypatch.setattr(service, "events", events)
    text = "the beginning and " * 9 + "the end"
    crew = shared_crew_on([calls("write_file", path=path.name, content=text), says("done")])
    assert crew.run("halved", "code", "go").text == "done"
    assert seen == [False, False, True]
    assert path.read_text() == text
    assert ["malformed" in event.error for event in crew.events("halved") if isinstance(event, Retry)] == [True]


def as_llama_cpp(schema: dict[str, Any]) -> str | None:
    """Return why a server refuses a schema of which it makes a grammar, as llama.cpp 78d2f5246 and LM Studio do."""
    if "$ref" in schema and not schema["$ref"].startswith("#/"):
        return f"Unsupported ref: {schema['$ref']}"
    pattern = schema.get("pattern")
    if pattern is not None and not (pattern.startswith("^") and pattern.endswith("$") and "\\" not in pattern):
        return "Pattern must start with '^' and end with '$'"
    if not schema.keys() & {"$ref", "type", "properties", "items", "anyOf", "oneOf", "allOf", "const", "enum"}:
        return f"Unrecognized schema: {json.dumps(schema)}"
    if max(schema.get("maxLength", 0), schema.get("maxItems", 0)) >= 2000:
        return "number of repetitions exceeds sane defaults"
    below = [*schema.get("properties", {}).values(), *schema.get("$defs", {}).values(), *schema.get("anyOf", ())]
    below += [schema[key] for key in ("items", "additionalProperties") if isinstance(schema.get(key), dict)]
    return next((why for each in below if (why := as_llama_cpp(each))), None)


@pytest.mark.long
@of_answers
@pytest.mark.linux("sandbox")
def test_a_server_that_makes_grammars_takes_the_tools_of_each_type(
    shared_crew_on: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = Service.handle

    async def refusing(self: Service, incoming: Incoming, client: Client) -> None:
        tools = json.loads(incoming.body or b"{}").get("tools", [])
        if why := next((why for tool in tools if (why := as_llama_cpp(tool["input_schema"]))), None):
            error = {"code": 400, "message": f"JSON schema conversion failed:\n{why}", "type": "invalid_request_error"}
            return await client.answer(400, {"error": error})
        return await handle(self, incoming, client)

    monkeypatch.setattr(Service, "handle", refusing)
    crew = shared_crew_on({f"the-{kind}": [says(kind)] for kind in TYPES})
    hired = {kind: crew.hire(f"the-{kind}", kind, "go") for kind in TYPES}
    assert {kind: crew.answer(assignment).text for kind, assignment in hired.items()} == {kind: kind for kind in TYPES}


@pytest.mark.long
@of_answers
def test_a_window_that_a_server_is_slow_to_name_is_assumed(crew_on: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = Service.handle

    async def silent_about_models(self: Service, incoming: Incoming, client: Client) -> None:
        if incoming.path.startswith("/v1/models/"):
            await asyncio.sleep(60)
        await handle(self, incoming, client)

    monkeypatch.setattr(Service, "handle", silent_about_models)
    crew = crew_on([says("first")])
    assert crew.run("scout", "explore", "go").text == "first"
    assert crew.model.requests[0]["max_tokens"] > 1000
    seen = crew.see("scout").status.context
    assert (seen.limit, seen.assumed) == (32_000, True), "as on each server of others that does not say"
