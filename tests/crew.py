"""A team of real workers for tests: real processes and files, the offline model over loopback."""

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from crewboard import redaction
from crewboard.commands import context, stop
from crewboard.commands import hire as hiring
from crewboard.protocol import requests, supervisor_client
from crewboard.readmodel.reader import TeamReader, read_team
from crewboard.readmodel.team import AgentView, TeamView
from crewboard.records.agents import HireOptions
from crewboard.records.events import Answer, Event, Sent
from crewboard.records.processes import Lease
from crewboard.records.requests import Request
from crewboard.store import journal, leases
from crewboard.store.journal import Follower
from crewboard.store.layout import AgentDirectory, TeamDirectory
from crewboard.unix import process
from tests.model import ModelServer

T = TypeVar("T")

WAIT_TIMEOUT = 60.0
"""Seconds after which a condition counts as failed, on a busy machine with two cores."""


def eventually(condition: Callable[[], T | None], what: str = "the condition", seconds: float = WAIT_TIMEOUT) -> T:
    """Wait until `condition` returns a true value, and return it."""
    began = time.monotonic()
    while True:
        asked = time.thread_time()
        if found := condition():
            return found
        waited = time.monotonic() - began
        if waited > seconds:
            raise AssertionError(f"{what} did not come true within {seconds:g} s")
        # A condition that reads a whole team would take a core from the processes that it waits for.
        time.sleep(max(0.01, 4 * (time.thread_time() - asked), waited / 20))


def contents(folder: Path) -> dict[Path, bytes]:
    """Return the contents of every file below a folder, without files that disappear meanwhile."""
    found = {}
    for path in folder.rglob("*"):
        # The temporary file of a replacement may be gone by now.
        with contextlib.suppress(FileNotFoundError):
            if path.is_file():
                found[path] = path.read_bytes()
    return found


class Crew:
    """One team below `root`, whose workers talk to `model`. It is kept in files, or in the database `store`."""

    def __init__(self, root: Path, model: ModelServer, *, store: str | None = None, **environment: str) -> None:
        self.model = model
        self.environment = {
            **{key: value for key, value in os.environ.items() if not redaction.is_secret(key)},
            "ANTHROPIC_BASE_URL": model.url,
            "ANTHROPIC_API_KEY": "a-key-of-the-tests",
            **environment,
        }
        directory = TeamDirectory(root / ".crewboard" / "default")
        if store is not None:
            directory.make(store)
        self.team = context.Team(directory, environment=self.environment).ensure()
        self.directory = self.team.directory
        self.root = root

    def agent(self, name: str) -> AgentDirectory:
        return self.directory.agent(name)

    def hire(self, name: str, kind: str, prompt: str, **flags: Any) -> hiring.Assignment:
        return hiring.spawn(self.team, hiring.Hire(name, kind, prompt, flags=HireOptions(**flags)))

    def answer(self, assignment: hiring.Assignment, seconds: float = WAIT_TIMEOUT) -> Answer:
        """Wait for the answer to an assignment, however it ended."""
        follower = Follower(self.agent(assignment.agent), assignment.id, assignment.run).rewind()

        def look() -> Answer | None:
            follower.read()
            return follower.answer

        return eventually(look, f"{assignment.agent}'s answer", seconds)

    def answer_to(self, name: str, ident: str) -> Answer:
        """Wait for the answer of `name` to the prompt or message `ident`."""
        return self.answer(hiring.Assignment(name, ident, 0, fresh=False))

    def run(self, name: str, kind: str, prompt: str, **flags: Any) -> Answer:
        """Hire an agent and wait for its answer."""
        return self.answer(self.hire(name, kind, prompt, **flags))

    def view(self) -> TeamView:
        return read_team(self.directory)

    def see(self, name: str) -> AgentView:
        found = self.view().agent(name)
        assert found is not None
        return found

    def wait_for(self, name: str, *states: str) -> AgentView:
        """Wait until an agent is in one of `states`."""

        reader = TeamReader(self.directory)

        def look() -> AgentView | None:
            seen = reader.read().agent(name)
            assert seen is not None
            if seen.state not in states:
                return None
            # What a reader remembers may be older than what it has just read.
            fresh = self.see(name)
            return fresh if fresh.state in states else None

        try:
            return eventually(look, f"{name} being {' or '.join(states)}")
        except AssertionError as error:
            seen = [each.agent(name) for each in (reader.read(), self.view())]
            said = [f"run {each.run} {each.state} {each.reason}" for each in seen if each is not None]
            log = self.directory.supervisor_log.read_text()[-2000:]
            raise AssertionError(f"{error}; the reader sees {said[:1]}, a new one {said[1:]}\n{log}") from None

    def wait_for_rest(self, name: str) -> None:
        """Wait until an agent has written all of its work: the last is that it told that it is free."""

        def look() -> bool:
            last = self.events(name)[-1]
            return isinstance(last, Sent) and last.message.type == "idle_notification"

        eventually(look, f"{name} being at rest")

    def pending(self, kind: str, of: str | None = None) -> Request:
        """Wait for the pending request of a type, `of` one agent if others may ask too."""

        def look() -> Request | None:
            found = (r for r in requests.pending(self.directory) if r.type == kind and of in {None, r.from_})
            return next(found, None)

        return eventually(look, f"a {kind} request")

    def events(self, name: str) -> list[Event]:
        return [event for event, _ in journal.read(self.agent(name).journal) if event is not None]

    def pid(self, name: str) -> int:
        holder = leases.holder(self.agent(name).lease, Lease)
        assert holder is not None
        return holder.pid

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        """Send a signal to a worker of this team, identified by its start time."""
        holder = leases.holder(self.agent(name).lease, Lease)
        assert holder is not None
        assert process.send_signal(holder.pid, number, holder.start_ticks)

    def halt(self, name: str) -> None:
        """Stop the process of a worker by a signal, when it holds no lock of the team: others would wait for that."""
        pid = self.pid(name)
        while True:
            self.kill(name, signal.SIGSTOP)
            eventually(lambda: process.is_stopped(pid), "the process to stop")
            locks = {str(each.stat().st_ino) for each in (self.directory.path / ".locks").iterdir()}
            held = (line.split() for line in Path("/proc/locks").read_text().splitlines())
            if not any(fields[-4] == str(pid) and fields[-3].split(":")[-1] in locks for fields in held):
                return
            self.kill(name, signal.SIGCONT)

    def commands(self, name: str) -> list[list[str]]:
        """Return the command lines of all that a worker has started and that runs now."""
        found = []
        for pid in process.descendants(self.pid(name)):
            # One that ended after it was listed.
            with contextlib.suppress(OSError):
                found.append(Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:-1])
        return found

    def supervisor_pid(self) -> int:
        pid = self.view().supervisor.pid
        assert pid is not None
        return pid

    def end(self) -> None:
        """End all processes of this team, and check that none is left."""
        if self.directory.path.exists():
            stop.delete(self.team, now=True)
        for name in [member.name for member in self.team.config.members]:
            assert not leases.is_held(self.agent(name).lease)
            status = self.agent(name).status.load()
            assert status is None or not process.is_same(status.pid, status.boot_id, status.start_ticks)
        assert not supervisor_client.is_alive(self.directory)
