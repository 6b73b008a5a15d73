"""Where bubblewrap does not work: the same limits by Landlock and seccomp, taken on by the thread that starts a command.

Weaker in what it cannot leave out. Rights to a folder are rights to all below it, so the workspace is granted entry by
entry, without the team's files: an agent that writes can make nothing new directly in the root, nor write in `.git`.
"""

import os
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from crewboard.store.directory import HOME as TEAMS
from crewboard.worker.sandbox import calls, kernel, places
from crewboard.worker.sandbox.policy import Policy

T = TypeVar("T")

OLDEST = 3
"""The first ABI that keeps files from being truncated."""

_READABLE = (
    "/bin", "/sbin", "/usr", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/nix", "/etc", "/proc", "/sys",
    "/var/lib/dpkg", "/var/lib/gems", "/var/lib/texmf",
)  # fmt: skip
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_DEVICE = kernel.READ_FILE | kernel.WRITE_FILE | kernel.TRUNCATE | kernel.IOCTL_DEV

Grant = tuple[Path, int]


def complaint(policy: Policy) -> str | None:
    """Why Landlock cannot hold this policy here; None when it can. Tries it once."""
    abi = kernel.landlock_abi()
    if abi < OLDEST:
        return f"Landlock is {f'of ABI {abi}, which is older than {OLDEST}' if abi else 'not there'}"
    if calls.architecture() is None:
        return f"there is no filter of system calls for {os.uname().machine}"
    try:
        ended = start(policy, lambda: subprocess.run(["true"], stdin=subprocess.DEVNULL, check=False).returncode)
    except OSError as error:
        return str(error)
    return f"a trial ended with {ended}" if ended else None


def start(policy: Policy, begin: Callable[[], T]) -> T:
    """Call `begin`, which starts a process, in a thread that has restricted itself.

    Raises:
        OSError: The thread could not be restricted, and nothing was started; or what `begin` raises.
    """
    rules = filters(policy)
    granted = grants(policy)

    def restricted() -> T:
        restrict(granted, [rule for name in rules.values() for rule in name], network=policy.network)
        return begin()

    return in_thread(restricted)


def in_thread(work: Callable[[], T]) -> T:
    """What `work` gives in a thread of its own, which then ends: no other work inherits what it took on."""
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


def restrict(
    granted: list[Grant], rules: list[calls.Rule], *, network: bool, scoped: bool = True, abi: int | None = None
) -> None:
    """Restrict this thread, and all that it starts, for good."""
    kernel.no_new_privileges()
    kernel.drop_capabilities()
    kernel.restrict_files(granted, abi or kernel.landlock_abi(), network=network, scoped=scoped)
    kernel.filter_calls(calls.program(rules))


def filters(policy: Policy) -> dict[str, list[calls.Rule]]:
    """The rules for system calls, by name."""
    scoped = kernel.landlock_abi() >= kernel.SCOPES_SIGNALS
    return calls.beside_landlock(network=policy.network, writes=policy.writes, scoped=scoped)


def grants(policy: Policy) -> list[Grant]:
    """Which files may be read, and which written."""
    root, tools = policy.root, places.tools()
    kept_out = [root, *places.system_secrets()]
    found = [grant for path in [*map(Path, _READABLE), *tools] for grant in _all_but(kept_out, path, kernel.READ)]
    found += [(path, kernel.READ) for path in tools if root in path.parents]
    found += [(Path("/dev", name), _DEVICE) for name in _DEVICES]
    found += [(path, kernel.READ) for path in places.host_names()] if policy.network else []
    found += [(policy.scratch, kernel.READ | kernel.WRITE)] if policy.scratch else []
    found += [(policy.results, kernel.READ)] if policy.results else []
    return [*found, *_workspace(policy)]


def _workspace(policy: Policy) -> list[Grant]:
    root = policy.root
    if policy.results and policy.writes:
        # Files of `hands` are opened step by step from the root, never through a link, and never the team's.
        return [(root, kernel.READ | kernel.WRITE)]
    hidden = [root / TEAMS, *places.team_folders(root), *places.private_entries(root)]
    if not policy.writes:
        return _all_but(hidden, root, kernel.READ)
    fixed = [root / ".git", *(path for path in places.own_prefixes() if root in path.parents)]
    return [*_all_but([*hidden, *fixed], root, kernel.READ | kernel.WRITE), *((path, kernel.READ) for path in fixed)]


def _all_but(kept_out: list[Path], folder: Path, rights: int) -> list[Grant]:
    """Rights to a folder and all below it but `kept_out`; of the folders on the way to those, the names are shown."""
    if folder in kept_out or places.is_below(folder, kept_out):
        return []
    inside = [path for path in kept_out if folder in path.parents]
    if not inside:
        return [(folder, rights)]
    try:
        entries = list(folder.iterdir())
    except OSError:
        return []
    return [(folder, kernel.READ_DIR), *(grant for entry in entries for grant in _all_but(inside, entry, rights))]
