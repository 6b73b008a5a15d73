"""A server of the Messages API that sends what it is given, for answers that the offline model would never give."""

import contextlib
import json
import threading
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BufferedIOBase
from types import TracebackType
from typing import Any, NamedTuple, Self


class Raw(NamedTuple):
    """One answer, as it is sent."""

    body: bytes
    status: int = 200
    kind: str = "text/event-stream"
    location: str = ""
    encoding: str = ""
    missing: int = 0
    """Bytes that the head promises and that do not come."""
    held: threading.Event | None = None
    """Keeps the connection open until it is set."""
    drips: bool = False
    """The body goes on for ever, a space every hundredth of a second, until the client hangs up."""
    head_drips: bool = False
    """So does a header, before which only the status is sent."""


def as_json(body: object, status: int = 200) -> Raw:
    return Raw(json.dumps(body).encode(), status, "application/json")


def sse(*events: object, names: bool = True) -> Raw:
    """Return a stream of events: objects, or their data as text."""
    lines = []
    for event in events:
        name = f"event: {event['type']}\n" if names and isinstance(event, dict) and event.get("type") else ""
        lines.append(f"{name}data: {event if isinstance(event, str) else json.dumps(event)}\n\n")
    return Raw("".join(lines).encode("utf-8", "surrogatepass"))


def _drip(file: BufferedIOBase, *, endless: bool) -> None:
    with contextlib.suppress(OSError):
        while endless:
            file.write(b" ")
            file.flush()
            time.sleep(0.01)


class RawServer:
    """Sends `answers` to calls of the model, in order, the last one again and again; `pages` to GET, by path.

    An answer may be a function of the request. One of None closes the connection.
    """

    def __init__(
        self,
        *answers: Raw | Callable[[dict[str, Any]], Raw | None] | None,
        pages: Mapping[str, Raw | None] | None = None,
    ) -> None:
        self.requests: list[dict[str, Any]] = []
        self.asked: list[str] = []
        """The paths of all GET requests."""
        server = self
        left = list(answers)

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                server.requests.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
                answer = left.pop(0) if len(left) > 1 else left[0]
                self._send(answer(server.requests[-1]) if callable(answer) else answer)

            def do_GET(self) -> None:
                server.asked.append(self.path)
                self._send((pages or {}).get(self.path, as_json({"error": {"message": "no such page"}}, 404)))

            def _send(self, answer: Raw | None) -> None:
                if answer is None:
                    return
                self.send_response(answer.status)
                if answer.head_drips:
                    self.flush_headers()
                    self.wfile.write(b"x-slow: ")
                    _drip(self.wfile, endless=True)
                self.send_header("content-type", answer.kind)
                self.send_header("content-length", str(len(answer.body) + answer.missing))
                if answer.encoding:
                    self.send_header("content-encoding", answer.encoding)
                if answer.location:
                    self.send_header("location", answer.location)
                self.end_headers()
                self.wfile.write(answer.body)
                _drip(self.wfile, endless=answer.drips)
                if answer.held is not None:
                    self.wfile.flush()
                    answer.held.wait()

            def log_message(self, *_: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=lambda: self._http.serve_forever(0.01), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.shutdown()
        self._http.server_close()
