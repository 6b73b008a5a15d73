"""Agents that go on by themselves: claiming, limits, long lives."""

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from crewboard.commands import answers, hire, messages, stop
from crewboard.commands import tasks as board
from crewboard.errors import UsageError
from crewboard.offline.reply import Reply
from crewboard.pricing import Budget, load, parse_budget
from crewboard.readmodel.states import LOOP_LENGTH
from crewboard.records.agents import HELD_REPEATS, TOLD_REPEATS, HireOptions, Tokens
from crewboard.records.events import Cleared, Intake, Summary, ToolResult, ToolStart
from crewboard.records.team import Task
from crewboard.store import agents, mailbox, tasks
from crewboard.worker.conversation import replay
from tests.crew import Crew, eventually
from tests.model import calls, looks, says
from tests.store.raw_mail import append

Make = Callable[..., Crew]


def done(task_id: int) -> list[Reply]:
    return [calls("task_update", task_id=task_id, status="completed"), says(f"did {task_id}")]


@pytest.mark.long
def test_idle_agents_claim_fitting_tasks_one_at_a_time(crew_on: Make) -> None:
    names = ["ann", "ben"]
    crew = crew_on()
    for name in names:
        crew.hire(name, "explore", "hello", autoclaim=True)
    first = board.add_task(crew.team, "List all Python files")
    board.add_task(crew.team, "List all Markdown files", blocked_by=[first.id])
    foreign = board.add_task(crew.team, "Run the tests", required_type="test")

    def finished() -> bool:
        return [task.status for task in tasks.load_all(crew.directory)][:2] == ["completed", "completed"]

    eventually(finished, "both tasks")
    assert tasks.load(crew.directory, foreign.id).status == "pending"
    claimed = [m for m in mailbox.read(crew.directory, "lead").messages if m.type == "task_claimed"]
    assert [m.metadata["task_id"] for m in claimed] == [1, 2]


def test_an_idle_agent_claims_the_task_of_the_highest_priority(shared_crew: Crew) -> None:
    crew = shared_crew
    found = [board.add_task(crew.team, "x", required_type="plan", priority=priority) for priority in (0, -1, 2)]
    order = [found[2].id, found[0].id, found[1].id]
    crew.model.give("nell", says("hello"), *(reply for task_id in order for reply in done(task_id)))
    crew.run("nell", "plan", "hello", autoclaim=True)
    eventually(lambda: tasks.load(crew.directory, order[-1]).status == "completed", "the last task")
    told = mailbox.read(crew.directory, "lead").messages
    assert [m.metadata["task_id"] for m in told if (m.from_, m.type) == ("nell", "task_claimed")] == order
    stop.stop_now(crew.team, "nell")


def test_an_agent_describes_and_prioritises_tasks(shared_crew: Crew) -> None:
    crew = shared_crew
    task = board.add_task(crew.team, "find it", required_type="plan")
    replies = [
        calls("task_claim", task_id=task.id),
        calls("task_update", task_id=task.id, description="in src/app.py", priority=3),
        calls("task_update", task_id=task.id),
        calls("task_list"),
        calls("task_update", task_id=task.id, status="completed", description="it was in src/app.py"),
        says("done"),
    ]
    crew.model.give("rene", *replies)
    damaged = crew.directory.task(9999)
    damaged.put(b"{")
    crew.run("rene", "plan", "describe it")
    changed = tasks.load(crew.directory, task.id)
    assert (changed.status, changed.description, changed.priority) == ("completed", "it was in src/app.py", 3)
    damaged.remove()
    said = str(crew.model.asked_by("rene")[-1]["messages"])
    assert "tasks/9999.json is damaged, so its task is not listed" in said
    assert f"task {task.id} is in progress and changed" in said
    assert "nothing to change: give a status, a description or a priority" in said
    assert f"#{task.id} find it (in_progress, rene, for type plan, priority +3)" in said
    stop.stop_now(crew.team, "rene")


