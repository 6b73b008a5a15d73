"""Scenarios: what each named agent does turn by turn, as data, for the demo.

A scenario is a JSON file in `scenarios/`. An agent with the name and exactly the `prompt` of an agent in it says the
`text` of its `turns` and makes their `calls`, in order; the last turn has no calls. `delay` is the seconds before the
first word, `word` those between two words, both multiplied by the server's pace; `least` is the shortest delay at any
pace. `then` are branches. One is played in the place of the next turn if what the calls returned fits its `on`: a plan
was `rejected`, a tool gave an `error`, a command `failed`, or with `says`, the result (of the last call of the tool
`of`, if given) contains the text `says`. After a branch, the branches of the same turn are tried again; each is played
once, but for `rejected`. Text and inputs may quote what tools returned (see `conversation`).
"""

import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from crewboard.offline.conversation import Call, Done, exit_code, is_rejected
from crewboard.records.base import Name

_HERE = Path(__file__).parent
Seconds = Annotated[float, Meta(ge=0)]


class Turn(Struct, frozen=True, forbid_unknown_fields=True):
    """One reply of an agent; times are in seconds."""

    text: str = ""
    calls: tuple[Call, ...] = ()
    delay: Seconds = 0.8
    least: Seconds = 0
    word: Seconds = 0.03
    then: tuple["Branch", ...] = ()


class Branch(Turn, kw_only=True, frozen=True):
    """A turn that is played in the place of the next one if what the calls returned fits `on`."""

    on: Literal["rejected", "error", "failed", "says"]
    says: str = ""
    of: str = ""


class ScenarioAgent(Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """An agent of a scenario: how it is hired, and its turns. With `plan`, its plan must be approved."""

    name: Name
    type: str
    role: str
    prompt: str
    plan: bool = False
    turns: Annotated[tuple[Turn, ...], Meta(min_length=1)]


class ScenarioTask(Struct, frozen=True, forbid_unknown_fields=True):
    """A task that a scenario adds to the board. `blocked_by` are ids of tasks."""

    subject: str
    description: str = ""
    owner: Name | None = None
    blocked_by: tuple[int, ...] = ()
    required_type: str | None = None


class Scenario(Struct, frozen=True, forbid_unknown_fields=True):
    """A scenario: its agents and the tasks on the board."""

    name: str
    description: str
    agents: tuple[ScenarioAgent, ...]
    tasks: tuple[ScenarioTask, ...] = ()


def load(name: str) -> Scenario:
    """Return the scenario in the file `scenarios/NAME.json`."""
    return msgspec.json.decode((_HERE / "scenarios" / f"{name}.json").read_bytes(), type=Scenario)


def load_all() -> tuple[Scenario, ...]:
    """Return all scenarios, in the order of their file names."""
    return tuple(load(path.stem) for path in sorted((_HERE / "scenarios").glob("*.json")))


def copy_sample(to: Path) -> Path:
    """Copy the sample project that the demo works on into the folder `to`, which may exist; return it."""
    shutil.copytree(_HERE / "sample", to, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
    return to


def play(turns: Sequence[Turn], replies: Iterable[Sequence[Done]]) -> tuple[Turn | None, list[Done]]:
    """Return the turn to play next, and the calls that answered mail before the final turn is said.

    `replies` are, for each reply so far, the results of its calls; none for a reply without calls. The turn is None if
    the final one, which has no calls of its own, has been said.
    """
    place, current = 0, turns[0]
    used: set[int] = set()
    extra, so_far = list[Done](), list[Done]()
    for done in replies:
        so_far.extend(done)
        if not done:
            return None, []
        if not current.calls:
            extra.extend(done)
            continue
        for index, branch in enumerate(turns[place].then):
            calls = [call for call in so_far if call.tool == branch.of][-1:] if branch.of else done
            if index not in used and _fits(branch, calls):
                current = branch
                used |= {index} if branch.on != "rejected" else set()
                break
        else:
            if place + 1 == len(turns):
                return None, []
            place, used = place + 1, set()
            current = turns[place]
    return current, extra


def _fits(branch: Branch, calls: Iterable[Done]) -> bool:
    """Return True if what one of the calls returned fits the `on` of a branch."""
    holds: dict[str, Callable[[Done], bool]] = {
        "rejected": is_rejected,
        "error": lambda call: not call.ok,
        "failed": lambda call: exit_code(call) not in {None, 0},
        "says": lambda call: branch.says.lower() in call.text.lower(),
    }
    return any(map(holds[branch.on], calls))
