"""Hosts: several machines that run the agents of one team, each the supervisor of its own."""

import asyncio
import logging
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import pytest

from crewboard import env
from crewboard.commands import hire, messages, settings, stop
from crewboard.commands import hosts as host_commands
from crewboard.errors import ExitCode, StorageError, UsageError
from crewboard.readmodel.reader import read_team
from crewboard.records.agents import Spec, Status
from crewboard.records.events import EngineSession, RunStarted
from crewboard.records.processes import Exit, Host, Lease, WantedRun, is_orderly
from crewboard.sandbox import bubblewrap
from crewboard.sandbox.policy import Policy
from crewboard.store import agents, hosts, leases, mailbox, roster
from crewboard.store.interface import Held, Key
from crewboard.store.layout import AgentDirectory, TeamDirectory
from crewboard.supervisor import finalizer
from crewboard.supervisor.finalizer import LostRun, Why
from crewboard.supervisor.host import LocalHost, Outage, describe
from crewboard.supervisor.launcher import Ended, Ref
from crewboard.supervisor.reconciler import Supervisor, Watched
from crewboard.unix import process
from tests import postgres, system
from tests.crew import WAIT_TIMEOUT, Crew, contents, eventually
from tests.hosts import up
from tests.model import ModelServer, calls
from tests.preloaded import patched
from tests.real_hosts import API_KEY, Hosts

HELLO = "say hello"
TTL = 6.0


@pytest.fixture
def team(database: str, tmp_path: Path) -> Iterator[Hosts]:
    """Make a team in PostgreSQL whose leases are short, without a host."""
    with team_in(database, tmp_path) as made:
        yield made


@contextmanager
def team_in(database: str, folder: Path, ttl: float = TTL) -> Iterator[Hosts]:
    root = folder / "operator"
    root.mkdir()
    with ModelServer() as model:
        crew = Crew(root, model, store=database)
        postgres.set_lease_ttl(database, ttl)
        postgres.close_connections()
        found = Hosts(crew, folder, database)
        try:
            yield found
        finally:
            found.end()
            postgres.close_connections()


def shown(team: Hosts, name: str) -> tuple[str, tuple[str, ...]]:
    """Return how users see a host, and which agents it runs."""
    host = read_team(team.crew.directory).host(name)
    assert host is not None
    return host.state, host.agents


def using(team: Hosts, host: str, agent: str) -> Host | None:
    """Return the record of a host if it says what an agent uses."""
    record = hosts.load(team.crew.directory, host)
    return record if record is not None and agent in record.usage else None


def host_of(team: Hosts, name: str) -> str | None:
    """Return the host on which the last run of an agent began."""
    status = team.crew.agent(name).status.load()
    return status.host if status is not None else None


def runs(team: Hosts, name: str) -> list[int]:
    """Return the runs of an agent, as often as they began."""
    return [event.run for event in team.crew.events(name) if isinstance(event, RunStarted)]


def ended(team: Hosts, name: str) -> Exit | None:
    """Return how the last run of an agent ended, once that was finalized."""
    record = team.crew.agent(name).exit.load()
    return record if record is not None and record.buried else None


def is_alive(team: Hosts, name: str) -> bool:
    return leases.is_held(team.crew.agent(name).lease)


def rows(url: str) -> list[str]:
    """Return all that is stored in a database, as text."""
    import psycopg

    with psycopg.connect(url) as connection:
        found = []
        for table in ("entries", "lines", "leases", "teams"):
            found += [str(row) for row in connection.execute(f"SELECT t::text FROM crewboard.{table} t").fetchall()]
            found += [
                bytes(value).decode(errors="replace")
                for row in connection.execute(f"SELECT * FROM crewboard.{table}").fetchall()
                for value in row
                if isinstance(value, bytes)
            ]
    return found


def wait_up(team: Hosts, *names: str) -> None:
    for name in names:
        eventually(lambda name=name: host_of(team, name), f"{name} on a host")  # type: ignore[misc]


def wait_gone(*pids: int) -> None:
    """Wait until the kernel has ended processes that were killed, which takes a moment."""
    eventually(lambda: not any(map(process.start_ticks, pids)), "that no process is left")


def notices(team: Hosts) -> list[str]:
    """Return what the team's lead was told of ended runs."""
    lead = roster.load(team.crew.directory).lead
    return sorted(
        m.content for m in mailbox.read(team.crew.directory, lead).messages if m.type == "teammate_terminated"
    )


