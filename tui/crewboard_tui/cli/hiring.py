"""Hiring agents, giving them work, bringing them back."""

import click
from click.core import ParameterSource

from crewboard.commands import hire as hiring
from crewboard.commands.cli_hint import command_for
from crewboard.commands.context import Team
from crewboard.commands.hire import Assignment, Hire
from crewboard.errors import UsageError
from crewboard.records import HireOptions
from crewboard.store import agents
from crewboard.store.layout import AgentDirectory
from crewboard_tui.cli import params
from crewboard_tui.cli.output import as_json, note, say, say_json
from crewboard_tui.cli.session import Session

_FLAGS = frozenset(HireOptions.model_fields) - {"task"}
"""Options that are terms of a hiring: an agent that is idle keeps those that it was hired with."""


@click.command()
@click.argument("name")
@click.option("--type", "agent_type", required=True, metavar="T", help="See `crewboard types`.")
@click.option("--prompt", type=params.text, metavar="P", help="What it is to do.")
@click.option("--prompt-file", metavar="F", help="The same from a file; `-` is standard input.")
@click.option("--role", type=params.text, default="", metavar="R", help="What it is, in a few words.")
@click.option("--model", metavar="M", help="Else $CREWBOARD_MODEL, $ANTHROPIC_MODEL, the type's own.")
@click.option("--background", is_flag=True, help="Return when the worker is up.")
@click.option("--once", is_flag=True, help="The worker exits after its result instead of idling.")
@click.option("--plan", is_flag=True, help="It may only read until you have approved its plan.")
@click.option("--ask", is_flag=True, help="It asks before each command and each write.")
@click.option("--autoclaim", is_flag=True, help="When idle it takes the next task that fits from the board.")
@click.option("--budget", metavar="B", help="What it may use: money ($5) or tokens (200k); then it ends (79).")
@click.option("--task", type=params.task_id, metavar="ID", help="The task that this is; it becomes the owner.")
@click.option("--network", is_flag=True, help="Its commands may use the network.")
@click.option("--max-turns", type=click.IntRange(min=1), default=100, show_default=True, metavar="N",
              help="Model calls for one assignment.")  # fmt: skip
@click.option("--unsafe-no-sandbox", is_flag=True, help="Run it even where nothing can hold it in.")
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
    """Hire the agent NAME, or give one that is idle more work.

    Waits for its result and prints it, with its progress on stderr; Ctrl-C detaches and the agent goes on.
    Ends with the worker's exit code.

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
        return params.read_text(prompt_file)
    raise UsageError("say what it is to do, with either --prompt or --prompt-file")


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
        say(f"{hire.name} is at work: run {assignment.run}, pid {pid}")
    if code:
        raise click.exceptions.Exit(code)


def _early_end(team: Team, agent: AgentDirectory, assignment: Assignment) -> int:
    """The exit code of a run that failed before it was up, and why on stderr; else 0."""
    ended = agents.exit_record(agent)
    if ended is None or ended.run < assignment.run:
        return 0
    if ended.code == 0 and not ended.signal:
        return 0
    from crewboard.records import describe_exit

    log = command_for(team, f"log {agent.name}")
    note(f"{agent.name} did not come up: {describe_exit(ended)}; `{log}` may say more")
    return ended.code or 1


@click.command()
@click.argument("name", required=False)
@click.option("--all", "everybody", is_flag=True, help="Everybody who is not running.")
@click.option("--model", metavar="M", help="Another model from now on.")
@click.option("--network", is_flag=True, help="Its commands may use the network from now on.")
@as_json
@click.pass_obj
def resume(
    session: Session, name: str | None, everybody: bool, model: str | None, network: bool, as_json: bool
) -> None:
    """Start the stopped or dead agent NAME again.

    It has its conversation, and takes up what it was at. Returns when it is up.

    Example: crewboard resume --all    (after the machine was restarted)
    """
    team = session.team
    if everybody == (name is not None):
        raise UsageError("name the agent to resume, or say --all")
    if name is not None:
        _resume_one(team, name, model, network, as_json=as_json)
        return
    names = hiring.resume_all(team, model=model, network=network)
    if as_json:
        say_json([_where(team.directory.agent(each)) for each in names])
    else:
        say("resumed " + ", ".join(names) if names else "everybody is running")


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
        say(f"{name} is up: run {run}" if run > before else f"{name} is running already: run {run}")


def _where(agent: AgentDirectory) -> dict[str, str | int | None]:
    status = agents.status(agent)
    return {
        "name": agent.name,
        "run": status.run if status else agents.last_run(agent),
        "pid": status.pid if status else None,
    }
