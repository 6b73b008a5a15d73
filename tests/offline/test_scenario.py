"""The demo's scenario, walked through on a real copy of its project."""

import re
from collections.abc import Sequence
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from crewboard.agent_types import TEAM_TOOLS, TYPES
from crewboard.offline import conversation
from crewboard.offline.conversation import Call, Done, fill
from crewboard.offline.reply import Speed, events
from crewboard.offline.scenario import Branch, ScenarioAgent, Turn, copy_sample, load, play
from tests.model import ModelServer
from tests.offline.conftest import NewAgent
from tests.offline.minimal_agent import APPROVED, PLAN_REQUIRED, MinimalAgent, rejected, run

pytestmark = pytest.mark.xdist_group("sdk")

DEMO = load("demo")
AGENTS = {agent.name: agent for agent in DEMO.agents}
TESTS = "python3 -m unittest -q"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return copy_sample(tmp_path / "inkpot")


def hired(new_agent: NewAgent, project: Path, name: str, **answers: Any) -> MinimalAgent:
    agent = AGENTS[name]
    return new_agent(
        root=project,
        name=name,
        type=agent.type,
        tools=(*TYPES[agent.type].tools, *TEAM_TOOLS),
        rules=PLAN_REQUIRED if agent.plan else "",
        answers=answers,
    )


def all_turns(agent: ScenarioAgent) -> list[Turn]:
    return [turn for first in agent.turns for turn in (first, *first.then)]


# ------------------------------------------------------------------------------------------------------ data


@pytest.mark.parametrize("agent", DEMO.agents, ids=[agent.name for agent in DEMO.agents])
def test_each_agent_calls_only_what_its_type_has(agent: ScenarioAgent) -> None:
    allowed = {*TYPES[agent.type].tools, *TEAM_TOOLS}
    turns = all_turns(agent)
    assert {call.tool for turn in turns for call in turn.calls} <= allowed
    assert not agent.turns[-1].calls
    text = repr(turns)
    quoted = re.findall(r"\{([a-z_]+)[^{}:]*:([a-z]+)\}", text)
    assert {tool for tool, _ in quoted} <= allowed
    assert {what for _, what in quoted} <= conversation.VIEWS.keys()


def test_the_tasks_are_those_that_the_prompts_speak_of() -> None:
    owners = {number: task.owner for number, task in enumerate(DEMO.tasks, 1)}
    for agent in DEMO.agents:
        number = int(re.findall(r"task on the board is (\d+)", agent.prompt)[0])
        assert owners[number] == agent.name
    again = DEMO.tasks[4]
    assert again.required_type == "test"
    assert again.blocked_by == (2,)


def test_the_sample_has_one_failing_test(project: Path) -> None:
    output, _ = run(TESTS, project)
    assert "FAIL: test_recent_notes_come_newest_first" in output
    assert "FAILED (failures=1)" in output


def test_the_sample_is_copied_without_what_python_left_there(tmp_path: Path) -> None:
    to = tmp_path / "there"
    to.mkdir()
    copied = copy_sample(to)
    assert copied == to
    assert (to / "CLAUDE.md").is_file()
    assert not list(to.rglob("__pycache__"))
    with pytest.raises(FileNotFoundError):
        load("no-such-scenario")


# ----------------------------------------------------------------------------------------------------- walks


@pytest.mark.long
def test_scout_surveys_and_tells_fixer_where_the_fault_is(new_agent: NewAgent, project: Path) -> None:
    scout = hired(new_agent, project, "scout")
    answer = scout.ask(AGENTS["scout"].prompt)
    sent = next(given for name, given in scout.calls if name == "send_message")
    assert sent["to"] == "fixer"
    assert re.search(r"inkpot/store\.py:\d+: .*path\.stem, reverse=True", sent["content"])
    assert "15 tests" in answer
    assert "10 Python files" in answer
    assert f"`inkpot/store.py` ({len((project / 'inkpot/store.py').read_text().splitlines())} lines)" in answer


def test_fixer_edits_after_its_plan_is_approved(new_agent: NewAgent, project: Path) -> None:
    fixer = hired(new_agent, project, "fixer", submit_plan=[APPROVED])
    answer = fixer.ask(AGENTS["fixer"].prompt)
    plan = next(given for name, given in fixer.calls if name == "submit_plan")
    assert plan["files"] == ["inkpot/store.py"]
    assert plan["commands"] == [TESTS]
    assert fixer.used.index("submit_plan") < fixer.used.index("edit_file") < fixer.used.index("bash")
    assert "Ran 15 tests" in answer
    assert "exit code 0" in answer
    output, _ = run(TESTS, project)
    assert output.endswith("OK\n[exit code 0]")


