"""Keep `collisions.json`: which agents with worktrees changed the same lines, for needs and permissions.

It is updated after each snapshot, merge, undo and discard, by the process that did that; readers run no git. The
changed files of an agent are listed again only if its snapshot, the user's branch or the agent's merges changed, and
the work of two agents is merged again, as a trial, only if the snapshot of one of them changed.
"""

import contextlib
import os
from itertools import combinations

from crewboard.records.agents import Worktree
from crewboard.records.team import Collisions, ComparedPair, Unmerged
from crewboard.store import files as store_files
from crewboard.store import roster
from crewboard.store.layout import TeamDirectory
from crewboard.worktrees import merging, snapshot
from crewboard.worktrees.changes import begin_of, merge_base, merged
from crewboard.worktrees.repository import Repository, open_repository

MAX_FILES = 2000
"""Most files of one agent that are recorded. An agent that changed more is compared with all others."""


def update(team: TeamDirectory, now: float) -> Collisions:
    """Bring `collisions.json` up to date, and return its content. Of a foreign team, the file is not written.

    `now` becomes the time of new collisions.

    Raises:
        NoRepositoryError: The root is in no repository.
        GitFailedError: git cannot read the repository.
    """
    repository = open_repository(team.root)
    with contextlib.ExitStack() as held:
        writable = not team.is_foreign()
        if writable:
            held.enter_context(store_files.locked(team.local_lock("collisions")))
        known = team.collisions.load_or_none() or Collisions()
        lines = repository.git("for-each-ref", "--format=%(refname) %(objectname)", "refs/crew").splitlines()
        refs = dict(line.split(" ", 1) for line in lines)
        head = repository.commit("HEAD")
        accepted = merging.load(team).acceptances
        unmerged = {}
        for name in roster.load(team).names:
            spec = team.agent(name).spec.load_or_none()
            commit = refs.get(snapshot.ref_of(team, name))
            if spec is None or spec.worktree is None or commit is None:
                continue
            setup = refs.get(snapshot.ref_of(team, name, "setup"))
            last_merged = refs.get(snapshot.ref_of(team, name, "merged"))
            mine = (f"{each.id}:{each.undone or ''}:{each.discarded:d}" for each in accepted if each.agent == name)
            state = " ".join((commit, head, setup or "-", last_merged or "-", *mine))
            before = known.unmerged.get(name)
            unmerged[name] = (
                before
                if before is not None and (before.commit, before.state) == (commit, state)
                else _unmerged(team, repository, name, spec.worktree, head, state)
            )
        pairs = [_merge(repository, names, unmerged, known, now) for names in combinations(sorted(unmerged), 2)]
        found = Collisions(unmerged=unmerged, pairs=[pair for pair in pairs if pair is not None])
        if writable and found != known:
            team.collisions.save(found)
    return found


def partners(found: Collisions, name: str) -> tuple[str, ...]:
    """Return the agents whose work does not merge with that of the agent `name`."""
    return tuple(
        pair.agents[1] if name == pair.agents[0] else pair.agents[0]
        for pair in found.pairs
        if pair.files and name in pair.agents
    )


def _unmerged(
    team: TeamDirectory,
    repository: Repository,
    name: str,
    worktree: Worktree,
    head: str,
    state: str,
) -> Unmerged:
    taken = snapshot.kept(team, repository, name, worktree.base)
    if taken is None:
        return Unmerged(commit="", state=state)
    base = merging.accepted_base(team, repository, name, head, taken) or begin_of(repository, head, taken)
    answer = repository.git("diff-tree", "-r", "-z", "--no-renames", "--numstat", base, taken.commit)
    changed = [each.split("\t", 2) for each in answer.split("\0") if each]
    return Unmerged(
        commit=taken.commit,
        state=state,
        files=[_text(path) for _, _, path in changed[:MAX_FILES]],
        more=len(changed) > MAX_FILES,
        # A binary file has `-` in place of numbers.
        added=sum(int(added) for added, _, _ in changed if added.isdigit()),
        removed=sum(int(removed) for _, removed, _ in changed if removed.isdigit()),
    )


def _text(name: str) -> str:
    """Return a file name with bytes that are not UTF-8 replaced, because a record cannot have them."""
    return os.fsencode(name).decode("utf-8", "replace")


def _merge(
    repository: Repository, names: tuple[str, str], unmerged: dict[str, Unmerged], known: Collisions, now: float
) -> ComparedPair | None:
    """Return the result of a trial merge of two agents' work; None if they have changed no file in common.

    The result in `known` is used again if both snapshots are the same.
    """
    one, other = (unmerged[name] for name in names)
    both = sorted(set(one.files) & set(other.files))
    if not (one.files and other.files and (one.more or other.more or both)):
        return None
    before = next((pair for pair in known.pairs if pair.agents == names), None)
    if before is not None and before.commits == (one.commit, other.commit):
        files = before.files
    elif (base := merge_base(repository, one.commit, other.commit)) is None:
        files = both
    else:
        files = [_text(name) for name in merged(repository, one.commit, other.commit, base).conflicts]
    if not (one.more or other.more):
        # What is merged into the user's branch already is no matter between the two.
        files = [file for file in files if file in one.files and file in other.files]
    old = before.files if before is not None else []
    since = before.since if before is not None and set(files) <= set(old) else now
    return ComparedPair(agents=names, commits=(one.commit, other.commit), files=files, since=since)
