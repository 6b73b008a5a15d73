"""The texts of the user: drafts, which are not sent yet, and the texts sent last. Both outlast the dashboard."""

import contextlib
import json
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from crewboard import CrewboardError, Request, UsageError, redaction
from crewboard.records.messages import RecentTexts, Unsent
from crewboard.records.requests import NewNote, Note, carry_notes, lines_of, parse_note
from crewboard.store import files
from crewboard.store.layout import record_of

log = logging.getLogger(__name__)

HIRE, TASK, ALL_AGENTS, TALK = "a new agent's prompt", "new task", "all", "talk"
"""Names of the drafts that exist once.

The name of a draft for agents is their names, that of a draft about a request starts with the request's id.
"""

_CALLED = {HIRE: "your prompt for a hire", TASK: "a new task", ALL_AGENTS: "to all agents", TALK: "to the lead"}
_ON_LINES, _TERMS = " lines ", " terms "
_NO, _EDIT, _EDITED_TASK, _NOTE, _MERGE = " no", " plan", "#", "note ", "merge: "
_KINDS = {"plan_approval": "plan", "task_review": "review"}


def to_agents(names: Iterable[str]) -> str:
    """Return the name of the draft to some agents."""
    return " ".join(names)


def interrupting(names: Sequence[str]) -> str:
    """Return the name of the draft of an interrupt to some agents; empty without names."""
    return f"interrupt {', '.join(names)}" if names else ""


def for_no(request_id: str) -> str:
    """Return the name of the draft of a refusal; the comment on an approval has the id alone."""
    return request_id + _NO


def edit_of(request_id: str) -> str:
    """Return the name of the draft of an edited plan."""
    return request_id + _EDIT


def terms_for(plan: Request) -> str:
    """Return the name of the draft of the terms for a plan in exactly this version, whose steps the terms name."""
    return f"{plan.id}{_TERMS}{plan.sha256}"


def outlives(draft: str, request: Request, asked: Iterable[Request]) -> bool:
    """Return True if a draft about a request is still of use.

    While the request is pending, each draft is. After a rejection of a plan, its terms, its notes and the comment for
    an approval still are: they can be sent with the next version. Once there is that version, a note and a comment are
    of use while it is pending or rejected.
    """
    moves = _ON_LINES in draft or (draft == request.id and request.type == "plan_approval")
    after = next((each for each in asked if moves and each.supersedes == request.id), request)
    return after.status == "pending" or (after.status == "rejected" and (moves or _TERMS in draft))


def note_on(request_id: str, note: NewNote) -> str:
    """Return the name of the draft of a note on lines of a plan."""
    return f"{request_id}{_ON_LINES}{note.line}-{note.end}"


def notes_on_plan(request_id: str, drafts: Mapping[str, str]) -> list[NewNote]:
    """Return the notes on lines of a plan that were not sent, in the order of the lines."""
    begins, notes = request_id + _ON_LINES, list[NewNote]()
    for name, text in drafts.items():
        # A draft of another form is none of ours.
        with contextlib.suppress(UsageError):
            notes += [parse_note(f"{name.removeprefix(begins)}:{text}")] if name.startswith(begins) else []
    return sorted(notes)


def carry_over_notes(plan: Request, earlier: Iterable[Request], drafts: dict[str, str]) -> int:
    """Move unsent notes on `earlier` versions of a plan to the lines where their text is now; return their number.

    A note whose lines are gone is added to the draft of a refusal.
    """
    number = 0
    for before in earlier:
        lines = lines_of(before.submitted)
        written = notes_on_plan(before.id, drafts)
        notes = [
            Note(id=f"n{at}", line=note.line, end=note.end, quoted=lines[note.line - 1 : note.end], text=note.text)
            for at, note in enumerate(written, 1)
        ]
        carried = carry_notes(before.replace(payload={"plan": before.submitted}, notes=notes), plan.plan, {})
        for old, new in zip(written, carried, strict=True):
            del drafts[note_on(before.id, old)]
            name = note_on(plan.id, NewNote(new.line, new.end, new.text)) if new.line else for_no(plan.id)
            text = new.text if new.line else "\n".join([*(f"> {line}" for line in new.quoted), new.text])
            drafts[name] = "\n".join(filter(None, [drafts.get(name), text]))
            number += 1
    return number


def carry_over_comment(plan: Request, earlier: Iterable[Request], drafts: dict[str, str]) -> bool:
    """Move the unsent comments for an approval of `earlier` versions of a plan to it; return True if there were any."""
    texts = [drafts.pop(before.id, "") for before in earlier]
    if found := "\n".join(filter(None, [*reversed(texts), drafts.get(plan.id)])):
        drafts[plan.id] = found
    return any(texts)


