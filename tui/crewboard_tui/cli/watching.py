"""Watching a team from a script: changes as they happen, and waiting for a state."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, get_args

import click

from crewboard.errors import TryLaterError, UsageError
from crewboard.records import State
from crewboard.store.directory import TeamDirectory
from crewboard.team.context import Team
from crewboard.view.changes import Change, ChangeReader
from crewboard.view.fold import AgentView
from crewboard.view.reader import TeamReader
from crewboard.view.watch import SWEEP, Watcher
from crewboard_tui.cli.output import as_json, clock, columns, cut, note, say, say_json, say_json_line
from crewboard_tui.cli.session import Session

SETTLED = 2.0
"""Seconds after which an idle agent is idle although mail lies unread: it seems not to take that in."""


@contextmanager
def hints(team: TeamDirectory) -> Iterator[threading.Event]:
    """An event that is set whenever the team may have changed."""
    wake = threading.Event()
    watcher = Watcher(team.path, wake.set)
    watcher.start()
    try:
        yield wake
    finally:
        watcher.stop()


@click.command()
@as_json
@click.pass_obj
def watch(session: Session, as_json: bool) -> None:
    """Print changes as they happen, one a line, until Ctrl-C.

    With --json one object a line: ts, kind (roster message status task request result exit), agent, and what
    it is now.
    """
    team = session.team
    with hints(team.directory) as wake:
        reader = ChangeReader(team.directory)
        note(f"watching the team {team.directory.path.name} in {team.directory.root}; Ctrl-C ends")
        while True:
            wake.clear()
            for change in reader.read():
                if as_json:
                    say_json_line(change.as_json())
                else:
                    say(describe(change))
            wake.wait(SWEEP)


def describe(change: Change) -> str:
    """A change on one line."""
    head = f"{clock(change.ts)}  {change.kind:<7}  {change.agent or '–'}  "
    return head + cut(_words(change), max(20, columns() - len(head)))


def _words(change: Change) -> str:
    what = change.what
    if change.kind == "roster":
        return f"{what['change']} ({what['type']}{', ' + what['role'] if what['role'] else ''})"
    if change.kind == "message":
        return f"← {what['from']}: {what['type']} {what['content']}"
    if change.kind == "task":
        return f"#{what['id']} {what['status'].replace('_', ' ')} · {what['subject']}"
    if change.kind == "request":
        return f"{what['id']} {what['status']}{_decider(what)} · {what['summary']}"
    if change.kind == "status":
        return str(what["state"]) + (f": {what['doing']}" if what["doing"] else "")
    return str(what["result"]) if change.kind == "result" else f"run {what['run']}: {what['how']}"


def _decider(what: dict[str, Any]) -> str:
    return f" by {what['decided_by']}" if what["decided_by"] else ""


@click.command()
@click.argument("name")
@click.option("--until", required=True, metavar="STATE[,STATE]", help="Any of these states.")
@click.option("--timeout", type=click.FloatRange(min=0), metavar="S", help="Give up after so many seconds, exit 75.")
@as_json
@click.pass_obj
def wait(session: Session, name: str, until: str, timeout: float | None, as_json: bool) -> None:
    """Wait until the agent NAME is in one of some states.

    The states are the words that `status` shows.
    An agent with mail that it has not picked up yet is not idle.

    Example: crewboard wait fixer --until idle,exited,crashed --timeout 600
    """
    wanted = _states(until)
    team = session.team
    team.member(name)
    agent = _wait(team, name, wanted, timeout)
    if as_json:
        say_json({"name": name, "state": agent.state, "run": agent.run, "reason": agent.reason})
    else:
        say(f"{name} is {agent.state}" + (f": {agent.reason}" if agent.reason else ""))


def _states(text: str) -> frozenset[str]:
    words = frozenset(word.strip() for word in text.split(",") if word.strip())
    known = get_args(State)
    if not words or not words <= set(known):
        wrong = ", ".join(sorted(words - set(known))) or "nothing"
        raise UsageError(f"--until: no such state: {wrong}; the states are {', '.join(known)}")
    return words


def _wait(team: Team, name: str, wanted: frozenset[str], timeout: float | None) -> AgentView:
    started = time.monotonic()
    reader = TeamReader(team.directory)
    with hints(team.directory) as wake:
        while True:
            wake.clear()
            view = reader.read()
            agent = view.agent(name)
            if agent is None:
                raise UsageError(f"{name} is not on the team any more")
            if agent.state in wanted and _is_settled(agent, view.now):
                return agent
            left = SWEEP if timeout is None else started + timeout - time.monotonic()
            if left <= 0:
                raise TryLaterError(f"{name} is {agent.state} after {timeout:g} s, not {' or '.join(sorted(wanted))}")
            wake.wait(min(left, SWEEP))


def _is_settled(agent: AgentView, now: float) -> bool:
    return agent.state != "idle" or not agent.unread or now - agent.since > SETTLED
