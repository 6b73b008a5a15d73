"""A team at work while all that stands before a conversation changes, at random, and each request is checked."""

import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from crewboard import mcp_servers, operations, skill_files
from crewboard.commands import accept, answers, control, hire, messages, stop
from crewboard.errors import CrewboardError
from crewboard.offline.conversation import Conversation
from crewboard.offline.reply import Reply
from crewboard.offline.service import Fault
from crewboard.protocol import requests
from crewboard.records.agents import Terms
from crewboard.records.events import Intake
from crewboard.records.messages import Message
from crewboard.records.requests import Request
from crewboard.store import leases, mailbox
from crewboard.store.journal import Follower
from crewboard.untrusted import undelimit
from tests.api.wire import MessagesRequest, Text
from tests.crew import Crew, eventually
from tests.model import ModelServer, calls, says
from tests.worker.test_prefix import thoughts_in

AGENTS = {"coder": "code", "tester": "test", "planner": "plan", "scout": "explore", "finder": "explore"}

WINDOW = 24_000
"""Tokens of the models: few, so that results are removed and conversations are summarised."""

MODELS = ("claude-opus-5-5", "claude-sonnet-5-5", "claude-haiku-5-5", "claude-opus-4-8")

PLAN = "# Do it\n\n1. look\n2. write\n3. check"

FAULTS = (
    Fault("cut"),
    Fault("clean_cut"),
    Fault("error_event", status=500),
    Fault("status", status=400, message=f"prompt is too long: {WINDOW + 1} tokens > {WINDOW} maximum"),
    Fault("status", status=400, message="messages.1.content.0: Invalid `signature` in `thinking` block"),
)

SLOW = (Fault("slow", seconds=0.2), Fault("drip", seconds=0.02))
"""Replies that take long enough to be interrupted, or killed, in their middle."""

SETTLE_TIMEOUT = 60.0

_SERVER = Path(__file__).with_name("mcp_server.py")


class StormModel(ModelServer):
    """A model that does anything, at random. It allows stale thinking because `refusals` tells of it."""

    def __init__(self, chance: random.Random) -> None:
        faults = chance.choices((None, *SLOW, *FAULTS), (0.93, 0.03, 0.03, *[0.01 / len(FAULTS)] * len(FAULTS)), k=5000)
        super().__init__(faults=faults, window=WINDOW, allows_stale_thinking=True)
        self._chance = chance
        self.is_settling = False
        """True: each reply ends its assignment."""

    @property
    def refusals(self) -> list[str]:
        """Return what the API would have refused, of which nothing was a fault."""
        return [*self._service.refused, *(f"stale thinking at {path}" for path in self._service.stale)]

    def _reply(self, talk: Conversation, request: MessagesRequest) -> Reply | None:
        if talk.wants_summary:
            return None
        chance = self._chance
        told = " ".join(block.text for block in request.messages[-1].content if isinstance(block, Text))
        if "asks you to shut down" in told:
            return calls("shutdown_response", approve=True)
        if self.is_settling or chance.random() < 0.12:
            return says(f"done {chance.random()}")
        content: list[dict[str, Any]] = [{"type": "thinking", "thinking": f"what now? {chance.random()}"}]
        if chance.random() < 0.5:
            content.append({"type": "text", "text": f"I look. {chance.random()}"})
        if chance.random() < 0.03:
            return Reply(content, stop_reason="max_tokens")
        if chance.random() < 0.2:
            content.append({"type": "thinking", "thinking": "rather this"})
        offered = sorted(talk.tools)
        for _ in range(chance.choice((1, 1, 1, 2, 4))):
            content += self._call(talk.name, offered).content
        return Reply(content)

    def _call(self, agent: str, offered: list[str]) -> Reply:
        chance = self._chance
        number = chance.randrange(10**6)
        other = chance.choice([name for name in AGENTS if name != agent])
        usual = [
            calls("read_file", path="big.txt", offset=1 + number % 50),
            calls("read_file", path="big.txt", offset=1 + number % 60),
            calls("glob", pattern=f"*{number}"),
            calls("grep", pattern=f"line {number % 100}"),
            calls("todo", items=[{"text": f"step {number}"}]),
            calls("send_message", to=other, content=f"found {number}"),
            calls("write_file", path=f"made-{number % 9}.txt", content=f"made {number}"),
            calls("submit_plan", plan=PLAN, files=[f"made-{number % 9}.txt"]),
            calls("skill", name=f"skill{number % 3}"),
            calls("ask_operator", question=f"Which of {number}?"),
        ]
        of_servers = [calls(name) for name in offered if name.startswith("mcp__own__more")]
        of_servers += [calls("find_tools", query=f"more{number % 9}") for name in offered if name == "find_tools"]
        # Those that are not offered are refused by the worker, as they should be.
        return chance.choice([*usual, *of_servers])


