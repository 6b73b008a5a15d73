"""A fuzz of the file-tool server: a process changes the workspace as a hostile command could, during every call.

Whatever the tree looks like at any moment, no byte outside the workspace is read or written, and the server neither
hangs nor ends. At level `none` nothing but its own checks protects what is outside.
"""

import asyncio
import contextlib
import ctypes
import multiprocessing
import os
import random
import shutil
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from crewboard.sandbox.level import Level
from crewboard.sandbox.policy import Policy
from crewboard.sandbox.sandbox import Sandbox
from crewboard.worker.tools.base import FileToolClient, Outcome
from crewboard.worker.tools.workspace import MAX_FILE, escape_name
from tests.sandbox.conftest import need
from tests.sandbox.targets import SECRET

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

MARK = "written by a file tool"
NAMES = ("a", "b", "c", ".d", "HEAD", "é", "x\udcff")
LENGTHS = (1, 1, 2, 2, 3)
RENAME_EXCHANGE = 2
DEVICES = ((1, 3), (1, 5), (1, 8), (5, 0))
"""null, zero, random and tty."""

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

CHANGES = {"created", "replaced", "edited"}
"""The first words of the results of calls that changed a file."""

CALLS: tuple[tuple[Level, int], ...] = (("none", 2_000), ("none", 10_000), ("bubblewrap", 1_000), ("landlock", 1_000))


class Hostile:
    """Changes a workspace at random: each step is one that a command of an agent, or a clone, could make."""

    def __init__(self, root: Path, outside: Path, seed: int) -> None:
        self._root = root
        self._random = random.Random(seed)
        team = root / ".crewboard/default"
        self._targets = (
            str(outside / "file"), str(outside), str(outside / "folder"), str(team), str(team / "config.json"), "/",
            "../outside/file", "../../outside", ".", "..", "a", "a/b", "/dev/zero", "/dev/stdin", "/proc/self/fd/0",
            "/proc/self/cwd", "/proc/self/environ", str(outside / "pipe"), str(outside / "missing"),
        )  # fmt: skip
        self._outside = outside
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._steps: list[Callable[[], object]] = [
            self._link, self._link, self._exchange, self._exchange, self._exchange, self._rename, self._folder,
            self._folder, self._file, self._file, self._file, self._large, self._binary, self._pipe, self._device,
            self._socket, self._hard_link, self._remove, self._close, self._deep,
        ]  # fmt: skip

    def run(self) -> None:
        """Change the workspace until the process is killed."""
        while True:
            self.step()

    def step(self) -> None:
        """Make one change, or fail to."""
        with contextlib.suppress(OSError):
            self._random.choice(self._steps)()

    @contextmanager
    def _place(self) -> Iterator[tuple[int, str]]:
        """Yield an open folder and a name in it. No link is followed, so that nothing outside is changed."""
        *steps, name = (self._random.choice(NAMES) for _ in range(self._random.choice(LENGTHS)))
        folder = os.open(self._root, _FOLDER)
        try:
            for step in steps:
                deeper = os.open(step, _FOLDER, dir_fd=folder)
                os.close(folder)
                folder = deeper
            yield folder, name
        finally:
            os.close(folder)

    def _link(self) -> None:
        with self._place() as (folder, name):
            os.symlink(self._random.choice(self._targets), name, dir_fd=folder)

    def _exchange(self) -> None:
        with self._place() as (first, one), self._place() as (second, other):
            self._libc.renameat2(first, os.fsencode(one), second, os.fsencode(other), RENAME_EXCHANGE)

    def _rename(self) -> None:
        with self._place() as (first, one), self._place() as (second, other):
            os.rename(one, other, src_dir_fd=first, dst_dir_fd=second)

    def _folder(self) -> None:
        with self._place() as (folder, name):
            os.mkdir(name, dir_fd=folder)

    def _write(self, data: bytes, size: int) -> None:
        with self._place() as (folder, name):
            file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644, dir_fd=folder)
            with os.fdopen(file, "wb") as opened:
                opened.write(data)
                opened.truncate(size)

    def _file(self) -> None:
        data = b"harmless\n" * self._random.randint(0, 3)
        self._write(data, len(data))

    def _large(self) -> None:
        self._write(b"large\n", MAX_FILE + self._random.randint(-1, 1))

    def _binary(self) -> None:
        self._write(self._random.randbytes(200), 200)

    def _pipe(self) -> None:
        with self._place() as (folder, name):
            os.mkfifo(name, dir_fd=folder)

    def _device(self) -> None:
        with self._place() as (folder, name):
            device = os.makedev(*self._random.choice(DEVICES))
            os.mknod(name, 0o666 | stat.S_IFCHR, device, dir_fd=folder)

    def _socket(self) -> None:
        with self._place() as (folder, name), socket.socket(socket.AF_UNIX) as made:
            made.bind(os.fsencode(f"/proc/self/fd/{folder}/{name}"))

    def _hard_link(self) -> None:
        with self._place() as (folder, name):
            os.link(self._outside / "file", name, dst_dir_fd=folder)

    def _remove(self) -> None:
        with self._place() as (folder, name):
            if stat.S_ISDIR(os.lstat(name, dir_fd=folder).st_mode):
                shutil.rmtree(name, dir_fd=folder)
            else:
                os.unlink(name, dir_fd=folder)

    def _close(self) -> None:
        with self._place() as (folder, name):
            file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
            with os.fdopen(file, "rb"):
                found = os.fstat(file)
                # Not the file outside of which this may be a hard link, and no device.
                if found.st_nlink == 1 and stat.S_ISREG(found.st_mode):
                    os.fchmod(file, self._random.choice((0, 0o600, 0o4755, 0o2777)))

    def _deep(self) -> None:
        with self._place() as (folder, name):
            os.mkdir(name, dir_fd=folder)
            at = os.dup(folder)
            try:
                for step in (name, *("a" * self._random.randint(1, 80))):
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(step, dir_fd=at)
                    deeper = os.open(step, _FOLDER, dir_fd=at)
                    os.close(at)
                    at = deeper
            finally:
                os.close(at)


