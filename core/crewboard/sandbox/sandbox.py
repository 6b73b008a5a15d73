"""The wall around the tools of one agent: every command and `hands` start through it."""

import os
import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from crewboard.agent_types.custom import type_of
from crewboard.errors import StorageError
from crewboard.linux.programs import system_program
from crewboard.records import Spec
from crewboard.sandbox import bubblewrap, landlock
from crewboard.sandbox.environment import GIT_SETTINGS, tool_environment
from crewboard.sandbox.git import write_git_settings
from crewboard.sandbox.level import Level, find, require_allowed
from crewboard.sandbox.policy import Policy
from crewboard.sandbox.process import Child, Start
from crewboard.sandbox.scratch import Scratch
from crewboard.store.layout import TeamDirectory

MOST_PROCESSES = 4096
"""Processes and threads that a command may have where they are counted apart from the user's others."""

LARGEST_FILE = 8 << 30
"""Bytes that a command may write to one file."""


@dataclass(frozen=True)
class Sandbox:
    """One agent's wall: its level, what commands may reach, and the team's results for `hands`."""

    level: Level
    policy: Policy
    results: Path
    word: str = ""
    """The level as status shows it."""

    def command(self, text: str, stdout: int) -> Child:
        """Start a command, its output into the descriptor `stdout`.

        Raises:
            OSError: It cannot be started: the kernel refused, or it is too long.
            ValueError: It holds a NUL or half of a surrogate pair.
        """
        inner = [system_program("bash", self.policy.root), "-c", f"{self._limits()}; {text}"]
        return self._start(inner, self.policy, subprocess.DEVNULL, stdout, subprocess.STDOUT)

    def hands(self, arguments: list[str], stdin: int) -> Child:
        """Start a helper for file tools that is spoken to through the descriptor `stdin`.

        Raises:
            OSError: It cannot be started.
        """
        return self._start(arguments, self.policy.for_hands(self.results), stdin, stdin, None)

    def tidy(self) -> str | None:
        """Remove what would make git outside take its settings and hooks from elsewhere; says what that was.

        No mount can forbid a new file in a folder that may be written to.
        """
        diverted = self.policy.root / ".git" / "commondir"
        if not self.policy.writes or diverted.parent.is_symlink() or not diverted.is_file():
            return None
        diverted.unlink()
        return ".git/commondir"

    @property
    def contains_processes(self) -> bool:
        """Whether all that a command starts ends with it, by the kernel's doing."""
        return self.level == "bubblewrap"

    def _limits(self) -> str:
        limits = ["-c 0", f"-f {_at_most(resource.RLIMIT_FSIZE, LARGEST_FILE) // 1024}"]
        if self.level == "bubblewrap":
            limits.append(f"-u {_at_most(resource.RLIMIT_NPROC, MOST_PROCESSES)}")
        return f"ulimit {' '.join(limits)}"

    def _start(self, inner: list[str], policy: Policy, stdin: int, stdout: int, stderr: int | None) -> Child:
        environment = tool_environment(policy.scratch, network=policy.network, own_home=self.level != "landlock")
        start = Start(inner, policy.root, environment, policy.umask, stdin, stdout, stderr)
        if self.level == "bubblewrap":
            return bubblewrap.start(policy, start)
        if self.level == "landlock":
            return landlock.start(policy, start)
        return Child(start.now())


def _at_most(which: int, most: int) -> int:
    """A limit that this process may set: `most`, unless the present one is lower."""
    hard = resource.getrlimit(which)[1]
    return most if hard == resource.RLIM_INFINITY else min(hard, most)


@contextmanager
def open_sandbox(team: TeamDirectory, name: str, spec: Spec) -> Iterator[Sandbox]:
    """The wall of one run, with a scratch folder that goes with it if the agent executes.

    Raises:
        NoSandboxError: Nothing can hold it in.
        UntrustedError: The team's folders, of which one is shown to it, are not this user's own.
        StorageError: There is no room for its scratch folder.
        UsageError: The environment asks for a level that there is not.
    """
    kind = type_of(spec.type, spec.definition)
    policy = Policy(Path(os.path.realpath(team.root)), writes=kind.writes, network=spec.flags.network)
    found = find(policy, os.environ)
    word = require_allowed(kind, spec.flags, found)
    team.require_own()
    results = Path(os.path.realpath(team.path)) / team.results.name
    if not kind.executes:
        yield Sandbox(found.level, policy, results, word)
        return
    scratch = _prepared(name, policy.root)
    try:
        yield Sandbox(found.level, replace(policy, scratch=scratch.path), results, word)
    finally:
        scratch.remove()


def _prepared(name: str, workspace: Path) -> Scratch:
    try:
        scratch = Scratch.make()
        write_git_settings(scratch.path / GIT_SETTINGS, name, workspace)
    except OSError as error:
        raise StorageError(f"no private folder for commands could be made: {error}") from error
    return scratch
