"""A whole assignment of a worker in one process, so that a fault can be injected at each of its file operations.

Everything is real but the model, which follows a script, and the file tools, which find no file.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast
from unittest import mock

from crewboard.errors import CrewboardError, ExitCode
from crewboard.names import LEAD
from crewboard.records.agents import HireOptions, Spec, Tokens
from crewboard.records.events import Event, Reply, RunStarted, ToolStart
from crewboard.records.team import Member
from crewboard.sandbox.sandbox import Sandbox
from crewboard.store import agents, journal, json_records, mailbox, roster, tasks
from crewboard.store.layout import TeamDirectory
from crewboard.untrusted import undelimit
from crewboard.worker.interrupts import Interrupts, WorkerExit
from crewboard.worker.run_state import RunState
from crewboard.worker.tools.base import FileToolClient, Outcome
from tests.crash.faults import Disk, Fault, Killed
from tests.crash.scenarios import message

if TYPE_CHECKING:
    from crewboard.worker.llm.model import Model

SCRIPT: tuple[tuple[dict[str, Any], ...], ...] = (
    (
        {"type": "tool_use", "id": "u1", "name": "send_message", "input": {"to": "other", "content": "I begin"}},
        {"type": "tool_use", "id": "u2", "name": "task_claim", "input": {"task_id": 1}},
    ),
    ({"type": "tool_use", "id": "u3", "name": "task_update", "input": {"task_id": 1, "status": "completed"}},),
    ({"type": "text", "text": "it is done"},),
)
"""The replies of the model, turn by turn."""


READS: tuple[dict[str, Any], ...] = (
    {"type": "tool_use", "id": "r1", "name": "list_dir", "input": {}},
    {"type": "tool_use", "id": "r2", "name": "read_file", "input": {"path": "x"}},
    {"type": "tool_use", "id": "r3", "name": "read_file", "input": {"paths": "no such input"}},
    {"type": "tool_use", "id": "r4", "name": "grep", "input": {"pattern": "x"}},
)
"""Calls that run at once. The first one ends last, the third one is refused."""


class ScriptedModel:
    """A model that follows `SCRIPT` and records its requests."""

    window = 200_000
    longest_reply = 16_000
    is_priced = is_api = True
    defers_tools = hears_system = falls_back = False
    run_state: RunState

    def __init__(
        self, stop: Sequence[str] = ("tool_use", "tool_use", "end_turn"), script: Sequence[Sequence[Any]] = SCRIPT
    ) -> None:
        self.asked: list[list[dict[str, Any]]] = []
        self.thinking_was_dropped = False
        self._stop = stop
        self._script = script

    async def learn_size(self) -> None:
        self.settle_window()

    def settle_window(self) -> None:
        self.run_state.set_window(self.window)

    async def ask_again(self) -> None: ...

    async def reply(
        self, system: str, tools: list[Any], messages: list[dict[str, Any]], longest: int, *, may_exceed: object = None
    ) -> Reply:
        self.asked.append(json.loads(json.dumps(messages)))
        turn = sum(one["role"] == "assistant" for one in messages)
        script = self._script
        content = [dict(block) for block in script[turn]] if turn < len(script) else [{"type": "text", "text": "noted"}]
        stop = self._stop[turn] if turn < len(script) else "end_turn"
        return Reply(ts=1, content=content, stop_reason=stop, usage=Tokens(input=10, output=1))


class TalkativeModel(ScriptedModel):
    """A model with a small context window that replies with text only."""

    window = 20_000

    async def reply(
        self, system: str, tools: list[Any], messages: list[dict[str, Any]], longest: int, *, may_exceed: object = None
    ) -> Reply:
        self.asked.append(json.loads(json.dumps(messages)))
        return Reply(ts=1, content=[{"type": "text", "text": "so it is"}], stop_reason="end_turn", usage=Tokens())


class NoFileTools:
    """File tools that find no file. A list_dir ends after a grep that began at the same time."""

    sandbox: Sandbox | None = None

    def __init__(self) -> None:
        self._searched = asyncio.Event()

    async def ask(self, name: str, arguments: dict[str, Any]) -> Outcome:
        if name == "grep":
            self._searched.set()
        elif name == "list_dir":
            await self._searched.wait()
        return Outcome("there is no such file", is_error=True)

    async def end(self) -> bool:
        return False

    async def end_commands_with_lent_network(self) -> None: ...

    def ended_commands(self) -> dict[str, str]:
        return {}


def arrange(team: TeamDirectory) -> None:
    """Hire an agent that has mail and a task, and ends when it is done."""
    for name in ("scout", "other"):
        roster.put(team, Member(name=name, type="code"))
    spec = Spec(prompt="do it", prompt_id="p1", type="code", model="m", run=1, flags=HireOptions(once=True))
    agents.change_spec(team.agent("scout"), lambda _: spec)
    tasks.add(team, "x", 1.0)
    for number in range(3):
        mailbox.send(team, message(f"m{number}"))


def run(team: TeamDirectory, model: ScriptedModel) -> int:
    """Run the agent once, as `crewboard.worker` does, and return its exit code."""
    spec = team.agent("scout").spec.load()
    assert spec is not None
    try:
        return _work_and_end(RunState(team.agent("scout"), spec), model)
    except CrewboardError as error:
        return error.exit_code


def _work_and_end(run_state: RunState, model: ScriptedModel) -> int:
    spec, model.run_state = run_state.spec, run_state
    run_state.append(
        RunStarted(ts=1, pid=1, type="code", model="m", fresh=run_state.fresh, prompt_id=spec.prompt_id)
    )  # fmt: skip
    run_state.show("starting")
    try:
        asyncio.run(_live(run_state, model))
    except WorkerExit as leave:
        run_state.finish(leave.code, leave.reason)
        return leave.code
    raise AssertionError("a worker does not end by itself")


async def _live(run_state: RunState, model: ScriptedModel) -> None:
    # It loads the SDK, which most test runners do without.
    from crewboard.worker import life, loop

    helper = cast("FileToolClient", NoFileTools())
    # asyncio logs what a killed task raised when the task is collected. That parses source, and CPython 3.11 fails if
    # other source is being parsed then.
    asyncio.get_running_loop().set_exception_handler(lambda _loop, _context: None)
    # A worker waits for the storage, and gives up: both in no time.
    with mock.patch.multiple(life, FIRST_DELAY=0.0005, RETRY_BUDGET=0.002):
        await loop.Loop(run_state, Interrupts(run_state), cast("Model", model), helper, {}).run()


def resume(team: TeamDirectory) -> None:
    """Ask for the next run, as `crewboard resume` does."""
    agent = team.agent("scout")
    agents.change_spec(agent, lambda old: _next_run(old, agents.last_run(agent)))


def _next_run(old: Spec | None, last: int) -> Spec:
    assert old is not None
    return old.replace(run=max(old.run, last) + 1)


def work_until_done(team: TeamDirectory, model: ScriptedModel, fault: Fault | None) -> tuple[list[str], list[int]]:
    """Run with the fault, then resume until the work is done; return the file operations and the exit codes."""
    ends: list[int] = []
    with Disk(fault) as disk:
        try:
            ends.append(run(team, model))
        except Killed:
            ends.append(-9)
    for _ in range(2):
        if ends[-1] == ExitCode.DONE:
            break
        json_records.cached_file.cache_clear()
        tasks.release(team, "scout", 2.0)
        resume(team)
        ends.append(run(team, model))
    return disk.calls, ends


def check(team: TeamDirectory, model: ScriptedModel) -> None:
    """Check that the work was done exactly once."""
    for asked in model.asked:
        check_request(asked)
    last = mails(model.asked[-1])
    assert [ident for ident in last if ident != "p1"] == ["m0", "m1", "m2"], "in order, and each once"
    sent = [mail.content for mail in mailbox.read(team, "other").messages if mail.type == "message"]
    assert sent == ["I begin"]
    results = [mail for mail in mailbox.read(team, LEAD).messages if mail.type == "result"]
    assert (results[0].content, results[0].metadata["answers"]) == ("it is done", ["p1", "m0", "m1", "m2"])
    assert (team.path / str(results[0].metadata["result"])).read_text() == "it is done"
    starts = Counter(event.tool_use_id for event in events_of(team) if isinstance(event, ToolStart))
    assert set(starts.values()) == {1}, "no tool call begins twice"
    told = any("outcome unknown" in json.dumps(asked) for asked in model.asked)
    assert tasks.load(team, 1).status == "completed" or told
    noted = "task #1 is still in progress: scout did not report its outcome\n\nnoted"
    assert [mail.content for mail in results[1:]] in ([[], [noted]] if told else [[]]), "after a reminder"
    assert len(model.asked) <= 3 + told + 1, "a reply that was kept is not asked for again"
    ended = team.agent("scout").exit.load()
    assert ended is not None
    assert ended.reason == "finished"


def events_of(team: TeamDirectory) -> list[Event]:
    return [event for event, _ in journal.read(team.agent("scout").journal) if event is not None]


def check_request(asked: list[dict[str, Any]]) -> None:
    """Check that the API takes a request: roles alternate, the user comes last, each tool call has one result."""
    roles = [turn["role"] for turn in asked]
    assert roles == ["user", "assistant"] * (len(roles) // 2) + ["user"], roles
    called = [block["id"] for turn in asked for block in turn["content"] if block["type"] == "tool_use"]
    answered = [block["tool_use_id"] for turn in asked for block in turn["content"] if block["type"] == "tool_result"]
    assert called == answered
    assert all(count == 1 for count in Counter(mails(asked)).values())


def mails(asked: list[dict[str, Any]]) -> list[str]:
    """Return the ids of the prompt and of all mail in a request, in order."""
    texts = (block["text"] for turn in asked for block in turn["content"] if block["type"] == "text")
    return [piece.id for text in texts for piece in undelimit(text) if piece.kind != "notice"]
