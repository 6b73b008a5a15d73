"""Writing to agents: the composer from 100 columns on, a prompt line below that; drafts, commands, the editor."""

import contextlib
import os
import stat
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from textual import events
from textual.widgets import TextArea

from crewboard import skill_files
from crewboard.commands import answers, control, messages
from crewboard.commands.context import Team
from crewboard.errors import StorageError, UsageError
from crewboard.records.messages import Message
from crewboard.store import mailbox
from crewboard.store.layout import TeamDirectory
from crewboard_tui import dashboard
from crewboard_tui.compose.composer import Composer, PromptLine
from crewboard_tui.compose.draft_input import DraftInput, WorkspacePaths, attach_dropped, clean
from crewboard_tui.compose.parser import Note, Visit, parse_line, resolve_prefix, split_attachments
from tests.frozen import Frozen
from tests.pictures import png
from tests.tui.stage import WAIT_TIMEOUT, Stage, opened
from tests.tui.test_requests import _open_plan as open_plan
from tests.tui.test_teams import second

_API = ("j", "j", "j", "j", "j")
_COMPOSER, _LINE = (120, 36), (80, 24)
_SIZES = pytest.mark.parametrize(
    "size", [pytest.param(_COMPOSER, marks=pytest.mark.long, id="composer"), pytest.param(_LINE, id="line")]
)


def _last(frozen: Frozen, name: str) -> str:
    return mailbox.read(frozen.directory, name).messages[-1].content


def _count(frozen: Frozen, name: str) -> int:
    return len(mailbox.read(frozen.directory, name).messages)


# ---------------------------------------------------------------------------------------------- what a line says


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("how far are you?", Note(("api",), "how far are you?")),
        ("@ui look at this", Note(("ui",), "look at this")),
        ("@ui\nlook at this\n  and that", Note(("ui",), "look at this\n  and that")),
        ("@@dataclass is missing", Note(("api",), "@dataclass is missing")),
        ("@ home", Note(("api",), "@ home")),
        ("/etc/hosts is wrong", Note(("api",), "/etc/hosts is wrong")),
        ("/team", Visit("board")),
        ("/tasks", Visit("tasks")),
        ("/inbox", Visit("inbox")),
        ("/inbox ui", Visit("inbox", "ui")),
        ("/inbox operator", Visit("inbox", "operator")),
    ],
)
def test_what_a_line_says(text: str, says: Note | Visit) -> None:
    assert parse_line(text, ["api"], ["api", "ui"]) == says


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("@fixer hello", "no agent is called 'fixer': there are api, ui"),
        ("@dataclass is missing", "there are api, ui; @@dataclass writes it literally"),
        ("@ui", "write something for ui"),
        ("/inbox fixer", "no agent is called 'fixer': there are operator, lead, api, ui"),
        ("/team ui", "only /inbox takes a name"),
    ],
)
def test_what_a_line_cannot_say(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        parse_line(text, ["api"], ["api", "ui"])


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("one\r\ntwo\rthree\n\tfour", "one\ntwo\nthree\n\tfour"),
        ("\x1b[31mred\x07", " [31mred "),
        ("↵ and ⇥", "↵ and ⇥"),
    ],
)
def test_a_text_keeps_its_lines_and_no_control_character(text: str, kept: str) -> None:
    assert clean(text) == kept


def test_a_line_is_one_line() -> None:
    assert clean("one\ntwo\tthree", one_line=True) == "one two\tthree"


@pytest.mark.long
async def test_a_break_sign_and_a_tab_are_sent_as_they_are(frozen: Frozen) -> None:
    async with opened(frozen, 120, 36) as stage:
        await stage.press(*_API, "m")
        await stage.write("↵")
        stage.app.post_message(events.Paste("all:\n\tmake"))
        await stage.sees("↵all:", "make")
        await stage.press("enter")
        await stage.sees("sent to api")
    assert _last(frozen, "api") == "↵all:\n\tmake"


# ------------------------------------------------------------------------------------------- where one writes


@pytest.mark.long
async def test_the_composer_follows_the_selection(frozen: Frozen) -> None:
    async with opened(frozen, 120, 36) as stage:
        await stage.sees("to parser ›")
        await stage.press(*_API)
        await stage.sees("to api ›")
        await stage.press("enter")
        await stage.turns_to("Now")
        await stage.sees("to api ›")


@pytest.mark.long
@pytest.mark.parametrize("size", [(120, 36), (80, 24)], ids=["message line", "prompt"])
async def test_the_line_names_whom_a_leading_name_addresses(frozen: Frozen, size: tuple[int, int]) -> None:
    async with opened(frozen, *size) as stage:
        await stage.press("m")
        await stage.sees("to parser ›")
        await stage.write("@ui look")
        await stage.sees("to ui ›", "@ui look")
        await stage.press("enter")
        await stage.sees("sent to ui")
    assert _last(frozen, "ui") == "look"


@pytest.mark.long
async def test_what_is_written_before_the_composer_has_its_input_is_sent(frozen: Frozen) -> None:
    async with opened(frozen, 120, 36) as stage:
        await stage.settles()
        # It has none until the first picture is painted.
        stage.app.screen.query_one(Composer).line = None
        await stage.press(*_API, "m")
        await stage.write("hello")
        await stage.press("enter")
        await stage.sees("sent to api")
    assert _last(frozen, "api") == "hello"


