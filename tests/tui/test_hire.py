"""The hire form: it shows the rights of a type, checks fields while typing, and shows the same hire as a command."""

import json
import os
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from textual import events
from textual.widgets import Input, TextArea

from crewboard import models
from crewboard.commands import hire as hiring
from crewboard.commands import profiles
from crewboard.commands.context import Team
from crewboard.commands.hire import Assignment
from crewboard.errors import CredentialsError, UsageError
from crewboard.records.agents import Engine, HireOptions, Profile, Spec
from crewboard.records.events import Answer
from crewboard.records.processes import Exit
from crewboard.records.team import Config, Member, Rule
from crewboard.store import agents, journal, roster
from crewboard_tui.render.lines import plain
from crewboard_tui.views.hire_form import HireForm, shell_line
from crewboard_tui.views.roster import Roster
from crewboard_tui.widgets.bars import StaticLines
from crewboard_tui.widgets.form import Checkbox, Fold, Radio, Select, around
from tests.cli.test_engines import install
from tests.frozen import NOW, Frozen
from tests.placed import add_host, place
from tests.tui.stage import WAIT_TIMEOUT, Stage, opened

_FRAME = "│ ▁▂▃▄▅▆▇█"
"""The parts beside the text of the form: its border, and the bar that shows how far it is scrolled."""


async def _fill(stage: Stage, name: str, prompt: str, *, more: bool = False) -> None:
    """Fill in the form, all at once, and leave the cursor at the end of the prompt; `more` shows all fields."""
    await stage.press("n")
    await stage.sees("Hire an agent")
    form = stage.app.screen.query_one(HireForm)
    form.query_one("#hire-name", Input).value = name
    form.query_one("#hire-more", Fold).value = more
    field = form.query_one("#hire-prompt", TextArea)
    field.focus()
    field.insert(prompt)
    await stage.until(lambda: field.has_focus, "the cursor in the prompt")


@pytest.mark.long
async def test_a_plan_that_bounds_the_work_is_a_plan_first(frozen: Frozen) -> None:
    async with opened(frozen, 120, 40) as stage:
        await _fill(stage, "zed", "Do it.", more=True)
        form = stage.app.screen.query_one(HireForm)
        form.query_one("#hire-strict_plan", Checkbox).value = True
        flags = form.hire().flags
        assert (flags.strict_plan, flags.plan) == (True, True)


