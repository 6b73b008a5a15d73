"""Plans: submit one, revise it by the feedback until it is approved, and only then act."""

import re
from collections.abc import Generator

from crewboard.offline import outputs
from crewboard.offline.ask import Ask, Steps, paths, refused
from crewboard.offline.conversation import Call, Done

_PHRASE = (
    r"\b(?:(?:please\s+)?(?:submit|make|write|propose|draft|hand in|prepare|design|give me|send)\s+"
    r"(?:me\s+)?(?:a|the|your)\s+(?:\w+\s+)?plan\b(?!\.\w)"
    r"|^(?:please\s+)?plan\b(?!\.\w)|\bplan (?:first|it|this|how)\b)"
    r"\s*(?:to|for|of|how to|that|which|:|,)?\s*"
)


_WANTS_PLAN = re.compile(
    r"\bplan\b.*\b(?:approv|submit)|\b(?:approv\w*|submit\w*)\b.*\bplan\b", re.IGNORECASE | re.DOTALL
)


_UNKNOWN = "To carry it out is not among the few things that I, the embedded model, know to do; I changed nothing."


def plan(ask: Ask) -> Steps | None:
    """Submit a plan to rename X; after approval do it."""
    asked = ask.match(_PHRASE)
    return _plan(ask, ask.text[asked.end() :]) if asked else None


def plan_all(ask: Ask) -> Steps:
    """Submit a plan for a task that no rule knows: its approval is all that can be had."""
    return _plan(ask, ask.whole)


def _plan(ask: Ask, task: str) -> Steps:
    decided = yield from until_approved(ask)
    if not _approved(decided):
        return _not_approved(decided)
    wanted = task.strip(" .")
    steps = ask.dispatch(ask.about(task)) if wanted else None
    done = (yield from steps) if steps else _UNKNOWN if wanted else ""
    return f"The plan was approved. {done}".strip()


def until_approved(ask: Ask) -> Generator[Call, Done, Done]:
    """Submit a plan for all that was asked, and again after each rejection; returns what submit_plan said last.

    One approval is enough for an assignment.
    """
    objections: list[str] = []
    while ask.walk.plan is None:
        done = yield Call("submit_plan", _draft(ask, objections), say="Here is my plan.")
        if _approved(done):
            ask.walk.plan = done
        elif not outputs.rejected(done.text):
            return done
        objections.append(outputs.feedback(done.text))
    return ask.walk.plan


def act(ask: Ask, call: Call) -> Generator[Call, Done, Done]:
    """Do `call`; where a plan must be approved first, hand one in and do it then."""
    if not ask.talk.plan_required or ask.walk.plan:
        done = yield call
        if done.ok or ask.walk.plan or not (done.unavailable or _WANTS_PLAN.search(done.text)):
            return done
    else:
        done = Done(call.tool, call.input, "", unavailable=True)
    decided = yield from until_approved(ask)
    if decided.unavailable:
        return done
    if not _approved(decided):
        return Done(call.tool, call.input, _not_approved(decided), is_error=True)
    return (yield call)


def _approved(done: Done) -> bool:
    return done.ok and "approv" in done.text.lower() and not outputs.rejected(done.text)


def _not_approved(done: Done) -> str:
    if not done.ok:
        return refused("submit_plan", done)
    return f"The plan was not approved, so I changed nothing: {done.text.strip()}"


def _draft(ask: Ask, objections: list[str]) -> dict[str, object]:
    files = paths(ask.whole)
    quoted = "\n".join(f"> {line}" for line in ask.whole.strip().splitlines())
    steps = [
        f"Read {', '.join(f'`{path}`' for path in files)} where it exists." if files else "Read what the task names.",
        "Do what the task says, and nothing else.",
        "Say what was done, and what was not.",
    ]
    text = f"# Plan\n\nThe task, word for word:\n\n{quoted}\n\n## Steps\n\n"
    text += "\n".join(f"{number}. {step}" for number, step in enumerate(steps, 1))
    for number, objection in enumerate(objections, 2):
        said = "\n".join(f"> {line}" for line in objection.splitlines())
        text += f"\n\n## Revision {number}\n\nChanged to follow this feedback:\n\n{said}"
    return {"plan": text, "files": files, "risk": "Low: only what the task names is touched."}
