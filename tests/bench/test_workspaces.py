"""The time that the files of an agent take to a host and back, on this repository and a store in files."""

import shutil
import subprocess
from functools import partial
from pathlib import Path

import pytest

from crewboard.records.agents import HireOptions, Spec
from crewboard.records.team import Member
from crewboard.store import roster
from crewboard.store.layout import TeamDirectory
from crewboard.worktrees import snapshot, workspaces
from crewboard.worktrees.repository import open_repository
from tests.bench.figures import ROOT, Figures, median, median_ms

pytestmark = [pytest.mark.bench, pytest.mark.long, pytest.mark.xdist_group("bench")]

ROUNDS = 15
TOLERANCE = 3.0
COMMIT = "git add --all && git -c user.name=k -c user.email=k@example.invalid commit -qm note"


def test_files_to_a_host_and_back(figures: Figures, tmp_path: Path) -> None:
    root = tmp_path / "project"
    subprocess.run(["git", "clone", "-q", "--no-local", str(ROOT), str(root)], check=True)
    team = TeamDirectory(root / ".crewboard" / "default")
    team.make()
    roster.create(team, "", 1.0)
    pushing = median_ms(lambda: workspaces.push(team, "kim", 1.0), 1)
    pushed = team.workspace.load()
    assert pushed is not None
    worktree = workspaces.worktree_on_hosts(team, "bob", pushed)
    spec = Spec(prompt="work", prompt_id="bob", type="code", flags=HireOptions(worktree=True), worktree=worktree)
    roster.put(team, Member(name="bob", type="code"))
    team.make_folder("agents/bob")
    team.agent("bob").spec.save(spec)
    figures.add("pushing this repository", pushing, "ms")
    figures.add("the bundle of this repository", sum(each.size for each in pushed.bundles) / 2**20, "MiB")
    figures.add("a checkout on a new host", median_ms(lambda: workspaces.prepare(team, "bob", spec, 0), 1), "ms")

    carrier, note = workspaces.Carrier(team, "bob", worktree), team.worktree("bob") / "NOTE"
    carrier.carry(snapshot.take(team, "bob", spec), 1, 1.0)
    same = median_ms(lambda: snapshot.take(team, "bob", spec), ROUNDS)
    changed, carried, plain = [], [], []
    for number in range(ROUNDS):
        (root / "NOTE").write_text(f"{number}\n")
        plain.append(median_ms(lambda: subprocess.run(["sh", "-c", COMMIT], cwd=root, check=True), 1))
        note.write_text(f"{number}\n")
        changed.append(median_ms(lambda: snapshot.take(team, "bob", spec), 1))
        taken = snapshot.take(team, "bob", spec)
        carried.append(median_ms(partial(carrier.carry, taken, 1, 1.0), 1))
    found = team.carried("bob").load()
    assert found is not None
    base = ("git add, commit", median(plain))
    shown = [
        figures.add("a snapshot that finds nothing new", same, "ms", base, target=6),
        figures.add("a snapshot of one changed file", median(changed), "ms", base, target=10),
        figures.add("its way into the store", median(carried), "ms", base, target=4),
    ]
    figures.add("the bundle of that snapshot", found.bundles[-1].size, "bytes")

    repository = open_repository(root)
    fetching = median_ms(lambda: workspaces.fetch(team, repository, "bob", worktree), 1)
    figures.add("fetching the work of an agent", fetching, "ms")
    # As on another host that has the base.
    shutil.rmtree(team.worktree("bob"))
    elsewhere = median_ms(lambda: workspaces.prepare(team, "bob", spec, 7), 1)
    figures.add("its checkout on another host", elsewhere, "ms", target=1000)
    assert all(figure.within(TOLERANCE) for figure in shown)
