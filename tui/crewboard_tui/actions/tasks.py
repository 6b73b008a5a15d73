"""Actions on tasks. Each does what a shell command does: new, assign, block, edit, raise, lower, cancel, reopen."""

from collections.abc import Callable
from functools import partial

from msgspec.structs import replace

from crewboard import Task, TeamView, UsageError
from crewboard.commands import tasks
from crewboard.store import tasks as store_tasks
from crewboard.store.tasks import CLOSED
from crewboard_tui.actions.messaging import keep_unsent
from crewboard_tui.actions.registry import Action, Selection, aimed
from crewboard_tui.background import run_for_each
from crewboard_tui.compose.composer import PromptLine
from crewboard_tui.compose.parser import resolve_prefix
from crewboard_tui.context import AppContext
from crewboard_tui.drafts import TASK, edit_of_task
from crewboard_tui.keymap.bindings import BY_ID

_TO_DO = frozenset({"pending", "in_progress", "failed"})
"""Statuses of tasks whose priority matters: a failed task may be tried again."""


class TaskActions:
    """The actions on the selected task, in `actions`."""

    def __init__(self, context: AppContext) -> None:
        self._context = context
        self.reopen = _on_tasks("task.reopen", self._reopen, lambda task: task.status in CLOSED)
        self.actions = (
            Action("task.new", self._new),
            _on_tasks("task.assign", self._assign, lambda task: _is_open(task) or task.status == "failed"),
            _on_tasks("task.block", self._block, lambda task: task.status == "pending", one=True),
            _on_tasks("task.edit", self._edit, lambda _: True, one=True),
            _on_tasks("task.raise", partial(self._reprioritise, change=1), lambda task: task.status in _TO_DO),
            _on_tasks("task.lower", partial(self._reprioritise, change=-1), lambda task: task.status in _TO_DO),
            _on_tasks("task.cancel", self._cancel, _is_open),
            self.reopen,
        )
        self.retry = _on_tasks("agent.resume", self._retry, lambda task: task.status == "failed")
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
        made: list[int] = []
        subject, description = split_text(text)

        def add() -> str:
            made.append(tasks.add_task(self._context.team, subject, description=description).id)
            assign, block = self._context.key("task.assign"), self._context.key("task.block")
            return f"task {made[0]} is on the board: {assign} assigns it, {block} lets it wait for others"

        def added(worked: bool, says: str) -> None:  # noqa: ARG001, FBT001
            if worked:
                selection.show_task(made[0])

        keep = keep_unsent(self._context, lambda: TASK, text)
        self._context.do("putting a task on the board", add, added, settle=keep)

    def _for_each(
        self, doing: str, chosen: list[Task], command: Callable[[Task], str], done: str, selection: Selection
    ) -> None:
        """Run a command for several tasks at once, and report the outcome in one sentence."""
        by_label = {f"#{task.id}": task for task in chosen}
        run = partial(run_for_each, list(by_label), lambda label: command(by_label[label]), done)
        self._context.do(f"{doing} {', '.join(by_label)}", run)
        selection.unmark([str(task.id) for task in chosen])

    def _assign(self, chosen: list[Task], selection: Selection) -> None:
        view = self._context.snapshot.view
        team = [agent.name for agent in view.agents]

        def done(name: str | None) -> None:
            if name is not None:
                owner = resolve_prefix(name.strip(), team)
                self._for_each("assigning", chosen, lambda task: self._give(task.id, owner), "assigned", selection)

        def check(name: str) -> str | None:
            return next((why for task in chosen if (why := why_not(view, task, name)) is not None), None)

        names = [agent.name for agent in view.agents if not any(_misfit(task, agent.type) for task in chosen)]
        label = f"{', '.join(f'#{task.id}' for task in chosen)} to"
        prompt = PromptLine(label, check=check, names=names, hint="an agent's name, or how it begins")
        prompt.pressed = self._context.key
        self._context.navigator.ask(prompt, done)

    def _give(self, ident: int, name: str) -> str:
        found = next((task for task in self._context.snapshot.view.tasks if task.id == ident), None)
        reopens = found is not None and found.status in CLOSED
        task = tasks.update_task(self._context.team, ident, owner=name, status="pending" if reopens else None)
        if hindrances := self._hindrances(task):
            return f"task {ident} is {name}'s: {'; '.join(hindrances)}"
        waiting = store_tasks.blockers(
            task, {each.id: each for each in store_tasks.load_all(self._context.team.directory)}
        )
        begins = f"who begins after {', '.join(f'#{other}' for other in waiting)}" if waiting else "who is told"
        return f"task {ident} is {name}'s, {begins}"

    def _hindrances(self, task: Task) -> list[str]:
        owner = self._context.snapshot.view.agent(task.owner) if task.owner else None
        return tasks.blocking_reasons(self._context.team, task, owner_lives=owner is not None and owner.alive)

    def _block(self, chosen: list[Task], _: Selection) -> None:
        task = chosen[0]

        def done(text: str | None) -> None:
            if text is not None:
                self._context.do(f"changing #{task.id}", partial(self._wait_for, task.id, ids(text)))

        def check(text: str) -> str | None:
            return cannot_wait(self._context.snapshot.view, task.id, text)

        kept = " ".join(f"#{other}" for other in task.blocked_by)
        hint = "numbers of tasks that come first, such as 9 11 · empty: none"
        self._context.navigator.ask(PromptLine(f"#{task.id} waits for", kept, check=check, hint=hint), done)

    def _wait_for(self, ident: int, blocked_by: list[int]) -> str:
        task = tasks.block_task(self._context.team, ident, blocked_by)
        others = ", ".join(f"#{other}" for other in blocked_by)
        if hindrances := self._hindrances(task):
            return f"task {ident} waits: {'; '.join(hindrances)}"
        return f"task {ident} waits for {others}" if others else f"task {ident} waits for no other"

    def _edit(self, chosen: list[Task], _: Selection) -> None:
        task, drafts = chosen[0], self._context.drafts
        from crewboard_tui.compose.draft_input import Prose

        name, shown = edit_of_task(task.id), as_text(task.subject, task.description)

        def keep(text: str) -> None:
            if text == shown:
                drafts.pop(name, None)
            else:
                drafts[name] = text

        def done(text: str | None) -> None:
            if text is not None:
                drafts.pop(name, None)
                if text != shown:
                    settle = keep_unsent(self._context, lambda: name, text)
                    self._context.do(f"editing #{task.id}", partial(self._save, task.id, shown, text), settle=settle)

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

    def _save(self, task_id: int, shown: str, text: str) -> str:
        """Save what differs from the text that was shown, so that no other change is lost."""
        (old_subject, old_description), (subject, description) = split_text(shown), split_text(text)
        if (subject, description) == (old_subject, old_description):
            return f"task {task_id} is as it was"
        changed = tasks.update_task(
            self._context.team,
            task_id,
            subject=subject if subject != old_subject else None,
            description=description if description != old_description else None,
        )
        told = f": {changed.owner} is not told, {self._context.key('agent.message')} writes to it"
        return f"task {task_id} is changed" + (told if changed.status == "in_progress" else "")

    def _reprioritise(self, chosen: list[Task], selection: Selection, change: int) -> None:
        def reprioritise(task: Task) -> str:
            changed = tasks.raise_priority(self._context.team, task.id, change)
            return f"task {task.id}: {tasks.describe_priority(changed.priority)}"

        # The marks stay: the key may be pressed several times.
        doing, done = ("raising", "raised") if change > 0 else ("lowering", "lowered")
        self._for_each(doing, chosen, reprioritise, done, replace(selection, unmark=lambda _: None))

    def _cancel(self, chosen: list[Task], selection: Selection) -> None:
        def cancel(task: Task) -> str:
            tasks.update_task(self._context.team, task.id, status="cancelled")
            said = f"task {task.id} is cancelled: {self._context.key('task.reopen')} opens it again"
            if task.status == "in_progress":
                said += f"; {task.owner} is not told: {self._context.key('agent.message')} writes to it"
            return said

        self._for_each("cancelling", chosen, cancel, "cancelled", selection)

    def _reopen(self, chosen: list[Task], selection: Selection) -> None:
        def reopen(task: Task) -> str:
            tasks.reopen_task(self._context.team, task.id)
            assign = self._context.key("task.assign")
            return f"task {task.id} is open again, for any agent to take; {assign} assigns it"

        self._for_each("reopening", chosen, reopen, "open again", selection)

    def _retry(self, chosen: list[Task], selection: Selection) -> None:
        def retry(task: Task) -> str:
            owner = tasks.retry_task(self._context.team, task.id).owner
            return f"task {task.id} is open again, " + (f"{owner} is told" if owner else "for any agent to take")

        self._for_each("retrying", chosen, retry, "open again", selection)


