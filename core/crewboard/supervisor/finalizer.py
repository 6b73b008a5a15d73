"""Finalizes an ended run: releases its task, cancels its requests, notifies the team.

Each step may be repeated. The last one records that all are done.
"""

import logging

from crewboard import env, linux, protocol, store
from crewboard.records import SYSTEM, Config, Exit, ExitCode, Spec, Status, describe_exit, ended_by_shutdown
from crewboard.sandbox import scratch
from crewboard.store import AgentDirectory
from crewboard.supervisor.launcher import Ended, kill_marked

log = logging.getLogger(__name__)


def record_exit(agent: AgentDirectory, run: int, ended: Ended, now: float, reason: str = "") -> Exit:
    """Write how a run ended, unless its worker wrote that itself.

    `reason` is why the supervisor ended it, if it did. `now` is the time of the end if the supervisor observed it. If
    not, the worker's last sign of life is recorded.
    """
    spec, status = store.json_files.load_or_none(agent.spec, Spec), store.json_files.load_or_none(agent.status, Status)
    unobserved = ended == Ended() and status is not None and status.run == run
    reason = reason or _reason(agent, run, ended, spec, status)
    at = status.beat or now if unobserved and status is not None else now
    record = Exit(run=run, code=ended.code, signal=ended.signal, reason=reason, at=at)
    return store.agents.write_exit(agent, record)


def _reason(agent: AgentDirectory, run: int, ended: Ended, spec: Spec | None, status: Status | None) -> str:
    if spec is not None and spec.run == run and spec.want in ("killed", "stopped"):
        return "killed" if spec.want == "killed" else "shutdown"
    if status is not None and status.run == run and status.boot_id not in ("", linux.process.boot_id()):
        return "reboot"
    # A worker that lost its lease says so in it, unless the file was removed.
    lease = store.leases.last_holder(agent.lease)
    if ended.code == ExitCode.IO if lease is None else lease.lost and lease.run == run:
        return "lost"
    return "died"


def finalize(agent: AgentDirectory, record: Exit, now: float) -> None:
    """Kill what the run left, release its task, cancel its requests, notify the team. Idempotent."""
    if record.buried:
        return
    status = store.json_files.load_or_none(agent.status, Status)
    if (
        status is not None
        and status.run == record.run
        and ended_by_shutdown(record, status.boot_id, linux.process.boot_id())
    ):
        record = record.model_copy(update={"reason": "reboot"})
    if status is not None and status.run == record.run and status.start_ticks and not _lives_elsewhere(status):
        kill_marked(f"{env.WORKER}={linux.process.mark(status.pid, status.start_ticks)}")
    scratch.sweep()
    team = agent.team
    store.tasks.release(team, agent.name, now)
    protocol.requests.cancel_requests_of(team, agent.name, now)
    description = describe_exit(record)
    for name in _recipients(store.roster.load(team), agent):
        ident = store.mailbox.derived_id("terminated", agent.name, record.run, name)
        text = f"{agent.name} ended: {description}"
        store.mailbox.send(
            team, store.mailbox.compose(SYSTEM, name, "teammate_terminated", text, ident=ident, ts=now), durable=True
        )
    store.agents.mark_finalized(agent, record)
    log.info("%s run %d ended: %s", agent.name, record.run, description)


def _lives_elsewhere(status: Status) -> bool:
    """Return True if the worker that the status names lives, although the lease here is free.

    Then this directory is a copy of the worker's own, and what the worker started is none of this team's business.
    """
    return linux.process.is_same(status.pid, status.boot_id, status.start_ticks) and not linux.process.is_ending(
        status.pid
    )


def _recipients(config: Config, agent: AgentDirectory) -> list[str]:
    """Return the lead's mailbox, which the operator reads if there is no lead, and every living teammate."""
    living = [m.name for m in config.members if store.leases.is_held(agent.team.agent(m.name).lease)]
    return [name for name in dict.fromkeys([config.lead, *living]) if name != agent.name]
