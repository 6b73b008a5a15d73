"""Hiring agents, giving them work, bringing them back."""

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NoReturn

from crewboard import env, pricing
from crewboard.agent_types import custom
from crewboard.agent_types.builtin import AgentType
from crewboard.commands.cli_hint import command_for
from crewboard.commands.context import POLL_INTERVAL, Team, check_credentials
from crewboard.commands.messages import post
from crewboard.commands.tasks import assign_without_mail
from crewboard.errors import TryLaterError, UsageError
from crewboard.names import LEAD, OPERATOR, check_agent
from crewboard.pricing import parse_budget
from crewboard.protocol import supervisor_client
from crewboard.protocol.starts import START_TIMEOUT, is_starting
from crewboard.records import HireOptions, Member, Spec, Task, Tokens
from crewboard.store import agents, leases, mailbox, roster, tasks
from crewboard.store.layout import AgentDirectory


@dataclass(frozen=True)
class Hire:
    """What `spawn` is told.

    An agent that is idle must have been hired with the same flags: with those `given` by name, or, where
    that is None, with all of them. `foreground` means that the hirer takes the answer itself and wants no mail of
    it; `prompt_id` names the prompt, where the hirer must find it again after a crash.
    """

    name: str
    type: str
    prompt: str
    role: str = ""
    model: str | None = None
    flags: HireOptions = field(default_factory=HireOptions)
    given: frozenset[str] | None = None
    foreground: bool = False
    prompt_id: str | None = None


@dataclass(frozen=True)
class Assignment:
    """Work that was given to an agent: `id` is what its answer will name."""

    agent: str
    id: str
    run: int
    fresh: bool


def choose_model(kind: AgentType, explicit: str | None, environment: Mapping[str, str]) -> str:
    """The model of a new agent: what was asked for, else the environment's, else the type's."""
    return explicit or env.model(environment) or kind.model


def spawn(team: Team, hire: Hire) -> Assignment:
    """Hire an agent, or give an idle one of that name more work; returns when its worker is up.

    Makes the team if it is not there yet.

    Raises:
        UsageError: The name, type, prompt or flags cannot be.
        TryLaterError: The agent is at work, or its task is blocked.
        CredentialsError: No key, so that no worker could work.
    """
    kind = custom.find(team.directory.root, hire.type)
    check_agent(hire.name, kind.name)
    if not hire.prompt.strip():
        raise UsageError(f"{hire.name} needs a prompt: say what it should do")
    if hire.flags.budget is not None:
        parse_budget(hire.flags.budget)
    if hire.flags.task is not None:
        _check_task(team, tasks.load(team.directory, hire.flags.task), hire)
    member = team.config.member(hire.name)
    if member is not None and member.type != hire.type:
        raise UsageError(f"{hire.name} is of type {member.type}; remove it first, or choose another name")
    agent = team.directory.agent(hire.name)
    if member is not None and leases.is_held(agent.lease):
        return _assign_more_work(team, agent, hire)
    return _start_fresh(team, agent, hire, kind)


def _check_task(team: Team, task: Task, hire: Hire) -> None:
    """Whether somebody can be hired for this task, and begin it."""
    if task.status in tasks.CLOSED:
        again = f"`{command_for(team, f'task update {task.id} --status pending')}` opens it again"
        raise UsageError(f"task {task.id} is {task.status}; {again}")
    tasks.check_type(f"task {task.id}", task.required_type, hire.name, hire.type)
    if waiting := tasks.blockers(task, {each.id: each for each in tasks.load_all(team.directory)}):
        assign = f"`{command_for(team, f'task update {task.id} --owner {hire.name}')}` lets it wait"
        raise TryLaterError(
            f"task {task.id} is blocked by {', '.join(map(str, waiting))}; once {hire.name} is hired, {assign}"
        )


