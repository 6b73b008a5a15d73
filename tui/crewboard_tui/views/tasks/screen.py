"""`3` Tasks: the whole board, and everything about the selected task."""

from collections.abc import Iterable

from textual import on
from textual.widget import Widget

from crewboard.records import Task
from crewboard_tui.actions.filters import FINDS_TASKS, TASK_GROUPS, task_in_group
from crewboard_tui.actions.tasks import TaskKeys
from crewboard_tui.poller import Interest, Snapshot
from crewboard_tui.render.lines import Line
from crewboard_tui.views.needs.explanation import fact_lines
from crewboard_tui.views.tasks.rows import is_orphan, tally, task_detail, task_rows
from crewboard_tui.widgets.line_list import LineList
from crewboard_tui.widgets.line_view import LineView
from crewboard_tui.widgets.pane_title import title


class TasksScreen(TaskKeys):
    """The task board."""

    MODE = "tasks"
    STATES = TASK_GROUPS
    FINDS = FINDS_TASKS
    AUTO_FOCUS = "#tasks"

    def body(self) -> Iterable[Widget]:
        yield LineList(id="tasks", classes="pane")
        yield LineView(id="task", classes="pane", follow=False, follows=False)

    def selected_task(self) -> Task | None:
        selected = self.query_one("#tasks", LineList).selected if self.is_mounted else None
        return next((task for task in self.context.snapshot.view.tasks if str(task.id) == selected), None)

    def select_task(self, ident: int) -> None:
        self.go_to(str(ident))

    def go_to(self, key: str) -> None:
        self.query_one("#tasks", LineList).want(key)

    def selected_agent(self) -> str | None:
        """Its owner, or who had it and may come back."""
        task = self.selected_task()
        return None if task is None else task.last_owner if is_orphan(task) else task.owner

    def interest(self) -> Interest:
        """Of a task that failed, its owner's journal may say why."""
        task = self.selected_task()
        return Interest(agent=task.owner if task is not None and task.status == "failed" else None)

    def paint(self, snapshot: Snapshot) -> None:
        rows = self.query_one("#tasks", LineList)
        ids = {str(task.id) for task in snapshot.view.tasks if task_in_group(task, snapshot.view, self.group)}
        found = task_rows(snapshot.view, self.context.now, rows.row_width, self.filter)
        found = [row for row in found if row.key in ids]
        rows.show(found or [self.nothing(self._first)])
        done = tally(snapshot.view.tasks, " completed")
        title(rows, f"Tasks{' · ' if done else ''}{done}{self.narrowed_to}")
        self._paint_task()

    @property
    def _first(self) -> str:
        """What to do on an empty board."""
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
        self.context.look_at(self.interest())

    @on(LineList.Moved, "#tasks")
    def _explain(self) -> None:
        self._paint_task()
        self.paint_keys()

    @on(LineList.Opened, "#tasks")
    def _open(self) -> None:
        self.read_in(self.query_one("#task"))
