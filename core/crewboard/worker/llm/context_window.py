"""Keeping a long conversation inside the model's window.

First the results of old tool calls are left out, then the conversation is summarised. Both are events of the journal,
so that a worker that was killed in between goes on with the same conversation.
"""

import json
from typing import Any

from crewboard.errors import ExitCode
from crewboard.records import Cleared, Reply, Summary
from crewboard.text import elide_middle
from crewboard.worker.llm.blocks import WINDOW_FULL, text_of
from crewboard.worker.llm.model import MAX_TOKENS, Model, ModelError, TooLongError
from crewboard.worker.run_state import RunState

CHARACTERS_A_TOKEN = 3.0
"""Careful: English prose has about four, code and JSON about three. Digits and keys have fewer; that is learned."""

DENSEST = 1.0
"""No text has more tokens than characters; an API that counts so counts something else."""

SQUEEZE = 0.7
TIGHTEST = 0.1
"""How much denser a request that the API found too long is taken to be, each time, and where to give up."""

CLEAR_AT = 0.5
SUMMARISE_AT = 0.7
"""Shares of the room at which old results are cleared, and the conversation is summarised."""

KEPT_RESULTS = 2
"""The newest tool results, which are never cleared."""

LARGEST_RESULT = 0.1
"""Share of the window that one tool result may take."""

_REPLY_SHARE = 4
_TRANSCRIPT_SHARE = 0.6

_ASK = """\
Summarise the work below for the agent that will go on with it and will see nothing else of it. Keep: what was asked, \
word for word where it matters; the plan and what of it is done; what was found out, with files and lines; decisions \
and their reasons; what is still open, questions that wait for an answer among them. Leave out greetings and old output.

"""
_SYSTEM = "You summarise the work of an agent. You answer with the summary alone."


class ContextWindow:
    """The window of one worker's model."""

    def __init__(self, run_state: RunState, model: Model) -> None:
        self._run_state = run_state
        self._model = model
        self._densest = CHARACTERS_A_TOKEN
        """Characters a token of the densest request so far."""
        self._squeeze = 1.0
        self._characters = 0
        """Of the next request."""

    @property
    def _characters_a_token(self) -> float:
        return self._densest * self._squeeze

    @property
    def longest_reply(self) -> int:
        """Tokens that a reply may have, so that small windows keep room for the conversation."""
        return min(MAX_TOKENS, self._run_state.context_limit // _REPLY_SHARE)

    @property
    def largest_result(self) -> int:
        """Characters that one tool result may have."""
        return int(self._run_state.context_limit * LARGEST_RESULT * self._characters_a_token)

    @property
    def _room(self) -> int:
        return self._run_state.context_limit - self.longest_reply

    async def make_room(self, system: str, tools: list[dict[str, Any]]) -> None:
        """See to it that the next request fits.

        Raises:
            ModelError: It cannot: the system prompt and the newest mail alone are too large.
            Interrupted: Somebody wants the agent to read its mail.
            Leave: The run ends.
        """
        if self._size(system, tools) > self._room * CLEAR_AT:
            self._clear()
        if self._size(system, tools) > self._room * SUMMARISE_AT:
            await self._summarise()
        if self._size(system, tools) > self._room:
            raise ModelError(
                f"the conversation does not fit into the window of {self._run_state.context_limit} tokens",
                ExitCode.FAILED,
            )

    def learn(self, reply: Reply) -> None:
        """Take in how many tokens the last request had, and how large the window is where the reply filled it."""
        self._squeeze = 1.0
        usage = reply.usage
        if used := usage.input + usage.cache_read + usage.cache_write:
            self._densest = max(DENSEST, min(self._densest, self._characters / used))
            if reply.stop_reason == WINDOW_FULL:
                self._run_state.context_limit = min(self._run_state.context_limit, used + usage.output)

    def tighten(self, refused: TooLongError) -> None:
        """Count more carefully, because the API found the last request too long.

        Raises:
            TooLongError: It cannot be that; the same refusal again.
        """
        self._squeeze *= SQUEEZE
        if self._squeeze < TIGHTEST:
            raise refused

    def _size(self, system: str, tools: list[dict[str, Any]]) -> int:
        """Tokens of the next request, estimated on the careful side."""
        messages = self._run_state.conversation.messages()
        self._characters = len(system) + len(json.dumps(tools)) + len(json.dumps(messages))
        return int(self._characters / self._characters_a_token)

    def _clear(self) -> None:
        """Leave out the results of all but the newest tool calls."""
        run_state = self._run_state
        old = run_state.conversation.clearable[:-KEPT_RESULTS]
        if old:
            run_state.append(Cleared(ts=run_state.now(), tool_use_ids=old))

    async def _summarise(self) -> None:
        """Put a summary in the place of what the model has been shown; what it has not stays word for word."""
        run_state, conversation = self._run_state, self._run_state.conversation
        covers = conversation.shown
        if not covers:
            return
        run_state.show("working", "summarises the conversation")
        most = int(self._room * _TRANSCRIPT_SHARE * self._characters_a_token)
        transcript = elide_middle(conversation.transcript(covers), most, most // 3)
        request = [{"role": "user", "content": [{"type": "text", "text": _ASK + transcript}]}]
        reply = await self._model.reply(_SYSTEM, [], request, self.longest_reply)
        text = text_of(reply)
        staying = {str(block.get("text")) for _, block in conversation.entries[covers:]}
        texts = [said for said in conversation.assignment_texts if said not in staying]
        kept = elide_middle("\n\n".join(texts), most // 3, most // 9)
        begun = (
            f"\n\nYour reply so far:\n\n{elide_middle(conversation.said, most // 3, most // 9)}"
            if conversation.goes_on
            else ""
        )
        run_state.append(
            Summary(
                ts=run_state.now(),
                covers=covers,
                text=f"{text.strip() or '(nothing)'}\n\nYour assignment, word for word:\n\n{kept}{begun}",
                usage=reply.usage,
                cost_usd=reply.cost_usd,
            )
        )
