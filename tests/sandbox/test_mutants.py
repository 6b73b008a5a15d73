"""Mutation tests of the sandbox: without any of its rules, an attempt that the rule prevents succeeds."""

import os
from collections.abc import Callable

import pytest

from crewboard.agent_types import TYPES
from crewboard.sandbox import bubblewrap, host_paths, landlock, seccomp
from crewboard.sandbox.level import Level
from crewboard.sandbox.policy import Policy
from crewboard.sandbox.sandbox import Sandbox
from crewboard.unix import syscalls
from tests.sandbox.attempts import ATTEMPTS
from tests.sandbox.conftest import need
from tests.sandbox.targets import ESCAPED, Targets, fingerprint, run, run_as_file_server

BY_NAME = {attempt.name: attempt for attempt in ATTEMPTS}
ROOT_ONLY = {"user", "capabilities", "settings", "system secrets"}

BUBBLEWRAP = [
    ("user", "the host's user namespace"),
    ("capabilities", "capabilities"),
    ("processes", "see a process outside"),
    ("shared memory", "shared memory of the host"),
    ("network", "TCP"),
    ("session", "the session of the worker"),
    ("devices", "a host's /dev/shm"),
    ("proc", "the arguments of a process outside"),
    ("settings", "write a setting of the kernel"),
    ("hidden", "a key in the home"),
    ("system secrets", "passwords of the machine"),
    ("kept", "a hook"),
    ("team", "read the team's roster"),
]
NOT_PROTECTIVE = {"lifetime", "host", "tools", "names", "workspace", "private", "scratch"}
"""Rules tested elsewhere: in `test_shell`, by what they show instead of what they hide, or below."""

Rules = dict[str, list[str]]


def succeeds(targets: Targets, level: Level, kind: str, name: str) -> bool:
    """Return True if an attempt succeeds."""
    before = _state(targets)
    outcome = run(targets.sandbox(kind, level), BY_NAME[name].text.format(**targets.names()))
    heard = targets.has_heard()
    return ESCAPED in outcome.content or bool(heard) or _state(targets) != before


def _state(targets: Targets) -> tuple[str, str]:
    return fingerprint(targets.root, folder_times=False), fingerprint(targets.outside)


def with_rules(patch: pytest.MonkeyPatch, change: Callable[[Rules], Rules]) -> None:
    real = bubblewrap.rules
    patch.setattr(bubblewrap, "rules", lambda policy: change(real(policy)))


def test_every_rule_of_bubblewrap_is_tried(targets: Targets) -> None:
    named = {name for kind in TYPES for name in bubblewrap.rules(targets.sandbox(kind, "bubblewrap").policy)}
    assert named - NOT_PROTECTIVE - ROOT_ONLY == {rule for rule, _ in BUBBLEWRAP} - ROOT_ONLY


@pytest.mark.long
@pytest.mark.parametrize(("rule", "attempt"), BUBBLEWRAP)
def test_without_a_rule_of_bubblewrap(
    targets: Targets, works: dict[Level, str | None], monkeypatch: pytest.MonkeyPatch, rule: str, attempt: str
) -> None:
    need("bubblewrap", works)
    if rule in ROOT_ONLY and os.getuid() != 0:
        pytest.skip("only root needs it")
    kind = "code"
    assert not succeeds(targets, "bubblewrap", kind, attempt)
    # A new /proc cannot be had without a namespace for it.
    left_out = {rule, "proc", "settings"} if rule in ("processes", "proc") else {rule}
    with_rules(monkeypatch, lambda rules: {name: rules[name] for name in rules if name not in left_out})
    assert succeeds(targets, "bubblewrap", kind, attempt)
    (targets.root / ".git/hooks/pre-commit").unlink(missing_ok=True)


@pytest.mark.long
@pytest.mark.parametrize("attempt", ["a team in a folder below", "mail of a team below"])
def test_without_hiding_teams_below(
    targets: Targets, level: Level, monkeypatch: pytest.MonkeyPatch, attempt: str
) -> None:
    assert not succeeds(targets, level, "code", attempt)
    monkeypatch.setattr(Policy, "team_folders", lambda self: host_paths.team_folders(self.root))
    assert succeeds(targets, level, "code", attempt)


@pytest.mark.long
@pytest.mark.parametrize(("rule", "attempt"), [("host", "new file outside"), ("workspace", "new file")])
def test_with_a_writable_mount(
    targets: Targets, works: dict[Level, str | None], monkeypatch: pytest.MonkeyPatch, rule: str, attempt: str
) -> None:
    need("bubblewrap", works)
    assert not succeeds(targets, "bubblewrap", "test", attempt)
    with_rules(monkeypatch, lambda rules: {**rules, rule: ["--bind", *rules[rule][1:]]})
    assert succeeds(targets, "bubblewrap", "test", attempt)
    for folder in (targets.root, targets.outside):
        (folder / "new").unlink(missing_ok=True)


IN_BUBBLEWRAP = [
    ("namespaces", "a user namespace"),
    ("kernel", "keys of the kernel"),
    ("sockets", "a socket outside"),
    ("modes", "a setuid file"),
]


