"""Which state an agent is in, where the facts are late or disagree."""

from crewboard.records import Exit, Spec, Status
from crewboard.view.states import LEAVING_PATIENCE, Evidence, find_state

NOW = 1000.0


def _spec(run: int = 1) -> Spec:
    return Spec(prompt="p", prompt_id="p1", type="code", run=run, at=NOW - 5)


def _status(state: str = "working", run: int = 1, **more: object) -> Status:
    status = Status(run=run, pid=77, state="working", since=NOW - 9, doing="bash ls")
    return status.model_copy(update={"state": state, **more})


def _see(**facts: object) -> tuple[str, str]:
    seen = {"held": True, "spec": _spec(), "status": _status(), "exit": None, "boot_id": "b", "now": NOW, **facts}
    found = find_state(Evidence(**seen))  # type: ignore[arg-type]
    return found.state, found.reason


def test_a_held_lease_whose_process_is_gone_is_a_conflict_and_says_so() -> None:
    assert _see(pid_gone=True) == ("unknown", "says working · pid 77 gone · lease still held")


def test_a_worker_that_has_written_its_end_is_stopping_until_it_is_gone() -> None:
    assert _see(exit=Exit(run=1, code=0, reason="finished", at=NOW - 1))[0] == "stopping"


def test_a_worker_that_stays_after_its_end_contradicts_itself() -> None:
    state, reason = _see(exit=Exit(run=1, code=0, reason="finished", at=NOW - LEAVING_PATIENCE - 1))
    assert state == "unknown"
    assert "exit record says finished · lease still held" in reason


def test_a_new_run_that_has_only_its_lease_is_starting() -> None:
    assert _see(spec=_spec(run=2), exit=Exit(run=1, signal=9, reason="died", at=NOW - 60))[0] == "starting"
    assert _see(spec=_spec(run=2), pid_gone=True)[0] == "starting"


def test_a_deadline_that_passed_is_stuck_and_repeats_are_a_loop() -> None:
    assert _see(status=_status(deadline=NOW - 1))[0] == "stuck"
    assert _see(status=_status(repeats=5, last_tool="grep x")) == ("looping", "grep x ×5, same outcome")
    assert _see(status=_status("idle", repeats=9))[0] == "idle"


def test_nobody_holds_the_lease() -> None:
    assert _see(held=False)[0] == "vanished"
    assert _see(held=False, exit=Exit(run=1, signal=9, reason="died", at=NOW)) == ("crashed", "killed by SIGKILL")
    assert _see(held=False, status=_status(boot_id="other"))[0] == "exited"
    assert _see(held=False, spec=None)[0] == "unknown"