@pytest.mark.parametrize(
    ("left_out", "used", "answer"),
    [
        ("1", [], "Step 1 is the change itself, and it is not approved"),
        ("2", ["edit_file", "task_update", "send_message"], "Step 2 is not approved, so I did not run the tests."),
        ("3", ["edit_file", "bash"], "Step 3 is not approved, so task 2 is not completed"),
        ("2, 3", ["edit_file"], "Steps 2 and 3 are not approved"),
        ("1, 2", [], "Step 1 is the change itself"),
    ],
)
def test_fixer_leaves_out_steps_that_are_not_approved(
    new_agent: NewAgent, project: Path, left_out: str, used: list[str], answer: str
) -> None:
    told = f"{APPROVED}\n- Approved are all steps but {left_out}. Do not begin {left_out}, nor anything else."
    fixer = hired(new_agent, project, "fixer", submit_plan=[told])
    said = fixer.ask(AGENTS["fixer"].prompt)
    assert answer in said
    assert fixer.used[fixer.used.index("submit_plan") + 1 :] == used


@pytest.mark.long
def test_fixer_revises_a_rejected_plan_as_often_as_it_takes(new_agent: NewAgent, project: Path) -> None:
    fixer = hired(
        new_agent, project, "fixer", submit_plan=[rejected("Say more of the risk."), rejected("Now?"), APPROVED]
    )
    fixer.ask(AGENTS["fixer"].prompt)
    plans = [given["plan"] for name, given in fixer.calls if name == "submit_plan"]
    assert len(plans) == 3
    assert "> Say more of the risk.\n" in plans[1]
    assert "> Now?\n" in plans[2]
    assert fixer.used.count("edit_file") == 1


@pytest.mark.long
def test_fixer_writes_the_line_as_its_plan_was_edited(new_agent: NewAgent, project: Path) -> None:
    line = 'files = sorted(self.folder.glob("*.md"), key=lambda path: int(path.stem), reverse=bool(1))'
    edited = f"{APPROVED}\nThe plan was edited. Carry out this version:\n# Sort\n\n```diff\n- files = x\n+ {line}\n```"
    hired(new_agent, project, "fixer", submit_plan=[edited]).ask(AGENTS["fixer"].prompt)
    assert f"        {line}\n" in (project / "inkpot/store.py").read_text()


@pytest.mark.long
def test_fixer_says_so_when_it_could_not_do_it(new_agent: NewAgent, project: Path) -> None:
    store = project / "inkpot/store.py"
    store.write_text(store.read_text().replace("path.stem, reverse", "int(path.stem), reverse"))
    answer = hired(new_agent, project, "fixer", submit_plan=[APPROVED]).ask(AGENTS["fixer"].prompt)
    assert "could not make the change" in answer
    assert "occurs 0 times" in answer

    undecided = ("The plan was expired; submit one again if you still need to.", True)
    answer = hired(new_agent, project, "fixer", submit_plan=[undecided]).ask(AGENTS["fixer"].prompt)
    assert "changed nothing" in answer


def test_fixer_does_not_call_tests_passed_that_fail(new_agent: NewAgent, project: Path) -> None:
    fixer = hired(
        new_agent, project, "fixer", submit_plan=[APPROVED], bash=["Ran 1 test\n\nFAILED (errors=1)\n[exit code 1]"]
    )
    answer = fixer.ask(AGENTS["fixer"].prompt)
    assert "do not pass yet" in answer
    assert "task_update" not in fixer.used


@pytest.mark.long
@pytest.mark.parametrize(
    ("answer", "consequence"),
    [("move to .trash", "a rename"), ("keep deleting", "stays as it is"), ("ask Ann", "Both ways")],
)
def test_reviewer_builds_on_the_operators_answer(
    new_agent: NewAgent, project: Path, answer: str, consequence: str
) -> None:
    reviewer = hired(new_agent, project, "reviewer", ask_operator=[f"the operator answers: {answer}"])
    review = reviewer.ask(AGENTS["reviewer"].prompt)
    question = next(given for name, given in reviewer.calls if name == "ask_operator")
    assert question["options"] == ["keep deleting", "move to .trash"]
    assert f"“{answer}”" in review
    assert consequence in review


