"""The life of a worker: take mail in, call the model, run its tools, answer, wait for more.

Every step can be the last before a SIGKILL; the next run goes on from the journal.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

from crewboard.errors import CrewboardError, ExitCode
from crewboard.names import LEAD
from crewboard.records import Answer, Intake, Reply, Sent, State, Task
from crewboard.store import agents, agreements, files, mailbox, roster, tasks
from crewboard.worker import intake
from crewboard.worker.attention import Attention, Interrupted, Leave
from crewboard.worker.calls import Calls
from crewboard.worker.gate import Gate
from crewboard.worker.helper import Helper
from crewboard.worker.model import Model, ModelError
from crewboard.worker.outcome import Outcome
from crewboard.worker.prompt import PROJECT_FILES, system_prompt
from crewboard.worker.recorder import Recorder
from crewboard.worker.tools.board import describe


class Loop:
    """One run of one agent."""

    def __init__(
        self,
        recorder: Recorder,
        attention: Attention,
        model: Model,
        helper: Helper,
        environment: Mapping[str, str],
    ) -> None:
        self._recorder = recorder
        self._attention = attention
        self._model = model
        self._helper = helper
        self._gate = Gate(recorder)
        self._calls = Calls(recorder, attention, self._gate, helper, environment)
        self._team = recorder.agent.team
        self._name = recorder.agent.name
        self._told_idle = False

    async def run(self) -> None:
        """Work until there is a reason to leave.

        Raises:
            Leave: Always, in the end; says why.
        """
        recorder = self._recorder
        asking = asyncio.ensure_future(self._learn_window())
        own = tasks.in_progress(self._team, self._name)
        recorder.task = own.id if own else None
        self._send_unsent()
        try:
            while True:
                if recorder.conversation.assignment is None:
                    await self._wait_for_work()
                await self._work()
        finally:
            asking.cancel()

    async def _learn_window(self) -> None:
        """Ask the API how much the model's window holds, beside the work."""
        self._recorder.context_limit = await self._model.window()

    # ------------------------------------------------------------------------------------------- between work

    async def _wait_for_work(self) -> None:
        """Wait, idle, until something starts an assignment."""
        recorder = self._recorder
        first_look = True
        while True:
            self._attention.check_leave()
            if not self._attention.paused:
                if self._start_prompt() or self._start_mail() or self._remind():
                    self._told_idle = False
                    return
                if recorder.spec.flags.once and recorder.conversation.results:
                    raise Leave("finished", 0)
            self._attention.agree_to_leave()
            self._show_rest(first_look=first_look)
            first_look = False
            await self._attention.wait()

    def _show_rest(self, *, first_look: bool) -> None:
        """Show once that the agent rests, and tell whom it reports to."""
        recorder = self._recorder
        state: State = "paused" if self._attention.paused else "idle"
        if first_look or recorder.status.state != state:
            recorder.show(state, "held by the operator" if state == "paused" else "")
        if state == "idle" and not self._told_idle and recorder.conversation.results:
            self._told_idle = True
            ident = mailbox.derived_id(self._name, "idle", recorder.spec.run, self._results)
            self._send("idle_notification", "free for work", ident=ident)

    @property
    def _results(self) -> int:
        return self._recorder.conversation.results

    def _start_prompt(self) -> bool:
        """Begin with the hire prompt of a fresh conversation."""
        recorder, spec = self._recorder, self._recorder.spec
        if not recorder.fresh:
            return False
        recorder.fresh = False
        notices = self._take_task(spec.flags.task) if spec.flags.task is not None else []
        recorder.append(
            Intake(
                ts=recorder.now(),
                cursor=recorder.conversation.cursor,
                prompt=spec.prompt,
                prompt_from=spec.by,
                notices=notices,
                assignment=spec.prompt_id,
            )
        )
        return True

    def _start_mail(self) -> bool:
        """Begin with mail that starts work."""
        started = intake.start_assignment(self._recorder)
        if started is None:
            return False
        task_id = started.metadata.get("task_id")
        if isinstance(task_id, int):
            self._notify(self._take_task(task_id))
        return True

    def _take_task(self, task_id: int) -> list[str]:
        """Put a task that was given to this agent in progress; returns what to tell it."""
        try:
            task = tasks.claim(self._team, task_id, self._name, self._recorder.spec.type, self._recorder.now())
        except CrewboardError as error:
            return [f"task {task_id} could not be put in progress: {error}"]
        self._recorder.task = task.id
        return [self._own_task(task)]

    def _own_task(self, task: Task) -> str:
        board = {other.id: other for other in tasks.load_all(self._team)}
        return f"Your task is {describe(task, board)}. Say with task_update when it is completed or failed."

    def _remind(self) -> bool:
        """Remind the agent, once, of a task that it left in progress."""
        recorder = self._recorder
        task = tasks.in_progress(self._team, self._name)
        recorder.task = task.id if task else None
        if task is None or task.id in recorder.conversation.reminded or not recorder.conversation.results:
            return False
        notice = (
            f"You ended your turn, and {describe(task, {})} is still in progress. "
            "Use task_update to say what became of it."
        )
        ident = f"reminder-{task.id}-{recorder.spec.run}"
        recorder.append(
            Intake(
                ts=recorder.now(),
                cursor=recorder.conversation.cursor,
                notices=[notice],
                reminds=task.id,
                assignment=ident,
            )
        )
        return True

    def _notify(self, notices: list[str]) -> None:
        recorder = self._recorder
        recorder.append(Intake(ts=recorder.now(), cursor=recorder.conversation.cursor, notices=notices))

    # --------------------------------------------------------------------------------------------------- work

    async def _work(self) -> None:
        """Carry an assignment to its answer."""
        conversation = self._recorder.conversation
        while conversation.assignment is not None:
            try:
                await self._calls.run_pending()
                await self._hold_while_paused()
                self._take_in_between()
                if conversation.assignment.calls >= self._recorder.spec.flags.max_turns:
                    self._fail(f"reached its limit of {conversation.assignment.calls} model calls", ExitCode.LIMIT)
                    return
                self._take_reply(await self._call())
            except Interrupted:
                self._calls.drop_pending()
            except ModelError as error:
                self._fail(str(error), error.code)

    async def _hold_while_paused(self) -> None:
        """Make no model call while the operator holds the agent."""
        if not self._attention.paused:
            return
        self._recorder.show("paused", "held by the operator")

        async def released() -> None:
            while self._attention.paused:
                await self._attention.wait()

        await self._attention.during(released(), waiting=True, interruptible=False)

    def _take_in_between(self) -> None:
        """Take in mail before a model call, and tell the model who asks it to leave."""
        self._attention.check_leave()
        recorder = self._recorder
        request = agreements.pending_shutdown(self._team, self._name, recorder.now())
        if request is None or request.id in recorder.conversation.shutdowns_told:
            intake.take_in(recorder)
            return
        reason = str(request.payload.get("reason") or "no reason given")
        notice = f"{request.from_} asks you to shut down ({reason}). Agree or refuse with shutdown_response."
        intake.take_in(recorder, notices=[notice], shutdowns=[request.id])

    async def _call(self) -> Reply:
        return await self._model.reply(
            system_prompt(self._name, self._recorder.spec, roster.load(self._team), await self._project()),
            self._gate.definitions(),
            self._recorder.conversation.messages(),
        )

    async def _project(self) -> str:
        """What the project says of itself; read by `hands`, like everything in the workspace."""
        for name in PROJECT_FILES:
            outcome = await self._helper.ask("read_text", {"path": name})
            if not outcome.is_error:
                return outcome.content
        return ""

    def _take_reply(self, reply: Reply) -> None:
        recorder = self._recorder
        recorder.append(reply)
        recorder.clear_live()
        conversation = recorder.conversation
        if reply.stop_reason == "pause_turn" or (reply.stop_reason == "tool_use" and conversation.pending):
            return
        for block in list(conversation.pending):
            self._calls.result(block, Outcome("not run: the reply was cut off before its end", is_error=True))
        if reply.stop_reason == "max_tokens":
            self._notify(["Your reply reached its length limit. Go on, in smaller pieces."])
            return
        text = "".join(block.get("text", "") for block in reply.content if block.get("type") == "text")
        if reply.stop_reason in ("refusal", "model_context_window_exceeded"):
            self._fail(f"the model stopped: {reply.stop_reason}. {text}".strip(), ExitCode.FAILED)
            return
        self._answer(text)

    # ------------------------------------------------------------------------------------------------- answer

    def _answer(self, text: str) -> None:
        """Write the result down, commit the answer, send it."""
        recorder, assignment = self._recorder, self._recorder.conversation.assignment
        if assignment is None:
            return
        result = f"results/{self._name}-{recorder.spec.run}-{self._results + 1}.md"
        files.replace_file(self._team.path / result, text.encode("utf-8", "replace"), durable=True)
        recorder.append(
            Answer(
                ts=recorder.now(),
                assignment=assignment.id,
                answers=assignment.answers,
                text=text,
                result=result,
            )
        )
        recorder.show("working", "sends its result", clear_error=True)
        self._send_unsent()

    def _fail(self, error: str, code: ExitCode) -> None:
        """End the assignment in words. Bad credentials end the worker, and so does any failure of one hired once."""
        recorder, assignment = self._recorder, self._recorder.conversation.assignment
        if assignment is None:
            return
        recorder.append(
            Answer(
                ts=recorder.now(),
                assignment=assignment.id,
                answers=assignment.answers,
                text="",
                error=error,
                code=code,
            )
        )
        recorder.show("working", "reports an error", last_error=error)
        self._send_unsent()
        if code == ExitCode.CREDENTIALS or recorder.spec.flags.once:
            raise Leave(_REASONS.get(code, "failed"), code)

    def _send_unsent(self) -> None:
        """Send the mail of an answer that is committed. Its id is derived, so that doing this twice is harmless."""
        answer = self._recorder.conversation.unsent
        if answer is None:
            return
        if self._is_taken(answer):
            self._told_idle = True
            return
        kind = "error" if answer.error is not None else "result"
        self._send(
            kind,
            answer.error or answer.text,
            ident=agreements.answer_id(self._name, answer),
            metadata={"result": answer.result, "answers": list(answer.answers)},
        )

    def _is_taken(self, answer: Answer) -> bool:
        """Whether whoever hired this agent takes the answer to its prompt itself.

        Read after the answer is committed: a hirer that stops waiting says so first and looks for the answer then, so
        that one of both sees the other.
        """
        spec = agents.spec(self._recorder.agent)
        return spec is not None and spec.foreground and answer.assignment == spec.prompt_id

    def _send(self, kind: str, text: str, *, ident: str, metadata: dict[str, Any] | None = None) -> None:
        recorder = self._recorder
        member = roster.load(self._team).member(self._name)
        message = mailbox.compose(
            self._name,
            member.report_to if member else LEAD,
            kind,
            text,
            ident=ident,
            ts=recorder.now(),
            metadata=metadata,
        )
        sent = mailbox.send(self._team, message, durable=kind == "result")
        recorder.append(Sent(ts=recorder.now(), message=sent))


_REASONS = {
    ExitCode.CREDENTIALS: "credentials",
    ExitCode.API_UNAVAILABLE: "api_unavailable",
    ExitCode.LIMIT: "turn_limit",
}
