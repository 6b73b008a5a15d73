"""The commands `status` and `cost`: a team on one page, and what it used."""

from typing import Any

import click

from crewboard import ExitCode, Need, Team, TeamReader, TeamView, env
from crewboard.commands.context import CommandLine
from crewboard.readmodel.needs import waiting_behind
from crewboard.readmodel.team import describe_runner, describe_storage
from crewboard.readmodel.usage import Bill, bill_agent, bill_team, hit_rate
from crewboard_tui.cli.common import Session, age, as_json, columns, cut, note, revive, say, say_json, table
from crewboard_tui.cli.hosts import describe as describe_hosts
from crewboard_tui.render.formats import (
    TOKEN_KINDS,
    format_bill,
    format_count,
    format_percent,
    format_places,
    format_tokens,
    format_used,
    why_no_money,
)
from crewboard_tui.render.lines import clip_middle


@click.command()
@as_json
def status(session: Session) -> None:
    """Show the team: what needs you, its agents, requests and tasks."""
    from crewboard.readmodel import as_json as readmodel_as_json

    team = session.team
    directory = team.directory
    revive(directory)
    # A merge or undo that was killed holds the lock of the user's index. It is of this machine's clone, also on a team
    # in a database.
    merges = directory.acceptances_here.load_or_none()
    if merges is not None and merges.move is not None and directory.is_own():
        # Imported here, because that is rare, and loads git and worktrees.
        from crewboard_tui.cli.changes import recover

        recover(team)
    # Only JSON tells CPU and memory.
    view = TeamReader(directory).read(measured=None if session.as_json else 0)
    if session.as_json:
        with directory.store.glance():
            found = readmodel_as_json.status(view)
        say_json(found | {"model_backend": _backend(view, team)})
    else:
        say(*describe(view, team))
    _require_whole(view)


def _require_whole(view: TeamView) -> None:
    """Exit with the code for damaged data, and say why, if a part of the team could not be read."""
    if view.problem:
        note(f"crewboard: {view.problem}")
        raise click.exceptions.Exit(int(ExitCode.BAD_DATA))


@click.command()
@as_json
def cost(session: Session) -> None:
    """Show what each agent and the team used: money, tokens by kind, budgets.

    Agents that were removed count for the team. HIT is the part of the prompts that the prompt cache had.
    """
    view = TeamReader(session.team.directory).read(measured=0)
    bills = [*((agent.name, bill_agent(agent)) for agent in view.agents), ("TEAM", bill_team(view))]
    limits = {agent.name: agent.spec.flags.budget for agent in view.agents if agent.spec is not None}
    agents = [{"name": name, **_bill_as_json(bill, limits.get(name))} for name, bill in bills[:-1]]
    rows = []
    for name, bill in bills:
        kinds = (format_count(getattr(bill.tokens, kind)) for kind, _ in TOKEN_KINDS)
        limit = f"{format_percent(bill.share)} of {bill.budget}" if bill.budget is not None else "—"
        hits = format_percent(hit_rate(bill.tokens))
        rows.append((name, format_bill(bill), format_tokens(bill.tokens), *kinds, hits, limit))
    words = (word.upper() for _, word in TOKEN_KINDS)
    lines = table(("AGENT", "COST", "TOKENS", *words, "HIT", "BUDGET"), rows)
    session.tell({"agents": agents, "team": _bill_as_json(bills[-1][1], view.budget)}, *lines)
    _require_whole(view)
    if bills[-1][1].partial and not session.as_json:
        note(why_no_money(view))


def _bill_as_json(bill: Bill, budget: str | None) -> dict[str, Any]:
    return {
        "tokens": bill.tokens.as_dict(),
        "cost_usd": bill.usd,
        "unpriced": bill.partial,
        "hit_rate": hit_rate(bill.tokens),
        "budget": budget,
        "share": bill.share,
    }


def _backend(view: TeamView, team: Team) -> str:
    """Return which model agents that are started now would use: `offline` or `api`."""
    # Before its first agent, a team has used neither: what starts that one, decides.
    is_new = not (view.agents or view.hosts)
    return "offline" if is_new and (CommandLine.of(team).offline or env.is_offline()) else view.model_backend


