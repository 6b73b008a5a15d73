"""The fixture of the table: a team with two agents, the command line, and checks."""

import json
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from crewboard.protocol import requests, supervisor_client
from crewboard.readmodel.reader import TeamReader
from crewboard.readmodel.team import AgentView, TeamView
from crewboard.records.agents import Spec, Status
from crewboard.records.processes import Exit, Supervisor
from crewboard.records.requests import Request
from crewboard.records.team import Member
from crewboard.store import agents, leases, roster, tasks
from crewboard.store.layout import AgentDirectory, TeamDirectory
from crewboard.unix import process
from tests.cli.shell import Inside, Ran
from tests.crew import eventually
from tests.store.raw_mail import append, line


def _made(team: TeamDirectory, name: str) -> AgentDirectory:
    team.agent(name).path.mkdir(mode=0o700)
    return team.agent(name)


@dataclass(frozen=True)
class Bench:
    """One team below `root` with the agents `scout` and `fixer`; scout has ended in an orderly way."""

    root: Path
    team: TeamDirectory

    @classmethod
    def make(cls, root: Path) -> "Bench":
        team = TeamDirectory(root / ".crewboard" / "default")
        team.make()
        roster.create(team, "", 1.0)
        for name in ("scout", "fixer"):
            roster.put(team, Member(name=name, type="code", model="claude-sonnet-5-5"))
            spec = Spec(prompt="do it", prompt_id=f"p-{name}", type="code", model="claude-sonnet-5-5")
            _made(team, name).spec.save(spec)
            team.agent(name).status.save(Status(run=1, pid=0, state="idle", since=1, beat=1))
            agents.write_exit(team.agent(name), Exit(run=1, code=0, reason="finished", at=2, buried=True))
        tasks.add(team, "first", 1.0)
        return cls(root, team)

    def cli(self, *arguments: str, **environment: str) -> Ran:
        """Run a command in the root."""
        return Inside(self.root).with_environment(**environment)(*arguments)

    def end(self) -> None:
        """End the supervisor if a command has started one."""
        holder = leases.holder(self.team.supervisor_lock, Supervisor)
        if holder is not None and supervisor_client.is_alive(self.team):
            process.send_signal(holder.pid, signal.SIGTERM, holder.start_ticks)
            eventually(lambda: not supervisor_client.is_alive(self.team), "the supervisor's end")

    def ask(self, ident: str = "plan-1", kind: Any = "plan_approval") -> Request:  # noqa: ANN401  a type of request
        words = {"plan": "write it", "question": "why?", "summary": "make", "tool": "bash"}
        return requests.ask(self.team, ident, kind, "scout", "operator", dict(words), 1.0)

    def receive(self, *raw: bytes, to: str = "scout") -> None:
        """Append lines to a mailbox as another program does."""
        for data in raw:
            append(self.team.inbox(to).on_disk, data + b"\n")

    def inbox(self, name: str = "scout") -> list[str]:
        """Return what the user is shown of a mailbox."""
        return [message["content"] for message in self.cli("inbox", name, "--json").json]

    def view(self) -> TeamView:
        return TeamReader(self.team).read()

    def see(self, name: str = "scout") -> AgentView:
        found = self.view().agent(name)
        assert found is not None
        return found

    def files(self) -> dict[str, bytes]:
        """Return every file below the root except locks."""
        return {
            str(path.relative_to(self.root)): path.read_bytes()
            for path in self.root.rglob("*")
            if path.is_file() and ".locks" not in path.parts
        }


Look = Callable[[Bench], None]
Area = Literal["names", "paths", "messages", "protocol", "state and clock", "terminal"]

SPAWN = ("--type", "explore", "--prompt", "look")


@dataclass(frozen=True)
class Entry:
    """One bad input: what is given, what is promised, and a check of that promise."""

    area: Area
    given: str
    does: str
    look: Look = field(repr=False)


def refused(code: int, words: str, *arguments: str) -> Look:
    """Check that a command exits with this code and one sentence with these words, and has changed nothing."""

    def look(bench: Bench) -> None:
        before = bench.files()
        bench.cli(*arguments).refused(code, words)
        assert bench.files() == before

    return look


def after(arrange: Callable[[Bench], object], look: Look) -> Look:
    """Run `arrange` before the check."""

    def both(bench: Bench) -> None:
        arrange(bench)
        look(bench)

    return both


def set_aside(raw: bytes) -> Look:
    """Check that a line is counted as damaged where the user sees it, and that the mail around it arrives."""

    def look(bench: Bench) -> None:
        bench.receive(line("before", "before"), raw, line("after", "after"))
        assert bench.inbox() == ["before", "after"]
        assert "1 damaged line of the mailbox" in bench.cli("inbox", "scout").err
        assert bench.see().damaged == 1
        assert bench.see().unread == 2
        assert bench.cli("status", "--json").json["agents"][0]["damaged"] == 1

    return look


def taken(raw: bytes, content: str) -> Look:
    """Check that a line is accepted as a message."""

    def look(bench: Bench) -> None:
        bench.receive(raw, line("after", "after"))
        assert bench.inbox() == [content, "after"]
        assert bench.see().damaged == 0

    return look


def kept(relative: str, data: bytes, *arguments: str, code: int = 65) -> Look:
    """Check that a command that would change a damaged file fails, keeps a copy, and leaves the file as it is."""

    def look(bench: Bench) -> None:
        path = bench.team.path / relative
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
        bench.cli(*arguments).refused(code, "is damaged")
        assert path.read_bytes() == data
        assert bench.view().damaged == 1

    return look


def shown(text: str, visible: str, *, hidden: str) -> Look:
    """Check that untrusted text in a message, a task and a request shows `visible` and never `hidden`."""

    def look(bench: Bench) -> None:
        bench.receive(line("m", text))
        tasks.add(bench.team, f"task {text}", 1.0)
        question = {"question": text}
        requests.ask(bench.team, "question-1", "question", "scout", "operator", {**question}, 1.0)
        for command in ("inbox scout", "tasks", "requests", "status"):
            ran = bench.cli(*command.split(), COLUMNS="400")
            assert ran.code == 0
            assert hidden not in ran.out, command
            assert visible in ran.out, command
            if command == "status":
                continue
            ran = bench.cli(*command.split(), "--json")
            assert ran.out.isascii()
            assert ran.out.replace("\n", "").isprintable()
            json.loads(ran.out)

    return look
