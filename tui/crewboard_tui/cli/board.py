"""The commands `board`, `serve`, `demo` and `keys`, and the dashboard without a screen (`board --plain`)."""

import asyncio
import ipaddress
import os
import select
import sys
from collections.abc import Iterator

import click

from crewboard import Need, NeedKind, StorageError, Team, TeamReader, TeamView, UsageError, env
from crewboard.commands.context import CommandLine
from crewboard.errors import how_to_install
from crewboard.readmodel import watcher
from crewboard.readmodel.needs import waiting_behind
from crewboard.records.requests import describe_status, display_decider
from crewboard_tui.cli import common
from crewboard_tui.cli.common import Session, as_json, keep_mirrored, note, say
from crewboard_tui.notifications import NeedsDiff
from crewboard_tui.render.formats import format_long_age
from crewboard_tui.render.sanitize import safe_line


@click.command()
@common.board
@click.pass_obj
def board(session: Session, plain_glyphs: bool, plain: bool, theme: str | None, read_only: bool) -> None:
    """Open the dashboard, as `crewboard` without a command does.

    q leaves it; the agents keep running. --plain is for screen readers and simple terminals: it prints one sentence
    for each need, with the command that answers it, until Ctrl-C.
    """
    team = session.team
    if plain:
        keep_mirrored(team.directory)
        follow(team)
        return
    from crewboard_tui.dashboard import run_in_terminal

    raise click.exceptions.Exit(int(run_in_terminal(team, ascii=plain_glyphs, theme=theme, read_only=read_only)))


@click.command()
@click.option("--headless", is_flag=True, help="Print the events, and exit when the demo is over.")
@common.ascii_option
@common.theme_option
def demo(headless: bool, plain_glyphs: bool, theme: str | None) -> None:
    """Show a team at work on a scratch copy of a small project.

    Five agents, one process each, read, edit and test real files. The offline model answers for them; it is not a
    language model and needs no key and no network. Leaving the demo ends its agents.
    """
    from crewboard_tui.dashboard import check_terminal, read_settings
    from crewboard_tui.demo import run

    if headless and (plain_glyphs or theme is not None):
        raise UsageError("--ascii and --theme are for the dashboard, which --headless does without")
    # Before anything is made for the demo.
    read_settings(theme)
    if not headless:
        check_terminal("`crewboard demo --headless` needs none")

    raise click.exceptions.Exit(run(headless=headless, ascii=plain_glyphs, theme=theme))


SHORTEST_TOKEN = 16
"""The least characters of a token that the user sets: a shorter one can be guessed over a network."""


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port; default: one that is free.")
@click.option("--read-only", is_flag=True, help="Let browsers watch, and change nothing.")
@click.pass_obj
def serve(session: Session, host: str, port: int, read_only: bool) -> None:
    """Show the dashboard in a browser, until Ctrl-C.

    Prints a link with a random token. The link gives all rights that you have: keep it secret. Only programs of this
    machine can connect. Another --host needs a token of yours in CREWBOARD_SERVE_TOKEN, and TLS in front of it.
    """
    # An extra, which few installations have.
    try:
        from crewboard_tui import browser
    except ModuleNotFoundError as error:
        raise UsageError(f"`crewboard serve` needs {error.name}: {how_to_install('serve')}") from error

    token = os.environ.pop(env.SERVE_TOKEN, None) or None  # dashboards and agents do not get it
    if token is not None and len(token) < SHORTEST_TOKEN:
        raise UsageError(f"{env.SERVE_TOKEN} is too short: at least {SHORTEST_TOKEN} characters")
    if token is None and not _is_loopback(host):
        raise UsageError(f"--host {host} can be reached from other machines: set {env.SERVE_TOKEN} to a long secret")
    team = session.team
    if not _is_loopback(host):
        note(f"{host} can be reached from other machines, and the connection is not encrypted: put TLS in front of it")
    try:
        asyncio.run(browser.Browsers(team, token, read_only=read_only).run(host, port, _print_link))
    except BrokenPipeError:
        # The reader of the link has ended.
        raise
    except OSError as error:
        raise StorageError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error


def _print_link(link: str) -> None:
    # Not `say`, which hides a token that the user set: without it the link opens nothing.
    common.put(link)
    note("open the link in a browser; Ctrl-C ends, the agents keep running")


