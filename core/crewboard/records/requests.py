"""Requests: questions that wait for an answer. Also the steps of plans, notes on plans, and digests of payloads."""

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
"""Fewest digits of a SHA-256 that an answer has to name. Another text with the same digits takes centuries to find."""

RequestType = Literal["plan_approval", "shutdown", "permission", "question", "task_review"]
NoteState = Literal["open", "answered", "settled"]
RequestStatus = Literal["pending", "approved", "rejected", "answered", "expired", "cancelled"]


class Note(Record, kw_only=True):
    """A note on lines of a plan. Its id is the same in each later version of the plan.

    `line` and `end` are the first and last line in the version that carries the note, counted from 1; both are 0 if the
    lines are no longer there. `text` is what the approver wrote, `quoted` the lines that the note is about. `answer` is
    that of the agent.
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
        """Return the state of the note: `open`, `answered` or `settled`.

        A note is answered once the agent answers it, and settled once the version of the plan with that answer was
        approved or rejected.
        """
        return "settled" if self.settled else "answered" if self.answer else "open"

    @property
    def place(self) -> str:
        """Return the lines that the note is on: `line 3`, `lines 3-5`, or `moved` if they are no longer there."""
        if not self.line:
            return "moved"
        return f"line {self.line}" if self.line == self.end else f"lines {self.line}-{self.end}"


QUESTION = "Question: "
"""The beginning of a rejection that asks back. A waiting agent reads only the answer to its request, so the approver's
question has to be one.
"""


class Request(Record, kw_only=True):
    """`requests/<id>.json`: a question that waits for an answer.

    `edited` is the plan as the approver changed it; it replaces the plan in the payload. `terms` are those of the
    approval; None if there are none. `notes` are those that came with the answer. Notes on earlier versions are in the
    payload, with their answers, so that an approval is bound to them. `operator` is the name of the user who decided
    the request; empty if `decided_by` is not the operator.
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
        """Return the other program in which alone the request can be answered; None if it can be answered here."""
        found = self.payload.get("answered_in")
        return found if isinstance(found, str) else None

    @property
    def said(self) -> str:
        """Return the text of the answer, followed by its notes on lines; empty if there is neither."""
        return "\n\n".join(filter(None, [self.feedback or "", describe_notes(self.notes)]))

    @property
    def plan(self) -> str:
        """Return the text of the plan, with the approver's changes if any; empty without a plan."""
        return self.submitted if self.edited is None else self.edited

    @property
    def submitted(self) -> str:
        """Return the text of the plan as the agent wrote it; empty if the request is not for a plan."""
        return str(self.payload.get("plan", ""))

    @property
    def earlier_notes(self) -> "list[Note]":
        """Return the notes on earlier versions of the plan.

        They have no place if the approver edited the plan, because their lines are those of the submitted text.
        """
        notes = notes_in(self.payload)
        return notes if self.edited is None else [each.replace(line=0, end=0) for each in notes]

    def __post_init__(self) -> None:
        """Check the payload, and compute its hash, because the hash in a file could be that of another payload."""
        check_depth(self.payload, "payload: ")
        self.sha256 = payload_sha256(self.payload)


_STEP = r"(?a)(\d{1,4})[.)][ \t]+(\S.*)"

_CODE = r"( {0,3})(`{3,}|~{3,})(.*)"


def steps_of(plan: str) -> dict[int, str]:
    """Return the first line of each step of a plan, by number: the items of its numbered list.

    Empty if there is no such list at the left edge, or its numbers do not count up from 1: then a number does not mean
    the same step to all readers.
    """
    lines = lines_of(plan)
    found = {number: re.match(_STEP, lines[within.start - 1]) for number, within in step_lines(plan).items()}
    return {number: step[2].rstrip() if step is not None else "" for number, step in found.items()}


