"""Guidance for new users: empty views, tooltips, help for the focused pane, the palette."""

import ast
import importlib
import pkgutil
import re
import time
from pathlib import Path

import pytest
from textual.binding import Binding
from textual.command import Command, CommandList, CommandPalette
from textual.dom import DOMNode

import crewboard_tui
from crewboard import engines, env, local_servers
from crewboard.commands.context import Team
from crewboard.protocol import requests
from crewboard.readmodel.reader import TeamReader
from crewboard.records.agents import HireOptions, Spec, Tokens
from crewboard.records.events import RunStarted
from crewboard.records.processes import Exit
from crewboard.records.team import Member
from crewboard.store import agents, journal, roster
from crewboard.store.layout import TeamDirectory, team_directories
from crewboard.store.tasks import CLOSED
from crewboard_tui.app import CrewboardApp
from crewboard_tui.demo import coach
from crewboard_tui.keymap.bindings import default_key
from crewboard_tui.settings import Settings
from crewboard_tui.views import board, palette
from crewboard_tui.views.help import HelpScreen
from crewboard_tui.widgets.line_view import LineView
from tests.cli.test_engines import install
from tests.frozen import NOW, Frozen, make_empty
from tests.model import listing
from tests.tui.stage import WAIT_TIMEOUT, Stage, opened
from tests.worktrees.conftest import git


def ours() -> set[type[DOMNode]]:
    """Return every screen, widget and app class of the dashboard."""
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


@pytest.mark.long
async def test_an_empty_view_says_what_to_do_first(empty: Frozen) -> None:
    async with opened(empty, 80, 24) as stage:
        for key, words in (
            ("1", "n  hires an agent"),
            ("2", "messages to you appear here"),
            ("3", "A puts the first one on the board"),
            ("4", "plans to approve, questions and crashes appear here"),
            ("5", "n hires an agent"),
            ("1", "n  hires an agent"),
            ("6", "n hires an agent"),
        ):
            await stage.press(key)
            await stage.sees(words)


