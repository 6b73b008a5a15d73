"""The commands `watch`, `wait`, `journal`, `log`, `audit` and `away`: print events, and wait for a state."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import get_args

import click
from msgspec import Struct
from msgspec.structs import asdict

import crewboard as core
from crewboard import AgentView, Team, TeamReader, TeamView, TryLaterError, UsageError, env
from crewboard.commands import hire
from crewboard.commands.context import command_for
from crewboard.protocol import requests
from crewboard.readmodel import as_json as readmodel_as_json
from crewboard.readmodel import watcher as readmodel_watcher
from crewboard.readmodel.activity import describe as activity_describe
from crewboard.readmodel.changes import Absence, Change, ChangeReader, describe_detail, read_absence, sent_messages
from crewboard.readmodel.crash_report import host_of_log
from crewboard.readmodel.states import Shown
from crewboard.records.agents import State
from crewboard.records.messages import LastVisit
from crewboard.store import files, operators
from crewboard.store import journal as store_journal
from crewboard.store.layout import TeamDirectory, record_of
from crewboard_tui.cli import common
from crewboard_tui.cli.common import (
    Session,
    as_json,
    clock,
    columns,
    cut,
    keep_mirrored,
    note,
    note_damage,
    say,
    say_json,
    say_json_line,
    table,
)
from crewboard_tui.render.sanitize import safe_line

SETTLED = 5.0
"""Seconds after which a state counts despite contradicting evidence.

