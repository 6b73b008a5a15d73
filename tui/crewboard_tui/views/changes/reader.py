"""The reader of what agents changed. It runs in a thread, because each reading starts processes of git."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from msgspec import Struct, field

from crewboard import AgentView, CrewboardError, TeamView
from crewboard.commands import changes as commands_changes
from crewboard.records.team import Acceptance, Acceptances
from crewboard.store import json_records, leases
from crewboard.store.layout import AgentDirectory
from crewboard_tui.render.diff import FileDiff, parse_diff
from crewboard_tui.render.sanitize import has_hidden, revealing

if TYPE_CHECKING:
    from crewboard.worktrees.changes import Changes
    from crewboard_tui.context import AppContext
    from crewboard_tui.queries import Readers, Snapshot


class _Diff(Struct, frozen=True):
    """The diff of an agent, and the commits between which it is."""

    commits: tuple[str, str]
    files: tuple[FileDiff, ...]
    revealed: tuple[FileDiff, ...]


class _Reading(Struct):
    """The outcome of one reading."""

    changes: list["Changes"] = field(default_factory=list)
    diffs: dict[str, _Diff] = field(default_factory=dict)
    merged: dict[str, Acceptance] = field(default_factory=dict)
    is_listed: bool = False
    problem: str = ""


class ChangesReader:
    """The work of the agents, read in a thread when it is asked for: each reading starts some processes of git.

    `show` is called when something was read.
    """

    def __init__(self, context: "AppContext") -> None:
        self._context = context
        self.known: dict[str, Changes] = {}
        self.diffs: dict[str, tuple[FileDiff, ...]] = {}
        self.revealed: dict[str, tuple[FileDiff, ...]] = {}
        """The same diffs, in which nothing is redacted. What is written to files must not come from here."""
        self.merged: dict[str, Acceptance] = {}
        """The last merge of each agent that was not taken back."""
        self._just_merged: dict[str, Acceptance] = {}
        """The merges that the reading under way may have come too early for."""
        self.evidence = CheckEvidence()
        """The evidence that the pages ask for; it is read again after a check."""
        self.problem = ""
        """The reason why the last reading failed."""
        self.is_read = False
        """True if something was read."""
        self.is_reading = False
        self.show: Callable[[], None] = lambda: None
        self._commits: dict[str, tuple[str, str]] = {}
        """The commits between which each diff was read."""
        self._asked: set[str] = set()
        """The agents that are read next."""
        self._asked_all = False
        self._now = False
        self._with_diff = ""
        self._states: States = {}

    def read(self, names: Iterable[str] | None = None, diff: str | None = None, *, now: bool = False) -> None:
        """Read the changes of some agents, or of all; from now on also the diff of the agent `diff`, if one is given.

        They are read as of the last snapshots; with `now`, new ones are taken first, which may take seconds. What is
        asked while something is read is read after that, all at once.
        """
        self._asked_all |= names is None
        self._now |= now and not self._context.read_only
        self._asked.update(names or ())
        if diff is not None:
            self._with_diff = diff
        if not self.is_reading and (self._asked_all or self._asked):
            self._start()

    def note(self, snapshot: "Snapshot") -> None:
        """Read agents again whose state, or whose last check, has changed since the last call."""
        before, self._states = self._states, states_of(snapshot.view, snapshot.get(self.evidence) or {})
        if self.is_read and before != self._states:
            changed = {name for name, state in self._states.items() if before.get(name) != state}
            self.known = {name: each for name, each in self.known.items() if name in self._states}
            self.read(changed)

    def note_merge(self, made: Acceptance) -> None:
        """Note a merge that was just made, so that it can be taken back before it is read."""
        self._just_merged[made.agent] = self.merged[made.agent] = made

    def _start(self) -> None:
        self._just_merged = {}
        names = None if self._asked_all else sorted(self._asked)
        now = self._now
        self._asked_all, self._asked, self._now, self.is_reading = False, set(), False, True
        found = _Reading()
        commits, team, wanted = dict(self._commits), self._context.team, self._with_diff

        def read() -> str:
            for name in names if names is not None else team.config.names:
                found.problem = self._take_snapshot(name, now=now) or found.problem
            try:
                # Of all, because the work of one agent decides with whom the others collide.
                found.changes = commands_changes.list_changes(team)
                kept = json_records.load_or_none(team.directory.acceptances, Acceptances)
                found.merged = {each.agent: each for each in (kept.acceptances if kept else ()) if not each.undone}
                found.is_listed = True
                for each in found.changes:
                    ends = each.base, each.commit
                    if each.agent == wanted and ends != commits.get(wanted):
                        text = commands_changes.read_diff(team, each)
                        found.diffs[wanted] = _Diff(ends, *_parse(text))
            except (CrewboardError, OSError) as error:
                found.problem = str(error)
            return ""

        def done(worked: bool, says: str) -> None:  # noqa: FBT001
            self.is_reading = False
            if self._context.left:
                return
            self.is_read, self.problem = True, found.problem if worked else says
            if found.is_listed:
                self._take(found, names)
            self.show()
            self.read(())

        self._context.jobs.start("reading what changed", read, done)

    def _take_snapshot(self, name: str, *, now: bool) -> str:
        """Take a snapshot if it is asked for `now`; of an agent on a host, fetch the newest, which is quick anyway.

        Return why that failed.
        """
        team = self._context.team
        try:
            if now or (not self._context.read_only and commands_changes.is_on_host(team, name)):
                commands_changes.take_snapshot(team, name)
        except (CrewboardError, OSError) as error:
            return f"{name}: {error}"
        return ""

    def _take(self, found: _Reading, names: list[str] | None) -> None:
        kept = {} if names is None else {name: each for name, each in self.known.items() if name not in names}
        self.known = {**kept, **{each.agent: each for each in found.changes}}
        self.merged = {**found.merged, **self._just_merged}
        for name, diff in found.diffs.items():
            self.diffs[name], self._commits[name] = diff.files, diff.commits
            self.revealed[name] = diff.revealed


def _parse(text: str) -> tuple[tuple[FileDiff, ...], tuple[FileDiff, ...]]:
    """Return a diff as it is shown at first, and as it is where nothing is redacted."""
    files = tuple(parse_diff(text))
    hunks = [hunk for each in files for hunk in each.hunks]
    if not any(has_hidden(text) for hunk in hunks for text in (hunk.head, *(line.text for line in hunk.lines))):
        return files, files
    with revealing():
        return files, tuple(parse_diff(text))


States = dict[str, tuple[object, ...]]


class CheckEvidence(Struct, frozen=True):
    """By agent with a worktree: when its last check was recorded, and whether one runs."""

    def read(self, readers: "Readers", view: TeamView) -> Mapping[str, tuple[float, bool]]:
        """Return it, without reading what the checks found."""
        return {
            agent.name: _check_evidence(readers.team.agent(agent.name)) for agent in view.agents if has_worktree(agent)
        }


def _check_evidence(agent: AgentDirectory) -> tuple[float, bool]:
    return agent.checked.changed_at(), leases.is_held(agent.checking)


def has_worktree(agent: AgentView) -> bool:
    """Return True if an agent has a worktree."""
    return agent.spec is not None and agent.spec.worktree is not None


def _reviews(view: TeamView, name: str) -> Iterator[float]:
    """Yield when work of an agent was approved."""
    return (task.reviewed.at for task in view.tasks if task.reviewed is not None and task.reviewed.of == name)


def states_of(view: TeamView, checks: Mapping[str, tuple[float, bool]]) -> States:
    """Return the state of each agent that has a worktree: when it changes, so may the work."""
    return {
        agent.name: (agent.run, agent.state, agent.task, checks.get(agent.name), *_reviews(view, agent.name))
        for agent in view.agents
        if has_worktree(agent)
    }
