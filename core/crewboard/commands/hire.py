"""Hire agents, give them more work, and resume agents that ended."""

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NoReturn, TypedDict, Unpack

from crewboard import agent_types, endpoint, engines, env, models, pricing, type_files
from crewboard.agent_types import AgentType
from crewboard.commands import hosts
from crewboard.commands.context import (
    NONE,
    Team,
    check_credentials,
    check_variables,
    command_for,
    join_reasons,
    lacks_with_engine,
    require_price,
    require_spec,
    wait_until,
)
from crewboard.commands.messages import post
from crewboard.commands.tasks import assign_without_mail
from crewboard.errors import BadDataError, LimitError, TryLaterError, UsageError
from crewboard.names import LEAD, OPERATOR, check_agent
from crewboard.protocol import requests, supervisor_client
from crewboard.records.agents import Engine, HireOptions, Spec
from crewboard.records.base import counted
from crewboard.records.requests import bound_to
from crewboard.records.team import Config, Member, OperatorState, Removed, Task, result_mark
from crewboard.store import agents as store_agents
from crewboard.store import hosts as store_hosts
from crewboard.store import journal, leases, mailbox, roster, tasks
from crewboard.store.agents import is_starting
from crewboard.store.layout import AgentDirectory
from crewboard.web import TOOLS as WEB_TOOLS
from crewboard.web import check_domains, narrow

if TYPE_CHECKING:
    from crewboard.worktrees.checkout import Prepared


