"""Requests to the supervisor: what is sent arrives, and requests of other versions do no harm."""

import pytest

from crewboard.protocol.supervisor_client import ControlRequest, Verb


@pytest.mark.parametrize("verb", ["start", "kill"])
def test_a_request_arrives_as_it_was_sent(verb: Verb) -> None:
    request = ControlRequest(verb, "scout", 3, {"ANTHROPIC_API_KEY": "key", "RAW": "\udcff"})
    assert ControlRequest.decode(request.encode()) == request


@pytest.mark.parametrize(
    "line",
    [
        b'{"verb": "bell", "name": null, "run": null, "environment": {}}',
        b'{"verb": "of a later version", "more": 1}',
        b"{}",
        b'{"verb": "start", "name": "../scout", "run": 1}',
        b'{"verb": "start", "name": "scout", "run": "1"}',
        b'{"verb": "start", "name": "scout", "run": true}',
        b'{"verb": "kill", "name": "scout"}',
    ],
)
def test_other_requests_only_wake_the_supervisor(line: bytes) -> None:
    assert ControlRequest.decode(line) == ControlRequest("wake")


@pytest.mark.parametrize("line", [b"", b"no JSON", b"\xff", b"[]", b"7", b'{"environment": [1]}', b"[" * 100_000])
def test_a_line_that_is_no_request_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  the message differs, the type is the contract
        ControlRequest.decode(line)
