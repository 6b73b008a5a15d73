"""The environment that tools see: what commands need to work, no secret of ours or of the user's."""

import os
from pathlib import Path

from crewboard import env
from crewboard.linux import process

_ALLOWED = frozenset({
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TERM", "VIRTUAL_ENV", "NVM_DIR",
    "PYTHONPATH", "NODE_PATH", "GOPATH", "GOROOT", "CARGO_HOME", "RUSTUP_HOME", "JAVA_HOME", "PYENV_ROOT",
})  # fmt: skip
_ALLOWED_PREFIXES = ("LC_", "GIT_AUTHOR_", "GIT_COMMITTER_")

_FOR_THE_NETWORK = frozenset({
    "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "GIT_SSL_CAINFO",
    "PIP_CERT", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY",
})  # fmt: skip

GIT_SETTINGS = ".gitconfig"
"""The file of git's settings in a scratch folder."""


def tool_environment(scratch: Path | None = None, *, network: bool = False, own_home: bool = True) -> dict[str, str]:
    """By allow-list, and with the mark by which everything of this worker is found again.

    Temporary files and caches go to `scratch`; so does what is meant for the home, unless commands have `own_home`.
    """
    me = os.getpid()
    return {
        **{key: value for key, value in os.environ.items() if _is_allowed(key, value, network=network)},
        **({} if scratch is None else _kept_in(scratch, own_home=own_home)),
        "TERM": "dumb",
        "NO_COLOR": "1",
        env.WORKER: process.mark(me, process.start_ticks(me)),
    }


def _is_allowed(key: str, value: str, *, network: bool) -> bool:
    if network and key.upper() in _FOR_THE_NETWORK:
        return "@" not in value  # the address of a proxy may hold a password
    return key in _ALLOWED or key.startswith(_ALLOWED_PREFIXES)


def _kept_in(scratch: Path, *, own_home: bool) -> dict[str, str]:
    caches = {
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
    found = {name: str(scratch / below) for name, below in caches.items()}
    found["PYTEST_ADDOPTS"] = f"-o cache_dir={scratch / '.cache/pytest'}"
    found["GIT_OPTIONAL_LOCKS"] = "0"  # what only looks at a repository writes nothing
    return found if own_home else {**found, **_home_in(scratch)}


def _home_in(scratch: Path) -> dict[str, str]:
    """A home in the scratch folder, and the tools that would look for themselves in the real one."""
    home = Path(os.environ.get("HOME", "/nonexistent"))
    tools = {"RUSTUP_HOME": ".rustup", "PYENV_ROOT": ".pyenv", "NVM_DIR": ".nvm"}
    moved = {name: os.environ.get(name) or str(home / folder) for name, folder in tools.items()}
    return {"HOME": str(scratch), **{name: value for name, value in moved.items() if os.path.isdir(value)}}  # noqa: PTH112


def forget_secrets() -> None:
    """Take the API's variables out of this process's environment, once its client has them."""
    for key in [key for key in os.environ if key.startswith(env.API_PREFIX)]:
        del os.environ[key]
