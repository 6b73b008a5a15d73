"""Put files back that an agent changed: in the shared tree what its file tools wrote, in its own checkout anything.

All files are checked first: if one cannot be put back, none is changed. After a kill in the middle, the same command
finishes the work. To undo a merge into a branch of the user is another command, `changes.undo`.
"""

import hashlib
import os
import stat
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from crewboard.commands.changes import note_collisions, read_changes, require_idle, require_worktree
from crewboard.commands.context import command_for, require_here
from crewboard.commands.messages import post
from crewboard.errors import BadDataError, UsageError
from crewboard.records.agents import Undone
from crewboard.records.base import counted
from crewboard.records.events import FileKept, Intake, SnapshotTaken, ToolResult
from crewboard.store import agents, journal
from crewboard.store import files as store_files
from crewboard.store.layout import AgentDirectory
from crewboard.untrusted import without_surrogates
from crewboard.worktrees import put_back, snapshot
from crewboard.worktrees.put_back import PutBackFile, Tree
from crewboard.worktrees.repository import Repository, open_repository

if TYPE_CHECKING:
    from crewboard.commands.context import Team

LAST = "last"
"""The value of `assignment` that means the last one that changed something."""


@dataclass(frozen=True)
class PutBack:
    """The outcome of putting files of an agent back, done or previewed.

    `assignment` is the one that was reversed; None if single files or a snapshot were put back. `snapshot` is the
    commit with the agent's whole checkout as it was before; None if the agent has no worktree.
    """

    agent: str
    files: tuple[PutBackFile, ...]
    assignment: str | None = None
    snapshot: str | None = None


def undo_file_tools(
    team: "Team", name: str, *, assignment: str | None = None, path: str | None = None, dry_run: bool = False
) -> PutBack:
    """Reverse what the file tools of an agent did in the shared tree in its last assignment, or in `assignment`.

    The next call reverses the assignment before. With `path`, reverse only the changes of that file. What commands
    changed stays. With `dry_run`, only check that it would work.

    Raises:
        UsageError: There is no such agent, or nothing to reverse.
        BadDataError: A file is not as the agent left it, or its old content was not kept. Nothing was changed.
        TryLaterError: The agent is at work.
    """
    agent = team.agent(name)
    team.directory.require_adopted()
    require_here(team, name, f"tell {name} what to put back")
    require_idle(team, name, "wait for it, or stop it")
    failure = f"cannot put files back in {team.directory.root}"
    with store_files.locked(team.directory.local_lock(f"undo-{name}")), store_files.storage_errors(failure):
        done = set((agent.undone.load() or Undone()).changes)
        chosen = None if assignment == LAST else assignment
        ident, changed = _chosen(name, _by_assignment(agent, done), chosen, path)
        with Tree(Path(os.path.realpath(team.directory.root))) as tree:
            contents, problems = {}, []
            for each in changed:
                content = None if each.before is None else agents.kept_content(agent, each.before)
                contents[each.path] = content
                try:
                    # Refuse to lose what something else wrote into one since.
                    problem = each.problem
                    if not problem and (present := _hash(tree.read(each.path))) not in {*each.results, each.before}:
                        problem = _changed_by(team, agent.path.name, each.path, present)
                    elif not problem and _hash(content) != each.before:
                        problem = "its old content is not kept any more"
                except BadDataError as error:
                    problem = str(error)
                if problem:
                    problems.append(f"{each.path} ({problem})")
            if problems:
                raise BadDataError(f"nothing was put back, because this cannot be: {', '.join(problems)}")
            if not dry_run:
                for each in changed:
                    content, there = contents[each.path], tree.stat(each.path)
                    # One that is as before already was put back by a call that was killed, or by the user.
                    if there is None or _hash(tree.read(each.path)) not in each.results - {each.before}:
                        continue
                    if content is None:
                        tree.remove(each.path, each.folders)
                        continue
                    with tempfile.NamedTemporaryFile(dir=agent.kept, prefix=".", suffix=".tmp", delete=False) as new:
                        new.write(content)
                        os.fchmod(new.fileno(), stat.S_IMODE(there.st_mode) & 0o777)
                    tree.put(each.path, Path(new.name))
        found = PutBack(name, tuple(PutBackFile(each.path, each.before is None) for each in changed), ident)
        if not dry_run:
            done |= {change.id for each in changed for change in each.changes}
            agent.undone.save(Undone(changes=sorted(done)), durable=True)
    if not dry_run:
        tell(team, found)
    return found


