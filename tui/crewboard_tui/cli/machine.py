"""What agents may do, and what works on this machine."""

import click

from crewboard.agent_types import TEAM, TYPES
from crewboard_tui.cli.output import as_json, say, say_json
from crewboard_tui.cli.session import Session


@click.command()
@as_json
def types(as_json: bool) -> None:
    """List the types of agents and what each may do."""
    if as_json:
        say_json(
            [
                {
                    "name": each.name,
                    "summary": each.summary,
                    "tools": list(each.tools),
                    "team_tools": list(TEAM),
                    "writes": each.writes,
                    "executes": each.executes,
                    "model": each.model,
                }
                for each in TYPES.values()
            ]
        )
        return
    for each in TYPES.values():
        say(f"{each.name:<8} {each.summary}")
        say(f"         tools: {' '.join(each.tools)}")
        say(f"         model: {each.model}")
    say(f"every one also: {' '.join(TEAM)}")


@click.command()
@as_json
@click.pass_obj
def doctor(session: Session, as_json: bool) -> None:
    """Say what works here and how to mend the rest.

    Looks at Python, the API key, the sandbox, file events, the root, the terminal and git.
    """
    from crewboard_tui.cli import checks

    found = checks.all_checks(session)
    if as_json:
        say_json([check.as_json() for check in found])
        return
    for check in found:
        say(f"{check.mark:<5} {check.name:<9} {check.detail}")
        if check.remedy:
            say(f"{'':<15} → {check.remedy}")
