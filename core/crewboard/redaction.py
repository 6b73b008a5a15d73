"""Redaction: find keys and passwords, and keep them out of everything that is shown or logged."""

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import Any, TextIO

from crewboard import env

MARK = "[key hidden"
"""The beginning of each text that stands in place of a secret."""

_SUFFIXES = (
    "_KEY", "_APIKEY", "_TOKEN", "_SECRET", "_PASSWORD", "_PASSWD", "_PASSPHRASE", "_PASS", "_PWD", "_PAT",
    "_CREDENTIALS",
)  # fmt: skip
_NAMES = frozenset({"APIKEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "SSHPASS", "CREDENTIALS",
                    "AWS_BEARER_TOKEN_BEDROCK", "AWS_ACCESS_KEY_ID"})  # fmt: skip
_NO_SECRETS = re.compile(
    r"ANTHROPIC_((\w+_)?BASE_URL|(.+_)?MODEL|PROFILE|CONFIG_DIR|IDENTITY_TOKEN_FILE|\w+_ID|FOUNDRY_RESOURCE|SCOPE|LOG"
    r"|BETAS|CUSTOM_HEADERS)|GOOGLE_APPLICATION_CREDENTIALS"
)
"""Variables that `is_secret` finds and whose value is not one: addresses, models, ids and paths. Of the headers, only
some are secrets; those are registered one by one.
"""

_SECRET_HEADER = re.compile(r"auth|key|token|secret|password|cookie")

_DATABASE_PASSWORD = "PGPASSWORD"  # noqa: S105  the name of a variable
"""The value is redacted, but the variable is passed on: each process of a team in PostgreSQL may need it."""

_MIN_LENGTH = 8
"""Fewest characters of a value that is redacted. A shorter one could be part of ordinary text."""

_WORD = re.compile(r"[a-z]{1,16}(?:[-_][a-z]{1,16}){0,2}")

_KEY = (
    # Anthropic, and others. Not the end of a word, such as a file name has it, unless the rest can be nothing else. An
    # escape, of JSON, of an address or for a colour, may stand before it.
    r"(?a)sk-ant-[a-z]+\d+-[\w-]{8,}|(?:(?<![\w-])|(?<=\\[nrt])|(?<=%[\dA-Fa-f]{2})|(?<=[\d[]m))sk-[\w-]{16,}"
    r"|c2stYW50L[\w+/-]{16,}=*"  # the same in base64
    r"|gh[opsur]_\w{20,}|github_pat_\w{20,}|glpat-[\w-]{20,}"
    r"|xox[abeprs]-[\w-]{10,}|xapp-\d-[\w-]{10,}|(?<=hooks\.slack\.com/services/)[\w/]{20,}"
    r"|A[KS]IA[0-9A-Z]{16}|AIza[\w-]{30,}|ya29\.[\w-]{20,}|GOCSPX-[\w-]{20,}|(?<=AccountKey=)[\w+/]{80,}=*"
    r"|npm_\w{30,}|hf_\w{30,}|pypi-[\w-]{40,}|dckr_pat_[\w-]{20,}|hv[sbr]\.[\w-]{20,}|SG\.[\w-]{20,}\.[\w-]{40,}"
    r"|[rs]k_(?:live|test)_\w{16,}|whsec_[\w+/]{20,}=*|sntry[su]_[\w+/-]{20,}=*|dop_v1_[\da-f]{64}|dapi[\da-f]{32}"
    r"|shp(?:at|ca|pa|ss)_[\da-f]{32}|lin_api_\w{30,}|gsk_\w{40,}|glsa_\w{30,}|AGE-SECRET-KEY-1[\dA-Z]{58}"
    # A JSON Web Token: both its parts are JSON objects in base64.
    r"|eyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]{16,}"
    r"|(?<=uthorization: Basic )[\w+/]{6,}=*"
    r"|(?<=[Bb]earer )[\w.~+/-]{16,}=*"
    # User and password of an address, as RFC 3986 has them, but without what means something to a shell: who approves a
    # command has to see that.
    r"|(?<=://)[\w.~%!*+,=-]*:[\w.~%!*+,=:-]+(?=@)"
)

