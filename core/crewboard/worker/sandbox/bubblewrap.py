"""The command line of bubblewrap for one policy, rule by rule.

Later mounts lie over earlier ones: the host read-only, what is private hidden, tools and the workspace put back, and
within the workspace what is not the agent's hidden again.
"""

import os
import stat
import subprocess
from functools import lru_cache
from pathlib import Path

from crewboard import process
from crewboard.worker.sandbox import places
from crewboard.worker.sandbox.policy import Policy

PROBE_WITHIN = 10.0
"""Seconds that the probe may take."""

_NAMES = ("/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf")
"""Files that name hosts; on many machines they are links into /run."""

_GIT_KEEPS = ("hooks", "config", "config.worktree", "modules")
"""What of a repository makes git run programs; submodules keep theirs in `modules`."""


@lru_cache
def program(root: Path) -> str | None:
    """bubblewrap's path; never one in the workspace, which an agent may have put there."""
    for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
        found = Path(os.path.realpath(os.path.join(folder, "bwrap")))
        if os.path.isabs(folder) and os.access(found, os.X_OK) and not found.is_relative_to(root):
            return str(found)
    return None


def rules(policy: Policy) -> dict[str, list[str]]:
    """The arguments, by what they are for, in the order that bubblewrap needs."""
    hidden = places.outermost([*places.volatile(), *places.homes()])
    found = {
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
        "private": _over("--tmpfs", hidden),
        "system secrets": _cover(places.system_secrets()),
        "tools": _put_back([path for path in places.tools(hidden) if not path.is_relative_to(policy.root)]),
        "names": _put_back(_names(hidden)) if policy.network else [],
        "workspace": _bind("--bind" if policy.writes else "--ro-bind", policy.root),
        "repository": _repository(policy.root) if policy.writes else [],
        "own code": _own_code(policy.root) if policy.writes else [],
        "home as workspace": _private_in(policy.root),
        "team": _team(policy, hidden),
        "scratch": _bind("--bind", policy.scratch) if policy.scratch else [],
        "sockets": _cover(_sockets(hidden, policy.root)),
    }
    return {name: arguments for name, arguments in found.items() if arguments}


def command(bwrap: str, rules: dict[str, list[str]], seccomp: int | None, root: Path, inner: list[str]) -> list[str]:
    """The whole command line. `seccomp` is a descriptor to read the filter from, `inner` what to run."""
    arguments = [part for rule in rules.values() for part in rule]
    loaded = [] if seccomp is None else ["--seccomp", str(seccomp)]
    return [bwrap, *arguments, *loaded, "--chdir", str(root), "--", *inner]


def complaint(policy: Policy) -> str | None:
    """Why bubblewrap does not work for this policy here; None when it does. Runs it once."""
    bwrap = program(policy.root)
    if bwrap is None:
        return "bubblewrap is not installed"
    try:
        done = subprocess.run(
            command(bwrap, rules(policy), None, policy.root, ["true"]),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PROBE_WITHIN,
            env={"PATH": os.environ.get("PATH", os.defpath)},
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"bubblewrap cannot be run: {error}"
    said = done.stderr.decode("utf-8", "replace").strip().splitlines()
    return (said[-1] if said else f"bubblewrap ended with {done.returncode}") if done.returncode else None


def _bind(option: str, path: Path) -> list[str]:
    return [option, str(path), str(path)]


def _over(option: str, paths: list[Path]) -> list[str]:
    return [part for path in paths for part in (option, str(path))]


def _put_back(paths: list[Path]) -> list[str]:
    return [part for path in paths for part in _bind("--ro-bind-try", path)]


def _cover(paths: list[Path]) -> list[str]:
    """Nothing in the place of folders, /dev/null in the place of files."""
    return [part for path in paths for part in (_empty(path) if path.is_dir() else _nothing(path))]


def _empty(path: Path) -> list[str]:
    return ["--tmpfs", str(path), "--remount-ro", str(path)]


def _nothing(path: Path) -> list[str]:
    return ["--ro-bind", "/dev/null", str(path)]


def _names(hidden: list[Path]) -> list[Path]:
    real = [Path(os.path.realpath(name)) for name in _NAMES]
    return [path for path in real if any(folder in path.parents for folder in hidden)]


def _private_in(root: Path) -> list[str]:
    """Where the workspace is a home, or holds homes: what is hidden there by its name."""
    return [part for home in places.homes() if home.is_relative_to(root) for part in _cover(_private(home))]


def _private(home: Path) -> list[Path]:
    return [path for path in places.private_entries(home) if not path.is_symlink()]


def _repository(root: Path) -> list[str]:
    """Let an agent commit, but not choose what git will run. A repository of an unusual form is read-only."""
    git = root / ".git"
    if git.is_symlink() or not git.exists():
        return []
    kept = [git / name for name in _GIT_KEEPS if name == "hooks" or os.path.lexists(git / name)]
    if not git.is_dir() or any(path.is_symlink() for path in kept) or not (git / "hooks").is_dir():
        return _bind("--ro-bind", git)
    # A mount of its own, so that the whole cannot be moved away and another put in its place.
    return [*_bind("--bind", git), *(part for path in kept for part in _bind("--ro-bind", path))]


def _own_code(root: Path) -> list[str]:
    """The packages that workers run from, where they lie in the workspace."""
    return [part for path in places.own_prefixes() if root in path.parents for part in _bind("--ro-bind", path)]


def _team(policy: Policy, hidden: list[Path]) -> list[str]:
    """The team's own files: gone, but for the results that `hands` reads."""
    shown = [
        path
        for path in places.team_folders(policy.root)
        if path.is_relative_to(policy.root) or not any(folder in path.parents for folder in hidden)
    ]
    arguments = _over("--tmpfs", shown)
    if policy.results is not None:
        arguments += _bind("--ro-bind-try", policy.results)
    return arguments + _over("--remount-ro", shown)


def _sockets(hidden: list[Path], root: Path) -> list[Path]:
    """Sockets of the host that no mount hides yet: connecting to them needs no writable mount."""
    found = [Path(name) for name in process.unix_sockets()]
    teams = places.team_folders(root)
    return [
        path
        for path in found
        if (path.is_relative_to(root) or not any(folder in path.parents for folder in hidden))
        and not any(folder in path.parents for folder in teams)
        and _is_socket(path)
    ]


def _is_socket(path: Path) -> bool:
    try:
        return stat.S_ISSOCK(path.lstat().st_mode)
    except OSError:
        return False
