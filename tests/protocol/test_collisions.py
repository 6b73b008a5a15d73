"""Collisions of agents, found from what their workers show and what git said."""

import pytest

from crewboard.protocol.collisions import (
    AgentWork,
    Collision,
    find_collisions,
    find_objection,
    plan_overlaps,
    without_undone,
)
from crewboard.records.agents import Spec, Status, Undone, Work, Worktree
from crewboard.records.base import JsonValue
from crewboard.records.requests import Request
from crewboard.records.team import Collisions, ComparedPair, Member, Unmerged
from crewboard.store import roster
from crewboard.store.layout import TeamDirectory


def work(name: str, *, ended: float | None = None, worktree: bool = False, **files: float) -> AgentWork:
    """Return the work of an agent that changed each file once, `a` for `a.py`."""
    changed = {f"{file}.py": at for file, at in files.items()}
    return AgentWork(name, Work(files=changed, ended=ended), worktree)


def found(
    *agents: AgentWork, recorded: Collisions | None = None
) -> list[tuple[tuple[str, str], tuple[str, ...], float]]:
    return [(each.agents, each.files, each.since) for each in find_collisions(agents, recorded or Collisions())]


def test_two_open_assignments_that_changed_a_file_collide() -> None:
    assert found(work("bob", a=5, b=6), work("amy", a=7, c=8)) == [(("amy", "bob"), ("a.py",), 7)]


def test_each_pair_is_one_collision_with_all_of_its_files() -> None:
    assert found(work("amy", a=1, b=2, c=3), work("bob", a=4, b=5), work("cid", c=9)) == [
        (("amy", "bob"), ("a.py", "b.py"), 5),
        (("amy", "cid"), ("c.py",), 9),
    ]


@pytest.mark.parametrize(("ended", "collide"), [(6.0, False), (7.0, False), (8.0, True), (None, True)])
def test_the_second_change_collides_only_while_the_first_work_is_open(ended: float | None, collide: bool) -> None:
    assert bool(found(work("amy", a=5, ended=ended), work("bob", a=7))) is collide
    assert bool(found(work("bob", a=7), work("amy", a=5, ended=ended))) is collide


def test_a_collision_outlives_the_assignments_that_made_it() -> None:
    assert found(work("amy", a=5, ended=20), work("bob", a=7, ended=30))


def test_an_agent_in_a_worktree_and_one_in_the_shared_tree_collide() -> None:
    assert found(work("amy", worktree=True, a=5), work("bob", a=7)) == [(("amy", "bob"), ("a.py",), 7)]


def test_a_file_counts_until_its_changes_are_reversed() -> None:
    own = Work(files={"a.py": 1, "b.py": 1, "c.py": 1}, newest={"a.py": "2", "b.py": "3"})
    assert list(without_undone(own, Undone(changes=["1", "3"])).files) == ["a.py", "c.py"]
    assert list(without_undone(own, Undone(changes=["1", "2", "3"])).files) == ["c.py"]
    assert without_undone(own, None) == own


def test_two_worktrees_collide_if_git_says_so_and_only_then() -> None:
    amy, bob = work("amy", worktree=True, a=5), work("bob", worktree=True, a=7)
    assert not found(amy, bob)
    pair = ComparedPair(agents=("amy", "bob"), commits=("1", "2"), files=["b.py"], since=3)
    recorded = Collisions(pairs=[pair])
    assert find_collisions([amy, bob], recorded) == (Collision(("amy", "bob"), ("b.py",), 3, in_worktrees=True),)
    assert not found(amy, recorded=recorded), "bob is gone"
    assert not found(amy, work("bob"), recorded=recorded), "bob was hired anew, without a worktree"
    assert not found(amy, bob, recorded=Collisions(pairs=[pair.replace(files=[])]))


def request(author: str, *files: str) -> Request:
    payload: dict[str, JsonValue] = {"plan": "# Do it", "files": list(files)}
    return Request(id=f"plan-{author}", type="plan_approval", from_=author, to="operator", payload=payload)


