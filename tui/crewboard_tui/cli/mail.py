"""The commands for messages (`send`, `broadcast`, `inbox`) and requests (`requests`, `plan`, `approve`, …).

Looking into a mailbox marks nothing as read.
"""

import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from difflib import SequenceMatcher
from functools import partial
from pathlib import Path
from typing import Any

import click
from msgspec.structs import replace

from crewboard import BadDataError, Message, Request, Team, UsageError, agent_types, redaction
from crewboard.commands import answers as commands_answers
from crewboard.commands import messages as commands_messages
from crewboard.commands.context import CommandLine, command_for
from crewboard.executed_files import RUNS, diff_as_run
from crewboard.protocol import addressing, approvals, collisions, reviews
from crewboard.protocol import requests as protocol_requests
from crewboard.readmodel.mail import MailReader, MessageView
from crewboard.records.agents import Terms
from crewboard.records.base import JsonValue
from crewboard.records.requests import Note, describe_notes, is_revealed, lines_of, notes_in, parse_note
from crewboard.store import roster
from crewboard.untrusted import as_run
from crewboard_tui.cli import common
from crewboard_tui.cli.answers import READ, answers, digest, hides_key, reveals
from crewboard_tui.cli.common import (
    Session,
    age,
    as_json,
    clock,
    indented,
    note,
    note_damage,
    quoted,
    revive,
    say,
    say_json,
)
from crewboard_tui.render.sanitize import is_revealing, revealing, safe_line, safe_text


@click.command()
@common.agent_name
@click.argument("text", type=common.text, required=False)
@click.option(
    "--attach",
    type=click.Path(path_type=Path),
    multiple=True,
    metavar="FILE",
    help="Attach an image (PNG, JPEG, GIF, WebP) or a PDF; may be repeated.",
)
@as_json
@click.pass_obj
def send(session: Session, name: str, text: str | None, attach: tuple[Path, ...], as_json: bool) -> None:
    """Send TEXT to the agent NAME, as the operator.

    An idle agent starts work on it. A working agent reads it before its next model call, a stopped one when it is
    resumed.

    Example: crewboard send fixer "keep the old parameter for one release"

    Example: crewboard send fixer "the button is cut off" --attach shot.png
    """
    if text is None and not attach:
        raise click.UsageError("Missing argument 'TEXT'; only with --attach it can be left out.")
    team, text = session.team, text or ""
    addressing.require_recipient(name, team.config.names)
    if text.strip() or attach:
        team.ensure()
    message = commands_messages.send(team, name, text, attach)
    _report_sent(team, [message], as_json)


@click.command()
@click.argument("text", type=common.text)
@as_json
@click.pass_obj
def broadcast(session: Session, text: str, as_json: bool) -> None:
    """Send TEXT to every agent, one copy each.

    Example: crewboard broadcast "freeze main in 20 minutes"
    """
    team = session.team
    _report_sent(team, commands_messages.broadcast(team, text), as_json, many=True)


def _report_sent(team: Team, messages: list[Message], as_json: bool, *, many: bool = False) -> None:
    dumped = [message.as_dict() for message in messages]
    if as_json:
        say_json(dumped if many else dumped[0])
    else:
        say("sent to " + ", ".join(message.to for message in messages))
    revive(team.directory)
    with team.directory.store.glance():
        asleep = [message.to for message in messages if not commands_messages.is_listening(team, message.to)]
        typed = CommandLine.of(team)
    for name in asleep:
        if typed.attached:
            note(f"{name} is not running: the letter is in its inbox, and only Claude Code can start it again")
        else:
            note(f"{name} is not running: the message is kept; `{typed(f'resume {name}')}` resumes it")


_PAGE = 200
"""Messages that `inbox` prints unless it is told how many."""


