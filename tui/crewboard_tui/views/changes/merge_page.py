"""The page that previews the merge of an agent's work and makes it, and the keys that lead to it or undo a merge."""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from textual import on, work
from textual.widget import Widget

from crewboard import CrewboardError, TryLaterError
from crewboard.commands import changes as commands_changes
from crewboard.records.base import counted
from crewboard.records.team import Acceptance, How
from crewboard.untrusted import as_run
from crewboard_tui.actions.registry import Action, Selection, ask_yes, select
from crewboard_tui.compose.composer import PromptLine
from crewboard_tui.compose.draft_input import Prose
from crewboard_tui.drafts import for_merge
from crewboard_tui.render.lines import Line, Span, hang, one_line, plain, say, say_run, spread, wrap
from crewboard_tui.render.sanitize import is_revealing, safe_line
from crewboard_tui.views.base import AppContext, BaseScreen, Snapshot
from crewboard_tui.views.changes.work import ID_LENGTH, file_line, nothing_words, review_words
from crewboard_tui.widgets.bars import crumbs_line
from crewboard_tui.widgets.line_view import LineView
from crewboard_tui.widgets.reading import Passage, ReadText

if TYPE_CHECKING:
    from crewboard.commands.changes import Merge
    from crewboard.worktrees.changes import Changes
    from crewboard_tui.views.changes.work import ChangesReader


class Merging:
    """The actions on the work of the selected agent: merge, undo a merge, resolve, discard. They are in `actions`.

    `show` opens a page.
    """

    def __init__(self, context: AppContext, reader: "ChangesReader", show: Callable[["MergePage"], object]) -> None:
        self._context = context
        self._reader = reader
        self._show = show
        self.actions = (
            Action("changes.accept", self._preview, self._why_no_merge),
            Action("changes.undo", self._undo, self._why_no_undo),
            Action("changes.resolve", self._resolve, self._why_no_resolve),
            Action("changes.discard", self._discard, self._why_no_discard),
        )

    def _known(self, selection: Selection) -> "Changes | None":
        return self._reader.known.get(selection.agent.name) if selection.agent is not None else None

    def _why_no_merge(self, selection: Selection) -> str | None:
        changes = self._known(selection)
        if changes is None:
            is_read = self._reader.is_read and not self._reader.is_reading
            return "select an agent with a worktree first" if is_read else "what changed is being read still"
        return None if changes.files else f"{changes.agent}: {nothing_words(changes.agent, self._reader.merged)}"

    def _preview(self, selection: Selection) -> None:
        if selection.agent is not None:
            self._show(MergePage(self._context, selection.agent.name, self._resolve, self._reader.note_merge))

    def _last(self, selection: Selection) -> Acceptance | None:
        return self._reader.merged.get(selection.agent.name) if selection.agent is not None else None

    def _why_no_undo(self, selection: Selection) -> str | None:
        if self._last(selection) is not None:
            return None
        return "no merge of its work can be taken back" if self._reader.is_read else "what changed is being read still"

    def _undo(self, selection: Selection) -> None:
        """Take the last merge back after the user typed `yes`."""
        found = self._last(selection)
        if found is None:
            return
        name = found.agent
        says = (
            f"{branch_words(found)} goes back to {found.before[:ID_LENGTH]}, "
            f"or gets a revert if more came after · {name} keeps its work"
        )

        def take_back() -> str:
            undone = commands_changes.undo(self._context.team, name)
            how = "reset to" if undone.undone == undone.before else "reverted by"
            return f"the work of {name} is taken back: {branch_words(undone)} {how} {(undone.undone or '')[:ID_LENGTH]}"

        self._ask_yes("take back", "taking back", name, says, take_back)

    def _ask_yes(self, does: str, doing: str, name: str, says: str, act: Callable[[], str]) -> None:
        """Do something to the work of an agent after the user typed `yes`."""

        def start() -> None:
            self._context.do(f"{doing} the work of {name}", act, lambda *_: self._reader.read())

        ask_yes(self._context, f"{does} the work of {name}?", says, start)

    def _why_no_discard(self, selection: Selection) -> str | None:
        if selection.agent is not None and self._known(selection) is not None and selection.agent.alive:
            return f"{selection.agent.name} is alive; {self._context.key('agent.stop')} asks it to shut down first"
        return None if self._known(selection) is not None else self._why_no_merge(selection)

    def _discard(self, selection: Selection) -> None:
        """Throw the work of the agent away after the user typed `yes`."""
        changes = self._known(selection)
        if changes is None:
            return
        name = changes.agent
        work = f"{counted(len(changes.files), 'file')} (+{changes.added} −{changes.removed})"
        kept = "merged here" if changes.is_merged else "not merged" if changes.files else "nothing to merge"

        def throw_away() -> str:
            last = commands_changes.discard(self._context.team, name)
            kept = f"; `git branch NEW {last[:12]}` brings it back for some weeks" if last else ""
            return f"the work of {name} is thrown away{kept}"

        self._ask_yes("throw away", "throwing away", name, f"{work}, {kept}", throw_away)

    def _why_no_resolve(self, selection: Selection) -> str | None:
        changes = self._known(selection)
        return None if changes is not None and changes.conflicts else _NO_CONFLICTS

    def _resolve(self, selection: Selection) -> None:
        """Have the agent merge the user's branch into its own, and resolve the conflicts there."""
        if selection.agent is None:
            return
        name = selection.agent.name
        later = "" if selection.agent.alive else f"; {name} reads it when resumed"

        def send() -> str:
            commands_changes.ask_to_resolve(self._context.team, name)
            return f"asked {name} to resolve the conflicts{later}"

        self._context.do(f"asking {name}", send)


