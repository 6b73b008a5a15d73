"""Programs that work on a team from other processes. Light to import, so that a process starts quickly."""

import contextlib
import time
from collections.abc import Mapping
from pathlib import Path

from crewboard.commands import answers
from crewboard.commands.context import Team
from crewboard.errors import BadDataError
from crewboard.protocol import requests
from crewboard.readmodel.changes import ChangeReader
from crewboard.records.requests import NewNote
from crewboard.records.team import Member
from crewboard.store import mailbox, roster
from crewboard.store.layout import TeamDirectory
from tests.cli.shell import Inside
from tests.store.raw_mail import append, line

EACH = 20
_TEXTS = ("say ok", "say yes", "list the files", "say fine")

_READ_INTERVAL = 0.02
"""Seconds between two readings, which leave the processor to the workers under test."""


def send_endlessly(path: Path, names: tuple[str, ...], prefix: str, acknowledged: Path, pause: float) -> None:
    """Send endlessly, and record what was sent. A prefix that ends in "f" means a program that takes no lock."""
    team, foreign, number = TeamDirectory(path), prefix.endswith("f"), 0
    while True:
        number += 1
        name, ident = names[number % len(names)], f"{prefix}-{number}"
        text = _TEXTS[number % len(_TEXTS)]
        if foreign:
            append(team.inbox(name), line(ident, text, to=name) + b"\n")
        else:
            mailbox.send(team, mailbox.compose("operator", name, "message", text, ident=ident))
        append(acknowledged, f"{name} {ident}\n".encode())
        time.sleep(pause)


def send_back_endlessly(path: Path, notes: Mapping[int, str]) -> None:
    """Send each plan back that waits, with the note for its version, until the process is killed."""
    team = Team(TeamDirectory(path), environment={})
    while True:
        for request in requests.pending(team.directory):
            note = notes.get(int(str(request.payload["revision"])))
            if note is not None:
                # Its agent may have ended meanwhile, and asks again.
                with contextlib.suppress(BadDataError):
                    answers.reject(team, request.id, "", notes=[NewNote(1, 1, note)])
        time.sleep(_READ_INTERVAL)


def read_endlessly(path: Path, problems: Path) -> None:
    """Read the team endlessly, much more often than a dashboard does, and record each problem."""
    reader = ChangeReader(TeamDirectory(path))
    while True:
        try:
            reader.read()
            problem = reader.view.problem or ""
        except Exception as error:  # noqa: BLE001  the test reports any error
            problem = f"{type(error).__name__}: {error}"
        if problem:
            append(problems, problem.encode() + b"\n")
        time.sleep(_READ_INTERVAL)


def write_to_scout(path: Path, number: int) -> list[str]:
    """Append lines as a foreign program does, some of them damaged."""
    team = TeamDirectory(path)
    for turn in range(EACH):
        if turn % 50 == number:
            append(team.inbox("scout"), b"\x00\xff binary\n\n" + b"[" * 3000 + b"\n" + b'{"v": 1, "id"\n')
        append(team.inbox("scout"), line(f"w{number}-{turn}", f"say ok to message {number} {turn}") + b"\n")
    return [f"w{number}-{turn}" for turn in range(EACH)]


def run_a_command(path: Path, number: int) -> str:
    cli = Inside(path)
    if number % 3 == 0:
        ran = cli("task", "add", f"task {number}", "--json")
    elif number % 3 == 1:
        ran = cli("send", "operator", f"hello {number}", "--json")
    else:
        roster.put(TeamDirectory(path / ".crewboard" / "default"), Member(name=f"a{number}", type="code"))
        ran = cli("status", "--json")
    return f"{ran.code} {ran.err}"


def add_a_task(path: Path, number: int) -> str:
    ran = Inside(path)("task", "add", f"task {number}")
    return f"{ran.code} {ran.err}"
