"""Answer a request, or several permissions at once, and describe what happened to one after its page was opened."""

from collections.abc import Callable, Iterable, Sequence
from typing import Unpack

from crewboard import Request, TeamView
from crewboard.commands import answers, rules
from crewboard.protocol import reviews
from crewboard.protocol.requests import Decision
from crewboard.records.requests import (
    NewNote,
    describe_status,
    display_decider,
    question_in,
    versions_after,
    versions_before,
)
from crewboard_tui.actions.registry import Action, Selection, aimed
from crewboard_tui.compose.composer import PromptLine
from crewboard_tui.context import AppContext
from crewboard_tui.keymap.bindings import Pressed, default_key
from crewboard_tui.render.formats import format_clock


class RequestActions:
    """The commands that answer one request, in the version that its page shows.

    They run in a thread, and return a message.

    `actions` contains the action that opens the next need.
    """

    def __init__(self, context: AppContext, request: Request) -> None:
        self._context = context
        self.request = request
        # Else it opens what the key for the next need opens, which stands in the footer.
        self.actions = (
            Action(
                "request.next", self._open_next,
                lambda _: None
                if self._waits_instead or any(need.request_id != request.id for need in context.view.needs)
                else "nothing else needs you",
                lambda _: "newer" if self._waits_instead else "",
            ),
        )  # fmt: skip

    def approve(self, **answer: Unpack[Decision]) -> str:
        """Approve the request, a plan as `edited` if that is given, with `terms` and with `notes` on its lines."""
        request, edited, terms = self.request, answer.get("edited"), answer.get("terms")
        answer["sha256"] = request.sha256
        answers.approve(self._context.team, request.id, **answer)
        if edited is not None and self._context.view.attached is not None:
            return f"sent back: {request.from_} reads your version, and submits it again"
        then = self._what_follows()
        if request.type == "task_review":
            then = f"task #{request.payload.get('task', '')} is completed"
        how = "" if edited is None else " as you edited it"
        how += " with terms" if terms is not None and not terms.is_empty else ""
        return "; ".join([f"approved{how}: {then}", *reviews.what_changed(self._context.team.directory, request)])

    def approve_with_rule(self, covers: str, rule_for: rules.RuleFor) -> str:
        """Approve the request, and add a rule that allows the same from now on.

        `covers` says in words what the rule allows.
        """
        _, rule = rules.approve_with_rule(
            self._context.team, self.request.id, sha256=self.request.sha256, rule_for=rule_for
        )
        return f"approved, and from now on {covers}; {self._context.key('app.rules')} lists and revokes {rule.id}"

    def reject(self, feedback: str, notes: Sequence[NewNote] = ()) -> str:
        """Refuse the request, or send it back with a question, with `notes` on lines of the plan."""
        answers.reject(self._context.team, self.request.id, feedback, sha256=self.request.sha256, notes=notes)
        asks = question_in(feedback) is not None
        return f"asked back: {self.request.from_} reads it" if asks else f"denied: {self.request.from_} reads why"

    def release(self, approved: Request, steps: Sequence[int]) -> str:
        """Release steps of a plan that were held when it was approved."""
        answers.release(self._context.team, approved.id, steps)
        many = "s" if len(steps) > 1 else ""
        return f"step{many} {', '.join(map(str, steps))} released: {approved.from_} reads that"

    def answer(self, text: str) -> str:
        """Answer a question with a text."""
        answers.answer(self._context.team, self.request.id, text)
        return f"answered: {self._what_follows()}"

    def _what_follows(self) -> str:
        author = self._context.view.agent(self.request.from_)
        is_paused = author is not None and (author.state == "paused" or author.is_pausing)
        name = self.request.from_
        return f"{name} is paused, and goes on with it once it continues" if is_paused else f"{name} continues"

    # ------------------------------------------------------------------------------------------------------- next

    @property
    def _waits_instead(self) -> Request | None:
        """Return the newest revision that replaced this one if it is pending, else None."""
        newest = newest_of(self.request, self._context.view)
        return newest if newest is not None and newest.status == "pending" else None

    async def _open_next(self, _: Selection) -> None:
        if (newest := self._waits_instead) is not None:
            self._context.navigator.open_request(newest)
        else:
            await self._context.navigator.open_next_need()


