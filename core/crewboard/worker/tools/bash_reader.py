"""Read a command as bash does: as one program with its arguments, or as all the commands that it may run.

A rule that allows uses `simple_command`, which is as strict as possible. A rule that denies or asks uses `commands_in`,
which looks into compound commands, too, and raises an error where it is not certain how bash reads one.
"""

import posixpath
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

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
"""Reserved words and builtins of bash that are no simple command: several run what their arguments say."""

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
    *RUNNERS, "builtin", "command", "entr", "eval", "exec", "find", "hatch", "npx", "pdm", "poetry", "time", "trap",
    "uv", "uvx",
})  # fmt: skip
"""Programs and builtins that may run a command in their arguments, so that their arguments are searched for one."""

_RUNS_FILES = frozenset({*_SHELLS, ".", "source"})

_IS_TEXT = re.compile(r"[\s;&|<>()$`'\"\\]")
"""A character that shows that an argument is the text of a command, and not one word of it."""

_MOST_WORDS = 500

_FIND_RUNS = frozenset({"-exec", "-execdir", "-ok", "-okdir"})

_REDEFINES = frozenset({
    "alias", "bind", "case", "compgen", "complete", "coproc", "enable", "fc", "function", "hash", "let", "mapfile",
    "readarray",
})  # fmt: skip
"""Words of bash that may change what later words mean or run."""

_DECLARES = frozenset({"declare", "export", "local", "readonly", "typeset"})

_NAMES_VARIABLES = frozenset({"getopts", "read", "unset"})

_COMPARES = frozenset({"-eq", "-ne", "-lt", "-le", "-gt", "-ge"})
"""Operators of `[[` whose operands bash evaluates: `a[$(ls)]` runs a command."""

_NAMED = frozenset({"-v", "-R"})
"""Operators whose operand is the name of a variable; bash evaluates a subscript in it."""

_SUBSCRIPT = re.compile(r"\[[^\]]*(?:\$\(|`)")
"""A subscript with a command in it, which bash runs only if it evaluates the text later."""

_GLUED_COMMAND = frozenset({"flock", "runuser", "script", "sg", "su"})
"""Programs that take the text of a command after `-c`, also without a blank between."""

_BEFORE_COMMAND = frozenset({
    "!", "do", "done", "elif", "else", "esac", "fi", "if", "then", "until", "while", "{", "}",
})  # fmt: skip
"""Words after which bash reads another command."""

_DEEPEST = 20
"""The most levels of nested substitutions and subshells that are read."""


def simple_command(command: str) -> list[str] | None:
    """Return the words of a command that bash runs as one program with arguments; None if it may be anything else."""
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


class UnclearCommandError(ValueError):
    """It is not certain how bash reads a command."""


def commands_in(text: str, depth: int = 0) -> Iterator[list[str | None]]:
    """Yield the words of each command that bash may run for `text`: in compound commands, substitutions and arguments.

    A word whose text is known only when bash runs is None. `depth` is how deep `text` is nested in another command.

    Raises:
        UnclearCommandError: It is not certain what bash runs.
    """
    reader = _CommandReader(text, depth)
    reader.read_commands("")
    for words in reader.found:
        yield words
        _require_clear(words)
        name, given = posixpath.basename(words[0] or ""), words[1:]
        if name not in _WRAPPERS:
            continue
        # A program that may run commands because they are among its arguments.
        if len(words) > _MOST_WORDS:
            raise UnclearCommandError(f"{name} has too many arguments")
        _require_plain_options(name, given)
        # These read more arguments from another process, and put them in other places, too.
        more = [None] if name in ("parallel", "xargs") else []
        replaced = ("{",) if name == "parallel" else ("{}",) if name == "find" else ()
        filled = [None if word and any(each in word for each in replaced) else word for word in words]
        for index, word in enumerate(given, start=1):
            if name != "find" or words[index - 1] in _FIND_RUNS or word is None:
                _require_clear(filled[index:])
                yield [*filled[index:], *more]
        texts = [word for word in given if word is not None and _IS_TEXT.search(word)]
        if name == "eval":
            texts.append(" ".join(word or "" for word in given))
        for each in texts:
            yield from commands_in(each, depth + 1)


