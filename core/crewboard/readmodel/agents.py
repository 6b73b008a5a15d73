"""One agent as a reader sees it: what its files say, and what follows from that."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from crewboard.readmodel.mail import Unread
from crewboard.readmodel.processes import Usage
from crewboard.readmodel.states import DEAD, Evidence, find_state, show
from crewboard.readmodel.team import AgentView, Rest
from crewboard.records import Cursor, Exit, Member, Request, Spec, State, Status
from crewboard.store.json_files import CachedFile
from crewboard.store.layout import AgentDirectory, TeamDirectory

_RESTS: frozenset[State] = frozenset({"idle", "paused"})


class AgentReader:
    """The files of one agent."""

    def __init__(self, team: TeamDirectory, name: str) -> None:
        self._team = team
        self.directory: AgentDirectory = team.agent(name)
        self.spec = CachedFile(self.directory.spec, Spec)
        self.status = CachedFile(self.directory.status, Status)
        self.exit = CachedFile(self.directory.exit, Exit)
        self.cursor = CachedFile(self.directory.cursor, Cursor)
        self.seen_alive: float | None = None
        self.seen_gone: float | None = None
        cursor = self.cursor.get() or Cursor()
        self.unread = Unread(team, name, cursor.offset)

    def note_lease(self, held: bool, now: float) -> bool:  # noqa: FBT001
        """Note when the lease was last seen held, and first seen free after that; return `held`."""
        if held:
            self.seen_alive, self.seen_gone = now, None
        elif self.seen_gone is None:
            self.seen_gone = now
        return held

    @property
    def damage(self) -> Counter[str]:
        """The number of unreadable files, and of unreadable lines of mail and journal, by where they are."""
        cursor = self.cursor.last_good or Cursor()
        records = (self.spec, self.status, self.exit, self.cursor)
        lines = {f"mail or journal of {self.directory.name}": cursor.damaged + self.unread.damaged}
        return count_damage(self._team, (record.path for record in records if record.damaged)) + Counter(lines)


@dataclass(frozen=True)
class AgentFacts:
    """What was read of one agent, before it is judged."""

    member: Member
    held: bool
    spec: Spec | None
    status: Status | None
    exit: Exit | None
    unread: int
    damaged: int
    acknowledged: int
    task: int | None
    asks: tuple[Request, ...]
    usage: Usage | None
    pid_gone: bool = False
    supervised: bool = False
    seen_alive: float | None = None
    seen_gone: float | None = None


def project_agent(facts: AgentFacts, boot_id: str, now: float) -> AgentView:
    """Return the view that follows from the facts about one agent."""
    found = find_state(_evidence(facts, boot_id, now))
    status = facts.status or Status(run=0, pid=0, state="unknown", since=0)
    run = max(status.run, facts.exit.run if facts.exit else 0)
    acknowledged = not facts.held and 0 < run == facts.acknowledged
    return AgentView(
        name=facts.member.name,
        type=facts.member.type,
        role=facts.member.role,
        model=status.model or facts.member.model,
        state=found.state,
        shown="done" if found.state in DEAD and acknowledged else show(found.state, list(facts.asks)),
        reason=found.reason,
        since=found.since,
        doing=found.reason if found.state == "unknown" or not facts.held else status.doing,
        run=run or (facts.spec.run if facts.spec else 0),
        pid=status.pid or None,
        alive=facts.held,
        exit=facts.exit if facts.exit and facts.exit.run == run else None,
        acknowledged=acknowledged,
        unread=facts.unread,
        turn=status.turn,
        task=facts.task,
        waiting_for=status.waiting_for if facts.held else None,
        retry_at=status.retry_at if facts.held else None,
        last_error=status.last_error,
        last_tool=status.last_tool,
        tokens=status.tokens,
        context=status.context,
        cost_usd=status.cost_usd,
        usage=facts.usage if facts.held else None,
        sandbox=status.sandbox,
        damaged=facts.damaged,
        spec=facts.spec,
        asks=facts.asks,
        rested=_rest(facts, status) if status.run == run else None,
        is_starting=found.is_starting,
        failed_start=found.failed_start,
        is_open=found.is_open,
        unsafe=facts.held and status.unsafe,
    )


def _evidence(facts: AgentFacts, boot_id: str, now: float) -> Evidence:
    return Evidence(
        facts.held, facts.spec, facts.status, facts.exit, boot_id, now,
        pid_gone=facts.pid_gone, supervised=facts.supervised, seen_alive=facts.seen_alive, seen_gone=facts.seen_gone,
    )  # fmt: skip


def _rest(facts: AgentFacts, status: Status) -> Rest | None:
    return Rest(status.state, status.since) if not facts.held and status.state in _RESTS else None


def count_damage(team: TeamDirectory, paths: Iterable[Path]) -> Counter[str]:
    """Return the number of damaged files by their path in the team directory."""
    return Counter(str(path.relative_to(team.path)) for path in paths)
