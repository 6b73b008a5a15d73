"""Requests: questions that wait for an answer. The file of a request decides; the mail about it only notifies.

The first valid answer wins, under a lock. An answer of the wrong type, from another agent than the one that was asked,
or to a request that is closed or unknown changes nothing and is an error. The file is written before the mail, whose
ids are derived from the request's, so that a process that was killed in between may repeat both.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Any, TypedDict, Unpack

from crewboard import redaction
from crewboard.errors import BadDataError, UsageError
from crewboard.names import OPERATOR, SYSTEM, operator_mailboxes
from crewboard.records.agents import Terms
from crewboard.records.base import JsonValue
from crewboard.records.events import Answer
from crewboard.records.messages import Message
from crewboard.records.requests import (
    NewNote,
    Note,
    Request,
    RequestStatus,
    RequestType,
    carry_notes,
    lines_of,
    notes_in,
    require_shown,
)
from crewboard.records.team import Config
from crewboard.store import mailbox, roster
from crewboard.store.json_records import cached_folder
from crewboard.store.layout import TeamDirectory, under_lock
from crewboard.untrusted import as_run

_LOCK = "requests"

SHUTDOWN_TIMEOUT = 30.0
"""Seconds after which an unanswered shutdown request expires."""

_WORD: dict[RequestType, str] = {
    "plan_approval": "plan", "shutdown": "reason", "permission": "summary", "question": "question",
    "task_review": "summary",
}  # fmt: skip
"""The part of a payload that is the text of the request's mail, by type of request."""


class Decision(TypedDict, total=False):
    """The parts of an answer to a request other than its status.

    `sha256` is that of the payload that was read; if the payload has another one, the answer is refused. A plan is
    approved as it was `edited`, and with `terms` that hold until the result; `notes` are on its lines. `operator` is
    the name of the user who answers.
    """

    feedback: str | None
    sha256: str | None
    edited: str | None
    terms: Terms | None
    notes: Sequence[NewNote]
    operator: str


_ANSWERS: dict[RequestStatus, frozenset[RequestType]] = {
    "approved": frozenset({"plan_approval", "shutdown", "permission", "task_review"}),
    "rejected": frozenset({"plan_approval", "shutdown", "permission", "task_review"}),
    "answered": frozenset({"question"}),
}


def load(team: TeamDirectory, request_id: str) -> Request | None:
    """Return the request with this id; None if there is none.

    Raises:
        BadDataError: Its file is damaged.
    """
    return team.request(request_id).load()


def load_all(team: TeamDirectory) -> list[Request]:
    """Return every request whose file is not damaged, oldest first."""
    found = cached_folder(team.requests).intact().values()
    return sorted(found, key=lambda request: (request.created_at, request.id))


def damaged(team: TeamDirectory) -> list[str]:
    """Return the names of the records that `load_all` left out: they cannot be read, or have the id of another one."""
    return [record.name for record in cached_folder(team.requests).damaged]


def pending(team: TeamDirectory) -> list[Request]:
    """Return the requests that wait for an answer, oldest first."""
    return [request for request in load_all(team) if request.status == "pending"]


@under_lock(_LOCK)
def _open(team: TeamDirectory, request: Request) -> Request:
    """Open a request, and cancel the one that it supersedes if that is still pending; return the stored request.

    If the id exists, a worker asks the same question again after a crash: the existing request is kept, and reopened if
    it was cancelled because the worker had ended.
    """
    existing = load(team, request.id)
    if existing is not None and (existing.status, existing.decided_by) == ("cancelled", SYSTEM):
        return _save(team, existing, status="pending", decided_at=None, decided_by=None)
    if existing is not None:
        return existing
    old = load(team, request.supersedes) if request.supersedes else None
    if old is not None and old.status == "pending":
        _save(team, old, status="cancelled", decided_at=request.created_at, decided_by=request.from_)
    return _save(team, request)


