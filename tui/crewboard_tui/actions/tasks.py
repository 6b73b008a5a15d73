"""The keys that are about tasks. Each does what a command does in a shell: new, assign, block, cancel, reopen."""

from collections.abc import Callable
from functools import partial
from typing import ClassVar

from textual.binding import BindingType

from crewboard.commands import tasks as board
from crewboard.errors import UsageError
from crewboard.readmodel.team import TeamView
from crewboard.records import Task
from crewboard.store import tasks
from crewboard.store.tasks import CLOSED
from crewboard_tui.compose.drafts import TASK
from crewboard_tui.compose.parser import resolve_prefix
from crewboard_tui.compose.prompt_line import PromptLine
from crewboard_tui.keymap import bindings
from crewboard_tui.views.numbered import Numbered

_FITS: dict[str, Callable[[Task], bool]] = {
    "assign": lambda task: task.status not in CLOSED,
    "block": lambda task: task.status == "pending",
    "cancel": lambda task: task.status not in CLOSED,
    "reopen": lambda task: task.status in CLOSED,
}
"""Which tasks an action makes sense for."""

_THE_OWNERS = frozenset({"answer", "stop", "end", "pause", "interrupt", "resume_fresh"})
"""Keys about agents that somebody could press here and mean the task."""


class TaskKeys(Numbered):
    """A view in which a task can be selected."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings.bindings("tasks")]

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
                self.context.drafts.pop(TASK, None)
                self._add(subject.strip())

        def keep(subject: str) -> None:
            self.context.drafts[TASK] = subject

        puts, leaves = self.context.key("draft.send"), self.context.key("line.leave")
        hint = f"what is to be done · {puts} puts it on the board · {leaves} keeps it"
        self.context.navigator.ask(
            PromptLine(TASK, lambda: self.context.drafts.get(TASK, ""), hint=hint, changed=keep), done
        )

    def _add(self, subject: str) -> None:
        made: list[int] = []

        def add() -> str:
            made.append(board.add_task(self.context.team, subject).id)
            assign, block = self.context.key("task.assign"), self.context.key("task.block")
            return f"task {made[0]} is on the board: {assign} assigns it, {block} lets it wait for others"

        def added(worked: bool, says: str) -> None:  # noqa: ARG001, FBT001
            if worked:
                self.select_task(made[0])

        settle = self._or_keep(lambda: TASK, subject)
        self.context.do("putting a task on the board", add, added, settle=settle)

    def action_assign(self) -> None:
        task = self.selected_task()
        if task is None:
            return

        def done(name: str | None) -> None:
            if name is not None:
                self._change(
                    f"assigning #{task.id}", partial(self._assign, task.id, resolve_prefix(name.strip(), everybody))
                )

        everybody = [agent.name for agent in self.context.snapshot.view.agents]
        names = [agent.name for agent in self.context.snapshot.view.agents if not _misfit(task, agent.type)]
        check = partial(why_not, self.context.snapshot.view, task)
        ask = PromptLine(f"#{task.id} to", check=check, names=names, hint="an agent's name, or how it begins")
        ask.pressed = self.context.key
        self.context.navigator.ask(ask, done)

    def _assign(self, ident: int, name: str) -> str:
        task = board.update_task(self.context.team, ident, owner=name)
        if hindrances := self._hindrances(task):
            return f"task {ident} is {name}'s: {'; '.join(hindrances)}"
        waiting = tasks.blockers(task, {each.id: each for each in tasks.load_all(self.context.team.directory)})
        begins = f"who begins after {', '.join(f'#{other}' for other in waiting)}" if waiting else "who is told"
        return f"task {ident} is {name}'s, {begins}"

    def _hindrances(self, task: Task) -> list[str]:
        owner = self.context.snapshot.view.agent(task.owner) if task.owner else None
        return board.blocking_reasons(self.context.team, task, owner_lives=owner is not None and owner.alive)

    def action_block(self) -> None:
        task = self.selected_task()
        if task is None:
            return

        def done(text: str | None) -> None:
            if text is not None:
                self._change(f"changing #{task.id}", partial(self._block, task.id, ids(text)))

        def check(text: str) -> str | None:
            return cannot_wait(self.context.snapshot.view, task.id, text)

        kept = " ".join(f"#{other}" for other in task.blocked_by)
        hint = "numbers of tasks that come first, such as 9 11 · empty: none"
        self.context.navigator.ask(PromptLine(f"#{task.id} waits for", kept, check=check, hint=hint), done)

    def _block(self, ident: int, blocked_by: list[int]) -> str:
        task = board.block_task(self.context.team, ident, blocked_by)
        others = ", ".join(f"#{other}" for other in blocked_by)
        if hindrances := self._hindrances(task):
            return f"task {ident} waits: {'; '.join(hindrances)}"
        return f"task {ident} waits for {others}" if others else f"task {ident} waits for no other"

    def action_cancel(self) -> None:
        task = self.selected_task()
        if task is not None:
            self._change(f"cancelling #{task.id}", partial(self._cancel, task))

    def _cancel(self, task: Task) -> str:
        board.update_task(self.context.team, task.id, status="cancelled")
        said = f"task {task.id} is cancelled: {self.context.key('task.reopen')} opens it again"
        if task.status == "in_progress":
            said += f"; {task.owner} is not told: {self.context.key('agent.message')} writes to it"
        return said

    def action_reopen(self) -> None:
        task = self.selected_task()
        if task is not None:
            self._change(f"opening #{task.id} again", partial(self._reopen, task.id))

    def _reopen(self, ident: int) -> str:
        board.update_task(self.context.team, ident, status="pending")
        return f"task {ident} is open again, for anybody to take; {self.context.key('task.assign')} assigns it"

    def _change(self, label: str, command: Callable[[], str]) -> None:
        self.context.do(label, command)


def _misfit(task: Task, kind: str) -> bool:
    return task.required_type not in (None, kind)


def why_not(view: TeamView, task: Task, name: str) -> str | None:
    """Why `task` cannot be given to the agent called `name`; None if it can."""
    names = [each.name for each in view.agents]
    agent = view.agent(resolve_prefix(name.strip(), names))
    if agent is None:
        wrong = f"there is no agent {name.strip()!r}" if name.strip() else "type a name"
        return f"{wrong}; " + (f"there are {', '.join(names)}" if names else "no agents yet")
    if _misfit(task, agent.type):
        return f"#{task.id} is for an agent of type {task.required_type}; {agent.name} is of type {agent.type}"
    return None


def ids(text: str) -> list[int]:
    """The numbers in `#9 11, 12`.

    Raises:
        ValueError: One of the words is no number.
    """
    return [int(word.removeprefix("#")) for word in text.replace(",", " ").split()]


def cannot_wait(view: TeamView, task_id: int, text: str) -> str | None:
    """Why a task cannot wait for those that `text` names; None if it can."""
    try:
        tasks.check_blockers(task_id, ids(text), {task.id: task for task in view.tasks})
    except ValueError:
        return "give the numbers of tasks, such as 9 11"
    except UsageError as error:
        return str(error)
    return None
