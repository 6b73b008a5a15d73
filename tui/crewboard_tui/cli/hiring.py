"""The commands `spawn`, `resume`, `profiles` and `types`. A `spawn` in the foreground waits for the agent's answer."""

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from crewboard import (
    Assignment,
    BadDataError,
    CrewboardError,
    ExitCode,
    Hire,
    HireOptions,
    Team,
    TryLaterError,
    UsageError,
    agent_types,
    endpoint,
    env,
    mcp_servers,
    models,
    pricing,
    skill_files,
    type_files,
)
from crewboard import web as crewboard_web
from crewboard.commands import accept as commands_accept
from crewboard.commands import context as commands_context
from crewboard.commands import hire as commands_hire
from crewboard.commands import hosts, messages
from crewboard.commands import profiles as commands_profiles
from crewboard.commands.context import POLL_INTERVAL, CommandLine, command_for, create_command, wait_until
from crewboard.names import check_agent
from crewboard.protocol import requests, reviews, supervisor_client
from crewboard.readmodel.activity import describe
from crewboard.readmodel.needs import summarise
from crewboard.records.agents import HELD_REPEATS, Profile, Spec, Status
from crewboard.records.events import Answer, Event, Reply, Sent
from crewboard.records.processes import Exit, describe_exit
from crewboard.store import agents, leases, roster
from crewboard.store.journal import Follower
from crewboard.store.layout import AgentDirectory
from crewboard.unix import process
from crewboard.untrusted import on_one_line
from crewboard_tui.cli import common
from crewboard_tui.cli.answers import answers, in_a_row
from crewboard_tui.cli.common import Session, as_json, clock, columns, cut, note, say, say_json
from crewboard_tui.cli.skills import tell_new_skills
from crewboard_tui.render.sanitize import is_revealing, safe_line

_FLAGS = frozenset(HireOptions.__struct_fields__) - {"task"}
"""Options that are fixed when an agent is hired: an idle agent that gets more work keeps them."""


_hire_options = common.options(
    click.option(
        "--type", "agent_type", default="", metavar="T", shell_complete=common.complete_agent_type,
        help="Agent type; `crewboard types` lists them. Required, unless a profile names it or the agent is there.",
    ),
    click.option("--prompt", type=common.text, metavar="P", help="What to do."),
    click.option("--prompt-file", metavar="F", help="Read the prompt from a file; `-` is standard input."),
    click.option("--effort", type=click.Choice(models.EFFORTS),
                 help="How hard its model works; else the type's."),
    click.option("--thinking", type=click.Choice(models.THINKING),
                 help="Whether its model thinks; else the type's."),
    click.option("--window", type=models.parse_window, metavar="T",
                 help="Tokens that its model takes in all (16k), where the server does not say."),
    click.option("--max-reply", type=models.parse_tokens, metavar="T", help="Tokens that one reply may have (2k)."),
    click.option("--role", type=common.text, default="", metavar="R", help="Its role, in a few words."),
    click.option("--model", metavar="M", help="Default: $CREWBOARD_MODEL, $ANTHROPIC_MODEL, the team's, the type's."),
    click.option("--once", is_flag=True, help="Exit after the result instead of idling."),
    click.option("--plan", is_flag=True, help="Require an approved plan before it writes or runs anything."),
    click.option("--strict-plan", is_flag=True,
                 help="As --plan, and refuse every file and command that the plan does not name."),
    click.option("--ask", is_flag=True, help="Require your approval of each command and each write."),
    click.option("--autoclaim", is_flag=True, help="When idle, claim the next task that fits."),
    click.option("--engine", metavar="E", shell_complete=common.complete_engine,
                 help="Let this program do its work: claude, codex, acp:COMMAND, or claude-gated, which is Claude Code "
                      "with crewboard's tools, so that each call is decided (`crewboard engines`); "
                      "`none`: its model."),
    click.option("--budget", metavar="B", help="Limit in money ('$5') or tokens (200k); at the limit it ends (79)."),
    click.option("--network", is_flag=True, help="Allow its commands the network."),
    click.option("--web/--no-web", help="Let its model search and read the web, at the API: a way out for data."),
    click.option("--allowed-domains", metavar="D,…", help="With --web, which it implies: on these domains only."),
    click.option("--max-turns", type=click.IntRange(min=1), default=100, show_default=True, metavar="N",
                 help="Limit of model calls per assignment."),
    click.option("--restart", is_flag=True,
                 help="Restart it after a crash, with its conversation, 3 times in 10 minutes."),
    click.option("--max-memory", type=roster.parse_memory_limit, metavar="M",
                 help="Limit in memory (2G); above it, it is killed."),
    click.option("--worktree/--no-worktree",
                 help="Give it a checkout of its own, on the branch crew/NAME (crew/@TEAM/NAME in a team not called "
                      "default)."),
    click.option("--host", metavar="H", help="Run it on this host of the team."),
    click.option("--needs", multiple=True, metavar="LABEL", help="Run it on a host with this label; repeatable."),
    click.option("--from", "start_from", metavar="NAME", shell_complete=common.complete_agent,
                 help="On hosts: begin each assignment with the newest files of this agent."),
)  # fmt: skip
"""Decorator that adds the options of `spawn` that a profile can also hold to a command."""


