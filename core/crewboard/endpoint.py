"""The server of the Messages API that an environment chooses: its address, credentials, keys, proxy and problems.

The SDK reads all this by itself, in each worker. It is read here without the SDK, which takes a second to load, so that
a command can report a mistake before it starts a worker.
"""

import contextlib
import io
import json
import re
import time
import urllib.parse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crewboard import env
from crewboard.errors import how_to_install

if TYPE_CHECKING:
    import ipaddress
    import socket
    from urllib.request import OpenerDirector, ProxyHandler

BASE_URL = "ANTHROPIC_BASE_URL"
KEYS = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN")
"""The variables that hold a credential; the SDK sends the first one that is set."""

API_HOST = "api.anthropic.com"

ANY_TEXT = "ANTHROPIC_AUTH_TOKEN=local"
"""A setting for a server that asks for no key: the SDK sends no request without a key."""

VERSION = "2026-10-21"
"""The version of the API that the SDK asks for. In it, keys of both variables are sent as bearer tokens."""

_PLATFORM_NAMES = {"bedrock": "Amazon Bedrock", "vertex": "Vertex AI", "foundry": "Microsoft Foundry"}

_PLATFORM_URLS = {
    "bedrock": "ANTHROPIC_BEDROCK_MANTLE_BASE_URL",
    "vertex": "ANTHROPIC_VERTEX_BASE_URL",
    "foundry": "ANTHROPIC_FOUNDRY_BASE_URL",
}
_PLATFORM_KEYS: dict[str, tuple[str, ...]] = {
    "bedrock": ("AWS_BEARER_TOKEN_BEDROCK", "ANTHROPIC_AWS_API_KEY"),
    "vertex": (),
    "foundry": ("ANTHROPIC_FOUNDRY_API_KEY",),
}
"""The variables from which the SDK's client for a platform takes its address and its key (version 2.11)."""

_PACKAGES = {"bedrock": "boto3", "vertex": "google.auth"}
"""The packages with which the SDK's client finds other credentials; crewboard's extra is called like the platform."""

_CREDENTIAL_VARIABLES = {
    "bedrock": (
        "AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_WEB_IDENTITY_TOKEN_FILE", "BOTO_CONFIG",
        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI",
        "AWS_EC2_METADATA_SERVICE_ENDPOINT",
    ),
    "vertex": (
        "GCE_METADATA_HOST", "GCE_METADATA_ROOT", "GCE_METADATA_IP", "KUBERNETES_SERVICE_HOST", "K_SERVICE",
        "CLOUD_RUN_JOB", "APPENGINE_RUNTIME",
    ),
}  # fmt: skip
"""Variables by which the packages in `_PACKAGES` may find credentials, without those that hold the path of a file."""

_CREDENTIAL_HINTS = {
    "bedrock": "set AWS_PROFILE, AWS_ACCESS_KEY_ID or AWS_BEARER_TOKEN_BEDROCK",
    "vertex": "run `gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS to a file",
    "foundry": "set ANTHROPIC_FOUNDRY_API_KEY",
}
"""Advice on giving credentials, by platform."""

_BOTO_FILE = Path("/etc/boto.cfg")
_MACHINE = Path("/sys/class/dmi/id")
_MACHINE_FILES = ("sys_vendor", "product_name", "bios_version")
_VENDORS = {"bedrock": "amazon", "vertex": "google"}
"""The files that name the maker of a machine, and the makers whose machines give credentials to their
programs, by platform.

EC2 on Xen names Amazon only in the version of its BIOS.
"""

_HOST_PARTS = {
    "bedrock": ("AWS_REGION", "AWS_DEFAULT_REGION"),
    "vertex": ("CLOUD_ML_REGION",),
    "foundry": ("ANTHROPIC_FOUNDRY_RESOURCE",),
}
_HOST_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
"""The form of the variables in `_HOST_PARTS`, which become part of a platform's host name. With another form, a key
could reach another host.
"""

