"""The tools for files and for commands. File tools run in the file-tool server, commands in the sandbox.

What `edit_file` replaces is found in `edits.py`.
"""

import asyncio
import contextlib
import os
from base64 import b64decode
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Annotated, Self

from pydantic import Field, model_validator

from crewboard import skill_files
from crewboard.errors import LostLeaseError, StorageError, UsageError
from crewboard.names import PROJECT_FILES
from crewboard.records.events import FileKept
from crewboard.sandbox import shell
from crewboard.store import agents, mailbox
from crewboard.worker.run_state import KEPT_LIVE, LIVE_INTERVAL, RunState
from crewboard.worker.tools.base import Context, FileToolClient, Input, NonBlank, Outcome, PlannedChange, tool

MAX_BACKGROUND = 8
"""The most background commands of an agent at a time."""

_FIRST_LOOK = 0.5
"""Seconds that the start of a background command waits for its first output or its end."""

_GIVEN = "[Conventions for this folder, from the project's file {}:]"

_FilePath = Annotated[str, Field(min_length=1)]


class Bash(Input):
    command: NonBlank
    timeout: float = Field(
        default=120, gt=0, le=shell.BACKGROUND_SECONDS, description="seconds; at most 3600 unless in the background"
    )
    background: bool = Field(default=False, description="return at once; follow it with bash_output")

    @model_validator(mode="after")
    def _is_short(self) -> Self:
        if not self.background and self.timeout > shell.MAX_SECONDS:
            raise ValueError(f"timeout: at most {shell.MAX_SECONDS:g}; set background for a command that takes longer")
        return self


class _Live:
    """The preview of a command's output for readers, while the command runs."""

    def __init__(self, context: Context) -> None:
        self._run_state = context.run_state
        self._timer: asyncio.TimerHandle | None = None
        self._shown = shell.Output()

    @property
    def text(self) -> str:
        """Return the output so far, without its middle if it is long."""
        return self._shown.text

    def show(self, text: str) -> None:
        self._shown.add(text.encode("utf-8", "replace"))
        self._run_state.stream(text[-KEPT_LIVE:])
        if self._timer is None:
            # More output may not come for a long time.
            self._timer = asyncio.get_running_loop().call_later(LIVE_INTERVAL, self._flush)

    def _flush(self) -> None:
        self._timer = None
        # If the lease is lost, the next call of the model reports it.
        with contextlib.suppress(LostLeaseError, StorageError):
            self._run_state.flush()

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        with contextlib.suppress(LostLeaseError, StorageError):
            self._run_state.clear_live()


@tool(seconds=lambda given: _FIRST_LOOK + 60 if given.background else given.timeout + shell.KILL_GRACE)
async def bash(context: Context, given: Bash) -> Outcome:
    """Run a command with bash in the workspace's root. All processes that it starts end with it. For a server, a
    watcher or a long build set background: it runs on while you work, until you end it or this run ends, and cannot
    commit.
    """
    if given.background:
        known = context.file_tools.background
        running = [handle for handle, command in known.items() if command.result is None]
        if len(running) >= MAX_BACKGROUND:
            raise UsageError(
                f"{len(running)} commands run in the background already ({', '.join(running)}); end one with bash_kill"
            )
        seconds = given.timeout if "timeout" in given.model_fields_set else shell.BACKGROUND_SECONDS
        # The conversation may name commands of earlier runs, which start at 1, too.
        handle = f"bash-{context.run_state.spec.run}-{len(known) + 1}"
        known[handle] = command = shell.BackgroundCommand(
            given.command, context.sandbox, seconds, context.survivors, handle
        )
        # A command that fails at once is reported as the result of this call.
        await command.wait(_FIRST_LOOK)
        if command.result is not None:
            return _report(handle, command)
        text = (
            f"{handle} runs in the background. Follow it with bash_output, end it with bash_kill; it ends with this run"
        )
        return Outcome(f"{text}.\n{command.read()}".rstrip())
    live = _Live(context)
    context.run_state.clear_live()
    try:
        result = await shell.run(given.command, context.sandbox, given.timeout, context.survivors, live.show)
    except asyncio.CancelledError:
        context.cut_off[context.tool_use_id] = live.text
        raise
    finally:
        live.end()
    return Outcome(result.content, is_error=result.is_error, exit_code=result.exit_code)


def _report(handle: str, command: shell.BackgroundCommand) -> Outcome:
    """Return an outcome with what a background command printed since the last report, and if it has ended, how."""
    result, new = command.result, command.read().rstrip()
    if result is None:
        return Outcome(f"{new}\n[{handle} runs for {command.seconds:.0f} s]".lstrip())
    command.end_was_told = True
    ending = f"[{handle} has ended] {result.ending or result.content}"
    return Outcome(f"{new}\n{ending}".lstrip(), is_error=result.is_error, exit_code=result.exit_code)


