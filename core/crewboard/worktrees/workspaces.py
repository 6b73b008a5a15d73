"""Workspaces of a team with hosts: bring the user's files to agents on other machines, and their work back.

- `push`, at the user, puts HEAD and the uncommitted files into the store. Agents begin with these.
- `prepare`, on a host, makes the checkout of an agent from that, or from the newest snapshot of its work.
- `Carrier.carry`, in a worker, puts a snapshot of the checkout into the store, before the result of the tool that
  changed it is in the journal. So a run on another host finds at least the files that its conversation knows of.
- `fetch`, at the user, brings the newest snapshot into the user's repository, as the refs that merging works with.

On a host, all of this uses a repository of crewboard's own. A repository of the user there is not touched.
"""

import contextlib
import os
import shlex
import tempfile
from dataclasses import dataclass
from pathlib import Path

from crewboard import env
from crewboard.errors import BadDataError, TryLaterError, UsageError
from crewboard.records.agents import Spec, Worktree
from crewboard.records.team import Bundle, Carried, Workspace
from crewboard.store import agents, files, leases, roster
from crewboard.store.layout import HOME, TeamDirectory
from crewboard.worktrees import bundles, checkout
from crewboard.worktrees.changes import FIXED_AUTHOR, is_ancestor, merge_base
from crewboard.worktrees.repository import (
    GitFailedError,
    NoRepositoryError,
    Repository,
    make_workspace,
    open_repository,
    open_workspace,
)
from crewboard.worktrees.snapshot import (
    Snapshot,
    beginning,
    branch_of,
    kept,
    note_missing,
    ref_of,
    take,
)

_OWNER = "+base"
"""The owner of the bundles that `push` writes; no agent can have this name."""

_BASES = "refs/crew/+bases/"
"""The folder of refs for commits with which agents begin; a ref says that the commit's whole history is there."""

_MOST_LOOSE = 6700
"""Objects in single files, in the repository of a host, above which they are packed; like git's `gc.auto`."""

_REMOTE = "refs/crew/+remote/*"


def worktree_on_hosts(team: TeamDirectory, name: str, pushed: Workspace) -> Worktree:
    """Return the worktree of a new agent that begins, on any host, with the workspace `pushed`."""
    objects = f"{HOME}/{team.path.name}/{team.workspace_repository.name}/objects"
    return Worktree(
        branch=branch_of(team, name), base=pushed.commit, objects=objects, folder=pushed.folder, carried=True
    )


# At the user.


def open_home(team: TeamDirectory) -> Repository:
    """Return the user's repository around the root.

    Raises:
        NoRepositoryError: The root is in no repository. On a team with hosts, the text says where to go.
    """
    try:
        return open_repository(team.root)
    except NoRepositoryError as error:
        if not error.missing or team.workspace.load() is None:
            raise
        raise NoRepositoryError(
            f"{team.root} is not in a git repository of the project: {_where_the_project_is(team)}"
        ) from None


def why_unrelated(team: TeamDirectory, repository: Repository, name: str, worktree: Worktree, tip: str = "HEAD") -> str:
    """Return why the work of an agent on a host cannot be of the same project as the commit `tip`; empty if it can.

    It cannot if they have no history in common. In a shallow clone that is not known, and the result is empty.
    """
    known = worktree.carried and repository.has(worktree.base)
    if not known or merge_base(repository, repository.commit(tip), worktree.base) is not None:
        return ""
    if repository.git("rev-parse", "--is-shallow-repository") == "true":
        return ""
    return (
        f"{repository.top} is not the project's repository: it has no history in common with the work of {name}; "
        f"{_where_the_project_is(team)}"
    )


def _where_the_project_is(team: TeamDirectory) -> str:
    there, url = "go to the clone from which the workspace was pushed", team.address
    if url is None:
        return there
    return f"{there}, or `crewboard team join {team.path.name} --store {shlex.quote(url)}` in another clone"


