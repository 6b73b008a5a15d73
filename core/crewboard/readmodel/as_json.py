"""A team as JSON, in the form of `status --json` (docs/reference/json.md#status)."""

from typing import Any

from msgspec.structs import asdict

from crewboard.readmodel.needs import waiting_behind
from crewboard.readmodel.team import AgentView, HostView, Need, TeamView
from crewboard.readmodel.usage import bill_team
from crewboard.store.layout import TeamDirectory


def status(view: TeamView) -> dict[str, Any]:
    """Return the whole team."""
    bill = bill_team(view)
    return {
        "team": view.name,
        "root": str(view.root),
        "model_backend": view.model_backend,
        "supervisor": asdict(view.supervisor),
        "hosts": [host(each) for each in view.hosts],
        "attached": view.attached.as_dict() if view.attached else None,
        "agents": [agent(each, TeamDirectory(view.path)) for each in view.agents],
        "requests": [request.as_dict() for request in view.requests],
        "tasks": [task.as_dict() for task in view.tasks],
        "needs_you": [need_in_view(each, view) for each in view.needs],
        "damaged": view.damaged,
        "storage": view.storage,
        "present": [{"who": each.who, "since": each.since, "looking_at": each.looking_at} for each in view.present],
        "spent": {"tokens": bill.tokens.as_dict(), "cost_usd": bill.usd},
    }


def host(view: HostView) -> dict[str, Any]:
    """Return one host."""
    record = view.record
    return {
        "name": view.name,
        "state": view.state,
        "slots": record.slots,
        "used": view.used,
        "agents": list(view.agents),
        "lost": list(view.lost),
        "labels": record.labels,
        "machine": record.machine,
        "version": record.version,
        "pid": record.pid,
        "cores": record.cores,
        "load": record.load,
        "memory_bytes": record.memory,
        "clock_offset": record.clock_offset,
        "since": view.since,
        "seen": view.seen,
    }


def agent(view: AgentView, team: TeamDirectory) -> dict[str, Any]:
    """Return one agent."""
    spec, said, terms = view.spec, view.status, view.status.terms
    flags, engine, worktree = (spec.flags, spec.engine, spec.worktree) if spec else (None, None, None)
    return {
        "name": view.name,
        "type": view.type,
        "role": view.role,
        "title": view.title,
        "state": view.state,
        "reason": view.reason,
        "run": view.run,
        "pid": view.pid,
        "host": said.host or None,
        "alive": view.alive,
        "exit": view.exit.as_dict() if view.exit else None,
        "unread": view.unread,
        "doing": view.doing,
        "since": view.since,
        "turn": said.turn,
        "task": view.task,
        "waiting_for": said.waiting_for,
        "last_error": said.last_error,
        "setup_error": said.setup_error,
        "mcp": [each.as_dict() for each in said.mcp],
        "last_tool": said.last_tool,
        "deviations": said.deviations.as_dict() if said.deviations else None,
        "todo": said.todo.as_dict() if said.todo else None,
        "terms": {**terms.given.as_dict(), "request": terms.request} if terms else None,
        "tokens": said.tokens.as_dict(),
        "context": said.context.as_dict(),
        "cost_usd": said.cost_usd,
        "cpu_percent": view.usage.cpu_percent if view.usage else None,
        "rss_bytes": view.usage.rss_bytes if view.usage else None,
        "private_bytes": view.usage.private_bytes if view.usage else None,
        "sandbox": said.sandbox,
        "web": {"allowed_domains": flags.allowed_domains} if flags is not None and flags.web else None,
        "model": view.model,
        # Its version is None until it has started.
        "engine": {"name": engine.name, "version": said.engine_version or None} if engine else None,
        "effort": said.effort,
        "thinking": said.thinking,
        "damaged": view.damaged,
        "worktree": {"path": str(team.worktree(view.name)), "branch": worktree.branch, "base": worktree.base}
        if worktree
        else None,
        "collides_with": list(view.collides_with),
        "unmerged": {"added": view.unmerged.added, "removed": view.unmerged.removed} if view.unmerged else None,
    }


def need(each: Need, team: TeamDirectory) -> dict[str, Any]:
    """Return one need; for a death, with the last lines of the worker's log."""
    from crewboard.readmodel.crash_report import log_end

    log = {"log": list(log_end(team.agent(each.agent)))} if each.kind == "death" else {}
    return {
        "kind": each.kind,
        "agent": each.agent,
        "since": each.since,
        "request_id": each.request_id,
        "summary": each.summary,
        **({"code": each.code} if each.kind == "failed" else {}),
        **({"refused_by": each.refused_by} if each.refused_by is not None else {}),
        **({"other": each.other, "files": list(each.files)} if each.kind == "collision" else {}),
        **({"task": each.task} if each.task is not None else {}),
        **({"agents": list(each.agents), "host": each.host} if each.agents else {}),
        **({"server": each.server} if each.kind == "mcp" else {}),
        **({"file": each.file} if each.kind in ("damaged", "result", "check_failed") else {}),
        **log,
    }


def need_in_view(each: Need, view: TeamView) -> dict[str, Any]:
    """Return one need, with the number of agents and tasks that wait behind it."""
    behind = waiting_behind(view, each)
    waiting = {"agents": len(behind.agents), "tasks": len(behind.tasks)}
    return {**need(each, TeamDirectory(view.path)), "waiting": waiting}
