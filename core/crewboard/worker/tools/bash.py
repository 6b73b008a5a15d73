"""The bash tool."""

from pydantic import Field

from crewboard.errors import UsageError
from crewboard.sandbox import shell
from crewboard.worker.tools.base import Context, Input, Tool
from crewboard.worker.tools.outcome import Outcome

KILL_GRACE = 10.0
"""Seconds beyond its own timeout after which a command counts as stuck."""


class Bash(Input):
    command: str
    timeout: float = Field(default=120, gt=0, le=shell.MAX_SECONDS, description="seconds")


async def _run(context: Context, given: Bash) -> Outcome:
    if not given.command.strip():
        raise UsageError("the command is empty")
    # The file-tool server must survive the cleanup after a command.
    server = context.file_tools.pid
    result = await shell.run(given.command, context.file_tools.sandbox, given.timeout, {server} if server else set())
    return Outcome(result.content, is_error=result.is_error)


BASH: Tool[Bash] = Tool(
    "bash",
    "Run a command with bash in the workspace's root. All processes that it starts end with it.",
    Bash,
    _run,
    seconds=lambda given: given.timeout + KILL_GRACE,
)

TOOLS = (BASH,)
