"""The assignments of one worker: what starts them, and how they end. What limits them is in `limits.py`.

They start with the hire prompt, mail, a task left in progress, or a task claimed from the board. At the end of one, the
result file is written first, then the answer is committed to the journal, then the mail is sent. So after a crash the
next worker sends the committed answer, and never asks the model again.
"""

from typing import Any

from crewboard.agent_types import describe_ended_terms
from crewboard.errors import CrewboardError, ExitCode, StorageError
from crewboard.names import OPERATOR
from crewboard.protocol import requests, reviews
from crewboard.records.events import Answer, Sent
from crewboard.records.messages import RETRY
from crewboard.records.team import Task
from crewboard.store import mailbox, roster, tasks
from crewboard.store.agents import is_starting
from crewboard.worker import inbox
from crewboard.worker.conversation import Assignment
from crewboard.worker.interrupts import WorkerExit
from crewboard.worker.limits import Limits
from crewboard.worker.run_state import RunState
from crewboard.worker.tools.tasks import describe, describe_proof

OUTAGE_PAUSE = 60.0
"""Seconds after an outage of the API before an agent with `--autoclaim` tries again."""

_REASONS = {
    ExitCode.CREDENTIALS: "credentials",
    ExitCode.API_UNAVAILABLE: "api_unavailable",
    ExitCode.LIMIT: "turn_limit",
}

_HOLDING = frozenset({ExitCode.LIMIT, ExitCode.CREDENTIALS})
"""The codes of errors that hold an assignment, so that a resume continues it, and do not end it."""


class Results:
    """The answers of one worker, and the mail that it sends by itself."""

    def __init__(self, run_state: RunState) -> None:
        self._run_state = run_state
        self._team = run_state.team
        self._name = run_state.name
        self.reported_idle = False
        """True if there is no need to announce, until the next assignment, that the agent is idle."""
        self._held_for: str | None = None
        """The id of the review's request for which the last result is held back; empty if the id is not known; None if
        no result is."""

    def answer(self, text: str, code: ExitCode = ExitCode.DONE) -> None:
        """End the assignment in progress with a result.

        Do nothing if there is no assignment. `code` is the exit code of a command that waits for the result.
        """
        run_state, assignment = self._run_state, self._run_state.conversation.assignment
        if assignment is None:
            return
        if self._held_for is not None and reviews.feedback_id(self._held_for) not in assignment.answers:
            # This is other work. A result is dropped only if this one is of the same work, after feedback.
            self.send_unsent(held=False)
        name = f"{self._name}-{run_state.spec.run}-{run_state.conversation.results + 1}.md"
        self._team.keep_result(name, text.encode("utf-8", "replace"))
        terms = run_state.conversation.terms
        self._end(assignment, text=text, result=f"results/{name}", code=code, ended_terms=terms)

    def fail(self, error: str, code: ExitCode, *, budget: bool = False, refused_by: str | None = None) -> None:
        """End the assignment in progress with an error, or do nothing if there is none.

        A limit and bad credentials only hold it: a resume continues it. `budget` is True if the limit is a budget.
        `refused_by` names the model or the engine that refused the assignment.

        Raises:
            WorkerExit: Bad credentials and a used-up budget end the run, and so does any error with `--once`.
        """
        run_state, assignment = self._run_state, self._run_state.conversation.assignment
        if assignment is None:
            return
        self._end(assignment, text="", error=error, code=code, held=code in _HOLDING, refused_by=refused_by)
        if budget:
            raise WorkerExit("budget", code)
        if code == ExitCode.CREDENTIALS or run_state.spec.flags.once:
            raise WorkerExit(_REASONS.get(code, "failed"), code)

    def _end(self, assignment: Assignment, **fields: Any) -> None:
        """Commit the answer that ends an assignment, with further `fields` of `Answer`, and send it."""
        answer = Answer(
            ts=self._run_state.now(), assignment=assignment.id, answers=[*assignment.answers],
            continued=assignment.continued, for_operator=assignment.asked_by == {OPERATOR}, **fields,
        )  # fmt: skip
        self._run_state.append(answer)
        doing = "sends its result" if answer.error is None else "reports an error"
        self._run_state.show("working", doing, last_error=answer.error or "")
        self.send_unsent()

    def refuse(self, error: str) -> None:
        """Send an error, because a used-up budget keeps the agent from starting the work in its mailbox, and exit.

        Raises:
            WorkerExit: Always.
        """
        self._run_state.show("working", "reports an error", last_error=error)
        self.send("error", error, ident=mailbox.derived_id(self._name, "refused", self._run_state.spec.run))
        raise WorkerExit("budget", ExitCode.LIMIT)

    @property
    def is_held(self) -> bool:
        """Return True if the last result is held back, because a reviewer has not approved the work yet."""
        return self._held_for is not None

    def send_unsent(self, *, held: bool = True) -> None:
        """Send the mail of the last committed answer, if the journal does not say that it was sent.

        The mail has a derived id, so that it arrives once even if it is sent twice. No mail is sent to a hirer that
        waits in the foreground and takes the result itself. A result is held back while the agent's work on a task
        waits for a reviewer; if not `held`, it is sent, and says that the review is open.
        """
        answer, before = self._run_state.conversation.unsent, self._held_for
        self._held_for = None
        if answer is None:
            return
        # A hirer that stops waiting first clears `foreground` and then looks for the answer, which is committed by now,
        # so one of both sees the other. If unsure, send: a duplicate is better than a lost result. A hirer took the
        # error of a limit for the answer, so what was continued is sent.
        spec = self._run_state.agent.spec.load_or_none()
        is_waited_for = spec is not None and spec.foreground and answer.assignment == spec.prompt_id
        if is_waited_for and not answer.continued:
            self.reported_idle = True
            return
        task = reviews.awaited_by(self._team, self._name) if answer.error is None else None
        if task is not None and held:
            self._held_for = task.in_review or before or ""
            return
        note = f"{reviews.describe(task)}\n\n" if task is not None else ""
        note += f"{ended}\n\n" if (ended := describe_ended_terms(answer)) else ""
        own, run_state = tasks.in_progress(self._team, self._name), self._run_state
        reminded = own is not None and own.id in run_state.conversation.reminded
        if own is not None and reminded and answer.error is None and not run_state.spec.flags.autoclaim:
            # Without this the operator would not learn that tasks which wait for this one never begin. A task of an
            # agent with autoclaim fails instead, which is a need.
            note += f"task #{own.id} is still in progress: {self._name} did not report its outcome\n\n"
        self.send(
            "error" if answer.error is not None else "result",
            answer.error or note + answer.text,
            ident=requests.answer_id(self._name, answer),
            metadata={"result": answer.result, "answers": list(answer.answers)},
            for_operator=answer.for_operator,
        )

    def report_idle(self) -> None:
        """Announce by mail that the agent is idle: once after each assignment, from the first result of this run on."""
        conversation = self._run_state.conversation
        if self.reported_idle or not conversation.results:
            return
        self.reported_idle = True
        ident = mailbox.derived_id(self._name, "idle", self._run_state.spec.run, conversation.results)
        self.send("idle_notification", "free for work", ident=ident)

    def send(
        self, kind: str, text: str, *, ident: str, metadata: dict[str, Any] | None = None, for_operator: bool = False
    ) -> None:
        """Send mail of type `kind` with the id `ident` to the agent, or the operator, that this agent reports to.

        With `for_operator`, send it to the operator even if this agent reports to another one, which is spared a turn.
        """
        run_state, config = self._run_state, roster.load(self._team)
        to = config.reports_to(self._name)
        to = OPERATOR if for_operator and config.member(to) else to
        message = mailbox.compose(self._name, to, kind, text, ident=ident, ts=run_state.now(), metadata=metadata)
        sent = mailbox.send(self._team, message, durable=True)
        run_state.append(Sent(ts=run_state.now(), message=sent))


