"""A name that is used again: the new agent is shown, and nothing of the old one."""

from pathlib import Path

import pytest

from crewboard.commands import messages, stop
from crewboard.readmodel.activity import ActivityReader
from crewboard.readmodel.file_activity import FileAccessReader
from crewboard.readmodel.mail import MailReader
from crewboard.readmodel.reader import TeamReader
from crewboard.readmodel.team import TeamView
from crewboard.readmodel.usage import CallReader
from crewboard.records.processes import Exit
from tests.frozen import NOW, Frozen, make_team


@pytest.fixture
def frozen(tmp_path: Path) -> Frozen:
    """Make eleven agents; `parser` died."""
    return make_team(tmp_path)


def _view(frozen: Frozen) -> TeamView:
    return TeamReader(frozen.directory, clock=frozen.team.now, probe=frozen.probe).read()


def test_acknowledging_a_removed_agent_leaves_its_namesake_alone(frozen: Frozen) -> None:
    messages.acknowledge(frozen.team, "parser")
    stop.remove(frozen.team, "parser")
    frozen.gone("parser", "code", Exit(run=1, signal=11, reason="died", at=NOW - 5, buried=True), 5001)
    view = _view(frozen)
    agent = view.agent("parser")
    assert agent is not None
    assert agent.shown == "dead"
    assert "parser" in [need.agent for need in view.needs if need.kind == "death"]


def test_removing_an_agent_keeps_the_acknowledgements_of_others(frozen: Frozen) -> None:
    messages.acknowledge_all(frozen.team, ["parser", "scan"])
    stop.remove(frozen.team, "parser")
    state = frozen.directory.operator.load()
    assert state is not None
    assert state.acknowledged == {"scan": 1}


def test_an_agent_is_removed_despite_a_damaged_operator_file(frozen: Frozen) -> None:
    frozen.directory.operator.on_disk.write_text("{")
    stop.remove(frozen.team, "parser")
    assert _view(frozen).agent("parser") is None


def test_the_panes_forget_the_previous_agent_of_the_same_name(frozen: Frozen) -> None:
    agent = frozen.directory.agent("parser")
    frozen.did("parser", 200, "edit_file", {"path": "old.py", "old_text": "a", "new_text": "b"}, "edited", 0)
    frozen.said("parser", 190, "of the old one")
    work, calls, touches = ActivityReader(agent), CallReader(agent), FileAccessReader(agent)
    letters = MailReader(frozen.directory, "parser")
    for reader in (work, calls, touches, letters):
        assert reader.read()
    stop.remove(frozen.team, "parser")
    frozen.gone("parser", "code", Exit(run=1, code=0, reason="finished", at=NOW - 5, buried=True), 5001)
    frozen.mail(90, "ui", "parser", "message", "to the new one", 9)
    frozen.did("parser", 8, "edit_file", {"path": "new.py", "old_text": "a", "new_text": "b"}, "edited", 0)
    frozen.said("parser", 7, "of the new one, " + "long " * 2000)
    assert [each.kind for each in work.read()] == ["start", "tool", "done", "say", "end"]
    assert len(calls.read()) == 1
    assert [touch.path for touch in touches.read()] == ["new.py"]
    assert [letter.message.content for letter in letters.read()] == ["to the new one"]


def test_unread_mail_is_recounted_when_a_mailbox_is_replaced(frozen: Frozen) -> None:
    reader = TeamReader(frozen.directory, clock=frozen.team.now, probe=frozen.probe)
    assert reader.read().unread["lead"] == 2
    box = frozen.directory.inbox("lead")
    box.on_disk.rename(box.on_disk.with_name("lead.before"))
    for number in range(90, 95):
        frozen.mail(number, "ui", "lead", "message", "of another team of the same name " + "long " * 40, 9)
    assert reader.read().unread["lead"] == 5
