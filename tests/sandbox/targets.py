"""The targets of the escape attempts: a workspace, things outside it that must not change, and a way to run attempts.

Nothing here harms a machine whose sandbox fails: each target is a file, socket or process made for the tests.
"""

import asyncio
import contextlib
import ctypes
import hashlib
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from crewboard.agent_types import TYPES
from crewboard.records.agents import HireOptions, Spec
from crewboard.records.base import convert
from crewboard.sandbox import shell
from crewboard.sandbox.git import git_files
from crewboard.sandbox.host_paths import HostPaths
from crewboard.sandbox.level import Level
from crewboard.sandbox.policy import Policy
from crewboard.sandbox.sandbox import Sandbox
from crewboard.sandbox.shell import CommandResult
from crewboard.store.layout import TeamDirectory
from crewboard.unix import process

SECRET = "sk-ant-the-secret-of-the-targets"
ESCAPED = "ESCAPED"


@dataclass
class Targets:
    """Everything that an attempt may try to reach."""

    base: Path
    victim: "subprocess.Popen[bytes]"
    listeners: dict[str, socket.socket]
    pipes: dict[str, int]
    shared: "Shared"

    @property
    def root(self) -> Path:
        return self.base / "root"

    @property
    def outside(self) -> Path:
        return self.base / "outside"

    @property
    def home(self) -> Path:
        return self.base / "home"

    @property
    def scratch(self) -> Path:
        return self.base / "scratch"

    @property
    def team(self) -> TeamDirectory:
        return TeamDirectory(self.root / ".crewboard" / "default")

    def sandbox(self, kind: str, level: Level, *, network: bool = False) -> Sandbox:
        """Return the sandbox of an agent of a type."""
        scratch = self.scratch if TYPES[kind].executes else None
        policy = Policy(self.root, writes=TYPES[kind].writes, network=network, scratch=scratch, host=self.places())
        return Sandbox(level, policy, self.team.results)

    def places(self) -> HostPaths:
        """Return this machine's paths, with only the home of the targets hidden beside the workspace."""
        found = HostPaths.of_this_machine()
        hidden = (path for path in found.hidden if path not in self.base.parents)
        return replace(found, homes=(*found.homes, self.home), hidden=(*hidden, self.home))

    def names(self) -> dict[str, object]:
        """Return the names that the text of an attempt can use."""
        return {
            "root": self.root,
            "outside": self.outside,
            "home": self.home,
            "team": self.team.path,
            "victim": self.victim.pid,
            "python": sys.executable,
            "tcp": self.listeners["tcp"].getsockname()[1],
            "udp": self.listeners["udp"].getsockname()[1],
            "abstract": self.listeners["abstract"].getsockname().decode().lstrip("\0"),
            "shm": self.shared.file.name,
            "shm_key": self.shared.key,
            "user_namespace": str(Path("/proc/self/ns/user").readlink()),
        }

    def has_heard(self) -> list[str]:
        """Return the listeners that an attempt reached."""
        heard = []
        for name, listener in self.listeners.items():
            with contextlib.suppress(BlockingIOError):
                listener.recv(16) if listener.type == socket.SOCK_DGRAM else listener.accept()[0].close()
                heard.append(name)
        for name, pipe in self.pipes.items():
            with contextlib.suppress(BlockingIOError):
                if os.read(pipe, 16):
                    heard.append(f"pipe {name}")
        return heard


class Shared:
    """Memory that this process shares: POSIX and System V."""

    def __init__(self) -> None:
        self.file = Path(f"/dev/shm/crewboard-targets-{os.getpid()}")
        self.key = 0x63726577 + os.getpid()
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._segment = self._libc.shmget(self.key, 4096, 0o1600)
        assert self._segment >= 0
        self.file.write_text("shared\n")

    def remove(self) -> None:
        self._libc.shmctl(self._segment, 0, None)
        self.file.unlink()


