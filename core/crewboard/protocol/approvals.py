"""Open and answer requests: the file of a request, and the mail that announces it.

The file is written first and alone decides; the ids of the mail are derived from the request's, so that a writer who
was killed in between may do it all again.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Unpack

from crewboard.errors import UsageError
from crewboard.names import OPERATOR
from crewboard.protocol import requests
from crewboard.protocol.requests import Decision
from crewboard.records.base import JsonValue
from crewboard.records.events import Answer
from crewboard.records.messages import Message
from crewboard.records.requests import Request, RequestStatus, RequestType, carry_notes, notes_in
from crewboard.store import mailbox, roster
from crewboard.store.layout import TeamDirectory
from crewboard.untrusted import as_run

SHUTDOWN_TIMEOUT = 30.0
"""Seconds after which an unanswered shutdown request expires."""

_WORD: dict[RequestType, str] = {
    "plan_approval": "plan", "shutdown": "reason", "permission": "summary", "question": "question",
    "task_review": "summary",
}  # fmt: skip
"""The part of a payload that its mail carries as text, by type of request."""


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
) -> Request:
    """Open a request and notify `to`; asking again with the same id changes nothing.

    A plan carries the notes on the one that it `supersedes`, with the `answers` to them by the id of the note.

    Raises:
        UsageError: There is no note with the id of an answer.
    """
    before = requests.load(team, supersedes) if supersedes is not None else None
    require_notes(before, answers)
    notes = carry_notes(before, str(payload.get("plan", "")), answers) if before is not None else []
    if notes:
        # In the payload, so that a yes is bound to what was shown of them.
        payload = {**payload, "notes": [note.as_dict() for note in notes]}
    request = requests.open_request(team, request_id, kind, author, to, payload, now, supersedes=supersedes)
    mailbox.send(team, mail_of(request, now), durable=True)
    return request


def require_notes(before: Request | None, answers: Iterable[str]) -> None:
    """Refuse answers to notes that the plan `before` does not have; they are named by id.

    Raises:
        UsageError: There is no note with such an id.
    """
    known = [note.id for note in [*notes_in(before.payload), *before.notes]] if before is not None else []
    if unknown := [ident for ident in answers if ident not in known]:
        raise UsageError(f"answers: there is no note {', '.join(unknown)}; notes: {', '.join(known) or 'none'}")


def mail_of(request: Request, ts: float) -> Message:
    """Return the mail that announces a request."""
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
    """Answer a request and notify its sender.

    Raises:
        BadDataError: The answer changed nothing; says why.
        UsageError: A note is on lines that the plan does not have.
    """
    request = requests.decide(team, request_id, status, by, now, **answer)
    if request.type == "task_review" and roster.load(team).member(request.from_) is None:
        # The owner of the work was removed meanwhile; no other request survives that.
        return request
    approve = None if status == "answered" else status == "approved"
    mailbox.send(
        team,
        mailbox.compose(
            by, request.from_, f"{request.type}_response", request.said or status,
            ident=_mail_id(request_id, "answer"), ts=now,
            metadata={"request_id": request_id, "approve": approve, "feedback": answer.get("feedback")},
        ),
        durable=True,
    )  # fmt: skip
    return request


def ineffective_reason(message: Message, request: Request | None) -> str | None:
    """Return why a response decides nothing; None if it reports a decision, or is no response.

    `request` is the one that it names, if there is one: what counts is the state in its file.
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


def pending_shutdown(team: TeamDirectory, name: str, now: float) -> Request | None:
    """Return the newest open request that `name` shut down. Expire those that waited too long."""
    newest = None
    for request in requests.pending(team):
        if request.type != "shutdown" or request.to != name:
            continue
        if now - request.created_at > SHUTDOWN_TIMEOUT:
            requests.close(team, request.id, "expired", "system", now)
        else:
            newest = request
    return newest


def answer_id(name: str, answer: Answer) -> str:
    """Return the id of the mail that carries an agent's answer, the same however often it is sent."""
    # An assignment that a limit stopped may be answered again in the same run.
    stop = [answer.ts] if answer.held else []
    return mailbox.derived_id(name, "answer", answer.run, answer.assignment, *stop)


def ask_id(request: Request) -> str:
    """Return the id of the mail that announces a request."""
    # Of a review that the operator takes over, there are two.
    return _mail_id(request.id, "ask" if request.type != "task_review" else f"ask {request.to}")


def response_id(request: Request) -> str:
    """Return the id of the mail that contains the decision on a request."""
    return _mail_id(request.id, "answer")


def _mail_id(request_id: str, part: str) -> str:
    return mailbox.derived_id(request_id, part)