@click.command()
@common.agent_name
@_hire_options
@click.option(
    "--profile",
    metavar="P",
    shell_complete=common.complete_profile,
    help="Take what you do not say from this profile; `crewboard profiles` lists them.",
)
@click.option("--background", is_flag=True, help="Return as soon as the worker is up.")
@click.option(
    "--timeout",
    type=common.seconds,
    metavar="S",
    help="Wait S seconds at most for the result (exit 75); the agent keeps working, or stays queued.",
)
@click.option(
    "--task",
    type=common.task_id,
    metavar="ID",
    shell_complete=common.complete_task,
    help="Assign this task to the agent; it needs no prompt then.",
)
@click.option("--base", metavar="REF", help="Begin that checkout at this commit, branch or tag, and not at HEAD.")
@click.option("--no-wait", is_flag=True, help="Refuse (75) where a cap of the team would make it wait.")
@click.option("--unsafe-no-sandbox", is_flag=True, help="Run without a sandbox where none works.")
@click.option(
    "--allow-hardlinks", is_flag=True, help="Let file tools read files that also have names outside the workspace."
)
@as_json
def spawn(
    session: Session,
    /,
    name: str,
    profile: str | None,
    background: bool,
    timeout: float | None,
    no_wait: bool,
    **options: Any,
) -> None:
    """Hire the agent NAME, or give more work to an idle one.

    Wait for its result and print it; progress goes to stderr. Ctrl-C detaches, and the agent keeps working.
    The exit code is the worker's. Over a cap of the team (`crewboard settings`), and where no host takes it, the
    agent is queued.

    Example: crewboard spawn scout --type explore --prompt "what does this project do?"

    Example: crewboard spawn fixer --type code --plan --background --prompt-file task.md

    Example: crewboard spawn fixer2 --profile fixer --task 4
    """
    if background and timeout is not None:
        raise UsageError("give either --background or --timeout: in the background there is nothing to wait for")
    saved = commands_profiles.find(_profiles_folder(), profile) if profile is not None else None
    # First, because no option that is missing would help there.
    team = session.team
    roster.require_own_agents(team.directory)
    member = team.config.member(name) if team.directory.exists() else None
    if saved is None and member is not None:
        options["agent_type"] = options["agent_type"] or member.type
    hire = _hire(name, saved, wait=not no_wait, **options)
    if not hire.prompt and (options["prompt"], options["prompt_file"]) == (None, None):
        if hire.flags.task is None:
            raise UsageError("give the task with either --prompt or --prompt-file, or with --task")
        # The worker tells the agent what that task is.
        hire = replace(hire, prompt=f"Work on task {hire.flags.task}.")
    if not team.directory.exists():
        common.warn_of_network(team.directory)
    if not (session.root_option or env.root()) and team.directory.root != Path.cwd().resolve():
        note(f"root {team.directory.root}, the nearest folder above that has a team; `--root .` makes one here")
    if hire.engine is None:
        tell_of_server(team)
    if background:
        assignment = commands_hire.spawn(team, hire)
        tell_new_servers(team, hire.name)
        tell_new_skills(team)
        tell_of_model(team, hire.name)
        agent = team.directory.agent(hire.name)
        if assignment.note:
            note(assignment.note)
        code = _early_end(team, agent, assignment)
        where = _where(agent)
        if session.as_json:
            say_json({**where, "run": assignment.run, "assignment": assignment.id, "fresh": assignment.fresh})
        elif waits := hosts.queued(team, hire.name, assignment.run):
            say(f"{hire.name} is {waits}")
        elif not code:
            say(f"{hire.name} is running: run {assignment.run}, pid {where['pid']}")
        if code:
            raise click.exceptions.Exit(code)
    else:
        # Before any file path is built from the name.
        check_agent(hire.name, hire.type)
        start = partial(commands_hire.spawn, team, hire)
        code = follow(session, hire.name, start, once=hire.flags.once, timeout=timeout)
        raise click.exceptions.Exit(code)


