"""Transcripts of Claude Code: find those of a team, read new records, and translate them into events of a journal."""

import heapq
import json
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from crewboard import pricing
from crewboard.attach import formats
from crewboard.errors import StorageError
from crewboard.names import OPERATOR
from crewboard.records.agents import Tokens
from crewboard.records.base import Record, first_line
from crewboard.records.events import Event, Intake, Reply, ToolResult, ToolStart, describe_call
from crewboard.store import files, mailbox

_HEAD = 65_536
"""Bytes at the start of a transcript that are read to find out which agent it is from."""

_MAX_SUMMARY = 200

_TOOLS = {
    "Bash": "bash", "Read": "read_file", "Write": "write_file", "Edit": "edit_file", "Glob": "glob", "Grep": "grep",
}  # fmt: skip
"""Claude Code's tools by name, and crewboard's names, under which views show the files and commands of a call."""

_INPUTS = {"file_path": "path", "old_string": "old_text", "new_string": "new_text"}

_NOT_TYPED = (
    "<command-", "<local-command", "<system-reminder", "<task-notification", "<bash-", "<user-", "Caveat:",
)  # fmt: skip
"""Beginnings of texts in records of the user that no user typed."""

_ENDS_TURN = frozenset({"end_turn", "stop_sequence", "max_tokens", "refusal"})


class OpenCall(Record):
    """A tool call without a result so far."""

    name: str
    ts: float
    summary: str = ""


class AgentState(Record):
    """An agent of Claude Code as the mirror knows it. `key` is Claude Code's id of it.

    `kind` is `lead`, `tmux` (a process of its own), `in-process` (in that of the lead) or `sub-agent`, and `parent` the
    agent that started a sub-agent. `pid` and `ticks`, its start in clock ticks, identify its process; 0 if not known.
    `call` is the id of its last model call and `call_usage` the tokens counted for it: a reply has several records,
    each with the usage of the whole. `open` are its tool calls without a result, by id. `leaves` is True once it agreed
    to shut down, `ended` the reason of its end, if any. `written` is the size of its journal in bytes at the last save.
    """

    name: str
    key: str
    kind: str
    type: str = ""
    role: str = ""
    parent: str = ""
    model: str = ""
    run: int = 0
    since: float = 0
    state: str = "working"
    doing: str = ""
    turn: int = 0
    tokens: Tokens = msgspec.field(default_factory=Tokens)
    cost_usd: float | None = None
    context: int = 0
    last_tool: str = ""
    last_error: str | None = None
    waiting_for: str | None = None
    call: str = ""
    call_usage: Tokens = msgspec.field(default_factory=Tokens)
    open: dict[str, OpenCall] = msgspec.field(default_factory=dict)
    pid: int = 0
    ticks: int = 0
    leaves: bool = False
    ended: str = ""
    written: int = 0


class Tail(Record):
    """A transcript, the agent that it is from, and the offset in bytes up to which it was read."""

    agent: str
    offset: int = 0


@dataclass
class Translated:
    """One record as events, letters that entered the conversation, and a letter sent, with its recipient."""

    events: list[Event] = field(default_factory=list)
    entered: list[formats.Letter] = field(default_factory=list)
    sent: tuple[str, formats.Letter] | None = None


def folder_of(cwd: str) -> str:
    """Return the name of the folder that holds the transcripts of sessions in the working directory `cwd`."""
    return re.sub(r"[^a-zA-Z0-9]", "-", cwd)


def find_session(projects: Path, cwd: str, session: str) -> Path | None:
    """Return the transcript of a session, below the folder `projects`; None while there is none."""
    if not re.fullmatch(r"[0-9A-Za-z-]+", session):
        return None
    usual = projects / folder_of(cwd) / f"{session}.jsonl"
    if usual.exists():
        return usual
    return next(iter(projects.glob(f"*/{session}.jsonl")), None)


def find_teammate(projects: Path, cwd: str, team: str, name: str, known: Iterable[str]) -> Path | None:
    """Return the transcript whose first records name this teammate and team; None while there is none.

    It is for a teammate with a process of its own. Transcripts whose paths are in `known` are skipped.
    """
    skipped = set(known)
    marks = [f'"{key}":{json.dumps(value)}'.encode() for key, value in (("teamName", team), ("agentName", name))]
    for path in formats.files_in(projects / folder_of(cwd), "*.jsonl"):
        if str(path) not in skipped and all(mark in _head(path) for mark in marks):
            return path
    return None