def _require_clear(words: list[str | None]) -> None:
    """Refuse a command that may change what other words mean, or run something that is not among its arguments.

    Raises:
        UnclearCommandError: The command may do so.
    """
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
    """Return True if bash may evaluate an argument of a builtin as arithmetic, in which a subscript can run commands.

    `&&` and `||` also divide the text between `[[` and `]]`, so a part of it may come here like a command of its own.
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
    """Refuse options by which a program takes the text of a command, or makes a command line itself.

    Raises:
        UnclearCommandError: There may be such an option.
    """
    options = [word for word in given if word is not None and word.startswith("-")]
    if name == "xargs":
        # It may put arguments in other places of the command line, or run a program that runs another one.
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
    """A reader of bash's grammar, as far as it is needed to find the commands in a text.

    Its methods raise `UnclearCommandError` for anything that they cannot read for certain.
    """

    _BLANK = re.compile(r"[ \t]|\\\n|&(?=>)")
    _ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=", re.ASCII)
    _REDIRECTION = re.compile(r"<<<|<<-?|<>|<&|>&|>>|>\||<|>")
    _DELIMITER = re.compile(r"""[ \t]*(?:'([^'\n]*)'|"([^"\n\\$`]*)"|(\\?)([\w.-]+))(?=[\s;&|<>]|$)""", re.ASCII)
    _VARIABLE = re.compile(
        r"\$(?:\w+|[?#$!@*-]|\{[#]?\w+(?:(?::?[-+=?]|[#%/^,])[^{}$`'\"\\@!\[]*|:[ \d-]+(?::[ \d-]+)?)?\})", re.ASCII
    )
    """An expansion in which bash evaluates nothing. Offset and length of a substring must be numbers."""
    _EVALUATED = re.compile(
        r"""["'\\]*(?:PS[0-4]|PROMPT_COMMAND|BASH_ENV|ENV|RANDOM|SRANDOM|SECONDS|OPTIND|HISTCMD)\+?="""
    )
    """An assignment to a variable whose value bash evaluates or runs."""
    _QUOTED_C = re.compile(r"\$'(?:[^'\\]|\\.)*'", re.DOTALL)
    _PLAIN = re.compile(
        r"""[^\s;&|<>()\\'"$`*?\[{~]+|[^\S \t\n]+|(?<![^\s;&|()])(?:\{|\[\[?)(?=\s)|\{\}|(?<=[^\s;&|<>()=:])~"""
    )
    """Characters that stand for themselves, as does a brace or bracket alone, or a tilde within a word."""
    _RUNS_IN_TEXT = re.compile(r"`|\$[(\[]|\$\{[^}]*[^\w}]")

    def __init__(self, text: str, depth: int = 0) -> None:
        self.found: list[list[str | None]] = []
        self._text = text
        self._at = 0
        self._depth = depth
        self._heredocs: list[tuple[str, bool, bool]] = []
        """Delimiter, True if it is quoted, and True if tabs are removed, of each here-document that has not begun."""

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
        """Read commands up to the character `end`, or to the end of the text if empty, and add them to `found`."""
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
        """Read one word, operator or comment; return the words so far of the command that is then being read."""
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
            is_evaluated = self._EVALUATED.match(self._text, start) or self._EVALUATED.match(word or "")
            if is_evaluated or (word is not None and _SUBSCRIPT.search(word)):
                raise UnclearCommandError("a text that may be evaluated")
            is_prefix = word in _BEFORE_COMMAND or self._ASSIGNMENT.match(self._text, start)
            if words or not is_prefix:
                words.append(word)
        return words

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
        """Read an expansion or substitution from its `$` or backtick on; return True if it is only a plain `$`.

        Then it is added to `text`. Commands in a substitution are added to `found`.
        """
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