@pytest.mark.long
def test_a_killed_owner_gets_its_task_back_when_it_returns(shared_crew: Crew) -> None:
    shared_crew.model.give("ann", says("hello"), calls("bash", command="sleep 300"))
    shared_crew.run("ann", "test", "hello", autoclaim=True, unsafe_no_sandbox=True)
    task = board.add_task(shared_crew.team, "wait")
    shared_crew.model.give("ann", *done(task.id))
    eventually(lambda: "sleep" in shared_crew.see("ann").doing, "the command")
    shared_crew.kill("ann")
    shared_crew.wait_for("ann", "crashed")
    eventually(lambda: tasks.load(shared_crew.directory, task.id).status == "pending", "the task's return")
    hire.resume(shared_crew.team, "ann")
    eventually(lambda: tasks.load(shared_crew.directory, task.id).status == "completed", "the task")


def lose(crew: Crew, name: str) -> Task:
    """Have `name` killed in the middle of a task that it was hired for; returns the task as its death left it."""
    task = board.add_task(crew.team, f"wait with {name}", required_type="code")
    crew.model.give(name, calls("bash", command="sleep 300"))
    crew.hire(name, "code", "begin", task=task.id, unsafe_no_sandbox=True)
    eventually(lambda: "sleep" in crew.see(name).doing, "the command")
    crew.kill(name)
    eventually(lambda: tasks.load(crew.directory, task.id).owner is None, "the task's return")
    return tasks.load(crew.directory, task.id)


@pytest.mark.long
def test_a_killed_owner_that_is_resumed_goes_on_with_its_task(shared_crew: Crew) -> None:
    lost = lose(shared_crew, "cleo")
    shared_crew.model.give("cleo", *done(lost.id))
    hire.resume(shared_crew.team, "cleo")
    eventually(lambda: tasks.load(shared_crew.directory, lost.id).status == "completed", "the task")
    assert tasks.load(shared_crew.directory, lost.id).owner == "cleo"


@pytest.mark.long
def test_with_an_older_journal_the_task_comes_from_the_status(shared_crew: Crew) -> None:
    lost = lose(shared_crew, "olga")
    journal = shared_crew.agent("olga").journal
    lines = [json.loads(line) for line, _ in journal.read() if line is not None]
    journal.remove()
    append(
        journal, b"".join(json.dumps({k: v for k, v in each.items() if k != "task"}).encode() + b"\n" for each in lines)
    )
    shared_crew.model.give("olga", *done(lost.id))
    hire.resume(shared_crew.team, "olga")
    eventually(lambda: tasks.load(shared_crew.directory, lost.id).status == "completed", "the task")


@pytest.mark.long
def test_a_resumed_agent_hears_nothing_of_its_completed_task(shared_crew: Crew) -> None:
    task = board.add_task(
        shared_crew.team, "wait with nora", required_type="explore"
    )  # or who autoclaims takes it first
    shared_crew.model.give("nora", says("later"), says("later still"), says("back"))
    shared_crew.run("nora", "explore", "begin", task=task.id)
    shared_crew.wait_for("nora", "idle")
    board.update_task(shared_crew.team, task.id, status="completed")
    shared_crew.kill("nora")
    shared_crew.wait_for("nora", "crashed")
    hire.resume(shared_crew.team, "nora")
    shared_crew.wait_for("nora", "idle")
    assert not [
        event for event in shared_crew.events("nora") if isinstance(event, Intake) and "any more" in str(event.notices)
    ]


@pytest.mark.long
def test_who_comes_back_is_told_once_that_others_have_its_task(shared_crew: Crew) -> None:
    lost = lose(shared_crew, "dora")
    shared_crew.model.give("elsa", calls("task_claim", task_id=lost.id), says("mine now"), says("not done yet"))
    shared_crew.run("elsa", "code", "take it", unsafe_no_sandbox=True)
    shared_crew.model.give("dora", says("a pity"))
    for _ in range(2):
        hire.resume(shared_crew.team, "dora")
        shared_crew.wait_for("dora", "idle")
        shared_crew.kill("dora")
        shared_crew.wait_for("dora", "crashed")
    notices = [notice for event in shared_crew.events("dora") if isinstance(event, Intake) for notice in event.notices]
    why = f"task {lost.id} is in progress by elsa"
    assert len(notices[1:]) == 1
    assert why in notices[1]
    assert why in str(shared_crew.model.asked_by("dora")[-1]["messages"])
    assert tasks.load(shared_crew.directory, lost.id).owner == "elsa"