@dataclass(frozen=True)
class Hire:
    """The arguments of `spawn`.

    `given` are the names of the flags that the caller chose; None for all of them. If the agent exists and is idle,
    these flags must be those that it was hired with. If `foreground`, the caller waits for the result itself, and no
    result mail is sent. `prompt_id` is the id of the prompt, for a caller that must find the agent again after a crash.
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
    wait: bool = True
    """If False, the hire is refused if the agent could not start at once, because of a cap or for want of a host."""
    is_explorer: bool = False
    """True for an explorer, which `send_explorer` hires for the agent that gives the command."""
    engine: str | None = None
    """The engine: a known name, or `acp:COMMAND`. `none` means the model; None leaves it to the type and the team."""


@dataclass(frozen=True)
class Assignment:
    """Work that was given to an agent, in its run `run`. Its result lists `id` in `answers`.

    `fresh` is True if the work is the prompt of a new run, False if it was sent as mail. `note` says what the hirer
    should know.
    """

    agent: str
    id: str
    run: int
    fresh: bool
    note: str = ""


def effective_terms(
    asked: HireOptions, hirer: HireOptions, before: HireOptions | None = None, *, acts: bool = True
) -> HireOptions:
    """Return the options of an agent that another agent hires: those `asked` for, no wider than the hirer's.

    If the agent was hired `before`, they are no wider than those options either, because only the operator widens what
    the operator set. The hirer's budget is not copied: the agent draws on it anyway. An agent that neither writes nor
    runs commands (`acts` is False) needs neither plan nor worktree because its hirer does.
    """
    limits, old = ([hirer], HireOptions()) if before is None else ([hirer, before], before)
    domains: list[str] | None = asked.allowed_domains
    for each in limits:
        domains = narrow(domains, each.allowed_domains) if domains is not None else None
    return asked.replace(
        plan=asked.plan or (hirer.plan and acts) or old.plan,
        strict_plan=asked.strict_plan or (hirer.strict_plan and acts) or old.strict_plan,
        ask=asked.ask or any(each.ask for each in limits),
        budget=old.budget or asked.budget,
        network=asked.network and all(each.network for each in limits),
        web=asked.web and domains is not None and all(each.web for each in limits),
        allowed_domains=domains or [],
        unsafe_no_sandbox=asked.unsafe_no_sandbox and all(each.unsafe_no_sandbox for each in limits),
        allow_hardlinks=asked.allow_hardlinks and all(each.allow_hardlinks for each in limits),
        max_turns=min(asked.max_turns, *(each.max_turns for each in limits)),
        restart=asked.restart or old.restart,
        worktree=asked.worktree or (hirer.worktree and acts) or old.worktree,
        effort=old.effort or asked.effort,
        thinking=old.thinking or asked.thinking,
        window=old.window or asked.window,
        max_reply=old.max_reply or asked.max_reply,
        max_memory=min((each.max_memory for each in (asked, *limits) if each.max_memory), default=None),
    )


def _limit_to_hirer(team: Team, hire: Hire, kind: AgentType) -> Hire:
    """Return a hire limited to what the agent that gives the command may ask for; of the operator, as it is.

    Raises:
        UsageError: The hirer's terms are unknown, the type may do more than the hirer, or only the operator may choose
            the engine.
    """
    if team.by == OPERATOR:
        return hire
    hirer = team.directory.agent(team.by).spec.load()
    if hirer is None:
        raise UsageError(f"{team.by} has no spec, so its terms are unknown; it hires no agent")
    own = agent_types.type_of(hirer.type, hirer.definition)
    status = team.directory.agent(team.by).status.load()
    approved = status.terms.given if status is not None and status.terms is not None else None
    wider = [tool for tool in kind.tools if tool in agent_types.LEAD_TOOLS or tool not in own.tools]
    wider += [f"the MCP server {name}" for name in kind.mcp_servers]
    if wider:
        raise UsageError(f"only the operator hires an agent of type {kind.name}: it has {', '.join(wider)}")
    lost = [tool for tool in agent_types.nameable_tools(kind) if not agent_types.kept_by_terms(approved, tool)]
    if lost:
        raise UsageError(
            f"{hire.name} was not hired: type {kind.name} has {', '.join(lost)}, which the terms of your plan's "
            "approval do not leave you until your result"
        )
    known = team.config.member(hire.name) is not None
    before = team.directory.agent(hire.name).spec.load() if known else None
    flags = hirer.flags.replace(
        ask=hirer.flags.ask or (approved is not None and approved.ask),
        web=hirer.flags.web and all(agent_types.kept_by_terms(approved, tool) for tool in WEB_TOOLS),
    )
    engine = _engine_of(team, hire, kind)
    own_engine, root = hirer.engine, team.directory.root
    is_own = engine is not None and own_engine is not None and engines.is_same(engine, own_engine, root)
    if engine is not None and hire.engine is not None and engine != team.config.engine and not is_own:
        has = [f"your own, {engines.named(own_engine)}"] if own_engine is not None else []
        has += [f"the team's, {team.config.engine}"] if team.config.engine else []
        given = " and ".join(has) or "a model: the team has none"
        raise UsageError(f"{hire.name} was not hired: only the operator chooses the engine {engine}; you have {given}")
    asked = hire.flags
    if engine is not None and not engines.known(engine).hosts:
        # An agent cannot ask for it, and such an engine reaches its model no other way.
        asked = asked.replace(network=hirer.flags.network)
    terms = effective_terms(asked, flags, before.flags if before else None, acts=kind.writes or kind.executes)
    return replace(hire, flags=terms)


def choose_model(
    kind: AgentType, explicit: str | None, environment: Mapping[str, str], config: Config, hirer: str = OPERATOR
) -> str:
    """Return the model of a new agent.

    That is `explicit`, else the one of the environment, of the team's setting, of the agent that hires, or of the type.
    A hirer's model is passed on only if it is not one of Anthropic's, which shows that the team uses another server.
    """
    chosen = explicit or env.model(environment) or models.of_setting(config.model, kind.name)
    if chosen is not None:
        return models.resolve(chosen, environment)
    member = config.member(hirer)
    usual = {models.usual(each.model, environment) for each in agent_types.TYPES.values()}
    if member is not None and not models.is_of_anthropic(member.model) and member.model not in {*usual, ""}:
        return member.model
    return models.usual(kind.model, environment)


def spawn(team: Team, hire: Hire) -> Assignment:
    """Hire an agent, or give an idle agent of that name more work. Return once its worker is running, or queued.

    Creates the team if it does not exist yet.

    Raises:
        UsageError: The name, type, prompt or flags are invalid, the agent was hired with other options, or the model
            or engine does not take them.
        TryLaterError: The agent is at work or queued, its task is blocked, or a cap is reached and it may not wait.
        CredentialsError: There is no API key.
        NoSandboxError: No sandbox is available for this type.
        UntrustedError: The type is the project's own, and the user has not accepted it.
        LimitError: The budget of the team or of the hiring agent is used up.
    """
    roster.require_own_agents(team.directory)
    member = team.config.member(hire.name)
    if hire.prompt_id is not None and member is not None:
        # The same call may have given the assignment before its caller was killed.
        spec = team.directory.agent(hire.name).spec.load()
        if spec is not None and spec.prompt_id == hire.prompt_id:
            return Assignment(hire.name, spec.prompt_id, spec.run, fresh=True)
    # The worker of a hire that cannot be paid would end at once.
    if team.directory.exists() and (used_up := roster.used_up(roster.budgets(team.directory, team.by))) is not None:
        raise LimitError(f"{hire.name} was not hired: {used_up}; `{command_for(team, 'budget')}` shows and raises it")
    agent = team.directory.agent(hire.name)
    lives = member is not None and leases.is_held(agent.lease)
    # A file that was changed or removed since then does not change an agent that runs.
    hired = agent.spec.load_or_none() if lives else None
    kind = None
    if hired is not None and hired.type == hire.type:
        kind = agent_types.known_type(hired.type, hired.definition)
    kind = kind or type_files.find(team.directory.root, hire.type)
    check_agent(hire.name, kind.name)
    # The web and the domains are those of the type where the hire itself does not say.
    domains = check_domains(hire.flags.allowed_domains) or [*kind.allowed_domains]
    web = hire.flags.web if hire.given is None or "web" in hire.given else kind.web
    hire = replace(hire, flags=hire.flags.replace(web=web, allowed_domains=domains))
    hire = _limit_to_hirer(team, hire, kind)
    # What a project's own type requires: a plan, questions, a lower limit of model calls.
    flags, turns = hire.flags, min(hire.flags.max_turns, kind.max_turns or hire.flags.max_turns)
    narrower = flags.replace(plan=flags.plan or kind.plan, ask=flags.ask or kind.asks == "all", max_turns=turns)
    hire = replace(hire, flags=narrower)
    if not hire.prompt.strip():
        raise UsageError(f"{hire.name} needs a prompt: say what it should do")
    if hire.flags.task is not None:
        _check_task(team, tasks.load(team.directory, hire.flags.task), hire)
    if member is not None and member.type != hire.type:
        raise UsageError(f"{hire.name} is of type {member.type}; remove it first, or choose another name")
    if lives:
        return _assign_more_work(team, agent, hire)
    return _start_fresh(team, agent, hire, kind)


EXPLORER_ENDS_WITHIN = 5.0
"""Seconds to wait for the end of an explorer that has reported."""

_LONGEST_PARENT = 20
"""Most characters of an agent's name with which the names of its explorers begin."""


