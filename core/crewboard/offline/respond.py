"""Choose the reply to a request: the turn of a scenario, else what the phrasebook says about the mail that came.

The reply depends on the request alone. The steps for a piece of mail are a generator that yields calls. Each call that
the conversation has a result for is answered with that; the first call without a result is the reply, or the text that
the generator returns at its end. A lead that has the tool to review plans decides on one when it arrives, by the
operator's orders in the conversation.
"""

import hashlib
import re
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote

from crewboard import web
from crewboard.agent_types import GATED_TOOLS
from crewboard.offline import plans
from crewboard.offline.conversation import (
    HIRE_PROMPT,
    NOTICE,
    Call,
    Conversation,
    Done,
    Entry,
    Mail,
    Said,
    bullets,
    calls_in,
    edition,
    entries,
    exit_code,
    fill,
    first_line,
    left_out_in,
    mail_in,
    refusal,
)
from crewboard.offline.phrasebook import (
    Order,
    Step,
    book,
    has_addressee,
    names_in,
    orders_in,
    paths_in,
    type_for,
    understand,
)
from crewboard.offline.reply import Reply, Speed, reply_of
from crewboard.offline.scenario import Scenario, play
from crewboard.records.events import NOT_UNDERSTOOD
from crewboard.records.messages import JOINS_NEXT_TURN

_Steps = Generator[Call, Done, str]
_SPEED = Speed(delay=0.15, word=0.012)
_YOURS = (
    "Plans are the operator's to review: approve or reject it yourself. "
    "`crewboard approver lead` lets me review the plans that come after it."
)
_BY_MAIL = "the operator writes to you. Its result will reach you as mail"
_SAYS = {"result": "reports", "error": "could not continue", "message": "writes", "broadcast": "sends to every agent"}
_IS_THERE = re.compile(r" is of type [\w-]+; | was hired with other options ")
"""Texts of a refused hire that say that there is an agent of that name, of another type or with other options."""
_TASK_LINE = re.compile(r"#(?P<id>\d+) (?P<subject>.+?) \((?:in_progress|pending)(?:, (?P<owner>[\w-]+))?")
_TASK_MAIL = re.compile(r"\W*(?:task )?#?(?P<id>\d+)\W*(?P<work>.*)", re.IGNORECASE | re.DOTALL)
_RELEASED = re.compile(r"Steps? (?P<steps>\d+(?:, \d+)*) of your plan \S+: I release (?:it|them)\.")
_MEMBER = re.compile(r"(\S+) \((\S+)\) (.*)")
_APPROVED = re.compile(r"\bplan\b[^\n]*\bapproved\b", re.IGNORECASE)
_MOST_FILES_READ = 6
_MOST_EXAMPLES = 6


def respond(talk: Conversation, scenarios: Sequence[Scenario]) -> Reply:
    """Return the reply to a request.

    If nothing of the mail was understood, its `stop_details` say so, while its stop reason stays that of an answer.
    """
    if talk.wants_summary:
        transcript = "\n".join(map(_in_transcript, talk.entries)).splitlines()
        lines = [line[:200] for line in transcript if line.startswith("assistant")]
        told = "\n".join(lines[-60:]) or "(nothing was said or called)"
        return reply_of(
            f"An extract, as the offline model is no language model and cannot summarize:\n\n{told}", speed=_SPEED
        )
    if _is_asked_to_leave(talk):
        return reply_of("", Call("shutdown_response", {"approve": True}), speed=_SPEED)
    interrupts = [at for at, one in enumerate(talk.span) if isinstance(one, Mail) and one.kind == "interrupt"]
    # An agent that was interrupted listens, and does not go on with a script.
    if not any(mail.kind == "interrupt" for mail in mail_in(talk.entries)) and (reply := _play(talk, scenarios)):
        return reply
    span = talk.span[interrupts[-1] :] if interrupts else talk.span
    work = _Work(talk, deque(call for call in calls_in(span) if call.tool != "shutdown_response"))
    mail = [one for one in span if isinstance(one, Mail) and one.kind not in JOINS_NEXT_TURN]
    answer = work.go_through(mail)
    if isinstance(answer, Call):
        return reply_of(answer.say, answer, speed=_SPEED)
    reply = reply_of(answer or _status(talk), speed=_SPEED)
    if work.missed and not work.understood:
        reply = replace(reply, stop_details={"type": "refusal", "category": None, "explanation": NOT_UNDERSTOOD})
    return _with_searches(reply, work.searched) if work.searched else reply


