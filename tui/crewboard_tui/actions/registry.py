"""An action: a key of the table, whether it can be used on a selection, and what it does.

`views/palette.py` lists actions: the menu of `.` and the command palette.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from time import monotonic

from msgspec import Struct
from msgspec.structs import replace

from crewboard import AgentView, Need, Task, TeamView, UsageError
from crewboard.operations import Operation
from crewboard_tui.compose.composer import PromptLine
from crewboard_tui.compose.parser import resolve_prefix
from crewboard_tui.context import AGAIN_WITHIN, AppContext
from crewboard_tui.keymap.bindings import BY_ID
from crewboard_tui.render.lines import clip, one_line
from crewboard_tui.widgets.line_list import LineList

_NAME = 10
"""Cells for the name of a marked agent in the footer."""


def _ignore(*_: object) -> None:
    """Do nothing."""


class Selection(Struct, frozen=True):
    """The rows that the keys of a view act on.

    `targets` are the names of the marked agents, or of the agent under the cursor if none is marked; `agents` are those
    of them that are on the team. `agent` is the agent under the cursor, `marked` are the names of marked agents. `task`
    is the task under the cursor, `tasks` are the marked tasks, or that one if none is marked. `needs` are the selected
    needs, in a list of needs. An action calls `unmark` with the names that it was applied to, and `show_agent` or
    `show_task` to put the cursor on an agent or a task that it made.
    """

    targets: tuple[str, ...] = ()
    agents: tuple[AgentView, ...] = ()
    agent: AgentView | None = None
    marked: tuple[str, ...] = ()
    task: Task | None = None
    tasks: tuple[Task, ...] = ()
    needs: tuple[Need, ...] = ()
    unmark: Callable[[Iterable[str]], None] = _ignore
    show_agent: Callable[[str], None] = _ignore
    show_task: Callable[[int], None] = _ignore

    @property
    def marked_tasks(self) -> tuple[Task, ...]:
        """Return the marked tasks, or the one under the cursor; empty if there is neither."""
        return self.tasks or ((self.task,) if self.task is not None else ())

    @property
    def identity(self) -> tuple[object, ...]:
        """Return a value that is equal for selections of the same agents, tasks and needs."""
        names = self.targets or tuple(each.name for each in self.agents)
        return names, tuple(task.id for task in self.marked_tasks), tuple(need.key for need in self.needs)


def select(view: TeamView, name: str | None) -> Selection:
    """Return the selection of the agent `name`; an empty one for None."""
    agent = view.agent(name)
    return Selection((name,) if name else (), (agent,) if agent is not None else (), agent)


def select_needs(view: TeamView, needs: Iterable[Need], found: Selection) -> Selection:
    """Return `found`, the selection of the agents of these needs, with the needs and their tasks.

    Keys then act on a failed task, not on the agent that had it; the agent is selected too if its check fails or its
    assignment failed, because it still has its task. For a lost host, all agents that were lost with it are selected.
    """
    chosen = tuple(needs)
    tasks = tuple(task for need in chosen if (task := view.task(need.task)) is not None)
    about = [need for need in chosen if need.task is None or need.kind in ("check_failed", "failed")]
    names = dict.fromkeys(name for need in about for name in (need.agents or (need.agent,)))
    agents = tuple(agent for name in names if (agent := view.agent(name)) is not None)
    return replace(found, needs=chosen, tasks=tasks, task=tasks[0] if tasks else None, agents=agents)


def select_in(view: TeamView, rows: LineList, agent_of: Callable[[str], str | None] = str) -> Selection:
    """Return the selection in a list whose rows can be marked; `agent_of` returns the agent of the row with a key."""

    def names(keys: Iterable[str]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for key in keys if (name := agent_of(key))))

    def unmark(done: Iterable[str]) -> None:
        found = set(done)
        rows.unmark([key for key in rows.shown_marks if agent_of(key) in found])

    targets, name = names(rows.targets), agent_of(rows.selected) if rows.selected else None
    return Selection(
        targets=targets,
        agents=tuple(agent for name in targets if (agent := view.agent(name)) is not None),
        agent=view.agent(name),
        marked=names(rows.shown_marks),
        unmark=unmark,
    )


class Action(Struct, frozen=True):
    """Something that a key does to the selection of a view.

    `id` is the id of the key in the table, which has its label and help. `available` returns the reason why the key
    does nothing now, or None if it works. `label` returns a label for the footer that fits the selection better than
    the table's, or None.
    """

    id: str
    run: Callable[[Selection], Awaitable[None] | None]
    available: Callable[[Selection], str | None] = lambda _: None
    label: Callable[[Selection], str | None] = lambda _: None


class Layer(Struct, frozen=True):
    """Something on a view that the key `view.back` closes before it leaves the view.

    `label` is the label of that key while it is open.
    """

    is_open: Callable[[], bool]
    close: Callable[[], object]
    label: str | None = None


def unavailable(reason: Callable[[], str], *ids: str) -> tuple[Action, ...]:
    """Return an action for each id that is never available in a view; its key only shows the reason."""
    return tuple(Action(ident, _ignore, lambda _: reason()) for ident in ids)


# ------------------------------------------------------------------------------------------------------ operations


class Operations:
    """Starts operations, after asking for the text or the confirmation that they need."""

    def __init__(self, context: AppContext) -> None:
        self._context = context
        self._armed: tuple[tuple[str, ...], float] = ((), 0.0)
        """The key and the targets of the last press that asked for a second one, and its time."""

    def do(
        self,
        operation: Operation,
        ident: str,
        targets: Mapping[str, AgentView | Task],
        unmark: Callable[[Iterable[str]], None],
    ) -> None:
        """Do an operation on agents or tasks, given by name or as `#14`. `ident` is the id of the key that was pressed.

        `unmark` is called with the names of the targets, and the ids of tasks.
        """
        if not targets:
            return
        key, named, view = self._context.key, ", ".join(targets), self._context.view
        chosen: list[AgentView | Task] = list(targets.values())

        def start(*given: str) -> None:
            takes_back = f"; {key(ident)} again takes that back" if operation.back else ""

            def run(called: str) -> str:
                target = targets[called]
                done = operation.run(self._context.team, target.id if isinstance(target, Task) else target.name, *given)
                if done.did_nothing:
                    raise UsageError(done.says)
                return done.says + takes_back + operation.after(done, key)

            self._context.do_for_each(operation.doing, list(targets), run, operation.done + takes_back)
            if not operation.repeats:
                unmark(called.removeprefix("#") for called in targets)

        pressed = (ident, *sorted(targets))
        (armed, at), self._armed = self._armed, (pressed, monotonic())
        consequence = operation.consequence(chosen, view, key)
        if operation.asks is not None:
            asks = operation.asks

            def read(text: str) -> str:
                agents = [agent.name for agent in view.agents]
                return resolve_prefix(text.strip(), agents) if asks.names is not None else text

            def check(text: str) -> str | None:
                return next((why for each in chosen if (why := asks.why_not(read(text), each, view)) is not None), None)

            present = asks.text(chosen[0]) if len(chosen) == 1 else ""
            names = asks.names(chosen, view) if asks.names is not None else ()
            prompt = PromptLine(asks.label(named), present, hint=asks.hint, check=check, names=names)
            self._context.navigator.ask(prompt, lambda text: start(read(text)))
        elif operation.confirm == "yes":
            ask_yes(self._context, f"{operation.label} {named}?", consequence, start, f"{operation.label}s none")
        elif operation.confirm == "again" and (armed != pressed or monotonic() - at > AGAIN_WITHIN):
            words = f"{key(ident)} again within {AGAIN_WITHIN:.0f} s {consequence}"
            self._context.say(words, "warning bold", AGAIN_WITHIN)
        else:
            self._armed = ((), 0.0)
            start()


def ask_yes(
    context: AppContext, question: str, says: str, start: Callable[[], object], leaves: str = "leaves it as it is"
) -> None:
    """Ask the user to type yes, and then call `start`.

    The hint shows `says`, what a yes does, and `leaves`, what the key does that leaves the prompt.
    """

    def check(text: str) -> str | None:
        return None if text.strip() == "yes" else "type yes, or leave"

    hint = f"Type yes · {says} · {context.key('line.leave')} {leaves}"
    context.navigator.ask(PromptLine(question, hint=hint, check=check), lambda _: start())


# ------------------------------------------------------------------------------------------------ for several agents


def for_fitting(
    ident: str,
    run: Callable[[Selection], None],
    fits: Callable[[AgentView], bool],
    label: Callable[[Selection], str | None] = lambda _: None,
    why_not: Callable[[str], str | None] = lambda _: None,
) -> Action:
    """Return an action on those selected agents that it `fits`.

    If it fits none of them, `why_not` is called with words such as `api is`, and returns the reason with them, or None
    for the usual one.
    """

    def available(selection: Selection) -> str | None:
        if any(map(fits, selection.agents)):
            return None
        names = ", ".join(agent.name for agent in selection.agents)
        reason = why_not(f"{names} {'is' if len(selection.agents) == 1 else 'are'}") if names else None
        return reason or not_for(selection)

    def aimed_label(selection: Selection) -> str | None:
        names = [agent.name for agent in selection.agents if fits(agent)]
        return aimed(label(selection) or BY_ID[ident].label, names) if selection.marked else label(selection)

    return Action(ident, run, available, aimed_label)


def either(first: Action, second: Action, label: str) -> Action:
    """Return the action `second`. Where `first` is available, it runs `first` instead, and has the label `label`."""

    def works(selection: Selection) -> bool:
        return first.available(selection) is None

    return Action(
        second.id,
        lambda selection: (first if works(selection) else second).run(selection),
        lambda selection: None if works(selection) else second.available(selection),
        lambda selection: (first.label(selection) or label) if works(selection) else second.label(selection),
    )


def not_for(selection: Selection) -> str:
    """Return the reason why an action about agents does not work on this selection."""
    names = ", ".join(agent.name for agent in selection.agents)
    return f"not for {names} now" if names else "select an agent first"


def aimed(label: str, names: Sequence[str]) -> str:
    """Return a label with the marked agents that a key acts on: `stop ✓api`, `stop ✓3`.

    It says so because the cursor may be on another agent.
    """
    shown = clip(one_line(names[0]), _NAME) if len(names) == 1 else str(len(names))
    return f"{label} ✓{shown}"


def marks_layer(rows: LineList) -> Layer:
    """Return the layer of the marks in a list, which Esc removes."""
    return Layer(lambda: bool(rows.shown_marks), lambda: rows.unmark(rows.shown_marks), "unmark")
