"""Rules that need no tool: say something word for word, say where things stand, greet, and what else there is."""

import re
from collections.abc import Iterable

from crewboard.names import LEAD, OPERATOR
from crewboard.offline import outputs
from crewboard.offline.ask import Ask, Steps, bullets, quoted
from crewboard.offline.conversation import Conversation, Done, Said, only_mail

_ABILITIES = (
    "list, find, read and search files",
    "run a command (run: COMMAND) or the tests, write or edit a file, where my type may",
    "submit a plan and wait for its approval",
    "ask the operator, send mail to a teammate, work on a task",
    "say where I stand",
)

_LEADS_ABILITIES = (
    "name the team, say who is on it, end it (create a team called NAME, list the team, delete the team)",
    "hire agents (spawn NAME (coder) to …, in the background if you say so), have them do something, have them leave",
    "put a task on the board and assign it, broadcast a message, check my inbox",
    "have somebody submit a plan first, and approve or reject it as you say",
)


def _speak(text: str) -> Steps:
    yield from ()
    return text


def say(ask: Ask) -> Steps | None:
    """Reply with exactly: hello."""
    asked = ask.match(
        r"^\W*(?:please\s+)?(?:(?:reply|answer|respond)(?=\s+(?:with|exactly|only|just)|:)|say\b|echo\b|repeat\b)"
        r"(?:\s+(?:with|exactly|only|just|the|this|following|after me|(?:(?:one|single)\s+)*(?:words?|text))\b)*"
        r"\s*:?\s*(.+)$"
    )
    if asked is None or re.match(r"(?:where|what|who|how|why|if|whether|when)\b", asked[1], re.IGNORECASE):
        return None
    marked = quoted(asked[1])
    return _speak(marked[0] if marked else asked[1].strip())


def status(ask: Ask) -> Steps | None:
    """Give me a summary of what you did."""
    if ask.has(r"^\W*(?:status|progress)(?:\s+(?:update|report))?\s*[:–-]"):
        return None  # that tells one, and asks for none
    wanted = (
        r"\b(summary|summari[sz]e|status|progress|report back|recap|where (do |are )?you( stand)?\b|"
        r"what (have|did|are|were) you (done|do|doing|find|found|learn)|how far|how is it going|what('s| is) up)"
    )
    return _speak(so_far(ask.talk)) if ask.has(wanted) else None


def wait(ask: Ask) -> Steps | None:
    """Wait for mail."""
    return _speak("Ready. I wait for mail.") if ask.has(r"\b(wait|stand ?by|idle|be ready|hold on)\b") else None


def greet(ask: Ask) -> Steps | None:
    """Hello."""
    hello = r"^\W*(hi|hello|hey|good (morning|day|evening)|greetings|ping|thanks?( you)?|ok(ay)?)\b"
    asks_who = r"\bwho are you\b|\bwhat can you do\b|^\W*help\b|\byour (abilities|skills)\b|\bintroduce yourself\b"
    short = len(ask.text.split()) <= 8  # noqa: PLR2004  a greeting has no more words than that
    return _speak(introduction(ask.talk)) if (short and ask.has(hello)) or ask.has(asks_who) else None


def introduction(talk: Conversation) -> str:
    """Who speaks, and that it is no language model."""
    abilities = [*(_LEADS_ABILITIES if talk.type == LEAD else ()), *_ABILITIES]
    return (
        f"I am {talk.name}, of type {talk.type}. I run on crewboard's embedded model, which is a small set of rules "
        f"and no language model. I can:\n{bullets(abilities)}"
    )


def otherwise(ask: Ask) -> Steps:
    """What is said when no rule knows what to do."""
    if ask.kind == "interrupt":
        return _speak(so_far(ask.talk))
    if ask.kind in {"result", "error", "broadcast"} or ask.author not in {OPERATOR, LEAD}:
        return _speak(f"I read what {ask.author} wrote; there is nothing in it for me to do.")
    return _speak(f"I do not know how to do this: “{first_line(ask.whole)}”\n\n{introduction(ask.talk)}")


def so_far(talk: Conversation) -> str:
    """What was asked, done and answered in this conversation, from its record."""
    told = [f"I am {talk.name}, of type {talk.type} in the team {talk.team}."]
    asked = [mail for mail in only_mail(talk.entries) if mail.kind in {"prompt", "task_assignment"}]
    told += [f"{mail.author} asked me: “{first_line(mail.text)}”" for mail in asked]
    deeds = list(_deeds(talk.done))
    told.append(f"What I did:\n{bullets(deeds)}" if deeds else "I have called no tool yet.")
    answers = [entry.text for entry in talk.entries if isinstance(entry, Said) and entry.final and entry.text]
    if answers:
        told.append(f"What I answered:\n\n{answers[0] if len(answers) == 1 else answers[-1]}")
    elif deeds:
        told.append("I have not finished yet.")
    return "\n\n".join(told)


def _deeds(done: Iterable[Done]) -> Iterable[str]:
    """The calls so far, those that look grouped by tool, the others one by one."""
    calls = list(done)
    for tool, verb in (("list_dir", "listed"), ("glob", "looked for"), ("grep", "searched for"), ("read_file", "read")):
        named = list(dict.fromkeys(_object(call) for call in calls if call.tool == tool and call.ok))
        if named:
            yield f"{verb} {', '.join(named)}"
    for call in calls:
        if call.tool not in {"list_dir", "glob", "grep", "read_file"} or not call.ok:
            yield _deed(call)


def _object(call: Done) -> str:
    return str(call.input.get("pattern") or call.input.get("path") or "the project folder")


_TOLD = frozenset({"ask_operator", "submit_plan", "review_plan", "request_shutdown", "delete_team"})
"""Tools whose result is told with the call."""


def _deed(call: Done) -> str:
    what = {
        "bash": f"ran `{call.input.get('command')}`",
        "write_file": f"wrote {call.input.get('path')}",
        "edit_file": f"edited {call.input.get('path')}",
        "send_message": f"wrote to {call.input.get('to')}: {first_line(str(call.input.get('content', '')))}",
        "ask_operator": f"asked the operator: {call.input.get('question')}",
        "submit_plan": "submitted a plan",
        "spawn_agent": f"hired {call.input.get('name')} ({call.input.get('agent_type')})",
        "request_plan": f"asked {call.input.get('teammate')} for a plan",
        "review_plan": "decided on a plan",
        "request_shutdown": f"asked {call.input.get('teammate')} to shut down",
        "create_team": f"named the team {call.input.get('name')}",
        "task_create": f"put a task on the board: {call.input.get('subject')}",
        "broadcast": f"told everybody: {first_line(str(call.input.get('content', '')))}",
        "list_team": "looked who is on the team",
        "delete_team": "deleted the team",
        "task_claim": f"claimed task {call.input.get('task_id')}",
        "task_update": f"set task {call.input.get('task_id')} to {call.input.get('status')}",
    }.get(call.tool, f"called {call.tool}")
    if not call.ok:
        return f"{what}, which was refused: {first_line(call.text)}"
    code = outputs.exit_code(call.text)
    if code is not None:
        return f"{what}: exit code {code}"
    return f"{what}: {first_line(call.text)}" if call.tool in _TOLD else what


def first_line(text: str, limit: int = 160) -> str:
    """The first line that is not blank, cut where it gets too long."""
    first = next(iter(outputs.lines(text)), "").strip()
    return first if len(first) <= limit else first[: limit - 1] + "…"
