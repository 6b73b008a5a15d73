"""A lead on the offline model, with real workers: what the operator says is done, and every answer is true."""

import pytest

from crewboard import operations
from crewboard.commands import answers, settings
from crewboard.commands import messages as mail
from crewboard.protocol import requests
from crewboard.records.agents import Terms
from crewboard.records.team import Task
from crewboard.store import mailbox, roster, tasks
from tests.crew import Crew, eventually


@pytest.fixture
def led(crew: Crew) -> Crew:
    """A crew with a lead, in a small project."""
    (crew.root / "shop").mkdir()
    (crew.root / "shop/till.py").write_text('"""Where one pays."""\n\n\ndef pay(amount):\n    return amount\n')
    (crew.root / "shop/store.py").write_text('"""Where things lie."""\n')
    crew.run("lead", "lead", "Hello", unsafe_no_sandbox=True)
    return crew


def tell(crew: Crew, text: str) -> str:
    """Say something to the lead; returns its answer."""
    sent = mail.send(crew.team, "lead", text)
    return crew.answer_to("lead", sent.id).text


def passed_on(crew: Crew, *words: str) -> str:
    """Wait for a result of the lead that holds all of `words`."""

    def look() -> str | None:
        sent = mailbox.read(crew.directory, "operator").messages
        texts = [message.content for message in sent if (message.type, message.from_) == ("result", "lead")]
        return next((text for text in texts if all(word in text for word in words)), None)

    return eventually(look, f"the lead saying {words}")


@pytest.mark.long
def test_a_lead_makes_a_team_and_has_it_work(led: Crew) -> None:
    assert "The team is called demo now" in tell(led, 'Create a team called "demo" for exploring this project')
    config = roster.load(led.directory)
    assert (config.name, config.description) == ("demo", "exploring this project")

    answer = tell(led, "Spawn alice (coder) and bob (tester), have alice send bob a message")
    assert "bob (test) answered" in answer
    assert "alice (code) answered" in answer
    assert [(one.type, one.report_to) for one in led.team.config.members] == [
        ("lead", "operator"), ("test", "lead"), ("code", "lead"),
    ]  # fmt: skip
    got = [(m.from_, m.content) for m in mailbox.read(led.directory, "bob").messages if m.type == "message"]
    assert got == [("alice", "alice says hello.")]
    passed_on(led, "bob reports: I read what alice wrote")

    answer = tell(led, 'spawn an explore agent named "scanner" to list all Python files')
    assert "2 files" in answer
    assert "- shop/till.py" in answer

    answer = tell(led, 'Spawn a background explore agent named "reviewer" to analyse the till module')
    assert "reviewer (explore) is at work in the background" in answer
    passed_on(led, "reviewer reports:", "shop/till.py has 5 lines", "It holds pay.")

    answer = tell(led, "list the team")
    assert "5 agents on the team" in answer
    assert all(f"- {name} " in answer for name in ("lead", "alice", "bob", "scanner", "reviewer"))

    assert "I sent reviewer" in tell(led, "message reviewer for a summary")
    passed_on(led, "reviewer reports:", "What I did:", "shop/till.py")

    tell(led, 'create a task "Write unit tests" and assign it to a test agent')

    def closed() -> Task | None:
        task = tasks.load(led.directory, 1)
        return task if task.status == "completed" else None

    assert eventually(closed, "bob completing the task").owner == "bob"

    answer = tell(led, 'broadcast "status update: phase 1 complete", then check the lead inbox')
    assert "My inbox:" in answer
    assert "result from reviewer" in answer
    for name in ("alice", "bob", "scanner", "reviewer"):
        assert "status update: phase 1 complete" in [m.content for m in mailbox.read(led.directory, name).messages]

    tell(led, "request alice's shutdown")
    assert led.wait_for("alice", "exited").exit is not None
    tell(led, "Delete the team when done.")
    assert [one.name for one in led.view().agents if one.alive] == ["lead"]


