"""Run the user's hook: a program of the user that is told the needs of a team as they appear and end."""

import json
import logging
import os
import re
import signal
import tempfile
import time
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from crewboard import env
from crewboard.records.team import ToldNeed, ToldNeeds
from crewboard.redaction import is_secret, redact_values
from crewboard.store import files, hosts
from crewboard.store.layout import TeamDirectory
from crewboard.supervisor.launcher import Launcher, Ref
from crewboard.unix import process, programs
from crewboard.untrusted import visible

if TYPE_CHECKING:
    from crewboard.readmodel.reader import TeamReader

HOOK_FILE = "hook.toml"
"""The file of the user's hook, in the folder of configuration. Never in a workspace, where agents and repositories
write.
"""

HOOK_INTERVAL = 5.0
"""Seconds between two runs of the hook; events in that time go into the next run."""

HOOK_TIMEOUT = 30.0
"""Seconds after which a run of the hook is killed, unless the file says otherwise."""

LOOK_INTERVAL = 1.0
"""Seconds between two looks at the team's needs."""

_LARGEST_NUMBER = 100_000

_MINUTES = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)", re.ASCII)


log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Hook:
    """The user's hook: a program with arguments, and when not to run it.

    `quiet` is the beginning and the end of the quiet hours, in minutes since midnight. `remind_after` and `timeout` are
    in seconds; with `remind_after` 0 there are no reminders.
    """

    command: tuple[str, ...]
    quiet: tuple[int, int] | None = None
    remind_after: float = 0
    timeout: float = HOOK_TIMEOUT

    def is_quiet(self, now: float) -> bool:
        """Return True if the local time of `now` (epoch seconds) is in the quiet hours."""
        if self.quiet is None:
            return False
        moment, (begin, end) = time.localtime(now), self.quiet
        minute = moment.tm_hour * 60 + moment.tm_min
        return begin <= minute < end if begin <= end else minute >= begin or minute < end


