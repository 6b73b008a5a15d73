"""The commands `init` and `config`, for the settings of new teams and of the dashboard, and `engines`."""

import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import click
from msgspec.structs import asdict

from crewboard import UsageError
from crewboard import engines as crewboard_engines
from crewboard.commands.context import NONE, root_options
from crewboard.records.base import pick
from crewboard.records.team import Config
from crewboard.store import files
from crewboard.store.layout import team_directories
from crewboard_tui import settings
from crewboard_tui.cli import common
from crewboard_tui.cli.common import Session, as_json, note, say, say_json, table
from crewboard_tui.render.sanitize import safe_line
from crewboard_tui.settings import FILE, SETTINGS, Files, Given, as_typed

_WHERE = {
    "default": "default", "user": "your file", "project": "project", "environment": "environment", "team": "team",
    "dashboard": "chosen with T",
}  # fmt: skip


@click.command()
@click.argument("name", required=False, shell_complete=common.completer(lambda _: list(SETTINGS)))
@click.option("--trust", is_flag=True, help=f"Accept the project's {FILE} as it is now, instead.")
@common.sha256
@as_json
def config(session: Session, name: str | None, trust: bool, sha256: str | None, reveal: bool) -> None:
    """List settings and your own themes, and where they come from, or show one.

    A value comes from the team, else from crewboard.toml of the project, else from yours in ~/.config/crewboard; a
    variable of the environment goes before all. A team takes what the files say when it is made: later, `crewboard
    settings` and `crewboard budget` change it.

    A project's file may come from a stranger, or be changed by an agent. What it says about agents is used after
    `crewboard config --trust`, until the file changes; what it says about the dashboard is used at once.

    Example: crewboard config budget
    """
    if trust:
        path = settings.project_file(session.root)
        content = settings.read_project(session.root)
        text = content.decode("utf-8", "replace")
        is_there = os.path.lexists(path)
        absent = f"there is no {path}"
        seen = common.Shown(
            str(path),
            settings.sha256(content),
            f"read {path}" if is_there else f"see that {absent}",
            lambda: [f"{path}:", common.quoted(text)] if is_there else [absent],
            "" if is_there else f"Accept that {absent}?",
        )
        common.require_yes(sha256, seen, _accept(session), reveal=reveal)
        settings.accept(session.root, content, os.environ)
        until = f"{path} is accepted until it changes; it is for new teams"
        say(safe_line(until if is_there else f"{absent}: that is accepted until there is one; new teams begin without"))
        return
    found = settings.read_files(session.root, os.environ)
    rows = [row for row in _rows(session, found) if name in (None, row["name"])]
    theme = (name or "").removeprefix(f"{settings.THEMES}.")
    if not rows and theme != name and theme in found.refused:
        raise UsageError(f"the theme {theme} is refused: {found.refused[theme]}")
    if not rows:
        raise UsageError(f"there is no setting {name!r}; settings: {', '.join([*SETTINGS, *_own_themes(found)])}")
    if session.as_json:
        say_json(rows[0] if name is not None else rows)
    elif name is not None:
        say(safe_line(f"{name} {as_typed(name, rows[0]['value'])}"))
        say(f"    from: {_place(rows[0])}")
        say(f"    {SETTINGS[name].says if name in SETTINGS else _THEME}")
    else:
        # Of a theme, not each colour.
        themes = {row["name"]: f"based on {row['value']['base']}" for row in rows if isinstance(row["value"], Mapping)}
        values = (themes.get(row["name"]) or as_typed(row["name"], row["value"]) for row in rows)
        told = [(row["name"], value, _place(row)) for row, value in zip(rows, values, strict=True)]
        say(*table(("SETTING", "VALUE", "FROM"), told))
    note(*map(safe_line, (*found.problems, *found.unknown)))
    if found.waiting or found.changed:
        why = "is not accepted, and new teams do not use it"
        if found.changed:
            why = f"{found.changed}, and no new team is made before you accept that"
        said = f"{settings.project_file(session.root)} {why}"
        note(safe_line(f"{said}: `{_accept(session)}` shows and accepts it"))