def test_every_filter_used_in_bubblewrap_is_tried() -> None:
    # Sessions protect the terminal too.
    assert set(seccomp.in_bubblewrap()) - {"terminals"} == {rule for rule, _ in IN_BUBBLEWRAP}


@pytest.mark.long
@pytest.mark.parametrize(("rule", "attempt"), IN_BUBBLEWRAP)
def test_without_a_filter_used_in_bubblewrap(
    targets: Targets, works: dict[Level, str | None], monkeypatch: pytest.MonkeyPatch, rule: str, attempt: str
) -> None:
    need("bubblewrap", works)
    assert not succeeds(targets, "bubblewrap", "test", attempt)
    rules = {name: each for name, each in seccomp.in_bubblewrap().items() if name != rule}
    monkeypatch.setattr(seccomp, "in_bubblewrap", lambda: rules)
    assert succeeds(targets, "bubblewrap", "test", attempt)


FILTERS = [
    ("namespaces", "a user namespace", "test"),
    ("kernel", "keys of the kernel", "test"),
    ("terminals", "an immutable flag", "test"),
    ("sockets", "UDP", "test"),
    ("processes", "limits of a process outside", "test"),
    ("shared memory", "shared memory of the host", "test"),
    ("metadata", "change the mode", "test"),
    ("modes", "a setuid file by open", "test"),
]


def test_every_filter_used_with_landlock_is_tried() -> None:
    named = seccomp.with_landlock(network=False, writes=False, scoped=False)
    assert set(named) - {"signals"} == {name for name, _, _ in FILTERS}


@pytest.mark.long
@pytest.mark.parametrize(("rule", "attempt", "kind"), FILTERS)
def test_without_a_filter_used_with_landlock(
    targets: Targets,
    works: dict[Level, str | None],
    monkeypatch: pytest.MonkeyPatch,
    rule: str,
    attempt: str,
    kind: str,
) -> None:
    need("landlock", works)
    assert not succeeds(targets, "landlock", kind, attempt)
    without(monkeypatch, rule)
    assert succeeds(targets, "landlock", kind, attempt)
    if rule == "metadata":
        (targets.root / "file").chmod(0o644)


def without(patch: pytest.MonkeyPatch, rule: str) -> None:
    real = landlock.filters
    patch.setattr(landlock, "filters", lambda policy: {k: v for k, v in real(policy).items() if k != rule})


@pytest.mark.long
def test_without_landlock_itself(
    targets: Targets, works: dict[Level, str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    need("landlock", works)
    assert not succeeds(targets, "landlock", "test", "a key in the home")
    monkeypatch.setattr(syscalls, "restrict_files", lambda granted, abi, network: None)
    assert succeeds(targets, "landlock", "test", "a key in the home")


@pytest.mark.long
def test_without_the_gaps_in_what_landlock_grants(
    targets: Targets, works: dict[Level, str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    need("landlock", works)
    assert not succeeds(targets, "landlock", "test", "read the team's roster")
    real = landlock.grants
    monkeypatch.setattr(landlock, "grants", lambda policy: [*real(policy), (policy.root, syscalls.READ)])
    assert succeeds(targets, "landlock", "test", "read the team's roster")


@pytest.mark.long
def test_without_keeping_signals_in(
    targets: Targets, works: dict[Level, str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Landlock keeps them in from ABI 6 on, the filter below that; without both they get out."""
    need("landlock", works)
    monkeypatch.setattr(syscalls, "SCOPES_SIGNALS", 99)
    assert not succeeds(targets, "landlock", "test", "see a process outside")
    without(monkeypatch, "signals")
    assert succeeds(targets, "landlock", "test", "see a process outside")


@pytest.mark.long
def test_without_dropping_capabilities(
    targets: Targets, works: dict[Level, str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    need("landlock", works)
    if os.getuid() != 0:
        pytest.skip("only root has any")
    assert not succeeds(targets, "landlock", "test", "capabilities")
    monkeypatch.setattr(syscalls, "drop_capabilities", lambda: None)
    assert succeeds(targets, "landlock", "test", "capabilities")


@pytest.mark.parametrize("abi", [3, 4, 5])
@pytest.mark.parametrize("attempt", ["TCP", "a signal by pidfd", "an owner of signals", "redirect", "truncate"])
def test_an_older_landlock_holds_as_well(
    targets: Targets, works: dict[Level, str | None], monkeypatch: pytest.MonkeyPatch, abi: int, attempt: str
) -> None:
    need("landlock", works)
    real = syscalls.landlock_abi()
    monkeypatch.setattr(syscalls, "landlock_abi", lambda: min(real, abi))
    assert not succeeds(targets, "landlock", "test", attempt)
    assert targets.victim.poll() is None


def test_a_home_as_workspace_keeps_its_private_entries(targets: Targets, level: Level) -> None:
    (targets.home / "work.txt").write_text("work\n")
    for writes in (False, True):
        policy = Policy(targets.home, writes=writes, host=targets.places())
        sandbox = Sandbox(level, policy, targets.team.results)
        for outcome in (
            run(sandbox, "cat work.txt .ssh/id_rsa; ls -A .ssh"),
            run_as_file_server(sandbox, "cat work.txt .ssh/id_rsa"),
        ):
            assert "work" in outcome.content
            assert "sk-ant" not in outcome.content
    (targets.home / "work.txt").unlink()
