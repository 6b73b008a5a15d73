"""Make a release: `make release VERSION=1.2.3` sets the version, closes the changelog, checks, commits and tags.

Nothing is pushed. What fails, a check, the commit or the tag, leaves the checkout as it was.
"""

import itertools
import re
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from tests.docs.pages import ROOT

VERSION = Path("core/crewboard/__init__.py")
CHANGELOG = Path("CHANGELOG.md")
HOSTS = Path("docs/hosts.md")
"""A page with the name of the wheel."""

_OPEN = "## Unreleased\n"
_UNRELEASED = re.compile(rf"^{_OPEN}(?=\n+###)", re.MULTILINE)
_NUMBERS = re.compile(r"\d+\.\d+\.\d+")


class ReleaseError(Exception):
    """A release that cannot be made, as a sentence."""


def release(version: str, root: Path = ROOT, check: Callable[[], None] | None = None) -> str:
    """Make a release and return what is left to do.

    Raises:
        ReleaseError: It cannot be made, and the checkout is as it was.
    """
    before = _version(root)
    if not _NUMBERS.fullmatch(version) or _parts(version) <= _parts(before):
        raise ReleaseError(f"{version!r} is no version after {before}: make release VERSION=1.2.3")
    if _git(root, "status", "--porcelain"):
        raise ReleaseError("there are changes that are not committed: commit or stash them first")
    if _git(root, "tag", "--list", f"v{version}"):
        raise ReleaseError(f"there is a tag v{version} already")
    notes = (root / CHANGELOG).read_text(encoding="utf-8")
    if not _UNRELEASED.search(notes):
        raise ReleaseError(f"{CHANGELOG} has nothing under `## Unreleased`")
    head, signed = _git(root, "rev-parse", "HEAD"), bool(_git(root, "config", "--default", "", "user.signingkey"))
    try:
        _replace(root / VERSION, f'__version__ = "{before}"', f'__version__ = "{version}"')
        _replace(root / HOSTS, f"crewboard-{before}-", f"crewboard-{version}-")
        _replace(root / CHANGELOG, _OPEN, f"{_OPEN}\n## {version} – {datetime.now(UTC):%Y-%m-%d}\n")
        (check or _check)()
        _git(root, "commit", "--quiet", "--all", "--message", f"Release {version}")
        _git(root, "tag", "--sign" if signed else "--annotate", f"v{version}", "--message", f"crewboard {version}")
    except BaseException as error:
        # Nothing else is lost: there were no other changes, and the commit has only these.
        _git(root, "reset", "--quiet", "--hard", head)
        if isinstance(error, subprocess.CalledProcessError):
            failed = " ".join(itertools.takewhile(lambda word: not word.startswith("-"), error.cmd))
            raise ReleaseError(f"`{failed}` failed, and nothing was released") from error
        raise
    made = f"v{version} is committed and tagged" + ("" if signed else ", unsigned: git has no user.signingkey")
    return f"{made}; dist/ has its packages. To publish: git push --follow-tags"


def _check() -> None:
    subprocess.run(["make", "check", "package"], cwd=ROOT, check=True)


def _version(root: Path) -> str:
    found = re.search(r'^__version__ = "(.+)"$', (root / VERSION).read_text(encoding="utf-8"), re.MULTILINE)
    assert found is not None
    return found[1]


def _parts(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


def _replace(file: Path, old: str, new: str) -> None:
    file.write_text(file.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")


def _git(root: Path, *arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=root, check=True, stdout=subprocess.PIPE, text=True
    ).stdout.strip()  # fmt: skip


if __name__ == "__main__":
    try:
        print(release(sys.argv[1]))
    except ReleaseError as problem:
        sys.exit(f"make release: {problem}")