def _in_transcript(entry: Entry) -> str:
    if isinstance(entry, Done):
        return f"assistant calls {entry.tool}: {entry.input}"
    return f"assistant: {entry.text}" if isinstance(entry, Said) else entry.text


def _is_asked_to_leave(talk: Conversation) -> bool:
    """Return True if a request to shut down was not answered yet, and the agent has the tool for that."""
    for entry in reversed(talk.entries):
        if isinstance(entry, Done) and entry.tool == "shutdown_response":
            return False
        if isinstance(entry, Mail) and entry.kind == NOTICE and "Answer with shutdown_response" in entry.text:
            return "shutdown_response" in talk.tools
    return False


def _play(talk: Conversation, scenarios: Sequence[Scenario]) -> Reply | None:
    """Return the next turn of the agent's scenario; None if it is in none, or the last turn has been played.

    The last turn also answers mail that came meanwhile.
    """
    prompt = next((mail.text for mail in mail_in(talk.entries) if mail.kind == HIRE_PROMPT), None)
    agents = [agent for scenario in scenarios for agent in scenario.agents]
    turns = next((agent.turns for agent in agents if (agent.name, agent.prompt) == (talk.name, prompt)), None)
    # An answer to a request to shut down is no turn of the script.
    replies = [[done for done in reply if done.tool != "shutdown_response"] for reply in talk.replies]
    kept = [now for now, before in zip(replies, talk.replies, strict=True) if now or not before]
    turn, extra = play(turns, kept) if turns else (None, [])
    if turn is None:
        return None
    speed, text = Speed(turn.delay, turn.word, turn.least), fill(turn.text, calls_in(talk.entries))
    calls = [Call(call.tool, fill(call.input, calls_in(talk.entries))) for call in turn.calls]
    mail = [one for one in mail_in(talk.span) if one.kind not in {HIRE_PROMPT, *JOINS_NEXT_TURN}]
    mail = [one for one in mail if one.from_above or orders_in(one.text, lead=talk.is_lead)]
    if not turn.calls and mail:
        answer = _Work(talk, deque(extra)).go_through(mail)
        if isinstance(answer, Call):
            return reply_of(answer.say, answer, speed=speed)
        text = f"{text}\n\n{answer}"
    return reply_of(text, *calls, speed=speed)


def _with_searches(reply: Reply, queries: Sequence[str]) -> Reply:
    """Return the reply with blocks of web searches before it, and with citations of their made-up results."""
    blocks: list[dict[str, Any]] = []
    cited = []
    for number, query in enumerate(queries):
        ident = f"srvtoolu_{number}{hashlib.sha256(query.encode()).hexdigest()[:20]}"
        page = {"url": f"https://example.com/?{quote(query)}", "title": f"Made up for: {query}"}
        found = [{"type": "web_search_result", **page, "page_age": None}]
        blocks += [
            {"type": "server_tool_use", "id": ident, "name": web.SEARCH, "input": {"query": query}},
            {"type": f"{web.SEARCH}_tool_result", "tool_use_id": ident, "content": found},
        ]
        cited += [{"type": "web_search_result_location", **page, "cited_text": "made this result up"}]
    return replace(reply, content=[*blocks, *({**block, "citations": cited} for block in reply.content)])


