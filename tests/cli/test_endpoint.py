"""The server that an environment names: what is wrong with it is said before an agent is hired."""

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from ssl import SSLCertVerificationError
from threading import Thread
from urllib.error import URLError

import pytest

from crewboard import endpoint, env, models, redaction
from crewboard.commands.context import Team
from crewboard.store.layout import TeamDirectory
from crewboard_tui.cli import doctor
from tests.cli.shell import Cli
from tests.raw import Raw, RawServer

pytestmark = pytest.mark.xdist_group("sdk")

SPAWN = ("spawn", "a", "--type", "explore", "--prompt", "look")


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("http://127.0.0.1:1234/v1", ("ends in /v1", "set it to http://127.0.0.1:1234")),
        ("https://gateway.example/v1/", ("ends in /v1", "set it to https://gateway.example")),
        ("https://gateway.example/a/v1/messages", ("ends in /v1/messages", "set it to https://gateway.example/a")),
        ("https://gateway.example/?key=secret", ("has a query", "set it to https://gateway.example\n")),
        ("127.0.0.1:11434", ("neither http:// nor https://", "did you mean http://127.0.0.1:11434?")),
        ("gateway.example", ("neither http:// nor https://", "did you mean https://gateway.example?")),
        ("", ("is set and empty", "unset it")),
        ("http://127.0.0.1:port", ("is no address of a server", "looks like http://127.0.0.1:11434")),
        ("http://", ("is no address of a server",)),
    ],
)
def test_a_wrong_address_is_refused_before_a_hire(cli: Cli, address: str, words: tuple[str, ...]) -> None:
    cli.with_environment(ANTHROPIC_BASE_URL=address, ANTHROPIC_AUTH_TOKEN="local")(*SPAWN).refused(78, *words)
    assert not (cli.root / ".crewboard").exists()


def test_a_server_without_a_key_is_said_to_take_any(cli: Cli) -> None:
    shell = cli.with_environment(ANTHROPIC_BASE_URL="http://127.0.0.1:11434")
    shell(*SPAWN).refused(
        78, "no API key for 127.0.0.1:11434", "if your server asks for none: ANTHROPIC_AUTH_TOKEN=local"
    )
    assert "ANTHROPIC_AUTH_TOKEN=local" in shell("doctor").out


def test_two_keys_for_a_gateway_are_told_apart(directory: TeamDirectory) -> None:
    both = {"ANTHROPIC_API_KEY": "a", "ANTHROPIC_AUTH_TOKEN": "b", "ANTHROPIC_BASE_URL": "https://gateway.example"}
    check = doctor.model(Team(directory, environment=both), offline=False)
    assert check.mark == "note"
    assert "gateway.example:443 gets ANTHROPIC_API_KEY" in (check.remedy or "")
    assert "`unset ANTHROPIC_API_KEY`" in (check.remedy or "")
    assert endpoint.shadowed_key({**both, "ANTHROPIC_BASE_URL": "https://api.anthropic.com"}) is None


