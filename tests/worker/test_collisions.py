"""Agents that change the same file at the same time: what their workers show, and what the team's setting allows."""

from collections.abc import Callable, Iterator

import pytest

from crewboard.commands import answers, put_back, settings, stop
from crewboard.offline.reply import Reply
from crewboard.protocol import requests
from crewboard.readmodel.needs import summarise
from crewboard.readmodel.team import Need
from crewboard.records.agents import Work
from crewboard.records.events import ToolResult
from crewboard.records.requests import Request
from tests.crew import Crew, eventually
from tests.model import calls, says

ASKS = calls("ask_operator", question="go on?")
"""Keeps an assignment open until it is answered."""


def writes(path: str, text: str = "x\n") -> Reply:
    return calls("write_file", path=path, content=text)


def work_of(crew: Crew, name: str) -> Work:
    found = crew.see(name).status.work
    assert found is not None
    return found


def needs(crew: Crew, *names: str) -> list[Need]:
    """Return the collisions of these agents; other tests have their own."""
    return [need for need in crew.view().needs if need.kind == "collision" and need.agent in names]


def begin(crew: Crew, name: str, *replies: Reply) -> Request:
    """Hire an agent that does this, and return the question at which it then waits."""
    crew.model.give(name, *replies, ASKS, says("done"))
    crew.hire(name, "code", "work", unsafe_no_sandbox=True)
    return crew.pending("question", name)


def finish(crew: Crew, question: Request) -> None:
    answers.answer(crew.team, question.id, "yes")
    eventually(lambda: work_of(crew, question.from_).ended, f"{question.from_}'s result")
    # Its status tells the end of the work before the agent is idle.
    crew.wait_for(question.from_, "idle")


def results(crew: Crew, name: str) -> list[ToolResult]:
    return [event for event in crew.events(name) if isinstance(event, ToolResult)]


def test_two_agents_at_one_file_are_one_need_until_one_is_removed(shared_crew: Crew) -> None:
    (shared_crew.root / "own").mkdir()
    same = (calls("read_file", path="own/a.py"), writes(str(shared_crew.root / "own/a.py")), writes(".git/x"))
    amy = begin(shared_crew, "amy", writes("./own/a.py"), writes("only-amy.py"))
    assert list(work_of(shared_crew, "amy").files) == ["own/a.py", "only-amy.py"]
    assert needs(shared_crew, "amy", "bob") == []
    bob = begin(shared_crew, "bob", *same)
    (need,) = eventually(lambda: needs(shared_crew, "amy", "bob"), "the need")
    assert (need.agent, need.other, need.files) == ("amy", "bob", ("own/a.py",))
    finish(shared_crew, amy)
    finish(shared_crew, bob)
    assert needs(shared_crew, "amy", "bob") == [need], "it is there when you come back"
    shared_crew.kill("bob")
    shared_crew.wait_for("bob", "crashed")
    stop.remove(shared_crew.team, "bob")
    assert needs(shared_crew, "amy", "bob") == []


@pytest.mark.long
def test_work_that_is_done_collides_with_nothing_that_comes_later(shared_crew: Crew) -> None:
    finish(shared_crew, begin(shared_crew, "dan", writes("d.py")))
    begin(shared_crew, "eve", calls("read_file", path="d.py"), writes("d.py", "y\n"))
    assert list(work_of(shared_crew, "eve").files) == ["d.py"]
    assert needs(shared_crew, "dan", "eve") == []


@pytest.mark.long
@pytest.mark.both_stores("what was changed is read again")
def test_work_is_known_again_after_a_kill(shared_crew: Crew) -> None:
    begin(shared_crew, "fay", writes("f.py"))
    before = work_of(shared_crew, "fay")
    shared_crew.kill("fay")
    shared_crew.wait_for("fay", "crashed")
    assert work_of(shared_crew, "fay") == before


@pytest.mark.long
def test_files_that_no_tool_could_change_are_not_listed(shared_crew: Crew) -> None:
    (shared_crew.root / "gus").mkdir()
    begin(
        shared_crew,
        "gus",
        writes("../out.py"),
        writes("a\0b"),
        calls("edit_file", path="no", old_text="a", new_text="b"),
        calls("read_file", path="own"),
        calls("bash", command="echo x > gus/g.py"),
    )
    assert work_of(shared_crew, "gus").files == {}
    assert (shared_crew.root / "gus/g.py").exists()


@pytest.mark.long
def test_an_undo_ends_a_collision(shared_crew: Crew) -> None:
    hal = begin(shared_crew, "hal", writes("h.py", "1\n"))
    ivy = begin(shared_crew, "ivy", calls("read_file", path="h.py"), writes("h.py", "2\n"))
    assert len(needs(shared_crew, "hal")) == 1
    finish(shared_crew, hal)
    finish(shared_crew, ivy)
    shared_crew.wait_for("ivy", "idle")
    put_back.undo_file_tools(shared_crew.team, "ivy")
    assert needs(shared_crew, "hal") == []


Policy = Callable[[str], None]


@pytest.fixture
def policy(shared_crew: Crew) -> Iterator[Policy]:
    """Return a function that sets the team's setting; the tests of this module share one team."""
    yield lambda value: settings.change_setting(shared_crew.team, "collisions", value)
    settings.change_setting(shared_crew.team, "collisions", "warn")


