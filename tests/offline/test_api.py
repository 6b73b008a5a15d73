"""The Messages API, as the real SDK sees it."""

import contextlib
import http.client
import json
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from msgspec import convert

from crewboard.offline.conversation import Request
from crewboard.offline.reply import Reply
from crewboard.offline.service import Service
from tests.api.cache import PromptCache
from tests.api.rules import parse
from tests.model import ModelServer, calls, says

if TYPE_CHECKING:
    from anthropic import Anthropic
    from anthropic.types import Message

pytestmark = pytest.mark.xdist_group("sdk")

HELLO: list[Any] = [{"role": "user", "content": "hello"}]
ASKED: dict[str, Any] = {"model": "claude-sonnet-5-5", "max_tokens": 1000, "messages": HELLO}
TOOLS: list[Any] = [{"name": "bash", "description": "run", "input_schema": {"type": "object"}}]


def connect(server: ModelServer, **given: Any) -> "Anthropic":
    from anthropic import Anthropic

    return Anthropic(**{"base_url": server.url, "api_key": "offline", "max_retries": 0, **given})


@pytest.mark.long
def test_a_streamed_reply_is_the_same_as_a_whole_one(client: "Anthropic") -> None:
    whole = client.messages.create(**ASKED)
    with client.messages.stream(**ASKED) as stream:
        pieces = list(stream.text_stream)
        streamed = stream.get_final_message()
    assert "".join(pieces) == streamed.content[0].text == whole.content[0].text  # type: ignore[union-attr]
    assert len(pieces) > 10
    assert streamed.stop_reason == whole.stop_reason == "end_turn"
    assert streamed.usage.output_tokens == whole.usage.output_tokens > 1
    assert "no language model" in "".join(pieces)


def test_tool_input_arrives_in_pieces_and_whole() -> None:
    given = {"command": "echo 'ü → ☃'; " + "x" * 100, "timeout": 3}
    use = {"type": "tool_use", "name": "bash", "input": given}
    with ModelServer(thinks=False, script=[Reply([{"type": "text", "text": "Now."}, use])]) as server:
        with connect(server) as client, client.messages.stream(**ASKED, tools=TOOLS) as stream:
            pieces = [event.partial_json for event in stream if event.type == "input_json"]
            message = stream.get_final_message()
        back = [block.to_dict(mode="json") for block in message.content]
        result = {"type": "tool_result", "tool_use_id": message.content[1].id, "content": "ok"}  # type: ignore[union-attr]
        talk: list[Any] = [*HELLO, {"role": "assistant", "content": back}, {"role": "user", "content": [result]}]
        with connect(server) as client:
            answer = client.messages.create(**{**ASKED, "messages": talk}, tools=TOOLS)
    assert len(pieces) > 3
    assert json.loads("".join(pieces)) == given == message.content[1].input  # type: ignore[union-attr]
    assert message.stop_reason == "tool_use"
    assert answer.stop_reason == "end_turn"


def test_the_same_request_gets_the_same_reply_and_ids(client: "Anthropic") -> None:
    first, again = client.messages.create(**ASKED), client.messages.create(**ASKED)
    assert first == again
    other = client.messages.create(**{**ASKED, "messages": [{"role": "user", "content": "hello!"}]})
    assert other.id != first.id


def test_a_longer_answer_than_allowed_is_cut(client: "Anthropic") -> None:
    cut = client.messages.create(**{**ASKED, "max_tokens": 5})
    assert cut.stop_reason == "max_tokens"
    assert len(cut.content[0].text) == 20


def test_what_an_earlier_request_held_is_read_from_the_cache(client: "Anthropic") -> None:
    system = "x" * 8000
    marked: Any = {"cache_control": {"type": "ephemeral"}}
    first = client.messages.create(**ASKED, system=system, **marked).usage
    assert (first.input_tokens, first.cache_read_input_tokens) == (0, 0)
    assert first.cache_creation_input_tokens
    talk: Any = [*HELLO, {"role": "assistant", "content": "yes?"}, {"role": "user", "content": "go on"}]
    second = client.messages.create(**{**ASKED, "messages": talk}, system=system, **marked).usage
    assert second.cache_read_input_tokens == first.cache_creation_input_tokens
    assert 0 < (second.cache_creation_input_tokens or 0) < 50
    plain = client.messages.create(**ASKED, system=system).usage
    assert plain.input_tokens == first.cache_creation_input_tokens