@dataclass
class _Work:
    """The work on the mail of a conversation.

    `left` are the calls with a result that no step has used yet, in their order, `made` the others. `understood` is
    True once a clause was in the phrasebook, `missed` once one was not. `searched` are queries for the web, `not_hired`
    agents whose hire was refused. `members` are the names on the team, once they were looked up.
    """

    talk: Conversation
    left: deque[Done]
    understood: bool = False
    missed: bool = False
    made: list[Done] = field(default_factory=list)
    searched: list[str] = field(default_factory=list)
    not_hired: set[str] = field(default_factory=set)
    members: frozenset[str] | None = None

    @property
    def gated(self) -> bool:
        """Return True if a plan must be approved before anything is written or run, and none of this assignment was."""
        # The system prompt names the tool where a plan is required; a summary of the conversation names the approval.
        notices = [one for one in self.talk.span if isinstance(one, Mail) and one.kind == NOTICE]
        approved = any(done.tool == "submit_plan" and done.ok for done in self.made)
        approved = approved or any(_APPROVED.search(notice.text) for notice in notices)
        return "submit_plan" in self.talk.tools and "submit_plan" in self.talk.system and not approved

    @property
    def seen(self) -> list[Done]:
        """Return the calls of the conversation without those that no step has used yet."""
        return [done for done in calls_in(self.talk.entries) if done not in self.left]

    def go_through(self, items: Sequence[Mail]) -> Call | str:
        """Return the next call to make for `items`, or the text that answers all of them."""
        answers = []
        for item in self._in_turn(items):
            steps = _steps(self, item)
            outcome = steps if isinstance(steps, str) else self._take(steps)
            if isinstance(outcome, Call):
                return outcome
            answers.append(outcome)
        return "\n\n".join(answer for answer in dict.fromkeys(answers) if answer)

    def _in_turn(self, items: Iterable[Mail]) -> Iterator[Mail]:
        """Yield mail in its order, and notices about tasks after it, so that a task is closed once the work is done."""
        notices: list[Mail] = []
        for item in items:
            if item.kind == NOTICE:
                notices.append(item)
                continue
            # Where a call on record is older than this mail, the work was done by then.
            if self.left and self.left[0].turn <= item.turn:
                yield from notices
                notices.clear()
            yield item
        yield from notices

    def _take(self, steps: _Steps) -> Call | str:
        """Run steps with the results of their calls; return the first call that has none, or the answer.

        A call that differs from the next one with a result was not made, because the agent had no such tool then.
        """
        try:
            call = next(steps)
            while True:
                if self.left and self.left[0].tool == call.tool:
                    self.made.append(self.left.popleft())
                    if self.made[-1].text.startswith("(left out to save room"):
                        return f"What {call.tool} returned was left out to save room; I cannot answer from it any more."
                    call = steps.send(self.made[-1])
                elif self.left or call.tool not in self.talk.tools:
                    call = steps.send(Done(call.tool, call.input, "", unavailable=True))
                else:
                    return call
        except StopIteration as end:
            return str(end.value)


def _steps(work: _Work, item: Mail) -> _Steps | str:
    """Return the steps for a piece of mail, or the text that answers it without any."""
    talk = work.talk
    if item.kind == NOTICE:
        return _own_task(work, item)
    if item.kind == "task_review_request":
        return _review_work(work, item)
    if talk.is_lead and not item.from_operator and item.kind != HIRE_PROMPT:
        # Mail of the team is passed on, and never taken for an order.
        return _hear_plan(work, item) if item.kind == "plan_approval_request" else _pass_on(talk, item)
    if item.kind == "task_assignment" and (assigned := _TASK_MAIL.fullmatch(item.text)):
        return _work_on_task(work, int(assigned["id"]), assigned["work"])
    if item.from_operator and _RELEASED.match(item.text):
        return _do_steps(work, item)
    if _orders(work, item.text):
        return _obey(work, item.text, strict=item.from_above)
    only_plans = "submit_plan" in talk.tools and not GATED_TOOLS & talk.tools
    planned = any(done.tool == "submit_plan" for done in calls_in(talk.span))
    if next(iter(mail_in(talk.span)), None) is item and (planned or work.gated or only_plans):
        return _submit(work, item.text)
    return _otherwise(work, item)


def _otherwise(work: _Work, item: Mail) -> str:
    """Return the answer to mail in which the phrasebook understands nothing."""
    if item.kind == "interrupt":
        return _status(work.talk)
    if item.kind in {"result", "error", "broadcast"} or not item.from_above:
        return f"I read what {item.author} wrote; there is nothing in it for me to do."
    work.missed = True
    return _introduction(work.talk, item.text)


def _pass_on(talk: Conversation, item: Mail) -> str:
    """Return a sentence that passes on mail of an agent to the operator; empty for mail that needs none.

    It begins with `From before` if the mail comes together with new words of the operator that are about other agents.
    """
    if item.kind not in _SAYS:
        return ""
    given = [call.input.get(key) for call in calls_in(talk.span) for key in ("name", "to", "teammate")]
    is_other = any(one.from_operator for one in mail_in(talk.span)) and item.author not in given
    return f"{'From before: ' if is_other else ''}{item.author} {_SAYS[item.kind]}: {item.text.strip()}"


def _orders(work: _Work, text: str) -> list[Order]:
    return orders_in(text, lead=work.talk.is_lead)