@click.command()
@common.agent_name
@click.option("--limit", type=click.IntRange(min=1), help=f"Show the newest N messages; default {_PAGE}, --json: all.")
@click.option("--before", metavar="ID", help="Show those that are older than the message ID.")
@click.option("--all", "everything", is_flag=True, help="Show all.")
@as_json
@click.pass_obj
def inbox(session: Session, name: str, limit: int | None, before: str | None, everything: bool, as_json: bool) -> None:
    """Show the mailbox of NAME; nothing is marked as read.

    NAME is an agent, `operator` (you) or `lead`: if that mailbox is empty, that of the agent that is the lead. Each
    message has three times: sent, picked up by its reader, entered a turn. Of a long mailbox the newest messages are
    shown, and how to see older ones.
    """
    if everything and limit is not None:
        raise UsageError("use --all or --limit, not both")
    team = session.team
    lead = addressing.recipient(name, team.config)
    if lead != name and not team.directory.inbox(name).size():
        # Mail to `lead` goes to this agent, and there is none from before it was the lead.
        note(f"{name} is {lead}")
        name = lead
    most = None if everything or (as_json and limit is None) else limit or _PAGE
    letters = _page(team, name, most, before)
    asked = {request.id: request for request in protocol_requests.load_all(team.directory)}

    def void(message: Message) -> str | None:
        return approvals.ineffective_reason(message, asked.get(str(message.metadata.get("request_id"))))

    if as_json:
        say_json([_as_json(letter, void(letter.message)) for letter in letters])
        return
    if not letters:
        note(f"the mailbox of {name} is empty")
    person_reads = addressing.is_operator_mailbox(name, team.config.names)

    def show(letter: MessageView) -> None:
        message = letter.message
        times = f"{'from another program · ' if message.is_foreign else ''}sent {clock(message.ts)}"
        if not person_reads:
            times += f" · picked up {clock(letter.picked_up_at)} · in turn {clock(letter.entered_turn_at)}"
        say(f"{message.from_} → {message.to} · {message.type} · {times}")
        say(indented(message.content))
        if (why := void(message)) is not None:
            say(indented(f"changes nothing: {why}"))

    for letter in letters:
        show(letter)


def _page(team: Team, name: str, most: int | None, before: str | None) -> Sequence[MessageView]:
    """Return the newest messages of a mailbox, at most `most`, and say on stderr if there are older ones."""
    # The end of the files is enough for the newest page, unless the pickup of a message is recorded further up.
    reader = MailReader(team.directory, name, tail=most is not None and before is None)
    letters = reader.read()
    if reader.tail and not reader.is_enough_for(letters[-(most or 0) :], most or 0):
        reader = MailReader(team.directory, name, tail=False)
        letters = reader.read()
    note_damage(reader.damaged, "mailbox")
    if before is not None:
        places = [place for place, letter in enumerate(letters) if letter.message.id == before]
        if not places:
            raise UsageError(f"there is no message {before!r} in the mailbox of {name}")
        letters = letters[: places[0]]
    shown = letters if most is None else letters[-most:]
    if shown and (len(shown) < len(letters) or reader.has_older):
        older = command_for(team, f"inbox {name} --before {shlex.quote(shown[0].message.id)}")
        note(f"the newest {len(shown)} messages; `{older}` shows older ones, --all all")
    return shown


# The module of this type is imported only when it is needed.
def _as_json(letter: Any, void: str | None) -> dict[str, Any]:  # noqa: ANN401
    return {
        **letter.message.as_dict(),
        "picked_up_at": letter.picked_up_at,
        "entered_turn_at": letter.entered_turn_at,
        "changes_nothing": void,
    }


_BODY = {"plan_approval": "plan", "question": "question", "shutdown": "reason", "task_review": "summary"}
_BESIDE = ("options", "files", "commands", "risk", "file")
"""Fields of a payload that are printed in addition to its body."""

_RUN = frozenset({"files", "commands", "file"})
"""Parts that are run, or name files."""

_IN_DIFF = frozenset({"content", "old_text", "new_text", "replace_all", "edits", "diff"})
_LABEL = re.compile(r"\w{1,40}", re.ASCII)


