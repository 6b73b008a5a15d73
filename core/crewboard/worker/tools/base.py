"""What a tool is: a name, words for the model, the form of its input, and a function."""

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict

from crewboard.worker.interrupts import Interrupts
from crewboard.worker.run_state import RunState
from crewboard.worker.tools.file_client import FileToolClient
from crewboard.worker.tools.outcome import Outcome


class Input(BaseModel):
    """Base of all tool inputs."""

    model_config = ConfigDict(extra="forbid")


In = TypeVar("In", bound=Input)


@dataclass(frozen=True)
class Context:
    """What a tool call may use. `tool_use_id` is the call's own id."""

    run_state: RunState
    interrupts: Interrupts
    file_tools: FileToolClient
    tool_use_id: str
    environment: Mapping[str, str]
    """What this worker was started with, keys included: for agents that a lead hires, never for a command."""

    @property
    def name(self) -> str:
        """The agent that calls."""
        return self.run_state.agent.name


@dataclass(frozen=True)
class Tool(Generic[In]):
    """One tool. One that `waits` listens for interrupts itself, and takes its own wait up again after a crash.

    A `repeatable` one may be run again after a crash, because doing it twice is doing it once.
    """

    name: str
    description: str
    input: type[In]
    run: Callable[[Context, In], Coroutine[Any, Any, Outcome]]
    waits: bool = False
    repeatable: bool = False
    seconds: Callable[[In], float] | None = None
    """How long a call may take before the agent counts as stuck; None for the usual."""

    def definition(self) -> dict[str, Any]:
        """The tool as the Messages API wants it."""
        return {"name": self.name, "description": self.description, "input_schema": _schema(self.input)}


@cache
def _schema(model: type[Input]) -> dict[str, Any]:
    """The form of an input; a third of a millisecond each, which every model call would pay for every tool."""
    schema = model.model_json_schema()
    for part in (schema, *schema.get("properties", {}).values()):
        part.pop("title", None)
    return schema
