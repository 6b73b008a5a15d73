"""Answers to requests. The first valid one wins; one that changes nothing is an error that says why."""

import re

from crewboard.errors import BadDataError, UsageError
from crewboard.records import REQUEST_ID_RULE, Request, RequestStatus
from crewboard.store import agreements
from crewboard.team.context import Team

REQUEST_ID = re.compile(REQUEST_ID_RULE)
"""What is no id cannot name a file."""


def approve(
    team: Team,
    request_id: str,
    *,
    feedback: str | None = None,
    sha256: str | None = None,
    edited: str | None = None,
) -> Request:
    """Say yes to a plan, a permission or a shutdown.

    Raises:
        BadDataError: The answer changed nothing; says why.
    """
    return _respond(team, request_id, "approved", feedback, sha256=sha256, edited=edited)


def reject(team: Team, request_id: str, feedback: str, *, sha256: str | None = None) -> Request:
    """Say no, and why.

    Raises:
        BadDataError: The answer changed nothing; says why.
        UsageError: No word why.
    """
    if not feedback.strip():
        raise UsageError("say why: a rejection without feedback helps nobody")
    return _respond(team, request_id, "rejected", feedback, sha256=sha256)


def answer(team: Team, request_id: str, text: str) -> Request:
    """Answer a question.

    Raises:
        BadDataError: The answer changed nothing; says why.
    """
    if not text.strip():
        raise UsageError("the answer is empty")
    return _respond(team, request_id, "answered", text)


def _respond(
    team: Team,
    request_id: str,
    status: RequestStatus,
    feedback: str | None,
    *,
    sha256: str | None = None,
    edited: str | None = None,
) -> Request:
    if not REQUEST_ID.fullmatch(request_id) or not team.directory.exists():
        raise BadDataError(f"there is no request {request_id}; `crewboard requests` lists what waits")
    return agreements.respond(
        team.directory,
        request_id,
        status,
        team.by,
        team.now(),
        feedback=feedback,
        sha256=sha256,
        edited=edited,
    )
