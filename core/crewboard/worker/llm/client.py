"""The SDK's client for the API, for another server with the Messages API, or for a cloud platform.

It retries nothing: `Model.reply` in `model.py` does, and `refusals.py` decides which failures.
"""

import os
import ssl
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import anthropic
import httpx2
from anthropic import AsyncAnthropic, DefaultAsyncHttpxClient

from crewboard import env
from crewboard.worker.llm.blocks import ReplyStream

PROGRESS_TIMEOUT = 120.0
"""Seconds after which a call is cancelled and repeated if the server sent nothing.
`CREWBOARD_PROGRESS_TIMEOUT` overrides it.
"""

_CONNECT_TIMEOUT = 15.0
_TRUST_VARIABLES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "SSLKEYLOGFILE")


def make_client(*, api_key: str | None = None, base_url: str | None = None) -> AsyncAnthropic:
    """Return a client without retries of its own. Key and address default to those of the environment.

    If no `base_url` is given and the environment chooses a cloud platform, it is the SDK's client for that platform,
    which has the same `messages`.
    """
    timeout = anthropic.Timeout(PROGRESS_TIMEOUT, connect=_CONNECT_TIMEOUT)
    # No proxy for this machine's own addresses: `endpoint.proxy` says the same.
    direct = {f"all://{host}": None for host in ("127.0.0.0/8", "localhost", "*.localhost", "[::1]")}
    # The TLS context that the SDK's own client would use. Reading the machine's certificates takes 25–50 ms and 5 MiB.
    # A worker that was forked from a prefork server reuses the server's context, as long as the environment and the
    # files are the same.
    paths = ssl.get_default_verify_paths()
    times = [Path(path).stat().st_mtime_ns for path in (paths.cafile, paths.capath) if path]
    context = _cached_context(*map(os.environ.get, _TRUST_VARIABLES), *times)
    http = DefaultAsyncHttpxClient(verify=context, timeout=timeout, mounts=direct)
    common: dict[str, Any] = {"max_retries": 0, "timeout": timeout, "http_client": http}
    client: Any
    match env.platform() if base_url is None else None:
        case "bedrock":
            client = anthropic.AsyncAnthropicBedrockMantle(**common)
        case "vertex":
            # Later the SDK would look for it in vain: `env.forget_api_variables`.
            client = anthropic.AsyncAnthropicVertex(project_id=os.environ["ANTHROPIC_VERTEX_PROJECT_ID"], **common)
        case "foundry":
            client = anthropic.AsyncAnthropicFoundry(**common)
        case _:
            return AsyncAnthropic(api_key=api_key, base_url=base_url, **common)
    return cast("AsyncAnthropic", client)


@lru_cache(maxsize=1)
def _cached_context(*_key: str | int | None) -> ssl.SSLContext:
    return httpx2.create_ssl_context()


async def rehearse(client: AsyncAnthropic) -> None:
    """Make the calls that a worker makes, so that the SDK builds before a fork what it builds on first use.

    The client must be one of a server that answers these calls without cost.
    """
    await client.get("/v1/models/m", cast_to=httpx2.Response)
    prompt = [{"role": "user", "content": "."}]
    request: dict[str, Any] = {"model": "m", "max_tokens": 1, "messages": prompt}
    stream = ReplyStream((await client.messages.create(**request, stream=True)).response)
    async for _ in stream.pieces():
        pass
    await stream.response.aclose()
