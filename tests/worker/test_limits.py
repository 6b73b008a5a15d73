"""Budgets and turn limits: what they count, where they stop an agent, and how it goes on."""

from crewboard.commands import stop
from crewboard.readmodel import as_json
from crewboard.readmodel.usage import bill_team
from crewboard.store import mailbox, roster
from tests.crew import Crew, eventually
from tests.model import calls, says


def total(crew: Crew) -> int:
    """Return the tokens that the screen shows for the team, which `status --json` shows too."""
    view = crew.view()
    used = bill_team(view).tokens
    assert as_json.status(view)["spent"]["tokens"] == used.model_dump()
    return used.input + used.output + used.cache_read + used.cache_write


def ids(crew: Crew, kind: str, of: str) -> list[str]:
    found = mailbox.read(crew.directory, "lead").messages
    return [each.id for each in found if each.type == kind and of in (each.from_, each.content.split()[0])]


def test_a_name_hired_again_repeats_no_run_result_or_message_id(shared_crew: Crew) -> None:
    for number in (1, 2):
        shared_crew.model.give("bob", says(f"answer {number}"))
        answer = shared_crew.run("bob", "explore", "go")
        assert answer.result == f"results/bob-{number}-1.md"
        shared_crew.wait_for("bob", "idle")
        stop.stop(shared_crew.team, "bob")
        eventually(lambda n=number: len(ids(shared_crew, "teammate_terminated", "bob")) == n, "the notice")  # type: ignore[misc]
        stop.remove(shared_crew.team, "bob")
    assert (shared_crew.directory.results / "bob-1-1.md").read_text() == "answer 1"
    for kind in ("result", "idle_notification", "teammate_terminated"):
        found = ids(shared_crew, kind, "bob")
        assert len(found) == len(set(found)) == 2, kind


def test_a_result_of_a_forgotten_agent_is_not_overwritten(shared_crew: Crew) -> None:
    old = shared_crew.directory.results / "again-6-1.md"
    old.write_text("kept")
    assert shared_crew.hire("again", "explore", "say hello").run == 7
    assert old.read_text() == "kept"


def test_the_team_budget_and_total_count_removed_agents(crew: Crew) -> None:
    roster.change(crew.directory, lambda config: setattr(config, "budget", "30k"))
    crew.model.give("spender", *[calls("list_dir")] * 99)
    assert crew.run("spender", "explore", "go").code == 79
    crew.wait_for("spender", "exited")
    before = total(crew)
    assert before >= 30_000
    stop.remove(crew.team, "spender")
    assert total(crew) == before
    assert crew.run("next", "explore", "go").code == 79
    assert crew.model.asked_by("next") == []
    assert total(crew) == before
