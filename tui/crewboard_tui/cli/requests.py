"""The commands for requests: `requests` and `plan` show them, `approve`, `reject` and `answer` decide them."""

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any

import click
from msgspec.structs import replace

from crewboard import BadDataError, Request, Team, UsageError, agent_types, redaction
from crewboard.commands import answers as commands_answers
from crewboard.commands import rules
from crewboard.commands.context import CommandLine, command_for
from crewboard.executed_files import RUNS, diff_as_run
from crewboard.protocol import collisions, reviews
from crewboard.protocol import requests as protocol_requests
from crewboard.records.agents import StepNames, Terms
from crewboard.records.base import JsonValue
from crewboard.records.requests import (
    Note,
    describe_notes,
    describe_status,
    display_decider,
    is_revealed,
    marked_lines,
    notes_in,
    parse_note,
    step_lines,
    steps_of,
    versions_after,
    versions_before,
)
from crewboard.store import roster
from crewboard.untrusted import as_run
from crewboard_tui.cli import common
from crewboard_tui.cli.answers import APPROVE, READ, answers, digest, hides_key, reveals
from crewboard_tui.cli.common import Session, age, as_json, clock, note, quoted, say, say_json
from crewboard_tui.render.sanitize import is_revealing, revealing, safe_line, safe_text

_BODY = {"plan_approval": "plan", "question": "question", "shutdown": "reason", "task_review": "summary"}
_BESIDE = ("options", "files", "commands", "risk", "file")
"""Fields of a payload that are printed in addition to its body."""

_RUN = frozenset({"files", "commands", "file"})
"""Fields whose texts are run, or name files."""

_IN_DIFF = frozenset({"content", "old_text", "new_text", "replace_all", "edits", "diff"})
_LABEL = re.compile(r"\w{1,40}", re.ASCII)


@click.command()
@click.option("--all", "everything", is_flag=True, help="Include requests that were answered or closed.")
@click.option("--reveal", is_flag=True, help="Show the keys in what is asked, too; not in JSON.")
@as_json
def requests(session: Session, everything: bool, reveal: bool) -> None:
    """List the requests that wait for an answer, in full.

    Each line of an agent's text begins with `│`, or with `┊` where a line is wider than the terminal. All other lines
    are crewboard's; commands stand alone on theirs.
    """
    team = session.team
    found = protocol_requests.load_all(team.directory) if everything else protocol_requests.pending(team.directory)
    damaged = protocol_requests.damaged(team.directory)
    common.note_damaged_records(team.directory, damaged)
    if session.as_json:
        say_json([request.as_dict() for request in found])
        return
    if not found and not damaged:
        note("there are no requests" if everything else "no request waits for an answer")
    for number, request in enumerate(found):
        if number:
            say("")
        with revealing(wanted=reveal):
            _show(team, request)
    if not reveal:
        _note_hidden(found, command_for(team, f"requests{' --all' if everything else ''} --reveal"))


def _listed(text: str) -> list[str]:
    return [each.strip() for each in text.split(",") if each.strip()]


def _numbers(text: str) -> list[int]:
    found = _listed(text)
    if not found or not all(each.isascii() and each.isdigit() and len(each) <= _MOST_DIGITS for each in found):
        raise UsageError(f"{text!r} is no list of steps: give their numbers, such as 5 or 5,6")
    return [int(each) for each in found]


_MOST_DIGITS = 4
"""The most digits of a step's number."""


# click decorates any kind of callable.
def _steps_option(*names: str, says: str) -> Callable[[Any], Any]:
    """Return an option that gives a command a list of steps; `says` is its help."""
    return click.option(
        *names, type=_numbers, multiple=True, metavar="N,N", help=f"{says}; repeatable.",
        callback=lambda _context, _param, given: [*chain.from_iterable(given)],
    )  # fmt: skip


_left_out = common.options(
    _steps_option("--hold", says="Approve all steps of the plan but these, for now"),
    _steps_option("--not", "refused", says="Approve all steps of the plan but these, which are not to be done"),
)


