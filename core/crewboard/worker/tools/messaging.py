"""Tools for mail: write to teammates, ask the operator, read mail, answer a request to shut down."""

from pydantic import Field

from crewboard.errors import UsageError
from crewboard.names import OPERATOR, is_name, is_operator_mailbox
from crewboard.protocol import requests
from crewboard.records.events import Sent
from crewboard.store import leases, mailbox, roster
from crewboard.worker import inbox
from crewboard.worker.interrupts import WorkerExit
from crewboard.worker.tools.base import Context, Input, NoInput, Outcome, tool


class SendMessage(Input):
    to: str
    content: str


class AskOperator(Input):
    question: str
    options: list[str] = Field(default=[], description="possible answers, if there is a choice")


class ShutdownResponse(Input):
    approve: bool
    reason: str = ""


@tool(repeatable=True)
async def send_message(context: Context, given: SendMessage) -> Outcome:
    """Send a message to a teammate, to lead or to operator."""
    if not is_name(given.to):
        raise UsageError(f"{given.to!r} is not a valid name")
    config = roster.load(context.team)
    to = config.recipient(given.to)
    if to == context.name:
        raise UsageError("this is your own name; name a teammate, lead or operator")
    if not given.content.strip():
        raise UsageError("the message is empty")
    # The id is derived, so that sending again after a crash delivers the message once.
    ident = mailbox.derived_id(context.name, context.tool_use_id, to)
    message = mailbox.compose(context.name, to, "message", given.content, ident=ident, ts=context.now())
    sent = mailbox.send(context.team, message, durable=True)
    context.run_state.append(Sent(ts=context.now(), message=sent))
    if is_operator_mailbox(to, config.names) or leases.is_held(context.team.agent(to).lease):
        return Outcome(f"sent to {to}")
    return Outcome(f"sent; {to} is not running and reads it when it runs again")


@tool()
async def read_inbox(context: Context, given: NoInput) -> Outcome:  # noqa: ARG001  no input
    """Read mail that arrived since this turn began."""
    count = inbox.take_in(context.run_state)
    waiting = len(context.run_state.conversation.put_off)
    text = f"{count} new; see below" if count else "nothing new"
    if context.team.inbox(context.name).size() > context.run_state.conversation.cursor:
        text += "; more is left than one turn may hold, read_inbox again shows it"
    return Outcome(text + (f"; {waiting} task assignments wait until this work is done" if waiting else ""))


@tool(waits=True)
async def ask_operator(context: Context, given: AskOperator) -> Outcome:
    """Ask the human operator a question and wait for the answer. Use it only for what a person must decide."""
    if not given.question.strip():
        raise UsageError("the question is empty")
    request = requests.ask(
        context.team,
        requests.question_id(context.name, context.tool_use_id),
        "question",
        context.name,
        OPERATOR,
        {"question": given.question, "options": list(given.options)},
        context.now(),
    )
    decided = await context.interrupts.wait_for_decision(request, "waits for your answer")
    if decided.status == "answered":
        return Outcome(f"the operator answers: {decided.feedback}", consumed=(requests.response_id(decided),))
    return Outcome(f"the question was {decided.status}; continue without an answer", is_error=True)


@tool()
async def shutdown_response(context: Context, given: ShutdownResponse) -> Outcome:
    """Answer a request to shut down, while a notice says that there is one: approve it, or refuse it with a reason."""
    team, now = context.team, context.now()
    request = requests.pending_shutdown(team, context.name, now)
    if request is None:
        raise UsageError("there is no pending request to shut down")
    if given.approve:
        requests.respond(team, request.id, "approved", context.name, now, feedback=given.reason or None)
        raise WorkerExit("shutdown", 0)
    reason = given.reason.strip() or "no reason given"
    requests.respond(team, request.id, "rejected", context.name, now, feedback=reason)
    return Outcome("refused; continue your work")