def _clauses(work: _Work, text: str) -> Generator[Call, Done, tuple[Order, ...]]:
    """Return the clauses of a text; call list_team first if a lead needs to know which agent a line is for."""
    if work.talk.is_lead and work.members is None and has_addressee(text):
        work.members = frozenset(name for name, _, _ in _members((yield Call("list_team"))))
    return understand(text, lead=work.talk.is_lead, members=work.members)


def _obey(work: _Work, text: str, *, strict: bool = False) -> _Steps:
    """Do all that a text says and the phrasebook understands, after a plan if that is needed; return the answers.

    With `strict`, the answer also names what was not understood.
    """
    clauses = yield from _clauses(work, text)
    orders = [one for one in clauses if one.is_known]
    work.missed |= not orders
    if work.gated and any(step.tool in GATED_TOOLS for order in orders for step in order.phrase.steps):
        return (yield from _submit(work, text))
    if (first := next((one for one in orders if one.kind == "submit"), None)) is not None:
        # All the rest of the text waits for the plan, not only what stands in the same clause.
        words = first.clause.removesuffix(first.words.get("errand", ""))
        return (yield from _submit(work, text.replace(words, "", 1).strip() or text))
    told: list[str] = []
    for order in orders:
        work.understood = True
        if order.name in work.not_hired:
            told += [f"So I left out what else you asked for {order.name}."]
            continue
        told += [(yield from _KINDS.get(order.kind, _carry_out)(work, order))]
        told += [f"I left out “{order.words['left_out']}”." if "left_out" in order.words else ""]
    for line in (one for one in clauses if one.kind == "stranger"):
        names = ", ".join(sorted(set(work.members or ()) - {work.talk.name})) or "no other agent yet"
        told += [f"No agent is called {line.name}, so I did nothing about “{line.clause}” On the team: {names}."]
    unknown = [one.clause for one in clauses if one.kind == "unknown"]
    told += [_introduction(work.talk, *unknown)] if unknown and strict else []
    # Said once, behind the last thing that it is about.
    advised = [place for place, text in enumerate(told) if _YOURS in text]
    for place in advised[:-1]:
        told[place] = told[place].replace(_YOURS, "").rstrip()
    return "\n\n".join(dict.fromkeys(text for text in told if text))


def _do(work: _Work, text: str, *, strict: bool = False) -> _Steps:
    """Do what a task or a step says; return the answer, or that nothing of it was understood."""
    if _orders(work, text):
        return (yield from _obey(work, text, strict=strict))
    work.missed = True
    return "Nothing in it is in my phrasebook, so I changed nothing."


def _carry_out(work: _Work, order: Order) -> _Steps:
    """Take the steps of an order's phrase, up to the first that is refused; return its answer."""
    talk, phrase, made = work.talk, order.phrase.for_tools(work.talk.tools), list[Done]()
    shown = [mail.text.strip() for mail in _plans_of(order.name, talk.entries)]
    missing = f"No plan of {order.name} came to me. `crewboard requests` shows those that wait for you."
    words = {"status": _status(talk), "introduction": _introduction(talk), "newest_plan": [missing, *shown][-1]}
    words |= talk.facts(order.clause) | order.words
    for step in phrase.steps:
        for more in _each_time(work, step, made, words):
            done = yield Call(step.tool, _inputs(step.input, more), fill(step.say, made, more))
            if done.unavailable or not (done.ok or step.each):
                return refusal(done)
            made.append(done)
    nothing = phrase.none and (not made or made[-1].tool != phrase.steps[-1].tool)
    told = (phrase.none if nothing else phrase.answer).split("\n\n")
    # What nothing was found for leaves no gap.
    return "\n\n".join(filter(None, (str(fill(part, made, words)).strip() for part in told)))


def _each_time(work: _Work, step: Step, made: Sequence[Done], words: Mapping[str, str]) -> list[Mapping[str, str]]:
    """Return the words for each time that a step is taken, once or for each path or name that its `each` means.

    Each has the path as the word `path`, or the name as `name`.
    """
    found = [done for done in made if done.tool == step.each][-1:]
    match step.each:
        case "":
            return [words]
        case "list_team":
            others = [one for one in _members(found[0]) if one[0] != work.talk.name]
            return [{**words, "name": name} for name, _, state in others if "not running" not in state]
        case "names":
            return [{**words, "name": name} for name in names_in(words["names"])]
    paths = entries(found[0]) if found else paths_in(words.get(step.each, ""))
    return [{**words, "path": path} for path in paths[:_MOST_FILES_READ]]


