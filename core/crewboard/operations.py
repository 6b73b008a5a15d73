"""Operations on agents: what a user or a script can do to one, each declared once.

An operation is a function of the team, an agent's name and options: its docstring is the help of its command, and the
decorator adds its other words, its keys, and which agents it fits. The commands (`cli/control.py`), the keys with the
palette (`keymap/bindings.py`), what they do in the dashboard (`actions/agents.py`) and the reference are made from
`OPERATIONS`; to add an operation is to declare it here. All of these load this module when they start, so it
imports the rest of the core in its functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from crewboard.commands.context import Team
    from crewboard.readmodel.team import AgentView, TeamView

Pressed = Callable[[str], str]
"""Returns how the key with this id is pressed."""


class Done(NamedTuple):
    """The outcome of an operation: a sentence, and what its command prints as JSON."""

    says: str
    data: dict[str, Any]
    can_resume: bool = False


class Operation(NamedTuple):
    """An operation on agents. `ident` is the id of its key; its last part is the name of its command.

    - `label` is its name in the footer; `doing` is said while it runs, `done` after it ran for several agents.
    - `fits` returns True for an agent on which it works now; `why_not` says why it works on none of those named.
    - `section` is the heading of its command in the help; without one it has no command. `all_help` describes its
      option --all, `options` its other ones.
    - `keys` are pressed, `help` tells what they do, `footer` is their rank; `keys_for_all` and `help_for_all` are those
      for the whole team. What it `asks` is the hint where its text is written; if it `composes`, that is where messages
      are written.
    - With `confirm` the user presses its key again, or types yes, and is told the `consequence` before.
    - Where it fits no agent, its key does the operation `back`, which takes it back.
    - `after` says what undoes it, where that is another key. `why_no_text` says why a text that it asks for is refused.
    - `elsewhere` is True if it works on agents of another program, too.
    """

    ident: str
    run: Callable[..., Done]
    label: str
    doing: str
    done: str
    fits: Callable[[AgentView], bool]
    why_not: Callable[[str, Pressed], str] | None = None
    section: str = ""
    all_help: str = ""
    options: Mapping[str, str] = {}
    keys: str = ""
    help: str = ""
    footer: int | None = None
    keys_for_all: str = ""
    help_for_all: str = ""
    asks: str = ""
    composes: bool = False
    confirm: Literal["", "again", "yes"] = ""
    consequence: Callable[[Sequence[AgentView], TeamView, Pressed], str] = lambda *_: ""
    back: str = ""
    after: Callable[[Done, Pressed], str] = lambda *_: ""
    why_no_text: Callable[[str], str | None] = lambda _: None
    elsewhere: bool = False

    @property
    def command(self) -> str:
        """Return the name of its command."""
        return self.ident.rpartition(".")[2]

    @property
    def summary(self) -> str:
        """Return the first line of the help of its command."""
        return (self.run.__doc__ or "").partition("\n")[0]


LONGEST_TITLE = 40

OPERATIONS: dict[str, Operation] = {}
"""Every operation by its id, in the order of the help."""


def operation(ident: str, **words: Any) -> Callable[[Callable[..., Done]], Callable[..., Done]]:
    """Declare a function as an operation; it stays a function. `words` are further fields of `Operation`."""

    def declare(run: Callable[..., Done]) -> Callable[..., Done]:
        OPERATIONS[ident] = Operation(ident, run, **words)
        return run

    return declare


# ---------------------------------------------------------------------------------------------------- which agents


def is_paused(agent: AgentView) -> bool:
    """Return True if the agent runs and is to be paused, also while its last call is still under way."""
    wanted = agent.spec.want if agent.spec is not None else agent.state
    return agent.alive and wanted == "paused"


# --------------------------------------------------------------------------------------------------------- ending


@operation(
    "agent.stop", label="stop", doing="asking to shut down:", done="have shut down", section="End",
    # One that waits for its start, too: a stop cancels that.
    fits=lambda agent: agent.alive or agent.state == "queued",
    keys="x", help="ask it to shut down", footer=44, elsewhere=True,
    after=lambda done, key: f"; {key('agent.resume')} resumes it with its memory" if done.can_resume else "",
    options={"now": "Do not ask: end it and everything that it started."},
)  # fmt: skip
def stop(team: Team, name: str, *, now: bool = False) -> Done:
    """Ask the agents NAME... to shut down, and wait until they are gone.

    A working agent may refuse. If it does, or does not answer within 30 s, it keeps running (exit 75).
    """
    from crewboard.commands import stop
    from crewboard.store import agents

    how = stop.stop_now(team, name) if now else stop.stop(team, name)
    ended = "and everything it started is ended" if now else "has shut down"
    says = {"ended": ended, "unqueued": "was taken out of the queue"}.get(how, "is not running")
    spec = agents.spec(team.agent(name))
    own = team.config.attached is None and spec is not None and spec.parent is None
    data = {"name": name, "was_alive": how == "ended", "alive": False}
    return Done(f"{name} {says}", data, can_resume=how == "ended" and own)


@operation(
    "agent.end", label="end it", doing="ending", done="and everything they started are ended",
    fits=lambda agent: agent.alive,
    keys="X", help="end it with its processes: press twice within 2 s", footer=46, elsewhere=True, confirm="again",
    consequence=lambda agents, _, key: (
        f"ends {', '.join(sorted(agent.name for agent in agents))} and everything it started; "
        f"{key('agent.stop')} asks instead"
    ),
)  # fmt: skip
def end(team: Team, name: str) -> Done:
    """End the agent NAME and everything that it started, without asking."""
    return stop(team, name, now=True)


def _loss(agents: Sequence[AgentView], view: TeamView, _: Pressed) -> str:
    """Return what is lost when these agents are removed."""
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
    back="agent.unpause",
)  # fmt: skip
def pause(team: Team, name: str) -> Done:
    """Pause the agents NAME... at their next safe point, until `unpause`."""
    _want(team, name, "paused")
    return Done(f"{name} pauses at its next safe point", {"name": name, "paused": True})


@operation(
    "agent.unpause", label="continue", doing="unpausing", done="continue", fits=is_paused, section="Steer",
    all_help="All paused agents.",
)  # fmt: skip
def unpause(team: Team, name: str) -> Done:
    """Let the paused agents NAME... continue."""
    _want(team, name, "running")
    return Done(f"{name} continues", {"name": name, "paused": False})


def _want(team: Team, name: str, wanted: Literal["paused", "running"]) -> None:
    """Set the desired state of a running agent unless it is being ended."""
    from crewboard.commands import control
    from crewboard.protocol import supervisor_client
    from crewboard.store import agents

    agent = control.require_alive(team, name)
    spec = agents.spec(agent)
    if spec is not None and spec.want in ("running", "paused"):
        agents.want(agent, wanted, run=spec.run)
    supervisor_client.wake_worker(team.directory, name)
    team.note("pause" if wanted == "paused" else "unpause", name)


@operation(
    "agent.interrupt", label="interrupt", doing="interrupting", done="are interrupted, and read it now",
    fits=lambda agent: agent.alive, section="Steer", composes=True,
    keys="i", help="stop its turn; it then reads your message", footer=72,
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
    return Done(f"{name} is interrupted, and reads it now", message.as_dict())


@operation(
    "agent.rename", label="rename", doing="renaming", done="are renamed", fits=lambda _: True, section="Steer",
    keys="I", help="show words of yours beside its name", asks="shown beside the name; empty removes it",
    why_no_text=lambda text: _why_no_title(" ".join(text.split())),
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
