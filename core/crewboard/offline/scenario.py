"""Scenarios: what each named agent does turn by turn, as data, for the demo.

A scenario is a JSON file in `scenarios/`. An agent with the name and exactly the `prompt` of one there says the `text`
of its `turns` and makes their `calls`, in order; the last turn has no calls. `delay` is seconds before the first word,
`word` from word to word, both multiplied by the server's pace; `least` is the delay that remains at any pace. `then`
are branches, played in the place of the next turn `on` what the calls returned: a plan was `rejected`, a tool gave an
`error`, a command `failed`, or the text (of the tool in `of`) holds what `says` says. After a branch the same branches
are looked at again, each but `rejected` once. Text and inputs may quote what tools returned (`conversation.py`).
"""

import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from crewboard.offline.conversation import Call, Done, exit_code, is_rejected
from crewboard.records.base import Name

_HERE = Path(__file__).parent
Seconds = Annotated[float, Meta(ge=0)]


class Turn(Struct, frozen=True, forbid_unknown_fields=True):
    text: str = ""
    calls: tuple[Call, ...] = ()
    delay: Seconds = 0.8
    least: Seconds = 0
    word: Seconds = 0.03
    then: tuple["Branch", ...] = ()


class Branch(Turn, kw_only=True, frozen=True):
    on: Literal["rejected", "error", "failed", "says"]
    says: str = ""
    of: str = ""


class ScenarioAgent(Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    name: Name
    type: str
    role: str
    prompt: str
    plan: bool = False
    turns: Annotated[tuple[Turn, ...], Meta(min_length=1)]


class ScenarioTask(Struct, frozen=True, forbid_unknown_fields=True):
    subject: str
    description: str = ""
    owner: Name | None = None
    blocked_by: tuple[int, ...] = ()
    required_type: str | None = None


class Scenario(Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    description: str
    agents: tuple[ScenarioAgent, ...]
    tasks: tuple[ScenarioTask, ...] = ()


def load(name: str) -> Scenario:
    """Return the scenario called `name`."""
    return msgspec.json.decode((_HERE / "scenarios" / f"{name}.json").read_bytes(), type=Scenario)


def load_all() -> tuple[Scenario, ...]:
    """Return every scenario there is."""
    return tuple(load(path.stem) for path in sorted((_HERE / "scenarios").glob("*.json")))


def copy_sample(to: Path) -> Path:
    """Copy the sample project that the demo works on into the folder `to`, which may exist; return it."""
    shutil.copytree(_HERE / "sample", to, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
    return to


def play(turns: Sequence[Turn], replies: Iterable[Sequence[Done]]) -> tuple[Turn | None, list[Done]]:
    """Return the next turn, None behind the last, given what the calls of each reply so far returned.

    Calls that were made in the place of the last turn, to answer mail that came in between, are returned beside it.
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
        branch = next((index for index in _branches(turns[place], done, so_far) if index not in used), None)
        if branch is not None:
            current = turns[place].then[branch]
            used |= {branch} if turns[place].then[branch].on != "rejected" else set()
        elif place + 1 == len(turns):
            return None, []
        else:
            place, used = place + 1, set()
            current = turns[place]
    return current, extra


def _branches(turn: Turn, done: Sequence[Done], so_far: Sequence[Done]) -> Iterator[int]:
    for index, branch in enumerate(turn.then):
        calls = [call for call in so_far if call.tool == branch.of][-1:] if branch.of else done
        if any(_HOLDS[branch.on](branch, call) for call in calls):
            yield index


_HOLDS: dict[str, Callable[[Branch, Done], bool]] = {
    "rejected": lambda _, call: is_rejected(call),
    "error": lambda _, call: not call.ok,
    "failed": lambda _, call: exit_code(call) not in {None, 0},
    "says": lambda branch, call: branch.says.lower() in call.text.lower(),
}
