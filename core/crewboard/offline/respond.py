"""The reply to a request: the turn of a scenario, else what the phrasebook says about the mail that came.

The reply is a function of the request alone: steps yield calls, and are sent what they returned as the conversation
says; the first call without a result there is the reply. A lead reviews a plan when it arrives, and looks up the
operator's orders in the conversation then; whether plans are its to review shows in its tools.
"""

import hashlib
import re
import shlex
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote

from crewboard import web
from crewboard.agent_types import GATED_TOOLS, WRITE_TOOLS
from crewboard.names import LEAD, OPERATOR
from crewboard.offline.conversation import (
    FACTS,
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
    is_rejected,
    left_out_in,
    mail_in,
    notes_in,
    step_text,
    steps_in,
)
from crewboard.offline.phrasebook import (
    ForUnknown,
    Order,
    book,
    has_addressee,
    names_in,
    paths_in,
    type_for,
    understand,
)
from crewboard.offline.reply import Reply, Speed, reply_of
from crewboard.offline.scenario import Scenario, ScenarioAgent, play
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
_TASK_LINE = re.compile(r"#(?P<id>\d+) (?P<subject>.+?) \((?:in_progress|pending)(?:, (?P<owner>[\w-]+))?")
_TASK_MAIL = re.compile(r"\W*(?:task )?#?(?P<id>\d+)\W*(?P<work>.*)", re.IGNORECASE | re.DOTALL)
_RELEASED = re.compile(r"Steps? (?P<steps>\d+(?:, \d+)*) of your plan \S+: I release (?:it|them)\.")
_MEMBER = re.compile(r"(\S+) \((\S+)\) (.*)")
_UNTOLD = ("prompt", "idle_notification")
_MOST_FILES_READ = 6
_MOST_EXAMPLES = 6
_APPROVED = re.compile(r"\bplan\b[^\n]*\bapproved\b", re.IGNORECASE)


