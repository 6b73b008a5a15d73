"""The page of one agent: mail in both directions, what it did, its process."""

from tests.frozen import Frozen
from tests.tui.stage import Stage, opened

TABS = ("Now", "Mail", "Transcript", "Tasks", "Files", "Process", "Cost")


async def _open(stage: Stage, name: str, tab: str) -> None:
    """Open a tab of an agent's page, as one who knows the keys."""
    await stage.press("/")
    await stage.write(name)
    await stage.press("enter", "enter")
    await stage.sees("[Now]")
    await stage.press(*["]"] * TABS.index(tab))
    await stage.sees(f"[{tab}]")
    await stage.settles()


async def test_mail_goes_both_ways_and_carries_three_times(frozen: Frozen) -> None:
    frozen.read("ui", 2, ago=3)
    async with opened(frozen, 100, 30) as stage:
        await _open(stage, "api", "Mail")
        await stage.sees("PICKED", "TURN", "15:04:07 ui ", "15:04:13 → ui ", "→ reviewer")
        sent = next(line for line in stage.text if "→ ui" in line)
        assert sent.count("15:04:19") == 2, "ui picked it up 3 seconds ago, and it entered its turn"
        assert stage.all.index("what is the cursor") < stage.all.index("an opaque string")


async def test_mail_that_waits_stands_below_a_rule(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await _open(stage, "api", "Mail")
        lines = stage.text
        rule = next(at for at, line in enumerate(lines) if "not read yet" in line)
        assert "deprecate" in lines[rule + 1]


async def test_a_message_unfolds_to_all_of_it(frozen: Frozen) -> None:
    frozen.mail(60, "api", "ui", "message", "first line\nand the very last line", 1)
    async with opened(frozen, 80, 24) as stage:
        await _open(stage, "api", "Mail")
        await stage.press("enter")
        await stage.sees("api → ui · message", "and the very last line")


async def test_what_it_tells_you_has_no_times_of_a_worker(frozen: Frozen) -> None:
    frozen.mail(61, "api", "operator", "result", "pagination is done", 1)
    async with opened(frozen, 80, 24) as stage:
        await _open(stage, "api", "Mail")
        line = next(line for line in stage.text if "→ you" in line)
        assert "result: pagination is done" in line
        assert "—" not in line
