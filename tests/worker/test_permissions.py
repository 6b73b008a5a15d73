"""The calls that a standing permission covers: one program, exactly as bash would run it, or one folder."""

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crewboard.records.team import Rule, RuleEffect
from crewboard.store import roster
from crewboard.worker.conversation import ApprovedPlan
from crewboard.worker.tools.bash_reader import RUNNERS, SHELL_WORDS, simple_command
from crewboard.worker.tools.permissions import Verdict, judge, judge_call, scope_of
from crewboard.worker.tools.plans import names_call
from tests.crash import scenarios
from tests.crash.enumeration import new_team

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


def run_by_bash(command: str, programs: Path, *, writes: bool = False) -> list[list[str]]:
    """Return the programs that bash runs for a command, each with its arguments; only with `writes` it may write."""
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
            timeout=30,
        )
        assert writes or [path.name for path in Path(scratch).iterdir()] == ["log"], "it wrote a file"
        return [line.split("\0")[:-1] for line in log.read_text().splitlines()]


@settings(max_examples=120, deadline=None)
@given(rest=st.lists(st.sampled_from(PIECES), max_size=8))
def test_bash_runs_what_a_rule_covers_and_nothing_more(rest: list[str], programs: Path) -> None:
    command = "record " + "".join(rest)
    words = simple_command(command)
    if words is not None:
        assert run_by_bash(command, programs) == [words]


STATEMENTS = [
    *PIECES, " other ", " other a ", "\n", ";", "&&", "|", "$(", ")", "(", "`", '"', "'", "if true; then", "; fi",
    "for x in a b; do", "; done", "eval ", "command ", "exec ", "x=other ", "$x ", "${x:-b}", "<<E\n", "<<'E'\n",
    "\nE\n", "2>/dev/null", "! ", "{ ", "; }", "[ -n a ]", "[[ a ]]", "time ", "bash -c ", "'other b'", "trap ",
    " EXIT", "\\\n", "case a in a) other;; esac", "f() { other; }", "; f", "$'oth\\145r'", "builtin ", "coproc ",
    "$((1))",
]  # fmt: skip
"""More of the grammar, in which the program `other` may run."""


@pytest.mark.long
@settings(max_examples=100, deadline=None)
@given(pieces=st.lists(st.sampled_from(STATEMENTS), max_size=9))
def test_no_program_runs_that_a_rule_does_not_see(pieces: list[str], programs: Path) -> None:
    command = "".join(pieces).replace("\0", "")
    rule = Rule(id="rule-1", effect="deny", tool="bash", pattern="other *")
    if judge_call([rule], "bash", {"command": command}, "/root") is None:
        assert not [run for run in run_by_bash(command, programs, writes=True) if run[0] == "other"]


@pytest.mark.parametrize(
    "command",
    ["\\\n other", "x\\\n=1 other", ">\\\n a other", "other 2\\\n>/dev/null",
     "record <<E\na\\\nE\nrecord <<'X'\nE\nother\nX\n"],
)  # fmt: skip
def test_no_program_is_hidden_by_a_line_that_goes_on(command: str, programs: Path) -> None:
    assert ["other"] in run_by_bash(command, programs, writes=True)
    rule = Rule(id="rule-1", effect="deny", tool="bash", pattern="other")
    assert judge_call([rule], "bash", {"command": command}, "/root") is not None


EVALUATED = [
    "[[ 'a[$(other)]' -eq 0 ]]", "[[ 1 && 'a[$(other)]' -eq 0 && 1 ]]", "test -v 'a[$(other)]'",
    "[ -v 'a[$(other)]' ]", "[[ -v 'a[$(other)]' ]]", "[[ 1 && -v 'a[$(other)]' && 1 ]]",
    "x='a[$(other)]'; [[ x -eq 0 ]]", "x='a[$'; [[ $x'(other)]' -eq 0 ]]", "x='a[$'; test -v $x'(other)]'",
    "x='a[$'; test $y-v \"$x(other)]\"", "printf -v 'a[$(other)]' x", "x='a['; printf -v $x'$(other)]' x",
    "let 'a[$(other)]'", "declare -i 'x=a[$(other)]'", "declare 'a[$(other)]=1'",
    "declare -n y='a[$(other)]'; echo $y", "x='-v a[$(other)]'; [ $x ]", "read 'a[$(other)]' <<< x",
    "x='a['; read $x'$(other)]' <<< x", "a=(1); unset 'a[$(other)]'", "x='a[`other`]'; y=1; echo ${y:x}",
    "x='a[$''(other)]'; y=1; echo ${y:1:x}", "RANDOM='a[$(other)]'", "OPTIND='a[$(other)]'", "OPTIND+='a[$(other)]'",
    "hash -p $PATH/other foo; foo", "PS4='$(other)'; set -x; :", "export PS4='$(other)'; set -x; :",
    'export "PS4=\\$(other)"; set -x; :', "x='$(other)'; PS4=$x; set -x; :",
]  # fmt: skip
"""Commands that run `other` by what bash evaluates, and in which it stands in a text."""


