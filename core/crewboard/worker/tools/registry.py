"""Which tools an agent has, and the dispatcher that refuses every other call, whatever the model was shown."""

from typing import Any

from pydantic import ValidationError

from crewboard.agent_types.builtin import GATED_TOOLS, TEAM_TOOLS
from crewboard.agent_types.custom import type_of
from crewboard.names import LEAD
from crewboard.protocol import approvals
from crewboard.store import roster
from crewboard.worker.run_state import RunState
from crewboard.worker.tools import bash, files, messaging, planning, tasks, team
from crewboard.worker.tools.base import Tool
from crewboard.worker.tools.outcome import Outcome

TOOLS: dict[str, Tool[Any]] = {
    tool.name: tool for module in (bash, files, messaging, tasks, planning, team) for tool in module.TOOLS
}

USUAL_DEADLINE = 60.0
"""Seconds that a tool may take before its agent counts as stuck, where it does not say itself."""


class ToolRegistry:
    """The tools of one agent, now."""

    def __init__(self, run_state: RunState) -> None:
        self._run_state = run_state
        self._type = type_of(run_state.spec.type, run_state.spec.definition)

    @property
    def shut(self) -> bool:
        """Whether the agent may not write or run anything, because its plan is not approved."""
        assignment = self._run_state.conversation.assignment
        return self.gated and not (assignment and assignment.gate_open)

    @property
    def gated(self) -> bool:
        """Whether this assignment needs a plan."""
        assignment = self._run_state.conversation.assignment
        return self._run_state.spec.flags.plan or bool(assignment and assignment.plan_wanted)

    def allowed(self) -> list[str]:
        """The tools that the agent has, in a fixed order so that the prompt cache holds."""
        names = [name for name in (*self._type.tools, *TEAM_TOOLS) if name != "review_plan" or self._reviews()]
        if self.gated and "submit_plan" not in names:
            names.append("submit_plan")
        if self._asked_to_leave():
            names.append("shutdown_response")
        return names

    def _reviews(self) -> bool:
        """Whether plans are the lead's to review."""
        return roster.load(self._run_state.agent.team).plan_approver == LEAD

    def _asked_to_leave(self) -> bool:
        agent = self._run_state.agent
        return approvals.pending_shutdown(agent.team, agent.name, self._run_state.now()) is not None

    def definitions(self) -> list[dict[str, Any]]:
        """The tools as the model is shown them."""
        return [TOOLS[name].definition() for name in self.allowed()]

    def find(self, name: str) -> Tool[Any] | Outcome:
        """The tool that a call names, or why it may not be called."""
        if name not in self.allowed():
            return Outcome(f"an agent of type {self._type.name} has no tool {name!r}", is_error=True)
        if self.shut and name in GATED_TOOLS:
            return Outcome(
                f"{name} is not open to you yet: submit a plan with submit_plan, and go on when it is approved",
                is_error=True,
            )
        return TOOLS[name]

    @staticmethod
    def deadline(tool: Tool[Any], given: Any, now: float) -> float | None:  # noqa: ANN401  the tool's own input model
        """When a call counts as stuck; never while it waits for somebody."""
        if tool.waits:
            return None
        return now + (tool.seconds(given) if tool.seconds else USUAL_DEADLINE)

    @staticmethod
    def parse(tool: Tool[Any], arguments: Any) -> Any:  # noqa: ANN401  as above
        """The call's input, or an `Outcome` that says what is wrong with it."""
        try:
            return tool.input.model_validate(arguments)
        except ValidationError as error:
            complaints = "; ".join(
                f"{'.'.join(map(str, e['loc'])) or 'input'}: {e['msg']}" for e in error.errors(include_url=False)
            )
            return Outcome(f"{tool.name} was not run: {complaints}", is_error=True)
