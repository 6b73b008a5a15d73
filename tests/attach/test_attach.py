"""`crewboard attach`, and what the commands and the dashboard say about a team that another program runs."""

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from crewboard import read_team
from crewboard.attach import delivery, mirror
from crewboard.errors import StorageError
from crewboard.store import leases
from crewboard.store.layout import TeamDirectory
from crewboard_tui.queries import Snapshot
from crewboard_tui.widgets.bars import alert_line
from tests.attach.replay import Replay, process
from tests.cli.shell import Inside

TEAM = "session-390111e4"


@pytest.fixture
def lead() -> Iterator[subprocess.Popen[bytes]]:
    with process() as started:
        yield started


@pytest.fixture
def replay(tmp_path: Path, lead: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch) -> Replay:
    replay = Replay(tmp_path / "claude", lead.pid)
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(replay.config))
    return replay


def play_in(replay: Replay, project: Path) -> None:
    """Write the files of a team whose lead works in `project`."""
    project.mkdir(exist_ok=True)
    replay.copy("in_process")
    (roster,) = replay.config.glob("teams/*/config.json")
    roster.write_text(roster.read_text().replace("/home/u/project", str(project)))


def test_without_a_team_attach_says_so(replay: Replay, tmp_path: Path) -> None:
    Inside(tmp_path)("attach").refused(75, "runs no team", "start one")


def test_attach_lists_teams_of_other_folders(replay: Replay, tmp_path: Path) -> None:
    replay.copy("in_process")
    found = Inside(tmp_path)("attach")
    assert [line.split() for line in found.out.splitlines()] == [
        ["TEAM", "MEMBERS", "ALIVE", "FOLDER"], [TEAM, "2", "yes", "/home/u/project"],
    ]  # fmt: skip
    Inside(tmp_path)("attach", "nothing").refused(2, "no team 'nothing'", TEAM)


def test_attach_mirrors_until_the_team_has_ended(replay: Replay, tmp_path: Path, lead: subprocess.Popen[bytes]) -> None:
    play_in(replay, tmp_path)
    cli = Inside(tmp_path)
    replay.attach(tmp_path)
    status = cli("status", "--json").json
    assert [agent["name"] for agent in status["agents"]][:2] == ["team-lead", "alpha"]
    assert status["attached"]["team"] == TEAM
    lead.kill()
    lead.wait()
    done = cli("attach", TEAM)
    assert done.out.startswith(f"attached to {TEAM} as claude-")
    assert done.out.endswith(f"its history stays in {tmp_path}/.crewboard/{status['team']}\n")
    assert "plans: Claude Code approves by itself" in done.err


@pytest.mark.parametrize("is_mirrored", [True, False])
def test_another_mirror_is_named_only_if_there_is_one(
    replay: Replay, tmp_path: Path, lead: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch, is_mirrored: bool
) -> None:
    play_in(replay, tmp_path)
    directory = replay.attach(tmp_path)
    lead.kill()
    lead.wait()
    other = leases.take(directory.mirror_lock) if is_mirrored else None
    refresh, looks = mirror.Mirror.refresh, list[None]()

    def refresh_at_second_look(self: mirror.Mirror) -> bool:
        looks.append(None)
        if other is None and len(looks) == 1:
            raise StorageError("no space left")
        if other is not None and len(looks) == 2:
            leases.release(other)
        return refresh(self)

    monkeypatch.setattr(mirror.Mirror, "refresh", refresh_at_second_look)
    done = Inside(tmp_path)("attach", TEAM)
    assert done.code == 0
    assert ("another process mirrors it; this one takes over" in done.err) == is_mirrored
    assert ("no space left" in done.err) != is_mirrored


def test_a_mirror_without_its_roster_is_made_again(replay: Replay, tmp_path: Path) -> None:
    play_in(replay, tmp_path)
    directory = replay.attach(tmp_path)
    directory.make_folder("agents/alpha")
    directory.agent("alpha").spec.put(b"{}")
    directory.config.remove()
    assert replay.attach(tmp_path) == directory
    config = directory.config.load()
    assert config is not None
    assert config.attached is not None


