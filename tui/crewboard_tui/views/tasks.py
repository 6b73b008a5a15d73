"""`3` Tasks: the whole board, and everything about the selected task."""

from collections.abc import Iterable
from dataclasses import replace

from textual import on
from textual.widget import Widget

from crewboard.records import Task
from crewboard_tui.actions import (
    FINDS_TASKS,
    TASK_GROUPS,
    AgentActions,
    Messaging,
    Search,
    Selection,
    TaskActions,
    select,
    task_in_group,
    unavailable,
)
from crewboard_tui.context import AppContext
from crewboard_tui.queries import Query, Snapshot, WorkOf
from crewboard_tui.render import Line, tally
from crewboard_tui.views.base import BaseScreen, Panes, nothing_row
from crewboard_tui.views.rows import fact_lines, is_orphan, task_detail, task_rows
from crewboard_tui.widgets import LineList, LineView, title

_ABOUT_THE_OWNER = ("agent.answer", "agent.stop", "agent.end", "agent.pause", "agent.interrupt", "agent.fresh")
"""Keys about agents that could be pressed here and meant for the task."""


class TasksScreen(BaseScreen):
    """The task board."""

    MODE = "tasks"
    AUTO_FOCUS = "#tasks"

    def __init__(self, context: AppContext) -> None:
        super().__init__(context)
        self.panes = Panes(self)
        self.search = Search(context, self.narrow, FINDS_TASKS, TASK_GROUPS)
        self.back_layers = (self.panes.layer, self.search.layer)
        self.offer(
            TaskActions(context).actions,
            unavailable(lambda: "not on the task board", *_ABOUT_THE_OWNER),
            AgentActions(context).actions,
            Messaging(context).actions,
            self.search.actions,
            self.panes.actions,
        )

    def begin(self) -> None:
        self.panes.begin()

    def body(self) -> Iterable[Widget]:
        yield LineList(id="tasks", classes="pane")
        yield LineView(id="task", classes="pane", follow=False, follows=False)

    def selected_task(self) -> Task | None:
        selected = self.query_one("#tasks", LineList).selected if self.is_mounted else None
        return next((task for task in self.context.snapshot.view.tasks if str(task.id) == selected), None)

    def go_to(self, key: str) -> None:
        self.query_one("#tasks", LineList).want(key)

    def selection(self) -> Selection:
        """Return the task and its owner, or the agent that had it and may come back."""
        task = self.selected_task()
        owner = None if task is None else task.last_owner if is_orphan(task) else task.owner
        found = select(self.context.snapshot.view, owner)
        return replace(found, task=task, show_task=lambda ident: self.go_to(str(ident)))

    def queries(self) -> Iterable[Query[object]]:
        # Of a task that failed, its owner's journal may say why.
        task = self.selected_task()
        if task is not None and task.status == "failed" and task.owner:
            yield WorkOf(task.owner)

    def paint(self, snapshot: Snapshot) -> None:
        rows = self.query_one("#tasks", LineList)
        ids = {str(task.id) for task in snapshot.view.tasks if task_in_group(task, snapshot.view, self.search.group)}
        found = task_rows(snapshot.view, self.context.now, rows.row_width, self.search.words)
        found = [row for row in found if row.key in ids]
        rows.show(found or [nothing_row(self.search.nothing(self._first))])
        done = tally(snapshot.view.tasks, " completed")
        title(rows, f"Tasks{' · ' if done else ''}{done}{self.search.narrowed_to}")
        self._paint_task()

    @property
    def _first(self) -> str:
        """What to do first on an empty board."""
        key = self.context.key("task.new")
        return "no tasks yet" + ("" if self.context.read_only else f"; {key} puts the first one on the board")

    def _paint_task(self) -> None:
        pane = self.query_one("#task", LineView)
        task = self.selected_task()
        title(pane, f"#{task.id}" if task else "Task")
        lines: list[Line] = []
        if task is not None:
            lines = fact_lines(task_detail(task, self.context.snapshot, self.context.now), pane.line_width)
        pane.show(lines)
        self.context.look_at(self.queries())

    @on(LineList.Moved, "#tasks")
    def _explain(self) -> None:
        self._paint_task()
        self.paint_keys()

    @on(LineList.Opened, "#tasks")
    def _open(self) -> None:
        self.panes.read_in(self.query_one("#task"))
