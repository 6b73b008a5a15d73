"""`6` Feed: everything that agents do, newest last; and the page of what happened while the user was away."""

from collections.abc import Iterable, Mapping, Sequence

from textual import on

from crewboard.readmodel.changes import Absence, Happening, HappeningKind
from crewboard_tui.actions.agents import AgentActions
from crewboard_tui.actions.messaging import Messaging
from crewboard_tui.actions.registry import Selection, select
from crewboard_tui.actions.search import Search
from crewboard_tui.queries import Feed, FeedLine, Query, Snapshot
from crewboard_tui.render.formats import format_moment
from crewboard_tui.render.lines import Span, clip_middle, matches, pad, say
from crewboard_tui.render.looks import NEED_LOOKS, TASK_LOOKS, Look
from crewboard_tui.views.activity import FeedRows
from crewboard_tui.views.base import AppContext, BaseScreen, first_hire
from crewboard_tui.widgets.bars import follow_words
from crewboard_tui.widgets.collapsible_list import OLDER, CollapsibleList, CollapsibleRow
from crewboard_tui.widgets.line_list import LineList, Row

PAGE = 400
"""The number of lines of the feed that are loaded at once."""


class FeedScreen(BaseScreen):
    """One stream of all journals, and of mail from other programs; Enter unfolds a line to all of it."""

    CSS_PATH = "feed.tcss"
    MODE = "feed"
    AUTO_FOCUS = "#feed"

    def __init__(self, context: AppContext) -> None:
        super().__init__(context)
        self._most = PAGE
        self._read: tuple[tuple[FeedLine, ...], int] = ((), 0)
        self.rows: CollapsibleList = CollapsibleList(id="feed", classes="pane")
        self._made = FeedRows()
        self.search = Search(context, self.narrow, groups=())
        self.back_layers = (self.panes.layer, self.search.layer)
        self.offer(AgentActions(context).actions, Messaging(context).actions, self.search.actions, self.panes.actions)

    def on_mount(self) -> None:
        self.rows.begin(follows=True)

    def queries(self) -> Iterable[Query[object]]:
        return (Feed(self._most),)

    def paint(self, snapshot: Snapshot) -> None:
        # While older lines are loaded, the present ones stay.
        self._read = snapshot.get(Feed(self._most)) or self._read
        lines, older = self._read
        shown: Sequence[FeedLine] = lines
        if words := self.search.words:
            shown = [each for each in lines if matches(f"{each.agent} {each.what.kind} {each.what.text}", words)]
        nothing = "nothing yet; what agents do will appear here" if snapshot.view.agents else first_hire(self.context)
        rows = self._made.read(shown, self.context.now, self.rows.row_width)
        if older:
            says = f"{older} older lines are not loaded · {self.context.key('list.top')} loads {min(older, PAGE)}"
            rows.insert(0, CollapsibleRow(OLDER, (Span(says, "warning"),)))
        self.rows.read(rows, self.search.nothing(nothing))
        self._say_whether_it_follows()

    def _say_whether_it_follows(self) -> None:
        lines, older = self._read
        newest = f" · newest {len(lines)} of {len(lines) + older}" if older else ""
        follow = follow_words(self.rows, self.context.key("fold.follow"))
        self.rows.rule.entitle(f"Feed{newest}{self.search.narrowed_to}", follow)

    def tick(self) -> None:
        """Do nothing, because no row has an age."""

    @on(LineList.Moved, "#feed")
    def _moved(self) -> None:
        # Else the lines before are not there yet.
        if self.selected == OLDER and self._most <= len(self._read[0]):
            self._most += PAGE
            # The cursor stays where they begin.
            self.rows.select(next((key for key in self.rows.keys if key != OLDER), None))
            self.ask()
        self._say_whether_it_follows()
        self.paint_keys()


_LOOKS: Mapping[HappeningKind, Look] = {
    "result": NEED_LOOKS["result"],
    "death": NEED_LOOKS["death"],
    "failure": NEED_LOOKS["failed"],
    "plan": NEED_LOOKS["plan"],
    "permission": NEED_LOOKS["permission"],
    "question": NEED_LOOKS["question"],
    "review": NEED_LOOKS["review"],
    "task_failed": TASK_LOOKS["failed"],
    "task_done": TASK_LOOKS["completed"],
    "act": Look("·", "-", "info", "act"),
}

_NAME = 12
"""Cells for the name of an agent."""


class AbsencePage(BaseScreen):
    """A list of the events while the user was away, newest last. Enter opens the agent, the request or the task."""

    CSS_PATH = "feed.tcss"
    TAB = "absence"
    AUTO_FOCUS = "#absence"

    def __init__(self, context: AppContext) -> None:
        super().__init__(context)
        self._absence = context.absence or Absence(context.now)
        self.rows = LineList(id="absence", classes="pane")
        self.search = Search(context, self.narrow)
        self.back_layers = (self.search.layer,)
        self.offer(AgentActions(context).actions, Messaging(context).actions, self.search.actions)

    @property
    def _selected(self) -> Happening | None:
        """Return the event under the cursor; None if there is none."""
        return self._absence.happenings[int(self.selected)] if self.selected else None

    def selection(self) -> Selection:
        here = self._selected
        return select(self.context.view, here.agent if here else None)

    def paint(self, snapshot: Snapshot) -> None:  # noqa: ARG002  it tells of the past
        found = []
        for at, each in enumerate(self._absence.happenings):
            look = _LOOKS[each.kind]
            line = (
                Span(f"{format_moment(each.ts, self.context.now)} ", "dim"),
                Span(f"{look.glyph} ", look.tone),
                Span(pad(clip_middle(each.agent, _NAME), _NAME) + " ", "bold"),
                say(each.text),
            )
            if matches(f"{each.agent} {each.kind} {each.text}", self.search.words):
                found.append(Row(str(at), line))
        self.rows.show(found or self.rows.empty_rows(self.search.nothing("only money was spent")))
        said = self._absence.describe(self.context.now)
        self.rows.rule.entitle(f"{said[:1].upper()}{said[1:]}", self.search.narrowed_to.removeprefix(" · "))

    def tick(self) -> None:
        """Do nothing, because no row has an age."""

    @on(LineList.Moved, "#absence")
    def _other_row(self) -> None:
        self.paint_keys()

    @on(LineList.Opened, "#absence")
    async def _open(self) -> None:
        here, view = self._selected, self.context.view
        if here is None:
            return
        request = view.request(here.request_id)
        if request is not None:
            self.context.navigator.open_request(request)
        elif here.task is not None:
            await self.context.navigator.open_view("tasks", str(here.task))
        elif view.agent(here.agent) is not None:
            self.context.navigator.open_agent(here.agent, "Mail" if here.kind == "result" else "Now")
        else:
            self.context.say(f"{here.agent} is no longer on the team" if here.agent else "It is about no agent", "dim")
