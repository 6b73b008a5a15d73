"""Protect files that decide what git runs outside the sandbox, and the project's file; write git settings for commands.

The user runs git in the same folder as the agents, outside every sandbox. git then runs programs that its directory and
its settings name: hooks, filters, monitors. The project's file (CLAUDE.md) enters the conversation of every agent.
`git_files` finds all of these, for the mounts, for Landlock and for the file tools. `GitGuard` handles what no mount
can prevent: new files in folders that agents must be able to write. `write_git_settings` writes the settings for git in
commands.
"""

import contextlib
import fcntl
import os
import re
import shlex
import stat
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Self

from crewboard.names import PROJECT_FILES
from crewboard.sandbox.host_paths import is_below
from crewboard.store import team_marks
from crewboard.store.layout import HOME as TEAMS
from crewboard.unix import programs as linux_programs

_HARMLESS = ("user.name", "user.email", "init.defaultbranch", "core.autocrlf", "core.eol")
"""Settings of the user's git that git in commands gets as well."""

_DATA = ("objects", "refs", "logs", "reftable", "lfs", "index", "HEAD", "packed-refs", "shallow", "AUTO_MERGE",
         "info", "description")  # fmt: skip
_DATA_PREFIXES = ("MERGE_", "BISECT_", "NOTES_", "gc.", "sharedindex.")
_DATA_SUFFIXES = ("_HEAD", "_MSG", "_EDITMSG", ".lock")
"""Entries of a git directory that commands may write, because git runs nothing from them. All others are read-only.

Each read-only entry is a mount, which costs bubblewrap about 0.1 ms for each command.
"""

_EMPTY_FILES = ("config", "config.worktree")
_EMPTY_FOLDERS = ("hooks", "branches", "remotes", "modules", "worktrees")
"""Entries of a git directory that are made empty if they are missing, so that an agent cannot create them.

To git, empty ones mean the same as missing ones.
"""

_STATE = ("rebase-merge", "rebase-apply", "sequencer")
"""Folders with the state of an unfinished rebase, which can contain commands that `git rebase --continue` runs."""

_REDIRECT = "commondir"
_NO_REDIRECT = b".\n"
"""The content of a harmless `commondir`: git uses the directory that the file is in, as it would without the file."""

_PUT_ASIDE = ".crewboard-removed"

_MAX_INDEX = 256 * 1024 * 1024
_MAX_SETTINGS = 500
"""Most files of settings that are read for one repository, with those that they include."""

_RUNS = re.compile(
    r"alias\..*|core\.(?:fsmonitor|pager|editor|sshcommand|askpass|gitproxy|alternaterefscommand)|sequence\.editor"
    r"|(?:diff|difftool|mergetool|merge|filter|trailer|tar|browser|man|guitool)\..*"
    r"|gpg\..*program|credential\..*helper|interactive\.difffilter|pager\..*|uploadpack\.packobjectshook"
    r"|remote\..*\.(?:uploadpack|receivepack)|receive\..*|sendemail\..*|imap\.tunnel|gc\.recentobjectshook"
)
"""Names of settings, in lower case, whose value can be a program."""

_GITLINK = 0o160000


