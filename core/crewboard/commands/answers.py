"""Answers to requests. The first valid one wins; one that changes nothing is an error that says why."""

import re

from crewboard.commands.cli_hint import command_for
from crewboard.commands.context import Team
from crewboard.errors import BadDataError, UsageError
from crewboard.names import OPERATOR
from crewboard.protocol import approvals, requests
from crewboard.records import REQUEST_ID_RULE, Request, RequestStatus

REQUEST_ID = re.compile(REQUEST_ID_RULE)
"""What is no id cannot name a file."""


_MAX_LISTED = 5
"""Candidates that are named where the beginning of an id does not say which is meant."""


def find(team: Team, beginning: str) -> str:
    """The id of a request: `beginning` if there is one of that id, else the pending one that begins so.

    The beginning is for people; a lead must name a request whole.

    Raises:
        BadDataError: None does, or several do; names those that wait.
    """
    if not REQUEST_ID.fullmatch(beginning) or not team.directory.exists():
        raise BadDataError(f"there is no request {beginning}; `{command_for(team, 'requests')}` lists what waits")
    if requests.load(team.directory, beginning) is not None:
        return beginning
    waiting = [request.id for request in requests.pending(team.directory)]
    found = [ident for ident in waiting if ident.startswith(beginning) and team.by == OPERATOR]
    if len(found) > 1:
        raise BadDataError(f"{beginning} may be {_list_ids(found)}: say more of it")
    if not found:
        raise BadDataError(f"there is no request {beginning}; {_list_ids(waiting)} waits for an answer")
    return found[0]


def _list_ids(idents: list[str]) -> str:
    more = [f"{len(idents) - _MAX_LISTED} more"] if len(idents) > _MAX_LISTED else []
    return " or ".join([*idents[:_MAX_LISTED], *more]) or "nothing"


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
    return approvals.respond(
        team.directory,
        find(team, request_id),
        status,
        team.by,
        team.now(),
        feedback=feedback,
        sha256=sha256,
        edited=edited,
    )
