"""The commands `journal` and `log`: what one agent did, and what its process printed."""

import time
from collections.abc import Iterator
from pathlib import Path

import click

from crewboard.records import Event
from crewboard.store import files
from crewboard_tui.cli.options import Session
from crewboard_tui.cli.output import as_json, clock, note, note_damage, say, say_json_line

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
    from crewboard.readmodel.activity import describe

    for activity in describe(event):
        seconds = f" ({activity.seconds:.1f}s)" if activity.seconds else ""
        first, *more = activity.text.splitlines() or [""]
        say(f"{clock(activity.ts)}  {activity.kind:<6}  {first}{seconds}")
        for line in more:
            say((" " * _INDENT + line).rstrip())
