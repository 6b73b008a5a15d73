"""A user's repository with a team, and agents whose snapshots are made by plain git."""

import os
import shutil
import subprocess
from pathlib import Path

from crewboard.commands.context import Team
from crewboard.records import Member, Spec, Worktree
from crewboard.store import json_files, roster
from crewboard.store.layout import TeamDirectory
from crewboard.worktrees.snapshot import branch_of, ref_of

_GIT = {
    "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1", "PATH": os.environ["PATH"],
    "GIT_AUTHOR_NAME": "User", "GIT_AUTHOR_EMAIL": "user@example.invalid",
    "GIT_COMMITTER_NAME": "User", "GIT_COMMITTER_EMAIL": "user@example.invalid",
}  # fmt: skip


class Home:
    """A user's repository at `root`, which is also a team's root, and plain git in it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.git("init", "-q", "-b", "main")
        self.git("config", "user.name", "User")
        self.git("config", "user.email", "user@example.invalid")
        self.write("api.py", "".join(f"line {number}\n" for number in range(20)))
        self.write("README", "hello\n")
        self.commit("first")
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
        json_files.save(agent.spec, spec)
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
        self._index = home.root / ".git" / f"index-{name}"
        home.git("read-tree", base, index=self._index)

    def write(self, path: str | bytes, text: str | bytes, mode: str = "100644") -> None:
        """Write a file; leave it uncommitted."""
        data = text if isinstance(text, bytes) else text.encode()
        blob = self.home.git("hash-object", "-w", "--stdin", stdin=data)
        line = f"{mode} {blob}\t".encode() + (path if isinstance(path, bytes) else path.encode())
        self.home.git("update-index", "-z", "--index-info", stdin=line + b"\0", index=self._index)

    def delete(self, path: str) -> None:
        self.home.git("update-index", "--force-remove", "--", path, index=self._index)

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
        self.home.git("read-tree", tree, index=self._index)

    def _commit(self, message: str) -> str:
        tree = self.home.git("write-tree", index=self._index)
        return self.home.git("commit-tree", tree, "-p", self.head, "-m", message)