_THEME = "A theme of your own: `crewboard --theme NAME` shows it, T and the palette offer it."


def _own_themes(found: Files) -> dict[str, Given]:
    return {f"{settings.THEMES}.{name}": given for name, (given, _) in found.themes.items()}


def _place(row: Mapping[str, Any]) -> str:
    later = "" if row["new_teams"] is None else f", new teams: {as_typed(row['name'], row['new_teams']['value'])}"
    where = f": {row['where']}" if row["where"] else ""
    return safe_line(f"{_WHERE[row['source']]}{where}{later}")


def _rows(session: Session, found: Files) -> Iterator[dict[str, Any]]:
    """Yield each setting with its value, its source, and the file or variable that gives it, as `--json` prints it."""
    team = session.team
    exists = team.directory.exists()
    usual, now = Config(name=team.directory.path.name), team.config
    look = settings.of_dashboard(os.environ, session.root).given
    for name, setting in SETTINGS.items():
        default = Given(getattr(usual if setting.of_team else settings.Settings(), name), "default", "")
        given = found.given.get(name, default) if setting.of_team else look.get(name, default)
        later = None
        if setting.of_team and exists:
            own = getattr(now, name)
            later = given if given.value != own and given is not default else None
            given = default if own == default.value else Given(own, "team", team.directory.path.name)
        variable = next((each for each in setting.variables if setting.of_team and os.environ.get(each)), None)
        if variable is not None:
            given = Given(os.environ[variable], "environment", variable)
        yield {"name": name, **asdict(given), "where": given.where or None, "new_teams": later and asdict(later)}
    for name, given in _own_themes(found).items():
        yield {"name": name, **asdict(given), "new_teams": None}


def _accept(session: Session) -> str:
    return shlex.join(["crewboard", *root_options(session.root), "config", "--trust"])


_OPTIONS = {
    "model": "Model of agents.",
    "engine": "Program that does their work in place of a model.",
    "budget": "Budget of a team, in money ('$5') or tokens (200k).",
    "check": "Command that must pass before a task is completed.",
    "worktree": "Checkouts of their own for agents that write files: always, never.",
    "theme": "Colours of the dashboard: dark, light, contrast, catppuccin-mocha, …",
    "notify": "How a new need is told: off, bell, desktop.",
}
"""The settings for which `init` has an option, with its help."""


@click.command()
@click.option("--user", "is_users", is_flag=True, help="Write your own file, for all projects.")
@click.option("--yes", is_flag=True, help="Ask nothing; what no option says keeps its default.")
@common.options(*(click.option(f"--{name}", metavar=name[0].upper(), help=says) for name, says in _OPTIONS.items()))
@click.pass_obj
def init(session: Session, /, is_users: bool, yes: bool, **options: str | None) -> None:
    """Write a crewboard.toml with the settings of new teams, all explained.

    In a terminal it asks three questions: which model or engine works, the budget, and the check of finished work. The
    file of a project is written into the root and is accepted as it is.

    Example: crewboard init

    Example: crewboard init --yes --budget '$5' --check 'make test' --worktree always
    """
    path = settings.user_file(os.environ) if is_users else settings.project_file(session.root)
    if os.path.lexists(path):
        raise UsageError(f"{path} is there already: edit it; `crewboard config` lists what it says")
    if not yes and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError(
            "init asks questions in a terminal: in a script give --yes, and options for what should differ"
        )
    # The user's own file, which holds themes of the user, is never written here.
    if options["theme"] in settings.read_files(None, os.environ, of_team=False).themes:
        raise UsageError(
            f"{options['theme']} is a theme of your own file, which others do not have: choose it there, or with T"
        )
    chosen = {
        name: None if text.strip() in ("", NONE) else settings.read_setting(name, text.strip())
        for name, text in options.items()
        if text is not None
    }
    if str(chosen.get("engine", "")).startswith(crewboard_engines.OTHER) and not is_users:
        raise UsageError("a project does not choose a command as its engine: write your own file, with --user")
    if not yes:
        _ask(session.root, chosen)
    content = settings.template({name: value for name, value in chosen.items() if value is not None}).encode()
    files.make_private_folders(path.parent)
    with path.open("xb") as file:
        file.write(content)
    if not is_users:
        settings.accept(session.root, content, os.environ)
    say(f"wrote {path}: what new teams begin with; `crewboard config` lists all settings")
    budget = chosen.get("budget")
    common.note_budget(str(budget) if budget is not None else None)
    for team in team_directories(session.root):
        note(f"the team {team.path.name} keeps its settings: `crewboard settings` and `crewboard budget` change them")


