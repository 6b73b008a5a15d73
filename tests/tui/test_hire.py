"""Hiring: a form that says what the type may do, checks while one types, and is a command at the same time."""

import threading
from pathlib import Path
from typing import Any

import pytest

from crewboard.errors import CredentialsError, UsageError
from crewboard.records import Answer, Exit, Flags, Member, Profile, Spec
from crewboard.store import agents, journal, roster
from crewboard.team import hiring
from crewboard_tui import profiles
from tests.frozen import NOW, Frozen
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
        await stage.press("tab", "tab", "space", *["tab"] * 8, "right")
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
        await stage.press(*["tab"] * 9)
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


@pytest.mark.parametrize("key", ["q", "t"])
async def test_a_form_on_another_view_is_not_thrown_away(frozen: Frozen, key: str) -> None:
    async with opened(frozen, 80, 24) as stage:
        await _fill(stage, "fixer2", "go on")
        await stage.press("tab", "4")
        await stage.sees("Needs you · 5")
        await stage.settles()
        await stage.press(key)
        await stage.sees("Hire an agent", "go on", "this form is open still")


async def test_esc_leaves_the_form(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.press("n")
        await stage.sees("Hire an agent")
        await stage.press("escape")
        await stage.sees("Peek · ")


# ---------------------------------------------------------------------------------------- terms and foreground


async def test_the_form_is_whole_at_80_by_24(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.press("n")
        await stage.sees("Name", "Type", "Role", "Prompt", "Mode", "First", "ask me", "May", "Model", "budget", "Task")
        await stage.can("^o", "load profile")


async def test_every_tick_is_a_flag_of_the_command(frozen: Frozen) -> None:
    async with opened(frozen, 120, 36) as stage:
        await _fill(stage, "fixer2", "go")
        await stage.press("tab")
        for _ in range(5):
            await stage.press("tab", "space")
        await stage.sees("--plan --ask --network --autoclaim --once --background")


async def test_the_field_that_one_is_in_is_in_sight_on_a_small_screen(frozen: Frozen) -> None:
    async with opened(frozen, 80, 14) as stage:
        await _fill(stage, "fixer2", "go")
        await stage.press(*["tab"] * 10)
        await stage.sees("‹ none ›")


def _spawned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hiring, "spawn", lambda _, hire: hiring.Assignment(hire.name, "p", 1, fresh=True))


async def _hire_in_foreground(stage: Stage, name: str) -> None:
    await _fill(stage, name, "go")
    await stage.press("tab", "right")
    await stage.sees("(•) foreground")
    assert "--background" not in stage.all
    await stage.press("ctrl+s")
    await stage.sees("foreground: waits for its result; Esc/b puts it to the background")


async def test_a_foreground_hire_is_watched_until_its_result(frozen: Frozen, monkeypatch: pytest.MonkeyPatch) -> None:
    _spawned(monkeypatch)
    async with opened(frozen, 80, 24) as stage:
        await _hire_in_foreground(stage, "fixer2")
        agent = frozen.hire("fixer2", "code", "working", "thinking", ago=2, pid=4500)
        await stage.can("b", "background")
        answer = Answer(ts=NOW + 1, run=1, assignment="p", answers=["p"], text="parse() takes 2.0", result="f.md")
        journal.append(agent.journal, answer)
        await stage.sees("parse() takes 2.0", "its result has come")
        await stage.press("escape")
        await stage.sees("Peek · ")


async def test_a_foreground_hire_that_dies_says_so(frozen: Frozen, monkeypatch: pytest.MonkeyPatch) -> None:
    _spawned(monkeypatch)
    async with opened(frozen, 80, 24) as stage:
        await _hire_in_foreground(stage, "fixer2")
        frozen.gone("fixer2", "code", Exit(run=1, signal=9, reason="died", at=NOW + 1, buried=True), 4500)
        await stage.sees("it ended without a result: killed by SIGKILL")


@pytest.mark.parametrize("key", ["b", "escape"])
async def test_a_foreground_hire_is_put_to_the_background(
    frozen: Frozen, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    _spawned(monkeypatch)
    async with opened(frozen, 80, 24) as stage:
        await _hire_in_foreground(stage, "fixer2")
        await stage.press(key)
        await stage.sees("fixer2 goes on in the background", "Peek · ")


# ---------------------------------------------------------------------------------------------------- profiles


async def test_a_profile_is_kept_and_fills_the_form_again(frozen: Frozen, tmp_path: Path) -> None:
    async with opened(frozen, 80, 24) as stage:
        await _fill(stage, "fixer2", "Mend the grammar")
        await stage.press("tab", "tab", "space", "ctrl+p")
        await stage.sees("keep as profile ›")
        await stage.write("mender")
        await stage.press("enter")
        await stage.sees("kept as mender, without a key")
        await stage.press("escape", "n", "ctrl+o")
        await stage.sees("load profile ›", "mender")
        await stage.press("m", "tab", "enter")
        await stage.sees("filled from the profile mender", "Mend the grammar", "[x] a plan", "Name     mender")
    file = tmp_path / ".config" / "crewboard" / "profiles" / "mender.json"
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700


async def test_a_damaged_profile_is_named_and_left_out(frozen: Frozen, tmp_path: Path) -> None:
    place = tmp_path / ".config" / "crewboard" / "profiles"
    profiles.save(place, "mender", Profile(type="code", prompt="mend"))
    (place / "broken.json").write_text("{")
    async with opened(frozen, 80, 24) as stage:
        await stage.press("n", "ctrl+o")
        await stage.write("other")
        await stage.press("enter")
        await stage.sees("the profiles are mender")
        await stage.press("escape")
        await stage.sees("damaged, left out: broken.json")
    assert (place / "broken.json").read_text() == "{"


async def test_a_name_that_was_typed_stays_when_a_profile_is_loaded(frozen: Frozen, tmp_path: Path) -> None:
    profiles.save(tmp_path / ".config" / "crewboard" / "profiles", "mender", Profile(type="test", prompt="mend"))
    async with opened(frozen, 80, 24) as stage:
        await stage.press("n")
        await stage.sees("Hire an agent")
        await stage.write("mine")
        await stage.press("ctrl+o")
        await stage.write("mender")
        await stage.press("enter")
        await stage.sees("Name     mine", "‹ test ›")


def test_a_profile_never_holds_a_key(tmp_path: Path) -> None:
    secret = Profile(type="code", prompt="use sk-ant-api03-abcdefghijklmnop to ask")
    with pytest.raises(UsageError, match="a profile holds none"):
        profiles.save(tmp_path, "mender", secret)
    assert list(tmp_path.iterdir()) == []


def test_profiles_are_where_the_user_keeps_configuration(tmp_path: Path) -> None:
    assert profiles.folder({"XDG_CONFIG_HOME": str(tmp_path)}) == tmp_path / "crewboard" / "profiles"
    assert profiles.folder({"XDG_CONFIG_HOME": "relative"}) == Path.home() / ".config" / "crewboard" / "profiles"


# ------------------------------------------------------------------------------------------------------- clone


async def test_a_clone_begins_with_the_terms_of_the_selected_agent(frozen: Frozen) -> None:
    terms = Flags(plan=True, max_turns=7, task=14, unsafe_no_sandbox=True)
    agents.change_spec(frozen.directory.agent("parser"), lambda old: _with(old, terms))
    async with opened(frozen, 120, 36) as stage:
        await stage.press("N")
        await stage.sees("Name     parser2", "Be parser", "grammar", "[x] a plan", "turns 7", "‹ none ›")
        await stage.sees("✓ ready: ^s hires it")
        assert "unsafe" not in stage.all


async def test_a_clone_of_a_clone_counts_on(frozen: Frozen) -> None:
    frozen.hire("parser2", "code", "idle", "", ago=5, pid=4500)
    async with opened(frozen, 80, 24) as stage:
        await stage.press("N")
        await stage.sees("Name     parser3")


async def test_the_lead_is_not_cloned(empty: Frozen) -> None:
    empty.hire(
        "lead",
        "code",
        "idle",
        "",
        ago=5,
        pid=4500,
    )
    agents.change_spec(empty.directory.agent("lead"), lambda old: _with(old, Flags(), "lead"))
    roster.put(empty.directory, Member(name="lead", type="lead"))
    async with opened(empty, 80, 24) as stage:
        await stage.settles()
        await stage.press("N")
        await stage.settles()
        assert "Hire an agent" not in stage.all


def _with(old: Spec | None, flags: Flags, kind: str = "code") -> Spec:
    assert old is not None
    return old.model_copy(update={"flags": flags, "type": kind})
