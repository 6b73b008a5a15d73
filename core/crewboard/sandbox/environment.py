"""The environment of the commands that agents run: which variables of the worker they get, and which are made."""

import os
from pathlib import Path

from crewboard import env
from crewboard.unix import process

GIT_SETTINGS = ".gitconfig"
"""The name of the file of git settings in a scratch folder."""

_ALLOWED = frozenset({
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TERM", "VIRTUAL_ENV", "NVM_DIR",
    "PYTHONPATH", "NODE_PATH", "GOPATH", "GOROOT", "CARGO_HOME", "RUSTUP_HOME", "JAVA_HOME", "PYENV_ROOT",
})  # fmt: skip
_ALLOWED_PREFIXES = ("LC_", "GIT_AUTHOR_", "GIT_COMMITTER_")

_FOR_THE_NETWORK = frozenset({
    "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "GIT_SSL_CAINFO",
    "PIP_CERT", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY",
})  # fmt: skip

_CACHES = {
    "TMPDIR": "",
    "XDG_CACHE_HOME": ".cache",
    "RUFF_CACHE_DIR": ".cache/ruff",
    "MYPY_CACHE_DIR": ".cache/mypy",
    "PYTHONPYCACHEPREFIX": ".cache/python",
    "COVERAGE_FILE": ".coverage",
    "CARGO_TARGET_DIR": ".cache/cargo-target",
    "npm_config_cache": ".cache/npm",
    "GIT_CONFIG_GLOBAL": GIT_SETTINGS,
}
"""Variables that name temporary files and caches, and where these are in the scratch folder."""

_TOOLS = {"RUSTUP_HOME": ".rustup", "PYENV_ROOT": ".pyenv", "NVM_DIR": ".nvm"}
"""Variables that name folders of tools, and where these are in a home."""


def tool_environment(scratch: Path | None = None, *, network: bool = False, own_home: bool = True) -> dict[str, str]:
    """Return the environment of commands: allowed variables of this process, and a mark of this worker's processes.

    Variables for temporary files and caches name folders in `scratch`, if it is given; so does `HOME`, unless commands
    have a home of their own (`own_home`). With `network`, variables for certificates and proxies are allowed as well.
    """
    me = os.getpid()
    found = {key: value for key, value in os.environ.items() if _is_allowed(key, value, network=network)}
    if scratch is not None:
        found |= {name: str(scratch / below) for name, below in _CACHES.items()}
        found["PYTEST_ADDOPTS"] = f"-o cache_dir={scratch / '.cache/pytest'}"
        # Commands that only read a repository must not write to it.
        found["GIT_OPTIONAL_LOCKS"] = "0"
    if scratch is not None and not own_home:
        # Where tools are that would be looked for in the home.
        home = Path(os.environ.get("HOME", "/nonexistent"))
        moved = {name: os.environ.get(name) or str(home / folder) for name, folder in _TOOLS.items()}
        found |= {name: value for name, value in moved.items() if os.path.isdir(value)}  # noqa: PTH112
        found["HOME"] = str(scratch)
    return {
        **found,
        "TERM": "dumb",
        "NO_COLOR": "1",
        env.WORKER: process.mark(me, process.start_ticks(me)),
    }


def _is_allowed(key: str, value: str, *, network: bool) -> bool:
    if network and key.upper() in _FOR_THE_NETWORK:
        # The address of a proxy may hold a password.
        return "@" not in value
    return key in _ALLOWED or key.startswith(_ALLOWED_PREFIXES)