def _on_tasks(
    ident: str, run: Callable[[list[Task], Selection], None], fits: Callable[[Task], bool], *, one: bool = False
) -> Action:
    """Return an action on those of the selected tasks that it `fits`; with `one`, on a single task only."""

    def fitting(selection: Selection) -> list[Task]:
        chosen = selection.tasks or ((selection.task,) if selection.task is not None else ())
        return [task for task in chosen if fits(task)]

    def act(selection: Selection) -> None:
        if found := fitting(selection):
            run(found, selection)

    def available(selection: Selection) -> str | None:
        if one and len(selection.tasks) > 1:
            return "one task at a time"
        if fitting(selection):
            return None
        chosen = selection.tasks or ((selection.task,) if selection.task is not None else ())
        states = dict.fromkeys(task.status.replace("_", " ") for task in chosen)
        return f"not while it is {' or '.join(states)}" if states else "select a task first"

    def label(selection: Selection) -> str | None:
        found = [f"#{task.id}" for task in fitting(selection)]
        return aimed(BY_ID[ident].label, found) if len(selection.tasks) > 1 and found else None

    return Action(ident, act, available, label)


def as_text(subject: str, description: str) -> str:
    """Return a task as one text to edit: the subject is the first line."""
    from crewboard_tui.compose.draft_input import clean

    return "\n".join(filter(None, (clean(subject, one_line=True).strip(), clean(description).strip())))


