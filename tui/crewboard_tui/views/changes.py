"""`8` Changes: what agents with a worktree changed; and the page of one agent, with its files and their diff."""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from textual import on
from textual.containers import Container
from textual.widget import Widget

import crewboard as core
from crewboard import AgentView, CrewboardError, TeamView, TryLaterError
from crewboard_tui.actions import (
    FINDS_AGENTS,
    Action,
    AgentActions,
    Layer,
    Messaging,
    Search,
    Selection,
    matches_agent,
    select,
)
from crewboard_tui.compose import LineNote, PromptLine, Prose, notes_on
from crewboard_tui.render import (
    FileDiff,
    Hunk,
    Line,
    Span,
    clip_middle,
    exact_lines,
    hang,
    hunk_lines,
    look_of,
    matches,
    one_line,
    pad,
    parse_diff,
    say,
    spread,
    width_of,
    wrap,
)
from crewboard_tui.views.base import AppContext, BaseScreen, Snapshot, first_hire, nothing_row
from crewboard_tui.widgets import MARK, CollapsibleList, CollapsibleRow, LineList, LineView, Row, crumbs_line, title

if TYPE_CHECKING:
    from crewboard.commands.changes import Merge
    from crewboard.worktrees.changes import Changes, FileChange

_NAME = 14
"""Cells for the name of an agent at most."""

_ID = 8
"""Characters of the id of a commit that are shown."""

_DOT = " · "

_SIGNS = {
    "added": ("A", "success"),
    "modified": ("M", "warning"),
    "deleted": ("D", "error"),
    "renamed": ("R", "info"),
    "type": ("T", "warning"),
}
"""The sign of each kind of change, and its tone."""


# -------------------------------------------------------------------------------------------------------- reading


@dataclass(frozen=True)
class _Diff:
    """The diff of an agent, and the commits between which it is."""

    commits: tuple[str, str]
    files: tuple[FileDiff, ...]


@dataclass
class _Reading:
    """What one reading found."""

    changes: list["Changes"] = field(default_factory=list)
    diffs: dict[str, _Diff] = field(default_factory=dict)
    accepted: dict[str, core.records.Acceptance] = field(default_factory=dict)
    is_listed: bool = False
    problem: str = ""


class ChangesReader:
    """What the agents changed, read in a thread when it is asked for: each reading starts some processes of git.

    `show` is called when something was read.
    """

    def __init__(self, context: AppContext) -> None:
        self._context = context
        self.known: dict[str, Changes] = {}
        self.diffs: dict[str, tuple[FileDiff, ...]] = {}
        self.accepted: dict[str, core.records.Acceptance] = {}
        """The last acceptance of each agent that was not taken back."""
        self.problem = ""
        """Why the last reading failed."""
        self.is_read = False
        """Whether something was read."""
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

    def note(self, view: TeamView) -> None:
        """Read agents again whose state has changed since the last call."""
        before, self._states = self._states, states_of(view)
        if self.is_read and before != self._states:
            changed = {name for name, state in self._states.items() if before.get(name) != state}
            self.known = {name: each for name, each in self.known.items() if name in self._states}
            self.read(changed)

    def _start(self) -> None:
        names = None if self._asked_all else sorted(self._asked)
        now = self._now
        self._asked_all, self._asked, self._now, self.is_reading = False, set(), False, True
        found = _Reading()
        commits, team, wanted = dict(self._commits), self._context.team, self._with_diff

        def read() -> str:
            for name in (names if names is not None else team.config.names) if now else ():
                try:
                    core.commands.changes.take_snapshot(team, name)
                except (CrewboardError, OSError) as error:
                    found.problem = f"{name}: {error}"
            try:
                # Of all, because the work of one agent decides with whom the others collide.
                found.changes = core.commands.changes.list_changes(team)
                kept = core.store.json_files.load_or_none(team.directory.acceptances, core.records.Acceptances)
                found.accepted = {each.agent: each for each in (kept.acceptances if kept else ()) if not each.undone}
                found.is_listed = True
                for each in found.changes:
                    ends = each.base, each.commit
                    if each.agent == wanted and ends != commits.get(wanted):
                        text = core.commands.changes.read_diff(team, wanted)
                        found.diffs[wanted] = _Diff(ends, tuple(parse_diff(text)))
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

    def _take(self, found: _Reading, names: list[str] | None) -> None:
        kept = {} if names is None else {name: each for name, each in self.known.items() if name not in names}
        self.known = {**kept, **{each.agent: each for each in found.changes}}
        self.accepted = found.accepted
        for name, diff in found.diffs.items():
            self.diffs[name], self._commits[name] = diff.files, diff.commits


States = dict[str, tuple[object, ...]]


def states_of(view: TeamView) -> States:
    """Return the state of each agent that has a worktree: when it changes, so may the work."""
    return {
        agent.name: (agent.run, agent.state, agent.task)
        for agent in view.agents
        if agent.spec is not None and agent.spec.worktree is not None
    }


