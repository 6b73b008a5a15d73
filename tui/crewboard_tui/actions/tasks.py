"""Actions on tasks. Each does an operation: new, assign, block, edit, raise, lower, cancel, reopen."""

from functools import partial

from crewboard import Task
from crewboard.operations import OPERATIONS, Operation, split_text
from crewboard_tui.actions.messaging import keep_unsent
from crewboard_tui.actions.registry import Action, Operations, Selection, aimed
from crewboard_tui.compose.composer import PromptLine
from crewboard_tui.context import AppContext
from crewboard_tui.drafts import TASK, edit_of_task
from crewboard_tui.keymap.bindings import BY_ID


class TaskActions:
    """The actions on the selected task, in `actions`."""

    def __init__(self, context: AppContext) -> None:
        self._context = context
        self._operations = Operations(context)
        of_operations = {
            each.ident: self._of(each, each.ident) for each in OPERATIONS.values() if each.is_on_tasks and each.keys
        }
        self.actions = tuple({**of_operations, "task.new": Action("task.new", self._new)}.values())
        self.reopen = of_operations["task.reopen"]
        self.retry = self._of(OPERATIONS["task.retry"], "agent.resume")
        """Reopens a failed task for the agent that had it. Needs-you offers it in the place of `agent.resume`."""

    def _new(self, selection: Selection) -> None:
        from crewboard_tui.compose.draft_input import Prose

        def done(text: str | None) -> None:
            if text is not None and text.strip():
                self._context.drafts.pop(TASK, None)
                self._add(text, selection)

        def keep(text: str) -> None:
            self._context.drafts[TASK] = text

        hint, prose = self._text_hint("adds it"), Prose.of(self._context)
        prompt = PromptLine(TASK, lambda: self._context.drafts.get(TASK, ""), hint=hint, changed=keep, prose=prose)
        prompt.pressed = self._context.key
        self._context.navigator.ask(prompt, done)

    def _add(self, text: str, selection: Selection) -> None:
        operation, made = OPERATIONS["task.new"], list[int]()

        def add() -> str:
            done = operation.run(self._context.team, text)
            made.append(done.data["id"])
            return done.says + operation.after(done, self._context.key)

        def added(worked: bool, says: str) -> None:  # noqa: ARG001, FBT001
            if worked:
                selection.show_task(made[0])

        keep = keep_unsent(self._context, lambda: TASK, text)
        self._context.do(operation.doing, add, added, settle=keep)

    def _edit(self, task: Task) -> None:
        operation, drafts = OPERATIONS["task.edit"], self._context.drafts
        from crewboard_tui.compose.draft_input import Prose

        name, shown = edit_of_task(task.id), as_text(task.subject, task.description)

        def keep(text: str) -> None:
            if text == shown:
                drafts.pop(name, None)
            else:
                drafts[name] = text

        def save(text: str) -> str:
            done = operation.run(self._context.team, task.id, shown, text)
            return done.says + operation.after(done, self._context.key)

        def done(text: str | None) -> None:
            if text is not None:
                drafts.pop(name, None)
                if text != shown:
                    settle = keep_unsent(self._context, lambda: name, text)
                    self._context.do(f"{operation.doing} #{task.id}", partial(save, text), settle=settle)

        prompt = PromptLine(
            f"#{task.id}", lambda: drafts.get(name, shown), hint=self._text_hint("saves"), changed=keep,
            check=lambda text: None if split_text(text)[0] else "the first line is the subject",
            prose=Prose.of(self._context),
        )  # fmt: skip
        prompt.pressed = self._context.key
        self._context.navigator.ask(prompt, done)

    def _text_hint(self, sends: str) -> str:
        send, line, edit, leave = map(self._context.key, ("draft.send", "draft.newline", "draft.edit", "line.leave"))
        return f"{send} {sends} · {line} adds a line: the description · {edit} editor · {leave} keeps it"

    def _of(self, operation: Operation, ident: str) -> Action:
        """Return the action of an operation on those of the selected tasks that it fits; its key is `ident`."""

        def selected(selection: Selection) -> tuple[Task, ...]:
            return selection.tasks or ((selection.task,) if selection.task is not None else ())

        def fitting(selection: Selection) -> dict[str, Task]:
            return {f"#{task.id}": task for task in selected(selection) if operation.fits(task)}

        def act(selection: Selection) -> None:
            if found := fitting(selection):
                if operation.ident == "task.edit":
                    self._edit(next(iter(found.values())))
                else:
                    self._operations.do(operation, ident, found, selection.unmark)

        def available(selection: Selection) -> str | None:
            if operation.one and len(selection.tasks) > 1:
                return "one task at a time"
            if fitting(selection):
                return None
            states = dict.fromkeys(task.status.replace("_", " ") for task in selected(selection))
            return f"not while it is {' or '.join(states)}" if states else "select a task first"

        def label(selection: Selection) -> str | None:
            found = list(fitting(selection))
            return aimed(BY_ID[ident].label, found) if len(selection.tasks) > 1 and found else None

        return Action(ident, act, available, label)


def as_text(subject: str, description: str) -> str:
    """Return a task as one text to edit: the subject is the first line."""
    from crewboard_tui.compose.draft_input import clean

    return "\n".join(filter(None, (clean(subject, one_line=True).strip(), clean(description).strip())))
