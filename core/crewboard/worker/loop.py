"""The work of a run by calls of the model: take mail in, call the model, run its tools, answer.

Equal calls in a row are counted in `conversation.py`; `readmodel/states.py` decides when they show as `loop`.
"""

import asyncio
import contextlib
from collections.abc import Mapping

from crewboard import models
from crewboard.errors import ExitCode
from crewboard.protocol import requests
from crewboard.records.agents import HELD_REPEATS, TOLD_REPEATS
from crewboard.records.events import CUT_OFF, NOT_RUN, NOT_UNDERSTOOD, Opening, Reply, describe_stop
from crewboard.store import roster
from crewboard.web import with_sources
from crewboard.worker import inbox
from crewboard.worker.conversation import text_of
from crewboard.worker.interrupts import Interrupted, Interrupts
from crewboard.worker.life import Life
from crewboard.worker.llm.blocks import call_in_text
from crewboard.worker.llm.context_window import ContextWindow
from crewboard.worker.llm.model import Model
from crewboard.worker.llm.prompt import changed_texts, preface, surroundings, system_prompt
from crewboard.worker.llm.refusals import (
    DeferredToolsError,
    MaybeTooLongError,
    MediaRefusedError,
    ModelError,
    StaleThinkingError,
    TooLongError,
    UnknownModelError,
)
from crewboard.worker.run_state import RunState
from crewboard.worker.tools import skills
from crewboard.worker.tools.base import FileToolClient, Outcome
from crewboard.worker.tools.executor import ToolExecutor
from crewboard.worker.tools.files import read_project
from crewboard.worker.tools.mcp import FIND_TOOLS, McpServers
from crewboard.worker.tools.plans import take_released
from crewboard.worker.tools.registry import ToolRegistry, with_added

WINDOW_TIMEOUT = 10.0
"""Seconds that the first model call waits for the server to tell how large the window is."""

_CUT_IN_TEXT = "Your reply was cut off. Continue exactly where it ended; the parts are joined."
_CUT_IN_CALL = (
    "Your reply was cut off within a tool call, which was not run. Call it again with less in it: write a long file in "
    "parts, and change one with several small edits."
)
_CUT_IN_THOUGHT = (
    "Your reply was cut off before it had a text or a call. Think less, and take one small step at a time."
)

_MOST_CUT_OFFS = 3
"""Replies in a row that are cut off without progress before an assignment fails. Each is billed in full."""

_MOST_PARTS = 10
"""Replies that one text may have if each is cut off: some servers give that stop reason for every reply."""

_ENDLESS = (
    "{} replies in a row were parts of one text that did not end ({}); ask for less at once, or let replies be longer "
    "with `--max-reply`"
)

_STUCK = (
    "{} replies in a row were cut off without any progress: a reply may have {} tokens. Give smaller tasks, a lower "
    "effort, or a larger `--max-reply` where the model takes one"
)

_LOOPING = (
    "You made the same call {} times in a row, and it had the same outcome each time. Do something else: use what you "
    "know, try another way, or say what is missing."
)

_WRITTEN_CALL = "the model wrote a call of {} as text, and its server did not read it as one, so it was not run"

_SILENT = (
    "Your reply had no text and no tool call. Please continue: call the next tool, or if all is done, say what the "
    "result is."
)
"""What the agent is told once after a turn without a text or a call. Some models end a turn so, with work left."""


