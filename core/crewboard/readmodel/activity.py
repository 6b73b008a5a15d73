"""The activity of an agent: its journal events in words, for panes, logs and feeds, and its last minutes as a lane."""

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from typing import Any, Literal, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from crewboard import engines, web
from crewboard.protocol import requests
from crewboard.readmodel.mail import describe_message, display_name
from crewboard.readmodel.team import OFFLINE_MODEL, AgentView
from crewboard.records.agents import State
from crewboard.records.events import (
    Answer,
    BrokenReply,
    Cleared,
    EngineSession,
    Event,
    FileKept,
    Gate,
    Intake,
    Offered,
    Opening,
    Reply,
    Retry,
    RunEnded,
    RunStarted,
    Sent,
    SnapshotTaken,
    Summary,
    Taken,
    ToolResult,
    ToolStart,
    describe_call,
    describe_stop,
)
from crewboard.records.messages import Message
from crewboard.records.processes import EXIT_REASONS, ORDERLY_REASONS, Exit, describe_exit, is_orderly
from crewboard.records.team import Task
from crewboard.store.journal import JournalTail
from crewboard.store.layout import AgentDirectory
from crewboard.untrusted import elide_middle

TAIL = 256 * 1024
_MOST = 500
MOST_TEXT = 512 * 1024
"""Most characters of all lines of an agent that are kept."""
_MOST_DETAIL = 8000
"""Most characters of the input or output of a tool call that are kept; the journal has all of it."""

_SAME_TIME = 5.0
"""Seconds before the failure of a task within which the end of an assignment is taken for its reason."""

_ENDS = ("answer", "error")

_TOLD_BY_ANSWER = frozenset({"result", "error", "idle_notification"})
"""Types of mail that say nothing beyond the answer that is shown before it."""


class Activity(Struct, frozen=True):
    """One line of activity: when, of what kind, its text, and how many seconds it took; None if that is not known.

    Kinds are `start mail think say tool done block stop gate answer error sent retry room end died`.

    `call` is the id of a tool call, the same for its start and its result, and `tool` the name of the tool. `detail` is
    an excerpt of the input or output of the call or, for a text of the model, its sources. `is_error` marks the result
    of a call that failed, or whose command did. `fails_task` is the id of the task that a call marks as failed.
    """

    ts: float
    kind: str
    text: str
    seconds: float | None = None
    call: str = ""
    detail: str = ""
    tool: str = ""
    is_error: bool = False
    fails_task: int | None = None

    @property
    def characters(self) -> int:
        """Return the number of characters of text and detail."""
        return len(self.text) + len(self.detail)


def describe(event: Event, void: Callable[[Message], str | None] = lambda _: None) -> list[Activity]:
    """Return the lines for an event; empty if it is not shown.

    `void` returns why a message decides nothing (`requests.judge_effect`); None if it does, or is no response.
    """
    if isinstance(event, Intake):
        read = [(event.prompt_from, event.prompt)] if event.prompt else []
        for letter in event.messages:
            why = void(letter)
            read.append((letter.from_, describe_message(letter) + (f"\nchanges nothing: {why}" if why else "")))
        return [Activity(event.ts, "mail", f"{display_name(author)}: {text}") for author, text in read]
    if isinstance(event, Reply):
        return _describe_reply(event)
    if (words := _words(event)) is None:
        return []
    line = Activity(event.ts, *words)
    if isinstance(event, RunStarted) and event.before is not None:
        return [describe_end(event.before), line]
    if isinstance(event, ToolStart):
        detail = elide_middle(_format_input(event.input), _MOST_DETAIL)
        task = str(event.input.get("task_id"))
        fails = event.name == "task_update" and event.input.get("status") == "failed" and task.isdecimal()
        fails_task = int(task) if fails else None
        return [replace(line, call=event.tool_use_id, detail=detail, tool=event.name, fails_task=fails_task)]
    if isinstance(event, ToolResult):
        detail, is_error = elide_middle(event.content, _MOST_DETAIL), event.is_error or bool(event.exit_code)
        call = event.tool_use_id
        return [replace(line, seconds=event.seconds, call=call, detail=detail, tool=event.name, is_error=is_error)]
    return [line]


def describe_end(record: Exit) -> Activity:
    """Return the line for the end of a run that could not journal its own end."""
    kind = "end" if record.reason in ORDERLY_REASONS else "died"
    return Activity(record.at, kind, f"{describe_exit(record)}, run {record.run}")