@pytest.mark.long
def test_who_starts_anew_leaves_what_it_had_to_others(shared_crew: Crew) -> None:
    lost = lose(shared_crew, "fay")
    shared_crew.model.give("fay", says("something else"))
    shared_crew.run("fay", "code", "something else", unsafe_no_sandbox=True)
    shared_crew.model.give("gina", says("here"), *done(lost.id))
    shared_crew.run("gina", "code", "hello", autoclaim=True, unsafe_no_sandbox=True)
    eventually(lambda: tasks.load(shared_crew.directory, lost.id).status == "completed", "the task")
    assert tasks.load(shared_crew.directory, lost.id).owner == "gina"
    assert shared_crew.see("fay").alive
    stop.stop_now(shared_crew.team, "gina")


@pytest.mark.long
def test_a_task_waits_a_while_for_who_is_being_brought_back(shared_crew: Crew) -> None:
    lost = lose(shared_crew, "hugo")

    def bring_back(at: float) -> None:
        """As `resume` does that is killed before it rings."""
        spec = shared_crew.agent("hugo").spec.load()
        assert spec is not None
        agents.change_spec(shared_crew.agent("hugo"), lambda _: spec.replace(run=2, at=at))

    bring_back(time.time())
    shared_crew.model.give("ida", says("here"), *done(lost.id))
    shared_crew.run("ida", "code", "hello", autoclaim=True, unsafe_no_sandbox=True)
    shared_crew.wait_for("ida", "idle")
    assert tasks.load(shared_crew.directory, lost.id).status == "pending"
    bring_back(time.time() - 61)
    eventually(lambda: tasks.load(shared_crew.directory, lost.id).status == "completed", "the task")
    stop.stop_now(shared_crew.team, "ida")


@pytest.mark.long
def test_a_task_that_waits_for_others_begins_when_they_are_done(shared_crew: Crew) -> None:
    shared_crew.model.give("heir", says("here"), says("began"))
    shared_crew.run("heir", "explore", "be here")
    # No agent of this team has the type, so none claims it.
    first = board.add_task(shared_crew.team, "comes first", required_type="plan")
    second = board.add_task(shared_crew.team, "comes second", blocked_by=[first.id], owner="heir")
    (sent,) = [m for m in mailbox.read(shared_crew.directory, "heir").messages if m.type == "task_assignment"]

    def picked_up() -> bool:
        return any(sent in event.messages for event in shared_crew.events("heir") if isinstance(event, Intake))

    eventually(picked_up, "the assignment being picked up")
    assert len(shared_crew.model.asked_by("heir")) == 1
    board.update_task(shared_crew.team, first.id, status="completed")
    assert shared_crew.answer_to("heir", sent.id).text == "began"
    assert tasks.load(shared_crew.directory, second.id).owner == "heir"
    assert f"Your task is #{second.id} comes second (in_progress, heir)" in str(shared_crew.model.asked_by("heir")[1])
    reminder, *_ = eventually(
        lambda: shared_crew.model.asked_by("heir")[2:], "the reminder of a task that is not closed"
    )
    assert "blocked" not in str(reminder["messages"][-1])


@pytest.mark.long
def test_a_new_assignment_begins_without_the_loop_of_the_one_before(shared_crew: Crew) -> None:
    crew = shared_crew
    again = [calls("list_dir", path=".")] * LOOP_LENGTH
    crew.model.give("circling", *again, says("here"), calls("ask_operator", question="what now?"), says("done"))
    crew.run("circling", "explore", "look around")
    messages.send(crew.team, "circling", "once more")
    crew.pending("question", of="circling")
    crew.wait_for("circling", "waiting")
    status = crew.agent("circling").status.load()
    assert status is not None
    assert status.repeats == 0
    stop.stop_now(crew.team, "circling")