def tell_of_server(team: Team) -> None:
    """Print which key of this shell is not used, because the team has its own model or server, or another key is sent.

    With `--offline`, nothing is printed about the offline model.
    """
    said = env.is_offline(team.environment)
    if team.offline and not said and commands_context.has_key(team.environment):
        another = create_command(team.directory.root)
        note(f"this team stays on the offline model and does not use your API key; `{another}` makes one that does")
    elif not team.offline and (shadowed := endpoint.shadowed_key(team.worker_environment)) is not None:
        note(shadowed)
    elif (
        not team.offline
        and endpoint.keys(team.environment)
        and endpoint.base_url(team.worker_environment) != endpoint.base_url(team.environment)
    ):
        other = command_for(team, "settings server none")
        note(f"this team uses {team.config.server} and not your API key; `{other}` changes that")


def tell_new_servers(team: Team, name: str) -> None:
    """Print which MCP servers of the project an agent may use, but does not have until the user accepts them."""
    root = team.directory.root
    spec = team.directory.agent(name).spec.load()
    if spec is None or not os.path.lexists(root / ".mcp.json"):
        return
    kind = agent_types.type_of(spec.type, spec.definition)
    if not kind.mcp:
        return
    may_use = partial(agent_types.may_use_server, kind.mcp)
    try:
        found = mcp_servers.read(root).servers.values()
    except BadDataError as error:
        note(str(error))
        return
    accepted = partial(mcp_servers.is_accepted, root=root, environment=team.environment)
    if new := [each.name for each in found if may_use(each.name) and not accepted(each)]:
        show = command_for(team, "mcp")
        note(f".mcp.json names MCP servers that you have not accepted: {', '.join(new)}; `{show}` shows them")


def tell_of_model(team: Team, name: str) -> None:
    """Print what the user should know about the server of a new agent, if it is not Anthropic's.

    That is, if the server does not list the agent's model; and for a team's first agent, how to let one agent work at a
    time.
    """
    spec, environment = team.directory.agent(name).spec.load(), team.worker_environment
    url = endpoint.base_url(environment)
    if spec is None or spec.engine is not None or team.offline or endpoint.is_anthropic(url):
        return
    is_first = spec.run == 1 and team.config.names == [name]
    if is_first and (advice := commands_hire.advice_on_caps(team)) is not None:
        note(advice)
    try:
        with commands_hire.telling(team, f"asking {endpoint.host_and_port(url)} for its models …"):
            known = models.without(spec.model, environment)
    except endpoint.RedirectedError as found:
        note(safe_line(f"{found}: {commands_context.how_to_follow(team, found)}"))
        return
    if known:
        more = f" and {len(known) - _NAMED} more" if len(known) > _NAMED else ""
        where = endpoint.host_and_port(url)
        note(
            safe_line(
                f"{where} does not list the model {spec.model} of {name}: it lists {', '.join(known[:_NAMED])}{more}"
            )
        )


def _hire(
    name: str,
    profile: Profile | None,
    *,
    wait: bool = True,
    agent_type: str,
    prompt: str | None,
    prompt_file: str | None,
    role: str,
    model: str | None,
    engine: str | None,
    **flags: Any,
) -> Hire:
    """Return the hire that the options of a command describe; each of `flags` is a field of `HireOptions`.

    Raises:
        UsageError: Options contradict each other, or no type is named.
    """
    source = click.get_current_context().get_parameter_source
    given = frozenset(flag for flag in _FLAGS if source(flag) is ParameterSource.COMMANDLINE)
    domains = crewboard_web.parse_domains(flags["allowed_domains"] or "")
    if flags["allowed_domains"] is not None and not domains:
        raise UsageError("--allowed-domains names no domain: name one, or leave the option out for the whole web")
    if domains and "web" in given and not flags["web"]:
        raise UsageError("give either --no-web or --allowed-domains")
    given |= {"web"} if domains else set()
    implied = {"worktree": flags["worktree"] or flags.get("base") is not None, "web": flags["web"] or bool(domains)}
    if (budget := pricing.budget_or_none(flags["budget"])) is not None:
        note(pricing.doubt(flags["budget"]) or f"budget: {budget}")
    options = HireOptions(**{**flags, **implied, "allowed_domains": domains, "needs": [*flags["needs"]]})
    if prompt is not None and prompt_file is not None:
        raise UsageError("give the task with either --prompt or --prompt-file")
    said = common.read_text(prompt_file) if prompt_file is not None else prompt
    hire = Hire(name, agent_type, said or "", role, model, options, given, wait=wait, engine=engine)
    if profile is not None:
        hire = commands_profiles.fill(hire, profile)
    if not hire.type:
        raise UsageError("name the type with --type")
    return hire


def _profiles_folder() -> Path:
    return commands_profiles.folder(os.environ)


