"""Compare the work of agents with worktrees: changed files, diffs, and whether it merges. Only git objects are read.

File names need not be UTF-8: other bytes are surrogates, as in `os.fsdecode`.
"""

import contextlib
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from crewboard.errors import CrewboardError
from crewboard.executed_files import runs_on_your_machine
from crewboard.records.agents import Spec
from crewboard.records.team import Checked, Reviewed, Shown
from crewboard.redaction import hidden_lines
from crewboard.store.layout import TeamDirectory
from crewboard.untrusted import as_run
from crewboard.worktrees.repository import GitFailedError, Repository, open_repository, repository_of
from crewboard.worktrees.snapshot import Snapshot, take

FileStatus = Literal["added", "modified", "deleted", "renamed", "type"]

_STATUS: dict[str, FileStatus] = {"A": "added", "D": "deleted", "R": "renamed", "T": "type"}

Entry = tuple[str, str]
"""The mode and the object id of a file in a tree, both as git writes them; the mode is `ABSENT` if there is no file."""

ABSENT = "000000"
SUBMODULE = "160000"
LINK = "120000"

_NAMED = 5
"""Most files that an error text names."""

HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
"""The head of a hunk: its first line in the old file and its number of lines there, and the same for the new file."""

_ESCAPE = re.compile(rb'\\([0-7]{3}|[abtnvfr"\\])')
_ESCAPED = dict(zip(b'abtnvfr"\\', b'\a\b\t\n\v\f\r"\\', strict=True))

_CONFLICT = 1
"""Exit code of `git merge-tree` for a merge with conflicts."""

FIXED_AUTHOR = {
    f"GIT_{role}_{field}": value
    for role in ("AUTHOR", "COMMITTER")
    for field, value in (("NAME", "crewboard"), ("EMAIL", "crewboard@crewboard.invalid"), ("DATE", "@0 +0000"))
}
"""Environment for git with a fixed author and date, so that the same files always give the same commit."""


@dataclass(frozen=True)
class FileChange:
    """One changed file. The status `type` is a change between file, symbolic link and submodule.

    `added` and `removed` are numbers of lines; None for a binary file. `old_path` is the name before a renaming. `mode`
    and `old_mode` are as git writes them, `000000` if there is no file. `target` is where a symbolic link leads now.
    """

    path: str
    status: FileStatus
    added: int | None
    removed: int | None
    old_path: str | None = None
    mode: str = "100644"
    old_mode: str = "100644"
    target: str | None = None

    @property
    def new_mode(self) -> str | None:
        """Return the mode if it differs in a modified or renamed file, as after `chmod +x`; else None."""
        is_file = self.status in ("modified", "renamed")
        return self.mode if is_file and self.mode != self.old_mode else None


@dataclass(frozen=True)
class LastCheck:
    """The state of an agent's last check. It is `old` if it passed on another tree than the agent has now.

    `checked` is the last check that has ended; None if there is none.
    """

    state: Literal["running", "passed", "failed", "old"]
    checked: Checked | None


@dataclass(frozen=True)
class LastReview:
    """The last approval of an agent's work by a reviewer, for the task with the id `task`.

    The state is `old` if files changed since the reviewer was asked, and `same` if the approval is for all of the work
    that is not merged. It is `part` if there are also earlier changes, which are neither merged nor reviewed.
    """

    state: Literal["same", "part", "old"]
    task: int
    reviewed: Reviewed


@dataclass(frozen=True)
class Changes:
    """The work of an agent from `base` to the snapshot `commit`.

    `head` is the commit of the user's branch that it is compared with, and `base` their common commit, or the last
    snapshot that was merged. `behind` is the number of commits of `head` that the agent does not have, apart from
    merges of its own work. `conflicts` are the files in which the changes and `head` do not merge; `applies` is True if
    there are none. `is_merged` is True if a merge would change nothing, because `head` has all of the work, for example
    from a merge in another clone. `missing` describes what the snapshot could not take in. `collides_with` are the
    other agents whose work does not merge with this work. `check` is the agent's last check, `review` the last approval
    of work that is not merged. `sha256` is that of the snapshot, by which a merge can be limited to what was shown.
    """

    agent: str
    branch: str
    base: str
    commit: str
    head: str
    files: tuple[FileChange, ...]
    behind: int
    applies: bool
    conflicts: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    collides_with: tuple[str, ...] = ()
    check: LastCheck | None = None
    review: LastReview | None = None
    is_merged: bool = False
    sha256: str = ""

    @property
    def added(self) -> int:
        """Return the number of added lines in all text files."""
        return sum(each.added or 0 for each in self.files)

    @property
    def run_by_user(self) -> list[str]:
        """Return the paths of changed files that the user's own shell, editor, build or CI may run."""
        return [each.path for each in self.files if runs_on_your_machine(each.path)]

    @property
    def removed(self) -> int:
        """Return the number of removed lines in all text files."""
        return sum(each.removed or 0 for each in self.files)