_GOOGLE = "aiplatform.googleapis.com/v1"
_GOOGLE_URLS = {
    "global": f"https://{_GOOGLE}",
    "us": "https://aiplatform.us.rep.googleapis.com/v1",
    "eu": "https://aiplatform.eu.rep.googleapis.com/v1",
}

_SECRET_FILES = (
    "ANTHROPIC_IDENTITY_TOKEN_FILE", "AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE", "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", "GOOGLE_APPLICATION_CREDENTIALS", "CLOUDSDK_CONFIG",
    "AZURE_FEDERATED_TOKEN_FILE", "AZURE_CONFIG_DIR",
)  # fmt: skip
"""Variables with the path of a file or folder of credentials."""

_FEDERATION = ("ANTHROPIC_FEDERATION_RULE_ID", "ANTHROPIC_ORGANIZATION_ID")
_IDENTITY_TOKEN = ("ANTHROPIC_IDENTITY_TOKEN_FILE", "ANTHROPIC_IDENTITY_TOKEN")

_SENDABLE = r"[!-~]+"
"""The form of a key that an HTTP header can carry."""

_PRIVATE_NAMES = (".localhost", ".local", ".lan", ".home", ".internal", ".home.arpa")

_ADDED = r"(/v1(?:/messages)?)/*$"
"""The path that each request adds to the address of a server, at the end of an address."""

_SCHEME = r"(?i)https?://"

_REDIRECTS = frozenset({301, 302, 303, 307, 308})

_MOST_TAG = 20
"""Characters at the beginning of an answer in which the first tag of a page is looked for."""

_MOST = 1_000_000
"""Most bytes of an answer that are read."""


def base_url(environment: Mapping[str, str]) -> str:
    """Return the address of the server, without a slash at its end.

    Without a variable that sets an address, return that of Anthropic's API, or the default one of the chosen cloud
    platform.
    """
    if given := environment.get(url_variable(environment)):
        return given.rstrip("/")
    match env.platform(environment):
        case None:
            return f"https://{API_HOST}"
        case "bedrock":
            return f"https://bedrock-mantle.{_aws_region(environment)}.api.aws/anthropic"
        case "vertex":
            region = environment.get("CLOUD_ML_REGION", "")
            return _GOOGLE_URLS.get(region, f"https://{region}-{_GOOGLE}")
    return f"https://{environment.get('ANTHROPIC_FOUNDRY_RESOURCE', '')}.services.ai.azure.com/anthropic"


def _aws_region(environment: Mapping[str, str]) -> str:
    return environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or ""


def platform_problem(environment: Mapping[str, str]) -> str | None:  # noqa: PLR0911  one for each thing
    """Return what the chosen cloud platform lacks, and what to do; None if nothing is known to be missing.

    None as well without a cloud platform. Credentials of AWS and Google come from many places, so whether they are
    right is known only at their first use.
    """
    chosen, platform = env.platforms(environment), env.platform(environment)
    if platform is None:
        return None
    if len(chosen) > 1:
        return f"{' and '.join(chosen)} are set: unset all but one"
    named, has_url, has_key = (
        _PLATFORM_NAMES[platform], bool(environment.get(_PLATFORM_URLS[platform])), bool(keys(environment)),
    )  # fmt: skip
    match platform:
        case "bedrock" if not _aws_region(environment) and not (has_url and has_key):
            return f"no region for {named}: set AWS_REGION"
        case "vertex" if not environment.get("CLOUD_ML_REGION"):
            return f"no region for {named}: set CLOUD_ML_REGION, such as global"
        case "vertex" if not environment.get("ANTHROPIC_VERTEX_PROJECT_ID"):
            return f"no project for {named}: set ANTHROPIC_VERTEX_PROJECT_ID"
        case "foundry" if not has_key:
            return f"no API key for {named}: set ANTHROPIC_FOUNDRY_API_KEY"
        case "foundry" if has_url == bool(environment.get("ANTHROPIC_FOUNDRY_RESOURCE")):
            which = "both are set" if has_url else "neither is set"
            return f"the address of {named}: set ANTHROPIC_FOUNDRY_RESOURCE or ANTHROPIC_FOUNDRY_BASE_URL; {which}"
    for name in _HOST_PARTS[platform]:
        if (given := environment.get(name)) and not re.fullmatch(_HOST_LABEL, given):
            return f"{name} is no part of a host name: use letters and digits, and hyphens only between them"
    if has_key:
        return None
    # Imported here, as below, because every command loads this module.
    import importlib.util

    package = _PACKAGES[platform]
    # Of a part of a package, the package above it is imported, if there is one.
    if any(importlib.util.find_spec(each) is None for each in (package.partition(".")[0], package)):
        return f"the package {package} is missing, which {named} needs: {how_to_install(platform)}"
    if not _may_have_credentials(platform, environment):
        return f"no credentials for {named}: {_CREDENTIAL_HINTS[platform]}"
    return None