def test_hosts_share_the_runs_and_begin_each_once(team: Hosts, tmp_path: Path) -> None:
    team.start("build1", slots=3)
    team.start("build2", "gpu", slots=3)
    names = [f"a{number}" for number in range(6)]
    for name in names:
        team.crew.hire(name, "explore", HELLO)
    wait_up(team, *names)
    assert sorted(host_of(team, name) or "" for name in names) == 3 * ["build1"] + 3 * ["build2"]
    assert [runs(team, name) for name in names] == 6 * [[1]]
    on_second = next(name for name in names if host_of(team, name) == "build2")
    record = eventually(lambda: using(team, "build2", on_second), "the usage of an agent")
    assert (record.slots, record.labels, record.draining) == (3, ["gpu"], False)
    assert record.usage[on_second].memory > 0
    # A seventh waits for a slot.
    team.crew.hire("late", "explore", HELLO)
    assert [run.agent for run in hosts.wanted(team.crew.directory)] == ["late"]
    # The key of the hosts is in the environment of their processes, and nowhere else.
    assert not [row for row in rows(team.url) if API_KEY in row]
    assert [path for path, data in contents(tmp_path).items() if API_KEY.encode() in data] == []


def test_agents_of_a_killed_host_are_lost_and_go_on_elsewhere(team: Hosts) -> None:
    team.start("build1")
    team.crew.hire("other", "explore", HELLO)
    assert team.crew.run("scout", "explore", HELLO).code == 0
    wait_up(team, "other")
    team.start("build2")
    team.start("build3")
    team.kill("build1")
    team.lose("hosts/build1/lease", "agents/other/lease", "agents/scout/lease")
    record = eventually(lambda: ended(team, "scout"), "the end of scout")
    assert record.reason == "lost"
    assert re.fullmatch(r"build1 was silent for \d+ s, and lost its lease", record.evidence)
    eventually(lambda: ended(team, "other"), "the end of other")
    # Both hosts saw it, and told the team once. Nothing is restarted by itself.
    told = {name: team.crew.agent(name).exit.load() for name in ("other", "scout")}
    assert [sum(name in text for text in notices(team)) for name in told] == [1, 1]
    assert all(end is not None and end.evidence for end in told.values())
    assert not is_alive(team, "scout")
    assert shown(team, "build1") == ("lost", ())
    (need,) = [need for need in read_team(team.crew.directory).needs if need.kind == "death"]
    assert (need.host, need.agents) == ("build1", ("other", "scout"))
    hire.resume(team.crew.team, "scout")
    sent = messages.send(team.crew.team, "scout", "say hello")
    assert team.crew.answer_to("scout", sent.id).code == 0
    assert host_of(team, "scout") in {"build2", "build3"}
    started = [event for event in team.crew.events("scout") if isinstance(event, RunStarted)]
    assert [(event.run, event.fresh) for event in started] == [(1, True), (2, False)]


def seen_by(team: TeamDirectory, name: str) -> LocalHost:
    return LocalHost(team, describe(name, 1, []), None, {})


def test_a_run_is_lost_only_if_neither_it_nor_its_host_lives(team: Hosts) -> None:
    directory = team.crew.directory
    agent = directory.agent("scout")
    directory.make_folder(agent.folder.name)
    roster.ensure(directory, 1.0)
    me = process.boot_id()
    status = Status(run=1, pid=1, state="working", since=1, boot_id=me, host="build1", beat=5)
    agent.status.save(status)
    with up(directory, "build1"):
        assert seen_by(directory, "build2").find_lost() == []
        lost = [LostRun(agent, 1, "build1", Why("lost"))]
        finalizer.finalize_lost(lost, 1.0)
        assert agent.exit.load() is None
    worker = leases.take(agent.lease)
    assert worker is not None
    assert seen_by(directory, "build2").find_lost() == []
    finalizer.finalize_lost(lost, 1.0)
    assert agent.exit.load() is None
    leases.release(worker)
    [found] = seen_by(directory, "build2").find_lost()
    assert (found.run, found.host, found.why.reason) == (1, "build1", "lost")
    for _ in range(2):
        finalizer.finalize_lost([found], 1.0)
    record = agent.exit.load()
    # A worker at rest wrote long before its host did.
    seen_at = directory.host("build1").record.changed_at()
    evidence = found.why.evidence
    assert record == Exit(run=1, reason="lost", at=seen_at, buried=True, evidence=evidence, unfinished=True)
    assert notices(team) == [f"scout ended: its host was lost: {found.why.evidence}"]
    assert seen_by(directory, "build2").find_lost() == []


