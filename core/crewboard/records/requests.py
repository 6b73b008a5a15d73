"""Requests: questions that wait for an answer."""

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Literal

from msgspec import Meta, Struct, ValidationError, field

from crewboard.errors import BadDataError, UsageError
from crewboard.names import OPERATOR
from crewboard.records.agents import Terms
from crewboard.records.base import JsonValue, Name, Record, Time, check_depth, convert

REQUEST_ID_RULE = r"^[a-z0-9][a-z0-9_-]{0,63}\Z"

SHA256_DIGITS = 16
"""First digits of a SHA-256 that an answer has to name at least. A text with the same ones takes centuries to find."""

RequestType = Literal["plan_approval", "shutdown", "permission", "question", "task_review"]
NoteState = Literal["open", "answered", "settled"]
RequestStatus = Literal["pending", "approved", "rejected", "answered", "expired", "cancelled"]


class Note(Record, kw_only=True):
    """A note on lines of a plan, counted from 1. Its id is the same in each later version of the plan.

    `line` and `end` are the place in the version that carries the note; 0 if the lines are not there any more. `text`
    is what the approver wrote, `quoted` the lines that it was written about. `answer` is that of the agent.
    """

    id: Annotated[str, Meta(pattern=r"^n[1-9][0-9]{0,5}\Z")]
    line: Annotated[int, Meta(ge=0)] = 0
    end: Annotated[int, Meta(ge=0)] = 0
    quoted: list[str] = []
    text: str
    answer: str = ""
    settled: bool = False

    @property
    def state(self) -> NoteState:
        """Return `open` until it is answered, and `settled` once a version with the answer was decided."""
        return "settled" if self.settled else "answered" if self.answer else "open"

    @property
    def place(self) -> str:
        """Return the lines that it is on, in words."""
        if not self.line:
            return "moved"
        return f"line {self.line}" if self.line == self.end else f"lines {self.line}-{self.end}"


QUESTION = "Question: "
"""Start of a rejection that asks back. A waiting agent reads only the answer to its request, so a question is one."""


class Request(Record, kw_only=True):
    """`requests/<id>.json`: a question that waits for an answer.

    `edited` is the plan as the approver changed it; it replaces the plan in the payload. `terms` are those of its
    approval; None if it has none. `notes` are those that came with the answer; those on the versions before are in the
    payload, with the answers to them, so that a yes is bound to them. `operator` is the name of the user
    who decided it, if `decided_by` is the operator; else empty.
    """

    id: Annotated[str, Meta(pattern=REQUEST_ID_RULE)]
    type: RequestType
    from_: Name = field(name="from")
    to: Name
    status: RequestStatus = "pending"
    payload: dict[str, JsonValue] = {}
    sha256: str = ""
    supersedes: str | None = None
    created_at: Time = 0
    decided_at: Time | None = None
    decided_by: Name | None = None
    operator: str = ""
    feedback: str | None = None
    edited: str | None = None
    terms: Terms | None = None
    notes: list[Note] = []
    rev: int = 0

    @property
    def answered_in(self) -> str | None:
        """Return the other program in which alone it can be answered; None if it can be answered here."""
        found = self.payload.get("answered_in")
        return found if isinstance(found, str) else None

    @property
    def said(self) -> str:
        """Return the words of the answer, with its notes on lines; empty if there are none."""
        return "\n\n".join(filter(None, [self.feedback or "", describe_notes(self.notes)]))

    @property
    def plan(self) -> str:
        """Return the text of the plan, as the approver edited it if it was; empty if it is no plan."""
        return self.submitted if self.edited is None else self.edited

    @property
    def submitted(self) -> str:
        """Return the text of the plan as the agent wrote it."""
        return str(self.payload.get("plan", ""))

    @property
    def earlier_notes(self) -> "list[Note]":
        """Return the notes on earlier versions, without a place if the plan was edited: theirs is in what it was."""
        notes = notes_in(self.payload)
        return notes if self.edited is None else [each.replace(line=0, end=0) for each in notes]

    def __post_init__(self) -> None:
        """Check the payload, and compute its hash: the stored one could belong to another payload."""
        check_depth(self.payload, "payload: ")
        self.sha256 = payload_sha256(self.payload)


