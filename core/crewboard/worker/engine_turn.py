"""A turn of an engine: journal its updates, decide its requests, run our tools for it, send mail into the turn.

A request of an engine for permission ends when it is answered, and also when the engine withdraws it, ends the call or
the turn, or ends itself. *Our* tools are those of the MCP server that crewboard gives to an engine: tools of the team
and, for an engine without tools of its own, the tools in `WORK_TOOLS`.
"""

import asyncio
import secrets
import sys
from collections.abc import Coroutine
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from crewboard import env
from crewboard.errors import UsageError
from crewboard.protocol import requests
from crewboard.records.agents import Tokens
from crewboard.records.events import Offered, Reply, Taken, ToolResult, ToolStart, describe_call
from crewboard.records.requests import Request
from crewboard.untrusted import elide_middle, undelimit_data, without_surrogates
from crewboard.worker import inbox
from crewboard.worker.acp import OVER, Ask, Call, Ended, Engine, EngineGoneError, Filled, Line, Said, Steps, Update
from crewboard.worker.engine_process import EngineProcess
from crewboard.worker.snapshots import Snapshots
from crewboard.worker.team_tools import SERVER, WORK_TOOLS, TeamCall, as_ours, is_ours, offered_to
from crewboard.worker.team_tools import run as run_team_tool
from crewboard.worker.tools.base import Context, Outcome
from crewboard.worker.tools.executor import ToolExecutor
from crewboard.worker.tools.permissions import answer_of_rules, ask_for_engine
from crewboard.worker.tools.plans import (
    WAITS,
    ask_for_plan,
    asked_plan,
    end_lent_network,
    is_gate_closed,
    plan_outcome,
    request_approval,
    submit_plan,
)
from crewboard.worker.tools.registry import TOOLS, ToolRegistry

T = TypeVar("T")

CANCEL_TIMEOUT = 10.0
"""Seconds that an engine has to end its turn when it is asked to, before its process is ended."""

SILENCE_TIMEOUT = 300.0
"""Seconds after which an agent counts as stuck if its engine tells nothing: an engine may think for long, and retries
calls of its API by itself.

`CREWBOARD_PROGRESS_TIMEOUT` overrides it.
"""

CALL_TIMEOUT = 660.0
"""`SILENCE_TIMEOUT` while a call of a tool is open. The longest command of Claude Code ends after 600 seconds."""

_SHOWN_FOR = 0.1
"""Share of these timeouts for which a status that is still right is not written again."""

_MOST_OUTPUT = 100_000
"""Characters of the output of an engine's tool that the journal keeps."""

_PATIENCE_LEFT = 10.0
"""Seconds before an engine would give up waiting for a call of a tool at which it is told to call it again."""

_PLAN_FOLLOWS = 5.0
"""Seconds within which the text of a plan must follow the request for its approval."""

LATER = "This is not over yet. Call it again with the same input, which goes on waiting."

_TOO_LONG = "This took longer than you wait for a call, so its outcome is unknown. Check before you call it again."

UNKNOWN_OUTCOME = "interrupted, outcome unknown: the engine ended while this ran"

_NOT_RUN = "not run: interrupted before it was decided"

_DECIDED = ("approved", "rejected")

_NO_PLAN = "You asked for approval of your plan without a text of it. Ask again, with the whole plan as its text."
_REFUSED = "{} was not permitted: {}. Do not try to do it in another way."
_NO_TOOLS = "this engine works with the tools of the MCP server {} alone"
_SUBMITTED = "The plan that you submitted:\n{}\n\n{}"


class RestartError(Exception):
    """The turn must end now, and the engine must start again, because it gets other rights or a decision it missed."""


@dataclass(frozen=True)
class CutOff:
    """A call of one of our tools whose result the engine may not have. `result` is None if the outcome is unknown."""

    id: str
    name: str
    input: dict[str, Any]
    result: Outcome | None