def test_status_and_doctor_say_what_runs_the_agents(replay: Replay, tmp_path: Path) -> None:
    play_in(replay, tmp_path)
    (session,) = replay.config.glob("sessions/*.json")
    session.write_text(session.read_text().replace("2.1.330", "2.9.1"))
    replay.attach(tmp_path)
    cli = Inside(tmp_path)
    assert "\nClaude Code 2.9.1 (not tested) · plans: Claude Code approves by itself\n" in cli("status").out
    cli("attach", "--install")
    assert "· plans: you approve\n" in cli("status").out
    (row,) = (each for each in cli("doctor", "--json").json if each["name"] == "claude code")
    assert (row["mark"], "outside of the tested range 2.1.177 to 2.1.332" in row["detail"]) == ("note", True)


def test_commands_that_cannot_be_are_refused_with_65(replay: Replay, tmp_path: Path) -> None:
    play_in(replay, tmp_path)
    replay.attach(tmp_path)
    cli = Inside(tmp_path)
    for command in (
        ("pause", "alpha"), ("unpause", "--all"), ("stop", "alpha"), ("send", "alpha", "hi"), ("broadcast", "hi"),
        ("resume", "alpha"), ("interrupt", "alpha"), ("limit", "alpha", "--turns", "5"), ("budget", "$5"),
        ("spawn", "x", "--type", "explore", "--prompt", "look"), ("task", "add", "more"), ("remove", "alpha"),
        ("supervisor", "--restart"), ("spawn", "gamma"), ("merge", "alpha"), ("changes", "alpha"),
    ):  # fmt: skip
        cli(*command).refused(65, "Claude Code")


def test_no_worktree_is_advised_where_claude_code_has_the_agents(replay: Replay, tmp_path: Path) -> None:
    play_in(replay, tmp_path)
    replay.attach(tmp_path)
    for command in (["changes"], ["worktree", "list"]):
        said = Inside(tmp_path)(*command).err
        assert "use git" in said
        assert "spawn" not in said


def test_inbox_journal_and_tasks_show_the_team(replay: Replay, tmp_path: Path) -> None:
    play_in(replay, tmp_path)
    replay.attach(tmp_path)
    cli = Inside(tmp_path)
    assert "use <care>" in cli("inbox", "alpha").out
    assert "in turn" in cli("inbox", "alpha").out
    assert "read_file a.txt" in cli("journal", "alpha").out
    assert cli("inbox", "lead").out == cli("inbox", "team-lead").out != ""
    assert "Read a.txt" in cli("tasks").out
    assert not (tmp_path / ".crewboard" / json.loads(cli("status", "--json").out)["team"] / "supervisor.lock").exists()


def test_commands_know_which_agents_of_claude_code_run(
    replay: Replay, tmp_path: Path, lead: subprocess.Popen[bytes]
) -> None:
    play_in(replay, tmp_path)
    (task,) = replay.config.glob("tasks/*/1.json")
    task.write_text(json.dumps({**json.loads(task.read_text()), "owner": "alpha", "status": "in_progress"}))
    cli = Inside(tmp_path)
    delivery.allow(replay.attach(tmp_path), letters=True)
    assert "in progress  alpha  Read a.txt" in cli("tasks").out
    assert cli("send", "alpha", "hi").err == ""
    stopped = cli("stop", "--all", "--now")
    assert (stopped.code, "alpha runs in the process of its lead" in stopped.err) == (65, True)
    lead.kill()
    lead.wait()
    assert "in progress  alpha (dead)  Read a.txt" in cli("tasks").out
    assert "only Claude Code can start it again" in cli("send", "alpha", "hi").err


def alert(team: TeamDirectory) -> str:
    return "".join(span.text for span in alert_line(Snapshot(read_team(team)), time.time(), 120))


def test_a_prompt_is_answered_in_its_own_terminal(replay: Replay, tmp_path: Path) -> None:
    team = None
    for _ in replay.play("permission"):
        if team is None and list(replay.config.glob("teams/*/config.json")):
            team = replay.attach(tmp_path)
        if team is not None:
            here = mirror.Mirror(team)
            here.refresh()
            here.close()
            if read_team(team).needs:
                break
    assert team is not None
    assert "answer in its terminal" in alert(team)
    said = Inside(tmp_path)("status").out
    assert "answer in Claude Code's own terminal" in said
    assert "approve" not in said.partition("→")[2].splitlines()[0]


def test_resume_is_not_offered_for_a_death(replay: Replay, tmp_path: Path, lead: subprocess.Popen[bytes]) -> None:
    replay.copy("in_process")
    team = replay.attach(tmp_path)
    here = mirror.Mirror(team)
    here.refresh()
    lead.kill()
    lead.wait()
    here.refresh()
    here.close()
    assert "resume" not in alert(team)
    assert "seen" in alert(team)
