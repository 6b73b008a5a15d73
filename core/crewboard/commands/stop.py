"""Stop and remove agents, and delete teams. A damaged spec is rebuilt, so that any agent can be ended.

How long a request to shut down waits for its answer is in `protocol/requests.py` (`SHUTDOWN_TIMEOUT`).
"""

import contextlib
import time
from pathlib import Path
from typing import Literal

from crewboard import env
from crewboard.commands import hosts, messages
from crewboard.commands.context import POLL_INTERVAL, Team, command_for, wait_until
from crewboard.errors import BadDataError, StorageError, TryLaterError, UsageError
from crewboard.names import OPERATOR
from crewboard.protocol import requests, supervisor_client
from crewboard.records.processes import Lease
from crewboard.records.requests import Request
from crewboard.records.team import AttachedTeam
from crewboard.store import agents, leases, mailbox, operators, roster, tasks
from crewboard.store import hosts as store_hosts

DELETE_TIMEOUT = 10.0
"""Seconds that the workers of a team have to exit when it is deleted, before they are killed."""

KILL_TIMEOUT = 10.0
"""Seconds to wait until a supervisor has killed workers. With hosts it is `commands.hosts.LOST_TIMEOUT`."""


def ask_to_stop(team: Team, name: str, reason: str = "") -> Request | None:
    """Ask an agent to shut down; return the request, which gets the answer, or None if the agent is not running.

    Raises:
        UsageError: There is no such agent.
        BadDataError: The agents of the team belong to another program.
    """
    return _ask(team, team.own_agent(name).name, reason)


def _ask(team: Team, name: str, reason: str) -> Request | None:
    """Do what `ask_to_stop` does, also for an agent that is not on the roster."""
    if not leases.is_held(team.directory.agent(name).lease):
        return None
    ident = f"shutdown-{mailbox.new_id()[:12]}"
    asked = requests.ask(team.directory, ident, "shutdown", team.by, name, {"reason": reason}, team.now())
    team.note("stop", name, ident)
    return asked


Ending = Literal["ended", "unqueued", "gone"]
"""The outcome of a stop: the agent was ended, was taken out of the queue, or was not running."""


def stop(team: Team, name: str, reason: str = "") -> Ending:
    """Ask an agent to shut down, and wait until it has ended; return what this did.

    A queued agent is taken out of the queue. If the agent was not running, its end is acknowledged.

    Raises:
        UsageError: There is no such agent.
        TryLaterError: The agent refused or did not answer in time, and continues.
        UntrustedError: The team's supervisor is out of reach from here.
    """
    if (attached := team.config.attached) is not None:
        why = f" ({reason})" if reason else ""
        messages.send(team, name, f"The operator asks you to stop{why}: finish what you are doing now, then end.")
        _end_attached(team, attached, name, requests.SHUTDOWN_TIMEOUT)
        return "ended"
    agent = team.agent(name)
    _require_reachable(team, name)
    before = agent.spec.load_or_none()
    request = ask_to_stop(team, name, reason)
    if request is None:
        return _stop_ended(team, name)
    team.tell(f"asked {name} to shut down; it has {requests.SHUTDOWN_TIMEOUT:.0f} s to answer")
    deadline = time.monotonic() + requests.SHUTDOWN_TIMEOUT
    while leases.is_held(agent.lease):
        spec = agent.spec.load_or_none()
        # It ended, and was resumed before this look: the next run was not asked. The time alone does not tell that,
        # because the clock of another machine may be ahead.
        if before and spec and spec.run > before.run and spec.at > request.created_at:
            break
        answer = requests.load(team.directory, request.id)
        if answer is not None and answer.status == "rejected":
            raise TryLaterError(f"{name} refused to shut down: {answer.feedback or 'no reason given'}")
        if (answer is None or answer.status == "pending") and time.monotonic() > deadline:
            requests.close(team.directory, request.id, "expired", "system", team.now())
        if answer is not None and answer.status in ("expired", "cancelled"):
            raise TryLaterError(f"{name} did not answer; `{command_for(team, f'stop {name} --now')}` ends it anyway")
        time.sleep(POLL_INTERVAL)
    supervisor_client.wake_supervisor(team.directory)
    return "ended"


