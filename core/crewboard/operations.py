"""Operations: what a user or a script can do to an agent or a task, each declared once.

An operation is a function of the team, an agent's name or a task's id, and options. Its docstring is the help of its
command; the decorator adds its other words, its keys, and which agents or tasks it fits. `OPERATIONS` is the source of
the commands (`cli/control.py`), of the keys and the palette (`keymap/bindings.py`), of the dashboard's actions
(`actions/agents.py`) and of the reference. A new operation is declared here and nowhere else. All these modules load
this one when they start, so it imports the rest of the core inside its functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from crewboard.commands.context import Team
    from crewboard.readmodel.team import AgentView, TeamView
    from crewboard.records.team import Task

Pressed = Callable[[str], str]
"""A function that returns how the key with an id is pressed, such as `p`."""


class Done(NamedTuple):
    """The outcome of an operation: a sentence for the user, and the data that its command prints as JSON.

    `can_resume`: the agent can be resumed. `did_nothing`: there was nothing to do.
    """

    says: str
    data: dict[str, Any]
    can_resume: bool = False
    did_nothing: bool = False


class Asks(NamedTuple):
    """The line of text that an operation asks for in the dashboard.

    - `label` returns what stands before the text, given the names of the agents or tasks. `hint` says what to write.
    - `text` returns the text that is there at first, for an agent or a task.
    - `why_not` returns why a text is refused for an agent or a task; None if it is not.
    - `names` returns the names of agents that fit, if the text is such a name; its beginning is then enough.
    """

    label: Callable[[str], str]
    hint: str
    text: Callable[[Any], str] = lambda _: ""
    why_not: Callable[[str, Any, TeamView], str | None] = lambda *_: None
    names: Callable[[Sequence[Any], TeamView], list[str]] | None = None


class Operation(NamedTuple):
    """An operation on agents, or on tasks. `ident` is the id of its key; its last part is the name of its command.

    - `label` is its name in the footer; `doing` is said while it runs, `done` after it ran for several at once.
    - `fits` returns True for an agent or a task that it can be applied to now. `why_not` says why it can be applied to
      none of the chosen ones. If `one`, it is for one task at a time.
    - `section` is the heading of its command in the help; without one it has no command. `all_help` describes its
      option --all, `options` its other ones; `prints` says in the reference what it prints as JSON.
    - `keys` are its keys, `help` says what they do, and `footer` is their rank in the footer. `keys_for_all` and
      `help_for_all` are for the whole team.
    - `asks` describes the text that it asks for. If it `composes`, its text is written where messages or tasks are.
    - With `confirm` the user presses its key again, or types yes, and is told the `consequence` before.
    - Where it fits no agent, its key runs the operation with the id `back`, which reverses it.
    - `after` returns what is said when it is done, such as the key that undoes it. If it `repeats`, marks stay, because
      its key is pressed several times.
    - `elsewhere` is True if it also works on agents of another program.
    """

    ident: str
    run: Callable[..., Done]
    label: str
    doing: str
    done: str
    fits: Callable[[Any], bool]
    why_not: Callable[[str, Pressed], str] | None = None
    section: str = ""
    all_help: str = ""
    options: Mapping[str, str] = {}
    prints: str = ""
    keys: str = ""
    help: str = ""
    footer: int | None = None
    keys_for_all: str = ""
    help_for_all: str = ""
    asks: Asks | None = None
    composes: bool = False
    one: bool = False
    repeats: bool = False
    confirm: Literal["", "again", "yes"] = ""
    consequence: Callable[[Sequence[Any], TeamView, Pressed], str] = lambda *_: ""
    back: str = ""
    after: Callable[[Done, Pressed], str] = lambda *_: ""
    elsewhere: bool = False

    @property
    def command(self) -> str:
        """Return the name of the operation's command."""
        return self.ident.rpartition(".")[2]

    @property
    def summary(self) -> str:
        """Return the first line of the help of its command, which is that of its function's docstring."""
        return (self.run.__doc__ or "").partition("\n")[0]

    @property
    def is_on_tasks(self) -> bool:
        """Return True for an operation on tasks."""
        return self.ident.startswith("task.")


LONGEST_TITLE = 40

OPERATIONS: dict[str, Operation] = {}
"""Every operation by its id, in the order of the help."""


def operation(ident: str, **words: Any) -> Callable[[Callable[..., Done]], Callable[..., Done]]:
    """Return a decorator that declares a function as an operation and leaves it as it is.

    `ident` is the operation's id, `words` are more fields of `Operation`.
    """

    def declare(run: Callable[..., Done]) -> Callable[..., Done]:
        OPERATIONS[ident] = Operation(ident, run, **words)
        return run

    return declare


