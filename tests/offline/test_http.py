"""The loopback server ends as orderly as it began."""

import asyncio
import gc
import socket
from contextlib import ExitStack

import pytest

from crewboard.offline import http
from tests.matrix import default


async def _say_much(incoming: http.Incoming, client: http.Client) -> None:
    await client.begin_stream({})
    while True:
        client.write(b"x" * 100_000)
        await client.flush()


@pytest.mark.long
@pytest.mark.parametrize("turns", default(range(8), 1, 4))
@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\nHost: here\r\n\r\n"], ids=["silent", "deaf"])
def test_it_leaves_no_socket_open_however_young_a_connection_is(turns: int, said: bytes) -> None:
    async def serve(clients: ExitStack) -> None:
        async with http.listening(_say_much) as url:
            host, port = url.removeprefix("http://").split(":")
            for _ in range(4):
                client = clients.enter_context(socket.create_connection((host, int(port))))
                client.sendall(said)
            for _ in range(turns):
                await asyncio.sleep(0)

    with ExitStack() as clients:
        asyncio.run(serve(clients))
        gc.collect()  # a socket that is still open is reported, and fails the test