@common.listing()
def profiles(session: Session) -> None:
    """List the hires that you saved, for `spawn --profile` and the hire form.

    They are yours, for all teams: files in ~/.config/crewboard/profiles.
    """
    saved = commands_profiles.load(_profiles_folder())
    for file in saved.damaged:
        note(f"skipped {_profiles_folder() / file}: it cannot be read; correct it, save it again or remove it")
    lines = []
    for name, each in saved.profiles.items():
        lines.append(f"{name}: {commands_profiles.describe(each)}")
        if each.prompt.strip():
            lines.append(f"    {cut(each.prompt.strip(), columns() - 4)}")
    data = [{"name": name, **each.as_dict()} for name, each in saved.profiles.items()]
    session.tell(data, *lines, empty="no profile is saved yet; `crewboard profiles save NAME --type T` saves one")


@profiles.command()
@click.argument("name")
@click.option(
    "--like", metavar="AGENT", shell_complete=common.complete_agent, help="Begin with the terms of this agent."
)
@_hire_options
@click.pass_obj
def save(session: Session, /, name: str, like: str | None, **options: Any) -> None:
    """Save a hire as the profile NAME; replace one of that name.

    Give the options of `spawn`, or name an agent that was hired with them. A profile may have no prompt.

    Example: crewboard profiles save fixer --type code --plan --budget '$5'
    """
    base = Profile(type="")
    if like is not None:
        spec = session.team.agent(like).spec.load()
        if spec is None:
            raise UsageError(f"{like} has no spec file; name another agent")
        base = commands_profiles.of_agent(spec)
    hire = _hire(name, base, **options)
    profile = commands_profiles.of_hire(hire)
    type_files.find(session.root, profile.type)
    was_there = os.path.lexists(_profiles_folder() / f"{name}.json")
    path = commands_profiles.save(_profiles_folder(), name, profile)
    say(f"{'replaced' if was_there else 'saved'} {name} ({commands_profiles.describe(profile)}) in {path}")


@profiles.command("remove")
@click.argument("name", shell_complete=common.complete_profile)
def remove_profile(name: str) -> None:
    """Remove the profile NAME."""
    say(f"removed {commands_profiles.remove(_profiles_folder(), name)}")


def _early_end(team: Team, agent: AgentDirectory, assignment: Assignment) -> int:
    """Return the exit code of a run that failed before it was up, and print why; 0 if it is up or ended well."""
    ended = agent.exit.load_or_none()
    if ended is None or ended.run < assignment.run or (ended.code == 0 and not ended.signal):
        return 0
    log = command_for(team, f"log {agent.name}")
    status = agent.status.load_or_none()
    why = f": {status.last_error}" if status is not None and status.last_error else f"; `{log}` may show why"
    note(f"{agent.name} did not start: {describe_exit(ended)}{why}")
    return ended.code or 1


@click.command()
@click.argument("names", metavar="NAME...", nargs=-1, shell_complete=common.complete_agent)
@click.option("--all", "all_agents", is_flag=True, help="All agents that are not running.")
@click.option("--model", metavar="M", help="Use another model from now on.")
@click.option("--network", is_flag=True, help="Allow its commands the network from now on.")
@click.option("--web", is_flag=True, help="Let its model search and read the web from now on.")
@click.option("--host", metavar="H", help="Run it on this host of the team from now on.")
@click.option("--budget", metavar="B", help="Change its limit in money ('$5') or tokens (200k).")
@click.option("--max-turns", type=click.IntRange(min=1), metavar="N", help="Change its limit of model calls.")
@click.option("--window", type=models.parse_window, metavar="T", help="Tokens that its model takes in all (16k).")
@click.option("--max-reply", type=models.parse_tokens, metavar="T", help="Tokens that one reply may have (2k).")
@as_json
def resume(
    session: Session,
    names: tuple[str, ...],
    all_agents: bool,
    model: str | None,
    network: bool,
    web: bool,
    host: str | None,
    **limits: Any,
) -> None:
    """Start the stopped or dead agents NAME... again.

    They keep their conversations and continue their assignments, also after a limit. One that was hired with --once,
    and ended with an error, tries again. If its model refused the assignment of NAME, --model lets NAME try again with
    another one. One that was asked to stop starts again once it has ended. Returns when they are up or queued.

    Example: crewboard resume --all
    """
    team = session.team
    if all_agents == bool(names):
        raise UsageError("name the agents to resume, or use --all" + (", not both" if names else ""))
    if len(names) != 1 and any(each is not None for each in limits.values()):
        raise UsageError("--budget, --max-turns, --window and --max-reply are for one agent: name it")
    tell_of_server(team)
    given = {"--model": model, "--network": network, "--web": web, "--host": host}
    options = ", ".join(option for option, value in given.items() if value)
    if len(names) == 1:
        # Imported here because it loads the sandbox and git, which `spawn` must not wait for.
        from crewboard.commands import control

        [name] = names
        control.change_limits(team, name, **limits)
        common.note_budget(limits["budget"])
        agent = team.agent(name)
        before = agents.last_run(agent)
        if model is not None and messages.is_refused(team, name):
            run = control.retry_with(team, name, model=model, network=network, web=web, host=host)
        else:
            run = commands_hire.resume(team, name, model=model, network=network, web=web, host=host)
        code = _early_end(team, agent, Assignment(name, "", run, fresh=False)) if run > before else 0
        if code:
            raise click.exceptions.Exit(code)
        how = hosts.queued(team, name, run)
        if session.as_json:
            say_json(_where(agent))
        elif how:
            _say_queued(team, name, how)
        else:
            say(f"{name} is {'running' if run > before else 'already running'}: run {run}")
        if not how and run <= before:
            ignored = f"{options} had no effect: " if options else ""
            keeps = "it runs already, and keeps the address, key and model that it started with"
            note(f"{ignored}{keeps}; to change them, `{command_for(team, f'stop {name}')}`, then resume it")
        return
    resumed, refused = commands_hire.resume_all(team, names, model=model, network=network, web=web, host=host)
    if refused:
        note(f"{', '.join(refused)} did not end, and continue{'s' if len(refused) == 1 else ''}")
    if session.as_json:
        say_json([_where(team.directory.agent(each)) for each in dict.fromkeys(names or resumed)])
    else:
        _say_resumed(team, names, resumed)
    if running := [each for each in dict.fromkeys(names) if each not in (*resumed, *refused)]:
        tell = note if session.as_json else say
        tell(f"{', '.join(running)} {'is' if len(running) == 1 else 'are'} running already")
    if options and (ignoring := [*running, *refused]):
        note(f"{options} had no effect on {', '.join(ignoring)}")


