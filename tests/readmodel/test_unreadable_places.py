"""One place that cannot be read never hides the rest: the rest is shown, and the place is named."""

import json
import os
import shutil
from pathlib import Path

import pytest

from crewboard.commands import hire as hiring
from crewboard.commands import messages, stop
from crewboard.commands.context import Team
from crewboard.protocol import requests
from crewboard.readmodel import as_json
from crewboard.readmodel.mail import MailReader, with_unreadable
from crewboard.readmodel.reader import TeamReader
from crewboard.readmodel.team import Need
from crewboard.records.agents import Status
from crewboard.records.processes import Exit
from crewboard.store import agents, codec, leases, mailbox, tasks
from crewboard.store.layout import TeamDirectory
from tests.crash.scenarios import hire


def unreadable(path: Path) -> None:
    """Make a file or folder unreadable, for root too: every access ends with an error of the system."""
    if path.exists():
        path.rename(path.with_name(f"{path.name}.aside"))
    path.symlink_to(path.name)


@pytest.fixture
def team(directory: TeamDirectory) -> TeamDirectory:
    """A team of two agents with mail, a task and a request."""
    for name in ("bob", "scout"):
        hire(directory, name)
        mailbox.send(directory, mailbox.compose("operator", name, "message", "hello"))
    tasks.add(directory, "look", now=1)
    requests.ask(directory, "question-1", "question", "scout", "operator", {"question": "why?"}, 1, by_mail=False)
    return directory


PLACES = {
    "agents/bob": "agents/bob/lease",
    "agents/bob/lease": "agents/bob/lease",
    "agents/bob/status.json": "agents/bob/status.json",
    "inbox/bob.jsonl": "mail or journal of bob",
    "inbox/operator.jsonl": "mail of operator",
    "inbox": "mail of operator",
    "tasks": "tasks",
    "tasks/1.json": "tasks/1.json",
    "requests": "requests",
    "operator.json": "operator.json",
    "supervisor.lock": "supervisor.lock",
    "model.lock": "model.lock",
    "config.json": "config.json",
}


@pytest.mark.parametrize("place", PLACES)
def test_an_unreadable_place_is_named_and_the_rest_shown(team: TeamDirectory, place: str) -> None:
    reader = TeamReader(team)
    reader.read()
    unreadable(team.path / place)
    for view in (reader.read(), TeamReader(team).read()):
        assert PLACES[place] in view.damage
        assert view.names == ["bob", "scout"]
        scout = view.agent("scout")
        assert scout is not None
        assert scout.state == "starting"
        assert json.dumps(as_json.status(view))
    restored = team.path / place
    restored.unlink()
    if (aside := restored.with_name(f"{restored.name}.aside")).exists():
        aside.rename(restored)
    assert reader.read().damage == {}


def test_an_agent_with_an_unreadable_lease_is_neither_dead_nor_alive(team: TeamDirectory) -> None:
    unreadable(team.agent("bob").lease.on_disk)
    view = TeamReader(team).read()
    bob = view.agent("bob")
    assert bob is not None
    assert (bob.state, bob.reason) == ("unknown", "its lease cannot be read")
    assert not [need for need in view.needs if need.agent == "bob"]


def test_a_lost_spec_needs_the_user_until_acknowledged(team: TeamDirectory) -> None:
    """Only a stop makes another one of it, and nothing resumes the agent before that."""
    team.agent("bob").spec.on_disk.unlink()
    view = TeamReader(team).read()
    (need,) = [need for need in view.needs if need.agent == "bob"]
    assert (need.kind, need.summary) == ("damaged", "cannot read agents/bob/spec.json")
    assert view.damage == {"agents/bob/spec.json": 1}
    messages.acknowledge_marks(Team(team), dict(need.marks))
    assert not [need for need in TeamReader(team).read().needs if need.agent == "bob"]


def test_a_folder_of_an_agent_that_is_gone_needs_the_user(team: TeamDirectory) -> None:
    reader = TeamReader(team)
    assert reader.read().damage == {}
    shutil.rmtree(team.agent("bob").folder.on_disk)
    (need,) = [need for need in reader.read().needs if need.agent == "bob"]
    assert (need.kind, need.summary) == ("damaged", "cannot read agents/bob")
    assert need in TeamReader(team).read().needs
    messages.acknowledge_marks(Team(team), dict(need.marks))
    assert "bob" not in [need.agent for need in reader.read().needs]
    # The reader knows both agents from before.
    unreadable(team.path / "config.json")
    assert reader.read().names == ["bob", "scout"]
    (team.path / "config.json").unlink()
    (team.path / "config.json.aside").rename(team.path / "config.json")
    # Other hires change the same folder.
    hire(team, "carol")
    os.utime(team.path / "agents", (4e9, 4e9))
    assert "bob" not in [need.agent for need in TeamReader(team).read().needs]
    stop.remove(Team(team), "bob")
    assert TeamReader(team).read().damage == {}


