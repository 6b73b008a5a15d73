"""The real Claude Code for tests: in a terminal, with a home of its own, a scripted API, and a proxy that refuses.

`make claude` installs its packages.
"""

import contextlib
import json
import os
import re
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

import pexpect

from crewboard.offline.reply import Reply, Speed, events, message
from tests.terminal.screen import close

VERSIONS = ("2.1.177", "2.1.197", "2.1.330", "2.1.332")

ROOT = Path(__file__).parents[2]

KEY = "sk-ant-api03-a-key-of-the-tests-0123456789"

Script = Callable[[list[dict[str, Any]]], Reply]
"""A model: it gets the messages of a request, and returns the reply."""


def program(version: str) -> Path:
    """Return where `make claude` puts the program of a version."""
    return ROOT / f".cache/claude-{version}/node_modules/@anthropic-ai/claude-code-linux-x64/claude"


def text_of(content: Any) -> str:  # noqa: ANN401  any JSON
    """Return all text of a message's content, results of tools included."""
    if isinstance(content, str):
        return content
    parts = [part for part in content if isinstance(part, dict)]
    return "\n".join(text_of(part.get("text") or part.get("content") or "") for part in parts)


class ScriptedApi:
    """The Messages API on a free loopback port: each request is answered by the script of its agent.

    The agent is the one whose mark, such as `#script:alpha#`, stands in the first messages of the request.
    """

    def __init__(self, scripts: dict[str, Script]) -> None:
        self.requests: list[dict[str, Any]] = []
        self._scripts = scripts
        self._counting = threading.Lock()
        api = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_HEAD(self) -> None:
                self._send(200, "text/plain", b"")

            def do_GET(self) -> None:
                self._send(404, "application/json", b"{}")

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                if "count_tokens" in self.path:
                    self._send(200, "application/json", b'{"input_tokens": 100}')
                    return
                whole = api.reply(body)
                if body.get("stream"):
                    stream = b"".join(event.encode() for event in events(whole, Speed()))
                    self._send(200, "text/event-stream", stream)
                else:
                    self._send(200, "application/json", json.dumps(whole).encode())

            def _send(self, status: int, kind: str, body: bytes) -> None:
                with contextlib.suppress(OSError):
                    self.send_response(status)
                    self.send_header("content-type", kind)
                    self.send_header("content-length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def reply(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return the whole message that answers a request."""
        with self._counting:
            self.requests.append(body)
            # Agents ask at the same time: by its number, each reply has ids of its own.
            seed = f"{len(self.requests)}".encode()
        marks = re.findall(r"#script:(\w+)#", "\n".join(text_of(each["content"]) for each in body["messages"][:3]))
        script = self._scripts.get(marks[0]) if marks and body.get("tools") else None
        reply = script(body["messages"]) if script else Reply([{"type": "text", "text": "ok"}])
        usage = {
            "input_tokens": 100, "ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0,
            "cache_read_input_tokens": 0,
        }  # fmt: skip
        return message(reply, body["model"], seed, usage, body["max_tokens"])

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class RefusingProxy:
    """A proxy that closes every connection. What it heard shows which hosts a program wanted to reach."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                with connection, contextlib.suppress(OSError):
                    self.asked.append(connection.recv(200).partition(b"\r\n")[0].decode("latin-1"))

    def close(self) -> None:
        self._listener.close()


@contextlib.contextmanager
def session(
    version: str,
    home: Path,
    project: Path,
    api: ScriptedApi,
    proxy: RefusingProxy,
    *arguments: str,
    tmux: str | None = None,
) -> Iterator["pexpect.spawn[str]"]:
    """Run Claude Code in a terminal, until the end of the block; with `tmux`, in a tmux server of that name."""
    home.mkdir(exist_ok=True)
    (home / ".claude.json").write_text(
        json.dumps(
            {
                "hasCompletedOnboarding": True,
                "customApiKeyResponses": {"approved": [KEY[-20:]], "rejected": []},
                "projects": {str(project): {"hasTrustDialogAccepted": True, "hasCompletedProjectOnboarding": True}},
            }
        )
    )
    (home / ".claude").mkdir(exist_ok=True)
    (home / ".claude" / "settings.json").write_text(
        json.dumps({"disableAutoMode": "disable", "permissions": {"disableAutoMode": "disable"}})
    )
    environment = {
        "HOME": str(home),
        "PATH": os.environ["PATH"],
        # For the secret with which team directories are marked as the user's own.
        "XDG_STATE_HOME": os.environ["XDG_STATE_HOME"],
        "TERM": "xterm-256color",
        "LANG": "C.UTF-8",
        "ANTHROPIC_API_KEY": KEY,
        "ANTHROPIC_BASE_URL": api.url,
        "CLAUDE_CODE_EXPERIMENTAL_AGENT_TEAMS": "1",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_DISABLE_OFFICIAL_MARKETPLACE_AUTOINSTALL": "1",
        "CLAUDE_CODE_DISABLE_TERMINAL_TITLE": "1",
        "DISABLE_AUTOUPDATER": "1",
        "HTTPS_PROXY": proxy.url,
        "HTTP_PROXY": proxy.url,
        "NO_PROXY": "127.0.0.1",
    }
    command = [str(program(version)), *arguments]
    if tmux is not None:
        command = ["tmux", "-L", tmux, "-f", "/dev/null", "new-session", *command]
    terminal = pexpect.spawn(
        command[0], command[1:], cwd=str(project), env=environment, dimensions=(50, 160),
        encoding="utf-8", codec_errors="replace", timeout=60,
    )  # fmt: skip
    drain = threading.Thread(target=_drain, args=(terminal, home / "terminal.txt"), daemon=True)
    drain.start()
    try:
        yield terminal
    finally:
        if tmux is not None:
            subprocess.run(["tmux", "-L", tmux, "kill-server"], check=False, capture_output=True)
        close(terminal)
        drain.join(10)


def _drain(terminal: "pexpect.spawn[str]", path: Path) -> None:
    with path.open("w") as file, contextlib.suppress(pexpect.EOF, OSError, ValueError):
        while True:
            with contextlib.suppress(pexpect.TIMEOUT):
                file.write(terminal.read_nonblocking(4096, timeout=0.5))
                file.flush()
