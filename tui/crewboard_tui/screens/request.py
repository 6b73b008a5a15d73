"""What the pages of a request have in common: who asks, whether it still waits, and keys that wait for the eye."""

from typing import ClassVar

from textual.binding import BindingType
from textual.events import Key

from crewboard.records import Request
from crewboard.view.fold import TeamView
from crewboard_tui import fmt, keys
from crewboard_tui.desk import Desk
from crewboard_tui.lines import Line, Span, say
from crewboard_tui.reading import Snapshot
from crewboard_tui.screens.frame import Framed
from crewboard_tui.widgets.heading import crumbs_line

BLIND_FOR = 0.3
"""Seconds for which a page takes no answer after what it shows has changed (ui.md § 1, law 4)."""

ANSWERS = frozenset({"approve", "approve_rule", "deny", "ask_back", "edit", "send"})


class RequestScreen(Framed):
    """The page of one request, as it was when it was opened: an answer binds to exactly that."""

    BINDINGS: ClassVar[list[BindingType]] = [*keys.bindings("request")]
    TITLE_WORD: ClassVar[str] = "REQUEST"

    def __init__(self, desk: Desk, request: Request) -> None:
        super().__init__(desk)
        self.seen = request
        self.fate: str | None = fate_of(request, desk.snapshot.view)
        self.settled = False

    def on_mount(self) -> None:
        self._blind()

    def heading(self, snapshot: Snapshot, width: int) -> Line:
        waiting = [need.request_id for need in snapshot.view.needs]
        at = waiting.index(self.seen.id) + 1 if self.seen.id in waiting else 0
        place = f"item {at} of {len(waiting)}  ]" if at else ""
        return crumbs_line(["Needs-you", self.seen.from_, self.title_word()], place, width)

    def title_word(self) -> str:
        """What the page is about, for the heading."""
        return self.TITLE_WORD

    def paint(self, snapshot: Snapshot) -> None:
        fate = fate_of(self.seen, snapshot.view)
        if fate != self.fate:
            self.fate = fate
            self._blind()
        self.paint_request(snapshot)

    def paint_request(self, snapshot: Snapshot) -> None:
        """Show the request."""

    def _blind(self) -> None:
        """Take no answer for a moment: a key that was meant for something else may be on its way."""
        self.settled = False
        self.set_timer(BLIND_FOR, self._settle)
        self.refresh_bindings()

    def _settle(self) -> None:
        self.settled = True
        self.refresh_bindings()

    def on_key(self, event: Key) -> None:
        """Say so when an answer came before the page was there long enough to be read."""
        if not self.settled and not self.fate and event.character in keys.of_actions("request", ANSWERS):
            self.desk.say("not taken: the page had only just appeared; press it again", "warning")

    def offers(self, action: str) -> bool | None:
        if action in ANSWERS:
            return False if self.fate else (True if self.settled else None)
        if action == "compare":
            return False
        if action == "next_request":
            return len(self.desk.snapshot.view.needs) > 1
        return super().offers(action)

    async def action_next_request(self) -> None:
        await self.run_action("app.next_need")

    def answered(self, worked: bool, says: str) -> None:  # noqa: ARG002, FBT001
        """An answer came back: this page is done if it worked, else it says why not."""
        if worked and self.is_current:
            self.dismiss()

    def head_lines(self) -> list[Line]:
        """Who asks, since when, and under which hash; below it what has become of it."""
        request, view = self.seen, self.desk.snapshot.view
        agent = view.agent(request.from_)
        who = f"{request.from_} ({agent.type}, pid {agent.pid or '—'})" if agent else request.from_
        waiting = fmt.long_age((request.decided_at or self.desk.now) - request.created_at)
        head: Line = (
            Span("FROM ", "dim"), say(who, "bold"), Span("  WAITING ", "dim"), Span(waiting),
            Span("  SHA ", "dim"), say(f"{request.sha256[:6]}…"), Span("  REQ ", "dim"), say(request.id[:20]),
        )  # fmt: skip
        lines: list[Line] = [head]
        if agent is not None and agent.task is not None:
            subject = next((task.subject for task in view.tasks if task.id == agent.task), "")
            lines.append((Span("TASK ", "dim"), say(f"#{agent.task} {subject}")))
        if self.fate:
            lines.append((say(self.fate, "alarm"),))
        return lines


def fate_of(seen: Request, view: TeamView) -> str | None:
    """What has become of a request since it was opened; None while it waits unchanged."""
    newer = next((request for request in view.asked if request.supersedes == seen.id), None)
    if newer is not None:
        return f" replaced by a newer revision, {newer.id[:16]}, which is {newer.status}: ] shows what waits "
    now = next((request for request in view.asked if request.id == seen.id), None)
    if now is None:
        return None
    if now.status != "pending":
        by = f" by {'you' if now.decided_by == 'operator' else now.decided_by}" if now.decided_by else ""
        return f" {now.status}{by} at {fmt.clock(now.decided_at or 0)} "
    if now.sha256 != seen.sha256:
        return " it has changed since you opened it: leave with Esc and open it again "
    return None


def revision_of(request: Request, view: TeamView) -> int:
    """Which revision of a plan a request is, counted from 1."""
    by_id = {each.id: each for each in view.asked}
    seen = {request.id}
    number = 1
    before = request.supersedes
    while before is not None and before not in seen and before in by_id:
        seen.add(before)
        number += 1
        before = by_id[before].supersedes
    return number
