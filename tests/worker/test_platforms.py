"""Credentials as the SDK finds them, of cloud platforms too: its own clients, in front of real servers here."""

import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from crewboard import endpoint, env, models, redaction
from crewboard.commands.context import check_credentials
from crewboard.errors import CredentialsError, ExitCode
from crewboard.records.events import ToolResult
from crewboard.worker.llm.client import make_client
from tests.cli.shell import Inside
from tests.crew import Crew, contents
from tests.model import ModelServer
from tests.raw import Raw, as_json, sse
from tests.worker.test_odd_replies import STOP, call, end, start, text

pytestmark = pytest.mark.files_only("it is about the requests of a worker")

SECRET = "a-secret-of-the-platform-1234567890"
TOKEN = "a-token-of-google-1234567890"


class Asked(NamedTuple):
    """One request: what it was sent to, its headers by lower-case names, and its body."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]


class Platform:
    """A server that answers calls of the model with `answers` in order, and hands out access tokens.

    It refuses the first ones with `failures`.
    """

    def __init__(self, *answers: Raw, failures: tuple[Raw, ...] = ()) -> None:
        self.asked: list[Asked] = []
        self.looked: list[str] = []
        """The paths of GET requests, which no platform answers."""
        server, left, failing = self, list(answers), list(failures)

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                data = self.rfile.read(int(self.headers["content-length"]))
                if self.path.endswith("/token"):
                    given = as_json({"access_token": TOKEN, "expires_in": 3600, "token_type": "Bearer"})
                    self._send(failing.pop(0) if failing else given)
                    return
                headers = {name.lower(): value for name, value in self.headers.items()}
                server.asked.append(Asked(self.path, headers, json.loads(data)))
                self._send(left.pop(0) if len(left) > 1 else left[0])

            def do_GET(self) -> None:
                server.looked.append(self.path)
                self._send(as_json({"message": "no such page"}, 404))

            def _send(self, answer: Raw) -> None:
                self.send_response(answer.status)
                self.send_header("content-type", answer.kind)
                self.send_header("content-length", str(len(answer.body)))
                self.end_headers()
                self.wfile.write(answer.body)

            def log_message(self, *_: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}"

    @contextmanager
    def serving(self) -> Iterator["Platform"]:
        thread = threading.Thread(target=lambda: self._http.serve_forever(0.01))
        thread.start()
        try:
            yield self
        finally:
            self._http.shutdown()
            thread.join()
            self._http.server_close()


def bedrock(url: str, folder: Path) -> dict[str, str]:
    return {
        "CLAUDE_CODE_USE_BEDROCK": "1",
        "AWS_REGION": "us-east-1",
        "AWS_BEARER_TOKEN_BEDROCK": SECRET,
        "ANTHROPIC_BEDROCK_MANTLE_BASE_URL": f"{url}/anthropic",
    }


def signed(url: str, folder: Path) -> dict[str, str]:
    found = bedrock(url, folder)
    del found["AWS_BEARER_TOKEN_BEDROCK"]
    return {**found, "AWS_ACCESS_KEY_ID": "AKIDOFTHETESTS", "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_SESSION_TOKEN": TOKEN}


def vertex(url: str, folder: Path) -> dict[str, str]:
    """Return the environment of a service account whose tokens come from the server itself."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
    account = {
        "type": "service_account", "project_id": "other", "private_key_id": "1", "private_key": pem, "client_id": "1",
        "client_email": "a@example.invalid", "token_uri": f"{url}/token",
    }  # fmt: skip
    (folder / "account.json").write_text(json.dumps(account))
    return {
        "CLAUDE_CODE_USE_VERTEX": "1",
        "CLOUD_ML_REGION": "global",
        "ANTHROPIC_VERTEX_PROJECT_ID": "our-project",
        "ANTHROPIC_VERTEX_BASE_URL": f"{url}/v1",
        "GOOGLE_APPLICATION_CREDENTIALS": str(folder / "account.json"),
    }


def foundry(url: str, folder: Path) -> dict[str, str]:
    return {
        "CLAUDE_CODE_USE_FOUNDRY": "1",
        "ANTHROPIC_FOUNDRY_API_KEY": SECRET,
        "ANTHROPIC_FOUNDRY_BASE_URL": f"{url}/anthropic",
    }


Environment = Callable[[str, Path], dict[str, str]]
MODEL = "claude-sonnet-5-5"
MESSAGES = "/anthropic/v1/messages"
PROJECT = "/v1/projects/our-project/locations/global/publishers/anthropic/models"

