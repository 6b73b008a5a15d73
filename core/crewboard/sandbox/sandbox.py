"""The sandbox of one agent, in which every command and the file-tool server start."""

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
    """One agent's sandbox: its level, what commands may reach, and the team's results for the file tools."""

    level: Level
    policy: Policy
    results: Path
    description: str = ""
    """The level as `status.json` names it."""
    allow_hardlinks: bool = False
    """File tools may read files that also have a name outside the workspace."""

    def command(self, text: str, stdout: int, guard: GitGuard | None = None, handle: str = "") -> Child:
        """Start a command, its output into the descriptor `stdout`, while `guard` is open. `command_of` shows `handle`.

        Raises:
            OSError: It cannot be started: the kernel refused, or it is too long.
            ValueError: It holds a NUL or half of a surrogate pair.
        """
        bash = programs.system_program("bash", self.policy.root)
        inner = [bash, "-c", f"{self._beginning()}{text}"]
        # The name that bash has in its own messages.
        inner += [handle] if handle else []
        return self._start(inner, self._guarded(guard), subprocess.DEVNULL, stdout, subprocess.STDOUT)

    def _guarded(self, guard: GitGuard | None) -> Policy:
        return replace(self.policy, git=guard.files, commits=guard.commits) if guard else self.policy

    def start_program(self, arguments: list[str], stdout: int, stderr: int) -> Child:
        """Start a program of crewboard's own choice, its output into the descriptors `stdout` and `stderr`.

        Raises:
            OSError: It cannot be started.
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
        """Start a program that answers on the descriptor `stdio`, what it logs into `log`, while `guard` is open.

        `command_of` shows the `label`. The values of `variables` are on no command line.

        Raises:
            OSError: It cannot be started.
            ValueError: An argument or a value holds a NUL or half of a surrogate pair.
        """
        # Under their own names, variables such as LD_PRELOAD would be read by bubblewrap, outside of the sandbox.
        carriers = {f"{env.PREFIX}PASSED_{number}": key for number, key in enumerate(variables)}
        export = "".join(f'export {key}="${carrier}"; unset {carrier}; ' for carrier, key in carriers.items())
        text = f'{self._beginning()}{export}{bubblewrap.FOUND}exec "$@"'
        bash = programs.system_program("bash", self.policy.root)
        passed = {carrier: variables[key] for carrier, key in carriers.items()}
        return self._start([bash, "-c", text, label, *arguments], self._guarded(guard), stdio, stdio, log, passed)

    def start_file_server(self, arguments: list[str], stdin: int) -> Child:
        """Start a file-tool server that is connected to the descriptor `stdin`.

        Raises:
            OSError: It cannot be started.
        """
        return self._start(arguments, self.policy.for_file_tools(self.results), stdin, stdin, None)

    def git_guard(self, *, commits: bool = True) -> GitGuard | None:
        """Return the guard that prevents new files from making git run programs; keep it open while a command runs."""
        return GitGuard(self.policy.root, commits=commits) if self.policy.writes and self.level != "none" else None

    def covered(self, guard: GitGuard | None) -> dict[Path, tuple[int, int]]:
        """Return the files that mounts protect or hide, with the state of each.

        If another process replaces one, as git does with its settings, the kernel removes the mount over it.
        """
        if self.level != "bubblewrap":
            return {}
        files = guard.files if guard else GitFiles()
        # One mount covers a git directory in which a command does not write.
        git = files.kept if guard is None or guard.commits else (*files.directories, *files.kept)
        paths = [*git, *self.policy.host.private_entries(self.policy.root)]
        return {path: state_of(path) for path in paths if not is_below(path, paths)}

    def file_limits(self, *, writing: bool) -> dict[str, Any]:
        """Return what the file tools refuse (`workspace.Limits`), as it is at this moment."""
        protected = self.policy.git_files().protected if writing and self.policy.writes else []
        return {
            "protected": [str(path) for path in protected],
            "hidden": [str(path) for path in self.policy.host.private_entries(self.policy.root)],
            "allow_hardlinks": self.allow_hardlinks,
        }

    @property
    def contains_processes(self) -> bool:
        """Return True if the kernel ends all processes of a command with it."""
        return self.level == "bubblewrap"

    def _beginning(self) -> str:
        """Return the beginning of a script: it sets limits, and enters the agent's folder. `command_of` cuts it off."""
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
"""The text that the sandbox puts before a command of an agent."""

_HANDLE = 3


def without_sandbox(arguments: Sequence[str]) -> Sequence[str]:
    """Return the command line of a process without bubblewrap, and the script that waits for it, before its program."""
    inner = arguments[arguments.index("--") + 1 :] if "--" in arguments else arguments
    return inner[inner.index(bubblewrap.UNLESS_LEFT) + 3 :] if bubblewrap.UNLESS_LEFT in inner else inner


def command_of(arguments: Sequence[str]) -> str | None:
    """Return an agent's command that a process of the sandbox runs, behind its handle; None for another process."""
    inner = without_sandbox(arguments)
    found = _PREFIX.match(inner[2]) if len(inner) >= _HANDLE and inner[1] == "-c" else None
    if found is None:
        return None
    handle = f"{inner[_HANDLE]}: " if len(inner) > _HANDLE else ""
    if program := inner[_HANDLE + 1 :]:
        return f"{handle}{' '.join(program)}"
    return f"{handle}{inner[2][found.end() :]}"


