"""A foreground `spawn`: progress on stderr, the answer on stdout, the worker's exit code."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from crewboard.commands import hire as hiring
from crewboard.commands.context import POLL_INTERVAL, CommandLine, Team, wait_until
from crewboard.commands.hire import Assignment, Hire
from crewboard.errors import ExitCode
from crewboard.names import LEAD, check_agent
from crewboard.protocol import requests as store
from crewboard.protocol import supervisor_client
from crewboard.protocol.addressing import only_operator_answers
from crewboard.protocol.results import Follower
from crewboard.readmodel.activity import Activity, describe
from crewboard.readmodel.needs import summarise
from crewboard.records import Answer, Event, Exit, Sent, describe_exit
from crewboard.store import leases
from crewboard_tui.cli.output import clock, columns, cut, note, say, say_json
from crewboard_tui.cli.requests import answers, in_a_row
from crewboard_tui.render.sanitize import safe_line

ASK_EVERY = 0.25
"""Seconds between two checks for pending requests."""

BURIED_WITHIN = 15.0
"""Seconds for the supervisor to record the exit of a worker that has ended."""

MAILED_WITHIN = 5.0
"""Seconds for a worker to mail the answer that is already in its journal."""

_QUIET = frozenset({"mail", "answer", "error"})
"""Kinds of activity that are shown elsewhere: the caller wrote the prompt, the answer goes to stdout."""


@dataclass
class Following:
    """One assignment whose result is awaited."""

    team: Team
    assignment: Assignment
    follower: Follower
    typed: CommandLine
    told: set[str] = field(default_factory=set)
    look_again: float = 0

    def run(self) -> Answer | Exit | None:
        """Wait for the answer, or for the run to end without one. Return None if the worker vanished."""
        gone_at: float | None = None
        while True:
            ended = self.follower.ended()
            events = self._read()
            if self.follower.answer is not None:
                self._wait_for_its_mail(events)
                return self.follower.answer
            if ended is not None:
                return ended
            if leases.is_held(self.follower.agent.lease):
                gone_at = None
                self._tell_what_it_asks()
            elif gone_at is None:
                gone_at = time.monotonic()
                supervisor_client.wake_supervisor(self.team.directory)
            elif time.monotonic() - gone_at > BURIED_WITHIN:
                return None
            time.sleep(POLL_INTERVAL)

    def _read(self) -> list[Event]:
        events = self.follower.read()
        for event in events:
            _show(self.assignment.agent, event)
        return events

    def _wait_for_its_mail(self, events: list[Event]) -> None:
        """Wait until the result is mailed too: the caller may look for it in the mailbox next."""
        deadline = time.monotonic() + MAILED_WITHIN
        while not any(map(_tells_result, events)) and time.monotonic() < deadline:
            if self.follower.ended():
                return
            time.sleep(POLL_INTERVAL)
            events = self._read()

    def _tell_what_it_asks(self) -> None:
        if time.monotonic() < self.look_again:
            return
        self.look_again = time.monotonic() + ASK_EVERY
        lead = self.team.directory.agent(LEAD)
        mine = only_operator_answers(self.team.config, lambda: leases.is_held(lead.lease))
        for request in store.pending(self.team.directory):
            if request.from_ != self.assignment.agent or request.to not in mine or request.id in self.told:
                continue
            self.told.add(request.id)
            note(f"{request.from_} waits for you: {cut(summarise(request), columns())}")
            note(f"  {in_a_row(how for _, how in answers(request, self.typed))}")


def _tells_result(event: Event) -> bool:
    return isinstance(event, Sent) and event.message.type in ("result", "error")


def spawn_and_follow(team: Team, hire: Hire, *, as_json: bool) -> int:
    """Hire an agent, wait for its answer, print it and return the exit code."""
    # Before any file path is built from the name.
    check_agent(hire.name, hire.type)
    return follow(team, hire.name, lambda: hiring.spawn(team, hire), once=hire.flags.once, as_json=as_json)


def follow(team: Team, name: str, start: Callable[[], Assignment], *, once: bool, as_json: bool) -> int:
    """Call `start` to give the agent `name` work, wait for the answer, print it and return the exit code."""
    follower, typed = Follower(team.directory.agent(name), "", 0), CommandLine.of(team)
    try:
        assignment = start()
        follower.ident, follower.run = assignment.id, assignment.run
        outcome = Following(team, assignment, follower, typed).run()
        if once and isinstance(outcome, Answer):
            wait_until(lambda: not leases.is_held(follower.agent.lease), BURIED_WITHIN)
    except KeyboardInterrupt:
        note(f"\ndetached: {name} keeps working; `{typed(f'journal {name} --follow')}` shows its progress")
        return ExitCode.INTERRUPTED
    return _tell(assignment, outcome, typed, as_json=as_json)


def _tell(assignment: Assignment, outcome: Answer | Exit | None, typed: CommandLine, *, as_json: bool) -> int:
    answer = outcome if isinstance(outcome, Answer) else None
    code, why = _judge(assignment.agent, outcome, typed)
    if as_json:
        say_json(
            {
                "name": assignment.agent,
                "run": assignment.run,
                "assignment": assignment.id,
                "text": answer.text if answer else None,
                "result": answer.result if answer else None,
                "error": why,
                "code": code,
            }
        )
    elif answer is not None and answer.text:
        say(answer.text)
    if why:
        note(f"crewboard: {safe_line(why)}")
    return code


def _judge(name: str, outcome: Answer | Exit | None, typed: CommandLine) -> tuple[int, str | None]:
    """Return the exit code of an assignment and, if it failed, a sentence that explains why."""
    if isinstance(outcome, Answer):
        if outcome.error is None:
            return ExitCode.DONE, None
        return outcome.code or ExitCode.FAILED, f"{name} could not finish: {outcome.error}"
    again = f"`{typed(f'resume {name}')}` resumes it"
    if outcome is None:
        return ExitCode.FAILED, f"{name} vanished without a result; {again}"
    how = describe_exit(outcome)
    return outcome.code or ExitCode.FAILED, f"{name} ended without an answer: {how}; {again}"


def _show(name: str, event: Event) -> None:
    for activity in describe(event):
        if activity.kind not in _QUIET and activity.text:
            note(_line(name, activity))


def _line(name: str, activity: Activity) -> str:
    seconds = f" ({activity.seconds:.1f}s)" if activity.seconds and activity.kind == "done" else ""
    head = f"{clock(activity.ts)} {name} {activity.kind:<5} "
    return head + cut(activity.text, columns() - len(head) - len(seconds)) + seconds