def push(team: TeamDirectory, by: str, now: float, url: str | None = None, *, force: bool = False) -> Workspace:
    """Put HEAD and the uncommitted files into the store, for new agents on hosts to begin with; return the record.

    With `url`, hosts fetch the commits from that remote. `by` and `now` say who pushes, and when. In the user's
    repository only refs of crewboard change. Without `force`, a repository that has no history in common with the last
    push is refused.

    Raises:
        UsageError: The root is in no repository; the repository is too large, or is a shallow clone and there is no
            `url`; the remote lacks the commit; or there is no history in common with the last push.
        TryLaterError: Another process pushes.
        StorageError: The store failed.
    """
    try:
        repository = open_repository(team.root)
    except NoRepositoryError as error:
        raise UsageError(f"there is no workspace to push: {error}") from None
    if url is None and repository.git("rev-parse", "--is-shallow-repository") == "true":
        raise UsageError(f"{repository.top} is a shallow clone: `git fetch --unshallow`, or push with --git URL")
    lease = leases.take(team.key(".locks/workspace"))
    if lease is None:
        raise TryLaterError("another process pushes a workspace; try again when it is done")
    try:
        before = team.workspace.load() if not force else None
        if before is not None:
            # The answer of `merge_base` is kept, also after a fetch of what was missing.
            known = repository.has(before.head)
            if not known or merge_base(repository, repository.commit("HEAD"), before.head) is None:
                raise UsageError(
                    f"{repository.top} has no history in common with {before.head[:12]}, which was pushed before: push "
                    "from a clone of that project, after `git fetch`, or replace it for new agents with --force"
                )
        return _push(team, repository, by, now, url)
    finally:
        leases.release(lease)


def _push(team: TeamDirectory, repository: Repository, by: str, now: float, url: str | None) -> Workspace:
    head = repository.commit("HEAD")
    with tempfile.TemporaryDirectory(prefix="crewboard-index-") as temporary:
        # The index of the user is copied, so that only files that changed are read.
        index = Path(temporary, "index")
        with contextlib.suppress(FileNotFoundError):
            index.write_bytes((repository.directory / "index").read_bytes())
            # By its time git knows which files may have changed in the same second.
            found = (repository.directory / "index").stat()
            os.utime(index, ns=(found.st_atime_ns, found.st_mtime_ns))
        environment = {"GIT_INDEX_FILE": str(index)}
        excluded = f":(exclude,top,glob)**/{HOME}/**"
        repository.in_working_tree("add", "--all", "--", ":/", excluded, environment=environment)
        tree = repository.in_working_tree("write-tree", environment=environment)
    if tree == repository.tree(head):
        commit = head
    else:
        commit = repository.git("commit-tree", tree, "-p", head, "-m", "Uncommitted files", environment=FIXED_AUTHOR)
    repository.keep(f"{_BASES}{commit}", commit)
    if url is not None:
        _require_at(repository, url, head)
    before = team.workspace.load()
    listed = before.bundles if before is not None and before.url == (url or "") else []
    # Where agents began, here and at the users who pushed that.
    specs = (team.agent(name).spec.load_or_none() for name in roster.load(team).names)
    bases = {spec.worktree.base for spec in specs if spec and spec.worktree is not None and spec.worktree.carried}
    needed = [f"{_BASES}{each}" for each in sorted(bases - {commit})]
    here = [ref for ref in needed if repository.ref(ref) is not None]
    if len(listed) >= bundles.MOST_BUNDLES and here == needed:
        listed = []
    known = [each for bundle in listed for each in bundle.commits] + ([head] if url is not None else [])
    refs = [f"{_BASES}{commit}", *(here if not listed else [])]
    for folder in (team.workspaces, team.bundles):
        team.make_folder(folder.name)
    made = bundles.write(team, _OWNER, repository, refs, known)
    below = Path(os.path.realpath(team.root)).relative_to(repository.top)
    pushed = Workspace(
        commit=commit, head=head, branch=repository.branch() or "", folder="" if below == Path() else str(below),
        hash_name=repository.hash_name, url=url or "", bundles=[*listed, *([made] if made else [])], by=by, at=now,
    )  # fmt: skip
    team.workspace.save(pushed, durable=True)
    if made is not None:
        bundles.sweep(team, _OWNER, pushed.bundles)
    return pushed


