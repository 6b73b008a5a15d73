"""Recovery of a damaged spec, so that an agent can be ended and resumed in any case."""

from crewboard.commands.context import Team
from crewboard.errors import BadDataError, UsageError
from crewboard.records import HireOptions, Intake, Lease, Member, RunStarted, Spec
from crewboard.store import agents, journal, json_files, leases
from crewboard.store.layout import AgentDirectory


def want_killed(team: Team, name: str) -> None:
    """Set the desired state of an agent to `killed`.

    A spec that is damaged or missing is rebuilt from the roster and the journal, so that the agent can be resumed
    later. The damaged file is copied aside.
    """
    agent = team.directory.agent(name)
    try:
        agents.want(agent, "killed")
    except (BadDataError, UsageError):
        spec = _rebuild_spec(agent, _member(team, name)).model_copy(update={"want": "killed", "at": team.now()})
        lock = team.directory.lock(f"spec-{name}")
        json_files.change(agent.spec, lock, Spec, lambda _: spec, replace_damaged=True)


def _member(team: Team, name: str) -> Member | None:
    try:
        return team.config.member(name)
    except BadDataError:
        return None


def _rebuild_spec(agent: AgentDirectory, member: Member | None) -> Spec:
    """Return a spec built from the agent's journal and the roster."""
    prompt = ""
    started: RunStarted | None = None
    for event, _ in journal.read(agent.journal):
        if isinstance(event, RunStarted):
            started = event
        elif isinstance(event, Intake) and event.prompt is not None:
            prompt = event.prompt
    holder = leases.holder(agent.lease, Lease)
    return Spec(
        prompt=prompt,
        prompt_id=started.prompt_id if started else "",
        type=member.type if member else started.type if started else "",
        role=member.role if member else "",
        model=started.model if started else "",
        flags=_rebuild_flags(started, member),
        run=max(agents.last_run(agent), holder.run if holder else 0, 1),
    )


def _rebuild_flags(started: RunStarted | None, member: Member | None) -> HireOptions:
    """Return the hire options from the journal; if it has none, the most restrictive ones."""
    if started is not None and started.flags is not None:
        return started.flags
    return HireOptions(
        ask=True, plan=member is None or member.plan_required, autoclaim=member is not None and member.autoclaim
    )