RUNS = sse(start(), *call(json.dumps({"command": "env"}), name="bash"), end("tool_use"), STOP)
SAYS = sse(start(), *text("done"), end(), STOP)


@contextmanager
def crew_on(folder: Path, server: Platform, environment: Environment, **more: str) -> Iterator[Crew]:
    """Make a team with a key for Anthropic's API too, which must not reach the platform."""
    (folder / "root").mkdir()
    with server.serving():
        given = {**environment(server.url, folder), **more}
        crew = Crew(folder / "root", cast("ModelServer", server), **given)
        yield crew
        crew.end()


@pytest.mark.parametrize(
    ("environment", "path", "header", "value"),
    [
        (bedrock, MESSAGES, "authorization", f"Bearer {SECRET}"),
        pytest.param(
            signed, MESSAGES, "authorization", "AWS4-HMAC-SHA256 Credential=AKIDOFTHETESTS/", marks=pytest.mark.long
        ),
        pytest.param(
            vertex, f"{PROJECT}/{MODEL}:streamRawPredict", "authorization", f"Bearer {TOKEN}", marks=pytest.mark.long
        ),
        pytest.param(foundry, MESSAGES, "api-key", SECRET, marks=pytest.mark.long),
    ],
    ids=["bedrock", "signed", "vertex", "foundry"],
)
def test_an_agent_works_on_a_platform(
    environment: Environment, path: str, header: str, value: str, tmp_path: Path
) -> None:
    server = Platform(RUNS, SAYS)
    with crew_on(tmp_path, server, environment) as crew:
        assert crew.run("ann", "code", "run it", unsafe_no_sandbox=True).text == "done"
        printed = next(event.content for event in crew.events("ann") if isinstance(event, ToolResult))
        kept = b"".join(contents(crew.root).values())
    first, second = server.asked
    assert first.path == second.path == path
    assert first.headers[header].startswith(value)
    assert "a-key-of-the-tests" not in str(server.asked), "the key for another server stays here"
    if environment is not vertex:
        prefix = "anthropic." if environment in (bedrock, signed) else ""
        assert first.body["model"] == f"{prefix}{MODEL}"
    if environment is signed:
        assert "/us-east-1/bedrock-mantle/aws4_request" in first.headers[header]
        assert first.headers["x-amz-security-token"] == TOKEN
        assert "Signature=" in first.headers[header]
    # What is known of the model is used; what only Anthropic's own API takes is left out.
    assert first.body["thinking"] == {"type": "adaptive", "display": "summarized"}
    assert first.body["output_config"] == {"effort": "high"}
    assert "diagnostics" not in first.body
    assert "anthropic-beta" not in first.headers
    assert server.looked == [], "platforms describe no models"
    assert "PATH=" in printed
    for name, hidden in environment(server.url, tmp_path).items():
        assert f"{name}=" not in printed
        assert len(hidden) < len(TOKEN) or hidden not in printed
    assert SECRET.encode() not in kept
    assert TOKEN.encode() not in kept


def test_an_error_of_a_platform_hides_its_key(tmp_path: Path) -> None:
    refused = as_json({"type": "error", "error": {"type": "invalid_request_error", "message": f"bad {SECRET}"}}, 400)
    with crew_on(tmp_path, Platform(refused), bedrock) as crew:
        error = crew.run("ann", "explore", "look").error
    assert error is not None
    assert "bad [key hidden" in error


@pytest.mark.long
def test_credentials_of_a_platform_that_cannot_be_used_end_an_agent(tmp_path: Path) -> None:
    (tmp_path / "empty.json").write_text("{}")
    with crew_on(tmp_path, Platform(SAYS), vertex, GOOGLE_APPLICATION_CREDENTIALS=str(tmp_path / "empty.json")) as crew:
        answer = crew.run("ann", "explore", "look")
        tried = Inside(crew.root, crew.environment)("doctor", "--try", "--json").json
    assert answer.code == ExitCode.CREDENTIALS
    assert answer.error is not None
    assert answer.error.startswith("no credentials: ")
    (failed,) = [check for check in tried if check["name"] == "call"]
    assert "GOOGLE_APPLICATION_CREDENTIALS" in failed["remedy"]


@pytest.mark.long
@pytest.mark.parametrize("status", [401, 404])
def test_doctor_names_the_variables_of_a_platform(tmp_path: Path, status: int) -> None:
    with crew_on(tmp_path, Platform(as_json({"error": {"message": "no"}}, status)), foundry) as crew:
        tried = Inside(crew.root, crew.environment)("doctor", "--try", "--json").json
    (failed,) = [check for check in tried if check["name"] == "call"]
    named = {401: "ANTHROPIC_FOUNDRY_API_KEY", 404: "ANTHROPIC_FOUNDRY_BASE_URL"}[status]
    assert named in failed["remedy"]
    assert "ANTHROPIC_BASE_URL" not in failed["remedy"]


