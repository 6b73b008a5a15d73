"""Headless Chromium, driven through its DevTools protocol (https://chromedevtools.github.io/devtools-protocol)."""

import asyncio
import base64
import itertools
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crewboard.records import JsonValue
from tests.system import need_program

if TYPE_CHECKING:
    import aiohttp

SECONDS = 60.0
"""How long a browser on a busy machine may take for one step."""


def new_session(**options: Any) -> "aiohttp.ClientSession":
    """Return a new client of HTTP."""
    # Here, because each runner of tests would load it with this module.
    import aiohttp

    return aiohttp.ClientSession(**options)


class Page:
    """The one page of a browser: what it shows, and keys pressed on it."""

    def __init__(self, socket: "aiohttp.ClientWebSocketResponse") -> None:
        self._socket = socket
        self._ids = itertools.count(1)

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Return the result of a command of the DevTools protocol."""
        number = next(self._ids)
        await self._socket.send_json({"id": number, "method": method, "params": params})
        while True:
            answer = await self._socket.receive_json(timeout=SECONDS)
            if answer.get("id") == number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result

    async def evaluate(self, script: str) -> JsonValue:
        """Return the value of a JavaScript expression."""
        found = await self.call("Runtime.evaluate", expression=script, returnByValue=True)
        value: JsonValue = found["result"].get("value")
        return value

    async def until(self, script: str) -> None:
        """Wait until a JavaScript expression is true, on whichever page is open then."""
        async with asyncio.timeout(SECONDS):
            while not await self.evaluate(script):  # noqa: ASYNC110  an event of one page does not outlive it
                await asyncio.sleep(0.1)

    async def press(self, key: str) -> None:
        """Press a key that types one character."""
        await self.call("Input.dispatchKeyEvent", type="keyDown", text=key, key=key, unmodifiedText=key)
        await self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    async def picture(self, file: Path) -> None:
        """Save what the page shows as a PNG."""
        file.write_bytes(base64.b64decode((await self.call("Page.captureScreenshot"))["data"]))


@asynccontextmanager
async def open_page(profile: Path) -> AsyncIterator[Page]:
    """Start a browser with an empty page, and end it afterwards."""
    need_program("chromium")
    program = shutil.which("chromium") or ""
    options = [
        "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
        "--remote-debugging-port=0", f"--user-data-dir={profile}", "--window-size=1200,700",
    ]  # fmt: skip
    process = await asyncio.create_subprocess_exec(
        program, *options, "about:blank", stderr=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL
    )
    try:
        assert process.stderr is not None
        async with asyncio.timeout(SECONDS):
            found = None
            while found is None:
                line = (await process.stderr.readline()).decode(errors="replace")
                assert line, "the browser ended"
                found = re.search(r"ws://([^/]+)/", line)
        async with new_session() as session:
            async with session.get(f"http://{found[1]}/json/list") as answer:
                page = next(each for each in await answer.json() if each["type"] == "page")
            async with session.ws_connect(page["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                yield Page(socket)
    finally:
        process.terminate()
        await process.communicate()
