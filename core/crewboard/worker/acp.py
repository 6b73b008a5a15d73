"""A client of the Agent Client Protocol, version 1: JSON-RPC in lines, over the standard streams of an engine.

Each message of an engine is checked part by part and becomes an `Update`. A message that is not understood becomes a
`Line` for the log and is no error: engines change weekly.
"""

import asyncio
import contextlib
import json
import re
import zoneinfo
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from crewboard.agent_types import MCP_PREFIX
from crewboard.records.agents import Tokens
from crewboard.records.base import MAX_DEPTH

VERSION = 1

LONGEST_LINE = 32 << 20
"""The most bytes of one line from an engine. In a replayed session, each file that was read is on one line."""

_NOT_FOUND = -32601
_MOST_PRINTED = 1 << 20
"""Characters of a command's output that are kept, the last ones."""

_TOO_DEEP = "[nested too deeply to be shown]"
_MOST_SHOWN = 200
"""Characters that are kept of a line that was not understood."""

Json = dict[str, Any]


class EngineError(Exception):
    """The engine answered a request or a turn with an error, or its settings or answers cannot be used.

    `code` is the code of the JSON-RPC error, 0 if there is none; `kind` is the engine's own word for what failed, empty
    if it gave none.
    """

    def __init__(self, text: str, code: int = 0, kind: str = "") -> None:
        super().__init__(text)
        self.code = code
        self.kind = kind


class EngineGoneError(Exception):
    """The engine ended, closed its streams, does not answer or could not be started."""


@dataclass(frozen=True)
class Said:
    """A piece of text: of a reply, of the model's thoughts, of the engine itself (`note`), or of the user in a replay.

    `message` is the engine's id of the message that the piece belongs to; empty if it gave none.
    """

    kind: Literal["text", "thought", "note", "user"]
    text: str
    message: str = ""


@dataclass(frozen=True)
class Call:
    """A tool call of the engine, with what one update says of it; all other fields are empty."""

    id: str
    name: str = ""
    title: str = ""
    kind: str = ""
    status: str = ""
    input: Json = field(default_factory=dict)
    output: str = ""
    diff: tuple[str, str, str] | None = None
    """The change of a file: its path, its text before and its text after."""
    printed: str = ""
    """The output of the call's command since the last update."""

    @property
    def plan(self) -> str | None:
        """Return the plan for which the engine asks approval, to leave its plan mode; None if the call has none."""
        plan = self.input.get("plan")
        return plan if self.kind == "switch_mode" and isinstance(plan, str) and plan.strip() else None

    def merged(self, later: "Call") -> "Call":
        """Return this call with what a later update of it fills in. `printed` is joined, and keeps only its end."""
        return Call(
            self.id, later.name or self.name, later.title or self.title, later.kind or self.kind,
            later.status or self.status, later.input or self.input, later.output or self.output,
            later.diff or self.diff, (self.printed + later.printed)[-_MOST_PRINTED:],
        )  # fmt: skip


@dataclass(frozen=True)
class Steps:
    """The engine's list of the steps of its work, each with `text` and `status`."""

    items: list[dict[str, str]]


@dataclass(frozen=True)
class Filled:
    """How much of the model's window is `used`, of its `size`, in tokens.

    `cost_usd` is the cost of the session so far; None if the engine does not tell it. `model` is empty if it is not
    told. `resets` is the end of the usage limit in epoch seconds, if it was reached just now; else None.
    """

    used: int
    size: int
    cost_usd: float | None = None
    model: str = ""
    resets: float | None = None


@dataclass(frozen=True)
class Line:
    """A message of the engine that was not understood: its beginning, or a text that says what is wrong with it."""

    text: str


Update = Said | Call | Steps | Filled | Line


@dataclass(frozen=True)
class Ask:
    """A request of the engine for permission to do a call.

    `id` is the engine's id of the request, a number or a text. `options` has the ids of the possible answers by their
    kind, such as `allow_once`.
    """

    id: Any
    call: Call
    options: dict[str, str]


@dataclass(frozen=True)
class Ended:
    """The end of a turn.

    `reason` is the protocol's word for it, such as `end_turn`; `tokens` is None if the engine does not tell them.
    """

    reason: str
    tokens: Tokens | None


_JUST_NOW = timedelta(hours=1)
_OF_LAST_YEAR = timedelta(days=180)