@click.command()
@common.request_id
@_left_out
@_steps_option("--release", says="Approve these steps, which the approval held, and tell the agent")
@click.option("--reveal", is_flag=True, help="Show the keys in it, too; not in JSON.")
@as_json
def plan(
    session: Session,
    ident: str,
    hold: list[int],
    refused: list[int],
    release: list[int],
    reveal: bool,
) -> None:
    """Show the plan with this ID, line by line, with the notes on it.

    Below their lines stand the notes, with the agent's answers. `+` is before a line that the version before did not
    have, `-` before one that is gone.

    With --hold and --not it is shown as `approve` would approve it: what would be refused to the agent, and what would
    be an instruction only. Nothing is answered.

    With --release steps that its approval held can be done: what they name is no longer refused, and the agent reads a
    message that says so. Once the agent has handed in its result, the approval is over: then give it the step as new
    work.

    Example: crewboard plan plan-1f3a --hold 5 --not 6

    Example: crewboard plan plan-1f3a --release 5
    """
    team = session.team
    if release:
        if hold or refused:
            raise UsageError("--hold and --not are for a plan that waits, and --release is for an approved one")
        done, steps = commands_answers.release(team, ident, release), sorted({*release})
        which = f"step{'s' if len(steps) > 1 else ''} {', '.join(map(str, steps))}"
        session.tell(done.as_dict(), f"{which} of plan {done.id} of {done.from_}: released")
        # What of the plan stays held is said, too.
        if not session.as_json and (words := commands_answers.words_of_terms(team, done)):
            note(safe_line(f"until its result: {words}"))
        return
    request = protocol_requests.load(team.directory, commands_answers.find(team, ident))
    if request is None or request.type != "plan_approval":
        raise UsageError(f"request {ident} is no plan; `{command_for(team, 'requests')}` shows it")
    known = protocol_requests.load_all(team.directory)
    older = [*versions_before(request, known)]
    # The earlier notes and those of its answer, with what later versions answer to them.
    now = {each.id: each for later in versions_after(request, known) for each in notes_in(later.payload)}
    notes = [
        replace(each, answer=now[each.id].answer, settled=now[each.id].settled) if each.id in now else each
        for each in (*request.earlier_notes, *request.notes)
    ]
    # Of an edited plan, the version before what was approved is what was submitted.
    before = request.replace(edited=None) if request.edited is not None else next(iter(older), None)
    # The terms with which it was approved, or would be without the steps that are named.
    chosen = Terms(hold=hold, refused=refused)
    if chosen.is_empty:
        terms = request.terms or chosen
    elif request.status != "pending":
        raise UsageError(f"request {request.id} is {request.status}: which steps were left out stands in its terms")
    else:
        terms = commands_answers.check_terms(team, request.from_, request.plan, chosen, request.payload) or chosen
    if session.as_json:
        keys = ("line", "change", "text")
        say_json({
            "version": len(older) + 1,
            "plan": redaction.redact(request.plan),
            "request": request.as_dict(),
            "lines": [dict(zip(keys, each, strict=True)) for each in _marked_lines(request, before, redaction.redact)],
            "notes": [{**each.as_dict(), "state": each.state} for each in notes],
            "steps": list(_steps(request, terms)),
        })  # fmt: skip
        return
    with revealing(wanted=reveal):
        say_lines = partial(_say_lines, request, before, len(older) + 1, notes, team.operator)
        _show(team, request, say_lines, terms if hold or refused else None)
    if not reveal:
        _note_hidden([request], command_for(team, f"plan {request.id} --reveal"))


def _steps(request: Request, terms: Terms) -> Iterator[dict[str, JsonValue]]:
    """Yield the steps of a plan as JSON: each with its verdict in `terms`, and the files and commands it is refused."""
    texts = steps_of(redaction.redact(request.plan))
    denied = {each.step: each for each in terms.denied}
    for number, within in step_lines(request.plan).items():
        names = denied.get(number, StepNames(step=number))
        yield {
            "number": number, "line": within.start, "end": within.stop - 1, "text": texts.get(number, ""),
            "verdict": terms.verdict(number), "files": [*names.files], "commands": [*names.commands],
        }  # fmt: skip


def _marked_lines(
    request: Request, before: Request | None, safe: Callable[[str], str]
) -> Iterator[tuple[int | None, str, str]]:
    """Yield the lines of a plan, made `safe` as a whole: number, mark and text.

    The mark is `+` for a line that the version `before` did not have, and `-` for one that is gone, which has no
    number.
    """
    old, new = before or request, request
    texts = {"-": safe(old.plan).split("\n"), "": safe(new.plan).split("\n")}
    for mark, number in marked_lines(old.plan, new.plan):
        yield None if mark == "-" else number, mark, texts.get(mark, texts[""])[number - 1]