@contextmanager
def at_work(hostile: Hostile) -> Iterator[None]:
    process = multiprocessing.get_context("fork").Process(target=hostile.run, daemon=True)
    process.start()
    try:
        yield
    finally:
        process.kill()
        process.join()


def some_call(chance: random.Random) -> tuple[str, dict[str, Any]]:
    """Return a tool and its input; the paths are those that the hostile process changes."""
    name = chance.choice(("read_file", "read_text", "write_file", "edit_file", "glob", "grep", "list_dir"))
    path = escape_name("/".join(chance.choice(NAMES) for _ in range(chance.choice(LENGTHS))))
    path = chance.choice((path, path, path, path, path, ".", f"{path}/file", f"{path}/config.json"))
    more: dict[str, dict[str, Any]] = {
        "write_file": {"content": f"{MARK}\nharmless\n"},
        "edit_file": {"old_text": chance.choice(("harmless\n", MARK, SECRET)), "new_text": f"{MARK}\n"},
        "glob": {"pattern": chance.choice(("**", "*", "**/file", "a/*"))},
        "grep": {"pattern": chance.choice((".", "the-secret", "root:"))},
    }
    return name, {"path": path, **more.get(name, {})}


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Return mode and content of all below a folder."""
    found = {}
    for path in sorted(folder.rglob("*")):
        mode = path.lstat().st_mode
        found[str(path)] = (mode, path.read_bytes() if stat.S_ISREG(mode) else b"")
    return found


def kinds(outcomes: list[Outcome]) -> set[str]:
    """Return the first words of the results that are no errors."""
    return {outcome.content.partition(" ")[0] for outcome in outcomes if not outcome.is_error}


@pytest.mark.parametrize("seed", [1])
@pytest.mark.parametrize(("level", "least"), CALLS)
def test_no_hostile_tree_leads_out(
    works: dict[Level, str | None], tmp_path: Path, level: Level, least: int, seed: int
) -> None:
    need(level, works)
    root, outside = Path(os.path.realpath(tmp_path)) / "root", Path(os.path.realpath(tmp_path)) / "outside"
    team = root / ".crewboard/default"
    for folder in (team / "results", outside / "folder"):
        folder.mkdir(parents=True)
    for path in (team / "config.json", outside / "file", outside / "folder/file", outside / "config.json"):
        path.write_text(f"{SECRET}\n")
    (team / "results/r").write_text("a result\n")
    os.mkfifo(outside / "pipe")
    before = contents(outside), contents(team)
    sandbox = Sandbox(level, Policy(root, writes=True), team / "results")
    chance = random.Random(seed)
    outcomes: list[Outcome] = []

    async def story() -> None:
        client = FileToolClient(sandbox)
        try:
            number = 0
            # Few edits find their text: more calls are made until there was one.
            while number < least or (CHANGES - kinds(outcomes) and number < 5 * least):
                number += 1
                name, given = some_call(chance)
                outcome = await client.ask(name, given)
                why = f"call {number} of seed {seed}: {name} {given} → {outcome.content[:300]}"
                assert SECRET not in outcome.content, why
                assert "longer than" not in outcome.content, why
                assert "server ended" not in outcome.content, why
                outcomes.append(outcome)
        finally:
            await client.end()

    hostile = Hostile(root, outside, seed)
    for _ in range(200):
        hostile.step()
    with at_work(hostile):
        asyncio.run(story())
    assert (contents(outside), contents(team)) == before
    # Both must happen often, or the test tries nothing.
    for failed in (True, False):
        assert sum(outcome.is_error is failed for outcome in outcomes) > len(outcomes) // 20
    assert not CHANGES - kinds(outcomes)