class MarkedPermissions:
    """The marked permissions of a list, which are answered together, each in the version in which it was marked.

    `approve` is an action; `actions` contains the action that denies. `is_unread` is called with their number before
    they are approved. It returns True if part of their text was not on the screen, and then shows a warning.
    """

    def __init__(self, context: AppContext, is_unread: Callable[[int], bool]) -> None:
        self._context = context
        self._is_unread = is_unread
        self.requests: tuple[Request, ...] = ()
        self.approve = Action(
            "request.approve", self._approve, self._why_none, lambda selection: self._label("approve", selection)
        )
        self.actions = (
            Action("request.deny", self._deny, self._why_none, lambda selection: self._label("deny", selection)),
        )

    def bind(self, view: TeamView, keys: Iterable[str]) -> None:
        """Set the marked permissions: those among the needs with these keys.

        Each stays in the version in which it was marked.
        """
        before = {request.id: request for request in self.requests}
        needs = [need for key in keys if (need := view.need(key)) is not None and need.kind == "permission"]
        found = (before.get(need.request_id or "") or view.request(need.request_id or "") for need in needs)
        self.requests = tuple(request for request in found if request is not None)

    def _chosen(self, selection: Selection) -> dict[str, Request]:
        """Return by id the permissions that are still marked: marks change before they are painted."""
        marked = {need.request_id for need in selection.needs} if selection.marked else set()
        return {request.id: request for request in self.requests if request.id in marked}

    def _why_none(self, selection: Selection) -> str | None:
        return None if self._chosen(selection) else "mark permissions first"

    def _label(self, word: str, selection: Selection) -> str:
        return aimed(word, [request.from_ for request in self._chosen(selection).values()])

    def _approve(self, selection: Selection) -> None:
        chosen = self._chosen(selection)

        def approve(request: Request) -> str:
            answers.approve(self._context.team, request.id, sha256=request.sha256)
            return f"approved: {request.from_} goes on"

        if not self._is_unread(len(chosen)):
            self._answer("approving", "approved", chosen, approve, selection)

    def _deny(self, selection: Selection) -> None:
        chosen = self._chosen(selection)

        def done(text: str) -> None:
            def deny(request: Request) -> str:
                answers.reject(self._context.team, request.id, text.strip(), sha256=request.sha256)
                return f"denied: {request.from_} reads why"

            self._answer("denying", "denied", chosen, deny, selection)

        def check(text: str) -> str | None:
            return None if text.strip() else "say why: the agents need a reason to go on"

        asking = ", ".join(dict.fromkeys(request.from_ for request in chosen.values()))
        count = "this permission" if len(chosen) == 1 else f"these {len(chosen)} permissions"
        self._context.navigator.ask(PromptLine(f"Why deny {count}?", hint=f"sent to {asking}", check=check), done)

    def _answer(
        self, label: str, done: str, chosen: dict[str, Request], answer: Callable[[Request], str], selection: Selection
    ) -> None:
        self._context.do_for_each(label, list(chosen), lambda ident: answer(chosen[ident]), done)
        selection.unmark([request.from_ for request in chosen.values()])


def outcome_of(seen: Request, view: TeamView, pressed: Pressed = default_key, operator: str = "") -> str | None:
    """Return what happened to a request since it was opened, with the key that helps; None while it is pending.

    `operator` is the user who reads it.
    """
    newest = newest_of(seen, view)
    if newest is not None and newest.status == "pending":
        shows, opens = pressed("request.compare"), pressed("request.next")
        return f" replaced by revision {newest.id}: {shows} shows what changed, {opens} opens it "
    if newest is not None:
        return f" replaced by revision {newest.id} ({describe_status(newest)}) "
    now = next((request for request in view.asked if request.id == seen.id), None)
    if now is None:
        return None
    if now.status != "pending":
        by = f" by {display_decider(now, operator)}" if now.decided_by else ""
        return f" {describe_status(now)}{by} at {format_clock(now.decided_at or 0)} "
    if now.sha256 != seen.sha256:
        return f" it has changed since you opened it: leave with {pressed('view.back')} and open it again "
    return None


def newest_of(request: Request, view: TeamView) -> Request | None:
    """Return the newest revision that replaced a request; None if the request is the newest itself."""
    return [None, *versions_after(request, view.asked)][-1]


def revision_of(request: Request, view: TeamView) -> int:
    """Return the number of a plan's revision, counted from 1."""
    return len([request, *versions_before(request, view.asked)])
