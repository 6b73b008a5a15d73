"""The mailboxes that the operator reads, and the requests that only the operator can answer."""

from pathlib import Path

import pytest

from crewboard.errors import UsageError
from crewboard.names import is_operator_mailbox, mailboxes, operator_mailboxes, require_recipient
from crewboard.protocol import requests
from crewboard.records.team import Config, Member
from crewboard.store.layout import TeamDirectory


def _config(*names: str, lead_reviews: bool = False) -> Config:
    members = [Member(name=name, type="code") for name in names]
    return Config(name="t", members=members, plan_approver="lead" if lead_reviews else "operator")


def test_mail_can_go_to_the_operator_the_lead_and_agents() -> None:
    assert mailboxes(["a", "lead"]) == ["operator", "lead", "a"]
    assert mailboxes(["a"]) == ["operator", "lead", "a"]
    assert require_recipient("lead", ["a"]) == "lead"
    with pytest.raises(UsageError, match="no agent of this team is called 'b'; mail can go to operator, lead, a"):
        require_recipient("b", ["a"])


def test_the_operator_reads_the_mail_of_a_missing_lead() -> None:
    assert operator_mailboxes(["a"]) == {"operator", "lead"}
    assert operator_mailboxes(["a", "lead"]) == {"operator"}
    assert is_operator_mailbox("lead", ["a"])
    assert not is_operator_mailbox("a", ["a"])


def test_a_lead_of_another_name_sits_in_the_seat(tmp_path: Path) -> None:
    boss, worker = Member(name="boss", type="lead"), Member(name="a", type="code")
    config = Config(name="t", members=[worker, boss], plan_approver="lead")
    assert config.lead == config.recipient("lead") == "boss"
    assert config.reports_to("a") == "boss"
    assert config.reports_to("boss") == "operator"
    assert "boss" not in requests.only_operator_answers(config, TeamDirectory(tmp_path), lambda: True)
    assert "boss" in requests.only_operator_answers(config, TeamDirectory(tmp_path), lambda: False)


def test_the_agent_called_lead_comes_before_another_lead() -> None:
    members = [Member(name="boss", type="lead"), Member(name="lead", type="lead"), Member(name="a", type="code")]
    config = Config(name="t", members=members)
    assert (config.lead, config.reports_to("boss")) == ("lead", "lead")
    assert Config(name="t").lead == "lead"


@pytest.mark.parametrize(
    ("names", "lead_reviews", "alive", "expected"),
    [
        (("a",), False, False, {"operator", "lead"}),
        (("lead",), False, True, {"operator", "lead"}),
        (("lead",), True, False, {"operator", "lead"}),
        (("lead",), True, True, {"operator"}),
    ],
)
def test_the_operator_answers_for_a_lead_that_cannot(
    names: tuple[str, ...], lead_reviews: bool, alive: bool, expected: set[str], tmp_path: Path
) -> None:
    config = _config(*names, lead_reviews=lead_reviews)
    assert requests.only_operator_answers(config, TeamDirectory(tmp_path), lambda: alive) == expected