def _require_at(repository: Repository, url: str, head: str) -> None:
    said = repository.as_user(_environment(), repository.program, "ls-remote", "--heads", "--", url)
    tips = [line.split()[0] for line in said.splitlines() if line]
    if head in tips:
        return
    for tip in tips:
        with contextlib.suppress(GitFailedError):
            repository.git("merge-base", "--is-ancestor", head, tip)
            return
    raise UsageError(f"{url} does not have the commit {head[:12]} in a branch: push it there first, with `git push`")


def _environment() -> dict[str, str]:
    """Return the environment for a git that talks to a remote: that of this process, without the API's key."""
    mine = {name: value for name, value in os.environ.items() if not name.startswith(env.API_PREFIX)}
    # Who can write to the store names the remote. Other protocols start programs.
    return {**mine, "GIT_ALLOW_PROTOCOL": "file:git:http:https:ssh"}


@dataclass(frozen=True)
class Fetched:
    """The newest work of an agent in the user's repository: the snapshot `commit`, taken `at`.

    `missing` describes what the snapshot could not take in. `changed` is True if the repository did not have the
    snapshot before.
    """

    commit: str
    missing: tuple[str, ...]
    at: float
    changed: bool


def fetch(team: TeamDirectory, repository: Repository, name: str, worktree: Worktree) -> Fetched | None:
    """Bring the newest snapshot of an agent from the store into a repository; return None if there is none.

    The repository is the user's, or for a lead on a host, that of crewboard on the host. The latter has the newest
    snapshot already if the agent's last run was on this host.

    Raises:
        BadDataError: git refused the objects, or they are not complete.
        StorageError: The store failed.
    """
    found = team.carried(name).load()
    if found is None:
        return None
    with files.locked(team.local_lock(f"worktree-{name}")):
        before = repository.ref(ref_of(team, name))
        is_on_host = repository.common.name == team.workspace_repository.name
        if is_on_host and _is_here(team, name, agents.last_run(team.agent(name))):
            return Fetched(before or found.commit, tuple(found.missing), found.at, changed=False)
        found = _bring_work(team, repository, name, found)
        if repository.ref(ref_of(team, name, "base")) != worktree.base:
            repository.keep(ref_of(team, name, "base"), worktree.base)
        note_missing(team, name, found.missing)
    return Fetched(found.commit, tuple(found.missing), found.at, before != found.commit)


def branch_at_home(team: TeamDirectory, name: str) -> str:
    """Return the name of the branch with the fetched work of an agent in the user's repository."""
    # Not `crew/NAME`: git would find the snapshot `refs/crew/NAME` under that name, and call it ambiguous.
    return f"crewboard/{branch_of(team, name).removeprefix('crew/')}"


def move_branch(team: TeamDirectory, repository: Repository, name: str, commit: str) -> str:
    """Move the branch of an agent's fetched work to a commit; return why it was not moved, empty if it was.

    It is not moved if the user has committed to it, or has it checked out.
    """
    branch, ours = branch_at_home(team, name), ref_of(team, name, "fetched")
    tip = repository.ref(f"refs/heads/{branch}")
    if tip == commit:
        return ""
    if tip is not None and tip != repository.ref(ours):
        return f"the branch {branch} was not moved, because it has commits of yours: `git merge {commit[:12]}`"
    try:
        # git refuses to move one that is checked out.
        repository.in_working_tree("branch", "--quiet", "--no-track", "--force", "--", branch, commit)
    except GitFailedError as error:
        return f"the branch {branch} was not moved: {error}"
    repository.keep(ours, commit)
    return ""


def has_branch(team: TeamDirectory, repository: Repository, name: str) -> bool:
    """Return True if there is a branch with the fetched work of an agent."""
    is_ours = repository.ref(ref_of(team, name, "fetched")) is not None
    return is_ours and repository.ref(f"refs/heads/{branch_at_home(team, name)}") is not None