class Assignments:
    """The search for work of one worker without an assignment, and its task on the board."""

    def __init__(self, run_state: RunState, results: Results, limits: Limits) -> None:
        self._run_state = run_state
        self._results = results
        self._limits = limits
        self._team = run_state.team
        self._name = run_state.name
        self.unread = 0
        """Bytes of mail that the last look left unread, because there was too much for one look."""
        self.is_timed = False
        """True if work may come without any event: a pause ends, or a task is no longer kept for another agent."""

    def look(self) -> bool:
        """Begin an assignment if there is work. Return True if one began.

        Raises:
            WorkerExit: There is mail that starts work, but a budget is used up.
        """
        self.is_timed = False
        # Before the mail: a reviewer that gives a task back sends its feedback first. With a task that came back only
        # after the mail was read, that feedback is found by the next look.
        own = tasks.in_progress(self._team, self._name)
        run_state, spec, conversation = self._run_state, self._run_state.spec, self._run_state.conversation
        if run_state.fresh:
            notices = self._claim_given_task(spec.flags.task) if spec.flags.task is not None else []
            # A new lead starts at the end of its mailbox, so it would never read there what waits for its review.
            plans = [
                mailbox.fit(self._team, requests.mail_of(each, each.created_at))
                for each in requests.pending(self._team)
                if each.type in ("plan_approval", "task_review") and each.to == self._name
            ]
            run_state.take_in(
                prompt=spec.prompt, prompt_from=spec.by, notices=notices, assignment=spec.prompt_id,
                messages=plans, entered=[plan.id for plan in plans],
            )  # fmt: skip
            return True
        if conversation.held is not None and self._limits.reached(conversation.held) is None:
            self._begin(conversation.held.id, "Your limit was raised. Continue where you stopped.")
            return True
        arrived = inbox.look(run_state)
        if arrived.first is not None:
            self.unread = 0
            # Mail that enters now would be shown as read by the model, which is not called.
            if (reached := self._limits.reached()) is not None:
                self._results.refuse(reached.text)
            task_id = arrived.first.metadata.get("task_id")
            notices = self._claim_given_task(task_id) if isinstance(task_id, int) else []
            inbox.pick_up(run_state, arrived, notices)
            return True
        inbox.pick_up(run_state, arrived)
        left = mailbox.size(self._team, self._name) - arrived.batch.offset
        self.unread = left if arrived.batch.more else 0
        if self.unread:
            # What is unread may say otherwise.
            return False
        if spec.flags.once and conversation.failure is not None:
            # The error ended the last run, and without work this one would have no purpose.
            self._begin(f"again-{conversation.answers}", RETRY)
            return True
        return self._resume_task(own) or self._remind_of_review() or self._claim_task()

    def _claim(self, task_id: int) -> Task:
        run_state = self._run_state
        task = tasks.claim(self._team, task_id, self._name, run_state.spec.type, run_state.now())
        run_state.set_task(task)
        return task

    def _claim_given_task(self, task_id: int) -> list[str]:
        """Put a task that was given to this agent in progress. Return a notice for the agent, also if that failed.

        Raises:
            StorageError: The task could not be written or read.
        """
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
        """Put the task that was released when the previous run ended in progress again.

        Return None if that worked, or if there is none, or it is closed or in review and stays so; else why it failed.
        Call this before the status says that the run has started: other agents leave the task alone only until then.
        If this run is killed here, the next one tries again, because the journal still names the task.

        Raises:
            StorageError: The task could not be written or read.
        """
        run_state = self._run_state
        own = tasks.in_progress(self._team, self._name)
        run_state.set_task(own)
        if run_state.had_task in (None, run_state.task):
            return None
        try:
            task = tasks.load(self._team, run_state.had_task)
            if task.owner == self._name and (task.status in tasks.CLOSED or task.in_review is not None):
                return None
            if self._name not in (task.owner, task.last_owner):
                return describe(task, {each.id: each for each in tasks.load_all(self._team)})
            self._claim(task.id)
        except StorageError:
            raise
        except CrewboardError as error:
            return str(error)
        return None

    def report_lost_task(self, reason: str) -> None:
        """Tell the agent that the task of the previous run is no longer its own, and why."""
        had = self._run_state.had_task
        self._run_state.tell(f"Task {had} was in progress with you and no longer is: {reason}.")

    def _resume_task(self, before: Task | None) -> bool:
        """Begin an assignment to continue the task in progress, if there is reason to. Return True if one began.

        It begins after an outage of the API, with `--autoclaim`, or else once as a reminder to report the outcome.
        After that, the task fails with `--autoclaim`. `before` is the task that was in progress before the mail was
        read: if it is another one, do nothing.
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
            again = run_state.spec.flags.autoclaim
            if again and 0 <= run_state.now() - last.ts < OUTAGE_PAUSE:
                again, self.is_timed = False, True
            if again:
                notice = f"The API was unavailable. Continue with {describe(task, {})}."
                self._begin(f"again-{task.id}-{conversation.answers}", notice)
            return again
        if task.id not in conversation.reminded:
            notice = f"You ended your turn, but {describe(task, {})} is still in progress. "
            self._begin(f"reminder-{task.id}-{task.rev}", notice + "Report its outcome with task_update.", task.id)
            return True
        if run_state.spec.flags.autoclaim:
            tasks.update(self._team, task.id, self._name, run_state.now(), status="failed")
            run_state.set_task(None)
        return False

    def _remind_of_review(self) -> bool:
        """Remind the agent once of a review that it was asked for, and return True if an assignment began with that.

        If it did not answer the reminder either, the operator is asked in its place.
        """
        conversation = self._run_state.conversation
        request = reviews.asked_of(self._team, self._name)
        if request is None or conversation.last_answer is None or conversation.held is not None:
            return False
        if requests.ask_id(request) not in conversation.known:
            # Its mail is on the way.
            return False
        ident = f"reminder-{request.id}"
        if conversation.last_answer.assignment == ident:
            reviews.ask_operator(self._team, request, self._run_state.now())
            return False
        task_id = request.payload.get("task")
        self._begin(ident, f"You did not answer the review of task {task_id}. Approve or reject with review_task.")
        return True

    def _begin(self, ident: str, notice: str, reminds: int | None = None) -> None:
        self._run_state.take_in(notices=[notice], reminds=reminds, assignment=ident)

    def _claim_task(self) -> bool:
        """Claim the next suitable task from the board, if hired with `--autoclaim`, and begin an assignment with it.

        Return True if one began.
        """
        if not self._run_state.spec.flags.autoclaim:
            return False
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
        # First its own, then by priority, then the oldest.
        suitable.sort(key=lambda task: (self._name not in (task.owner, task.last_owner), *tasks.order_of_work(task)))
        for task in suitable:
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

    def _last_owner_returns(self, task: Task) -> bool:
        """Return True if another agent lost this task by its death and is being started again.

        That agent will claim the task itself.
        """
        last = task.last_owner
        if last is None or last == self._name:
            return False
        agent = self._team.agent(last)
        spec, status = agent.spec.load_or_none(), agent.status.load_or_none()
        # A run that has its lease but is not in its loop yet has not begun for this purpose.
        begun = 0 if status is None else status.run - (status.state == "starting")
        returns = spec is not None and is_starting(spec, begun, self._run_state.now())
        self.is_timed = self.is_timed or returns
        return returns
