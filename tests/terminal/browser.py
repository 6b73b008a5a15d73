"""Headless Chromium, driven through its DevTools protocol (https://chromedevtools.github.io/devtools-protocol)."""

import asyncio
import base64
import itertools
import json
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyte

from crewboard.records.base import JsonValue
from tests.system import need_program
from tests.terminal.screen import Screen

if TYPE_CHECKING:
    import aiohttp

SECONDS = 60.0
"""The time that a browser on a busy machine may take for one step."""


RECORD = """
window.painted = "";
window.WebSocket = class extends WebSocket {
  constructor(address, protocols) {
    super(address, protocols);
    window.size = ["width", "height"].map((side) => Number(new URL(address).searchParams.get(side)));
    this.addEventListener("message", ({ data }) => {
      if (typeof data != "string") for (const byte of new Uint8Array(data)) painted += String.fromCharCode(byte);
    });
  }
};
"""
"""Keeps what the page's terminal is given to paint. It paints on a canvas, which has no text."""


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
        answer = await self._ask(method, params)
        assert "error" not in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    async def _ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        number = next(self._ids)
        await self._socket.send_json({"id": number, "method": method, "params": params})
        while True:
            answer: dict[str, Any] = await self._socket.receive_json(timeout=SECONDS)
            if answer.get("id") == number:
                return answer

    async def evaluate(self, script: str) -> JsonValue:
        """Return the value of a JavaScript expression."""
        answer = await self._ask("Runtime.evaluate", {"expression": script, "returnByValue": True})
        if "error" in answer:
            assert answer["error"]["message"] == "Inspected target navigated or closed", answer
            return await self.evaluate(script)
        value: JsonValue = answer["result"]["result"].get("value")
        return value

    async def until(self, script: str) -> None:
        """Wait until a JavaScript expression is true, on whichever page is open then."""
        async with asyncio.timeout(SECONDS):
            while not await self.evaluate(script):  # noqa: ASYNC110  an event of one page does not outlive it
                await asyncio.sleep(0.1)

    async def screen(self) -> list[str]:
        """Return the lines of the page's terminal; none before it has painted."""
        columns, lines, painted = json.loads(
            str(await self.evaluate("JSON.stringify([...(window.size || [0, 0]), btoa(window.painted || '')])"))
        )
        if not painted:
            return []
        screen = Screen(columns, lines)
        pyte.ByteStream(screen).feed(base64.b64decode(painted))
        return list(screen.display)

    async def shows(self, words: str) -> None:
        """Wait until `words` are in the page's terminal."""
        try:
            async with asyncio.timeout(SECONDS):
                while not any(words in line for line in await self.screen()):  # noqa: ASYNC110  as in `until`
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise AssertionError("\n".join([f"{words!r} is not on the screen:", *await self.screen()])) from None

    async def click_on(self, words: str) -> None:
        """Click on each place of the page's terminal where `words` are."""
        screen = await self.screen()
        found = [(row, line.index(words)) for row, line in enumerate(screen) if words in line]
        assert found, screen
        size = "(({ width, height }) => JSON.stringify([width, height]))"
        box = await self.evaluate(f"{size}(document.querySelector('.xterm-screen').getBoundingClientRect())")
        width, height = json.loads(str(box))
        for row, column in found:
            at = {
                "x": width / len(screen[0]) * (column + len(words) / 2),
                "y": height / len(screen) * (row + 0.5),
            }
            # A link is looked for when the pointer comes to its cell.
            for x in (at["x"] - 20, at["x"]):
                await self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=at["y"])
            for kind in ("mousePressed", "mouseReleased"):
                await self.call("Input.dispatchMouseEvent", type=kind, **at, button="left", clickCount=1)

    async def says(self, words: str) -> None:
        """Wait until `words` are in what lies on top in the middle of the page."""
        top = "document.elementFromPoint(innerWidth / 2, innerHeight / 2)"
        await self.until(f"{top}?.innerText?.includes({json.dumps(words)})")

    async def pages(self) -> int:
        """Return how many pages the browser has open."""
        targets = (await self.call("Target.getTargets"))["targetInfos"]
        return sum(target["type"] == "page" for target in targets)

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
                opened = Page(socket)
                await opened.call("Page.enable")
                await opened.call("Page.addScriptToEvaluateOnNewDocument", source=RECORD)
                yield opened
    finally:
        process.terminate()
        await process.communicate()
