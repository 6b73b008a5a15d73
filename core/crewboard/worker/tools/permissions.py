"""The permissions of an agent now: the plan gate, the permission rules, and with `--ask` the operator's permission.

A rule that allows covers one simple command, read as strictly as possible. A rule that denies or asks also looks into
compound commands, and where bash's reading of one is not certain, the operator is asked.
"""

import json
import os
import posixpath
import re
import shlex
from collections.abc import Iterator, Sequence
from enum import IntEnum
from itertools import islice
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from crewboard import edits
from crewboard.agent_types import MCP_PREFIX, is_gated, kept_by_terms
from crewboard.executed_files import runs_on_your_machine
from crewboard.names import OPERATOR
from crewboard.protocol import approvals, collisions
from crewboard.records.base import JsonValue, first_line
from crewboard.records.events import Gate
from crewboard.records.requests import Request
from crewboard.records.team import Rule, RuleEffect
from crewboard.store import mailbox, roster
from crewboard.worker.conversation import ApprovedPlan
from crewboard.worker.run_state import RunState
from crewboard.worker.tools.base import Context, Outcome
from crewboard.worker.tools.workspace import unescape_name

_PLAIN_COMMAND = re.compile(r"""[\w ./,:@%+'"-]+""", re.ASCII)
"""A command of these characters alone has no separator, substitution, expansion, redirection, assignment or control
character, so that `shlex` and bash take it apart in the same way."""

_PROGRAM = re.compile(r"[\w./][\w./+-]*", re.ASCII)

SHELL_WORDS = frozenset({
    ".", "alias", "bg", "bind", "break", "builtin", "caller", "case", "cd", "command", "compgen", "complete",
    "compopt", "continue", "coproc", "declare", "dirs", "disown", "do", "done", "elif", "else", "enable", "esac",
    "eval", "exec", "exit", "export", "fc", "fg", "fi", "for", "function", "getopts", "hash", "help", "history",
    "if", "in", "jobs", "kill", "let", "local", "logout", "mapfile", "popd", "pushd", "read", "readarray",
    "readonly", "return", "select", "set", "shift", "shopt", "source", "suspend", "then", "time", "times", "trap",
    "type", "typeset", "ulimit", "umask", "unalias", "unset", "until", "wait", "while",
})  # fmt: skip
"""Reserved words and builtins of bash for which no rule is offered: several run what their arguments say."""

RUNNERS = frozenset({
    "bash", "busybox", "bwrap", "capsh", "choom", "chroot", "chrt", "csh", "dash", "dbus-run-session", "doas", "env",
    "fakeroot", "firejail", "fish", "flock", "gdb", "i386", "ionice", "ksh", "linux32", "linux64", "ltrace", "mksh",
    "newgrp", "nice", "nohup", "nsenter", "numactl", "parallel", "perf", "pkexec", "prlimit", "rbash", "run-parts",
    "runcon", "runuser", "script", "setarch", "setpriv", "setsid", "sg", "sh", "ssh", "ssh-agent", "start-stop-daemon",
    "stdbuf", "strace", "su", "sudo", "systemd-inhibit", "systemd-run", "taskset", "tcsh", "timeout", "toybox",
    "uclampset", "uname26", "unbuffer", "unshare", "valgrind", "watch", "x86_64", "xargs", "xvfb-run", "zsh",
})  # fmt: skip
"""Programs that run the program in their arguments. A rule for one of them would allow every program."""

_SHELLS = frozenset({"bash", "dash", "ksh", "sh", "zsh"})

_WRAPPERS = frozenset({
    *RUNNERS, "builtin", "command", "entr", "eval", "exec", "find", "flock", "hatch", "ksh", "npx", "nsenter",
    "parallel", "pdm", "perf", "poetry", "runuser", "script", "su", "systemd-run", "time", "trap", "uv", "uvx",
})  # fmt: skip
"""Programs and builtins whose arguments are searched for what a rule denies or has asked for."""

_RUNS_FILES = frozenset({*_SHELLS, ".", "source"})

_IS_TEXT = re.compile(r"[\s;&|<>()$`'\"\\]")
"""Characters of an argument that is more than one word of a command."""

_MOST_WORDS = 500

_MOST_COMMANDS = 1000

_FIND_RUNS = frozenset({"-exec", "-execdir", "-ok", "-okdir"})

_REDEFINES = frozenset({
    "alias", "bind", "case", "compgen", "complete", "coproc", "enable", "fc", "function", "hash", "let", "mapfile",
    "readarray",
})  # fmt: skip
"""Words of bash after which a later word may mean or run something else than it says."""

_DECLARES = frozenset({"declare", "export", "local", "readonly", "typeset"})

_NAMES_VARIABLES = frozenset({"getopts", "read", "unset"})

_COMPARES = frozenset({"-eq", "-ne", "-lt", "-le", "-gt", "-ge"})
"""Operators of `[[` whose operands bash evaluates: `a[$(ls)]` runs a command."""

_NAMED = frozenset({"-v", "-R"})
"""Operators whose operand is the name of a variable, of which bash evaluates a subscript."""

_SUBSCRIPT = re.compile(r"\[[^\]]*(?:\$\(|`)")
"""A subscript in a text that bash does not run, until something evaluates that text."""

