"""Read the settings from files: those that new teams begin with, and those of the dashboard. Store how teams were left.

`crewboard.toml` is read from the user's configuration directory and from the root of a project, whose values take
precedence. The project's file may come from a stranger, or be changed by an agent: of it, only settings of the
dashboard apply at once. The others apply while the user has accepted the file as it is, and those that choose a program
or a server never do. Invalid settings are reported with file and line.
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import json
import logging
import os
import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

from msgspec import Struct, field

from crewboard import BadDataError, CrewboardError, UntrustedError, UsageError, consent, endpoint, env
from crewboard.records.messages import LastVisit
from crewboard.store import files, roster
from crewboard.store.layout import record_of

if TYPE_CHECKING:
    from textual.theme import Theme

    from crewboard_tui.notifications import Notify

log = logging.getLogger(__name__)

T = TypeVar("T", bound=str)

FILE = "crewboard.toml"

THEMES = "themes"
"""The name of the table in a file that holds the user's own themes."""

_MOST_THEMES = 20
"""The most themes that are read from one file: a project's file may have any number, and each is checked."""

_MOST_PROBLEMS = 20
"""The most wrong lines of one kind that are reported of one file; others are counted, as finding each takes time."""

_ACCEPTED = "settings"
"""The name of the folder that records which files of projects the user has accepted."""


class Setting(Struct, frozen=True):
    """A setting. `says` is the comment, and `example` the value, in a new file; `variables` take precedence over files.

    `read` returns the value for a text; without it, the setting is one of teams, else of the dashboard.
    """

    says: str
    example: object
    variables: tuple[str, ...] = ()
    read: Callable[[str], object] | None = None

    @property
    def of_team(self) -> bool:
        """Return True if the setting is one that a new team begins with."""
        return self.read is None


def _one_of(known: tuple[T, ...], text: str) -> T:
    for value in known:
        if value == text:
            return value
    raise UsageError(f"{text} is invalid; use one of {', '.join(known)}")


# What names the values loads the screen, and the start of a team does without.
def _theme(text: str, own: Collection[str] = (), refused: Mapping[str, str] = MappingProxyType({})) -> str:
    from crewboard_tui.render import themes

    if text in refused:
        raise UsageError(f"the theme {text} is refused: {refused[text]}")
    return _one_of((*themes.THEMES, *own), text)


def _notify(text: str) -> Notify:
    from crewboard_tui.notifications import WAYS

    return _one_of(WAYS, text)


_TEAM: dict[str, tuple[str, object]] = {
    "model": ("The model of agents, with exceptions for types.", "sonnet explore=haiku"),
    "engine": ("The program that does their work in place of a model: claude, claude-gated, codex.", "claude"),
    "budget": ("What a team may use: money or tokens.", "$5"),
    "worktree": ("`always` gives each agent that writes files a checkout of its own.", "always"),
    "check": ("The command that must pass before a task is completed. It runs in the agent's sandbox.", "make test"),
    "worktree_copy": ("Files that are not in the repository and are copied into such checkouts.", ".env .venv"),
    "worktree_setup": ("A command that then runs in them, in the agent's sandbox.", "make deps"),
    "lead_merges": ("Whether a lead may merge work into a branch that is not checked out.", False),
    "collisions": ("Before two agents change one file: `warn`, `hold` asks you, `claims` refuses.", "warn"),
    "max_agents": ("How many agents may run at the same time.", 8),
    "max_working": ("How many of them may work at the same time.", 4),
    "min_free_memory": ("Memory of the machine that must be free for another agent.", "2G"),
    "on_outage": ("While the API is unavailable, agents `wait` or `fail`.", "wait"),
    "outage_hours": ("How long they wait at most.", 12),
    "approval_hours": ("Hours after which an approved plan must be submitted anew.", 8),
    "result_needs": ("Whether a result that you have not read needs you.", True),
    "server": ("A server of models on this machine or its network; only in your own file.", "http://127.0.0.1:11434"),
}

_VARIABLES = {"model": (env.MODEL, "ANTHROPIC_MODEL"), "server": (endpoint.BASE_URL,)}

