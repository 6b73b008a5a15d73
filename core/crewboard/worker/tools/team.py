"""The tools of a lead: the commands that a person gives, given by an agent.

Commands that wait for other processes run in a thread, so that the lead stays interruptible.
"""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from pydantic import Field

from crewboard.commands import hire as hiring
from crewboard.commands import messages as team_mail
from crewboard.commands import stop
from crewboard.commands import tasks as board
from crewboard.commands.context import Team
from crewboard.errors import CrewboardError
from crewboard.names import LEAD, check_team
from crewboard.protocol import approvals, requests
from crewboard.protocol.results import Follower
from crewboard.records import Config, HireOptions, Request, Spec
from crewboard.store import agents, leases, mailbox, roster, tasks
from crewboard.store.layout import DEFAULT_TEAM, find_team
from crewboard.worker.interrupts import Interrupted
from crewboard.worker.tools.base import Context, Input, Tool
from crewboard.worker.tools.outcome import Outcome

T = TypeVar("T")

LOOK_EVERY = 0.2
"""Seconds between two looks at a child that is waited for."""


class TaskCreate(Input):
    subject: str
    description: str = ""
    assigned_to: str | None = None
    blocked_by: list[int] = Field(default=[])


class CreateTeam(Input):
    name: str
    description: str = ""


class SpawnAgent(Input):
    name: str
    agent_type: str
    prompt: str
    role: str = ""
    background: bool = False
    plan_required: bool = False
    model: str | None = None


class Nothing(Input):
    pass


class Broadcast(Input):
    content: str


class Teammate(Input):
    teammate: str


class RequestPlan(Input):
    teammate: str
    task: str


class ReviewPlan(Input):
    request_id: str
    approve: bool
    feedback: str = ""


def _team(context: Context) -> Team:
    return Team(
        context.run_state.agent.team, by=context.name, environment=context.environment, now=context.run_state.now
    )


async def _in_thread(command: Callable[..., T], *arguments: Any) -> T:
    return await asyncio.to_thread(command, *arguments)


async def _task_create(context: Context, given: TaskCreate) -> Outcome:
    try:
        task = board.add_task(
            _team(context),
            given.subject,
            description=given.description,
            owner=given.assigned_to,
            blocked_by=given.blocked_by,
        )
    except CrewboardError as error:
        return Outcome(str(error), is_error=True)
    assigned = f", assigned to {task.owner}{_kept_for(context, task.owner)}" if task.owner else ""
    return Outcome(f"task {task.id} is on the board{assigned}")


async def _create_team(context: Context, given: CreateTeam) -> Outcome:
    directory = context.run_state.agent.team

    def edit(config: Config) -> None:
        config.name, config.description = given.name, given.description

    try:
        current = roster.load(directory).name
        if current != DEFAULT_TEAM:
            return Outcome(f"this team has a name already: {current}", is_error=True)
        taken = find_team(directory.root, check_team(given.name))
        if taken is not None and taken != directory:
            return Outcome(f"there is another team called {given.name}", is_error=True)
        roster.change(directory, edit)
    except CrewboardError as error:
        return Outcome(str(error), is_error=True)
    return Outcome(f"the team is called {given.name} now")


async def _spawn_agent(context: Context, given: SpawnAgent) -> Outcome:
    team = _team(context)
    prompt_id = mailbox.derived_id(context.name, context.tool_use_id, "prompt")
    own = context.run_state.spec.flags
    flags = HireOptions(plan=given.plan_required, ask=own.ask, unsafe_no_sandbox=own.unsafe_no_sandbox)
    hire = hiring.Hire(
        name=given.name,
        type=given.agent_type,
        prompt=given.prompt,
        role=given.role,
        model=given.model,
        flags=flags,
        given=frozenset(),
        foreground=not given.background,
        prompt_id=prompt_id,
    )
    try:
        assignment = _hired_before(team, hire)
        if assignment is None:
            assignment = await context.interrupts.run_interruptibly(_in_thread(hiring.spawn, team, hire))
    except CrewboardError as error:
        return Outcome(str(error), is_error=True)
    if given.background:
        return Outcome(f"{given.name} is at work (run {assignment.run}); its result will reach you as mail")
    return await _wait_for_child(context, assignment)


