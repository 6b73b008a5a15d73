"""The page of what one agent changed: its files, the diff of the selected one, and the user's notes on its lines."""

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from textual import on
from textual.containers import Container
from textual.widget import Widget

from crewboard.commands import messages
from crewboard.records.base import counted
from crewboard.untrusted import as_run
from crewboard_tui.actions.agents import AgentActions, Part, PuttingBack
from crewboard_tui.actions.messaging import Messaging
from crewboard_tui.actions.registry import Action, Layer, Selection, select
from crewboard_tui.actions.search import Search
from crewboard_tui.compose.composer import PromptLine
from crewboard_tui.compose.draft_input import Prose
from crewboard_tui.drafts import LineNote, notes_on
from crewboard_tui.render.diff import FileDiff, Hunk, hunk_lines
from crewboard_tui.render.lines import Line, Span, exact_lines, matches, one_line, say, say_run, wrap
from crewboard_tui.views.base import AppContext, BaseScreen, Query, Snapshot
from crewboard_tui.views.changes.merge_page import Merging
from crewboard_tui.views.changes.work import (
    DOT,
    behind_words,
    check_words,
    file_line,
    fit_words,
    note_count,
    nothing_words,
)
from crewboard_tui.widgets.bars import crumbs_line
from crewboard_tui.widgets.collapsible_list import MARK, CollapsibleList, CollapsibleRow
from crewboard_tui.widgets.line_list import LineList, Row

if TYPE_CHECKING:
    from crewboard.worktrees.changes import Changes
    from crewboard_tui.views.changes.work import ChangesReader


_EDGES = 8
"""Cells of the rule of a pane that are neither its title nor the text at its right."""