@dataclass
class _Work:
    """The `item` of mail being worked on, the calls on record `left` for its steps, and those they were fed with.

    `understood` says that something asked for was in the phrasebook, `missed` that something was not. `members` are the
    names on the team, once they were looked up.
    """

    talk: Conversation
    left: deque[Done]
    understood: bool = False
    missed: bool = False
    made: list[Done] = field(default_factory=list)
    not_hired: set[str] = field(default_factory=set)
    members: frozenset[str] | None = None
    item: Mail = field(default_factory=lambda: Mail("", NOTICE, ""))

    @classmethod
    def after(cls, talk: Conversation, done: Iterable[Done]) -> "_Work":
        """Return the work for which the calls `done` were made so far."""
        return cls(talk, deque(call for call in done if call.tool != "shutdown_response"))

    def change_nothing(self) -> str:
        """Answer a task that is not in the phrasebook."""
        self.missed = True
        return "Nothing in it is in my phrasebook, so I changed nothing."

    @property
    def gated(self) -> bool:
        """Return True if a plan must still be approved, once for an assignment, before anything is written or run."""
        # The system prompt names the tool where a plan is required; a summary of the conversation names the approval.
        notices = [one for one in self.talk.span if isinstance(one, Mail) and one.kind == NOTICE]
        approved = any(done.tool == "submit_plan" and done.ok for done in self.made)
        approved = approved or any(_APPROVED.search(notice.text) for notice in notices)
        return "submit_plan" in self.talk.tools and "submit_plan" in self.talk.system and not approved

    def take(self, steps: _Steps) -> Call | str:
        """Feed the steps with what their calls returned; return the first call still to be made, or the answer.

        A call that is not the next on record was not offered when its turn came, so nothing was called.
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

    def submit_plan(self, task: str) -> Generator[Call, Done, Done]:
        """Submit a plan for a task, again after each rejection; return the last result of submit_plan."""
        revisions = ""
        answers: dict[str, object] = {}
        while True:
            # The line that stands for the plan is its first one, so that names the task.
            title = task.partition("\n")[0].strip("# ") or "Plan"
            told = f"The task, {'revised' if revisions else 'word for word'}:\n\n{_quoted(task)}"
            steps, files, commands = _plan(self.talk, task)
            limits = _LIMITS if _orders(self.talk, task) else _NOTHING_KNOWN
            does = "\n".join(f"{number}. {step}" for number, step in enumerate(steps, 1))
            plan: dict[str, object] = {
                "plan": f"# {title}\n\n{told}\n\n## Steps\n\n{does}\n\n## Limits\n\n{limits}{revisions}",
                "files": files,
                "commands": commands,
                "risk": "Low: only what is named.",
                **answers,
            }
            done = yield Call("submit_plan", plan, say="Here is my plan.")
            if not is_rejected(done):
                return done
            feedback, notes = fill("{submit_plan:feedback}", [done]), notes_in(done)
            before, given = task, dict[str, str]()
            for ident, quoted, note in notes:
                now = _follow(self.talk, task, note, step_text(quoted))
                given[ident], task = f"{_FOLLOWED if now != task else _NOT_FOLLOWED}: {note}", now
            task = task if notes else _follow(self.talk, task, feedback)
            answers = {"answers": given} if given else {}
            number = revisions.count("## Revision") + 2
            follows = _FOLLOWED if task != before else _NOT_FOLLOWED
            revisions += f"\n\n## Revision {number}\n\n{follows}. The feedback:\n\n{_quoted(feedback)}"

    def carry_out(self, order: Order) -> _Steps:
        """Take the steps of a phrase, and answer from what they returned."""
        phrase, made = order.phrase, list[Done]()
        words = {**_facts(self.talk, order), **order.words}
        for step in phrase.steps:
            each_time = [words]
            if step.each:
                source = [done for done in made if done.tool == step.each][-1:]
                found = entries(source[0]) if source else paths_in(words.get(step.each, ""))
                each_time = [{**words, "path": path} for path in found[:_MOST_FILES_READ]]
            for more in each_time:
                done = yield Call(step.tool, _inputs(step.input, more), fill(step.say, made, more))
                if done.unavailable or not (done.ok or step.each):
                    return _refused(done)
                made.append(done)
        nothing = phrase.none and made[-1].tool != phrase.steps[-1].tool
        told = (phrase.none if nothing else phrase.answer).split("\n\n")
        # What nothing was found for leaves no gap.
        return "\n\n".join(filter(None, (str(fill(part, made, words)).strip() for part in told)))


def _quoted(text: str) -> str:
    return re.sub("(?m)^", "> ", text.strip())


_LIMITS = "I do these steps and nothing else."
_NOTHING_KNOWN = (
    "Nothing in it is in my phrasebook: approved as it stands, it changes nothing. Edit it to what I know, such as: "
    "Run the tests."
)
_FOLLOWED = "The task above is changed"
_NOT_FOLLOWED = "My phrasebook cannot follow this, so nothing changed"


def _follow(talk: Conversation, task: str, feedback: str, step: str = "") -> str:
    """Return a task as feedback on a step or all of it changes it: work takes its place, and a path that of one."""
    if _orders(talk, feedback) and (not step or step in task):
        return task.replace(step, feedback.strip()) if step else feedback.strip()
    old, new = paths_in(step) or paths_in(task), paths_in(feedback)
    return task.replace(old[0], new[0]) if len(old) == len(new) == 1 else task


def _plan(talk: Conversation, task: str) -> tuple[list[str], list[str], list[str]]:
    """Return the steps of a task, the last of which checks what is written, with their files and commands."""
    clauses = understand(task, lead=talk.type == LEAD)
    steps, written, files, commands = list[str](), list[str](), list[str](), list[str]()
    # What is left of a task in parts must be the same work; so is what else it says, which no part holds.
    apart = len(clauses) > 1 and all(
        isinstance(one, Order) and len(_orders(talk, one.words["clause"])) == 1 for one in clauses
    )
    for order in clauses:
        if isinstance(order, str):
            continue
        words, named = {**_facts(talk, order), **order.words}, list[str]()
        for step in order.phrase.steps:
            given = fill(step.input, [], words)
            written += [given["path"]] if step.tool in WRITE_TOOLS else []
            named += [given["path"]] if step.tool in WRITE_TOOLS else [given["command"]] if step.tool == "bash" else []
            commands += [given["command"]] if step.tool == "bash" else []
        files += paths_in(order.words["clause"])
        steps += [_as_step(order.words["clause"], named)] if apart else []
    steps = steps or [_as_step(task, [*written, *commands])]
    if written and not commands and "bash" in talk.tools:
        commands = [
            f"{_CHECKS.get(path.rpartition('.')[2], 'wc -c')} {shlex.quote(path)}" for path in dict.fromkeys(written)
        ]
        steps += [f"Run `{command}` to check it" for command in commands]
    return steps, list(dict.fromkeys([*(files if apart else paths_in(task)), *written])), list(dict.fromkeys(commands))


def _as_step(text: str, named: Sequence[str]) -> str:
    missing = ", ".join(f"`{one}`" for one in dict.fromkeys(named) if one not in text)
    return text.strip().replace("\n", "\n   ") + (f"\n{FACTS}{missing}" if missing else "")


_CHECKS = {"py": "python3 -m py_compile", "json": "python3 -m json.tool", "sh": "bash -n"}
"""Commands that check a file of a kind, by the ending of its name."""


def respond(talk: Conversation, scenarios: Sequence[Scenario]) -> Reply:
    """Return the reply to a request."""
    if talk.wants_summary:
        transcript = "\n".join(map(_in_transcript, talk.entries))
        lines = [line[:200] for line in transcript.splitlines() if line.startswith("assistant")]
        told = "\n".join(lines[-60:]) or "(nothing was said or called)"
        return reply_of(
            f"An extract, as the offline model is no language model and cannot summarize:\n\n{told}", speed=_SPEED
        )
    if _is_asked_to_leave(talk):
        return reply_of("", Call("shutdown_response", {"approve": True}), speed=_SPEED)
    replies = [[done for done in reply if done.tool != "shutdown_response"] for reply in talk.replies]
    prompt = next((mail.text for mail in mail_in(talk.entries) if mail.kind == HIRE_PROMPT), None)
    agents = [agent for scenario in scenarios for agent in scenario.agents if agent.name == talk.name]
    # An agent that was interrupted listens, and does not go on with a script.
    interrupts = [at for at, one in enumerate(talk.span) if isinstance(one, Mail) and one.kind == "interrupt"]
    if not any(mail.kind == "interrupt" for mail in mail_in(talk.entries)):
        for agent in agents:
            if agent.prompt == prompt and (reply := _play(talk, agent, replies)):
                return reply
    span = talk.span[interrupts[-1] :] if interrupts else talk.span
    mail = [one for one in span if isinstance(one, Mail)]
    work = _Work.after(talk, calls_in(span))
    answer = _work_through(work, mail)
    if isinstance(answer, Call):
        return reply_of(answer.say, answer, speed=_SPEED)
    orders = (order for one in mail for order in _orders(talk, one.text, work.members))
    queries = [order.words["query"] for order in orders if order.phrase.kind == "web" and web.SEARCH in talk.tools]
    reply = reply_of(answer or _status(talk), speed=_SPEED)
    if work.missed and not work.understood:
        reply = replace(reply, stop_details={"type": "refusal", "category": None, "explanation": NOT_UNDERSTOOD})
    if not queries:
        return reply
    cited = [
        {"type": "web_search_result_location", **_found(query), "cited_text": "made this result up"}
        for query in queries
    ]
    citing = [{**block, "citations": cited} for block in reply.content]
    return replace(reply, content=[*_searches(queries), *citing])


def _is_asked_to_leave(talk: Conversation) -> bool:
    """Return True if the newest notice that asks to shut down was not answered yet."""
    for entry in reversed(talk.entries):
        if isinstance(entry, Done) and entry.tool == "shutdown_response":
            return False
        if isinstance(entry, Mail) and entry.kind == NOTICE and "Answer with shutdown_response" in entry.text:
            return "shutdown_response" in talk.tools
    return False


def _found(query: str) -> dict[str, Any]:
    """Return the result that the offline model makes up for a search."""
    return {"url": f"https://example.com/?{quote(query)}", "title": f"Made up for: {query}"}


def _searches(queries: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the blocks of searches, as the API sends them."""
    for number, query in enumerate(queries):
        ident = f"srvtoolu_{number}{hashlib.sha256(query.encode()).hexdigest()[:20]}"
        yield {"type": "server_tool_use", "id": ident, "name": web.SEARCH, "input": {"query": query}}
        found = [{"type": "web_search_result", **_found(query), "page_age": None}]
        yield {"type": f"{web.SEARCH}_tool_result", "tool_use_id": ident, "content": found}


