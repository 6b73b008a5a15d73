"""What an agent may do at the moment: the plan gate, and with `--ask` the operator's permission for each call.

A standing rule gives the permission for one program, or for the files of one folder.
"""

import difflib
import posixpath
import re
import shlex
from pathlib import PurePosixPath
from typing import Any

from pydantic import JsonValue

from crewboard import protocol, store
from crewboard.agent_types import GATED_TOOLS
from crewboard.records import OPERATOR, Request
from crewboard.worker.conversation import ApprovedPlan
from crewboard.worker.run_state import RunState
from crewboard.worker.tools.base import Context, Outcome

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


def is_plan_required(run_state: RunState) -> bool:
    """Return True if the present assignment needs an approved plan."""
    assignment = run_state.conversation.assignment
    return run_state.spec.flags.plan or bool(assignment and assignment.plan_wanted)


def is_gate_closed(run_state: RunState) -> bool:
    """Return True if the agent may not write or run anything, because its plan is not approved."""
    assignment = run_state.conversation.assignment
    return is_plan_required(run_state) and not (assignment and assignment.gate_open)


def gate_refusal(run_state: RunState, tool: str) -> Outcome | None:
    """Return what the model is told about a call that the plan gate refuses; None if it allows the call."""
    if is_gate_closed(run_state) and tool in GATED_TOOLS:
        return Outcome(
            f"{tool} is not allowed before your plan is approved. Submit one with submit_plan.", is_error=True
        )
    if is_gate_closed(run_state) and tool == "review_plan":
        return Outcome("review_plan is not allowed before your own plan is approved.", is_error=True)
    return None


def deviates(run_state: RunState, tool: str, arguments: dict[str, Any]) -> bool:
    """Return True if an approved plan is being carried out and does not name this call."""
    assignment = run_state.conversation.assignment
    plan = assignment.plan if assignment else None
    if tool not in GATED_TOOLS or (plan is None and not run_state.spec.flags.strict_plan):
        return False
    if plan is None:
        return True
    return not names_call(plan, tool, arguments, str(run_state.team.root))


def names_call(plan: ApprovedPlan, tool: str, arguments: dict[str, Any], root: str) -> bool:
    """Return True if a plan names a command, or the file that a call changes.

    Only the plan's fields `files` and `commands` count, not its text. A listed folder includes everything in it. A
    listed command that is a single program also allows that program with more arguments.
    """
    if tool == "bash":
        return any(_names_command(each, str(arguments.get("command", ""))) for each in plan.commands)
    return any(_names_file(each, str(arguments.get("path", "")), root) for each in plan.files)


def _names_file(named: str, path: str, root: str) -> bool:
    if not named.strip():
        return False
    named, path = (posixpath.normpath(posixpath.join(root, each.strip())) for each in (named, path))
    return path == named or path.startswith(named.rstrip("/") + "/")


def _names_command(named: str, command: str) -> bool:
    if named.strip() == command.strip():
        return bool(named.strip())
    words, called = simple_command(named.strip()), simple_command(command.strip())
    return words is not None and called is not None and called[: len(words)] == words


def deviation_refusal(tool: str) -> Outcome:
    """Return the refusal of a call that the approved plan does not name, if plans are strict; the model reads it."""
    field = "commands" if tool == "bash" else "files"
    return Outcome(
        f"{tool} was not run: the approved plan does not name it. Submit a new plan with submit_plan; list in its "
        f"{field} all that you still want to {'run' if tool == 'bash' else 'change'}, and wait for the approval.",
        is_error=True,
    )


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