def _words(event: Event) -> tuple[str, str] | None:  # noqa: PLR0911  one line for each kind of event
    """Return kind and text of the line for an event; None if it has no line, or more than one."""
    match event:
        case RunStarted():
            pid = f", pid {event.pid}" if event.pid else ""
            return "start", f"run {event.run}{pid}, {OFFLINE_MODEL if event.offline else event.model}"
        case BrokenReply():
            return "stop", _describe_broken(event)
        case ToolStart():
            return "tool", describe_call(event.name, event.input) + (" · not in its plan" if event.deviates else "")
        case ToolResult():
            return "done", f"{event.name} {_summarise_result(event)}"
        case Gate():
            return "gate", _describe_gate(event)
        case Answer():
            return ("error", event.error) if event.error is not None else ("answer", event.text)
        case Sent():
            return "sent", f"→ {display_name(event.message.to)}: {describe_message(event.message)}"
        case Retry():
            return "retry", f"attempt {event.attempt}: {event.error}"
        case Cleared():
            why = "; ".join(dict.fromkeys(event.media.values()))
            return (
                "room",
                f"left out {len(event.tool_use_ids)} old tool results" if not why else f"left out media: {why}",
            )
        case Summary():
            return "room", f"summarised {event.covers} blocks"
        case EngineSession():
            begun = "goes on with its session" if event.loaded else "begins a session"
            return "start", f"{engines.title_of(event.engine, event.version) or 'the engine'} {begun}"
        case RunEnded():
            return "end", f"{EXIT_REASONS.get(event.reason, event.reason)}, code {event.code}"
        # The view of changes shows what a snapshot is for, and the call itself what a kept file is for. What requests
        # begin with is for the model, and which texts an engine has is shown as the mail itself.
        case Intake() | Reply() | Opening() | SnapshotTaken() | FileKept() | Offered() | Taken():
            return None


def _describe_reply(event: Reply) -> list[Activity]:
    lines: list[Activity] = []
    for block in event.content:
        # Calls of our own tools have events of their own.
        if block.get("type") == "tool_use":
            continue
        line = _describe_block(event, block)
        if line.kind == "say" and block.get("citations"):
            pages = [each for each in event.content if each.get("type") != "text"]
            line = replace(line, detail="\n".join(web.sources([*pages, block])))
        before = lines[-1] if lines else None
        if before is not None and before.kind == line.kind == "say":
            # A text with sources comes in pieces.
            sources = "\n".join(dict.fromkeys(filter(None, f"{before.detail}\n{line.detail}".splitlines())))
            lines[-1] = replace(before, text=before.text + line.text, detail=sources)
        else:
            lines.append(line)
    is_silent = not any(each.get("type") == "tool_use" or str(each.get("text", "")).strip() for each in event.content)
    why = describe_stop(event) or ("ended its turn without text" if is_silent else "")
    # The answer says a refusal.
    return [*lines, Activity(event.ts, "stop", why)] if why and event.stop_reason != "refusal" else lines


def _describe_block(event: Reply, block: dict[str, Any]) -> Activity:
    """Return the line for one block of a reply."""
    kind = str(block.get("type"))
    if kind == "text":
        return Activity(event.ts, "say", str(block.get("text", "")), event.seconds)
    if kind == "thinking":
        text = str(block.get("thinking", "")).strip() or "(the API does not show it)"
        return Activity(event.ts, "think", text, event.seconds)
    if kind == "redacted_thinking":
        return Activity(event.ts, "think", "(encrypted by the API)", event.seconds)
    detail = elide_middle(_format_input({key: value for key, value in block.items() if key != "type"}), _MOST_DETAIL)
    if kind == "server_tool_use":
        name, given = str(block.get("name")), block.get("input")
        given = given if isinstance(given, dict) else {}
        text = web.describe_use(name, given) or f"{describe_call(name, given)} (in the API)"
        return Activity(event.ts, "tool", text, call=str(block.get("id")), detail=detail, tool=name)
    if "tool_use_id" in block:
        found = block.get("content")
        error = found.get("error_code") if isinstance(found, dict) else None
        said = f"failed: {error}" if error else "done"
        if (on_the_web := web.describe_result(block)) is not None:
            said, detail = on_the_web[0], elide_middle(on_the_web[1], _MOST_DETAIL)
        text = f"{kind.removesuffix('_tool_result')} {said}"
        return Activity(event.ts, "done", text, None, str(block["tool_use_id"]), detail, is_error=bool(error))
    return Activity(event.ts, "block", f"a block of the type {kind}, which is kept as it is", detail=detail)


