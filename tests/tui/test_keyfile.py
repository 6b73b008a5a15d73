"""The keymap file of the user: what it may contain, and that the dashboard follows it."""

import tomllib
from pathlib import Path

import pytest

from crewboard_tui.keymap.bindings import KEYS
from crewboard_tui.keymap.user_file import Keymap, keymap_template, read_keymap
from crewboard_tui.settings import Settings
from tests.frozen import Frozen
from tests.tui.stage import opened


def written(folder: Path, text: str) -> Path:
    file = folder / "crewboard" / "keys.toml"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    return file


def settings(folder: Path, text: str) -> Settings:
    written(folder, text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(folder))
        return Settings.read({})


def test_both_spellings_of_an_id(tmp_path: Path) -> None:
    found = read_keymap(
        written(tmp_path, '"app.next" = "Z,ctrl+n"\nlist.down = "?"\nlist.up = "!"\n[app]\nhelp = "f1"')
    )
    assert found.problems == ()
    assert found.keys == {
        "app.next": "Z,ctrl+n", "list.down": "question_mark", "list.up": "exclamation_mark", "app.help": "f1",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('app.nxt = "n"', "there is no key app.nxt, did you mean app.next?"),
        ('app.halt = "h"', "app.halt is a command of the palette and takes no key"),
        ("app.next = 3", 'app.next takes keys in quotes, such as "!"'),
        ('app.next = ""', "app.next takes keys in quotes"),
        ('app.next = "hyper+n"', "unknown key 'hyper+n'"),
        ('app.next = "ctrl+c"', "unknown key 'ctrl+c'"),
        ('agent.hire = "m"', "agent.hire: m is already used by agent.message"),
        ('list.down = "n"', "list.down: n is already used by agent.hire"),
        ('app.help = "h"\napp.next = "h"', "app.next: h is already used by app.help"),
        ("app.next = ", "cannot be read"),
    ],
)
def test_what_cannot_be_used_is_named_and_passed_over(tmp_path: Path, text: str, problem: str) -> None:
    found = read_keymap(written(tmp_path, text + '\napp.leave = "Q"'))
    assert problem in found.problems[0]
    assert len(found.problems) == 1
    assert "app.next" not in found.keys
    if "cannot be read" not in problem:
        assert found.keys["app.leave"] == "Q", "the rest holds"


def test_two_keys_may_change_places(tmp_path: Path) -> None:
    found = read_keymap(written(tmp_path, 'agent.hire = "m"\nagent.message = "n"\ninbox.reply = "n"'))
    assert found.problems == ()


@pytest.mark.parametrize("keys", ["escape,q,question_mark", "escape,q", "q"])
def test_an_old_file_keeps_the_keys_of_an_id_that_was_split(tmp_path: Path, keys: str) -> None:
    found = read_keymap(written(tmp_path, f'help.leave = "{keys}"'))
    assert found == Keymap({"help.leave": keys})


def test_no_file_no_keys(tmp_path: Path) -> None:
    assert read_keymap(tmp_path / "keys.toml") == Keymap({})


def test_an_unreadable_keymap_file_does_not_stop_the_dashboard(tmp_path: Path) -> None:
    for number, content in enumerate((b"a = " + b"[" * 9_000, b'app.next = "\xff"')):
        file = tmp_path / f"{number}.toml"
        file.write_bytes(content)
        assert "cannot be read" in read_keymap(file).problems[0]
    assert "cannot be read" in read_keymap(tmp_path).problems[0]


def test_what_is_printed_as_a_file_is_one(tmp_path: Path) -> None:
    text = "\n".join(line.removeprefix("# ") for line in keymap_template().splitlines()[1:])
    tomllib.loads(text)
    found = read_keymap(written(tmp_path, text))
    assert found.problems == ()
    assert set(found.keys) == {key.id for key in KEYS if key.keys}


async def test_the_users_keys_work_and_are_shown(frozen: Frozen, tmp_path: Path) -> None:
    mine = settings(tmp_path / "config", 'agent.hire = "h"\napp.next = "f2"\napp.feed = "V"')
    async with opened(frozen, 120, 36, settings=mine) as stage:
        await stage.can("h", "new")
        assert "f2 open" in stage.part("alert")
        assert "V Feed" in stage.part("heading")
        await stage.press("?")
        await stage.sees("Keys that work here", "h ", "hire an agent")
        await stage.press("escape", "n")
        assert "Hire" not in stage.part("heading")
        await stage.press("h")
        await stage.sees("Hire an agent")


async def test_a_bad_file_is_named_at_the_start_and_does_no_harm(frozen: Frozen, tmp_path: Path) -> None:
    mine = settings(tmp_path / "config", 'app.nxt = "n"\nx = "y"\nz = "a"')
    async with opened(frozen, settings=mine) as stage:
        await stage.sees("there is no key app.nxt", "and 1 more: `crewboard doctor`")
        await stage.can("!", "next")