@dataclass(frozen=True)
class GitFiles:
    """The files in a workspace that git executes or reads settings from, and the project's file. All paths are real."""

    directories: tuple[Path, ...] = ()
    """Git directories in which agents may write the entries that a commit writes."""
    kept: tuple[Path, ...] = ()
    """Files and folders that agents must not change."""
    missing: tuple[tuple[Path, bool], ...] = ()
    """Paths that do not exist and that agents must not create, each with True if it is for a folder."""
    programs: tuple[Path, ...] = ()
    """Programs that settings name and that do not exist. Agents must not create them; no empty ones are made."""
    reserved: tuple[Path, ...] = ()
    """Possible project's files that do not exist. No empty ones are made, because other programs would see them."""
    unprotected: tuple[str, ...] = ()
    """Sentences about what cannot be protected."""
    teams: tuple[Path, ...] = ()
    """Folders of this user's own teams below the root, which are found on the way."""

    @property
    def protected(self) -> list[Path]:
        """Return the paths that file tools and Landlock must not let an agent change or create."""
        missing = (path for path, _ in self.missing)
        return [*self.directories, *self.kept, *missing, *self.programs, *self.reserved]

    def make_missing(self, root: Path) -> None:
        """Create the `missing` files and folders, empty, so that a mount can cover them."""
        for path, is_folder in self.missing:
            # Where this user cannot create it, neither can an agent.
            with contextlib.suppress(OSError):
                folder = os.open(root, _FOLDER)
                try:
                    steps = path.relative_to(root).parts
                    for step in steps if is_folder else steps[:-1]:
                        with contextlib.suppress(FileExistsError):
                            os.mkdir(step, 0o755, dir_fd=folder)
                        # Step by step, because an agent of another command could replace a folder with a link.
                        deeper = os.open(step, _FOLDER, dir_fd=folder)
                        os.close(folder)
                        folder = deeper
                    if not is_folder:
                        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
                        os.close(os.open(steps[-1], flags, 0o644, dir_fd=folder))
                finally:
                    os.close(folder)