# ------------------------------------------------------------------------------------------------------- painting


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def fit_words(changes: "Changes") -> Span:
    """Return whether an agent's work can be merged as it is."""
    if changes.conflicts:
        return Span(f"⚠ conflicts: {', '.join(map(one_line, changes.conflicts))}", "warning")
    if not changes.files:
        return Span("nothing changed", "dim")
    if changes.collides_with:
        return Span(f"⚠ collides with {', '.join(changes.collides_with)}", "warning")
    return Span("✓ applies", "success") if changes.applies else Span("⚠ does not apply", "warning")


def behind_words(changes: "Changes") -> str:
    """Return how far the base is behind the branch that the work goes to; empty if it is not."""
    return f"base {changes.behind} behind" if changes.behind else ""


_LEAST_FIT = 20
"""Cells for the words that say whether the work can be merged; other columns are left out first."""


def change_rows(agents: Sequence[tuple[AgentView | None, "Changes"]], width: int) -> list[Row]:
    """Return a row for each agent: its state, lines, files, its base, and whether its work can be merged."""
    known = [each for _, each in agents]
    names = min(_NAME, max((len(each.agent) for each in known), default=0))
    added = max((len(str(each.added)) for each in known), default=0) + 1
    removed = max((len(str(each.removed)) for each in known), default=0) + 1
    files = _column(_count(len(each.files), "file") for each in known)
    bases = _column(map(behind_words, known))
    used = 2 + names + 2 + added + 1 + removed + len(_DOT) + _LEAST_FIT
    room = width - used
    # What is said last matters most: whether the work can be merged.
    if room < _width(files) + _width(bases):
        bases = [""] * len(bases)
    if room < _width(files):
        files = [""] * len(files)
    rows = []
    for (agent, each), size, behind in zip(agents, files, bases, strict=True):
        look = look_of(agent) if agent is not None else None
        line = (
            Span(f"{look.glyph} ", look.tone) if look is not None else Span("  "),
            Span(pad(clip_middle(each.agent, names), names) + "  ", "bold"),
            Span(pad(f"+{each.added}", added, "right") + " ", "success" if each.added else "dim"),
            Span(pad(f"−{each.removed}", removed, "right"), "error" if each.removed else "dim"),
            *_cell(size, ""),
            *_cell(behind, "warning"),
            Span(_DOT, "dim"),
            fit_words(each),
        )
        rows.append(Row(each.agent, line))
    return rows


def _cell(text: str, tone: str) -> Line:
    """Return a cell of a column with the dot before it; nothing if the column is left out."""
    return (Span(_DOT if text.strip() else " " * len(_DOT), "dim"), Span(text, tone)) if text else ()


def _width(column: Sequence[str]) -> int:
    """Return the cells of a column with the dot before it."""
    return len(column[0]) + len(_DOT) if column and column[0] else 0


def _column(texts: Iterable[str]) -> list[str]:
    """Return texts that are filled to the same width."""
    found = list(texts)
    return [pad(text, max(map(len, found))) for text in found]


def size_words(change: "FileChange") -> tuple[Span, ...]:
    """Return how many lines of a file were added and removed."""
    if change.added is None or change.removed is None:
        return (Span("binary", "dim"),)
    added = (Span(f"+{change.added}", "success"),) if change.added else ()
    removed = (Span(f"−{change.removed}", "error"),) if change.removed else ()
    return (*added, *((Span(" "),) if added and removed else ()), *removed)


def file_line(change: "FileChange", width: int, *, conflicts: bool = False, notes: int = 0) -> Line:
    """Return the row of a changed file: what happened to it, its path, the notes on it, and its size."""
    sign, tone = _SIGNS[change.status]
    right = (*note_count(notes), *size_words(change))
    mark = "⚠ " if conflicts else ""
    path = clip_middle(one_line(change.path), max(1, width - width_of(right) - len(mark) - 3))
    return spread((Span(f"{sign} ", tone), Span(mark, "warning"), Span(path)), right, width)


def note_count(notes: int) -> Line:
    """Return how many notes there are on a file; nothing if there are none."""
    return (Span(f"✎{notes} ", "warning"),) if notes else ()


def detail_lines(changes: "Changes", width: int) -> list[Line]:
    """Return what is known of an agent's work: where it began, what it collides with, and its files."""
    behind = f", {_count(changes.behind, 'commit')} behind" if changes.behind else ""
    facts: list[Line] = [
        (Span("branch  ", "dim"), say(changes.branch), Span(f" from {changes.base[:_ID]}{behind}", "dim")),
    ]
    if changes.conflicts:
        facts.append((Span("⚠       ", "warning"), Span("conflicts in "), say(", ".join(changes.conflicts), "warning")))
    if changes.collides_with:
        others = say(", ".join(changes.collides_with), "warning")
        facts.append((Span("⚠       ", "warning"), Span("does not merge with the work of "), others))
    facts += [(Span("missing ", "warning"), say(each)) for each in changes.missing]
    lines = [part for fact in facts for part in hang(fact, width, len("branch  "), 3)]
    return [*lines, *(file_line(each, width, conflicts=each.path in changes.conflicts) for each in changes.files)]