_GLUED_COMMAND = frozenset({"flock", "runuser", "script", "sg", "su"})
"""Programs that take the text of a command behind `-c`, also without a blank."""

_BEFORE_COMMAND = frozenset({
    "!", "do", "done", "elif", "else", "esac", "fi", "if", "then", "until", "while", "{", "}",
})  # fmt: skip
"""Words after which bash reads another command."""

_DEEPEST = 20
"""Substitutions and subshells inside of each other that are looked into."""


def is_plan_required(run_state: RunState) -> bool:
    """Return True if the present assignment needs an approved plan."""
    assignment = run_state.conversation.assignment
    return run_state.spec.flags.plan or bool(assignment and assignment.plan_wanted)


def is_gate_closed(run_state: RunState) -> bool:
    """Return True if the agent may not write or run anything, because its plan is not approved."""
    assignment = run_state.conversation.assignment
    return is_plan_required(run_state) and not (assignment and assignment.gate_open)


def expire_approval(run_state: RunState) -> Outcome | None:
    """Close the gate if the team's `approval_hours` are over; return what the model is told."""
    assignment = run_state.conversation.assignment
    if assignment is None or assignment.plan is None or is_gate_closed(run_state) or not is_plan_required(run_state):
        return None
    hours = roster.load(run_state.team).approval_hours
    if hours is None or run_state.now() - assignment.plan.at <= hours * 3600:
        return None
    run_state.append(Gate(ts=run_state.now(), open=False))
    return Outcome(
        f"An approval holds for {hours:g} h, and your plan's is older. Submit the plan again with submit_plan.",
        is_error=True,
    )


def gate_refusal(run_state: RunState, tool: str) -> Outcome | None:
    """Return what the model is told about a call that the plan gate, or terms of the approval, refuse; else None."""
    if is_gate_closed(run_state) and is_gated(tool):
        return Outcome(
            f"{tool} is not allowed before your plan is approved. Submit one with submit_plan.", is_error=True
        )
    if is_gate_closed(run_state) and tool in ("review_plan", "accept_changes"):
        return Outcome(f"{tool} is not allowed before your own plan is approved.", is_error=True)
    terms = run_state.conversation.terms
    if terms is not None and not kept_by_terms(terms, tool):
        return Outcome(
            f"{tool} was not run: the terms of your plan's approval leave you only {', '.join(terms.tools or ())} of "
            "the tools of your type, until your result. Do not try to do it in another way; submit a new plan with "
            "submit_plan if you need it.",
            is_error=True,
        )
    return None


def asks_first(run_state: RunState, tool: str) -> bool:
    """Return True if the operator is asked before each call of a gated tool: by the hire, its type or the approval."""
    spec, terms = run_state.spec, run_state.conversation.terms
    runs = tool == "bash" or tool.startswith(MCP_PREFIX)
    by_type = runs and spec.definition is not None and spec.definition.ask_commands
    return spec.flags.ask or by_type or (terms is not None and terms.ask)


def deviates(run_state: RunState, tool: str, arguments: dict[str, Any]) -> bool:
    """Return True if an approved plan is being carried out and does not name this call."""
    assignment = run_state.conversation.assignment
    plan = assignment.plan if assignment else None
    if not is_gated(tool) or (plan is None and not run_state.spec.flags.strict_plan):
        return False
    if plan is None:
        return True
    return not names_call(plan, tool, arguments, str(run_state.workspace))


def names_call(plan: ApprovedPlan, tool: str, arguments: dict[str, Any], root: str) -> bool:
    """Return True if a plan names a command, or the file that a call changes.

    Only the plan's fields `files` and `commands` count, not its text. A listed folder includes everything in it. A
    listed command that is a single program also allows that program with more arguments. The name of a tool of an MCP
    server, listed as a command, allows all calls of that tool.
    """
    if tool.startswith(MCP_PREFIX):
        return any(each.split()[:1] == [tool] for each in plan.commands)
    if tool == "bash":
        return any(_names_command(each, str(arguments.get("command", ""))) for each in plan.commands)
    return any(collisions.names_file(each, str(arguments.get("path", "")), root) for each in plan.files)


def _names_command(named: str, command: str) -> bool:
    if named.strip() == command.strip():
        return bool(named.strip())
    words, called = simple_command(named.strip()), simple_command(command.strip())
    return words is not None and called is not None and called[: len(words)] == words


def deviation_refusal(tool: str) -> Outcome:
    """Return the refusal of a call that the approved plan does not name, if plans are strict; the model reads it."""
    runs = tool == "bash" or tool.startswith(MCP_PREFIX)
    field = "commands" if runs else "files"
    return Outcome(
        f"{tool} was not run: the approved plan does not name it. Submit a new plan with submit_plan; list in its "
        f"{field} all that you still want to {'run' if runs else 'change'}, and wait for the approval.",
        is_error=True,
    )


def simple_command(command: str) -> list[str] | None:
    """Return the arguments of a command that bash runs as one program; None if it may be anything else."""
    if not _PLAIN_COMMAND.fullmatch(command):
        return None
    try:
        words = shlex.split(command)
    except ValueError:
        return None
    program = words[0] if words else ""
    if not _PROGRAM.fullmatch(program) or program in SHELL_WORDS or PurePosixPath(program).name in RUNNERS:
        return None
    return words


