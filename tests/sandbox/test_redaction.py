"""Keys do not appear where text is shown or logged."""

import base64
import difflib
import io
import json
import random
import textwrap
import urllib.parse
from collections.abc import Callable
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crewboard import redaction
from crewboard.redaction import hidden

KEYS = [
    "c2stYW50LWFwaTAzLWFiY2RlZmdoaWprbG1ub3A=",
    "sk-ant-api03-abcdefghijklmnopqrstuvwxyz",
    "ghp_abcdefghijklmnopqrstuvwxyz0123456789",
    "github_pat_11ABCDEFG0123456789_abcdefghijkl",
    "AKIAIOSFODNN7EXAMPLE",
    "xoxb-123456789012-abcdefghijkl",
    # In two parts, so that no scanner takes this file for a leak.
    *("sk_" + f"{mode}_abcdefghijklmnopqrstuvwx" for mode in ("live", "test")),
    "eyJ" + "hbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dozjgNryP4J3jVmNHl0w5N",
    "SG." + "abcdefghijklmnopqrstuv.abcdefghijklmnopqrstuvwxyzabcdefghijklmnopq",
    "pypi-" + "AgEIcHlwaS5vcmc" + "a" * 40,
    "dckr_" + "pat_abcdefghijklmnopqrstuvwxyz0",
    "hvs." + "CAESIabcdefghijklmnopqrst",
    "xapp-" + "1-A0123456789-abcdef",
    "sntrys_" + "eyJpYXQiOjE2OTk5OTk5OTl9_abcd",
    "whsec_" + "abcdefghijklmnopqrstuvwx",
    "ya29." + "abcdefghijklmnopqrstuvwx",
    "GOCSPX-" + "abcdefghijklmnopqrstuvwx",
    "dop_" + "v1_" + "0a" * 32,
    "dapi" + "0a" * 16,
    "shpat_" + "0a" * 16,
    "lin_api_" + "a" * 40,
    "gsk_" + "a" * 52,
    "glsa_" + "a" * 40,
    "AGE-SECRET-" + "KEY-1" + "A" * 58,
]


@pytest.mark.parametrize("key", KEYS)
def test_a_key_is_hidden(key: str) -> None:
    assert redaction.redact(f"before {key} after") == f"before {hidden(key)} after"


def test_what_stands_before_a_key_stays() -> None:
    token = "Authorization: Bearer abcdefghijklmnopqrstuvwx"
    assert redaction.redact(token) == "Authorization: Bearer [key hidden: 24 characters]"
    assert redaction.redact("https://me:pass@host/x") == "https://[key hidden: 7 characters]@host/x"
    assert redaction.redact("redis://:p%40s@host") == "redis://[key hidden: 6 characters]@host"
    assert redaction.redact("AccountKey=" + "a" * 86 + "==;x") == "AccountKey=[key hidden: 88 characters];x"
    hook = "https://hooks.slack.com/services/"
    assert redaction.redact(hook + "T01234567/B01234567/abcdef") == f"{hook}[key hidden: 26 characters]"
    assert redaction.redact("Authorization: Basic YTpi" + "Y2Q=") == "Authorization: Basic [key hidden: 8 characters]"


@pytest.mark.parametrize(
    "before", ["", "key=", '"', "a\\n", "a%20", "\x1b[31m", "\x1b[m", "(", "Bearer ", "/", "x-api-key:"]
)
def test_a_key_is_hidden_whatever_stands_before_it(before: str) -> None:
    key = "sk-proj-abcdefghijklmnopqrst"
    assert redaction.redact(before + key) == before + hidden(key)


def test_a_key_of_the_api_is_hidden_within_a_word() -> None:
    assert redaction.redact("xsk-ant-api03-abcdefghijkl") == "x[key hidden: 25 characters]"


@pytest.mark.parametrize("text", ["", "task-list", "risk-free", "https://example.com/a:b", "a sk- b", "src/sk.py:12",
    "composed-dusk-agent-aalpha-0123456789.md", "plans/brisk-swimming-otter-of-the-lake.md",
    "task_sk-abcdefghijklmnopqrst", "Basic characteristics", "eyJhbGciOiJub25lIn0", "hvs.path", "SG.py",
])  # fmt: skip
def test_other_text_is_left_alone(text: str) -> None:
    assert redaction.redact(text) == text