def describe(view: TeamView, team: Team) -> list[str]:
    """Return the team as lines that fit the terminal; only commands are never cut."""
    typed = CommandLine.of(team)
    requests = [
        (request.id, request.type, f"{request.from_} → {request.to}", age(view.now - request.created_at))
        for request in view.requests
    ]
    tasks = []
    if view.tasks:
        from crewboard_tui.cli.tasks import describe as describe_tasks

        tasks = describe_tasks(team, list(view.tasks), "  ")
    on_api = "Messages API" if view.agents or view.hosts else "Messages API, unless --offline"
    model = "offline model (no language model)" if _backend(view, team) == "offline" else on_api
    runs = describe_runner(view)
    named = f"team {view.name} · {used(view)}"
    head = [
        *(cut(each, columns()) for each in ([named, runs] if view.attached else [f"{named} · {runs} · {model}"])),
        f"root {view.root}",
    ]
    offline = [host.name for host in view.hosts if host.is_up and host.record.offline]
    if offline and view.model_backend != "offline":
        head.append(cut(f"offline model only on {', '.join(offline)}", columns()))
    if view.description:
        head.append(cut(view.description, columns()))
    if view.damaged:
        head.append(cut(f"damaged: {format_places(view.damage)}", columns()))
    if storage := describe_storage(view):
        head.append(storage)
    if not view.agents:
        hire = typed('spawn NAME --type explore --prompt "…"')
        head += ["", f"no agents yet; {hire}"]
    return [
        *head,
        *_section("needs you", [line for need in view.needs for line in _need(need, view, typed)]),
        *_section("hosts", describe_hosts(view, "  ") if view.hosts else []),
        *_section("agents", _agents(view)),
        *_section("requests", table(("ID", "TYPE", "FROM → TO", "FOR"), requests, indent="  ") if requests else []),
        *_section("tasks", tasks),
    ]


def used(view: TeamView) -> str:
    """Return what the team has used, including removed agents, and how much of its budget that is."""
    bill = bill_team(view)
    if not (bill.tokens.total or bill.tokens.untold):
        return "nothing used yet"
    return f"{format_used(bill)} used" + (f" ({format_percent(bill.share)})" if bill.share is not None else "")


def _section(title: str, lines: list[str]) -> list[str]:
    return ["", title, *lines] if lines else []


def _need(need: Need, view: TeamView, typed: CommandLine) -> list[str]:
    from crewboard_tui.cli.answers import answers, in_a_row

    waiting = waiting_behind(view, need).describe()
    asked = view.request(need.request_id) if need.request_id else None
    facts = (need.agent, need.kind, age(view.now - need.since), f"holds up {waiting}" if waiting else "", need.summary)
    return [
        "  " + cut(" · ".join(fact for fact in facts if fact), columns() - 2),
        f"      → {in_a_row(how for _, how in answers(asked or need, typed))}",
    ]


def _agents(view: TeamView) -> list[str]:
    if not view.agents:
        return []
    titles = ["NAME", "TYPE", "STATE", "FOR", *(["HOST"] if view.told_apart else []), "PID", "TASK", "MAIL", "DOING"]
    rows = []
    for agent in view.urgent_first:
        doing = agent.doing
        if agent.shown == "done" and agent.is_dead:
            doing += " (acknowledged)"
        if agent.alive and agent.status.last_error and agent.state == "idle":
            doing = f"last error: {agent.status.last_error}"
        elif agent.left:
            doing = agent.left
        elif agent.alive and agent.status.setup_error:
            doing = f"{agent.status.setup_error} · {doing}"
        row = [
            # A quarter of the line, so that what the agent does has room.
            clip_middle(f"{agent.name} {agent.title}".rstrip(), columns() // 4),
            agent.type,
            agent.state,
            age(view.now - agent.since) if agent.since else "–",
            *([agent.status.host or "–"] if view.told_apart else []),
            str(agent.pid) if agent.alive and agent.pid else "–",
            f"#{agent.task}" if agent.task else "–",
            str(agent.unread) if agent.unread else "–",
            agent.with_pause(doing),
        ]
        rows.append(row)
    head, *lines = table(titles, rows, indent="  ")
    told = [head]
    for line, agent in zip(lines, view.urgent_first, strict=True):
        told.append(line)
        # Those of an approval under which it works.
        if agent.status.terms is not None and agent.spec is not None:
            from crewboard import agent_types

            kind = agent_types.known_type(agent.spec.type, agent.spec.definition)
            told.append(
                "      " + cut(f"terms: {agent_types.describe_terms(agent.status.terms.given, kind)}", columns() - 6)
            )
    return told
