"""How an assignment ends: the result is written down, the answer committed, the mail sent.

In this order, so that a worker killed in between finishes what it committed and never asks the model again.
"""

from typing import Any

from crewboard.errors import ExitCode
from crewboard.names import LEAD
from crewboard.protocol import approvals
from crewboard.records import Answer, Sent, Spec
from crewboard.store import files, json_files, mailbox, roster
from crewboard.worker.interrupts import WorkerExit
from crewboard.worker.run_state import RunState

_REASONS = {
    ExitCode.CREDENTIALS: "credentials",
    ExitCode.API_UNAVAILABLE: "api_unavailable",
    ExitCode.LIMIT: "turn_limit",
}


class Results:
    """The answers of one worker, and the mail it sends by itself."""

    def __init__(self, run_state: RunState) -> None:
        self._run_state = run_state
        self._team = run_state.agent.team
        self._name = run_state.agent.name
        self.told_idle = False
        """Whether its free time was announced since it last worked."""

    def answer(self, text: str) -> None:
        """End the assignment with its result."""
        run_state, assignment = self._run_state, self._run_state.conversation.assignment
        if assignment is None:
            return
        result = f"results/{self._name}-{run_state.spec.run}-{run_state.conversation.results + 1}.md"
        files.replace_file(self._team.path / result, text.encode("utf-8", "replace"), durable=True)
        run_state.append(
            Answer(
                ts=run_state.now(), assignment=assignment.id, answers=assignment.answers, text=text, result=result
            )
        )  # fmt: skip
        run_state.show("working", "sends its result", clear_error=True)
        self.send_unsent()

    def fail(self, error: str, code: ExitCode, *, budget: bool = False) -> None:
        """End the assignment in words.

        Raises:
            Leave: Bad credentials and a used-up budget end the worker, and so does any failure of one hired once.
        """
        run_state, assignment = self._run_state, self._run_state.conversation.assignment
        if assignment is None:
            return
        run_state.append(
            Answer(
                ts=run_state.now(), assignment=assignment.id, answers=assignment.answers, text="",
                error=error, code=code,
            )
        )  # fmt: skip
        run_state.show("working", "reports an error", last_error=error)
        self.send_unsent()
        if budget:
            raise WorkerExit("budget", code)
        if code == ExitCode.CREDENTIALS or run_state.spec.flags.once:
            raise WorkerExit(_REASONS.get(code, "failed"), code)

    def send_unsent(self) -> None:
        """Send the mail of an answer that is committed. Its id is derived, so that doing this twice is harmless."""
        answer = self._run_state.conversation.unsent
        if answer is None:
            return
        if self._is_taken(answer):
            self.told_idle = True
            return
        self.send(
            "error" if answer.error is not None else "result",
            answer.error or answer.text,
            ident=approvals.answer_id(self._name, answer),
            metadata={"result": answer.result, "answers": list(answer.answers)},
        )

    def _is_taken(self, answer: Answer) -> bool:
        """Whether whoever hired this agent takes the answer to its prompt itself.

        Read after the answer is committed: a hirer that stops waiting says so first and looks for the answer then, so
        that one of both sees the other. In doubt the mail goes out: twice heard is better than never.
        """
        spec = json_files.load_or_none(self._run_state.agent.spec, Spec)
        return spec is not None and spec.foreground and answer.assignment == spec.prompt_id

    def tell_idle(self) -> None:
        """Say once that the agent is free, after it has worked."""
        conversation = self._run_state.conversation
        if self.told_idle or not conversation.results:
            return
        self.told_idle = True
        ident = mailbox.derived_id(self._name, "idle", self._run_state.spec.run, conversation.results)
        self.send("idle_notification", "free for work", ident=ident)

    def send(self, kind: str, text: str, *, ident: str, metadata: dict[str, Any] | None = None) -> None:
        """Send mail to whom the agent reports to."""
        run_state = self._run_state
        member = roster.load(self._team).member(self._name)
        to = member.report_to if member else LEAD
        message = mailbox.compose(self._name, to, kind, text, ident=ident, ts=run_state.now(), metadata=metadata)
        sent = mailbox.send(self._team, message, durable=kind == "result")
        run_state.append(Sent(ts=run_state.now(), message=sent))