@pytest.mark.parametrize("command", EVALUATED)
def test_a_text_that_bash_evaluates_is_asked(command: str, programs: Path) -> None:
    assert ["other"] in run_by_bash(command, programs, writes=True)
    rule = Rule(id="rule-1", effect="deny", tool="bash", pattern="other")
    verdict = judge_call([rule], "bash", {"command": command}, "/root")
    assert verdict is not None
    assert verdict.effect == "ask"


@pytest.mark.parametrize(
    "command",
    ["[[ $x == a* ]]", '[ "$x" = y ]', '[ -n "$x" ] && echo "[$(date)] began"', "export PATH=$HOME/bin:$PATH",
     "printf '[%s]\\n' \"$x\"", "read -r line", "wait $pid", "unset x", "echo ${x:-y} ${x: -3} ${x:0:2} ${x%.py}",
     "declare -r x=1", "ls | xargs -n1 cat", "find . -name '*.py' -exec cat {} +", "env A=b python x.py", "su -c ls"],
)  # fmt: skip
def test_a_command_that_evaluates_nothing_is_not_asked(command: str) -> None:
    assert judged("deny", "git push*", "bash", command) is None


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


def judged(effect: RuleEffect, pattern: str, tool: str, text: str, root: str = "/root") -> RuleEffect | None:
    """Return what one rule says about a command, or about a path."""
    rule = Rule(id="rule-1", effect=effect, tool="bash" if tool == "bash" else "files", pattern=pattern)
    found = judge_call([rule], tool, {"command" if tool == "bash" else "path": text}, root)
    return found.effect if found is not None else None


@pytest.mark.parametrize(
    ("pattern", "command", "allowed"),
    [
        ("git status*", "git status", True),
        ("git status*", "git status -s src", True),
        ("git status *", "git status", True),
        ("git status", "git status", True),
        ("git status", "git status -s", False),
        ("git status*", "git 'status x'", True),
        ("git status *", "git 'status x'", False),
        ("git status*", "git stash", False),
        ("git status*", "./git status", False),
        ("git status*", "/usr/bin/git status", False),
        ("git status*", "git -C . status", False),
        ("git status*", "git status; rm -rf .", False),
        ("git status*", "git status && rm -rf .", False),
        ("git status*", "git status | sh", False),
        ("git status*", "git status > a", False),
        ("git status*", "git status $(rm a)", False),
        ("git status*", "git status `rm a`", False),
        ("git status*", "git status\nrm a", False),
        ("git status*", "git status\x1b", False),
        ("git status*", "git status $x", False),
        ("git status*", "git status *", False),
        ("*", "env rm a", False),
        ("*", "eval rm", False),
        ("bash *", "bash -c ls", False),
        ("ls ?", "ls a", True),
        ("ls ?", "ls ab", False),
        ("'", "ls", False),
    ],
)
def test_a_pattern_allows_one_simple_command_only(pattern: str, command: str, allowed: bool) -> None:
    assert (judged("allow", pattern, "bash", command) == "allow") is allowed