def step_lines(plan: str) -> dict[int, range]:
    """Return the numbers of the lines of each step of a plan, counted from 1, by number of the step.

    A step ends at the next one, at a heading, or at a text at the left edge after a blank line. Empty if `steps_of` is,
    or if a block of code at the left edge is never closed.
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
    """Return the lines of a plan. Notes name lines by number, counted from 1."""
    return plan.rstrip("\n").split("\n")


def notes_in(payload: dict[str, JsonValue]) -> list[Note]:
    """Return the notes on earlier versions of a plan in the payload of its request. Invalid entries are left out."""
    found = payload.get("notes")
    notes: list[Note] = []
    for each in found if isinstance(found, list) else []:
        with contextlib.suppress(ValidationError):
            notes.append(convert(each, Note))
    return notes


class NewNote(Struct, frozen=True, order=True):
    """A note to be added to a plan: the first and the last line that it is about, counted from 1, and its text."""

    line: int
    end: int
    text: str


_LINE_NOTE = r"(?as)[ \t]*(\d{1,6})(?:-(\d{1,6}))?:(.*)"


def parse_note(given: str) -> NewNote:
    """Parse a note that is written as `LINE:TEXT` or `LINE-LINE:TEXT`.

    Raises:
        UsageError: The text has another form, or its first line comes after its last.
    """
    found = re.fullmatch(_LINE_NOTE, given)
    if found is None or not found[3].strip():
        raise UsageError(f"{given!r} is no note: give a line of the plan and a text, as '12:why?' or '12-14:why?'")
    note = NewNote(int(found[1]), int(found[2] or found[1]), found[3].strip())
    if note.end < note.line:
        raise UsageError(f"{given!r}: the first line, {note.line}, comes after the last, {note.end}")
    return note


def carry_notes(before: Request, plan: str, answers: Mapping[str, str]) -> list[Note]:
    """Return the notes on a plan as they are on its revision, whose text is `plan`.

    `before` is the request with the earlier version, `answers` are the answers that the revision gives, by id of the
    note. A note is placed by the content of its lines.
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
    """Return the answers to notes that the text of a revision contains, by id of the note.

    An answer is a line that begins with the id of a note on `before`, such as `n1: moved it up`.
    """
    known = {note.id for note in [*notes_in(before.payload), *before.notes]}
    return {ident: answer for ident, answer in re.findall(_ANSWER_IN_TEXT, plan) if ident in known}


def how_to_answer(request: Request, *, in_text: bool) -> str:
    """Return what a model is told about the open notes on its plan: how to answer them; empty if there are none.

    With `in_text` the model is to answer in the text of the plan, else in the argument `answers`.
    """
    waiting = [note.id for note in [*notes_in(request.payload), *request.notes] if note.state == "open"]
    if not waiting:
        return ""
    begin = f'On lines of the plan that begin with the id of a note, as in "{waiting[0]}: moved it up"'
    return f" {begin if in_text else 'In answers'}, say what you did about each note: {', '.join(waiting)}."


_SIMILAR = 0.6
"""The similarity, from 0 to 1, from which on a changed line counts as the earlier one, so that a note stays on it."""

_MOST_PAIRS = 2000
"""Most pairs of lines that are compared for one revision, because an agent waits for it. Then notes count as moved."""

_COMPARED = 120
"""Most characters of a line that are compared."""


def marked_lines(before: str, plan: str) -> Iterator[tuple[str, int]]:
    """Yield a sign and a line number for each line of a plan and of its version `before`.

    The sign is empty for a line that both have, `+` for a new line, and `-` for a line of `before` that is gone, with
    its number there.
    """
    # Imported here: most processes read no request.
    from difflib import SequenceMatcher

    for what, start, stop, begin, end in SequenceMatcher(None, lines_of(before), lines_of(plan)).get_opcodes():
        yield from (("-", at + 1) for at in range(start, stop) if what != "equal")
        yield from (("" if what == "equal" else "+", at + 1) for at in range(begin, end))


