"""The terms of an agent that another agent hires: never wider than those of its hirer, or those the operator set."""

import itertools
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from crewboard.commands import hire, hosts, settings
from crewboard.commands.context import Team
from crewboard.errors import UsageError
from crewboard.records.agents import HireOptions, Spec, Status, Tokens
from crewboard.records.base import convert
from crewboard.records.messages import Message
from crewboard.records.team import Member
from crewboard.store import agents, leases, mailbox, roster
from crewboard.store.layout import TeamDirectory
from crewboard.web import narrow
from tests.crew import Crew
from tests.model import calls, says

ENVIRONMENT = {"CREWBOARD_OFFLINE": "1", "CREWBOARD_SANDBOX": "none"}

RESTRICTING = {"plan", "strict_plan", "ask", "worktree"}
PERMITTING = {"network", "web", "unsafe_no_sandbox", "allow_hardlinks"}
LIMITING = {"max_turns", "budget", "max_memory", "allowed_domains"}
HARMLESS = {
    "window",
    "max_reply",
    "host",
    "needs",
    "start_from",
    "once",
    "autoclaim",
    "task",
    "restart",
    "base",
    "effort",
    "thinking",
}

OPTIONS = st.builds(
    HireOptions,
    plan=st.booleans(),
    strict_plan=st.booleans(),
    ask=st.booleans(),
    worktree=st.booleans(),
    network=st.booleans(),
    web=st.booleans(),
    allowed_domains=st.lists(st.sampled_from(["a.org", "docs.a.org", "b.org"])),
    unsafe_no_sandbox=st.booleans(),
    max_turns=st.integers(1, 200),
    budget=st.sampled_from([None, "50k", "$5"]),
    max_memory=st.none() | st.integers(1, 200),
)


def test_each_option_of_a_hire_is_known_to_the_rule_for_terms() -> None:
    assert set(HireOptions.__struct_fields__) == RESTRICTING | PERMITTING | LIMITING | HARMLESS


@given(asked=OPTIONS, hirer=OPTIONS, before=st.none() | OPTIONS)
def test_terms_are_never_wider_than_those_of_the_hirer_or_before(
    asked: HireOptions, hirer: HireOptions, before: HireOptions | None
) -> None:
    terms = hire.effective_terms(asked, hirer, before)
    for limit in [hirer] if before is None else [hirer, before]:
        assert all(getattr(terms, name) for name in RESTRICTING if getattr(limit, name))
        assert not any(getattr(terms, name) for name in PERMITTING if not getattr(limit, name))
        assert terms.max_turns <= limit.max_turns
        if terms.web and limit.allowed_domains:
            assert terms.allowed_domains
            inside = [(narrow([domain], limit.allowed_domains) or [""])[0] for domain in terms.allowed_domains]
            assert inside == terms.allowed_domains
        assert limit.max_memory is None or (terms.max_memory is not None and terms.max_memory <= limit.max_memory)
    if before is not None:
        assert terms.budget == before.budget or before.budget is None


def test_a_strict_plan_is_a_required_plan() -> None:
    assert HireOptions(strict_plan=True).plan


def test_what_only_reads_needs_no_plan_because_its_hirer_does() -> None:
    assert not hire.effective_terms(HireOptions(), HireOptions(plan=True), acts=False).plan


def add(team: TeamDirectory, name: str, kind: str, by: str = "operator", *, spent: int = 0, **flags: object) -> None:
    """Put an agent on the roster, with its spec and what it used."""
    roster.put(team, Member(name=name, type=kind))
    options = convert(flags, HireOptions)
    agents.change_spec(team.agent(name), lambda _: Spec(prompt="x", prompt_id="x", type=kind, flags=options, by=by))
    status = Status(run=1, pid=1, state="idle", since=0, tokens=Tokens(input=spent))
    team.agent(name).status.save(status)


@pytest.fixture
def as_lead(directory: TeamDirectory, monkeypatch: pytest.MonkeyPatch) -> Team:
    """Make a team on which `lead` gives the commands and no process is started."""
    monkeypatch.setattr(hosts, "start", lambda *_: None)
    # Each look at the clock comes so late that no start is under way any more.
    clock = itertools.count(1_000_000.0, 1000.0)
    return Team(directory, by="lead", environment=ENVIRONMENT, now=lambda: next(clock))


def flags_of(team: Team, name: str) -> HireOptions:
    spec = team.directory.agent(name).spec.load()
    assert spec is not None
    return spec.flags


def test_a_child_has_the_terms_of_its_lead(as_lead: Team) -> None:
    add(as_lead.directory, "lead", "lead", plan=True, ask=True, max_turns=7, unsafe_no_sandbox=True)
    asked = HireOptions(network=True, unsafe_no_sandbox=True)
    hire.spawn(as_lead, hire.Hire("kid", "code", "write", flags=asked))
    assert flags_of(as_lead, "kid") == HireOptions(plan=True, ask=True, max_turns=7, unsafe_no_sandbox=True)
    member = as_lead.config.member("kid")
    assert member is not None
    assert member.plan_required


