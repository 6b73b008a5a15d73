"""Rules that change or run something: write a file, edit one, run a command, run the tests."""

import re

from crewboard.offline import outputs
from crewboard.offline.ask import Ask, Steps, count, paths, quoted, refused, unquoted
from crewboard.offline.conversation import Call, Done
from crewboard.offline.rules.plan import act

DEFAULT_TESTS = "python -m pytest -q"

_PROGRAMS = (
    "python3?|pytest|make|ls|echo|sleep|git|cat|npm|node|cargo|go|bash|sh|true|false|pwd|env|grep|find|touch|rm|mkdir|"
    "head|tail|wc|seq|date|uname|whoami|id|ruff|mypy|tox|nox|uv|pip|curl|ping|yes|kill|ps|exit|cd|test|printf|sed|awk"
)


_CREATES = r"(?<![/.\w-])(?:create|make|add|generate)\b(?![./])"
_WRITES = r"(?<![/.\w-])(?:create|write|make|save|put|add|generate)\b(?![./])"
_ANSWER = r"\b(?:the|their|his|her|my)\s+(?:operator's\s+)?(?:answer|reply|choice)"
_NEW_FILE = rf"{_WRITES}\s+(?:(?:me|a|an|the|new|empty|small|text|[a-z]+)\s+){{0,4}}(?:file|script)\b"


def write(ask: Ask) -> Steps | None:
    """Create a file notes.txt containing hello."""
    path = _target(ask)
    if path is None or not ask.has(_WRITES):
        return None
    named = ask.has(_NEW_FILE) or ask.has(_CREATES + r"\s+[`'\"]?" + re.escape(path))
    answer = ask.has(_ANSWER + r"\s+(?:to|in|into)\b")
    return _write(ask, path) if named or answer or _given(ask, path) is not None else None


def _target(ask: Ask) -> str | None:
    bare = paths(unquoted(ask.text))
    marked = [text for text in quoted(ask.text) if paths(text) == [text]]
    named = [*bare, *marked]
    return named[0] if named and not named[0].endswith("/") else None


def _given(ask: Ask, path: str) -> str | None:
    """The content that was asked for, if any was: in quotes, or behind a word that can only mean content.

    Bare words behind "with" are content only where a file is made: "write a.py with care" must not harm a.py.
    """
    pieces = [text for text in quoted(ask.text) if text != path]
    if pieces:
        return pieces[0]
    told = ask.match(
        r"\b(?:containing|contains?|contents?|saying|that says|"
        r"with(?:\s+the)?\s+(?:content|contents|text|words?|line))\s*:?\s+(.+)$"
    ) or (ask.match(r"\bwith\s*:?\s+(.+)$") if ask.has(_CREATES) or ask.has(_NEW_FILE) else None)
    if told:
        return re.sub(r"(?<!\.)\.$", "", told[1].strip())
    before = ask.match(
        rf"{_WRITES}\s+(?:the\s+)?(?:text|line|words?|content)\s+(.+?)\s+(?:to|in|into)\s+(?:\w+\s+){{0,3}}"
        + re.escape(path)
    )
    return before[1] if before else None


def _content(ask: Ask, path: str) -> str:
    printed = ask.match(r"\bprints?\s+(.+?)\.?$")
    if path.endswith(".py") and printed:
        said = quoted(printed[1])
        return f"print({(said[0] if said else printed[1])!r})\n"
    given = _given(ask, path)
    answers = [done.text for done in ask.walk.made if done.tool == "ask_operator" and done.ok]
    if answers and (given is None or re.fullmatch(_ANSWER, given)) and ask.has(_ANSWER):
        return outputs.answer(answers[-1])
    return given if given is not None else f"{ask.talk.name} was asked: {ask.text}\n"


def _write(ask: Ask, path: str) -> Steps:
    content = _content(ask, path)
    done = yield from act(ask, Call("write_file", {"path": path, "content": content}, say=f"Writing {path}."))
    if not done.ok:
        return refused("write_file", done)
    return f"I wrote {path} ({count(len(content.encode()), 'byte')})."


