"""What to reply to a request: the turn of a scenario, else what the phrasebook says about the mail that came.

The reply is a function of the request alone, so that the same request gets the same reply.
"""

import re
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence

from crewboard.agent_types.builtin import GATED_TOOLS
from crewboard.names import LEAD, OPERATOR
from crewboard.offline import lead
from crewboard.offline.conversation import HIRE_PROMPT, NOTICE, Call, Conversation, Done, Entry, Mail, mail_in
from crewboard.offline.phrasebook import Order, understand
from crewboard.offline.reply import Reply, Speed, reply_of
from crewboard.offline.results import fill
from crewboard.offline.scenario import Scenario, ScenarioAgent, Turn, play
from crewboard.offline.wire import CountRequest
from crewboard.offline.work import Steps, Work, approvals, not_understood, refused, status
from crewboard.records import JOINS_NEXT_TURN

FREE_SPEED = Speed(delay=0.15, word=0.012)
"""How fast free prompts are answered: quick, and still seen to stream."""

_MOST_LINES = 60
_LONGEST_LINE = 200
_CHANGED_NOTHING = "Nothing in it is in my phrasebook, so I changed nothing."
_TASK_LINE = re.compile(r"#(?P<id>\d+) (?P<subject>.+?) \((?P<status>in_progress|pending)(?:, (?P<owner>[\w-]+))?")
_TASK_MAIL = re.compile(r"\W*(?:task )?#?(?P<id>\d+)\W*(?P<work>.*)", re.IGNORECASE | re.DOTALL)


def respond(request: CountRequest, talk: Conversation, scenarios: Sequence[Scenario]) -> Reply:
    """Return the reply to a request."""
    # A worker whose window fills up asks for a summary, in a request without tools.
    if not request.tools and "summar" in talk.system.lower():
        return reply_of(summary(request.messages[-1].text), speed=FREE_SPEED)
    if _asked_to_leave(talk):
        return reply_of("", Call("shutdown_response", {"approve": True}), speed=FREE_SPEED)
    agent = _scripted(talk, scenarios)
    reply = _play(talk, agent) if agent else None
    if reply is not None:
        return reply
    span = _since_interrupt(talk.span)
    items = [entry for entry in span if isinstance(entry, Mail)]
    return _free(talk, items, [entry for entry in span if isinstance(entry, Done)])


def summary(transcript: str) -> str:
    """Return an extract of a transcript: what the agent said and called, line by line."""
    lines = [line[:_LONGEST_LINE] for line in transcript.splitlines() if line.startswith("assistant")]
    told = "\n".join(lines[-_MOST_LINES:]) or "(nothing was said or called)"
    return f"An extract, as the embedded model is no language model and cannot summarize:\n\n{told}"


def _asked_to_leave(talk: Conversation) -> bool:
    """Return True while a request to shut down is open and not answered yet."""
    last = talk.replies[-1:]
    return "shutdown_response" in talk.tools and not (
        last and any(done.tool == "shutdown_response" for done in last[0])
    )


# --------------------------------------------------------------------------------------------------- scenarios


def _scripted(talk: Conversation, scenarios: Sequence[Scenario]) -> ScenarioAgent | None:
    # An agent that was interrupted listens, and does not go on with a script.
    if any(mail.kind == "interrupt" for mail in mail_in(talk.entries)):
        return None
    agents = (agent for scenario in scenarios for agent in scenario.agents)
    return next((one for one in agents if one.name == talk.name and one.prompt == talk.hire_prompt), None)


def _play(talk: Conversation, agent: ScenarioAgent) -> Reply | None:
    replies = [done for done in talk.replies if not done or any(call.tool != "shutdown_response" for call in done)]
    turn, extra = play(agent.turns, replies)
    if turn is None:
        return None
    text = fill(turn.text, talk.done)
    calls = [Call(call.tool, fill(call.input, talk.done)) for call in turn.calls]
    if not turn.calls and (mail := _mail_meanwhile(talk)):
        answer = _work_through(talk, mail, extra)
        if isinstance(answer, Call):
            return reply_of(answer.say, answer, speed=_speed(turn))
        text = f"{text}\n\n{answer}"
    return reply_of(text, *calls, speed=_speed(turn))


