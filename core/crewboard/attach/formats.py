"""Parse Claude Code's files, whose formats are not documented and change with its versions.

A field that is missing or has an unexpected type gets a default. A file that is not valid is called torn: it is being
written, is parsed as None, and is read again later. Times are in epoch seconds.
"""

import fnmatch
import hashlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from crewboard.records.agents import Tokens

TESTED = ("2.1.177", "2.1.197", "2.1.330", "2.1.332")
"""The versions of Claude Code with whose files this module was tested, the oldest first."""

LEAD = "team-lead"
"""The name of the lead in each team of Claude Code."""

MAX_TEXT = 200_000
"""Characters of one text of a transcript that are mirrored; the rest is cut off."""

_LETTER = re.compile(r'<teammate-message teammate_id="([^"]*)"([^>]*)>\n?(.*?)\n?</teammate-message>', re.DOTALL)
_WANTED = (b'"type":"assistant"', b'"type":"user"')
_MAX_DEPTH = 24


@dataclass(frozen=True)
class Member:
    """A member of a team. `backend` says where it runs: `in-process` or `tmux`, empty while that is not known.

    `prompt` is the text that it was started with.
    """

    name: str
    agent_type: str
    model: str
    prompt: str
    cwd: str
    backend: str
    joined_at: float
    plan_required: bool

    @property
    def is_lead(self) -> bool:
        """Return True if this member is the lead."""
        return self.name == LEAD


@dataclass(frozen=True)
class Roster:
    """A team's `config.json`. `lead_session` is the id of the lead's session.

    `lead_pid` and `lead_ticks`, the start time of its process in clock ticks, are 0 before version 2.1.330.
    """

    name: str
    description: str
    created_at: float
    lead_session: str
    lead_pid: int
    lead_ticks: int
    members: tuple[Member, ...]


@dataclass(frozen=True)
class Session:
    """A file in `sessions/`: an interactive process. `ticks` is its start time, field 22 of /proc/PID/stat.

    `status` is `busy`, `idle` or `waiting`, then for `waiting_for`, and `since` is when that began. `started_at` is the
    start of the session, a moment after that of its process. `socket` is the path of the socket for messages, empty if
    there is none, as in older versions.
    """

    pid: int
    ticks: int
    ident: str
    cwd: str
    version: str
    status: str
    waiting_for: str
    since: float
    started_at: float
    socket: str


@dataclass(frozen=True)
class Letter:
    """A letter from one agent to another. `mark` identifies it: an id, or author, time and a hash of the text.

    A letter found in its recipient's transcript has neither time nor mark at first.
    """

    author: str
    text: str
    ts: float
    mark: str


@dataclass(frozen=True)
class BoardTask:
    """A task of a team's board, from one file. `blocked_by` are ids of tasks."""

    id: int
    subject: str
    description: str
    status: str
    owner: str
    blocked_by: tuple[int, ...]


def files_in(folder: Path, pattern: str) -> list[Path]:
    """Return the files in a folder whose names match a pattern, sorted; none if the folder cannot be read."""
    try:
        # To list and sort names takes a tenth of the time that paths take.
        return [folder / name for name in sorted(fnmatch.filter(os.listdir(folder), pattern))]  # noqa: PTH208  as above
    except OSError:
        return []


def roster(data: bytes) -> Roster | None:
    """Return the roster in a team's `config.json`, or None if it is torn."""
    found = _object(data)
    if found is None or not isinstance(found.get("members"), list):
        return None
    process = found.get("leadProcess")
    process = process if isinstance(process, dict) else {}
    members = [
        Member(
            name=_text(each.get("name")),
            agent_type=_text(each.get("agentType")),
            model=_text(each.get("model")),
            prompt=_text(each.get("prompt")),
            cwd=_text(each.get("cwd")),
            backend=_text(each.get("backendType")) or ("tmux" if _text(each.get("tmuxPaneId"))[:1] == "%" else ""),
            joined_at=_milliseconds(each.get("joinedAt")),
            plan_required=each.get("planModeRequired") is True,
        )
        for each in found["members"]
        if isinstance(each, dict) and _text(each.get("name"))
    ]
    return Roster(
        name=_text(found.get("name")),
        description=_text(found.get("description")),
        created_at=_milliseconds(found.get("createdAt")),
        lead_session=_text(found.get("leadSessionId")),
        lead_pid=_number(process.get("pid")),
        lead_ticks=_number(process.get("procStart")),
        members=tuple(members),
    )


def session(data: bytes) -> Session | None:
    """Return the session in a file of `sessions/`, or None if it is torn."""
    found = _object(data)
    if found is None or not _number(found.get("pid")):
        return None
    return Session(
        pid=_number(found.get("pid")),
        ticks=_number(found.get("procStart")),
        ident=_text(found.get("sessionId")),
        cwd=_text(found.get("cwd")),
        version=_text(found.get("version")),
        status=_text(found.get("status")),
        waiting_for=_text(found.get("waitingFor")),
        since=_milliseconds(found.get("statusUpdatedAt")),
        started_at=_milliseconds(found.get("startedAt")),
        socket=_text(found.get("messagingSocketPath")),
    )


