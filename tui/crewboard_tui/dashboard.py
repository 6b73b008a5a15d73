"""Run the dashboard: open the team, show the dashboard, close it, and print what continues without it.

Every command opens its team by this module, so what only the dashboard needs is imported where it is used. The module
does not use click, which a start without options does not load.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import crewboard as core
from crewboard import ExitCode, StorageError, UntrustedError, UsageError, env, redaction
from crewboard_tui import bundle

if TYPE_CHECKING:
    from pathlib import Path

    from crewboard import Request, Team
    from crewboard.store.layout import TeamDirectory
    from crewboard_tui.context import Coach
    from crewboard_tui.drafts import Drafts
    from crewboard_tui.settings import Settings

_STDERR = 2

SWITCH_SECONDS = 0.0005
"""Seconds for which a thread runs before another one that waits."""

END_SECONDS = 10
"""Seconds that a dashboard has to end in order when `crewboard serve` is gone."""


def open_board(tell: Callable[[str], None], *, read_only: bool) -> ExitCode:
    """Open the dashboard of the team that is found without options, and return the exit code.

    `tell` prints a line on stderr.

    Raises:
        CrewboardError: There is no such team, or no terminal to show it on.
    """
    from crewboard.store.layout import find_root

    redaction.register_secrets(os.environ)
    directory = core.choose_team(find_root(), None)
    prepare_to_read(directory, tell)
    begins = partial(new_settings, directory.root, lambda _: None)
    team = core.Team(directory, environment=environment_of(offline=env.is_offline()), new_settings=begins)
    return run_in_terminal(team, read_only=read_only)


def environment_of(*, offline: bool) -> dict[str, str]:
    """Return the environment of this process for a team; with `offline`, agents of the team use the offline model."""
    return {**os.environ, env.OFFLINE: "1"} if offline else dict(os.environ)


def prepare_to_read(team: TeamDirectory, tell: Callable[[str], None]) -> None:
    """Bring a team that mirrors one of another program up to date, unless another process does so.

    Raises:
        UntrustedError: It is foreign, and names a database.
    """
    if team.address is not None and team.is_foreign():
        raise UntrustedError(
            f"the team in {str(team.path)!r} is foreign, so the database that it names is not asked for its "
            "records: `crewboard team adopt` makes it yours"
        )
    from crewboard.store import roster

    try:
        is_mirror = roster.is_attached(team) and not team.is_foreign()
    except StorageError:
        # The command says so when it reads.
        return
    if is_mirror:
        from crewboard.attach.mirror import MirrorThread

        mirror = MirrorThread(team, on_error=tell)
        mirror.refresh()
        mirror.mirror.close()


def new_settings(root: Path, tell: Callable[[str], None]) -> Mapping[str, object]:
    """Return the settings that a new team in `root` begins with, and `tell` them.

    Raises:
        BadDataError: One of them is invalid.
        UntrustedError: The project's file has changed since the user accepted it.
    """
    import shlex

    from crewboard.commands.context import root_options
    from crewboard_tui import settings

    trust = shlex.join(["crewboard", *root_options(root), "config", "--trust"])
    return settings.for_new_team(root, os.environ, trust, tell)


def read_settings(theme: str | None, root: Path | None = None) -> Settings:
    """Return the settings of the dashboard of a project; `theme` is the one given on the command line, if any.

    Raises:
        UsageError: There is no such theme.
    """
    from msgspec.structs import replace

    from crewboard_tui.settings import Settings, read_setting

    settings = Settings.read(os.environ, root)
    if theme is None:
        return settings
    return replace(settings, theme=read_setting("theme", theme, settings.themes, settings.refused_themes))


def check_terminal(instead: str) -> None:
    """Check that there is a terminal, or a browser, to show the dashboard in; `instead` says what works without one.

    Raises:
        UsageError: There is no such terminal.
    """
    if env.is_in_browser():
        return
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError(f"the dashboard needs a terminal; {instead}")
    if os.environ.get("TERM") == "dumb":
        raise UsageError(f"the dashboard needs a terminal that is not TERM=dumb; {instead}")


def run_in_terminal(team: Team, *, ascii: bool = False, theme: str | None = None, read_only: bool = False) -> ExitCode:  # noqa: A002
    """Run the dashboard, as `run` does.

    Raises:
        UsageError: There is no terminal that can show it; the error names the commands that need none.
    """
    from crewboard.commands.context import CommandLine

    typed = CommandLine.of(team)
    check_terminal(f"`{typed('board --plain')}`, `{typed('status')}` and `{typed('watch')}` need none")
    return run(team, ascii=ascii, theme=theme, read_only=read_only)


def farewell(team: Team) -> str:
    """Return which agents keep running without the dashboard, and how to open it again."""
    from crewboard.commands.context import CommandLine
    from crewboard_tui.render.sanitize import safe_line

    view = core.read_team(team.directory)
    living = [agent.name for agent in view.agents if agent.alive]
    typed = CommandLine.of(team)
    back, stop = typed(), typed("stop NAME")
    if not living:
        return f"No agent of {view.name} is running. `{back}` opens the board again."
    keeps, them = ("keeps", "it") if len(living) == 1 else ("keep", "one")
    return f"{safe_line(', '.join(living))} {keeps} running. `{back}` opens the board again, `{stop}` ends {them}."


_SHOWN = 60
"""The most characters that are printed of an unsent text that is kept."""


def unsent(drafts: Drafts, asked: Iterable[Request] = (), team: str = "") -> list[str]:
    """Return the unsent texts as sentences, to print them when the dashboard is closed; they are also stored.

    `team` is the name of their team if it is not the team that is left. Of a text that is kept only the beginning is
    returned.

    An unsent answer to a request in `asked` that is closed is returned once and then deleted: no page shows it. Terms,
    comments and notes for a plan that was sent back are kept for its next version.
    """
    from crewboard_tui.drafts import called, outlives, request_of
    from crewboard_tui.render.sanitize import safe_line, safe_text

    texts = {to: text for to, text in drafts.items() if text.strip()}
    for to in texts:
        request = request_of(to, asked)
        if request is not None and not outlives(to, request, asked):
            del drafts[to]
    drafts.keep()
    said = []
    for to, text in texts.items():
        name = safe_line(called(to, asked) + (f", team {team}" if team else ""))
        if to in drafts.safe:
            # The next dashboard shows all of it.
            line = safe_line(text)
            said.append(f"Not sent, but kept ({name}): {line[:_SHOWN]}{'…' if len(line) > _SHOWN else ''}")
        else:
            said.append(f"Not sent ({name}): {safe_text(text)}")
    return said


def run(
    team: Team,
    *,
    ascii: bool = False,  # noqa: A002
    theme: str | None = None,
    read_only: bool = False,
    on_leave: str | None = None,
    coach: Coach | None = None,
) -> ExitCode:
    """Show the dashboard until it is closed; then print what continues without it, or `on_leave`.

    The `coach` says in a line of its own what to try next, until Esc on the Board. Return the exit code, which tells
    whether the dashboard was left, terminated, or failed.

    Raises:
        UsageError: There is no terminal to show it on, or no such theme.
    """
    check_terminal("`crewboard status` prints what it would show")
    # A key waits for the reading thread as long as that may keep the interpreter: by default ten times as long.
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.disable()  # until the first picture stands: what imports make is no garbage, and looking for some takes a tenth
    import logging
    import signal
    import threading

    from msgspec.structs import replace

    from crewboard.protocol import requests, supervisor_client
    from crewboard.store.layout import TeamDirectory
    from crewboard_tui.app import CrewboardApp
    from crewboard_tui.render.sanitize import safe_line

    def painted() -> None:
        bundle.end()
        if not read_only and team.directory.exists() and not team.directory.is_foreign():
            # So that its prefork server is ready before the first agent is hired from here. A hire tries again.
            warn = logging.getLogger(__name__).warning
            wake = partial(supervisor_client.start_or_tell, supervisor_client.wake_supervisor, team.directory, warn)
            threading.Thread(target=wake, name="crewboard-wake", daemon=True).start()

    settings = read_settings(theme, team.directory.root)
    if on_leave is not None:
        # A demo's scratch copy is never opened again.
        settings = replace(settings, visits=None)
    plain = ascii or not env.speaks_utf8()
    app = CrewboardApp(team, ascii_only=plain, read_only=read_only, settings=settings, afterwards=painted)
    app.context.coach = coach
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
        other = "" if path == app.context.team.directory.path else path.name
        sys.stdout.writelines(f"{said}\n" for said in unsent(drafts, requests.load_all(TeamDirectory(path)), other))
    gone = f"The team {app.context.view.name} was deleted." if app.context.view.is_deleted else None
    sys.stdout.write((on_leave or gone or farewell(app.context.team)) + "\n")
    return ExitCode.INTERNAL if app.return_code == 1 else ExitCode(app.return_code or 0)


def _end_with_server() -> None:
    """End the dashboard when `crewboard serve`, which holds the other end of stdin, has ended."""
    import faulthandler
    import select
    import signal

    poll = select.poll()
    poll.register(sys.stdin.fileno(), 0)
    poll.poll()
    # It ends the process even if no thread of Python can run any more. sys.stderr is Textual's, and no file.
    faulthandler.dump_traceback_later(END_SECONDS, file=_STDERR, exit=True)
    os.kill(os.getpid(), signal.SIGTERM)