@click.command()
@click.option("--all", "everything", is_flag=True, help="Include requests that were answered or closed.")
@click.option("--reveal", is_flag=True, help="Show the keys in what is asked, too; not in JSON.")
@as_json
@click.pass_obj
def requests(session: Session, everything: bool, reveal: bool, as_json: bool) -> None:
    """List the requests that wait for an answer, in full.

    Each line of an agent's text begins with `│`, or with `┊` where a line is wider than the terminal. All other lines
    are crewboard's; commands stand alone on theirs.
    """
    team = session.team
    found = protocol_requests.load_all(team.directory) if everything else protocol_requests.pending(team.directory)
    if as_json:
        say_json([request.as_dict() for request in found])
        return
    if not found:
        note("there are no requests" if everything else "no request waits for an answer")
    typed = CommandLine.of(team)
    for number, request in enumerate(found):
        if number:
            say("")
        with revealing(wanted=reveal):
            _show(request, typed, session.team.now())
    if not reveal:
        _note_hidden(found, typed(f"requests{' --all' if everything else ''} --reveal"))


@click.command()
@common.request_id
@click.option("--reveal", is_flag=True, help="Show the keys in it, too; not in JSON.")
@as_json
@click.pass_obj
def plan(session: Session, ident: str, reveal: bool, as_json: bool) -> None:
    """Show the plan with this ID, line by line, with the notes on it.

    Below their lines stand the notes, with the agent's answers. `+` is before a line that the version before did not
    have, `-` before one that is gone.

    Example: crewboard plan plan-1f3a
    """
    team = session.team
    request = protocol_requests.load(team.directory, commands_answers.find(team, ident))
    if request is None or request.type != "plan_approval":
        raise UsageError(f"request {ident} is no plan; `{command_for(team, 'requests')}` shows it")
    versions = list(_versions(team, request))
    before = versions[1] if len(versions) > 1 else None
    if as_json:
        keys = ("line", "change", "text")
        say_json({
            "version": len(versions),
            "request": request.as_dict(),
            "lines": [dict(zip(keys, each, strict=True)) for each in _marked_lines(request, before, redaction.redact)],
            "notes": [{**each.as_dict(), "state": each.state} for each in _all_notes(team, request)],
        })  # fmt: skip
        return
    with revealing(wanted=reveal):
        _show(
            request,
            CommandLine.of(team),
            team.now(),
            partial(_say_lines, request, before, len(versions), _all_notes(team, request)),
        )
    if not reveal:
        _note_hidden([request], command_for(team, f"plan {request.id} --reveal"))


def _versions(team: Team, request: Request) -> Iterator[Request]:
    """Yield the versions of a plan, newest first."""
    seen: set[str] = set()
    found: Request | None = request
    while found is not None and found.id not in seen:
        seen.add(found.id)
        yield found
        found = protocol_requests.load(team.directory, found.supersedes) if found.supersedes else None


def _all_notes(team: Team, request: Request) -> list[Note]:
    """Return the notes on a plan: those that it came with and those of its answer, as later versions answer them."""
    after = {each.supersedes: each for each in protocol_requests.load_all(team.directory) if each.supersedes}
    now, later = dict[str, Note](), after.pop(request.id, None)
    while later is not None:
        now |= {each.id: each for each in notes_in(later.payload)}
        later = after.pop(later.id, None)
    return [
        replace(each, answer=now[each.id].answer, settled=now[each.id].settled) if each.id in now else each
        for each in (*notes_in(request.payload), *request.notes)
    ]


def _marked_lines(
    request: Request, before: Request | None, safe: Callable[[str], str]
) -> Iterator[tuple[int | None, str, str]]:
    """Yield the lines of a plan, made `safe` as a whole: the number, what changed since the one `before`, the text."""
    old, new = (lines_of(each.plan) for each in (before or request, request))
    shown_old, shown_new = (safe(each.plan).split("\n") for each in (before or request, request))
    for what, start, stop, begin, end in SequenceMatcher(None, old, new).get_opcodes():
        for at in range(start, stop) if what != "equal" else ():
            yield None, "-", shown_old[at]
        for at in range(begin, end):
            yield at + 1, "" if what == "equal" else "+", shown_new[at]


