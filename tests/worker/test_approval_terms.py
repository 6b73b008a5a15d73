"""Plans approved with terms: these hold until the result of the assignment, also after a kill, and no longer."""

import socket
from collections.abc import Iterator

import pytest

from crewboard import agent_types, web
from crewboard.agent_types import kept_by_terms
from crewboard.commands import answers, hire, messages
from crewboard.commands.context import Team
from crewboard.errors import BadDataError, UsageError
from crewboard.offline.reply import Reply
from crewboard.protocol import requests
from crewboard.protocol.collisions import denied_by_steps, names_of_steps
from crewboard.records.agents import HireOptions, Spec, StepNames, Terms, TermsInForce, Tokens
from crewboard.records.base import JsonValue
from crewboard.records.events import Gate, Intake, Sent, ToolResult
from crewboard.records.requests import Request, RequestStatus, step_lines, steps_of
from crewboard.records.team import Rule
from crewboard.store import agents, mailbox, operators, roster
from crewboard.worker.tools.permissions import judge_call, rule_refusal
from tests.crew import Crew, eventually
from tests.model import calls, looks, says
from tests.worker.test_terms import add, as_lead

__all__ = ["as_lead"]

PLAN = "# Write it\n\n1. write\n2. check\n3. publish"


def plan() -> Reply:
    return calls("submit_plan", plan=PLAN)


def write(path: str) -> Reply:
    return calls("write_file", path=path, content="hello")


def echo() -> Reply:
    return calls("bash", command="echo ran")


def results(crew: Crew, name: str) -> list[ToolResult]:
    return [event for event in crew.events(name) if isinstance(event, ToolResult)]


def approve(crew: Crew, name: str, terms: Terms | None = None) -> Request:
    return answers.approve(crew.team, crew.pending("plan_approval", name).id, terms=terms)


@pytest.mark.long
def test_terms_hold_until_the_result_and_no_longer(shared_crew: Crew) -> None:
    crew, terms = shared_crew, Terms(ask=True, tools=["write_file", "read_file"], hold=[3])
    made = crew.root / "termed.txt"
    crew.model.give("termed", plan(), echo(), write("termed.txt"), says("done"), plan(), echo(), write("more.txt"))
    crew.model.give("termed", says("second"))
    hired = crew.hire("termed", "code", "write it", plan=True, unsafe_no_sandbox=True, web=True)
    decided = approve(crew, "termed", terms)
    assert decided.terms is not None
    assert decided.terms.tools == ["read_file", "write_file"], "in the order of the type"
    question = crew.pending("permission", "termed")
    assert question.payload["tool"] == "write_file"
    assert question.payload["why"] == "the terms of its approved plan ask before each call"
    assert not made.exists()
    seen = crew.see("termed").status.terms
    assert seen is not None
    assert (seen.request, seen.given.ask, seen.given.hold) == (decided.id, True, [3])
    told, refused = results(crew, "termed")
    assert "Approved are all steps but 3. Do not begin 3" in told.content
    assert "The operator is asked before each of your writes" in told.content
    assert refused.is_error
    assert "the terms of your plan's approval leave you only read_file, write_file" in refused.content
    answers.approve(crew.team, question.id)
    assert crew.answer(hired).text == "done"
    assert made.read_text() == "hello"
    assert crew.wait_for("termed", "idle").status.terms is None
    (mail,) = [
        each.message for each in crew.events("termed") if isinstance(each, Sent) and each.message.type == "result"
    ]
    ended = "The terms of its plan ended with this result; step 3 of its plan is not approved and still open."
    assert mail.content == f"{ended}\n\ndone"
    offered = [{tool["name"] for tool in request["tools"]} for request in crew.model.asked_by("termed")]
    assert all("bash" in names for names in offered), "it is refused when it is called"
    assert ["web_search" in names for names in offered] == [True, False, False, False]
    assert all({"submit_plan", "send_message", "todo"} <= names for names in offered)

    sent = messages.send(crew.team, "termed", "once more")
    approve(crew, "termed")
    assert crew.answer_to("termed", sent.id).text == "second"
    again = results(crew, "termed")[-3:]
    assert "terms" not in again[0].content
    assert again[1].content == "ran\n[exit code 0]"
    assert (crew.root / "more.txt").exists(), "it need not ask"