def test_plans_that_name_the_same_file_are_told_of() -> None:
    works = {
        "amy": Work(planned=["src/", "README"], planned_at=5),
        "bob": Work(planned=["src/a.py"], planned_at=5, ended=6),
        "cid": None,
        "dan": Work(planned=["src"], planned_at=9),
    }
    pending = [request("cid", "a.py", "src/a.py"), request("dan", "src/a.py"), request("amy", "b.py")]
    found = plan_overlaps(pending[0], works, pending, "/root")
    assert [(each.agent, each.files, each.approved) for each in found] == [
        ("amy", ("src/a.py",), True),
        ("dan", ("src/a.py",), True),
    ]
    assert plan_overlaps(request("amy", "README"), works, pending, "/root") == [], "its own plan of before"
    (waiting,) = plan_overlaps(request("eve", "/root/a.py"), works, pending, "/root")
    assert waiting.describe() == "the waiting plan of cid names /root/a.py, too"


class Team:
    """A team on disk with the statuses that workers show."""

    def __init__(self, directory: TeamDirectory, policy: str) -> None:
        self.directory = directory
        roster.change(directory, lambda config: setattr(config, "collisions", policy))

    def put(self, name: str, shown: Work, folder: str | None = None) -> None:
        """Put an agent on the roster; with `folder`, it works in that folder of a worktree."""
        agent = self.directory.agent(name)
        agent.path.mkdir(parents=True, exist_ok=True)
        worktree = Worktree(branch=f"crew/{name}", base="1", folder=folder) if folder is not None else None
        agent.spec.save(Spec(prompt="", prompt_id="", type="code", worktree=worktree))
        agent.status.save(Status(run=1, pid=1, state="idle", since=0, work=shown))
        roster.put(self.directory, Member(name=name, type="code"))

    def says(self, file: str, own: Work | None = None, name: str = "me") -> str:
        found = find_objection(self.directory, name, file, own, own.files.get(file) if own is not None else None)
        return found.text if found is not None else ""


def changed(file: str, at: float, ended: float | None = None) -> Work:
    return Work(files={file: at}, ended=ended)


def test_hold_asks_about_open_work_and_once_for_each_other_agent(directory: TeamDirectory) -> None:
    team = Team(directory, "hold")
    team.put("me", changed("a.py", 1))
    assert team.says("a.py") == ""
    team.put("amy", changed("a.py", 5))
    assert team.says("a.py", changed("a.py", 4)) == "amy changed it in work that is not finished"
    assert team.says("a.py", changed("a.py", 6)) == "", "allowed before"
    assert team.says("b.py") == ""
    team.put("bob", changed("a.py", 7))
    assert "bob" in team.says("a.py", changed("a.py", 6))
    assert "amy" not in team.says("a.py", changed("a.py", 6))
    team.put("bob", changed("a.py", 7, ended=8))
    assert team.says("a.py", changed("a.py", 6)) == ""
    Team(directory, "warn")
    assert team.says("a.py") == ""


def test_hold_asks_about_work_in_a_worktree_until_it_is_merged(directory: TeamDirectory) -> None:
    team = Team(directory, "hold")
    team.put("amy", Work(ended=9), folder="sub")
    unmerged = Unmerged(commit="1", state="", files=["sub/a.py", "b.py"])
    directory.collisions.save(Collisions(unmerged={"amy": unmerged}))
    assert team.says("a.py") == "amy changed it in work that is not merged"
    assert team.says("b.py") == "", "b.py of the repository is not the b.py of this root"
    assert team.says("a.py", changed("a.py", 4)) == "", "allowed before"
    directory.collisions.save(Collisions())
    assert team.says("a.py") == ""


def test_the_earlier_claim_counts_and_ends_with_the_result(directory: TeamDirectory) -> None:
    team = Team(directory, "claims")
    team.put("amy", Work(planned=["src", "./x.py"], planned_at=5))
    assert "amy holds src/a.py" in team.says("src/a.py")
    assert "amy holds x.py" in team.says("x.py")
    assert "amy holds" in team.says("src/a.py", Work(planned=["src/a.py"], planned_at=6))
    assert team.says("src/a.py", Work(planned=["src/a.py"], planned_at=4)) == ""
    assert team.says("src/a.py", Work(planned=["src/a.py"], planned_at=5), name="abe") == "", "one of two at once"
    assert team.says("srcs/a.py") == ""
    team.put("amy", Work(planned=["src"], planned_at=5, ended=6))
    assert team.says("src/a.py") == ""


def test_a_claim_in_a_worktree_is_about_the_same_file(directory: TeamDirectory) -> None:
    team = Team(directory, "claims")
    team.put("amy", Work(planned=[str(directory.worktree("amy") / "sub/a.py"), "b.py"], planned_at=5), folder="sub")
    assert "amy holds a.py" in team.says("a.py")
    assert "amy holds b.py" in team.says("b.py")
    assert team.says("c.py") == ""