def _speed(turn: Turn) -> Speed:
    return Speed(turn.delay, turn.word, turn.least)


def _mail_meanwhile(talk: Conversation) -> list[Mail]:
    """Return what was written while the script was running and asks for something."""
    mail = [one for one in mail_in(talk.span) if one.kind not in {HIRE_PROMPT, *JOINS_NEXT_TURN}]
    return [one for one in mail if one.author in {OPERATOR, LEAD} or _orders(talk, one.text)]


# ------------------------------------------------------------------------------------------------ free prompts


def _free(talk: Conversation, items: Sequence[Mail], done: Iterable[Done]) -> Reply:
    answer = _work_through(talk, items, done)
    if isinstance(answer, Call):
        return reply_of(answer.say, answer, speed=FREE_SPEED)
    return reply_of(answer or status(talk), speed=FREE_SPEED)


def _work_through(talk: Conversation, items: Sequence[Mail], done: Iterable[Done]) -> Call | str:
    """Return the next call for `items`, of which the calls `done` were made so far, or the answer to all of them."""
    left = deque(call for call in done if call.tool != "shutdown_response")
    made: list[Done] = []
    approved = approvals(talk)
    answers = []
    for item in _in_turn(items, left):
        work = Work(talk, item, left, made, approved)
        steps = _steps(work, item)
        outcome = work.take(steps) if steps else ""
        if isinstance(outcome, Call):
            return outcome
        answers.append(outcome)
    return "\n\n".join(answer for answer in answers if answer)


def _in_turn(items: Iterable[Mail], left: deque[Done]) -> Iterator[Mail]:
    """Yield mail as it came, and notices about tasks last: a task is closed when the work is done.

    Where a call on record is older than the mail that is next, the work was done by then.
    """
    notices: list[Mail] = []
    for item in items:
        if item.kind == NOTICE:
            notices.append(item)
            continue
        if left and left[0].turn <= item.turn:
            yield from notices
            notices.clear()
        yield item
    yield from notices


def _since_interrupt(span: tuple[Entry, ...]) -> tuple[Entry, ...]:
    """Return what is to be worked on: an interrupt ends what was being done before."""
    places = [place for place, entry in enumerate(span) if isinstance(entry, Mail) and entry.kind == "interrupt"]
    return span[places[-1] :] if places else span


def _steps(work: Work, item: Mail) -> Steps | None:
    if item.kind == NOTICE:
        return _own_task(work, item)
    if item.kind in JOINS_NEXT_TURN:
        return None
    if work.talk.type == LEAD and not lead.is_from_operator(item):
        return lead.hear(work, item)
    assigned = _TASK_MAIL.fullmatch(item.text) if item.kind == "task_assignment" else None
    if assigned:
        return _work_on_task(work, int(assigned["id"]), assigned["work"])
    if _orders(work.talk, item.text):
        return _obey(work, item.text, strict=item.author in {OPERATOR, LEAD})
    return _plan_first(work, item) or _otherwise(work, item)


def _orders(talk: Conversation, text: str) -> list[Order]:
    return [clause for clause in understand(text, lead=talk.type == LEAD) if isinstance(clause, Order)]


def _obey(work: Work, text: str, *, strict: bool = False) -> Steps:
    """Do all that a text says and the phrasebook knows; `strict` says what it does not know."""
    told: list[str] = []
    unknown: list[str] = []
    for clause in understand(text, lead=work.talk.type == LEAD):
        if isinstance(clause, Order):
            answer = yield from KINDS.get(clause.phrase.kind, Work.carry_out)(work, clause)
            told.append(answer)
        else:
            unknown.append(clause)
    if unknown and strict:
        told.append(not_understood(work.talk, *unknown))
    return "\n\n".join(dict.fromkeys(text for text in told if text))