def _say_lines(request: Request, before: Request | None, version: int, notes: list[Note]) -> None:
    """Print the lines of a plan with the notes below them, and at the end those whose lines are gone."""
    since = f", changed since version {version - 1}" if before is not None else ""
    say(f"    version {version}{since}:")
    for number, change, text in _marked_lines(request, before, safe_text):
        say(quoted(f"{number or '':>4} {change or ' '} {text}"))
        for each in notes:
            if number is not None and each.end == number:
                _say_note(each)
    for each in notes:
        if not each.line:
            _say_note(each)


def _say_note(each: Note) -> None:
    say(f"    {each.id}, {each.place}, {each.state}:")
    quote = "" if each.line else "".join(f"> {line}\n" for line in each.quoted)
    say(quoted(f"{quote}{each.text}"))
    if each.answer:
        say(f"    answer to {each.id}:")
        say(quoted(each.answer))


def _note_hidden(found: list[Request], shows: str) -> None:
    """Report on stderr which requests are not shown as a whole, and the command that `shows` them so."""
    for request in found:
        if hides_key(request):
            note(f"{request.id}: what looks like a key is hidden; `{shows}` shows it")


def _runs(request: Request) -> Iterator[tuple[str, str]]:
    """Yield what of a request runs on the user's machine, with its label."""
    if runs := collisions.run_on_your_machine(request.payload):
        yield RUNS, as_run(_items(runs))


def _show(request: Request, typed: CommandLine, now: float, say_lines: Callable[[], None] | None = None) -> None:
    """Print a request. Each line of another's text is marked; commands have a line of their own, to be copied.

    `say_lines` prints the plan with its notes.
    """
    closed = f" {clock(request.decided_at)} by {request.decided_by}" if request.decided_at else ""
    waiting = f" for {age(now - request.created_at)}" if request.status == "pending" else ""
    say(f"{request.id} · {request.type} · {request.from_} → {request.to} · {request.status}{waiting}{closed}")
    parts = (*(_call if request.type == "permission" else _parts)(request), *_runs(request))
    if say_lines is not None:
        say_lines()
        parts = tuple(part for part in parts if part[0] not in ("", "notes"))
    for label, text in parts:
        if label:
            say(f"    {label}:")
        say(quoted(text))
    if said := request.said if say_lines is None else request.feedback:
        say("    answer:")
        say(quoted(said))
    if request.terms is not None:
        say(f"    {safe_line(f'terms: {agent_types.describe_terms(request.terms, None)}')}")
    if request.status == "pending":
        _say_answers(request, typed)


def _say_answers(request: Request, typed: CommandLine) -> None:
    """Print the commands that answer a request."""
    for what, how in answers(request, typed):
        if what != READ:
            say(how)
    if (scope := commands_answers.scope_of(request)) is not None:
        say("    with --rule, it also allows:")
        say(quoted(commands_answers.covers(request, scope)))
        if is_revealing() or not hides_key(request):
            say(typed(f"approve {request.id} --sha256 {digest(request)} --rule"))


def _parts(request: Request) -> Iterator[tuple[str, str]]:
    """Yield the texts of a request, each with its label."""
    payload = request.payload
    yield "", str(payload.get(_BODY[request.type], ""))
    if request.type == "task_review":
        yield "diff", diff_as_run(str(payload.get("diff", "")))
    for name in _BESIDE:
        if value := collisions.shown_files(payload) if name == "files" else payload.get(name):
            text = _items(value) if isinstance(value, list) else str(value)
            yield name, as_run(text) if name in _RUN else text
    if notes := describe_notes(notes_in(payload)):
        yield "notes", notes


