"""Find the paths of this machine that a sandbox hides or shows: homes, tools, sockets, private files in a workspace."""

import os
import pwd
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from crewboard.sandbox import credentials
from crewboard.store import team_marks
from crewboard.store.layout import HOME as TEAMS

_SYSTEM = tuple(
    Path(name) for name in ("/usr", "/etc", "/bin", "/sbin", "/lib", "/dev", "/proc", "/sys", "/nix", "/opt")
)

_HOMES = ("/home", "/root", "/Users")
_VOLATILE = ("/run", "/tmp", "/var/tmp")  # noqa: S108  they are hidden, nothing is put there

TOOL_VARIABLES = (
    "VIRTUAL_ENV", "PYENV_ROOT", "RUSTUP_HOME", "GOROOT", "JAVA_HOME", "NVM_DIR", "NODE_PATH", "PYTHONPATH",
)  # fmt: skip
"""Variables that name folders of tools; some name several."""

_TOOLS_AT_HOME = (
    ".pyenv", ".rustup", ".nvm", ".asdf", ".volta", ".sdkman", ".deno/bin", ".bun/bin", ".local/lib",
    ".local/share/uv/python", ".local/share/uv/tools", ".local/share/mise", ".local/share/pipx", ".local/share/pnpm",
)  # fmt: skip
"""Folders below a home in which tools are installed. None of these holds passwords."""

_SHARED = frozenset({
    TEAMS, ".venv", ".github", ".editorconfig", ".git", ".gitignore", ".gitattributes", ".gitmodules", ".gitkeep",
    ".gitlab", ".gitlab-ci.yml", ".git-blame-ignore-revs",
})  # fmt: skip
"""Names that begin with a dot and are for projects, so that they are not hidden in a home."""

_BESIDE_BIN = ("lib", "lib64", "libexec")


def _real(names: Iterable[str | os.PathLike[str]]) -> list[Path]:
    """Return the folders that exist, by their real paths, each once."""
    # Most do not exist, which is found faster than a real path. Path.is_dir raises where it may not look.
    there = [name for name in dict.fromkeys(names) if name and os.path.isdir(name)]  # noqa: PTH112
    return list(map(Path, dict.fromkeys(map(os.path.realpath, there))))


