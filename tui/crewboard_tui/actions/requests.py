"""Answer a request, and describe what happened to it after its page was opened."""

from collections.abc import Sequence
from typing import Unpack

from crewboard import Request, TeamView
from crewboard.commands import answers
from crewboard.protocol import reviews
from crewboard.protocol.requests import Decision
from crewboard.readmodel.mail import question_in
from crewboard.records.requests import NewNote
from crewboard_tui.actions.registry import Action, Selection
from crewboard_tui.context import AppContext
from crewboard_tui.keymap.bindings import Pressed, default_key
from crewboard_tui.render.formats import format_clock


class RequestActions:
    """The commands that answer one request, in the version that its page shows; they run in a thread.

    `actions` contains the action that opens the next need.
    """

    def __init__(self, context: AppContext, request: Request) -> None:
        self._context = context
        self.request = request
        self.actions = (Action("request.next", self._open_next, self._why_no_next),)

    def approve(self, **answer: Unpack[Decision]) -> str:
        """Say yes, to the plan as it is `edited` if that is given, with `terms` and `notes` on its lines."""
        request, edited, terms = self.request, answer.get("edited"), answer.get("terms")
        answer["sha256"] = request.sha256
        answers.approve(self._context.team, request.id, **answer)
        if edited is not None and self._context.snapshot.view.attached is not None:
            return f"sent back: {request.from_} reads your version, and submits it again"
        then = f"{request.from_} continues"
        if request.type == "task_review":
            then = f"task #{request.payload.get('task', '')} is completed"
        how = "" if edited is None else " as you edited it"
        how += " with terms" if terms is not None and not terms.is_empty else ""
        return "; ".join([f"approved{how}: {then}", *reviews.what_changed(self._context.team.directory, request)])

    def approve_with_rule(self, covers: str, rule_for: answers.RuleFor) -> str:
        """Say yes, and from now on to everything that the rule `covers`."""
        _, rule = answers.approve_with_rule(
            self._context.team, self.request.id, sha256=self.request.sha256, rule_for=rule_for
        )
        return f"approved, and from now on {covers}; {self._context.key('app.rules')} lists and revokes {rule.id}"

    def reject(self, feedback: str, notes: Sequence[NewNote] = ()) -> str:
        """Say no, or no for now with a question, and with `notes` on lines of the plan."""
        answers.reject(self._context.team, self.request.id, feedback, sha256=self.request.sha256, notes=notes)
        asks = question_in(feedback) is not None
        return f"asked back: {self.request.from_} reads it" if asks else f"denied: {self.request.from_} reads why"

    def answer(self, text: str) -> str:
        """Answer a question."""
        answers.answer(self._context.team, self.request.id, text)
        return f"answered: {self.request.from_} continues"

    # ------------------------------------------------------------------------------------------------------- next

    @property
    def _waits_instead(self) -> Request | None:
        """Return the revision that replaced this one, while it is pending."""
        newest = newest_of(self.request, self._context.snapshot.view)
        return newest if newest is not None and newest.status == "pending" else None

    def _why_no_next(self, _: Selection) -> str | None:
        others = any(need.request_id != self.request.id for need in self._context.snapshot.view.needs)
        return None if self._waits_instead or others else "nothing else needs you"

    async def _open_next(self, _: Selection) -> None:
        if (newest := self._waits_instead) is not None:
            self._context.navigator.open_request(newest)
        else:
            await self._context.navigator.open_next_need()


def outcome_of(seen: Request, view: TeamView, pressed: Pressed = default_key) -> str | None:
    """Return what has become of a request since it was opened, and the key that helps; None while it is pending."""
    newest = newest_of(seen, view)
    if newest is not None and newest.status == "pending":
        shows, opens = pressed("request.compare"), pressed("request.next")
        return f" replaced by revision {newest.id}: {shows} shows what changed, {opens} opens it "
    if newest is not None:
        return f" replaced by revision {newest.id}, which is {newest.status} "
    now = next((request for request in view.asked if request.id == seen.id), None)
    if now is None:
        return None
    if now.status != "pending":
        by = f" by {'you' if now.decided_by == 'operator' else now.decided_by}" if now.decided_by else ""
        return f" {now.status}{by} at {format_clock(now.decided_at or 0)} "
    if now.sha256 != seen.sha256:
        return f" it has changed since you opened it: leave with {pressed('view.back')} and open it again "
    return None


def newest_of(request: Request, view: TeamView) -> Request | None:
    """Return the newest revision that replaced a request; None if the request is the newest itself."""
    successors = {each.supersedes: each for each in view.asked if each.supersedes}
    newest = None
    seen = {request.id}
    while (after := successors.get((newest or request).id)) is not None and after.id not in seen:
        seen.add(after.id)
        newest = after
    return newest


def revision_of(request: Request, view: TeamView) -> int:
    """Return which revision of a plan a request is, counted from 1."""
    by_id = {each.id: each for each in view.asked}
    seen = {request.id}
    number = 1
    before = request.supersedes
    while before is not None and before not in seen and before in by_id:
        seen.add(before)
        number += 1
        before = by_id[before].supersedes
    return number