def read_hook(path: Path) -> Hook | None:
    """Return the hook in a file; None if there is no such file.

    Raises:
        ValueError: The file cannot be used; the message says why.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from error
    if not programs.is_own(path):
        raise ValueError(f"{path} is not used: it is in a workspace, or other users can change it")
    try:
        given = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path}: {error}") from error
    command = given.get("command")
    if not (isinstance(command, list) and command and all(isinstance(part, str) for part in command)):
        raise ValueError(f"{path}: command must be a list of strings, the program first")
    program = programs.find_user_program(command[0])
    inside = [part for part in command[1:] if part.startswith("/") and Path(part).exists()]
    if program is None or not all(map(programs.is_own, map(Path, inside))):
        raise ValueError(f"{path}: {' '.join(command)} is not there, is in a workspace, or other users can change it")
    quiet, hours_given = None, given.get("quiet")
    if hours_given is not None:
        parts = hours_given.split("-") if isinstance(hours_given, str) else []
        ends = [_MINUTES.fullmatch(part.strip()) for part in parts]
        hours = [int(found[1]) * 60 + int(found[2]) for found in ends if found is not None]
        if len(ends) != len(hours) or len(hours) != 2:  # noqa: PLR2004  a beginning and an end
            raise ValueError(f'{path}: quiet must be two times of the day, such as "22:00-07:00"')
        quiet = hours[0], hours[1]
    return Hook(
        (str(program), *command[1:]),
        quiet,
        60 * _number(path, "remind_after", given.get("remind_after", 0), "0 or more"),
        _number(path, "timeout", given.get("timeout", HOOK_TIMEOUT), "more than 0"),
    )


def _number(path: Path, name: str, given: object, least: Literal["0 or more", "more than 0"]) -> float:
    if (
        isinstance(given, bool)
        or not isinstance(given, int | float)
        or not 0 <= given < _LARGEST_NUMBER
        or (given == 0 and least == "more than 0")
    ):
        raise ValueError(f"{path}: {name} must be a number, {least} and below {_LARGEST_NUMBER}")
    return float(given)


def events_due(
    told: ToldNeeds, needs: Mapping[str, dict[str, Any]], hook: Hook, now: float
) -> tuple[list[dict[str, Any]], ToldNeeds]:
    """Return the events to send to the user now, worst first, and the needs that the user then knows.

    `told` are the needs that the user knows so far, `needs` the present ones by key, most urgent first. Nothing is due
    in the quiet hours or within `HOOK_INTERVAL` of the last run. A need that appears and ends in that time is not sent.
    """
    if hook.is_quiet(now) or 0 <= now - told.ran_at < HOOK_INTERVAL:
        return [], told
    events: list[dict[str, Any]] = []
    after: dict[str, ToldNeed] = {}
    for key, need in needs.items():
        known = told.needs.get(key)
        if known is None:
            known = ToldNeed(need=need, at=now)
            events.append({"event": "new", **need})
        elif hook.remind_after and not known.reminded and now - known.at >= hook.remind_after:
            known = known.replace(reminded=True)
            events.append({"event": "reminder", **need})
        after[key] = known
    events += [{"event": "settled", **gone.need} for key, gone in told.needs.items() if key not in needs]
    return events, ToldNeeds(needs=after, ran_at=now) if events else told


class HookRunner:
    """Runs the user's hook for each need of one team that is new, has ended, or is due for a reminder.

    Events are recorded before the hook runs, and the hook reads them from a file. So if the supervisor is killed, no
    event is reported twice, and a hook that was started continues.
    """

    def __init__(self, team: TeamDirectory, launcher: Launcher, clock: Callable[[], float] | None = None) -> None:
        self._team = team
        self._launcher = launcher
        self._clock = clock if clock is not None else partial(hosts.now, team)
        self._path = env.config_home(os.environ) / HOOK_FILE
        self._told = team.told.watch()
        self._reader: TeamReader | None = None
        self._looked = float("-inf")
        self._problem = ""
        self._running: Ref | None = None
        self._started = 0.0
        self.is_configured = False
        """True if there is a hook. Needs may appear and end without an event, so the supervisor must look
        often then.
        """
        self.is_waiting = False
        """True while there is something to send later, so that the supervisor must not end."""

    def tick(self) -> None:
        """Look at the team's needs if that is due, and run the hook if there are events to send."""
        now = time.monotonic()
        if now - self._looked < LOOK_INTERVAL:
            return
        self._looked = now
        # Why it cannot be used is logged once.
        try:
            hook, problem = read_hook(self._path), ""
        except ValueError as error:
            hook, problem = None, str(error)
        if problem and problem != self._problem:
            log.warning("no hook: %s", problem)
        self._problem = problem
        self.is_configured = hook is not None
        timeout = hook.timeout if hook is not None else HOOK_TIMEOUT
        ref = self._running
        if ref is not None:
            if process.start_ticks(ref.pid) != ref.ticks:
                self._running = None
            elif now - self._started > timeout:
                log.warning("the hook was killed: it took more than %g s", timeout)
                self._launcher.signal(ref, signal.SIGKILL, tree=True)
        if hook is None or self._running is not None:
            self.is_waiting = hook is not None
            return
        # Loaded here, because most supervisors need no read model.
        from crewboard.readmodel import as_json
        from crewboard.readmodel.reader import TeamReader

        self._reader = self._reader or TeamReader(self._team, clock=self._clock)
        view = self._reader.read(measured=0)
        if view.problem is not None:
            return
        where = {"team": view.name, "root": str(view.root)}
        with self._team.store.glance():
            found = {need.key: as_json.need(need, self._team) for need in view.needs}
        # A hook shows them as they are, for example on a desktop.
        needs = {key: {**where, **redact_values(need, visible)} for key, need in found.items()}
        told = self._told.get() or ToldNeeds()
        events, after = events_due(told, needs, hook, self._clock())
        if events:
            self._team.told.save(after)
            self._run(hook, events)
        known = after.needs
        reminds = hook.remind_after and not all(each.reminded for each in known.values())
        self.is_waiting = bool(events or reminds or known.keys() != needs.keys())

    def _run(self, hook: Hook, events: list[dict[str, Any]]) -> None:
        environment = {name: value for name, value in os.environ.items() if not is_secret(name)}
        with (
            tempfile.TemporaryFile() as given,
            open(self._team.supervisor_log, "ab", opener=files.open_private) as out,
        ):
            given.write(b"".join(json.dumps(event).encode() + b"\n" for event in events))
            given.seek(0)
            try:
                self._running = self._launcher.run(list(hook.command), environment, out.fileno(), given.fileno())
            except OSError as error:
                log.warning("the hook cannot be run: %s", error)
                return
        self._started = time.monotonic()