def edit(ask: Ask) -> Steps | None:
    """Replace `a` with `b` in notes.txt."""
    if not ask.has(r"\b(replace|change|rename|substitute)\b"):
        return None
    pieces = quoted(ask.text)
    named = paths(unquoted(ask.text)) or [text for text in pieces[2:] if paths(text)]
    if len(pieces) < 2 or not named:  # noqa: PLR2004  an old and a new text
        return None
    return _edit(ask, named[0], pieces[0], pieces[1])


def _edit(ask: Ask, path: str, old: str, new: str) -> Steps:
    change = {"path": path, "old_text": old, "new_text": new}
    done = yield from act(ask, Call("edit_file", {**change}, say=f"Editing {path}."))
    return f"I replaced that in {path}." if done.ok else refused("edit_file", done)


def run_command(ask: Ask) -> Steps | None:
    """Run: ls -l. Run `make check`. Sleep 5."""
    command = _command(ask)
    return _run(ask, command) if command else None


def _command(ask: Ask) -> str | None:
    verbatim = ask.match(r"\b(?:run|execute|bash)\s*:\s*([^\n]+)$")
    if verbatim:
        marked = quoted(verbatim[1])
        return marked[0] if marked and verbatim[1].strip() == f"`{marked[0]}`" else verbatim[1].strip()
    if ask.has(r"\b(?:re-?run|run|execute|call)\b.*(?:`|```)") and quoted(ask.text):
        return quoted(ask.text)[0]
    bare = ask.match(
        rf"\b(?:run|execute|bash to|bash tool to)\s+(?:the\s+)?(?:command\s+)?((?:\./\S+|(?:{_PROGRAMS})\b).*?)\.?$"
    )
    if bare and not re.match(r"tests?\b(?!\s+-)", bare[1]):
        return bare[1]
    nap = ask.match(r"^\W*(?:please\s+)?(?:sleep|wait)\s+(?:for\s+)?(\d+(?:\.\d+)?)\s*(?:s|sec|seconds?)?\b")
    return f"sleep {nap[1]}" if nap else None


def run_tests(ask: Ask) -> Steps | None:
    """Run the tests."""
    if not ask.has(
        r"\b(?:re-?run|run|execute|start|try|repeat)\b.*\b(?:tests?|test suite|suite|checks)\b|^\W*tests?\W*$"
    ):
        return None
    return _run(ask, _test_command(ask))


def _test_command(ask: Ask) -> str:
    """The command that was named, else the one that was run before, else the project's own, else the usual one."""
    told = [text for text in quoted(ask.text) if re.search(r"test|check", text)]
    before = [str(done.input.get("command", "")) for done in ask.talk.done if done.tool == "bash"]
    earlier = [command for command in reversed(before) if re.search(r"\b(?:py|unit)?test", command)]
    project = [
        text
        for text in re.findall(r"`([^`\n]+)`", ask.talk.system)
        if re.search(r"\w\s.*test|^(?:py)?test|^make \w+", text)
    ]
    return next(iter([*told, *earlier, *project]), DEFAULT_TESTS)


def _run(ask: Ask, command: str) -> Steps:
    done = yield from act(ask, Call("bash", {"command": command}, say=f"Running `{command}`."))
    return report(done)


def report(done: Done) -> str:
    """How a command ended, and its last lines."""
    command = done.input.get("command")
    code = outputs.exit_code(done.text)
    if done.unavailable or (not done.ok and code is None):
        return refused("bash", done)
    ended = "succeeded" if code == 0 else "ended" if code is None else f"failed with exit code {code}"
    told = [f"`{command}` {ended}."]
    if tally := outputs.tally(done.text):
        told.append(f"The runner says: {tally}.")
    if broken := outputs.failed_tests(done.text):
        told.append(f"What fails: {', '.join(broken)}.")
    last = outputs.tail(done.text)
    return " ".join(told) + (f"\n\n```\n{last}\n```" if last else " It printed nothing.")
