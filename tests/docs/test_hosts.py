"""The guide to hosts and its manifest: what they tell to type is understood, and fits how a host ends."""

import re
import shlex
from collections.abc import Iterator
from typing import Any

import click
import pytest
import yaml

from crewboard.protocol.requests import SHUTDOWN_TIMEOUT
from crewboard_tui.cli.program import crewboard
from tests.docs.pages import ROOT, prose

GUIDE = ROOT / "docs/hosts.md"
MANIFEST = ROOT / "docs/crewboard-host.yaml"
URL = "postgresql://crew@db/crew"

_FENCED = re.compile(r"^```sh\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def parse(words: list[str]) -> str:
    """Return the command that these words of a command line name, after its options were read."""
    group: click.Command = crewboard
    context = crewboard.make_context("crewboard", words)
    names = []
    while isinstance(group, click.Group) and (rest := [*context._protected_args, *context.args]):
        name, command, rest = group.resolve_command(context, rest)
        assert command is not None
        assert name is not None
        names.append(name)
        group, context = command, command.make_context(name, rest, parent=context)
    return " ".join(names)


def commands() -> Iterator[list[str]]:
    """Yield the words behind each `crewboard` of the guide's blocks, also within commands of other programs."""
    for block in _FENCED.findall(GUIDE.read_text(encoding="utf-8")):
        for line in block.splitlines():
            yield from _commands_in(shlex.split(line, comments=True))


def _commands_in(words: list[str]) -> Iterator[list[str]]:
    at = [place for place, word in enumerate(words) if word.rpartition("/")[2] == "crewboard"]
    yield from (_until_operator(words[place + 1 :]) for place in at[-1:])
    for word in words:
        if " crewboard " in word or "/crewboard " in word:
            yield from _commands_in(shlex.split(word))


def _until_operator(words: list[str]) -> list[str]:
    return words[: next((place for place, word in enumerate(words) if word in {"&", "&&", "|"}), len(words))]


def test_the_commands_of_the_guide_are_understood() -> None:
    named = [parse(words) for words in commands()]
    assert set(named) == {
        "", "doctor", "team create", "team join", "workspace push", "host", "hosts up", "hosts down", "spawn", "wait",
        "fetch", "merge", "changes",
    }  # fmt: skip
    assert named.count("host") == 5, "by hand, two to try, by ssh, by Slurm"


@pytest.mark.parametrize("wrong", [["host", "--slot", "x"], ["hosts", "upp"], ["spawn"]])
def test_a_wrong_command_would_be_noticed(wrong: list[str]) -> None:
    with pytest.raises(click.UsageError):
        parse(wrong)


@pytest.fixture(scope="module")
def deployment() -> dict[str, Any]:
    found = yaml.safe_load(MANIFEST.read_text(encoding="utf-8"))
    assert isinstance(found, dict)
    assert (found["apiVersion"], found["kind"]) == ("apps/v1", "Deployment")
    return found


def test_the_command_of_the_manifest_is_understood(deployment: dict[str, Any]) -> None:
    (host,) = deployment["spec"]["template"]["spec"]["containers"]
    assert host["command"] == ["crewboard"]
    assert parse([word.replace("$(STORE)", URL) for word in host["args"]]) == "host"
    root = host["args"][host["args"].index("--root") + 1]
    assert root in {mount["mountPath"] for mount in host["volumeMounts"]}


def test_a_pod_lives_as_long_as_its_host_drains(deployment: dict[str, Any]) -> None:
    pod = deployment["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] >= SHUTDOWN_TIMEOUT + 10
    assert all(volume["emptyDir"] == {} for volume in pod["volumes"])
    assert {mount["name"] for mount in pod["containers"][0]["volumeMounts"]} == {
        each["name"] for each in pod["volumes"]
    }
    assert (
        deployment["spec"]["selector"]["matchLabels"].items()
        <= deployment["spec"]["template"]["metadata"]["labels"].items()
    )


def test_the_secret_of_the_guide_has_what_the_manifest_takes(deployment: dict[str, Any]) -> None:
    (host,) = deployment["spec"]["template"]["spec"]["containers"]
    (source,) = host["envFrom"]
    made = next(line for line in GUIDE.read_text(encoding="utf-8").splitlines() if "create secret generic" in line)
    assert source["secretRef"]["name"] in made.split()
    given = set(re.findall(r"--from-literal=(\w+)=", made))
    assert {"ANTHROPIC_API_KEY", "PGPASSWORD", "STORE"} == given
    assert set(re.findall(r"\$\((\w+)\)", " ".join(host["args"]))) <= given
    assert not [name for each in host["env"] for name in given if each["name"] == name], (
        "secrets are in the Secret alone"
    )


def test_services_are_given_the_time_to_drain() -> None:
    (seconds,) = re.findall(r"TimeoutStopSec=(\d+)", GUIDE.read_text(encoding="utf-8"))
    assert int(seconds) >= SHUTDOWN_TIMEOUT + 10
    assert "hosts.md" in prose(ROOT / "README.md")
