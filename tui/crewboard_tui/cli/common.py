"""What the commands share: global options, arguments, the group that imports a command when it runs, printing.

Data goes to stdout, as text or JSON; progress goes to stderr.

Every command imports this module, `--version` and `--help` too: what only some need is imported where it is used.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import math
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from functools import cached_property, partial, wraps
from types import MappingProxyType
from typing import IO, TYPE_CHECKING, Any, NamedTuple, get_args

import click

import crewboard as core
from crewboard import BadDataError, CrewboardError, ExitCode, UsageError, env, redaction

if TYPE_CHECKING:
    from pathlib import Path

    from click.shell_completion import CompletionItem

    from crewboard import Message, Team
    from crewboard.store.layout import TeamDirectory


# click decorates any kind of callable.
def options(*added: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a decorator that adds several options to a command."""

    def add(command: Any) -> Any:  # noqa: ANN401
        for option in reversed(added):
            command = option(command)
        return command

    return add


BOARD_OPTIONS = ("--ascii", "--plain", "--theme", "--read-only")

ascii_option = click.option("--ascii", "plain_glyphs", is_flag=True, help="Draw with ASCII characters only.")

theme_option = click.option(
    "--theme", metavar="NAME", help="Colours, as dark, light, contrast, tokyo-night; default: the last."
)

board = options(
    ascii_option,
    click.option("--plain", is_flag=True, help="No screen: print each need as one line."),
    theme_option,
    click.option("--read-only", is_flag=True, help="Read-only: no key changes anything."),
)
"""Decorator that adds the dashboard's options to a command. They also apply when no command is named."""

_MOST_DIGITS = 10


def text(value: str) -> str:
    """Return the text as typed; bytes that are not UTF-8 become question marks."""
    return value.encode("utf-8", "replace").decode()


def ids(value: str) -> list[int]:
    """Parse task ids separated by commas; an empty text gives none.

    Raises:
        click.BadParameter: One of them is not a task id.
    """
    return [task_id(part.strip()) for part in value.split(",") if part.strip()]


def task_id(value: str) -> int:
    """Parse the id of a task.

    Raises:
        click.BadParameter: It is not a number from 1 on.
    """
    number = int(value) if value.isascii() and value.isdigit() and len(value) < _MOST_DIGITS else 0
    if number < 1:
        raise click.BadParameter(f"{value!r} is not a task id; `crewboard tasks` lists them")
    return number


def seconds(value: str) -> float:
    """Parse a number of seconds; infinity is allowed.

    Raises:
        click.BadParameter: It is not a number, or below 0.
    """
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    # Negated so that NaN, which fails every comparison, is refused as well.
    if not number >= 0:
        raise click.BadParameter(f"{value!r} is not a number of seconds")
    return number


def read_text(path: str) -> str:
    """Return the text of a file; `-` is standard input.

    Raises:
        UsageError: There is no such file, or it is a directory.
        BadDataError: It is not UTF-8.
    """
    from pathlib import Path

    try:
        data = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except FileNotFoundError as error:
        raise UsageError(f"there is no file {path}") from error
    except IsADirectoryError as error:
        raise UsageError(f"{path} is a directory, not a file") from error
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadDataError(f"{path} is not UTF-8 text (byte {error.start})") from error


Completer = Callable[[click.Context, click.Parameter, str], "list[CompletionItem]"]


