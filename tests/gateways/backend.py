"""A scripted server of OpenAI's chat completions on loopback, for the gateways to stand in front of."""

import json
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Literal, Self

CHARACTERS_PER_TOKEN = 4

_PIECE = 9
"""Characters of a text or of arguments in one event of a stream."""


@dataclass(frozen=True)
class Turn:
    """The reply of the model to one request."""

    text: str = ""
    calls: tuple[tuple[str, dict[str, Any]], ...] = ()
    reasoning: str = ""
    finish: str = ""
    """The reason of the end, if another than the right one."""
    cut: Literal["", "ended", "dropped"] = ""
    """The kind of end within the last call or text: the reply `ended` there, or the connection was `dropped`."""
    status: int = 200


def says(text: str, **more: Any) -> Turn:
    return Turn(text, **more)


def calls(*made: tuple[str, dict[str, Any]], **more: Any) -> Turn:
    """Return a turn that calls tools, all at once."""
    return Turn(calls=made, **more)


@dataclass(frozen=True)
class Served:
    """A model of the backend."""

    window: int = 64_000
    sees: bool = True


MODELS = {
    "local": Served(),
    "small": Served(window=8000),
    "blind": Served(sees=False),
}


class Backend:
    """Answers each request by the next turn of the agent that asks, whose name is in the system prompt.

    Without one, and to a request for a summary, it answers with a text.
    """

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        """The bodies of all requests for a completion, in the order in which they came."""
        self._scripts: dict[str, list[Turn]] = {}
        backend = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._send(200, {"object": "list", "data": [{"id": name, "object": "model"} for name in MODELS]})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                backend.requests.append(body)
                turn = backend._next(body)
                if turn.status != 200:
                    self._send(turn.status, {"error": {"message": turn.text, "code": turn.status}})
                    return
                self.send_response(200)
                self.send_header("content-type", "text/event-stream")
                self.send_header("transfer-encoding", "chunked")
                self.end_headers()
                for chunk in _chunks(turn, body):
                    self._send_chunk(f"data: {json.dumps(chunk)}\n\n".encode())
                if turn.cut == "dropped":
                    self.close_connection = True
                    return
                if not turn.cut:
                    self._send_chunk(b"data: [DONE]\n\n")
                self._send_chunk(b"")

            def _send_chunk(self, data: bytes) -> None:
                self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))

            def _send(self, status: int, body: object) -> None:
                data = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}/v1"

    def __enter__(self) -> Self:
        threading.Thread(target=lambda: self._http.serve_forever(0.01), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.shutdown()
        self._http.server_close()

    def give(self, agent: str, *turns: Turn) -> None:
        self._scripts.setdefault(agent, []).extend(turns)

    def asked_by(self, agent: str) -> list[dict[str, Any]]:
        """Return the requests of an agent."""
        return [body for body in self.requests if agent_of(body) == agent]

    def _next(self, body: dict[str, Any]) -> Turn:
        if (refusal := _refusal(MODELS[body["model"]], body)) is not None:
            return says(refusal, status=400)
        script = self._scripts.get(agent_of(body))
        if script and "Summarise the work" not in text_of(body["messages"][-1]):
            return script.pop(0)
        return says("Nothing more to do.")


def agent_of(body: dict[str, Any]) -> str:
    """Return the name in the system prompt, or nothing."""
    found = re.search(r"You are (\S+), ", text_of([each for each in body["messages"] if each["role"] == "system"]))
    return found[1] if found else ""


def text_of(value: object) -> str:
    """Return all texts in a value, one a line."""
    if isinstance(value, dict):
        return "\n".join(map(text_of, value.values()))
    if isinstance(value, list):
        return "\n".join(map(text_of, value))
    return value if isinstance(value, str) else ""


def _refusal(served: Served, body: dict[str, Any]) -> str | None:
    """Return why a server such as vLLM refuses a request, in its words."""
    parts = [part for each in body["messages"] if isinstance(each.get("content"), list) for part in each["content"]]
    if not served.sees and any(part.get("type") == "image_url" for part in parts):
        return "blind is not a multimodal model: image input is not supported"
    asked, most = _tokens_in(body), body.get("max_tokens") or 0
    if asked + most > served.window:
        return (
            f"This model's maximum context length is {served.window} tokens. However, you requested {asked + most} "
            f"tokens ({asked} in the messages, {most} in the completion). Please reduce the length of the messages."
        )
    return None


def _tokens_in(body: dict[str, Any]) -> int:
    return (len(text_of(body["messages"])) + len(json.dumps(body.get("tools", [])))) // CHARACTERS_PER_TOKEN


def _chunks(turn: Turn, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": body["model"]}

    def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        return {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}

    yield chunk({"role": "assistant", "content": ""})
    for piece in _pieces(turn.reasoning):
        yield chunk({"reasoning_content": piece})
    for piece in _pieces(turn.text)[: -1 if turn.cut else None]:
        yield chunk({"content": piece})
    for index, (name, given) in enumerate(turn.calls):
        ident = f"call_{len(body['messages'])}_{index}"
        begin = {"index": index, "id": ident, "type": "function", "function": {"name": name, "arguments": ""}}
        yield chunk({"tool_calls": [begin]})
        pieces = _pieces(json.dumps(given))
        for piece in pieces[: -1 if turn.cut and index == len(turn.calls) - 1 else None]:
            yield chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    if turn.cut:
        return
    yield chunk({}, turn.finish or ("tool_calls" if turn.calls else "stop"))
    if (body.get("stream_options") or {}).get("include_usage"):
        written = len(turn.text + turn.reasoning + json.dumps(turn.calls)) // CHARACTERS_PER_TOKEN + 1
        asked = _tokens_in(body)
        usage = {"prompt_tokens": asked, "completion_tokens": written, "total_tokens": asked + written}
        yield {**head, "choices": [], "usage": usage}


def _pieces(text: str) -> list[str]:
    return [text[at : at + _PIECE] for at in range(0, len(text), _PIECE)]
