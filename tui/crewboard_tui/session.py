"""Run the dashboard: open it, close it, and print what continues without it."""

import faulthandler
import gc
import logging
import os
import select
import signal
import sys
import threading
from collections.abc import Iterable

from msgspec.structs import replace

from crewboard import CrewboardError, ExitCode, Request, Team, UsageError, env, read_team
from crewboard.commands.context import CommandLine
from crewboard.protocol import requests, supervisor_client
from crewboard.store.layout import TeamDirectory
from crewboard_tui.drafts import Drafts, called, request_of
from crewboard_tui.render.sanitize import safe_line, safe_text

log = logging.getLogger(__name__)

_STDERR = 2

SWITCH_SECONDS = 0.0005
"""Seconds for which a thread runs before another one that waits."""

END_SECONDS = 10
"""Seconds that a dashboard has to end in order when its browser's server is gone."""


def farewell(team: Team) -> str:
    """Return which agents keep running without the dashboard, and how to open it again."""
    view = read_team(team.directory)
    living = [agent.name for agent in view.agents if agent.alive]
    typed = CommandLine.of(team)
    back, stop = typed(), typed("stop NAME")
    if not living:
        return f"No agent of {view.name} is running. `{back}` opens the board again."
    keeps, them = ("keeps", "it") if len(living) == 1 else ("keep", "one")
    return f"{safe_line(', '.join(living))} {keeps} running. `{back}` opens the board again, `{stop}` ends {them}."


def unsent(drafts: Drafts, asked: Iterable[Request] = ()) -> list[str]:
    """Return the unsent texts, to print them when the dashboard is closed; they are also stored.

    An unsent answer to a request in `asked` that is closed is returned once and then deleted: no page shows it.
    """
    texts = {to: text for to, text in drafts.items() if text.strip()}
    for to in texts:
        request = request_of(to, asked)
        if request is not None and request.status != "pending":
            del drafts[to]
    drafts.keep()
    return [
        f"Not sent{', but kept' if to in drafts.safe else ''} ({safe_line(called(to, asked))}): {safe_text(text)}"
        for to, text in texts.items()
    ]


def run(
    team: Team,
    *,
    ascii: bool = False,  # noqa: A002
    theme: str | None = None,
    read_only: bool = False,
    on_leave: str | None = None,
) -> ExitCode:
    """Show the dashboard until it is closed; then print what continues without it, or `on_leave`.

    Returns the exit code: whether it was left, or broke.

    Raises:
        UsageError: There is no terminal to show it on, or no such theme.
    """
    if not (env.is_in_browser() or (sys.stdin.isatty() and sys.stdout.isatty())):
        raise UsageError("the dashboard needs a terminal; `crewboard status` prints what it would show")
    # A key waits for the reading thread as long as that may keep the interpreter: by default ten times as long.
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.disable()  # until the first picture stands: what imports make is no garbage, and looking for some takes a tenth
    from crewboard_tui.app import CrewboardApp
    from crewboard_tui.settings import Settings, read_setting

    def wake() -> None:
        if not read_only and team.directory.exists() and not team.directory.is_foreign():
            threading.Thread(target=_wake_supervisor, args=(team,), name="crewboard-wake", daemon=True).start()

    settings = Settings.read(os.environ, team.directory.root)
    if theme is not None:
        settings = replace(settings, theme=read_setting("theme", theme))
    if on_leave is not None:
        # A demo's scratch copy is never opened again.
        settings = replace(settings, visits=None)
    plain = ascii or not env.speaks_utf8()
    app = CrewboardApp(team, ascii_only=plain, read_only=read_only, settings=settings, afterwards=wake)
    terminated = signal.getsignal(signal.SIGTERM)
    if env.is_in_browser():
        threading.Thread(target=_end_with_server, name="crewboard-serve", daemon=True).start()
    app.run()
    signal.signal(signal.SIGTERM, terminated)  # the app took it over, and left it without a handler
    for label, thread in app.context.jobs.running():
        sys.stderr.write(f"{label} …\n")
        thread.join()
    sys.stderr.writelines(f"{safe_line(failure)}\n" for failure in app.context.jobs.hear_rest())
    for path, drafts in app.drafts.items():
        sys.stdout.writelines(f"{said}\n" for said in unsent(drafts, requests.load_all(TeamDirectory(path))))
    sys.stdout.write((farewell(app.context.team) if on_leave is None else on_leave) + "\n")
    return ExitCode.INTERNAL if app.return_code == 1 else ExitCode(app.return_code or 0)


def _end_with_server() -> None:
    """End the dashboard when `crewboard serve`, which has the other end of stdin, is gone."""
    poll = select.poll()
    poll.register(sys.stdin.fileno(), 0)
    poll.poll()
    # It ends the process even if no thread of Python can run any more. sys.stderr is Textual's, and no file.
    faulthandler.dump_traceback_later(END_SECONDS, file=_STDERR, exit=True)
    os.kill(os.getpid(), signal.SIGTERM)


def _wake_supervisor(team: Team) -> None:
    """Wake the supervisor, so that its prefork server is ready before the first agent is hired from here."""
    try:
        supervisor_client.wake_supervisor(team.directory)
    except (CrewboardError, OSError) as error:
        log.warning("no supervisor: %s", error)  # a hire tries again, and reports a failure
