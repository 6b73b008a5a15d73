"""The command `engines`: which programs of others can do the work of an agent here."""

from typing import Any

import click

from crewboard import engines as crewboard_engines
from crewboard.engines import FoundEngine
from crewboard_tui.cli.common import Session, as_json, say, say_json
from crewboard_tui.render.sanitize import safe_line


@click.command()
@as_json
@click.pass_obj
def engines(session: Session, as_json: bool) -> None:
    """List the engines that agents can have in place of the model.

    An engine is an agent program of its own, such as Claude Code: `crewboard spawn NAME --engine claude`. It uses your
    login or key for it, and is never installed by crewboard. Any other one that speaks the Agent Client Protocol is
    --engine 'acp:COMMAND', as an experiment.
    """
    found = crewboard_engines.find_all(session.root)
    if as_json:
        say_json([_row(each) for each in found])
        return
    for each in found:
        say(safe_line(f"{each.engine.name} ({each.engine.title}): {each.describe()}"))
        for lack in each.engine.lacks:
            say(f"         {lack}")


def _row(found: FoundEngine) -> dict[str, Any]:
    return {
        "name": found.engine.name,
        "title": found.engine.title,
        "path": str(found.path) if found.path is not None else None,
        "version": found.version or None,
        "tested": found.is_tested,
        "tested_versions": list(found.engine.tested),
        "plans": found.engine.plans,
        "tells_cost": found.engine.tells_cost,
        "lacks": list(found.engine.lacks),
        "why_not": found.why_not or None,
    }