FEDERATION = {"ANTHROPIC_FEDERATION_RULE_ID": "r", "ANTHROPIC_ORGANIZATION_ID": "o"}


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"ANTHROPIC_API_KEY": "k"},
        {"ANTHROPIC_API_KEY": "", "ANTHROPIC_AUTH_TOKEN": "t"},
        {"ANTHROPIC_PROFILE": "work"},
        {"ANTHROPIC_CONFIG_DIR": "HOME/.config/anthropic"},
        FEDERATION,
        {**FEDERATION, "ANTHROPIC_IDENTITY_TOKEN": "jwt"},
        {**FEDERATION, "ANTHROPIC_IDENTITY_TOKEN_FILE": "/token"},
        {"ANTHROPIC_CUSTOM_HEADERS": "X-Api-Key: k"},
        {"ANTHROPIC_CUSTOM_HEADERS": "x-team: a"},
        {"active_config": "work"},
        {"profile": "default"},
        {"profile": "work"},
    ],
    ids=str,
)
def test_the_sdk_has_credentials_where_we_say_so(
    given: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from crewboard.worker.llm.client import make_client

    folder = tmp_path / ".config/anthropic"
    (folder / "configs").mkdir(parents=True)
    for name in filter(None, (given.get("ANTHROPIC_PROFILE"), given.get("active_config"), given.get("profile"))):
        (folder / f"configs/{name}.json").write_text('{"authentication": {"type": "user_oauth"}}')
        (folder / f"configs/{name}.json").chmod(0o600)
    if "ANTHROPIC_CONFIG_DIR" in given:
        (folder / "configs/default.json").write_text('{"authentication": {"type": "user_oauth"}}')
        (folder / "configs/default.json").chmod(0o600)
    if "active_config" in given:
        (folder / "active_config").write_text(f"{given['active_config']}\n")
    variables = {key: value.replace("HOME", str(tmp_path)) for key, value in given.items() if key.isupper()}
    for name in [name for name in os.environ if redaction.is_secret(name)]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    client = make_client()
    headers = {name.lower() for name in client.default_headers} | {name.lower() for name in client.auth_headers}
    theirs = client.credentials is not None or bool({"authorization", "x-api-key"} & headers)
    assert (endpoint.credential(os.environ) is not None) == theirs


def test_what_the_sdk_reads_again_stays_in_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {"ANTHROPIC_IDENTITY_TOKEN": "jwt", "ANTHROPIC_API_KEY": "k", "HOME": "/"})
    env.forget_api_variables()
    assert os.environ == {"ANTHROPIC_IDENTITY_TOKEN": "jwt", "HOME": "/"}


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:1", "http://localhost:1", "http://[::1]:1", "http://10.1.2.3", "https://a.b.c"]
)
@pytest.mark.parametrize(
    "given",
    [
        {"HTTP_PROXY": "http://p:1"},
        {"https_proxy": "p:2"},
        {"ALL_PROXY": "http://p:3"},
        {"ALL_PROXY": "http://p:3", "NO_PROXY": "b.c, 10.0.0.0/8"},
        {"ALL_PROXY": "http://p:3", "NO_PROXY": ".b.c,10.1.2.3"},
        {"ALL_PROXY": "http://p:3", "NO_PROXY": "x.c,*"},
    ],
    ids=str,
)
def test_the_proxy_is_the_one_that_a_worker_uses(
    given: dict[str, str], url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import httpx2

    from crewboard.worker.llm.client import make_client

    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    transport = make_client(api_key="k", base_url=url)._client._transport_for_url(httpx2.URL(url))
    used = getattr(transport, "_pool", None)
    through = getattr(used, "_proxy_url", None)
    assert (endpoint.proxy(os.environ, url) is not None) == (through is not None)


@pytest.mark.parametrize(
    ("url", "proxy", "says"),
    [
        ("http://127.0.0.1:9", "http://me:secret@127.0.0.1:9", "no connection to 127.0.0.1:9:"),
        ("http://10.255.0.1:8000", "http://me:secret@127.0.0.1:9", "to 10.255.0.1:8000 through the proxy 127.0.0.1:9:"),
    ],
)
def test_a_failed_connection_names_address_and_proxy(
    url: str, proxy: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import anthropic

    from crewboard.worker.llm import client, refusals

    monkeypatch.setenv("HTTP_PROXY", proxy)
    monkeypatch.delenv("NO_PROXY", raising=False)
    api = client.make_client(api_key="k", base_url=url)
    with pytest.raises(anthropic.APIConnectionError) as raised:
        asyncio.run(api.models.retrieve("m"))
    text = refusals.judge(raised.value).text
    assert says in text
    assert "secret" not in text


def test_a_failed_connection_after_a_redirect_names_where_it_led() -> None:
    import anthropic

    from crewboard.worker.llm import client, refusals

    with RawServer(pages={"/v1/models/m": Raw(b"", 307, location="http://127.0.0.1:9/v1")}) as server:
        api = client.make_client(api_key="k", base_url=server.url)
        with pytest.raises(anthropic.APIConnectionError) as raised:
            asyncio.run(api.models.retrieve("m"))
    assert refusals.judge(raised.value).text == "no connection to 127.0.0.1:9: Connection refused"


def test_an_unreachable_offline_model_is_named_with_what_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    import anthropic

    from crewboard.worker.llm import client, refusals

    monkeypatch.setenv("CREWBOARD_OFFLINE", "1")
    with pytest.raises(anthropic.APIConnectionError) as raised:
        asyncio.run(client.make_client(api_key="k", base_url="http://127.0.0.1:9").models.retrieve("m"))
    text = refusals.judge(raised.value).text
    assert text == "no connection to the offline model at 127.0.0.1:9: Connection refused"
    assert "ANTHROPIC_BASE_URL" not in str(models.remedy(text))
    assert "`crewboard resume NAME`" in str(models.remedy(text))


def test_an_error_without_words_is_named() -> None:
    import anthropic
    import httpx2

    from crewboard.worker.llm import refusals

    error = anthropic.APIConnectionError(request=httpx2.Request("POST", "http://127.0.0.1:9"))
    error.__cause__ = httpx2.ReadError("", request=error.request)
    assert refusals.judge(error).text == "no answer from 127.0.0.1:9: ReadError"


@pytest.fixture
def server() -> Iterator[HTTPServer]:
    """Answer each request with its own headers, and redirect `/v1/away`."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.server.seen.append(dict(self.headers))  # type: ignore[attr-defined]
            self.send_response(302 if self.path.endswith("away") else 200)
            self.send_header("location", "/v1/models")
            self.end_headers()
            self.wfile.write(b'{"data": []}')

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as found:
        found.seen = []  # type: ignore[attr-defined]
        Thread(target=found.serve_forever, daemon=True).start()
        yield found
        found.shutdown()


def test_a_question_carries_the_key_that_agents_send(server: HTTPServer) -> None:
    given = {"ANTHROPIC_BASE_URL": f"http://127.0.0.1:{server.server_port}/", "HTTP_PROXY": "http://127.0.0.1:9"}
    both = {**given, "ANTHROPIC_API_KEY": "one", "ANTHROPIC_AUTH_TOKEN": "two", "ANTHROPIC_CUSTOM_HEADERS": "X-A: b"}
    assert endpoint.get(both, "/v1/models", 5) == (200, {"data": []})
    with pytest.raises(endpoint.RedirectedError) as found:
        endpoint.get(given, "/v1/away", 5)
    assert (found.value.status, found.value.base) == (302, None), "it has another path there"
    one, other = server.seen  # type: ignore[attr-defined]
    assert (one["Authorization"], one["X-A"]) == ("Bearer one", "b")
    assert "Authorization" not in other


def test_a_certificate_that_is_not_trusted_has_its_own_remedy(
    directory: TeamDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def get(*_: object) -> None:
        raise URLError(SSLCertVerificationError(1, "[SSL: CERTIFICATE_VERIFY_FAILED] self-signed certificate"))

    monkeypatch.setattr(endpoint, "get", get)
    found = doctor.answer(Team(directory), {"ANTHROPIC_BASE_URL": "https://127.0.0.1:9"}, 1)
    assert (found.mark, "SSL_CERT_FILE" in str(found.remedy)) == ("bad", True)


@pytest.mark.parametrize("begins", [b"HTTP/1.1 20", b"HTTP/1.1 200 OK\r\nx-slow: "], ids=["status", "header"])
@pytest.mark.parametrize("way", ["server", "proxy", "tunnel"])
def test_a_head_that_drips_is_not_awaited(begins: bytes, way: str) -> None:
    """A socket's timeout begins anew with each byte. Where there is a proxy, it is what drips."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        Thread(target=drip, args=(listening, begins), daemon=True).start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        there = {"tunnel": "https://models.test", "proxy": "http://models.test"}.get(way, url)
        began = time.monotonic()
        with pytest.raises(OSError, match=r"timed out|does not end"):
            endpoint.get({endpoint.BASE_URL: there, "HTTPS_PROXY": url, "HTTP_PROXY": url}, "/v1/models", 0.3)
        assert time.monotonic() - began < 10


def drip(listening: socket.socket, begins: bytes) -> None:
    """Answer the first connection with `begins`, and then a byte every hundredth of a second until it is closed."""
    sock, _ = listening.accept()
    with sock, contextlib.suppress(OSError):
        sock.sendall(begins)
        while True:
            sock.sendall(b"0")
            time.sleep(0.01)
