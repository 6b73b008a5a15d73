"""The files of credentials that commands and file tools of agents cannot read, on every level."""

import os
import re
import stat
from pathlib import Path

OF_THE_SYSTEM = tuple(
    Path(name)
    for name in ("/etc/shadow", "/etc/gshadow", "/etc/shadow-", "/etc/gshadow-", "/etc/sudoers", "/etc/sudoers.d",
                 "/etc/ssh", "/etc/ssl/private", "/etc/security/opasswd")
)  # fmt: skip

NAMES = (
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

WITH_PASSWORDS = (
    ".npmrc", ".yarnrc.yml", ".yarnrc", "pip.conf", ".venv/pip.conf", "venv/pip.conf", "uv.toml", ".venv/uv.toml",
)  # fmt: skip
"""Settings that projects share, so they are hidden only if they hold a password."""

_PASSWORD = re.compile(
    rb"(?i)(?:_auth(?:Token)?|_password|npmAuth(?:Token|Ident))[\"']?\s*[:=]\s*[\"']?[^\s$\"']"
    rb"|://[^\s/:@]*:[^\s/@$]+@"
)


_MOST = 64 * 1024
"""Bytes that are searched for a password. A larger file may hold one at its end."""


def has_password(path: str) -> bool:
    """Return True if a settings file, which may be shared, holds a password, or cannot be searched for one."""
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
        return found.st_size > _MOST or _PASSWORD.search(file.read(_MOST)) is not None
