"""The dashboard without a screen: one sentence per need, for screen readers and plain logs."""

import select
import sys
from collections.abc import Iterator

from crewboard.commands.cli_hint import CommandLine
from crewboard.commands.context import Team
from crewboard.readmodel.blocked_by import blocked_by
from crewboard.readmodel.reader import TeamReader
from crewboard.readmodel.team import Need, NeedKind, TeamView
from crewboard.readmodel.watcher import SWEEP
from crewboard.records import Request
from crewboard_tui.cli.answers import answers
from crewboard_tui.cli.output import note, say
from crewboard_tui.cli.watching import hints
from crewboard_tui.needs_diff import NeedsDiff
from crewboard_tui.render.formats import long_age
from crewboard_tui.render.sanitize import safe_line

NOTHING = "nothing needs you"

_SAYS: dict[NeedKind, str] = {"plan": "submits a ", "stuck": "is stuck: ", "looping": "loops: "}
"""The words between an agent's name and the summary of its need."""


def follow(team: Team) -> None:
    """Print the open needs, then each new and each settled one, until stdout is closed."""
    directory, typed = team.directory, CommandLine.of(team)
    with hints(directory) as wake:
        reader, arrivals = TeamReader(directory), NeedsDiff()
        note(f"what needs you on the team {directory.path.name} in {directory.root}; Ctrl-C ends")
        if not reader.read().needs:
            say(NOTHING)
        while not is_closed():
            wake.clear()
            for line in news(reader.read(), arrivals, typed):
                say(line)
            wake.wait(SWEEP)


def news(view: TeamView, arrivals: NeedsDiff, typed: CommandLine) -> Iterator[str]:
    """Yield sentences about needs that are new or settled since the last reading."""
    found = arrivals.read(view)
    for need in found.went:
        yield settled(need, view)
    for need in found.came:
        yield sentence(need, view, typed)
    if found.went and not view.needs:
        yield NOTHING


def sentence(need: Need, view: TeamView, typed: CommandLine) -> str:
    """Describe a need: since when, what it blocks, and the commands that answer it."""
    since = f"for {long_age(view.now - need.since)}"
    happened = f"{need.agent} {_SAYS.get(need.kind, '')}{need.summary}"
    clauses = "; ".join(part for part in (happened, since, _holds(need, view)) if part)
    return safe_line(
        ". ".join([clauses, *_options(need, view), *(f"To {what}: {how}" for what, how in answers(need, typed))])
    )


def settled(need: Need, view: TeamView) -> str:
    """Describe what became of a need that is settled."""
    request = next((each for each in view.asked if each.id == need.request_id), None)
    how = _decision(request) if request else _recovery(need, view)
    return safe_line(f"settled: {need.agent} {_SAYS.get(need.kind, '')}{need.summary}; {how}")


def is_closed() -> bool:
    """Return True if the reader of stdout is gone. While there is no news, no write would fail and show that."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(events & (select.POLLERR | select.POLLNVAL) for _, events in poll.poll(0))


def _holds(need: Need, view: TeamView) -> str:
    tasks = blocked_by(view, need)
    if not tasks:
        return ""
    names = ", ".join(str(task.id) for task in tasks)
    which = f"task {names}" if len(tasks) == 1 else f"tasks {names}"
    if need.kind == "death":
        return f"task {tasks[0].id} went back to the board" + (f", {which} wait" if len(tasks) > 1 else "")
    return f"{which} {'waits' if len(tasks) == 1 else 'wait'}"


def _options(need: Need, view: TeamView) -> list[str]:
    request = view.request(need.request_id) if need.request_id else None
    options = request.payload.get("options") if request else None
    return [f"Options: {'; '.join(map(str, options))}"] if isinstance(options, list) and options else []


def _decision(request: Request) -> str:
    return request.status + (f" by {request.decided_by}" if request.decided_by else "")


def _recovery(need: Need, view: TeamView) -> str:
    agent = view.agent(need.agent)
    if agent is None:
        return "it was removed from the roster"
    if need.kind == "death":
        return (
            "it is running again" if agent.alive else "acknowledged" if agent.acknowledged else f"it is {agent.state}"
        )
    return f"it is {agent.state}"
