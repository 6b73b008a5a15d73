"""The demo without a screen: prints events, answers as the operator, and checks each step."""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import TypeVar

from crewboard.commands import answers as decisions
from crewboard.commands import hire, messages
from crewboard.errors import CrewboardError, ExitCode
from crewboard.linux.programs import clean_environment
from crewboard.names import LEAD
from crewboard.readmodel.changes import ChangeReader
from crewboard.records import Message, Request
from crewboard.store import mailbox
from crewboard_tui.cli.output import note, say
from crewboard_tui.cli.watching import describe, hints
from crewboard_tui.demo.stage import COURIER, Stage

T = TypeVar("T")

LIMIT = 80.0
"""Time limit of the whole demo, in seconds."""

_STEP = 40.0
_LOOK_EVERY = 0.05
_ANSWER = "Keep it as it is for now; note it for the next release."


class DemoFailedError(Exception):
    """An expected step did not happen; the message names it."""


def play(stage: Stage) -> int:
    """Play every scene and return the exit code."""
    started = time.monotonic()
    say(f"demo: a team of {len(stage.scenario.agents)} on a scratch copy of the sample project, {stage.root}")
    say("demo: the offline model answers; it is no language model")
    if words := stage.lack_of_sandbox():
        say(f"demo: {words}")
    try:
        with hints(stage.team.directory) as wake:
            Director(stage, wake).direct()
    except (DemoFailedError, CrewboardError) as error:
        note(f"crewboard: the demo failed: {error}")
        return ExitCode.FAILED
    say(f"demo: finished as expected in {time.monotonic() - started:.0f} s; removing the team")
    return ExitCode.DONE


class Director:
    """Waits for one step after the other and prints changes meanwhile."""

    def __init__(self, stage: Stage, wake: threading.Event) -> None:
        self._stage = stage
        self._wake = wake
        self._changes = ChangeReader(stage.team.directory)
        self._deadline = time.monotonic() + LIMIT

    def direct(self) -> None:
        """Play all steps.

        Raises:
            DemoFailedError: A step did not happen in time.
        """
        if self._run_tests() == 0:
            raise DemoFailedError("the sample's tests pass before any agent worked on it")
        say("demo: one of the sample's tests fails; that is the team's work")
        self._hire()
        self._death()
        self._resume()
        self._plan()
        self._question()
        self._summary()
        self._results()
        self._work_done()

    def _hire(self) -> None:
        hired = self._stage.hire_all()
        self._until("all agents are hired", lambda: all(each.done() for each in hired) or None)
        for each in hired:
            each.result()

    def _death(self) -> None:
        status = self._until(f"{COURIER} is at work", self._stage.courier_at_work)
        self._stage.kill_courier(status)
        say(f"demo: killed {COURIER} (pid {status.pid}) with SIGKILL, to show a crash")
        self._until(f"the crash of {COURIER} is shown with its signal", self._courier_died)

    def _courier_died(self) -> bool | None:
        agent = self._changes.view.agent(COURIER)
        if agent is None or agent.state != "crashed" or agent.exit is None:
            return None
        return agent.exit.signal == signal.SIGKILL or None

    def _resume(self) -> None:
        say(f"demo: resumes {COURIER} (as you)")
        resumed: Future[int] = self._stage.pool.submit(hire.resume, self._stage.team, COURIER)
        self._until(f"{COURIER} is running again", lambda: resumed.done() or None)
        resumed.result()

    def _plan(self) -> None:
        plan = self._until("fixer submits a plan", lambda: self._asked("fixer", "plan_approval"))
        say("demo: approves the plan (as you)")
        decisions.approve(self._stage.team, plan.id, sha256=plan.sha256)

    def _question(self) -> None:
        question = self._until("reviewer asks a question", lambda: self._asked("reviewer", "question"))
        options = question.payload.get("options")
        text = str(options[0]) if isinstance(options, list) and options else _ANSWER
        say(f"demo: answers the question with {text!r} (as you)")
        decisions.answer(self._stage.team, question.id, text)

    def _asked(self, name: str, kind: str) -> Request | None:
        return next((r for r in self._changes.view.requests if r.from_ == name and r.type == kind), None)

    def _summary(self) -> None:
        say("demo: asks reviewer for a summary (as you)")
        sent = messages.send(self._stage.team, "reviewer", "Please send me a summary of what you found.")
        self._until("reviewer answers with a summary", lambda: self._answered(sent.id))

    def _answered(self, ident: str) -> bool | None:
        answers = (message.metadata.get("answers") for message in self._results_of("reviewer"))
        return any(isinstance(each, list) and ident in each for each in answers) or None

    def _results(self) -> None:
        for agent in self._stage.scenario.agents:
            self._until(f"{agent.name} sends its result", partial(self._results_of, agent.name))

    def _results_of(self, name: str) -> list[Message]:
        mails = mailbox.read(self._stage.team.directory, LEAD).messages
        return [message for message in mails if message.type == "result" and message.from_ == name]

    def _work_done(self) -> None:
        self._until("every task is completed", self._board_is_done)
        if self._run_tests() != 0:
            raise DemoFailedError("the sample's tests still fail")
        say("demo: the sample's tests pass, every task is completed")

    def _board_is_done(self) -> bool | None:
        return all(task.status == "completed" for task in self._changes.view.tasks) or None

    def _check_the_living(self) -> None:
        """Check that no agent but the courier has crashed."""
        for agent in self._changes.view.agents:
            if agent.state == "crashed" and (agent.name != COURIER or agent.run > 1):
                raise DemoFailedError(f"{agent.name} crashed: {agent.reason}")

    def _run_tests(self) -> int:
        """Run the sample's own tests and return their exit code."""
        command = [sys.executable, "-B", "-m", "unittest", "-q"]
        left = max(1.0, self._deadline - time.monotonic())
        done = subprocess.run(
            command, cwd=self._stage.root, env=clean_environment(), capture_output=True, timeout=left, check=False
        )
        return done.returncode

    def _until(self, what: str, look: Callable[[], T | None]) -> T:
        """Wait until `look` returns something, and print changes.

        Raises:
            DemoFailedError: It returned nothing in time.
        """
        deadline = min(time.monotonic() + _STEP, self._deadline)
        while True:
            self._wake.clear()
            for change in self._changes.read():
                say(describe(change))
            if found := look():
                return found
            self._check_the_living()
            if time.monotonic() > deadline:
                raise DemoFailedError(f"this did not happen in time: {what}")
            self._wake.wait(_LOOK_EVERY)