@pytest.mark.parametrize(
    "variable",
    [
        "PASSWORD",
        "TOKEN",
        "SECRET",
        "APIKEY",
        "SSHPASS",
        "db_pass",
        "ADMIN_PWD",
        "GH_PAT",
        "KEY_PASSPHRASE",
        "X_APIKEY",
    ],
)
def test_a_variable_of_a_secret_is_known_by_its_name(variable: str) -> None:
    assert redaction.is_secret(variable)


@pytest.mark.parametrize("variable", ["PWD", "OLDPWD", "PATH", "SSH_ASKPASS", "TOKENS", "PASSWORD_FILE"])
def test_other_variables_are_handed_on(variable: str) -> None:
    assert not redaction.is_secret(variable)


def test_a_key_of_any_form_is_hidden_once_it_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redaction, "_registered", [])
    redaction.register_secrets({"ANTHROPIC_API_KEY": "an-odd-key", "HOME": "/home/me", "X_TOKEN": "short"})
    told = "401 for an-odd-key in /home/me, short"
    assert redaction.redact(told) == "401 for [key hidden: 10 characters] in /home/me, short"


SECRET = 'odd/key+"with" \\ ünusual~bytes?'


@pytest.mark.parametrize("around", ["", "a", "ab", "abc"])
def test_a_known_key_is_hidden_in_common_encodings(around: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redaction, "_registered", [])
    redaction.register_secrets({"ANTHROPIC_AUTH_TOKEN": SECRET})
    data = f"{around}{SECRET}{around}".encode()
    for shown in (
        base64.b64encode(data).decode(), base64.urlsafe_b64encode(data).decode(), data.hex(), data.hex().upper(),
        json.dumps(SECRET), json.dumps(SECRET, ensure_ascii=False), json.dumps(json.dumps({"key": SECRET})),
        urllib.parse.quote(data), urllib.parse.quote(data, safe=""), urllib.parse.quote_plus(data), repr(SECRET),
    ):  # fmt: skip
        redacted = redaction.redact(shown)
        assert redaction.MARK in redacted
        assert len(redacted) < len(hidden(shown)) + 2 * len(around) * 3 + 20, redacted


def test_a_known_secret_of_several_lines_keeps_its_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redaction, "_registered", [])
    redaction.register_values(["first line\n\nthird"])
    assert redaction.redact("a\nfirst line\n\nthird b") == (
        "a\n[key hidden: 10 characters]\n\n[key hidden: 5 characters] b"
    )


def test_every_string_of_a_json_value_is_redacted() -> None:
    value = {"a": [KEYS[0], 1, None, {"b": KEYS[1]}], "c": True}
    first, second = hidden(KEYS[0]), hidden(KEYS[1])
    assert redaction.redact_values(value) == {"a": [first, 1, None, {"b": second}], "c": True}


def test_a_log_holds_no_key() -> None:
    below = io.StringIO()
    print("key", KEYS[0], file=cast("io.StringIO", redaction.RedactedStream(below)))
    assert below.getvalue() == f"key {hidden(KEYS[0])}\n"


@pytest.mark.parametrize(
    ("url", "token", "is_hidden"),
    [
        ("http://127.0.0.1:1234", "lmstudio", False),
        ("http://gpu-box:8000", "no-key-needed", False),
        ("https://gateway.example", "lmstudio", True),
        (None, "lmstudio", True),
        ("http://127.0.0.1:1234", "lmstudio7", True),
        ("http://127.0.0.1:1234", "a-word-and-many-more", True),
    ],
)
def test_a_word_for_a_server_nearby_is_no_secret(
    url: str | None, token: str, is_hidden: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redaction, "_registered", [])
    given = {"ANTHROPIC_AUTH_TOKEN": token} | ({"ANTHROPIC_BASE_URL": url} if url else {})
    redaction.register_secrets(given)
    assert (token not in redaction.redact(f"read {token}.md")) == is_hidden


def test_the_password_of_a_database_is_redacted_and_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redaction, "_registered", [])
    redaction.register_secrets({"PGPASSWORD": "correct-horse", "PGUSER": "crewboard-user"})
    redacted = redaction.redact("crewboard-user logs in with correct-horse")
    assert redacted == "crewboard-user logs in with [key hidden: 13 characters]"
    assert not redaction.is_secret("PGPASSWORD"), "a supervisor needs it to reach the database"


