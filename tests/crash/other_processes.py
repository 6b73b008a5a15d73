"""What other processes do beside a team: light to import, so that starting one is quick."""

import time
from pathlib import Path

from crewboard.readmodel.changes import ChangeReader
from crewboard.records import Member
from crewboard.store import mailbox, roster
from crewboard.store.layout import TeamDirectory
from tests.cli.shell import Inside
from tests.store.raw_mail import append, line

EACH = 250
_TEXTS = ("say ok", "say yes", "list the files", "say fine")

_BETWEEN_LOOKS = 0.02
"""Seconds that leave the processor to those whose work is looked at."""


def send_for_ever(path: Path, names: tuple[str, ...], prefix: str, acknowledged: Path, pause: float) -> None:
    """Send without end; what was sent is noted afterwards. Every other sender is a program without our locks."""
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


def read_for_ever(path: Path, complaints: Path) -> None:
    """Look at the team without end, much more often than a dashboard does, and note what does not add up."""
    reader = ChangeReader(TeamDirectory(path))
    while True:
        try:
            reader.read()
            problem = reader.view.problem or ""
        except Exception as error:  # noqa: BLE001  whatever it is, the test shall say so
            problem = f"{type(error).__name__}: {error}"
        if problem:
            append(complaints, problem.encode() + b"\n")
        time.sleep(_BETWEEN_LOOKS)


def write_to_scout(path: Path, number: int) -> list[str]:
    """One foreign program: plain lines, and among them what no program should write."""
    team = TeamDirectory(path)
    for turn in range(EACH):
        if turn % 50 == number:
            append(team.inbox("scout"), b"\x00\xff binary\n\n" + b"[" * 3000 + b"\n" + b'{"v": 1, "id"\n')
        append(team.inbox("scout"), line(f"w{number}-{turn}", f"say ok to message {number} {turn}") + b"\n")
    return [f"w{number}-{turn}" for turn in range(EACH)]


def give_a_command(path: Path, number: int) -> str:
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
