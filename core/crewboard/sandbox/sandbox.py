"""Open the sandbox of an agent, and start programs in it."""

import os
import re
import resource
import shlex
import stat
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from crewboard import env
from crewboard.agent_types import type_of
from crewboard.errors import StorageError
from crewboard.records.agents import Spec
from crewboard.sandbox import bubblewrap, landlock
from crewboard.sandbox.environment import GIT_SETTINGS, tool_environment
from crewboard.sandbox.git import GitFiles, GitGuard, write_git_settings
from crewboard.sandbox.host_paths import is_below
from crewboard.sandbox.level import Level, find, require_allowed
from crewboard.sandbox.policy import Policy, policy_of
from crewboard.sandbox.process import Child, Start
from crewboard.sandbox.scratch import Scratch
from crewboard.store.layout import TeamDirectory
from crewboard.unix import process, programs, syscalls

MOST_PROCESSES = 4096
"""Processes and threads of a command, where the kernel counts them apart from the user's others."""

LARGEST_FILE = 8 << 30
"""Bytes that a command may write to one file."""


@dataclass(frozen=True)
class Sandbox:
    """One agent's sandbox: its level, what it may reach, and the folder of results, which only file tools may read."""

    level: Level
    policy: Policy
    results: Path
    description: str = ""
    """The text for the level in `status.json`."""
    allow_hardlinks: bool = False
    """True if file tools may read files with hard links, which may also have a name outside the workspace."""

    def command(self, text: str, stdout: int, guard: GitGuard | None = None, handle: str = "") -> Child:
        """Start a command with bash, with its output and errors going into the descriptor `stdout`.

        `guard` is open as long as it runs. `handle` is a name for it, which `command_of` returns with the command.

        Raises:
            OSError: The command cannot be started: the kernel refused, or it is too long.
            ValueError: The command contains a NUL or half of a surrogate pair.
        """
        bash = programs.system_program("bash", self.policy.root)
        inner = [bash, "-c", f"{self._beginning()}{text}"]
        # The name that bash has in its own messages.
        inner += [handle] if handle else []
        return self._start(inner, self._guarded(guard), subprocess.DEVNULL, stdout, subprocess.STDOUT)

    def _guarded(self, guard: GitGuard | None) -> Policy:
        return replace(self.policy, git=guard.files, commits=guard.commits) if guard else self.policy

    def start_program(self, arguments: list[str], stdout: int, stderr: int) -> Child:
        """Start a program that crewboard itself chooses; its output goes into the descriptors `stdout` and `stderr`.

        Raises:
            OSError: The program cannot be started.
        """
        return self._start(arguments, self.policy, subprocess.DEVNULL, stdout, stderr)

    def start_service(
        self,
        label: str,
        arguments: list[str],
        variables: Mapping[str, str],
        stdio: int,
        log: int,
        guard: GitGuard | None,
    ) -> Child:
        """Start a program whose standard input and output are the descriptor `stdio`, and whose errors go into `log`.

        `variables` are added to its environment, and are on no command line. `label` is a name for it, which
        `command_of` returns with the program. `guard` is open as long as it runs.

        Raises:
            OSError: The program cannot be started.
            ValueError: An argument or a value contains a NUL or half of a surrogate pair.
        """
        # Under their own names, variables such as LD_PRELOAD would be read by bubblewrap, outside of the sandbox.
        carriers = {f"{env.PREFIX}PASSED_{number}": key for number, key in enumerate(variables)}
        export = "".join(f'export {key}="${carrier}"; unset {carrier}; ' for carrier, key in carriers.items())
        text = f'{self._beginning()}{export}{bubblewrap.FOUND}exec "$@"'
        bash = programs.system_program("bash", self.policy.root)
        passed = {carrier: variables[key] for carrier, key in carriers.items()}
        return self._start([bash, "-c", text, label, *arguments], self._guarded(guard), stdio, stdio, log, passed)

    def start_file_server(self, arguments: list[str], stdin: int) -> Child:
        """Start the file-tool server by its command line, with the descriptor `stdin` as its input and output.

        Raises:
            OSError: The server cannot be started.
        """
        return self._start(arguments, self.policy.for_file_tools(self.results), stdin, stdin, None)

    def git_guard(self, *, commits: bool = True) -> GitGuard | None:
        """Return a guard against new files that make git run programs, to keep open while a command runs.

        Return None if the agent cannot write, or without a sandbox.
        """
        return GitGuard(self.policy.root, commits=commits) if self.policy.writes and self.level != "none" else None

    def covered(self, guard: GitGuard | None) -> dict[Path, tuple[int, int]]:
        """Return the files that mounts protect or hide, each with its state (`state_of`); none without bubblewrap.

        If a process outside replaces one of them, as git does with its settings, the kernel removes the mount over it.
        """
        if self.level != "bubblewrap":
            return {}
        files = guard.files if guard else GitFiles()
        # One mount covers a git directory in which a command does not write.
        git = files.kept if guard is None or guard.commits else (*files.directories, *files.kept)
        paths = [*git, *self.policy.host.private_entries(self.policy.root)]
        return {path: state_of(path) for path in paths if not is_below(path, paths)}

    def file_limits(self, *, writing: bool) -> dict[str, Any]:
        """Return the fields of `workspace.Limits`: what the file tools must refuse at this moment.

        Protected files, which may be read, are among them only if a tool is `writing`.
        """
        protected = self.policy.git_files().protected if writing and self.policy.writes else []
        return {
            "protected": [str(path) for path in protected],
            "hidden": [str(path) for path in self.policy.host.private_entries(self.policy.root)],
            "allow_hardlinks": self.allow_hardlinks,
            "landlock": self.level == "landlock",
        }

    @property
    def contains_processes(self) -> bool:
        """Return True if the kernel ends all processes of a command with it."""
        return self.level == "bubblewrap"

    def _beginning(self) -> str:
        """Return the text before each command, which sets limits and enters the agent's folder (see `_PREFIX`)."""
        limits = ["-c 0", f"-f {_at_most(resource.RLIMIT_FSIZE, LARGEST_FILE) // 1024}"]
        if self.level == "bubblewrap":
            limits.append(f"-u {_at_most(resource.RLIMIT_NPROC, MOST_PROCESSES)}")
        # In the sandbox, where a link that an agent put in place of the folder leads to nothing more.
        enter = f"cd -- {shlex.quote(self.policy.folder)}; " if self.policy.folder else ""
        return f"ulimit {' '.join(limits)}; {enter}"

    def _start(
        self, inner: list[str], policy: Policy, stdin: int, stdout: int, stderr: int | None,
        more: Mapping[str, str] | None = None,
    ) -> Child:  # fmt: skip
        environment = tool_environment(policy.scratch, network=policy.network, own_home=self.level != "landlock")
        environment.update(more or {})
        start = Start(inner, policy.root, environment, policy.umask, stdin, stdout, stderr)
        if self.level == "bubblewrap":
            if policy.writes:
                policy = replace(policy, git=policy.git_files())
                policy.git_files().make_missing(policy.root)
            return bubblewrap.start(policy, start)
        if self.level == "landlock":
            return landlock.start(policy, start)
        return Child(start.now())