def _in_transcript(entry: Entry) -> str:
    if isinstance(entry, Done):
        return f"assistant calls {entry.tool}: {entry.input}"
    return f"assistant: {entry.text}" if isinstance(entry, Said) else entry.text


def _play(talk: Conversation, agent: ScenarioAgent, replies: list[list[Done]]) -> Reply | None:
    """Return the next turn of a script; its last one also answers mail that came while it was running."""
    kept = [now for now, before in zip(replies, talk.replies, strict=True) if now or not before]
    turn, extra = play(agent.turns, kept)
    if turn is None:
        return None
    speed, text = Speed(turn.delay, turn.word, turn.least), fill(turn.text, calls_in(talk.entries))
    calls = [Call(call.tool, fill(call.input, calls_in(talk.entries))) for call in turn.calls]
    mail = [one for one in mail_in(talk.span) if one.kind not in {HIRE_PROMPT, *JOINS_NEXT_TURN}]
    mail = [one for one in mail if one.author in {OPERATOR, LEAD} or _orders(talk, one.text)]
    if not turn.calls and mail:
        answer = _work_through(_Work.after(talk, extra), mail)
        if isinstance(answer, Call):
            return reply_of(answer.say, answer, speed=speed)
        text = f"{text}\n\n{answer}"
    return reply_of(text, *calls, speed=speed)


def _work_through(work: _Work, items: Sequence[Mail]) -> Call | str:
    """Return the next call for `items`, or the answer to all of them."""
    answers = []
    for item in _in_turn(items, work.left):
        work.item = item
        steps = _steps(work, item)
        outcome = steps if isinstance(steps, str) else work.take(steps)
        if isinstance(outcome, Call):
            return outcome
        answers.append(outcome)
    return "\n\n".join(answer for answer in dict.fromkeys(answers) if answer)