SETTINGS: dict[str, Setting] = {
    **{name: Setting(says, example, _VARIABLES.get(name, ())) for name, (says, example) in _TEAM.items()},
    "theme": Setting(
        "The colours of the dashboard. One that you chose with T goes before.", "dark", (env.THEME,), _theme
    ),
    "notify": Setting("How the terminal tells of a new need: off, bell, desktop.", "bell", (env.NOTIFY,), _notify),
    "reduced_motion": Setting(
        "One repaint a second, nothing moves by itself.",
        example=False,
        variables=(env.REDUCED_MOTION,),
        read=lambda text: _one_of(("on", "off"), text) == "on",
    ),
}
"""The settings by name, in the order of a new file."""


def read_setting(
    name: str, text: str, themes: Collection[str] = (), refused: Mapping[str, str] = MappingProxyType({})
) -> object:
    """Return the value of the setting `name` from a text as on a command line.

    `themes` are the user's own, and `refused` are those that are not used, with the reason.

    Raises:
        UsageError: The text is no value of this setting.
    """
    if name == "theme":
        return _theme(text, themes, refused)
    if (read := SETTINGS[name].read) is not None:
        return read(text)
    # The first picture of the dashboard does without.
    from crewboard.commands import settings
    from crewboard.commands.context import NONE
    from crewboard.pricing import parse_budget

    if name != "budget":
        return settings.read_value(name, text)
    if text == NONE:
        return None
    parse_budget(text)
    return text


Source = Literal["default", "user", "project", "environment", "team", "dashboard"]


class Given(Struct, frozen=True):
    """A value that a file or a variable gives, what gives it, and `where`: the file with the line, or the variable."""

    value: object
    source: Source
    where: str


def user_file(environment: Mapping[str, str]) -> Path:
    """Return the path of the user's file; it need not exist."""
    return env.config_home(environment) / FILE


def project_file(root: Path) -> Path:
    """Return the path of a project's file; it need not exist."""
    return root / FILE


def read_project(root: Path) -> bytes:
    """Return the content of the project's file; empty if there is none. No link is followed.

    Raises:
        BadDataError: It cannot be read.
    """
    path = project_file(root)
    if not os.path.lexists(path):
        return b""
    # The first picture of the dashboard does without.
    from crewboard.type_files import open_folder, read_regular

    try:
        with open_folder(root, ".") as folder:
            return read_regular(folder, FILE)
    except (OSError, BadDataError) as error:
        said = error.strerror if isinstance(error, OSError) else str(error)
        raise BadDataError(f"{path} cannot be read: {said}") from error


def sha256(content: bytes) -> str:
    """Return the checksum of a project's file, in hexadecimal: an acceptance holds for files with the same one."""
    return hashlib.sha256(content).hexdigest()


def accept(root: Path, content: bytes, environment: Mapping[str, str]) -> None:
    """Accept a project's file for this user, until it changes.

    Raises:
        StorageError: It could not be recorded.
    """
    record = consent.Acceptance(FILE, os.path.realpath(root), sha256(content))
    consent.accept(_ACCEPTED, record, environment)


