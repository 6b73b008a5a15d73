"""The sandbox by bubblewrap: make its command line from a policy, start processes in it, and find out if it works.

Later mounts lie over earlier ones: the host read-only, private folders hidden, tools and the workspace shown again, and
within the workspace what is not for the agent hidden again. A worktree lies within the hidden root of its team.
"""

import errno
import os
import subprocess
import time
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from crewboard.sandbox import seccomp
from crewboard.sandbox.git import held_folders
from crewboard.sandbox.host_paths import host_names, is_below
from crewboard.sandbox.policy import Policy
from crewboard.sandbox.process import Child, Start
from crewboard.unix import programs

PROBE_TIMEOUT = 10.0
"""Seconds that a trial run of bubblewrap may take."""

TRIED_FOR = 60.0
"""Seconds for which a successful trial run counts, because an open dashboard asks at each hire, for days."""

FOUND = '[[ $(type -P -- "$1") ]] || { printf "%s\\n" "$1: not found in the sandbox" >&2; exit 127; }; '
"""A piece of bash that ends with an error text if there is no program `$1`, in place of bash's own, less clear one."""

UNLESS_LEFT = (
    ': crewboard starts the program behind this script; of() { local line; filters=; mapfile lines <"/proc/$1/status"; '
    'for line in "${lines[@]}"; do [[ $line == Seccomp* ]] && filters+=$line; done; }; of $$; own=$filters; '
    'for ((n = 0; n < 9999; n++)); do of 1; [[ $filters == "$own" ]] && break; done; '
    'read -t 0 -u "$0" && exit 1; eval "exec $0<&- $1<&-"; shift; ' + FOUND + 'exec "$@"'
)
"""The start script: bash that replaces itself by the program in its arguments, unless crewboard's process has died.

bubblewrap asks the kernel to end it with its parent only after its own start, and to end its first process in the
namespace only after all mounts: if the parent dies before, nothing would end the program. So the script waits until the
first process has asked for that. The sign of it is the seccomp filter, which is set next; it is compared with the
filters of the script itself, because in a container all processes have one from outside. Then the script checks whether
a pipe is closed that the parent keeps open (`Child.held`).
"""

_tried: dict[tuple[str, ...], float] = {}
"""By command line, the monotonic time until which a successful trial run counts; forks of this process inherit it."""


def rules(policy: Policy) -> dict[str, list[str]]:
    """Return the arguments of bubblewrap for a policy, by purpose, in the order that it needs."""
    private = policy.host.private_entries(policy.root)
    tools = [path for path in policy.host.tools if path in private or is_below(path, private)]
    # The team's files are hidden, except for the results that the file tools read, and the home of an engine. Others
    # are hidden with their folder; but the workspace is visible wherever it is.
    folders = [
        path
        for path in policy.team_folders()
        if path.is_relative_to(policy.root) or not is_below(path, policy.host.hidden)
    ]
    shown = [] if policy.results is None else _bind("--ro-bind-try", policy.results)
    shown += [] if policy.home is None else _bind("--bind", policy.home)
    shown += [] if policy.login is None else ["--ro-bind", str(policy.login[0]), str(policy.login[1])]
    empty = [*folders, policy.concealed] if policy.concealed else folders
    found = {
        **_permanent(policy),
        "kept": _kept(policy, private) if policy.writes else [],
        # What is private in a home in the workspace, except for tools.
        "private": [*_cover(private), *_put_back(tools)],
        "team": [*_over("--tmpfs", folders), *shown, *_over("--remount-ro", empty)],
        "scratch": _bind("--bind", policy.scratch) if policy.scratch else [],
    }
    return {name: arguments for name, arguments in found.items() if arguments}


@lru_cache(maxsize=8)
def _permanent(policy: Policy) -> dict[str, list[str]]:
    """Return the first of these arguments, which are the same for every command of a worker."""
    root, hidden = policy.root, [*policy.host.hidden, *([policy.concealed] if policy.concealed else [])]
    return {
        "user": ["--unshare-user"],
        "capabilities": ["--cap-drop", "ALL"],
        "processes": ["--unshare-pid"],
        "shared memory": ["--unshare-ipc"],
        "network": [] if policy.network else ["--unshare-net"],
        "session": ["--new-session"],
        "lifetime": ["--die-with-parent"],
        "host": ["--ro-bind", "/", "/"],
        "devices": ["--dev", "/dev"],
        "proc": ["--proc", "/proc"],
        # Even root, which is the machine's own here but without capabilities, must not change settings of the kernel.
        "settings": ["--remount-ro", "/proc"],
        "hidden": _over("--tmpfs", hidden),
        "system secrets": _cover(path for path in policy.host.secrets if not is_below(path, hidden)),
        "tools": _put_back([path for path in policy.host.tools if is_below(path, hidden)]),
        "names": _put_back([path for path in host_names() if policy.network and is_below(path, hidden)]),
        "borrowed": _put_back(policy.borrowed),
        "workspace": _bind("--bind" if policy.writes else "--ro-bind", root),
    }


