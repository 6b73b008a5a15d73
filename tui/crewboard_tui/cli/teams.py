"""The commands `team` (create, join, list, adopt, delete), `export` and `import`."""

import json
import os
import shlex
import sys
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import click

from crewboard import BadDataError, StorageError, Team, UsageError, agent_types, mcp_servers
from crewboard.agent_types import AgentType
from crewboard.commands import context, hosts, stop, transfer
from crewboard.commands.rules import describe_rule
from crewboard.names import OPERATOR, check_team
from crewboard.protocol import requests
from crewboard.records.agents import Cursor, HireOptions
from crewboard.records.base import JsonValue, counted
from crewboard.records.events import Answer, Gate
from crewboard.records.requests import Request, payload_sha256
from crewboard.records.team import Config
from crewboard.store import journal, leases, mailbox, roster, tasks
from crewboard.store.layout import AgentDirectory, TeamDirectory, team_directories
from crewboard.store.roster import find_team
from crewboard_tui.cli import common
from crewboard_tui.cli.common import LazyGroup, Session, as_json, note, table
from crewboard_tui.render.sanitize import is_revealing, safe_line


@click.group(cls=LazyGroup)
def team() -> None:
    """Create, join, list, adopt and delete teams."""


@team.command()
@click.argument("name")
@click.option("--description", type=common.text, default="", help="What the team is for.")
@click.option(
    "--store",
    "url",
    metavar="URL",
    help="Keep the team in this database: postgresql://USER@HOST/DATABASE, no password.",
)
@as_json
def create(session: Session, name: str, description: str, url: str | None) -> None:
    """Create the team NAME in the workspace."""
    url = url or session.store_option
    root = session.root
    made = context.create(root, name, description, url, partial(session.new_settings, root))
    if url is None:
        common.warn_of_network(made.directory)
    session.tell(_describe(made.directory), f"created the team {name} in {made.directory.path}")
    sys.stdout.flush()
    common.prepare(made.directory)


@team.command()
@click.argument("name")
@click.option("--store", "url", metavar="URL", required=True, help="The database that the team is kept in.")
@as_json
def join(session: Session, name: str, url: str) -> None:
    """Use the team NAME of another machine from this one, too.

    Creates a folder in the workspace that says where the team is kept. `crewboard host` runs agents here.
    """
    joined = hosts.join(session.root, name, url)
    session.tell(_describe(joined), f"joined the team {name}: {joined.path}")


@team.command("list")
@as_json
def list_(session: Session) -> None:
    """List the teams of the workspace."""
    found = [_describe(each) for each in team_directories(session.root)]
    rows = [
        (each["name"], str(each["agents"]), str(each["alive"]), each["problem"] or each["description"])
        for each in found
    ]
    lines = table(("TEAM", "AGENTS", "ALIVE", "DESCRIPTION"), rows) if found else []
    session.tell(found, *lines, empty=f"no teams below {session.root} yet; {context.create_command(session.root)}")


def _describe(directory: TeamDirectory) -> dict[str, Any]:
    known: dict[str, Any] = {"name": directory.path.name, "description": "", "agents": 0}
    alive = 0
    try:
        names = stop.all_agents(Team(directory))
        known["agents"] = len(names)
        alive = sum(leases.is_held(directory.agent(name).lease) for name in names)
        config = roster.load(directory)
        known |= {
            "name": directory.known_as(config.name),
            "description": config.description,
            "agents": len(config.members),
        }
        problem = None
    except (BadDataError, StorageError) as error:
        problem = str(error)
    return {**known, "alive": alive, "path": str(directory.path), "problem": problem}