@pytest.mark.both_stores("the next run has the terms of the last one")
def test_a_lead_cannot_take_off_what_the_operator_set(as_lead: Team) -> None:
    add(as_lead.directory, "lead", "lead", unsafe_no_sandbox=True, network=True)
    before = HireOptions(plan=True, ask=True, budget="50k", max_turns=3, unsafe_no_sandbox=True)
    add(as_lead.directory, "fixer", "code", **before.as_dict())
    asked = HireOptions(network=True, unsafe_no_sandbox=True)
    for _ in range(2):
        hire.spawn(as_lead, hire.Hire("fixer", "code", "write", flags=asked, given=frozenset()))
        assert flags_of(as_lead, "fixer") == before
    hire.spawn(replace(as_lead, by="operator"), hire.Hire("fixer", "code", "write", flags=asked))
    assert flags_of(as_lead, "fixer") == asked, "the operator may"


def test_only_the_operator_hires_a_lead(as_lead: Team) -> None:
    add(as_lead.directory, "lead", "lead", unsafe_no_sandbox=True)
    with pytest.raises(UsageError, match="only the operator hires an agent of type lead"):
        hire.spawn(as_lead, hire.Hire("second", "lead", "go", flags=HireOptions(unsafe_no_sandbox=True)))


def test_more_work_of_a_lead_that_needs_a_plan_needs_one_too(as_lead: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent was hired by the operator, without a plan, and idles."""
    add(as_lead.directory, "lead", "lead", plan=True, unsafe_no_sandbox=True)
    add(as_lead.directory, "idler", "code", unsafe_no_sandbox=True)
    monkeypatch.setattr(leases, "is_held", lambda *_: True)
    hire.spawn(as_lead, hire.Hire("idler", "code", "write", given=frozenset()))
    (mail,) = mailbox.read(as_lead.directory, "idler").messages
    assert mail.wants_plan


@pytest.mark.parametrize("name", ["operator", "lead", "all", "system", "Lead", "le\u0430d", "../x", "a\nb", ""])
def test_a_lead_hires_nothing_under_a_reserved_or_similar_name(as_lead: Team, name: str) -> None:
    add(as_lead.directory, "lead", "lead", unsafe_no_sandbox=True)
    with pytest.raises(UsageError):
        hire.spawn(as_lead, hire.Hire(name, "code", "write", flags=HireOptions(unsafe_no_sandbox=True)))
    assert as_lead.config.names == ["lead"]


def test_a_child_hired_again_still_draws_on_the_budget(as_lead: Team) -> None:
    add(as_lead.directory, "lead", "lead", budget="1k", unsafe_no_sandbox=True)
    add(as_lead.directory, "kid", "code", by="lead", spent=900, unsafe_no_sandbox=True)
    hire.spawn(as_lead, hire.Hire("kid", "code", "again", flags=HireOptions(budget="50k", unsafe_no_sandbox=True)))
    (share,) = [each for each in roster.budgets(as_lead.directory, "kid") if each.whose == "lead's"]
    assert share.share == pytest.approx(0.9)


def test_an_agent_hires_no_type_with_more_tools_than_its_own(directory: TeamDirectory) -> None:
    add(directory, "scout", "explore")
    with pytest.raises(UsageError, match="only the operator hires an agent of type code: it has bash"):
        hire.spawn(Team(directory, by="scout", environment=ENVIRONMENT), hire.Hire("kid", "code", "go"))


def test_children_draw_on_the_budget_of_their_lead(directory: TeamDirectory) -> None:
    add(directory, "lead", "lead", budget="1k", spent=400)
    add(directory, "a", "code", by="lead", spent=300)
    add(directory, "other", "code", spent=5000)
    assert roster.used_up(roster.budgets(directory, "a")) is None
    add(directory, "b", "code", by="lead", spent=300)
    assert roster.used_up(roster.budgets(directory, "a")) == "lead's budget of 1k tokens is used up"
    assert roster.used_up(roster.budgets(directory, "lead")) == "its budget of 1k tokens is used up"
    assert roster.used_up(roster.budgets(directory, "other")) is None


def test_a_budget_in_money_covers_children_with_a_price_only(as_lead: Team) -> None:
    add(as_lead.directory, "lead", "lead", budget="$1", unsafe_no_sandbox=True)
    priced = Team(as_lead.directory, "lead", {"ANTHROPIC_API_KEY": "k", "CREWBOARD_SANDBOX": "none"})
    with pytest.raises(UsageError, match="the price of claude-unheard-of is unknown"):
        hire.spawn(priced, hire.Hire("kid", "explore", "go", model="claude-unheard-of"))


def test_a_request_for_a_plan_closes_the_gate_whatever_its_author_is_called() -> None:
    mail = {"v": 1, "id": "a", "ts": 1, "from": "boss", "to": "kid", "type": "message", "content": "do it"}
    assert convert({**mail, "metadata": {"plan_required": True}}, Message).wants_plan
    assert not convert(mail, Message).wants_plan


def test_no_child_of_a_gated_lead_acts_before_its_plan_is_approved(crew_on: Callable[..., Crew]) -> None:
    spawn = calls("spawn_agent", name="kid", agent_type="code", prompt="write it", background=True)
    review = calls("review_plan", request_id="plan-1", approve=True)
    crew = crew_on(
        {"kid": [calls("write_file", path="early.txt", content="x"), says("no")], "lead": [spawn, review, says("ok")]}
    )
    settings.set_approver(crew.team, "lead")
    crew.run("lead", "lead", "have it written", plan=True, unsafe_no_sandbox=True)
    crew.wait_for("kid", "idle")
    assert not (crew.root / "early.txt").exists()
    assert "write_file is not allowed before your plan is approved" in str(crew.events("kid"))
    assert "review_plan is not allowed before your own plan is approved" in str(crew.events("lead"))
