"""The commands `spawn`, `resume` and `types`."""

import click
from click.core import ParameterSource

from crewboard.commands import hire as hiring
from crewboard.commands.context import Team, command_for
from crewboard.commands.hire import Assignment, Hire
from crewboard.errors import UsageError
from crewboard.records import HireOptions
from crewboard.store import agents
from crewboard.store.layout import AgentDirectory
from crewboard_tui.cli import options
from crewboard_tui.cli.options import Session
from crewboard_tui.cli.output import as_json, note, say, say_json

_FLAGS = frozenset(HireOptions.model_fields) - {"task"}
"""Options that are fixed at hiring: an idle agent keeps those that it was hired with."""


@click.command()
@click.argument("name")
@click.option("--type", "agent_type", required=True, metavar="T", help="Agent type; `crewboard types` lists them.")
@click.option("--prompt", type=options.text, metavar="P", help="What to do.")
@click.option("--prompt-file", metavar="F", help="Read the prompt from a file; `-` is standard input.")
@click.option("--role", type=options.text, default="", metavar="R", help="Its role, in a few words.")
@click.option("--model", metavar="M", help="Default: $CREWBOARD_MODEL, $ANTHROPIC_MODEL, the type's.")
@click.option("--background", is_flag=True, help="Return as soon as the worker is up.")
@click.option("--once", is_flag=True, help="Exit after the result instead of idling.")
@click.option("--plan", is_flag=True, help="Require an approved plan before it writes or runs anything.")
@click.option("--ask", is_flag=True, help="Require your approval of each command and each write.")
@click.option("--autoclaim", is_flag=True, help="When idle, claim the next task that fits.")
@click.option("--budget", metavar="B", help="Limit in money ($5) or tokens (200k); at the limit it ends (79).")
@click.option("--task", type=options.task_id, metavar="ID", help="Assign this task to the agent.")
@click.option("--network", is_flag=True, help="Allow its commands the network.")
@click.option("--max-turns", type=click.IntRange(min=1), default=100, show_default=True, metavar="N",
              help="Limit of model calls per assignment.")  # fmt: skip
@click.option("--unsafe-no-sandbox", is_flag=True, help="Run without a sandbox where none works.")
@as_json
@click.pass_context
def spawn(
    context: click.Context,
    name: str,
    agent_type: str,
    prompt: str | None,
    prompt_file: str | None,
    role: str,
    model: str | None,
    background: bool,
    once: bool,
    plan: bool,
    ask: bool,
    autoclaim: bool,
    budget: str | None,
    task: int | None,
    network: bool,
    max_turns: int,
    unsafe_no_sandbox: bool,
    as_json: bool,
) -> None:
    """Hire the agent NAME, or give more work to an idle one.

    Wait for its result and print it; progress goes to stderr. Ctrl-C detaches, and the agent keeps working.
    The exit code is the worker's.

    Example: crewboard spawn scout --type explore --prompt "what does this project do?"

    Example: crewboard spawn fixer --type code --plan --background --prompt-file task.md
    """
    flags = HireOptions(
        once=once,
        plan=plan,
        ask=ask,
        autoclaim=autoclaim,
        budget=budget,
        network=network,
        unsafe_no_sandbox=unsafe_no_sandbox,
        max_turns=max_turns,
        task=task,
    )
    given = frozenset(flag for flag in _FLAGS if _was_given(context, flag))
    hire = Hire(name, agent_type, _prompt(prompt, prompt_file), role, model, flags, given)
    session: Session = context.obj
    if background:
        _spawn_in_background(session.team, hire, as_json=as_json)
    else:
        from crewboard_tui.cli.following import spawn_and_follow

        context.exit(spawn_and_follow(session.team, hire, as_json=as_json))


def _was_given(context: click.Context, name: str) -> bool:
    return context.get_parameter_source(name) is ParameterSource.COMMANDLINE


def _prompt(prompt: str | None, prompt_file: str | None) -> str:
    if prompt is not None and prompt_file is None:
        return prompt
    if prompt_file is not None and prompt is None:
        return options.read_text(prompt_file)
    raise UsageError("give the task with either --prompt or --prompt-file")


