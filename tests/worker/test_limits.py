"""Budgets and turn limits: what they count, where they stop an agent, and how it goes on."""

import json
import re
from collections.abc import Callable

import pytest

from crewboard.commands import answers, control, hire, messages, settings, stop
from crewboard.errors import LimitError
from crewboard.readmodel import as_json
from crewboard.readmodel.mail import MailReader
from crewboard.readmodel.usage import bill_agent, bill_team
from crewboard.records.events import ToolResult
from crewboard.store import mailbox, roster
from crewboard_tui.render.formats import format_bill, format_tokens
from tests.crew import Crew, eventually
from tests.model import calls, looks, says
from tests.raw import Raw, RawServer, sse
from tests.worker.test_odd_replies import STOP, call, end, start

Make = Callable[..., Crew]


def total(crew: Crew) -> int:
    """Return the tokens that the screen shows for the team, which `status --json` shows too."""
    view = crew.view()
    used = bill_team(view).tokens
    assert as_json.status(view)["spent"]["tokens"] == used.as_dict()
    return used.input + used.output + used.cache_read + used.cache_write


def ids(crew: Crew, kind: str, of: str) -> list[str]:
    found = mailbox.read(crew.directory, "lead").messages
    return [each.id for each in found if each.type == kind and of in (each.from_, each.content.split()[0])]


@pytest.mark.long
@pytest.mark.both_stores("what was removed keeps its numbers")
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
    old = shared_crew.directory.key("results/again-6-1.md")
    old.put(b"kept")
    assert shared_crew.hire("again", "explore", "say hello").run == 7
    assert old.get() == b"kept"


@pytest.mark.long
def test_the_team_budget_and_total_count_removed_agents(crew: Crew) -> None:
    roster.change(crew.directory, lambda config: setattr(config, "budget", "10k"))
    crew.model.give("spender", *looks(99))
    assert crew.run("spender", "explore", "go").code == 79
    crew.wait_for("spender", "exited")
    before = total(crew)
    assert before >= 10_000
    stop.remove(crew.team, "spender")
    assert total(crew) == before
    with pytest.raises(LimitError, match="next was not hired: the team's budget of 10k tokens is used up"):
        crew.hire("next", "explore", "go")
    assert not crew.directory.agent("next").lease.exists()
    assert total(crew) == before


def text_of_requests(crew: Crew, name: str) -> str:
    return str([body["messages"] for body in crew.model.asked_by(name)])


def test_a_raised_budget_continues_the_assignment_where_it_stopped(shared_crew: Crew) -> None:
    shared_crew.model.give("dear", *looks(99))
    assert shared_crew.run("dear", "explore", "the work", budget="10k").code == 79
    shared_crew.wait_for("dear", "exited")
    asked = len(shared_crew.model.asked_by("dear"))
    used_up = r"its budget of 10k tokens is used up; `crewboard .*budget dear AMOUNT` raises it"
    with pytest.raises(LimitError, match=f"dear was not resumed: {used_up}"):
        hire.resume(shared_crew.team, "dear")
    assert re.fullmatch(used_up, hire.how_to_resume(shared_crew.team, "dear"))
    control.change_limits(shared_crew.team, "dear", budget="25k")
    assert hire.resume(shared_crew.team, "dear") == 2, "the refused one began no run"
    eventually(lambda: len(shared_crew.model.asked_by("dear")) > asked, "the next call")
    before, after = (shared_crew.model.asked_by("dear")[at]["messages"] for at in (asked - 1, asked))
    assert len(after) > len(before)
    assert "the work" in str(after[0])


@pytest.mark.long
@pytest.mark.both_stores("the next run reads what the last one used")
def test_raising_a_used_up_budget_resumes_the_agent(shared_crew: Crew) -> None:
    shared_crew.model.give("thrifty", *looks(14), says("found it"))
    begun = shared_crew.hire("thrifty", "explore", "the work", budget="10k")
    assert shared_crew.answer(begun).code == 79
    shared_crew.wait_for("thrifty", "exited")
    assert control.raise_limits(shared_crew.team, "thrifty", budget="10001") is None, "it is used up all the same"
    assert control.raise_limits(shared_crew.team, "thrifty", budget="2m") == 2
    eventually(lambda: shared_crew.answer(begun).text == "found it", "the result")


