"""Events: the lines of a journal, which records everything that happens to an agent, in order."""

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import UNSET, UnsetType

from crewboard.names import OPERATOR
from crewboard.records.agents import HireOptions, Spec, Terms, TermsInForce, Tokens
from crewboard.records.base import Name, Record, Time
from crewboard.records.messages import Media, Message
from crewboard.records.processes import Exit
from crewboard.untrusted import as_run

_TELLING = (
    "command", "path", "file_path", "pattern", "question", "to", "task_id", "teammate", "subject", "name", "plan",
    "content",
)  # fmt: skip
"""Arguments of tools that say what a call does, the most important first."""

_RUN = frozenset({"command", "path", "file_path", "pattern"})

_LONG_ARGUMENTS = frozenset({"write_file", "edit_file", "send_message"})
"""Tools of whose arguments only the first is shown, because the second is too long for one line."""


class _Event(Record, kw_only=True, tag_field="kind"):
    ts: Time
    run: int = 0
    source: str | UnsetType = UNSET
    """Where the event was read, in the journal of an agent of another program."""


class RunStarted(_Event, kw_only=True, tag="run_started"):
    """A worker took the lease and starts. `fresh` is True for a new conversation.

    `before` is how the previous run ended, if its worker could not record that itself; `exit.json` is replaced when
    this run ends. `spec` is the spec without its prompt, in case it is damaged later; earlier versions wrote only its
    `flags`. `fence_key` is the key for the marks around untrusted text that this run adds to the conversation; empty in
    journals of earlier versions. With `offline`, the offline model answers in place of `model`.

    If the journal lacks events of earlier runs, `damaged` is more than 0, `mail_from` is where the mailbox was read to,
    and `usage` and `cost_usd` are what was used in them.
    """

    pid: int
    type: str
    model: str
    fresh: bool
    prompt_id: str
    mail_from: int = 0
    boot_id: str = ""
    start_ticks: int = 0
    before: Exit | None = None
    flags: HireOptions | None = None
    spec: Spec | None = None
    fence_key: str = ""
    offline: bool = False
    damaged: int = 0
    usage: Tokens | None = None
    cost_usd: float | None = None


class Opening(_Event, kw_only=True, tag="opening"):
    """The beginning of each request to the model: system prompt, tools and preface, until the next such event.

    `preface` has the delimited texts before the first message: the project's file, skills and the role. The API refuses
    thinking if anything before it has changed. So all this is sent exactly as here, and thinking from before this event
    is no longer sent, unless the event only adds tools that the model is not shown yet (`adds`). With `instructs`,
    instructions of crewboard are sent as messages of the role `system`; with `falls_back`, a reply is sent back with
    the place where another model took over.
    """

    system: str
    tools: list[dict[str, Any]]
    preface: dict[str, str] = {}
    adds: bool = False
    instructs: bool = False
    falls_back: bool = False


class Intake(_Event, kw_only=True, tag="intake"):
    """The agent picked up mail. Once this event is in the journal, the mail counts as read.

    - `messages` are all messages between the old and the new `cursor`; `damaged` counts the damaged lines between them.
    - `entered` are the ids of the messages, among these or earlier ones, that enter the conversation now.
    - `assignment` is the id of the assignment that begins here; None if none does.
    - `prompt` is the hire prompt, in the first intake of a new conversation.
    - `notices` are texts of crewboard itself: they tell of shutdown requests (`shutdowns`, their ids), remind of an
      unfinished task (`reminds`, its id), or warn that a budget is nearly used up (`warned`) or a call repeats
      (`looping`).
    - `instructions` are such texts that contain no words of others. Where the model takes them, they are sent with the
      rank of the system prompt.
    - `updates` are delimited texts that replace texts of the opening, by key; an empty text removes one.
    - `task` is the id of the task that the agent has in progress.
    """

    messages: list[Message] = []
    cursor: int = 0
    damaged: int = 0
    entered: list[str] = []
    prompt: str | None = None
    prompt_from: Name = OPERATOR
    notices: list[str] = []
    instructions: list[str] = []
    updates: dict[str, str] = {}
    shutdowns: list[str] = []
    reminds: int | None = None
    task: int | None = None
    warned: bool = False
    looping: bool = False
    assignment: str | None = None


class CacheMiss(Record):
    """Why a request read less from the prompt cache than the one before it, in the API's words.

    `tokens` is about how many more could have been read; None if the API does not say.
    """

    reason: str
    tokens: int | None = None