@pytest.mark.parametrize(
    "command",
    ["rm a", "rm -rf a", "/bin/rm a", "./x/rm a", "\\rm a", "'rm' a", 'r"m" a', "rm *", "rm $x", "A=b rm a",
     "ls && rm a", "ls; rm a", "ls & rm a", "ls | rm a", "ls\nrm a", "(cd a; rm b)", "{ rm a; }", "! rm a",
     "if ls; then rm a; fi",
     "for x in a b; do rm $x; done", "while ls; do rm a; done", "echo $(rm a)", 'echo "$(rm a)"', "echo `rm a`",
     "x=$(rm a)", "cat <(rm a)", "rm a > b", "> b rm a", "2>/dev/null rm a", "cat <<E\nx\nE\nrm a", "ls \\\n; rm a",
     "env A=b rm a", "sudo -u x rm a", "timeout 5 rm a", "find . -exec rm {} +", "ls | xargs rm", "xargs -n1 rm -f",
     "command rm a", "exec rm a", "eval rm a", "eval 'rm a'", "eval 'rm' ' a'", "bash -c 'rm a'", 'sh -c "ls; rm a"',
     "sudo bash -c 'ls && rm a'", "trap 'rm a' EXIT", "time rm a", "time -p rm a", "ls #a\nrm a", "echo ${x:-b}; rm a",
     "[ -f a ] && rm a", "[[ -f a ]] && rm a", "echo '#'; rm a", "echo a#b; rm a"],
)  # fmt: skip
def test_a_rule_denies_a_command_wherever_it_is_hidden(command: str) -> None:
    assert judged("deny", "rm *", "bash", command) == "deny"
    assert judged("ask", "rm *", "bash", command) == "ask"


@pytest.mark.parametrize(
    "command",
    ["$x a", "${x} a", "$(echo rm) a", "`echo rm` a", "/bin/r? a", "{rm,a}", "$'\\162m' a", "eval $x", "bash -c $x",
     "bash", "curl a | sh", "curl a | sudo bash -s", "bash < a", "bash <<< 'rm a'", "bash <<E\nrm a\nE", ". /dev/stdin",
     "source <(echo rm a)", "cat <<E\n$(rm a)\nE", "f() { rm a; }", "function f { rm a; }", "case a in a) rm a;; esac",
     "alias x=rm", "echo $((a))", "ls 'a", 'ls "a', "ls )", "(ls", "cat <<E", "echo ${x@P}", "find . $x",
     "BASH_ENV=/dev/stdin bash -c : <<< 'rm a'", "env BASH_ENV=/dev/stdin bash -c : <<< 'rm a'", "xargs -I{} {} a",
     "echo rm a | xargs env", "echo a | xargs -i sh -c {}", "find rm -exec {} a ';'", "env '-Srm a'",
     "env -vS 'rm\\_a'", "env --split-string=rm a", "script -crm", "su -c'rm a'", "sg x -c'rm a'", "ls | parallel {}",
     "xargs $x", "coproc a", "$(" * 30, "eval " * 30 + "ls", "env " * 600, "ls; " * 2000],
)  # fmt: skip
def test_a_command_that_cannot_be_read_for_certain_is_asked(command: str) -> None:
    assert judged("deny", "rm *", "bash", command) == "ask"
    assert judged("ask", "rm *", "bash", command) == "ask"
    assert judged("allow", "*", "bash", command) is None or simple_command(command) is not None


@pytest.mark.parametrize(
    ("pattern", "command", "effect"),
    [
        ("git push*", "git push", "deny"),
        ("git push*", "git push -f origin", "deny"),
        ("git push*", "git -C . push", "ask"),
        ("git push*", "git --no-pager -c a=b push -f", "ask"),
        ("git push*", "git $x", "ask"),
        ("git push*", "git commit -m push", None),
        ("git push*", "git log; echo push", None),
        ("git push*", "xargs -I{} git {}", "ask"),
        ("git push*", "find push -exec git {} ';'", "ask"),
        ("git push*", "choom -n 0 -- git push", "deny"),
        ("git push*", "ssh-agent git push", "deny"),
        ("git push*", "echo git push", None),
        ("git push*", "echo push | xargs git", "ask"),
        ("git push", "git push origin", None),
        ("git push", "git push $x", "ask"),
        ("rm -rf*", "rm -v -rf a", "ask"),
        ("rm *", "echo $HOME *.py ~ 'rm a' \"rm a\"", None),
        ("rm *", "cat > a <<'E'\nrm $(a)\nE", None),
        ("rm *", "cd a && make 2>&1 | tail -5", None),
        ("rm *", "export A=b; python -m pytest -x", None),
        ("rm *", "[ -f a ] || { echo no; exit 1; }", None),
        ("*", "ls", "deny"),
        ("'", "ls", "ask"),
    ],
)
def test_a_denied_command_in_other_words(pattern: str, command: str, effect: RuleEffect | None) -> None:
    assert judged("deny", pattern, "bash", command) == effect