def _say_resumed(team: Team, names: Sequence[str], resumed: Sequence[str]) -> None:
    held = agents.held_starts(team.directory)
    waits = {each.name: held.describe(each.name, each.run, team.now()) for each in held.held if each.name in resumed}
    up = [each for each in resumed if each not in waits]
    if up:
        say(f"resumed {', '.join(up)}")
    elif not resumed and not names:
        say("nothing to resume: no agent that can be resumed is stopped")
    for each, how in waits.items():
        _say_queued(team, each, how)


def _say_queued(team: Team, name: str, how: str) -> None:
    """Print that a resumed agent is queued, and the command that moves it if another host could take it."""
    move = hosts.how_to_move(team, name)
    say(f"{name} is {how}" + (f"; `{move}` moves it" if move else ""))


def _where(agent: AgentDirectory) -> dict[str, str | int | None]:
    starts = agents.held_starts(agent.team)
    waits = next((each for each in starts.held if each.name == agent.name), None)
    if waits is not None:
        # The status is of the run before.
        place = starts.place(agent.name, waits.run) or None
        return {"name": agent.name, "run": waits.run, "pid": None, "queued": place}
    status = agent.status.load_or_none()
    run = status.run if status else agents.last_run(agent)
    return {"name": agent.name, "run": run, "pid": status.pid if status else None, "queued": None}


@common.listing()
def types(session: Session) -> None:
    """List the agent types and what each may do.

    A project can add types in .crewboard/agents/*.md or .claude/agents/*.md. The list names files that cannot be used,
    and fields and tools that have no effect. Accept a type with `crewboard types trust` before you hire it.
    """
    trusted = partial(type_files.is_accepted, environment=os.environ)
    known, broken = type_files.find_all(session.root)
    for file in broken:
        note(on_one_line(f"skipped {file.path}: {file.why}; correct the file or remove it"))
    if session.as_json:
        say_json([agent_types.as_json(each, trusted=trusted(each)) for each in known.values()])
        return
    for each in known.values():
        say(f"{each.name:<8} {each.summary}")
        say(on_one_line(f"         tools: {' '.join((*each.tools, *each.mcp))}"))
        if each.left_out:
            why = "named in its file; crewboard has no such tools, or no such patterns"
            say(on_one_line(f"         left out: {', '.join(each.left_out)} ({why})"))
        say(*(on_one_line(f"         not understood: {problem}") for problem in each.not_understood))
        if limits := agent_types.describe_limits(each):
            say(on_one_line(f"         limits: {'; '.join(limits)}"))
        on_the_web = each.web and (" ".join(each.allowed_domains) or "any domain")
        how = {"model": each.model, "effort": each.effort, "thinking": each.thinking, "web": on_the_web}
        say(on_one_line(f"         {', '.join(f'{what}: {value}' for what, value in how.items() if value)}"))
        if new := sorted({*each.skills} & {*skill_files.not_accepted(Path(each.root), os.environ)}):
            unused = f"skills that are not accepted, so not loaded: {', '.join(new)}"
            say(on_one_line(f"         {unused} (`crewboard skills`)"))
        if not trusted(each):
            accept = _shown_type(each).yes(command_for(session.team, f"types trust {each.name}"))
            say(f"         not accepted: read {each.file}, then `{accept}`")
    say(f"all types also have: {' '.join(agent_types.TEAM_TOOLS)}")


