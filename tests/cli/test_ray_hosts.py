"""The actor that keeps a host alive on a node of a Ray cluster, without Ray: it needs none to do its work."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from crewboard import names
from crewboard.errors import UsageError
from crewboard.store.layout import TeamDirectory
from crewboard.unix import process
from crewboard_tui.cli import ray_hosts
from crewboard_tui.cli.ray_hosts import NodeHost
from tests.crew import eventually

ACTOR = """
import sys, time
from crewboard_tui.cli.ray_hosts import NodeHost
NodeHost.find_program = lambda self: {program!r}
host = NodeHost(["host"], {root!r})
time.sleep(1000)
"""


class Played:
    """A node whose program `crewboard` is a script of the test, which writes into `root`."""

    def __init__(self, folder: Path) -> None:
        self.program = folder / "program"
        self.root = folder / "node" / "root"
        self.actors: list[NodeHost] = []
        self.left: list[NodeHost] = []

    def script(self, lines: str) -> None:
        self.program.write_text(f"#!/bin/sh\n{lines}\n")
        self.program.chmod(0o755)

    def start(self) -> NodeHost:
        actor = NodeHost(["host", "--name", "east"], str(self.root))
        self.actors.append(actor)
        return actor

    def wrote(self, name: str) -> str:
        path = self.root / name
        return eventually(lambda: path.read_text() if path.exists() else None, name)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Played]:
    played = Played(tmp_path)
    monkeypatch.setattr(NodeHost, "PAUSE", 0.05)
    monkeypatch.setattr(NodeHost, "LINGER", 0.0)
    monkeypatch.setattr(NodeHost, "leave", lambda actor: played.left.append(actor))  # noqa: PLW0108  a function is bound
    monkeypatch.setattr(NodeHost, "find_program", lambda _: str(played.program))
    yield played
    for actor in played.actors:
        actor.drain(10)
    eventually(lambda: len(played.left) == len(played.actors))


WAITS = """
trap 'echo asked > ended; exit 0' TERM
echo $$ > pid
echo "$@" > began
while :; do sleep 0.05; done
"""


def test_a_host_runs_in_a_root_of_its_own_until_it_is_drained(node: Played) -> None:
    node.script(WAITS)
    actor = node.start()
    assert node.wrote("began") == "host --name east\n"
    assert node.root.stat().st_mode & 0o777 == 0o700
    assert actor.report()["code"] is None
    # The program may write its pid before the actor has noted it.
    assert node.wrote("pid") == f"{eventually(lambda: actor.report()['pid'], 'the pid')}\n"
    assert actor.drain(10) == 0
    assert node.wrote("ended") == "asked\n"
    assert eventually(lambda: node.left) == [actor], "the actor ends with its host"


def test_a_host_that_crashes_is_started_again(node: Played) -> None:
    node.script(f"[ -e once ] || {{ echo the disk is full >&2; touch once; exit 74; }}\n{WAITS}")
    actor = node.start()
    assert node.wrote("began")
    assert actor.report()["failure"] == "the disk is full"
    assert not node.left


def test_a_host_that_was_killed_is_started_again(node: Played) -> None:
    node.script(f"[ -e once ] || {{ touch once; kill -9 $$; }}\n{WAITS}")
    actor = node.start()
    assert node.wrote("began")
    assert actor.report()["failure"] == "it ended with -9"


@pytest.mark.parametrize("code", [2, 77, 78])
def test_a_host_that_is_refused_is_not_started_again(node: Played, code: int) -> None:
    node.script(f"echo x >> tries; echo first >&2; echo no API key >&2; exit {code}")
    actor = node.start()
    eventually(lambda: node.left)
    assert actor.report()["failure"] == "no API key"
    assert actor.report()["code"] == code
    assert node.wrote("tries") == "x\n"


def test_a_host_does_not_outlive_its_actor(node: Played) -> None:
    """Ray kills an actor, or the node's memory is short: the host drains, and makes room for the next one."""
    node.script(WAITS)
    code = ACTOR.format(program=str(node.program), root=str(node.root))
    with subprocess.Popen(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ) as it:
        try:
            assert node.wrote("began")
        finally:
            it.send_signal(signal.SIGKILL)
    try:
        assert node.wrote("ended") == "asked\n"
    finally:
        process.send_signal(int(node.wrote("pid")), signal.SIGKILL)


def test_a_drained_host_is_not_started_again_after_a_crash(node: Played) -> None:
    node.script("trap 'exit 74' TERM\necho x >> began\nwhile :; do sleep 0.05; done")
    actor = node.start()
    assert node.wrote("began")
    assert actor.drain(10) == 74
    assert node.wrote("began") == "x\n"


def test_a_node_without_the_program_says_so(node: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NodeHost, "find_program", lambda _: None)
    actor = node.start()
    eventually(lambda: node.left)
    assert "on the node, install crewboard with its extra `hosts`" in actor.report()["failure"]


def test_a_host_gets_the_environment_of_the_node_but_not_of_ray(node: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-node")
    monkeypatch.setenv("RAY_JOB_ID", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    node.script(f"env > environment.new; mv environment.new environment\n{WAITS}")
    node.start()
    found = dict(line.partition("=")[::2] for line in node.wrote("environment").splitlines())
    assert found["ANTHROPIC_API_KEY"] == "sk-node"
    assert not {"RAY_JOB_ID", "CUDA_VISIBLE_DEVICES"} & found.keys()


@pytest.mark.parametrize(
    ("machine", "name"),
    [
        ("build2", "build2-3fa94c"),
        ("Build2.example.org", "build2-3fa94c"),
        ("10.0.0.7", "node-10-3fa94c"),
        ("", "node-3fa94c"),
        ("a-machine-with-a-very-long-name-of-its-own", "a-machine-with-a-very-lon-3fa94c"),
    ],
)
def test_hosts_are_named_after_their_machines(machine: str, name: str) -> None:
    assert ray_hosts.host_name(machine, "3fa94c" + "0" * 50) == name
    assert names.is_name(name)


@pytest.mark.long
def test_ray_is_loaded_by_its_commands_alone(tmp_path: Path) -> None:
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "__init__.py").write_text("raise ImportError('a stub')")
    program = """
import sys
sys.path.insert(0, sys.argv[1])
import crewboard_tui.app
from crewboard.supervisor import __main__
from crewboard_tui.cli import ray_hosts
from crewboard_tui.cli.program import run
for command in ("hosts", "hosts up --help", "doctor", "status", "hosts up --ray auto"):
    print(run(["--root", sys.argv[1], *command.split()]), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True)
    *others, error, code = done.stderr.splitlines()
    assert code == "2"
    assert "Ray cannot be loaded (a stub): install crewboard with its extra `ray`" in error
    assert "a stub" not in "".join([*others, done.stdout])


@pytest.mark.files_only("a team in PostgreSQL has hosts")
def test_a_team_in_files_has_no_hosts(directory: TeamDirectory) -> None:
    with pytest.raises(UsageError, match="kept in files"):
        ray_hosts.Cluster(None, directory, "auto")