@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        ("src/**", "src/a.py", True),
        ("src/**", "src/deep/a.py", True),
        ("src/**", "./src//a.py", True),
        ("src/**", "src2/a.py", False),
        ("src/*", "src/a.py", True),
        ("src/*.py", "src/a.py", True),
        ("src/*.py", "src/a.txt", False),
        ("**/*.py", "a.py", True),
        ("**/*.py", "src/deep/a.py", True),
        ("src/**/test_*.py", "src/a/test_b.py", True),
        ("src/a.p?", "src/a.py", True),
        ("src/a[b].py", "src/ab.py", False),
    ],
)
def test_a_path_pattern(pattern: str, path: str, matches: bool) -> None:
    for effect in get_args(RuleEffect):
        assert judged(effect, pattern, "write_file", path) == (effect if matches else None)


@pytest.mark.parametrize("path", ["/root/src/a.py", "src/../src/a.py", "src/a/../b.py", "../root/src/a.py"])
def test_a_path_in_another_form_is_denied_and_not_allowed(path: str) -> None:
    assert judged("deny", "src/**", "edit_file", path) == "deny"
    assert judged("allow", "src/**", "edit_file", path) is None


def test_a_path_through_a_link_is_denied_and_not_allowed(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "free").symlink_to("src")
    (tmp_path / "src" / "out").symlink_to(tmp_path)
    assert judged("deny", "src/**", "write_file", "free/a.py", str(tmp_path)) == "deny"
    assert judged("allow", "free/**", "write_file", "free/a.py", str(tmp_path)) is None
    assert judged("allow", "src/**", "write_file", "src/out/a.py", str(tmp_path)) is None


def test_a_denied_folder_is_denied_with_all_in_it() -> None:
    assert judged("deny", "src", "write_file", "src/deep/a.py") == "deny"
    assert judged("deny", "src/", "write_file", "src/a.py") == "deny"
    assert judged("allow", "src", "write_file", "src/a.py") is None


def test_deny_wins_over_ask_and_ask_over_allow() -> None:
    rules = [Rule(id=f"rule-{each}", effect=each, tool="bash", pattern="rm *") for each in get_args(RuleEffect)]
    found = [judge_call(each, "bash", {"command": "rm a"}, "/root") for each in (rules, rules[:2], rules[:1])]
    assert [each.effect for each in found if each is not None] == ["deny", "ask", "allow"]


@pytest.mark.parametrize(
    "path", ["docs/.envrc", "Makefile", "./docs//Conftest.py", "ci/.gitlab-ci.yml", "src/CLAUDE.md"]
)
def test_no_rule_allows_what_runs_on_your_machine(path: str) -> None:
    patterns = [Rule(id="r", tool="files", pattern=each) for each in ("**", path)]
    folder = Rule(id="r", tool="write_file", scope=str(PurePosixPath(path).parent))
    for rule in (*patterns, folder):
        assert judge_call([rule], "write_file", {"path": path}, "/root") is None
    assert (
        judge_call([folder], "write_file", {"path": str(PurePosixPath(path).with_name("a.txt"))}, "/root") is not None
    )
    deny = Rule(id="r", effect="deny", tool="files", pattern="**")
    assert judge_call([deny], "write_file", {"path": path}, "/root") == Verdict("deny", deny)


def test_a_rule_is_only_for_its_tool() -> None:
    rule = Rule(id="rule-1", effect="deny", tool="edit_file", pattern="**")
    assert judge_call([rule], "write_file", {"path": "a"}, "/root") is None
    assert judge_call([rule], "bash", {"command": "a"}, "/root") is None
    assert judge_call([rule], "edit_file", {"path": "a"}, "/root") is not None


def test_a_rule_is_for_an_agent_its_type_or_all() -> None:
    assert Rule(id="r", agent="bob", tool="bash").applies_to("bob", "code")
    assert not Rule(id="r", agent="bob", tool="bash").applies_to("ann", "code")
    assert Rule(id="r", agent_type="code", tool="bash").applies_to("ann", "code")
    assert not Rule(id="r", agent_type="code", tool="bash").applies_to("ann", "test")
    assert Rule(id="r", tool="bash").applies_to("ann", "test")