_SILENT = frozenset({
    "available_commands_update", "session_info_update", "current_mode_update", "config_option_update",
})  # fmt: skip
"""Kinds of updates that are ignored."""

_STATUSES = frozenset({"pending", "in_progress", "completed"})

OVER = frozenset({"completed", "failed"})
"""The values of `Call.status` of a call that has ended."""


def _text(value: Any) -> str:  # noqa: ANN401  any JSON value
    return value if isinstance(value, str) else ""


def _object(value: Any) -> Json:  # noqa: ANN401
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:  # noqa: ANN401
    return value if isinstance(value, list) else []


def _count(value: Any) -> int | None:  # noqa: ANN401
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _amount(value: Any) -> float | None:  # noqa: ANN401
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and 0 <= value < float("inf") else None


def pruned(value: Any, levels: int = MAX_DEPTH) -> Any:  # noqa: ANN401
    """Return a JSON value that can be stored: what is nested deeper than `levels` is replaced by a text."""
    if isinstance(value, dict):
        return {key: pruned(each, levels - 1) for key, each in value.items()} if levels else _TOO_DEEP
    if isinstance(value, list):
        return [pruned(each, levels - 1) for each in value] if levels else _TOO_DEEP
    return value


def read_update(update: Json) -> Update | None:
    """Return the content of a `session/update`; None for a kind that is ignored.

    What is not understood is returned as a `Line`.
    """
    kind = _text(update.get("sessionUpdate"))
    match kind:
        case "agent_message_chunk" | "agent_thought_chunk" | "user_message_chunk":
            content = _object(update.get("content"))
            if content.get("type") != "text":
                return Line(f"{kind} of the type {_text(content.get('type'))}")
            said: Literal["text", "thought", "note", "user"] = "text"
            if kind != "agent_message_chunk":
                said = "user" if kind == "user_message_chunk" else "thought"
            elif _object(_object(update.get("_meta")).get("claudeCode")).get("kind"):
                # The adapter's own words, which are no answer of the model: a notice, or a server of tools that did not
                # start.
                said = "note"
            return Said(said, _text(content.get("text")), _text(update.get("messageId")))
        case "tool_call" | "tool_call_update":
            return read_call(update) or Line(f"{kind} without an id")
        case "plan":
            steps = []
            for each in map(_object, _list(update.get("entries"))):
                if text := _text(each.get("content")):
                    status = _text(each.get("status"))
                    steps.append({"text": text, "status": status if status in _STATUSES else "pending"})
            return Steps(steps)
        case "usage_update":
            used, size = _count(update.get("used")), _count(update.get("size"))
            if used is None or size is None:
                return Line("usage_update without numbers")
            cost = _object(update.get("cost"))
            usd = _amount(cost.get("amount")) if cost.get("currency") == "USD" else None
            meta = _object(update.get("_meta"))
            limit = _object(meta.get("_claude/rateLimit"))
            resets = _amount(limit.get("resetsAt")) if limit.get("status") == "rejected" else None
            return Filled(used, size, usd, _text(meta.get("_claude/model")), resets)
    return None if kind in _SILENT else Line(f"{kind or 'an update without a kind'}")


_FENCED = re.compile(r"\A(`{3,})\w*\n(.*)\n\1\s*\Z", re.DOTALL)
"""A text that is all one block of code in Markdown: the form in which Claude Code tells the output of a call."""


def read_call(update: Json) -> Call | None:
    """Return the tool call in an update or a request for permission; None if it has no id."""
    ident = _text(update.get("toolCallId"))
    if not ident:
        return None
    meta, given = _object(update.get("_meta")), _object(update.get("rawInput"))
    named = _text(_object(meta.get("claudeCode")).get("toolName"))
    if meta.get("is_mcp_tool_call") is True:
        # How Codex tells it. Without that mark, the input is what the model wrote.
        named = f"{MCP_PREFIX}{_text(given.get('server'))}__{_text(given.get('tool'))}"
    parts = [_object(each) for each in _list(update.get("content"))]
    diffs = [each for each in parts if each.get("type") == "diff" and _text(each.get("path"))]
    diff = diffs[0] if diffs else None
    kind = _text(update.get("kind"))
    if len({each["path"] for each in diffs}) > 1:
        # A rule about one file, or a yes to one, would hold for the others.
        kind, diff, given = "edit_files", None, {"files": diffs}
    texts = [_text(_object(each.get("content")).get("text")) for each in parts if each.get("type") == "content"]
    output, raw = "\n".join(_FENCED.sub(r"\2", each) for each in texts if each), update.get("rawOutput")
    if not output and raw is not None:
        output = raw if isinstance(raw, str) else json.dumps(raw, ensure_ascii=False)
    return Call(
        ident, _text(update.get("name")) or named, _text(update.get("title")), kind,
        _text(update.get("status")), given, output,
        (diff["path"], _text(diff.get("oldText")), _text(diff.get("newText"))) if diff is not None else None,
        # How Codex tells it, which has no other output.
        _text(_object(meta.get("terminal_output_delta")).get("data")),
    )  # fmt: skip


