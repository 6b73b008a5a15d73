"""Escape attempts that must fail, on each level, for each kind of agent."""

import pytest

from crewboard.agent_types import TYPES
from crewboard.sandbox.level import Level
from tests.sandbox.attempts import ATTEMPTS, Attempt
from tests.sandbox.targets import ESCAPED, Targets, fingerprint, run, run_as_file_server

KINDS = ("explore", "test", "code")
"""One for each set of rights: the others share theirs with one of these."""


def test_every_type_has_the_rights_of_one_that_is_tried() -> None:
    tried = {(TYPES[kind].writes, TYPES[kind].executes) for kind in KINDS}
    assert {(kind.writes, kind.executes) for kind in TYPES.values()} == tried


def _state(targets: Targets, kind: str) -> dict[str, object]:
    """Return everything that an attempt may not change or reach."""
    return {
        "workspace": fingerprint(targets.root, folder_times=not TYPES[kind].writes),
        "outside": fingerprint(targets.outside),
        "home": fingerprint(targets.home),
        "victim": targets.victim.poll(),
    }


def _applies(scope: str, kind: str) -> bool:
    return {"readers": not TYPES[kind].writes, "commands": TYPES[kind].executes, "everyone": True}[scope]


CASES = [
    pytest.param(kind, attempt, id=f"{kind}-{attempt.name.replace(' ', '_')}")
    for kind in KINDS
    for attempt in ATTEMPTS
    if _applies(attempt.scope, kind)
]


@pytest.mark.parametrize(("kind", "attempt"), CASES)
def test_it_does_not_get_out(targets: Targets, level: Level, kind: str, attempt: Attempt) -> None:
    before = _state(targets, kind)
    sandbox = targets.sandbox(kind, level)
    text = attempt.text.format(**targets.names())
    outcome = run(sandbox, text) if TYPES[kind].executes else run_as_file_server(sandbox, text)
    heard = targets.has_heard()
    after = _state(targets, kind)
    if (level, kind) in attempt.open_at:
        assert ESCAPED in outcome.content or heard or after != before, "SECURITY.md says that this is possible"
        return
    assert ESCAPED not in outcome.content, outcome.content
    assert not heard
    assert after == before, outcome.content