@team.command()
@click.option("--yes", is_flag=True, help="Without effect: --sha256 says what you looked at.")
@common.sha256
@as_json
def adopt(session: Session, yes: bool, sha256: str | None, reveal: bool) -> None:  # noqa: ARG001  scripts give --yes
    """Use a team that you did not make, or that was copied.

    Such a team is foreign: it can be read, but nothing is started, resumed or sent. Shows first what the team contains
    that acts for you, and asks in a terminal; a script needs the --sha256 of that. Teams of version 0.1.0 need this
    once.
    """
    # Not `session.team`, which refuses a foreign team whose records are in a database.
    directory = session.directory
    if directory.address is None and not directory.exists():
        raise UsageError(f"there is no team in {session.root}")
    was_foreign = directory.is_foreign()
    if was_foreign:
        # A yes is for exactly what was shown.
        name, digest = directory.path.name, _digest(directory)
        seen = common.Shown(f"the team {name}", digest, _LOOK, lambda: _lines(_contents(directory)), is_always=True)
        accept = _accept(session, "--team", name, "team", "adopt")
        common.require_yes(sha256, seen, accept, reveal=reveal, asks=not session.as_json)
        if _digest(directory) != digest:
            raise BadDataError(f"the team {name} changed while it was shown; look at it again")
    context.adopt(Team(directory, environment=dict(os.environ)))
    says = f"the team {directory.path.name} {'is yours now' if was_foreign else 'was yours already'}"
    session.tell({**_describe(directory), "adopted": was_foreign}, says)


def _digest(directory: TeamDirectory) -> str:
    """Return the SHA-256 of all of a team's files: files that are not shown, such as mail, may act for the user, too.

    For a team in a database, it is that of `_contents`.
    """
    if directory.store != directory.local:
        shown: list[JsonValue] = [*_contents(directory)]
        return payload_sha256({"contents": shown})
    return transfer.sha256(directory)


_LOOK = "look at what it contains"


def _lines(contents: Iterable[str]) -> Iterator[str]:
    """Yield what a team contains, line by line, with a mark before each line of a text."""
    for each in contents:
        line, _, text = each.partition("\n")
        yield line
        if text:
            yield common.quoted(text)


def _accept(session: Session, *command: str) -> str:
    return f"crewboard {shlex.join(['--root', str(session.root), *command])}"


def _contents(directory: TeamDirectory) -> list[str]:
    """Return what a foreign team contains that would act for its user.

    A database is not asked: anyone may have named it.
    """
    if directory.address is not None:
        return [f"team {directory.path.name} in {directory.path}, with its records in {directory.address}"]
    config = roster.load(directory)
    lines = [f"team {directory.known_as(config.name)} in {directory.path}, plans approved by {config.plan_approver}"]
    lines += [line for each in _powers(directory) for line in each.lines]
    pending = sum(request.status == "pending" for request in requests.load_all(directory))
    lines.append(f"budget {config.budget or 'none'}, {pending} pending requests")
    for name in ("prices.toml", "models.toml"):
        if (directory.path.parent / name).exists():
            lines.append(f"{name}: prices of its own, which budgets are reckoned with")
    return lines


class _Said(NamedTuple):
    """Lines about a part of a team. `is_power` is True if the part acts for the user beyond what any new team does."""

    lines: list[str]
    is_power: bool = True


_NO_POWER = frozenset({
    "schema", "name", "description", "created_at", "rev", "plan_approver", "members", "rules", "budget", "max_agents",
    "max_working", "min_free_memory", "on_outage", "outage_hours", "result_needs", "approval_hours", "worktree",
    "collisions", "offline", "removed", "server",
})  # fmt: skip
"""Settings that only limit or describe, and settings that are listed elsewhere."""

_LIMITS = frozenset({
    "once", "plan", "strict_plan", "ask", "budget", "max_turns", "max_memory", "effort", "thinking", "window",
    "max_reply", "task",
})  # fmt: skip
"""Options of a hire that give an agent no rights."""


def _powers(directory: TeamDirectory) -> Iterator[_Said]:
    """Yield the parts of a team made elsewhere that would act: settings, rules, agents, checks, approvals."""
    config = roster.load(directory)
    if config.plan_approver != OPERATOR:
        yield _Said([f"plans are approved by {config.plan_approver}"])
    usual = Config(name=config.name).as_dict()
    for name, value in config.as_dict().items():
        if name not in _NO_POWER and value != usual.get(name):
            yield _Said([f"setting {name}: {json.dumps(value)}"])
    if config.server is not None:
        yield _Said([f"server {config.server}: conversations of its agents go there"])
    yield from (_Said([f"standing rule: {safe_line(describe_rule(rule))}"]) for rule in config.rules)
    asked = requests.load_all(directory)
    for name in stop.all_agents(Team(directory)):
        yield _describe_agent(directory.agent(name), [each for each in asked if each.from_ == name])
    for task in tasks.load_all(directory):
        lines = []
        if task.status in ("pending", "in_progress"):
            what = f"task {task.id}, for {task.owner or 'any agent'}: {task.subject}"
            lines.append(f"{what}\n{task.description}" if task.description else what)
        if task.check:
            lines.append(f"check of task {task.id}, which is run: {json.dumps(task.check)}")
        if lines:
            yield _Said(lines)
    merges = directory.acceptances.load()
    if merges is not None and merges.move is not None:
        move = merges.move
        yield _Said([f"a merge that is completed at the next one: {move.ref} goes from {move.old} to {move.new}"])
    pushed = directory.workspace.load()
    if pushed is not None and pushed.url:
        yield _Said([f"files of agents on hosts come from {pushed.url}"])