@dataclass(frozen=True)
class HostPaths:
    """The folders of this machine that a sandbox hides or shows, as real paths without duplicates."""

    homes: tuple[Path, ...]
    """The homes of users."""
    hidden: tuple[Path, ...]
    """Homes, and the folders of sockets, locks and temporary files; none of them is in another one."""
    tools: tuple[Path, ...]
    """Folders of tools in alphabetical order. None of them is or contains a home, or `/run`, `/tmp` or `/var/tmp`."""
    own: tuple[Path, ...]
    """Folders of the Python installation and of the packages that crewboard runs from."""
    secrets: tuple[Path, ...]
    """Files and folders with secrets of the machine that this user can read."""

    @classmethod
    def of_this_machine(cls) -> "HostPaths":
        """Return the paths for this machine, user and environment."""
        # The usual folders, `$HOME`, and the home of the user database.
        try:
            own = pwd.getpwuid(os.getuid()).pw_dir
        except KeyError:
            own = ""
        homes = [path for path in _real([*_HOMES, os.environ.get("HOME", ""), own]) if not _is_of_the_system(path)]
        given = [os.environ.get("XDG_RUNTIME_DIR", ""), os.environ.get("TMPDIR", ""), tempfile.gettempdir()]
        volatile = [path for path in _real([*_VOLATILE, *given]) if not _is_of_the_system(path)]
        named = (os.environ.get(name, "") for name in TOOL_VARIABLES)
        interpreter = Path(os.path.realpath(sys.executable)).parent
        # What the file-tool server needs to start: interpreter, packages, and this program.
        needed = [sys.prefix, sys.base_prefix, str(interpreter), str(Path(__file__).resolve().parents[2])]
        candidates = [*needed, *(path for value in named for path in value.split(os.pathsep))]
        # Text, not Path, which would take longer than looking at the files.
        for folder in os.environ.get("PATH", "").split(os.pathsep):
            if folder.startswith("/"):
                above = os.path.dirname(folder.rstrip("/")) or "/"  # noqa: PTH120
                candidates += [folder, *(os.path.join(above, beside) for beside in _BESIDE_BIN)]  # noqa: PTH118
        candidates += [f"{home}/{name}" for home in homes for name in _TOOLS_AT_HOME]
        emptied = [*homes, *_real(_VOLATILE)]
        tools = [path for path in _real(candidates) if not any(_is_within(each, path) for each in emptied)]
        return cls(
            homes=tuple(homes),
            hidden=tuple(_outermost([*volatile, *homes])),
            tools=tuple(sorted(_outermost(tools))),
            own=tuple(_real([sys.prefix, sys.base_prefix])),
            secrets=credentials.of_this_machine(),
        )

    def private_entries(self, root: Path) -> list[Path]:
        """Return the paths in the workspace `root` to hide from agents.

        These are credentials, and if the workspace is or contains homes, their entries that begin with a dot.
        """
        inside = {home for home in self.homes if home.is_relative_to(root)}
        inside |= {root} if str(root.parent) in _HOMES else set()
        inside |= {Path(entry.path) for home in inside if str(home) in _HOMES for entry in _listed(home)}
        entries = [entry for home in inside for entry in _listed(home) if entry.name.startswith(".")]
        hidden = [Path(entry.path) for entry in entries if not entry.is_symlink() and entry.name not in _SHARED]
        folders = {root, *inside}
        # Text, not Path: this is done before each command.
        known = [
            str(team_marks.secret_file()),
            *map(str, self.secrets),
            *credentials.below(folders),
        ]
        # By their real paths, because nothing can be mounted over a symbolic link.
        there = [Path(os.path.realpath(found)) for path in known if (found := _there(path))]
        there = [path for path in there if is_below(path, [root]) and not is_below(path, hidden)]
        return list(dict.fromkeys([*hidden, *there]))


def _is_of_the_system(path: Path) -> bool:
    """Return True if `path` is, is in or contains a folder of the system, as the home of a service user may be.

    To hide it would hide programs.
    """
    return any(_is_within(path, folder) or _is_within(folder, path) for folder in _SYSTEM)


def _is_within(path: Path, folder: Path) -> bool:
    """Return True if `path` is `folder` or in it; like `Path.is_relative_to`, which takes eight times as long."""
    return f"{path}/".startswith("/" if str(folder) == "/" else f"{folder}/")


def _outermost(folders: Iterable[Path]) -> list[Path]:
    """Return the folders that are in none of the others."""
    given = dict.fromkeys(map(str, folders))
    inside = tuple(f"{folder}/" for folder in given)
    return [Path(path) for path in given if not path.startswith(inside)]


def is_below(path: str | Path, folders: Iterable[Path]) -> bool:
    """Return True if `path` is below one of `folders`, compared as text."""
    text = str(path)
    return any(text.startswith(f"{folder}/") for folder in folders)


def team_folders(root: Path) -> list[Path]:
    """Return the `.crewboard` folders of the workspace and of the folders above it, as real paths."""
    return _real(folder / TEAMS for folder in (root, *root.parents))


def _there(path: str) -> str:
    """Return `path` if it exists; if a folder above it cannot be entered, that folder; else an empty text.

    A closed folder counts, because an agent can close it in one command and open it in a later one. A link to nothing
    does not count: bubblewrap would fail on it.
    """
    while True:
        try:
            os.stat(path)  # noqa: PTH116
        except PermissionError:
            path = os.path.dirname(path)  # noqa: PTH120
        except OSError:
            return ""
        else:
            return path


def _listed(folder: Path) -> list[os.DirEntry[str]]:
    try:
        return list(os.scandir(folder))
    except (PermissionError, NotADirectoryError):
        # A folder that cannot be listed cannot be read by a command either.
        return []


def host_names() -> list[Path]:
    """Return the files for the resolution of host names, as real paths; on many machines they are links into /run."""
    return [Path(os.path.realpath(name)) for name in ("/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf")]