def edit_of_task(task_id: int) -> str:
    """Return the name of the draft of an edited task."""
    return f"{_EDITED_TASK}{task_id}"


def for_merge(agent: str) -> str:
    """Return the name of the draft of the message with which an agent's work is merged."""
    return _MERGE + agent


class LineNote(NamedTuple):
    """The line of an agent's diff that a note is about. `kind` is its sign there, `text` is what it was then."""

    agent: str
    path: str
    kind: str
    number: int
    text: str

    @property
    def draft(self) -> str:
        """Return the name of the draft that holds the text of the note."""
        return _NOTE + json.dumps(self)


def notes_on(agent: str, drafts: Mapping[str, str]) -> dict[LineNote, str]:
    """Return the texts of the unsent notes on an agent's changes by their lines, in the order of paths and lines."""
    found = {note: text for name, text in drafts.items() if text.strip() and (note := _note(name)) is not None}
    notes = sorted(found, key=lambda note: (note.path, note.number, note.kind))
    return {note: found[note] for note in notes if note.agent == agent}


def _note(draft: str) -> LineNote | None:
    """Return the line that a draft is a note on; None for another draft."""
    if not draft.startswith(f"{_NOTE}["):
        return None
    try:
        agent, path, kind, number, text = json.loads(draft.removeprefix(_NOTE))
        return LineNote(str(agent), str(path), str(kind), int(number), str(text))
    except ValueError:
        return None


def request_of(draft: str, asked: Iterable[Request]) -> Request | None:
    """Return the request among `asked` that a draft is about; None if there is none."""
    ident = draft.partition(_ON_LINES)[0].partition(_TERMS)[0]
    return next((each for each in asked if ident in (each.id, for_no(each.id), edit_of(each.id))), None)


def can_be_sent(draft: str, asked: Sequence[Request], agents: Collection[str]) -> bool:
    """Return True if a draft can still be sent.

    A draft about a request can if it is still of use; any other one can if all its agents are among `agents`.
    """
    request = request_of(draft, asked)
    if request is not None:
        return outlives(draft, request, asked)
    # One for the team, a new agent or a task is about no agent.
    if draft in _CALLED or draft.startswith(_EDITED_TASK):
        return True
    if (note := _note(draft)) is not None:
        return note.agent in agents
    if draft.startswith(_MERGE):
        return draft.removeprefix(_MERGE) in agents
    return all(name in agents for name in draft.removeprefix(interrupting([""])).replace(",", "").split())


def called(draft: str, asked: Iterable[Request]) -> str:
    """Return a draft's name for display: `to zed`, `your edit of tess's plan`."""
    request, note = request_of(draft, asked), _note(draft)
    if request is not None:
        if _ON_LINES in draft:
            what = "notes on"
        elif _TERMS in draft:
            what = "terms for"
        else:
            what = {edit_of(request.id): "edit of", for_no(request.id): "refusal of"}.get(draft, "answer to")
        return f"your {what} {request.from_}'s {_KINDS.get(request.type, request.type)}"
    if _ON_LINES in draft or _TERMS in draft or draft.endswith((_NO, _EDIT)):
        return f"about {draft.partition(' ')[0]}, which is gone"
    if note is not None:
        return f"your notes on {note.agent}'s changes"
    if draft.startswith(_MERGE):
        return f"your message for the merge of {draft.removeprefix(_MERGE)}"
    if draft.startswith(_EDITED_TASK):
        return f"your edit of {draft}"
    if draft.startswith(interrupting([""])):
        return draft
    return _CALLED.get(draft) or f"to {', '.join(draft.split())}"


