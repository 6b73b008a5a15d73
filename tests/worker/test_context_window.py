"""A conversation beyond the model's window: counted as the API counts it, and nothing that people said is lost.

A request for a summary is the conversation as it was sent, with one text more. The API's documents say why: another
system prompt, tool, `tool_choice` or way to think invalidates the cache of the messages (page `prompt-caching`), and
thinking is bound to all before it (page `preserved-thinking`). The offline model counts and refuses by that.
"""

import json
from collections.abc import Callable
from typing import Any

import pytest

from crewboard.commands import answers, hire
from crewboard.offline import reply, service
from crewboard.offline.http import Client, Incoming
from crewboard.offline.service import Fault, hang
from crewboard.records.agents import Tokens
from crewboard.records.events import BrokenReply, Cleared, Intake, Reply, Summary
from crewboard.worker.conversation import replay
from tests.api.service import StrictService
from tests.crew import Crew, eventually
from tests.model import SUMMARY_OF, calls, looks, says

of_answers = pytest.mark.files_only("what is asked of a model, and what its answer means, no store knows")

Make = Callable[..., Crew]

ASK = "Summarise the work above"

TOO_LONG = Fault(kind="status", status=400, message="prompt is too long: 210000 tokens > 200000 maximum")


def asks(body: dict[str, Any]) -> bool:
    """Return True for a request for a summary at the end of a conversation."""
    return ASK in str(body["messages"][-1]["content"][-1])


def unmarked(value: Any) -> Any:  # noqa: ANN401  any part of a request
    """Return a part of a request without the marks of the prompt cache."""
    if isinstance(value, dict):
        return {name: unmarked(each) for name, each in value.items() if name != "cache_control"}
    return [*map(unmarked, value)] if isinstance(value, list) else value


@of_answers
def test_a_summary_reads_the_conversation_from_the_cache(shared_crew_on: Make) -> None:
    works = [
        reply.Reply([{"type": "text", "text": f"{place} " * 900}, *look.content])
        for place, look in enumerate(looks(16))
    ]
    crew = shared_crew_on(script={"saver": [*works, says("the end")]}, window=24_000)
    assert crew.run("saver", "code", "Look, and remember the word heron", unsafe_no_sandbox=True).text == "the end"
    events, bodies = crew.events("saver"), crew.model.asked_by("saver")
    at = next(place for place, body in enumerate(bodies) if asks(body))
    last, asked, later = bodies[at - 1 : at + 2]
    # Only `messages` and `max_tokens` may differ: another `tool_choice` or effort begins the cache anew.
    same = {*last} - {"messages", "max_tokens"}
    assert {*asked} - {"messages", "max_tokens"} == same
    assert all(asked[name] == last[name] for name in same)
    count = len(last["messages"])
    assert unmarked(asked["messages"][:count]) == unmarked(last["messages"])
    used = next(event.usage for event in events if isinstance(event, Summary))
    assert used.cache_read > 0.85 * used.prompt
    # The last turns are as they were, but for thinking: it was bound to what is gone.
    kept = unmarked(asked["messages"])[-4:]
    kept[-1]["content"].pop()
    begin = str(later["messages"][0])
    assert all(words in begin for words in ("Summary of the conversation", "heron", "The last turns follow"))
    without = [
        {**turn, "content": [block for block in turn["content"] if block["type"] != "thinking"]} for turn in kept
    ]
    assert kept != without
    assert unmarked(later["messages"])[-4:] == without
    assert len(later["messages"]) < len(asked["messages"]) / 2


@pytest.mark.long
@of_answers
def test_a_call_in_the_place_of_a_summary_is_not_run(shared_crew_on: Make) -> None:
    works = [reply.Reply([{"type": "text", "text": "word " * 900}, *look.content]) for look in looks(9)]
    busy = {f"{SUMMARY_OF}busy": [calls("write_file", path="early.txt", content="x")]}
    crew = shared_crew_on(script={"busy": [*works, says("the end")], **busy}, window=16_000)
    assert crew.run("busy", "code", "Look, and remember the word heron", unsafe_no_sandbox=True).text == "the end"
    kinds = [type(event) for event in crew.events("busy")]
    assert kinds.index(Summary) - kinds.index(BrokenReply) == 1, "what it used is counted, and the model is asked again"
    assert not (crew.root / "early.txt").exists()