def _ask(root: Path, chosen: dict[str, object]) -> None:
    """Ask the questions that no option answers, and put the answers into `chosen`."""
    engines = [each.engine for each in crewboard_engines.find_all(root) if each.path is not None]
    found = [engine.name for engine in engines]

    def read_worker(text: str) -> object:
        return settings.read_setting("engine" if text in found else "model", text)

    if not {"model", "engine"} & chosen.keys():
        # Others with crewboard's tools are the same programs.
        programs = " or ".join(engine.name for engine in engines if engine.own_tools)
        here = f", or {programs}, which you have here" if found else ""
        worker = _prompt(f"Which model should agents use{here}? Enter: that of their type", read_worker)
        chosen["engine" if worker in found else "model"] = worker
    if "budget" not in chosen:
        chosen["budget"] = _prompt(
            "What may a team use, as $5 or 200k tokens? Enter: no limit", partial(settings.read_setting, "budget")
        )
    if "check" not in chosen:
        try:
            with (root / "Makefile").open(encoding="utf-8", errors="replace") as file:
                usual = "make test" if re.search(r"^test\s*:", file.read(_MOST_OF_MAKEFILE), re.MULTILINE) else ""
        except OSError:
            usual = ""
        enter = f"{usual}, {NONE}: no check" if usual else "no check"
        said = f"Which command must pass before a task is completed? Enter: {enter}"
        chosen["check"] = _prompt(said, partial(settings.read_setting, "check"), usual)


def _prompt(question: str, read: Callable[[str], object], default: str = "") -> object:
    def value(text: str) -> object:
        try:
            return None if text.strip() in ("", NONE) else read(text.strip())
        except UsageError as error:
            raise click.BadParameter(str(error)) from error

    return click.prompt(question, default=default, show_default=False, value_proc=value)


_MOST_OF_MAKEFILE = 100_000


@click.command()
@as_json
def engines(session: Session) -> None:
    """List the engines that agents can have in place of the model.

    An engine is an agent program of its own, such as Claude Code: `crewboard spawn NAME --engine claude`. It uses your
    login or key for it, and is never installed by crewboard. With `claude-gated`, Claude Code has crewboard's tools in
    place of its own. Any other program that speaks the Agent Client Protocol is --engine 'acp:COMMAND', as an
    experiment.
    """
    found = crewboard_engines.find_all(session.root)
    if session.as_json:
        names = (
            "name", "title", "path", "version", "tested", "tested_versions", "plans", "tells_cost", "own_tools",
            "access", "lacks", "why_not",
        )  # fmt: skip
        say_json([
            pick(
                names, each.engine,
                path=str(each.path) if each.path is not None else None, version=each.version or None,
                tested=each.is_tested, tested_versions=each.engine.tested, why_not=each.why_not or None,
                access=crewboard_engines.describe_access(each.engine, Path.home(), os.environ)[0] or None,
            )
            for each in found
        ])  # fmt: skip
        return
    for each in found:
        say(safe_line(f"{each.engine.name} ({each.engine.title}): {each.describe()}"))
        if each.path is not None:
            _, access = crewboard_engines.describe_access(each.engine, Path.home(), os.environ)
            say(f"         {safe_line(access)}")
        say(f"         works with {each.engine.works_with}")
        say(*(f"         {lack}" for lack in each.engine.lacks))