class Reply(_Event, kw_only=True, tag="reply"):
    """One complete reply of the model, as it is sent back in the conversation.

    - What a server left out or gave wrongly is corrected: counts, ids and inputs of calls, the stop reason.
    - `refused` says, by the id of the call, why a tool call is not run: its input could not be kept, and is empty here.
    - `stop_details` are the API's words about the stop reason. `model` is the model that replied.
    - `id` is the API's id of the reply, with which the API compares the next request for its cache; empty from other
      servers. `cache_miss` is the outcome of that comparison.
    - `context_used` is how many tokens of its window an engine says are in use. Of an engine, `usage` counts all calls
      of the turn.
    """

    content: list[dict[str, Any]]
    stop_reason: str
    usage: Tokens
    model: str = ""
    seconds: float = 0
    cost_usd: float | None = None
    refused: dict[str, str] = {}
    stop_details: dict[str, Any] | None = None
    id: str = ""
    cache_miss: CacheMiss | None = None
    context_used: int | None = None


class BrokenReply(_Event, kw_only=True, tag="broken_reply"):
    """The tokens of a reply that was not used, or that an engine reported outside of a turn.

    The reply broke off (the connection failed, or an interrupt ended it), its model refused and another one took over,
    or it was no summary where one was asked for.
    """

    usage: Tokens
    model: str = ""
    cost_usd: float | None = None
    turn: Literal["", "early", "after"] = ""
    """For an engine: `early` if its turn ended early, `after` if the tokens are of replies that ended after a
    turn; else empty.
    """


WINDOW_FULL = "model_context_window_exceeded"
INCOMPLETE = "incomplete"
"""The stop reason that is recorded for a reply that broke off within a tool call although the server called it
complete.
"""

CUT_OFF = frozenset({"max_tokens", "pause_turn", WINDOW_FULL, INCOMPLETE})
"""Stop reasons of a reply that must be continued. A notice asks the model for it: not every model continues
its own text.
"""

NOT_UNDERSTOOD = "not_understood"
"""The `explanation` in the stop details of a reply in which the offline model says that it understood nothing."""

NOT_RUN = CUT_OFF | {"refusal"}
"""Stop reasons of a reply whose tool calls are not run. With any other reason they are."""

_STOPS = {
    "end_turn": "", "tool_use": "", "stop_sequence": "",
    "incomplete": "broke off within a tool call; it is continued",
    "max_tokens": "cut off at its longest length; it is continued",
    "pause_turn": "paused by the API; it is continued",
    "cancelled": "cancelled", "max_turn_requests": "stopped after as many model calls as its engine allows",
    "model_context_window_exceeded": "cut off because the context window is full; it is continued in a shorter one",
}  # fmt: skip


def describe_stop(reply: Reply) -> str:
    """Return in words why a reply stopped; empty if it ended normally."""
    if reply.stop_reason == "refusal":
        details = reply.stop_details or {}
        category, why = (str(details.get(name) or "") for name in ("category", "explanation"))
        return f"{reply.model or 'the model'} refused{f' ({category})' if category else ''}{f': {why}' if why else ''}"
    unknown = f"stopped for a reason that this version does not know: {reply.stop_reason}"
    return _STOPS.get(reply.stop_reason, unknown)


class ToolStart(_Event, kw_only=True, tag="tool_start"):
    """A tool call begins. Without a later `ToolResult` its outcome is unknown.

    `consumed` are the ids of the mail that permitted the call. `deviates` says that the approved plan does not name it.
    `rule` is the id of the permission rule that allowed the call, or because of which the operator was asked. `file` is
    the file that a file tool is about to change, relative to the workspace, with links resolved.
    """

    tool_use_id: str
    name: str
    input: dict[str, Any]
    consumed: list[str] = []
    deviates: bool = False
    rule: str | None = None
    file: str | None = None


def describe_call(name: str, arguments: Mapping[str, Any]) -> str:
    """Return a tool call on one line, such as `bash python -m pytest` or `edit_file src/app.py`."""
    told = [(key, str(arguments[key])) for key in _TELLING if key in arguments]
    shown = [as_run(text) if key in _RUN else text for key, text in told]
    most = 1 if name in _LONG_ARGUMENTS else 2
    return " ".join([name, *shown[:most]]).strip().replace("\n", " ")