def _shown_type(kind: agent_types.AgentType) -> common.Shown:
    """Return what accepting a type would allow, with the instructions of its agents."""
    what = f"{kind.name} ({kind.file})"

    def lines() -> Iterator[str]:
        yield f"{what}: {agent_types.describe_powers(kind)}"
        for server in mcp_servers.of_type(kind).servers.values():
            yield from (f"server {server.name}: {server.shown}", *server.settings(reveals=is_revealing()))
        yield from (on_one_line(f"not understood: {problem}") for problem in kind.not_understood)
        yield common.quoted(kind.prompt)

    return common.Shown(what, kind.sha256, f"read {kind.file}", lines)


@types.command()
@click.argument("name")
@common.sha256
@click.pass_obj
def trust(session: Session, name: str, sha256: str | None, reveal: bool) -> None:
    """Accept the project's own type NAME, until its file changes.

    `crewboard types` prints the command with the --sha256 of the file. Without it, a terminal shows what agents of the
    type may do and their instructions, and asks; a script is refused.
    """
    kind = type_files.find(session.root, name)
    if not kind.file:
        raise UsageError(f"{name} is a built-in type; there is nothing to accept")
    accept = command_for(session.team, f"types trust {name}")
    common.require_yes(sha256, _shown_type(kind), accept, reveal=reveal)
    commands_accept.accept(session.team, kind)
    say(f"{name} ({kind.file}) is accepted until its file changes: {agent_types.describe_powers(kind)}")
    note(*(on_one_line(f"not understood: {problem}") for problem in kind.not_understood))


@types.command()
@click.argument("name")
@click.option(
    "--from",
    "like",
    default="code",
    show_default=True,
    metavar="TYPE",
    shell_complete=common.complete_agent_type,
    help="Begin with the settings and instructions of this type.",
)
@click.option("--description", type=common.text, metavar="D", help="What its agents are for, on one line.")
@click.pass_obj
def new(session: Session, name: str, like: str, description: str | None) -> None:
    """Write a file for the new type NAME; never replace one.

    It is in .crewboard/agents, and has comments that explain the fields.

    Example: crewboard types new reviewer --from explore --description "reviews a diff"
    """
    kind = type_files.find(session.root, like)
    path = type_files.write_new(session.root, name, kind, description or kind.summary)
    say(str(path))
    note(f"edit it, then `{command_for(session.team, f'types trust {name}')}` accepts it")


ASK_EVERY = 0.25
"""Seconds between two checks for pending requests."""

WORTH_SAYING = 5.0
"""The least seconds of a wait for the API that are printed: a shorter one is over before it is read."""

PROVIDE_EVERY = 1.0
"""Seconds between two requests to start a queued agent, which a supervisor that was killed forgets."""

BURIED_WITHIN = 15.0
"""Seconds that the supervisor has to record the exit of a worker that has ended."""

MAILED_WITHIN = 5.0
"""Seconds that a worker has to mail the answer that is already in its journal."""

_NAMED = 5
"""The most models of a server that are named."""

_QUIET = frozenset({"mail", "answer", "error"})
"""Kinds of activity that are not printed: the caller wrote the prompt, and the answer goes to stdout."""


