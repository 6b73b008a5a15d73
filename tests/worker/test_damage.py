"""Files that are damaged while an agent lives stop nothing."""

import signal

import pytest

from crewboard import process
from crewboard.store import mailbox
from crewboard.supervisor import ring
from crewboard.team import ending, mail
from tests.crew import Crew, eventually

DEEP = b'{"a":' * 5000 + b"1" + b"}" * 5000
DAMAGE = {"bytes": b"\xff\x00{", "nothing": b"", "list": b"[]", "deep": DEEP}


@pytest.mark.parametrize("name", DAMAGE)
def test_an_agent_whose_spec_is_damaged_answers_still(guild: Crew, name: str) -> None:
    guild.run(name, "explore", "List all Python files")
    guild.agent(name).spec.write_bytes(DAMAGE[name])
    sent = mail.send(guild.team, name, "Give me a summary")

    def told() -> bool:
        letters = mailbox.read(guild.directory, "lead").messages
        return any(m.type == "result" and m.metadata["answers"] == [sent.id] for m in letters)

    eventually(told, "the result's mail")


def test_an_idle_agent_whose_status_is_damaged_is_soon_seen_as_idle_again(crew: Crew) -> None:
    crew.run("idler", "explore", "List all Python files")
    crew.wait_for("idler", "idle")
    crew.agent("idler").status.write_bytes(b"\xff\x00{")
    assert crew.see("idler").state != "idle"
    crew.wait_for("idler", "idle")
    assert list(crew.agent("idler").path.glob("status.json.damaged-*"))


def test_damaged_tasks_and_requests_do_not_trouble_the_supervisor(crew: Crew) -> None:
    crew.run("scout", "explore", "List all Python files")
    for number, (what, content) in enumerate(DAMAGE.items(), 7):
        (crew.directory.tasks / f"{number}.json").write_bytes(content)
        (crew.directory.requests / f"question-{number}.json").write_bytes(content)
        crew.answer_to("scout", mail.send(crew.team, "scout", "Give me a summary").id)
        assert "Traceback" not in crew.directory.supervisor_log.read_text(), what


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
