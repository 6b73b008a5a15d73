"""A team that several tests share keeps their agents apart."""

from crewboard.commands import messages
from tests.crew import Crew
from tests.model import says


def test_scripted_replies_reach_only_the_agent_they_are_for(shared_crew: Crew) -> None:
    shared_crew.model.give("ann", says("I am Ann"))
    shared_crew.model.give("anna", says("I am Anna"), says("still Anna"))
    assert shared_crew.run("anna", "explore", "who are you?").text == "I am Anna"
    assert shared_crew.run("ann", "explore", "who are you?").text == "I am Ann"
    shared_crew.model.give("ann", says("still Ann"))
    for name in ("ann", "anna"):
        sent = messages.send(shared_crew.team, name, f"still, {name}?")
        assert shared_crew.answer_to(name, sent.id).text == f"still {name.title()}"


def test_what_was_asked_is_found_by_agent(shared_crew: Crew) -> None:
    for name in ("ben", "benny"):
        shared_crew.model.give(name, says("here"))
        shared_crew.run(name, "explore", f"for {name} alone")
        (asked,) = shared_crew.model.asked_by(name)
        assert f"for {name} alone" in str(asked["messages"])
