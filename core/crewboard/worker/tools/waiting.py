"""Waiting for the answer to a request."""

import asyncio
import contextlib

from crewboard.protocol import approvals
from crewboard.records import Request
from crewboard.store import mailbox
from crewboard.store.json_files import CachedFile
from crewboard.worker.interrupts import TOLD_WITHIN
from crewboard.worker.tools.base import Context

_MAILED = ("approved", "rejected", "answered")
"""How a request ends of which mail tells."""


async def wait_for(context: Context, request: Request, doing: str) -> Request:
    """Wait until a request is closed; the agent agrees to shut down meanwhile.

    Raises:
        Interrupted: Somebody wants the agent to read its mail; the request is cancelled.
        Leave: The run ends; the request stays open unless the supervisor buries the agent.
    """
    team, run_state, interrupts = context.run_state.agent.team, context.run_state, context.interrupts
    run_state.show("waiting", doing, waiting_for=request.id)

    known = CachedFile(team.request(request.id), Request)  # a file that is damaged meanwhile is no answer

    async def closed() -> Request:
        while True:
            current = known.get()
            if current is not None and current.status != "pending":
                return current
            await interrupts.wait()

    decided = await interrupts.run_interruptibly(closed(), waiting=True)
    if decided.status in _MAILED:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(_told(context, approvals.response_id(decided)), TOLD_WITHIN)
    return decided


async def _told(context: Context, ident: str) -> None:
    """Wait for the mail that tells of the decision, so that it counts as read by whoever acts on it."""
    team, conversation = context.run_state.agent.team, context.run_state.conversation
    while not any(
        message.id == ident
        for message in mailbox.read(team, context.name, conversation.cursor, known=conversation.known).messages
    ):
        await context.interrupts.wait(0.02)
