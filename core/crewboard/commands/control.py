"""Interrupt, pause and unpause running agents."""

from crewboard import protocol, store
from crewboard.commands.context import Team, command_for
from crewboard.commands.messages import post
from crewboard.records import Message, TryLaterError
from crewboard.store import AgentDirectory

RETRY = "Your last assignment ended with an error. Try again."

STATUS_QUESTION = "You were interrupted. Say in a few sentences where you stand, then go on."


def interrupt(team: Team, name: str, text: str = "") -> Message:
    """End the present turn or command of an agent and make it read `text`. It keeps its assignment and its plan gate.

    Raises:
        UsageError: There is no such agent.
        TryLaterError: It is not running; nothing was sent.
    """
    agent = _require_alive(team, name)
    message = post(team, name, "interrupt", text.strip() or STATUS_QUESTION)
    protocol.supervisor_client.wake_worker(agent.team, name)
    team.note("interrupt", name)
    return message


def retry(team: Team, name: str) -> Message:
    """Let a running agent whose last assignment ended with an error try again.

    Raises:
        UsageError: There is no such agent.
        TryLaterError: It is not running; nothing was sent.
    """
    _require_alive(team, name)
    message = post(team, name, "message", RETRY)
    team.note("message", name, message.id)
    return message


def pause(team: Team, name: str) -> None:
    """Pause an agent at its next safe point. It makes no model call until it is unpaused.

    Raises:
        UsageError: There is no such agent.
        TryLaterError: It is not running.
    """
    _set_want(team, _require_alive(team, name), "paused")


def unpause(team: Team, name: str) -> None:
    """Let a paused agent continue.

    Raises:
        UsageError: There is no such agent.
        TryLaterError: It is not running.
    """
    _set_want(team, _require_alive(team, name), "running")


def pause_all(team: Team) -> list[str]:
    """Pause every running agent; return their names."""
    return _set_want_of_all(team, "paused")


def unpause_all(team: Team) -> list[str]:
    """Let every running agent continue; return their names."""
    return _set_want_of_all(team, "running")


def _set_want_of_all(team: Team, wanted: str) -> list[str]:
    store.roster.require_own_agents(team.directory)
    names = [m.name for m in team.config.members if store.leases.is_held(team.directory.agent(m.name).lease)]
    for name in names:
        _set_want(team, team.directory.agent(name), wanted)
    return names


def _set_want(team: Team, agent: AgentDirectory, wanted: str) -> None:
    """Set the desired state of an agent unless it is being ended."""
    spec = store.agents.spec(agent)
    if spec is not None and spec.want in ("running", "paused"):
        store.agents.want(agent, wanted, run=spec.run)
    protocol.supervisor_client.wake_worker(team.directory, agent.name)
    team.note("pause" if wanted == "paused" else "unpause", agent.name)


def _require_alive(team: Team, name: str) -> AgentDirectory:
    store.roster.require_own_agents(team.directory)
    agent = team.agent(name)
    if not store.leases.is_held(agent.lease):
        raise TryLaterError(f"{name} is not running; `{command_for(team, f'resume {name}')}` starts it again")
    return agent
