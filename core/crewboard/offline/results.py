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
_TALLY = re.compile(r"^(?:Ran \d+ tests?|=* ?\d+ (?:passed|failed|error)|OK\b|FAILED \()")
_REMARK = re.compile(r"[(\[]|no \w+ ", re.IGNORECASE)
_DEFINED = re.compile(r"^(?:async\s+)?(?:class|def)\s+(\w+)|^#+ (.+)")
_FEEDBACK = re.compile(r"feedback:?\s*(.+?)\s*(?:\nRevise [^\n]*)?\Z", re.IGNORECASE | re.DOTALL)
_QUOTE = re.compile(r"\{(?:(?P<tool>[a-z_]+)(?: (?P<about>[^{}:]+))?:(?P<view>[a-z]+)|(?P<word>\w+))\}")


def entries(done: Done) -> list[str]:
    """Return one path, match or entry a line, without remarks such as "no file matches" or "[cut]"."""
    return [line for line in map(str.strip, done.text.splitlines()) if line and not _REMARK.match(line)]


def exit_code(done: Done) -> int | None:
    """Return the exit code that a command's output ends with, if it has one."""
    found = _EXIT.search(done.text.rstrip())
    return int(found[1]) if found else None


def is_rejected(done: Done) -> bool:
    """Return True if a plan was rejected, and not just cancelled or expired."""
    return done.tool == "submit_plan" and done.is_error and "reject" in done.text.partition("\n")[0].lower()


def first_line(text: str, limit: int = 160) -> str:
    """Return the first line that is not blank, cut where it gets too long."""
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return first if len(first) <= limit else first[: limit - 1] + "…"


def bullets(items: Sequence[str], limit: int = 200) -> str:
    """Return a list, cut where it gets too long to read."""
    rest = [f"- … and {len(items) - limit} more"] if len(items) > limit else []
    return "\n".join([*(f"- {item}" for item in items[:limit]), *rest])


def _body(done: Done) -> list[str]:
    kept = [line for line in done.text.splitlines() if line.strip()]
    return kept[:-1] if exit_code(done) is not None else kept


def _line_count(done: Done) -> str:
    return ["0", *(found[1] for found in _NUMBERED.finditer(done.text))][-1] if done.ok else "unknown"


def _about(done: Done) -> str:
    """Say what can be said of a file without understanding it."""
    path, code = done.input.get("path"), [found[2] for found in _NUMBERED.finditer(done.text)]
    if not done.ok:
        return f"{path} could not be read: {done.text.strip()}"
    names = [found[1] or found[2] for line in code if (found := _DEFINED.match(line))]
    first = next((line.strip(' "#') for line in code if line.strip(' "#')), "")
    holds = f" It holds {', '.join(names[:20])}." if names else ""
    return f"{path} has {_line_count(done)} lines, and begins: “{first}”.{holds}"


VIEWS: dict[str, Callable[[Done], str]] = {
    "text": lambda done: done.text.strip(),
    "line": lambda done: " ".join(first_line(done.text, len(done.text)).split()),
    "tail": lambda done: "\n".join(_body(done)[-8:]),
    "exit": lambda done: str(exit_code(done)) if done.ok else "unknown",
    "tally": lambda done: ", ".join(line.strip(" =") for line in _body(done) if _TALLY.match(line)),
    "lines": _line_count,
    "count": lambda done: str(len(entries(done))) if done.ok else "unknown",
    "list": lambda done: bullets(entries(done)),
    "feedback": lambda done: (_FEEDBACK.findall(done.text) or [done.text])[0].strip(),
    "answer": lambda done: done.text.partition(": ")[2].strip() or done.text.strip(),
    "about": _about,
}
"""What a template can quote of a tool's result."""


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