class BashOutput(Input):
    handle: str = Field(description="as bash returned it, such as bash-1-1")
    wait: float = Field(
        default=0, ge=0, le=600, description="seconds to wait for new output or the end, if there is none yet"
    )


class BashKill(Input):
    handle: str = Field(description="as bash returned it, such as bash-1-1")


def _find_command(context: Context, handle: str) -> shell.BackgroundCommand:
    known = context.file_tools.background
    if handle in known:
        return known[handle]
    those = f"this run started {', '.join(known)}" if known else "this run started none"
    raise UsageError(f"there is no command {handle!r}; {those}; those of an earlier run ended with it")


@tool(repeatable=True, seconds=lambda given: given.wait + 60)
async def bash_output(context: Context, given: BashOutput) -> Outcome:
    """Read what a command in the background printed since you last looked, and whether it still runs. To wait for it,
    give wait; do not sleep.
    """
    command = _find_command(context, given.handle)
    await command.wait(given.wait)
    return _report(given.handle, command)


@tool(repeatable=True)
async def bash_kill(context: Context, given: BashKill) -> Outcome:
    """End a command that runs in the background, with all processes that it started."""
    command = _find_command(context, given.handle)
    await command.end()
    return _report(given.handle, command)


class ReadFile(Input):
    path: _FilePath
    offset: int = Field(default=1, description="first line to read, counted from 1")
    limit: int = Field(default=2000, description="number of lines")


class WriteFile(Input):
    path: _FilePath
    content: str


class Edit(Input):
    old_text: str
    new_text: str
    replace_all: bool = False


class EditFile(Input):
    path: _FilePath
    old_text: str = Field(default="", description="the text to replace, with its white space, without line numbers")
    new_text: str = Field(default="", description="the text to put there")
    replace_all: bool = Field(default=False, description="replace each occurrence, not the only one")
    edits: list[Edit] = Field(
        default=[],
        description="several replacements, made in this order: all or none. Instead of old_text and new_text",
    )
    diff: str = Field(
        default="", description="a unified diff of this file, found by its lines; instead of old_text and new_text"
    )

    @model_validator(mode="after")
    def _has_one_form(self) -> Self:
        given = self.model_fields_set
        forms = [bool(given & {"old_text", "new_text", "replace_all"}), "edits" in given, "diff" in given]
        if sum(forms) != 1:
            raise ValueError("give either old_text and new_text, or edits, or diff")
        if forms[0] and not {"old_text", "new_text"} <= given:
            raise ValueError("give old_text and new_text; an empty new_text removes the old one")
        if forms[1] and not self.edits:
            raise ValueError("edits is empty")
        return self


class Glob(Input):
    pattern: str
    path: str = "."


class Grep(Input):
    pattern: str = Field(description="a Python regular expression, matched line by line")
    path: str = Field(default=".", description="a file, or a folder to search with all below it")
    glob: str = Field(default="", description="search only such files, as **/*.py or *.{js,ts}")
    type: str = Field(default="", description="search only files of this type: py, js, ts, go, rust, md, json …")
    context: int = Field(default=0, ge=0, le=20, description="lines to show before and after each match")
    ignore_case: bool = False
    names_only: bool = Field(default=False, description="show only the paths of files with a match")
    ignored: bool = Field(default=False, description="search also files that .gitignore names")


class ListDir(Input):
    path: str = "."


async def _look(context: Context, name: str, given: Input) -> Outcome:
    """Run a tool that only reads in the file-tool server, and return its outcome, completed by `_enter`."""
    arguments = given.model_dump(exclude_unset=True)
    path = arguments.get("path", ".")
    context.team.fetch_result(path)
    return await _enter(context, path, await context.file_tools.ask(name, arguments))


async def _change(context: Context, name: str, given: Input) -> Outcome:
    """Run a tool that changes a file in the file-tool server, and return its outcome, completed by `_enter`.

    In the shared tree, the content before the change is kept and journalled, so that the change can be undone. An
    agent with a worktree has snapshots for that.
    """

    def keep(change: PlannedChange) -> None:
        # The content comes first, so that what is recorded can be found.
        content = None if change.before is None else b64decode(change.before)
        before = None if content is None else agents.keep_content(context.run_state.agent, content)
        context.run_state.append(
            FileKept(
                ts=context.now(), id=mailbox.new_id(), tool_use_id=context.tool_use_id, path=change.path,
                before=before, after=change.after, lost=change.lost, folders=change.folders,
            )
        )  # fmt: skip

    arguments = given.model_dump(exclude_unset=True)
    # What an agent does in a checkout of its own is known from snapshots.
    is_known = context.run_state.spec.worktree is not None
    outcome = await context.file_tools.ask(name, arguments, None if is_known else keep)
    return await _enter(context, arguments["path"], outcome)


