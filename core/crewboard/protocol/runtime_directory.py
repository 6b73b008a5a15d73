"""The folder for sockets of this user alone: where supervisors listen, and which addresses may be spoken to.

Both sides derive it from the user id and the environment. `supervisor.lock` only says which of the sockets there is the
team's: a team directory can come from a repository or another user, and the caller's environment holds the API key.
"""

import contextlib
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from crewboard.errors import UntrustedError

_LONGEST_FOLDER = 66
"""A unix socket's address holds 108 bytes, and a socket's name has 32 of them."""


def candidates(environment: Mapping[str, str]) -> list[Path]:
    """Return the folders that can be this user's, the preferred one first."""
    uid = os.geteuid()
    state = Path(environment.get("XDG_STATE_HOME", ""))
    folders = [
        Path(environment.get("XDG_RUNTIME_DIR", "")) / "crewboard",
        Path(f"/tmp/crewboard-{uid}"),  # noqa: S108  another user may have made it: `is_private` looks
        (state if state.is_absolute() else Path.home() / ".local/state") / "crewboard/run",
    ]
    return [folder for folder in folders if folder.is_absolute() and len(os.fsencode(folder)) <= _LONGEST_FOLDER]


def is_private(folder: Path) -> bool:
    """Return True if `folder` is a real directory that this user owns and no other user can enter."""
    try:
        found = os.lstat(folder)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077


def make(environment: Mapping[str, str]) -> Path:
    """Return the first folder that is this user's alone, made if it is not there yet.

    Raises:
        UntrustedError: None can be had: each is in another user's hands, or cannot be written to.
    """
    tried = candidates(environment)
    for folder in tried:
        with contextlib.suppress(OSError):
            if folder.name == "run":
                folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.mkdir(mode=0o700, exist_ok=True)
        if is_private(folder) and os.access(folder, os.W_OK):
            return folder
    names = ", ".join(map(str, tried))
    raise UntrustedError(
        f"no folder for the supervisor's socket is this user's alone (tried {names}); set XDG_RUNTIME_DIR to a short "
        "path of a directory that you own, with mode 700"
    )


def holds(address: Path, environment: Mapping[str, str]) -> bool:
    """Return True if the socket `address` lies in one of this user's own folders.

    A supervisor may have been started in a shell with another environment, so that the login session's folder counts
    although `$XDG_RUNTIME_DIR` does not name it here.
    """
    session = Path(f"/run/user/{os.geteuid()}/crewboard")
    return address.parent in (*candidates(environment), session) and is_private(address.parent)
