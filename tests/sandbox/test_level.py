"""Tests of the sandbox level: which one an agent gets, when a hire is refused, and what is reported."""

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from crewboard.agent_types import TYPES
from crewboard.errors import NoSandboxError, UsageError
from crewboard.records.agents import SANDBOX_OFF, HireOptions
from crewboard.sandbox import bubblewrap, landlock
from crewboard.sandbox.host_paths import HostPaths
from crewboard.sandbox.level import Found, Level, find, require_allowed
from crewboard.sandbox.policy import Policy
from crewboard.unix import programs, syscalls
from tests.planted import Planted
from tests.sandbox.conftest import need
from tests.sandbox.targets import Targets

NOTHING = Found("none", ("bubblewrap is not installed", "Landlock is not available"))


@pytest.fixture
def policy(tmp_path: Path) -> Policy:
    return Policy(tmp_path, writes=True)


def with_bwrap(folder: Path, text: str) -> str:
    """Return a PATH on which `bwrap` is a script."""
    folder.mkdir(mode=0o755, exist_ok=True)
    program = folder / "bwrap"
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


def test_bubblewrap_comes_first(policy: Policy, works: dict[Level, str | None]) -> None:
    need("bubblewrap", works)
    assert find(policy, {}) == Found("bubblewrap")


def test_where_bubblewrap_fails_landlock_is_taken(
    policy: Policy, works: dict[Level, str | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need("landlock", works)
    monkeypatch.setenv("PATH", with_bwrap(tmp_path.parent / "bin", "echo 'setting up uid map: denied' >&2; exit 1"))
    assert find(policy, {}) == Found("landlock", ("setting up uid map: denied",))


def test_where_neither_works_there_is_none(policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(syscalls, "landlock_abi", lambda: 2)
    found = find(policy, {})
    assert found.level == "none"
    assert found.reasons == ("bubblewrap is not installed", "Landlock is of ABI 2, which is older than 3")


def test_a_fork_does_not_try_again_what_was_tried_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = tmp_path / "runs"
    monkeypatch.setattr(bubblewrap, "_tried", {})
    monkeypatch.setenv("PATH", with_bwrap(tmp_path / "bin", f"echo run >> {runs}"))
    bubblewrap.try_for_forks(tmp_path / "root")
    tried = runs.read_text().count("run")
    for writes in (False, True):
        assert bubblewrap.unavailable_reason(Policy(tmp_path / "root", writes=writes)) is None
    assert runs.read_text().count("run") == tried
    for _ in range(2):
        assert bubblewrap.unavailable_reason(Policy(tmp_path / "root", writes=False, network=True)) is None
        assert runs.read_text().count("run") == tried + 1, "an open dashboard tries a policy once"
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + bubblewrap.TRIED_FOR + 1)
    assert bubblewrap.unavailable_reason(Policy(tmp_path / "root", writes=True)) is None
    assert runs.read_text().count("run") == tried + 1, "forks live longer"


def test_a_sandbox_that_fails_later_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bubblewrap, "_tried", {})
    monkeypatch.setenv("PATH", with_bwrap(tmp_path / "bin", "exit 0"))
    policy = Policy(tmp_path / "root", writes=False)
    assert bubblewrap.unavailable_reason(policy) is None
    with_bwrap(tmp_path / "bin", "echo denied >&2; exit 1")
    assert bubblewrap.unavailable_reason(policy) is None, "it was tried just now"
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + bubblewrap.TRIED_FOR)
    assert bubblewrap.unavailable_reason(policy) == "denied"


def test_a_sandbox_that_failed_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bubblewrap, "_tried", {})
    monkeypatch.setenv("PATH", with_bwrap(tmp_path / "bin", "echo denied >&2; exit 1"))
    bubblewrap.try_for_forks(tmp_path / "root")
    assert bubblewrap.unavailable_reason(Policy(tmp_path / "root", writes=False)) == "denied"


