"""A yes of the user is bound to what was shown: something else in its place is refused, and a script has to name it."""

import json
import re
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pexpect
import pytest

from crewboard import skill_files
from crewboard.commands import transfer
from crewboard.commands.context import create
from crewboard.records.base import JsonValue
from crewboard.store.layout import TeamDirectory
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


def _offer_file(place: str, accept: str) -> Callable[[Cli], Offer]:
    def offer(cli: Cli) -> Offer:
        file = cli.root / place
        file.parent.mkdir(parents=True)

        def is_accepted() -> bool:
            return [each["state"] for each in cli("skills", "--json").json] == ["accepted"]

        return Offer(file.write_text, ("skills",), ("skills", "trust", accept), is_accepted)

    return offer


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    root = tmp_path / "root"
    root.mkdir()
    return Inside(root).with_environment(XDG_STATE_HOME=str(tmp_path / "state"))


_offer_folder, _offer_command = (
    _offer_file("src/CLAUDE.md", "@src/CLAUDE.md"),
    _offer_file(".claude/commands/x.md", "/x"),
)


@pytest.fixture(params=[_offer_server, _offer_type, _offer_skill, _offer_folder, _offer_command])
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


@pytest.mark.long
def test_a_terminal_shows_what_it_asks_about(cli: Cli, offer: Offer) -> None:
    with _asked(cli, offer.accept) as child:
        assert b"harmless" in child.before
        child.sendline("n")
    assert b"nothing was changed" in child.before
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
    *commands, both = re.findall(r"`crewboard (skills trust [^`]*)`", cli("skills").out)
    assert shlex.split(both)[2:4] == ["a b", "@notes.md"]
    assert [shlex.split(command)[2] for command in commands] == ["a b", "@notes.md"]
    for command in commands:
        assert cli(*shlex.split(command)).code == 0


def test_no_server_is_nothing_to_accept(cli: Cli) -> None:
    (cli.root / ".mcp.json").write_text('{"mcpServers": {}}')
    cli("mcp", "approve", "--all").refused(2, "there is no server in .mcp.json")


def test_several_skills_are_bound_together(cli: Cli) -> None:
    folder = cli.root / ".claude/commands"
    folder.mkdir(parents=True)
    for name in ("one", "two"):
        (folder / f"{name}.md").write_text("Look.")
    *_, both = re.findall(r"`crewboard (skills trust [^`]*)`", cli("skills").out)
    (folder / "two.md").write_text("Be evil.")
    cli(*shlex.split(both)).refused(65, "has another sha256")
    assert {each["state"] for each in cli("skills", "--json").json} == {"new"}
    (folder / "two.md").write_text("Look.")
    assert cli(*shlex.split(both)).code == 0
    assert {each["state"] for each in cli("skills", "--json").json} == {"accepted"}