@under_lock(_LOCK)
def decide(
    team: TeamDirectory, request_id: str, status: RequestStatus, by: str, now: float, **answer: Unpack[Decision]
) -> Request:
    """Answer a request, and return it; the first valid answer wins.

    Raises:
        BadDataError: Nothing was changed: there is no such request, it is closed, `by` may not answer it, the answer
            does not fit its type, or its payload is not the one of `sha256`.
        UsageError: A note is on lines that the plan does not have.
    """
    request = load(team, request_id)
    if request is None:
        raise BadDataError(f"there is no request {request_id}")
    _check_answer(request, status, by, answer.get("sha256"))
    edited, terms = answer.get("edited"), answer.get("terms")
    if edited is not None and request.type != "plan_approval":
        raise BadDataError(f"request {request_id} is a {request.type}; only a plan can be edited")
    if terms is not None and (request.type != "plan_approval" or by != OPERATOR):
        raise BadDataError(f"request {request_id}: only a plan is approved with terms, and only by the operator")
    return _save(
        team, request, status=status, decided_at=now, decided_by=by, feedback=answer.get("feedback"), edited=edited,
        terms=terms, notes=_number(request, answer.get("notes", ())),
        operator=answer.get("operator", "") if by == OPERATOR else "",
    )  # fmt: skip


@under_lock(_LOCK)
def change_terms(team: TeamDirectory, request_id: str, before: Terms, terms: Terms) -> Request:
    """Replace the terms `before` of an approved plan by other terms, and return its request.

    Raises:
        BadDataError: The plan no longer has these terms; nothing was changed.
    """
    request = load(team, request_id)
    if request is None or request.status != "approved" or request.terms != before:
        raise BadDataError(f"the terms of request {request_id} have changed meanwhile: look at it, and try again")
    return _save(team, request, terms=terms)


def _check_answer(request: Request, status: RequestStatus, by: str, sha256: str | None) -> None:
    if (request.status, request.decided_by) == ("cancelled", SYSTEM):
        raise BadDataError(
            f"request {request.id} is cancelled: {request.from_} does not wait for it any more; nothing was changed. "
            "An agent that ended asks again once it is resumed"
        )
    if request.status != "pending":
        decided_by = f" by {request.decided_by}" if request.decided_by else ""
        raise BadDataError(f"request {request.id} is already {request.status}{decided_by}; nothing was changed")
    if by not in (request.to, OPERATOR):
        raise BadDataError(f"request {request.id} is for {request.to} to answer, not for {by}")
    if request.type not in _ANSWERS.get(status, frozenset()):
        ways = " or ".join(way for way, kinds in _ANSWERS.items() if request.type in kinds)
        raise BadDataError(f"request {request.id} is a {request.type}; it cannot be {status}, only {ways}")
    if sha256 is not None:
        require_shown(sha256, request.sha256, f"request {request.id}")


def _number(request: Request, notes: Sequence[NewNote]) -> list[Note]:
    """Return notes on the plan of a request in the order of its lines, each with an id and the lines it is about.

    Raises:
        UsageError: The request is no plan, or its plan does not have these lines.
    """
    if notes and request.type != "plan_approval":
        raise UsageError(f"request {request.id} is a {request.type}; only a plan has lines for notes")
    lines, first = lines_of(request.plan), len(notes_in(request.payload)) + 1
    for note in notes:
        if not 1 <= note.line <= note.end <= len(lines):
            where = f"{note.line}" if note.line == note.end else f"{note.line}-{note.end}"
            raise UsageError(f"there is no line {where}: the lines of the plan are 1 to {len(lines)}")
    # Of a key in several lines, one alone does not look like a part of it.
    lines = redaction.redact(request.plan).split("\n")
    return [
        Note(id=f"n{number}", line=each.line, end=each.end, quoted=lines[each.line - 1 : each.end], text=each.text)
        for number, each in enumerate(sorted(notes, key=lambda note: (note.line, note.end)), first)
    ]


@under_lock(_LOCK)
def close(team: TeamDirectory, request_id: str, status: RequestStatus, by: str, now: float) -> Request | None:
    """Close a pending request with the status `expired` or `cancelled`, and return it; None if it is not pending."""
    request = load(team, request_id)
    if request is None or request.status != "pending":
        return None
    return _save(team, request, status=status, decided_at=now, decided_by=by)


@under_lock(_LOCK)
def readdress(team: TeamDirectory, request_id: str, to: str) -> Request | None:
    """Ask `to` in place of the present recipient, and return the request; None if it is closed or does not exist."""
    request = load(team, request_id)
    if request is None or request.status != "pending":
        return None
    return request if request.to == to else _save(team, request, to=to)


