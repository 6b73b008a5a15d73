"""Files that are damaged while an agent lives stop nothing."""

import signal

import pytest

from crewboard import process
from crewboard.store import mailbox
from crewboard.supervisor import ring
from crewboard.team import ending, mail
from tests.crew import Crew, eventually

DEEP = b'{"a":' * 5000 + b"1" + b"}" * 5000
DAMAGE = [b"\xff\x00{", b"", b"[]", DEEP]


@pytest.mark.parametrize("content", DAMAGE)
def test_an_agent_whose_spec_is_damaged_answers_still(crew: Crew, content: bytes) -> None:
    crew.run("scout", "explore", "List all Python files")
    crew.agent("scout").spec.write_bytes(content)
    sent = mail.send(crew.team, "scout", "Give me a summary")

    def told() -> bool:
        letters = mailbox.read(crew.directory, "lead").messages
        return any(m.type == "result" and m.metadata["answers"] == [sent.id] for m in letters)

    eventually(told, "the result's mail")


def test_an_idle_agent_whose_status_is_damaged_is_soon_seen_as_idle_again(crew: Crew) -> None:
    crew.run("scout", "explore", "List all Python files")
    crew.wait_for("scout", "idle")
    crew.agent("scout").status.write_bytes(b"\xff\x00{")
    assert crew.see("scout").state != "idle"
    crew.wait_for("scout", "idle")
    assert list(crew.agent("scout").path.glob("status.json.damaged-*"))


@pytest.mark.parametrize("content", DAMAGE)
def test_damaged_tasks_and_requests_do_not_trouble_the_supervisor(crew: Crew, content: bytes) -> None:
    crew.run("scout", "explore", "List all Python files")
    (crew.directory.tasks / "7.json").write_bytes(content)
    (crew.directory.requests / "question-7.json").write_bytes(content)
    crew.answer_to("scout", mail.send(crew.team, "scout", "Give me a summary").id)
    assert "Traceback" not in crew.directory.supervisor_log.read_text()


def test_a_supervisor_whose_lock_is_damaged_can_still_be_rung(crew: Crew) -> None:
    crew.run("scout", "explore", "List all Python files")
    crew.directory.supervisor_lock.write_bytes(b"\xff\x00{")
    ending.stop_now(crew.team, "scout")
    assert crew.see("scout").state == "exited"


def test_a_worker_whose_lease_is_damaged_can_still_be_ended_by_a_successor(crew: Crew) -> None:
    crew.run("scout", "explore", "List all Python files")
    crew.agent("scout").lease.write_bytes(b"\xff\x00{")
    process.send_signal(crew.supervisor_pid(), signal.SIGKILL)
    eventually(lambda: not ring.is_alive(crew.directory), "the end of the supervisor")
    ending.stop_now(crew.team, "scout")
    assert crew.see("scout").state == "exited"