@dataclass
class Following:
    """The wait for the result of one assignment."""

    team: Team
    assignment: Assignment
    follower: Follower
    timeout: float | None = None
    told: set[str] = field(default_factory=set)
    look_again: float = 0
    place: str = ""
    waits_until: float = 0
    held: str = ""
    """Why the agent was held when that was last printed; empty if it was not."""
    last: Reply | None = None
    """The newest reply without a call: it may be the answer."""

    def run(self) -> Answer | Exit | None:
        """Wait for the answer, or for the run to end without one; return None if the worker vanished.

        Raises:
            TryLaterError: The timeout is over.
        """
        gone_at: float | None = None
        began = time.monotonic()
        while True:
            ended = self.follower.ended()
            events = self._read()
            if self.follower.answer is not None:
                self._wait_for_its_mail(events)
                return self.follower.answer
            if ended is not None:
                self._show_last()
                return ended
            if leases.is_held(self.follower.agent.lease):
                gone_at = None
                self._tell_what_it_asks()
            elif waits := hosts.queued(self.team, self.assignment.agent, self.assignment.run):
                gone_at = None
                # The environment is sent to a supervisor that lost it.
                if waits != self.place:
                    self.place = waits
                    note(f"{self.assignment.agent} is {waits}")
                if time.monotonic() > self.look_again:
                    self.look_again = time.monotonic() + PROVIDE_EVERY
                    supervisor_client.request_start(
                        self.team.directory, self.assignment.agent, self.assignment.run, self.team.worker_environment
                    )
            elif gone_at is None:
                gone_at = time.monotonic()
                supervisor_client.wake_supervisor(self.team.directory)
            elif time.monotonic() - gone_at > BURIED_WITHIN:
                return None
            if self.timeout is not None and time.monotonic() - began >= self.timeout:
                name, typed = self.assignment.agent, CommandLine.of(self.team)
                raise TryLaterError(
                    f"{name} has no result after {self.timeout:g} s and {_goes_on(self.team, self.follower)}; "
                    f"`{typed(f'wait {name} --until idle,exited')}` waits on, `{typed(f'stop {name}')}` stops it"
                )
            time.sleep(POLL_INTERVAL)

    def _read(self) -> list[Event]:
        """Print what the agent did since the last call, except its answer, which goes to stdout; return the events."""
        events = self.follower.read()
        for event in events:
            is_answer = event is self.follower.answer and self.follower.answer.error is None
            self._show_last(_QUIET | {"say"} if is_answer else _QUIET)
            if isinstance(event, Reply) and not any(block.get("type") == "tool_use" for block in event.content):
                self.last = event
            elif not (self.follower.answer is not None and _tells_result(event)):
                _show(self.assignment.agent, event)
        return events

    def _show_last(self, quiet: frozenset[str] = _QUIET) -> None:
        if self.last is not None:
            _show(self.assignment.agent, self.last, quiet)
        self.last = None

    def _wait_for_its_mail(self, events: list[Event]) -> None:
        """Wait until the result is mailed, too: the caller may look for it in the mailbox next."""
        deadline = time.monotonic() + MAILED_WITHIN
        while not any(map(_tells_result, events)) and time.monotonic() < deadline:
            if self.follower.ended():
                return
            time.sleep(POLL_INTERVAL)
            events = self._read()

    def _tell_what_it_asks(self) -> None:
        if time.monotonic() < self.look_again:
            return
        self.look_again = time.monotonic() + ASK_EVERY
        status = self.follower.agent.status.load_or_none()
        if (why := self._why_held(status)) != self.held:
            self.held = why
            if why:
                note(safe_line(f"{self.assignment.agent} is held: {why}"))
        # Until when it waits for the API, if that is long.
        until = status.retry_at if status is not None and status.state == "retrying" else None
        if until is not None and until - max(self.waits_until, self.team.now()) >= WORTH_SAYING:
            self.waits_until = until
            note(safe_line(f"{self.assignment.agent} waits until {clock(until)}: {status.doing if status else ''}"))
        config = self.team.config
        lead = self.team.directory.agent(config.lead)
        mine = requests.only_operator_answers(config, self.team.directory, lambda: leases.is_held(lead.lease))
        # What the agent waits for may itself wait for the operator.
        asking = {self.assignment.agent, status.awaits if status is not None else None}
        for request in requests.pending(self.team.directory):
            if request.from_ not in asking or request.to not in mine or request.id in self.told:
                continue
            self.told.add(request.id)
            note(f"{request.from_} waits for you: {cut(summarise(request), columns())}")
            note(f"  {in_a_row(how for _, how in answers(request, CommandLine.of(self.team)))}")

    def _why_held(self, status: Status | None) -> str:
        """Return why the agent does nothing, and what lets it go on; empty if it works, or waits for the API."""
        if status is None:
            return ""
        name = self.assignment.agent
        if status.state == "paused":
            return f"it is paused; `{command_for(self.team, f'unpause {name}')}` lets it go on"
        if status.state == "working" and status.repeats >= HELD_REPEATS:
            last = f"{status.last_tool or 'the same call'} ×{status.repeats}, same outcome"
            return f"{last}; `{command_for(self.team, f'send {name} TEXT')}` lets it go on"
        is_here = status.boot_id == process.boot_id() and status.start_ticks == process.start_ticks(status.pid)
        if is_here and process.is_stopped(status.pid):
            return f"a signal stopped its process {status.pid}; `kill -CONT {status.pid}` continues it"
        return ""


def _goes_on(team: Team, follower: Follower) -> str:
    """Return what an agent does while no command waits for it: it stays queued, or keeps working."""
    return "stays queued" if hosts.queued(team, follower.agent.name, follower.run) else "keeps working"