# ---------------------------------------------------------------------------------------- private keys of several lines


def _pem(name: str, head: bytes, size: int, width: int = 64, more: str = "", seed: int = 1) -> str:
    """Return a private key in the form that OpenSSL and OpenSSH give it, with bytes that mean nothing."""
    text = base64.b64encode(head + random.Random(seed).randbytes(size - len(head))).decode()
    marks = f"-----BEGIN {name}-----", f"-----END {name}-----"
    return "\n".join([marks[0], *more.splitlines(), *textwrap.wrap(text, width), marks[1]])


PEM_KEYS = {
    "pkcs8": _pem("PRIVATE KEY", b"\x30\x82\x04\xbd", 1217),
    "rsa": _pem("RSA PRIVATE KEY", b"\x30\x82\x02\x5d", 609, 76),
    "ec": _pem("EC PRIVATE KEY", b"\x30\x77", 121),
    "ed25519": _pem("PRIVATE KEY", b"\x30\x2e\x02\x01\x00", 48),
    "openssh": _pem("OPENSSH PRIVATE KEY", b"openssh-key-v1\0", 290, 70),
    "encrypted": _pem("ENCRYPTED PRIVATE KEY", b"\x30\x82\x05\x11", 1301),
    "older": _pem("RSA PRIVATE KEY", b"\x05", 609, more="Proc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,5D0CAE\n\n"),
}

_LAYOUTS: dict[str, Callable[[list[str]], str]] = {
    "as it stands": "\n".join,
    "other line breaks": "\r\n".join,
    "JSON": lambda lines: json.dumps({"private_key": "\n".join(lines)}),
    "JSON in JSON": lambda lines: json.dumps(json.dumps("\n".join(lines))),
    "indented": lambda lines: textwrap.indent("\n".join(lines), "    "),
    "quoted": lambda lines: textwrap.indent("\n".join(lines), "> "),
    "our margin": lambda lines: textwrap.indent("\n".join(lines), "    │ "),
    "added in a diff": lambda lines: "\n".join(f"+{line}" for line in lines),
    "added with indentation": lambda lines: "\n".join(f"+    {line}" for line in lines),
    "removed in a diff": lambda lines: "\n".join(f"-{line}" for line in lines),
    "listed with numbers": lambda lines: "\n".join(f"{at:>6}\t{line}" for at, line in enumerate(lines, 1)),
    "source code": lambda lines: " +\n".join(f'  "{line}\\n"' for line in lines),
    "on one line": " ".join,
    "cut off": lambda lines: "\n".join(lines)[:-70],
    "without its end": lambda lines: "\n".join(lines[:-1]),
}


@pytest.mark.parametrize("key", PEM_KEYS)
@pytest.mark.parametrize("layout", _LAYOUTS)
def test_no_line_of_a_private_key_is_shown(key: str, layout: str) -> None:
    lines = PEM_KEYS[key].split("\n")
    text = f"before\n{_LAYOUTS[layout](lines)}"
    redacted = redaction.redact(text)
    for line in lines:
        assert line.startswith("-----") or ":" in line or not line or line[:4] not in redacted
    assert redacted.count("\n") == text.count("\n")
    assert redaction.redact(redacted) == redacted


@pytest.mark.parametrize("joined", ["", "\n", "\\n"])
def test_a_private_key_without_line_breaks_is_hidden(joined: str) -> None:
    begin, *lines, end = PEM_KEYS["pkcs8"].split("\n")
    assert redaction.redact(joined.join([begin, "".join(lines), end])) == joined.join(
        [begin, "[key hidden: 1624 characters]", end]
    )


@pytest.mark.parametrize("name", ["pkcs8", "openssh"])
def test_a_diff_that_replaces_a_key_shows_neither(name: str) -> None:
    before = PEM_KEYS[name].split("\n")
    head = b"\x30\x82\x04\xbd" if name == "pkcs8" else b"openssh-key-v1\0"
    size, width = (1217, 64) if name == "pkcs8" else (290, 70)
    after = _pem(before[0][11:-5], head, size, width, seed=2).split("\n")
    diff = list(difflib.unified_diff(before, after, lineterm="", n=99))
    redacted = redaction.redact("\n".join(diff)).split("\n")
    assert [line[0] for line in redacted] == [line[0] for line in diff]
    assert {len(line) for line in redacted[3:]} <= {len("+[key hidden: 64 characters]"), len(f" {before[0]}")} | {
        len(f" {before[-1]}")
    }