def remove_branch(team: TeamDirectory, repository: Repository, name: str) -> None:
    """Remove the branch with an agent's fetched work, unless it is checked out or alone has commits of the user."""
    branch, ours = branch_at_home(team, name), ref_of(team, name, "fetched")
    fetched, tip = repository.ref(ours), repository.ref(f"refs/heads/{branch}")
    if fetched is None:
        return
    if tip is not None:
        places = ("refs/heads", "refs/remotes", "refs/tags")
        having = repository.git("for-each-ref", "--count=2", "--format=%(refname)", "--contains", tip, *places)
        if tip != fetched and having == f"refs/heads/{branch}":
            return
        try:
            # git refuses to remove one that is checked out.
            repository.in_working_tree("branch", "--quiet", "-D", "--", branch)
        except GitFailedError:
            return
    repository.git("update-ref", "-d", ours)


def forget(team: TeamDirectory, name: str) -> None:
    """Remove the snapshots of an agent from the store, if there are any.

    Raises:
        StorageError: They could not be removed.
    """
    if team.carried(name).exists():
        team.carried(name).remove()
        bundles.sweep(team, name, [])


# On both sides.


def _bring_work(team: TeamDirectory, repository: Repository, name: str, found: Carried) -> Carried:
    """Add the objects of an agent's newest snapshot to a repository, and set its refs; return the record of it.

    `found` is the record as it was read before; the returned one may be newer.
    """
    has_setup = repository.ref(ref_of(team, name, "setup")) == (found.setup or None)
    if has_setup and repository.ref(ref_of(team, name)) == found.commit:
        return found
    found = _bring_objects(team, repository, name, found)
    if found.setup:
        repository.keep(ref_of(team, name, "setup"), found.setup)
    else:
        repository.git("update-ref", "-d", ref_of(team, name, "setup"))
    repository.keep(ref_of(team, name), found.commit)
    return found


def _bring_objects(team: TeamDirectory, repository: Repository, name: str, found: Carried) -> Carried:
    """Do what `_bring_work` does, but set no refs.

    Raises:
        BadDataError: git refused the objects, or they are not complete.
    """
    _bring_base(team, repository, found.base)
    latest = found

    def listed() -> list[Bundle]:
        nonlocal latest
        latest = team.carried(name).load() or found
        return latest.bundles

    if not bundles.is_complete(repository, found.commit, [found.base]):
        base = found.base
        bundles.bring(team, repository, listed, lambda commit: bundles.is_complete(repository, commit, [base]))
        found = latest
    for each in filter(None, (found.setup, found.commit)):
        if not bundles.is_complete(repository, each, [found.base]):
            raise BadDataError(f"the snapshot {each[:12]} of {name} is not complete in the store")
    return found


def _bring_base(team: TeamDirectory, repository: Repository, base: str) -> None:
    """Add the commit `base`, with which an agent began, and its history to a repository, from remote and store.

    Raises:
        UsageError: The commit is not in the store, or nothing was pushed, or it has other hashes than the repository.
    """
    if repository.ref(f"{_BASES}{base}") is not None:
        return
    pushed = team.workspace.load()
    if pushed is None:
        raise UsageError("no workspace was pushed: run `crewboard workspace push` where your files are")
    if pushed.hash_name != repository.hash_name:
        raise UsageError(f"the workspace has {pushed.hash_name} hashes, and {repository.top} {repository.hash_name}")
    if pushed.url:
        repository.as_user(
            _environment(), repository.program, "fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--",
            pushed.url, f"+refs/heads/*:{_REMOTE}",
        )  # fmt: skip

    def listed() -> list[Bundle]:
        latest = team.workspace.load()
        return latest.bundles if latest is not None else []

    bundles.bring(team, repository, listed, lambda commit: repository.ref(f"{_BASES}{commit}") is not None)
    known = repository.git("for-each-ref", "--format=%(objectname)", _BASES.rstrip("/")).split()
    for each in [*(each for bundle in listed() for each in bundle.commits), pushed.commit]:
        if each not in known and bundles.is_complete(repository, each, known):
            repository.keep(f"{_BASES}{each}", each)
            known.append(each)
    if repository.ref(f"{_BASES}{base}") is None:
        raise UsageError(
            f"the commit {base[:12]}, at which the agent began, is not in the store: `crewboard workspace push` there"
        )


