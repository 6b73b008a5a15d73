"""The state of an agent, where the facts are late or disagree."""

from pathlib import Path

import pytest

from crewboard.readmodel.reader import TeamReader
from crewboard.readmodel.states import CAUSE_TIMEOUT, EXIT_TIMEOUT, Evidence, find_state
from crewboard.records.agents import Spec, Status
from crewboard.records.processes import VANISHED, Exit, describe_exit
from crewboard.store.interface import Key
from tests.frozen import NOW, FrozenProbe, make_empty


def _spec(run: int = 1) -> Spec:
    return Spec(prompt="p", prompt_id="p1", type="code", run=run, at=NOW - 5)


def _status(state: str = "working", run: int = 1, **more: object) -> Status:
    status = Status(run=run, pid=77, state="working", since=NOW - 9, doing="bash ls")
    return status.replace(state=state, **more)


def _see(**facts: object) -> tuple[str, str]:
    seen = {"held": True, "spec": _spec(), "status": _status(), "exit": None, "boot_id": "b", "now": NOW, **facts}
    found = find_state(Evidence(**seen))  # type: ignore[arg-type]
    return found.state, found.reason


def test_a_held_lease_without_its_process_is_a_conflict() -> None:
    assert _see(pid_gone=True) == ("unknown", "says working · pid 77 gone · lease still held")


def test_a_worker_with_an_exit_record_is_stopping_until_gone() -> None:
    assert _see(exit=Exit(run=1, code=0, reason="finished", at=NOW - 1))[0] == "stopping"


def test_a_worker_that_stays_after_its_end_contradicts_itself() -> None:
    state, reason = _see(exit=Exit(run=1, code=0, reason="finished", at=NOW - EXIT_TIMEOUT - 1))
    assert state == "unknown"
    assert "exit record says finished · lease still held" in reason


def test_a_new_run_that_has_only_its_lease_is_starting() -> None:
    assert _see(spec=_spec(run=2), exit=Exit(run=1, signal=9, reason="died", at=NOW - 60))[0] == "starting"
    assert _see(spec=_spec(run=2), pid_gone=True)[0] == "starting"


def test_a_deadline_that_passed_is_stuck_and_repeats_are_a_loop() -> None:
    assert _see(status=_status(deadline=NOW - 1))[0] == "stuck"
    assert _see(status=_status(repeats=5, last_tool="grep x")) == ("looping", "grep x ×5, same outcome")
    assert _see(status=_status("idle", repeats=9))[0] == "idle"


@pytest.mark.parametrize("day", [86_400, -86_400])
def test_a_clock_that_jumps_makes_no_agent_stuck_and_hides_none(day: float) -> None:
    status = _status(boot_id="b", deadline=NOW + 60, deadline_monotonic=1060.0)
    assert _see(status=status, now=NOW + day, monotonic=1000.0)[0] == "working"
    assert _see(status=status, now=NOW + day, monotonic=1061.0)[0] == "stuck"
    after_a_boot = status.replace(boot_id="before")
    assert _see(status=after_a_boot, now=NOW + 61, monotonic=1000.0)[0] == "stuck"


def test_no_process_holds_the_lease() -> None:
    assert _see(held=False)[0] == "vanished"
    assert _see(held=False, exit=Exit(run=1, signal=9, reason="died", at=NOW)) == ("crashed", "killed by SIGKILL")
    assert _see(held=False, status=_status(boot_id="other"))[0] == "exited"
    assert _see(held=False, spec=None)[0] == "unknown"


def test_a_lost_lease_is_a_crash_only_if_it_cut_off_work() -> None:
    record = Exit(run=1, code=74, reason="lost", at=NOW)
    assert _see(held=False, exit=record)[0] == "exited"
    assert _see(held=False, exit=record.replace(unfinished=True))[0] == "crashed"


def test_an_unobserved_end_has_one_name_everywhere() -> None:
    record = Exit(run=1, reason="died", at=NOW)
    assert _see(held=False, exit=record) == ("vanished", describe_exit(record))
    assert describe_exit(record) == VANISHED


def test_while_a_supervisor_finds_out_an_end_is_not_guessed() -> None:
    fresh = {"held": False, "seen_alive": NOW - 2, "seen_gone": NOW - 1}
    guess = ("vanished", f"exited without an exit record: {VANISHED}")
    assert _see(**fresh, supervised=True) == ("vanished", "exited; determining cause")
    assert _see(**fresh, supervised=False) == guess
    assert _see(**{**fresh, "seen_gone": NOW - CAUSE_TIMEOUT}, supervised=True) == guess


def test_who_is_gone_is_so_since_it_was_last_seen_alive() -> None:
    idle = _status("idle", beat=NOW - 180)

    def since(**facts: object) -> float:
        seen = {"held": False, "spec": _spec(), "status": idle, "exit": None, "boot_id": "b", "now": NOW, **facts}
        return find_state(Evidence(**seen)).since  # type: ignore[arg-type]

    assert since() == NOW - 180
    assert since(seen_alive=NOW - 20, seen_gone=NOW - 19) == NOW - 20
    assert since(seen_alive=NOW - 2, seen_gone=NOW - 1, supervised=True) == NOW - 1


def test_a_reader_remembers_which_agents_were_alive(tmp_path: Path) -> None:
    frozen = make_empty(tmp_path / "w")
    frozen.hire("ghost", "code", "idle", "", ago=180, pid=9, beat=NOW - 180)
    now = NOW
    reader = TeamReader(frozen.directory, clock=lambda: now, probe=frozen.probe)
    assert reader.read().agents[0].state == "idle"
    frozen.probe.held.clear()
    now += 1
    ghost = reader.read().agents[0]
    assert (ghost.state, ghost.reason, ghost.since) == ("vanished", "exited; determining cause", NOW + 1)
    assert not reader.read().needs, "it is told once, when it is known"
    now += CAUSE_TIMEOUT
    ghost = reader.read().agents[0]
    assert [need.kind for need in reader.read().needs] == ["death"]
    assert (ghost.reason, ghost.since) == (f"exited without an exit record: {VANISHED}", NOW)


def test_who_begins_while_the_team_is_read_is_not_taken_for_dead(tmp_path: Path) -> None:
    class Beginning(FrozenProbe):
        """Report the lease as free once, then as held: the worker started in between."""

        asked = 0

        def is_held(self, lease: Key) -> bool:
            self.asked += lease.name.startswith("agents/")
            return self.asked > 1

    frozen = make_empty(tmp_path / "w")
    frozen.hire("quick", "code", "idle", "", ago=0, pid=9)
    view = TeamReader(frozen.directory, clock=lambda: NOW, probe=Beginning()).read()
    assert (view.agents[0].state, view.needs) == ("idle", ())


def test_a_sign_of_life_changes_nothing_that_is_shown(tmp_path: Path) -> None:
    frozen = make_empty(tmp_path / "w")
    status = frozen.hire("scout", "code", "working", "bash ls", ago=9, pid=9).status
    reader = TeamReader(frozen.directory, clock=lambda: NOW, probe=frozen.probe)
    shown = reader.read().agents[0]
    alive = {"beat": NOW + 9, "deadline": NOW + 99, "deadline_monotonic": 1e12, "repeats": 2, "private_bytes": 9}
    status.save((status.load() or _status()).replace(**alive))
    assert reader.read().agents[0] is shown, "the screen repaints what is another object"
    status.save((status.load() or _status()).replace(turn=9))
    assert reader.read().agents[0] is not shown
