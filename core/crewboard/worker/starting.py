"""What starts an assignment: the hire prompt, mail, a task left in progress, a task claimed from the board."""

from crewboard.errors import CrewboardError, ExitCode
from crewboard.records import Intake, Task
from crewboard.store import lease, mailbox, tasks
from crewboard.worker import intake
from crewboard.worker.answering import Answers
from crewboard.worker.recorder import Recorder
from crewboard.worker.tools.board import describe

OUTAGE_REST = 60.0
"""Seconds after an outage of the API before an agent that works by itself tries again."""


class Starts:
    """Looks for work for one worker."""

    def __init__(self, recorder: Recorder, answers: Answers) -> None:
        self._recorder = recorder
        self._answers = answers
        self._team = recorder.agent.team
        self._name = recorder.agent.name

    def look(self) -> bool:
        """Begin an assignment if anything calls for one."""
        return self._prompt() or self._mail() or self._unfinished() or self._claim()

    def _prompt(self) -> bool:
        """Begin with the hire prompt of a fresh conversation."""
        recorder, spec = self._recorder, self._recorder.spec
        if not recorder.fresh:
            return False
        recorder.fresh = False
        notices = self._take(spec.flags.task) if spec.flags.task is not None else []
        recorder.append(
            Intake(
                ts=recorder.now(), cursor=recorder.conversation.cursor, prompt=spec.prompt, prompt_from=spec.by,
                notices=notices, assignment=spec.prompt_id,
            )
        )  # fmt: skip
        return True

    def _mail(self) -> bool:
        """Begin with mail that starts work; a task that it gives is put in progress first."""
        arrived = intake.look(self._recorder)
        if arrived.first is None:
            intake.pick_up(self._recorder, arrived)
            return False
        task_id = arrived.first.metadata.get("task_id")
        intake.start(self._recorder, arrived, self._take(task_id) if isinstance(task_id, int) else [])
        return True

    def _take(self, task_id: int) -> list[str]:
        """Put a task that was given to this agent in progress; returns what to tell it."""
        try:
            task = tasks.claim(self._team, task_id, self._name, self._recorder.spec.type, self._recorder.now())
        except CrewboardError as error:
            return [f"task {task_id} could not be put in progress: {error}"]
        self._recorder.task = task.id
        return [self._yours(task)]

    def _yours(self, task: Task) -> str:
        board = {other.id: other for other in tasks.load_all(self._team)}
        body = f"\n\n{task.description}" if task.description else ""
        return f"Your task is {describe(task, board)}. Say with task_update when it is completed or failed.{body}"

    # ------------------------------------------------------------------------------------------------ unfinished

    def _unfinished(self) -> bool:
        """Go on with a task that was left in progress: after a reminder, or after an outage of the API."""
        recorder, conversation = self._recorder, self._recorder.conversation
        task = tasks.in_progress(self._team, self._name)
        recorder.task = task.id if task else None
        last = conversation.last_answer
        if task is None or last is None:
            return False
        if last.code == ExitCode.API_UNAVAILABLE:
            return self._after_outage(task, last.ts)
        if task.id not in conversation.reminded:
            notice = f"You ended your turn, and {describe(task, {})} is still in progress. "
            self._begin(f"reminder-{task.id}-{task.rev}", notice + "Use task_update to say what became of it.", task.id)
            return True
        if recorder.spec.flags.autoclaim:
            tasks.update(self._team, task.id, self._name, recorder.now(), status="failed")
            recorder.task = None
        return False

    def _after_outage(self, task: Task, since: float) -> bool:
        recorder = self._recorder
        if not recorder.spec.flags.autoclaim or recorder.now() - since < OUTAGE_REST:
            return False
        notice = f"The API was unavailable. Go on with {describe(task, {})}."
        self._begin(f"again-{task.id}-{recorder.conversation.answers}", notice)
        return True

    def _begin(self, ident: str, notice: str, reminds: int | None = None, claimed: int | None = None) -> None:
        recorder = self._recorder
        recorder.append(
            Intake(
                ts=recorder.now(), cursor=recorder.conversation.cursor, notices=[notice],
                reminds=reminds, claimed=claimed, assignment=ident,
            )
        )  # fmt: skip

    # -------------------------------------------------------------------------------------------------- the board

    def _claim(self) -> bool:
        """With `--autoclaim`: take the next task that fits."""
        if not self._recorder.spec.flags.autoclaim:
            return False
        for task in self._candidates():
            try:
                claimed = tasks.claim(
                    self._team, task.id, self._name, self._recorder.spec.type, self._recorder.now()
                )  # fmt: skip
            except CrewboardError:
                continue  # somebody else was quicker
            self._recorder.task = claimed.id
            ident = mailbox.derived_id(self._name, "claimed", claimed.id, claimed.rev)
            words = f"took task {claimed.id}: {claimed.subject}"
            self._answers.send("task_claimed", words, ident=ident, metadata={"task_id": claimed.id})
            self._begin(f"task-{claimed.id}-{claimed.rev}", self._yours(claimed), claimed=claimed.id)
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
            and task.required_type in (None, self._recorder.spec.type)
            and not tasks.blockers(task, board)
            and not self._belongs_to_another(task)
        ]
        return sorted(fitting, key=lambda task: (self._name not in (task.owner, task.last_owner), task.id))

    def _belongs_to_another(self, task: Task) -> bool:
        """Whether its last owner, who lost it by dying, is back and comes first."""
        last = task.last_owner
        return last not in (None, self._name) and lease.is_held(self._team.agent(str(last)).lease)
