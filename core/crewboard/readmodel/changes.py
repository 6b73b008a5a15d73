"""The changes of a team, one by one, as `watch` prints them: two views compared, and new mail."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from crewboard import store
from crewboard.protocol import mailboxes
from crewboard.readmodel.mail import MailboxTail
from crewboard.readmodel.needs import summarise
from crewboard.readmodel.reader import TeamReader
from crewboard.readmodel.team import AgentView, TeamView
from crewboard.records import Request, Task, describe_exit
from crewboard.store import CachedFolder, TeamDirectory

Kind = Literal["roster", "message", "status", "task", "request", "result", "exit"]

_RESULT = re.compile(r"(?P<agent>[a-z][a-z0-9_-]*?)-(?P<run>\d+)-\d+\.md")
_SHOWN_OF_TASK = {"id", "subject", "priority", "status", "owner", "last_owner", "blocked_by"}


@dataclass(frozen=True)
class Change:
    """One change: when (epoch seconds), of what kind, of which agent, and what it is now."""

    ts: float
    kind: Kind
    agent: str | None
    what: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return the form of `watch --json` (docs/reference/json.md#watch)."""
        return {"ts": self.ts, "kind": self.kind, "agent": self.agent, **self.what}


class ChangeReader:
    """A reader of what changed since the last read; the first time, since it was made."""

    def __init__(self, team: TeamDirectory) -> None:
        self._team = team
        self._reader = TeamReader(team)
        self._requests = CachedFolder(team.requests, Request)
        self._mailboxes: dict[str, MailboxTail] = {}
        self._known: set[str] = set()
        self.view = self._reader.read()
        for name in mailboxes(self.view.names):
            self._mailboxes[name] = MailboxTail(team, name, store.files.tail_offset(team.inbox(name), 0))
        self._results = self._list_results()
        self._asked = self._read_requests()

    def read(self) -> list[Change]:
        """Return everything that changed since the last read, and set `view` to the present state."""
        before, self.view = self.view, self._reader.read()
        return [
            *_roster(before, self.view),
            *self._mail(),
            *self._request_changes(),
            *_tasks(before, self.view),
            *_statuses(before, self.view),
            *self._result_changes(),
            *_exits(before, self.view),
        ]

    def _mail(self) -> Iterator[Change]:
        for name in mailboxes(self.view.names):
            tail = self._mailboxes.setdefault(name, MailboxTail(self._team, name, 0))
            tail.restarted()
            batch = tail.read_new(self._known)
            self._known.update(message.id for message in batch.messages)
            for message in batch.messages:
                yield Change(message.ts, "message", name, message.model_dump(exclude={"v", "ts"}))

    def _read_requests(self) -> dict[str, Request]:
        return {request.id: request for request in self._requests.all()}

    def _request_changes(self) -> Iterator[Change]:
        before, self._asked = self._asked, self._read_requests()
        for ident, request in self._asked.items():
            if ident not in before or before[ident].status != request.status:
                yield _request(request)

    def _list_results(self) -> set[str]:
        return {path.name for path in self._team.results.glob("*.md")}

    def _result_changes(self) -> Iterator[Change]:
        before, self._results = self._results, self._list_results()
        for name in sorted(self._results - before):
            found = _RESULT.fullmatch(name)
            if found:
                what = {"run": int(found["run"]), "result": f"results/{name}"}
                yield Change(self.view.now, "result", found["agent"], what)


def _request(request: Request) -> Change:
    what = {
        "id": request.id,
        "type": request.type,
        "to": request.to,
        "status": request.status,
        "decided_by": request.decided_by,
        "feedback": request.feedback,
        "summary": summarise(request),
    }
    return Change(request.decided_at or request.created_at, "request", request.from_, what)


def _roster(before: TeamView, after: TeamView) -> Iterator[Change]:
    old = {agent.name: agent for agent in before.agents}
    new = {agent.name: agent for agent in after.agents}
    for name in old.keys() - new.keys():
        yield Change(after.now, "roster", name, {"change": "removed", **_terms(old[name])})
    for name, agent in new.items():
        if name not in old:
            yield Change(after.now, "roster", name, {"change": "hired", **_terms(agent)})
        elif _terms(agent) != _terms(old[name]):
            yield Change(after.now, "roster", name, {"change": "changed", **_terms(agent)})


def _terms(agent: AgentView) -> dict[str, str]:
    return {"type": agent.type, "role": agent.role, "model": agent.model}


def _statuses(before: TeamView, after: TeamView) -> Iterator[Change]:
    for agent in after.agents:
        old = before.agent(agent.name)
        if old is None or _status(old) != _status(agent):
            yield Change(after.now, "status", agent.name, _status(agent))


def _status(agent: AgentView) -> dict[str, Any]:
    return {
        "state": agent.state,
        "run": agent.run,
        "pid": agent.pid,
        "alive": agent.alive,
        "doing": agent.doing,
        "waiting_for": agent.waiting_for,
    }


def _tasks(before: TeamView, after: TeamView) -> Iterator[Change]:
    old = {task.id: _task(task) for task in before.tasks}
    for task in after.tasks:
        if old.get(task.id) != _task(task):
            yield Change(max(task.updated_at, task.edited_at), "task", task.owner, _task(task))


def _task(task: Task) -> dict[str, Any]:
    return task.model_dump(include=_SHOWN_OF_TASK)


def _exits(before: TeamView, after: TeamView) -> Iterator[Change]:
    for agent in after.agents:
        old = before.agent(agent.name)
        known = old.exit.run if old and old.exit else 0
        if agent.exit is not None and agent.exit.run > known:
            what = {**agent.exit.model_dump(exclude={"at", "buried"}), "how": describe_exit(agent.exit)}
            yield Change(agent.exit.at, "exit", agent.name, what)