def undo_in_checkout(
    team: "Team",
    name: str,
    *,
    assignment: str | None = None,
    path: str | None = None,
    hunk: int | None = None,
    commit: str | None = None,
    dry_run: bool = False,
) -> PutBack:
    """Put back what an agent changed in its own checkout: in its last assignment, or in `assignment`.

    With `path`, put back only that file, or one `hunk` of it, numbered from 1: as it was before any change of the
    agent, or with an `assignment`, before that. With the `commit` of a snapshot, make the whole checkout as it was
    then. The checkout is snapshotted before and after. With `dry_run`, only check that it would work.

    Raises:
        UsageError: There is no such agent, file, hunk, assignment or snapshot, or nothing to put back.
        BadDataError: Later changes or ignored files prevent it. Nothing was changed.
        TryLaterError: The agent is at work.
    """
    worktree = require_worktree(team, name)
    team.directory.require_adopted()
    require_here(team, name, f"tell {name} what to put back; `{command_for(team, f'undo {name}')}` takes a merge back")
    spec = team.agent(name).spec.load()
    if spec is None:
        raise UsageError(f"there is no agent {name}")
    repository = open_repository(team.directory.root)
    # A worker that begins an assignment waits for the lock: it takes a snapshot first.
    with store_files.locked(team.directory.local_lock(f"worktree-{name}")):
        require_idle(team, name, "wait for it, or stop it")
        present = snapshot.take_locked(team.directory, name, spec).commit
        ident = None
        if commit is not None:
            wanted = repository.commit(commit)
            if (
                wanted
                not in repository.git("rev-list", "--walk-reflogs", snapshot.ref_of(team.directory, name)).split()
            ):
                raise UsageError(f"{commit} is no snapshot of {name}")
            tree = repository.tree(wanted)
        elif path is not None and assignment is None:
            changes, _ = read_changes(team, repository, name, worktree.base)
            tree = put_back.reverse(repository, present, changes.base, present, path, hunk)
        else:
            ident, tree = _without_assignment(team, repository, name, present, assignment or LAST, path, hunk)
        planned = put_back.plan(repository, team.directory.worktree(name), present, tree)
        if not planned.entries:
            raise UsageError("there is nothing to put back: all of it is as it was before")
        if not dry_run:
            put_back.write(team.directory, repository, name, planned, worktree.folder)
            snapshot.take_locked(team.directory, name, spec)
    done = PutBack(name, planned.files, ident, present)
    if not dry_run:
        note_collisions(team)
        tell(team, done)
    return done


def _without_assignment(
    team: "Team", repository: Repository, name: str, present: str, assignment: str, path: str | None, hunk: int | None
) -> tuple[str, str]:
    """Return the assignment to reverse, and the tree of the checkout without its changes.

    `assignment` may be `LAST`. With `path` and `hunk`, only the changes there are left out.

    Raises:
        UsageError: There are no snapshots of the assignment, or no assignment has changes that are still there.
    """
    tree = repository.tree(present)
    begins: dict[str, str] = {}
    ends: dict[str, str] = {}
    for event, _ in journal.read(team.agent(name).journal):
        if isinstance(event, SnapshotTaken) and event.at == "begin":
            begins.setdefault(event.assignment, event.commit)
        elif isinstance(event, SnapshotTaken):
            ends[event.assignment] = event.commit
    # If a worker was killed before the end, the assignment ended where the next one began.
    following = [*list(begins.values())[1:], present]
    known = {
        ident: (begin, ends.get(ident, after)) for (ident, begin), after in zip(begins.items(), following, strict=True)
    }
    if assignment not in (LAST, *known):
        raise UsageError(f"there are no snapshots of an assignment {assignment} of {name}")
    for ident in reversed(known) if assignment == LAST else [assignment]:
        old, new = known[ident]
        if repository.tree(old) == repository.tree(new):
            continue
        without = put_back.reverse(repository, present, old, new, path, hunk)
        if without != tree or assignment != LAST:
            return ident, without
    raise UsageError(f"no assignment of {name} changed anything that is still there")


