"""The course of one run, on the model or an engine: begin work, do it, be idle, until there is a reason to exit.

A SIGKILL may come after any step. The next run continues from the journal.
"""

import asyncio
import contextlib
import os
import sys
import time

from crewboard import env
from crewboard.agent_types import type_of
from crewboard.errors import CrewboardError, ExitCode, StorageError
from crewboard.records.agents import State
from crewboard.records.events import Reply
from crewboard.sandbox import shell
from crewboard.store import files, roster
from crewboard.worker.assignments import Assignments, Results
from crewboard.worker.interrupts import (
    FIRST_DELAY,
    MAX_DELAY,
    RETRY_BUDGET,
    SWEEP_INTERVAL,
    Interrupted,
    Interrupts,
    WorkerExit,
)
from crewboard.worker.limits import Limits
from crewboard.worker.run_state import RunState
from crewboard.worker.snapshots import Snapshots
from crewboard.worker.tools.base import FileToolClient

STORAGE_CALM = 60.0
"""Seconds without a storage error after which the budget for such errors is whole again."""

_AT_ONCE = 0.001
"""Seconds between two looks at a mailbox while more mail is left, in which signals are handled."""

_PAUSED = "paused by the operator"


class StorageWait:
    """The wait while files cannot be written: growing delays within a budget, as for a model call."""

    def __init__(self, run_state: RunState, interrupts: Interrupts) -> None:
        self._run_state = run_state
        self._interrupts = interrupts
        self._budget = env.seconds(env.RETRY_BUDGET, RETRY_BUDGET)
        self._waited = 0.0
        self._attempt = 0
        self._failed_at = float("-inf")

    async def wait(self, error: StorageError) -> None:
        """Wait after a storage error, and retry until the event that could not be written is in the journal.

        Raises:
            StorageError: The waits would take longer than the budget.
            WorkerExit: The run ends.
        """
        if time.monotonic() - self._failed_at > STORAGE_CALM:
            self._waited, self._attempt = 0.0, 0
        while True:
            delay = min(FIRST_DELAY * 2.0**self._attempt, MAX_DELAY)
            if self._waited + delay > self._budget:
                raise error
            self._attempt += 1
            self._waited += delay
            self._failed_at = time.monotonic() + delay
            text = f"{files.trouble(error) or 'storage error'}: {error}"
            sys.stderr.write(f"{self._run_state.name}: {text}; trying again in {delay:g} s\n")
            # The status is on the same disk.
            with contextlib.suppress(StorageError):
                retry_at = self._run_state.now() + delay
                self._run_state.show("retrying", text, retry_at=retry_at, last_error=text)
            end = time.monotonic() + delay
            while (left := end - time.monotonic()) > 0:
                self._interrupts.check_leave()
                await self._interrupts.wait(min(left, SWEEP_INTERVAL))
            self._interrupts.check_leave()
            try:
                self._run_state.append_unsaved()
            except StorageError as again:
                error = again
            else:
                # Else an idle agent would be shown with an error that is over.
                failure = self._run_state.conversation.failure
                self._run_state.note_error((failure.error if failure is not None else None) or "")
                return


