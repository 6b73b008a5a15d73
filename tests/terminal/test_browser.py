"""`crewboard serve`: who may connect, and the dashboard in a real browser."""

import asyncio
import contextlib
import json
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from crewboard import Team
from crewboard.unix.process import start_ticks
from tests.crew import Crew, eventually
from tests.model import calls, says
from tests.terminal.browser import SECONDS, new_session, open_page

if TYPE_CHECKING:
    import aiohttp

Make = Callable[..., Crew]

HOSTILE = "<img src=x onerror=\"document.title='ran'\"><script>document.title='ran'</script>"
PLAN = calls("submit_plan", plan=f"# Write out.txt {HOSTILE}\n\n1. write it", files=["out.txt"], risk="none")
WRITE = calls("write_file", path="out.txt", content="hello")

CANVAS_IS_PAINTED = "document.body.classList.contains('-first-byte') && !!document.querySelector('.xterm-screen')"

GOING_AWAY = 1001
"""The code with which a server that ends closes a websocket: RFC 6455, 7.4.1."""

SAYS_SOMETHING = "!!document.querySelector('#notice') && !document.querySelector('#notice').hidden"

HIDES_ALL = """
[[0, 0], [1, 0], [0, 1], [1, 1], [0.5, 0.5]].every(([right, down]) =>
  document.elementFromPoint(right * (innerWidth - 1), down * (innerHeight - 1))?.id == "notice")
  && getComputedStyle(document.querySelector("#notice")).backgroundColor == "rgb(0, 0, 0)"
  && document.documentElement.scrollHeight <= innerHeight
"""
"""True if the notice lies on top in the corners and in the middle, opaque, and nothing scrolls."""


class Served:
    """A running `crewboard serve`: its link, and the parts of it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        self.process = process
        self.link = process.stdout.readline().strip()
        self.base, _, self.token = self.link.partition("/#token=")


def dashboards(served: Served) -> list[psutil.Process]:
    """Return the processes of the windows that are open."""
    return psutil.Process(served.process.pid).children()


def is_left(window: psutil.Process) -> bool:
    """Return True if a process has not ended. For psutil, one runs whose end no parent has taken note of.

    The parent of an orphan may be the test runner: commands that another test ran in it made it adopt orphans.
    """
    return window.is_running() and bool(start_ticks(window.pid))


@contextmanager
def serving(crew: Crew, *options: str, ended: int = 130) -> Iterator[Served]:
    """Run `crewboard serve` for a team, and end it."""
    with serving_in(crew.root, crew.environment, *options, ended=ended) as served:
        yield served


@contextmanager
def serving_in(root: Path, environment: dict[str, str], *options: str, ended: int = 130) -> Iterator[Served]:
    """Run `crewboard serve` in a workspace, and end it."""
    process = subprocess.Popen(
        [sys.executable, "-I", "-m", "crewboard_tui.cli", "serve", *options],
        cwd=root,
        env={**environment, "LANG": "C.UTF-8", "CREWBOARD_ROOT": str(root)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield Served(process)
    finally:
        windows = psutil.Process(process.pid).children() if process.poll() is None else []
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == ended
        assert process.stdout is not None
        process.stdout.close()
        # One that is still starting would start a supervisor for a team that the test has ended.
        eventually(lambda: not any(map(is_left, windows)), "the end of each window's dashboard")


@pytest.fixture(scope="module")
def served(shared_crew: Crew) -> Iterator[Served]:
    with serving(shared_crew) as served:
        yield served


async def status(served: Served, path: str, **headers: str) -> int:
    """Return the status of the answer to a request."""
    async with new_session() as session, session.get(served.base + path, headers=headers) as answer:
        assert "Set-Cookie" not in answer.headers
        assert served.token not in await answer.text()
        return answer.status


async def opened(served: Served, *protocols: str, **headers: str) -> int:
    """Return the status of the answer to a request for a window's websocket."""
    from aiohttp import WSServerHandshakeError

    async with new_session() as session:
        try:
            async with session.ws_connect(served.base + "/ws", protocols=protocols, headers=headers) as socket:
                # Its dashboard has started, and does not later, while another test counts them.
                await socket.receive_json(timeout=SECONDS)
                await socket.receive_bytes(timeout=SECONDS)
                return 101
        except WSServerHandshakeError as error:
            return error.status


