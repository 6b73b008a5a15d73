"""The demo on the dashboard: the team fills the board and ends when the user leaves."""

import threading
import time

from crewboard.commands.context import POLL_INTERVAL
from crewboard.errors import CrewboardError
from crewboard_tui.demo.stage import Stage

AT_WORK_WITHIN = 60.0
"""Seconds to wait for the courier to be at work before killing it."""


def play(stage: Stage) -> int:
    """Open the dashboard at once, fill it in the background, and return the exit code."""
    threading.Thread(target=_fill, args=(stage,), name="crewboard-demo", daemon=True).start()
    from crewboard_tui.session import run

    return run(stage.team, on_leave="The demo is over: its agents end now, and its scratch copy is removed.")


def _fill(stage: Stage) -> None:
    """Hire all agents, then kill the courier when it is at work."""
    try:
        for hired in stage.hire_all():
            hired.result()
        deadline = time.monotonic() + AT_WORK_WITHIN
        while not stage.leaving and time.monotonic() < deadline:
            if status := stage.courier_at_work():
                stage.kill_courier(status)
                return
            time.sleep(POLL_INTERVAL)
    except CrewboardError as error:
        if not stage.leaving:
            stage.tell_operator(f"The demo failed: {error}")
