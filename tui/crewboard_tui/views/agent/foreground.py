"""Waiting for the result of an agent in the foreground, on its page."""

from crewboard.records import describe_exit
from crewboard_tui.context import AppContext
from crewboard_tui.queries import Snapshot, WorkOf
from crewboard_tui.render.lines import Line, Span, line, say

_RESULTS = {
    "answer": (" it sent its result", "success bold"),
    "error": (" it failed; the reason is above", "error bold"),
}
"""Kinds of activity that end an assignment, with their text."""


class Foreground:
    """The wait for what an agent does since `since` (epoch seconds). `outcome` is None until it is over."""

    def __init__(self, context: AppContext, name: str, since: float) -> None:
        self._context = context
        self._name = name
        self._since = since
        self.outcome: Line | None = None

    @property
    def line(self) -> Line:
        """What has come of it, or which key puts the agent to the background."""
        back, leave = self._context.key("view.back"), self._context.key("foreground.leave")
        waits = line(
            Span(" foreground: waiting for the result; ", "info"), Span(back, "key"), Span("/", "info"),
            Span(leave, "key"), Span(" moves it to the background", "info"),
        )  # fmt: skip
        return self.outcome or waits

    def read(self, snapshot: Snapshot) -> None:
        """Look for the outcome."""
        work = snapshot.get(WorkOf(self._name))
        if work is None:
            return
        for each in work.activity:
            if each.kind in _RESULTS and each.ts >= self._since:
                back = self._context.key("view.back")
                self.outcome = line(Span(*_RESULTS[each.kind]), Span("  "), Span(back, "key"), " goes back")
                return
        agent = snapshot.view.agent(self._name)
        if agent is not None and agent.exit is not None and not agent.alive and agent.exit.at >= self._since:
            self.outcome = line(say(f" it ended without a result: {describe_exit(agent.exit)}", "error bold"))