def sub_agents(transcript: Path) -> list[Path]:
    """Return the transcripts of the agents that run in the process of the session with this transcript."""
    return formats.files_in(transcript.with_suffix("") / "subagents", "agent-*.jsonl")


def meta_of(transcript: Path) -> dict[str, Any]:
    """Return Claude Code's description of the agent that a transcript in `subagents` is from: its `.meta.json` file.

    It is empty if the file is missing or torn.
    """
    try:
        found = json.loads(transcript.with_suffix(".meta.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def first_letter(transcript: Path) -> str:
    """Return the text of the first letter in a transcript, empty if there is none.

    Before version 2.1.330 of Claude Code, only this text tells which agent the transcript is from.
    """
    for line in _head(transcript).split(b"\n")[:-1]:
        record = formats.transcript_record(line)
        if record is not None:
            texts = "\n".join(str(block.get("text", "")) for block in formats.content_blocks(record))
            return next((letter.text for letter in formats.letters_in(texts)), "")
    return ""


def _head(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_HEAD)
    except OSError:
        return b""


def read_new(tails: dict[str, Tail]) -> Iterator[tuple[Tail, dict[str, Any]]]:
    """Yield the records appended to transcripts since the last call, in the order of time, each with its tail.

    `tails` are by path; the offset of a tail moves on after each of its records was handled.
    """
    changed: list[Iterator[tuple[float, tuple[int, int], Tail, dict[str, Any]]]] = []
    for path, tail in tails.items():
        size = files.size(Path(path))
        # A shorter file was cut or replaced: what it holds now was read, or is lost.
        tail.offset = min(tail.offset, size)
        if size > tail.offset:
            changed.append(_records(len(changed), path, tail))
    for _, _, tail, record in heapq.merge(*changed):
        yield tail, record


def _records(number: int, path: str, tail: Tail) -> Iterator[tuple[float, tuple[int, int], Tail, dict[str, Any]]]:
    """Yield the new records of one transcript: time, `number` and position to sort by, then tail and record."""
    last = 0.0
    count = 0
    try:
        for line, end in files.read_lines(Path(path), tail.offset):
            record = formats.transcript_record(line) if line is not None else None
            if record is not None:
                last = max(last, formats.moment(record.get("timestamp")))
                count += 1
                yield last, (number, count), tail, record
            # After the record was handled, so that one that could not be is read again.
            tail.offset = end
    except StorageError:
        return


def translate(record: dict[str, Any], agent: AgentState, root: Path, prices: pricing.Prices) -> Translated:
    """Return the events and letters of one record of an agent's transcript, and update the state in `agent`.

    Paths below `root` become relative to it.
    """
    ts = formats.moment(record.get("timestamp"))
    found = Translated(sent=formats.sent_letter(record))
    if record["type"] == "assistant":
        found.events = _reply(record, agent, root, prices, ts)
    else:
        _take_in(record, agent, ts, found)
    return found


def _reply(record: dict[str, Any], agent: AgentState, root: Path, prices: pricing.Prices, ts: float) -> list[Event]:
    message = record["message"]
    blocks = formats.content_blocks(record)
    model = str(message.get("model") or agent.model)
    is_real = not model.startswith("<")
    used = Tokens()
    if is_real:
        # Without the tokens that earlier records of the same reply counted.
        told, call = formats.usage(record), str(message.get("id") or record.get("uuid") or "")
        before = agent.call_usage if call == agent.call else Tokens()
        agent.turn += call != agent.call
        kinds = Tokens.__struct_fields__
        agent.call = call
        agent.call_usage = Tokens(**{kind: max(getattr(told, kind), getattr(before, kind)) for kind in kinds})
        agent.context = told.total - told.output
        used = Tokens(**{kind: getattr(agent.call_usage, kind) - getattr(before, kind) for kind in kinds})
    cost = prices.cost(model.partition("[")[0], used) if used.total else None
    stop, is_error = str(message.get("stop_reason") or ""), record.get("isApiErrorMessage") is True
    said: list[dict[str, Any]] = []
    for block in blocks:
        kind = block.get("type")
        if kind == "tool_use":
            # The input of a call is in its start.
            said.append({"type": kind, "id": str(block.get("id")), "name": str(block.get("name")), "input": {}})
        elif kind in ("text", "thinking"):
            said.append({"type": kind, kind: str(formats.clip(block.get(kind) or ""))})
    events: list[Event] = []
    if used.total or any(block["type"] != "tool_use" for block in said):
        events.append(
            Reply(ts=ts, run=agent.run, content=said, stop_reason=stop, usage=used, model=model, cost_usd=cost)
        )
    agent.model = model if is_real else agent.model
    agent.tokens += used
    agent.cost_usd = agent.cost_usd if cost is None else (agent.cost_usd or 0) + cost
    refusal = " ".join(str(block.get("text", "")) for block in blocks)[:500] or "the API refused"
    agent.last_error = refusal if is_error else None
    events += [_start(block, agent, root, ts) for block in blocks if block.get("type") == "tool_use"]
    _change(agent, "idle" if stop in _ENDS_TURN or is_error else "working", ts)
    return events


def _start(block: dict[str, Any], agent: AgentState, root: Path, ts: float) -> ToolStart:
    given = block.get("input")
    arguments = {_INPUTS.get(key, key): value for key, value in given.items()} if isinstance(given, dict) else {}
    path = arguments.get("path")
    if isinstance(path, str) and path.startswith(f"{root}{os.sep}"):
        # Our own agents name it so.
        arguments["path"] = os.path.relpath(path, root)
    name = str(block.get("name") or "tool")
    call = ToolStart(
        ts=ts, run=agent.run, tool_use_id=str(block.get("id")), name=_TOOLS.get(name, name),
        input=formats.clip(arguments),
    )  # fmt: skip
    agent.last_tool = agent.doing = first_line(describe_call(call.name, call.input), _MAX_SUMMARY)
    agent.open[call.tool_use_id] = OpenCall(name=call.name, ts=ts, summary=agent.doing.removeprefix(f"{call.name} "))
    return call


def _take_in(record: dict[str, Any], agent: AgentState, ts: float, found: Translated) -> None:
    """Add to `found` what a record of the user holds: results of tools, letters, and text that a person typed."""
    texts = []
    for block in formats.content_blocks(record):
        if block.get("type") == "tool_result":
            ident = str(block.get("tool_use_id"))
            begun = agent.open.pop(ident, None)
            outcome = record.get("toolUseResult")
            result = ToolResult(
                ts=ts, run=agent.run, tool_use_id=ident, name=begun.name if begun else "tool",
                content=formats.result_text(block), is_error=block.get("is_error") is True,
                created=isinstance(outcome, dict) and outcome.get("type") == "create",
                seconds=max(0.0, ts - begun.ts) if begun else None,
            )  # fmt: skip
            found.events.append(result)
        elif block.get("type") == "text":
            texts.append(str(block.get("text") or ""))
    text = "\n".join(texts).strip()
    letters = list(formats.letters_in(text)) if "<teammate-message" in text else []
    found.entered = [
        formats.Letter(letter.author, letter.text, ts, f"{record.get('uuid')}:{n}") for n, letter in enumerate(letters)
    ]
    if text and not letters and _is_typed(record, text):
        prompt = Intake(
            ts=ts, run=agent.run, prompt=text[: formats.MAX_TEXT], prompt_from=agent.parent or OPERATOR,
            assignment=mailbox.derived_id("prompt", record.get("uuid")),
        )  # fmt: skip
        found.events.append(prompt)
    if text and (letters or _is_typed(record, text)):
        agent.turn = 0
    if found.events or letters:
        _change(agent, "idle" if text.startswith("[Request interrupted") else "working", ts)


def _is_typed(record: dict[str, Any], text: str) -> bool:
    """Return True if a person, or the agent that started this one, wrote the text of a record, not Claude Code."""
    origin = record.get("origin")
    kind = origin.get("kind") if isinstance(origin, dict) else None
    return kind in (None, "human") and record.get("isMeta") is not True and not text.startswith(_NOT_TYPED)


def _change(agent: AgentState, state: str, ts: float) -> None:
    if state != agent.state:
        agent.state, agent.since = state, ts
    if state == "idle":
        agent.doing = ""
        # A call that was interrupted gets no result.
        agent.open = {}
