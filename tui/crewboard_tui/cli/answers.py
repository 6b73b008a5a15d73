"""The answers that a need or a request can have, each with the command that gives it."""

import os
from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from crewboard import ExitCode, Need, NeedKind, Request, models, redaction
from crewboard.commands.context import CommandLine
from crewboard.names import SYSTEM
from crewboard.readmodel.needs import NEED_OF_REQUEST, ways_to_begin
from crewboard.readmodel.team import Limit
from crewboard.records.requests import SHA256_DIGITS, revealed_sha256
from crewboard_tui.render.sanitize import is_revealing

READ, APPROVE = "read it", "approve"

_READ = (READ, "requests")
_APPROVE = (APPROVE, "approve {id} --sha256 {sha256}")

_ACKNOWLEDGE = ("acknowledge", "ack {agent}")

_SEE_HOSTS = ("see the hosts", "hosts")

_RAISES: dict[Limit, str] = {
    "turns": "limit {agent} --turns N",
    "budget": "budget {agent} AMOUNT",
    "team_budget": "budget AMOUNT",
}
"""The commands that raise a limit and continue the assignment."""

_ANSWERS: dict[NeedKind, tuple[tuple[str, str], ...]] = {
    "death": (("resume", "resume {agent}"), ("acknowledge", "ack {agent}")),
    "plan": (_READ, _APPROVE, ("refuse", "reject {id} --feedback TEXT")),
    "permission": (_READ, _APPROVE, ("refuse", "reject {id} --feedback TEXT")),
    "question": (("answer", "answer {id} TEXT"),),
    "review": (_READ, _APPROVE, ("send back", "reject {id} --feedback TEXT")),
    "stuck": (("see why", "journal {agent}"), ("stop it", "stop {agent} --now")),
    "looping": (("tell it", "send {agent} TEXT"), ("stop it", "stop {agent}")),
    "failed": (("try again", "send {agent} TEXT"), _ACKNOWLEDGE),
    "failed_start": (("start it", "resume {agent}"), ("take it off the roster", "remove {agent}")),
    "no_host": (_SEE_HOSTS, ("cancel it", "stop {agent}")),
    "collision": (
        ("see what it changed", "changes {agent} --diff"),
        ("tell it", "send {agent} TEXT"),
        ("hold it", "pause {agent}"),
        _ACKNOWLEDGE,
    ),
    "outage": (
        ("see the server", "doctor --try"),
        ("end one that waits, to resume it in a shell with another address or key", "stop NAME"),
        ("let the assignments fail", "settings on_outage fail"),
        _ACKNOWLEDGE,
    ),
    "damaged": (_ACKNOWLEDGE,),
    "task_failed": (
        ("try again", "task update {task} --status pending --owner {agent}"),
        ("give it to another agent", "task update {task} --status pending --owner NAME"),
        ("reopen it for any agent", "task reopen {task}"),
        ("acknowledge", "ack {task}"),
    ),
    "check_failed": (
        ("tell it", "send {agent} TEXT"),
        ("run the check", "check {agent}"),
        ("give it another check", "task update {task} --check COMMAND"),
        ("complete it anyway", "task update {task} --status completed"),
        ("acknowledge", "ack {task}"),
    ),
    "mcp": (("see the servers", "mcp"), _ACKNOWLEDGE),
    "result": ((READ, "inbox {mailbox}"), _ACKNOWLEDGE),
}


def hides_key(request: Request) -> bool:
    """Return True if something in a request is redacted where it is shown, because it looks like a secret."""
    shown = [request.payload, request.edited]
    return bool(redaction.redact_values(shown) != shown)


def reveals(request: Request) -> str:
    """Return the command that shows a request with nothing redacted, and how to approve it."""
    return f"plan {request.id} --reveal" if request.type == "plan_approval" else "requests --reveal"


def digest(request: Request) -> str:
    """Return the value of `--sha256` that approves a request as it is shown now, with its secrets redacted or not."""
    return (revealed_sha256(request.sha256) if hides_key(request) else request.sha256)[:SHA256_DIGITS]