def _left(team: Team, follower: Follower, before: Spec | None) -> str:
    """Return what became of an agent and its work when Ctrl-C ended the command; `before` is its spec until then."""
    name, agent = follower.agent.name, follower.agent
    # A start that is interrupted does not tell what it did before: the spec does.
    if not follower.run:
        spec = agent.spec.load_or_none()
        if spec is None:
            return f"{name} was not hired"
        # Only a hire has another prompt: work that is sent as mail, also after a resume, leaves the old one.
        if before is not None and spec.prompt_id == before.prompt_id:
            return f"{name} was not given this work"
        follower.run = spec.run
        if not leases.is_held(agent.lease) and not hosts.queued(team, name, spec.run):
            # Its supervisor may have the request, and be about to start it.
            again = command_for(team, f"resume {name}")
            return f"{name} was hired, but has not started yet; if it does not start by itself, `{again}` starts it"
    shows = command_for(team, f"journal {name} --follow")
    return f"detached: {name} {_goes_on(team, follower)}; `{shows}` shows its progress"


def _tells_result(event: Event) -> bool:
    return isinstance(event, Sent) and event.message.type in ("result", "error")


def follow(
    session: Session, name: str, start: Callable[[], Assignment], *, once: bool, timeout: float | None = None
) -> int:
    """Call `start` to give the agent `name` work, wait for the answer, print it and return the exit code.

    With `once`, also wait until the worker has ended.

    Raises:
        TryLaterError: There was no answer `timeout` seconds after the agent got the work. It continues.
    """
    team = session.team
    follower = Follower(team.directory.agent(name), "", 0)
    before = follower.agent.spec.load_or_none()
    try:
        assignment = start()
        follower.ident, follower.run = assignment.id, assignment.run
        if assignment.note:
            note(assignment.note)
        # Not before each answer in a conversation with the lead.
        if assignment.fresh:
            tell_new_servers(team, name)
            tell_new_skills(team)
            tell_of_model(team, name)
        outcome = Following(team, assignment, follower, timeout).run()
        if once and isinstance(outcome, Answer):
            wait_until(lambda: not leases.is_held(follower.agent.lease), BURIED_WITHIN)
    except KeyboardInterrupt:
        note(f"\n{_left(team, follower, before)}")
        return ExitCode.INTERRUPTED
    tell_lacking_servers(follower.agent)
    answer = outcome if isinstance(outcome, Answer) else None
    code, why = _judge(assignment.agent, outcome, team)
    if session.as_json:
        said = {"text": answer.text if answer else None, "result": answer.result if answer else None}
        given = {"name": assignment.agent, "run": assignment.run, "assignment": assignment.id}
        say_json({**given, **said, "error": why, "code": code})
    elif answer is not None and answer.text:
        say(answer.text)
    if why:
        note(f"crewboard: {safe_line(why)}")
    if (task := reviews.awaited_by(team.directory, name)) is not None:
        note(reviews.describe(task))
    if isinstance(outcome, Answer) and (ended := agent_types.describe_ended_terms(outcome)):
        note(ended)
    if isinstance(outcome, Answer) and outcome.error is None:
        # The result was printed already. A mark that cannot be written must not fail the command.
        with contextlib.suppress(CrewboardError):
            messages.acknowledge_results(team, name)
    return code


def tell_lacking_servers(agent: AgentDirectory) -> None:
    """Print without which MCP servers the agent worked. Servers that are not accepted were named when it was hired."""
    status = agent.status.load_or_none()
    for state in status.mcp if status is not None else ():
        if state.problem and not state.new:
            note(safe_line(f"{agent.name} worked without the MCP server {state.name}: {state.problem}"))


def _judge(name: str, outcome: Answer | Exit | None, team: Team) -> tuple[int, str | None]:
    """Return the exit code of an assignment and, if it failed, a sentence that explains why."""
    if isinstance(outcome, Answer):
        if outcome.error is None:
            return outcome.code, None
        raises = commands_hire.how_to_raise(team, name) if outcome.code == ExitCode.LIMIT else None
        why = f"{name} could not finish: {outcome.error}" + (f"; {raises}" if raises else "")
        return outcome.code or ExitCode.FAILED, why
    again = commands_hire.how_to_resume(team, name)
    if outcome is None:
        return ExitCode.FAILED, f"{name} vanished without a result; {again}"
    how = describe_exit(outcome)
    return outcome.code or ExitCode.FAILED, f"{name} ended without an answer: {how}; {again}"


def _show(name: str, event: Event, quiet: frozenset[str] = _QUIET) -> None:
    for activity in describe(event):
        if activity.kind not in quiet and activity.text:
            seconds = f" ({activity.seconds:.1f}s)" if activity.seconds and activity.kind == "done" else ""
            head = f"{clock(activity.ts)} {name} {activity.kind:<5} "
            note(head + cut(activity.text, columns() - len(head) - len(seconds)) + seconds)
