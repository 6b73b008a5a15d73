"""Parse a request into a flat list of entries, so that scenarios and the phrasebook need not know the Messages API.

Templates quote facts from tool results, so that answers are true: `{bash:tail}` is a view (`VIEWS`) of what the tool
returned last, `{read_file notes.py:lines}` of the last call with that argument, `{read_file *:about}` of every call;
`{name}` is a word of the prompt.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from crewboard.names import LEAD, OPERATOR, SYSTEM
from crewboard.records.requests import step_lines
from crewboard.untrusted import undelimit, undelimit_data

_WHO = re.compile(r'^You are (\S+), an? (\S+) agent\b(?:.*?\bteam "([^"\n]*)")?', re.MULTILINE)
_REMINDER = re.compile(r"<system-reminder>.*?</system-reminder>", re.DOTALL)
"""Text that Claude Code adds to the words of its user, for its model alone."""

# Kinds of mail: what an agent was hired for; the system's own words, and text between mail; what asks for a summary.
HIRE_PROMPT = "prompt"
NOTICE = "notice"
SUMMARY = "summary"
_UNTOLD = (HIRE_PROMPT, "idle_notification")

Block = dict[str, Any]
Content = str | list[Block]
"""A text, or blocks in the API's form."""


class Message(Struct):
    """One message of a request."""

    role: Literal["user", "assistant", "system"]
    content: Content


class Request(Struct):
    """The parts of a request to the Messages API that the offline model uses; it ignores all others."""

    model: str
    messages: Annotated[list[Message], Meta(min_length=1)]
    max_tokens: int
    system: Content = []
    tools: list[Block] = []
    stream: bool = False


def blocks_of(content: Content) -> list[Block]:
    """Return content as blocks: a string becomes one block of text."""
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def text_of(content: Content) -> str:
    """Return the texts of all text blocks, joined by newlines."""
    return "\n".join(block["text"] for block in blocks_of(content) if block["type"] == "text")


class Call(Struct, frozen=True, forbid_unknown_fields=True):
    """A tool call to make. `say` is text of the reply before it."""

    tool: str
    input: dict[str, Any] = {}
    say: str = ""


@dataclass(frozen=True)
class Done:
    """A tool call with its result, `text`. `turn` is the number of the assistant message that made it, from 0.

    `unavailable` is True if the agent has no such tool, so that nothing was called.
    """

    tool: str
    input: dict[str, object]
    text: str
    is_error: bool = False
    turn: int = 0
    unavailable: bool = False

    @property
    def ok(self) -> bool:
        """Return True if the tool did what it was asked."""
        return not (self.is_error or self.unavailable)


@dataclass(frozen=True)
class Mail:
    """Mail, or a notice, that came into the conversation after the assistant message number `turn`, -1 for the start.

    `kind` is `HIRE_PROMPT`, `NOTICE` or the type of a message.
    """

    author: str
    kind: str
    text: str
    turn: int = -1

    @property
    def from_operator(self) -> bool:
        """Return True if the operator wrote this mail."""
        return self.author == OPERATOR

    @property
    def from_above(self) -> bool:
        """Return True if the operator or the lead wrote this mail."""
        return self.author in {OPERATOR, LEAD}


@dataclass(frozen=True)
class Said:
    """The text of the assistant message number `turn`.

    `final` is True if that message called no tool, which ends an assignment.
    """

    text: str
    final: bool
    turn: int


Entry = Mail | Done | Said


