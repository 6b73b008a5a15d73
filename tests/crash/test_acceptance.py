"""Acceptance tests from outside: foreign writers, killed workers and many commands at once."""

import json
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from crewboard.commands import hire, messages
from crewboard.store import leases, mailbox, roster, tasks
from crewboard.store.layout import TeamDirectory
from crewboard.untrusted import undelimit
from tests.cli.shell import Inside
from tests.crash.other_processes import EACH, add_a_task, run_a_command, write_to_scout
from tests.crew import Crew, eventually
from tests.store.parallel import together

WRITERS = 8


def _shown(model_requests: list[dict[str, Any]]) -> list[list[str]]:
    """Return the ids of the mail in each request."""
    return [
        [
            piece.id
            for turn in body["messages"]
            for block in turn["content"]
            if block["type"] == "text"
            for piece in undelimit(block["text"])
            if piece.kind == "message"
        ]
        for body in model_requests
        if "You are scout" in json.dumps(body["system"])
    ]


@pytest.mark.long
@pytest.mark.timeout(240)
def test_foreign_lines_and_five_deaths_lose_no_mail(crew_on: Callable[..., Crew]) -> None:
    crew = crew_on()
    crew.hire("scout", "explore", "say hello")
    sent: list[str] = []

    def write() -> None:
        for ids in together(write_to_scout, crew.directory.path):
            sent.extend(ids)

    writers = threading.Thread(target=write)
    writers.start()
    for _ in range(5):
        sent += [messages.send(crew.team, "scout", "say yes").id for _ in range(4)]
        crew.kill("scout")
        eventually(lambda: not leases.is_held(crew.agent("scout").lease), "its end")
        hire.resume(crew.team, "scout")
    writers.join()
    sent.append(
        mailbox.send(crew.directory, mailbox.compose("operator", "scout", "message", "say end", ident="end")).id
    )
    assert len(sent) == WRITERS * EACH + 21
    eventually(lambda: any("end" in ids for ids in _shown(crew.model.requests)), "the last one", 120)
    shown = _shown(crew.model.requests)
    assert all(max(Counter(ids).values(), default=1) == 1 for ids in shown), "twice in one conversation"
    assert set(sent) <= {ident for ids in shown for ident in ids}, "lost"
    first = list(dict.fromkeys(ident for ids in shown for ident in ids))
    assert first == [message.id for message in mailbox.read(crew.directory, "scout").messages], "out of order"
    damaged = mailbox.read(crew.directory, "scout").damaged
    assert damaged == 3 * WRITERS
    eventually(lambda: crew.see("scout").damaged == damaged, "every damaged line counted where a person sees it")


@pytest.mark.long
def test_twelve_commands_at_once(tmp_path: Path) -> None:
    assert Inside(tmp_path)("team", "create", "default").code == 0
    assert set(together(run_a_command, tmp_path, 12)) == {"0 "}
    team = TeamDirectory(tmp_path / ".crewboard" / "default")
    assert tasks.ids(team) == list(range(1, 5))
    assert len(mailbox.read(team, "operator").messages) == 4
    assert {member.name for member in roster.load(team).members} == {f"a{number}" for number in range(2, 12, 3)}


@pytest.mark.long
def test_many_commands_at_once_where_there_is_no_team_yet(tmp_path: Path) -> None:
    assert set(together(add_a_task, tmp_path, 6)) == {"0 "}
    assert tasks.ids(TeamDirectory(tmp_path / ".crewboard" / "default")) == list(range(1, 7))