def _assign_more_work(team: Team, agent: AgentDirectory, hire: Hire) -> Assignment:
    """Deliver a prompt to an agent that lives."""
    spec, status = agents.spec(agent), agents.status(agent)
    if spec is None or status is None or status.state != "idle":
        doing = status.state if status else "starting"
        send = command_for(team, f"send {hire.name} TEXT")
        raise TryLaterError(f"{hire.name} is at work ({doing}); `{send}` reaches it there")
    _check_terms(hire, spec)
    if hire.flags.task is not None:
        assign_without_mail(team, hire.flags.task, hire.name)
    plan = True if hire.flags.plan and not spec.flags.plan else None
    sent = post(team, hire.name, "message", hire.prompt, hire.prompt_id, task_id=hire.flags.task, plan_required=plan)
    return Assignment(hire.name, sent.id, spec.run, fresh=False)


def _check_terms(hire: Hire, spec: Spec) -> None:
    given = (set(HireOptions.model_fields) if hire.given is None else hire.given) - {"task"}
    differing = [name for name in sorted(given) if getattr(hire.flags, name) != getattr(spec.flags, name)]
    differing += ["role"] if hire.role and hire.role != spec.role else []
    differing += ["model"] if hire.model and hire.model != spec.model else []
    if differing:
        terms = ", ".join(name.replace("_", "-") for name in differing)
        raise UsageError(f"{hire.name} was hired on other terms ({terms}); spawn it without them, or stop it first")


def _check_sandbox(team: Team, kind: AgentType, flags: HireOptions) -> None:
    from crewboard.sandbox import level  # who only looks at a team has no use for it

    level.check(team.directory.root, kind, flags, team.environment)


def _start_fresh(team: Team, agent: AgentDirectory, hire: Hire, kind: AgentType) -> Assignment:
    check_credentials(team.environment)
    _check_sandbox(team, kind, hire.flags)
    model = choose_model(kind, hire.model, team.environment)
    _check_price(team, hire, model)
    team.ensure()
    if hire.flags.task is not None:
        assign_without_mail(team, hire.flags.task, hire.name)
    now = team.now()
    prompt_id = hire.prompt_id or mailbox.new_id()

    def edit(old: Spec | None) -> Spec:
        if leases.is_held(agent.lease):
            raise TryLaterError(f"{hire.name} was started by somebody else just now")
        if old is not None and is_starting(old, agents.last_run(agent), now):
            _refuse_start(agent, old)
        newest = max(old.run if old else 0, agents.last_run(agent))
        return Spec(
            prompt=hire.prompt, prompt_id=prompt_id, type=hire.type, role=hire.role, model=model,
            flags=hire.flags, run=newest + 1, want="running", by=team.by, at=now,
            mail_from=old.mail_from if old else _mail_from(team, hire.name), foreground=hire.foreground,
            definition=custom.definition(kind),
        )  # fmt: skip

    spec = agents.change_spec(agent, edit)
    _add_to_roster(team, hire, model, now)
    _start(team, agent, spec)
    return Assignment(hire.name, prompt_id, spec.run, fresh=True)


def _check_price(team: Team, hire: Hire, model: str) -> None:
    """A limit in money holds nobody whose model has no price."""
    in_money = hire.flags.budget is not None and parse_budget(hire.flags.budget).usd is not None
    if not in_money or team.offline:
        return
    if pricing.load(team.directory.root).cost(model, Tokens()) is None:
        raise UsageError(
            f"no price is known of {model}: give the budget in tokens, or its price in .crewboard/prices.toml"
        )


def _mail_from(team: Team, name: str) -> int:
    """Where a new agent's mailbox begins: the lead's seat had another reader until now."""
    return mailbox.size(team.directory, name) if name == LEAD else 0


def _refuse_start(agent: AgentDirectory, spec: Spec) -> NoReturn:
    raise TryLaterError(f"{agent.name} is being started by somebody else (run {spec.run})")


