"""Where bubblewrap does not work: much the same by Landlock and seccomp, taken on by the thread that starts a command.

Weaker in what it cannot leave out. Rights to a folder are rights to all below it, so the workspace is granted entry by
entry, without the team's files: an agent that writes can make nothing new directly in the root, nor write in `.git`.
"""

import os
import subprocess
import threading
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

from crewboard.linux import syscalls
from crewboard.linux.programs import clean_environment, system_program
from crewboard.sandbox import seccomp
from crewboard.sandbox.host_paths import HostPaths, host_names, is_below, team_folders
from crewboard.sandbox.policy import Policy
from crewboard.sandbox.process import Child, Start
from crewboard.store.layout import HOME as TEAMS

T = TypeVar("T")

OLDEST = 3
"""The first ABI that keeps files from being truncated."""

_READABLE = (
    "/bin", "/sbin", "/usr", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/nix", "/etc", "/proc", "/sys",
    "/var/lib/dpkg", "/var/lib/gems", "/var/lib/texmf",
)  # fmt: skip
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_DEVICE = syscalls.READ_FILE | syscalls.WRITE_FILE | syscalls.TRUNCATE | syscalls.IOCTL_DEV

Grant = tuple[Path, int]


def unavailable_reason(policy: Policy) -> str | None:
    """Why Landlock cannot hold this policy here; None when it can. Tries it once."""
    abi = syscalls.landlock_abi()
    if abi < OLDEST:
        return f"Landlock is {f'of ABI {abi}, which is older than {OLDEST}' if abi else 'not there'}"
    if seccomp.architecture() is None:
        return f"there is no filter of system calls for {os.uname().machine}"
    nothing = subprocess.DEVNULL
    try:
        true = system_program("true", policy.root)
        trial = Start([true], policy.root, clean_environment(), 0o077, nothing, nothing, nothing)
        code = _restricted(policy, trial).wait()
    except OSError as error:
        return f"Landlock cannot be used: {error}"
    return f"behind Landlock, `true` ended with {code}" if code else None


def start(policy: Policy, start: Start) -> Child:
    """Start a process behind the wall.

    Raises:
        OSError: The kernel refused a restriction, and nothing was started; or it cannot be started.
    """
    return Child(_restricted(policy, start))


def _restricted(policy: Policy, start: Start) -> "subprocess.Popen[bytes]":
    granted = grants(policy)
    program = seccomp.program(tuple(rule for rules in filters(policy).values() for rule in rules))

    def begin() -> "subprocess.Popen[bytes]":
        syscalls.no_new_privileges()
        syscalls.drop_capabilities()
        syscalls.restrict_files(granted, syscalls.landlock_abi(), network=policy.network)
        syscalls.filter_calls(program)
        return start.now()

    return _in_thread(begin)


def _in_thread(work: Callable[[], T]) -> T:
    """What `work` gives in a thread of its own, which then ends: nothing else inherits what it took on."""
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:  # noqa: BLE001  raised again where it is waited for
            errors.append(error)

    thread = threading.Thread(target=run, name="restricted")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def filters(policy: Policy) -> dict[str, list[seccomp.Rule]]:
    """The rules for system calls, by name."""
    scoped = syscalls.landlock_abi() >= syscalls.SCOPES_SIGNALS
    return seccomp.beside_landlock(network=policy.network, writes=policy.writes, scoped=scoped)


def grants(policy: Policy) -> list[Grant]:
    """Which files may be read, and which written."""
    tools = [path for path in policy.places.tools if policy.root in path.parents]
    found = [*_of_the_system(policy.root, policy.places), *((path, syscalls.READ) for path in tools)]
    found += [(path, syscalls.READ) for path in host_names()] if policy.network else []
    found += [(policy.scratch, syscalls.READ | syscalls.WRITE)] if policy.scratch else []
    found += [(policy.results, syscalls.READ)] if policy.results else []
    return [*found, *_workspace(policy)]


@lru_cache
def _of_the_system(root: Path, places: HostPaths) -> list[Grant]:
    """What does not change while a worker lives: programs and devices."""
    kept_out = [root, *places.secrets]
    readable = [*map(Path, _READABLE), *places.tools]
    found = [grant for path in readable for grant in _all_but(kept_out, path, syscalls.READ)]
    return [*found, *((Path("/dev", name), _DEVICE) for name in _DEVICES)]


def _workspace(policy: Policy) -> list[Grant]:
    root, private = policy.root, policy.places.private_entries(policy.root)
    if policy.results and policy.writes:
        # Files of `hands` are opened step by step from the root, never through a link, and never the team's.
        return _all_but(private, root, syscalls.READ | syscalls.WRITE)
    hidden = [root / TEAMS, *team_folders(root), *private]
    if not policy.writes:
        return _all_but(hidden, root, syscalls.READ)
    fixed = [root / ".git", *(path for path in policy.places.own if root in path.parents)]
    return [
        *_all_but([*hidden, *fixed], root, syscalls.READ | syscalls.WRITE),
        *((path, syscalls.READ) for path in fixed),
    ]


def _all_but(kept_out: list[Path], folder: Path, rights: int) -> list[Grant]:
    """Rights to a folder and all below it but `kept_out`; of the folders on the way to those, the names are shown."""
    if folder in kept_out or is_below(folder, kept_out):
        return []
    inside = [path for path in kept_out if folder in path.parents]
    if not inside:
        return [(folder, rights)]
    try:
        entries = list(folder.iterdir())
    except OSError:
        return []
    return [(folder, syscalls.READ_DIR), *(grant for entry in entries for grant in _all_but(inside, entry, rights))]