def stop_now(team: Team, name: str) -> Ending:
    """Kill an agent and everything that it started, and wait until it has ended; return what this did.

    A queued agent is taken out of the queue. If the agent was not running, its end is acknowledged.

    Raises:
        UsageError: There is no such agent.
        TryLaterError: The agent did not end in time.
        UntrustedError: The team's supervisor is out of reach from here.
    """
    if (attached := team.config.attached) is not None:
        _end_attached(team, attached, name, 0)
        return "ended"
    agent = team.agent(name)
    _require_reachable(team, name)
    if not leases.is_held(agent.lease):
        return _stop_ended(team, name)
    _kill(team, name)
    team.note("stop", name, "now")
    try:
        has_ended = _wait_for_kill(team, [name])
    except TryLaterError as error:
        raise TryLaterError(f"{error}. This stop is recorded: {name} ends as soon as a supervisor runs") from error
    if not has_ended:
        raise TryLaterError(hosts.still_running(team, [name]))
    return "ended"


def _end_attached(team: Team, attached: AttachedTeam, name: str, grace: float) -> None:
    """End an agent of another program by SIGTERM, unless it ends by itself within `grace` seconds."""
    from crewboard.attach import delivery

    delivery.end(attached, name, grace)
    team.note("stop", name, "" if grace else "now")


def _stop_ended(team: Team, name: str) -> Ending:
    """Take an agent that is not running out of the queue; if it is not queued, acknowledge its end. Return which."""
    if is_queued(team, name):
        _cancel_starts(team, [name])
        team.note("stop", name, "queued")
        # It may have begun meanwhile.
        _wait_for_kill(team, [name])
        return "unqueued"
    _acknowledge_ends(team, [name])
    team.note("acknowledge", name)
    return "gone"


def _require_reachable(team: Team, name: str) -> None:
    """Check that the supervisor is in reach where a stop needs it: an end is acknowledged without one.

    Raises:
        UntrustedError: The team's supervisor is out of reach from here.
    """
    if leases.is_held(team.directory.agent(name).lease) or is_queued(team, name):
        supervisor_client.require_reachable(team.directory)


def is_queued(team: Team, name: str) -> bool:
    """Return True if an agent is about to start or waits for that, here or in the queue for hosts."""
    agent = team.directory.agent(name)
    spec = agent.spec.load_or_none()
    return spec is not None and (
        agents.is_starting(spec, agents.last_run(agent), team.now())
        or agents.held_starts(agent.team).find(name, spec.run) is not None
        # A host may have claimed it that has not begun.
        or (agents.last_run(agent) < spec.run and store_hosts.is_wanted(agent.team, name, spec.run))
    )


def remove(team: Team, name: str) -> Path:
    """Remove a stopped agent from the roster; return the folder that its files were moved to.

    Its worktree is removed, too, and the copies in the store of images and documents of its conversation.

    Raises:
        UsageError: There is no such agent, or it has unmerged work.
        TryLaterError: The agent is running.
        StorageError: The agent was removed from the roster, but its files could not be moved.
    """
    # Imported here, and below, because it loads sandbox and git, for which the first picture need not wait.
    from crewboard.commands import changes

    agent = team.own_agent(name)
    if leases.is_held(agent.lease):
        raise TryLaterError(f"{name} is alive; stop it first")
    changes.require_merged(team, [name])
    had_worktree = changes.worktree_of(team, name) is not None
    tasks.release(team.directory, name, team.now())
    # A damaged file acknowledges nothing.
    with contextlib.suppress(BadDataError):
        messages.acknowledge_results(team, name)
        messages.forget_agent(team, name)
    requests.cancel_requests_of(team.directory, name, team.now())
    roster.drop(team.directory, name, agents.sum_up(agent))
    team.note("remove", name)
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(team.now()))
    aside = team.directory.key(f"removed/{name}-{stamp}-{mailbox.new_id()[:4]}")
    try:
        team.directory.make_folder(team.directory.removed.name)
        team.directory.make_folder(aside.name)
        agents.remove_media(agent)
        team.directory.move(agent.folder.name, f"{aside.name}/agent")
        team.directory.move(team.directory.inbox(name).name, f"{aside.name}/inbox.jsonl")
    except StorageError as error:
        raise StorageError(
            f"{name} was removed from the roster, but its files could not be moved: {error}", away=error.away
        ) from error
    if had_worktree:
        changes.forget(team, name, base=True)
    return team.directory.path / aside.name


