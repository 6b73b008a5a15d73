"""The tools of a lead, and `send_explorer`, which run the same code as the commands of the user.

Code that waits for other processes runs in a thread, so that the agent can be interrupted.
"""

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any

from pydantic import Field

from crewboard.agent_types import TYPES
from crewboard.commands import answers, hire, hosts, messages, stop, tasks
from crewboard.commands import changes as commands_changes
from crewboard.commands.context import Team, name_team
from crewboard.errors import CrewboardError, UsageError
from crewboard.protocol import requests, reviews
from crewboard.records.agents import Effort, HireOptions, Thinking
from crewboard.records.base import counted
from crewboard.store import leases, mailbox, roster
from crewboard.store import tasks as store_tasks
from crewboard.store.journal import Follower
from crewboard.web import check_domains, narrow
from crewboard.worker.interrupts import Interrupted
from crewboard.worker.tools.base import Context, Input, NoInput, Outcome, tool

if TYPE_CHECKING:
    from crewboard.worktrees.changes import Changes

POLL_INTERVAL = 0.2
"""Seconds between two looks at an agent for whose end or answer a lead waits."""

_LONGEST_POLL = 1.0
_POLL_SHARE = 0.05
"""Share of the time that a lead has already waited for an answer after which it looks again. The time is at least
`POLL_INTERVAL` and at most `_LONGEST_POLL`."""

MOST_FILES = 50
"""The most files of one agent that a list of changes names."""


class TaskCreate(Input):
    subject: str
    description: str = ""
    assigned_to: str | None = None
    blocked_by: list[int] = Field(default=[])
    priority: int = Field(default=0, description="0 is normal, a higher one is claimed first")
    check: str | None = Field(
        default=None, description="a command that must pass before the task is completed, such as make test"
    )
    review: str | None = Field(
        default=None, description="a teammate, or operator, that must approve the work before the task is completed"
    )


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
    worktree: bool = Field(default=False, description="give it a checkout of its own, on a branch of its own")
    model: str | None = None
    engine: str | None = Field(
        default=None, description="the program that works in place of a model: the one of the team, or your own"
    )
    effort: Effort | None = Field(default=None, description="how much the model works on it; usually left out")
    thinking: Thinking | None = Field(default=None, description="whether the model thinks before it acts")
    web: bool = Field(default=False, description="let it search and read the web; only if you can")
    allowed_domains: list[str] = Field(default=[], description="with web: only on these, such as docs.python.org")
    host: str | None = Field(default=None, description="the host to run on, where the team has hosts")
    needs: list[str] = Field(default=[], description="labels that its host must have, such as gpu")


class SendExplorer(Input):
    question: str = Field(description="what to find out, with all that it must know: it has not seen your conversation")


_SENDING = asyncio.Lock()

_TERMS = ("worktree", "effort", "thinking", "web", "host", "needs")
"""The fields of `SpawnAgent` that become options of the hire as they are. For an agent that exists, only those that are
given must be as it was hired."""


class Broadcast(Input):
    content: str


class Teammate(Input):
    teammate: str


class RequestPlan(Input):
    teammate: str
    task: str


class ReadDiff(Input):
    teammate: str
    path: str | None = Field(default=None, description="one file; without it, all that the teammate changed")


class AcceptChanges(Input):
    teammate: str
    sha256: str = Field(description="that of the work, as read_diff of all of it says")
    into: str = Field(default="integration", description="a branch that is not checked out; made if missing")
    message: str | None = Field(default=None, description="the message of the commit")


class ReviewPlan(Input):
    request_id: str
    approve: bool
    feedback: str = ""


def _team(context: Context) -> Team:
    return Team(context.team, by=context.name, environment=context.environment, now=context.now)


@tool()
async def task_create(context: Context, given: TaskCreate) -> Outcome:
    """Put a task on the board. If assigned_to is set, that agent gets mail about it."""
    draft = given.model_dump(exclude={"subject", "assigned_to"})
    task = tasks.add_task(_team(context), given.subject, owner=given.assigned_to, **draft)
    assigned = f", assigned to {task.owner}{_not_running(context, task.owner)}" if task.owner else ""
    check = store_tasks.check_of(context.team, task)
    other = f"; it is checked with the operator's `{check.command}`" if check and check.command != given.check else ""
    return Outcome(f"task {task.id} is on the board{assigned}{other}")


@tool()
async def create_team(context: Context, given: CreateTeam) -> Outcome:
    """Give the team that you lead a name and a description."""
    name_team(_team(context), given.name, given.description)
    return Outcome(f"the team is now called {given.name}")


