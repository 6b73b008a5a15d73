"""Effort and thinking: asked for only where the model takes them, kept in the journal, sent back as they came."""

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from crewboard import models
from crewboard.agent_types import TYPES
from crewboard.commands import answers, hire, messages
from crewboard.commands.context import Team
from crewboard.errors import UsageError
from crewboard.offline.reply import Reply
from crewboard.records.agents import HireOptions
from crewboard.records.events import Reply as Kept
from crewboard.records.events import Summary
from crewboard.store import roster
from crewboard.type_files import find, find_all
from crewboard.worker.conversation import replay
from tests.crew import Crew
from tests.model import calls, looks, says
from tests.preloaded import TAKEN_FOR_THE_API, patched
from tests.raw import RawServer, sse
from tests.worker.test_odd_replies import DONE, STOP, begin, call, called, end, start, text

of_answers = pytest.mark.files_only("what is asked of a model, and what its answer means, no store knows")

Make = Callable[..., Crew]

ADAPTIVE = {"type": "adaptive", "display": "summarized"}
REDACTED = {"type": "redacted_thinking", "data": "bm90IGZvciB5b3U="}


def thought(text: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": text}


def sent(crew: Crew, name: str) -> list[tuple[Any, Any]]:
    """Return effort and thinking of each request of an agent."""
    return [(body.get("output_config"), body.get("thinking")) for body in crew.model.asked_by(name)]


def hire_plan(crew: Crew, name: str, model: str | None = None, **terms: Any) -> hire.Assignment:
    return hire.spawn(crew.team, hire.Hire(name, "plan", "go", model=model, flags=HireOptions(**terms)))


def thinking_in(body: dict[str, Any]) -> list[dict[str, Any]]:
    blocks = [block for message in body["messages"] if message["role"] == "assistant" for block in message["content"]]
    return [block for block in blocks if block["type"] in ("thinking", "redacted_thinking")]


def thinking_of(crew: Crew, name: str) -> list[dict[str, Any]]:
    blocks = [block for event in crew.events(name) if isinstance(event, Kept) for block in event.content]
    return [block for block in blocks if block["type"] in ("thinking", "redacted_thinking")]


@pytest.mark.parametrize(
    ("name", "terms", "asked"),
    [
        ("eager", {"effort": "max"}, ({"effort": "max"}, ADAPTIVE)),
        # Each model has one way to turn it off.
        ("curt", {"thinking": "off", "model": "claude-sonnet-5-5"}, ({"effort": "high"}, {"type": "between_tools"})),
        (
            "cheap",
            {"thinking": "off", "effort": "low", "model": "claude-haiku-5-5"},
            ({"effort": "low"}, {"type": "disabled"}),
        ),
    ],
)
@of_answers
def test_what_the_hire_says_is_asked_of_the_model(
    shared_crew: Crew, name: str, terms: dict[str, str], asked: tuple[Any, Any]
) -> None:
    shared_crew.model.give(name, says("done"))
    assert shared_crew.answer(hire_plan(shared_crew, name, **terms)).text == "done"
    assert sent(shared_crew, name) == [asked]
    shown = shared_crew.wait_for(name, "idle")
    assert (shown.status.effort, shown.status.thinking) == (asked[0]["effort"], terms.get("thinking", "adaptive"))


@pytest.mark.long
def test_an_agent_works_with_the_effort_and_thinking_of_its_type(shared_crew: Crew) -> None:
    expected = {
        "explore": ({"effort": "medium"}, ADAPTIVE),
        "code": ({"effort": "high"}, ADAPTIVE),
        "test": ({"effort": "medium"}, ADAPTIVE),
    }
    for kind, found in expected.items():
        shared_crew.model.give(f"usual-{kind}", says("done"))
        shared_crew.run(f"usual-{kind}", kind, "go", unsafe_no_sandbox=True)
        assert sent(shared_crew, f"usual-{kind}") == [found]
        shown = shared_crew.wait_for(f"usual-{kind}", "idle")
        assert bool(shown.status.thinking) == bool(found[1]), "what is not asked for is not shown"


@pytest.mark.parametrize(
    ("model", "terms", "why"),
    [
        ("haiku-4-5", {"effort": "low"}, "does not take the effort low: it has no levels of effort"),
        ("sonnet-4-6", {"effort": "xhigh"}, "does not take the effort xhigh: it has low, medium, high, max"),
        ("haiku-4-5", {"thinking": "adaptive"}, "does not take the thinking adaptive: it takes off"),
        ("opus-5-5", {"thinking": "off"}, "does not take the thinking off: it takes adaptive"),
        ("haiku-5-5", {"effort": "max", "thinking": "off"}, "does not take the effort max with the thinking off"),
    ],
)
@of_answers
def test_what_the_model_does_not_take_starts_no_agent(
    shared_crew: Crew, model: str, terms: dict[str, Any], why: str
) -> None:
    for environment in (shared_crew.environment, {**shared_crew.environment, "CREWBOARD_OFFLINE": "1"}):
        team = Team(shared_crew.directory, environment=environment)
        hiring = hire.Hire("unwilling", "plan", "go", model=f"claude-{model}", flags=HireOptions(**terms))
        with pytest.raises(UsageError, match=f"claude-{model} {why}"):
            hire.spawn(team, hiring)
    assert roster.load(shared_crew.directory).member("unwilling") is None


def test_what_is_usual_gives_way_to_what_was_asked() -> None:
    can = models.read(models.offline("claude-haiku-5-5"))
    for asked, usual, found in (
        (("max", None), ("low", "off"), ("max", None)),
        ((None, "off"), ("max", "adaptive"), (None, "off")),
        (("high", None), ("low", "off"), ("high", "off")),
    ):
        assert models.chosen(can, asked, usual) == found  # type: ignore[arg-type]


def test_a_resume_with_a_model_that_takes_less_is_refused(shared_crew: Crew) -> None:
    shared_crew.model.give("demoted", says("done"))
    shared_crew.run("demoted", "plan", "go", effort="xhigh", once=True)
    shared_crew.wait_for("demoted", "exited")
    with pytest.raises(UsageError, match="does not take the effort xhigh"):
        hire.resume(shared_crew.team, "demoted", model="claude-haiku-4-5")


def test_a_worker_refuses_what_changed_since_the_hire(shared_crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "ask", lambda _model, _environment: None)
    answer = shared_crew.answer(hire_plan(shared_crew, "outdated", "claude-haiku-4-5", effort="low"))
    assert answer.code == 2
    assert "no levels of effort" in str(answer.error)
    assert sent(shared_crew, "outdated") == []


@pytest.mark.misfits("a description of a model from before it had capabilities")
@of_answers
def test_without_the_route_only_what_was_asked_for_is_sent(shared_crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "offline", lambda _model: {})
    shared_crew.model.give("unsure", says("done"))
    shared_crew.run("unsure", "code", "go", effort="low", unsafe_no_sandbox=True)
    assert sent(shared_crew, "unsure") == [({"effort": "low"}, None)]


@pytest.mark.misfits("a description of a model from before it had capabilities")
@of_answers
@pytest.mark.linux("fork")
def test_where_the_api_says_nothing_its_documents_say_it(crew_on: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "offline", lambda _model: {})
    with patched(TAKEN_FOR_THE_API):
        crew = crew_on({"unsure": [says("done")]})
        crew.run("unsure", "code", "go", unsafe_no_sandbox=True)
    (asked,) = crew.model.asked_by("unsure")
    assert asked["output_config"] == {"effort": "high"}
    assert asked["thinking"]["type"] == "adaptive"


def test_an_api_that_does_not_answer_refuses_no_hire() -> None:
    for url in ("http://127.0.0.1:9", "file:///etc/hostname", "nonsense", "http://[broken"):
        assert models.ask("claude-sonnet-5-5", {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": "k"}) is None


def test_the_key_is_sent_to_no_other_address() -> None:
    asked = []

    class Redirecting(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(302)
            self.send_header("Location", "/elsewhere")
            self.end_headers()

    with HTTPServer(("127.0.0.1", 0), Redirecting) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        environment = {"ANTHROPIC_BASE_URL": f"http://127.0.0.1:{server.server_port}", "ANTHROPIC_API_KEY": "k"}
        assert models.ask("claude", environment) is None
        server.shutdown()
    assert asked == ["/v1/models/claude"]


def test_a_description_of_a_model_that_lacks_parts_is_read() -> None:
    assert models.read({}) is None
    assert models.read({"capabilities": None}) is None
    empty = models.read({"capabilities": {"effort": None, "thinking": {"types": 3}}})
    assert empty == models.Capabilities((), frozenset({"disabled"}))
    whole = models.read(models.offline("claude-opus-5-5"))
    assert whole is not None
    assert whole.efforts == models.EFFORTS


def test_a_type_file_sets_effort_and_thinking(tmp_path: Path) -> None:
    folder = tmp_path / ".claude" / "agents"
    folder.mkdir(parents=True)
    front = "name: deep\ndescription: thinks\ntools: Read\nmodel: opus\neffort: max\nthinking: 'off'\n"
    (folder / "deep.md").write_text(f"---\n{front}---\nThink.\n")
    found = find(tmp_path, "deep")
    assert (found.effort, found.thinking) == ("max", "off")


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("effort: huge", "effort: 'huge' is not one of low, medium, high, xhigh, max"),
        ("thinking: deep", "thinking: 'deep' is not one of adaptive, off"),
        ("worktree: on", "worktree: 'on' is not one of always, never"),
    ],
)
def test_a_wrong_value_in_a_type_file_is_answered_with_the_right_ones(tmp_path: Path, line: str, why: str) -> None:
    folder = tmp_path / ".claude" / "agents"
    folder.mkdir(parents=True)
    (folder / "deep.md").write_text(f"---\nname: deep\ndescription: thinks\n{line}\n---\nThink.\n")
    assert [file.why for file in find_all(tmp_path)[1]] == [why]


def test_every_built_in_type_says_how_hard_it_works() -> None:
    assert all(kind.effort for kind in TYPES.values())


def test_a_lead_chooses_effort_and_thinking_of_what_it_hires(shared_crew: Crew) -> None:
    hires = calls("spawn_agent", name="hired", agent_type="plan", prompt="go", effort="xhigh", thinking="adaptive")
    shared_crew.model.give("boss", hires, says("done"))
    shared_crew.model.give("hired", says("a plan"))
    shared_crew.run("boss", "lead", "hire one", unsafe_no_sandbox=True)
    assert sent(shared_crew, "hired") == [({"effort": "xhigh"}, ADAPTIVE)]


def test_thinking_goes_back_unchanged_across_tools_and_a_resume(shared_crew: Crew) -> None:
    looks = Reply([thought("Where?\n  Here, é ∑."), REDACTED, *calls("list_dir").content])
    # Interleaved: it thinks again between the calls, and in the middle of a reply.
    again = Reply(
        [thought("And now?"), {"type": "text", "text": "I see."}, thought("On."), *calls("glob", pattern="*").content]
    )
    asks = Reply([thought("I must ask."), *calls("ask_operator", question="Which?").content])
    shared_crew.model.give("thinker", looks, again, asks, says("the end"))
    hired = shared_crew.hire("thinker", "plan", "go")
    shared_crew.pending("question", "thinker")
    shared_crew.kill("thinker")
    shared_crew.wait_for("thinker", "crashed")
    hire.resume(shared_crew.team, "thinker")
    answers.answer(shared_crew.team, shared_crew.pending("question", "thinker").id, "this")
    assert shared_crew.answer(hired).text == "the end"
    kept = thinking_of(shared_crew, "thinker")
    # The server refuses what was changed, or what stands behind something else than before. The last one is of the end.
    kinds = ["thinking", "redacted_thinking", "thinking", "thinking", "thinking", "thinking"]
    assert [block["type"] for block in kept] == kinds
    assert all(block["signature"] for block in kept if block["type"] == "thinking")
    assert thinking_in(shared_crew.model.asked_by("thinker")[-1]) == kept[:-1]


@pytest.mark.long
def test_thinking_outlives_summaries(shared_crew_on: Make) -> None:
    works = [
        Reply([thought(f"step {number} " * 100), {"type": "text", "text": "word " * 400}, *look.content])
        for number, look in enumerate(looks(14))
    ]
    crew = shared_crew_on(script={"ponderer": [*works, says("the end")]}, window=16_000)
    assert crew.run("ponderer", "plan", "Look everywhere").text == "the end"
    assert any(isinstance(event, Summary) for event in crew.events("ponderer"))
    kept = thinking_of(crew, "ponderer")
    later = [body for body in crew.model.requests if "Summary of the conversation so far" in str(body["messages"])]
    sent_back = [thoughts for body in later if "tools" in body and (thoughts := thinking_in(body))]
    assert sent_back
    for thoughts in sent_back:
        begin = kept.index(thoughts[0])
        assert thoughts == kept[begin : begin + len(thoughts)]


def test_a_reply_cut_off_in_its_thinking_is_continued(shared_crew: Crew) -> None:
    half = Reply([thought("so far and then")], stop_reason="max_tokens")
    unsigned = Reply([{**thought("cut"), "signature": ""}, {"type": "text", "text": "half "}], stop_reason="max_tokens")
    shared_crew.model.give("cut", half, unsigned, says("and half"), says("more"))
    assert shared_crew.run("cut", "plan", "go").text == "half and half"
    sent_later = messages.send(shared_crew.team, "cut", "and now?")
    assert shared_crew.answer_to("cut", sent_later.id).text == "more"


def test_another_model_does_not_get_the_thinking_of_the_first(shared_crew: Crew) -> None:
    thinks = Reply([thought("mine alone"), *calls("ask_operator", question="Which?").content])
    shared_crew.model.give("changed", thinks, says("the end"))
    shared_crew.hire("changed", "plan", "go")
    shared_crew.pending("question", "changed")
    shared_crew.kill("changed")
    shared_crew.wait_for("changed", "crashed")
    conversation = replay(shared_crew.events("changed"))
    assert "mine alone" in str(conversation.messages())
    (start,) = [event for event in shared_crew.events("changed") if type(event).__name__ == "RunStarted"]
    conversation.apply(start.replace(fresh=False, model="claude-sonnet-5-5"))
    assert "mine alone" not in str(conversation.messages())
    assert conversation.messages()[-1]["role"] == "assistant"


@pytest.mark.long
def test_a_transcript_for_a_summary_leaves_thinking_out() -> None:
    reply = Kept(ts=1, content=[{**thought("secret way"), "signature": "s"}, {"type": "text", "text": "said"}],
                 stop_reason="end_turn", usage=replay([]).tokens)  # fmt: skip
    conversation = replay([reply])
    assert "said" in conversation.transcript()
    assert "secret way" not in conversation.transcript()


@pytest.mark.long
@pytest.mark.parametrize("signature", [{}, {"signature": ""}])
@of_answers
def test_unsigned_thinking_goes_back_to_a_server_of_others(shared_crew_on: Make, signature: dict[str, str]) -> None:
    came = {"type": "thinking", "thinking": "hm", **signature}
    cut = sse(start(), begin({**came, "thinking": "cut"}), *text("so ", 1), end("max_tokens"), STOP)
    looks = called(begin(came), *call(whole={}, name="list_dir", index=1))
    name = f"plainly{len(signature)}"
    with RawServer(looks, cut, DONE) as server:
        crew = shared_crew_on(ANTHROPIC_BASE_URL=server.url)
        assert crew.run(name, "explore", "go").text == "so the end"
    assert [thinking_in(body) for body in server.requests] == [[], [came], [came]]
    conversation = replay(crew.events(name))
    assert not thinking_in({"messages": conversation.messages()}), "the API itself refuses it"
    conversation.sends_unsigned = True
    assert thinking_in({"messages": conversation.messages()}) == [came]
    (begun,) = [event for event in crew.events(name) if type(event).__name__ == "RunStarted"]
    conversation.apply(begun.replace(fresh=False, model="another"))
    assert not thinking_in({"messages": conversation.messages()})
