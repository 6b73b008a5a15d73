"""The prompt cache of the API: what it says of each miss is journalled, and who waits for long keeps it for an hour."""

from collections.abc import Callable

import pytest

from crewboard.commands import answers, hire, messages
from crewboard.records.agents import Tokens
from crewboard.records.events import CacheMiss, Reply, Summary
from crewboard.worker.conversation import replay
from tests.crew import Crew
from tests.model import calls, says
from tests.preloaded import TAKEN_FOR_THE_API, patched
from tests.worker.test_prefix import resume_after_kill


def replies(crew: Crew, name: str) -> list[Reply]:
    return [event for event in crew.events(name) if isinstance(event, Reply)]


@pytest.mark.long
@pytest.mark.files_only("the server does not know where the team is kept")
@pytest.mark.linux("fork")
def test_only_another_model_misses_the_cache(crew_on: Callable[..., Crew]) -> None:
    with patched(TAKEN_FOR_THE_API):
        crew = crew_on()
        crew.answer(crew.hire("scout", "explore", "List all Python files, then read README.md"))
        resume_after_kill(crew, "scout")
        crew.answer_to("scout", messages.send(crew.team, "scout", "list all files").id)
        before = replies(crew, "scout")
        assert len(before) > 2
        assert len({reply.id for reply in before}) == len(before)
        assert [reply.cache_miss for reply in before] == [None] * len(before), "a resume changes nothing"
        crew.kill("scout")
        crew.wait_for("scout", "crashed")
        hire.resume(crew.team, "scout", model="opus")
        crew.answer_to("scout", messages.send(crew.team, "scout", "list all files").id)
        miss = replies(crew, "scout")[len(before)].cache_miss
        assert isinstance(miss, CacheMiss)
        assert miss.reason == "model_changed"
        assert miss.tokens


def test_a_conversation_that_was_shortened_is_compared_with_nothing() -> None:
    reply = Reply(ts=1, id="msg_1", content=[{"type": "text", "text": "yes"}], stop_reason="end_turn", usage=Tokens())
    assert replay([reply]).last_id == "msg_1"
    assert replay([reply, Summary(ts=2, covers=1, text="all of it", usage=Tokens())]).last_id == ""


@pytest.mark.long
def test_servers_of_others_are_not_asked(shared_crew: Crew) -> None:
    shared_crew.model.give("plain", calls("list_dir"), says("done"))
    shared_crew.answer(shared_crew.hire("plain", "explore", "look"))
    assert [body.get("diagnostics", "none") for body in shared_crew.model.asked_by("plain")] == ["none"] * 2
    assert [reply.id for reply in replies(shared_crew, "plain")] == ["", ""]


@pytest.mark.long
@pytest.mark.linux("fork")
def test_a_lead_and_who_waited_long_keep_the_cache_for_an_hour(crew_on: Callable[..., Crew]) -> None:
    soon = "from crewboard.worker.llm import model\nmodel.CACHE_SECONDS = 0.001\n"
    with patched(TAKEN_FOR_THE_API + soon):
        crew = crew_on({"waiter": [calls("ask_operator", question="Which?"), says("done")], "boss": [says("done")]})
        hired = crew.hire("waiter", "plan", "look")
        answers.answer(crew.team, crew.pending("question").id, "this")
        crew.answer(hired)
        crew.run("boss", "lead", "look")
    bodies = [*crew.model.asked_by("waiter"), *crew.model.asked_by("boss")]
    assert [body["system"][0]["cache_control"].get("ttl") for body in bodies] == [None, "1h", "1h"]