def _items(values: Sequence[JsonValue]) -> str:
    return "\n".join("- " + str(each).replace("\n", "\n  ") for each in values)


def _call(request: Request) -> Iterator[tuple[str, str]]:
    """Yield what a call collides with, and the call itself, as a diff or as the exact command, each with its label."""
    payload = request.payload
    for name in ("collision", "why", "tool"):
        if value := payload.get(name):
            yield name, str(value)
    given = payload.get("input")
    call = given if isinstance(given, dict) else {"summary": payload.get("summary", "")}
    diff = payload.get("diff")
    for name, value in call.items():
        if not (diff and name in _IN_DIFF):
            said = as_run(str(value))
            yield (name, said) if _LABEL.fullmatch(name) else ("argument", f"{as_run(name)}: {said}")
    if diff:
        yield "diff", diff_as_run(str(diff))


def _listed(text: str) -> list[str]:
    return [each.strip() for each in text.split(",") if each.strip()]


def _numbers(text: str) -> list[int]:
    found = _listed(text)
    if not found or not all(each.isascii() and each.isdigit() and len(each) <= _MOST_DIGITS for each in found):
        raise UsageError(f"{text!r} is no list of steps: give their numbers, such as 5 or 5,6")
    return [int(each) for each in found]


_MOST_DIGITS = 4
"""Digits of the number of a step."""


_notes = click.option(
    "--note", "notes", type=common.text, multiple=True, metavar="LINE:TEXT",
    help="Note on a line of the plan, or on LINE-LINE; repeatable.",
)  # fmt: skip


@click.command()
@common.request_id
@click.option("--feedback", type=common.text, help="Comment that goes with the approval.")
@_notes
@click.option("--sha256", help="SHA-256 of what you reviewed, or its first 16 digits; refused if the request changed.")
@click.option("--edited-file", metavar="F", help="Approve this edited plan instead; `-` is standard input.")
@click.option("--rule", is_flag=True, help="Also approve later calls that the rule covers; see `crewboard rules`.")
@click.option(
    "--rule-for",
    type=click.Choice(["agent", "type", "all"]),
    help="Like --rule, for this agent only (as --rule alone), for all agents of its type, or for all agents.",
)
@click.option("--ask", is_flag=True, help="Ask you before each write and command, until the result.")
@click.option(
    "--tools", type=_listed, metavar="A,B", help="Of the tools of its type, leave it only these until the result."
)
@click.option("--network", is_flag=True, help="Give its commands the network until the result.")
@click.option("--budget", metavar="B", help="End the work when it used this: '$2' or 100k.")
@click.option(
    "--hold", type=_numbers, metavar="N,N", help="Approve all steps of the plan but these; the agent is told so."
)
@as_json
@click.pass_obj
def approve(
    session: Session,
    /,
    ident: str,
    feedback: str | None,
    notes: tuple[str, ...],
    sha256: str | None,
    edited_file: str | None,
    rule: bool,
    rule_for: commands_answers.RuleFor | None,
    as_json: bool,
    # The fields of `Terms` that are options.
    **given: Any,
) -> None:
    """Approve the plan or permission with this ID.

    Any unique prefix of the id is enough, and pending requests come first. An answer that has no effect (request
    closed, unknown or of another type) exits 65 and says why.

    If something in it is hidden, because it looks like a key, approve it with the command that
    `crewboard requests --reveal` prints. So does a script: JSON reveals no key, and the sha256 in it is refused.

    A plan can be approved with terms: --ask, --tools, --network, --budget and --hold. They hold until the result.

    Example: crewboard approve plan-1f3a --ask --budget '$2' --hold 5
    """
    terms = Terms(**{name: value for name, value in given.items() if value is not None})
    edited = common.read_text(edited_file) if edited_file is not None else None
    if edited is not None and not edited.strip():
        raise UsageError(f"the plan in {edited_file} is empty")
    written = [parse_note(each) for each in notes]
    sha256 = _of_what_was_read(session.team, ident, sha256, accepts=True)
    if rule or rule_for is not None:
        if notes:
            raise UsageError("notes are for a plan, and --rule is for a permission; use one of both")
        if not terms.is_empty:
            raise UsageError("terms are for a plan, and --rule is for a permission; use one of both")
        decided, standing = commands_answers.approve_with_rule(
            session.team, ident, sha256=sha256, rule_for=rule_for or "agent"
        )
        note(safe_line(f"{standing.id}: {commands_answers.describe_rule(standing)}"))
        _report_answer(decided, as_json)
        return
    decided = commands_answers.approve(
        session.team, ident, feedback=feedback, sha256=sha256, edited=edited, terms=terms, notes=written
    )
    common.note_budget(terms.budget)
    _note_approved(session.team, decided, edited=edited is not None)
    _report_answer(decided, as_json)


