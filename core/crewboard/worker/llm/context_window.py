"""The context window: keep a long conversation within what the model takes.

First the results of old tool calls are removed, then the conversation is summarised. Both are events of the journal, so
a worker that was killed and resumed has the same conversation. The model is asked for a summary at the end of the
conversation, so that it reads nearly all of it from the prompt cache.
"""

import json
import math
import re
from typing import Any

from crewboard import media
from crewboard.errors import ExitCode
from crewboard.records.events import WINDOW_FULL, BrokenReply, Cleared, Reply, Retry, Summary
from crewboard.untrusted import elide_middle
from crewboard.worker.conversation import text_of
from crewboard.worker.llm.model import Model
from crewboard.worker.llm.refusals import MaybeTooLongError, MediaRefusedError, ModelError, TooLongError
from crewboard.worker.run_state import RunState

CHARACTERS_PER_TOKEN = 3.0
"""A careful estimate until the first reply tells the number: English prose has about four, code and JSON about three.
Later replies can only lower it."""

MAX_CHARACTERS_PER_TOKEN = 4.0

MIN_CHARACTERS_PER_TOKEN = 1.0
"""The lowest estimate: no text has more tokens than characters. A server that reports more counts something else."""

_SMALLEST_WINDOW = 1000
"""Tokens below which a number cannot be the size of a window: the server then counts or says something else."""

SHRINK_FACTOR = 0.7
MIN_SHRINK = 0.1
"""Factor by which the estimate of characters per token shrinks each time the server finds a request too long without
naming its window, and the product of these factors below which to give up."""

CLEAR_AT = 0.5
SUMMARISE_AT = 0.7
"""Shares of the room at which old results are removed, and at which the conversation is summarised."""

KEPT_SHARE = 0.2
"""Share of the room that may be taken by the newest turns, which stay as they are after a summary."""

LONGEST_CONVERSATION = 350_000
"""The most tokens of a conversation that count as room, however large the window is: each turn reads all of them again,
and models work less well with more. A summary is made at the share `SUMMARISE_AT` of the room."""

CLEARED_SHARE = 0.2
"""Share of the room that the removal of results must free to be worth it. Everything after the first removed result is
then read without the cache, and the thinking after it is lost."""

KEPT_RESULTS = 2
"""Number of the newest tool results, which are never removed."""

MAX_RESULT_SHARE = 0.1
"""Share of the window that one tool result may take."""

_MOST_WHY = 200
"""Characters of a server's refusal of an image that the agent is told."""

_ESTIMATE_FACTOR = 2
"""Factor by which a number in a refusal may differ from the estimated tokens of the request to be taken for them."""
_NUMBER = re.compile(r"\d{1,3}(?:[.,'_\s]\d{3})+(?!\d)|\d+")

_DOUBTED_SHARE = 0.25
_NARROWING_SHARE = 0.5
"""Shares of the window. A refused request of at least the first share may be too long. One of at least the second share
also shows that the window is smaller than it. Both hold for a refusal that names no number that fits."""

_REPLY_SHARE = 4
_TRANSCRIPT_SHARE = 0.6

_INSTRUCTIONS = """\
Summarise the work {} for the agent that continues it and sees little but your summary. Write, under a heading each: \
what was asked, word for word where that matters; the plan, and which steps are done; the files that were changed, and \
how; the commands that work, as they were run; the errors that came up, their causes, and what did not help; findings, \
with files and lines, and decisions with their reasons; what is open, with questions that wait for an answer; the next \
step. Leave out greetings and old output. Call no tool, and answer with the summary only."""
_SYSTEM = "You summarise the work of an agent. Answer with the summary only."

_TURNS_STAY = "\n\nThe last turns follow as they were."


