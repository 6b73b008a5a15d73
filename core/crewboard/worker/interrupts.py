"""Interrupts of a worker while it works or waits: wake signals, SIGTERM, mail, a pause, shutdown requests.

`Interrupts.run_interruptibly` runs a coroutine that may take long, and cancels it at once if one of these requires it.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

from crewboard.errors import BadDataError, ExitCode, StorageError
from crewboard.names import LEAD, OPERATOR
from crewboard.protocol import requests, supervisor_client
from crewboard.records.messages import Message
from crewboard.records.processes import Supervisor
from crewboard.records.requests import Request
from crewboard.store import files, leases, mailbox, roster
from crewboard.worker import inbox
from crewboard.worker.run_state import RunState

T = TypeVar("T")

SWEEP_INTERVAL = 1.5
"""Seconds between two looks at the files if no signal wakes the worker."""

CALM_SWEEP_INTERVAL = 15.0
"""`SWEEP_INTERVAL` while a supervisor watches the files and wakes the worker: only a lost event is seen so late."""

FIRST_DELAY = 0.5
MAX_DELAY = 30.0
RETRY_BUDGET = 120.0
"""Seconds that all waits of one model call may take together, including those for a server that did not answer. What
lasts longer is an outage of the API. The waits while files cannot be written have the same limit.

