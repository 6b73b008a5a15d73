"""A request that its model refuses is answered by another one, inside of the API, and that is counted and sent back."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from crewboard import models
from crewboard.commands import messages
from crewboard.offline.reply import Reply
from crewboard.records.agents import Tokens
from crewboard.records.events import BrokenReply, Event, Intake, Opening
from crewboard.records.events import Reply as Kept
from crewboard.worker.conversation import replay
from crewboard.worker.llm.blocks import ReplyStream, without_declined
from tests.api.service import FALLBACK, Refusal
from tests.crew import Crew, eventually
from tests.model import calls, says
from tests.preloaded import TAKEN_FOR_THE_API, patched
from tests.worker.test_prefix import require_growth, resume_after_kill

Make = Callable[..., Crew]

DETAILS = {"type": "refusal", "category": "cyber", "explanation": None}
BEGAN: list[dict[str, Any]] = [
    {"type": "text", "text": "I begin."},
    {"type": "tool_use", "name": "bash", "input": {"command": "touch bad"}},
]
HOP = {"type": "fallback", "from": {"model": "a"}, "to": {"model": "b"}}


@pytest.fixture
def api() -> Iterator[None]:
    """Let workers take the tests' server for the API."""
    with patched(TAKEN_FOR_THE_API):
        yield


def refuses(instead: Reply | None) -> Reply:
    return Refusal(BEGAN, "refusal", DETAILS, instead=instead)


@pytest.mark.usefixtures("api")
@pytest.mark.linux("fork")
def test_another_model_goes_on_where_one_refuses(crew_on: Make) -> None:
    crew = crew_on({"worker": [refuses(calls("list_dir")), says("done"), says("more")]})
    hired = crew.hire("worker", "code", "look", unsafe_no_sandbox=True)
    assert crew.answer(hired).text.endswith("done")
    resume_after_kill(crew, "worker")
    crew.answer_to("worker", messages.send(crew.team, "worker", "more?").id)
    bodies = crew.model.asked_by("worker")
    assert [body["fallbacks"] for body in bodies] == ["default"] * len(bodies)
    require_growth(bodies)
    kinds = [block["type"] for block in bodies[1]["messages"][1]["content"]]
    assert kinds == ["text", "fallback", "tool_use"], "neither thinking nor a call of the model that refused"
    assert not (crew.root / "bad").exists()
    first = next(event for event in crew.events("worker") if isinstance(event, Kept))
    broken = next(event for event in crew.events("worker") if isinstance(event, BrokenReply))
    assert first.model == FALLBACK
    assert broken.model.startswith("claude-")
    assert broken.model != FALLBACK
    assert broken.usage.output


@pytest.mark.usefixtures("api")
def test_a_refusal_of_all_models_is_a_need(crew_on: Make) -> None:
    crew = crew_on({"worker": [refuses(None)]})
    answer = crew.run("worker", "code", "look", unsafe_no_sandbox=True)
    assert answer.error is not None
    assert answer.refused_by is not None
    eventually(lambda: any(need.refused_by == answer.refused_by for need in crew.view().needs), "the need")


def test_servers_of_others_and_models_without_are_not_asked(shared_crew: Crew) -> None:
    shared_crew.model.give("plain", says("done"))
    shared_crew.answer(shared_crew.hire("plain", "code", "look", unsafe_no_sandbox=True))
    assert "fallbacks" not in shared_crew.model.asked_by("plain")[0]
    assert models.with_fallbacks({}, "claude-haiku-5-5", {}) == {}
    asked = models.with_fallbacks({"extra_headers": {"anthropic-beta": "mine"}}, "claude-opus-5-5", {})
    assert asked["extra_headers"] == {"anthropic-beta": f"mine,{models.FALLBACK_BETA}"}


def test_what_a_model_began_that_refused_is_not_sent_back() -> None:
    search = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}
    found = {"type": "web_search_tool_result", "tool_use_id": "s", "content": []}
    other = {**search, "id": "t"}
    thought, call, text = ({"type": kind} for kind in ("thinking", "tool_use", "text"))
    content: list[dict[str, Any]] = [thought, text, search, found, other, call, HOP, thought, call]
    assert without_declined(content) == [text, search, found, HOP, thought, call]
    assert without_declined([thought, call]) == [thought, call]


@pytest.mark.parametrize(("falls_back", "kinds"), [(True, ["text", "fallback", "text"]), (False, ["text", "text"])])
def test_another_server_is_not_sent_the_place_of_a_change(falls_back: bool, kinds: list[str]) -> None:
    texts = [{"type": "text", "text": word} for word in "ab"]
    events: list[Event] = [
        Opening(ts=0, system="s", tools=[], falls_back=falls_back),
        Intake(ts=1, cursor=0, prompt="go", assignment="a"),
        Kept(ts=2, content=[texts[0], HOP, texts[1]], stop_reason="max_tokens", usage=Tokens()),
        Intake(ts=3, cursor=0, notices=["go on"]),
    ]
    assert [block["type"] for block in replay(events).messages()[1]["content"]] == kinds


def test_each_model_of_a_reply_is_counted_once() -> None:
    counts = {"input_tokens": 10, "cache_read_input_tokens": 0, "cache_creation_input_tokens": 0}
    stream = ReplyStream(None)  # type: ignore[arg-type]
    stream.usage = {
        "input_tokens": 99, "output_tokens": 99,
        "iterations": [
            {"type": "message", "model": "a", **counts, "output_tokens": 0},
            {"type": "message", "model": "b", **counts, "output_tokens": 3},
            {"type": "fallback_message", "model": "c", **counts, "output_tokens": 5},
        ],
    }  # fmt: skip
    assert stream.used == Tokens(input=10, output=5)
    assert stream.declined == [("b", Tokens(input=10, output=3))]
    stream.usage["iterations"].pop()
    assert stream.used == Tokens(input=99, output=99)
    assert stream.declined == []