def answers(need: Need | Request, typed: CommandLine) -> Iterator[tuple[str, str]]:
    """Yield each possible answer to a need or a request: what it does, and the command that gives it."""
    if need.answered_in is not None:
        yield "answer it", "answer in Claude Code's own terminal"
        return
    words: dict[str, str | int | None]
    if isinstance(need, Need):
        known = _known(need)
        words = {
            "agent": need.agent, "id": need.request_id, "task": need.task, "mailbox": need.mailbox,
            "server": need.server, "sha256": need.sha256[:SHA256_DIGITS],
            "model": models.instead_of(need.refused_by or "", os.environ) or "M",
        }  # fmt: skip
    elif need.type in NEED_OF_REQUEST:
        known = _ANSWERS[NEED_OF_REQUEST[need.type]]
        words = {"agent": need.from_, "id": need.id, "sha256": digest(need)}
        if hides_key(need) and not is_revealing():
            reveal = ("show its keys", reveals(need))
            known = tuple(reveal if each == _READ else each for each in known if each != _APPROVE)
    # A shutdown request is answered by the agent that it asks.
    else:
        return
    if isinstance(need, Need) and need.wanted is not None and need.wanted.offline:
        typed = replace(typed, offline_hosts=True)
    for what, how in known:
        if not (typed.attached and how.partition(" ")[0] in _STEERS):
            yield what, typed(how.format(**words))


def _known(need: Need) -> tuple[tuple[str, str], ...]:
    """Return the answers to a need, with placeholders such as `{agent}` in the commands."""
    known = _ANSWERS[need.kind]
    if need.host is not None or need.kind == "no_host":
        ways = ways_to_begin(need)
        if need.kind == "no_host":
            # Agents that outlived their host run: there is nothing to cancel.
            known = (*ways, _SEE_HOSTS) if need.host is not None else (*ways, *_ANSWERS["no_host"])
        elif len(need.agents) > 1:
            known = (("resume them", f"resume {' '.join(need.agents)}"), _SEE_HOSTS, _ACKNOWLEDGE)
    elif need.refused_by is not None:
        known = (("try another model", "resume {agent} --model {model}"), *known)
    elif need.limit is not None:
        known = (("raise the limit", _RAISES[need.limit]), _ACKNOWLEDGE)
    elif need.kind == "death" and need.code == ExitCode.CREDENTIALS:
        known = (("resume it in a shell with the right address and key", "resume {agent}"), _ACKNOWLEDGE)
    elif need.kind == "failed":
        known = _about_failure(need)
    elif need.kind == "task_failed" and need.agent == SYSTEM:
        known = known[1:]
    elif need.kind == "check_failed" and need.agent == SYSTEM:
        known = known[2:]
    elif need.kind == "collision" and not need.in_worktrees:
        known = (("see what it did", "journal {agent}"), *known[1:])
    elif need.is_new:
        known = (known[0], ("accept it", "mcp approve {server}"), *known[1:])
    return known


def _about_failure(need: Need) -> tuple[tuple[str, str], ...]:
    """Return the answers to a failure of an agent or the supervisor, or to a task that an agent left unreported."""
    if need.code == ExitCode.TRY_LATER:
        return (("replace it", "supervisor --restart"),)
    if need.code == ExitCode.INTERNAL:
        # Restarting does not help against a failure that repeats.
        return ()
    if need.task is not None:
        return (("tell it", "send {agent} TEXT"), ("close it", "task update {task} --status completed"), _ACKNOWLEDGE)
    if need.code in (ExitCode.API_UNAVAILABLE, ExitCode.CREDENTIALS):
        # Mail alone would be answered from the same address, with the same key.
        again = ("end it, to resume it in a shell with the right address and key", "stop {agent}")
        return (again, *_ANSWERS["failed"])
    return _ANSWERS["failed"]


_STEERS = frozenset({"resume", "send", "stop", "remove", "pause", "limit", "budget", "task", "check"})
"""Commands that are refused for agents of another program."""


def in_a_row(commands: Iterable[str]) -> str:
    """Join alternative commands into one line."""
    return "   or   ".join(commands)
