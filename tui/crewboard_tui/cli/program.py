"""The command `crewboard`: global options, the list of commands, and the report of errors."""

import contextlib
import gc
import io
import os
import sys
from collections.abc import Sequence

import click

from crewboard import CrewboardError, ExitCode, StorageError, __version__, env, redaction
from crewboard.operations import OPERATIONS
from crewboard_tui.cli import common
from crewboard_tui.cli.common import LazyGroup, Session, note


def _operations(section: str) -> dict[str, tuple[str, str]]:
    """Return the commands for operations on agents in a section of the help, with their place and first sentence."""
    return {
        each.command: ("control:operation", each.summary) for each in OPERATIONS.values() if each.section == section
    }


SECTIONS = {
    "See": {
        "board": ("board:board", "Open the dashboard, as `crewboard` without a command does."),
        "serve": ("board:serve", "Show the dashboard in a browser, until Ctrl-C."),
        "status": ("status:status", "Show the team: what needs you, its agents, requests and tasks."),
        "cost": ("status:cost", "Show what each agent and the team used: money, tokens by kind, budgets."),
        "watch": ("watching:watch", "Print changes as they happen, one per line, until Ctrl-C."),
        "wait": ("watching:wait", "Wait until agents reach a state, or until something needs you."),
        "inbox": ("mail:inbox", "Show the mailbox of NAME; nothing is marked as read."),
        "requests": ("requests:requests", "List the requests that wait for an answer, in full."),
        "plan": ("requests:plan", "Show the plan with this ID, line by line, with the notes on it."),
        "tasks": ("tasks:tasks", "Show the task board."),
        "changes": ("changes:changes", "Show what agents with a worktree changed, committed or not."),
        "journal": ("watching:journal", "Print everything that the agent NAME did, oldest first."),
        "log": ("watching:log", "Print what the worker of NAME wrote to stdout and stderr."),
        "audit": ("watching:audit", "Print what users did to the team and its agents, oldest first."),
        "away": ("watching:away", "Print what happened in the team since you left its dashboard, oldest first."),
    },
    "Hire and talk": {
        "spawn": ("hiring:spawn", "Hire the agent NAME, or give more work to an idle one."),
        "workspace": ("hosts:workspace", "Show what agents on hosts begin with, or push it."),
        "resume": ("hiring:resume", "Start the stopped or dead agents NAME... again."),
        "send": ("mail:send", "Send TEXT to the agent NAME, as the operator."),
        "broadcast": ("mail:broadcast", "Send TEXT to every agent, one copy each."),
        "lead": ("control:lead", "Send TEXT to the lead, wait for its answer and print it."),
        "task": ("tasks:task", "Add tasks to the task board, or change them."),
    },
    "Steer": {
        **_operations("Steer"),
        "approver": ("control:approver", "Show or set who reviews plans: you (`operator`) or the `lead`."),
        "check": ("tasks:check", "Run the check of the task that the agent NAME has in progress, else the team's."),
        "budget": ("control:budget", "Show or set the budget of the team or of an agent."),
        "limit": ("control:limit", "Show or set the turn limit and the memory limit of the agent NAME."),
        "settings": ("control:settings", "Show the settings of the team, or set SETTING to VALUE (`none` removes it)."),
        "rules": ("control:rules", "List the permission rules, which allow or deny calls, or ask you first."),
    },
    "Answer": {
        "approve": ("requests:approve", "Approve the plan or permission with this ID."),
        "reject": ("requests:reject", "Reject the plan or permission with this ID, and say why."),
        "answer": ("requests:answer", "Answer the question with this ID."),
        "ack": ("control:ack", "Acknowledge what needs you about the agent NAME."),
    },
    "Bring home": {
        "fetch": ("hosts:fetch", "Bring the work of the agent NAME from its host into your repository."),
        "merge": ("changes:merge", "Bring the work of the agent NAME into your branch, committed or not."),
        "undo": ("changes:undo", "Take the last merge back, the last one of the agent NAME, or what NAME changed."),
        "discard": ("changes:discard", "Throw away the worktree of the agent NAME, with all work that is not merged."),
        "worktree": ("changes:worktree", "List the worktrees of agents, or remove what is left of removed agents."),
    },
    "End": {
        **_operations("End"),
        "team": ("teams:team", "Create, join, list, adopt and delete teams."),
    },
    "Setup": {
        "demo": ("board:demo", "Show a team at work on a scratch copy of a small project."),
        "init": ("config:init", "Write a crewboard.toml with the settings of new teams, all explained."),
        "config": ("config:config", "List settings and your own themes, and where they come from, or show one."),
        "profiles": ("hiring:profiles", "List the hires that you saved, for `spawn --profile` and the hire form."),
        "types": ("hiring:types", "List the agent types and what each may do."),
        "skills": ("skills:skills", "List the skills of the project, and which of them you accepted."),
        "mcp": ("mcp:mcp", "List the MCP servers of the project, their tools and which you accepted."),
        "completion": ("program:completion", "Print the script by which a shell completes commands, names and IDs."),
        "engines": ("config:engines", "List the engines that agents can have in place of the model."),
        "keys": ("board:keys", "Print all key bindings as a keys.toml that you can edit."),
        "attach": ("attach:attach", "Mirror the Claude Code team TEAM into a team here, until Ctrl-C or its end."),
        "hook": ("attach:hook", "Answer one event of Claude Code."),
        "export": ("teams:export", "Write all that is stored of the team into the new folder DIR."),
        "import": ("teams:import_", "Replace all that is stored of a new team by what `export` wrote into DIR."),
        "hosts": ("hosts:hosts", "List the hosts of the team, and what each runs."),
        "doctor": ("doctor:doctor", "Check the setup and suggest fixes."),
        "info": ("doctor:info", "Print the main paths that crewboard uses here, and whether they exist."),
        "host": ("hosts:host", "Run agents of a team in PostgreSQL on this machine, until Ctrl-C."),
        "supervisor": ("control:supervisor", "Show the team's supervisor, or replace one that hangs."),
    },
}
"""The commands by the headings of the help, in its order: module and function, and the first sentence of the help."""


