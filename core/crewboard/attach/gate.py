"""Plans and permissions of Claude Code's teammates as requests that the operator answers like those of other agents.

Claude Code runs a hook, which opens the request and waits for the answer. The hook holds a lease while it waits, so
that requests whose hook is gone can be found and cancelled.
"""

import contextlib
import json
import os
import re
import select
import signal
import stat
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from crewboard import edits
from crewboard.attach import install
from crewboard.errors import BadDataError
from crewboard.names import OPERATOR, SYSTEM
from crewboard.protocol import requests
from crewboard.records.base import JsonValue, first_line
from crewboard.records.requests import Request, RequestType, answers_in, how_to_answer
from crewboard.store import leases, mailbox, roster
from crewboard.store.interface import Key
from crewboard.store.layout import TeamDirectory

_MARGIN = 30.0
"""Seconds before Claude Code's own timeout at which a hook gives up, so that Claude Code still reads its answer."""

PLAN_LIMIT, PERMISSION_LIMIT = install.PLAN_TIMEOUT - _MARGIN, install.PERMISSION_TIMEOUT - _MARGIN

_POLL = 0.2

_RENAMED = {"file_path": "path", "notebook_path": "path", "old_string": "old_text", "new_string": "new_text"}
"""Names of arguments of Claude Code's tools, and the names that they have in requests of crewboard's own agents."""

_PATH = re.compile(r"`([^`\s]+)`|(?<![\w./-])([\w@.+-]*[\w+-](?:/[\w@.+-]+|\.\w{1,8}))(?![\w/-])")
"""Words of a plan that may be the path of a file: in backticks, or with a slash or an ending."""

_MAX_FILES, _MAX_PATH = 200, 300

MAX_SHOWN = 10 * 1024 * 1024
"""Bytes of the largest file whose old content is shown in a diff; a larger one is not read."""


class Verdict(NamedTuple):
    """The answer of a hook: whether the call is `allowed`, and the `reason` that the teammate's model is told."""

    allowed: bool
    reason: str


def review_plan(path: Path, name: str, event: dict[str, Any], limit: float = PLAN_LIMIT) -> Verdict | None:
    """Ask the operator to review a plan of the teammate `name`, and wait for the answer.

    `path` is the team directory, `event` the input of the hook. A plan that is not reviewed within `limit` seconds is
    denied. Return None if Claude Code is to decide: the team is foreign, or its lead reviews plans.

    Raises:
        CrewboardError: The team cannot be read or written.
        SystemExit: Claude Code gave up the call. The request is cancelled.
    """
    team, author = TeamDirectory(path), board_name(name)
    if _is_foreign(team) or roster.load(team).plan_approver != OPERATOR:
        return None
    cancel_abandoned(team, time.time())
    given = event.get("tool_input")
    plan = given.get("plan") if isinstance(given, dict) else None
    plan = plan if isinstance(plan, str) else ""
    plans = [each for each in requests.load_all(team) if (each.type, each.from_) == ("plan_approval", author)]
    revised = plans[-1] if plans else None
    if revised is not None and revised.status == "approved":
        if revised.edited is None:
            # It was approved as it was: this is another plan.
            revised = None
        elif revised.edited.split() == plan.split():
            reason = f"This is the plan as {revised.decided_by} edited it.{_explain_steps(revised)}"
            return Verdict(allowed=True, reason=reason)
    # The files of the workspace that it names: those that exist, and others in backticks.
    found: dict[str, None] = {}
    cwd = Path(str(event.get("cwd") or team.root))
    for quoted, plain in _PATH.findall(plan):
        file = os.path.relpath(os.path.normpath(cwd / (quoted or plain).removesuffix(".")), team.root)
        looks_new = bool(quoted) and "." in os.path.basename(file) and not quoted.startswith("-")  # noqa: PTH119
        if not file.startswith("..") and len(file) <= _MAX_PATH and (looks_new or (team.root / file).is_file()):
            found[file] = None
        if len(found) == _MAX_FILES:
            break
    payload: dict[str, JsonValue] = {
        "plan": plan,
        "files": list(found),
        "commands": [],
        "risk": "",
        "revision": int(str(revised.payload.get("revision", 1))) + 1 if revised is not None else 1,
    }
    call = str(event.get("tool_use_id") or mailbox.new_id())
    ident = f"plan-{mailbox.derived_id(author, call, 'plan')[:12]}"
    request = _ask(team, ident, "plan_approval", author, payload, limit, revised)
    feedback = f"\nFeedback: {request.said}" if request.said else ""
    by = request.decided_by
    if request.status == "approved" and request.edited is not None:
        text = (
            f"The plan is approved with changes by {by}. Replace the text of your plan file by this version, word for "
            f"word, and submit it again; it is approved then.{feedback}\n\n{request.edited}"
        )
        return Verdict(allowed=False, reason=text)
    if request.status == "approved":
        return Verdict(allowed=True, reason=f"The plan is approved by {by}.{feedback}{_explain_steps(request)}")
    if request.status == "rejected":
        notes = how_to_answer(request, in_text=True)
        text = f"The plan is rejected by {by}.{feedback}\nRevise it and submit it again.{notes}"
        return Verdict(allowed=False, reason=text)
    why = "was not reviewed in time" if request.status == "expired" else "was withdrawn"
    return Verdict(allowed=False, reason=f"The plan {why}. Do not carry it out; submit it again if it is needed.")