@pytest.mark.long
def test_a_lead_reviews_plans_as_the_operator_says(led: Crew) -> None:
    settings.set_approver(led.team, "lead")
    tell(
        led,
        "Spawn bob (coder) to create a file made.txt containing hi; he submits a plan first. "
        "Review his plan and reject it: name the owner",
    )
    passed_on(led, "I rejected bob's plan. My feedback: name the owner")
    revised = passed_on(led, "bob submitted a plan", "Revision 2", "name the owner")
    assert "Tell me to approve bob's plan" in revised
    assert not (led.root / "made.txt").exists()
    assert "I approved bob's plan." in tell(led, "approve bob's plan")
    passed_on(led, "bob reports:", "I wrote made.txt.")
    assert (led.root / "made.txt").read_text() == "hi"

    answer = tell(led, "bob with a refactoring task submits a plan first, review and approve it")
    assert "bob submits a plan before it writes or runs anything" in answer
    passed_on(led, "bob reports:", "The plan is approved.", "I changed nothing")
    decided = [(one.status, one.decided_by) for one in requests.load_all(led.directory)]
    assert decided == [("rejected", "lead"), ("approved", "lead"), ("approved", "lead")]


@pytest.mark.long
def test_plans_that_are_the_operators_are_left_to_the_operator(led: Crew) -> None:
    answer = tell(led, "have bob refactor shop/till.py, but he submits a plan first; review and approve it")
    assert "waits for the operator" in answer
    assert answer.count("Plans are the operator's to review") == 1
    request = led.pending("plan_approval")
    assert request.to == "operator"
    assert "Plans are the operator's to review" in tell(led, f"approve {request.id}")
    assert led.pending("plan_approval").id == request.id


@pytest.mark.long
def test_a_line_for_an_agent_reaches_it_and_no_other_word_hires_one(led: Crew) -> None:
    answer = tell(led, "shopper: run the tests. Delete the team.")
    assert "No agent is called shopper" in answer
    assert answer.endswith("On the team: no other agent yet.")
    answer = tell(led, "Fix the parser.\nFiles: parser.py")
    assert answer.startswith("I do not know how to do this: “Fix the parser.”, “Files: parser.py”")
    assert [one.name for one in led.team.config.members] == ["lead"]
    led.run("alice", "explore", "Hello", unsafe_no_sandbox=True)
    assert tell(led, "dave: read shop/till.py").endswith("On the team: alice.")
    assert "- alice (explore) idle" in tell(led, "who is idle?")
    assert tell(led, "who is working?") == "No other agent is working."
    answer = tell(led, "alice: read shop/till.py")
    assert "alice (explore) answered" in answer
    assert "shop/till.py has 5 lines" in answer


@pytest.mark.long
def test_a_result_of_earlier_words_says_so(led: Crew) -> None:
    led.run("alice", "explore", "Hello", unsafe_no_sandbox=True)
    operations.pause(led.team, "lead")
    led.wait_for("lead", "paused")
    mail.send(led.team, "lead", "list the tasks")
    mailbox.send(led.directory, mailbox.compose("alice", "lead", "result", "All is read."))
    operations.unpause(led.team, "lead")
    passed_on(led, "no tasks on the board", "From before: alice reports: All is read.")


def test_several_of_a_kind_get_names_that_are_free(led: Crew) -> None:
    led.run("explorer", "explore", "Hello", unsafe_no_sandbox=True)
    answer = tell(led, "Hire two explorers to list all Python files in the background")
    assert "explorer2 (explore)" in answer
    assert "explorer3 (explore)" in answer
    assert [one.name for one in led.team.config.members] == ["lead", "explorer", "explorer2", "explorer3"]


@pytest.mark.long
def test_a_released_step_is_done(crew: Crew) -> None:
    """Before its result, after it read that the step is released."""
    hired = crew.hire("fixer", "code", "Create a file none.txt", plan=True, unsafe_no_sandbox=True)
    writes = "Write a file named {} that says hi"
    plan = f"1. Ask the operator: go on?\n2. {writes.format('b.txt')}\n3. {writes.format('c.txt')}"
    request = crew.pending("plan_approval")
    answers.approve(crew.team, request.id, edited=plan, terms=Terms(hold=[2, 3]))
    question = crew.pending("question")
    answers.release(crew.team, request.id, [2])
    answers.answer(crew.team, question.id, "yes")
    assert "You released step 2. I wrote b.txt." in crew.answer(hired).text
    assert [path.name for path in sorted(crew.root.glob("*.txt"))] == ["b.txt"]