@tool(waits=True)
async def spawn_agent(context: Context, given: SpawnAgent) -> Outcome:
    """Start an agent of type explore, plan, code or test, or give an idle agent more work. By default you wait, and
    this call returns the agent's result. With background, the result reaches you as mail.
    """
    own = context.run_state.spec.flags
    if given.web and not own.web:
        raise UsageError("you have no web, so the agents that you hire have none; the operator can hire one that has")
    if given.web and narrow(check_domains(given.allowed_domains), own.allowed_domains) is None:
        raise UsageError(f"you may use the web only on {', '.join(own.allowed_domains)}, and so may those you hire")
    assignment, kind = context.run_state.conversation.assignment, TYPES.get(given.agent_type)
    # If this work of the lead needs a plan, so does that of an agent that could act without one.
    acts = kind is None or kind.writes or kind.executes
    plan = given.plan_required or (acts and assignment is not None and assignment.plan_wanted)
    terms: dict[str, Any] = {name: getattr(given, name) for name in _TERMS}
    request = hire.Hire(
        given.name,
        given.agent_type,
        given.prompt,
        given.role,
        given.model,
        engine=given.engine,
        flags=HireOptions(
            **terms,
            allowed_domains=given.allowed_domains if given.web else [],
            plan=plan,
            unsafe_no_sandbox=own.unsafe_no_sandbox,
            allow_hardlinks=own.allow_hardlinks,
            max_turns=own.max_turns,
        ),
        given=frozenset(name for name, term in terms.items() if term),
        foreground=not given.background,
        # Derived, so that the same call after a crash finds the agent that it hired.
        prompt_id=mailbox.derived_id(context.name, context.tool_use_id, "prompt"),
    )
    hiring = asyncio.to_thread(hire.spawn, _team(context), request)
    hired = await context.interrupts.run_interruptibly(hiring)
    if waits := hosts.queued(_team(context), given.name, hired.run):
        # Do not wait here: the lead itself may occupy the place that the agent needs.
        hire.stop_waiting(_team(context), given.name)
        return Outcome(f"{given.name} is {waits}. It starts by itself later, and its result will reach you as mail")
    if given.background:
        return Outcome(f"{given.name} is at work (run {hired.run}); its result will reach you as mail")
    return await _wait_for_agent(context, hired, hears_operator=True)


@tool(waits=True)
async def send_explorer(context: Context, given: SendExplorer) -> Outcome:
    """Send an explorer of your own: an agent that searches and reads your workspace, and returns a report, so that what
    it reads does not fill your conversation. For questions that take many files; look yourself for the rest. It writes
    and runs nothing, draws on your budget and ends with you.
    """
    # Derived, so that the same call after a crash finds the explorer that it sent.
    prompt_id = mailbox.derived_id(context.name, context.tool_use_id, "prompt")
    # Calls of one reply run at the same time, and two hires would choose the same name.
    async with _SENDING:
        hiring = asyncio.to_thread(hire.send_explorer, _team(context), given.question, prompt_id)
        assignment = await context.interrupts.run_interruptibly(hiring)
    return await _wait_for_agent(context, assignment)


async def _wait_for_agent(context: Context, assignment: hire.Assignment, *, hears_operator: bool = False) -> Outcome:
    """Wait for an agent's answer to an assignment, and return it as the outcome.

    Return earlier, with a reason, if the agent ends or waits for the caller, or, if it `hears_operator`, when the
    operator writes to the caller. The answer then comes as mail.

    Raises:
        Interrupted: The lead must read its mail. The answer will come as mail.
        WorkerExit: The run ends.
    """
    team = context.team
    follower = Follower(team.agent(assignment.agent), assignment.id, assignment.run).rewind()
    context.run_state.show("waiting", f"waits for {assignment.agent}", awaits=assignment.agent)

    async def reason_to_stop() -> str:
        while True:
            # Looked at before the journal is read, so that the agent's last answer is not missed.
            ended = follower.ended()
            follower.read()
            if follower.answer is not None:
                return ""
            if ended is not None:
                return f"{assignment.agent} ended without an answer ({ended.reason})"
            pair = (assignment.agent, context.name)
            asked = next((r for r in requests.pending(team) if (r.from_, r.to) == pair), None)
            if asked is not None:
                return f"{assignment.agent} waits for you: {asked.type} {asked.id}. Its result will reach you as mail"
            # The agent may itself wait for the operator.
            if hears_operator and context.interrupts.has_mail_of_operator():
                return (
                    f"{assignment.agent} is at work, and the operator writes to you. Its result will reach you as mail"
                )
            await asyncio.sleep(min(max(POLL_INTERVAL, _POLL_SHARE * (time.monotonic() - began)), _LONGEST_POLL))

    began = time.monotonic()
    try:
        reason = await context.interrupts.run_interruptibly(reason_to_stop(), waiting=True)
    except Interrupted:
        if (outcome := _stop_waiting(context, follower)) is None:
            raise
        return outcome
    if not reason:
        return _result(follower)
    return _stop_waiting(context, follower) or Outcome(reason, is_error=follower.ended() is not None)