def _may_have_credentials(platform: str, environment: Mapping[str, str]) -> bool:
    """Return True unless it is certain that the package of a platform finds no credentials."""
    if any(map(environment.get, _CREDENTIAL_VARIABLES[platform])):
        return True
    home = Path(environment.get("HOME") or Path.home())
    if platform == "bedrock":
        named = {"AWS_SHARED_CREDENTIALS_FILE": ".aws/credentials", "AWS_CONFIG_FILE": ".aws/config"}
        files = [Path(environment.get(name) or home / usual) for name, usual in named.items()]
        files += [home / ".boto", _BOTO_FILE]
    elif given := environment.get("GOOGLE_APPLICATION_CREDENTIALS"):
        return _is_file(Path(given))
    else:
        folder = Path(environment.get("CLOUDSDK_CONFIG") or home / ".config" / "gcloud")
        files = [folder / "application_default_credentials.json"]
    if any(_is_file(each.expanduser()) for each in files):
        return True
    # The machine may say that another vendor made it. In a container it may say nothing.
    try:
        said = [(_MACHINE / name).read_text(encoding="utf-8", errors="replace") for name in _MACHINE_FILES]
    except OSError:
        return True
    return _VENDORS[platform] in " ".join(said).lower()


def how_to_give_credentials(environment: Mapping[str, str]) -> str | None:
    """Return how to give credentials for the chosen cloud platform; None if none is chosen."""
    platform = env.platform(environment)
    return _CREDENTIAL_HINTS[platform] if platform is not None else None


def url_variable(environment: Mapping[str, str]) -> str:
    """Return the name of the variable that holds the address of the server."""
    platform = env.platform(environment)
    return BASE_URL if platform is None else _PLATFORM_URLS[platform]


def host_and_port(url: str) -> str:
    """Return `HOST:PORT` of an address, without a user and a password; the address itself if it names no host."""
    parts = urllib.parse.urlsplit(url)
    if not parts.hostname:
        return url
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{host}:{parts.port or (443 if parts.scheme == 'https' else 80)}"


def place(url: str, environment: Mapping[str, str]) -> str:
    """Return what a worker with this environment calls the server at an address: its host and port, and if offline."""
    return f"the offline model at {host_and_port(url)}" if env.is_offline(environment) else host_and_port(url)


def is_anthropic(url: str) -> bool:
    """Return True if an address is that of Anthropic's own API."""
    return urllib.parse.urlsplit(url).hostname == API_HOST


def is_page(body: object) -> bool:
    """Return True if the body of an answer is the text of a web page."""
    return isinstance(body, str) and body.lstrip()[:_MOST_TAG].lower().startswith(("<!doctype html", "<html"))


def is_loopback(url: str) -> bool:
    """Return True if an address is a loopback address of this machine, by its number or its name."""
    host = urllib.parse.urlsplit(url).hostname or ""
    return host == "localhost" or host.endswith(".localhost") or ((ip := _ip(host)) is not None and ip.is_loopback)


def is_private(url: str) -> bool:
    """Return True if an address is of this machine or of a private network, by its number or its name."""
    host = urllib.parse.urlsplit(url).hostname or ""
    if (ip := _ip(host)) is not None:
        return ip.is_private
    return "." not in host or host.endswith(_PRIVATE_NAMES)