def completer(list_words: Callable[[Session], Iterable[str]], *, separator: str = "") -> Completer:
    """Return a function by which the shell completes a value to one of the words that `list_words` returns.

    It completes nothing if these cannot be read. With a `separator`, the last part of the value is completed.
    """

    def complete(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        options = ctx.find_root().params
        before, mark, last = incomplete.rpartition(separator) if separator else ("", "", incomplete)
        try:
            words = list(list_words(Session(options.get("root"), options.get("team"))))
        except (CrewboardError, OSError):
            return []
        return [CompletionItem(f"{before}{mark}{word}") for word in words if word.startswith(last)]

    return complete


@completer
def complete_team(session: Session) -> list[str]:
    """Complete the name of a team of the workspace."""
    from crewboard.store.layout import team_directories

    return [team.path.name for team in team_directories(session.root)]


def _agents(session: Session) -> list[str]:
    from crewboard.store import roster

    return [member.name for member in roster.load(session.directory).members]


complete_agent = completer(_agents)


@completer
def complete_reviewer(session: Session) -> list[str]:
    """Complete the name of an agent, or that of the operator."""
    return [*_agents(session), core.OPERATOR]


@completer
def complete_rule(session: Session) -> list[str]:
    """Complete the id of a permission rule."""
    from crewboard.store import roster

    return [rule.id for rule in roster.load(session.directory).rules]


@partial(completer, separator=",")
def complete_states(_: Session) -> list[str]:
    """Complete the last of several states of agents."""
    from crewboard.readmodel.states import Shown
    from crewboard.records.agents import State

    return list(dict.fromkeys([*get_args(State), *get_args(Shown)]))


@completer
def complete_agent_type(session: Session) -> list[str]:
    """Complete the name of an agent type."""
    from crewboard import type_files

    return list(type_files.find_all(session.root)[0])


@completer
def complete_setting(_: Session) -> list[str]:
    """Complete the name of a setting of the team."""
    from crewboard.commands import settings

    return list(settings.SETTINGS)


@completer
def complete_profile(_: Session) -> list[str]:
    """Complete the name of a profile."""
    from crewboard.commands import profiles

    return list(profiles.load(profiles.folder(os.environ)).profiles)


@completer
def complete_engine(_: Session) -> list[str]:
    """Complete the name of an engine."""
    from crewboard import engines

    return [*engines.KNOWN, engines.OTHER]


@completer
def complete_request(session: Session) -> list[str]:
    """Complete the id of a pending request."""
    from crewboard.protocol import requests

    return [request.id for request in requests.pending(session.directory)]


@completer
def complete_task(session: Session) -> list[str]:
    """Complete the id of a task."""
    from crewboard.store import tasks

    return [str(task_id) for task_id in tasks.ids(session.directory)]


agent_name = click.argument("name", shell_complete=complete_agent)
request_id = click.argument("ident", metavar="ID", shell_complete=complete_request)


PACKAGE = "crewboard_tui.cli"

_ELSEWHERE = {
    "agents": "status",
    "ask": "send NAME TEXT",
    "deny": "reject ID --feedback TEXT",
    "diff": "changes NAME --diff",
    "hire": "spawn NAME",
    "kill": "stop NAME --now",
    "list": "status",
    "logs": "log NAME",
    "ls": "status",
    "mail": "inbox NAME",
    "message": "send NAME TEXT",
    "needs": "status",
    "note": "reject ID --note LINE:TEXT",
    "ps": "status",
    "run": "spawn NAME",
    "show": "status",
    "task assign": "task update ID --owner NAME",
    "task claim": "task update ID --owner NAME",
    "task close": "task update ID --status completed",
    "task complete": "task update ID --status completed",
    "task done": "task update ID --status completed",
    "task fail": "task update ID --status failed",
    "task list": "tasks",
    "task show": "tasks",
    "task start": "task update ID --status in_progress",
    "team show": "status",
    "teams": "team list",
}
"""Commands that users look for and that do not exist, with the commands that do the work."""


_LEAST_BEGINNING = 3
"""The least letters of a word that may be meant as the beginning of another one."""


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that was probably meant: `word` with one typing error, else one that begins with `word`.

    None if there is none. Words that only look alike, such as `report` and `export`, are not near: what they do has
    nothing in common.
    """
    bare, names = word.lstrip("-"), list(known)
    begins = [each for each in names if len(bare) >= _LEAST_BEGINNING and each.lstrip("-").startswith(bare)]
    return next(iter([*filter(partial(_is_typo, bare), names), *begins]), None)


def _is_typo(word: str, known: str) -> bool:
    """Return True if one letter was left out, added or replaced, or two beside each other have changed places."""
    meant = known.lstrip("-")
    begin = _shared(word, meant)
    left, right = word[begin:], meant[begin:]
    end = _shared(left[::-1], right[::-1])
    left, right = left[: len(left) - end], right[: len(right) - end]
    return max(len(left), len(right)) <= 1 or (left[1:], left[:1]) == (right[:1], right[1:])


def _shared(word: str, other: str) -> int:
    """Return how many letters two words share at their beginning."""
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(word, other, strict=False)))


class LazyGroup(click.Group):
    """A group with its own commands and those of `sections`, which are imported when they run.

    `sections` has, by heading and command, the place `module:name`, and the first sentence of the help. The name is
    that of the command, or of a function that returns it, given the command's name.
    """

    def __init__(
        self, *args: Any, sections: Mapping[str, Mapping[str, tuple[str, str]]] = MappingProxyType({}), **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self._sections = sections
        self._places = {name: place for section in sections.values() for name, (place, _) in section.items()}

    @property
    def _listed(self) -> dict[str, dict[str, str]]:
        """Return the headings of the help, each with its commands and their first sentences."""
        found = {
            heading: {name: summary for name, (_, summary) in section.items()}
            for heading, section in self._sections.items()
        }
        own = {name: command.get_short_help_str(80) for name, command in self.commands.items()}
        return {**found, "Commands": own} if own else found

    @property
    def summaries(self) -> dict[str, str]:
        """Return the first sentence of each command's help, by command."""
        return {name: summary for section in self._listed.values() for name, summary in section.items()}

    # click defines this signature.
    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return [*self._places, *self.commands]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._places:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = self._places[cmd_name].partition(":")
        command = getattr(importlib.import_module(f"{PACKAGE}.{module}"), attribute)
        return command if isinstance(command, click.Command) else command(cmd_name)

    # click would import every command that fits, for its short help.
    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        found = [
            CompletionItem(name, help=summary)
            for name, summary in self.summaries.items()
            if name.startswith(incomplete)
        ]
        return [*found, *click.Command.shell_complete(self, ctx, incomplete)]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        known = self.list_commands(ctx)
        if args[0] == "help" and ctx.parent is None and not ctx.resilient_parsing:
            # As in git: `help COMMAND` is `COMMAND --help`.
            args = [*args[1:], "--help"]
            if len(args) == 1:
                click.echo(ctx.get_help())
                ctx.exit()
        # The shell completes what follows an unknown word, too: then there is nothing, and no error.
        if args[0] not in known and not args[0].startswith("-") and not ctx.resilient_parsing:
            near = nearest(args[0], known)
            hint = f" (did you mean {near!r}?)" if near else ""
            wanted = args[0] if ctx.parent is None else f"{ctx.info_name} {args[0]}"
            if wanted in _ELSEWHERE:
                hint = f"; `{ctx.find_root().info_name} {_ELSEWHERE[wanted]}` does that"
            raise click.UsageError(f"no such command: {args[0]!r}{hint}", ctx)
        found = super().resolve_command(ctx, args)
        # The group's own function runs before they are parsed, and looks there for `--help`.
        ctx.args = found[2]
        return found

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401  whatever the command returns
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            # click does not say whose option has no value.
            if error.ctx is None and ctx.invoked_subcommand in self.list_commands(ctx):
                command = self.get_command(ctx, ctx.invoked_subcommand)
                error.ctx = click.Context(command, parent=ctx, info_name=ctx.invoked_subcommand) if command else ctx
            raise

    # click defines this signature.
    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        for heading, summaries in self._listed.items():
            with formatter.section(heading):
                formatter.write_dl([*summaries.items()])


def as_options(given: Mapping[str, str | bool | None]) -> list[str]:
    """Return options as words of a command line, without those that are not set."""
    return [word for name, value in given.items() if value for word in ([name] if value is True else [name, value])]


def one_of(flags: Mapping[str, bool]) -> str | None:
    """Return the name of the flag that is set; None if none is.

    Raises:
        UsageError: Several are set.
    """
    names = [name for name, is_set in flags.items() if is_set]
    if len(names) > 1:
        *most, last = [f"--{name}" for name in names]
        raise UsageError(f"use only one of {', '.join(most)} and {last}")
    return names[0] if names else None


class Session:
    """The global options of one call, the team that they choose, and `as_json`: whether the command prints JSON.

    With `reads`, the command only reads, and may be used on a foreign team.
    """

    def __init__(
        self,
        root: str | None = None,
        team: str | None = None,
        store: str | None = None,
        *,
        offline: bool = False,
        reads: bool = False,
    ) -> None:
        self.root_option = root
        self.team_option = team
        self.store_option = store
        self.offline = offline
        self.reads = reads
        self.as_json = False
        self._new: TeamDirectory | None = None

    @property
    def given(self) -> list[str]:
        """Return the global options with which another command works on the same team, as words."""
        chosen = {"--root": self.root_option, "--team": self.team_option, "--store": self.store_option}
        return as_options({**chosen, "--offline": self.offline})

    @property
    def root(self) -> Path:
        """Return the workspace: the root of the team.

        Raises:
            UsageError: The root that was named is not a directory.
        """
        from crewboard.store.layout import find_root

        return find_root(self.root_option)

    @property
    def directory(self) -> TeamDirectory:
        """Return the directory of the team that the options choose; the default team need not exist yet.

        Raises:
            UsageError: The team that was named does not exist, or none was named and several could be meant.
            UntrustedError: Another user controls the team.
        """
        return core.choose_team(self.root, self.team_option)

    @cached_property
    def team(self) -> Team:
        """Return the team. The default team need not exist yet. With `--store`, the team in that database is joined.

        Raises:
            UsageError: The team that was named does not exist.
            UntrustedError: It is foreign, and the command does more than read.
        """
        if self.store_option is not None:
            from crewboard.commands import hosts

            name = self.team_option or env.team()
            return self.open(hosts.join(self.root, name, self.store_option))
        return self.open(self.directory)

    def open(self, directory: TeamDirectory) -> Team:
        """Return the team in a directory, in the way in which this command may use it.

        Raises:
            UntrustedError: It is foreign, and the command does more than read.
        """
        from crewboard_tui import dashboard

        if not self.reads:
            directory.require_adopted()
        dashboard.prepare_to_read(directory, note)
        environment = dashboard.environment_of(offline=self.offline)
        # The dashboard, too, may hire the first agent.
        tell = (lambda _: None) if self.reads else note
        begins = partial(dashboard.new_settings, directory.root, tell)
        if self.reads:
            return core.Team(directory, environment=environment, new_settings=begins)
        if not directory.exists():
            self._new = directory
        return core.Team(directory, environment=environment, tell=note, new_settings=begins)

    def new_settings(self, root: Path) -> Mapping[str, object]:
        """Return the settings that a new team in `root` begins with, and print them.

        Raises:
            BadDataError: One of them is invalid.
            UntrustedError: The project's file has changed since the user accepted it.
        """
        from crewboard_tui import dashboard

        return dashboard.new_settings(root, note)

    def tell(self, data: object, *texts: str, empty: str = "") -> None:
        """Print texts on stdout, or with `--json` the `data` in place of them.

        If there are no texts, print `empty` on stderr.
        """
        if self.as_json:
            say_json(data)
        elif texts or not empty:
            say(*texts)
        else:
            note(empty)

    def prepare_new(self) -> None:
        """Start the supervisor of the team, if this command has made the team."""
        if self._new is not None and self._new.exists():
            prepare(self._new)


def keep_mirrored(team: TeamDirectory) -> None:
    """Keep a team that mirrors one of another program up to date until this process ends.

    Do nothing for other teams and for a foreign one.
    """
    from crewboard.attach.mirror import MirrorThread
    from crewboard.store import roster

    if roster.is_attached(team) and not team.is_foreign():
        MirrorThread(team, on_error=note).start()


def prepare(team: TeamDirectory) -> None:
    """Start the supervisor of a new team in files, so that its prefork server is ready before the first hire.

    If that fails, report it and continue. A team in a database may get hosts instead.
    """
    from crewboard.protocol import supervisor_client

    if team.address is None:
        supervisor_client.start_or_tell(supervisor_client.wake_supervisor, team, note)


def revive(team: TeamDirectory) -> None:
    """Start a supervisor if none is running. If that fails, report it and continue."""
    from crewboard.protocol import supervisor_client

    supervisor_client.start_or_tell(supervisor_client.ensure_running, team, note)


NETWORK = frozenset({
    "afs", "beegfs", "ceph", "cifs", "coda", "fuse.beegfs", "fuse.ceph", "fuse.ceph-fuse", "fuse.davfs", "fuse.davfs2",
    "fuse.gcsfuse", "fuse.glusterfs", "fuse.goofys", "fuse.juicefs", "fuse.moosefs", "fuse.rclone", "fuse.s3fs",
    "fuse.seaweedfs", "fuse.sshfs", "gfs2", "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "pvfs2",
    "smb3", "smbfs",
})  # fmt: skip
"""The names of network file systems.

A machine that is cut off there loses its locks without being told, and may write later; appending is not atomic on
most of them.
"""

OF_THE_HOST = frozenset({
    "9p", "fakeowner", "fuse.grpcfuse", "fuse.osxfs", "fuse.vmhgfs-fuse", "prl_fs", "vboxsf", "virtiofs", "vmhgfs",
})  # fmt: skip
"""The names of file systems that give a virtual machine or a container a folder of the machine that it runs on.

Locks hold between the processes inside, which cannot be cut off from their disk, but changes made outside cause no
events.
"""

OFF_NETWORK = (
    "use a root on a local disk, or keep the team in PostgreSQL: "
    "`crewboard team create NAME --store postgresql://USER@HOST/DATABASE`"
)


def on_network(team: TeamDirectory, kind: str) -> str:
    """Return a warning about a team in files on the network file system `kind`."""
    return (
        f"{team.root} is on {kind}: a machine that is cut off loses its locks there and may write later, so that "
        "messages and results can be lost or doubled"
    )


def file_system(path: Path, mounts: str = "/proc/self/mountinfo") -> str:
    """Return the type of the file system that holds `path`, or will hold it; empty if that is unknown.

    `mounts` is the file that lists what is mounted: proc(5), mountinfo.
    """
    from pathlib import Path

    real = Path(os.path.realpath(path))
    depth, found = -1, ""
    try:
        lines = os.fsdecode(Path(mounts).read_bytes()).splitlines()
    except OSError:
        return ""
    for line in lines:
        left, _, right = line.partition(" - ")
        # The sixth field ends what each line has; optional ones follow.
        place = Path(re.sub(r"\\([0-7]{3})", lambda escape: chr(int(escape[1], 8)), left.split(" ")[4]))
        # Of two at one place, the later one covers the other.
        if real.is_relative_to(place) and len(place.parts) >= depth:
            depth, found = len(place.parts), right.partition(" ")[0]
    return found


def warn_of_network(team: TeamDirectory) -> None:
    """Report on stderr if a team in files is on a network file system."""
    kind = file_system(team.path)
    if kind in NETWORK:
        note(f"{on_network(team, kind)}; {OFF_NETWORK}")


NARROWEST = 40
"""The least width to which lines are cut: on a narrower terminal they are wrapped."""

_DAY = 24 * 60 * 60


sha256 = options(
    click.option(
        "--sha256", metavar="S", help="SHA-256 of what you looked at, or its first 16 digits; refused if it changed."
    ),
    click.option(
        "--reveal", is_flag=True,
        help="Show what is to be accepted, also the keys in it; then ask, or print the command that accepts it.",
    ),
)  # fmt: skip
"""Decorator that adds the options for accepting something to a command."""


class Shown(NamedTuple):
    """A thing that a command asks the user to accept: its name, its SHA-256, how to look at it, and its lines of text.

    `question` is what a terminal asks, if it is not "Accept … as shown?". If `is_always`, the lines are also printed
    without a terminal.
    """

    what: str
    sha256: str
    look: str
    lines: Callable[[], Iterable[str]]
    question: str = ""
    is_always: bool = False

    @property
    def hides(self) -> bool:
        """Return True if something in the lines is hidden until it is revealed, because it looks like a secret."""
        return self._text(reveals=False) != self._text(reveals=True)

    def _text(self, *, reveals: bool) -> list[str]:
        from crewboard_tui.render.sanitize import revealing, safe_text

        with revealing(wanted=reveals):
            return [safe_text(line) for line in self.lines()]

    def yes(self, accept: str) -> str:
        """Return the command that accepts the thing as it is shown now.

        If something in it is hidden, the command shows all of it first. `accept` is the command without its `--sha256`.
        """
        from crewboard.records.requests import bound_to, revealed_sha256
        from crewboard_tui.render.sanitize import is_revealing

        if not self.hides:
            return f"{accept} {bound_to(self.sha256)}"
        return f"{accept} {bound_to(revealed_sha256(self.sha256)) if is_revealing() else '--reveal'}"


def require_yes(given: str | None, seen: Shown, accept: str, *, reveal: bool = False, asks: bool = True) -> None:
    """Check that the user accepts exactly the thing `seen`: by its SHA-256 `given`, or with a yes in a terminal.

    `accept` is the command line that accepts the thing. With `reveal`, secrets are shown. Without `asks`, nothing is
    asked, as in a script.

    Raises:
        BadDataError: `given` is of something else, or a secret in the thing was hidden.
        UsageError: Nothing is given, and there is no terminal, or a secret would be hidden there.
        click.Abort: The user says no.
    """
    from crewboard.records.requests import is_revealed, require_shown
    from crewboard_tui.render.sanitize import revealing

    is_terminal = asks and sys.stdin.isatty() and sys.stdout.isatty()
    is_revealing = reveal and asks and given is None
    with revealing(wanted=is_revealing):
        if asks and (seen.is_always or (given is None and (is_terminal or reveal))):
            try:
                say(*seen.lines())
            except OutputError as error:
                raise OutputError(error.why, "nothing was changed, because it was not shown") from error
        command = seen.yes(accept)
    if given is not None and is_revealed(given, seen.sha256):
        return
    if given is not None:
        require_shown(given, seen.sha256, seen.what)
    if not is_revealing and seen.hides:
        words = f"what looks like a key is hidden in {seen.what}, so it was not read; `{command}` shows it first"
        raise UsageError(words) if given is None else BadDataError(words)
    if given is not None:
        return
    if not is_terminal:
        look = "" if is_revealing else f"{seen.look}, then "
        raise UsageError(f"{look}`{command}` accepts exactly {'what is shown' if is_revealing else 'that'}")
    if not click.confirm(seen.question or f"Accept {seen.what} as shown?"):
        note("nothing was changed")
        raise click.Abort


# click decorates any kind of callable.
def as_json(command: Any) -> Any:  # noqa: ANN401
    """Add the option `--json` to a command, and call the command with the session, which has `as_json` then."""

    @click.option("--json", "as_json", is_flag=True, help="Print JSON.")
    @click.pass_obj
    @wraps(command)
    def call(session: Session, /, *args: Any, as_json: bool, **options: Any) -> None:
        session.as_json = as_json
        command(session, *args, **options)

    return call


def listing(**given: Any) -> Callable[[Callable[[Session], None]], click.Group]:
    """Return a decorator that makes a function a group; the function runs if no command of the group is named.

    `given` are the arguments of `click.group`.
    """

    def make(command: Callable[[Session], None]) -> click.Group:
        @wraps(command)
        def call(session: Session, /) -> None:
            if is_list(session):
                command(session)

        group: Callable[[Any], click.Group] = click.group(cls=LazyGroup, invoke_without_command=True, **given)
        return group(as_json(call))

    return make


def is_list(session: Session) -> bool:
    """Return True if no command of the present group is named, so that the group lists what there is.

    Raises:
        UsageError: `--json` is given to the group, and a command is named whose help is not asked for.
    """
    context = click.get_current_context()
    name, group = context.invoked_subcommand, context.command
    if name is None or not isinstance(group, click.Group):
        return True
    if session.as_json and not {*context.help_option_names} & {*context.args}:
        command = group.get_command(context, name)
        takes_it = command is not None and any(each.name == "as_json" for each in command.params)
        how = f"; write `{context.command_path} {name} --json`" if takes_it else f"; {name} takes none"
        raise click.UsageError(f"--json before {name} is for the list{how}", context)
    return False


class OutputError(CrewboardError):
    """Output could not be written to stdout, as on a full disk. Commands print what they did after they did it."""

    exit_code = ExitCode.IO

    def __init__(self, why: str, result: str = "what was asked for is done, only its output is lost") -> None:
        super().__init__(f"cannot write to stdout: {why}; free space; {result}")
        self.why = why


def put(text: str | bytes, *, newline: bool = True, on_stderr: bool = False) -> None:
    """Print a text as it is on stdout, or on stderr, where what cannot be written is left out.

    Raises:
        OutputError: It could not be written to stdout.
        BrokenPipeError: The reader of stdout has ended.
    """
    try:
        click.echo(text, nl=newline, err=on_stderr)
    except OSError as error:
        drop_unwritten(sys.stderr if on_stderr else sys.stdout)
        if on_stderr:
            return
        if isinstance(error, BrokenPipeError):
            raise
        raise OutputError(error.strerror or str(error)) from error


def drop_unwritten(stream: IO[str]) -> None:
    """Discard what could not be written to a standard stream: at exit, Python would try again, and complain."""
    try:
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def say(*texts: str) -> None:
    """Print texts on stdout, each on lines of its own, made safe for a terminal."""
    from crewboard_tui.render.sanitize import safe_text

    for text in texts:
        put(safe_text(text))


def note(*texts: str) -> None:
    """Print progress or a warning on stderr, made safe for a terminal."""
    from crewboard_tui.render.sanitize import safe_text

    for text in texts:
        put(safe_text(text), on_stderr=True)


def note_left_branches(team: Team, names: Sequence[str]) -> None:
    """Report on stderr which branches are left of agents whose checkouts are gone."""
    from crewboard.commands import workspace

    note(*workspace.left_branches(team, names))


def note_asleep(team: Team, sent: Sequence[Message]) -> None:
    """Start a supervisor if none is running, and report on stderr which recipients of messages are not running."""
    from crewboard.commands import messages

    revive(team.directory)
    note(*messages.not_running(team, sent))


def note_budget(text: str | None) -> None:
    """Report on stderr if the first call would use up a budget."""
    from crewboard import pricing

    if (doubt := pricing.doubt(text)) is not None:
        note(doubt)


def note_damage(count: int, where: str) -> None:
    """Report on stderr how many lines of a file could not be read; nothing for 0. `where` names the file."""
    from crewboard.records.base import counted

    if count:
        note(f"{counted(count, 'damaged line')} of the {where} skipped")


def note_damaged_records(team: TeamDirectory, names: Iterable[str]) -> None:
    """Report on stderr which records could not be read, so that a list lacks them."""
    note(*(f"{team.key(name)} is damaged, so it is not listed; repair it by hand" for name in names))


_on_one_line = ContextVar("on_one_line", default=False)


@contextlib.contextmanager
def json_on_one_line(*, wanted: bool) -> Iterator[None]:
    """Print each JSON value in this context on one line if `wanted`, because several follow each other."""
    token = _on_one_line.set(wanted)
    try:
        yield
    finally:
        _on_one_line.reset(token)


def say_json(value: object) -> None:
    """Print a value as ASCII JSON with secrets redacted, indented unless `json_on_one_line` is wanted."""
    put(_dump(value, indent=None if _on_one_line.get() else 2))


def say_json_line(value: object) -> None:
    """Print a value as ASCII JSON on one line, with secrets redacted."""
    put(_dump(value))


def _dump(value: object, indent: int | None = None) -> str:
    import json

    text = json.dumps(redaction.redact_values(value), ensure_ascii=True, allow_nan=False, indent=indent)
    return text.replace("\x7f", "\\u007f")


def columns(least: int = NARROWEST) -> int:
    """Return the width of the terminal, at least `least`. Without one, it is so large that nothing is cut."""
    # As shutil does it, without the compressors that it loads: 2 % of the time of a command.
    chosen = os.environ.get("COLUMNS", "")
    width = int(chosen) if chosen.isdecimal() else 0
    if not width:
        with contextlib.suppress(AttributeError, ValueError, OSError):
            width = os.get_terminal_size(sys.__stdout__.fileno()).columns  # type: ignore[union-attr]
    return max(least, width or sys.maxsize)


def clock(ts: float | None, now: float | None = None) -> str:
    """Return a time of day, with the date unless it is today; a dash for None."""
    if ts is None:
        return "–"
    moment = time.localtime(ts)
    today = time.localtime(time.time() if now is None else now)
    same_day = (moment.tm_year, moment.tm_yday) == (today.tm_year, today.tm_yday)
    return time.strftime("%H:%M:%S" if same_day else "%Y-%m-%d %H:%M", moment)


def age(seconds: float) -> str:
    """Return a duration rounded to its largest unit: `12s`, `4m`, `3h`, `2d`."""
    for size, unit in ((_DAY, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds / size:.0f}{unit}"
    return f"{max(0, seconds):.0f}s"


def cut(text: str, room: int) -> str:
    """Return `text` made safe, cut to one line of at most `room` columns."""
    from crewboard_tui.render.lines import clip
    from crewboard_tui.render.sanitize import safe_line

    return clip(safe_line(text), room)


def table(header: Sequence[str], rows: Iterable[Sequence[str]], *, indent: str = "") -> list[str]:
    """Return rows under a header as lines, in columns, cut to the width of the terminal."""
    from rich.cells import cell_len

    from crewboard_tui.render.lines import clip, pad
    from crewboard_tui.render.sanitize import safe_line

    cells = [list(header), *([safe_line(cell) for cell in row] for row in rows)]
    widths = [max(cell_len(row[place]) for row in cells) for place in range(len(header) - 1)]
    padded = ([pad(cell, size) for cell, size in zip(row, widths, strict=False)] + [row[-1]] for row in cells)
    return [indent + clip("  ".join(row).rstrip(), columns() - len(indent)) for row in padded]


def quoted(text: str) -> str:
    """Return a text of another author with a mark before each line, so that none looks like a line of crewboard.

    A line that is wider than the terminal goes on behind another mark.
    """
    from rich.cells import cell_len, chop_cells

    from crewboard_tui.render.sanitize import safe_text

    # Where the terminal wraps a line itself, the rest of the line has no mark.
    room = columns(least=_NARROWEST_QUOTE) - len(_QUOTE)
    lines: list[str] = []
    for line in safe_text(text).replace("\t", "    ").split("\n"):
        first, *rest = [line] if cell_len(line) <= room else chop_cells(line, room)
        lines += [_QUOTE + first, *(_QUOTE_ON + piece for piece in rest)]
    return "\n".join(lines)


_QUOTE, _QUOTE_ON = "    │ ", "    ┊ "
_NARROWEST_QUOTE = 10
"""The least width to which quoted texts are wrapped: the mark, and room for any character."""


def indented(text: str, by: str = "    ") -> str:
    """Return a text, made safe, with each line indented."""
    from crewboard_tui.render.sanitize import safe_text

    return "\n".join(by + line if line else "" for line in safe_text(text).splitlines())
