"""A conversation beyond the model's window: counted as the API counts it, and nothing that people said is lost."""

import asyncio
import json
from collections.abc import Callable

import pytest

from crewboard.commands import answers, hire
from crewboard.offline import reply, service
from crewboard.offline.http import Client, Incoming
from crewboard.offline.service import Fault
from crewboard.records import Reply, Summary
from tests.crew import Crew, eventually
from tests.model import calls, says

Make = Callable[..., Crew]

TOO_LONG = Fault(kind="status", status=400, message="prompt is too long: 210000 tokens > 200000 maximum")


@pytest.mark.long
def test_text_of_many_tokens_is_counted_as_the_api_counts_it(
    shared_crew_on: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reply, "CHARACTERS_A_TOKEN", 1)
    keys = {"type": "text", "text": "9f3c1e77a0 " * 100}
    replies = [*[reply.Reply([keys, *calls("list_dir").content])] * 20, says("the end")]
    crew = shared_crew_on(script={"counter": replies}, window=20_000)
    assert crew.run("counter", "explore", "Read it, and remember the word heron").text == "the end"
    summaries = [event for event in crew.events("counter") if isinstance(event, Summary)]
    assert len(crew.model.requests) == 21 + len(summaries), "a request was refused"


def test_a_request_that_the_api_finds_too_long_is_made_shorter(shared_crew_on: Make) -> None:
    crew = shared_crew_on(script=[calls("list_dir"), says("the end")], faults=[None, TOO_LONG])
    assert crew.run("shortener", "explore", "go").text == "the end"


def test_an_api_that_finds_everything_too_long_is_reported(shared_crew_on: Make) -> None:
    crew = shared_crew_on(script=[says("the end")], faults=[TOO_LONG] * 20)
    answer = crew.run("reporter", "explore", "go")
    assert "too long" in str(answer.error)
    assert len(crew.model.requests) < 20


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
def test_a_window_that_is_always_full_is_reported(crew_on: Make) -> None:
    full = reply.Reply([{"type": "text", "text": "half "}], stop_reason="model_context_window_exceeded")
    crew = crew_on(script={"scout": [full] * 30})
    assert "does not fit" in str(crew.run("scout", "explore", "go").error)
    assert len(crew.model.requests) < 30


@pytest.mark.long
def test_what_people_said_outlives_a_summary(shared_crew_on: Make) -> None:
    asks, plans = calls("ask_operator", question="Which colour?"), calls("submit_plan", plan="Paint it.")
    reads = [reply.Reply([{"type": "text", "text": "word " * 500}, *calls("read_file", path="big.txt").content])] * 12
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
    """The first summary takes long enough to be killed in the middle of it."""
    answer, slow = service.Service._messages, [True]

    async def slowly(self: service.Service, incoming: Incoming, client: Client, request_id: str) -> None:
        if slow and b"You summarise the work" in incoming.body:
            slow.clear()
            assert self.record is not None
            self.record(json.loads(incoming.body))
            await asyncio.sleep(5)
        await answer(self, incoming, client, request_id)

    monkeypatch.setattr(service.Service, "_messages", slowly)


@pytest.mark.long
@pytest.mark.usefixtures("slow_summary")
@pytest.mark.parametrize(("turns", "summaries"), [(24, 3), pytest.param(80, 10, marks=pytest.mark.long)])
def test_work_survives_many_summaries_and_a_kill_during_one(shared_crew_on: Make, turns: int, summaries: int) -> None:
    # The cases share a team.
    window, name = 9_000, f"survivor{turns}"
    found = {"type": "text", "text": "word " * 1000}
    works = [reply.Reply([found, *calls("list_dir").content])] * turns
    crew = shared_crew_on(script={name: [*works, says("the end")]}, window=window)
    hired = crew.hire(name, "explore", "Look everywhere, and remember the word heron")
    eventually(
        lambda: any(str(body["system"]).startswith("You summarise") for body in crew.model.requests), "a summary"
    )
    crew.kill(name)
    crew.wait_for(name, "crashed")
    hire.resume(crew.team, name)
    assert crew.answer(hired).text == "the end"
    events = crew.events(name)
    replies = [event for event in events if isinstance(event, Reply)]
    assert len(replies) == turns + 1, "nothing was asked for twice"
    assert sum(event.usage.output for event in replies) > summaries * window
    assert sum(isinstance(event, Summary) for event in events) >= summaries
    assert "heron" in str(crew.model.requests[-1]["messages"])
