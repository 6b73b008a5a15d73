"""A team as JSON, in the form of `status --json` (docs/reference/json.md#status)."""

from typing import Any

from msgspec.structs import asdict

from crewboard.readmodel.needs import waiting_behind
from crewboard.readmodel.team import AgentView, HostView, Need, TeamView
from crewboard.readmodel.usage import bill_team
from crewboard.records.base import pick
from crewboard.store.layout import TeamDirectory


def status(view: TeamView) -> dict[str, Any]:
    """Return a whole team in the form of `status --json`."""
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
        "present": [pick(("who", "since", "looking_at"), each) for each in view.present],
        "spent": {"tokens": bill.tokens.as_dict(), "cost_usd": bill.usd},
    }


HOST = (
    "name", "state", "slots", "used", "agents", "lost", "labels", "engines", "machine", "version", "pid", "cores",
    "load", "memory_bytes", "clock_offset", "since", "seen",
)  # fmt: skip
"""The keys of a host in the JSON."""


def host(view: HostView) -> dict[str, Any]:
    """Return one host in the form of `status --json`."""
    return pick(HOST, view, view.record, memory_bytes=view.record.memory)


AGENT = (
    "name", "type", "role", "title", "state", "reason", "run", "pid", "host", "alive", "pausing", "exit", "unread",
    "doing", "since", "turn", "task", "waiting_for", "last_error", "setup_error", "mcp", "last_tool", "deviations",
    "todo", "terms", "tokens", "context", "cost_usd", "cpu_percent", "rss_bytes", "private_bytes", "sandbox", "web",
    "model", "engine", "effort", "thinking", "damaged", "worktree", "collides_with", "unmerged",
)  # fmt: skip
"""The keys of an agent in the JSON."""


def agent(view: AgentView, team: TeamDirectory) -> dict[str, Any]:
    """Return one agent in the form of `status --json`."""
    spec, said, terms, usage = view.spec, view.status, view.status.terms, view.usage
    flags, engine, worktree = (spec.flags, spec.engine, spec.worktree) if spec else (None, None, None)
    path, unmerged = str(team.worktree(view.name)), view.unmerged
    return pick(
        AGENT,
        view,
        said,
        host=said.host or None,
        pausing=view.is_pausing,
        terms={**terms.given.as_dict(), "request": terms.request} if terms else None,
        cpu_percent=usage.cpu_percent if usage else None,
        rss_bytes=usage.rss_bytes if usage else None,
        private_bytes=usage.private_bytes if usage else None,
        web={"allowed_domains": flags.allowed_domains} if flags is not None and flags.web else None,
        # Its version is None until it has started, its model until that is told.
        engine={
            "name": engine.name,
            "version": said.engine_version or None,
            "model": said.engine_model or None,
            "own_tools": engine.own_tools,
        }
        if engine
        else None,
        worktree={"path": path, "branch": worktree.branch, "base": worktree.base} if worktree else None,
        unmerged={"added": unmerged.added, "removed": unmerged.removed} if unmerged else None,
    )


def need(each: Need, team: TeamDirectory) -> dict[str, Any]:
    """Return one need in the form of `status --json`; a death also has the last lines of the worker's log."""
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
    """Return one need as `need` does, with the number of agents and tasks that wait behind it."""
    behind = waiting_behind(view, each)
    waiting = {"agents": len(behind.agents), "tasks": len(behind.tasks)}
    return {**need(each, TeamDirectory(view.path)), "waiting": waiting}