def branch_words(made: Acceptance) -> str:
    """Return the branch of a merge without `refs/heads/`."""
    return made.ref.removeprefix("refs/heads/")


_NO_CONFLICTS = "its work has no conflicts"

_HOW = {
    "squash": "squash: one commit",
    "merge": "merge: a merge commit, with the agent's commits",
    "rebase": "rebase: the agent's commits, one by one",
}
"""The effect of each way to merge."""

_NEXT_HOW: dict[How, How] = {"squash": "merge", "merge": "rebase", "rebase": "squash"}
"""The way to merge that follows each way when its key is pressed."""

_HANGS = 9
"""Cells for the name of a fact, before its text."""

_MOST_KEYS = 200
"""The most lines with secrets that are shown."""

_BEFORE_KEY, _MOST_OF_LINE = 40, 2000
"""The most characters that are shown of a line with a secret: before the secret, and in all."""

_TRAILER = "\nCo-authored-by:"
"""The start of the last lines of a commit message, which are added to each message."""


@dataclass(frozen=True)
class _Terms:
    """The way to merge, the branch, the message, and whether to take the last snapshot even if the agent is at work.

    Without a branch or a message (None), the usual ones are taken.
    """

    how: How = "squash"
    into: str | None = None
    message: str | None = None
    now: bool = False


@dataclass
class _Checked:
    """The outcome of a check: what would be merged, or why nothing is."""

    branch: str = ""
    """The branch that the work goes to; empty while it is not known."""
    preview: "Merge | None" = None
    changed: list[str] = field(default_factory=list)
    """The files that are not as in the first preview."""
    refused: str = ""
    has_conflicts: bool = False
    """True if the work has conflicts with what is checked out."""


