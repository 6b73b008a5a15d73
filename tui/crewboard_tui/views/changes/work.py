"""Read the work of the agents, and describe it: rows of agents and of files, and whether it can be merged.

It is read in a thread, because each reading starts processes of git.
"""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct, field

from crewboard import AgentView, CrewboardError, TeamView
from crewboard.commands import changes as commands_changes
from crewboard.commands.changes import describe_review
from crewboard.records.base import counted
from crewboard.records.team import Acceptance
from crewboard.store import leases
from crewboard.untrusted import as_run
from crewboard_tui.render import table
from crewboard_tui.render.diff import FileDiff, hunk_lines, parse_diff
from crewboard_tui.render.lines import Line, Span, clip, clip_middle, hang, one_line, pad, say, say_run, width_of
from crewboard_tui.render.looks import check_tone, describe_check, look_of
from crewboard_tui.render.sanitize import has_hidden, revealing
from crewboard_tui.render.table import Column
from crewboard_tui.widgets.line_list import Row

if TYPE_CHECKING:
    from crewboard.worktrees.changes import Changes, FileChange, LastCheck, LastReview
    from crewboard_tui.context import AppContext
    from crewboard_tui.queries import Readers, Snapshot


_NAME = 14
"""The most cells for the name of an agent."""

_LONGEST_CHECK = 16
"""The most cells for the command of a check in a row."""

_MOST_OF_DIFF = 400
"""The most lines of a diff below the list of agents; the page of the work has all."""

ID_LENGTH = 8
"""The number of characters of a commit's id that are shown."""

DOT = " · "
"""The sign between two facts of a line."""

_SIGNS = {
    "added": ("A", "success"),
    "modified": ("M", "warning"),
    "deleted": ("D", "error"),
    "renamed": ("R", "info"),
    "type": ("T", "warning"),
}
"""The sign of each kind of change, and its tone."""


def fit_words(changes: "Changes", nothing: str = "nothing changed") -> Span:
    """Return whether an agent's work can be merged as it is; `nothing` is the text for no work."""
    is_red = changes.check is not None and changes.check.state == "failed"
    red = "✗ " if is_red else ""
    if changes.conflicts:
        return Span(f"{red}⚠ conflicts: {one_line(as_run(', '.join(changes.conflicts)))}", "warning")
    if not changes.files or changes.is_merged:
        return Span("merged here" if changes.files else nothing, "dim")
    if changes.collides_with:
        return Span(f"{red}⚠ collides with {', '.join(changes.collides_with)}", "warning")
    if changes.check is not None and is_red:
        # It blocks a merge of work that would merge cleanly.
        return check_words(changes.check)
    if changes.missing:
        return Span(f"⚠ {counted(len(changes.missing), 'path')} not taken in", "warning")
    return Span("✓ merges cleanly", "success")


def check_words(check: "LastCheck", most: int = _LONGEST_CHECK) -> Span:
    """Return an agent's last check, with at most `most` cells for its command."""
    command = clip(one_line(as_run(check.checked.command)), most) if check.checked is not None else ""
    return Span(describe_check(check, command), check_tone(check))


_REVIEWS = {"same": "reviewed", "part": "part reviewed", "old": "changed since review"}
"""The words for a review in a row, by its state."""


def review_words(review: "LastReview") -> Span:
    """Return who reviewed an agent's work, and whether it is still what the reviewer saw."""
    return Span(one_line(describe_review(review)), _review_tone(review))


def _review_tone(review: "LastReview") -> str:
    return "success" if review.state == "same" else "warning"


def behind_words(changes: "Changes") -> str:
    """Return how far the base of the work is behind its branch: `base 3 behind`; empty if it is not."""
    return f"base {changes.behind} behind" if changes.behind else ""


_LEAST_FIT = 20
"""Cells for the words that say whether the work can be merged; other columns are left out first."""


def nothing_words(name: str, merged: Container[str]) -> str:
    """Return the text for an agent without work to merge; `merged` has the agents whose work was merged."""
    return "all merged" if name in merged else "nothing changed"