def ask_permission(path: Path, name: str, event: dict[str, Any], limit: float = PERMISSION_LIMIT) -> Verdict | None:
    """Ask the operator to permit a call of the teammate `name`, and wait for the answer.

    `path` is the team directory, `event` the input of the hook. Return None if Claude Code is to ask in its own dialog:
    there was no answer within `limit` seconds, the team is foreign, or `name` is not on its roster, because it is that
    of a sub-agent.

    Raises:
        CrewboardError: The team cannot be read or written.
        SystemExit: Claude Code gave up the call. The request is cancelled.
    """
    team, author = TeamDirectory(path), board_name(name)
    if _is_foreign(team) or roster.load(team).member(author) is None:
        return None
    cancel_abandoned(team, time.time())
    given = event.get("tool_input")
    call: dict[str, Any] = given if isinstance(given, dict) else {}
    call = {_RENAMED.get(key, key): value for key, value in call.items()}
    subject = call.get("command") or call.get("path") or call.get("url")
    if not subject and call:
        # Of a call of a server, no part is known to say what it does.
        subject = json.dumps(call, ensure_ascii=False)
    tool = str(event.get("tool_name", ""))
    payload: dict[str, JsonValue] = {
        "tool": tool,
        "input": call,
        "summary": first_line(str(subject or "")),
        "diff": _diff(tool, call),
        "scope": None,
    }
    request = _ask(team, f"permission-{mailbox.new_id()[:12]}", "permission", author, payload, limit)
    if request.status not in ("approved", "rejected"):
        return None
    said = "Allowed" if request.status == "approved" else "Not allowed"
    feedback = f": {request.feedback}" if request.feedback else ""
    return Verdict(request.status == "approved", f"{said} by {request.decided_by}{feedback}")


def _is_foreign(team: TeamDirectory) -> bool:
    """Return True if this user did not attach the team, as when a cloned repository contains it.

    Raises:
        CrewboardError: This user attached it, but another user controls it, or that cannot be told.
    """
    if team.is_foreign():
        return True
    team.require_own()
    return False


def board_name(name: str) -> str:
    """Return the name of a teammate in crewboard, which allows at most 32 characters of a-z, 0-9, `_` and `-`."""
    kept = re.sub(r"[^a-z0-9_-]+", "-", name.lower()).strip("-")
    return (kept if kept[:1].isalpha() else f"a-{kept}")[:32].rstrip("-")


def cancel_abandoned(team: TeamDirectory, now: float) -> None:
    """Cancel the requests whose hook has ended without an answer."""
    for request in requests.pending(team):
        lease = _lease(team, request.id)
        if lease.changed() is not None and not leases.is_held(lease):
            requests.close(team, request.id, "cancelled", SYSTEM, now)
            lease.remove()


def _lease(team: TeamDirectory, request_id: str) -> Key:
    return team.lease(f"hook-{request_id}")


def _diff(tool: str, call: dict[str, Any]) -> str | None:
    """Return what a call of Write or Edit would change, as a unified diff; empty if nothing, None for other tools."""
    path = str(call.get("path", ""))
    if tool == "Edit":
        before: str | None = str(call.get("old_text", ""))
        after = str(call.get("new_text", ""))
    elif tool == "Write":
        after = str(call.get("content", ""))
        before = ""
        # A pipe must not hold the hook up, and a device has no end.
        with (
            contextlib.suppress(OSError),
            os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file,
        ):
            found = os.fstat(file.fileno())
            is_shown = stat.S_ISREG(found.st_mode) and found.st_size <= MAX_SHOWN
            before = file.read(MAX_SHOWN).decode("utf-8", "replace") if is_shown else None
    else:
        return None
    lines = edits.diff_lines(before or "", after)
    if before is None:
        lines = ["(what is there now is not shown: it is no regular file, or too large)", *lines]
    return "\n".join([f"--- a{path}", f"+++ b{path}", *lines]) if lines else ""


def _ask(
    team: TeamDirectory,
    request_id: str,
    kind: RequestType,
    author: str,
    payload: dict[str, JsonValue],
    limit: float,
    revised: Request | None = None,
) -> Request:
    """Open a request and wait until it is closed; expire it after `limit` seconds. Return the closed request.

    `revised` is the earlier plan that a new one takes the place of.

    Raises:
        BadDataError: The request is gone.
        SystemExit: Claude Code ended this process, or does not listen any more. The request is cancelled.
    """
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))
    lease = _lease(team, request_id)
    held = leases.take(lease)
    try:
        supersedes = revised.id if revised is not None else None
        answers = answers_in(revised, str(payload["plan"])) if revised is not None else {}
        requests.ask(
            team, request_id, kind, author, OPERATOR, payload, time.time(), supersedes=supersedes, answers=answers
        )
        file = team.request(request_id).watch()
        listener = select.poll()
        # No event is asked for: that the reader has gone is always reported.
        listener.register(1, 0)
        deadline, parent = time.monotonic() + limit, os.getppid()
        while time.monotonic() < deadline:
            current = file.get()
            if current is None:
                raise BadDataError(f"{file.key} is gone")
            if current.status != "pending":
                return current
            if listener.poll(_POLL * 1000) or os.getppid() != parent:
                raise SystemExit(0)
        expired = requests.close(team, request_id, "expired", SYSTEM, time.time())
        closed = expired or requests.load(team, request_id)
        if closed is None:
            raise BadDataError(f"{file.key} is gone")
        return closed
    except SystemExit:
        requests.close(team, request_id, "cancelled", SYSTEM, time.time())
        raise
    finally:
        if held is not None:
            lease.remove()
            leases.release(held)


def _explain_steps(request: Request) -> str:
    """Return the text that tells a teammate which steps are not approved, empty if all are.

    Only this text keeps the teammate from those steps.
    """
    if request.terms is None or request.terms.is_empty:
        return ""
    return f"\n{request.terms.explain_steps('say so, and submit a plan of what is left if it is needed')}"