class ChangesPage(BaseScreen):
    """The work of one agent: its files, and the diff of the selected one."""

    CSS_PATH = "diff_page.tcss"
    AUTO_FOCUS = "#files"

    def __init__(self, context: AppContext, reader: "ChangesReader", name: str) -> None:
        super().__init__(context)
        self.rows = LineList(id="files", classes="pane")
        # The signs of folds are no plus and minus here, which are those of lines.
        self._pane = CollapsibleList(("▾", "▹"), id="diff", classes="pane")
        self._reader = reader
        self._agent = name
        self._path = ""
        """The file whose diff is shown."""
        self._shown: tuple[object, ...] = ()
        """The values that the lines of the diff were made from."""
        self._lines: dict[str, list[tuple[int, Line]]] = {}
        """The painted lines of each hunk, by its key, each with the index of its line in the hunk."""
        self._reveals = False
        """True while nothing in the diff is redacted."""
        self._noted: dict[tuple[int, int], LineNote] = {}
        """The notes on the shown file, by the place of their line: the index of the hunk, and of the line in it."""
        self.search = Search(context, self.narrow, "words of a path")
        leave = Layer(lambda: self.focused is self._pane, self.rows.focus)
        self.back_layers = (self.panes.layer, self.search.layer, leave)
        own = (
            Action("changes.next", lambda _: self._go(1), self._why_no_file),
            Action("changes.previous", lambda _: self._go(-1), self._why_no_file),
            Action(
                "changes.note",
                self._write_note,
                lambda _: None if self._noted_line else "go to a line of the diff first",
                lambda _: "edit note" if self._noted_line in self._notes_here else None,
            ),
            Action(
                "changes.send",
                self._send_notes,
                lambda _: None if self._notes else f"no notes yet: {context.key('changes.note')} writes one on a line",
                lambda _: f"send {counted(len(self._notes), 'note')}" if self._notes else None,
            ),
            PuttingBack(
                context, "changes.put_back", self._part, lambda: reader.read([name], name), reader.changed_nothing
            ).action,
            Action(
                "request.reveal",
                lambda _: self._turn_reveal(),
                lambda _: None if self._reveals or self._file != self._revealed else "nothing is hidden",
                lambda _: "hide keys" if self._reveals else None,
            ),
            Action("changes.read", lambda _: self._reader.read([self._agent], self._agent, now=True)),
        )
        agent = (AgentActions(context).actions, Messaging(context).actions)
        merging = Merging(context, reader, self.app.push_screen)
        self.offer(own, merging.actions, *agent, self.search.actions, self.panes.actions)

    def body(self) -> Iterable[Widget]:
        with Container(id="review"):
            yield self.rows
            yield self._pane

    def on_screen_resume(self) -> None:
        self._reader.show = self.refresh_all
        self._reader.read([self._agent], self._agent)

    def selection(self) -> Selection:
        return select(self.context.view, self._agent)

    @property
    def _changes(self) -> "Changes | None":
        return self._reader.known.get(self._agent)

    def heading(self, snapshot: Snapshot, width: int) -> Line:  # noqa: ARG002
        changes = self._changes
        if changes is None:
            return crumbs_line(["Changes", self._agent], "", width)
        behind = behind_words(changes)
        check = check_words(changes.check).text if changes.check is not None else ""
        fit = fit_words(changes, self._none).text
        facts = [f"+{changes.added} −{changes.removed}", behind, fit, check if check != fit else ""]
        right = DOT.join(filter(None, facts))
        return crumbs_line(["Changes", self._agent], right if len(right) < width // 2 + 8 else facts[0], width)

    # ------------------------------------------------------------------------------------------------ painting

    def queries(self) -> Iterable[Query[object]]:
        return (self._reader.evidence,)

    def paint(self, snapshot: Snapshot) -> None:
        if self.is_current:
            self._reader.note(snapshot)
        files = self.rows
        changes = self._changes
        shown = [each for each in changes.files if matches(each.path, self.search.words)] if changes else []
        collide = changes.conflicts if changes is not None else ()
        notes = Counter(note.path for note in self._notes)
        rows = [
            Row(each.path, file_line(each, files.row_width, is_marked=each.path in collide, notes=notes[each.path]))
            for each in shown
        ]
        # Notes must be found again, whatever the agent did since they were written.
        known = {each.path for each in changes.files} if changes is not None else set(notes)
        rows += [
            Row(path, (*note_count(notes[path]), say_run(path), Span(" is not changed any more", "dim")))
            for path in sorted(notes.keys() - known)
        ]
        if self._reader.problem:
            nothing = one_line(self._reader.problem)
        elif self._changes is None and self._reader.is_reading:
            nothing = "reading …"
        else:
            nothing = self._none if self._changes is not None else f"{self._agent} has no worktree"
        files.show(rows or files.empty_rows(self.search.nothing(nothing)))
        opens, note, send = map(self.context.key, ("list.open", "changes.note", "changes.send"))
        above = f"Files · {len(changes.files) if changes else 0}{self.search.narrowed_to}"
        hints, room = (f"{opens} diff", f"{note} notes a line", f"{send} sends"), files.outer_size.width - _EDGES
        lines = (DOT.join(hints[:most]) for most in range(len(hints), 0, -1))
        # The last one says what its key does once there is a note, and the footer then does, too.
        state = next((each for each in lines if len(above) + len(each) <= room), "")
        if changes is not None and changes.missing:
            state = f"not all: {', '.join(changes.missing)}"
        elif self._reader.is_reading:
            state = "reading …"
        files.rule.entitle(above, state)
        self._paint_diff()

    @property
    def _none(self) -> str:
        return nothing_words(self._agent, self._reader.merged)

    @property
    def _file(self) -> FileDiff | None:
        """Return the diff of the selected file; None while it is not read, or if it has none."""
        return next((each for each in self._reader.diff(self._agent).files if each.path == self._path), None)

    @property
    def _revealed(self) -> FileDiff | None:
        """Return the diff of the selected file with nothing redacted; None as for `_file`."""
        return next((each for each in self._reader.diff(self._agent).revealed if each.path == self._path), None)

    def _turn_reveal(self) -> None:
        """Show what is redacted in the diff, or hide it again."""
        self._reveals = not self._reveals
        self._paint_diff()
        self.refresh_bindings()

    @property
    def _paths(self) -> list[str]:
        """Return the paths in the list of files. Rows without a path say why the list is empty."""
        return [row.key for row in self.rows.rows if row.key]

    def _paint_diff(self) -> None:
        pane = self._pane
        path = self.rows.selected or ""
        is_other, self._path = path != self._path, path
        if not pane.size:
            return  # hidden, it has no width to break lines at
        found = self._file
        paths = self._paths
        place = ""
        if len(paths) > 1 and self._path in paths:
            keys = " ".join(map(self.context.key, ("changes.previous", "changes.next")))
            place = f"file {paths.index(self._path) + 1} of {len(paths)} · {keys}"
        pane.rule.entitle(one_line(as_run(path)) or "Diff", place)
        is_waiting = found is None and self._reader.is_reading
        before, shown = self._shown, (path, found, pane.row_width, self._notes_here, is_waiting, self._reveals)
        if is_other or is_waiting or before != shown:
            self._shown = shown
            rows = self._diff_rows(found, pane.row_width - MARK)
            nothing = "reading …" if is_waiting else "no diff" if path else self._none
            if is_other or before[1:2] != shown[1:2]:
                kept = None if is_other else pane.selected
                pane.begin(follows=False, unfolded=[row.key for row in rows])
                pane.read(rows, nothing)
                pane.select(kept)
            else:
                pane.read(rows, nothing)

    def _diff_rows(self, found: FileDiff | None, width: int) -> list[CollapsibleRow]:
        found = found or FileDiff(self._path)
        places = {note: place_of(note, found) for note in self._notes_here}
        rows = []
        for note in (note for note, place in places.items() if place is None):
            # Its line is not in the diff any more.
            head = (Span(f"✎ line {note.number} has changed since: ", "warning"), say(note.text, "dim"))
            rows.append(CollapsibleRow(note.draft, head, tuple(note_lines(self._notes_here[note], width))))
        rows += [CollapsibleRow(fact, (say(fact, "dim"),)) for fact in found.facts]
        self._noted = {place: note for note, place in places.items() if place is not None}
        self._lines = {}
        painted = (self._reveals and self._revealed) or found
        for at, (hunk, shown) in enumerate(zip(found.hunks, painted.hunks, strict=True)):
            texts = {line: self._notes_here[note] for (where, line), note in self._noted.items() if where == at}
            self._lines[str(at)] = lines = noted_lines(shown, texts, width, found.digits)
            rows.append(_hunk_row(str(at), hunk, shown.head, lines))
        if found.left_out:
            words = f"{found.left_out} more lines are not shown · `crewboard changes {self._agent} --diff` shows all"
            first, *rest = exact_lines(words, width, "warning")
            rows.append(CollapsibleRow("left out", first, tuple(rest)))
        return rows

    # ----------------------------------------------------------------------------------------------- notes

    @property
    def _notes(self) -> dict[LineNote, str]:
        """Return the unsent notes on this agent's changes, with their texts."""
        return notes_on(self._agent, self.context.drafts)

    @property
    def _notes_here(self) -> dict[LineNote, str]:
        """Return the unsent notes on the shown file, with their texts."""
        return {note: text for note, text in self._notes.items() if note.path == self._path}

    @property
    def _note(self) -> LineNote | None:
        """Return the note for the line under the cursor, also before it is written; None if there is no line."""
        key, _, row = (self._pane.selected or "").partition("\n")
        lost = next((note for note in self._notes_here if note.draft == key), None)
        found = self._file
        if lost is not None or found is None or not row or key not in self._lines:
            return lost
        place = int(key), self._lines[key][int(row) - 1][0]
        line = found.hunks[place[0]].lines[place[1]]
        return self._noted.get(place, LineNote(self._agent, self._path, line.kind, line.number, line.text))

    @property
    def _noted_line(self) -> LineNote | None:
        """Return the note for the line under the cursor, if the diff has the focus; else None."""
        return self._note if self.focused is self._pane else None

    def _write_note(self, _: Selection) -> None:
        note = self._note
        if note is None:
            return
        drafts = self.context.drafts

        keep = partial(drafts.put, note.draft)

        def done(text: str) -> None:
            keep(text if text.strip() else "")
            self.refresh_all()

        keeps, line, sends = map(self.context.key, ("draft.send", "draft.newline", "changes.send"))
        prompt = PromptLine(
            f"note on line {note.number}",
            lambda: drafts.get(note.draft, ""),
            hint=f"{keeps} keeps it · {line} new line · empty removes it · {sends} then sends all notes",
            changed=keep,
            prose=Prose.of(self.context),
        )
        self.context.navigator.ask(prompt, done, lambda: done(drafts.get(note.draft, "")))

    def _send_notes(self, _: Selection) -> None:
        """Send all notes as one message; those that were changed meanwhile are kept."""
        notes = self._notes
        text = review_text(notes, self._reader.diff(self._agent).files)

        def send() -> str:
            messages.send(self.context.team, self._agent, text)
            listens = messages.is_listening(self.context.team, self._agent)
            later = "" if listens else f"; {self._agent} reads it when resumed"
            return f"sent {counted(len(notes), 'note')} to {self._agent}{later}"

        def settle(worked: bool, says: str) -> None:  # noqa: ARG001, FBT001
            for note, sent in notes.items():
                if worked and self.context.drafts.get(note.draft) == sent:
                    del self.context.drafts[note.draft]

        self.context.do(f"sending notes to {self._agent}", send, lambda *_: self.refresh_all(), settle=settle)

    def _part(self) -> Part | None:
        """Return the hunk under the cursor, or else the selected file; None if there is none."""
        changes = self._changes
        if not self.is_ready or changes is None or not self._path:
            return None
        key = (self._pane.selected or "").partition("\n")[0]
        hunk = int(key) + 1 if self.focused is self._pane and key in self._lines else None
        return Part(self._path, hunk, changes.commit)

    # ---------------------------------------------------------------------------------------------- moving

    def _why_no_file(self, _: Selection) -> str | None:
        return None if self.is_ready and len(self._paths) > 1 else "there is no other file"

    def _go(self, by: int) -> None:
        """Show the file that is `by` places further in the list; the first one follows the last."""
        paths = self._paths
        if self._path in paths:
            self.rows.select(paths[(paths.index(self._path) + by) % len(paths)])

    @on(LineList.Moved, "#files")
    def _other_file(self) -> None:
        self._paint_diff()

    @on(LineList.Opened, "#files")
    def _into_diff(self) -> None:
        self._pane.focus()

    @on(LineList.Moved, "#diff")
    def _other_line(self) -> None:
        self.paint_keys()


def _hunk_row(key: str, hunk: Hunk, head: str, lines: list[tuple[int, Line]]) -> CollapsibleRow:
    """Return the row of a hunk. The text to search and to copy stays redacted, also while the lines are not."""
    text = "\n".join([hunk.head, *(f"{each.kind}{each.text}" for each in hunk.lines)])
    return CollapsibleRow(key, (Span(head, "info"),), (), lambda: [line for _, line in lines], (text,))


# ---------------------------------------------------------------------------------------------------------- notes

_QUOTED = 8
"""The most lines of a hunk that are quoted: the one that a note is about, and those before it."""


def place_of(note: LineNote, found: FileDiff) -> tuple[int, int] | None:
    """Return the indexes of the hunk and of the line in it that a note is about, also if the line has moved.

    None if the line has changed.
    """
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
    """Return the painted lines of a hunk, each with its index, and each note below its line."""
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
