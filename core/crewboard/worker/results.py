"""The end of an assignment: write the result file, commit the answer to the journal, send the mail.

In this order, so that the worker after a crash sends what was committed and never asks the model again.
"""

from typing import Any

from crewboard.agent_types import describe_ended_terms
from crewboard.errors import ExitCode
from crewboard.names import OPERATOR
from crewboard.protocol import approvals, reviews
from crewboard.records.agents import Spec
from crewboard.records.events import Answer, Sent
from crewboard.store import json_records, mailbox, roster
from crewboard.worker.interrupts import WorkerExit
from crewboard.worker.run_state import RunState

_REASONS = {
    ExitCode.CREDENTIALS: "credentials",
    ExitCode.API_UNAVAILABLE: "api_unavailable",
    ExitCode.LIMIT: "turn_limit",
}

_HOLDING = frozenset({ExitCode.LIMIT, ExitCode.CREDENTIALS})
"""Errors that stop an assignment where it is, whatever it is about."""


class Results:
    """The answers of one worker, and the mail that it sends by itself."""

    def __init__(self, run_state: RunState) -> None:
        self._run_state = run_state
        self._team = run_state.team
        self._name = run_state.name
        self.reported_idle = False
        """True if it was announced, since the last assignment, that the agent is idle."""
        self._held_for: str | None = None
        """The request of the review for which the last result waits, empty if it is not known; None: it does not."""

    def answer(self, text: str, code: ExitCode = ExitCode.DONE) -> None:
        """End the assignment with its result, for which commands in the foreground end with `code`."""
        run_state, assignment = self._run_state, self._run_state.conversation.assignment
        if assignment is None:
            return
        if self._held_for is not None and reviews.feedback_id(self._held_for) not in assignment.answers:
            # This is other work. A result is dropped only if this one is of the same work, after feedback.
            self.send_unsent(held=False)
        continued = assignment.continued
        name = f"{self._name}-{run_state.spec.run}-{run_state.conversation.results + 1}.md"
        self._team.keep_result(name, text.encode("utf-8", "replace"))
        result = f"results/{name}"
        run_state.append(
            Answer(
                ts=run_state.now(), assignment=assignment.id, answers=[*assignment.answers], text=text, result=result,
                code=code, continued=continued, ended_terms=run_state.conversation.terms,
                for_operator=assignment.asked_by == {OPERATOR},
            )
        )  # fmt: skip
        run_state.show("working", "sends its result", clear_error=True)
        self.send_unsent()

    def fail(self, error: str, code: ExitCode, *, budget: bool = False, refused_by: str | None = None) -> None:
        """End the assignment with an error. A limit and bad credentials only hold it: a resume continues it.

        `refused_by` is the model that refused it.

        Raises:
            WorkerExit: Bad credentials and a used-up budget end the worker, and any failure does if it was hired with
                `--once`.
        """
        run_state, assignment = self._run_state, self._run_state.conversation.assignment
        if assignment is None:
            return
        run_state.append(
            Answer(
                ts=run_state.now(), assignment=assignment.id, answers=[*assignment.answers], text="",
                error=error, code=code, held=code in _HOLDING, continued=assignment.continued,
                refused_by=refused_by, for_operator=assignment.asked_by == {OPERATOR},
            )
        )  # fmt: skip
        run_state.show("working", "reports an error", last_error=error)
        self.send_unsent()
        if budget:
            raise WorkerExit("budget", code)
        if code == ExitCode.CREDENTIALS or run_state.spec.flags.once:
            raise WorkerExit(_REASONS.get(code, "failed"), code)

    def refuse(self, error: str) -> None:
        """Report that a used-up budget prevents the agent from starting the work in its mailbox.

        Raises:
            WorkerExit: Always.
        """
        self._run_state.show("working", "reports an error", last_error=error)
        self.send("error", error, ident=mailbox.derived_id(self._name, "refused", self._run_state.spec.run))
        raise WorkerExit("budget", ExitCode.LIMIT)

    @property
    def is_held(self) -> bool:
        """Return True if the last result is not sent, because a reviewer has not approved the work yet."""
        return self._held_for is not None

    def send_unsent(self, *, held: bool = True) -> None:
        """Send the mail of a committed answer. Its id is derived, so sending it twice delivers it once.

        While the work on a task waits for its reviewer, the result is held back; if not `held`, it is sent and says so.
        """
        answer, before = self._run_state.conversation.unsent, self._held_for
        self._held_for = None
        if answer is None:
            return
        if self._hirer_waits_for(answer):
            self.reported_idle = True
            return
        task = reviews.awaited_by(self._team, self._name) if answer.error is None else None
        if task is not None and held:
            self._held_for = task.in_review or before or ""
            return
        note = f"{reviews.describe(task)}\n\n" if task is not None else ""
        note += f"{ended}\n\n" if (ended := describe_ended_terms(answer)) else ""
        self.send(
            "error" if answer.error is not None else "result",
            answer.error or note + answer.text,
            ident=approvals.answer_id(self._name, answer),
            metadata={"result": answer.result, "answers": list(answer.answers)},
            for_operator=answer.for_operator,
        )

    def _hirer_waits_for(self, answer: Answer) -> bool:
        """Return True if the hirer of this agent waits for this answer, and needs no mail.

        Call it after the answer is committed. A hirer that stops waiting first clears `foreground` and then looks for
        the answer, so one of both sees the other. If unsure, send: a duplicate is better than a lost result.
        """
        spec = json_records.load_or_none(self._run_state.agent.spec, Spec)
        waited_for = spec is not None and spec.foreground and answer.assignment == spec.prompt_id
        # The hirer took the error of the limit for the answer.
        return waited_for and not answer.continued

    def report_idle(self) -> None:
        """Announce once, after an assignment, that the agent is idle."""
        conversation = self._run_state.conversation
        if self.reported_idle or not conversation.results:
            return
        self.reported_idle = True
        ident = mailbox.derived_id(self._name, "idle", self._run_state.spec.run, conversation.results)
        self.send("idle_notification", "free for work", ident=ident)

    def send(
        self, kind: str, text: str, *, ident: str, metadata: dict[str, Any] | None = None, for_operator: bool = False
    ) -> None:
        """Send mail to the agent, or the operator, that this agent reports to.

        What is `for_operator` alone costs no agent a turn.
        """
        run_state, config = self._run_state, roster.load(self._team)
        to = config.reports_to(self._name)
        to = OPERATOR if for_operator and config.member(to) else to
        message = mailbox.compose(self._name, to, kind, text, ident=ident, ts=run_state.now(), metadata=metadata)
        sent = mailbox.send(self._team, message, durable=True)
        run_state.append(Sent(ts=run_state.now(), message=sent))