An idle agent with unread mail then counts as idle, because it does not seem to take the mail in; an agent without a
process then counts as ended although no exit is recorded.
"""


@contextmanager
def hints(team: TeamDirectory) -> Iterator[threading.Event]:
    """Yield an event that is set whenever the team may have changed. The caller clears it."""
    wake = threading.Event()
    watcher = readmodel_watcher.Watcher(team.path, wake.set)
    watcher.start()
    try:
        yield wake
    finally:
        watcher.stop()


@click.command()
@as_json
def watch(session: Session) -> None:
    """Print changes as they happen, one per line, until Ctrl-C.

    With --json, each line is an object: ts, kind (roster message status task request result exit), agent, and the
    new state.
    """
    team = session.team
    keep_mirrored(team.directory)
    with hints(team.directory) as wake:
        reader, lines = ChangeReader(team.directory), ChangeLines()
        note(f"watching the team {team.directory.path.name} in {team.directory.root}; Ctrl-C ends")
        while True:
            wake.clear()
            changes = reader.read()
            if session.as_json:
                for change in changes:
                    say_json_line(change.as_json())
            else:
                say(*lines.describe(changes))
            wake.wait(readmodel_watcher.SWEEP)


class ChangeLines:
    """Describes changes as lines of text."""

    def __init__(self) -> None:
        self._last: dict[str | None, tuple[str, str]] = {}

    def describe(self, changes: Iterable[Change]) -> Iterator[str]:
        """Yield a line for each change, except a status that reads like the last line about its agent.

        Such a status differs only in what JSON has, such as the process.
        """
        for change in changes:
            words = change.kind, _words(change)
            if change.kind == "status" and self._last.get(change.agent) == words:
                continue
            self._last[change.agent] = words
            head = f"{clock(change.ts)}  {change.kind:<7}  {change.agent or '–'}  "
            yield head + cut(words[1], max(20, columns() - len(head)))


def _words(change: Change) -> str:
    what = change.what
    if change.kind == "roster":
        return f"{what['change']} ({what['type']}{', ' + what['role'] if what['role'] else ''})"
    if change.kind == "message":
        return f"← {what['from']}: {what['type']} {what['content']}"
    if change.kind == "task":
        return f"#{what['id']} {what['status'].replace('_', ' ')} · {what['subject']}"
    if change.kind == "request":
        by = f" by {what['decided_by']}" if what["decided_by"] else ""
        return f"{what['id']} {what['status']}{by} · {what['summary']}"
    if change.kind == "status":
        return str(what["state"]) + (f": {what['doing']}" if what["doing"] else "")
    return str(what["result"]) if change.kind == "result" else f"run {what['run']}: {what['how']}"


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...", shell_complete=common.complete_agent)
@click.option("--until", metavar="STATE[,STATE]", shell_complete=common.complete_states, help="States to wait for.")
@click.option("--all", "every", is_flag=True, help="Wait for each agent; without NAME, for each of the team.")
@click.option("--any", "first", is_flag=True, help="Wait for one agent; without NAME, for one of the team.")
@click.option("--needs", is_flag=True, help="Wait until something needs you, and print the most urgent as JSON.")
@click.option("--timeout", type=common.seconds, metavar="S", help="Give up after S seconds (exit 75).")
@as_json
def wait(
    session: Session,
    names: tuple[str, ...],
    until: str | None,
    every: bool,
    first: bool,
    needs: bool,
    timeout: float | None,
) -> None:
    """Wait until agents reach a state, or until something needs you.

    The states are the words that `status` shows (starting, working, waiting, retrying, idle, paused, stopping, exited,
    crashed, vanished, stuck, looping, unknown, queued) and those of the dashboard (dead, ask, loop, start, run, wait,
    pause, limit, done). An agent with unread mail does not count as idle. Without --timeout, the wait also ends
    with 75 if an agent that it needs has ended and is not being resumed; the message says how it ended.

    With --json, one NAME gives an object; several names, --all and --any give a list.

    Examples: crewboard wait fixer --until idle,exited,crashed --timeout 600; crewboard wait --all --until idle,done
    """
    team = session.team
    keep_mirrored(team.directory)
    if needs:
        if names or until is not None or every or first:
            raise UsageError("--needs takes no agent and no state: it is about the whole team")
        view = _wait_for_need(team, timeout)
        say_json(readmodel_as_json.need_in_view(view.needs[0], view))
        return
    if until is None:
        raise UsageError("say what to wait for: --until STATE or --needs")
    wanted = frozenset(word.strip() for word in until.split(",") if word.strip())
    known = dict.fromkeys([*get_args(State), *get_args(Shown)])
    if not wanted or not wanted <= known.keys():
        wrong = ", ".join(sorted(wanted - known.keys())) or "nothing"
        raise UsageError(f"--until: unknown state: {wrong}; the states are {', '.join(known)}")
    if every and first:
        raise UsageError("use --all or --any, not both")
    if not names and not (every or first):
        raise UsageError("name an agent, or use --all or --any")
    for name in names:
        team.member(name)
    if names:
        names = tuple(dict.fromkeys(names))
    else:
        members = team.config.members if team.directory.exists() else []
        if not members:
            raise UsageError(f"team {team.directory.path.name} has no agents")
        names = tuple(member.name for member in members)
    found = [
        {"name": agent.name, "state": agent.state, "run": agent.run, "reason": agent.reason}
        for agent in _wait(team, names, wanted, timeout, first=first)
    ]
    session.tell(
        found[0] if len(names) == 1 and not every and not first else found,
        *(
            safe_line(f"{each['name']} is {each['state']}" + (f": {each['reason']}" if each["reason"] else ""))
            for each in found
        ),
    )


def _wait_for_need(team: Team, timeout: float | None) -> TeamView:
    """Return the team as soon as something needs the user.

    Raises:
        TryLaterError: The timeout is over.
    """
    started, reader = time.monotonic(), TeamReader(team.directory)
    with hints(team.directory) as wake:
        while True:
            wake.clear()
            view = reader.read()
            if view.needs:
                return view
            left = readmodel_watcher.SWEEP if timeout is None else started + timeout - time.monotonic()
            if left <= 0:
                raise TryLaterError(f"nothing needs you after {timeout:g} s")
            wake.wait(min(left, readmodel_watcher.SWEEP))


class _Waiting(Struct):
    """The wait for one agent and how far it is; times are those of the monotonic clock."""

    name: str
    wanted: frozenset[str]
    agent: AgentView | None = None
    reached: bool = False
    """True if the agent is in a wanted state, even if it has unread mail."""

    done: bool = False
    ended: bool = False
    """True if no process will change the agent's state."""

    _unread_since: float | None = None
    _ended_since: float | None = None

    def look(self, view: TeamView) -> None:
        """Compare the agent in `view` with the wanted states.

        Raises:
            UsageError: The agent was removed.
        """
        self.agent = agent = view.agent(self.name)
        if agent is None:
            raise UsageError(f"{self.name} is not on the team any more")
        now = time.monotonic()
        self._unread_since = (self._unread_since or now) if agent.state == "idle" and agent.unread else None
        # An acknowledged crash still counts as `dead`, a run that ended because of a limit or with its host as `done`.
        also = [*(["dead"] if agent.is_dead else []), *(["done"] if agent.state == "exited" else [])]
        self.reached = not self.wanted.isdisjoint({agent.state, agent.shown, *also})
        self.done = self.reached and (self._unread_since is None or now - self._unread_since > SETTLED)
        has_process = agent.alive or agent.is_starting
        self._ended_since = None if has_process else self._ended_since or now
        is_known = agent.exit is not None or (self._ended_since is not None and now - self._ended_since > SETTLED)
        self.ended = not self.done and self._ended_since is not None and is_known

    def describe(self) -> str:
        """Return the agent's name and present state, for the timeout message."""
        what = "idle but has unread mail" if self.reached else self.agent.state if self.agent else "unknown"
        return f"{self.name} is {what}"


