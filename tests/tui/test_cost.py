"""The cost of each agent: the Cost view, and the same numbers in the status bar."""

import re

import pytest
from msgspec.structs import replace

from crewboard.readmodel import usage
from crewboard.readmodel.reader import TeamReader
from crewboard.readmodel.usage import (
    WINDOW,
    CallReader,
    Spending,
    SpendingReader,
    Spent,
    bill_agent,
    bill_team,
    hit_rate,
    rate,
    spending,
)
from crewboard.records.agents import HireOptions, Spec, Tokens
from crewboard.records.events import CacheMiss, Reply
from crewboard.store import agents, journal
from crewboard_tui.queries import PULSE, Readers, SpendingByMinute
from crewboard_tui.render.lines import plain
from crewboard_tui.views.cost import chart, pulse
from tests.frozen import NOW, Frozen
from tests.tui.stage import Stage, opened


def _unpriced(frozen: Frozen, name: str) -> None:
    path = frozen.directory.agent(name).status
    status = path.load()
    assert status is not None
    path.save(status.replace(cost_usd=None))


def _limit(frozen: Frozen, name: str, budget: str) -> None:
    def with_budget(spec: Spec | None) -> Spec:
        assert spec is not None
        return spec.replace(flags=HireOptions(budget=budget))

    agents.change_spec(frozen.directory.agent(name), with_budget)


def _limit_team(frozen: Frozen, budget: str) -> None:
    config = frozen.directory.config.load()
    assert config is not None
    frozen.directory.config.save(config.replace(budget=budget))


def _called(frozen: Frozen, name: str, ago: float, usd: float | None, miss: CacheMiss | None = None) -> None:
    used = Tokens(input=100)
    reply = Reply(ts=NOW - ago, run=1, content=[], stop_reason="end_turn", usage=used, cost_usd=usd, cache_miss=miss)
    journal.append(frozen.directory.agent(name).journal, reply)


def _hire_lone(frozen: Frozen) -> None:
    """Hire an agent that has called no model yet."""
    frozen.hire("lone", "code", "idle", "", ago=1, pid=4499)


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
        await stage.sees("83% of $10.00", "budget")
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
        await stage.turns_to("Vitals")


@pytest.mark.long
async def test_an_agents_cost_tab_says_where_its_tokens_went(frozen: Frozen) -> None:
    _limit(frozen, "api", "$1")
    _called(frozen, "api", 30, 0.04)
    async with opened(frozen, 80, 45) as stage:
        await stage.press("j", "j", "j", "j", "j", "enter", "[")
        await stage.turns_to("Vitals")
        await stage.sees("$0.93", "93% of $1.00 ▮", "▯ 44% of 200k", "184.8k  of these cached", "77%")
        await stage.sees("TOOK", "15:03:52", "$0.04")
        assert not any("changed" in line for line in stage.text if "$0.04" in line)
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
async def test_the_total_stays_below_however_long_the_list_is(frozen: Frozen) -> None:
    async with opened(frozen, 80, 14) as stage:
        await stage.press("7")
        await stage.sees("migrate", "TEAM", "$8.39")
        await stage.press("G")
        await stage.sees("reviewer", "TEAM", "⏎ open")
        await stage.press("enter")
        await stage.turns_to("Vitals")
        await stage.sees("reviewer")


@pytest.mark.long
async def test_the_view_says_how_long_the_budget_lasts(frozen: Frozen) -> None:
    _limit_team(frozen, "$10")
    async with opened(frozen, 120, 36) as stage:
        await stage.press("7")
        await stage.sees("Dollars per minute", "$8.39 · 83% of $10.00 · $", "/h over 10 min · lasts 6m")


def test_a_chart_holds_all_that_was_spent() -> None:
    minutes = {minute: Spent(usd, 1000) for minute, usd in ((100, 0.25), (160, 1.0), (161, 0.5), (400, 0.75))}
    for width, unit in ((120, "5 min"), (60, "10 min"), (36, "15 min")):
        top, *rows, axis = map(plain, chart(Spending(minutes), "$2.50", width, 4))
        assert f"Dollars per {unit} " in top
        assert "$2.50" in top
        assert "$1.50 ┤" in rows[0]
        assert {len(row) for row in rows} == {len(axis)}
    assert chart(Spending({}), "", 80, 4) == []
    assert chart(Spending(minutes), "", 35, 4) == []
    assert chart(Spending(minutes), "", 80, 0) == []


@pytest.mark.parametrize(("usd", "label"), [(150, "$150.00 ┤"), (12_000, "$12.0k ┤"), (0.004, "$0.0040 ┤")])
def test_bars_and_axis_meet_whatever_was_spent(usd: float, label: str) -> None:
    _, *rows, axis = map(plain, chart(Spending({7: Spent(usd, 10)}), "", 80, 4))
    assert label in rows[0]
    assert label not in rows[2]
    assert {row.index(sign) for row in rows for sign in "┤│" if sign in row} == {axis.index("┼")}


