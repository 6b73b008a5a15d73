"""Kills at random among real engines: no letter is lost or doubled, nothing is left, and nothing is written early.

`CREWBOARD_KILLS` is how many; `CREWBOARD_SEED` chooses them.
"""

import contextlib
import itertools
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from crewboard import engines
from crewboard.commands import answers, messages
from crewboard.commands import hire as hiring
from crewboard.errors import CrewboardError
from crewboard.offline.reply import Reply
from crewboard.protocol import requests, supervisor_client
from crewboard.readmodel.states import DEAD
from crewboard.records.events import Answer
from crewboard.unix import process
from crewboard.worker.api_relay import LISTEN
from crewboard.worker.team_tools import RELAY
from tests.api.wire import MessagesRequest, Text, ToolResult
from tests.crew import Crew, eventually
from tests.model import Script, calls, says
from tests.worker import real_engines, test_real_codex
from tests.worker.test_engine import of, processes, spawn

KILLS = int(os.environ.get("CREWBOARD_KILLS", "10"))
SEED = int(os.environ.get("CREWBOARD_SEED", "1"))

TIMEOUT = 120.0
"""Seconds to wait for a step of an engine, on a busy machine: its start alone reads 400 MB."""

READERS = {"reader-claude": "claude", "reader-codex": "codex"}
PLANNERS = {"planner-claude": "claude", "planner-codex": "codex"}
AGENTS = {**READERS, **PLANNERS}

pytestmark = [
    pytest.mark.engines,
    pytest.mark.timeout(300 + 30 * KILLS),
    pytest.mark.files_only("an engine does not know where the team is kept"),
    pytest.mark.misfits("the engine sends fields that are newer than the description of the API"),
]


class Witness:
    """Both models: they tell what they were shown, and are scripted by that alone."""

    def __init__(self) -> None:
        self.shown: dict[str, list[list[int]]] = {name: [] for name in AGENTS}
        """For each request of an agent, the numbers of the letters in the prompts of the conversation, in order."""
        self.is_approved = False
        self._chance = random.Random(SEED)

    def see(self, said: list[str]) -> str:
        """Record a request with these texts of its user; return the agent."""
        text = "\n".join(said)
        # As the worker introduces an agent to each new session, also if that has none of its earlier texts.
        name = next(each for each in AGENTS if f"You are {each}, an agent of type" in text)
        self.shown[name].append([int(part.split("]", 1)[0]) for part in text.split("[letter ")[1:]])
        return name

    def command(self, name: str, *, is_prompt: bool) -> str | None:
        """Return the command that the model of an agent runs next; None if it ends its turn."""
        if not is_prompt:
            return None
        if name in READERS:
            return f"sleep {self._chance.random() / 2:.2f}" if self._chance.random() < 0.6 else None
        return f"echo late >> late-{name}" if self.is_approved else f"echo early > early-{name}"


class Turns(Script):
    """The model of Claude Code."""

    def __init__(self, witness: Witness) -> None:
        super().__init__()
        self._witness = witness

    def reply(self, agent: str, request: MessagesRequest) -> Reply | None:
        if not request.tools:
            return says("a title")
        turns = [turn for turn in request.messages if turn.role == "user"]
        texts = [[block.text for block in turn.content if isinstance(block, Text)] for turn in turns]
        name = self._witness.see([text for each in texts for text in each])
        is_prompt = not any(isinstance(block, ToolResult) for block in turns[-1].content)
        command = self._witness.command(name, is_prompt=is_prompt)
        if command is not None:
            return calls("Bash", command=command, description="run it")
        if name in PLANNERS and not self._witness.is_approved:
            return calls("ExitPlanMode", plan="# Plan\n1. write a file\n")
        return says("I am done.")


