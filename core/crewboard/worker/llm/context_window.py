"""The context window: keep a long conversation within what the model takes.

First it removes the results of old tool calls, then it summarises the conversation. Both are events of the journal, so
a worker that was killed and resumed has the same conversation.
"""

import json
from typing import Any

from crewboard import media
from crewboard.records import Cleared, ExitCode, Reply, Summary
from crewboard.untrusted import elide_middle
from crewboard.worker.conversation import WINDOW_FULL, text_of
from crewboard.worker.llm.model import MAX_TOKENS, Model, ModelError, TooLongError
from crewboard.worker.run_state import RunState

CHARACTERS_PER_TOKEN = 3.0
"""A careful start: English prose has about four, code and JSON about three. Fewer are learned from replies."""

MIN_CHARACTERS_PER_TOKEN = 1.0
"""No text has more tokens than characters. An API that reports more counts something else."""

SHRINK_FACTOR = 0.7
MIN_SHRINK = 0.1
"""Factor by which the estimate shrinks each time the API finds a request too long, and where to give up."""

CLEAR_AT = 0.5
SUMMARISE_AT = 0.7
"""Shares of the room at which old results are removed, and at which the conversation is summarised."""

KEPT_RESULTS = 2
"""Number of the newest tool results, which are never removed."""

MAX_RESULT_SHARE = 0.1
"""Share of the window that one tool result may take."""

_REPLY_SHARE = 4
_TRANSCRIPT_SHARE = 0.6

_INSTRUCTIONS = """\
Summarise the work below for the agent that continues it and sees only your summary. Keep: what was asked, word for \
word where that matters; the plan and which steps are done; findings, with files and lines; decisions and their \
reasons; what is open, including questions that wait for an answer. Leave out greetings and old output.

"""
_SYSTEM = "You summarise the work of an agent. Answer with the summary only."


class ContextWindow:
    """The context window of one worker's model."""

    def __init__(self, run_state: RunState, model: Model) -> None:
        self._run_state = run_state
        self._model = model
        self._learned = CHARACTERS_PER_TOKEN
        """Characters per token in the densest request so far."""
        self._shrink = 1.0
        self._characters = 0
        """Length of the last request."""

    @property
    def _characters_per_token(self) -> float:
        return self._learned * self._shrink

    @property
    def max_reply(self) -> int:
        """Return how many tokens a reply may have. Small windows keep room for the conversation."""
        return min(MAX_TOKENS, self._run_state.window // _REPLY_SHARE)

    @property
    def max_result(self) -> int:
        """Return how many characters one tool result may have."""
        return int(self._run_state.window * MAX_RESULT_SHARE * self._characters_per_token)

    @property
    def _room(self) -> int:
        return self._run_state.window - self.max_reply

    async def make_room(self, system: str, tools: list[dict[str, Any]]) -> None:
        """Compact the conversation if the next request would not fit.

        Raises:
            ModelError: Even the system prompt and the newest mail are too large.
            Interrupted: The agent must read its mail.
            WorkerExit: The run ends.
        """
        if self._size(system, tools) > self._room * CLEAR_AT:
            self._remove_old_results()
        if self._size(system, tools) > self._room * SUMMARISE_AT:
            await self._summarise()
        if self._size(system, tools) > self._room:
            raise ModelError(
                f"the conversation does not fit into the window of {self._run_state.window} tokens",
                ExitCode.FAILED,
            )

    def learn(self, reply: Reply) -> None:
        """Learn from a reply how many tokens the request had and, if it filled the window, how large that is."""
        self._shrink = 1.0
        usage = reply.usage
        if used := usage.prompt:
            if not usage.web_uses:
                # Otherwise the API itself added to the prompt.
                self._learned = max(MIN_CHARACTERS_PER_TOKEN, min(self._learned, self._characters / used))
            if reply.stop_reason == WINDOW_FULL:
                self._run_state.set_window(min(self._run_state.window, used + usage.output))

    def shrink_estimate(self, refused: TooLongError) -> None:
        """Assume more tokens per character, because the API found the last request too long.

        Raises:
            TooLongError: The same refusal, once that cannot be the reason any more.
        """
        self._shrink *= SHRINK_FACTOR
        if self._shrink < MIN_SHRINK:
            raise refused

    def _size(self, system: str, tools: list[dict[str, Any]]) -> int:
        """Return how many tokens the next request has, at a careful estimate."""
        messages = self._run_state.conversation.messages()
        self._characters = len(system) + len(json.dumps(tools)) + len(json.dumps(messages))
        # Of images and documents, only what they are is in the conversation.
        self._characters += int(media.tokens_in(messages) * self._characters_per_token)
        return int(self._characters / self._characters_per_token)

    def _remove_old_results(self) -> None:
        """Remove the results of all but the newest tool calls."""
        run_state = self._run_state
        old = run_state.conversation.clearable[:-KEPT_RESULTS]
        if old:
            run_state.append(Cleared(ts=run_state.now(), tool_use_ids=old))

    async def _summarise(self) -> None:
        """Replace what the model has seen by a summary. What it has not seen stays as it is."""
        run_state, conversation = self._run_state, self._run_state.conversation
        covers = conversation.shown
        if not covers:
            return
        run_state.show("working", "summarises the conversation")
        most = int(self._room * _TRANSCRIPT_SHARE * self._characters_per_token)
        transcript = elide_middle(conversation.transcript(covers), most, most // 3)
        request = [{"role": "user", "content": [{"type": "text", "text": _INSTRUCTIONS + transcript}]}]
        reply = await self._model.reply(_SYSTEM, [], request, self.max_reply)
        text = text_of(reply)
        staying = {str(block.get("text")) for _, block in conversation.entries[covers:]}
        texts = [said for said in conversation.assignment_texts if said not in staying]
        kept = elide_middle("\n\n".join(texts), most // 3, most // 9)
        begun = (
            f"\n\nYour reply so far:\n\n{elide_middle(conversation.said, most // 3, most // 9)}"
            if conversation.is_cut_off
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