def send_explorer(team: Team, question: str, prompt_id: str) -> Assignment:
    """Hire an explorer, an agent that answers one question, for the agent that gives the command.

    The explorer ends after its report, or with that agent. A second call with the same `prompt_id` hires no other one,
    and returns the first assignment.

    Raises:
        UsageError: The agent is an explorer itself, or the question is empty.
        TryLaterError: The agent has as many explorers as it may have at once, or a cap of the team is reached.
        LimitError: The budget of the agent or the team is used up.
    """
    hirer = team.directory.agent(team.by).spec.load()
    if hirer is None or hirer.parent is not None:
        raise UsageError(f"{team.by} is an explorer itself, and sends none: search yourself")
    specs = {name: team.directory.agent(name).spec.load() for name in team.config.names}
    own = {name: spec for name, spec in specs.items() if spec is not None and spec.parent == team.by}
    if again := next((name for name, spec in own.items() if spec.prompt_id == prompt_id), None):
        return Assignment(again, prompt_id, own[again].run, fresh=True)

    def find_at_work() -> list[str]:
        files = {name: team.directory.agent(name) for name in own}
        return [
            name
            for name, spec in own.items()
            if leases.is_held(files[name].lease) or is_starting(spec, store_agents.last_run(files[name]), team.now())
        ]

    # One that has just reported is still ending.
    wait_until(lambda: len(find_at_work()) < roster.explorers_at_once(team.config), EXPLORER_ENDS_WITHIN)
    if len(at_work := find_at_work()) >= roster.MOST_EXPLORERS:
        raise TryLaterError(
            f"you have {roster.MOST_EXPLORERS} explorers at work ({', '.join(at_work)}), and no more at once: their "
            "reports reach you as mail; search yourself meanwhile"
        )
    names = (f"{team.by[:_LONGEST_PARENT]}-explorer-{number}" for number in itertools.count(1))
    name = next(name for name in names if name not in at_work and (name not in specs or name in own))
    flags = HireOptions(once=True, host=env.host(team.environment) or None, allow_hardlinks=hirer.flags.allow_hardlinks,
                        unsafe_no_sandbox=hirer.flags.unsafe_no_sandbox, max_turns=hirer.flags.max_turns)  # fmt: skip
    sent = Hire(name, "explore", question, flags=flags, foreground=True, prompt_id=prompt_id, wait=False)
    return spawn(team, replace(sent, is_explorer=True))


def stop_waiting(team: Team, name: str) -> None:
    """Make an agent send its result as mail, because its hirer no longer waits for it.

    Raises:
        UsageError: The agent has no spec.
    """
    agent = team.directory.agent(name)
    store_agents.change_spec(agent, lambda spec: require_spec(name, spec).replace(foreground=False))


def _check_task(team: Team, task: Task, hire: Hire) -> None:
    """Check that an agent hired for this task could start it.

    Raises:
        UsageError: The task is closed, or is for another type of agent.
        TryLaterError: The task is blocked by others.
    """
    if task.status in tasks.CLOSED:
        again = f"`{command_for(team, f'task reopen {task.id}')}` reopens it"
        raise UsageError(f"task {task.id} is {task.status}; {again}")
    tasks.check_type(f"task {task.id}", task.required_type, hire.name, hire.type)
    if waiting := tasks.blockers(task, {each.id: each for each in tasks.load_all(team.directory)}):
        assign = f"`{command_for(team, f'task update {task.id} --owner {hire.name}')}`"
        raise TryLaterError(
            f"task {task.id} is blocked by {', '.join(map(str, waiting))}; hire {hire.name} without it, then {assign}"
        )


_IDLE_WITHIN = 3.0
"""Seconds to wait until an agent that has answered is idle: it may take a snapshot of its work before."""


def _assign_more_work(team: Team, agent: AgentDirectory, hire: Hire) -> Assignment:
    """Send the prompt of a hire to an agent that is idle.

    Raises:
        TryLaterError: The agent is not idle.
        UsageError: The agent was hired with other options than those of the hire.
    """

    def is_answering() -> bool:
        status = agent.status.load_or_none()
        return status is not None and status.state == "working" and journal.has_answered(agent)

    # A script that has just read its answer comes before it is idle.
    wait_until(lambda: not is_answering(), _IDLE_WITHIN)
    spec, status = agent.spec.load(), agent.status.load_or_none()
    if spec is None or status is None or status.state != "idle":
        doing = status.state if status else "starting"
        send = command_for(team, f"send {hire.name} TEXT")
        raise TryLaterError(f"{hire.name} is at work ({doing}); `{send}` reaches it meanwhile")
    given = (set(HireOptions.__struct_fields__) if hire.given is None else hire.given) - {"task"}
    differing = [name for name in sorted(given) if getattr(hire.flags, name) != getattr(spec.flags, name)]
    differing += ["role"] if hire.role and hire.role != spec.role else []
    differing += ["model"] if hire.model and models.resolve(hire.model, team.worker_environment) != spec.model else []
    if hire.engine == NONE:
        is_same = spec.engine is None
    else:
        is_same = hire.engine is None or engines.is_same(hire.engine, spec.engine, team.directory.root)
    differing += [] if is_same else ["engine"]
    if differing:
        # As the options are called.
        terms = ", ".join("from" if name == "start_from" else name.replace("_", "-") for name in differing)
        raise UsageError(f"{hire.name} was hired with other options ({terms}); spawn it without them, or stop it first")
    if hire.flags.task is not None:
        assign_without_mail(team, hire.flags.task, hire.name)
    plan = True if hire.flags.plan and not spec.flags.plan else None
    sent = post(team, hire.name, "message", hire.prompt, hire.prompt_id, task_id=hire.flags.task, plan_required=plan)
    team.note("message", hire.name, sent.id)
    return Assignment(hire.name, sent.id, spec.run, fresh=False)


