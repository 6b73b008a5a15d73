"""What is gathered of a death: how, when, the last tool, the last words, what it left behind."""

from pathlib import Path

from crewboard.view import report
from crewboard.view.autopsy import Autopsy, examine
from crewboard.view.fold import TeamView
from crewboard.view.reader import TeamReader
from tests.frozen import NOW, Frozen, make_empty, make_team


def _view(frozen: Frozen) -> TeamView:
    return TeamReader(frozen.directory, clock=lambda: NOW, probe=frozen.probe).read()


def _examine(frozen: Frozen, name: str) -> Autopsy:
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
    (death,) = [need for need in report.status(_view(frozen))["needs_you"] if need["kind"] == "death"]
    assert death["log"] == ["collected 214 items / 3 errors", "Killed"]


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
    agent.journal.unlink()
    autopsy = _examine(frozen, "ghost")
    assert "without an exit record" in autopsy.how
    assert autopsy.log_lines == ()
    assert autopsy.last_tool is None
