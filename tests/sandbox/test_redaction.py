"""Keys do not appear where text is shown or logged."""

import io
from typing import cast

import pytest

from crewboard import redaction

KEYS = [
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
    monkeypatch.setattr(redaction, "_registered", set())
    redaction.register_secrets({"ANTHROPIC_API_KEY": "an-odd-key", "HOME": "/home/me", "X_TOKEN": "short"})
    assert (
        redaction.redact("401 for an-odd-key in /home/me, short") == f"401 for {redaction.REDACTED} in /home/me, short"
    )


def test_a_log_holds_no_key() -> None:
    below = io.StringIO()
    print("key", KEYS[0], file=cast("io.StringIO", redaction.RedactedStream(below)))
    assert below.getvalue() == f"key {redaction.REDACTED}\n"
