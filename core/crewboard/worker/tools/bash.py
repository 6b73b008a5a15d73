"""The bash tool."""

from pydantic import Field

from crewboard.sandbox import shell
from crewboard.worker.tools.base import Context, Input, Tool
from crewboard.worker.tools.outcome import Outcome

SLACK = 10.0
"""Seconds beyond its own limit before a command counts as stuck."""


class Bash(Input):
    command: str
    timeout: float = Field(default=120, gt=0, le=shell.MAX_SECONDS, description="seconds")


async def _run(context: Context, given: Bash) -> Outcome:
    if not given.command.strip():
        return Outcome("the command is empty", is_error=True)
    helper = context.file_tools.pid
    result = await shell.run(given.command, context.file_tools.box, given.timeout, {helper} if helper else set())
    return Outcome(result.content, is_error=result.is_error)


BASH: Tool[Bash] = Tool(
    "bash",
    "Run a command with bash in the workspace's root. Nothing that it starts outlives it.",
    Bash,
    _run,
    seconds=lambda given: given.timeout + SLACK,
)

TOOLS = (BASH,)