@asynccontextmanager
async def window(served: Served) -> AsyncIterator["aiohttp.ClientWebSocketResponse"]:
    """Open a window as the page does."""
    async with (
        new_session() as session,
        session.ws_connect(
            served.base + "/ws", protocols=("crewboard", served.token), headers={"Origin": served.base}
        ) as socket,
    ):
        assert await socket.receive_json(timeout=SECONDS) == ["title", "crewboard: default"]
        await socket.receive_bytes(timeout=SECONDS)
        yield socket


async def test_a_window_opens_only_with_the_secret_of_the_link(served: Served) -> None:
    assert served.base.startswith("http://127.0.0.1:")
    own, before = {"Origin": served.base}, dashboards(served)
    wrong = f"{served.token[:-1]}{'y' if served.token[-1] == 'x' else 'x'}"
    offers = [(), ("crewboard",), (served.token,), ("crewboard", wrong), ("crewboard", wrong, served.token)]
    offers += [(served.token, "crewboard"), ("other", served.token), ("crewboard", served.token[:-1])]
    for protocols in offers:
        assert await opened(served, *protocols, **own) == 403, protocols
    cookie = f"crewboard={served.token}"
    assert await opened(served, "crewboard", **own, Cookie=cookie) == 403
    assert await opened(served, "crewboard", **own, Authorization=f"Bearer {served.token}") == 403
    assert await status(served, f"/ws?token={served.token}", **own) == 403
    assert not set(dashboards(served)) - set(before), "nothing was started"
    assert await opened(served, "crewboard", served.token, **own) == 101


@pytest.mark.long
async def test_a_page_of_another_origin_opens_no_window(served: Served) -> None:
    secret, before = ("crewboard", served.token), dashboards(served)
    port = served.base.rpartition(":")[2]
    foreign = f"evil.example:{port}"
    for headers in (
        {"Origin": "http://evil.example"},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": f"http://localhost:{port}"},
        {"Origin": "null"},
        {},
        {"Origin": f"http://{foreign}", "Host": foreign},
        {"Origin": served.base, "Host": foreign},
    ):
        assert await opened(served, *secret, **headers) == 403, headers
    assert not set(dashboards(served)) - set(before), "nothing was started"
    assert await status(served, "/", Origin="null") == 403
    for host in (foreign, "127.0.0.1.evil.example", 'x"><script>', "["):
        assert await status(served, "/", Host=host) in (400, 403), host
    # A port that ssh forwards has another number there.
    assert await opened(served, *secret, Origin="http://localhost:8080", Host="localhost:8080") == 101


async def test_the_page_has_no_secret_and_loads_only_its_own_files(served: Served) -> None:
    async with new_session() as session:
        async with session.get(served.base + "/") as answer:
            page, headers = await answer.text(), answer.headers
        async with session.get(served.base + "/textual.js") as answer:
            script = await answer.text()
    assert served.token not in page
    assert "default" not in page, "the team's name"
    assert "http" not in page
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "sandbox allow-scripts allow-same-origin" in policy
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["Cache-Control"] == "no-store"
    assert "new WebSocket(" in script
    assert "loadAddon(this.weblinksAddon)" not in script, "textual-serve has changed how it makes addresses links"
    for path in ("/browser.js", "/static/css/xterm.css"):
        assert await status(served, path) == 200
    for path in ("/download/x", "/static/", "/static/js/textual.js", "/static/css/../../server.py"):
        assert await status(served, path) in (403, 404), path