def test_reviewer_answers_a_request_for_a_summary(new_agent: NewAgent, project: Path) -> None:
    reviewer = hired(new_agent, project, "reviewer", ask_operator=["the operator answers: move to .trash"])
    reviewer.ask(AGENTS["reviewer"].prompt)
    summary = reviewer.ask("Give me a summary, please", kind="message")
    for words in ("read_file inkpot/store.py", "ask_operator", "move to .trash", "# Review: how inkpot removes notes"):
        assert words in summary


def test_a_summary_requested_during_the_review_comes_with_it(new_agent: NewAgent, project: Path) -> None:
    reviewer = hired(new_agent, project, "reviewer", ask_operator=["the operator answers: keep deleting"])
    reviewer.hear(AGENTS["reviewer"].prompt)
    reviewer.run_tools(reviewer.reply())
    reviewer.hear("Send me a summary and list all Python files", kind="message")
    answer = reviewer.work()
    assert "# Review: how inkpot removes notes" in answer
    assert "What I did" in answer
    assert "10 files" in answer
    assert reviewer.used[-1] == "glob"


@pytest.mark.long
def test_tester_runs_the_tests_and_again_when_fixer_says_so(new_agent: NewAgent, project: Path) -> None:
    tester = hired(new_agent, project, "tester")
    first = tester.ask(AGENTS["tester"].prompt)
    assert "exit code 1: Ran 15 tests" in first
    assert "note 12" in first

    fixer = hired(new_agent, project, "fixer", submit_plan=[APPROVED])
    fixer.ask(AGENTS["fixer"].prompt)
    told = next(given for name, given in fixer.calls if name == "send_message")
    assert told["to"] == "tester"
    second = tester.ask(told["content"], kind="message", author="fixer")
    assert tester.calls[-3:] == [
        ("task_claim", {"task_id": 5}),
        ("bash", {"command": TESTS}),
        ("task_update", {"task_id": 5, "status": "completed"}),
    ]
    assert f"`{TESTS}` ended with exit code 0" in second


@pytest.mark.long
def test_tester_follows_fixer_even_during_its_first_run(new_agent: NewAgent, project: Path) -> None:
    tester = hired(new_agent, project, "tester")
    tester.hear(AGENTS["tester"].prompt)
    tester.run_tools(tester.reply())
    tester.hear("The fix is in. Claim task 5 and run the tests again.", kind="message", author="fixer")
    tester.work()
    assert tester.used.count("bash") == 2


@pytest.mark.long
def test_what_scout_tells_fixer_does_not_change_what_fixer_does(new_agent: NewAgent, project: Path) -> None:
    scout = hired(new_agent, project, "scout")
    scout.ask(AGENTS["scout"].prompt)
    told = next(given["content"] for name, given in scout.calls if name == "send_message")
    undisturbed = hired(new_agent, project, "fixer", submit_plan=[("no", True)])
    undisturbed.ask(AGENTS["fixer"].prompt)
    fixer = hired(new_agent, project, "fixer", submit_plan=[("no", True)])
    fixer.hear(AGENTS["fixer"].prompt)
    fixer.run_tools(fixer.reply())
    fixer.hear(told, kind="message", author="scout")
    fixer.work()
    assert fixer.calls == undisturbed.calls


@pytest.mark.long
def test_courier_goes_on_where_it_was_killed(new_agent: NewAgent, project: Path) -> None:
    courier = hired(new_agent, project, "courier")
    courier.hear(AGENTS["courier"].prompt)
    for _ in range(4):
        courier.run_tools(courier.reply())
    courier.reply()  # asked for, and killed before the tool ran
    results = [
        {"type": "tool_result", "tool_use_id": block["id"], "content": "interrupted, outcome unknown", "is_error": True}
        for block in courier.messages[-1]["content"]
        if block["type"] == "tool_use"
    ]
    again = hired(new_agent, project, "courier")
    again.messages = [*courier.messages, {"role": "user", "content": results}]
    answer = again.work()
    assert courier.used.count("read_file") == 3
    assert again.used.count("read_file") == 6
    assert "- README.md: 19" in answer
    assert "- inkpot/note.py: unknown" in answer
    assert again.calls[-2:] == [
        ("task_claim", {"task_id": 6}),
        ("task_update", {"task_id": 6, "status": "completed"}),
    ]


def test_who_was_interrupted_listens_instead_of_going_on(new_agent: NewAgent, project: Path) -> None:
    courier = hired(new_agent, project, "courier")
    courier.hear(AGENTS["courier"].prompt)
    for _ in range(3):
        courier.run_tools(courier.reply())
    told = courier.ask("Where do you stand?", kind="interrupt")
    assert "read_file README.md" in told
    assert courier.used.count("read_file") == 2