_PREFIX = re.compile(r"ulimit [-\w ]+; (?:cd -- \S+; )?")
"""Matches the text that the sandbox puts before a command of an agent (`Sandbox._beginning`)."""

_HANDLE = 3


def without_sandbox(arguments: Sequence[str]) -> Sequence[str]:
    """Return the command line of a process without the words of bubblewrap and its script before the program."""
    inner = arguments[arguments.index("--") + 1 :] if "--" in arguments else arguments
    return inner[inner.index(bubblewrap.UNLESS_LEFT) + 3 :] if bubblewrap.UNLESS_LEFT in inner else inner


def command_of(arguments: Sequence[str]) -> str | None:
    """Return the agent's command in the command line of a process of the sandbox, after its handle and a colon.

    Return None for a process that runs no command of an agent.
    """
    inner = without_sandbox(arguments)
    found = _PREFIX.match(inner[2]) if len(inner) >= _HANDLE and inner[1] == "-c" else None
    if found is None:
        return None
    handle = f"{inner[_HANDLE]}: " if len(inner) > _HANDLE else ""
    if program := inner[_HANDLE + 1 :]:
        return f"{handle}{' '.join(program)}"
    return f"{handle}{inner[2][found.end() :]}"


def running_below(pid: int, boot: str, ticks: int) -> tuple[str, ...]:
    """Return the commands of an agent that are running below its worker, as `command_of` returns them.

    `pid`, `boot` and `ticks` identify the worker; if it is gone, there are none. MCP servers and the engine, which run
    as long as the worker, are left out.
    """
    if not process.is_same(pid, boot, ticks):
        return ()
    commands = map(command_of, map(process.arguments, process.descendants(pid)))
    # A sandbox is a process around the command that it runs.
    return tuple(
        dict.fromkeys(each for each in commands if each is not None and not each.startswith(("mcp:", "engine:")))
    )


