"""Keys do not appear where text is shown or logged."""

import base64
import io
import json
import urllib.parse
from typing import cast

import pytest

from crewboard import redaction

KEYS = [
    "c2stYW50LWFwaTAzLWFiY2RlZmdoaWprbG1ub3A=",
    "sk-ant-api03-abcdefghijklmnopqrstuvwxyz",
    "ghp_abcdefghijklmnopqrstuvwxyz0123456789",
    "github_pat_11ABCDEFG0123456789_abcdefghijkl",
    "AKIAIOSFODNN7EXAMPLE",
    "xoxb-123456789012-abcdefghijkl",
    "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXk\n-----END OPENSSH PRIVATE KEY-----",
]


@pytest.mark.parametrize("key", KEYS)
def test_a_key_is_hidden(key: str) -> None:
    assert redaction.redact(f"before {key} after") == f"before {redaction.REDACTED} after"


def test_what_stands_before_a_key_stays() -> None:
    assert (
        redaction.redact("Authorization: Bearer abcdefghijklmnopqrstuvwx")
        == f"Authorization: Bearer {redaction.REDACTED}"
    )
    assert redaction.redact("https://me:pass@host/x") == f"https://{redaction.REDACTED}@host/x"


@pytest.mark.parametrize("text", ["", "task-list", "risk-free", "https://example.com/a:b", "a sk- b", "src/sk.py:12"])
def test_other_text_is_left_alone(text: str) -> None:
    assert redaction.redact(text) == text


def test_a_key_of_any_form_is_hidden_once_it_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redaction, "_registered", [])
    redaction.register_secrets({"ANTHROPIC_API_KEY": "an-odd-key", "HOME": "/home/me", "X_TOKEN": "short"})
    assert (
        redaction.redact("401 for an-odd-key in /home/me, short") == f"401 for {redaction.REDACTED} in /home/me, short"
    )


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
        hidden = redaction.redact(shown)
        assert redaction.REDACTED in hidden
        assert len(hidden) < len(redaction.REDACTED) + 2 * len(around) * 3 + 20, hidden


def test_every_string_of_a_json_value_is_redacted() -> None:
    value = {"a": [KEYS[0], 1, None, {"b": KEYS[1]}], "c": True}
    assert redaction.redact_values(value) == {
        "a": [redaction.REDACTED, 1, None, {"b": redaction.REDACTED}], "c": True
    }  # fmt: skip


def test_a_log_holds_no_key() -> None:
    below = io.StringIO()
    print("key", KEYS[0], file=cast("io.StringIO", redaction.RedactedStream(below)))
    assert below.getvalue() == f"key {redaction.REDACTED}\n"


def test_the_password_of_a_database_is_redacted_and_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redaction, "_registered", [])
    redaction.register_secrets({"PGPASSWORD": "correct-horse", "PGUSER": "crewboard-user"})
    assert (
        redaction.redact("crewboard-user logs in with correct-horse")
        == f"crewboard-user logs in with {redaction.REDACTED}"
    )
    assert not redaction.is_secret("PGPASSWORD"), "a supervisor needs it to reach the database"