def test_a_skill_is_accepted_for_all_teams_of_a_workspace(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", cli.environment["XDG_STATE_HOME"])
    for name in ("first", "second"):
        create(cli.root, name)
    offer = _offer_skill(cli)
    offer.write("harmless")
    shown = _printed(cli(*offer.listed).out, offer.accept)
    assert cli(*shown).code == 0
    assert offer.is_accepted()
    cli("--team", "third", "skills", "trust", "own").refused(2, "there is no team 'third'")


@pytest.mark.long
def test_a_flood_says_what_is_not_listed_and_is_not_accepted(cli: Cli) -> None:
    commands = cli.root / ".claude/commands"
    commands.mkdir(parents=True)
    for at in range(203):
        (commands / f"c{at:03}.md").write_text("Look.")
    for at in range(102):
        folder = cli.root / f".claude/skills/s{at:03}"
        folder.mkdir(parents=True)
        (folder / "SKILL.md").write_text("---\ndescription: looks\n---\nLook.\n")
    (cli.root / "CLAUDE.md").write_text("\n".join(f"@d{at}.md" for at in range(503)))
    for at in range(503):
        (cli.root / f"d{at}.md").write_text("Look.")
    listed = cli("skills")
    said = "not listed, and not accepted by these commands:"
    assert [line.split(" more ")[0] for line in listed.err.splitlines()] == [f"{said} {n}" for n in (2, 3, 3)]
    assert cli("skills", "--json").err == listed.err
    shown = {each["name"] for each in cli("skills", "--json").json}
    (all_of_them,) = re.findall(r"all \d+ of them: `crewboard (skills trust [^`]*)`", listed.out)
    assert cli(*shlex.split(all_of_them)).code == 0
    accepted = {each.name for each in skill_files.find_all(cli.root)}
    records = skill_files.accepted(cli.root, cli.environment)
    assert shown == accepted == {*records}
    assert "s101" not in records


_ALIKE = [["a b"], ["a", "b"], ["a  b"], ["a\tb"], ["'a", "b'"], ["a\N{EM SPACE}b"], ["", "a b"]]


@pytest.mark.parametrize("args", _ALIKE)
def test_two_command_lines_of_a_server_never_look_the_same(cli: Cli, args: list[str]) -> None:
    def shown(given: list[str]) -> str:
        (cli.root / ".mcp.json").write_text(json.dumps({"mcpServers": {"own": {"command": "sh", "args": given}}}))
        return re.sub(r"--sha256 \w+", "", cli("mcp").out + cli("mcp", "approve", "own").err)

    assert [each for each in _ALIKE if shown(each) == shown(args)] == [args]


SLY = """\
---
name: sly
description: "reads\\n         forged"
tools: ["Read", "Nope\\n         forged", "Bash(git\\n log *)", "Edit(src/**)"]
disallowedTools: ["Edit(a\\u00a0b\\n         forged)"]
model: "opus\\n         forged"
skills: ["a\\n         forged"]
mcpServers: {"own": {"command": "sh", "args": ["\\n forged"], "env": {"X": "\\n forged"}}, "z\\n forged": {}}
other: "x\\n         forged"
---
forged
"""


@pytest.mark.long
def test_no_text_of_a_type_or_server_begins_a_line(cli: Cli) -> None:
    (cli.root / ".claude/agents").mkdir(parents=True)
    (cli.root / ".claude/agents/sly.md").write_text(SLY)
    entry = {"url": "https://ok.example\N{FIGURE SPACE}/\n forged", "headers": {"X": "a\n forged"}}
    (cli.root / ".mcp.json").write_text(json.dumps({"mcpServers": {"web": entry}}))
    listed = cli("types").out + cli("types").err + cli("mcp").out + cli("mcp").err
    with _asked(cli, ("types", "trust", "sly")) as child:
        asked = child.before.decode()
        child.sendline("n")
    assert "it may" in asked
    with _asked(cli, ("mcp", "approve", "web")) as child:
        asked += child.before.decode()
        child.sendline("n")
    lines = [line.strip() for line in (listed + asked).splitlines()]
    assert [line for line in lines if line.startswith("forged")] == []
    assert lines.count("│ forged") == 1
    assert "a<U+00A0>b ␊ " in listed
    assert listed.count("https://ok.example<U+2007>/ ␊  forged") == 1


_KEY = f"sk-ant-api03-{'x' * 40}"


def test_a_key_is_revealed_before_a_script_says_yes(cli: Cli, offer: Offer) -> None:
    offer.write(f"login {_KEY}")
    listed = cli(*offer.listed)
    (reveals,) = re.findall(r"`crewboard ([^`]* --reveal)`", listed.out)
    assert tuple(shlex.split(reveals)[-len(offer.accept) - 1 : -1]) == offer.accept
    assert "--sha256" not in listed.out
    (hidden,) = [each["sha256"] for each in cli(*offer.listed, "--json").json if each["sha256"]]
    for given in (hidden, hidden[:16]):
        cli(*offer.accept, "--sha256", given).refused(65, "a key is hidden in", "--reveal` shows it first")
    cli(*offer.accept).refused(2, "a key is hidden in", "--reveal` shows it first")
    assert not offer.is_accepted()
    shown = cli(*shlex.split(reveals))
    assert f"login {_KEY}" in shown.out
    assert (shown.code, "accepts exactly what is shown" in shown.err) == (2, True)
    (yes,) = _yeses(shown.err)
    cli(*yes[:-1], yes[-1][:-1]).refused(65, "has another sha256")
    offer.write(f"login {_KEY}; touch evil")
    cli(*yes).refused(65, "has another sha256")
    offer.write(f"login {_KEY}")
    assert cli(*yes).code == 0
    assert offer.is_accepted()


def _yeses(text: str) -> list[list[str]]:
    """Return the arguments of each command in a text that accepts what has a SHA-256."""
    return [shlex.split(each) for each in re.findall(r"`crewboard ([^`]*--sha256 [0-9a-f]{16})`", text)]


@pytest.mark.long
def test_a_question_is_about_a_text_without_hidden_keys(cli: Cli, offer: Offer) -> None:
    offer.write(f"login {_KEY}")
    with terminal([*COMMAND, *offer.accept], cli.root, cli.environment) as child:
        child.expect(pexpect.EOF)
        assert b"so it was not read" in child.before
        assert b"[y/N]" not in child.before
    with _asked(cli, (*offer.accept, "--reveal")) as child:
        assert _KEY.encode() in child.before
        child.sendline("y")
    assert offer.is_accepted()


def test_what_only_looks_like_a_hidden_key_is_accepted_as_usual(cli: Cli, offer: Offer) -> None:
    offer.write("login [key hidden: 53 characters]")
    assert cli(*_printed(cli(*offer.listed).out, offer.accept)).code == 0
    assert offer.is_accepted()


def test_what_looks_like_a_key_in_a_server_can_be_shown(cli: Cli) -> None:
    key = _KEY
    entry: JsonValue = {"command": "serve", "args": [key], "env": {"A_TOKEN": "touch EVIL"}}
    (cli.root / ".mcp.json").write_text(json.dumps({"mcpServers": {"own": entry}}))
    hidden = cli("mcp")
    assert hidden.err == "what looks like a key is hidden in own: `crewboard mcp --reveal` shows it\n"
    assert "touch EVIL" not in hidden.out
    revealed = cli("mcp", "--reveal")
    assert f"serve {key}\n" in revealed.out
    assert "env A_TOKEN=touch EVIL" in revealed.out
    assert revealed.err == ""
    assert key not in cli("mcp", "--reveal", "--json").out
    asked = cli("mcp", "approve", "own", "--reveal")
    assert "env A_TOKEN=touch EVIL" in asked.out
    assert _yeses(revealed.out) == _yeses(asked.err) != []
    assert cli(*_yeses(revealed.out)[0]).code == 0


def test_several_servers_with_a_hidden_key_need_a_reveal(cli: Cli) -> None:
    servers = {"one": {"command": "true"}, "two": {"command": "serve", "env": {"A_TOKEN": "touch EVIL"}}}
    (cli.root / ".mcp.json").write_text(json.dumps({"mcpServers": servers}))
    assert [each[:3] for each in _yeses(cli("mcp").out)] == [["mcp", "approve", "one"]]
    cli("mcp", "approve", "--all").refused(2, "`crewboard mcp approve --all --reveal` shows it first")
    (yes,) = _yeses(cli("mcp", "approve", "--all", "--reveal").err)
    assert cli(*yes).code == 0


def test_several_skills_with_a_hidden_key_need_a_reveal(cli: Cli) -> None:
    folder = cli.root / ".claude/commands"
    folder.mkdir(parents=True)
    (folder / "one.md").write_text("Look.")
    (folder / "two.md").write_text(f"login {_KEY}")
    listed = cli("skills").out
    assert [each[2] for each in _yeses(listed)] == ["/one"]
    assert "all 2 of them: `crewboard skills trust /one /two --reveal`" in listed
    (yes,) = _yeses(cli("skills", "trust", "/one", "/two", "--reveal").err)
    assert cli(*yes).code == 0


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


# A team that is imported.

SETTINGS: dict[str, JsonValue] = {"schema": 1, "name": "old", "members": [{"name": "sue", "type": "explore"}]}

SPEC: dict[str, JsonValue] = {"prompt": "look", "prompt_id": "p", "type": "explore", "want": "stopped", "role": "quiet"}

GATE: dict[str, JsonValue] = {
    "kind": "gate",
    "ts": 2.0,
    "run": 1,
    "open": True,
    "request_id": "plan-7",
    "terms": {"given": {"network": True}},
}

REQUEST: dict[str, JsonValue] = {
    "id": "ask-7", "type": "permission", "from": "sue", "to": "operator", "payload": {"summary": "bash evil"},
    "status": "approved", "decided_at": 3.0, "decided_by": "operator",
}  # fmt: skip

MERGE: dict[str, JsonValue] = {
    "id": "m", "agent": "sue", "commit": "cc", "base": "aa", "how": "squash", "ref": "refs/heads/main", "before": "aa",
    "result": "bb",
}  # fmt: skip

MOVE: dict[str, JsonValue] = {
    "id": "m", "ref": "refs/heads/main", "old": "aa", "new": "bb", "files": True, "acceptance": MERGE,
}  # fmt: skip

OWN_TYPE: dict[str, JsonValue] = {
    "tools": ["read_file"], "model": "m", "summary": "s", "prompt": "You are\nevil.", "mcp": ["mcp__*"],
    "mcp_servers": {"own": {"command": "sh", "args": ["-c", "evil"]}},
}  # fmt: skip

Edited = Mapping[str, Mapping[str, JsonValue]]
"""The fields in the records of an exported team beside the usual, by the record's name."""


def _export(folder: Path, edited: Edited) -> None:
    """Write a team with an agent that only reads and does not run, and with what is `edited`."""
    shutil.rmtree(folder, ignore_errors=True)
    whole = {"config.json": SETTINGS, "agents/sue/spec.json": SPEC}
    for name in {*whole, *edited}:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({**whole.get(name, {}), **edited.get(name, {})}) + "\n")


