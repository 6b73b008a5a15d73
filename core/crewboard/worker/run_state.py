"""The state of one run, and the only code that writes it: journal first, then memory, then status and cursor."""

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
from crewboard.records.agents import Context, Cursor, Effort, McpState, Spec, State, Status, Thinking, Tokens
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
"""Bytes of the preview of a reply or a command's output above which only its end is kept."""

KEPT_LIVE = 32 * 1024
"""Bytes of the end of a preview that are kept; readers show less."""

MEMORY_INTERVAL = 60.0
"""Seconds between two readings of the worker's private memory, which take two milliseconds."""

MEMORY_STEP = 1 << 20
"""Bytes by which the private memory must change before the status is written: an idle agent should write nothing."""


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
        before, read = agent.status.load_or_none(), agent.cursor.load_or_none() or Cursor()
        # The collector would take half of a long replay and find no garbage.
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            self.conversation: Conversation = replay(journal.history(agent.journal))
        finally:
            if was_enabled:
                gc.enable()
        self.lost = self._find_loss(before, read)
        """Fields of `RunStarted` about events that the journal lacks; empty if it lacks none."""
        self._unsaved: Event | None = None
        """The last event, as long as it is not written to the journal; None if all are."""
        self.task: int | None = None
        """The id of the task in progress; None if there is none."""
        self.window = 0
        """The tokens that the model's window holds; 0 while that is unknown."""
        self.window_is_assumed = False
        """True if neither the user nor the server said how large the window is."""
        self.capabilities: Capabilities | None = None
        """What the model can do, as the server describes it; None if it does not."""
        self.takes: dict[str, bool] = {}
        """True or False for each type of block (`image`, `document`) of which the project or a refusal says if the
        model takes it; other types are missing."""
        self._last_tool = ""
        # The journal of an older version does not name the task. The status does.
        self.had_task = None if self.fresh else self.conversation.task or (before.task if before else None)
        """The id of the task that was in progress when the previous run ended; None without one, and once it was
        claimed again."""
        self._shown = agent.status.watch()
        self._live = b""
        self._live_at = 0.0
        self._live_size = 0
        """Bytes in the file of the preview."""
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

    def _find_loss(self, before: Status | None, read: Cursor) -> dict[str, Any]:
        """Return the fields of `RunStarted` about lost events. Mail and prompt in them do not enter a second time."""
        known = self.conversation
        # Each run's first event is on the disk before its first status is written, so no crash loses it.
        if before is None or before.run <= known.run:
            return {}
        known.prompts.add(read.prompt_id)
        used = {kind: getattr(before.tokens, kind) - getattr(known.tokens, kind) for kind in Tokens.__struct_fields__}
        return {
            "mail_from": max(read.offset, self.spec.mail_from),
            "damaged": 1 + max(read.damaged - known.damaged, 0),
            "usage": Tokens(**{kind: max(count, 0) for kind, count in used.items()}),
            "cost_usd": None if before.cost_usd is None else max(before.cost_usd - (known.cost_usd or 0), 0.0),
        }

    @property
    def fresh(self) -> bool:
        """Return True as long as the hire prompt has not entered the conversation."""
        return self.spec.prompt_id not in self.conversation.prompts

    @property
    def workspace(self) -> Path:
        """Return the folder that the agent works in."""
        owner, worktree = self.spec.checkout(self.name)
        return self.team.root if worktree is None else self.team.worktree(owner) / worktree.folder

    def set_task(self, task: Task | None) -> None:
        """Note which task is in progress, for the next events and the status; None if none is."""
        self.task = task.id if task is not None else None

    def set_window(self, tokens: int, *, assumed: bool = False) -> None:
        """Note how many tokens the model's window holds; `assumed` if neither the user nor the server said so."""
        self.window, self.window_is_assumed = tokens, assumed

    def note_settings(self, effort: Effort | None, thinking: Thinking | None) -> None:
        """Note the effort and thinking of this run's requests, for the next status; None if they set none."""
        self.status = self.status.replace(effort=effort, thinking=thinking)

    def note_engine(self, version: str) -> None:
        """Note the version of the running engine, for the next status."""
        self.status = self.status.replace(engine_version=version)

    def note_engine_model(self, model: str) -> None:
        """Note the model that the engine has used, for the next status; an empty name leaves the one before."""
        self.status = self.status.replace(engine_model=model or self.status.engine_model)

    def refuses_media(self, kinds: list[str]) -> str | None:
        """Return a text that names a MIME type in `kinds` that the model, or the engine, does not take.

        Return None if all of them are taken, as far as is known.
        """
        wrong = [kind for kind in kinds if not self._takes("document" if kind == media.PDF else "image")]
        taker = "this engine" if self.spec.engine is not None else f"the model {self.spec.model}"
        return f"{taker} takes no {wrong[0]}" if wrong else None

    def request_messages(self, until: int | None = None, ask: str = "") -> list[dict[str, Any]]:
        """Return `Conversation.messages(until, ask)` with the bytes of images and documents filled in.

        Images and documents that cannot be sent are journalled as left out, so that later requests leave them out too.
        """
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
        """Return True unless it is known that the model, or the engine, takes no blocks of this type."""
        if block == "document" and self.spec.engine is not None:
            # A result of a tool of an MCP server can hold images alone.
            return False
        can = self.capabilities
        return self.takes.get(block, can is None or (can.pdf if block == "document" else can.images))

    def used(self) -> roster.Used:
        """Return the tokens and cost of the agent in all runs, with the terms of the assignment in progress."""
        known = self.conversation
        terms = known.assignment.terms if known.assignment is not None else None
        return roster.Used(known.tokens, known.cost_usd or 0.0, terms)

    def set_sandbox(self, level: str) -> None:
        """Note the level of the sandbox, for the next status."""
        self.status = self.status.replace(sandbox=level)

    def append(self, event: Event) -> None:
        """Commit an event: write it to the journal, then update memory, status and cursor.

        Raises:
            StorageError: The event could not be written, and nothing changed; or it was written, and the status or
                the cursor could not be.
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
            known, prompt_id = self.conversation, "" if self.fresh else self.spec.prompt_id
            self.agent.cursor.overwrite(Cursor(offset=known.cursor, damaged=known.damaged, prompt_id=prompt_id))

    def take_in(self, **fields: Any) -> None:
        """Commit an `Intake` event with these fields, which enter the conversation.

        Without the field `cursor`, the cursor of the mailbox does not move.
        """
        self.append(Intake(**{"ts": self.now(), "cursor": self.conversation.cursor, **fields}))

    def tell(self, notice: str) -> None:
        """Put a notice by the system into the conversation of the agent."""
        self.take_in(notices=[notice])

    def append_unsaved(self) -> None:
        """Write the event that could not be written when the storage failed, if there is one.

        Memory has stayed as the journal says, so the run continues as after a crash, but does not repeat what the event
        records.

        Raises:
            StorageError: The event still cannot be written.
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
        """Write the status with this `state`, and with what the agent is `doing`, in a few words.

        Its `since` changes only if `state` or `doing` do. With a `timeout`, the agent counts as stuck if the status is
        not written again within so many seconds. `last_error` stays until another one is given; an empty one clears
        it. The others are the fields of `Status` of the same names, and None clears them.
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
        self.agent.status.overwrite(self.status)

    def note_error(self, text: str) -> None:
        """Note the error that ends the run, for the next status; an empty text if there is none."""
        self.status = self.status.replace(last_error=redact(text) or None)

    def show_setup_error(self, text: str | None) -> None:
        """Write in the status what is wrong with the agent's checkout, until the next call; None if nothing is."""
        text = redact(text) if text else None
        if text != self.status.setup_error:
            self.status = self.status.replace(setup_error=text)
            self.agent.status.overwrite(self.status)

    def show_mcp(self, servers: list[McpState]) -> None:
        """Write in the status which MCP servers the agent has, and why others are missing."""
        if servers != self.status.mcp:
            self.status = self.status.replace(mcp=servers)
            self.agent.status.overwrite(self.status)

    def show_tool(self, call: str, timeout: float | None, others: int = 0) -> None:
        """Write in the status a tool call that begins, with the number of `others` that begin at the same time.

        The agent counts as stuck after `timeout` seconds; None: never.
        """
        self._last_tool = call
        self.show("working", f"{call} and {others} more" if others else call, timeout=timeout)

    def _read_memory(self, *, at_once: bool = False) -> bool:
        """Read the worker's private memory, `at_once` or if that is due; return True if the value has changed."""
        if not at_once and time.monotonic() - self._memory_read_at < MEMORY_INTERVAL:
            return False
        self._memory_read_at = time.monotonic()
        found = process.private_bytes()
        if abs(found - self.status.private_bytes) < MEMORY_STEP:
            return False
        self.status = self.status.replace(private_bytes=found)
        return True

    def refresh_status(self) -> None:
        """Write the status again if its file is damaged or the worker's memory has changed.

        While an agent is idle, there may be no other reason to write it for days.
        """
        self._shown.get()
        if self._shown.damaged:
            self.agent.status.quarantine_if_damaged()
        if self._read_memory() or self._shown.damaged:
            self.agent.status.overwrite(self.status)

    def stream(self, text: str) -> None:
        """Add a piece to the preview of the reply that is being streamed, or of a command's output."""
        self._live += text.encode("utf-8", "replace")
        if time.monotonic() - self._live_at > LIVE_INTERVAL:
            self.flush()

    def flush(self) -> None:
        """Write all pieces so far to the file of the preview.

        A failed write is ignored, as the text is only a preview.

        Raises:
            LostLeaseError: The directory of this run was removed, moved or replaced.
        """
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
        """Empty the preview of the last reply or command."""
        self._live = self._live_tail = b""
        self._live_size = 0
        files.check_before_writing()
        with contextlib.suppress(OSError), open(self.agent.live, "wb", opener=files.open_private):
            pass

    def finish(self, code: int, reason: str) -> None:
        """Write how the run ends to status, journal and exit record. `code` is the worker's exit code.

        Raises:
            StorageError: One of them could not be written.
            LostLeaseError: These files are no longer this run's.
        """
        unfinished = self.conversation.assignment is not None or self.status.state == "starting"
        self.show("stopping", reason)
        self.append(RunEnded(ts=self.now(), code=code, reason=reason))
        record = Exit(run=self.spec.run, code=code, reason=reason, at=self.now(), unfinished=unfinished)
        agents.write_exit(self.agent, record)
