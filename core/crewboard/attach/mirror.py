"""The mirror of one Claude Code team: reads Claude Code's files and writes the records of a team directory.

One process at a time mirrors a team; it holds `mirror.lock`. It first writes journals and records, then saves in
`mirror.json` how far it has read. If it is killed in between, the journals are longer than `mirror.json` says, and the
next process does not append those events again. Claude Code's own files are only read.
"""

import contextlib
import dataclasses
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from msgspec import field

from crewboard import pricing
from crewboard.attach import formats, gate, install, places, teams, transcripts
from crewboard.attach.letters import Journals, Letters
from crewboard.attach.teams import Process
from crewboard.attach.transcripts import AgentState, Tail
from crewboard.errors import BadDataError, CrewboardError
from crewboard.names import LEAD, OPERATOR, SYSTEM
from crewboard.protocol import requests
from crewboard.readmodel.watcher import GATHER, SWEEP
from crewboard.records.agents import Context, Spec, State, Status
from crewboard.records.base import JsonValue, Record, first_line
from crewboard.records.events import RunStarted, ToolResult, describe_call
from crewboard.records.processes import Exit
from crewboard.records.team import Config, Member, Task, TaskStatus
from crewboard.store import codec, files, leases, mailbox
from crewboard.store import roster as store_roster
from crewboard.store.file_events import FileEvents
from crewboard.store.interface import Held, Key
from crewboard.store.json_records import R, RecordKey
from crewboard.store.layout import TeamDirectory
from crewboard.unix import process as unix_process

log = logging.getLogger(__name__)

_RESERVED = frozenset({LEAD, OPERATOR, SYSTEM, "all"})
_LONGEST_NAME = 32

_STATUS: dict[str, TaskStatus] = {
    "pending": "pending", "in_progress": "in_progress", "completed": "completed", "deleted": "cancelled",
}  # fmt: skip

_STATES: dict[str, State] = {"busy": "working", "idle": "idle", "waiting": "waiting"}
"""The state of the lead by the status in its session's file."""

_ANSWERED_IN = "answered_in"
"""The key in the payload of a request that can be answered in Claude Code only (`Request.answered_in`)."""

_MAX_SUMMARY = 200

_SETTLED = 0.05
"""Seconds after a change of a file from which a further change shows in its modification time."""

_FIND_EVERY = 1.0
"""Seconds between two searches for the process of a teammate."""

_START_TIMEOUT = 15.0
"""Seconds that the process of an agent may take to start, on a busy machine."""


Read = TypeVar("Read")


class Plan(Record):
    """A plan that the lead has not answered yet: the agent that submitted it, its text, and when, in epoch seconds."""

    author: str
    text: str
    at: float


class AsksState(Record):
    """What waits for an answer in Claude Code: plans by request id, and the id of the prompt in the lead's terminal."""

    plans: dict[str, Plan] = field(default_factory=dict)
    prompt: str = ""