def _is_loopback(host: str) -> bool:
    """Return True if only programs of this machine can connect to an address or name."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


NOTHING = "nothing needs you"

_SAYS: dict[NeedKind, str] = {"plan": "submits a ", "stuck": "is stuck: ", "looping": "loops: "}
"""The words between an agent's name and the summary of its need."""


def follow(team: Team) -> None:
    """Print the open needs, then each need that is new or settled, until stdout is closed."""
    from crewboard_tui.cli.watching import hints

    directory, typed = team.directory, CommandLine.of(team)
    with hints(directory) as wake:
        reader, arrivals = TeamReader(directory), NeedsDiff()
        note(f"what needs you on the team {directory.path.name} in {directory.root}; Ctrl-C ends")
        if not reader.read().needs:
            say(NOTHING)
        while not is_closed():
            wake.clear()
            say(*news(reader.read(), arrivals, typed, team.operator))
            wake.wait(watcher.SWEEP)


def news(view: TeamView, arrivals: NeedsDiff, typed: CommandLine, operator: str = "") -> Iterator[str]:
    """Yield sentences about needs that are new or settled since the last reading, for the user `operator`."""
    found = arrivals.read(view)
    for need in found.went:
        yield settled(need, view, operator)
    for need in found.came:
        yield sentence(need, view, typed)
    if found.went and not view.needs:
        yield NOTHING


def sentence(need: Need, view: TeamView, typed: CommandLine) -> str:
    """Return a sentence about a need: since when, what it blocks, and the commands that answer it."""
    from crewboard_tui.cli.answers import answers

    waiting = waiting_behind(view, need)
    behind, tasks = "", waiting.tasks
    if tasks:
        names = ", ".join(str(task.id) for task in tasks)
        which = f"task {names}" if len(tasks) == 1 else f"tasks {names}"
        if need.kind == "death":
            behind = f"task {tasks[0].id} went back to the board" + (f", {which} wait" if len(tasks) > 1 else "")
        else:
            behind = f"{which} {'waits' if len(tasks) == 1 else 'wait'}"
    clauses = [
        f"{need.agent} {_SAYS.get(need.kind, '')}{need.summary.removesuffix('.')}",
        f"for {format_long_age(view.now - need.since)}",
        behind,
        f"{', '.join(waiting.agents)} {'waits' if len(waiting.agents) == 1 else 'wait'}" if waiting.agents else "",
    ]
    asked = view.request(need.request_id) if need.request_id else None
    choices = asked.payload.get("options") if asked else None
    options = [f"Options: {'; '.join(map(str, choices))}"] if isinstance(choices, list) and choices else []
    ways = (f"To {what}: {how}" for what, how in answers(asked or need, typed))
    return safe_line(". ".join(["; ".join(filter(None, clauses)), *options, *ways]))


def settled(need: Need, view: TeamView, operator: str) -> str:
    """Return a sentence that says how a need was settled, for the user `operator`."""
    request = next((each for each in view.asked if each.id == need.request_id), None)
    agent, task = view.agent(need.agent), view.task(need.task)
    if request is not None:
        by = f" by {display_decider(request, operator)}" if request.decided_by else ""
        how = f"{describe_status(request)}{by}"
    elif need.kind == "result":
        how = "it was read"
    elif need.kind == "task_failed" and task is not None and task.status != "failed":
        how = f"it is {task.status.replace('_', ' ')}"
    elif need.kind in ("task_failed", "check_failed", "damaged", "collision", "outage", "mcp", "no_host"):
        how = "acknowledged, or over"
    elif agent is None:
        how = "it was removed from the roster"
    elif need.kind == "death" and agent.alive:
        how = "it is running again"
    elif need.kind == "death" and agent.acknowledged:
        how = "acknowledged"
    else:
        how = f"it is {agent.state}"
    return safe_line(f"settled: {need.agent} {_SAYS.get(need.kind, '')}{need.summary.removesuffix('.')}; {how}")


def is_closed() -> bool:
    """Return True if the reader of stdout is gone. While there is nothing to print, no failed write would tell."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(events & (select.POLLERR | select.POLLNVAL) for _, events in poll.poll(0))


@click.command()
@as_json
def keys(session: Session) -> None:
    """Print all key bindings as a keys.toml that you can edit.

    Example: crewboard keys > ~/.config/crewboard/keys.toml
    """
    from crewboard_tui.keymap.bindings import KEYS
    from crewboard_tui.keymap.user_file import keymap_template

    session.tell([{"id": key.id, "keys": key.keys, "says": key.says} for key in KEYS if key.keys], keymap_template())
