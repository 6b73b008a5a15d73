"""The commands of a team whose agents run on hosts: who waits for which host and why, and who runs where."""

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast
from uuid import uuid4

import pytest

from crewboard.commands import control, messages, stop
from crewboard.commands import hire as hiring
from crewboard.commands import hosts as host_commands
from crewboard.commands.context import CommandLine, Team
from crewboard.commands.hire import Hire
from crewboard.errors import CredentialsError, ExitCode, TryLaterError, UsageError
from crewboard.protocol import cooldown, supervisor_client
from crewboard.protocol.supervisor_client import ensure_running
from crewboard.readmodel import states
from crewboard.readmodel.crash_report import log_end
from crewboard.readmodel.reader import read_team
from crewboard.records.agents import HireOptions, Spec, Status
from crewboard.records.events import ToolResult
from crewboard.records.processes import Exit, Lease
from crewboard.sandbox import shell
from crewboard.sandbox.sandbox import Sandbox
from crewboard.store import agents, hosts, leases, roster
from crewboard.store.agents import LATE_AFTER
from crewboard.store.interface import Store
from crewboard.store.layout import TeamDirectory
from crewboard.supervisor.reconciler import Supervisor, Watched
from crewboard.unix import process
from crewboard.worker.run_state import RunState
from tests.cli.files import alive, enlist, set_status
from tests.cli.shell import Cli
from tests.crew import WAIT_TIMEOUT, Crew, eventually
from tests.hosts import claim, up
from tests.model import ModelServer, calls, says
from tests.postgres import close_connections, set_lease_ttl
from tests.real_hosts import Hosts
from tests.worker.test_media import PNG, sources

NONE_UP = "waits for a host: none of this team is up; start one with `crewboard host`"


@pytest.fixture
def hosted(team: Team, monkeypatch: pytest.MonkeyPatch) -> Team:
    """Return a team with the host `one`, which is not up. This machine has no API key, and starts no supervisor."""
    monkeypatch.setattr(host_commands, "QUEUE_TIMEOUT", 0.0)
    monkeypatch.setattr(supervisor_client, "_start", lambda _: pytest.fail("a supervisor was started"))
    with up(team.directory, "one"):
        pass
    return Team(team.directory, environment={})


def why(team: Team, name: str = "w1") -> str:
    return host_commands.queued(team, name, 1)


def hire(team: Team, name: str = "w1", **flags: object) -> hiring.Assignment:
    return hiring.spawn(team, Hire(name, "explore", "look around", flags=HireOptions(**flags)))  # type: ignore[arg-type]


@pytest.mark.long
def test_a_run_waits_in_words_for_what_it_needs(hosted: Team) -> None:
    assert "no host that is up has big and gpu; it waits for one" in hire(hosted, needs=["gpu", "big"]).note
    assert why(hosted) == f"queued: {NONE_UP}"
    with up(hosted.directory, "two", "gpu"):
        assert why(hosted) == "queued: waits for a host with big and gpu"
        with up(hosted.directory, "one", "gpu", "big"):
            assert why(hosted) == "queued: waits for a host with big and gpu and a free slot"
        hire(hosted, "w2", host="one")
        assert why(hosted, "w2") == "queued: waits for the host one"
        hire(hosted, "w3", host="two", needs=["big"])
        assert why(hosted, "w3") == "queued: waits for the host two with big"
        hire(hosted, "w4")
        assert why(hosted, "w4") == "queued: waits for a host with a free slot"


@pytest.mark.files_only("a team in PostgreSQL has hosts")
def test_hosts_and_labels_are_refused_without_hosts(team: Team, cli: Cli) -> None:
    enlist(team, "w0")
    for flags in (["--host", "one"], ["--needs", "gpu"]):
        done = cli("spawn", "w1", "--type", "explore", "--prompt", "x", *flags)
        assert done.code == 2
        assert "kept in files of this machine, and has no hosts; leave out --host and --needs" in done.err
        assert "crewboard host" not in done.err
    assert not team.directory.agent("w1").spec.load()


