"""The command line of bubblewrap for one policy, rule by rule.

Later mounts lie over earlier ones: the host read-only, what is private hidden, tools and the workspace put back, and
within the workspace what is not the agent's hidden again.
"""

import os
import subprocess
from pathlib import Path

from crewboard.worker.sandbox import places
from crewboard.worker.sandbox.policy import Policy

PROBE_WITHIN = 10.0
"""Seconds that the probe may take."""

_GIT_KEEPS = ("hooks", "config", "config.worktree", "modules")
"""What of a repository makes git run programs; submodules keep theirs in `modules`."""


def program(root: Path) -> str | None:
    """Bubblewrap's path; never one in the workspace, which an agent may have put there."""
    for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
        found = Path(os.path.realpath(os.path.join(folder, "bwrap")))
        if os.path.isabs(folder) and os.access(found, os.X_OK) and not found.is_relative_to(root):
            return str(found)
    return None


def rules(policy: Policy) -> dict[str, list[str]]:
    """The arguments, by what they are for, in the order that bubblewrap needs."""
    root, tools = policy.root, places.tools()
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
        "hidden": _over("--tmpfs", hidden),
        "system secrets": _cover(places.system_secrets()),
        "tools": _put_back([path for path in tools if places.is_below(path, hidden)]),
        "names": _put_back([path for path in places.host_names() if places.is_below(path, hidden)]),
        "workspace": _bind("--bind" if policy.writes else "--ro-bind", root),
        "repository": _repository(root) if policy.writes else [],
        "own code": _put_back([path for path in places.own_prefixes() if root in path.parents]),
        "private": _private(root, tools),
        "team": _team(policy, hidden),
        "scratch": _bind("--bind", policy.scratch) if policy.scratch else [],
        "sockets": _cover(_sockets(root, hidden)),
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
    return [part for path in paths for part in (["--tmpfs", str(path)] if path.is_dir() else _nothing(path))]


def _nothing(path: Path) -> list[str]:
    return ["--ro-bind", "/dev/null", str(path)]


def _private(root: Path, tools: list[Path]) -> list[str]:
    """What of a home in the workspace is private, with the tools that lie there put back."""
    entries = places.private_entries(root)
    return [*_cover(entries), *_put_back([path for path in tools if path in entries or places.is_below(path, entries)])]


def _repository(root: Path) -> list[str]:
    """Let an agent commit, but not choose what git will run. A repository of an unusual form is read-only."""
    git = root / ".git"
    if git.is_symlink() or not git.exists():
        return []
    if not git.is_dir() or any((git / name).is_symlink() for name in _GIT_KEEPS):
        return _bind("--ro-bind", git)
    kept = [part for name in _GIT_KEEPS if (git / name).exists() for part in _bind("--ro-bind", git / name)]
    absent = [] if (git / "hooks").exists() else ["--tmpfs", str(git / "hooks")]
    # A mount of its own, so that the whole cannot be moved away and another put in its place.
    return [*_bind("--bind", git), *kept, *absent]


def _team(policy: Policy, hidden: list[Path]) -> list[str]:
    """The team's own files: gone, but for the results that `hands` reads."""
    folders = [
        path
        for path in places.team_folders(policy.root)
        if path.is_relative_to(policy.root) or not places.is_below(path, hidden)
    ]
    shown = [] if policy.results is None else _bind("--ro-bind-try", policy.results)
    return [*_over("--tmpfs", folders), *shown, *_over("--remount-ro", folders)]


def _sockets(root: Path, hidden: list[Path]) -> list[Path]:
    """Sockets of the host that no mount hides: a read-only mount does not keep anybody from connecting."""
    gone = [*places.team_folders(root), Path("/dev"), Path("/proc")]
    return [
        path
        for path in places.host_sockets()
        if (path.is_relative_to(root) or not places.is_below(path, hidden)) and not places.is_below(path, gone)
    ]