def _in_turn(items: Iterable[Mail], left: deque[Done]) -> Iterator[Mail]:
    """Yield mail as it came, and notices about tasks last: a task is closed when the work is done."""
    notices: list[Mail] = []
    for item in items:
        if item.kind == NOTICE:
            notices.append(item)
            continue
        # Where a call on record is older than this mail, the work was done by then.
        if left and left[0].turn <= item.turn:
            yield from notices
            notices.clear()
        yield item
    yield from notices


def _steps(work: _Work, item: Mail) -> _Steps | str:
    """Return the steps for a piece of mail, or the answer to it."""
    talk = work.talk
    if item.kind == NOTICE:
        return _own_task(work, item)
    if item.kind in JOINS_NEXT_TURN or item.kind == "task_review_request":
        return _review_work(work, item) if item.kind == "task_review_request" else ""
    if talk.type == LEAD and item.author != OPERATOR and item.kind != HIRE_PROMPT:
        # Mail of the team is passed on, and never taken for an order.
        return _hear_plan(work, item) if item.kind == "plan_approval_request" else _pass_on(talk, item)
    if item.kind == "task_assignment" and (assigned := _TASK_MAIL.fullmatch(item.text)):
        return _work_on_task(work, int(assigned["id"]), assigned["work"])
    released = _RELEASED.match(item.text) if item.author == OPERATOR else None
    if released or _orders(talk, item.text):
        by_us = item.author in {OPERATOR, LEAD}
        return _do_steps(work, item, released["steps"]) if released else _obey(work, item.text, strict=by_us)
    first = next(iter(mail_in(talk.span)), None) is item
    only_plans = "submit_plan" in talk.tools and not GATED_TOOLS & talk.tools
    planned = any(done.tool == "submit_plan" for done in calls_in(talk.span))
    return _submit(work, item.text) if first and (planned or work.gated or only_plans) else _otherwise(work, item)


def _pass_on(talk: Conversation, item: Mail) -> str:
    """Say what an agent wrote; also that it is of earlier words, where it comes with the operator's next ones."""
    if item.kind not in _SAYS:
        return ""
    given = [call.input.get(key) for call in calls_in(talk.span) for key in ("name", "to", "teammate")]
    is_other = any(one.author == OPERATOR for one in mail_in(talk.span)) and item.author not in given
    return f"{'From before: ' if is_other else ''}{item.author} {_SAYS[item.kind]}: {item.text.strip()}"


def _orders(talk: Conversation, text: str, members: frozenset[str] | None = None) -> list[Order]:
    clauses = understand(text, lead=talk.type == LEAD, members=members)
    return [clause for clause in clauses if isinstance(clause, Order)]


def _clauses(work: _Work, text: str) -> Generator[Call, Done, tuple[Order | str, ...]]:
    """Return the clauses of a text; a lead looks up its team where a line may be for an agent."""
    is_lead = work.talk.type == LEAD
    if is_lead and work.members is None and has_addressee(text):
        work.members = frozenset(name for name, _, _ in _members((yield Call("list_team"))))
    return understand(text, lead=is_lead, members=work.members)


def _obey(work: _Work, text: str, *, strict: bool = False) -> _Steps:
    """Do all that a text says and the phrasebook knows; `strict` says what it does not know."""
    told: list[str] = []
    clauses = yield from _clauses(work, text)
    unknown = [one for one in clauses if isinstance(one, str)]
    work.missed |= len(unknown) == len(clauses)
    gated = (step.tool in GATED_TOOLS for one in clauses if isinstance(one, Order) for step in one.phrase.steps)
    if work.gated and any(gated):
        return (yield from _submit(work, text))
    for order in clauses:
        if isinstance(order, str):
            continue
        work.understood = True
        if order.name in work.not_hired:
            told += [f"So I left out what else you asked for {order.name}."]
            continue
        told += [(yield from _KINDS.get(order.phrase.kind, _Work.carry_out)(work, order))]
        told += [f"I left out “{order.words['left_out']}”." if "left_out" in order.words else ""]
    for line in (one for one in unknown if isinstance(one, ForUnknown)):
        names = ", ".join(sorted(set(work.members or ()) - {work.talk.name})) or "no other agent yet"
        told += [f"No agent is called {line.partition(':')[0]}, so I did nothing about “{line}” On the team: {names}."]
    unknown = [one for one in unknown if not isinstance(one, ForUnknown)]
    told += [_introduction(work.talk, *unknown)] if unknown and strict else []
    # Said once, behind the last thing that it is about.
    advised = [place for place, text in enumerate(told) if _YOURS in text]
    for place in advised[:-1]:
        told[place] = told[place].replace(_YOURS, "").rstrip()
    return "\n\n".join(dict.fromkeys(text for text in told if text))


