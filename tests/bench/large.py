"""Large teams on disk, as after weeks of work: journals whose events are a few kilobytes each."""

import json
from collections.abc import Iterator
from pathlib import Path

from crewboard.records.agents import HireOptions, Spec
from crewboard.records.team import Member
from crewboard.store import agents, roster
from crewboard.store.layout import AgentDirectory, TeamDirectory

_LINE = "    return [token for token in scan(source) if token.kind not in skipped]  # 120 of these make a file\n"
RESULT = _LINE * 40
"""The result of a tool call: 4 KiB, like a file of some length."""


def turn(number: int, run: int) -> Iterator[dict[str, object]]:
    """Return the events of one model call with one tool call."""
    call, ts = f"toolu_{run}_{number}", 1_790_000_000.0 + number
    say = {"type": "text", "text": f"I look at file {number} now, and then decide what to change in it."}
    use = {"type": "tool_use", "id": call, "name": "read_file", "input": {"path": f"src/module_{number}.py"}}
    usage = {"input": 900, "output": 80, "cache_read": 40000, "cache_write": 500}
    common = {"ts": ts, "run": run}
    # The kind comes first, as in the lines that a worker writes.
    yield {"kind": "reply", **common, "content": [say, use], "stop_reason": "tool_use", "usage": usage, "model": "m"}
    yield {"kind": "tool_start", **common, "tool_use_id": call, "name": "read_file", "input": use["input"]}
    yield {"kind": "tool_result", **common, "tool_use_id": call, "name": "read_file", "content": RESULT + str(number)}


def conversation(run: int, size: int) -> Iterator[bytes]:
    """Return the lines of a run with a fresh conversation of about `size` bytes, without its end."""
    prompt = f"prompt-{run}"
    begun = {"kind": "run_started", "ts": 1.0, "run": run, "pid": 1, "type": "explore", "model": "m", "fresh": True,
             "prompt_id": prompt, "mail_from": 0, "boot_id": "b", "start_ticks": 1}  # fmt: skip
    asked = {"kind": "intake", "ts": 1.0, "run": run, "messages": [], "cursor": 0, "entered": [], "prompt": "Work.",
             "prompt_from": "operator", "assignment": prompt}  # fmt: skip
    written = 0
    for event in (begun, asked):
        yield json.dumps(event).encode() + b"\n"
    number = 0
    while written < size:
        number += 1
        for event in turn(number, run):
            line = json.dumps(event).encode() + b"\n"
            written += len(line)
            yield line


def write_journal(agent: AgentDirectory, size: int, runs: int = 1) -> None:
    """Write a journal of about `size` bytes in `runs` runs, each with a conversation of its own."""
    agent.path.mkdir(parents=True, exist_ok=True)
    with agent.journal.on_disk.open("wb") as file:
        for run in range(1, runs + 1):
            file.writelines(conversation(run, size // runs))


def enlist(team: TeamDirectory, name: str, runs: int = 1) -> Spec:
    """Add an agent to the roster whose next run continues the conversation of run `runs`."""
    roster.put(team, Member(name=name, type="explore"))
    spec = Spec(
        prompt="Work.", prompt_id=f"prompt-{runs}", type="explore", model="m", flags=HireOptions(), run=runs + 1
    )
    return agents.change_spec(team.agent(name), lambda _: spec)


def copy_journal(source: Path, agent: AgentDirectory) -> None:
    """Give another agent the same journal."""
    agent.path.mkdir(parents=True, exist_ok=True)
    with source.open("rb") as original, agent.journal.on_disk.open("wb") as copy:
        while piece := original.read(1 << 24):
            copy.write(piece)
