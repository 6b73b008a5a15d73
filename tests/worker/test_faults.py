"""Odd replies, stalled calls and failing storage stop no agent."""

from collections.abc import Callable

import pytest

from crewboard.offline.reply import Reply
from crewboard.offline.service import Fault
from crewboard.records import Retry, ToolResult
from crewboard.worker.llm.model import MAX_INPUT
from tests.crew import Crew
from tests.model import calls, says

Make = Callable[..., Crew]

ODD_CALLS = {
    "huge": (calls("write_file", path="x", content="x" * (2 * MAX_INPUT)), "bytes"),
    "surrogate": (calls("write_file", path="x", content="half \ud83d a pair"), "surrogate"),
    "surrogate-key": (calls("write_file", **{"pa\udc80th": "x"}), "surrogate"),
}


@pytest.mark.parametrize("name", ODD_CALLS)
def test_a_tool_call_with_an_odd_input_is_refused_and_the_run_goes_on(shared_crew: Crew, name: str) -> None:
    call, why = ODD_CALLS[name]
    shared_crew.model.give(name, call, says("went on"))
    answer = shared_crew.run(name, "code", "write it", unsafe_no_sandbox=True)
    assert answer.text == "went on"
    (result,) = [event for event in shared_crew.events(name) if isinstance(event, ToolResult)]
    assert result.is_error
    assert why in result.content
    assert not (shared_crew.root / "x").exists()


def test_a_text_with_half_a_surrogate_pair_is_an_answer(shared_crew: Crew) -> None:
    shared_crew.model.give("halved", Reply([{"type": "text", "text": "half \ud83d a pair"}]))
    assert shared_crew.run("halved", "explore", "say it").text == "half ? a pair"


def test_half_a_surrogate_pair_in_a_reply_is_not_sent_back(shared_crew: Crew) -> None:
    spoken = Reply([{"type": "text", "text": "half \ud83d"}, {"type": "tool_use", "name": "list_dir", "input": {}}])
    shared_crew.model.give("echoed", spoken, says("went on"))
    assert shared_crew.run("echoed", "explore", "list it").text == "went on"


STALLS = {
    "pings": (Fault(kind="ping", seconds=0.05), {"CREWBOARD_PROGRESS_TIMEOUT": "0.5"}, "no progress for 0.5 s"),
    "silence": (Fault(kind="hang"), {"CREWBOARD_PROGRESS_TIMEOUT": "0.5"}, "no progress for 0.5 s"),
    "drip": (Fault(kind="drip", seconds=0.3), {"CREWBOARD_CALL_TIMEOUT": "0.7"}, "took longer than 0.7 s"),
}


@pytest.mark.parametrize("name", STALLS)
def test_a_call_that_makes_no_progress_is_cancelled_and_repeated(shared_crew_on: Make, name: str) -> None:
    fault, limits, why = STALLS[name]
    crew = shared_crew_on([says("here it is")], [fault], **limits)
    assert crew.run(f"stalled-{name}", "explore", "Tell me").text == "here it is"
    (retry,) = [event for event in crew.events(f"stalled-{name}") if isinstance(event, Retry)]
    assert why in retry.error