def test_an_unknown_host_is_refused_with_the_known_ones(hosted: Team) -> None:
    with pytest.raises(UsageError, match="no host 'build2' in this team; its hosts are one"):
        hire(hosted, host="build2")
    with pytest.raises(UsageError, match="'GPU 1' is no label"):
        hire(hosted, needs=["GPU 1"])
    enlist(hosted, "w2")
    with pytest.raises(UsageError, match="no host 'build2'"):
        hiring.resume(hosted, "w2", host="build2")


def test_a_machine_without_a_key_can_hire_only_where_hosts_start(hosted: Team, team: Team) -> None:
    hire(hosted)
    for name in hosted.directory.hosts.names():
        hosted.directory.move(f"hosts/{name}", f"removed-{name}")
    with pytest.raises(CredentialsError):
        hire(Team(team.directory, environment={}), "w2")


def test_a_hire_that_may_not_wait_needs_a_free_slot(hosted: Team) -> None:
    enlist(hosted, "w0")
    busy = leases.take(hosted.directory.agent("w0").lease)
    assert busy is not None
    leases.sign(busy, Lease(pid=1, run=1, host="one"))
    prompt = Hire("w1", "explore", "look", wait=False)
    with up(hosted.directory, "one", slots=1), pytest.raises(TryLaterError, match="waits for a host with a free slot"):
        hiring.spawn(hosted, prompt)
    with up(hosted.directory, "one", slots=2):
        hiring.spawn(hosted, prompt)
    leases.release(busy)


@pytest.mark.parametrize(
    ("host", "needs", "note"),
    [
        (None, ["gpu"], ""),
        ("two", ["gpu"], ""),
        ("one", ["gpu"], "the host one has no gpu; it waits until that changes"),
        (None, ["gpu", "big"], "no host that is up has big and gpu together; it waits for one"),
        (None, ["gpu", "tpu"], "no host that is up has tpu; it waits for one"),
    ],
)
def test_a_place_that_no_host_offers_now_is_noted(hosted: Team, host: str | None, needs: list[str], note: str) -> None:
    with up(hosted.directory, "one", "big"), up(hosted.directory, "two", "gpu"):
        assert hosts.check(hosted.directory, host, needs) == note


def test_a_hire_onto_a_host_that_is_ending_is_noted(hosted: Team) -> None:
    with up(hosted.directory, "one", "big") as one, up(hosted.directory, "two"):
        hosts.save(hosted.directory, one.replace(draining=True))
        note = "the host one is ending and takes no more agents; it waits until a host one is started again"
        assert note in hire(hosted, host="one").note
        assert hosts.check(hosted.directory, None, ["big"]) == "no host that is up has big; it waits for one"
        assert hosts.check(hosted.directory, "two", []) == ""


def test_stop_takes_a_run_out_of_the_queue(hosted: Team, cli: Cli) -> None:
    hire(hosted)
    assert cli("stop", "w1").out == "w1 was taken out of the queue\n"
    assert hosts.wanted(hosted.directory) == []
    spec = hosted.directory.agent("w1").spec.load()
    assert spec is not None
    assert spec.want == "killed"
    assert read_team(hosted.directory).agents[0].state == "exited"


def test_stop_cancels_a_run_that_a_host_has_claimed(hosted: Team) -> None:
    hire(hosted)
    with up(hosted.directory, "one"):
        claim(hosted.directory, "one", "w1")
        assert why(hosted) == "queued: the host one is about to start it"
        stop.stop(hosted, "w1")
    spec = hosted.directory.agent("w1").spec.load()
    assert spec is not None
    assert spec.want == "killed"


