"""Explorers of a code agent: a process of its own that reads for it, within its limits, and ends with it."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from types import SimpleNamespace

import pytest

from crewboard.commands import answers, control, hire, hosts, settings, stop
from crewboard.commands.context import Team
from crewboard.errors import LimitError, TryLaterError, UsageError
from crewboard.offline.reply import Reply
from crewboard.records.agents import Status
from crewboard.records.events import ToolResult
from crewboard.store import leases, mailbox
from crewboard.store.layout import TeamDirectory
from crewboard.worker.tools import team as team_tools
from crewboard.worker.tools.base import Outcome
from tests.crew import Crew, eventually
from tests.model import calls, says
from tests.worker.test_terms import add
from tests.worktrees.home import make_repository

Make = Callable[..., Crew]

SEND = calls("send_explorer", question="where is it?")
EXPLORER = "ann-explorer-1"

of_calls = pytest.mark.files_only("which calls of a reply run when, no store knows")


def result(crew: Crew) -> ToolResult:
    return next(event for event in crew.events("ann") if isinstance(event, ToolResult) and event.name != "read_file")


@pytest.mark.long
@of_calls
def test_an_explorers_report_is_the_tools_result(crew_on: Make) -> None:
    crew = crew_on({"ann": [SEND, says("found")], EXPLORER: [calls("read_file", path="a.txt"), says("in a.txt")]})
    (crew.root / "a.txt").write_text("it\n")
    assert crew.run("ann", "code", "find it", unsafe_no_sandbox=True).text == "found"
    assert result(crew).content == f"{EXPLORER}: in a.txt"
    crew.wait_for(EXPLORER, "exited")
    first, *_ = crew.model.asked_by("ann")
    assert "send_explorer" in [tool["name"] for tool in first["tools"]]
    asked, *_ = crew.model.asked_by(EXPLORER)
    assert {"send_explorer", "write_file", "bash"}.isdisjoint(tool["name"] for tool in asked["tools"])
    assert "You report to ann." in str(asked["system"])
    told = [message for message in mailbox.read(crew.directory, "lead").messages if EXPLORER in message.content]
    assert told == [], "it concerns its agent alone"
    with pytest.raises(UsageError, match="resume ann"):
        hire.resume(crew.team, EXPLORER)


OTHER = "ann-explorer-2"
ASKS = calls("ask_operator", question="which one?")
BOTH = Reply([*SEND.content, *calls("send_explorer", question="and why?").content])


def reports(crew: Crew) -> list[tuple[str, bool]]:
    return [(event.content, event.is_error) for event in crew.events("ann") if isinstance(event, ToolResult)]


@of_calls
def test_two_explorers_of_one_reply_search_at_the_same_time(crew_on: Make) -> None:
    crew = crew_on({"ann": [BOTH, says("found")], EXPLORER: [ASKS, says("here")], OTHER: [ASKS, says("so")]})
    hired = crew.hire("ann", "code", "find it", unsafe_no_sandbox=True)
    # Each waits for its answer: one after the other, the second would never ask.
    first, second = (crew.pending("question", name) for name in (EXPLORER, OTHER))
    answers.answer(crew.team, second.id, "that")
    eventually(lambda: not leases.is_held(crew.agent(OTHER).lease), "the end of the second")
    assert reports(crew) == [], "the results stand in the order of the calls"
    answers.answer(crew.team, first.id, "this")
    assert crew.answer(hired).text == "found"
    assert reports(crew) == [(f"{EXPLORER}: here", False), (f"{OTHER}: so", False)]


@pytest.mark.long
@of_calls
def test_a_third_explorer_of_one_reply_waits_for_the_first_two(crew_on: Make) -> None:
    three = Reply([*BOTH.content, *calls("send_explorer", question="and when?").content])
    crew = crew_on({"ann": [three, says("found")], EXPLORER: [says("a"), says("c")], OTHER: [says("b"), says("c")]})
    assert crew.run("ann", "code", "find it", unsafe_no_sandbox=True).text == "found"
    assert [(text[-1], is_error) for text, is_error in reports(crew)] == [("a", False), ("b", False), ("c", False)]


@pytest.mark.long
def test_an_interrupt_lets_both_explorers_report_by_mail(crew_on: Make) -> None:
    crew = crew_on({"ann": [BOTH, says("read")], EXPLORER: [ASKS, says("here")], OTHER: [ASKS, says("so")]})
    hired = crew.hire("ann", "code", "find it", unsafe_no_sandbox=True)
    asked = [crew.pending("question", name) for name in (EXPLORER, OTHER)]
    control.interrupt(crew.team, "ann", "do not wait")
    assert crew.answer(hired).text == "read"
    for name in (EXPLORER, OTHER):
        spec = crew.agent(name).spec.load()
        assert spec is not None
        assert not spec.foreground
    assert all("interrupted before it ended" in text for text, _ in reports(crew))
    for request in asked:
        answers.answer(crew.team, request.id, "this")

    def have_reported() -> bool:
        return {EXPLORER, OTHER} <= {each.from_ for each in mailbox.read(crew.directory, "ann").messages}

    eventually(have_reported, "both reports")


@pytest.mark.long
def test_a_report_outlives_a_kill_before_that_of_the_first(crew_on: Make) -> None:
    crew = crew_on({"ann": [BOTH, says("found")], EXPLORER: [ASKS, says("here")], OTHER: [ASKS, says("so")]})
    hired = crew.hire("ann", "code", "find it", unsafe_no_sandbox=True)
    _, second = (crew.pending("question", name) for name in (EXPLORER, OTHER))
    answers.answer(crew.team, second.id, "that")
    eventually(lambda: not leases.is_held(crew.agent(OTHER).lease), "the end of the second")
    crew.kill("ann")
    crew.wait_for("ann", "crashed")
    hire.resume(crew.team, "ann")
    assert crew.answer(hired).text == "found"
    (first, was_lost), report = reports(crew)
    assert was_lost
    assert first.startswith(f"{EXPLORER} ended without an answer")
    assert report == (f"{OTHER}: so", False)


@pytest.mark.long
@of_calls
def test_with_caps_explorers_run_one_after_the_other(crew_on: Make) -> None:
    crew = crew_on({"ann": [BOTH, says("found")], EXPLORER: [says("a"), says("b")], OTHER: [says("b")]})
    settings.change_setting(crew.team.ensure(), "max_agents", "2")
    assert crew.run("ann", "code", "find it", unsafe_no_sandbox=True).text == "found"
    assert [(text[-1], is_error) for text, is_error in reports(crew)] == [("a", False), ("b", False)]


@pytest.mark.long
@of_calls
def test_where_one_may_work_an_explorer_works_while_its_agent_waits(crew_on: Make) -> None:
    crew = crew_on({"ann": [BOTH, says("found")], EXPLORER: [ASKS, says("a"), says("b")], OTHER: [says("b")]})
    settings.change_setting(crew.team.ensure(), "max_working", "1")
    hired = crew.hire("ann", "code", "find it", unsafe_no_sandbox=True)
    asked = crew.pending("question", EXPLORER)
    assert crew.see("ann").state == "waiting"
    answers.answer(crew.team, asked.id, "this")
    assert crew.answer(hired).text == "found"
    assert [(text[-1], is_error) for text, is_error in reports(crew)] == [("a", False), ("b", False)]


@pytest.mark.long
@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_an_explorer_ends_with_its_agent(crew_on: Make, how: str) -> None:
    crew = crew_on({"ann": [SEND], EXPLORER: [calls("ask_operator", question="which one?")]})
    crew.hire("ann", "code", "find it", unsafe_no_sandbox=True)
    eventually(lambda: crew.team.config.member(EXPLORER), "the explorer")
    crew.pending("question", EXPLORER)
    if how == "killed":
        crew.kill("ann")
    else:
        stop.stop_now(crew.team, "ann")
    eventually(lambda: not leases.is_held(crew.agent(EXPLORER).lease), "the end of the explorer")
    eventually(lambda: (ended := crew.agent(EXPLORER).exit.load()) and ended.reason == "shutdown", "its record")
    assert EXPLORER not in hire.resume_all(crew.team)[0]


@of_calls
@pytest.mark.long
def test_an_explorer_reads_its_agents_worktree(crew_on: Make) -> None:
    reads = calls("read_file", path="new.txt")
    write = calls("write_file", path="new.txt", content="only here\n")
    crew = crew_on({"ann": [write, SEND, says("found")], EXPLORER: [reads, says("read")]})
    make_repository(crew.root)
    crew.run("ann", "code", "find it", worktree=True, unsafe_no_sandbox=True)
    read = next(event for event in crew.events(EXPLORER) if isinstance(event, ToolResult))
    assert "only here" in read.content


@pytest.fixture
def as_ann(directory: TeamDirectory, monkeypatch: pytest.MonkeyPatch) -> Team:
    """Make a team on which `ann`, of type code, gives the commands and no process is started."""
    monkeypatch.setattr(hosts, "start", lambda *_: None)
    add(directory, "ann", "code", unsafe_no_sandbox=True)
    add(directory, "bob", "code")
    environment = {"ANTHROPIC_API_KEY": "k", "ANTHROPIC_BASE_URL": "http://127.0.0.1:9", "CREWBOARD_SANDBOX": "none"}
    return Team(directory, by="ann", environment=environment, now=lambda: 1000.0)


def test_an_agent_has_at_most_two_explorers_at_once(as_ann: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hire, "EXPLORER_ENDS_WITHIN", 0)
    sent = [hire.send_explorer(as_ann, "where?", each) for each in ("q1", "q2", "q1")]
    assert [each.agent for each in sent] == [EXPLORER, "ann-explorer-2", EXPLORER], "the same call is not done twice"
    with pytest.raises(TryLaterError, match="you have 2 explorers at work"):
        hire.send_explorer(as_ann, "where?", "q3")
    assert as_ann.config.names == ["ann", EXPLORER, "ann-explorer-2", "bob"], "they stand below their agent"
    spec = as_ann.directory.agent(EXPLORER).spec.load()
    assert spec is not None
    assert (spec.type, spec.by, spec.parent, spec.flags.once) == ("explore", "ann", "ann", True)


def test_two_explorers_sent_at_once_have_names_of_their_own(as_ann: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    sending, chosen = asyncio.Lock(), list[str]()
    monkeypatch.setattr(team_tools, "_SENDING", sending)

    def choose(_: Team, name: str, *__: object, **___: object) -> None:
        """Hold the first hire, which has its name, until the other one has one as well or waits for the first."""
        chosen.append(name)
        eventually(lambda: len(chosen) == 2 or sending._waiters, "the other hire")

    async def name_of(_: object, assignment: hire.Assignment) -> Outcome:
        return Outcome(assignment.agent)

    monkeypatch.setattr(hosts, "require_no_wait", choose)
    monkeypatch.setattr(team_tools, "_wait_for_agent", name_of)

    async def run(work: Awaitable[hire.Assignment]) -> hire.Assignment:
        return await work

    async def send(call: str) -> Outcome:
        context = SimpleNamespace(
            name="ann", tool_use_id=call, team=as_ann.directory, environment=as_ann.environment, now=as_ann.now,
            interrupts=SimpleNamespace(run_interruptibly=run),
        )  # fmt: skip
        return await team_tools.send_explorer.run(context, team_tools.SendExplorer(question="where?"))  # type: ignore[arg-type]

    async def send_both() -> tuple[Outcome, Outcome]:
        return await asyncio.gather(send("a"), send("b"))

    assert [sent.content for sent in asyncio.run(send_both())] == [EXPLORER, OTHER]


def test_a_third_explorer_waits_for_one_that_is_ending(as_ann: Team) -> None:
    for each in ("q1", "q2"):
        hire.send_explorer(as_ann, "where?", each)
    # At the first look at both they may still be starting, and later no more.
    times = itertools.chain([1000.0] * 2, itertools.repeat(9000.0))
    later = Team(as_ann.directory, by="ann", environment=as_ann.environment, now=lambda: next(times))
    assert hire.send_explorer(later, "where?", "q3").agent == EXPLORER


def test_an_explorer_sends_no_explorer(as_ann: Team) -> None:
    hire.send_explorer(as_ann, "where?", "q1")
    deeper = Team(as_ann.directory, by=EXPLORER, environment=as_ann.environment, now=as_ann.now)
    with pytest.raises(UsageError, match="is an explorer itself"):
        hire.send_explorer(deeper, "where?", "q2")


def test_an_explorer_takes_no_place_beyond_the_cap(as_ann: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.change_setting(Team(as_ann.directory), "max_agents", "1")
    monkeypatch.setattr(leases, "is_held", lambda lease: lease == as_ann.directory.agent("ann").lease)
    with pytest.raises(TryLaterError, match="max_agents 1 reached"):
        hire.send_explorer(as_ann, "where?", "q1")


def test_an_agent_that_waits_for_its_explorer_is_not_at_work(as_ann: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.change_setting(Team(as_ann.directory), "max_working", "1")
    both = [as_ann.directory.agent(name) for name in ("ann", "bob")]
    for agent in both:
        agent.status.save(Status(run=1, pid=1, state="working", since=0))
    at_work = {agent.lease for agent in both}
    monkeypatch.setattr(leases, "is_held", lambda lease: lease in at_work)
    with pytest.raises(TryLaterError, match="max_working 1 reached"):
        hire.send_explorer(as_ann, "where?", "q1")
    at_work.discard(both[1].lease)
    assert hire.send_explorer(as_ann, "where?", "q1").agent == EXPLORER


def test_an_explorer_draws_on_its_agents_budget(as_ann: Team) -> None:
    add(as_ann.directory, "ann", "code", spent=500, budget="1000", unsafe_no_sandbox=True)
    hire.send_explorer(as_ann, "where?", "q1")
    add(as_ann.directory, "ann", "code", spent=1000, budget="1000", unsafe_no_sandbox=True)
    with pytest.raises(LimitError, match="its budget of 1k tokens is used up"):
        hire.send_explorer(as_ann, "where?", "q2")