_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class _Search:
    """Finds the git files of one workspace."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._below = os.path.join(root, "")  # noqa: PTH118
        self.directories: dict[Path, None] = {}
        self.kept: dict[Path, None] = {}
        self.missing: dict[Path, bool] = {}
        self.programs: dict[Path, None] = {}
        self.unprotected: dict[str, None] = {}
        has_git = linux_programs.find_program("git", root) is not None
        self._common = [Path("/etc/gitconfig"), *_user_files()] if has_git else []

    def run(self) -> GitFiles:
        # The user's own settings, if they are in the workspace, and the project's file.
        for path in _user_files():
            self._keep(path, is_folder=False)
        project = [self.root / name for name in PROJECT_FILES]
        reserved = tuple(path for path in project if not os.path.lexists(path))
        for path in project:
            if path not in reserved:
                self._keep(path, is_folder=False)
        below = folders_below(self.root)
        waiting = [self.root, *(Path(folder) for folder in below if os.path.lexists(f"{folder}/.git"))]
        if _is_bare(self.root):
            self._bare()
        seen: set[Path] = set()
        # Without a limit: agents can make folders and repositories by the thousand, to hide others among them.
        while waiting:
            tree = waiting.pop()
            if tree not in seen:
                seen.add(tree)
                waiting += self._worktree(tree)
        if not os.path.lexists(self.root / ".git"):
            self.unprotected["the root has no .git: an agent can make it a repository, with hooks"] = None
        return GitFiles(
            tuple(self.directories),
            tuple(self.kept),
            tuple(self.missing.items()),
            tuple(self.programs),
            reserved,
            tuple(self.unprotected),
            tuple(own_teams(below)),
        )

    def _worktree(self, tree: Path) -> list[Path]:
        """Protect the git files of the repository in the folder `tree`, if there is one.

        Return the working trees of its submodules and linked worktrees in the workspace.
        """
        git = tree / ".git"
        mode = _mode(git)
        if stat.S_ISLNK(mode):
            self._keep(git, is_folder=True)
            directory = Path(os.path.realpath(git))
        elif stat.S_ISDIR(mode):
            directory = git
            self._directory(git)
        elif mode:
            self.kept[git] = None
            name = _read(git, 4096).decode("utf-8", "surrogateescape").removeprefix("gitdir:").strip()
            found = Path(os.path.realpath(git.parent / name)) if name and "\0" not in name else None
            if found is None:
                return []
            directory = found
            if self._is_inside(directory):
                self.kept[directory] = None
        else:
            self._settings([], tree)
            return []
        common = _common(directory)
        if common != directory and self._is_inside(common):
            # The repository of a linked worktree, which may be deeper than the search.
            self._directory(common)
        self._settings([file for name in _EMPTY_FILES for file in (directory / name, common / name)], tree)
        linked = []
        for entry in _listed(common / "worktrees"):
            name = _read(Path(entry.path, "gitdir"), 4096).decode("utf-8", "surrogateescape").strip()
            if name and "\0" not in name:
                linked.append(Path(os.path.realpath(Path(entry.path, name))).parent)
        # Linked worktrees may be at any depth.
        inside = [path for path in linked if self._is_inside(path)]
        below = [*inside, *(tree / link for link in gitlinks(directory))]
        return [path for path in below if os.path.lexists(path / ".git")]

    def _directory(self, git: Path) -> None:
        entries = {entry.name: entry for entry in _listed(git)}
        fixed = [
            entry
            for name, entry in entries.items()
            if name not in _DATA
            and not name.startswith(_DATA_PREFIXES)
            and not name.endswith(_DATA_SUFFIXES)
            and name != _REDIRECT
        ]
        for entry in fixed:
            self.kept[Path(entry.path)] = None
            if entry.is_symlink():
                self._keep_real(Path(os.path.realpath(entry.path)), is_folder=entry.is_dir())
        if any(entry.is_symlink() for entry in fixed):
            # No mount can lie over a link, so the whole directory is read-only.
            self.kept[git] = None
            return
        self.directories[git] = None
        for names, is_folder in ((_EMPTY_FILES, False), (_EMPTY_FOLDERS, True)):
            self.missing |= {git / name: is_folder for name in names if name not in entries}

    def _bare(self) -> None:
        for name in (*_EMPTY_FILES, "hooks", "modules", "worktrees"):
            self._keep(self.root / name, is_folder=name not in _EMPTY_FILES)
        self.unprotected["the root itself is a bare repository: agents can change its state"] = None

    def _settings(self, files: list[Path], tree: Path) -> None:
        """Protect the files in the workspace that settings name: those in `files`, in included files, and the user's.

        `tree` is the working tree that relative paths begin at.
        """
        waiting = [*self._common, *dict.fromkeys(files)]
        seen: set[Path] = set()
        while waiting and len(seen) < _MAX_SETTINGS:
            file = waiting.pop()
            if file in seen:
                continue
            seen.add(file)
            for name, value in _settings(file, self.root):
                if name.endswith(".path") and name.startswith(("include.", "includeif.")):
                    included = file.parent / Path(value).expanduser()
                    self._keep(included, is_folder=False)
                    waiting.append(included)
                elif name in ("core.hookspath", "init.templatedir"):
                    self._keep(tree / Path(value).expanduser(), is_folder=True)
                else:
                    self._programs(name, value, tree)

    def _programs(self, name: str, value: str, tree: Path) -> None:
        """Protect the files that the words of a setting's value name, such as filters, or scripts of aliases."""
        for word in _words(value):
            # Text, not Path: this is done for each setting before each command.
            path = os.path.join(tree, os.path.expanduser(word.lstrip("!")))  # noqa: PTH111, PTH118
            if os.path.isfile(path):  # noqa: PTH113
                self._keep(Path(path), is_folder=False)
            elif "/" in word and _RUNS.fullmatch(name) and not os.path.lexists(path):
                real = Path(os.path.realpath(path))
                self.programs |= {real: None} if self._is_inside(real) else {}

    def _keep(self, path: Path, *, is_folder: bool) -> None:
        """Protect a file or folder, if it is in the workspace, whether or not it exists."""
        lexical = Path(os.path.normpath(path))
        real = Path(os.path.realpath(path))
        if self.root == real or self.root.is_relative_to(real):
            if is_folder:
                self.unprotected[f"git runs programs of {real}, which is or contains the workspace"] = None
            return
        if lexical != real and self._is_inside(lexical):
            self.unprotected[f"{lexical} is or passes a symbolic link: an agent can replace it"] = None
        self._keep_real(real, is_folder=is_folder)

    def _keep_real(self, real: Path, *, is_folder: bool) -> None:
        if not self._is_inside(real):
            return
        if _mode(real):
            self.kept[real] = None
        else:
            self.missing[real] = is_folder

    def _is_inside(self, path: Path) -> bool:
        return str(path).startswith(self._below)


