"""The command `crewboard`: global options, the list of commands, error reporting."""

import io
import os
import sys
import traceback
from collections.abc import Sequence

import click
from click.shell_completion import shell_complete

import crewboard as core
from crewboard import CrewboardError, ExitCode, __version__
from crewboard_tui.cli import common
from crewboard_tui.cli.common import LazyGroup, Session, note
from crewboard_tui.render import safe_line

SECTIONS = {
    "See": {
        "board": "board:board",
        "serve": "board:serve",
        "status": "status:status",
        "watch": "watching:watch",
        "wait": "watching:wait",
        "inbox": "mail:inbox",
        "requests": "mail:requests",
        "tasks": "tasks:tasks",
        "changes": "changes:changes",
        "journal": "watching:journal",
        "log": "watching:log",
        "audit": "watching:audit",
        "away": "watching:away",
    },
    "Hire and talk": {
        "spawn": "hiring:spawn",
        "resume": "hiring:resume",
        "send": "mail:send",
        "broadcast": "mail:broadcast",
        "lead": "control:lead",
        "task": "tasks:task",
    },
    "Steer": {
        "interrupt": "control:interrupt",
        "pause": "control:pause",
        "unpause": "control:unpause",
        "approver": "control:approver",
        "check": "tasks:check",
        "budget": "control:budget",
        "limit": "control:limit",
        "settings": "control:settings",
        "rules": "control:rules",
    },
    "Answer": {
        "approve": "mail:approve",
        "reject": "mail:reject",
        "answer": "mail:answer",
        "ack": "control:ack",
    },
    "Bring home": {
        "merge": "changes:merge",
        "undo": "changes:undo",
        "discard": "changes:discard",
        "worktree": "changes:worktree",
    },
    "End": {"stop": "control:stop", "remove": "control:remove", "team": "teams:team"},
    "Setup": {
        "demo": "board:demo",
        "types": "hiring:types",
        "keys": "board:keys",
        "doctor": "doctor:doctor",
        "supervisor": "control:supervisor",
    },
}
"""Each command's module and function, in the order of the help."""


READING = frozenset({
    None, "board", "serve", "status", "watch", "wait", "inbox", "requests", "tasks", "changes", "journal", "log",
    "audit", "away", "team", "types", "keys", "doctor", "demo", "supervisor",
})  # fmt: skip
"""Commands that can be used on a foreign team. The dashboard is read-only there."""


@click.group(
    cls=LazyGroup,
    sections=SECTIONS,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option("--root", metavar="DIR", help="Workspace; default: $CREWBOARD_ROOT, else the nearest .crewboard/.")
@click.option("--team", metavar="NAME", help="Team; default: $CREWBOARD_TEAM, else the only one, else `default`.")
@click.option("--offline", is_flag=True, help="Use the offline model: no key, no network.")
@common.board
@click.version_option(__version__, prog_name="crewboard", message="%(prog)s %(version)s")
@click.pass_context
def crewboard(context: click.Context, /, root: str | None, team: str | None, offline: bool, **look: bool) -> None:
    """Hire, watch, steer and stop a team of Claude agents, one process each.

    Without a command, open the dashboard. Try `crewboard demo` first; it needs no key.
    """
    reads = context.invoked_subcommand in READING
    context.obj = Session(root, team, offline or core.env.is_offline(), reads)
    if context.invoked_subcommand is None:
        board = crewboard.get_command(context, "board")
        if board is not None:
            context.invoke(board, **look)
    elif context.invoked_subcommand == "board":
        context.default_map = {"board": {name: True for name, given in look.items() if given}}
    elif any(look.values()):
        raise click.UsageError("--ascii, --plain and --read-only are for the dashboard, not for a command", context)


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code; print an error as one sentence on stderr."""
    _never_fail_to_print()
    core.redaction.register_secrets(os.environ)
    if instruction := os.environ.get(core.env.COMPLETE):
        return shell_complete(crewboard, {}, "crewboard", core.env.COMPLETE, instruction)
    try:
        with crewboard.make_context("crewboard", list(arguments)) as context:
            crewboard.invoke(context)
        sys.stdout.flush()
    except click.exceptions.Exit as ending:
        return ending.exit_code
    except (KeyboardInterrupt, click.Abort):
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        _drop_unwritten()
    # The last handler: no traceback reaches the user.
    except Exception as error:  # noqa: BLE001
        return _tell(error)
    return ExitCode.DONE


def _never_fail_to_print() -> None:
    """Print escapes for characters that the terminal's encoding lacks."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _drop_unwritten() -> None:
    """Discard what stdout did not accept, or Python would try, and complain, again at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _tell(error: Exception) -> int:
    if core.env.is_debugging():
        traceback.print_exception(error)
    match error:
        case CrewboardError():
            sentence, code = str(error), int(error.exit_code)
        case click.exceptions.NoArgsIsHelpError():
            note(error.format_message())
            return ExitCode.USAGE
        case click.UsageError():
            sentence, code = _usage(error), int(ExitCode.USAGE)
        case click.ClickException():
            sentence, code = error.format_message(), int(ExitCode.USAGE)
        case OSError():
            _drop_unwritten()
            where = f" {error.filename}" if error.filename else ""
            sentence, code = f"the system refused:{where} {error.strerror or error}", int(ExitCode.IO)
        case _:
            sentence = f"internal error: {type(error).__name__}: {error}; {core.env.DEBUG}=1 shows where"
            code = int(ExitCode.INTERNAL)
    note(f"crewboard: {safe_line(sentence)}")
    return code


def _usage(error: click.UsageError) -> str:
    before = [option for param in crewboard.params for option in param.opts]
    if isinstance(error, click.NoSuchOption) and error.option_name in before:
        return f"{error.option_name} stands before the command, as in `crewboard {error.option_name} … COMMAND`"
    command = error.ctx.command_path if error.ctx else "crewboard"
    return f"{error.format_message().rstrip('.')}; `{command} --help` shows the usage"