def _submit(work: _Work, task: str) -> _Steps:
    """Submit a plan for a task; carry out its approved steps when it is approved."""
    decided = yield from work.submit_plan(task.strip())
    if not decided.ok:
        return f"The plan is not approved, so I changed nothing. {_refused(decided)}"
    steps, left_out = steps_in(decided), left_out_in(decided)
    edited = edition(decided)
    todo = [step for number, step in steps.items() if number not in left_out]
    if edited and not steps:
        # It says the task itself: in its first quotation, else as a whole.
        todo = ["\n".join(re.findall(r"(?m)^> ?(.*)", edited.partition("\n## ")[0])).strip() or edited]
    elif not edited and not left_out and not all(_orders(work.talk, step) for step in todo):
        # The plan of a version before, whose steps do not say the work.
        todo = [task]
    told = ["The plan is approved with changes." if edited else "The plan is approved."]
    for step in todo:
        said = (yield from _obey(work, step, strict=True)) if _orders(work.talk, step) else work.change_nothing()
        told[-1:] = [f"{told[-1]} {said}"] if len(told) == 1 and step is todo[0] else [told[-1], said]
    told += [f"I left out step {number}, which is not approved." for number in sorted(left_out & steps.keys())]
    return "\n\n".join(told)


def _do_steps(work: _Work, item: Mail, numbers: str) -> _Steps:
    """Do steps of the approved plan that were held until this mail came."""
    plans = [
        one for one in calls_in(work.talk.entries) if one.tool == "submit_plan" and one.ok and one.turn <= item.turn
    ]
    steps = steps_in(plans[-1]) if plans else {}
    told = []
    for number in numbers.split(", "):
        step = steps.get(int(number), "")
        said = (yield from _obey(work, step, strict=True)) if _orders(work.talk, step) else work.change_nothing()
        told += [f"You released step {number}. {said}"]
    return "\n\n".join(told)


def _otherwise(work: _Work, mail: Mail) -> str:
    """Answer what no phrase knows."""
    if mail.kind == "interrupt":
        return _status(work.talk)
    if mail.kind in {"result", "error", "broadcast"} or mail.author not in {OPERATOR, LEAD}:
        return f"I read what {mail.author} wrote; there is nothing in it for me to do."
    work.missed = True
    return _introduction(work.talk, mail.text)


def _work_on_task(work: _Work, task_id: int, errand: str) -> _Steps:
    """Claim a task, do it and close it."""
    claimed = yield Call("task_claim", {"task_id": task_id}, say=f"Claiming task {task_id}.")
    if not claimed.ok:
        return _refused(claimed)
    text = errand if _orders(work.talk, errand) else claimed.text.partition(":")[2].strip()
    return (yield from _do_and_close(work, task_id, text))


def _do_and_close(work: _Work, task_id: int, text: str) -> _Steps:
    known = _orders(work.talk, text)
    said = (yield from _obey(work, text)) if known else work.change_nothing()
    return f"{said}\n\n{(yield from _close(work, task_id, 'completed' if known else 'failed'))}".strip()


def _close(work: _Work, task_id: int, to: str) -> _Steps:
    """Set a task to `to`, unless it was closed already."""
    if any(done.tool == "task_update" and done.ok and done.input.get("task_id") == task_id for done in work.made):
        return ""
    done = yield Call("task_update", {"task_id": task_id, "status": to})
    if done.ok and "in review" in done.text:
        return first_line(done.text)
    return f"Task {task_id} is {to}." if done.ok else _refused(done)


def _own_task(work: _Work, notice: Mail) -> _Steps | str:
    """Do the task that a notice names, or close it where the work is done: with the mail, or in an earlier turn."""
    found, talk = _TASK_LINE.search(notice.text), work.talk
    if found is None or found["owner"] not in (None, talk.name):
        return ""
    task_id = int(found["id"])
    prompts = [mail.text for mail in mail_in(talk.span) if mail.kind not in JOINS_NEXT_TURN]
    if prompts:
        known = any(_orders(talk, _TASK_MAIL.sub(r"\g<work>", text, count=1)) for text in prompts)
        return _close(work, task_id, "completed" if known else "failed")
    claimed = any((one.tool, one.input.get("task_id")) == ("task_claim", task_id) for one in calls_in(talk.before))
    if claimed or any(isinstance(one, Mail) and f"#{task_id} " in one.text for one in talk.before):
        return _close(work, task_id, "completed")
    return _do_and_close(work, task_id, found["subject"] + "\n" + notice.text.partition("\n\n")[2])


def _search_the_web(work: _Work, order: Order) -> _Steps:
    """Answer a search; its blocks are put before the answer."""
    if web.SEARCH not in work.talk.tools:
        return f"I may not use the web: hire me with --web to have me search for {order.words['query']}."
    return (yield from work.carry_out(order))


def _hire(work: _Work, order: Order) -> _Steps:
    """Hire an agent; one that waits for the operator to approve its plan works in the background."""
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
            return (yield from _give_to_present(work, order, kind))
    if not done.ok:
        work.not_hired.add(order.name)
        return _refused(done)
    if plans:
        return f"{who} is at work, and {_plans_first(work)}"
    if "background" in words:
        return f"{who} is at work in the background. I pass its result on when it comes."
    if done.text.endswith(_BY_MAIL):
        # A plan of its is mail by itself, and then what the operator says next.
        return f"{who} is at work. I pass its result on when it comes."
    return f"{who} answered:\n\n{done.text.strip().removeprefix(f'{order.name}: ')}"


