"""The commands for messages: `send`, `broadcast`, `inbox`. Looking into a mailbox marks nothing as read."""

import shlex
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import click

from crewboard import Message, Team, UsageError
from crewboard.commands import messages as commands_messages
from crewboard.commands.context import command_for
from crewboard.names import is_operator_mailbox, require_recipient
from crewboard.protocol import requests
from crewboard.readmodel.mail import MailReader, MessageView, as_approved, only_became_free
from crewboard_tui.cli import common
from crewboard_tui.cli.common import Session, as_json, clock, indented, note, note_damage, say, say_json


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
def send(session: Session, name: str, text: str | None, attach: tuple[Path, ...]) -> None:
    """Send TEXT to the agent NAME, as the operator.

    An idle agent starts work on it. A working agent reads it before its next model call, a stopped one when it is
    resumed.

    Example: crewboard send fixer "keep the old parameter for one release"

    Example: crewboard send fixer "the button is cut off" --attach shot.png
    """
    if text is None and not attach:
        raise click.UsageError("Missing argument 'TEXT'; only with --attach it can be left out.")
    team, text = session.team, text or ""
    require_recipient(name, team.config.names)
    if text.strip() or attach:
        team.ensure()
    message = commands_messages.send(team, name, text, attach)
    _report_sent(session, [message])


@click.command()
@click.argument("text", type=common.text)
@as_json
def broadcast(session: Session, text: str) -> None:
    """Send TEXT to every agent, one copy each.

    Example: crewboard broadcast "freeze main in 20 minutes"
    """
    _report_sent(session, commands_messages.broadcast(session.team, text), many=True)


def _report_sent(session: Session, messages: list[Message], *, many: bool = False) -> None:
    dumped = [message.as_dict() for message in messages]
    session.tell(dumped if many else dumped[0], "sent to " + ", ".join(message.to for message in messages))
    common.note_asleep(session.team, messages)


_PAGE = 200
"""The number of messages that `inbox` prints by default."""


@click.command()
@common.agent_name
@click.option("--limit", type=click.IntRange(min=1), help=f"Show the newest N messages; default {_PAGE}, --json: all.")
@click.option("--before", metavar="ID", help="Show those that are older than the message ID.")
@click.option("--all", "everything", is_flag=True, help="Show all.")
@as_json
def inbox(session: Session, name: str, limit: int | None, before: str | None, everything: bool) -> None:
    """Show the mailbox of NAME; nothing is marked as read.

    NAME is an agent, `operator` (you) or `lead`: if that mailbox is empty, that of the agent that is the lead. Each
    message has three times: sent, picked up by its reader, entered a turn. Of a long mailbox the newest messages are
    shown, and how to see older ones. Agents that only became free for work share one line.
    """
    if everything and limit is not None:
        raise UsageError("use --all or --limit, not both")
    team = session.team
    lead = team.config.recipient(name)
    if lead != name and not team.directory.inbox(name).size():
        # Mail to `lead` goes to this agent, and there is none from before it was the lead.
        note(f"{name} is {lead}")
        name = lead
    most = None if everything or (session.as_json and limit is None) else limit or _PAGE
    letters = _page(team, name, most, before)
    asked = {request.id: request for request in requests.load_all(team.directory)}

    def void(message: Message) -> str | None:
        return requests.ineffective_reason(message, asked.get(str(message.metadata.get("request_id"))))

    shown = as_approved(letters, asked.values())
    if session.as_json:
        say_json([
            {
                **each.message.as_dict(),
                "edited": now.message.content if now.edited_by else None,
                "picked_up_at": each.picked_up_at,
                "entered_turn_at": each.entered_turn_at,
                "changes_nothing": void(each.message),
            }
            for each, now in zip(letters, shown, strict=True)
        ])  # fmt: skip
        return
    if not letters:
        note(f"the mailbox of {name} is empty")
    person_reads = is_operator_mailbox(name, team.config.names)
    for is_free, run in groupby(shown, lambda each: only_became_free(each.message)):
        together = list(run)
        if is_free:
            names = ", ".join(dict.fromkeys(each.message.from_ for each in together))
            say(f"free for work: {names} · {clock(together[-1].message.ts)}")
            continue
        for letter in together:
            message = letter.message
            times = f"{'from another program · ' if message.is_foreign else ''}sent {clock(message.ts)}"
            if not person_reads:
                times += f" · picked up {clock(letter.picked_up_at)} · in turn {clock(letter.entered_turn_at)}"
            edited = f" · as {letter.edited_by} edited and approved it" if letter.edited_by else ""
            say(f"{message.from_} → {message.to} · {message.type} · {times}{edited}")
            say(indented(message.content))
            if (why := void(message)) is not None:
                say(indented(f"changes nothing: {why}"))


def _page(team: Team, name: str, most: int | None, before: str | None) -> Sequence[MessageView]:
    """Return the newest messages of a mailbox, at most `most`, and report on stderr if there are older ones.

    With `before`, the id of a message, these are older than that one.

    Raises:
        UsageError: There is no message with this id.
    """
    # The end of the files is enough for the newest page, unless the pickup of a message is recorded further up.
    reader = MailReader(team.directory, name, tail=most is not None and before is None)
    letters = reader.read()
    if reader.tail and not reader.is_enough_for(letters[-(most or 0) :], most or 0):
        reader = MailReader(team.directory, name, tail=False)
        letters = reader.read()
    note_damage(len(reader.damaged_ends), "mailbox")
    if before is not None:
        places = [place for place, letter in enumerate(letters) if letter.message.id == before]
        if not places:
            raise UsageError(f"there is no message {before!r} in the mailbox of {name}")
        letters = letters[: places[0]]
    page = letters if most is None else letters[-most:]
    if page and (len(page) < len(letters) or reader.has_older):
        older = command_for(team, f"inbox {name} --before {shlex.quote(page[0].message.id)}")
        newest = "newest message" if len(page) == 1 else f"newest {len(page)} messages"
        note(f"the {newest}; `{older}` shows older ones, --all all")
    return page