# On a host.


def prepare(team: TeamDirectory, name: str, spec: Spec, before: int) -> None:
    """Make the checkout of an agent for a run on this host.

    It is made from the newest snapshot of its work, else from what its work begins with. If the agent's last run,
    number `before`, was here, the checkout stays as it is, with the files that git ignores.
    Checkouts of removed agents are removed.

    Raises:
        CrewboardError: The checkout cannot be made; the text says why.
    """
    worktree = spec.worktree
    if worktree is None or not worktree.carried:
        return
    with files.storage_errors(f"cannot make the checkout of {name}"):
        with files.locked(team.local_lock("workspace")):
            repository = _open(team)
            _bring_base(team, repository, worktree.base)
            repository.git("update-ref", "refs/heads/base", worktree.base)
            # Agents that were removed may have been so on another machine.
            known = set(roster.load(team).names)
            for mark in team.worktrees.glob("*.run"):
                if mark.stem not in known and not leases.is_held(team.agent(mark.stem).lease):
                    checkout.remove(team, mark.stem)
                    _forget_refs(team, repository, mark.stem)
            # One of 256 folders, as git estimates. Objects that no ref keeps stay: a checkout may borrow them.
            if sum(1 for _ in (repository.objects / "17").glob("*")) > _MOST_LOOSE // 256:
                repository.git("repack", "-d", "-l", "--quiet")
            found = team.carried(name).load()
            if found is not None and not (mine := _is_here(team, name, before)):
                _bring_work(team, repository, name, found)
        if found is None or not mine:
            checkout.remove(team, name)
            saved = kept(team, repository, name, worktree.base) if found is not None else None
            if saved is None:
                _forget_refs(team, repository, name)
                saved = _beginning(team, repository, name, worktree, spec.flags.start_from)
            _check_out(team, repository, name, worktree, saved)
        files.replace_file(team.worktree_run(name), str(spec.run).encode())


def _open(team: TeamDirectory) -> Repository:
    try:
        return open_workspace(team)
    except NoRepositoryError:
        pushed = team.workspace.load()
        return make_workspace(team, pushed.hash_name if pushed is not None else "sha1")


def _forget_refs(team: TeamDirectory, repository: Repository, name: str) -> None:
    for kind in ("", "setup"):
        repository.git("update-ref", "-d", ref_of(team, name, kind))


def _is_here(team: TeamDirectory, name: str, before: int) -> bool:
    return files.read_file(team.worktree_run(name)) == str(before).encode() and team.worktree(name).is_dir()


def _check_out(team: TeamDirectory, repository: Repository, name: str, worktree: Worktree, saved: Snapshot) -> None:
    copy = roster.load(team).worktree_copy or ()
    checkout.make_of(team, repository, name, saved, Path(worktree.folder), copy, first=False)


def _beginning(
    team: TeamDirectory, repository: Repository, name: str, worktree: Worktree, source: str | None
) -> Snapshot:
    """Return what an agent's checkout begins with: the newest snapshot of the agent `source`, or what was pushed."""
    begin = worktree.base
    if source is not None and (found := team.carried(source).load()) is not None:
        begin = _bring_objects(team, repository, source, found).commit
        repository.keep(ref_of(team, name, "setup"), begin)
    return beginning(repository, begin, worktree.base)


def bring_newest_base(team: TeamDirectory) -> None:
    """Bring the workspace that was pushed last to this host, because an agent may be asked to merge it.

    Raises:
        CrewboardError: It cannot be brought.
    """
    pushed = team.workspace.load()
    if pushed is not None:
        with files.locked(team.local_lock("workspace")):
            _bring_base(team, _open(team), pushed.commit)