@pytest.mark.long
def test_raising_the_teams_budget_resumes_what_it_ended(crew: Crew) -> None:
    settings.set_budget(crew.team, "10k")
    crew.model.give("spender", *looks(14), says("found it"))
    begun = crew.hire("spender", "explore", "the work")
    assert crew.answer(begun).code == 79
    crew.wait_for("spender", "exited")
    assert control.raise_team_budget(crew.team, "2m") == ["spender"]
    eventually(lambda: crew.answer(begun).text == "found it", "the result")


@pytest.mark.long
def test_an_approved_plan_stays_approved_after_a_budget_end(shared_crew: Crew) -> None:
    shared_crew.model.give(
        "gated",
        calls("submit_plan", plan="look around"),
        *[calls("bash", command="true" + " " * (number % 2)) for number in range(99)],
    )
    begun = shared_crew.hire("gated", "code", "the work", plan=True, budget="10k", unsafe_no_sandbox=True)
    answers.approve(shared_crew.team, shared_crew.pending("plan_approval", "gated").id)
    assert shared_crew.answer(begun).code == 79
    shared_crew.wait_for("gated", "exited")
    control.change_limits(shared_crew.team, "gated", budget="20k")
    hire.resume(shared_crew.team, "gated")
    shared_crew.wait_for("gated", "exited")
    results = [event for event in shared_crew.events("gated") if isinstance(event, ToolResult) and event.run == 2]
    assert results
    assert not any(event.is_error for event in results)


@pytest.mark.long
def test_a_raised_turn_limit_continues_a_living_agent(shared_crew: Crew) -> None:
    shared_crew.model.give("brisk", *[calls("list_dir")] * 4, says("found it"))
    begun = shared_crew.hire("brisk", "explore", "the work", max_turns=3)
    assert shared_crew.answer(begun).code == 79
    pid = shared_crew.wait_for("brisk", "idle").pid
    (need,) = [each for each in shared_crew.view().needs if each.agent == "brisk"]
    assert (need.kind, need.code, need.limit) == ("failed", 79, "turns")
    control.change_limits(shared_crew.team, "brisk", max_turns=9)
    eventually(lambda: shared_crew.answer(begun).text == "found it", "the result")
    assert shared_crew.see("brisk").pid == pid
    eventually(
        lambda: {e.kind for e in shared_crew.view().needs if e.agent == "brisk"} == {"result"}, "the end of the need"
    )
    kinds = [m.type for m in mailbox.read(shared_crew.directory, "lead").messages if m.from_ == "brisk"]
    assert [kind for kind in kinds if kind in ("error", "result")] == ["error", "result"]


@pytest.mark.long
def test_resume_after_a_turn_limit_takes_up_the_work(shared_crew: Crew) -> None:
    shared_crew.model.give("halted", *[calls("list_dir")] * 4, says("found it"))
    begun = shared_crew.hire("halted", "explore", "the work", max_turns=3, once=True)
    assert shared_crew.answer(begun).code == 79
    shared_crew.wait_for("halted", "exited")
    hire.resume(shared_crew.team, "halted")
    eventually(lambda: shared_crew.answer(begun).text == "found it", "the result")