@pytest.mark.both_stores("what was approved is read again")
def test_terms_survive_a_kill(shared_crew: Crew) -> None:
    crew = shared_crew
    crew.model.give("survivor", plan(), write("survivor.txt"), echo(), write("survivor.txt"), says("done"))
    hired = crew.hire("survivor", "code", "write it", plan=True, unsafe_no_sandbox=True)
    approve(crew, "survivor", Terms(ask=True, tools=["write_file"]))
    first = crew.pending("permission", "survivor")
    crew.kill("survivor")
    crew.wait_for("survivor", "crashed")
    hire.resume(crew.team, "survivor")
    for number in range(2):
        asked = crew.pending("permission", "survivor")
        assert number or asked.id == first.id
        answers.reject(crew.team, asked.id, "no")
    crew.answer(hired)
    assert not (crew.root / "survivor.txt").exists()
    assert "terms of your plan's approval leave you only write_file" in results(crew, "survivor")[2].content


@pytest.mark.long
def test_an_agents_approval_keeps_the_operators_terms(shared_crew: Crew) -> None:
    crew = shared_crew
    crew.model.give("bound", plan(), plan(), echo(), plan(), echo(), says("done"))
    hired = crew.hire("bound", "code", "write it", plan=True, unsafe_no_sandbox=True)
    approve(crew, "bound", Terms(tools=["read_file"]))
    second = crew.pending("plan_approval", "bound")
    requests.readdress(crew.directory, second.id, "lead")
    requests.respond(crew.directory, second.id, "approved", "lead", 1.0)
    approve(crew, "bound")
    crew.answer(hired)
    under_lead, under_operator = (each.content for each in results(crew, "bound") if each.name == "bash")
    assert "terms of your plan's approval" in under_lead
    assert under_operator.startswith("ran")


@pytest.mark.long
def test_the_budget_of_a_plan_ends_its_assignment_only(shared_crew: Crew) -> None:
    crew = shared_crew
    crew.model.give("frugal", calls("list_dir"), plan(), *looks(40))
    hired = crew.hire("frugal", "code", "write it", plan=True, unsafe_no_sandbox=True)
    request = crew.pending("plan_approval", "frugal")
    before = crew.see("frugal").status.tokens.total
    assert before > 4000
    answers.approve(crew.team, request.id, terms=Terms(budget=str(before)))
    answer = crew.answer(hired)
    assert answer.error == f"its approved budget of {before} tokens is used up"
    seen = crew.wait_for("frugal", "idle")
    assert seen.status.tokens.total >= 2 * before, "what it used before the approval does not count"
    assert (seen.status.terms, seen.limit) == (None, None)
    crew.model.give("frugal", says("second"))
    sent = messages.send(crew.team, "frugal", "go on")
    assert crew.answer_to("frugal", sent.id).text == "second", "the terms are over"