def nothing_lines(context: AppContext) -> list[Row]:
    """Return what a team without worktrees shows, and how an agent gets one."""
    if not context.snapshot.view.agents:
        return [nothing_row(first_hire(context))]
    return [
        nothing_row("no agent has a worktree: all work in the shared tree"),
        nothing_row("`crewboard spawn NAME --worktree` hires one with a checkout of its own;"),
        nothing_row("what it changes is shown here"),
    ]


# ----------------------------------------------------------------------------------------------------------- list

SORTS = ("AGENT", "LINES", "BEHIND", "CONFLICTS")
"""The sort keys, in the order in which the key cycles through them."""

_ORDER: dict[str, Callable[["Changes"], Any]] = {
    "AGENT": lambda _: 0,
    "LINES": lambda each: -(each.added + each.removed),
    "BEHIND": lambda each: -each.behind,
    "CONFLICTS": lambda each: -len(each.conflicts),
}


class ChangesScreen(BaseScreen):
    """One row for each agent with a worktree, the work of the selected one below; Enter opens its files and diff."""

    MODE = "changes"
    AUTO_FOCUS = "#changes"

    def __init__(self, context: AppContext) -> None:
        super().__init__(context)
        self._reader = ChangesReader(context)
        self.search = Search(context, self.narrow, FINDS_AGENTS)
        self.back_layers = (self.panes.layer, self.search.layer)
        own = (Action("changes.read", lambda _: self._reader.read(now=True)),)
        agent = (AgentActions(context).actions, Messaging(context).actions)
        self.offer(own, Accepting(context, self._reader, self._open_page).actions, *agent, self.search.actions,
                   self.panes.actions)  # fmt: skip

    def begin(self) -> None:
        self.panes.begin()

    def _open_page(self, page: BaseScreen) -> None:
        self.app.push_screen(page)

    def body(self) -> Iterable[Widget]:
        yield LineList(sorts=SORTS, id="changes", classes="pane")
        yield LineView(id="work", classes="pane", follow=False, follows=False)

    def on_screen_resume(self) -> None:
        self._reader.show = self.refresh_all
        self._reader.read()

    def go_to(self, key: str) -> None:
        self.query_one("#changes", LineList).want(key)

    def selection(self) -> Selection:
        return select(self.context.snapshot.view, self._selected)

    @property
    def _selected(self) -> str | None:
        return (self.query_one("#changes", LineList).selected or None) if self.is_mounted else None

    def paint(self, snapshot: Snapshot) -> None:
        if self.is_current:
            self._reader.note(snapshot.view)
        rows = self.query_one("#changes", LineList)
        known = self._reader.known
        agents = [(snapshot.view.agent(name), each) for name, each in known.items()]
        shown = [(agent, each) for agent, each in agents if agent and matches_agent(agent, self.search.words)]
        by = _ORDER[rows.order.by]
        ordered = rows.in_order(shown, lambda pair: pair[1].agent, lambda pair: (by(pair[1]), pair[1].agent))
        rows.show(change_rows(ordered, rows.row_width) or self._nothing())
        title(rows, f"Changes · {_count(len(known), 'worktree')}{rows.state}{self.search.narrowed_to}", self._age())
        self._paint_work()

    def _nothing(self) -> list[Row]:
        reader = self._reader
        if reader.problem:
            return [Row("", part) for part in hang((say(reader.problem, "error"),), max(20, self.size.width - 6), 0, 4)]
        if not states_of(self.context.snapshot.view):
            return nothing_lines(self.context)
        return [nothing_row(self.search.nothing("") if reader.is_read else "reading …")]

    def _age(self) -> str:
        if self._reader.problem and self._reader.known:
            return f"not read: {self._reader.problem}"
        return "reading …" if self._reader.is_reading else f"{self.context.key('changes.read')} reads again"

    def _paint_work(self) -> None:
        pane = self.query_one("#work", LineView)
        changes = self._reader.known.get(self._selected or "")
        pane.show(detail_lines(changes, pane.line_width) if changes is not None and pane.size else [])
        title(pane, f"Work of {changes.agent}" if changes is not None else "Work")

    def tick(self) -> None:
        """Nothing here has an age."""

    @on(LineList.Moved, "#changes")
    def _moved(self) -> None:
        self.query_one("#work", LineView).restart()
        self._paint_work()
        self.paint_keys()

    @on(LineList.Opened, "#changes")
    def _open(self, event: LineList.Opened) -> None:
        self._open_page(ChangesPage(self.context, self._reader, event.key))


# ----------------------------------------------------------------------------------------------------------- page


