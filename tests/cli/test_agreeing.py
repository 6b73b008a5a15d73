"""A yes of the user is bound to what was shown: something else in its place is refused, and a script has to name it."""

import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pexpect
import pytest

from tests.bench.terminal import terminal
from tests.cli.shell import COMMAND, Cli, Inside


@dataclass(frozen=True)
class Offer:
    """Something that a user says yes to: how it is listed and accepted, and whether the newest one is accepted."""

    write: Callable[[str], object]
    listed: tuple[str, ...]
    accept: tuple[str, ...]
    is_accepted: Callable[[], bool]


def _offer_server(cli: Cli) -> Offer:
    def write(text: str) -> None:
        entry = {"command": "bash", "args": ["-c", text]}
        (cli.root / ".mcp.json").write_text(json.dumps({"mcpServers": {"own": entry}}))

    def is_accepted() -> bool:
        return [each["state"] for each in cli("mcp", "--json").json] == ["accepted"]

    return Offer(write, ("mcp",), ("mcp", "approve", "own"), is_accepted)


def _offer_type(cli: Cli) -> Offer:
    file = cli.root / ".claude" / "agents" / "own.md"
    file.parent.mkdir(parents=True)

    def write(text: str) -> None:
        file.write_text(f"---\nname: own\ndescription: looks\ntools: Read\n---\n{text}\n")

    def is_accepted() -> bool:
        return all(each["trusted"] for each in cli("types", "--json").json)

    return Offer(write, ("types",), ("types", "trust", "own"), is_accepted)


def _offer_skill(cli: Cli) -> Offer:
    folder = cli.root / ".claude" / "skills" / "own"
    folder.mkdir(parents=True)

    def write(text: str) -> None:
        (folder / "SKILL.md").write_text(f"---\nname: own\ndescription: looks\n---\n{text}\n")

    def is_accepted() -> bool:
        return [each["state"] for each in cli("skills", "--json").json] == ["accepted"]

    return Offer(write, ("skills",), ("skills", "trust", "own"), is_accepted)


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    root = tmp_path / "root"
    root.mkdir()
    return Inside(root).with_environment(XDG_STATE_HOME=str(tmp_path / "state"))


@pytest.fixture(params=[_offer_server, _offer_type, _offer_skill])
def offer(request: pytest.FixtureRequest, cli: Cli) -> Offer:
    made: Offer = request.param(cli)
    made.write("harmless")
    return made


def _printed(text: str, accept: tuple[str, ...]) -> list[str]:
    """Return the arguments of the command that was printed to accept something."""
    (line,) = re.findall(r"`crewboard ([^`]*--sha256 [0-9a-f]{16})`", text)
    words = shlex.split(line)
    assert tuple(words[-len(accept) - 2 : -2]) == accept
    return words


def test_what_was_exchanged_since_it_was_shown_is_refused(cli: Cli, offer: Offer) -> None:
    shown = _printed(cli(*offer.listed).out, offer.accept)
    offer.write("touch evil")
    cli(*shown).refused(65, "has another sha256", "read it again")
    assert not offer.is_accepted()
    assert cli(*_printed(cli(*offer.listed).out, offer.accept)).code == 0
    assert offer.is_accepted()


def test_a_script_is_refused_with_the_command_that_works(cli: Cli, offer: Offer) -> None:
    asked = cli(*offer.accept)
    asked.refused(2, "--sha256")
    assert not offer.is_accepted()
    assert cli(*_printed(asked.err, offer.accept)).code == 0
    assert offer.is_accepted()


@contextmanager
def _asked(cli: Cli, words: tuple[str, ...]) -> Iterator[pexpect.spawn]:
    """Run a command in a terminal until it asks, and let the test answer."""
    environment: Mapping[str, str] = cli.environment
    with terminal([*COMMAND, *words], cli.root, environment) as child:
        child.expect_exact("[y/N]")
        yield child
        child.expect(pexpect.EOF)


def test_a_terminal_shows_what_it_asks_about(cli: Cli, offer: Offer) -> None:
    with _asked(cli, offer.accept) as child:
        assert b"harmless" in child.before
        child.sendline("n")
    assert not offer.is_accepted()
    with _asked(cli, offer.accept) as child:
        child.sendline("y")
    assert offer.is_accepted()


def test_what_is_exchanged_during_the_question_is_not_accepted(cli: Cli, offer: Offer) -> None:
    with _asked(cli, offer.accept) as child:
        offer.write("touch evil")
        child.sendline("y")
    assert not offer.is_accepted()
    offer.write("harmless")
    assert offer.is_accepted()


def test_a_name_that_an_agent_chose_runs_nothing_in_a_printed_command(cli: Cli) -> None:
    for name in ("x;touch EVIL #", "-h", "a b"):
        folder = cli.root / ".claude" / "skills" / name
        folder.mkdir(parents=True)
        (folder / "SKILL.md").write_text("---\ndescription: looks\n---\nLook.\n")
    (cli.root / "CLAUDE.md").write_text("@notes.md\n")
    (cli.root / "notes.md").write_text("Look.")
    states = {each["name"]: each["state"] for each in cli("skills", "--json").json}
    assert states == {"x;touch EVIL #": "invalid", "-h": "invalid", "a b": "new", "@notes.md": "new"}
    commands = re.findall(r"`crewboard (skills trust [^`]*)`", cli("skills").out)
    assert [shlex.split(command)[2] for command in commands] == ["a b", "@notes.md"]
    for command in commands:
        assert cli(*shlex.split(command)).code == 0


def test_no_server_is_nothing_to_accept(cli: Cli) -> None:
    (cli.root / ".mcp.json").write_text('{"mcpServers": {}}')
    cli("mcp", "approve", "--all").refused(2, "there is no server in .mcp.json")


def test_several_servers_are_bound_together(cli: Cli) -> None:
    def write(second: str) -> None:
        servers = {"one": {"command": "true"}, "two": {"command": second}}
        (cli.root / ".mcp.json").write_text(json.dumps({"mcpServers": servers}))

    write("true")
    shown = _printed(cli("mcp", "approve", "--all").err, ("mcp", "approve", "--all"))
    write("evil")
    cli(*shown).refused(65, "one, two of .mcp.json has another sha256")
    write("true")
    assert cli(*shown).code == 0
