"""A request as a flat list of entries, so that scenarios and the phrasebook need no knowledge of the Messages API."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from crewboard.names import OPERATOR, SYSTEM
from crewboard.offline.wire import MessagesRequest, Text, ToolResult, ToolUse, turns
from crewboard.untrusted import delimit, undelimit

_WHO = re.compile(r'^You are (\S+), an? (\S+) agent\b(?:.*?\bteam "([^"\n]*)")?', re.MULTILINE)

# Kinds of mail: what an agent was hired for; the system's own words, and text between mail.
HIRE_PROMPT = "prompt"
NOTICE = "notice"


@dataclass(frozen=True)
class Call:
    """A tool to call. `say` is spoken before it."""

    tool: str
    input: dict[str, object] = field(default_factory=dict)
    say: str = ""


@dataclass(frozen=True)
class Done:
    """A tool call that was answered, in the assistant message number `turn`; `unavailable` if there is no such tool."""

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
    """Mail that entered the conversation behind the assistant message number `turn`."""

    author: str
    kind: str
    text: str
    turn: int = -1


@dataclass(frozen=True)
class Said:
    """Text of the assistant message number `turn`; `final` if it called no tool, which ends an assignment."""

    text: str
    final: bool
    turn: int


Entry = Mail | Done | Said


@dataclass(frozen=True)
class Conversation:
    """One request, taken apart; of its `entries`, `before` are earlier assignments, `span` is the present one."""

    name: str
    type: str
    team: str
    system: str
    tools: frozenset[str]
    entries: tuple[Entry, ...]
    before: tuple[Entry, ...]
    span: tuple[Entry, ...]

    @property
    def replies(self) -> list[list[Done]]:
        """Return for each assistant message so far what its calls returned; nothing for a final answer."""
        last = max((entry.turn for entry in self.entries if not isinstance(entry, Mail)), default=-1)
        return [[done for done in calls_in(self.entries) if done.turn == turn] for turn in range(last + 1)]


def mail_in(entries: Iterable[Entry]) -> list[Mail]:
    """Return the mail among `entries`, without notices."""
    return [entry for entry in entries if isinstance(entry, Mail) and entry.kind != NOTICE]


def calls_in(entries: Iterable[Entry]) -> list[Done]:
    """Return the calls among `entries`."""
    return [entry for entry in entries if isinstance(entry, Done)]


def read(request: MessagesRequest) -> Conversation:
    """Take a request apart."""
    who = _WHO.search(request.system_text)
    name, agent_type, team = who.groups() if who else ("agent", "explore", "default")
    entries = list(_entries(request))
    if not mail_in(entries):
        # A request by hand: plain text is what the operator asks.
        entries = [Mail(OPERATOR, HIRE_PROMPT, one.text, one.turn) if isinstance(one, Mail) else one for one in entries]
    start = max((at for at, entry in enumerate(entries, 1) if isinstance(entry, Said) and entry.final), default=0)
    tools = frozenset(tool.name for tool in request.tools)
    parts = tuple(entries), tuple(entries[:start]), tuple(entries[start:])
    return Conversation(name, agent_type, team or "default", request.system_text, tools, *parts)


def _entries(request: MessagesRequest) -> Iterable[Entry]:
    calls: dict[str, ToolUse] = {}
    turn = -1
    for _, role, blocks in turns(request.messages):
        uses = {block.id: block for block in blocks if isinstance(block, ToolUse)}
        calls |= uses
        if role == "assistant":
            turn += 1
            text = "\n".join(block.text for block in blocks if isinstance(block, Text))
            if text or not uses:
                yield Said(text, final=not uses, turn=turn)
            continue
        for block in blocks:
            if isinstance(block, ToolResult):
                use = calls[block.tool_use_id]
                yield Done(use.name, use.input, block.text, bool(block.is_error), turn)
            elif isinstance(block, Text):
                yield from _read_text(block.text, turn)


def _read_text(text: str, turn: int) -> Iterable[Entry]:
    """Yield mail and notices of one text, in their order."""
    for piece in undelimit(text):
        before, _, text = text.partition(delimit(piece.author, piece.kind, piece.id, piece.text))
        if before.strip():
            yield Mail(SYSTEM, NOTICE, before.strip(), turn)
        if piece.kind == NOTICE:
            # A notice that sums up the conversation holds the mail of the present assignment, delimited as it was.
            yield from _read_text(piece.text, turn)
        else:
            yield Mail(piece.author, piece.kind, piece.text, turn)
    if text.strip():
        yield Mail(SYSTEM, NOTICE, text.strip(), turn)