def at_server(environment: Mapping[str, str], server: str | None) -> Mapping[str, str]:
    """Return the environment for workers of a team whose settings name a server, with a stand-in for the key.

    It is `environment` unchanged if `server` is None, or if the environment chooses a server itself: then its keys
    belong to that server. Otherwise all variables of the API are removed, so that no key of Anthropic's API reaches
    another server. An address that is not private is not used, because the settings of a team may come from another
    user.
    """
    if server is None or environment.get(BASE_URL) or env.platforms(environment) or not is_private(server):
        return environment
    return {**env.without_api(environment), BASE_URL: server, **dict([ANY_TEXT.split("=")])}


def _ip(host: str) -> "ipaddress.IPv4Address | ipaddress.IPv6Address | None":
    # Imported here, as below, because every command loads this module.
    import ipaddress

    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def address_problem(environment: Mapping[str, str]) -> str | None:
    """Return what is wrong with the address of the server in an environment, and what to do.

    None if nothing is wrong, or if the environment names no address.
    """
    platform, name = env.platform(environment), url_variable(environment)
    given = environment.get(name)
    if given is None:
        return None
    problem = url_problem(given)
    if not given.strip():
        usual = "Anthropic's own API" if platform is None else _PLATFORM_NAMES[platform]
        problem = f"is set and empty: unset it for {usual}, or set the address of your server"
    elif problem is None and platform is None and "?" in given:
        problem = f"has a query, behind which no path can be added: set it to {given.partition('?')[0].rstrip('/')}"
    elif problem is None and platform is None and (found := re.search(_ADDED, given)) is not None:
        problem = f"ends in {found[1]}, which is added to each request: set it to {given[: found.start()]}"
    return f"{name} {problem}" if problem is not None else None


def url_problem(url: str) -> str | None:
    """Return why a text is not the address of a server, and what to do; None if it is one."""
    has_scheme, rest = re.match(_SCHEME, url) is not None, url.rpartition("//")[2]
    try:
        parts = urllib.parse.urlsplit(url if has_scheme else f"http://{rest}")
        host, _ = parts.hostname, parts.port
    except ValueError:
        host = None
    if not host:
        return "is no address of a server: it looks like http://127.0.0.1:11434"
    if not has_scheme:
        kind = "http" if is_private(f"http://{rest}") else "https"
        return f"starts with neither http:// nor https://: did you mean {kind}://{rest}?"
    return None