_RESETS = re.compile(
    r"(?:resets|try again)(?: at| on)? "
    r"(?:(?P<month>[a-z]{3})[a-z]* (?P<day>\d{1,2})(?:st|nd|rd|th)?,?(?: (?P<year>\d{4}),?)?(?: at)? )?"
    r"(?P<hour>\d{1,2})(?::(?P<minute>\d\d))? ?(?P<half>[ap]m)(?: \((?P<zone>[\w/+-]+)\))?",
    re.IGNORECASE,
)
"""The end of a limit in texts of Claude Code and Codex: a time of day, after a date if that is not today."""

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")


def read_reset(text: str, now: float) -> float | None:
    """Return when a usage limit ends, in epoch seconds, as the `text` of an error says; None if it does not.

    The text leaves out the seconds, so the end of its minute is returned. `now` is in epoch seconds, too.
    """
    found = _RESETS.search(text)
    if found is None:
        return None
    try:
        zone = zoneinfo.ZoneInfo(found["zone"]) if found["zone"] else None
        here = datetime.fromtimestamp(now, zone)
        hour = int(found["hour"]) % 12 + (12 if found["half"].lower() == "pm" else 0)
        at = here.replace(hour=hour, minute=int(found["minute"] or 0), second=0, microsecond=0)
        if found["month"]:
            month = _MONTHS.index(found["month"].lower()) + 1
            at = at.replace(year=int(found["year"] or here.year), month=month, day=int(found["day"]))
            # In December it may name a day of January.
            is_of_next_year = not found["year"] and here - at > _OF_LAST_YEAR
            return (at.replace(year=at.year + 1) if is_of_next_year else at).timestamp() + 60
        # One that was over just now ends no later.
        return (at + timedelta(days=1) if here - at > _JUST_NOW else at).timestamp() + 60
    except (ValueError, OverflowError, OSError, zoneinfo.ZoneInfoNotFoundError):
        return None


def read_tokens(result: Json) -> Tokens | None:
    """Return the tokens of a turn from the result of its prompt; None if the engine does not tell them."""
    usage = _object(result.get("usage"))
    given, written = _count(usage.get("inputTokens")), _count(usage.get("outputTokens"))
    if given is None or written is None:
        counted = _object(_object(_object(result.get("_meta")).get("quota")).get("token_count"))
        given, written = _count(counted.get("input_tokens")), _count(counted.get("output_tokens"))
    if given is None or written is None:
        return None
    return Tokens(
        input=given, output=written, cache_read=_count(usage.get("cachedReadTokens")) or 0,
        cache_write=_count(usage.get("cachedWriteTokens")) or 0,
    )  # fmt: skip