def test_turns_that_stayed_behind_a_summary_do_not_stay_again() -> None:
    said = Reply(ts=1, content=[{"type": "text", "text": "word"}], stop_reason="end_turn", usage=Tokens())
    told = Intake(ts=1, cursor=0, notices=["go on"])
    conversation = replay([told, said, told, said, told, said, told])
    assert conversation.newest_turns(300) == 3
    conversation.apply(Summary(ts=1, covers=3, text="so far", usage=Tokens()))
    assert conversation.newest_turns(300) == conversation.shown == 4


@pytest.mark.long
@of_answers
def test_a_large_window_is_not_filled_to_its_end(shared_crew_on: Make) -> None:
    works = [reply.Reply([{"type": "text", "text": "word " * 40_000}, *look.content]) for look in looks(7)]
    crew = shared_crew_on(script={"large": [*works, says("the end")]}, window=1_000_000)
    assert crew.run("large", "explore", "Look").text == "the end"
    prompts = [event.usage.prompt for event in crew.events("large") if isinstance(event, Reply | Summary)]
    assert 200_000 < max(prompts) < 300_000


@pytest.mark.long
@of_answers
def test_text_of_many_tokens_is_counted_as_the_api_counts_it(
    shared_crew_on: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reply, "CHARACTERS_A_TOKEN", 1)
    keys = {"type": "text", "text": "9f3c1e77a0 " * 100}
    replies = [*[reply.Reply([keys, *look.content]) for look in looks(20)], says("the end")]
    crew = shared_crew_on(script={"counter": replies}, window=20_000)
    assert crew.run("counter", "explore", "Read it, and remember the word heron").text == "the end"
    summaries = [event for event in crew.events("counter") if isinstance(event, Summary)]
    assert len(crew.model.requests) == 21 + len(summaries), "a request was refused"


@pytest.mark.long
@of_answers
def test_a_request_that_the_api_finds_too_long_is_made_shorter(shared_crew_on: Make) -> None:
    crew = shared_crew_on(script=[calls("list_dir"), says("the end")], faults=[None, TOO_LONG])
    assert crew.run("shortener", "explore", "go").text == "the end"


@of_answers
def test_an_api_that_finds_everything_too_long_is_reported(shared_crew_on: Make) -> None:
    crew = shared_crew_on(script=[says("the end")], faults=[TOO_LONG] * 20)
    answer = crew.run("reporter", "explore", "go")
    assert "too long" in str(answer.error)
    assert len(crew.model.requests) < 20


@of_answers
@pytest.mark.long
def test_a_reply_that_filled_the_window_goes_on_in_a_smaller_one(crew_on: Make) -> None:
    reads = [reply.Reply([{"type": "text", "text": "word " * 500}, *calls("list_dir").content])] * 4
    half = reply.Reply([{"type": "text", "text": "half "}], stop_reason="model_context_window_exceeded")
    crew = crew_on(script={"scout": [*reads, half, says("and half")]})
    assert crew.run("scout", "explore", "Read it, and remember the word heron").text == "half and half"
    full, last = [str(request["messages"]) for request in crew.model.requests if "tools" in request][-2:]
    assert len(last) < len(full) / 2
    assert "heron" in last
    assert "Your reply so far:\\n\\nhalf" in last


@pytest.mark.long
@of_answers
def test_a_window_that_is_always_full_is_reported(crew_on: Make) -> None:
    full = reply.Reply([{"type": "text", "text": "half "}], stop_reason="model_context_window_exceeded")
    crew = crew_on(script={"scout": [full] * 30})
    assert "does not fit" in str(crew.run("scout", "explore", "go").error)
    assert len(crew.model.requests) < 30