def _check_machine(team: Team, kind: AgentType, flags: HireOptions, engine: Engine | None) -> None:
    """Check that an agent can start on this machine; on a team with hosts, check nothing, because the host does.

    With an engine, no key is checked: it has its own login.

    Raises:
        CredentialsError: There is no API key.
        BadDataError: The project's `models.toml` or `prices.toml` is damaged.
        NoSandboxError: No sandbox is available for this type.
        UsageError: A variable that the worker reads has a wrong value.
        UntrustedError: The team's supervisor is out of reach from here.
    """
    if store_hosts.exist(team.directory):
        return
    supervisor_client.require_reachable(team.directory)
    check_variables(team.worker_environment)
    if engine is None:
        check_credentials(team.worker_environment)
        pricing.require_readable(team.directory.root, team.worker_environment)
    # Imported here because commands that only read a team do not need it.
    from crewboard.sandbox import level

    level.check(team.directory.root, kind, flags, team.environment, has_engine=engine is not None)


def _engine_of(team: Team, hire: Hire, kind: AgentType) -> str | None:
    """Return the name of a new agent's engine: that of its hire, its type or the team; None for the model.

    The team's engine is only for agents that the operator hires without a model, on a team without hosts.
    """
    if hire.engine is not None:
        return None if hire.engine == NONE else hire.engine
    is_for_model = team.by != OPERATOR or team.offline or hire.model is not None or store_hosts.exist(team.directory)
    return usual_engine(team.config, kind, is_for_model=is_for_model)


def usual_engine(config: Config, kind: AgentType, *, is_for_model: bool) -> str | None:
    """Return the name of the engine of agents of a type whose hire names none; None for the model.

    An engine of the type comes first. The team's engine is for agents whose work it can do and that are no leads.
    `is_for_model` is True if agents get the model unless their type has an engine.
    """
    # With one, a lead reviews no plans and merges nothing, so its own hire has to name it.
    if kind.engine or is_for_model or kind.name == LEAD:
        return kind.engine or None
    return config.engine if config.engine and why_no_engine(kind, config.engine) is None else None


def why_no_engine(kind: AgentType, engine: str) -> str | None:
    """Return what agents of this type need and an engine lacks, as the end of a sentence; None if it lacks nothing."""
    # What the file of a type with an engine says of MCP servers is listed with what has no effect.
    if not kind.engine and (kind.mcp_servers or set(kind.mcp) - {agent_types.ALL_MCP}):
        return "gets no MCP servers of crewboard's"
    if engines.known(engine).own_tools and (kind.only or kind.denied or kind.asks):
        return "has no tools of crewboard's"
    return None


def check_engine(team: Team, hire: Hire, kind: AgentType, engine: str) -> None:
    """Check that an engine can do what a hire asks for, so that no option is silently without effect.

    Raises:
        UsageError: The engine cannot do it; the message says what to do.
    """
    known, flags = engines.known(engine), hire.flags
    asked = {
        "--model": hire.model is not None,
        "--effort": flags.effort is not None,
        "--thinking": flags.thinking is not None,
        "--web": flags.web,
        "--window": flags.window is not None,
        "--max-reply": flags.max_reply is not None,
        "--strict-plan": flags.strict_plan,
        # An engine decides by itself what it asks for: commands that only read, as it thinks, or nothing at all.
        "--ask": flags.ask,
    }
    lacks = lacks_with_engine(own_tools=known.own_tools)
    if wrong := [option for option, is_given in asked.items() if is_given and option in lacks]:
        raise UsageError(
            f"{hire.name} cannot have {', '.join(wrong)} with the engine {engine}: {join_reasons(wrong, lacks)}; leave "
            f"{'it' if len(wrong) == 1 else 'them'} out, or hire it with --engine {NONE}"
        )
    if (why := why_no_engine(kind, engine)) is not None:
        raise UsageError(f"an agent of type {kind.name} cannot have the engine {engine}, which {why}")
    if flags.unsafe_no_sandbox and (flags.plan or not kind.writes):
        what = "before its plan is approved" if flags.plan else f"which an agent of type {kind.name} may not"
        raise UsageError(
            f"without the sandbox nothing keeps the engine {engine} from writing, {what}: leave out --unsafe-no-sandbox"
        )
    for budget in (flags.budget, team.config.budget):
        parsed = pricing.budget_or_none(budget)
        if parsed is not None and parsed.usd is not None and not known.tells_cost:
            raise UsageError(
                f"{engine} does not tell what it costs, so a budget of {budget} has no effect: give tokens"
            )