def test_a_mount_that_disappears_during_the_probe_is_no_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bubblewrap mounts anew what it finds mounted, and fails if that is gone by then."""
    monkeypatch.setattr(bubblewrap, "_tried", {})
    monkeypatch.setenv("PATH", with_bwrap(tmp_path / "bin", f"mkdir {tmp_path}/gone 2>/dev/null && exit 1; exit 0"))
    assert bubblewrap.unavailable_reason(Policy(tmp_path / "root", writes=False)) is None


def test_a_bubblewrap_in_the_workspace_is_not_taken(
    policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", with_bwrap(tmp_path / "bin", f"touch {tmp_path}/ran"))
    bubblewrap.unavailable_reason(policy)
    assert not (tmp_path / "ran").exists()


def test_bubblewrap_without_bash_is_not_taken(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    find_program = programs.find_program
    monkeypatch.setattr(programs, "find_program", lambda name, *at: find_program(name, *at) if name != "bash" else None)
    monkeypatch.setattr(programs, "passed_over", lambda _: "")
    assert bubblewrap.unavailable_reason(policy) == "bash is not installed"


def test_a_planted_program_does_not_weaken_the_level(
    policy: Policy, level: Level, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", Planted(tmp_path, ("true", "bash")).path)
    complaint = {"bubblewrap": bubblewrap.unavailable_reason, "landlock": landlock.unavailable_reason}[level]
    assert complaint(policy) is None


def test_none_can_be_asked_for_and_nonsense_cannot(policy: Policy) -> None:
    assert find(policy, {"CREWBOARD_SANDBOX": "none"}).level == "none"
    with pytest.raises(UsageError, match="auto or none"):
        find(policy, {"CREWBOARD_SANDBOX": "off"})


@pytest.mark.parametrize("kind", sorted(TYPES))
def test_a_type_that_executes_is_refused_without_a_sandbox(kind: str) -> None:
    if not TYPES[kind].executes:
        assert require_allowed(TYPES[kind], HireOptions(), NOTHING) == "none"
        return
    with pytest.raises(NoSandboxError, match="install bubblewrap") as refused:
        require_allowed(TYPES[kind], HireOptions(), NOTHING)
    assert refused.value.exit_code == 77
    assert require_allowed(TYPES[kind], HireOptions(unsafe_no_sandbox=True), NOTHING) == SANDBOX_OFF


@pytest.mark.linux("sandbox")
@pytest.mark.parametrize(("variable", "value"), [("CREWBOARD_SANDBOX", "none"), ("CREWBOARD_PLATFORM", "posix")])
def test_a_variable_that_turns_the_sandbox_off_is_named(policy: Policy, variable: str, value: str) -> None:
    found = find(policy, {variable: value})
    for has_engine in (False, True):
        with pytest.raises(NoSandboxError, match=rf"\({variable} is {value}\).*: unset {variable}; or") as refused:
            require_allowed(TYPES["code"], HireOptions(), found, has_engine=has_engine)
        assert "install" not in str(refused.value)


def test_the_unsafe_option_does_not_weaken_a_working_level() -> None:
    assert require_allowed(TYPES["code"], HireOptions(unsafe_no_sandbox=True), Found("landlock")) == "landlock"


def test_tools_below_the_home_are_seen(targets: Targets, level: Level, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.sandbox.targets import run

    tools = targets.home / "tools/bin"
    tools.mkdir(parents=True)
    (tools / "hello").write_text("#!/bin/sh\necho hello from the home\n")
    (tools / "hello").chmod(0o755)
    monkeypatch.setenv("HOME", str(targets.home))
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    outcome = run(targets.sandbox("test", level), f"hello; cat {targets.home}/.ssh/id_rsa; ls -A {targets.home}")
    assert "hello from the home" in outcome.content
    assert "sk-ant" not in outcome.content
    (tools / "hello").unlink()
    tools.rmdir()
    tools.parent.rmdir()


def test_no_variable_for_tools_opens_what_other_programs_keep(
    targets: Targets, level: Level, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.sandbox.targets import run

    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["/tmp", "/var/tmp", "/run"]))
    sandbox = targets.sandbox("test", level)
    sandbox = replace(sandbox, policy=replace(sandbox.policy, host=HostPaths.of_this_machine()))
    outcome = run(sandbox, f"cat {targets.outside}/file | tr a-z A-Z")
    assert "OUTSIDE" not in outcome.content


@pytest.mark.parametrize("linked", [False, True])
def test_landlock_lets_no_command_write_in_the_repository(tmp_path: Path, linked: bool) -> None:
    for name in ("real/hooks", "src"):
        (tmp_path / name).mkdir(parents=True)
    if linked:
        (tmp_path / ".git").symlink_to("real")
    else:
        (tmp_path / "real").rename(tmp_path / ".git")
    granted = dict(landlock.grants(Policy(tmp_path, writes=True)))
    below = {path.relative_to(tmp_path): rights for path, rights in granted.items() if path.is_relative_to(tmp_path)}
    assert below[Path("src")] & syscalls.WRITE == syscalls.WRITE
    assert below[Path(".git")] == syscalls.READ
    fixed = {(), (".git",), ("real",)}
    assert not [path for path, rights in below.items() if path.parts[:1] in fixed and rights & syscalls.WRITE]