def _of_what_was_read(team: Team, ident: str, given: str | None, *, accepts: bool) -> str | None:
    """Return the SHA-256 for an answer: `given`, or that of the request if `given` says that all of it was revealed.

    Raises:
        BadDataError: The answer accepts it, something in it is hidden, and nothing says that it was revealed.
    """
    request = protocol_requests.load(team.directory, commands_answers.find(team, ident))
    if request is None:
        return given
    if given is not None and is_revealed(given, request.sha256):
        return request.sha256
    if accepts and request.status == "pending" and hides_key(request):
        raise BadDataError(
            f"what looks like a key is hidden in request {request.id}, so it was not read; "
            f"`{command_for(team, reveals(request))}` shows it and prints the command that approves it; nothing was "
            "changed"
        )
    return given


def _note_approved(team: Team, decided: Request, *, edited: bool) -> None:
    """Report on stderr what an approval means: plans that overlap, tools that are lacking, terms until the result."""
    if edited and roster.is_attached(team.directory):
        note(f"Claude Code takes plans from teammates alone: {decided.from_} reads your version and submits it again")
    for known in (*commands_answers.plan_overlaps(team, decided), *reviews.what_changed(team.directory, decided)):
        note(safe_line(known))
    if lacking := commands_answers.tools_lacking(team, decided):
        note(f"warning: {lacking}")
    if words := commands_answers.words_of_terms(team, decided):
        note(safe_line(f"until its result: {words}"))


@click.command()
@common.request_id
@click.option("--feedback", type=common.text, help="Reason; the agent revises its plan accordingly.")
@_notes
@click.option("--sha256", help="SHA-256 of what you reviewed, or its first 16 digits; refused if the request changed.")
@as_json
@click.pass_obj
def reject(
    session: Session, ident: str, feedback: str | None, notes: tuple[str, ...], sha256: str | None, as_json: bool
) -> None:
    """Reject the plan or permission with this ID, and say why.

    A plan is also sent back with notes on its lines, which `crewboard plan ID` numbers. The agent answers each note in
    its next version.

    Example: crewboard reject plan-1f3a --note '12:which tests?' --note '20-23:leave this out'
    """
    if feedback is None and not notes:
        raise UsageError("say why it is rejected, with --feedback or with --note")
    written = [parse_note(each) for each in notes]
    sha256 = _of_what_was_read(session.team, ident, sha256, accepts=False)
    decided = commands_answers.reject(session.team, ident, feedback or "", sha256=sha256, notes=written)
    _report_answer(decided, as_json)


@click.command()
@common.request_id
@click.argument("text", type=common.text)
@as_json
@click.pass_obj
def answer(session: Session, ident: str, text: str, as_json: bool) -> None:
    """Answer the question with this ID.

    Example: crewboard answer question-77c0 "keep the 1.x pages"
    """
    _report_answer(commands_answers.answer(session.team, ident, text), as_json)


def _report_answer(request: Request, as_json: bool) -> None:
    if as_json:
        say_json(request.as_dict())
    else:
        say(f"{request.type} {request.id} of {request.from_}: {request.status}")