def delete(team: Team, *, now: bool = False, purge: bool = False, discard: bool = False) -> None:
    """End all workers of a team: ask all at the same time, then kill those that still run after `DELETE_TIMEOUT`.

    With `now`, kill them at once. The team's files stay unless `purge`; `discard` allows to lose unmerged work with
    them. How agents ended is acknowledged; results and failed tasks stay needs.

    Raises:
        UsageError: With `purge` and without `discard`, an agent has unmerged work.
        TryLaterError: A worker, with `purge` a host, or the supervisor is still running.
        UntrustedError: The team is foreign, or its supervisor is out of reach from here.
    """
    team.directory.require_adopted()
    supervisor_client.require_reachable(team.directory)
    if purge:
        require_purgeable(team, discard=discard)
    given = {"now": now, "purge": purge, "discard": discard}
    team.note("delete", detail=", ".join(word for word, is_given in given.items() if is_given))
    supervisor_client.request_exit(team.directory)
    names = all_agents(team)
    end_all(team, names, now=now)
    # A full disk must not prevent that a team is purged.
    if not purge:
        _acknowledge_ends(team, names, only_ends=True)
    # The first supervisor may have died, and another one ended the workers.
    if not store_hosts.exist(team.directory) and not supervisor_client.end(team.directory, 10):
        raise TryLaterError(f"the supervisor is still running; see {team.directory.supervisor_log}")
    if purge:
        from crewboard.commands import changes

        for name in names:
            if changes.worktree_of(team, name) is not None:
                changes.forget(team, name, base=True)
        team.directory.purge()
        # What this user wrote there, and when they last looked, would come back in another team of this name.
        folders = (env.drafts_folder(team.environment), env.sent_folder(team.environment))
        visits = operators.file_for(env.visits_folder(team.environment), team.directory.path, team.operator)
        for place in (*(operators.file_for(folder, team.directory.path) for folder in folders), visits):
            if place is not None:
                # The team is gone, also if this stays.
                with contextlib.suppress(OSError):
                    place.unlink(missing_ok=True)


def unmerged_work(team: Team, *, here_alone: bool = False) -> list[str]:
    """Return a sentence about the unmerged work of each agent that has some, or may have.

    With `here_alone`, leave out agents on hosts, whose work is in the store.
    """
    from crewboard.commands import changes

    names = [name for name in all_agents(team) if not (here_alone and changes.is_on_host(team, name))]
    return list(changes.unmerged_work(team, names).values())


def require_purgeable(team: Team, *, discard: bool = False) -> None:
    """Check that the files of a team can be removed.

    Raises:
        UsageError: An agent has unmerged work, and `discard` is False.
        TryLaterError: A host of the team is up.
    """
    from crewboard.commands import changes

    if not discard:
        try:
            changes.require_merged(team, all_agents(team))
        except UsageError as error:
            every = command_for(team, f"team delete {team.directory.path.name} --purge --discard")
            raise UsageError(f"{error}; `{every}` throws all of it away") from None
    if up := [name for name in sorted(team.directory.hosts.names()) if store_hosts.is_up(team.directory, name)]:
        raise TryLaterError(
            f"the host{'s' if len(up) > 1 else ''} {', '.join(up)} {'are' if len(up) > 1 else 'is'} up; end "
            "`crewboard host` there, then purge"
        )


