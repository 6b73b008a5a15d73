"""`crewboard serve`: who may connect, and the dashboard in a real browser."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.crew import Crew, eventually
from tests.model import calls, says
from tests.terminal.browser import SECONDS, new_session, open_page

Make = Callable[..., Crew]

HOSTILE = "<img src=x onerror=\"document.title='ran'\"><script>document.title='ran'</script>"
PLAN = calls("submit_plan", plan=f"# Write out.txt {HOSTILE}\n\n1. write it", files=["out.txt"], risk="none")
WRITE = calls("write_file", path="out.txt", content="hello")

CANVAS_IS_PAINTED = "document.body.classList.contains('-first-byte') && !!document.querySelector('.xterm-screen')"


class Served:
    """A running `crewboard serve`: its link, and the parts of it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        self.process = process
        self.link = process.stdout.readline().strip()
        self.base, _, self.token = self.link.partition("/?token=")


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
        eventually(lambda: not any(window.is_running() for window in windows), "the end of each window's dashboard")


@pytest.fixture(scope="module")
def served(shared_crew: Crew) -> Iterator[Served]:
    with serving(shared_crew) as served:
        yield served


async def status(link: str, *, cookie: str | None = None, origin: str | None = None, socket: bool = False) -> int:
    """Return the status of the answer to a request."""
    from aiohttp import WSServerHandshakeError

    headers = {"Origin": origin} if origin else {}
    cookies = {"crewboard": cookie} if cookie else {}
    async with new_session(cookies=cookies, headers=headers) as session:
        if not socket:
            async with session.get(link, allow_redirects=False) as answer:
                return answer.status
        try:
            async with session.ws_connect(link):
                return 101
        except WSServerHandshakeError as error:
            return error.status


async def admitted(served: Served) -> str:
    """Return the cookie that the link sets."""
    async with new_session() as session, session.get(served.link, allow_redirects=False) as answer:
        assert answer.status == 302
        assert "token" not in answer.headers["Location"]
        said = answer.headers["Set-Cookie"]
        assert "HttpOnly" in said
        assert "SameSite=Strict" in said
        return answer.cookies["crewboard"].value


async def test_only_the_link_admits(served: Served) -> None:
    assert served.base.startswith("http://127.0.0.1:")
    for path in ("/", "/ws", "/static/js/textual.js", "/download/x", "/?token=", f"/?token={served.token[:-1]}x"):
        assert await status(served.base + path) == 403, path
        assert await status(served.base + path, cookie="guessed") == 403, path
    assert await status(served.base + "/", cookie=served.token) == 403, "the token is not the cookie"
    cookie = await admitted(served)
    assert await status(served.base + "/", cookie=cookie) == 200
    assert await status(served.base + "/static/js/textual.js", cookie=cookie) == 200


async def test_a_page_of_another_origin_connects_to_nothing(served: Served) -> None:
    cookie = await admitted(served)
    own, socket = served.base, served.base + "/ws"
    assert await status(socket, cookie=cookie, socket=True, origin="http://evil.example") == 403
    assert await status(socket, cookie=cookie, socket=True, origin=own.rpartition(":")[0] + ":1") == 403
    assert await status(socket, cookie=cookie, socket=True) == 403, "a browser always names the origin"
    assert await status(own + "/", cookie=cookie, origin="null") == 403
    assert await status(socket, cookie=cookie, socket=True, origin=own) == 101


async def test_the_page_loads_nothing_from_other_hosts(served: Served) -> None:
    cookie = await admitted(served)
    async with (
        new_session(cookies={"crewboard": cookie}) as session,
        session.get(served.base + "/", headers={"Host": 'x"><script>'}) as answer,
    ):
        page = await answer.text()
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
    assert "googleapis" not in page
    assert 'x"><script>' not in page


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
            windows = psutil.Process(served.process.pid).children()
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
    eventually(lambda: not any(window.is_running() for window in windows), "the end of the window's dashboard")


@pytest.mark.long
async def test_a_window_ends_when_the_server_is_killed(shared_crew: Crew) -> None:
    with serving(shared_crew, ended=-signal.SIGKILL) as served:
        cookie = await admitted(served)
        async with (
            new_session(cookies={"crewboard": cookie}, headers={"Origin": served.base}) as session,
            session.ws_connect(served.base + "/ws") as socket,
        ):
            await socket.receive_bytes(timeout=SECONDS)
            windows = psutil.Process(served.process.pid).children()
            assert len(windows) == 1
            served.process.kill()
        eventually(lambda: not any(window.is_running() for window in windows), "the end of the window's dashboard")


async def test_the_dashboard_opens_before_there_is_a_team(crew_root: Path) -> None:
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(crew_root), "CREWBOARD_OFFLINE": "1"}
    with serving_in(crew_root, environment) as served:
        cookie = await admitted(served)
        async with (
            new_session(cookies={"crewboard": cookie}, headers={"Origin": served.base}) as session,
            session.ws_connect(served.base + "/ws") as socket,
        ):
            await socket.receive_bytes(timeout=SECONDS)


STUCK = """
import io, signal, sys, threading
from crewboard_tui import session
sys.stderr = io.StringIO()  # as while Textual runs
session.END_SECONDS = 0.2
signal.signal(signal.SIGTERM, signal.SIG_IGN)
threading.Thread(target=session._end_with_server, daemon=True).start()
threading.Event().wait()
"""


def test_a_window_that_cannot_end_in_order_ends_without_its_server() -> None:
    process = subprocess.Popen([sys.executable, "-c", STUCK], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdin is not None
    process.stdin.close()
    process.stdin = None
    _, stacks = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "Timeout" in stacks, "it says where it was stuck"
