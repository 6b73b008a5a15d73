"""Which folders of the machine matter to a sandbox: where secrets lie, where tools lie, where sockets listen."""

import os
import pwd
import stat
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from crewboard.linux import process
from crewboard.store.layout import HOME as TEAMS

_SYSTEM = tuple(
    Path(name) for name in ("/usr", "/etc", "/bin", "/sbin", "/lib", "/dev", "/proc", "/sys", "/nix", "/opt")
)

_HOMES = ("/home", "/root", "/Users")
_VOLATILE = ("/run", "/tmp", "/var/tmp")  # noqa: S108  they are hidden, nothing is put there

_SYSTEM_SECRETS = tuple(
    Path(name)
    for name in ("/etc/shadow", "/etc/gshadow", "/etc/shadow-", "/etc/gshadow-", "/etc/sudoers", "/etc/sudoers.d",
                 "/etc/ssh", "/etc/ssl/private")
)  # fmt: skip

_TOOL_VARIABLES = (
    "VIRTUAL_ENV", "PYENV_ROOT", "RUSTUP_HOME", "GOROOT", "JAVA_HOME", "NVM_DIR", "NODE_PATH", "PYTHONPATH",
)  # fmt: skip
"""Variables that name folders of tools, some of them several."""

_TOOLS_AT_HOME = (
    ".pyenv", ".rustup", ".nvm", ".asdf", ".volta", ".sdkman", ".deno/bin", ".bun/bin", ".local/lib", ".local/share/uv",
    ".local/share/mise", ".local/share/pipx", ".local/share/pnpm",
)  # fmt: skip
"""Where tools are installed below a home; nothing of these keeps passwords."""

_BESIDE_BIN = ("lib", "lib64", "libexec")


def _real(names: Iterable[str | os.PathLike[str]]) -> list[Path]:
    """Folders that are there, under their real paths, each once."""
    found = dict.fromkeys(os.path.realpath(name) for name in names if name)
    return [Path(name) for name in found if os.path.isdir(name)]  # noqa: PTH112  Path.is_dir raises where it may not look


@dataclass(frozen=True)
class HostPaths:
    """The folders that matter, as they were when a worker began. Real paths, each once."""

    homes: tuple[Path, ...]
    """Where users keep what is theirs."""
    hidden: tuple[Path, ...]
    """Homes, and where sockets, locks and temporary files of the host lie; none in another."""
    tools: tuple[Path, ...]
    """Folders of tools, wherever they lie; none of them is, or holds, a home."""
    own: tuple[Path, ...]
    """Where the interpreter and the packages lie that this program runs from."""
    secrets: tuple[Path, ...]
    """Secrets of the machine that this user could read, which is root as a rule."""

    @classmethod
    def look(cls) -> "HostPaths":
        """Look at this machine, this user and this environment."""
        homes = _homes()
        return cls(
            homes=tuple(homes),
            hidden=tuple(_outermost([*_volatile(), *homes])),
            tools=tuple(_tools(homes)),
            own=tuple(_real([sys.prefix, sys.base_prefix])),
            secrets=tuple(path for path in _SYSTEM_SECRETS if os.access(path, os.R_OK)),
        )

    def private_entries(self, root: Path) -> list[Path]:
        """Where the workspace is a home, or holds homes: what lies in them and is hidden by its name."""
        inside = [home for home in self.homes if home.is_relative_to(root)]
        entries = [entry for home in inside for entry in _listed(home) if entry.name.startswith(".")]
        return [Path(entry.path) for entry in entries if not entry.is_symlink() and not _is_shared(entry.name)]


def _homes() -> list[Path]:
    """The usual places, `$HOME`, and the home of the user database."""
    try:
        own = pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        own = ""
    return [path for path in _real([*_HOMES, os.environ.get("HOME", ""), own]) if not _is_of_the_system(path)]


def _is_of_the_system(path: Path) -> bool:
    """Whether hiding `path` would hide programs: the home of a service user may be `/`, or `/usr/sbin`."""
    return any(path.is_relative_to(folder) or folder.is_relative_to(path) for folder in _SYSTEM)


def _volatile() -> list[Path]:
    given = [os.environ.get("XDG_RUNTIME_DIR", ""), os.environ.get("TMPDIR", ""), tempfile.gettempdir()]
    return [path for path in _real([*_VOLATILE, *given]) if not _is_of_the_system(path)]


def _outermost(folders: Iterable[Path]) -> list[Path]:
    """The folders that lie in none of the others."""
    given = list(dict.fromkeys(folders))
    return [path for path in given if not is_below(path, given)]


def _own_code() -> list[str]:
    """What `hands` needs to start: interpreter, packages, and this program itself, which may lie elsewhere."""
    interpreter = Path(os.path.realpath(sys.executable)).parent
    return [sys.prefix, sys.base_prefix, str(interpreter), str(Path(__file__).resolve().parents[2])]


def _tools(homes: list[Path]) -> list[Path]:
    named = (os.environ.get(name, "") for name in _TOOL_VARIABLES)
    candidates = [*_own_code(), *(path for value in named for path in value.split(os.pathsep))]
    for folder in map(Path, os.environ.get("PATH", "").split(os.pathsep)):
        if folder.is_absolute():
            candidates += [str(path) for path in (folder, *(folder.parent / beside for beside in _BESIDE_BIN))]
    candidates += [str(home / name) for home in homes for name in _TOOLS_AT_HOME]
    return _outermost(path for path in _real(candidates) if not any(home.is_relative_to(path) for home in homes))


def is_below(path: Path, folders: Iterable[Path]) -> bool:
    """Whether `path` lies in one of `folders`, and is none of them."""
    text = str(path)
    return any(text.startswith(f"{folder}/") for folder in folders)


def team_folders(root: Path) -> list[Path]:
    """The team directories of the workspace and of the folders that it lies in."""
    return _real(folder / TEAMS for folder in (root, *root.parents))


def _listed(folder: Path) -> list[os.DirEntry[str]]:
    try:
        return list(os.scandir(folder))
    except PermissionError:
        return []  # who may not list it may not read it either


def _is_shared(name: str) -> bool:
    return name in (TEAMS, ".venv", ".github", ".editorconfig") or (name.startswith(".git") and name != ".gitconfig")


def host_names() -> list[Path]:
    """Files that tell how hosts are found; on many machines they are links into /run."""
    return [Path(os.path.realpath(name)) for name in ("/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf")]


def host_sockets() -> list[Path]:
    """Unix sockets of processes of this machine that have a place among the files, and that this user could call."""
    return [path for path in map(Path, map(os.path.realpath, process.unix_sockets())) if _is_open_socket(path)]


def _is_open_socket(path: Path) -> bool:
    try:
        return stat.S_ISSOCK(path.lstat().st_mode) and os.access(path, os.W_OK)
    except OSError:
        return False
