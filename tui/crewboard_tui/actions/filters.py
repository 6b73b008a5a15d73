"""What a filter lets through: words anywhere, `s:state`, `a:agent`, `#task`; and groups of states, one key apart."""

from crewboard.readmodel.reader import blocked
from crewboard.readmodel.team import AgentView, TeamView
from crewboard.records import Task
from crewboard_tui.render.looks import look_of, task_look

ALL = "all"

AGENT_GROUPS: dict[str, frozenset[str]] = {
    "needs me": frozenset({"dead", "ask", "stuck", "loop"}),
    "running": frozenset({"start", "run", "wait"}),
    "idle": frozenset({"idle", "pause", "unknown"}),
    "done": frozenset({"done"}),
}
"""Agents by what they are shown as (`states.LOOKS`)."""

TASK_GROUPS: dict[str, frozenset[str]] = {
    "needs me": frozenset({"orphaned", "failed"}),
    "running": frozenset({"in progress"}),
    "waiting": frozenset({"pending", "blocked"}),
    "done": frozenset({"completed", "cancelled"}),
}
"""Tasks by the word for their state (`states.TASK_LOOKS`)."""


FINDS_AGENTS = "words about an agent; s:stuck its state, a:api its name, #14 its task"
"""What `matches_agent` understands, for the hint."""

FINDS_TASKS = "words about a task; s:failed its status, a:api its owner, #14 itself"
"""What `matches_task` understands, for the hint."""


def in_group(agent: AgentView, group: str) -> bool:
    """Return True if an agent is in a group of states; every agent is in `ALL`."""
    return group == ALL or agent.shown in AGENT_GROUPS[group]


def task_in_group(task: Task, view: TeamView, group: str) -> bool:
    """Return True if a task is in a group of states; every task is in `ALL`."""
    return group == ALL or task_look(task, blocked(task, view.tasks)).word in TASK_GROUPS[group]


def matches(text: str, wanted: str) -> bool:
    """Return True if every word of `wanted` is in `text`, in any case."""
    return all(word in text.lower() for word in wanted.lower().split())


def matches_agent(agent: AgentView, wanted: str) -> bool:
    """Return True if an agent passes the filter."""
    return all(_agent_has(agent, word) for word in wanted.lower().split())


def _agent_has(agent: AgentView, word: str) -> bool:
    if word.startswith("s:"):
        return word[2:] in (look_of(agent).word + " " + agent.state + " " + agent.shown)
    if word.startswith("a:"):
        return word[2:] in agent.name
    if word.startswith("#"):
        return word[1:] == str(agent.task or "")
    return word in f"{agent.name} {agent.type} {agent.role} {agent.doing} {agent.reason}".lower()


def matches_task(task: Task, wanted: str) -> bool:
    """Return True if a task passes the filter."""
    return all(_task_has(task, word) for word in wanted.lower().split())


def _task_has(task: Task, word: str) -> bool:
    if word.startswith("s:"):
        return word[2:] in task.status
    if word.startswith("a:"):
        return word[2:] in (task.owner or task.last_owner or "")
    if word.startswith("#"):
        return word[1:] == str(task.id)
    return word in f"{task.subject} {task.owner or ''} {task.description}".lower()