def _say_lines(request: Request, before: Request | None, version: int, notes: list[Note], operator: str) -> None:
    """Print the lines of a plan with the notes below them, and at the end the notes whose lines are gone."""
    since = f", changed since version {version - 1}" if before is not None else ""
    if request.edited is not None:
        since = f", {_as_edited(request, operator)}, changed since it was submitted"
    say(f"    version {version}{since}:")
    for number, change, text in _marked_lines(request, before, safe_text):
        say(quoted(f"{number or '':>4} {change or ' '} {text}"))
        for each in notes:
            if number is not None and each.end == number:
                _say_note(each)
    for each in notes:
        if not each.line:
            _say_note(each)


def _as_edited(request: Request, operator: str) -> str:
    return f"as {safe_line(display_decider(request, operator))} edited and approved it"


def _say_note(each: Note) -> None:
    say(f"    {each.id}, {each.place}, {each.state}:")
    quote = "" if each.line else "".join(f"> {line}\n" for line in each.quoted)
    say(quoted(f"{quote}{each.text}"))
    if each.answer:
        say(f"    answer to {each.id}:")
        say(quoted(each.answer))


def _note_hidden(found: list[Request], shows: str) -> None:
    """Report on stderr which requests are not shown in full, and the command that `shows` them in full."""
    for request in found:
        if hides_key(request):
            note(f"{request.id}: what looks like a key is hidden; `{shows}` shows it")


def _show(
    team: Team, request: Request, say_lines: Callable[[], None] | None = None, tried: Terms | None = None
) -> None:
    """Print a request.

    Each line of an agent's text is marked; commands have a line of their own, to be copied. `say_lines` prints the plan
    with its notes, in place of its text. With the terms `tried`, the command that approves the plan leaves out the
    steps that these name.
    """
    typed, by = CommandLine.of(team), safe_line(display_decider(request, team.operator))
    closed = f" {clock(request.decided_at)} by {by}" if request.decided_at else ""
    waiting = f" for {age(team.now() - request.created_at)}" if request.status == "pending" else ""
    stands = f"{describe_status(request)}{waiting}{closed}"
    say(f"{request.id} · {request.type} · {request.from_} → {request.to} · {stands}")
    parts = [*(_call(request) if request.type == "permission" else _parts(request, team.operator))]
    if runs := collisions.run_on_your_machine(request.payload):
        parts.append((RUNS, as_run(_items(runs))))
    if say_lines is not None:
        say_lines()
        parts = [part for part in parts[1:] if part[0] != "notes"]
    for label, text in parts:
        if label:
            say(f"    {label}:")
        say(quoted(text))
    if said := request.said if say_lines is None else request.feedback:
        say("    answer:")
        say(quoted(said))
    if (terms := tried or request.terms) is not None:
        label = "terms" if tried is None else "as you would approve it"
        say(f"    {safe_line(f'{label}: {agent_types.describe_terms(terms, None)}')}")
        say(*(f"    {safe_line(sentence)}" for sentence in agent_types.describe_steps(terms)))
    if request.status == "pending":
        tried = tried or Terms()
        left_out = (("--hold", tried.hold), ("--not", tried.refused))
        chosen = "".join(f" {option} {','.join(map(str, numbers))}" for option, numbers in left_out if numbers)
        for what, how in answers(request, typed):
            if what != READ:
                say(f"{how}{chosen}" if what == APPROVE else how)
        if request.type == "plan_approval" and request.answered_in is None:
            say(typed(f"reject {request.id} --note LINE:TEXT"))
        if (scope := rules.scope_of(request)) is not None:
            say("    with --rule, it also allows:")
            say(quoted(rules.covers(request, scope)))
            if is_revealing() or not hides_key(request):
                say(typed(f"approve {request.id} --sha256 {digest(request)} --rule"))


def _parts(request: Request, operator: str) -> Iterator[tuple[str, str]]:
    """Yield the texts of a request, each with its label."""
    payload = request.payload
    if request.edited is not None:
        yield f"plan, {_as_edited(request, operator)}; `plan {request.id}` shows what was changed", request.plan
    else:
        yield "", str(payload.get(_BODY[request.type], ""))
    if request.type == "task_review":
        yield "diff", diff_as_run(str(payload.get("diff", "")))
    for name in _BESIDE:
        if value := collisions.shown_files(payload) if name == "files" else payload.get(name):
            text = _items(value) if isinstance(value, list) else str(value)
            yield name, as_run(text) if name in _RUN else text
    if notes := describe_notes(request.earlier_notes):
        yield "notes", notes


def _items(values: Sequence[JsonValue]) -> str:
    return "\n".join("- " + str(each).replace("\n", "\n  ") for each in values)