class Responses(test_real_codex.Responses):
    """The model of Codex."""

    witness: Witness

    def next_item(self, body: dict[str, Any]) -> test_real_codex.Item:
        users = [each["content"] for each in body["input"] if each.get("role") == "user"]
        texts = [part.get("text", "") for each in users for part in (each if isinstance(each, list) else [])]
        name = self.witness.see(texts)
        command = self.witness.command(name, is_prompt=not body["input"][-1]["type"].endswith("_output"))
        if command is not None:
            return test_real_codex.calls("exec_command", cmd=command)
        if name in PLANNERS and not self.witness.is_approved:
            return test_real_codex.says("<proposed_plan>\n# Plan\n1. write a file\n</proposed_plan>")
        return test_real_codex.says("I am done.")


class Storm:
    """A team of four engines, of which anything is killed."""

    def __init__(self, crew: Crew, witness: Witness) -> None:
        self.crew = crew
        self.witness = witness
        self.killed: Counter[str] = Counter()
        self._chance = random.Random(SEED)
        self._letters: dict[str, list[int]] = {name: [] for name in READERS}
        self._sent = 0

    def begin(self) -> None:
        """Hire the agents, and wait until two work and two have a plan that waits."""
        for name, engine in AGENTS.items():
            spawn(self.crew, name, f"You are the agent {name}.", engine=engine, plan=name in PLANNERS)
        eventually(lambda: all(self.witness.shown.values()), "a request of each", TIMEOUT)
        self.until(lambda: len(self.plans()) == len(PLANNERS), "both plans")

    def plans(self) -> list[str]:
        """Return the requests that wait for the approval of a plan."""
        return [each.id for each in requests.pending(self.crew.directory) if each.type == "plan_approval"]

    def write(self, name: str) -> str:
        """Send a letter; return its id."""
        self._sent += 1
        self._letters[name].append(self._sent)
        return messages.send(self.crew.team, name, f"[letter {self._sent}]").id

    def victims(self, name: str) -> dict[str, list[int]]:
        """Return the processes of an agent's engine by what they are."""
        found: dict[str, list[int]] = {"relay": [], "adapter": [], "CLI": [], "bubblewrap": []}
        program = engines.KNOWN[AGENTS[name]].program
        for pid in processes(self.crew, name):
            arguments = process.arguments(pid) or [""]
            if os.path.basename(arguments[0]) == "bwrap":  # noqa: PTH119
                kind = "bubblewrap"
            elif LISTEN in arguments or RELAY in arguments:
                kind = "relay"
            elif any(part.endswith((program, "/dist/index.js")) for part in arguments[:3]):
                kind = "adapter"
            else:
                kind = "CLI"
            found[kind].append(pid)
        return found

    def strike(self) -> None:
        """Kill one thing, or the worker with its supervisor."""
        name = self._chance.choice([*AGENTS])
        of_engine = ["relay", "adapter", "CLI", "bubblewrap"]
        victim = self._chance.choice([*of_engine, "worker", "supervisor", "worker and supervisor"])
        before = processes(self.crew, name)
        try:
            if "supervisor" in victim:
                process.send_signal(self.crew.supervisor_pid(), signal.SIGKILL)
            if "worker" in victim:
                self.crew.kill(name)
        except AssertionError:
            # It is gone already.
            return
        if victim in of_engine:
            there = self.victims(name)[victim]
            if not there:
                return
            process.send_signal(self._chance.choice(there), signal.SIGKILL)
        self.killed[victim] += 1
        if "worker" in victim or victim == "bubblewrap":
            eventually(lambda: not set(before) & set(processes(self.crew, name)), f"the end of what {name} started")

    def repair(self) -> None:
        """Do what a user does: start what crashed again, and permit what is asked for."""
        if not supervisor_client.is_alive(self.crew.directory):
            supervisor_client.ensure_running(self.crew.directory)
        for agent in self.crew.view().agents:
            try:
                if agent.state in DEAD:
                    hiring.resume(self.crew.team, agent.name)
                for each in requests.pending(self.crew.directory):
                    if each.type == "permission" and each.from_ == agent.name:
                        answers.approve(self.crew.team, each.id)
            except CrewboardError as error:
                # It ended, or was asked anew, meanwhile.
                self.killed[f"too late: {type(error).__name__}"] += 1
        assert self.early() == [], "nothing is written before the approval"

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Repair what was broken until a condition is true."""

        def look() -> bool:
            self.repair()
            return condition()

        eventually(look, what, TIMEOUT)

    def early(self) -> list[str]:
        """Return what was written that no one approved."""
        written = [] if self.witness.is_approved else self.crew.root.glob("late-*")
        return [path.name for path in [*self.crew.root.glob("early-*"), *written]]

    def rage(self) -> None:
        """Write letters and kill, at random."""
        while sum(count for what, count in self.killed.items() if "too late" not in what) < KILLS:
            for name in READERS:
                if self._chance.random() < 0.5:
                    self.write(name)
            # Some come while engines start, and some while they work.
            until = time.monotonic() + self._chance.choice([0, 0.3, 1, 4, 12]) * self._chance.random()
            while time.monotonic() < until:
                self.repair()
                time.sleep(0.05)
            self.strike()

    def settle(self) -> None:
        """Wait until each letter was read, then approve the plans, and wait until they are carried out."""
        last = {name: self.write(name) for name in READERS}

        for name, letter in last.items():
            with self._telling(name):
                self.until(lambda: any(letter in each.answers for each in self.answers(name)), f"an answer of {name}")  # noqa: B023
        self.until(lambda: len(self.plans()) == len(PLANNERS), "both plans")
        self.witness.is_approved = True
        for ident in self.plans():
            answers.approve(self.crew.team, ident)
        late = [self.crew.root / f"late-{name}" for name in PLANNERS]
        self.until(lambda: all(path.exists() for path in late), "the work of the plans")

    @contextlib.contextmanager
    def _telling(self, name: str) -> Iterator[None]:
        """Tell the story of an agent that fails."""
        try:
            yield
        except AssertionError as error:
            seen = self.crew.see(name)
            told = [str(each)[:300] for each in self.crew.events(name)[-14:]]
            log = self.crew.agent(name).log.read_text()[-1500:]
            error.add_note("\n".join([f"{seen.state}: {seen.status}", *told, log, str(self.victims(name))]))
            raise

    def answers(self, name: str) -> list[Answer]:
        return of(self.crew, name, Answer)

    def check(self) -> None:
        """Check what the models were shown."""
        for name, sent in self._letters.items():
            shown = self.witness.shown[name]
            doubled = [each for each in shown if len(set(each)) != len(each)]
            assert not doubled, f"{name} was shown a letter twice: {doubled[-1]}"
            assert sorted(shown[-1]) == sent, f"{name} was not shown {set(sent) - set(shown[-1])}"
            # A letter that a model has seen keeps its place: none is said anew in a conversation without it.
            for before, after in itertools.pairwise(shown):
                assert after[: len(before)] == before, f"{name}: {before}, and then {after}"
            failed = [each.error for each in self.answers(name) if each.error]
            assert not failed, f"{name}: {failed}"
        print(f"{dict(self.killed)}; {self._sent} letters, {sum(map(len, self.witness.shown.values()))} requests")


@pytest.fixture
def storm(crew_on: Callable[..., Crew], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Storm]:
    """Make a team that finds both engines on PATH, and their models; no process is left of it."""
    witness = Witness()
    monkeypatch.setattr(Responses, "witness", witness, raising=False)
    with real_engines.crew_with_both(crew_on, tmp_path, monkeypatch, Turns(witness), Responses, [*AGENTS]) as crew:
        yield Storm(crew, witness)
    root = os.fsencode(crew.root)
    eventually(lambda: not [pid for pid in process.parents() if _names(pid, root)], "no process of the team")


def _names(pid: int, root: bytes) -> bool:
    if pid == os.getpid():
        return False
    try:
        return root in process.environment(pid) or root in os.fsencode("\0".join(process.arguments(pid)))
    except OSError:
        return False


def test_no_kill_loses_or_doubles_a_letter_or_leaves_a_process(storm: Storm) -> None:
    storm.begin()
    storm.rage()
    storm.settle()
    storm.check()