def split_text(text: str) -> tuple[str, str]:
    """Return the subject and the description that `as_text` joined."""
    subject, _, description = text.strip().partition("\n")
    return subject.strip(), description.strip()


def _is_open(task: Task) -> bool:
    return task.status not in CLOSED


def _misfit(task: Task, kind: str) -> bool:
    return task.required_type not in (None, kind)


def why_not(view: TeamView, task: Task, name: str) -> str | None:
    """Return why `task` cannot be assigned to the agent `name`; None if it can."""
    names = [each.name for each in view.agents]
    agent = view.agent(resolve_prefix(name.strip(), names))
    if agent is None:
        wrong = f"there is no agent {name.strip()!r}" if name.strip() else "type a name"
        return f"{wrong}; " + (f"there are {', '.join(names)}" if names else "no agents yet")
    if _misfit(task, agent.type):
        return f"#{task.id} is for an agent of type {task.required_type}; {agent.name} is of type {agent.type}"
    return None


def ids(text: str) -> list[int]:
    """Parse ids: `#9 11, 12` gives 9, 11 and 12.

    Raises:
        ValueError: One of the words is no number.
    """
    return [int(word.removeprefix("#")) for word in text.replace(",", " ").split()]


def cannot_wait(view: TeamView, task_id: int, text: str) -> str | None:
    """Return why a task cannot wait for those that `text` names; None if it can."""
    try:
        store_tasks.check_blockers(task_id, ids(text), {task.id: task for task in view.tasks})
    except ValueError:
        return "give the numbers of tasks, such as 9 11"
    except UsageError as error:
        return str(error)
    return None