class ToolResult(_Event, kw_only=True, tag="tool_result"):
    """The result of a tool call.

    - `seconds` is how long the call took, None if its worker ended first. `created` says that the call made a new file.
    - `consumed` are the ids of mail that the result already contains, and that never enters the conversation otherwise.
    - `task` is the id of the task that the agent has in progress after the call.
    - `exit_code` is that of the command that the call ran, or minus the number of the signal that ended the command;
      None for other tools and for commands that were ended early.
    - `rule` is the id of the permission rule because of which the call was refused.
    - `media` are images and documents that the call read.
    - `snapshot` is that of the agent's checkout after the call; it was in the store before this event.
    - `tools` are the names of tools that the model looked for; it is shown them in place of `content`.
    - `unchanged` says that the change of a file that was kept for it (`FileKept`) certainly was not made.
    """

    tool_use_id: str
    name: str
    content: str
    is_error: bool = False
    created: bool = False
    seconds: float | None = 0
    consumed: list[str] = []
    task: int | None = None
    exit_code: int | None = None
    rule: str | None = None
    media: list[Media] = []
    snapshot: str | None = None
    tools: list[str] = []
    unchanged: bool = False


class FileKept(_Event, kw_only=True, tag="file_kept"):
    """A file tool is about to change a file of the shared tree. Its content is kept, so that this can be reversed.

    `path` is relative to the root; bytes that are not UTF-8 are escaped. `before` and `after` are the SHA-256 of the
    content; `before` is None if there was no file, or if its content is not kept, for the reason in `lost`. `folders`
    is the number of folders that the call makes.
    """

    id: str
    tool_use_id: str
    path: str
    before: str | None
    after: str
    lost: str = ""
    folders: int = 0


class Gate(_Event, kw_only=True, tag="gate"):
    """The plan gate of an assignment opened, by the approval of the request `request_id`, or closed.

    `terms` are those of the approval. If they are None, the terms in force stay as they are.
    """

    open: bool
    request_id: str | None = None
    terms: TermsInForce | None = None


class Answer(_Event, kw_only=True, tag="answer"):
    """An assignment ended with an answer or with `error`. `answers` are the ids of the prompt and mail that it answers.

    `result` is the file of the result. `code` is the exit code for the error, and 1 for an answer that nothing was
    understood. `held`: a limit or missing credentials stopped the assignment, and a resume continues it. `continued`:
    it was held before. `ended_terms` are the terms of the approval that ended with the result. `refused_by` is the
    model that refused. `for_operator`: only the operator asked for the work.
    """

    assignment: str
    answers: list[str]
    text: str
    result: str | None = None
    error: str | None = None
    code: int = 0
    held: bool = False
    continued: bool = False
    ended_terms: Terms | None = None
    refused_by: str | None = None
    for_operator: bool = False


class Sent(_Event, kw_only=True, tag="sent"):
    """A message of this agent was appended to its recipient's mailbox."""

    message: Message


class Retry(_Event, kw_only=True, tag="retry"):
    """A model call failed; the next attempt is made at `until`."""

    error: str
    attempt: int
    until: Time


class Cleared(_Event, kw_only=True, tag="cleared"):
    """The results of these tool calls are left out of the conversation from now on, to save context.

    `media` are images and documents that are left out as well, by SHA-256 with the reason.
    """

    tool_use_ids: list[str]
    media: dict[str, str] = {}


class Summary(_Event, kw_only=True, tag="summary"):
    """The conversation was summarized: `text` replaces its first `covers` blocks, all but the newest turns."""

    covers: int
    text: str
    usage: Tokens
    cost_usd: float | None = None


class SnapshotTaken(_Event, kw_only=True, tag="snapshot"):
    """The agent's checkout was saved in the user's repository as `commit`, at the beginning or end of an assignment."""

    assignment: str
    commit: str
    at: Literal["begin", "end"]


class EngineSession(_Event, kw_only=True, tag="engine_session"):
    """The agent's engine has a session: a new one, before its first prompt, or an earlier one that was `loaded`.

    `engine` and `version` are the name and version that the engine states.
    """

    session: str
    engine: str = ""
    version: str = ""
    loaded: bool = False


class Offered(_Event, kw_only=True, tag="offered"):
    """Texts are about to be sent to the engine, by the ids of the prompt, of mail and of notices that they contain."""

    texts: list[str]


class Taken(_Event, kw_only=True, tag="taken"):
    """The engine has these texts in its session, by their ids.

    After a crash, the session is loaded and the texts are looked for in it (`looked_up`): of the texts since its last
    whole turn, it then has these and no others.
    """

    texts: list[str]
    looked_up: bool = False


class RunEnded(_Event, kw_only=True, tag="run_ended"):
    """The worker ended in an orderly way, with this exit code and reason."""

    code: int
    reason: str


Event = (
    RunStarted
    | Opening
    | Intake
    | Reply
    | BrokenReply
    | ToolStart
    | ToolResult
    | FileKept
    | Gate
    | Answer
    | Sent
    | Retry
    | Cleared
    | Summary
    | SnapshotTaken
    | EngineSession
    | Offered
    | Taken
    | RunEnded
)
"""One line of a journal."""