FULL = PEM_KEYS["pkcs8"].split("\n")[1]


@pytest.mark.parametrize(
    "text",
    [
        "make -n test # -----BEGIN PRIVATE KEY-----\ntouch HIDDEN\n# -----END PRIVATE KEY-----\necho ok",
        "-----BEGIN PRIVATE KEY-----\nmake\n-----END PRIVATE KEY-----",
        "-----BEGIN PRIVATE KEY-----\nMIIreboot",
        "-----BEGIN PRIVATE KEY-----\nMIIEreboot\n-----END PRIVATE KEY-----",
        f"-----BEGIN PRIVATE KEY-----\n{'usr/bin/' * 8}\n-----END PRIVATE KEY-----",
        "-----BEGIN PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nreboot\n-----END PRIVATE KEY-----",
        "-----BEGIN PRIVATE KEY-----",
        "https://x:$(touch${IFS}HIDDEN)@h",
        "https://x:`touch`@h",
        "https://x:y;make@h",
        "https://$(make):y@h",
        "https://x:'y|z'@h",
        "curl http://localhost:80?to=me@example.com",
    ],
)
def test_a_command_that_looks_like_a_key_is_shown(text: str) -> None:
    assert redaction.redact(text) == text


@pytest.mark.parametrize(
    ("lines", "shown"),
    [
        (["make", FULL], ["make", FULL]),
        ([FULL, "make", "echo ok"], ["[key hidden: 64 characters]", "make", "echo ok"]),
        ([FULL, "make", FULL], ["[key hidden: 64 characters]", "make", FULL]),
        ([FULL, f"{FULL}x"], ["[key hidden: 64 characters]", f"{FULL}x"]),
        ([FULL, "./run.sh"], ["[key hidden: 64 characters]", "./run.sh"]),
        ([FULL, "# make", "-----END PRIVATE KEY-----"], [
            "[key hidden: 64 characters]", "# [key hidden: 4 characters]", "-----END PRIVATE KEY-----",
        ]),
    ],
)  # fmt: skip
def test_only_the_lines_of_a_key_are_hidden_and_counted(lines: list[str], shown: list[str]) -> None:
    begin = "-----BEGIN PRIVATE KEY-----"
    assert redaction.redact("\n".join([begin, *lines])).split("\n") == [begin, *shown]


def test_no_more_is_hidden_than_the_longest_key_has() -> None:
    text = "\n".join(["-----BEGIN PRIVATE KEY-----", *[FULL] * 1000])
    assert redaction.redact(text).count(redaction.MARK) <= 256


_PIECES = [
    "-----BEGIN PRIVATE KEY-----", "-----END PRIVATE KEY-----", FULL, FULL[:40], "make", "https://x:", "y@h", "Bearer ",
    "sk-", "Proc-Type: 4,ENCRYPTED", *"\n\n\n +-;|$&()<>`\"'{}\\#",
]  # fmt: skip


@pytest.mark.long
@given(st.lists(st.sampled_from(_PIECES)).map("".join))
def test_nothing_hides_a_line_or_what_separates_commands(text: str) -> None:
    redacted = redaction.redact(text)
    for each in "\n;|$&()<>`\"'{}\\":
        assert redacted.count(each) == text.count(each)


def test_a_key_among_custom_headers_is_hidden_and_names_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redaction, "_registered", [])
    redaction.register_secrets({
        "ANTHROPIC_CUSTOM_HEADERS": "x-api-key: an-odd-key\nAuthorization: Bearer a-token-too\nx-team: the-red-team",
        "ANTHROPIC_PROFILE": "production",
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": "qwen3-coder",
        "ANTHROPIC_IDENTITY_TOKEN": "an-identity",
    })  # fmt: skip
    shown = redaction.redact("an-odd-key a-token-too the-red-team production qwen3-coder an-identity")
    secrets = [redaction.hidden(each) for each in ("an-odd-key", "a-token-too", "an-identity")]
    assert shown == "{} {} the-red-team production qwen3-coder {}".format(*secrets)