@pytest.mark.parametrize("fails_at", [None, "share_notice", "send", "mark_finalized"])
def test_runs_lost_with_one_host_are_told_in_one_notice(directory: TeamDirectory, fails_at: str | None) -> None:
    roster.ensure(directory, 1.0)
    lost = []
    for name in ("p1", "p2", "p3"):
        agent = directory.agent(name)
        directory.make_folder(agent.folder.name)
        agent.status.save(Status(run=1, pid=1, state="idle", since=1, boot_id="b", host="build1", beat=5))
        lost.append(LostRun(agent, 1, "build1", Why("lost", "build1 was silent for 9 s")))

    def texts() -> list[str]:
        return [each.content for each in mailbox.read(directory, roster.load(directory).lead).messages]

    if fails_at is not None:
        module = mailbox if fails_at == "send" else agents
        done: list[object] = []
        works = getattr(module, fails_at)

        def fail(*args: object, **more: object) -> object:
            # The second time, after the first was done; mail is sent, and the sender killed at once.
            if done or fails_at == "send":
                if fails_at == "send":
                    works(*args, **more)
                raise KeyboardInterrupt
            done.append(args)
            return works(*args, **more)

        with mock.patch.object(module, fails_at, fail), pytest.raises(KeyboardInterrupt):
            finalizer.finalize_lost(lost, 1.0)
    finalizer.finalize_lost(lost, 2.0)
    told = texts()
    assert [sum(name in text for text in told) for name in ("p1", "p2", "p3")] == [1, 1, 1]
    if fails_at != "share_notice":
        together = "host build1 was lost, and 3 agents ended with it: p1, p2, p3; build1 was silent for 9 s"
        assert told == [together]
    finalizer.finalize_lost(lost, 3.0)
    assert texts() == told


