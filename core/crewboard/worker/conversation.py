"""The conversation and everything else that a worker knows, as a projection of its journal.

Every event is first appended to the journal and then applied here. So a worker that was killed and resumed has the same
state as one that was not.
"""

import itertools
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from crewboard import media, web
from crewboard.agent_types import WRITE_TOOLS
from crewboard.names import SYSTEM
from crewboard.records.agents import Deviations, Terms, TermsInForce, TodoList, Tokens, Work  # fmt: skip
from crewboard.records.base import first_line
from crewboard.records.events import (
    CUT_OFF,
    NOT_RUN,
    Answer,
    BrokenReply,
    Cleared,
    EngineSession,
    Event,
    FileKept,
    Gate,
    Intake,
    Opening,
    Reply,
    RunEnded,
    RunStarted,
    Sent,
    Summary,
    Taken,
    ToolResult,
    ToolStart,
    describe_call,
)
from crewboard.records.messages import ASKS_FOR_REVIEW, Media, Message
from crewboard.redaction import redact
from crewboard.untrusted import delimit, delimit_data, elide_middle, undelimit

Block = dict[str, Any]
"""One content block of the Messages API."""

LOST = "(lost: the journal of this conversation is damaged here)"

CLEARED = "(left out to save room; call the tool again if you need it)"

_MOST_DEVIATIONS = 20
"""Number of calls beyond the plan that are listed, the newest; the journal has all."""

_MOST_FILES = 300
"""Number of files changed by file tools in one assignment that are listed, the newest."""

_MEDIA_CHARACTERS = 4
"""Characters that count for one token of an image or a document, rather too many than too few."""

_MOST_FOREIGN = 2000
"""Characters that a transcript has of a block of a tool that runs in the API: much of such a block is encrypted."""

_MOST_CALL = 200
"""Characters that are listed of a call beyond the plan."""

_LEAST_CLEARED = 500
"""Characters of a tool result below which its removal saves nothing."""

_ASKED_INPUT = {"submit_plan": "plan", "ask_operator": "question"}
"""Tools that ask a person, each with its input that has the question. A summary keeps question and answer."""


_POLLS = frozenset({"bash_output"})
"""Tools whose equal calls are no loop: their outcome may change without any action of the agent."""


def text_of(*replies: Reply) -> str:
    """Return the text of a reply, or of several that continue each other; a call of an API tool ends a paragraph."""
    text, ended = "", False
    for block in (block for reply in replies for block in reply.content):
        if block.get("type") == "text" and (more := str(block.get("text", ""))):
            text += ("\n\n" if ended and text and not text[-1].isspace() else "") + more
            ended = False
        ended = ended or block.get("type") not in _OWN_BLOCKS
    return text


def is_thinking(block: Block) -> bool:
    """Return True if a block holds the model's thinking, readable or not."""
    return block.get("type") in ("thinking", "redacted_thinking")


_OWN_BLOCKS = frozenset({"text", "thinking", "redacted_thinking", "tool_use"})
"""Types of blocks that the model writes itself. Other blocks of a reply are of tools that run in the API."""


_OF_API = _OWN_BLOCKS | {"fallback", "compaction", "container_upload"}
"""Types of blocks of a reply in the Messages API, apart from calls of tools and their results."""

_NEW_BLOCKS = frozenset({"text", "image", "document"})
"""Types of blocks of mail, which the model has not seen while they are the last entries."""


def _block_of(found: Media) -> Block:
    return media.block(found.name, found.type, found.sha256, found.tokens)


def _tools_in(block: Block) -> list[str]:
    """Return the names of the tools that a result of `find_tools` shows to the model; empty for any other block."""
    content = block.get("content")
    parts = content if block.get("type") == "tool_result" and isinstance(content, list) else []
    return [part["tool_name"] for part in parts if part["type"] == "tool_reference"]


_INSTRUCTS = "crewboard_instructs"
"""The key that marks a block as an instruction of crewboard, in `entries` only; it is not sent."""

_NO_TEXT: Block = {"type": "text", "text": ""}

_UNSIGNED = "crewboard_unsigned"
"""The key that marks thinking without a signature from a whole reply, in `entries` only; it is not sent."""


def _sent_back(blocks: list[Block], stale: int, *, ended: bool, unsigned: bool, hops: bool) -> list[Block]:
    """Return the blocks of a turn of the model that are sent back to the server, as they came but for citations.

    Left out is thinking in the first `stale` blocks, thinking that was cut off before its signature, and thinking at
    the end of the turn: the API refuses it. So is, if the turn has `ended`, a call of the API's own tools without a
    result, unless there is a call of a tool of crewboard. If `unsigned`, thinking of whole replies without a signature
    stays, because some servers send it so and want it back. `fallback` blocks stay only with `hops`.
    """
    blocks = [block if hops or block.get("type") != "fallback" else _NO_TEXT for block in blocks]
    sent = [
        {name: value for name, value in block.items() if name != _UNSIGNED}
        for place, block in enumerate(blocks)
        if (block is not _NO_TEXT and not is_thinking(block))
        or (place >= stale and (block.get("signature") or block.get("data")))
        or (unsigned and _UNSIGNED in block)
    ]
    if ended and not any(block.get("type") == "tool_use" for block in sent):
        waiting = _waiting_calls(sent)
        sent = [block for block in sent if block.get("id") not in waiting]
    while sent and (is_thinking(sent[-1]) or sent[-1].get("type") == "fallback"):
        sent.pop()
    for block in sent:
        if isinstance(cited := block.get("citations"), list):
            # The API sends a `file_id` in citations, but does not take it back.
            block["citations"] = [
                {k: v for k, v in each.items() if k != "file_id"} if isinstance(each, dict) else each for each in cited
            ]
    return sent