# ---------------------------------------------------------------------------------------------------- which agents


def is_paused(agent: AgentView) -> bool:
    """Return True if the agent is alive and its desired state is paused, even if its last call is still under way."""
    wanted = agent.spec.want if agent.spec is not None else agent.state
    return agent.alive and wanted == "paused"


def _not_running(who: str, _: Pressed) -> str:
    return f"{who} not running"


# --------------------------------------------------------------------------------------------------------- ending


@operation(
    "agent.stop", label="stop", doing="asking to shut down:", done="have shut down", section="End",
    # One that waits for its start, too: a stop cancels that.
    fits=lambda agent: agent.alive or agent.state == "queued" or agent.is_starting,
    keys="x", help="ask it to shut down", footer=44, elsewhere=True,
    why_not=_not_running,
    after=lambda done, key: f"; {key('agent.resume')} resumes it with its memory" if done.can_resume else "",
    options={"now": "Do not ask: end it and everything that it started."},
    all_help="All agents that run, or wait to start.",
    prints="`{name, was_alive, alive: false}`; with several names or `--all` an array of these",
)  # fmt: skip
def stop(team: Team, name: str, *, now: bool = False) -> Done:
    """Ask the agents NAME..., or all, to shut down, and wait until they are gone.

    Those that are queued or about to start do not start: with --all that is done first. A working agent may refuse. If
    it does, or does not answer within 30 s, it keeps running (exit 75).
    """
    from crewboard.commands import stop

    how = stop.stop_now(team, name) if now else stop.stop(team, name)
    ended = "and everything it started is ended" if now else "has shut down"
    did = {"ended": ended, "unqueued": "was taken out of the queue"}
    says = did.get(how, "is not running")
    # A damaged one keeps no agent from ending.
    spec = team.agent(name).spec.load_or_none()
    own = team.config.attached is None and spec is not None and spec.parent is None
    data = {"name": name, "was_alive": how == "ended", "alive": False}
    return Done(f"{name} {says}", data, can_resume=how == "ended" and own, did_nothing=how not in did)


@operation(
    "agent.end", label="end it", doing="ending", done="and everything they started are ended",
    fits=lambda agent: agent.alive,
    keys="X", help="end it with its processes: press twice within 2 s", footer=46, elsewhere=True, confirm="again",
    why_not=_not_running,
    consequence=lambda agents, view, key: (
        f"ends {', '.join(sorted(agent.name for agent in agents))} "
        f"{'if it has a process of its own' if view.attached else 'and everything it started'}; "
        f"{key('agent.stop')} asks instead"
    ),
)  # fmt: skip
def end(team: Team, name: str) -> Done:
    """End the agent NAME and everything that it started, without asking."""
    return stop(team, name, now=True)


def _loss(agents: Sequence[AgentView], view: TeamView, _: Pressed) -> str:
    """Return what is lost if these agents are removed, as a sentence."""
    from crewboard.store.tasks import CLOSED

    names = {agent.name for agent in agents}
    open_tasks = [f"#{task.id}" for task in view.tasks if task.owner in names and task.status not in CLOSED]
    unread = sum(agent.unread for agent in agents)
    lost = ["its memory ends" if len(agents) == 1 else "their memories end"]
    lost += [f"{', '.join(open_tasks)} lose{'s' * (len(open_tasks) == 1)} the owner"] if open_tasks else []
    lost += [f"{unread} unread message{'s' * (unread > 1)} stay{'s' * (unread == 1)} unread"] if unread else []
    return f"{', '.join(lost)}; the files are kept"


@operation(
    "agent.remove", label="remove", doing="removing", done="are removed; their files are kept", section="End",
    fits=lambda agent: not agent.alive, confirm="yes", consequence=_loss,
    keys="delete", help="remove it from the team once it has ended; its files are kept", footer=77,
    why_not=lambda who, key: f"{who} running; {key('agent.stop')} stops it first",
    prints="`{name, kept}`: the folder that holds its files; with several names an array of these",
)  # fmt: skip
def remove(team: Team, name: str) -> Done:
    """Remove the stopped agents NAME... from the roster; their files are kept.

    The worktree of each is removed, too. If it has unmerged work, the agent stays: merge or discard that first.
    """
    from crewboard.commands import stop, workspace

    kept = stop.remove(team, name)
    for left in workspace.left_branches(team, [name]):
        team.tell(left)
    return Done(f"{name} is removed; its files are in {kept}", {"name": name, "kept": str(kept)})


