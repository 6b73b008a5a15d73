"""The one place where a worker writes: journal first, then its memory, then the projections for watchers."""

import contextlib
import gc
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from crewboard.linux import process
from crewboard.records import (
    Context,
    Cursor,
    Event,
    Exit,
    Intake,
    RunEnded,
    RunStarted,
    Spec,
    State,
    Status,
    ToolResult,
)
from crewboard.redaction import redact
from crewboard.store import agents, files, journal, json_files
from crewboard.store.layout import AgentDirectory
from crewboard.worker.conversation import Conversation, replay

LIVE_EVERY = 0.05
"""Seconds between two writes of the reply that is being streamed."""


@contextmanager
def _no_collection() -> Iterator[None]:
    """Keep the collector from walking again and again through what is being built and stays: half of a long replay."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class RunState:
    """Journal, status, cursor and live text of one run."""

    def __init__(self, agent: AgentDirectory, spec: Spec, clock: Callable[[], float] = time.time) -> None:
        self.agent = agent
        self.spec = spec
        self.now = clock
        self.damaged_events = 0
        json_files.quarantine_if_damaged(agent.status, Status)
        json_files.quarantine_if_damaged(agent.cursor, Cursor)
        before = json_files.load_or_none(agent.status, Status)
        with _no_collection():
            self.conversation: Conversation = replay(self._history())
        self.fresh = spec.prompt_id not in self.conversation.prompts
        """Whether the hire prompt still has to start a conversation."""
        self.task: int | None = None
        """The task in progress."""
        self.had_task = None if self.fresh else self.conversation.task or (before.task if before else None)
        """The task that was in progress when the run before ended; an older journal does not say, but the status."""
        self.context_limit = 0
        self.last_tool = ""
        self.sandbox = ""
        """The level of its sandbox, once that is known."""
        self._shown = json_files.CachedFile(agent.status, Status)
        self._live = b""
        self._live_at = 0.0
        me = os.getpid()
        self.status = Status(
            run=spec.run,
            pid=me,
            state="starting",
            since=self.now(),
            model=spec.model,
            boot_id=process.boot_id(),
            start_ticks=process.start_ticks(me),
            last_error=None,
        )

    def _history(self) -> Iterator[Event | None]:
        for event in journal.history(self.agent.journal):
            self.damaged_events += event is None
            yield event

    def append(self, event: Event) -> None:
        """Commit an event.

        Raises:
            StorageError: The disk refused; nothing happened.
        """
        event.run = self.spec.run
        if isinstance(event, (Intake, ToolResult)):
            event.task = self.task
        journal.append(self.agent.journal, event)
        self.conversation.apply(event)
        if isinstance(event, Intake) and event.assignment is not None:
            self.show("working", "begins")  # before the cursor moves: idle with nothing unread is who has nothing to do
        if isinstance(event, (Intake, RunStarted)):  # a worker may have died between journal and cursor
            damaged = self.conversation.damaged + self.damaged_events
            cursor = Cursor(offset=self.conversation.cursor, damaged=damaged)
            json_files.save(self.agent.cursor, cursor)

    def show(
        self,
        state: State,
        doing: str = "",
        *,
        deadline: float | None = None,
        waiting_for: str | None = None,
        retry_at: float | None = None,
        last_error: str | None = None,
        clear_error: bool = False,
    ) -> None:
        """Write what the agent is doing now. `since` moves only when state or deed change."""
        now = self.now()
        conversation = self.conversation
        same = (state, doing) == (self.status.state, self.status.doing)
        kept_error = None if clear_error else redact(last_error or "") or self.status.last_error
        self.status = self.status.model_copy(
            update={
                "state": state,
                "since": self.status.since if same else now,
                "doing": redact(doing[:200]),
                "turn": conversation.assignment.calls if conversation.assignment else 0,
                "waiting_for": waiting_for,
                "task": self.task,
                "tokens": conversation.tokens,
                "cost_usd": conversation.cost_usd,
                "context": Context(used=conversation.context_used, limit=self.context_limit),
                "last_error": kept_error,
                "retry_at": retry_at,
                "deadline": deadline,
                "beat": now,
                "sandbox": self.sandbox,
                "repeats": conversation.repeats,
                "last_tool": redact(self.last_tool[:200]),
            }
        )
        json_files.save(self.agent.status, self.status)

    def repair_status(self) -> None:
        """Write the status again if somebody damaged it: who idles may not show anything else for days."""
        self._shown.get()
        if self._shown.damaged:
            json_files.quarantine_if_damaged(self.agent.status, Status)
            json_files.save(self.agent.status, self.status)

    def stream(self, text: str) -> None:
        """Show watchers a piece of the reply that is coming in."""
        self._live += text.encode("utf-8", "replace")
        if time.monotonic() - self._live_at > LIVE_EVERY:
            self.flush()

    def flush(self) -> None:
        """Show watchers all of the reply that came in so far."""
        self._live_at = time.monotonic()
        piece, self._live = self._live, b""
        # What is no part of the record must not end a run because the disk is full.
        with contextlib.suppress(OSError), open(self.agent.live, "ab", opener=files.open_private) as file:
            file.write(piece)

    def clear_live(self) -> None:
        """A new reply begins."""
        self._live = b""
        with contextlib.suppress(OSError), open(self.agent.live, "wb", opener=files.open_private):
            pass

    def finish(self, code: int, reason: str) -> None:
        """Record how the run ends.

        Raises:
            StorageError: The disk refused.
        """
        self.show("stopping", reason)
        self.append(RunEnded(ts=self.now(), code=code, reason=reason))
        agents.write_exit(self.agent, Exit(run=self.spec.run, code=code, reason=reason, at=self.now()))
