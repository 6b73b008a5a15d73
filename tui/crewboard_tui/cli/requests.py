"""The commands `requests`, `approve`, `reject` and `answer`, and the command that answers each need."""

import time
from collections.abc import Iterable, Iterator

import click

from crewboard.commands import answers as decisions
from crewboard.commands import answers as rules
from crewboard.commands.context import CommandLine
from crewboard.errors import UsageError
from crewboard.readmodel.needs import NEED_OF_REQUEST
from crewboard.readmodel.team import Need, NeedKind
from crewboard.records import Request
from crewboard_tui.cli import options
from crewboard_tui.cli.options import Session
from crewboard_tui.cli.output import age, as_json, clock, indented, note, say, say_json
from crewboard_tui.render.sanitize import safe_line

_BODY = {"plan_approval": "plan", "question": "question", "shutdown": "reason"}
_BESIDE = ("options", "files", "commands", "risk")
"""Fields of a payload that are printed in addition to its body."""

_PLAIN = frozenset({"command", "path"})
_IN_DIFF = frozenset({"content", "old_text", "new_text"})


@click.command()
@click.option("--all", "everything", is_flag=True, help="Include requests that were answered or closed.")
@as_json
@click.pass_obj
def requests(session: Session, everything: bool, as_json: bool) -> None:
    """List the requests that wait for an answer, in full."""
    from crewboard.protocol import requests as store

    team = session.team
    found = store.load_all(team.directory) if everything else store.pending(team.directory)
    if as_json:
        say_json([request.model_dump() for request in found])
        return
    if not found:
        note("there are no requests" if everything else "no request waits for an answer")
    typed = CommandLine.of(team)
    for request in found:
        _show(request, typed)


def _show(request: Request, typed: CommandLine) -> None:
    closed = f" {clock(request.decided_at)} by {request.decided_by}" if request.decided_at else ""
    waiting = f" for {age(time.time() - request.created_at)}" if request.status == "pending" else ""
    say(f"{request.id} · {request.type} · {request.from_} → {request.to} · {request.status}{waiting}{closed}")
    say(indented(_call(request) if request.type == "permission" else _body(request)))
    for name in _BESIDE:
        if value := request.payload.get(name):
            say(indented(f"{name}: " + (", ".join(map(str, value)) if isinstance(value, list) else str(value))))
    if request.feedback:
        say(indented(f"answer: {request.feedback}"))
    if request.status == "pending" and (ways := [how for what, how in answers(request, typed) if what != READ]):
        say(f"    → {in_a_row(ways)}")
        if (scope := rules.scope_of(request)) is not None:
            say(
                f"    → {typed(f'approve {request.id} --rule')}   also allows {safe_line(rules.covers(request, scope))}"
            )


def _body(request: Request) -> str:
    return str(request.payload.get(_BODY[request.type], ""))


def _call(request: Request) -> str:
    """Return the call that a permission is asked for, as a diff or as the exact command."""
    payload = request.payload
    given = payload.get("input")
    call = dict(given) if isinstance(given, dict) else {"command": payload.get("summary", "")}
    diff = payload.get("diff")
    if diff:
        call = {name: value for name, value in call.items() if name not in _IN_DIFF}
    lines = [str(value) if name in _PLAIN else f"{name}: {value}" for name, value in call.items()]
    return "\n".join([f"tool: {payload.get('tool', '')}", *lines, *([str(diff)] if diff else [])])


@click.command()
@click.argument("ident", metavar="ID")
@click.option("--feedback", type=options.text, help="Comment that goes with the approval.")
@click.option("--sha256", help="SHA-256 of what you reviewed; refused if the request has changed since.")
@click.option("--edited-file", metavar="F", help="Approve this edited plan instead; `-` is standard input.")
@click.option("--rule", is_flag=True, help="Also approve later calls that the rule covers; see `crewboard rules`.")
@as_json
@click.pass_obj
def approve(
    session: Session,
    ident: str,
    feedback: str | None,
    sha256: str | None,
    edited_file: str | None,
    rule: bool,
    as_json: bool,
) -> None:
    """Approve the plan or permission with this ID.

    For a pending request any unique prefix of the id is enough. An answer that has no effect (request closed, unknown
    or of another type) exits 65 and says why.

    Example: crewboard approve plan-1f3a --feedback "keep it small"
    """
    edited = options.read_text(edited_file) if edited_file is not None else None
    if edited is not None and not edited.strip():
        raise UsageError(f"the plan in {edited_file} is empty")
    if rule:
        decided, standing = rules.approve_with_rule(session.team, ident, sha256=sha256)
        note(safe_line(f"{standing.id}: {standing.agent} may use {standing.tool} for {standing.scope} without asking"))
        _tell(decided, as_json)
        return
    _tell(decisions.approve(session.team, ident, feedback=feedback, sha256=sha256, edited=edited), as_json)


@click.command()
@click.argument("ident", metavar="ID")
@click.option("--feedback", type=options.text, required=True, help="Reason; the agent revises its plan accordingly.")
@click.option("--sha256", help="SHA-256 of what you reviewed; refused if the request has changed since.")
@as_json
@click.pass_obj
def reject(session: Session, ident: str, feedback: str, sha256: str | None, as_json: bool) -> None:
    """Reject the plan or permission with this ID, and say why."""
    _tell(decisions.reject(session.team, ident, feedback, sha256=sha256), as_json)


@click.command()
@click.argument("ident", metavar="ID")
@click.argument("text", type=options.text)
@as_json
@click.pass_obj
def answer(session: Session, ident: str, text: str, as_json: bool) -> None:
    """Answer the question with this ID.

    Example: crewboard answer question-77c0 "keep the 1.x pages"
    """
    _tell(decisions.answer(session.team, ident, text), as_json)


def _tell(request: Request, as_json: bool) -> None:
    if as_json:
        say_json(request.model_dump())
    else:
        say(f"{request.type} {request.id} of {request.from_}: {request.status}")


READ = "read it"

_ANSWERS: dict[NeedKind, tuple[tuple[str, str], ...]] = {
    "death": (("resume", "resume {agent}"), ("acknowledge", "ack {agent}")),
    "plan": ((READ, "requests"), ("approve", "approve {id}"), ("refuse", "reject {id} --feedback TEXT")),
    "permission": (("approve", "approve {id}"), ("refuse", "reject {id} --feedback TEXT")),
    "question": (("answer", "answer {id} TEXT"),),
    "stuck": (("see why", "journal {agent}"), ("stop it", "stop {agent} --now")),
    "looping": (("tell it", "send {agent} TEXT"), ("stop it", "stop {agent}")),
    "failed_start": (("start it", "resume {agent}"), ("take it off the roster", "remove {agent}")),
}


def answers(need: Need | Request, typed: CommandLine) -> Iterator[tuple[str, str]]:
    """Yield each possible answer to a need or request, with the command that gives it."""
    if isinstance(need, Need):
        kind, agent, ident = need.kind, need.agent, need.request_id
    elif need.type in NEED_OF_REQUEST:
        kind, agent, ident = NEED_OF_REQUEST[need.type], need.from_, need.id
    # A shutdown request is answered by the agent that it asks.
    else:
        return
    for what, how in _ANSWERS[kind]:
        yield what, typed(how.format(agent=agent, id=ident))


def in_a_row(commands: Iterable[str]) -> str:
    """Join alternative commands into one line."""
    return "   or   ".join(commands)