def _format_input(arguments: dict[str, Any]) -> str:
    """Return the whole input of a tool call, one argument after the other; long values begin on a new line."""
    values = ((name, str(value)) for name, value in arguments.items())
    return "\n".join(f"{name}:" + ("\n" if "\n" in text else " ") + text for name, text in values)


def _describe_broken(event: BrokenReply) -> str:
    if event.usage.untold:
        return "a turn ended early, so its tokens were not told"
    tokens = f"{event.usage.total} tokens"
    match event.turn:
        case "early":
            return f"a turn ended early, after {tokens}"
        case "after":
            return f"replies that ended after their turn: {tokens}"
    return f"a reply broke off, and is not used: {tokens}"


def _describe_gate(event: Gate) -> str:
    if not event.open:
        return "closed: reads only, until its plan is approved"
    if event.terms is None or event.terms.given.is_empty:
        return "open: may write and run commands"
    # Imported here because few plans have terms.
    from crewboard.agent_types import describe_terms

    return f"open until its result, with terms: {describe_terms(event.terms.given, None)}"


def _summarise_result(event: ToolResult) -> str:
    """Return the result of a tool in a few words: the number of lines that it read, else the last line."""
    # Lines of a file begin with their numbers, and notes such as where to go on follow them.
    content = event.content.partition("\n[")[0] if event.name == "read_file" else event.content
    # As the file tools count, which show other line breaks, such as a form feed, within a line.
    lines = content.removesuffix("\n").count("\n") + bool(content)
    if event.is_error:
        return f"failed: {_last_line(event.content)}"
    from crewboard.agent_types import READ_TOOLS

    return f"{lines} lines" if event.name in READ_TOOLS and lines != 1 else _last_line(content)


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


class ActivityReader:
    """A reader of the end of an agent's journal. It adds how the last run ended, if the journal does not say.

    It keeps the newest 500 lines, or fewer if they have more than `MOST_TEXT` characters together.
    """

    def __init__(self, agent: AgentDirectory) -> None:
        self.agent = agent
        self.lines: deque[Activity] = deque()
        self._characters = 0
        self._forgotten = 0
        self._is_cut = False
        self._answer: tuple[Activity, ...] = ()
        self._record: Exit | None = None
        self._run = 0
        self._ended = False
        self._exit = agent.exit.watch()
        self._tail = JournalTail(agent.journal, TAIL)

    def read(self) -> tuple[Activity, ...]:
        """Return the lines, the newest last; the same tuple object while nothing changes."""
        # Read before the journal, to which a worker writes first how it ends.
        record = self._exit.get()
        changed = record is not self._record
        self._record = record
        if self._tail.restarted():
            self.lines.clear()
            self._characters, self._run, self._forgotten, self._is_cut, changed = 0, 0, 0, False, True
        void = requests.judge_effect(self.agent.team)
        for event in self._tail.read_new():
            self._run, self._ended, changed = event.run, isinstance(event, RunEnded), True
            for line in describe(event, void):
                # An answer is one line: without the same text from the model, and without the mail about it.
                if isinstance(event, Sent) and event.message.type in _TOLD_BY_ANSWER:
                    continue
                added, last = line, self.lines[-1] if self.lines else None
                is_answer = last is not None and (last.kind, line.kind) == ("say", "answer")
                if last is not None and is_answer and web.repeats(line.text, last.text):
                    # Parts before the last one, of a reply that was continued or that used the web, are lines above.
                    self._characters -= last.characters
                    self.lines.pop()
                    added = replace(last, kind="answer", ts=line.ts)
                self.lines.append(added)
                self._characters += added.characters
                while len(self.lines) > 1 and (len(self.lines) > _MOST or self._characters > MOST_TEXT):
                    self._characters -= self.lines.popleft().characters
                    self._is_cut = True
        if changed:
            # The end of the journal's last run, or of a later one that wrote nothing to it.
            is_told = record is None or record.run < self._run or (record.run == self._run and self._ended)
            self._answer = (*self.lines, *([] if record is None or is_told else [describe_end(record)]))
        return self._answer

    def forget_before(self, moment: float) -> tuple[Activity, ...]:
        """Drop the lines at the beginning that are older than `moment` (epoch seconds), and return the others."""
        before = len(self.lines)
        while self.lines and self.lines[0].ts < moment:
            self._characters -= self.lines.popleft().characters
        if len(self.lines) < before:
            self._forgotten += before - len(self.lines)
            self._answer = self._answer[before - len(self.lines) :]
        return self._answer

    @property
    def has_older(self) -> bool:
        """Return True if the journal has lines before those that are kept, so that only the journal has all."""
        return self._is_cut or not self._tail.whole

    @property
    def forgotten(self) -> int:
        """Return how many of the dropped lines a new reader would read again."""
        return min(self._forgotten, _MOST - len(self.lines))


