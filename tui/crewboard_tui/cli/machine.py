"""The commands `types`, `doctor` and `keys`."""

import click

from crewboard.agent_types import custom
from crewboard.agent_types.builtin import TEAM_TOOLS
from crewboard_tui.cli.output import as_json, note, say, say_json
from crewboard_tui.cli.session import Session


@click.command()
@as_json
@click.pass_obj
def types(session: Session, as_json: bool) -> None:
    """List the agent types and what each may do.

    A project can add types in .crewboard/agents/*.md or .claude/agents/*.md; files that cannot be used are named.
    """
    known, broken = custom.find_all(session.root)
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


@click.command()
@as_json
@click.pass_obj
def doctor(session: Session, as_json: bool) -> None:
    """Check the setup and suggest fixes.

    Looks at Python, the API key, the sandbox, file events, the workspace, the terminal, your keys and git. The exit
    code is 0 whatever it finds; in --json, `mark` is ok, note or bad.
    """
    from crewboard_tui.cli import doctor as checks

    found = checks.all_checks(session)
    if as_json:
        say_json([check.as_json() for check in found])
        return
    for check in found:
        say(f"{check.mark:<5} {check.name:<9} {check.detail}")
        if check.remedy:
            say(f"{'':<15} → {check.remedy}")


@click.command()
@as_json
def keys(as_json: bool) -> None:
    """Print all key bindings as a keys.toml that you can edit.

    Example: crewboard keys > ~/.config/crewboard/keys.toml
    """
    from crewboard_tui.keymap import user_file
    from crewboard_tui.keymap.bindings import KEYS

    if as_json:
        say_json([{"id": key.id, "keys": key.keys, "says": key.says} for key in KEYS if key.keys])
    else:
        say(user_file.template())