def change_rows(
    agents: Sequence[tuple[AgentView | None, "Changes"]], width: int, merged: Container[str] = frozenset()
) -> list[Row]:
    """Return a row for each agent: its state, lines, files, base, and whether its work can be merged."""
    known = [each for _, each in agents]
    names = min(_NAME, max((len(each.agent) for each in known), default=0))
    sizes = {each.agent: counted(len(each.files), "file") for each in known}
    bases = {each.agent: behind_words(each) for each in known}
    columns: list[Column[Changes]] = [
        Column("agent", names + 1, lambda each: Span(clip_middle(each.agent, names), "bold")),
        Column(
            "added",
            max((len(str(each.added)) for each in known), default=0) + 1,
            lambda each: Span(f"+{each.added}", "success" if each.added else "dim"),
            "right",
        ),
        Column(
            "removed",
            max((len(str(each.removed)) for each in known), default=0) + 1,
            lambda each: Span(f"−{each.removed}", "error" if each.removed else "dim"),
            "right",
        ),
        _dotted_column("files", sizes, "", rank=1),
        _dotted_column("base", bases, "warning", rank=2),
    ]
    # What is said last matters most: whether the work can be merged.
    columns = table.fit(table.with_data(columns, known), width - 2 - len("· ") - _LEAST_FIT)
    rows = []
    for agent, each in agents:
        look, fits = look_of(agent) if agent is not None else None, nothing_words(each.agent, merged)
        line: Line = (
            Span(f"{look.glyph} ", look.tone) if look is not None else Span("  "),
            *table.cells(columns, each),
            Span("· ", "dim"),
            fit_words(each, fits),
        )
        more = [check_words(each.check)] if each.check is not None else []
        # Unless that is why it cannot be merged, and said.
        more = [words for words in more if words != fit_words(each)]
        more += [Span(_REVIEWS[each.review.state], _review_tone(each.review))] if each.review is not None else []
        for words in more:
            longer = (*line, Span(DOT, "dim"), words)
            line = longer if width_of(longer) <= width else line
        rows.append(Row(each.agent, line))
    return rows


def _dotted_column(title: str, texts: Mapping[str, str], tone: str, rank: int) -> "Column[Changes]":
    """Return a column with a text for each agent and a dot before it."""
    width = max(map(len, texts.values()), default=0)
    return Column(
        title,
        len("· ") + width,
        lambda each: (Span("· " if texts[each.agent] else "  ", "dim"), Span(pad(texts[each.agent], width), tone)),
        rank=rank,
        has=lambda each: bool(texts[each.agent]),
    )


def size_words(change: "FileChange") -> tuple[Span, ...]:
    """Return the size of a change: the lines added and removed, or `binary`; `+x` or `−x` if its mode changed."""
    if change.added is None or change.removed is None:
        return (Span("binary", "dim"),)
    added = (Span(f"+{change.added}", "success"),) if change.added else ()
    removed = (Span(f"−{change.removed}", "error"),) if change.removed else ()
    mode = (Span("+x" if change.new_mode == "100755" else "−x", "warning"),) if change.new_mode is not None else ()
    return (
        *mode,
        *((Span(" "),) if mode and (added or removed) else ()),
        *added,
        *((Span(" "),) if added and removed else ()),
        *removed,
    )


def file_line(change: "FileChange", width: int, *, is_marked: bool = False, notes: int = 0) -> Line:
    """Return the row of a changed file: what happened to it, a mark, its paths, the notes on it, and its size."""
    sign, tone = _SIGNS[change.status]
    right = (*note_count(notes), *size_words(change))
    mark = "⚠ " if is_marked else ""
    names = " → ".join(each for each in (change.old_path, change.path, change.target) if each is not None)
    path = clip_middle(one_line(as_run(names)), max(1, width - width_of(right) - len(mark) - 4))
    return (Span(f"{sign} ", tone), Span(mark, "warning"), Span(path), Span("  "), *right)


def note_count(notes: int) -> Line:
    """Return how many notes there are on a file; nothing if there are none."""
    return (Span(f"✎{notes} ", "warning"),) if notes else ()