class Storm:
    """A team on a `StormModel`, to which anything happens."""

    def __init__(self, crew: Crew, model: StormModel, chance: random.Random, others: Sequence[str]) -> None:
        self.crew = crew
        self._others = others
        self.model = model
        self.happened: Counter[str] = Counter()
        self._chance = chance
        self._sent = 0
        self._acts: dict[Callable[[str], None], int] = {
            self._mail: 14, self._kill: 3, self._stop: 3, self._interrupt: 3, self._demand_plan: 3, self._pause: 1,
            self._change_skills: 2, self._change_tools: 2, self._change_project: 2, self._change_model: 1,
        }  # fmt: skip

    def begin(self) -> None:
        """Hire the agents."""
        (self.crew.root / "big.txt").write_text("".join(f"line {number} of some length\n" for number in range(220)))
        for name, kind in AGENTS.items():
            flags = {"plan": kind == "code", "web": kind == "plan", "max_turns": 100_000}
            self.crew.hire(name, kind, "Go on.", unsafe_no_sandbox=True, **flags)

    def rage(self, least: int, seconds: float) -> None:
        """Let things happen until there were `least` requests and all that may happen did, or one was refused."""
        end = time.monotonic() + seconds
        while not self.model.refusals and time.monotonic() < end:
            acts = self._acts
            if len(self.model.requests) >= least:
                lacking = self._lacking(self._seen())
                if not lacking:
                    return
                acts = {act: weight for act, weight in acts.items() if _name(act) in lacking} or acts
            (act,) = self._chance.choices([*acts], [*acts.values()])
            act(self._chance.choice([*AGENTS]))
            self.happened[_name(act)] += 1
            self._decide_for(self._chance.uniform(0, 0.1))

    def settle(self) -> None:
        """Send each agent a last letter, and wait until it has answered that."""
        self.model.is_settling = True
        open_letters = {}
        for name in AGENTS:
            hire.resume(self.crew.team, name)
            letter = messages.send(self.crew.team, name, "say that was all")
            open_letters[name] = Follower(self.crew.agent(name), letter.id, 0).rewind()

        def all_answered() -> bool:
            self._decide()
            for name, follower in [*open_letters.items()]:
                follower.read()
                if follower.answer is not None:
                    assert follower.answer.error is None, f"{name}: {follower.answer.error}"
                    del open_letters[name]
            return not open_letters

        eventually(all_answered, "an answer of each agent to its last letter", SETTLE_TIMEOUT)
        # What one sent at last may wake another one that was idle.
        eventually(self._has_read_all, "all mail being read")

    def _has_read_all(self) -> bool:
        agents = self.crew.view().agents
        return all((agent.state, agent.unread) == ("idle", 0) for agent in agents)

    def _seen(self) -> Counter[str]:
        """Return how often each kind of event is in the journals."""
        events = [event for name in AGENTS for event in self.crew.events(name)]
        seen = Counter(type(event).__name__ for event in events)
        seen["Update"] = sum(isinstance(event, Intake) and bool(event.updates) for event in events)
        if self._others:
            # Each request is long, and there are many.
            seen["found tools"] = any(
                "tool_reference" in str(each["messages"]) for each in reversed(self.model.requests)
            )
        return seen

    def _lacking(self, seen: Counter[str]) -> set[str]:
        """Return what has not happened yet."""
        expected = {*map(_name, self._acts)} | {"terms", "Summary", "Cleared", "Update"}
        if self._others:
            # Servers of tools that are slow to start on a busy machine are gone on without.
            expected.add("found tools")
        return {each for each in expected if not self.happened[each] + seen[each]}

    def check(self) -> None:
        """Check that nothing was refused, that all mail was taken in exactly once, and that it was a storm."""
        assert not self.model.refusals, "\n".join(self.model.refusals)
        for name in AGENTS:
            events = self.crew.events(name)
            taken = Counter(ident for event in events if isinstance(event, Intake) for ident in event.entered)
            mail = [each.id for each in mailbox.read(self.crew.directory, name).messages if each.enters]
            assert taken == Counter(mail), f"{name}: mail that was taken in, and not just once"
        for body in self.model.requests:
            twice = [ident for ident, count in Counter(_mail(body)).items() if count > 1]
            assert not twice, f"{twice} stand twice in a request"
        seen = self._seen()
        print(f"{len(self.model.requests)} requests, {dict(self.happened)}, {dict(seen)}")
        sent = sum(thoughts_in(body) > 0 for body in self.model.requests)
        assert sent > len(self.model.requests) / 2, "earlier thinking is sent where it may be"
        lacking = self._lacking(seen)
        assert not lacking, f"never happened: {lacking}"
        offered = {len(body["tools"]) for body in self.model.requests if "tools" in body}
        assert len(offered) > len(AGENTS), "agents had other tools in the course of time"

    # ------------------------------------------------------------------------------------------- what may happen

    def _mail(self, name: str) -> None:
        self._sent += 1
        messages.send(self.crew.team, name, f"letter {self._sent}")

    def _demand_plan(self, name: str) -> None:
        self._sent += 1
        message = Message(
            id=f"plan-{self._sent}", ts=float(self._sent), from_="operator", to=name, type="message",
            content="Submit a plan first.", metadata={"plan_required": True},
        )  # fmt: skip
        mailbox.send(self.crew.directory, message)

    def _interrupt(self, name: str) -> None:
        self._sent += 1
        control.interrupt(self.crew.team, name, f"interrupt {self._sent}")

    def _pause(self, name: str) -> None:
        operations.pause(self.crew.team, name)
        self._decide_for(0.1)
        operations.unpause(self.crew.team, name)

    def _kill(self, name: str) -> None:
        self.crew.kill(name)
        self._come_back(name)

    def _stop(self, name: str) -> None:
        self._ask_to_stop(name)
        self._come_back(name)

    def _change_model(self, name: str) -> None:
        self._ask_to_stop(name)
        self._come_back(name, self._chance.choice(MODELS))

    def _ask_to_stop(self, name: str) -> None:
        with ThreadPoolExecutor(1) as pool:
            stopping = pool.submit(stop.stop, self.crew.team, name)
            while not stopping.done():
                self._decide_for(0.02)
            stopping.result()

    def _come_back(self, name: str, model: str | None = None) -> None:
        eventually(lambda: not leases.is_held(self.crew.agent(name).lease), f"the end of {name}")
        hire.resume(self.crew.team, name, model=model)

    def _change_skills(self, _: str) -> None:
        folder = self.crew.root / f".claude/skills/skill{self._chance.randrange(3)}"
        if (folder / "SKILL.md").exists():
            (folder / "SKILL.md").unlink()
            folder.rmdir()
        else:
            folder.mkdir(parents=True)
            text = f"---\nname: {folder.name}\ndescription: how to {self._chance.random()}\n---\nDo it.\n"
            (folder / "SKILL.md").write_text(text)
            found = skill_files.find(self.crew.root, folder.name)
            skill_files.accept(found, self.crew.root, self.crew.environment)

    def _change_tools(self, _: str) -> None:
        names = self._chance.sample(["more0", "more1", "more2", "more3"], self._chance.randrange(5))
        aside = self.crew.root / "tools.tmp"
        aside.write_text("\n".join([*sorted(names), *self._others]))
        aside.replace(self.crew.root / "tools.txt")

    def _change_project(self, _: str) -> None:
        aside = self.crew.root / "CLAUDE.tmp"
        aside.write_text(f"Use {self._chance.random()} tabs.\n")
        aside.replace(self.crew.root / "CLAUDE.md")

    # ------------------------------------------------------------------------------------------ what a user does

    def _decide_for(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while True:
            self._decide()
            if (left := end - time.monotonic()) <= 0:
                return
            time.sleep(min(left, 0.02))

    def _decide(self) -> None:
        """Answer all that the agents ask."""
        for request in requests.pending(self.crew.directory):
            try:
                self._decide_on(request)
            except CrewboardError as error:
                # Its agent was interrupted or stopped meanwhile.
                self.happened[f"too late: {type(error).__name__}"] += 1

    def _decide_on(self, request: Request) -> None:
        team, chance = self.crew.team, self._chance
        if request.type == "question":
            answers.answer(team, request.id, f"this {chance.random()}")
        elif request.type in ("plan_approval", "permission") and chance.random() < 0.2:
            answers.reject(team, request.id, "do it otherwise")
        elif request.type == "plan_approval":
            tools = chance.choice([None, ["read_file"], ["read_file", "glob"]])
            answers.approve(team, request.id, terms=Terms(ask=chance.random() < 0.3, tools=tools, hold=[3]))
            self.happened["terms"] += 1
        elif request.type == "permission":
            answers.approve(team, request.id)


def _name(act: Callable[[str], None]) -> str:
    return act.__name__.strip("_")


@contextmanager
def storm_in(root: Path, seed: int, *, others: Sequence[str] = ()) -> Iterator[Storm]:
    """Begin a storm in a new team below `root`, which has an MCP server with tools that change, and with `others`."""
    chance = random.Random(seed)
    with StormModel(chance) as model:
        crew = Crew(root, model)
        (root / "server.py").write_text(_SERVER.read_text())
        (root / "tools.txt").write_text(" ".join(["more0", *others]))
        own = {"command": sys.executable, "args": [str(root / "server.py"), str(root / "tools.txt")]}
        (root / ".mcp.json").write_text(json.dumps({"mcpServers": {"own": own}}))
        accept.accept(crew.team, mcp_servers.find(root, "own"))
        storm = Storm(crew, model, chance, others)
        try:
            storm.begin()
            yield storm
        finally:
            crew.end()


def _mail(body: dict[str, Any]) -> list[str]:
    """Return the ids of the mail in a request."""
    turns = [turn["content"] for turn in body["messages"] if turn["role"] == "user"]
    texts = [block["text"] for blocks in turns for block in blocks if block["type"] == "text"]
    return [piece.id for text in texts for piece in undelimit(text) if piece.kind in ("message", "interrupt")]
