"""The facts that are gathered of a death: how, when, the last tool, the last words, what it left behind."""

import time
from pathlib import Path

from crewboard.readmodel import as_json
from crewboard.readmodel.activity import ActivityReader
from crewboard.readmodel.crash_report import CrashReport, examine
from crewboard.readmodel.reader import TeamReader
from crewboard.readmodel.team import TeamView
from crewboard.records.agents import State
from crewboard.records.events import Answer
from crewboard.records.processes import Exit
from crewboard.store import agents, journal
from tests.frozen import NOW, Frozen, make_empty, make_team


def _view(frozen: Frozen) -> TeamView:
    return TeamReader(frozen.directory, clock=lambda: NOW, probe=frozen.probe).read()


def _examine(frozen: Frozen, name: str) -> CrashReport:
    view = _view(frozen)
    agent = view.agent(name)
    assert agent is not None
    return examine(frozen.directory, view, agent)


def test_a_death_tells_its_signal_last_tool_log_task_and_mail(tmp_path: Path) -> None:
    autopsy = _examine(make_team(tmp_path / "w"), "parser")
    assert autopsy.how == "killed by SIGKILL"
    assert (autopsy.at, autopsy.began, autopsy.pid) == (NOW - 132, NOW - 900, 4388)
    assert autopsy.last_tool is not None
    assert (autopsy.last_tool.text, autopsy.last_tool.finished) == ("bash pytest -x tests/parser", False)
    assert autopsy.log_lines == ("collected 214 items / 3 errors", "Killed")
    assert [task.id for task in autopsy.freed] == [14]
    assert (autopsy.unread, autopsy.unread_from) == (3, ("ui",))


def test_a_death_in_json_has_the_last_words_of_the_log(tmp_path: Path) -> None:
    frozen = make_team(tmp_path / "w")
    (death,) = [need for need in as_json.status(_view(frozen))["needs_you"] if need["kind"] == "death"]
    assert death["log"] == ["collected 214 items / 3 errors", "Killed"]


def test_an_end_tells_the_error_of_its_run(tmp_path: Path) -> None:
    frozen = make_empty(tmp_path / "w")
    refused = Exit(run=1, code=78, reason="credentials", at=NOW - 60, buried=True)
    agent = frozen.gone("ann", "code", refused, 9, last_error="403: Your key may not use this model")
    assert _examine(frozen, "ann").last_error == "403: Your key may not use this model"
    # The next run ended before it wrote its status.
    agents.write_exit(agent, Exit(run=2, signal=9, reason="died", at=NOW - 30, buried=True))
    assert _examine(frozen, "ann").last_error == ""


def test_a_run_that_died_before_it_wrote_anything_is_shown(tmp_path: Path) -> None:
    agent = make_team(tmp_path / "w").directory.agent("api")
    work = ActivityReader(agent)
    assert [each.kind for each in work.read()][-1] != "died"
    agents.write_exit(agent, Exit(run=2, signal=9, reason="died", at=NOW, buried=True))
    assert [(each.kind, each.text) for each in work.read()][-1] == ("died", "killed by SIGKILL, run 2")


def test_a_tool_that_came_back_is_not_unknown(tmp_path: Path) -> None:
    frozen = make_team(tmp_path / "w")
    frozen.did("parser", 120, "bash", {"command": "ls"}, "ok", 0.1)
    last = _examine(frozen, "parser").last_tool
    assert last is not None
    assert last.finished


def test_without_any_file_it_still_says_what_it_can(tmp_path: Path) -> None:
    frozen = make_empty(tmp_path / "w")
    agent = frozen.hire("ghost", "code", "working", "bash ls", ago=5, pid=9)
    frozen.probe.held.clear()
    frozen.probe.supervisor_pid = None
    agent.journal.on_disk.unlink()
    autopsy = _examine(frozen, "ghost")
    assert "without an exit record" in autopsy.how
    assert autopsy.log_lines == ()
    assert autopsy.last_tool is None


def _kill(frozen: Frozen, name: str, state: State, doing: str = "") -> None:
    agent = frozen.hire(name, "code", state, doing, ago=290, pid=9, last_tool="read_file README.md")
    del frozen.probe.held[name]
    agents.write_exit(agent, Exit(run=1, signal=9, reason="died", at=NOW - 60, buried=True))
    frozen.began(name, 300, "read_file", {"path": "README.md"})
    answer = Answer(ts=NOW - 290, run=1, assignment="a", answers=["a"], text="It is a notebook.")
    journal.append(agent.journal, answer)


def test_who_was_idle_died_of_no_tool(tmp_path: Path) -> None:
    frozen = make_empty(tmp_path / "w")
    _kill(frozen, "idler", "idle")
    _kill(frozen, "worker", "working", "read_file README.md and 2 more")
    since = time.strftime("%H:%M", time.localtime(NOW - 290))
    summaries = {need.agent: need.summary for need in _view(frozen).needs}
    assert summaries == {
        "idler": f"died: killed by SIGKILL, was idle since {since}",
        "worker": "died: killed by SIGKILL, last tool read_file README.md",
    }
    rested = _examine(frozen, "idler").rested
    assert rested is not None
    assert rested.describe(NOW) == f"was idle since {since}"
    assert time.strftime("%Y-", time.localtime(NOW)) in rested.describe(NOW + 86400)
    assert _examine(frozen, "worker").rested is None


def test_a_death_says_its_reason_once(tmp_path: Path) -> None:
    frozen = make_empty(tmp_path / "w")
    ended = Exit(run=1, code=69, reason="api_unavailable", at=NOW - 60, buried=True)
    for name, error in {"ann": "the API stayed unavailable: 529", "bob": "529"}.items():
        frozen.gone(name, "code", ended, 9, last_error=error)
    assert {need.summary for need in _view(frozen).needs} == {"died: exit 69: the API stayed unavailable: 529"}


def test_a_death_names_no_tool_that_was_over(tmp_path: Path) -> None:
    frozen = make_empty(tmp_path / "w")
    _kill(frozen, "worker", "working", "thinking")
    # Killed before its status said so.
    frozen.began("worker", 61, "bash", {"command": "make"})
    assert [need.summary for need in _view(frozen).needs] == ["died: killed by SIGKILL"]
    last = _examine(frozen, "worker").last_tool
    assert last is not None
    assert last.text == "bash make"


def test_the_last_deeds_of_a_run_are_known(tmp_path: Path) -> None:
    frozen = make_empty(tmp_path / "w")
    _kill(frozen, "idler", "idle")
    deeds = _examine(frozen, "idler").last_activity
    assert [(deed.kind, deed.text) for deed in deeds[1:]] == [
        ("tool", "read_file README.md"), ("answer", "It is a notebook."),
    ]  # fmt: skip