def _describe_agent(agent: AgentDirectory, asked: list[Request]) -> _Said:
    """Return what an agent may do, what it is told, and which of its work is approved."""
    try:
        spec = agent.spec.load()
        kind = agent_types.known_type(spec.type, spec.definition) if spec else None
    except BadDataError as error:
        return _Said([f"agent {agent.name}: {error}"])
    read = agent.cursor.load() or Cursor()
    mail = [
        f"    mail that it has not read, from {letter.from_}:\n{letter.content}"
        for letter in mailbox.read(agent.team, agent.name, read.offset).messages
    ]
    if spec is None:
        return _Said([f"agent {agent.name}: no spec, no options", *mail], is_power=bool(mail))
    usual = HireOptions().as_dict()
    given = {key: value for key, value in spec.flags.as_dict().items() if usual.get(key) != value}
    options = ", ".join(f"{key}={value}" for key, value in given.items()) or "no options"
    lines = [f"agent {agent.name}: {spec.type}, {options}"]
    if spec.definition is not None and kind is not None:
        lines.append(f"    {spec.type} is a type of its own: {agent_types.describe_powers(kind)}\n{kind.prompt}")
        for server in mcp_servers.of_type(kind).servers.values():
            lines += [
                f"    {each}"
                for each in (f"server {server.name}: {server.shown}", *server.settings(reveals=is_revealing()))
            ]
    if spec.role:
        lines.append(f"    role:\n{spec.role}")
    if spec.worktree is not None:
        # All that the record of a checkout says; its texts are quoted, so that none looks like words of ours.
        checkout = spec.worktree
        said = [f"branch {json.dumps(checkout.branch)}", f"begun at commit {json.dumps(checkout.base)}"]
        said += [f"works in its folder {json.dumps(checkout.folder)}"] if checkout.folder else []
        said += [f"borrows the objects in {json.dumps(checkout.objects)}"] if checkout.objects else []
        said += ["carried from host to host"] if checkout.carried else []
        about = ", ".join(said)
        lines.append(f"    its checkout: {about}")
    lines.append(f"    its prompt:\n{spec.prompt}")
    lines += mail
    approved = _approved(agent, kind, asked)
    may_act = kind is None or kind.writes or kind.executes
    has_more = spec.definition is not None or spec.worktree is not None or given.keys() - _LIMITS
    # What an agent is told by mail it does, also if it only reads, and the mail may be in the user's name.
    return _Said([*lines, *approved], bool(may_act or has_more or approved or mail))


def _approved(agent: AgentDirectory, kind: AgentType | None, asked: list[Request]) -> list[str]:
    """Return what is approved of an agent's present assignment: its plan, with terms, and calls; empty if nothing."""
    since, plan, terms = 0.0, "", ""
    for event, _ in journal.read(agent.journal):
        if isinstance(event, Answer) and not event.held:
            since, plan, terms = event.ts, "", ""
        elif isinstance(event, Gate):
            plan = (event.request_id or "a plan") if event.open else ""
            if event.terms is not None:
                terms = agent_types.describe_terms(event.terms.given, kind)
    lines = [f"    {plan} is approved"] if plan else []
    lines += [f"    terms of an approval: {terms}"] if terms else []
    for request in asked:
        if request.status == "approved" and (request.decided_at or 0) > since:
            answer = {"payload": request.payload, "edited": request.edited}
            given = request.terms.as_dict() if request.terms is not None else None
            lines.append(f"    {request.id} ({request.type}) is approved: {json.dumps({**answer, 'terms': given})}")
    return lines


