"""Fixtures of the sandbox tests."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from crewboard.sandbox import bubblewrap, landlock
from crewboard.sandbox.level import Level
from crewboard.sandbox.policy import Policy
from crewboard.unix import process, syscalls
from tests import system
from tests.sandbox.targets import SECRET, Targets, built

LEVELS: tuple[Level, ...] = ("bubblewrap", "landlock")


@pytest.fixture(scope="session")
def _outside_dev() -> Iterator[Path]:
    """Make a folder that is not in /dev, as others may be: to a sandbox, /dev belongs to the system."""
    folder = Path(tempfile.mkdtemp(prefix="crewboard-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def tmp_path(_outside_dev: Path) -> Path:
    return Path(tempfile.mkdtemp(dir=_outside_dev))


@pytest.fixture(scope="session")
def works(_outside_dev: Path) -> dict[Level, str | None]:
    """Return for each level why it does not work here, or None."""
    policy = Policy(Path(tempfile.mkdtemp(dir=_outside_dev)), writes=False)
    return {
        "bubblewrap": bubblewrap.unavailable_reason(policy),
        "landlock": landlock.unavailable_reason(policy),
        "none": None,
    }


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest, works: dict[Level, str | None]) -> Level:
    """Return each level in turn; skip one that does not work here, which in CI is a failure."""
    wanted: Level = request.param
    need(wanted, works)
    return wanted


def need(level: Level, works: dict[Level, str | None]) -> None:
    """Skip the test if a level does not work here."""
    system.need(level, works[level])


@contextmanager
def adopting_orphans() -> Iterator[None]:
    """Let this process adopt the orphans of commands, as a worker does: it waits until they have ended."""
    process.adopt_orphans()
    try:
        yield
    finally:
        syscalls.prctl(36, 0)


@pytest.fixture(scope="module")
def targets(_outside_dev: Path) -> Iterator[Targets]:
    """Make targets for the attempts of a module, in a process that adopts their orphans."""
    system.need_program("git")
    patch = pytest.MonkeyPatch()
    for name in ("ANTHROPIC_API_KEY", "GITHUB_TOKEN", "AWS_SECRET_ACCESS_KEY", "SSH_AUTH_SOCK"):
        patch.setenv(name, SECRET)
    base = Path(os.path.realpath(tempfile.mkdtemp(dir=_outside_dev)))
    with adopting_orphans(), built(base) as made:
        yield made
    patch.undo()
