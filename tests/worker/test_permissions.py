"""What a standing permission covers: one program, exactly as bash would run it, or one folder."""

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crewboard.worker.conversation import ApprovedPlan
from crewboard.worker.tools.permissions import RUNNERS, SHELL_WORDS, names_call, scope_of, simple_command

BASH = shutil.which("bash") or "/bin/bash"

PIECES = [
    "record", "other", "a", "b", " ", " ", " ", "\t", "\r", "\n", "\v", "\f", "\0", "\x1b", "\u00a0", "\u2028", "'",
    '"', "\\", ";", "&", "&&", "|", "||", "$(other)", "`other`", "<(other)", "${a}", "$a", "$'a'", ">a", ">>a", "<a",
    "<<a", "2>&1", "{a,b}", "(", ")", "{", "}", "!", "#", "~", "*", "?", "[a]", "=", "a=b", "-", "--", ".", "/", "./",
    ",", ":", "@", "%", "+", "^", "é",
]  # fmt: skip
"""No builtin can be made of these letters, and the only programs on PATH are `record` and `other`."""


@pytest.fixture(scope="module")
def programs() -> Iterator[Path]:
    """Make a folder with two programs that write down their arguments."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        for name in ("record", "other"):
            path = folder / name
            path.write_text(f'#!{BASH}\nprintf "%s\\0" "${{0##*/}}" "$@" >> "$LOG"\nprintf "\\n" >> "$LOG"\n')
            path.chmod(0o700)
        yield folder


def run_by_bash(command: str, programs: Path) -> list[list[str]]:
    """Return the programs that bash runs for a command, each with its arguments."""
    with tempfile.TemporaryDirectory() as scratch:
        log = Path(scratch, "log")
        log.touch()
        subprocess.run(
            [BASH, "--noprofile", "--norc", "-c", command],
            cwd=scratch,
            env={"PATH": str(programs), "LOG": str(log)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=10,
        )
        assert [path.name for path in Path(scratch).iterdir()] == ["log"], "it wrote a file"
        return [line.split("\0")[:-1] for line in log.read_text().splitlines()]


@settings(max_examples=120, deadline=None)
@given(rest=st.lists(st.sampled_from(PIECES), max_size=8))
def test_bash_runs_what_a_rule_covers_and_nothing_more(rest: list[str], programs: Path) -> None:
    command = "record " + "".join(rest)
    words = simple_command(command)
    if words is not None:
        assert run_by_bash(command, programs) == [words]


@pytest.mark.parametrize("command", ["record a 'b  c' \"d\" -x=1".replace("=", ":"), "record", "record ./a/b@1,2%+"])
def test_a_plain_command_can_have_a_rule(command: str, programs: Path) -> None:
    words = simple_command(command)
    assert words is not None
    assert words[0] == scope_of("bash", {"command": command}) == "record"
    assert run_by_bash(command, programs) == [words]


@pytest.mark.parametrize(
    "command",
    ["", " ", "''", "ls\r/x.sh", "ls\nrm a", "ls;rm a", "ls|sh", "ls&", "ls $(rm a)", "ls `rm a`", "ls >a", "ls <(a)",
     "a=b ls", "ls {a,b}", "ls *", "ls ~", "ls # a", "ls \\a", "ls 'a", "ls\x00a", "ls\x1ba", "ls\ta", "%1", "-x"],
)  # fmt: skip
def test_no_rule_is_offered_for_more_than_one_plain_command(command: str) -> None:
    assert scope_of("bash", {"command": command}) is None


@pytest.mark.parametrize("command", ["eval ls", "exec ls", "time ls", ". x", "mapfile -C ls", "compgen -C ls a"])
def test_no_rule_is_offered_for_a_builtin_that_may_run_its_arguments(command: str) -> None:
    assert scope_of("bash", {"command": command}) is None


def test_every_builtin_and_reserved_word_of_bash_is_known() -> None:
    listed = subprocess.run([BASH, "-c", "compgen -bk"], capture_output=True, text=True, check=True).stdout.split()
    words = {word for word in listed if scope_of("bash", {"command": f"{word} a"}) is not None}
    assert words == {"echo", "false", "printf", "pwd", "test", "true"}
    assert not {"echo", "printf"} & SHELL_WORDS


@pytest.mark.parametrize("command", [*(f"{name} ls" for name in sorted(RUNNERS)), "/usr/bin/env ls"])
def test_no_rule_is_offered_for_a_program_that_runs_another(command: str) -> None:
    assert scope_of("bash", {"command": command}) is None


@pytest.mark.parametrize(
    ("path", "scope"),
    [("a/b.txt", "a"), ("b.txt", "."), ("", None), (".", None), ("/etc/x", None), ("a/../b", None), ("..", None)],
)
def test_the_scope_of_a_file_tool_is_the_folder(path: str, scope: str | None) -> None:
    assert scope_of("write_file", {"path": path}) == scope


@pytest.mark.parametrize(
    ("files", "path", "named"),
    [
        (["src/a.py"], "src/a.py", True),
        (["./src/a.py"], "/root/src//a.py", True),
        (["/root/src/a.py"], "src/a.py", True),
        (["src"], "src/deep/a.py", True),
        (["src/"], "src/a.py", True),
        (["."], "a.py", True),
        (["src"], "src2/a.py", False),
        (["src/a.py"], "src/a.pyc", False),
        (["src/a.py"], "src/b.py", False),
        (["src/../b.py"], "src/b.py", False),
        (["*.py"], "a.py", False),
        ([" "], "a.py", False),
        ([], "a.py", False),
    ],
)
@pytest.mark.parametrize("tool", ["write_file", "edit_file"])
def test_a_plan_names_its_files_and_all_in_its_folders(files: list[str], path: str, named: bool, tool: str) -> None:
    assert names_call(ApprovedPlan("p", files=tuple(files)), tool, {"path": path}, "/root") is named


@pytest.mark.parametrize(
    ("commands", "command", "named"),
    [
        (["pytest"], "pytest", True),
        (["pytest"], " pytest -x 'tests/a b' ", True),
        (["git commit"], "git commit -m x", True),
        (["cd a && make"], "cd a && make", True),
        (["git commit"], "git push", False),
        (["pytest"], "pytest; rm -rf .", False),
        (["pytest"], "pytest > conftest.py", False),
        (["pytest"], "pytest2", False),
        (["pytest -x"], "pytest", False),
        (["cd a && make"], "cd a && make install", False),
        (["env"], "env rm -rf .", False),
        ([""], "", False),
        ([], "ls", False),
    ],
)
def test_a_plan_names_its_commands_with_more_arguments(commands: list[str], command: str, named: bool) -> None:
    assert names_call(ApprovedPlan("p", commands=tuple(commands)), "bash", {"command": command}, "/root") is named