@pytest.mark.long
def test_hold_asks_before_a_file_of_unfinished_work_is_changed(shared_crew: Crew, policy: Policy) -> None:
    policy("hold")
    kim = begin(shared_crew, "kim", writes("k.py", "kim\n"))
    shared_crew.model.give("lee", calls("read_file", path="k.py"), *(writes("k.py", f"lee {n}\n") for n in range(3)))
    shared_crew.model.give("lee", calls("write_file", path="lee.py", content="x\n"), ASKS, says("done"))
    shared_crew.hire("lee", "code", "work", unsafe_no_sandbox=True)
    asked = shared_crew.pending("permission", "lee")
    assert asked.payload["collision"] == "kim changed it in work that is not finished"
    assert "kim changed it" in summarise(asked)
    assert asked.payload["scope"] is None, "no rule is offered"
    assert (shared_crew.root / "k.py").read_text() == "kim\n"
    answers.reject(shared_crew.team, asked.id, "kim is at it")
    again = eventually(
        lambda: next((each for each in requests.pending(shared_crew.directory) if each.from_ == "lee"), None)
    )
    assert (shared_crew.root / "k.py").read_text() == "kim\n"
    answers.approve(shared_crew.team, again.id)
    lee = shared_crew.pending("question", "lee")
    assert (shared_crew.root / "k.py").read_text() == "lee 2\n", "asked once, not for each change"
    assert [each.is_error for each in results(shared_crew, "lee")] == [False, True, False, False, False]
    finish(shared_crew, kim)
    finish(shared_crew, lee)
    begin(shared_crew, "meg", calls("read_file", path="k.py"), writes("k.py", "meg\n"))
    assert (shared_crew.root / "k.py").read_text() == "meg\n", "finished work is not asked about"


def plan(shared_crew: Crew, name: str, files: list[str], *replies: Reply) -> tuple[Request, str]:
    """Let an agent carry out a plan, and return the question at which it waits, and what the approval said."""
    shared_crew.model.give(name, calls("submit_plan", plan="# Do it", files=files), *replies, ASKS, says("done"))
    shared_crew.hire(name, "code", "work", plan=True, unsafe_no_sandbox=True)
    asked = shared_crew.pending("plan_approval", name)
    said = "; ".join(answers.plan_overlaps(shared_crew.team, answers.approve(shared_crew.team, asked.id)))
    return shared_crew.pending("question", name), said


@pytest.mark.long
def test_claims_keep_the_files_of_a_plan_until_the_result(shared_crew: Crew, policy: Policy) -> None:
    policy("claims")
    ned, said = plan(shared_crew, "ned", ["n", "n.py"], writes("n/a.py", "ned\n"))
    assert said == ""
    refused = (writes("n/b.py"), writes(str(shared_crew.root / "n.py")))
    oda = begin(shared_crew, "oda", *refused, writes("o.py"), calls("bash", command="echo x > n/c.py"))
    first, second, free, command = results(shared_crew, "oda")
    assert first.content == (
        "write_file was not run: ned holds n/b.py until its result, because its approved plan names it. Change another "
        "file, ask ned with send_message, or tell lead."
    )
    assert (first.is_error, second.is_error, free.is_error, command.is_error) == (True, True, False, False)
    assert not (shared_crew.root / "n/b.py").exists()
    assert (shared_crew.root / "n/c.py").exists(), "a claim binds file tools alone"
    pia, said = plan(shared_crew, "pia", ["n/a.py"], calls("read_file", path="n/a.py"), writes("n/a.py", "pia\n"))
    assert said == "the approved plan of ned names n/a.py, too; ned holds them until its result"
    assert results(shared_crew, "pia")[-1].is_error
    finish(shared_crew, ned)
    finish(shared_crew, pia)
    finish(shared_crew, oda)
    begin(shared_crew, "quy", writes("n/b.py"))
    assert not results(shared_crew, "quy")[0].is_error


@pytest.mark.long
@pytest.mark.both_stores("two agents write at once")
def test_a_claim_that_is_made_while_an_agent_asks_binds_it(shared_crew: Crew, policy: Policy) -> None:
    policy("claims")
    shared_crew.model.give("rob", writes("r.py"), says("done"))
    shared_crew.hire("rob", "code", "work", ask=True, unsafe_no_sandbox=True)
    asked = shared_crew.pending("permission", "rob")
    plan(shared_crew, "sue", ["r.py"])
    answers.approve(shared_crew.team, asked.id)
    refused = eventually(lambda: results(shared_crew, "rob"))[0]
    assert refused.is_error
    assert "sue holds r.py" in refused.content
    assert not (shared_crew.root / "r.py").exists()


@pytest.mark.long
def test_a_lead_is_told_of_the_policy(shared_crew: Crew, policy: Policy) -> None:
    for value in ("warn", "hold", "claims"):
        policy(value)
        shared_crew.model.give(f"lead-{value}", calls("list_team"), says("done"))
        shared_crew.run(f"lead-{value}", "lead", "who is there?")
    listed = [results(shared_crew, f"lead-{value}")[0].content.splitlines()[-1] for value in ("warn", "hold", "claims")]
    assert listed[0].startswith("lead-warn"), "nothing to tell"
    assert listed[1].startswith("The operator is asked before")
    assert listed[2].startswith("The files that an approved plan names")
