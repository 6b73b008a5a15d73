"""The worktrees that do not merge with each other: recorded, compared again only where something changed, told of."""

import os
from pathlib import Path

import pytest

from crewboard.commands import changes, messages
from crewboard.readmodel.needs import to_acknowledge
from crewboard.readmodel.reader import read_team
from crewboard.readmodel.team import AgentView, Need
from crewboard.records.processes import Exit
from crewboard.records.team import Collisions
from crewboard.store import agents
from crewboard.worktrees import collisions
from crewboard.worktrees.changes import merged as merged_of
from crewboard.worktrees.repository import Repository
from crewboard_tui.render import table
from crewboard_tui.render.lines import plain
from crewboard_tui.views.roster import AgentRow, lay_out
from tests.cli.shell import Inside
from tests.matrix import default
from tests.worktrees.home import AgentWork, Home


@pytest.fixture
def three(home: Home) -> tuple[AgentWork, AgentWork, AgentWork]:
    """Return three agents: the first two changed the same line, the third one another line of that file."""
    amy, bob, cid = home.hire("amy"), home.hire("bob"), home.hire("cid")
    for agent, line in ((amy, 7), (bob, 7), (cid, 19)):
        agent.write("api.py", home.read("api.py").replace(f"line {line}\n", f"{agent.name}\n"))
        agent.snap()
    return amy, bob, cid


def recorded(home: Home) -> Collisions:
    found = home.directory.collisions.load()
    assert found is not None
    return found


def needs(home: Home) -> list[Need]:
    return [need for need in read_team(home.directory).needs if need.kind == "collision"]