@dataclass(frozen=True)
class Conversation:
    """One request as entries, and the facts that its system prompt says about the agent: name, type and team.

    Of its `entries`, `before` are those of earlier assignments, and `span` those of the present one. `tools` are the
    names of those that may be called. `wants_summary` is True if the request asks to summarize the conversation.
    """

    name: str
    type: str
    team: str
    system: str
    tools: frozenset[str]
    entries: tuple[Entry, ...]
    before: tuple[Entry, ...]
    span: tuple[Entry, ...]
    wants_summary: bool

    @property
    def is_lead(self) -> bool:
        """Return True if the agent leads its team."""
        return self.type == LEAD

    def facts(self, clause: str) -> dict[str, str]:
        """Return default values of the words that a phrase quotes, for a clause that does not give them.

        The text of `clause` is a part of the default of `content`.
        """
        own = [text for text in re.findall(r"`([^`\n]+)`", self.system) if re.search(r"\w\s.*test|^pytest", text)]
        mail = [one for one in mail_in(self.before) if not one.from_operator and one.kind not in _UNTOLD]
        told = bullets([f"{one.kind} from {one.author}: {first_line(one.text)}" for one in mail[-12:]])
        return {
            "path": f"{self.name}.txt",
            "content": f"{self.name} was asked: {clause}\n",
            "team": self.team,
            "text": f"{self.name} says hello.",
            "command": next(iter(own), "python -m pytest -q"),
            "mail": f"What came before, the newest last:\n{told}" if told else "",
        }

    @property
    def replies(self) -> list[list[Done]]:
        """Return for each assistant message so far its calls with their results; an empty list for a final answer."""
        last = max((entry.turn for entry in self.entries if not isinstance(entry, Mail)), default=-1)
        return [[done for done in calls_in(self.entries) if done.turn == turn] for turn in range(last + 1)]


def mail_in(entries: Iterable[Entry]) -> list[Mail]:
    """Return the mail among `entries`, without notices."""
    return [entry for entry in entries if isinstance(entry, Mail) and entry.kind != NOTICE]


def calls_in(entries: Iterable[Entry]) -> list[Done]:
    """Return the calls among `entries`."""
    return [entry for entry in entries if isinstance(entry, Done)]


def read(request: Request) -> Conversation:
    """Return a request as a conversation."""
    system = text_of(request.system)
    who = _WHO.search(system)
    name, agent_type, team = who.groups() if who else ("agent", "explore", "default")
    entries = list(_entries(request.messages))
    if not mail_in(entries):
        # A request by hand: plain text is what the operator asks.
        entries = [Mail(OPERATOR, HIRE_PROMPT, one.text, one.turn) if isinstance(one, Mail) else one for one in entries]
    start = max((at for at, entry in enumerate(entries, 1) if isinstance(entry, Said) and entry.final), default=0)
    # Tools that are loaded on demand are shown to the model where a result refers to them.
    blocks = (block for message in request.messages for block in blocks_of(message.content))
    results = [block for block in blocks if block["type"] == "tool_result"]
    shown = [part.get("tool_name") for block in results for part in blocks_of(block.get("content") or "")]
    tools = [tool["name"] for tool in request.tools if not tool.get("defer_loading") or tool["name"] in shown]
    last = blocks_of(request.messages[-1].content)[-1]
    # A worker whose window fills up asks at the end of its conversation, or about it.
    asks = last["type"] == "text" and any(each.kind == SUMMARY for each in undelimit(last["text"]))
    wants_summary = asks or (not request.tools and "summar" in system.lower())
    parts = tuple(entries), tuple(entries[:start]), tuple(entries[start:])
    return Conversation(name, agent_type, team or "default", system, frozenset(tools), *parts, wants_summary)


def _entries(messages: Iterable[Message]) -> Iterable[Entry]:
    calls: dict[str, Block] = {}
    turn = -1
    # Neighbouring messages of one role are one.
    for role, group in groupby(messages, key=lambda message: message.role):
        content = [block for message in group for block in blocks_of(message.content)]
        if role == "system":
            # Without a mark it is what another program tells its model; no order of a person or an agent.
            yield from (
                Mail(mail.author, mail.kind, mail.text, turn) for block in content for mail in undelimit(block["text"])
            )
        elif role == "assistant":
            turn += 1
            uses = {block["id"]: block for block in content if block["type"] == "tool_use"}
            calls |= uses
            if (text := text_of(content)) or not uses:
                yield Said(text, final=not uses, turn=turn)
        else:
            for block in content:
                if block["type"] == "tool_result":
                    use, text = calls[block["tool_use_id"]], undelimit_data(text_of(block.get("content") or ""))
                    yield Done(use["name"], use["input"], text, bool(block.get("is_error")), turn)
                elif block["type"] == "text" and undelimit_data(block["text"]) == block["text"]:
                    yield from _read_text(_REMINDER.sub("", block["text"]), turn)


