"""What the embedded model does with a free prompt: an ordered table of rules, walked again at every request.

The steps of a rule are a generator (`crewboard.offline.ask`). At each request the steps of the present assignment
are walked from their beginning and fed with what the conversation says the calls gave; where the conversation ends,
the call that the steps want next is the reply, or, if they are through, their answer. So nothing is remembered
between requests, and a worker that was killed goes on where its journal ends.
"""

import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from crewboard.agent_types.builtin import GATED
from crewboard.names import LEAD, SYSTEM
from crewboard.offline.ask import Ask, Rule, Steps, Walk, clauses
from crewboard.offline.conversation import HIRE_PROMPT, NOTICE, Call, Conversation, Done, Entry, Mail, Notice, only_mail
from crewboard.offline.rules import act, look, plan, talk, team
from crewboard.offline.rules.lead.act import dispatch as lead_dispatch
from crewboard.offline.rules.lead.book import is_from_operator
from crewboard.offline.rules.lead.mail import hear
from crewboard.records import JOINS_NEXT_TURN

RULES: tuple[Rule, ...] = (
    talk.say,
    plan.plan,
    team.ask_operator,
    team.close_task,
    team.list_tasks,
    team.inbox,
    act.write,
    act.edit,
    act.run_tests,
    act.run_command,
    team.send,
    look.survey,
    look.search,
    look.list_files,
    look.list_folder,
    look.read,
    talk.status,
    talk.wait,
    talk.greet,
)
"""The first rule that knows a clause takes it."""

SILENT = JOINS_NEXT_TURN
"""Mail that is read and calls for nothing."""

_REFUSES = re.compile(r"\b(?:refuse|do not|don't|never)\s+(?:to\s+)?(?:shut ?down|leave)\b", re.IGNORECASE)

_APPROVED = re.compile(r"^Your plan, which is approved:", re.MULTILINE)


@dataclass(frozen=True)
class Thought:
    """What to reply: text, and the calls behind it; without calls it is the answer."""

    text: str = ""
    calls: tuple[Call, ...] = ()


def think(talk_so_far: Conversation) -> Thought:
    """The reply to a free prompt."""
    entries = _since_interrupt(talk_so_far.span)
    items = [entry for entry in entries if isinstance(entry, Mail | Notice)]
    return think_about(talk_so_far, items, [entry for entry in entries if isinstance(entry, Done)])


def think_about(talk_so_far: Conversation, items: Iterable[Mail | Notice], done: Iterable[Done]) -> Thought:
    """The reply to `items`, of which the calls `done` were made so far."""
    answers = []
    walk = Walk(deque(call for call in done if call.tool != "shutdown_response"), plan=_plan_in(talk_so_far))
    for item in _in_turn(items, walk):
        steps = _steps(_ask(talk_so_far, item, walk), item)
        if steps is None:
            continue
        outcome = _take(steps, walk, talk_so_far.tools)
        if isinstance(outcome, Call):
            return Thought(outcome.say, (outcome,))
        answers.append(outcome)
    return Thought("\n\n".join(answer for answer in answers if answer) or talk.so_far(talk_so_far))


def _plan_in(talk_so_far: Conversation) -> Done | None:
    """The approval that a summary of the conversation tells of."""
    approved = any(isinstance(entry, Notice) and _APPROVED.search(entry.text) for entry in talk_so_far.span)
    return Done("submit_plan", {}, "The plan is approved.") if approved else None


def _in_turn(items: Iterable[Mail | Notice], walk: Walk) -> Iterator[Mail | Notice]:
    """Mail as it came, and what the system says of a task last, for it is closed when the work is done.

    Where a call on record is older than the mail that is next, the work had been done by then.
    """
    notices: list[Notice] = []
    for item in items:
        if isinstance(item, Notice):
            notices.append(item)
            continue
        if walk.left and walk.left[0].turn <= item.turn:
            yield from notices
            notices.clear()
        yield item
    yield from notices


def knows(talk_so_far: Conversation, mail: Mail) -> bool:
    """Whether a rule knows what to do about `mail`."""
    ask = _ask(talk_so_far, mail, Walk(deque()))
    return bool(team.work_on_task(ask) or _dispatch(ask))


def _ask(talk_so_far: Conversation, item: Mail | Notice, walk: Walk) -> Ask:
    author, kind = (item.author, item.kind) if isinstance(item, Mail) else (SYSTEM, NOTICE)
    entries = talk_so_far.entries
    place = next((place for place, entry in enumerate(entries) if entry is item), len(entries))
    return Ask(item.text, item.text, author, kind, talk_so_far, _dispatch, walk, entries[:place])