def test_a_chart_of_some_days_names_them() -> None:
    *_, axis = map(plain, chart(Spending({0: Spent(1, 1), 3 * 1440: Spent(1, 1)}, since=0), "", 80, 4))
    assert len(set(re.findall(r"[A-Z]\w\w \d\d:\d\d", axis))) == 3


def test_a_chart_says_from_when_on_it_knows_all() -> None:
    top, *_ = map(plain, chart(Spending({70: Spent(0, 41_200)}, since=61), "", 80, 4))
    assert re.search(r"Tokens per minute since \w\w\w \d\d:01 ─", top)


def test_the_pulse_is_of_the_last_minutes_and_moves_with_the_clock() -> None:
    spent = Spending({0: Spent(0, 9), 1000: Spent(0, 41_200), 1002: Spent(0, 500)}, since=0)
    for now, cells in ((1002 * 60 + 59, "█ ▁"), (1003 * 60, "█ ▁ ")):
        top, *rows, axis = map(plain, pulse(spent, now, 64, 4))
        assert "Pulse · tokens a minute, 53 min" in top
        assert "peak 41.2k" in top
        assert rows[-1].endswith(f"│{cells:>53}")
        assert len(rows[-1]) == len(axis)
    assert pulse(spent, (1002 + 53) * 60, 64, 4) == [], "at rest for longer than that"
    assert pulse(spent, 1002 * 60, 64, 0) == pulse(spent, 1002 * 60, 35, 4) == []
    wide = map(plain, pulse(replace(spent, since=1000), 1002 * 60, 200, 4))
    assert f"tokens a minute, {PULSE} min since " in next(wide)


def test_the_pulse_of_a_young_team_begins_with_its_first_call() -> None:
    spent = Spending({1000: Spent(0, 41_200), 1002: Spent(0, 500)})
    top, *rows, axis = map(plain, pulse(spent, 1002 * 60, 64, 4))
    assert "Pulse · tokens a minute, 5 min" in top
    assert rows[-1].endswith(f"│{'':20}{'█' * 10}{'':10}{'▁' * 10}")
    assert len(rows[-1]) == len(axis)
    top, *rows, axis = map(plain, pulse(spent, 1010 * 60, 64, 4))
    assert "Pulse · tokens a minute, 13 min" in top, "11 minutes, and what fills the room"
    assert len(rows[-1]) == len(axis)


def test_a_chart_of_calls_without_a_price_shows_tokens() -> None:
    top, first, *_ = map(plain, chart(Spending({7: Spent(0, 41_200)}), "", 80, 4))
    assert "Tokens per minute ─" in top
    assert "41.2k ┤" in first


@pytest.mark.long
async def test_without_prices_the_most_tokens_come_first(frozen: Frozen) -> None:
    for agent in frozen.directory.agents.iterdir():
        _unpriced(frozen, agent.name)
    async with opened(frozen, 170, 50) as stage:
        await stage.sees(" tokens ", "TEAM", "2.3M")
        await stage.press("7")
        await stage.sees(" tokens ", "tokens only", "2.3M tokens")
        order = ["migrate", "parser", "flaky-hunt", "api", "scan"]
        words = [word for line in stage.text[4:-2] for word in line.split()[1:3]]
        assert [word for word in words if word in order] == order


def test_minutes_that_are_not_wholly_known_are_left_out(frozen: Frozen, monkeypatch: pytest.MonkeyPatch) -> None:
    _hire_lone(frozen)
    for ago in range(3000, 0, -20):
        _called(frozen, "lone", ago, 0.01)
    agent = frozen.directory.agent("lone")
    whole = SpendingReader(agent)
    whole.read()
    assert sum(spent.usd for spent in spending([whole]).minutes.values()) == pytest.approx(1.5)
    monkeypatch.setattr(usage, "TAIL", 8000)
    part = SpendingReader(agent)
    part.read()
    found = spending([part])
    assert 0 < len(found.minutes) < len(whole.minutes) / 2
    assert found.since == min(found.minutes)
    assert found.minutes.items() <= whole.minutes.items(), "each minute is known wholly or not at all"
    assert spending([whole, part]).minutes.keys() == found.minutes.keys()
    few = SpendingReader(agent, 5)
    few.read()
    assert few.minutes.keys() == set(sorted(part.minutes)[-5:])


def test_the_minutes_are_the_same_until_another_call(frozen: Frozen) -> None:
    readers, query = Readers(frozen.directory, frozen.probe), SpendingByMinute()
    view = TeamReader(frozen.directory, clock=lambda: NOW, probe=frozen.probe).read()
    readers.note(view)
    before = query.read(readers, view)
    assert query.read(readers, view) is before
    _called(frozen, "ui", 1, 0.25)
    after = query.read(readers, view)
    spent = [sum(each.usd for each in found.minutes.values()) for found in (before, after)]
    assert spent[1] == pytest.approx(spent[0] + 0.25)


