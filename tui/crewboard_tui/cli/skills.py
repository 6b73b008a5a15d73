"""The command `skills`: the skills of a project, and which of them the user has accepted."""

import contextlib
import os
import shlex
from collections.abc import Iterable, Iterator

import click

from crewboard import StorageError, Team, UsageError, env, skill_files, type_files
from crewboard.commands import accept as commands_accept
from crewboard.commands.context import command_for, root_options
from crewboard.records.base import JsonValue
from crewboard.records.requests import payload_sha256
from crewboard.untrusted import as_run
from crewboard_tui.cli import common
from crewboard_tui.cli.common import Session, note, say, say_json
from crewboard_tui.render.sanitize import safe_line


@common.listing()
def skills(session: Session) -> None:
    """List the skills of the project, and which of them you accepted.

    Agents are told of a skill in .claude/skills after `crewboard skills trust`, until one of its files changes: agents
    can write there, and what one writes is no instruction of yours. Your own skills in ~/.claude/skills need no yes.
    The CLAUDE.md and AGENTS.md of folders and what such files import are listed as @PATH, and the commands of
    .claude/commands as /NAME; they need one, too.
    """
    accepted = skill_files.accepted(session.root, os.environ)
    found, left_out = skill_files.list_all(session.root)
    states = {}
    for each in found:
        known = accepted.get(each.name)
        state = "new" if known is None else "accepted" if known == each.sha256 else "changed"
        states[each.name] = "invalid" if each.why else state
    if session.as_json:
        rows = [
            {"name": each.name, "state": states[each.name], "sha256": each.sha256 or None, "why": each.why or None}
            for each in found
        ]
        say_json(rows)
        _note_left_out(left_out)
        return
    for each in found:
        say(safe_line(f"{as_run(each.name):<20} {_SAID[states[each.name]]}{f': {each.why}' if each.why else ''}"))
        if states[each.name] in ("new", "changed"):
            accept = _shown([each]).yes(_accepts(session, [each.name]))
            unused = "it cannot be sent" if each.name.startswith("/") else "agents are not told of it"
            say(safe_line(f"         {unused}: read {skill_files.place(each.name)}, then `{accept}`"))
    new = [each for each in found if states[each.name] in ("new", "changed")]
    if len(new) > 1:
        accept = _accepts(session, [each.name for each in new])
        say(safe_line(f"all {len(new)} of them: `{_shown(new).yes(accept)}`"))
    if not found:
        note(f"no skills in {type_files.SKILLS_FOLDER}")
    _note_left_out(left_out)


def _note_left_out(left_out: list[str]) -> None:
    """Report on stderr which files are not listed: no printed command accepts them."""
    says = "not listed, and not accepted by these commands: {}; remove what you do not use"
    note(*(safe_line(says.format(each)) for each in left_out))


_SAID = {
    "accepted": "accepted", "new": "not accepted", "changed": "changed since you accepted it, by an agent or by you",
    "invalid": "cannot be used",
}  # fmt: skip


@skills.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@common.sha256
@click.pass_obj
def trust(session: Session, names: tuple[str, ...], sha256: str | None, reveal: bool) -> None:
    """Accept the project's skill NAME, until one of its files changes. So a file @PATH or a command /NAME.

    `crewboard skills` prints the command with the --sha256 of its files; of several NAMEs it is that of all. Without
    it, a terminal shows the text of the skill and names its other files, and asks; a script is refused.
    """
    chosen = [skill_files.find(session.root, name) for name in dict.fromkeys(names)]
    common.require_yes(sha256, _shown(chosen), _accepts(session, names), reveal=reveal)
    team = _team(session)
    for each in chosen:
        if team is None:
            skill_files.accept(each, session.root, os.environ)
        else:
            commands_accept.accept(team, each)
    for each in chosen:
        until = "it" if each.name[0] in "@/" else "one of its files"
        say(safe_line(f"{each.name} ({skill_files.place(each.name)}) is accepted until {until} changes"))


def _shown(chosen: list[skill_files.ProjectSkill]) -> common.Shown:
    """Return skills as the thing to accept, with one digest for all."""
    digests: list[JsonValue] = [each.sha256 for each in chosen]
    sha256 = chosen[0].sha256 if len(chosen) == 1 else payload_sha256({"skills": digests})
    places = ", ".join(skill_files.place(each.name) for each in chosen)
    what = f"{', '.join(each.name for each in chosen)} ({places})"

    def lines() -> Iterator[str]:
        for each in chosen:
            yield f"{each.name}:"
            yield common.quoted(each.text)
            if each.others:
                yield f"with it: {', '.join(each.others)} in {skill_files.place(each.name)}"

    return common.Shown(what, sha256, f"read {places}", lines)


def _team(session: Session) -> Team | None:
    """Return the chosen team; None if there are several and none is chosen: accepting is for the whole workspace."""
    try:
        return session.team
    except UsageError:
        if session.team_option is not None or env.team():
            raise
        return None


def _accepts(session: Session, names: Iterable[str]) -> str:
    """Return the command that accepts skills, with their names quoted: an agent may have chosen these."""
    words = ["skills", "trust", *names]
    if (team := _team(session)) is not None:
        return command_for(team, shlex.join(words))
    return shlex.join(["crewboard", *root_options(session.root), *words])


def tell_new_skills(team: Team) -> None:
    """Print that agents do not use the workspace's skills until the user accepts them; once for each workspace."""
    root = team.directory.root
    if skill_files.was_told(root, team.environment) or not (new := skill_files.not_accepted(root, team.environment)):
        return
    # If that cannot be recorded, it is told again at the next hire.
    with contextlib.suppress(StorageError):
        skill_files.note_told(root, team.environment)
    show = command_for(team, "skills")
    said = f"agents can write these, so they are used only after you accept them: {', '.join(new)}"
    note(safe_line(f"{said}; `{show}` lists the commands"))