def keys(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the API keys that an environment sets, by the names of their variables; the SDK sends the first one."""
    platform = env.platform(environment)
    names = KEYS if platform is None else _PLATFORM_KEYS[platform]
    return {name: environment[name] for name in names if environment.get(name)}


def key_problem(environment: Mapping[str, str]) -> str | None:
    """Return which variable has a key that cannot be sent, and why; None if all keys can be sent."""
    for name, key in keys(environment).items():
        if not re.fullmatch(_SENDABLE, key):
            return f"{name} contains a character that no key has, such as a space or a line break; set it again"
    return None


def credential(environment: Mapping[str, str]) -> str | None:
    """Return from where the SDK takes its credentials, in a few words; None if it finds none.

    The order is that of the SDK (`anthropic.lib.credentials.default_credentials`, version 2.11).
    """
    if found := next(iter(keys(environment)), None):
        return found
    if (platform := env.platform(environment)) is not None:
        profile = environment.get("AWS_PROFILE")
        aws = f"the profile {profile} (AWS_PROFILE)" if profile else "the credentials that AWS's SDK finds"
        return {"bedrock": aws, "vertex": "Google's application default credentials"}.get(platform)
    if environment.get("ANTHROPIC_PROFILE"):
        return f"the profile {environment['ANTHROPIC_PROFILE']} (ANTHROPIC_PROFILE)"
    if all(map(environment.get, _FEDERATION)) and any(map(environment.get, _IDENTITY_TOKEN)):
        return "workload identity federation (ANTHROPIC_FEDERATION_RULE_ID)"
    folder = profiles_folder(environment)
    try:
        named = (folder / "active_config").read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        named = ""
    if environment.get("ANTHROPIC_CONFIG_DIR") or named or _is_file(folder / "configs" / "default.json"):
        return f"the profile {named or 'default'} in {folder}"
    has_header = {"authorization", "x-api-key"} & env.custom_headers(environment).keys()
    return "ANTHROPIC_CUSTOM_HEADERS" if has_header else None


def profiles_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder in which the SDK looks for profiles and their credentials."""
    if given := environment.get("ANTHROPIC_CONFIG_DIR"):
        return Path(given)
    home = environment.get("HOME")
    return (Path(home) if home else Path.home()) / ".config" / "anthropic"


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        return False


def credential_files(environment: Mapping[str, str]) -> list[Path]:
    """Return the paths of files and folders in which the SDK looks for secrets; they may not exist."""
    folder = profiles_folder(environment)
    found: list[object] = []
    for path in folder.glob("configs/*.json"):
        with contextlib.suppress(OSError, ValueError, RecursionError, AttributeError):
            # One that is no profile lacks these methods.
            how = json.loads(path.read_bytes()).get("authentication")
            found += [how.get("credentials_path"), (how.get("identity_token") or {}).get("path")]
    named = [*(environment.get(name) for name in _SECRET_FILES), *(each for each in found if isinstance(each, str))]
    return [folder / "credentials", *(Path(each).expanduser() for each in named if each)]


def shadowed_key(environment: Mapping[str, str]) -> str | None:
    """Return that both keys are set for a server that is not Anthropic's, which is sent, and how to send the other.

    None if at most one key is set, or on a cloud platform. The key for Anthropic's API often stays set in a shell in
    which the token of a gateway is added.
    """
    url = base_url(environment)
    if len(keys(environment)) < len(KEYS) or is_anthropic(url) or env.platform(environment) is not None:
        return None
    sent, unused = KEYS
    return (
        f"{sent} and {unused} are both set: {host_and_port(url)} gets {sent}, and {unused} is not used; "
        f"`unset {sent}` to send the other"
    )


def proxy(environment: Mapping[str, str], url: str) -> str | None:
    """Return the address of the proxy through which `url` is reached; None if there is none.

    The variables are those that the SDK's HTTP client reads. This machine's own addresses are reached without a proxy,
    which may run on another machine and would look for the server on that one.
    """
    if is_loopback(url):
        return None
    parts = urllib.parse.urlsplit(url)
    host = parts.hostname or ""
    for entry in _either(environment, "no_proxy").split(","):
        if entry.strip() == "*" or _is_exempt(host, entry.strip().lower()):
            return None
    found = _either(environment, f"{parts.scheme}_proxy") or _either(environment, "all_proxy")
    return (found if "://" in found else f"http://{found}") if found else None


def _either(environment: Mapping[str, str], name: str) -> str:
    return environment.get(name) or environment.get(name.upper()) or ""


def _is_exempt(host: str, entry: str) -> bool:
    """Return True if an entry of NO_PROXY covers `host`: as a name, the end of a name, a number, or a network."""
    import ipaddress

    ip = _ip(host)
    if not entry or ip is None:
        name = entry.removeprefix("*")
        return bool(name) and (host == name or host.endswith(name if name.startswith(".") else f".{name}"))
    try:
        return ip in ipaddress.ip_network(entry.strip("[]"), strict=False)
    except ValueError:
        return False


class RedirectedError(ValueError):
    """An error of a server that redirects a request to `url`, which is kept without its query.

    `base` is the address of the server to use instead: `url` without the path that was asked for. None if `url` does
    not end in that path, or if `base` would be the address that was asked.
    """

    def __init__(self, status: int, asked: str, path: str, url: str) -> None:
        self.status = status
        self.url = url.partition("?")[0]
        base = self.url.removesuffix(path.partition("?")[0]).rstrip("/")
        self.base = base if base not in (self.url, asked) else None
        super().__init__(f"{asked} redirects to {self.url}")


def get(environment: Mapping[str, str], path: str, timeout: float) -> tuple[int, Any]:
    """Return the status and the body of the server's answer to a GET request for `path`.

    The body is a JSON value, the first characters of a web page, or None if it is neither. The whole answer, including
    its headers, must have come `timeout` seconds after the call. To connect to each address of the server, and to agree
    on TLS, may each take as long.

    The request carries the first key in the environment, if there is one, and its custom headers, but no credentials
    that the SDK fetches from elsewhere; on a cloud platform it carries neither.

    Raises:
        OSError: The server does not answer.
        RedirectedError: The server redirects the request, which is not followed.
        ValueError: The address is invalid, or the answer is not HTTP.
    """
    # Imported here because few commands ask. The SDK would take a second to import.
    import http.client
    import urllib.error
    import urllib.request

    end = time.monotonic() + timeout
    url = base_url(environment)
    if not re.match(_SCHEME, url):
        raise ValueError(f"{url} starts with neither http:// nor https://")
    headers = {"anthropic-version": VERSION}
    if env.platform(environment) is None:
        if key := next(iter(keys(environment).values()), None):
            headers["authorization"] = f"Bearer {key}"
        headers |= env.custom_headers(environment)
    through = proxy(environment, url)
    proxies = urllib.request.ProxyHandler({urllib.parse.urlsplit(url).scheme: through} if through else {})
    request = urllib.request.Request(f"{url}{path}", headers=headers)  # noqa: S310  the user's own address
    try:
        with _opener(proxies, end).open(request, timeout=timeout) as answer:
            return answer.status, _json(answer.read(_MOST))
    except urllib.error.HTTPError as error:
        with error:
            to = error.headers.get("location")
            if to and error.code in _REDIRECTS:
                raise RedirectedError(error.code, url, path, urllib.parse.urljoin(f"{url}{path}", to)) from error
            return error.code, _json(error.read(_MOST))
    except http.client.HTTPException as error:
        raise ValueError(f"the answer is no HTTP: {type(error).__name__}") from error


class _DeadlineReader(io.RawIOBase):
    """A reader of a socket until a time on the monotonic clock. A socket's own timeout begins anew with each byte."""

    def __init__(self, sock: "socket.socket", raw: io.RawIOBase, end: float) -> None:
        self._sock, self._raw, self._end = sock, raw, end

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:  # noqa: ANN401  any buffer
        if (left := self._end - time.monotonic()) <= 0:
            raise TimeoutError("the answer does not end")
        self._sock.settimeout(left)
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


def _opener(proxies: "ProxyHandler", end: float) -> "OpenerDirector":
    """Return an opener of requests through `proxies` that reads no answer after the monotonic time `end`."""
    import http.client
    import urllib.request

    class Answer(http.client.HTTPResponse):
        """An answer of the server, or of a proxy that is asked to connect to the server."""

        def __init__(self, sock: "socket.socket", *given: Any, **named: Any) -> None:
            super().__init__(sock, *given, **named)
            self.fp = io.BufferedReader(_DeadlineReader(sock, self.fp.detach(), end))

    class HttpConnection(http.client.HTTPConnection):
        response_class = Answer

    class HttpsConnection(http.client.HTTPSConnection):
        response_class = Answer

    class DeadlineHandler(urllib.request.HTTPHandler, urllib.request.HTTPSHandler):
        def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
            return self.do_open(HttpConnection, req)

        def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
            return self.do_open(HttpsConnection, req)

    class NoRedirects(urllib.request.HTTPRedirectHandler):
        """A handler that follows no redirect, because the key would go to another address."""

        def redirect_request(self, *_: object) -> None:
            return None

    return urllib.request.build_opener(NoRedirects, proxies, DeadlineHandler)


def _json(data: bytes) -> Any:  # noqa: ANN401  any JSON value
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        # A page says that the address is wrong.
        start = data.lstrip()[:_MOST_TAG].decode("utf-8", "replace")
        return start if is_page(start) else None
