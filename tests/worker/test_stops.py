"""Every reason to stop and every type of block: kept as it came, said in words, and no end of an agent."""

import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from crewboard.commands import answers, control, hire, messages
from crewboard.offline import reply, service
from crewboard.offline.reply import Reply, seal
from crewboard.offline.service import Fault
from crewboard.readmodel.activity import describe
from crewboard.records.agents import Tokens
from crewboard.records.events import Intake, ToolResult, describe_stop
from crewboard.records.events import Reply as Kept
from crewboard.worker.conversation import replay
from tests.api.wire import MessagesRequest
from tests.crew import Crew, eventually
from tests.model import Script, calls, says
from tests.preloaded import TAKEN_FOR_THE_API, patched

Make = Callable[..., Crew]


def sealed(page: dict[str, Any]) -> dict[str, Any]:
    """Return a search result with what the API encrypts of it."""
    return {**page, "encrypted_content": seal(page)}


DIRECT = {"type": "direct"}
SEARCH = {
    "type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "heron"}, "caller": DIRECT,
}  # fmt: skip
PAGE = {"type": "web_search_result", "url": "https://a.example/h", "title": "Herons", "page_age": None}
FOUND = {
    "type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "caller": DIRECT, "content": [sealed(PAGE)],
}  # fmt: skip
CITED = {
    "type": "text",
    "text": "A heron is a bird.",
    "citations": [
        {
            "type": "web_search_result_location", "url": "https://a.example/h", "title": "Herons",
            "cited_text": "bird", "encrypted_index": seal({"url": "https://a.example/h", "cited_text": "bird"}),
        }
    ],
}  # fmt: skip
SAID = "A heron is a bird.\n\nSources:\n- Herons https://a.example/h"
LOOKS = {"type": "text", "text": "I look. "}


def blocks_of(crew: Crew, name: str) -> list[dict[str, Any]]:
    blocks = [block for event in crew.events(name) if isinstance(event, Kept) for block in event.content]
    return [block for block in blocks if block["type"] != "thinking"]


