"""Finalize ended runs: release their tasks, cancel their requests, notify the team, and record that this is done.

Each step may be repeated. The last one records that all are done (`Exit.buried`).
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from crewboard import env
from crewboard.errors import ExitCode
from crewboard.names import SYSTEM
from crewboard.protocol import requests
from crewboard.records.agents import Spec, Status
from crewboard.records.processes import Exit, describe_exit, ended_by_shutdown, is_orderly
from crewboard.sandbox import scratch
from crewboard.store import agents, hosts, leases, mailbox, roster, tasks
from crewboard.store.layout import AgentDirectory
from crewboard.supervisor.launcher import Ended
from crewboard.unix import process

log = logging.getLogger(__name__)


class Why(NamedTuple):
    """Why a supervisor ended a run, or why a run is lost, with the evidence (`Exit.reason` and `Exit.evidence`).

    `seen_at` is when the run's host last wrote its record. Unknown values are empty or 0.
    """

    reason: str = ""
    evidence: str = ""
    seen_at: float = 0


UNKNOWN = Why()


@dataclass(frozen=True)
class LostRun:
    """A run that ended with its host, and why it is believed to be lost."""

    agent: AgentDirectory
    run: int
    host: str
    why: Why


def record_exit(agent: AgentDirectory, run: int, ended: Ended, now: float, why: Why = UNKNOWN) -> Exit:
    """Record how a run ended, unless its worker recorded that itself; return the stored record.

    `why` is the reason as far as the supervisor knows it. `now` is the time of the end if the supervisor observed the
    end. Otherwise the time of the last sign of life is recorded: of the worker or of its host, because an idle worker
    writes nothing.
    """
    spec, status = agent.spec.load_or_none(), agent.status.load_or_none()
    is_of_run = status is not None and status.run == run
    unobserved = ended == Ended() and is_of_run
    reason = why.reason or _reason(agent, run, ended, spec, status)
    at = max(status.beat, why.seen_at) or now if unobserved and status is not None else now
    # A worker that was killed did not say whether it was at work.
    unfinished = is_of_run and status is not None and status.is_at_work
    return agents.write_exit(agent, Exit(
        run=run, code=ended.code, signal=ended.signal, reason=reason, at=at, evidence=why.evidence,
        unfinished=unfinished,
    ))  # fmt: skip


def _reason(agent: AgentDirectory, run: int, ended: Ended, spec: Spec | None, status: Status | None) -> str:
    if spec is not None and spec.run == run and spec.want in ("killed", "stopped"):
        return "killed" if spec.want == "killed" else "shutdown"
    is_here = status is not None and status.host in ("", env.host())
    if status is not None and is_here and status.run == run and status.boot_id not in ("", process.boot_id()):
        return "reboot"
    # A worker that lost its lease says so in it, unless the file was removed.
    lease = leases.last_holder(agent.lease)
    if ended.code == ExitCode.IO if lease is None else lease.lost and lease.run == run:
        return "lost"
    # The worker could not record that itself.
    return "storage" if ended.code == ExitCode.IO else "died"


def finalize_lost(lost: Sequence[LostRun], now: float) -> None:
    """Finalize runs that ended with their hosts, each once, even if several hosts do that at the same time.

    Runs whose worker or host turned out to be alive are left alone.
    """
    team = lost[0].agent.team

    def work() -> None:
        ended = []
        for each in lost:
            if leases.is_held(each.agent.lease) or hosts.is_up(team, each.host):
                continue
            record = record_exit(each.agent, each.run, Ended(), now, each.why)
            if record.run == each.run and not record.buried:
                release(each.agent, now)
                ended.append((each.agent, record))
        if ended:
            announce(ended, now)

    team.lock("lost").locked(work)


def kill_leftovers(ended: Sequence[tuple[AgentDirectory, Exit]]) -> list[Exit]:
    """Kill the processes that ended runs left, and remove their scratch folders; return the runs' records.

    The records are in the order of `ended`. Those of runs that ended with the machine get the reason `reboot`.
    """
    marks, records = [], []
    for agent, record in ended:
        status = agent.status.load_or_none()
        records.append(record)
        if status is None or status.run != record.run:
            continue
        if ended_by_shutdown(record, status.boot_id, process.boot_id()):
            records[-1] = record.replace(reason="reboot")
        if not status.start_ticks:
            continue
        lives = process.is_same(status.pid, status.boot_id, status.start_ticks) and not process.is_ending(status.pid)
        # A worker that lives although the lease here is free is none of this team's business: this directory is a copy
        # of the worker's own.
        if not lives:
            marks.append(process.mark(status.pid, status.start_ticks))
    if marks:
        process.kill_marked(marks)
    scratch.sweep()
    return records


def release(agent: AgentDirectory, now: float) -> None:
    """Release the tasks of an agent whose run ended, and cancel its requests."""
    tasks.release(agent.team, agent.name, now)
    requests.cancel_requests_of(agent.team, agent.name, now)


def announce(
    ended: Sequence[tuple[AgentDirectory, Exit]], now: float, leaving: Callable[[str], bool] = lambda _name: False
) -> None:
    """Tell the team which runs ended, and record that they are finalized. Agents that are `leaving` are not told.

    `leaving` returns True for the name of an agent that is to end. Several runs that were lost with one host are told
    in one notice. The notices to one recipient share a sync of the disk: the last one waits for all before it.
    """
    team, notices = ended[0][0].team, _notices(ended)
    config = roster.load(team)
    staying = [member.name for member in config.members if not leaving(member.name)]
    living = [name for name in staying if leases.is_held(team.agent(name).lease)]
    # The operator reads the lead's mailbox if there is no lead.
    for name in dict.fromkeys([config.lead, *living]):
        told = [
            (parts, left)
            for parts, runs in notices.items()
            if (left := [run for run in runs if run[0].name != name and _concerns(*run, name)])
        ]
        for number, (parts, runs) in enumerate(told, 1):
            ident = mailbox.derived_id("terminated", *parts, name)
            one, end = runs[0]
            if len(runs) == 1:
                text = f"{one.name} ended: {describe_exit(end)}"
            else:
                names = ", ".join(sorted(each.name for each, _ in runs))
                text = f"host {_host_of(one)} was lost, and {len(runs)} agents ended with it: {names}; {end.evidence}"
            message = mailbox.compose(SYSTEM, name, "teammate_terminated", text, ident=ident, ts=now)
            mailbox.send(team, message, durable=number == len(told))
    for agent, record in ended:
        agents.mark_finalized(agent, record)
        log.info("%s run %d ended: %s", agent.name, record.run, describe_exit(record))


def _concerns(agent: AgentDirectory, record: Exit, name: str) -> bool:
    """Return True if `name` is told about the end of a run.

    The end of an explorer is told only to its parent, and only if it was no orderly end.
    """
    spec = agent.spec.load_or_none()
    parent = spec.parent if spec is not None else None
    return parent is None or (parent == name and not is_orderly(record))


def _notices(
    ended: Sequence[tuple[AgentDirectory, Exit]],
) -> dict[tuple[object, ...], list[tuple[AgentDirectory, Exit]]]:
    """Return the runs that each notice tells about, by the parts of its id.

    Which runs share a notice is recorded before it is sent. So a process that sends it again uses the same id, even if
    some of its runs are finalized by then, and no run joins a notice that was sent.
    """
    found: dict[tuple[object, ...], list[tuple[AgentDirectory, Exit]]] = {}
    lost: dict[str, list[tuple[AgentDirectory, Exit]]] = {}
    for agent, record in ended:
        if record.notice:
            found.setdefault((record.notice,), []).append((agent, record))
        elif record.reason == "lost" and (host := _host_of(agent)):
            lost.setdefault(host, []).append((agent, record))
        else:
            found[agent.name, record.run] = [(agent, record)]
    for runs in lost.values():
        [(first, record), *others] = runs
        notice = mailbox.new_id() if others else ""
        for agent, each in runs if others else ():
            agents.share_notice(agent, each, notice)
        found[(notice,) if others else (first.name, record.run)] = runs
    return found


def _host_of(agent: AgentDirectory) -> str:
    status = agent.status.load_or_none()
    return status.host if status is not None else ""