@pytest.fixture
def port() -> Iterator[int]:
    """Listen on a port of the loopback interface that commands in a sandbox do not reach."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_the_network_is_there_until_the_result(shared_crew: Crew, port: int) -> None:
    crew = shared_crew
    connect = calls("bash", command=f"(exec 3<>/dev/tcp/127.0.0.1/{port}) 2>/dev/null && echo through || echo closed")
    first, second = (calls("bash_output", handle=f"bash-1-{number}") for number in (1, 2))
    waits = calls("bash", command="echo up; sleep 3000", background=True)
    crew.model.give("netted", plan(), connect, waits, first, plan(), first, plan(), waits, says("done"))
    crew.model.give("netted", second, plan(), connect, says("second"))
    hired = crew.hire("netted", "test", "look", plan=True, unsafe_no_sandbox=True)
    approve(crew, "netted", Terms(network=True))
    approve(crew, "netted")
    approve(crew, "netted", Terms(network=True))
    crew.answer(hired)
    sent = messages.send(crew.team, "netted", "again")
    approve(crew, "netted")
    crew.answer_to("netted", sent.id)
    found = [each.content for each in results(crew, "netted") if each.name != "submit_plan"]
    reached, _, running, replaced, _, over, later = found
    assert reached.startswith("through")
    assert "bash-1-1 runs for" in running
    ended = "[ended: the approval that gave it the network is over]"
    assert replaced.endswith(f"[bash-1-1 has ended] {ended}"), "a later approval is without the network"
    assert over.endswith(f"[bash-1-2 has ended] {ended}"), "the result came"
    assert later.startswith("through" if crew.see("netted").unsafe else "closed")


# --------------------------------------------------------------------------------- what agents that it hires inherit


def under(team: Team, terms: Terms, *, used: int = 0) -> None:
    """Put the lead under terms."""
    given = TermsInForce(given=terms, request="plan-1", used_tokens=used)
    record = team.directory.agent("lead").status
    status = record.load()
    assert status is not None
    record.save(status.replace(terms=given))


def test_an_agent_under_terms_hires_no_agent_with_more(as_lead: Team) -> None:
    add(as_lead.directory, "lead", "lead", unsafe_no_sandbox=True, web=True)
    under(as_lead, Terms(ask=True, tools=["read_file", "glob", "grep", "list_dir", "spawn_agent"], network=True))
    with pytest.raises(UsageError, match="type code has bash, write_file, edit_file, mcp__\\*, which the terms"):
        hire.spawn(as_lead, hire.Hire("kid", "code", "write", flags=HireOptions(unsafe_no_sandbox=True)))
    hire.spawn(as_lead, hire.Hire("kid", "explore", "look", flags=HireOptions(network=True, web=True)))
    spec = as_lead.directory.agent("kid").spec.load()
    assert spec is not None
    assert (spec.flags.ask, spec.flags.network, spec.flags.web) == (True, False, False)


def test_agents_that_it_hires_draw_on_the_budget_of_its_plan(as_lead: Team) -> None:
    team = as_lead.directory
    add(team, "lead", "lead", spent=700)
    under(as_lead, Terms(budget="1k"), used=500)
    add(team, "kid", "code", by="lead", spent=600)
    add(team, "other", "code", spent=5000)
    assert roster.used_up(roster.budgets(team, "lead")) is None
    add(team, "kid", "code", by="lead", spent=900)
    assert roster.used_up(roster.budgets(team, "lead")) == "its approved budget of 1k tokens is used up"
    assert roster.used_up(roster.budgets(team, "kid")) == "lead's approved budget of 1k tokens is used up"
    assert hire.how_to_resume(as_lead, "kid").endswith("is used up; the result of that plan ends it")
    assert "resumes it" in hire.how_to_resume(as_lead, "lead"), "only the assignment ends with the budget of its plan"
    assert roster.used_up(roster.budgets(team, "other")) is None
    assert roster.spent(team, "lead", roster.Used(Tokens(input=700))).tokens.total == 1600


# ------------------------------------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("terms", "says"),
    [
        (Terms(tools=["bash", "fly"]), "fixer has no tool fly: name those that it keeps, of bash, read_file"),
        (Terms(tools=[]), "no tool is named"),
        (Terms(budget="much"), "'much' is not a budget"),
        (Terms(budget=""), "'' is not a budget"),
        (Terms(budget="$2"), "the price of claude-unheard-of is unknown"),
        (Terms(hold=[4]), "the plan has no step 4: its steps are 1 to 3"),
        (Terms(hold=[1, 2, 3]), "each step would be held"),
        (Terms(hold=[1, 2], refused=[3]), "each step would be held or refused"),
        (Terms(refused=[4]), "the plan has no step 4: its steps are 1 to 3"),
        (Terms(hold=[1, 2], refused=[2]), "step 2 is held and refused"),
    ],
)
def test_terms_that_do_not_fit_are_refused(as_lead: Team, terms: Terms, says: str) -> None:
    team = Team(as_lead.directory, environment={"ANTHROPIC_API_KEY": "k"})
    add(team.directory, "fixer", "code")
    agents.change_spec(
        team.directory.agent("fixer"), lambda old: (old or Spec("", "", "")).replace(model="claude-unheard-of")
    )
    with pytest.raises(UsageError, match=says):
        answers.check_terms(team, "fixer", PLAN, terms)
    with pytest.raises(UsageError, match="only the operator"):
        answers.check_terms(as_lead, "fixer", PLAN, Terms(ask=True))


def test_terms_that_change_nothing_are_none(as_lead: Team) -> None:
    team = Team(as_lead.directory, environment={})
    add(team.directory, "scout", "explore")
    everything = list(agent_types.TYPES["explore"].tools)
    assert answers.check_terms(team, "scout", PLAN, Terms(tools=everything)) is None
    add(team.directory, "surfer", "explore", web=True)
    assert answers.check_terms(team, "surfer", PLAN, Terms(tools=everything)) == Terms(tools=everything)
    assert answers.check_terms(team, "surfer", PLAN, Terms(tools=[*everything, *web.TOOLS])) is None
    with pytest.raises(UsageError, match="runs no commands"):
        answers.check_terms(team, "scout", PLAN, Terms(network=True))
    with pytest.raises(UsageError, match=r"no list of steps.*reject it with feedback, or approve it without --hold"):
        answers.check_terms(team, "scout", "do it", Terms(hold=[1]))


def test_terms_name_tools_of_mcp_servers_by_patterns(as_lead: Team) -> None:
    team = Team(as_lead.directory, environment={})
    add(team.directory, "fixer", "code")
    add(team.directory, "scout", "explore")
    terms = answers.check_terms(team, "fixer", PLAN, Terms(tools=["mcp__git__*", "bash"]))
    assert terms == Terms(tools=["bash", "mcp__git__*"])
    kept = [tool for tool in ("mcp__git__log", "mcp__time__now", "bash", "grep") if kept_by_terms(terms, tool)]
    assert kept == ["mcp__git__log", "bash"]
    with pytest.raises(UsageError, match="scout has no tool mcp__git__log"):
        answers.check_terms(team, "scout", PLAN, Terms(tools=["mcp__git__log"]))


def test_only_a_plan_is_approved_with_terms(as_lead: Team) -> None:
    team = as_lead.directory
    add(team, "fixer", "code")
    requests.ask(team, "ask-1", "permission", "fixer", "operator", {"tool": "bash"}, 1.0)
    with pytest.raises(BadDataError, match="only a plan is approved with terms"):
        requests.respond(team, "ask-1", "approved", "operator", 2.0, terms=Terms(ask=True))
    requests.ask(team, "plan-1", "plan_approval", "fixer", "lead", {"plan": PLAN}, 1.0)
    with pytest.raises(BadDataError, match="only by the operator"):
        requests.respond(team, "plan-1", "approved", "lead", 2.0, terms=Terms(ask=True))


# ------------------------------------------------------------------------------------------------ words and steps


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        (PLAN, {1: "write", 2: "check", 3: "publish"}),
        ("1) a\n   1. inner\n\ntext\n\n2) b  ", {1: "a", 2: "b"}),
        ("1. a\n```sh\n2. echo\n```\n2. b", {1: "a", 2: "b"}),
        ("~~~\n```\n1. x\n~~~\n1. a", {1: "a"}),
        ("1. a\n1. b", {}),
        ("## One\n1. a\n2. b\n## Two\n1. c", {}),
        ("2. a\n3. b", {}),
        ("- a\n- b", {}),
        ("1. a\u20282. b\n2. c\f3. d", {1: "a\u20282. b", 2: "c\f3. d"}),
        ("", {}),
    ],
)
def test_steps_are_the_numbered_list_of_a_plan(text: str, steps: dict[int, str]) -> None:
    assert steps_of(text) == steps


@pytest.mark.parametrize(
    ("terms", "words"),
    [
        (Terms(), ""),
        (Terms(budget="5"), "5 tokens"),
        (
            Terms(
                ask=True,
                tools=[t for t in agent_types.nameable_tools(agent_types.TYPES["code"]) if t != "bash"],
                budget="$2",
            ),
            "ask · no bash · $2",
        ),
        (Terms(tools=["read_file"], network=True, hold=[3, 5]), "tools read_file · network · holds 3, 5"),
        (Terms(hold=[3], refused=[1, 2]), "holds 3 · not 1, 2"),
    ],
)
def test_terms_are_described_on_one_line(terms: Terms, words: str) -> None:
    assert agent_types.describe_terms(terms, agent_types.TYPES["code"]) == words


# ------------------------------------------------------------------------------------------------ a verdict per step


def test_what_a_call_is_told_does_not_depend_on_the_id_of_a_rule() -> None:
    terms = Terms(hold=[1], refused=[2], denied=[StepNames(step=1, files=["a"]), StepNames(step=2, files=["b"])])
    # A rule of the operator may have any id.
    own = Rule(id="held step 1", effect="deny", tool="files", pattern="c")
    told = {"a": "Do not do it now, nor in", "b": "Do not do it in another way", "c": "the operator's rule held step 1"}
    for path, words in told.items():
        verdict = judge_call([own], "write_file", {"path": path}, "/team", terms)
        assert verdict is not None
        assert words in rule_refusal("write_file", verdict).content


STEPS = """# Rotate the keys

