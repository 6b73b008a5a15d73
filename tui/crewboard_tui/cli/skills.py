"""The command `skills`: the skills of a project, and which of them the user accepted."""

import os
import shlex
from collections.abc import Iterator

import click

from crewboard import StorageError, Team, skill_files, type_files
from crewboard.commands import hire
from crewboard.commands.context import command_for
from crewboard.records.requests import bound_to
from crewboard_tui.cli import common
from crewboard_tui.cli.common import Session, as_json, note, say, say_json
from crewboard_tui.render.sanitize import safe_line


@click.group(invoke_without_command=True)
@as_json
@click.pass_context
def skills(context: click.Context, as_json: bool) -> None:
    """List the skills of the project, and which of them you accepted.

    Agents are told of a skill in .claude/skills after `crewboard skills trust`, until one of its files changes: agents
    can write there, and what one writes is no instruction of yours. Your own skills in ~/.claude/skills need no yes.
    Files that the root's CLAUDE.md or AGENTS.md imports are listed as @PATH, and need one, too.
    """
    if context.invoked_subcommand is not None:
        return
    session: Session = context.obj
    accepted = skill_files.accepted(session.root, os.environ)
    found = skill_files.find_all(session.root)
    states = {each.name: _state(each, accepted.get(each.name)) for each in found}
    if as_json:
        rows = [
            {"name": each.name, "state": states[each.name], "sha256": each.sha256 or None, "why": each.why or None}
            for each in found
        ]
        say_json(rows)
        return
    for each in found:
        folder = _place(each.name)
        say(safe_line(f"{each.name:<20} {_SAID[states[each.name]]}{f': {each.why}' if each.why else ''}"))
        if states[each.name] in ("new", "changed"):
            accept = f"{_accepts(session.team, each.name)} {bound_to(each.sha256)}"
            say(safe_line(f"         agents are not told of it: read {folder}, then `{accept}`"))
    if not found:
        note(f"no skills in {type_files.SKILLS_FOLDER}")


_SAID = {
    "accepted": "accepted", "new": "not accepted", "changed": "changed since you accepted it, by an agent or by you",
    "invalid": "cannot be used",
}  # fmt: skip


def _state(skill: skill_files.ProjectSkill, accepted: str | None) -> str:
    if skill.why:
        return "invalid"
    return "new" if accepted is None else "accepted" if accepted == skill.sha256 else "changed"


def _lines_of_skill(skill: skill_files.ProjectSkill) -> Iterator[str]:
    yield common.quoted(skill.text)
    if skill.others:
        yield f"with it: {', '.join(skill.others)} in {_place(skill.name)}"


@skills.command()
@click.argument("name")
@common.sha256
@click.pass_obj
def trust(session: Session, name: str, sha256: str | None) -> None:
    """Accept the project's skill NAME, until one of its files changes.

    `crewboard skills` prints the command with the --sha256 of its files. Without it, a terminal shows the text of the
    skill and names its other files, and asks; a script is refused.
    """
    skill = skill_files.find(session.root, name)
    place = _place(name)
    seen = common.Shown(f"{name} ({place})", skill.sha256, f"read {place}", lambda: _lines_of_skill(skill))
    common.require_yes(sha256, seen, _accepts(session.team, name))
    hire.trust_skill(session.team, skill)
    say(safe_line(f"{name} ({place}) is accepted until {'it' if name[0] == '@' else 'one of its files'} changes"))


def _accepts(team: Team, name: str) -> str:
    """Return the command that accepts a skill: an agent may have chosen its name."""
    return command_for(team, shlex.join(["skills", "trust", name]))


def _place(name: str) -> str:
    return name[1:] if name.startswith("@") else f"{type_files.SKILLS_FOLDER}/{name}"


def tell_new_skills(team: Team) -> None:
    """Print once for a workspace that agents are not told of its skills before the user accepts them."""
    root = team.directory.root
    new = skill_files.not_accepted(root, team.environment)
    try:
        is_told = not new or skill_files.note_told(root, team.environment)
    except StorageError:
        # Told again at the next hire.
        is_told = False
    if not is_told:
        show = command_for(team, "skills")
        said = f"agents can write skills and imports, so they are told of {', '.join(new)} only after you accept them"
        note(safe_line(f"{said}: `{show}` lists the commands"))