_STEP = r"(?a)(\d{1,4})[.)][ \t]+(\S.*)"

_CODE = r"( {0,3})(`{3,}|~{3,})(.*)"


def steps_of(plan: str) -> dict[int, str]:
    """Return the steps of a plan by number: the items of its numbered list, with the first line of each.

    Empty if there is no such list at the left edge, or its numbers do not count up from 1: then no number means one
    step to everyone who reads the text.
    """
    lines = lines_of(plan)
    found = {number: re.match(_STEP, lines[within.start - 1]) for number, within in step_lines(plan).items()}
    return {number: step[2].rstrip() if step is not None else "" for number, step in found.items()}


def step_lines(plan: str) -> dict[int, range]:
    """Return the lines of each step of a plan by number, counted from 1.

    A step ends at the next one, at a heading, or at a text at the left edge behind a blank line. Where a block of code
    at the left edge is never closed, no number means one step to everyone, so there are none.
    """
    steps: dict[int, range] = {}
    code, last, is_after_blank, is_indented = "", 0, False, False
    # As the screen and the model see lines: `splitlines` would also break at U+2028 and a form feed.
    for at, line in enumerate(plan.split("\n"), 1):
        if is_indented and line[:1].strip():
            # As in Markdown, a block of code within a step ends with it, closed or not.
            code, is_indented = "", False
        is_inside = bool(code) or line[:1] in (" ", "\t")
        mark = re.match(_CODE, line)
        if mark is not None and not code:
            code, is_indented = mark[2], bool(last) and mark[1] == "   "
        elif mark is not None and mark[2].startswith(code) and not mark[3].strip():
            code, is_indented = "", False
        elif not code and (item := re.match(_STEP, line)) is not None:
            if int(item[1]) != len(steps) + 1:
                return {}
            last = int(item[1])
            steps[last] = range(at, at + 1)
        is_blank = not line.strip()
        if last and not is_blank:
            begins = steps[last].start == at
            if not (begins or is_inside) and (is_after_blank or line.startswith("#")):
                last = 0
            else:
                steps[last] = range(steps[last].start, at + 1)
        is_after_blank = is_blank
    return {} if code and not is_indented else steps


def lines_of(plan: str) -> list[str]:
    """Return the lines of a plan; a note names them by number, counted from 1."""
    return plan.rstrip("\n").split("\n")


def notes_in(payload: dict[str, JsonValue]) -> list[Note]:
    """Return the notes on earlier versions of a plan, as this one answers them. What is no note is left out."""
    found = payload.get("notes")
    notes: list[Note] = []
    for each in found if isinstance(found, list) else []:
        with contextlib.suppress(ValidationError):
            notes.append(convert(each, Note))
    return notes


class NewNote(Struct, frozen=True, order=True):
    """A note that is written: the first and the last line that it is about, counted from 1, and its text."""

    line: int
    end: int
    text: str


_LINE_NOTE = r"(?as)[ \t]*(\d{1,6})(?:-(\d{1,6}))?:(.*)"


def parse_note(given: str) -> NewNote:
    """Return the note that `LINE:TEXT` or `LINE-LINE:TEXT` is.

    Raises:
        UsageError: It has another form, or its first line comes after its last.
    """
    found = re.fullmatch(_LINE_NOTE, given)
    if found is None or not found[3].strip():
        raise UsageError(f"{given!r} is no note: give a line of the plan and a text, as '12:why?' or '12-14:why?'")
    note = NewNote(int(found[1]), int(found[2] or found[1]), found[3].strip())
    if note.end < note.line:
        raise UsageError(f"{given!r}: the first line, {note.line}, comes after the last, {note.end}")
    return note


