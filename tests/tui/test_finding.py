"""`/` finds on every page; if there is nothing to find, it says so, and its text never acts as keys."""

import pytest

from crewboard.commands import stop
from tests.frozen import Frozen
from tests.tui.stage import Stage, opened


async def _open_tab(stage: Stage, tab: str) -> None:
    stage.app.open_agent("api", tab)
    await stage.turns_to(tab)
    await stage.settles()


async def test_what_is_typed_after_the_slash_never_runs_as_keys(
    frozen: Frozen, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped: list[str] = []
    monkeypatch.setattr(stop, "stop", lambda _team, name: stopped.append(name))
    async with opened(frozen, 80, 24) as stage:
        await _open_tab(stage, "Transcript")
        await stage.write("/exit code")
        await stage.sees("find ›", "exit code", "no match · Esc shows all")
    assert stopped == []


@pytest.mark.long
async def test_every_tab_of_an_agent_is_narrowed_by_words(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await _open_tab(stage, "Now")
        for tab, words, there, gone in (
            ("Now", "list_orders", "grep", "read_file"),
            ("Mail", "opaque", "opaque string", "what is the cursor"),
            ("Transcript", "replaced 1", "edit_file", "list_orders"),
            ("Files", "routes", "routes.py", "schema.py"),
            ("Vitals", "peak", "peak 140M", "run 1 "),
        ):
            await stage.turns_to(tab)
            await stage.settles()
            await stage.press("/")
            await stage.write(words)
            await stage.press("enter")
            await stage.sees(f"filter {words} · Esc shows all")
            pane = "\n".join(stage.text[8:-2])
            assert there in pane
            assert gone not in pane
            await stage.press("escape")
            await stage.sees_not("Esc shows all")
            assert stage.tab == tab, "one layer, and the page is there still"
            await stage.press("]")


@pytest.mark.long
async def test_a_folded_call_is_found_by_what_it_unfolds_to(frozen: Frozen) -> None:
    async with opened(frozen, 80, 30) as stage:
        await _open_tab(stage, "Transcript")
        await stage.press("o", "g")
        await stage.settles()
        folded = next(line for line in stage.text if "− 15:04:10" in line or "+ 15:04:10" in line)
        hidden = stage.text[stage.text.index(folded) + 1].split()[1]
        await stage.press("o", "/")
        await stage.write(hidden)
        await stage.press("enter")
        await stage.sees("filter ", "edit_file")


@pytest.mark.long
async def test_the_line_says_what_can_be_found(frozen: Frozen) -> None:
    agents = "words about an agent; s:stuck state, a:api name, h:build2 host, #14 task"
    async with opened(frozen, 80, 24) as stage:
        for way, hint in (
            ("1", agents),
            ("3", "words about a task; s:failed its status, a:api its owner, #14 itself"),
            ("7", agents),
            ("4", "words of a need, its agent or its kind"),
            ("6", "words of a line"),
            ("2", "words of a message, its author or its type"),
            ("1 j enter", "words on this tab, also of what is folded"),
        ):
            await stage.press(*way.split())
            await stage.settles()
            await stage.press("/")
            await stage.sees("find ›", f" {hint}")
            await stage.press("escape")
            await stage.sees_not("find ›")


@pytest.mark.long
async def test_what_the_line_says_is_so(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        for view, words, there, gone in (
            ("1", "s:stuck", "migrate", "perf"), ("1", "a:api", "api ", "perf"), ("1", "#9", "api ", "perf"),
            ("3", "s:completed", "survey the", "cut the"), ("3", "a:api", "paginate", "cut the"),
            ("3", "#22", "cut the", "write the"),
        ):  # fmt: skip
            await stage.press(view, "/")
            await stage.write(words)
            await stage.press("enter")
            await stage.sees(f"filter {words}", "Esc shows all")
            listed = "\n".join(stage.text[2:13])
            assert there in listed
            assert gone not in listed
            await stage.press("escape")
            await stage.sees_not("Esc shows all")


@pytest.mark.long
async def test_another_tab_shows_all_of_it(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await _open_tab(stage, "Mail")
        await stage.press("/")
        await stage.write("zzz")
        await stage.press("enter", "]")
        await stage.turns_to("Transcript")
        await stage.sees("list_orders")
        assert "Esc shows all" not in stage.all


@pytest.mark.long
async def test_slash_takes_the_text_even_where_nothing_can_be_found(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.press("!", "!")
        await stage.sees("PLAN v2")
        await stage.settles()
        await stage.write("/dead")
        await stage.sees("find ›", "nothing to find here")
        await stage.press("escape")
        await stage.sees_not("find ›")
        await stage.sees("nothing to find here", "PLAN v2")
        assert not stage.app.screen.feedback.denying  # type: ignore[attr-defined]
        assert "/ find" not in stage.offered
