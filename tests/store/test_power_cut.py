"""Files after a power cut: of each what was synced, under the names that its folder had when that was synced."""

import os
import stat
from pathlib import Path

import pytest

from crewboard.commands import answers, hire, hosts, messages, tasks
from crewboard.commands.context import Team
from crewboard.protocol import requests, supervisor_client
from crewboard.records.agents import Tokens
from crewboard.records.events import Answer, Intake, Reply, RunStarted, ToolStart
from crewboard.records.messages import Message
from crewboard.store import journal, mailbox, roster
from crewboard.store.layout import TeamDirectory
from tests.cli.files import enlist


class Disk:
    """The disk below `root` as a power cut would leave it: the most pessimistic file system that POSIX permits."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.syncs = 0
        self._files: dict[int, bytes] = {}
        self._folders: dict[int, dict[str, int]] = {}
        self._is_folder: dict[int, bool] = {}
        self._fsync = os.fsync
        monkeypatch.setattr(os, "fsync", self._sync)

    def _sync(self, fd: int) -> None:
        self.syncs += 1
        self._fsync(fd)
        found, path = os.fstat(fd), Path(f"/proc/self/fd/{fd}").readlink()
        if stat.S_ISDIR(found.st_mode):
            self._folders[found.st_ino] = {entry.name: entry.inode() for entry in os.scandir(path)}
            self._is_folder |= {entry.inode(): entry.is_dir() for entry in os.scandir(path)}
        else:
            self._files[found.st_ino] = path.read_bytes()

    def cut_power(self) -> Path:
        """Return a folder with what is left below `root`."""
        left = self.root.with_name("left")
        self._restore(self.root.stat().st_ino, left)
        return left

    def _restore(self, inode: int, to: Path) -> None:
        to.mkdir()
        for name, child in self._folders.get(inode, {}).items():
            if self._is_folder[child]:
                self._restore(child, to / name)
            else:
                (to / name).write_bytes(self._files.get(child, b""))


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    (tmp_path / "root").mkdir()
    monkeypatch.setattr(supervisor_client, "request_start", lambda *_: None)
    return Disk(tmp_path / "root", monkeypatch)


@pytest.fixture
def team(disk: Disk) -> Team:
    return Team(TeamDirectory(disk.root / ".crewboard" / "default"), environment={"CREWBOARD_OFFLINE": "1"}).ensure()


def left_of(disk: Disk) -> TeamDirectory:
    return TeamDirectory(disk.cut_power() / ".crewboard" / "default")


def test_a_made_team_survives_and_is_still_its_users(disk: Disk, team: Team) -> None:
    left = left_of(disk)
    assert left.config.load() == team.config
    assert (left.path / "owners").read_bytes() == (team.directory.path / "owners").read_bytes()


def test_a_hire_survives_with_its_prompt(disk: Disk, team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "_is_up", lambda *_: True)
    hire.spawn(team, hire.Hire("scout", "explore", "read everything"))
    left = left_of(disk)
    spec = left.agent("scout").spec.load()
    assert spec is not None
    assert spec.prompt == "read everything"
    assert roster.load(left).names == ["scout"]


def test_mail_of_operators_and_agents_survives(disk: Disk, team: Team) -> None:
    enlist(team, "scout")
    sent = messages.send(team, "scout", "first")
    long = messages.send(team, "scout", "x" * 300_000)
    (first, second) = mailbox.read(left_of(disk), "scout").messages
    assert first == sent
    assert second.id == long.id
    body = left_of_body(disk, second)
    assert body == "x" * 300_000


def left_of_body(disk: Disk, message: Message) -> str:
    return (disk.root.with_name("left") / ".crewboard" / "default" / str(message.metadata["body"])).read_text()


def test_tasks_requests_and_acknowledgements_survive(disk: Disk, team: Team) -> None:
    enlist(team, "scout", run=3)
    task = tasks.add_task(team, "fix it")
    requests.ask(team.directory, "p1", "plan_approval", "scout", "operator", {"plan": "# Do it"}, 5.0, by_mail=False)
    answers.approve(team, "p1")
    messages.acknowledge(team, "scout")
    left = left_of(disk)
    assert left.task(task.id).on_disk.read_bytes() == team.directory.task(task.id).on_disk.read_bytes()
    kept = requests.load(left, "p1")
    assert kept is not None
    assert kept.status == "approved"
    assert left.operator.on_disk.read_bytes() == team.directory.operator.on_disk.read_bytes()


def _started(ts: float) -> RunStarted:
    return RunStarted(ts=ts, run=1, pid=1, type="explore", fresh=True, prompt_id="p", model="m")


@pytest.mark.parametrize(
    ("last", "is_kept"),
    [
        (_started(3), True),
        (ToolStart(ts=3, tool_use_id="t", name="bash", input={"command": "make"}), True),
        (Answer(ts=3, assignment="p", answers=[], text="done"), True),
        (Reply(ts=3, content=[], stop_reason="end_turn", usage=Tokens()), False),
    ],
)
def test_a_command_or_answer_is_in_the_journal_that_is_left(
    disk: Disk, team: Team, last: RunStarted | ToolStart | Answer | Reply, is_kept: bool
) -> None:
    enlist(team, "scout")
    path = team.directory.agent("scout").journal
    journal.append(path, _started(1))
    before = Intake(ts=2, cursor=0)
    journal.append(path, before)
    journal.append(path, last)
    events = [event for event, _ in journal.read(left_of(disk).agent("scout").journal)]
    assert (before in events) == is_kept
    assert (last in events) == is_kept


def test_a_status_costs_no_sync(disk: Disk, team: Team) -> None:
    """It is written at every step, and read from the journal again."""
    enlist(team, "scout")
    before, status = disk.syncs, team.directory.agent("scout").status.load()
    assert status is not None
    team.directory.agent("scout").status.save(status)
    assert disk.syncs == before