async def test_an_empty_board_asks_the_store_once_what_to_do_first(
    empty: Frozen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The screen waits for the answer, and would stand still at each paint while a database is away."""
    asked: list[object] = []

    def note(team: object) -> bool:
        asked.append(team)
        return False

    monkeypatch.setattr(roster, "is_attached", note)
    async with opened(empty, 80, 24) as stage:
        await stage.sees("No agents hired yet.")
        before = len(asked)
        assert before > 0
        for key in ("5", "1", "2", "1"):
            await stage.press(key)
        await stage.sees("No agents hired yet.")
        assert len(asked) == before


@pytest.mark.long
async def test_the_panes_of_an_empty_board_say_what_will_stand_there(
    empty: Frozen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CrewboardApp, "CLICK_CHAIN_TIME_THRESHOLD", 3600)
    async with opened(empty, 120, 40) as stage:
        said = " ".join(stage.all.replace("│", " ").split())
        assert "It becomes a process of its own and goes to work in ~/inkpot" in said
        await stage.sees("no tasks yet", "3 and then A adds one", "the selected agent's mail stands here")
        empty.hire("scout", "explore", "idle", "", ago=5, pid=77)
        await stage.sees("no mail", "m writes some", "no tasks yet")
        await stage.settles()
        await stage.pilot.click("#board-tasks", offset=(3, 1), times=2)
        await stage.sees("━ Tasks ━", "no tasks yet", "A puts the first one on the board")


async def test_it_names_the_users_own_keys(empty: Frozen) -> None:
    mine = Settings(keys={"agent.hire": "h", "app.leave": "Q"})
    async with opened(empty, 80, 24, settings=mine) as stage:
        await stage.sees("h  hires an agent", "Q leaves")
        await stage.press("5")
        await stage.sees("h hires an agent")


_KEY = re.compile(r"⏎|\b(Esc|Enter|Tab)\b|\^[a-z]\b|(^|[:;·] )([b-zA-Z!]|\W \W) (again|next|tab|[a-z]+s) ")


def _said(source: str) -> list[str]:
    """Return the strings of a module, without docstrings."""
    nodes = list(ast.walk(ast.parse(source)))
    silent = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    texts = [node.value for node in nodes if isinstance(node, ast.Constant) and id(node) not in silent]
    return [text for text in texts if isinstance(text, str)]


@pytest.mark.long
def test_no_text_names_a_key_that_may_be_another_here() -> None:
    for file in Path(crewboard_tui.__path__[0]).rglob("*.py"):
        if file.name not in ("bindings.py", "ascii.py") and "cli" not in file.parts:
            named = [text for text in _said(file.read_text()) if _KEY.search(f"{text} ") and len(text) > 1]
            assert named == [], f"{file.name}: take the key from context.key()"


@pytest.mark.long
async def test_hints_name_the_users_own_keys(frozen: Frozen) -> None:
    mine = Settings(
        keys={"draft.send": "f5", "line.leave": "f6", "hire.send": "f7", "request.approve": "f8", "request.words": "f9"}
    )
    async with opened(frozen, 80, 24, settings=mine) as stage:
        await stage.press("m")
        await stage.sees("f5 sends · ^j new line · ^e editor · f6 keeps it")
        await stage.press("f6", "n")
        await stage.sees("f7 hires, not yet: it needs a prompt")
        await stage.press("escape", "!", "!")
        await stage.sees("PLAN v2")
        await stage.press("tab")
        await stage.write("mind")
        await stage.sees("f5 when done, then f8 sends it with your approval")
        await stage.press("escape", "!")
        await stage.sees("QUESTION", "… in my own words")
        await stage.press("f9")
        await stage.sees("f9 writes, f5 sends")


async def test_where_one_may_only_look_no_key_is_offered_that_changes(empty: Frozen) -> None:
    async with opened(empty, 80, 24, read_only=True) as stage:
        await stage.press("5")
        await stage.sees("no agents yet")
        assert "hires an agent" not in stage.all


@pytest.mark.long
async def test_what_was_narrowed_to_nothing_says_how_to_see_all(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        for view in ("4", "6"):
            await stage.press(view, "/")
            await stage.write("zzz")
            await stage.press("enter")
            await stage.sees("no match · Esc shows all")


async def helped(stage: Stage) -> str:
    """Return the help on the focused pane."""
    await stage.press("?")
    await stage.until(lambda: isinstance(stage.app.screen, HelpScreen), "the help")
    await stage.until(lambda: any(log.lines for log in stage.app.screen.query(LineView)), "its lines")
    text = "\n".join("".join(span.text for span in line) for line in stage.app.screen.query_one(LineView).lines)
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


@pytest.mark.parametrize("width", [40, *(pytest.param(width, marks=pytest.mark.long) for width in (60, 80))])
async def test_help_cuts_no_sentence(frozen: Frozen, width: int) -> None:
    async with opened(frozen, width, 24) as stage:
        await stage.press("j", "j", "j", "j", "j")
        text = await helped(stage)
        assert "…" not in text
        assert "twice" in text


@pytest.mark.long
async def test_help_stands_in_two_columns_on_a_wide_terminal(frozen: Frozen) -> None:
    async with opened(frozen, 120, 40) as stage:
        text = await helped(stage)
        both = [line for line in text.splitlines() if "an agent" in line]
        assert [line.split()[-1] for line in both[:1]] == ["everywhere"]
        assert "…" not in text
        assert max(map(len, text.splitlines())) <= 118


@pytest.mark.long
async def test_help_of_a_form_knows_its_fields(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.press("n", "tab")
        text = await helped(stage)
        assert "→ l Space     choose the next value" in text


@pytest.mark.long
async def test_help_of_a_question_says_how_to_answer(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.press("!", "!", "!")
        await stage.sees("QUESTION")
        await stage.settles()
        text = await helped(stage)
        assert "answer with the selected option" in text
        assert "answer in your own words" in text


async def test_the_footer_says_what_the_key_under_the_pointer_does(frozen: Frozen) -> None:
    """Beside the keys of that side, so that the key stays where it is, and a click presses it."""
    async with opened(frozen, 80, 24) as stage:
        await stage.can("⏎", "open")
        await stage.settles()
        keys = stage.text[-1]
        for word, says in (("resume", "resume it with its mem"), ("find", "show only rows that match")):
            # What the pointer left first gives its place back.
            await stage.pilot.hover(offset=(2, 5))
            await stage.until(lambda: stage.text[-1] == keys, "the keys alone")
            await stage.pilot.hover(offset=(keys.index(word), 23))
            await stage.sees(says)
            await stage.settles()
            assert stage.text[-1].index(word) == keys.index(word)
        await stage.pilot.hover(offset=(2, 1))
        await stage.until(lambda: "show the Board" in stage.part("keys"), "what the tab does")
        await stage.pilot.hover(offset=(stage.text[2].index("age"), 2))
        await stage.until(lambda: "a click sorts by age" in stage.part("keys"), "what the head does")
        await stage.pilot.hover(offset=(2, 5))
        await stage.until(lambda: stage.text[-1] == keys, "the keys again")
        # Who goes on with keys sees them all, wherever the pointer lies.
        await stage.pilot.hover(offset=(keys.index("resume"), 23))
        await stage.until(lambda: "with its mem" in stage.part("keys"), "the help")
        await stage.press("j")
        await stage.until(lambda: "with its mem" not in stage.part("keys"), "the keys without help")


@pytest.mark.long
async def test_the_palette_finds_a_command_or_says_why_not(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        for way, words, says in (
            ("1", "zoom", "show only this pane, or all panes"),
            ("1", "pause", "pause         parser is not running: pause it"),
            ("1 ! !", "pause", "pause         only in views of agents"),
            ("", "rule", "approve+rule  no rule covers this"),
        ):
            await stage.press(*way.split())
            await stage.until(lambda: getattr(stage.app.screen, "settled", True), "the keys to live")
            await stage.press(":")
            await stage.write(words)
            await stage.sees(says)
            await stage.press("escape")
            await stage.until(lambda: not isinstance(stage.app.screen, CommandPalette), "the palette gone")


@pytest.mark.long
@pytest.mark.parametrize(
    ("words", "found", "there"),
    [
        ("docs asks", "needs you · ask", "docs › QUESTION"),
        ("webs", "team", "No agents hired yet."),
        ("see what would be", "merge         only in Changes", "merge: press a in Changes"),
        pytest.param("reviewer", "agent · idle", "demo › reviewer", marks=pytest.mark.long),
        pytest.param("#7", "task", "━ Tasks · 1/8", marks=pytest.mark.long),
        pytest.param("proc", "view · 5", "━ Processes", marks=pytest.mark.long),
        pytest.param("permission r", "view · 9", "no permission rules", marks=pytest.mark.long),
    ],
)
async def test_the_palette_goes_to_things(frozen: Frozen, words: str, found: str, there: str) -> None:
    make_empty(frozen.directory.root, "webshop")
    async with opened(frozen, 100, 30) as stage:
        await stage.settles()
        await stage.press(":")
        await stage.until(lambda: isinstance(stage.app.screen, CommandPalette), "the palette")
        await stage.write(words)
        await stage.sees(found)
        await stage.press("enter")
        await stage.settles()
        # The first Enter only marks it if the search was still under way.
        if isinstance(stage.app.screen, CommandPalette):
            await stage.press("enter")
        await stage.sees(there)


async def test_the_palette_begins_with_what_needs_you(frozen: Frozen) -> None:
    async with opened(frozen, 100, 30) as stage:
        await stage.settles()
        await stage.press(":")
        await stage.sees("parser died: killed by SIGKILL", "needs you · dead", "agent · run")
        kinds = [next((each for each in ("needs you", "agent · ") if each in line), "") for line in stage.text]
        assert [each for each in kinds if each][:6] == ["needs you"] * 5 + ["agent · "]


@pytest.mark.long
async def test_the_palette_puts_open_tasks_behind_the_commands(frozen: Frozen) -> None:
    async with opened(frozen, 100, 30) as stage:
        await stage.settles()
        tasks = stage.app.context.snapshot.view.tasks
        closed = {f"#{task.id}" for task in tasks if task.status in CLOSED}
        assert closed
        await stage.press(":")
        await stage.sees("needs you · dead")
        await stage.until(lambda: all(each.is_finished for each in stage.app.workers), "the end of the search")
        options = stage.app.screen.query_one(CommandList).options
        hits = [option.hit.text or "" for option in options if isinstance(option, Command)]
        assert [each.split()[0] for each in hits if each.startswith("#")] == [
            f"#{task.id}" for task in tasks if task.status not in CLOSED
        ]
        assert hits[-1].startswith("#")
        last_command = max(place for place, each in enumerate(hits) if "hire an agent" in each)
        assert last_command < min(place for place, each in enumerate(hits) if each.startswith("#"))
        # By its words a closed one is found.
        await stage.write(min(closed))
        await stage.sees(" task")


async def test_an_empty_list_offers_no_mark(empty: Frozen) -> None:
    async with opened(empty, 120, 40) as stage:
        await stage.until(lambda: "s sort" in stage.part("keys"), "the keys of the list")
        assert "mark" not in stage.part("keys")
        await stage.press("space")
        await stage.sees("mark: there is nothing here to act on")


@pytest.mark.long
async def test_without_a_selected_agent_the_palette_says_so(empty: Frozen) -> None:
    async with opened(empty, 80, 24) as stage:
        await stage.press(":")
        await stage.write("pause")
        await stage.sees("pause         select an agent first", "pause all     no agent is running")
        await stage.press("enter")
        await stage.settles()
        # The first Enter only marks the command if the search was still under way.
        if isinstance(stage.app.screen, CommandPalette):
            await stage.press("enter")
        await stage.sees(" pause: select an agent first")


@pytest.mark.long
async def test_the_palette_finds_what_is_typed_before_teams_are_listed(
    empty: Frozen, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(root: Path) -> list[TeamDirectory]:
        time.sleep(0.1)
        return team_directories(root)

    monkeypatch.setattr(palette, "team_directories", slow)
    async with opened(empty, 80, 24) as stage:
        await stage.send_bytes(":pau")
        await stage.send_bytes("se")
        await stage.sees("pause         select an agent first")


async def test_an_empty_board_says_that_there_is_no_key(empty: Frozen, monkeypatch: pytest.MonkeyPatch) -> None:
    without = Team(empty.directory, environment={}, now=lambda: NOW)
    monkeypatch.setattr(Frozen, "team", property(lambda _: without))
    # At 100 columns the panel is half as wide, and its text is longer than the panel.
    for columns, rows in ((80, 24), (100, 30)):
        async with opened(empty, columns, rows) as stage:
            await stage.sees("no API key: set ANTHROPIC_API_KEY", "hires an agent on the offline model")


async def test_an_empty_board_offers_a_local_model(empty: Frozen, monkeypatch: pytest.MonkeyPatch) -> None:
    without = Team(empty.directory, environment={"HOME": "/nonexistent"}, now=lambda: NOW)
    monkeypatch.setattr(Frozen, "team", property(lambda _: without))
    with listing("qwen3-coder") as url:
        monkeypatch.setattr(local_servers, "PORTS", {int(url.rpartition(":")[2]): "Ollama"})
        monkeypatch.setattr(local_servers, "TIMEOUT", WAIT_TIMEOUT)
        async with opened(empty, 80, 24) as stage:
            await stage.sees("no API key, but Ollama on this machine has qwen3-coder: M lets this team use")
            await stage.press("M")
            await stage.sees("new agents use qwen3-coder of Ollama")
            await stage.until(lambda: "no API key" not in stage.all, "the key is not asked for any more")
    config = roster.load(empty.directory)
    assert (config.server, config.model) == (url, "qwen3-coder")


@pytest.mark.parametrize("logged_in", [True, False])
async def test_an_empty_board_offers_an_engine_that_is_here(
    empty: Frozen, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, logged_in: bool
) -> None:
    without = Team(empty.directory, environment={"HOME": "/nonexistent"}, now=lambda: NOW)
    monkeypatch.setattr(Frozen, "team", property(lambda _: without))
    links = install(tmp_path / "npm", "0.101.0")
    # Of two the one that has a login.
    (links / "codex-acp").symlink_to(links / "claude-agent-acp")
    monkeypatch.setenv("PATH", f"{links}:/usr/bin:/bin")
    for name in ("CODEX_HOME", "CLAUDE_CONFIG_DIR", *engines.KNOWN["claude"].keys, *engines.KNOWN["codex"].keys):
        monkeypatch.delenv(name, raising=False)
    title = "Claude Code, once you log in with `claude`, then /login"
    if logged_in:
        (tmp_path / ".codex").mkdir()
        (tmp_path / ".codex" / "auth.json").write_text("{}")
        title = "Codex"
    async with opened(empty, 80, 24) as stage:
        await stage.sees("no API key", "F  hires an agent on the offline model, in this folder", "O  shows the demo")
        await stage.sees(f"E  uses your {title}")
        await stage.press("O")
        await stage.sees("only in a terminal: `crewboard demo`")
        await stage.press("E")
        await stage.sees(f"new agents work with {title}")
        await stage.until(lambda: "no API key" not in stage.all, "the key is not asked for any more")
        await stage.press("O")
        await stage.sees("`crewboard demo` shows a team at work")
    assert roster.load(empty.directory).engine == ("codex" if logged_in else "claude")


async def test_an_empty_board_hires_on_the_offline_model(empty: Frozen, monkeypatch: pytest.MonkeyPatch) -> None:
    without = Team(empty.directory, environment={"HOME": "/nonexistent"}, now=lambda: NOW)
    monkeypatch.setattr(Frozen, "team", property(lambda _: without))
    # Without a commit there can be no checkout of it.
    git(empty.directory.root, "init", "-q")
    async with opened(empty, 80, 24) as stage:
        await stage.sees("no API key", "F  hires an agent on the offline model")
        await stage.press("F")
        await stage.sees("Name     writer", "Write a file named hello.md", "[x] an approved plan first", "OFFLINE")
        await stage.sees("It costs nothing", "[ ] own checkout", "$ crewboard --offline spawn writer")


@pytest.mark.parametrize(
    ("environment", "marked"),
    [({env.OFFLINE: "1"}, False), ({"ANTHROPIC_API_KEY": "sk"}, True)],
    ids=["chosen", "its team's"],
)
async def test_an_empty_offline_board_offers_a_first_agent(
    empty: Frozen, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], marked: bool
) -> None:
    if marked:
        roster.change(empty.directory, lambda config: setattr(config, "offline", True))
    team = Team(empty.directory, environment={"HOME": "/nonexistent", **environment}, now=lambda: NOW)
    monkeypatch.setattr(Frozen, "team", property(lambda _: team))
    async with opened(empty, 120, 24) as stage:
        await stage.sees("F  hires an agent on the offline model", "O  shows the demo")
        assert "no API key" not in stage.all
        await stage.press("F")
        await stage.sees("Name     writer", "[x] an approved plan first")


@pytest.mark.parametrize(
    ("offline", "said"),
    [
        (True, "new agents use the offline model already: n hires one"),
        (False, "`crewboard --offline` starts with the offline model"),
    ],
)
async def test_a_board_says_why_it_offers_no_first_agent(
    frozen: Frozen, monkeypatch: pytest.MonkeyPatch, offline: bool, said: str
) -> None:
    environment = {env.OFFLINE: "1"} if offline else {"ANTHROPIC_API_KEY": "sk"}
    team = Team(frozen.directory, environment={"HOME": "/nonexistent", **environment}, now=lambda: NOW)
    monkeypatch.setattr(Frozen, "team", property(lambda _: team))
    async with opened(frozen, 120, 24) as stage:
        await stage.press("F")
        await stage.sees(said)


async def test_an_empty_board_finds_a_local_model_that_starts_later(
    empty: Frozen, monkeypatch: pytest.MonkeyPatch
) -> None:
    without = Team(empty.directory, environment={"HOME": "/nonexistent"}, now=lambda: NOW)
    monkeypatch.setattr(Frozen, "team", property(lambda _: without))
    monkeypatch.setattr(board, "LOOK_AGAIN", 0.05)
    monkeypatch.setattr(local_servers, "TIMEOUT", WAIT_TIMEOUT)
    async with opened(empty, 80, 24) as stage:
        await stage.sees("no API key: set ANTHROPIC_API_KEY")
        with listing("qwen3-coder") as url:
            monkeypatch.setattr(local_servers, "PORTS", {int(url.rpartition(":")[2]): "Ollama"})
            await stage.sees("no API key, but Ollama on this machine has qwen3-coder: M lets this team use")


@pytest.mark.long
async def test_while_writing_the_alert_names_keys_that_work(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.press("j", "m")
        await stage.until(lambda: "Esc ! open" in stage.all)
        await stage.press("escape", "!")
        await stage.sees("parser · why")


async def test_a_start_that_failed_is_shown_as_dead(empty: Frozen) -> None:
    agents.change_spec(empty.directory.agent("api"), lambda _: Spec(
        prompt="Be api", prompt_id="p", type="code", flags=HireOptions(), at=NOW - 900))  # fmt: skip
    roster.put(empty.directory, Member(name="api", type="code", added_at=NOW - 900))
    async with opened(empty, 80, 24) as stage:
        await stage.sees("✖ api", "was never started")


@pytest.mark.long
async def test_the_demo_says_step_by_step_what_to_try(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        stage.app.context.coach = coach
        stage.app.screen.refresh_all()  # type: ignore[attr-defined]
        await stage.sees("1/6 We killed parser on purpose. ! shows why")
        await stage.press("!")
        await stage.sees("2/6 r gives parser its memory back")
        # No row is left for the line about the need that is shown.
        await stage.until(lambda: stage.app.screen.query_one("#alert").size.height == 1)
        await stage.can("D", "seen")
        await stage.press("D")
        await stage.sees("3/6 auth-plan waits for a yes. ! opens its plan")
        await stage.press("!")
        await stage.sees("4/6 Space reads on, a approves exactly this")
        requests.decide(frozen.directory, "req-004281", "approved", "operator", NOW)
        await stage.press("escape")
        await stage.sees("5/6 docs asks you something. ! opens it")
        await stage.press("1")
        await stage.sees("Peek · ", "5/6 ")
        await stage.press("escape")
        await stage.sees_not("5/6 ")
        assert stage.app.context.coach is None


def test_a_tip_of_the_demo_is_about_what_is_on_the_screen(frozen: Frozen) -> None:
    view = TeamReader(frozen.directory, clock=lambda: NOW, probe=frozen.probe).read()
    opened_one = {need.kind: need.key for need in view.needs}
    assert coach(view, None, default_key) == ["1/6 We killed parser on purpose. ! shows why"]
    assert coach(view, opened_one["death"], default_key) == ["2/6 r gives parser its memory back"]
    assert coach(view, opened_one["plan"], default_key) == ["4/6 Space reads on, a approves exactly this"]
    assert coach(view, opened_one["question"], default_key) == ["5/6 ⏎ answers with the marked choice"]


def test_the_demo_says_in_the_end_what_the_team_did(empty: Frozen) -> None:
    empty.task(1, "one", "completed")
    empty.task(2, "two", "failed")
    empty.hire("fixer", "code", "working", "", ago=9, pid=77, run=3, tokens=Tokens(900, 100))
    for run, reason in ((1, "signal"), (2, "shutdown")):
        before = Exit(run=run, reason=reason, at=NOW - 20)
        start = RunStarted(
            ts=NOW - 15, run=run + 1, pid=77, type="code", model="m", fresh=False, prompt_id="p", before=before
        )
        journal.append(empty.directory.agent("fixer").journal, start)

    def says() -> list[str]:
        return coach(TeamReader(empty.directory, clock=lambda: NOW, probe=empty.probe).read(), None, default_key)

    assert says() == ["The team is at work: ⏎ opens an agent, 6 shows each step, 7 the tokens"]
    empty.asks("req-000001", "plan_approval", "fixer", 8, {"plan": "# Do it"})
    assert says() == ["3/6 fixer waits for a yes. ! opens its plan"]
    requests.decide(empty.directory, "req-000001", "approved", "operator", NOW, edited="# Do it well")
    empty.asks("req-000002", "question", "fixer", 7, {"question": "So?"})
    requests.decide(empty.directory, "req-000002", "answered", "operator", NOW, feedback="Yes")
    empty.did("fixer", 6, "edit_file", {"path": "a.py", "old_text": "a\n", "new_text": "b\nc\n"}, "edited", 0)
    fixer = empty.directory.agent("fixer")
    status = fixer.status.load()
    assert status is not None
    empty.mail(1, "tester", "fixer", "message", "Is it in?", 5)
    fixer.status.save(status.replace(state="idle", since=NOW - 4))
    assert "at work" in says()[0], "a message waits for it"
    empty.read("fixer", 1, ago=3)
    assert says() == [
        "6/6 That is all. What the team did:",
        "  1 of 2 tasks done · 1 agent, 1 death survived · 3 messages · 1.0k tokens",
        "  1 plan approved as edited · 1 question answered · 1 file changed +2 −1",
        "2 reads the results, 6 each step, 7 the tokens. n hires your own, q leaves",
    ]
    # What comes later is counted as soon as it is done.
    empty.mail(2, "operator", "fixer", "message", "And now?", 2)
    empty.read("fixer", 2, ago=2)
    fixer.status.save(status.replace(state="idle", since=NOW - 1))
    assert " · 4 messages · " in says()[1]
