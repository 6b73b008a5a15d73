"""The executor of a reply's tool calls: check them, ask for permission where it is needed, run and journal them."""

import asyncio
import itertools
import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from crewboard.errors import CrewboardError, StorageError, UsageError
from crewboard.protocol import requests
from crewboard.records.events import ToolResult, ToolStart, describe_call
from crewboard.store import agents
from crewboard.untrusted import elide_middle, without_surrogates
from crewboard.worker.conversation import Block
from crewboard.worker.interrupts import Interrupted, Interrupts
from crewboard.worker.run_state import RunState
from crewboard.worker.snapshots import Snapshots
from crewboard.worker.tools.base import (
    INPUT_ERRORS,
    MAX_SERVERS,
    Context,
    FileToolClient,
    Outcome,
    Tool,
    failed_on_input,
)
from crewboard.worker.tools.permissions import file_changed_by, seek_permit
from crewboard.worker.tools.registry import ToolRegistry

UNKNOWN_OUTCOME = "interrupted, outcome unknown: the worker ended while this ran. Check before you run it again."

MAX_RESULT = 100_000
"""The most characters of a tool result while the size of the window is unknown."""


class _Done(NamedTuple):
    """The outcome of a call, and how many seconds it took; None if that is not known."""

    outcome: Outcome
    seconds: float | None = 0


_Ready = tuple[Tool[Any], Any]
"""A tool and its checked input: a call that may run."""