@team.command()
@click.argument("name", shell_complete=common.complete_team)
@click.option("--now", is_flag=True, help="Do not ask: end all workers and everything that they started.")
@click.option("--purge", is_flag=True, help="Delete the team's files as well.")
@click.option("--discard", is_flag=True, help="With --purge, also throw away work that is not merged.")
@as_json
def delete(session: Session, name: str, now: bool, purge: bool, discard: bool) -> None:
    """End all workers of the team NAME.

    All are asked at once; those still running after 10 s are ended with everything that they started. The files
    stay unless you use --purge. That is refused, with a list, while agents have work that is not merged.
    """
    if discard and not purge:
        raise UsageError("--discard goes with --purge: without it, the work stays")
    directory = find_team(session.root, check_team(name))
    if directory is None:
        known = ", ".join(each.path.name for each in team_directories(session.root)) or "none"
        raise UsageError(f"there is no team {name!r} in {session.root} (teams: {known})")
    directory.require_adopted()
    team = Team(directory, tell=note)
    if purge:
        stop.require_purgeable(team, discard=discard)
    alive = _describe(directory)["alive"]
    if alive:
        note(f"ends {counted(alive, 'worker')} of the team {name}")
    names = stop.all_agents(team) if purge else []
    for lost in stop.unmerged_work(team) if discard else ():
        note(f"{safe_line(lost)}, which is thrown away")
    stop.delete(team, now=now, purge=purge, discard=discard)
    common.note_left_branches(team, names)
    says = f"the workers of {name} have ended; its files stay in {directory.path} (--purge deletes them)"
    if purge:
        says = f"the team {name} and its files are gone"
    session.tell({"name": name, "ended": alive, "purged": purge}, says)


class _Folder(click.Path):
    """A folder; an empty name, such as that of a variable which is not set, is none."""

    # click defines this signature.
    def convert(
        self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> str | bytes | os.PathLike[str]:
        # `Path` would take it for the current directory.
        return super().convert(value, param, ctx) if value else self.fail("the name is empty", param, ctx)


_FOLDER = _Folder(file_okay=False, path_type=Path)


@click.command()
@click.argument("folder", metavar="DIR", type=_FOLDER)
@as_json
def export(session: Session, folder: Path) -> None:
    """Write all that is stored of the team into the new folder DIR.

    The files are the same, byte by byte, whether the team is kept in files or in PostgreSQL. They contain the mail and
    the conversations of the agents, but not the work in checkouts on this machine: stderr names agents whose work is
    not merged.
    """
    count = transfer.export(session.team, folder)
    # A foreign team's checkouts are not read.
    for left in stop.unmerged_work(session.team, here_alone=True) if not session.team.directory.is_foreign() else ():
        note(f"{safe_line(left)}, which is not in {folder}")
    session.tell({"folder": str(folder), "files": count}, f"exported {counted(count, 'file')} to {folder}")


@click.command("import")
@click.argument("folder", metavar="DIR", type=_FOLDER)
@common.sha256
@as_json
def import_(session: Session, folder: Path, sha256: str | None, reveal: bool) -> None:
    """Replace all that is stored of a new team by what `export` wrote into DIR.

    The team must have no agents. Make it with `team create`, and name it with --team: it keeps that name. Runs that
    were under way end there. If something in DIR would act for you, such as agents that write or run commands, mail
    that waits, open tasks, rules, checks and approvals, it is shown first: a terminal asks, a script needs the
    --sha256 of that.
    """
    with transfer.taken_in(session.team, folder) as exported:
        if sha256 is not None or any(each.is_power for each in _powers(exported)):

            def lines() -> Iterator[str]:
                return _lines(line for each in _powers(exported) for line in each.lines)

            seen = common.Shown(str(folder), transfer.sha256(exported), _LOOK, lines, is_always=True)
            accept = _accept(session, "--team", session.team.directory.path.name, "import", str(folder))
            common.require_yes(sha256, seen, accept, reveal=reveal, asks=not session.as_json)
        count = transfer.import_(session.team, exported)
    session.tell({"folder": str(folder), "files": count}, f"imported {counted(count, 'file')} from {folder}")