_HINTS = (
    "sk-", "c2stYW50L", "gho_", "ghp_", "ghs_", "ghu_", "ghr_", "github_pat_", "glpat-", "xox", "AKIA", "ASIA", "AIza",
    "npm_", "hf_", "earer ", "://", "xapp-", "hooks.slack.com", "ya29.", "GOCSPX-", "AccountKey=", "pypi-", "dckr_pat_",
    "hvs.", "hvb.", "hvr.", "SG.", "k_live_", "k_test_", "whsec_", "sntrys_", "sntryu_", "dop_v1_", "dapi", "shpat_",
    "shpca_", "shppa_", "shpss_", "lin_api_", "gsk_", "glsa_", "AGE-SECRET-KEY-1", "eyJ", "uthorization: Basic ",
)  # fmt: skip
"""Each text that `_KEY` matches contains one of these. Searching for them first is ten times as fast."""

_MARGIN = r"""(?:\s|\\{1,8}+[rnt]?|["',│>#*-]|\+(?=\s|Proc-|DEK-|-----)|\d{1,9}+(?=\t))"""
"""Text between two lines of a private key: line breaks, also escaped ones, and the margin of a diff, a quote
or a listing.
"""

_PEM_BEGIN = r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----"
_PEM_HEADERS = rf"(?a)(?:{_MARGIN}*+(?:Proc-Type|DEK-Info): ?[\w,-]+)+"
_PEM_LINE = rf"(?a){_MARGIN}*+([A-Za-z0-9+/]++={{0,2}}+)(?![\w+/=.]|-(?!----END ))"
_PEM_END = rf"(?a){_MARGIN}*?(?:-----END [A-Z0-9 ]*PRIVATE KEY-----|\Z)"

_KEY_BEGINS = ("MC", "MD", "ME", "MF", "MG", "MH", "MI", "b3BlbnNzaC1rZXkt")
"""Beginnings of private keys in base64: the head of a DER sequence, or the name of OpenSSH's format."""

_KEY_WIDTHS = (64, 70, 76)
"""Numbers of characters in each line of a key but the last, as OpenSSL, OpenSSH and MIME write it."""

_SHORTEST_KEY = 16
"""Fewest characters of a key that is on one line, or cut off after its beginning, to be hidden."""

_LONGEST_KEY = 16_384
"""Most characters of a key that are hidden: an RSA key of 16,384 bits has 12,500."""

_registered: list[str] = []
"""Known secrets and their encodings, the longest first, because one can be part of another."""


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    """Return a compiled pattern. It is compiled at its first use: every process loads this module, few meet a key."""
    return re.compile(pattern)


def is_secret(variable: str) -> bool:
    """Return True if an environment variable may hold a secret, by its name.

    Such a variable is not passed on to commands of agents, nor to other processes that can do without the variable.
    """
    name = variable.upper()
    return variable.startswith(env.API_PREFIX) or name.endswith(_SUFFIXES) or name in _NAMES


def register_secrets(environment: Mapping[str, str]) -> None:
    """Redact, in all later calls of `redact` in this process, the values of secret variables and secret headers.

    Encoded forms of a value are redacted as well. Values of fewer than 8 characters are not, nor are plain words that a
    private server asks for in place of a key.
    """
    values = []
    for key, value in environment.items():
        if key != _DATABASE_PASSWORD and (not is_secret(key) or _NO_SECRETS.fullmatch(key)):
            continue
        if _WORD.fullmatch(value):
            # Imported here: every command loads this module, and few environments have such a key.
            from crewboard import endpoint

            # Servers nearby that ask for no key tell the user to set such a word, as `lmstudio`. It is all over such a
            # project.
            if key in endpoint.KEYS and endpoint.is_private(endpoint.base_url(environment)):
                continue
        values.append(value)
    register_values(values)
    headers = env.custom_headers(environment).items()
    register_values(value.removeprefix("Bearer ") for name, value in headers if _SECRET_HEADER.search(name))


def register_values(secrets: Iterable[str]) -> None:
    """Redact these values and their encoded forms in all later calls of `redact` in this process.

    Values of fewer than 8 characters are not redacted, because they could be part of ordinary text.
    """
    known = set(_registered)
    for value in secrets:
        if len(value) >= _MIN_LENGTH:
            known.update(form for form in _encodings(value) if len(form) >= _MIN_LENGTH)
    _registered[:] = sorted(known, key=len, reverse=True)


def _encodings(value: str) -> Iterator[str]:
    """Yield a value as it is, escaped for JSON, for Python and for URLs, in hexadecimal and in base64."""
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