def test_what_is_kept_for_an_hour_is_counted_apart(client: "Anthropic") -> None:
    hour: Any = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    system: Any = [{"type": "text", "text": "x" * 8000, **hour}]
    talk: Any = [{"role": "user", "content": "y" * 4000}]
    first = client.messages.create(
        **{**ASKED, "messages": talk}, system=system, cache_control={"type": "ephemeral"}
    ).usage
    assert first.cache_creation is not None
    kept = first.cache_creation.ephemeral_1h_input_tokens, first.cache_creation.ephemeral_5m_input_tokens
    assert sum(kept) == first.cache_creation_input_tokens
    assert kept[0] > 2 * kept[1] - 20 > 1900
    talk += [{"role": "assistant", "content": "yes?"}, {"role": "user", "content": "go on"}]
    again = client.messages.create(**{**ASKED, "messages": talk}, system=system, **hour).usage
    assert again.cache_creation is not None
    assert again.cache_read_input_tokens == sum(kept)
    assert again.cache_creation.ephemeral_1h_input_tokens == again.cache_creation_input_tokens
    assert again.cache_creation.ephemeral_5m_input_tokens == 0


def with_blocks(count: int, *marked: int, ttl: str = "5m") -> dict[str, Any]:
    """Return a request of so many blocks, with breakpoints behind some of them."""
    blocks: list[dict[str, Any]] = [{"type": "text", "text": f"{number} " * 2500} for number in range(count)]
    for place in marked:
        blocks[place]["cache_control"] = {"type": "ephemeral", "ttl": ttl}
    return {**ASKED, "messages": [{"role": "user", "content": blocks}]}


@pytest.mark.parametrize(("count", "is_found"), [(21, True), (22, False)])
def test_a_breakpoint_looks_twenty_blocks_back(count: int, is_found: bool) -> None:
    cache = PromptCache()
    written = cache.count(parse(with_blocks(1, 0)))["ephemeral_5m_input_tokens"]
    assert cache.count(parse(with_blocks(count, count - 1)))["cache_read_input_tokens"] == (written if is_found else 0)


@pytest.mark.parametrize(("ttl", "seconds"), [("5m", 300), ("1h", 3600)])
def test_what_was_not_used_for_long_is_read_anew(ttl: str, seconds: int) -> None:
    cache = PromptCache(iter((0.0, seconds - 1.0, 2 * seconds - 2.0, 3.0 * seconds)).__next__)
    asked = parse(with_blocks(1, 0, ttl=ttl))
    assert [cache.count(asked)["cache_read_input_tokens"] > 0 for _ in range(4)] == [False, True, True, False]


def test_the_product_counts_what_an_earlier_request_marked() -> None:
    service = Service()
    first = service.count(convert(with_blocks(1, 0), Request))
    written = first["ephemeral_5m_input_tokens"]
    assert (first["cache_read_input_tokens"], first["input_tokens"]) == (0, 0)
    longer = service.count(convert(with_blocks(3, 0, 1), Request))
    assert longer["cache_read_input_tokens"] == written > 1000
    assert longer["input_tokens"] == longer["ephemeral_5m_input_tokens"] == written
    for_an_hour = service.count(convert(with_blocks(3, 2, ttl="1h"), Request))
    assert for_an_hour["cache_read_input_tokens"] == 0
    assert for_an_hour["ephemeral_1h_input_tokens"] == sum(longer.values())


def test_the_place_of_a_mark_in_its_block_changes_nothing() -> None:
    service, marked, plain = Service(), with_blocks(1, 0), with_blocks(2, 1)
    first = marked["messages"][0]["content"][0]
    marked["messages"][0]["content"][0] = {"cache_control": first.pop("cache_control"), **first}
    written = service.count(convert(marked, Request))["ephemeral_5m_input_tokens"]
    plain["messages"][0]["content"][0]["cache_control"] = {"type": "ephemeral"}
    assert service.count(convert(plain, Request))["cache_read_input_tokens"] == written > 0


def test_a_picture_of_any_size_counts_as_in_the_api() -> None:
    source = {"type": "base64", "media_type": "image/png", "data": "A" * 1_000_000}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "image", "source": source}]}
    asked = convert({**ASKED, "messages": [{"role": "user", "content": [result]}]}, Request)
    assert Service().count(asked)["input_tokens"] == 1500


