"""An agent on the API itself: streaming, thinking, tools, the prompt cache, and a resume. `make live` runs it.

`make test-long` runs the same on the offline model over HTTP, so that it is known to work without a key.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from crewboard import endpoint
from crewboard.commands import hire as hiring
from crewboard.commands import messages, settings
from crewboard.records.events import Opening, Reply
from crewboard_tui.cli.doctor import models_in_use
from tests.cli.shell import Inside
from tests.crew import Crew
from tests.model import ANY_AGENT, ModelServer, calls, says

MODEL = "claude-haiku-5-5"

MOST_USD = 0.50
"""The most that a run may cost. It takes about 60,000 tokens in, most from the cache: 2 cents at the dearer band."""

ANSWER_TIMEOUT = 300.0
"""Seconds in which the API must have answered an assignment."""

CHECKED = ("window", "call", "thinking", "caching", "usage")
"""The points that `doctor --online` checks of each model."""

FACTS = "\n".join(
    f"- Building {number} has {number * 37 % 101} rooms and stands in street {number * 13 % 29}."
    for number in range(500)
)
"""A text for the beginning of the conversation that is long enough for the cache of any model."""

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(params=[pytest.param("offline", marks=pytest.mark.long), pytest.param("api", marks=pytest.mark.live)])
def crew(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Crew]:
    """Make a team on the offline model, or on the API with the key of the environment, and a budget."""
    key, on_api = os.environ.get("ANTHROPIC_API_KEY", ""), {}
    if request.param == "api":
        if not key:
            pytest.skip(f"no key: set ANTHROPIC_API_KEY; this costs at most ${MOST_USD:.2f}")
        on_api = {"ANTHROPIC_API_KEY": key, "ANTHROPIC_BASE_URL": endpoint.base_url(os.environ)}
    with ModelServer() as model:
        made = Crew(tmp_path, model, **on_api)
        settings.set_budget(made.team, f"${MOST_USD:.2f}")
        yield made
        made.end()


def test_each_model_in_use_streams_thinks_and_calls_a_tool(crew: Crew) -> None:
    crew.model.give(ANY_AGENT, *[calls("glob", pattern="README*")] * 5)
    tried = Inside(crew.root, crew.environment)("doctor", "--online", "--json")
    found = {name: [check for check in tried.json if check["name"] == name] for name in CHECKED}
    # A model may keep only longer prompts in its cache.
    cached = found.pop("caching")
    assert any(check["mark"] == "ok" for check in cached), cached
    assert [check for checks in found.values() for check in checks if check["mark"] != "ok"] == []
    assert all("streamed" in check["detail"] for check in found["call"])
    assert {len(checks) for checks in found.values()} == {len(models_in_use(crew.team))}
    cost = [check["detail"] for check in tried.json if check["name"] == "cost"]
    assert all(float(each.partition(" ")[0].removeprefix("$")) <= MOST_USD / 2 for each in cost)


def test_an_agent_thinks_uses_tools_and_the_cache_and_is_resumed(crew: Crew) -> None:
    (crew.root / "CLAUDE.md").write_text(FACTS)
    (crew.root / "numbers.txt").write_text("4187\n7919\n")
    product = 4187 * 7919
    crew.model.give(
        "ann", calls("list_dir"), calls("read_file", path="numbers.txt"), says(f"{product}"), says(f"{product + 1}")
    )
    task = (
        "First call list_dir. When you have its result, call read_file for numbers.txt. Then multiply its two numbers "
        "step by step in your head, and answer with the digits of the product only."
    )
    first = crew.answer(crew.hire("ann", "explore", task, effort="high", thinking="adaptive"), ANSWER_TIMEOUT)
    assert (first.error, first.text.replace(",", "").strip()) == (None, f"{product}")
    before = [event for event in crew.events("ann") if isinstance(event, Reply)]
    blocks = [block for reply in before for block in reply.content]
    assert [block["name"] for block in blocks if block["type"] == "tool_use"] == ["list_dir", "read_file"]
    assert any(block.get("signature") for block in blocks if block["type"] == "thinking")
    assert all(reply.usage.cache_read for reply in before[1:]), "each request reads what the one before wrote"

    crew.wait_for("ann", "idle")
    crew.kill("ann")
    crew.wait_for("ann", "crashed")
    hiring.resume(crew.team, "ann")
    sent = messages.send(crew.team, "ann", "Add 1 to that product, and answer with the digits only.")
    second = crew.answer(hiring.Assignment("ann", sent.id, 0, fresh=False), ANSWER_TIMEOUT)
    assert (second.error, second.text.replace(",", "").strip()) == (None, f"{product + 1}")
    events = crew.events("ann")
    after = [event for event in events if isinstance(event, Reply)][len(before) :]
    assert after[0].usage.cache_read >= before[-1].usage.cache_read, (
        "the resumed conversation is the same, byte by byte"
    )
    missed = [
        reply.cache_miss for reply in (*before, *after) if reply.cache_miss is not None and reply.cache_miss.tokens
    ]
    assert not missed, "the API compared the requests, and found only appended messages"
    assert sum(isinstance(event, Opening) for event in events) == 1, "no thinking was refused or dropped"
    cost = crew.see("ann").status.cost_usd
    assert cost is not None
    assert cost <= MOST_USD