class Files(Struct):
    """The values of the files. `problems` are sentences about invalid lines that apply.

    `unknown` are sentences about names that are no setting, and about invalid lines that are not used yet.
    `waiting` are the settings of the project's file that apply once the user accepts it. `changed` says how that file
    is not as the user accepted it; empty if it is. `themes` are the user's own, each a `Given` of its table and the
    theme made of it; `refused` are those that are not used, each with file, line and reason.
    """

    of_team: bool | None
    """True for the settings of teams alone, False for those of the dashboard, None for all."""
    given: dict[str, Given] = {}
    problems: list[str] = []
    unknown: list[str] = []
    waiting: list[str] = []
    changed: str = ""
    themes: dict[str, tuple[Given, Theme]] = {}
    refused: dict[str, str] = {}
    _users_themes: frozenset[str] = frozenset()

    def take_project(self, root: Path, environment: Mapping[str, str]) -> None:
        record = consent.find(_ACCEPTED, FILE, root, environment)
        try:
            content = read_project(root)
        except BadDataError as error:
            self.problems.append(str(error))
            return
        is_accepted = record is not None and record.holds_for(sha256(content))
        if record is not None and not is_accepted:
            how = "has changed" if os.path.lexists(project_file(root)) else "is gone"
            self.changed = f"{how} since you accepted it"
        self.take(project_file(root), content, "project", waits=not is_accepted)

    def take(self, path: Path, content: bytes, source: Source, *, waits: bool = False) -> None:
        """Take the settings of a file. If it `waits` for the user's acceptance, take only those of the dashboard."""
        try:
            text = content.decode("utf-8-sig")
            table: dict[str, object] = {}
            if content:
                import tomllib

                table = tomllib.loads(text)
        except (ValueError, RecursionError) as error:
            said = "nested too deeply" if isinstance(error, RecursionError) else str(error)
            line = re.search(_AT_LINE, said)
            where = f"{path}:{line[1]}: {said[: line.start()]}" if line else f"{path} cannot be read: {said}"
            self.problems.append(where)
            return
        lines = text.splitlines()
        themes = table.pop(THEMES, None)
        if themes is not None and self.of_team is not True:
            self._take_themes(path, lines, themes, source)
        unknown = [name for name in table if name not in SETTINGS]
        for name in unknown[:_MOST_PROBLEMS]:
            close = difflib.get_close_matches(name, (*SETTINGS, THEMES), n=1)
            near = f", did you mean {close[0]}?" if close else f"; the settings are {', '.join(SETTINGS)}"
            self.unknown.append(f"{path}:{_line(lines, name)}: there is no setting {name}{near}")
        if left := unknown[_MOST_PROBLEMS:]:
            self.unknown.append(f"{path}: {len(left)} more names are no settings")
        for name, value in table.items():
            known = SETTINGS.get(name)
            if known is None or self.of_team not in (None, known.of_team):
                continue
            applies = not (known.of_team and waits)
            if not applies:
                self.waiting.append(name)
            self._read(name, value, source, f"{path}:{_line(lines, name)}", applies=applies)

    def _read(self, name: str, value: object, source: Source, where: str, *, applies: bool) -> None:
        """Take a value, or if it does not apply yet, only say what is wrong with it."""
        text = _as_text(value)
        try:
            if name == "theme" and isinstance(value, dict):
                raise UsageError(f"it is the name of a theme, did you mean [{THEMES}.{next(iter(value), 'NAME')}]?")
            if text is None:
                raise UsageError("give text in quotes, a number, true or false")
            if source == "project" and (name == "server" or (name == "engine" and ":" in text)):
                raise UsageError(f"a project does not choose that; set it in your own {FILE}")
            found = read_setting(name, text, self.themes, self.refused)
        except UsageError as error:
            # What is not used keeps no team from being made.
            (self.problems if applies else self.unknown).append(f"{where}: {name}: {error}")
        else:
            if applies:
                self.given[name] = Given(found, source, where)

    def _take_themes(self, path: Path, lines: list[str], tables: object, source: Source) -> None:
        from crewboard_tui.render.themes import likens_good_and_bad, read_theme

        if not isinstance(tables, dict) or len(tables) > _MOST_THEMES:
            where = f"{path}:{_line(lines, THEMES)}"
            self.problems.append(f"{where}: {THEMES}: give at most {_MOST_THEMES} tables, each as [{THEMES}.NAME]")
            return
        if source == "user":
            self._users_themes = frozenset(tables)
        problems: list[tuple[str, int, str, str]] = []
        for name, table in tables.items():
            begins = _line(lines, THEMES, name)
            theme, wrong = read_theme(name, table)
            if source == "project" and name in self._users_themes:
                # It is a word of the user, which must not change what it means in a cloned project.
                theme, wrong = None, [("", "your own file has a theme of that name, which is used")]
            elif source == "project" and theme is not None and (swapped := likens_good_and_bad(theme, table)):
                theme, wrong = None, swapped
            problems += [(name, begins, each, why) for each, why in wrong]
            if theme is not None:
                self.themes[name] = Given(table, source, f"{path}:{begins}"), theme
            elif name not in self.themes:
                self.refused[name] = f"{path}:{_line_in_table(lines, begins, wrong[0][0])}: {wrong[0][1]}"
        for name, begins, each, why in problems[:_MOST_PROBLEMS]:
            self.problems.append(f"{path}:{_line_in_table(lines, begins, each)}: {THEMES}.{name}: {why}")
        if left := problems[_MOST_PROBLEMS:]:
            self.problems.append(f"{path}: {THEMES}: {len(left)} more lines are wrong")


