"""The dashboard in a browser (`crewboard serve`). Needs the extra `serve`.

textual-serve's parts start a dashboard process for each browser window and draw its screen in the page; this module is
the web server. The page holds no secret, and anyone may load it. Its script (`browser.js`) takes the token from the
link's fragment, which is in no request, and offers it as a subprotocol of the websocket. Without the token, no
websocket is opened and no process is started.
"""

import asyncio
import json
import secrets
import shlex
import socket
import sys
from collections.abc import Awaitable, Callable
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

import textual_serve
from aiohttp import WSCloseCode, WSMsgType, web
from textual_serve.app_service import AppService
from textual_serve.download_manager import DownloadManager

from crewboard.commands.context import CommandLine, Team

PROTOCOL = "crewboard"
"""The websocket's subprotocol. A browser offers the token as a second one: its scripts can set no other header."""

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "font-src 'self'; img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; sandbox allow-scripts allow-same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
"""The headers of every response.

xterm.js, which draws the screen, sets its own styles, which needs 'unsafe-inline'. On a click, it would open addresses
in the text of agents, and OSC 8 links; the sandbox without `allow-popups` prevents that.
"""

_HERE = Path(__file__).parent

_STATIC = Path(textual_serve.__file__).parent / "static"

_LINKS = b"this.terminal.loadAddon(this.weblinksAddon),"
"""The code that underlines addresses in textual-serve's script, as if a click opened them."""

MOST_CELLS = 1000
"""The most columns and lines of a window. More than a screen can show would take memory and time without an end."""