def test_a_shutdown_request_is_accepted_in_mid_script(new_agent: NewAgent, project: Path) -> None:
    courier = hired(new_agent, project, "courier")
    courier.hear(AGENTS["courier"].prompt)
    courier.run_tools(courier.reply())
    courier.tools = (*courier.tools, "shutdown_response")
    courier.hear("lead asks you to shut down (done). Answer with shutdown_response.", kind="notice", author="system")
    courier.run_tools(courier.reply())
    assert courier.calls[-1] == ("shutdown_response", {"approve": True})


def test_another_prompt_is_no_part_of_the_scenario(new_agent: NewAgent, project: Path) -> None:
    assert hired(new_agent, project, "scout").ask("say hi") == "hi"
    impostor = new_agent(root=project, name="bob")
    assert impostor.ask(AGENTS["scout"].prompt) != AGENTS["scout"].turns[-1].text


# ------------------------------------------------------------------------------------------------------ play


def did(tool: str, text: str = "ok", *, is_error: bool = False) -> list[Done]:
    return [Done(tool, {}, text, is_error)]


def script(*branches: Branch) -> Sequence[Turn]:
    return [Turn(text="a", calls=(Call(tool="bash"),), then=branches), Turn(text="b")]


def text_of(turns: Sequence[Turn], *replies: list[Done]) -> str | None:
    turn, _ = play(turns, replies)
    return turn.text if turn else None


def test_a_script_goes_from_turn_to_turn() -> None:
    turns = script()
    assert text_of(turns) == "a"
    assert text_of(turns, did("bash")) == "b"
    assert text_of(turns, did("bash"), []) is None
    assert play(turns, [did("bash"), did("glob")]) == (turns[1], did("glob"))


def test_a_branch_is_played_once_unless_a_plan_is_rejected() -> None:
    retry = (Call(tool="bash"),)
    turns = script(Branch(on="failed", text="again", calls=retry), Branch(on="error", text="refused"))
    failed = did("bash", "x\n[exit code 2]")
    assert text_of(turns, failed) == "again"
    assert text_of(turns, failed, did("bash", "[exit code 0]")) == "b"
    assert text_of(turns, failed, failed) == "b"
    assert text_of(turns, did("bash", "no", is_error=True)) == "refused"
    assert text_of(turns, did("bash", "no", is_error=True), []) is None

    plans = script(Branch(on="rejected", text="revised", calls=retry))
    no = did("submit_plan", rejected("x")[0], is_error=True)
    assert text_of(plans, no, no, no) == "revised"
    assert text_of(plans, no, no, did("submit_plan", APPROVED)) == "b"


def test_a_branch_can_ask_what_another_tool_said() -> None:
    turns = script(Branch(on="says", of="ask_operator", says="TRASH", text="then"))
    assert text_of(turns, did("bash", "trash")) == "b"
    assert text_of(turns, [*did("ask_operator", "move to .trash"), *did("bash")]) == "then"


def test_text_quotes_what_tools_gave() -> None:
    done = [
        Done("read_file", {"path": "a.py"}, "1\tx\n2\ty"),
        Done("read_file", {"path": "b.py"}, "no such file", is_error=True),
        Done("bash", {"command": "x"}, "Ran 3 tests in 1s\n\nOK\n[exit code 0]"),
    ]
    assert fill("{read_file a.py:lines} {read_file b.py:lines} {bash:exit}", done) == "2 unknown 0"
    assert fill({"a": ["{bash:tally}", 3]}, done) == {"a": ["Ran 3 tests in 1s, OK", 3]}
    assert fill("{glob:count} {not a quote}", done) == "(no glob) {not a quote}"


# ------------------------------------------------------------------------------------------------------ pace


def test_the_pace_stretches_all_but_the_least_delay() -> None:
    whole = {"content": [{"type": "text", "text": "one two three"}], "stop_reason": "end_turn", "usage": {}}

    def seconds(pace: float) -> float:
        return sum(event.pause for event in events(whole, Speed(delay=3, word=0.5, least=0.4).at(pace)))

    assert seconds(1) == pytest.approx(4.5)
    assert seconds(2) == pytest.approx(9)
    assert seconds(0) == pytest.approx(0.4)


def test_a_paced_server_takes_its_time(project: Path) -> None:
    from anthropic import Anthropic

    with ModelServer(thinks=False, pace=0.2) as server, Anthropic(base_url=server.url, api_key="offline") as client:
        began = monotonic()
        hired(lambda **given: MinimalAgent(client, **given), project, "scout").ask("say hi")
        assert monotonic() - began > 0.15 * 0.2