def asked_to_leave(talk_so_far: Conversation) -> Thought | None:
    """The answer to a request to shut down, while one is open and not answered yet."""
    if "shutdown_response" not in talk_so_far.tools:
        return None
    last = talk_so_far.replies[-1:]
    if last and any(call.tool == "shutdown_response" for call in last[0]):
        return None
    prompt = talk_so_far.hire_prompt or ""
    refusal = _REFUSES.search(prompt)
    if refusal:
        why = f"my prompt says: “{refusal[0]}”"
        return Thought(calls=(Call("shutdown_response", {"approve": False, "reason": why}),))
    return Thought(calls=(Call("shutdown_response", {"approve": True}),))


def _since_interrupt(span: tuple[Entry, ...]) -> tuple[Entry, ...]:
    """An interrupt ends what was being done: only it and what came later is worked on."""
    places = [place for place, entry in enumerate(span) if isinstance(entry, Mail) and entry.kind == "interrupt"]
    return span[places[-1] :] if places else span


def _steps(ask: Ask, item: Mail | Notice) -> Steps | None:
    if isinstance(item, Notice):
        return team.own_task(ask)
    if item.kind in SILENT:
        return None
    if ask.talk.type == LEAD and not is_from_operator(item):
        return hear(ask)
    if ask.talk.type == LEAD and item.kind != "task_assignment":
        return _dispatch(ask) or _plan_first(ask, item) or talk.otherwise(ask)
    return team.work_on_task(ask) or _dispatch(ask) or _plan_first(ask, item) or talk.otherwise(ask)


def _plan_first(ask: Ask, mail: Mail) -> Steps | None:
    """Work that no rule knows is planned, by who may not do anything before a plan is approved."""
    begins = next(iter(only_mail(ask.talk.span))) is mail
    if not begins or mail.kind not in {HIRE_PROMPT, "message", "task_assignment"}:
        return None
    planned = any(isinstance(entry, Done) and entry.tool == "submit_plan" for entry in ask.talk.span)
    gated = ask.talk.plan_required or ("submit_plan" in ask.talk.tools and not GATED & ask.talk.tools)
    return plan.plan_all(ask) if planned or gated else None


def _dispatch(ask: Ask) -> Steps | None:
    # A part of an assignment is no assignment itself: it would be claimed again.
    part = replace(ask, kind="message" if ask.kind == "task_assignment" else ask.kind)
    return lead_dispatch(part, _as_anybody) if ask.talk.type == LEAD else _by_rules(part)


def _as_anybody(ask: Ask) -> Steps | None:
    return team.work_on_task(ask) or _by_rules(ask)


def _by_rules(ask: Ask) -> Steps | None:
    parts = [ask.about(clause) for clause in clauses(ask.text)]
    parts.sort(key=lambda part: plan.plan(part) is None)  # a plan comes before what it is for
    found = [steps for steps in map(_first_match, parts) if steps is not None]
    return _one_after_the_other(found) if found else None


def _first_match(ask: Ask) -> Steps | None:
    return next((steps for rule in RULES if (steps := rule(ask)) is not None), None)


def _one_after_the_other(found: list[Steps]) -> Steps:
    said: list[str] = []
    for steps in found:
        text = yield from steps
        said.append(text)
    return "\n\n".join(dict.fromkeys(text for text in said if text))


def _take(steps: Steps, walk: Walk, tools: frozenset[str]) -> Call | str:
    """Feed the steps with what their calls gave; returns the first call that was not made yet, else their answer.

    A call that is not the next on record was not offered when its turn came, so nothing was called.
    """
    try:
        call = next(steps)
        while True:
            if walk.left and walk.left[0].tool == call.tool:
                walk.made.append(walk.left.popleft())
                if walk.made[-1].left_out:
                    return _lost(walk.made[-1])
                call = steps.send(walk.made[-1])
            elif walk.left or call.tool not in tools:
                call = steps.send(Done(call.tool, call.input, "", unavailable=True))
            else:
                return call
    except StopIteration as end:
        return str(end.value)


def _lost(done: Done) -> str:
    about = ", ".join(str(value) for value in done.input.values())
    return f"What {done.tool} ({about}) gave was left out of my window to save room; I cannot answer from it any more."