def said_by_model(body: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the blocks of the model in a request, without thinking and breakpoints of the cache."""
    blocks = [block for message in body["messages"] if message["role"] == "assistant" for block in message["content"]]
    said = [block for block in blocks if block["type"] != "thinking"]
    return [{key: value for key, value in block.items() if key != "cache_control"} for block in said]


def kept(*content: dict[str, Any], stop: str = "end_turn", **more: Any) -> Kept:
    return Kept(ts=1, content=list(content), stop_reason=stop, usage=Tokens(), **more)


def test_a_turn_that_the_api_paused_goes_on_where_it_stopped(shared_crew: Crew) -> None:
    shared_crew.model.give("searcher", Reply([LOOKS, SEARCH], "pause_turn"), Reply([FOUND, CITED]), says("more"))
    assert shared_crew.run("searcher", "explore", "go").text == f"I look. {SAID}"
    second = shared_crew.model.asked_by("searcher")[1]
    assert [message["role"] for message in second["messages"]] == ["user", "assistant"]
    sent = messages.send(shared_crew.team, "searcher", "and now?")
    assert shared_crew.answer_to("searcher", sent.id).text == "more"
    whole = [{"citations": None, **LOOKS}, SEARCH, FOUND, CITED]
    assert blocks_of(shared_crew, "searcher")[:4] == whole
    assert said_by_model(shared_crew.model.asked_by("searcher")[2]) == whole


def test_a_paused_turn_outlives_a_crash(shared_crew_on: Make) -> None:
    crew = shared_crew_on({"diver": [Reply([SEARCH], "pause_turn"), Reply([FOUND, CITED])]}, [None, Fault(kind="hang")])
    hired = crew.hire("diver", "explore", "go")
    eventually(lambda: len(crew.model.requests) == 2, "the second request")
    crew.kill("diver")
    crew.wait_for("diver", "crashed")
    hire.resume(crew.team, "diver")
    assert crew.answer(hired).text == SAID


def test_mail_waits_until_a_paused_turn_has_ended(
    shared_crew_on: Make, shared_crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer, asked = Script.reply, itertools.count()

    def send_and_answer(script: Script, agent: str, request: MessagesRequest) -> Reply | None:
        if next(asked) == 0:
            messages.send(shared_crew.team, "patient", "hurry, please")
        return answer(script, agent, request)

    monkeypatch.setattr(Script, "reply", send_and_answer)
    script = [Reply([SEARCH], "pause_turn"), Reply([FOUND], "pause_turn"), Reply([CITED, *calls("list_dir").content])]
    crew = shared_crew_on({"patient": [*script, says("done")]})
    assert crew.run("patient", "explore", "go").text == "done"
    held = ["hurry" in json.dumps(body["messages"]) for body in crew.model.requests]
    assert held == [False, False, False, True]


@pytest.mark.long
def test_a_changed_text_waits_until_a_paused_turn_has_ended(crew_on: Make) -> None:
    script = [Reply([SEARCH], "pause_turn"), Reply([FOUND, *calls("list_dir").content]), says("done")]
    crew = crew_on({"patient": script})
    with crew.model.holding():
        hired = crew.hire("patient", "explore", "go")
        eventually(lambda: crew.model.requests, "the first request")
        (crew.root / "CLAUDE.md").write_text("Use tabs.")
    assert crew.answer(hired).text == "done"
    told = ["Use tabs" in json.dumps(body["messages"]) for body in crew.model.requests]
    assert told == [False, False, True]


def test_an_interrupt_ends_a_paused_turn(shared_crew_on: Make) -> None:
    crew = shared_crew_on(
        {"broken": [Reply([LOOKS, SEARCH], "pause_turn"), says("stopped")]}, [None, Fault(kind="hang")]
    )
    hired = crew.hire("broken", "explore", "go")
    eventually(lambda: len(crew.model.requests) == 2, "the second request")
    control.interrupt(crew.team, "broken", "stop it")
    assert crew.answer(hired).text.endswith("stopped")
    # The call in the API has no result, and the API would refuse it.
    assert said_by_model(crew.model.requests[-1]) == [{"citations": None, **LOOKS}]


def test_calls_in_the_api_go_back_only_where_they_may() -> None:
    ours = calls("list_dir").content[0] | {"id": "toolu_1"}
    notice = Intake(ts=2, cursor=0, notices=["go on"])
    result = ToolResult(ts=2, tool_use_id="toolu_1", name="list_dir", content="a")
    thought = {"type": "thinking", "thinking": "hm", "signature": "s"}
    cases: dict[str, tuple[list[Any], list[Any]]] = {
        "paused": ([kept(SEARCH, stop="pause_turn")], [SEARCH]),
        "cut off": ([kept(LOOKS, thought, SEARCH, stop="max_tokens"), notice], [LOOKS]),
        "beside ours": ([kept(SEARCH, ours, stop="tool_use"), result], [SEARCH, ours]),
        "given up": ([kept(SEARCH, ours, stop="tool_use"), result, notice], [ours]),
        "with its result": ([kept(SEARCH, FOUND, stop="max_tokens"), notice], [SEARCH, FOUND]),
        "alone": ([kept(SEARCH, stop="max_tokens"), notice], []),
    }
    for name, (events, expected) in cases.items():
        sent = replay([Intake(ts=1, cursor=0, notices=["begin"]), *events]).messages()
        assert said_by_model({"messages": sent}) == expected, name


def test_a_refusal_says_its_category_and_why(shared_crew: Crew) -> None:
    details = {"type": "refusal", "category": "bio", "explanation": "That can hurt people."}
    shared_crew.model.give("unwilling", Reply([LOOKS], "refusal", details), says("fine"))
    answer = shared_crew.run("unwilling", "explore", "go")
    assert answer.error == "claude-haiku-5-5 refused (bio): That can hurt people. I look."
    assert [event.stop_details for event in shared_crew.events("unwilling") if isinstance(event, Kept)] == [details]
    sent = messages.send(shared_crew.team, "unwilling", "something else")
    assert shared_crew.answer_to("unwilling", sent.id).text == "fine"


@pytest.mark.misfits("a stop reason of a later API")
def test_an_unknown_reason_to_stop_ends_the_turn_and_is_said(shared_crew: Crew) -> None:
    shared_crew.model.give("odd", Reply([LOOKS], "bored"), *[Reply([], "bored")] * 2)
    assert shared_crew.run("odd", "explore", "go").text == "I look. "
    sent = messages.send(shared_crew.team, "odd", "and now?")
    assert "does not know: bored" in shared_crew.answer_to("odd", sent.id).text


@pytest.mark.long
@pytest.mark.misfits("a block of a later API, and back")
@pytest.mark.linux("fork")
def test_an_unknown_block_is_kept_and_goes_back(crew_on: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = [
        {"type": "content_block_start", "index": 0, "content_block": {"type": "poem", "verse": "O", "rhymes": [1]}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "verse_delta", "verse": " heron", "rhymes": [2]}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "metre_delta", "metre": {"feet": 5}}},
        {"type": "content_block_stop", "index": 0},
    ]

    def events(whole: dict[str, Any], speed: reply.Speed) -> Iterator[reply.Event]:
        is_first = any(block.get("text") == "first" for block in whole["content"])
        for event in reply.events(whole, speed):
            if is_first and event.data["type"] == "content_block_start" and event.data["index"] == 0:
                yield from map(reply.Event, pieces)
            yield (
                reply.Event({**event.data, "index": event.data["index"] + 1})
                if is_first and "index" in event.data
                else event
            )

    monkeypatch.setattr(service, "events", events)
    first = Reply([{"type": "text", "text": "first"}, *calls("list_dir").content])
    # The server that signs the thinking does not know of the poem.
    with patched(TAKEN_FOR_THE_API):
        crew = crew_on({"poet": [first, says("done")]}, allows_stale_thinking=True)
        assert crew.run("poet", "explore", "go").text == "done"
    poem = {"type": "poem", "verse": "O heron", "rhymes": [1, 2], "metre": {"feet": 5}}
    assert blocks_of(crew, "poet")[0] == poem
    assert said_by_model(crew.model.requests[1])[0] == poem


def test_each_stop_and_block_is_said_in_words() -> None:
    stops = ("max_tokens", "pause_turn", "model_context_window_exceeded", "refusal", "bored")
    words = [describe_stop(kept(stop=stop)) for stop in stops]
    assert all(words)
    assert not any(describe_stop(kept(stop=stop)) for stop in ("end_turn", "tool_use", "stop_sequence"))
    lines = describe(kept(LOOKS, SEARCH, FOUND, LOOKS, CITED, {"type": "poem", "verse": "O"}, stop="pause_turn"))
    assert [(line.kind, line.text) for line in lines] == [
        ("say", "I look. "),
        ("tool", 'web search "heron"'),
        ("done", "web_search 1 result"),
        ("say", "I look. A heron is a bird."),
        ("block", "a block of the type poem, which is kept as it is"),
        ("stop", "paused by the API; it is continued"),
    ]
    assert lines[3].detail == "Herons https://a.example/h"
    failed = {**FOUND, "content": {"type": "web_search_tool_result_error", "error_code": "max_uses_exceeded"}}
    assert describe(kept(failed))[0].text.endswith("failed: max_uses_exceeded")


def test_odd_blocks_are_said_and_replayed_without_an_error() -> None:
    odd: list[dict[str, Any]] = [
        {}, {"type": None}, {"type": "server_tool_use"}, {"type": "x_tool_result", "tool_use_id": None},
        {"type": "text", "citations": [None, 3, {}]}, {"type": "text", "text": "x", "citations": {"a": 1}},
        {"type": "thinking"}, {"type": "redacted_thinking"},
    ]  # fmt: skip
    conversation = replay([kept(*odd, stop="pause_turn")])
    assert describe(kept(*odd))
    assert conversation.messages()
    assert conversation.transcript()
    assert not conversation.is_paused_turn


def cached_share(crew: Crew, name: str) -> float:
    """Return the share of the input tokens of an agent that came from the prompt cache."""
    used = [event.usage for event in crew.events(name) if isinstance(event, Kept)]
    return sum(each.cache_read for each in used) / sum(each.input + each.cache_read + each.cache_write for each in used)


@pytest.mark.long
def test_most_of_thirty_turns_comes_from_the_cache(shared_crew: Crew) -> None:
    (shared_crew.root / "source.txt").write_text("a line of some length, as code has\n" * 60)
    thinks = {"type": "thinking", "thinking": "what now? " * 20}
    reads = [calls("read_file", path="./" * (number % 2) + "source.txt") for number in range(29)]
    turns = [Reply([thinks, {"type": "text", "text": "I read on."}, *read.content]) for read in reads]
    shared_crew.model.give("reader", *turns, says("the end"))
    assert shared_crew.run("reader", "code", "Read it all", unsafe_no_sandbox=True).text == "the end"
    share = cached_share(shared_crew, "reader")
    print(f"from the cache: {share:.1%}")
    assert share >= 0.9


@pytest.mark.long
def test_a_reply_with_many_calls_does_not_lose_the_cache(shared_crew: Crew) -> None:
    many = Reply([block for _ in range(25) for block in calls("list_dir").content])
    shared_crew.model.give("busy", *[calls("list_dir")] * 2, many, calls("glob", pattern="*"), says("the end"))
    assert shared_crew.run("busy", "code", "Look", unsafe_no_sandbox=True).text == "the end"
    used = [event.usage for event in shared_crew.events("busy") if isinstance(event, Kept)]
    for before, after in itertools.pairwise(used):
        assert after.cache_read == before.cache_read + before.cache_write


def test_the_prefix_of_each_request_is_that_of_the_one_before(shared_crew: Crew) -> None:
    shared_crew.model.give("steady", *[calls("list_dir")] * 4, says("the end"))
    shared_crew.run("steady", "explore", "Look")
    bodies = shared_crew.model.asked_by("steady")
    plain = [
        json.dumps({**body, "stream": 0}).replace(', "cache_control": {"type": "ephemeral"}', "") for body in bodies
    ]
    parts = [json.loads(body) for body in plain]
    for before, after in itertools.pairwise(parts):
        assert (before["tools"], before["system"]) == (after["tools"], after["system"])
        assert after["messages"][: len(before["messages"])] == before["messages"]
    assert all(body.count('"cache_control"') == 4 for body in map(json.dumps, bodies[1:]))


def test_nothing_stands_beside_results_while_the_api_waits_for_them(shared_crew: Crew) -> None:
    both = Reply([LOOKS, SEARCH, *calls("ask_operator", question="Which?").content])
    shared_crew.model.give("mixed", both, Reply([FOUND, CITED, *calls("list_dir").content]), says("done"))
    hired = shared_crew.hire("mixed", "explore", "go")
    question = shared_crew.pending("question", "mixed")
    messages.send(shared_crew.team, "mixed", "hurry, please")
    answers.answer(shared_crew.team, question.id, "this")
    # The server refuses mail beside the results.
    assert shared_crew.answer(hired).text == "done"
    held = ["hurry" in json.dumps(body["messages"]) for body in shared_crew.model.asked_by("mixed")]
    assert held == [False, False, True]


@pytest.mark.long
def test_an_interrupt_gives_up_the_call_that_waits(shared_crew: Crew) -> None:
    both = Reply([LOOKS, SEARCH, *calls("ask_operator", question="Which?").content])
    shared_crew.model.give("halted", both, says("stopped"))
    hired = shared_crew.hire("halted", "explore", "go")
    shared_crew.pending("question", "halted")
    control.interrupt(shared_crew.team, "halted", "stop it")
    assert shared_crew.answer(hired).text.endswith("stopped")
    said = said_by_model(shared_crew.model.asked_by("halted")[-1])
    assert [block["type"] for block in said] == ["text", "tool_use"]
