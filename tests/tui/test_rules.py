"""The list of permission rules in the dashboard, with the calls that each decided."""

import pytest

from crewboard.commands import rules
from crewboard.records.events import ToolStart
from crewboard.records.team import Rule
from crewboard.store import journal, operators, roster
from tests.frozen import NOW, Frozen
from tests.tui.stage import opened


@pytest.fixture
def ruled(frozen: Frozen) -> Frozen:
    """Add three rules to the team, of which the first decided a call."""
    for rule in (
        Rule(id="rule-deny", effect="deny", tool="bash", pattern="git push*", at=NOW - 60, by="kim"),
        Rule(id="rule-ask", effect="ask", agent_type="code", tool="files", pattern="migrations/**", at=NOW),
        Rule(id="rule-allow", agent="parser", tool="bash", scope="pytest", at=NOW),
    ):
        roster.change(frozen.directory, lambda config, rule=rule: config.rules.append(rule))  # type: ignore[misc]
    hit(frozen, "rule-deny", NOW - 30)
    return frozen


def hit(frozen: Frozen, rule: str, at: float) -> None:
    event = ToolStart(ts=at, tool_use_id=f"t{at}", name="bash", input={}, rule=rule)
    journal.append(frozen.directory.agent("parser").journal, event)


@pytest.mark.parametrize("size", [(80, 24), pytest.param((120, 40), marks=pytest.mark.long)])
async def test_rules_are_listed_with_their_hits_which_are_live(ruled: Frozen, size: tuple[int, int]) -> None:
    async with opened(ruled, *size) as stage:
        await stage.press("9")
        await stage.sees("Permission rules · 3", "deny     1  15:03:52    no agent may use bash for git push*")
        await stage.sees("all agents of type code must ask before files for")
        await stage.sees("1 call, the last at 15:03:52", "kim")
        hit(ruled, "rule-deny", NOW)
        await stage.sees("deny     2  15:04:22", "2 calls, the last at 15:04:22")
        rules.add_rule(ruled.team, "ask", "bash", "make *")
        await stage.sees("Permission rules · 4")
        assert max(map(len, stage.text)) <= size[0]
        await stage.press("9", "escape")
        await stage.sees_not("Permission rules")


async def test_a_rule_is_revoked_with_a_key(ruled: Frozen) -> None:
    async with opened(ruled, 80, 24) as stage:
        await stage.press("9")
        await stage.sees("Permission rules · 3")
        assert "revoke" in stage.offered
        await stage.press("down", "delete")
        await stage.sees("revoked: all agents of type code must ask", "Permission rules · 2")
    assert [rule.id for rule in roster.load(ruled.directory).rules] == ["rule-deny", "rule-allow"]
    (act,) = [act for act in operators.acts(ruled.directory)[0] if act.act == "revoke"]
    assert act.detail == "rule-ask"


async def test_who_only_looks_cannot_revoke_a_rule(ruled: Frozen) -> None:
    async with opened(ruled, 80, 24, read_only=True) as stage:
        await stage.press("9")
        await stage.sees("Permission rules · 3")
        await stage.press("delete")
        await stage.settles()
    assert len(roster.load(ruled.directory).rules) == 3


@pytest.mark.long
async def test_without_rules_the_list_says_how_to_add_one(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.press("9")
        await stage.sees("no permission rules", "A on a permission adds one")
        await stage.press("delete")
        await stage.sees("revoke: select a rule first")


@pytest.mark.long
async def test_rules_are_found_by_their_words(ruled: Frozen) -> None:
    async with opened(ruled, 80, 24) as stage:
        await stage.press("9", "/")
        await stage.write("parser")
        await stage.press("enter")
        await stage.sees("Permission rules · 1", "parser may use bash for pytest without asking")


def test_usage_is_counted_from_what_was_appended(ruled: Frozen) -> None:
    reader = journal.RuleUsageReader(ruled.directory)
    assert reader.read()["rule-deny"] == journal.RuleUsage(1, NOW - 30)
    hit(ruled, "rule-deny", NOW)
    hit(ruled, "rule-ask", NOW)
    assert reader.read() == {"rule-deny": journal.RuleUsage(2, NOW), "rule-ask": journal.RuleUsage(1, NOW)}
    path = ruled.directory.agent("parser").journal
    path.on_disk.rename(path.on_disk.with_suffix(".old"))
    hit(ruled, "rule-ask", NOW)
    assert reader.read() == {"rule-ask": journal.RuleUsage(1, NOW)}
    path.on_disk.unlink()
    assert reader.read() == {}