def running_below(pid: int, boot: str, ticks: int) -> tuple[str, ...]:
    """Return the commands of an agent that run below this worker, each behind its handle; none if it is gone.

    Its MCP servers and its engine are left out: they run as long as the worker.
    """
    if not process.is_same(pid, boot, ticks):
        return ()
    commands = map(command_of, map(process.arguments, process.descendants(pid)))
    # A sandbox is a process around the command that it runs.
    return tuple(
        dict.fromkeys(each for each in commands if each is not None and not each.startswith(("mcp:", "engine:")))
    )


def state_of(path: Path) -> tuple[int, int]:
    """Return what differs after a file was replaced: inode and time of change; zeros if there is none."""
    try:
        found = path.lstat()
    except OSError:
        return 0, 0
    # The content of a folder may change: its mount stays.
    return found.st_ino, 0 if stat.S_ISDIR(found.st_mode) else found.st_mtime_ns


def _at_most(which: int, most: int) -> int:
    """Return `most`, or the present limit if that is lower."""
    hard = resource.getrlimit(which)[1]
    return most if hard == resource.RLIM_INFINITY else min(hard, most)


_levels: dict[tuple[Path, str | None], Level] = {}
"""The sandbox that worked for a reader of a folder, so that a worker does not try it after each tool."""


@contextmanager
def open_reader(team: TeamDirectory, name: str, spec: Spec) -> Iterator[Sandbox]:
    """Open a sandbox in which programs of crewboard read what an agent wrote. It can write in its scratch folder alone.

    Raises:
        StorageError: There is no room for its scratch folder.
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
    """Prepare this process to start commands of agents.

    It and its children get no new privileges, its new files are closed to other users, its memory is private, it leaves
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
        NoSandboxError: No sandbox works here.
        UntrustedError: The team, of which it sees a folder, is not this user's own.
        StorageError: There is no room for its scratch folder.
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


# ----------------------------------------------------------------------------------------- environment of commands

GIT_SETTINGS = ".gitconfig"
"""The file of git settings in a scratch folder."""

_ALLOWED = frozenset({
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TERM", "VIRTUAL_ENV", "NVM_DIR",
    "PYTHONPATH", "NODE_PATH", "GOPATH", "GOROOT", "CARGO_HOME", "RUSTUP_HOME", "JAVA_HOME", "PYENV_ROOT",
})  # fmt: skip
_ALLOWED_PREFIXES = ("LC_", "GIT_AUTHOR_", "GIT_COMMITTER_")

_FOR_THE_NETWORK = frozenset({
    "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "GIT_SSL_CAINFO",
    "PIP_CERT", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY",
})  # fmt: skip

_CACHES = {
    "TMPDIR": "",
    "XDG_CACHE_HOME": ".cache",
    "RUFF_CACHE_DIR": ".cache/ruff",
    "MYPY_CACHE_DIR": ".cache/mypy",
    "PYTHONPYCACHEPREFIX": ".cache/python",
    "COVERAGE_FILE": ".coverage",
    "CARGO_TARGET_DIR": ".cache/cargo-target",
    "npm_config_cache": ".cache/npm",
    "GIT_CONFIG_GLOBAL": GIT_SETTINGS,
}
"""Variables that name temporary files and caches, and where these are in the scratch folder."""

_TOOLS = {"RUSTUP_HOME": ".rustup", "PYENV_ROOT": ".pyenv", "NVM_DIR": ".nvm"}
"""Variables that name folders of tools, and where these are in a home."""


def tool_environment(scratch: Path | None = None, *, network: bool = False, own_home: bool = True) -> dict[str, str]:
    """Return the environment of commands: an allow-list, and the mark by which the worker's processes are found.

    Temporary files and caches go to `scratch`, and so do files of the home unless commands have `own_home`.
    """
    me = os.getpid()
    found = {key: value for key, value in os.environ.items() if _is_allowed(key, value, network=network)}
    if scratch is not None:
        found |= {name: str(scratch / below) for name, below in _CACHES.items()}
        found["PYTEST_ADDOPTS"] = f"-o cache_dir={scratch / '.cache/pytest'}"
        # Commands that only read a repository must not write to it.
        found["GIT_OPTIONAL_LOCKS"] = "0"
    if scratch is not None and not own_home:
        # Where tools are that would be looked for in the home.
        home = Path(os.environ.get("HOME", "/nonexistent"))
        moved = {name: os.environ.get(name) or str(home / folder) for name, folder in _TOOLS.items()}
        found |= {name: value for name, value in moved.items() if os.path.isdir(value)}  # noqa: PTH112
        found["HOME"] = str(scratch)
    return {
        **found,
        "TERM": "dumb",
        "NO_COLOR": "1",
        env.WORKER: process.mark(me, process.start_ticks(me)),
    }


def _is_allowed(key: str, value: str, *, network: bool) -> bool:
    if network and key.upper() in _FOR_THE_NETWORK:
        # The address of a proxy may hold a password.
        return "@" not in value
    return key in _ALLOWED or key.startswith(_ALLOWED_PREFIXES)
