"""Running the tool calls of a reply: through the gate, with permission where that is asked for, and journalled."""

from collections.abc import Mapping
from typing import Any

from crewboard.agent_types.builtin import GATED_TOOLS
from crewboard.protocol import approvals, requests
from crewboard.records import ToolResult, ToolStart, describe_call
from crewboard.text import elide_middle
from crewboard.worker.interrupts import Interrupts
from crewboard.worker.llm.blocks import Block
from crewboard.worker.run_state import RunState
from crewboard.worker.tools import permissions
from crewboard.worker.tools.base import Context, Tool
from crewboard.worker.tools.file_client import FileToolClient
from crewboard.worker.tools.outcome import Outcome
from crewboard.worker.tools.registry import ToolRegistry

UNKNOWN_OUTCOME = "interrupted, outcome unknown: the worker ended while this ran; check before doing it again"

LARGEST_RESULT = 100_000
"""Characters of a result, where the window is not known yet."""


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
        self._largest = LARGEST_RESULT

    async def run_pending(self, largest: int) -> None:
        """Run the calls of the last reply that have no result yet; of results, `largest` characters are kept.

        Raises:
            Interrupted: Somebody wants the agent to read its mail.
            Leave: The run ends.
        """
        conversation = self._run_state.conversation
        self._largest = largest
        for block in list(conversation.pending):
            self._interrupts.check_leave()
            tool = self._registry.find(block["name"])
            given = tool if isinstance(tool, Outcome) else ToolRegistry.parse(tool, block["input"])
            if isinstance(tool, Outcome) or isinstance(given, Outcome):
                self.result(block, given)
            elif block["id"] not in conversation.started:
                await self._start(block, tool, given)
            elif tool.waits or tool.repeatable:
                await self._run(block, tool, given)
            else:
                self.result(block, Outcome(UNKNOWN_OUTCOME, is_error=True), None)

    async def _start(self, block: Block, tool: Tool[Any], given: Any) -> None:  # noqa: ANN401  the tool's own input model
        """Ask where that was wished for, note that the call begins, and run it."""
        run_state = self._run_state
        told: list[str] = []
        if run_state.spec.flags.ask and tool.name in GATED_TOOLS:
            decided = await permissions.ask(self._context(block), tool.name, block["input"])
            if decided is not None and decided.status != "approved":
                self.result(block, permissions.refusal(tool.name, decided))
                return
            told = [approvals.response_id(decided)] if decided is not None else []
        start = ToolStart(
            ts=run_state.now(), tool_use_id=block["id"], name=tool.name, input=block["input"], consumed=told
        )  # fmt: skip
        run_state.append(start)
        await self._run(block, tool, given)

    async def _run(self, block: Block, tool: Tool[Any], given: Any) -> None:  # noqa: ANN401  as above
        run_state = self._run_state
        began = run_state.now()
        run_state.last_tool = describe_call(tool.name, block["input"])
        run_state.show("working", run_state.last_tool, deadline=ToolRegistry.deadline(tool, given, began))
        work = tool.run(self._context(block), given)
        outcome = await work if tool.waits else await self._interrupts.run_interruptibly(work)
        self.result(block, outcome, run_state.now() - began)

    def _context(self, block: Block) -> Context:
        return Context(self._run_state, self._interrupts, self._file_tools, block["id"], self._environment)

    def result(self, block: Block, outcome: Outcome, seconds: float | None = 0) -> None:
        """Journal what a call gave, and how long it took where that is known."""
        run_state = self._run_state
        run_state.append(
            ToolResult(
                ts=run_state.now(),
                tool_use_id=block["id"],
                name=block["name"],
                content=elide_middle(outcome.content, self._largest),
                is_error=outcome.is_error,
                created=outcome.created,
                consumed=list(outcome.consumed),
                seconds=seconds if seconds is None else round(seconds, 3),
            )
        )

    def drop_pending(self) -> None:
        """After an interrupt: what was running has no outcome, what had not begun is not run."""
        run_state = self._run_state
        if run_state.status.waiting_for is not None:
            requests.close(
                run_state.agent.team, run_state.status.waiting_for, "cancelled", run_state.agent.name, run_state.now()
            )
        for block in list(run_state.conversation.pending):
            began = run_state.conversation.started.get(block["id"])
            words = "not run: interrupted" if began is None else "interrupted before it ended"
            took = 0 if began is None else max(0, run_state.now() - began)
            self.result(block, Outcome(f"{words}; read your mail", is_error=True), took)