def test_a_worker_reads_the_rules_that_are_for_it(tmp_path: Path) -> None:
    team = new_team(tmp_path / "root")
    scenarios.hire(team, "ann")
    ann = scenarios.worker(team, "ann")
    other = Rule(id="r1", effect="deny", agent="bob", tool="bash", pattern="ls*")
    roster.change(team, lambda config: config.rules.append(other))
    assert judge(ann, "bash", {"command": "ls"}) is None
    own = Rule(id="r3", effect="deny", agent="ann", tool="bash", pattern="ls*")
    roster.change(team, lambda config: config.rules.append(own))
    assert judge(ann, "bash", {"command": "ls"}) == Verdict("deny", own)


@pytest.mark.parametrize(
    ("tool", "scope", "fits", "other"),
    [
        ("bash", "git", {"command": "git status"}, {"command": "rm a"}),
        ("write_file", "src", {"path": "src/a"}, {"path": "src/b/a"}),
        ("write_file", ".", {"path": "a"}, {"path": "/etc/a"}),
    ],
)
def test_a_rule_with_a_scope_covers_it_alone(
    tool: str, scope: str, fits: dict[str, str], other: dict[str, str]
) -> None:
    rule = Rule(id="r", tool=tool, scope=scope)
    assert judge_call([rule], tool, fits, "/root") == Verdict("allow", rule)
    assert judge_call([rule], tool, other, "/root") is None


@pytest.mark.parametrize("effect", ["deny", "allow"])
def test_a_rule_for_a_tool_of_a_server_reads_arguments(effect: RuleEffect) -> None:
    tool = "mcp__issues__close"
    rule = Rule(id="r", effect=effect, tool="mcp__issues__*", pattern="number=7")
    assert judge_call([rule], tool, {"number": 7, "path": "Makefile"}, "/root") == Verdict(effect, rule)
    assert judge_call([rule], tool, {"number": 8}, "/root") is None
    assert judge_call([rule], "mcp__mail__send", {"number": 7}, "/root") is None


def test_a_rule_without_a_pattern_denies_all_calls_of_its_tool() -> None:
    rule = Rule(id="r", effect="deny", tool="files")
    assert judge_call([rule], "edit_file", {"path": "src/a"}, "/root") == Verdict("deny", rule)


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
        (["docs/.."], "docs/a.txt", False),
        (["/"], "a.py", False),
        (["/ro"], "a.py", False),
        (["/root/"], "a.py", True),
        ([" "], "a.py", False),
        (["src/a.py"], "src/a.py ", False),
        ([], "a.py", False),
    ],
)
@pytest.mark.parametrize("tool", ["write_file", "edit_file"])
def test_a_plan_names_its_files_and_all_in_its_folders(files: list[str], path: str, named: bool, tool: str) -> None:
    assert names_call(ApprovedPlan("p", 0.0, files=tuple(files)), tool, {"path": path}, "/root") is named


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
    assert names_call(ApprovedPlan("p", 0.0, commands=tuple(commands)), "bash", {"command": command}, "/root") is named


EDITS: dict[str, dict[str, object]] = {
    "one text": {"old_text": "a", "new_text": "b"},
    "each occurrence": {"old_text": "a", "new_text": "b", "replace_all": True},
    "several": {"edits": [{"old_text": "a", "new_text": "b"}]},
    "a diff": {"diff": "--- a/README.md\n+++ b/README.md\n@@ -1 +1 @@\n-a\n+b\n"},
}


@pytest.mark.parametrize("form", EDITS.values(), ids=EDITS.keys())
@pytest.mark.parametrize("effect", ["deny", "ask"])
def test_a_rule_for_a_path_binds_each_form_of_an_edit(form: dict[str, object], effect: RuleEffect) -> None:
    rule = Rule(id="rule-1", effect=effect, tool="files", pattern="src/**")
    for path, expected in (("src/a.py", effect), ("./src//a.py", effect), ("README.md", None)):
        verdict = judge_call([rule], "edit_file", {"path": path, **form}, "/root")
        assert (verdict.effect if verdict else None) == expected
    plan = ApprovedPlan("plan-1", 0, files=("src",))
    assert names_call(plan, "edit_file", {"path": "src/a.py", **form}, "/root")
    assert not names_call(plan, "edit_file", {"path": "README.md", **form}, "/root")