def read_files(root: Path | None, environment: Mapping[str, str], *, of_team: bool | None = None) -> Files:
    """Return what the user's file and the file of the project in `root` give; `of_team` is as in `Files`."""
    found, mine = Files(of_team), user_file(environment)
    try:
        found.take(mine, mine.read_bytes(), "user")
    except FileNotFoundError:
        pass
    except OSError as error:
        found.problems.append(f"{mine} cannot be read: {error.strerror}")
    if root is not None:
        found.take_project(root, environment)
    return found


_AT_LINE = r" \(at line (\d+), column \d+\)$"


def _line(lines: list[str], *names: str, or_else: int = 1) -> int:
    """Return the number of the line where a name of a file stands; `or_else` if no line starts with it.

    Of a name in a table, `names` are those of both. Each may be in quotes.
    """
    quoted = r"\s*[.]\s*".join(rf"""["']?{re.escape(name)}["']?""" for name in names)
    begins = re.compile(rf"\[?\s*{quoted}\s*[=.\]]")
    return next((number for number, line in enumerate(lines, 1) if begins.match(line.lstrip())), or_else)


def _line_in_table(lines: list[str], begins: int, name: str) -> int:
    """Return the number of the line of a table where a name stands; that of the table's head if there is none."""
    rest = lines[begins:]
    ends = next((place for place, line in enumerate(rest) if line.lstrip().startswith("[")), len(rest))
    return begins + _line(rest[:ends], name, or_else=0)


def _as_text(value: object) -> str | None:
    """Return a value of a file as it is typed on a command line; None if it has another form."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, int | float | str):
        return str(value)
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return " ".join(value)
    return None


def as_typed(name: str, value: object) -> str:
    """Return the value of a setting in the form in which it is set."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, int) and name == "min_free_memory":
        return roster.format_size(value)
    if isinstance(value, list):
        return " ".join(value)
    if isinstance(value, dict):
        return " ".join(f"{key}={each}" for key, each in value.items())
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def for_new_team(
    root: Path, environment: Mapping[str, str], trust: str, tell: Callable[[str], object]
) -> dict[str, object]:
    """Return the settings that a new team begins with, and tell what they are.

    `trust` is the command that accepts the project's file, for these messages.

    Raises:
        BadDataError: A value is invalid: a budget that is not understood must not be left out.
        UntrustedError: The project's file has changed, or is gone, since the user accepted it.
    """
    found = read_files(root, environment, of_team=True)
    if found.changed:
        raise UntrustedError(
            f"{project_file(root)} {found.changed}, and no new team is made before you accept that: `{trust}`"
        )
    if found.problems:
        raise BadDataError(f"{found.problems[0]}; correct that line, or remove it")
    for each in found.unknown:
        tell(each)
    if found.waiting:
        tell(f"{project_file(root)} is not used for {', '.join(found.waiting)} before you accept it: `{trust}`")
    if found.given:
        words = (f"{name} {as_typed(name, each.value)} ({each.where})" for name, each in found.given.items())
        tell(f"the new team begins with {', '.join(words)}")
    return {name: each.value for name, each in found.given.items()}


def template(chosen: Mapping[str, object]) -> str:
    """Return the content of a new file: the `chosen` settings, and all others as comments."""
    lines = ["# Settings of crewboard. `crewboard config` lists them, and where each value comes from.", ""]
    lines += [
        "# What a new team begins with. `crewboard settings` and `crewboard budget` change a team that there is.",
        "",
    ]
    for name, each in SETTINGS.items():
        if name == "theme":
            lines += ["# The dashboard.", ""]
        lines += [f"# {each.says}"]
        lines += [f"{name} = {_toml(chosen[name])}" if name in chosen else f"# {name} = {_toml(each.example)}", ""]
    return "\n".join([*lines, _OWN_THEME])