def _call(request: Request) -> Iterator[tuple[str, str]]:
    """Yield the parts of a permission, each with its label: reasons, tool and arguments, and the diff if it has one."""
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
@_left_out
@as_json
def approve(
    session: Session,
    /,
    ident: str,
    feedback: str | None,
    notes: tuple[str, ...],
    sha256: str | None,
    edited_file: str | None,
    rule: bool,
    rule_for: rules.RuleFor | None,
    # The fields of `Terms` that are options.
    **given: Any,
) -> None:
    """Approve the plan or permission with this ID.

    Any unique prefix of the id is enough, and pending requests come first. An answer that has no effect (request
    closed, unknown or of another type) exits 65 and says why.

    If something in it is hidden, because it looks like a key, approve it with the command that
    `crewboard requests --reveal` prints. So does a script: JSON reveals no key, and the sha256 in it is refused.

    A plan can be approved with terms: --ask, --tools, --network, --budget, --hold and --not. They hold until the
    result. Files and commands that only steps of --hold and --not name are refused to the agent; the rest is an
    instruction. `crewboard plan ID --hold N` shows which these are.

    Example: crewboard approve plan-1f3a --ask --budget '$2' --hold 5 --not 6
    """
    terms = Terms(**{name: value for name, value in given.items() if value is not None})
    edited = common.read_text(edited_file) if edited_file is not None else None
    written = [parse_note(each) for each in notes]
    sha256 = _of_what_was_read(session.team, ident, sha256, accepts=True)
    if rule or rule_for is not None:
        if notes:
            raise UsageError("notes are for a plan, and --rule is for a permission; use one of both")
        if not terms.is_empty:
            raise UsageError("terms are for a plan, and --rule is for a permission; use one of both")
        decided, standing = rules.approve_with_rule(session.team, ident, sha256=sha256, rule_for=rule_for or "agent")
        note(safe_line(f"{standing.id}: {rules.describe_rule(standing)}"))
        _report_answer(session, decided)
        return
    decided = commands_answers.approve(
        session.team, ident, feedback=feedback, sha256=sha256, edited=edited, terms=terms, notes=written
    )
    common.note_budget(terms.budget)
    team = session.team
    if edited is not None and roster.is_attached(team.directory):
        note(f"Claude Code takes plans from teammates alone: {decided.from_} reads your version and submits it again")
    known = (*commands_answers.plan_overlaps(team, decided), *reviews.what_changed(team.directory, decided))
    note(*map(safe_line, known))
    if lacking := commands_answers.tools_lacking(team, decided):
        note(f"warning: {lacking}")
    if words := commands_answers.words_of_terms(team, decided):
        note(safe_line(f"until its result: {words}"))
    note(*map(safe_line, agent_types.describe_steps(decided.terms) if decided.terms is not None else ()))
    _report_answer(session, decided)


def _of_what_was_read(team: Team, ident: str, given: str | None, *, accepts: bool) -> str | None:
    """Return the SHA-256 for an answer: `given`, or that of the request if `given` says that all of it was revealed.

    Raises:
        BadDataError: The answer `accepts` the request, and something in it is hidden that `given` does not reveal.
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


@click.command()
@common.request_id
@click.option("--feedback", type=common.text, help="Reason; the agent revises its plan accordingly.")
@_notes
@click.option("--sha256", help="SHA-256 of what you reviewed, or its first 16 digits; refused if the request changed.")
@as_json
def reject(session: Session, ident: str, feedback: str | None, notes: tuple[str, ...], sha256: str | None) -> None:
    """Reject the plan or permission with this ID, and say why.

    A plan is also sent back with notes on its lines, which `crewboard plan ID` numbers. The agent answers each note in
    its next version.

    Example: crewboard reject plan-1f3a --note '12:which tests?' --note '20-23:leave this out'
    """
    if feedback is None and not notes:
        raise UsageError("say why it is rejected, with --feedback; of a plan also with --note")
    written = [parse_note(each) for each in notes]
    sha256 = _of_what_was_read(session.team, ident, sha256, accepts=False)
    decided = commands_answers.reject(session.team, ident, feedback or "", sha256=sha256, notes=written)
    _report_answer(session, decided)


@click.command()
@common.request_id
@click.argument("text", type=common.text)
@as_json
def answer(session: Session, ident: str, text: str) -> None:
    """Answer the question with this ID.

    Example: crewboard answer question-77c0 "keep the 1.x pages"
    """
    _report_answer(session, commands_answers.answer(session.team, ident, text))


def _report_answer(session: Session, request: Request) -> None:
    session.tell(request.as_dict(), f"{request.type} {request.id} of {request.from_}: {describe_status(request)}")