# ------------------------------------------------------------------------------------- pausing and interrupting


@operation(
    "agent.pause", label="pause", doing="pausing", done="pause at their next safe point", section="Steer",
    fits=lambda agent: agent.alive and not is_paused(agent), all_help="All running agents.",
    keys="p", help="pause it at its next safe point, or unpause it", footer=43,
    keys_for_all="P", help_for_all="pause all agents; if all are paused, unpause them",
    back="agent.unpause", why_not=_not_running,
    prints="`{name, paused}`; with several names or `--all` an array of these",
)  # fmt: skip
def pause(team: Team, name: str) -> Done:
    """Pause the agents NAME... at their next safe point, until `unpause`."""
    _want(team, name, "paused")
    return Done(f"{name} pauses at its next safe point", {"name": name, "paused": True})


@operation(
    "agent.unpause", label="continue", doing="unpausing", done="continue", fits=is_paused, section="Steer",
    all_help="All paused agents.", prints="as `pause`",
)  # fmt: skip
def unpause(team: Team, name: str) -> Done:
    """Let the paused agents NAME... continue."""
    from crewboard.commands import control

    control.require_alive(team, name)
    spec, status = team.agent(name).spec.load(), team.agent(name).status.load_or_none()
    # Until it has taken in that it continues, a worker still says that it is paused.
    if spec is not None and spec.want != "paused" and (status is None or status.state != "paused"):
        return Done(f"{name} is not paused", {"name": name, "paused": False}, did_nothing=True)
    _want(team, name, "running")
    return Done(f"{name} continues", {"name": name, "paused": False})


def _want(team: Team, name: str, wanted: Literal["paused", "running"]) -> None:
    """Set the desired state of a running agent unless it is being ended."""
    from crewboard.commands import control
    from crewboard.protocol import supervisor_client
    from crewboard.store import agents

    control.require_alive(team, name)
    agent = team.agent(name)
    spec = agent.spec.load()
    if spec is not None and spec.want in ("running", "paused"):
        agents.want(agent, wanted, run=spec.run)
    supervisor_client.wake_worker(team.directory, name)
    team.note("pause" if wanted == "paused" else "unpause", name)


@operation(
    "agent.interrupt", label="interrupt", doing="interrupting", done="are interrupted, and read it now",
    fits=lambda agent: agent.alive, section="Steer", composes=True,
    keys="i", help="stop its turn; it then reads your message", footer=72,
    why_not=_not_running, prints="the message",
)  # fmt: skip
def interrupt(team: Team, name: str, text: str = "") -> Done:
    """Stop the present turn or command of the agent NAME, and let it read TEXT.

    The agent keeps its assignment. Without TEXT it is asked to report where it stands.
    """
    from crewboard.commands import control

    was = team.agent(name).status.load_or_none()
    message = control.interrupt(team, name, text)
    if was is not None and was.state == "idle":
        return Done(f"{name} was idle, nothing to interrupt; it reads your message", message.as_dict())
    if was is not None and was.state == "paused":
        return Done(f"{name} is paused, and reads your message once it continues", message.as_dict())
    return Done(f"{name} is interrupted, and reads it now", message.as_dict())


@operation(
    "agent.rename", label="rename", doing="renaming", done="are renamed", fits=lambda _: True, section="Steer",
    keys="I", help="show words of yours beside its name", prints="`{name, title}`",
    asks=Asks("rename {}".format, "shown beside the name; empty removes it", lambda agent: agent.title,
              lambda text, *_: _why_no_title(" ".join(text.split()))),
)  # fmt: skip
def rename(team: Team, name: str, title: str = "") -> Done:
    """Show TITLE beside the name of the agent NAME; without TITLE, only the name.

    It is shown in the dashboard and by `status`. Mail, commands and files keep NAME.
    """
    from crewboard.errors import UsageError
    from crewboard.records.team import Config
    from crewboard.store import roster

    roster.require_own_agents(team.directory)
    words = " ".join(title.split())
    if (why := _why_no_title(words)) is not None:
        raise UsageError(why)

    def edit(config: Config) -> None:
        config.members = [each.replace(title=words) if each.name == name else each for each in config.members]

    team.member(name)
    roster.change(team.directory, edit)
    team.note("rename", name, words)
    return Done(f"{name} is shown as {name} {words}".rstrip(), {"name": name, "title": words})


def _why_no_title(words: str) -> str | None:
    if words.isprintable() and len(words) <= LONGEST_TITLE:
        return None
    return f"a title has at most {LONGEST_TITLE} characters that can be printed"