def _add_to_roster(team: Team, hire: Hire, model: str, now: float) -> None:
    old = team.config.member(hire.name)
    roster.put(
        team.directory,
        Member(
            name=hire.name,
            type=hire.type,
            role=hire.role,
            model=model,
            added_at=old.added_at if old else now,
            report_to=OPERATOR if hire.name == LEAD else LEAD,
            plan_required=hire.flags.plan,
            autoclaim=hire.flags.autoclaim,
        ),
    )


def resume(team: Team, name: str, *, model: str | None = None, network: bool = False) -> int:
    """Start a stopped or dead agent again, with its conversation; returns the run when it is up.

    An agent that lives is left alone; one that somebody else is bringing up in the same way is waited for.

    Raises:
        UsageError: Nobody hired such an agent.
        TryLaterError: Somebody else is bringing it up in another way.
        CredentialsError: No key.
        NoSandboxError: Nothing could hold it in.
    """
    agent = team.agent(name)
    lives = leases.is_held(agent.lease)  # looked at first: an older spec would name the run before
    current = agents.spec(agent)
    if lives and current is not None:
        return current.run
    check_credentials(team.environment)
    if current is not None:
        kind = custom.type_of(current.type, current.definition)
        _check_sandbox(team, kind, current.flags)

    def edit(old: Spec | None) -> Spec:
        if old is None:
            raise UsageError(f"{name} has no usable spec; spawn it anew")
        if leases.is_held(agent.lease):
            return old
        if is_starting(old, agents.last_run(agent), team.now()):
            if model not in (None, old.model) or (network and not old.flags.network):
                _refuse_start(agent, old)
            return old  # each number is started once: a second one would be nobody's
        flags = old.flags.model_copy(update={"network": network or old.flags.network})
        run = max(old.run, agents.last_run(agent)) + 1
        changes = {
            "run": run,
            "want": "running",
            "flags": flags,
            "model": model or old.model,
            "at": team.now(),
        }
        return old.model_copy(update=changes)

    spec = agents.change_spec(agent, edit)
    _start(team, agent, spec)
    return spec.run


def tell_lead(team: Team, text: str, flags: HireOptions | None = None) -> Assignment:
    """Say something to the lead; hires one if the seat is empty, resumes one that has ended.

    Raises:
        UsageError: There is nothing to say.
        CredentialsError: No key.
    """
    if not text.strip():
        raise UsageError("there is nothing to say to the lead: the text is empty")
    if team.ensure().config.member(LEAD) is None:
        return spawn(team, Hire(LEAD, LEAD, text, flags=flags or HireOptions()))
    run = resume(team, LEAD)
    return Assignment(LEAD, post(team, LEAD, "message", text).id, run, fresh=False)


def resume_all(team: Team, *, model: str | None = None, network: bool = False) -> list[str]:
    """Resume every agent that does not live, all at once; returns their names.

    Raises:
        CrewboardError: One of them did not come up; the others were started all the same.
    """
    asleep = [m.name for m in team.config.members if not leases.is_held(team.directory.agent(m.name).lease)]
    with ThreadPoolExecutor(max_workers=max(1, len(asleep))) as pool:
        starts = [pool.submit(resume, team, name, model=model, network=network) for name in asleep]
    for start in starts:
        start.result()
    return asleep


def _start(team: Team, agent: AgentDirectory, spec: Spec) -> None:
    """Ring until the worker is in its loop, or has ended."""
    deadline = time.monotonic() + START_TIMEOUT
    next_ring = 0.0
    while time.monotonic() < deadline:
        if _is_up(agent, spec.run):
            return
        if time.monotonic() >= next_ring:
            supervisor_client.request_start(team.directory, agent.name, spec.run, team.environment)
            next_ring = time.monotonic() + 1
        time.sleep(POLL_INTERVAL)
    raise TryLaterError(f"{agent.name} did not come up within {START_TIMEOUT:.0f} s; see {agent.log}")


def _is_up(agent: AgentDirectory, run: int) -> bool:
    ended = agents.exit_record(agent)
    if ended is not None and ended.run >= run:
        return True
    status = agents.status(agent)
    return status is not None and status.run >= run and status.state != "starting"