class Life:
    """One run of one agent. A subclass defines how an assignment is worked on, by calls of the model or an engine."""

    def __init__(
        self,
        run_state: RunState,
        interrupts: Interrupts,
        file_tools: FileToolClient,
        *,
        is_priced: bool,
    ) -> None:
        self._run_state = run_state
        self._interrupts = interrupts
        self._file_tools = file_tools
        self._snapshots = Snapshots(run_state)
        self._team = run_state.team
        self._name = run_state.name
        self._results = Results(run_state)
        self._limits = Limits(run_state, self._results.send, is_priced=is_priced)
        self._assignments = Assignments(run_state, self._results, self._limits)

    async def run(self) -> None:
        """Work until there is a reason to exit.

        Raises:
            WorkerExit: Always, in the end; it holds the reason.
            StorageError: Files could not be written for longer than the worker waits.
        """
        storage = StorageWait(self._run_state, self._interrupts)
        while True:
            try:
                await self._live()
            except StorageError as error:
                await storage.wait(error)

    async def close(self) -> None:
        """End the file-tool server and the background commands of this run."""
        await self._file_tools.close()

    async def _live(self) -> None:
        """Continue from the state that the journal describes, and work on assignments, one after the other.

        Raises:
            StorageError: A file could not be written. Call this again when the storage works.
            WorkerExit: There is a reason to exit.
        """
        conversation = self._run_state.conversation
        self._results.send_unsent()
        reason = self._assignments.reclaim_task()
        if (reply := conversation.unfinished) is not None:
            self._finish(reply)
        if reason is not None:
            self._assignments.report_lost_task(reason)
        # Only what the previous run had is claimed again.
        self._run_state.had_task = None
        while True:
            if conversation.assignment is None:
                await self._file_tools.end_commands_with_lent_network()
                await self._snapshots.take_at("end")
                await self._idle()
            said = await self._snapshots.start_again()
            await self._set_up_worktree()
            await self._prepare()
            if said:
                self._run_state.tell(said)
            await self._work()

    async def _prepare(self) -> None:
        """Prepare for an assignment that begins or continues: take its first snapshot; subclasses set up more."""
        await self._snapshots.take_at("begin")

    async def _work(self) -> None:
        """Work on the assignment in progress until it has ended, with an answer or an error."""
        raise NotImplementedError

    def _finish(self, reply: Reply) -> None:
        """Act on a reply that is in the journal, except for running its tools: answer, fail or continue."""
        raise NotImplementedError

    async def _set_up_worktree(self) -> None:
        """Run the team's `worktree_setup` in a new checkout, and tell the agent and the operator of problems.

        A problem is a failed command, or a path of `worktree_copy` that the root does not have. The command is the
        operator's, so it needs no plan, rule or permission.
        """
        run_state, mark = self._run_state, self._team.worktree_ready(self._name)
        if run_state.spec.worktree is None or mark.exists():
            return
        config = roster.load(self._team)
        lacking = [path for path in config.worktree_copy or () if not os.path.lexists(run_state.workspace / path)]
        problems, tail = [f"worktree_copy: the root has no {', '.join(lacking)}"] if lacking else [], ""
        executes = type_of(run_state.spec.type, run_state.spec.definition).executes
        command = config.worktree_setup if executes else None
        if command is not None:
            run_state.show_tool(f"sets up its checkout: {command}", shell.CHECK_SECONDS + shell.KILL_GRACE)
            sandbox = self._file_tools.sandbox
            setup = shell.run_check(command, sandbox, set(), self._team, self._name, run_state.now)
            try:
                finished = await self._interrupts.run_interruptibly(setup)
            except Interrupted:
                problems.append(f"worktree_setup `{command}` was interrupted")
            else:
                # Imported here because few agents have a worktree.
                from crewboard.worktrees import snapshot

                try:
                    await asyncio.to_thread(snapshot.take_after_setup, self._team, self._name, run_state.spec)
                except (CrewboardError, OSError) as error:
                    sys.stderr.write(f"{self._name}: no snapshot after the setup of its worktree: {error}\n")
                if not finished.checked.passed:
                    problems.append(f"worktree_setup `{command}` failed: {finished.checked.result}")
                    tail = f"\n{finished.tail}"
        problem = "; ".join(problems)
        if problem and problem != run_state.status.setup_error:
            self._run_state.tell(f"Your checkout was not set up as it should be. {problem}{tail}")
        run_state.show_setup_error(problem or None)
        if command is not None:
            files.replace_file(mark, command.encode("utf-8", "replace"))

    async def _idle(self) -> None:
        """Wait until an assignment begins. Meanwhile show the agent as idle or paused, and approve shutdown requests.

        Raises:
            WorkerExit: The run ends; with `--once`, it does after a result.
        """
        run_state = self._run_state
        first = True
        while True:
            self._interrupts.check_leave()
            if not self._interrupts.paused:
                if self._assignments.look():
                    self._results.reported_idle = False
                    return
                if self._results.is_held:
                    self._results.send_unsent()
                if run_state.spec.flags.once and run_state.conversation.succeeded and not self._results.is_held:
                    raise WorkerExit("finished", 0)
            await self._interrupts.accept_shutdown()
            state: State = "paused" if self._interrupts.paused else "idle"
            unread = 0 if state == "paused" else self._assignments.unread
            doing = f"reads its mail, {unread / 1e6:.1f} MB left" if unread else _PAUSED if state == "paused" else ""
            if first or (self._run_state.status.state, self._run_state.status.doing) != (state, doing):
                self._run_state.show(state, doing)
            if state == "idle" and not unread:
                self._results.report_idle()
            if first:
                # An agent that waits for work needs no file-tool server; the next call of a file tool starts one.
                await self._file_tools.end()
            first = False
            self._run_state.refresh_status()
            # Without a time while only an event can bring some.
            sweep = SWEEP_INTERVAL if self._assignments.is_timed else None
            await self._interrupts.wait(_AT_ONCE if self._assignments.unread else sweep)

    async def _wait_while_paused(self) -> None:
        """Wait while the operator pauses the agent."""
        if not self._interrupts.paused:
            return
        self._run_state.show("paused", _PAUSED)

        async def released() -> None:
            while self._interrupts.paused:
                await self._interrupts.wait()

        await self._interrupts.run_interruptibly(released(), waiting=True, interruptible=False)

    def _has_reached_limit(self) -> bool:
        """End the assignment with an error if a limit forbids another model call. Return True if it does.

        Raises:
            WorkerExit: The limit is a budget, and not one of the terms of a plan, or the run is one with `--once`.
        """
        if (reached := self._limits.check()) is None:
            return False
        is_of_plan = reached.budget is not None and reached.budget.by_terms
        # The terms of a plan end with its assignment, so that there is nothing to hold it for.
        code = ExitCode.FAILED if is_of_plan else ExitCode.LIMIT
        self._results.fail(reached.text, code, budget=reached.budget is not None and not is_of_plan)
        return True
