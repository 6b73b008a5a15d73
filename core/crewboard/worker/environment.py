"""The environment that tools see: what commands need to work, no secret of ours or of the user's."""

import os

from crewboard import process

_ALLOWED = frozenset({
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TERM", "TMPDIR", "VIRTUAL_ENV",
    "PYTHONPATH", "NODE_PATH", "GOPATH", "GOROOT", "CARGO_HOME", "RUSTUP_HOME", "JAVA_HOME", "PYENV_ROOT",
})  # fmt: skip
_ALLOWED_PREFIXES = ("LC_", "GIT_AUTHOR_", "GIT_COMMITTER_")


def tool_environment() -> dict[str, str]:
    """By allow-list, and with the mark by which everything of this worker is found again."""
    kept = {key: value for key, value in os.environ.items() if key in _ALLOWED or key.startswith(_ALLOWED_PREFIXES)}
    me = os.getpid()
    return {**kept, "TERM": "dumb", "NO_COLOR": "1", process.MARK: process.mark(me, process.start_ticks(me))}


def forget_secrets() -> None:
    """Take the API's variables out of this process's environment, once its client has them."""
    for key in [key for key in os.environ if key.startswith("ANTHROPIC_")]:
        del os.environ[key]