_OWN_THEME = """\
# Colours of your own: the theme that they begin with, and those that differ, of text, dim, trace, key, need, bad, good,
# info and ground. What cannot be read on its ground is refused.
# [themes.mine]
# base = "dark"
# key = "#8fd0ff"
"""
"""The end of a new file: settings must come before it, because a table has all lines up to the next table."""


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    # Strings of JSON are strings of TOML, but for this one character.
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")


class Settings(Struct, frozen=True):
    """The dashboard's settings.

    `keys` are those that differ from the default, by id. `remembers` is the file that stores the theme, `drafts` the
    directory of unsent texts, `sent` the directory of texts sent last, `visits` the directory of how teams were left;
    None if they are not stored. `themes` are the user's own, `refused_themes` those with a fault. `problems` are
    sentences about invalid settings.
    """

    notify: Notify = "off"
    theme: str = "dark"
    themes: Mapping[str, Theme] = field(default_factory=dict)
    refused_themes: Mapping[str, str] = field(default_factory=dict)
    reduced_motion: bool = False
    remembers: Path | None = None
    drafts: Path | None = None
    sent: Path | None = None
    visits: Path | None = None
    keys: Mapping[str, str] = field(default_factory=dict)
    problems: tuple[str, ...] = ()

    @classmethod
    def read(cls, environment: Mapping[str, str], root: Path | None = None) -> Self:
        """Read the dashboard's settings from the environment, the user's files, and the file of the project `root`."""
        # Commands that only make a team do without the screen.
        from crewboard_tui.keymap.user_file import keymap_path, read_keymap

        keymap = read_keymap(keymap_path())
        found = of_dashboard(environment, root)
        given: dict[str, Any] = {name: each.value for name, each in found.given.items()}
        return cls(
            **given,
            themes={name: theme for name, (_, theme) in found.themes.items()},
            refused_themes=found.refused,
            remembers=_chosen_file(environment),
            drafts=env.drafts_folder(environment),
            sent=env.sent_folder(environment),
            visits=env.visits_folder(environment),
            keys=keymap.keys,
            problems=(*found.problems, *found.unknown, *keymap.problems),
        )

    def remember(self, theme: str) -> None:
        """Store the name of a theme for the next start.

        Raises:
            OSError: It cannot be stored.
        """
        if self.remembers is not None:
            files.make_private_folders(self.remembers.parent)
            files.replace_file(self.remembers, f"{theme}\n".encode())


def read_visit(file: Path | None) -> LastVisit:
    """Return how the user left a team; the default if it is not known or cannot be read."""
    try:
        found = record_of(file, LastVisit).load_or_none() if file is not None else None
    except CrewboardError as error:
        log.warning("how the team was left cannot be read: %s", error)
        found = None
    return found or LastVisit()


def keep_visit(file: Path | None, visit: LastVisit) -> None:
    """Store how the user leaves a team. A failure is only logged."""
    if file is None:
        return
    try:
        files.make_private_folders(file.parent)
        record_of(file, LastVisit).save(visit)
    except (CrewboardError, OSError) as error:
        log.warning("how the team was left is not kept: %s", error)


def _chosen_file(environment: Mapping[str, str]) -> Path:
    return env.state_home(environment) / "theme"


def of_dashboard(environment: Mapping[str, str], root: Path | None = None) -> Files:
    """Return the settings of the dashboard that are given: by files, the theme chosen in the dashboard, and variables.

    The later of these take precedence.
    """
    found = read_files(root, environment, of_team=False)
    chosen = _chosen_file(environment)
    # One of another version, or none.
    with contextlib.suppress(OSError, ValueError, UsageError):
        found.given["theme"] = Given(_theme(chosen.read_text().strip(), found.themes), "dashboard", str(chosen))
    for name in (env.NOTIFY, env.THEME):
        if text := environment.get(name, "").strip().lower():
            setting = next(each for each, known in SETTINGS.items() if name in known.variables)
            try:
                value = read_setting(setting, text, found.themes, found.refused)
                found.given[setting] = Given(value, "environment", name)
            except UsageError as error:
                found.problems.append(f"{name}={error}")
    if (variable := env.reduced_motion_by(environment)) is not None:
        found.given["reduced_motion"] = Given(value=True, source="environment", where=variable)
    return found