# ---------------------------------------------------------------------------------------------------------- tasks


def split_text(text: str) -> tuple[str, str]:
    """Split a task that was written as one text into the subject, which is the first line, and the description."""
    subject, _, description = text.strip().partition("\n")
    return subject.strip(), description.strip()


@operation(
    "task.new", label="new task", doing="putting a task on the board", done="are on the board", fits=lambda _: True,
    keys="A", help="add a task to the board", footer=22, composes=True,
    after=lambda _, key: f": {key('task.assign')} assigns it, {key('task.block')} lets it wait for others",
)  # fmt: skip
def new_task(team: Team, text: str) -> Done:
    """Add a task to the task board."""
    from crewboard.commands import tasks

    subject, description = split_text(text)
    task = tasks.add_task(team, subject, description=description)
    return Done(f"task {task.id} is on the board", task.as_dict())


def _is_open(task: Task) -> bool:
    from crewboard.store.tasks import CLOSED

    return task.status not in CLOSED


def _why_no_owner(name: str, task: Task, view: TeamView) -> str | None:
    """Return why a task cannot be assigned to the agent `name`; None if it can."""
    agent = view.agent(name)
    if agent is None:
        names = ", ".join(each.name for each in view.agents)
        wrong = f"there is no agent {name!r}" if name else "type a name"
        return f"{wrong}; " + (f"there are {names}" if names else "no agents yet")
    if task.required_type not in (None, agent.type):
        return f"#{task.id} is for an agent of type {task.required_type}; {agent.name} is of type {agent.type}"
    return None


@operation(
    "task.assign", label="assign", doing="assigning", done="assigned",
    fits=lambda task: _is_open(task) or task.status == "failed",
    keys="a", help="assign the selected task to an agent", footer=24,
    asks=Asks(
        "{} to".format, "an agent's name, or how it begins", why_not=_why_no_owner,
        names=lambda tasks, view: [
            agent.name for agent in view.agents if all(task.required_type in (None, agent.type) for task in tasks)
        ],
    ),
)  # fmt: skip
def assign(team: Team, task_id: int, owner: str) -> Done:
    """Assign a task to the agent `owner`; a failed one is open again."""
    from crewboard.commands import tasks
    from crewboard.store import tasks as board

    was_open = _is_open(board.load(team.directory, task_id))
    task = tasks.update_task(team, task_id, owner=owner, status=None if was_open else "pending")
    if reasons := tasks.blocking_reasons(team, task):
        return Done(f"task {task_id} is {owner}'s: {'; '.join(reasons)}", task.as_dict())
    waiting = board.blockers(task, {each.id: each for each in board.load_all(team.directory)})
    begins = f"begins after {', '.join(f'#{other}' for other in waiting)}" if waiting else "was told"
    return Done(f"task {task_id} is {owner}'s: it {begins}", task.as_dict())


def _why_no_wait(text: str, task: Task, view: TeamView) -> str | None:
    """Return why a task cannot wait for the tasks whose numbers are in `text`; None if it can."""
    from crewboard.errors import UsageError
    from crewboard.store.tasks import check_blockers

    try:
        check_blockers(task.id, _ids(text), {each.id: each for each in view.tasks})
    except ValueError:
        return "give the numbers of tasks, such as 9 11"
    except UsageError as error:
        return str(error)
    return None


def _ids(text: str) -> list[int]:
    """Parse numbers of tasks: `#9 11, 12` gives 9, 11 and 12.

    Raises:
        ValueError: One of the words is not a number.
    """
    return [int(word.removeprefix("#")) for word in text.replace(",", " ").split()]


@operation(
    "task.block", label="wait for", doing="changing", done="changed", fits=lambda task: task.status == "pending",
    keys="b", help="set the tasks that must be completed first", footer=26, one=True,
    asks=Asks("{} waits for".format, "numbers of tasks that come first, such as 9 11 · empty: none",
              lambda task: " ".join(f"#{other}" for other in task.blocked_by), _why_no_wait),
)  # fmt: skip
def block(team: Team, task_id: int, others: str) -> Done:
    """Set the tasks that must be completed before a task may be claimed; none unblocks it."""
    from crewboard.commands import tasks

    blocked_by = _ids(others)
    task = tasks.update_task(team, task_id, blocked_by=blocked_by)
    waits = f"for {', '.join(f'#{other}' for other in blocked_by)}" if blocked_by else "for no other"
    if reasons := tasks.blocking_reasons(team, task):
        return Done(f"task {task_id} waits: {'; '.join(reasons)}", task.as_dict())
    return Done(f"task {task_id} waits {waits}", task.as_dict())