def _start_fresh(team: Team, agent: AgentDirectory, hire: Hire, kind: AgentType) -> Assignment:
    accept = command_for(team, f"types trust {kind.name} {bound_to(kind.sha256)}")
    type_files.require_accepted(kind, team.environment, accept)
    named = _engine_of(team, hire, kind)
    on_hosts = store_hosts.exist(team.directory)
    engine = engines.choose(named, None if on_hosts else team.directory.root) if named is not None else None
    placed = store_hosts.check(team.directory, hire.flags.host, hire.flags.needs, named)
    if engine is not None:
        check_engine(team, hire, kind, engine.name)
    _check_machine(team, kind, hire.flags, engine)
    if not hire.wait:
        waits_for_it = team.by if hire.is_explorer else None
        memory = engines.known(engine.name).memory if engine is not None else 0
        hosts.require_no_wait(team, hire.name, hire.flags, waits_for_it=waits_for_it, engine=named, memory=memory)
    if engine is None:
        model = choose_model(kind, hire.model, team.worker_environment, team.config, team.by)
        _check_price(team, hire, model)
        require_model(team, model, hire.flags)
    else:
        model = engine.name
    prepared = _prepare_worktree(team, agent, hire, kind, own_tools=engine is not None and engine.own_tools)
    flags = hire.flags.replace(worktree=prepared.worktree is not None)
    if hire.flags.task is not None:
        assign_without_mail(team, hire.flags.task, hire.name)
    hirer = team.directory.agent(team.by).spec.load() if hire.is_explorer else None
    parent_worktree = hirer.worktree if hirer is not None else None
    now, had_spec = team.now(), agent.spec.load() is not None
    prompt_id = hire.prompt_id or mailbox.new_id()
    removed = team.config.removed.get(hire.name, Removed())
    earlier = max(removed.run, store_agents.newest_result(team.directory, hire.name))

    def edit(old: Spec | None) -> Spec:
        if leases.is_held(agent.lease):
            raise TryLaterError(f"another command has just started {hire.name}; run this one again")
        if old is not None and (waits := hosts.queued(team, agent.name, old.run)):
            again = f"`{command_for(team, f'stop {agent.name}')}` takes it out of the queue"
            raise TryLaterError(f"{agent.name} is {waits}; {again}")
        if old is not None and is_starting(old, store_agents.last_run(agent), now):
            _refuse_start(agent, old)
        # A run number is never used again, so that no result is overwritten and no message id comes twice.
        newest = max(old.run if old else earlier, store_agents.last_run(agent))
        # The operator has read the lead's mail until now.
        read_until = mailbox.size(team.directory, LEAD) if hire.name == LEAD and old is None else 0
        return Spec(
            prompt=hire.prompt, prompt_id=prompt_id, type=hire.type, role=hire.role, model=model,
            flags=flags, run=newest + 1, want="running", by=team.by, at=now, worktree=prepared.worktree,
            mail_from=old.mail_from if old else read_until, foreground=hire.foreground,
            definition=agent_types.definition(kind), parent=team.by if hire.is_explorer else None,
            parent_worktree=parent_worktree, engine=engine,
        )  # fmt: skip

    spec = store_agents.change_spec(agent, edit)
    known, report_to = team.config.member(hire.name), OPERATOR if hire.name == LEAD else LEAD
    member = Member(
        name=hire.name, type=hire.type, role=hire.role, model=model,
        # One whose files were lost is new, so that another loss is told, too.
        added_at=known.added_at if known is not None and had_spec else now,
        report_to=team.by if hire.is_explorer else report_to, plan_required=flags.plan,
        autoclaim=flags.autoclaim, title=known.title if known else "",
    )  # fmt: skip
    roster.put(team.directory, member, below=team.by if hire.is_explorer else None)
    team.note("hire", hire.name, f"{hire.type}, run {spec.run}")
    hosts.start(team, agent, spec)
    # On a host it has what that has.
    program = engines.known(engine.name) if engine is not None and not on_hosts else None
    missing = engines.lacks_access(program, team.environment) if program is not None else ""
    cannot_work = f"{program.title} has {missing}" if program is not None and missing else ""
    unread = _results_left(team, spec.mail_from) if hire.name == LEAD and spec.mail_from else ""
    note = "; ".join(text for text in (prepared.note, placed, cannot_work, unread) if text)
    return Assignment(hire.name, prompt_id, spec.run, fresh=True, note=note)


def _results_left(team: Team, mail_from: int) -> str:
    """Return in words how many unread results were in the mailbox `lead` before a new lead was hired; "" if none.

    The operator has to read them, because the lead reads the mailbox from the offset `mail_from` on.
    """
    seen = team.directory.operator.load_or_none() or OperatorState()
    entries = mailbox.read(team.directory, LEAD, seen.read.get(LEAD, 0)).entries
    count = sum(
        each.type == "result" and seen.needs.get(result_mark(LEAD, each.from_), 0) < end <= mail_from
        for each, end in entries
    )
    shows = f"`{command_for(team, f'inbox {LEAD}')}` shows {'it' if count == 1 else 'them'}"
    return f"you have not read {counted(count, 'result')} that came before it: {shows}" if count else ""


def advice_on_caps(team: Team) -> str | None:
    """Return the advice to let one agent work at a time, for a team with a server of a private network and no such cap.

    Return None for other teams.
    """
    environment = team.worker_environment
    # What is wrong with the address is said by the hire.
    if team.offline or team.config.max_working is not None or endpoint.address_problem(environment):
        return None
    url = endpoint.base_url(environment)
    if not endpoint.is_private(url):
        return None
    one = command_for(team, "settings max_working 1")
    return f"if {endpoint.host_and_port(url)} serves one call at a time, `{one}` lets one agent work at a time"


