"""The changes of a team: one by one, as `watch` prints them, and a summary of what happened while the user was away."""

import itertools
import re
import time
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any, Literal

from msgspec import Struct, field

from crewboard.errors import StorageError
from crewboard.names import mailboxes
from crewboard.readmodel.mail import MAX_HEADLINE, MailboxTail
from crewboard.readmodel.needs import NEED_OF_REQUEST, format_minute, summarise
from crewboard.readmodel.reader import TeamReader
from crewboard.readmodel.team import AgentView, TeamView
from crewboard.readmodel.usage import bill_team
from crewboard.records.base import Record, pick
from crewboard.records.events import RunEnded, RunStarted
from crewboard.records.messages import Message
from crewboard.records.processes import LIMIT_REASONS, Exit, describe_exit, is_orderly, was_cut_off
from crewboard.records.requests import Request, describe_status
from crewboard.records.team import Act, Task
from crewboard.store import journal, mailbox, operators
from crewboard.store.layout import AgentDirectory, TeamDirectory

Kind = Literal["roster", "message", "status", "task", "request", "result", "exit"]

_RESULT = re.compile(r"(?P<agent>[a-z][a-z0-9_-]*?)-(?P<run>\d+)-\d+\.md")
_SHOWN_OF_TASK = {"id", "subject", "priority", "status", "owner", "last_owner", "blocked_by"}


