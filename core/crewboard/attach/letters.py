"""Import the letters between the agents of a Claude Code team as messages in the mailboxes of the team directory.

The mirror sees a letter up to three times: in the inbox file of its recipient, where it stays for a moment only; in
the transcript of its author, with its id; and in the transcript of its recipient, without an id, when it enters the
conversation. It becomes one message, whose id is derived from Claude Code's id, so that nothing is imported twice.
"""

import json
import logging
import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from crewboard.attach import formats
from crewboard.errors import BadDataError
from crewboard.names import OPERATOR
from crewboard.protocol import requests
from crewboard.records.agents import Cursor
from crewboard.records.base import JsonValue
from crewboard.records.events import Event, Intake, Sent
from crewboard.records.messages import Message
from crewboard.store import journal as store_journal
from crewboard.store import mailbox
from crewboard.store.layout import TeamDirectory

_MARK = "letter_id"
"""The key in a message's metadata under which `Letter.mark` is kept, by which the same letter is known again."""

_MAX_LINE = 300

_RECORD = re.compile(rb'"source": "(?:entered:)?([0-9a-f]{8}-[0-9a-f-]{27}):')
"""Finds, in a line of a journal, the id of the transcript's record that the event was made from."""

log = logging.getLogger(__name__)


@dataclass
class _Known:
    """A message that was imported, the offset of its end in its mailbox, and the mark of its letter, if it is known.

    `picked` is True once the letter left its recipient's inbox file, `entered` once it is in the conversation.
    """

    message: Message
    end: int
    mark: str | None
    picked: bool = False
    entered: bool = False


@dataclass
class _Box:
    """One mailbox. `order` are its messages in their order, `waiting` those still in Claude Code's inbox file, by mark.

    `by_text` finds messages by author and `_text_key`. `first_unread` is the index in `order` of the first message that
    was not picked up, and `size` how many bytes of the mailbox were read.
    """

    order: list[_Known] = field(default_factory=list)
    by_text: dict[tuple[str, str], list[_Known]] = field(default_factory=lambda: defaultdict(list))
    waiting: dict[str, _Known] = field(default_factory=dict)
    first_unread: int = 0
    size: int = 0


class Journals:
    """The journals of a team's agents.

    Each event has a `source`, the part of a transcript or the letter that it is made from, and is appended once, even
    if a process was killed. `run_of` returns the number of an agent's present run, 0 for an author of letters that is
    no agent.
    """

    def __init__(self, team: TeamDirectory, run_of: Callable[[str], int]) -> None:
        self._team = team
        self.run_of = run_of
        self._unsaved: set[tuple[str, str]] = set()
        """Agents and sources of events in their journals that `mirror.json` does not count yet."""
        self._records: set[tuple[str, str]] = set()
        """Agents, and the ids of records of their transcripts, that were mirrored."""

    def load(self, noted: Mapping[str, int]) -> None:
        """Read from the journals what was mirrored before.

        `noted` are the sizes of the journals in bytes, by agent, as of the last save of `mirror.json`.
        """
        for name in self._team.agent_names():
            journal, size = self._team.agent(name).journal, noted.get(name, 0)
            for line, end in journal.read():
                if end > size:
                    break
                if line is not None and (record := _RECORD.search(line)) is not None:
                    self._records.add((name, record[1].decode()))
            for event, _ in store_journal.read(journal, size):
                if event is not None:
                    self._unsaved.add((name, str(event.source)))

    def forget_unsaved(self) -> None:
        """Forget the events that `mirror.json` did not count: it has just been saved."""
        self._unsaved.clear()

    def is_new(self, name: str, record: str) -> bool:
        """Return True at the first call for an agent and the id of a record; always if the id is empty.

        Some versions of Claude Code write the same record into two transcripts.
        """
        if not record:
            return True
        new = (name, record) not in self._records
        self._records.add((name, record))
        return new

    def was_written(self, name: str, source: str) -> bool:
        """Return True if the agent's journal has the event of this source, and `mirror.json` does not count it yet."""
        return (name, source) in self._unsaved

    def append(self, name: str, event: Event, source: str) -> None:
        """Append an event to an agent's journal, unless it is there already, or `name` is no agent.

        An event that cannot be appended is logged and left out.
        """
        if not self.run_of(name) or self.was_written(name, source):
            return
        journal = self._team.agent(name).journal
        try:
            store_journal.append(journal, event.replace(source=source))
        except BadDataError as error:
            log.warning("not mirrored in %s: %s", journal, error)