def start(policy: Policy, start: Start) -> Child:
    """Start the process that `start` describes in the sandbox of a policy, and return it.

    Raises:
        OSError: bubblewrap is missing, or cannot be run.
    """
    # On a machine without a filter of system calls, the namespaces alone must do.
    allowed = seccomp.ALLOW_ALL
    if seccomp.architecture() is not None:
        allowed = seccomp.program(tuple(rule for named in seccomp.in_bubblewrap().values() for rule in named))
    # It must fit into a pipe.
    filtered, writable = os.pipe2(os.O_CLOEXEC)
    os.write(writable, allowed)
    os.close(writable)
    about, told = os.pipe2(os.O_CLOEXEC)
    life, held = os.pipe2(os.O_CLOEXEC)
    try:
        bash = programs.system_program("bash", policy.root)
        inner = [bash, "-c", UNLESS_LEFT, str(life), str(about), *start.arguments]
        command = _command(policy, inner, ["--seccomp", str(filtered), "--json-status-fd", str(told)])
        # With its own reader, bubblewrap can always report: else, after our end, it would die of that, and what it
        # started would wait for it forever.
        return Child(replace(start, arguments=command).now(filtered, told, life, about), about, held)
    except BaseException:
        os.close(about)
        os.close(held)
        raise
    finally:
        os.close(life)
        os.close(told)
        os.close(filtered)


def _command(policy: Policy, inner: list[str], more: list[str]) -> list[str]:
    bwrap = programs.find_program("bwrap", policy.root)
    if bwrap is None:
        raise FileNotFoundError(errno.ENOENT, programs.passed_over("bwrap") or "bubblewrap is not installed")
    arguments = [part for rule in rules(policy).values() for part in rule]
    return [str(bwrap), *arguments, *more, "--chdir", str(policy.root), "--", *inner]


def try_for_forks(root: Path) -> None:
    """Run bubblewrap with the usual policies for a workspace, so that forks of this process need not try them again.

    If bubblewrap stops working later, their commands fail; none runs without it.
    """
    for writes in (False, True):
        unavailable_reason(Policy(root, writes=writes), holds_for=float("inf"))


def _trial(policy: Policy) -> list[str]:
    """Return the command line of a trial run: bash, which each start needs, in the sandbox of this policy.

    bash is the first process of its namespace, so that none is left to reap.
    """
    command = _command(policy, [programs.system_program("bash", policy.root), "-c", ":"], ["--as-pid-1"])
    # It ends by itself. Killed with this process, bubblewrap could leave a process that waits for it forever.
    return [part for part in command if part != "--die-with-parent"]


def _run(trial: list[str]) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        trial,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=PROBE_TIMEOUT,
        env=programs.clean_environment(),
        check=False,
    )


def unavailable_reason(policy: Policy, holds_for: float = TRIED_FOR) -> str | None:
    """Run bubblewrap with this policy; return why it does not work, None if it works.

    A success counts for `holds_for` seconds, in which the next calls run nothing.
    """
    try:
        trial = _trial(policy)
        if time.monotonic() < _tried.get(tuple(trial), 0):
            return None
        # Bubblewrap fails if a mount is removed while it mounts it again, so one failure proves nothing.
        done = _run(trial)
        if done.returncode:
            done = _run(trial)
    except FileNotFoundError as error:
        return str(error.strerror)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"bubblewrap cannot be run: {error}"
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        return said[-1] if said else f"bubblewrap ended with {done.returncode}"
    _tried[tuple(trial)] = time.monotonic() + holds_for
    return None


def _bind(option: str, path: Path) -> list[str]:
    return [option, str(path), str(path)]


def _over(option: str, paths: Iterable[Path]) -> list[str]:
    return [part for path in paths for part in (option, str(path))]


def _put_back(paths: Iterable[Path]) -> list[str]:
    return [part for path in paths for part in _bind("--ro-bind-try", path)]


def _cover(paths: Iterable[Path]) -> list[str]:
    """Return arguments that hide folders behind empty ones, and files behind /dev/null."""
    return [
        part
        for path in paths
        for part in (["--tmpfs", str(path)] if path.is_dir() else ["--ro-bind", "/dev/null", str(path)])
    ]


def _kept(policy: Policy, private: list[Path]) -> list[str]:
    """Return arguments that make parts of a writable workspace read-only: protected git files, and crewboard's code.

    Git directories stay writable for a command that commits. `private` are the paths to be hidden.
    """
    root = policy.root
    found = policy.git_files()
    writable = found.directories if policy.commits else ()
    kept = [path for path in found.protected if path not in writable and os.path.lexists(path)]
    kept += [path for path in policy.host.own if is_below(path, [root])]
    kept += [path for git in writable if os.path.lexists(path := git / "commondir")]
    open_folders = {*found.directories, *held_folders([*found.directories, *kept, *found.teams, *private], root)}
    outermost = [path for path in kept if not is_below(path, kept)]
    # Each folder above is a mount of its own, so that it cannot be moved away and another put in its place.
    mounts = {path: "--bind" for path in open_folders if not is_below(path, kept)} | dict.fromkeys(
        outermost, "--ro-bind"
    )
    return [part for path, option in sorted(mounts.items()) for part in _bind(option, path)]