def test_a_request_is_compared_with_the_one_that_a_reply_answered(client: "Anthropic") -> None:
    talk: Any = [{"role": "user", "content": "hello"}]
    tools: Any = [{"name": "look", "input_schema": {"type": "object"}}]

    def ask(previous: str | None, **more: Any) -> "Message":
        asked: Any = {**ASKED, "system": "Be kind.", "tools": tools, "messages": talk, **more}
        message: Message = client.messages.create(**asked, diagnostics={"previous_message_id": previous})
        return message

    first = ask(None)
    assert first.diagnostics is None
    assert client.messages.create(**ASKED).diagnostics is None, "not asked for"
    longer = [*talk, {"role": "assistant", "content": "yes?"}, {"role": "user", "content": "go on"}]
    assert ask(first.id, messages=longer).diagnostics is None
    changes: dict[str, dict[str, Any]] = {
        "model_changed": {"model": "claude-opus-5-5", "system": "Be brief."},
        "system_changed": {"system": "Be brief.", "tools": []},
        "tools_changed": {"tools": []},
        "messages_changed": {"messages": [{"role": "user", "content": "hello!"}]},
        "unavailable": {"output_config": {"effort": "low"}},
    }
    for reason, more in changes.items():
        found = ask(first.id, **more).diagnostics
        assert found is not None
        assert found.cache_miss_reason is not None
        assert found.cache_miss_reason.type == reason
    unknown = ask("msg_unknown").diagnostics
    assert unknown is not None
    assert unknown.cache_miss_reason is not None
    assert unknown.cache_miss_reason.type == "previous_message_not_found"


def test_models_can_be_looked_up(client: "Anthropic") -> None:
    assert client.models.retrieve("claude-opus-5-5").max_input_tokens == 200_000
    from anthropic import NotFoundError

    with pytest.raises(NotFoundError, match="gpt"):
        client.models.retrieve("gpt")


@pytest.mark.parametrize(
    ("model", "terms", "why"),
    [
        ("opus-5-5", {"thinking": {"type": "disabled"}}, r'"thinking\.type\.disabled" is not supported'),
        ("sonnet-5-5", {"thinking": {"type": "disabled"}}, r'"thinking\.type\.disabled" is not supported'),
        ("haiku-5-5", {"thinking": {"type": "between_tools"}}, r'"thinking\.type\.between_tools" is not supported'),
        (
            "haiku-5-5",
            {"thinking": {"type": "disabled"}, "output_config": {"effort": "xhigh"}},
            "with the thinking off",
        ),
        ("haiku-4-5", {"output_config": {"effort": "low"}}, "has no levels of effort"),
        (
            "opus-5-5",
            {"max_tokens": 64_001, "stream": True},
            "max_tokens: 64001 > 64000, which is the maximum allowed number of output",
        ),
    ],
)
def test_each_model_refuses_what_the_real_one_does(
    client: "Anthropic", model: str, terms: dict[str, Any], why: str
) -> None:
    from anthropic import BadRequestError

    with pytest.raises(BadRequestError, match=why):
        client.messages.create(**{**ASKED, "model": f"claude-{model}", **terms})


def test_a_prompt_beyond_the_window_is_refused() -> None:
    from anthropic import BadRequestError

    with ModelServer(thinks=False, window=100) as server, connect(server) as client:
        assert client.models.retrieve("claude-opus-5-5").max_input_tokens == 100
        with pytest.raises(BadRequestError, match=r"prompt is too long: \d+ tokens > 100 maximum"):
            client.messages.create(**{**ASKED, "messages": [{"role": "user", "content": "word " * 200}]})


def test_without_a_key_nothing_is_answered(server: ModelServer) -> None:
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(f"{server.url}/v1/models/claude-opus-5-5")
    with caught.value as answer:
        assert answer.code == 401
        assert json.load(answer)["error"]["type"] == "authentication_error"
    with connect(server, api_key=None, auth_token="offline") as client:
        assert client.messages.create(**ASKED).stop_reason == "end_turn"


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/v1/nothing", None, 404),
        ("GET", "/v1/messages", None, 405),
        ("POST", "/v1/messages", b'{"model": "m", "max_tokens": 1, "messages": []}', 400),
        *(
            pytest.param("POST", "/v1/messages", body, 400, marks=pytest.mark.misfits("no request"))
            for body in (b"no json", b"[]", b"{}")
        ),
    ],
)
def test_what_is_no_request_is_refused_in_the_apis_form(
    server: ModelServer, method: str, path: str, body: bytes | None, status: int
) -> None:
    headers = {"x-api-key": "offline", "anthropic-version": "2023-06-01"}
    request = urllib.request.Request(server.url + path, data=body, headers=headers, method=method)
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request)
    with caught.value as answer:
        error = json.load(answer)
    assert caught.value.code == status
    assert error["type"] == "error"
    assert error["error"]["message"]
    assert error["request_id"].startswith("req_")