class Engine:
    """The connection to a running engine, with one session."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._last_id = 0
        self._waiting: dict[int, asyncio.Future[Json]] = {}
        self.news: asyncio.Queue[Any] = asyncio.Queue()
        """The updates and requests of the engine (`Update`, `Ask`), in order, and what the owner adds, such as calls of
        tools of the team. When `request` returns, all that the engine sent before its answer is here."""
        self._asked: list[Ask] = []
        """The requests for permission that are not answered, withdrawn or given up."""
        self.session = ""
        self.name = ""
        self.version = ""
        self.loads = False
        """True if the engine can load a session again."""
        self.steers = False
        """True if the engine takes a message in the middle of a turn."""
        self._reading = asyncio.ensure_future(self._read())

    async def close(self) -> None:
        """Close the streams. Requests that still wait for an answer fail with EngineGoneError."""
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    async def initialize(self) -> None:
        """Agree on the protocol, and learn what the engine can do.

        Raises:
            EngineError: The engine speaks another version, or refuses.
            EngineGoneError: The engine ended.
        """
        # Neither files nor terminals: its tools work in its own sandbox, where the kernel holds them.
        able = {"fs": {"readTextFile": False, "writeTextFile": False}, "terminal": False}
        client = {"name": "crewboard", "title": "crewboard", "version": metadata.version("crewboard")}
        found = await self.request(
            "initialize", {"protocolVersion": VERSION, "clientCapabilities": able, "clientInfo": client}
        )
        if found.get("protocolVersion") != VERSION:
            raise EngineError(f"it speaks version {found.get('protocolVersion')} of the protocol, not {VERSION}")
        about = _object(found.get("agentInfo"))
        self.name, self.version = _text(about.get("name")), _text(about.get("version"))
        self.loads = _object(found.get("agentCapabilities")).get("loadSession") is True
        self.steers = _object(_object(found.get("_meta")).get("steering")).get("supported") is True

    async def new(self, cwd: Path, servers: list[Json], meta: Json | None = None) -> None:
        """Begin a session in the folder `cwd`, with these MCP servers. `meta` are settings for this kind of engine.

        Raises:
            EngineError: The engine refuses, or its session has no id.
            EngineGoneError: The engine ended.
        """
        more = {"_meta": meta} if meta else {}
        found = await self.request("session/new", {"cwd": str(cwd), "mcpServers": servers, **more})
        self.session = _text(found.get("sessionId"))
        if not self.session:
            raise EngineError("its new session has no id")

    async def load(self, session: str, cwd: Path, servers: list[Json], meta: Json | None = None) -> None:
        """Load a session again by its id, with arguments as for `new`. Its conversation is in `news` when this returns.

        Raises:
            EngineError: The engine refuses.
            EngineGoneError: The engine ended.
        """
        self.session, more = session, {"_meta": meta} if meta else {}
        params = {"sessionId": session, "cwd": str(cwd), "mcpServers": servers, **more}
        await self.request("session/load", params)

    async def set(self, method: str, params: Json) -> None:
        """Change a setting of the session, such as its mode, by a `method` of the protocol.

        Raises:
            EngineError: The engine refuses.
            EngineGoneError: The engine ended.
        """
        await self.request(method, {"sessionId": self.session, **params})

    async def prompt(self, text: str) -> Ended:
        """Begin a turn with a text, and return how it ended, once it has.

        Raises:
            EngineError: The turn failed.
            EngineGoneError: The engine ended.
        """
        found = await self.request("session/prompt", self._prompt(text))
        return Ended(_text(found.get("stopReason")) or "end_turn", read_tokens(found))

    async def steer(self, text: str) -> bool:
        """Send a text into the turn in progress. Return False if no turn is, so that the text must be sent as a prompt.

        Raises:
            EngineError: The engine refuses.
            EngineGoneError: The engine ended.
        """
        idle = {"steering": {"idleBehavior": "promptRequired"}}
        found = await self.request("_session/steering", {**self._prompt(text), "_meta": idle})
        return found.get("outcome") != "promptRequired"

    def _prompt(self, text: str) -> Json:
        return {"sessionId": self.session, "prompt": [{"type": "text", "text": text}]}

    def cancel(self) -> None:
        """Ask the engine to end the turn in progress, so that `prompt` returns. Cancel its requests for permission."""
        for ask in [*self._asked]:
            self._give_up(ask)
        self._send({"method": "session/cancel", "params": {"sessionId": self.session}})

    def _give_up(self, ask: Ask) -> None:
        self._asked.remove(ask)
        self._send({"id": ask.id, "result": {"outcome": {"outcome": "cancelled"}}})

    async def request(self, method: str, params: Json) -> Json:
        """Send a request to the engine, and return its result.

        Raises:
            EngineError: The engine answered with an error.
            EngineGoneError: The engine ended first.
        """
        self._last_id = ident = self._last_id + 1
        waiting = self._waiting[ident] = asyncio.get_running_loop().create_future()
        try:
            if self._reading.done():
                raise EngineGoneError("the engine has ended")
            self._send({"id": ident, "method": method, "params": params})
            result: Json = await waiting
            return result
        finally:
            del self._waiting[ident]

    def _send(self, message: Json) -> None:
        # An engine that has ended is noticed by the reader.
        with contextlib.suppress(OSError):
            self._writer.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    async def _read(self) -> None:
        why = "the engine has ended"
        try:
            while line := await self._reader.readline():
                self._take(line)
        except OSError as error:
            why = f"the connection to the engine failed: {error}"
        except ValueError:
            why = f"the engine sent a line of more than {LONGEST_LINE >> 20} MiB"
        finally:
            for waiting in self._waiting.values():
                if not waiting.done():
                    waiting.set_exception(EngineGoneError(why))

    def _take(self, line: bytes) -> None:
        """Handle one line of the engine. It is no error if it cannot be read: it becomes a `Line`."""
        try:
            message = pruned(json.loads(line, parse_constant=lambda _: None))
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict):
            if text := line.decode("utf-8", "replace").strip():
                self.news.put_nowait(Line(text[:_MOST_SHOWN]))
        elif "method" not in message:
            self._settle(message)
        elif "id" in message:
            self._take_request(message)
        elif message["method"] == "session/update":
            params = _object(message.get("params"))
            if self.session and params.get("sessionId") != self.session:
                return
            if (update := read_update(_object(params.get("update")))) is not None:
                if isinstance(update, Call) and update.status in OVER:
                    # One that has ended waits for no permission, whether or not that was withdrawn.
                    for ask in [each for each in self._asked if each.call.id == update.id]:
                        self._give_up(ask)
                self.news.put_nowait(update)
        elif message["method"] == "$/cancel_request":
            ident = _object(message.get("params")).get("requestId")
            for ask in [each for each in self._asked if each.id == ident]:
                self._give_up(ask)
                self.news.put_nowait(Call(ask.call.id, status="failed", output="the engine withdrew its question"))
        # Other notifications are extensions, which no client has to know.

    def _settle(self, message: Json) -> None:
        ident = _count(message.get("id"))
        waiting = self._waiting.get(ident) if ident is not None else None
        if waiting is None or waiting.done():
            return
        error = message.get("error")
        if error is not None:
            data = _object(_object(error).get("data"))
            said = [_text(_object(error).get("message")), _text(data.get("details")) or _text(data.get("message"))]
            code = _object(error).get("code")
            text = ": ".join(filter(None, said)) or json.dumps(error)
            # As Claude Code and Codex name it.
            kind = _text(data.get("errorKind")) or _text(data.get("codexErrorInfo"))
            waiting.set_exception(EngineError(text, code if isinstance(code, int) else 0, kind))
        else:
            waiting.set_result(_object(message.get("result")))

    def _take_request(self, message: Json) -> None:
        params = _object(message.get("params"))
        call = read_call(_object(params.get("toolCall")))
        if message["method"] != "session/request_permission" or call is None:
            error = {"code": _NOT_FOUND, "message": f"crewboard has no method {message['method']}"}
            self._send({"id": message["id"], "error": error})
            return
        options: dict[str, str] = {}
        for each in map(_object, _list(params.get("options"))):
            if _text(each.get("optionId")):
                options.setdefault(_text(each.get("kind")), each["optionId"])
        ask = Ask(message["id"], call, options)
        self._asked.append(ask)
        self.news.put_nowait(ask)

    @property
    def asks(self) -> bool:
        """Return True if the engine waits for the answer to a request for permission."""
        return bool(self._asked)

    def waits_for(self, ask: Ask) -> bool:
        """Return True if a request for permission still needs an answer: it is not answered, withdrawn or given up."""
        return ask in self._asked

    def answer(self, ask: Ask, *, allow: bool) -> bool:
        """Answer a request for permission: allow it for this one time only, or refuse it.

        Return False if `allow` was given, but the engine offers no answer that allows it once, so that it was refused.
        A request that needs no answer any more is left alone, and True is returned.
        """
        if ask not in self._asked:
            return True
        self._asked.remove(ask)
        chosen = ask.options.get("allow_once" if allow else "reject_once")
        outcome = {"outcome": "selected", "optionId": chosen} if chosen is not None else {"outcome": "cancelled"}
        self._send({"id": ask.id, "result": {"outcome": outcome}})
        return chosen is not None or not allow
