"""The files of agents on several machines: pushed, written on one host, found on another, brought home, merged."""

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random

import pytest

from crewboard.commands import changes
from crewboard.commands import hire as hiring
from crewboard.errors import UsageError
from crewboard.records.events import Reply, SnapshotTaken, ToolResult
from crewboard.worktrees import workspaces
from tests import postgres
from tests.cli.shell import Cli, Inside
from tests.crew import Crew, eventually
from tests.model import ModelServer, calls, says
from tests.real_hosts import Hosts
from tests.worktrees.conftest import git, make_root, write

TTL = 6.0


@pytest.fixture
def team(database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hosts]:
    """Make a team in PostgreSQL at the root of a repository, without a host."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    root = make_root(_folder(tmp_path / "operator"))
    git(root, "config", "user.name", "Kim")
    git(root, "config", "user.email", "kim@example.invalid")
    write(root, {"notes.txt": "not committed\n"})
    with ModelServer() as model:
        crew = Crew(root, model, store=database)
        postgres.set_lease_ttl(database, TTL)
        postgres.close_connections()
        found = Hosts(crew, tmp_path, database)
        yield found
        found.end()
        postgres.close_connections()


def _folder(path: Path) -> Path:
    path.mkdir()
    return path


def results_of(crew: Crew, name: str) -> list[ToolResult]:
    return [event for event in crew.events(name) if isinstance(event, ToolResult)]


@pytest.mark.long
def test_work_survives_its_host_and_comes_home(team: Hosts) -> None:
    """The agent writes on one host, which is lost; it goes on with its files on another; its work is merged."""
    crew, cli = team.crew, Inside(team.crew.root)
    pushed = cli("workspace", "push")
    assert pushed.code == 0, pushed.err
    assert "and uncommitted files" in pushed.out
    team.start("one")
    crew.model.give(
        "fixer",
        calls("write_file", path="done.py", content="d = 1\n"),
        calls("bash", command="cat notes.txt; echo more >> done.py; sleep 600"),
        calls("bash", command="cat done.py"),
        says("done"),
    )
    prompt = crew.hire("fixer", "code", "work", unsafe_no_sandbox=True)
    eventually(lambda: "sleep" in crew.see("fixer").doing, "the command")
    (written,) = results_of(crew, "fixer")
    found = crew.directory.carried("fixer").load()
    assert found is not None
    assert written.snapshot == found.commit
    team.kill("one")
    team.lose("hosts/one/lease", "agents/fixer/lease")
    team.start("two")
    crew.wait_for("fixer", "crashed", "vanished", "exited")
    hiring.resume(crew.team, "fixer")
    assert crew.answer(prompt).code == 0
    assert [each.content.splitlines()[0] for each in results_of(crew, "fixer")][2:] == ["d = 1"]
    assert results_of(crew, "fixer")[1].content.startswith("interrupted, outcome unknown")
    crew.wait_for("fixer", "idle")
    assert [event.at for event in crew.events("fixer") if isinstance(event, SnapshotTaken)][-1] == "end"

    listed = cli("changes", "fixer")
    assert listed.code == 0, listed.err
    assert "A" in listed.out
    assert "done.py" in listed.out
    assert "notes.txt" not in listed.out, "that is the user's"
    merged = cli.agree("merge", "fixer")
    assert merged.code == 0, merged.err
    assert (crew.root / "done.py").read_text() == "d = 1\n"
    assert git(crew.root, "log", "-1", "--format=%an %b").startswith("Kim")
    fetched = cli("fetch", "fixer")
    assert fetched.code == 0, fetched.err
    assert git(crew.root, "show", "crewboard/fixer:done.py") == "d = 1"
    assert cli("workspace", "push").code == 0

    crew.model.give("tester", calls("bash", command="cat done.py; ls"), says("done"))
    crew.run("tester", "code", "test it", start_from="fixer", unsafe_no_sandbox=True)
    assert results_of(crew, "tester")[0].content.splitlines()[0] == "d = 1"
    removed = cli("stop", "fixer")
    assert removed.code == 0, removed.err
    assert cli("remove", "fixer").code == 0
    assert not [name for name in crew.directory.bundles.names() if name.startswith("fixer.")]


@pytest.mark.long
def test_a_result_is_journalled_after_its_files_are_safe(team: Hosts) -> None:
    """The store refuses the snapshot: then the conversation does not believe that the file was written."""
    import psycopg

    crew = team.crew
    workspaces.push(crew.directory, "kim", 1.0)
    team.start("one")
    waits = "until [ -e go ]; do sleep 0.02; done; echo 1 >> notes.txt"
    crew.model.give("fixer", calls("bash", command=waits), says("done"))
    crew.hire("fixer", "code", "work", unsafe_no_sandbox=True)
    eventually(lambda: "sleep" in crew.see("fixer").doing, "the command")
    with psycopg.connect(team.url) as connection:
        # The next part of a bundle cannot be written until this ends.
        connection.execute("SELECT 1 FROM crewboard.entries WHERE name = 'bundles' FOR UPDATE")
        tree = team.directory("one").worktree("fixer")
        (tree / "go").touch()
        # Without bubblewrap, commands make no new file at the top.
        eventually(lambda: (tree / "notes.txt").read_text().endswith("1\n"), "the file")
        held = eventually(lambda: _waiting(connection), "the worker that waits for the store")
        assert held
        assert results_of(crew, "fixer") == []
        connection.rollback()
    eventually(lambda: results_of(crew, "fixer"), "the result")
    (written,) = results_of(crew, "fixer")
    found = crew.directory.carried("fixer").load()
    assert found is not None
    assert found.commit == written.snapshot


def _waiting(connection: object) -> bool:
    """Return True if another session waits for this one."""
    rows = connection.execute(  # type: ignore[attr-defined]
        "SELECT 1 FROM pg_stat_activity WHERE pg_backend_pid() = ANY (pg_blocking_pids(pid))"
    ).fetchall()
    return bool(rows)


@pytest.mark.long
def test_without_a_workspace_agents_work_in_the_root_of_the_host(team: Hosts) -> None:
    crew = team.crew
    team.start("one")
    write(team.folder / "one", {"here.txt": "on the host\n"})
    crew.model.give("scout", calls("read_file", path="here.txt"), says("done"))
    hired = crew.hire("scout", "explore", "look")
    assert "workspace push" in hired.note
    crew.answer(hired)
    assert "on the host" in results_of(crew, "scout")[0].content
    with pytest.raises(UsageError, match="no workspace was pushed"):
        crew.hire("other", "code", "work", start_from="scout")
    crew.model.give("second", says("done"))
    assert crew.hire("second", "explore", "look").note == ""


@pytest.mark.long
def test_a_checkout_that_cannot_be_made_is_a_failed_start(team: Hosts) -> None:
    crew = team.crew
    workspaces.push(crew.directory, "kim", 1.0)
    team.start("one")
    for name in crew.directory.bundles.names():
        crew.directory.bundles.below(name).put(b"damaged")
    crew.hire("fixer", "code", "work")
    ended = eventually(crew.agent("fixer").exit.load, "its end")
    assert ended.reason == "failed"
    status = crew.agent("fixer").status.load()
    assert status is not None
    assert (status.last_error or "").startswith("its checkout could not be made: the bundle +base.")
    assert "its checkout could not be made" in team.directory("one").agent("fixer").log.read_text()


def _has_more(crew: Crew, results: int, most: int) -> bool:
    """Return True if there are more results than before, or all."""
    return len(results_of(crew, "fixer")) >= min(results + 1, most)


@pytest.mark.long
def test_files_that_a_conversation_believes_in_are_there_after_any_kill(team: Hosts) -> None:
    """Hosts are killed at random while an agent writes; each file that a result names is in its work at last."""
    crew, count, random = team.crew, 24, Random(7)
    workspaces.push(crew.directory, "kim", 1.0)
    writes = [calls("write_file", path=f"{number}.py", content=f"{number}\n") for number in range(count)]
    crew.model.give("fixer", *writes, says("done"))
    team.start("host0")
    prompt = crew.hire("fixer", "code", "work")
    for round_ in range(1, 5):
        eventually(partial(_has_more, crew, len(results_of(crew, "fixer")), count), "another file")
        time.sleep(random.random() / 4)
        team.kill(f"host{round_ - 1}")
        team.start(f"host{round_}")
        crew.wait_for("fixer", "crashed", "vanished", "exited")
        hiring.resume(crew.team, "fixer")
    assert crew.answer(prompt).code == 0
    crew.wait_for("fixer", "idle")
    found = crew.directory.carried("fixer").load()
    assert found is not None
    changes.take_snapshot(crew.team, "fixer")
    there = set(git(crew.root, "ls-tree", "--name-only", found.commit).splitlines())
    results = results_of(crew, "fixer")
    # An answer that no host had kept when it was killed is lost: no call of it was made.
    called = [block for event in crew.events("fixer") if isinstance(event, Reply) for block in event.content]
    paths = {block["id"]: block["input"]["path"] for block in called if block["type"] == "tool_use"}
    assert [result.tool_use_id for result in results] == list(paths)
    done = {paths[result.tool_use_id] for result in results if not result.is_error}
    assert len(done) >= count - 4
    assert done <= there


@pytest.mark.files_only("a team in PostgreSQL has hosts")
@pytest.mark.long
def test_a_team_without_hosts_has_nothing_to_push_or_fetch(crew_on: Callable[..., Crew], tmp_path: Path) -> None:
    make_root(tmp_path)
    crew, cli = crew_on([says("done")]), Cli(tmp_path)
    crew.run("scout", "explore", "look")
    assert cli("workspace", "--json").out.strip() == "null"
    for arguments, said in (
        (("workspace", "push"), "only a team in PostgreSQL has hosts"),
        (("fetch", "scout"), "scout has no worktree"),
        (("fetch",), "name an agent, or use --all"),
    ):
        done = cli(*arguments)
        assert (done.code, said in done.err) == (2, True), done.err
    assert cli("fetch", "--all").code == 0
    with pytest.raises(UsageError, match="--from needs a team with hosts"):
        crew.hire("eve", "explore", "look", start_from="scout")