def git_files(root: Path) -> GitFiles:
    """Return the files of the workspace `root` that must be protected because of git. Nothing is changed."""
    return _Search(root).run()


def held_folders(paths: list[Path], root: Path) -> list[Path]:
    """Return the folders between `root` and `paths`, which must not be moved away together with a protected file."""
    found: set[str] = set()
    for path in paths:
        folder = os.path.dirname(path)  # noqa: PTH120  Path.parents costs more than all else here
        while folder not in found and is_below(folder, [root]):
            found.add(folder)
            folder = os.path.dirname(folder)  # noqa: PTH120
    return [Path(folder) for folder in sorted(found)]


def _mode(path: str | Path) -> int:
    """Return the mode of a file, of a link itself; 0 if there is nothing."""
    try:
        return os.lstat(path).st_mode
    except OSError:
        return 0


def _listed(folder: str | Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []


def folders_below(root: Path) -> list[str]:
    """Return the folders up to two levels below the workspace, in which repositories and teams are looked for.

    Links, and the contents of `.git`, `.crewboard` and `node_modules`, are left out.
    """
    found: list[str] = []
    level = [str(root)]
    for _ in range(2):
        entries = [entry for folder in level for entry in _listed(folder)]
        others = [entry for entry in entries if entry.name not in (".git", TEAMS, "node_modules")]
        level = [entry.path for entry in others if entry.is_dir(follow_symlinks=False)]
        found += level
    return found


def own_teams(folders: list[str]) -> list[Path]:
    """Return the `.crewboard` folders directly in `folders` that contain a team of this user. Links are left out."""
    found = []
    for path in [Path(folder, TEAMS) for folder in folders if stat.S_ISDIR(_mode(f"{folder}/{TEAMS}"))]:
        for entry in _listed(path):
            with contextlib.suppress(OSError):
                if team_marks.is_marked(Path(entry.path)):
                    found.append(path)
                    break
    return found


def _is_bare(root: Path) -> bool:
    return os.path.lexists(root / "HEAD") and (root / "objects").is_dir() and (root / "refs").is_dir()


def _read(path: Path, most: int) -> bytes:
    """Return the content of a regular file of at most `most` bytes; empty for any other, or if it cannot be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return b""
    with os.fdopen(fd, "rb") as file:
        found = os.fstat(fd)
        return file.read(most) if stat.S_ISREG(found.st_mode) and found.st_size <= most else b""


def _common(directory: Path) -> Path:
    """Return the common directory of a git directory: its own, or for a linked worktree, that of the repository."""
    name = _read(directory / _REDIRECT, 4096).decode("utf-8", "surrogateescape").strip()
    return Path(os.path.realpath(directory / name)) if name and "\0" not in name else directory


def _user_files() -> list[Path]:
    try:
        home = Path.home()
    except RuntimeError:
        return []
    folder = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
    return [folder / "git/config", home / ".gitconfig"]


def _settings(file: Path, workspace: Path) -> tuple[tuple[str, str], ...]:
    """Return names and values of the settings in one file, without those of included files."""
    try:
        found = file.stat()
    except OSError:
        return ()
    # Reading a pipe would hang.
    if not stat.S_ISREG(found.st_mode) or not found.st_size:
        return ()
    return _settings_of(file, workspace, (found.st_mtime_ns, found.st_size, found.st_ino))


@lru_cache(maxsize=256)
def _settings_of(file: Path, workspace: Path, _state: tuple[int, ...]) -> tuple[tuple[str, str], ...]:
    return tuple(_list_settings(workspace, "--file", str(file)))


@lru_cache(maxsize=1024)
def _words(value: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(value))
    except ValueError:
        return tuple(value.split())


def gitlinks(directory: Path) -> set[str]:
    """Return the paths in the index of a git directory that are repositories of their own: submodules."""
    found = set[str]()
    for index in _indexes(directory):
        with contextlib.suppress(OSError):
            state = index.lstat()
            found |= _gitlinks_of(index, (state.st_mtime_ns, state.st_ctime_ns, state.st_size, state.st_ino))
    return found


def _indexes(directory: Path) -> list[Path]:
    shared = [Path(entry.path) for entry in _listed(directory) if entry.name.startswith("sharedindex.")]
    return [directory / "index", *shared]


@lru_cache(maxsize=64)
def _gitlinks_of(index: Path, _state: tuple[int, ...]) -> frozenset[str]:
    data = _read(index, _MAX_INDEX)
    if struct.pack(">I", _GITLINK) not in data:
        return frozenset()
    # The length of a hash is a setting of the repository; a wrong guess reads nonsense, which names no folder.
    return frozenset(link for length in (20, 32) for link in _parse_index(data, length))


def _parse_index(data: bytes, hash_length: int) -> Iterator[str]:
    """Yield the paths of the gitlinks, entries for repositories, in an index file (gitformat-index)."""
    with contextlib.suppress(struct.error, IndexError, ValueError):
        _, version, count = struct.unpack_from(">4sII", data)
        at, name = 12, b""
        for _ in range(count):
            (mode,) = struct.unpack_from(">I", data, at + 24)
            begin = at
            at += 40 + hash_length
            (flags,) = struct.unpack_from(">H", data, at)
            at += 4 if flags & 0x4000 else 2
            if version == 4:  # noqa: PLR2004
                # A number of variable length.
                cut = data[at] & 0x7F
                while data[at] & 0x80:
                    at += 1
                    cut = ((cut + 1) << 7) | (data[at] & 0x7F)
                at += 1
                end = data.index(b"\0", at)
                name = name[: len(name) - cut] + data[at:end]
                at = end + 1
            else:
                end = data.index(b"\0", at)
                name = data[at:end]
                at = begin + (end - begin + 8) // 8 * 8
            if mode == _GITLINK:
                yield name.decode("utf-8", "surrogateescape")


class GitGuard:
    """Finds and renames new files in a workspace that would make git run programs; a context manager around a command.

    A mount cannot forbid a new name in a writable folder. In each git directory a harmless `commondir` is therefore
    present while any command runs, and locked, so that the last of several commands removes it. For other new names
    the caller looks while the command runs (`planted`), and renames them at the end (`put_aside`).

    A command that does not commit (`commits` is False) cannot write in git directories, so these are not looked at:
    what is new there is the user's.
    """

    def __init__(self, root: Path, *, commits: bool = True) -> None:
        self._root = root
        self.commits = commits
        self.files = git_files(root)
        self._writable = self.files.directories if commits else ()
        self._locks: list[tuple[Path, int]] = []
        self._bare = _is_bare(root)
        self._within = not os.path.lexists(root / ".git") and any(
            os.path.lexists(folder / ".git") for folder in root.parents
        )
        self._known = {*self._linked(), *self._hidden_indexes()}

    def __enter__(self) -> Self:
        for git in self._writable:
            with contextlib.suppress(OSError):
                self._locks.append((git / _REDIRECT, _placed(git / _REDIRECT)))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for path, lock in self._locks:
            with contextlib.suppress(OSError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
            os.close(lock)
        if kind is not None:
            # The command was interrupted: its caller did not come so far.
            self.put_aside()

    def planted(self) -> list[Path]:
        """Return the files and folders that are new since the guard was made and could make git run programs."""
        found = [path / ".git" for path in self._linked() if path not in self._known]
        found += [path for path in self._hidden_indexes() if path not in self._known]
        found += [path for path in self.files.programs if os.path.lexists(path)]
        redirects = [git / _REDIRECT for git in self._writable]
        found += [path for path in redirects if _mode(path) and _read(path, 4096) != _NO_REDIRECT]
        if self._within and os.path.lexists(self._root / ".git"):
            found.append(self._root / ".git")
        if not self._bare and _is_bare(self._root):
            found.append(self._root / "HEAD")
        return found

    def put_aside(self) -> list[str]:
        """Rename planted files, a new project's file, and the state of an unfinished rebase; return their old paths.

        The paths are relative to the root.
        """
        kept = set(self.files.kept)
        state = [git / name for git in self._writable for name in _STATE if os.path.lexists(git / name)]
        new = [path for path in self.files.reserved if os.path.lexists(path)]
        found = [*self.planted(), *new, *(path for path in state if path not in kept)]
        return [str(path.relative_to(self._root)) for path in found if _put_aside(path)]

    def _linked(self) -> list[Path]:
        """Return the folders of submodules, which git enters on its own, of repositories that agents may write in."""
        trees = [(git.parent, git) for git in self.files.directories]
        found = [tree / link for tree, git in trees for link in gitlinks(git)]
        return [path for path in found if os.path.lexists(path / ".git")]

    def _hidden_indexes(self) -> list[Path]:
        """Return the index files that git reads and `gitlinks` does not: links, and those that are too large."""
        found = []
        for path in [path for git in self._writable for path in _indexes(git)]:
            with contextlib.suppress(OSError):
                state = path.lstat()
                if not stat.S_ISREG(state.st_mode) or state.st_size > _MAX_INDEX:
                    found.append(path)
        return found


def _placed(path: Path) -> int:
    """Make the harmless `commondir` file `path`, and return its descriptor, locked against removal.

    Another file of that name is renamed.

    Raises:
        OSError: The file cannot be made.
    """
    while True:
        if _mode(path) and _read(path, 4096) != _NO_REDIRECT:
            _put_aside(path)
        # Linked into place, because git fails if it finds it empty.
        temporary = path.with_name(f"{_REDIRECT}.{os.getpid()}.lock")
        temporary.write_bytes(_NO_REDIRECT)
        try:
            with contextlib.suppress(FileExistsError):
                path.hardlink_to(temporary)
        finally:
            temporary.unlink()
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        fcntl.flock(fd, fcntl.LOCK_SH)
        # Another command may have removed it before it was locked.
        if os.fstat(fd).st_nlink and _read(path, 4096) == _NO_REDIRECT:
            return fd
        os.close(fd)


def _put_aside(path: Path) -> bool:
    """Rename a file or folder so that git does not find it; return True if that was possible."""
    for number in range(1000):
        target = path.with_name(f"{path.name}{_PUT_ASIDE}{number or ''}")
        if not os.path.lexists(target):
            with contextlib.suppress(OSError):
                path.rename(target)
                return True
    return False


def write_git_settings(path: Path, agent: str, workspace: Path) -> None:
    """Write the file of settings for git in commands: harmless ones of the user, ignore patterns, a name for commits.

    The agent's name is used if the user's git has none.
    """
    every = dict(_list_settings(workspace, "--global", "--no-includes"))
    own = {name: value for name, value in every.items() if name in _HARMLESS}
    own.setdefault("user.name", agent)
    own.setdefault("user.email", f"{agent}@crewboard.invalid")
    # Programs that a repository makes git run stay in the sandbox.
    own["safe.directory"] = "*"
    # The patterns that the user lets git ignore everywhere.
    default, patterns = Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config") / "git/ignore", ""
    with contextlib.suppress(OSError, RuntimeError):
        patterns = Path(every.get("core.excludesfile") or default).expanduser().read_text(errors="replace")
    ignored = path.with_name(".gitignored")
    ignored.write_text(f"{patterns}\n{TEAMS}/\n", encoding="utf-8")
    own["core.excludesfile"] = str(ignored)
    lines = []
    for name, value in own.items():
        section, _, key = name.rpartition(".")
        escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")
        lines.append(f'[{section}]\n\t{key} = "{escaped}"\n')
    path.write_text("".join(lines), encoding="utf-8")


def _list_settings(workspace: Path, *which: str) -> list[tuple[str, str]]:
    git = linux_programs.find_program("git", workspace)
    if git is None:
        return []
    try:
        done = subprocess.run(
            [git, "config", *which, "--list", "-z"],
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=5,
            check=False,
            # Outside the workspace, whose own settings could name programs to run.
            cwd="/",
            env=linux_programs.clean_environment("XDG_CONFIG_HOME"),
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    pairs = (entry.partition("\n") for entry in done.stdout.split("\0") if entry)
    return [(name, value) for name, _, value in pairs]
