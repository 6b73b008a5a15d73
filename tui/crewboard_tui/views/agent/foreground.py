"""An agent in the foreground: its page, shown until the result arrives or the user moves it to the background."""

from collections.abc import Iterable
from typing import ClassVar

from textual.binding import BindingType
from textual.widget import Widget

from crewboard.records import describe_exit
from crewboard_tui.context import AppContext
from crewboard_tui.keymap import bindings
from crewboard_tui.poller import Snapshot
from crewboard_tui.render.lines import Line, Span, line, say
from crewboard_tui.views.agent.screen import AgentPage
from crewboard_tui.widgets.static_lines import StaticLines

_RESULTS = {
    "answer": (" it sent its result", "success bold"),
    "error": (" it failed; the reason is above", "error bold"),
}
"""Kinds of activity that end an assignment, with their text."""


class ForegroundPage(AgentPage):
    """The page of an agent whose result is awaited since `since` (epoch seconds)."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings.bindings("foreground")]

    def __init__(self, desk: AppContext, name: str, since: float) -> None:
        super().__init__(desk, name)
        self._since = since
        self._outcome: Line | None = None

    def body(self) -> Iterable[Widget]:
        yield from super().body()
        yield StaticLines(id="foreground")

    def offers(self, action: str) -> bool | None:
        if action == "to_background":
            return self._outcome is None
        return super().offers(action)

    def paint(self, snapshot: Snapshot) -> None:
        super().paint(snapshot)
        if self._outcome is None:
            self._outcome = self._find_outcome(snapshot)
            self.refresh_bindings()
        back, leave = self.context.key("view.back"), self.context.key("foreground.leave")
        waits = line(
            Span(" foreground: waiting for the result; ", "info"), Span(back, "key"), Span("/", "info"),
            Span(leave, "key"), Span(" moves it to the background", "info"),
        )  # fmt: skip
        self.query_one("#foreground", StaticLines).show([self._outcome or waits])

    def _find_outcome(self, snapshot: Snapshot) -> Line | None:
        """Return the outcome of the wait; None while it continues."""
        if snapshot.interest.agent != self.agent_name:
            return None
        for each in snapshot.activity:
            if each.kind in _RESULTS and each.ts >= self._since:
                return line(
                    Span(*_RESULTS[each.kind]), Span("  "), Span(self.context.key("view.back"), "key"), " goes back"
                )
        agent = snapshot.view.agent(self.agent_name)
        if agent is not None and agent.exit is not None and not agent.alive and agent.exit.at >= self._since:
            return line(say(f" it ended without a result: {describe_exit(agent.exit)}", "error bold"))
        return None

    def action_to_background(self) -> None:
        if self.filter:
            # Clear the filter first, or going back would only do that.
            self.narrow("")
        self.action_back()

    def action_back(self) -> None:
        if self._outcome is None and not self.filter:
            self.context.say(f"{self.agent_name} works in the background; its result comes by mail")
        super().action_back()