async def read_project(run_state: RunState, file_tools: FileToolClient) -> tuple[str, str]:
    """Return name and text of the workspace's CLAUDE.md or AGENTS.md, with its imports; two empty texts without one.

    The file-tool server reads them. Without such a file no server is started, which takes 70 ms and 7 MiB.
    """
    accepted = skill_files.accepted_files(run_state.team.root, os.environ)
    for name in PROJECT_FILES:
        if not os.path.lexists(run_state.workspace / name):
            continue
        outcome = await file_tools.ask("read_project_file", {"path": name, "accepted": accepted})
        if not outcome.is_error:
            return name, outcome.content
    return "", ""


async def _enter(context: Context, path: str, outcome: Outcome) -> Outcome:
    """Return an outcome with the project's files of the folders on the way to `path` added to it.

    Those that the conversation has already are left out, and the one of the root, which stands before it.
    """
    if outcome.is_error:
        return outcome
    root = context.run_state.workspace
    used = PurePosixPath(os.path.relpath(root / path, root))
    folders = [*reversed(used.parents), *([used] if (root / path).is_dir() else [])]
    texts: list[str] = []
    for folder in folders:
        if folder == PurePosixPath() or ".." in folder.parts:
            continue
        names = [str(folder / name) for name in PROJECT_FILES if os.path.lexists(root / folder / name)]
        for name in names:
            if name == str(used) or _was_given(context, _GIVEN.format(name)):
                break
            accepted = skill_files.accepted_files(context.team.root, os.environ)
            found = await context.file_tools.ask("read_project_file", {"path": name, "accepted": accepted})
            if not found.is_error:
                texts.append(f"{_GIVEN.format(name)}\n{found.content}")
                break
            if not _was_given(context, found.content):
                texts.append(f"[{found.content}]")
    return replace(outcome, content="\n\n".join([outcome.content, *texts])) if texts else outcome


def _was_given(context: Context, mark: str) -> bool:
    """Return True if a tool result in the conversation contains `mark`. It may be gone after a summary."""
    conversation = context.run_state.conversation
    results = (block for _, block in conversation.entries if block.get("type") == "tool_result")
    return any(
        mark in str(block.get("content")) for block in results if block["tool_use_id"] not in conversation.cleared
    )


@tool(reads=True)
async def read_file(context: Context, given: ReadFile) -> Outcome:
    """Read a text file of the workspace, an image (PNG, JPEG, GIF, WebP) or a PDF. Each line of text is shown behind
    its number and a tab; neither is part of the file. A line is cut after 2000 characters. If more lines follow, the
    last line of the result says with which offset to go on. Paths are relative to the workspace's root. Give offset and
    limit for a part of a long file. Read a file before you change it.
    """
    return await _look(context, "read_file", given)


@tool()
async def write_file(context: Context, given: WriteFile) -> Outcome:
    """Create a file in the workspace, or replace its whole content. Missing folders are made. To change a part of a
    file, use edit_file.
    """
    return await _change(context, "write_file", given)


@tool()
async def edit_file(context: Context, given: EditFile) -> Outcome:
    """Change parts of a file. Give old_text, which must occur exactly once and match exactly, with white space, and
    new_text; with replace_all each occurrence is replaced. Or give several such pairs as edits, or a unified diff of
    the file as diff: then all changes are made, or none. If a change is refused, the error says how to go on.
    """
    return await _change(context, "edit_file", given)


@tool(reads=True)
async def glob(context: Context, given: Glob) -> Outcome:
    """List files whose path matches a pattern such as src/**/*.py or **/*.{js,ts}. A pattern without a slash matches
    only in the folder itself.
    """
    return await _look(context, "glob", given)


@tool(reads=True)
async def grep(context: Context, given: Grep) -> Outcome:
    """Search files for a regular expression. Returns path:line:text. Files that .gitignore names, binary files and
    files over 10 MiB are left out. Narrow a search with path, glob or type; names_only shows only which files match.
    """
    return await _look(context, "grep", given)


@tool(reads=True)
async def list_dir(context: Context, given: ListDir) -> Outcome:
    """List a folder of the workspace."""
    return await _look(context, "list_dir", given)