def end_all(team: Team, names: list[str], *, now: bool = False) -> None:
    """End the workers of `names`: ask all at once unless `now`, and kill those that are left after `DELETE_TIMEOUT`.

    Runs that have not begun are cancelled.

    Raises:
        TryLaterError: A worker is still running.
    """
    # Before, because a queued agent may begin when another one ends; and after, because one that crashed may restart.
    _cancel_starts(team, names)
    if not now:
        for name in names:
            _ask(team, name, "the team is being deleted")
        wait_until(lambda: _have_ended(team, names), DELETE_TIMEOUT)
    left = [name for name in names if not _have_ended(team, [name])]
    for name in left:
        _kill(team, name)
    if left and not _wait_for_kill(team, left):
        alive = [name for name in left if not _have_ended(team, [name])]
        raise TryLaterError(hosts.still_running(team, alive))
    _cancel_starts(team, names)


def _have_ended(team: Team, names: list[str]) -> bool:
    return not any(leases.is_held(team.directory.agent(name).lease) for name in names)


def _wait_for_kill(team: Team, names: list[str]) -> bool:
    """Wake the supervisor every second until no worker of `names` is running; return False if that takes too long."""
    deadline = time.monotonic() + (hosts.LOST_TIMEOUT if store_hosts.exist(team.directory) else KILL_TIMEOUT)
    while time.monotonic() < deadline:
        supervisor_client.wake_supervisor(team.directory)
        if wait_until(lambda: _have_ended(team, names), 1):
            return True
    return False


def _cancel_starts(team: Team, names: list[str]) -> None:
    """Cancel the runs of these agents that were asked for and have not begun, also in the queue of hosts."""
    for name in names:
        agent = team.directory.agent(name)
        spec = agent.spec.load_or_none()
        if spec is not None and spec.run > agents.last_run(agent):
            agents.want(agent, "killed", spec.run)
        store_hosts.withdraw(team.directory, name)


def _acknowledge_ends(team: Team, names: list[str], *, only_ends: bool = False) -> None:
    """Acknowledge how these agents have ended, if the operator gives the command. Damaged records are ignored.

    `only_ends` is as in `messages.acknowledge_all`.
    """
    if team.by != OPERATOR:
        return
    # A damaged operator.json must not prevent that a team is ended.
    with contextlib.suppress(BadDataError):
        messages.acknowledge_all(team, names, only_ends=only_ends)


def all_agents(team: Team) -> list[str]:
    """Return the names of all agents that are on the roster or have files, even if the roster is damaged."""
    try:
        names = [member.name for member in team.config.members]
    except BadDataError:
        names = []
    found = sorted(team.directory.agent_names())
    return list(dict.fromkeys([*names, *found]))


def _kill(team: Team, name: str) -> None:
    """Have an agent's worker killed, also if the disk that holds the team's files can take no new spec."""
    try:
        want_killed(team, name)
    except StorageError as error:
        holder = leases.holder(team.directory.agent(name).lease, Lease)
        # The agents of a team in a database or with hosts may run on other machines, whose supervisors cannot be asked.
        if holder is None or team.directory.store != team.directory.local or store_hosts.exist(team.directory):
            raise
        supervisor_client.request_kill(team.directory, name, holder.run)
        team.tell(f"{name} is ended without a record, which the supervisor writes once it can: {error}")


def want_killed(team: Team, name: str) -> None:
    """Set the desired state in an agent's spec to `killed`.

    A spec that is damaged or missing is rebuilt, so that the agent can be resumed later if the journal has all of it.
    The damaged file is copied aside.
    """
    agent = team.directory.agent(name)
    try:
        agents.want(agent, "killed")
    except (BadDataError, UsageError):
        from crewboard.commands import changes

        holder = leases.holder(agent.lease, Lease)
        run = max(agents.last_run(agent), holder.run if holder else 0, 1)
        spec = changes.rebuild_spec(team, name).replace(run=run, want="killed", at=team.now())
        agent.spec.edit(lambda _: spec, replace_damaged=True, durable=True)