class Change(Struct, frozen=True):
    """One change: when it was (epoch seconds), its kind, the agent, and the new values.

    `agent` is None for a change that concerns no agent.
    """

    ts: float
    kind: Kind
    agent: str | None
    what: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return the change in the form of `watch --json` (docs/reference/json.md#watch)."""
        return {"ts": self.ts, "kind": self.kind, "agent": self.agent, **self.what}


class ChangeReader:
    """A reader of the changes of a team since its last read; at first, since the reader was made."""

    def __init__(self, team: TeamDirectory) -> None:
        self._team = team
        self._reader = TeamReader(team)
        self._requests = team.requests.watch()
        self._mailboxes: dict[str, MailboxTail] = {}
        self._known: set[str] = set()
        self.view = self._reader.read()
        for name in mailboxes(self.view.names):
            self._mailboxes[name] = MailboxTail(team, name, team.inbox(name).tail_offset(0))
        self._results = _results(team)
        self._asked = self._read_requests()

    def read(self) -> list[Change]:
        """Return all changes since the last read, and set `view` to the present state."""
        before, self.view = self.view, self._reader.read()
        now = self.view.now
        removed = [agent for agent in before.agents if self.view.agent(agent.name) is None]
        found = [Change(now, "roster", agent.name, {"change": "removed", **_terms(agent)}) for agent in removed]
        for agent in self.view.agents:
            old = before.agent(agent.name)
            if old is None or _terms(old) != _terms(agent):
                change = "hired" if old is None else "changed"
                found.append(Change(now, "roster", agent.name, {"change": change, **_terms(agent)}))
        for name in mailboxes(self.view.names):
            tail = self._mailboxes.setdefault(name, MailboxTail(self._team, name, 0))
            tail.restarted()
            new = tail.read_new(self._known).messages
            self._known.update(message.id for message in new)
            found += [Change(message.ts, "message", name, _without(message, "v", "ts")) for message in new]
        asked, self._asked = self._asked, self._read_requests()
        for ident, request in self._asked.items():
            if ident not in asked or asked[ident].status != request.status:
                names = ("id", "type", "to", "status", "decided_by", "feedback", "summary")
                what = pick(names, request, summary=summarise(request))
                found.append(Change(request.decided_at or request.created_at, "request", request.from_, what))
        tasks = {task.id: _task(task) for task in before.tasks}
        changed = [task for task in self.view.tasks if tasks.get(task.id) != _task(task)]
        found += [Change(max(each.updated_at, each.edited_at), "task", each.owner, _task(each)) for each in changed]
        for agent in self.view.agents:
            old = before.agent(agent.name)
            if old is None or _status(old) != _status(agent):
                found.append(Change(now, "status", agent.name, _status(agent)))
        results, self._results = self._results, _results(self._team)
        for named in filter(None, map(_RESULT.fullmatch, sorted(self._results - results))):
            what = {"run": int(named["run"]), "result": f"results/{named[0]}"}
            found.append(Change(now, "result", named["agent"], what))
        for agent in self.view.agents:
            old = before.agent(agent.name)
            known = old.exit.run if old and old.exit else 0
            if agent.exit is not None and agent.exit.run > known:
                what = {**_without(agent.exit, "at", "buried"), "how": describe_exit(agent.exit)}
                found.append(Change(agent.exit.at, "exit", agent.name, what))
        return found

    def _read_requests(self) -> dict[str, Request]:
        return {request.id: request for request in self._requests.all()}


def _terms(agent: AgentView) -> dict[str, str]:
    return {"type": agent.type, "role": agent.role, "model": agent.model}


def _status(agent: AgentView) -> dict[str, Any]:
    return pick(("state", "run", "pid", "alive", "doing", "waiting_for"), agent, agent.status)


def _without(record: Record, *fields: str) -> dict[str, Any]:
    return {key: value for key, value in record.as_dict().items() if key not in fields}


def _task(task: Task) -> dict[str, Any]:
    return {key: value for key, value in task.as_dict().items() if key in _SHOWN_OF_TASK}


TAIL = 256 * 1024
"""Bytes at the end of a journal in which ends of runs are looked for."""

_HEAD = 1024
"""Bytes at the beginning of a result that are read for its first line."""

_RUN_EVENTS = (b'"run_started"', b'"run_ended"')
"""Bytes that each line of a journal about the end of a run contains one of."""

HappeningKind = Literal[
    "result", "death", "failure", "plan", "permission", "question", "review", "task_done", "task_failed", "act",
]  # fmt: skip

_COUNTED: dict[HappeningKind, tuple[str, str]] = {
    "result": ("result", "results"),
    "death": ("death", "deaths"),
    "failure": ("failure", "failures"),
    "plan": ("plan", "plans"),
    "permission": ("permission", "permissions"),
    "question": ("question", "questions"),
    "review": ("review", "reviews"),
    "task_failed": ("failed task", "failed tasks"),
    "task_done": ("task done", "tasks done"),
    "act": ("act by others", "acts by others"),
}
"""The words for one and for several happenings of a kind, in the order in which they are shown."""

_LEAST_COST = 0.005
"""Dollars below which a cost is not shown, because it would be $0.00."""


class Happening(Struct, frozen=True):
    """One thing that happened: when (epoch seconds), of what kind, with which agent, and in words.

    `task` and `request_id` are the ids of the task or request that it is about; None if it is about none. `agent` is
    empty if it is about none.
    """

    ts: float
    kind: HappeningKind
    agent: str
    text: str
    task: int | None = None
    request_id: str | None = None


class Absence(Struct, frozen=True):
    """What happened in a team after `since`, the oldest first, and the dollars spent since then.

    `cost_usd` is None if the cost is not known, or would be shown as $0.00.
    """

    since: float
    happenings: tuple[Happening, ...] = ()
    cost_usd: float | None = None

    def __bool__(self) -> bool:
        """Return True if there is anything to tell."""
        return bool(self.happenings) or self.cost_usd is not None

    def describe(self, now: float) -> str:
        """Return the absence on one line, such as `since 14:02: 3 results, 1 death, 2 plans, $2.10`.

        `now` tells whether the time needs a date.
        """
        counts = Counter(each.kind for each in self.happenings)
        parts = [f"{counts[kind]} {words[counts[kind] > 1]}" for kind, words in _COUNTED.items() if counts[kind]]
        parts += [f"${self.cost_usd:.2f}"] if self.cost_usd is not None else []
        left, today = time.localtime(self.since), time.localtime(now)
        day = "" if left[:3] == today[:3] else time.strftime("%m-%d " if left[0] == today[0] else "%Y-%m-%d ", left)
        return f"since {day}{format_minute(self.since)}: {', '.join(parts)}"


def read_absence(
    team: TeamDirectory, view: TeamView, since: float, *, cost_usd: float | None = None, operator: str = ""
) -> Absence:
    """Return what happened since `since` (epoch seconds). `cost_usd` is what the team had cost by then.

    Acts of the user called `operator` are left out. Only files that changed since then are read, of a journal the last
    `TAIL` bytes, and of mailboxes those to which other users sent something.
    """
    found: list[Happening] = []
    for name in _results(team):
        named = _RESULT.fullmatch(name)
        written = team.result(name).changed_at() if named else 0.0
        if named and written > since:
            try:
                head = (team.result(name).get() or b"")[:_HEAD].decode("utf-8", "replace")
            except StorageError:
                head = ""
            first = next((line for line in head.splitlines() if line.strip()), "")
            found.append(Happening(written, "result", named["agent"], first.strip("# ")[:MAX_HEADLINE]))
    for agent in view.agents:
        found += _ends(team.agent(agent.name), agent, since)
    for request in view.asked:
        kind = NEED_OF_REQUEST.get(request.type)
        if kind is not None and request.created_at > since:
            decided = "" if request.status == "pending" else f" · {describe_status(request)}"
            text = f"{summarise(request)}{decided}"
            found.append(Happening(request.created_at, kind, request.from_, text, request_id=request.id))
    for task in view.tasks:
        if task.status in ("completed", "failed") and task.updated_at > since:
            end: HappeningKind = "task_done" if task.status == "completed" else "task_failed"
            owner = task.owner or task.last_owner or ""
            found.append(Happening(task.updated_at, end, owner, f"#{task.id} {task.subject}", task.id))
    acts = operators.acts(team)[0] if team.audit.changed_at() > since else []
    others = [act for act in acts if act.ts > since and act.who != operator]
    # The detail of a stop is its request, which the agent answers, not the user.
    found += _describe_acts(team, others, {request.id for request in view.asked if request.type != "shutdown"})
    now_usd = bill_team(view).usd
    spent = None if now_usd is None or cost_usd is None else now_usd - cost_usd
    return Absence(
        since,
        tuple(sorted(found, key=lambda each: each.ts)),
        spent if spent is not None and spent >= _LEAST_COST else None,
    )


_MAILED = ("message", "broadcast")
"""The acts that send a message."""

_TASK = re.compile(r"#(\d+)")
"""The target of an act on a task."""


def sent_messages(team: TeamDirectory, acts: Iterable[Act]) -> dict[str, Message]:
    """Return the messages that acts sent, by their ids, while their mailboxes have them."""
    # The name of such an act is the type of its message: most other lines need not be parsed.
    sent = {(act.target, act.act) for act in acts if act.act in _MAILED}
    return {message.id: message for name, kind in sent for message in mailbox.read(team, name, kind=kind).messages}


def describe_detail(act: Act, sent: Mapping[str, Message]) -> str:
    """Return the detail of an act: of a message, whose id is recorded, the first line if it is in `sent`."""
    if act.act not in _MAILED:
        return act.detail
    first = sent[act.detail].content.strip().partition("\n")[0] if act.detail in sent else ""
    return first or f"message {act.detail[:8]}"


def _describe_acts(team: TeamDirectory, acts: list[Act], asked: Container[str]) -> Iterator[Happening]:
    """Yield what other users did; of a broadcast, which is an act for each agent, one thing.

    `asked` are the ids of all requests.
    """
    try:
        sent = sent_messages(team, acts)
    except StorageError:
        sent = {}

    def command(act: Act) -> object:
        """Return what the acts of one command share."""
        message = sent.get(act.detail) if act.act == "broadcast" else None
        # Without its message, such as that to an agent that was removed, the command is not known.
        return id(act) if message is None else (act.who, message.metadata.get("broadcast_id"))

    for _, group in itertools.groupby(acts, command):
        act, *more = group
        detail = describe_detail(act, sent)[:MAX_HEADLINE]
        task = _TASK.fullmatch(act.target)
        request = act.detail.split(",")[0]
        if act.act in _MAILED:
            to = f"to {len(more) + 1} agents" if more else act.target
            words = f"{act.who}: {act.act} {to}: {detail}"
        else:
            words = " ".join(filter(None, (f"{act.who}:", act.act, act.target, detail)))
        yield Happening(
            act.ts, "act", "" if task or more else act.target, words, task=int(task[1]) if task else None,
            request_id=request if request in asked else None,
        )  # fmt: skip


def _results(team: TeamDirectory) -> set[str]:
    try:
        return {name for name in team.key("results").names() if name.endswith(".md")}
    except StorageError:
        return set()


def _ends(directory: AgentDirectory, agent: AgentView, since: float) -> Iterator[Happening]:
    """Yield the deaths of an agent, the runs that a limit ended, and its failed assignment."""
    ends: dict[int, Exit] = {}
    if directory.journal.changed_at() > since:
        # The last runs, as far as the journal says.
        for event, _ in journal.read(directory.journal, directory.journal.tail_offset(TAIL), *_RUN_EVENTS):
            if isinstance(event, RunEnded):
                ends[event.run] = Exit(run=event.run, code=event.code, reason=event.reason, at=event.ts)
            elif isinstance(event, RunStarted) and event.before is not None:
                ends[event.before.run] = event.before
    if agent.exit is not None:
        ends[agent.exit.run] = agent.exit
    for record in ends.values():
        is_end = is_orderly(record) and record.reason not in LIMIT_REASONS and not was_cut_off(record)
        if record.at > since and not is_end:
            kind: HappeningKind = "failure" if record.reason in LIMIT_REASONS else "death"
            yield Happening(record.at, kind, agent.name, describe_exit(record))
    if agent.is_dead and agent.exit is None and agent.since > since:
        yield Happening(agent.since, "death", agent.name, agent.reason)
    if agent.alive and agent.status.failed is not None and agent.status.failed_at > since:
        yield Happening(agent.status.failed_at, "failure", agent.name, agent.status.last_error or agent.reason)