def test_a_lost_run_is_looked_for_when_its_lease_ends(team: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not seconds later, when all is looked at again."""
    monkeypatch.setattr("crewboard.supervisor.host.TELL_INTERVAL", 1000.0)
    directory, agent = team.crew.directory, team.crew.agent("scout")
    directory.make_folder(agent.folder.name)
    roster.ensure(directory, 1.0)
    agent.status.save(Status(run=1, pid=1, state="working", since=1, host="build1"))
    hosts.make(directory, "build1")
    postgres.set_lease_ttl(team.url, 1.0)
    postgres.close_connections()
    for lease in (hosts.lease(directory, "build1"), agent.lease):
        leases.take(lease)
    # No process renews them.
    postgres.close_connections()
    host = seen_by(directory, "build2")
    supervisor = unstarted(directory, host)
    looks = []

    def look() -> None:
        looks.append(1)
        LocalHost._look_for_lost(host)

    async def wait() -> None:
        look()
        await asyncio.wait_for(supervisor._wake.wait(), WAIT_TIMEOUT)

    monkeypatch.setattr(host, "_look_for_lost", look)
    monkeypatch.setattr(host, "claim_soon", lambda: None)
    asyncio.run(wait())
    record = agent.exit.load()
    assert record is not None
    assert record.reason == "lost"
    assert len(looks) <= 3, "one look at the end of each lease"


def test_a_host_says_whether_it_uses_the_offline_model(directory: TeamDirectory) -> None:
    record = describe("build1", 1, [])
    assert not LocalHost(directory, record, None, {}).record.offline
    assert LocalHost(directory, record, None, {env.OFFLINE: "1"}).record.offline


def test_an_outage_is_left_to_the_process_that_begins_again(caplog: pytest.LogCaptureFixture) -> None:
    """The database may come back while the lost workers are killed."""
    outage = Outage(time.time() - 10, is_on=True)
    outage.leave()
    outage.end()
    assert outage.is_on
    assert time.time() - outage.answered_at >= 10
    assert caplog.records == []


@pytest.mark.parametrize(
    ("away", "evidence"),
    [
        (30.0, "build1 could not reach the database for 34 s"),
        (40.0, "build1 could not reach the database for 40 s"),
        (0.0, "build1 was silent for 34 s, and lost its lease"),
    ],
)
def test_evidence_of_a_host_that_began_again_stays_true(
    directory: TeamDirectory, monkeypatch: pytest.MonkeyPatch, away: float, evidence: str
) -> None:
    """The words hold at any later time, and on any machine."""
    before = describe("build1", 1, [])
    hosts.make(directory, "build1")
    hosts.save(directory, before)
    seen_at = directory.host("build1").record.changed_at()
    status = Status(run=1, pid=1, state="working", since=1, boot_id=before.boot_id, host="build1")
    monkeypatch.setattr(hosts, "now", lambda _: seen_at + 34)
    again = LocalHost(directory, before, before, {}, away=away)
    other = LocalHost(directory, describe("build2", 1, []), None, {}, away=away)
    assert again.began_again
    assert not other.began_again
    monkeypatch.setattr(hosts, "now", lambda _: seen_at + 50)
    assert again.why_ended(status) == ("lost", evidence, seen_at)
    directory.make_folder(directory.agent("scout").folder.name)
    directory.agent("scout").status.save(status)
    [lost] = other.find_lost()
    assert lost.why.seen_at == seen_at
    either = "; build2 could not reach the database" if away else ""
    assert lost.why.evidence == f"build1 was silent for 50 s, and lost its lease{either}"


@contextmanager
def left_behind(directory: TeamDirectory, *, is_ending: bool) -> Iterator[tuple[Watched, subprocess.Popen[bytes]]]:
    """Yield an agent of `build1` with a process that holds its lease, and perhaps is ending."""
    agent = directory.agent("scout")
    agents.change_spec(agent, lambda _: Spec(prompt=HELLO, prompt_id="p", type="explore", at=1.0))
    worker = subprocess.Popen(["true"] if is_ending else ["sleep", "600"])
    ticks = process.start_ticks(worker.pid)
    if is_ending:
        eventually(lambda: process.is_ending(worker.pid), "a zombie")
    held = leases.take(agent.lease)
    assert held is not None
    leases.sign(held, Lease(pid=worker.pid, run=1, boot_id=process.boot_id(), start_ticks=ticks, host="build1"))
    try:
        yield watch(agent), worker
    finally:
        worker.kill()
        worker.wait()


def host_that_begins(directory: TeamDirectory, *, again: bool) -> Supervisor:
    """Return a host that takes over what a process of its name left: this very process, or another one."""
    time.sleep(0.05)
    me = describe("build1", 1, [])
    return unstarted(directory, LocalHost(directory, me, me if again else me.replace(pid=1), {}))


@pytest.mark.linux("process ends")
@pytest.mark.parametrize("is_ending", [True, False])
def test_a_worker_that_its_host_killed_for_its_lease_is_not_adopted(team: Hosts, *, is_ending: bool) -> None:
    """Its end would be recorded as that of any worker that was killed, without a word of the host."""
    with left_behind(team.crew.directory, is_ending=is_ending) as (watched, worker):
        supervisor = host_that_begins(team.crew.directory, again=True)
        supervisor._reconcile(watched)
        # One that a busy machine has not ended yet is killed again.
        eventually(lambda: process.is_ending(worker.pid), "the end of the worker")
        supervisor._reconcile(watched)
        assert watched.ref is None
        assert not is_alive(team, "scout")


@pytest.mark.linux("process ends")
def test_a_worker_that_died_while_its_host_was_gone_is_not_adopted(team: Hosts) -> None:
    """Its end would be recorded as one that no process saw, without a word of the host."""
    with left_behind(team.crew.directory, is_ending=True) as (watched, _):
        host_that_begins(team.crew.directory, again=False)._reconcile(watched)
        assert watched.ref is None


def test_a_supervisor_records_no_end_of_a_run_of_a_host(directory: TeamDirectory) -> None:
    """It has workers from before the team had hosts, and knows of others only that they are gone."""
    agent = directory.agent("scout")
    directory.make_folder(agent.folder.name)
    hosts.make(directory, "build1")
    agents.change_spec(agent, lambda _: Spec(prompt=HELLO, prompt_id="p", type="explore", at=1.0))
    agent.status.save(Status(run=1, pid=1, state="working", since=1, host="build1"))
    assert unstarted(directory)._reconcile(watch(agent)) is None
    assert agent.exit.load() is None


def unstarted(directory: TeamDirectory, host: LocalHost | None = None) -> Supervisor:
    """Return a supervisor that has not begun to run, of that host if one is given."""
    lock = Held(directory.store, "supervisor.lock", 0, -1)
    return Supervisor(directory, lock, lambda: None, host)


def watch(agent: AgentDirectory) -> Watched:
    return Watched(agent, agent.spec.watch(), agent.status.watch(), agent.exit.watch())


def test_a_lease_is_freed_once_it_is_recorded_how_the_run_ended(team: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a host that looks just then records that no process saw the end."""
    agent, directory = team.crew.agent("scout"), team.crew.directory
    directory.make_folder(agent.folder.name)
    supervisor = unstarted(directory, seen_by(directory, "build1"))
    watched = watch(agent)
    watched.ref, watched.run, watched.ended[1] = Ref(17, 1), 1, Ended(signal=9)
    free, freed = leases.free, list[Exit | None]()

    def note(lease: Key, pid: int, ticks: int) -> None:
        freed.append(agent.exit.load())
        free(lease, pid, ticks)

    monkeypatch.setattr(leases, "free", note)
    supervisor._forget_worker(watched)
    assert [record.signal if record is not None else None for record in freed] == [9]


def test_a_host_that_lost_its_lease_records_no_end(directory: TeamDirectory) -> None:
    """It killed its workers itself; the end of the run is told with the reason for that."""
    agent = directory.agent("scout")
    directory.make_folder(agent.folder.name)
    supervisor = unstarted(directory, seen_by(directory, "build1"))
    supervisor.lose_workers()
    watched = watch(agent)
    watched.ref, watched.ended[1] = Ref(17, 1), Ended(signal=9)
    assert supervisor._record_end(watched) is None
    supervisor._forget_worker(watched)
    assert agent.exit.load() is None


def test_a_reboot_is_that_of_the_runs_own_machine(team: Hosts) -> None:
    directory = team.crew.directory
    agent = directory.agent("scout")
    directory.make_folder(agent.folder.name)
    status = Status(run=1, pid=1, state="working", since=1, boot_id="another boot", host="build1")
    agent.status.save(status)
    with up(directory, "build1") as host:
        hosts.save(directory, host.replace(boot_id="another boot"))
    assert [run.why.reason for run in seen_by(directory, "build2").find_lost()] == ["lost"]
    hosts.save(directory, host.replace(boot_id="a later boot"))
    assert [run.why.reason for run in seen_by(directory, "build2").find_lost()] == ["reboot"]


def test_claims_of_a_lost_host_go_back_into_the_queue(team: Hosts) -> None:
    directory = team.crew.directory
    with up(directory, "build1") as host:
        hosts.want(directory, WantedRun(agent="scout", run=1))
        assert hosts.claim(directory, host, 1) == ["scout"]
        seen_by(directory, "build2").find_lost()
        assert hosts.wanted(directory) == []
    seen_by(directory, "build2").find_lost()
    assert [run.agent for run in hosts.wanted(directory)] == ["scout"]


@pytest.mark.long
def test_labels_and_names_choose_the_host(team: Hosts) -> None:
    team.start("build1")
    team.start("build2", "gpu", "big")
    team.crew.hire("w1", "explore", HELLO, needs=["gpu"])
    team.crew.hire("w2", "explore", HELLO, host="build1")
    team.crew.hire("w3", "explore", HELLO, host="build2", needs=["big"])
    team.crew.hire("w4", "explore", HELLO, host="build1", needs=["big"])
    wait_up(team, "w1", "w2", "w3")
    assert [host_of(team, name) for name in ("w1", "w2", "w3", "w4")] == ["build2", "build1", "build2", None]


@pytest.mark.long
@pytest.mark.linux("sandbox")
def test_an_agent_with_an_engine_starts_where_its_program_is(team: Hosts) -> None:
    system.need("bubblewrap", bubblewrap.unavailable_reason(Policy(team.folder, writes=False)))
    team.start("build1")
    said = hire.spawn(team.crew.team, hire.Hire("w1", "explore", "[[say hello]]", engine="codex", wait=True))
    assert said.note.endswith("; no host that is up has engine:codex; it waits for one")
    assert "with engine:codex" in team.crew.see("w1").reason
    programs = Path(__file__).parents[1] / "data" / "engines"
    team.crew.environment["PATH"] = f"{programs}:{os.environ['PATH']}"
    team.start("build2")
    assert team.crew.answer(said).text == "hello"
    assert host_of(team, "w1") == "build2"
    with pytest.raises(UsageError, match=r"start no engine but these: claude, claude-gated, codex$"):
        hire.spawn(team.crew.team, hire.Hire("w2", "explore", "go", engine="acp:sh"))
    with pytest.raises(UsageError, match=r"w2 was not hired: .* no workspace was pushed"):
        hire.spawn(team.crew.team, hire.Hire("w2", "code", "go", engine="codex", given=frozenset()))


@pytest.mark.long
def test_an_engine_whose_host_is_lost_begins_a_new_session(team: Hosts) -> None:
    system.need("bubblewrap", bubblewrap.unavailable_reason(Policy(team.folder, writes=False)))
    programs = Path(__file__).parents[1] / "data" / "engines"
    team.crew.environment["PATH"] = f"{programs}:{os.environ['PATH']}"
    team.start("build1")
    said = hire.spawn(team.crew.team, hire.Hire("w1", "explore", "[[say hello]]", engine="codex"))
    assert team.crew.answer(said).text == "hello"
    team.start("build2")
    team.kill("build1")
    team.lose("hosts/build1/lease", "agents/w1/lease")
    eventually(lambda: ended(team, "w1"), "the end of its run")
    hire.resume(team.crew.team, "w1")
    sent = messages.send(team.crew.team, "w1", "[[say again]]")
    assert team.crew.answer_to("w1", sent.id).text == "again"
    assert host_of(team, "w1") == "build2"
    sessions = [each for each in team.crew.events("w1") if isinstance(each, EngineSession)]
    assert [each.loaded for each in sessions] == [False, False]
    [told] = (team.folder / "build2").rglob("model.jsonl")
    assert "Your earlier session could not be loaded again" in told.read_text()


@pytest.mark.long
def test_a_host_that_ends_asks_its_agents_and_gives_back_what_has_not_begun(team: Hosts) -> None:
    host = team.start("build1")
    team.crew.model.give("busy", calls("bash", command="sleep 600"))
    team.crew.hire("busy", "code", "Sleep.", unsafe_no_sandbox=True)
    team.crew.model.give("cut", calls("bash", command="sleep 600"))
    team.crew.hire("cut", "code", "Sleep.", unsafe_no_sandbox=True)
    team.crew.run("idle", "explore", HELLO)
    team.crew.run("other", "explore", HELLO)
    for name in ("busy", "cut"):
        eventually(lambda name=name: [c for c in team.crew.commands(name) if "600" in c], "the command")  # type: ignore[misc]
    # A run that is claimed and does not begin: paused before its host looked.
    put_off(team, "later", "build1")
    # Slurm asks every process of a job to end.
    host.send_signal(signal.SIGSTOP)
    for name in ("other", "cut"):
        os.kill(team.crew.pid(name), signal.SIGTERM)
    # A closed terminal, of which a host may be told twice.
    host.send_signal(signal.SIGHUP)
    host.send_signal(signal.SIGCONT)
    eventually(lambda: "draining" in team.log("build1") or None, "the beginning of its end")
    assert "asks busy, " in team.log("build1")
    assert "waits 30 s at most for what is at work: busy" in team.log("build1")
    assert "Ctrl-C or SIGTERM ends all at once" in team.log("build1")
    host.send_signal(signal.SIGHUP)
    eventually(lambda: all(ended(team, name) for name in ("idle", "other", "cut")), "the end of all but one")
    eventually(lambda: hosts.wanted(team.crew.directory), "the claim in the queue")
    record = hosts.load(team.crew.directory, "build1")
    assert record is not None
    assert record.draining
    assert shown(team, "build1") == ("draining", ("busy",))
    # What is hired now waits for another host.
    assert team.crew.hire("new", "explore", HELLO).agent == "new"
    assert [run.agent for run in hosts.wanted(team.crew.directory)] == ["later", "new"]
    tree = process.descendants(host.pid)
    host.send_signal(signal.SIGTERM)
    assert host.wait(30) == 0
    end, other, busy = (ended(team, name) for name in ("idle", "other", "busy"))
    assert end is not None
    assert other is not None
    assert busy is not None
    assert (end.reason, other.reason, other.code) == ("shutdown", "host_ended", ExitCode.TERMINATED)
    assert (busy.reason, busy.signal) == ("host_ended", signal.SIGKILL)
    # That is no crash, and what was cut off needs the user.
    view = read_team(team.crew.directory)
    seen = {agent.name: (agent.state, agent.reason) for agent in view.agents}
    assert seen["busy"] == seen["cut"] == ("exited", "its host ended while it was at work")
    assert seen["other"] == ("exited", "its host ended")
    assert [need.agents for need in view.needs if need.kind == "death"] == [("busy", "cut")]
    assert shown(team, "build1") == ("ended", ())
    wait_gone(*tree)


def put_off(team: Hosts, name: str, host: str) -> None:
    """Let a host have the claim of a run that is paused before it begins."""
    agent = team.crew.agent(name)
    team.crew.directory.make_folder(agent.folder.name)
    spec = Spec(prompt=HELLO, prompt_id="p", type="explore", want="paused", at=time.time())
    agent.spec.save(spec)
    hosts.keep(team.crew.directory, host, WantedRun(agent=name, run=1, at=time.time()))


def keep_busy(team: Hosts) -> list[int]:
    """Hire an agent whose command does not end by itself. Return the worker and all processes below it."""
    team.crew.model.give("busy", calls("bash", command="sleep 600"))
    team.crew.hire("busy", "code", "Sleep.", unsafe_no_sandbox=True)
    eventually(lambda: [c for c in team.crew.commands("busy") if "600" in c], "the command")
    return [team.crew.pid("busy"), *process.descendants(team.crew.pid("busy"))]


@pytest.mark.long
def test_a_host_that_ends_terminates_agents_that_do_not(team: Hosts) -> None:
    with patched("from crewboard.supervisor import host; host.SHUTDOWN_TIMEOUT = 1.0"):
        host = team.start("build1")
    tree = keep_busy(team)
    host.send_signal(signal.SIGTERM)
    host.wait()
    record = ended(team, "busy")
    assert record is not None
    assert (record.reason, is_orderly(record), record.unfinished) == ("host_ended", True, True)
    wait_gone(*tree)


@pytest.mark.long
def test_a_host_that_ends_does_not_begin_again_without_the_database(team: Hosts) -> None:
    host = team.start("build1")
    tree = keep_busy(team)
    host.send_signal(signal.SIGTERM)
    eventually(lambda: "draining" in team.log("build1") or None, "the beginning of its end")
    team.lose("hosts/build1/lease")
    host.wait()
    assert "it lost its lease; kills its workers, and ends" in team.log("build1")
    wait_gone(*tree)


@pytest.mark.long
def test_caps_hold_over_all_hosts(team: Hosts) -> None:
    settings.change_setting(team.crew.team, "max_agents", "3")
    team.start("build1")
    team.start("build2")
    names = [f"a{number}" for number in range(5)]
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda name: team.crew.hire(name, "explore", HELLO), names))
    eventually(lambda: sum(is_alive(team, name) for name in names) == 3 or None, "three agents")
    eventually(lambda: len(held_by_cap(team)) == 2, "the others in the queue")
    assert sum(is_alive(team, name) for name in names) == 3
    first = next(name for name in names if is_alive(team, name))
    stop.stop_now(team.crew.team, first)
    eventually(lambda: len(held_by_cap(team)) == 1 or None, "a place for one of them")
    eventually(lambda: sum(runs(team, name) == [1] for name in names) == 4 or None, "its start")
    assert sum(is_alive(team, name) for name in names) == 3


