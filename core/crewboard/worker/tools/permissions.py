"""Permission for each write and command (`--ask`): the request to the operator, and standing rules that answer it."""

import difflib
import shlex
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from crewboard.names import OPERATOR
from crewboard.protocol import approvals
from crewboard.records import Request
from crewboard.store import mailbox, roster
from crewboard.worker.tools.base import Context
from crewboard.worker.tools.outcome import Outcome

_SHELL_SYNTAX = frozenset("|&;<>()$`\\\n!*?[]{}~#=")
"""A command with one of these characters is more than one program with its arguments."""


def scope_of(tool: str, arguments: dict[str, Any]) -> str | None:
    """Return what a rule for this call would cover: a program for bash, a folder for files. None: no rule offered."""
    if tool == "bash":
        command = str(arguments.get("command", ""))
        if not command.strip() or _SHELL_SYNTAX & set(command):
            return None
        try:
            return shlex.split(command)[0]
        except ValueError:
            return None
    folder = Path(str(arguments.get("path", ""))).parent
    return None if folder.is_absolute() or ".." in folder.parts else str(folder)


def is_covered(context: Context, tool: str, arguments: dict[str, Any]) -> bool:
    """Return True if a standing rule allows the call."""
    scope = scope_of(tool, arguments)
    rules = roster.load(context.team).rules
    return scope is not None and any((r.agent, r.tool, r.scope) == (context.name, tool, scope) for r in rules)


async def ask(context: Context, tool: str, arguments: dict[str, Any]) -> Request | None:
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
        "summary": str(arguments.get("command") or arguments.get("path") or "").splitlines()[0][:200],
        "diff": await _diff(context, tool, arguments),
        "scope": scope_of(tool, arguments),
    }
    request = approvals.ask(
        context.team,
        f"permission-{mailbox.derived_id(context.name, context.tool_use_id)[:12]}",
        "permission",
        context.name,
        OPERATOR,
        payload,
        context.now(),
    )
    return await context.wait_for_decision(request, f"asks to use {tool}")


def refusal(tool: str, decided: Request) -> Outcome:
    """Return what the model is told about a call that was not allowed."""
    reason = f": {decided.feedback}" if decided.feedback else ""
    text = f"{tool} was not run: permission {decided.status} by {decided.decided_by}{reason}"
    return Outcome(text, is_error=True, consumed=(approvals.response_id(decided),))


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
