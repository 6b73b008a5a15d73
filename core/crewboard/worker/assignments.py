"""What starts an assignment: the hire prompt, mail, a task left in progress, a task claimed from the board."""

from crewboard.errors import CrewboardError, ExitCode
from crewboard.protocol import approvals, requests
from crewboard.protocol.starts import is_starting
from crewboard.records import Intake, Message, Spec, Status, Task
from crewboard.store import json_files, mailbox, tasks
from crewboard.worker import inbox
from crewboard.worker.results import Results
from crewboard.worker.run_state import RunState
from crewboard.worker.tools.tasks import describe

OUTAGE_REST = 60.0
"""Seconds after an outage of the API before an agent that works by itself tries again."""


class Assignments:
    """Looks for work for one worker."""

    def __init__(self, run_state: RunState, results: Results) -> None:
        self._run_state = run_state
        self._results = results
        self._team = run_state.agent.team
        self._name = run_state.agent.name

    def look(self) -> bool:
        """Begin an assignment if anything calls for one."""
        return self._prompt() or self._mail() or self._unfinished() or self._claim()

    def _prompt(self) -> bool:
        """Begin with the hire prompt of a fresh conversation."""
        run_state, spec = self._run_state, self._run_state.spec
        if not run_state.fresh:
            return False
        run_state.fresh = False
        notices = self._take(spec.flags.task) if spec.flags.task is not None else []
        plans = self._plans_that_wait()
        run_state.append(
            Intake(
                ts=run_state.now(), cursor=run_state.conversation.cursor, prompt=spec.prompt, prompt_from=spec.by,
                notices=notices, assignment=spec.prompt_id, messages=plans, entered=[plan.id for plan in plans],
            )
        )  # fmt: skip
        return True

    def _plans_that_wait(self) -> list[Message]:
        """The mail of plans that a lead has to review and, starting at its mailbox's end, would never read."""
        asked = [
            each for each in requests.pending(self._team) if each.type == "plan_approval" and each.to == self._name
        ]
        return [mailbox.fit(self._team, approvals.mail_of(each, each.created_at)) for each in asked]

    def _mail(self) -> bool:
        """Begin with mail that starts work; a task that it gives is put in progress first."""
        arrived = inbox.look(self._run_state, self._waits)
        if arrived.first is None:
            inbox.pick_up(self._run_state, arrived)
            return False
        task_id = arrived.first.metadata.get("task_id")
        inbox.start(self._run_state, arrived, self._take(task_id) if isinstance(task_id, int) else [])
        return True

    def _waits(self, message: Message) -> bool:
        """Whether it gives a task that others stand in the way of: it starts work when they are completed."""
        task_id = message.metadata.get("task_id")
        if message.type != "task_assignment" or not isinstance(task_id, int):
            return False
        board = {task.id: task for task in tasks.load_all(self._team)}
        task = board.get(task_id)
        if task is None or task.status != "pending" or task.owner != self._name:
            return False
        return bool(tasks.blockers(task, board))

    def _take(self, task_id: int) -> list[str]:
        """Put a task that was given to this agent in progress; returns what to tell it."""
        try:
            task = tasks.claim(self._team, task_id, self._name, self._run_state.spec.type, self._run_state.now())
        except CrewboardError as error:
            return [f"task {task_id} could not be put in progress: {error}"]
        self._run_state.task = task.id
        return [self._yours(task)]

    def _yours(self, task: Task) -> str:
        board = {other.id: other for other in tasks.load_all(self._team)}
        body = f"\n\n{task.description}" if task.description else ""
        return f"Your task is {describe(task, board)}. Say with task_update when it is completed or failed.{body}"

    def come_back(self) -> str | None:
        """Take up again the task that went back to the board when the run before ended; returns why that cannot be.

        Before anything shows that the agent is here: then others need not wait for it any more. A run that is killed
        here leaves it to the next one: the journal says that the task was this agent's until it says that it is not.
        """
        run_state = self._run_state
        own = tasks.in_progress(self._team, self._name)
        run_state.task = own.id if own else None
        return None if run_state.had_task in (None, run_state.task) else self._take_again(run_state.had_task)

    def tell_lost(self, why: str) -> None:
        """Tell the agent that it does not have the task that its conversation is about, and why."""
        run_state = self._run_state
        notice = f"Task {run_state.had_task} was in progress with you, and is not any more: {why}."
        run_state.append(Intake(ts=run_state.now(), cursor=run_state.conversation.cursor, notices=[notice]))

    def _take_again(self, task_id: int) -> str | None:
        """Put a task in progress again, unless it is done or somebody gave it to others; returns why it is not."""
        run_state = self._run_state
        try:
            task = tasks.load(self._team, task_id)
            if task.status in tasks.CLOSED and task.owner == self._name:
                return None
            if self._name not in (task.owner, task.last_owner):
                return describe(task, {each.id: each for each in tasks.load_all(self._team)})
            run_state.task = tasks.claim(self._team, task_id, self._name, run_state.spec.type, run_state.now()).id
        except CrewboardError as error:
            return str(error)
        return None

    # ------------------------------------------------------------------------------------------------ unfinished

    def _unfinished(self) -> bool:
        """Go on with a task that was left in progress: after a reminder, or after an outage of the API."""
        run_state, conversation = self._run_state, self._run_state.conversation
        task = tasks.in_progress(self._team, self._name)
        run_state.task = task.id if task else None
        last = conversation.last_answer
        if task is None or last is None:
            return False
        if last.code == ExitCode.API_UNAVAILABLE:
            return self._after_outage(task, last.ts)
        if task.id not in conversation.reminded:
            notice = f"You ended your turn, and {describe(task, {})} is still in progress. "
            self._begin(f"reminder-{task.id}-{task.rev}", notice + "Use task_update to say what became of it.", task.id)
            return True
        if run_state.spec.flags.autoclaim:
            tasks.update(self._team, task.id, self._name, run_state.now(), status="failed")
            run_state.task = None
        return False

    def _after_outage(self, task: Task, since: float) -> bool:
        run_state = self._run_state
        if not run_state.spec.flags.autoclaim or run_state.now() - since < OUTAGE_REST:
            return False
        notice = f"The API was unavailable. Go on with {describe(task, {})}."
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

    # -------------------------------------------------------------------------------------------------- the board

    def _claim(self) -> bool:
        """With `--autoclaim`: take the next task that fits."""
        if not self._run_state.spec.flags.autoclaim:
            return False
        for task in self._candidates():
            try:
                claimed = tasks.claim(
                    self._team, task.id, self._name, self._run_state.spec.type, self._run_state.now()
                )  # fmt: skip
            except CrewboardError:
                continue  # somebody else was quicker
            self._run_state.task = claimed.id
            ident = mailbox.derived_id(self._name, "claimed", claimed.id, claimed.rev)
            words = f"took task {claimed.id}: {claimed.subject}"
            self._results.send("task_claimed", words, ident=ident, metadata={"task_id": claimed.id})
            self._begin(f"task-{claimed.id}-{claimed.rev}", self._yours(claimed))
            return True
        return False

    def _candidates(self) -> list[Task]:
        """Open tasks that this agent may take, its own first, in the order of the board."""
        board = {task.id: task for task in tasks.load_all(self._team)}
        fitting = [
            task
            for task in board.values()
            if task.status == "pending"
            and task.owner in (None, self._name)
            and task.required_type in (None, self._run_state.spec.type)
            and not tasks.blockers(task, board)
            and not self._belongs_to_another(task)
        ]
        return sorted(fitting, key=lambda task: (self._name not in (task.owner, task.last_owner), task.id))

    def _belongs_to_another(self, task: Task) -> bool:
        """Whether its last owner, who lost it by dying, is on the way back; who is there has it again or lets it be."""
        last = task.last_owner
        if last is None or last == self._name:
            return False
        agent = self._team.agent(last)
        spec, status = json_files.load_or_none(agent.spec, Spec), json_files.load_or_none(agent.status, Status)
        # A run that has its lease but is not in its loop yet has not begun for this purpose.
        begun = 0 if status is None else status.run - (status.state == "starting")
        return spec is not None and is_starting(spec, begun, self._run_state.now())