@pytest.mark.long
async def test_short_of_room_the_columns_that_matter_least_give_way(frozen: Frozen) -> None:
    _limit(frozen, "api", "$1")
    # The total of the tokens, a limit and its use stay the longest.
    for width, gone in ((80, {"cached", "written"}), (100, {"written"})):
        async with opened(frozen, width, 24) as stage:
            await stage.press("7")
            await stage.sees("cost⌄", " tokens ", " budget ", " used ", " ctx ")
            await stage.settles()
            assert {each for each in ("hit", "cached", "written") if f" {each} " not in stage.all} == gone


def test_the_rate_is_measured_over_calls_that_are_known(frozen: Frozen) -> None:
    _hire_lone(frozen)
    agent = frozen.directory.agent("lone")
    readers = [CallReader(agent), CallReader(agent, WINDOW)]
    assert [rate([reader], NOW) for reader in readers] == [None, None], "no call yet"
    for ago, usd in ((1200, 5.0), (300, 0.25), (100, 0.25)):
        _called(frozen, "lone", ago, usd)
    rates = [rate([reader], NOW) for reader in readers]
    assert rates == [3.0, 3.0], "50 cents in ten minutes; what was before does not count"
    assert [len(reader.calls) for reader in readers] == [3, 2]
    assert rate(readers, NOW) == 6.0
    later = [rate([reader], NOW + 250) for reader in readers]
    assert later == [3.0, 3.0]


def test_a_team_that_has_just_begun_has_no_rate(frozen: Frozen) -> None:
    _hire_lone(frozen)
    _called(frozen, "lone", 20, 0.25)
    assert rate([CallReader(frozen.directory.agent("lone"))], NOW) is None


async def test_a_price_table_that_cannot_be_read_is_named(frozen: Frozen) -> None:
    (frozen.directory.root / ".crewboard" / "prices.toml").write_bytes(b'as_of = "\xff"')
    async with opened(frozen, 80, 24) as stage:
        await stage.press("7")
        await stage.sees("TEAM", "cannot be used")


def test_a_call_without_a_price_makes_the_rate_unknown(frozen: Frozen) -> None:
    _hire_lone(frozen)
    _called(frozen, "lone", 300, 0.25)
    _called(frozen, "lone", 200, None)
    assert rate([CallReader(frozen.directory.agent("lone"))], NOW) is None


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


@pytest.mark.long
async def test_an_agent_with_the_web_is_marked_and_its_uses_are_shown(frozen: Frozen) -> None:
    def with_web(spec: Spec | None) -> Spec:
        assert spec is not None
        return spec.replace(flags=spec.flags.replace(web=True, allowed_domains=["docs.a.org"]))

    agents.change_spec(frozen.directory.agent("api"), with_web)
    path = frozen.directory.agent("api").status
    status = path.load()
    assert status is not None
    path.save(status.replace(tokens=status.tokens.replace(web_searches=3, web_fetches=1)))
    async with opened(frozen, 120, 36) as stage:
        await stage.sees(" web ")
        assert " 4 " in _row(stage, "api")
        await stage.press("7")
        await stage.sees("━ Cost ━", "$8.39 · ", " web ")
        await stage.press("/", *"api", "enter", "enter")
        await stage.sees("· web", "3  searches", "1  pages")
        await stage.press("[", "[", "[", "[")
        await stage.sees("only docs.a.org · 3 searches and 1 page")


@pytest.mark.long
async def test_the_painted_tokens_add_up_to_their_total(frozen: Frozen) -> None:
    """Each number is rounded to what is shown, so that the sum may differ in the last digit of its parts."""
    scale = {"": 1, "k": 1_000, "M": 1_000_000}

    def number(text: str) -> tuple[float, float]:
        found = re.fullmatch(r"~?([\d.]+)([kM]?)", text)
        assert found is not None, text
        return float(found[1]) * scale[found[2]], scale[found[2]] / 10 if "." in found[1] else 0

    def adds_up(total: str, parts: list[str]) -> bool:
        (whole, unsure), found = number(total), [number(each) for each in parts]
        return abs(whole - sum(each for each, _ in found)) <= unsure + sum(each for _, each in found)

    async with opened(frozen, 160, 40) as stage:
        await stage.press("7")
        await stage.sees(" tokens ", " cached ", " written ")
        await stage.settles()
        head = next(line for line in stage.text if " cached " in line)
        ends = {name: head.index(name) + len(name) for name in ("tokens", "in ", "out", "cached", "written")}
        ends["in "] -= 1
        for name in ("api", "ui", "TEAM"):
            row = _row(stage, name)
            cells = [row[:end].split()[-1] if row[end - 1] != " " else "0" for end in ends.values()]
            assert adds_up(cells[0], cells[1:]), row
        stage.app.open_agent("api")
        await stage.turns_to("Now")
        await stage.press("]", "]", "]", "]")
        await stage.turns_to("Vitals")
        await stage.sees("of these written")
        found = re.findall(r"([\d.]+[kM]?)  (?:total|of these (?:in|out|cached|written))", stage.all)
        assert len(found) == 5
        assert adds_up(found[0], found[1:])