_IS_THERE = re.compile(r" is of type [\w-]+; | was hired with other options ")
"""Why an agent was not hired: there is one of that name, of another type or with other options."""


def _give_to_present(work: _Work, order: Order, kind: str) -> _Steps:
    """Give the work for an agent that was to be hired to the one of that name, which is of type `kind`, and say so."""
    told = f"{order.name} is on the team already, of type {kind}."
    if "errand" not in order.words:
        return told
    words = {key: order.words[key] for key in ("errand", "plan", "reads", "background") if key in order.words}
    hire = _ask_for_plan if "plan" in words else _hire
    return f"{told}\n\n{(yield from hire(work, _new_agent(order.name, kind, there='yes', **words)))}"


def _give(work: _Work, order: Order) -> _Steps:
    """Give an agent work, and wait for its result; hire one that is not there for known work, write to one at work."""
    members = _members((yield Call("list_team")))
    kinds = {name: kind for name, kind, _ in members}
    state = next((state for name, _, state in members if name == order.name), "not running")
    clauses = understand(order.words["errand"], lead=False)
    # Where an agent stands can only be asked of one that is there.
    known = any(isinstance(one, Order) and one.phrase.answer != "{status}" for one in clauses)
    # Mail to an agent that has ended would wait for its next run; one at work takes no other work before its result.
    is_busy = not state.startswith(("idle", "not running")) and "wait" not in order.words
    if is_busy or not (known or order.name in kinds):
        return (yield from work.carry_out(order))
    kind = kinds.get(order.name) or type_for(order.words["errand"])
    hires = [call.input for call in calls_in(work.talk.entries) if call.tool == "spawn_agent"]
    # A lead that waited for the operator to approve a plan would hear nothing else.
    plans = any(given.get("name") == order.name and given.get("plan_required") for given in hires)
    more = {"plan": "yes"} if plans else {}
    more |= {"reads": "yes"} if all(map(_only_reads, clauses)) else {}
    more |= {"verb": "Asking"} if state.startswith("idle") else {}
    return (yield from _hire(work, _new_agent(order.name, kind, errand=order.words["errand"], **more)))


def _only_reads(order: Order | str) -> bool:
    """Return True if a clause is understood, and asks for nothing that a plan must be approved for."""
    return (
        isinstance(order, Order)
        and order.phrase.kind not in {"claim", "submit"}
        and not any(step.tool in GATED_TOOLS for step in order.phrase.steps)
    )


def _stop(work: _Work, order: Order) -> _Steps:
    """Ask one agent, some, or all that run to shut down, one after the other."""
    if order.name:
        return (yield from work.carry_out(order))
    names = names_in(order.words.get("names", ""))
    if not names:
        listed = yield Call("list_team")
        if not listed.ok:
            return _refused(listed)
        names = [name for name, _, state in _members(listed) if name != work.talk.name and "not running" not in state]
    told = []
    for name in names:
        done = yield Call("request_shutdown", {"teammate": name})
        told.append(f"{first_line(done.text)}." if done.ok else _refused(done))
    return bullets(told) or "No other agent is running."


def _members(listed: Done) -> list[tuple[str, str, str]]:
    """Return name, type and state of the agents on the team."""
    return [(found[1], found[2], found[3]) for line in entries(listed) if (found := _MEMBER.match(line))]


def _write_tests(work: _Work, order: Order) -> _Steps:
    """Write a unit test and run it; an agent that may write no file hands it to Python without one."""
    write, run = order.phrase.steps
    text = str(write.input["content"]).lstrip()
    where, command = " from the file test_smoke.py", str(run.input["command"])
    if write.tool in work.talk.tools:
        done = yield Call(write.tool, {**write.input, "content": text}, "Writing test_smoke.py.")
        if not done.ok:
            return _refused(done)
    else:
        where, command = ", but I may write no file: this is its text", f"python3 -B - <<'TEST'\n{text}TEST"
    done = yield Call(run.tool, {"command": command}, "Running the test.")
    return fill(order.phrase.answer, [done], {"where": where, "test": text}) if done.ok else _refused(done)


def _plans_first(work: _Work) -> str:
    waits = "" if "review_plan" in work.talk.tools else f" Its plan then waits for the operator. {_YOURS}"
    return f"submits a plan before it writes or runs anything.{waits}"


def _new_agent(name: str, kind: str, **more: str) -> Order:
    phrase = next(phrase for phrase in book().lead.values() if phrase.kind == "spawn")
    return Order(phrase, {"name": name, "type": kind, "clause": "", **more})