1. Add keys/ring.py, and run `pytest tests`.
2. settings.py: a list JWT_KEYS.

   Only there.
3. The table key_audit: `alembic upgrade head`, migrations/0042.py.
4. Clean up docs/, api/settings.py and keys/ring.py.
5. Tell the team.

The whole touches settings.py."""

NAMED: dict[str, JsonValue] = {
    "files": ["keys/ring.py", "api/settings.py", "migrations/0042.py", "docs"],
    "commands": ["pytest", "alembic upgrade head"],
}


@pytest.mark.parametrize(
    ("left_out", "denied"),
    [
        ({3}, [StepNames(step=3, files=["migrations/0042.py"], commands=["alembic upgrade head"])]),
        # What an approved step names as well stays allowed.
        ({4}, [StepNames(step=4, files=["docs"])]),
        ({2, 4}, [StepNames(step=2, files=["api/settings.py"]), StepNames(step=4, files=["api/settings.py", "docs"])]),
        ({1}, [StepNames(step=1, commands=["pytest tests"])]),
        ({5}, []),
        (set(), []),
    ],
)
def test_what_only_left_out_steps_name_is_denied(left_out: set[int], denied: list[StepNames]) -> None:
    assert denied_by_steps(STEPS, NAMED, "/team", left_out) == denied


@pytest.mark.parametrize(
    ("listed", "text", "denied"),
    [
        ("src/**", "src/**", []),
        ("src/*.py", "src/*.py", []),
        ("src/?.py", "src/?.py", []),
        ("**", "**all** of it", []),
        ("src/lib/**", "src/lib/**", ["src/lib"]),
        # A pattern names no folder as well.
        ("src/*.md", "src/*.md", ["src/*.md"]),
    ],
)
def test_a_pattern_denies_no_file_of_an_approved_step(listed: str, text: str, denied: list[str]) -> None:
    payload: dict[str, JsonValue] = {"files": ["src/a.py", listed]}
    found = denied_by_steps(f"1. Change src/a.py.\n2. Tidy {text}", payload, "/team", {2})
    assert [path for each in found for path in each.files] == denied
    terms = Terms(hold=[2], denied=found)
    judged = {
        path: judge_call([], "write_file", {"path": path}, "/team", terms) is not None
        for path in ("src/a.py", "src/lib/b.py", "src/c.md")
    }
    assert judged == {"src/a.py": False, "src/lib/b.py": "src/lib" in denied, "src/c.md": "src/*.md" in denied}


@pytest.mark.parametrize(
    ("text", "files", "commands"),
    [
        # A plan of an engine lists nothing: its words alone say what it names.
        ("add src/a.py, see https://a.b/c.html and Store.recent, e.g. now", ["src/a.py"], []),
        ("edit /team/src/a.py, not ../b.py nor /etc/c.conf", ["src/a.py"], []),
        ("`git push origin` and `def f(x)` and `make`", [], ["git push origin"]),
        ("`cd api && make` then `echo $HOME x`", [], []),
        ("mcp__time__now", [], ["mcp__time__now"]),
    ],
)
def test_a_step_names_what_can_only_be_a_file_or_a_command(text: str, files: list[str], commands: list[str]) -> None:
    payload: dict[str, JsonValue] = {"commands": ["mcp__time__now", "cd api && make"]}
    assert names_of_steps(f"1. {text}", payload, "/team")[1] == StepNames(step=1, files=files, commands=commands)


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("1. a\n   b\n\n   c\n2. d\ne\n\nf", {1: range(1, 5), 2: range(5, 7)}),
        ("1. a\n\n```\n\n2. b\n```", {1: range(1, 2)}),
        ("# x\n1. a\n  ```\n\nb\n  ```\n## y\nz", {1: range(2, 7)}),
        ("1. a\n   ```\n   x\n2. b", {1: range(1, 4), 2: range(4, 5)}),
        ("1. a\n```\n```python\n```\n2. b", {1: range(1, 5), 2: range(5, 6)}),
        ("1. a\n```\nx\n2. b", {}),
    ],
)
def test_a_step_ends_where_its_text_does(text: str, lines: dict[int, range]) -> None:
    assert step_lines(text) == lines


def test_held_and_refused_steps_are_kept_by_the_gate(shared_crew: Crew) -> None:
    crew = shared_crew
    tries = (
        write("kept/held.txt"),
        write("kept/./held.txt"),
        calls("bash", command="cd . && touch --ref=x made"),
        calls("bash", command="touch made"),
        write("open.txt"),
        calls("bash", command="touch $X"),
    )
    plan_of_steps = "1. write open.txt\n2. write kept/held.txt\n3. `touch made`, or `touch --ref=x made`"
    named = {"files": ["open.txt", "kept"], "commands": ["touch made"]}
    crew.model.give("keeper", calls("submit_plan", plan=plan_of_steps, **named), *tries, says("done"))
    hired = crew.hire("keeper", "code", "write it", plan=True, unsafe_no_sandbox=True)
    decided = approve(crew, "keeper", Terms(hold=[2], refused=[3]))
    assert decided.terms is not None
    assert decided.terms.denied == [
        StepNames(step=2, files=["kept/held.txt"]),
        StepNames(step=3, commands=["touch --ref=x made", "touch made"]),
    ]
    unclear = crew.pending("permission", "keeper")
    assert unclear.payload["rule"] == "refused step 3 may be about it: deny touch --ref=x made *"
    answers.reject(crew.team, unclear.id, "no")
    assert crew.answer(hired).text == "done"
    assert [name for name in ("kept/held.txt", "made", "open.txt") if (crew.root / name).exists()] == ["open.txt"]
    told, held, *others = (each for each in results(crew, "keeper"))
    assert "Approved are all steps but 2, 3. Do not begin 2, 3" in told.content
    assert "Not to be done at all: 3." in told.content
    assert "because only step 2 names it: kept/held.txt." in told.content
    assert "held step 2 of your plan is not approved, and only that step names kept/held.txt" in held.content
    assert [each.rule for each in (held, *others)][:4] == ["held step 2", "held step 2", *["refused step 3"] * 2]


# ------------------------------------------------------------------------------------------------ steps released later

TWO_HELD = "1. write a.txt\n2. write b.txt\n3. write c.txt"


def asks() -> Reply:
    return calls("ask_operator", question="go on?")


@pytest.mark.long
def test_a_released_step_can_be_done_and_no_other(shared_crew: Crew) -> None:
    crew = shared_crew
    tries = (write("b.txt"), asks(), write("b.txt"), write("c.txt"))
    named = calls("submit_plan", plan=TWO_HELD, files=["a.txt", "b.txt", "c.txt"])
    crew.model.give("freed", named, *tries, says("done"))
    hired = crew.hire("freed", "code", "write it", plan=True, unsafe_no_sandbox=True)
    decided = approve(crew, "freed", Terms(hold=[2, 3]))
    question = crew.pending("question", "freed")
    for _ in range(2):
        released = answers.release(crew.team, decided.id[:-2], [2])
        assert released.terms is not None
        assert (released.terms.hold, released.terms.released) == ([3], [2])
        assert released.terms.denied == [StepNames(step=3, files=["c.txt"])]
    answers.answer(crew.team, question.id, "yes")
    assert crew.answer(hired).text == "done"
    assert [(crew.root / name).exists() for name in ("b.txt", "c.txt")] == [True, False]
    told = [message for event in crew.events("freed") if isinstance(event, Intake) for message in event.messages]
    held, now, other = (each for each in results(crew, "freed") if each.name == "write_file")
    assert (held.rule, now.is_error, other.rule) == ("held step 2", False, "held step 3")
    (mail,) = (each for each in told if each.metadata.get("released") == [2])
    assert mail.content.startswith(f"Step 2 of your plan {decided.id}: I release it.")
    assert mail.content.endswith("Still held: 3.")
    gates = [event for event in crew.events("freed") if isinstance(event, Gate)]
    assert [gate.terms.given.hold for gate in gates if gate.terms is not None] == [[2, 3], [3]]
    acts = [act for act in operators.acts(crew.directory)[0] if act.target == "freed" and act.act == "release"]
    assert [act.detail for act in acts] == [f"{decided.id}, step 2"] * 2


def test_a_release_opens_no_closed_gate(shared_crew: Crew) -> None:
    crew = shared_crew
    again = calls("submit_plan", plan="1. write b.txt again")
    crew.model.give("shut", calls("submit_plan", plan=TWO_HELD), again, write("shut.txt"), says("done"))
    hired = crew.hire("shut", "code", "write it", plan=True, unsafe_no_sandbox=True)
    decided = approve(crew, "shut", Terms(hold=[2]))
    second = crew.pending("plan_approval", "shut")
    assert second.id != decided.id
    answers.release(crew.team, decided.id, [2])
    answers.reject(crew.team, second.id, "no")
    assert crew.answer(hired).text == "done"
    assert "not allowed before your plan is approved" in results(crew, "shut")[-1].content
    assert not (crew.root / "shut.txt").exists()
    # The status follows the answer.
    eventually(lambda: crew.see("shut").status.terms is None, "the end of its terms")
    with pytest.raises(BadDataError, match=r"is over, and its terms with it: `crewboard .*send shut 'Do step"):
        # The other step, because what was released stays so.
        answers.release(crew.team, approved_later(crew, decided).id, [3])


def approved_later(crew: Crew, request: Request) -> Request:
    """Let a plan hold a third step, as if it had been approved so."""
    assert request.terms is not None
    changed = request.replace(terms=request.terms.replace(hold=[3]))
    crew.directory.request(request.id).save(changed)
    return changed


@pytest.mark.parametrize(
    ("status", "terms", "says"),
    [
        ("pending", None, "plan plan-1 is pending, so no step of it is held; approve it, with --hold"),
        ("rejected", None, "plan plan-1 is rejected, so no step of it is held$"),
        ("approved", None, "step 2 of plan plan-1 is not held; none is held"),
        ("approved", Terms(hold=[3]), "step 2 of plan plan-1 is not held; held: 3"),
        ("approved", Terms(hold=[3], refused=[2]), "step 2 of plan plan-1 is not held; held: 3"),
    ],
)
def test_only_a_held_step_is_released(as_lead: Team, status: RequestStatus, terms: Terms | None, says: str) -> None:
    directory = as_lead.directory
    add(directory, "fixer", "code")
    requests.ask(directory, "plan-1", "plan_approval", "fixer", "operator", {"plan": TWO_HELD}, 1.0)
    if status != "pending":
        requests.respond(directory, "plan-1", status, "operator", 2.0, terms=terms)
    with pytest.raises((BadDataError, UsageError), match=says):
        answers.release(Team(directory, environment={}), "plan-1", [2])
    with pytest.raises(UsageError, match="only the operator"):
        answers.release(as_lead, "plan-1", [2])
    assert not [each for each in mailbox.read(directory, "fixer").messages if each.type == "message"]
