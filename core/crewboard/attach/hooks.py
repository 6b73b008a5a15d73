"""The command `crewboard hook`, which Claude Code runs when a teammate submits a plan or needs a permission.

It must not slow down sessions that are of no attached team, so it imports little; `gate` makes the request. If anything
goes wrong in a session of an attached team, a plan is denied, and a permission is left to Claude Code's own dialog.
"""

import json
import os
import re
import sys

TYPE_CHECKING = False
"""Stands for `typing.TYPE_CHECKING`, because to import `typing` takes longer than all of this module."""

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

PLAN_TOOL = "ExitPlanMode"

_NAMES = ("--agent-name", "--team-name", "--parent-session-id")
"""The arguments on the command line of a teammate that has a process of its own."""

_ADVICE = "Tell your user: if this stays so, move {} out of its folder and run `crewboard attach` again"

_MAX_ANCESTORS = 3
"""How many parent processes are searched for the session: a shell can be in between."""


def main() -> int:
    """Answer one event of Claude Code, given on stdin, and return the exit code, which is always 0."""
    event = _read_event()
    if event is None or not _may_be_attached(event):
        return 0
    if event.get("unreadable"):
        if (team := _attached_team(event, {})) is not None:
            reason = f"crewboard cannot read the call that hands in this plan. {_ADVICE.format(team)}"
            _say({"hookEventName": "PreToolUse", "permissionDecision": "deny", "permissionDecisionReason": reason})
        return 0
    teammate = _pane_teammate()
    name = teammate.get("--agent-name") or name_of_teammate(event)
    # What the lead itself asks is for the user who sits in front of it.
    team = _attached_team(event, teammate) if name else None
    if team is None:
        return 0
    answer = _answer_plan(team, name, event) if _is_plan(event) else _answer_permission(team, name, event)
    if answer is not None:
        _say(answer)
    return 0


def _say(answer: "dict[str, Any]") -> None:
    sys.stdout.write(json.dumps({"hookSpecificOutput": answer}) + "\n")
    sys.stdout.flush()


def _is_plan(event: "dict[str, Any]") -> bool:
    return event.get("hook_event_name") == "PreToolUse" and event.get("tool_name") == PLAN_TOOL


def _answer_plan(team: "Path", name: str, event: "dict[str, Any]") -> "dict[str, Any] | None":
    try:
        from crewboard.attach import gate

        verdict = gate.review_plan(team, name, event)
        if verdict is None:
            return None
        allowed, reason = verdict
    # The last handler: a plan that was not read is not carried out because of an error here.
    except Exception as error:  # noqa: BLE001
        allowed, reason = False, f"crewboard could not ask the user about the plan: {error}. {_ADVICE.format(team)}"
    answer = {
        "hookEventName": "PreToolUse",
        "permissionDecision": "allow" if allowed else "deny",
        "permissionDecisionReason": reason,
    }
    # The model reads the reason of a no; of a yes it reads this.
    return {**answer, "additionalContext": reason} if allowed else answer


def _answer_permission(team: "Path", name: str, event: "dict[str, Any]") -> "dict[str, Any] | None":
    try:
        from crewboard.attach import gate

        verdict = gate.ask_permission(team, name, event)
    # The last handler: Claude Code asks in its own dialog.
    except Exception:  # noqa: BLE001
        return None
    if verdict is None:
        return None
    decision = {"behavior": "allow"} if verdict.allowed else {"behavior": "deny", "message": verdict.reason}
    return {"hookEventName": "PermissionRequest", "decision": decision}


def name_of_teammate(event: "dict[str, Any]") -> str:
    """Return the name of a teammate that runs in the process of the lead, or the type of a sub-agent.

    The result is empty for the lead itself.
    """
    ident, kind = event.get("agent_id"), event.get("agent_type")
    if not isinstance(ident, str):
        return ""
    # `a` NAME `-` and 16 hexadecimal digits. Up to 2.1.177 only digits, and the name is given as the type.
    name, _, digits = ident[1:].rpartition("-")
    is_hex = len(digits) == 16 and not digits.strip("0123456789abcdef")  # noqa: PLR2004  as above
    return name if name and is_hex else kind if isinstance(kind, str) else ""


def _read_event() -> "dict[str, Any] | None":
    """Return the event on stdin if it is a plan or asks for a permission; else None.

    A plan that cannot be parsed, because it is nested too deep, for example, becomes an event with `unreadable` set and
    nothing else but its `session_id`.
    """
    try:
        data = sys.stdin.buffer.read()
    except OSError:
        return None
    try:
        event = json.loads(data)
    except (ValueError, RecursionError):
        session = re.search(rb'"session_id"\s*:\s*"([\w-]+)"', data)
        is_plan = f'"{PLAN_TOOL}"'.encode() in data
        return {"unreadable": True, "session_id": session[1].decode()} if session and is_plan else None
    if not isinstance(event, dict) or not isinstance(event.get("session_id"), str):
        return None
    return event if _is_plan(event) or event.get("hook_event_name") == "PermissionRequest" else None


def _folders(event: "dict[str, Any]") -> list[str]:
    """Return the folders to search for the attached team: the project of the session and its working directory."""
    given = (os.environ.get("CLAUDE_PROJECT_DIR"), event.get("cwd", os.getcwd()))  # noqa: PTH109  as below
    return list(dict.fromkeys(folder for folder in given if isinstance(folder, str) and folder and "\0" not in folder))


def _may_be_attached(event: "dict[str, Any]") -> bool:
    """Return True if a `.crewboard` folder in the project or above has a team directory that may be a mirror.

    Decided by the name alone, and without an import, to be fast.
    """
    for folder in _folders(event):
        here, above = os.path.realpath(folder), ""
        while here != above:
            try:
                if any(name.startswith("claude-") for name in os.listdir(f"{here}/.crewboard")):  # noqa: PTH208
                    return True
            except OSError:
                pass
            here, above = os.path.dirname(here), here  # noqa: PTH120  pathlib takes long to import
    return False


def _attached_team(event: "dict[str, Any]", teammate: dict[str, str]) -> "Path | None":
    from pathlib import Path

    from crewboard.attach.places import find_attached, find_damaged

    sessions = [event["session_id"], *filter(None, [teammate.get("--parent-session-id")])]
    folders = [Path(folder) for folder in _folders(event)]
    found = [find_attached(folder, sessions) for folder in folders]
    # One that cannot be read may be the team of this session: asking it fails, so that a plan is denied.
    return next(filter(None, [*found, *map(find_damaged, folders)]), None)


def _pane_teammate() -> dict[str, str]:
    """Return the arguments `_NAMES` of the session if it is a teammate with a process of its own; else nothing."""
    pid = os.environ.get("CLAUDE_PID") or str(os.getppid())
    for _ in range(_MAX_ANCESTORS):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:  # noqa: PTH123  as above
                words = [os.fsdecode(word) for word in file.read().split(b"\0")]
            with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123  as above
                pid = file.read().rpartition(b")")[2].split()[1].decode()
        except (OSError, IndexError):
            return {}
        if "--agent-name" in words:
            return {word: words[at + 1] for at, word in enumerate(words[:-1]) if word in _NAMES}
    return {}
