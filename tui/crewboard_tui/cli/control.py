"""The commands that control and stop agents, talk to the lead and change the team's settings."""

import contextlib
import fcntl
import inspect
import re
import select
import sys
import termios
from collections.abc import Callable, Sequence
from typing import Any

import click
from msgspec.structs import asdict

from crewboard import (
    CrewboardError,
    ExitCode,
    HireOptions,
    Team,
    TryLaterError,
    UsageError,
    pricing,
    read_team,
    type_files,
)
from crewboard.commands import control, hire, messages
from crewboard.commands import rules as commands_rules
from crewboard.commands import settings as commands_settings
from crewboard.commands.context import NONE, require_spec
from crewboard.names import SYSTEM, is_name
from crewboard.operations import OPERATIONS, Done
from crewboard.protocol import supervisor_client
from crewboard.readmodel.needs import to_acknowledge
from crewboard.readmodel.usage import bill_team
from crewboard.records.base import counted
from crewboard.records.team import RuleEffect, task_mark
from crewboard.store import journal, roster, tasks
from crewboard.unix import process as unix_process
from crewboard_tui.cli import common
from crewboard_tui.cli.common import Session, as_json, clock, note, say, say_json
from crewboard_tui.cli.status import used
from crewboard_tui.render.formats import format_percent
from crewboard_tui.render.sanitize import safe_line
from crewboard_tui.settings import as_typed


@click.command()
@click.argument("text", type=common.text, required=False)
@click.option(
    "--model", metavar="M", help="The model of the lead, and of those that it hires, unless it is Anthropic's."
)
@click.option("--unsafe-no-sandbox", is_flag=True, help="Run it without a sandbox where none works.")
@as_json
def lead(session: Session, text: str | None, model: str | None, unsafe_no_sandbox: bool) -> None:
    """Send TEXT to the lead, wait for its answer and print it.

    The lead is an agent that runs the team for you: it hires, assigns, reviews and ends agents. If there is none of
    type lead, one named `lead` is hired; one that has ended is resumed.

    Without TEXT, do so for each line that is typed or comes over a pipe. The lines `/team`, `/inbox` and `/tasks` show
    these; Ctrl-D ends it. The exit code is then that of the last line from a pipe that failed. With --json each line
    from a pipe prints its value on one line.

    Example: crewboard lead "have one agent list all Python files and another one run the tests"
    """
    from crewboard_tui.cli.hiring import follow, tell_of_server

    if text is None:
        given = {"--model": model, "--unsafe-no-sandbox": unsafe_no_sandbox}
        code = _converse(session, common.as_options(given))
        raise click.exceptions.Exit(code)
    team = session.team
    tell_of_server(team)
    flags = HireOptions(unsafe_no_sandbox=unsafe_no_sandbox)
    name = team.ensure().config.lead
    code = follow(session, name, lambda: hire.tell_lead(team, text, flags, model), once=False)
    raise click.exceptions.Exit(code)


_SHOWN = {"/team": ["status"], "/inbox": ["inbox", "operator"], "/tasks": ["tasks"]}
"""The lines that stand for another command in a conversation with the lead."""


def _converse(session: Session, to_lead: Sequence[str]) -> int:
    """Run a command for each line that is read; return the last exit code that was not 0, and 0 in a terminal.

    `to_lead` are the options with which a line goes to the lead.
    """
    from crewboard_tui.cli import program

    typed, code = sys.stdin.isatty() and sys.stdout.isatty(), 0
    given, how = session.given, common.as_options({"--json": session.as_json})
    if typed:
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  with it, input() brings earlier lines back
        note(f"say what the team should do; {', '.join(_SHOWN)} show it, Ctrl-D leaves")
    while not (typed and _is_left()) and (line := _read_line(typed=typed)) is not None:
        if words := line.strip():
            command = [*_SHOWN[words], *how] if words in _SHOWN else ["lead", *to_lead, *how, "--", words]
            with common.json_on_one_line(wanted=not typed):
                ended = program.run([*given, *command])
            if ended == ExitCode.INTERRUPTED and not typed:
                return ended
            code = ended or code
    return 0 if typed else code


