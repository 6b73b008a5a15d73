"""Facts out of tool results, and the templates that quote them, so that no answer says what is not so.

A template quotes with `{bash:tail}` a view of what the tool returned last, with `{read_file notes.py:lines}` of the
last call with that argument, with `{read_file *:about}` of every call; `{name}` is a word of the prompt.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from crewboard.offline.conversation import Done

_EXIT = re.compile(r"\[exit code (-?\d+)\]$")
_NUMBERED = re.compile(r"^\s*(\d+)\t(.*)$", re.MULTILINE)
_FAILED_TEST = re.compile(r"^(?:FAIL|ERROR|FAILED)[:\s]\s*([^\s(]\S*)", re.MULTILINE)
_TALLY = re.compile(r"^(?:Ran \d+ tests?|=* ?\d+ (?:passed|failed|error)|OK\b|FAILED \()")
_REMARK = re.compile(r"[(\[]|no \w+ ", re.IGNORECASE)
_DEFINED = re.compile(r"^(?:async\s+)?(?:class|def)\s+(\w+)")
_FEEDBACK = re.compile(r"feedback:?\s*(.+?)\s*(?:\nRevise [^\n]*)?\Z", re.IGNORECASE | re.DOTALL)
_QUOTE = re.compile(r"\{(?:(?P<tool>[a-z_]+)(?: (?P<about>[^{}:]+))?:(?P<view>[a-z]+)|(?P<word>\w+))\}")

_MOST_LISTED = 200


def lines(text: str) -> list[str]:
    """Return the lines that are not blank."""
    return [line for line in text.splitlines() if line.strip()]


def entries(done: Done) -> list[str]:
    """Return one path, match or entry a line, without remarks such as "no file matches" or "[cut]"."""
    return [line.strip() for line in lines(done.text) if not _REMARK.match(line.strip())]


def exit_code(done: Done) -> int | None:
    """Return the exit code that a command's output ends with, if it has one."""
    found = _EXIT.search(done.text.rstrip())
    return int(found[1]) if found else None


def is_rejected(done: Done) -> bool:
    """Return True if a plan was rejected, and not just cancelled or expired."""
    return done.tool == "submit_plan" and done.is_error and "reject" in done.text.partition("\n")[0].lower()


def _body(done: Done) -> list[str]:
    kept = lines(done.text)
    return kept[:-1] if exit_code(done) is not None else kept


def _line_count(done: Done) -> str:
    numbers = [found[1] for found in _NUMBERED.finditer(done.text)]
    return (numbers[-1] if numbers else "0") if done.ok else "unknown"


def _tail(done: Done) -> str:
    return "\n".join(_body(done)[-8:])


def _tally(done: Done) -> str:
    return ", ".join(line.strip(" =") for line in _body(done) if _TALLY.match(line))


def _feedback(done: Done) -> str:
    found = _FEEDBACK.search(done.text)
    return (found[1] if found else done.text).strip()


def _bullets(done: Done) -> str:
    return bullets(entries(done))


def _report(done: Done) -> str:
    """Say how a command ended, and quote its last lines."""
    code = exit_code(done)
    ended = "succeeded" if code == 0 else "ended" if code is None else f"failed with exit code {code}"
    told = [f"`{done.input.get('command')}` {ended}."]
    told += [f"The runner says: {_tally(done)}."] if _tally(done) else []
    failed = ", ".join(dict.fromkeys(_FAILED_TEST.findall("\n".join(_body(done)))))
    told += [f"What fails: {failed}."] if failed else []
    return " ".join(told) + (f"\n\n```\n{_tail(done)}\n```" if _body(done) else " It printed nothing.")


def _about(done: Done) -> str:
    """Say what can be said of a file without understanding it."""
    path = str(done.input.get("path"))
    if not done.ok:
        return f"{path} could not be read: {done.text.strip()}"
    code = [found[2] for found in _NUMBERED.finditer(done.text)]
    names = [found[1] for line in code if (found := _DEFINED.match(line))]
    heads = [line.lstrip("#").strip() for line in code if line.startswith("#")] if path.endswith(".md") else []
    first = next((line.strip(' "#') for line in code if line.strip(' "#')), "")
    told = [f"{path} has {_line_count(done)} lines."]
    told += [f"It begins: “{first}”"] if first else []
    told += [f"Its headings: {', '.join(heads[:12])}."] if heads else []
    told += [f"It defines {', '.join(names)}."] if names else []
    return " ".join(told)


VIEWS: dict[str, Callable[[Done], str]] = {
    "text": lambda done: done.text.strip(),
    "line": lambda done: " ".join(next(iter(lines(done.text)), "").split()),
    "tail": _tail,
    "exit": lambda done: str(exit_code(done)) if done.ok else "unknown",
    "tally": _tally,
    "lines": _line_count,
    "count": lambda done: str(len(entries(done))) if done.ok else "unknown",
    "list": _bullets,
    "feedback": _feedback,
    "answer": lambda done: done.text.partition(": ")[2].strip() or done.text.strip(),
    "report": _report,
    "about": _about,
}
"""What a template can quote of a tool's result."""


def bullets(items: Sequence[str], limit: int = _MOST_LISTED) -> str:
    """Return a list, cut where it gets too long to read."""
    shown = [f"- {item}" for item in items[:limit]]
    rest = len(items) - len(shown)
    return "\n".join([*shown, f"- … and {rest} more"] if rest else shown)


def first_line(text: str, limit: int = 160) -> str:
    """Return the first line that is not blank, cut where it gets too long."""
    first = next(iter(lines(text)), "").strip()
    return first if len(first) <= limit else first[: limit - 1] + "…"


def fill(value: Any, done: Sequence[Done], words: Mapping[str, str] | None = None) -> Any:  # noqa: ANN401  any JSON
    """Put what the tools returned, and `words`, into the places of `value` that quote it."""
    if isinstance(value, str):
        return _QUOTE.sub(lambda found: _quote(found, done, words or {}), value)
    if isinstance(value, dict):
        return {key: fill(item, done, words) for key, item in value.items()}
    return [fill(item, done, words) for item in value] if isinstance(value, list) else value


def _quote(found: re.Match[str], done: Sequence[Done], words: Mapping[str, str]) -> str:
    if found["word"]:
        return words.get(found["word"], found[0])
    view, about = VIEWS[found["view"]], found["about"]
    calls = [call for call in done if call.tool == found["tool"]]
    if about == "*":
        return "\n\n".join(map(view, calls))
    fitting = [call for call in calls if about is None or about in map(str, call.input.values())]
    return view(fitting[-1]) if fitting else f"(no {found['tool']})"
