"""A team that several tests share keeps their agents apart."""

from crewboard.commands import messages
from tests.crew import Crew
from tests.model import says


def test_scripted_replies_reach_only_the_agent_they_are_for(guild: Crew) -> None:
    guild.model.give("ann", says("I am Ann"))
    guild.model.give("anna", says("I am Anna"), says("still Anna"))
    assert guild.run("anna", "explore", "who are you?").text == "I am Anna"
    assert guild.run("ann", "explore", "who are you?").text == "I am Ann"
    guild.model.give("ann", says("still Ann"))
    for name in ("ann", "anna"):
        sent = messages.send(guild.team, name, f"still, {name}?")
        assert guild.answer_to(name, sent.id).text == f"still {name.title()}"


def test_what_was_asked_is_found_by_agent(guild: Crew) -> None:
    for name in ("ben", "benny"):
        guild.model.give(name, says("here"))
        guild.run(name, "explore", f"for {name} alone")
        (asked,) = guild.model.asked_by(name)
        assert f"for {name} alone" in str(asked["messages"])
