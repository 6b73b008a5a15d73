"""The keys that are about tasks: new, assign, block, cancel. Each is the command of the same name in a shell."""

from collections.abc import Callable
from functools import partial
from typing import ClassVar

from textual.binding import BindingType

from crewboard.records import Task
from crewboard.store.tasks import CLOSED
from crewboard.team import board
from crewboard.view.fold import TeamView
from crewboard_tui import keys
from crewboard_tui.screens.ask_line import AskLine
from crewboard_tui.screens.numbered import Numbered

_NEW = "new task"
_FITS: dict[str, Callable[[Task], bool]] = {
    "assign": lambda task: task.status not in CLOSED,
    "block": lambda task: task.status == "pending",
    "cancel": lambda task: task.status not in CLOSED,
}
"""Which tasks an action makes sense for."""

_THE_OWNERS = frozenset({"answer", "stop", "end", "pause", "interrupt", "resume_fresh"})
"""Keys about agents that somebody could press here and mean the task."""


class TaskKeys(Numbered):
    """A view in which a task can be selected."""

    BINDINGS: ClassVar[list[BindingType]] = [*keys.bindings("tasks")]

    def selected_task(self) -> Task | None:
        """The task under the cursor."""
        return None

    def select_task(self, ident: int) -> None:
        """Put the cursor on a task, which may not be here yet."""

    def offers(self, action: str) -> bool | None:
        if action == "new_task":
            return True
        if action in _FITS:
            task = self.selected_task()
            return task is not None and _FITS[action](task)
        return action not in _THE_OWNERS and super().offers(action)

    def action_new_task(self) -> None:
        def done(subject: str | None) -> None:
            if subject is not None and subject.strip():
                self._add(subject.strip())

        hint = "what is to be done · Enter puts it on the board · Esc keeps it for later"
        kept = self.desk.drafts.get(_NEW, "")
        self.app.push_screen(AskLine(_NEW, kept, hint=hint, left=self._keep), done)

    def _keep(self, subject: str) -> None:
        self.desk.drafts[_NEW] = subject

    def _add(self, subject: str) -> None:
        self._keep(subject)
        made: list[int] = []

        def add() -> str:
            made.append(board.add_task(self.desk.team, subject).id)
            return f"task {made[0]} is on the board: a assigns it, b lets it wait for others"

        def added(worked: bool, says: str) -> None:  # noqa: ARG001, FBT001
            if worked:
                self.select_task(made[0])

        def settle(worked: bool, says: str) -> None:  # noqa: ARG001, FBT001
            if worked:
                self.desk.drafts.pop(_NEW, None)

        self.desk.do("putting a task on the board", add, added, settle=settle)

    def action_assign(self) -> None:
        task = self.selected_task()
        if task is None:
            return

        def done(name: str | None) -> None:
            if name is not None:
                self._change(f"assigning #{task.id}", partial(self._assign, task.id, name.strip()))

        names = [agent.name for agent in self.desk.snapshot.view.agents if not _misfit(task, agent.type)]
        check = partial(why_not, self.desk.snapshot.view, task)
        self.app.push_screen(AskLine(f"#{task.id} to", check=check, names=names, hint="an agent's name"), done)

    def _assign(self, ident: int, name: str) -> str:
        board.update_task(self.desk.team, ident, owner=name)
        return f"task {ident} is {name}'s, who is told"

    def action_block(self) -> None:
        task = self.selected_task()
        if task is None:
            return

        def done(text: str | None) -> None:
            if text is not None:
                self._change(f"changing #{task.id}", partial(self._block, task.id, ids(text)))

        kept = " ".join(f"#{other}" for other in task.blocked_by)
        hint = "numbers of tasks that come first, such as 9 11 · empty: none"
        self.app.push_screen(AskLine(f"#{task.id} waits for", kept, check=_no_ids, hint=hint), done)

    def _block(self, ident: int, blocked_by: list[int]) -> str:
        board.block_task(self.desk.team, ident, blocked_by)
        others = ", ".join(f"#{other}" for other in blocked_by)
        return f"task {ident} waits for {others}" if others else f"task {ident} waits for no other"

    def action_cancel(self) -> None:
        task = self.selected_task()
        if task is not None:
            self._change(f"cancelling #{task.id}", partial(self._cancel, task))

    def _cancel(self, task: Task) -> str:
        board.update_task(self.desk.team, task.id, status="cancelled")
        if task.status == "in_progress":
            return f"task {task.id} is cancelled; {task.owner} is not told: m writes to it"
        return f"task {task.id} is cancelled"

    def _change(self, label: str, command: Callable[[], str]) -> None:
        self.desk.do(label, command)


def _misfit(task: Task, kind: str) -> bool:
    return task.required_type not in (None, kind)


def why_not(view: TeamView, task: Task, name: str) -> str | None:
    """Why `task` cannot be given to the agent called `name`; None if it can."""
    agent = view.agent(name.strip())
    if agent is None:
        known = ", ".join(each.name for each in view.agents)
        return f"there is no agent {name.strip()!r}; " + (f"there are {known}" if known else "n hires the first")
    if _misfit(task, agent.type):
        return f"#{task.id} is for an agent of type {task.required_type}; {agent.name} is of type {agent.type}"
    return None


def ids(text: str) -> list[int]:
    """The numbers in `#9 11, 12`.

    Raises:
        ValueError: One of the words is no number.
    """
    return [int(word.removeprefix("#")) for word in text.replace(",", " ").split()]


def _no_ids(text: str) -> str | None:
    try:
        ids(text)
    except ValueError:
        return "give the numbers of tasks, such as 9 11"
    return None