One retry of a call is made in any case. `CREWBOARD_RETRY_BUDGET` overrides the number of seconds.
"""

MAIL_TIMEOUT = 1.0
"""Seconds to wait for mail about a request or its answer: its sender may be killed between the file and the mail."""

_MAIL_POLL = 0.01


class Interrupted(Exception):  # noqa: N818  not an error
    """The present turn, command or wait must stop: the agent must read its mail, or was paused in an outage."""


class WorkerExit(Exception):  # noqa: N818  as above
    """The worker must exit; `reason` and `code` say how its run ended."""

    def __init__(self, reason: str, code: int) -> None:
        super().__init__(reason)
        self.reason = reason
        self.code = code


class Interrupts:
    """The watch over all that may interrupt one worker: signals, spec, requests and mailbox."""

    def __init__(self, run_state: RunState) -> None:
        self._run_state = run_state
        self._spec = run_state.agent.spec.watch()
        self._wake = asyncio.Event()
        self._terminated = False
        self.scanned = 0
        """The offset in the mailbox, in bytes, up to which it was searched for interrupts."""
        self._interrupts: list[Message] = []
        self._supervisor: Supervisor | None = None
        """The supervisor whose end wakes this worker; None if none is known to live."""
        self._was_calm = False

    def listen(self) -> None:
        """Handle wake signals and SIGTERM from now on."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGURG, self._wake.set)
        loop.add_signal_handler(signal.SIGTERM, self._terminate)

    def _terminate(self) -> None:
        self._terminated = True
        self._wake.set()

    async def wait(self, seconds: float | None = None) -> None:
        """Wait for a wake signal, for at most `seconds`; without them, until the next look at the files is due."""
        timeout = self._until_next_look() if seconds is None else seconds
        # Not wait_for: before Python 3.12 a cancellation that comes together with the event is lost.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._wake.wait()
        self._wake.clear()

    def _until_next_look(self) -> float:
        """Return after how many seconds to look at the files if no signal comes.

        It is the long time only if a supervisor lives, does not hang, and is notified of changes of files, and if that
        was so at the last look already: it sends no signal for a change from before it watched.
        """
        team = self._run_state.team
        try:
            is_calm = leases.is_held(team.notifier_lock)
        except StorageError:
            is_calm = False
        if is_calm and self._supervisor is None and (found := supervisor_client.open_supervisor(team)) is not None:
            # Its end wakes this worker up.
            self._supervisor, pidfd = found
            asyncio.get_running_loop().add_reader(pidfd, self._on_supervisor_end, pidfd)
        is_calm = is_calm and self._supervisor is not None and supervisor_client.silent_for(self._supervisor) is None
        was_calm, self._was_calm = self._was_calm, is_calm
        return CALM_SWEEP_INTERVAL if was_calm and self._was_calm else SWEEP_INTERVAL

    def _on_supervisor_end(self, pidfd: int) -> None:
        asyncio.get_running_loop().remove_reader(pidfd)
        os.close(pidfd)
        self._supervisor, self._was_calm = None, False
        self._wake.set()

    def check_leave(self) -> None:
        """Return if this run is to go on.

        Raises:
            WorkerExit: This run was stopped, killed or terminated.
            LostLeaseError: The directory of this run was removed, moved or replaced.
        """
        files.check_before_writing()
        wanted = self._wanted()
        if self._terminated:
            raise WorkerExit("killed" if wanted == "killed" else "terminated", ExitCode.TERMINATED)
        if wanted == "stopped":
            raise WorkerExit("shutdown", 0)

    def _wanted(self) -> str:
        """Return the desired state of this run; `running` if the spec is missing or is for another run."""
        spec = self._spec.get()
        return spec.want if spec is not None and spec.run == self._run_state.spec.run else "running"

    @property
    def paused(self) -> bool:
        """Return True if the operator paused this agent."""
        return self._wanted() == "paused"

    async def accept_shutdown(self) -> None:
        """Approve a pending shutdown request, if there is one, as a worker without work does.

        Raises:
            WorkerExit: A request was approved, so the run ends.
        """
        team, name, now = self._run_state.team, self._run_state.name, self._run_state.now()
        request = requests.pending_shutdown(team, name, now)
        if request is None:
            return
        try:
            requests.respond(team, request.id, "approved", name, now)
        except BadDataError:
            # The request was closed by another process just now.
            return
        # Mark the mail about the request as read, so that it does not count as unread for ever. Leave it unread if work
        # lies before it that was not done.
        ident, loop = requests.ask_id(request), asyncio.get_running_loop()
        known, deadline = self._run_state.conversation.known, loop.time() + MAIL_TIMEOUT
        while (arrived := inbox.look(self._run_state, puts_off=False)).first is None:
            inbox.pick_up(self._run_state, arrived)
            if ident in known or loop.time() > deadline:
                break
            await asyncio.sleep(_MAIL_POLL)
        raise WorkerExit("shutdown", 0)

    def pending_interrupts(self) -> list[Message]:
        """Return the unread interrupts of the operator and the lead; those of other agents are ordinary mail."""
        run_state = self._run_state
        conversation = run_state.conversation
        if mailbox.size(run_state.team, run_state.name) < self.scanned:
            # Another program replaced the mailbox.
            self.scanned, self._interrupts = 0, []
        start = max(self.scanned, conversation.cursor)
        batch = mailbox.read(run_state.team, run_state.name, start, known=conversation.known, kind="interrupt")
        self.scanned = batch.offset
        found = [*self._interrupts, *batch.messages]
        heard = {OPERATOR, LEAD}
        if any(message.from_ not in heard for message in found):
            heard.add(roster.load(run_state.team).lead)
        self._interrupts = [
            message for message in found if message.id not in conversation.known and message.from_ in heard
        ]
        return self._interrupts

    def has_mail_of_operator(self) -> bool:
        """Return True if there is unread mail of the type `message` from the operator."""
        run_state = self._run_state
        conversation = run_state.conversation
        if mailbox.size(run_state.team, run_state.name) <= conversation.cursor:
            return False
        unread = mailbox.read(
            run_state.team, run_state.name, conversation.cursor, known=conversation.known, kind="message"
        )
        return any(message.from_ == OPERATOR for message in unread.messages)

    async def run_interruptibly(
        self, work: Coroutine[Any, Any, T], *, waiting: bool = False, interruptible: bool = True
    ) -> T:
        """Run `work` and return its result, but cancel it at once if this run is interrupted or ends.

        If `waiting`, also approve shutdown requests, as a worker without work does. If not `interruptible`, ignore
        interrupts: a paused worker reads no mail.

        Raises:
            Interrupted: The agent must read its mail.
            WorkerExit: The run ends.
        """
        task = asyncio.ensure_future(work)
        woken = asyncio.ensure_future(self.wait())
        try:
            while not task.done():
                self.check_leave()
                if waiting:
                    await self.accept_shutdown()
                try:
                    if interruptible and self.pending_interrupts():
                        raise Interrupted
                except StorageError:
                    # A reply that is under way is paid: it is not cancelled because the mail cannot be read for a
                    # moment.
                    if waiting:
                        raise
                await asyncio.wait({task, woken}, return_when=asyncio.FIRST_COMPLETED)
                if woken.done():
                    woken = asyncio.ensure_future(self.wait())
            return await task
        finally:
            for unfinished in (task, woken):
                unfinished.cancel()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await unfinished

    async def wait_for_decision(self, request: Request, doing: str) -> Request:
        """Wait until a request is decided or closed, and return it.

        Shutdown requests are approved meanwhile. After a decision, wait up to `MAIL_TIMEOUT` seconds more for the mail
        about the decision, so that the caller's tool result can mark that mail as read.

        Raises:
            Interrupted: The agent must read its mail. The caller must cancel the request.
            WorkerExit: The run ends. The request stays open until the run is finalized.
        """
        run_state, loop = self._run_state, asyncio.get_running_loop()
        run_state.show("waiting", doing, waiting_for=request.id)
        # A file that is damaged while the agent waits decides nothing.
        file = run_state.team.request(request.id).watch()

        async def closed() -> Request:
            while (current := file.get()) is None or current.status == "pending":
                await self.wait()
            # The mail about a decision must not be read later than what follows from it.
            ident, deadline = requests.response_id(current), loop.time() + MAIL_TIMEOUT
            known, cursor = run_state.conversation.known, run_state.conversation.cursor
            is_decided = current.status in ("approved", "rejected", "answered")
            while is_decided and ident not in known and loop.time() < deadline:
                arrived = mailbox.read(run_state.team, run_state.name, cursor).messages
                if any(each.id == ident for each in arrived):
                    break
                await asyncio.sleep(_MAIL_POLL)
            return current

        return await self.run_interruptibly(closed(), waiting=True)