def _inputs(template: Mapping[str, Any], words: Mapping[str, str]) -> dict[str, object]:
    """Return a tool's input with words filled in; an entry that is one word that was not said is left out."""
    given: dict[str, object] = {}
    for key, value in template.items():
        quoted = re.fullmatch(r"\{(\w+)(\??)\}", str(value))
        if not quoted or quoted[1] in words:
            given[key] = True if quoted and quoted[2] else fill(value, [], words)
    return given


def _members(listed: Done) -> list[tuple[str, str, str]]:
    """Return name, type and state of each agent in a result of list_team."""
    return [(found[1], found[2], found[3]) for line in entries(listed) if (found := _MEMBER.match(line))]


# ------------------------------------------------------------------------------------------------------ plans


def _submit(work: _Work, task: str) -> _Steps:
    """Submit a plan for a task; do its approved steps if it is approved. Return what was done and left out."""
    task = task.strip()
    decided = yield from plans.submit(work.talk, task)
    if not decided.ok:
        return f"The plan is not approved, so I changed nothing. {refusal(decided)}"
    told = "The plan is approved with changes." if edition(decided) else "The plan is approved."
    for number, step in enumerate(plans.left_to_do(work.talk, decided, task)):
        told += ("\n\n" if number else " ") + (yield from _do(work, step, strict=True))
    left_out = sorted(left_out_in(decided) & plans.steps_in(decided).keys())
    return "\n\n".join([told, *(f"I left out step {number}, which is not approved." for number in left_out)])


def _do_steps(work: _Work, item: Mail) -> _Steps:
    """Do the steps of the newest approved plan that the mail `item` releases."""
    calls = calls_in(work.talk.entries)
    approved = [one for one in calls if one.tool == "submit_plan" and one.ok and one.turn <= item.turn]
    steps = plans.steps_in(approved[-1]) if approved else {}
    told = []
    for number in re.findall(r"\d+", item.text.partition(" of ")[0]):
        said = yield from _do(work, steps.get(int(number), ""), strict=True)
        told += [f"You released step {number}. {said}"]
    return "\n\n".join(told)


def _plans_first(work: _Work) -> str:
    waits = "" if "review_plan" in work.talk.tools else f" Its plan then waits for the operator. {_YOURS}"
    return f"submits a plan before it writes or runs anything.{waits}"


def _ask_for_plan(work: _Work, order: Order) -> _Steps:
    """Give an agent work for which it must submit a plan first; hire it if there is no agent of that name."""
    errand = order.words.get("errand", "your work")
    done = yield Call("request_plan", {"teammate": order.name, "task": f"Submit a plan first: {errand}"})
    if not done.ok:
        hired = order if "there" in order.words else _new_agent(order.name, "code", errand=errand, plan="yes")
        return (yield from _hire(work, hired))
    return f"{order.name} {_plans_first(work)}"


def _review(work: _Work, order: Order) -> _Steps:
    """Decide on a plan that waits for a review; if there is none, say that the order is kept for the next plan."""
    whose = f"{order.name}'s plan" if order.name else "the next plan"
    if "review_plan" not in work.talk.tools:
        return f"I cannot review: {whose} waits for the operator as soon as it is submitted. {_YOURS}"
    newest = {mail.author: _request_of(mail) for mail in _plans_of(order.name, work.talk.before)}
    decided = _decided(calls_in(work.talk.before))
    waiting = [one for one in [order.words.get("request"), *newest.values()] if one and one not in decided]
    if waiting:
        return (yield from _decide(waiting[0], order))
    return f"I {order.words['decision'].lower().replace('go ahead', 'approve')} {whose} when it arrives."


def _decide(request: str, order: Order) -> _Steps:
    approve = order.words["decision"].lower() in {"approve", "accept", "go ahead"}
    feedback = {"feedback": order.words["feedback"]} if "feedback" in order.words else {}
    done = yield Call("review_plan", {"request_id": request, "approve": approve, **feedback})
    if not done.ok:
        return f"{refusal(done)}. {_YOURS}"
    said = f" My feedback: {feedback['feedback']}" if feedback else ""
    return f"I {'approved' if approve else 'rejected'} {order.name or 'its author'}'s plan.{said}"