@pytest.mark.long
def test_doctor_tries_a_platform(tmp_path: Path) -> None:
    server = Platform(sse(start(), *call('{"pattern": "README*"}', name="glob"), end("tool_use"), STOP))
    with crew_on(tmp_path, server, foundry) as crew:
        tried = Inside(crew.root, crew.environment)("doctor", "--try", "--json").json
    marks = {check["name"]: check["mark"] for check in tried}
    assert (marks["address"], marks["call"], marks["usage"]) == ("ok", "ok", "ok"), tried
    assert not {"key", "models"} & marks.keys()


def federated(url: str, folder: Path) -> dict[str, str]:
    """Return an environment of workload identity federation with Anthropic's own API, without a key."""
    (folder / "identity").write_text("a.json.web.token")
    return {
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": "",
        "ANTHROPIC_FEDERATION_RULE_ID": "fdrl_1",
        "ANTHROPIC_ORGANIZATION_ID": "11111111-1111-1111-1111-111111111111",
        "ANTHROPIC_IDENTITY_TOKEN_FILE": str(folder / "identity"),
    }


def profiled(url: str, folder: Path) -> dict[str, str]:
    """Return an environment with a profile of a user who logged in."""
    files = {
        "configs": {"authentication": {"type": "user_oauth"}, "base_url": url},
        "credentials": {"access_token": TOKEN, "type": "oauth_token"},
    }
    for name, content in files.items():
        (folder / name).mkdir()
        (folder / name / "work.json").write_text(json.dumps(content))
        (folder / name / "work.json").chmod(0o600)
    return {
        "ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": "", "ANTHROPIC_CONFIG_DIR": str(folder),
        "ANTHROPIC_PROFILE": "work",
    }  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("environment", [federated, profiled])
def test_an_agent_works_without_a_key(environment: Environment, tmp_path: Path) -> None:
    server = Platform(RUNS, SAYS)
    with crew_on(tmp_path, server, environment) as crew:
        assert crew.run("ann", "code", "run it", unsafe_no_sandbox=True).text == "done"
        kept = b"".join(contents(crew.root).values())
    assert [asked.headers["authorization"] for asked in server.asked] == [f"Bearer {TOKEN}"] * 2
    assert TOKEN.encode() not in kept


@pytest.mark.long
def test_a_failing_exchange_of_tokens_is_tried_again(tmp_path: Path) -> None:
    # The questions about the model come first, and are not asked again.
    server = Platform(SAYS, failures=(as_json({"error": "overloaded"}, 503),) * 5)
    with crew_on(tmp_path, server, federated) as crew:
        assert crew.run("ann", "explore", "look").text == "done"


def test_a_refused_exchange_of_tokens_ends_an_agent(tmp_path: Path) -> None:
    with crew_on(tmp_path, Platform(SAYS, failures=(as_json({"error": "no"}, 401),) * 9), federated) as crew:
        answer = crew.run("ann", "explore", "look")
    assert answer.code == ExitCode.CREDENTIALS
    assert "Token exchange failed" in str(answer.error)


BEDROCK, VERTEX, FOUNDRY = ({name: "1"} for name in env.PLATFORMS)
REGION, PROJECTS = {"CLOUD_ML_REGION": "global"}, {"ANTHROPIC_VERTEX_PROJECT_ID": "p"}
KEY, RESOURCE = {"ANTHROPIC_FOUNDRY_API_KEY": "k"}, {"ANTHROPIC_FOUNDRY_RESOURCE": "r"}