END_SECONDS = 10
"""Seconds that the dashboard of a page that was closed has to end in order."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def dashboard(team: Team, *, read_only: bool) -> list[str]:
    """Return the command that starts the dashboard of one window.

    It names the team only if the team exists; else the first window creates it.
    """
    typed = CommandLine.of(team)
    return [
        *(sys.executable, "-I", "-m", "crewboard_tui.cli"),
        *("--root", str(team.directory.root)),
        *(["--team", team.directory.path.name] if team.directory.exists() else []),
        *(["--offline"] if typed.offline else []),
        "board",
        *(["--read-only"] if read_only else []),
    ]


class Window(AppService):
    """One dashboard process, on the websocket of its page."""

    def __init__(self, command: str, websocket: web.WebSocketResponse) -> None:
        async def close() -> None:
            await websocket.close()

        super().__init__(
            command,
            write_bytes=websocket.send_bytes,
            write_str=websocket.send_str,
            close=close,
            download_manager=DownloadManager(),
        )

    async def run(self) -> None:
        """Run the dashboard. When it ends, also because it was killed or did not start, close the page."""
        try:
            await super().run()
        finally:
            await self.remote_close()

    async def set_terminal_size(self, width: int, height: int) -> None:
        """Tell the dashboard the size of its window, in cells."""
        await super().set_terminal_size(_cells(width), _cells(height))

    async def stop(self) -> None:
        """Ask the dashboard to end, and wait for its end; kill it if it takes too long."""
        try:
            async with asyncio.timeout(END_SECONDS):
                await super().stop()
                # Without a page to write to, nothing waits for that.
                if self._process is not None:
                    await self._process.wait()
        except TimeoutError:
            if self._process is not None:
                self._process.kill()

    async def on_meta(self, data: bytes) -> None:
        """Close the page when the dashboard exits. Ignore requests to open an address or to download a file."""
        if json.loads(data)["type"] == "exit":
            await self.remote_close()


class Browsers:
    """The web server, which runs a dashboard for each open page.

    `own_token` is a token that the user chose. With it, requests may name any host; without it, the token is random.
    """

    def __init__(self, team: Team, own_token: str | None = None, *, read_only: bool = False) -> None:
        self._command = f"exec {shlex.join(dashboard(team, read_only=read_only))}"
        self._title = f"crewboard: {team.directory.path.name}"
        self._token = own_token or secrets.token_urlsafe(32)
        # Who sets a token may have a proxy in front, with a name of its own.
        self._any_name = own_token is not None
        self._open = set[web.WebSocketResponse]()

    async def run(self, host: str, port: int, listening: Callable[[str], None]) -> None:
        """Serve until the task is cancelled. Once requests are answered, `listening` is called with the link.

        Raises:
            OSError: The address is in use, or does not belong to this machine.
        """
        script = (_STATIC / "js/textual.js").read_bytes().replace(_LINKS, b"")
        app = web.Application(middlewares=[self._admit])
        app.on_response_prepare.append(self._add_headers)
        app.on_shutdown.append(self._close_windows)
        app.router.add_get("/", _file((_HERE / "browser.html").read_bytes(), "text/html"))
        app.router.add_get("/browser.js", _file((_HERE / "browser.js").read_bytes(), "text/javascript"))
        app.router.add_get("/textual.js", _file(script, "text/javascript"))
        app.router.add_static("/static/css", _STATIC / "css")
        app.router.add_get("/ws", self._open_window)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
        await runner.setup()
        try:
            site = web.TCPSite(runner, host, port)
            await site.start()
            address, own_port = runner.addresses[0][:2]
            name = socket.gethostname() if ip_address(address).is_unspecified else address
            listening(f"http://{f'[{name}]' if ':' in name else name}:{own_port}/#token={quote(self._token, safe='')}")
            await asyncio.Event().wait()
        finally:
            await runner.cleanup()

    @staticmethod
    async def _add_headers(_: web.Request, answer: web.StreamResponse) -> None:
        answer.headers.update(HEADERS)

    @web.middleware
    async def _admit(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse requests that a page of another origin sends, and those that reach this server by another host's name.

        Raises:
            HTTPForbidden: The request is refused.
        """
        try:
            name = urlsplit(f"//{request.host}").hostname or ""
            # The owner of any other name could point it to this machine in the DNS, unless the user chose the token.
            is_own = self._any_name or name == "localhost" or bool(ip_address(name))
        except ValueError:
            is_own = False
        own = (None, f"http://{request.host}", f"https://{request.host}")
        if not is_own or request.headers.get("Origin") not in own:
            raise web.HTTPForbidden(text="This request comes from another page, or is meant for another host.\n")
        return await handler(request)

    def _has_token(self, request: web.Request) -> bool:
        offered = [each.strip() for each in request.headers.get("Sec-WebSocket-Protocol", "").split(",")]
        if offered[:-1] != [PROTOCOL]:
            return False
        return secrets.compare_digest(unquote(offered[1]).encode(errors="surrogateescape"), self._token.encode())

    async def _open_window(self, request: web.Request) -> web.WebSocketResponse:
        """Run a dashboard until it ends or its page is closed."""
        # A browser always names the origin.
        if "Origin" not in request.headers or not self._has_token(request):
            raise web.HTTPForbidden(text="Open the link that `crewboard serve` printed.\n")
        try:
            width, height = (_cells(int(request.query.get(*asked))) for asked in (("width", "80"), ("height", "24")))
        except ValueError:
            raise web.HTTPBadRequest(text="The width and the height of a window are numbers.\n") from None
        websocket = web.WebSocketResponse(heartbeat=15, protocols=[PROTOCOL])
        await websocket.prepare(request)
        await websocket.send_json(["title", self._title])
        window = Window(self._command, websocket)
        self._open.add(websocket)
        try:
            await window.start(width, height)
            async for message in websocket:
                if message.type is WSMsgType.TEXT:
                    match message.json():
                        case ["stdin", str(typed)]:
                            await window.send_bytes(typed.encode(errors="replace"))
                        case ["resize", {"width": int(width), "height": int(height)}]:
                            await window.set_terminal_size(width, height)
                        case ["blur"]:
                            await window.blur()
                        case ["focus"]:
                            await window.focus()
        finally:
            self._open.discard(websocket)
            await window.stop()
        return websocket

    async def _close_windows(self, _: web.Application) -> None:
        # aiohttp would only drop the connections, after it waited for their ends.
        await asyncio.gather(*(each.close(code=WSCloseCode.GOING_AWAY) for each in self._open))


def _cells(asked: int) -> int:
    """Return how many columns or lines a window has whose page asks for so many."""
    return max(1, min(asked, MOST_CELLS))


def _file(content: bytes, kind: str) -> Handler:
    """Return a handler that sends a file."""

    async def send(_: web.Request) -> web.Response:
        return web.Response(body=content, content_type=kind, charset="utf-8")

    return send