def has_worktree_by_default(config: Config, kind: AgentType, *, own_tools: bool) -> bool:
    """Return True if a new agent gets a worktree unless its hire says otherwise.

    Its type decides. Else an agent that writes gets one if the team's setting says so, or if it writes with
    `own_tools`, those of an engine, whose changes cannot be put back file by file.
    """
    if kind.worktree is not None:
        return kind.worktree
    return kind.writes and (own_tools or config.worktree == "always")


def can_have_worktree(team: Team) -> bool:
    """Return True if a new agent can have a worktree: the root is in a repository with a commit."""
    from crewboard.worktrees import checkout

    try:
        checkout.require_repository(team.directory.root, "it", "")
    except UsageError:
        return False
    return True


def _prepare_worktree(team: Team, agent: AgentDirectory, hire: Hire, kind: AgentType, *, own_tools: bool) -> "Prepared":
    """Make the worktree of a new agent if the hire, its type, its engine or the team's setting give it one.

    Return it, or None in its place, with a note for the hirer.

    Raises:
        UsageError: The hire asks for none while the agent has one with work in it, or a worktree that it asks for
            cannot be made. An engine that may write counts as asking, unless the hire says that it needs none.
    """
    # Imported here because commands that only read a team do not need it.
    from crewboard.worktrees import checkout

    if hire.is_explorer:
        # It reads that of its agent.
        return checkout.Prepared(None)
    explicit = hire.given is None or "worktree" in hire.given
    if store_hosts.exist(team.directory):
        # Imported here because it loads what compares and merges checkouts.
        from crewboard.commands import workspace

        prepared = checkout.Prepared(*workspace.worktree_on_hosts(team, hire.name, hire.flags))
        if prepared.worktree is None and own_tools and kind.writes and not explicit:
            raise UsageError(
                f"{hire.name} was not hired: an engine that may write needs a checkout of its own, and no workspace "
                f"was pushed; `{command_for(team, 'workspace push')}` does that"
            )
        return prepared
    if hire.flags.start_from is not None:
        raise UsageError(f"--from needs a team with hosts; hire {hire.name} with --base and a commit instead")
    asked = hire.flags.worktree or hire.flags.base is not None
    wanted = asked or (not explicit and has_worktree_by_default(team.config, kind, own_tools=own_tools))
    if hire.flags.base is not None or (hire.flags.worktree and explicit):
        checkout.require_repository(team.directory.root, hire.name, "or hire it without --worktree and --base")
    elif wanted and own_tools and kind.writes:
        # A lead cannot say that it wants none.
        who = "or" if team.by == OPERATOR else "only the operator can"
        checkout.require_repository(team.directory.root, hire.name, f"{who} hire it with --no-worktree")
    team.ensure()
    old = before.worktree if (before := agent.spec.load()) else None
    has_work = old is not None and team.directory.worktree(hire.name).is_dir()
    if has_work and explicit and not hire.flags.worktree:
        discard = f"`{command_for(team, f'discard {hire.name} --yes')}`"
        raise UsageError(f"{hire.name} has a worktree; {discard} throws it away, or choose another name")
    if not wanted and (old is None or explicit):
        return checkout.Prepared(None)
    return checkout.prepare(team.directory, hire.name, old, hire.flags.base, team.config.worktree_copy or ())


def _check_price(team: Team, hire: Hire, model: str) -> None:
    """Raise UsageError if a budget that the agent draws on is in money and the model has no price."""
    # Of the file as it is: one that cannot be read is no budget.
    of_team = team.config.budget if pricing.budget_or_none(team.config.budget) is not None else None
    budgets = [hire.flags.budget, of_team]
    if team.by != OPERATOR:
        agent = team.directory.agent(team.by)
        hirer, status = agent.spec.load(), agent.status.load()
        budgets += [hirer.flags.budget] if hirer is not None else []
        budgets += [status.terms.given.budget] if status is not None and status.terms is not None else []
    for budget in budgets:
        require_price(team, budget, model)


def _refuse_start(agent: AgentDirectory, spec: Spec) -> NoReturn:
    raise TryLaterError(f"another command is starting {agent.name} (run {spec.run}); wait, then try again")


class Resume(TypedDict, total=False):
    """The options of a resume: another model or host, and permission for the network or the web from now on."""

    model: str | None
    network: bool
    web: bool
    host: str | None


def resume(team: Team, name: str, **changes: Unpack[Resume]) -> int:
    """Start a stopped or dead agent again, with its conversation; return the run's number once it is up or queued.

    A running agent is left alone; one that is about to end is started again after its end. If another command starts it
    with the same options, wait for that. On a team with hosts it runs where its hire allows, or on `host` from now on.

    Raises:
        UsageError: There is no such agent or host, it is an explorer, or its model does not take its options.
        BadDataError: Its spec is damaged, or was and is incomplete.
        TryLaterError: Another command is starting it with other options, or it does not end.
        LimitError: A budget that it draws on is used up.
        CredentialsError: There is no API key.
        NoSandboxError: No sandbox is available for its type.
    """
    agent = team.own_agent(name)
    if model := changes.get("model"):
        changes["model"] = models.resolve(model, team.worker_environment)
    # Probed before the spec is read: a spec read earlier could name the run before.
    lives = _goes_on(team, agent)
    current = agent.spec.load()
    if lives and current is not None:
        # A host that is wrong for a stopped agent is wrong for a running one, too.
        if (host := changes.get("host")) is not None:
            store_hosts.check(team.directory, host, current.flags.needs, current.engine_name)
        return current.run
    if current is not None and current.parent is not None:
        raise UsageError(f"{name} searched for {current.parent} and ended with that work; resume {current.parent}")
    if (reached := _used_up(team, name)) is not None:
        raise LimitError(f"{name} was not resumed: {'; '.join(reached)}")
    if current is not None:
        # First, so that a resume that is refused makes no checkout.
        placed = check_resume(team, name, current, **changes)
        _check_machine(team, agent_types.type_of(current.type, current.definition), current.flags, current.engine)
        # Of an agent on hosts, its host makes it.
        if current.worktree is not None and not current.worktree.carried:
            # Imported here because commands that only read a team do not need it.
            from crewboard.worktrees import checkout

            checkout.prepare_again(team.directory, name, current.worktree, team.config.worktree_copy or ())
        if placed:
            team.tell(f"{name}: {placed}")
    spec = store_agents.change_spec(agent, lambda old: _resumed(team, agent, old, changes))
    if current is None or spec.run != current.run:
        team.note("resume", name, f"run {spec.run}")
    hosts.start(team, agent, spec)
    return spec.run