@pytest.mark.long
async def test_it_says_what_a_type_may_do(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.press("n")
        await stage.sees("explore plan [code] test lead", "reads, writes and runs in the workspace")
        await stage.press("tab", "right")
        await stage.sees("explore plan code [test] lead", "writes nothing in it")
        await stage.press("left", "left")
        await stage.sees("explore [plan] code", "submits plans for approval")


@pytest.mark.long
async def test_the_tick_for_an_own_checkout_shows_the_teams_default_and_can_say_no(frozen: Frozen) -> None:
    roster.change(frozen.directory, lambda config: setattr(config, "worktree", "always"))
    async with opened(frozen, 120, 36) as stage:
        await stage.press("n")
        await stage.sees("[x] own checkout")
        assert "--worktree" not in stage.all
        await stage.press("tab", "left")
        await stage.sees("explore [plan] code", "[ ] own checkout")
        await stage.press("right")
        await stage.sees("plan [code] test", "[x] own checkout")
        stage.app.screen.query_one("#hire-worktree", Checkbox).action_turn()
        await stage.sees("[ ] own checkout", "--no-worktree")
        form = stage.app.screen.query_one(HireForm)
        assert "worktree" in (form.hire().given or ())


@pytest.fixture
def claude_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put Claude Code on the PATH, with a login."""
    monkeypatch.setenv("PATH", f"{install(tmp_path / 'npm', '0.101.0')}:/usr/bin:/bin")
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".claude").mkdir()
    (tmp_path / ".claude" / ".credentials.json").touch()


@pytest.mark.long
@pytest.mark.usefixtures("claude_code")
async def test_the_form_offers_the_engines_that_are_here(frozen: Frozen, monkeypatch: pytest.MonkeyPatch) -> None:
    team = Team(frozen.directory, environment={"ANTHROPIC_API_KEY": "k"}, now=lambda: NOW)
    monkeypatch.setattr(Frozen, "team", property(lambda _: team))
    async with opened(frozen, 180, 60) as stage:
        await _fill(stage, "fixer", "fix it", more=True)
        form = stage.app.screen.query_one(HireForm)
        field = form.query_one("#hire-engine", Select)
        await stage.sees("none: a model", "[ ] own checkout", "Effort")
        assert [value for value, _ in field.options] == ["", "claude", "claude-gated"]
        assert form.hire().engine is None
        field.choose("claude")
        await stage.sees("Claude Code", "about 300 MiB", "see no key, and reach its API alone", "[x] own checkout")
        assert not form.query_one("#row-effort").display
        await stage.sees("without network but for its API, asking you as it decides.")
        await stage.sees("Claude Code works on a prompt until its turn limit of 100, without a budget; limits are")
        form.query_one("#hire-network", Checkbox).action_turn()
        await stage.sees("reach any address", "ready", "--engine claude", "with network, asking you as it decides.")
        hire = form.hire()
        assert (hire.engine, hire.flags.network, "worktree" in (hire.given or ())) == ("claude", True, False)
        assert form.profile().engine == "claude"
        field.choose("claude-gated")
        await stage.sees("Claude Code with crewboard's tools", "[ ] own checkout", "with network, without asking you.")
        await stage.sees("its commands see no login and no key, and reach any address")
        form.query_one("#hire-ask", Checkbox).action_turn()
        await stage.sees("--engine claude-gated", "--ask", "asking you before each write and command.")
        assert form.hire().flags.ask
        field.choose("claude")
        await stage.sees("with network, asking you as it decides.")
        assert not form.hire().flags.ask
        form.query_one("#hire-model", Input).value = "opus"
        await stage.sees("cannot have --model")
        form.query_one("#hire-model", Input).value = ""
        form.query_one("#hire-type", Select).choose("lead")
        await stage.sees("code test [lead]", "Claude Code", "reach any address", "ready")
        assert form.hire().engine == "claude"


@pytest.mark.long
@pytest.mark.usefixtures("claude_code")
async def test_a_narrow_form_says_all_of_what_an_engine_sees(frozen: Frozen, monkeypatch: pytest.MonkeyPatch) -> None:
    team = Team(frozen.directory, environment={}, now=lambda: NOW)
    monkeypatch.setattr(Frozen, "team", property(lambda _: team))
    async with opened(frozen, 80, 40) as stage:
        await _fill(stage, "fixer", "fix it", more=True)
        field = stage.app.screen.query_one("#hire-engine", Select)
        field.choose("claude")
        field.focus()
        said = "it and its commands see your login, ~/.claude/.credentials.json, and reach its API alone"
        await stage.until(lambda: said in " ".join(stage.all.split()), "all that it sees")


@pytest.mark.long
async def test_the_form_begins_with_the_engine_of_the_team_and_can_say_no(
    frozen: Frozen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    roster.change(frozen.directory, lambda config: setattr(config, "engine", "acp:my agent"))
    team = Team(frozen.directory, environment={"ANTHROPIC_API_KEY": "k"}, now=lambda: NOW)
    monkeypatch.setattr(Frozen, "team", property(lambda _: team))
    async with opened(frozen, 120, 60) as stage:
        await _fill(stage, "fixer", "fix it", more=True)
        form = stage.app.screen.query_one(HireForm)
        await stage.sees(
            "acp:my agent", "[x] own checkout", "acp:my agent works on a prompt until its turn limit of 100"
        )
        assert form.hire().engine is None
        form.query_one("#hire-engine", Select).choose("")
        await stage.sees("none: a model", "--engine none", "[ ] own checkout", "100 calls of claude-sonnet-5-5 for a")
        assert form.hire().engine == "none"
        form.fill("other", Profile(type="code", engine="acp:another one"))
        await stage.sees("acp:another one")
        assert form.hire().engine == "acp:another one"


@pytest.mark.long
async def test_lines_pasted_into_a_field_are_joined(frozen: Frozen) -> None:
    async with opened(frozen, 120, 36) as stage:
        await stage.press("n", "tab", "tab")
        field = stage.app.focused
        assert isinstance(field, Input)
        stage.app.post_message(events.Paste("reads the docs\nand corrects them\n"))
        await stage.until(lambda: field.value, "the pasted text")
        assert field.value.endswith("reads the docs and corrects them")


@pytest.mark.long
async def test_the_key_that_hires_says_why_it_does_not(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.press("n")
        await stage.sees("Hire an agent", "it needs a prompt")
        await stage.press("ctrl+s")
        await stage.sees("hire: it needs a prompt")


@pytest.mark.long
async def test_a_click_chooses_what_it_is_on(frozen: Frozen) -> None:
    async with opened(frozen, 120, 36) as stage:
        await stage.press("n")
        await stage.sees("Hire an agent")
        for word, sees in (
            ("test", "code [test] lead"),
            ("More: usual", "▾ More"),
            ("foreground: watch", "(•) foreground: watch"),
            ("none ›", "‹ #14"),
        ):
            await stage.settles()
            at = next((line.index(word), y) for y, line in enumerate(stage.text) if word in line and "$" not in line)
            await stage.pilot.click(offset=at)
            await stage.sees(sees)


@pytest.mark.long
async def test_the_last_line_is_the_same_as_a_command(frozen: Frozen) -> None:
    async with opened(frozen, 120, 36) as stage:
        await _fill(stage, "fixer2", "Make parse accept it")
        await stage.press("tab", "space", *["tab"] * 6, "space", *["tab"] * 9, "right")
        await stage.sees("--plan", "--task 14", "--prompt 'Make parse accept it'")
        await stage.sees("crewboard --offline spawn fixer2 --type code")


@pytest.mark.long
async def test_a_projects_own_types_can_be_hired(frozen: Frozen) -> None:
    folder = frozen.directory.root / ".claude" / "agents"
    folder.mkdir(parents=True)
    (folder / "scribe.md").write_text("---\nname: scribe\ndescription: writes [/docs]\ntools: Read\n---\nWrite.\n")
    async with opened(frozen, 80, 24) as stage:
        await stage.press("n", "tab", "left", "left", "left")
        await stage.sees("lead [scribe]", "writes [/docs]")


@pytest.mark.long
async def test_a_projects_own_type_is_accepted_by_a_second_press(
    frozen: Frozen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hired: list[str] = []
    monkeypatch.setenv("HOME", str(tmp_path))

    def spawn(_: Team, hire: hiring.Hire) -> Assignment:
        hired.append(hire.type)
        return Assignment(hire.name, "x", 1, fresh=True)

    monkeypatch.setattr(hiring, "spawn", spawn)
    folder = frozen.directory.root / ".claude" / "agents"
    folder.mkdir(parents=True)
    (folder / "bad.md").write_text("nothing")
    (folder / "scribe.md").write_text("---\nname: scribe\ndescription: writes\ntools: Read\n---\nWrite.\n")
    async with opened(frozen, 120, 36) as stage:
        await _fill(stage, "writer", "go")
        await stage.sees("skipped bad.md")
        await stage.press("shift+tab", "shift+tab", "left", "left", "left")
        await stage.sees("scribe.md is not accepted yet: it may only read", "^s shows all that it may do")
        assert "ready" not in stage.all
        await stage.press("ctrl+s")
        await stage.sees("^s again accepts scribe and hires")
        assert hired == []
        await stage.press("ctrl+s")
        await stage.until(lambda: hired == ["scribe"])
    assert list((tmp_path / ".local/state/crewboard/accepted-types").iterdir())


@pytest.mark.long
async def test_a_type_is_accepted_only_when_all_of_it_was_visible(
    frozen: Frozen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(hiring, "spawn", lambda *_: pytest.fail("hired"))
    folder = frozen.directory.root / ".claude" / "agents"
    folder.mkdir(parents=True)
    front = "name: scribe\ndescription: writes\nmaxTurns: 77\ntools: "
    (folder / "scribe.md").write_text(f"---\n{front}Read, Bash(git *), Edit(docs/**)\n---\nWrite.\n")
    async with opened(frozen, 80, 24) as stage:
        await _fill(stage, "writer", "go")
        await stage.press("shift+tab", "shift+tab", "left", "left", "left", "ctrl+s")
        await stage.sees("it may run commands", "at most 77 model calls", "docs/**", "^s again accepts")
        server = '{"own": {"command": "sh", "args": ["-c", "one\\ntwo"], "env": {"LD_PRELOAD": "x"}}}'
        (folder / "scribe.md").write_text(f"---\n{front}Read\nmcpServers: {server}\n---\nWrite.\n")
        await stage.press("ctrl+s")
        await stage.sees("server own: sh -c 'one ␊", "two'; env LD_PRELOAD=x", "^s again accepts")
        many = ", ".join(f"Bash(command-number-{each} *)" for each in range(60))
        (folder / "scribe.md").write_text(f"---\n{front}{many}\n---\nWrite.\n")
        for _ in range(2):
            await stage.press("ctrl+s")
            await stage.sees("what scribe may do does not fit: enlarge the terminal")
            assert "accepts scribe" not in stage.all
        key = f'{{"own": {{"command": "serve", "args": ["sk-ant-api03-{"x" * 30}"]}}}}'
        (folder / "scribe.md").write_text(f"---\n{front}Read\nmcpServers: {key}\n---\nWrite.\n")
        await stage.press("ctrl+s")
        await stage.sees("server own: serve [key", "what scribe may do does not fit")
        assert "accepts scribe" not in stage.all
    assert not (tmp_path / ".local/state/crewboard/accepted-types").exists()


@pytest.mark.long
async def test_a_budget_that_is_none_is_told(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await _fill(stage, "fixer2", "go")
        await stage.press(*["tab"] * 7, "space", *["tab"] * 6)
        await stage.write("much")
        await stage.sees("is not a budget: give money as $5 or tokens as 200k")


@pytest.mark.long
async def test_a_name_that_cannot_be_is_told_at_once(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await _fill(stage, "fixer2", "go")
        await stage.can("^s", "hire")
        for name, says in (
            ("Fixer", "a name starts with a-z"),
            ("operator", "is reserved"),
            ("api", "api is running"),
            ("reviewer", "reviewer is of type explore"),
        ):
            stage.app.screen.query_one("#hire-name", Input).value = name
            await stage.sees(says)
            assert "^s hire" not in stage.offered


@pytest.mark.long
@pytest.mark.parametrize("size", [(80, 24), pytest.param((40, 10), marks=pytest.mark.long)])
async def test_without_a_prompt_no_agent_is_hired_and_the_form_says_so(frozen: Frozen, size: tuple[int, int]) -> None:
    async with opened(frozen, *size) as stage:
        await stage.press("n")
        await stage.sees("^s hires, not yet: it needs")
        await stage.press("ctrl+s")
        await stage.sees("^s hires, not yet: it needs")
        await stage.write("Lame")
        await stage.sees("^s hires, not yet: fix the")


@pytest.mark.long
async def test_tab_is_no_pane_in_a_form(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.press("n")
        for _ in range(5):
            await stage.sees("next field")
            assert "Tab pane" not in stage.offered
            await stage.press("tab")
        await stage.press(*["shift+tab"] * 5)
        await stage.write("x")
        await stage.sees("Name     x")


@pytest.mark.long
async def test_a_high_terminal_keeps_the_options_below_the_prompt(frozen: Frozen) -> None:
    async with opened(frozen, 200, 50) as stage:
        await stage.press("n")
        await stage.sees("Prompt", "Require")
        await stage.settles()
        rows = {text[1:10].strip(): y for y, text in enumerate(stage.text)}
        assert rows["Require"] - rows["Prompt"] == 7


def test_of_many_types_the_selected_one_shows_its_neighbours() -> None:
    labels = ["explore", "plan", "code", "test", "lead", "scribe", "painter"]
    assert [around(labels, at, 24) for at in (0, 2, 3, 6)] == [range(3), range(1, 4), range(2, 5), range(4, 7)]
    assert around(labels, 2, 60) == range(7)
    assert around(labels, 0, 1) == range(1)


@pytest.mark.long
async def test_hiring_does_not_hold_up_the_screen(frozen: Frozen, monkeypatch: pytest.MonkeyPatch) -> None:
    may_end = threading.Event()
    hired: list[hiring.Hire] = []

    def spawn(_team: object, hire: hiring.Hire) -> hiring.Assignment:
        assert may_end.wait(WAIT_TIMEOUT)
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


@pytest.mark.long
@pytest.mark.parametrize(
    "way",
    [
        pytest.param(("enter",), marks=pytest.mark.long),
        ("f", "z"),
        pytest.param(("3",), marks=pytest.mark.long),
        pytest.param(("enter", "2", "j", "j", "j"), marks=pytest.mark.long),
    ],
    ids=["page", "narrowed", "tasks", "inbox"],
)
async def test_after_hiring_the_board_shows_the_new_agent(
    frozen: Frozen, monkeypatch: pytest.MonkeyPatch, way: tuple[str, ...]
) -> None:
    def spawn(_team: object, hire: hiring.Hire) -> hiring.Assignment:
        frozen.hire(hire.name, "code", "working", "thinking", ago=1, pid=4499)
        return hiring.Assignment(hire.name, "p", 1, fresh=True)

    monkeypatch.setattr(hiring, "spawn", spawn)
    async with opened(frozen, 80, 24) as stage:
        await stage.press(*way)
        await _fill(stage, "fixer2", "Make parse accept it")
        await stage.press("ctrl+s")
        await stage.sees("━ Team", "Peek · fixer2")
        roster_ = stage.app.screen.query_one(Roster)
        assert roster_.selected == "fixer2"
        await stage.until(lambda: stage.app.focused is roster_, "the focus on the list")


async def test_the_form_closes_once_the_agent_is_on_the_team(frozen: Frozen, monkeypatch: pytest.MonkeyPatch) -> None:
    may_end = threading.Event()

    def spawn(_team: object, hire: hiring.Hire) -> hiring.Assignment:
        frozen.hire(hire.name, "code", "starting", "starts Claude Code", ago=1, pid=4499)
        assert may_end.wait(WAIT_TIMEOUT)
        return hiring.Assignment(hire.name, "p", 1, fresh=True)

    monkeypatch.setattr(hiring, "spawn", spawn)
    async with opened(frozen, 80, 24) as stage:
        await _fill(stage, "fixer2", "Make parse accept it")
        await stage.press("ctrl+s")
        await stage.sees("━ Team", "Peek · fixer2")
        may_end.set()
        await stage.sees("hired fixer2: run 1 is up", "Peek · fixer2")
        assert stage.app.context.drafts == {}


@pytest.mark.long
@pytest.mark.parametrize("in_foreground", [True, pytest.param(False, marks=pytest.mark.long)])
async def test_a_failure_after_the_form_closed_is_said(
    frozen: Frozen, monkeypatch: pytest.MonkeyPatch, *, in_foreground: bool
) -> None:
    may_end = threading.Event()

    def spawn(_team: object, hire: hiring.Hire) -> None:
        frozen.hire(hire.name, "code", "starting", "starts Claude Code", ago=1, pid=4499)
        assert may_end.wait(WAIT_TIMEOUT)
        raise UsageError("Claude Code did not start: log in first")

    monkeypatch.setattr(hiring, "spawn", spawn)
    async with opened(frozen, 80, 24) as stage:
        if in_foreground:
            await _hire_in_foreground(stage, "fixer2")
        else:
            await _fill(stage, "fixer2", "go")
            await stage.press("ctrl+s")
            await stage.sees("━ Team", "Peek · fixer2")
        may_end.set()
        await stage.sees("Claude Code did not start: log in first")


@pytest.mark.long
async def test_leaving_the_form_during_a_hire_does_not_say_not_hired(
    frozen: Frozen, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_end = threading.Event()

    def spawn(_team: object, hire: hiring.Hire) -> hiring.Assignment:
        assert may_end.wait(WAIT_TIMEOUT)
        return hiring.Assignment(hire.name, "p", 1, fresh=True)

    monkeypatch.setattr(hiring, "spawn", spawn)
    async with opened(frozen, 80, 24) as stage:
        await _fill(stage, "fixer2", "go on")
        await stage.press("ctrl+s")
        await stage.sees("it is coming up")
        await stage.press("escape")
        await stage.sees("Peek · ")
        said = stage.part("keys")
        may_end.set()
        assert "not hired" not in said
        await stage.sees("hired fixer2: run 1 is up")
        assert stage.app.context.drafts == {}


@pytest.mark.long
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
        word = stage.app.screen.query_one("#hire-word", StaticLines)
        assert any("no API key" in plain(line) for line in word.lines), "the form says so as long as it stays as it is"
        await stage.write("!")
        await stage.until(lambda: "ready" in plain(word.lines[-1]), "the line of the changed form")


@pytest.mark.long
async def test_a_second_form_is_not_opened_beside_the_first(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await _fill(stage, "fixer2", "go on")
        await stage.press("tab", "3")
        await stage.sees("Tasks ·")
        await stage.press("N")
        await stage.sees("fixer2", "this form is open still")
        await stage.press("escape")
        await stage.press("1")
        await stage.sees("━ Team")


@pytest.mark.long
@pytest.mark.parametrize("key", ["q", pytest.param("t", marks=pytest.mark.long)])
async def test_a_form_on_another_view_is_not_thrown_away(frozen: Frozen, key: str) -> None:
    async with opened(frozen, 80, 24) as stage:
        await _fill(stage, "fixer2", "go on")
        await stage.press("tab", "4")
        await stage.sees("Needs you · 5")
        await stage.settles()
        await stage.press(key)
        await stage.sees("Hire an agent", "go on", "this form is open still")
        await stage.press("escape")
        await stage.sees_not("this form is open still")


@pytest.mark.long
async def test_a_prompt_not_sent_is_there_in_the_next_hire_form(
    frozen: Frozen, monkeypatch: pytest.MonkeyPatch
) -> None:
    _spawned(monkeypatch)
    async with opened(frozen, 80, 24) as stage:
        await _fill(stage, "fixer2", "fix it")
        await stage.press("escape")
        await stage.sees("not hired; n shows the prompt again", "Peek · ")
        assert "hire" not in stage.app.context.drafts, "it is no message to an agent of that name"
        await stage.press("n")
        await stage.sees("Hire an agent", "fix it")
        await stage.press("ctrl+s")
        await stage.sees("hired fixer2")
        assert stage.app.context.drafts == {}


@pytest.mark.long
@pytest.mark.parametrize("size", [(80, 24), pytest.param((60, 20), marks=pytest.mark.long)])
async def test_the_key_line_says_how_to_go_on_in_each_field(frozen: Frozen, size: tuple[int, int]) -> None:
    async with opened(frozen, *size) as stage:
        await stage.press("n")
        await stage.sees("Hire an agent", "^s hires, not yet")
        for keys, hints in (
            ("", "Tab next field"),
            ("enter", "→ change|Tab next field"),
            ("enter", "Tab next field"),
            ("enter g o", "^s hire|Tab next field"),
            ("tab", "^s hire|Space yes/no|Tab next field"),
        ):
            await stage.press(*keys.split())
            await stage.sees(*hints.split("|"), "Esc cancel")
        await stage.press("space")
        await stage.sees("[x] an approved plan first")


@pytest.mark.long
async def test_nothing_of_the_form_is_cut_at_sixty_columns(frozen: Frozen) -> None:
    async with opened(frozen, 60, 38) as stage:
        await _fill(stage, "agent1", "", more=True)
        await stage.sees("no", "network", "foreground: watch it", "[ ] run once", "budget none", "memory no limit")
        await stage.sees("it needs a prompt")
        await stage.settles()
        form = "\n".join(stage.text[2 : stage.all.count("\n", 0, stage.all.index("agent1 reads"))])
        assert "…" not in form


@pytest.mark.long
async def test_what_is_wrong_stands_below_its_field(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await _fill(stage, "Fixer", "go")
        await stage.sees("^s hires, not yet: fix the name", "a name starts with a-z")
        await stage.settles()
        at = next(y for y, line in enumerate(stage.text) if "Name     Fixer" in line)
        assert "a name starts with a-z" in stage.text[at + 1]


@pytest.mark.long
@pytest.mark.parametrize(
    ("height", "name", "wrong"),
    [pytest.param(24, "fixer2", "limits", marks=pytest.mark.long), (40, "Fixer", "name and the limits")],
)
async def test_every_field_that_is_wrong_says_so_below_it(frozen: Frozen, height: int, name: str, wrong: str) -> None:
    async with opened(frozen, 80, height) as stage:
        await _fill(stage, name, "go")
        await stage.press(*["tab"] * 7, "space", *["tab"] * 5, *["backspace"] * 3)
        await stage.write("abc")
        await stage.press("tab")
        await stage.write("-5")
        await stage.sees(f"^s hires, not yet: fix the {wrong}", "'-5' is not a budget", "turns abc")
        await stage.settles()
        assert ("a name starts with a-z" in stage.all) is (name == "Fixer")

        def below() -> str:
            at = next(y for y, line in enumerate(stage.text) if "turns abc" in line)
            return " ".join(line.strip(_FRAME) for line in stage.text[at + 1 : at + 3])

        says = "the turn limit must be 1 or more; '-5' is not a budget: give money as $5 or tokens as 200k"
        await stage.until(lambda: below() == says, "what is wrong")
        await stage.press("shift+tab", *["backspace"] * 3, "9")
        await stage.sees("turns 9", "'-5' is not a budget")
        await stage.sees_not("the turn limit")


@pytest.mark.long
async def test_a_command_that_grows_moves_no_field(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await _fill(stage, "fixer2", "go")
        await stage.settles()
        before = next(y for y, line in enumerate(stage.text) if "▸ More" in line)
        await stage.write(" on with the grammar of the second version and everything about it")
        await stage.sees("the grammar of the second version and everything about it'")
        await stage.settles()
        assert next(y for y, line in enumerate(stage.text) if "▸ More" in line) == before


# ---------------------------------------------------------------------------------------- terms and foreground


@pytest.mark.long
async def test_the_form_is_whole_at_80_by_24(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.press("n")
        await stage.sees(
            "Name", "Type", "Role", "What shall it do?", "Prompt", "How far may it go alone?", "Require", "my approval",
            "Allow", "own checkout", "▸ More: usual model · 100 turns · no budget", "Space opens",
        )  # fmt: skip
        await stage.can("^o", "load profile")


@pytest.mark.long
async def test_the_form_says_that_there_is_no_key(frozen: Frozen, monkeypatch: pytest.MonkeyPatch) -> None:
    team = Team(frozen.directory, environment={}, now=lambda: NOW)
    monkeypatch.setattr(Frozen, "team", property(lambda _: team))
    async with opened(frozen, 120, 36) as stage:
        await _fill(stage, "fixer2", "go")
        await stage.sees("It cannot start: there is no key for claude-sonnet-5-5.")
        assert "100 calls" not in stage.all


async def test_the_form_says_at_once_what_a_hire_permits_and_costs(
    frozen: Frozen, monkeypatch: pytest.MonkeyPatch
) -> None:
    team = Team(frozen.directory, environment={"ANTHROPIC_API_KEY": "k"}, now=lambda: NOW)
    monkeypatch.setattr(Frozen, "team", property(lambda _: team))
    async with opened(frozen, 120, 36) as stage:
        await _fill(stage, "fixer2", "go")
        form = stage.app.screen.query_one(HireForm)
        begin = "fixer2 reads, writes and runs commands in your files, "
        await stage.sees(f"{begin}without network, without asking you.")
        await stage.sees("It may make 100 calls of claude-sonnet-5-5 for a prompt, without a budget.")
        form.query_one("#hire-ask", Checkbox).value = True
        form.query_one("#hire-network", Checkbox).value = True
        await stage.sees(f"{begin}with network, asking you before each write and command.")
        form.query_one("#hire-plan", Checkbox).value = True
        form.query_one("#hire-worktree", Checkbox).value = True
        form.query_one("#hire-budget", Input).value = "$2"
        await stage.sees(
            "in a checkout of its own, with network, after you approved its plan, asking", "until $2.00 is"
        )
        form.query_one("#hire-type", Select).choose("explore")
        await stage.sees("fixer2 reads a checkout of its own")
        form.query_one("#hire-worktree", Checkbox).value = False
        await stage.sees("fixer2 reads your files")
        form.query_one("#hire-turns", Input).value = "abc"
        await stage.sees_not("calls of")
        form.query_one("#hire-turns", Input).value = "9"
        await stage.sees("It may make 9 calls of")
        form.query_one("#hire-budget", Input).value = "much"
        await stage.sees_not("calls of")


@pytest.mark.long
async def test_what_a_hire_permits_and_costs_counts_the_settings_of_the_team(
    frozen: Frozen, monkeypatch: pytest.MonkeyPatch
) -> None:
    def settle(config: Config) -> None:
        config.budget, config.plan_approver, config.collisions = "200000", "lead", "hold"
        config.rules = [Rule(id="r1", effect="ask", tool="bash", pattern="git push *")]

    roster.change(frozen.directory, settle)
    team = Team(frozen.directory, environment={"ANTHROPIC_API_KEY": "k"}, now=lambda: NOW)
    monkeypatch.setattr(Frozen, "team", property(lambda _: team))
    async with opened(frozen, 200, 40) as stage:
        await _fill(stage, "fixer2", "go")
        form = stage.app.screen.query_one(HireForm)
        asks = "asking you where a rule says so and before it changes a file of another agent."
        await stage.sees(f"without network, {asks}", "for a prompt, until the team's 200k tokens is used.")
        form.query_one("#hire-budget", Input).value = "$2"
        form.query_one("#hire-plan", Checkbox).value = True
        await stage.sees(f"after the lead approved its plan, {asks}", "until $2.00 or the team's 200k tokens is used.")
        roster.change(frozen.directory, lambda config: config.rules.append(Rule(id="r2", tool="bash", scope="git")))
    lead = Spec(prompt="lead", prompt_id="p", type="lead", at=1, engine=Engine(name="claude", command=["claude"]))
    agents.change_spec(frozen.directory.agent("lead"), lambda _: lead)
    async with opened(frozen, 200, 40) as stage:
        await _fill(stage, "fixer2", "go")
        stage.app.screen.query_one("#hire-plan", Checkbox).value = True
        await stage.sees("after you approved its plan, asking you")
    async with opened(frozen, 200, 40) as stage:
        await _fill(stage, "fixer2", "go")
        stage.app.screen.query_one("#hire-ask", Checkbox).value = True
        await stage.sees("asking you before each write and command that no rule allows.")


@pytest.mark.long
async def test_folded_fields_open_by_a_key_and_where_one_is_wrong(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await _fill(stage, "fixer2", "go")
        await stage.sees("▸ More: usual model · 100 turns · no budget")
        assert "Model    " not in stage.all
        await stage.press(*["tab"] * 7, "space")
        await stage.sees("▾ More", "Space closes", "Model    offline model")
        await stage.press("space")
        await stage.sees("Space opens")
        stage.app.screen.query_one("#hire-budget", Input).value = "much"
        await stage.sees("▾ More", "'much' is not a budget", "fix the limits")


@pytest.mark.long
async def test_folded_fields_show_every_value_that_is_set(on_hosts: Frozen) -> None:
    async with opened(on_hosts, 80, 40) as stage:
        await _fill(stage, "fixer2", "go")
        form = stage.app.screen.query_one(HireForm)
        assert not form.query_one("#row-values").display
        for ident, text in (("model", "claude-opus-4-5"), ("turns", "7"), ("budget", "$2"), ("memory", "2G")):
            form.query_one(f"#hire-{ident}", Input).value = text
        form.query_one("#hire-labels", Input).value = "big gpu"
        for ident, value in (("effort", "high"), ("thinking", "off"), ("host", "build1"), ("task", "14")):
            form.query_one(f"#hire-{ident}", Select).choose(value)
        form.query_one("#hire-mode", Radio).choose("foreground")
        for ident in ("autoclaim", "once", "restart"):
            form.query_one(f"#hire-{ident}", Checkbox).value = True
        await stage.sees(
            "▸ More: claude-opus-4-5 · 7 turns · $2", "effort high · thinking off · foreground · claims tasks"
        )
        await stage.sees("runs once ·", "restarts · memory 2G", "task #14", "host build1", "labels big gpu")
        form.query_one("#hire-more", Fold).value = True
        await stage.sees_not("claims tasks · ")


@pytest.mark.long
async def test_every_tick_is_a_flag_of_the_command(frozen: Frozen) -> None:
    async with opened(frozen, 120, 36) as stage:
        await _fill(stage, "fixer2", "go")
        for _ in range(5):
            await stage.press("tab", "space")
        await stage.press("tab", "tab", "tab", "space", "tab", "tab", "space", "tab", "space")
        await stage.sees("--strict-plan --ask --network --web --autoclaim --once --background")


@pytest.mark.long
async def test_restart_and_memory_limit_are_options_of_the_hire(frozen: Frozen) -> None:
    async with opened(frozen, 120, 36) as stage:
        await _fill(stage, "fixer2", "go")
        form = stage.app.screen.query_one(HireForm)
        form.query_one("#hire-restart", Checkbox).value = True
        memory = form.query_one("#hire-memory", Input)
        memory.value = "much"
        await stage.sees("'much' is not a size in memory: give one such as 512M or 2G", "fix the memory")
        memory.value = "1.5g"
        await stage.sees("--restart --max-memory 1.5G", "✓ ready")
        assert (form.hire().flags.restart, form.hire().flags.max_memory) == (True, 3 * 2**29)
        form.fill("other", form.profile())
        assert memory.value == "1.5G"


@pytest.mark.long
async def test_the_field_that_one_is_in_is_in_sight_on_a_small_screen(frozen: Frozen) -> None:
    async with opened(frozen, 80, 14) as stage:
        await _fill(stage, "fixer2", "go")
        await stage.press(*["tab"] * 7, "space", *["tab"] * 9)
        await stage.sees("‹ none ›")


def _spawned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hiring, "spawn", lambda _, hire: hiring.Assignment(hire.name, "p", 1, fresh=True))


async def _hire_in_foreground(stage: Stage, name: str) -> None:
    await _fill(stage, name, "go")
    await stage.press(*["tab"] * 7, "space", "tab", "right")
    await stage.sees("(•) foreground")
    await stage.sees_not("--background")
    await stage.press("ctrl+s")
    await stage.sees("foreground: waiting for the result; Esc/b moves it to the background")


@pytest.mark.long
async def test_a_foreground_hire_is_watched_until_its_result(frozen: Frozen, monkeypatch: pytest.MonkeyPatch) -> None:
    _spawned(monkeypatch)
    async with opened(frozen, 80, 24) as stage:
        await _hire_in_foreground(stage, "fixer2")
        agent = frozen.hire("fixer2", "code", "working", "thinking", ago=2, pid=4500)
        await stage.can("b", "background")
        answer = Answer(ts=NOW + 1, run=1, assignment="p", answers=["p"], text="parse() takes 2.0", result="f.md")
        journal.append(agent.journal, answer)
        await stage.sees("parse() takes 2.0", "it sent its result")
        await stage.press("escape")
        await stage.sees("Peek · ")


@pytest.mark.long
async def test_a_foreground_hire_that_dies_says_so(frozen: Frozen, monkeypatch: pytest.MonkeyPatch) -> None:
    _spawned(monkeypatch)
    async with opened(frozen, 80, 24) as stage:
        await _hire_in_foreground(stage, "fixer2")
        frozen.gone("fixer2", "code", Exit(run=1, signal=9, reason="died", at=NOW + 1, buried=True), 4500)
        await stage.sees("it ended without a result: killed by SIGKILL")


@pytest.mark.long
@pytest.mark.parametrize("key", ["b", pytest.param("escape", marks=pytest.mark.long)])
async def test_a_foreground_hire_is_put_to_the_background(
    frozen: Frozen, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    _spawned(monkeypatch)
    async with opened(frozen, 80, 24) as stage:
        await _hire_in_foreground(stage, "fixer2")
        await stage.press(key)
        await stage.sees("fixer2 works in the background", "Peek · ")


async def _find_on_page(stage: Stage) -> None:
    await stage.press("/")
    await stage.sees("find ›")
    await stage.write("routes")
    await stage.press("enter")
    await stage.sees_not("find ›")


@pytest.mark.long
async def test_esc_on_a_filtered_foreground_page_keeps_waiting(frozen: Frozen, monkeypatch: pytest.MonkeyPatch) -> None:
    _spawned(monkeypatch)
    async with opened(frozen, 80, 24) as stage:
        await _hire_in_foreground(stage, "fixer2")
        await _find_on_page(stage)
        await stage.press("escape")
        await stage.sees("foreground: waiting for the result")
        assert "in the background" not in stage.part("keys")
        await stage.press("escape")
        await stage.sees("fixer2 works in the background", "Peek · ")


@pytest.mark.long
async def test_one_key_moves_a_filtered_foreground_page_to_background(
    frozen: Frozen, monkeypatch: pytest.MonkeyPatch
) -> None:
    _spawned(monkeypatch)
    async with opened(frozen, 80, 24) as stage:
        await _hire_in_foreground(stage, "fixer2")
        await _find_on_page(stage)
        await stage.press("b")
        await stage.sees("fixer2 works in the background", "Peek · ")


# ---------------------------------------------------------------------------------------------------- profiles


@pytest.mark.long
async def test_a_profile_is_kept_and_fills_the_form_again(frozen: Frozen, tmp_path: Path) -> None:
    async with opened(frozen, 80, 24) as stage:
        await _fill(stage, "fixer2", "Fix the grammar")
        await stage.press("tab", "space", "ctrl+p")
        await stage.sees("keep as profile ›")
        await stage.write("patcher")
        await stage.press("enter")
        await stage.sees("kept as patcher, without a key")
        await stage.press("escape", "n", "ctrl+o")
        await stage.sees("load profile ›", "patcher")
        await stage.press("p", "tab", "enter")
        await stage.sees(
            "filled from the profile patcher", "Fix the grammar", "[x] an approved plan", "Name     patcher"
        )
    file = tmp_path / ".config" / "crewboard" / "profiles" / "patcher.json"
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.long
async def test_a_damaged_profile_is_named_and_left_out(frozen: Frozen, tmp_path: Path) -> None:
    place = tmp_path / ".config" / "crewboard" / "profiles"
    profiles.save(place, "patcher", Profile(type="code", prompt="fix"))
    (place / "broken.json").write_text("{")
    async with opened(frozen, 80, 24) as stage:
        await stage.press("n", "ctrl+o")
        await stage.write("other")
        await stage.press("enter")
        await stage.sees("the profiles are patcher")
        await stage.press("escape")
        await stage.sees("damaged, left out: broken.json")
    assert (place / "broken.json").read_text() == "{"


@pytest.mark.long
async def test_a_name_that_was_typed_stays_when_a_profile_is_loaded(frozen: Frozen, tmp_path: Path) -> None:
    profiles.save(tmp_path / ".config" / "crewboard" / "profiles", "patcher", Profile(type="test", prompt="fix"))
    async with opened(frozen, 80, 24) as stage:
        await stage.press("n")
        await stage.sees("Hire an agent")
        await stage.write("mine")
        await stage.press("ctrl+o")
        await stage.write("patcher")
        await stage.press("enter")
        await stage.sees("Name     mine", "[test]")


def test_a_profile_never_holds_a_key(tmp_path: Path) -> None:
    secret = Profile(type="code", prompt="use sk-ant-api03-abcdefghijklmnop to ask")
    with pytest.raises(UsageError, match="contains an API key"):
        profiles.save(tmp_path, "patcher", secret)
    assert list(tmp_path.iterdir()) == []


def test_profiles_are_where_the_user_keeps_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert profiles.folder(os.environ) == tmp_path / "crewboard" / "profiles"
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative")
    assert profiles.folder(os.environ) == Path.home() / ".config" / "crewboard" / "profiles"


# ------------------------------------------------------------------------------------------------- left and typed


@pytest.mark.long
async def test_a_form_that_was_left_comes_back_as_it_was(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await _fill(stage, "fixer2", "fix it")
        form = stage.app.screen.query_one(HireForm)
        form.query_one("#hire-type", Select).choose("test")
        form.query_one("#hire-role", Input).value = "tester"
        form.query_one("#hire-plan", Checkbox).value = True
        form.query_one("#hire-turns", Input).value = "7"
        await stage.press("escape")
        await stage.sees("Peek · ")
        await stage.press("n")
        await stage.sees("Name     fixer2", "[test]", "tester", "fix it", "[x] an approved plan", "7 turns")


@pytest.mark.long
async def test_what_was_hired_is_not_in_the_next_form(frozen: Frozen, monkeypatch: pytest.MonkeyPatch) -> None:
    _spawned(monkeypatch)
    async with opened(frozen, 80, 24) as stage:
        await _fill(stage, "fixer2", "fix it")
        await stage.press("escape", "n")
        await stage.sees("Name     fixer2")
        await stage.press("ctrl+s")
        await stage.sees("hired fixer2")
        await stage.press("n")
        await stage.sees("Name     agent1", "its task;")


@pytest.mark.long
async def test_keys_typed_while_the_form_opens_are_its_name(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.write("nabc")
        await stage.sees("Name     abc")


# ------------------------------------------------------------------------------------------------------- clone


@pytest.mark.long
async def test_a_clone_begins_with_the_terms_of_the_selected_agent(frozen: Frozen) -> None:
    terms = HireOptions(plan=True, max_turns=7, task=14, unsafe_no_sandbox=True)
    agents.change_spec(frozen.directory.agent("parser"), lambda old: _with(old, terms))
    async with opened(frozen, 120, 36) as stage:
        await stage.press("N")
        await stage.sees("Name     parser2", "Be parser", "grammar", "[x] an approved plan", "· 7 turns · no budget")
        await stage.sees("✓ ready: ^s hires it")
        assert "unsafe" not in stage.all


@pytest.mark.long
@pytest.mark.parametrize(("model", "is_named"), [("claude-sonnet-5-5", False), ("claude-haiku-4-5", True)])
async def test_a_clone_names_only_a_model_that_was_chosen(frozen: Frozen, model: str, is_named: bool) -> None:
    agents.change_spec(frozen.directory.agent("parser"), lambda old: old.replace(model=model))  # type: ignore[union-attr]
    async with opened(frozen, 120, 36) as stage:
        await stage.press("N")
        await stage.sees("Name     parser2", "✓ ready: ^s hires it")
        assert ("claude-" in stage.all, f"--model {model}" in stage.all) == (is_named, is_named)


@pytest.mark.long
async def test_a_clone_leaves_the_prompt_that_was_kept_before(frozen: Frozen, monkeypatch: pytest.MonkeyPatch) -> None:
    _spawned(monkeypatch)
    async with opened(frozen, 80, 24) as stage:
        await _fill(stage, "fixer2", "fix it")
        await stage.press("escape")
        await stage.sees("Peek · ")
        await stage.press("N")
        await stage.sees("Name     parser2")
        await stage.press("tab", "tab", "tab")
        await stage.write(" now")
        await stage.press("escape")
        await stage.sees("Peek · ")
        assert list(stage.app.context.drafts.values()) == ["Be parser now\n\nfix it"]
        await stage.press("N")
        await stage.sees("Name     parser2")
        await stage.press("ctrl+s")
        await stage.sees("hired parser2")
        assert list(stage.app.context.drafts.values()) == ["Be parser now\n\nfix it"]


@pytest.mark.long
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
    agents.change_spec(empty.directory.agent("lead"), lambda old: _with(old, HireOptions(), "lead"))
    roster.put(empty.directory, Member(name="lead", type="lead"))
    async with opened(empty, 80, 24) as stage:
        await stage.settles()
        await stage.press("N")
        await stage.settles()
        assert "Hire an agent" not in stage.all
        await stage.sees("clone: lead is a lead, which is not cloned")


def _with(old: Spec | None, flags: HireOptions, kind: str = "code") -> Spec:
    assert old is not None
    return old.replace(flags=flags, type=kind)


@pytest.mark.long
@pytest.mark.parametrize(
    ("environment", "model"),
    [
        pytest.param({"CREWBOARD_OFFLINE": "1"}, "offline model", marks=pytest.mark.long),
        ({}, "claude-sonnet-5-5"),
    ],
)
async def test_it_names_the_model_that_will_answer(
    frozen: Frozen, environment: dict[str, str], model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    team = Team(frozen.directory, environment=environment, now=lambda: NOW)
    monkeypatch.setattr(Frozen, "team", property(lambda _: team))
    async with opened(frozen, 80, 40) as stage:
        await _fill(stage, "agent1", "go", more=True)
        await stage.sees(f"Model    {model}")


@pytest.mark.long
async def test_the_form_offers_only_tasks_that_can_begin(empty: Frozen) -> None:
    empty.task(1, "first", required_type="test")
    empty.task(2, "second", blocked_by=[1])
    async with opened(empty, 100, 36) as stage:
        await _fill(stage, "fixer2", "Make parse accept it")
        await stage.press(*["tab"] * 7, "space", *["tab"] * 9, "right")
        await stage.sees("‹ #1 first", "task 1 is for an agent of type test; fixer2 is of type code")
        await stage.press("right")
        await stage.sees("‹ none ›", "ready")


@pytest.mark.long
async def test_the_form_chooses_effort_and_thinking(frozen: Frozen) -> None:
    async with opened(frozen, 120, 36) as stage:
        await _fill(stage, "fixer2", "go", more=True)
        await stage.sees("Effort   ‹ usual ›", "thinking ‹ usual ›")
        await stage.press(*["tab"] * 14, *["right"] * 3, "tab", "left")
        await stage.sees("Effort   ‹ high ›", "thinking ‹ off ›", "--effort high --thinking off")
        flags = stage.app.screen.query_one(HireForm).hire().flags
        assert (flags.effort, flags.thinking) == ("high", "off")


@pytest.mark.long
async def test_the_form_offers_only_what_the_model_takes(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await _fill(stage, "fixer2", "go", more=True)
        form = stage.app.screen.query_one(HireForm)
        effort, thinking = form.query_one("#hire-effort", Select), form.query_one("#hire-thinking", Select)
        assert "xhigh" in [value for value, _ in effort.options], "nothing is known before it matters"
        form.query_one("#hire-model", Input).value = "claude-sonnet-4-6"
        effort.focus()
        await stage.until(lambda: "xhigh" not in [value for value, _ in effort.options], "what it takes")
        assert [value for value, _ in effort.options] == ["", "low", "medium", "high", "max"]
        effort.choose("max")
        form.query_one("#hire-model", Input).value = "claude-haiku-4-5"
        thinking.focus()
        await stage.sees("claude-haiku-4-5 does not take the effort max", "fix the limits")
        assert ([value for value, _ in effort.options], [value for value, _ in thinking.options]) == (
            ["", "max"], ["", "off"]
        )  # fmt: skip
        effort.choose("")
        await stage.sees("ready")


@pytest.mark.long
async def test_the_api_is_asked_once_what_a_model_takes(frozen: Frozen, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(models, "ASK_TIMEOUT", WAIT_TIMEOUT)

    class Describing(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(models.offline("claude-sonnet-4-6")).encode())

    with HTTPServer(("127.0.0.1", 0), Describing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        environment = {"ANTHROPIC_BASE_URL": f"http://127.0.0.1:{server.server_port}", "ANTHROPIC_API_KEY": "k"}
        team = Team(frozen.directory, environment=environment, now=lambda: NOW)
        monkeypatch.setattr(Frozen, "team", property(lambda _: team))
        async with opened(frozen, 80, 24) as stage:
            await _fill(stage, "fixer2", "go", more=True)
            effort = stage.app.screen.query_one("#hire-effort", Select)
            for _ in range(2):
                effort.focus()
                await stage.until(lambda: "xhigh" not in [value for value, _ in effort.options], "the answer")
                stage.app.screen.query_one("#hire-prompt").focus()
        server.shutdown()
    assert asked == ["/v1/models/claude-sonnet-5-5"]


@pytest.mark.long
async def test_the_form_says_that_the_web_lets_data_out(frozen: Frozen) -> None:
    async with opened(frozen, 120, 36) as stage:
        await _fill(stage, "seeker", "go")
        await stage.sees("[ ] web: sends data out")
        assert "--web" not in stage.all
        await stage.press(*["tab"] * 5, "space")
        await stage.sees("any domain; or only some", "queries leave this machine", "--web --background")
        await stage.press("tab")
        assert stage.app.screen.query_one("#hire-domains", Input).has_focus, "Tab goes on with the web"
        await stage.press(*"http://a.org")
        await stage.sees("'http://a.org' is not a domain", "fix the domains")
        assert "--web" not in stage.all
        await stage.press(*["backspace"] * 12, *"docs.a.org b.org")
        await stage.sees("--web --allowed-domains docs.a.org,b.org", "ready")
        flags = stage.app.screen.query_one(HireForm).hire().flags
        assert (flags.web, flags.allowed_domains) == (True, ["docs.a.org", "b.org"])


@pytest.mark.long
async def test_the_error_of_a_domain_is_shown_whole(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await _fill(stage, "seeker", "go")
        await stage.press(*["tab"] * 5, "space", "tab", *"http://a.org")
        await stage.sees("'http://a.org' is not a domain: write it", "without https://", "fix the domains")


def test_the_command_of_the_form_is_the_same_in_a_shell() -> None:
    words = ["crewboard", "spawn", "--prompt", "first 'line'\n\tsecond \\ é\x07", "a b"]
    done = subprocess.run(
        ["bash", "-c", f"printf '%s\\0' {shell_line(words)}"], capture_output=True, check=True, encoding="utf-8"
    )
    assert "\n" not in shell_line(words)
    assert done.stdout.split("\0")[:-1] == words


@pytest.mark.long
async def test_keys_in_one_read_fill_the_field_in_their_order(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.press("n")
        await stage.sees("Hire an agent")
        form = stage.app.screen.query_one(HireForm)
        await stage.send_bytes("\x1b[F" + "\x7f" * len(form.agent_name) + "exp2\t")
        await stage.until(lambda: form.agent_name == "exp2", "the name")
        await stage.until(lambda: not form.query_one("#hire-name", Input).has_focus, "the next field")


@pytest.mark.long
async def test_a_deleted_team_is_not_made_again_by_a_hire(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await _fill(stage, "fixer2", "go")
        await stage.sees("ready")
        frozen.directory.purge()
        await stage.sees("hires, not yet: the team demo was deleted: t opens another one")
        await stage.press("ctrl+s")
        await stage.sees("hire: the team demo was deleted")
        await stage.press("escape")
        await stage.sees("the team demo was deleted   t opens another one")
        await stage.press("n")
        await stage.sees("new: the team demo was deleted: t opens another one")
        assert "Hire an agent" not in stage.all


@pytest.fixture
def on_hosts(frozen: Frozen) -> Frozen:
    """Return the team with two hosts that are up, and one that is lost."""
    add_host(frozen.directory, "build1", labels=["big", "gpu"])
    add_host(frozen.directory, "build2", slots=1)
    add_host(frozen.directory, "build3", labels=["tpu"])
    frozen.probe.hosts_up = frozenset({"build1", "build2"})
    place(frozen, "api", "build2")
    return frozen


@pytest.mark.long
async def test_the_form_chooses_host_and_labels(on_hosts: Frozen) -> None:
    async with opened(on_hosts, 80, 40) as stage:
        await _fill(stage, "fixer2", "go", more=True)
        await stage.sees("Name", "Host     ‹ any ›", "labels none; big, gpu", "memory no limit", "✓ ready")
        assert "own checkout" not in stage.all
        labels = stage.app.screen.query_one("#hire-labels", Input)
        labels.focus()
        await stage.write("gpu b")
        await stage.until(lambda: labels._suggestion == "gpu big", "a known label")
        await stage.press("right")
        await stage.sees("--needs gpu --needs big", "✓ ready")
        host = stage.app.screen.query_one("#hire-host", Select)
        host.focus()
        assert [label for _, label in host.options] == ["any", "build1 0/8", "build2 1/1"]
        await stage.press("right")
        await stage.sees("‹ build1 0/8 ›", "--host build1", "✓ ready")
        await stage.press("right")
        await stage.sees("‹ build2 1/1 ›", "waits for the host build2 with big and gpu", "✓ ready")
        hire = stage.app.screen.query_one(HireForm).hire()
        assert (hire.flags.host, hire.flags.needs) == ("build2", ["gpu", "big"])


@pytest.mark.long
async def test_the_form_names_what_no_host_can_do(on_hosts: Frozen) -> None:
    async with opened(on_hosts, 120, 36) as stage:
        await _fill(stage, "fixer2", "go")
        labels = stage.app.screen.query_one("#hire-labels", Input)
        labels.value = "tpu"
        await stage.sees("waits for a host with tpu", "--needs tpu")
        labels.value = "GPU"
        await stage.sees("'GPU' is no label: use a-z, 0-9, - and _, as in gpu", "fix the labels")
        await stage.sees_not("waits for")
        labels.value = ""
        on_hosts.probe.hosts_up = frozenset()
        await stage.sees("waits for a host: none of this team is up; start one with `crewboard host`", "✓ ready")


@pytest.mark.long
async def test_a_clone_asks_for_the_host_of_its_original(on_hosts: Frozen) -> None:
    flags = HireOptions(host="build3", needs=["tpu"], worktree=True)
    agents.change_spec(on_hosts.directory.agent("api"), lambda old: _with(old, flags))
    async with opened(on_hosts, 120, 36) as stage:
        await stage.press(*["j"] * 5, "N")
        await stage.sees("‹ build3 ›", "labels tpu", "waits for the host build3 with tpu, which is lost")
        await stage.sees("--host build3 --needs tpu")
        assert "--worktree" not in stage.all


@pytest.mark.long
async def test_the_alert_says_at_once_how_its_key_is_pressed_from_a_field(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.press("n")
        await stage.sees("Hire an agent")
        await stage.settles()
        assert " Esc ! " in stage.part("alert")
        await stage.press("tab")
        assert " Esc ! " not in stage.part("alert")
        await stage.press("tab")
        assert " Esc ! " in stage.part("alert")


@pytest.mark.long
async def test_tab_behind_space_goes_to_the_field_that_it_shows(frozen: Frozen) -> None:
    """Both keys may come in one read of the terminal."""
    async with opened(frozen, 120, 36) as stage:
        await _fill(stage, "seeker", "go")
        await stage.press(*["tab"] * 5)
        await stage.send_bytes(" \t")
        await stage.sees("any domain; or only some")
        assert stage.app.screen.query_one("#hire-domains", Input).has_focus


@pytest.mark.long
async def test_the_form_does_not_send_to_itself(empty: Frozen) -> None:
    async with opened(empty, 80, 24) as stage:
        await stage.press("n")
        await stage.sees("Hire an agent", "it needs a prompt")
        await stage.settles()
        assert "first agent" not in stage.all