def _hired_before(team: Team, hire: hiring.Hire) -> hiring.Assignment | None:
    """The assignment that this very call gave before its worker was killed."""
    if team.config.member(hire.name) is None:
        return None
    spec = agents.spec(team.directory.agent(hire.name))
    if spec is None or spec.prompt_id != hire.prompt_id:
        return None
    return hiring.Assignment(hire.name, spec.prompt_id, spec.run, fresh=True)


async def _wait_for_child(context: Context, assignment: hiring.Assignment) -> Outcome:
    """Wait for a child's answer, but no longer than until it needs its lead.

    Raises:
        Interrupted: Somebody wants the lead to read its mail; the child's answer will come as mail.
        Leave: The run ends.
    """
    team = context.run_state.agent.team
    follower = Follower(team.agent(assignment.agent), assignment.id, assignment.run).rewind()
    context.run_state.show("waiting", f"waits for {assignment.agent}")

    async def needs_us() -> str:
        while True:
            ended = follower.ended()
            follower.read()
            if follower.answer is not None:
                return ""
            if ended is not None:
                return f"{assignment.agent} ended without an answer ({ended.reason})"
            asked = next((r for r in requests.pending(team) if (r.from_, r.to) == (assignment.agent, LEAD)), None)
            if asked is not None:
                return f"{assignment.agent} waits for you: {asked.type} {asked.id}. Its result will reach you as mail"
            await asyncio.sleep(LOOK_EVERY)

    try:
        why = await context.interrupts.run_interruptibly(needs_us(), waiting=True)
    except Interrupted:
        if (outcome := _stop_waiting(follower)) is None:
            raise
        return outcome
    if not why:
        return _result(follower)
    return _stop_waiting(follower) or Outcome(why, is_error=follower.ended() is not None)


def _stop_waiting(follower: Follower) -> Outcome | None:
    """Leave the answer to the mail; if it came at this very moment, it is the result after all."""

    def edit(spec: Spec | None) -> Spec:
        if spec is None:
            raise CrewboardError(f"{follower.agent.name} has no spec")
        return spec.model_copy(update={"foreground": False})

    agents.change_spec(follower.agent, edit)
    follower.read()
    return _result(follower) if follower.answer is not None else None


def _result(follower: Follower) -> Outcome:
    answer = follower.answer
    if answer is None:
        return Outcome(f"{follower.agent.name} gave no answer", is_error=True)
    mailed_as = approvals.answer_id(follower.agent.name, answer)
    text = answer.error or answer.text
    return Outcome(f"{follower.agent.name}: {text}", is_error=answer.error is not None, consumed=(mailed_as,))


async def _list_team(context: Context, given: Nothing) -> Outcome:  # noqa: ARG001  it takes nothing
    directory = context.run_state.agent.team
    lines = []
    for member in roster.load(directory).members:
        agent = directory.agent(member.name)
        status = agents.status(agent)
        state = (status.state if status else "starting") if leases.is_held(agent.lease) else "not running"
        doing = f": {status.doing}" if status and status.doing and state != "not running" else ""
        task = tasks.in_progress(directory, member.name)
        lines.append(f"{member.name} ({member.type}) {state}{doing}" + (f", task {task.id}" if task else ""))
    return Outcome("\n".join(lines))


async def _broadcast(context: Context, given: Broadcast) -> Outcome:
    try:
        sent = team_mail.broadcast(_team(context), given.content)
    except CrewboardError as error:
        return Outcome(str(error), is_error=True)
    return Outcome(f"sent to {', '.join(message.to for message in sent)}{_kept_for(context, *(m.to for m in sent))}")


def _kept_for(context: Context, *names: str) -> str:
    """Which of those that were written to read it only when they run again."""
    asleep = [name for name in names if not team_mail.is_listening(_team(context), name)]
    return f"; not running, so that it is kept for them: {', '.join(asleep)}" if asleep else ""


async def _request_shutdown(context: Context, given: Teammate) -> Outcome:
    team = _team(context)
    if given.teammate == context.name:
        return Outcome("that is you; end your turn, and whoever leads you ends you", is_error=True)
    try:
        request = stop.ask_to_stop(team, given.teammate, "your lead asks you to")
    except CrewboardError as error:
        return Outcome(str(error), is_error=True)
    if request is None:
        return Outcome(f"{given.teammate} is not running")
    return await context.interrupts.run_interruptibly(_shutdown_outcome(context, request))