class _Revision:
    """The lines of a plan and of its revision, and which lines correspond."""

    def __init__(self, old: list[str], new: list[str]) -> None:
        # Imported here: most processes read no request.
        from difflib import SequenceMatcher

        self._old, self._new = old, new
        # In a long plan, lines that stand there often are no anchors: with them it would take minutes.
        self._blocks = SequenceMatcher(None, old, new).get_opcodes()
        self._alike: SequenceMatcher[str] = SequenceMatcher(None, autojunk=False)
        self._pairs = _MOST_PAIRS

    def place(self, note: Note) -> tuple[int, int]:
        """Return the first and last line of a note in the revision, counted from 1; 0 and 0 if they are not there."""
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
        """Return the index of the line of the revision that is most like `line`.

        None if none is similar enough, or too many lines were compared already.
        """
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
    """Return notes as text: each with its id, its place, the lines that it is about, its text and its answer.

    Each line of these texts is marked, so that none looks like the beginning of another note.
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
    """Return the SHA-256 of a payload as canonical JSON. An answer that names it is bound to that payload."""
    # Imported here: most processes read no request.
    import hashlib
    import json

    canonical = json.dumps(payload, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()


def revealed_sha256(sha256: str) -> str:
    """Return the digest that an approval names in place of `sha256` if the user revealed hidden parts of the text."""
    # Imported here: most processes read no request.
    import hashlib

    return hashlib.sha256(f"revealed {sha256}".encode()).hexdigest()


def is_revealed(given: str, sha256: str) -> bool:
    """Return True if `given` begins like `revealed_sha256` of a text's SHA-256, and is long enough."""
    return len(given) >= SHA256_DIGITS and revealed_sha256(sha256).startswith(given)


def bound_to(sha256: str) -> str:
    """Return the option that binds an approval on the command line to the text or payload with this SHA-256."""
    return f"--sha256 {sha256[:SHA256_DIGITS]}"


def require_shown(given: str, sha256: str, what: str) -> None:
    """Refuse an approval of something else than what was shown.

    `given` is the SHA-256 that the approval names, or at least its first 16 digits. `what` names the thing in the
    message.

    Raises:
        BadDataError: The present `sha256` is another one.
    """
    if len(given) < SHA256_DIGITS or not sha256.startswith(given):
        raise BadDataError(f"{what} has another sha256 than the one that you gave; read it again, then answer")


def question_in(feedback: str | None) -> str | None:
    """Return the question in the feedback of a rejection that asks back; None if it asks none."""
    return feedback.removeprefix(QUESTION) if feedback and feedback.startswith(QUESTION) else None


def versions_before(request: Request, known: Iterable[Request]) -> Iterator[Request]:
    """Yield the requests with earlier versions of a plan, newest first. `known` are the requests to look among."""
    by_id = {each.id: each for each in known if each.id != request.id}
    before = request.supersedes
    # Each once, also if the files of a damaged team lead in a circle.
    while (each := by_id.pop(before or "", None)) is not None:
        yield each
        before = each.supersedes


def versions_after(request: Request, known: Iterable[Request]) -> Iterator[Request]:
    """Yield the requests with later versions of a plan, oldest first. `known` are the requests to look among."""
    successors = {each.supersedes: each for each in known if each.supersedes and each.id != request.id}
    after: Request | None = request
    while after is not None and (after := successors.pop(after.id, None)) is not None:
        yield after


def describe_status(request: Request) -> str:
    """Return the status of a request in words, such as `approved`.

    A rejection is `asked back` if it asks a question, and `sent back` if it only has notes.
    """
    if request.status != "rejected":
        return request.status
    if question_in(request.feedback) is not None:
        return "asked back"
    return "sent back" if request.notes and not request.feedback else "rejected"


def display_decider(request: Request, operator: str) -> str:
    """Return who decided a request, as the user `operator` sees it: `you`, or the name of another user or agent.

    Empty if no one has decided it.
    """
    if request.decided_by != OPERATOR:
        return request.decided_by or ""
    return "you" if request.operator in ("", operator) else request.operator
