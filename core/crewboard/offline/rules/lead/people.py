"""Steps about people: who is there, hiring, giving work, asking to leave."""

import re
from collections.abc import Generator
from dataclasses import dataclass, replace

from crewboard.offline import outputs
from crewboard.offline.ask import Ask, Steps, bullets, count, refused
from crewboard.offline.conversation import Call, Done
from crewboard.offline.rules.lead.errands import plan_order
from crewboard.offline.rules.lead.orders import Errand, Hire, ListTeam, Shutdown
from crewboard.offline.rules.lead.words import CALLED

WAIT = "Wait for mail."
"""What somebody is hired for who has nothing to do yet."""

LATER = "Its result will reach me as mail, and I will pass it on."

_MEMBER = re.compile(r"^(\S+) \(([^)]*)\) (.*)$")
_RUN = re.compile(r"\(run (\d+)\)")


@dataclass(frozen=True)
class Member:
    """A line of what list_team gives."""

    name: str
    kind: str
    state: str

    @property
    def runs(self) -> bool:
        """Whether mail is read now."""
        return not self.state.startswith("not running")

    @property
    def is_free(self) -> bool:
        """Whether there is nothing that it does."""
        return self.state.startswith("idle")


def roster() -> Generator[Call, Done, list[Member]]:
    """Who is on the team; nobody, if that cannot be had."""
    listed = yield Call("list_team")
    found = [_MEMBER.match(line) for line in outputs.lines(listed.text)] if listed.ok else []
    return [Member(*line.groups()) for line in found if line]


def list_team(_order: ListTeam, _ask: Ask) -> Steps:
    """Say who is on the team."""
    listed = yield Call("list_team")
    if not listed.ok:
        return refused("list_team", listed)
    lines = outputs.lines(listed.text)
    return f"{count(len(lines), 'agent')} on the team:\n{bullets(lines)}"


# ------------------------------------------------------------------------------------------------------ hiring


def hire(order: Hire, _ask: Ask) -> Steps:
    """Hire somebody; who is there already is asked for the plan, or given the work."""
    if order.plan or order.anybody:
        members = yield from roster()
        there = _who(order, members)
        if there and order.plan and there.runs:
            return (yield from _request_plan(there.name, order.errand))
        if there:
            order = replace(order, name=there.name, kind=there.kind)
        elif order.anybody:
            order = replace(order, name=free_name(order.kind, members))
    return hired((yield from spawned(order)))


def _who(order: Hire, members: list[Member]) -> Member | None:
    if order.anybody:
        return next((member for member in members if member.kind == order.kind and member.is_free), None)
    return next((member for member in members if member.name == order.name), None)


def free_name(kind: str, members: list[Member]) -> str:
    """What somebody of a type is called, if that is not somebody else's name."""
    taken = {member.name for member in members}
    name = CALLED.get(kind, kind)
    return next(one for one in (name, *(f"{name}-{n}" for n in range(2, len(taken) + 3))) if one not in taken)


def spawned(order: Hire) -> Generator[Call, Done, Done]:
    """Hire.

    Who hands in a plan first is hired in the background: the operator may be the one who reviews it.
    """
    prompt = plan_order(order.errand) if order.plan else order.errand or WAIT
    given: dict[str, object] = {"name": order.name, "agent_type": order.kind, "prompt": prompt}
    if order.background or order.plan:
        given["background"] = True
    if order.plan:
        given["plan_required"] = True
    return (yield Call("spawn_agent", given, say=f"Hiring {order.name}."))


def hired(done: Done) -> str:
    """What came of a hiring, in the tool's own words where they are not known."""
    name, text = str(done.input.get("name")), done.text.strip()
    who = f"{name} ({done.input.get('agent_type')})"
    answer = text.removeprefix(f"{name}: ") if text.startswith(f"{name}: ") else None
    if not done.ok:
        return refused("spawn_agent", done) if answer is None else f"{who} could not go on: {answer}"
    if answer is not None:
        return f"{who} answered:{_set_off(answer)}"
    if done.input.get("background") and (run := _RUN.search(text)):
        plan = " It hands in a plan before it writes or runs anything." if done.input.get("plan_required") else ""
        return f"{who} is at work in the background (run {run[1]}): “{done.input.get('prompt')}”{plan} {LATER}"
    if waits := re.match(r"\S+ waits for you: plan_approval (\S+?)\.", text):
        return f"{who} handed in a plan ({waits[1]}), which waits for a decision. {LATER}"
    return f"{who}: {text}"


def _set_off(answer: str) -> str:
    return f"\n\n{answer}" if "\n" in answer else f" {answer}"


# -------------------------------------------------------------------------------------------------------- work


def give(order: Errand, _ask: Ask) -> Steps:
    """Send somebody an errand, with a plan first where that was said."""
    if not order.plan:
        return (yield from _send(order))
    members = yield from roster()
    there = next((member for member in members if member.name == order.name), None)
    if there and there.runs:
        return (yield from _request_plan(order.name, order.text))
    kind = there.kind if there else "code"
    return hired((yield from spawned(Hire(order.name, kind, order.text, plan=True))))


def _send(order: Errand) -> Steps:
    done = yield Call("send_message", {"to": order.name, "content": order.text})
    if not done.ok:
        return refused("send_message", done)
    if "not running" in done.text:
        return f"I wrote to {order.name}: “{order.text}” {done.text.strip()}."
    return f"I sent {order.name}: “{order.text}” {LATER}"


def _request_plan(name: str, task: str) -> Steps:
    done = yield Call("request_plan", {"teammate": name, "task": plan_order(task)})
    if not done.ok:
        return refused("request_plan", done)
    return f"I gave {name}: “{done.input.get('task')}” {done.text.strip()}. {LATER}"


# ----------------------------------------------------------------------------------------------------- leaving


def shut_down(order: Shutdown, ask: Ask) -> Steps:
    """Ask each to shut down, and say what each answered."""
    names = order.names
    if not names:
        members = yield from roster()
        names = tuple(member.name for member in members if member.runs and member.name != ask.talk.name)
    told = []
    for name in names:
        done = yield Call("request_shutdown", {"teammate": name})
        told.append(f"{done.text.strip()}." if done.ok else refused("request_shutdown", done))
    return "\n".join(told) or "Nobody else is running."