@pytest.mark.long
def test_what_people_said_outlives_a_summary(shared_crew_on: Make) -> None:
    asks, plans = calls("ask_operator", question="Which colour?"), calls("submit_plan", plan="Paint it.")
    filler = {"type": "text", "text": "word " * 500}
    paths = ("big.txt", "./big.txt") * 6
    reads = [reply.Reply([filler, *calls("read_file", path=path).content]) for path in paths]
    crew = shared_crew_on(script={"rememberer": [asks, plans, *reads, says("the end")]}, window=12_000)
    (crew.root / "big.txt").write_text("a line of some length\n" * 200)
    hired = crew.hire("rememberer", "plan", "Find out", plan=True)
    answers.answer(crew.team, crew.pending("question", "rememberer").id, "mauve")
    answers.approve(crew.team, crew.pending("plan_approval", "rememberer").id, edited="Paint it twice.")
    assert crew.answer(hired).text == "the end"
    assert any(isinstance(event, Summary) for event in crew.events("rememberer"))
    for request in crew.model.requests[4:]:
        said = str(request["messages"])
        for words in ("Which colour?", "mauve", "Paint it twice."):
            assert words in said


@pytest.fixture
def slow_summary(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first summary comes only after the agent was killed in the middle of it: never, for its worker."""
    answer, slow = service.Service._messages, [True]

    async def slowly(self: StrictService, incoming: Incoming, client: Client, headers: dict[str, str]) -> None:
        if slow and ASK in incoming.body.decode():
            slow.clear()
            self.record(json.loads(incoming.body))
            await hang()
        await answer(self, incoming, client, headers)

    monkeypatch.setattr(service.Service, "_messages", slowly)


@pytest.mark.long
@pytest.mark.usefixtures("slow_summary")
@pytest.mark.parametrize(("turns", "summaries"), [(24, 3), pytest.param(80, 10, marks=pytest.mark.long)])
def test_work_survives_many_summaries_and_a_kill_during_one(shared_crew_on: Make, turns: int, summaries: int) -> None:
    # The cases share a team.
    window, name = 9_000, f"survivor{turns}"
    found = {"type": "text", "text": "word " * 1000}
    works = [reply.Reply([found, *look.content]) for look in looks(turns)]
    crew = shared_crew_on(script={name: [*works, says("the end")]}, window=window)
    hired = crew.hire(name, "explore", "Look everywhere, and remember the word heron")
    eventually(lambda: any(map(asks, crew.model.asked_by(name))), "a request for a summary")
    crew.kill(name)
    crew.wait_for(name, "crashed")
    hire.resume(crew.team, name)
    assert crew.answer(hired, 3 * turns).text == "the end"
    events = crew.events(name)
    replies = [event for event in events if isinstance(event, Reply)]
    assert len(replies) == turns + 1, "nothing was asked for twice"
    assert sum(event.usage.output for event in replies) > summaries * window
    assert sum(isinstance(event, Summary) for event in events) >= summaries
    assert "heron" in str(crew.model.requests[-1]["messages"])


@pytest.mark.long
@of_answers
def test_only_results_that_pay_for_the_cache_are_removed(shared_crew_on: Make) -> None:
    reads = [calls("read_file", path="big.txt"), *looks(9)]
    writes = [calls("write_file", path="w.txt", content="a line of some length\n" * 200) for _ in range(2)]
    crew = shared_crew_on(script={"thrifty": [*writes, *reads, says("the end")]}, window=18_000)
    (crew.root / "big.txt").write_text("a line of some length\n" * 200)
    assert crew.run("thrifty", "code", "look", unsafe_no_sandbox=True).text == "the end"
    # One big result is less than a fifth of the room, and a hundred small ones are nothing.
    assert not any(isinstance(event, Cleared) for event in crew.events("thrifty"))
    bodies = crew.model.asked_by("thrifty")
    assert all("left out to save room" not in str(body["messages"]) for body in bodies)