def test_an_agent_that_is_hired_again_may_lose_its_folder_again(
    team: TeamDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("crewboard.commands.hosts.start", lambda *_: None)
    operator = Team(team, environment={"CREWBOARD_OFFLINE": "1"})
    shutil.rmtree(team.agent("bob").folder.on_disk)
    for _ in range(2):
        (need,) = [need for need in TeamReader(team).read().needs if need.agent == "bob"]
        messages.acknowledge_marks(operator, dict(need.marks))
        assert "bob" not in [need.agent for need in TeamReader(team).read().needs]
        hiring.spawn(operator, hiring.Hire("bob", "code", "look"))
        shutil.rmtree(team.agent("bob").folder.on_disk)


def missing_specs(team: TeamDirectory) -> list[Need]:
    return [need for need in TeamReader(team).read().needs if need.agent == "bob" and need.kind == "damaged"]


def acknowledge(team: TeamDirectory) -> None:
    (need,) = missing_specs(team)
    messages.acknowledge_marks(Team(team), dict(need.marks))
    assert missing_specs(team) == []


@pytest.mark.parametrize("has_run", [False, True])
def test_a_spec_that_goes_another_time_needs_the_user_again(team: TeamDirectory, has_run: bool) -> None:
    agent = team.agent("bob")
    spec = agent.spec.on_disk
    kept = spec.read_bytes()
    spec.write_bytes(b"{")
    acknowledge(team)
    for run in (1, 2):
        spec.unlink()
        if has_run:
            agent.status.save(Status(run=run, pid=1, state="idle", since=1))
        os.utime(agent.folder.on_disk, (1e9 + run, 1e9 + run))
        acknowledge(team)
        spec.write_bytes(kept)
        assert missing_specs(team) == []


def test_a_missing_spec_stays_acknowledged_until_the_next_run(team: TeamDirectory) -> None:
    agent = team.agent("bob")

    def change_folder() -> None:
        at = agent.folder.changed_at() + 1
        os.utime(agent.folder.on_disk, (at, at))

    held = leases.take(agent.lease)
    assert held is not None
    agent.status.save(Status(run=1, pid=1, state="idle", since=1))
    agent.spec.on_disk.unlink()
    acknowledge(team)
    change_folder()
    assert missing_specs(team) == [], "a worker changes the folder all the time"
    leases.release(held)
    agents.write_exit(agent, Exit(run=1, code=0, reason="finished", at=5.0, buried=True))
    assert missing_specs(team) == [], "it ended"
    change_folder()
    assert missing_specs(team) == [], "anything may be written there"


def test_an_agent_removed_during_a_reading_lacks_nothing(team: TeamDirectory) -> None:
    removed = list[str]()

    def between() -> None:
        # The roster is read before the agents.
        if not removed:
            removed.append("scout")
            stop.remove(Team(team), "scout")

    assert TeamReader(team, between=between).read().damage == {}
    assert removed


def test_a_line_that_ends_in_a_message_has_an_unreadable_start(team: TeamDirectory) -> None:
    whole = mailbox.compose("operator", "bob", "message", "written behind it")
    with team.inbox("bob").on_disk.open("ab") as inbox:
        inbox.write(b'{"v": 1, "id": "x' + codec.encode(whole))
    reader = MailReader(team, "bob")
    *_, broken, letter = with_unreadable(reader.read(), reader.damaged_ends, "bob", "inbox/bob.jsonl", 9.0)
    assert letter.message.content == "written behind it"
    assert broken.message.content.startswith("the start of a line cannot be read; it ends at byte ")
    assert (broken.end, broken.message.ts) == (letter.end, letter.message.ts)


def test_records_that_were_read_stay_while_their_folder_is_unreadable(team: TeamDirectory) -> None:
    reader = TeamReader(team)
    before = reader.read()
    unreadable(team.tasks.on_disk)
    assert reader.read().tasks == before.tasks