def _spawn_in_background(team: Team, hire: Hire, *, as_json: bool) -> None:
    assignment = hiring.spawn(team, hire)
    agent = team.directory.agent(hire.name)
    code = _early_end(team, agent, assignment)
    status = agents.status(agent)
    pid = status.pid if status else None
    if as_json:
        known = {"name": hire.name, "run": assignment.run, "pid": pid, "assignment": assignment.id}
        say_json({**known, "fresh": assignment.fresh})
    elif not code:
        say(f"{hire.name} is running: run {assignment.run}, pid {pid}")
    if code:
        raise click.exceptions.Exit(code)


def _early_end(team: Team, agent: AgentDirectory, assignment: Assignment) -> int:
    """Return the exit code of a run that failed before it was up, and print why; else return 0."""
    ended = agents.exit_record(agent)
    if ended is None or ended.run < assignment.run:
        return 0
    if ended.code == 0 and not ended.signal:
        return 0
    from crewboard.records import describe_exit

    log = command_for(team, f"log {agent.name}")
    note(f"{agent.name} did not start: {describe_exit(ended)}; `{log}` may show why")
    return ended.code or 1


@click.command()
@click.argument("name", required=False)
@click.option("--all", "all_agents", is_flag=True, help="All agents that are not running.")
@click.option("--model", metavar="M", help="Use another model from now on.")
@click.option("--network", is_flag=True, help="Allow its commands the network from now on.")
@as_json
@click.pass_obj
def resume(
    session: Session, name: str | None, all_agents: bool, model: str | None, network: bool, as_json: bool
) -> None:
    """Start the stopped or dead agent NAME again.

    It keeps its conversation and continues its assignment. Returns when it is up.

    Example: crewboard resume --all
    """
    team = session.team
    if all_agents == (name is not None):
        raise UsageError("name the agent to resume, or use --all")
    if name is not None:
        _resume_one(team, name, model, network, as_json=as_json)
        return
    names = hiring.resume_all(team, model=model, network=network)
    if as_json:
        say_json([_where(team.directory.agent(each)) for each in names])
    else:
        say("resumed " + ", ".join(names) if names else "all agents are running")


def _resume_one(team: Team, name: str, model: str | None, network: bool, *, as_json: bool) -> None:
    agent = team.agent(name)
    before = agents.last_run(agent)
    run = hiring.resume(team, name, model=model, network=network)
    code = _early_end(team, agent, Assignment(name, "", run, fresh=False)) if run > before else 0
    if code:
        raise click.exceptions.Exit(code)
    if as_json:
        say_json(_where(agent))
    else:
        say(f"{name} is running: run {run}" if run > before else f"{name} is already running: run {run}")


def _where(agent: AgentDirectory) -> dict[str, str | int | None]:
    status = agents.status(agent)
    return {
        "name": agent.name,
        "run": status.run if status else agents.last_run(agent),
        "pid": status.pid if status else None,
    }


@click.command()
@as_json
@click.pass_obj
def types(session: Session, as_json: bool) -> None:
    """List the agent types and what each may do.

    A project can add types in .crewboard/agents/*.md or .claude/agents/*.md; files that cannot be used are named.
    """
    from crewboard import agent_types
    from crewboard.agent_types import TEAM_TOOLS

    known, broken = agent_types.find_all(session.root)
    for file in broken:
        note(f"skipped {file.path}: {file.why}")
    if as_json:
        say_json(
            [
                {
                    "name": each.name,
                    "summary": each.summary,
                    "tools": list(each.tools),
                    "team_tools": list(TEAM_TOOLS),
                    "writes": each.writes,
                    "executes": each.executes,
                    "model": each.model,
                    "left_out": list(each.left_out),
                }
                for each in known.values()
            ]
        )
        return
    for each in known.values():
        say(f"{each.name:<8} {each.summary}")
        say(f"         tools: {' '.join(each.tools)}")
        if each.left_out:
            say(f"         left out: {', '.join(each.left_out)} (named in its file; crewboard has no such tools)")
        say(f"         model: {each.model}")
    say(f"all types also have: {' '.join(TEAM_TOOLS)}")
