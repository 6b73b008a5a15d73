"""What an agent did, line by line, for peeks, logs and feeds: journal events in a person's words."""

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from crewboard.agent_types.builtin import READ_TOOLS
from crewboard.readmodel.journal_tail import ReplacedFileDetector
from crewboard.readmodel.wording import person, tell
from crewboard.records import (  # fmt: skip
    EXIT_REASONS,
    ORDERLY_REASONS,
    Answer,
    Cleared,
    Event,
    Exit,
    Gate,
    Intake,
    Reply,
    Retry,
    RunEnded,
    RunStarted,
    Sent,
    Summary,
    ToolResult,
    ToolStart,
    describe_call,
    describe_exit,
)
from crewboard.store import journal
from crewboard.store.json_files import CachedFile
from crewboard.store.layout import AgentDirectory
from crewboard.text import elide_middle

TAIL = 256 * 1024
_MOST = 500
_MOST_DETAIL = 8000
"""Characters kept of what a tool call was given or gave; the journal has all of it."""


@dataclass(frozen=True)
class Activity:
    """One line: when, of what kind, text, how long.

    Kinds are `start mail think say tool done gate answer error sent retry room end died`.

    `call` is the id of a tool call, the same for its start and its result, `tool` the name of the tool, and `detail` an
    excerpt of its input or output. `is_error` marks the result of a call that failed. `fails_task` is the id of the
    task that a call marks as failed.
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


def describe(event: Event) -> list[Activity]:
    """The lines that an event is worth."""
    if isinstance(event, Intake):
        return _describe_intake(event)
    if isinstance(event, Reply):
        return _describe_reply(event)
    if isinstance(event, RunStarted) and event.before is not None:
        return [describe_end(event.before), Activity(event.ts, *_words(event))]
    kind, text = _words(event)
    if isinstance(event, ToolStart):
        detail = elide_middle(_given(event.input), _MOST_DETAIL)
        return [
            Activity(
                event.ts,
                kind,
                text,
                call=event.tool_use_id,
                detail=detail,
                tool=event.name,
                fails_task=_failed_task(event),
            )
        ]
    if isinstance(event, ToolResult):
        detail = elide_middle(event.content, _MOST_DETAIL)
        return [
            Activity(
                event.ts, kind, text, event.seconds, event.tool_use_id, detail, tool=event.name,
                is_error=event.is_error,
            )
        ]  # fmt: skip
    return [Activity(event.ts, kind, text)]


def describe_end(record: Exit) -> Activity:
    """How a run ended that could not say so itself."""
    kind = "end" if record.reason in ORDERLY_REASONS else "died"
    return Activity(record.at, kind, f"{describe_exit(record)}, run {record.run}")


def _words(  # noqa: C901, PLR0911  one kind of event, one line
    event: RunStarted | ToolStart | ToolResult | Gate | Answer | Sent | Retry | Cleared | Summary | RunEnded,
) -> tuple[str, str]:
    match event:
        case RunStarted():
            return "start", f"run {event.run}, pid {event.pid}, {event.model}"
        case ToolStart():
            return "tool", describe_call(event.name, event.input)
        case ToolResult():
            return "done", f"{event.name} {_gist(event)}"
        case Gate():
            return "gate", "open: it may write and run" if event.open else "shut: it reads until its plan is approved"
        case Answer():
            return ("error", event.error) if event.error is not None else ("answer", event.text)
        case Sent():
            return "sent", f"→ {person(event.message.to)}: {tell(event.message)}"
        case Retry():
            return "retry", f"attempt {event.attempt}: {event.error}"
        case Cleared():
            return "room", f"left out {len(event.tool_use_ids)} old tool results"
        case Summary():
            return "room", f"summarised {event.covers} blocks"
        case RunEnded():
            return "end", f"{EXIT_REASONS.get(event.reason, event.reason)}, code {event.code}"


def _describe_intake(event: Intake) -> list[Activity]:
    prompt = [Activity(event.ts, "mail", f"{person(event.prompt_from)}: {event.prompt}")] if event.prompt else []
    mail = [Activity(event.ts, "mail", f"{person(letter.from_)}: {tell(letter)}") for letter in event.messages]
    return [*prompt, *mail]


def _describe_reply(event: Reply) -> list[Activity]:
    kinds = {"text": "say", "thinking": "think"}
    return [
        Activity(
            event.ts,
            kinds[block["type"]],
            str(block.get("text") or block.get("thinking") or ""),
            event.seconds,
        )
        for block in event.content
        if block.get("type") in kinds
    ]


def _given(arguments: dict[str, Any]) -> str:
    """Everything that a tool call was given, what is long on lines of its own."""
    given = ((name, str(value)) for name, value in arguments.items())
    return "\n".join(f"{name}:" + ("\n" if "\n" in text else " ") + text for name, text in given)


def _failed_task(event: ToolStart) -> int | None:
    """Return the id of the task that a call marks as failed."""
    if event.name != "task_update" or event.input.get("status") != "failed":
        return None
    task = str(event.input.get("task_id"))
    return int(task) if task.isdecimal() else None


def _gist(event: ToolResult) -> str:
    """What a tool gave, in a few words: how much, for one that only reads; else its last line."""
    lines = len(event.content.splitlines())
    if event.is_error:
        return f"failed: {_last_line(event.content)}"
    return f"{lines} lines" if event.name in READ_TOOLS and lines != 1 else _last_line(event.content)


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


@dataclass
class ActivityReader:
    """The end of an agent's journal, read forward, and how its last run ended if that is not in the journal."""

    agent: AgentDirectory
    lines: deque[Activity] = field(default_factory=lambda: deque(maxlen=_MOST))
    damaged: int = 0
    _offset: int = 0
    _run: int = 0
    _ended: bool = False
    _successor: ReplacedFileDetector = field(init=False)
    _exit: CachedFile[Exit] = field(init=False)

    def __post_init__(self) -> None:
        self._exit = CachedFile(self.agent.exit, Exit)
        self._successor = ReplacedFileDetector(self.agent.journal)
        self._offset = journal.tail_offset(self.agent.journal, TAIL)

    def read(self) -> list[Activity]:
        """The newest lines, newest last."""
        record = self._exit.get()  # before the journal, in which a worker says first how it ends
        if self._successor.came(self._offset):
            self.lines.clear()
            self.damaged, self._run, self._offset = 0, 0, journal.tail_offset(self.agent.journal, TAIL)
        for event, end in journal.read(self.agent.journal, self._offset):
            self._offset = end
            if event is None:
                self.damaged += 1
            else:
                self._run, self._ended = event.run, isinstance(event, RunEnded)
                self.lines.extend(describe(event))
        return [*self.lines, *self._untold(record)]

    def _untold(self, record: Exit | None) -> list[Activity]:
        """The end of the run that the journal was in, or of a later one that never came to write in it."""
        if record is None or record.run < self._run or (record.run == self._run and self._ended):
            return []
        return [describe_end(record)]
