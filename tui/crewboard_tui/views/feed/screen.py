"""`6` Feed: everything that everybody does, newest last."""

from collections.abc import Iterable

from textual import on
from textual.widget import Widget

from crewboard_tui.actions.filters import matches
from crewboard_tui.poller import Interest, Snapshot
from crewboard_tui.views.agent.transcript import feed_folds
from crewboard_tui.views.numbered import Numbered
from crewboard_tui.widgets.collapsible_list import CollapsibleList
from crewboard_tui.widgets.line_list import LineList
from crewboard_tui.widgets.pane_title import follow_words, title


class FeedScreen(Numbered):
    """One stream of all journals; Enter unfolds a line to all of it."""

    MODE = "feed"
    AUTO_FOCUS = "#feed"

    def body(self) -> Iterable[Widget]:
        yield CollapsibleList(id="feed", classes="pane")

    def on_mount(self) -> None:
        self.query_one("#feed", CollapsibleList).begin(follows=True)

    def interest(self) -> Interest:
        return Interest(everybody=True)

    def paint(self, snapshot: Snapshot) -> None:
        pane = self.query_one("#feed", CollapsibleList)
        shown = [
            each for each in snapshot.feed if matches(f"{each.agent} {each.what.kind} {each.what.text}", self.filter)
        ]
        nobody = "nothing yet; what agents do will stand here" if snapshot.view.agents else self.hires
        pane.read(feed_folds(shown, pane.row_width), self.nothing_of(nobody))
        self._say_whether_it_follows()

    def _say_whether_it_follows(self) -> None:
        pane = self.query_one("#feed", CollapsibleList)
        title(pane, f"Feed{self.narrowed_to}", follow_words(pane, self.context.key("fold.follow")))

    def tick(self) -> None:
        """Nothing here has an age."""

    @on(LineList.Moved, "#feed")
    def _followed(self) -> None:
        self._say_whether_it_follows()
        self.paint_keys()
