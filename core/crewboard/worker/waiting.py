"""Waiting for the answer to a request."""

from crewboard.records import Request
from crewboard.store.documents import Cached
from crewboard.worker.tools.base import Context


async def wait_for(context: Context, request: Request, doing: str) -> Request:
    """Wait until a request is closed; the agent agrees to shut down meanwhile.

    Raises:
        Interrupted: Somebody wants the agent to read its mail; the request is cancelled.
        Leave: The run ends; the request stays open unless the supervisor buries the agent.
    """
    team, recorder, attention = context.recorder.agent.team, context.recorder, context.attention
    recorder.show("waiting", doing, waiting_for=request.id)

    known = Cached(team.request(request.id), Request)  # a file that is damaged meanwhile is no answer

    async def closed() -> Request:
        while True:
            current = known.get()
            if current is not None and current.status != "pending":
                return current
            await attention.wait()

    return await attention.during(closed(), waiting=True)
