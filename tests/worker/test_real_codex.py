"""Agents whose work the real Codex does, on a scripted API over loopback: `make engines` installs it."""

import http.server
import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from crewboard import engines
from crewboard.commands import hire as hiring
from crewboard.commands import messages
from crewboard.records.events import EngineSession, ToolResult
from crewboard.sandbox import bubblewrap
from crewboard.sandbox.policy import Policy
from tests import system
from tests.crew import Crew, eventually
from tests.worker.test_engine import home, of, processes, spawn

CODEX = engines.KNOWN["codex"]
INSTALLED = Path(__file__).parents[2] / f".cache/codex-acp-{CODEX.tested[-1]}/bin"

KEY = "sk-a-key-of-the-user"

TIMEOUT = 90.0
"""Seconds to wait for a step of the engine, on a busy machine: its start alone reads 400 MB."""

pytestmark = [
    pytest.mark.engines,
    pytest.mark.timeout(400),
    pytest.mark.files_only("an engine does not know where the team is kept"),
]

Item = dict[str, Any]


class Responses(http.server.BaseHTTPRequestHandler):
    """The Responses API: each request gets the next item. It has no web sockets, and says so."""

    protocol_version = "HTTP/1.1"
    asked: ClassVar[list[tuple[str, dict[str, Any]]]] = []
    items: ClassVar[list[Item]] = []

    def do_GET(self) -> None:
        self.send_response(426)
        self.send_header("content-length", "0")
        self.end_headers()

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.asked.append((self.headers["authorization"], body))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        self.tell("response.created", response={"id": "r"})
        self.tell("response.output_item.done", output_index=0, item=self.items.pop(0))
        usage = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}
        self.tell("response.completed", response={"id": "r", "usage": usage})
        self.close_connection = True

    def tell(self, kind: str, **about: Any) -> None:
        self.wfile.write(f"event: {kind}\ndata: {json.dumps({'type': kind, **about})}\n\n".encode())

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def says(text: str) -> Item:
    return {"type": "message", "role": "assistant", "id": "m", "content": [{"type": "output_text", "text": text}]}


def calls(name: str, **arguments: Any) -> Item:
    given = json.dumps(arguments)
    return {"type": "function_call", "id": "f", "call_id": f"call-{name}", "name": name, "arguments": given}


@pytest.fixture
def real(crew_on: Callable[..., Crew], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Crew]:
    """Make a team that finds the real engine on PATH, and a scripted API; at the end, no process of one is left."""
    system.need("bubblewrap", bubblewrap.unavailable_reason(Policy(tmp_path, writes=False)))
    system.need(CODEX.title, None if (INSTALLED / CODEX.program).exists() else f"{INSTALLED} is not there")
    crew = crew_on()
    monkeypatch.setenv("PATH", f"{INSTALLED}:{os.environ['PATH']}")
    Responses.asked.clear()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Responses) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        address = f"http://127.0.0.1:{server.server_port}/v1"
        crew.environment.update(PATH=os.environ["PATH"], OPENAI_API_KEY=KEY, OPENAI_BASE_URL=address)
        yield crew
        crew.end()
        server.shutdown()
        thread.join()
    eventually(lambda: processes(crew, "e") == [], "no process of the engine")


def test_codex_works_with_a_key_that_it_does_not_see(real: Crew) -> None:
    Responses.items[:] = [calls("exec_command", cmd="echo hi > a.txt && cat a.txt"), says("done"), says("again")]
    assert real.answer(spawn(real, "e", "write it", engine="codex"), TIMEOUT).text == "done"
    assert (real.root / "a.txt").read_text() == "hi\n"
    (ran,) = of(real, "e", ToolResult)
    assert (ran.name, ran.content, ran.is_error) == ("bash", "hi\n", False)
    assert (real.see("e").status.tokens.input, real.see("e").status.tokens.output) == (20, 10)
    real.kill("e")
    real.wait_for("e", "crashed")
    hiring.resume(real.team, "e")
    letter = messages.send(real.team, "e", "is it done?")
    assert real.answer(hiring.Assignment("e", letter.id, 0, fresh=False), TIMEOUT).text == "again"
    assert [each.loaded for each in of(real, "e", EngineSession)] == [False, True]
    assert str(Responses.asked[-1][1]["input"]).count(f'id="{letter.id}"') == 1
    # It keeps what it takes for its key, and gets another one at each start.
    assert {key for key, _ in Responses.asked} == {f"Bearer {KEY}"}
    kept = (home(real, "e") / ".codex" / "auth.json").read_text()
    assert "crewboard-" in kept
    assert KEY not in kept