@pytest.mark.long
@pytest.mark.parametrize(
    ("options", "token", "says"),
    [
        (["--host", "0.0.0.0"], None, "set CREWBOARD_SERVE_TOKEN"),
        pytest.param(["--host", "0.0.0.0"], "short", "too short", marks=pytest.mark.long),
        pytest.param([], "short", "too short", marks=pytest.mark.long),
    ],
)
def test_another_address_needs_a_token_of_the_user(
    crew_root: Path, options: list[str], token: str | None, says: str
) -> None:
    environment = {"CREWBOARD_SERVE_TOKEN": token} if token else {}
    ended = subprocess.run(
        [sys.executable, "-I", "-m", "crewboard_tui.cli", "--root", str(crew_root), "serve", *options],
        env={"PATH": "/usr/bin:/bin", "HOME": str(crew_root), **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 2
    assert says in ended.stderr
    assert ended.stdout == ""


@pytest.mark.long
def test_the_link_has_the_token_of_the_user(crew_root: Path) -> None:
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(crew_root), "CREWBOARD_SERVE_TOKEN": "abcdefghijklmnop"}
    with serving_in(crew_root, environment) as served:
        assert served.token == "abcdefghijklmnop"


@pytest.fixture
def crew_root(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    root.mkdir()
    return root


@pytest.mark.long
async def test_a_plan_is_approved_in_a_browser(crew_on: Make, tmp_path: Path) -> None:
    crew = crew_on([PLAN, WRITE, says("all done")])
    crew.hire("fixer", "code", "write it", plan=True, unsafe_no_sandbox=True)
    crew.pending("plan_approval")
    with serving(crew) as served:
        async with open_page(tmp_path / "profile") as page:
            await page.call("Page.navigate", url=served.link)
            await page.until(CANVAS_IS_PAINTED)
            windows = dashboards(served)
            assert len(windows) == 1
            assert await page.evaluate("location.href") == served.base + "/"
            await page.until("document.activeElement.tagName == 'TEXTAREA'")
            assert not (crew.root / "out.txt").exists()
            async with asyncio.timeout(SECONDS):
                while not (crew.root / "out.txt").exists():
                    # It opens the plan, asks once more, and approves; a page takes no key before it could be seen.
                    await page.press("a")
                    await asyncio.sleep(0.3)
            assert await page.evaluate("document.title") != "ran"
    eventually(lambda: not any(map(is_left, windows)), "the end of the window's dashboard")


READS = """<script>
const found = [document.cookie, document.referrer, location.href, window.name, String(window.opener),
  JSON.stringify(sessionStorage), JSON.stringify(localStorage)];
fetch("/found" + location.pathname, { method: "POST", body: JSON.stringify(found) });
</script>"""


class Other:
    """Another server of this machine: what it is sent. Its page sends to it all that a page can read."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        self._arrived = asyncio.Condition()
        self.port = 0

    async def hears(self, path: str) -> None:
        """Wait until a path is asked for."""
        async with asyncio.timeout(SECONDS), self._arrived:
            await self._arrived.wait_for(lambda: any(f" {path} HTTP" in request for request in self.requests))

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            length = re.search(r"content-length: (\d+)", head, re.IGNORECASE)
            body = await reader.readexactly(int(length[1]) if length else 0)
            async with self._arrived:
                self.requests.append(head + body.decode("latin-1"))
                self._arrived.notify_all()
            answer = f"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {len(READS)}\r\n\r\n{READS}"
            writer.write(answer.encode() if head.startswith("GET") else b"HTTP/1.1 204 No Content\r\n\r\n")
            await writer.drain()
        writer.close()


@pytest.fixture
async def other() -> AsyncIterator[Other]:
    found = Other()
    server = await asyncio.start_server(found.answer, "127.0.0.1", 0)
    found.port = server.sockets[0].getsockname()[1]
    yield found
    server.close()


@pytest.mark.long
async def test_no_other_server_is_sent_the_secret(crew_on: Make, other: Other, tmp_path: Path) -> None:
    address = f"http://127.0.0.1:{other.port}/report"
    crew = crew_on([says(f"see {address}")])
    crew.run("scout", "explore", "look")
    with serving(crew) as served:
        async with open_page(tmp_path / "profile") as page:
            await page.call("Page.navigate", url=served.link)
            await page.shows("scout")
            await page.press("2")
            await page.shows(address)
            await page.click_on(address)
            assert await page.pages() == 1, "the click opened no page"
            assert not await page.evaluate("!!document.querySelector('.xterm-cursor-pointer')"), "it looks like no link"
            assert await page.evaluate("document.cookie") == ""
            assert str(await page.evaluate("JSON.stringify({...sessionStorage})")).count(served.token) == 1
            for name in ("127.0.0.1", "localhost"):
                await page.call("Page.navigate", url=f"http://{name}:{other.port}/{name}")
                await other.hears(f"/found/{name}")
            assert not [request for request in other.requests if "/report" in request]
            for request in other.requests:
                assert served.token not in request
                assert "Cookie:" not in request
                assert served.base not in request, "no Referer"


@pytest.mark.long
async def test_a_page_reloads_and_ends_and_needs_its_link(shared_crew: Crew, tmp_path: Path) -> None:
    with serving(shared_crew) as served:
        async with open_page(tmp_path / "profile") as page:
            for link in ("/", "/#token=", "/#token=a%22(b", f"/?token={served.token}"):
                await page.call("Page.navigate", url="about:blank")
                await page.call("Page.navigate", url=served.base + link)
                await page.says("Open the link that `crewboard serve` printed")
            assert dashboards(served) == []
            await page.call("Page.navigate", url=served.base + f"/#token={served.token[:-1]}")
            await page.says("refuses this link")
            assert dashboards(served) == []
            # The tab has the page open: only the fragment changes.
            await page.call("Page.navigate", url=served.link)
            await page.shows("Board")
            assert await page.evaluate("location.href") == served.base + "/", "the address bar has no secret"
            assert await page.evaluate("document.title") == "crewboard: default"
            first = dashboards(served)
            assert len(first) == 1
            await page.call("Page.reload")
            eventually(lambda: not first[0].is_running(), "the end of the first dashboard")
            await page.shows("Board")
            await page.call("Target.createTarget", url=served.link)
            eventually(lambda: len(dashboards(served)) == 2, "a dashboard for the second tab")
            await page.press("q")
            await page.until("document.body.classList.contains('-closed')")
            eventually(lambda: len(dashboards(served)) == 1, "the second tab's dashboard alone")


@pytest.mark.long
async def test_the_page_says_that_it_shows_no_dashboard_now(shared_crew: Crew, tmp_path: Path) -> None:
    with serving(shared_crew, ended=-signal.SIGKILL) as served:
        async with open_page(tmp_path / "profile") as page:
            await page.call("Page.navigate", url=served.link)
            await page.shows("live")
            await page.press("q")
            await page.until(SAYS_SOMETHING)
            assert await page.evaluate(HIDES_ALL)
            await page.says("The dashboard is closed")
            for ends, says in (
                ("dashboard", "The dashboard is closed"),
                ("server", "The connection to `crewboard serve`"),
            ):
                await page.call("Page.reload")
                await page.until(f"!({SAYS_SOMETHING})")
                await page.shows("live")
                eventually(lambda: len(dashboards(served)) == 1, "the new page's dashboard alone")
                (dashboards(served)[0] if ends == "dashboard" else served.process).kill()
                await page.until(SAYS_SOMETHING)
                assert await page.evaluate(HIDES_ALL)
                await page.says(says)


@pytest.mark.long
async def test_a_page_says_that_its_server_was_ended(shared_crew: Crew, tmp_path: Path) -> None:
    async with open_page(tmp_path / "profile") as page:
        with serving(shared_crew) as served:
            await page.call("Page.navigate", url=served.link)
            await page.shows("live")
        await page.until(SAYS_SOMETHING)
        await page.says("The connection to `crewboard serve` is lost")


PAINTS = """
import json, sys
def send(kind, data): sys.stdout.buffer.write(kind + len(data).to_bytes(4, "big") + data)
address = sys.argv[1]
sys.stdout.buffer.write(b"__GANGLION__\\n")
send(b"D", f"\x1b]8;;{address}/osc\x1b\\\\NAMED\x1b]8;;\x1b\\\\\\r\\n\\r\\nsee {address}/plain\\r\\n".encode())
for new in (True, False):
    send(b"M", json.dumps({"type": "open_url", "url": f"{address}/wish", "new_tab": new}).encode())
send(b"D", b"\\r\\nall is painted")
sys.stdout.buffer.flush()
sys.stdin.buffer.read()
"""


@asynccontextmanager
async def serving_here(team: Team, own_token: str | None = None) -> AsyncIterator[str]:
    """Serve in this process; yield the link."""
    from crewboard_tui.browser import Browsers

    links: asyncio.Queue[str] = asyncio.Queue()
    running = asyncio.create_task(Browsers(team, own_token).run("127.0.0.1", 0, links.put_nowait))
    yield await links.get()
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running


@pytest.mark.long
async def test_no_byte_of_a_dashboard_makes_a_link(
    shared_crew: Crew, other: Other, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from crewboard_tui import browser

    command = [sys.executable, "-c", PAINTS, f"http://127.0.0.1:{other.port}"]
    monkeypatch.setattr(browser, "dashboard", lambda team, *, read_only: command)
    async with serving_here(shared_crew.team) as link, open_page(tmp_path / "profile") as page:
        await page.call("Page.navigate", url=link)
        await page.shows("all is painted")
        # xterm.js asks before it opens a link that is not its own text.
        await page.evaluate("window.confirm = () => true")
        await page.click_on("NAMED")
        await page.click_on("see http")
        await page.click_on("/plain")
        assert await page.pages() == 1
        assert await page.evaluate("location.pathname") == "/"
        await page.call("Page.navigate", url=f"http://127.0.0.1:{other.port}/opened")
        await other.hears("/found/opened")
        assert {request.split()[1] for request in other.requests} <= {"/opened", "/found/opened", "/favicon.ico"}


@pytest.mark.long
async def test_a_token_of_the_user_works_behind_any_name(shared_crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    from crewboard_tui import browser

    monkeypatch.setattr(browser, "dashboard", lambda team, *, read_only: [sys.executable, "-c", PAINTS, "x"])
    async with serving_here(shared_crew.team, "a pass & a #word (é)") as link, new_session() as session:
        base, _, secret = link.partition("/#token=")
        assert re.fullmatch(r"[\w.~%-]+", secret, re.ASCII), "what the page's script takes"
        headers = {"Host": "board.example", "Origin": "https://board.example"}
        async with session.ws_connect(f"{base}/ws", protocols=("crewboard", secret), headers=headers) as socket:
            assert b"all is painted" in b"".join([(await socket.receive()).data for _ in range(3)][1:])


@pytest.mark.long
async def test_a_window_ends_when_the_server_is_killed(shared_crew: Crew) -> None:
    with serving(shared_crew, ended=-signal.SIGKILL) as served:
        async with window(served):
            windows = dashboards(served)
            assert len(windows) == 1
            served.process.kill()
        eventually(lambda: not any(map(is_left, windows)), "the end of the window's dashboard")


@pytest.mark.long
async def test_the_dashboard_opens_before_there_is_a_team(crew_root: Path) -> None:
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(crew_root), "CREWBOARD_OFFLINE": "1"}
    with serving_in(crew_root, environment, "--read-only") as served:
        async with window(served) as socket:
            windows = dashboards(served)
            assert [each.cmdline()[-1] for each in windows] == ["--read-only"]
            served.process.send_signal(signal.SIGINT)
            while not socket.closed:
                await socket.receive(timeout=SECONDS)
            assert socket.close_code == GOING_AWAY, "its page knows that it did not end by itself"
        assert await asyncio.to_thread(served.process.wait, SECONDS) == 130
        eventually(lambda: not any(map(is_left, windows)), "the end of the window's dashboard")


GOES_ON = """
import json, os, sys
def send(text): sys.stdout.buffer.write(b"D" + len(text).to_bytes(4, "big") + text) and sys.stdout.buffer.flush()
sys.stdout.buffer.write(b"__GANGLION__\\n")
send(f"{os.environ['COLUMNS']}x{os.environ['ROWS']} {os.getpid()}".encode())
while head := sys.stdin.buffer.read(5):
    send(sys.stdin.buffer.read(int.from_bytes(head[1:], "big")))
"""
"""A dashboard that tells its size and what it is sent, and does not end when it is asked to."""


@pytest.mark.long
async def test_an_absurd_window_is_cut_and_its_dashboard_killed(
    shared_crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    from aiohttp import WSServerHandshakeError

    from crewboard_tui import browser

    monkeypatch.setattr(browser, "dashboard", lambda team, *, read_only: [sys.executable, "-c", GOES_ON])
    monkeypatch.setattr(browser, "END_SECONDS", 0.2)
    async with serving_here(shared_crew.team) as link, new_session() as session:
        base, _, secret = link.partition("/#token=")
        open_window = partial(session.ws_connect, protocols=("crewboard", secret), headers={"Origin": base})
        for wrong in ("width=abc", "height=", f"width={'9' * 5000}"):
            with pytest.raises(WSServerHandshakeError, match="400"):
                await open_window(f"{base}/ws?{wrong}")
        async with open_window(f"{base}/ws?width=100000&height=-3") as socket:
            await socket.receive_json(timeout=SECONDS)
            size, pid = (await socket.receive_bytes(timeout=SECONDS)).decode().split()
            assert size == "1000x1"
            child = psutil.Process(int(pid))
            await socket.send_json(["resize", {"width": 99999, "height": 99999}])
            sent = await socket.receive_bytes(timeout=SECONDS)
            assert json.loads(sent) == {"type": "resize", "width": 1000, "height": 1000}
        await asyncio.to_thread(eventually, lambda: not child.is_running(), "its end")


STUCK = """
import io, signal, sys, threading
from crewboard_tui import dashboard
sys.stderr = io.StringIO()  # as while Textual runs
dashboard.END_SECONDS = 0.2
signal.signal(signal.SIGTERM, signal.SIG_IGN)
threading.Thread(target=dashboard._end_with_server, daemon=True).start()
threading.Event().wait()
"""


@pytest.mark.long
def test_a_window_that_cannot_end_in_order_ends_without_its_server() -> None:
    process = subprocess.Popen([sys.executable, "-c", STUCK], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdin is not None
    process.stdin.close()
    process.stdin = None
    _, stacks = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "Timeout" in stacks, "it says where it was stuck"
