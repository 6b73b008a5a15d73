"""The table of engines: what is found on PATH, in which version, and what a hire may name."""

import json
import sys
from pathlib import Path

import pytest

from crewboard import engines
from crewboard.commands.context import lacks_with_engine
from crewboard.errors import UsageError
from tests.cli.shell import Inside, clean_environment

PACKAGE = "@agentclientprotocol/claude-agent-acp"


def install(folder: Path, version: str) -> Path:
    """Put the program of an npm package on a path, with a link to it, as npm does. Return the folder of the link."""
    package = folder / "lib" / "node_modules" / PACKAGE
    program = package / "dist" / "index.js"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\nexit 99\n")
    program.chmod(0o755)
    (package / "package.json").write_text(json.dumps({"name": PACKAGE, "version": version}))
    links = folder / "bin"
    links.mkdir()
    (links / "claude-agent-acp").symlink_to(program)
    return links


@pytest.mark.parametrize(("version", "is_tested"), [("0.101.0", True), ("0.102.0", False)])
def test_engines_says_what_is_there_and_if_it_was_tested(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, is_tested: bool
) -> None:
    monkeypatch.setenv("PATH", str(install(tmp_path, version)))
    root = tmp_path / "root"
    root.mkdir()
    claude, gated, codex = engines.find_all(root)
    assert (gated.path, gated.version, gated.is_tested) == (claude.path, version, is_tested)
    assert (claude.version, claude.is_tested, claude.why_not) == (version, is_tested, "")
    assert claude.describe() == f"{version} ({'tested' if is_tested else 'not tested; tested is 0.101.0'})"
    assert (codex.path, codex.describe()) == (None, "codex-acp is not on PATH")


def test_a_program_in_the_workspace_is_no_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(install(tmp_path, "0.101.0")))
    claude, *_ = engines.find_all(tmp_path)
    assert claude.path is None
    assert "in the workspace" in claude.describe()
    with pytest.raises(UsageError, match="in the workspace"):
        engines.choose("claude", tmp_path)


def test_a_hire_names_an_engine_that_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    links = install(tmp_path, "0.101.0")
    root = tmp_path / "root"
    root.mkdir()
    monkeypatch.setenv("PATH", str(links))
    chosen = engines.choose("claude", root)
    assert (chosen.name, chosen.command) == ("claude", [str(links / "claude-agent-acp")])
    other = engines.choose(f"acp:{sys.executable} 'a b' -c", root)
    assert (other.name, other.command) == ("acp", [sys.executable, "a b", "-c"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("copilot", "the engines are claude, claude-gated, codex"),
        ("codex", "npm install -g @agentclientprotocol/codex-acp@2.6.0"),
        ("acp:", "needs the command"),
        ("acp:'x", "cannot be read"),
        ("acp:no-such-program --acp", "there is no program no-such-program"),
        ("acp:/no/such/program", "there is no program /no/such/program"),
    ],
)
def test_what_is_no_engine_here_is_refused_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, said: str
) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    with pytest.raises(UsageError, match=said):
        engines.choose(text, tmp_path)


