"""The executor of a reply's tool calls: checks them, asks for permission where that is wanted, and journals them.

With `--ask` each write and each command needs the operator's permission, unless a standing rule gives it.
"""

import difflib
import re
import shlex
import time
import traceback
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from pydantic import JsonValue

from crewboard import protocol, store
from crewboard.agent_types import GATED_TOOLS
from crewboard.errors import CrewboardError, StorageError
from crewboard.records import OPERATOR, Request, ToolResult, ToolStart, describe_call
from crewboard.untrusted import elide_middle, without_surrogates
from crewboard.worker.conversation import Block
from crewboard.worker.interrupts import Interrupts
from crewboard.worker.run_state import RunState
from crewboard.worker.tools.base import Context, FileToolClient, Outcome, Tool
from crewboard.worker.tools.registry import ToolRegistry

_PLAIN_COMMAND = re.compile(r"""[\w ./,:@%+'"-]+""", re.ASCII)
"""A command of these characters alone has no separator, substitution, expansion, redirection, assignment or control
character, so that `shlex` and bash take it apart in the same way."""

_PROGRAM = re.compile(r"[\w./][\w./+-]*", re.ASCII)

SHELL_WORDS = frozenset({
    ".", "alias", "bg", "bind", "break", "builtin", "caller", "case", "cd", "command", "compgen", "complete",
    "compopt", "continue", "coproc", "declare", "dirs", "disown", "do", "done", "elif", "else", "enable", "esac",
    "eval", "exec", "exit", "export", "fc", "fg", "fi", "for", "function", "getopts", "hash", "help", "history",
    "if", "in", "jobs", "kill", "let", "local", "logout", "mapfile", "popd", "pushd", "read", "readarray",
    "readonly", "return", "select", "set", "shift", "shopt", "source", "suspend", "then", "time", "times", "trap",
    "type", "typeset", "ulimit", "umask", "unalias", "unset", "until", "wait", "while",
})  # fmt: skip
"""Reserved words and builtins of bash for which no rule is offered: several run what their arguments say."""

RUNNERS = frozenset({
    "bash", "busybox", "chroot", "dash", "doas", "env", "ionice", "nice", "nohup", "setpriv", "setsid", "sh", "ssh",
    "stdbuf", "strace", "sudo", "taskset", "timeout", "unshare", "watch", "xargs", "zsh",
})  # fmt: skip
"""Programs that run the program in their arguments. A rule for one of them would allow every program."""

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
        consumed: list[str] = []
        if run_state.spec.flags.ask and tool.name in GATED_TOOLS:
            decided = await ask_permission(self._context(block), tool.name, block["input"])
            if decided is not None and decided.status != "approved":
                self.result(block, permission_refusal(tool.name, decided))
                return
            consumed = [protocol.approvals.response_id(decided)] if decided is not None else []
        start = ToolStart(
            ts=run_state.now(), tool_use_id=block["id"], name=tool.name, input=block["input"], consumed=consumed
        )  # fmt: skip
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


def simple_command(command: str) -> list[str] | None:
    """Return the arguments of a command that bash runs as one program; None if it may be anything else."""
    if not _PLAIN_COMMAND.fullmatch(command):
        return None
    try:
        words = shlex.split(command)
    except ValueError:
        return None
    program = words[0] if words else ""
    if not _PROGRAM.fullmatch(program) or program in SHELL_WORDS or PurePosixPath(program).name in RUNNERS:
        return None
    return words


def scope_of(tool: str, arguments: dict[str, Any]) -> str | None:
    """Return what a rule for this call would cover: a program for bash, a folder for files. None: no rule offered."""
    if tool == "bash":
        words = simple_command(str(arguments.get("command", "")))
        return words[0] if words else None
    path = PurePosixPath(str(arguments.get("path", "")))
    return None if not path.name or path.is_absolute() or ".." in path.parts else str(path.parent)


def is_covered(context: Context, tool: str, arguments: dict[str, Any]) -> bool:
    """Return True if a standing rule allows the call."""
    scope = scope_of(tool, arguments)
    rules = store.roster.load(context.team).rules
    return scope is not None and any((r.agent, r.tool, r.scope) == (context.name, tool, scope) for r in rules)


async def ask_permission(context: Context, tool: str, arguments: dict[str, Any]) -> Request | None:
    """Ask the operator to allow one call. Return the decided request, or None if a standing rule allows it.

    Raises:
        Interrupted: The agent must read its mail.
        WorkerExit: The run ends.
    """
    if is_covered(context, tool, arguments):
        return None
    payload: dict[str, JsonValue] = {
        "tool": tool,
        "input": arguments,
        "summary": _first_line(str(arguments.get("command") or arguments.get("path") or "")),
        "diff": await _diff(context, tool, arguments),
        "scope": scope_of(tool, arguments),
    }
    request = protocol.approvals.ask(
        context.team,
        f"permission-{store.mailbox.derived_id(context.name, context.tool_use_id)[:12]}",
        "permission",
        context.name,
        OPERATOR,
        payload,
        context.now(),
    )
    return await context.wait_for_decision(request, f"asks to use {tool}")


def permission_refusal(tool: str, decided: Request) -> Outcome:
    """Return what the model is told about a call that was not allowed."""
    reason = f": {decided.feedback}" if decided.feedback else ""
    text = f"{tool} was not run: permission {decided.status} by {decided.decided_by}{reason}"
    return Outcome(text, is_error=True, consumed=(protocol.approvals.response_id(decided),))


def _first_line(text: str) -> str:
    return next(iter(text.splitlines()), "")[:200]


async def _diff(context: Context, tool: str, arguments: dict[str, Any]) -> str | None:
    """Return what a write or an edit would change, as a unified diff."""
    path = str(arguments.get("path", ""))
    if tool == "edit_file":
        before, after = str(arguments.get("old_text", "")), str(arguments.get("new_text", ""))
    elif tool == "write_file":
        old = await context.file_tools.ask("read_text", {"path": path})
        before, after = "" if old.is_error else old.content, str(arguments.get("content", ""))
    else:
        return None
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), f"a/{path}", f"b/{path}", lineterm="")
    return "\n".join(lines)