_END_TIMEOUT = requests.SHUTDOWN_TIMEOUT + 10
"""Seconds to wait for the end of an agent that was asked to shut down."""

_LOOK_INTERVAL = 0.2
"""Seconds between two checks of whether the agent has ended. Each check reads the requests of the team."""


def _goes_on(team: Team, agent: AgentDirectory) -> bool:
    """Wait for the end of an agent that is about to end; return True if the agent is running after that.

    Raises:
        TryLaterError: The agent does not end.
    """
    if _is_ending(team, agent):
        # It ends an agent that is to be killed. A command that wanted that may have died before it was there.
        supervisor_client.ensure_running(team.directory)
        spec = agent.spec.load_or_none()
        # One that was only asked may answer and end where its host is gone, too.
        is_lost = spec is not None and spec.want == "killed" and hosts.is_lost(team, agent.name)
        why, most, told_after = f"waiting until {agent.name} has ended, as it was asked to", _END_TIMEOUT, None
        if is_lost:
            why, most, told_after = hosts.still_running(team, [agent.name]), hosts.LOST_TIMEOUT, 0.0
        with telling(team, f"{why}. Then {agent.name} starts again.", told_after):
            if not wait_until(lambda: not _is_ending(team, agent), most, _LOOK_INTERVAL):
                if is_lost:
                    raise TryLaterError(why)
                again = command_for(team, f"resume {agent.name}")
                raise TryLaterError(f"{agent.name} was asked to end, and is still running; try `{again}` once it ended")
    return leases.is_held(agent.lease)


def _is_ending(team: Team, agent: AgentDirectory) -> bool:
    """Return True if a running agent is about to end.

    It is if it has recorded its end, is to be stopped or killed, or was asked to shut down and has not refused.
    """
    spec, ended = agent.spec.load_or_none(), agent.exit.load_or_none()
    if spec is None or not leases.is_held(agent.lease):
        return False
    if spec.want in ("killed", "stopped") or (ended is not None and ended.run == spec.run):
        return True
    asked = [each for each in requests.load_all(team.directory) if (each.type, each.to) == ("shutdown", agent.name)]
    # One that it did not answer in time changes nothing, also where no command is left that would say so.
    since = {"approved": spec.at, "pending": max(spec.at, team.now() - requests.SHUTDOWN_TIMEOUT)}
    return any(each.status in since and each.created_at >= since[each.status] for each in asked[-1:])


def check_resume(team: Team, name: str, spec: Spec, **changes: Unpack[Resume]) -> str:
    """Check that an agent can be resumed with these options; return a note if no host that is up could run it, else "".

    Raises:
        UsageError: Its model or engine does not take them, or there is no such host.
        BadDataError: Its spec was damaged, and is incomplete.
    """
    if spec.incomplete:
        key, remove = team.directory.agent(name).spec, command_for(team, f"remove {name}")
        raise BadDataError(
            f"{key} was damaged, and the journal does not say what {name} was hired with; repair it by hand from the "
            f"copy {key.name.rpartition('/')[2]}.damaged-… beside it, or `{remove}` and hire it anew"
        )
    model, web, host = changes.get("model"), changes.get("web", False), changes.get("host")
    placed, known = "", team.directory.hosts.names()
    if host is not None or known:
        # An imported agent may be bound to a host that this team never had: it waits for that one.
        bound = spec.flags.host if spec.flags.host in known else None
        placed = store_hosts.check(team.directory, host or bound, spec.flags.needs, spec.engine_name)
    if spec.engine is None:
        require_model(team, model or spec.model, spec.flags, web=web)
    elif model is not None or web:
        raise UsageError(f"{name} works with the engine {spec.engine.name}: it has no model or web of crewboard's")
    return placed


_TOLD_AFTER = 1.0
"""Seconds after which a command that waits for a server says so."""


@contextlib.contextmanager
def telling(team: Team, text: str, after: float | None = None) -> Iterator[None]:
    """Tell the user `text` if what is done in this context takes longer than `after` seconds, by default one."""
    late = threading.Timer(_TOLD_AFTER if after is None else after, team.tell, [text])
    late.daemon = True
    late.start()
    try:
        yield
    finally:
        late.cancel()


def not_a_model(name: str) -> str | None:
    """Return why no model has this name; None if one may."""
    if name.isprintable() and name == name.strip():
        return None
    return f"no model is called {name!r}: write its name as the server lists it"