class Asks:
    """Shows what only Claude Code's user or lead can answer, plans and permissions, as requests of the team.

    Requests that the operator can answer are made by hooks (`gate`).
    """

    def __init__(self, team: TeamDirectory, clock: Callable[[], float]) -> None:
        self._team = team
        self._clock = clock
        self.state = AsksState()

    def note_session(self, session: formats.Session, lead: AgentState, agents: Iterable[AgentState]) -> None:
        """Show the prompt in the lead's terminal as a request; cancel that of an earlier prompt.

        The prompt asks for a permission. The request is from that of `agents` which began a call last, because Claude
        Code does not say whom the prompt is about; else from the lead. No request is made if a permission of the team
        is pending already. Sets `lead.waiting_for`.
        """
        waits = session.status == "waiting"
        lead.waiting_for = (session.waiting_for or "an answer in its terminal") if waits else None
        prompt = mailbox.derived_id("prompt", session.ident, session.since)[:24] if waits else ""
        if self.state.prompt and self.state.prompt != prompt:
            requests.close(self._team, f"prompt-{self.state.prompt}", "cancelled", SYSTEM, self._clock())
            self.state.prompt = ""
        # A hook, or a teammate in a pane, may have asked for it already.
        known = self.state.prompt or any(r.type == "permission" for r in requests.pending(self._team))
        if not prompt or known:
            return
        self.state.prompt = prompt
        # Nothing says which agent the prompt is about: most likely the one that began a call last.
        asking = [each for each in agents if each.kind != "tmux" and not each.ended and each.open]
        agent = max(asking, key=lambda each: max(call.ts for call in each.open.values()), default=None)
        call = max(agent.open.values(), key=lambda each: each.ts) if agent is not None else None
        self._ask(
            f"prompt-{prompt}", (agent or lead).name, call.name if call else "a tool", call.summary if call else ""
        )

    def ask_permission(self, author: str, frame: dict[str, Any]) -> None:
        """Show as a request what a teammate in a tmux pane asks permission for; `frame` is its `permission_request`."""
        given = frame.get("input")
        summary = first_line(describe_call("", given), _MAX_SUMMARY) if isinstance(given, dict) else ""
        self._ask(_request_id(frame), author, str(frame.get("tool_name") or "a tool"), summary)

    def _ask(self, ident: str, author: str, tool: str, summary: str) -> None:
        payload: dict[str, JsonValue] = {"tool": tool, "summary": summary, _ANSWERED_IN: places.PROGRAM}
        requests.ask(self._team, ident, "permission", author, OPERATOR, payload, self._clock(), by_mail=False)

    def submit_plan(self, author: str, frame: dict[str, Any], ts: float) -> None:
        """Remember the plan in `frame`. It becomes a request only once the lead has answered it (`note_answer`).

        Until then it waits for the lead, so the operator must not see it as a need.
        """
        text = str(frame.get("planContent") or "")[: formats.MAX_TEXT]
        self.state.plans[_request_id(frame)] = Plan(author=author, text=text, at=ts)

    def note_answer(self, by: str, frame: dict[str, Any]) -> None:
        """Record the answer in `frame`: of the lead about a plan, or of the user in the terminal about a permission."""
        ident = _request_id(frame)
        plan = self.state.plans.pop(ident, None)
        asked = requests.load_all(self._team)
        # A hook may have asked about the same plan before, so that it is on the board already.
        if plan is not None and not any((r.from_, r.payload.get("plan")) == (plan.author, plan.text) for r in asked):
            payload: dict[str, JsonValue] = {"plan": plan.text, _ANSWERED_IN: places.PROGRAM}
            requests.ask(self._team, ident, "plan_approval", plan.author, by, payload, plan.at, by_mail=False)
        request = requests.load(self._team, ident)
        if request is None or request.status != "pending":
            return
        approved = frame.get("approved") is True or frame.get("subtype") == "success"
        said = next((frame[key] for key in ("feedback", "error") if isinstance(frame.get(key), str)), None)
        now = self._clock()
        requests.decide(self._team, ident, "approved" if approved else "rejected", request.to, now, feedback=said)

    def close_of(self, author: str) -> None:
        """Cancel the pending requests of an agent that works again: they were answered in Claude Code, unseen."""
        for request in requests.pending(self._team):
            if request.from_ == author and request.answered_in is not None:
                requests.close(self._team, request.id, "cancelled", SYSTEM, self._clock())


def _request_id(frame: dict[str, Any]) -> str:
    return f"frame-{mailbox.derived_id(frame.get('requestId') or frame.get('request_id'))[:24]}"


class MirrorState(Record):
    """`mirror.json`: what was mirrored so far.

    `tails` are the transcripts by path, `agents` the agents by Claude Code's id (`AgentState.key`), `sessions` the ids
    of the lead's sessions, and `asks` the requests that are not answered.
    """

    tails: dict[str, Tail] = field(default_factory=dict)
    agents: dict[str, AgentState] = field(default_factory=dict)
    sessions: list[str] = field(default_factory=list)
    asks: AsksState = field(default_factory=AsksState)


