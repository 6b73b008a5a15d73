"""`8` Changes: one row for each agent with a worktree, and its work below."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from textual import on

from crewboard.records.base import counted
from crewboard_tui.actions.agents import AgentActions, PuttingBack
from crewboard_tui.actions.messaging import Messaging
from crewboard_tui.actions.registry import Action, Selection, select
from crewboard_tui.actions.search import FINDS_AGENTS, Search, matches_agent
from crewboard_tui.render.lines import hang, say
from crewboard_tui.views.base import AppContext, BaseScreen, Query, Snapshot, first_hire
from crewboard_tui.views.changes.diff_page import ChangesPage
from crewboard_tui.views.changes.merge_page import Merging
from crewboard_tui.views.changes.work import ChangesReader, change_rows, has_worktree, work_lines
from crewboard_tui.widgets.line_list import LineList, Row

if TYPE_CHECKING:
    from crewboard.worktrees.changes import Changes


SORTS = ("AGENT", "LINES", "BEHIND", "CONFLICTS")
"""The sort keys, in the order in which the key cycles through them."""

_ORDER: dict[str, Callable[["Changes"], Any]] = {
    "AGENT": lambda _: 0,
    "LINES": lambda each: -(each.added + each.removed),
    "BEHIND": lambda each: -each.behind,
    "CONFLICTS": lambda each: -len(each.conflicts),
}


def nothing_here(context: AppContext) -> str:
    """Return the text for a team without worktrees, which says how an agent gets one."""
    if not context.view.agents:
        return first_hire(context)
    if context.view.attached is not None:
        return "Claude Code keeps the checkouts of its agents itself; use git to see them"
    hire = f"`crewboard spawn NAME --worktree` or {context.key('agent.hire')} with 'own checkout' hires one"
    return f"no agent has a worktree: all work in the shared tree; {hire}; what it changes is shown and merged here"


class ChangesScreen(BaseScreen):
    """One row for each agent with a worktree, the work of the selected one below; Enter opens its files and diff."""

    CSS_PATH = "screen.tcss"
    MODE = "changes"
    AUTO_FOCUS = "#changes"
    DETAIL = "work"

    def __init__(self, context: AppContext) -> None:
        super().__init__(context)
        self._reader = ChangesReader(context)
        self._wanted = ""
        """The agent whose diff was asked for last."""
        self._painted: tuple[object, ...] = ()
        """The values that the pane of the work was painted from."""
        self.rows = LineList(sorts=SORTS, id="changes", classes="pane")
        self.search = Search(context, self.narrow, FINDS_AGENTS)
        self.back_layers = (self.panes.layer, self.search.layer)
        own = (
            PuttingBack(
                context, "changes.put_back", then=self._reader.read, changed_nothing=self._reader.changed_nothing
            ).action,
            Action("changes.read", lambda _: self._reader.read(now=True)),
        )
        agent = (AgentActions(context).actions, Messaging(context).actions)
        merging = Merging(context, self._reader, self.app.push_screen)
        self.offer(own, merging.actions, *agent, self.search.actions, self.panes.actions)

    def on_screen_resume(self) -> None:
        self._reader.show = self.refresh_all
        self._reader.read(diff=self.selected)

    def selection(self) -> Selection:
        return select(self.context.view, self.selected)

    def queries(self) -> Iterable[Query[object]]:
        return (self._reader.evidence,)

    def paint(self, snapshot: Snapshot) -> None:
        if self.is_current:
            self._reader.note(snapshot)
        rows = self.rows
        known = self._reader.known
        agents = [(snapshot.view.agent(name), each) for name, each in known.items()]
        shown = [(agent, each) for agent, each in agents if agent and matches_agent(agent, self.search.words)]
        by = _ORDER[rows.order.by]
        ordered = rows.in_order(shown, lambda pair: pair[1].agent, lambda pair: (by(pair[1]), pair[1].agent))
        listed = change_rows(ordered, rows.row_width, self._reader.merged)
        if not listed:
            if self._reader.problem:
                problem = (say(self._reader.problem, "error"),)
                listed = [Row("", part) for part in hang(problem, max(20, self.size.width - 6), 0, 4)]
            elif not any(map(has_worktree, self.context.view.agents)):
                listed = rows.empty_rows(nothing_here(self.context))
            else:
                nothing = self.search.nothing("") if known else "the work of all agents with a worktree was discarded"
                listed = rows.empty_rows(nothing if self._reader.is_read else "reading …")
        rows.show(listed)
        age = "reading …" if self._reader.is_reading else f"{self.context.key('changes.read')} reads again"
        if self._reader.problem and known:
            age = f"not read: {self._reader.problem}"
        count = f" · {counted(len(known), 'worktree')}" if known else ""
        rows.rule.entitle(f"Changes{count}{rows.state}{self.search.narrowed_to}", age)
        self.paint_detail(snapshot)

    def paint_detail(self, snapshot: Snapshot) -> None:  # noqa: ARG002
        pane, name = self.detail, self.selected or ""
        changes, merged = self._reader.known.get(name), self._reader.merged.get(name)
        if changes is not None and pane.size and name != self._wanted:
            self._wanted = name
            self._reader.read([name], name)
        files = self._reader.diff(name).files
        decides = (changes, merged, files, pane.line_width, pane.size)
        if decides != self._painted:
            self._painted = decides
            pane.show(work_lines(changes, files, pane.line_width, merged) if changes is not None and pane.size else [])
        pane.rule.entitle(f"Work of {changes.agent}" if changes is not None else "Work")
        self.panes.show_below(pane, shown=changes is not None)

    def tick(self) -> None:
        """Do nothing, because no row has an age."""

    @on(LineList.Opened, "#changes")
    def _open(self, event: LineList.Opened) -> None:
        self.app.push_screen(ChangesPage(self.context, self._reader, event.key))
