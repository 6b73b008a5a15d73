"""Rules about the rest of the team: ask the operator, send mail, read the inbox, work on tasks."""

import re

from crewboard.offline import outputs
from crewboard.offline.ask import Ask, Steps, quoted, refused
from crewboard.offline.conversation import Call, Notice, only_mail
from crewboard.offline.rules.talk import so_far
from crewboard.records import JOINS_NEXT_TURN

_NOBODY = frozenset({
    "a", "an", "back", "everybody", "everyone", "her", "him", "how", "if", "it", "me", "my", "off", "our", "out",
    "that", "the", "them", "to", "up", "us", "what", "where", "which", "who", "why", "you", "your",
})  # fmt: skip
"""Words behind "tell" and "send" that name nobody."""

_UNKNOWN = "Nothing in it is among the few things that I, the embedded model, know to do; I changed nothing."

_TASK = r"\btask\s+(?:number\s+)?#?(\d+)\b"


def ask_operator(ask: Ask) -> Steps | None:
    """Ask the operator: tabs or spaces?"""
    asked = ask.match(
        r"\bask\s+(?:the\s+)?(?:operator|me|human|user|us|boss)\b\s*(?:whether|if|about|for|to)?\s*[:,]?\s*(.*)$"
    )
    if asked is None:
        return None
    rest = asked[1].strip()
    marked = quoted(rest)
    listed = re.search(r"\(?\boptions?:?\s+([^)]+)\)?", rest, re.IGNORECASE)
    options = [part.strip(" .'\"`") for part in re.split(r",|\bor\b|/|;", listed[1])] if listed else []
    question = marked[0] if marked and not listed else rest[: listed.start()].strip(" ,(") if listed else rest
    return _ask_operator(question or "What should I do?", [option for option in options if option])


def _ask_operator(question: str, options: list[str]) -> Steps:
    done = yield Call("ask_operator", {"question": question, **({"options": options} if options else {})})
    if not done.ok:
        return refused("ask_operator", done)
    return f"I asked: {question}\nThe operator answered: {outputs.answer(done.text)}"


def send(ask: Ask) -> Steps | None:
    """Tell scout that the tests pass. Send fixer "go on"."""
    asked = ask.match(
        r"(?:^\W*|\b(?:please|and|also|to)\s+)(?:send|tell|message|notify|inform|mail|let|write(?=\s+to\b))\s+"
        r"(?:(?:a|the|this)?\s*(?:message|mail|note|word)\s+to\s+|to\s+)?"
        r"(?:the\s+)?@?([a-z][a-z0-9_-]*)\b[:,]?\s*"
        r"(?:(?:know\s+)?that\b|know\b|saying\b|a message\b|with\b)?[:,]?\s*(.+)$"
    )
    if asked is None or asked[1].lower() in _NOBODY or re.match(r"\.\w", asked[2]):
        return None
    marked = quoted(asked[2])
    return _send(ask, asked[1].lower(), marked[0] if marked else asked[2].strip())


def _send(ask: Ask, to: str, text: str) -> Steps:
    wants_report = re.fullmatch(
        r"(?:(?:the|a|your)\s+)?(?:results?|summary|status|answer|findings|report)\.?|what you (?:found|did|have)\.?",
        text,
        re.IGNORECASE,
    )
    done = yield Call("send_message", {"to": to, "content": so_far(ask.talk) if wants_report else text})
    if not done.ok:
        return refused("send_message", done)
    return f"I sent {to}: {text}\n{done.text.strip()}".strip()


def inbox(ask: Ask) -> Steps | None:
    """Read your inbox."""
    return _inbox() if ask.has(r"\b(inbox|mailbox|your mail|new mail|check (for )?mail)\b") else None


def _inbox() -> Steps:
    done = yield Call("read_inbox")
    if not done.ok:
        return refused("read_inbox", done)
    return f"In my inbox:\n{done.text.strip()}" if done.text.strip() else "My inbox is empty."


def list_tasks(ask: Ask) -> Steps | None:
    """List the tasks."""
    return _list_tasks() if ask.has(r"\b(list|show|which|what|read)\b.*\btasks\b|\btask (list|board)\b") else None


def _list_tasks() -> Steps:
    done = yield Call("task_list")
    if not done.ok:
        return refused("task_list", done)
    return f"The task board:\n{done.text.strip()}" if done.text.strip() else "The task board is empty."