class Mirror:
    """Mirrors the Claude Code team of a team directory while this process holds `mirror.lock`.

    Raises:
        BadDataError: The directory mirrors no team of another program.
    """

    def __init__(self, team: TeamDirectory, *, clock: Callable[[], float] = time.time) -> None:
        attached = store_roster.load(team).attached
        if attached is None:
            raise BadDataError(f"{team.path.name} mirrors no team of another program")
        self.team = team
        self._attached = attached
        self._clock = clock
        self._places = places.Places(Path(attached.config_dir))
        self._lock: Held | None = None
        self._place = RecordKey(team.store, team.mirror.name, MirrorState)
        self._state = MirrorState()
        self._saved = b""
        self._written: dict[Key, Record] = {}
        self._files: dict[Path, tuple[int, int]] = {}
        self._sessions: dict[Path, formats.Session] = {}
        self._roster: formats.Roster | None = None
        self._looked_for: dict[str, float] = {}
        self._mains: tuple[str, ...] = ()
        self._prices = pricing.load(team.root)
        self._asks = Asks(team, clock)
        self._settled: set[str] = set()
        """Ended agents whose files were written for the last time."""
        self._journals = Journals(team, self._run_of)
        self._letters = Letters(team, self._journals, self._on_letter, clock)

    @property
    def is_active(self) -> bool:
        """Return True if this process holds the lock, so that it mirrors the team."""
        return self._lock is not None

    @property
    def has_ended(self) -> bool:
        """Return True if the team has agents, and all of them have ended."""
        agents = self._state.agents.values()
        return bool(agents) and all(agent.ended for agent in agents)

    def refresh(self) -> bool:
        """Mirror what changed since the last call; return False if another process mirrors the team.

        Raises:
            StorageError: The team directory cannot be written to.
        """
        if self._lock is None:
            self._lock = leases.take(self.team.mirror_lock)
            if self._lock is None:
                return False
            try:
                # What was mirrored before.
                self._state = self._place.load_or_none() or MirrorState()
                self._asks.state = self._state.asks
                self._journals.load({agent.name: agent.written for agent in self._state.agents.values()})
                self._letters.load(self.team.agent_names())
            except CrewboardError:
                # If the next call went on without all of that, it would be mirrored again.
                self.close()
                raise
        found = formats.files_in(self._places.sessions, "*.json")
        self._sessions = {path: session for path, session in self._sessions.items() if path in found}
        for path in found:
            session = self._read_changed(path, formats.session)
            if session is not None:
                self._sessions[path] = session
        self._read_roster()
        self._find_transcripts()
        self._letters.take_answers([agent.name for agent in self._state.agents.values()])
        for path in formats.files_in(self._places.inboxes(self._attached.team), "*.json"):
            letters = self._read_changed(path, formats.inbox)
            if letters is not None:
                self._letters.see_inbox(
                    self._name_of(path.stem), [(self._name_of(each.author), each) for each in letters]
                )
        self._read_transcripts()
        self._read_tasks()
        self._read_processes()
        self._write_agents()
        self._save()
        return True

    def close(self) -> None:
        """Release the lock, so that another process can mirror the team."""
        if self._lock is not None:
            leases.release(self._lock)
            self._lock = None

    def folders(self) -> dict[int, str | Path]:
        """Return the existing folders of Claude Code in which files of this team may change, by inode."""
        team, main = self._attached.team, [Path(path) for path in self._mains]
        wanted = [
            self._places.teams, self._places.teams / team, self._places.inboxes(team), self._places.tasks(team),
            self._places.sessions, *(path.parent for path in main),
            *(path.with_suffix("") for path in main), *(path.with_suffix("") / "subagents" for path in main),
        ]  # fmt: skip
        found: dict[int, str | Path] = {}
        for folder in wanted:
            with contextlib.suppress(OSError):
                found[folder.stat().st_ino] = folder
        return found

    # Reading Claude Code's files.

    def _read_changed(self, path: Path, parse: Callable[[bytes], Read | None]) -> Read | None:
        """Return the parsed contents of a file that changed since it was last read.

        Return None if it did not change, cannot be read, or is torn (`parse` returns None); a torn file is read again.
        """
        try:
            stat = path.stat()
        except OSError:
            self._files.pop(path, None)
            return None
        mark = (stat.st_mtime_ns, stat.st_size)
        if self._files.get(path) == mark:
            return None
        # It may change again without another time of change.
        if time.time() - stat.st_mtime > _SETTLED:
            self._files[path] = mark
        data = teams.read_file(path)
        found = parse(data) if data is not None else None
        if data is not None and found is None:
            self._files.pop(path, None)
        return found

    def _read_roster(self) -> None:
        path = self._places.roster(self._attached.team)
        if not path.exists():
            if self._roster is None and self._state.agents:
                # It ended while no process mirrored it.
                session = next(reversed(self._attached.session_ids), "")
                self._roster = formats.Roster(self._attached.team, "", 0, session, 0, 0, ())
            elif self._roster is not None:
                self._roster = dataclasses.replace(self._roster, members=())
            return
        roster = self._read_changed(path, formats.roster)
        if roster is None:
            return
        self._roster = roster
        lead = teams.lead_process(roster, self._sessions.values())
        for member in roster.members:
            kind = "lead" if member.is_lead else "tmux" if member.backend == "tmux" else "in-process"
            known = self._state.agents.get(member.name)
            if known is None:
                known = AgentState(
                    name=self._new_name(member.name), key=member.name, kind=kind, model=member.model,
                    type=LEAD if member.is_lead else member.agent_type or "agent",
                    state="idle" if member.is_lead else "working", since=member.joined_at or self._clock(),
                )  # fmt: skip
                if lead is not None and kind != "tmux":
                    known.pid, known.ticks = lead
                self._enrol(known, member.plan_required)
            if known.kind != kind:
                # It got a pane of its own.
                known.kind, known.pid, known.ticks = kind, 0, 0
            known.model = known.model or member.model
        self._note_lead_session(roster.lead_session)

    def _note_lead_session(self, ident: str) -> None:
        if ident and ident not in self._state.sessions:
            self._state.sessions.append(ident)
        self._note_sessions([ident])

    def _enrol(self, agent: AgentState, plan_required: bool = False) -> None:  # noqa: FBT001, FBT002
        self._state.agents[agent.key] = agent
        folder = self.team.agent(agent.name).folder
        folder.store.make_folder(folder.name)
        report_to = agent.parent or (OPERATOR if agent.kind == "lead" else LEAD)
        member = Member(
            name=agent.name, type=agent.type, role=agent.role, model=agent.model, added_at=agent.since,
            report_to=report_to, plan_required=plan_required,
        )  # fmt: skip
        store_roster.put(self.team, member)
        self._begin_run(agent)

    def _begin_run(self, agent: AgentState) -> None:
        agent.run += 1
        agent.ended = ""
        self._settled.discard(agent.name)
        event = RunStarted(
            ts=agent.since, run=agent.run, pid=agent.pid, type=agent.type, model=agent.model, fresh=agent.run == 1,
            prompt_id=agent.key, boot_id=unix_process.boot_id(), start_ticks=agent.ticks,
        )  # fmt: skip
        self._journals.append(agent.name, event, f"run:{agent.run}")

    def _new_name(self, key: str) -> str:
        taken = {agent.name for agent in self._state.agents.values()}
        name = base = _valid_name(key)
        for number in range(2, 10_000):
            if name not in taken:
                break
            name = f"{base[: _LONGEST_NAME - 1 - len(str(number))]}-{number}"
        return name

    def _name_of(self, key: str) -> str:
        """Return the name in the team directory of an agent, or of another author of letters, by Claude Code's name."""
        agent = self._state.agents.get(key) or next(
            (each for each in self._state.agents.values() if _valid_name(each.key) == _valid_name(key)), None
        )
        return agent.name if agent is not None else OPERATOR if key in (OPERATOR, "user") else _valid_name(key)

    def _note_sessions(self, sessions: list[str]) -> None:
        """Add ids to the team's sessions; record the version of Claude Code, and whether its hooks hold plans."""
        known = self._attached
        idents = list(dict.fromkeys([*known.session_ids, *filter(None, sessions)]))
        version = next((each.version for each in self._sessions.values() if each.ident in idents), "") or known.version
        hooks = install.missing_reason(Path(known.cwd or self.team.root)) is None
        changed = known.replace(session_ids=idents, version=version, tested=formats.is_tested(version), hooks=hooks)
        if changed == known:
            return
        self._attached = changed

        def edit(config: Config) -> None:
            # Whether letters are allowed may have been changed by another process.
            letters = config.attached is not None and config.attached.letters
            config.attached = changed.replace(letters=letters)

        store_roster.change(self.team, edit)

    def _find_transcripts(self) -> None:
        projects, known = self._places.projects, self._state.tails
        lead = self._state.agents.get(formats.LEAD)
        for session in self._state.sessions:
            if lead is not None and not any(path.endswith(f"{os.sep}{session}.jsonl") for path in known):
                path = transcripts.find_session(projects, self._attached.cwd, session)
                if path is not None:
                    known[str(path)] = Tail(agent=lead.key)
        for member in self._roster.members if self._roster else ():
            agent = self._state.agents.get(member.name)
            if agent is None or agent.kind != "tmux" or any(tail.agent == agent.key for tail in known.values()):
                continue
            cwd = member.cwd or self._attached.cwd
            path = transcripts.find_teammate(projects, cwd, self._attached.team, member.name, known)
            if path is not None:
                known[str(path)] = Tail(agent=agent.key)
                self._note_sessions([path.stem])
        mains = {agent.key for agent in self._state.agents.values() if agent.kind in ("lead", "tmux")}
        self._mains = tuple(path for path, tail in known.items() if tail.agent in mains)
        for main in self._mains:
            for path in transcripts.sub_agents(Path(main)):
                if str(path) not in known and (key := self._owner_of(path, known[main].agent)) is not None:
                    known[str(path)] = Tail(agent=key)

    def _owner_of(self, path: Path, parent: str) -> str | None:
        """Return the key of the agent whose transcript is at `path`; None while that cannot be told.

        A sub-agent, which is no member of the team, is added to the roster below the agent `parent`.
        """
        meta = transcripts.meta_of(path)
        name = meta.get("name")
        members = self._roster.members if self._roster else ()
        if isinstance(name, str) and name in self._state.agents:
            return name
        first = transcripts.first_letter(path)
        if first:
            return next((each.name for each in members if each.prompt.strip() == first.strip()), None)
        if not meta or meta.get("taskKind") == "in_process_teammate":
            # It was not written yet, or the roster was not.
            return None
        kind = str(meta.get("agentType") or "agent")
        agent = AgentState(
            name=self._new_name(f"{kind}-{path.stem[-4:]}"), key=path.stem, kind="sub-agent", type=kind,
            role=str(meta.get("description") or "")[:200], parent=self._state.agents[parent].name,
            model=str(meta.get("model") or ""), since=files.changed_at(path),
        )  # fmt: skip
        self._enrol(agent)
        return agent.key

    def _read_transcripts(self) -> None:
        for tail, record in transcripts.read_new(self._state.tails):
            agent = self._state.agents.get(tail.agent)
            if agent is None or not self._journals.is_new(agent.name, str(record.get("uuid") or "")):
                continue
            if agent.kind == "sub-agent" and agent.ended:
                agent.since = formats.moment(record.get("timestamp"))
                self._begin_run(agent)
            found = transcripts.translate(record, agent, self.team.root, self._prices)
            for letter in found.entered:
                self._letters.enter(self._name_of(letter.author), agent.name, letter)
            if found.sent is not None:
                to, letter = found.sent
                self._letters.see(agent.name, self._name_of(to), letter)
            if agent.waiting_for is not None and any(isinstance(event, ToolResult) for event in found.events):
                agent.waiting_for = None
                self._asks.close_of(agent.name)
            for number, event in enumerate(found.events):
                self._journals.append(agent.name, event, f"{record.get('uuid')}:{number}")

    def _read_tasks(self) -> None:
        folder = self._places.tasks(self._attached.team)
        try:
            with os.scandir(folder) as entries:
                found = {Path(e.path) for e in entries if re.fullmatch(r"[1-9]\d{0,8}\.json", e.name)}
        except OSError:
            return
        for path in sorted(found):
            task = self._read_changed(path, formats.task)
            if task is not None:
                self._put_task(task)
        for path in [path for path in self._files if path.parent == folder and path not in found]:
            del self._files[path]
            self._put_task(formats.BoardTask(int(path.stem), "", "", "deleted", "", ()))

    def _put_task(self, task: formats.BoardTask) -> None:
        record = self.team.task(task.id)
        old = record.load_or_none()
        now = self._clock()
        gone = task.status == "deleted" and old is not None
        new = Task(
            id=task.id,
            subject=(old.subject if gone and old else task.subject) or f"task {task.id}",
            description=old.description if gone and old else task.description,
            status=_STATUS.get(task.status, "pending"),
            owner=self._name_of(task.owner) if task.owner else None,
            blocked_by=[each for each in task.blocked_by if each != task.id],
            created_at=old.created_at if old else now,
            updated_at=old.updated_at if old else now,
            rev=old.rev if old else 0,
        )
        if old == new:
            return
        new.updated_at, new.rev = now, new.rev + 1
        record.save(new)

    # Processes and states.

    def _read_processes(self) -> None:
        lead = self._state.agents.get(formats.LEAD)
        if lead is None or self._roster is None:
            return
        process = teams.lead_process(self._roster, self._sessions.values())
        if process is not None and (process.pid, process.ticks) != (lead.pid, lead.ticks):
            resumed = lead.pid != 0
            lead.pid, lead.ticks = process
            if lead.ended or resumed:
                lead.since = self._clock()
                self._begin_run(lead)
        if not lead.pid and not lead.ended and self._roster.members and self._clock() - lead.since > _START_TIMEOUT:
            self._end(lead, "gone")
        session = next((s for s in self._sessions.values() if (s.pid, s.ticks) == (lead.pid, lead.ticks)), None)
        self._note_lead_session(session.ident if session is not None else "")
        members = {member.name for member in self._roster.members}
        for agent in list(self._state.agents.values()):
            is_sought = agent.kind == "tmux" and not agent.pid and not agent.ended
            if is_sought and time.monotonic() - self._looked_for.get(agent.key, 0) >= _FIND_EVERY:
                self._looked_for[agent.key] = time.monotonic()
                process = teams.find_teammate(agent.key, self._attached.team)
                if process is not None:
                    agent.pid, agent.ticks = process
                elif self._clock() - agent.since > _START_TIMEOUT:
                    self._end(agent, "gone")
            elif agent.kind in ("in-process", "sub-agent") and not agent.ended:
                agent.pid, agent.ticks = lead.pid, lead.ticks
            self._note_end(agent, members, lead)
        gate.cancel_abandoned(self.team, self._clock())
        if session is not None and not lead.ended:
            state = _STATES.get(session.status)
            if state is not None and state != lead.state:
                lead.state, lead.since = state, session.since or self._clock()
            self._asks.note_session(session, lead, self._state.agents.values())

    def _note_end(self, agent: AgentState, members: set[str], lead: AgentState) -> None:
        """Record the end of an agent if it left the team, finished its turn as a sub-agent, or lost its process."""
        if agent.ended:
            return
        process = Process(agent.pid, agent.ticks)
        disbanded = not members
        if agent.kind == "sub-agent":
            reason = "finished" if agent.state == "idle" else "gone" if agent.pid and not process.lives else ""
        elif agent is not lead and agent.key not in members:
            reason = "shutdown" if agent.leaves else "finished"
        elif agent.pid and not process.lives:
            reason = "finished" if disbanded else "gone"
        else:
            # A lead whose team was deleted works on alone.
            reason = "finished" if disbanded and not process.lives else ""
        if reason:
            self._end(agent, reason)

    def _end(self, agent: AgentState, reason: str) -> None:
        agent.ended, agent.open = reason, {}
        code = None if reason == "gone" else 0
        at = self._clock()
        if not self._saved:
            # An end that nothing mirrored came after its last sign of life, and that may be long ago.
            written = [files.changed_at(path) for path, tail in self._state.tails.items() if tail.agent == agent.key]
            at = min(at, max([agent.since, *written]))
        self._write(self.team.agent(agent.name).exit, Exit(run=agent.run, code=code, reason=reason, at=at, buried=True))
        requests.cancel_requests_of(self.team, agent.name, self._clock())

    # What a letter means for its author.

    def _on_letter(self, author: str, to: str, frame: dict[str, Any] | None, ts: float) -> None:
        agent, kind = self._agent(author), frame["type"] if frame is not None else ""
        if frame is None:
            return
        if kind in ("plan_approval_response", "permission_response"):
            if (asked := self._agent(to)) is not None:
                asked.state, asked.since, asked.waiting_for = "working", ts, None
            self._asks.note_answer(author, frame)
        elif agent is None:
            return
        elif kind == "idle_notification" and ts >= agent.since:
            agent.state, agent.since, agent.doing, agent.open, agent.waiting_for = "idle", ts, "", {}, None
        elif kind == "shutdown_approved":
            agent.leaves = True
        elif kind == "plan_approval_request":
            agent.state, agent.since, agent.waiting_for = "waiting", ts, "plan approval by the lead"
            self._asks.submit_plan(author, frame, ts)
        elif kind == "permission_request":
            agent.state, agent.since, agent.waiting_for = "waiting", ts, "permission prompt"
            self._asks.ask_permission(author, frame)

    def _agent(self, name: str) -> AgentState | None:
        return next((agent for agent in self._state.agents.values() if agent.name == name), None)

    # Writing.

    def _run_of(self, name: str) -> int:
        agent = self._agent(name)
        return agent.run if agent is not None else 0

    def _write_agents(self) -> None:
        for agent in self._state.agents.values():
            if agent.name in self._settled:
                continue
            directory = self.team.agent(agent.name)
            spec = Spec(
                prompt=agent.role, prompt_id=agent.key, type=agent.type, role=agent.role, model=agent.model,
                run=agent.run, by=agent.parent or OPERATOR,
            )  # fmt: skip
            self._write(directory.spec, spec)
            open_requests = (each for each in requests.pending(self.team) if each.from_ == agent.name)
            asked = next((each.type.replace("_", " ") for each in open_requests if each.type != "shutdown"), None)
            state: State = "waiting" if agent.waiting_for else "idle" if agent.state == "idle" else "working"
            status = Status(
                run=agent.run, pid=agent.pid, state="waiting" if asked else state, since=agent.since,
                doing=agent.doing if state == "working" else "", turn=agent.turn,
                waiting_for=agent.waiting_for or asked,
                tokens=agent.tokens, context=Context(used=agent.context), cost_usd=agent.cost_usd,
                last_error=agent.last_error, beat=agent.since, model=agent.model, last_tool=agent.last_tool,
                boot_id=unix_process.boot_id(), start_ticks=agent.ticks,
            )  # fmt: skip
            self._write(directory.status, status)
            agent.written = directory.journal.size()
            if agent.ended:
                self._settled.add(agent.name)

    def _write(self, place: RecordKey[R], record: R) -> None:
        if self._written.get(place) != record:
            place.overwrite(record)
            self._written[place] = record

    def _save(self) -> None:
        """Save `mirror.json` if it changed; after the records, so that what a killed process left out is read again."""
        state = codec.encode(self._state)
        if state != self._saved:
            self.team.mirror.put(state)
            self._saved = state
            self._journals.forget_unsaved()


