"""Answer requests: plans, with the terms of an approval, permissions, shutdowns, questions and reviews of work.

The first valid answer counts; for one that changes nothing, BadDataError says why. Who may answer
what is decided in `protocol/requests.py`.
"""

import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from types import MappingProxyType
from typing import Unpack

from crewboard import agent_types
from crewboard.agent_types import AgentType
from crewboard.commands.context import Team, command_for, join_reasons, require_price
from crewboard.errors import BadDataError, UsageError
from crewboard.names import OPERATOR
from crewboard.protocol import collisions, requests, reviews
from crewboard.protocol.requests import Decision
from crewboard.records.agents import Terms
from crewboard.records.base import JsonValue
from crewboard.records.requests import REQUEST_ID_RULE, NewNote, Request, RequestStatus, steps_of
from crewboard.store import roster

REQUEST_ID = re.compile(REQUEST_ID_RULE)
"""Matches valid ids of requests; checked before an id becomes part of a path."""


_ACTS: dict[RequestStatus, str] = {"approved": "approve", "rejected": "reject", "answered": "answer"}

_MAX_LISTED = 5
"""The most ids that an error message lists."""


def find(team: Team, beginning: str) -> str:
    """Return the id of a request: `beginning` if there is such a request, else the one whose id begins with it.

    Closed requests count only if no pending one matches. Only the operator may abbreviate; a lead must give the whole
    id.

    Raises:
        UsageError: The id is empty.
        BadDataError: No request matches, or several do; the message lists them, or the pending ones. Or only a damaged
            one matches.
    """
    if not beginning.strip():
        raise UsageError(f"the id of the request is empty; `{command_for(team, 'requests')}` lists the pending ones")
    if not REQUEST_ID.fullmatch(beginning) or not team.directory.exists():
        raise BadDataError(f"there is no request {beginning}; `{command_for(team, 'requests')}` lists the pending ones")
    if requests.load(team.directory, beginning) is not None:
        return beginning
    known = requests.load_all(team.directory)
    waiting = [request.id for request in known if request.status == "pending"]
    closed = [request.id for request in known if request.status != "pending"]
    matches = [[ident for ident in idents if ident.startswith(beginning)] for idents in (waiting, closed)]
    found = (matches[0] or matches[1]) if team.by == OPERATOR else []
    if len(found) > 1:
        raise BadDataError(f"{beginning} may be {_list_ids(found)}; give more characters of the id")
    if not found:
        for name in requests.damaged(team.directory) if team.by == OPERATOR else ():
            ident = name.rpartition("/")[2].removesuffix(".json")
            if ident.startswith(beginning):
                # Says that it is damaged.
                requests.load(team.directory, ident)
        theirs = [request.id for request in known if request.id in waiting and request.from_ == beginning]
        told = (
            f"{beginning} is an agent, and asks in {_list_ids(theirs)}" if theirs else f"pending: {_list_ids(waiting)}"
        )
        raise BadDataError(f"there is no request {beginning}; {told}")
    return found[0]


def _list_ids(idents: list[str]) -> str:
    more = [f"{len(idents) - _MAX_LISTED} more"] if len(idents) > _MAX_LISTED else []
    return " or ".join([*idents[:_MAX_LISTED], *more]) or "none"


def approve(team: Team, request_id: str, **answer: Unpack[Decision]) -> Request:
    """Approve a plan, a permission, a shutdown, or the work on a task; return the decided request.

    `answer` has the rest of the decision, see `Decision`. Its `terms` are for a plan, and hold until the result.

    Raises:
        BadDataError: The answer changed nothing; the message says why.
        UsageError: The terms do not fit the plan or its agent, or an agent gives them; a note is on lines that the plan
            does not have; there are both notes and an `edited` plan; or the edited plan is empty.
    """
    edited, terms = answer.get("edited"), answer.get("terms")
    # Of an empty one, the agent would read nothing, and carry out its own.
    if edited is not None and not edited.strip():
        raise UsageError("the edited plan is empty: deny the plan if nothing of it shall be done")
    if answer.get("notes") and edited is not None:
        raise UsageError("notes are on lines of the plan as it came: send them, or the edited plan, but not both")
    if terms is not None:
        request_id = find(team, request_id)
        answer["terms"] = None
    if terms is not None and not terms.is_empty:
        request = requests.load(team.directory, request_id)
        if request is None or request.type != "plan_approval":
            raise BadDataError(f"request {request_id} is no plan, and only a plan is approved with terms")
        answer["terms"] = check_terms(
            team, request.from_, request.plan if edited is None else edited, terms, request.payload
        )
    return _respond(team, request_id, "approved", **answer)