def scope_of(tool: str, arguments: dict[str, Any]) -> str | None:
    """Return what a rule for this call would cover: a program for bash, a folder for files. None: no rule offered.

    For a tool of an MCP server that is `*`: every call of this tool.
    """
    if tool.startswith(MCP_PREFIX):
        return "*"
    if tool == "bash":
        words = simple_command(str(arguments.get("command", "")))
        return words[0] if words else None
    path = PurePosixPath(str(arguments.get("path", "")))
    return None if not path.name or path.is_absolute() or ".." in path.parts else str(path.parent)


_TYPE_RULE = "type "
"""The beginning of the id of a rule that is no rule of the operator, but from the file of a type."""


class Verdict(NamedTuple):
    """The decision of the rules about a call, and the rule that decided. `asks` is the reason for asking."""

    effect: RuleEffect
    rule: Rule
    asks: str = ""


class _Match(IntEnum):
    """The certainty that a rule is for a call: no, perhaps, or for certain."""

    NO = 0
    MAYBE = 1
    YES = 2


def judge(context: Context, tool: str, arguments: dict[str, Any]) -> Verdict | None:
    """Return what the rules say about a call; None if no rule is for it."""
    spec = context.run_state.spec
    rules = roster.load(context.team).rules
    found = [rule for rule in rules if rule.applies_to(context.name, spec.type)]
    denied = spec.definition.denied if spec.definition is not None else []
    found += [
        Rule(id=f"{_TYPE_RULE}{spec.type}", effect="deny", tool=each.tool, pattern=each.pattern) for each in denied
    ]
    return judge_call(found, tool, arguments, str(context.run_state.workspace))


def judge_call(rules: Sequence[Rule], tool: str, arguments: dict[str, Any], root: str) -> Verdict | None:
    """Return what these rules of an agent say about a call: deny wins over ask, ask wins over allow.

    What a rule may deny, but not for certain, is asked for. No rule allows a write of a file that runs on the user's
    machine.
    """
    rules = [rule for rule in rules if _is_about(rule.tool, tool)]
    strict = _strict_matches([rule for rule in rules if rule.effect != "allow"], tool, arguments, root)
    for match, rule in strict:
        if match is _Match.YES and rule.effect == "deny":
            return Verdict("deny", rule)
    for match, rule in strict:
        certain = f"{rule.id} asks before {rule.pattern}"
        possible = f"{rule.id} may be about it: {rule.effect} {rule.pattern}"
        return Verdict("ask", rule, certain if match is _Match.YES else possible)
    if _is_executed(tool, arguments):
        return None
    allowing = (rule for rule in rules if rule.effect == "allow" and _allows(rule, tool, arguments, root))
    return next((Verdict("allow", rule) for rule in allowing), None)


def _is_executed(tool: str, arguments: dict[str, Any]) -> bool:
    """Return True if a call of a file tool changes what the user's own programs run, or take commands from."""
    if tool == "bash" or tool.startswith(MCP_PREFIX):
        return False
    return runs_on_your_machine(str(arguments.get("path", "")))


def _is_about(named: str, tool: str) -> bool:
    """Return True if a rule that names a tool, or a pattern of tools of MCP servers, is about this tool."""
    if tool.startswith(MCP_PREFIX):
        return named.startswith(MCP_PREFIX) and _matches(named, tool)
    return named == tool or (named == "files" and tool != "bash")


def _describe_rule(rule: Rule) -> str:
    """Return what a rule is about, in words."""
    if not rule.tool.startswith(MCP_PREFIX):
        return rule.pattern
    return rule.tool if rule.pattern in ("", "*") else f"{rule.tool} with {rule.pattern}"


def _allows(rule: Rule, tool: str, arguments: dict[str, Any], root: str) -> bool:
    """Return True if a rule allows a call for certain: one simple command, or a file to which no link leads."""
    scope = scope_of(tool, arguments)
    if scope is None or not rule.pattern:
        return scope is not None and (rule.tool, rule.scope) == (tool, scope)
    if tool.startswith(MCP_PREFIX):
        return _match_arguments(rule.pattern, arguments)
    if tool == "bash":
        words, pattern = simple_command(str(arguments.get("command", ""))), _pattern_words(rule)
        return bool(words and pattern) and _match_words(pattern, words or [], any_folder=False) is _Match.YES
    return all(_match_path(rule.pattern, name) for name in _names_of(str(arguments.get("path", "")), root))


def _strict_matches(rules: list[Rule], tool: str, arguments: dict[str, Any], root: str) -> list[tuple[_Match, Rule]]:
    """Return those of the rules that are, or may be, about a call, the certain ones first."""
    found: list[tuple[_Match, Rule]] = []
    if tool.startswith(MCP_PREFIX):
        return [(_Match.YES, rule) for rule in rules if not rule.pattern or _match_arguments(rule.pattern, arguments)]
    if tool == "bash":
        commands = _commands_or_none(str(arguments.get("command", ""))) if rules else []
        for rule in rules:
            pattern = _pattern_words(rule)
            clear = commands if pattern else None
            matches = [_Match.MAYBE] if clear is None else [_match_words(pattern, words) for words in clear]
            found.append((max(matches, default=_Match.NO), rule))
    else:
        names = _names_of(str(arguments.get("path", "")), root) if rules else []
        for rule in rules:
            patterns = rule.pattern.rstrip("/"), f"{rule.pattern.rstrip('/')}/**"
            matched = not rule.pattern or any(_match_path(each, name) for name in names for each in patterns)
            found.append((_Match.YES if matched else _Match.NO, rule))
    return sorted((each for each in found if each[0] is not _Match.NO), key=lambda each: -each[0])