@contextlib.contextmanager
def built(base: Path) -> Iterator[Targets]:
    """Make the targets below `base`, and remove them at the end."""
    for folder in ("root/src", "outside", "home/.ssh", "scratch"):
        (base / folder).mkdir(parents=True)
    (base / "outside/file").write_text("outside\n")
    (base / "home/.ssh/id_rsa").write_text(f"{SECRET}\n")
    (base / "root/file").write_text("one\ntwo\n")
    (base / "root/src/main.py").write_text("print('hello')\n")
    team = TeamDirectory(base / "root/.crewboard/default")
    team.make()
    team.config.on_disk.write_text(f'{{"name": "default", "secret": "{SECRET}"}}\n')
    team.inbox("scout").on_disk.write_text(f"{SECRET}\n")
    (team.results / "scout-1-1.md").write_text("a result\n")
    (base / "root/pkg").mkdir()
    below = TeamDirectory(base / "root/pkg/.crewboard/default")
    below.make()
    below.config.on_disk.write_text(f'{{"name": "default", "secret": "{SECRET}"}}\n')
    _repository(base / "root")
    environment = {"PATH": os.environ["PATH"], "A_TOKEN": SECRET}
    with contextlib.ExitStack() as stack:
        listeners = {name: stack.enter_context(made) for name, made in _listeners(base)}
        victim = subprocess.Popen(["sleep", "600"], env=environment, start_new_session=True)
        pipes = {name: _pipe(base / name / "pipe") for name in ("outside", "home")}
        shared = Shared()
        try:
            yield Targets(base, victim, listeners, pipes, shared)
        finally:
            shared.remove()
            for pipe in pipes.values():
                os.close(pipe)
            victim.kill()
            victim.wait()


def _pipe(path: Path) -> int:
    os.mkfifo(path)
    return os.open(path, os.O_RDONLY | os.O_NONBLOCK)


def _repository(root: Path) -> None:
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@example.invalid", "-C", str(root)]
    for arguments in (["init", "-q", "--template="], ["add", "file", "src"], ["commit", "-q", "-m", "first"]):
        subprocess.run([*git, *arguments], check=True)
    (root / ".git/hooks").mkdir()
    # The first command does so in a workspace where an agent writes.
    git_files(root).make_missing(root)


def _listeners(base: Path) -> Iterator[tuple[str, socket.socket]]:
    tcp = socket.socket()
    tcp.bind(("127.0.0.1", 0))
    udp = socket.socket(type=socket.SOCK_DGRAM)
    udp.bind(("127.0.0.1", 0))
    unix = {name: socket.socket(socket.AF_UNIX) for name in ("outside", "root", "abstract")}
    unix["outside"].bind(str(base / "outside/socket"))
    unix["root"].bind(str(base / "root/socket"))
    unix["abstract"].bind(f"\0crewboard-targets-{os.getpid()}")
    unix["dgram"] = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    unix["dgram"].bind(str(base / "outside/dgram"))
    for name, made in {"tcp": tcp, "udp": udp, **unix}.items():
        made.setblocking(False)
        if made.type == socket.SOCK_STREAM:
            made.listen()
        yield name, made


def fingerprint(folder: Path, *, without: tuple[str, ...] = (), folder_times: bool = True) -> str:
    """Return a hash of a folder: names, kinds, modes, owners, times, attributes, contents."""
    digest = hashlib.sha256()
    for path in [folder, *sorted(folder.rglob("*"))]:
        name = str(path.relative_to(folder))
        if any(name == left_out or name.startswith(f"{left_out}/") for left_out in without):
            continue
        found = path.lstat()
        facts = [name, found.st_mode, found.st_uid, found.st_gid, found.st_nlink]
        if folder_times or not stat.S_ISDIR(found.st_mode):
            facts.append(found.st_mtime_ns)
        if stat.S_ISLNK(found.st_mode):
            facts.append(str(path.readlink()))
        else:
            facts += [(key, os.getxattr(path, key)) for key in os.listxattr(path)]
        if stat.S_ISREG(found.st_mode):
            facts.append(path.read_bytes())
        digest.update(repr(facts).encode())
    return digest.hexdigest()


def run(sandbox: Sandbox, text: str, seconds: float = 20) -> CommandResult:
    """Run a command in a sandbox, as a worker does."""
    keep = set(process.descendants(os.getpid()))
    return asyncio.run(shell.run(text, sandbox, seconds, keep))


def run_as_file_server(sandbox: Sandbox, text: str) -> CommandResult:
    """Run a command where the file-tool server runs, as an agent that controls that process could."""
    source, target = os.pipe()

    async def start() -> None:
        child = sandbox.start_file_server(["bash", "-c", f"exec 2>&1 </dev/null; {text}"], target)
        await child.wait()
        await child.end()

    with os.fdopen(source, "rb") as pipe:
        try:
            asyncio.run(start())
        finally:
            os.close(target)
        return CommandResult(pipe.read().decode("utf-8", "replace"))


def spec(kind: str, **flags: bool) -> Spec:
    return Spec(prompt="x", prompt_id="p", type=kind, flags=convert(flags, HireOptions))