def why_failed(task: Task, activity: Sequence[Activity]) -> str | None:
    """Return why a task failed, in its owner's words; None if the owner's `activity` does not say.

    The reason is the end of the assignment after the call that marked the task as failed, else the text that came with
    that call. Without such a call, it is the end of an assignment a few seconds before the failure.
    """
    at = max((at for at, what in enumerate(activity) if what.fails_task == task.id), default=None)
    if at is None:
        last = next((what for what in reversed(activity) if what.ts <= task.updated_at), None)
        ends_with_task = last is not None and last.kind in _ENDS and task.updated_at - last.ts < _SAME_TIME
        return last.text if last is not None and ends_with_task else None
    # How the assignment ended, unless it goes on, or the run was over first.
    rest_of_run = takewhile(lambda what: what.kind != "start", activity[at + 1 :])
    said_after = next((what.text for what in rest_of_run if what.kind in _ENDS), None)
    # Text in front of another call was about that call.
    return said_after or (activity[at - 1].text if at > 0 and activity[at - 1].kind == "say" else None)


SLOT = 30.0
"""Seconds that one cell of a lane stands for."""

SLOTS = 30
"""The number of cells of the widest lane."""

_FULL = 16
"""Work in a slot, in tool calls and replies, from which on its bar is full. Tokens count as well."""

_TOKENS_LIKE_A_CALL = 300
"""How many tokens of a model's output count as much as one tool call."""

LANE_TAIL = 64 * 1024
"""Bytes at the end of a journal that are read for the slots of a lane."""

_KEPT_SLOTS = SLOTS + 8
"""Most slots with events that are kept: all that a lane can show, and one that says how its first cells begin."""

_KEPT_PAUSES = 8
"""Most pauses that a lane shows; in place of earlier ones it may show that the agent was at work."""

CellKind = Literal["work", "works", "stuck", "asks", "waits", "rests", "died", "none"]
"""What an agent did in a slot. `work`: it worked; `works`: it was at work and nothing ended; `stuck`: stuck, or held in
a loop; `asks`: it waited for the operator; `waits`: it waited for others or the API; `rests`: idle; `died`; `none`: it
did not run, or nothing is known.
"""

_RUNS_ON: Mapping[State, CellKind] = {
    "starting": "works", "working": "works", "stuck": "stuck", "looping": "works", "stopping": "works",
    "waiting": "waits", "retrying": "waits", "idle": "rests", "paused": "rests",
}  # fmt: skip
"""The kind of the slots since a living agent has had a state; for other states it is `none`."""


class Cell(NamedTuple):
    """One slot of a lane. `level` is the filled part of its bar, from 0 to 1; it is 0 except for the kind `work`."""

    kind: CellKind
    level: float = 0


class Slot(Struct, frozen=True):
    """The events of one slot: how much work they are, the kind of cell after them, and whether a run died in it.

    `after` is None if the events do not say.
    """

    work: float = 0
    after: CellKind | None = None
    died: bool = False


