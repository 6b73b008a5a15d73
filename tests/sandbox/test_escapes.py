"""Escape attempts that must fail, on each level, for each kind of agent."""

import json
import re
import sys

import pytest

from crewboard.agent_types import TYPES
from crewboard.sandbox.level import Level
from tests.sandbox.attempts import ATTEMPTS, SCRIPT_IMPORT, Attempt
from tests.sandbox.conftest import LEVELS
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


CASES = [(kind, attempt) for kind in KINDS for attempt in ATTEMPTS if _applies(attempt.scope, kind)]

_ALL = """
import json, os, sys, tempfile
try:
    {script_import}
except Exception as error:
    print(error)
scratch = os.environ.get("TMPDIR")
for name, text, code in json.loads({attempts!r}):
    # What another attempt left there could make this one fail.
    if scratch:
        os.environ["TMPDIR"] = tempfile.mkdtemp(dir=scratch)
    output = os.memfd_create("output")
    child = os.fork()
    if child == 0:
        os.dup2(output, 1)
        os.dup2(output, 2)
        if not code:
            os.execlp("bash", "bash", "-c", text)
        try:
            exec(code, {{"__name__": "__main__"}})
        except BaseException as error:
            print(repr(error))
        sys.stdout.flush()
        os._exit(0)
    os.waitpid(child, 0)
    said = os.pread(output, 1 << 20, 0)
    os.close(output)
    verdict = "{escaped}" if b"{escaped}" in said else said[:100]
    print(f"== {{name}} == {{verdict}}", flush=True)
"""
"""Makes attempts one after another, each in a process of its own."""


def _run(targets: Targets, level: Level, kind: str, text: str) -> str:
    sandbox = targets.sandbox(kind, level)
    ran = run(sandbox, text, 60) if TYPES[kind].executes else run_as_file_server(sandbox, text)
    return ran.content


def _try_alone(targets: Targets, level: Level, kind: str, attempt: Attempt) -> None:
    before = _state(targets, kind)
    output = _run(targets, level, kind, attempt.text.format(**targets.names()))
    heard = targets.has_heard()
    after = _state(targets, kind)
    if (level, kind) in attempt.open_at:
        assert ESCAPED in output or heard or after != before, "docs/reference/sandbox.md says that this is possible"
        return
    assert ESCAPED not in output, output
    assert not heard
    assert after == before, output


# By default each level has one kind that commands run for, and bubblewrap one that changes nothing.
_OTHERS = {("bubblewrap", "test"), ("landlock", "explore"), ("landlock", "test")}


@pytest.mark.parametrize(
    ("level", "kind"),
    [
        pytest.param(level, kind, marks=[pytest.mark.long] if (level, kind) in _OTHERS else [])
        for level in LEVELS
        for kind in KINDS
    ],
    indirect=["level"],
)
def test_no_attempt_gets_out(targets: Targets, level: Level, kind: str) -> None:
    closed = [each for of, each in CASES if of == kind and (level, kind) not in each.open_at]
    names = targets.names()
    attempts = [(each.name, each.text.format(**names), each.code.format(**names)) for each in closed]
    script = _ALL.format(script_import=SCRIPT_IMPORT, escaped=ESCAPED, attempts=json.dumps(attempts))
    before = _state(targets, kind)
    output = _run(targets, level, kind, f"{sys.executable} -I - <<'ATTEMPTS'\n{script}\nATTEMPTS\n")
    heard = targets.has_heard()
    tried = re.findall(r"^== (.*?) == ", output, re.MULTILINE)
    assert tried == [each.name for each in closed]
    if ESCAPED in output or heard or _state(targets, kind) != before:
        for attempt in closed:
            _try_alone(targets, level, kind, attempt)
        raise AssertionError(f"what no attempt does alone, they do together; heard: {heard}\n{output}")


@pytest.mark.parametrize(
    ("kind", "attempt"),
    [pytest.param(*case, id="-".join((case[0], case[1].name))) for case in CASES if case[1].open_at],
)
def test_what_is_open_is_what_the_policy_says(targets: Targets, level: Level, kind: str, attempt: Attempt) -> None:
    if (level, kind) in attempt.open_at:
        _try_alone(targets, level, kind, attempt)


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "attempt"), [pytest.param(*case, id=f"{case[0]}-{case[1].name.replace(' ', '_')}") for case in CASES]
)
def test_it_does_not_get_out(targets: Targets, level: Level, kind: str, attempt: Attempt) -> None:
    _try_alone(targets, level, kind, attempt)