def carry_notes(before: Request, plan: str, answers: Mapping[str, str]) -> list[Note]:
    """Return the notes on a plan as they stand on its revision `plan`, which gives these `answers`.

    A note keeps its place by what its lines say.
    """
    # An answer was read if something was decided about the version that gave it.
    decided = before.status in ("approved", "rejected")
    earlier = [
        each.replace(settled=each.settled or (decided and bool(each.answer))) for each in notes_in(before.payload)
    ]
    notes = [*earlier, *before.notes]
    if not notes:
        return []
    revision = _Revision(lines_of(before.submitted), lines_of(plan))
    found = []
    for note in notes:
        answer = answers.get(note.id, "").strip()
        told = note.replace(answer=answer, settled=False) if answer else note
        line, end = revision.place(note)
        found.append(told.replace(line=line, end=end))
    return found


_ANSWER_IN_TEXT = r"(?m)^\W*(n[1-9][0-9]{0,5})\W{0,4}:\W{0,4}(\w.*)"


def answers_in(before: Request, plan: str) -> dict[str, str]:
    """Return the answers to the notes on a plan in the text of its revision `plan`: lines that begin with `n1:`."""
    known = {note.id for note in [*notes_in(before.payload), *before.notes]}
    return {ident: answer for ident, answer in re.findall(_ANSWER_IN_TEXT, plan) if ident in known}


def how_to_answer(request: Request, *, in_text: bool) -> str:
    """Return what a model is told about the open notes on its plan: answer them in the text, or in `answers`."""
    waiting = [note.id for note in [*notes_in(request.payload), *request.notes] if note.state == "open"]
    if not waiting:
        return ""
    begin = f'On lines of the plan that begin with the id of a note, as in "{waiting[0]}: moved it up"'
    return f" {begin if in_text else 'In answers'}, say what you did about each note: {', '.join(waiting)}."


_SIMILAR = 0.6
"""Similarity (0 to 1) from which on a changed line counts as the one before, so that a note stays on it."""

_MOST_PAIRS = 2000
"""Pairs of lines that are compared for one revision: an agent waits for it. A note beyond them counts as moved."""

_COMPARED = 120
"""Characters of a line that are compared."""


def marked_lines(before: str, plan: str) -> Iterator[tuple[str, int]]:
    """Yield the number of each line of a plan: behind `-` a line of the version before that is gone, `+` a new one."""
    # Imported here: most processes read no request.
    from difflib import SequenceMatcher

    for what, start, stop, begin, end in SequenceMatcher(None, lines_of(before), lines_of(plan)).get_opcodes():
        yield from (("-", at + 1) for at in range(start, stop) if what != "equal")
        yield from (("" if what == "equal" else "+", at + 1) for at in range(begin, end))


class _Revision:
    """The lines of a plan and of its revision, and which of them belong together."""

    def __init__(self, old: list[str], new: list[str]) -> None:
        # Imported here: most processes read no request.
        from difflib import SequenceMatcher

        self._old, self._new = old, new
        # In a long plan, lines that stand there often are no anchors: with them it would take minutes.
        self._blocks = SequenceMatcher(None, old, new).get_opcodes()
        self._alike: SequenceMatcher[str] = SequenceMatcher(None, autojunk=False)
        self._pairs = _MOST_PAIRS

    def place(self, note: Note) -> tuple[int, int]:
        """Return the first and the last line of a note in the revision; 0 and 0 if they are not there."""
        new = self._new
        lines: list[int] = []
        # What stands around a blank line says which one it is.
        is_blank = not any(map(str.strip, note.quoted))
        for tag, start, stop, begin, end in self._blocks if note.line else ():
            if tag == "equal" and (not is_blank or any(map(str.strip, new[begin:end]))):
                lines += range(begin + max(start, note.line - 1) - start, begin + min(stop, note.end) - start)
            elif tag == "replace":
                ends = {at for at in (note.line - 1, note.end - 1) if start <= at < stop}
                lines += [to for at in ends if (to := self._most_alike(self._old[at], range(begin, end))) is not None]
        if not is_blank and not any(new[at].strip() for at in lines):
            # A passage that moved to another place, if only one there is the same.
            quoted, size = note.quoted, len(note.quoted)
            same = [at for at, line in enumerate(new) if line == quoted[0] and new[at : at + size] == quoted]
            lines = [same[0], same[0] + size - 1] if len(same) == 1 else []
        return (min(lines) + 1, max(lines) + 1) if lines else (0, 0)

    def _most_alike(self, line: str, among: range) -> int | None:
        """Return which of these lines of the revision is the changed `line`; None if none is, or they are too many."""
        if not line.strip():
            return None
        alike, best, found = self._alike, _SIMILAR, None
        alike.set_seq2(line[:_COMPARED])
        for at in among:
            alike.set_seq1(self._new[at][:_COMPARED])
            # From the cheapest bound to the exact number.
            if alike.real_quick_ratio() < best:
                continue
            self._pairs -= 1
            if self._pairs < 0:
                return None
            if alike.quick_ratio() >= best and (ratio := alike.ratio()) >= best and (found is None or ratio > best):
                best, found = ratio, at
        return found