def close_task(ask: Ask) -> Steps | None:
    """Mark task 3 as completed."""
    asked = ask.match(rf"\b(?:complete|finish|close|mark|set|fail|cancel)\b.*?{_TASK}(.*)$")
    if asked is None:
        return None
    wanted = re.search(r"fail|cancel|pending|in.progress", f"{ask.low[: asked.start(1)]} {asked[2].lower()}")
    status = (
        {"fail": "failed", "cancel": "cancelled", "pending": "pending"}.get(wanted[0], "in_progress")
        if wanted
        else "completed"
    )
    return _update(int(asked[1]), status)


def _update(task_id: int, status: str) -> Steps:
    done = yield Call("task_update", {"task_id": task_id, "status": status})
    if not done.ok:
        return refused("task_update", done)
    return f"Task {task_id} is {status.replace('_', ' ')}."


def work_on_task(ask: Ask) -> Steps | None:
    """Claim task 3 and do it. It takes the whole mail, as the task is complete only after the last of it."""
    asked = ask.match(rf"\b(?:claim|take|pick up|start|do|work on|begin)\b[^.\n]*?{_TASK}")
    if asked is None and ask.kind == "task_assignment":
        asked = ask.match(rf"^\W*{_TASK}:?")
    if asked:
        rest = f"{ask.text[: asked.start()]}\n{ask.text[asked.end() :]}"
        return _work_on(ask, int(asked[1]), _without_small_talk(rest))
    if ask.kind == "task_assignment" or ask.has(r"\b(?:claim|take|pick up)\b.*\btask\b"):
        return _claim_any(ask)
    return None


def _without_small_talk(rest: str) -> str:
    words = r"^\W*(?:and|then|do it|please|it|is yours|was assigned to you)\b"
    return re.sub(words, "", rest.strip(), flags=re.IGNORECASE).strip()


def _work_on(ask: Ask, task_id: int, rest: str) -> Steps:
    why_not = _not_to_be_had(ask, task_id)
    if why_not:
        return why_not
    claimed = yield Call("task_claim", {"task_id": task_id}, say=f"Taking task {task_id}.")
    if not claimed.ok:
        return refused("task_claim", claimed)
    steps = ask.dispatch(ask.about(rest)) or ask.dispatch(ask.about(claimed.text.partition(":")[2]))
    said = (yield from steps) if steps else _UNKNOWN
    closed = yield from _update(task_id, "completed" if steps else "failed")
    return f"{said}\n\n{closed}"


def _not_to_be_had(ask: Ask, task_id: int) -> str | None:
    """What the system said if it could not put the task in progress."""
    notices = [entry.text for entry in ask.talk.span if isinstance(entry, Notice)]
    return next((text for text in notices if re.match(rf"task {task_id} could not be", text)), None)


def _claim_any(ask: Ask) -> Steps:
    listed = yield Call("task_list")
    if not listed.ok:
        return refused("task_list", listed)
    open_tasks = [line for line in outputs.lines(listed.text) if re.search(r"\bpending\b(?!.*blocked)", line)]
    ids = [number for line in open_tasks for number in re.findall(r"\d+", line)[:1]]
    if not ids:
        return "There is no task to claim."
    return (yield from _work_on(ask, int(ids[0]), ""))


def own_task(ask: Ask) -> Steps | None:
    """The system says which task is one's own, or that it is still in progress."""
    own = ask.match(r"^(?:Your task is|The API was unavailable\. Go on with) #(\d+) (.*?) \((?:in_progress|pending)\b")
    if own is None:
        left = ask.match(r"#(\d+)\b.*\bis still in progress\b")
        return _close(ask, int(left[1]), "completed") if left else None
    prompts = [mail for mail in only_mail(ask.talk.span) if mail.kind not in JOINS_NEXT_TURN]
    if not prompts:
        description = ask.text.partition("\n\n")[2]
        return _do(ask, int(own[1]), f"{own[2]}\n{description}")
    known = any(work_on_task(told) or ask.dispatch(told) for told in map(ask.written, prompts))
    return _close(ask, int(own[1]), "completed" if known else "failed")


def _close(ask: Ask, task_id: int, status: str) -> Steps:
    """Close a task that is not closed yet."""
    updates = [done for done in ask.walk.made if done.tool == "task_update" and done.ok]
    if any(done.input.get("task_id") == task_id for done in updates):
        return ""
    return (yield from _update(task_id, status))


def _do(ask: Ask, task_id: int, task: str) -> Steps:
    """Do a task that the board alone tells of."""
    steps = ask.dispatch(ask.about(task))
    said = (yield from steps) if steps else _UNKNOWN
    closed = yield from _update(task_id, "completed" if steps else "failed")
    return f"{said}\n\n{closed}"
