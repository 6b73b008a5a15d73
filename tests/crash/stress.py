"""A team at work while its senders, workers, supervisors, prefork servers and readers are killed at random instants.

The requests to the model are checked: each shows each message at most once, in the order of the mailbox, and continues
the request before. At the end, every message whose sending was acknowledged has been shown exactly once.
"""

import random
import re
import signal
import time
from collections import Counter
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Literal

from crewboard.commands import hire
from crewboard.protocol import supervisor_client
from crewboard.protocol.prefork import SERVER_MODULE
from crewboard.records.events import RunStarted, Sent
from crewboard.records.processes import Lease, Supervisor
from crewboard.store import journal, leases, mailbox
from crewboard.unix import process
from crewboard.untrusted import undelimit
from tests.crash.other_processes import read_endlessly, send_endlessly
from tests.crew import Crew, eventually
from tests.model import ModelServer
from tests.store.parallel import CONTEXT

Target = Literal["worker", "supervisor", "prefork", "sender", "reader", "directory"]

_AGENT = re.compile(r"You are ([a-z0-9_-]+),")
_SETTLE_TIMEOUT = 300.0


# ------------------------------------------------------------------------------------------------------ requests


class RequestChecker:
    """Check every request to the model."""

    def __init__(self, model: ModelServer) -> None:
        self._model = model
        self.shown: dict[str, list[str]] = {}
        """Ids of mail in the longest conversation so far, by agent."""
        self.requests = 0

    def check_new(self) -> None:
        """Check the requests since the last call, and drop them."""
        fresh = self._model.requests[:]
        del self._model.requests[: len(fresh)]
        for body in fresh:
            self._check(body)

    def _check(self, body: dict[str, Any]) -> None:
        self.requests += 1
        name = _AGENT.search(str(body["system"]))
        assert name is not None
        ids = _mail(body)
        twice = [ident for ident, count in Counter(ids).items() if count > 1]
        assert not twice, f"{name[1]} was shown {twice} twice"
        before = self.shown.setdefault(name[1], [])
        common = min(len(before), len(ids))
        assert ids[:common] == before[:common], f"{name[1]}: a conversation that does not continue the one before"
        if len(ids) > len(before):
            self.shown[name[1]] = ids


def _mail(body: dict[str, Any]) -> list[str]:
    texts = (
        block["text"]
        for turn in body["messages"]
        if turn["role"] == "user"
        for block in turn["content"]
        if block["type"] == "text"
    )
    return [piece.id for text in texts for piece in undelimit(text) if piece.kind == "message"]


# -------------------------------------------------------------------------------------------------------- stress