def _commands_or_none(text: str) -> list[list[str | None]] | None:
    """Return the commands in a text; None if it is not certain what bash runs."""
    try:
        found = list(islice(commands_in(text), _MOST_COMMANDS + 1))
    except UnclearCommandError:
        return None
    # To compare more with each rule would hold up the worker.
    return found if len(found) <= _MOST_COMMANDS else None


def _pattern_words(rule: Rule) -> list[str]:
    """Return the words of a rule's pattern; none if it cannot be read, as in a file that was edited by hand."""
    try:
        return shlex.split(rule.pattern)
    except ValueError:
        return []


def _match_words(pattern: list[str], words: Sequence[str | None], *, any_folder: bool = True) -> _Match:
    """Compare a command with a pattern, word by word; a pattern that ends in `*` allows more words.

    With `any_folder` the program may be in any folder, and options before a subcommand make the match possible.
    """
    more = pattern[-1].endswith("*")
    if pattern[-1] == "*":
        pattern = pattern[:-1]
    for index, wanted in enumerate(pattern):
        word = words[index] if index < len(words) else ""
        if word is None:
            return _Match.MAYBE
        if index >= len(words):
            return _Match.NO
        name = posixpath.basename(word) if any_folder and index == 0 else word
        if _matches(wanted, word) or _matches(wanted, name):
            continue
        has_option = any_folder and index > 0 and word.startswith("-")
        return _Match.MAYBE if has_option and _in_order(pattern[index:], words[index:]) else _Match.NO
    if more or len(words) == len(pattern):
        return _Match.YES
    return _Match.MAYBE if words[len(pattern)] is None else _Match.NO


def _match_arguments(pattern: str, arguments: dict[str, Any]) -> bool:
    """Return True if a pattern `name=text` matches an argument of a call; `*` matches every call."""
    texts = (value if isinstance(value, str) else json.dumps(value) for value in arguments.values())
    return pattern == "*" or any(
        _matches(pattern, f"{name}={text}") for name, text in zip(arguments, texts, strict=True)
    )


def _in_order(pattern: list[str], words: Sequence[str | None]) -> bool:
    """Return True if the words may contain those of the pattern, in this order."""
    left = iter(words)
    return all(any(word is None or _matches(wanted, word) for word in left) for wanted in pattern)


def _matches(pattern: str, text: str) -> bool:
    return re.fullmatch(_glob(pattern, "."), text, re.DOTALL) is not None


def _glob(pattern: str, character: str) -> str:
    """Return a pattern with `*` and `?`, which stand for this `character`, as a regular expression."""
    return "".join({"*": f"{character}*", "?": character}.get(each) or re.escape(each) for each in pattern)


def _match_path(pattern: str, path: str) -> bool:
    """Return True if a path relative to the root matches; `**` stands for any folders, at the end for all inside."""
    *folders, last = posixpath.normpath(pattern).split("/")
    steps = ["(?:[^/]+/)*" if each == "**" else _glob(each, "[^/]") + "/" for each in folders]
    steps.append(".+" if last == "**" else _glob(last, "[^/]"))
    return re.fullmatch("".join(steps), path, re.DOTALL) is not None


def _names_of(path: str, root: str) -> list[str]:
    """Return a path as it is given, and as the file tools resolve it, relative to the root."""
    real = [posixpath.realpath(posixpath.join(root, each)) for each in (path, unescape_name(path))]
    given = posixpath.relpath(posixpath.join(root, path), root)
    return [given, *(posixpath.relpath(each, posixpath.realpath(root)) for each in real)]


def file_changed_by(tool: str, arguments: dict[str, Any], root: str) -> str | None:
    """Return the file that a call of a file tool changes, from the root, with links resolved; None for other tools."""
    if tool not in ("write_file", "edit_file"):
        return None
    try:
        return os.fsencode(_names_of(str(arguments.get("path", "")), root)[-1]).decode("utf-8", "replace")
    except ValueError:
        # No file has such a name; the tool says so.
        return None


class UnclearCommandError(ValueError):
    """It is not certain how bash reads a command."""


def commands_in(text: str, depth: int = 0) -> Iterator[list[str | None]]:
    """Yield the words of each command that bash may run for `text`: in compound commands, substitutions and arguments.

    A word that is known only when bash runs is None.

    Raises:
        UnclearCommandError: It is not certain what bash runs.
    """
    reader = _CommandReader(text, depth)
    reader.read_commands("")
    for words in reader.found:
        yield words
        yield from _wrapped(words, depth)