_FOR_DASHBOARD = f"{', '.join(common.BOARD_OPTIONS[:-1])} and {common.BOARD_OPTIONS[-1]} are for the dashboard"

READING = frozenset({
    None, "board", "serve", "status", "cost", "watch", "wait", "inbox", "requests", "plan", "tasks", "changes",
    "journal", "log", "audit", "away", "export", "team", "types", "skills", "mcp", "engines", "profiles", "keys",
    "completion", "config", "init", "doctor", "info", "demo", "supervisor", "attach", "hosts",
})  # fmt: skip
"""Commands that can be used on a foreign team. The dashboard is read-only there."""


QUICK = frozenset({"status", "inbox", "requests", "plan", "tasks", "send", "board", None})
"""Commands that end at once and do not collect garbage; the dashboard does so from its first picture on."""


@click.group(
    cls=LazyGroup,
    sections=SECTIONS,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option("--root", metavar="DIR", help="Workspace; default: $CREWBOARD_ROOT, else the nearest .crewboard/.")
@click.option(
    "--team", metavar="NAME", shell_complete=common.complete_team,
    help="Team; default: $CREWBOARD_TEAM, else the only one, else `default`.",
)  # fmt: skip
@click.option("--store", metavar="URL", help="Join a team in PostgreSQL first: postgresql://USER@HOST/DATABASE.")
@click.option("--offline", is_flag=True, help="Use the offline model: no key, no network.")
@common.board
@click.version_option(__version__, prog_name="crewboard", message="%(prog)s %(version)s")
@click.pass_context
def crewboard(
    context: click.Context,
    /,
    root: str | None,
    team: str | None,
    store: str | None,
    offline: bool,
    **look: bool | str | None,
) -> None:
    """Hire, watch, steer and stop a team of Claude agents, one process each.

    Without a command, open the dashboard. Try `crewboard demo` first; it needs no key.

    Example: crewboard demo

    Example: crewboard spawn fixer --type code --plan --prompt "fix issue 7"

    Example: crewboard status
    """
    if context.invoked_subcommand not in QUICK:
        gc.enable()
    reads = context.invoked_subcommand in READING
    context.obj = Session(root, team, store, offline=offline or env.is_offline(), reads=reads)
    if context.invoked_subcommand is None:
        board = crewboard.get_command(context, "board")
        if board is not None:
            context.invoke(board, **look)
    elif context.invoked_subcommand in {"board", "demo"}:
        given = {name: value for name, value in look.items() if value}
        if context.invoked_subcommand == "demo" and given.keys() & {"plain", "read_only"}:
            raise click.UsageError("the demo takes --ascii and --theme, not --plain or --read-only", context)
        context.default_map = {context.invoked_subcommand: given}
    elif any(look.values()):
        raise click.UsageError(f"{_FOR_DASHBOARD}, not for a command", context)


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script by which a shell completes commands, names and IDs.

    Names of agents and teams, and IDs of tasks, requests and rules, are those that exist when you press Tab.
    These lines also work at a prompt, for that shell alone.

    In ~/.bashrc: `eval "$(crewboard completion bash)"`

    In ~/.zshrc, below `compinit`: `eval "$(crewboard completion zsh)"`

    In ~/.config/fish/config.fish: `crewboard completion fish | source`

    Example: eval "$(crewboard completion bash)"
    """
    from click.shell_completion import shell_complete

    shell_complete(crewboard, {}, "crewboard", env.COMPLETE, f"{shell}_source")


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code. An error is printed as one sentence on stderr."""
    redaction.register_secrets(os.environ)
    if instruction := os.environ.get(env.COMPLETE):
        from click.shell_completion import shell_complete

        # Anything on stderr would appear in the user's command line.
        with contextlib.redirect_stderr(io.StringIO()):
            return shell_complete(crewboard, {}, "crewboard", env.COMPLETE, instruction)
    try:
        with crewboard.make_context("crewboard", list(arguments)) as context:
            crewboard.invoke(context)
            context.obj.prepare_new()
        sys.stdout.flush()
    # The last handler: no traceback reaches the user.
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001
        return code_of(error)
    return ExitCode.DONE


def code_of(error: BaseException) -> int:
    """Return the exit code for an exception that ended a command, and print what went wrong, if anything."""
    match error:
        case click.exceptions.Exit():
            return error.exit_code
        case KeyboardInterrupt() | click.Abort():
            return ExitCode.INTERRUPTED
        case BrokenPipeError():
            common.drop_unwritten(sys.stdout)
            return ExitCode.DONE
    from crewboard_tui.render.sanitize import safe_line

    if env.is_debugging():
        import traceback

        traceback.print_exception(error)
    match error:
        case CrewboardError():
            sentence, code = str(error), int(error.exit_code)
            if isinstance(error, StorageError) and error.away:
                sentence += "; what was stored before is kept; is the database up? `crewboard doctor` looks"
        case click.exceptions.NoArgsIsHelpError():
            note(error.format_message())
            return ExitCode.USAGE
        case click.UsageError():
            sentence, code = _usage(error), int(ExitCode.USAGE)
        case click.ClickException():
            sentence, code = error.format_message(), int(ExitCode.USAGE)
        case OSError():
            common.drop_unwritten(sys.stdout)
            why = error.strerror or str(error)
            where = f" {error.filename}" if error.filename else ""
            # click itself prints the help and the version. Without an import: there may be no file left to open.
            step = error.__traceback__
            while step is not None and step.tb_frame.f_code is not click.echo.__code__:
                step = step.tb_next
            is_of_click = step is not None
            sentence = str(common.OutputError(why)) if is_of_click else f"the system refused:{where} {why}"
            code = int(ExitCode.IO)
        case _:
            sentence = f"internal error: {type(error).__name__}: {error}; {env.DEBUG}=1 shows where"
            code = int(ExitCode.INTERNAL)
    note(f"crewboard: {safe_line(sentence)}")
    return code


def _usage(error: click.UsageError) -> str:
    if isinstance(error, click.NoSuchOption) and error.option_name in common.BOARD_OPTIONS:
        return f"{_FOR_DASHBOARD}: `crewboard {error.option_name}`"
    before = [option for param in crewboard.params for option in param.opts]
    if isinstance(error, click.NoSuchOption) and error.option_name in before:
        return f"{error.option_name} stands before the command, as in `crewboard {error.option_name} … COMMAND`"
    command = error.ctx.command_path if error.ctx else "crewboard"
    # Errors about options have classes of their own.
    is_argument = type(error) in (click.UsageError, click.MissingParameter)
    instead = _INSTEAD.get(command.removeprefix("crewboard "), "") if is_argument else ""
    said = error.format_message().rstrip(".")
    if isinstance(error, click.NoSuchOption):
        near = common.nearest(error.option_name, error.possibilities or ())
        said = error.message.rstrip(".") + (f". Did you mean {near!r}?" if near else "")
    return f"{said}{' ' if said.endswith('?') else '; '}{instead}`{command} --help` shows the usage"


_REQUESTS = "`crewboard requests` lists what waits; "
_INSTEAD = {
    "approve": _REQUESTS, "reject": _REQUESTS,
    "tasks": "it only shows: `crewboard task add` adds a task; ",
    "config": "it only shows: crewboard.toml holds what is set, and `crewboard settings` changes a team's; ",
    "team delete": "`crewboard team list` lists the teams; ",
}  # fmt: skip
"""Advice for a command that lacks an argument, or has one too many."""
