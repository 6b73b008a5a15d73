"""A conversation only grows: what requests began with stays, or the thinking behind it is not sent any more.

The tests' model thinks before each reply, and refuses thinking behind what has changed, as the API does. So each test
of a worker is one of this, too; here are the occasions at which something in front of the conversation may change.
"""

import asyncio
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from crewboard import models
from crewboard.commands import answers, hire, messages
from crewboard.records.agents import Terms, Tokens
from crewboard.records.events import Answer, Event, Intake, Opening, Reply, ToolResult
from crewboard.records.messages import Message
from crewboard.store import mailbox
from crewboard.worker.conversation import replay
from crewboard.worker.llm.blocks import ReplyStream, with_breakpoints
from crewboard.worker.llm.client import make_client
from crewboard.worker.tools.registry import with_added
from tests.api import service, thinking
from tests.api.thinking import Stale
from tests.api.wire import MessagesRequest, Thinking
from tests.crew import Crew, eventually
from tests.model import ModelServer, calls, says
from tests.preloaded import TAKEN_FOR_THE_API, patched

Make = Callable[..., Crew]

PLAN = calls("submit_plan", plan="# Write it", files=["a.txt"])
ASKS = calls("ask_operator", question="Which?")


def unmarked(value: Any) -> Any:  # noqa: ANN401  any JSON
    """Return a part of a request without breakpoints of the cache."""
    if isinstance(value, dict):
        return {key: unmarked(item) for key, item in value.items() if key != "cache_control"}
    return [unmarked(item) for item in value] if isinstance(value, list) else value


def require_growth(bodies: Sequence[dict[str, Any]]) -> None:
    """Check that each request begins with the whole of the one before."""
    plain = [unmarked(body) for body in bodies]
    for before, after in itertools.pairwise(plain):
        assert (after["system"], after["tools"]) == (before["system"], before["tools"])
        assert after["messages"][: len(before["messages"])] == before["messages"]


def openings(crew: Crew, name: str) -> int:
    return sum(isinstance(event, Opening) for event in crew.events(name))


def resume_after_kill(crew: Crew, name: str) -> None:
    crew.kill(name)
    crew.wait_for(name, "crashed")
    hire.resume(crew.team, name)


def thoughts_in(body: dict[str, Any]) -> int:
    return sum(block["type"] == "thinking" for message in body["messages"] for block in message["content"])


def test_a_resume_begins_with_what_was_sent_before(crew_on: Make) -> None:
    crew = crew_on({"scout": [ASKS, says("done"), says("more")]})
    (crew.root / "CLAUDE.md").write_text("Use tabs.")
    hired = hire.spawn(crew.team, hire.Hire("scout", "plan", "look", role="a surveyor"))
    crew.pending("question")
    resume_after_kill(crew, "scout")
    answers.answer(crew.team, crew.pending("question").id, "this")
    assert crew.answer(hired).text == "done"
    resume_after_kill(crew, "scout")
    crew.answer_to("scout", messages.send(crew.team, "scout", "more?").id)
    bodies = crew.model.asked_by("scout")
    require_growth(bodies)
    assert [thoughts_in(body) for body in bodies] == [0, 1, 2]
    assert openings(crew, "scout") == 1


def test_terms_of_a_plan_leave_the_tools_as_they_are(shared_crew: Crew) -> None:
    shared_crew.model.give("termed", PLAN, calls("bash", command="true"), says("done"))
    hired = shared_crew.hire("termed", "code", "write", plan=True, unsafe_no_sandbox=True)
    answers.approve(
        shared_crew.team, shared_crew.pending("plan_approval", "termed").id, terms=Terms(tools=["read_file"])
    )
    assert shared_crew.answer(hired).text == "done"
    require_growth(shared_crew.model.asked_by("termed"))


def test_a_tool_that_is_new_is_offered_without_earlier_thinking(shared_crew: Crew) -> None:
    shared_crew.model.give("learner", ASKS, says("done"))
    hired = shared_crew.hire("learner", "explore", "look")
    question = shared_crew.pending("question", "learner")
    message = Message(
        id="plan-first", ts=1.0, from_="operator", to="learner", type="message", content="Submit a plan first.",
        metadata={"plan_required": True},
    )  # fmt: skip
    mailbox.send(shared_crew.directory, message)
    answers.answer(shared_crew.team, question.id, "this")
    shared_crew.answer(hired)
    before, after = shared_crew.model.asked_by("learner")[:2]
    assert message.id in str(after["messages"])
    assert "submit_plan" not in str(before["tools"])
    assert "submit_plan" in str(after["tools"])
    assert thoughts_in(after) == 0
    assert openings(shared_crew, "learner") == 2