@dataclass(frozen=True)
class MergedTree:
    """The outcome of a merge without a working tree: the merged tree, and the files in it that have conflict marks."""

    tree: str
    conflicts: tuple[str, ...]


def changes_of(
    repository: Repository,
    snapshot: Snapshot,
    agent: str,
    branch: str,
    *,
    head: str,
    accepted: str | None,
    merges: tuple[tuple[str, str], ...],
    reviews: Sequence[tuple[int, Reviewed]],
) -> Changes:
    """Return what an agent changed, as of a snapshot, compared with the commit `head`.

    `accepted` is the last snapshot that was merged, if any: what it has does not count as changed. `merges` are the
    commits of a branch before and after each merge of this agent's work. `reviews` are the approvals since the last
    merge, oldest first, each with the id of its task.

    Raises:
        GitFailedError: An object is missing.
    """
    base = accepted or begin_of(repository, head, snapshot)
    merge = merged(repository, head, snapshot.commit, base)
    files = files_between(repository, base, snapshot.commit)
    # A diff from where the checkout began has all of it, unless what was merged since is missing in that.
    begins = (base,) if accepted else (base, snapshot.begin)
    of_head, *of_begins = trees_of(repository, head, *(begins if reviews else ()))
    is_merged = not merge.conflicts and merge.tree == of_head
    lacking = _commits(repository, snapshot.commit, head)
    # A merge of which objects are gone is in no branch any more.
    for before, after in merges if lacking else ():
        with contextlib.suppress(GitFailedError):
            lacking -= _commits(repository, before, after)
    return Changes(
        agent=agent,
        branch=branch,
        base=base,
        commit=snapshot.commit,
        head=head,
        files=files,
        behind=len(lacking),
        applies=not merge.conflicts,
        conflicts=merge.conflicts,
        missing=snapshot.missing,
        review=_last_review(snapshot.tree, of_begins, reviews) if files and not is_merged else None,
        is_merged=is_merged,
        sha256=snapshot.sha256,
    )


def _last_review(tree: str, begins: Sequence[str], reviews: Sequence[tuple[int, Reviewed]]) -> LastReview | None:
    """Return the last review that is about the `tree` of an agent's checkout now, else the last one, as `old`.

    `reviews` are in the order of time. `begins` are the trees with which the work that is not merged may begin. Return
    None if there are no reviews.
    """
    if not reviews:
        return None
    same = next((each for each in reversed(reviews) if each[1].tree == tree), None)
    if same is None:
        return LastReview("old", *reviews[-1])
    since = same[1].since
    for _, each in reversed(reviews):
        # Another review has what came before.
        if since not in begins and each.tree == since:
            since = each.since
    return LastReview("same" if since in begins else "part", *same)


@lru_cache(maxsize=256)
def trees_of(repository: Repository, *commits: str) -> tuple[str, ...]:
    """Return the id of the tree of each of these commits.

    Raises:
        GitFailedError: A commit is missing.
    """
    return tuple(repository.git("rev-parse", *(f"{each}^{{tree}}" for each in commits)).split())


def begin_of(repository: Repository, head: str, snapshot: Snapshot) -> str:
    """Return the commit with which to compare work that was never merged, so that only changes of the agent show.

    That is the merge base of `head` and the snapshot. But the files that the checkout began with are no changes of the
    agent, even if `head` does not have them any more, as after an undo, nor are those that its setup changed. If no
    commit has all of these files, one that has them is made.
    """
    parted, base = merge_base(repository, head, snapshot.commit) or snapshot.base, snapshot.base
    common = base if not lacks_base(repository, snapshot, parted) else merge_base(repository, parted, base) or base
    if common == parted:
        return snapshot.begin
    if not snapshot.setup and common == base:
        return parted
    both = merged(repository, parted, snapshot.begin, common)
    return parted if both.conflicts else synthetic_commit(repository, both.tree, "-p", parted)