def hidden(secret: str) -> str:
    """Return the text that is shown in place of a secret: a mark with the number of characters, on each line of it."""
    sizes = (len(each.rstrip("\r")) for each in secret.split("\n"))
    return "\n".join(f"{MARK}: {size} character{'s' * (size != 1)}]" if size else "" for size in sizes)


def redact(text: str) -> str:
    """Return `text` with a mark (`hidden`) in place of each secret that has a known form or was registered.

    The number of lines stays.
    """
    for value in _registered:
        if value in text:
            text = text.replace(value, hidden(value))
    if "-----BEGIN " in text:
        # What else stands between the marks is no key, so it stays.
        pieces: list[str] = []
        at = 0
        for begin in _compiled(_PEM_BEGIN).finditer(text):
            for first, last in _key_lines(text, begin.end()):
                pieces += [text[at:first], hidden(text[first:last])]
                at = last
        text = "".join([*pieces, text[at:]])
    return _compiled(_KEY).sub(lambda found: hidden(found[0]), text) if any(hint in text for hint in _HINTS) else text


def hidden_lines(text: str) -> dict[int, str]:
    """Return the lines of `text` in which something is redacted, as they are shown, by their number from 0."""
    redacted = redact(text)
    if redacted == text:
        return {}
    pairs = zip(text.split("\n"), redacted.split("\n"), strict=True)
    return {at: shown for at, (line, shown) in enumerate(pairs) if shown != line}


def _key_lines(text: str, at: int) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each line of a private key in `text`; `at` is the end of the mark above the key.

    All lines have one width. Only the last line before the end mark, or before the end of the text, may be shorter; so
    may the last of the removed lines in a diff that replaces a key.
    """
    if headers := _compiled(_PEM_HEADERS).match(text, at):
        at = headers.end()
    limit = at + _LONGEST_KEY
    width = 0
    is_added = False
    while (line := _key_line(text, at, width, is_added=is_added)) is not None and line[1] <= limit:
        first, at = line
        size = at - first
        is_added = text[first - 1] == "+"
        if not width:
            if not headers and not text.startswith(_KEY_BEGINS, first):
                return
            if size not in _KEY_WIDTHS and (size < _SHORTEST_KEY or not _compiled(_PEM_END).match(text, at)):
                return
            width = size
        elif size > width:
            return
        elif size < width and not _compiled(_PEM_END).match(text, at):
            follows = _key_line(text, at, width)
            if is_added or follows is None or text[follows[0] - 1] != "+":
                return
        yield first, at


def _key_line(text: str, at: int, width: int, *, is_added: bool = False) -> tuple[int, int] | None:
    """Return the start and end of the base64 text that follows `at`, with only a margin between; None if none follows.

    `width` is that of the lines before, 0 for the first line. A `+` at its beginning is the sign of a diff if the rest
    is as wide as the other lines or, in the last line, if the line before `is_added`.
    """
    found = _compiled(_PEM_LINE).match(text, at)
    if found is None:
        return None
    first, last = found.span(1)
    size = last - first - 1
    if width:
        has_sign = size == width or (is_added and size < width)
    else:
        has_sign = size in _KEY_WIDTHS or text.startswith(_KEY_BEGINS, first + 1)
    return first + (has_sign and text[first] == "+"), last


def redact_values(value: Any, then: Callable[[str], str] = str) -> Any:  # noqa: ANN401  any JSON value
    """Return a JSON value with every string in it redacted, then passed through `then`. Names of fields stay."""
    match value:
        case str():
            return then(redact(value))
        case dict():
            return {key: redact_values(each, then) for key, each in value.items()}
        case list() | tuple():
            return [redact_values(each, then) for each in value]
    return value


class RedactedStream:
    """A text stream that redacts all that is written to it, for stderr. Errors of the stream below are ignored."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write text after redacting it; return the number of characters of the text that was given."""
        # A log on a full disk must not end the process, nor give it another exit code.
        with contextlib.suppress(OSError):
            self._stream.write(redact(text))
        return len(text)

    def flush(self) -> None:
        """Flush the underlying stream."""
        with contextlib.suppress(OSError):
            self._stream.flush()

    def fileno(self) -> int:
        """Return the file descriptor of the underlying stream."""
        return self._stream.fileno()

    def isatty(self) -> bool:
        """Return True if the underlying stream is a terminal."""
        return self._stream.isatty()