@pytest.mark.long
def test_a_task_that_was_closed_in_the_meantime_starts_no_work(shared_crew: Crew) -> None:
    crew = shared_crew
    task = board.add_task(crew.team, "fix the rounding", required_type="plan")
    crew.model.give("early", calls("ask_operator", question="which?"), *done(task.id), says("nothing new"))
    assignment = crew.hire("early", "plan", "look around")
    asked = crew.pending("question", of="early")
    board.update_task(crew.team, task.id, owner="early")
    answers.answer(crew.team, asked.id, "the task")
    assert crew.answer(assignment).text == f"did {task.id}"
    crew.wait_for("early", "idle")
    more = messages.send(crew.team, "early", "anything else?")
    assert crew.answer_to("early", more.id).text == "nothing new"
    assert len(crew.model.asked_by("early")) == 4
    # It is told, with the mail that starts the next assignment or before.
    assert "fix the rounding" in str(crew.model.asked_by("early")[3]["messages"])
    stop.stop_now(crew.team, "early")


@pytest.mark.long
def test_a_used_up_budget_is_warned_of_and_ends_the_worker(shared_crew: Crew) -> None:
    shared_crew.model.give("spender", *looks(99))
    answer = shared_crew.run("spender", "explore", "go", budget="20k")
    assert answer.code == 79
    seen = shared_crew.wait_for("spender", "exited")
    assert seen.exit is not None
    assert (seen.exit.code, seen.exit.reason) == (79, "budget")
    kinds = [m.type for m in mailbox.read(shared_crew.directory, "lead").messages if m.from_ == "spender"]
    assert kinds[:2] == ["budget_warning", "error"]


def test_cost_comes_from_the_price_table_or_is_unknown(tmp_path: Path) -> None:
    table = load(tmp_path)
    used = Tokens(input=1_000_000, output=1_000_000)
    assert table.cost("claude-sonnet-5-5", used) == pytest.approx(12.0)
    assert table.cost("claude-sonnet-5-5-20260929", used) == pytest.approx(12.0)
    assert table.cost("claude-haiku-5-5", Tokens(input=100_000)) == pytest.approx(0.01)
    assert table.cost("claude-haiku-5-5", Tokens(input=100_001)) == pytest.approx(0.05, rel=1e-3)
    assert table.cost("other-model", used) is None
    (tmp_path / ".crewboard").mkdir()
    own = 'as_of = "2027-01-01"\n[[mine]]\ninput = 1\noutput = 2\ncache_read = 0\ncache_write = 0\n'
    (tmp_path / ".crewboard/prices.toml").write_text(own)
    assert load(tmp_path).cost("mine", used) == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("$5", Budget(usd=5)),
        ("2.50usd", Budget(usd=2.5)),
        ("200k", Budget(tokens=200_000)),
        ("1000", Budget(tokens=1000)),
    ],
)
def test_budgets_are_money_or_tokens(text: str, budget: Budget) -> None:
    assert parse_budget(text) == budget


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("$5", "$5.00"),
        ("$0.004", "$0.004"),
        ("200k", "200k tokens"),
        ("1.25m", "1250k tokens"),
        ("1.5m", "1.5M tokens"),
        ("4.1m", "4.1M tokens"),
        ("12345", "12345 tokens"),
        ("123456700", "123456.7k tokens"),
        ("1234567000", "1234567k tokens"),
        ("1234567.8m", "1234567.8M tokens"),
    ],
)
def test_a_budget_is_shown_as_what_it_is(text: str, shown: str) -> None:
    budget = parse_budget(text)
    assert str(budget) == shown
    assert parse_budget(shown) == budget


@pytest.mark.parametrize("text", ["", "0", "$0", "-5", "five", "$", "1e9", "5 apples", "9" * 400])
def test_what_is_no_budget_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a budget"):
        parse_budget(text)
    assert HireOptions().budget is None


