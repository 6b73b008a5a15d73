"""The tools that work in the workspace: files, in the file-tool server, and bash. Neither runs in the worker."""

from collections.abc import Callable, Coroutine
from typing import Annotated, Any

from pydantic import Field

from crewboard.sandbox import shell
from crewboard.worker.tools.base import Context, In, Input, Outcome, Tool

_FilePath = Annotated[str, Field(min_length=1)]


class ReadFile(Input):
    path: _FilePath
    offset: int = Field(default=1, description="first line to read, counted from 1")
    limit: int = Field(default=2000, description="number of lines")


class WriteFile(Input):
    path: _FilePath
    content: str


class EditFile(Input):
    path: _FilePath
    old_text: str
    new_text: str


class Search(Input):
    pattern: str
    path: str = "."


class ListDir(Input):
    path: str = "."


def _in_server(name: str) -> Callable[[Context, In], Coroutine[Any, Any, Outcome]]:
    async def run(context: Context, given: In) -> Outcome:
        return await context.file_tools.ask(name, given.model_dump())

    return run


READ_FILE: Tool[ReadFile] = Tool(
    "read_file",
    "Read a text file of the workspace, with line numbers. Paths are relative to the workspace's root.",
    ReadFile,
    _in_server("read_file"),
)
WRITE_FILE: Tool[WriteFile] = Tool(
    "write_file", "Create a file in the workspace, or replace its whole content.", WriteFile, _in_server("write_file")
)
EDIT_FILE: Tool[EditFile] = Tool(
    "edit_file",
    "Replace old_text by new_text in a file. old_text must occur exactly once and match exactly, with white space.",
    EditFile,
    _in_server("edit_file"),
)
GLOB: Tool[Search] = Tool(
    "glob", "List files whose path matches a pattern such as src/**/*.py.", Search, _in_server("glob")
)
GREP: Tool[Search] = Tool(
    "grep", "Search files for a regular expression. Returns path:line:text.", Search, _in_server("grep")
)
LIST_DIR: Tool[ListDir] = Tool("list_dir", "List a folder of the workspace.", ListDir, _in_server("list_dir"))


class Bash(Input):
    command: str = Field(pattern=r"\S")
    timeout: float = Field(default=120, gt=0, le=shell.MAX_SECONDS, description="seconds")


async def _run_bash(context: Context, given: Bash) -> Outcome:
    result = await shell.run(given.command, context.file_tools.sandbox, given.timeout, context.survivors)
    return Outcome(result.content, is_error=result.is_error, exit_code=result.exit_code)


BASH: Tool[Bash] = Tool(
    "bash",
    "Run a command with bash in the workspace's root. All processes that it starts end with it.",
    Bash,
    _run_bash,
    seconds=lambda given: given.timeout + shell.KILL_GRACE,
)

TOOLS = (BASH, READ_FILE, WRITE_FILE, EDIT_FILE, GLOB, GREP, LIST_DIR)
