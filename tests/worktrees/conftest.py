"""A git repository with a team, and agents with worktrees in it."""

import shutil
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from crewboard.records.agents import HireOptions, Spec
from crewboard.store.layout import TeamDirectory
from crewboard.worktrees import checkout
from tests import system
from tests.worktrees.home import Home, make_repository

Hired = Callable[..., Spec]

ENVIRONMENT = {
    "PATH": "/usr/bin:/bin:/usr/local/bin", "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "Kim", "GIT_AUTHOR_EMAIL": "kim@example.invalid",
    "GIT_COMMITTER_NAME": "Kim", "GIT_COMMITTER_EMAIL": "kim@example.invalid",
}  # fmt: skip


def git(folder: Path, *arguments: str) -> str:
    """Run git in a folder as a user does, and return what it prints."""
    done = subprocess.run(
        ["git", *arguments], cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.removesuffix("\n")


def write(folder: Path, files: dict[str, str]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)


def make_root(root: Path) -> Path:
    """Make a folder a repository with one commit."""
    system.need_program("git")
    git(root, "init", "-q", "-b", "main", "--template=")
    write(root, {"api.py": "one\ntwo\nthree\n", "pkg/core.py": "x = 1\n", ".gitignore": "*.pyc\n.crewboard/\n"})
    git(root, "add", "-A")
    git(root, "commit", "-qm", "Begin")
    return root


def hire_with_checkout(directory: TeamDirectory, name: str, base: str | None = None) -> Spec:
    """Make an agent's worktree and return its spec."""
    worktree = checkout.make(directory, name, base)
    return Spec(
        prompt="work", prompt_id=name, type="code", flags=HireOptions(worktree=True, base=base), worktree=worktree
    )


@pytest.fixture
def root(directory: TeamDirectory) -> Path:
    """Return the root of a team, which is a repository with one commit."""
    return make_root(directory.root)


@pytest.fixture
def hired(directory: TeamDirectory, root: Path) -> Hired:
    """Return a function that makes an agent's worktree and returns its spec."""
    return partial(hire_with_checkout, directory)


@pytest.fixture(scope="session")
def _first_commit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a repository with one commit, once for all tests, which copy it."""
    system.need_program("git")
    root = tmp_path_factory.mktemp("first")
    make_repository(root)
    return root


@pytest.fixture
def home(memory: Path, _first_commit: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """Return a repository with one commit and a team without agents, for work that needs no checkout."""
    # The settings of the machine's user must not change the results.
    monkeypatch.setenv("HOME", str(memory / "home"))
    root = memory / "project"
    shutil.copytree(_first_commit, root, symlinks=True)
    return Home(root)