@operation(
    "task.edit", label="edit", doing="editing", done="changed", fits=lambda _: True,
    keys="e", help="edit subject and description of the selected task", footer=25, one=True, composes=True,
    after=lambda done, key: (
        f": {done.data['owner']} is not told, {key('agent.message')} writes to it"
        if done.data.get("status") == "in_progress" else ""
    ),
)  # fmt: skip
def edit_task(team: Team, task_id: int, shown: str, text: str) -> Done:
    """Save what differs from the text that was shown, so that no other change is lost."""
    from crewboard.commands import tasks

    (old_subject, old_description), (subject, description) = split_text(shown), split_text(text)
    if (subject, description) == (old_subject, old_description):
        return Done(f"task {task_id} is as it was", {})
    changed = tasks.update_task(
        team, task_id,
        subject=subject if subject != old_subject else None,
        description=description if description != old_description else None,
    )  # fmt: skip
    return Done(f"task {task_id} is changed", changed.as_dict())


def _has_a_turn(task: Task) -> bool:
    """Return True if the priority of a task matters: it is open, or it failed and may be tried again."""
    return task.status in ("pending", "in_progress", "failed")


@operation(
    "task.raise", label="raise", doing="raising", done="raised", fits=_has_a_turn, repeats=True,
    keys="+", help="raise its priority: it is claimed earlier", footer=36,
)  # fmt: skip
def raise_task(team: Team, task_id: int, change: int = 1) -> Done:
    """Add `change` to the priority of a task: the higher it is, the earlier the task is claimed."""
    from crewboard.commands.tasks import describe_priority
    from crewboard.store import roster
    from crewboard.store import tasks as board

    roster.require_own_agents(team.directory)
    task = board.reprioritise(team.directory, task_id, team.by, team.now(), change)
    team.note("task update", f"#{task_id}", describe_priority(task.priority))
    return Done(f"task {task_id}: {describe_priority(task.priority)}", task.as_dict())


@operation(
    "task.lower", label="lower", doing="lowering", done="lowered", fits=_has_a_turn, repeats=True,
    keys="-", help="lower its priority: it is claimed later", footer=37,
)  # fmt: skip
def lower_task(team: Team, task_id: int) -> Done:
    """Lower the priority of a task by one."""
    return raise_task(team, task_id, -1)


@operation(
    "task.cancel", label="cancel", doing="cancelling", done="cancelled", fits=_is_open,
    keys="C", help="cancel the selected task", footer=28,
    after=lambda done, key: f": {key('task.reopen')} opens it again" + (
        f"; {done.data['owner']} is not told: {key('agent.message')} writes to it" if done.data["was_at_work"] else ""
    ),
)  # fmt: skip
def cancel(team: Team, task_id: int) -> Done:
    """Cancel a task. An agent that works on it is not told."""
    from crewboard.commands import tasks
    from crewboard.store import tasks as board

    was_at_work = board.load(team.directory, task_id).status == "in_progress"
    task = tasks.update_task(team, task_id, status="cancelled")
    return Done(f"task {task_id} is cancelled", {**task.as_dict(), "was_at_work": was_at_work})


@operation(
    "task.reopen", label="reopen", doing="reopening", done="open again", fits=lambda task: not _is_open(task),
    keys="o", help="reopen the selected task for any agent", footer=29,
    after=lambda _, key: f"; {key('task.assign')} assigns it",
)  # fmt: skip
def reopen(team: Team, task_id: int) -> Done:
    """Reopen a task that failed, was completed or cancelled, for any agent."""
    from crewboard.commands import tasks

    task = tasks.reopen_task(team, task_id)
    return Done(f"task {task_id} is open again, for any agent to take", task.as_dict())


@operation(
    "task.retry", label="retry", doing="retrying", done="open again", fits=lambda task: task.status == "failed",
)  # fmt: skip
def retry_task(team: Team, task_id: int) -> Done:
    """Reopen a failed task for the agent that had it and tell that agent; if it was removed, for any agent."""
    from crewboard.commands import tasks
    from crewboard.store import tasks as board

    failed = board.load(team.directory, task_id)
    had_it = team.config.member(failed.owner or failed.last_owner or "")
    task = tasks.update_task(team, task_id, status="pending", owner=had_it.name if had_it is not None else None)
    then = f"{task.owner} is told" if task.owner else "for any agent to take"
    return Done(f"task {task_id} is open again, {then}", task.as_dict())
