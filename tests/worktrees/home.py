"""A user's repository with a team, and agents whose snapshots are made by plain git."""

import hashlib
import os
import shutil
import subprocess
import zlib
from pathlib import Path

from crewboard.commands.context import Team
from crewboard.records.agents import Spec, Worktree
from crewboard.records.team import Member, Reviewed
from crewboard.store import roster, tasks
from crewboard.store.layout import TeamDirectory
from crewboard.worktrees.snapshot import branch_of, ref_of

_GIT = {
    "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1", "PATH": os.environ["PATH"],
    "GIT_AUTHOR_NAME": "User", "GIT_AUTHOR_EMAIL": "user@example.invalid",
    "GIT_COMMITTER_NAME": "User", "GIT_COMMITTER_EMAIL": "user@example.invalid",
}  # fmt: skip


def make_repository(root: Path) -> None:
    """Make the repository that a `Home` begins with."""
    (root / "api.py").write_text("".join(f"line {number}\n" for number in range(20)))
    (root / "README").write_text("hello\n")
    for arguments in (
        ("init", "-q", "-b", "main", "--template="), ("config", "user.name", "User"),
        ("config", "user.email", "user@example.invalid"),
        # git would look for work in the background after each commit.
        ("config", "maintenance.auto", "false"), ("add", "-A"), ("commit", "-q", "-m", "first"),
    ):  # fmt: skip
        subprocess.run(["git", *arguments], cwd=root, env=_GIT, check=True)


class Home:
    """A user's repository at `root`, which is also a team's root, and plain git in it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        # The copied files are others than those that the index remembers.
        self.git("update-index", "-q", "--refresh")
        self.directory = TeamDirectory(root / ".crewboard" / "default")
        self.directory.make()
        roster.create(self.directory, "", 1.0)
        self.team = Team(self.directory, environment={"USER": "user"})

    def git(self, *arguments: str, stdin: bytes = b"", index: Path | None = None) -> str:
        """Run plain git and return its output, without the last newline."""
        environment = {**_GIT, **({"GIT_INDEX_FILE": str(index)} if index else {})}
        done = subprocess.run(
            ["git", *arguments], cwd=self.root, input=stdin, capture_output=True, env=environment, check=False
        )
        assert done.returncode == 0, done.stderr
        return os.fsdecode(done.stdout).removesuffix("\n")

    def keep(self, data: bytes) -> str:
        """Put the content of a file into the repository, as `git hash-object -w` does, and return its id."""
        whole = b"blob %d\0%s" % (len(data), data)
        ident = hashlib.sha1(whole, usedforsecurity=False).hexdigest()
        there = self.root / ".git/objects" / ident[:2] / ident[2:]
        there.parent.mkdir(exist_ok=True)
        # What git wrote is read-only.
        if not there.exists():
            there.write_bytes(zlib.compress(whole, 1))
        return ident

    def write(self, path: str, text: str | bytes) -> None:
        """Write a file of the working tree."""
        there = self.root / path
        there.parent.mkdir(parents=True, exist_ok=True)
        there.write_bytes(text if isinstance(text, bytes) else text.encode())

    def read(self, path: str) -> str:
        return (self.root / path).read_text()

    def commit(self, subject: str) -> str:
        """Commit the whole working tree and return the commit."""
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", subject)
        return self.git("rev-parse", "HEAD")

    def hire(self, name: str) -> "AgentWork":
        """Put an agent with a worktree on the roster, without a process."""
        base = self.git("rev-parse", "HEAD")
        roster.put(self.directory, Member(name=name, type="code"))
        agent = self.directory.agent(name)
        agent.path.mkdir(parents=True)
        branch = branch_of(self.directory, name)
        spec = Spec(prompt="", prompt_id="", type="code", worktree=Worktree(branch=branch, base=base))
        agent.spec.save(spec)
        return AgentWork(self, name, base)

    def forget(self, name: str) -> None:
        """Take an agent off the roster; its refs stay."""
        roster.drop(self.directory, name)
        shutil.rmtree(self.directory.agent(name).path)


class AgentWork:
    """The work of one agent, made of objects of the user's repository without any checkout."""

    def __init__(self, home: Home, name: str, base: str) -> None:
        self.home, self.name = home, name
        self.base = self.head = self.snapshot = base
        self.index = home.root / ".git" / f"index-{name}"
        self._changes = b""
        home.git("read-tree", base, index=self.index)

    def write(self, path: str | bytes, text: str | bytes, mode: str = "100644") -> None:
        """Write a file; leave it uncommitted."""
        blob = self.home.keep(text if isinstance(text, bytes) else text.encode())
        self._change(path, f"{mode} {blob}\t")

    def delete(self, path: str) -> None:
        self._change(path, f"0 {'0' * 40}\t")

    def _change(self, path: str | bytes, entry: str) -> None:
        self._changes += entry.encode() + (path if isinstance(path, bytes) else path.encode()) + b"\0"

    def commit(self, message: str) -> str:
        """Commit what was written, on the agent's own branch."""
        self.head = self._commit(message)
        return self.head

    def snap(self) -> str:
        """Take a snapshot and return its commit."""
        self.snapshot = self._commit("snapshot")
        self.home.git("update-ref", ref_of(self.home.directory, self.name), self.snapshot)
        return self.snapshot

    def merge(self, other: str, tree: str) -> None:
        """Merge another commit, with the tree of the result."""
        self.head = self.home.git("commit-tree", tree, "-p", self.head, "-p", other, "-m", "merge")
        self._changes = b""
        self.home.git("read-tree", tree, index=self.index)

    def tree(self) -> str:
        """Return the tree of what was written."""
        if self._changes:
            self.home.git("update-index", "-z", "--index-info", stdin=self._changes, index=self.index)
            self._changes = b""
        return self.home.git("write-tree", index=self.index)

    def approved(self, *, since: str, at: float, upto: str | None = None) -> int:
        """Let `qa` have approved the work from the commit `since` to one, or to what was written; return the task."""
        task = tasks.add(self.home.directory, "work", 1.0, owner=self.name, review="qa")
        first = self.home.git("rev-parse", f"{since}^{{tree}}")
        last = self.home.git("rev-parse", f"{upto}^{{tree}}") if upto is not None else self.tree()
        reviewed = Reviewed(of=self.name, by="qa", at=at, since=first, tree=last)
        self.home.directory.task(task.id).save(task.replace(status="completed", reviewed=reviewed))
        return task.id

    def _commit(self, message: str) -> str:
        return self.home.git("commit-tree", self.tree(), "-p", self.head, "-m", message)