class Letters:
    """The letters of a team. `on_new` is called once for each: with author, recipient, frame (or None) and time."""

    def __init__(
        self,
        team: TeamDirectory,
        journals: Journals,
        on_new: Callable[[str, str, dict[str, Any] | None, float], None],
        clock: Callable[[], float],
    ) -> None:
        self._team = team
        self._journals = journals
        self._on_new = on_new
        self._clock = clock
        self._boxes: dict[str, _Box] = defaultdict(_Box)
        self._marks: dict[tuple[str, str], _Known] = {}
        """Imported messages by recipient and mark; the recipient, because the same letter may go to several."""

    def load(self, names: list[str]) -> None:
        """Read what was imported before for these agents: mailboxes, and from journals what became of the messages."""
        self._boxes.clear()
        for name in names:
            box = self._boxes[name]
            batch = mailbox.read(self._team, name)
            box.size = batch.offset
            for message, end in batch.entries:
                mark = message.metadata.get(_MARK)
                self._remember(box, _Known(message, end, mark if isinstance(mark, str) else None))
            known = {each.message.id: each for each in box.order}
            for event, _ in store_journal.read(self._team.agent(name).journal, 0, b'"kind": "intake"'):
                if not isinstance(event, Intake):
                    continue
                picked = {message.id for message in event.messages}
                for ident in known.keys() & picked.union(event.entered):
                    known[ident].picked = True
                    known[ident].entered |= ident in event.entered

    def _remember(self, box: _Box, known: _Known) -> None:
        box.order.append(known)
        text_id = known.message.metadata.get("text_id")
        box.by_text[known.message.from_, text_id if isinstance(text_id, str) else ""].append(known)
        if known.mark is not None:
            self._marks[known.message.to, known.mark] = known

    def take_answers(self, names: list[str]) -> None:
        """Record new mail that is no imported letter as read: answers of the operator, which a hook has delivered."""
        for name in names:
            box = self._boxes[name]
            if mailbox.size(self._team, name) <= box.size:
                continue
            batch = mailbox.read(self._team, name, box.size, now=self._clock())
            box.size = batch.offset
            for message, end in batch.entries:
                box.order.append(_Known(message, end, None, picked=True, entered=True))
                self._take_in(name, message.ts, f"entered:{message.id}", [message], [message.id])

    def see(self, author: str, to: str, letter: formats.Letter) -> None:
        """Import a letter found in its author's transcript or in an inbox file, unless it was imported before."""
        if (to, letter.mark) in self._marks:
            return
        same = self._boxes[to].by_text[author, _text_key(letter.text)]
        unmarked = next((known for known in same if known.mark is None), None)
        if unmarked is not None:
            # It entered the conversation before it was seen elsewhere.
            unmarked.mark = letter.mark
            self._marks[to, letter.mark] = unmarked
            return
        self._import(author, to, letter, letter.mark)

    def see_inbox(self, to: str, found: list[tuple[str, formats.Letter]]) -> None:
        """Import the letters in the inbox file of `to`, each given with its author.

        A letter that was there at the last call and is gone now is recorded as picked up.
        """
        box = self._boxes[to]
        for author, letter in found:
            if letter.mark not in box.waiting:
                self.see(author, to, letter)
                box.waiting[letter.mark] = self._marks[to, letter.mark]
        there = {letter.mark for _, letter in found}
        picked = [known for mark, known in box.waiting.items() if mark not in there and not known.picked]
        box.waiting = {mark: known for mark, known in box.waiting.items() if mark in there}
        if not picked:
            return
        for known in picked:
            known.picked = True
        messages = [known.message for known in picked]
        self._take_in(to, self._clock(), f"picked:{messages[0].id}", messages, [])

    def enter(self, author: str, to: str, letter: formats.Letter) -> None:
        """Record that a letter entered its recipient's conversation; import it if it was not seen before."""
        if self._journals.was_written(to, f"entered:{letter.mark}"):
            return
        same = self._boxes[to].by_text[author, _text_key(letter.text)]
        known = next((each for each in same if not each.entered), None) or self._import(author, to, letter, None)
        new = [] if known.picked else [known.message]
        known.picked = known.entered = True
        self._take_in(to, letter.ts, f"entered:{letter.mark}", new, [known.message.id])

    def _import(self, author: str, to: str, letter: formats.Letter, mark: str | None) -> _Known:
        frame = formats.frame(letter.text)
        kind, content, more = _describe(letter.text, frame)
        if kind == "plan_approval_response" and content == "approved" and self._passed_hook(author, to, more):
            # Claude Code's lead says yes by itself to what the hook lets pass.
            content = "you approved it before"
        # The text as it was, by which the letter is found again when it enters the conversation.
        metadata: dict[str, JsonValue] = {**more, _MARK: mark, "text_id": _text_key(letter.text)}
        message = mailbox.compose(
            author, to, kind, content, ident=mailbox.derived_id("letter", to, mark or letter.mark),
            ts=letter.ts or self._clock(), metadata=metadata,
        )  # fmt: skip
        self.take_answers([to])
        stored = mailbox.send(self._team, message)
        box = self._boxes[to]
        box.size = mailbox.size(self._team, to)
        known = _Known(stored, box.size, mark)
        self._remember(box, known)
        self._journals.append(
            author, Sent(ts=stored.ts, run=self._journals.run_of(author), message=stored), f"sent:{stored.id}"
        )
        self._on_new(author, to, frame, stored.ts)
        return known

    def _passed_hook(self, lead: str, author: str, answer: dict[str, JsonValue]) -> bool:
        """Return True if the operator approved the plan of `author` that the lead's `answer` is about."""
        ident = answer.get("request_id")
        asked = (each.message for each in reversed(self._boxes[lead].order))
        plan = next((each.content for each in asked if ident and each.metadata.get("request_id") == ident), None)
        return plan is not None and any(
            (each.from_, each.payload.get("plan"), each.status, each.decided_by) == (author, plan, "approved", OPERATOR)
            for each in requests.load_all(self._team)
        )

    def _take_in(self, to: str, ts: float, source: str, messages: list[Message], entered: list[str]) -> None:
        """Journal which letters were picked up and which `entered`; move the cursor to the first not picked up."""
        box = self._boxes[to]
        before = box.first_unread
        while box.first_unread < len(box.order) and box.order[box.first_unread].picked:
            box.first_unread += 1
        offset = box.order[box.first_unread - 1].end if box.first_unread else 0
        agent = self._team.agent(to)
        if box.first_unread != before and agent.path.exists():
            agent.cursor.overwrite(Cursor(offset=offset))
        event = Intake(ts=ts, run=self._journals.run_of(to), messages=messages, entered=entered, cursor=offset)
        self._journals.append(to, event, source)