def tell(team: "Team", done: PutBack) -> None:
    """Tell an agent by mail which files were put back, so that it reads them again; add this to the audit log."""
    names = [f"{each.path} ({'removed' if each.removed else 'put back'})" for each in done.files]
    what = "what you changed in an assignment" if done.assignment else "changes of your files"
    text = f"I took back {what}. Read these files again before you use them:\n" + "\n".join(names)
    post(team, done.agent, "files_put_back", without_surrogates(text))
    files = counted(len(done.files), "file")
    team.note("undo", done.agent, f"put back {files}")


@dataclass
class _Changed:
    """The changes of one file by file tools in an assignment, oldest first.

    `results` are the hashes of the contents that the file may have after them, None for no file. `problem` says why
    they cannot be reversed, if so.
    """

    path: str
    changes: list[FileKept] = field(default_factory=list)
    results: set[str | None] = field(default_factory=set)
    problem: str = ""

    @property
    def before(self) -> str | None:
        """Return the hash of the file's content before the first change; None if there was no file."""
        return self.changes[0].before

    @property
    def folders(self) -> int:
        return max(each.folders for each in self.changes)

    def add(self, change: FileKept, *, made: bool) -> None:
        """Add the next change. If not `made`, it was interrupted or failed, and may or may not have happened."""
        self.problem = self.problem or change.lost
        if self.changes and change.before not in self.results:
            self.problem = self.problem or "something else than the agent's file tools changed it meanwhile"
        self.changes.append(change)
        self.results = {change.after} if made else {change.before, change.after}


def _by_assignment(agent: AgentDirectory, done: set[str]) -> dict[str, dict[str, _Changed]]:
    """Return the changes that are not reversed yet, by assignment and file; the newest assignment last."""
    current, made, unchanged = "", set(), set()
    found: dict[str, list[FileKept]] = {}
    for event, _ in journal.read(agent.journal):
        if isinstance(event, Intake) and event.assignment is not None:
            current = event.assignment
        elif isinstance(event, FileKept) and event.id not in done:
            found[current] = [*found.pop(current, []), event]
        elif isinstance(event, ToolResult) and not event.is_error:
            made.add((event.run, event.tool_use_id))
        elif isinstance(event, ToolResult) and event.unchanged:
            unchanged.add((event.run, event.tool_use_id))
    grouped: dict[str, dict[str, _Changed]] = {}
    for ident, changes in found.items():
        files = grouped[ident] = {}
        for change in changes:
            if (change.run, change.tool_use_id) in unchanged:
                continue
            file = files.setdefault(change.path, _Changed(change.path))
            file.add(change, made=(change.run, change.tool_use_id) in made)
    return grouped


def _chosen(
    name: str, known: dict[str, dict[str, _Changed]], assignment: str | None, path: str | None
) -> tuple[str, list[_Changed]]:
    """Return the assignment to reverse, the newest if none is given, and the changes of its files, or of `path` alone.

    Raises:
        UsageError: There is nothing to reverse.
    """
    for ident, files in reversed(known.items()):
        changed = [each for each in files.values() if path in (None, each.path) and each.results != {each.before}]
        if changed and assignment in (None, ident):
            return ident, changed
    what = "no more changes" if path is None else f"no more changes of {path}"
    where = "" if assignment is None else f" in the assignment {assignment}"
    raise UsageError(f"there are {what} of the file tools of {name} to undo{where}; git can undo what commands did")


def _changed_by(team: "Team", name: str, path: str, content: str | None) -> str:
    """Return a sentence that says which other agent left a file with this content (a hash), if that is known."""
    for other in team.config.names:
        agent = team.directory.agent(other)
        done = set((agent.undone.load_or_none() or Undone()).changes)
        found = reversed(_by_assignment(agent, done).values()) if other != name else ()
        last = next((files[path] for files in found if path in files), None)
        if last is not None and content in last.results:
            return f"{other} changed it since; `{command_for(team, f'undo {other}')}` first"
    return "it was changed since"


def _hash(content: bytes | None) -> str | None:
    return None if content is None else hashlib.sha256(content).hexdigest()
