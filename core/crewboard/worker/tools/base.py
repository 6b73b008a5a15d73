"""What a tool is: a name, a description for the model, the form of its input, and a function."""

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict

from crewboard.records import Request
from crewboard.store.json_files import CachedFile
from crewboard.store.layout import TeamDirectory
from crewboard.worker.interrupts import Interrupts
from crewboard.worker.run_state import RunState
from crewboard.worker.tools.file_client import FileToolClient
from crewboard.worker.tools.outcome import Outcome


class Input(BaseModel):
    """Base of all tool inputs."""

    model_config = ConfigDict(extra="forbid")


class NoInput(Input):
    """The input of a tool that takes none."""


In = TypeVar("In", bound=Input)


@dataclass(frozen=True)
class Context:
    """What a tool call may use. `tool_use_id` is the id of the call."""

    run_state: RunState
    interrupts: Interrupts
    file_tools: FileToolClient
    tool_use_id: str
    environment: Mapping[str, str]
    """The worker's own environment, with keys. Agents that a lead hires get it; commands never do."""

    @property
    def name(self) -> str:
        """Return the name of the calling agent."""
        return self.run_state.name

    @property
    def team(self) -> TeamDirectory:
        """Return the agent's team."""
        return self.run_state.team

    def now(self) -> float:
        """Return the time."""
        return self.run_state.now()

    async def wait_for_decision(self, request: Request, doing: str) -> Request:
        """Wait until a request is closed. Meanwhile the agent approves shutdown requests.

        The request's file decides. The mail about the decision is marked as read by the result that follows.

        Raises:
            Interrupted: The agent must read its mail. The request is cancelled.
            WorkerExit: The run ends. The request stays open until the run is finalized.
        """
        self.run_state.show("waiting", doing, waiting_for=request.id)
        # A file that is damaged while the agent waits decides nothing.
        file = CachedFile(self.team.request(request.id), Request)

        async def closed() -> Request:
            while True:
                current = file.get()
                if current is not None and current.status != "pending":
                    return current
                await self.interrupts.wait()

        return await self.interrupts.run_interruptibly(closed(), waiting=True)


@dataclass(frozen=True)
class Tool(Generic[In]):
    """One tool.

    A tool that `waits` handles interrupts itself, and continues its wait after a crash. A `repeatable` tool may run
    again after a crash, because running it twice has the same effect as once.
    """

    name: str
    description: str
    input: type[In]
    run: Callable[[Context, In], Coroutine[Any, Any, Outcome]]
    waits: bool = False
    repeatable: bool = False
    seconds: Callable[[In], float] | None = None
    """After how many seconds the agent counts as stuck; None for the default."""

    def definition(self) -> dict[str, Any]:
        """Return the tool in the form of the Messages API."""
        return {"name": self.name, "description": self.description, "input_schema": _schema(self.input)}


@cache
def _schema(model: type[Input]) -> dict[str, Any]:
    """Return the JSON schema of an input. Cached: it takes 0.3 ms, for each tool of each model call."""
    schema = model.model_json_schema()
    schema.pop("description", None)
    for part in (schema, *schema.get("properties", {}).values()):
        part.pop("title", None)
    return schema
