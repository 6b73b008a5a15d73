"""The executor of a reply's tool calls: checks them, asks for permission where that is wanted, and journals them."""

import time
import traceback
from collections.abc import Mapping
from typing import Any

from crewboard import protocol
from crewboard.records import CrewboardError, StorageError, ToolResult, ToolStart, describe_call
from crewboard.untrusted import elide_middle, without_surrogates
from crewboard.worker.conversation import Block
from crewboard.worker.interrupts import Interrupts
from crewboard.worker.run_state import RunState
from crewboard.worker.tools.base import Context, FileToolClient, Outcome, Tool
from crewboard.worker.tools.permissions import seek_permit
from crewboard.worker.tools.registry import ToolRegistry

UNKNOWN_OUTCOME = "interrupted, outcome unknown: the worker ended while this ran. Check before you run it again."

MAX_RESULT = 100_000
"""Characters of a result, while the size of the window is unknown."""


class ToolExecutor:
    """The tool calls of one worker."""

    def __init__(
        self,
        run_state: RunState,
        interrupts: Interrupts,
        registry: ToolRegistry,
        file_tools: FileToolClient,
        environment: Mapping[str, str],
    ) -> None:
        self._run_state = run_state
        self._interrupts = interrupts
        self._registry = registry
        self._file_tools = file_tools
        self._environment = environment
        self._max_result = MAX_RESULT
        self._began: dict[str, float] = {}
        """When calls of this run began (monotonic), by id."""

    async def run_pending(self, max_result: int) -> None:
        """Run the calls of the last reply that have no result yet. Keep `max_result` characters of each result.

        Raises:
            Interrupted: The agent must read its mail.
            WorkerExit: The run ends.
        """
        conversation = self._run_state.conversation
        self._max_result = max_result
        for block in list(conversation.pending):
            self._interrupts.check_leave()
            if (reason := conversation.refused.get(block["id"])) is not None:
                self.result(block, Outcome(f"{block['name']} was not run: {reason}", is_error=True))
                continue
            tool = self._registry.find(block["name"])
            given = tool if isinstance(tool, Outcome) else ToolRegistry.parse(tool, block["input"])
            if isinstance(tool, Outcome) or isinstance(given, Outcome):
                self.result(block, given)
            elif block["id"] not in conversation.started or tool.waits or tool.repeatable:
                await self._run_or_refuse(block, tool, given)
            else:
                self.result(block, Outcome(UNKNOWN_OUTCOME, is_error=True), None)

    async def _run_or_refuse(self, block: Block, tool: Tool[Any], given: Any) -> None:  # noqa: ANN401  the tool's own input model
        """Start or continue one call. An input that no check expects ends this call, not the run."""
        try:
            if block["id"] in self._run_state.conversation.started:
                await self._run(block, tool, given)
            else:
                await self._start(block, tool, given)
        except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError) as error:
            # The log shows where.
            traceback.print_exc()
            self.result(block, Outcome(f"{tool.name} failed on its input: {error!r}"[:1000], is_error=True), None)

    async def _start(self, block: Block, tool: Tool[Any], given: Any) -> None:  # noqa: ANN401  as above
        """Ask for permission if that is wanted, journal that the call begins, and run it."""
        run_state = self._run_state
        permit = await seek_permit(self._context(block), tool.name, block["input"])
        if isinstance(permit, Outcome):
            self.result(block, permit)
            return
        start = ToolStart(
            ts=run_state.now(),
            tool_use_id=block["id"],
            name=tool.name,
            input=block["input"],
            consumed=list(permit.consumed),
            deviates=permit.deviates,
            rule=permit.rule.id if permit.rule is not None else None,
        )
        run_state.append(start)
        await self._run(block, tool, given)

    async def _run(self, block: Block, tool: Tool[Any], given: Any) -> None:  # noqa: ANN401  as above
        run_state = self._run_state
        began = self._began[block["id"]] = time.monotonic()
        run_state.show_tool(describe_call(tool.name, block["input"]), ToolRegistry.timeout(tool, given))
        work = tool.run(self._context(block), given)
        try:
            outcome = await work if tool.waits else await self._interrupts.run_interruptibly(work)
        except StorageError:
            # The journal may be affected too, and the call may be half done: end the run.
            raise
        except CrewboardError as error:
            outcome = Outcome(str(error), is_error=True)
        self.result(block, outcome, time.monotonic() - began)

    def _context(self, block: Block) -> Context:
        return Context(self._run_state, self._interrupts, self._file_tools, block["id"], self._environment)

    def result(self, block: Block, outcome: Outcome, seconds: float | None = 0) -> None:
        """Journal the result of a call, and how long it took if that is known."""
        run_state = self._run_state
        run_state.append(
            ToolResult(
                ts=run_state.now(),
                tool_use_id=block["id"],
                name=block["name"],
                content=elide_middle(without_surrogates(outcome.content), self._max_result),
                is_error=outcome.is_error,
                created=outcome.created,
                consumed=list(outcome.consumed),
                exit_code=outcome.exit_code,
                rule=outcome.rule,
                seconds=seconds if seconds is None else round(seconds, 3),
            )
        )

    def drop_pending(self) -> None:
        """Cancel the request that was waited for, and give each pending call an error result, after an interrupt."""
        run_state = self._run_state
        if run_state.status.waiting_for is not None:
            protocol.requests.close(
                run_state.team, run_state.status.waiting_for, "cancelled", run_state.name, run_state.now()
            )
        for block in list(run_state.conversation.pending):
            started = block["id"] in run_state.conversation.started
            reason = "interrupted before it ended" if started else "not run: interrupted"
            began = self._began.get(block["id"])
            took = 0 if began is None else time.monotonic() - began
            self.result(block, Outcome(f"{reason}; read your mail", is_error=True), took)
