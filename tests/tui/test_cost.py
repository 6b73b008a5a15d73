"""The cost of each agent: the Cost view, and the same numbers in the status bar."""

import pytest

from crewboard.readmodel.reader import TeamReader
from crewboard.readmodel.usage import WINDOW, CallReader, bill_agent, bill_team, hit_rate, rate
from crewboard.records.agents import HireOptions, Spec, Status, Tokens
from crewboard.records.events import CacheMiss, Reply
from crewboard.records.team import Config
from crewboard.store import agents, journal, json_records
from tests.frozen import NOW, Frozen
from tests.tui.stage import Stage, opened


def _unpriced(frozen: Frozen, name: str) -> None:
    path = frozen.directory.agent(name).status
    status = json_records.load(path, Status)
    assert status is not None
    json_records.save(path, status.replace(cost_usd=None))


def _limit(frozen: Frozen, name: str, budget: str) -> None:
    def with_budget(spec: Spec | None) -> Spec:
        assert spec is not None
        return spec.replace(flags=HireOptions(budget=budget))

    agents.change_spec(frozen.directory.agent(name), with_budget)


def _limit_team(frozen: Frozen, budget: str) -> None:
    config = json_records.load(frozen.directory.config, Config)
    assert config is not None
    json_records.save(frozen.directory.config, config.replace(budget=budget))


def _called(frozen: Frozen, name: str, ago: float, usd: float | None, miss: CacheMiss | None = None) -> None:
    used = Tokens(input=100)
    reply = Reply(ts=NOW - ago, run=1, content=[], stop_reason="end_turn", usage=used, cost_usd=usd, cache_miss=miss)
    journal.append(frozen.directory.agent(name).journal, reply)


def _row(stage: Stage, name: str) -> str:
    return next(line for line in stage.text if f" {name} " in line)


async def test_seven_shows_the_costs_with_the_highest_first(frozen: Frozen) -> None:
    async with opened(frozen, 120, 36) as stage:
        await stage.press("7")
        await stage.sees("━ Cost ━", "$8.39 · ", "model", "cached", "hit", "price table of 2026-")
        assert stage.all.index("migrate") < stage.all.index("parser") < stage.all.index("TEAM")
        assert "77%" in _row(stage, "api"), "184.8k of 239.8k prompt tokens came from the cache"
        assert "44%" in _row(stage, "api")


async def test_a_model_without_a_price_is_never_free(frozen: Frozen) -> None:
    _unpriced(frozen, "migrate")
    async with opened(frozen, 120, 36) as stage:
        await stage.press("7")
        await stage.sees("$5.99+", "no price for some of the tokens")
        assert "$0" not in _row(stage, "migrate").replace("$0.", "")
        assert "66.8k" in _row(stage, "migrate")
        assert "$5.99+" in stage.part("strip")


@pytest.mark.long
@pytest.mark.parametrize("size", [(80, 24), pytest.param((40, 20), marks=pytest.mark.long)])
async def test_no_number_is_cut(frozen: Frozen, size: tuple[int, int]) -> None:
    _limit_team(frozen, "1k")
    async with opened(frozen, *size) as stage:
        await stage.press("7")
        await stage.sees("TEAM", ">999%", "used")
        await stage.settles()
        assert not [line for line in stage.text[3:-4] if "…" in line]


@pytest.mark.long
async def test_budgets_say_how_much_of_them_is_used(frozen: Frozen) -> None:
    _limit(frozen, "api", "$1")
    _limit_team(frozen, "$10")
    async with opened(frozen, 120, 36) as stage:
        await stage.press("7")
        await stage.sees("83% of the team's $10.00", "budget")
        assert "$1.00" in _row(stage, "api")
        assert "93%" in _row(stage, "api")


async def test_the_strip_shows_the_teams_budget(frozen: Frozen) -> None:
    _limit_team(frozen, "$10")
    async with opened(frozen, 140, 36) as stage:
        assert "$8.39 of $10.00 ▮▮▮▮▯" in stage.part("strip")


@pytest.mark.long
async def test_the_table_sorts_filters_and_opens_an_agent(frozen: Frozen) -> None:
    async with opened(frozen, 120, 36) as stage:
        await stage.press("7", "s")
        await stage.sees(" in⌄ ")
        await stage.press("S")
        await stage.until(lambda: stage.all.index("reviewer") < stage.all.index("migrate"), "the least first")
        await stage.press("/")
        await stage.write("a:api")
        await stage.press("enter")
        await stage.sees_not("migrate")
        await stage.sees("● api", "TEAM")
        await stage.press("g", "enter")
        await stage.sees("[Cost]")


@pytest.mark.long
async def test_an_agents_cost_tab_says_where_its_tokens_went(frozen: Frozen) -> None:
    _limit(frozen, "api", "$1")
    _called(frozen, "api", 30, 0.04)
    async with opened(frozen, 80, 24) as stage:
        await stage.press("j", "j", "j", "j", "j", "enter", "[")
        await stage.sees("[Cost]", "$0.93", "93% of $1.00 ▮", "44% of 200.0k ▮▮▮", "184.8k  from the cache", "77%")
        await stage.sees("TOOK", "15:03:52", "$0.04")
        assert "changed" not in stage.all
        _called(frozen, "api", 20, 0.05, CacheMiss(reason="previous_message_not_found"))
        _called(frozen, "api", 10, 0.06, CacheMiss(reason="tools_changed", tokens=12_345))
        await stage.sees("$0.06  tools changed", "$0.05")
        assert "not found" not in stage.all, "that it did not compare says nothing of the cache"


