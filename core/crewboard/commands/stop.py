"""Ending agents and teams."""

import contextlib
import shutil
import time
from pathlib import Path

from crewboard.commands import messages
from crewboard.commands.cli_hint import command_for
from crewboard.commands.context import POLL_INTERVAL, Team, wait_until
from crewboard.commands.recovery import want_killed
from crewboard.errors import BadDataError, StorageError, TryLaterError
from crewboard.names import OPERATOR, is_name
from crewboard.protocol import approvals, requests, supervisor_client
from crewboard.records import Request, Spec
from crewboard.store import agents, files, json_files, leases, mailbox, roster, tasks

DELETE_TIMEOUT = 10.0
"""Seconds that all workers together have to leave when their team is deleted."""


def ask_to_stop(team: Team, name: str, reason: str = "") -> Request | None:
    """Ask an agent to shut down; None if it does not live. Its answer is in the request."""
    return _ask(team, team.agent(name).name, reason)


def _ask(team: Team, name: str, reason: str) -> Request | None:
    """Ask whoever lives under `name`, on the roster or not."""
    if not leases.is_held(team.directory.agent(name).lease):
        return None
    ident = f"shutdown-{mailbox.new_id()[:12]}"
    return approvals.ask(team.directory, ident, "shutdown", team.by, name, {"reason": reason}, team.now())


def stop(team: Team, name: str, reason: str = "") -> None:
    """Ask an agent to shut down and wait until it is gone.

    Of one that had ended before, this acknowledges how.

    Raises:
        TryLaterError: It refused, or did not answer in time; it goes on.
    """
    request = ask_to_stop(team, name, reason)
    if request is None:
        _acknowledge_ends(team, [name])
        return
    agent = team.agent(name)
    deadline = time.monotonic() + approvals.SHUTDOWN_TIMEOUT
    while leases.is_held(agent.lease):
        answer = requests.load(team.directory, request.id)
        if answer is not None and answer.status == "rejected":
            raise TryLaterError(f"{name} refuses to shut down: {answer.feedback or 'no reason given'}")
        if (answer is None or answer.status == "pending") and time.monotonic() > deadline:
            requests.close(team.directory, request.id, "expired", "system", team.now())
        if answer is not None and answer.status in ("expired", "cancelled"):
            raise TryLaterError(f"{name} did not answer; `{command_for(team, f'stop {name} --now')}` ends it anyway")
        time.sleep(POLL_INTERVAL)
    supervisor_client.wake_supervisor(team.directory)


def stop_now(team: Team, name: str) -> None:
    """End an agent with everything that it started, and wait until it is gone.

    Of one that had ended before, this acknowledges how.

    Raises:
        TryLaterError: It could not be ended in time.
    """
    agent = team.agent(name)
    if not leases.is_held(agent.lease):
        _acknowledge_ends(team, [name])
        return
    want_killed(team, name)
    supervisor_client.wake_supervisor(team.directory)
    _wait_for_leases(team, [name], 10, again=True)
    if leases.is_held(agent.lease):
        raise TryLaterError(f"{name} is still alive; see {team.directory.supervisor_log}")


def remove(team: Team, name: str) -> Path:
    """Take a stopped agent off the roster; returns where its files are kept.

    Raises:
        TryLaterError: It lives.
    """
    agent = team.agent(name)
    if leases.is_held(agent.lease):
        raise TryLaterError(f"{name} is alive; stop it first")
    tasks.release(team.directory, name, team.now())
    with contextlib.suppress(BadDataError):  # damaged, it acknowledges nothing
        messages.forget_acknowledged(team, name)
    roster.drop(team.directory, name)
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(team.now()))
    aside = team.directory.path / "removed" / f"{name}-{stamp}-{mailbox.new_id()[:4]}"
    try:
        files.make_folder(aside.parent)
        files.make_folder(aside)
        if agent.path.exists():
            agent.path.rename(aside / "agent")
        if team.directory.inbox(name).exists():
            team.directory.inbox(name).rename(aside / "inbox.jsonl")
    except OSError as error:
        raise StorageError(f"{name} is off the roster, but its files stay: {error.strerror}") from error
    return aside


def delete(team: Team, *, now: bool = False, purge: bool = False) -> None:
    """End every worker: all are asked at once, and what is left after ten seconds is ended.

    The files stay unless `purge`. No death and no failed start of before waits for the operator any more.

    Raises:
        TryLaterError: Something is still alive.
    """
    if supervisor_client.is_alive(team.directory):
        supervisor_client.request_exit(team.directory)
    names = all_agents(team)
    end_all(team, names, now=now)
    _cancel_starts(team, names)
    _acknowledge_ends(team, names)
    wait_until(lambda: not supervisor_client.is_alive(team.directory), 10)
    if purge:
        shutil.rmtree(team.directory.path, ignore_errors=False)


def end_all(team: Team, names: list[str], *, now: bool = False) -> None:
    """End the workers of `names`: all are asked at once, and what is left after ten seconds is ended.

    Raises:
        TryLaterError: Something is still alive.
    """
    if not now:
        for name in names:
            _ask(team, name, "the team is being deleted")
        _wait_for_leases(team, names, DELETE_TIMEOUT)
    left = [name for name in names if leases.is_held(team.directory.agent(name).lease)]
    for name in left:
        want_killed(team, name)
    if left:
        supervisor_client.wake_supervisor(team.directory)
    _wait_for_leases(team, left, 10, again=True)
    if any(leases.is_held(team.directory.agent(name).lease) for name in left):
        raise TryLaterError(f"some workers are still alive; see {team.directory.supervisor_log}")


def _cancel_starts(team: Team, names: list[str]) -> None:
    """Want no more what never came to be."""
    for name in names:
        agent = team.directory.agent(name)
        spec = json_files.load_or_none(agent.spec, Spec)
        if spec is not None and spec.run > agents.last_run(agent):
            agents.want(agent, "killed", spec.run)


def _acknowledge_ends(team: Team, names: list[str]) -> None:
    """Whoever ends somebody needs not be told any more how they had died."""
    if team.by != OPERATOR:
        return
    with contextlib.suppress(BadDataError):  # a damaged list of what was acknowledged must not keep a team from ending
        messages.acknowledge_all(team, names)


def all_agents(team: Team) -> list[str]:
    """Whoever is on the roster or has files: a damaged roster must not keep workers from being ended."""
    try:
        names = [member.name for member in team.config.members]
    except BadDataError:
        names = []
    found = sorted(path.name for path in team.directory.agents.glob("*") if is_name(path.name))
    return list(dict.fromkeys([*names, *found]))


def _wait_for_leases(team: Team, names: list[str], seconds: float, *, again: bool = False) -> None:
    """Wait until no worker of `names` lives, for at most `seconds`; `again` keeps ringing."""
    deadline = time.monotonic() + seconds
    next_ring = time.monotonic() + 1
    while time.monotonic() < deadline:
        if not any(leases.is_held(team.directory.agent(name).lease) for name in names):
            return
        if again and time.monotonic() > next_ring:
            supervisor_client.wake_supervisor(team.directory)
            next_ring = time.monotonic() + 1
        time.sleep(POLL_INTERVAL)
