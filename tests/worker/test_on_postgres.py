"""A team in PostgreSQL keeps the promises of one in files: tests of other modules on a team there, and its own."""

import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from crewboard.commands import hire as hiring
from crewboard.commands import messages, stop
from crewboard.errors import ExitCode
from crewboard.records.events import Intake
from crewboard.store import mailbox
from crewboard.unix import process
from tests.crew import Crew, eventually
from tests.model import ModelServer
from tests.postgres import Server, SharedServer, close_connections, end_leases, require, set_lease_ttl
from tests.worker import test_life, test_request_protocol

pytestmark = pytest.mark.xdist_group(__name__)


@pytest.fixture(scope="module")
def shared_crew(tmp_path_factory: pytest.TempPathFactory, postgres: SharedServer) -> Iterator[Crew]:
    with ModelServer() as model:
        crew = Crew(tmp_path_factory.mktemp("shared"), model, store=postgres.new_database())
        yield crew
        crew.end()
        close_connections()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """Return a server of this module alone, which its tests kill."""
    require()
    server = Server()
    server.start()
    yield server
    server.end()


def taken_in(crew: Crew, name: str) -> list[str]:
    """Return the contents of all messages that an agent took in."""
    return [each.content for event in crew.events(name) if isinstance(event, Intake) for each in event.messages]


@pytest.mark.long
def test_a_tool_that_was_running_is_not_run_again(shared_crew: Crew) -> None:
    test_life.test_a_tool_that_was_running_is_never_run_again_by_itself(shared_crew)


def test_stop_now_ends_all_that_an_agent_started(shared_crew: Crew) -> None:
    test_life.test_stop_now_ends_a_busy_agent_with_all_that_it_started(shared_crew)


def test_an_open_gate_and_a_waiting_plan_survive_a_kill(shared_crew: Crew) -> None:
    test_request_protocol.test_an_open_gate_and_a_waiting_plan_survive_a_kill(shared_crew)


@pytest.mark.long
def test_mail_is_taken_in_once_while_workers_are_killed(shared_crew: Crew) -> None:
    shared_crew.run("struck", "explore", "say hello")
    sent = [f"letter {number}" for number in range(30)]
    for number, text in enumerate(sent):
        mailbox.send(shared_crew.directory, mailbox.compose("operator", "struck", "message", text))
        if number % 10 == 5:
            shared_crew.kill("struck")
            shared_crew.wait_for("struck", "crashed")
            hiring.resume(shared_crew.team, "struck")
    eventually(lambda: sent[-1] in taken_in(shared_crew, "struck"), "the last letter")
    assert [text for text in taken_in(shared_crew, "struck") if text.startswith("letter")] == sent
    shared_crew.wait_for("struck", "idle")


@pytest.mark.long
def test_a_thawed_worker_whose_lease_ended_ends_at_once(tmp_path: Path, database: str) -> None:
    """A worker stands still until its lease ends, and goes on."""
    with ModelServer() as model:
        crew = _crew_with_ttl(tmp_path, model, database, 4.0)
        crew.run("frozen", "explore", "say hello")
        crew.wait_for_rest("frozen")
        pid, ticks = crew.pid("frozen"), process.start_ticks(crew.pid("frozen"))
        process.send_signal(pid, signal.SIGSTOP, ticks)
        end_leases(database)
        before = crew.events("frozen")
        sent = messages.send(crew.team, "frozen", "while you slept")
        process.send_signal(pid, signal.SIGCONT, ticks)
        eventually(lambda: process.start_ticks(pid) != ticks, "the end of the worker")
        assert crew.events("frozen") == before, "it wrote nothing more"
        crew.wait_for("frozen", "crashed", "vanished", "exited", "died")
        hiring.resume(crew.team, "frozen")
        crew.answer_to("frozen", sent.id)
        crew.end()
        close_connections()


def _crew_with_ttl(root: Path, model: ModelServer, url: str, seconds: float) -> Crew:
    crew = Crew(root, model, store=url)
    set_lease_ttl(url, seconds)
    close_connections()
    return crew


@pytest.mark.long
def test_a_store_that_is_soon_back_ends_no_worker(tmp_path: Path, server: Server) -> None:
    with ModelServer() as model:
        crew = _crew_with_ttl(tmp_path, model, SharedServer.database_on(server.url), 60.0)
        crew.run("patient", "explore", "say hello")
        pid = crew.pid("patient")
        server.kill()
        sender = threading.Thread(target=messages.send, args=(crew.team, "patient", "who are you?"))
        sender.start()
        server.start()
        sender.join()
        (letter,) = mailbox.read(crew.directory, "patient").messages[-1:]
        crew.answer_to("patient", letter.id)
        assert crew.pid("patient") == pid
        assert taken_in(crew, "patient").count("who are you?") == 1
        crew.end()
        close_connections()


@pytest.mark.long
def test_without_the_store_a_worker_ends_with_74(tmp_path: Path, server: Server) -> None:
    """It ends, with all that it started, before another one may have its run; and it can be resumed."""
    with ModelServer() as model:
        crew = _crew_with_ttl(tmp_path, model, SharedServer.database_on(server.url), 5.0)
        crew.hire("cut", "test", "run: sleep 300", unsafe_no_sandbox=True)
        eventually(lambda: "sleep" in crew.see("cut").doing, "the command")
        run = [crew.pid("cut"), *process.descendants(crew.pid("cut"))]
        server.kill()
        killed = time.monotonic()
        eventually(lambda: not any(process.start_ticks(pid) for pid in run), "the end of the worker and its command")
        assert time.monotonic() - killed > 0.3, "it waited for the store"
        server.start()
        close_connections()
        seen = crew.wait_for("cut", "crashed", "exited", "vanished", "failed")
        ended = eventually(crew.agent("cut").exit.load, "the record of its end")
        assert ended.code == ExitCode.IO, seen
        hiring.resume(crew.team, "cut")
        crew.wait_for("cut", "idle", "working")
        stop.stop_now(crew.team, "cut")
        crew.end()
        close_connections()