def _waiting_calls(blocks: Iterable[Block]) -> set[str]:
    """Return the ids of those calls of the API's own tools in a turn that have no result among its blocks."""
    blocks = list(blocks)
    done = {block.get("tool_use_id") for block in blocks}
    calls = {str(block.get("id")) for block in blocks if block.get("type") == "server_tool_use"}
    return calls - done


def _with_instructions(turns: list[dict[str, Any]], *, own: bool) -> list[dict[str, Any]]:
    """Return the turns with the instructions of crewboard at the end of their turns.

    If `own`, they are in messages of their own, of the role `system`. The API takes such a message only after one of
    the user, so a turn that has nothing else keeps its instructions.
    """
    found = []
    for turn in turns:
        told = [{k: v for k, v in each.items() if k != _INSTRUCTS} for each in turn["content"] if _INSTRUCTS in each]
        others = [block for block in turn["content"] if _INSTRUCTS not in block]
        if told and others and own:
            found += [{**turn, "content": others}, {"role": "system", "content": told}]
        else:
            found.append({**turn, "content": [*others, *told]})
    return found


def _restore_pairs(turns: list[dict[str, Any]]) -> None:
    """Change the turns so that the user begins, each call has one result in the next turn, and each result has a call.

    A line of the journal may be lost, and the API would then refuse all further requests of the agent. A missing
    result becomes an error; calls that come twice and results without a call are removed. The call of an API tool may
    be in an earlier turn than its result.
    """
    lost = {"type": "text", "text": LOST}
    if turns and turns[0]["role"] == "assistant":
        turns.insert(0, {"role": "user", "content": [dict(lost)]})
    seen: set[str] = set()
    called: set[str] = set()
    waiting: list[str] = []
    called_by_api: set[str] = set()
    for turn in turns:
        kept = []
        if turn["role"] == "user":
            given = {block["tool_use_id"] for block in turn["content"] if block.get("type") == "tool_result"}
            kept = [
                {"type": "tool_result", "tool_use_id": ident, "content": LOST, "is_error": True}
                for ident in waiting
                if ident not in given
            ]
            called, waiting = {*waiting}, []
        for block in turn["content"]:
            kind = str(block.get("type"))
            if kind == "tool_use":
                if block["id"] in seen:
                    continue
                seen.add(block["id"])
                waiting.append(block["id"])
            elif kind == "tool_result":
                if block["tool_use_id"] not in called:
                    continue
                called.discard(block["tool_use_id"])
            elif kind.endswith("_tool_use"):
                called_by_api.add(str(block.get("id")))
            elif "tool_use_id" in block and str(block["tool_use_id"]) not in called_by_api:
                continue
            kept.append(block)
        turn["content"] = kept or [dict(lost)]


@dataclass(frozen=True)
class ApprovedPlan:
    """An approved plan: the files and commands that it names, the `id` of its request, and when it opened the gate.

    `at` is in epoch seconds.
    """

    id: str
    at: float
    files: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()


@dataclass
class Assignment:
    """An assignment: in progress, held, or the one that ended last.

    `id` is the id of the prompt or mail that started it, or one that is made for a task or a reminder. `answers` are
    the ids of the prompt and all mail that its result answers.
    """

    id: str
    answers: list[str]
    asked_by: set[str]
    """The authors of the prompt and mail that ask for work in this assignment."""
    plan_wanted: bool = False
    """True if a message of this assignment asks for a plan, or the gate was closed, as by a rejected plan."""
    gate_open: bool = False
    """True if a plan of this assignment was approved, so that the agent may write and run commands."""
    calls: int = 0
    """Number of model calls so far."""
    cut_offs: int = 0
    """Replies in a row that were cut off without progress. A reply that is only a text, which goes on, is progress."""
    silent: int = 0
    """Replies in a row that had neither a text nor a call."""
    granted: int = 0
    """The value of `calls` at the last resume after a limit; the limit of calls counts from there."""
    continued: bool = False
    """True if the assignment was continued after a limit or bad credentials stopped it."""
    plans: int = 0
    """Plans submitted so far. Each revision is a request of its own."""
    plan: ApprovedPlan | None = None
    """The plan that opened the gate last; None if none did."""
    terms: TermsInForce | None = None
    """The terms of the last approval that set any, until the assignment ends; None without terms."""


_Apply = TypeVar("_Apply", bound=Callable[..., None])

_APPLY: dict[type[Event], Callable[[Any, Any], None]] = {}
"""The method that applies each kind of event; other kinds change nothing."""


def _applies(kind: type[Event]) -> Callable[[_Apply], _Apply]:
    """Return a decorator that registers a method as the one that applies events of a kind."""

    def register(method: _Apply) -> _Apply:
        _APPLY[kind] = method
        return method

    return register