def _hear_plan(work: _Work, mail: Mail) -> _Steps:
    """Decide on a plan that came, by an order of the operator; if there is none, pass the plan on.

    Each order is used for one plan.
    """
    request, decided = _request_of(mail), _decided(work.seen)
    if request in decided:
        return ""
    used = sum(_request_of(one) in decided for one in _plans_of(mail.author, work.talk.entries))
    orders: list[Order] = []
    for one in mail_in(work.talk.entries):
        if one.from_operator or one.kind == HIRE_PROMPT:
            said = yield from _clauses(work, one.text)
            orders += [order for order in said if order.kind == "review"]
    fitting = [one for one in orders if one.name in ("", mail.author) and "request" not in one.words][used:]
    if "review_plan" in work.talk.tools and fitting:
        return (yield from _decide(request, fitting[0].having(name=mail.author)))
    ask = f"Tell me to approve {mail.author}'s plan, or to reject it and why."
    return f"{mail.author} submitted a plan.\n\n{mail.text.strip()}\n\n{ask}"


def _plans_of(author: str, known: Iterable[Entry]) -> list[Mail]:
    """Return the plans among entries that the agent `author` submitted; those of all agents if it is empty."""
    return [mail for mail in mail_in(known) if mail.kind == "plan_approval_request" and author in ("", mail.author)]


def _request_of(mail: Mail) -> str:
    # The worker puts the id of the request before the plan.
    return next(iter(re.findall(r"\bplan-\w+", mail.text)), "")


def _decided(done: Iterable[Done]) -> set[str]:
    return {str(one.input.get("request_id")) for one in done if one.tool == "review_plan"}


# ------------------------------------------------------------------------------------------------------ tasks


def _create_task(work: _Work, order: Order) -> _Steps:
    """Add a task to the board. If it is for a type, assign it to an agent of that type, hired if none is running."""
    told = ""
    if kind := order.words.get("type", ""):
        listed = yield Call("list_team")
        running = [one for one in _members(listed) if one[1] == kind and "not running" not in one[2]]
        running.sort(key=lambda one: "idle" not in one[2])
        order = order.having(name=running[0][0] if running else book().types[kind].split()[0])
        told = "" if running else (yield from _hire(work, _new_agent(order.name, kind)))
    after = [int(one) for one in re.findall(r"\d+", order.words.get("after", ""))]
    given = _inputs(order.phrase.steps[0].input, order.words) | ({"blocked_by": after} if after else {})
    done = yield Call("task_create", given)
    said = fill(order.phrase.answer, [done], order.words) if done.ok else refusal(done)
    return f"{told}\n{said}".strip()


def _work_on_task(work: _Work, task_id: int, errand: str) -> _Steps:
    """Claim a task, do what `errand` or else the task says, and close it."""
    claimed = yield Call("task_claim", {"task_id": task_id}, say=f"Claiming task {task_id}.")
    if not claimed.ok:
        return refusal(claimed)
    text = errand if _orders(work, errand) else claimed.text.partition(":")[2].strip()
    return (yield from _do_and_close(work, task_id, text))


def _do_and_close(work: _Work, task_id: int, text: str) -> _Steps:
    said = yield from _do(work, text)
    closed = yield from _close(work, task_id, "completed" if _orders(work, text) else "failed")
    return f"{said}\n\n{closed}".strip()


def _close(work: _Work, task_id: int, to: str) -> _Steps:
    """Set the status of a task to `to`, unless these steps have set it already; return a sentence about it."""
    if any(done.tool == "task_update" and done.ok and done.input.get("task_id") == task_id for done in work.made):
        return ""
    done = yield Call("task_update", {"task_id": task_id, "status": to})
    if done.ok and "in review" in done.text:
        return first_line(done.text)
    return f"Task {task_id} is {to}." if done.ok else refusal(done)


def _own_task(work: _Work, notice: Mail) -> _Steps | str:
    """Return the steps for the task in a notice: close it if its work was done for mail or earlier, else do it first.

    Return an empty text if the notice names no task of this agent.
    """
    found, talk = _TASK_LINE.search(notice.text), work.talk
    if found is None or found["owner"] not in (None, talk.name):
        return ""
    task_id = int(found["id"])
    prompts = [mail.text for mail in mail_in(talk.span) if mail.kind not in JOINS_NEXT_TURN]
    if prompts:
        known = any(_orders(work, _TASK_MAIL.sub(r"\g<work>", text, count=1)) for text in prompts)
        return _close(work, task_id, "completed" if known else "failed")
    claimed = any((one.tool, one.input.get("task_id")) == ("task_claim", task_id) for one in calls_in(talk.before))
    if claimed or any(isinstance(one, Mail) and f"#{task_id} " in one.text for one in talk.before):
        return _close(work, task_id, "completed")
    return _do_and_close(work, task_id, found["subject"] + "\n" + notice.text.partition("\n\n")[2])


