"""The dashboard in a browser (`crewboard serve`). Needs the extra `crewboard[serve]`.

textual-serve starts one dashboard process for each browser window and connects the two. This module adds access
control: a request needs the cookie, which the link with the token sets; the page may load nothing from other hosts and
run no script but textual-serve's own and `FOCUS`.
"""

import asyncio
import secrets
import shlex
import socket
import sys
from collections.abc import Awaitable, Callable
from html import escape
from ipaddress import ip_address
from urllib.parse import urlsplit

from aiohttp import web
from textual_serve.server import Server

import crewboard as core
from crewboard import Team

COOKIE = "crewboard"

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "font-src 'self'; img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
"""Sent with every answer. xterm.js, which draws the screen, sets styles of its own, hence 'unsafe-inline' there."""

PAGE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>{title}</title>
<link rel="stylesheet" href="{base}/static/css/xterm.css">
<script src="{base}/static/js/textual.js"></script>
<script src="{base}/focus.js"></script>
<style>
body {{ margin: 0; background: #000; }}
body.-closed::after {{ content: "The dashboard is closed. Reload the page."; color: #ccc; font: 16px monospace; }}
</style>
</head>
<body>
<div id="terminal" class="textual-terminal" data-session-websocket-url="{socket}/ws" data-font-size="16"></div>
</body>
</html>
"""

FOCUS = """\
addEventListener("DOMContentLoaded", () => {
  const appeared = new MutationObserver(() => {
    const input = document.querySelector(".xterm-helper-textarea");
    if (input) { appeared.disconnect(); input.focus(); }
  });
  appeared.observe(document.body, { childList: true, subtree: true });
});
"""
"""Gives the keyboard focus to the terminal as soon as it exists. textual-serve alone would wait for a click."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def dashboard(team: Team, *, read_only: bool) -> list[str]:
    """Return the command of one window's dashboard. It names the team, unless the first window is to make one."""
    typed = core.commands.CommandLine.of(team)
    return [
        *(sys.executable, "-I", "-m", "crewboard_tui.cli"),
        *("--root", str(team.directory.root)),
        *(["--team", team.directory.path.name] if team.directory.exists() else []),
        *(["--offline"] if typed.offline else []),
        "board",
        *(["--read-only"] if read_only else []),
    ]


class Browsers(Server):
    """The web server: textual-serve's, for those who know the token."""

    def __init__(self, team: Team, token: str, *, read_only: bool = False) -> None:
        command = shlex.join(dashboard(team, read_only=read_only))
        super().__init__(f"exec {command}", title=f"crewboard: {team.directory.path.name}")
        self._token = token
        self._cookie = secrets.token_urlsafe(32)

    async def run(self, host: str, port: int, listening: Callable[[str], None]) -> None:
        """Serve until the task is cancelled; pass the link to `listening` when requests are answered.

        Raises:
            OSError: The address is in use, or does not belong to this machine.
        """
        runner = web.AppRunner(await self._make_app(), access_log=None, shutdown_timeout=1)
        await runner.setup()
        try:
            site = web.TCPSite(runner, host, port)
            await site.start()
            address, own_port = runner.addresses[0][:2]
            name = socket.gethostname() if ip_address(address).is_unspecified else address
            listening(f"http://{f'[{name}]' if ':' in name else name}:{own_port}/?token={self._token}")
            await asyncio.Event().wait()
        finally:
            await runner.cleanup()

    async def _make_app(self) -> web.Application:
        app = await super()._make_app()
        app.middlewares.append(self._admit)
        app.router.add_get("/focus.js", self._focus)
        return app

    async def on_startup(self, app: web.Application) -> None:
        """Print nothing: `run` prints the link."""

    @web.middleware
    async def _admit(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if self._same(request.query.get("token"), self._token):
            answer: web.StreamResponse = web.HTTPFound("/")
            answer.set_cookie(COOKIE, self._cookie, httponly=True, samesite="Strict", path="/")
        elif not self._same(request.cookies.get(COOKIE), self._cookie):
            answer = web.Response(status=403, text="Open the link that `crewboard serve` printed.\n")
        elif not self._is_own(request):
            answer = web.Response(status=403, text="This request comes from another page.\n")
        else:
            answer = await handler(request)
        if not answer.prepared:
            answer.headers.update(HEADERS)
        return answer

    @staticmethod
    def _same(given: str | None, right: str) -> bool:
        return given is not None and secrets.compare_digest(given.encode(), right.encode())

    @staticmethod
    def _is_own(request: web.Request) -> bool:
        """Return True unless a page of another origin sends the request. A window's connection must name its origin."""
        origin = request.headers.get("Origin")
        if origin is None:
            return request.path != "/ws"
        return urlsplit(origin).netloc == request.host

    async def handle_index(self, request: web.Request) -> web.Response:
        """Return the page, without the fonts and scripts of other hosts that textual-serve's page loads."""
        secure = request.headers.get("X-Forwarded-Proto", request.scheme) == "https"
        host = escape(request.host)
        page = PAGE.format(
            title=escape(self.title),
            base=f"{'https' if secure else 'http'}://{host}",
            socket=f"{'wss' if secure else 'ws'}://{host}",
        )
        return web.Response(text=page, content_type="text/html")

    @staticmethod
    async def _focus(_: web.Request) -> web.Response:
        return web.Response(text=FOCUS, content_type="text/javascript")
