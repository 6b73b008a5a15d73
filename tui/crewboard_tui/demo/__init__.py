"""The demo: a team at work on a scratch copy of a sample project. It uses the offline model and is removed on exit."""

import signal
import threading
import time

from crewboard.commands.context import POLL_INTERVAL
from crewboard.errors import CrewboardError, ExitCode
from crewboard_tui.cli import leave
from crewboard_tui.cli.output import note
from crewboard_tui.demo.stage import Stage

HEADLESS_PACE = "0.3"
"""The speed of the offline model in the headless demo, relative to that of the interactive one."""

_AT_WORK_TIMEOUT = 60.0
"""Seconds to wait for the courier to be at work before killing it."""


def run(*, headless: bool) -> int:
    """Run the demo, remove everything and return the exit code.

    The headless demo prints the events, answers as the operator, and ends by itself.
    """
    signal.signal(signal.SIGHUP, leave)
    stage: Stage | None = None
    try:
        stage = Stage.build(pace=HEADLESS_PACE if headless else "1")
        code = _play(stage, headless=headless)
    except KeyboardInterrupt:
        code = ExitCode.INTERRUPTED
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        left = stage.clear() if stage is not None else []
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if left:
        note(f"crewboard: the demo could not remove: {'; '.join(left)}")
        return code or ExitCode.FAILED
    return code


def _play(stage: Stage, *, headless: bool) -> int:
    if headless:
        from crewboard_tui.demo.headless import play

        return play(stage)
    return _show(stage)


def _show(stage: Stage) -> int:
    """Open the dashboard at once, fill it in the background, and return the exit code."""
    threading.Thread(target=_fill, args=(stage,), name="crewboard-demo", daemon=True).start()
    from crewboard_tui.session import run

    return run(stage.team, on_leave="The demo is over: its agents end now, and its scratch copy is removed.")


def _fill(stage: Stage) -> None:
    """Hire all agents, then kill the courier when it is at work."""
    try:
        for hired in stage.hire_all():
            hired.result()
        deadline = time.monotonic() + _AT_WORK_TIMEOUT
        while not stage.leaving and time.monotonic() < deadline:
            if status := stage.courier_at_work():
                stage.kill_courier(status)
                return
            time.sleep(POLL_INTERVAL)
    except CrewboardError as error:
        if not stage.leaving:
            stage.tell_operator(f"The demo failed: {error}")
