"""`6` Feed: everything that everybody does, newest last."""

from collections.abc import Iterable

from textual import on
from textual.widget import Widget

from crewboard_tui.filters import matches
from crewboard_tui.reading import Interest, Snapshot
from crewboard_tui.screens.numbered import Numbered
from crewboard_tui.widgets.log import Log
from crewboard_tui.widgets.peek import feed_lines
from crewboard_tui.widgets.titles import title


class FeedScreen(Numbered):
    """One stream of all journals."""

    MODE = "feed"
    AUTO_FOCUS = "#feed"

    def body(self) -> Iterable[Widget]:
        yield Log(id="feed", classes="pane")

    def interest(self) -> Interest:
        return Interest(everybody=True)

    def paint(self, snapshot: Snapshot) -> None:
        pane = self.query_one("#feed", Log)
        shown = [
            each for each in snapshot.feed if matches(f"{each.agent} {each.what.kind} {each.what.text}", self.filter)
        ]
        nobody = "nothing yet; what agents do will stand here" if snapshot.view.agents else self.hires
        pane.show(feed_lines(shown, pane.line_width) or [self.nothing(nobody).line])
        title(pane, "Feed", f"f follow:{'on' if pane.follow else 'off'}")

    def tick(self) -> None:
        """Nothing here has an age."""

    @on(Log.Scrolled)
    def _followed(self) -> None:
        self.paint(self.desk.snapshot)
