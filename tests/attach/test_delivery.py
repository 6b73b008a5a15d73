"""Letters of the user to agents of Claude Code, and the end of a teammate that has a process of its own."""

import json
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from crewboard.attach import delivery, teams
from crewboard.commands import messages, stop
from crewboard.commands.context import Team
from crewboard.errors import BadDataError, TryLaterError, UntrustedError, UsageError
from crewboard.records.team import Config, Member
from crewboard.store import mailbox, roster
from crewboard.store.layout import TeamDirectory
from tests.attach.session import PYTHON, SESSION, TEAM
from tests.crew import WAIT_TIMEOUT, eventually


@pytest.fixture
def claude(mirrored: TeamDirectory) -> Path:
    """Return the directory of Claude Code with the team, to which letters are allowed."""
    home = mirrored.root / "home"
    folder = home / "teams" / TEAM
    folder.mkdir(parents=True)
    members = [
        {"agentId": f"{name}@{TEAM}", "name": name, "agentType": "general-purpose"} for name in ("team-lead", "alpha")
    ]
    (folder / "config.json").write_text(json.dumps({"name": TEAM, "leadSessionId": SESSION, "members": members}))
    (home / "sessions").mkdir()

    def allow(config: Config) -> None:
        assert config.attached is not None
        config.attached.letters = True
        config.members.insert(0, Member(name="team-lead", type="lead"))

    roster.change(mirrored, allow)
    return home


def inbox(claude: Path, name: str = "alpha") -> Path:
    return claude / "teams" / TEAM / "inboxes" / f"{name}.json"


def letters(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text())
    return found


def test_a_letter_is_signed_by_the_operator_and_appended(mirrored: TeamDirectory, claude: Path) -> None:
    earlier = {"from": "beta", "text": "hi", "timestamp": "2026-11-22T04:45:41.282Z", "read": False}
    inbox(claude).parent.mkdir()
    inbox(claude).write_text(json.dumps([earlier]))
    messages.send(Team(mirrored), "alpha", "look at b.txt")
    first, second = letters(inbox(claude))
    assert first == earlier
    assert (second["from"], second["text"], second["read"]) == ("operator", "look at b.txt", False)
    assert [path.name for path in inbox(claude).parent.iterdir()] == ["alpha.json"]


def test_letters_are_off_until_they_are_allowed(mirrored: TeamDirectory) -> None:
    with pytest.raises(BadDataError, match="--allow-letters"):
        messages.send(Team(mirrored), "alpha", "hi")
    with pytest.raises(BadDataError, match="--allow-letters"):
        stop.stop_now(Team(mirrored), "alpha")


def test_a_broadcast_reaches_each_agent(mirrored: TeamDirectory, claude: Path) -> None:
    (claude / "sessions" / "1.json").write_text(json.dumps({"pid": 1, "sessionId": SESSION}))
    messages.broadcast(Team(mirrored), "all hands")
    assert [letters(inbox(claude, name))[0]["text"] for name in ("team-lead", "alpha")] == ["all hands"] * 2


