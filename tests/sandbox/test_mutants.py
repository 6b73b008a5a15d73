"""Each rule of the wall is there for something: without it, an attempt that it is meant against gets through."""

import os
from collections.abc import Callable

import pytest

from crewboard.agent_types.builtin import TYPES
from crewboard.linux import syscalls
from crewboard.sandbox import bubblewrap, landlock, seccomp
from crewboard.sandbox.level import Level
from crewboard.sandbox.policy import Policy
from crewboard.sandbox.sandbox import Sandbox
from tests.sandbox.attempts import ATTEMPTS
from tests.sandbox.conftest import need
from tests.sandbox.targets import ESCAPED, Scene, fingerprint, run, run_as_hands

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
    ("repository", "a hook"),
    ("team", "read the team's roster"),
    ("sockets", "a socket outside"),
]
NO_WALLS = {"lifetime", "host", "tools", "names", "workspace", "own code", "private", "scratch"}
"""Tried otherwise: in `test_shell`, by what they show instead of what they hide, or below."""

Rules = dict[str, list[str]]


def succeeds(scene: Scene, level: Level, kind: str, name: str) -> bool:
    """Whether an attempt gets through."""
    before = fingerprint(scene.root), fingerprint(scene.outside)
    outcome = run(scene.box(kind, level), BY_NAME[name].text.format(**scene.names()))
    heard = scene.has_heard()
    return ESCAPED in outcome.content or bool(heard) or (fingerprint(scene.root), fingerprint(scene.outside)) != before


def with_rules(patch: pytest.MonkeyPatch, change: Callable[[Rules], Rules]) -> None:
    real = bubblewrap.rules
    patch.setattr(bubblewrap, "rules", lambda policy: change(real(policy)))


def test_every_rule_of_bubblewrap_is_tried(scene: Scene) -> None:
    named = {name for kind in TYPES for name in bubblewrap.rules(scene.box(kind, "bubblewrap").policy)}
    assert named - NO_WALLS - ROOT_ONLY == {rule for rule, _ in BUBBLEWRAP} - ROOT_ONLY


@pytest.mark.parametrize(("rule", "attempt"), BUBBLEWRAP)
def test_without_a_rule_of_bubblewrap(
    scene: Scene, works: dict[Level, str | None], monkeypatch: pytest.MonkeyPatch, rule: str, attempt: str
) -> None:
    need("bubblewrap", works)
    if rule in ROOT_ONLY and os.getuid() != 0:
        pytest.skip("only root needs it")
    kind = "code"
    assert not succeeds(scene, "bubblewrap", kind, attempt)
    # A new /proc cannot be had without a namespace for it.
    left_out = {rule, "proc", "settings"} if rule in ("processes", "proc") else {rule}
    with_rules(monkeypatch, lambda rules: {name: rules[name] for name in rules if name not in left_out})
    assert succeeds(scene, "bubblewrap", kind, attempt)
    (scene.root / ".git/hooks/pre-commit").unlink(missing_ok=True)


@pytest.mark.parametrize(("rule", "attempt"), [("host", "new file outside"), ("workspace", "new file")])
def test_with_a_writable_mount(
    scene: Scene, works: dict[Level, str | None], monkeypatch: pytest.MonkeyPatch, rule: str, attempt: str
) -> None:
    need("bubblewrap", works)
    assert not succeeds(scene, "bubblewrap", "test", attempt)
    with_rules(monkeypatch, lambda rules: {**rules, rule: ["--bind", *rules[rule][1:]]})
    assert succeeds(scene, "bubblewrap", "test", attempt)
    for folder in (scene.root, scene.outside):
        (folder / "new").unlink(missing_ok=True)


