"""What helps somebody who does not know yet: empty views, tooltips, help that fits the pane."""

import importlib
import pkgutil

import pytest
from textual.binding import Binding
from textual.dom import DOMNode

import crewboard_tui
from crewboard_tui.screens.help import HelpScreen
from crewboard_tui.settings import Settings
from crewboard_tui.widgets.log import Log
from crewboard_tui.widgets.still import Still
from tests.frozen import Frozen
from tests.tui.stage import Stage, opened


def ours() -> set[type[DOMNode]]:
    """Every screen, widget and app of ours."""
    for module in pkgutil.walk_packages(crewboard_tui.__path__, "crewboard_tui."):
        if not module.name.startswith("crewboard_tui.cli"):
            importlib.import_module(module.name)
    found: set[type[DOMNode]] = set()
    kinds: list[type[DOMNode]] = [DOMNode]
    while kinds:
        kind = kinds.pop()
        kinds += kind.__subclasses__()
        found |= {kind} if kind.__module__.startswith("crewboard_tui.") else set()
    return found


def test_every_binding_has_an_id_and_a_tooltip() -> None:
    bindings = [
        (kind.__name__, each) for kind in ours() for each in kind.__dict__.get("BINDINGS", ()) if each is not None
    ]
    assert len(bindings) > 50
    for name, binding in bindings:
        assert isinstance(binding, Binding), name
        assert binding.id, (name, binding)
        assert binding.tooltip, (name, binding)


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("1", "n  hires an agent"),
        ("2", "no mail; what agents write to you will stand here"),
        ("3", "no tasks yet; + puts the first one on the board"),
        ("4", "nobody needs you; plans to approve, questions and deaths will stand here"),
        ("5", "nobody is hired yet; n hires an agent"),
        ("6", "nobody is hired yet; n hires an agent"),
    ],
)
async def test_an_empty_view_says_what_to_do_first(empty: Frozen, key: str, words: str) -> None:
    async with opened(empty, 80, 24) as stage:
        await stage.press(key)
        await stage.sees(words)


async def test_it_names_the_users_own_keys(empty: Frozen) -> None:
    mine = Settings(keys={"agent.hire": "h", "app.leave": "Q"})
    async with opened(empty, 80, 24, settings=mine) as stage:
        await stage.sees("h  hires an agent", "Q leaves")
        await stage.press("5")
        await stage.sees("h hires an agent")


async def test_where_one_may_only_look_no_key_is_offered_that_changes(empty: Frozen) -> None:
    async with opened(empty, 80, 24, read_only=True) as stage:
        await stage.press("5")
        await stage.sees("nobody is hired yet")
        assert "hires an agent" not in stage.all


async def test_what_was_narrowed_to_nothing_says_how_to_see_all(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        for view in ("3", "4", "5", "6"):
            await stage.press(view, "/")
            await stage.write("zzz")
            await stage.press("enter")
            await stage.sees("nothing here is like that; Esc shows all")


async def helped(stage: Stage) -> str:
    """What the help says about the pane that has the focus."""
    await stage.press("?")
    await stage.until(lambda: isinstance(stage.app.screen, HelpScreen), "the help")
    await stage.until(lambda: any(log.lines for log in stage.app.screen.query(Log)), "its lines")
    text = "\n".join("".join(span.text for span in line) for line in stage.app.screen.query_one(Log).lines)
    await stage.press("escape")
    return text


async def test_help_is_about_the_pane_that_has_the_focus(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        text = await helped(stage)
        assert "mark it" in text
        assert "follow the end" not in text
        await stage.press("tab")
        text = await helped(stage)
        assert "mark it" not in text
        assert "follow the end" in text


async def test_help_of_a_form_knows_its_fields(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.press("n", "tab")
        text = await helped(stage)
        assert "→ l Space     the next value" in text


async def test_help_of_a_question_knows_how_many_choices_there_are(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.press("!", "!", "!")
        await stage.sees("QUESTION")
        text = await helped(stage)
        assert "to choice 3" in text
        assert "to choice 4" not in text


async def test_a_key_under_the_pointer_says_what_it_does(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.can("!", "next")
        footer = stage.app.screen.query_one("#keys", Still)
        await stage.pilot.hover("#keys", offset=(2, 0))
        assert footer.tooltip == "the next thing that needs you, opened on its own page"