def cancel_requests_of(team: TeamDirectory, name: str, now: float) -> list[Request]:
    """Cancel the pending requests of an agent that ended, and shutdown requests to it; return the cancelled ones.

    Plans that wait for its review stay open. So do reviews of its work, because the work is done.
    """
    mine = [
        each
        for each in pending(team)
        if (name == each.from_ and each.type != "task_review") or (name == each.to and each.type == "shutdown")
    ]
    closed = (close(team, request.id, "cancelled", SYSTEM, now) for request in mine)
    return [request for request in closed if request is not None]


def _save(team: TeamDirectory, request: Request, **changes: Any) -> Request:
    saved = request.replace(**changes, rev=request.rev + 1)
    team.request(request.id).overwrite(saved, durable=True)
    return saved


# ------------------------------------------------------------------------------------------- requests with their mail


def ask(  # noqa: PLR0913  each is a field of the request
    team: TeamDirectory,
    request_id: str,
    kind: RequestType,
    author: str,
    to: str,
    payload: dict[str, JsonValue],
    now: float,
    *,
    supersedes: str | None = None,
    answers: Mapping[str, str] = MappingProxyType({}),
    by_mail: bool = True,
) -> Request:
    """Open a request, notify `to` unless `by_mail` is False, and return the request.

    If the id exists, the existing request is returned, and is pending again if it was cancelled because its worker had
    ended. A pending request that this one `supersedes` is cancelled. A plan gets the notes on the plan that it
    supersedes, with the `answers` to them by the id of the note.

    Raises:
        UsageError: There is no note with the id of an answer.
        BadDataError: The file of a request is damaged.
    """
    before = load(team, supersedes) if supersedes is not None else None
    require_notes(before, answers)
    notes = carry_notes(before, str(payload.get("plan", "")), answers) if before is not None else []
    if notes:
        # In the payload, so that a yes is bound to what was shown of them.
        payload = {**payload, "notes": [note.as_dict() for note in notes]}
    request = _open(
        team,
        Request(
            id=request_id, type=kind, from_=author, to=to, payload=payload, supersedes=supersedes, created_at=now,
        ),
    )  # fmt: skip
    if by_mail:
        mailbox.send(team, mail_of(request, now), durable=True)
    return request


def require_notes(before: Request | None, answers: Iterable[str]) -> None:
    """Refuse answers to notes that the plan `before` does not have. `answers` are the ids of the notes.

    Raises:
        UsageError: There is no note with such an id.
    """
    known = [note.id for note in [*notes_in(before.payload), *before.notes]] if before is not None else []
    if unknown := [ident for ident in answers if ident not in known]:
        raise UsageError(f"answers: there is no note {', '.join(unknown)}; notes: {', '.join(known) or 'none'}")


def mail_of(request: Request, ts: float) -> Message:
    """Return the mail that announces a request to its recipient."""
    text = str(request.payload.get(_WORD[request.type], ""))
    if request.type == "permission":
        text = as_run(text)
    if request.type == "task_review" and request.to != OPERATOR:
        text += f"\n\n{request.payload.get('diff', '')}"
    return mailbox.compose(
        request.from_, request.to, f"{request.type}_request", text,
        ident=ask_id(request), ts=ts, metadata={"request_id": request.id},
    )  # fmt: skip


def respond(
    team: TeamDirectory, request_id: str, status: RequestStatus, by: str, now: float, **answer: Unpack[Decision]
) -> Request:
    """Answer a request and notify its author; return the request.

    Raises:
        BadDataError: The answer changed nothing; the message says why.
        UsageError: A note is on lines that the plan does not have.
    """
    request = decide(team, request_id, status, by, now, **answer)
    if request.type == "task_review" and roster.load(team).member(request.from_) is None:
        # The owner of the work was removed meanwhile; no other request survives that.
        return request
    approve = None if status == "answered" else status == "approved"
    mailbox.send(
        team,
        mailbox.compose(
            by, request.from_, f"{request.type}_response", request.said or status,
            ident=mailbox.derived_id(request_id, "answer"), ts=now,
            metadata={"request_id": request_id, "approve": approve, "feedback": answer.get("feedback")},
        ),
        durable=True,
    )  # fmt: skip
    return request