def require_model(team: Team, model: str, flags: HireOptions, *, web: bool = False) -> None:
    """Raise UsageError if no model has such a name, or it does not take what an agent's hire options ask of it."""
    if (problem := not_a_model(model)) is not None:
        raise UsageError(problem)
    environment = team.worker_environment
    with telling(team, f"asking {endpoint.host_and_port(endpoint.base_url(environment))} what {model} can do …"):
        models.require(model, flags.effort, flags.thinking, environment, web=web or flags.web)


def how_to_resume(team: Team, name: str) -> str:
    """Return in words how an agent that has ended goes on: by raising the budget that is used up, or by `resume`."""
    reached = _used_up(team, name)
    return "; ".join(reached) if reached is not None else f"`{command_for(team, f'resume {name}')}` resumes it"


def how_to_raise(team: Team, name: str) -> str | None:
    """Return in words how to raise the used up budget of an agent; None if none is used up."""
    reached = _used_up(team, name)
    return reached[1] if reached is not None else None


def _used_up(team: Team, name: str) -> tuple[str, str] | None:
    """Return in words which budget of an agent is used up, and how it is raised; None if none is.

    The budget of an approved plan of its own does not count: it ends the assignment, not the run.
    """
    for each in roster.budgets(team.directory, name):
        if not each.by_terms and (text := roster.used_up([each])) is not None:
            raises = (
                f"`{command_for(team, each.raised_with)}` raises it"
                if each.raised_with
                else "the result of that plan ends it"
            )
            return text, raises
    return None


def _resumed(team: Team, agent: AgentDirectory, old: Spec | None, changes: Resume) -> Spec:
    """Return the spec that asks for the next run of an agent; the old one if a run is under way or about to begin.

    Raises:
        TryLaterError: Another command is starting the run with other options.
    """
    old = require_spec(agent.name, old)
    if leases.is_held(agent.lease):
        return old
    model, host = changes.get("model") or old.model, changes.get("host")
    host = old.flags.host if host is None else host
    permits = {permit: True for permit in ("network", "web") if changes.get(permit)}
    flags = old.flags.replace(host=host, **permits)
    last = store_agents.last_run(agent)
    # A host that was lost may have begun a run that it claimed without saying so: it is in the queue again.
    if is_starting(old, last, team.now()) or (last < old.run and hosts.queued(team, agent.name, old.run)):
        if host != old.flags.host:
            if store_hosts.find_queued(team.directory, agent.name, old.run) is None:
                _refuse_start(agent, old)
            # No host has claimed this run, so it can be for another one.
            old = old.replace(flags=old.flags.replace(host=host))
        if (model, flags) != (old.model, old.flags):
            _refuse_start(agent, old)
        # The other command starts this run, and each run number is started once.
        return old
    return old.replace(run=max(old.run, last) + 1, want="running", flags=flags, model=model, at=team.now())


def tell_lead(team: Team, text: str, flags: HireOptions | None = None, model: str | None = None) -> Assignment:
    """Send text to the lead, and return it as an assignment. Hire a lead if there is none, resume one that has ended.

    Both use `model` if it is given; `flags` are for a new lead.

    Raises:
        UsageError: The text is empty, or a lead runs with another model.
        CredentialsError: There is no API key.
    """
    roster.require_own_agents(team.directory)
    if not text.strip():
        raise UsageError("there is nothing to say to the lead: the text is empty")
    config = team.ensure().config
    lead = config.lead
    if config.member(lead) is None:
        return spawn(team, Hire(lead, LEAD, text, model=model, flags=flags or HireOptions()))
    run = resume(team, lead, model=model)
    spec = team.directory.agent(lead).spec.load()
    if model is not None and spec is not None and spec.model != models.resolve(model, team.worker_environment):
        stop = command_for(team, f"stop {lead}")
        raise UsageError(f"{lead} runs with {spec.model}; `{stop}` ends it, then it can start with {model}")
    message = post(team, lead, "message", text)
    team.note("message", lead, message.id)
    return Assignment(lead, message.id, run, fresh=False)


def resume_all(team: Team, names: Sequence[str] = (), **changes: Unpack[Resume]) -> tuple[list[str], list[str]]:
    """Resume all agents, or those of `names`, that are not running or are about to end, at the same time.

    Return the names of those that were resumed, and of those that were about to end and did not. Without names,
    explorers are left out: their agents send new ones.

    Raises:
        UsageError: There is no agent of one of the names.
        CrewboardError: An agent did not start; the others were started nevertheless.
    """
    roster.require_own_agents(team.directory)
    agents = [team.agent(name) for name in dict.fromkeys(names)] or [
        team.directory.agent(m.name) for m in team.config.members if m.report_to in (LEAD, OPERATOR)
    ]
    stopped = [agent.name for agent in agents if not leases.is_held(agent.lease) or _is_ending(team, agent)]
    before = {name: store_agents.last_run(team.directory.agent(name)) for name in stopped}
    runs: dict[str, int] = {}

    def start(name: str) -> None:
        runs[name] = resume(team, name, **changes)

    at_once(stopped, start)
    resumed = [name for name in stopped if runs[name] > before[name]]
    return resumed, [name for name in stopped if name not in resumed]


def at_once(names: list[str], command: Callable[[str], object]) -> None:
    """Call `command` for each name at the same time; after all calls, raise the error of the first that failed."""
    with ThreadPoolExecutor(max_workers=max(1, len(names))) as pool:
        starts = [pool.submit(command, name) for name in names]
    for start in starts:
        start.result()
