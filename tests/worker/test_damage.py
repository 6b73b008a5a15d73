"""Files that are damaged while an agent lives stop nothing."""

import signal
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from crewboard.commands import hire, messages, stop
from crewboard.errors import BadDataError
from crewboard.protocol import supervisor_client
from crewboard.records.agents import HireOptions
from crewboard.store import agents, journal, mailbox
from crewboard.unix import process
from crewboard.worker.conversation import LOST, replay
from tests.crew import Crew, eventually
from tests.matrix import default
from tests.model import calls, says

DEEP = b'{"a":' * 5000 + b"1" + b"}" * 5000
DAMAGE = {"bytes": b"\xff\x00{", "nothing": b"", "list": b"[]", "deep": DEEP}


@pytest.mark.parametrize("name", default(DAMAGE, "deep", "nothing"))
def test_an_agent_whose_spec_is_damaged_answers_still(shared_crew: Crew, name: str) -> None:
    shared_crew.run(name, "explore", "say hello")
    shared_crew.agent(name).spec.put(DAMAGE[name])
    sent = messages.send(shared_crew.team, name, "Give me a summary")

    def told() -> bool:
        letters = mailbox.read(shared_crew.directory, "lead").messages
        return any(m.type == "result" and m.metadata["answers"] == [sent.id] for m in letters)

    eventually(told, "the result's mail")


def test_an_agent_with_a_damaged_spec_keeps_its_hire_options(shared_crew: Crew) -> None:
    terms = HireOptions(ask=True, budget="90k", max_turns=7, autoclaim=True)
    shared_crew.run("bound", "explore", "say hello", **terms.as_dict())
    shared_crew.agent("bound").spec.put(b"garbage")
    stop.stop_now(shared_crew.team, "bound")
    hire.resume(shared_crew.team, "bound")
    spec = shared_crew.agent("bound").spec.load()
    assert spec is not None
    assert spec.flags == terms


def unfit(sent: list[dict[str, Any]]) -> list[str]:
    """Return what the API refuses of a conversation: who begins, who follows whom, and calls without their results."""
    found = [] if sent[0]["role"] == "user" else ["the assistant begins"]
    for before, turn in pairwise([{"role": "assistant", "content": []}, *sent]):
        called = [block["id"] for block in before["content"] if block["type"] == "tool_use"]
        answered = [block["tool_use_id"] for block in turn["content"] if block["type"] == "tool_result"]
        found += [f"{called} is answered by {answered}"] if sorted(called) != sorted(answered) else []
        found += ["two in a row"] if before["role"] == turn["role"] else []
        found += [] if turn["content"] else ["nothing"]
    return found


@pytest.mark.files_only("damages a file")
def test_a_lost_line_of_the_journal_costs_that_block(crew_on: Callable[..., Crew]) -> None:
    # What was thought behind the lost line is stale, which the worker repairs by itself.
    crew = crew_on(allows_stale_thinking=True)
    (crew.root / "a.txt").write_text("text of a")
    read = calls("read_file", path="a.txt")
    crew.model.give("loser", read, read, says("done"), says("second"), says("third"))
    crew.run("loser", "explore", "read it twice")
    crew.answer_to("loser", messages.send(crew.team, "loser", "again").id)
    stop.stop_now(crew.team, "loser")
    key = crew.agent("loser").journal
    file = key.on_disk
    lines = file.read_bytes().splitlines(keepends=True)
    for number in range(len(lines)):
        for there in (b"", lines[number] * 2, b"{garbage\n"):
            file.write_bytes(b"".join([*lines[:number], there, *lines[number + 1 :]]))
            sent = replay(event for event, _ in journal.read(key)).messages()
            assert not sent or unfit(sent) == [], (number, there[:20])
    lost = next(at for at, line in enumerate(lines) if b'"tool_result"' in line)
    file.write_bytes(b"".join([*lines[:lost], *lines[lost + 1 :]]))
    hire.resume(crew.team, "loser")
    assert crew.answer_to("loser", messages.send(crew.team, "loser", "go on").id).text == "third"
    *_, last = crew.model.asked_by("loser")
    assert unfit(last["messages"]) == []
    assert LOST in str(last["messages"])
    assert "text of a" in str(last["messages"]), "the other result is there"


