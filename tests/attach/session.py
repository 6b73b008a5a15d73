"""The input that Claude Code gives to its hooks, and `crewboard hook` as it runs it."""

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from crewboard.attach import hooks
from crewboard.protocol import requests
from crewboard.records.requests import Request
from crewboard.store.layout import TeamDirectory
from tests.cli.shell import COMMAND, clean_environment
from tests.crew import eventually

SESSION = str(uuid.uuid4())

# Teammates are found among all processes of the machine, and other runners of these tests have some too.
TEAM = f"session-{SESSION[:8]}"

ALPHA = "aalpha-f7fc72d4b439c4c0"
"""The id of the teammate `alpha` in the process of its lead."""


def plan_event(cwd: Path, plan: str = "# Plan\n1. write b.txt\n", call: str = "toolu_1", **more: Any) -> dict[str, Any]:
    """Return the event of a plan that the teammate `alpha` has submitted."""
    return {
        "session_id": SESSION,
        "cwd": str(cwd),
        "permission_mode": "plan",
        "agent_id": ALPHA,
        "agent_type": "alpha",
        "hook_event_name": "PreToolUse",
        "tool_name": "ExitPlanMode",
        "tool_input": {"plan": plan, "planFilePath": "plans/p.md"},
        "tool_use_id": call,
        **more,
    }


def permission_event(cwd: Path, **more: Any) -> dict[str, Any]:
    """Return the event of a write that `alpha` may not do unasked."""
    return {
        "session_id": SESSION,
        "cwd": str(cwd),
        "permission_mode": "default",
        "agent_id": ALPHA,
        "agent_type": "alpha",
        "hook_event_name": "PermissionRequest",
        "tool_name": "Write",
        "tool_input": {"file_path": str(cwd / "b.txt"), "content": "made by alpha\n"},
        **more,
    }


@dataclass(frozen=True)
class RunningHook:
    """A hook that waits for an answer, and the request that it has filed."""

    process: subprocess.Popen[bytes]
    request: Request

    def answer(self) -> dict[str, Any]:
        """Wait until the hook ends, and return what it tells Claude Code about the call."""
        out, err = self.process.communicate(timeout=30)
        assert (self.process.returncode, err) == (0, b"")
        found: dict[str, Any] = json.loads(out)["hookSpecificOutput"]
        return found

    def end(self, number: signal.Signals) -> None:
        """End the hook by a signal."""
        self.process.send_signal(number)
        self.process.communicate(timeout=30)


def run_hook(event: object, **environment: str) -> str:
    """Run the hook on an event, check that it succeeds and says nothing on stderr, and return its answer.

    It runs in the process of the tests, which is faster; `start_hook` starts it as Claude Code does.
    """
    text = event if isinstance(event, str) else json.dumps(event)
    out, err = io.StringIO(), io.StringIO()
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    with (
        mock.patch.dict(os.environ, clean_environment(**environment), clear=True),
        mock.patch("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode()))),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        code = hooks.main()
    for number, handler in before.items():
        signal.signal(number, handler)
    assert (code, err.getvalue()) == (0, "")
    return out.getvalue()


def start_hook(team: TeamDirectory, event: dict[str, Any], command: list[str] | None = None) -> RunningHook:
    """Start the hook on an event, and wait until it has filed its request."""
    known = {request.id for request in requests.load_all(team)}
    process = subprocess.Popen(
        command or [*COMMAND, "hook"], env=clean_environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin is not None
    process.stdin.write(json.dumps(event).encode())
    process.stdin.close()
    process.stdin = None

    def look() -> Request | None:
        assert process.poll() is None, process.communicate()
        return next((each for each in requests.pending(team) if each.id not in known), None)

    return RunningHook(process, eventually(look, "the request of the hook"))


PYTHON = sys.executable