def state_of(path: Path) -> tuple[int, int]:
    """Return inode and modification time of a file, by which a replacement shows; zeros if there is none.

    The time is 0 for a folder, whose entries may change.
    """
    try:
        found = path.lstat()
    except OSError:
        return 0, 0
    # The content of a folder may change: its mount stays.
    return found.st_ino, 0 if stat.S_ISDIR(found.st_mode) else found.st_mtime_ns


def _at_most(which: int, most: int) -> int:
    """Return `most`, or the hard limit of the resource `which` if that is lower."""
    hard = resource.getrlimit(which)[1]
    return most if hard == resource.RLIM_INFINITY else min(hard, most)


_levels: dict[tuple[Path, str | None], Level] = {}
"""The level that worked in `open_reader`, by folder and `CREWBOARD_SANDBOX`, so that it is not tried each time."""


@contextmanager
def open_reader(team: TeamDirectory, name: str, spec: Spec) -> Iterator[Sandbox]:
    """Open a sandbox for programs of crewboard that read an agent's files. It can write only in a scratch folder.

    Raises:
        StorageError: The scratch folder cannot be made.
        UsageError: The environment asks for a level that does not exist.
    """
    policy = replace(policy_of(team, name, spec), writes=False, network=False)
    with _scratch_folder(name, policy.root) as scratch:
        key = policy.root, os.environ.get(env.SANDBOX)
        level = _levels.get(key) or find(policy, os.environ).level
        if level != "none":
            # Else one that is installed later is used at once.
            _levels[key] = level
        yield Sandbox(level, replace(policy, scratch=scratch), Path(os.path.realpath(team.results)))


def harden() -> None:
    """Restrict this process, for good, before it starts commands of agents.

    It and its children get no new privileges, other users cannot open its new files, its memory is private, it leaves
    no core dump, and orphans of a command become its children.
    """
    os.umask(0o077)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if not env.is_posix():
        syscalls.no_new_privileges()
    process.keep_memory_private()
    process.adopt_orphans()


@contextmanager
def open_sandbox(team: TeamDirectory, name: str, spec: Spec) -> Iterator[Sandbox]:
    """Open the sandbox of one run, with a scratch folder if the agent executes commands; remove the folder at the end.

    Raises:
        NoSandboxError: No sandbox works here, and the agent needs one.
        UntrustedError: The team is foreign.
        StorageError: The scratch folder cannot be made.
        UsageError: The environment asks for a level that does not exist.
    """
    kind = type_of(spec.type, spec.definition)
    policy = policy_of(team, name, spec)
    found = find(policy, os.environ)
    description = require_allowed(kind, spec.flags, found, has_engine=spec.engine is not None)
    # What Landlock can express is too little for an engine.
    chosen: Level = "none" if spec.engine is not None and found.level != "bubblewrap" else found.level
    team.require_adopted()
    results = Path(os.path.realpath(team.path)) / team.results.name
    with _scratch_folder(name, policy.root) if kind.executes or spec.engine else nullcontext() as scratch:
        prepared = replace(policy, scratch=scratch)
        yield Sandbox(chosen, prepared, results, description, spec.flags.allow_hardlinks)


@contextmanager
def _scratch_folder(name: str, workspace: Path) -> Iterator[Path]:
    try:
        scratch = Scratch.make()
        write_git_settings(scratch.path / GIT_SETTINGS, name, workspace)
    except OSError as error:
        raise StorageError(f"cannot make a private folder for commands: {error}") from error
    try:
        yield scratch.path
    finally:
        scratch.remove()
