"""The starts of assignments: the hire prompt, mail, a task left in progress, a task claimed from the board."""

from crewboard.errors import CrewboardError, ExitCode, StorageError
from crewboard.protocol import approvals, requests, reviews
from crewboard.records.agents import Spec, Status
from crewboard.records.events import Intake
from crewboard.records.messages import RETRY, Message
from crewboard.records.team import Task
from crewboard.store import json_records, mailbox, tasks
from crewboard.store.agents import is_starting
from crewboard.worker import inbox
from crewboard.worker.limits import Limits
from crewboard.worker.results import Results
from crewboard.worker.run_state import RunState
from crewboard.worker.tools.tasks import describe, describe_proof

OUTAGE_PAUSE = 60.0
"""Seconds after an outage of the API before an agent with `--autoclaim` tries again."""


class Assignments:
    """Looks for work for one worker."""

    def __init__(self, run_state: RunState, results: Results, limits: Limits) -> None:
        self._run_state = run_state
        self._results = results
        self._limits = limits
        self._team = run_state.team
        self._name = run_state.name
        self.unread = 0
        """Bytes of mail that the last look left, because there was too much for one look."""
        self.is_timed = False
        """True if time alone may bring work: a pause ends, or a task is no longer kept for another agent."""

    def look(self) -> bool:
        """Begin an assignment if there is work. Return True if one began."""
        self.is_timed = False
        # Before the mail: a reviewer that gives a task back sends its feedback first. With a task that came back only
        # after the mail was read, that feedback is found by the next look.
        own = tasks.in_progress(self._team, self._name)
        if self._start_with_prompt() or self._continue() or self._start_with_mail():
            return True
        # What is unread may say otherwise.
        return not self.unread and (
            self._try_again() or self._resume_task(own) or self._remind_of_review() or self._claim_task()
        )

    def _continue(self) -> bool:
        """Continue the assignment that a limit stopped, once that limit is raised."""
        held = self._run_state.conversation.held
        if held is None or not self._limits.may_continue():
            return False
        self._begin(held.id, "Your limit was raised. Continue where you stopped.")
        return True

    def _try_again(self) -> bool:
        """Retry the assignment whose error ended the last run: without work the run would have no purpose."""
        run_state = self._run_state
        if not run_state.spec.flags.once or run_state.conversation.failure is None:
            return False
        self._begin(f"again-{run_state.conversation.answers}", RETRY)
        return True

    def _start_with_prompt(self) -> bool:
        """Begin with the hire prompt of a fresh conversation."""
        run_state, spec = self._run_state, self._run_state.spec
        if not run_state.fresh:
            return False
        notices = self._claim_given_task(spec.flags.task) if spec.flags.task is not None else []
        plans = self._pending_plans()
        run_state.append(
            Intake(
                ts=run_state.now(), cursor=run_state.conversation.cursor, prompt=spec.prompt, prompt_from=spec.by,
                notices=notices, assignment=spec.prompt_id, messages=plans, entered=[plan.id for plan in plans],
            )
        )  # fmt: skip
        return True

    def _pending_plans(self) -> list[Message]:
        """Return the mail about plans, and work on tasks, that wait for this agent's review.

        A new lead starts at the end of its mailbox, so it would never read them there.
        """
        asked = [
            each
            for each in requests.pending(self._team)
            if each.type in ("plan_approval", "task_review") and each.to == self._name
        ]
        return [mailbox.fit(self._team, approvals.mail_of(each, each.created_at)) for each in asked]

    def _start_with_mail(self) -> bool:
        """Begin with mail that starts work. Put the task that it assigns in progress first."""
        arrived = inbox.look(self._run_state, self._is_blocked_task)
        if arrived.first is None:
            inbox.pick_up(self._run_state, arrived)
            left = mailbox.size(self._team, self._name) - arrived.batch.offset
            self.unread = left if arrived.batch.more else 0
            return False
        self.unread = 0
        # Mail that enters now would be shown as read by the model, which is not called.
        if (reached := self._limits.reached_budget()) is not None:
            self._results.refuse(reached.text)
        task_id = arrived.first.metadata.get("task_id")
        inbox.start(self._run_state, arrived, self._claim_given_task(task_id) if isinstance(task_id, int) else [])
        return True

    def _is_blocked_task(self, message: Message) -> bool:
        """Return True if a message assigns a task that other tasks block: it starts work when they are completed."""
        task_id = message.metadata.get("task_id")
        if message.type != "task_assignment" or not isinstance(task_id, int):
            return False
        board = {task.id: task for task in tasks.load_all(self._team)}
        task = board.get(task_id)
        if task is None or task.status != "pending" or task.owner != self._name:
            return False
        return bool(tasks.blockers(task, board))

    def _claim(self, task_id: int) -> Task:
        run_state = self._run_state
        task = tasks.claim(self._team, task_id, self._name, run_state.spec.type, run_state.now())
        run_state.set_task(task)
        return task

    def _claim_given_task(self, task_id: int) -> list[str]:
        """Put a task that was given to this agent in progress. Return what to tell the agent."""
        try:
            return [self._task_notice(self._claim(task_id))]
        except StorageError:
            # It may be this agent's all the same: try again when the storage works.
            raise
        except CrewboardError as error:
            return [f"task {task_id} could not be put in progress: {error}"]

    def _task_notice(self, task: Task) -> str:
        board = {other.id: other for other in tasks.load_all(self._team)}
        body = f"\n\n{task.description}" if task.description else ""
        report = f"Report with task_update when it is completed or failed.{describe_proof(self._team, task)}"
        return f"Your task is {describe(task, board)}. {report}{body}"

    def reclaim_task(self) -> str | None:
        """Put the task that was released when the previous run ended in progress again. Return why that fails.

        Call it before anything shows that the agent is up: other agents leave the task alone only until then. If this
        run is killed here, the next one tries again, because the journal still says that the task was this agent's.
        """
        run_state = self._run_state
        own = tasks.in_progress(self._team, self._name)
        run_state.set_task(own)
        return None if run_state.had_task in (None, run_state.task) else self._reclaim(run_state.had_task)

    def _reclaim(self, task_id: int) -> str | None:
        """Claim a task again unless it is closed or was given to another agent. Return why that fails."""
        try:
            task = tasks.load(self._team, task_id)
            if task.owner == self._name and (task.status in tasks.CLOSED or task.in_review is not None):
                return None
            if self._name not in (task.owner, task.last_owner):
                return describe(task, {each.id: each for each in tasks.load_all(self._team)})
            self._claim(task_id)
        except StorageError:
            raise
        except CrewboardError as error:
            return str(error)
        return None

    def report_lost_task(self, reason: str) -> None:
        """Tell the agent that it no longer has the task that its conversation is about."""
        run_state = self._run_state
        notice = f"Task {run_state.had_task} was in progress with you and no longer is: {reason}."
        run_state.append(Intake(ts=run_state.now(), cursor=run_state.conversation.cursor, notices=[notice]))

    def _resume_task(self, before: Task | None) -> bool:
        """Continue a task that was left in progress: after a reminder, or after an outage of the API.

        `before` is what was in progress before the mail was read.
        """
        run_state, conversation = self._run_state, self._run_state.conversation
        task = tasks.in_progress(self._team, self._name)
        run_state.set_task(task)
        last = conversation.last_answer
        if task is None or last is None or before is None or before.id != task.id:
            return False
        if conversation.held is not None and not run_state.spec.flags.autoclaim:
            return False
        if last.code == ExitCode.API_UNAVAILABLE:
            return self._resume_after_outage(task, last.ts)
        if task.id not in conversation.reminded:
            notice = f"You ended your turn, but {describe(task, {})} is still in progress. "
            self._begin(f"reminder-{task.id}-{task.rev}", notice + "Report its outcome with task_update.", task.id)
            return True
        if run_state.spec.flags.autoclaim:
            tasks.update(self._team, task.id, self._name, run_state.now(), status="failed")
            run_state.set_task(None)
        return False

    def _remind_of_review(self) -> bool:
        """Remind the agent once of a review that it was asked for. Without an answer, the operator is asked instead."""
        conversation = self._run_state.conversation
        request = reviews.asked_of(self._team, self._name)
        if request is None or conversation.last_answer is None or conversation.held is not None:
            return False
        if approvals.ask_id(request) not in conversation.known:
            # Its mail is on the way.
            return False
        ident = f"reminder-{request.id}"
        if conversation.last_answer.assignment == ident:
            reviews.ask_operator(self._team, request, self._run_state.now())
            return False
        task_id = request.payload.get("task")
        self._begin(ident, f"You did not answer the review of task {task_id}. Approve or reject with review_task.")
        return True

    def _resume_after_outage(self, task: Task, since: float) -> bool:
        run_state = self._run_state
        if not run_state.spec.flags.autoclaim:
            return False
        if 0 <= run_state.now() - since < OUTAGE_PAUSE:
            self.is_timed = True
            return False
        notice = f"The API was unavailable. Continue with {describe(task, {})}."
        self._begin(f"again-{task.id}-{run_state.conversation.answers}", notice)
        return True

    def _begin(self, ident: str, notice: str, reminds: int | None = None) -> None:
        run_state = self._run_state
        run_state.append(
            Intake(
                ts=run_state.now(), cursor=run_state.conversation.cursor, notices=[notice],
                reminds=reminds, assignment=ident,
            )
        )  # fmt: skip

    def _claim_task(self) -> bool:
        """Claim the next suitable task from the board if the agent was hired with `--autoclaim`."""
        if not self._run_state.spec.flags.autoclaim:
            return False
        for task in self._suitable_tasks():
            try:
                claimed = self._claim(task.id)
            except CrewboardError:
                # Another agent claimed it just now.
                continue
            ident = mailbox.derived_id(self._name, "claimed", claimed.id, claimed.rev)
            text = f"took task {claimed.id}: {claimed.subject}"
            self._results.send("task_claimed", text, ident=ident, metadata={"task_id": claimed.id})
            self._begin(f"task-{claimed.id}-{claimed.rev}", self._task_notice(claimed))
            return True
        return False

    def _suitable_tasks(self) -> list[Task]:
        """Return the open tasks that this agent may claim: first its own, then by priority, then the oldest."""
        board = {task.id: task for task in tasks.load_all(self._team)}
        suitable = [
            task
            for task in board.values()
            if task.status == "pending"
            and task.owner in (None, self._name)
            and task.review != self._name
            and task.required_type in (None, self._run_state.spec.type)
            and not tasks.blockers(task, board)
            and not self._last_owner_returns(task)
        ]
        return sorted(
            suitable,
            key=lambda task: (self._name not in (task.owner, task.last_owner), *tasks.order_of_work(task)),
        )

    def _last_owner_returns(self, task: Task) -> bool:
        """Return True if the agent that lost this task by dying is being started: it claims the task again itself."""
        last = task.last_owner
        if last is None or last == self._name:
            return False
        agent = self._team.agent(last)
        spec, status = (
            json_records.load_or_none(agent.spec, Spec),
            json_records.load_or_none(agent.status, Status),
        )
        # A run that has its lease but is not in its loop yet has not begun for this purpose.
        begun = 0 if status is None else status.run - (status.state == "starting")
        returns = spec is not None and is_starting(spec, begun, self._run_state.now())
        self.is_timed = self.is_timed or returns
        return returns