def describe_notes(notes: list[Note]) -> str:
    """Return notes as text: each with its id, its place, the lines that it is about, and its answer.

    Each line of a text is marked, so that none looks like another note.
    """
    parts = []
    for note in notes:
        state = f", {note.state}" if note.answer else ""
        lines = [f"{note.id}, {note.place}{state}:", *(f"  > {line}" for line in note.quoted)]
        lines += [f"  | {line}" for line in note.text.splitlines()]
        if note.answer:
            lines += [f"answer to {note.id}:", *(f"  | {line}" for line in note.answer.splitlines())]
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def payload_sha256(payload: dict[str, JsonValue]) -> str:
    """Return the SHA-256 of the payload as canonical JSON. An answer that carries it is bound to that payload."""
    # Imported here: most processes read no request.
    import hashlib
    import json

    canonical = json.dumps(payload, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()


def revealed_sha256(sha256: str) -> str:
    """Return the digest for a yes to a text with this SHA-256 of which something was hidden until it was revealed."""
    # Imported here: most processes read no request.
    import hashlib

    return hashlib.sha256(f"revealed {sha256}".encode()).hexdigest()


def is_revealed(given: str, sha256: str) -> bool:
    """Return True if `given` says that all of the text with this SHA-256 was revealed: `revealed_sha256` of it."""
    return len(given) >= SHA256_DIGITS and revealed_sha256(sha256).startswith(given)


def bound_to(sha256: str) -> str:
    """Return the option that binds a yes on the command line to what has this SHA-256."""
    return f"--sha256 {sha256[:SHA256_DIGITS]}"


def require_shown(given: str, sha256: str, what: str) -> None:
    """Refuse a yes to something else than what was shown: `given` is its SHA-256, or the first 16 digits of it.

    Raises:
        BadDataError: What there is now has another `sha256`.
    """
    if len(given) < SHA256_DIGITS or not sha256.startswith(given):
        raise BadDataError(f"{what} has another sha256 than the one that you gave; read it again, then answer")


def question_in(feedback: str | None) -> str | None:
    """Return the question that a rejection asks back, None if it asks none."""
    return feedback.removeprefix(QUESTION) if feedback and feedback.startswith(QUESTION) else None


def versions_before(request: Request, known: Iterable[Request]) -> Iterator[Request]:
    """Yield the versions that a request replaced, newest first."""
    by_id = {each.id: each for each in known if each.id != request.id}
    before = request.supersedes
    # Each once, also if the files of a damaged team lead in a circle.
    while (each := by_id.pop(before or "", None)) is not None:
        yield each
        before = each.supersedes


def versions_after(request: Request, known: Iterable[Request]) -> Iterator[Request]:
    """Yield the versions that replaced a request, oldest first."""
    successors = {each.supersedes: each for each in known if each.supersedes and each.id != request.id}
    after: Request | None = request
    while after is not None and (after := successors.pop(after.id, None)) is not None:
        yield after


def describe_status(request: Request) -> str:
    """Return the status of a request in words: a rejection that only asks back, or sends notes, rejects nothing."""
    if request.status != "rejected":
        return request.status
    if question_in(request.feedback) is not None:
        return "asked back"
    return "sent back" if request.notes and not request.feedback else "rejected"


def display_decider(request: Request, operator: str) -> str:
    """Return who decided a request, as the user `operator` sees it: `you`, or another user by name."""
    if request.decided_by != OPERATOR:
        return request.decided_by or ""
    return "you" if request.operator in ("", operator) else request.operator