def machine_of(folder: Path, sys_vendor: str = "", product_name: str = "", bios_version: str = "") -> Path:
    """Return a directory in which a machine says who made it."""
    machine = folder / "machine"
    machine.mkdir()
    said = {"sys_vendor": sys_vendor, "product_name": product_name, "bios_version": bios_version}
    for name, value in said.items():
        (machine / name).write_text(f"{value}\n")
    return machine


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (BEDROCK, "no region for Amazon Bedrock: set AWS_REGION"),
        (VERTEX, "no region for Vertex AI: set CLOUD_ML_REGION"),
        ({**VERTEX, **REGION}, "no project for Vertex AI: set ANTHROPIC_VERTEX_PROJECT_ID"),
        (FOUNDRY, "no API key for Microsoft Foundry: set ANTHROPIC_FOUNDRY_API_KEY"),
        ({**BEDROCK, "AWS_REGION": "r"}, "no credentials for Amazon Bedrock: set AWS_PROFILE"),
        ({**VERTEX, **REGION, **PROJECTS}, "no credentials for Vertex AI: run `gcloud auth"),
        (
            {**VERTEX, **REGION, **PROJECTS, "GOOGLE_APPLICATION_CREDENTIALS": "/nowhere.json"},
            "no credentials for Vertex AI",
        ),
        ({**FOUNDRY, **KEY, "ANTHROPIC_FOUNDRY_RESOURCE": "a.example/#"}, "ANTHROPIC_FOUNDRY_RESOURCE is no part of a"),
        ({**BEDROCK, "AWS_REGION": "us east"}, "AWS_REGION is no part of a host name"),
        ({**VERTEX, **PROJECTS, "CLOUD_ML_REGION": "-x"}, "CLOUD_ML_REGION is no part of a host name"),
        ({**BEDROCK, "AWS_REGION": "eu-west-"}, "AWS_REGION is no part of a host name: .* hyphens only between them"),
        ({**FOUNDRY, **KEY}, "neither is set"),
        ({**FOUNDRY, **KEY, **RESOURCE, "ANTHROPIC_FOUNDRY_BASE_URL": "https://a.b"}, "both are set"),
        ({**FOUNDRY, **KEY, "ANTHROPIC_FOUNDRY_BASE_URL": "a.b"}, "ANTHROPIC_FOUNDRY_BASE_URL starts with neither"),
        ({**FOUNDRY, **KEY, **RESOURCE, **VERTEX}, "unset all but one"),
        ({**FOUNDRY, **RESOURCE, "ANTHROPIC_FOUNDRY_API_KEY": "a b"}, "contains a character that no key has"),
    ],
    ids=str,
)
def test_what_a_platform_lacks_is_said_before_a_hire(
    given: dict[str, str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint, "_MACHINE", machine_of(tmp_path, "QEMU"))
    monkeypatch.setattr(endpoint, "_BOTO_FILE", tmp_path / "boto.cfg")
    # A key for Anthropic's API does not help here.
    with pytest.raises(CredentialsError, match=words):
        check_credentials({**given, "ANTHROPIC_API_KEY": "k", "HOME": str(tmp_path)})


def test_where_a_platform_may_find_credentials_nothing_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint, "_MACHINE", machine_of(tmp_path, "QEMU"))
    monkeypatch.setattr(endpoint, "_BOTO_FILE", tmp_path / "boto.cfg")
    google = {**VERTEX, **REGION, **PROJECTS, "HOME": str(tmp_path)}
    amazon = {**BEDROCK, "AWS_REGION": "r", "HOME": str(tmp_path)}
    google_file = ".config/gcloud/application_default_credentials.json"
    for given, file in ((amazon, ".aws/config"), (amazon, "boto.cfg"), (google, google_file)):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
        check_credentials(given)
        (tmp_path / file).unlink()
        with pytest.raises(CredentialsError, match="no credentials"):
            check_credentials(given)
    for given in (
        {**amazon, "AWS_PROFILE": "work"},
        {**amazon, "AWS_EC2_METADATA_SERVICE_ENDPOINT": "http://127.0.0.1:1338"},
        {**google, "CLOUD_RUN_JOB": "nightly"},
    ):
        check_credentials(given)


@pytest.mark.parametrize(
    ("platform", "said"),
    [
        (BEDROCK, {"sys_vendor": "Amazon EC2"}),
        (BEDROCK, {"sys_vendor": "Xen", "product_name": "HVM domU", "bios_version": "4.11.amazon"}),
        (VERTEX, {"sys_vendor": "Google", "product_name": "Google Compute Engine"}),
        (VERTEX, {"product_name": "Google Compute Engine"}),
    ],
)
def test_a_cloud_machine_may_give_credentials(
    platform: dict[str, str], said: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint, "_MACHINE", machine_of(tmp_path, **said))
    check_credentials({**platform, **PROJECTS, **REGION, "AWS_REGION": "r", "HOME": str(tmp_path)})