def _valid_name(key: str) -> str:
    """Return Claude Code's name of an agent as one that crewboard accepts and does not reserve."""
    name = gate.board_name(key)
    return f"{name}-agent" if name in _RESERVED else name


class MirrorThread:
    """Mirrors a team in a thread of its own, from `start` until `stop` or the end of the process.

    It mirrors soon after a file changed, and every `SWEEP` seconds anyway, because file events can be missed.
    `on_error` gets the text of each error, except for one that comes again at the next attempt.
    """

    def __init__(self, team: TeamDirectory, *, on_error: Callable[[str], None] = log.warning) -> None:
        self.mirror = Mirror(team)
        self._on_error = on_error
        self._wake = threading.Event()
        self._ended = threading.Event()
        self._events: FileEvents | None = None
        self._watched: dict[int, str | Path] = {}
        self._failure = ""
        self._thread = threading.Thread(target=self.run, name="crewboard-mirror", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread without waiting: it releases the lock when it has written what it read."""
        self._ended.set()
        self._wake.set()

    def refresh(self) -> None:
        """Mirror once, in the thread of the caller. Report an error only if it differs from that of the last call."""
        self._wake.clear()
        failure = ""
        try:
            self.mirror.refresh()
        except CrewboardError as error:
            failure = str(error)
        if failure and failure != self._failure:
            self._on_error(failure)
        self._failure = failure

    def run(self) -> None:
        """Mirror until `stop` is called."""
        while not self._ended.is_set():
            self.refresh()
            # Watch the folders that are there now. If the system grants no file events, only the sweep works.
            folders = self.mirror.folders()
            if self._events is None or not self._events.is_alive():
                with contextlib.suppress(OSError, ImportError):
                    self._events = FileEvents(
                        str(self.mirror.team.path), lambda _: self._wake.set(), folders=self.mirror.folders
                    )
            elif folders != self._watched:
                self._events.follow()
            self._watched = folders
            self._ended.wait(GATHER)
            self._wake.wait(SWEEP)
        if self._events is not None:
            self._events.stop()
        self.mirror.close()
