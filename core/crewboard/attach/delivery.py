"""Letters of the user to agents of Claude Code, and ending a teammate by signal. Both need the user's permission.

A letter goes into the inbox file of a teammate, or to the socket of the lead. It is always signed `operator`: Claude
Code signs what a lead writes in a way of its own, and obeys nothing else. The mirror then shows the letter, and whether
it was read, like any other.
"""

import contextlib
import json
import os
import re
import signal
import socket
import stat
import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from crewboard.attach import formats, gate, places, teams
from crewboard.errors import BadDataError, TryLaterError, UntrustedError, UsageError
from crewboard.names import OPERATOR
from crewboard.records.messages import Message
from crewboard.records.team import AttachedTeam, Config
from crewboard.store import files as store_files
from crewboard.store import mailbox
from crewboard.store import roster as store_roster
from crewboard.store.layout import TeamDirectory
from crewboard.unix import process

_LOCK_TIMEOUT = 5.0
"""Seconds to wait for the lock of an inbox; Claude Code holds it for milliseconds."""

_LOCK_POLL = 0.02

_STALE = 10.0
"""Seconds after which a lock is taken from a process that was killed, as Claude Code does, too."""

_SOCKET_TIMEOUT = 5.0

_END_TIMEOUT = 5.0
"""Seconds to wait for the end of a process after SIGTERM."""

_POLL = 0.05

_SAFE_NAME = re.compile(r"[\w@ -][\w@. -]*")
"""Matches names that can safely be part of a path."""


def allow(team: TeamDirectory, *, letters: bool) -> None:
    """Allow or forbid letters to the agents of an attached team, and ending them; the team's record keeps this."""

    def edit(config: Config) -> None:
        if config.attached is not None:
            config.attached = config.attached.replace(letters=letters)

    store_roster.change(team, edit)


def require_allowed(attached: AttachedTeam) -> None:
    """Check that the user has allowed letters to an attached team, and ending its agents by signal.

    Raises:
        BadDataError: Letters are off.
    """
    if not attached.letters:
        raise BadDataError(
            f"nothing is written to Claude Code's team {attached.team}: `crewboard attach {attached.team} "
            "--allow-letters` allows letters and stops"
        )


