"""Machines for tests of hosts: each has a network, processes and a boot id of its own, as namespaces of this machine.

A router connects them, so that packets can be lost in one direction. The namespaces have no names: they belong to
processes that end with this one, so nothing is left, whatever happens to a test.
"""

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from tests import postgres
from tests.crew import WAIT_TIMEOUT, eventually
from tests.system import need, need_program

_PACKAGES = Path(pytest.__file__).parents[1]

_ENDING_WITH_US = ["setpriv", "--pdeathsig", "KILL"]

_ROUTER = "echo 1 > /proc/sys/net/ipv4/ip_forward && ip link set lo up && echo ready && exec sleep infinity"

# The first process of a machine reaps orphans. PostgreSQL and tests see it under another pid.
_INIT = """
mount --bind "$1" /proc/sys/kernel/random/boot_id && ip link set lo up || exit 1
sleep infinity &
echo ready
while wait; do :; done
"""


def clock_ahead(seconds: int) -> str:
    """Return the patch of a machine whose clock is ahead."""
    return f"""
import time
_time, _time_ns = time.time, time.time_ns
time.time = lambda: _time() + {seconds}
time.time_ns = lambda: _time_ns() + {seconds} * 10**9
"""


def require() -> None:
    """Skip the test if there can be no machines. In CI, fail if a program is missing; rights may be missing there."""
    postgres.require()
    need("PostgreSQL", None if postgres.can_start() else "no initdb and postgres: install PostgreSQL")
    for program in ("ip", "mount", "nsenter", "setpriv", "unshare"):
        need_program(program)
    tried = subprocess.run(
        ["unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc", "ip", "link", "set", "lo", "up"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if os.geteuid() != 0 or tried.returncode != 0:
        why = tried.stderr.strip() or "this user is not root"
        pytest.skip(f"no rights to make namespaces of networks and processes: {why}")


def _start(command: list[str]) -> subprocess.Popen[bytes]:
    """Start a process that holds a namespace, and wait until it says that this is ready."""
    # `unshare` complains when it is killed.
    started = subprocess.Popen(
        [*_ENDING_WITH_US, *command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert started.stdout is not None
    assert started.stdout.readline() == b"ready\n", f"no namespace from {shlex.join(command)}"
    return started


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


class Network:
    """A router with one link to each place. The addresses are known only there."""

    def __init__(self) -> None:
        self._router = _start(["unshare", "--net", "sh", "-c", _ROUTER])
        self._places = 0
        # PostgreSQL has a place, but no processes of its own.
        self._database = _start(
            ["unshare", "--net", "sh", "-c", "ip link set lo up && echo ready && exec sleep infinity"]
        )
        self.database = self.connect(self._database.pid)
        self.server = postgres.Server(
            prefix=["nsenter", "--target", str(self._database.pid), "--net"], address=self.database
        )

    def connect(self, pid: int) -> str:
        """Lay a cable to the network of a process, and return its address there."""
        self._places += 1
        number = self._places
        self._on_router(f"link add port{number} type veth peer name eth0 netns {pid}")
        self._on_router(f"address add 10.77.{number}.1/24 dev port{number}")
        self._on_router(f"link set port{number} up")
        inside = ["nsenter", "--target", str(pid), "--net", "ip"]
        for words in (f"address add 10.77.{number}.2/24 dev eth0", "link set eth0 up",
                      f"route add default via 10.77.{number}.1"):  # fmt: skip
            subprocess.run([*inside, *words.split()], check=True)
        return f"10.77.{number}.2"

    def _on_router(self, words: str) -> None:
        subprocess.run(["nsenter", "--target", str(self._router.pid), "--net", "ip", *words.split()], check=True)

    def cut(self, address: str) -> None:
        """Pull the cable of a place out of the router."""
        self._on_router(f"link set port{address.split('.')[2]} down")

    def heal(self, address: str) -> None:
        self._on_router(f"link set port{address.split('.')[2]} up")

    def lose(self, sender: str, receiver: str) -> None:
        """Lose every packet from one place to another one; those of the other direction arrive."""
        self._on_router(f"rule add from {sender} to {receiver} blackhole")

    def find(self, sender: str, receiver: str) -> None:
        """Lose no more packets from one place to another one."""
        self._on_router(f"rule del from {sender} to {receiver} blackhole")

    def end(self) -> None:
        self.server.end()
        _end(self._database)
        _end(self._router)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()


class Machine:
    """A machine on the network with a root folder, a home and a boot id of its own.

    Each Python there runs the code `patch` first.
    """

    def __init__(self, network: Network, name: str, folder: Path, patch: str = "") -> None:
        self.name = name
        self.root, self.home, self.log = folder / "root", folder / "home", folder / "host.log"
        self.root.mkdir(parents=True)
        self.home.mkdir()
        self._python = sys.executable if not patch else _patched_python(folder / "venv", patch)
        self.boot_id = str(uuid.uuid4())
        boot_id = folder / "boot_id"
        boot_id.write_text(f"{self.boot_id}\n")
        self._network = network
        self._holder = _start(["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh",
                               "-c", _INIT, "sh", str(boot_id)])  # fmt: skip
        (self._init,) = _children(self._holder.pid)
        self.address = network.connect(self._init)
        self._host: subprocess.Popen[bytes] | None = None

    @property
    def _inside(self) -> list[str]:
        """Return the beginning of a command that runs on this machine."""
        spaces = ["--net", "--mount", "--pid"]
        return ["nsenter", "--target", str(self._init), *spaces, "env", "-C", str(self.root)]

    @property
    def environment(self) -> Mapping[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "USER": "crew",
            "LANG": "C.UTF-8",
            "CREWBOARD_OFFLINE": "1",
            "CREWBOARD_OFFLINE_PACE": "0",
        }

    # What runs on it.

    def python(self, program: str, *arguments: str) -> "subprocess.Popen[bytes]":
        """Start a Python program on this machine."""
        command = [*self._inside, self._python, "-c", program, *arguments]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=self.environment)

    def start_host(self, url: str, *arguments: str) -> None:
        """Start `crewboard host` for the team in the database at `url`."""
        command = [*self._inside, self._python, "-m", "crewboard_tui.cli", "host", "--store", url, "--name", self.name,
                   *arguments]  # fmt: skip
        with self.log.open("ab") as log:
            self._host = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.environment, cwd="/"
            )

    def is_hosting(self) -> bool:
        """Return True if the host that was started runs."""
        return self._host is not None and self._host.poll() is None

    def drain(self) -> int:
        """Ask the host to end, wait for that, and return its exit code."""
        assert self._host is not None
        for pid in _children(self._host.pid):
            os.kill(pid, signal.SIGTERM)
        return self._host.wait(WAIT_TIMEOUT)

    def processes(self) -> dict[int, list[str]]:
        """Return the command lines of all processes on this machine but the first, by their pid outside of it."""
        place = Path(f"/proc/{self._init}/ns/pid").readlink()
        found = {}
        for entry in Path("/proc").iterdir():
            # A process may have ended since it was listed.
            with contextlib.suppress(OSError):
                if entry.name.isdecimal() and (entry / "ns/pid").readlink() == place:
                    found[int(entry.name)] = (entry / "cmdline").read_text().split("\0")[:-1]
        return {
            pid: words for pid, words in found.items() if words not in ([], ["sleep", "infinity"]) and pid != self._init
        }

    def has(self, *words: str) -> bool:
        """Return True if a process with such a command line runs here."""
        return any(list(words) == line[-len(words) :] for line in self.processes().values())

    def works_for(self, agent: str) -> bool:
        """Return True if a worker of an agent runs here."""
        return any("crewboard.worker" in line and line[-1].endswith(f"/{agent}") for line in self.processes().values())

    def end_process(self, *words: str) -> None:
        """End the processes with such a command line, and wait until they are gone."""
        found = [pid for pid, line in self.processes().items() if list(words) == line[-len(words) :]]
        for pid in found:
            os.kill(pid, signal.SIGTERM)
        eventually(lambda: self.processes().keys().isdisjoint(found), "the end of the process")

    # What happens to it.

    def cut(self) -> None:
        """Cut the machine off from all others."""
        self._network.cut(self.address)

    def heal(self) -> None:
        """Connect the machine again."""
        self._network.heal(self.address)

    def freeze(self) -> None:
        """Stop every process, as if the machine stood still."""
        stopped = set[int]()
        while new := self.processes().keys() - stopped:
            for pid in new:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
            stopped |= new

    def thaw(self) -> None:
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        self._wake_entrance()

    def kill(self) -> None:
        """End every process at once, as if the machine lost its power: no connection is closed."""
        if self._holder.poll() is None:
            self.cut()
        # The kernel waits until it takes note of the end.
        self._wake_entrance()
        if self._holder.poll() is None:
            # The kernel kills all others with it.
            os.kill(self._init, signal.SIGKILL)
            self._holder.wait(WAIT_TIMEOUT)
        _end(self._holder)
        if self._host is not None:
            self._host.wait(WAIT_TIMEOUT)

    def _wake_entrance(self) -> None:
        """Let `nsenter` go on, which stops with what it started."""
        if self._host is not None and self._host.poll() is None:
            self._host.send_signal(signal.SIGCONT)


def _children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _patched_python(folder: Path, patch: str) -> str:
    """Make a Python that runs `patch` first, and has the same packages as this one; return its path."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "patched.py").write_text(patch)
    # Not `sitecustomize`, which Python itself may have. The packages of the tests may have lists of folders, too.
    (packages / "patched.pth").write_text(f"import site; site.addsitedir({str(_PACKAGES)!r}); import patched\n")
    return str(folder / "bin" / "python")