class Loop(Life):
    """One run of an agent that works by calls of the model, and not with an engine."""

    def __init__(
        self,
        run_state: RunState,
        interrupts: Interrupts,
        model: Model,
        file_tools: FileToolClient,
        environment: Mapping[str, str],
    ) -> None:
        super().__init__(run_state, interrupts, file_tools, is_priced=model.is_priced)
        self._model = model
        self._mcp = McpServers(run_state, file_tools, environment)
        self._registry = ToolRegistry(run_state, self._mcp)
        self._context_window = ContextWindow(run_state, model)
        self._executor = ToolExecutor(run_state, interrupts, self._registry, file_tools, environment, self._snapshots)
        self._skills_of: tuple[str, str, dict[str, str]] | None = None
        self._learning: asyncio.Task[None]
        """The task that asks the server for the window's size, from the beginning of the run on."""

    async def run(self) -> None:
        """Work until there is a reason to exit, and learn the size of the model's window meanwhile.

        Raises:
            WorkerExit: Always, in the end; it holds the reason.
            StorageError: Files could not be written for longer than the worker waits.
        """
        # No task group, which would put the reason to exit into a group of errors.
        self._learning = asyncio.create_task(self._model.learn_size())
        try:
            await super().run()
        finally:
            self._learning.cancel()
            await asyncio.gather(self._learning, return_exceptions=True)

    async def close(self) -> None:
        """End the MCP servers, the file-tool server and the background commands of this run."""
        await asyncio.gather(super().close(), self._mcp.close())

    async def _prepare(self) -> None:
        run_state = self._run_state
        # After an interrupt, MCP servers that run are used; the others are started with the next assignment.
        with contextlib.suppress(Interrupted):
            if notices := await self._interrupts.run_interruptibly(self._mcp.set_up()):
                run_state.take_in(notices=notices)
        await asyncio.gather(self._await_window(), read_project(self._run_state, self._file_tools), super()._prepare())

    async def _await_window(self) -> None:
        """Wait up to `WINDOW_TIMEOUT` for the window's size. Assume the usual size until the server tells it."""
        try:
            async with asyncio.timeout(WINDOW_TIMEOUT):
                await asyncio.shield(self._learning)
        except TimeoutError:
            self._model.settle_window()

    async def _work(self) -> None:
        """Work on the assignment in progress until it has ended, with an answer or an error."""
        conversation = self._run_state.conversation
        while conversation.assignment is not None:
            try:
                await self._executor.run_pending(self._context_window.max_result)
                await self._wait_while_paused()
                # Before mail enters: it would be shown as read by the model, which is not called.
                if self._has_reached_limit():
                    return
                is_closed = conversation.is_paused_turn or conversation.takes_only_results
                if is_closed and not self._interrupts.pending_interrupts():
                    # Mail would end the turn that the API goes on with.
                    self._interrupts.check_leave()
                else:
                    was_told = conversation.loop_was_told
                    self._take_in_mail()
                    if was_told:
                        await self._wait_while_looping()
                self._finish(await self._call())
            except Interrupted:
                await self._executor.drop_pending()
            except ModelError as error:
                model = self._run_state.spec.model if isinstance(error, UnknownModelError) else None
                self._results.fail(str(error), error.code, refused_by=model)

    async def _wait_while_looping(self) -> None:
        """Wait, without a model call, for mail that ends a loop of equal calls, if the agent is in one.

        The operator sees the loop as a need.

        Raises:
            Interrupted: The agent must read its mail.
            WorkerExit: The run ends.
        """
        run_state = self._run_state
        if run_state.conversation.repeats < HELD_REPEATS:
            return
        run_state.show("working", "waits for mail, because it repeats the same call")

        async def until_mail() -> None:
            while run_state.conversation.repeats >= HELD_REPEATS:
                await self._interrupts.wait()
                if not self._interrupts.paused:
                    inbox.take_in(run_state)

        await self._interrupts.run_interruptibly(until_mail(), waiting=True)

    def _take_in_mail(self) -> None:
        """Let new mail enter before a model call, and notices for the model.

        These are about a shutdown request, background commands that ended, and a loop of equal calls.

        Raises:
            WorkerExit: The run ends.
        """
        self._interrupts.check_leave()
        run_state = self._run_state
        ended = self._file_tools.ended_commands()
        notices, instructions, shutdowns = list(ended.values()), [], []
        request = requests.pending_shutdown(self._team, self._name, run_state.now())
        if request is not None and request.id not in run_state.conversation.shutdowns_told:
            instructions.append(f"{request.from_} asks you to shut down. Answer with shutdown_response.")
            if reason := str(request.payload.get("reason") or ""):
                notices.append(f"The reason that {request.from_} gives for a shutdown: {reason}")
            shutdowns.append(request.id)
        is_looping = run_state.conversation.repeats >= TOLD_REPEATS and not run_state.conversation.loop_was_told
        if is_looping:
            instructions.append(_LOOPING.format(run_state.conversation.repeats))
        inbox.take_in(run_state, notices=notices, instructions=instructions, shutdowns=shutdowns, looping=is_looping)
        take_released(run_state)
        for handle in ended:
            self._file_tools.background[handle].end_was_told = True

    async def _call(self) -> Reply:
        """Call the model, commit its reply and return it.

        If the server refuses the request because of something that can be changed, change it and call again.

        Raises:
            ModelError: The call failed, or nothing more can be changed.
            Interrupted: The agent must read its mail.
            WorkerExit: The run ends.
        """
        conversation, window, is_repaired = self._run_state.conversation, self._context_window, False
        while True:
            opening = await self._bring_up_to_date()
            try:
                await window.make_room()
                if conversation.opening is None:
                    continue
                messages = self._run_state.request_messages()
                reply = await self._model.reply(
                    opening.system, opening.tools, messages, window.max_reply, may_exceed=window.may_exceed
                )
            except (TooLongError, MaybeTooLongError, MediaRefusedError) as refused:
                window.make_fit(refused)
                continue
            except StaleThinkingError:
                if is_repaired:
                    raise
                is_repaired = True
                self._begin_anew(opening)
                continue
            except DeferredToolsError:
                if not self._model.defers_tools:
                    raise
                # All tools are shown from here on.
                self._model.defers_tools = False
                continue
            window.learn(reply)
            await self._model.ask_again()
            self._run_state.append(reply)
            if self._model.thinking_was_dropped and (last := conversation.opening) is not None:
                # Thinking behind what was dropped would be dropped each time, and read and paid for anew.
                self._begin_anew(last)
            self._run_state.clear_live()
            return reply

    async def _bring_up_to_date(self) -> Opening:
        """Return the opening of the next request: the last one if it can stay, else a new one, which is journalled.

        A text of the preface that has changed is told at the end of the conversation. A tool that the agent may not
        use any more stays in the opening, and is refused when it is called. A new opening is needed mainly if the
        system prompt changes, if a tool is new and not loaded on demand, or if a tool of the API must go. Then earlier
        thinking is not sent any more.
        """
        run_state, conversation = self._run_state, self._run_state.conversation
        opening, spec = conversation.opening, run_state.spec
        if opening is not None and (conversation.is_paused_turn or conversation.takes_only_results):
            return opening
        await self._mcp.refresh()
        where = surroundings(spec, run_state.workspace, run_state.now())
        # Tools of MCP servers are loaded on demand if they are many, or were so far.
        were = opening is not None and any(tool["name"] == FIND_TOOLS for tool in opening.tools)
        on_demand = self._model.defers_tools and (were or self._registry.has_many_of_servers(run_state.window))
        project = await read_project(self._run_state, self._file_tools)
        # As this assignment began: the list of skills, and the texts of those that the agent's type names.
        ident = conversation.assignment.id if conversation.assignment is not None else ""
        if self._skills_of is None or self._skills_of[0] != ident:
            names, root = spec.definition.skills if spec.definition is not None else [], run_state.team.root
            listed = await skills.listing(self._file_tools, root)
            loaded = {name: await skills.load_text(self._file_tools, root, name) for name in names}
            self._skills_of = ident, listed, loaded
        texts = preface(
            spec, where, *project, conversation.key, *self._skills_of[1:],
            self._mcp.index() if on_demand else "",
        )  # fmt: skip
        wanted = Opening(
            ts=run_state.now(), system=system_prompt(self._name, spec, roster.load(self._team)),
            tools=self._registry.definitions(on_demand=on_demand), preface=texts, instructs=self._model.hears_system,
            falls_back=self._model.falls_back,
        )  # fmt: skip
        if opening is None or opening.system != wanted.system:
            return self._begin_anew(wanted)
        if opening.instructs > wanted.instructs or opening.falls_back > wanted.falls_back:
            # The server is another one.
            return self._begin_anew(wanted)
        if (tools := with_added(opening.tools, wanted.tools)) is None:
            return self._begin_anew(wanted)
        if added := tools[len(opening.tools) :]:
            # A tool that was found, went and is back would be referred to again, before thinking that stood behind a
            # text in the place of the reference.
            if not conversation.told_tools.isdisjoint(tool["name"] for tool in added):
                return self._begin_anew(wanted)
            opening = opening.replace(ts=run_state.now(), tools=tools, adds=True)
            run_state.append(opening)
        if changed := changed_texts(conversation.preface, texts):
            notices = [
                f"{what[:1].upper()}{what[1:]} has changed; this is the new text, which replaces the one before."
                if text
                else f"{what[:1].upper()}{what[1:]} is gone, and applies no longer."
                for what, text in changed.items()
            ]
            run_state.take_in(notices=notices, updates=changed)
        return opening

    def _begin_anew(self, opening: Opening) -> Opening:
        """Journal and return an opening for all requests from here on, in which earlier thinking is not sent."""
        self._run_state.append(opening.replace(ts=self._run_state.now(), adds=False))
        return opening

    def _finish(self, reply: Reply) -> None:
        """Do what a committed reply requires, except running its tools: answer, fail, or tell the model to continue."""
        conversation = self._run_state.conversation
        if conversation.pending and reply.stop_reason not in NOT_RUN:
            return
        assignment = conversation.assignment
        in_call = bool(conversation.pending)
        for block in list(conversation.pending):
            self._executor.result(block, Outcome("not run: the reply was cut off", is_error=True))
        if reply.stop_reason in CUT_OFF and conversation.parts >= _MOST_PARTS:
            self._results.fail(_ENDLESS.format(_MOST_PARTS, reply.stop_reason), ExitCode.FAILED)
            return
        if conversation.is_paused_turn:
            return
        if reply.stop_reason in CUT_OFF:
            if assignment is not None and assignment.cut_offs >= _MOST_CUT_OFFS:
                self._results.fail(_STUCK.format(_MOST_CUT_OFFS, self._context_window.max_reply), ExitCode.FAILED)
            else:
                self._run_state.tell(
                    _CUT_IN_CALL if in_call else _CUT_IN_TEXT if text_of(reply).strip() else _CUT_IN_THOUGHT
                )
            return
        if conversation.is_silent and assignment is not None and assignment.silent == 1:
            self._run_state.tell(_SILENT)
            return
        text = conversation.said
        if reply.stop_reason == "refusal":
            error = f"{describe_stop(reply).rstrip('.')}. {text}".strip()
            self._results.fail(error, ExitCode.FAILED, refused_by=self._run_state.spec.model)
            return
        if self._model.is_api or (name := call_in_text(text, self._registry.definitions())) is None:
            why = describe_stop(reply)
            silent = f"(the model ended its turn without text{f'; it {why}' if why else ''})"
            understood = (reply.stop_details or {}).get("explanation") != NOT_UNDERSTOOD
            self._results.answer(
                with_sources(text, self._run_state.conversation.sources) if text.strip() else silent,
                ExitCode.DONE if understood else ExitCode.FAILED,
            )
        else:
            self._results.fail(models.with_remedy(_WRITTEN_CALL.format(name)), ExitCode.FAILED)