class Drafts(dict[str, str]):
    """The drafts of one team, by name. Without a file they last as long as the dashboard.

    Several dashboards may share the file: each writes only its own changes. The drafts of the `others`, which are open
    too, are theirs; those of a dashboard that was closed are taken over. `own` is the id of this dashboard. A text that
    another one left under a name for which something else is being written here is given to `put_aside`.
    """

    def __init__(self, file: Path | None = None, own: str = "", others: Iterable[str] = ()) -> None:
        super().__init__()
        self._file = file
        self.own = own
        self.others = frozenset(others)
        self.put_aside: Callable[[str], None] = lambda _: None
        self._claimed: set[str] = set()
        self._kept = None if file is None else record_of(file, Unsent).watch()
        self._seen: dict[str, str] = {}
        self.safe: frozenset[str] = frozenset()
        """The drafts that are in the file."""
        self.take_over()

    def take_over(self) -> bool:
        """Take over drafts that other dashboards left or sent; those that were changed here stay.

        Return True if a draft has changed.
        """
        if self._kept is None:
            return False
        found = self._kept.get()
        if found is None:
            # A purge in another process deletes the file, but not what is being written here.
            self.safe = frozenset()
            return False
        texts = self._free_in(found)
        news = {name for name in {*texts, *self.safe} if texts.get(name) != self._seen.get(name)}
        news = {name for name in news if self.get(name) == self._seen.get(name)}
        for name in news:
            for known in (self, self._seen):
                known.pop(name, None)
                known.update({name: texts[name]} if name in texts else {})
        self.safe = frozenset(texts)
        return bool(news)

    def leave_file(self) -> None:
        """Keep the drafts in memory alone from now on: their team was deleted."""
        self._file, self._kept, self.safe = None, None, frozenset()

    def put(self, name: str, text: str) -> None:
        """Set a draft; an empty text drops it."""
        if text:
            self[name] = text
        else:
            self.pop(name, None)

    def claim(self, name: str) -> str:
        """Return the text of a draft, empty if there is none. No other dashboard shows it while this one is open."""
        self.take_over()
        if name in self:
            self._claimed.add(name)
            self.keep()
        return self.get(name, "")

    def _free_in(self, found: Unsent | None) -> dict[str, str]:
        """Return the stored drafts that belong to no other open dashboard."""
        if found is None:
            return {}
        return {name: text for name, text in found.texts.items() if found.writers.get(name) not in self.others}

    def keep(self) -> None:
        """Write the changed drafts to the file; a draft whose write failed is written at the next call."""
        changed = {name for name in {*self, *self._seen} if self.get(name) != self._seen.get(name)} | self._claimed
        if not changed or self._file is None or self._kept is None:
            return
        found = self._kept.get() or Unsent()
        changed -= found.texts.keys() - self._free_in(found).keys()
        if not changed:
            return
        self.safe -= changed
        for name in changed & self.keys():
            # Terms are no text that the user wrote.
            left = found.texts.get(name, "") if _TERMS not in name else ""
            if left not in ("", self[name], self._seen.get(name)) and found.writers.get(name) != self.own:
                self.put_aside(left)
        try:
            files.make_private_folders(self._file.parent)
            record = record_of(self._file, Unsent)
            kept = record.edit(lambda old: self._merge(old, changed), replace_damaged=True)
        except (CrewboardError, OSError) as error:
            log.warning("drafts are not kept: %s", error)
        else:
            for name in changed:
                self._seen.pop(name, None)
                self._seen.update({name: self[name]} if name in self else {})
            self._claimed -= changed
            self.safe = frozenset(self._free_in(kept))

    def _merge(self, old: Unsent | None, changed: set[str]) -> Unsent:
        old = old or Unsent()
        mine = changed - (old.texts.keys() - self._free_in(old).keys())
        texts = {**old.texts, **{name: self.get(name, "") for name in mine}}
        texts = {
            name: text
            for name, text in texts.items()
            if text.strip() and all(redaction.redact(each) == each for each in (name, text))
        }
        writers = {**old.writers, **dict.fromkeys(mine, self.own)}
        return Unsent(texts=texts, writers={name: who for name, who in writers.items() if who and name in texts})


SENT_KEPT = 100
"""Number of the texts sent last that are kept."""

_SENT_SIZE = 64 * 1024
"""The number of characters that the kept texts may have together."""


class SentTexts:
    """The texts sent last from all dashboards of one team, oldest first; without a file, only from this dashboard."""

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self.texts: list[str] = []
        if file is not None:
            try:
                kept = record_of(file, RecentTexts).load_or_none()
            except CrewboardError as error:
                log.warning("the texts sent last cannot be read: %s", error)
            else:
                self.texts = list(kept.texts) if kept is not None else []

    def add(self, text: str) -> None:
        """Add a text as the newest one. A text that contains a secret is never written to the file."""
        self.texts = _newest([*self.texts, text])
        if self._file is None or redaction.redact(text) != text:
            return
        try:
            files.make_private_folders(self._file.parent)
            record_of(self._file, RecentTexts).edit(
                lambda old: RecentTexts(texts=_newest([*(old.texts if old else []), text])), replace_damaged=True
            )
        except (CrewboardError, OSError) as error:
            log.warning("the texts sent last are not kept: %s", error)


def _newest(texts: list[str]) -> list[str]:
    """Return the newest texts within the size limits, without duplicates."""
    found: list[str] = []
    room = _SENT_SIZE
    for text in reversed(texts):
        if text not in found and len(text) <= room and len(found) < SENT_KEPT:
            found.append(text)
            room -= len(text)
    return found[::-1]
