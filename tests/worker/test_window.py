"""A conversation beyond the model's window: counted as the API counts it, and nothing that people said is lost."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from crewboard.offline import reply, service
from crewboard.offline.faults import Fault
from crewboard.offline.http import Client, Incoming
from crewboard.offline.script import calls, says
from crewboard.records import Reply, Summary
from crewboard.team import decisions, hiring
from tests.crew import Crew, eventually

Make = Callable[..., Crew]

TOO_LONG = Fault(kind="status", status=400, message="prompt is too long: 210000 tokens > 200000 maximum")


def test_text_of_many_tokens_is_counted_as_the_api_counts_it(crew_on: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reply, "CHARACTERS_A_TOKEN", 1)
    keys = {"type": "text", "text": "9f3c1e77a0 " * 100}
    replies = [*[reply.Reply([keys, *calls("list_dir").content])] * 20, says("the end")]
    crew = crew_on(script={"scout": replies}, window=20_000)
    assert crew.run("scout", "explore", "Read it, and remember the word heron").text == "the end"
    summaries = [event for event in crew.events("scout") if isinstance(event, Summary)]
    assert len(crew.model.requests) == 21 + len(summaries), "a request was refused"


def test_a_request_that_the_api_finds_too_long_is_made_shorter(crew_on: Make) -> None:
    crew = crew_on(script=[calls("list_dir"), says("the end")], faults=[None, TOO_LONG])
    assert crew.run("scout", "explore", "go").text == "the end"


def test_an_api_that_finds_everything_too_long_is_reported(crew_on: Make) -> None:
    crew = crew_on(script=[says("the end")], faults=[TOO_LONG] * 20)
    answer = crew.run("scout", "explore", "go")
    assert "too long" in str(answer.error)
    assert len(crew.model.requests) < 20


def test_what_people_said_outlives_a_summary(crew_on: Make, tmp_path: Path) -> None:
    (tmp_path / "big.txt").write_text("a line of some length\n" * 200)
    asks, plans = calls("ask_operator", question="Which colour?"), calls("submit_plan", plan="Paint it.")
    reads = [reply.Reply([{"type": "text", "text": "word " * 500}, *calls("read_file", path="big.txt").content])] * 12
    crew = crew_on(script={"scout": [asks, plans, *reads, says("the end")]}, window=12_000)
    hired = crew.hire("scout", "plan", "Find out", plan=True)
    decisions.answer(crew.team, crew.pending("question").id, "mauve")
    decisions.approve(crew.team, crew.pending("plan_approval").id, edited="Paint it twice.")
    assert crew.answer(hired).text == "the end"
    assert any(isinstance(event, Summary) for event in crew.events("scout"))
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


@pytest.mark.usefixtures("slow_summary")
def test_ten_windows_of_work_in_one_life_and_a_kill_in_the_middle_of_a_summary(crew_on: Make) -> None:
    window, turns = 9_000, 80
    found = {"type": "text", "text": "word " * 1000}
    works = [reply.Reply([found, *calls("list_dir").content])] * turns
    crew = crew_on(script={"scout": [*works, says("the end")]}, window=window)
    hired = crew.hire("scout", "explore", "Look everywhere, and remember the word heron")
    eventually(lambda: any(body["system"].startswith("You summarise") for body in crew.model.requests), "a summary")
    crew.kill("scout")
    crew.wait_for("scout", "crashed")
    hiring.resume(crew.team, "scout")
    assert crew.answer(hired).text == "the end"
    events = crew.events("scout")
    replies = [event for event in events if isinstance(event, Reply)]
    assert len(replies) == turns + 1, "nothing was asked for twice"
    assert sum(event.usage.output for event in replies) > 10 * window
    assert sum(isinstance(event, Summary) for event in events) >= 10
    assert "heron" in str(crew.model.requests[-1]["messages"])