async def _shutdown_outcome(context: Context, request: Request) -> Outcome:
    """What became of a shutdown request: gone, refused, or no answer in time."""
    team, name = context.run_state.agent.team, request.to
    while leases.is_held(team.agent(name).lease):
        answer = requests.load(team, request.id)
        if answer is not None and answer.status == "rejected":
            return Outcome(f"{name} refuses: {answer.feedback}")
        if answer is None or answer.status in ("expired", "cancelled"):
            return Outcome(f"{name} did not answer and goes on", is_error=True)
        approvals.pending_shutdown(team, name, context.run_state.now())
        await asyncio.sleep(LOOK_EVERY)
    return Outcome(f"{name} has shut down")


async def _request_plan(context: Context, given: RequestPlan) -> Outcome:
    team = _team(context)
    try:
        team.member(given.teammate)
        team_mail.post(team, given.teammate, "message", given.task, plan_required=True)
    except CrewboardError as error:
        return Outcome(str(error), is_error=True)
    kept = _kept_for(context, given.teammate)
    return Outcome(f"{given.teammate} will hand in a plan before it writes or runs anything{kept}")


async def _review_plan(context: Context, given: ReviewPlan) -> Outcome:
    status: Any = "approved" if given.approve else "rejected"
    try:
        request = requests.load(context.run_state.agent.team, given.request_id)
        if request is not None and request.type != "plan_approval":
            return Outcome(f"request {given.request_id} is no plan", is_error=True)
        decided = approvals.respond(
            context.run_state.agent.team,
            given.request_id,
            status,
            context.name,
            context.run_state.now(),
            feedback=given.feedback or None,
        )
    except CrewboardError as error:
        return Outcome(str(error), is_error=True)
    return Outcome(f"the plan of {decided.from_} is {decided.status}")


async def _delete_team(context: Context, given: Nothing) -> Outcome:  # noqa: ARG001  it takes nothing
    team = _team(context)
    others = [member.name for member in team.config.members if member.name != context.name]
    try:
        await context.interrupts.run_interruptibly(_in_thread(stop.end_all, team, others))
    except CrewboardError as error:
        return Outcome(str(error), is_error=True)
    return Outcome(f"ended: {', '.join(others) or 'nobody else was there'}; the files stay")


TASK_CREATE: Tool[TaskCreate] = Tool(
    "task_create", "Put a task on the board; with assigned_to its owner is told.", TaskCreate, _task_create
)
CREATE_TEAM: Tool[CreateTeam] = Tool(
    "create_team", "Name and describe the team that you lead.", CreateTeam, _create_team
)
SPAWN_AGENT: Tool[SpawnAgent] = Tool(
    "spawn_agent",
    "Hire an agent of type explore, plan, code or test, or give an idle one more work. In the foreground (default) you "
    "wait for its result, which is this call's result; in the background its result reaches you as mail.",
    SpawnAgent,
    _spawn_agent,
    waits=True,
)
LIST_TEAM: Tool[Nothing] = Tool("list_team", "See who is on the team and what they do.", Nothing, _list_team)
BROADCAST: Tool[Broadcast] = Tool("broadcast", "Send one message to every other agent.", Broadcast, _broadcast)
REQUEST_SHUTDOWN: Tool[Teammate] = Tool(
    "request_shutdown",
    "Ask a teammate to shut down and wait for its answer; a busy one may refuse.",
    Teammate,
    _request_shutdown,
    seconds=lambda _: 60.0,
)
REQUEST_PLAN: Tool[RequestPlan] = Tool(
    "request_plan",
    "Give a teammate work for which it must have a plan approved before it writes or runs anything.",
    RequestPlan,
    _request_plan,
)
REVIEW_PLAN: Tool[ReviewPlan] = Tool(
    "review_plan",
    "Approve a plan, or reject it with feedback. Only while plans are yours to review.",
    ReviewPlan,
    _review_plan,
)
DELETE_TEAM: Tool[Nothing] = Tool("delete_team", "End every other agent. The files stay.", Nothing, _delete_team)

TOOLS = (
    TASK_CREATE, CREATE_TEAM, SPAWN_AGENT, LIST_TEAM, BROADCAST, REQUEST_SHUTDOWN, REQUEST_PLAN, REVIEW_PLAN,
    DELETE_TEAM,
)  # fmt: skip
