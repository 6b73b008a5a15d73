"""The worker's main loop: take mail in, call the model, run its tools, answer, wait for more.

A SIGKILL may come after any step. The next run continues from the journal.
"""

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Mapping

from crewboard import env, skill_files
from crewboard.agent_types import type_of
from crewboard.errors import CrewboardError, ExitCode, StorageError
from crewboard.names import PROJECT_FILES
from crewboard.protocol import approvals
from crewboard.records.agents import HELD_REPEATS, TOLD_REPEATS, State
from crewboard.records.events import CUT_OFF, NOT_RUN, NOT_UNDERSTOOD, Intake, Opening, Reply, describe_stop
from crewboard.sandbox import shell
from crewboard.store import files, roster
from crewboard.web import with_sources
from crewboard.worker import inbox
from crewboard.worker.assignments import Assignments
from crewboard.worker.conversation import text_of
from crewboard.worker.interrupts import SWEEP_INTERVAL, Interrupted, Interrupts, WorkerExit
from crewboard.worker.limits import Limits
from crewboard.worker.llm.context_window import ContextWindow
from crewboard.worker.llm.model import (
    FIRST_DELAY,
    MAX_DELAY,
    RETRY_BUDGET,
    DeferredToolsError,
    MaybeTooLongError,
    MediaRefusedError,
    Model,
    ModelError,
    StaleThinkingError,
    TooLongError,
    UnknownModelError,
)
from crewboard.worker.llm.prompt import changed_texts, preface, surroundings, system_prompt
from crewboard.worker.results import Results
from crewboard.worker.run_state import RunState
from crewboard.worker.tools import skills
from crewboard.worker.tools.base import FileToolClient, Outcome
from crewboard.worker.tools.executor import ToolExecutor
from crewboard.worker.tools.mcp import FIND_TOOLS, McpServers
from crewboard.worker.tools.registry import ToolRegistry, with_added

WINDOW_TIMEOUT = 10.0
"""Seconds that the first model call waits until the API tells how large the window is."""

STORAGE_CALM = 60.0
"""Seconds without a storage error after which the budget for such errors is whole again."""

_AT_ONCE = 0.001
"""Seconds to wait while more mail is left: signals are handled meanwhile."""

_PAUSED = "paused by the operator"

_CUT_IN_TEXT = "Your reply was cut off. Continue exactly where it ended; the parts are joined."
_CUT_IN_CALL = (
    "Your reply was cut off within a tool call, which was not run. Call it again with less in it: write a long file in "
    "parts, and change one with several small edits."
)
_CUT_IN_THOUGHT = (
    "Your reply was cut off before it had a text or a call. Think less, and take one small step at a time."
)

_MOST_CUT_OFFS = 3
"""Replies in a row that were cut off without progress, before an assignment fails. Each is paid for in full."""

_MOST_PARTS = 10
"""Replies in a row that one text may have, which stops in each: some servers give that reason for every reply."""

_ENDLESS = (
    "{} replies in a row were parts of one text that did not end ({}); ask for less at once, or let replies be longer "
    "with `--max-reply`"
)

_STUCK = (
    "{} replies in a row were cut off without any progress: a reply may have {} tokens. Give smaller tasks, a lower "
    "effort, or a larger `--max-reply` where the model takes one"
)

_LOOPING = (
    "You made the same call {} times in a row, and it had the same outcome each time. Do something else: use what you "
    "know, try another way, or say what is missing."
)

_SILENT = (
    "Your reply had no text and no tool call. Please continue: call the next tool, or if all is done, say what the "
    "result is."
)
"""What the model is told once. Some end a turn like this after tool results, with work left."""