@pytest.fixture
def merges(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Return the pairs of commits that git is asked to merge, and forget what earlier calls returned."""
    asked: list[tuple[str, str]] = []

    def merged(repository: Repository, ours: str, theirs: str, base: str) -> object:
        asked.append((ours, theirs))
        return merged_of(repository, ours, theirs, base)

    monkeypatch.setattr(collisions, "merged", merged)
    return asked


def test_a_pair_is_merged_again_only_after_a_new_snapshot(
    home: Home, three: tuple[AgentWork, ...], merges: list[tuple[str, str]]
) -> None:
    amy, bob, cid = three
    collisions.update(home.directory, 5.0)
    assert sorted(merges) == sorted([(a.snapshot, b.snapshot) for a, b in ((amy, bob), (amy, cid), (bob, cid))])
    merges.clear()
    collisions.update(home.directory, 6.0)
    assert merges == []
    home.write("README", "more\n")
    home.commit("yours")
    collisions.update(home.directory, 7.0)
    assert merges == [], "a commit of the user changes no snapshot"
    cid.write("new", "x\n")
    cid.snap()
    collisions.update(home.directory, 8.0)
    assert merges == [(amy.snapshot, cid.snapshot), (bob.snapshot, cid.snapshot)]


def test_nothing_is_compared_that_has_no_file_in_common(home: Home, merges: list[tuple[str, str]]) -> None:
    for name in ("amy", "bob"):
        agent = home.hire(name)
        agent.write(f"{name}.py", "x\n")
        agent.snap()
    assert collisions.update(home.directory, 5.0).pairs == []
    assert merges == []


def test_one_need_for_each_pair_names_both_and_the_files(home: Home, three: tuple[AgentWork, ...]) -> None:
    assert needs(home) == [], "status runs no git"
    collisions.update(home.directory, 5.0)
    (need,) = needs(home)
    assert (need.agent, need.other, need.files, need.since) == ("amy", "bob", ("api.py",), 5.0)
    assert need.summary == "collides with bob in api.py"
    view = read_team(home.directory)
    assert {agent.name: agent.collides_with for agent in view.agents} == {"amy": ("bob",), "bob": ("amy",), "cid": ()}
    run = Inside(home.root)
    shown = run("status", "--json").json
    (collision,) = [each for each in shown["needs_you"] if each["kind"] == "collision"]
    told = {key: collision[key] for key in ("kind", "agent", "other", "files")}
    assert told == {"kind": "collision", "agent": "amy", "other": "bob", "files": ["api.py"]}
    assert {each["name"]: each["collides_with"] for each in shown["agents"]}["bob"] == ["amy"]


@pytest.mark.long
def test_the_changed_lines_that_are_not_merged_are_shown_for_each_agent(home: Home) -> None:
    amy, _ = home.hire("amy"), home.hire("bob")
    amy.write("README", "one\ntwo\nthree\n")
    amy.write("picture", "\0")
    amy.snap()
    collisions.update(home.directory, 5.0)
    run = Inside(home.root)
    shown = {each["name"]: each["unmerged"] for each in run("status", "--json").json["agents"]}
    removed = len((home.root / "README").read_text().splitlines())
    assert shown == {"amy": {"added": 3, "removed": removed}, "bob": None}
    agents = sorted(read_team(home.directory).agents, key=lambda agent: agent.name)
    assert _cells(agents[:1]) == [f"+3 −{removed}"]
    assert not _cells(agents[1:]), "no column without data"
    assert run.agree("merge", "amy", "--now").code == 0
    assert not _cells(list(read_team(home.directory).agents))


def _cells(agents: list[AgentView]) -> list[str]:
    """Return what the Board shows at 120 columns in its column of changes; nothing without that column."""
    columns = [column for column in lay_out(agents, 120, 118) if column.title == "CHANGES"]
    return [plain(table.cells(columns, AgentRow(agent))).strip() for agent in agents] if columns else []


@pytest.mark.long
def test_the_ways_out_of_a_collision_work(home: Home, three: tuple[AgentWork, ...]) -> None:
    collisions.update(home.directory, 5.0)
    run = Inside(home.root)
    said = run("status").out
    for command in ("changes amy --diff", "send amy TEXT", "pause amy", "ack amy"):
        assert command in said
    assert run("changes", "amy", "--diff").code == 0
    assert run("send", "amy", "bob changes api.py, too").code == 0


@pytest.mark.long
@pytest.mark.parametrize("name", default(["amy", "bob"], "bob"))
def test_a_seen_collision_needs_you_again_only_with_another_file(
    home: Home, three: tuple[AgentWork, ...], name: str
) -> None:
    amy, bob, _ = three
    collisions.update(home.directory, 5.0)
    assert Inside(home.root)("ack", name).code == 0
    assert needs(home) == []
    assert read_team(home.directory).agents[0].collides_with == ("bob",), "it is still there"
    amy.write("fine.py", "x\n")
    amy.snap()
    collisions.update(home.directory, 6.0)
    assert needs(home) == []
    for agent in (amy, bob):
        agent.write("README", f"{agent.name}\n")
        agent.snap()
    collisions.update(home.directory, 7.0)
    assert [each.files for each in needs(home)] == [("README", "api.py")]


@pytest.mark.long
def test_a_merge_ends_a_collision_and_its_undo_brings_it_back(home: Home, three: tuple[AgentWork, ...]) -> None:
    changes.list_changes(home.team)
    assert len(needs(home)) == 1
    changes.merge(home.team, "amy", now=True)
    assert needs(home) == []
    changes.undo(home.team)
    assert len(needs(home)) == 1


@pytest.mark.long
def test_a_discard_ends_a_collision(home: Home, three: tuple[AgentWork, ...]) -> None:
    changes.list_changes(home.team)
    assert len(needs(home)) == 1
    changes.discard(home.team, "bob")
    assert needs(home) == []
    assert "bob" not in recorded(home).unmerged


@pytest.mark.long
def test_a_removed_agent_collides_no_more(home: Home, three: tuple[AgentWork, ...]) -> None:
    changes.list_changes(home.team)
    home.forget("bob")
    assert needs(home) == []


def test_what_you_merged_is_no_collision_between_two(home: Home) -> None:
    home.write("long", home.read("api.py"))
    home.commit("a file that both change in different lines")
    amy, bob = home.hire("amy"), home.hire("bob")
    for agent in (amy, bob):
        agent.write("api.py", f"{agent.name}\n")
    amy.snap()
    bob.write("long", home.read("long").replace("line 19\n", "bob\n"))
    bob.snap()
    changes.merge(home.team, "amy", now=True)
    amy.write("long", home.read("long").replace("line 1\n", "amy\n"))
    amy.snap()
    found = {each.agent: each for each in changes.list_changes(home.team)}
    assert found["amy"].collides_with == ()
    assert not found["bob"].applies, "it conflicts with the branch instead"


def test_an_agent_with_very_many_files_is_compared_all_the_same(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collisions, "MAX_FILES", 2)
    for name in ("amy", "bob"):
        agent = home.hire(name)
        for path in (f"a-{name}", f"aa-{name}", "api.py"):
            agent.write(path, f"{name}\n")
        agent.snap()
    found = collisions.update(home.directory, 5.0)
    assert found.unmerged["amy"].more
    assert [pair.files for pair in found.pairs] == [["api.py"]]


@pytest.mark.parametrize("name", default([b"caf\xe9", b"a\nb", b" x "], b"a\nb"))
def test_any_file_name_can_collide(home: Home, name: bytes) -> None:
    for agent in (home.hire("amy"), home.hire("bob")):
        agent.write(name, f"{agent.name}\n")
        agent.snap()
    collisions.update(home.directory, 5.0)
    (need,) = needs(home)
    assert need.files == (os.fsencode(os.fsdecode(name)).decode("utf-8", "replace"),)
    assert Inside(home.root)("status").code == 0


def test_a_foreign_team_is_compared_but_not_written_to(
    home: Home, three: tuple[AgentWork, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(home.directory), "is_foreign", lambda _: True)
    assert next(pair.files for pair in collisions.update(home.directory, 5.0).pairs) == ["api.py"]
    assert not Path(home.directory.collisions.on_disk).exists()


def test_the_acknowledgement_of_a_death_leaves_a_collision(home: Home, three: tuple[AgentWork, ...]) -> None:
    agents.write_exit(home.directory.agent("amy"), Exit(run=1, signal=9, reason="died", at=5.0, buried=True))
    collisions.update(home.directory, 5.0)
    view = read_team(home.directory)
    assert [need.kind for need in to_acknowledge(view, "amy")] == ["death"]
    messages.acknowledge(home.team, "amy")
    assert len(needs(home)) == 1
