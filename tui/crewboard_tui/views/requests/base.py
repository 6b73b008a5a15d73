"""What the pages of a request have in common: who asks, whether it still waits, and keys that wait for the eye."""

from typing import ClassVar

from rich.cells import cell_len
from textual.binding import BindingType
from textual.events import Key

from crewboard.records import Request
from crewboard_tui.context import AppContext
from crewboard_tui.keymap import bindings
from crewboard_tui.poller import Snapshot
from crewboard_tui.render import formats
from crewboard_tui.render.lines import Line, Span, hang, say, width_of
from crewboard_tui.views.base import Framed
from crewboard_tui.views.board.columns import TALL
from crewboard_tui.views.needs.rows import need_key
from crewboard_tui.views.requests.outcome import fate_of, newest_of
from crewboard_tui.views.requests.request_text import asked
from crewboard_tui.views.unavailable_keys import NOT_NOW
from crewboard_tui.widgets.static_lines import StaticLines
from crewboard_tui.widgets.view_tabs import crumbs_line

BLIND_FOR = 0.3
"""Seconds for which a page takes no answer after what it shows has changed (docs/reference/dashboard.md#laws)."""

_BELOW_FACTS, _BELOW_FACTS_LOW = 15, 13
"""Lines that the rest of a page needs, so that some of what is asked is in sight below its facts."""

_FEWEST_FACTS = 3
"""Who asks, for which task, and what has become of it; what is left out on a low screen stands below the plan."""

ANSWERS = frozenset({"approve", "approve_rule", "deny", "ask_back", "edit", "send"})


_ENDED = ANSWERS | {"words", "open"}
"""What a request takes no more once something has become of it."""


class RequestScreen(Framed):
    """The page of one request, as it was when it was opened: an answer binds to exactly that."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings.bindings("request")]
    IS_REQUEST = True
    TITLE_WORD: ClassVar[str] = "REQUEST"

    def __init__(self, desk: AppContext, request: Request) -> None:
        super().__init__(desk)
        self.seen = request
        self.fate: str | None = fate_of(request, desk.snapshot.view, desk.key)
        self.settled = False

    def on_mount(self) -> None:
        self._blind()

    def on_screen_resume(self) -> None:
        self._blind()  # somebody comes back to it, maybe by a key that was meant to lead elsewhere

    def heading(self, snapshot: Snapshot, width: int) -> Line:
        waiting = [need.request_id for need in snapshot.view.needs]
        at = waiting.index(self.seen.id) + 1 if self.seen.id in waiting else 0
        opens = f"  {self.context.key('request.next')}" if self.offers("next_request") else ""
        place = f"item {at} of {len(waiting)}{opens}" if at else ""
        return crumbs_line(["Needs-you", self.seen.from_, self.title_word()], place, width)

    @property
    def is_over(self) -> bool:
        """Whether it was decided, replaced or changed since it was opened."""
        return fate_of(self.seen, self.context.snapshot.view) is not None

    def title_word(self) -> str:
        """What the page is about, for the heading."""
        return self.TITLE_WORD

    @property
    def shown_need(self) -> str | None:
        needs = self.context.snapshot.view.needs
        return next((need_key(need) for need in needs if need.request_id == self.seen.id), None)

    @property
    def copied(self) -> str:
        return asked(self.seen) or super().copied

    def paint(self, snapshot: Snapshot) -> None:
        fate = fate_of(self.seen, snapshot.view, self.context.key)
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
        if self.settled or self.fate:
            return
        answers = {name for ident in bindings.of_actions("request", ANSWERS) for name in self.context.keys_of(ident)}
        if not answers.isdisjoint((event.key, event.character)):
            event.prevent_default()  # it works, only later: the frame has nothing to say about it
            self.say_too_soon()

    def say_too_soon(self) -> None:
        """An answer came before anybody can have read what it is for."""
        self.context.say("not taken: the page had only just appeared; press it again", "warning")

    def offers(self, action: str) -> bool | None:
        if action in ANSWERS:
            return False if self.fate else (True if self.settled else None)
        if action == "compare":
            return False
        if action == "next_request":
            return bool(self._waits_instead) or any(
                need.request_id != self.seen.id for need in self.context.snapshot.view.needs
            )
        return super().offers(action)

    def why_not(self, key: bindings.Key) -> str:
        why = super().why_not(key)
        return f"not now:{self.fate.rstrip()}" if why == NOT_NOW and self.fate and key.action in _ENDED else why

    async def action_next_request(self) -> None:
        """Open what came in its place, else the next thing that needs somebody."""
        if (newest := self._waits_instead) is not None:
            self.context.navigator.open_request(newest)
        else:
            await self.context.navigator.open_next_need()

    @property
    def _waits_instead(self) -> Request | None:
        """The revision that came in the place of this one, while it waits, whoever is to answer it."""
        newest = newest_of(self.seen, self.context.snapshot.view)
        return newest if newest is not None and newest.status == "pending" else None

    def answered(self, worked: bool, says: str) -> None:  # noqa: ARG002, FBT001
        """An answer came back: this page is done if it worked, else it says why not."""
        if worked and self.is_current:
            self.dismiss()

    def show_facts(self, facts: list[Line], fewest: int = _FEWEST_FACTS) -> None:
        """What stands above the pane, each fact on as many lines as there is room for, and at least the `fewest`."""
        width = max(1, self.size.width - 2)
        room = max(fewest, self.size.height - (_BELOW_FACTS if self.size.height >= TALL else _BELOW_FACTS_LOW))
        most = next((most for most in (4, 3, 2) if len(_hung(facts, width, most)) <= room), 1)
        self.query_one("#facts", StaticLines).show([(Span(" "), *piece) for piece in _hung(facts, width, most)[:room]])

    def head_lines(self) -> list[Line]:
        """Who asks, since when, and under which hash; below it what has become of it."""
        request, view = self.seen, self.context.snapshot.view
        agent = view.agent(request.from_)
        who = f"{request.from_} ({agent.type}, pid {agent.pid or '—'})" if agent else request.from_
        waiting = formats.long_age(self.context.now - request.created_at)
        waits = () if self.fate else (Span("  WAITING ", "dim"), Span(waiting))
        asks: Line = (Span("FROM ", "dim"), say(who, "bold"), *waits)
        binds: Line = (
            Span("SHA ", "dim"), say(f"{request.sha256[:6]}…"), Span("  REQ ", "dim"), say(request.id)
        )  # fmt: skip
        beside = (*asks, Span("  "), *binds)
        splits = width_of(beside) > self.size.width - 2 and self.size.height >= TALL
        lines: list[Line] = [asks, binds] if splits else [beside]
        if agent is not None and agent.task is not None:
            subject = next((task.subject for task in view.tasks if task.id == agent.task), "")
            lines.append((Span("TASK ", "dim"), say(f"#{agent.task} {subject}")))
        if self.fate:
            lines.append((say(self.fate, "alarm"),))
        return lines


def _hung(facts: list[Line], width: int, most: int) -> list[Line]:
    """Each fact in at most `most` lines, behind the label that it begins with."""
    labels = [cell_len(fact[0].text) if len(fact) > 1 else 1 for fact in facts]
    return [piece for fact, label in zip(facts, labels, strict=True) for piece in hang(fact, width, label, most)]
