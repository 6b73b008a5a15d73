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
from crewboard.commands import answers, control, messages
from crewboard.commands import hire as hiring
from crewboard.protocol import requests
from crewboard.records.events import EngineSession, Gate, Retry, Taken, ToolResult
from crewboard.records.requests import Request
from crewboard.sandbox import bubblewrap
from crewboard.sandbox.policy import Policy
from crewboard.worker.team_tools import SERVER
from tests import system
from tests.crew import Crew, eventually
from tests.worker.test_engine import home, letters, of, processes, spawn

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
    """The Responses API: each request gets the next item, or a broken stream for None. It has no web sockets."""

    protocol_version = "HTTP/1.1"
    asked: ClassVar[list[tuple[str, dict[str, Any]]]] = []
    items: ClassVar[list[Item | None]] = []

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
        self.close_connection = True
        if (item := self.next_item(body)) is None:
            return
        self.tell("response.output_item.done", output_index=0, item=item)
        usage = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}
        self.tell("response.completed", response={"id": "r", "usage": usage})

    def next_item(self, _body: dict[str, Any]) -> Item | None:
        return self.items.pop(0)

    def tell(self, kind: str, **about: Any) -> None:
        self.wfile.write(f"event: {kind}\ndata: {json.dumps({'type': kind, **about})}\n\n".encode())

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def says(text: str) -> Item:
    return {"type": "message", "role": "assistant", "id": "m", "content": [{"type": "output_text", "text": text}]}


def calls(name: str, **arguments: Any) -> Item:
    given = json.dumps(arguments)
    return {"type": "function_call", "id": "f", "call_id": f"call-{name}", "name": name, "arguments": given}


def calls_team(name: str, **arguments: Any) -> Item:
    """Call a tool of the team as its models do, which have most tools in a language of programs alone."""
    program = f"text(await tools.mcp__{SERVER}__{name}({json.dumps(arguments)}))"
    return {"type": "custom_tool_call", "id": "c", "call_id": f"call-{name}", "name": "exec", "input": program}


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


def test_a_turn_of_codex_whose_stream_broke_is_taken_again(real: Crew) -> None:
    Responses.items[:] = [says("first")]
    assert real.answer(spawn(real, "e", "write it", engine="codex"), TIMEOUT).text == "first"
    # It asks once, and tries five times again.
    Responses.items[:] = [None] * 6
    letter = messages.send(real.team, "e", "is it done?")
    eventually(lambda: real.see("e").waits_for_api, "the wait for the API", TIMEOUT)
    (retry,) = of(real, "e", Retry)
    assert "stream disconnected before completion" in retry.error
    Responses.items[:] = [says("done")]
    control.interrupt(real.team, "e", "try it now")
    assert real.answer(hiring.Assignment("e", letter.id, 0, fresh=False), TIMEOUT).text == "done"
    assert str(Responses.asked[-1][1]["input"]).count(f'id="{letter.id}"') == 1
    assert [each.loaded for each in of(real, "e", EngineSession)] == [False, True]


def asked(crew: Crew, kind: str, before: Request | None = None) -> Request:
    """Wait for a request of the agent, another one than `before`."""

    def look() -> Request | None:
        return next((each for each in requests.pending(crew.directory) if each.type == kind and each != before), None)

    return eventually(look, f"a {kind} request", TIMEOUT)


def test_codex_uses_the_tools_of_the_team(real: Crew) -> None:
    letter = calls_team("send_message", to="operator", content="hello")
    question = calls_team("ask_operator", question="which?")
    Responses.items[:] = [letter, question, says("done")]
    assignment = spawn(real, "e", "ask", engine="codex")
    answers.answer(real.team, asked(real, "question").id, "the first")
    assert real.answer(assignment, TIMEOUT).text == "done"
    assert letters(real, "operator", "hello") == 1
    assert "the operator answers: the first" in str(Responses.asked[-1][1]["input"])
    assert [each.name for each in of(real, "e", ToolResult)] == ["send_message", "ask_operator"]
    # The tools of our own need no permission.
    assert [each.type for each in requests.load_all(real.directory)] == ["question"]


@pytest.mark.parametrize("how", ["its plan mode", "the tool"])
def test_codex_writes_nothing_before_its_plan_is_approved(real: Crew, how: str) -> None:
    def plan(text: str) -> Item:
        if how == "the tool":
            return calls_team("submit_plan", plan=text)
        return says(f"<proposed_plan>\n{text}\n</proposed_plan>")

    early, late = (calls("exec_command", cmd=f"echo {word} >> a.txt") for word in ("early", "late"))
    Responses.items[:] = [early, plan("# Plan 1"), plan("# Plan 2"), late, says("done")]
    assignment = spawn(real, "e", "write it", engine="codex", plan=True)
    first = asked(real, "plan_approval")
    assert first.plan.strip() == "# Plan 1"
    answers.reject(real.team, first.id, "more tests")
    second = asked(real, "plan_approval", first)
    assert second.plan.strip() == "# Plan 2"
    assert "more tests" in str(Responses.asked[-1][1]["input"])
    assert not (real.root / "a.txt").exists()
    answers.approve(real.team, second.id)
    assert real.answer(assignment, TIMEOUT).text == "done"
    assert (real.root / "a.txt").read_text() == "late\n"
    assert [each.open for each in of(real, "e", Gate)] == [False, True]
    assert [each.loaded for each in of(real, "e", EngineSession)] == [False, True]


def test_mail_enters_a_turn_of_codex(real: Crew) -> None:
    waits = calls("exec_command", cmd="touch at; until [ -e go ]; do sleep 0.05; done", yield_time_ms=60_000)
    Responses.items[:] = [waits, says("done")]
    assignment = spawn(real, "e", "wait", engine="codex")
    eventually((real.root / "at").exists, "the command", TIMEOUT)
    letter = messages.send(real.team, "e", "and be quick")
    eventually(lambda: any(letter.id in each.texts for each in of(real, "e", Taken)), "the letter in the turn", TIMEOUT)
    assert len(Responses.asked) == 1
    (real.root / "go").touch()
    assert real.answer(assignment, TIMEOUT).text == "done"
    assert str(Responses.asked[-1][1]["input"]).count(f'id="{letter.id}"') == 1
    assert len(Responses.asked) == 2