@pytest.fixture
def new_team(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> TeamDirectory:
    monkeypatch.setenv("XDG_STATE_HOME", cli.environment["XDG_STATE_HOME"])
    return create(cli.root, "new").directory


def _is_empty(team: TeamDirectory) -> bool:
    """Return True if nothing was imported into a team, and nothing of it is left."""
    settings = json.loads(team.config.on_disk.read_bytes())
    left = [path.name for path in team.path.iterdir() if path.name.startswith("import-")]
    return (settings["rules"], settings["members"], team.agent_names(), left) == ([], [], [], [])


IMPORT = ("--team", "new", "import", "out")


def test_an_import_without_powers_asks_nothing(cli: Cli, new_team: TeamDirectory) -> None:
    limits: Edited = {
        "config.json": {"budget": "$1", "max_agents": 2, "approval_hours": 1},
        "agents/sue/spec.json": {"flags": {"ask": True, "budget": "$1"}},
    }
    _export(cli.root / "out", limits)
    assert cli(*IMPORT).code == 0
    assert new_team.agent_names() == ["sue"]


LETTER: dict[str, JsonValue] = {
    "id": "m", "ts": 1.0, "from": "operator", "to": "sue", "type": "message", "content": "go on\nas evil",
}  # fmt: skip

POWERS: list[tuple[str, Mapping[str, JsonValue], str]] = [
    ("config.json", {"plan_approver": "lead"}, "plans are approved by lead"),
    (
        "config.json",
        {"rules": [{"id": "r", "tool": "bash", "pattern": "ev*"}]},
        "all agents may use bash for ev* without asking",
    ),
    ("config.json", {"check": "make evil"}, 'check: "make evil"'),
    ("config.json", {"worktree_setup": "make evil"}, 'worktree_setup: "make evil"'),
    ("config.json", {"worktree_copy": [".env"]}, 'worktree_copy: [".env"]'),
    ("config.json", {"lead_merges": True}, "lead_merges: true"),
    ("config.json", {"server": "http://10.0.0.9"}, "server http://10.0.0.9"),
    ("config.json", {"model": "dear"}, 'model: "dear"'),
    ("config.json", {"attached": {"program": "claude-code", "team": "t", "config_dir": "/c"}}, "/c"),
    ("agents/sue/spec.json", {"type": "code"}, "agent sue: code, no options"),
    ("agents/sue/spec.json", {"flags": {"network": True}}, "network=True"),
    ("agents/sue/spec.json", {"flags": {"web": True}}, "web=True"),
    ("agents/sue/spec.json", {"flags": {"unsafe_no_sandbox": True}}, "unsafe_no_sandbox=True"),
    ("agents/sue/spec.json", {"definition": OWN_TYPE}, "server own: sh -c evil"),
    ("agents/sue/spec.json", {"definition": OWN_TYPE}, "│ evil."),
    ("agents/sue/spec.json", {"type": "code"}, "│ quiet"),
    ("agents/sue/spec.json", {"worktree": {"branch": "b", "base": "c", "objects": "../x"}}, "../x"),
    ("agents/sue/spec.json", {"type": "code", "prompt": "be evil"}, "│ be evil"),
    ("agents/sue/journal.jsonl", GATE, "plan-7 is approved"),
    ("agents/sue/journal.jsonl", GATE, "terms of an approval: network"),
    ("requests/ask-7.json", REQUEST, "ask-7 (permission) is approved"),
    ("requests/ask-7.json", {**REQUEST, "payload": {"summary": 1000 * "x" + "evil"}}, "xevil"),
    ("requests/ask-7.json", {**REQUEST, "edited": "be evil"}, '"edited": "be evil"'),
    ("requests/ask-7.json", {**REQUEST, "terms": {"network": True}}, '"network": true'),
    ("tasks/1.json", {"id": 1, "subject": "s", "check": "make evil"}, 'task 1, which is run: "make evil"'),
    ("inbox/sue.jsonl", LETTER, "mail that it has not read, from operator:\n    │ go on\n    │ as evil"),
    ("tasks/1.json", {"id": 1, "subject": "s", "description": "be evil"}, "for any agent: s\n    │ be evil"),
    ("acceptances.json", {"move": MOVE}, "refs/heads/main goes from aa to bb"),
    ("workspace.json", {"commit": "a" * 40, "head": "a" * 40, "url": "ssh://evil"}, "come from ssh://evil"),
]
"""The parts that act for the user: a record, what stands in it, and how that is shown."""


def test_each_power_of_an_import_is_shown_and_asked_for(cli: Cli, new_team: TeamDirectory) -> None:
    for record, edit, shown in POWERS:
        _export(cli.root / "out", {record: edit})
        asked = cli(*IMPORT)
        assert asked.code == 2, shown
        assert shown in asked.out
        assert _is_empty(new_team), shown
    assert cli.agree(*IMPORT).code == 0
    assert new_team.agent_names() == ["sue"]


def test_a_yes_to_an_import_is_for_all_that_is_in_it(cli: Cli, new_team: TeamDirectory) -> None:
    _export(cli.root / "out", {"agents/sue/spec.json": {"type": "code"}})
    words = _printed(cli(*IMPORT).err, IMPORT)
    # Also of what is not shown.
    (cli.root / "out/results").mkdir()
    (cli.root / "out/results/sue-1.md").write_text("evil\n")
    assert cli(*words).code == 65
    assert _is_empty(new_team)


def test_an_import_with_a_hidden_key_needs_a_reveal(cli: Cli, new_team: TeamDirectory) -> None:
    _export(cli.root / "out", {"agents/sue/spec.json": {"type": "code", "role": _KEY}})
    asked = cli(*IMPORT)
    assert asked.code == 2
    assert re.search("what looks like a key is hidden in out, .* --reveal` shows it first", asked.err)
    assert "agent sue: code" in asked.out
    assert _KEY not in asked.out
    assert cli(*IMPORT, "--sha256", transfer.sha256(TeamDirectory(cli.root / "out"))).code == 65
    assert _is_empty(new_team)
    revealed = cli(*IMPORT, "--reveal")
    assert revealed.out.count(_KEY) == 1
    assert _KEY not in cli(*IMPORT, "--reveal", "--json").out
    assert _is_empty(new_team)
    (yes,) = _yeses(revealed.err)
    assert cli(*yes).code == 0
    assert new_team.agent_names() == ["sue"]


def test_mail_that_was_read_is_no_power(cli: Cli, new_team: TeamDirectory) -> None:
    line = json.dumps(LETTER) + "\n"
    _export(cli.root / "out", {"agents/sue/cursor.json": {"offset": len(line)}})
    (cli.root / "out/inbox").mkdir()
    (cli.root / "out/inbox/sue.jsonl").write_text(line)
    assert cli(*IMPORT).code == 0
    assert new_team.agent_names() == ["sue"]


def test_a_damaged_record_of_an_import_is_named(cli: Cli, new_team: TeamDirectory) -> None:
    _export(cli.root / "out", {"config.json": {"rules": 1}})
    cli(*IMPORT).refused(65, "crewboard: out/config.json is damaged: rules")
    assert _is_empty(new_team)


def test_an_approval_of_ended_work_is_no_power(cli: Cli, new_team: TeamDirectory) -> None:
    _export(cli.root / "out", {"requests/ask-7.json": REQUEST})
    answer = {"kind": "answer", "ts": 9.0, "run": 1, "assignment": "a", "answers": ["a"], "text": "done"}
    journal = cli.root / "out/agents/sue/journal.jsonl"
    journal.write_text("".join(json.dumps(each) + "\n" for each in (GATE, answer)))
    assert cli(*IMPORT).code == 0
    assert new_team.agent_names() == ["sue"]


@pytest.mark.long
def test_a_terminal_is_shown_what_an_import_brings(cli: Cli, new_team: TeamDirectory) -> None:
    _export(cli.root / "out", {"agents/sue/spec.json": {"type": "code", "role": "harmless"}})
    with _asked(cli, IMPORT) as child:
        assert b"harmless" in child.before
        child.sendline("n")
    assert _is_empty(new_team)
    with _asked(cli, IMPORT) as child:
        _export(cli.root / "out", {"agents/sue/spec.json": {"type": "code", "role": "evil"}})
        child.sendline("y")
    assert json.loads(new_team.agent("sue").spec.on_disk.read_bytes())["role"] == "harmless"