def has_pushed(team: TeamDirectory, repository: Repository, commit: str) -> bool:
    """Return True if hosts can get a commit of the user's repository: the last push contains it."""
    pushed = team.workspace.load()
    return pushed is not None and is_ancestor(repository, commit, pushed.commit)


def unpushed(team: TeamDirectory, pushed: Workspace) -> int:
    """Return how many commits of HEAD the workspace `pushed` does not have; 0 if that is not known here."""
    try:
        return int(open_repository(team.root).git("rev-list", "--count", "HEAD", f"^{pushed.head}"))
    # Another project's repository does not know the commit.
    except (NoRepositoryError, GitFailedError):
        return 0


def start_again(team: TeamDirectory, name: str, spec: Spec) -> str:
    """Replace an agent's checkout by the newest state of the agent that it starts from (`spawn --from`).

    A checkout with work of its own stays as it is. Return a notice for the agent; an empty text if there is no newer
    state, the agent was hired without `--from`, or the team has no hosts.

    Raises:
        CrewboardError: The new checkout cannot be made.
    """
    worktree, source = spec.worktree, spec.flags.start_from
    if worktree is None or not worktree.carried or source is None:
        return ""
    with files.locked(team.local_lock("workspace")):
        repository = _open(team)
        found = team.carried(source).load()
        began = repository.ref(ref_of(team, name, "setup")) or worktree.base
        if found is None:
            return f"{source} has no work yet: your checkout begins with what the user pushed."
        # The commit that the checkout was made of, if its setup changed nothing since.
        started = repository.ref(f"{ref_of(team, name, 'setup')}^1")
        if found.commit in (began, started):
            return ""
        mine = take(team, name, spec)
        if mine.tree != repository.tree(began):
            return (
                f"Your checkout has work of your own, so it was not replaced by the newest state of {source}: "
                f"it is still based on an earlier one."
            )
        checkout.remove(team, name)
        repository.git("update-ref", "-d", ref_of(team, name))
        saved = _beginning(team, repository, name, worktree, source)
    _check_out(team, repository, name, worktree, saved)
    files.replace_file(team.worktree_run(name), str(spec.run).encode())
    return f"Your checkout was replaced by the newest state of {source}."


class Carrier:
    """Puts the snapshots of one agent into the store. Only the agent's worker may use it."""

    def __init__(self, team: TeamDirectory, name: str, worktree: Worktree) -> None:
        self._team = team
        self._name = name
        self._worktree = worktree
        self._known: Carried | None = None
        self._is_known = False

    def carry(self, taken: Snapshot, run: int, now: float) -> None:
        """Put a snapshot into the store, unless it is there already; `run` and `now` are recorded with it.

        Raises:
            UsageError: The snapshot is too large.
            StorageError: The snapshot could not be written.
            LostLeaseError: Another run has begun.
        """
        if not self._is_known:
            self._known, self._is_known = self._team.carried(self._name).load(), True
        known = self._known
        repository = open_workspace(self._team)
        if known is not None and (known.commit, known.setup) == (taken.commit, taken.setup):
            return
        self._is_known = False
        listed = known.bundles if known is not None else []
        if len(listed) >= bundles.MOST_BUNDLES or (known is not None and known.base != self._worktree.base):
            listed = []
        # Another process may move the ref of the snapshot meanwhile.
        own = ref_of(self._team, self._name, "carried")
        repository.keep(own, taken.commit)
        refs = [own, *([ref_of(self._team, self._name, "setup")] if taken.setup else [])]
        there = listed[-1].commits if listed else []
        made = bundles.write(self._team, self._name, repository, refs, [self._worktree.base, *there])
        new = Carried(
            commit=taken.commit, base=self._worktree.base, setup=taken.setup, run=run, at=now,
            bundles=[*listed, *([made] if made else [])], missing=list(taken.missing),
        )  # fmt: skip
        self._team.carried(self._name).save(new, durable=True)
        self._known, self._is_known = new, True
        if not listed:
            bundles.sweep(self._team, self._name, new.bundles)
