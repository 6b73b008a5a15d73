"""What cannot go on before a need of the operator's is answered."""

from crewboard.readmodel.crash_report import freed_by
from crewboard.readmodel.team import Need, TeamView
from crewboard.records import Task


def blocked_by(view: TeamView, need: Need) -> tuple[Task, ...]:
    """The task that the agent has, or left behind when it died, and every open task behind that, nearest first."""
    held = list(freed_by(view, need.agent) if need.kind == "death" else _own(view, need.agent))
    for task in held:  # grows while it is gone through: what waits for what waits
        ids = {each.id for each in held}
        held += [each for each in view.tasks if each.id not in ids and _waits_for(each, task)]
    return tuple(held)


def _own(view: TeamView, name: str) -> tuple[Task, ...]:
    agent = view.agent(name)
    return tuple(task for task in view.tasks if agent is not None and task.id == agent.task)


def _waits_for(task: Task, other: Task) -> bool:
    return task.status == "pending" and other.id in task.blocked_by