def _wrapped(words: list[str | None], depth: int) -> Iterator[list[str | None]]:
    """Yield the commands that a program may run which takes them as its arguments."""
    _require_clear(words)
    name, given = posixpath.basename(words[0] or ""), words[1:]
    if name not in _WRAPPERS:
        return
    if len(words) > _MOST_WORDS:
        raise UnclearCommandError(f"{name} has too many arguments")
    _require_plain_options(name, given)
    # These read more arguments from another process, and put them in other places, too.
    more = [None] if name in ("parallel", "xargs") else []
    replaced = ("{",) if name == "parallel" else ("{}",) if name == "find" else ()
    filled = [None if word and any(each in word for each in replaced) else word for word in words]
    for index, word in enumerate(words[1:], start=1):
        if name != "find" or words[index - 1] in _FIND_RUNS or word is None:
            _require_clear(filled[index:])
            yield [*filled[index:], *more]
    texts = [word for word in given if word is not None and _IS_TEXT.search(word)]
    if name == "eval":
        texts.append(" ".join(word or "" for word in given))
    for text in texts:
        yield from commands_in(text, depth + 1)


def _require_clear(words: list[str | None]) -> None:
    """Refuse a command that changes what words mean, or whose text is not among its arguments."""
    name, given = posixpath.basename(words[0] or ""), words[1:]
    if name in _REDEFINES:
        raise UnclearCommandError(f"{name} may change what other words mean")
    reads_file = [word is None or word.startswith(("/dev/", "/proc/")) for word in given]
    reads_input = all(word is not None and word.startswith(("-", "+")) for word in given)
    if (name in _SHELLS and reads_input) or (name in _RUNS_FILES and any(reads_file)):
        raise UnclearCommandError(f"{name} reads its commands from elsewhere")
    if _may_evaluate(words[0] or "", given):
        raise UnclearCommandError(f"{name} may run what stands in its arguments or in variables")


def _may_evaluate(name: str, given: Sequence[str | None]) -> bool:
    """Return True if bash may evaluate an argument of a builtin as arithmetic, in which a subscript runs commands.

    `&&` and `||` divide what stands between `[[` and `]]`, so a part of it can look like a command of its own.
    """
    known = [word for word in given if word is not None]
    is_unknown = len(known) < len(given)
    has_subscript = any("[" in word for word in known)
    options = "".join(word for word in known if word[:1] in ("-", "+"))
    if name in _NAMED or (given[:1] and given[0] in _COMPARES):
        return True
    if name == "[[" or (known and known[-1] == "]]"):
        return not {*known}.isdisjoint(_COMPARES | _NAMED)
    if name in ("[", "test"):
        names_one = not {*known}.isdisjoint(_NAMED) and (has_subscript or is_unknown)
        # Of two operands the first is an operator.
        return names_one or (given[:1] == [None] and len(given) == 2 + (name == "["))
    if name in _DECLARES:
        return has_subscript or not {*options}.isdisjoint("inaA") or (is_unknown and name in ("declare", "typeset"))
    if name in _NAMES_VARIABLES:
        return has_subscript or is_unknown
    return name in ("printf", "wait") and ("-v" if name == "printf" else "-p") in options


def _require_plain_options(name: str, given: Sequence[str | None]) -> None:
    """Refuse options by which a program takes the text of a command, or puts arguments where none stand.

    Raises:
        UnclearCommandError: There may be such an option.
    """
    options = [word for word in given if word is not None and word.startswith("-")]
    if name == "xargs":
        # It may run a program with a command line that it makes itself, or one that runs another.
        places = any(re.match(r"-\w*[IiJ]|--replace", word) for word in options)
        unclear = places or any(posixpath.basename(word or "") in _WRAPPERS for word in given)
    elif name == "env":
        unclear = any(re.match(r"-\w*S|--s", word) for word in options)
    elif name in _GLUED_COMMAND:
        unclear = any(re.match(r"-\w*c.|--c\w*=", word) for word in options)
    else:
        unclear = False
    if unclear:
        raise UnclearCommandError(f"{name} has an option that may be a command")


_CONTINUATION = "\\\n"
"""A backslash and a newline, which bash leaves out, so that a line goes on in the next one."""


