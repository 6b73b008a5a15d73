"""The SDK's client as workers use it: no retries of its own, patience for long replies, trust loaded once."""

import os
import ssl
from functools import lru_cache
from pathlib import Path

import anthropic
import httpx2
from anthropic import AsyncAnthropic, DefaultAsyncHttpxClient

SILENCE = 120.0
"""Seconds without a byte after which a call is given up and made again."""

_CONNECT = 15.0

_TRUST = ("SSL_CERT_FILE", "SSL_CERT_DIR", "SSLKEYLOGFILE")
"""The environment's say in whom to trust."""


def make_client(*, api_key: str | None = None, base_url: str | None = None) -> AsyncAnthropic:
    """A client with the key and address that the environment holds, unless they are given."""
    timeout = anthropic.Timeout(SILENCE, connect=_CONNECT)
    http = DefaultAsyncHttpxClient(verify=_trust(), timeout=timeout)
    return AsyncAnthropic(api_key=api_key, base_url=base_url, max_retries=0, timeout=timeout, http_client=http)


def _trust() -> ssl.SSLContext:
    """The TLS context of the SDK's own client.

    Reading the machine's certificates takes 25–50 ms and 5 MiB, so that a worker that was forked from a warm parent has
    the parent's context, as long as the environment and the files say the same.
    """
    paths = ssl.get_default_verify_paths()
    times = [Path(path).stat().st_mtime_ns for path in (paths.cafile, paths.capath) if path]
    return _context(*map(os.environ.get, _TRUST), *times)


@lru_cache(maxsize=1)
def _context(*_key: str | int | None) -> ssl.SSLContext:
    return httpx2.create_ssl_context()