def check_terms(
    team: Team, name: str, plan: str, terms: Terms, payload: Mapping[str, JsonValue] = MappingProxyType({})
) -> Terms | None:
    """Return valid terms for a `plan` of the agent `name`, tools and steps in order; None if they change nothing.

    The returned terms also name the files and commands that only held and refused steps name, because these are denied.
    `payload` is that of the request, with the files and commands of the plan.

    Raises:
        UsageError: The terms do not fit the plan or the agent, or an agent gives them.
        BadDataError: The agent is one of Claude Code, and the terms are about more than steps.
    """
    if team.by != OPERATOR:
        raise UsageError("only the operator approves a plan with terms")
    given = {
        "asking": terms.ask, "tools": terms.tools is not None, "network": terms.network,
        "budget": terms.budget is not None,
    }  # fmt: skip
    lacks, is_attached = team.lacks(name), roster.is_attached(team.directory)
    if wrong := [what for what, is_given in given.items() if is_given and what in lacks]:
        error = BadDataError if is_attached else UsageError
        raise error(
            f"{name} takes no terms about {', '.join(wrong)}: {join_reasons(wrong, lacks)}; nothing was changed"
        )
    if is_attached:
        hold, refused = _left_out(plan, terms)
        return None if terms.is_empty else Terms(hold=hold, refused=refused)
    spec = team.directory.agent(name).spec.load()
    if spec is None:
        raise UsageError(f"{name} has no spec file, so terms for it cannot be checked; approve its plan without")
    kind = agent_types.type_of(spec.type, spec.definition)
    known = agent_types.nameable_tools(kind, has_web=spec.flags.web)
    tools = terms.tools
    if tools is not None:
        # None again if they are all that it has.
        unknown = [each for each in tools if each not in known and not any(fnmatchcase(each, one) for one in known)]
        if unknown or not tools:
            why = f"{name} has no tool {', '.join(unknown)}" if unknown else "no tool is named"
            raise UsageError(f"{why}: name those that it keeps, of {', '.join(known)}")
        kept = [tool for tool in known if tool in tools]
        tools = None if len(kept) == len(known) else [*kept, *(tool for tool in tools if tool not in known)]
    if terms.network and not kind.executes:
        raise UsageError(f"{name} is of type {kind.name}, which runs no commands: the network would change nothing")
    if terms.budget is not None:
        require_price(team, terms.budget, spec.model)
    hold, refused = _left_out(plan, terms)
    denied = collisions.denied_by_steps(plan, payload, str(workspace_of(team, name)), {*hold, *refused})
    checked = terms.replace(tools=tools, hold=hold, refused=refused, denied=denied)
    return None if checked.is_empty else checked


def release(team: Team, request_id: str, steps: Sequence[int]) -> Request:
    """Approve steps that were held when their plan was approved, given by number, and tell the agent. Idempotent.

    Return the request.

    Raises:
        BadDataError: There is no such plan, it is not approved, or the work on it is over; nothing was changed.
        UsageError: A step is not held, or an agent gives the command.
    """
    if team.by != OPERATOR:
        raise UsageError("only the operator releases a step of a plan")
    request = requests.load(team.directory, find(team, request_id))
    if request is None or request.type != "plan_approval":
        raise BadDataError(f"request {request_id} is no plan, and only a plan has steps")
    if request.status != "approved":
        hint = "; approve it, with --hold for what shall wait" if request.status == "pending" else ""
        raise BadDataError(f"plan {request.id} is {request.status}, so no step of it is held{hint}")
    terms = request.terms or Terms()
    if unheld := [step for step in steps if step not in [*terms.hold, *terms.released]]:
        held = f"held: {', '.join(map(str, terms.hold))}" if terms.hold else "none is held"
        raise UsageError(f"step {', '.join(map(str, unheld))} of plan {request.id} is not held; {held}")
    if not {*steps} <= {*terms.released}:
        sends = command_for(team, f"send {request.from_} 'Do step …'")
        if roster.is_attached(team.directory):
            raise BadDataError(
                f"a step of {request.from_}, an agent of Claude Code, is held by an instruction alone: `{sends}` tells "
                "it to do the step; nothing was changed"
            )
        status = team.directory.agent(request.from_).status.load_or_none()
        in_force = status.terms.request if status is not None and status.terms is not None else None
        # It may not have taken in the approval yet.
        may_begin = status is None or (in_force is None and status.waiting_for == request.id)
        if in_force != request.id and not may_begin:
            raise BadDataError(
                f"the work of {request.from_} on plan {request.id} is over, and its terms with it: `{sends}` gives it "
                "the step as new work; nothing was changed"
            )
    chosen = sorted({*steps})
    hold = [step for step in terms.hold if step not in chosen]
    plan, root = request.plan, str(workspace_of(team, request.from_))
    denied = collisions.denied_by_steps(plan, request.payload, root, {*hold, *terms.refused})
    changed = terms.replace(hold=hold, denied=denied, released=sorted({*terms.released, *chosen}))
    released = requests.release(team.directory, request, changed, chosen, team.now())
    team.note("release", request.from_, f"{request.id}, step {', '.join(map(str, chosen))}")
    return released


def workspace_of(team: Team, name: str) -> Path:
    """Return the folder in which an agent works: the root, or the same folder of its checkout."""
    spec = team.directory.agent(name).spec.load_or_none()
    if spec is None or spec.worktree is None:
        return team.directory.root
    return team.directory.worktree(name) / spec.worktree.folder


