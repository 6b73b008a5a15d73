"""The acts of the offline model with free prompts: which tools it calls, and what it then says."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from crewboard.commands.control import STATUS_QUESTION
from crewboard.offline.conversation import Done, refusal
from crewboard.records.requests import step_lines
from crewboard.untrusted import delimit
from tests.offline.conftest import NewAgent
from tests.offline.minimal_agent import APPROVED, CODE, LOOK, PLAN_REQUIRED, TEAM, MinimalAgent, Outcome, rejected

if TYPE_CHECKING:
    from anthropic import Anthropic

pytestmark = pytest.mark.xdist_group("sdk")

CODER: dict[str, Any] = {"type": "code", "tools": (*CODE, *TEAM)}
TESTER: dict[str, Any] = {"type": "test", "tools": ("bash", *LOOK, *TEAM)}


@pytest.fixture
def client(module_client: "Anthropic") -> "Anthropic":
    return module_client


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for path, content in {
        "README.md": "# Shop\n\nSells things.\n\n## Use\n",
        "shop/__init__.py": "",
        "shop/auth.py": '"""Who may come in."""\n\nclass Door:\n    def open(self):\n        pass\n\n'
        "def knock():\n    pass\n",
        "shop/till.py": "def pay(sum):\n    return sum  # TODO: tax\n\n\n# Prices in cents.\n",
        "tests/test_till.py": "def test_pay():\n    assert True\n",
        "notes.txt": "old words stand here\n",
    }.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(content)
    return tmp_path


# (type and tools, prompt, tools called, words of the answer)
FREE: dict[str, tuple[dict[str, Any], str, list[str], list[str]]] = {
    "list files": ({}, "List all Python files", ["glob"], ["4 files", "shop/auth.py", "tests/test_till.py"]),
    "list files of another kind": ({}, "List all Markdown files", ["glob"], ["found 1 file for **/*.md:\n- README.md"]),
    "list files of a language": ({}, "List all C++ files", ["glob"], ["no files for **/*.{cpp,cc,cxx,hpp,hh,hxx,h}."]),
    "list files by a word": ({}, "Show the auth files", ["glob"], ["1 file for **/*auth*:\n- shop/auth.py"]),
    "list files of a folder": ({}, "Which Python files are there in tests?", ["glob"], ["1 file for tests/**/*.py"]),
    "list some files": ({}, "List all Python files that sell", ["glob"], ["4 files", "I left out “that sell”."]),
    "list files, then more": (
        {},
        "List all Python files and search for tax",
        ["glob", "grep"],
        ["4 files", "1 line with tax"],
    ),
    "search in vain": ({}, "Search for heron", ["grep"], ["I found no lines with heron."]),
    "list all": ({}, "list the files", ["glob"], ["6 files", "notes.txt"]),
    "read": ({}, "Read README.md and summarise it.", ["read_file"], ["5 lines", "Shop, Use"]),
    "read code": ({}, "What does shop/auth.py do?", ["read_file"], ["Who may come in.", "Door", "knock"]),
    "read code with comments": ({}, "Explain shop/till.py", ["read_file"], ["It holds pay."]),
    "read two": ({}, "Read shop/till.py and README.md", ["read_file", "read_file"], ["pay", "Shop"]),
    "read a module": ({}, "Analyse the auth module", ["glob", "read_file"], ["8 lines", "Door"]),
    "read by topic": ({}, "analyze the prices in till", ["glob"] + ["read_file"] * 2, ["pay"]),
    "read no module": ({}, "Analyze the moon module", ["glob"], ["no file or folder whose name holds moon"]),
    "read a folder": ({}, "analyze the till in shop", ["glob"] + ["read_file"] * 3, ["Door", "pay"]),
    "read nothing": ({}, "Read nowhere.py", ["read_file"], ["could not be read"]),
    "search": ({}, "Search for TODO", ["grep"], ["shop/till.py:2", "1 line with TODO"]),
    "survey": ({}, "Survey this project.", ["list_dir", "glob", "read_file", "glob"], ["Python: 4 files:", "Shop"]),
    "run": (CODER, "run: echo one; echo two", ["bash"], ["one\ntwo", "ended with exit code 0"]),
    "run quoted": (CODER, "Please run `exit 3`.", ["bash"], ["exit code 3"]),
    "run bare": (CODER, "run echo hi there", ["bash"], ["hi there"]),
    "run the tests": (TESTER, "Run the tests", ["bash"], ["python -m pytest -q"]),
    "run with no right to": ({}, "run: ls", [], ["may not use bash"]),
    "write": (CODER, "Create a file made.txt containing hello world", ["write_file"], ["I wrote made.txt"]),
    "write quoted": (CODER, "write 'a. Then b' to made.txt", ["write_file"], ["I wrote made.txt"]),
    "write anything": (CODER, "create a file", ["write_file"], ["I wrote ada.txt"]),
    "write with no right to": ({}, "Create a file made.txt containing hi", [], ["may not use write_file"]),
    "write outside": (CODER, "Create ../made.txt containing hi", ["write_file"], ["refused", ".."]),
    "write twice": (CODER, "Create a.txt with 'x', then run `cat a.txt`", ["write_file", "bash"], ["wrote a.txt", "x"]),
    "ask": ({}, "Ask the operator whether tabs or spaces", ["ask_operator"], ["ask_operator done"]),
    "send": ({}, "Tell scout that the tests pass", ["send_message"], ["I sent scout: the tests pass"]),
    "say hi to": ({}, "Say hi to bob", ["send_message"], ["I sent bob: ada says hello."]),
    "send quoted": ({}, 'Send fixer "go on"', ["send_message"], ["I sent fixer: go on"]),
    "read, then send": (
        {},
        "Read notes.txt, then tell bob that it is read",
        ["read_file", "send_message"],
        ["1 line"],
    ),
    "inbox": ({}, "Read your inbox", ["read_inbox"], ["read_inbox done"]),
    "say": ({}, "Reply with exactly: pong", [], ["pong"]),
    "wait": ({}, "Wait for mail.", [], ["I wait for mail"]),
    "greet": ({}, "Hello!", [], ["no language model", "ada"]),
    "who": ({}, "Who are you and what can you do?", [], ["no language model"]),
    "anything else": ({}, "Compose a sonnet on moss", [], ["do not know how", "sonnet on moss", "- List all Python"]),
    "a lead's order": ({}, "spawn bob (tester) and delete the team", [], ["do not know how"]),
}


@pytest.mark.parametrize(("who", "prompt", "tools", "words"), FREE.values(), ids=FREE.keys())
def test_a_free_prompt(
    new_agent: NewAgent, project: Path, who: dict[str, Any], prompt: str, tools: list[str], words: list[str]
) -> None:
    worker = new_agent(root=project, **who)
    answer = worker.ask(prompt)
    assert worker.used == tools
    for word in words:
        assert word in answer


def test_a_survey_without_a_readme_leaves_no_gap(new_agent: NewAgent, project: Path) -> None:
    (project / "README.md").unlink()
    told = new_agent().ask("Survey this project.")
    assert "Python: 4 files:" in told
    assert "\n\n\n" not in told


def test_what_is_written_is_what_was_asked_for(new_agent: NewAgent, tmp_path: Path) -> None:
    worker = new_agent(**CODER)
    for prompt, path, content in [
        ("Create a file a.txt containing hello. world", "a.txt", "hello. world"),
        ("Write b.txt with the content one", "b.txt", "one"),
        ("write 'c' to c.txt", "c.txt", "c"),
        ("Make a file f/g.md with\n```\n# T\n\nx\n```", "f/g.md", "# T\n\nx"),
    ]:
        worker.ask(prompt, kind="message")
        assert (tmp_path / path).read_text() == content


@pytest.mark.long
def test_a_command_is_run_as_it_stands(new_agent: NewAgent) -> None:
    worker = new_agent(**CODER)
    for prompt, command in [
        ("run: sleep 0 && echo 'a; then b. C' | cat", "sleep 0 && echo 'a; then b. C' | cat"),
        ("Execute `echo x`, then report.", "echo x"),
        ("Run sleep 0", "sleep 0"),
        ("sleep 0", "sleep 0"),
        ("Run pytest --version", "pytest --version"),
        ("Use bash to echo hi", "echo hi"),
        ("bash: echo a | cat; echo b", "echo a | cat; echo b"),
    ]:
        worker.ask(prompt, kind="message")
        assert worker.calls[-1] == ("bash", {"command": command})


def test_the_projects_own_way_to_test_comes_before_the_usual_one(new_agent: NewAgent) -> None:
    worker = new_agent(**TESTER, rules="- Run the tests with `make test`, or `false`.")
    worker.ask("Run the tests")
    assert worker.calls[-1] == ("bash", {"command": "make test"})


def test_a_failing_test_is_named(new_agent: NewAgent) -> None:
    output = "FAIL: test_a (t.A)\nnoise\nRan 3 tests in 0.1s\n\nFAILED (failures=1)\n[exit code 1]"
    answer = new_agent(**TESTER, answers={"bash": [output]}).ask("run the tests")
    assert "ended with exit code 1" in answer
    assert "FAIL: test_a (t.A)" in answer
    assert "FAILED (failures=1)" in answer


# ----------------------------------------------------------------------------------------------------- plans


@pytest.mark.parametrize(
    "prompt",
    [
        "Submit a plan first: create a file a.txt containing a, then create a file b.txt containing b",
        "Create a file a.txt containing a, then create a file b.txt containing b. Submit a plan first.",
    ],
)
def test_a_plan_that_is_asked_for_has_all_of_the_work(new_agent: NewAgent, prompt: str) -> None:
    worker = new_agent(**CODER, answers={"submit_plan": [APPROVED]})
    worker.ask(prompt)
    assert worker.used == ["submit_plan", "write_file", "write_file", "bash", "bash"]
    assert worker.calls[0][1]["files"] == ["a.txt", "b.txt"]


def test_a_plan_quotes_the_task_and_is_carried_out_when_approved(new_agent: NewAgent, tmp_path: Path) -> None:
    worker = new_agent(**CODER, rules=PLAN_REQUIRED, answers={"submit_plan": [APPROVED]})
    answer = worker.ask("Create a file made.txt containing hi")
    assert worker.used == ["submit_plan", "write_file", "bash"]
    plan = worker.calls[0][1]
    assert plan["plan"].startswith("# Create a file made.txt containing hi\n")
    assert "> Create a file made.txt containing hi" in plan["plan"]
    assert plan["files"] == ["made.txt"]
    assert (tmp_path / "made.txt").read_text() == "hi"
    assert "I wrote made.txt" in answer


def test_a_plan_names_the_command_that_needs_it(new_agent: NewAgent) -> None:
    worker = new_agent(**CODER, rules=PLAN_REQUIRED, answers={"submit_plan": [APPROVED]})
    worker.ask("run: echo one")
    assert worker.used == ["submit_plan", "bash"]
    assert worker.calls[0][1]["commands"] == [worker.calls[1][1]["command"]]


def test_a_rejected_plan_is_revised_with_the_exact_feedback(new_agent: NewAgent, tmp_path: Path) -> None:
    told = [rejected("Name the *owner*:\nfirst."), rejected("Better."), APPROVED]
    worker = new_agent(**CODER, rules=PLAN_REQUIRED, answers={"submit_plan": list(told)})
    worker.ask("Create made.txt containing hi")
    assert worker.used == ["submit_plan", "submit_plan", "submit_plan", "write_file", "bash"]
    assert "> Name the *owner*:\n> first." in worker.calls[1][1]["plan"]
    assert "> Better." in worker.calls[2][1]["plan"]
    assert (tmp_path / "made.txt").exists()


@pytest.mark.parametrize(
    ("feedback", "files"),
    [
        ("Name it other.txt.", {"other.txt": "hi"}),
        ("Create a file other.txt containing bye", {"other.txt": "bye"}),
        ("Make it nicer.", {"made.txt": "hi"}),
    ],
)
def test_feedback_on_a_plan_is_obeyed(
    new_agent: NewAgent, tmp_path: Path, feedback: str, files: dict[str, str]
) -> None:
    worker = new_agent(**CODER, rules=PLAN_REQUIRED, answers={"submit_plan": [rejected(feedback), APPROVED]})
    worker.ask("Create a file made.txt containing hi")
    assert worker.used == ["submit_plan", "submit_plan", "write_file", "bash"]
    revised = worker.calls[1][1]
    assert revised["files"] == list(files)
    assert ("My phrasebook cannot follow this" in revised["plan"]) is ("made.txt" in files)
    assert {path.name: path.read_text() for path in tmp_path.glob("*.txt")} == files


@pytest.mark.parametrize(
    "edited",
    ["# Plan\n\n> Create a file other.txt containing bye\n\nNothing else.", "Create a file other.txt containing bye"],
)
def test_edits_of_a_plan_are_obeyed(new_agent: NewAgent, tmp_path: Path, edited: str) -> None:
    approved = f"{APPROVED}\nThe plan was edited. Carry out this version:\n{edited}"
    worker = new_agent(**CODER, rules=PLAN_REQUIRED, answers={"submit_plan": [approved]})
    answer = worker.ask("Create a file made.txt containing hi")
    assert worker.used == ["submit_plan", "write_file"]
    assert {path.name: path.read_text() for path in tmp_path.glob("*.txt")} == {"other.txt": "bye"}
    assert "approved with changes. I wrote other.txt." in answer


def test_a_plan_edited_to_what_is_unknown_changes_nothing(new_agent: NewAgent, tmp_path: Path) -> None:
    approved = f"{APPROVED}\nThe plan was edited. Carry out this version:\n> Make the moss greener"
    worker = new_agent(**CODER, rules=PLAN_REQUIRED, answers={"submit_plan": [approved]})
    assert "changed nothing" in worker.ask("Create a file made.txt containing hi")
    assert worker.used == ["submit_plan"]
    assert not list(tmp_path.glob("*.txt"))


BOTH = "Write a file named a.txt that says 'a' and write a file named b.py that says '1'. Run: echo done"


def test_a_plan_has_steps_with_their_files_and_a_check(new_agent: NewAgent, tmp_path: Path) -> None:
    worker = new_agent(**CODER, rules=PLAN_REQUIRED, answers={"submit_plan": [APPROVED, APPROVED]})
    worker.ask("Create made.py containing 1")
    plan = worker.calls[0][1]
    assert list(step_lines(plan["plan"])) == [1, 2]
    assert "\n1. Create made.py containing 1\n" in plan["plan"]
    assert "\n2. Run `python3 -m py_compile made.py` to check it\n" in plan["plan"]
    assert (plan["files"], plan["commands"]) == (["made.py"], ["python3 -m py_compile made.py"])
    assert worker.calls[-1] == ("bash", {"command": "python3 -m py_compile made.py"})


@pytest.mark.long
def test_a_step_names_what_its_words_do_not(new_agent: NewAgent) -> None:
    worker = new_agent(**CODER, rules=PLAN_REQUIRED, answers={"submit_plan": [APPROVED]})
    worker.ask("Write unit tests")
    plan = worker.calls[0][1]
    assert "1. Write unit tests\n   - In it: `test_smoke.py`, `python3 -B test_smoke.py`\n" in plan["plan"]
    assert (plan["files"], plan["commands"]) == (["test_smoke.py"], ["python3 -B test_smoke.py"])


@pytest.mark.parametrize(("left_out", "done"), [("2", ["a.txt"]), ("1", ["b.py"]), ("1, 2", [])])
def test_only_approved_steps_are_done(new_agent: NewAgent, tmp_path: Path, left_out: str, done: list[str]) -> None:
    approved = f"{APPROVED}\n- Approved are all steps but {left_out}. Do not begin {left_out}."
    worker = new_agent(**CODER, rules=PLAN_REQUIRED, answers={"submit_plan": [approved]})
    answer = worker.ask(BOTH)
    assert list(step_lines(worker.calls[0][1]["plan"])) == [1, 2, 3]
    assert sorted(path.name for path in tmp_path.iterdir() if path.suffix in {".txt", ".py"}) == done
    assert worker.calls[-1] == ("bash", {"command": "echo done"})
    assert all(f"I left out step {number}, which is not approved." in answer for number in left_out.split(", "))


def test_edited_steps_are_done_as_they_are_edited(new_agent: NewAgent, tmp_path: Path) -> None:
    edited = "# Plan\n\n> Anything\n\n1. Write a file named c.txt that says 'c'\n2. Run: echo two"
    approved = f"{APPROVED}\nThe plan was edited. Carry out this version:\n{edited}"
    worker = new_agent(**CODER, rules=PLAN_REQUIRED, answers={"submit_plan": [approved]})
    worker.ask(BOTH)
    assert worker.used == ["submit_plan", "write_file", "bash"]
    assert [path.name for path in tmp_path.glob("*.txt")] == ["c.txt"]


def test_a_note_on_a_step_changes_that_step(new_agent: NewAgent, tmp_path: Path) -> None:
    step = "write a file named b.py that says '1'"
    noted = rejected(f"n1, line 10:\n  > 2. {step}\n  | name it c.py")
    worker = new_agent(**CODER, rules=PLAN_REQUIRED, answers={"submit_plan": [noted, APPROVED]})
    worker.ask(BOTH)
    plan = worker.calls[1][1]
    assert plan["answers"] == {"n1": "The task above is changed: name it c.py"}
    assert plan["files"] == ["a.txt", "c.py"]
    assert sorted(path.name for path in tmp_path.iterdir() if path.suffix in {".txt", ".py"}) == ["a.txt", "c.py"]


UNCHANGED = "My phrasebook cannot follow this, so nothing changed"


def test_each_note_on_a_rejected_plan_is_answered_by_its_id(new_agent: NewAgent) -> None:
    noted = rejected(
        "Almost.\n\nn1, line 1:\n  > # Create\n  | name the owner\n\n"
        "n2, lines 3-4:\n  > a\n  > b\n  | shorter\n  | please"
    )
    worker = new_agent(**CODER, rules=PLAN_REQUIRED, answers={"submit_plan": [noted, rejected("Better."), APPROVED]})
    worker.ask("Create made.txt containing hi")
    plans = [given for tool, given in worker.calls if tool == "submit_plan"]
    assert [given.get("answers") for given in plans] == [
        None, {"n1": f"{UNCHANGED}: name the owner", "n2": f"{UNCHANGED}: shorter"}, None,
    ]  # fmt: skip


def test_a_task_unknown_to_every_rule_still_gets_a_required_plan(new_agent: NewAgent) -> None:
    worker = new_agent(**CODER, rules=PLAN_REQUIRED, answers={"submit_plan": [APPROVED]})
    assert "The plan is approved. Nothing in it is in my phrasebook" in worker.ask("Make the moss greener")
    plan = worker.calls[0][1]["plan"]
    assert "> Make the moss greener" in plan
    assert "Nothing in it is in my phrasebook: approved as it stands, it changes nothing." in plan
    assert "do not know" in new_agent(**CODER).ask("Make the moss greener")


def test_a_plan_that_is_not_decided_changes_nothing(new_agent: NewAgent, tmp_path: Path) -> None:
    undecided = ("The plan was cancelled; submit one again if you still need to.", True)
    worker = new_agent(**CODER, rules=PLAN_REQUIRED, answers={"submit_plan": [undecided]})
    assert "cancelled" in worker.ask("Create made.txt containing hi")
    assert worker.used == ["submit_plan"]
    assert not (tmp_path / "made.txt").exists()


def test_an_agent_that_only_plans_says_that_it_may_not_write(new_agent: NewAgent) -> None:
    planner = new_agent(type="plan", tools=(*LOOK, *TEAM, "submit_plan"), answers={"submit_plan": [APPROVED]})
    answer = planner.ask("Submit a plan to create made.txt containing hi")
    assert planner.used == ["submit_plan"]
    assert "may not use write_file" in answer


# ----------------------------------------------------------------------------------------------- tasks, people


def test_an_assigned_task_is_done_and_completed(new_agent: NewAgent, project: Path) -> None:
    worker = new_agent(root=project, answers={"task_claim": ["task 3 is yours: List all Python files"]})
    answer = worker.ask("Task 3: List all Python files", kind="task_assignment")
    assert worker.used == ["task_claim", "glob", "task_update"]
    assert worker.calls[-1][1] == {"task_id": 3, "status": "completed"}
    assert "4 files" in answer


def test_a_claimed_task_says_itself_what_to_do(new_agent: NewAgent, project: Path) -> None:
    worker = new_agent(root=project, answers={"task_claim": ["task 5 is yours: Search for TODO"]})
    assert "shop/till.py:2" in worker.ask("Claim task 5.")
    assert worker.used == ["task_claim", "grep", "task_update"]


def test_a_task_that_no_agent_can_do_has_failed(new_agent: NewAgent) -> None:
    worker = new_agent(answers={"task_claim": ["task 3 is yours: Make the moss greener"]})
    assert "I changed nothing" in worker.ask("Task 3: Make the moss greener", kind="task_assignment")
    assert worker.calls[-1] == ("task_update", {"task_id": 3, "status": "failed"})
    hired = new_agent()
    hired.hear("Make the moss greener")
    hired.hear("Your task is #7 Moss (in_progress, ada). Say with task_update when it is done.", "notice", "system")
    hired.work()
    assert hired.calls == [("task_update", {"task_id": 7, "status": "failed"})]


@pytest.mark.parametrize("begins", ["Your task is", "The API was unavailable. Go on with"])
def test_a_task_that_the_board_alone_tells_of_is_done(new_agent: NewAgent, project: Path, begins: str) -> None:
    worker = new_agent(root=project)
    worker.ask("Wait for mail.")
    notice = f"{begins} #7 Search for TODO (in_progress, ada). Say with task_update when it is done.\n\nAll of them."
    assert "shop/till.py:2" in worker.ask(notice, "notice", "system")
    assert worker.calls[-1] == ("task_update", {"task_id": 7, "status": "completed"})


OWN = "Your task is #7 Look around (in_progress, ada). Say with task_update when it is completed or failed."


def test_the_task_that_one_was_hired_for_is_closed_at_the_end(new_agent: NewAgent, project: Path) -> None:
    worker = new_agent(root=project)
    worker.hear("List all Python files")
    worker.hear(OWN, "notice", "system")
    worker.work()
    assert worker.calls[-1] == ("task_update", {"task_id": 7, "status": "completed"})
    assert worker.used == ["glob", "task_update"]


def test_mail_that_comes_while_a_task_is_closed_is_worked_on_too(new_agent: NewAgent, project: Path) -> None:
    worker = new_agent(root=project)
    worker.hear("List all Python files")
    worker.hear(OWN, "notice", "system")
    worker.on_call = lambda tool: worker.hear("Search for TODO", "message") if tool == "task_update" else None
    # The mail lies behind the result in one message, as a worker puts it there.
    answers = []
    for _ in range(4):
        reply = worker.reply()
        worker.messages, held = worker.messages, worker.messages
        if reply.stop_reason != "tool_use":
            answers.append("".join(block.text for block in reply.content if block.type == "text"))
            break
        worker.run_tools(reply)
        held[-1]["content"].sort(key=lambda block: block["type"] != "tool_result")
    assert worker.used == ["glob", "task_update", "grep"]
    assert "shop/till.py:2" in answers[0]
    assert "may not" not in answers[0]


def test_who_is_reminded_of_a_task_closes_it(new_agent: NewAgent) -> None:
    worker = new_agent(answers={"task_claim": [("look first", True)]})
    worker.ask("Claim task 4")
    notice = "You ended your turn, and #4 look (in_progress, ada) is still in progress. Use task_update to say what."
    assert "Task 4 is completed" in worker.ask(notice, "notice", "system")
    assert worker.calls[1:] == [("task_update", {"task_id": 4, "status": "completed"})]


def test_the_operators_answer_is_told(new_agent: NewAgent) -> None:
    worker = new_agent(answers={"ask_operator": ["the operator answers: spaces, please"]})
    answer = worker.ask("Ask me: tabs or spaces?")
    assert worker.calls == [("ask_operator", {"question": "tabs or spaces?"})]
    assert "The operator answered: spaces, please" in answer


def test_a_file_is_not_overwritten_by_loose_talk(new_agent: NewAgent, project: Path) -> None:
    worker = new_agent(root=project, **CODER)
    for talk in (
        "Add a test to tests/test_till.py",
        "Write shop/till.py with better names",
        "I will put the fix into shop/till.py",
        "The store keeps shop/till.py: open it",
    ):
        worker.ask(talk, kind="message")
    assert "write_file" not in worker.used
    assert (project / "shop/till.py").read_text().startswith("def pay")


def test_mail_to_an_unknown_name_is_reported(new_agent: NewAgent) -> None:
    worker = new_agent(answers={"send_message": [("no agent of this team is called bob", True)]})
    assert "no agent of this team is called bob" in worker.ask("Tell bob hello")
    assert worker.used == ["send_message"]


@pytest.mark.parametrize(
    ("kind", "listed", "words"),
    [
        ("code-review", "alice (code-review) idle", "alice is on the team already, of type code-review."),
        ("code", ("not now", True), "spawn_agent was refused: alice is of type code; remove it first"),
    ],
)
def test_work_goes_to_an_agent_of_another_type(
    new_agent: NewAgent, kind: str, listed: str | Outcome, words: str
) -> None:
    taken = (f"alice is of type {kind}; remove it first, or choose another name", True)
    worker = new_agent(
        type="lead",
        tools=(*TEAM, "spawn_agent", "list_team"),
        answers={"spawn_agent": [taken, "alice: I looked."], "list_team": [listed]},
    )
    assert words in worker.ask("Hire alice as an explorer and have her list all Python files.")


def test_a_summary_says_what_was_done_and_nothing_else(new_agent: NewAgent, project: Path) -> None:
    worker = new_agent(root=project, **CODER, answers={"ask_operator": ["the operator answers: blue"]})
    worker.ask("Read README.md. Run `exit 4`. Ask me which colour")
    told = worker.ask("Please send me a summary of what you did", kind="message")
    assert worker.used == ["read_file", "bash", "ask_operator"]
    for words in ("read_file README.md", "exit 4: exit code 4", "which colour", "blue", "Read README.md. Run"):
        assert words in told


def test_an_interrupt_is_answered_with_where_things_stand(new_agent: NewAgent, project: Path) -> None:
    worker = new_agent(root=project)
    worker.hear("Search for TODO")
    worker.run_tools(worker.reply())
    told = worker.ask("Where do you stand?", kind="interrupt")
    assert "grep TODO" in told
    assert "4 files" in worker.ask("List all Python files", kind="message")


def test_the_question_of_a_bare_interrupt_is_answered(new_agent: NewAgent, project: Path) -> None:
    worker = new_agent(root=project)
    worker.ask("Search for TODO")
    told = worker.ask(STATUS_QUESTION, kind="interrupt")
    assert "grep TODO" in told
    assert "do not know" not in told


def test_a_coder_writes_unit_tests_to_a_file(new_agent: NewAgent, project: Path) -> None:
    worker = new_agent(root=project, **CODER)
    assert "ended with exit code 0" in worker.ask("Write unit tests")
    assert worker.used == ["write_file", "bash"]
    assert "def test_every_python_file_can_be_read" in (project / "test_smoke.py").read_text()


def test_mail_of_teammates_that_asks_for_nothing_is_only_read(new_agent: NewAgent) -> None:
    worker = new_agent()
    assert "bob" in worker.ask("The sky is blue.", kind="message", author="bob")
    assert worker.used == []
    assert worker.ask("free for work", kind="idle_notification", author="bob")
    for text in ("The sky is blue.", "The sun is out."):
        worker.hear(text, "message", "bob")
    assert worker.work().count("nothing in it for me to do") == 1


def test_mail_that_arrives_during_the_work_is_answered_too(new_agent: NewAgent, project: Path) -> None:
    worker = new_agent(root=project)
    worker.hear("Search for TODO")
    worker.run_tools(worker.reply())
    worker.hear("List all Python files", kind="message")
    answer = worker.work()
    assert worker.used == ["grep", "glob"]
    assert "shop/till.py:2" in answer
    assert "4 files" in answer


# ----------------------------------------------------------------------------------------------- long work


def test_a_result_that_was_left_out_is_not_guessed(new_agent: NewAgent, project: Path) -> None:
    worker = new_agent(root=project)
    worker.hear("List all Python files")
    worker.run_tools(worker.reply())
    worker.messages[-1]["content"][0]["content"] = "(left out to save room; call the tool again if you need it)"
    answer = worker.work()
    assert "left out to save room" in answer
    assert "No file" not in answer


def test_a_summary_is_an_extract_and_says_so(new_agent: NewAgent) -> None:
    worker = new_agent(tools=())
    worker.rules = "You summarise the work of an agent."
    asked = (
        "Summarise the work below.\n\n" + delimit("operator", "prompt", "p", "run: ls") + "\nassistant calls bash: ls"
    )
    worker.messages = [{"role": "user", "content": [{"type": "text", "text": asked}]}]
    answer = worker.work()
    assert "assistant calls bash: ls" in answer
    assert "no language model" in answer


def test_work_goes_on_from_a_summary(new_agent: NewAgent, tmp_path: Path) -> None:
    worker = new_agent(**CODER, rules=PLAN_REQUIRED)
    mail = delimit("operator", "prompt", "p", "Create made.txt containing hi")
    kept = f"{mail}\n\nYour plan, which is approved:\n# Plan"
    worker.hear(
        f"The conversation so far, summarised:\n\nx\n\nYour assignment, word for word:\n\n{kept}", "notice", "system"
    )
    assert "I wrote made.txt" in worker.work()
    assert worker.used == ["write_file"]


def test_an_interrupted_tool_is_reported_and_not_run_again(new_agent: NewAgent) -> None:
    worker: MinimalAgent = new_agent(**CODER, answers={"bash": [("interrupted, outcome unknown", True)]})
    assert worker.ask("run: rm x") == "bash was interrupted, outcome unknown"
    assert worker.used == ["bash"]


def test_a_command_that_a_time_limit_ended_was_not_refused() -> None:
    ended = Done("bash", {}, "[ended after 120 s: time limit]", is_error=True)
    assert refusal(ended) == "bash did not end by itself: [ended after 120 s: time limit]"