@pytest.mark.long
def test_mail_that_meets_a_used_up_budget_enters_no_turn(shared_crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    shared_crew.model.give("poor", *looks(99))
    shared_crew.run("poor", "explore", "the work", budget="10k")
    shared_crew.wait_for("poor", "exited")
    sent = messages.send(shared_crew.team, "poor", "and this too")
    with monkeypatch.context() as patch:
        # As if another agent used it up after the check.
        patch.setattr(hire, "_used_up", lambda *_: None)
        hire.resume(shared_crew.team, "poor")
    shared_crew.wait_for("poor", "exited")
    (entry,) = [each for each in MailReader(shared_crew.directory, "poor").read() if each.message.id == sent.id]
    assert entry.entered_turn_at is None
    assert "and this too" not in text_of_requests(shared_crew, "poor")
    control.change_limits(shared_crew.team, "poor", budget="90k")
    hire.resume(shared_crew.team, "poor")
    eventually(lambda: "and this too" in text_of_requests(shared_crew, "poor"), "the message in a request")


@pytest.mark.long
def test_mail_to_an_idle_agent_of_a_team_without_money_stays_unread(crew: Crew) -> None:
    crew.run("calm", "explore", "say hello")
    crew.wait_for("calm", "idle")
    roster.change(crew.directory, lambda config: setattr(config, "budget", "1"))
    sent = messages.send(crew.team, "calm", "say more")
    record = crew.wait_for("calm", "exited").exit
    assert record is not None
    assert (record.code, record.reason) == (79, "budget")
    roster.change(crew.directory, lambda config: setattr(config, "budget", "2m"))
    hire.resume(crew.team, "calm")
    crew.answer_to("calm", sent.id)


def counting(usage: object, model: str = "local/qwen3") -> Raw:
    return sse(start(model, usage), *call(whole={}, name="list_dir"), end("tool_use", {}), STOP)


def test_a_reply_of_an_unpriced_model_costs_what_was_asked_for(shared_crew_on: Make) -> None:
    with RawServer(counting({"input_tokens": 900, "output_tokens": 90})) as server:
        crew = shared_crew_on(ANTHROPIC_BASE_URL=server.url)
        answer = crew.run("aliased", "explore", "go", budget="$0.0001")
    assert (answer.code, len(server.requests)) == (79, 1)
    assert "budget of $0.0001 is used up" in str(answer.error)


def test_tokens_that_a_server_does_not_count_are_estimated(shared_crew_on: Make) -> None:
    with RawServer(counting({})) as server:
        crew = shared_crew_on(ANTHROPIC_BASE_URL=server.url)
        answer = crew.run("uncounted", "explore", "go", budget="4000")
    assert (answer.code, len(server.requests)) == (79, 3)
    used = crew.see("uncounted").status.tokens
    characters = sum(
        len(json.dumps([body[part] for part in ("system", "tools", "messages")])) for body in server.requests
    )
    assert used.estimated == used.total
    assert 0.7 * characters < 4 * used.total < 1.1 * characters
    bill = bill_agent(crew.see("uncounted"))
    assert format_tokens(bill.tokens).startswith("~")
    assert format_bill(bill).startswith("~")


def test_a_prompt_is_estimated_where_only_the_reply_is_counted(shared_crew_on: Make) -> None:
    with RawServer(counting({"output_tokens": 5})) as server:
        crew = shared_crew_on(ANTHROPIC_BASE_URL=server.url)
        answer = crew.run("halved", "explore", "go", budget="4000")
    assert (answer.code, len(server.requests)) == (79, 3)
    used = crew.see("halved").status.tokens
    assert (used.output, used.estimated) == (3 * 5, used.input)


def test_a_budget_in_money_that_cannot_be_counted_is_a_need(
    shared_crew_on: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As if the price was removed after the hire.
    monkeypatch.setattr(hire, "_check_price", lambda *_: None)
    with RawServer(counting({"input_tokens": 9})) as server:
        crew = shared_crew_on(ANTHROPIC_BASE_URL=server.url)
        roster.change(crew.directory, lambda config: setattr(config, "budget", "$5"))
        try:
            hired = hire.spawn(crew.team, hire.Hire("unpriced", "explore", "go", model="qwen3"))
            answer = crew.answer(hired)
            crew.wait_for("unpriced", "exited")
            needs = [need.summary for need in crew.view().needs if need.agent == "unpriced"]
        finally:
            roster.change(crew.directory, lambda config: setattr(config, "budget", None))
    assert (answer.code, len(server.requests)) == (79, 0)
    assert "the team's budget of $5.00 cannot be counted: the price of qwen3 is unknown" in str(answer.error)
    assert needs