class StressRun:
    """A team with senders and a reader, whose processes are killed one by one."""

    def __init__(self, crew: Crew, names: tuple[str, ...], seed: int, *, pause: float = 0.2) -> None:
        self.crew = crew
        self.names = names
        self.checker = RequestChecker(crew.model)
        self.killed: Counter[Target] = Counter()
        self._chance = random.Random(seed)
        self._pause = pause
        self._acknowledged = crew.root / "acknowledged"
        self._problems = crew.root / "problems"
        self._acknowledged.touch()
        self._problems.touch()
        self._senders: list[BaseProcess] = []
        self._reader: BaseProcess | None = None
        self._senders_started = 0

    def begin(self) -> None:
        """Hire the agents, and start the senders and the reader."""
        for name in self.names:
            self.crew.hire(name, "explore", "say hello")
        for _ in range(2):
            self._new_sender()
        self._new_reader()

    def kill(self, target: Target) -> None:
        """Kill one process of a kind after a random moment, and start it again."""
        time.sleep(self._chance.uniform(0, 0.08))
        self.killed[target] += 1
        match target:
            case "worker":
                self._kill_worker()
            case "supervisor":
                self._kill_supervisor()
            case "prefork":
                self._kill_prefork_server()
            case "sender":
                child = self._senders.pop(0)
                _end(child)
                self._new_sender()
            case "reader":
                if self._reader is not None:
                    _end(self._reader)
                self._new_reader()
            case "directory":
                self._move_directory()
        self.checker.check_new()

    def _kill_worker(self) -> None:
        name = self._chance.choice(self.names)
        self.crew.kill(name)
        if self._chance.random() < 0.2:
            self._kill_supervisor()
        eventually(lambda: not leases.is_held(self.crew.agent(name).lease), f"the end of {name}")
        hire.resume(self.crew.team, name)

    def _move_directory(self) -> None:
        """Move the team's directory away, which ends its processes, and back. Programs that write stop first."""
        senders = len(self._senders)
        for child in [*self._senders, *([self._reader] if self._reader else [])]:
            _end(child)
        self._senders.clear()
        processes = self._processes()
        path = self.crew.directory.path
        path.rename(path.with_name("aside"))
        eventually(lambda: not any(map(process.is_same, *zip(*processes, strict=True))), "the end of its processes")
        path.with_name("aside").rename(path)
        for name in self.names:
            hire.resume(self.crew.team, name)
        for _ in range(senders):
            self._new_sender()
        self._new_reader()

    def _processes(self) -> list[tuple[int, str, int]]:
        """Return the identity of the supervisor, of the workers, and of all that they started."""
        holders: list[Lease | Supervisor | None] = [leases.holder(self.crew.directory.supervisor_lock, Supervisor)]
        holders += [leases.holder(self.crew.agent(name).lease, Lease) for name in self.names]
        first = [holder.pid for holder in holders if holder is not None]
        pids = {pid for root in first for pid in (root, *process.descendants(root))}
        return [(pid, process.boot_id(), process.start_ticks(pid)) for pid in sorted(pids)]

    def _kill_supervisor(self) -> None:
        holder = leases.holder(self.crew.directory.supervisor_lock, Supervisor)
        if holder is not None:
            process.send_signal(holder.pid, signal.SIGKILL, holder.start_ticks)

    def _kill_prefork_server(self) -> None:
        """Kill the prefork server, ready or still loading. Start a supervisor first if the one before was killed."""
        supervisor_client.ensure_running(self.crew.directory)
        server = eventually(self._prefork_server, "a prefork server")
        process.send_signal(server, signal.SIGKILL, process.start_ticks(server))

    def _prefork_server(self) -> int | None:
        holder = leases.holder(self.crew.directory.supervisor_lock, Supervisor)
        children = [pid for pid, parent in process.parents().items() if holder is not None and parent == holder.pid]
        return next(filter(_is_prefork_server, children), None)

    def _new_sender(self) -> None:
        self._senders_started += 1
        prefix = f"s{self._senders_started}" + ("f" if self._senders_started % 2 else "")
        where = (self.crew.directory.path, self.names, prefix, self._acknowledged, self._pause)
        self._senders.append(_start(send_endlessly, *where))

    def _new_reader(self) -> None:
        self._reader = _start(read_endlessly, self.crew.directory.path, self._problems)

    def settle(self) -> None:
        """Stop the senders and the reader, and wait until every agent has read all its mail and is idle."""
        for child in [*self._senders, *([self._reader] if self._reader else [])]:
            _end(child)
        for name in self.names:
            hire.resume(self.crew.team, name)
            last = mailbox.compose("operator", name, "message", "say that was all", ident=f"last-{name}")
            mailbox.send(self.crew.directory, last)
        for name in self.names:
            eventually(lambda name=name: self._has_read_all(name), f"{name} having read all", _SETTLE_TIMEOUT)  # type: ignore[misc]

    def _has_read_all(self, name: str) -> bool:
        self.checker.check_new()
        seen = self.crew.see(name)
        return f"last-{name}" in self.checker.shown.get(name, []) and seen.state == "idle"

    def check(self) -> None:
        """Check that no message is lost, repeated or out of order, and that the reader found no problem."""
        acknowledged = [tuple(entry.split()) for entry in self._acknowledged.read_text().splitlines()]
        assert len(acknowledged) > 20
        for name in self.names:
            batch = mailbox.read(self.crew.directory, name)
            assert self.checker.shown[name] == [message.id for message in batch.messages if message.type == "message"]
            reported = {ident for to, ident in acknowledged if to == name}
            assert reported <= set(self.checker.shown[name])
            assert batch.damaged <= self.killed["sender"] + 2 * self.killed["directory"]
            self._check_journal(name)
        assert self._problems.read_text() == ""

    def _check_journal(self, name: str) -> None:
        events = [event for event, _ in journal.read(self.crew.agent(name).journal)]
        assert events.count(None) <= self.killed["worker"]
        runs = [event.run for event in events if isinstance(event, RunStarted)]
        assert runs == sorted(set(runs)), "no run began twice"
        sent = [event.message.id for event in events if isinstance(event, Sent)]
        delivered = Counter(message.id for message in mailbox.read(self.crew.directory, "lead").messages)
        assert all(delivered[ident] == 1 for ident in sent)

    def summary(self) -> str:
        """Return what was killed, and how many messages survived it."""
        kinds = ", ".join(f"{count} {kind}" for kind, count in self.killed.most_common())
        return f"{self.total} kills ({kinds}), {self.acknowledged} messages, {self.checker.requests} requests checked"

    @property
    def acknowledged(self) -> int:
        """Return the number of messages whose sending was acknowledged."""
        return len(self._acknowledged.read_text().splitlines())

    @property
    def total(self) -> int:
        """Return the number of killed processes."""
        return self.killed.total()


def _is_prefork_server(pid: int) -> bool:
    try:
        return SERVER_MODULE.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _start(work: Callable[..., None], *arguments: object) -> BaseProcess:
    started = CONTEXT.Process(target=work, args=arguments, daemon=True)
    started.start()
    return started


def _end(child: BaseProcess) -> None:
    child.kill()
    child.join()
    child.close()
