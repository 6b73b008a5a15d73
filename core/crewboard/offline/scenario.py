"""Scenarios: what each named agent does turn by turn, as data, for the demo.

A scenario is a JSON file in `scenarios/`. An agent that has the name and exactly the `prompt` that stand there says
and calls what its `turns` hold, in order. A turn has

- `text`, said before the calls, or the answer where there are no calls, which ends the script;
- `calls`, each a `tool` and its `input`;
- `delay`, seconds before the first word, and `word`, seconds from one word to the next, both multiplied by the
  server's pace; `least` is the delay that remains at any pace;
- `then`, branches: `{"on": …, "text": …, "calls": …}` is played in the place of the next turn if what the calls
  returned was `rejected` (a plan), an `error` (a tool refused) or `failed` (an exit code other than 0), or if it holds
  the words of `says` (with `of`, if what that tool returned last holds them). After a branch the same branches are
  looked at again, each but `rejected` once.

Text and inputs may quote what tools returned (`crewboard.offline.results`).
"""

import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from crewboard.names import Name
from crewboard.offline.conversation import Done
from crewboard.offline.results import exit_code, is_rejected

_HERE = Path(__file__).parent

Seconds = Annotated[float, Field(ge=0)]


class _Data(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ScriptedCall(_Data):
    """A tool and its input."""

    tool: str
    input: dict[str, Any] = {}


class Turn(_Data):
    """One reply of an agent."""

    text: str = ""
    calls: tuple[ScriptedCall, ...] = ()
    delay: Seconds = 0.8
    least: Seconds = 0
    word: Seconds = 0.03
    then: tuple["Branch", ...] = ()


class Branch(Turn):
    """A reply in the place of the next one, on a condition."""

    on: Literal["rejected", "error", "failed", "says"]
    says: str = ""
    of: str = ""


class ScenarioAgent(_Data):
    """An agent to hire, and what it then does."""

    name: Name
    type: str
    role: str
    prompt: str
    plan: bool = False
    turns: Annotated[tuple[Turn, ...], Field(min_length=1)]


class ScenarioTask(_Data):
    """A task to put on the board; the first has the id 1."""

    subject: str
    description: str = ""
    owner: Name | None = None
    blocked_by: tuple[int, ...] = ()
    required_type: str | None = None


class Scenario(_Data):
    """A team and its work."""

    name: str
    description: str
    agents: tuple[ScenarioAgent, ...]
    tasks: tuple[ScenarioTask, ...] = ()


def load(name: str) -> Scenario:
    """Return the scenario called `name`.

    Raises:
        FileNotFoundError: There is none of that name.
    """
    return Scenario.model_validate_json((_HERE / "scenarios" / f"{name}.json").read_bytes())


def load_all() -> tuple[Scenario, ...]:
    """Return every scenario there is."""
    return tuple(load(path.stem) for path in sorted((_HERE / "scenarios").glob("*.json")))


def copy_sample(to: Path) -> Path:
    """Copy the sample project that the demo works on into the folder `to`, which may exist; return it."""
    shutil.copytree(_HERE / "sample", to, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
    return to


def play(turns: Sequence[Turn], replies: Iterable[Sequence[Done]]) -> tuple[Turn | None, list[Done]]:
    """Return the next turn, None behind the last, given what the calls of each reply so far returned.

    A script's last turn has no calls. Calls that were made in its place (to answer mail that came in between) do not
    end it; they are returned beside it.
    """
    place = 0
    current: Turn = turns[0]
    extra: list[Done] = []
    used: set[int] = set()
    so_far: list[Done] = []
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
            continue
        place, used = place + 1, set()
        if place == len(turns):
            return None, []
        current = turns[place]
    return current, extra


def _branches(turn: Turn, done: Sequence[Done], so_far: Sequence[Done]) -> Iterator[int]:
    for index, branch in enumerate(turn.then):
        calls = [call for call in so_far if call.tool == branch.of][-1:] if branch.of else done
        if any(_holds(branch, call) for call in calls):
            yield index


def _holds(branch: Branch, call: Done) -> bool:
    if branch.on == "rejected":
        return is_rejected(call)
    if branch.on == "error":
        return not call.ok
    if branch.on == "failed":
        return (exit_code(call) or 0) != 0
    return branch.says.lower() in call.text.lower()
