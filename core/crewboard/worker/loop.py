"""The life of a worker: take mail in, call the model, run its tools, answer, wait for more.

Every step can be the last before a SIGKILL; the next run goes on from the journal.
"""

import asyncio
from collections.abc import Mapping

from crewboard.errors import ExitCode
from crewboard.protocol import approvals
from crewboard.records import Intake, Reply, State
from crewboard.store import roster
from crewboard.worker import inbox
from crewboard.worker.assignments import Assignments
from crewboard.worker.interrupts import Interrupted, Interrupts, WorkerExit
from crewboard.worker.limits import Limits
from crewboard.worker.llm.blocks import CUT_OFF
from crewboard.worker.llm.context_window import ContextWindow
from crewboard.worker.llm.model import USUAL_WINDOW, Model, ModelError, TooLongError
from crewboard.worker.llm.prompt import PROJECT_FILES, system_prompt
from crewboard.worker.results import Results
from crewboard.worker.run_state import RunState
from crewboard.worker.tools.executor import ToolExecutor
from crewboard.worker.tools.file_client import FileToolClient
from crewboard.worker.tools.outcome import Outcome
from crewboard.worker.tools.registry import ToolRegistry

WINDOW_WITHIN = 3.0
"""Seconds that the first model call waits for the API to say how large the window is."""


class Loop:
    """One run of one agent."""

    def __init__(
        self,
        run_state: RunState,
        interrupts: Interrupts,
        model: Model,
        file_tools: FileToolClient,
        environment: Mapping[str, str],
    ) -> None:
        self._run_state = run_state
        self._interrupts = interrupts
        self._model = model
        self._file_tools = file_tools
        self._team = run_state.agent.team
        self._name = run_state.agent.name
        self._registry = ToolRegistry(run_state)
        self._context_window = ContextWindow(run_state, model)
        self._executor = ToolExecutor(run_state, interrupts, self._registry, file_tools, environment)
        self._results = Results(run_state)
        self._assignments = Assignments(run_state, self._results)
        self._limits = Limits(run_state, self._results)

    async def run(self) -> None:
        """Work until there is a reason to leave.

        Raises:
            Leave: Always, in the end; says why.
        """
        learning = asyncio.ensure_future(self._learn_window())
        conversation = self._run_state.conversation
        self._results.send_unsent()
        try:
            lost = self._assignments.come_back()
            if (reply := conversation.unfinished) is not None:
                self._finish(reply)
            if lost is not None:
                self._assignments.tell_lost(lost)
            while True:
                if conversation.assignment is None:
                    await self._rest()
                await asyncio.gather(self._know_window(learning), self._project())  # starts `hands` meanwhile
                await self._work()
        finally:
            learning.cancel()

    async def _learn_window(self) -> None:
        """Ask the API how much the model's window holds, beside the start."""
        self._run_state.context_limit = await self._model.window()

    async def _know_window(self, learning: asyncio.Future[None]) -> None:
        """Wait a while for the API's word on the window; until it comes, the window is the usual one."""
        try:
            await asyncio.wait_for(asyncio.shield(learning), WINDOW_WITHIN)
        except TimeoutError:
            self._run_state.context_limit = USUAL_WINDOW

    # ---------------------------------------------------------------------------------------------------- rest

    async def _rest(self) -> None:
        """Wait, idle, until something starts an assignment."""
        run_state = self._run_state
        shown = False
        while True:
            self._interrupts.check_leave()
            if not self._interrupts.paused:
                if self._assignments.look():
                    self._results.told_idle = False
                    return
                if run_state.spec.flags.once and run_state.conversation.succeeded:
                    raise WorkerExit("finished", 0)
            self._interrupts.accept_shutdown()
            shown = self._show_rest(shown=shown)
            self._run_state.repair_status()
            await self._interrupts.wait()

    def _show_rest(self, *, shown: bool) -> bool:
        """Show once that the agent rests, and tell whom it reports to."""
        state: State = "paused" if self._interrupts.paused else "idle"
        if not shown or self._run_state.status.state != state:
            self._run_state.show(state, "held by the operator" if state == "paused" else "")
        if state == "idle":
            self._results.tell_idle()
        return True

    # ---------------------------------------------------------------------------------------------------- work

    async def _work(self) -> None:
        """Carry an assignment to its answer."""
        conversation = self._run_state.conversation
        while conversation.assignment is not None:
            try:
                await self._executor.run_pending(self._context_window.largest_result)
                await self._hold_while_paused()
                self._take_in()
                if (reached := self._limits.check()) is not None:
                    self._results.fail(reached.words, ExitCode.LIMIT, budget=reached.budget)
                    return
                self._take_reply(await self._call())
            except Interrupted:
                self._executor.drop_pending()
            except ModelError as error:
                self._results.fail(str(error), error.code)

    async def _hold_while_paused(self) -> None:
        """Make no model call while the operator holds the agent."""
        if not self._interrupts.paused:
            return
        self._run_state.show("paused", "held by the operator")

        async def released() -> None:
            while self._interrupts.paused:
                await self._interrupts.wait()

        await self._interrupts.run_interruptibly(released(), waiting=True, interruptible=False)

    def _take_in(self) -> None:
        """Take in mail before a model call, and tell the model who asks it to leave."""
        self._interrupts.check_leave()
        run_state = self._run_state
        request = approvals.pending_shutdown(self._team, self._name, run_state.now())
        if request is None or request.id in run_state.conversation.shutdowns_told:
            inbox.take_in(run_state)
            return
        reason = str(request.payload.get("reason") or "no reason given")
        notice = f"{request.from_} asks you to shut down ({reason}). Agree or refuse with shutdown_response."
        inbox.take_in(run_state, notices=[notice], shutdowns=[request.id])

    async def _call(self) -> Reply:
        """Ask the model; what the API finds too long is made shorter and asked again."""
        system = system_prompt(self._name, self._run_state.spec, roster.load(self._team), await self._project())
        tools, window = self._registry.definitions(), self._context_window
        while True:
            try:
                await window.make_room(system, tools)
                messages = self._run_state.conversation.messages()
                reply = await self._model.reply(system, tools, messages, window.longest_reply)
            except TooLongError as refused:
                window.tighten(refused)
                continue
            window.learn(reply)
            return reply

    async def _project(self) -> str:
        """What the project says of itself; read by `hands`, like everything in the workspace."""
        for name in PROJECT_FILES:
            outcome = await self._file_tools.ask("read_text", {"path": name})
            if not outcome.is_error:
                return outcome.content
        return ""

    def _take_reply(self, reply: Reply) -> None:
        self._run_state.append(reply)
        self._run_state.clear_live()
        self._finish(reply)

    def _finish(self, reply: Reply) -> None:
        """Do what a reply that is journalled calls for, beside running its tools."""
        run_state, conversation = self._run_state, self._run_state.conversation
        if reply.stop_reason == "tool_use" and conversation.pending:
            return
        for block in list(conversation.pending):
            self._executor.result(block, Outcome("not run: the reply was cut off before its end", is_error=True))
        if reply.stop_reason in CUT_OFF:
            notice = "Your reply was cut off. Go on exactly where it ended; the parts are put together."
            run_state.append(Intake(ts=run_state.now(), cursor=conversation.cursor, notices=[notice]))
            return
        text = conversation.said
        if reply.stop_reason == "refusal":
            self._results.fail(f"the model stopped: refusal. {text}".strip(), ExitCode.FAILED)
            return
        self._results.answer(text if text.strip() else "(the model ended without a word)")