def test_a_request_for_a_head_gets_no_body(server: ModelServer, capfd: pytest.CaptureFixture[str]) -> None:
    headers = {"x-api-key": "offline", "anthropic-version": "2023-06-01"}
    with contextlib.closing(http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=30)) as connection:
        for path in ("/", "/v1/messages", "/v1/models/claude-opus-5-5"):
            connection.request("HEAD", path, headers=headers)
            answer = connection.getresponse()
            assert (answer.status, answer.read()) == (405, b"")
        # Nothing of an answer is left in the connection.
        connection.request("GET", "/v1/models/claude-opus-5-5", headers=headers)
        assert json.load(connection.getresponse())["type"] == "model"
    assert capfd.readouterr().err == ""


@pytest.mark.long
@pytest.mark.misfits("one of the requests is wrong on purpose")
def test_a_test_of_other_servers_finds_nothing_to_criticize() -> None:
    program = Path(sys.executable).with_name("llm-comply")
    script = [says("Hello, dear you."), says("Hello."), says("Alice"), calls("get_weather", location="San Francisco")]
    with ModelServer(script=script) as server:
        command = [str(program), "--format", "anthropic", "--json", "-u", f"{server.url}/v1", "-m", "claude-sonnet-5-5"]
        key = ["-k", "offline", "--auth-header", "x-api-key", "--no-bearer", "-H", "anthropic-version: 2023-06-01"]
        done = subprocess.run([*command, *key], capture_output=True, text=True, timeout=60, check=False)
    assert json.loads(done.stdout)["summary"] == {"total": 9, "passed": 8, "failed": 0, "skipped": 1}, done.stdout


def test_a_script_is_followed_and_then_the_rules() -> None:
    with (
        ModelServer(thinks=False, script=[says("one"), calls("bash", command="true")]) as server,
        connect(server) as client,
    ):
        first = client.messages.create(**ASKED, tools=TOOLS)
        assert first == client.messages.create(**ASKED, tools=TOOLS)
        talk: Any = [*HELLO, {"role": "assistant", "content": "one"}, {"role": "user", "content": "more"}]
        second = client.messages.create(**{**ASKED, "messages": talk}, tools=TOOLS)
        third = client.messages.create(**{**ASKED, "messages": [{"role": "user", "content": "say three"}]})
    assert first.content[0].text == "one"
    assert second.content[0].name == "bash"
    assert third.stop_reason == "end_turn"
    assert [body["messages"][-1]["content"] for body in server.requests] == ["hello", "hello", "more", "say three"]


def test_each_agent_follows_its_own_script() -> None:
    script = {"ada": [says("I am Ada")], "bob": [says("I am Bob")]}
    with ModelServer(thinks=False, script=script) as server, connect(server) as client:
        for name in ("bob", "ada"):
            system = f'You are {name}, a code agent in the crewboard team "demo".'
            said = client.messages.create(**ASKED, system=system)
            assert said.content[0].text == f"I am {name.title()}"


@pytest.mark.long
def test_two_hundred_clients_are_served_at_once() -> None:
    together = threading.Barrier(200, timeout=60)
    with ModelServer(thinks=False, script={str(n): [says(f"number {n}")] for n in range(200)}) as server:

        def ask(number: int) -> str:
            body = {**ASKED, "stream": True, "system": f'You are {number}, a code agent in the crewboard team "t".'}
            headers = {"x-api-key": "k", "anthropic-version": "2023-06-01", "content-type": "application/json"}
            request = urllib.request.Request(
                f"{server.url}/v1/messages", data=json.dumps(body).encode(), headers=headers
            )
            together.wait()
            with urllib.request.urlopen(request, timeout=60) as answer:
                events = [json.loads(line[6:]) for line in answer if line.startswith(b"data: ")]
            return "".join(event["delta"].get("text", "") for event in events if "delta" in event)

        with ThreadPoolExecutor(200) as pool:
            said = list(pool.map(ask, range(200)))
    assert said == [f"number {n}" for n in range(200)]


def test_a_client_that_leaves_harms_no_other(capfd: pytest.CaptureFixture[str]) -> None:
    long = says("word " * 100_000)
    with ModelServer(thinks=False, script=[long, says("still here")]) as server, connect(server) as client:
        with client.messages.stream(**ASKED) as stream:
            next(iter(stream.text_stream))
        talk: Any = [{"role": "user", "content": "and now?"}]
        said = client.messages.create(**{**ASKED, "messages": talk})
    assert said.content[0].text == "still here"
    assert "Traceback" not in capfd.readouterr().err
