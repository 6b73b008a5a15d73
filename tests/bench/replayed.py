"""Hours of a team's work in minutes: the records that 20 agents write for their requests, without the agents.

`python -m tests.bench.replayed FOLDER COUNT RATE` makes a team below FOLDER, prints a line once it is there, and begins
when it reads one. It replays COUNT requests, RATE of them a second (0: as fast as it can), and prints how many it was.
Then it holds the leases of the agents until its input ends.
"""

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from crewboard.commands.context import Team
from crewboard.records.agents import Context, Cursor, Status, Tokens
from crewboard.records.base import JsonValue
from crewboard.records.events import Answer, Intake, Reply, RunStarted, ToolResult, ToolStart
from crewboard.records.team import Task
from crewboard.store import journal, leases, mailbox
from crewboard.store.layout import TeamDirectory
from tests.cli.files import alive, enlist_all

AGENTS = 20

_MODEL = "claude-sonnet-5-5"
_TOOLS = (
    ("read_file", {"path": "src/app/routes.py"}),
    ("grep", {"pattern": "def list_orders", "path": "src/"}),
    ("edit_file", {"path": "src/app/models.py", "old_text": "a = 1\n", "new_text": "a = 2\n"}),
)
_WORDS = (
    "the", "order", "list", "needs", "an", "opaque", "cursor", "so", "that", "pages", "stay", "the", "same", "while",
    "rows", "arrive", "and", "the", "tests", "say", "so",
)  # fmt: skip
_RNG = random.Random(7)


def _text(words: int) -> str:
    return " ".join(_RNG.choice(_WORDS) for _ in range(words))


def _work(team: TeamDirectory, name: str, pid: int) -> Iterator[bool]:
    """Write what an agent writes; yield after each part that is written at once, True after the last of a request."""
    agent, end, assignment, number = team.agent(name), None, f"p-{name}", 0

    def set_status(state: str, doing: str) -> None:
        used = Tokens(input=900 * number, output=90 * number, cache_read=4500 * number)
        filled = Context(used=20_000 + 13 * number % 150_000, limit=200_000)
        agent.status.save(Status(
                run=1, pid=pid, state=state, since=time.time(), doing=doing, turn=number, model=_MODEL,  # type: ignore[arg-type]
                beat=time.time(), tokens=used, context=filled, cost_usd=0.004 * number,
            ))  # fmt: skip

    end = journal.append(
        agent.journal,
        RunStarted(ts=time.time(), run=1, pid=pid, type="code", model=_MODEL, fresh=True, prompt_id=assignment),
    )
    while True:
        number += 1
        set_status("working", "thinking")
        yield False
        for _ in range(3):
            with agent.live.open("a") as live:
                live.write(_text(12) + " ")
            yield False
        tool, given = _RNG.choice((*_TOOLS, ("bash", {"command": f"pytest -x tests/unit -k case{number}"})))
        call = f"toolu_{name}_{number}"
        said: list[dict[str, Any]] = [
            {"type": "text", "text": _text(30)},
            {"type": "tool_use", "id": call, "name": tool, "input": given},
        ]
        reply = Reply(
            ts=time.time(), run=1, content=said, stop_reason="tool_use", model=_MODEL, seconds=3.1, cost_usd=0.004,
            usage=Tokens(input=900, output=80, cache_read=12_000), id=f"msg_{name}_{number}",
        )  # fmt: skip
        end = journal.append(agent.journal, reply, at=end)
        agent.live.write_text("")
        set_status("working", f"{tool} {next(iter(given.values()))}")
        begun = ToolStart(ts=time.time(), run=1, tool_use_id=call, name=tool, input=given)
        end = journal.append(agent.journal, begun, at=end)
        yield False
        printed = _text(_RNG.choice((10, 40, 200)))
        done = ToolResult(ts=time.time(), run=1, tool_use_id=call, name=tool, content=printed, seconds=0.4)
        end = journal.append(agent.journal, done, at=end)
        if number % 3 == 0:
            file, body = f"{name}-1-{number}.md", _text(40)
            team.keep_result(file, body.encode())
            answer = Answer(
                ts=time.time(), run=1, assignment=assignment, answers=[assignment], text=body, result=f"results/{file}"
            )
            end = journal.append(agent.journal, answer, at=end)
            told: dict[str, JsonValue] = {"result": f"results/{file}", "answers": [assignment]}
            mailbox.send(team, mailbox.compose(name, "operator", "result", body, metadata=told))
            set_status("idle", "")
            yield False
            letter = mailbox.send(team, mailbox.compose("operator", name, "message", _text(15)))
            assignment, cursor = letter.id, mailbox.size(team, name)
            picked = Intake(ts=time.time(), run=1, messages=[letter], cursor=cursor, entered=[letter.id],
                            assignment=letter.id)  # fmt: skip
            end = journal.append(agent.journal, picked, at=end)
            agent.cursor.save(Cursor(offset=cursor))
        yield True


def _replay(works: list[Iterator[bool]], count: int, rate: float) -> int:
    began, done, parts = time.monotonic(), 0, 0
    while done < count:
        done += next(works[parts % AGENTS])
        parts += 1
        # A request is written in six and a third parts.
        if rate and (left := began + parts / (rate * 6.33) - time.monotonic()) > 0:
            time.sleep(left)
    return done


def main() -> None:
    root, count, rate = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    team = Team(TeamDirectory(root / ".crewboard" / "default")).ensure()
    names = [f"worker{number:02}" for number in range(AGENTS)]
    with ExitStack() as stack:
        child = subprocess.Popen(["sleep", "infinity"])
        stack.callback(child.wait)
        stack.callback(child.kill)
        lock = leases.take(team.directory.supervisor_lock)
        assert lock is not None
        stack.callback(os.close, lock.descriptor)
        enlist_all(team, names, state="working", doing="thinking", since=time.time(), pid=child.pid)
        for number in range(1, 41):
            task = Task(id=number, subject=_text(5), created_at=time.time(), updated_at=time.time())
            team.directory.task(number).save(task)
        for name in names:
            stack.enter_context(alive(team, name))
        print("ready", flush=True)
        sys.stdin.readline()
        print(_replay([_work(team.directory, name, child.pid) for name in names], count, rate), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