def detail_lines(changes: "Changes", width: int, merged: Acceptance | None = None) -> list[Line]:
    """Return the facts about an agent's work: branch and base, conflicts, check and review, and its files.

    `merged` is the last merge: the base is then named by the commit on the user's branch.
    """
    begin, since = changes.base, " from "
    if merged is not None and merged.commit == changes.base:
        # What the agent does not have is counted from where its checkout began.
        begin, since = merged.result, ", last merged as "
    behind = f", {counted(changes.behind, 'commit')} behind" if changes.behind else ""
    facts: list[Line] = [
        (Span("branch  ", "dim"), say_run(changes.branch), Span(f"{since}{begin[:ID_LENGTH]}{behind}", "dim"))
    ]
    if changes.conflicts:
        facts.append(
            (Span("⚠       ", "warning"), Span("conflicts in "), say_run(", ".join(changes.conflicts), "warning"))
        )
    if changes.collides_with:
        others = say(", ".join(changes.collides_with), "warning")
        facts.append((Span("⚠       ", "warning"), Span("does not merge with the work of "), others))
    if changes.check is not None:
        facts.append((Span("check   ", "dim"), check_words(changes.check, most=width)))
        if changes.check.state == "failed":
            facts.append((Span("        "), Span("blocks a merge until it passes", "error")))
        if changes.check.state == "old":
            facts.append((Span("        "), Span("the files changed since", "warning")))
    if changes.review is not None:
        words = review_words(changes.review)
        facts.append((Span("review  ", "dim"), Span(words.text.removeprefix("reviewed "), words.tone)))
    facts += [(Span("missing ", "warning"), say(each)) for each in changes.missing]
    if not changes.files:
        whole = f"all merged, as {begin[:ID_LENGTH]}" if merged is not None else "none changed"
        facts.append((Span("files   ", "dim"), Span(whole)))
    lines = [part for fact in facts for part in hang(fact, width, len("branch  "), 3)]
    return [*lines, *(file_line(each, width, is_marked=each.path in changes.conflicts) for each in changes.files)]


def work_lines(
    changes: "Changes", files: Iterable[FileDiff], width: int, merged: Acceptance | None = None
) -> list[Line]:
    """Return the facts about an agent's work, and below them the start of its diff, as far as it is read."""
    lines = detail_lines(changes, width, merged)
    most = len(lines) + _MOST_OF_DIFF
    for each in files:
        lines += [(), (Span(clip_middle(one_line(as_run(each.path)), width), "bold"),)]
        lines += [(say(fact, "dim"),) for fact in each.facts]
        for hunk in each.hunks:
            lines.append((say(hunk.head, "dim"),))
            lines += [line for _, line in hunk_lines(hunk, width, each.digits)]
            if len(lines) > most:
                return [*lines[:most], (Span("… the page of the agent has the rest", "dim"),)]
        if each.left_out:
            lines.append((Span(f"{counted(each.left_out, 'more line')} not shown", "warning"),))
    return lines


class Diff(Struct, frozen=True):
    """The diff of an agent's work, and the two commits that it compares. In `revealed`, nothing is redacted.

    Text from `revealed` must not be written to files.
    """

    commits: tuple[str, str] = ("", "")
    files: tuple[FileDiff, ...] = ()
    revealed: tuple[FileDiff, ...] = ()


class _Reading(Struct):
    """The outcome of one reading."""

    changes: list["Changes"] = field(default_factory=list)
    diffs: dict[str, Diff] = field(default_factory=dict)
    merged: dict[str, Acceptance] = field(default_factory=dict)
    is_listed: bool = False
    problem: str = ""