def test_a_budget_in_money_needs_a_model_with_a_price(crew: Crew) -> None:
    with pytest.raises(UsageError, match="the price of claude-unheard-of is unknown"):
        hire.spawn(crew.team, hire.Hire("scout", "explore", "go", "", "claude-unheard-of", HireOptions(budget="$5")))
    assert crew.team.config.members == []


@pytest.mark.long
def test_a_long_conversation_never_exceeds_a_small_window(crew_on: Make) -> None:
    # A team of its own: news of other agents would change which call is the summary that takes the last reply.
    window = 20_000
    replies = [calls("read_file", path="./" * (number % 2) + "big.txt") for number in range(14)]
    crew = crew_on(script=[*replies, says("the end")], window=window)
    (crew.root / "big.txt").write_text("a line of some length\n" * 200)
    hired = crew.hire("reader", "explore", "Read it many times, and remember the word heron")
    assert crew.answer(hired).text == "the end"
    sizes = [
        len(str(body["messages"])) + len(str(body.get("tools", ""))) + len(str(body["system"]))
        for body in crew.model.requests
    ]
    assert max(sizes) / 3 + window // 4 <= window
    kinds = [type(event) for event in crew.events("reader")]
    assert Cleared in kinds
    assert "heron" in str(crew.model.requests[-1]["messages"])


def test_a_conversation_is_summarised_and_goes_on_across_a_kill(shared_crew_on: Make) -> None:
    window = 9000
    replies = [Reply([{"type": "text", "text": "word " * 700}, *look.content]) for look in looks(12)]
    crew = shared_crew_on(script=[*replies, says("the end")], window=window)
    hired = crew.hire("distiller", "explore", "Remember the word heron")
    eventually(lambda: any(isinstance(e, Summary) for e in crew.events("distiller")), "a summary")
    if crew.see("distiller").alive:
        crew.kill("distiller")
        crew.wait_for("distiller", "crashed")
        hire.resume(crew.team, "distiller")
    crew.answer(hired)
    assert "heron" in str(crew.model.requests[-1]["messages"])


@pytest.mark.long
def test_an_agent_that_repeats_a_call_is_told_and_then_held(shared_crew: Crew) -> None:
    crew = shared_crew
    again = [calls("list_dir", path=".")] * HELD_REPEATS
    crew.model.give("circler", *again, says("done"))
    hired = crew.hire("circler", "explore", "look around")
    seen = crew.wait_for("circler", "looping")
    eventually(lambda: crew.see("circler").doing.startswith("waits for mail"), "the hold")
    need = next(need for need in crew.view().needs if need.agent == "circler")
    assert (need.kind, need.summary) == ("looping", "list_dir . ×8, same outcome, held until it gets mail")
    asked = crew.model.asked_by("circler")
    told = ["You made the same call 4 times" in str(body["messages"]) for body in asked]
    assert told == [False] * TOLD_REPEATS + [True] * (HELD_REPEATS - TOLD_REPEATS)
    assert str(asked[-1]["messages"]).count("You made the same call") == 1
    messages.send(crew.team, "circler", "look elsewhere")
    assert crew.answer(hired).text == "done"
    assert "look elsewhere" in str(crew.model.asked_by("circler")[-1]["messages"])
    assert seen.pid == crew.see("circler").pid


def test_asking_for_the_output_of_a_command_is_no_loop() -> None:
    conversation = replay([])
    for number in range(HELD_REPEATS + 2):
        for name in ("bash_output", "list_dir"):
            ident = f"{name}-{number}"
            conversation.apply(ToolStart(ts=1, tool_use_id=ident, name=name, input={"handle": "1"}))
            conversation.apply(ToolResult(ts=1, tool_use_id=ident, name=name, content="nothing new"))
            assert conversation.repeats == 1
    for number in range(HELD_REPEATS):
        conversation.apply(ToolStart(ts=1, tool_use_id=f"b{number}", name="bash_output", input={"handle": "1"}))
        conversation.apply(ToolResult(ts=1, tool_use_id=f"b{number}", name="bash_output", content="nothing new"))
    assert conversation.repeats == 1