def inbox(data: bytes) -> list[Letter] | None:
    """Return the letters in an inbox file, or None if it is torn. Entries without a text are left out."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, list):
        return None
    letters = []
    for each in found:
        if isinstance(each, dict) and isinstance(each.get("text"), str):
            author, text, ts = _text(each.get("from")), each["text"], _text(each.get("timestamp"))
            mark = _text(each.get("msg_id")) or f"{author}|{ts}|{hash_of(text)}"
            letters.append(Letter(author, text, moment(ts), mark))
    return letters


def task(data: bytes) -> BoardTask | None:
    """Return the task in a file of a board, or None if it is torn."""
    found = _object(data)
    if found is None or not 0 < _number(found.get("id")) < 10**9:
        return None
    blockers = found.get("blockedBy")
    return BoardTask(
        id=_number(found.get("id")),
        subject=_text(found.get("subject")),
        description=_text(found.get("description")),
        status=_text(found.get("status")),
        owner=_text(found.get("owner")).partition("@")[0],
        blocked_by=tuple(n for each in blockers if (n := _number(each))) if isinstance(blockers, list) else (),
    )


def frame(text: str) -> dict[str, Any] | None:
    """Return the frame in a letter: its whole text as a JSON object, with a `type` such as `idle_notification`.

    Return None for any other text.
    """
    if not text.lstrip().startswith("{"):
        return None
    found = _object(text.encode("utf-8", "replace"))
    return found if found is not None and isinstance(found.get("type"), str) else None


def transcript_record(line: bytes) -> dict[str, Any] | None:
    """Return the record in a line of a transcript if it is a message of the model or the user; None for all others.

    The types are looked for before the line is parsed, to save time: transcripts are large.
    """
    if not any(wanted in line for wanted in _WANTED):
        return None
    found = _object(line)
    if found is None or found.get("type") not in ("assistant", "user") or not isinstance(found.get("message"), dict):
        return None
    return found


def letters_in(text: str) -> Iterator[Letter]:
    """Yield the letters in a text of a transcript, where each is between tags that name its author.

    These letters have no time and no mark.
    """
    for author, _, said in _LETTER.findall(text):
        yield Letter(author, said, 0, "")


def content_blocks(record: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the content of a transcript's record as blocks in the API's form; plain text becomes one block."""
    content = record["message"].get("content")
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []


def result_text(block: dict[str, Any]) -> str:
    """Return the text of a tool's result, at most `MAX_TEXT` characters; other parts become `[image]` and the like."""
    content = block.get("content")
    if isinstance(content, str):
        return content[:MAX_TEXT]
    parts = content if isinstance(content, list) else []
    texts = [_text(part.get("text")) or f"[{_text(part.get('type'))}]" for part in parts if isinstance(part, dict)]
    return "\n".join(texts)[:MAX_TEXT]


def usage(record: dict[str, Any]) -> Tokens:
    """Return the tokens and web uses of the whole model call that a record is a part of."""
    found = record["message"].get("usage")
    found = found if isinstance(found, dict) else {}
    on_the_web = found.get("server_tool_use")
    on_the_web = on_the_web if isinstance(on_the_web, dict) else {}
    kept = found.get("cache_creation")
    written = _number(found.get("cache_creation_input_tokens"))
    an_hour = _number(kept.get("ephemeral_1h_input_tokens")) if isinstance(kept, dict) else 0
    return Tokens(
        input=_number(found.get("input_tokens")),
        output=_number(found.get("output_tokens")),
        cache_read=_number(found.get("cache_read_input_tokens")),
        cache_write=written,
        cache_write_1h=min(an_hour, written),
        web_searches=_number(on_the_web.get("web_search_requests")),
        web_fetches=_number(on_the_web.get("web_fetch_requests")),
    )


def sent_letter(record: dict[str, Any]) -> tuple[str, Letter] | None:
    """Return the recipient and the letter if a record is the result of sending a letter; None if it is not.

    Return None for versions before 2.1.330, too: their letters have no id here, so one could be counted twice.
    """
    result = record.get("toolUseResult")
    routing = result.get("routing") if isinstance(result, dict) else None
    if not isinstance(result, dict) or not isinstance(routing, dict) or not isinstance(result.get("msg_id"), str):
        return None
    to, author, text = (_text(routing.get(key)) for key in ("target", "sender", "content"))
    if not text or not author:
        return None
    return to.removeprefix("@"), Letter(author, text, moment(_text(record.get("timestamp"))), result["msg_id"])


def moment(text: object) -> float:
    """Return an ISO 8601 time in epoch seconds; 0 if `text` is no such time."""
    try:
        return max(0.0, datetime.fromisoformat(str(text)).timestamp())
    except (ValueError, OverflowError):
        return 0.0


def hash_of(text: str) -> str:
    """Return the first 16 hexadecimal digits of the SHA-256 of a text."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def clip(value: Any, depth: int = 0) -> Any:  # noqa: ANN401  any JSON value
    """Return a JSON value with long texts cut and deep nesting replaced by `…`, so that a journal accepts it.

    `depth` is the depth of `value` in the whole.
    """
    if depth > _MAX_DEPTH:
        return "…"
    if isinstance(value, str):
        return value[:MAX_TEXT]
    if isinstance(value, dict):
        return {str(key): clip(each, depth + 1) for key, each in value.items()}
    return [clip(each, depth + 1) for each in value] if isinstance(value, list) else value


def is_tested(version: str) -> bool:
    """Return True if a version is from the oldest to the newest of `TESTED`, or has no number."""
    found = _parts(version)
    return not found or _parts(TESTED[0]) <= found <= _parts(TESTED[-1])


def _parts(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def _object(data: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _text(value: object) -> str:
    """Return a value if it is a text, else an empty one. Lone surrogates, which cannot be stored, become `?`."""
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else ""


def _number(value: object) -> int:
    """Return a number as a whole one of 0 or more, also if it is given as text; 0 for anything else."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 19:  # noqa: PLR2004  digits of an int64
        return int(value)
    return max(0, int(value)) if isinstance(value, (int, float)) and abs(value) < 2**63 else 0


def _milliseconds(value: object) -> float:
    return _number(value) / 1000
