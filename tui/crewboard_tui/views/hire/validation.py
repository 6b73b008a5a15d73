"""Checks of the hire form, the equivalent command line, and unused names."""

from typing import NamedTuple

from crewboard.commands.cli_hint import CommandLine
from crewboard.commands.hire import Hire
from crewboard.errors import UsageError
from crewboard.names import check_agent
from crewboard.pricing import parse_budget
from crewboard.readmodel.team import TeamView
from crewboard.records import HireOptions, Profile, Spec
from crewboard.store.tasks import check_type
from crewboard_tui.keymap.bindings import Pressed, default_key

_LONGEST_STEM = 28


def spawn_words(hire: Hire, typed: CommandLine, *, foreground: bool = False) -> list[str]:
    """Return the command line that hires the same agent."""
    flags = hire.flags
    terms: list[tuple[str, object]] = [
        ("--role", hire.role),
        ("--model", hire.model),
        ("--plan", flags.plan),
        ("--ask", flags.ask),
        ("--network", flags.network),
        ("--autoclaim", flags.autoclaim),
        ("--once", flags.once),
        ("--max-turns", flags.max_turns if flags.max_turns != HireOptions().max_turns else None),
        ("--budget", flags.budget),
        ("--task", flags.task),
        ("--background", not foreground),
    ]
    words = typed.words("spawn", hire.name or "NAME", "--type", hire.type)
    for name, value in terms:
        if value:
            words += [name] if value is True else [name, str(value)]
    return [*words, "--prompt", hire.prompt.strip() or "…"]


class Problem(NamedTuple):
    """Why the agent cannot be hired yet, and the field to correct."""

    field: str
    says: str


def problems(hire: Hire, view: TeamView, pressed: Pressed = default_key) -> list[Problem]:
    """Return the problems, at most one per field; empty if the agent can be hired."""
    wrong = {
        "name": _wrong_name(hire, view, pressed),
        "limits": _wrong_budget(hire.flags.budget),
        "task": _wrong_task(hire, view),
        "prompt": None if hire.prompt.strip() else "it needs a prompt",
    }
    return [Problem(field, says) for field, says in wrong.items() if says is not None]


def _wrong_name(hire: Hire, view: TeamView, pressed: Pressed) -> str | None:
    try:
        check_agent(hire.name, hire.type)
    except UsageError as error:
        return str(error)
    member = view.agent(hire.name)
    if member is not None and member.type != hire.type:
        return f"{hire.name} is of type {member.type}; choose another name"
    if member is not None and member.alive and member.state != "idle":
        return f"{hire.name} is running; choose another name, or message it with {pressed('agent.message')}"
    return None


def _wrong_task(hire: Hire, view: TeamView) -> str | None:
    task = next((task for task in view.tasks if task.id == hire.flags.task), None)
    try:
        if task is not None:
            check_type(f"task {task.id}", task.required_type, hire.name, hire.type)
    except UsageError as error:
        return str(error)
    return None


def _wrong_budget(budget: str | None) -> str | None:
    try:
        if budget is not None:
            parse_budget(budget)
    except UsageError as error:
        return str(error)
    return None


def terms_of(spec: Spec) -> Profile:
    """Return an agent's terms as a profile, without its task and without its permission to run unsandboxed."""
    flags = spec.flags.model_copy(update={"task": None, "unsafe_no_sandbox": False})
    return Profile(type=spec.type, role=spec.role, prompt=spec.prompt, model=spec.model or None, flags=flags)


def free_name(view: TeamView, like: str) -> str:
    """Return `like` if that name is unused, else the same name with the next unused number."""
    taken = {agent.name for agent in view.agents}
    if like not in taken:
        return like
    stem = like.rstrip("0123456789")[:_LONGEST_STEM]
    return next(name for number in range(2, len(taken) + 3) if (name := f"{stem}{number}") not in taken)