def _wait(
    team: Team, names: tuple[str, ...], wanted: frozenset[str], timeout: float | None, *, first: bool
) -> list[AgentView]:
    """Return the agents that are in a wanted state, once all of them are, or with `first` at least one.

    Raises:
        TryLaterError: The timeout is over, or without one, an agent that is needed has ended.
        UsageError: An agent was removed.
    """
    started = time.monotonic()
    reader = TeamReader(team.directory)
    waiting = [_Waiting(name, wanted) for name in names]
    needed: Callable[[Iterable[bool]], bool] = any if first else all
    hopeless: Callable[[Iterable[bool]], bool] = all if first else any
    with hints(team.directory) as wake:
        while True:
            wake.clear()
            view = reader.read()
            for each in waiting:
                each.look(view)
            if needed(each.done for each in waiting):
                return [each.agent for each in waiting if each.done and each.agent is not None]
            left = readmodel_watcher.SWEEP if timeout is None else started + timeout - time.monotonic()
            if timeout is None and hopeless(each.ended for each in waiting):
                raise TryLaterError(
                    "; ".join(
                        f"{agent.name} is {agent.state}{f': {agent.reason}' if agent.reason else ''}; "
                        f"{hire.how_to_resume(team, agent.name)}"
                        for each in waiting
                        if each.ended and (agent := each.agent) is not None
                    )
                )
            if left <= 0:
                late = ", ".join(each.describe() for each in waiting if not each.done)
                raise TryLaterError(f"{late} after {timeout:g} s, not {' or '.join(sorted(wanted))}")
            wake.wait(min(left, readmodel_watcher.SWEEP))


POLL = 0.1
"""Seconds between two reads of a followed file."""

_INDENT = 18


@click.command()
@common.agent_name
@click.option("--follow", is_flag=True, help="Keep printing as it grows, until Ctrl-C.")
@as_json
def log(session: Session, name: str, follow: bool) -> None:
    """Print what the worker of NAME wrote to stdout and stderr.

    Mostly warnings; `crewboard journal` shows what the agent did. The log is on the machine of its last run.
    """
    agent = session.team.agent(name)
    path = agent.log
    if (host := host_of_log(agent)) is not None:
        raise UsageError(f"the log of {name} is on the host {host}, where its last run was: look at worker.log there")
    if not path.exists() or not path.stat().st_size:
        journal = command_for(session.team, f"journal {name}")
        note(f"the worker of {name} wrote nothing; `{journal}` says what {name} did")
    offset = 0
    while True:
        try:
            with open(path, "rb", opener=files.open_existing) as file:
                file.seek(offset)
                data = file.read()
        except FileNotFoundError:
            data = b""
        whole, newline, rest = data.rpartition(b"\n")
        offset += len(whole) + len(newline)
        lines = whole.decode(errors="replace").split("\n") if newline else []
        # A last line without its newline may grow still.
        if rest and not follow:
            lines.append(rest.decode(errors="replace"))
        for line in lines:
            if session.as_json:
                say_json_line({"line": line})
            else:
                say(line)
        if not follow:
            return
        time.sleep(POLL)


