"""Each way to misbehave, as the real SDK sees it."""

import time
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from crewboard.offline.service import Fault, Faults
from tests.model import ModelServer, says

if TYPE_CHECKING:
    from anthropic import Anthropic

pytestmark = pytest.mark.xdist_group("sdk")

ASKED: dict[str, Any] = {
    "model": "claude-sonnet-5-5",
    "max_tokens": 1000,
    "messages": [{"role": "user", "content": "say one two three four five"}],
}
WHOLE = "one two three four five"


def connect(server: ModelServer, **given: Any) -> "Anthropic":
    from anthropic import Anthropic

    return Anthropic(**{"base_url": server.url, "api_key": "offline", "max_retries": 0, **given})


def ask(client: "Anthropic") -> tuple[str, str | None]:
    """The text that was said, and why it stopped."""
    with client.messages.stream(**ASKED) as stream:
        text = "".join(stream.text_stream)
        return text, stream.get_final_message().stop_reason


@pytest.mark.parametrize(
    ("status", "error", "kind"),
    [
        (400, "BadRequestError", "invalid_request_error"),
        (401, "AuthenticationError", "authentication_error"),
        (403, "PermissionDeniedError", "permission_error"),
        (413, "APIStatusError", "request_too_large"),
        (429, "RateLimitError", "rate_limit_error"),
        (500, "InternalServerError", "api_error"),
        (529, "APIStatusError", "overloaded_error"),
    ],
)
def test_a_status(sdk: ModuleType, status: int, error: str, kind: str) -> None:
    with ModelServer(thinks=False, faults=[Fault(kind="status", status=status)]) as server, connect(server) as client:
        with pytest.raises(getattr(sdk, error)) as caught:
            ask(client)
        assert ask(client) == (WHOLE, "end_turn")
    assert caught.value.status_code == status
    assert caught.value.type == kind
    assert "retry-after" not in caught.value.response.headers


def test_a_status_that_says_when_to_come_again(sdk: ModuleType) -> None:
    fault = Fault(kind="status", status=429, retry_after=0.5, message="not so fast")
    with (
        ModelServer(thinks=False, faults=[fault]) as server,
        connect(server) as client,
        pytest.raises(sdk.RateLimitError, match="not so fast") as caught,
    ):
        ask(client)
    assert caught.value.response.headers["retry-after"] == "0.5"


def test_a_slow_first_byte(sdk: ModuleType) -> None:
    with ModelServer(thinks=False, faults=[Fault(kind="slow", seconds=30)]) as server, connect(server) as client:
        with pytest.raises(sdk.APITimeoutError):
            ask(client.with_options(timeout=sdk.Timeout(30, read=0.2)))
        assert ask(client) == (WHOLE, "end_turn")
    with ModelServer(thinks=False, faults=[Fault(kind="slow", seconds=0.1)]) as server, connect(server) as client:
        began = time.monotonic()
        assert ask(client) == (WHOLE, "end_turn")
        assert time.monotonic() - began > 0.1


def test_a_cut_in_the_middle() -> None:
    import httpx2

    heard: list[str] = []
    with ModelServer(thinks=False, faults=[Fault(kind="cut", after=2)]) as server, connect(server) as client:
        with pytest.raises(httpx2.RemoteProtocolError), client.messages.stream(**ASKED) as stream:
            heard.extend(stream.text_stream)
        assert ask(client) == (WHOLE, "end_turn")
    assert "".join(heard) == "one two "


def test_a_cut_that_looks_like_an_end() -> None:
    with ModelServer(thinks=False, faults=[Fault(kind="clean_cut", after=3)]) as server, connect(server) as client:
        assert ask(client) == ("one two three ", None)
        assert ask(client) == (WHOLE, "end_turn")


def test_a_cut_behind_the_last_word() -> None:
    with ModelServer(thinks=False, faults=[Fault(kind="clean_cut", after=99)]) as server, connect(server) as client:
        assert ask(client) == (WHOLE, None)


def test_an_error_event_in_the_middle(sdk: ModuleType) -> None:
    with ModelServer(thinks=False, faults=[Fault(kind="error_event")]) as server, connect(server) as client:
        with pytest.raises(sdk.APIStatusError) as caught:
            ask(client)
        assert ask(client) == (WHOLE, "end_turn")
    assert caught.value.status_code == 200
    assert caught.value.type == "overloaded_error"


def test_a_request_that_is_never_answered(sdk: ModuleType) -> None:
    with ModelServer(thinks=False, faults=[Fault(kind="hang")]) as server, connect(server) as client:
        with pytest.raises(sdk.APITimeoutError):
            ask(client.with_options(timeout=sdk.Timeout(30, read=0.2)))
        assert ask(client) == (WHOLE, "end_turn")


def test_faults_come_in_order_and_null_is_none(sdk: ModuleType) -> None:
    faults = [None, Fault(kind="status", status=500), None, Fault(kind="status", status=529)]
    seen: list[int] = []
    with ModelServer(thinks=False, faults=faults) as server, connect(server) as client:
        for _ in range(5):
            try:
                ask(client)
                seen.append(200)
            except sdk.APIStatusError as error:
                seen.append(error.status_code)
    assert seen == [200, 500, 200, 529, 200]


def test_a_fault_can_be_meant_for_one_agent() -> None:
    faults = Faults([Fault(kind="hang", agent="bob"), Fault(kind="cut")])
    assert [faults.next_for(name) for name in ("ada", "ada", "bob", "bob")] == [
        Fault(kind="cut"),
        None,
        Fault(kind="hang", agent="bob"),
        None,
    ]


def test_a_reply_that_was_cut_is_given_again() -> None:
    import httpx2

    script = [says("a b c d e"), says("next")]
    with ModelServer(thinks=False, faults=[Fault(kind="cut")], script=script) as server, connect(server) as client:
        with pytest.raises(httpx2.RemoteProtocolError):
            ask(client)
        assert ask(client) == ("a b c d e", "end_turn")


def test_a_file_of_faults_is_read_when_it_changes(tmp_path: Path) -> None:
    file = tmp_path / "faults.json"
    faults = Faults(file=file)
    assert faults.next_for("ada") is None
    file.write_text('[null, {"kind": "status", "status": 529}]')
    assert [faults.next_for("ada") for _ in range(3)] == [None, Fault(kind="status", status=529), None]
    file.with_suffix(".new").write_text('[{"kind": "hang"}]')
    file.with_suffix(".new").replace(file)
    assert faults.next_for("ada") == Fault(kind="hang")