def _ask_for_plan(work: _Work, order: Order) -> _Steps:
    """Give an agent work that needs a plan; hire the agent if there is none of that name."""
    errand = order.words.get("errand", "your work")
    done = yield Call("request_plan", {"teammate": order.name, "task": f"Submit a plan first: {errand}"})
    if not done.ok:
        hired = order if "there" in order.words else _new_agent(order.name, "code", errand=errand, plan="yes")
        return (yield from _hire(work, hired))
    return f"{order.name} {_plans_first(work)}"


def _create_task(work: _Work, order: Order) -> _Steps:
    """Put a task on the board; a task for a type goes to an agent of that type, hired if there is none."""
    told, kind = "", order.words.get("type", "")
    if kind:
        listed = yield Call("list_team")
        running = [one for one in _members(listed) if one[1] == kind and "not running" not in one[2]]
        running.sort(key=lambda one: "idle" not in one[2])
        order = order.having(name=running[0][0] if running else book().types[kind].split()[0])
        told = "" if running else (yield from _hire(work, _new_agent(order.name, kind)))
    after = [int(one) for one in re.findall(r"\d+", order.words.get("after", ""))]
    given = _inputs(order.phrase.steps[0].input, order.words) | ({"blocked_by": after} if after else {})
    done = yield Call("task_create", given)
    if not done.ok:
        return f"{told}\n{_refused(done)}".strip()
    return f"{told}\n{fill(order.phrase.answer, [done], order.words)}".strip()


def _list_states(work: _Work, order: Order) -> _Steps:
    """List the other agents that are in a state, or the one that is named."""
    listed, word = (yield Call("list_team")), order.words.get("state", "").lower()
    if not word:
        lines = {line.partition(" ")[0]: line for line in entries(listed)}
        others = ", ".join(sorted(lines.keys() - {work.talk.name})) or "no other agent yet"
        return lines.get(order.name, f"No agent is called {order.name}. On the team: {others}.")
    fits = re.compile(book().states[word])
    found = [one for one in _members(listed) if one[0] != work.talk.name and fits.match(one[2])]
    return bullets([f"{name} ({kind}) {state}" for name, kind, state in found]) or f"No other agent is {word}."


def _show_plan(work: _Work, order: Order) -> _Steps:
    """Quote the newest plan that an agent submitted to this lead."""
    yield from ()
    plans = [mail.text for mail in _plans(mail_in(work.talk.entries)) if mail.author == order.name]
    missing = f"No plan of {order.name} came to me. `crewboard requests` shows those that wait for you."
    return plans[-1].strip() if plans else missing


def _review(work: _Work, order: Order) -> _Steps:
    """Decide on the plan that came before the order; else the order stands for the next one."""
    whose = f"{order.name}'s plan" if order.name else "the next plan"
    if "review_plan" not in work.talk.tools:
        return f"I cannot review: {whose} waits for the operator as soon as it is submitted. {_YOURS}"
    decided = _decided(calls_in(work.talk.before))
    newest = {
        mail.author: _request_of(mail) for mail in _plans(mail_in(work.talk.before)) if order.name in ("", mail.author)
    }
    waiting = [one for one in [order.words.get("request"), *newest.values()] if one and one not in decided]
    if waiting:
        return (yield from _decide(waiting[0], order))
    return f"I {order.words['decision'].lower().replace('go ahead', 'approve')} {whose} when it arrives."


def _decide(request: str, order: Order) -> _Steps:
    approve = order.words["decision"].lower() in {"approve", "accept", "go ahead"}
    feedback = {"feedback": order.words["feedback"]} if "feedback" in order.words else {}
    done = yield Call("review_plan", {"request_id": request, "approve": approve, **feedback})
    if not done.ok:
        return f"{_refused(done)}. {_YOURS}"
    said = f" My feedback: {feedback['feedback']}" if feedback else ""
    return f"I {'approved' if approve else 'rejected'} {order.name or 'its author'}'s plan.{said}"


def _hear_plan(work: _Work, mail: Mail) -> _Steps:
    """Decide on a plan as the operator said, each order being good for one plan; else pass it on."""
    seen = [done for done in calls_in(work.talk.entries) if done not in work.left]
    request, decided = _request_of(mail), _decided(seen)
    if request in decided:
        return ""
    used = sum(_request_of(one) in decided for one in _plans(mail_in(work.talk.entries)) if one.author == mail.author)
    told = [one for one in mail_in(work.talk.entries) if one.author == OPERATOR or one.kind == HIRE_PROMPT]
    said: list[Order] = []
    for one in told:
        said += [clause for clause in (yield from _clauses(work, one.text)) if isinstance(clause, Order)]
    reviews = [one for one in said if one.phrase.kind == "review" and one.name in ("", mail.author)]
    orders = [one for one in reviews if "request" not in one.words][used:]
    if "review_plan" in work.talk.tools and orders:
        return (yield from _decide(request, orders[0].having(name=mail.author)))
    ask = f"Tell me to approve {mail.author}'s plan, or to reject it and why."
    return f"{mail.author} submitted a plan.\n\n{mail.text.strip()}\n\n{ask}"