@click.command()
@common.agent_name
@click.option("--follow", is_flag=True, help="Keep printing as it grows, until Ctrl-C.")
@as_json
def journal(session: Session, name: str, follow: bool) -> None:
    """Print everything that the agent NAME did, oldest first.

    With --json, print the events, one per line.
    """
    written, offset, damaged = session.team.agent(name).journal, 0, 0
    if written.changed() is None:
        note(f"{name} has done nothing yet")
    while True:
        void = requests.judge_effect(session.team.directory)
        for event, end in store_journal.read(written, offset):
            offset = end
            if event is None:
                damaged += 1
            elif session.as_json:
                say_json_line(event.as_dict())
            else:
                for activity in activity_describe(event, void):
                    seconds = f" ({activity.seconds:.1f}s)" if activity.seconds else ""
                    first, *more = activity.text.splitlines() or [""]
                    say(f"{clock(activity.ts)}  {activity.kind:<6}  {first}{seconds}")
                    say(*((" " * _INDENT + line).rstrip() for line in more))
        if not follow:
            break
        time.sleep(POLL)
    note_damage(damaged, "journal")


@click.command()
@as_json
def audit(session: Session) -> None:
    """Print what users did to the team and its agents, oldest first.

    Each command counts, also one given in the dashboard: hires, answers, messages, budgets, stops. The name is
    $CREWBOARD_OPERATOR, else $USER; anyone with your account can set it. A message is shown by its first line;
    the audit file and --json have its id.
    """
    acts, damaged = operators.acts(session.team.directory)
    if session.as_json:
        say_json([act.as_dict() for act in acts])
    elif acts:
        sent = sent_messages(session.team.directory, acts)
        rows = [(clock(act.ts), act.who, act.act, act.target or "the team", describe_detail(act, sent)) for act in acts]
        say(*table(("TIME", "WHO", "DID", "TO", "DETAIL"), rows))
    else:
        note("no user has done anything here yet")
    note_damage(damaged, "audit file")


@click.command()
@as_json
def away(session: Session) -> None:
    """Print what happened in the team since you left its dashboard, oldest first.

    The same list as `0` in the dashboard: results, deaths, failures, requests, tasks, acts of other users, the cost.
    """
    team = session.team
    visits = env.visits_folder(team.environment)
    file = operators.file_for(visits, team.directory.path, team.operator)
    found_visit = record_of(file, LastVisit).load_or_none() if file is not None else None
    visit = found_visit or LastVisit()
    found = Absence(visit.at)
    if visit.at:
        view = core.read_team(team.directory)
        found = read_absence(team.directory, view, visit.at, cost_usd=visit.cost_usd, operator=team.operator)
    if session.as_json:
        happenings = [asdict(each) for each in found.happenings]
        say_json({"since": visit.at or None, "cost_usd": found.cost_usd, "happenings": happenings})
    elif not visit.at:
        note("you have not left the dashboard of this team yet")
    elif not found:
        note(f"nothing happened since {clock(visit.at)}")
    else:
        said = found.describe(time.time())
        say(f"{said[:1].upper()}{said[1:]}")
        rows = [(clock(each.ts), each.kind.replace("_", " "), each.agent, each.text) for each in found.happenings]
        say(*(table(("TIME", "WHAT", "AGENT", "DETAIL"), rows) if rows else ()))