def _plan_first(work: Work, item: Mail) -> Steps | None:
    """Plan work that no phrase knows, if nothing may be done before a plan is approved."""
    first = next(iter(mail_in(work.talk.span)), None) is item
    planned = any(isinstance(entry, Done) and entry.tool == "submit_plan" for entry in work.talk.span)
    only_plans = "submit_plan" in work.talk.tools and not GATED_TOOLS & work.talk.tools
    return _submit(work, None) if first and (planned or work.gated or only_plans) else None


def _submit(work: Work, order: Order | None) -> Steps:
    """Submit a plan; carry it out when it is approved."""
    errand = order.words.get("errand", "") if order else work.item.text
    decided = yield from work.submit_plan()
    if not decided.ok:
        return f"The plan is not approved, so I changed nothing. {refused(decided)}"
    if not _orders(work.talk, errand):
        return f"The plan is approved. {_CHANGED_NOTHING if errand else ''}".strip()
    return f"The plan is approved. {(yield from _obey(work, errand))}"


def _otherwise(work: Work, mail: Mail) -> Steps:
    """Answer what no phrase knows."""
    yield from ()
    if mail.kind == "interrupt":
        return status(work.talk)
    if mail.kind in {"result", "error", "broadcast"} or mail.author not in {OPERATOR, LEAD}:
        return f"I read what {mail.author} wrote; there is nothing in it for me to do."
    return not_understood(work.talk, mail.text)


# ------------------------------------------------------------------------------------------- kinds of every agent


def _claim(work: Work, order: Order) -> Steps:
    return _work_on_task(work, int(order.words["id"]), order.words.get("errand", ""))


def _work_on_task(work: Work, task_id: int, errand: str) -> Steps:
    """Claim a task, do it and close it."""
    claimed = yield Call("task_claim", {"task_id": task_id}, say=f"Claiming task {task_id}.")
    if not claimed.ok:
        return refused(claimed)
    known = _orders(work.talk, errand)
    text = errand if known else claimed.text.partition(":")[2].strip()
    return (yield from _do_and_close(work, task_id, text))


def _do_and_close(work: Work, task_id: int, text: str) -> Steps:
    known = _orders(work.talk, text)
    said = (yield from _obey(work, text)) if known else _CHANGED_NOTHING
    closed = yield from _close(work, task_id, "completed" if known else "failed")
    return f"{said}\n\n{closed}".strip()


def _close(work: Work, task_id: int, to: str) -> Generator[Call, Done, str]:
    """Set a task to `to`, unless it was closed already."""
    if any(done.tool == "task_update" and done.ok and done.input.get("task_id") == task_id for done in work.made):
        return ""
    done = yield Call("task_update", {"task_id": task_id, "status": to})
    return f"Task {task_id} is {to}." if done.ok else refused(done)


def _own_task(work: Work, notice: Mail) -> Steps | None:
    """Do the task that a notice names, or close it where the work is done: with the mail, or in an earlier turn."""
    found = _TASK_LINE.search(notice.text)
    if found is None or found["owner"] not in (None, work.talk.name):
        return None
    task_id = int(found["id"])
    prompts = [mail for mail in mail_in(work.talk.span) if mail.kind not in JOINS_NEXT_TURN]
    if prompts:
        known = any(_orders(work.talk, _TASK_MAIL.sub(r"\g<work>", mail.text, count=1)) for mail in prompts)
        return _close(work, task_id, "completed" if known else "failed")
    if any(_is_about(entry, task_id) for entry in work.talk.before):
        return _close(work, task_id, "completed")
    _, _, description = notice.text.partition("\n\n")
    return _do_and_close(work, task_id, f"{found['subject']}\n{description}")


def _is_about(entry: Entry, task_id: int) -> bool:
    """Return True if an agent had a task already when this was said."""
    if isinstance(entry, Done):
        return entry.tool == "task_claim" and entry.input.get("task_id") == task_id
    return isinstance(entry, Mail) and entry.kind == NOTICE and f"#{task_id} " in entry.text


KINDS = {**lead.KINDS, "claim": _claim, "submit": _submit}