def _review_work(work: _Work, mail: Mail) -> _Steps:
    """Review the work on a task: send it back once if it adds a line with TODO, else approve it."""
    found = re.search(r"\breports task (\d+) as completed", mail.text)
    if found is None:
        return f"I cannot see which task {mail.author} wants to have reviewed."
    task_id, open_ends = int(found[1]), re.findall(r"^\+(?!\+\+).*\bTODO\b.*", mail.text, re.MULTILINE)
    seen = [done for done in calls_in(work.talk.entries) if done not in work.left]
    if any(done.tool == "review_task" and done.input.get("task_id") == task_id for done in seen):
        open_ends = []
    feedback = {"feedback": f"This is not done yet: {open_ends[0][1:].strip()}"} if open_ends else {}
    done = yield Call("review_task", {"task_id": task_id, "approve": not open_ends, **feedback})
    if not done.ok:
        return _refused(done)
    said = f" {feedback['feedback']}" if open_ends else ""
    return f"I {'rejected' if open_ends else 'approved'} the work of {mail.author} on task {task_id}.{said}"


def _plans(known: Iterable[Mail]) -> list[Mail]:
    return [mail for mail in known if mail.kind == "plan_approval_request"]


def _request_of(mail: Mail) -> str:
    # The worker puts the id of the request before the plan.
    return next(iter(re.findall(r"\bplan-\w+", mail.text)), "")


def _decided(done: Iterable[Done]) -> set[str]:
    return {str(one.input.get("request_id")) for one in done if one.tool == "review_plan"}


def _inputs(template: Mapping[str, Any], words: Mapping[str, str]) -> dict[str, object]:
    """Fill a tool's input; what quotes a word that was not said is left out."""
    given: dict[str, object] = {}
    for key, value in template.items():
        quoted = re.fullmatch(r"\{(\w+)(\??)\}", str(value))
        if not quoted or quoted[1] in words:
            given[key] = True if quoted and quoted[2] else fill(value, [], words)
    return given


def _refused(done: Done) -> str:
    """Say that a tool did not do what it was asked."""
    if done.unavailable:
        return f"I may not use {done.tool}: it is not among my tools, so I left that undone."
    if done.text.startswith("interrupted"):
        return f"{done.tool} was {done.text.strip()}"
    return f"{done.tool} was refused: {done.text.strip() or 'no reason given'}"


def _facts(talk: Conversation, order: Order) -> dict[str, str]:
    """Return what a phrase can quote beside the words of the prompt."""
    own = [text for text in re.findall(r"`([^`\n]+)`", talk.system) if re.search(r"\w\s.*test|^pytest", text)]
    mail = [one for one in mail_in(talk.before) if one.author != OPERATOR and one.kind not in _UNTOLD]
    told = bullets([f"{one.kind} from {one.author}: {first_line(one.text)}" for one in mail[-12:]])
    return {
        "path": f"{talk.name}.txt",
        "content": f"{talk.name} was asked: {order.words['clause']}\n",
        "team": talk.team,
        "text": f"{talk.name} says hello.",
        "command": next(iter(own), "python -m pytest -q"),
        "mail": f"What came before, the newest last:\n{told}" if told else "",
        "status": _status(talk),
        "introduction": _introduction(talk),
    }


def _introduction(talk: Conversation, *unknown: str) -> str:
    """Say who speaks, that it is no language model, what it did not understand and what it would."""
    phrases = book().phrases(lead=talk.type == LEAD)
    able = [text for text, one in phrases.items() if all(step.tool in talk.tools for step in one.steps)]
    if unknown:
        able = [text for text in book().first if text in able][:_MOST_EXAMPLES]
    known = bullets(able) + ("\n\n“What can you do?” shows all." if unknown else "")
    quoted = ", ".join(f"“{first_line(clause)}”" for clause in unknown)
    refusal = f"I do not know how to do this: {quoted}\n\n" if unknown else ""
    told = f"I am {talk.name}, of type {talk.type}. I run on crewboard's offline model, which is a phrasebook"
    return f"{refusal}{told} and no language model. I understand{' for example' if unknown else ''}:\n{known}"


def _status(talk: Conversation) -> str:
    """Say what was asked, done and answered in a conversation, from its record."""
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


_KINDS: dict[str, Callable[[_Work, Order], _Steps]] = {
    "claim": lambda work, order: _work_on_task(work, int(order.words["id"]), order.words.get("errand", "")),
    "submit": lambda work, order: _submit(work, order.words.get("errand") or work.item.text),
    "spawn": _hire, "plan": _ask_for_plan, "review": _review, "task": _create_task, "web": _search_the_web,
    "give": _give, "stop": _stop, "unit": _write_tests, "states": _list_states, "show plan": _show_plan,
}  # fmt: skip