class Lane(Struct, frozen=True):
    """The last minutes of an agent: slots by number (epoch seconds divided by `SLOT`), waits and pauses.

    `asks` are the beginning and end of each wait for an answer, with True if it was for the operator; `pauses` are the
    beginning and end of each pause.
    """

    slots: dict[int, Slot] = {}
    asks: tuple[tuple[float, float, bool], ...] = ()
    pauses: tuple[tuple[float, float], ...] = ()

    def cells(self, agent: AgentView, last: int, count: int) -> tuple[Cell, ...]:
        """Return the cells of `count` slots, the last one of which has the number `last`."""
        first = last - count + 1
        runs_on: CellKind = "stuck" if agent.is_held else _RUNS_ON.get(agent.state, "none")
        since, state = int(agent.since // SLOT), runs_on if agent.alive else "none"
        died = since if agent.is_dead and not agent.alive else None
        earlier = [slot.after for at, slot in sorted(self.slots.items()) if at < first and slot.after is not None]
        kind: CellKind = earlier[-1] if earlier else "none"
        cells = []
        for at in range(first, last + 1):
            slot = self.slots.get(at, Slot())
            kind = slot.after or kind
            if at >= since:
                kind = state
            if slot.died or at == died:
                cells.append(Cell("died"))
            elif slot.work:
                # By the root, because one call must be told from none, and eight from four.
                cells.append(Cell("work", math.sqrt(min(1.0, slot.work / _FULL))))
            else:
                begin, end = at * SLOT, (at + 1) * SLOT
                waits = [for_you for since, until, for_you in self.asks if since < end and until > begin]
                if waits and kind != "none":
                    # Only for others, or for you as well.
                    kind = "asks" if any(waits) else "waits"
                paused = not waits and any(since < end <= until for since, until in self.pauses)
                cells.append(Cell("rests" if paused and kind != "none" else kind))
        return tuple(cells)


class LaneReader:
    """A reader of the work of an agent in each slot, from the end of its journal; it keeps `_KEPT_SLOTS` slots."""

    def __init__(self, agent: AgentDirectory) -> None:
        self._tail = JournalTail(agent.journal, LANE_TAIL)
        self._slots: dict[int, Slot] = {}
        self._open_run = 0
        """The first run of which the journal does not have the end."""
        self._pauses: tuple[tuple[float, float], ...] = ()
        self._read_for: object = None
        self._lane = Lane()

    def read(self, view: AgentView, asks: tuple[tuple[float, float, bool], ...]) -> Lane:
        """Return the lane of an agent; the same object while nothing changes. `asks` are as in `Lane`.

        The journal is read only if the agent's status has changed: a worker writes both, the journal first.
        """
        said = view.status
        status = (view.run, view.alive, view.state, view.since, said.turn, view.doing, said.last_tool, said.tokens)
        if status != self._read_for:
            self._read_for = status
            if self._tail.restarted():
                self._slots, self._open_run = {}, 0
            for event in self._tail.read_new():
                if isinstance(event, RunStarted) and event.before is not None:
                    self._put_end(event.before)
                self._put(event.ts, *_told_by(event))
                self._open_run = event.run + isinstance(event, RunEnded)
            # An end that a run could not journal itself is in the journal from the next start on, which may be queued.
            if view.exit is not None and view.exit.run >= self._open_run:
                self._put_end(view.exit)
            # The last pause is in no journal. A status that still says `paused` was left by a dead run.
            is_left = said.state == "paused" and not view.alive
            pause = (said.since, view.since) if is_left else (said.paused_at, said.unpaused_at)
            if pause[1] and pause not in self._pauses:
                self._pauses = (*self._pauses, pause)[-_KEPT_PAUSES:]
        if (self._slots, asks, self._pauses) != (self._lane.slots, self._lane.asks, self._lane.pauses):
            self._lane = Lane(dict(self._slots), asks, self._pauses)
        return self._lane

    def _put_end(self, record: Exit) -> None:
        self._put(record.at, after="none", died=not is_orderly(record))

    def _put(self, ts: float, work: float = 0, after: CellKind | None = None, *, died: bool = False) -> None:
        at = int(ts // SLOT)
        old = self._slots.get(at, Slot())
        self._slots[at] = Slot(old.work + work, after or old.after, old.died or died)
        while len(self._slots) > _KEPT_SLOTS:
            # Not the first: a clock may be set back.
            del self._slots[min(self._slots)]


def _told_by(event: Event) -> tuple[float, CellKind | None]:
    """Return how much work an event is, and the kind of cell after it; None if the event does not say."""
    match event:
        case Reply():
            return 1 + event.usage.output / _TOKENS_LIKE_A_CALL, "works"
        case ToolStart():
            return 1, "works"
        case Intake():
            # Mail that is only picked up, such as a notice to an idle agent, starts no work.
            is_work = event.assignment is not None or event.prompt is not None or bool(event.entered)
            return 0, "works" if is_work else None
        case ToolResult() | Offered():
            return 0, "works"
        case Retry():
            return 0, "waits"
        case RunStarted() | Answer():
            return 0, "rests"
        case RunEnded():
            return 0, "none"
        case _:
            return 0, None