@pytest.mark.long
def test_resume_on_another_host_moves_a_run_in_the_queue(hosted: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    with up(hosted.directory, "two"):
        pass
    hire(hosted, host="one")
    assert hiring.resume(hosted, "w1") == 1, "it waits already"
    assert hiring.resume(hosted, "w1", host="two") == 1
    assert [run.needs for run in hosts.wanted(hosted.directory)] == [["host:two"]]
    with up(hosted.directory, "two"):
        claim(hosted.directory, "two", "w1")
        with pytest.raises(TryLaterError, match="another command is starting w1"):
            hiring.resume(hosted, "w1", host="one")
        monkeypatch.setattr(host_commands, "START_TIMEOUT", 0.1)
        with pytest.raises(TryLaterError, match=r"goes on starting it.* see the log of that host"):
            hiring.resume(hosted, "w1")
        assert hosts.wanted(hosted.directory) == [], "it is wanted once"


@pytest.mark.parametrize(("alive", "says"), [(True, "goes on starting it"), (False, "no supervisor runs: try again")])
def test_a_late_start_says_whether_it_goes_on(
    team: Team, monkeypatch: pytest.MonkeyPatch, alive: bool, says: str
) -> None:
    enlist(team, "slow")
    spec = team.directory.agent("slow").spec.load()
    assert spec is not None
    monkeypatch.setattr(host_commands, "START_TIMEOUT", 0.1)
    monkeypatch.setattr(supervisor_client, "request_start", lambda *_: None)
    monkeypatch.setattr(supervisor_client, "is_alive", lambda _: alive)
    with pytest.raises(TryLaterError, match=f"slow did not start within 0 s; .*{says}"):
        host_commands.start(team, team.directory.agent("slow"), spec.replace(run=2))


@pytest.mark.long
def test_resume_says_how_to_move_an_agent_whose_host_is_not_up(hosted: Team, cli: Cli) -> None:
    hire(hosted, host="one")
    assert cli("resume", "--all").out == f"w1 is queued: {NONE_UP}\n"
    with up(hosted.directory, "two"):
        moved = "w1 is queued: waits for the host one; `crewboard resume w1 --host two` moves it\n"
        assert cli("resume", "--all").out == moved
        assert cli("resume", "w1").out == moved
        with up(hosted.directory, "one"):
            assert cli("resume", "w1").out == "w1 is queued: waits for the host one with a free slot\n"


def test_resume_tells_the_run_that_a_queued_agent_waits_for(hosted: Team, cli: Cli) -> None:
    hire(hosted, host="one")
    waits = {"name": "w1", "pid": None, "queued": 1}
    assert cli("resume", "w1", "--json").json == {**waits, "run": 1}
    set_status(hosted, "w1", run=1, pid=5)
    agents.write_exit(hosted.directory.agent("w1"), Exit(run=1, reason="finished", buried=True))
    assert cli("resume", "w1", "--json").json == {**waits, "run": 2}


def test_an_agent_is_not_moved_to_a_host_without_its_engine(hosted: Team) -> None:
    hosts.make(hosted.directory, "one")
    hiring.spawn(hosted, Hire("w1", "explore", "look around", engine="codex", flags=HireOptions(host="one")))
    with up(hosted.directory, "two") as two:
        assert host_commands.how_to_move(hosted, "w1") == ""
        hosts.save(hosted.directory, two.replace(engines=["codex"]))
        assert host_commands.how_to_move(hosted, "w1").endswith(" resume w1 --host two")


def test_a_resume_says_that_no_host_has_the_engine(hosted: Team, cli: Cli) -> None:
    hiring.spawn(hosted, Hire("w1", "explore", "look around", engine="codex"))
    with up(hosted.directory, "two") as two:
        for given in ([], ["--host", "two"]):
            assert cli("resume", "w1", *given).err == "w1: no host that is up has engine:codex; it waits for one\n"
        hosts.save(hosted.directory, two.replace(engines=["codex"]))
        assert cli("resume", "w1").err == ""


def test_a_resume_says_that_the_agents_own_host_lacks_the_engine(hosted: Team, cli: Cli) -> None:
    hosts.make(hosted.directory, "one")
    hiring.spawn(hosted, Hire("w1", "explore", "look around", engine="codex", flags=HireOptions(host="one")))
    with up(hosted.directory, "one"), up(hosted.directory, "two") as two:
        hosts.save(hosted.directory, two.replace(engines=["codex"]))
        said = "w1: the host one has no engine:codex; it waits until that changes\n"
        assert cli("resume", "w1").err == said


def test_an_agent_that_is_bound_to_an_unknown_host_is_resumed_and_waits(hosted: Team, cli: Cli) -> None:
    hire(hosted, host="one")

    def bind(spec: Spec | None) -> Spec:
        assert spec is not None
        return spec.replace(flags=spec.flags.replace(host="gone"))

    agents.change_spec(hosted.directory.agent("w1"), bind)
    ran = cli("resume", "w1")
    assert (ran.code, ran.err) == (0, "")


def test_a_refused_resume_prepares_nothing(hosted: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    hire(hosted)
    prepared: list[str] = []
    monkeypatch.setattr(hiring, "_check_machine", lambda _, kind, *__: prepared.append(kind.name))
    with pytest.raises(UsageError, match="there is no host 'nowhere'"):
        hiring.resume(hosted, "w1", host="nowhere")
    assert prepared == []
    hiring.resume(hosted, "w1")
    assert len(prepared) == 1


def test_a_model_for_an_agent_with_an_engine_ends_no_run(hosted: Team) -> None:
    hiring.spawn(hosted, Hire("w1", "explore", "look around", engine="codex"))
    with alive(hosted, "w1"), pytest.raises(UsageError, match="works with the engine codex"):
        control.retry_with(hosted, "w1", model="opus")
    spec = hosted.directory.agent("w1").spec.load()
    assert spec is not None
    assert (spec.want, spec.run) == ("running", 1)


@pytest.mark.long
def test_chosen_agents_are_resumed_and_no_others(hosted: Team, cli: Cli) -> None:
    for name in ("w1", "w2", "w3"):
        enlist(hosted, name)
    ran = cli("resume", "w1", "w3", "w1")
    assert sorted(ran.out.splitlines()) == [f"w1 is queued: {NONE_UP}", f"w3 is queued: {NONE_UP}"]
    assert sorted(run.agent for run in hosts.wanted(hosted.directory)) == ["w1", "w3"]
    cli("resume", "w1", "w3", "--budget", "$1").refused(ExitCode.USAGE, "--max-reply are for one agent")
    cli("resume", "w1", "w9").refused(ExitCode.USAGE, "w9")


def test_a_run_that_no_host_takes_needs_the_operator(hosted: Team) -> None:
    now = time.time()
    hire(Team(hosted.directory, environment={}, now=lambda: now - LATE_AFTER - 1))
    seen = read_team(hosted.directory)
    assert seen.agents[0].state == "queued"
    assert [(need.kind, need.summary) for need in seen.needs] == [("no_host", NONE_UP)]


@pytest.mark.long
@pytest.mark.files_only("in a database, the command names its address")
def test_the_answer_to_an_agent_without_a_host_starts_one_that_fits(hosted: Team, cli: Cli) -> None:
    now = time.time()
    hire(Team(hosted.directory, environment={}, now=lambda: now - LATE_AFTER - 1), needs=["tpu", "big"])
    assert "→ crewboard host --label big --label tpu   or" in cli("status").out
    line = CommandLine(("--root", "/work"), team="api", address="postgresql://crew@db/crew", offline_hosts=True)
    assert CommandLine(("--root", "/work"), offline=True)("resume w1") == "crewboard --root /work --offline resume w1"
    assert line("resume w1 --host two") == "crewboard --root /work resume w1 --host two"
    assert (
        line("host --label big") == "crewboard --team api --offline host --store postgresql://crew@db/crew --label big"
    )
    with up(hosted.directory, "one"):
        pass
    hire(Team(hosted.directory, environment={}, now=lambda: now - LATE_AFTER - 1), name="w2", host="one")
    assert "→ crewboard host --name one   or" in cli("status").out
    with up(hosted.directory, "two"):
        assert "   or   crewboard resume w2 --host two   or" in cli("status").out


def test_the_supervisor_of_a_team_with_hosts_is_on_them(hosted: Team, cli: Cli) -> None:
    assert cli("supervisor").out == "no host up\n"
    with up(hosted.directory, "one"):
        assert cli("supervisor").out == "1 host\n"
        done = cli("supervisor", "--restart")
        assert done.code == 2
        assert "`crewboard host` on its machine: end and start it there" in done.err
        with pytest.raises(TryLaterError, match="the host one is up; end `crewboard host` there"):
            stop.delete(hosted, purge=True)
    stop.delete(hosted, purge=True)
    assert not hosted.directory.exists()


def test_a_refused_purge_does_not_say_that_it_ends_workers(hosted: Team, cli: Cli) -> None:
    enlist(hosted, "w1")
    with up(hosted.directory, "one"), alive(hosted, "w1"):
        refused = cli("team", "delete", hosted.directory.path.name, "--purge")
    assert refused.code == 75
    assert "end `crewboard host` there, then purge" in refused.err
    assert "ends 1 worker" not in refused.out + refused.err


def test_no_command_starts_or_ends_a_supervisor(hosted: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_client, "_send", lambda *_: pytest.fail("the supervisor got a request"))
    enlist(hosted, "w1")
    with alive(hosted, "w1"):
        ensure_running(hosted.directory)
        supervisor_client.wake_supervisor(hosted.directory)
        supervisor_client.request_start(hosted.directory, "w1", 1, {})
        supervisor_client.request_exit(hosted.directory)
    # As the host of this machine does.
    held = leases.take(hosted.directory.supervisor_lock)
    assert held is not None
    stop.delete(hosted, now=True)
    leases.release(held)


def test_an_agent_that_cannot_be_killed_names_its_host(hosted: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_commands, "LOST_TIMEOUT", 0.1)
    enlist(hosted, "w1")
    held = leases.take(hosted.directory.agent("w1").lease)
    assert held is not None
    leases.sign(held, Lease(pid=1, run=1, host="one"))
    with pytest.raises(
        TryLaterError, match="w1 is still running on one, which is not up: its agents end by themselves"
    ):
        stop.stop_now(hosted, "w1")
    with up(hosted.directory, "one"), pytest.raises(TryLaterError, match="see the log of `crewboard host` there"):
        stop.stop_now(hosted, "w1")
    leases.release(held)


def test_a_resume_waits_for_an_asked_end_also_on_a_lost_host(hosted: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_commands, "LOST_TIMEOUT", 0.0)
    enlist(hosted, "w1")
    held = leases.take(hosted.directory.agent("w1").lease)
    assert held is not None
    leases.sign(held, Lease(pid=1, run=1, host="one"))
    stop.ask_to_stop(hosted, "w1", "that is all")
    ends = iter([True, True, False])
    monkeypatch.setattr(hiring, "_is_ending", lambda *_: next(ends))
    hiring._goes_on(hosted, hosted.directory.agent("w1"))
    assert not list(ends)
    leases.release(held)


def test_a_resume_after_a_kill_says_that_the_host_is_lost(hosted: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    """And looks at the requests, which are in a database, a few times a second."""
    monkeypatch.setattr(host_commands, "LOST_TIMEOUT", 1.0)
    enlist(hosted, "w1")
    agents.want(hosted.directory.agent("w1"), "killed")
    held = leases.take(hosted.directory.agent("w1").lease)
    assert held is not None
    leases.sign(held, Lease(pid=1, run=1, host="one"))
    told: list[float] = []
    looks: list[float] = []
    is_ending = hiring._is_ending
    began = time.monotonic()

    def look(*given: object) -> bool:
        looks.append(0)
        return is_ending(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(hiring, "_is_ending", look)
    telling = Team(hosted.directory, environment={}, tell=lambda _: told.append(time.monotonic() - began))
    with pytest.raises(TryLaterError, match="w1 is still running on one, which is not up"):
        hiring.resume(telling, "w1")
    assert told[0] < 0.9, "before the wait is over"
    assert len(looks) < 10
    leases.release(held)


def test_a_worker_of_another_machine_gets_no_signal(hosted: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    monkeypatch.setattr("crewboard.unix.process.send_signal", lambda pid, *_: sent.append(pid))
    enlist(hosted, "w1")
    held = leases.take(hosted.directory.agent("w1").lease)
    assert held is not None
    leases.sign(held, Lease(pid=77, run=1, boot_id="of another machine", start_ticks=5, host="one"))
    supervisor_client.wake_worker(hosted.directory, "w1")
    assert sent == []
    leases.release(held)


def test_two_machines_without_hosts_do_not_run_agents_at_once(
    machines: tuple[TeamDirectory, TeamDirectory], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The supervisor of one would take the workers of the other for processes of its own machine."""
    here, there = machines
    monkeypatch.setattr(supervisor_client, "_spawn", lambda *_: pytest.fail("a supervisor was started"))
    monkeypatch.setattr(supervisor_client, "START_TIMEOUT", 0.2)
    roster.ensure(here, time.time())
    enlist(Team(here), "w1")
    held = leases.take(here.agent("w1").lease)
    assert held is not None
    leases.sign(held, Lease(pid=77, run=1, boot_id="of another machine", start_ticks=5))
    with pytest.raises(TryLaterError, match=r"on another machine \(w1\): .* start `crewboard host` on each"):
        supervisor_client.wake_supervisor(there)
    ensure_running(there)
    monkeypatch.setattr(os, "pidfd_open", lambda _: pytest.fail("a process of this machine was watched for it"))
    Supervisor._adopt(
        cast("Supervisor", None),
        cast("Watched", SimpleNamespace(agent=there.agent("w1"), status=SimpleNamespace(get=lambda: None))),
    )
    leases.sign(held, Lease(pid=77, run=1, boot_id=process.boot_id(), start_ticks=5))
    monkeypatch.setattr(supervisor_client, "_spawn", lambda *_: None)
    ensure_running(there)
    leases.release(held)


def test_an_agent_on_a_host_is_judged_by_its_lease() -> None:
    spec = Spec(prompt="p", prompt_id="p1", type="code", run=1)
    status = Status(run=1, pid=77, state="working", since=5, boot_id="there", start_ticks=9, host="one")
    gone = states.find_state(states.Evidence(False, spec, status, None, "here", 9.0))
    assert (gone.state, gone.reason) == ("vanished", "exited without an exit record on one; no host has told why")
    ended = Exit(run=1, reason="terminated", signal=15, at=8)
    assert states.find_state(states.Evidence(False, spec, status, ended, "here", 9.0)).state == "crashed"


def test_the_log_of_an_agent_on_a_host_is_there(hosted: Team, cli: Cli) -> None:
    enlist(hosted, "w1")
    set_status(hosted, "w1", boot_id="of another machine", host="one")
    done = cli("log", "w1")
    assert done.code == 2
    assert "the log of w1 is on the host one, where its last run was" in done.err
    assert log_end(hosted.directory.agent("w1")) == ("worker.log is on the host one",)


@pytest.fixture
def machines(database: str, tmp_path: Path) -> Iterator[tuple[TeamDirectory, TeamDirectory]]:
    """Return the directories of one team on two machines."""
    # This process remembers the store of each path, and another test may have had the same path.
    roots = [tmp_path / f"{name}-{uuid4().hex}" for name in ("here", "there")]
    here, there = (TeamDirectory(root / ".crewboard" / "api") for root in roots)
    for machine in (here, there):
        machine.root.mkdir()
    here.make(database)
    there.make(database)
    yield here, there
    close_connections()


def test_what_one_machine_keeps_is_there_for_tools_of_another(machines: tuple[TeamDirectory, TeamDirectory]) -> None:
    here, there = machines
    here.keep_result("w1-1-1.md", b"done")
    (here.results / "w1-check.txt").write_bytes(b"passed")
    here.share_result("w1-check.txt")
    kept = agents.keep_media(here.agent("w1"), "dot.png", "image/png", b"a picture")
    assert not [*there.results.iterdir()]
    for name in ("w1-1-1.md", "w1-check.txt", "absent.md", ".."):
        there.fetch_result(f".crewboard/api/results/{name}")
    there.fetch_result("elsewhere/results/w1-1-1.md")
    assert {path.name: path.read_bytes() for path in there.results.iterdir()} == {
        "w1-1-1.md": b"done",
        "w1-check.txt": b"passed",
    }
    there.local.make_folder("agents/w1")
    assert agents.kept_content(there.agent("w1"), kept.sha256) == b"a picture"
    assert agents.kept_content(there.agent("w1"), "0" * 64) is None


def test_pictures_of_a_conversation_go_with_its_agent(
    machines: tuple[TeamDirectory, TeamDirectory], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, _ = machines
    team = Team(here).ensure()
    enlist(team, "w1")
    agent = here.agent("w1")
    monkeypatch.setattr(agents, "MAX_KEPT", 20)
    names = [agents.keep_media(agent, "dot.png", "image/png", text).sha256 for text in (b"a picture", b"a 2nd one")]
    assert sorted(agent.media.names()) == sorted(names)
    agents.keep_content(agent, b"what was in a file")
    assert not agent.media.names(), "both are older, and there is room for 20 bytes"
    last = agents.keep_media(agent, "dot.png", "image/png", b"the last one").sha256
    assert agent.media.names() == [last]
    stop.remove(team, "w1")
    [aside] = here.removed.names()
    assert "spec.json" in here.removed.below(f"{aside}/agent").names()
    assert not here.removed.below(f"{aside}/agent/media").names()


@pytest.mark.files_only("a team in PostgreSQL has hosts")
@pytest.mark.parametrize(("host", "needs"), [("one", []), (None, ["gpu"])])
def test_a_place_is_refused_in_a_team_without_hosts(
    machines: tuple[TeamDirectory, TeamDirectory], directory: TeamDirectory, host: str | None, needs: list[str]
) -> None:
    here, _ = machines
    assert hosts.check(here, None, []) == ""
    with pytest.raises(
        UsageError, match=r"^this team has no hosts; start one with `crewboard host`, or leave out --ho"
    ):
        hosts.check(here, host, needs)
    with pytest.raises(UsageError, match=r"^this team is kept in files of this machine, and has no hosts; leave out"):
        hosts.check(directory, host, needs)


def test_the_output_of_a_check_reaches_the_other_machines(
    machines: tuple[TeamDirectory, TeamDirectory], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run(*_: object) -> shell.CommandResult:
        return shell.CommandResult("all passed", exit_code=0)

    monkeypatch.setattr(shell, "run", run)
    check = shell.run_check("make test", cast("Sandbox", None), set(), machines[0], "w1", time.time)
    finished = asyncio.run(check)
    kept = machines[1].key(finished.checked.result).get()
    assert kept is not None
    assert b"make test" in kept


@pytest.mark.parametrize("minutes", [10, -10])
def test_a_clock_that_is_off_makes_no_start_late(
    machines: tuple[TeamDirectory, TeamDirectory], monkeypatch: pytest.MonkeyPatch, minutes: int
) -> None:
    """One machine hires and pauses the team's calls, another one with the right time reads that."""
    here, there = machines
    roster.ensure(here, time.time())
    monkeypatch.setattr(host_commands, "QUEUE_TIMEOUT", 0.0)
    with up(here, "one"):
        pass
    with monkeypatch.context() as patch:
        right = time.time
        patch.setattr(time, "time", lambda: right() + 60 * minutes)
        hire(Team(here, environment={}))
        cooldown.extend(here.agent("w1"), "api:443", 50, "overloaded")
        begun = RunState(here.agent("w1"), Spec(prompt="p", prompt_id="p1", type="explore", run=1)).now()
    assert abs(begun - time.time()) < 30
    (seen,) = read_team(there).agents
    assert (seen.state, seen.waits_for_host) == ("queued", None)
    assert abs(seen.since - time.time()) < 30
    pause = cooldown.current(there.agent("w1"), "api:443")
    assert pause is not None
    assert 10 < cooldown.left(pause.replace(boot_id="of another machine"), hosts.now(there)) <= 50


def test_the_clock_of_the_store_is_asked_for_rarely(
    machines: tuple[TeamDirectory, TeamDirectory], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []
    kind = type(machines[0].store)
    ask = kind.now

    def answer(store: Store) -> float:
        asked.append(ask(store))
        return asked[-1]

    monkeypatch.setattr(kind, "now", answer)
    # A busy machine takes its time for the question.
    assert abs(hosts.now(machines[0]) - time.time()) < 30
    hosts.now(machines[0])
    assert len(asked) == 1
    right = time.time
    monkeypatch.setattr(time, "time", lambda: right() + 600)
    assert abs(hosts.now(machines[0]) - right()) < 30
    assert abs(hosts.now(machines[0]) - right()) < 30
    assert len(asked) == 2


def test_nothing_waits_for_the_clock_of_a_store_that_is_known(
    machines: tuple[TeamDirectory, TeamDirectory], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A screen that asks for the time must not stand still while the database is away."""
    hosts.now(machines[0])
    ask, asked, answered = type(machines[0].store).now, list[threading.Thread](), threading.Event()

    def answer(store: Store) -> float:
        asked.append(threading.current_thread())
        assert answered.wait(WAIT_TIMEOUT)
        return ask(store)

    monkeypatch.setattr(type(machines[0].store), "now", answer)
    monkeypatch.setattr("crewboard.store.hosts._CLOCK_INTERVAL", 0.0)
    assert abs(hosts.now(machines[0]) - time.time()) < 30
    monkeypatch.setattr("crewboard.store.hosts._CLOCK_INTERVAL", 60.0)
    assert not answered.is_set()
    answered.set()
    (thread,) = eventually(lambda: asked, "the question")
    assert thread is not threading.current_thread()
    thread.join()


@pytest.fixture
def real(database: str, tmp_path: Path) -> Iterator[Hosts]:
    """Return a team whose hosts are processes, each with a root of its own as on another machine."""
    root = tmp_path / f"operator-{uuid4().hex}"
    root.mkdir()
    with ModelServer() as model:
        found = Hosts(Crew(root, model, store=database), tmp_path, database)
        try:
            yield found
            stop.delete(found.crew.team, now=True)
        finally:
            found.end()
            close_connections()


def test_a_queued_run_begins_when_a_host_comes(real: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for a label, reads what another machine wrote and got, and is stopped and resumed from there."""
    monkeypatch.setattr(host_commands, "QUEUE_TIMEOUT", 0.2)
    crew = real.crew
    with up(crew.directory, "two"):
        assignment = crew.hire("scout", "explore", "say hello", needs=["gpu"])
        assert crew.see("scout").reason == "waits for a host with gpu"
    crew.directory.keep_result("other-1-1.md", b"the result of another machine")
    picture = crew.root / "dot.png"
    picture.write_bytes(PNG)
    messages.send(crew.team, "scout", "look at this", [picture])
    crew.model.give("scout", calls("read_file", path=".crewboard/default/results/other-1-1.md"), says("seen"))
    real.start("one", "gpu")
    crew.answer(assignment)
    (read,) = [event for event in crew.events("scout") if isinstance(event, ToolResult)]
    assert "the result of another machine" in str(read.content)
    assert [data for *_, data in sources(crew.model.asked_by("scout")[-1])] == [PNG]
    stop.stop_now(crew.team, "scout")
    assert hiring.resume(crew.team, "scout") == 2
    assert crew.see("scout").status.host == "one"
    assert not supervisor_client.is_alive(crew.directory)


def test_a_run_that_a_lost_host_began_is_resumed_as_a_new_one(hosted: Team) -> None:
    """Its claim is in the queue again, because the host could not say that it began."""
    hire(hosted, host="one")
    set_status(hosted, "w1", state="working", host="one")
    with up(hosted.directory, "two"):
        assert hiring.resume(hosted, "w1", host="two") == 2
    (wanted,) = hosts.wanted(hosted.directory)
    assert (wanted.run, wanted.needs) == (2, ["host:two"])


@pytest.mark.long
def test_a_lead_chooses_what_the_host_of_an_agent_must_have(real: Hosts) -> None:
    crew = real.crew
    real.start("one")
    hires = calls("spawn_agent", name="kid", agent_type="explore", prompt="go", needs=["tpu"])
    crew.model.give("boss", hires, says("done"))
    assert crew.run("boss", "lead", "hire one", unsafe_no_sandbox=True).text == "done"
    (result,) = [event for event in crew.events("boss") if isinstance(event, ToolResult)]
    assert "kid is queued: waits for a host with tpu. It starts by itself later" in str(result.content)
    stop.stop(crew.team, "kid")
    assert hosts.wanted(crew.directory) == []


@pytest.mark.long
def test_an_agent_of_a_lost_host_is_stopped_and_goes_on_elsewhere(real: Hosts, database: str) -> None:
    """No host is left that could kill it or finalize its end."""
    crew = real.crew
    set_lease_ttl(database, 5.0)
    close_connections()
    real.start("one")
    crew.model.give("scout", says("done"))
    assert crew.run("scout", "explore", "look around").text == "done"
    real.kill("one")
    stop.stop_now(crew.team, "scout")
    assert not leases.is_held(crew.agent("scout").lease)
    run = hiring.resume(crew.team, "scout")
    assert host_commands.queued(crew.team, "scout", run) == f"queued: {NONE_UP}"
    crew.model.give("scout", says("here again"))
    real.start("two")
    eventually(lambda: crew.see("scout").alive, "scout on the other host")
    sent = messages.send(crew.team, "scout", "where are you?")
    assert crew.answer_to("scout", sent.id).text == "here again"
    assert crew.see("scout").status.host == "two"
