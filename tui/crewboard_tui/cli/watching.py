"""The commands `watch`, `wait`, `journal` and `log`: print what happens, wait for a state."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

import click

from crewboard.commands import Team, command_for
from crewboard.errors import TryLaterError, UsageError
from crewboard.readmodel import AgentView, Change, ChangeReader, Shown, TeamReader
from crewboard.readmodel.watcher import SWEEP, Watcher
from crewboard.records import Event, State
from crewboard.store import TeamDirectory, files
from crewboard_tui.cli import common
from crewboard_tui.cli.common import (
    Session,
    as_json,
    clock,
    columns,
    cut,
    note,
    note_damage,
    say,
    say_json,
    say_json_line,
)
from crewboard_tui.render import safe_line

SETTLED = 5.0
"""Seconds after which a state counts despite contradicting evidence.

An idle agent with unread mail then counts as idle, because it does not seem to take the mail in; an agent without a
process then counts as ended although no exit is recorded.
"""


@contextmanager
def hints(team: TeamDirectory) -> Iterator[threading.Event]:
    """Yield an event that is set whenever the team may have changed."""
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
    """Print changes as they happen, one per line, until Ctrl-C.

    With --json, each line is an object: ts, kind (roster message status task request result exit), agent, and the
    new state.
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
    """Describe a change on one line."""
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
@click.option("--until", required=True, metavar="STATE[,STATE]", help="States to wait for.")
@click.option("--timeout", type=common.seconds, metavar="S", help="Give up after S seconds (exit 75).")
@as_json
@click.pass_obj
def wait(session: Session, name: str, until: str, timeout: float | None, as_json: bool) -> None:
    """Wait until the agent NAME reaches one of the given states.

    The states are the words that `status` shows (starting, working, waiting, retrying, idle, paused, stopping, exited,
    crashed, vanished, stuck, looping, unknown) and those of the dashboard (dead, ask, loop, start, run, wait, pause,
    done). An agent with unread mail does not count as idle. Without --timeout, the wait also ends with 75 if the agent
    has ended and is not being resumed; the message says how it ended.

    Example: crewboard wait fixer --until idle,exited,crashed --timeout 600
    """
    wanted = _states(until)
    team = session.team
    team.member(name)
    agent = _wait(team, name, wanted, timeout)
    if as_json:
        say_json({"name": name, "state": agent.state, "run": agent.run, "reason": agent.reason})
    else:
        say(safe_line(f"{name} is {agent.state}" + (f": {agent.reason}" if agent.reason else "")))


def _states(text: str) -> frozenset[str]:
    words = frozenset(word.strip() for word in text.split(",") if word.strip())
    known = dict.fromkeys([*get_args(State), *get_args(Shown)])
    if not words or not words <= known.keys():
        wrong = ", ".join(sorted(words - known.keys())) or "nothing"
        raise UsageError(f"--until: unknown state: {wrong}; the states are {', '.join(known)}")
    return words


def _wait(team: Team, name: str, wanted: frozenset[str], timeout: float | None) -> AgentView:
    started = time.monotonic()
    unread_since: float | None = None
    ended_since: float | None = None
    reader = TeamReader(team.directory)
    with hints(team.directory) as wake:
        while True:
            wake.clear()
            view = reader.read()
            agent = view.agent(name)
            if agent is None:
                raise UsageError(f"{name} is not on the team any more")
            now = time.monotonic()
            unread_since = (unread_since or now) if agent.state == "idle" and agent.unread else None
            reached = not wanted.isdisjoint(_words_for(agent))
            if reached and (unread_since is None or now - unread_since > SETTLED):
                return agent
            ended_since = (ended_since or now) if _is_over(agent) else None
            if timeout is None and ended_since is not None and (agent.exit is not None or now - ended_since > SETTLED):
                raise TryLaterError(_why_never(team, agent))
            left = SWEEP if timeout is None else started + timeout - now
            if left <= 0:
                what = "idle but has unread mail" if reached else agent.state
                raise TryLaterError(f"{name} is {what} after {timeout:g} s, not {' or '.join(sorted(wanted))}")
            wake.wait(min(left, SWEEP))


def _words_for(agent: AgentView) -> set[str]:
    """Return every word that `wait` accepts for the agent's state; an acknowledged crash still counts as `dead`."""
    return {agent.state, agent.shown, *(["dead"] if agent.is_dead else [])}


def _is_over(agent: AgentView) -> bool:
    """Return True if an agent has no process and none is starting."""
    return not agent.alive and not agent.is_starting


def _why_never(team: Team, agent: AgentView) -> str:
    reason = f": {agent.reason}" if agent.reason else ""
    return f"{agent.name} is {agent.state}{reason}; `{command_for(team, f'resume {agent.name}')}` resumes it"


POLL = 0.1
"""Seconds between two reads of a followed file."""

_INDENT = 18


@click.command()
@click.argument("name")
@click.option("--follow", is_flag=True, help="Keep printing as it grows, until Ctrl-C.")
@as_json
@click.pass_obj
def log(session: Session, name: str, follow: bool, as_json: bool) -> None:
    """Print what the worker of NAME wrote to stdout and stderr.

    Mostly warnings; `crewboard journal` shows what the agent did.
    """
    path = session.team.agent(name).log
    if not path.exists():
        note(f"{name} has written no log")
    for line in _lines(path, follow=follow):
        if as_json:
            say_json_line({"line": line})
        else:
            say(line)


def _lines(path: Path, *, follow: bool) -> Iterator[str]:
    """Yield the lines of a growing file. A last line without its newline is yielded only if not following."""
    offset = 0
    while True:
        data = _from(path, offset)
        whole, newline, rest = data.rpartition(b"\n")
        offset += len(whole) + len(newline)
        yield from whole.decode(errors="replace").split("\n") if newline else []
        if not follow:
            yield from [rest.decode(errors="replace")] if rest else []
            return
        time.sleep(POLL)


def _from(path: Path, offset: int) -> bytes:
    try:
        with open(path, "rb", opener=files.open_existing) as file:
            file.seek(offset)
            return file.read()
    except FileNotFoundError:
        return b""


@click.command()
@click.argument("name")
@click.option("--follow", is_flag=True, help="Keep printing as it grows, until Ctrl-C.")
@as_json
@click.pass_obj
def journal(session: Session, name: str, follow: bool, as_json: bool) -> None:
    """Print everything that the agent NAME did, oldest first.

    With --json, print the events, one per line.
    """
    from crewboard.store import journal as store

    path = session.team.agent(name).journal
    offset, damaged = 0, 0
    if not path.exists():
        note(f"{name} has done nothing yet")
    while True:
        for event, end in store.read(path, offset):
            offset = end
            if event is None:
                damaged += 1
            elif as_json:
                say_json_line(event.model_dump())
            else:
                _show(event)
        if not follow:
            break
        time.sleep(POLL)
    note_damage(damaged, "journal")


def _show(event: Event) -> None:
    from crewboard.readmodel import describe

    for activity in describe(event):
        seconds = f" ({activity.seconds:.1f}s)" if activity.seconds else ""
        first, *more = activity.text.splitlines() or [""]
        say(f"{clock(activity.ts)}  {activity.kind:<6}  {first}{seconds}")
        for line in more:
            say((" " * _INDENT + line).rstrip())