def send(team: TeamDirectory, attached: AttachedTeam, to: str, text: str, now: float) -> Message:
    """Send a letter to the agent `to` of an attached team, and return it as the message that the mirror will show.

    `now` becomes its time, in epoch seconds.

    Raises:
        UsageError: The team has no such agent any more, or its name cannot name an inbox file.
        TryLaterError: The lead's session is gone or does not listen, or the inbox stays locked.
        BadDataError: Letters are off, or the inbox is damaged; it was not changed.
        UntrustedError: Another user controls the inbox or the socket.
        StorageError: The letter could not be written.
    """
    require_allowed(attached)
    here = places.Places(Path(attached.config_dir))
    member = _member(here, attached, to)
    address = _socket_of(here, attached) if member.is_lead else None
    stamp = datetime.fromtimestamp(now, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    letter = {"from": OPERATOR, "text": text, "timestamp": stamp, "read": False}
    # The mirror derives the same id from what it reads in the inbox.
    (as_read,) = formats.inbox(json.dumps([letter]).encode()) or []
    ident = mailbox.derived_id("letter", as_read.mark)
    message = mailbox.compose(OPERATOR, to, "message", text, ident=ident, ts=now)
    if address is None:
        # As Claude Code does: lock, read, write another file, rename.
        folder = here.inboxes(attached.team)
        if not _SAFE_NAME.fullmatch(member.name):
            raise UsageError(f"{member.name!r} has no inbox that crewboard writes to")
        path = folder / f"{member.name}.json"
        with store_files.storage_errors(f"cannot write to {path}"):
            _require_own(folder.parent)
            folder.mkdir(mode=0o700, exist_ok=True)
            _require_own(folder)
            with _locked(path):
                try:
                    found = json.loads(store_files.read_file(path) or b"[]")
                except (ValueError, RecursionError):
                    found = None
                if not isinstance(found, list):
                    raise BadDataError(f"{path} is damaged; nothing was sent")
                store_files.replace_file(path, json.dumps([*found, letter], indent=2).encode())
        return message
    frame = {
        "msgV": 1,
        "msg_id": str(uuid.uuid4()),
        "type": "user",
        "message": {"role": "user", "content": text},
        "priority": "next",
    }
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(_SOCKET_TIMEOUT)
            connection.connect(str(address))
            connection.sendall(json.dumps(frame).encode() + b"\n")
    except OSError as error:
        why = error.strerror or error
        raise TryLaterError(f"the lead's session does not listen: {why}; nothing was sent") from error
    # The lead's session keeps no inbox of what comes by its socket, so that the mirror could not see it there.
    return mailbox.send(team, message)


def end(attached: AttachedTeam, name: str, grace: float) -> None:
    """End a teammate that has a process of its own: by SIGTERM, if it does not end by itself within `grace` seconds.

    Raises:
        UsageError: The team has no such agent any more.
        BadDataError: Letters are off, or the agent runs in the process of the lead.
        TryLaterError: It did not end in time.
    """
    require_allowed(attached)
    member = _member(places.Places(Path(attached.config_dir)), attached, name)
    key = member.name
    found = teams.find_teammate(key, attached.team)
    if found is None:
        where = "is the lead's own session: end it" if member.is_lead else "runs in the process of its lead: end that"
        raise BadDataError(f"{name} {where} in Claude Code, or ask it by a letter")
    pid, ticks = found
    if _has_ended(pid, ticks, grace):
        return
    # Checked once more, because a pid can be given to another program.
    if teams.find_teammate(key, attached.team) == found:
        process.send_signal(pid, signal.SIGTERM, ticks)
    if not _has_ended(pid, ticks, _END_TIMEOUT):
        raise TryLaterError(f"{name} did not end after SIGTERM (pid {pid})")


def _has_ended(pid: int, ticks: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while process.start_ticks(pid) == ticks:
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL)
    return True


def _member(here: places.Places, attached: AttachedTeam, to: str) -> formats.Member:
    with store_files.storage_errors(f"cannot read the roster of {attached.team}"):
        roster = formats.roster(store_files.read_file(here.roster(attached.team)) or b"")
    for member in roster.members if roster is not None else ():
        if to in (gate.board_name(member.name), f"{gate.board_name(member.name)}-agent"):
            return member
    raise UsageError(f"{to} is not on Claude Code's team {attached.team} any more: a letter would not be read")


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock that Claude Code itself uses for the file `path`: a folder beside it, called `NAME.lock`.

    Raises:
        TryLaterError: Another process holds the lock.
    """
    lock = path.with_name(path.name + ".lock")
    deadline = time.monotonic() + _LOCK_TIMEOUT
    while True:
        try:
            lock.mkdir()
            break
        except FileExistsError:
            with contextlib.suppress(OSError):
                if time.time() - lock.stat().st_mtime > _STALE:
                    lock.rmdir()
                    continue
        if time.monotonic() > deadline:
            raise TryLaterError(f"{path} stays locked by Claude Code; nothing was sent")
        time.sleep(_LOCK_POLL)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            lock.rmdir()


def _require_own(folder: Path) -> None:
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise UntrustedError(f"{folder} is not a folder of yours; nothing was sent")


def _socket_of(here: places.Places, attached: AttachedTeam) -> Path | None:
    """Return the socket of the lead's session; None if its version of Claude Code has none.

    Raises:
        TryLaterError: The session does not run, or its socket is gone.
        UntrustedError: The socket is not one that only this user can use.
    """
    session = next((s for s in teams.read_sessions(here.sessions) if s.ident in attached.session_ids), None)
    if session is None:
        raise TryLaterError(f"the session of the lead of {attached.team} does not run; nothing was sent")
    address = session.socket
    if not address:
        return None
    try:
        found = os.lstat(address)
    except (OSError, ValueError) as error:
        raise TryLaterError("the lead's session does not listen; nothing was sent") from error
    if not stat.S_ISSOCK(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise UntrustedError(f"{address} is not a socket that only you can use; nothing was sent")
    return Path(address)
