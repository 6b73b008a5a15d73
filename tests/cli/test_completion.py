"""The shell completes commands and what exists at that moment, quickly, and without a word of ours in its line."""

import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pexpect
import pytest
from click.shell_completion import ShellComplete

from crewboard import env
from crewboard.commands import rules
from crewboard.commands.context import Team
from crewboard_tui.cli import program
from tests.cli.files import enlist
from tests.cli.shell import Cli, clean_environment
from tests.cli.test_startup import HEAVY, loaded
from tests.system import need_program
from tests.terminal.screen import close

COMPLETE = f"""
import os, sys
os.environ["{env.COMPLETE}"] = "bash_complete"
os.environ["COMP_WORDS"], os.environ["COMP_CWORD"] = sys.argv[1], str(len(sys.argv[1].split(" ")) - 1)
from crewboard_tui.cli.program import run
run([])
print(*sorted(name for name in sys.modules if name in HEAVY or name.startswith("crewboard_tui.cli.")))
"""

HEAVIEST = {"anthropic", "asyncio", "pydantic", "rich.console", "textual", "watchdog"}

OWN = ["crewboard_tui.cli.common", "crewboard_tui.cli.program"]


@pytest.mark.files_only("a shell starts processes, which do not know the test's database")
def test_tab_completes_a_name_in_a_real_bash(shell: Cli, team: Team) -> None:
    need_program("bash")
    enlist(team, "fixer")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    bash = pexpect.spawn(
        "bash", ["--norc", "--noprofile", "-i"], cwd=str(shell.root), timeout=30, encoding="utf-8",
        env=clean_environment(PATH=path, TERM="dumb", PS1="", INPUTRC="/dev/null"),
    )  # fmt: skip
    try:
        # In two words, so that the echo of the line is not taken for its output.
        bash.sendline('eval "$(crewboard completion bash)"; echo rea""dy')
        bash.expect("ready")
        bash.send("crewboard stop fi\t")
        bash.expect_exact("crewboard stop fixer ")
    finally:
        close(bash)


@pytest.mark.parametrize("name", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_registers_the_command(cli: Cli, name: str) -> None:
    ran = cli("completion", name)
    assert (ran.code, ran.err) == (0, "")
    assert f"{env.COMPLETE}={name}_complete" in ran.out
    registers = {
        "bash": "complete -o nosort -F _crewboard_completion crewboard",
        "zsh": "compdef _crewboard_completion crewboard",
        "fish": "complete --no-files --command crewboard",
    }
    assert registers[name] in ran.out


def test_an_unknown_shell_is_refused(cli: Cli) -> None:
    cli("completion", "tcsh").refused(2, "'tcsh' is not one of 'bash', 'zsh', 'fish'")


def test_rules_are_completed_by_their_ids(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    rule = rules.add_rule(team.ensure(), "deny", "bash", "git push*")
    monkeypatch.chdir(team.directory.root)
    shell = ShellComplete(program.crewboard, {}, "crewboard", env.COMPLETE)
    assert [item.value for item in shell.get_completions(["rules", "revoke"], "rule")] == [rule.id]


@pytest.mark.parametrize("words", [["statsu"], ["help"], ["task", "bogus"]])
def test_behind_an_unknown_command_nothing_is_completed(words: list[str]) -> None:
    shell = ShellComplete(program.crewboard, {}, "crewboard", env.COMPLETE)
    assert [item.value for item in shell.get_completions(words, "x")] == []


def test_completing_a_command_imports_no_command(shell: Cli) -> None:
    *found, imported = loaded(COMPLETE, HEAVY, shell, "crewboard s").stdout.splitlines()
    assert "plain,spawn" in found
    assert imported.split() == OWN


@pytest.mark.files_only("psycopg loads more")
def test_completing_a_name_loads_no_screen_and_no_sdk(shell: Cli, team: Team) -> None:
    enlist(team, "fixer")
    *found, imported = loaded(COMPLETE, HEAVIEST, shell, "crewboard journal fi").stdout.splitlines()
    assert found == ["plain,fixer"]
    assert imported.split() == [*OWN, "crewboard_tui.cli.watching"]


@pytest.mark.long
@pytest.mark.files_only("is about folders")
def test_completing_writes_nothing_into_the_line(shell: Cli, team: Team) -> None:
    enlist(team, "fixer")
    inner = shell.root / "clone"
    shutil.copytree(shell.root / ".crewboard", inner / ".crewboard")
    below = replace(shell, root=inner)
    assert "foreign" in below("status").err
    ran = below.with_environment(COMP_WORDS="crewboard stop ", COMP_CWORD="2", **{env.COMPLETE: "bash_complete"})()
    assert (ran.code, ran.out, ran.err) == (0, "plain,fixer\n", "")


@pytest.mark.long
@pytest.mark.files_only("damages a file")
def test_a_team_that_cannot_be_read_completes_nothing(shell: Cli, team: Team) -> None:
    enlist(team, "fixer")
    (team.directory.path / "config.json").write_text("{")
    ran = shell.with_environment(COMP_WORDS="crewboard stop ", COMP_CWORD="2", **{env.COMPLETE: "bash_complete"})()
    assert (ran.code, ran.out, ran.err) == (0, "\n", "")