def _stop_waiting(context: Context, follower: Follower) -> Outcome | None:
    """Let the agent send its answer as mail from now on. Return the outcome if it has answered already, else None."""
    hire.stop_waiting(_team(context), follower.agent.name)
    follower.read()
    return _result(follower) if follower.answer is not None else None


def _result(follower: Follower) -> Outcome:
    answer = follower.answer
    if answer is None:
        return Outcome(f"{follower.agent.name} gave no answer", is_error=True)
    mail_id = requests.answer_id(follower.agent.name, answer)
    task = reviews.awaited_by(follower.agent.team, follower.agent.name)
    text = answer.error or answer.text + (f"\n[{reviews.describe(task)}]" if task is not None else "")
    return Outcome(f"{follower.agent.name}: {text}", is_error=answer.error is not None, consumed=(mail_id,))


@tool(reads=True)
async def list_team(context: Context, given: NoInput) -> Outcome:  # noqa: ARG001  no input
    """List the agents of the team and what they do."""
    lines = []
    for member in roster.load(context.team).members:
        agent = context.team.agent(member.name)
        status = agent.status.load_or_none()
        state = (status.state if status else "starting") if leases.is_held(agent.lease) else "not running"
        doing = f": {status.doing}" if status and status.doing and state != "not running" else ""
        task = store_tasks.in_progress(context.team, member.name)
        lines.append(f"{member.name} ({member.type}) {state}{doing}" + (f", task {task.id}" if task else ""))
    lines += [_POLICIES[policy]] if (policy := roster.load(context.team).collisions) in _POLICIES else []
    return Outcome("\n".join(lines))


_POLICIES = {
    "hold": "The operator is asked before a file tool changes a file that another agent changed in unfinished work.",
    "claims": "The files that an approved plan names are its agent's until its result: other file tools are refused.",
}
"""The explanation of the team's setting `collisions` for a lead."""


@tool()
async def broadcast(context: Context, given: Broadcast) -> Outcome:
    """Send one message to every other agent."""
    names = [message.to for message in messages.broadcast(_team(context), given.content)]
    return Outcome(f"sent to {', '.join(names)}{_not_running(context, *names)}")


def _not_running(context: Context, *names: str) -> str:
    """Return a note about those of these agents that do not run, and read mail later; an empty text if all do."""
    absent = [name for name in names if not messages.is_listening(_team(context), name)]
    return f"; not running, and will read it when they run again: {', '.join(absent)}" if absent else ""


@tool(seconds=lambda _: 60.0)
async def request_shutdown(context: Context, given: Teammate) -> Outcome:
    """Ask a teammate to shut down and wait for its answer. A busy teammate may refuse."""
    team, name = context.team, given.teammate
    if name == context.name:
        raise UsageError("this is your own name; end your turn instead")
    request = stop.ask_to_stop(_team(context), name, "your lead asks you to")
    if request is None:
        return Outcome(f"{name} is not running")

    async def outcome() -> Outcome:
        while leases.is_held(team.agent(name).lease):
            answer = requests.load(team, request.id)
            if answer is not None and answer.status == "rejected":
                return Outcome(f"{name} refuses: {answer.feedback}")
            if answer is None or answer.status in ("expired", "cancelled"):
                return Outcome(f"{name} did not answer and continues", is_error=True)
            requests.pending_shutdown(team, name, context.now())
            await asyncio.sleep(POLL_INTERVAL)
        return Outcome(f"{name} has shut down")

    return await context.interrupts.run_interruptibly(outcome())


@tool()
async def request_plan(context: Context, given: RequestPlan) -> Outcome:
    """Give a teammate work that needs an approved plan before the teammate writes or runs anything."""
    team = _team(context)
    team.member(given.teammate)
    messages.post(team, given.teammate, "message", given.task, plan_required=True)
    note = _not_running(context, given.teammate)
    return Outcome(f"{given.teammate} must submit a plan before it writes or runs anything{note}")


