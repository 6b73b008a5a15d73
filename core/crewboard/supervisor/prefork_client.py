"""The supervisor's side of the warm parent of its workers: starting it, asking it for a worker, ending it."""

import contextlib
import hashlib
import logging
import os
import signal
import socket
import sys
import sysconfig
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from crewboard import env
from crewboard.linux import process
from crewboard.protocol.prefork import FORK, PARENT, READY, SpawnRequest
from crewboard.store import files
from crewboard.store.layout import AgentDirectory, TeamDirectory
from crewboard.supervisor.launcher import PopenLauncher

FORK_WITHIN = 2.0
"""Seconds that a fork may take before the parent counts as broken; on a busy machine it takes some hundredths."""

STUCK_AFTER = 1.0
"""Seconds without any use of the processor after which a parent that warms up counts as stuck."""

_WARM_WITHIN = 30.0

_KEPT = frozenset({
    "PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR", "LD_LIBRARY_PATH",
})  # fmt: skip
"""All that a warm parent gets of the environment: its workers show it as theirs in /proc for ever."""

_READ_AT_START = ("ANTHROPIC_LOG", "DEFER_PYDANTIC_BUILD", "LD_", "OPENSSL_", "OTEL_", "PYDANTIC_")
"""Beginnings of variables that the interpreter and its libraries look at once, when they are loaded."""

log = logging.getLogger(__name__)


def _environment() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if key in _KEPT}


def _read_at_start(environment: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in environment.items() if key.startswith(_READ_AT_START)}


def can_prefork(environment: Mapping[str, str]) -> bool:
    """Whether a worker with this environment may come of a warm parent: nothing in it had to be known earlier."""
    return env.may_prefork(environment) and _read_at_start(environment) == _read_at_start(_environment())


def code_fingerprint() -> str:
    """Tells the code that would be loaded now from what was loaded before: ours, the interpreter's, what is beside us.

    By name, time, size and inode, because an installer may bring files with times of long ago.
    """
    places = [sys.executable, sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    seen = hashlib.sha256()
    for place in sorted([*places, *_below(str(Path(__file__).parents[1]))]):
        with contextlib.suppress(OSError):  # an upgrade is under way; what is missing changes the stamp too
            found = os.stat(place)  # noqa: PTH116  three hundred of them at each start; `Path` takes three times as long
            seen.update(f"{place}\0{found.st_mtime_ns}\0{found.st_size}\0{found.st_ino}\n".encode())
    return seen.hexdigest()


def _below(folder: str) -> Iterator[str]:
    """Every file below a folder, but for what Python compiled."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if not entry.is_dir():
                yield entry.path
            elif entry.name != "__pycache__":
                yield from _below(entry.path)


class PreforkClient:
    """One warm parent, from its start to its end. `stamp` tells which code it has."""

    def __init__(self, team: TeamDirectory, launcher: PopenLauncher, stamp: str) -> None:
        self.stamp = stamp
        self.is_ready = False
        self.born_at = self._moved_at = time.monotonic()
        self._used = 0
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        room = " " * 64  # for the arguments of a worker, which are longer than these
        with theirs, open(team.supervisor_log, "ab", opener=files.open_private) as output:
            self.ref = launcher.start([PARENT, str(team.path), room], _environment(), output.fileno(), theirs.fileno())

    def hear(self) -> bool:
        """Take in what it says; False when it says nothing more, because it ended."""
        try:
            said = self.control.recv(len(READY), socket.MSG_DONTWAIT)
        except OSError:
            return False
        self.is_ready = self.is_ready or said == READY
        return bool(said)

    def is_coming(self) -> bool:
        """Whether it is still warming up, so that it will be ready before a start that begins now could be as far.

        Both have the same work before them, whatever else the machine does, and this one began earlier.
        """
        now, used = time.monotonic(), process.cpu_ticks(self.ref.pid)
        if used != self._used:
            self._used, self._moved_at = used, now
        return not self.is_ready and now - self._moved_at < STUCK_AFTER and now - self.born_at < _WARM_WITHIN

    def bear(self, agent: AgentDirectory, environment: Mapping[str, str]) -> int | None:
        """Have it fork a worker; returns the pid of that, or None if there is none and will be none."""
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.settimeout(FORK_WITHIN)
            try:
                socket.send_fds(self.control, [FORK], [theirs.fileno()])
                theirs.close()
                pid = int(ours.recv(16))
                ours.sendall(SpawnRequest(agent.path, environment).encode())
            except (OSError, ValueError) as error:
                log.warning("the warm parent bore no worker: %r", error)
                return None
        return pid

    def end(self) -> None:
        """End it. Its workers are children of the supervisor, and stay."""
        self.control.close()
        process.send_signal(self.ref.pid, signal.SIGKILL, self.ref.ticks)
