"""The conversation and all else that a worker must know, as a fold over its journal.

A worker that goes on and one that was killed and resumed have the same state, because both get it from here: every
event is appended to the journal first and applied then.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from crewboard.names import SYSTEM
from crewboard.records import (
    Answer,
    Cleared,
    Event,
    Gate,
    Intake,
    Message,
    Reply,
    RunEnded,
    RunStarted,
    Sent,
    Summary,
    Tokens,
    ToolResult,
    ToolStart,
)  # fmt: skip
from crewboard.untrusted import delimit
from crewboard.worker.llm.blocks import CLEARED, CUT_OFF, Block, body_of, is_blank, text_of

_PUT_TO_PEOPLE = {"submit_plan": "plan", "ask_operator": "question"}
"""Tools that put something to a person, and which of their inputs that is; what came of it outlives a summary."""


@dataclass
class Assignment:
    """The work at hand: `id` is the prompt or the mail that started it, `answers` all that it will answer."""

    id: str
    answers: list[str]
    plan_wanted: bool = False
    """A plan was asked for in the middle of it, or with it."""
    gate_open: bool = False
    calls: int = 0
    plans: int = 0
    """Plans handed in so far: each revision is a request of its own."""


@dataclass
class Conversation:
    """What the journal says."""

    entries: list[tuple[str, Block]] = field(default_factory=list)
    """(role, block), in order."""
    cursor: int = 0
    damaged: int = 0
    known: set[str] = field(default_factory=set)
    """Ids of all mail ever picked up."""
    deferred: list[Message] = field(default_factory=list)
    """Picked up, and waiting for its time to enter."""
    prompts: set[str] = field(default_factory=set)
    assignment: Assignment | None = None
    pending: list[Block] = field(default_factory=list)
    """Tool calls of the last reply that have no result yet."""
    started: dict[str, float] = field(default_factory=dict)
    """When those among them began that did, by id."""
    unsent: Answer | None = None
    """An answer whose mail may not have been sent."""
    last_answer: Answer | None = None
    answers: int = 0
    """Answers and errors of all runs."""
    tokens: Tokens = field(default_factory=Tokens)
    cost_usd: float | None = None
    warned: bool = False
    """Whether a budget was said to be nearly used up, in this conversation."""
    cleared: set[str] = field(default_factory=set)
    """Ids of tool calls whose results are left out."""
    assignment_texts: list[str] = field(default_factory=list)
    """The fenced texts of the assignment at hand, its approved plan, and what the operator was asked and said."""
    last_usage: Tokens = field(default_factory=Tokens)
    run: int = 0
    ended_run: int = 0
    """The last run that said itself how it ended."""
    results: int = 0
    """Answers given in this run."""
    task: int | None = None
    """The task that was in progress with the agent when this conversation last heard of any."""
    reminded: set[int] = field(default_factory=set)
    """Tasks whose owner was reminded that they are in progress."""
    shutdowns_told: set[str] = field(default_factory=set)
    consumed: set[str] = field(default_factory=set)
    """Ids of mail whose content a tool result already held."""
    repeats: int = 0
    """How often the last tool call came with the same input and outcome."""
    said: str = ""
    """The text of the last reply, with what it goes on from: replies before it that were cut off."""
    _last_reply: Reply | None = None
    _last_call: tuple[str, str, str] | None = None
    _inputs: dict[str, tuple[str, str]] = field(default_factory=dict)
    _put: dict[str, str] = field(default_factory=dict)
    """What was put to people, by tool call."""

    def apply(self, event: Event) -> None:  # noqa: C901, PLR0912  one case a kind, nothing more
        """Take one event in."""
        match event:
            case RunStarted():
                self._begin(event)
            case Intake():
                self._take_in(event)
            case Reply():
                self._reply(event)
            case ToolStart():
                self.started[event.tool_use_id] = event.ts
                self._inputs[event.tool_use_id] = (event.name, str(sorted(event.input.items())))
                if event.name in _PUT_TO_PEOPLE:
                    self._put[event.tool_use_id] = str(event.input.get(_PUT_TO_PEOPLE[event.name], ""))
            case ToolResult():
                self._result(event)
            case Gate():
                if self.assignment:
                    self.assignment.gate_open = event.open
            case Answer():
                self.assignment = None
                self.unsent = self.last_answer = event
                self.answers += 1
                self.results += event.result is not None
            case Sent():
                if event.message.type in ("result", "error"):
                    self.unsent = None
            case Cleared():
                self.cleared.update(event.tool_use_ids)
            case Summary():
                self._summarise(event)
            case RunEnded():
                self.ended_run = event.run

    def _begin(self, event: RunStarted) -> None:
        self.run, self.results = event.run, 0
        self.cursor = max(self.cursor, event.mail_from)
        if event.fresh:
            self.entries.clear()
            self.pending.clear()
            self.started.clear()
            self.assignment = None
            self.task = None
            self.last_answer = None
            self.warned = False
            self.last_usage = Tokens()

    def _take_in(self, event: Intake) -> None:
        self.cursor = event.cursor
        self.task = event.task
        self.damaged += event.damaged
        self.known.update(message.id for message in event.messages)
        waiting = {message.id: message for message in [*self.deferred, *event.messages] if message.enters}
        entering = [waiting[ident] for ident in event.entered if ident in waiting]
        if event.prompt is not None and event.assignment is not None:
            self.prompts.add(event.assignment)
            self._add_text(delimit(event.prompt_from, "prompt", event.assignment, event.prompt))
        for ident in event.entered:
            if (message := waiting.pop(ident, None)) is not None:
                self._add_text(delimit(message.from_, message.type, message.id, body_of(message)))
        for number, notice in enumerate(event.notices):
            self._add_text(delimit(SYSTEM, "notice", f"{event.ts:.3f}-{number}", notice))
        self.deferred = [message for message in waiting.values() if message.id not in self.consumed]
        self.warned = self.warned or event.warned
        self.shutdowns_told.update(event.shutdowns)
        if event.reminds is not None:
            self.reminded.add(event.reminds)
        if event.assignment is not None:
            self.assignment = Assignment(event.assignment, [])
            self.assignment_texts = self._newest_texts()
        if self.assignment is not None:
            if any(message.wants_plan for message in entering):
                self.assignment.plan_wanted, self.assignment.gate_open = True, False
            prompt = [event.assignment] if event.prompt is not None and event.assignment else []
            self.assignment.answers += [*prompt, *event.entered]

    def _newest_texts(self) -> list[str]:
        """The texts at the end of the conversation that nothing has answered yet."""
        texts: list[str] = []
        for role, block in reversed(self.entries):
            if role != "user" or block["type"] != "text":
                break
            texts.insert(0, block["text"])
        return texts

    def _summarise(self, event: Summary) -> None:
        self.entries = self.entries[event.covers :]
        text = f"The conversation so far, summarised:\n\n{event.text}"
        self.entries.insert(0, ("user", {"type": "text", "text": delimit(SYSTEM, "notice", f"{event.ts:.3f}", text)}))
        self._pay(event.usage, event.cost_usd)
        self.last_usage = Tokens()

    def _pay(self, usage: Tokens, cost_usd: float | None) -> None:
        self.tokens = self.tokens + usage
        if cost_usd is not None:
            self.cost_usd = (self.cost_usd or 0.0) + cost_usd

    def _add_text(self, text: str) -> None:
        self.entries.append(("user", {"type": "text", "text": text}))

    @property
    def succeeded(self) -> bool:
        """Whether the last assignment of this conversation ended with an answer, perhaps in an earlier run."""
        return self.last_answer is not None and self.last_answer.error is None

    @property
    def unfinished(self) -> Reply | None:
        """A reply that ends an assignment, or was cut off, and was not dealt with: its worker died just then."""
        reply = self._last_reply
        if reply is None or self.assignment is None:
            return None
        if reply.stop_reason == "tool_use":
            return None if self.pending or not self._model_spoke_last else reply
        return reply if self.pending or self._model_spoke_last else None

    @property
    def goes_on(self) -> bool:
        """Whether the next reply goes on in the middle of the last one's text."""
        last = self._last_reply
        if last is None or self.assignment is None or self.assignment.calls == 0:
            return False
        called = any(block.get("type") == "tool_use" for block in last.content)
        return last.stop_reason in CUT_OFF and not called

    @property
    def _model_spoke_last(self) -> bool:
        return bool(self.entries) and self.entries[-1][0] == "assistant"

    def _reply(self, event: Reply) -> None:
        self.said = (self.said if self.goes_on else "") + text_of(event)
        self._last_reply = event
        self.entries += [("assistant", block) for block in event.content if not is_blank(block)]
        self.pending = [block for block in event.content if block.get("type") == "tool_use"]
        self.started.clear()
        self._pay(event.usage, event.cost_usd)
        self.last_usage = event.usage
        if self.assignment:
            self.assignment.calls += 1

    def _result(self, event: ToolResult) -> None:
        self.pending = [block for block in self.pending if block["id"] != event.tool_use_id]
        self.task = event.task
        self.consumed.update(event.consumed)
        self.deferred = [message for message in self.deferred if message.id not in self.consumed]
        block = {
            "type": "tool_result",
            "tool_use_id": event.tool_use_id,
            "content": event.content if event.content.strip() else "(no output)",
        }
        self.entries.append(("user", {**block, "is_error": True} if event.is_error else block))
        put = self._put.get(event.tool_use_id, "")
        if event.name == "submit_plan" and self.assignment:
            self.assignment.plans += 1
            if self.assignment.gate_open:
                self.assignment_texts.append(f"Your plan:\n{put}\n{event.content}")
        elif put:
            self.assignment_texts.append(f"You asked the operator: {put}\n{event.content}")
        name, arguments = self._inputs.pop(event.tool_use_id, (event.name, ""))
        call = (name, arguments, event.content)
        self.repeats = self.repeats + 1 if call == self._last_call else 1
        self._last_call = call

    def messages(self) -> list[dict[str, Any]]:
        """The conversation as the Messages API wants it: roles alternate, tool results stand before other text."""
        turns: list[dict[str, Any]] = []
        for role, block in self.entries:
            if not turns or turns[-1]["role"] != role:
                turns.append({"role": role, "content": []})
            turns[-1]["content"].append(self._without_cleared(block))
        for turn in turns:
            if turn["role"] == "user":
                turn["content"].sort(key=lambda block: block["type"] != "tool_result")
        return turns

    def _without_cleared(self, block: Block) -> Block:
        return {**block, "content": CLEARED} if block.get("tool_use_id") in self.cleared else block

    @property
    def clearable(self) -> list[str]:
        """Ids of the tool calls whose results still stand whole, oldest first; what people said is not asked twice."""
        results = (block["tool_use_id"] for _, block in self.entries if block["type"] == "tool_result")
        return [ident for ident in results if ident not in self.cleared and ident not in self._put]

    @property
    def shown(self) -> int:
        """How many entries the model has been shown: all but new text at the end."""
        count = len(self.entries)
        while count and self.entries[count - 1][0] == "user" and self.entries[count - 1][1]["type"] == "text":
            count -= 1
        return count

    def transcript(self, until: int | None = None) -> str:
        """The conversation as plain text, or its first `until` entries."""
        lines = []
        for role, block in self.entries[:until]:
            match self._without_cleared(block):
                case {"type": "text", "text": text}:
                    lines.append(f"{role}: {text}")
                case {"type": "tool_use", "name": name, "input": arguments}:
                    lines.append(f"{role} calls {name}: {arguments}")
                case {"type": "tool_result", "content": content}:
                    lines.append(f"result: {content}")
        return "\n".join(lines)

    @property
    def context_used(self) -> int:
        """Tokens that the last call had in its window."""
        used = self.last_usage
        return used.input + used.cache_read + used.cache_write + used.output


def replay(events: Iterable[Event | None]) -> Conversation:
    """The state after `events`; damaged ones (None) are passed over."""
    conversation = Conversation()
    for event in events:
        if event is not None:
            conversation.apply(event)
    return conversation