@tool()
async def review_plan(context: Context, given: ReviewPlan) -> Outcome:
    """Approve a plan, or reject it with feedback. Available only while the lead reviews plans."""
    decided = answers.review_plan(
        _team(context), given.request_id, approve=given.approve, feedback=given.feedback or None
    )
    overlaps = answers.plan_overlaps(_team(context), decided) if given.approve else []
    return Outcome("; ".join([f"the plan of {decided.from_} is {decided.status}", *overlaps]))


@tool()
async def list_changes(context: Context, given: NoInput) -> Outcome:  # noqa: ARG001  no input
    """List what each teammate with a checkout of its own changed, and whether it merges cleanly with what the operator
    has.
    """
    team = _team(context)

    def look() -> "list[Changes]":
        for name in team.config.names:
            # What cannot be read now is listed as it was.
            with contextlib.suppress(CrewboardError):
                commands_changes.take_snapshot(team, name)
        return commands_changes.list_changes(team)

    found = await context.interrupts.run_interruptibly(asyncio.to_thread(look))
    listed = "\n".join(map(_describe_changes, found))
    return Outcome(listed or "no agent has a checkout of its own: hire with worktree to give it one")


def _describe_changes(changes: "Changes") -> str:
    files = counted(len(changes.files), "file")
    counts = f"{changes.agent}: +{changes.added} -{changes.removed} in {files}"
    fits = "is merged" if changes.is_merged and changes.files else "merges cleanly"
    merges = fits if changes.applies else f"conflicts in {', '.join(changes.conflicts)}"
    merges += f", collides with {', '.join(changes.collides_with)}" if changes.collides_with else ""
    merges += f", {commands_changes.describe_review(changes.review)}" if changes.review is not None else ""
    names = "".join(f"\n  {file.status} {file.path}" for file in changes.files[:MOST_FILES])
    left = len(changes.files) - MOST_FILES
    return f"{counts}, {changes.behind} behind, {merges}{names}" + (f"\n  and {left} more" if left > 0 else "")


@tool()
async def read_diff(context: Context, given: ReadDiff) -> Outcome:
    """Read what a teammate with a checkout of its own changed, as a unified diff."""
    team, name = _team(context), given.teammate

    def read() -> str:
        # What cannot be read now is shown as it was.
        with contextlib.suppress(CrewboardError):
            commands_changes.take_snapshot(team, team.member(name).name)
        work = commands_changes.newest(team, name)
        diff = commands_changes.read_diff(team, work, given.path)
        # In front, because a long result is cut.
        named = f"sha256 of all of this work: {work.sha256}\n" if given.path is None else ""
        named += f"{commands_changes.describe_review(work.review)}\n" if work.review is not None else ""
        return f"{named}{diff}" if diff else f"{name} changed nothing there"

    return Outcome(await context.interrupts.run_interruptibly(asyncio.to_thread(read)))


@tool()
async def accept_changes(context: Context, given: AcceptChanges) -> Outcome:
    """Merge what a teammate changed into a branch on which you bring work together; the operator merges that branch. It
    takes exactly the work that read_diff showed. Available only while the operator lets leads merge.
    """
    team = _team(context)
    # Not cut short: it is done in a moment, and an interruption would leave the lead unsure of its outcome.
    merge = await asyncio.to_thread(
        commands_changes.merge_into_branch, team, given.teammate, given.into,
        sha256=given.sha256, message=given.message,
    )  # fmt: skip
    if merge is None:
        return Outcome(f"{given.into} has all that {given.teammate} changed")
    review = merge.changes.review
    keys = f"; {commands_changes.describe_review(review)}" if review is not None else ""
    keys += f"; {commands_changes.name_keys(merge.keys)}" if merge.keys else ""
    runs_on = f"; it still runs {', '.join(merge.background)}" if merge.background else ""
    commit = merge.acceptance.result[:12]
    return Outcome(f"{given.teammate} is merged into {given.into}: commit {commit}{keys}{runs_on}")


@tool()
async def delete_team(context: Context, given: NoInput) -> Outcome:  # noqa: ARG001  no input
    """End every other agent. The files stay."""
    team = _team(context)
    others = [member.name for member in team.config.members if member.name != context.name]
    running = [name for name in others if leases.is_held(team.directory.agent(name).lease)]
    queued = [name for name in others if name not in running and stop.is_queued(team, name)]
    await context.interrupts.run_interruptibly(asyncio.to_thread(stop.end_all, team, others))
    unqueued = f"; taken out of the queue: {', '.join(queued)}" if queued else ""
    return Outcome(f"ended: {', '.join(running) or 'no other agent was running'}{unqueued}; the files stay")
