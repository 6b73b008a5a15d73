"""Interrupt agents, make them try again, and change their limits and budgets."""

from collections.abc import Mapping
from typing import Any

from crewboard import models
from crewboard.commands import hire, settings, stop
from crewboard.commands.context import NONE, Team, command_for, require_price, require_spec
from crewboard.commands.messages import post
from crewboard.errors import TryLaterError
from crewboard.protocol import supervisor_client
from crewboard.records.agents import Spec
from crewboard.records.messages import GO_ON, RETRY, Message
from crewboard.records.processes import LIMIT_REASONS
from crewboard.store import agents, leases, mailbox, roster
from crewboard.store.layout import AgentDirectory

STATUS_QUESTION = "You were interrupted. Say in a few sentences where you stand, then go on."


def interrupt(team: Team, name: str, text: str = "") -> Message:
    """End the present turn or command of an agent and make it read `text`, by default a question about its state.

    The agent keeps its assignment and its plan gate. Return the message.

    Raises:
        UsageError: There is no such agent.
        TryLaterError: The agent is not running; nothing was sent.
    """
    require_alive(team, name)
    message = post(team, name, "interrupt", text.strip() or STATUS_QUESTION)
    supervisor_client.wake_worker(team.directory, name)
    team.note("interrupt", name)
    return message


def retry(team: Team, name: str) -> Message:
    """Make a running agent try again after an assignment that failed, or that left its task without an outcome.

    Return the message that was sent.

    Raises:
        UsageError: There is no such agent.
        TryLaterError: The agent is not running; nothing was sent.
    """
    require_alive(team, name)
    status = team.agent(name).status.load_or_none()
    task = status.unreported if status is not None else None
    message = post(team, name, "message", RETRY if task is None else GO_ON.format(task))
    team.note("message", name, message.id)
    return message


def retry_with(
    team: Team, name: str, *, model: str, network: bool = False, web: bool = False, host: str | None = None
) -> int:
    """Make an agent whose model refused its assignment try again with another model; return the number of the new run.

    A run that is under way is stopped first. `network`, `web` and `host` are as in `hire.resume`.

    Raises:
        UsageError: There is no such agent, or the model does not take its hire options.
        TryLaterError: Its last run does not end.
        CrewboardError: The agent cannot be resumed; see `hire.resume`.
    """
    agent = team.own_agent(name)
    spec = agent.spec.load()
    if spec is not None:
        # While the need is there to be answered: it ends with the run.
        resolved = models.resolve(model, team.worker_environment)
        hire.check_resume(team, name, spec, model=resolved, web=web, host=host)
    if leases.is_held(agent.lease):
        stop.stop(team, name, f"it goes on with {model}")
    # Before the new run is asked for: that would begin without it if this process ended in between.
    # With one id for each run, so that another try does not say it twice.
    post(team, name, "message", RETRY, mailbox.derived_id("retry", name, spec.run if spec is not None else 0))
    return hire.resume(team, name, model=model, network=network, web=web, host=host)


def require_alive(team: Team, name: str) -> None:
    """Check that an agent is running.

    Raises:
        UsageError: There is no such agent.
        TryLaterError: The agent is not running.
    """
    if not leases.is_held(team.own_agent(name).lease):
        raise TryLaterError(f"{name} is not running; `{command_for(team, f'resume {name}')}` starts it again")


def change_limits(
    team: Team,
    name: str,
    *,
    budget: str | None = None,
    max_turns: int | None = None,
    window: int | None = None,
    max_reply: int | None = None,
) -> None:
    """Change those limits of an agent that are given. A running agent that one of them stopped continues by itself.

    The budget `NONE` removes the agent's budget. `window` and `max_reply`, in tokens, hold from the next run on.

    Raises:
        UsageError: There is no such agent, `parse_budget` cannot read the budget, or it is in money and the model has
            no price.
    """
    agent = team.own_agent(name)
    given = {"budget": budget, "max_turns": max_turns, "window": window, "max_reply": max_reply}
    changes = {field: None if value == NONE else value for field, value in given.items() if value is not None}
    if changes:
        _change_options(team, agent, changes)
        if budget is not None:
            team.note("budget", name, budget)
        if max_turns is not None:
            team.note("limit", name, f"{max_turns} turns")
        supervisor_client.wake_worker(team.directory, name)


def limit_memory(team: Team, name: str, most: int | None) -> None:
    """Set how much memory an agent may use, in bytes; None removes the limit.

    Raises:
        UsageError: There is no such agent.
    """
    _change_options(team, team.own_agent(name), {"max_memory": most})
    team.note("limit", name, f"memory {roster.format_size(most) if most else 'none'}")


def _change_options(team: Team, agent: AgentDirectory, changes: Mapping[str, Any]) -> None:
    def edit(old: Spec | None) -> Spec:
        spec = require_spec(agent.name, old)
        require_price(team, changes.get("budget"), spec.model)
        return spec.replace(flags=spec.flags.replace(**changes))

    agents.change_spec(agent, edit)


def raise_limits(team: Team, name: str, *, budget: str | None = None, max_turns: int | None = None) -> int | None:
    """Change the limits of an agent, and resume it if a limit ended its last run and no budget is used up now.

    Return the number of the new run, None if it was not resumed.

    Raises:
        UsageError: There is no such agent, `parse_budget` cannot read the budget, or it is in money and the model has
            no price.
        CredentialsError: There is no API key to resume it with.
    """
    change_limits(team, name, budget=budget, max_turns=max_turns)
    return hire.resume(team, name) if stopped_by_limit(team, name) and _may_go_on(team, name) else None


def raise_team_budget(team: Team, amount: str | None) -> list[str]:
    """Set the budget of the whole team, or remove it with None, and resume the agents that it had ended.

    Return the names of those that were resumed.

    Raises:
        UsageError: `parse_budget` cannot read the amount, or it is the first in money and a model has no price.
        CredentialsError: There is no API key to resume them with.
    """
    waiting = [name for name in team.config.names if stopped_by_limit(team, name) and not _may_go_on(team, name)]
    settings.set_budget(team, amount)
    resumed = [name for name in waiting if _may_go_on(team, name)]
    hire.at_once(resumed, lambda name: hire.resume(team, name))
    return resumed


def stopped_by_limit(team: Team, name: str) -> bool:
    """Return True if a budget or the turn limit ended the last run of an agent, and no run was asked for since.

    Return False for an explorer: an agent that searches for another one (`Spec.parent`) is not resumed.
    """
    agent = team.directory.agent(name)
    ended, spec = agent.exit.load_or_none(), agent.spec.load()
    if ended is None or spec is None or spec.parent is not None:
        # An explorer is over with the work that it was sent for.
        return False
    return ended.run == spec.run and ended.reason in LIMIT_REASONS


def _may_go_on(team: Team, name: str) -> bool:
    return roster.used_up(roster.budgets(team.directory, name)) is None
