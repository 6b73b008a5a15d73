"""The acts of the processes of a benchmark: each function returns a callable that tells if it succeeded.

The last argument is always the number of the process.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path

from crewboard.errors import CrewboardError
from crewboard.protocol import requests
from crewboard.records.processes import Host
from crewboard.store import hosts, mailbox, tasks
from crewboard.store.layout import TeamDirectory

Act = Callable[[int], bool]

TEXT = "The tests of the parser pass again; I changed two lines in tokens.py and wrote down why. " * 2


def send(team: str, durable: str, process: str) -> Act:
    """Send a message to `sink`."""
    directory, safe = TeamDirectory(Path(team)), durable == "True"

    def act(number: int) -> bool:
        message = mailbox.compose("operator", "sink", "message", TEXT, ident=f"m{process}-{number}", ts=1.0)
        return mailbox.send(directory, message, durable=safe) is not None

    return act


def _line(process: str, number: int) -> bytes:
    """Return a message of `send` as it is on disk."""
    record = {
        "v": 1, "id": f"m{process}-{number}", "ts": 1.0, "from": "operator", "to": "sink", "type": "message",
        "content": TEXT, "metadata": {},
    }  # fmt: skip
    return json.dumps(record).encode() + b"\n"


def raw(path: str, durable: str, process: str) -> Act:
    """Append the same line with one write."""
    fd, safe = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), durable == "True"

    def act(number: int) -> bool:
        os.write(fd, _line(process, number))
        if safe:
            os.fsync(fd)
        return True

    return act


def naive(path: str, process: str) -> Act:
    """Send as the classic mailbox does: open, write, close."""
    box = Path(path)

    def act(number: int) -> bool:
        with box.open("a") as file:
            file.write(_line(process, number).decode())
        return True

    return act


def naive_drain(path: str, out: str, process: str) -> Act:
    """Read as the classic mailbox does: read everything, then truncate the file."""
    box, kept = Path(path), Path(out)

    def act(number: int) -> bool:
        text = box.read_text()
        if text:
            box.write_text("")
            with kept.open("a") as file:
                file.write(text)
        return bool(text)

    return act


def claim(team: str, process: str) -> Act:
    """Claim the next task and complete it."""
    directory = TeamDirectory(Path(team))

    def act(number: int) -> bool:
        # All processes compete for the same tasks.
        task_id = 1 + number
        try:
            tasks.claim(directory, task_id, f"agent{process}", "explore", 1.0)
        except CrewboardError:
            return False
        tasks.update(directory, task_id, f"agent{process}", 1.0, status="completed")
        return True

    return act


def claim_runs(team: str, process: str) -> Act:
    """Claim runs of the queue, 25 at once, until there are no more."""
    directory = TeamDirectory(Path(team))
    host = Host(name=f"host{process}", slots=1000)
    # Connect before the time is measured.
    directory.store.now()

    def act(number: int) -> bool:
        while hosts.claim(directory, host, 25):
            pass
        return True

    return act


def decide(team: str, process: str) -> Act:
    """Answer the next request, which only one process can."""
    directory = TeamDirectory(Path(team))

    def act(number: int) -> bool:
        try:
            requests.respond(directory, f"r{number}", "answered", "operator", 1.0, feedback="yes")
        except CrewboardError:
            return False
        return True

    return act


def replace(folder: str, process: str) -> Act:
    """Replace a small file with the bare system calls."""
    path = Path(folder) / f"replaced-{process}"
    temporary = path.with_suffix(".tmp")

    def act(number: int) -> bool:
        temporary.write_bytes(_line(process, number))
        temporary.replace(path)
        return True

    return act