def _read_text(text: str, turn: int) -> Iterable[Entry]:
    """Yield the mail in one text, and the text around it as notices, in their order."""
    for piece in undelimit(text):
        before, _, text = text.partition(piece.whole)
        if before.strip():
            yield Mail(SYSTEM, NOTICE, before.strip(), turn)
        if piece.kind == NOTICE:
            # A notice that sums up the conversation holds the mail of the present assignment, delimited as it was.
            yield from _read_text(piece.text, turn)
        else:
            yield Mail(piece.author, piece.kind, piece.text, turn)
    if text.strip():
        yield Mail(SYSTEM, NOTICE, text.strip(), turn)


_CUT_SHORT = re.compile(r"\[ended .*\]\s*$")
_EXIT = re.compile(r"\[exit code (-?\d+)\]$")
_NUMBERED = re.compile(r"^\s*(\d+)\t(.*)$", re.MULTILINE)
_CLOSED = re.compile(r"\((?:completed|failed|cancelled)\b[^()]*\)$")
_TALLY = re.compile(r"^(?:Ran \d+ tests?|=* ?\d+ (?:passed|failed|error)|OK\b|FAILED \()")
_REMARK = re.compile(r"[(\[]|no \w+(?: |\Z)", re.IGNORECASE)
_DEFINED = re.compile(r"(?:async\s+)?(?:class|def)\s+(\w+)")
_HEADING = re.compile(r"#+ (.+)")
_FEEDBACK = re.compile(r"feedback:?\s*(.+?)\s*(?:\nRevise [^\n]*)?\Z", re.IGNORECASE | re.DOTALL)
_QUOTE = re.compile(r"\{(?:(?P<tool>[a-z_]+)(?: (?P<about>[^{}:]+))?:(?P<view>[a-z]+)|(?P<word>\w+))\}")


def entries(done: Done) -> list[str]:
    """Return the lines of a result, each a path, match or entry, without remarks such as "no file matches"."""
    return [line for line in map(str.strip, done.text.splitlines()) if line and not _REMARK.match(line)]


def exit_code(done: Done) -> int | None:
    """Return the exit code that a command's output ends with; None if it ends without one."""
    found = _EXIT.search(done.text.rstrip())
    return int(found[1]) if found else None


def is_rejected(done: Done) -> bool:
    """Return True if this is a call of submit_plan whose plan was rejected, not just cancelled or expired."""
    return done.tool == "submit_plan" and done.is_error and "reject" in done.text.partition("\n")[0].lower()


def refusal(done: Done) -> str:
    """Return a sentence that says why a tool did not do what it was asked."""
    if done.unavailable:
        return f"I may not use {done.tool}: it is not among my tools, so I left that undone."
    if done.text.startswith("interrupted"):
        return f"{done.tool} was {done.text.strip()}"
    if _CUT_SHORT.search(done.text):
        return f"{done.tool} did not end by itself: {done.text.strip()}"
    return f"{done.tool} was refused: {done.text.strip() or 'no reason given'}"


def first_line(text: str, limit: int = 160) -> str:
    """Return the first line that is not blank, cut to `limit` characters; empty if there is none."""
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return first if len(first) <= limit else first[: limit - 1] + "…"


def bullets(items: Sequence[str], limit: int = 200) -> str:
    """Return items as a list with dashes, and the number of those beyond the first `limit`."""
    rest = [f"- … and {len(items) - limit} more"] if len(items) > limit else []
    return "\n".join([*(f"- {item}" for item in items[:limit]), *rest])


def _body(done: Done) -> list[str]:
    kept = [line for line in done.text.splitlines() if line.strip()]
    return kept[:-1] if exit_code(done) is not None else kept


def _line_count(done: Done) -> str:
    return ["0", *(found[1] for found in _NUMBERED.finditer(done.text))][-1] if done.ok else "unknown"


def _counted(done: Done, one: str, several: str) -> str:
    """Return the number of entries in a result in words, such as `1 file` or `no files`."""
    count = len(entries(done))
    return f"{count or 'no'} {one if count == 1 else several}" if done.ok else f"unknown {several}"