@pytest.mark.parametrize("lacks", ["sys_vendor", "product_name", "bios_version", None])
def test_a_machine_that_names_no_maker_may_give_credentials(
    lacks: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Containers often hide these files, also on a machine of a cloud."""
    machine = machine_of(tmp_path, "QEMU")
    if lacks is not None:
        (machine / lacks).unlink()
    monkeypatch.setattr(endpoint, "_MACHINE", machine if lacks is not None else tmp_path / "none")
    for platform in (BEDROCK, VERTEX):
        check_credentials({**platform, **PROJECTS, **REGION, "AWS_REGION": "r", "HOME": str(tmp_path)})


@pytest.mark.parametrize(
    ("given", "extra"),
    [
        ({**BEDROCK, "AWS_REGION": "r", "AWS_PROFILE": "p"}, "bedrock"),
        ({**VERTEX, **REGION, **PROJECTS, "K_SERVICE": "s"}, "vertex"),
    ],
)
def test_a_missing_package_is_named_with_its_extra(
    given: dict[str, str], extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_credentials(given)
    for missing in ("no.such.package", "email.no_such_part"):
        monkeypatch.setitem(endpoint._PACKAGES, extra, missing)
        with pytest.raises(CredentialsError, match=rf"its extra `{extra}` \(in a clone: pip install '\.\[{extra}\]'\)"):
            check_credentials(given)
    # A key needs no signature.
    check_credentials({**BEDROCK, "AWS_REGION": "r", "AWS_BEARER_TOKEN_BEDROCK": "k"})


@pytest.mark.parametrize(
    "given",
    [
        {**BEDROCK, "AWS_REGION": "eu-west-1"},
        {**BEDROCK, "AWS_DEFAULT_REGION": "eu-west-1"},
        *({**VERTEX, **PROJECTS, "CLOUD_ML_REGION": region} for region in ("global", "us", "eu", "us-east5")),
        {**FOUNDRY, **KEY, **RESOURCE},
        {**FOUNDRY, **KEY, "ANTHROPIC_FOUNDRY_BASE_URL": "https://gateway.example/a/"},
    ],
    ids=str,
)
def test_the_address_is_the_one_that_the_sdk_uses(given: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"ANTHROPIC_BASE_URL": "http://127.0.0.1:9", **given}.items():
        monkeypatch.setenv(name, value)
    assert str(make_client().base_url).rstrip("/") == endpoint.base_url(os.environ)


def test_no_platform_is_used_where_the_team_has_another_model() -> None:
    assert env.platform({**BEDROCK, "CREWBOARD_OFFLINE": "1"}) is None
    assert env.platform({"CLAUDE_CODE_USE_BEDROCK": "0", "CLAUDE_CODE_USE_VERTEX": "false"}) is None
    assert env.platforms(env.without_api({**BEDROCK, **VERTEX, **FOUNDRY})) == {}


def test_models_of_a_platform_are_known_by_their_ids() -> None:
    environment = {**BEDROCK, "ANTHROPIC_DEFAULT_OPUS_MODEL": "eu.anthropic.claude-opus-5-5"}
    named = [models.resolve(name, environment) for name in ("haiku", "opus", "claude-opus-4-8", "qwen3")]
    assert named == ["anthropic.claude-haiku-5-5", "eu.anthropic.claude-opus-5-5", "anthropic.claude-opus-4-8", "qwen3"]
    can = models.ask(named[1], environment)
    assert can is not None
    assert can.efforts == models.EFFORTS
    assert "no tools for the web" in str(models.refusal(named[1], can, web=True))


def test_secrets_of_a_platform_are_known() -> None:
    given = {"AWS_BEARER_TOKEN_BEDROCK": SECRET, "AWS_SECRET_ACCESS_KEY": "x", "AWS_SESSION_TOKEN": "x",
             "AWS_ACCESS_KEY_ID": "x", "ANTHROPIC_FOUNDRY_API_KEY": "x", "AZURE_CLIENT_SECRET": "x"}  # fmt: skip
    assert all(map(redaction.is_secret, given))
    files = {"GOOGLE_APPLICATION_CREDENTIALS": "/a", "AWS_SHARED_CREDENTIALS_FILE": "/b", "CLOUDSDK_CONFIG": "/c"}
    assert {Path(name) for name in files.values()} <= set(endpoint.credential_files(files))


def test_files_that_profiles_name_are_secrets(tmp_path: Path) -> None:
    (tmp_path / "configs").mkdir()
    for name, content in {
        "work": {"authentication": {"credentials_path": "/tokens.json"}},
        "ci": {"authentication": {"type": "oidc_federation", "identity_token": {"source": "file", "path": "/jwt"}}},
        "odd": ["authentication"],
        "none": {"authentication": None},
    }.items():
        (tmp_path / "configs" / f"{name}.json").write_text(json.dumps(content))
    (tmp_path / "configs/broken.json").write_text("{")
    found = endpoint.credential_files({"ANTHROPIC_CONFIG_DIR": str(tmp_path)})
    assert set(found) == {tmp_path / "credentials", Path("/jwt"), Path("/tokens.json")}
