"""How what the operator says to a lead is understood: each order, in many wordings, and several in one breath."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crewboard.offline.rules.lead.cut import cut
from crewboard.offline.rules.lead.errands import SUMMARY
from crewboard.offline.rules.lead.orders import (
    Assign,
    Broadcast,
    CreateTeam,
    DeleteTeam,
    Errand,
    Hire,
    Left,
    ListTeam,
    NewTask,
    Order,
    Other,
    ReadInbox,
    Review,
    Shutdown,
)  # fmt: skip
from crewboard.offline.rules.lead.parse import parse

HELLO = 'Send bob the message "alice says hello."'
BOB, ALICE = Hire("bob", "test"), Hire("alice", "code", HELLO)
SCANNER = Hire("scanner", "explore", "List all Python files")
REVIEWER = Hire("reviewer", "explore", "Analyse the store module", background=True)
REFACTOR = Errand("bob", "Refactor the store module", plan=True)
TASK = NewTask("Write unit tests", kind="test")

WORDINGS: dict[Order, list[str]] = {
    CreateTeam("demo", "exploring this project"): [
        'create a team called "demo" for exploring this project',
        "Please set up a team named Demo for exploring this project.",
        "make the demo team, for exploring this project",
        "Can you create team demo with the description: exploring this project",
    ],
    CreateTeam("demo", ""): ['start a team "demo"', "Name the team demo", "call our team `demo`"],
    CreateTeam("", ""): ["create a team"],
    SCANNER: [
        'spawn an explore agent named "scanner" to list all Python files',
        "Hire scanner (explorer) to list all Python files",
        "launch an explorer called scanner that lists all Python files.",
        "Spawn explore agent scanner for listing all Python files",
        "please create an explore agent named scanner and have it list all Python files",
        "spawn a scout to list all Python files, and call it scanner",
        "start scanner as an explore agent to list all Python files and tell me the result",
        'spawn scanner with the prompt "List all Python files"',
        "an explore agent named scanner to list all Python files",
        "I need an explorer called scanner, who should list all Python files",
    ],
    REVIEWER: [
        'spawn a background explore agent named "reviewer" to analyse the store module',
        "In the background, spawn an explorer named reviewer to analyse the store module",
        "spawn reviewer (explore) in the background to analyse the store module",
        "hire reviewer as an explorer to analyse the store module in the background",
        "a background explore agent named reviewer to analyse the store module",
    ],
    Hire("carol", "explore"): ["spawn carol", "Hire Carol."],
    Hire("coder", "code"): ["spawn a coder", "hire coder"],
    Hire("tester", "test", "Run the tests"): [
        "spawn a test agent to run the tests",
        "have somebody else run the tests",
    ],
    Hire("judge", "reviewer"): ["spawn an agent named judge of type reviewer"],
    Hire("bob", "code", "Refactor the store module", plan=True): [
        "spawn bob with plan approval required to refactor the store module",
        "hire a coder named bob to refactor the store module; he must submit a plan first",
    ],
    ListTeam(): [
        "list the team",
        "what is everyone doing?",
        "Who is on the team?",
        "show me all agents",
        "list team members",
    ],
    Errand("reviewer", SUMMARY): [
        "message reviewer for a summary",
        "ask reviewer for a summary of its findings",
        "send reviewer a message asking for a status report",
        "Tell reviewer to give you a summary.",
        "ask reviewer what it found",
        "get a summary from reviewer",
        "have the reviewer summarise its work",
        "Message the reviewer for a summary.",
    ],
    Errand("alice", HELLO): ["have alice send bob a message", "tell alice to message bob", "alice should greet bob"],
    Errand("alice", 'Send bob the message "on my way"'): [
        'have alice send bob the message "on my way"',
        "alice sends a message to bob saying on my way",
    ],
    Hire("tester", "test", "Run the tests", anybody=True): [
        "have somebody run the tests",
        "let a tester run the tests",
        "ask the tester to run the tests",
    ],
    Errand("bob", "Run the tests"): ["ask bob to run the tests", "bob must run the tests"],
    REFACTOR: [
        "ask bob to submit a plan to refactor the store module",
        "bob should hand in a plan before he does anything: refactor the store module",
        "have bob refactor the store module, but he submits a plan first",
        "have bob refactor the store module with plan approval",
        "bob needs a plan approved before he refactors the store module",
        "have bob refactor the store module and require a plan",
    ],
    Errand("bob", "Claim task 3 and do it."): ["assign task 3 to bob", "give task #3 to bob"],
    TASK: [
        'create a task "Write unit tests" and assign it to a test agent',
        'Create a task called "Write unit tests" for a tester',
        "add a task: write unit tests, assigned to any tester",
        'make a new task "Write unit tests". Then assign it to a test agent.',
    ],
    NewTask("Write unit tests", owner="bob"): [
        'create a task "Write unit tests" and give it to bob',
        "assign the task 'Write unit tests' to bob",
        "create a task to write unit tests for bob",
        'create a task titled "Write unit tests" and assign it to the test agent bob',
        'add "Write unit tests" to the task board and give it to bob',
    ],
    NewTask("A", "all of it", "alice", blocked_by=(1, 2)): [
        'create a task "A" with the description "all of it" blocked by 1 and 2, and assign it to alice',
    ],
    NewTask("Tidy"): ['put a task on the board: "Tidy"', "create task Tidy"],
    Assign("bob", ""): ["assign it to bob"],
    Broadcast("status update: phase 1 complete"): [
        'broadcast "status update: phase 1 complete"',
        "Broadcast to everyone: status update: phase 1 complete",
        'tell everybody that "status update: phase 1 complete"',
        'send the message "status update: phase 1 complete" to all agents',
        "announce status update: phase 1 complete",
    ],
    ReadInbox(): ["check the lead inbox", "Read your mailbox.", "is there any mail?", "check your inbox please"],
    Review("bob", decision=True): [
        "approve bob's plan",
        "review the plan that bob submitted and approve it",
        "Review and approve the plan of bob",
        "accept bob’s plan",
    ],
    Review(decision=True): ["approve the plan", "review the plan and approve it", "approve it"],
    Review(decision=True, every=True): ["approve all plans"],
    Review("bob", decision=False, feedback="name the owner"): [
        "reject bob's plan: name the owner",
        'reject the plan of bob with the feedback "name the owner"',
        "decline bob's plan because name the owner",
    ],
    Review(request_id="plan-0123abcd4567", decision=True): ["approve plan-0123abcd4567"],
    Review("bob"): [
        "review bob's plan",
        "review bob's plan and approve it if it is any good",
        "approve or reject bob's plan",
    ],
    Shutdown(("alice",)): [
        "request alice's shutdown",
        "ask alice to shut down",
        "shut alice down",
        "Shut down alice, please",
        "stop alice",
        "request the shutdown of alice",
        "have alice shut down",
        "send alice a shutdown request",
    ],
    Shutdown(("ann", "ben")): ["shut down ann and ben"],
    Shutdown(()): ["shut everybody down", "stop all agents", "ask everyone to shut down"],
    DeleteTeam(): ["delete the team", "Disband the whole team now.", "please delete team demo", "shut down the team"],
    Left("do not delete the team"): ["do not delete the team"],
    Other("List all Python files"): ["List all Python files"],
    Other("how do I delete the team?"): ["how do I delete the team?"],
    Other("Create a file a.txt containing one, two"): ["Create a file a.txt containing one, two"],
    Other("tell bob that it rains"): ["tell bob that it rains"],
    Other("add a test to tests/test_a.py"): ["add a test to tests/test_a.py"],
    Other("review the code"): ["review the code"],
    Other("the plan is approved"): ["the plan is approved"],
    Other("make the tests pass"): ["make the tests pass"],
}


@pytest.mark.parametrize(("order", "text"), [(order, text) for order, texts in WORDINGS.items() for text in texts])
def test_an_order_is_understood_in_many_wordings(order: Order, text: str) -> None:
    assert parse(text) == [order]


SEVERAL: dict[str, list[Order]] = {
    "spawn alice (coder) and bob (tester), have alice send bob a message": [BOB, ALICE],
    "Spawn a coder named alice and a tester named bob. Alice should send bob a message": [BOB, ALICE],
    "hire two agents: alice, a coder, and bob, a tester; then have alice message bob": [BOB, ALICE],
    "spawn alice as a coder, spawn bob as a tester and let alice send a message to bob": [BOB, ALICE],
    "spawn alice and bob as coders": [Hire("alice", "code"), Hire("bob", "code")],
    "spawn ann and ben to run the tests": [Hire("ann", "test", "Run the tests"), Hire("ben", "test", "Run the tests")],
    "spawn a scout to list all files and a tester named bob to run the tests": [
        Hire("scout", "explore", "List all files"),
        Hire("bob", "test", "Run the tests"),
    ],
    "spawn an explorer and another explorer": [Hire("explorer", "explore"), Hire("explorer-2", "explore")],
    "have somebody list all Python files, and somebody else run the tests": [
        Hire("explorer", "explore", "List all Python files", anybody=True),
        Hire("tester", "test", "Run the tests"),
    ],
    "bob with a refactoring task submits a plan first, review and approve it": [
        Errand("bob", "A refactoring task", plan=True),
        Review("bob", decision=True),
    ],
    "Give bob a refactoring task; he must submit a plan first. Review his plan and reject it: say where it goes": [
        Errand("bob", "A refactoring task", plan=True),
        Review("bob", decision=False, feedback="say where it goes"),
    ],
    "spawn bob, tell him to list all Python files and ask him for a summary": [
        Hire("bob", "explore", "List all Python files"),
        Errand("bob", SUMMARY),
    ],
    "have ann and ben and bob run the tests": [Errand(name, "Run the tests") for name in ("ann", "ben", "bob")],
    "Spawn bob with a refactoring task and require a plan; when the plan arrives, review it and approve it": [
        Hire("bob", "code", "A refactoring task", plan=True),
        Review("bob", decision=True),
    ],
    "Spawn reviewer in the background as an explore agent. It should analyse the store module.": [REVIEWER],
    "ask alice to shut down and delete the team": [Shutdown(("alice",)), DeleteTeam()],
    "list the team, message reviewer for a summary; check the inbox then broadcast 'x, y and list the team'.": [
        ListTeam(),
        Errand("reviewer", SUMMARY),
        ReadInbox(),
        Broadcast("x, y and list the team"),
    ],
    "1. create a team demo\n2. spawn carol\n- list the team": [
        CreateTeam("demo", ""),
        Hire("carol", "explore"),
        ListTeam(),
    ],
    "Read README.md and summarise it, list the team, thanks": [Other("Read README.md and summarise it"), ListTeam()],
    "spawn scanner to read a.py, b.py and c.py and report back": [
        Hire("scanner", "explore", "Read a.py, b.py and c.py")
    ],
    "Do not delete the team, list the team": [Left("Do not delete the team"), ListTeam()],
}


@pytest.mark.parametrize("text", SEVERAL)
def test_several_orders_come_in_their_order_and_belong_together(text: str) -> None:
    assert parse(text) == SEVERAL[text]


def test_what_stands_in_quotes_is_no_order() -> None:
    assert parse('tell bob "delete the team; stop alice"') == [Other('tell bob "delete the team; stop alice"')]
    assert parse('broadcast "a. Then delete the team"') == [Broadcast("a. Then delete the team")]


def test_a_courtesy_is_no_order() -> None:
    assert parse("Please report back when it is done. Thanks!") == []


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            [
                *" .,;:'\"`\n\0()",
                *["and", "then", "to", "a", "the", "spawn", "bob", "team", "plan", "reject", "tell", "it"],
            ]
        )
    )
)
def test_any_text_can_be_read(parts: list[str]) -> None:
    text = " ".join(parts)
    assert isinstance(parse(text), list)
    assert all(piece.strip() for piece in cut(text))


@pytest.mark.parametrize(
    "text",
    [" " * 60_000, "a. " * 5_000, "spawn bob and " * 3_000, "please " * 9_000, "have bob " * 5_000, "\n" * 60_000],
    ids=["space", "sentences", "hires", "courtesy", "errands", "lines"],
)  # fmt: skip
def test_long_texts_are_read_in_no_time(text: str) -> None:
    began = time.process_time()
    parse(text)
    assert time.process_time() - began < 20