class ContextWindow:
    """The context window of one worker's model."""

    def __init__(self, run_state: RunState, model: Model) -> None:
        self._run_state = run_state
        self._model = model
        self._learned: float | None = None
        """The fewest characters per token of a request so far, within the limits above; None before the first reply."""
        self._shrink = 1.0
        self._characters = 0
        """Length of the last request in characters."""
        self._accepted_length = 0
        """Length in characters of the longest request that the server answered in this run."""
        self._too_large: ModelError | None = None
        """The refusal because of which `make_room` must shorten the conversation next; None if there is none."""
        self._maybe_too_long = (0, 0)
        """Length in characters of a refused request that may have been too long, and the tokens of the window that it
        then exceeded. The length is 0 if there is no such request, the tokens are 0 if they are not known."""
        self._part = 1.0
        """The share of the conversation's text from which a summary is made."""
        self._accepted: set[str] = set()
        """The SHA-256 of each image and document that the server accepted in this run."""

    @property
    def _characters_per_token(self) -> float:
        return (self._learned or CHARACTERS_PER_TOKEN) * self._shrink

    @property
    def max_reply(self) -> int:
        """Return the most tokens of a reply. In a small window that is less, to keep room for the conversation."""
        return min(self._model.longest_reply, self._run_state.window // _REPLY_SHARE)

    @property
    def max_result(self) -> int:
        """Return the most characters of one tool result."""
        return int(self._run_state.window * MAX_RESULT_SHARE * self._characters_per_token)

    @property
    def _room(self) -> int:
        return self._run_state.window - self.max_reply

    @property
    def _usual(self) -> int:
        """Return the tokens of the room of which the shares above are taken."""
        return min(self._room, LONGEST_CONVERSATION)

    async def make_room(self) -> None:
        """Shorten the conversation if the next request would be too long.

        After a summary the conversation has no opening, and the caller must append a new one.

        Raises:
            ModelError: The conversation cannot be made short enough.
            Interrupted: The agent must read its mail.
            WorkerExit: The run ends.
        """
        if self._too_large is not None:
            # The same bytes would be refused again. What may be too long is made shorter once, so by more.
            refused = self._too_large
            is_shorter = (isinstance(refused, TooLongError) and self._remove_old_results()) or await self._summarise()
            self._too_large, self._part = None, 1.0
            if not is_shorter:
                raise ModelError(str(refused), refused.code)
            return
        usual = self._usual
        if (size := self._size()) > usual * CLEAR_AT:
            # It pays only if it frees more than the cache that is written anew, which a summary would read.
            self._remove_old_results(max(usual * CLEARED_SHARE, size - usual * SUMMARISE_AT))
        if self._size() > usual * SUMMARISE_AT and await self._summarise():
            return
        if self._size() > self._room:
            raise ModelError(self._describe_too_small(), ExitCode.FAILED)

    def _describe_too_small(self) -> str:
        """Return the text of the error that the conversation does not fit into the window.

        Except for the API, it also names the smallest window that would do, in which the next request would not be
        summarised at once.
        """
        known = f"the window of {self._run_state.window} tokens"
        if self._model.is_api:
            return f"the conversation does not fit into {known}"
        # Refusals that name no window change the estimate, and not the request.
        tokens = self._characters / (self._learned or CHARACTERS_PER_TOKEN)
        least = 1000 * math.ceil(tokens / (SUMMARISE_AT * (1 - 1 / _REPLY_SHARE)) / 1000)
        where = known if self._shrink == 1 else "the window of the server, which it does not name,"
        return f"the conversation does not fit into {where} and takes one of {least} tokens or more"

    def learn(self, reply: Reply) -> None:
        """Adjust the estimates to a reply: the characters per token, and the size of the window.

        The window becomes smaller if the reply filled it, or shows that a request refused before was too long.
        """
        self._shrink = 1.0
        self._accepted_length = max(self._accepted_length, self._characters)
        (refused, window), self._maybe_too_long = self._maybe_too_long, (0, 0)
        if refused and refused != self._characters and window:
            # It was too long. But what is left must not be all that fits.
            self._narrow(max(window, 2 * self._tokens_sent))
        self._accepted.update(
            each["source"]["sha256"] for each in media.kept_in(self._run_state.conversation.messages())
        )
        usage = reply.usage
        if used := usage.prompt:
            # Otherwise the API itself added to the prompt, or this only has the estimate back.
            if not usage.web_uses and not usage.estimated:
                most = self._learned or MAX_CHARACTERS_PER_TOKEN
                self._learned = max(MIN_CHARACTERS_PER_TOKEN, min(most, self._characters / used))
            if reply.stop_reason == WINDOW_FULL:
                self._narrow(used + usage.output)

    def may_exceed(self, text: str) -> bool:
        """Return True if the last request may have been too long, although the `text` of its refusal does not say so.

        It must be longer than all that the server answered in this run, and it must be possible to shorten it. It also
        has to be no small part of the window, or the text must name about as many tokens as it has.
        """
        is_first_try = self._maybe_too_long[0] in (0, self._characters)
        is_longest = self._characters > self._accepted_length and self._run_state.conversation.shown > 0
        is_small = self._tokens_sent < self._run_state.window * _DOUBTED_SHARE
        return is_first_try and is_longest and (not is_small or bool(self._named(text)))

    @property
    def _tokens_sent(self) -> int:
        return int(self._characters / self._characters_per_token)

    def _named(self, text: str) -> list[int]:
        """Return the numbers in a text that are close enough to the estimated tokens of the last request to be them."""
        tokens = self._tokens_sent
        # With the marks between thousands of any language.
        numbers = [int(re.sub(r"\D", "", found)) for found in _NUMBER.findall(text)]
        return [each for each in numbers if tokens / _ESTIMATE_FACTOR <= each <= tokens * _ESTIMATE_FACTOR]

    def make_fit(self, refused: TooLongError | MaybeTooLongError | MediaRefusedError) -> None:
        """Prepare another request after the server refused one for its length, an image or a document.

        By the kind of refusal, leave out images or documents, assume a smaller window or more tokens per character, or
        let the next `make_room` shorten the conversation.

        Raises:
            ModelError: The refusal, once nothing is left that could be the reason.
        """
        kept = media.kept_in(self._run_state.conversation.messages())
        if isinstance(refused, MediaRefusedError):
            text = str(refused)
            found = media.refused_by(text, self._run_state.conversation.messages(), self._accepted)
            if not found:
                raise refused
            if media.takes_none(text):
                # Leave out all of its kind.
                self._run_state.takes[found[0]["type"]] = False
            else:
                for block in found:
                    self._leave_out(block, f"left out, because the server did not process it: {text[:_MOST_WHY]}")
        elif isinstance(refused, MaybeTooLongError):
            # It is sent again, unless it names a number of tokens that the request may have, then with a summary.
            tokens, named = self._tokens_sent, self._named(str(refused))
            is_known = refused.was_repeated or bool(named) or self._maybe_too_long != (0, 0)
            if self._maybe_too_long == (0, 0):
                is_large = tokens >= self._run_state.window * _NARROWING_SHARE
                self._maybe_too_long = self._characters, min(named, default=tokens if is_large else 0)
            self._note(refused, "with a summary of the conversation" if is_known else "once more as it is")
            if is_known:
                self._shorten(refused, 0.5)
        elif refused.is_large and kept:
            self._leave_out(kept[0], "left out, because the request was too large")
        elif refused.is_large:
            self._shorten(refused, 1.0)
            self._note(refused, "with a shorter conversation")
        elif refused.window is None or not self._narrow(refused.window):
            # The server does not say how small the window is: assume more tokens per character.
            self._shrink *= SHRINK_FACTOR
            if self._shrink < MIN_SHRINK:
                if self._model.is_api:
                    raise refused
                raise ModelError(f"{refused}; {self._describe_too_small()}", refused.code)

    def _shorten(self, refused: ModelError, part: float) -> None:
        """Let the next `make_room` summarise a `part` of the conversation, or half of the part that was still too long.

        Raises:
            ModelError: The same refusal, once the part is too small.
        """
        # The second time, the request for that summary was refused.
        self._part = self._part / 2 if self._too_large is not None else part
        self._too_large = refused
        if self._part < MIN_SHRINK:
            if isinstance(refused, MaybeTooLongError):
                # It was something else, which another request may not have.
                self._too_large, self._part, self._maybe_too_long = None, 1.0, (0, 0)
            raise refused

    def _note(self, refused: ModelError, how: str) -> None:
        """Journal that a refused request is tried again, and `how`."""
        now = self._run_state.now()
        self._run_state.append(Retry(ts=now, error=f"{refused}; tries {how}", attempt=1, until=now))

    def _narrow(self, window: int) -> bool:
        """Set the window's size to `window` tokens. Return False if it was no larger, or if no window is so small."""
        narrows = _SMALLEST_WINDOW <= window < self._run_state.window
        if narrows:
            self._run_state.set_window(window)
        return narrows

    def _leave_out(self, block: dict[str, Any], why: str) -> None:
        """Leave an image or a document out of all further requests; the agent sees the reason in its place."""
        run_state = self._run_state
        run_state.append(Cleared(ts=run_state.now(), tool_use_ids=[], media={block["source"]["sha256"]: why}))

    def _size(self) -> int:
        """Return the estimated tokens of the next request, rather too many than too few, and note its length."""
        self._characters = self._length(self._run_state.conversation.messages())
        return int(self._characters / self._characters_per_token)

    def _length(self, messages: list[dict[str, Any]]) -> int:
        """Return the characters of a request with these messages, the system prompt and the tools included."""
        conversation = self._run_state.conversation
        system = conversation.opening.system if conversation.opening is not None else ""
        fixed = len(system) + len(json.dumps(conversation.shown_tools))
        # Of images and documents, only what they are is in the conversation.
        return fixed + len(json.dumps(messages)) + int(media.tokens_in(messages) * self._characters_per_token)

    def _remove_old_results(self, least: float = 0) -> bool:
        """Remove the results of all but the newest tool calls if that frees at least `least` tokens.

        Return True if there were such results, and they were removed.
        """
        run_state = self._run_state
        old = dict([*run_state.conversation.clearable.items()][:-KEPT_RESULTS])
        freed = media.tokens_in([{"content": [*old.values()]}]) + int(
            len(json.dumps([*old.values()])) / self._characters_per_token
        )
        if not old or freed < least:
            return False
        run_state.append(Cleared(ts=run_state.now(), tool_use_ids=[*old]))
        return True

    async def _summarise(self) -> bool:
        """Replace what the model has seen by a summary, but for the newest turns; return False if it has seen nothing.

        Raises:
            ModelError: The call for the summary failed; its kinds are those of `Model.reply`.
            Interrupted: The agent must read its mail.
            WorkerExit: The run ends.
        """
        run_state, conversation = self._run_state, self._run_state.conversation
        shown = covers = conversation.shown
        if not shown:
            return False
        run_state.show("working", "summarises the conversation")
        most = int(self._usual * _TRANSCRIPT_SHARE * self._characters_per_token)
        reply = await self._ask_in_conversation(shown)
        if reply is None:
            # Asked about the first entries as a text, without its middle.
            transcript = conversation.transcript(shown)
            longest = min(most, int(len(transcript) * self._part))
            text = f"{_INSTRUCTIONS.format('below')}\n\n{elide_middle(transcript, longest, longest // 3)}"
            request = [{"role": "user", "content": [{"type": "text", "text": text}]}]
            reply = await self._model.reply(
                _SYSTEM, [], request, self.max_reply, may_exceed=lambda _: self._too_large is not None
            )
        # A reply that is continued is quoted, with all its parts.
        if self._too_large is None and not conversation.is_cut_off:
            covers = conversation.newest_turns(int(self._usual * KEPT_SHARE * self._characters_per_token))
        text = elide_middle(text_of(reply).strip(), most // 3, most // 9) or "(nothing)"
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
                text=f"{text}\n\nYour assignment, word for word:\n\n{kept}{begun}{_TURNS_STAY * (covers < shown)}",
                usage=reply.usage,
                cost_usd=reply.cost_usd,
            )
        )
        return True

    async def _ask_in_conversation(self, shown: int) -> Reply | None:
        """Ask for a summary at the end of the first `shown` entries, and return the reply; None if it is no summary.

        Also return None, without a call, if the request would be too long or has no opening. All before the question
        was in the last request, so it is in the prompt cache.
        """
        run_state, asks = self._run_state, _INSTRUCTIONS.format("above")
        opening = run_state.conversation.opening
        length = self._length(run_state.conversation.messages(shown, asks))
        if opening is None or self._too_large is not None or length > self._room * self._characters_per_token:
            return None
        messages = run_state.request_messages(shown, asks)
        reply = await self._model.reply(opening.system, opening.tools, messages, self.max_reply)
        if text_of(reply).strip() and not any(block.get("type") == "tool_use" for block in reply.content):
            return reply
        # It went on with the work, which must not be kept: its calls are not run.
        run_state.append(BrokenReply(ts=run_state.now(), usage=reply.usage, model=reply.model, cost_usd=reply.cost_usd))
        return None