class MergePage(BaseScreen):
    """The preview of a merge: its commit, or why there can be none; and the keys that change and confirm it."""

    AUTO_FOCUS = "#preview"

    def __init__(
        self,
        context: AppContext,
        name: str,
        resolve: Callable[[Selection], None],
        note_merge: Callable[[Acceptance], None],
    ) -> None:
        super().__init__(context)
        self._pane = LineView(id="preview", classes="pane", follows=False)
        self._agent = name
        self._note_merge = note_merge
        self._draft = for_merge(name)
        self._terms = _Terms(message=context.drafts.get(self._draft, "").strip() or None)
        self._opened: Merge | None = None
        """The first preview: the user may have read the diff of that one."""
        self._checked = _Checked()
        """The outcome of the last check."""
        self._is_checking = False
        self._asked = ReadText(context, self._pane)
        self.texts = (self._asked,)
        self.back_layers = (self.panes.layer,)
        own = (
            Action("accept.confirm", lambda _: self._merge_as_shown(), self._why_no_merge),
            Action("accept.how", lambda _: self._check(replace(self._terms, how=_NEXT_HOW[self._terms.how]))),
            Action("accept.message", lambda _: self._write_message()),
            Action("accept.into", lambda _: self._ask_into()),
            Action("accept.last", lambda _: self._check(replace(self._terms, now=not self._terms.now))),
            Action("changes.resolve", resolve, self._why_no_resolve),
        )
        self.offer(own, self.panes.actions)

    def heading(self, snapshot: Snapshot, width: int) -> Line:  # noqa: ARG002
        return crumbs_line(["Changes", self._agent, "merge"], "", width)

    def body(self) -> Iterable[Widget]:
        yield self._pane

    def on_mount(self) -> None:
        self._check(self._terms)

    def selection(self) -> Selection:
        return select(self.context.view, self._agent)

    # ------------------------------------------------------------------------------------------------ preview

    def _check(self, terms: _Terms) -> None:
        """Find out in a thread what a merge on these terms would commit."""
        if terms.into != self._terms.into:
            self._checked.branch = ""
        self._terms, self._is_checking = terms, True
        self._find_out(terms)
        self.refresh_all()

    @work
    async def _find_out(self, terms: _Terms) -> None:
        team, opened = self.context.team, self._opened

        def check() -> _Checked:
            checked = _Checked()
            try:
                checked.branch = commands_changes.target_name(team, terms.into)
                preview = self._merge(terms, dry_run=True)
                if preview is None:
                    checked.refused = (
                        f"nothing to merge: all of its work is in {checked.branch or 'the branch'} already"
                    )
                elif opened is not None:
                    checked.changed = commands_changes.changed_since(team, opened.changes, preview.changes)
                checked.preview = preview
            except (CrewboardError, OSError) as error:
                checked.refused = str(error)
                # The remedy is for the command line; the only one here is about an agent at work.
                if isinstance(error, TryLaterError) and error.remedy:
                    last = self.context.key("accept.last")
                    checked.refused = f"{error.why}; wait for it, or take the last snapshot with {last}"
            # With what is checked out: of a merge into another branch, the preview says nothing of that.
            if checked.preview is None or terms.into is not None:
                with contextlib.suppress(CrewboardError, OSError):
                    checked.has_conflicts = bool(commands_changes.newest(team, self._agent).conflicts)
            return checked

        checked = await self.context.jobs.wait_for("checking what would be merged", check)
        if terms is not self._terms or not self.is_ready:
            return
        self._is_checking = False
        before, self._checked = self._checked, checked or _Checked(refused="what would be merged cannot be found out")
        preview = self._checked.preview
        self._opened = self._opened or preview
        if before.preview is not None and preview is not None and _shown_of(before.preview) != _shown_of(preview):
            self._asked.note_new()
        self.refresh_all()

    def _merge(self, terms: _Terms, *, dry_run: bool, seen: "Merge | None" = None) -> "Merge | None":
        return commands_changes.merge(
            self.context.team, self._agent, how=terms.how, into=terms.into, message=terms.message, now=terms.now,
            dry_run=dry_run, sha256=seen.changes.sha256 if seen else None, onto=seen.acceptance if seen else None,
        )  # fmt: skip

    def paint(self, snapshot: Snapshot) -> None:  # noqa: ARG002
        if self._pane.size:
            self._asked.show(self._whole(self._pane.line_width))
            self._show_progress()

    def _whole(self, width: int) -> Iterator[Passage]:
        terms = self._terms
        into = terms.into or self._checked.branch or "the branch that is checked out"
        last = "the last snapshot, even if it is at work" if terms.now else "its work as it is now"
        told = [
            ("how", _HOW[terms.how], "accept.how"),
            ("into", as_run(into), "accept.into"),
            ("takes", last, "accept.last"),
        ]
        lines = [
            spread((Span(f"{name:<{_HANGS}}", "dim"), say(text)), self._changed_by(ident), width)
            for name, text, ident in told
        ]
        first, *rest = wrap(self._message, max(1, width - _HANGS)) if self._message else ("…",)
        head = (Span("message  ", "dim"), Span(first, "bold"))
        lines.append(spread(head, self._changed_by("accept.message"), width))
        lines += ((Span(" " * _HANGS), Span(piece)) for piece in rest)
        facts = [*lines, (), *self._outcome_lines(width)]
        changes = self._checked.preview.changes if self._checked.preview is not None else None
        files = [
            file_line(each, width, is_marked=each.path in self._checked.changed)
            for each in (changes.files if changes is not None else ())
        ]
        shown = _shown_of(self._checked.preview) if self._checked.preview is not None else self._checked.refused
        yield Passage(f"merge {self._agent} {shown} {self._terms}", [*facts, *([()] if files else []), *files])

    @property
    def copied(self) -> str:
        """Return the text to copy: the page, in which keys stay redacted also while they are shown."""
        passages = self._whole(self._pane.line_width)
        return "\n".join(plain(line).rstrip() for passage in passages for line in passage.lines)

    @on(LineView.Scrolled)
    def _show_progress(self) -> None:
        state = "checking …" if self._is_checking else self._asked.progress
        self._pane.rule.entitle(f"Merge the work of {self._agent}", state)

    def _changed_by(self, ident: str) -> Line:
        return (Span(self.context.key(ident), "key", ident), Span(" changes it", "dim"))

    @property
    def _message(self) -> str:
        """Return the message that the commit would have."""
        made = self._checked.preview.message if self._checked.preview is not None else ""
        return (made or self._terms.message or "").strip()

    def _outcome_lines(self, width: int) -> list[Line]:
        if self._checked.refused:
            refused = hang((Span("✖ ", "error"), say(self._checked.refused, "error")), width, 2, 12)
            # The agent is asked to resolve conflicts with what is checked out, not with another branch.
            if self._terms.into is not None or not self._checked.has_conflicts:
                return refused
            resolve = Span(self.context.key("changes.resolve"), "key", "changes.resolve")
            return [*refused, (Span("  "), resolve, Span(f" asks {self._agent} to resolve the conflicts"))]
        if self._checked.preview is None:
            return [(Span("checking …", "dim"),)]
        made, changes = self._checked.preview.acceptance, self._checked.preview.changes
        size = f"+{changes.added} −{changes.removed} in {counted(len(changes.files), 'file')}"
        onto = f" onto {made.before[:ID_LENGTH]} of {one_line(as_run(branch_words(made)))}"
        found = hang((Span("✓ ", "success"), Span(f"would commit {size}", "success"), Span(onto, "dim")), width, 2, 3)
        # What of the work and its branch is not as it was when the page was opened.
        opened, news = self._opened.acceptance if self._opened is not None else made, []
        if made.commit != opened.commit:
            names = one_line(as_run(", ".join(self._checked.changed))) or "nothing in its files"
            news.append(f"{names} (now {made.commit[:ID_LENGTH]}; look at the diff)")
        if made.ref == opened.ref and made.before != opened.before:
            news.append(f"{one_line(as_run(branch_words(made)))} is at {made.before[:ID_LENGTH]}")
        for each in news:
            new = Span(f"changed since you opened this: {each}", "warning")
            found += hang((Span("⚠ ", "warning"), new), width, 2, 1000)
        if made.ref == "HEAD":
            found += hang((Span("⚠ ", "warning"), Span(commands_changes.DETACHED, "warning")), width, 2, 3)
        if changes.review is not None:
            words = review_words(changes.review)
            sign = "✓ " if changes.review.state == "same" else "⚠ "
            found += hang((Span(sign, words.tone), words), width, 2, 3)
        if running := self._checked.preview.background:
            runs_on = f"still runs: {as_run(', '.join(running))}; what it writes from now on is not in this"
            found += hang((Span("⚠ ", "warning"), say(runs_on, "warning")), width, 2, 3)
        if runs := changes.run_by_user:
            # Each by itself, because a long line is cut, and no file may be out of sight.
            named = [f"{safe_line(as_run(each))}{', ' if at < len(runs) else ''}" for at, each in enumerate(runs, 1)]
            named = ["⚠ ", "runs on your machine or in your CI: ", *named]
            found += hang(tuple(Span(text, "warning") for text in named), width, 2, 1000)
        return [*found, *self._key_lines(width)]

    def _key_lines(self, width: int) -> list[Line]:
        """Return the lines with what looks like a secret in the files that would be committed."""
        keys = self._checked.preview.keys if self._checked.preview is not None else ()
        if not keys:
            return []
        found = hang((Span("⚠ ", "warning"), say(commands_changes.name_keys(keys), "warning")), width, 2, 3)
        for each in keys[:_MOST_KEYS]:
            # One line of a key in PEM does not look like a key: only the line in its file is redacted.
            text = each.text if is_revealing() else each.redacted
            # From near its first key on.
            pairs = enumerate(zip(each.text, each.redacted, strict=False))
            begin = max(0, next((at for at, (one, other) in pairs if one != other), 0) - _BEFORE_KEY)
            words = say(text[begin : begin + _MOST_OF_LINE])
            found += hang((Span("  "), say_run(f"{each.path}:{each.line}", "dim"), Span("  "), words), width, 4, 1000)
        if len(keys) > _MOST_KEYS:
            more = counted(len(keys) - _MOST_KEYS, "more line")
            found += hang((Span("  "), Span(f"{more}: look at the diff", "warning")), width, 4, 3)
        return found

    # ------------------------------------------------------------------------------------------------- the keys

    def _why_no_merge(self, _: Selection) -> str | None:
        if self._is_checking:
            return "it is being checked"
        return None if self._checked.preview is not None else self._checked.refused

    def _why_no_resolve(self, _: Selection) -> str | None:
        if self._is_checking:
            return "it is being checked"
        return None if self._checked.has_conflicts else _NO_CONFLICTS

    def _ask_into(self) -> None:
        def done(text: str) -> None:
            self._check(replace(self._terms, into=text.strip() or None))

        hint = "the name of a branch · empty: the one that is checked out"
        self.context.navigator.ask(PromptLine("into", self._terms.into or "", hint=hint), done)

    def _write_message(self) -> None:
        drafts = self.context.drafts
        keep = partial(drafts.put, self._draft)

        def done(text: str) -> None:
            message = text.strip()
            keep(message)
            self._check(replace(self._terms, message=message or None))

        hint = f"{self.context.key('draft.newline')} new line · empty: the usual one · the agent is added as co-author"
        usual = self._message.partition(_TRAILER)[0].strip()
        prompt = PromptLine(
            "message", lambda: drafts.get(self._draft) or usual, hint=hint, changed=keep, prose=Prose.of(self.context)
        )
        self.context.navigator.ask(prompt, done, lambda: done(drafts.get(self._draft, "")))

    def _merge_as_shown(self) -> None:
        """Merge exactly what is shown: it is checked again, and refused if the work or the branch has changed."""
        seen, terms = self._checked.preview, self._terms
        if self._asked.holds_back("accept.confirm", "merges") or seen is None:
            return
        merged: list[Acceptance] = []

        def merge() -> str:
            again = self._merge(terms, dry_run=True)
            if again is None or _shown_of(again) != _shown_of(seen):
                raise TryLaterError(f"not merged: the work of {self._agent} or the branch has just changed")
            # The check has just taken the snapshot.
            made = self._merge(replace(terms, now=True), dry_run=False, seen=seen)
            if made is None:
                return f"nothing to merge: the work of {self._agent} is there already"
            merged.append(made.acceptance)
            into = f"{branch_words(made.acceptance)}, commit {made.acceptance.result[:ID_LENGTH]}"
            return f"merged the work of {self._agent} into {into}; {self.context.key('changes.undo')} takes it back"

        def done(worked: bool, says: str) -> None:  # noqa: ARG001, FBT001
            if worked:
                self.context.drafts.pop(self._draft, None)
            for made in merged:
                self._note_merge(made)
            if worked and self.is_current:
                self.dismiss()
            elif self.is_ready:
                self._check(terms)

        self.context.do(f"merging the work of {self._agent}", merge, done)


def _shown_of(merge: "Merge") -> tuple[str, str, str]:
    """Return what identifies a preview: the snapshot, the branch, and the commit of the branch."""
    return merge.acceptance.commit, merge.acceptance.ref, merge.acceptance.before
