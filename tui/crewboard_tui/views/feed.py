"""`6` Feed: everything that agents do, newest last."""

from collections.abc import Iterable

from textual import on
from textual.widget import Widget

from crewboard_tui.actions import AgentActions, Messaging, Search
from crewboard_tui.queries import Feed, FeedLine, Query, Snapshot
from crewboard_tui.render import Span, matches
from crewboard_tui.views.activity import feed_rows
from crewboard_tui.views.base import AppContext, BaseScreen, Panes, first_hire
from crewboard_tui.widgets import CollapsibleList, CollapsibleRow, LineList, follow_words, title

PAGE = 400
"""Lines of the feed that are loaded at once."""

_OLDER = "older"
"""The key of the row that stands for the lines that are not loaded."""


class FeedScreen(BaseScreen):
    """One stream of all journals; Enter unfolds a line to all of it."""

    MODE = "feed"
    AUTO_FOCUS = "#feed"

    def __init__(self, context: AppContext) -> None:
        super().__init__(context)
        self._most = PAGE
        self._read: tuple[tuple[FeedLine, ...], int] = ((), 0)
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
        return (Feed(self._most),)

    def paint(self, snapshot: Snapshot) -> None:
        pane = self.query_one("#feed", CollapsibleList)
        # While older lines are loaded, the present ones stay.
        self._read = snapshot.get(Feed(self._most)) or self._read
        lines, older = self._read
        shown = [
            each for each in lines if matches(f"{each.agent} {each.what.kind} {each.what.text}", self.search.words)
        ]
        nothing = "nothing yet; what agents do will appear here" if snapshot.view.agents else first_hire(self.context)
        rows = feed_rows(shown, pane.row_width)
        if older:
            words = f"{older} older lines are not loaded · {self.context.key('list.top')} loads {min(older, PAGE)}"
            rows.insert(0, CollapsibleRow(_OLDER, (Span(words, "warning"),)))
        pane.read(rows, self.search.nothing(nothing))
        self._say_whether_it_follows()

    def _say_whether_it_follows(self) -> None:
        pane = self.query_one("#feed", CollapsibleList)
        lines, older = self._read
        newest = f" · newest {len(lines)} of {len(lines) + older}" if older else ""
        title(pane, f"Feed{newest}{self.search.narrowed_to}", follow_words(pane, self.context.key("fold.follow")))

    def _load_older(self) -> None:
        """Load more lines; the cursor stays where they begin."""
        pane = self.query_one("#feed", CollapsibleList)
        if self._most > len(self._read[0]):
            return  # the lines before are not there yet
        self._most += PAGE
        pane.select(next((row.key for row in pane.rows if row.key != _OLDER), None))
        self.context.look_at(self.queries())

    def tick(self) -> None:
        """Nothing here has an age."""

    @on(LineList.Moved, "#feed")
    def _moved(self) -> None:
        if self.query_one("#feed", CollapsibleList).selected == _OLDER:
            self._load_older()
        self._say_whether_it_follows()
        self.paint_keys()