def test_without_the_filter_of_bubblewrap(
    scene: Scene, works: dict[Level, str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    need("bubblewrap", works)
    assert not succeeds(scene, "bubblewrap", "test", "a user namespace")
    monkeypatch.setattr(seccomp, "in_bubblewrap", lambda network: {})
    assert succeeds(scene, "bubblewrap", "test", "a user namespace")


FILTERS = [
    ("namespaces", "a user namespace", "test"),
    ("kernel", "keys of the kernel", "test"),
    ("terminals", "an immutable flag", "test"),
    ("sockets", "UDP", "test"),
    ("processes", "limits of a process outside", "test"),
    ("shared memory", "shared memory of the host", "test"),
    ("metadata", "change the mode", "test"),
]


def test_every_filter_beside_landlock_is_tried() -> None:
    named = seccomp.beside_landlock(network=False, writes=False, scoped=False)
    assert set(named) - {"signals"} == {name for name, _, _ in FILTERS}


@pytest.mark.parametrize(("rule", "attempt", "kind"), FILTERS)
def test_without_a_filter_beside_landlock(
    scene: Scene, works: dict[Level, str | None], monkeypatch: pytest.MonkeyPatch, rule: str, attempt: str, kind: str
) -> None:
    need("landlock", works)
    assert not succeeds(scene, "landlock", kind, attempt)
    without(monkeypatch, rule)
    assert succeeds(scene, "landlock", kind, attempt)
    if rule == "metadata":
        (scene.root / "file").chmod(0o644)


def without(patch: pytest.MonkeyPatch, rule: str) -> None:
    real = landlock.filters
    patch.setattr(landlock, "filters", lambda policy: {k: v for k, v in real(policy).items() if k != rule})


def test_without_landlock_itself(scene: Scene, works: dict[Level, str | None], monkeypatch: pytest.MonkeyPatch) -> None:
    need("landlock", works)
    assert not succeeds(scene, "landlock", "test", "a key in the home")
    monkeypatch.setattr(syscalls, "restrict_files", lambda granted, abi, network: None)
    assert succeeds(scene, "landlock", "test", "a key in the home")


def test_without_the_gaps_in_what_landlock_grants(
    scene: Scene, works: dict[Level, str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    need("landlock", works)
    assert not succeeds(scene, "landlock", "test", "read the team's roster")
    real = landlock.grants
    monkeypatch.setattr(landlock, "grants", lambda policy: [*real(policy), (policy.root, syscalls.READ)])
    assert succeeds(scene, "landlock", "test", "read the team's roster")


def test_without_keeping_signals_in(
    scene: Scene, works: dict[Level, str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Landlock keeps them in from ABI 6 on, the filter below that; without both they get out."""
    need("landlock", works)
    monkeypatch.setattr(syscalls, "SCOPES_SIGNALS", 99)
    assert not succeeds(scene, "landlock", "test", "see a process outside")
    without(monkeypatch, "signals")
    assert succeeds(scene, "landlock", "test", "see a process outside")


def test_without_dropping_capabilities(
    scene: Scene, works: dict[Level, str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    need("landlock", works)
    if os.getuid() != 0:
        pytest.skip("only root has any")
    assert not succeeds(scene, "landlock", "test", "capabilities")
    monkeypatch.setattr(syscalls, "drop_capabilities", lambda: None)
    assert succeeds(scene, "landlock", "test", "capabilities")


@pytest.mark.parametrize("abi", [3, 4, 5])
@pytest.mark.parametrize("attempt", ["TCP", "a signal by pidfd", "an owner of signals", "redirect", "truncate"])
def test_an_older_landlock_holds_as_well(
    scene: Scene, works: dict[Level, str | None], monkeypatch: pytest.MonkeyPatch, abi: int, attempt: str
) -> None:
    need("landlock", works)
    real = syscalls.landlock_abi()
    monkeypatch.setattr(syscalls, "landlock_abi", lambda: min(real, abi))
    assert not succeeds(scene, "landlock", "test", attempt)
    assert scene.victim.poll() is None


def test_a_home_as_workspace_keeps_its_private_entries(scene: Scene, level: Level) -> None:
    (scene.home / "work.txt").write_text("work\n")
    for writes in (False, True):
        policy = Policy(scene.home, writes=writes, places=scene.places())
        box = Sandbox(level, policy, scene.team.results)
        for outcome in (
            run(box, "cat work.txt .ssh/id_rsa; ls -A .ssh"),
            run_as_hands(box, "cat work.txt .ssh/id_rsa"),
        ):
            assert "work" in outcome.content
            assert "sk-ant" not in outcome.content
    (scene.home / "work.txt").unlink()
