"""Errors about a team, or a holder of its lock, that is not the user's own."""

import os
from pathlib import Path

import pytest

from crewboard.commands.context import Team
from crewboard.protocol import requests, supervisor_client
from crewboard.records.processes import Supervisor
from crewboard.store import leases, operators
from crewboard.store.layout import TeamDirectory
from crewboard.unix import process
from tests.cli.files import alive, enlist
from tests.cli.shell import Cli
from tests.postgres import close_connections

COMMANDS = [
    ("spawn", "scout", "--type", "explore", "--prompt", "look"),
    ("send", "scout", "hello"),
    ("status",),
    ("inbox", "scout"),
    ("resume", "scout"),
    ("team", "list"),
    ("board", "--plain"),
]


@pytest.mark.parametrize("arguments", COMMANDS, ids=lambda arguments: arguments[0])
def test_no_command_works_in_a_linked_crewboard(cli: Cli, arguments: tuple[str, ...]) -> None:
    (cli.root / "data").mkdir()
    (cli.root / ".crewboard").symlink_to("data")
    ran = cli.with_environment(ANTHROPIC_API_KEY="sk-ant-none")(*arguments)
    assert ran.code == 77, (ran.out, ran.err)
    assert "is a symbolic link" in ran.err
    assert "Traceback" not in ran.err
    assert list((cli.root / "data").iterdir()) == []


def test_a_planted_supervisor_is_refused_in_one_sentence(cli: Cli, directory: TeamDirectory, tmp_path: Path) -> None:
    assert cli.root == directory.root
    lock = leases.take(directory.supervisor_lock)
    assert lock is not None
    me = os.getpid()
    planted = Supervisor(
        pid=me, socket=str(tmp_path / "s"), boot_id=process.boot_id(), start_ticks=process.start_ticks(me)
    )
    leases.sign(lock, planted)
    ran = cli.with_environment(CREWBOARD_OFFLINE="1")("spawn", "scout", "--type", "plan", "--prompt", "look")
    ran.refused(77, "in no folder of this user's own", "set that here too", "nothing was sent")
    os.close(lock.descriptor)


def test_a_supervisor_of_another_runtime_folder_leaves_no_half_done(
    cli: Cli, directory: TeamDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor_client, "_TAKEN_WITHIN", 0)
    team = Team(directory)
    enlist(team, "keep")
    enlist(team, "gone", state="exited")
    folder = tmp_path / "run" / "crewboard"
    folder.mkdir(parents=True, mode=0o700)
    me = os.getpid()
    lock = leases.take(directory.supervisor_lock)
    assert lock is not None
    ticks = process.start_ticks(me)
    leases.sign(lock, Supervisor(pid=me, socket=str(folder / "s"), boot_id=process.boot_id(), start_ticks=ticks))
    before, audit = team.config, operators.acts(directory)
    offline = cli.with_environment(CREWBOARD_OFFLINE="1")
    with alive(team, "keep"):
        spawn = ("spawn", "new", "--type", "plan", "--prompt", "look")
        for arguments in (spawn, ("stop", "keep"), ("stop", "keep", "--now")):
            offline(*arguments).refused(77, f"XDG_RUNTIME_DIR={tmp_path / 'run'}, set that here too")
    for arguments in (("resume", "keep"), ("team", "delete", directory.path.name)):
        offline(*arguments).refused(77, "nothing was sent")
    assert (team.config, operators.acts(directory), requests.load_all(directory)) == (before, audit, [])
    # No supervisor is needed to acknowledge an end.
    assert offline("stop", "gone").out == "gone is not running\n"
    assert directory.agent("new").spec.load() is None
    shown = cli("supervisor")
    assert (shown.code, f"XDG_RUNTIME_DIR={tmp_path / 'run'}" in shown.err) == (0, True)
    leases.release(lock)


def test_a_foreign_team_in_a_database_can_be_adopted(cli: Cli, database: str) -> None:
    assert cli("team", "create", "api", "--store", database).code == 0
    TeamDirectory(cli.root / ".crewboard" / "api").owners.unlink()
    cli("status").refused(77, "is foreign", "`crewboard team adopt` makes it yours")
    adopted = cli.agree("team", "adopt", "--yes")
    assert (adopted.code, f"with its records in {database}" in adopted.out) == (0, True)
    assert cli("status").code == 0
    close_connections()
