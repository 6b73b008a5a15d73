"""The demo: a team at work on a scratch copy of a sample project. It uses the offline model and is removed on exit."""

import signal

from crewboard.errors import ExitCode
from crewboard_tui.cli import leave
from crewboard_tui.cli.output import note
from crewboard_tui.demo.stage import Stage

HEADLESS_PACE = "0.3"
"""The speed of the offline model in the headless demo, relative to that of the interactive one."""


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
    from crewboard_tui.demo.interactive import play as show

    return show(stage)