class StorageWait:
    """Waits while files cannot be written, as a model call waits for the API: growing delays within a budget."""

    def __init__(self, run_state: RunState, interrupts: Interrupts) -> None:
        self._run_state = run_state
        self._interrupts = interrupts
        self._budget = env.seconds(env.RETRY_BUDGET, RETRY_BUDGET)
        self._waited = 0.0
        self._attempt = 0
        self._failed_at = float("-inf")

    async def wait(self, error: StorageError) -> None:
        """Retry until the unsaved lines are written.

        Raises:
            StorageError: The retries took longer than the budget.
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
            self._show(error, delay)
            await self._pause(delay)
            try:
                self._run_state.append_unsaved()
            except StorageError as again:
                error = again
            else:
                return

    def _show(self, error: StorageError, delay: float) -> None:
        text = f"{files.trouble(error) or 'storage error'}: {error}"
        sys.stderr.write(f"{self._run_state.name}: {text}; trying again in {delay:g} s\n")
        # The status is on the same disk.
        with contextlib.suppress(StorageError):
            retry_at = self._run_state.now() + delay
            self._run_state.show("retrying", text, retry_at=retry_at, last_error=text)

    async def _pause(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self._interrupts.check_leave()
            await self._interrupts.wait(min(left, SWEEP_INTERVAL))
        self._interrupts.check_leave()


class Loop:
    """One run of one agent."""

    def __init__(
        self,
        run_state: RunState,
        interrupts: Interrupts,
        model: Model,
        file_tools: FileToolClient,
        mcp: McpServers,
        environment: Mapping[str, str],
    ) -> None:
        self._run_state = run_state
        self._interrupts = interrupts
        self._model = model
        self._file_tools = file_tools
        self._team = run_state.team
        self._name = run_state.name
        self._mcp = mcp
        self._registry = ToolRegistry(run_state, mcp)
        self._context_window = ContextWindow(run_state, model)
        self._executor = ToolExecutor(run_state, interrupts, self._registry, file_tools, environment)
        self._results = Results(run_state)
        self._limits = Limits(run_state, self._results, is_priced=model.is_priced)
        self._assignments = Assignments(run_state, self._results, self._limits)
        self._skills_of: tuple[str, str, dict[str, str]] | None = None

    async def run(self) -> None:
        """Work until there is a reason to exit.

        Raises:
            WorkerExit: Always, in the end; it holds the reason.
        """
        learning = asyncio.ensure_future(self._learn_window())
        storage = StorageWait(self._run_state, self._interrupts)
        try:
            while True:
                try:
                    await self._live(learning)
                except StorageError as error:
                    await storage.wait(error)
        finally:
            learning.cancel()

    async def _live(self, learning: asyncio.Future[None]) -> None:
        """Continue from what the journal says.

        Raises:
            StorageError: Something could not be written. Call this again when it can.
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
                await self._file_tools.end_commands_with_lent_network("the approval that gave it the network is over")
                await self._executor.snapshots.take_at("end")
                await self._idle()
            said = await self._executor.snapshots.start_again()
            await self._set_up_worktree()
            await self._set_up_mcp()
            await asyncio.gather(
                self._await_window(learning), self._project(), self._executor.snapshots.take_at("begin")
            )
            if said:
                self._tell(said)
            await self._work()

    async def _set_up_worktree(self) -> None:
        """Run the team's `worktree_setup` in a new checkout. What is missing then is told to the agent and the user.

        The command is the operator's, so no plan, rule or permission is asked for.
        """
        run_state, mark = self._run_state, self._team.worktree_ready(self._name)
        if run_state.spec.worktree is None or mark.exists():
            return
        config = roster.load(self._team)
        lacking = [path for path in config.worktree_copy or () if not os.path.lexists(run_state.workspace / path)]
        problem = f"worktree_copy: the root has no {', '.join(lacking)}" if lacking else ""
        command, tail = config.worktree_setup, ""
        if not type_of(run_state.spec.type, run_state.spec.definition).executes:
            command = None
        if command is not None:
            failed, tail = await self._run_setup(command)
            problem = "; ".join(filter(None, (problem, failed)))
        if problem and problem != run_state.status.setup_error:
            self._tell(f"Your checkout was not set up as it should be. {problem}{tail}")
        run_state.show_setup_error(problem or None)
        if command is not None:
            files.replace_file(mark, command.encode("utf-8", "replace"))

    def _tell(self, notice: str) -> None:
        run_state = self._run_state
        run_state.append(Intake(ts=run_state.now(), cursor=run_state.conversation.cursor, notices=[notice]))

    async def _set_up_mcp(self) -> None:
        """Start the agent's MCP servers. Tell the agent and the user which of them are missing."""
        run_state = self._run_state
        try:
            notices = await self._interrupts.run_interruptibly(self._mcp.set_up())
        except Interrupted:
            # Those that run are used; the others are started with the next assignment.
            return
        if notices:
            run_state.append(Intake(ts=run_state.now(), cursor=run_state.conversation.cursor, notices=notices))

    async def _run_setup(self, command: str) -> tuple[str, str]:
        """Run the command that sets up a checkout; return what went wrong, and the end of its output."""
        run_state = self._run_state
        run_state.show_tool(f"sets up its checkout: {command}", shell.CHECK_SECONDS + shell.KILL_GRACE)
        server = {self._file_tools.pid} if self._file_tools.pid else set()
        setup = shell.run_check(command, self._file_tools.sandbox, server, self._team, self._name, run_state.now)
        try:
            finished = await self._interrupts.run_interruptibly(setup)
        except Interrupted:
            return f"worktree_setup `{command}` was interrupted", ""
        # Imported here because few agents have a worktree.
        from crewboard.worktrees import snapshot

        try:
            await asyncio.to_thread(snapshot.take_after_setup, self._team, self._name, run_state.spec)
        except (CrewboardError, OSError) as error:
            sys.stderr.write(f"{self._name}: no snapshot after the setup of its worktree: {error}\n")
        if finished.checked.passed:
            return "", ""
        return f"worktree_setup `{command}` failed: {finished.checked.result}", f"\n{finished.tail}"

    async def _learn_window(self) -> None:
        """Ask the API how much the model's window holds."""
        await self._model.learn_size()

    async def _await_window(self, learning: asyncio.Future[None]) -> None:
        """Wait a short time for the window's size. Assume the usual size until it comes."""
        try:
            async with asyncio.timeout(WINDOW_TIMEOUT):
                await asyncio.shield(learning)
        except TimeoutError:
            self._model.settle_window()

    async def _idle(self) -> None:
        """Wait until something starts an assignment."""
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
            self._show_idle(first=first)
            if first:
                # An agent that waits for work needs no server; the next call of a file tool starts one.
                await self._file_tools.end()
            first = False
            self._run_state.refresh_status()
            await self._interrupts.wait(self._until_next_look())

    def _until_next_look(self) -> float | None:
        """Return after how many seconds to look for work; None while only an event can bring some."""
        if self._assignments.unread:
            return _AT_ONCE
        return SWEEP_INTERVAL if self._assignments.is_timed else None

    def _show_idle(self, *, first: bool) -> None:
        """Show that the agent is idle or paused. Announce once that it is idle."""
        state: State = "paused" if self._interrupts.paused else "idle"
        unread = 0 if state == "paused" else self._assignments.unread
        doing = f"reads its mail, {unread / 1e6:.1f} MB left" if unread else _PAUSED if state == "paused" else ""
        if first or (self._run_state.status.state, self._run_state.status.doing) != (state, doing):
            self._run_state.show(state, doing)
        if state == "idle" and not unread:
            self._results.report_idle()

    async def _work(self) -> None:
        """Work on an assignment until it is answered."""
        conversation = self._run_state.conversation
        while conversation.assignment is not None:
            try:
                await self._executor.run_pending(self._context_window.max_result)
                await self._wait_while_paused()
                # Before mail enters: it would be shown as read by the model, which is not called.
                if (reached := self._limits.check()) is not None:
                    # The terms of a plan end with its assignment, so that there is nothing to hold it for.
                    code = ExitCode.FAILED if reached.by_terms else ExitCode.LIMIT
                    self._results.fail(reached.text, code, budget=reached.is_budget)
                    return
                is_closed = conversation.is_paused_turn or conversation.takes_only_results
                if is_closed and not self._interrupts.pending_interrupts():
                    # Mail would end the turn that the API goes on with.
                    self._interrupts.check_leave()
                else:
                    was_told = conversation.loop_was_told
                    self._take_in_mail()
                    if was_told:
                        await self._wait_while_looping()
                self._take_reply(await self._call())
            except Interrupted:
                await self._executor.drop_pending()
            except ModelError as error:
                model = self._run_state.spec.model if isinstance(error, UnknownModelError) else None
                self._results.fail(str(error), error.code, refused_by=model)

    async def _wait_while_paused(self) -> None:
        """Wait, without a model call, while the operator pauses the agent."""
        if not self._interrupts.paused:
            return
        self._run_state.show("paused", _PAUSED)

        async def released() -> None:
            while self._interrupts.paused:
                await self._interrupts.wait()

        await self._interrupts.run_interruptibly(released(), waiting=True, interruptible=False)

    async def _wait_while_looping(self) -> None:
        """Wait, without a model call, for mail that ends a loop of equal calls. The loop is a need of the user."""
        run_state = self._run_state
        if run_state.conversation.repeats < HELD_REPEATS:
            return
        run_state.show("working", "waits for mail, because it repeats the same call")

        async def until_mail() -> None:
            while run_state.conversation.repeats >= HELD_REPEATS:
                await self._interrupts.wait()
                if not self._interrupts.paused:
                    inbox.take_in(run_state)

        await self._interrupts.run_interruptibly(until_mail(), waiting=True)

    def _take_in_mail(self) -> None:
        """Let new mail enter before a model call. Tell the model about a shutdown request, and commands that ended."""
        self._interrupts.check_leave()
        run_state = self._run_state
        ended = self._file_tools.ended_commands()
        notices, instructions, shutdowns = list(ended.values()), [], []
        request = approvals.pending_shutdown(self._team, self._name, run_state.now())
        if request is not None and request.id not in run_state.conversation.shutdowns_told:
            instructions.append(f"{request.from_} asks you to shut down. Answer with shutdown_response.")
            if reason := str(request.payload.get("reason") or ""):
                notices.append(f"The reason that {request.from_} gives for a shutdown: {reason}")
            shutdowns.append(request.id)
        is_looping = run_state.conversation.repeats >= TOLD_REPEATS and not run_state.conversation.loop_was_told
        if is_looping:
            instructions.append(_LOOPING.format(run_state.conversation.repeats))
        inbox.take_in(run_state, notices=notices, instructions=instructions, shutdowns=shutdowns, looping=is_looping)
        for handle in ended:
            self._file_tools.background[handle].end_was_told = True

    async def _call(self) -> Reply:
        """Call the model. If the API does not take the request as it is, change what it refuses and call again."""
        conversation, window, is_repaired = self._run_state.conversation, self._context_window, False
        while True:
            opening = await self._bring_up_to_date()
            try:
                await window.make_room()
                if conversation.opening is None:
                    continue
                messages = self._run_state.request_messages()
                reply = await self._model.reply(
                    opening.system, opening.tools, messages, window.max_reply, may_exceed=window.may_exceed
                )
            except (TooLongError, MaybeTooLongError, MediaRefusedError) as refused:
                window.make_fit(refused)
                continue
            except StaleThinkingError:
                if is_repaired:
                    raise
                is_repaired = True
                self._begin_anew(opening)
                continue
            except DeferredToolsError:
                if not self._model.defers_tools:
                    raise
                # All tools are shown from here on.
                self._model.defers_tools = False
                continue
            window.learn(reply)
            await self._model.ask_again()
            return reply

    async def _bring_up_to_date(self) -> Opening:
        """Return what the next request begins with: what the last one began with, as long as that can stay.

        A text that has changed is told at the end of the conversation. A tool that the agent may not use any more
        stays where it is, and is refused when it is called. Only for a rule or a tool that is new, or for a tool
        of the API that must go, requests begin in another way from here on, and earlier thinking is not sent.
        """
        run_state, conversation = self._run_state, self._run_state.conversation
        opening, spec = conversation.opening, run_state.spec
        if opening is not None and (conversation.is_paused_turn or conversation.takes_only_results):
            return opening
        await self._mcp.refresh()
        where = surroundings(spec, run_state.workspace, run_state.now())
        on_demand = self._loads_on_demand(opening)
        texts = preface(
            spec, where, *await self._project(), conversation.key, *await self._skills(),
            self._mcp.index() if on_demand else "",
        )  # fmt: skip
        wanted = Opening(
            ts=run_state.now(), system=system_prompt(self._name, spec, roster.load(self._team)),
            tools=self._registry.definitions(on_demand=on_demand), preface=texts, instructs=self._model.hears_system,
            falls_back=self._model.falls_back,
        )  # fmt: skip
        if opening is None or opening.system != wanted.system:
            return self._begin_anew(wanted)
        if opening.instructs > wanted.instructs or opening.falls_back > wanted.falls_back:
            # The server is another one.
            return self._begin_anew(wanted)
        if (tools := with_added(opening.tools, wanted.tools)) is None:
            return self._begin_anew(wanted)
        if len(tools) > len(opening.tools):
            opening = opening.replace(ts=run_state.now(), tools=tools, adds=True)
            run_state.append(opening)
        if changed := changed_texts(conversation.preface, texts):
            notices = [
                f"{what[:1].upper()}{what[1:]} has changed; this is the new text, which replaces the one before."
                if text
                else f"{what[:1].upper()}{what[1:]} is gone, and applies no longer."
                for what, text in changed.items()
            ]
            run_state.append(Intake(ts=run_state.now(), cursor=conversation.cursor, notices=notices, updates=changed))
        return opening

    def _loads_on_demand(self, opening: Opening | None) -> bool:
        """Return True if the tools of MCP servers are loaded on demand: they are many, or were so far."""
        were = opening is not None and any(tool["name"] == FIND_TOOLS for tool in opening.tools)
        return self._model.defers_tools and (were or self._registry.has_many_of_servers(self._run_state.window))

    def _begin_anew(self, opening: Opening) -> Opening:
        """Begin requests with this opening from here on, without the thinking so far."""
        self._run_state.append(opening.replace(ts=self._run_state.now(), adds=False))
        return opening

    async def _skills(self) -> tuple[str, dict[str, str]]:
        """Return the list of skills, and the texts of those that the agent's type names, as this assignment began."""
        assignment = self._run_state.conversation.assignment
        ident = assignment.id if assignment is not None else ""
        if self._skills_of is None or self._skills_of[0] != ident:
            definition = self._run_state.spec.definition
            names = definition.skills if definition is not None else []
            listed = await skills.listing(self._file_tools, self._run_state.team.root)
            loaded = {name: await skills.load_text(self._file_tools, self._run_state.team.root, name) for name in names}
            self._skills_of = ident, listed, loaded
        return self._skills_of[1:]

    async def _project(self) -> tuple[str, str]:
        """Return name and text of the workspace's CLAUDE.md or AGENTS.md, with its imports, from the file-tool server.

        Without such a file, no server is started: one takes 70 ms of processor time and 7 MiB.
        """
        accepted = skill_files.accepted_files(self._run_state.team.root, os.environ)
        for name in PROJECT_FILES:
            if not os.path.lexists(self._run_state.workspace / name):
                continue
            outcome = await self._file_tools.ask("read_project_file", {"path": name, "accepted": accepted})
            if not outcome.is_error:
                return name, outcome.content
        return "", ""

    def _take_reply(self, reply: Reply) -> None:
        self._run_state.append(reply)
        if self._model.thinking_was_dropped and (opening := self._run_state.conversation.opening) is not None:
            # Thinking behind what was dropped would be dropped each time, and read and paid for anew.
            self._begin_anew(opening)
        self._run_state.clear_live()
        self._finish(reply)

    def _finish(self, reply: Reply) -> None:
        """Do what a committed reply requires, except running its tools."""
        conversation = self._run_state.conversation
        if conversation.pending and reply.stop_reason not in NOT_RUN:
            return
        assignment = conversation.assignment
        in_call = bool(conversation.pending)
        for block in list(conversation.pending):
            self._executor.result(block, Outcome("not run: the reply was cut off", is_error=True))
        if reply.stop_reason in CUT_OFF and conversation.parts >= _MOST_PARTS:
            self._results.fail(_ENDLESS.format(_MOST_PARTS, reply.stop_reason), ExitCode.FAILED)
            return
        if conversation.is_paused_turn:
            return
        if reply.stop_reason in CUT_OFF:
            if assignment is not None and assignment.cut_offs >= _MOST_CUT_OFFS:
                self._results.fail(_STUCK.format(_MOST_CUT_OFFS, self._context_window.max_reply), ExitCode.FAILED)
            else:
                self._tell(_CUT_IN_CALL if in_call else _CUT_IN_TEXT if text_of(reply).strip() else _CUT_IN_THOUGHT)
            return
        if conversation.is_silent and assignment is not None and assignment.silent == 1:
            self._tell(_SILENT)
            return
        text = conversation.said
        if reply.stop_reason == "refusal":
            error = f"{describe_stop(reply).rstrip('.')}. {text}".strip()
            self._results.fail(error, ExitCode.FAILED, refused_by=self._run_state.spec.model)
            return
        why = describe_stop(reply)
        silent = f"(the model ended its turn without text{f'; it {why}' if why else ''})"
        understood = (reply.stop_details or {}).get("type") != NOT_UNDERSTOOD
        self._results.answer(
            with_sources(text, conversation.sources) if text.strip() else silent,
            ExitCode.DONE if understood else ExitCode.FAILED,
        )
