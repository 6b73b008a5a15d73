"""Stress tests: real processes are killed at random instants, and each message is shown to its agent exactly once."""

import json
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from multiprocessing.process import BaseProcess

import pytest

from crewboard import env
from crewboard.commands import answers, hire
from crewboard.offline.reply import Reply
from crewboard.protocol import requests, supervisor_client
from crewboard.records.processes import Supervisor
from crewboard.records.requests import notes_in
from crewboard.store import leases, mailbox
from crewboard.unix import process
from tests.crash.other_processes import send_back_endlessly
from tests.crash.stress import StressRun, Target
from tests.crew import Crew, eventually
from tests.matrix import default
from tests.model import calls, says
from tests.store.parallel import CONTEXT

ROUND: tuple[Target, ...] = ("sender", "worker", "supervisor", "worker", "prefork", "reader", "sender", "worker")


@pytest.mark.timeout(400)
@pytest.mark.files_only("test_outages.py does this in PostgreSQL")
def test_a_kill_of_each_process_and_a_move_lose_no_mail(crew_on: Callable[..., Crew]) -> None:
    stress = StressRun(crew_on(window=50_000_000), ("scout", "other"), seed=4)
    stress.begin()
    # A worker after the supervisor: its start makes the next supervisor start a prefork server.
    each: tuple[Target, ...] = ("sender", "supervisor", "worker", "prefork", "reader", "directory")
    if env.is_posix():
        # There is none.
        each = tuple(target for target in each if target != "prefork")
    for target in each:
        stress.kill(target)
    eventually(lambda: stress.acknowledged > 20, "enough mail")
    stress.settle()
    stress.check()
    assert stress.total == len(each)
    assert stress.killed["worker"] == 1


@pytest.mark.files_only("test_outages.py does this in PostgreSQL")
@pytest.mark.long
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("seed", range(7))
def test_a_thousand_kills_lose_and_repeat_no_message(crew_on: Callable[..., Crew], seed: int) -> None:
    """A seventh of them for each seed, so that a conversation stays short enough to be sent whole."""
    stress = StressRun(crew_on(window=50_000_000), ("a", "b", "c"), seed, pause=0.5)
    stress.begin()
    for number in range(150):
        stress.kill("directory" if number % 30 == 20 else ROUND[number % len(ROUND)])
    stress.settle()
    print(stress.summary())
    stress.check()
    assert stress.total == 150


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.files_only("test_outages.py kills in PostgreSQL")
@pytest.mark.parametrize("rounds", default([3, 100], 3))
def test_kills_lose_and_double_no_note_on_a_plan(crew_on: Callable[..., Crew], rounds: int) -> None:
    """In each round the plan is sent back with a note, which its next version answers, and one process is killed."""
    # With this seed the first three are of three kinds.
    crew, chance = crew_on(window=50_000_000), random.Random(3)
    notes = {number: f"note of round {number}." for number in range(1, rounds + 1)}
    crew.model.give("planner", *(_version(number) for number in range(1, rounds + 2)), says("done"))
    crew.hire("planner", "code", "plan it", plan=True, unsafe_no_sandbox=True, max_turns=500)
    killed = Counter[str]()
    for number in range(1, rounds + 1):
        asked = crew.pending("plan_approval", "planner")
        while asked.payload["revision"] == number:
            sender = CONTEXT.Process(
                target=send_back_endlessly, args=(crew.directory.path, {number: notes[number]}), daemon=True
            )
            sender.start()
            if killed.total() < number:
                time.sleep(chance.uniform(0, 0.3))
                target = chance.choice(("sender", "worker", "worker", "supervisor"))
                killed[target] += 1
                _kill(crew, target, sender)
            if sender.is_alive():
                eventually(lambda: _status(crew, asked.id) != "pending", "the round")  # noqa: B023
                sender.kill()
            sender.join()
            sender.close()
            if _status(crew, asked.id) == "rejected":
                asked = crew.pending("plan_approval", "planner")
    assert killed.total() == rounds
    last = crew.pending("plan_approval", "planner")
    answers.approve(crew.team, last.id)
    crew.wait_for("planner", "idle")
    told = notes_in(last.payload)
    assert [note.id for note in told] == [f"n{number}" for number in notes]
    assert [note.text for note in told] == [*notes.values()]
    assert [note.answer for note in told] == [f"answer {number}" for number in notes]
    versions = [each for each in requests.load_all(crew.directory) if each.type == "plan_approval"]
    assert [[note.text for note in each.notes] for each in versions] == [*([text] for text in notes.values()), []]
    mail = Counter(each.id for each in mailbox.read(crew.directory, "planner").messages)
    # The record of the answer decides: who was killed right after it sent no mail.
    assert len(mail) == mail.total() <= rounds + 1, "one answer to each version at most"
    said = json.dumps(crew.model.asked_by("planner")[-1]["messages"])
    assert {said.count(text) for text in notes.values()} == {1}


def _version(number: int) -> Reply:
    """Return the call that submits a version of the plan, with the answer to the note on the one before."""
    answered = {f"n{number - 1}": f"answer {number - 1}"} if number > 1 else {}
    return calls("submit_plan", plan=f"Do it.\n\nThis is version {number}.", answers=answered)


def _status(crew: Crew, ident: str) -> str:
    request = requests.load(crew.directory, ident)
    assert request is not None
    return request.status


def _kill(crew: Crew, target: str, sender: BaseProcess) -> None:
    """Kill one process; a worker and a supervisor are started again."""
    match target:
        case "sender":
            sender.kill()
            sender.join()
        case "supervisor":
            holder = leases.holder(crew.directory.supervisor_lock, Supervisor)
            if holder is not None:
                process.send_signal(holder.pid, signal.SIGKILL, holder.start_ticks)
            supervisor_client.ensure_running(crew.directory)
        case _:
            crew.kill("planner")
            eventually(lambda: not leases.is_held(crew.agent("planner").lease), "the end of the worker")
            hire.resume(crew.team, "planner")