class _CommandReader:
    """A reader of the part of bash's grammar that says where a command begins; it refuses what it is not sure of."""

    _BLANK = re.compile(r"[ \t]|\\\n|&(?=>)")
    _ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=", re.ASCII)
    _REDIRECTION = re.compile(r"<<<|<<-?|<>|<&|>&|>>|>\||<|>")
    _DELIMITER = re.compile(r"""[ \t]*(?:'([^'\n]*)'|"([^"\n\\$`]*)"|(\\?)([\w.-]+))(?=[\s;&|<>]|$)""", re.ASCII)
    _VARIABLE = re.compile(
        r"\$(?:\w+|[?#$!@*-]|\{[#]?\w+(?:(?::?[-+=?]|[#%/^,])[^{}$`'\"\\@!\[]*|:[ \d-]+(?::[ \d-]+)?)?\})", re.ASCII
    )
    """An expansion in which nothing is evaluated: as offset and length of a part it has numbers alone."""
    _EVALUATED = re.compile(
        r"""["'\\]*(?:PS[0-4]|PROMPT_COMMAND|BASH_ENV|ENV|RANDOM|SRANDOM|SECONDS|OPTIND|HISTCMD)\+?="""
    )
    """An assignment to a variable whose value bash evaluates or runs."""
    _QUOTED_C = re.compile(r"\$'(?:[^'\\]|\\.)*'", re.DOTALL)
    _PLAIN = re.compile(
        r"""[^\s;&|<>()\\'"$`*?\[{~]+|[^\S \t\n]+|(?<![^\s;&|()])(?:\{|\[\[?)(?=\s)|\{\}|(?<=[^\s;&|<>()=:])~"""
    )
    """Characters that stand for themselves: also a brace or bracket alone, and a tilde inside of a word."""
    _RUNS_IN_TEXT = re.compile(r"`|\$[(\[]|\$\{[^}]*[^\w}]")

    def __init__(self, text: str, depth: int = 0) -> None:
        self.found: list[list[str | None]] = []
        self._text = text
        self._at = 0
        self._depth = depth
        self._heredocs: list[tuple[str, bool, bool]] = []
        """Delimiter, whether it is quoted, and whether tabs are removed, of each here-document that has not begun."""

    @property
    def _next(self) -> str:
        return self._text[self._at : self._at + 1]

    def _take(self, pattern: re.Pattern[str], what: str) -> re.Match[str]:
        found = pattern.match(self._text, self._at)
        if found is None:
            raise UnclearCommandError(f"cannot read {what}")
        self._at = found.end()
        return found

    def read_commands(self, end: str) -> None:
        """Read commands up to the character `end`, or the end of the text."""
        self._depth += 1
        if self._depth > _DEEPEST:
            raise UnclearCommandError("nested too deep")
        words: list[str | None] = []
        while self._next != end:
            words = self._read_part(words)
        self._end_command(words)
        if self._heredocs and not end:
            raise UnclearCommandError("a here-document without a text")
        self._at += 1
        self._depth -= 1

    def _read_part(self, words: list[str | None]) -> list[str | None]:
        """Read a word or an operator; return the words of the command that is then being read."""
        character = self._next
        if (blank := self._BLANK.match(self._text, self._at)) is not None:
            self._at = blank.end()
        elif character in (";", "&", "|", "\n"):
            self._at += 1
            self._end_command(words)
            if character == "\n":
                self._skip_heredocs()
            return []
        elif character == "#":
            line_end = self._text.find("\n", self._at)
            self._at = line_end if line_end >= 0 else len(self._text)
        elif character in ("<", ">"):
            self._redirect(words)
        elif character == "(" and not words and not self._text.startswith("((", self._at):
            self._at += 1
            self.read_commands(")")
        elif character in ("", "(", ")"):
            raise UnclearCommandError("a function, an array, arithmetic, or an early end")
        else:
            start = self._at
            word = self._word()
            if not words and _CONTINUATION in self._text[start : self._at]:
                raise UnclearCommandError("a name that goes on in the next line")
            self._require_unevaluated(start, word)
            is_prefix = word in _BEFORE_COMMAND or self._ASSIGNMENT.match(self._text, start)
            if words or not is_prefix:
                words.append(word)
        return words

    def _require_unevaluated(self, start: int, word: str | None) -> None:
        """Refuse a word, read from `start` on, of which bash may evaluate the text later."""
        is_evaluated = self._EVALUATED.match(self._text, start) or self._EVALUATED.match(word or "")
        if is_evaluated or (word is not None and _SUBSCRIPT.search(word)):
            raise UnclearCommandError("a text that may be evaluated")

    def _end_command(self, words: list[str | None]) -> None:
        if words:
            self.found.append(words)

    def _redirect(self, words: list[str | None]) -> None:
        start = self._at
        if self._text.startswith(("<(", ">("), self._at):
            self._at += 2
            self.read_commands(")")
            words.append(None)
            return
        if self._text.endswith(_CONTINUATION, 0, start):
            raise UnclearCommandError("a redirection that goes on in the next line")
        # The number of the file that is redirected is no argument.
        if words and (words[-1] or "").isdigit() and self._text[start - 1 : start].isdigit():
            words.pop()
        operator = self._take(self._REDIRECTION, "a redirection")[0]
        if operator in ("<<", "<<-"):
            single, double, escaped, bare = self._take(self._DELIMITER, "a here-document").groups()
            name = next(each for each in (single, double, bare) if each is not None)
            self._heredocs.append((name, bare is None or bool(escaped), operator == "<<-"))
            return
        while self._next and self._next in " \t":
            self._at += 1
        if self._text.startswith(_CONTINUATION, self._at):
            raise UnclearCommandError("a redirection that goes on in the next line")
        start = self._at
        self._word()
        if self._at == start:
            raise UnclearCommandError("a redirection without a file")

    def _skip_heredocs(self) -> None:
        for name, quoted, strips in self._heredocs:
            body: list[str] = []
            while True:
                if self._at >= len(self._text):
                    raise UnclearCommandError("a here-document without an end")
                end = self._text.find("\n", self._at)
                end = end if end >= 0 else len(self._text)
                line = self._text[self._at : end]
                self._at = end + 1
                line = line.lstrip("\t") if strips else line
                if line == name:
                    break
                body.append(line)
            if not quoted and any(line.endswith("\\") for line in body):
                raise UnclearCommandError("a here-document with a line that goes on in the next one")
            if not quoted and self._RUNS_IN_TEXT.search("\n".join(body)):
                raise UnclearCommandError("a here-document with a substitution")
        self._heredocs = []

    def _word(self) -> str | None:
        """Read one word as bash does; return None if its text is known only when bash runs."""
        known, text = True, list[str]()
        while (character := self._next) and character not in " \t\n;&|<>()":
            if character == "\\":
                following = self._text[self._at + 1 : self._at + 2]
                text.append("" if following == "\n" else following or "\\")
                self._at += 2
            elif character == "'":
                close = self._text.find("'", self._at + 1)
                if close < 0:
                    raise UnclearCommandError("a quote without an end")
                text.append(self._text[self._at + 1 : close])
                self._at = close + 1
            elif character == '"':
                known &= self._double_quoted(text)
            elif character in "$`":
                known &= self._expansion(text, quoted=False)
            elif (plain := self._PLAIN.match(self._text, self._at)) is not None:
                text.append(plain[0])
                self._at = plain.end()
            else:
                # Bash makes other words of it: names of files, a home, or what stands in braces.
                known = False
                text.append(character)
                self._at += 1
        return "".join(text) if known else None

    def _double_quoted(self, text: list[str]) -> bool:
        self._at += 1
        known = True
        while (character := self._next) != '"':
            if not character:
                raise UnclearCommandError("a quote without an end")
            if character == "\\":
                following = self._text[self._at + 1 : self._at + 2]
                text.append("" if following == "\n" else following if following in tuple('$`"\\') else "\\" + following)
                self._at += 2
            elif character in "$`":
                known &= self._expansion(text, quoted=True)
            else:
                text.append(character)
                self._at += 1
        self._at += 1
        return known

    def _expansion(self, text: list[str], *, quoted: bool) -> bool:
        """Read what begins with `$` or a backtick; return True if it stands for itself."""
        following = self._text[self._at + 1 : self._at + 2]
        if self._next == "`":
            close = self._text.find("`", self._at + 1)
            inner = self._text[self._at + 1 : close]
            if close < 0 or "\\" in inner:
                raise UnclearCommandError("a substitution that is hard to read")
            reader = _CommandReader(inner, self._depth)
            reader.read_commands("")
            self.found += reader.found
            self._at = close + 1
        elif following == "(":
            if self._text.startswith("$((", self._at):
                raise UnclearCommandError("arithmetic")
            self._at += 2
            self.read_commands(")")
        elif following == "'" and not quoted:
            self._take(self._QUOTED_C, "a quoted text")
        elif following == '"' and not quoted:
            self._at += 1
            return True
        elif following and (following.isalnum() or following in "_?#$!@*-{["):
            self._take(self._VARIABLE, "an expansion")
        else:
            text.append("$")
            self._at += 1
            return True
        return False