def release(team: TeamDirectory, request: Request, terms: Terms, steps: Sequence[int], now: float) -> Request:
    """Give an approved plan `terms` in which these steps are no longer held, and tell its agent; return the request.

    A repeated call changes nothing.

    Raises:
        BadDataError: Its terms have changed meanwhile; nothing was changed.
    """
    if request.terms is not None and request.terms != terms:
        request = change_terms(team, request.id, request.terms, terms)
    numbers = ", ".join(map(str, steps))
    which, they = (f"Steps {numbers}", "them") if len(steps) > 1 else (f"Step {numbers}", "it")
    still = f" Still held: {', '.join(map(str, terms.hold))}." if terms.hold else ""
    mailbox.send(
        team,
        mailbox.compose(
            OPERATOR, request.from_, "message",
            f"{which} of your plan {request.id}: I release {they}. Do {they} before your result.{still}",
            ident=mailbox.derived_id(request.id, f"released {numbers}"), ts=now,
            metadata={"request_id": request.id, "released": [*steps]},
        ),
        durable=True,
    )  # fmt: skip
    return request


def ineffective_reason(message: Message, request: Request | None) -> str | None:
    """Return why a response decides nothing; None if it reports a decision, or is not a response.

    `request` is the one that the message names, None if there is none. The state in its file is what counts.
    """
    if not message.type.endswith("_response"):
        return None
    ident = message.metadata.get("request_id")
    if request is None:
        return f"there is no request {ident}"
    if message.type != f"{request.type}_response" or message.to != request.from_:
        return f"{ident} is a {request.type} request of {request.from_}"
    if request.status == "pending":
        return f"{ident} still waits for its answer"
    if message.id != response_id(request) or message.from_ != request.decided_by:
        return f"{ident} is {request.status}" + (f" by {request.decided_by}" if request.decided_by else "")
    return None


def judge_effect(team: TeamDirectory) -> Callable[[Message], str | None]:
    """Return a function that does what `ineffective_reason` does, for any message of the team.

    The function reads the requests once, at the first response. For a damaged request it returns None.
    """

    @cache
    def known() -> tuple[dict[str, Request], set[str]]:
        intact = {request.id: request for request in load_all(team)}
        return intact, {key.name.rpartition("/")[2] for key in cached_folder(team.requests).damaged}

    def judge(message: Message) -> str | None:
        named = str(message.metadata.get("request_id"))
        if not message.type.endswith("_response") or f"{named}.json" in known()[1]:
            return None
        return ineffective_reason(message, known()[0].get(named))

    return judge


def pending_shutdown(team: TeamDirectory, name: str, now: float) -> Request | None:
    """Return the newest pending request that asks `name` to shut down, None if there is none; expire old ones."""
    newest = None
    for request in pending(team):
        if request.type != "shutdown" or request.to != name:
            continue
        if now - request.created_at > SHUTDOWN_TIMEOUT:
            close(team, request.id, "expired", "system", now)
        else:
            newest = request
    return newest


def answer_id(name: str, answer: Answer) -> str:
    """Return the id of the mail with an agent's answer, which is the same each time the mail is sent."""
    # An assignment that a limit stopped may be answered again in the same run.
    stop = [answer.ts] if answer.held else []
    return mailbox.derived_id(name, "answer", answer.run, answer.assignment, *stop)


def ask_id(request: Request) -> str:
    """Return the id of the mail that announces a request."""
    # Of a review that the operator takes over, there are two.
    return mailbox.derived_id(request.id, "ask" if request.type != "task_review" else f"ask {request.to}")


def question_id(agent: str, call: str) -> str:
    """Return the id of the request for a question to the operator, which an agent asks with the tool call `call`."""
    return f"question-{mailbox.derived_id(agent, call)[:12]}"


def response_id(request: Request) -> str:
    """Return the id of the mail that contains the decision on a request."""
    return mailbox.derived_id(request.id, "answer")


def only_operator_answers(config: Config, team: TeamDirectory, lead_is_alive: Callable[[], bool]) -> frozenset[str]:
    """Return the names of recipients whose requests only the operator can answer.

    The lead is among them while it does not review plans, or is not running (`lead_is_alive`).
    """
    own = operator_mailboxes(config.names)
    return own if lead_is_alive() and roster.lead_reviews(config, team) else own | {config.lead}