@pytest.mark.long
async def test_the_cost_tab_names_no_price_where_none_is_known(frozen: Frozen) -> None:
    _unpriced(frozen, "api")
    async with opened(frozen, 80, 24) as stage:
        await stage.press("j", "j", "j", "j", "j", "enter", "[")
        await stage.sees("tokens only: the offline model is not priced")


@pytest.mark.long
async def test_a_team_without_money_says_why_beside_the_price_table(frozen: Frozen) -> None:
    for agent in frozen.directory.agents.iterdir():
        _unpriced(frozen, agent.name)
    async with opened(frozen, 80, 24) as stage:
        await stage.press("7")
        await stage.sees("tokens only: the offline model is not priced", "price table of 2026-")
    frozen.probe.offline = False
    async with opened(frozen, 80, 24) as stage:
        await stage.press("7")
        await stage.sees("tokens only: these models are not priced")


@pytest.mark.long
async def test_the_teams_row_opens_nothing(frozen: Frozen) -> None:
    async with opened(frozen, 120, 36) as stage:
        await stage.press("7", "G")
        await stage.until(lambda: "⏎ open" not in stage.offered, "no open key")


@pytest.mark.long
async def test_short_of_room_the_columns_that_matter_least_give_way(frozen: Frozen) -> None:
    _limit(frozen, "api", "$1")
    async with opened(frozen, 80, 24) as stage:
        await stage.press("7")
        await stage.sees("cached", "hit", "cost⌄", "budget", "used", "ctx")
        assert " written " not in stage.all


def test_the_rate_is_measured_over_calls_that_are_known(frozen: Frozen) -> None:
    agent = frozen.directory.agent("ui")
    readers = [CallReader(agent), CallReader(agent, WINDOW)]
    assert [rate([reader], NOW) for reader in readers] == [None, None], "no call yet"
    for ago, usd in ((1200, 5.0), (300, 0.25), (100, 0.25)):
        _called(frozen, "ui", ago, usd)
    rates = [rate([reader], NOW) for reader in readers]
    assert rates == [3.0, 3.0], "50 cents in ten minutes; what was before does not count"
    assert [len(reader.calls) for reader in readers] == [3, 2]
    assert rate(readers, NOW) == 6.0
    later = [rate([reader], NOW + 250) for reader in readers]
    assert later == [3.0, 3.0]


def test_a_team_that_has_just_begun_has_no_rate(frozen: Frozen) -> None:
    _called(frozen, "ui", 20, 0.25)
    assert rate([CallReader(frozen.directory.agent("ui"))], NOW) is None


async def test_a_price_table_that_cannot_be_read_is_named(frozen: Frozen) -> None:
    (frozen.directory.root / ".crewboard" / "prices.toml").write_bytes(b'as_of = "\xff"')
    async with opened(frozen, 80, 24) as stage:
        await stage.press("7")
        await stage.sees("TEAM", "cannot be used")


def test_a_call_without_a_price_makes_the_rate_unknown(frozen: Frozen) -> None:
    _called(frozen, "ui", 300, 0.25)
    _called(frozen, "ui", 200, None)
    assert rate([CallReader(frozen.directory.agent("ui"))], NOW) is None


def test_a_money_budget_has_no_share_without_a_price(frozen: Frozen) -> None:
    _unpriced(frozen, "api")
    _limit(frozen, "api", "$1")
    _limit_team(frozen, "2m")
    view = TeamReader(frozen.directory, clock=lambda: NOW, probe=frozen.probe).read()
    agent = view.agent("api")
    assert agent is not None
    assert bill_agent(agent).share is None
    assert bill_team(view).share is not None, "tokens can be counted whatever they cost"


def test_the_hit_rate_is_of_the_whole_prompt() -> None:
    assert hit_rate(Tokens()) is None
    assert hit_rate(Tokens(input=20, cache_read=75, cache_write=5, output=1000)) == 0.75


async def test_an_agent_with_the_web_is_marked_and_its_uses_are_shown(frozen: Frozen) -> None:
    def with_web(spec: Spec | None) -> Spec:
        assert spec is not None
        return spec.replace(flags=spec.flags.replace(web=True, allowed_domains=["docs.a.org"]))

    agents.change_spec(frozen.directory.agent("api"), with_web)
    path = frozen.directory.agent("api").status
    status = json_records.load(path, Status)
    assert status is not None
    json_records.save(path, status.replace(tokens=status.tokens.replace(web_searches=3, web_fetches=1)))
    async with opened(frozen, 120, 36) as stage:
        await stage.sees(" web ")
        assert " 4 " in _row(stage, "api")
        await stage.press("7")
        await stage.sees("━ Cost ━", "$8.39 · ", " web ")
        await stage.press("/", *"api", "enter", "enter")
        await stage.sees("· web", "3  searches", "1  pages")
        await stage.press("[", "[", "[", "[", "[", "[")
        await stage.sees("only docs.a.org · 3 searches and 1 page")
