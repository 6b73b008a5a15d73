"""What a worker listens to while it works or waits: the bell, requests to leave, interrupts, a pause.

`during` runs something that may take long and ends it at once when one of these calls for it.
"""

import asyncio
import contextlib
import signal
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

from crewboard.errors import BadDataError, ExitCode
from crewboard.names import LEAD, OPERATOR
from crewboard.protocol import approvals
from crewboard.records import Message, Spec
from crewboard.store import mailbox
from crewboard.store.json_files import CachedFile
from crewboard.worker import inbox
from crewboard.worker.run_state import RunState

T = TypeVar("T")

SWEEP = 1.5
"""Seconds between two looks when no bell rings."""


TOLD_WITHIN = 1.0
"""Seconds after a request or a decision within which its mail comes, unless its author was killed in between."""


class Interrupted(Exception):  # noqa: N818  it is no error, it is what was asked for
    """Somebody wants the present turn or command to stop, and the agent to read its mail."""


class WorkerExit(Exception):  # noqa: N818
    """The worker has to go; `reason` and `code` say how its run ended."""

    def __init__(self, reason: str, code: int) -> None:
        super().__init__(reason)
        self.reason = reason
        self.code = code


class Interrupts:
    """Looks at bell, signals, spec and mailbox for a worker."""

    def __init__(self, run_state: RunState) -> None:
        self._run_state = run_state
        self._agent = run_state.agent
        self._spec = CachedFile(self._agent.spec, Spec)
        self._bell = asyncio.Event()
        self._terminated = False

    def listen(self) -> None:
        """Hear the bell and the wish to terminate from now on."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGURG, self._bell.set)
        loop.add_signal_handler(signal.SIGTERM, self._terminate)

    def _terminate(self) -> None:
        self._terminated = True
        self._bell.set()

    async def wait(self, seconds: float = SWEEP) -> None:
        """Wait for the bell, at most so long."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._bell.wait(), seconds)
        self._bell.clear()

    def check_leave(self) -> None:
        """Go if somebody ended this run.

        Raises:
            Leave: Somebody did.
        """
        wanted = self._wanted()
        if self._terminated:
            raise WorkerExit("killed" if wanted == "killed" else "terminated", ExitCode.TERMINATED)
        if wanted == "stopped":
            raise WorkerExit("shutdown", 0)

    def _wanted(self) -> str:
        spec = self._spec.get()
        return spec.want if spec is not None and spec.run == self._run_state.spec.run else "running"

    @property
    def paused(self) -> bool:
        """Whether the operator holds this agent."""
        return self._wanted() == "paused"

    def accept_shutdown(self) -> None:
        """Say yes to a shutdown request, as a worker does that has nothing at hand.

        Raises:
            Leave: There was one.
        """
        team, name, now = self._agent.team, self._agent.name, self._run_state.now()
        request = approvals.pending_shutdown(team, name, now)
        if request is None:
            return
        self._pick_up(approvals.ask_id(request))
        try:
            approvals.respond(team, request.id, "approved", name, now)
        except BadDataError:
            return  # it was closed meanwhile
        raise WorkerExit("shutdown", 0)

    def _pick_up(self, ident: str) -> None:
        """Pick up mail to the message `ident`, which is on its way: who acts on it has read it.

        Work that lies before it stays unread: nobody does it.
        """
        deadline = time.monotonic() + TOLD_WITHIN
        while ident not in self._run_state.conversation.known and time.monotonic() < deadline:
            arrived = inbox.look(self._run_state, lambda message: False)  # noqa: ARG005  all work counts
            if arrived.first is not None:
                return
            inbox.pick_up(self._run_state, arrived)
            time.sleep(0.01)

    def pending_interrupts(self) -> list[Message]:
        """Interrupts that lie in the mailbox and were not picked up; those of a teammate are mail like any other."""
        conversation = self._run_state.conversation
        batch = mailbox.read(self._agent.team, self._agent.name, conversation.cursor, known=conversation.known)
        return [each for each in batch.messages if each.type == "interrupt" and each.from_ in (OPERATOR, LEAD)]

    async def run_interruptibly(
        self, work: Coroutine[Any, Any, T], *, waiting: bool = False, interruptible: bool = True
    ) -> T:
        """Run `work`, and end it at once when somebody interrupts or ends this run.

        A worker that is only `waiting` also agrees to shutdown requests; one that is held reads no mail, and is not
        `interruptible`.

        Raises:
            Interrupted: Somebody wants the agent to read its mail.
            Leave: Somebody ended the run.
        """
        task = asyncio.ensure_future(work)
        bell = asyncio.ensure_future(self.wait())
        try:
            while not task.done():
                self._check(waiting=waiting, interruptible=interruptible)
                await asyncio.wait({task, bell}, return_when=asyncio.FIRST_COMPLETED)
                if bell.done():
                    bell = asyncio.ensure_future(self.wait())
            return await task
        finally:
            for unfinished in (task, bell):
                unfinished.cancel()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await unfinished

    def _check(self, *, waiting: bool, interruptible: bool) -> None:
        self.check_leave()
        if waiting:
            self.accept_shutdown()
        if interruptible and self.pending_interrupts():
            raise Interrupted