def _read_line(*, typed: bool) -> str | None:
    """Return the next line; None after the last one. On a terminal, Ctrl-C drops the line and starts a new one."""
    while True:
        try:
            return input("lead> ") if typed else sys.stdin.readline() or None
        except EOFError:
            note("")
            return None
        except KeyboardInterrupt:
            if not typed:
                raise
            note("")


def _is_left() -> bool:
    """Return True if Ctrl-D was pressed during an answer: the terminal is then ready to read, but has no bytes."""
    is_waiting, _, _ = select.select([sys.stdin], [], [], 0)
    return bool(is_waiting) and not int.from_bytes(fcntl.ioctl(sys.stdin, termios.FIONREAD, bytes(4)), sys.byteorder)


def operation(name: str) -> click.Command:
    """Return the click command for the operation on agents with the command name `name`."""
    found = next(each for each in OPERATIONS.values() if each.section and each.command == name)

    def run(session: Session, names: tuple[str, ...], *, all_agents: bool = False, **given: Any) -> None:
        team = session.team
        if all_agents == bool(names):
            raise UsageError("name an agent, or use --all" + (", not both" if names else ""))
        if all_agents and not found.elsewhere:
            roster.require_own_agents(team.directory)
        waiting: list[str] = []
        only_paused = found.ident == "agent.unpause"
        if all_agents:
            agents = read_team(team.directory).agents if team.directory.exists() else ()
            # One that is paused may be paused again, but what is not paused has nothing to do with an unpause.
            names = tuple(agent.name for agent in agents if agent.alive and (found.fits(agent) or not only_paused))
            # First, because one that waits may begin when another one ends.
            waiting = [agent.name for agent in agents if not agent.alive and found.fits(agent)]
        # All of them, so that a name that is unknown spares the others.
        running = [team.agent(each).name for each in dict.fromkeys(names)]
        as_list = all_agents or len(running) > 1
        none = f"no agent is {'paused' if only_paused else 'running'}"
        _do(session, [waiting, running], lambda each: found.run(team, each, **given), as_list=as_list, none=none)

    command = as_json(run)
    if found.all_help:
        command = click.option("--all", "all_agents", is_flag=True, help=found.all_help)(command)
    own = list(inspect.signature(found.run).parameters.values())[2:]
    texts = [each for each in own if each.kind is not each.KEYWORD_ONLY]
    for each in reversed(own):
        if each in texts:
            command = click.argument(each.name, type=common.text, default=each.default)(command)
        else:
            command = click.option(f"--{each.name}", is_flag=True, help=found.options[each.name])(command)
    command = click.argument(
        "names", metavar="NAME" if texts else "[NAME]..." if found.all_help else "NAME...", nargs=1 if texts else -1,
        callback=lambda _context, _param, given: (given,) if texts else given,
        required=not found.all_help, shell_complete=common.complete_agent,
    )(command)  # fmt: skip
    return click.command(name, help=inspect.getdoc(found.run))(command)


def _do(session: Session, groups: list[list[str]], run: Callable[[str], Done], *, as_list: bool, none: str) -> None:
    """Do an operation on the agents of each group at the same time, and print the outcome, or `none` without any.

    With `as_list`, JSON is a list also for one agent.

    Raises:
        CrewboardError: The operation failed for an agent. It was done for the others, and further errors are printed.
    """
    names = [name for group in groups for name in group]
    done: dict[str, Done] = {}
    refused: dict[str, CrewboardError] = {}

    def attempt(name: str) -> None:
        try:
            done[name] = run(name)
        except CrewboardError as error:
            refused[name] = error

    try:
        for group in groups:
            hire.at_once(group, attempt)
    finally:
        found = [done[name] for name in names if name in done]
        if found or as_list:
            data = [each.data for each in found]
            says = [each.says for each in found] if names else [none]
            session.tell(data if as_list else data[0], *says)
    errors = [refused[name] for name in names if name in refused]
    note(*(f"crewboard: {error}" for error in errors[1:]))
    if errors:
        raise errors[0]