def _about(done: Done) -> str:
    """Return a sentence about a file that was read: its number of lines, its beginning, and what it defines."""
    path, code = done.input.get("path"), [found[2] for found in _NUMBERED.finditer(done.text)]
    if not done.ok:
        return f"{path} could not be read: {done.text.strip()}"
    # A `#` begins a heading in prose, and a comment in code.
    is_prose = re.search(r"readme|\.(?:md|markdown)$", str(path), re.IGNORECASE)
    names = [found[1] for line in code if (found := (_HEADING if is_prose else _DEFINED).match(line))]
    first = next((line.strip(' "#') for line in code if line.strip(' "#')), "")
    holds = f" It holds {', '.join(names[:20])}." if names else ""
    count = _line_count(done)
    return f"{path} has {count} line{'s' * (count != '1')}, and begins: “{first}”.{holds}"


_LEFT_OUT = re.compile(r"^- Approved are all steps but ([\d, ]+)\.", re.MULTILINE)


def left_out_in(done: Done) -> set[int]:
    """Return the numbers of the steps that the approval of a plan leaves out."""
    found = _LEFT_OUT.search(done.text)
    return {int(number) for number in found[1].split(",")} if found is not None else set()


def edition(done: Done) -> str:
    """Return the text of a plan that was edited with its approval; empty if it was not edited."""
    return done.text.partition("\nThe plan was edited. Carry out this version:\n")[2].strip()


def _added(done: Done) -> str:
    """Return the first line of code that an approved plan adds, without its `+`.

    If an edit or the approval took that out, return the first line that the plan removes.
    """
    plan, edited, left_out = str(done.input.get("plan", "")), edition(done), left_out_in(done)
    dropped = {at for number, lines in step_lines(edited).items() if number in left_out for at in lines}
    kept = "\n".join(line for at, line in enumerate(edited.split("\n"), 1) if at not in dropped)
    old, new = (re.findall(rf"(?m)^\{mark} (.*)", text) for mark, text in (("-", plan), ("+", kept or plan)))
    return next(iter([*new, *old]), "")


VIEWS: dict[str, Callable[[Done], str]] = {
    "text": lambda done: done.text.strip(),
    "line": lambda done: " ".join(first_line(done.text, len(done.text)).split()),
    "tail": lambda done: "\n".join(_body(done)[-8:]),
    "exit": lambda done: str(exit_code(done)) if done.ok else "unknown",
    "tally": lambda done: ", ".join(line.strip(" =") for line in _body(done) if _TALLY.match(line)),
    "lines": _line_count,
    "count": lambda done: str(len(entries(done))) if done.ok else "unknown",
    "agents": lambda done: _counted(done, "agent", "agents"),
    "tasks": lambda done: _counted(done, "task", "tasks"),
    "open": lambda done: bullets([one for one in entries(done) if not _CLOSED.search(one)]) or "None.",
    "files": lambda done: _counted(done, "file", "files"),
    "entries": lambda done: _counted(done, "entry", "entries"),
    "matches": lambda done: _counted(done, "line", "lines"),
    "list": lambda done: bullets(entries(done)),
    "below": lambda done: f":\n{bullets(entries(done))}" if entries(done) else ".",
    "feedback": lambda done: (_FEEDBACK.findall(done.text) or [done.text])[0].strip(),
    "added": _added,
    "answer": lambda done: done.text.partition(": ")[2].strip() or done.text.strip(),
    "about": _about,
    "outcome": lambda done: f"- {first_line(done.text)}." if done.ok else f"- {refusal(done)}",
}
"""The views of a tool's result that a template can quote, by name."""


def fill(value: Any, done: Sequence[Done], words: Mapping[str, str] | None = None) -> Any:  # noqa: ANN401  any JSON
    """Return `value` with each quotation in its texts replaced: views by results in `done`, words by `words`."""
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
        return ("\n" if found["view"] == "outcome" else "\n\n").join(map(view, calls))
    fitting = [call for call in calls if about is None or about in map(str, call.input.values())]
    return view(fitting[-1]) if fitting else f"(no {found['tool']})"
