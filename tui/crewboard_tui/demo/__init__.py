"""The demo: a team at work on a scratch copy of a sample project, on the embedded model, gone when it is left."""

import signal

from crewboard.errors import ExitCode
from crewboard_tui.cli import leave
from crewboard_tui.cli.output import note
from crewboard_tui.demo.stage import Stage

HEADLESS_PACE = "0.3"
"""How slowly the embedded model speaks when nobody looks on, as a part of what a person sees."""


def run(*, headless: bool) -> int:
    """Play the demo and take everything down again; returns the exit code.

    Headless it prints the events, answers in the operator's place, and ends by itself.
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
        note(f"crewboard: the demo left something behind: {'; '.join(left)}")
        return code or ExitCode.FAILED
    return code


def _play(stage: Stage, *, headless: bool) -> int:
    if headless:
        from crewboard_tui.demo.headless import play

        return play(stage)
    from crewboard_tui.demo.interactive import play as show

    return show(stage)