_REQUEST_TEXT = {
    "plan_approval_request": "planContent", "permission_request": "description", "shutdown_request": "reason",
}  # fmt: skip
"""The field of a frame whose text the message shows, by the type of a frame that asks for something."""

_ANSWERS = {
    "plan_approval_response": "plan_approval_response",
    "permission_response": "permission_response",
    "shutdown_approved": "shutdown_response",
    "shutdown_rejected": "shutdown_response",
}
"""The type of the message by the type of a frame that answers a request."""


def _describe(text: str, frame: dict[str, Any] | None) -> tuple[str, str, dict[str, JsonValue]]:
    """Return the type, the content and the metadata of the message that stands for a letter."""
    if frame is None:
        return "message", text, {}
    kind, said = frame["type"], {key: value for key, value in frame.items() if isinstance(value, str)}
    request: dict[str, JsonValue] = {"request_id": said.get("requestId") or said.get("request_id")}
    if kind in _REQUEST_TEXT:
        tool = f"{said['tool_name']}: " if "tool_name" in said else ""
        return kind, tool + said.get(_REQUEST_TEXT[kind], ""), request
    if kind in _ANSWERS:
        approved = frame.get("approved") is True or frame.get("subtype") == "success" or kind == "shutdown_approved"
        words = said.get("feedback") or said.get("reason") or said.get("error")
        return _ANSWERS[kind], words or ("approved" if approved else "rejected"), {**request, "approve": approved}
    if kind == "idle_notification":
        return kind, said.get("result") or said.get("summary") or "free for work", {}
    if kind in ("task_assignment", "teammate_terminated"):
        task = f"#{frame.get('taskId')} {said.get('subject', '')}"
        return kind, task if kind == "task_assignment" else said.get("message") or "has ended", {}
    line = json.dumps({key: value for key, value in frame.items() if key != "type"}, ensure_ascii=False)
    return "message", f"{kind[:60]}: {line}"[:_MAX_LINE], {}


def _text_key(text: str) -> str:
    return formats.hash_of(text.strip())
