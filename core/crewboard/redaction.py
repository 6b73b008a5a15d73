"""Keys and passwords: which variables hold them, and how they are kept out of what is shown or logged."""

import re
from collections.abc import Mapping
from typing import TextIO

from crewboard import env

REDACTED = "[key hidden]"

_SUFFIXES = ("_KEY", "_TOKEN", "_SECRET", "_PASSWORD", "_CREDENTIALS")
_NO_SECRETS = frozenset({"ANTHROPIC_BASE_URL", "ANTHROPIC_MODEL"})

_MIN_LENGTH = 8
"""Characters below which the value of a variable may be part of any text."""

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
"""One of these is in every text that `_KEY` finds something in. Looking for them is ten times as quick."""

_registered: set[str] = set()


def is_secret(variable: str) -> bool:
    """Return True if an environment variable may hold a secret, so that only the process that needs it gets it."""
    return variable.startswith(env.API_PREFIX) or variable.upper().endswith(_SUFFIXES)


def register_secrets(environment: Mapping[str, str]) -> None:
    """From now on, hide the values of secret variables wherever this process shows text."""
    secrets = {key: value for key, value in environment.items() if is_secret(key) and key not in _NO_SECRETS}
    _registered.update(value for value in secrets.values() if len(value) >= _MIN_LENGTH)


def redact(text: str) -> str:
    """`text` without keys, as far as they can be told by their form or were learnt."""
    for value in _registered:
        text = text.replace(value, REDACTED)
    return _KEY.sub(REDACTED, text) if any(hint in text for hint in _HINTS) else text


class RedactedStream:
    """A text stream, for stderr, that writes no key."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write text, masked."""
        self._stream.write(redact(text))
        return len(text)

    def flush(self) -> None:
        """Write what is held back."""
        self._stream.flush()

    def fileno(self) -> int:
        """The descriptor below."""
        return self._stream.fileno()

    def isatty(self) -> bool:
        """Whether a terminal is below."""
        return self._stream.isatty()