@pytest.mark.long
def test_the_command_and_doctor_tell_the_engines(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    path = f"{install(tmp_path / 'npm', '0.1.0')}:/usr/bin:/bin"
    cli = Inside(root, clean_environment(PATH=path, HOME=str(tmp_path)))
    assert (
        "claude (Claude Code): 0.1.0 (not tested; tested is 0.101.0)\n         no login and no key: log in with"
        in cli("engines").out
    )
    with_key = Inside(root, clean_environment(PATH=path, HOME=str(tmp_path), ANTHROPIC_AUTH_TOKEN="t"))
    assert "\n         your key, ANTHROPIC_AUTH_TOKEN\n" in with_key("engines").out
    assert cli("engines", "--json").json[0]["access"] is None
    rows = {each["name"]: each for each in cli("engines", "--json").json}
    assert (rows["claude"]["version"], rows["claude"]["tested"]) == ("0.1.0", False)
    assert [(name, row["own_tools"]) for name, row in rows.items()] == [
        ("claude", True), ("claude-gated", False), ("codex", True),
    ]  # fmt: skip
    assert cli("engines").out.count("works with crewboard's tools: the plan gate and your rules decide each call") == 1
    assert rows["codex"]["why_not"] == "codex-acp is not on PATH"
    checks = {each["name"]: each for each in json.loads(cli("doctor", "--json").out)}
    assert checks["model"]["mark"] == "bad"
    assert checks["model"]["remedy"].endswith(", or log in to claude and hire with --engine claude")
    (tmp_path / ".claude").mkdir()
    (tmp_path / ".claude" / ".credentials.json").touch()
    logged_in = {each["name"]: each for each in json.loads(cli("doctor", "--json").out)}
    assert logged_in["model"]["remedy"].endswith(", or hire with --engine claude, which needs none")
    (tmp_path / ".claude" / ".credentials.json").unlink()
    assert checks["engines"]["mark"] == "note"
    assert checks["engines"]["detail"] == "claude 0.1.0 (not tested; tested is 0.101.0)"
    remedy = checks["engines"]["remedy"]
    assert remedy.startswith("claude: no login and no key: log in with `claude`, then /login")
    assert remedy.endswith("; another version may behave in another way; try it on a small task first")
    # A team whose agents have engines needs no key.
    assert cli("settings", "engine", "claude").code == 0
    checks = {each["name"]: each for each in json.loads(cli("doctor", "--json").out)}
    assert checks["model"]["mark"] == "ok"


def test_the_guide_names_what_an_engine_does_not_take() -> None:
    guide = (Path(__file__).parents[2] / "docs/guide.md").read_text().partition("- **What it does not take**")[2]
    named = guide.partition("\n\n")[0]
    assert [what for what in lacks_with_engine() if what not in named] == []
    gated = named.partition("`claude-gated` takes all")[2]
    taken = [what for what in lacks_with_engine() if what not in lacks_with_engine(own_tools=False)]
    assert [what for what in taken if what.startswith("--") and what not in gated] == []


@pytest.mark.parametrize(
    ("name", "environment", "sees"),
    [
        ("claude", {}, "your login, ~/.claude/.credentials.json"),
        ("claude", {"ANTHROPIC_API_KEY": "k"}, "no key"),
        ("claude", {"CLAUDE_CODE_OAUTH_TOKEN": "t", "ANTHROPIC_API_KEY": "k"}, "your login, CLAUDE_CODE_OAUTH_TOKEN"),
        ("codex", {"OPENAI_API_KEY": "k"}, "your login, ~/.codex/auth.json"),
        ("codex", {"CODEX_HOME": "{home}/.claude", "CODEX_API_KEY": "k"}, "no key"),
        ("claude", {"CLAUDE_CONFIG_DIR": "{home}/other"}, "your login, ~/other/.credentials.json"),
    ],
)
def test_a_hire_says_what_an_engine_sees(tmp_path: Path, name: str, environment: dict[str, str], sees: str) -> None:
    for file in (".claude/.credentials.json", ".codex/auth.json", "other/.credentials.json"):
        (tmp_path / file).parent.mkdir()
        (tmp_path / file).touch()
    environment = {variable: value.format(home=tmp_path) for variable, value in environment.items()}
    said = engines.describe_costs(name, tmp_path, environment, network=False)
    assert said.endswith(f"it and its commands see {sees}, and reach its API alone")


@pytest.mark.parametrize(
    ("network", "reaches", "theirs"), [(False, "its API alone", "nothing"), (True, *["any address"] * 2)]
)
def test_the_commands_of_a_gated_engine_see_no_login(tmp_path: Path, network: bool, reaches: str, theirs: str) -> None:
    (tmp_path / ".claude").mkdir()
    (tmp_path / ".claude/.credentials.json").touch()
    said = engines.describe_costs("claude-gated", tmp_path, {}, network=network)
    assert said == (
        f"takes about 300 MiB; it sees your login, ~/.claude/.credentials.json, and reaches {reaches}; "
        f"its commands see no login and no key, and reach {theirs}"
    )


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("claude", "no login and no key: log in with `claude`, then /login, or set ANTHROPIC_API_KEY"),
        ("codex", "no login and no key: log in with `codex login`, or set CODEX_API_KEY"),
    ],
)
def test_a_form_says_that_an_engine_is_logged_out(tmp_path: Path, name: str, missing: str) -> None:
    said = engines.describe_costs(name, tmp_path, {}, network=False)
    assert said == f"takes about {engines.known(name).memory >> 20} MiB; it has {missing}"
    assert "no login" not in engines.describe_costs("acp", tmp_path, {}, network=False)
