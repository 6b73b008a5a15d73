"""What the embedded model does with a free prompt: an ordered table of rules, walked again at every request.

The steps of a rule are a generator (`crewboard.offline.ask`). At each request the steps of the present assignment
are walked from their beginning and fed with what the conversation says the calls gave; where the conversation ends,
the call that the steps want next is the reply, or, if they are through, their answer. So nothing is remembered
between requests, and a worker that was killed goes on where its journal ends.
"""

import re
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from crewboard.agent_types import GATED
from crewboard.offline.ask import Ask, Rule, Steps, clauses
from crewboard.offline.conversation import Call, Conversation, Done, Entry, Mail, Notice
from crewboard.offline.rules import act, look, plan, talk, team

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

SILENT = frozenset({"idle_notification", "teammate_terminated"})
"""Mail that is read and calls for nothing."""

_REFUSES = re.compile(r"\b(?:refuse|do not|don't|never)\s+(?:to\s+)?(?:shut ?down|leave|stop)\b", re.IGNORECASE)
_SUMMARISE = re.compile(r"\bsummar", re.IGNORECASE)


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


def think_about(talk_so_far: Conversation, items: Iterable[Mail | Notice], done: Sequence[Done]) -> Thought:
    """The reply to `items`, of which the calls `done` were made so far."""
    answers = []
    left = deque(call for call in done if call.tool != "shutdown_response")
    for item in items:
        steps = _steps(talk_so_far, item)
        if steps is None:
            continue
        outcome = _walk(steps, left, talk_so_far.tools)
        if isinstance(outcome, Call):
            return Thought(outcome.say, (outcome,))
        answers.append(outcome)
    return Thought("\n\n".join(answer for answer in answers if answer) or talk.so_far(talk_so_far))


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


def _steps(talk_so_far: Conversation, item: Mail | Notice) -> Steps | None:
    if isinstance(item, Notice):
        return team.remind(item) or _summarise(talk_so_far, item)
    if item.kind in SILENT:
        return None
    ask = Ask(item.text, item.text, item.author, item.kind, talk_so_far, _dispatch)
    return team.work_on_task(ask) or _dispatch(ask) or _plan_first(ask) or talk.otherwise(ask)


def _plan_first(ask: Ask) -> Steps | None:
    """What nobody knows how to do is planned, by who may not do anything before a plan is approved."""
    planned = any(isinstance(entry, Done) and entry.tool == "submit_plan" for entry in ask.talk.span)
    gated = "submit_plan" in ask.talk.tools and not GATED & ask.talk.tools
    return plan.plan_all(ask) if planned or gated else None


def _summarise(talk_so_far: Conversation, notice: Notice) -> Steps | None:
    """A notice that wants the conversation summed up, because the window is filling."""
    if talk_so_far.entries[-1] is not notice or not _SUMMARISE.search(notice.text):
        return None
    return talk.status(Ask("summary", notice.text, "system", "notice", talk_so_far, _dispatch))


def _dispatch(ask: Ask) -> Steps | None:
    # A part of an assignment is no assignment itself: it would be claimed again.
    parts = [
        replace(ask, text=clause, kind="message" if ask.kind == "task_assignment" else ask.kind)
        for clause in clauses(ask.text)
    ]
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


def _walk(steps: Steps, left: deque[Done], tools: frozenset[str]) -> Call | str:
    """Feed the steps with what their calls gave; returns the first call that was not made yet, else their answer.

    A call that is not the next in the record was not offered when its turn came, so nothing was called.
    """
    try:
        call = next(steps)
        while True:
            if left and left[0].tool == call.tool:
                call = steps.send(left.popleft())
            elif left or call.tool not in tools:
                call = steps.send(Done(call.tool, call.input, "", unavailable=True))
            else:
                return call
    except StopIteration as end:
        return str(end.value)
