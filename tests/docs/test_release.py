"""A release is made in one commit with one tag, or not at all."""

import subprocess
from pathlib import Path

import pytest

from tests.release import CHANGELOG, HOSTS, VERSION, ReleaseError, release
from tests.system import need_program

NOTES = "# Changelog\n\n## Unreleased\n\n### Added\n\n- A line.\n\n## 0.2.0 – 2026-11-22\n"


def git(root: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=root, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a checkout of version 0.2.0."""
    need_program("git")
    # No setting of this machine's git counts.
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    for file, text in ((VERSION, '__version__ = "0.2.0"\n'), (CHANGELOG, NOTES), (HOSTS, "crewboard-0.2.0-py3.whl\n")):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text, encoding="utf-8")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "config", "user.name", "a maintainer")
    git(tmp_path, "config", "user.email", "maintainer@example.org")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "begin")
    return tmp_path


def passes() -> None:
    """Pass each check."""


def fails() -> None:
    """Fail a check as `make` does."""
    raise subprocess.CalledProcessError(2, ["make", "check"])


def test_a_release_sets_the_version_and_tags_one_commit(root: Path) -> None:
    assert "git push --follow-tags" in release("0.3.0", root, passes)
    assert (root / VERSION).read_text(encoding="utf-8") == '__version__ = "0.3.0"\n'
    assert (root / HOSTS).read_text(encoding="utf-8") == "crewboard-0.3.0-py3.whl\n"
    notes = (root / CHANGELOG).read_text(encoding="utf-8")
    assert notes.startswith("# Changelog\n\n## Unreleased\n\n## 0.3.0 – 20")
    assert notes.count("## Unreleased") == 1
    assert git(root, "log", "--format=%s") == "Release 0.3.0\nbegin"
    assert git(root, "rev-parse", "v0.3.0^{commit}") == git(root, "rev-parse", "HEAD")
    assert git(root, "status", "--porcelain") == ""


def test_a_failed_check_leaves_the_checkout_as_it_was(root: Path) -> None:
    with pytest.raises(ReleaseError, match="`make check` failed"):
        release("0.3.0", root, fails)
    assert git(root, "status", "--porcelain") == ""
    assert git(root, "log", "--format=%s") == "begin"
    assert git(root, "tag") == ""


@pytest.mark.parametrize(
    ("settings", "failed"),
    [
        ({"core.hooksPath": "hooks"}, "git commit"),
        ({"user.signingkey": "none", "gpg.program": "/bin/false"}, "git tag"),
    ],
)
def test_a_failed_commit_or_tag_leaves_the_checkout_as_it_was(
    settings: dict[str, str], failed: str, root: Path
) -> None:
    hook = root / "hooks" / "pre-commit"
    hook.parent.mkdir()
    hook.write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    hook.chmod(0o700)
    git(root, "add", ".")
    git(root, "commit", "--quiet", "--amend", "--no-edit")
    head = git(root, "rev-parse", "HEAD")
    for name, value in settings.items():
        git(root, "config", name, value)
    with pytest.raises(ReleaseError, match=f"`{failed}` failed"):
        release("0.3.0", root, passes)
    assert git(root, "status", "--porcelain") == ""
    assert git(root, "rev-parse", "HEAD") == head
    assert git(root, "tag") == ""


@pytest.mark.parametrize("version", ["0.2.0", "0.1.9", "0.3", "v0.3.0", ""])
def test_a_version_that_does_not_follow_is_refused(root: Path, version: str) -> None:
    with pytest.raises(ReleaseError, match=r"is no version after 0\.2\.0"):
        release(version, root, passes)


def test_uncommitted_changes_are_refused_and_kept(root: Path) -> None:
    (root / CHANGELOG).write_text(f"{NOTES}mine\n", encoding="utf-8")
    with pytest.raises(ReleaseError, match="not committed"):
        release("0.3.0", root, passes)
    assert (root / CHANGELOG).read_text(encoding="utf-8") == f"{NOTES}mine\n"


def test_a_tag_that_is_there_is_refused(root: Path) -> None:
    git(root, "tag", "v0.3.0")
    with pytest.raises(ReleaseError, match="already"):
        release("0.3.0", root, passes)


def test_a_release_without_changes_is_refused(root: Path) -> None:
    release("0.3.0", root, passes)
    with pytest.raises(ReleaseError, match="Unreleased"):
        release("0.4.0", root, passes)