def _left_out(plan: str, terms: Terms) -> tuple[list[int], list[int]]:
    """Return the numbers of the held and of the refused steps, in order.

    Raises:
        UsageError: The plan has no such step, or a step is both; or no step would be left.
    """
    steps = steps_of(plan)
    hold, refused = sorted({*terms.hold}), sorted({*terms.refused})
    left_out = {*hold, *refused}
    if left_out and not steps:
        raise UsageError(
            "the plan has no list of steps that is numbered from 1, so no step can be held; reject it "
            "with feedback, or approve it without --hold and --not"
        )
    if unknown := [number for number in sorted(left_out) if number not in steps]:
        raise UsageError(f"the plan has no step {', '.join(map(str, unknown))}: its steps are 1 to {len(steps)}")
    if both := {*hold} & {*refused}:
        raise UsageError(f"step {', '.join(map(str, sorted(both)))} is held and refused: choose one of both")
    if left_out and len(left_out) == len(steps):
        raise UsageError("each step would be held or refused: reject the plan, and say why")
    return hold, refused


def plan_overlaps(team: Team, request: Request) -> list[str]:
    """Return a sentence for each plan of another agent that names files of this plan; empty if this is no plan.

    With the setting `collisions` at `claims`, the sentence also says if the other agent holds these files until its
    result.
    """
    if request.type != "plan_approval":
        return []
    statuses = {name: team.directory.agent(name).status.load_or_none() for name in team.config.names}
    works = {name: status.work for name, status in statuses.items() if status is not None}
    pending = requests.pending(team.directory)
    found = collisions.plan_overlaps(request, works, pending, str(team.directory.root))
    claimed = team.config.collisions == "claims"
    return [
        each.describe() + (f"; {each.agent} holds them until its result" if claimed and each.approved else "")
        for each in found
    ]


def _respond(team: Team, request_id: str, status: RequestStatus, **answer: Unpack[Decision]) -> Request:
    ident, now = find(team, request_id), team.now()
    asked = requests.load(team.directory, ident)
    if asked is not None and asked.answered_in is not None:
        raise BadDataError(f"request {ident} can be answered in Claude Code's own terminal only; nothing was changed")
    try:
        answer["operator"] = team.operator
        decided = requests.respond(team.directory, ident, status, team.by, now, **answer)
    except BadDataError:
        # It may be decided without its effect, if the process that decided it was killed.
        reviews.reconcile(team.directory, now)
        raise
    reviews.settle(team.directory, decided, now)
    how = ", edited" if answer.get("edited") is not None else ""
    how += f", with {words}" if (words := words_of_terms(team, decided)) else ""
    team.note(_ACTS[status], decided.from_, decided.id + how)
    return decided


def words_of_terms(team: Team, request: Request) -> str:
    """Return the terms of a request's approval as one line; empty if it has none."""
    if request.terms is None:
        return ""
    return agent_types.describe_terms(request.terms, _asking_type(team, request))


def tools_lacking(team: Team, request: Request) -> str:
    """Return a sentence about tools that a plan needs and the terms of its approval take away; empty if none."""
    kind, plan = _asking_type(team, request), request.payload
    return agent_types.tools_a_plan_lacks(request.terms, kind, plan.get("files"), plan.get("commands")) if kind else ""


def _asking_type(team: Team, request: Request) -> AgentType | None:
    """Return the type of the agent that asks; None if it is not known."""
    spec = team.directory.agent(request.from_).spec.load_or_none()
    return agent_types.known_type(spec.type, spec.definition) if spec is not None else None


def reject(
    team: Team, request_id: str, feedback: str, *, sha256: str | None = None, notes: Sequence[NewNote] = ()
) -> Request:
    """Reject a plan, a permission, a shutdown, or the work on a task, with a reason; a plan also with `notes` alone.

    With `sha256`, only the request with this digest, as it was shown, is rejected. Return the decided request.

    Raises:
        BadDataError: The answer changed nothing; the message says why.
        UsageError: There is neither feedback nor a note, or a note is on lines that the plan does not have.
    """
    if not (feedback.strip() or notes):
        raise UsageError("a rejection needs feedback: say what should be different")
    said = feedback if feedback.strip() else None
    return _respond(team, request_id, "rejected", feedback=said, sha256=sha256, notes=notes)


def review_plan(team: Team, request_id: str, *, approve: bool, feedback: str | None = None) -> Request:
    """Approve or reject a plan, with or without feedback; return the decided request.

    Raises:
        BadDataError: The answer changed nothing; the message says why.
        UsageError: The request is not a plan.
    """
    request = requests.load(team.directory, find(team, request_id))
    if request is not None and request.type != "plan_approval":
        raise UsageError(f"request {request_id} is not a plan")
    return _respond(team, request_id, "approved" if approve else "rejected", feedback=feedback)


def answer(team: Team, request_id: str, text: str) -> Request:
    """Answer a question of an agent with a text; return the decided request.

    Raises:
        BadDataError: The answer changed nothing; the message says why.
        UsageError: The answer is empty.
    """
    if not text.strip():
        raise UsageError("the answer is empty")
    return _respond(team, request_id, "answered", feedback=text)
