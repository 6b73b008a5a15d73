"""`3` Tasks: the whole board, and everything about the selected task."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from msgspec.structs import replace
from textual import on

from crewboard import Task
from crewboard_tui.actions.agents import NeedActions, TaskActions
from crewboard_tui.actions.messaging import Messaging
from crewboard_tui.actions.registry import Selection, marks_layer, select_in, unavailable
from crewboard_tui.actions.search import FINDS_TASKS, TASK_GROUPS, Search, matches_task, task_in_group
from crewboard_tui.queries import Query, Snapshot, WorkOf
from crewboard_tui.render.formats import share_bar
from crewboard_tui.render.lines import Line, plain
from crewboard_tui.render.looks import tally
from crewboard_tui.views.base import WIDE, AppContext, BaseScreen
from crewboard_tui.views.rows import (
    DONE,
    INDENT,
    DoneTasks,
    TaskTree,
    fact_lines,
    is_orphan,
    task_detail,
    task_line,
    task_rank,
)
from crewboard_tui.widgets.line_list import LazyRows, LineList, Order

_ABOUT_THE_OWNER = ("agent.answer", "agent.stop", "agent.end", "agent.pause", "agent.interrupt", "agent.fresh")
"""Keys about agents that a user could press here for the task. They only say that they do not work."""

_BEFORE_SUBJECT = 11
"""Cells for the state, mark, number and priority of a task."""

_BAR = 10
"""Cells of the bar that shows how many tasks are completed."""

SORTS: dict[str, Callable[[Task], Any]] = {
    "status": task_rank,
    "number": lambda task: task.id,
    "owner": lambda task: (task.owner or task.last_owner or "~", task.id),
    "changed": lambda task: -max(task.updated_at, task.edited_at),
}
"""The orders of tasks by sort key."""

_TREE = "status"
"""The sort key with which each task is below a task that it waits for."""


class TasksScreen(BaseScreen):
    """The task board, and the details of the selected task."""

    CSS_PATH = "tasks.tcss"
    MODE = "tasks"
    AUTO_FOCUS = "#tasks"
    DETAIL = "task"

    def __init__(self, context: AppContext) -> None:
        super().__init__(context)
        self.rows = LineList(marks=True, sorts=tuple(SORTS), id="tasks", classes="pane")
        self.search = Search(context, self.narrow, FINDS_TASKS, TASK_GROUPS)
        self._tree, self._done = TaskTree(), DoneTasks()
        self.back_layers = (marks_layer(self.rows), self.panes.layer, self.search.layer)
        self.offer(
            TaskActions(context).actions,
            unavailable(lambda: "not on the task board", *_ABOUT_THE_OWNER),
            NeedActions(context).actions,
            Messaging(context).actions,
            self.search.actions,
            self.panes.actions,
        )

    def selected_task(self) -> Task | None:
        selected = self.selected
        return next((task for task in self.context.view.tasks if str(task.id) == selected), None)

    def go_to(self, key: str) -> None:
        tasks = self.context.view.tasks
        self._done.is_unfolded |= any(str(task.id) == key and task.status == "completed" for task in tasks)
        self.rows.want(key)

    def selection(self) -> Selection:
        """Return the tasks, with their owners, or with the agents that had them and may come back."""
        rows, view = self.rows, self.context.view
        owners = {str(task.id): task.last_owner if is_orphan(task) else task.owner for task in view.tasks}
        targets = set(rows.targets)
        return replace(
            select_in(view, rows, owners.get),
            task=self.selected_task(),
            tasks=tuple(task for task in view.tasks if str(task.id) in targets),
            unmark=lambda _: rows.unmark(rows.shown_marks),
            show_task=partial(self._show_made, self.selected),
        )

    def _show_made(self, before: str | None, ident: int) -> None:
        """Put the cursor on a task that was made, unless it has left the task `before`, as after a click."""
        if self.selected == before:
            self.go_to(str(ident))

    def queries(self) -> Iterable[Query[object]]:
        # Of a task that failed, its owner's journal may say why.
        task = self.selected_task()
        if task is not None and task.status == "failed" and task.owner:
            yield WorkOf(task.owner)

    def paint(self, snapshot: Snapshot) -> None:
        rows, view = self.rows, snapshot.view
        rows.marked &= {str(task.id) for task in view.tasks}
        shown = [
            task
            for task in view.tasks
            if task_in_group(task, view, self.search.group) and matches_task(task, self.search.words)
        ]
        is_tree = rows.order == Order(_TREE)
        tree = self._tree.depths(shown)
        place = {ident: at for at, ident in enumerate(tree)}
        rank = (lambda task: place[task.id]) if is_tree else SORTS[rows.order.by]
        tasks = rows.in_order(shown, lambda task: str(task.id), rank)
        depths = tree if is_tree else dict.fromkeys(tree, 0)
        now, width = self.context.now, rows.row_width
        longest = max((len(task.subject) + INDENT * depths[task.id] for task in tasks), default=0)
        owner_at = min(_BEFORE_SUBJECT + longest, width // 2) if self.size.width >= WIDE else 0
        # What is looked for, and another order, folds nothing.
        folds = is_tree and not self.search.is_narrowed
        listed = self._done.fold(tasks, rows.selected) if folds else tasks

        def line_of(at: int) -> Line:
            if (task := listed[at]) is None:
                return self._done.line(width, self.context.key("list.open"))
            marked = str(task.id) in rows.marked
            return task_line(task, view, now, width, marked=marked, owner_at=owner_at, depth=depths[task.id])

        found = LazyRows([DONE if task is None else str(task.id) for task in listed], line_of)
        key = self.context.key("task.new")
        puts = f"; {key} puts the first one on the board; a subject, then what is to be done, as `fix the login`"
        puts = "" if self.context.read_only else puts
        rows.show(found or rows.empty_rows(self.search.nothing(f"no tasks yet{puts}")))
        rows.note_glyphs(self._tree.glyphs)
        done = tally(view.tasks, " completed")
        states = [task.status for task in view.tasks if task.status != "cancelled"]
        bar = plain(share_bar(states.count("completed") / len(states), _BAR)).strip() if states else ""
        rows.rule.entitle(f"Tasks{' · ' if done else ''}{done}{rows.state}{self.search.narrowed_to}", bar)
        self.paint_detail(snapshot)

    def paint_detail(self, snapshot: Snapshot) -> None:
        pane, task = self.detail, self.selected_task()
        is_done = self.rows.selected == DONE
        pane.rule.entitle(f"#{task.id}" if task else "Done" if is_done else "Task")
        self.panes.show_below(pane, shown=task is not None or is_done)
        lines: list[Line] = []
        if is_done:
            view = snapshot.view
            done = sorted((each for each in view.tasks if each.status == "completed"), key=task_rank)
            lines = [task_line(each, view, self.context.now, pane.line_width) for each in done]
        elif task is not None:
            lines = fact_lines(task_detail(task, snapshot, self.context.now), pane.line_width)
        pane.show(lines)
        self.ask()

    @on(LineList.Opened, "#tasks")
    def _open(self, event: LineList.Opened) -> None:
        if event.key == DONE:
            self._done.is_unfolded ^= True
            self.paint(self.context.snapshot)
            return
        self.panes.read_in(self.detail)
