"""The commands `send`, `broadcast` and `inbox`. Looking into a mailbox marks nothing as read."""

from typing import Any

import click

from crewboard.commands import messages as mail
from crewboard.commands.context import Team, command_for
from crewboard.protocol import addressing, approvals, requests
from crewboard.records import Message
from crewboard_tui.cli import options
from crewboard_tui.cli.options import Session, revive
from crewboard_tui.cli.output import as_json, clock, indented, note, note_damage, say, say_json


@click.command()
@click.argument("name")
@click.argument("text", type=options.text)
@as_json
@click.pass_obj
def send(session: Session, name: str, text: str, as_json: bool) -> None:
    """Send TEXT to the agent NAME, as the operator.

    An idle agent starts work on it. A working agent reads it before its next model call, a stopped one when it is
    resumed.

    Example: crewboard send fixer "keep the old parameter for one release"
    """
    team = session.team
    addressing.require_recipient(name, team.config.names)
    if text.strip():
        team.ensure()
    message = mail.send(team, name, text)
    _tell(team, [message], as_json)


@click.command()
@click.argument("text", type=options.text)
@as_json
@click.pass_obj
def broadcast(session: Session, text: str, as_json: bool) -> None:
    """Send TEXT to every agent, one copy each.

    Example: crewboard broadcast "freeze main in 20 minutes"
    """
    team = session.team
    _tell(team, mail.broadcast(team, text), as_json, many=True)


def _tell(team: Team, messages: list[Message], as_json: bool, *, many: bool = False) -> None:
    dumped = [message.model_dump() for message in messages]
    if as_json:
        say_json(dumped if many else dumped[0])
    else:
        say("sent to " + ", ".join(message.to for message in messages))
    revive(team.directory)
    asleep = [message.to for message in messages if not mail.is_listening(team, message.to)]
    for name in asleep:
        note(f"{name} is not running: the message is kept; `{command_for(team, f'resume {name}')}` resumes it")


@click.command()
@click.argument("name")
@as_json
@click.pass_obj
def inbox(session: Session, name: str, as_json: bool) -> None:
    """Show the mailbox of NAME; nothing is marked as read.

    NAME is an agent, `operator` (you) or `lead`. Each message has three times: sent, picked up by its reader,
    entered a turn.
    """
    from crewboard.readmodel.mail import Letter, MailReader

    team = session.team
    addressing.require_recipient(name, team.config.names)
    reader = MailReader(team.directory, name, tail=False)
    letters = reader.read()
    note_damage(reader.damaged, "mailbox")
    asked = {request.id: request for request in requests.load_all(team.directory)}

    def void(message: Message) -> str | None:
        return approvals.ineffective_reason(message, asked.get(str(message.metadata.get("request_id"))))

    if as_json:
        say_json([_as_json(letter, void(letter.message)) for letter in letters])
        return
    if not letters:
        note(f"the mailbox of {name} is empty")
    person_reads = addressing.is_operator_mailbox(name, team.config.names)

    def show(letter: Letter) -> None:
        message = letter.message
        times = f"sent {clock(message.ts)}"
        if not person_reads:
            times += f" · picked up {clock(letter.picked_up_at)} · in turn {clock(letter.entered_turn_at)}"
        say(f"{message.from_} → {message.to} · {message.type} · {times}")
        say(indented(message.content))
        if (why := void(message)) is not None:
            say(indented(f"changes nothing: {why}"))

    for letter in letters:
        show(letter)


# The module of this type is imported only when it is needed.
def _as_json(letter: Any, void: str | None) -> dict[str, Any]:  # noqa: ANN401
    return {
        **letter.message.model_dump(),
        "picked_up_at": letter.picked_up_at,
        "entered_turn_at": letter.entered_turn_at,
        "changes_nothing": void,
    }