class ChangesReader:
    """Reads the work of the agents in a thread, on demand: each reading starts some processes of git.

    `show` is called when something was read.
    """

    def __init__(self, context: "AppContext") -> None:
        self._context = context
        self.known: dict[str, Changes] = {}
        self._diffs: dict[str, Diff] = {}
        self.merged: dict[str, Acceptance] = {}
        """The last merge of each agent that was not taken back."""
        self._just_merged: dict[str, Acceptance] = {}
        """Merges that were made since the present reading began, which may not have seen them."""
        self.evidence = CheckEvidence()
        """The query of the pages. When its answer changes, the work of the agent is read again."""
        self.problem = ""
        """The reason why the last reading failed."""
        self.is_read = False
        """True if something was read."""
        self.is_reading = False
        self.show: Callable[[], None] = lambda: None

        self._asked: set[str] = set()
        """The agents that are read next."""
        self._asked_all = False
        self._now = False
        self._with_diff = ""
        self._states: States = {}

    def read(self, names: Iterable[str] | None = None, diff: str | None = None, *, now: bool = False) -> None:
        """Read the changes of the agents `names`, or of all; from now on also the diff of the agent `diff`.

        The last snapshots are read; with `now`, new ones are taken first, which may take seconds. Calls during a
        reading are served together by the next one. Without `diff`, the last one given stays.
        """
        self._asked_all |= names is None
        self._now |= now and not self._context.read_only
        self._asked.update(names or ())
        if diff is not None:
            self._with_diff = diff
        if not self.is_reading and (self._asked_all or self._asked):
            self._start()

    def diff(self, name: str) -> Diff:
        """Return the diff of an agent; an empty one if it is not read."""
        return self._diffs.get(name, Diff())

    def changed_nothing(self, agent: AgentView) -> bool:
        """Return True if it is known that an agent has no snapshot, so that it never changed anything."""
        changes, worktree = self.known.get(agent.name), agent.spec.worktree if agent.spec is not None else None
        # With snapshots there may be something to put back: an assignment may have undone the changes of those before.
        return changes is not None and worktree is not None and changes.commit == worktree.base

    def note(self, snapshot: "Snapshot") -> None:
        """Read the work of agents again whose state or last check has changed since the last call."""
        before, self._states = self._states, states_of(snapshot.view, snapshot.get(self.evidence) or {})
        if self.is_read and before != self._states:
            changed = {name for name, state in self._states.items() if before.get(name) != state}
            self.known = {name: each for name, each in self.known.items() if name in self._states}
            self.read(changed)

    def note_merge(self, made: Acceptance) -> None:
        """Note a merge that was just made, so that it can be undone before it is read."""
        self._just_merged[made.agent] = self.merged[made.agent] = made

    def _start(self) -> None:
        self._just_merged = {}
        names = None if self._asked_all else sorted(self._asked)
        now = self._now
        self._asked_all, self._asked, self._now, self.is_reading = False, set(), False, True
        found = _Reading()
        team, wanted = self._context.team, self._with_diff
        before = self.diff(wanted).commits

        def read() -> str:
            for name in names if names is not None else team.config.names:
                try:
                    # Of an agent on a host, the newest snapshot is fetched in any case.
                    if now or (not self._context.read_only and commands_changes.is_on_host(team, name)):
                        commands_changes.take_snapshot(team, name)
                except (CrewboardError, OSError) as error:
                    found.problem = f"{name}: {error}"
            try:
                # Of all, because the work of one agent decides which others collide with it.
                found.changes = commands_changes.list_changes(team)
                kept = team.directory.acceptances.load_or_none()
                found.merged = {each.agent: each for each in (kept.acceptances if kept else ()) if not each.undone}
                found.is_listed = True
                for each in found.changes:
                    ends = each.base, each.commit
                    if each.agent == wanted and ends != before:
                        text = commands_changes.read_diff(team, each)
                        found.diffs[wanted] = Diff(ends, *_parse(text))
            except (CrewboardError, OSError) as error:
                found.problem = str(error)
            return ""

        def done(worked: bool, says: str) -> None:  # noqa: FBT001
            self.is_reading = False
            if self._context.left:
                return
            self.is_read, self.problem = True, found.problem if worked else says
            if found.is_listed:
                # Of all agents, or of those with these names.
                kept = {} if names is None else {name: each for name, each in self.known.items() if name not in names}
                self.known = {**kept, **{each.agent: each for each in found.changes}}
                self.merged = {**found.merged, **self._just_merged}
                self._diffs |= found.diffs
            self.show()
            self.read(())

        self._context.jobs.start("reading what changed", read, done)


def _parse(text: str) -> tuple[tuple[FileDiff, ...], tuple[FileDiff, ...]]:
    """Return the files of a diff with secrets redacted, and with nothing redacted."""
    files = tuple(parse_diff(text))
    hunks = [hunk for each in files for hunk in each.hunks]
    if not any(has_hidden(text) for hunk in hunks for text in (hunk.head, *(line.text for line in hunk.lines))):
        return files, files
    with revealing():
        return files, tuple(parse_diff(text))


States = dict[str, tuple[object, ...]]


class CheckEvidence(Struct, frozen=True):
    """Query for what tells that the work of an agent with a worktree may have changed."""

    def read(self, readers: "Readers", view: TeamView) -> Mapping[str, tuple[float, float, bool]]:
        """Return, by agent: when its last check was recorded, when any merge or undo was, and if a check runs."""
        merged = readers.team.acceptances.changed_at()
        found = ((agent.name, readers.team.agent(agent.name)) for agent in view.agents if has_worktree(agent))
        return {name: (agent.checked.changed_at(), merged, leases.is_held(agent.checking)) for name, agent in found}


def has_worktree(agent: AgentView) -> bool:
    """Return True if an agent has a worktree."""
    return agent.spec is not None and agent.spec.worktree is not None


def states_of(view: TeamView, checks: Mapping[str, tuple[float, float, bool]]) -> States:
    """Return the state of each agent that has a worktree: when the state changes, its work may have changed.

    `checks` is the answer to `CheckEvidence`.
    """
    # With when work of it was approved.
    reviews = [task.reviewed for task in view.tasks if task.reviewed is not None]
    return {
        agent.name: (
            agent.run,
            agent.state,
            agent.task,
            checks.get(agent.name),
            *(each.at for each in reviews if each.of == agent.name),
        )
        for agent in view.agents
        if has_worktree(agent)
    }
