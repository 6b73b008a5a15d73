"""Hiring: a form that says what the type may do, checks while one types, and is a command at the same time."""

import threading
from typing import Any

import pytest

from crewboard.errors import CredentialsError
from crewboard.team import hiring
from tests.frozen import Frozen
from tests.tui.stage import Stage, opened


async def _fill(stage: Stage, name: str, prompt: str) -> None:
    await stage.press("n")
    await stage.sees("Hire an agent")
    await stage.write(name)
    await stage.press("tab", "tab", "tab")
    await stage.write(prompt)


async def test_it_says_what_a_type_may_do(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.press("n")
        await stage.sees("‹ code ›", "reads, writes and runs in the workspace")
        await stage.press("tab", "right")
        await stage.sees("‹ test ›", "writes nothing in it")
        await stage.press("left", "left")
        await stage.sees("‹ plan ›", "submits plans for approval")


async def test_the_last_line_is_the_same_as_a_command(frozen: Frozen) -> None:
    async with opened(frozen, 120, 36) as stage:
        await _fill(stage, "fixer2", "Make parse accept it")
        await stage.press("tab", "space", "tab", "tab", "tab", "tab", "tab", "tab", "right")
        await stage.sees("--plan", "--task 14", "--prompt 'Make parse accept it'", "crewboard spawn fixer2 --type code")


async def test_a_projects_own_types_can_be_hired(frozen: Frozen) -> None:
    folder = frozen.directory.root / ".claude" / "agents"
    folder.mkdir(parents=True)
    (folder / "scribe.md").write_text("---\nname: scribe\ndescription: writes [/docs]\ntools: Read\n---\nWrite.\n")
    async with opened(frozen, 80, 24) as stage:
        await stage.press("n", "tab", "left", "left", "left")
        await stage.press("left")
        await stage.sees("‹ scribe ›", "writes [/docs]")


async def test_a_budget_that_is_none_is_told(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await _fill(stage, "fixer2", "go")
        await stage.press("tab", "tab", "tab", "tab", "tab", "tab")
        await stage.write("much")
        await stage.sees("is no budget: give money as $5 or tokens as 200k")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("Fixer", "a name starts with a-z"),
        ("operator", "is reserved"),
        ("api", "api is at work"),
        ("reviewer", "reviewer is of type explore"),
    ],
)
async def test_a_name_that_cannot_be_is_told_at_once(frozen: Frozen, name: str, says: str) -> None:
    async with opened(frozen, 80, 24) as stage:
        await _fill(stage, name, "go")
        await stage.sees(says)
        assert "^s send" not in stage.part("keys")


async def test_without_a_prompt_nobody_is_hired(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.press("n")
        await stage.sees("it needs a prompt")
        await stage.press("ctrl+s")
        await stage.sees("Hire an agent")


async def test_hiring_does_not_hold_up_the_screen(frozen: Frozen, monkeypatch: pytest.MonkeyPatch) -> None:
    may_end = threading.Event()
    hired: list[hiring.Hire] = []

    def spawn(_team: object, hire: hiring.Hire) -> hiring.Assignment:
        assert may_end.wait(20)
        hired.append(hire)
        return hiring.Assignment(hire.name, "p", 1, fresh=True)

    monkeypatch.setattr(hiring, "spawn", spawn)
    async with opened(frozen, 80, 24) as stage:
        await _fill(stage, "fixer2", "go on")
        await stage.sees("ready: ^s hires it")
        await stage.press("ctrl+s")
        await stage.sees("it is coming up")
        await stage.press("ctrl+s")
        may_end.set()
        await stage.sees("hired fixer2: run 1 is up", "Peek")
    assert [(hire.name, hire.type, hire.prompt) for hire in hired] == [("fixer2", "code", "go on")]


async def test_a_failure_leaves_the_form_as_it_was_and_says_why(
    frozen: Frozen, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spawn(*_: Any) -> None:
        raise CredentialsError("no API key: set ANTHROPIC_API_KEY")

    monkeypatch.setattr(hiring, "spawn", spawn)
    async with opened(frozen, 80, 24) as stage:
        await _fill(stage, "fixer2", "go on")
        await stage.press("ctrl+s")
        await stage.sees("no API key: set ANTHROPIC_API_KEY", "fixer2", "go on")


async def test_q_in_the_form_does_not_throw_it_away(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.press("n", "tab", "q")
        await stage.sees("Hire an agent")


async def test_esc_leaves_the_form(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.press("n")
        await stage.sees("Hire an agent")
        await stage.press("escape")
        await stage.sees("Peek · ")