@pytest.mark.long
async def test_below_100_columns_there_is_no_composer(frozen: Frozen) -> None:
    async with opened(frozen, 99, 36) as stage:
        await stage.settles()
        assert "to parser ›" not in stage.all


@pytest.mark.long
async def test_read_only_has_no_composer(frozen: Frozen) -> None:
    async with opened(frozen, 120, 36, read_only=True) as stage:
        await stage.settles()
        assert "to parser ›" not in stage.all


@pytest.mark.long
async def test_a_line_hides_nothing_but_the_footer(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.press("2")
        await stage.settles()
        before = stage.text
        await stage.press("b")
        await stage.sees("to all agents")
        # The footer grows to three lines for it, and the panes give them.
        assert stage.text[:5] == before[:5]
        assert "parser died" in stage.text[-4]


@pytest.mark.long
@pytest.mark.parametrize("size", [(80, 24), (40, 10)])
async def test_a_line_that_grows_hides_no_alert(frozen: Frozen, size: tuple[int, int]) -> None:
    async with opened(frozen, *size) as stage:
        behind = stage.app.screen
        await stage.press("2", "b")
        for _ in range(3):
            await stage.press("ctrl+j", "x")
            await stage.sees("parser died", "to all agents")
        await stage.press("escape")
        await stage.until(lambda: behind.query_one("#keys").size.height == 1, "the footer as it was")


@_SIZES
async def test_a_message_is_sent_once_however_often_enter_is_pressed(frozen: Frozen, size: tuple[int, int]) -> None:
    before = _count(frozen, "api")
    async with opened(frozen, *size) as stage:
        await stage.press(*_API, "m")
        await stage.write("how far?")
        driver = stage.app._driver
        assert driver is not None
        for _ in range(3):
            event = events.Key("enter", "\r")
            event.set_sender(stage.app)
            driver.send_message(event)
        # The others act on the list: each acts when the effects of the one before are complete.
        await stage.until(lambda: _count(frozen, "api") > before and not stage.app.key_order.is_busy, "the message")
        await stage.settles()
    assert _count(frozen, "api") == before + 1


@pytest.mark.long
@_SIZES
async def test_esc_keeps_the_draft_of_each_agent(frozen: Frozen, size: tuple[int, int]) -> None:
    async with opened(frozen, *size) as stage:
        await stage.press(*_API, "m")
        await stage.write("half a thou")
        await stage.press("escape", "j", "m")
        await stage.sees("to perf ›")
        assert "half a thou" not in stage.all
        await stage.press("escape", "k", "m")
        await stage.sees("to api ›", "half a thou")


@pytest.mark.long
async def test_the_footer_offers_no_key_that_would_be_typed(frozen: Frozen) -> None:
    async with opened(frozen, 120, 36) as stage:
        await stage.press(*_API, "m")
        await stage.can("Esc", "keep")
        for typed in ("/ find", "! next", "n new", ": command", "q leave"):
            assert typed not in stage.offered


@pytest.mark.long
async def test_the_recipient_stays_when_the_selection_goes(frozen: Frozen) -> None:
    async with opened(frozen, 120, 36) as stage:
        await stage.press(*_API, "m")
        await stage.write("one")
        stage.app.screen.query_one("#roster").action_down()  # type: ignore[attr-defined]
        await stage.write("two")
        await stage.press("enter")
        await stage.sees("sent to api")
    assert _last(frozen, "api") == "onetwo"


@pytest.mark.long
@_SIZES
async def test_what_could_not_be_sent_is_a_draft_again(
    frozen: Frozen, monkeypatch: pytest.MonkeyPatch, size: tuple[int, int]
) -> None:
    def send(*_: object) -> None:
        raise StorageError("the disk is full")

    monkeypatch.setattr(messages, "send", send)
    async with opened(frozen, *size) as stage:
        await stage.press(*_API, "m")
        await stage.write("how far?")
        await stage.press("enter")
        await stage.sees("the disk is full")
        await stage.press("m")
        await stage.sees("how far?")


def _held(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Make sending wait for the returned event, and then fail."""
    may_fail = threading.Event()

    def send(*_: object) -> None:
        assert may_fail.wait(WAIT_TIMEOUT)
        raise StorageError("the disk is full")

    monkeypatch.setattr(messages, "send", send)
    return may_fail


@pytest.mark.long
@_SIZES
async def test_text_not_sent_comes_before_text_typed_meanwhile(
    frozen: Frozen, monkeypatch: pytest.MonkeyPatch, size: tuple[int, int]
) -> None:
    may_fail = _held(monkeypatch)
    async with opened(frozen, *size) as stage:
        await stage.press(*_API, "m")
        await stage.write("first")
        await stage.press("enter")
        await stage.sees("sending to api")
        await stage.press("m")
        await stage.write("seco")
        may_fail.set()
        await stage.until(lambda: _draft(stage) == "first\nseco", "both in the input")
        await stage.write("nd")
        assert stage.app.context.drafts == {"api": "first\nsecond"}


@pytest.mark.long
async def test_text_not_sent_is_a_draft_of_the_team_that_was_left(
    frozen: Frozen, monkeypatch: pytest.MonkeyPatch
) -> None:
    second(frozen)
    may_fail = _held(monkeypatch)
    async with opened(frozen, 80, 24) as stage:
        await stage.press(*_API, "m")
        await stage.write("how far?")
        await stage.press("enter", "t", "j", "enter")
        await stage.sees("cashier")
        may_fail.set()
        await stage.sees("the disk is full")
        assert stage.app.drafts[frozen.directory.path] == {"api": "how far?"}
        assert stage.app.context.drafts == {}


@pytest.mark.long
async def test_what_was_sent_to_a_team_that_was_left_is_no_draft(
    frozen: Frozen, monkeypatch: pytest.MonkeyPatch
) -> None:
    second(frozen)
    may_end, whole = threading.Event(), answers.reject

    def reject(*given: object, **named: object) -> object:
        assert may_end.wait(WAIT_TIMEOUT)
        return whole(*given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(answers, "reject", reject)
    async with opened(frozen, 80, 24) as stage:
        await open_plan(stage)
        await stage.press("d")
        await stage.write("no")
        await stage.press("enter", "escape", "escape", "t", "j", "enter")
        await stage.sees("cashier")
        may_end.set()
        await stage.sees("denied: auth-plan reads why")
        assert stage.app.drafts[frozen.directory.path] == {}


@pytest.mark.long
async def test_quitting_while_a_send_fails_keeps_the_text_and_reason(
    frozen: Frozen, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_fail = _held(monkeypatch)
    async with opened(frozen, 80, 24) as stage:
        await stage.press(*_API, "m")
        await stage.write("how far?")
        await stage.press("enter", "q")
    errands = stage.app.context.jobs
    may_fail.set()
    for _, thread in errands.running():
        thread.join()
    assert errands.hear_rest() == ["the disk is full"]
    assert dashboard.unsent(stage.app.context.drafts) == ["Not sent (to api): how far?"]


@pytest.mark.long
async def test_half_a_delivery_is_finished_and_not_begun_again(frozen: Frozen, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = messages.send

    def send(team: Team, to: str, text: str, attach: Sequence[Path] = ()) -> object:
        if to == "docs":
            raise StorageError("the disk is full")
        return whole(team, to, text)

    monkeypatch.setattr(messages, "send", send)
    async with opened(frozen, 120, 36) as stage:
        await stage.press("space", "j", "space", "m")
        await stage.sees("to parser, docs ›")
        await stage.write("freeze")
        await stage.press("enter")
        await stage.sees("sent to parser, but not to docs: the disk is full")
        assert stage.app.context.drafts == {"docs": "freeze"}
    assert _last(frozen, "parser") == "freeze"


@pytest.mark.long
@pytest.mark.parametrize(("key", "draft"), [("b", "perf"), pytest.param("i", "interrupt perf", marks=pytest.mark.long)])
async def test_a_repeated_send_skips_agents_that_have_the_text(
    frozen: Frozen, monkeypatch: pytest.MonkeyPatch, key: str, draft: str
) -> None:
    whole = mailbox.send

    def send(directory: TeamDirectory, message: Message, *, durable: bool = False) -> Message:
        if message.to == "perf":
            raise StorageError("the disk is full")
        return whole(directory, message, durable=durable)

    def interrupt(team: Team, name: str, text: str) -> Message:
        return messages.post(team, name, "interrupt", text)

    monkeypatch.setattr(mailbox, "send", send)
    monkeypatch.setattr(control, "interrupt", interrupt)
    async with opened(frozen, 120, 36) as stage:
        await stage.press(*_API, "space", "space", key)
        await stage.write("freeze")
        await stage.press("enter")
        await stage.sees("but not to perf: the disk is full")
        assert stage.app.context.drafts == {draft: "freeze"}


@pytest.mark.long
async def test_leaving_shows_what_was_not_sent(frozen: Frozen) -> None:
    async with opened(frozen, 120, 36) as stage:
        await stage.press(*_API, "m")
        await stage.write("half a thought")
        await stage.press("escape", "q")
    assert dashboard.unsent(stage.app.context.drafts) == ["Not sent (to api): half a thought"]


# -------------------------------------------------------------------------------------------- names and commands


@pytest.mark.long
@_SIZES
async def test_at_name_picks_the_recipient_and_tab_completes(frozen: Frozen, size: tuple[int, int]) -> None:
    async with opened(frozen, *size) as stage:
        await stage.press(*_API, "m")
        await stage.write("@rev")
        await stage.press("tab")
        await stage.sees("@reviewer")
        await stage.write("look")
        await stage.press("enter")
        await stage.sees("sent to reviewer")
    assert _last(frozen, "reviewer") == "look"


@pytest.mark.parametrize(
    ("text", "names", "name"),
    [
        ("ve", ["tess", "vera"], "vera"),
        ("ve", ["vera", "verity"], "ve"),
        ("vera", ["vera", "vera2"], "vera"),
        ("lead", ["operator", "lead", "lead"], "lead"),
        ("", ["vera"], ""),
        ("x", ["vera"], "x"),
    ],
)
def test_a_beginning_means_the_only_one_who_is_called_so(text: str, names: list[str], name: str) -> None:
    assert resolve_prefix(text, names) == name


@pytest.mark.long
@_SIZES
async def test_the_beginning_of_a_name_picks_the_recipient(frozen: Frozen, size: tuple[int, int]) -> None:
    async with opened(frozen, *size) as stage:
        await stage.press(*_API, "m")
        await stage.write("@rev look")
        await stage.press("enter")
        await stage.sees("sent to reviewer")
    assert _last(frozen, "reviewer") == "look"


@pytest.mark.long
@_SIZES
async def test_an_unknown_name_keeps_the_text(frozen: Frozen, size: tuple[int, int]) -> None:
    async with opened(frozen, *size) as stage:
        await stage.press(*_API, "m")
        await stage.write("@fixer hello")
        await stage.press("enter")
        await stage.sees("no agent is called 'fixer'", "@fixer hello")


@pytest.mark.long
@_SIZES
@pytest.mark.parametrize(
    ("command", "sees"),
    [
        ("/inbox ui", "ui · 1 unread"),
        pytest.param("/tasks", "Tasks · 1/8", marks=pytest.mark.long),
        pytest.param("/team", "Peek · api", marks=pytest.mark.long),
    ],
)
async def test_a_command_goes_to_its_view(frozen: Frozen, size: tuple[int, int], command: str, sees: str) -> None:
    before = _count(frozen, "api")
    async with opened(frozen, *size) as stage:
        await stage.press(*_API, "enter")
        await stage.turns_to("Now")
        await stage.press("m")
        await stage.write(command)
        await stage.press("enter")
        await stage.sees(sees)
        await stage.until(lambda: stage.tab != "Now", "another page")
    assert _count(frozen, "api") == before


async def test_a_line_uncovers_the_footer_below_another_screen(frozen: Frozen) -> None:
    async with opened(frozen, *_LINE) as stage:
        behind = stage.app.screen
        await stage.press("m")
        await stage.until(lambda: behind.query_one("#keys").styles.min_height, "the covered footer")
        line = stage.app.screen
        assert isinstance(line, PromptLine)
        # As an answer does that opens a page before the line is gone.
        stage.app.action_help()
        line.on_unmount()
        assert behind.query_one("#keys").styles.min_height is None


def _slash(frozen: Frozen, name: str, text: str) -> None:
    file = frozen.directory.root / ".claude/commands" / f"{name}.md"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    root = frozen.directory.root
    skill_files.accept(skill_files.find(root, f"/{name.replace('/', ':')}"), root, frozen.team.environment)


@pytest.mark.long
@_SIZES
async def test_a_slash_command_is_read_before_it_is_sent(frozen: Frozen, size: tuple[int, int]) -> None:
    _slash(frozen, "fix", "---\ndescription: fixes one\n---\nFix issue $1 of $ARGUMENTS.\n")
    before = _count(frozen, "api")
    async with opened(frozen, *size) as stage:
        await stage.press(*_API, "m")
        await stage.write("/fix 12 now")
        await stage.press("enter")
        await stage.sees("Fix issue 12 of 12 now.", "read it, then send it")
        assert _count(frozen, "api") == before
        await stage.press("enter")
        await stage.until(lambda: _count(frozen, "api") == before + 1, "the message")
    assert _last(frozen, "api") == "Fix issue 12 of 12 now."


@pytest.mark.long
@_SIZES
async def test_a_command_that_does_not_exist_is_sent_only_the_second_time(
    frozen: Frozen, size: tuple[int, int]
) -> None:
    before = _count(frozen, "api")
    async with opened(frozen, *size) as stage:
        await stage.press(*_API, "m")
        await stage.write("/nope x")
        await stage.press("enter")
        await stage.sees("no command /nope: ⏎ again sends it as text", "› /nope x")
        assert _count(frozen, "api") == before
        await stage.press("enter")
        await stage.until(lambda: _count(frozen, "api") == before + 1, "the message")
    assert _last(frozen, "api") == "/nope x"


@pytest.mark.long
async def test_the_commands_that_exist_are_named_and_a_path_is_no_command(frozen: Frozen) -> None:
    _slash(frozen, "fix", "Fix it.")
    before = _count(frozen, "api")
    async with opened(frozen, 120, 36) as stage:
        await stage.press(*_API, "m")
        await stage.write("/fux")
        await stage.press("enter")
        await stage.sees("no command /fux", "there are /fix")
        assert _count(frozen, "api") == before
        await stage.press(*["backspace"] * 4)
        await stage.write("/etc/hosts is wrong")
        await stage.press("enter")
        await stage.until(lambda: _count(frozen, "api") == before + 1, "the message")
    assert _last(frozen, "api") == "/etc/hosts is wrong"


@pytest.mark.long
async def test_a_slash_command_that_cannot_be_used_keeps_the_text(frozen: Frozen) -> None:
    _slash(frozen, "empty", "")
    async with opened(frozen, 80, 24) as stage:
        await stage.press(*_API, "m")
        await stage.write("/empty")
        await stage.press("enter")
        await stage.sees("/empty cannot be used", "› /empty")


def test_slash_commands_are_found_and_filled_in(frozen: Frozen, tmp_path: Path) -> None:
    team, root = frozen.team, frozen.directory.root
    _slash(frozen, "fix", "Fix it.")
    _slash(frozen, "web/look", "@ui look at $2")
    _slash(frozen, "large", "x" * 30_000)
    (tmp_path / "outside.md").write_text("secret")
    (root / ".claude/commands/linked.md").symlink_to(tmp_path / "outside.md")
    assert skill_files.command_names(root) == ["fix", "large", "linked", "web:look"]
    assert messages.write_out(team, "/fix") == "Fix it."
    assert messages.write_out(team, "/fix 'a b' c") == "Fix it.\n\n'a b' c"
    assert messages.write_out(team, "/web:look 'a b' c") == "@@ui look at c", "it addresses no other agent"
    for text in ("/none", "/etc/hostname", "fix", "/../fix", "look at /fix"):
        assert messages.write_out(team, text) is None
    for text in ("/linked", "/large"):
        with pytest.raises(UsageError, match="cannot be used"):
            messages.write_out(team, text)
    (root / ".claude/commands/fix.md").write_text("Changed by an agent.")
    with pytest.raises(UsageError, match=r"not accepted /fix as it is now: .*`crewboard .*skills trust /fix --sha256"):
        messages.write_out(team, "/fix")


@pytest.mark.long
async def test_a_key_takes_back_what_was_written_last(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.press(*_API, "m")
        await stage.write("a thought")
        await stage.press("ctrl+u")
        await stage.until(lambda: _draft(stage) == "", "an empty line")
        await stage.press("ctrl+underscore")
        await stage.until(lambda: _draft(stage) == "a thought", "the text again")


_LONG = "\n".join(f"line {number}" for number in range(80))


@pytest.mark.long
@pytest.mark.parametrize("keys", [(*_API, "m"), ("n", "tab", "tab", "tab"), ("e",)])
async def test_a_long_text_that_was_pasted_can_be_taken_back(frozen: Frozen, keys: tuple[str, ...]) -> None:
    async with opened(frozen, 120, 40) as stage:
        if keys == ("e",):
            await open_plan(stage)
        await stage.press(*keys)
        await stage.until(lambda: isinstance(stage.app.focused, TextArea), "a text")
        field = stage.app.focused
        assert isinstance(field, TextArea)
        before = field.text
        stage.app.post_message(events.Paste(_LONG))
        await stage.until(lambda: "line 79" in field.text, "all of it")
        await stage.press("ctrl+underscore")
        await stage.until(lambda: field.text == before, "the text before")
        await stage.press("ctrl+y")
        await stage.until(lambda: "line 79" in field.text, "all of it again")


@pytest.mark.long
async def test_the_cursor_stays_in_sight_as_the_terminal_shrinks(frozen: Frozen) -> None:
    async with opened(frozen, 120, 40) as stage:
        await stage.press("n", "tab", "tab", "tab")
        stage.app.post_message(events.Paste(_LONG))
        await stage.sees("line 79")
        await stage.pilot.resize_terminal(60, 15)
        await stage.sees("line 79")
        field = stage.app.focused
        assert isinstance(field, TextArea)
        field.scroll_to(0, 0, animate=False)
        await stage.pilot.resize_terminal(60, 14)
        await stage.until(lambda: stage.app.size.height == 14, "the new size")
        assert field.scroll_offset.y == 0, "what the user scrolled to stays"


# ------------------------------------------------------------------------------------------------- the editor


@pytest.fixture
def lent(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install an editor that records its file and writes two lines; return the path of the record."""
    folder = tmp_path_factory.mktemp("editor")
    script = folder / "editor.sh"
    script.write_text(
        f'#!/bin/sh\nstat -c "%a %n" "$1" "$(dirname "$1")" > {folder}/seen\ncat "$1" > {folder}/draft\n'
        f"env > {folder}/environment\n"
        'printf "first\\nsecond\\n" > "$1"\n'
    )
    script.chmod(stat.S_IRWXU)
    monkeypatch.setenv("VISUAL", str(script))
    return folder


def _lend(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextlib.contextmanager
    def suspend() -> Iterator[None]:
        yield

    monkeypatch.setattr(stage.app, "suspend", suspend)


@pytest.mark.long
@_SIZES
async def test_a_draft_is_written_in_the_editor(
    frozen: Frozen, monkeypatch: pytest.MonkeyPatch, lent: Path, size: tuple[int, int]
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "a-key")
    monkeypatch.setenv("EDITOR_SETTING", "kept")
    monkeypatch.setenv("PATH", f"{frozen.team.directory.root}{os.pathsep}{os.environ['PATH']}")
    async with opened(frozen, *size) as stage:
        _lend(stage, monkeypatch)
        await stage.press(*_API, "m")
        await stage.write("a thought")
        await stage.press("ctrl+e")
        await stage.until(lambda: _draft(stage) == "first\nsecond", "both lines in the input")
        await stage.press("enter")
        await stage.sees("sent to api")
    assert _last(frozen, "api") == "first\nsecond"
    assert (lent / "draft").read_text() == "a thought"
    environment = (lent / "environment").read_text()
    assert "EDITOR_SETTING=kept" in environment
    assert "a-key" not in environment
    assert f"PATH={frozen.team.directory.root}" not in environment, "the editor may look programs up by their name"
    (file_mode, file), (folder_mode, folder) = (line.split() for line in (lent / "seen").read_text().splitlines())
    assert (file_mode, folder_mode) == ("600", "700")
    assert not Path(file).exists()
    assert not Path(folder).exists()


@pytest.mark.long
@pytest.mark.parametrize(
    ("visual", "says"), [("false", "false ended with 1; the draft is"), ("no-such-editor", "there is no editor")]
)
async def test_an_editor_that_fails_leaves_the_draft(
    frozen: Frozen, monkeypatch: pytest.MonkeyPatch, visual: str, says: str
) -> None:
    monkeypatch.setenv("VISUAL", visual)
    async with opened(frozen, 120, 36) as stage:
        _lend(stage, monkeypatch)
        await stage.press(*_API, "m")
        await stage.write("a thought")
        await stage.press("ctrl+e")
        await stage.sees(says, "a thought")


@pytest.mark.long
async def test_an_editor_in_the_workspace_is_not_run(frozen: Frozen, monkeypatch: pytest.MonkeyPatch) -> None:
    root = frozen.team.directory.root
    planted = root / "planted-editor"
    planted.write_text(f"#!/bin/sh\ntouch {root}/ran\n")
    planted.chmod(0o755)
    monkeypatch.setenv("PATH", f"{root}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("VISUAL", "planted-editor")
    async with opened(frozen, 120, 36) as stage:
        _lend(stage, monkeypatch)
        await stage.press(*_API, "m")
        await stage.write("a thought")
        await stage.press("ctrl+e")
        await stage.sees("is in a workspace", "a thought")
    assert not (root / "ran").exists()


# -------------------------------------------------------------------------------------------- several lines


def _input(stage: Stage) -> DraftInput:
    assert isinstance(stage.app.focused, DraftInput)
    return stage.app.focused


def _draft(stage: Stage) -> str:
    return _input(stage).text


@pytest.mark.long
@_SIZES
async def test_a_key_adds_a_line_and_enter_sends_all(frozen: Frozen, size: tuple[int, int]) -> None:
    async with opened(frozen, *size) as stage:
        await stage.press(*_API, "m")
        await stage.write("one")
        await stage.press("ctrl+j")
        await stage.write("two")
        assert _input(stage).size.height == 2, "it grows"
        await stage.press("enter")
        await stage.sees("sent to api")
    assert _last(frozen, "api") == "one\ntwo"


@pytest.mark.long
async def test_a_line_break_keeps_its_place_in_fast_typing(frozen: Frozen) -> None:
    async with opened(frozen, 120, 36) as stage:
        await stage.press(*_API, "m")
        for key in ("a", "ctrl+j", "b"):
            stage._send(key)
        await stage.until(lambda: _draft(stage) == "a\nb", "the letters in their lines")


@pytest.mark.long
async def test_a_dropped_file_is_attached_to_the_message(frozen: Frozen, tmp_path: Path) -> None:
    image = tmp_path / "a shot.png"
    image.write_bytes(png() + b" and more")
    async with opened(frozen, 80, 24) as stage:
        await stage.press(*_API, "m")
        stage.app.post_message(events.Paste(f"'{image}' "))
        await stage.sees("[attach")
        await stage.write(" the button is cut off")
        count = _count(frozen, "api")
        await stage.press("enter")
        await stage.until(lambda: _count(frozen, "api") > count, "the message")
    sent = mailbox.read(frozen.directory, "api").messages[-1]
    assert sent.content == "the button is cut off\n\n[attached: a shot.png, image/png, 1 kB]"
    assert [each.name for each in sent.attachments] == ["a shot.png"]


def test_only_paths_of_images_and_documents_are_attached(tmp_path: Path) -> None:
    image = tmp_path / "a b.png"
    image.write_bytes(png())
    escaped = str(image).replace(" ", "\\ ")
    for pasted in (f"'{image}'", escaped, f"file://{str(image).replace(' ', '%20')}\n"):
        assert attach_dropped(pasted) == (f"[attach {image}]", ""), pasted
    for pasted in ("a b.png", f"see {escaped}", f"{escaped} is cut off", "it's", "", "/none", "/fix now", "\0", "/\0"):
        assert attach_dropped(pasted) == (pasted, ""), pasted


def test_a_dropped_file_that_is_not_attached_says_why(tmp_path: Path) -> None:
    image, text, wrong = tmp_path / "a.png", tmp_path / "notes.txt", tmp_path / "wrong.png"
    image.write_bytes(png())
    text.write_text("notes")
    wrong.write_text("not a picture")
    assert attach_dropped(f"'{image}' '{image}'") == (f"[attach {image}] [attach {image}]", "")
    for pasted, why in (
        (str(text), "notes.txt is no image or PDF by its content"),
        (str(wrong), "wrong.png is no image or PDF by its content"),
        (f"{image} {wrong}", "wrong.png is no image or PDF by its content"),
        (str(tmp_path / "gone.png"), "there is no file gone.png"),
        (str(tmp_path), f"{tmp_path.name} is no file"),
    ):
        assert attach_dropped(pasted) == (pasted, f"stays text: {why}")


@pytest.mark.long
@_SIZES
async def test_a_hint_says_why_a_dropped_file_stays_text(frozen: Frozen, tmp_path: Path, size: tuple[int, int]) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("notes")
    async with opened(frozen, *size) as stage:
        await stage.press(*_API, "m")
        stage.app.post_message(events.Paste(str(text)))
        await stage.sees("stays text: notes.txt is no image or PDF")
        assert _draft(stage) == str(text)
        await stage.write(" is wrong")
        await stage.sees_not("stays text")


def test_marks_are_split_from_the_text(tmp_path: Path) -> None:
    image = tmp_path / "a b.png"
    assert split_attachments(f"look [attach {image}] here") == ("look  here", [image])


@pytest.mark.long
@_SIZES
async def test_a_long_paste_is_whole_and_leaves_room(frozen: Frozen, size: tuple[int, int]) -> None:
    pasted = "\n".join(f"line {number}" for number in range(200))
    async with opened(frozen, *size) as stage:
        await stage.press(*_API, "m")
        stage.app.post_message(events.Paste(pasted))
        await stage.sees("line 199", "parser")
        assert 3 <= _input(stage).size.height <= size[1] / 3
        await stage.press("enter")
        await stage.sees("sent to api")
    assert _last(frozen, "api") == pasted


@pytest.mark.long
async def test_a_question_that_asks_one_line_takes_no_more(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.press("slash")
        stage.app.post_message(events.Paste("api\nui"))
        await stage.sees("Line breaks became blanks")
        await stage.press("ctrl+j")
        await stage.until(lambda: _draft(stage) == "api ui", "one line")
        await stage.press("backspace")
        await stage.sees_not("Line breaks became blanks")


# ---------------------------------------------------------------------------------------- the texts sent before


@pytest.mark.long
@_SIZES
async def test_up_shows_the_texts_sent_before(frozen: Frozen, size: tuple[int, int]) -> None:
    async with opened(frozen, *size) as stage:
        for text in ("first", "second"):
            stage.app.context.sent.add(text)
        await stage.press(*_API, "m")
        await stage.write("half")
        for key, shown in (("up", "second"), ("up", "first"), ("up", "first"), ("down", "second"), ("down", "half")):
            await stage.press(key)
            await stage.until(lambda shown=shown: _draft(stage) == shown, f"{key}: {shown}")  # type: ignore[misc]
        await stage.press("up", "escape")
        await stage.settles()
        assert stage.app.context.drafts == {"api": "half"}, "a draft is not lost to a text that was only looked at"


@pytest.mark.long
async def test_what_was_sent_is_the_first_that_up_shows(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.press(*_API, "m")
        await stage.write("how far?")
        await stage.press("enter")
        await stage.sees("sent to api")
        await stage.press("m")
        await stage.sees("to api ›")
        await stage.press("up")
        await stage.sees("how far?")


@pytest.mark.long
async def test_up_goes_up_in_a_text_before_it_shows_another(frozen: Frozen) -> None:
    async with opened(frozen, 120, 36) as stage:
        stage.app.context.sent.add("sent before")
        await stage.press(*_API, "m")
        stage.app.post_message(events.Paste("one\ntwo"))
        await stage.until(lambda: _input(stage).cursor_location == (1, 3), "both lines in the input")
        await stage.press("up")
        await stage.until(lambda: _input(stage).cursor_location == (0, 3), "the cursor in the first line")
        assert _draft(stage) == "one\ntwo"
        await stage.press("up")
        await stage.until(lambda: _draft(stage) == "sent before", "the text sent before")


# ------------------------------------------------------------------------------------------- paths of the workspace


def _tree(root: Path) -> WorkspacePaths:
    (root / "src" / "api").mkdir(parents=True)
    (root / "src" / "api" / "routes.py").touch()
    (root / "src" / "app.py").touch()
    (root / "srcery").touch()
    return WorkspacePaths(root)


def test_a_path_is_completed_folder_by_folder(tmp_path: Path) -> None:
    paths = _tree(tmp_path)
    assert paths.starting_with("s") == ["src/", "srcery"]
    assert paths.starting_with("src/a") == ["src/api/", "src/app.py"]
    assert paths.starting_with("src/api/") == ["src/api/routes.py"]
    assert paths.starting_with("nowhere/") == []


@pytest.mark.parametrize("begun", ["../", "/", "src/../", "src//", "./"])
def test_a_path_leads_to_no_place_outside(tmp_path: Path, begun: str) -> None:
    root = tmp_path / "root"
    root.mkdir()
    assert _tree(root).starting_with(begun) == []


def test_a_link_is_neither_offered_nor_followed(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    paths = _tree(root)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").touch()
    (root / "link").symlink_to(tmp_path / "outside")
    assert paths.starting_with("link") == []
    assert paths.starting_with("link/") == []


def test_ignored_and_hidden_files_are_not_offered(tmp_path: Path) -> None:
    paths = _tree(tmp_path)
    (tmp_path / ".gitignore").write_text("*.log\n/build/\n# no\n!keep.log\nsrc/gen\n")
    for name in ("a.log", "keep.log", ".env", "src/b.log", "src/gen", "src/build"):
        (tmp_path / name).touch()
    (tmp_path / "build").mkdir()
    (tmp_path / ".crewboard").mkdir()
    assert paths.starting_with("") == ["keep.log", "src/", "srcery"]
    assert paths.starting_with(".e") == [".env"]
    assert paths.starting_with(".c") == []
    assert paths.starting_with("src/") == ["src/api/", "src/app.py", "src/build"]


def test_a_large_tree_costs_one_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths, listed, whole = _tree(tmp_path), list[object](), os.scandir

    def scandir(folder: int) -> object:
        listed.append(folder)
        return whole(folder)

    monkeypatch.setattr(os, "scandir", scandir)
    monkeypatch.setattr("crewboard_tui.compose.draft_input.monotonic", lambda: 1000.0)
    for begun in ("src/", "src/a", "src/ap"):
        paths.starting_with(begun)
    assert len(listed) == 1


@pytest.mark.long
@_SIZES
async def test_tab_completes_a_path_of_the_workspace(frozen: Frozen, size: tuple[int, int]) -> None:
    root = frozen.directory.root
    (root / "lib" / "deep").mkdir(parents=True)
    (root / "lib" / "deep" / "parser.py").touch()
    async with opened(frozen, *size) as stage:
        await stage.press(*_API, "m")
        await stage.write("look at @li")
        await stage.press("tab", "tab", "tab")
        await stage.sees("@lib/deep/parser.py")
        await stage.press("enter")
        await stage.sees("sent to api")
    assert _last(frozen, "api") == "look at @lib/deep/parser.py"


@pytest.mark.long
async def test_a_path_at_the_beginning_addresses_no_agent(frozen: Frozen) -> None:
    async with opened(frozen, 120, 36) as stage:
        await stage.press(*_API, "m")
        await stage.write("@src/app.py is wrong")
        await stage.press("enter")
        await stage.sees("sent to api")
    assert _last(frozen, "api") == "@src/app.py is wrong"


@pytest.mark.long
async def test_what_tab_completes_is_shown(frozen: Frozen) -> None:
    for name in ("one.py", "other.py"):
        (frozen.directory.root / name).touch()
    async with opened(frozen, 80, 24) as stage:
        await stage.press(*_API, "m")
        await stage.write("see @o")
        await stage.sees("@one.py @other.py")
        await stage.press("tab")
        assert _draft(stage) == "see @o", "it stays here while there are several"


@pytest.mark.long
async def test_tab_completes_the_mailbox_behind_inbox(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.press(*_API, "m")
        await stage.write("/in")
        await stage.sees("/inbox · Tab completes")
        await stage.press("tab")
        await stage.write(" p")
        await stage.sees("/inbox parser /inbox perf · Tab completes")
        await stage.write("e")
        await stage.press("tab")
        assert _draft(stage) == "/inbox perf"
        await stage.sees_not("Tab completes")
        await stage.press("enter")
        await stage.sees("▌● perf", "m writes some")


@_SIZES
async def test_tab_leaves_no_text_that_it_cannot_complete(frozen: Frozen, size: tuple[int, int]) -> None:
    async with opened(frozen, *size) as stage:
        await stage.press(*_API, "m")
        for written, told in (("@zzz", "Nothing begins with @zzz"), (" ", "Nothing to complete")):
            await stage.write(written)
            await stage.press("tab")
            await stage.sees(told)
        assert "Tab pane" not in stage.offered
        await stage.write("please")
        assert _draft(stage) == "@zzz please"


@pytest.mark.long
async def test_tab_leaves_an_empty_message_line(frozen: Frozen) -> None:
    async with opened(frozen, 120, 36) as stage:
        await stage.press(*_API, "m", "tab")
        await stage.until(lambda: not isinstance(stage.app.focused, DraftInput), "the pane with the keys")


# ------------------------------------------------------------------------------------- keys that come in one read


@_SIZES
@pytest.mark.parametrize(
    ("typed", "text"),
    [
        pytest.param("hello\x7f\x7fp", "help", id="backspace"),
        pytest.param("abc\x1b[D\x1b[DX", "aXbc", id="arrows"),
        pytest.param("one \x1b[200~two\nthree\x1b[201~ four\x7f", "one two\nthree fou", id="paste"),
    ],
)
async def test_keys_in_one_read_act_in_their_order(
    frozen: Frozen, size: tuple[int, int], typed: str, text: str
) -> None:
    async with opened(frozen, *size) as stage:
        await stage.press(*_API)
        await stage.send_bytes(f"m{typed}")
        await stage.until(lambda: _draft(stage) == text, f"{text!r} in the line")


@pytest.mark.long
@_SIZES
async def test_enter_in_one_read_sends_what_came_before(frozen: Frozen, size: tuple[int, int]) -> None:
    before = _count(frozen, "api")
    async with opened(frozen, *size) as stage:
        await stage.press(*_API)
        await stage.send_bytes("mSay one\rmSay two\r")
        await stage.until(lambda: _count(frozen, "api") == before + 2, "both messages")
    sent = mailbox.read(frozen.directory, "api").messages[-2:]
    assert {each.content for each in sent} == {"Say one", "Say two"}


# ------------------------------------------------------------------------------------------- files that are refused


@pytest.mark.long
@_SIZES
async def test_a_refused_file_leaves_the_text_and_the_focus_in_the_line(
    frozen: Frozen, tmp_path: Path, size: tuple[int, int]
) -> None:
    missing = f"keep [attach {tmp_path / 'none.png'}]"
    async with opened(frozen, *size) as stage:
        await stage.press(*_API, "m")
        await stage.write(missing)
        await stage.press("enter")
        # The line may wrap anywhere, because it names a folder of this run.
        await stage.until(lambda: "cannot be attached" in " ".join(stage.all.split()), "the refusal")
        await stage.press("x")
        await stage.until(lambda: _draft(stage) == f"{missing}x", "the next letter in the line")
