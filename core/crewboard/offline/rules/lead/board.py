"""Steps about the task board: a new task, and whose it is."""

from collections.abc import Generator

from crewboard.offline.ask import Ask, Steps, refused
from crewboard.offline.conversation import Call, Done
from crewboard.offline.rules.lead import people
from crewboard.offline.rules.lead.orders import Assign, Hire, NewTask
from crewboard.offline.rules.lead.words import sentence


def new_task(order: NewTask, _ask: Ask) -> Steps:
    """Put a task on the board; where it is for a type, for one of that type who is there, else for a new one."""
    if not order.subject:
        return "A task needs a subject; tell me to create a task, with its subject in quotes."
    owner, told = (yield from _somebody(order)) if order.kind else (order.owner, "")
    given: dict[str, object] = {"subject": order.subject}
    given |= {"description": order.description} if order.description else {}
    given |= {"assigned_to": owner} if owner else {}
    given |= {"blocked_by": list(order.blocked_by)} if order.blocked_by else {}
    done = yield Call("task_create", given)
    if not done.ok:
        return f"{told}\n{refused('task_create', done)}".strip()
    return f"{told}\n{sentence(done.text)} Its subject: {order.subject}".strip()


def _somebody(order: NewTask) -> Generator[Call, Done, tuple[str, str]]:
    """Whose a task is that is for anybody of a type, and what was said if somebody had to be hired."""
    members = yield from people.roster()
    of_type = [member for member in members if member.kind == order.kind]
    called = [member for member in members if member.name == order.owner]
    there = called or sorted((member for member in of_type if member.runs), key=lambda member: not member.is_free)
    if there:
        return there[0].name, ""
    name = order.owner or (of_type[0].name if of_type else people.free_name(order.kind, members))
    done = yield from people.spawned(Hire(name, order.kind))
    return name if done.ok else "", people.hired(done)


def assign(_order: Assign, _ask: Ask) -> Steps:
    """A task was to be given to somebody, and it was not said which."""
    yield from ()
    return "I do not know which task is meant; tell me its number, as in: assign task 3 to bob."
