"""Requests that Claude Code makes of its own user or lead: they are shown here and answered there.

Requests that the user can answer here are those of hooks (`gate`).
"""

from collections.abc import Callable, Iterable
from typing import Any

from msgspec import field

from crewboard.attach import formats, places
from crewboard.attach.transcripts import AgentState
from crewboard.names import OPERATOR, SYSTEM
from crewboard.protocol import requests
from crewboard.records.base import JsonValue, Record, first_line
from crewboard.records.events import describe_call
from crewboard.records.requests import RequestStatus
from crewboard.store import mailbox
from crewboard.store.layout import TeamDirectory

_ANSWERED_IN = "answered_in"
"""The key in the payload of a request that can be answered in that program only (`Request.answered_in`)."""

_MAX_SUMMARY = 200


class Plan(Record):
    """A plan that a lead has not answered yet."""

    author: str
    text: str
    at: float


class AsksState(Record):
    """The open ones: plans by the id of their request, and the id of the prompt in the lead's terminal."""

    plans: dict[str, Plan] = field(default_factory=dict)
    prompt: str = ""


class Asks:
    """The questions of one team."""

    def __init__(self, team: TeamDirectory, clock: Callable[[], float]) -> None:
        self._team = team
        self._clock = clock
        self.state = AsksState()

    def note_session(self, session: formats.Session, lead: AgentState, agents: Iterable[AgentState]) -> None:
        """Show the prompt for a permission that the lead's terminal shows, and close the one that it showed before."""
        waits = session.status == "waiting"
        lead.waiting_for = (session.waiting_for or "an answer in its terminal") if waits else None
        prompt = mailbox.derived_id("prompt", session.ident, session.since)[:24] if waits else ""
        if self.state.prompt and self.state.prompt != prompt:
            requests.close(self._team, f"prompt-{self.state.prompt}", "cancelled", SYSTEM, self._clock())
            self.state.prompt = ""
        # A hook, or a teammate in a pane, may have asked for it already.
        known = self.state.prompt or any(r.type == "permission" for r in requests.pending(self._team))
        if not prompt or known:
            return
        self.state.prompt = prompt
        # Nothing says which agent the prompt is about: most likely the one that began a call last.
        asking = [each for each in agents if each.kind != "tmux" and not each.ended and each.open]
        agent = max(asking, key=lambda each: max(call.ts for call in each.open.values()), default=None)
        call = max(agent.open.values(), key=lambda each: each.ts) if agent is not None else None
        self._ask(
            f"prompt-{prompt}", (agent or lead).name, call.name if call else "a tool", call.summary if call else ""
        )

    def ask_permission(self, author: str, frame: dict[str, Any]) -> None:
        """Show what a teammate in a pane asks its lead's user to permit."""
        given = frame.get("input")
        summary = first_line(describe_call("", given), _MAX_SUMMARY) if isinstance(given, dict) else ""
        self._ask(_request_id(frame), author, str(frame.get("tool_name") or "a tool"), summary)

    def _ask(self, ident: str, author: str, tool: str, summary: str) -> None:
        payload: dict[str, JsonValue] = {"tool": tool, "summary": summary, _ANSWERED_IN: places.PROGRAM}
        requests.open_request(self._team, ident, "permission", author, OPERATOR, payload, self._clock())

    def submit_plan(self, author: str, frame: dict[str, Any], ts: float) -> None:
        """Note a plan. It becomes a request when its lead, which is no user's need, has answered it."""
        text = str(frame.get("planContent") or "")[: formats.MAX_TEXT]
        self.state.plans[_request_id(frame)] = Plan(author=author, text=text, at=ts)

    def note_answer(self, by: str, frame: dict[str, Any]) -> None:
        """Record what was decided: about a plan by the lead, about a permission by the user at its terminal."""
        ident = _request_id(frame)
        plan = self.state.plans.pop(ident, None)
        asked = requests.load_all(self._team)
        # A hook may have asked about the same plan before, so that it is on the board already.
        if plan is not None and not any((r.from_, r.payload.get("plan")) == (plan.author, plan.text) for r in asked):
            payload: dict[str, JsonValue] = {"plan": plan.text, _ANSWERED_IN: places.PROGRAM}
            requests.open_request(self._team, ident, "plan_approval", plan.author, by, payload, plan.at)
        request = requests.load(self._team, ident)
        if request is None or request.status != "pending":
            return
        approved = frame.get("approved") is True or frame.get("subtype") == "success"
        said = next((frame[key] for key in ("feedback", "error") if isinstance(frame.get(key), str)), None)
        status: RequestStatus = "approved" if approved else "rejected"
        requests.decide(self._team, ident, status, request.to, self._clock(), feedback=said)

    def close_of(self, author: str) -> None:
        """Close what an agent asked that works again: the answer was not seen."""
        for request in requests.pending(self._team):
            if request.from_ == author and request.answered_in is not None:
                requests.close(self._team, request.id, "cancelled", SYSTEM, self._clock())


def _request_id(frame: dict[str, Any]) -> str:
    return f"frame-{mailbox.derived_id(frame.get('requestId') or frame.get('request_id'))[:24]}"