def _review_work(work: _Work, mail: Mail) -> _Steps:
    """Review the work on a task: reject it, once, if it adds a line with TODO; else approve it."""
    found = re.search(r"\breports task (\d+) as completed", mail.text)
    if found is None:
        return f"I cannot see which task {mail.author} wants to have reviewed."
    task_id, open_ends = int(found[1]), re.findall(r"^\+(?!\+\+).*\bTODO\b.*", mail.text, re.MULTILINE)
    if any(done.tool == "review_task" and done.input.get("task_id") == task_id for done in work.seen):
        open_ends = []
    feedback = {"feedback": f"This is not done yet: {open_ends[0][1:].strip()}"} if open_ends else {}
    done = yield Call("review_task", {"task_id": task_id, "approve": not open_ends, **feedback})
    if not done.ok:
        return refusal(done)
    said = f" {feedback['feedback']}" if open_ends else ""
    return f"I {'rejected' if open_ends else 'approved'} the work of {mail.author} on task {task_id}.{said}"


# ------------------------------------------------------------------------------------------------------ agents


def _hire(work: _Work, order: Order) -> _Steps:
    """Hire an agent, in the background if the operator must approve its plan; return its answer, or how it goes on."""
    if "count" in order.words:
        taken = {name for name, _, _ in _members((yield Call("list_team")))}
        base = order.name.rstrip("0123456789")
        names = (f"{base}{number}" if number else base for number in (0, *range(2, len(taken) + 3)))
        order = order.having(name=next(name for name in names if name not in taken))
    who, errand = f"{order.name} ({order.words['type']})", order.words.get("errand", "Wait for mail.")
    words = {**order.words, "errand": errand[:1].upper() + errand[1:]}
    plans = "plan" in words and "reads" not in words
    if plans and "review_plan" not in work.talk.tools:
        words["background"] = "yes"
    say = f"{words.get('verb', 'Hiring')} {order.name}."
    done = yield Call("spawn_agent", _inputs(order.phrase.steps[0].input, words), say)
    if _IS_THERE.search(done.text) and "there" not in words:
        kinds = {name: kind for name, kind, _ in _members((yield Call("list_team")))}
        # Not known if the list was refused.
        if kind := kinds.get(order.name):
            told = f"{order.name} is on the team already, of type {kind}."
            given = {key: order.words[key] for key in ("errand", "plan", "reads", "background") if key in order.words}
            if "errand" not in given:
                return told
            # The agent that is there gets the work.
            give = _ask_for_plan if "plan" in given else _hire
            return f"{told}\n\n{(yield from give(work, _new_agent(order.name, kind, there='yes', **given)))}"
    if not done.ok:
        work.not_hired.add(order.name)
        return refusal(done)
    if plans:
        return f"{who} is at work, and {_plans_first(work)}"
    if "background" in words:
        return f"{who} is at work in the background. I pass its result on when it comes."
    if done.text.endswith(_BY_MAIL):
        # A plan of its is mail by itself, and then what the operator says next.
        return f"{who} is at work. I pass its result on when it comes."
    return f"{who} answered:\n\n{done.text.strip().removeprefix(f'{order.name}: ')}"


def _give(work: _Work, order: Order) -> _Steps:
    """Give an agent work and wait for its result. Hire it if it is missing and the work is understood.

    To an agent at work, send a message instead.
    """
    members = {name: (kind, state) for name, kind, state in _members((yield Call("list_team")))}
    kind, state = members.get(order.name, ("", "not running"))
    errand = order.words["errand"]
    clauses = understand(errand, lead=False)
    # Where an agent stands can only be asked of one that is there.
    known = any(one.is_known and one.phrase.answer != "{status}" for one in clauses)
    # Mail to an agent that has ended would wait for its next run; one at work takes no other work before its result.
    is_busy = not state.startswith(("idle", "not running")) and "wait" not in order.words
    if is_busy or not (known or kind):
        return (yield from _carry_out(work, order))
    hires = [call.input for call in calls_in(work.talk.entries) if call.tool == "spawn_agent"]
    # A lead that waited for the operator to approve a plan would hear nothing else.
    plans = any(given.get("name") == order.name and given.get("plan_required") for given in hires)
    # Nothing that only reads needs a plan.
    reads = all(
        one.is_known
        and one.kind not in {"claim", "submit"}
        and not any(step.tool in GATED_TOOLS for step in one.phrase.steps)
        for one in clauses
    )
    more = {"plan": "yes"} if plans else {}
    more |= {"reads": "yes"} if reads else {}
    more |= {"verb": "Asking"} if state.startswith("idle") else {}
    return (yield from _hire(work, _new_agent(order.name, kind or type_for(errand), errand=errand, **more)))