@click.command()
@click.argument("who", required=False, type=click.Choice(["operator", "lead"]))
@as_json
def approver(session: Session, who: str | None) -> None:
    """Show or set who reviews plans: you (`operator`) or the `lead`. You may always answer."""
    if who is not None:
        commands_settings.set_approver(session.team.ensure(), who)
    config, directory = session.team.config, session.team.directory
    if session.as_json:
        say_json({"approver": config.plan_approver})
        return
    reviews = roster.lead_reviews(config, directory)
    say("the lead reviews plans; you still may" if reviews else "you review plans")
    if reviews and config.member(config.lead) is None:
        note("there is no lead yet; until then plans come to you")
    elif config.plan_approver == "lead" and not reviews:
        note(f"{config.lead} is set to, but it has an engine, and those review none")


class _NumbersLast(click.Command):
    """A command whose last argument may be a negative number, which click would take for an option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        numbers = [word for word in args if re.match(r"-\$?\d", word)]
        if numbers and "--" not in args:
            args = [*(word for word in args if word not in numbers), "--", *numbers]
        return super().parse_args(ctx, args)


@click.command(cls=_NumbersLast)
@click.argument("words", nargs=-1, metavar="[NAME] [AMOUNT]", shell_complete=common.complete_agent)
@click.option("--none", "lift", is_flag=True, help="Remove the limit.")
@as_json
def budget(session: Session, words: tuple[str, ...], lift: bool) -> None:
    """Show or set the budget of the team or of an agent.

    AMOUNT is money ('$20'), tokens (2m) or `none`. Without NAME the budget is the team's. At the limit workers end
    (79). A raised limit continues the assignments that it stopped.

    Example: crewboard budget fixer 400k
    """
    team = session.team
    name: str | None = None
    amount: str | None = None
    match words:
        case ():
            pass
        case (word,) if pricing.budget_or_none(word) is None and team.directory.exists() and team.config.member(word):
            name = word
        # No budget begins with a letter.
        case (word,) if is_name(word) and word != NONE:
            raise UsageError(f"{word!r} is no agent of this team and no budget: give money as $5 or tokens as 200k")
        case (word,):
            amount = word
        case (name, amount):
            pass
        case _:
            raise UsageError("give an agent's name, an amount, or both")
    if lift and amount not in (None, NONE):
        raise UsageError("give an amount or --none, not both")
    amount = NONE if lift else amount
    common.note_budget(amount)
    if name is None:
        _team_budget(session, amount)
    else:
        _agent_budget(session, name, amount)


def _agent_budget(session: Session, name: str, amount: str | None) -> None:
    team = session.team
    team.member(name)
    run = control.raise_limits(team, name, budget=amount) if amount is not None else None
    seen = read_team(team.directory).agent(name)
    limit = seen.spec.flags.budget if seen is not None and seen.spec is not None else None
    if session.as_json:
        used = {"tokens": seen.status.tokens.total, "cost_usd": seen.status.cost_usd} if seen is not None else None
        say_json({"name": name, "budget": limit, "used": used, "run": run})
        return
    say(f"{name} may use {pricing.parse_budget(limit)}" if limit else f"{name} has no budget of its own")
    shares = roster.budgets(team.directory, name)
    _note_used_up(name, next((each.share for each in shares if each.whose == "its"), None))
    of_plans = (share for share in shares if share.by_terms)
    say(*(f"its approved plan may use {each.budget}; {format_percent(each.share)} used" for each in of_plans))
    if run is not None:
        say(f"{name} continues: run {run}")


def _note_used_up(who: str, share: float | None) -> None:
    """Report on stderr if a budget is used up, and what follows. `share` is the used part, None without a budget."""
    if share is not None and share >= 1:
        note(f"{who} has used {format_percent(share)} of that already, and makes no model call until it is raised")


# So that a value with a minus sign is told what the setting takes, and not that there is no such option.
@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("name", required=False, metavar="[SETTING]", shell_complete=common.complete_setting)
@click.argument("value", required=False)
@as_json
def settings(session: Session, name: str | None, value: str | None) -> None:
    """Show the settings of the team, or set SETTING to VALUE (`none` removes it).

    max_agents: agents that run at the same time. max_working: those of them that work; idle and waiting ones do not
    count. min_free_memory: memory of the machine that must be free (2G). Over a cap an agent that is started is queued.

    on_outage: `wait` or `fail`, what agents do while the API is unavailable. outage_hours: how long they wait at most.
    result_needs: `on` or `off`, whether a result that you have not read needs you.

    approval_hours: after which the gate closes again, and the agent must submit its plan anew; default: never.

    worktree: `always` or `never`, whether agents that write files get checkouts of their own, on branches of their own.
    lead_merges: `on` or `off`, whether a lead may merge the work of such agents into a branch that is not checked out.
    worktree_copy: files and folders that are not in the repository and are copied into them ('.env .venv').
    worktree_setup: a command that then runs in them, in the agent's sandbox ('make deps').

    collisions: what happens before file tools of two agents change the same file. `warn`: nothing, only the need tells.
    `hold`: you are asked first. `claims`: files that an approved plan names are refused to others until its result.

    check: command that must pass before an agent's task is completed, if the task has no check of its own.

    model: the model of new agents, with exceptions for types ('qwen3-coder explore=qwen3:8b'). --model and the
    variables CREWBOARD_MODEL and ANTHROPIC_MODEL go before it.
    server: address of a server on this machine or its network that new agents use without a key
    ('http://127.0.0.1:11434'); a shell with ANTHROPIC_BASE_URL goes before it.
    engine: the program that does the work of agents that you hire, as with --engine, where their type takes one and no
    --model is given.

    What a new team begins with is in crewboard.toml: `crewboard init`, `crewboard config`.

    Example: crewboard settings max_agents 8

    Example: crewboard settings check "make test"
    """
    team = session.team
    if name is not None and value is None and name not in commands_settings.SETTINGS:
        raise UsageError(f"there is no setting {name!r}; settings: {', '.join(commands_settings.SETTINGS)}")
    if name is not None and value is not None:
        if name == "model":
            # The exception for a misspelt type would have no effect, and nothing would say so.
            for word in str(commands_settings.read_value(name, value)).split():
                if "=" in word:
                    type_files.find(session.root, word.partition("=")[0])
        commands_settings.change_setting(team.ensure(), name, value)
    config = team.config
    shown = {each: getattr(config, each) for each in commands_settings.SETTINGS if name in (None, each)}
    session.tell(shown, *(f"{each} {as_typed(each, cap)}" for each, cap in shown.items()))


@click.command()
@common.agent_name
@click.option("--turns", type=click.IntRange(min=1), metavar="N", help="Limit of model calls per assignment.")
@click.option(
    "--memory", type=lambda value: 0 if value == NONE else roster.parse_memory_limit(value), metavar="M",
    help="Limit in memory (2G); `none` removes it.",
)  # fmt: skip
@as_json
def limit(session: Session, name: str, turns: int | None, memory: int | None) -> None:
    """Show or set the turn limit and the memory limit of the agent NAME.

    The turn limit counts model calls for one assignment; when raised, it continues the assignment that it stopped. An
    agent that uses more memory than its limit, with all that it started, is killed: by the kernel if it began with a
    limit and a cgroup is delegated to you, else by the supervisor, which looks once a second. See `crewboard doctor`.

    Example: crewboard limit fixer --turns 200
    """
    team = session.team
    agent = team.agent(name)
    if memory is not None:
        control.limit_memory(team, name, memory or None)
    run = control.raise_limits(team, name, max_turns=turns) if turns is not None else None
    spec = require_spec(name, agent.spec.load())
    if session.as_json:
        say_json({"name": name, "max_turns": spec.flags.max_turns, "max_memory": spec.flags.max_memory, "run": run})
        return
    say(f"{name} may call the model {counted(spec.flags.max_turns, 'time')} for one assignment")
    if spec.flags.max_memory is not None:
        size = roster.format_size(spec.flags.max_memory)
        # While it does not run, as the limit of its next run is kept.
        seen, process = read_team(team.directory).agent(name), unix_process
        pid = seen.pid if seen is not None and seen.alive else None
        kept = process.has_memory_cgroup(pid) if pid is not None else process.find_memory_cgroup() is not None
        say(f"{name} may use {size} of memory ({'cgroup' if kept else 'watched'})")
    if run is not None:
        say(f"{name} continues: run {run}")


def _team_budget(session: Session, amount: str | None) -> None:
    team = session.team
    if amount is not None:
        says = "the team has no budget now" if amount == NONE else f"the team may use {pricing.parse_budget(amount)}"
        resumed = control.raise_team_budget(team.ensure(), None if amount == NONE else amount)
        if not session.as_json:
            say(says)
            if resumed:
                say(f"{', '.join(resumed)} continue" + ("s" if len(resumed) == 1 else ""))
            _note_used_up("the team", bill_team(read_team(team.directory)).share)
            return
    view = read_team(team.directory)
    bill = bill_team(view)
    limit = f"the team may use {pricing.parse_budget(view.budget)}" if view.budget else "the team has no budget"
    data = {"budget": view.budget, "used": {"tokens": bill.tokens.total, "cost_usd": bill.usd}}
    session.tell(data, f"{limit}; {used(view)}")


@common.listing()
def rules(session: Session) -> None:
    """List the permission rules, which allow or deny calls, or ask you first.

    deny wins over ask, ask wins over allow. `allow` only matters for agents hired with --ask. Each line shows how many
    calls the rule decided.
    """
    directory = session.team.directory
    found = roster.load(directory).rules if directory.exists() else []
    usage = journal.RuleUsageReader(directory).read() if found else {}
    used = [(rule, usage.get(rule.id, journal.RuleUsage())) for rule in found]
    lines = []
    for rule, each in used:
        last = f", last {clock(each.last_hit)}" if each.last_hit is not None else ""
        hits = f"{counted(each.hits, 'hit')}{last}"
        added = f" · by {rule.by} {clock(rule.at)}" if rule.by else ""
        lines.append(safe_line(f"{rule.id} · {commands_rules.describe_rule(rule)} · {hits}{added}"))
    session.tell([{**rule.as_dict(), **asdict(each)} for rule, each in used], *lines, empty="no permission rules")


@rules.command()
@click.argument("effect", type=click.Choice(["allow", "ask", "deny"]))
@click.argument("tool")
@click.argument("pattern")
@click.option("--agent", metavar="NAME", shell_complete=common.complete_agent, help="Only for this agent.")
@click.option(
    "--type", "agent_type", metavar="T", shell_complete=common.complete_agent_type, help="For agents of this type."
)
@click.option("--all", "all_agents", is_flag=True, help="For all agents, also those hired later.")
@as_json
def add(
    session: Session,
    effect: RuleEffect,
    tool: str,
    pattern: str,
    agent: str | None,
    agent_type: str | None,
    all_agents: bool,
) -> None:
    """Add a rule about calls of TOOL that match PATTERN.

    For bash a pattern is one command, `*` and `?` stand for characters of a word, and a pattern that ends in `*` allows
    more words. For files it is a path from the workspace's root; `**` stands for any folders. TOOL is bash, write_file,
    edit_file, `files` for both of these, or a pattern of tools of MCP servers such as `mcp__git__*`; for these PATTERN
    is `*`, every call, or an argument with a pattern of its text, such as `url=https://docs.*`.

    deny and ask also look into compound commands; what cannot be read for certain is asked. A rule is no sandbox: the
    same effect can be had with another command.

    Example: crewboard rules add deny bash 'git push*' --all
    """
    if [agent is not None, agent_type is not None, all_agents].count(True) != 1:
        raise UsageError("say for which agents it is: --agent NAME, --type T or --all")
    if agent_type is not None:
        type_files.find(session.root, agent_type)
    rule = commands_rules.add_rule(session.team.ensure(), effect, tool, pattern, agent=agent, agent_type=agent_type)
    session.tell(rule.as_dict(), safe_line(f"{rule.id}: {commands_rules.describe_rule(rule)}"))


@rules.command()
@click.argument("ident", metavar="ID", shell_complete=common.complete_rule)
@click.pass_obj
def revoke(session: Session, ident: str) -> None:
    """Remove the rule with this ID."""
    commands_rules.revoke(session.team, ident)
    say(f"{ident} is revoked")


_AS_REVOKE = "Remove the rule with this ID, as `revoke` does."
rules.add_command(click.Command("remove", params=revoke.params, callback=revoke.callback, help=_AS_REVOKE))


@click.command()
@click.argument("what", metavar="NAME", shell_complete=common.complete_agent)
@as_json
def ack(session: Session, what: str) -> None:
    """Acknowledge what needs you about the agent NAME.

    That is how it or its last assignment ended, a damaged file, or else its results, which then count as read. NAME may
    also be the number of a task that failed or whose check fails, or `system` for an outage of the API and for what
    concerns no agent. It then no longer needs you. Exits 75 if the agent is running and there is nothing to
    acknowledge.
    """
    session.tell({"name": what, "acknowledged": True}, f"acknowledged {_acknowledge(session.team, what)}")


def _acknowledge(team: Team, what: str) -> str:
    """Acknowledge a task, an agent, or the needs of no agent; return in words what was acknowledged.

    Raises:
        TryLaterError: There is nothing to acknowledge.
    """
    if what.isdecimal():
        task = tasks.load(team.directory, int(what))
        about = [need for need in read_team(team.directory).needs if need.task == task.id]
        if check := next((need for need in about if need.kind == "check_failed"), None):
            messages.acknowledge_marks(team, dict(check.marks), f"#{task.id}")
            return f"that the check of task {what} fails"
        if task.status != "failed":
            raise TryLaterError(f"task {what} is {task.status.replace('_', ' ')}: there is nothing to acknowledge")
        messages.acknowledge_marks(team, {task_mark(task.id): task.rev}, f"#{task.id}")
        return f"that task {what} failed"
    view = read_team(team.directory) if team.directory.exists() else None
    needs = to_acknowledge(view, what) if view is not None else ()
    messages.acknowledge_marks(team, dict(mark for need in needs for mark in need.marks), what)
    kinds = {need.kind for need in needs if need.marks}
    agent = view.agent(what) if view is not None else None
    has_ended = agent is not None and (agent.has_failed or (agent.is_dead and not agent.acknowledged))
    if what == SYSTEM or (kinds and not has_ended):
        if not kinds:
            raise TryLaterError("there is nothing to acknowledge that concerns no agent")
        return f"the results of {what}" if kinds == {"result"} else f"what needed you about {what}"
    lost = next((need.agents for need in needs if need.kind == "death" and need.host is not None), ())
    for name in lost or (what,):
        messages.acknowledge(team, name)
    return f"how {', '.join(lost) or what} ended"


@click.command()
@click.option("--restart", is_flag=True, help="Kill it and start another one; workers keep working.")
@as_json
def supervisor(session: Session, restart: bool) -> None:
    """Show the team's supervisor, or replace one that hangs.

    It starts and ends workers. Exits 75 if it hangs: it holds its lock, and has done nothing for 15 s. Only a process
    that is certainly the team's supervisor is killed.
    """
    directory = session.team.directory
    if restart:
        directory.require_adopted()
        supervisor_client.restart(directory)
    found = read_team(directory).supervisor
    hint = f" since {clock(found.silent_since)}; --restart replaces it" if found.silent_since is not None else ""
    session.tell(asdict(found), found.describe() + hint)
    if (why := supervisor_client.unreachable_reason(directory)) is not None:
        note(why)
    if found.silent_since is not None:
        raise click.exceptions.Exit(int(ExitCode.TRY_LATER))