class ToolExecutor:
    """The executor of one worker's tool calls."""

    def __init__(
        self,
        run_state: RunState,
        interrupts: Interrupts,
        registry: ToolRegistry,
        file_tools: FileToolClient,
        environment: Mapping[str, str],
        snapshots: Snapshots,
    ) -> None:
        self._run_state = run_state
        self._interrupts = interrupts
        self._registry = registry
        self._file_tools = file_tools
        self._environment = environment
        self._snapshots = snapshots
        self._max_result = MAX_RESULT
        self._began: dict[str, float] = {}
        """When the calls of this run began, by the monotonic clock, by id of the call."""
        self._cut_off: dict[str, str] = {}

    async def run_pending(self, max_result: int) -> None:
        """Run the calls of the last reply that have no result yet. Keep at most `max_result` characters of a result.

        Raises:
            Interrupted: The agent must read its mail.
            WorkerExit: The run ends.
        """
        self._max_result = max_result
        pending = list(self._run_state.conversation.pending)
        # A call that may change something runs after all calls before it, and before all calls behind it.
        for most, group in itertools.groupby(pending, key=lambda block: self._registry.most_at_once(block["name"])):
            blocks = list(group)
            for start in range(0, len(blocks), most):
                self._interrupts.check_leave()
                together = blocks[start : start + most]
                if len(together) > 1:
                    await self._run_together(together)
                else:
                    await self.run_call(together[0])

    async def run_call(self, block: Block) -> Outcome:
        """Run one call that has no result yet, and return its outcome.

        Raises:
            Interrupted: The agent must read its mail.
            WorkerExit: The run ends.
        """
        ready = await self._prepare(block)
        if isinstance(ready, _Done):
            return self.result(block, ready.outcome, ready.seconds)
        tool, given = ready
        self._run_state.show_tool(describe_call(tool.name, block["input"]), tool.timeout(given))
        work = self._run(block, ready)
        done = await work if tool.waits else await self._interrupts.run_interruptibly(work)
        # Before the result: what the conversation believes must not be lost with this host.
        return self.result(block, done.outcome, done.seconds, await self._snapshots.take_after(tool.name))

    async def _run_together(self, blocks: list[Block]) -> None:
        """Run calls at once, and journal their results in the order of the calls, each as soon as possible.

        Raises:
            Interrupted: The agent must read its mail.
            WorkerExit: The run ends.
        """
        ready = [await self._prepare(block) for block in blocks]
        running = [found for found in ready if not isinstance(found, _Done)]
        if any(tool.waits for tool, _ in running):
            await self._finish_in_order(blocks, ready)
            return
        rounds = -(-len(running) // MAX_SERVERS)
        limits = [tool.timeout(given) or 0 for tool, given in running]
        if running:
            call = describe_call(blocks[-1]["name"], blocks[-1]["input"])
            self._run_state.show_tool(call, max(limits) * rounds, len(blocks) - 1)
        await self._interrupts.run_interruptibly(self._finish_in_order(blocks, ready))

    async def _finish_in_order(self, blocks: list[Block], ready: "list[_Done | _Ready]") -> None:
        calls = [asyncio.ensure_future(self._run(block, found)) for block, found in zip(blocks, ready, strict=True)]
        try:
            for block, call in zip(blocks, calls, strict=True):
                done = await call
                self.result(block, done.outcome, done.seconds)
        except Interrupted:
            # The others see the interrupt, too, and let what they wait for come as mail.
            await asyncio.gather(*calls, return_exceptions=True)
            raise
        finally:
            unfinished = [call for call in calls if not call.done()]
            for call in unfinished:
                call.cancel()
            await asyncio.gather(*unfinished, return_exceptions=True)

    async def _prepare(self, block: Block) -> "_Done | _Ready":
        """Check one call, ask for permission if need be, and journal that it begins.

        Return the tool and its input, or the outcome if the call must not run: it is refused, its input is wrong, or it
        was begun by a worker that ended, and may not be repeated.

        Raises:
            Interrupted: The agent must read its mail.
            WorkerExit: The run ends.
        """
        run_state, conversation = self._run_state, self._run_state.conversation
        if (reason := conversation.refused.get(block["id"])) is not None:
            return _Done(Outcome(f"{block['name']} was not run: {reason}", is_error=True))
        tool = self._registry.find(block["name"])
        if isinstance(tool, Outcome):
            return _Done(tool)
        try:
            given = tool.parse(block["input"])
        except UsageError as error:
            return _Done(Outcome(str(error), is_error=True))
        if block["id"] in conversation.started:
            again = tool.waits or tool.repeatable
            return (tool, given) if again else _Done(Outcome(UNKNOWN_OUTCOME, is_error=True), None)
        try:
            permit = await seek_permit(self._context(block), tool.name, block["input"])
            if isinstance(permit, Outcome):
                return _Done(permit)
            run_state.append(
                ToolStart(
                    ts=run_state.now(),
                    tool_use_id=block["id"],
                    name=tool.name,
                    input=block["input"],
                    consumed=list(permit.consumed),
                    deviates=permit.deviates,
                    rule=permit.rule.id if permit.rule is not None else None,
                    file=file_changed_by(tool.name, block["input"], str(run_state.workspace)),
                )
            )
        except INPUT_ERRORS as error:
            return _Done(failed_on_input(tool.name, error), None)
        return tool, given

    async def _run(self, block: Block, ready: "_Done | _Ready") -> _Done:
        """Run one prepared call, and return its outcome. An error of the tool is an outcome, too.

        Raises:
            StorageError: A file could not be written; the call may be half done.
            Interrupted: The agent must read its mail; only from a tool that `waits`.
            WorkerExit: The run ends.
        """
        if isinstance(ready, _Done):
            return ready
        tool, given = ready
        began = self._began[block["id"]] = time.monotonic()
        try:
            outcome = await tool.run(self._context(block), given)
        except StorageError:
            # The journal may be affected too, and the call may be half done: end the run.
            raise
        except CrewboardError as error:
            outcome = Outcome(str(error), is_error=True)
        except INPUT_ERRORS as error:
            return _Done(failed_on_input(tool.name, error), None)
        return _Done(outcome, time.monotonic() - began)

    def _context(self, block: Block) -> Context:
        return Context(
            self._run_state, self._interrupts, self._file_tools, block["id"], self._environment, self._cut_off,
            self._registry.of_servers(),
        )  # fmt: skip

    def result(self, block: Block, outcome: Outcome, seconds: float | None = 0, snapshot: str | None = None) -> Outcome:
        """Journal the result of a call, and return the outcome as the model is told it.

        A long text is shortened; a result with an image or document that the model does not take becomes an error.
        `seconds` is how long the call took, None if that is not known. `snapshot` is the commit of a snapshot that was
        taken after the call, None without one.
        """
        run_state = self._run_state
        if (why := run_state.refuses_media([kind for _, kind, _ in outcome.media])) is not None:
            outcome = Outcome(f"{block['name']} was not run: {why}", is_error=True)
        outcome = replace(outcome, content=elide_middle(without_surrogates(outcome.content), self._max_result))
        media = [agents.keep_media(run_state.agent, *each) for each in outcome.media]
        run_state.append(
            ToolResult(
                ts=run_state.now(),
                tool_use_id=block["id"],
                name=block["name"],
                content=outcome.content,
                is_error=outcome.is_error,
                created=outcome.created,
                consumed=list(outcome.consumed),
                exit_code=outcome.exit_code,
                rule=outcome.rule,
                media=media,
                snapshot=snapshot,
                tools=list(outcome.tools),
                unchanged=outcome.unchanged,
                seconds=seconds if seconds is None else round(seconds, 3),
            )
        )
        return outcome

    async def drop_pending(self, tools: Collection[str] | None = None) -> list[Outcome]:
        """After an interrupt, cancel the request that the agent waits for, and give each pending call an error.

        With `tools`, give it only to calls of these tools. Return the outcomes. The output of an interrupted command is
        part of its outcome.
        """
        run_state = self._run_state
        dropped = []
        if run_state.status.waiting_for is not None:
            requests.close(run_state.team, run_state.status.waiting_for, "cancelled", run_state.name, run_state.now())
        for block in list(run_state.conversation.pending):
            if tools is not None and block["name"] not in tools:
                continue
            started = block["id"] in run_state.conversation.started
            reason = f"{'interrupted before it ended' if started else 'not run: interrupted'}; read your mail"
            printed = self._cut_off.pop(block["id"], "").rstrip()
            content = f"{printed}\n[ended: {reason}]" if printed else reason
            began = self._began.get(block["id"])
            took = 0 if began is None else time.monotonic() - began
            snapshot = await self._snapshots.take_after(block["name"]) if started else None
            dropped.append(self.result(block, Outcome(content, is_error=True), took, snapshot))
        return dropped