@dataclass
class Conversation:
    """The state of an agent that its journal describes: the conversation, the mail, the assignment, the usage."""

    entries: list[tuple[str, Block]] = field(default_factory=list)
    """The conversation, as pairs of role and block, in order."""
    key: str = ""
    """The key of the marks around untrusted text, in this run."""
    opening: Opening | None = None
    """The system prompt, tools and preface with which requests begin; None if the next request needs new ones."""
    preface: dict[str, str] = field(default_factory=dict)
    """The delimited texts of the opening's preface by title, each as the model was told it last."""
    cursor: int = 0
    damaged: int = 0
    """Number of lines of the mailbox and the journal that could not be read."""
    known: set[str] = field(default_factory=set)
    """The ids of all mail that was ever picked up from the mailbox."""
    deferred: dict[str, Message] = field(default_factory=dict)
    """Mail that was picked up and enters the conversation later, by id, in the order of the mailbox."""
    prompts: set[str] = field(default_factory=set)
    assignment: Assignment | None = None
    held: Assignment | None = None
    """The assignment that a limit or bad credentials stopped, to be continued; None if there is none."""
    pause: float = 0
    """The longest wait around the last assignment, in seconds: since the answer before it, or for one of its calls."""
    pending: list[Block] = field(default_factory=list)
    """Tool calls of the last reply that have no result yet."""
    refused: dict[str, str] = field(default_factory=dict)
    """Why tool calls of the last reply must not be run, by id of the call."""
    started: dict[str, ToolStart] = field(default_factory=dict)
    """The calls that began and have no result, by id of the call."""
    call_ids: set[str] = field(default_factory=set)
    """The ids of all tool calls so far."""
    last_id: str = ""
    """The API's id of the last reply; empty if there is none, or if a summary has replaced entries since."""
    _ended: Assignment | None = None
    """The assignment that ended last; None before the first end."""
    unsent: Answer | None = None
    """The last answer, until the journal says that its mail was sent; None without one."""
    last_answer: Answer | None = None
    """The answer or error that ended the last assignment; None if none has ended."""
    answers: int = 0
    """Number of assignments that ended, with a result or an error, in all runs."""
    tokens: Tokens = field(default_factory=Tokens)
    cost_usd: float | None = None
    deviations: Deviations | None = None
    """The calls in the last assignment that its approved plan does not name; None if there are none."""
    todo: list[dict[str, str]] = field(default_factory=list)
    """The steps of the assignment as the agent listed them last, each with `text` and `status`."""
    work: Work | None = None
    """The files that file tools changed in the last assignment, and those that its plan names; None before any."""
    last_changes: dict[str, float] = field(default_factory=dict)
    """When file tools last changed each file, in epoch seconds, by path, in all assignments."""
    warned: bool = False
    """True if the model was warned, in this conversation, that a budget is nearly used up."""
    cleared: set[str] = field(default_factory=set)
    """The ids of the tool calls whose results are left out of requests."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Why images and documents are left out of requests, by SHA-256."""
    assignment_texts: list[str] = field(default_factory=list)
    """The delimited texts of the assignment, its approved plan, and the operator's answers with their questions."""
    last_usage: Tokens = field(default_factory=Tokens)
    model: str = ""
    sends_unsigned: bool = False
    """True if the server is a third-party server, to which thinking without a signature is sent back."""
    stale: int = 0
    """Number of the first entries whose thinking is not sent back: another model's, or the text before it changed."""
    run: int = 0
    ended_run: int = 0
    """The number of the last run whose worker recorded its own end."""
    results: int = 0
    """Number of assignments that ended with a result in this run."""
    task: int | None = None
    """The id of the task in progress at the last event that notes it (`Intake`, `ToolResult`); None if none was."""
    reminded: set[int] = field(default_factory=set)
    """The ids of the tasks about which the agent was reminded."""
    shutdowns_told: set[str] = field(default_factory=set)
    """The ids of the shutdown requests that the agent was told of."""
    consumed: set[str] = field(default_factory=set)
    """The ids of mail that does not enter the conversation, because a tool result showed its content."""
    session: str = ""
    """The id of the engine's session; empty if there is none."""
    _settled: int = 0
    """Number of the first entries that the engine's session has for certain, because a turn after them is whole."""
    _began: int = 0
    """Number of entries when the assignment began."""
    _taken: set[str] = field(default_factory=set)
    """The ids of those texts after the settled entries that the engine is known to have."""
    repeats: int = 0
    """How many times in a row the last tool call was made, with the same input and the same outcome."""
    loop_was_told: bool = False
    """True if the model was told that it repeats its last tool call."""
    _continued: list[Reply] = field(default_factory=list)
    """The last reply, after the cut-off replies that it continues."""
    _last_reply: Reply | None = None
    _last_call: tuple[str, dict[str, Any] | None, str] | None = None
    """Name, input and outcome of the last tool call; the input is None if no event says that the call began."""
    _asked: dict[str, str] = field(default_factory=dict)
    """The plans and questions that the agent put to a person, by id of the tool call."""
    _submitted: dict[str, Any] = field(default_factory=dict)
    """The input of the last call of submit_plan."""
    _kept: dict[str, str] = field(default_factory=dict)
    """The ids by which file changes of calls in progress can be undone, by id of the call."""

    def apply(self, event: Event) -> None:
        """Change the state by one event. The method is looked up by type: a long journal has 100,000 events."""
        if (apply := _APPLY.get(type(event))) is not None:
            apply(self, event)

    @_applies(ToolStart)
    def _tool_start(self, event: ToolStart) -> None:
        self.started[event.tool_use_id] = event
        if event.name == "submit_plan":
            self._submitted = event.input
        if event.name in _ASKED_INPUT:
            self._asked[event.tool_use_id] = str(event.input.get(_ASKED_INPUT[event.name], ""))

    @_applies(FileKept)
    def _keep_file(self, event: FileKept) -> None:
        self._kept[event.tool_use_id] = event.id

    @_applies(Answer)
    def _answer(self, event: Answer) -> None:
        self.held = self.assignment if event.held else None
        self._ended, self.assignment = self.assignment, None
        if not event.held:
            self._update_work(ended=event.ts)
        self.unsent = self.last_answer = event
        self.answers += 1
        self.results += event.result is not None

    @_applies(Sent)
    def _sent(self, event: Sent) -> None:
        if event.message.type in ("result", "error"):
            self.unsent = None

    @_applies(Cleared)
    def _clear(self, event: Cleared) -> None:
        self.cleared.update(event.tool_use_ids)
        self.left_out.update(event.media)
        self.stale = len(self.entries)

    @_applies(Opening)
    def _open(self, event: Opening) -> None:
        self.opening = event
        if event.adds:
            return
        self.preface = dict(event.preface)
        self.stale = len(self.entries)

    @_applies(RunEnded)
    def _end(self, event: RunEnded) -> None:
        self.ended_run = event.run

    @_applies(RunStarted)
    def _begin(self, event: RunStarted) -> None:
        self.run, self.results = event.run, 0
        self._end_loop()
        self.key = event.fence_key
        self.cursor = max(self.cursor, event.mail_from)
        self.damaged += event.damaged
        if event.usage is not None:
            self._add_usage(event.usage, event.cost_usd)
        if not event.fresh:
            # The event with it may be lost.
            self.prompts.add(event.prompt_id)
        self._continue_held()
        if self.model and self.model != event.model:
            self.opening, self.stale = None, len(self.entries)
            for _, block in self.entries:
                block.pop(_UNSIGNED, None)
        self.model = event.model
        if event.fresh:
            self.entries.clear()
            self.opening, self.stale = None, 0
            self.pending.clear()
            self.started.clear()
            self.assignment = None
            self.deviations = None
            self.todo = []
            self.work = None
            self.task = None
            self.last_answer = None
            self.warned = False
            self.last_usage = Tokens()
            self.session, self._settled, self._began = "", 0, 0
            self._taken.clear()
        if event.damaged:
            # Else the agent would take its conversation for whole, and later mail for the first.
            self._add_text(LOST)

    @_applies(EngineSession)
    def _note_session(self, event: EngineSession) -> None:
        if not event.loaded:
            # Another session knows nothing of this assignment.
            self._settled = self._began if self.session else self._settled
            self._taken.clear()
        self.session = event.session

    @_applies(Taken)
    def _note_taken(self, event: Taken) -> None:
        self._taken = {*event.texts} if event.looked_up else self._taken.union(event.texts)

    @property
    def unsettled(self) -> dict[str, str]:
        """Return the texts for the engine since its last whole turn, by id, in order.

        The engine's session may lack them. The first line of each text is unique, by its marks.
        """
        texts = (block["text"] for role, block in self.entries[self._settled :] if role == "user" and "text" in block)
        return {mail.id: text for text in texts for mail in undelimit(text)[:1]}

    @property
    def untaken(self) -> dict[str, str]:
        """Return those of the `unsettled` texts that the engine is not known to have, and that must be sent, by id."""
        return {ident: text for ident, text in self.unsettled.items() if ident not in self._taken}

    def unsettled_calls(self) -> list[tuple[Block, Block | None]]:
        """Return the tool calls since the engine's last whole turn, in order, each with its result or None."""
        blocks = [block for _, block in self.entries[self._settled :]]
        results = {block["tool_use_id"]: block for block in blocks if block.get("type") == "tool_result"}
        return [(block, results.get(block["id"])) for block in blocks if block.get("type") == "tool_use"]

    @property
    def last_text(self) -> str:
        """Return the last text of the model, if no mail or notice has entered since; else an empty text."""
        for role, block in reversed(self.entries):
            if block.get("type") == "text" and (role == "user" or block["text"].strip()):
                return "" if role == "user" else str(block["text"])
        return ""

    @property
    def progress(self) -> TodoList | None:
        """Return how many of the steps that the agent listed are done, and the current one; None if it listed none."""
        if not self.todo:
            return None
        done = sum(each["status"] == "completed" for each in self.todo)
        current = next((each["text"] for each in self.todo if each["status"] == "in_progress"), "")
        return TodoList(done=done, total=len(self.todo), current=redact(current))

    @property
    def terms_in_force(self) -> TermsInForce | None:
        """Return the terms of the assignment in progress or held, with the usage before them; None without terms."""
        current = self.assignment or self.held
        return current.terms if current is not None else None

    @property
    def terms(self) -> Terms | None:
        """Return the terms of the assignment in progress or held, as they were given; None without terms."""
        found = self.terms_in_force
        return found.given if found is not None else None

    @property
    def put_off(self) -> list[Message]:
        """Return the mail that was picked up but starts its work later, in the order of the mailbox."""
        return [message for message in self.deferred.values() if message.starts_work]

    def _continue_held(self) -> None:
        if self.held is not None:
            self.assignment, self.held = self.held, None
            self.assignment.granted = self.assignment.calls
            self.assignment.continued = True

    @_applies(Intake)
    def _take_in(self, event: Intake) -> None:
        self.cursor = event.cursor
        self.task = event.task
        self.damaged += event.damaged
        self.known.update(message.id for message in event.messages)
        for message in event.messages:
            if message.enters and message.id not in self.consumed:
                self.deferred[message.id] = message
        entering = [self.deferred[ident] for ident in event.entered if ident in self.deferred]
        if entering:
            self._end_loop()
        self.warned = self.warned or event.warned
        self.loop_was_told = self.loop_was_told or event.looping
        self.shutdowns_told.update(event.shutdowns)
        if event.reminds is not None:
            self.reminded.add(event.reminds)
        if event.assignment is not None:
            self._began = len(self.entries)
        if event.prompt is not None and event.assignment is not None:
            self.prompts.add(event.assignment)
            self._add_text(delimit(event.prompt_from, "prompt", event.assignment, event.prompt, self.key))
        for message in entering:
            self.deferred.pop(message.id, None)
            text = message.content if message.content.strip() else f"({message.type})"
            if message.type in ASKS_FOR_REVIEW:
                text = f"request_id: {message.metadata.get('request_id')}\n\n{message.content}"
            self._add_text(delimit(message.from_, message.type, message.id, text, self.key))
            self.entries += [("user", _block_of(each)) for each in message.attachments]
        said = [*event.notices, *event.instructions]
        texts = [delimit(SYSTEM, "notice", f"{event.ts:.3f}-{at}", text, self.key) for at, text in enumerate(said)]
        count = len(event.notices)
        for text in (*texts[:count], *filter(None, event.updates.values())):
            self._add_text(text)
        self.entries += [("user", {"type": "text", "text": text, _INSTRUCTS: True}) for text in texts[count:]]
        self.preface.update(event.updates)
        if event.assignment is not None:
            self._begin_assignment(event.assignment, event.ts)
        if self.assignment is not None:
            if any(message.wants_plan for message in entering):
                self.assignment.plan_wanted, self.assignment.gate_open = True, False
            prompt = [event.assignment] if event.prompt is not None and event.assignment else []
            self.assignment.answers += [*prompt, *event.entered]
            # Ends and results of others come by the way, and ask for nothing.
            asking = (one.from_ for one in entering if one.starts_work and one.type not in ("result", "error"))
            self.assignment.asked_by.update([event.prompt_from] if prompt else [], asking)

    def _begin_assignment(self, ident: str, now: float) -> None:
        self.pause = now - self.last_answer.ts if self.last_answer is not None else 0
        if self.held is not None and ident == self.held.id:
            self._continue_held()
            return
        # A reminder, or work after an outage, continues the work that needed a plan.
        continues = ident.startswith(("reminder-", "again-"))
        # What failed is asked for again by the operator alone, and is still for who asked first.
        failed = self.last_answer is not None and self.last_answer.error is not None
        before = self._ended
        asked_by = {*before.asked_by} if before is not None and (continues or failed) else set[str]()
        plan_wanted = continues and before is not None and before.plan_wanted
        self.assignment, self.held = Assignment(ident, [], asked_by, plan_wanted), None
        self.deviations = None
        self.todo = self.todo if continues else []
        self.work = self.work.replace(ended=None) if continues and self.work else Work()
        self._end_loop()
        # The texts at the end of the conversation, which the model has not answered yet.
        self.assignment_texts = []
        for role, block in reversed(self.entries):
            if role != "user" or block["type"] not in _NEW_BLOCKS:
                break
            self.assignment_texts[:0] = [block["text"]] if block["type"] == "text" else []

    @_applies(Gate)
    def _turn_gate(self, event: Gate) -> None:
        if self.assignment is None:
            return
        self.assignment.gate_open = event.open
        self.assignment.plan_wanted = self.assignment.plan_wanted or not event.open
        if event.terms is not None:
            self.assignment.terms = None if event.terms.given.is_empty else event.terms
        if event.open and event.request_id is not None:
            named = (tuple(map(str, self._submitted.get(name, ()))) for name in ("files", "commands"))
            self.assignment.plan = plan = ApprovedPlan(event.request_id, event.ts, *named)
            self.deviations = None
            self._update_work(planned=list(plan.files), planned_at=event.ts)
        elif not event.open:
            self._update_work(planned=[], planned_at=0)

    def _update_work(self, **changes: Any) -> None:
        if self.work is not None:
            self.work = self.work.replace(**changes)

    @_applies(Summary)
    def _summarise(self, event: Summary) -> None:
        text = f"Summary of the conversation so far:\n\n{event.text}"
        summary = {"type": "text", "text": delimit(SYSTEM, "notice", f"{event.ts:.3f}", text, self.key)}
        self.entries = [("user", summary), *self.entries[event.covers :]]
        # The thinking in what stays was bound to what is gone: it goes with the opening that the next request gets.
        self.opening, self.stale, self.last_id = None, 0, ""
        self._add_usage(event.usage, event.cost_usd)
        self.last_usage = Tokens()

    def _add_usage(self, usage: Tokens, cost_usd: float | None) -> None:
        self.tokens = self.tokens + usage
        if cost_usd is not None:
            self.cost_usd = (self.cost_usd or 0.0) + cost_usd

    def _add_text(self, text: str) -> None:
        self.entries.append(("user", {"type": "text", "text": text}))

    @property
    def said(self) -> str:
        """Return the text of the last reply, after that of the cut-off replies that it continues."""
        return text_of(*self._continued)

    @property
    def sources(self) -> list[str]:
        """Return the sources that the text of `said` cites, title and address on one line, each once."""
        return web.sources(block for reply in self._continued for block in reply.content)

    @property
    def succeeded(self) -> bool:
        """Return True if the last assignment of this conversation ended with an answer, perhaps in an earlier run."""
        return self.last_answer is not None and self.last_answer.error is None

    @property
    def failure(self) -> Answer | None:
        """Return the answer with the error that ended the last assignment; None without one, or in a new assignment."""
        last = self.last_answer
        return last if last is not None and last.error is not None and self.assignment is None else None

    @property
    def unfinished(self) -> Reply | None:
        """Return the last reply if its worker died before it acted on the reply; else None.

        A reply that calls tools is returned only if it was cut off, so that its calls are not run.
        """
        reply = self._last_reply
        if reply is None or self.assignment is None:
            return None
        if reply.stop_reason in NOT_RUN:
            return reply if self.pending or self._model_spoke_last else None
        return reply if self._model_spoke_last and not self.pending else None

    @property
    def is_cut_off(self) -> bool:
        """Return True if the last reply was cut off in its text or paused, so that the next one continues it."""
        last = self._last_reply
        if last is None or self.assignment is None or self.assignment.calls == 0:
            return False
        return last.stop_reason in CUT_OFF and not any(block.get("type") == "tool_use" for block in last.content)

    @property
    def parts(self) -> int:
        """Return how many replies the text of `said` consists of."""
        return len(self._continued)

    @property
    def is_paused_turn(self) -> bool:
        """Return True if the API paused a turn between its own tools. Sent back unchanged, the turn goes on."""
        reply = self._last_reply
        paused = reply is not None and reply.stop_reason == "pause_turn" and self.assignment is not None
        return paused and self._model_spoke_last and self.entries[-1][1].get("type") not in _OWN_BLOCKS

    @property
    def takes_only_results(self) -> bool:
        """Return True if the API takes only results of the agent's tools now, and no other text.

        That is so while calls of the API's own tools wait for these results.
        """
        reply = self._last_reply
        if reply is None or self.assignment is None or not any(b.get("type") == "tool_use" for b in reply.content):
            return False
        return bool(_waiting_calls(reply.content))

    @property
    def _model_spoke_last(self) -> bool:
        return bool(self.entries) and self.entries[-1][0] == "assistant"

    @_applies(Reply)
    def _reply(self, event: Reply) -> None:
        self._continued = [*self._continued, event] if self.is_cut_off else [event]
        self._last_reply, self.last_id = event, event.id
        self.pending = []
        for block in event.content:
            kind = str(block.get("type"))
            if kind == "tool_use":
                # A reply of an earlier version may lack it.
                block = block if "input" in block else {**block, "input": {}}  # noqa: PLW2901
                self.pending.append(block)
                self.call_ids.add(block["id"])
            elif kind == "text" and not str(block.get("text", "")).strip():
                # The API sends such a block, but does not accept it.
                continue
            elif not event.id and kind not in _OF_API and not kind.endswith(("tool_use", "tool_result")):
                # Servers send others, such as `reasoning`, and refuse a request that has them.
                continue
            elif kind == "thinking" and not block.get("signature") and event.stop_reason not in CUT_OFF:
                block = {**block, _UNSIGNED: True}  # noqa: PLW2901
            self.entries.append(("assistant", block))
        self.refused = event.refused
        self._add_usage(event.usage, event.cost_usd)
        self.last_usage = event.usage
        if event.context_used is not None:
            self.last_usage = Tokens(input=event.context_used)
        if self.session and event.stop_reason != "tool_use" and not self.untaken:
            self._settled = len(self.entries)
            self._taken.clear()
        if self.assignment:
            self.assignment.calls += 1
            self.assignment.silent = self.assignment.silent + 1 if self.is_silent else 0
            is_stuck = event.stop_reason in CUT_OFF - {"pause_turn"} and (
                bool(self.pending) or not text_of(event).strip()
            )
            self.assignment.cut_offs = self.assignment.cut_offs + 1 if is_stuck else 0

    @_applies(BrokenReply)
    def _count_broken(self, event: BrokenReply) -> None:
        self._add_usage(event.usage, event.cost_usd)

    @property
    def is_silent(self) -> bool:
        """Return True if the last reply ended with no text and no call, or without a call although it announced one."""
        reply = self._last_reply
        if reply is None or self.pending or reply.stop_reason in NOT_RUN:
            return False
        return reply.stop_reason == "tool_use" or not self.said.strip()

    @_applies(ToolResult)
    def _result(self, event: ToolResult) -> None:
        self.pending = [block for block in self.pending if block["id"] != event.tool_use_id]
        self.pause = max(self.pause, event.seconds or 0)
        self.task = event.task
        start, kept = self.started.pop(event.tool_use_id, None), self._kept.pop(event.tool_use_id, None)
        if start is not None:
            self._note_effects(start, event, kept)
        for ident in event.consumed:
            self.consumed.add(ident)
            self.deferred.pop(ident, None)
        shown: str | list[Block]
        if event.tools:
            shown = [{"type": "tool_reference", "tool_name": name} for name in event.tools]
        else:
            content = event.content if event.content and not event.content.isspace() else "(no output)"
            if self.key:
                content = delimit_data(event.name, "result", event.tool_use_id, content, self.key)
            shown = [{"type": "text", "text": content}, *map(_block_of, event.media)] if event.media else content
        block = {"type": "tool_result", "tool_use_id": event.tool_use_id, "content": shown}
        self.entries.append(("user", {**block, "is_error": True} if event.is_error else block))
        asked = self._asked.get(event.tool_use_id, "")
        if event.name == "submit_plan" and self.assignment:
            self.assignment.plans += 1
            if self.assignment.gate_open:
                self.assignment_texts.append(f"Your plan:\n{asked}\n{event.content}")
        elif asked:
            self.assignment_texts.append(f"You asked the operator: {asked}\n{event.content}")
        name, arguments = (start.name, start.input) if start is not None else (event.name, None)
        if name == "todo" and not event.is_error and isinstance(listed := (arguments or {}).get("items"), list):
            self.todo = [{"status": "pending", **each} for each in listed]
        last, self._last_call = self._last_call, (name, arguments, event.content)
        # Inputs that are equal may differ as texts: 1 equals True.
        is_same = self._last_call == last and json.dumps(self._last_call, sort_keys=True) == json.dumps(
            last, sort_keys=True
        )
        if is_same and name not in _POLLS:
            self.repeats += 1
        else:
            self.repeats, self.loop_was_told = 1, False

    def _note_effects(self, start: ToolStart, event: ToolResult, kept: str | None) -> None:
        """Count a call that the plan does not name, unless it is a file call that changed nothing; note a changed file.

        `kept` is the id by which the change of the file can be undone, if there is one.
        """
        plan = self.assignment.plan if self.assignment is not None else None
        failed = event.is_error and event.name != "bash" and event.seconds is not None
        if start.deviates and not failed and plan is not None:
            before = self.deviations or Deviations(plan=plan.id)
            call = first_line(redact(describe_call(start.name, start.input)), _MOST_CALL)
            calls = [*before.calls, call][-_MOST_DEVIATIONS:]
            self.deviations = Deviations(plan=before.plan, count=before.count + 1, calls=calls)
        file = start.file
        if file is not None and not event.is_error and self.work is not None:
            files = dict(self.work.files)
            newest = {**self.work.newest, **({file: kept} if kept is not None else {})}
            # Last in the order, so that the oldest ones are left out first.
            files[file] = files.pop(file, event.ts)
            left_out = list(files)[:-_MOST_FILES]
            for path in left_out:
                del files[path]
                newest.pop(path, None)
            self.last_changes[file] = event.ts
            self._update_work(files=files, newest=newest)

    def _end_loop(self) -> None:
        """Count equal calls from 0 again, because something other than a result entered the conversation."""
        self.repeats, self.loop_was_told, self._last_call = 0, False, None

    def messages(self, until: int | None = None, ask: str = "") -> list[dict[str, Any]]:
        """Return the conversation for the Messages API: roles alternate, results come before other text.

        With `until`, return only the first `until` entries. `ask` is a text that asks for a summary, put at the end;
        empty for none.
        """
        turns: list[dict[str, Any]] = []
        place = 0
        entries = self.entries[:until]
        if ask:
            entries.append(("user", {"type": "text", "text": delimit(SYSTEM, "summary", "summary", ask, self.key)}))
        for role, group in itertools.groupby(entries, key=lambda entry: entry[0]):
            blocks = [self._as_sent(block) for _, block in group]
            place += len(blocks)
            if role == "assistant":
                blocks = _sent_back(
                    blocks,
                    self.stale - place + len(blocks),
                    ended=place < len(entries),
                    unsigned=self.sends_unsigned,
                    hops=self.opening is not None and self.opening.falls_back,
                )
            if blocks and turns and turns[-1]["role"] == role:
                turns[-1]["content"] += blocks
            elif blocks:
                turns.append({"role": role, "content": blocks})
        _restore_pairs(turns)
        if turns and self.opening is not None:
            turns[0]["content"][:0] = [{"type": "text", "text": text} for text in self.opening.preface.values()]
        for turn in turns:
            if turn["role"] == "user":
                turn["content"].sort(key=lambda block: block["type"] != "tool_result")
        # Remove calls of the API's own tools that were given up, because an interrupt entered beside the results of
        # ours. While such a call waits, the API takes nothing beside these results: page `server-tools` of its
        # documents.
        for turn, after in itertools.pairwise(turns):
            if turn["role"] == "assistant" and any(block["type"] != "tool_result" for block in after["content"]):
                waiting = _waiting_calls(turn["content"])
                turn["content"] = [block for block in turn["content"] if block.get("id") not in waiting]
        return _with_instructions(turns, own=self.opening is not None and self.opening.instructs)

    def _as_sent(self, block: Block) -> Block:
        if block.get("tool_use_id") in self.cleared:
            return {**block, "content": CLEARED}
        if found := _tools_in(block):
            # The API refuses a reference to a tool that the request does not have.
            kept = [part for part in block["content"] if part["tool_name"] in self._deferred_tools]
            return {**block, "content": kept or f"found: {', '.join(found)}"}
        return media.without(block, self.left_out) if self.left_out else block

    @property
    def _deferred_tools(self) -> dict[str, Block]:
        """Return the tools of the opening that are loaded on demand, by name."""
        tools = self.opening.tools if self.opening is not None else []
        return {tool["name"]: tool for tool in tools if tool.get("defer_loading")}

    @property
    def shown_tools(self) -> list[Block]:
        """Return the tools of the opening that the model is shown: those loaded on demand only if it found them."""
        deferred, found = self._deferred_tools, {name for _, block in self.entries for name in _tools_in(block)}
        tools = self.opening.tools if self.opening is not None else []
        return [tool for tool in tools if tool["name"] not in deferred or tool["name"] in found]

    @property
    def told_tools(self) -> set[str]:
        """Return the names of the tools that the model had found with `find_tools` before its last reply."""
        replies = [place for place, (role, _) in enumerate(self.entries) if role == "assistant"]
        return {name for _, block in self.entries[: max(replies, default=0)] for name in _tools_in(block)}

    @property
    def clearable(self) -> dict[str, Block]:
        """Return the tool results that may be left out to save room, by id of the call, oldest first.

        Others stay: answers of people, results of tools that write files, tools that were found, and short results,
        whose removal would save nothing.
        """
        blocks = [block for _, block in self.entries]
        kept = {*self.cleared, *self._asked}
        kept |= {block["id"] for block in blocks if block["type"] == "tool_use" and block["name"] in WRITE_TOOLS}
        kept |= {block["tool_use_id"] for block in blocks if _tools_in(block)}
        results = [block for block in blocks if block["type"] == "tool_result"]
        return {
            block["tool_use_id"]: block
            for block in results
            if block["tool_use_id"] not in kept and len(str(block["content"])) >= _LEAST_CLEARED
        }

    @property
    def shown(self) -> int:
        """Return the number of entries that the model has seen: all but mail and notices at the end."""
        count = len(self.entries)
        while count and self.entries[count - 1][0] == "user" and self.entries[count - 1][1]["type"] in _NEW_BLOCKS:
            count -= 1
        return count

    def newest_turns(self, most: int) -> int:
        """Return the place in `entries` where the newest turns begin that fit into `most` characters.

        Only turns that the model has seen count, and the first of them begins with a reply. If no such turns fit, or no
        reply comes before them, return the place where mail begins that the model has not seen: a summary that keeps
        these turns would make no room.
        """
        shown = start = self.shown
        for place in range(shown - 1, 0, -1):
            role, block = self.entries[place]
            most -= len(json.dumps(block)) + media.tokens_in([{"content": [block]}]) * _MEDIA_CHARACTERS
            if most < 0:
                break
            if role == "assistant" and self.entries[place - 1][0] == "user":
                start = place
        return start if any(role == "assistant" for role, _ in self.entries[:start]) else shown

    def transcript(self, until: int | None = None) -> str:
        """Return the conversation, or its first `until` entries, as plain text."""
        lines = []
        for role, block in self.entries[:until]:
            match self._as_sent(block):
                case {"type": "text", "text": text}:
                    lines.append(f"{role}: {text}")
                case {"type": "tool_use", "name": name, "input": arguments}:
                    lines.append(f"{role} calls {name}: {arguments}")
                case {"type": "tool_result", "content": content}:
                    lines.append(f"result: {content}")
                case {"type": str(kind)} if kind not in _OWN_BLOCKS:
                    on_the_web = web.describe_result(block)
                    text = on_the_web[1] if on_the_web else json.dumps(block)
                    lines.append(f"{role} {kind}: {elide_middle(text, _MOST_FOREIGN, _MOST_FOREIGN // 3)}")
        return "\n".join(lines)

    @property
    def context_used(self) -> int:
        """Return how many tokens of the window the last model call used, the reply included; 0 after a summary."""
        return self.last_usage.prompt + self.last_usage.output


def replay(events: Iterable[Event | None]) -> Conversation:
    """Return the state after `events`. None stands for a damaged line of the journal, and is counted."""
    conversation = Conversation()
    for event in events:
        if event is None:
            conversation.damaged += 1
        else:
            conversation.apply(event)
    return conversation
