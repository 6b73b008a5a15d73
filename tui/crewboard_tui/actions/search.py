"""Filters of a list: `/` by words, `s:state`, `a:agent`, `#task`; `f` by a group of states; Esc shows all again."""

from collections.abc import Callable, Iterable

from crewboard import AgentView, Message, Need, Task, TeamView
from crewboard.readmodel.reader import blocked
from crewboard_tui.actions.registry import Action, Layer, Selection
from crewboard_tui.compose.composer import PromptLine
from crewboard_tui.context import AppContext
from crewboard_tui.render.looks import look_of, task_look

ALL = "all"

AGENT_GROUPS: dict[str, frozenset[str]] = {
    "needs me": frozenset({"dead", "ask", "stuck", "loop", "limit"}),
    "running": frozenset({"start", "run", "wait"}),
    "idle": frozenset({"idle", "pause", "unknown"}),
    "done": frozenset({"done"}),
}
"""The groups of agents, by the states that they are shown with (`looks.LOOKS`)."""

TASK_GROUPS: dict[str, frozenset[str]] = {
    "needs me": frozenset({"orphaned", "failed"}),
    "running": frozenset({"in progress"}),
    "waiting": frozenset({"pending", "blocked"}),
    "done": frozenset({"completed", "cancelled"}),
}
"""The groups of tasks, by the words for their states (`looks.TASK_LOOKS`)."""


NEED_GROUPS: dict[str, frozenset[str]] = {
    "requests": frozenset({"plan", "permission", "question", "review"}),
    "crashes": frozenset({"death", "failed_start", "failed", "damaged"}),
    "no progress": frozenset(
        {"stuck", "looping", "no_host", "task_failed", "check_failed", "collision", "outage", "mcp"}
    ),
    "results": frozenset({"result"}),
}
"""The groups of needs, by their kinds."""

MAIL_GROUPS = ("messages", "requests", "results")
"""The groups of messages: about a request, the result of an assignment, or anything else."""

FINDS_AGENTS = "words about an agent; s:stuck state, a:api name, h:build2 host, #14 task"
"""Filters that `matches_agent` understands, for the hint."""

FINDS_TASKS = "words about a task; s:failed its status, a:api its owner, #14 itself"
"""Filters that `matches_task` understands, for the hint."""


def in_group(agent: AgentView, view: TeamView, group: str) -> bool:
    """Return True if an agent is in a group of states.

    Every agent is in `ALL`, and each with a need is in `needs me`.
    """
    needed = group == "needs me" and any(need.agent == agent.name for need in view.needs)
    return group == ALL or needed or agent.shown in AGENT_GROUPS[group]


def task_in_group(task: Task, view: TeamView, group: str) -> bool:
    """Return True if a task is in a group of states; every task is in `ALL`."""
    return group == ALL or task_look(task, blocked(task, view.tasks)).word in TASK_GROUPS[group]


def need_in_group(need: Need, group: str) -> bool:
    """Return True if a need is in a group of kinds; every need is in `ALL`."""
    return group == ALL or need.kind in NEED_GROUPS[group]


def mail_in_group(message: Message, group: str) -> bool:
    """Return True if a message is in a group of kinds; every message is in `ALL`."""
    kind = "requests" if "request_id" in message.metadata else "results" if message.type == "result" else "messages"
    return group in (ALL, kind)


def matches_agent(agent: AgentView, wanted: str) -> bool:
    """Return True if an agent passes the filter `wanted`; all pass an empty one."""
    if not wanted:
        return True
    text = f"{agent.name} {agent.type} {agent.role} {agent.doing} {agent.reason}"
    state = f"{look_of(agent).word} {agent.state} {agent.shown}"
    return _passes(wanted, text, state, agent.name, str(agent.task or ""), agent.status.host)


def matches_task(task: Task, wanted: str) -> bool:
    """Return True if a task passes the filter `wanted`; all pass an empty one."""
    if not wanted:
        return True
    text = f"{task.subject} {task.owner or ''} {task.description}"
    return _passes(wanted, text, task.status, task.owner or task.last_owner or "", str(task.id))


def _passes(wanted: str, text: str, state: str, name: str, task: str, host: str | None = None) -> bool:
    """Return True if a filter matches: each of its words is found.

    `s:` is searched in the state, `a:` in the name; `h:` is compared with the host, `#` with the task. Any other word
    must be in `text`, and so must `h:` if the host is None.
    """
    for word in wanted.lower().split():
        if word.startswith("s:"):
            is_found = word[2:] in state
        elif word.startswith("a:"):
            is_found = word[2:] in name
        elif word.startswith("h:") and host is not None:
            is_found = word[2:] == host
        elif word.startswith("#"):
            is_found = word[1:] == task
        else:
            is_found = word in text.lower()
        if not is_found:
            return False
    return True


class Search:
    """The filter of a list: `words`, and one `group` of states. `changed` is called when either has changed.

    `finds` says in the prompt what can be typed. `groups` are the groups of a numbered view; None on a page.
    """

    def __init__(
        self,
        context: AppContext,
        changed: Callable[[], None],
        finds: str = "words of a line",
        groups: Iterable[str] | None = None,
    ) -> None:
        self._context = context
        self._changed = changed
        known = [ALL, *(groups or ())]
        self.words = ""
        self.group = ALL
        filter_ = Action(
            "view.filter",
            lambda _: context.navigator.ask(
                PromptLine("find", self.words, hint=finds, changed=self.narrow), self.narrow
            ),
        )

        def turn_group(_: Selection) -> None:
            self.group = known[(known.index(self.group) + 1) % len(known)]
            changed()

        turn = Action("view.group", turn_group, lambda _: None if len(known) > 1 else "only one group here")
        self.actions = (filter_,) if groups is None else (filter_, turn)
        self.layer = Layer(lambda: self.is_narrowed, self.clear, "all")
        """The layer of the filter, which Esc removes."""

    def narrow(self, text: str) -> None:
        """Show only rows that match `text`."""
        self.words = text.strip()
        self._changed()

    def clear(self) -> None:
        """Remove the filter, so that all rows are shown."""
        self.group = ALL
        self.narrow("")

    @property
    def is_narrowed(self) -> bool:
        """Return True if a group or a filter is active."""
        return bool(self._parts)

    @property
    def _parts(self) -> list[str]:
        return [*([self.group] if self.group != ALL else []), *([f"filter {self.words}"] if self.words else [])]

    @property
    def narrowed_to(self) -> str:
        """Return the filter and the key that removes it: ` · running · filter api · Esc shows all`.

        It is for the pane's title, and empty if the list shows all.
        """
        if not self.is_narrowed:
            return ""
        return "".join(f" · {part}" for part in [*self._parts, f"{self._context.key('view.back')} shows all"])

    def nothing(self, otherwise: str) -> str:
        """Return the text for an empty list: how to clear the filter, or `otherwise` if no filter is set."""
        return f"no match · {self._context.key('view.back')} shows all" if self.is_narrowed else otherwise
