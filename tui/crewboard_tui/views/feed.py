"""`6` Feed: everything that agents do, newest last."""

from collections.abc import Iterable

from textual import on
from textual.widget import Widget

from crewboard_tui.actions import AgentActions, Messaging, Search
from crewboard_tui.context import AppContext
from crewboard_tui.queries import Feed, Query, Snapshot
from crewboard_tui.render import matches
from crewboard_tui.views.activity import feed_rows
from crewboard_tui.views.base import BaseScreen, Panes, first_hire
from crewboard_tui.widgets import CollapsibleList, LineList, follow_words, title


class FeedScreen(BaseScreen):
    """One stream of all journals; Enter unfolds a line to all of it."""

    MODE = "feed"
    AUTO_FOCUS = "#feed"

    def __init__(self, context: AppContext) -> None:
        super().__init__(context)
        self.panes = Panes(self)
        self.search = Search(context, self.narrow, groups=())
        self.back_layers = (self.panes.layer, self.search.layer)
        self.offer(AgentActions(context).actions, Messaging(context).actions, self.search.actions, self.panes.actions)

    def begin(self) -> None:
        self.panes.begin()

    def body(self) -> Iterable[Widget]:
        yield CollapsibleList(id="feed", classes="pane")

    def on_mount(self) -> None:
        self.query_one("#feed", CollapsibleList).begin(follows=True)

    def queries(self) -> Iterable[Query[object]]:
        return (Feed(),)

    def paint(self, snapshot: Snapshot) -> None:
        pane = self.query_one("#feed", CollapsibleList)
        shown = [
            each
            for each in snapshot.get(Feed()) or ()
            if matches(f"{each.agent} {each.what.kind} {each.what.text}", self.search.words)
        ]
        nothing = "nothing yet; what agents do will appear here" if snapshot.view.agents else first_hire(self.context)
        pane.read(feed_rows(shown, pane.row_width), self.search.nothing(nothing))
        self._say_whether_it_follows()

    def _say_whether_it_follows(self) -> None:
        pane = self.query_one("#feed", CollapsibleList)
        title(pane, f"Feed{self.search.narrowed_to}", follow_words(pane, self.context.key("fold.follow")))

    def tick(self) -> None:
        """Nothing here has an age."""

    @on(LineList.Moved, "#feed")
    def _followed(self) -> None:
        self._say_whether_it_follows()
        self.paint_keys()