class Permit(NamedTuple):
    """The permission for a call.

    `consumed` is the mail that the call's result shows, `rule` the rule that allowed it or had it asked for. `deviates`
    is True if the approved plan does not name the call.
    """

    consumed: tuple[str, ...] = ()
    rule: Rule | None = None
    deviates: bool = False


async def seek_permit(context: Context, tool: str, arguments: dict[str, Any]) -> Permit | Outcome:
    """Return the permission for a call, asking the operator if that is wanted, or why the call is refused.

    Raises:
        Interrupted: The agent must read its mail.
        WorkerExit: The run ends.
    """
    beyond_plan = deviates(context.run_state, tool, arguments)
    verdict = judge(context, tool, arguments) if is_gated(tool) else None
    objection = _objection(context, tool, arguments)
    refused = (
        _refused_by_type(context.run_state, tool, arguments)
        or _refused_by_plan(context.run_state, tool, beyond_plan=beyond_plan)
        or _refused(tool, verdict, objection)
    )
    if refused is not None:
        return refused
    rule = verdict.rule if verdict is not None else None
    must_ask = verdict is not None and verdict.effect == "ask"
    asks = is_gated(tool) and asks_first(context.run_state, tool)
    if objection is None and not must_ask and not (asks and verdict is None):
        # An agent that need not ask gains nothing by a rule that allows.
        return Permit(rule=rule if asks else None, deviates=beyond_plan)
    why = verdict.asks if verdict is not None else ""
    by_terms = asks and (terms := context.run_state.conversation.terms) is not None and terms.ask
    collision = objection.text if objection is not None else ""
    decided = await ask_permission(context, tool, arguments, why, collision, by_terms=by_terms)
    if decided.status != "approved":
        return permission_refusal(tool, decided, rule)
    # What was decided while the agent waited counts, too: a new rule, a plan of another agent.
    verdict, objection = judge(context, tool, arguments), _objection(context, tool, arguments)
    return _refused(tool, verdict, objection, decided) or Permit(_consumed(decided), rule, beyond_plan)


