"""What the API is sent: never anything that it would refuse."""

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from crewboard.commands import messages
from crewboard.offline import reply, service
from crewboard.offline.http import Client, Incoming
from crewboard.offline.reply import Reply
from crewboard.offline.service import Service
from crewboard.records import Retry
from tests.crew import Crew
from tests.model import calls, says

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
def test_after_an_odd_reply_the_conversation_is_still_valid(shared_crew: Crew) -> None:
    for name, odd in ODD.items():
        shared_crew.model.give(name, odd, says("second"), says("third"), says("fourth"))
        shared_crew.run(name, "explore", "go")
        sent = messages.send(shared_crew.team, name, "and now?")
        assert shared_crew.answer_to(name, sent.id).error is None, name


@pytest.mark.parametrize(("name", "stop"), [("long", "max_tokens"), ("slow", "pause_turn")])
def test_an_answer_that_came_in_parts_is_handed_over_whole(shared_crew: Crew, name: str, stop: str) -> None:
    first, second = (Reply([{"type": "text", "text": text}], stop_reason=stop) for text in ("one ", "two "))
    looks = Reply([{"type": "text", "text": "I look. "}, *calls("list_dir").content])
    shared_crew.model.give(name, looks, first, second, says("three"), says("four"))
    assert shared_crew.run(name, "explore", "go").text == "one two three"
    assert shared_crew.answer_to(name, messages.send(shared_crew.team, name, "more").id).text == "four"


def test_an_empty_answer_says_that_it_is_empty(shared_crew: Crew) -> None:
    shared_crew.model.give("silent", Reply([], stop_reason="end_turn"))
    assert "without text" in shared_crew.run("silent", "explore", "go").text


def test_max_tokens_never_exceed_the_limit_of_the_model(shared_crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "_MOST_OUTPUT", 4000)
    shared_crew.model.give("modest", says("done"))
    shared_crew.run("modest", "explore", "go")
    assert shared_crew.model.asked_by("modest")[0]["max_tokens"] == 4000


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


class Raw(reply.Event):
    """An event that is sent as it is, sense or no sense."""

    def encode(self) -> bytes:
        return str(self.data["raw"]).encode()


def delta(**fields: Any) -> str:
    return f"event: content_block_delta\ndata: {json.dumps({'type': 'content_block_delta', **fields})}\n\n"


NONSENSE = {
    "stranger": delta(index=9, delta={"type": "text_delta", "text": "x"}),
    "deltaless": delta(index=0),
    "wordless": delta(index=0, delta={"type": "text_delta", "text": None}),
    "null": "event: content_block_delta\ndata: null\n\n",
    "listed": "event: content_block_delta\ndata: [1]\n\n",
    "uncounted": 'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":null},"usage":null}\n\n',
    "broken": "event: content_block_delta\ndata: {half\n\n",
}


@pytest.mark.long
def test_an_answer_that_makes_no_sense_is_asked_for_again(
    shared_crew_on: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = dict(NONSENSE)

    def events(whole: dict[str, Any], speed: reply.Speed) -> Iterator[reply.Event]:
        raw = left.pop(str(whole["content"][0].get("text")), None)
        for event in reply.events(whole, speed):
            if raw is not None and event.data["type"] == "content_block_stop":
                yield Raw({"raw": raw})
            yield event

    monkeypatch.setattr(service, "events", events)
    crew = shared_crew_on({name: [says(name)] for name in NONSENSE})
    hired = {name: crew.hire(name, "explore", "go") for name in NONSENSE}
    for name, assignment in hired.items():
        assert crew.answer(assignment).text == name
        assert ["malformed" in event.error for event in crew.events(name) if isinstance(event, Retry)] == [True], name


@pytest.mark.long
def test_a_window_that_the_api_is_slow_to_name_is_the_usual_one(crew_on: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = Service.handle

    async def silent_about_models(self: Service, incoming: Incoming, client: Client) -> None:
        if incoming.path.startswith("/v1/models/"):
            await asyncio.sleep(60)
        await handle(self, incoming, client)

    monkeypatch.setattr(Service, "handle", silent_about_models)
    crew = crew_on([says("first")])
    assert crew.run("scout", "explore", "go").text == "first"
    assert crew.model.requests[0]["max_tokens"] > 1000
    assert crew.see("scout").context.limit == 200_000