@pytest.mark.long
@pytest.mark.files_only("takes lines out of the file of a journal")
def test_a_journal_without_an_opening_is_continued(crew_on: Make) -> None:
    crew = crew_on({"old": [ASKS, says("done")]})
    hired = crew.hire("old", "plan", "look")
    crew.pending("question")
    crew.kill("old")
    crew.wait_for("old", "crashed")
    journal = crew.agent("old").path / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(line for line in lines if b'"opening"' not in line))
    hire.resume(crew.team, "old")
    answers.answer(crew.team, crew.pending("question").id, "this")
    assert crew.answer(hired).text == "done"
    assert thoughts_in(crew.model.asked_by("old")[-1]) == 0


@pytest.mark.long
def test_thinking_that_is_not_as_it_was_is_left_out(crew_on: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    keep = thinking.Thoughts.keep

    def keep_more(self: thinking.Thoughts, content: list[dict[str, Any]]) -> None:
        # As if a line of the journal had lost a part of it.
        lost = [{"type": "redacted_thinking", "data": "x"}] if any(map(is_call, content)) else []
        keep(self, [*lost, *content])

    monkeypatch.setattr(thinking.Thoughts, "keep", keep_more)
    crew = crew_on({"repaired": [calls("list_dir"), says("done")]})
    assert crew.run("repaired", "plan", "look").text == "done"
    assert [thoughts_in(body) for body in crew.model.asked_by("repaired")] == [0, 1, 0]


def is_call(block: dict[str, Any]) -> bool:
    return bool(block["type"] == "tool_use")


@pytest.mark.long
def test_a_refusal_because_of_thinking_is_repaired_once(crew_on: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    genuine, refusals = thinking.find_stale, [1]

    def find_stale(asked: MessagesRequest) -> list[Stale]:
        assert not genuine(asked)
        thinks = any(isinstance(block, Thinking) for message in asked.messages for block in message.content)
        return [Stale(1, 0)] if thinks and refusals and refusals.pop() else []

    monkeypatch.setattr(service, "find_stale", find_stale)
    crew = crew_on({"repaired": [calls("list_dir"), says("done")]}, allows_stale_thinking=True)
    assert crew.run("repaired", "plan", "look").text == "done"
    first, refused, repaired = crew.model.asked_by("repaired")
    assert [thoughts_in(body) for body in (first, refused, repaired)] == [0, 1, 0]


@pytest.mark.long
@pytest.mark.linux("fork")
def test_what_the_api_dropped_is_not_sent_again(crew_on: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    genuine, drops = thinking.find_stale, [1]

    def find_stale(asked: MessagesRequest) -> list[Stale]:
        assert not genuine(asked)
        thinks = any(isinstance(block, Thinking) for message in asked.messages for block in message.content)
        return [Stale(1, 0)] if thinks and drops and drops.pop() else []

    monkeypatch.setattr(service, "find_stale", find_stale)
    looks = [calls("list_dir", path=path) for path in (".", "./")]
    with patched(TAKEN_FOR_THE_API):
        crew = crew_on({"dropped": [*looks, says("done")]}, allows_stale_thinking=True)
        assert crew.run("dropped", "plan", "look").text == "done"
    assert [thoughts_in(body) for body in crew.model.asked_by("dropped")] == [0, 1, 0]


def test_tools_stay_unless_one_is_new_or_one_of_the_api_must_go() -> None:
    ours = [{"name": name, "description": "x", "input_schema": {"type": "object"}} for name in ("a", "b")]
    search = {"type": "web_search_20260318", "name": "web_search"}
    assert with_added(ours, ours) == ours
    assert with_added(ours, ours[:1]) == ours, "a call of the other one is refused"
    assert with_added(ours[:1], ours) is None
    assert with_added(ours, [ours[0], {**ours[1], "description": "y"}]) is None
    assert with_added([search, *ours], [search]) == [search, *ours]
    assert with_added([search, *ours], ours) is None, "a call of it cannot be refused here"


def test_the_api_itself_is_asked_to_drop_stale_thinking() -> None:
    adaptive = {"thinking": {"type": "adaptive"}}
    bound = models.with_binding(adaptive, "claude-opus-5-5", {"anthropic-beta": "mine"})
    assert bound["thinking"] == {"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "drop_block"}}
    assert bound["extra_headers"] == {"anthropic-beta": f"mine,{thinking.BETA}"}
    assert models.with_binding(adaptive, "claude-opus-4-8", {}) == adaptive
    assert models.with_binding({}, "claude-opus-5-5", {}) == {}
    assert models.with_binding({"thinking": {"type": "disabled"}}, "claude-opus-5-5", {}) == {
        "thinking": {"type": "disabled"}
    }


def test_dropped_thinking_is_noticed() -> None:
    settings = models.with_binding({"thinking": {"type": "adaptive"}}, "claude-opus-5-5", {})
    hello = {"role": "user", "content": "hello"}

    async def ask(url: str) -> tuple[bool, bool]:
        async with make_client(api_key="k", base_url=url) as client:

            async def reply(system: str, *history: dict[str, Any]) -> ReplyStream:
                request: dict[str, Any] = {
                    "model": "claude-opus-5-5", "max_tokens": 99, "system": system, "messages": [hello, *history],
                    **settings,
                }  # fmt: skip
                stream = ReplyStream((await client.messages.create(**request, stream=True)).response)
                async for _ in stream.pieces():
                    pass
                return stream

            first = await reply("one")
            turn = {"role": "assistant", "content": first.blocks}
            same, other = [await reply(system, turn, hello) for system in ("one", "other")]
            return same.dropped_thinking, other.dropped_thinking

    with ModelServer(allows_stale_thinking=True) as server:
        assert asyncio.run(ask(server.url)) == (False, True)


def test_thinking_that_was_shown_although_it_does_not_fit_stays() -> None:
    shown = {"type": "thinking_mismatch_allowed", "path": "messages.1.content.0", "reason": "prefix_binding_mismatch"}
    stream = ReplyStream(None)  # type: ignore[arg-type]
    stream.said = {"input_transformations": [shown]}
    assert not stream.dropped_thinking
    stream.said = {"input_transformations": [shown, {**shown, "type": "thinking_dropped"}]}
    assert stream.dropped_thinking


def test_the_model_that_took_over_says_what_was_dropped() -> None:
    stream = ReplyStream(None)  # type: ignore[arg-type]
    dropped = [{"type": "thinking_dropped", "path": "messages.1.content.0", "reason": "prefix_binding_mismatch"}]
    stream._take({"type": "message_start", "message": {"input_transformations": []}})
    stream._take({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "input_transformations": dropped})
    assert stream.said["input_transformations"] == dropped


def test_another_time_in_the_cache_changes_no_beginning() -> None:
    tools = [{"name": "a", "description": "x", "input_schema": {"type": "object"}}]
    hello = {"role": "user", "content": [{"type": "text", "text": "hello"}]}

    async def talk(url: str) -> None:
        said: list[dict[str, Any]] = [hello]
        async with make_client(api_key="k", base_url=url) as client:
            for an_hour in (False, True, False):
                request: dict[str, Any] = {"model": "claude-opus-5-5", "max_tokens": 99}
                request |= with_breakpoints("one", tools, said, an_hour=an_hour)
                stream = ReplyStream((await client.messages.create(**request, stream=True)).response)
                async for _ in stream.pieces():
                    pass
                said += [{"role": "assistant", "content": stream.blocks}, hello]

    with ModelServer(script=[says("yes")] * 3) as server:
        # Its end fails if thinking was stale.
        asyncio.run(talk(server.url))
    assert [thoughts_in(body) for body in server.requests] == [0, 1, 2]
    ttls = [
        [part["cache_control"].get("ttl") for part in (*body["tools"], *body["system"])] for body in server.requests
    ]
    assert ttls == [[None, None], ["1h", "1h"], [None, None]]


def test_a_long_call_counts_as_a_pause_until_the_next_assignment() -> None:
    call = {"type": "tool_use", "id": "t", "name": "submit_plan", "input": {}}
    events: list[Event] = [
        Intake(ts=1, cursor=0, prompt="go", assignment="a"),
        Reply(ts=9, content=[call], stop_reason="tool_use", usage=Tokens()),
        ToolResult(ts=420, tool_use_id="t", name="submit_plan", content="approved", seconds=411),
    ]
    assert replay(events).pause == 411
    events += [
        Answer(ts=430, assignment="a", answers=["a"], text="done"),
        Intake(ts=440, cursor=0, prompt="more", assignment="b"),
    ]
    assert replay(events).pause == 10


@pytest.mark.long
def test_mail_that_comes_during_a_run_does_not_change_its_beginning(shared_crew: Crew) -> None:
    looks = [calls("glob", pattern=f"*{number}") for number in range(3)]
    shared_crew.model.give("reader", *looks, ASKS, says("done"), says("more"))
    hired = shared_crew.hire("reader", "plan", "look")
    question = shared_crew.pending("question", "reader")
    sent = messages.send(shared_crew.team, "reader", "hurry")
    answers.answer(shared_crew.team, question.id, "this")
    shared_crew.answer(hired)
    eventually(lambda: sent.id in str(shared_crew.model.asked_by("reader")[-1]["messages"]), "the mail")
    require_growth(shared_crew.model.asked_by("reader"))
