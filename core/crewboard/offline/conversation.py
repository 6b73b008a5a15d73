"""A request as its thinker sees it: who is asked, what mail came, which tools were called and what they gave.

The conversation is taken apart into a flat list of entries, so that scenarios and rules need no knowledge of the
Messages API.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from crewboard.names import OPERATOR
from crewboard.offline.wire import Block, CountRequest, Text, ToolResult, ToolUse, turns
from crewboard.untrusted import UntrustedText, delimit, undelimit

_WHO = re.compile(r'^You are (\S+), an? (\S+) agent in the crewboard team "([^"\n]*)"\.', re.MULTILINE)
_REPORTS_TO = re.compile(r"^You report to (\S+?)\.", re.MULTILINE)

HIRE_PROMPT = "prompt"
"""The kind of fenced mail that holds what an agent was hired for."""

NOTICE = "notice"
"""The kind of fenced mail in which the system itself speaks."""


@dataclass(frozen=True)
class Call:
    """A tool to call. `say` is spoken before it."""

    tool: str
    input: dict[str, object] = field(default_factory=dict)
    say: str = ""


@dataclass(frozen=True)
class Done:
    """A tool call that was answered, in the assistant message number `turn`."""

    tool: str
    input: dict[str, object]
    text: str
    is_error: bool = False
    turn: int = 0
    unavailable: bool = False
    """The tool is not offered; nothing was called."""

    @property
    def left_out(self) -> bool:
        """Whether the conversation no longer holds what the tool gave."""
        return self.text.startswith("(left out to save room")

    @property
    def ok(self) -> bool:
        """Whether the tool did what it was asked."""
        return not (self.is_error or self.unavailable)


@dataclass(frozen=True)
class Mail:
    """Fenced mail that entered the conversation."""

    author: str
    kind: str
    text: str
    turn: int = -1
    """The assistant message that it came behind."""


@dataclass(frozen=True)
class Notice:
    """The system's own words: mail of the kind "notice", or what stands between fenced mail."""

    text: str
    turn: int = -1


@dataclass(frozen=True)
class Said:
    """Text of the assistant message number `turn`; `final` if it called no tool, which ends an assignment."""

    text: str
    final: bool
    turn: int


Entry = Mail | Notice | Done | Said


@dataclass(frozen=True)
class Conversation:
    """One request, taken apart."""

    name: str
    type: str
    team: str
    report_to: str
    system: str
    tools: frozenset[str]
    entries: tuple[Entry, ...]

    @property
    def span(self) -> tuple[Entry, ...]:
        """What happened since the last answer: the present assignment."""
        last = max((place for place, entry in enumerate(self.entries) if _ends(entry)), default=-1)
        return self.entries[last + 1 :]

    @property
    def plan_required(self) -> bool:
        """Whether nothing may be written or run before a plan is approved."""
        return "submit_plan" in self.tools and "plan is required" in self.system.lower()

    @property
    def hire_prompt(self) -> str | None:
        """What the agent was hired for."""
        return next((mail.text for mail in only_mail(self.entries) if mail.kind == HIRE_PROMPT), None)

    @property
    def done(self) -> tuple[Done, ...]:
        """Every tool call so far."""
        return tuple(entry for entry in self.entries if isinstance(entry, Done))

    @property
    def replies(self) -> list[list[Done]]:
        """For each assistant message so far what its calls gave; nothing for a final answer."""
        count = 1 + max((entry.turn for entry in self.entries if isinstance(entry, Said | Done)), default=-1)
        replies: list[list[Done]] = [[] for _ in range(count)]
        for entry in self.done:
            replies[entry.turn].append(entry)
        return replies


def only_mail(entries: Iterable[Entry]) -> list[Mail]:
    """The mail among `entries`."""
    return [entry for entry in entries if isinstance(entry, Mail)]


def read(request: CountRequest) -> Conversation:
    """Take a request apart."""
    system = request.system_text
    who = _WHO.search(system)
    name, agent_type, team = who.groups() if who else ("agent", "explore", "default")
    reports_to = _REPORTS_TO.search(system)
    return Conversation(
        name=name,
        type=agent_type,
        team=team,
        report_to=reports_to[1] if reports_to else "lead",
        system=system,
        tools=frozenset(tool.name for tool in request.tools),
        entries=tuple(_with_an_author(list(_entries(request)))),
    )


def _with_an_author(entries: list[Entry]) -> list[Entry]:
    """Where nothing is fenced, somebody tries the server by hand: plain text is what the operator asks."""
    if only_mail(entries):
        return entries
    return [
        Mail(OPERATOR, HIRE_PROMPT, entry.text, entry.turn) if isinstance(entry, Notice) else entry for entry in entries
    ]


def _ends(entry: Entry) -> bool:
    return isinstance(entry, Said) and entry.final


def _entries(request: CountRequest) -> Iterable[Entry]:
    calls: dict[str, ToolUse] = {}
    turn = -1
    for _, role, blocks in turns(request.messages):
        if role == "assistant":
            turn += 1
            uses = [block for block in blocks if isinstance(block, ToolUse)]
            calls.update((use.id, use) for use in uses)
            yield from _said(blocks, turn, final=not uses)
        else:
            yield from _heard(blocks, calls, turn)


def _said(blocks: list[Block], turn: int, *, final: bool) -> Iterable[Entry]:
    text = "\n".join(block.text for block in blocks if isinstance(block, Text))
    if text or final:
        yield Said(text, final, turn)


def _heard(blocks: list[Block], calls: dict[str, ToolUse], turn: int) -> Iterable[Entry]:
    for block in blocks:
        if isinstance(block, ToolResult):
            use = calls[block.tool_use_id]
            yield Done(use.name, use.input, block.text, bool(block.is_error), turn)
        elif isinstance(block, Text):
            yield from _read_text(block.text, turn)


def _read_text(text: str, turn: int) -> Iterable[Entry]:
    """Mail and notices of one text, in their order."""
    for piece in undelimit(text):
        before, _, text = text.partition(_as_it_stood(piece))
        if before.strip():
            yield Notice(before.strip(), turn)
        if piece.kind == NOTICE:
            # A notice that sums up the conversation holds the mail of the present assignment, fenced as it was.
            yield from _read_text(piece.text, turn)
        else:
            yield Mail(piece.author, piece.kind, piece.text, turn)
    if text.strip():
        yield Notice(text.strip(), turn)


def _as_it_stood(piece: UntrustedText) -> str:
    return delimit(piece.author, piece.kind, piece.id, piece.text)