def lacks_base(repository: Repository, snapshot: Snapshot, commit: str) -> bool:
    """Return True if a snapshot has in its history the commit at which its worktree began, and `commit` does not."""
    base = snapshot.base
    return not is_ancestor(repository, base, commit) and is_ancestor(repository, base, snapshot.commit)


def diff_of(repository: Repository, changes: Changes, path: str | None = None, *, binary: bool = False) -> str:
    """Return the changes, or those of one file, as a unified diff. No program of the user or an agent is run.

    With `binary`, the diff has the contents of binary files, so that `git apply` can use it.

    Raises:
        GitFailedError: An object is missing.
    """
    names = [path] if path is not None else []
    names += [each.old_path for each in changes.files if each.path == path and each.old_path]
    return diff_between(repository, changes.base, changes.commit, names, binary=binary)


def diff_between(repository: Repository, old: str, new: str, names: Iterable[str], *, binary: bool = False) -> str:
    """Return the differences of two commits or trees, in the files `names` or in all, as a unified diff.

    `binary` is as in `diff_of`.
    """
    options = ["--no-textconv", "--no-ext-diff", "--no-color", *(["--binary"] if binary else [])]
    return repository.git(
        "diff-tree", "-p", "-r", "-M", *options, old, new, "--", *names, environment={"GIT_LITERAL_PATHSPECS": "1"}
    )


def unquoted(name: str) -> str:
    """Return a file name from a diff without git's quotation marks and escapes, if it has any."""
    if not (name.startswith('"') and name.endswith('"')):
        return name

    def character(found: re.Match[bytes]) -> bytes:
        code = found[1]
        return bytes([int(code, 8) if len(code) > 1 else _ESCAPED[code[0]]])

    return _ESCAPE.sub(character, name[1:-1].encode(errors="surrogateescape")).decode(errors="surrogateescape")


@dataclass(frozen=True)
class KeyLine:
    """An added line that has what looks like a key: its file and number, its text, and the redacted text."""

    path: str
    line: int
    text: str
    redacted: str


def added_keys(repository: Repository, changes: Changes) -> tuple[KeyLine, ...]:
    """Return the lines that an agent added and that have what looks like a key. Binary files are not read.

    Raises:
        GitFailedError: An object is missing.
    """
    found, path = list[KeyLine](), ""
    lines = iter(diff_of(repository, changes).split("\n"))
    for raw in lines:
        if raw.startswith("+++ "):
            # Behind a name with blanks git writes a tab.
            path = unquoted(raw.removeprefix("+++ ").removesuffix("\t")).removeprefix("b/")
        elif head := HUNK.match(raw):
            # What of the hunk is in the new file, each line after its sign, `+` or a space.
            new: list[str] = []
            old_left, new_left = (int(count or 1) for count in (head[2], head[4]))
            while (old_left > 0 or new_left > 0) and (line := next(lines, None)) is not None:
                kind = line[:1] or " "
                old_left -= kind in " -"
                new_left -= kind in " +"
                if kind in " +":
                    new.append(line)
            # Together, because a key may have several lines.
            for at, redacted in hidden_lines("\n".join(line[1:] for line in new)).items():
                if new[at].startswith("+"):
                    found.append(KeyLine(path, int(head[3]) + at, new[at][1:], redacted))
    return tuple(found)


def diff_since(team: TeamDirectory, name: str, spec: Spec, since: str | None) -> tuple[str, Shown]:
    """Take a snapshot, and return what an agent changed in its checkout since the commit `since`, as a unified diff.

    Without `since`, the snapshot is compared with the base of the worktree. Also return the ids of the two trees that
    were compared. The diff is empty if they are the same.

    Raises:
        CrewboardError: The checkout cannot be read.
    """
    taken = take(team, name, spec)
    repository = open_repository(team.root) if spec.worktree is None else repository_of(team, spec.worktree)
    begin = since or taken.base
    diff = diff_between(repository, begin, taken.commit, ())
    return f"{diff}\n" if diff else "", Shown(since=repository.tree(begin), tree=taken.tree)


def tree_of(team: TeamDirectory, name: str, spec: Spec) -> str:
    """Return the id of the tree of an agent's checkout as it is now; empty if there is none, or it cannot be read."""
    if spec.worktree is None:
        return ""
    try:
        return take(team, name, spec).tree
    except (CrewboardError, OSError):
        return ""


