"""The sandbox by Landlock and seccomp, for machines where bubblewrap does not work.

The thread that starts a command restricts itself first, and the command inherits that. Why not a library or a wrapper:
bindings to Landlock for Python cover neither the network rules nor the scopes, and a wrapper program costs 30 to 350 ms
for each command (docs/decisions/0003-sandbox-per-command.md).

It is weaker than bubblewrap. Rights to a folder are rights to everything below it, so the workspace is granted entry
by entry, without the team's files: an agent cannot make new entries in the root itself, nor write in `.git`.
"""

import os
import subprocess
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

from crewboard.sandbox import seccomp
from crewboard.sandbox.host_paths import HostPaths, host_names, is_below
from crewboard.sandbox.policy import Policy
from crewboard.sandbox.process import Child, Start
from crewboard.store.layout import HOME as TEAMS
from crewboard.unix import programs, syscalls

T = TypeVar("T")

OLDEST = 3
"""The lowest version of Landlock's ABI that is used: the first that can forbid truncating files."""

_READABLE = (
    "/bin", "/sbin", "/usr", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/nix", "/etc", "/proc", "/sys",
    "/var/lib/dpkg", "/var/lib/gems", "/var/lib/texmf",
)  # fmt: skip
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_DEVICE = syscalls.READ_FILE | syscalls.WRITE_FILE | syscalls.TRUNCATE | syscalls.IOCTL_DEV

Grant = tuple[Path, int]


def unavailable_reason(policy: Policy) -> str | None:
    """Run a program under Landlock with this policy; return why that does not work here, None if it works."""
    abi = syscalls.landlock_abi()
    if abi < OLDEST:
        return f"Landlock is {f'of ABI {abi}, which is older than {OLDEST}' if abi else 'not available'}"
    if seccomp.architecture() is None:
        return f"there is no filter of system calls for {os.uname().machine}"
    nothing = subprocess.DEVNULL
    try:
        true = programs.system_program("true", policy.root)
        trial = Start([true], policy.root, programs.clean_environment(), 0o077, nothing, nothing, nothing)
        code = _restricted(policy, trial).wait()
    except OSError as error:
        return f"Landlock cannot be used: {error}"
    return f"under Landlock, `true` ended with {code}" if code else None


def start(policy: Policy, start: Start) -> Child:
    """Start the process that `start` describes in the sandbox of a policy, and return it.

    Raises:
        OSError: The kernel refused a restriction, or the process cannot be started. Nothing was started.
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
    """Run `work` in a thread of its own, which alone it may restrict, and return its result."""
    # Imported here because it loads much, and where bubblewrap works nothing needs it.
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="restricted") as pool:
        return pool.submit(work).result()


def filters(policy: Policy) -> dict[str, list[seccomp.Rule]]:
    """Return the rules for system calls under this policy, by name."""
    scoped = syscalls.landlock_abi() >= syscalls.SCOPES_SIGNALS
    return seccomp.with_landlock(network=policy.network, writes=policy.writes, scoped=scoped)


def grants(policy: Policy) -> list[Grant]:
    """Return files and folders, each with the rights to it and to everything below it that the policy gives."""
    outside = policy.concealed or policy.root
    tools = [path for path in policy.host.tools if outside in path.parents]
    found = [*_of_the_system(outside, policy.host), *((path, syscalls.READ) for path in tools)]
    found += [(path, syscalls.READ) for path in host_names()] if policy.network else []
    found += [(policy.scratch, syscalls.READ | syscalls.WRITE)] if policy.scratch else []
    found += [(path, syscalls.READ) for path in (*policy.borrowed, *([policy.results] if policy.results else []))]
    root, private = policy.root, policy.host.private_entries(policy.root)
    if policy.results and policy.writes:
        # The file tools open each file step by step from the root, never through a link, and never one of the team.
        inside = _all_but(private, root, syscalls.READ | syscalls.WRITE)
        return [*found, *inside]
    hidden = [root / TEAMS, *policy.team_folders(), *private]
    if not policy.writes:
        return [*found, *_all_but(hidden, root, syscalls.READ)]
    fixed = [root / ".git", *policy.git_files().protected, *(path for path in policy.host.own if root in path.parents)]
    inside = _all_but([*hidden, *fixed], root, syscalls.READ | syscalls.WRITE)
    return [*found, *inside, *((path, syscalls.READ) for path in fixed)]


@lru_cache
def _of_the_system(root: Path, places: HostPaths) -> list[Grant]:
    """Return the rights that do not change while a worker runs: to programs and devices, but not to `root`."""
    kept_out = [root, *places.secrets]
    readable = [*map(Path, _READABLE), *places.tools]
    found = [grant for path in readable for grant in _all_but(kept_out, path, syscalls.READ)]
    return [*found, *((Path("/dev", name), _DEVICE) for name in _DEVICES)]


def _all_but(kept_out: list[Path], folder: Path, rights: int) -> list[Grant]:
    """Return `rights` to everything in a folder except for the paths `kept_out`.

    The folders that contain such paths can be listed.
    """
    if folder in kept_out or is_below(folder, kept_out):
        return []
    # Text, not Path.parents: there may be thousands of paths.
    above = f"{str(folder).rstrip('/')}/"
    inside = [path for path in kept_out if path != folder and str(path).startswith(above)]
    if not inside:
        return [(folder, rights)]
    try:
        entries = list(folder.iterdir())
    except OSError:
        return []
    return [
        (folder, syscalls.READ_DIR),
        *(grant for entry in entries for grant in _all_but(inside, entry, rights)),
    ]
