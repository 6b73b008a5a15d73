"""The state of one run and the only place that writes it: journal first, then memory, then status and cursor."""

import contextlib
import gc
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from crewboard import env, media
from crewboard.models import Capabilities
from crewboard.records.agents import Context, Cursor, Effort, McpState, Spec, State, Status, Thinking
from crewboard.records.events import Cleared, Event, Intake, RunEnded, RunStarted, ToolResult
from crewboard.records.processes import Exit
from crewboard.records.team import Task
from crewboard.redaction import redact
from crewboard.store import agents, files, hosts, journal, roster
from crewboard.store.layout import AgentDirectory
from crewboard.unix import process
from crewboard.worker.conversation import Conversation, replay

LIVE_INTERVAL = 0.05
"""Seconds between two writes of the reply that is being streamed, or of a command's output."""

MAX_LIVE = 256 * 1024
"""Bytes of this preview, after which only its end is kept."""

KEPT_LIVE = 32 * 1024
"""Bytes of that end; readers show less."""

MEMORY_INTERVAL = 60.0
"""Seconds between two readings of the worker's private memory, which take two milliseconds."""

MEMORY_STEP = 1 << 20
"""Bytes by which it must have changed to be told: an agent at rest writes nothing."""


class RunState:
    """Journal, status, cursor and reply preview of one run."""

    def __init__(self, agent: AgentDirectory, spec: Spec, clock: Callable[[], float] | None = None) -> None:
        self.agent = agent
        self.spec = spec
        self.team = agent.team
        self.name = agent.name
        self.now = clock if clock is not None else partial(hosts.now, agent.team)
        agent.status.quarantine_if_damaged()
        agent.cursor.quarantine_if_damaged()
        before = agent.status.load_or_none()
        # The collector would take half of a long replay and find no garbage.
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            self.conversation: Conversation = replay(journal.history(agent.journal))
        finally:
            if was_enabled:
                gc.enable()
        self._unsaved: Event | None = None
        """The event that could not be written last."""
        self.task: int | None = None
        """The id of the task in progress."""
        self.window = 0
        """The tokens that the model's window holds; 0 while that is unknown."""
        self.window_is_assumed = False
        """True if neither the user nor the server said how large it is."""
        self.capabilities: Capabilities | None = None
        """The input that the model takes, as the API says; None if it did not say."""
        self.takes: dict[str, bool] = {}
        """True for each type of block (`image`, `document`) that it takes, as the project or a refusal says."""
        self._last_tool = ""
        # The journal of an older version does not name the task. The status does.
        self.had_task = None if self.fresh else self.conversation.task or (before.task if before else None)
        """The task that was in progress when the previous run ended."""
        self._shown = agent.status.watch()
        self._live = b""
        self._live_at = 0.0
        self._live_size = 0
        """Bytes of the preview's file."""
        self._live_tail = b""
        self._memory_read_at = float("-inf")
        self._journal_end: int | None = None
        """Size of the journal after this run's last event; None before the first one."""
        me = os.getpid()
        failure = None if self.fresh else self.conversation.failure
        self.status = Status(
            run=spec.run,
            pid=me,
            state="starting",
            since=self.now(),
            model=spec.model,
            offline=env.is_offline() and spec.engine is None,
            boot_id=process.boot_id(),
            start_ticks=process.start_ticks(me),
            host=env.host(),
            # What failed in an earlier run still needs the user, who is told why.
            last_error=redact(failure.error or "") if failure is not None else None,
        )

    @property
    def fresh(self) -> bool:
        """Return True while the hire prompt still has to start the conversation."""
        return self.spec.prompt_id not in self.conversation.prompts

    @property
    def workspace(self) -> Path:
        """Return the folder that the agent works in."""
        owner, worktree = self.spec.checkout(self.name)
        return self.team.root if worktree is None else self.team.worktree(owner) / worktree.folder

    def set_task(self, task: Task | None) -> None:
        """Note which task is in progress."""
        self.task = task.id if task is not None else None

    def set_window(self, tokens: int, *, assumed: bool = False) -> None:
        """Note how many tokens the model's window holds, as it was told or is `assumed`."""
        self.window, self.window_is_assumed = tokens, assumed

    def note_settings(self, effort: Effort | None, thinking: Thinking | None) -> None:
        """Note what the requests of this run ask for, for the status."""
        self.status = self.status.replace(effort=effort, thinking=thinking)

    def note_engine(self, version: str) -> None:
        """Note which version of its engine runs, for the next status."""
        self.status = self.status.replace(engine_version=version)

    def note_engine_model(self, model: str) -> None:
        """Note which model its engine has used, for the next status; nothing if it does not tell."""
        self.status = self.status.replace(engine_model=model or self.status.engine_model)

    def refuses_media(self, kinds: list[str]) -> str | None:
        """Return why the model or the engine takes no images or documents of some of these types; None if it does."""
        wrong = [kind for kind in kinds if not self._takes("document" if kind == media.PDF else "image")]
        taker = "this engine" if self.spec.engine is not None else f"the model {self.spec.model}"
        return f"{taker} takes no {wrong[0]}" if wrong else None

    def request_messages(self, until: int | None = None, ask: str = "") -> list[dict[str, Any]]:
        """Return `Conversation.messages` with the bytes of images and documents. Leave out for good which must go."""
        messages, lost = media.with_bytes(
            self.conversation.messages(until, ask),
            lambda sha256: agents.kept_content(self.agent, sha256),
            images=self._takes("image"),
            pdf=self._takes("document"),
        )
        if not lost:
            return messages
        self.append(Cleared(ts=self.now(), tool_use_ids=[], media=lost))
        return self.request_messages(until, ask)

    def _takes(self, block: str) -> bool:
        """Return True unless it is known that the model takes no blocks of this type."""
        if block == "document" and self.spec.engine is not None:
            # A result of a tool of an MCP server can hold images alone.
            return False
        can = self.capabilities
        return self.takes.get(block, can is None or (can.pdf if block == "document" else can.images))

    def used(self) -> roster.Used:
        """Return what the agent used in all runs, and the terms of the assignment in progress."""
        known = self.conversation
        terms = known.assignment.terms if known.assignment is not None else None
        return roster.Used(known.tokens, known.cost_usd or 0.0, terms)

    def set_sandbox(self, level: str) -> None:
        """Note the level of the sandbox, for the status."""
        self.status = self.status.replace(sandbox=level)

    def append(self, event: Event) -> None:
        """Commit an event: write it to the journal, then update memory, status and cursor.

        Raises:
            StorageError: The event could not be written; nothing changed.
            LostLeaseError: These files are no longer this run's; nothing was written.
        """
        event.run = self.spec.run
        if isinstance(event, (Intake, ToolResult)):
            event.task = self.task
        self._unsaved = event
        self._journal_end = journal.append(self.agent.journal, event, self._journal_end)
        self._unsaved = None
        self.conversation.apply(event)
        if isinstance(event, Intake) and event.assignment is not None:
            # Before the cursor moves: an agent that is idle without unread mail has nothing to do.
            self.show("working", "begins")
        # At a start too: the previous worker may have died between journal and cursor.
        if isinstance(event, (Intake, RunStarted)):
            self.agent.cursor.save(Cursor(offset=self.conversation.cursor, damaged=self.conversation.damaged))

    def take_in(self, **fields: Any) -> None:
        """Commit what enters the conversation, as `fields` of `Intake`; the cursor stays if it is none of them."""
        self.append(Intake(**{"ts": self.now(), "cursor": self.conversation.cursor, **fields}))

    def tell(self, notice: str) -> None:
        """Tell the agent something, as the system."""
        self.take_in(notices=[notice])

    def append_unsaved(self) -> None:
        """Write the event that could not be written when the storage failed, so that its action is not repeated.

        Memory still is what the journal says, so that the run continues as it would after a crash.

        Raises:
            StorageError: It still cannot be written.
        """
        if self._unsaved is not None:
            self.append(self._unsaved)

    def show(
        self,
        state: State,
        doing: str = "",
        *,
        timeout: float | None = None,
        waiting_for: str | None = None,
        awaits: str | None = None,
        retry_at: float | None = None,
        outage_since: float | None = None,
        last_error: str | None = None,
    ) -> None:
        """Write the status. `since` changes only if `state` or `doing` do.

        Unless it is written again within `timeout` seconds, the agent counts as stuck. `last_error` stays until another
        one is given; an empty one clears it.
        """
        # Not at the start, which is waited for; but at the end of each assignment.
        if state != "starting":
            self._read_memory(at_once=state == "idle" and self.status.state != "idle")
        now = self.now()
        conversation = self.conversation
        same = (state, doing) == (self.status.state, self.status.doing)
        failure, rests = conversation.failure, state in ("idle", "paused")
        if self.status.state == "paused" and state != "paused":
            self.status = self.status.replace(paused_at=self.status.since, unpaused_at=now)
        kept_error = self.status.last_error if last_error is None else redact(last_error) or None
        self.status = self.status.replace(
            state=state,
            since=self.status.since if same else now,
            doing=redact(doing[:200]),
            turn=conversation.assignment.calls if conversation.assignment else 0,
            waiting_for=waiting_for,
            awaits=awaits,
            task=self.task,
            tokens=conversation.tokens,
            cost_usd=conversation.cost_usd,
            context=Context(used=conversation.context_used, limit=self.window, assumed=self.window_is_assumed),
            last_error=kept_error,
            failed=failure.code if failure is not None else None,
            failed_at=failure.ts if failure is not None else 0,
            refused_by=failure.refused_by if failure is not None else None,
            unreported=self.task if rests and failure is None and self.task in conversation.reminded else None,
            retry_at=retry_at,
            outage_since=outage_since,
            deadline=None if timeout is None else now + timeout,
            deadline_monotonic=None if timeout is None else time.monotonic() + timeout,
            beat=now,
            repeats=conversation.repeats,
            deviations=conversation.deviations,
            todo=conversation.progress,
            terms=conversation.terms_in_force,
            work=conversation.work,
            last_tool=redact(self._last_tool[:200]),
        )
        self.agent.status.save(self.status)

    def note_error(self, text: str) -> None:
        """Keep the error that ends the run for the next status."""
        self.status = self.status.replace(last_error=redact(text))

    def show_setup_error(self, text: str | None) -> None:
        """Show until the next setup what the checkout lacks; None if it lacks nothing."""
        text = redact(text) if text else None
        if text != self.status.setup_error:
            self.status = self.status.replace(setup_error=text)
            self.agent.status.save(self.status)

    def show_mcp(self, servers: list[McpState]) -> None:
        """Show which MCP servers the agent has, and why others are missing."""
        if servers != self.status.mcp:
            self.status = self.status.replace(mcp=servers)
            self.agent.status.save(self.status)

    def show_tool(self, call: str, timeout: float | None, others: int = 0) -> None:
        """Show a tool call that begins, with how many `others` begin at the same time."""
        self._last_tool = call
        self.show("working", f"{call} and {others} more" if others else call, timeout=timeout)

    def _read_memory(self, *, at_once: bool = False) -> bool:
        """Read the worker's private memory for the status if that is due. Return True if it has changed."""
        if not at_once and time.monotonic() - self._memory_read_at < MEMORY_INTERVAL:
            return False
        self._memory_read_at = time.monotonic()
        found = process.private_bytes()
        if abs(found - self.status.private_bytes) < MEMORY_STEP:
            return False
        self.status = self.status.replace(private_bytes=found)
        return True

    def refresh_status(self) -> None:
        """Write the status again if it was damaged or the memory changed: an idle agent may not write it for days."""
        self._shown.get()
        if self._shown.damaged:
            self.agent.status.quarantine_if_damaged()
        if self._read_memory() or self._shown.damaged:
            self.agent.status.save(self.status)

    def stream(self, text: str) -> None:
        """Show readers the next piece of the reply that is being streamed, or of a command's output."""
        self._live += text.encode("utf-8", "replace")
        if time.monotonic() - self._live_at > LIVE_INTERVAL:
            self.flush()

    def flush(self) -> None:
        """Show readers all that has arrived so far."""
        self._live_at = time.monotonic()
        piece, self._live = self._live, b""
        self._live_size += len(piece)
        self._live_tail = (self._live_tail + piece)[-KEPT_LIVE:]
        mode = "ab"
        if self._live_size > MAX_LIVE:
            mode, piece, self._live_size = "wb", self._live_tail, len(self._live_tail)
        # This text is a preview only: a full disk must not end the run because of it.
        files.check_before_writing()
        with contextlib.suppress(OSError), open(self.agent.live, mode, opener=files.open_private) as file:
            file.write(piece)

    def clear_live(self) -> None:
        """Remove the preview of the last reply or command."""
        self._live = self._live_tail = b""
        self._live_size = 0
        files.check_before_writing()
        with contextlib.suppress(OSError), open(self.agent.live, "wb", opener=files.open_private):
            pass

    def finish(self, code: int, reason: str) -> None:
        """Write how the run ends.

        Raises:
            StorageError: It could not be written.
        """
        unfinished = self.conversation.assignment is not None or self.status.state == "starting"
        self.show("stopping", reason)
        self.append(RunEnded(ts=self.now(), code=code, reason=reason))
        record = Exit(run=self.spec.run, code=code, reason=reason, at=self.now(), unfinished=unfinished)
        agents.write_exit(self.agent, record)
