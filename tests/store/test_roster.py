"""The roster: each change applies to the present contents, and a damaged file is never overwritten."""

from typing import get_args

import pytest

from crewboard.errors import BadDataError, UsageError
from crewboard.records.base import Record
from crewboard.records.team import Config, Member, Rule, RuleEffect
from crewboard.store import roster
from crewboard.store.interface import Key
from crewboard.store.json_records import RecordKey
from crewboard.store.layout import TeamDirectory
from tests.bench import large


def names(team: TeamDirectory) -> list[str]:
    return [member.name for member in roster.load(team).members]


def test_a_team_is_created_once(tmp_path: object, directory: TeamDirectory) -> None:
    with pytest.raises(UsageError, match="the team default exists"):
        roster.create(directory, "again", 2.0)
    assert roster.load(directory).created_at == 1.0


def test_ensure_keeps_an_existing_team(directory: TeamDirectory) -> None:
    assert roster.ensure(directory, 2.0).created_at == 1.0
    directory.config.remove()
    assert roster.ensure(directory, 2.0) == Config(name="default", created_at=2.0)


def test_members_are_put_in_replaced_and_dropped_in_place(directory: TeamDirectory) -> None:
    for name in ("a", "b", "c"):
        roster.put(directory, Member(name=name, type="code"))
    roster.put(directory, Member(name="b", type="test"))
    assert names(directory) == ["a", "b", "c"]
    found = roster.load(directory).member("b")
    assert found is not None
    assert found.type == "test"
    roster.drop(directory, "a")
    roster.drop(directory, "missing")
    assert names(directory) == ["b", "c"]


def test_a_removed_agent_leaves_no_standing_permission(directory: TeamDirectory) -> None:
    roster.put(directory, Member(name="bob", type="code"))
    rules = [Rule(id=f"rule-{name}", agent=name, tool="bash", scope="ls") for name in ("bob", "ann")]
    roster.change(directory, lambda config: config.rules.extend(rules))
    roster.drop(directory, "bob")
    assert [rule.agent for rule in roster.load(directory).rules] == ["ann"]


def test_a_removed_agent_leaves_what_it_may_not_do(directory: TeamDirectory) -> None:
    roster.put(directory, Member(name="bob", type="code"))
    rules = [
        Rule(id=f"rule-{each}", effect=each, agent="bob", tool="bash", pattern="ls") for each in get_args(RuleEffect)
    ]
    roster.change(directory, lambda config: config.rules.extend(rules))
    roster.drop(directory, "bob")
    assert [rule.effect for rule in roster.load(directory).rules] == ["ask", "deny"]


def test_each_change_raises_the_revision(directory: TeamDirectory) -> None:
    before = roster.load(directory).rev
    assert roster.put(directory, Member(name="a", type="code")).rev == before + 1
    assert roster.load(directory).rev == before + 1


def test_a_missing_team_is_one_sentence(tmp_path: object, directory: TeamDirectory) -> None:
    nowhere = TeamDirectory(directory.path / "nowhere")
    with pytest.raises(UsageError, match="there is no team in"):
        roster.load(nowhere)
    directory.config.remove()
    with pytest.raises(UsageError, match="there is no team in"):
        roster.drop(directory, "a")


def test_a_damaged_roster_is_kept_and_its_last_good_state_used(directory: TeamDirectory) -> None:
    roster.put(directory, Member(name="a", type="code"))
    assert names(directory) == ["a"]
    directory.config.put(b'{"name": "default", "members": [{"name": "../x"')
    assert names(directory) == ["a"], "for those who have read it"
    with pytest.raises(BadDataError, match="is damaged"):
        roster.put(directory, Member(name="b", type="code"))
    assert (directory.config.get() or b"").startswith(b'{"name": "default", "members": [{"name": "../x"')


def test_a_roster_damaged_from_the_start_is_bad_data(directory: TeamDirectory) -> None:
    directory.config.put(b"\x00")
    with pytest.raises(BadDataError, match=r"config\.json is damaged"):
        roster.load(directory)
    with pytest.raises(BadDataError):
        roster.ensure(directory, 1.0)


def test_without_a_budget_no_other_agent_is_read(directory: TeamDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(5):
        large.enlist(directory, f"agent{number}")
    read: list[Key] = []
    load = RecordKey.load_or_none

    def noted(key: RecordKey[Record]) -> Record | None:
        read.append(key)
        return load(key)

    monkeypatch.setattr(RecordKey, "load_or_none", noted)
    assert roster.budgets(directory, "agent0", roster.Used()) == []
    assert read == [directory.agent("agent0").spec]