@pytest.mark.long
def test_a_lost_journal_repeats_nothing_and_is_told(shared_crew: Crew) -> None:
    name = "emptied"
    agent = shared_crew.agent(name)
    shared_crew.run(name, "explore", "say hello")
    shared_crew.answer_to(name, messages.send(shared_crew.team, name, "first").id)
    stop.stop_now(shared_crew.team, name)
    asked, before = len(shared_crew.model.asked_by(name)), agent.status.load()
    assert before is not None
    assert before.tokens.total > 0
    agent.journal.remove()
    # In the second run the journal is whole again, and still says what was lost.
    for run, text in enumerate(("second", "third"), 1):
        hire.resume(shared_crew.team, name)
        shared_crew.answer_to(name, messages.send(shared_crew.team, name, text).id)
        last = shared_crew.model.asked_by(name)[asked + run - 1 :]
        assert len(last) == 1, "neither the prompt nor old mail was begun again"
        assert "first" not in str(last[0]["messages"])
        assert str(last[0]["messages"]).count(LOST) == 1
        view = shared_crew.wait_for(name, "idle")
        assert view.damaged == 1
        assert view.status.tokens.total > before.tokens.total
        stop.stop_now(shared_crew.team, name)
    assert agents.sum_up(agent).tokens == shared_crew.see(name).status.tokens


def test_an_agent_whose_hire_options_are_lost_is_not_resumed(shared_crew: Crew) -> None:
    agent = shared_crew.agent("unbound")
    shared_crew.run("unbound", "explore", "say hello")
    stop.stop_now(shared_crew.team, "unbound")
    agent.spec.put(b"garbage")
    agent.journal.remove()
    stop.want_killed(shared_crew.team, "unbound")
    spec = agent.spec.load()
    assert spec is not None
    assert (spec.type, spec.flags.ask) == ("explore", True)
    with pytest.raises(BadDataError, match="the journal does not say what unbound was hired with"):
        hire.resume(shared_crew.team, "unbound")


@pytest.mark.long
def test_an_idle_agent_repairs_its_damaged_status(crew: Crew) -> None:
    crew.run("idler", "explore", "say hello")
    crew.wait_for("idler", "idle")
    # Stopped, because it would repair the file before the test looks.
    crew.halt("idler")
    crew.agent("idler").status.put(b"\xff\x00{")
    assert crew.see("idler").state != "idle"
    crew.kill("idler", signal.SIGCONT)
    crew.wait_for("idler", "idle")
    assert any(name.startswith("status.json.damaged-") for name in crew.agent("idler").folder.names())


@pytest.mark.long
@pytest.mark.parametrize("which", ["status", "exit"])
def test_resume_works_with_a_damaged_status_or_exit(shared_crew: Crew, which: str) -> None:
    name = f"broken-{which}"
    agent = shared_crew.agent(name)
    shared_crew.run(name, "explore", "say hello")
    stop.stop_now(shared_crew.team, name)
    # A record that is damaged before that is made again by the supervisor.
    eventually(lambda: (ended := agent.exit.load()) is not None and ended.buried, "its finalized end")
    (agent.status if which == "status" else agent.exit).put(b"{broken")
    assert hire.resume(shared_crew.team, name) == 2
    shared_crew.wait_for(name, "idle")


@pytest.mark.long
def test_the_supervisor_survives_damaged_tasks_and_requests(shared_crew: Crew) -> None:
    shared_crew.run("steady", "explore", "say hello")
    for number, (what, content) in enumerate(DAMAGE.items(), 7):
        shared_crew.directory.task(number).put(content)
        shared_crew.directory.request(f"question-{number}").put(content)
        shared_crew.answer_to("steady", messages.send(shared_crew.team, "steady", "Give me a summary").id)
        assert "Traceback" not in shared_crew.directory.supervisor_log.read_text(), what


def test_a_supervisor_with_a_damaged_lock_can_still_be_woken(shared_crew: Crew) -> None:
    shared_crew.run("rung", "explore", "say hello")
    shared_crew.directory.supervisor_lock.on_disk.write_bytes(b"\xff\x00{")
    stop.stop_now(shared_crew.team, "rung")
    assert shared_crew.see("rung").state == "exited"


@pytest.mark.files_only("damages a file")
@pytest.mark.long
def test_a_new_supervisor_can_end_a_worker_with_a_damaged_lease(shared_crew: Crew) -> None:
    shared_crew.run("leased", "explore", "say hello")
    shared_crew.agent("leased").lease.on_disk.write_bytes(b"\xff\x00{")
    process.send_signal(shared_crew.supervisor_pid(), signal.SIGKILL)
    eventually(lambda: not supervisor_client.is_alive(shared_crew.directory), "the end of the supervisor")
    stop.stop_now(shared_crew.team, "leased")
    assert shared_crew.see("leased").state == "exited"
