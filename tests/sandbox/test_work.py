"""Tests that ordinary work (builds, tests, commits) succeeds in the sandbox."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from crewboard.sandbox.environment import GIT_SETTINGS
from crewboard.sandbox.git import write_git_settings
from crewboard.sandbox.host_paths import HostPaths
from crewboard.sandbox.level import Level
from crewboard.sandbox.sandbox import Sandbox
from crewboard.sandbox.scratch import Scratch
from tests.sandbox.targets import Targets, fingerprint, run
from tests.system import need_program

FILES = {
    "pyproject.toml": "[tool.mypy]\nstrict = true\n[tool.pytest.ini_options]\npythonpath = ['.']\n",
    "sums.py": 'def add(a: int, b: int) -> int:\n    """Add."""\n    return a + b\n',
    "test_sums.py": "from pathlib import Path\n\nfrom sums import add\n\n\n"
    "def test_add(tmp_path: Path) -> None:\n    (tmp_path / 'x').write_text('x')\n    assert add(1, 2) == 3\n",
}

BIN = Path(sys.executable).parent


@pytest.fixture
def project(tmp_path: Path) -> Path:
    need_program("git")
    root = Path(os.path.realpath(tmp_path)) / "project"
    root.mkdir()
    for name, text in FILES.items():
        (root / name).write_text(text)
    who = ["-c", "user.name=x", "-c", "user.email=x@y.invalid"]
    for arguments in (["init", "-q"], ["add", "."], [*who, "commit", "-qmx"]):
        subprocess.run(["git", "-C", str(root), *arguments], check=True)
    (root / ".crewboard/default/results").mkdir(parents=True)
    (root / ".crewboard/.gitignore").write_text("*\n")
    return root


@pytest.fixture
def scratch() -> Iterator[Path]:
    made = Scratch.make()
    write_git_settings(made.path / GIT_SETTINGS, "scout", made.path)
    yield made.path
    made.remove()


def sandbox_of(
    targets: Targets, kind: str, level: Level, project: Path, scratch: Path, *, network: bool = False
) -> Sandbox:
    sandbox = targets.sandbox(kind, level, network=network)
    policy = replace(sandbox.policy, root=project, scratch=scratch, host=HostPaths.of_this_machine())
    return replace(sandbox, policy=policy, results=project / ".crewboard/default/results")


COPY = "import os, shutil; shutil.copy('sums.py', os.environ['TMPDIR'] + '/b')"
THREADS = "from concurrent.futures import ThreadPoolExecutor as P; P().submit(int).result()"
SMALL = [
    '[ -z "$(git status --short)" ] && git log --oneline && git diff HEAD',
    f'cp -p sums.py $TMPDIR/a && python3 -S -c "{COPY}"',
    "f=$(mktemp) && echo x > $f && cat $f",
    "diff <(echo a) <(echo a) && cat <<< x > /dev/null",
    "python3 -S -c \"import subprocess; subprocess.run(['true'], check=True)\"",
    'python3 -S -c "import asyncio; asyncio.run(asyncio.sleep(0))"',
    f'python3 -S -c "{THREADS}"',
    f"{BIN}/ruff check .",
]
COMMANDS = {
    "small": " && ".join(f"{{ {command}; }}" for command in SMALL),
    "pytest": f"export PYTEST_DISABLE_PLUGIN_AUTOLOAD=1; {BIN}/python -m pytest -q && {BIN}/python -m pytest -q --lf",
    "mypy": f"{BIN}/mypy sums.py",
}
_HEAVY = [
    pytest.param(level, name, marks=pytest.mark.long)
    for level, name in (
        ("bubblewrap", "small"), ("bubblewrap", "pytest"), ("landlock", "pytest"),
        ("bubblewrap", "mypy"), ("landlock", "mypy"),
    )
]  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize(
    ("level", "name"),
    [("landlock", "small"), *_HEAVY],
    indirect=["level"],
)
def test_a_read_only_workspace_is_good_to_work_in(
    targets: Targets, level: Level, project: Path, scratch: Path, name: str
) -> None:
    before = fingerprint(project)
    outcome = run(sandbox_of(targets, "test", level, project, scratch), COMMANDS[name])
    assert outcome.content.endswith("[exit code 0]"), outcome.content
    for word in ("ermission denied", "ead-only", "arning", "not permitted"):
        assert word not in outcome.content
    assert fingerprint(project) == before


def test_scratch_lasts_from_command_to_command(targets: Targets, level: Level, project: Path, scratch: Path) -> None:
    sandbox = sandbox_of(targets, "test", level, project, scratch)
    run(sandbox, "echo kept > $TMPDIR/note")
    assert run(sandbox, "cat $TMPDIR/note").content.startswith("kept")


COMMIT = "echo '# more' >> sums.py && git add sums.py && git commit -q -m more && git log --format=%an:%s -1"


def test_code_commits(targets: Targets, level: Level, project: Path, scratch: Path) -> None:
    outcome = run(sandbox_of(targets, "code", level, project, scratch), COMMIT)
    if level == "landlock":  # docs/reference/sandbox.md: rights to `.git` would be rights to its hooks
        assert "Permission denied" in outcome.content
        return
    assert outcome.content.endswith(":more\n[exit code 0]"), outcome.content
    assert (project / ".git/index").stat().st_uid == os.getuid()


@pytest.mark.long
def test_code_creates_and_removes(targets: Targets, level: Level, project: Path, scratch: Path) -> None:
    (project / "src").mkdir()
    sandbox = sandbox_of(targets, "code", level, project, scratch)
    assert (
        "[exit code 0]"
        in run(sandbox, "echo x > src/new && mv src/new src/newer && rm src/newer && chmod +x sums.py").content
    )
    new = run(sandbox, "echo x > new")
    assert (project / "new").exists() == (level == "bubblewrap")  # docs/reference/sandbox.md: by write_file there
    assert ("[exit code 0]" in new.content) == (level == "bubblewrap")


@pytest.mark.long
def test_new_files_are_as_open_as_the_workspace(targets: Targets, level: Level, project: Path, scratch: Path) -> None:
    (project / "src").mkdir()
    for mode, expected in ((0o755, 0o644), (0o700, 0o600)):
        project.chmod(mode)
        run(sandbox_of(targets, "code", level, project, scratch), f"echo x > src/{mode}")
        assert (project / f"src/{mode}").stat().st_mode & 0o777 == expected


@pytest.mark.long
def test_the_network_is_there_for_an_agent_hired_with_it(
    targets: Targets, level: Level, project: Path, scratch: Path
) -> None:
    sandbox = sandbox_of(targets, "test", level, project, scratch, network=True)
    port = targets.names()["tcp"]
    outcome = run(
        sandbox, f"exec 3<>/dev/tcp/127.0.0.1/{port} && cat /etc/resolv.conf /etc/hosts > /dev/null && echo through"
    )
    assert "through" in outcome.content
    assert targets.has_heard() == ["tcp"]
    denied = run(sandbox, f"{BIN}/python -c 'import socket; socket.socket(socket.AF_UNIX)'")
    assert "Permission denied" in denied.content


@pytest.mark.long
def test_a_hook_of_the_user_runs_and_stays(targets: Targets, level: Level, project: Path, scratch: Path) -> None:
    hook = project / ".git/hooks/pre-commit"
    hook.write_text("#!/bin/sh\necho checked\n")
    hook.chmod(0o755)
    outcome = run(sandbox_of(targets, "code", level, project, scratch), COMMIT)
    assert level == "landlock" or "checked" in outcome.content
    assert hook.read_text().endswith("echo checked\n")


@pytest.mark.long
def test_a_repository_without_hooks_gets_none(targets: Targets, level: Level, project: Path, scratch: Path) -> None:
    shutil.rmtree(project / ".git/hooks")
    run(sandbox_of(targets, "code", level, project, scratch), "mkdir -p .git/hooks; echo x > .git/hooks/pre-commit")
    assert not (project / ".git/hooks/pre-commit").exists()


def test_the_programs_that_run_the_team_stay_as_they_are(
    targets: Targets, level: Level, project: Path, scratch: Path
) -> None:
    """A virtual environment in the workspace is what the next worker starts from."""
    venv = project / "env/.venv"
    (venv / "bin").mkdir(parents=True)
    (project / "env/notes").write_text("x\n")
    sandbox = sandbox_of(targets, "code", level, project, scratch)
    own = replace(sandbox, policy=replace(sandbox.policy, host=replace(sandbox.policy.host, own=(venv,))))
    tries = "echo x > env/notes && echo noted; echo x > env/.venv/bin/python || echo kept; mv env gone || echo stayed"
    outcome = run(own, tries)
    assert outcome.content.splitlines()[0] == "noted"
    assert "kept" in outcome.content
    assert "stayed" in outcome.content