def held_by_cap(team: Hosts) -> list[str]:
    held = agents.held_starts(team.crew.directory).held
    return [each.name for each in held if each.reason == "max_agents 3 reached"]


@pytest.mark.long
def test_a_host_that_was_killed_alone_finds_its_agents_again(team: Hosts) -> None:
    host = team.start("build1")
    team.crew.run("scout", "explore", HELLO)
    worker = team.crew.pid("scout")
    process.send_signal(host.pid, signal.SIGKILL)
    host.wait()
    again = team.start("build1")
    adopted = f"adopted scout run 1, pid {worker}"
    eventually(lambda: adopted in team.log("build1") or None, "the adoption")
    assert team.crew.pid("scout") == worker
    sent = messages.send(team.crew.team, "scout", "say hello")
    assert team.crew.answer_to("scout", sent.id).code == 0
    process.send_signal(again.pid, signal.SIGKILL)
    again.wait()
    team.crew.kill("scout")
    # The next host of the name finalizes what the one before left.
    team.start("build1")
    record = eventually(lambda: ended(team, "scout"), "its end")
    assert record.reason in {"lost", "died"}, "lost, or the kernel still knew it"


@pytest.mark.long
def test_a_host_that_lost_its_lease_kills_its_workers_and_begins_again(team: Hosts) -> None:
    host = team.start("build1")
    tree = keep_busy(team)
    team.lose("hosts/build1/lease")
    record = eventually(lambda: ended(team, "busy"), "the end of its agent")
    assert (record.reason, record.evidence[:21]) == ("lost", "build1 was silent for")
    assert not any(process.start_ticks(pid) for pid in tree)
    eventually(lambda: team.is_up("build1", host.pid) or None, "the same process as a host again")
    assert host.poll() is None
    assert "lost its lease" in team.log("build1")
    hire.resume(team.crew.team, "busy")
    eventually(lambda: runs(team, "busy") == [1, 2], "its next run")
    assert team.drain("build1", signal.SIGINT) == 0