class CallLog:
    """The texts and calls of an engine, journalled in order, and the executor of its calls of `WORK_TOOLS`."""

    def __init__(self, context: Context, process: EngineProcess, snapshots: Snapshots) -> None:
        self._interrupts = context.interrupts
        self._run_state = context.run_state
        self._process = process
        run_state, file_tools = context.run_state, context.file_tools
        self._executor = ToolExecutor(
            run_state, context.interrupts, ToolRegistry(run_state), file_tools, context.environment, snapshots
        )
        self._running: TeamCall | None = None
        self._began: dict[str, float] = {}
        self._blocks: list[dict[str, str]] = []
        """The blocks of text that the engine told since the last journalled reply."""
        self._message = ("", "")
        self.cut_off: list[CutOff] = []
        """The calls that a turn may repeat, because the engine may not have their results."""

    def add(self, kind: str, message: str, text: str) -> None:
        """Add a piece of text, of the kind `text` or `thought`.

        Pieces in a row of one message, by the engine's id `message`, become one block.
        """
        block = "text" if kind == "text" else "thinking"
        if self._blocks and message and (kind, message) == self._message:
            self._blocks[-1][block] += text
        else:
            self._blocks.append({"type": block, block: text})
        self._message = kind, message

    def take_blocks(self) -> list[dict[str, str]]:
        """Return the blocks of text that are not journalled yet, and forget them: the caller journals them."""
        blocks, self._blocks = self._blocks, []
        return blocks

    def ask(self, ident: str, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Journal a call as a reply, after the texts before it, and return its block of the type `tool_use`."""
        run_state = self._run_state
        block = {"type": "tool_use", "id": ident, "name": name, "input": arguments}
        run_state.append(
            Reply(ts=run_state.now(), content=[*self.take_blocks(), block], stop_reason="tool_use", usage=Tokens())
        )
        run_state.clear_live()
        return block

    async def run(self, ident: str, call: TeamCall, turn: "asyncio.Future[Any]") -> Outcome:
        """Run a call of one of `WORK_TOOLS`, as for an agent on the model, and return its outcome.

        The call is answered with the outcome. If the `turn` ends first, the call is ended and its outcome is an error.

        Raises:
            Interrupted: The agent must read its mail.
            WorkerExit: The run ends.
        """
        self._running = call
        running = await _run_until(self._executor.run_call(self.ask(ident, call.name, call.input)), turn)
        if running.cancelled():
            return (await self.drop_running())[-1]
        outcome = running.result()
        self._running = None
        call.answer(outcome)
        return outcome

    async def drop_running(self) -> list[Outcome]:
        """Give each call of `WORK_TOOLS` without a result an error, with what its command printed.

        Return these outcomes. The call that runs is answered too, as an engine may end its turn only then. Calls of
        tools of the team are left to `close_open`: they may have been decided meanwhile.
        """
        dropped = await self._executor.drop_pending(WORK_TOOLS)
        running, self._running = self._running, None
        if running is not None and dropped:
            running.answer(dropped[-1])
        return dropped

    def begin(self, call: Call) -> None:
        """Journal a call that begins, and show it in the status."""
        run_state, (name, arguments) = self._run_state, as_ours(call, self._run_state.workspace)
        self._began[call.id] = run_state.now()
        self.ask(call.id, name, arguments)
        writes = name in ("write_file", "edit_file") and "path" in arguments
        run_state.append(
            ToolStart(
                ts=run_state.now(), tool_use_id=call.id, name=name, input=arguments,
                file=str(arguments["path"]) if writes else None,
            )
        )  # fmt: skip
        run_state.show_tool(describe_call(name, arguments), CALL_TIMEOUT)

    def end(self, ident: str, outcome: Outcome) -> None:
        """Journal the outcome of the call with the id `ident`, and how many seconds the call took."""
        run_state, began = self._run_state, self._began.pop(ident, None)
        start = run_state.conversation.started.get(ident)
        run_state.append(
            ToolResult(
                ts=run_state.now(), tool_use_id=ident, name=start.name if start is not None else "tool",
                content=elide_middle(without_surrogates(outcome.content), _MOST_OUTPUT), is_error=outcome.is_error,
                seconds=None if began is None else round(run_state.now() - began, 3), consumed=list(outcome.consumed),
            )
        )  # fmt: skip

    def close_open(self, why: str = UNKNOWN_OUTCOME) -> None:
        """Journal a result for each call without one: the decision or answer that came, else an error.

        `why` is the error of a call that had begun.
        """
        run_state, conversation = self._run_state, self._run_state.conversation
        waiting = {block["id"]: block["name"] for block in conversation.pending}
        waiting |= {ident: start.name for ident, start in conversation.started.items()}
        for ident, name in waiting.items():
            began = ident in conversation.started
            request = asked_plan(run_state) if name == "submit_plan" else None
            if name == "ask_operator":
                request = requests.load(run_state.team, requests.question_id(run_state.name, ident))
            if request is not None and request.status in _DECIDED:
                self.settle_plan(ident, request)
            elif request is not None and request.status == "answered":
                run_state.tell(f"You asked the operator: {request.payload.get('question')}\n{request.feedback}")
                self.end(ident, Outcome(f"the operator answers: {request.feedback}"))
            else:
                self.end(ident, Outcome(why if began else _NOT_RUN, is_error=True))

    def find_cut_off(self, heard_of: set[str]) -> None:
        """Set `cut_off` to those calls of our tools since the last whole turn that the engine may repeat.

        `heard_of` has the engine's ids of the calls that ended well in its session; these are left out, unless their
        result was `LATER`. Also left out are calls that only read, that never began or submit a plan, and calls of
        `WORK_TOOLS` that failed or may be run twice: if repeated, they are decided and run as new ones.
        """
        found: list[CutOff] = []
        unfinished: list[CutOff] = []
        conversation, offered = self._run_state.conversation, offered_to(self._run_state.spec)
        for call, result in conversation.unsettled_calls():
            tool = TOOLS.get(call["name"]) if call["name"] in offered and call["name"] != "submit_plan" else None
            never_began = result is None and call["id"] not in conversation.started
            if tool is None or tool.reads or never_began:
                continue
            # Called again because it was not over, it is the same call, also if that was heard of.
            again = next(
                (each for each in unfinished if (each.name, each.input) == (call["name"], call["input"])), None
            )
            if again is not None:
                unfinished.remove(again)
            ident = again.id if again is not None else call["id"]
            said = undelimit_data(str(result["content"])) if result is not None else UNKNOWN_OUTCOME
            if said.startswith(LATER):
                unfinished.append(CutOff(ident, call["name"], call["input"], None))
                continue
            if call["id"] in heard_of:
                continue
            is_known = result is not None and not said.startswith(UNKNOWN_OUTCOME)
            known = Outcome(said, bool(result.get("is_error"))) if result is not None and is_known else None
            if call["name"] in WORK_TOOLS and (tool.repeatable if known is None else known.is_error):
                continue
            found.append(CutOff(ident, call["name"], call["input"], known))
        self.cut_off = found + unfinished

    def withdraw(self) -> None:
        """Cancel the request for whose decision the agent waits, if there is one."""
        run_state = self._run_state
        waited_for = run_state.status.waiting_for
        if waited_for is not None:
            requests.close(run_state.team, waited_for, "cancelled", run_state.name, run_state.now())

    def clear(self) -> None:
        """Forget all that is not journalled, after the engine has ended: texts, the running call, start times."""
        self._running = None
        self._blocks, self._message = [], ("", "")
        self._began.clear()

    async def settle_open_plan(self) -> None:
        """Wait for the decision about a submitted plan for which no engine waits any more, and settle it.

        Do nothing without such a plan.

        Raises:
            Interrupted: The agent must read its mail.
            WorkerExit: The run ends.
        """
        started = self._run_state.conversation.started.items()
        ident = next((each for each, start in started if start.name == "submit_plan"), None)
        request = asked_plan(self._run_state) if ident is not None else None
        if ident is None or request is None:
            return
        if request.status == "pending":
            request = await self._interrupts.wait_for_decision(request, WAITS)
        if request.status in _DECIDED:
            # Before the engine starts, because its rights depend on it.
            self.settle_plan(ident, request)

    def settle_plan(self, ident: str, decided: Request) -> None:
        """Open or close the plan gate as `decided` says, and journal what the engine is told of it.

        `ident` is the id of the call that submitted the plan.
        """
        self.tell_decision(ident, decided, plan_outcome(self._run_state, decided))

    def tell_decision(self, ident: str, decided: Request, outcome: Outcome) -> None:
        """Journal a decision about a plan: a notice for the next prompt, and the result of call `ident`.

        For an engine that cannot load a session again, the notice also quotes the plan; an edited plan is in `outcome`
        already.
        """
        # A new session knows nothing of the plan.
        is_told = self._process.known.loads or decided.edited is not None
        self._run_state.tell(outcome.content if is_told else _SUBMITTED.format(decided.submitted, outcome.content))
        self.end(ident, outcome)


class Turn:
    """One turn of an engine, from its prompt on."""

    def __init__(self, engine: Engine, process: EngineProcess, context: Context, log: CallLog, who: str) -> None:
        """Send the texts that the engine does not have yet. `who` is put before them; it introduces a new session."""
        self._engine = engine
        self._process = process
        self._known = process.known
        self._context = context
        self._interrupts = context.interrupts
        self._run_state = run_state = context.run_state
        self._log = log
        self._silence = env.seconds(env.PROGRESS_TIMEOUT, SILENCE_TIMEOUT)
        self._team_calls: dict[str, tuple[TeamCall, Outcome]] = {}
        """The calls of our tools in this turn with their outcomes, by the engine's id of the call."""
        self._calls: dict[str, Call] = {}
        self._begun: set[str] = set()
        """The ids of the calls that are journalled."""
        self._answered: set[str] = set()
        """The ids of the calls that were permitted or refused."""
        self._asks_without_plan: dict[str, Ask] = {}
        """The requests to leave the plan mode whose plan was not told yet, by the ids of their calls."""
        self._steering: asyncio.Future[bool] | None = None
        """The engine's answer to the texts in `_steered`, True if it took them; None if no texts are on their way."""
        self._steered: list[str] = []
        """The ids of the texts that were sent into the turn last."""
        self.resets: float | None = None
        """The end of the usage limit that the engine reached, in epoch seconds; None if it told none."""
        self.failure = ""
        """The last remark of the engine itself, which is an error if no text of its model follows; else empty."""
        texts = run_state.conversation.untaken
        run_state.append(Offered(ts=run_state.now(), texts=list(texts)))
        self.sent = list(texts)
        """The ids of the texts in the prompt, until the engine is known to have them; then empty."""
        self._show_work()
        self.prompt = asyncio.ensure_future(engine.prompt("\n\n".join([*filter(None, [who]), *texts.values()])))

    @property
    def owed(self) -> list["asyncio.Future[Any]"]:
        """Return the futures of the engine's answers in this turn: to the prompt, and to a message sent into it."""
        return [each for each in (self.prompt, self._steering) if each is not None]

    async def listen(self) -> Ended:
        """Handle what the engine tells and asks until its turn ends, and return the end. Send mail into the turn.

        Raises:
            EngineError: The engine ended the turn with an error.
            EngineGoneError: The engine has ended, or does not say whether it took a message.
            RestartError: The engine has to start again.
            Interrupted: The agent must read its mail.
            WorkerExit: The run ends.
        """
        prompt = self.prompt
        # One that lasts until it is woken: each new one would put off the next look.
        woken: asyncio.Future[Any] = asyncio.ensure_future(self._interrupts.wait())
        # Mail may wait, or came when none could be sent.
        may_wait = True
        try:
            while True:
                heard = await self._next_news(woken, *self.owed)
                if woken.done():
                    woken, may_wait = asyncio.ensure_future(self._interrupts.wait()), True
                if heard is not None:
                    await self._hear(heard)
                elif prompt.done():
                    break
                elif self._steering is not None and self._steering.done():
                    self._settle_steering()
                    may_wait = True
                if may_wait:
                    may_wait = not self._steer()
        finally:
            woken.cancel()
        try:
            await self.hear_out(CANCEL_TIMEOUT)
        except TimeoutError:
            raise EngineGoneError(
                f"it did not say within {CANCEL_TIMEOUT:g} s of its turn if it took a message"
            ) from None
        return prompt.result()

    async def hear_out(self, seconds: float) -> None:
        """Journal what the engine tells, and refuse what it asks, until all its answers are there.

        These are the answers to the prompt and to a message that was sent into the turn.

        Raises:
            TimeoutError: The engine did not answer within `seconds`.
        """
        engine = self._engine
        async with asyncio.timeout(seconds):
            while owed := [each for each in self.owed if not each.done()]:
                if (heard := await self._next_news(*owed)) is not None:
                    self._note(heard)
        while not engine.news.empty():
            self._note(engine.news.get_nowait())
        self._settle_steering()

    async def _next_news(self, *others: "asyncio.Future[Any]") -> Update | Ask | TeamCall | None:
        """Return what the engine tells or asks next; None if one of the `others` is done first."""
        news: asyncio.Future[Any] = asyncio.ensure_future(self._engine.news.get())
        try:
            await asyncio.wait([news, *others], return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            if news.done():
                self._note(news.result())
            raise
        finally:
            news.cancel()
        return news.result() if news.done() else None

    def end(self, ended: Ended, *, by_us: bool = False) -> Reply:
        """Journal the end of the turn with its usage, and return its last reply.

        `by_us` is True if the worker cancelled the turn, so that the API may have cut replies off.
        """
        run_state = self._run_state
        self._note_taken()
        self._log.close_open("the engine did not tell the result")
        # A turn that was cancelled leaves replies that were cut off.
        used = self._process.take_used(ended.tokens, unfinished=by_us)
        run_state.note_engine_model(used.model)
        reply = Reply(
            ts=run_state.now(), content=list(self._log.take_blocks()), stop_reason=ended.reason, usage=used.counted,
            model=used.model, cost_usd=used.cost_usd, context_used=self._process.filled.used or None,
        )  # fmt: skip
        # What is called from now on is meant as a new call.
        self._log.cut_off.clear()
        run_state.append(reply)
        run_state.clear_live()
        return reply

    # Mail into the turn.

    def _steer(self) -> bool:
        """Send new mail into the turn, if there is any. Return False if the engine takes none now.

        It takes none before it has the prompt, and while a call waits for permission or may soon do so: Claude Code
        withdraws its request when a message comes.
        """
        run_state, engine = self._run_state, self._engine
        may_ask = any(
            call.status in ("", "pending") and ident not in self._answered for ident, call in self._calls.items()
        )
        if not engine.steers or not engine.news.empty() or self.sent or engine.asks or may_ask:
            return False
        # Of two on their way it would not be known what the engine was told first. And an interrupt ends the turn.
        if self._steering is not None or self._interrupts.paused or self._interrupts.pending_interrupts():
            return True
        # Behind what was searched may be an interrupt.
        if inbox.take_in(run_state, until=self._interrupts.scanned):
            texts = run_state.conversation.untaken
            run_state.append(Offered(ts=run_state.now(), texts=list(texts)))
            self._steered = list(texts)
            # Not awaited: the engine may ask for something before it answers.
            self._steering = asyncio.ensure_future(engine.steer("\n\n".join(texts.values())))
        return True

    def _settle_steering(self) -> None:
        """Journal that the engine took what was sent into its turn, if it did; else the next prompt sends it again."""
        run_state = self._run_state
        steering, self._steering = self._steering, None
        if steering is not None and steering.exception() is None and steering.result():
            run_state.append(Taken(ts=run_state.now(), texts=self._steered))

    # What the engine tells.

    def _note(self, heard: Update | Ask | TeamCall) -> None:
        """Journal what the engine tells while its turn ends. Refuse its requests, and run none of its calls."""
        if isinstance(heard, Ask):
            self._engine.answer(heard, allow=False)
        elif isinstance(heard, TeamCall):
            heard.answer(Outcome("not run: the turn was interrupted", is_error=True))
        else:
            self._take(heard)

    async def _hear(self, heard: Update | Ask | TeamCall) -> None:
        if isinstance(heard, TeamCall):
            await self._run_tool(heard)
            return
        engine, asks_without_plan, calls = self._engine, self._asks_without_plan, self._calls
        if not isinstance(heard, Ask):
            self._take(heard)
            if isinstance(heard, Call) and heard.id in asks_without_plan and (plan := calls[heard.id].plan) is not None:
                ask = asks_without_plan.pop(heard.id)
                if engine.waits_for(ask):
                    await self._decide_plan(ask, plan)
            return
        if not engine.waits_for(heard):
            return
        whole = self._whole(heard)
        plan = whole.plan
        if not self._run_state.spec.has_own_tools and not self._is_ours(whole):
            # A tool of its own would run beside what decides about ours.
            self._answer(heard, allow=False)
            doing = describe_call(*as_ours(whole, self._run_state.workspace))
            self._run_state.tell(_REFUSED.format(doing, _NO_TOOLS.format(SERVER)))
        elif self._is_ours(whole):
            # It is our own worker that runs it, and it checks what the agent may do.
            self._answer(heard, allow=True)
        elif plan is not None:
            await self._decide_plan(heard, plan)
        elif whole.kind == "switch_mode" and asks_without_plan.pop(whole.id, None) is None:
            # Claude Code asks beside its stream of updates, so a plan may come behind its question.
            asks_without_plan[whole.id] = heard
            asyncio.get_running_loop().call_later(_PLAN_FOLLOWS, engine.news.put_nowait, heard)
        elif whole.kind == "switch_mode" and is_gate_closed(self._run_state):
            # No one can approve a plan that is not there.
            self._answer(heard, allow=False)
            self._run_state.tell(_NO_PLAN)
        else:
            await self._decide(heard)

    def _whole(self, ask: Ask) -> Call:
        known = self._calls.get(ask.call.id)
        return known.merged(ask.call) if known is not None else ask.call

    def _answer(self, ask: Ask, *, allow: bool) -> bool:
        self._answered.add(ask.call.id)
        return self._engine.answer(ask, allow=allow)

    def _is_ours(self, call: Call) -> bool:
        """Return True if a call is certainly one of our tools: by its name, and no other server may have our name."""
        return self._process.declaration is None and is_ours(call.name, own_tools=self._run_state.spec.has_own_tools)

    def _show_work(self) -> None:
        """Show in the status that the engine is at work, unless that was written just now."""
        run_state, status = self._run_state, self._run_state.status
        calls = run_state.conversation.started
        limit, doing = (CALL_TIMEOUT, status.doing) if calls else (self._silence, "works")
        left = (status.deadline or 0) - run_state.now()
        if (status.state, status.doing) != ("working", doing) or not (1 - _SHOWN_FOR) * limit < left <= limit:
            run_state.show("working", doing, timeout=limit)

    def _take(self, update: Update) -> None:
        run_state = self._run_state
        match update:
            case Said(kind="text", message="") if self._known.names_texts:
                if not update.text.startswith(self._known.remarks):
                    self.failure = without_surrogates(update.text).strip()
                self._log_note(update.text)
            case Said(kind="text" | "thought"):
                self._note_taken()
                self.failure = ""
                self._log.add(update.kind, update.message, without_surrogates(update.text))
                if update.kind == "text":
                    run_state.stream(update.text)
            case Call():
                self._note_taken()
                self._take_call(update)
            case Steps():
                ident, items = f"steps-{secrets.token_hex(6)}", update.items
                run_state.append(ToolStart(ts=run_state.now(), tool_use_id=ident, name="todo", input={"items": items}))
                done = sum(each["status"] == "completed" for each in items)
                self._log.end(ident, Outcome(f"{done} of {len(items)} done"))
            case Filled():
                self._process.note_filled(update)
                self.resets = update.resets or self.resets
                run_state.set_window(update.size)
            case Said(kind="note") | Line():
                self._log_note(update.text)
        self._show_work()

    def _log_note(self, text: str) -> None:
        # In the preview it would stand as if the agent said it.
        sys.stderr.write(f"{self._run_state.name}: {self._known.title}: {text.strip()}\n")

    def _note_taken(self) -> None:
        """Journal that the engine has the texts of the prompt, at the first sign of an answer to it."""
        if self.sent:
            self._run_state.append(Taken(ts=self._run_state.now(), texts=self.sent))
            self.sent = []

    def _take_call(self, update: Call) -> None:
        known = self._calls.get(update.id)
        call = self._calls[update.id] = known.merged(update) if known is not None else update
        is_over = call.status in OVER
        if self._is_ours(call):
            # It is journalled where it is run.
            return
        if update.printed:
            self._run_state.stream(update.printed)
        # A call is journalled once its input is known: the engine may tell it in pieces. One that leaves the plan mode
        # is journalled with the request for approval.
        is_whole = bool(call.input) and call.kind != "switch_mode"
        if call.kind == "edit":
            is_whole = call.diff is not None or not {"content", "new_string"}.isdisjoint(call.input)
        if update.id not in self._begun and (is_whole or is_over or call.status == "in_progress"):
            self._begin(call)
        if is_over and update.id in self._run_state.conversation.started:
            self._log.end(call.id, Outcome(call.output or call.printed, is_error=call.status == "failed"))

    def _begin(self, call: Call) -> None:
        self._begun.add(call.id)
        self._log.begin(call)

    # Tools of the team.

    async def _run_tool(self, call: TeamCall) -> None:
        """Run one of our tools that the engine calls, answer the call and journal it.

        A call is not run again if it comes twice with the same id, or repeats one in `CallLog.cut_off`.

        Raises:
            RestartError: The engine has to start again.
            Interrupted: The agent must read its mail.
            WorkerExit: The run ends.
        """
        self._note_taken()
        if not call.name:
            names = ", ".join(offered_to(self._run_state.spec))
            call.answer(Outcome(f"the team's tools are {names}", is_error=True))
            return
        if call.name == "spawn_agent":
            # It may stop waiting at any time, and hears nothing else meanwhile: the result reaches it as mail.
            call = replace(call, input={**call.input, "background": True})
        # An engine may count its ids anew for each reply.
        before, result = self._team_calls.get(call.id, (call, None))
        if result is not None and (before.name, before.input) == (call.name, call.input):
            call.answer(result)
            return
        again = next((each for each in self._log.cut_off if (each.name, each.input) == (call.name, call.input)), None)
        if again is not None:
            self._log.cut_off.remove(again)
        ident = call.id
        if ident in self._run_state.conversation.call_ids:
            ident = f"{ident}-{secrets.token_hex(6)}"
        if call.name in WORK_TOOLS and again is None:
            self._begun.add(ident)
            outcome = await self._log.run(ident, call, self.prompt)
        else:
            self._begin(Call(ident, name=call.name, kind=SERVER, input=call.input))
            outcome = await self._run_of_team(call, ident, again)
            self._log.end(ident, outcome)
            call.answer(outcome)
        self._team_calls[call.id] = call, outcome
        self._show_work()

    async def _run_of_team(self, call: TeamCall, ident: str, again: CutOff | None) -> Outcome:
        """Run a tool of the team and return its outcome.

        If the call repeats `again`, which was cut off, return that one's result; if it is unknown, run the tool only
        if that does no harm. If the engine would not wait long enough, return that it is to call again, or to check.

        Raises:
            RestartError: The engine has to start again.
            Interrupted: The agent must read its mail.
            WorkerExit: The run ends.
        """
        tool = TOOLS[call.name]
        if again is not None and again.result is not None:
            return again.result
        if again is not None and not (tool.waits or tool.repeatable):
            # A second task or letter would be made.
            return Outcome(f"{UNKNOWN_OUTCOME}. Check before you call it again.", is_error=True)
        if call.name == "submit_plan":
            return await self._submit_plan(call, ident)
        ident = again.id if again is not None else ident
        work = run_team_tool(replace(self._context, tool_use_id=ident), call.name, call.input)
        outcome = await self._wait_while_engine_does(call.name, work)
        if outcome is not None:
            return outcome
        if not (tool.waits or tool.repeatable):
            return Outcome(_TOO_LONG, is_error=True)
        self._log.cut_off.append(CutOff(ident, call.name, call.input, None))
        return Outcome(LATER)

    async def _wait_while_engine_does(self, tool: str, work: Coroutine[Any, Any, T]) -> T | None:
        """Return the result of a tool's work; None if the engine's time for a call, or its turn, is over before."""
        # The turn may end without the answer of one that waits.
        ends = [self.prompt] if TOOLS[tool].waits else []
        patience = self._known.patience
        task = await _run_until(work, *ends, seconds=patience - _PATIENCE_LEFT if patience is not None else None)
        return None if task.cancelled() else task.result()

    # What the engine asks.

    async def _decide(self, ask: Ask) -> None:
        """Answer a request for permission: by a rule, by the terms of the plan, or as the operator decides.

        Raises:
            Interrupted: The agent must read its mail.
            WorkerExit: The run ends.
        """
        run_state = self._run_state
        self._take_call(ask.call)
        call = self._calls[ask.call.id]
        if call.id not in self._begun:
            self._begin(call)
        tool, arguments = as_ours(call, run_state.workspace)
        allowed, why = answer_of_rules(run_state, tool, arguments)
        if allowed is None:
            because = f"{self._known.title} asks for it"
            if self._process.declaration is not None and is_ours(call.name, own_tools=True):
                because += f": {self._process.declaration} declares a server named {SERVER}, or may"
            # Not by the engine's id of the call, which comes again if it counts anew after a start.
            number = next(self._process.asks)
            request = ask_for_engine(run_state, number, tool, arguments, call.title, because, why)
            decided = await self._wait_while_asked(ask, request, f"asks to use {tool}")
            if decided is None:
                return
            feedback = f": {decided.feedback}" if decided.feedback else ""
            why = "" if decided.status == "approved" else f"{decided.status} by {decided.decided_by}{feedback}"
            run_state.show_tool(describe_call(tool, arguments), CALL_TIMEOUT)
        if not self._answer(ask, allow=not why):
            why = f"{self._known.title} offers no permission for this one time"
        if why:
            run_state.tell(_REFUSED.format(describe_call(tool, arguments), why))

    async def _wait_while_asked(self, ask: Ask, request: Request, doing: str) -> Request | None:
        """Wait for the decision about a request of the engine, and return it.

        Return None, and cancel the request, if the engine withdraws it or its turn ends. A plan still waits if the
        engine is gone. Our tools that the engine calls meanwhile are run, but what may wait for a person comes after.

        Raises:
            Interrupted: The agent must read its mail.
            WorkerExit: The run ends.
        """
        engine, run_state = self._engine, self._run_state
        decision = asyncio.ensure_future(self._interrupts.wait_for_decision(request, doing))
        later: list[Ask | TeamCall] = []
        idle = asyncio.Lock()

        async def turn_ends() -> None:
            await asyncio.wait([self.prompt])
            if self.prompt.exception() is not None and request.type != "permission":
                await asyncio.Event().wait()

        async def hear() -> None:
            while engine.waits_for(ask):
                heard = await engine.news.get()
                async with idle:
                    await self._hear_meanwhile(heard, later)
                    run_state.show("waiting", doing, waiting_for=request.id)

        ended, hearing = asyncio.ensure_future(turn_ends()), asyncio.ensure_future(hear())
        try:
            await asyncio.wait([decision, ended, hearing], return_when=asyncio.FIRST_COMPLETED)
            async with idle:
                # No call is cut off.
                hearing.cancel()
            if hearing.done() and not hearing.cancelled():
                hearing.result()
            if decision.done():
                return decision.result()
        except asyncio.CancelledError:
            # It is known by that what is to be closed.
            run_state.show("waiting", doing, waiting_for=request.id)
            raise
        finally:
            for each in (decision, ended, hearing):
                each.cancel()
            await asyncio.gather(decision, ended, hearing, return_exceptions=True)
            for heard in later:
                engine.news.put_nowait(heard)
        requests.close(run_state.team, request.id, "cancelled", run_state.name, run_state.now())
        # One whose turn ended may still be open.
        self._answer(ask, allow=False)
        run_state.show("working", "works", timeout=self._silence)
        return None

    async def _hear_meanwhile(self, heard: Update | Ask | TeamCall, later: list[Ask | TeamCall]) -> None:
        """Handle what the engine tells while a request waits for a decision; add to `later` what may have to wait."""
        if isinstance(heard, TeamCall):
            waits = bool(heard.name) and TOOLS[heard.name].waits
        elif isinstance(heard, Ask):
            waits = not self._is_ours(self._whole(heard))
        else:
            self._take(heard)
            return
        if waits:
            later.append(heard)
        else:
            await self._hear(heard)

    async def _decide_plan(self, ask: Ask, plan: str) -> None:
        """Ask for approval of a plan, for an engine that wants to leave its plan mode, and answer the engine.

        Raises:
            RestartError: The engine has to start again, with other rights or to read the plan as it was edited.
            Interrupted: The agent must read its mail.
            WorkerExit: The run ends.
        """
        run_state, assignment = self._run_state, self._run_state.conversation.assignment
        if assignment is None:
            self._answer(ask, allow=False)
            return
        call = Call(ask.call.id, name="submit_plan", status="in_progress", input={"plan": plan})
        if call.id in run_state.conversation.started:
            # The call was told before its plan was.
            self._log.end(call.id, Outcome("asks for approval of its plan"))
            call = replace(call, id=f"{call.id}-plan")
        self._calls[call.id] = call
        self._begin(call)
        request = ask_for_plan(run_state, assignment, {"plan": plan, "files": [], "commands": [], "risk": ""})
        decided = await self._wait_while_asked(ask, request, WAITS)
        if decided is None:
            if call.id in run_state.conversation.started:
                self._log.end(call.id, Outcome(f"{self._known.title} withdrew this plan", is_error=True))
            return
        run_state.show("working", "works", timeout=self._silence)
        self._log.settle_plan(call.id, decided)
        # It would carry out its own text of an edited plan.
        if not self._process.fits or decided.edited is not None:
            raise RestartError
        self._answer(ask, allow=decided.status == "approved")

    async def _submit_plan(self, call: TeamCall, ident: str) -> Outcome:
        """Ask for approval of a plan that the engine submits with a tool of the team, and return the decision.

        Raises:
            RestartError: The engine has to start again: with other rights, or once the plan is decided.
            Interrupted: The agent must read its mail.
            WorkerExit: The run ends.
        """
        run_state = self._run_state
        try:
            request = request_approval(run_state, submit_plan.parse(call.input))
        except UsageError as error:
            return Outcome(str(error), is_error=True)
        decided = None
        # The plan before may have opened the project, which is closed while another one waits.
        if self._process.fits:
            decided = await self._wait_while_engine_does(call.name, self._interrupts.wait_for_decision(request, WAITS))
        if decided is None:
            raise RestartError
        run_state.show("working", "works", timeout=self._silence)
        outcome = plan_outcome(run_state, decided)
        await end_lent_network(self._context)
        if not self._process.fits:
            self._log.tell_decision(ident, decided, outcome)
            raise RestartError
        return outcome


async def _run_until(
    work: Coroutine[Any, Any, T], *ends: "asyncio.Future[Any]", seconds: float | None = None
) -> "asyncio.Task[T]":
    """Run `work` until it is done, one of the `ends` is, or some seconds are over. Return its task.

    The task is cancelled if the work was not done.
    """
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait([task, *ends], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    return task
