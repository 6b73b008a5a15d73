"""Tools for talking: to teammates, to the operator."""

from pydantic import Field

from crewboard.errors import UsageError
from crewboard.names import OPERATOR, is_name
from crewboard.protocol import addressing, approvals
from crewboard.records import Message, Sent
from crewboard.store import leases, mailbox, roster
from crewboard.worker import inbox
from crewboard.worker.interrupts import WorkerExit
from crewboard.worker.tools.base import Context, Input, Tool
from crewboard.worker.tools.outcome import Outcome
from crewboard.worker.tools.waiting import wait_for


class SendMessage(Input):
    to: str
    content: str


class Nothing(Input):
    pass


class AskOperator(Input):
    question: str
    options: list[str] = Field(default=[], description="answers to choose from, if there are any")


class ShutdownResponse(Input):
    approve: bool
    reason: str = ""


def deliver(context: Context, message: Message) -> Message:
    """Send a message and note that it was sent. Sending it again after a crash delivers it once."""
    sent = mailbox.send(context.run_state.agent.team, message)
    context.run_state.append(Sent(ts=context.run_state.now(), message=sent))
    return sent


async def _send_message(context: Context, given: SendMessage) -> Outcome:
    team = context.run_state.agent.team
    if not is_name(given.to):
        return Outcome(f"{given.to!r} is no name", is_error=True)
    if given.to == context.name:
        return Outcome("that is you; write to somebody else", is_error=True)
    if not given.content.strip():
        return Outcome("the message is empty", is_error=True)
    config = roster.load(team)
    try:
        addressing.require_recipient(given.to, config.names)
    except UsageError as error:
        return Outcome(str(error), is_error=True)
    ident = mailbox.derived_id(context.name, context.tool_use_id, given.to)
    deliver(
        context,
        mailbox.compose(context.name, given.to, "message", given.content, ident=ident, ts=context.run_state.now()),
    )
    if addressing.is_operator_mailbox(given.to, config.names) or leases.is_held(team.agent(given.to).lease):
        return Outcome(f"sent to {given.to}")
    return Outcome(f"{given.to} is not running; the message is kept until it is")


async def _read_inbox(context: Context, given: Nothing) -> Outcome:  # noqa: ARG001  it takes nothing
    arrived = inbox.take_in(context.run_state)
    waiting = sum(message.type == "task_assignment" for message in context.run_state.conversation.deferred)
    words = f"{arrived} new; what arrived stands below" if arrived else "nothing new"
    return Outcome(words + (f"; {waiting} task assignments wait until this work is done" if waiting else ""))


async def _ask_operator(context: Context, given: AskOperator) -> Outcome:
    if not given.question.strip():
        return Outcome("the question is empty", is_error=True)
    request = approvals.ask(
        context.run_state.agent.team,
        f"question-{mailbox.derived_id(context.name, context.tool_use_id)[:12]}",
        "question",
        context.name,
        OPERATOR,
        {"question": given.question, "options": list(given.options)},
        context.run_state.now(),
    )
    decided = await wait_for(context, request, "waits for your answer")
    if decided.status == "answered":
        return Outcome(f"the operator answers: {decided.feedback}", consumed=(approvals.response_id(decided),))
    return Outcome(f"the question was {decided.status}; go on without an answer", is_error=True)


async def _shutdown_response(context: Context, given: ShutdownResponse) -> Outcome:
    team, run_state = context.run_state.agent.team, context.run_state
    request = approvals.pending_shutdown(team, context.name, run_state.now())
    if request is None:
        return Outcome("nobody asks you to shut down now", is_error=True)
    if given.approve:
        approvals.respond(team, request.id, "approved", context.name, run_state.now(), feedback=given.reason or None)
        raise WorkerExit("shutdown", 0)
    reason = given.reason.strip() or "no reason given"
    approvals.respond(team, request.id, "rejected", context.name, run_state.now(), feedback=reason)
    return Outcome("you go on; the reason was passed on")


SEND_MESSAGE: Tool[SendMessage] = Tool(
    "send_message",
    "Send a message to a teammate, to lead or to operator.",
    SendMessage,
    _send_message,
    repeatable=True,
)
READ_INBOX: Tool[Nothing] = Tool("read_inbox", "See what arrived since this turn began.", Nothing, _read_inbox)
ASK_OPERATOR: Tool[AskOperator] = Tool(
    "ask_operator",
    "Ask the human operator a question and wait for the answer. For what only a person can decide.",
    AskOperator,
    _ask_operator,
    waits=True,
)
SHUTDOWN_RESPONSE: Tool[ShutdownResponse] = Tool(
    "shutdown_response",
    "Answer the request that you shut down: agree, or refuse with a reason.",
    ShutdownResponse,
    _shutdown_response,
)

TOOLS = (SEND_MESSAGE, READ_INBOX, ASK_OPERATOR, SHUTDOWN_RESPONSE)