def test_a_host_kills_a_worker_that_lost_its_lease(directory: TeamDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    supervisor = unstarted(directory, seen_by(directory, "build1"))
    monkeypatch.setattr(supervisor, "wake_one", lambda _: None)
    supervisor._launcher = launcher = mock.Mock()
    with left_behind(directory, is_ending=False) as (watched, worker):
        watched.ref = Ref(worker.pid, process.start_ticks(worker.pid))
        supervisor._reconcile(watched)
        launcher.signal.assert_not_called()
        watched.agent.lease.remove()
        supervisor._reconcile(watched)
        launcher.signal.assert_called_once_with(watched.ref, signal.SIGKILL, tree=True)


@pytest.mark.long
def test_a_worker_that_was_replaced_is_killed_with_its_tree(team: Hosts) -> None:
    team.start("build1")
    tree = keep_busy(team)
    # Frozen, it cannot renew its lease.
    team.crew.halt("busy")
    record = eventually(lambda: ended(team, "busy"), "its end")
    assert record.signal == signal.SIGKILL
    eventually(lambda: not any(process.start_ticks(pid) for pid in tree), "that none of its processes is left")


@pytest.mark.long
def test_a_host_outlives_the_loss_of_the_database(tmp_path: Path) -> None:
    postgres.require()
    server = postgres.Server()
    try:
        server.start()
        # So that what a host leaves of the time of a lease is more than a busy machine needs to end processes.
        ttl = 15.0
        with team_in(postgres.SharedServer.database_on(server.url), tmp_path, ttl) as team:
            host = team.start("build1")
            tree = keep_busy(team)
            server.kill()
            began = time.monotonic()
            eventually(lambda: not any(process.start_ticks(pid) for pid in tree), "the end of the agent")
            assert time.monotonic() - began < ttl, "another worker may begin after that"
            eventually(lambda: "begins again" in team.log("build1") or None, "a word about that")
            server.start()
            eventually(lambda: team.is_up("build1", host.pid) or None, "the same process as a host again")
            record = eventually(lambda: ended(team, "busy"), "the record of its end")
            assert record.reason == "lost"
            # Told once, although the process began again meanwhile.
            log = team.log("build1")
            assert [log.count(words) for words in ("database away since ", "database back after ")] == [1, 1]
            assert "ERROR : " not in log
            assert re.fullmatch(r"build1 could not reach the database for \d+ s", record.evidence)
            hire.resume(team.crew.team, "busy")
            eventually(lambda: runs(team, "busy") == [1, 2], "its next run")
    finally:
        server.end()


def fail(error: Exception) -> None:
    raise error


def test_an_outage_is_logged_once_when_it_begins_and_once_when_it_ends(
    directory: TeamDirectory, caplog: pytest.LogCaptureFixture
) -> None:
    host = seen_by(directory, "build1")
    supervisor = unstarted(directory, host)
    hosts.make(directory, "build1")
    caplog.set_level(logging.INFO)
    away = StorageError("connection refused", away=True)
    for agent, error in (("", away), ("scout", away), ("", StorageError("disk full")), ("", away)):
        with supervisor.noting_failures(agent):
            fail(error)
    host.tell()
    host.tell()
    told = [re.sub(r"\d", "0", message) for message in caplog.messages]
    assert told == ["database away since 00:00:00: connection refused; waiting", "disk full", "database back after 0 s"]


def test_a_host_that_waits_for_the_database_ends_at_once(directory: TeamDirectory) -> None:
    """Also as the first process of a container, which has no default for SIGTERM."""
    program = (
        "import signal, sys; from pathlib import Path; from crewboard.store.layout import TeamDirectory; "
        "from crewboard.supervisor import __main__ as main, host; "
        "main._wait_for_store = lambda *_: signal.raise_signal(signal.SIGTERM); "
        "main.run_host(TeamDirectory(Path(sys.argv[1])), host.describe('build1', 1, []))"
    )
    ran = subprocess.run([sys.executable, "-c", program, directory.path], check=False)
    assert ran.returncode == 128 + signal.SIGTERM


@pytest.mark.long
def test_a_run_begins_after_the_end_of_the_last_one_on_another_host(team: Hosts) -> None:
    directory = team.crew.directory
    with up(directory, "build1"):
        team.start("build2")
        # Its worker has ended, and its host is about to finalize that.
        agent = team.crew.agent("scout")
        directory.make_folder(agent.folder.name)
        spec = Spec(prompt=HELLO, prompt_id="p", type="explore", run=2, at=time.time())
        agent.spec.save(spec)
        agent.status.save(Status(run=1, pid=1, state="working", since=1, host="build1"))
        hosts.want(directory, WantedRun(agent="scout", run=2, at=time.time()))
        eventually(lambda: hosts.claimed(directory, "build2") or None, "the claim")
        # A pass later, another agent has begun.
        team.crew.run("other", "explore", HELLO)
        assert runs(team, "scout") == []
        assert "scout" in [run.agent for run in hosts.claimed(directory, "build2")]
    eventually(lambda: runs(team, "scout") == [2] or None, "the run")
    assert notices(team)[0].startswith("scout ended: its host was lost: build1 was silent for")


@pytest.mark.long
def test_an_agent_that_crashes_is_restarted_on_its_host(team: Hosts) -> None:
    team.start("build1")
    team.crew.hire("sturdy", "explore", HELLO, restart=True)
    wait_up(team, "sturdy")
    team.crew.kill("sturdy")
    eventually(lambda: runs(team, "sturdy") == [1, 2] or None, "its restart")
    assert host_of(team, "sturdy") == "build1"
    eventually(lambda: not hosts.claimed(team.crew.directory, "build1") or None, "the end of the claim")
    assert agents.held_starts(team.crew.directory).held == []


@pytest.mark.long
def test_a_host_ends_when_its_team_is_removed(team: Hosts) -> None:
    host = team.start("build1")
    team.crew.run("scout", "explore", HELLO)
    worker = team.crew.pid("scout")
    team.crew.directory.store.purge()
    host.wait()
    assert "the team default was removed" in team.log("build1")
    wait_gone(worker)


@pytest.mark.long
def test_the_name_of_a_living_host_is_taken(team: Hosts) -> None:
    team.start("build1")
    (team.folder / "elsewhere").mkdir()
    joined = host_commands.join(team.folder / "elsewhere", team.crew.directory.path.name, team.url)
    command = [sys.executable, "-I", "-m", "crewboard.supervisor", str(joined.path), "--host", "build1", "2"]
    # The command `host` finds it sooner, but not on another machine.
    second = subprocess.run(command, env=team.crew.environment, capture_output=True, text=True, timeout=60, check=False)
    assert second.returncode == ExitCode.USAGE
    assert "a host build1 is up on" in second.stderr


def test_what_a_lost_host_had_begun_is_not_begun_again(directory: TeamDirectory) -> None:
    """A claim that it had begun is removed, one that it had not goes back into the queue."""
    hosts.make(directory, "gone")
    for name in ("begun", "waits"):
        directory.store.make_folder(f"agents/{name}")
        hosts.keep(directory, "gone", WantedRun(agent=name, run=1))
    directory.agent("begun").status.save(Status(run=1, pid=1, state="working", since=0, host="gone"))
    hosts.make(directory, "here")
    LocalHost(directory, describe("here", 8, []), None, {}).find_lost()
    assert [run.agent for run in hosts.wanted(directory)] == ["waits"]
    assert hosts.claimed(directory, "gone") == []