class ChangesPage(BaseScreen):
    """What one agent changed: its files, and the diff of the selected one."""

    AUTO_FOCUS = "#files"

    def __init__(self, context: AppContext, reader: ChangesReader, name: str) -> None:
        super().__init__(context)
        self._reader = reader
        self._agent = name
        self._path = ""
        """The file whose diff is shown."""
        self._shown: tuple[object, ...] = ()
        """What the pane of the diff was painted from."""
        self._lines: dict[str, list[tuple[int, Line]]] = {}
        """The painted lines of each hunk, by its key, each with the place of its line in the hunk."""
        self._noted: dict[tuple[int, int], LineNote] = {}
        """The notes on the file that is shown, by the place of their line: the hunk, and the line in it."""
        self.search = Search(context, self.narrow, "words of a path")
        self.back_layers = (self.panes.layer, self.search.layer, Layer(self._is_in_diff, self._leave_diff))
        own = (
            Action("changes.next", lambda _: self._go(1), self._why_no_file),
            Action("changes.previous", lambda _: self._go(-1), self._why_no_file),
            Action("changes.note", self._write_note, self._why_no_note, self._note_label),
            Action("changes.send", self._send_notes, self._why_no_send, self._send_label),
            Action("changes.read", lambda _: self._reader.read([self._agent], self._agent, now=True)),
        )
        agent = (AgentActions(context).actions, Messaging(context).actions)
        self.offer(own, Accepting(context, reader, self._open_page).actions, *agent, self.search.actions,
                   self.panes.actions)  # fmt: skip

    def _open_page(self, page: BaseScreen) -> None:
        self.app.push_screen(page)

    def body(self) -> Iterable[Widget]:
        with Container(id="review"):
            yield LineList(id="files", classes="pane")
            yield CollapsibleList(id="diff", classes="pane")

    def on_screen_resume(self) -> None:
        self._reader.show = self.refresh_all
        self._reader.read([self._agent], self._agent)

    def selection(self) -> Selection:
        return select(self.context.snapshot.view, self._agent)

    @property
    def _changes(self) -> "Changes | None":
        return self._reader.known.get(self._agent)

    def heading(self, snapshot: Snapshot, width: int) -> Line:  # noqa: ARG002
        changes = self._changes
        if changes is None:
            return crumbs_line(["Changes", self._agent], "", width)
        behind = behind_words(changes)
        facts = [f"+{changes.added} −{changes.removed}", behind, fit_words(changes).text]
        right = _DOT.join(filter(None, facts))
        return crumbs_line(["Changes", self._agent], right if len(right) < width // 2 + 8 else facts[0], width)

    # ------------------------------------------------------------------------------------------------ painting

    def paint(self, snapshot: Snapshot) -> None:
        if self.is_current:
            self._reader.note(snapshot.view)
        files = self.query_one("#files", LineList)
        changes = self._changes
        shown = [each for each in changes.files if matches(each.path, self.search.words)] if changes else []
        collide = changes.conflicts if changes is not None else ()
        notes = Counter(note.path for note in self._notes)
        rows = [
            Row(each.path, file_line(each, files.row_width, conflicts=each.path in collide, notes=notes[each.path]))
            for each in shown
        ]
        # Notes must be found again, whatever the agent did since they were written.
        known = {each.path for each in changes.files} if changes is not None else set(notes)
        rows += [
            Row(path, (*note_count(notes[path]), say(path), Span(" is not changed any more", "dim")))
            for path in sorted(notes.keys() - known)
        ]
        files.show(rows or [nothing_row(self.search.nothing(self._nothing()))])
        title(files, f"Files · {len(changes.files) if changes else 0}{self.search.narrowed_to}", self._state())
        self._paint_diff()

    def _nothing(self) -> str:
        if self._reader.problem:
            return one_line(self._reader.problem)
        if self._changes is None and self._reader.is_reading:
            return "reading …"
        return "nothing changed" if self._changes is not None else f"{self._agent} has no worktree"

    def _state(self) -> str:
        if self._changes is not None and self._changes.missing:
            return f"not all: {', '.join(self._changes.missing)}"
        return "reading …" if self._reader.is_reading else ""

    @property
    def _file(self) -> FileDiff | None:
        """Return the diff of the selected file; None while it is not read, or if it has none."""
        return next((each for each in self._reader.diffs.get(self._agent, ()) if each.path == self._path), None)

    def _paint_diff(self) -> None:
        pane = self.query_one("#diff", CollapsibleList)
        path = self.query_one("#files", LineList).selected or ""
        is_other, self._path = path != self._path, path
        if not pane.size:
            return  # hidden, it has no width to break lines at
        found = self._file
        title(pane, one_line(path) or "Diff", self._place())
        is_waiting = found is None and self._reader.is_reading
        before, shown = self._shown, (path, found, pane.row_width, self._notes_here, is_waiting)
        if is_other or is_waiting or before != shown:
            self._shown = shown
            rows = self._diff_rows(found, pane.row_width - MARK)
            nothing = "reading …" if is_waiting else "no diff" if path else "nothing changed"
            if is_other or before[1:2] != shown[1:2]:
                kept = None if is_other else pane.selected
                pane.begin(follows=False, unfolded=[row.key for row in rows])
                pane.read(rows, nothing)
                pane.select(kept)
            else:
                pane.read(rows, nothing)

    def _place(self) -> str:
        """Return which of the files is shown."""
        paths = [row.key for row in self.query_one("#files", LineList).rows]
        if self._path not in paths or len(paths) < 2:  # noqa: PLR2004
            return ""
        keys = " ".join(map(self.context.key, ("changes.previous", "changes.next")))
        return f"file {paths.index(self._path) + 1} of {len(paths)} · {keys}"

    def _diff_rows(self, found: FileDiff | None, width: int) -> list[CollapsibleRow]:
        found = found or FileDiff(self._path)
        places = {note: place_of(note, found) for note in self._notes_here}
        rows = [self._lost_note_row(note, width) for note, place in places.items() if place is None]
        rows += [CollapsibleRow(fact, (say(fact, "dim"),)) for fact in found.facts]
        self._noted = {place: note for note, place in places.items() if place is not None}
        self._lines = {}
        for at, hunk in enumerate(found.hunks):
            texts = {line: self._notes_here[note] for (where, line), note in self._noted.items() if where == at}
            self._lines[str(at)] = lines = noted_lines(hunk, texts, width, found.digits)
            rows.append(_hunk_row(str(at), hunk, lines))
        if found.left_out:
            words = f"{found.left_out} more lines are not shown · `crewboard changes {self._agent} --diff` shows all"
            first, *rest = exact_lines(words, width, "warning")
            rows.append(CollapsibleRow("left out", first, tuple(rest)))
        return rows

    def _lost_note_row(self, note: LineNote, width: int) -> CollapsibleRow:
        """Return the row of a note whose line is not in the diff any more."""
        head = (Span(f"✎ line {note.number} has changed since: ", "warning"), say(note.text, "dim"))
        return CollapsibleRow(note.draft, head, tuple(note_lines(self._notes_here[note], width)))

    # ----------------------------------------------------------------------------------------------- notes

    @property
    def _notes(self) -> dict[LineNote, str]:
        """Return the notes on this agent's changes that were not sent."""
        return notes_on(self._agent, self.context.drafts)

    @property
    def _notes_here(self) -> dict[LineNote, str]:
        """Return those on the file that is shown."""
        return {note: text for note, text in self._notes.items() if note.path == self._path}

    @property
    def _note(self) -> LineNote | None:
        """Return the note on the line under the cursor, whether it is written or not; None if there is no line."""
        pane = self.query_one("#diff", CollapsibleList)
        key, _, row = (pane.selected or "").partition("\n")
        lost = next((note for note in self._notes_here if note.draft == key), None)
        found = self._file
        if lost is not None or found is None or not row or key not in self._lines:
            return lost
        place = int(key), self._lines[key][int(row) - 1][0]
        line = found.hunks[place[0]].lines[place[1]]
        return self._noted.get(place, LineNote(self._agent, self._path, line.kind, line.number, line.text))

    def _why_no_note(self, _: Selection) -> str | None:
        return None if self.is_ready and self._is_in_diff() and self._note else "go to a line of the diff first"

    def _note_label(self, _: Selection) -> str | None:
        return "edit note" if self.is_ready and self._is_in_diff() and self._note in self._notes_here else None

    def _write_note(self, _: Selection) -> None:
        note = self._note
        if note is None:
            return
        drafts = self.context.drafts

        def keep(text: str) -> None:
            drafts[note.draft] = text

        def done(text: str | None) -> None:
            keep(text if text is not None else drafts.get(note.draft, ""))
            if not drafts[note.draft].strip():
                del drafts[note.draft]
            self.refresh_all()

        keeps, line, sends = map(self.context.key, ("draft.send", "draft.newline", "changes.send"))
        prompt = PromptLine(
            f"note on line {note.number}",
            lambda: drafts.get(note.draft, ""),
            hint=f"{keeps} keeps it · {line} new line · empty removes it · {sends} then sends all notes",
            changed=keep,
            prose=Prose.of(self.context),
        )
        prompt.pressed = self.context.key
        self.context.navigator.ask(prompt, done)

    def _why_no_send(self, _: Selection) -> str | None:
        return None if self._notes else f"no notes yet: {self.context.key('changes.note')} writes one on a line"

    def _send_label(self, _: Selection) -> str | None:
        return f"send {_count(len(self._notes), 'note')}" if self._notes else None

    def _send_notes(self, _: Selection) -> None:
        """Send all notes as one message; those that were changed meanwhile are kept."""
        notes = self._notes
        text = review_text(notes, self._reader.diffs.get(self._agent, ()))

        def send() -> str:
            core.commands.messages.send(self.context.team, self._agent, text)
            return f"sent {_count(len(notes), 'note')} to {self._agent}"

        def settle(worked: bool, says: str) -> None:  # noqa: ARG001, FBT001
            for note, sent in notes.items():
                if worked and self.context.drafts.get(note.draft) == sent:
                    del self.context.drafts[note.draft]

        self.context.do(f"sending notes to {self._agent}", send, lambda *_: self.refresh_all(), settle=settle)

    # ---------------------------------------------------------------------------------------------- moving

    def _why_no_file(self, _: Selection) -> str | None:
        files = self.query_one("#files", LineList) if self.is_ready else None
        return None if files is not None and len(files.rows) > 1 else "there is no other file"

    def _go(self, by: int) -> None:
        """Show the next file, or the one before; behind the last comes the first."""
        files = self.query_one("#files", LineList)
        keys = [row.key for row in files.rows]
        if self._path in keys:
            files.select(keys[(keys.index(self._path) + by) % len(keys)])

    def _is_in_diff(self) -> bool:
        return self.focused is not None and self.focused.id == "diff"

    def _leave_diff(self) -> None:
        self.query_one("#files").focus()

    @on(LineList.Moved, "#files")
    def _other_file(self) -> None:
        self._paint_diff()

    @on(LineList.Opened, "#files")
    def _into_diff(self) -> None:
        self.query_one("#diff").focus()

    @on(LineList.Moved, "#diff")
    def _other_line(self) -> None:
        self.paint_keys()


def _hunk_row(key: str, hunk: Hunk, lines: list[tuple[int, Line]]) -> CollapsibleRow:
    text = "\n".join([hunk.head, *(f"{each.kind}{each.text}" for each in hunk.lines)])
    return CollapsibleRow(key, (Span(hunk.head, "info"),), (), lambda: [line for _, line in lines], text)


# ----------------------------------------------------------------------------------------------------- acceptance


class Accepting:
    """The actions that accept the work of the selected agent and take that back, in `actions`. `show` opens a page."""

    def __init__(self, context: AppContext, reader: ChangesReader, show: Callable[["AcceptPage"], object]) -> None:
        self._context = context
        self._reader = reader
        self._show = show
        self.actions = (
            Action("changes.accept", self._accept, self._why_no_accept),
            Action("changes.undo", self._undo, self._why_no_undo),
            Action("changes.resolve", self._resolve, self._why_no_resolve),
        )

    def _known(self, selection: Selection) -> "Changes | None":
        return self._reader.known.get(selection.agent.name) if selection.agent is not None else None

    def _why_no_accept(self, selection: Selection) -> str | None:
        changes = self._known(selection)
        if changes is None:
            return "select an agent with a worktree first"
        return None if changes.files else f"{changes.agent} changed nothing"

    def _accept(self, selection: Selection) -> None:
        if selection.agent is not None:
            self._show(AcceptPage(self._context, selection.agent.name))

    def _last(self, selection: Selection) -> core.records.Acceptance | None:
        return self._reader.accepted.get(selection.agent.name) if selection.agent is not None else None

    def _why_no_undo(self, selection: Selection) -> str | None:
        return None if self._last(selection) is not None else "nothing that was accepted can be taken back"

    def _undo(self, selection: Selection) -> None:
        """Take the last acceptance back after the user typed `yes`."""
        found = self._last(selection)
        if found is None:
            return

        def check(text: str) -> str | None:
            return None if text.strip() == "yes" else "type yes, or leave"

        def done(text: str | None) -> None:
            if text is not None:
                take_back = partial(self._take_back, found.agent)
                self._context.do(f"taking back the work of {found.agent}", take_back, lambda *_: self._reader.read())

        hint = (
            f"Type yes · {branch_words(found)} goes back to {found.before[:_ID]}, or gets a revert if more came after"
            f" · {found.agent} keeps its work · {self._context.key('line.leave')} leaves it as it is"
        )
        prompt = PromptLine(f"take back the work of {found.agent}?", hint=hint, check=check)
        self._context.navigator.ask(prompt, done)

    def _why_no_resolve(self, selection: Selection) -> str | None:
        changes = self._known(selection)
        return None if changes is not None and changes.conflicts else "its work has no conflicts"

    def _resolve(self, selection: Selection) -> None:
        """Have the agent merge the user's branch into its own, and resolve the conflicts there."""
        changes = self._known(selection)
        if changes is None:
            return
        text = (
            f"Your work conflicts with the branch that it goes to, in: {', '.join(changes.conflicts)}.\n"
            f"Commit what you have, merge the commit {changes.head} of that branch into yours "
            f"(`git merge {changes.head}`), resolve the conflicts, commit, and say when it is done."
        )

        def send() -> str:
            core.commands.messages.send(self._context.team, changes.agent, text)
            return f"asked {changes.agent} to resolve the conflicts"

        self._context.do(f"asking {changes.agent}", send)

    def _take_back(self, name: str) -> str:
        undone = core.commands.changes.undo(self._context.team, name)
        how = "reset to" if undone.undone == undone.before else "reverted by"
        return f"the work of {name} is taken back: {branch_words(undone)} {how} {(undone.undone or '')[:_ID]}"


def branch_words(made: core.records.Acceptance) -> str:
    """Return the branch of an acceptance as the user calls it."""
    return made.ref.removeprefix("refs/heads/")


_HOW = {
    "squash": "squash: one commit",
    "merge": "merge: a merge commit, with the agent's commits",
    "rebase": "rebase: the agent's commits, one by one",
}
"""What each way to accept does."""

_HANGS = 9
"""Cells before what is said about a fact."""

_TRAILER = "\nCo-authored-by:"
"""The end of a message, which is added to each."""


@dataclass(frozen=True)
class _Terms:
    """How work is accepted, and whether the last snapshot is taken also while the agent is at work."""

    how: core.records.How = "squash"
    into: str | None = None
    message: str | None = None
    now: bool = False


class AcceptPage(BaseScreen):
    """What would be committed if the work of an agent were accepted, or why it cannot be."""

    AUTO_FOCUS = "#preview"

    def __init__(self, context: AppContext, name: str) -> None:
        super().__init__(context)
        self._agent = name
        self._terms = _Terms()
        self._preview: Merge | None = None
        self._refused = ""
        self._is_checking = False
        self.back_layers = (self.panes.layer,)
        own = (
            Action("accept.confirm", lambda _: self._accept(), self._why_no_accept),
            Action("accept.how", lambda _: self._turn_how()),
            Action("accept.message", lambda _: self._write_message()),
            Action("accept.into", lambda _: self._ask_into()),
            Action("accept.last", lambda _: self._check(replace(self._terms, now=not self._terms.now))),
        )
        self.offer(own, self.panes.actions)

    def heading(self, snapshot: Snapshot, width: int) -> Line:  # noqa: ARG002
        return crumbs_line(["Changes", self._agent, "accept"], "", width)

    def body(self) -> Iterable[Widget]:
        yield LineView(id="preview", classes="pane", follow=False, follows=False)

    def on_mount(self) -> None:
        self._check(self._terms)

    def selection(self) -> Selection:
        return select(self.context.snapshot.view, self._agent)

    # ------------------------------------------------------------------------------------------------ preview

    def _check(self, terms: _Terms) -> None:
        """Find out what would be committed, in a thread."""
        self._terms, self._is_checking = terms, True
        found: list[Merge | None] = []
        refused: list[str] = []

        def check() -> str:
            try:
                found.append(self._merge(terms, dry_run=True))
            except (CrewboardError, OSError) as error:
                refused.append(str(error))
            return ""

        def done(worked: bool, says: str) -> None:  # noqa: FBT001
            if terms is not self._terms or not self.is_ready:
                return
            self._is_checking = False
            self._preview = found[0] if found else None
            nothing = f"nothing to accept: all of its work is in {terms.into or 'the branch'} already"
            self._refused = "" if self._preview else "".join(refused) or (nothing if worked else says)
            self.refresh_all()

        self.context.jobs.start("checking what would be accepted", check, done)
        self.refresh_all()

    def _merge(self, terms: _Terms, *, dry_run: bool) -> "Merge | None":
        return core.commands.changes.merge(
            self.context.team, self._agent, how=terms.how, into=terms.into, message=terms.message, now=terms.now,
            dry_run=dry_run,
        )  # fmt: skip

    def paint(self, snapshot: Snapshot) -> None:  # noqa: ARG002
        pane = self.query_one("#preview", LineView)
        if not pane.size:
            return
        width = pane.line_width
        facts = [*self._fact_lines(width), (), *self._outcome_lines(width)]
        changes = self._preview.changes if self._preview is not None else None
        files = [file_line(each, width) for each in changes.files] if changes is not None else []
        pane.show([*facts, *([()] if files else []), *files])
        title(pane, f"Accept the work of {self._agent}", "checking …" if self._is_checking else "")

    def _fact_lines(self, width: int) -> list[Line]:
        terms, made = self._terms, self._preview.acceptance if self._preview is not None else None
        into = terms.into or (branch_words(made) if made is not None else "the branch that is checked out")
        last = "the last snapshot, even if it is at work" if terms.now else "its work as it is now"
        facts = [
            ("how", _HOW[terms.how], "accept.how"),
            ("into", into, "accept.into"),
            ("takes", last, "accept.last"),
        ]
        lines = [
            spread((Span(f"{name:<{_HANGS}}", "dim"), say(text)), self._changed_by(ident), width)
            for name, text, ident in facts
        ]
        first, *rest = wrap(self._message, max(1, width - _HANGS)) if self._message else ("…",)
        head = (Span("message  ", "dim"), Span(first, "bold"))
        lines.append(spread(head, self._changed_by("accept.message"), width))
        return [*lines, *((Span(" " * _HANGS), Span(piece)) for piece in rest)]

    def _changed_by(self, ident: str) -> Line:
        return (Span(self.context.key(ident), "key", ident), Span(" changes it", "dim"))

    @property
    def _message(self) -> str:
        """Return the message that the commit would have."""
        made = self._preview.message if self._preview is not None else ""
        return (made or self._terms.message or "").strip()

    def _outcome_lines(self, width: int) -> list[Line]:
        if self._refused:
            return hang((Span("✖ ", "error"), say(self._refused, "error")), width, 2, 12)
        if self._preview is None:
            return [(Span("checking …", "dim"),)]
        made, changes = self._preview.acceptance, self._preview.changes
        size = f"+{changes.added} −{changes.removed} in {_count(len(changes.files), 'file')}"
        onto = f" onto {made.before[:_ID]} of {one_line(branch_words(made))}"
        return hang((Span("✓ ", "success"), Span(f"would commit {size}", "success"), Span(onto, "dim")), width, 2, 3)

    # ------------------------------------------------------------------------------------------------- the keys

    def _why_no_accept(self, _: Selection) -> str | None:
        if self._is_checking:
            return "it is being checked"
        return None if self._preview is not None else self._refused

    def _turn_how(self) -> None:
        ways: list[core.records.How] = ["squash", "merge", "rebase"]
        self._check(replace(self._terms, how=ways[(ways.index(self._terms.how) + 1) % len(ways)]))

    def _ask_into(self) -> None:
        def done(text: str | None) -> None:
            if text is not None:
                self._check(replace(self._terms, into=text.strip() or None))

        hint = "the name of a branch · empty: the one that is checked out"
        self.context.navigator.ask(PromptLine("into", self._terms.into or "", hint=hint), done)

    def _write_message(self) -> None:
        def done(text: str | None) -> None:
            if text is not None:
                self._check(replace(self._terms, message=text.strip() or None))

        hint = f"{self.context.key('draft.newline')} new line · empty: the usual one · the agent is added as co-author"
        known = self._message.partition(_TRAILER)[0].strip()
        prompt = PromptLine("message", known, hint=hint, prose=Prose.of(self.context))
        prompt.pressed = self.context.key
        self.context.navigator.ask(prompt, done)

    def _accept(self) -> None:
        """Accept exactly what is shown: it is checked again, and refused if the work or the branch has changed."""
        seen, terms = self._preview, self._terms
        if seen is None:
            return

        def accept() -> str:
            again = self._merge(terms, dry_run=True)
            if again is None or _shown_of(again) != _shown_of(seen):
                raise TryLaterError(f"not accepted: the work of {self._agent} or the branch has just changed")
            # The check has just taken the snapshot.
            made = self._merge(replace(terms, now=True), dry_run=False)
            if made is None:
                return f"nothing to accept: the work of {self._agent} is there already"
            into = f"{branch_words(made.acceptance)}, commit {made.acceptance.result[:_ID]}"
            return f"accepted the work of {self._agent} into {into}; {self.context.key('changes.undo')} takes it back"

        def done(worked: bool, says: str) -> None:  # noqa: ARG001, FBT001
            if worked and self.is_current:
                self.dismiss()
            elif self.is_ready:
                self._check(terms)

        self.context.do(f"accepting the work of {self._agent}", accept, done)


def _shown_of(merge: "Merge") -> tuple[str, str]:
    """Return what identifies a preview: the snapshot, and the commit that it is put upon."""
    return merge.acceptance.commit, merge.acceptance.before


# ---------------------------------------------------------------------------------------------------------- notes

_QUOTED = 8
"""Lines of a hunk that are quoted at most: the one that a note is about, and those before it."""


def place_of(note: LineNote, found: FileDiff) -> tuple[int, int] | None:
    """Return the hunk and the line in it that a note is about, also if the line has moved; None if it has changed."""
    same = [
        (abs(line.number - note.number), at, place)
        for at, hunk in enumerate(found.hunks)
        for place, line in enumerate(hunk.lines)
        if (line.kind, line.text) == (note.kind, note.text)
    ]
    return min(same)[1:] if same else None


def note_lines(text: str, width: int) -> list[Line]:
    """Return the text of a note, in lines of at most `width` cells."""
    pieces = wrap(text, max(1, width - len("  ✎ ")))
    return [(Span("    " if at else "  ✎ ", "warning"), Span(piece, "warning")) for at, piece in enumerate(pieces)]


def noted_lines(hunk: Hunk, notes: Mapping[int, str], width: int, digits: int) -> list[tuple[int, Line]]:
    """Return the painted lines of a hunk, with the notes below the lines that they are about."""
    found: list[tuple[int, Line]] = []
    for at, same in itertools.groupby(hunk_lines(hunk, width, digits), key=lambda pair: pair[0]):
        found += same
        found += [(at, each) for each in note_lines(notes[at], width)] if at in notes else []
    return found


def review_text(notes: Mapping[LineNote, str], files: Iterable[FileDiff]) -> str:
    """Return the message with all notes: each with its path, its line, and the end of the hunk up to the line."""
    by_path = {each.path: each for each in files}
    parts = ["Notes on your changes:"]
    for note, text in notes.items():
        found = by_path.get(note.path)
        place = place_of(note, found) if found is not None else None
        if found is None or place is None:
            where, quoted = f"{note.number} (this line has changed since)", [f"{note.kind}{note.text}"]
        else:
            hunk = found.hunks[place[0]]
            line = hunk.lines[place[1]]
            where = f"{line.number}{' (removed)' if line.kind == '-' else ''}"
            shown = hunk.lines[max(0, place[1] + 1 - _QUOTED) : place[1] + 1]
            quoted = [hunk.head, *(f"{each.kind}{each.text}" for each in shown)]
        quote = "\n".join(f"> {each}" for each in quoted)
        parts.append(f"{note.path}:{where}\n{quote}\n\n{text.strip()}")
    return "\n\n".join(parts)