def entries_between(repository: Repository, old: str, new: str) -> dict[str, tuple[Entry, Entry]]:
    """Return the files that differ between two trees or commits: by path, the entries in the old and the new one."""
    fields = iter(repository.git("diff-tree", "-r", "-z", "--no-renames", "--raw", old, new).split("\0"))
    found = {}
    for about in fields:
        if about:
            old_mode, new_mode, old_id, new_id, _ = about.removeprefix(":").split(" ")
            found[next(fields)] = ((old_mode, old_id), (new_mode, new_id))
    return found


def index_lines(entries: dict[str, Entry]) -> str:
    """Return entries as the input of `git update-index -z --index-info`; those that are `ABSENT` are removed."""
    return "".join(f"{'0' if mode == ABSENT else mode} {ident}\t{path}\0" for path, (mode, ident) in entries.items())


def name_some(paths: Sequence[str]) -> str:
    """Return the first of these paths as text, and how many more there are."""
    more = len(paths) - _NAMED
    return as_run(", ".join(paths[:_NAMED])) + (f" and {more} more" if more > 0 else "")


@lru_cache(maxsize=256)
def merge_base(repository: Repository, ours: str, theirs: str) -> str | None:
    """Return the merge base of two commits; None if they have no history in common, or a commit is missing."""
    try:
        return repository.git("merge-base", ours, theirs)
    except GitFailedError:
        return None


@lru_cache(maxsize=256)
def is_ancestor(repository: Repository, older: str, newer: str) -> bool:
    """Return True if the commit `newer` is `older` or has it in its history; False also if one of them is missing."""
    try:
        repository.git("merge-base", "--is-ancestor", older, newer)
    except GitFailedError:
        return False
    return True


@lru_cache(maxsize=256)
def merged(repository: Repository, ours: str, theirs: str, base: str) -> MergedTree:
    """Merge the commits `ours` and `theirs` as if their merge base were `base`; return the outcome. No ref is changed.

    Raises:
        GitFailedError: An object is missing.
    """
    if base != merge_base(repository, ours, theirs):
        # `merge-tree --merge-base` needs git 2.40. Commits with these trees have the wanted base in every version.
        base = synthetic_commit(repository, base)
        ours, theirs = (synthetic_commit(repository, each, "-p", base) for each in (ours, theirs))
    command = ("merge-tree", "--write-tree", "-z", "--name-only", "--no-messages", ours, theirs)
    try:
        answer = repository.git(*command)
    except GitFailedError as error:
        if error.code != _CONFLICT:
            raise
        answer = os.fsdecode(error.output)
    tree, *conflicts = answer.split("\0")
    return MergedTree(tree, tuple(dict.fromkeys(name for name in conflicts if name)))


def synthetic_commit(repository: Repository, commit: str, *options: str) -> str:
    """Make a commit with the tree that `commit` is or has, and with a fixed author and date; return it.

    `options` are those of `git commit-tree`, such as the parents.
    """
    return repository.git("commit-tree", f"{commit}^{{tree}}", *options, environment=FIXED_AUTHOR)


@lru_cache(maxsize=256)
def _commits(repository: Repository, without: str, of: str) -> frozenset[str]:
    return frozenset(repository.git("rev-list", of, f"^{without}").split())


@lru_cache(maxsize=256)
def files_between(repository: Repository, base: str, commit: str) -> tuple[FileChange, ...]:
    """Return the files that differ between two commits or trees; a renamed file is one change."""
    # First comes a record for each file about its kind of change, then one about its lines.
    answer = repository.git("diff-tree", "-r", "-z", "-M", "--raw", "--numstat", base, commit)
    found, about = list[FileChange](), dict[str, list[str]]()
    fields = iter(answer.split("\0"))
    for field in fields:
        if field.startswith(":"):
            facts = field[1:].split(" ")
            path = next(fields)
            about[next(fields) if facts[-1].startswith("R") else path] = facts
        elif field:
            added, removed, path = field.split("\t", 2)
            old = None if path else next(fields)
            path = path or next(fields)
            old_mode, mode, _, blob, letter = about[path]
            target = repository.git("cat-file", "blob", blob) if mode == LINK else None
            status = _STATUS.get(letter[0], "modified")
            found.append(FileChange(path, status, _lines(added), _lines(removed), old, mode, old_mode, target))
    return tuple(found)


def _lines(count: str) -> int | None:
    return None if count == "-" else int(count)
