"""Redaction: find keys and passwords, and keep them out of everything that is shown or logged."""

import re
from collections.abc import Mapping
from typing import TextIO

from crewboard import env

REDACTED = "[key hidden]"

_SUFFIXES = ("_KEY", "_TOKEN", "_SECRET", "_PASSWORD", "_CREDENTIALS")
_NO_SECRETS = frozenset({"ANTHROPIC_BASE_URL", "ANTHROPIC_MODEL"})

_MIN_LENGTH = 8
"""Shortest value, in characters, that is redacted. A shorter one could be part of ordinary text."""

_KEY = re.compile(
    r"sk-[\w-]{16,}"  # Anthropic, and others
    r"|gh[opsur]_\w{20,}|github_pat_\w{20,}|glpat-[\w-]{20,}"
    r"|xox[abeprs]-[\w-]{10,}|A[KS]IA[0-9A-Z]{16}|AIza[\w-]{30,}|npm_\w{30,}|hf_\w{30,}"
    r"|(?<=[Bb]earer )[\w.~+/-]{16,}=*"
    r"|(?<=://)[^\s/:@]+:[^\s/@]+(?=@)"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
    re.DOTALL,
)

_HINTS = (
    "sk-", "gho_", "ghp_", "ghs_", "ghu_", "ghr_", "github_pat_", "glpat-", "xox", "AKIA", "ASIA", "AIza", "npm_",
    "hf_", "earer ", "://", "-----BEGIN ",
)  # fmt: skip
"""Each text that `_KEY` matches contains one of these. Searching for them first is ten times as fast."""

_registered: set[str] = set()


def is_secret(variable: str) -> bool:
    """Return True if an environment variable may hold a secret, so that only the process that needs it gets it."""
    return variable.startswith(env.API_PREFIX) or variable.upper().endswith(_SUFFIXES)


def register_secrets(environment: Mapping[str, str]) -> None:
    """Redact the values of secret variables from now on, in all text that this process shows."""
    secrets = {key: value for key, value in environment.items() if is_secret(key) and key not in _NO_SECRETS}
    _registered.update(value for value in secrets.values() if len(value) >= _MIN_LENGTH)


def redact(text: str) -> str:
    """Return `text` without keys that have a known form or were registered."""
    for value in _registered:
        text = text.replace(value, REDACTED)
    return _KEY.sub(REDACTED, text) if any(hint in text for hint in _HINTS) else text


class RedactedStream:
    """A text stream, for stderr, that redacts what is written to it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write text after redacting it."""
        self._stream.write(redact(text))
        return len(text)

    def flush(self) -> None:
        """Flush the stream below."""
        self._stream.flush()

    def fileno(self) -> int:
        """Return the file descriptor of the stream below."""
        return self._stream.fileno()

    def isatty(self) -> bool:
        """Return True if the stream below is a terminal."""
        return self._stream.isatty()
