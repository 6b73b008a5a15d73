"""Redaction: find keys and passwords, and keep them out of everything that is shown or logged."""

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TextIO

from crewboard import env

REDACTED = "[key hidden]"

_SUFFIXES = ("_KEY", "_TOKEN", "_SECRET", "_PASSWORD", "_CREDENTIALS")
_NO_SECRETS = frozenset({"ANTHROPIC_BASE_URL", "ANTHROPIC_MODEL"})

_DATABASE_PASSWORD = "PGPASSWORD"  # noqa: S105  the name of a variable
"""Redacted too, but handed on: each process of a team in PostgreSQL may need it."""

_MIN_LENGTH = 8
"""Shortest value, in characters, that is redacted. A shorter one could be part of ordinary text."""

_KEY = re.compile(
    r"sk-[\w-]{16,}"  # Anthropic, and others
    r"|c2stYW50L[\w+/-]{16,}=*"  # the same in base64
    r"|gh[opsur]_\w{20,}|github_pat_\w{20,}|glpat-[\w-]{20,}"
    r"|xox[abeprs]-[\w-]{10,}|A[KS]IA[0-9A-Z]{16}|AIza[\w-]{30,}|npm_\w{30,}|hf_\w{30,}"
    r"|(?<=[Bb]earer )[\w.~+/-]{16,}=*"
    r"|(?<=://)[^\s/:@]+:[^\s/@]+(?=@)"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
    re.DOTALL,
)

_HINTS = (
    "sk-", "c2stYW50L", "gho_", "ghp_", "ghs_", "ghu_", "ghr_", "github_pat_", "glpat-", "xox", "AKIA", "ASIA", "AIza",
    "npm_", "hf_", "earer ", "://", "-----BEGIN ",
)  # fmt: skip
"""Each text that `_KEY` matches contains one of these. Searching for them first is ten times as fast."""

_registered: list[str] = []
"""Known secrets and their encodings, the longest first, because one can be part of another."""


def is_secret(variable: str) -> bool:
    """Return True if an environment variable may hold a secret, so that only the process that needs it gets it."""
    return variable.startswith(env.API_PREFIX) or variable.upper().endswith(_SUFFIXES)


def register_secrets(environment: Mapping[str, str]) -> None:
    """Redact the values of secret variables, also encoded, from now on in all text that this process shows."""
    register_values(
        value
        for key, value in environment.items()
        if (is_secret(key) and key not in _NO_SECRETS) or key == _DATABASE_PASSWORD
    )


def register_values(secrets: Iterable[str]) -> None:
    """Redact these values, also encoded, from now on in all text that this process shows."""
    known = set(_registered)
    for value in secrets:
        if len(value) >= _MIN_LENGTH:
            known.update(form for form in _encodings(value) if len(form) >= _MIN_LENGTH)
    _registered[:] = sorted(known, key=len, reverse=True)


def _encodings(value: str) -> Iterator[str]:
    """Yield a value as it stands, escaped for JSON and for URLs, in hexadecimal and in base64."""
    # Imported here: every command loads this module, and few environments hold a secret.
    import base64
    import json
    import urllib.parse

    yield value
    data = value.encode("utf-8", "surrogateescape")
    for ascii_only in (True, False):
        escaped = json.dumps(value, ensure_ascii=ascii_only)[1:-1]
        yield escaped
        yield json.dumps(escaped, ensure_ascii=ascii_only)[1:-1]
    yield repr(value)[1:-1]
    for quoted in (urllib.parse.quote(data, safe=safe) for safe in ("", "/")):
        yield quoted
        yield re.sub("%[0-9A-F]{2}", lambda found: found[0].lower(), quoted)
    yield urllib.parse.quote_plus(data)
    yield data.hex()
    yield data.hex().upper()
    # In base64 a text has three forms, by its offset, and the characters at its ends also depend on its neighbours.
    for offset, cut in enumerate((0, 2, 3)):
        encoded = base64.b64encode(bytes(offset) + data).decode().rstrip("=")
        inner = encoded[cut : len(encoded) - bool((offset + len(data)) % 3)]
        yield inner
        yield inner.replace("+", "-").replace("/", "_")


def redact(text: str) -> str:
    """Return `text` without keys that have a known form or were registered."""
    for value in _registered:
        text = text.replace(value, REDACTED)
    return _KEY.sub(REDACTED, text) if any(hint in text for hint in _HINTS) else text


def redact_values(value: Any) -> Any:  # noqa: ANN401  any JSON value
    """Return a JSON value with every string in it redacted. Names of fields stay."""
    match value:
        case str():
            return redact(value)
        case dict():
            return {key: redact_values(each) for key, each in value.items()}
        case list() | tuple():
            return [redact_values(each) for each in value]
    return value


class RedactedStream:
    """A text stream, for stderr, that redacts what is written to it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write text after redacting it."""
        # A log on a full disk must not end the process, nor give it another exit code.
        with contextlib.suppress(OSError):
            self._stream.write(redact(text))
        return len(text)

    def flush(self) -> None:
        """Flush the stream below."""
        with contextlib.suppress(OSError):
            self._stream.flush()

    def fileno(self) -> int:
        """Return the file descriptor of the stream below."""
        return self._stream.fileno()

    def isatty(self) -> bool:
        """Return True if the stream below is a terminal."""
        return self._stream.isatty()