def _refused_by_type(run_state: RunState, tool: str, arguments: dict[str, Any]) -> Outcome | None:
    """Return what the model is told about a call that its type does not have: of a tool with patterns, another one."""
    definition = run_state.spec.definition
    only = [each.pattern for each in definition.only if each.tool == tool] if definition is not None else []
    rules = [Rule(id="", tool=tool, pattern=pattern) for pattern in only]
    if not only or any(_allows(rule, tool, arguments, str(run_state.workspace)) for rule in rules):
        return None
    how = "one plain command that begins so" if tool == "bash" else "these files"
    text = f"{tool} was not run: an agent of type {run_state.spec.type} has it only for {', '.join(only)}"
    return Outcome(f"{text} ({how}).", is_error=True)


def _consumed(decided: Request | None) -> tuple[str, ...]:
    return (approvals.response_id(decided),) if decided is not None else ()


def _refused(
    tool: str, verdict: Verdict | None, objection: collisions.Objection | None, decided: Request | None = None
) -> Outcome | None:
    """Return what the model is told about a call that a rule or a claim refuses, also if it was allowed (`decided`)."""
    if verdict is not None and verdict.effect == "deny":
        return rule_refusal(tool, verdict.rule, decided)
    if objection is not None and not objection.asks:
        return Outcome(f"{tool} was not run: {objection.text}", is_error=True, consumed=_consumed(decided))
    return None


def _objection(context: Context, tool: str, arguments: dict[str, Any]) -> collisions.Objection | None:
    """Return what the team's policy about collisions has against a call."""
    run_state = context.run_state
    file = file_changed_by(tool, arguments, str(run_state.workspace))
    if file is None:
        return None
    conversation = run_state.conversation
    last_change = conversation.last_changes.get(file)
    return collisions.find_objection(context.team, context.name, file, conversation.work, last_change)


def _refused_by_plan(run_state: RunState, tool: str, *, beyond_plan: bool) -> Outcome | None:
    """Return what the model is told about a call that its approved plan no longer covers, or does not name."""
    if is_gated(tool) and (expired := expire_approval(run_state)) is not None:
        return expired
    return deviation_refusal(tool) if beyond_plan and run_state.spec.flags.strict_plan else None


async def ask_permission(
    context: Context,
    tool: str,
    arguments: dict[str, Any],
    why: str = "",
    collision: str = "",
    *,
    by_terms: bool = False,
) -> Request:
    """Ask the operator to allow one call, and return the decided request.

    `why` says which rule has it asked for, `collision` with which work of other agents it collides. `by_terms` is True
    if the terms of the approved plan have each call asked for.

    Raises:
        Interrupted: The agent must read its mail.
        WorkerExit: The run ends.
    """
    payload: dict[str, JsonValue] = {
        "tool": tool,
        "input": arguments,
        "summary": _summary(tool, arguments),
        "diff": await _diff(context, tool, arguments),
        # A rule that allows would change nothing where another one has the call asked for, or where none allows it.
        "scope": None if why or collision or _is_executed(tool, arguments) else scope_of(tool, arguments),
        **({"rule": why} if why else {}),
        **({"collision": collision} if collision else {}),
        **({"why": "the terms of its approved plan ask before each call"} if by_terms else {}),
    }
    request = approvals.ask(
        context.team,
        f"permission-{mailbox.derived_id(context.name, context.tool_use_id)[:12]}",
        "permission",
        context.name,
        OPERATOR,
        payload,
        context.now(),
    )
    return await context.wait_for_decision(request, f"asks to use {tool}")


def rule_refusal(tool: str, rule: Rule, decided: Request | None = None) -> Outcome:
    """Return what the model is told about a call that a rule denies, also if it was approved meanwhile."""
    whose = f"your {rule.id}" if rule.id.startswith(_TYPE_RULE) else f"the operator's rule {rule.id}"
    text = f"{tool} was not run: {whose} denies {_describe_rule(rule)}. Do not try to do it in another way"
    return Outcome(
        f"{text}; ask the operator if you need it.", is_error=True, consumed=_consumed(decided), rule=rule.id
    )


def permission_refusal(tool: str, decided: Request, rule: Rule | None = None) -> Outcome:
    """Return what the model is told about a call that was not allowed; `rule` had it asked for."""
    reason = f": {decided.feedback}" if decided.feedback else ""
    text = f"{tool} was not run: permission {decided.status} by {decided.decided_by}{reason}"
    consumed = (approvals.response_id(decided),)
    return Outcome(text, is_error=True, consumed=consumed, rule=rule.id if rule is not None else None)


def _summary(tool: str, arguments: dict[str, Any]) -> str:
    if tool.startswith(MCP_PREFIX):
        return first_line(json.dumps(arguments, ensure_ascii=False))
    return first_line(str(arguments.get("command") or arguments.get("path") or ""))


async def _diff(context: Context, tool: str, arguments: dict[str, Any]) -> str | None:
    """Return what a write or an edit would change, as a unified diff."""
    if tool not in ("edit_file", "write_file"):
        return None
    path = str(arguments.get("path", ""))
    old = await context.file_tools.ask("read_text", {"path": path})
    if tool == "edit_file":
        return edits.shown(path, arguments, None if old.is_error else old.content)
    lines = edits.diff_lines("" if old.is_error else old.content, str(arguments.get("content", "")))
    return "\n".join([f"--- a/{path}", f"+++ b/{path}", *lines]) if lines else ""
