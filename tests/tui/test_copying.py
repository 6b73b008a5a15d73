"""`y` copies the line or the whole text under the cursor; if there is nothing to copy, it says so."""

import pytest

from tests.frozen import PLAN, Frozen
from tests.tui.stage import Stage, opened


async def _copies(stage: Stage, text: str) -> None:
    stage.app.copy_to_clipboard("")
    await stage.press("y")
    await stage.until(lambda: text in stage.app.clipboard, f"{text!r} on the clipboard")
    await stage.sees("copied: ")


@pytest.mark.long
async def test_of_a_list_the_line_under_the_cursor_is_copied(frozen: Frozen) -> None:
    async with opened(frozen, 170, 50) as stage:
        for way, line in (
            ("1 j", ("▲ auth-plan", "plan: Rotate the JWT …")),
            ("4 j", ("▲ auth-plan", "plan: Rotate the JWT signing keys")),
            ("3 j", ("● #9   paginate /orders", "api 12m")),
            ("5", ("✖ parser", "killed by SIGKILL")),
            ("7", ("migrate", "$2.40")),
            ("2 j", ("lead", "2 new")),
        ):
            await stage.press(*way.split())
            await stage.settles()
            await _copies(stage, line[0])
            assert line[1] in stage.app.clipboard
            assert "\n" not in stage.app.clipboard
            assert stage.app.clipboard in stage.all


async def test_of_a_plan_exactly_the_plan_is_copied(frozen: Frozen) -> None:
    async with opened(frozen, 120, 36) as stage:
        await stage.app.open_need("plan:auth-plan:req-004281")
        await stage.sees("PLAN v2")
        await _copies(stage, PLAN)
        assert stage.app.clipboard == PLAN
        await stage.sees("copied: # Rotate the JWT signing keys … and 13 lines more")


@pytest.mark.long
@pytest.mark.parametrize(
    ("given", "copied"),
    [
        (
            {"tool": "bash", "input": {"command": "git push\n  --tags"}, "summary": "bash git push"},
            "git push\n  --tags",
        ),
        ({"tool": "edit_file", "input": {"path": "a"}, "diff": "-old\n+new", "summary": "edit a"}, "-old\n+new"),
        ({"tool": "fetch", "input": {"url": "x"}, "summary": "fetch x"}, "fetch x"),
    ],
)
async def test_of_a_permission_the_command_or_the_change_is_copied(
    frozen: Frozen, given: dict[str, object], copied: str
) -> None:
    frozen.asks("r1", "permission", "release", 8, given)  # type: ignore[arg-type]
    async with opened(frozen, 120, 36) as stage:
        await stage.app.open_need("permission:release:r1")
        await stage.sees("PERMISSION")
        await _copies(stage, copied)
        assert stage.app.clipboard == copied


@pytest.mark.long
async def test_while_revisions_are_compared_the_difference_is_copied(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.app.open_need("plan:auth-plan:req-004281")
        await stage.press("=")
        await stage.sees("What changed")
        await _copies(stage, "--- v1")
        assert stage.app.clipboard.startswith("--- v1\n+++ v2")


@pytest.mark.long
async def test_of_a_question_the_question_is_copied(frozen: Frozen) -> None:
    async with opened(frozen, 120, 36) as stage:
        await stage.app.open_need("question:docs:req-004290")
        await stage.sees("QUESTION")
        await _copies(stage, "The 1.x API pages are linked from two blog posts. Keep them?")


@pytest.mark.long
async def test_of_an_agents_page_the_entry_under_the_cursor_is_copied(frozen: Frozen) -> None:
    async with opened(frozen, 120, 36) as stage:
        await stage.press("j", "j", "j", "j", "j", "enter")
        for turns, tab, keys, copied in (
            (0, "Now", "", "need a cursor, not an offset"),
            (1, "Mail", "g", "Task 9: paginate /orders"),
            (1, "Transcript", "G k", "replaced 1 occurrence"),
            (1, "Files", "", "src/api/routes.py\n-def list_orders(page: int = 1) -> Page:"),
            (1, "Vitals", "", "$0.93"),
        ):
            await stage.press(*["]"] * turns)
            await stage.turns_to(tab)
            await stage.settles()
            await stage.press(*keys.split())
            await _copies(stage, copied)


@pytest.mark.long
async def test_of_the_feed_and_of_mail_all_of_an_entry_is_copied(frozen: Frozen) -> None:
    long = "the list scrolls " * 20 + "\nand keeps its place"
    frozen.said("ui", 1, long)
    frozen.mail(99, "ui", "operator", "message", long, 1)
    async with opened(frozen, 80, 24) as stage:
        await stage.press("6")
        await stage.sees("f follow:on", "the list scrolls")
        await stage.press("y")
        await stage.until(lambda: stage.app.clipboard == long, "the clipboard")
        stage.app.copy_to_clipboard("")
        await stage.press("2")
        await stage.sees("Mailboxes", "the list scrolls")
        await stage.press("enter", "G", "y")
        await stage.until(lambda: stage.app.clipboard == long, "the clipboard")
        stage.app.copy_to_clipboard("")
        await stage.press("enter")
        await stage.sees_not("Mailboxes")
        await stage.settles()
        await stage.press("y")
        await stage.until(lambda: stage.app.clipboard == long, "the clipboard")


@pytest.mark.long
async def test_with_nothing_to_copy_the_key_is_hidden_and_says_so(empty: Frozen) -> None:
    async with opened(empty, 170, 50) as stage:
        for view, words in (
            ("1", "Welcome"), ("3", "no tasks yet"), ("4", "nothing needs you"), ("6", "hires an agent"),
        ):  # fmt: skip
            await stage.press(view)
            await stage.sees(words)
            await stage.settles()
            assert "y copy" not in stage.offered
            stage.app.context.say("")
            await stage.press("y")
            await stage.sees("copy: nothing to copy here")
    assert not stage.app.clipboard


async def test_what_is_pasted_is_what_was_shown(frozen: Frozen) -> None:
    frozen.asks("r1", "permission", "release", 8, {"tool": "bash", "input": {"command": "ls \x1b[201~\ud800; rm"}})
    async with opened(frozen, 120, 36) as stage:
        await stage.app.open_need("permission:release:r1")
        await stage.sees("PERMISSION")
        await _copies(stage, "ls ␛[201~")
        assert stage.app.clipboard.isprintable()