def _new_agent(name: str, kind: str, **more: str) -> Order:
    phrase = next(phrase for phrase in book().lead.values() if phrase.kind == "spawn")
    return Order(phrase, {"name": name, "type": kind, "clause": "", **more})


def _list_states(work: _Work, order: Order) -> _Steps:
    """Return a list of the other agents that are in the state of the order, or the state of the agent it names."""
    listed, word = (yield Call("list_team")), order.words.get("state", "").lower()
    lines = {line.partition(" ")[0]: line for line in entries(listed)}
    others = {name: line for name, line in lines.items() if name != work.talk.name}
    if not word:
        there = ", ".join(sorted(others)) or "no other agent yet"
        return lines.get(order.name, f"No agent is called {order.name}. On the team: {there}.")
    fits = re.compile(rf"\S+ \(\S+\) (?:{book().states[word]})")
    return bullets([line for line in others.values() if fits.match(line)]) or f"No other agent is {word}."


def _search_the_web(work: _Work, order: Order) -> _Steps:
    """Note a web search, whose blocks `respond` adds to the reply, and return the answer."""
    if web.SEARCH not in work.talk.tools:
        return f"I may not use the web: hire me with --web to have me search for {order.words['query']}."
    work.searched.append(order.words["query"])
    return (yield from _carry_out(work, order))


_KINDS: dict[str, Callable[[_Work, Order], _Steps]] = {
    "claim": lambda work, order: _work_on_task(work, int(order.words["id"]), order.words.get("errand", "")),
    "spawn": _hire, "plan": _ask_for_plan, "review": _review, "task": _create_task, "web": _search_the_web,
    "give": _give, "states": _list_states,
}  # fmt: skip


# ------------------------------------------------------------------------------------------------ about itself


def _introduction(talk: Conversation, *unknown: str) -> str:
    """Return a text that says what this agent is, which clauses it did not understand, and what it understands."""
    phrases = book().phrases(lead=talk.is_lead)
    able = [text for text, one in phrases.items() if all(step.tool in talk.tools for step in one.steps)]
    if unknown:
        able = [text for text in book().first if text in able][:_MOST_EXAMPLES]
    known = bullets(able) + ("\n\n“What can you do?” shows all." if unknown else "")
    quoted = ", ".join(f"“{first_line(clause)}”" for clause in unknown)
    refusal = f"I do not know how to do this: {quoted}\n\n" if unknown else ""
    told = f"I am {talk.name}, of type {talk.type}. I run on crewboard's offline model, which is a phrasebook"
    return f"{refusal}{told} and no language model. I understand{' for example' if unknown else ''}:\n{known}"


def _status(talk: Conversation) -> str:
    """Return a text that says what the agent was asked, which tools it called, and what it answered last."""
    told = [f"I am {talk.name}, of type {talk.type} in the team {talk.team}."]
    asked = [mail for mail in mail_in(talk.entries) if mail.kind in {"prompt", "task_assignment"}]
    told += [f"{mail.author} asked me: “{first_line(mail.text)}”" for mail in asked]
    deeds = list(dict.fromkeys(map(_deed, calls_in(talk.entries))))
    told += [f"What I did:\n{bullets(deeds, 60)}" if deeds else "I have called no tool yet."]
    answers = [entry.text for entry in talk.entries if isinstance(entry, Said) and entry.final and entry.text]
    return "\n\n".join([*told, *(f"What I answered:\n\n{answer}" for answer in answers[-1:])])


def _deed(done: Done) -> str:
    values = ", ".join(first_line(str(value), 80) for value in done.input.values())
    code = exit_code(done)
    said = first_line(done.text, 80) if code is None else f"exit code {code}"
    return f"{done.tool} {values}: {'' if done.ok or code is not None else 'refused: '}{said}"