def test_many_letters_at_once_are_all_kept(
    mirrored: TeamDirectory, claude: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The last of them waits for all others.
    monkeypatch.setattr(delivery, "_LOCK_TIMEOUT", WAIT_TIMEOUT)

    def send(number: int) -> None:
        messages.send(Team(mirrored), "alpha", f"letter {number}")

    threads = [threading.Thread(target=send, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(each["text"] for each in letters(inbox(claude))) == sorted(f"letter {n}" for n in range(20))


def test_the_lock_of_a_killed_process_is_taken(mirrored: TeamDirectory, claude: Path) -> None:
    lock = inbox(claude).with_name("alpha.json.lock")
    lock.mkdir(parents=True)
    os.utime(lock, (1, 1))
    messages.send(Team(mirrored), "alpha", "hi")
    assert not lock.exists()


def test_a_held_lock_is_respected(mirrored: TeamDirectory, claude: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "_LOCK_TIMEOUT", 0)
    lock = inbox(claude).with_name("alpha.json.lock")
    lock.mkdir(parents=True)
    with pytest.raises(TryLaterError, match="nothing was sent"):
        messages.send(Team(mirrored), "alpha", "hi")
    assert lock.exists()
    assert not inbox(claude).exists()


@pytest.mark.parametrize("content", ["{", "{}", "7"])
def test_a_damaged_inbox_is_kept(mirrored: TeamDirectory, claude: Path, content: str) -> None:
    inbox(claude).parent.mkdir()
    inbox(claude).write_text(content)
    with pytest.raises(BadDataError, match="nothing was sent"):
        messages.send(Team(mirrored), "alpha", "hi")
    assert inbox(claude).read_text() == content


def test_an_agent_that_has_left_gets_no_letter(mirrored: TeamDirectory, claude: Path) -> None:
    roster.change(mirrored, lambda config: config.members.append(Member(name="gone", type="x")))
    with pytest.raises(UsageError, match="any more"):
        messages.send(Team(mirrored), "gone", "hi")


@pytest.fixture
def listener(claude: Path) -> Iterator[socket.socket]:
    """Return the socket of the lead's session."""
    path = claude / "s"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as made:
        made.bind(os.path.relpath(path))
        path.chmod(0o600)
        made.listen()
        made.settimeout(WAIT_TIMEOUT)
        (claude / "sessions" / "7.json").write_text(
            json.dumps({"pid": 1, "sessionId": SESSION, "messagingSocketPath": str(path)})
        )
        yield made


def test_the_lead_hears_by_its_socket(mirrored: TeamDirectory, listener: socket.socket) -> None:
    sent = messages.send(Team(mirrored), "team-lead", "how is it going?")
    connection, _ = listener.accept()
    with connection:
        frame = json.loads(connection.recv(10_000))
    assert (frame["type"], frame["message"]) == ("user", {"role": "user", "content": "how is it going?"})
    assert [message.id for message in mailbox.read(mirrored, "team-lead").messages] == [sent.id]


def test_a_socket_that_others_can_use_is_refused(
    mirrored: TeamDirectory, claude: Path, listener: socket.socket
) -> None:
    (claude / "s").chmod(0o666)
    with pytest.raises(UntrustedError, match="nothing was sent"):
        messages.send(Team(mirrored), "team-lead", "hi")


def test_a_lead_that_is_gone_gets_no_letter(mirrored: TeamDirectory, claude: Path) -> None:
    with pytest.raises(TryLaterError, match="does not run"):
        messages.send(Team(mirrored), "team-lead", "hi")


def test_a_teammate_with_a_process_of_its_own_is_stopped(
    mirrored: TeamDirectory, claude: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = [PYTHON, "-c", "import time; time.sleep(60)", "--agent-id", f"alpha@{TEAM}"]
    with subprocess.Popen(program) as process:
        eventually(lambda: teams.find_teammate("alpha", TEAM), "the teammate's process")
        # A zombie counts as ended.
        stop.stop_now(Team(mirrored), "alpha")
        assert process.wait(WAIT_TIMEOUT) == -signal.SIGTERM


def test_a_teammate_is_asked_by_letter_before_it_is_stopped(mirrored: TeamDirectory, claude: Path) -> None:
    with pytest.raises(BadDataError, match="runs in the process of its lead: end that in Claude Code"):
        stop.stop(Team(mirrored), "alpha", "too slow")
    (letter,) = letters(inbox(claude))
    assert "asks you to stop (too slow)" in letter["text"]


def test_the_session_of_the_lead_is_not_stopped(mirrored: TeamDirectory, claude: Path) -> None:
    with pytest.raises(BadDataError, match="team-lead is the lead's own session"):
        stop.stop_now(Team(mirrored), "team-lead")


def test_another_process_with_its_pid_is_not_stopped(claude: Path) -> None:
    assert teams.find_teammate("alpha", "another-team") is None
    assert delivery._has_ended(os.getpid(), 1, 0)
    assert not delivery._has_ended(os.getpid(), own_ticks(), 0)


def own_ticks() -> int:
    from crewboard.unix.process import start_ticks

    return start_ticks(os.getpid())
