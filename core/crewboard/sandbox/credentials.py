"""Find files with credentials, which sandboxes hide: those of the machine, and in homes and workspaces."""

import os
import re
import stat
from collections.abc import Collection
from pathlib import Path

from crewboard import endpoint
from crewboard.store import team_marks

_SECRETS_OF_THE_SYSTEM = tuple(
    Path(name)
    for name in ("/etc/shadow", "/etc/gshadow", "/etc/shadow-", "/etc/gshadow-", "/etc/sudoers", "/etc/sudoers.d",
                 "/etc/ssh", "/etc/ssl/private", "/etc/security/opasswd")
)  # fmt: skip

_CREDENTIALS = (
    ".ssh", ".gnupg", ".password-store", ".netrc", "_netrc", ".pgpass", ".pg_service.conf", ".postgresql", ".my.cnf",
    ".vault-token", ".git-credentials", ".github_token", ".gitlab-token", ".aws", ".azure", ".kube",
    ".docker/config.json",
    ".terraform.d/credentials.tfrc.json", ".pypirc", ".pip", ".cargo/credentials", ".cargo/credentials.toml",
    ".gem/credentials", ".m2/settings.xml", ".claude/.credentials.json", ".claude.json",
    ".config/anthropic", ".config/gh", ".config/glab-cli", ".config/tea", ".config/hub", ".config/git/credentials",
    ".config/gcloud", ".config/pip", ".config/uv", ".config/op", ".config/rclone", ".config/containers/auth.json",
    ".local/share/uv/credentials", ".local/share/keyrings", ".local/state/crewboard",
    ".bash_history", ".zsh_history", ".sh_history", ".histfile", ".local/share/fish/fish_history", ".python_history",
    ".psql_history", ".mysql_history", ".sqlite_history", ".node_repl_history", ".rediscli_history", ".lesshst",
)  # fmt: skip
"""Files of passwords and shell histories, below a home or in a workspace that holds a copy of one."""

_WITH_PASSWORDS = (
    ".npmrc", ".yarnrc.yml", ".yarnrc", "pip.conf", ".venv/pip.conf", "venv/pip.conf", "uv.toml", ".venv/uv.toml",
)  # fmt: skip
"""Files of settings that projects share, so that they are hidden only if they contain a password."""

_PASSWORD = re.compile(
    rb"(?i)(?:_auth(?:Token)?|_password|npmAuth(?:Token|Ident))[\"']?\s*[:=]\s*[\"']?[^\s$\"']"
    rb"|://[^\s/:@]*:[^\s/@$]+@"
)

_MOST_SEARCHED = 64 * 1024
"""Bytes of a file that are searched for a password. A larger file counts as if it contained one."""


def of_this_machine() -> tuple[Path, ...]:
    """Return the files and folders that this process can read with secrets of the system, of crewboard and the API.

    Those of the system only root can read, on most machines. Other credentials in homes are found by `below`.
    """
    named = (*_SECRETS_OF_THE_SYSTEM, team_marks.secret_file(), *endpoint.credential_files(os.environ))
    return tuple(path for path in named if os.access(path, os.R_OK))


def below(folders: Collection[Path]) -> list[str]:
    """Return where credentials can be below `folders`, existing or not, and which settings have a password."""
    # Text, not Path: this is done before each command.
    known = [f"{folder}/{name}" for folder in folders for name in _CREDENTIALS]
    shared = (f"{folder}/{name}" for folder in folders for name in _WITH_PASSWORDS)
    return [*known, *(path for path in shared if _has_password(path))]


def _has_password(path: str) -> bool:
    """Return True if a file of settings contains what looks like a password, or cannot be searched for one."""
    # Programs that log in write through a link, which an agent may have made before.
    real = os.path.realpath(path)
    try:
        fd = os.open(real, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except PermissionError:
        # An agent can take permissions away in one command and give them back in a later one.
        return True
    except OSError:
        return False
    with os.fdopen(fd, "rb") as file:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            return False
        return found.st_size > _MOST_SEARCHED or _PASSWORD.search(file.read(_MOST_SEARCHED)) is not None
